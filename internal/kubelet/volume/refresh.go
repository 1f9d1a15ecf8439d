package volume

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// refreshRetryDelay is the wait after a refresh that failed or is in progress.
const refreshRetryDelay = 10 * time.Second

// republishPeriod is how often drivers with requiresRepublish are called. Upstream's kubelet does that when it syncs the pod.
const republishPeriod = time.Minute

// setRefresh records when a volume that is mounted has to be mounted again, or compared with the size of its claim.
func (v *Volumes) setRefresh(state *podVolumes, volume string, m *mounted) {
	v.mu.Lock()
	defer v.mu.Unlock()
	at := time.Time{}
	if e := state.expansions[volume]; e != nil {
		at = e.checkAt
	}
	if next := time.Now().Add(republishPeriod); m.republish && (at.IsZero() || next.Before(at)) {
		at = next
	}
	if at.IsZero() {
		delete(state.refreshAt, volume)
	} else {
		state.refreshAt[volume] = at
	}
}

// RefreshAt returns when Mount has to update the volumes of a pod although no object has changed: tokens and certificates expire, drivers want to be
// called again, claims may have been enlarged. Zero means never.
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
	v.mu.Lock()
	if state := v.pods[uid]; state != nil {
		for _, at := range state.refreshAt {
			add(at)
		}
	}
	v.mu.Unlock()
	v.tokens.mu.Lock()
	for key, token := range v.tokens.cached {
		if key.pod == uid && token.renewed {
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
