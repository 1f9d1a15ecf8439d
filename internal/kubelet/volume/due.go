package volume

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// retryDue is how soon a refresh that could not be done, or is under way, is looked at again.
const retryDue = 10 * time.Second

// Due is when the volumes of a pod want to be refreshed by Mount although no object has changed: tokens and certificates end. Zero is
// never.
func (v *Volumes) RefreshAt(uid types.UID) time.Time {
	var due time.Time
	now := time.Now()
	add := func(at time.Time) {
		if !at.After(now) {
			at = now.Add(retryDue)
		}
		if due.IsZero() || at.Before(due) {
			due = at
		}
	}
	v.tokens.mu.Lock()
	for key, token := range v.tokens.known {
		if key.pod == uid {
			add(token.refresh)
		}
	}
	v.tokens.mu.Unlock()
	v.certificates.mu.Lock()
	var held []*certificate
	for key, c := range v.certificates.issued {
		if key.pod == uid {
			held = append(held, c)
		}
	}
	v.certificates.mu.Unlock()
	for _, c := range held {
		c.mu.Lock()
		switch {
		case c.request != "":
			add(now)
		case c.refused == nil && !c.refresh.IsZero():
			add(c.refresh)
		}
		c.mu.Unlock()
	}
	return due
}
