package volume

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// refreshRetryDelay is the wait after a refresh that failed or is in progress.
const refreshRetryDelay = 10 * time.Second

// RefreshAt returns when Mount has to update the volumes of a pod although no object has changed, because tokens and
// certificates expire. Zero means never.
func (v *Volumes) RefreshAt(uid types.UID) time.Time {
	var earliest time.Time
	now := time.Now()
	add := func(at time.Time) {
		if !at.After(now) {
			at = now.Add(refreshRetryDelay)
		}
		if earliest.IsZero() || at.Before(earliest) {
			earliest = at
		}
	}
	v.tokens.mu.Lock()
	for key, token := range v.tokens.cached {
		if key.pod == uid {
			add(token.refreshAt)
		}
	}
	v.tokens.mu.Unlock()
	v.certificates.mu.Lock()
	var issued []*certificate
	for key, c := range v.certificates.issued {
		if key.pod == uid {
			issued = append(issued, c)
		}
	}
	v.certificates.mu.Unlock()
	for _, c := range issued {
		c.mu.Lock()
		switch {
		case c.request != "":
			add(now)
		case c.denied == nil && !c.refreshAt.IsZero():
			add(c.refreshAt)
		}
		c.mu.Unlock()
	}
	return earliest
}
