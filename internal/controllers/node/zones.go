package node

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	nodetopology "k8s.io/component-helpers/node/topology"
)

// zoneOf is the failure zone of a node.
func zoneOf(node *corev1.Node) string { return nodetopology.GetZoneKey(node) }

// isExcluded reports whether a node is ignored when the state of its zone is computed.
func isExcluded(node *corev1.Node) bool {
	_, out := node.Labels["node.kubernetes.io/exclude-disruption"]
	return out
}

// zoneState is the health of a zone.
type zoneState int

const (
	zoneNormal zoneState = iota
	// zonePartial: a large fraction of the nodes is unhealthy. The cause may not be the nodes, so evictions are slowed down or
	// stopped.
	zonePartial
	// zoneFull: all nodes are unhealthy.
	zoneFull
)

// zones tracks the state of all zones and their eviction rate limiters.
type zones struct {
	settings LifecycleSettings

	mu        sync.Mutex
	dirty     bool
	byName    map[string]*zone
	allDown   bool      // no zone has a healthy node
	recovered time.Time // when a node became healthy after all had been unhealthy
}

type zone struct {
	state   zoneState
	size    int
	limiter *rate.Limiter
}

func newZones(settings LifecycleSettings) *zones {
	return &zones{settings: settings, dirty: true, byName: map[string]*zone{}}
}

// markDirty requests a recomputation because the health or zone of a node changed.
func (z *zones) markDirty() {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.dirty = true
}

// update recomputes the zone states if a node changed, and reports whether one of them did.
func (z *zones) update(list func(string, labels.Selector) []*corev1.Node, now time.Time) bool {
	z.mu.Lock()
	defer z.mu.Unlock()
	if !z.dirty {
		return false
	}
	z.dirty = false
	ready, lost := map[string]int{}, map[string]int{}
	for _, node := range list("", nil) {
		if isExcluded(node) {
			continue
		}
		if readiness(node) == corev1.ConditionTrue {
			ready[zoneOf(node)]++
			lost[zoneOf(node)] += 0
		} else {
			lost[zoneOf(node)]++
		}
	}
	changed, allDown := false, len(lost) > 0
	for name, n := range lost {
		current := z.byName[name]
		if current == nil {
			current = &zone{state: -1, limiter: rate.NewLimiter(rate.Limit(z.settings.EvictionRate), 1)}
			z.byName[name] = current
		}
		state := computeZoneState(ready[name], n, z.settings.UnhealthyZone)
		allDown = allDown && state == zoneFull
		if state != current.state || n+ready[name] != current.size {
			changed = changed || state != current.state
			current.state, current.size = state, n+ready[name]
			current.limiter.SetLimitAt(now, z.limit(current))
		}
	}
	for name := range z.byName {
		if _, there := lost[name]; !there {
			delete(z.byName, name)
		}
	}
	if z.allDown && !allDown {
		z.recovered = now // give all nodes a new grace period
	}
	changed = changed || allDown != z.allDown
	z.allDown = allDown
	return changed
}

// computeZoneState returns the state of a zone. One or two unhealthy nodes are not a disruption.
func computeZoneState(ready, lost int, threshold float64) zoneState {
	switch {
	case ready == 0 && lost > 0:
		return zoneFull
	case lost > 2 && float64(lost)/float64(lost+ready) >= threshold:
		return zonePartial
	default:
		return zoneNormal
	}
}

// limit is the eviction rate of a zone in nodes per second.
func (z *zones) limit(of *zone) rate.Limit {
	if of.state != zonePartial {
		return rate.Limit(z.settings.EvictionRate)
	}
	if of.size > z.settings.LargeZone {
		return rate.Limit(z.settings.SecondaryRate)
	}
	return 0
}

// evictionMode decides whether pods may be evicted from unhealthy nodes of a zone.
func (z *zones) evictionMode(name string) evictionMode {
	z.mu.Lock()
	defer z.mu.Unlock()
	current := z.byName[name]
	switch {
	case z.allDown:
		return evictStopped
	case current == nil || current.limiter.Limit() == 0:
		return evictNone
	default:
		return evictRateLimited
	}
}

// tryAcquire takes a token of the zone's rate limiter, if there is one.
func (z *zones) tryAcquire(name string, now time.Time) bool {
	z.mu.Lock()
	defer z.mu.Unlock()
	current := z.byName[name]
	return current != nil && current.limiter.AllowN(now, 1)
}

// retryDelay is the delay before trying again.
func (z *zones) retryDelay(name string) time.Duration {
	z.mu.Lock()
	defer z.mu.Unlock()
	if current := z.byName[name]; current != nil && current.limiter.Limit() > 0 {
		return max(100*time.Millisecond, min(5*time.Second, time.Duration(float64(time.Second)/float64(current.limiter.Limit()))))
	}
	return 5 * time.Second
}

// recoveredAt is when a node became healthy after all had been unhealthy.
func (z *zones) recoveredAt() time.Time {
	z.mu.Lock()
	defer z.mu.Unlock()
	return z.recovered
}
