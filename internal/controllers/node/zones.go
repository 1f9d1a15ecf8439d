package node

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
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
	// zoneUnknown: the state has not been computed yet.
	zoneUnknown zoneState = iota - 1
	zoneNormal
	// zonePartial: a large fraction of the nodes is unhealthy. The cause may not be the nodes, so evictions are slowed down or
	// stopped.
	zonePartial
	// zoneFull: all nodes are unhealthy.
	zoneFull
)

// zones tracks the state of all zones and their eviction rate limiters. The nodes of a zone are counted as they change, so that the cost
// of a change does not depend on the size of the cluster.
type zones struct {
	settings LifecycleSettings

	mu        sync.Mutex
	members   map[string]zoneMember // nodes by name, without excluded ones
	byName    map[string]*zone
	dirty     map[string]struct{} // zones whose members changed since the last update
	fullZones int                 // number of zones in state zoneFull
	allDown   bool                // no zone has a healthy node
	recovered time.Time           // when a node became healthy after all had been unhealthy
}

// zoneMember is what a node contributes to its zone.
type zoneMember struct {
	zone  string
	ready bool
}

type zone struct {
	state       zoneState
	ready, lost int
	size        int // number of nodes for which the limiter was set
	limiter     *rate.Limiter
}

func newZones(settings LifecycleSettings) *zones {
	return &zones{settings: settings, members: map[string]zoneMember{}, byName: map[string]*zone{}, dirty: map[string]struct{}{}}
}

// observe counts a node in its zone, in place of what was counted for it before.
func (z *zones) observe(node *corev1.Node) {
	z.mu.Lock()
	defer z.mu.Unlock()
	if isExcluded(node) {
		z.uncount(node.Name)
		return
	}
	member := zoneMember{zone: zoneOf(node), ready: readiness(node) == corev1.ConditionTrue}
	if old, counted := z.members[node.Name]; counted && old == member {
		return
	}
	z.uncount(node.Name)
	z.members[node.Name] = member
	current := z.byName[member.zone]
	if current == nil {
		current = &zone{state: zoneUnknown, limiter: rate.NewLimiter(rate.Limit(z.settings.EvictionRate), 1)}
		z.byName[member.zone] = current
	}
	*current.counter(member)++
	z.dirty[member.zone] = struct{}{}
}

// remove removes a deleted node from its zone.
func (z *zones) remove(node *corev1.Node) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.uncount(node.Name)
}

// uncount removes a node from the counts of its zone. The caller holds mu.
func (z *zones) uncount(node string) {
	if member, counted := z.members[node]; counted {
		delete(z.members, node)
		*z.byName[member.zone].counter(member)--
		z.dirty[member.zone] = struct{}{}
	}
}

// counter is the count that a member is part of.
func (of *zone) counter(member zoneMember) *int {
	if member.ready {
		return &of.ready
	}
	return &of.lost
}

// zoneChanges are the zones whose state changed.
type zoneChanges struct {
	zones []string
	// all: the state of the whole cluster changed.
	all bool
}

// update computes the states of zones whose nodes changed, and returns those that are new.
func (z *zones) update(now time.Time) (changes zoneChanges) {
	z.mu.Lock()
	defer z.mu.Unlock()
	for name := range z.dirty {
		current := z.byName[name]
		before, size := current.state, current.ready+current.lost
		if before == zoneFull {
			z.fullZones--
		}
		if size == 0 {
			delete(z.byName, name)
			continue
		}
		current.state = computeZoneState(current.ready, current.lost, z.settings.UnhealthyZone)
		if current.state == zoneFull {
			z.fullZones++
		}
		if current.state != before {
			changes.zones = append(changes.zones, name)
		}
		if current.state != before || size != current.size {
			current.size = size
			current.limiter.SetLimitAt(now, z.limit(current))
		}
	}
	clear(z.dirty)
	allDown := len(z.byName) > 0 && z.fullZones == len(z.byName)
	if z.allDown && !allDown {
		z.recovered = now // give all nodes a new grace period
	}
	changes.all = allDown != z.allDown
	z.allDown = allDown
	return changes
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
