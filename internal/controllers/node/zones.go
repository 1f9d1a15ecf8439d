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

// excluded nodes do not count when the state of a zone is judged.
func excluded(node *corev1.Node) bool {
	_, out := node.Labels["node.kubernetes.io/exclude-disruption"]
	return out
}

// zoneState says how a zone is.
type zoneState int

const (
	zoneNormal zoneState = iota
	// zonePartial: a large part of the nodes is lost. Something else than the nodes may be broken; pods are moved slowly, if at all.
	zonePartial
	// zoneFull: all nodes are lost.
	zoneFull
)

// zones knows how every zone is and how fast pods may be driven off its lost nodes.
type zones struct {
	settings LifecycleSettings

	mu      sync.Mutex
	touched bool
	byName  map[string]*zone
	stopped bool      // no zone has a node that answers
	since   time.Time // when some node answered again after none had
}

type zone struct {
	state   zoneState
	size    int
	limiter *rate.Limiter
}

func newZones(settings LifecycleSettings) *zones {
	return &zones{settings: settings, touched: true, byName: map[string]*zone{}}
}

// touch says that a node changed in a way that counts.
func (z *zones) touch() {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.touched = true
}

// update judges the zones again if a node changed, and says whether the judgement did.
func (z *zones) update(list func(string, labels.Selector) []*corev1.Node, now time.Time) bool {
	z.mu.Lock()
	defer z.mu.Unlock()
	if !z.touched {
		return false
	}
	z.touched = false
	ready, lost := map[string]int{}, map[string]int{}
	for _, node := range list("", nil) {
		if excluded(node) {
			continue
		}
		if readiness(node) == corev1.ConditionTrue {
			ready[zoneOf(node)]++
			lost[zoneOf(node)] += 0
		} else {
			lost[zoneOf(node)]++
		}
	}
	changed, stopped := false, len(lost) > 0
	for name, n := range lost {
		known := z.byName[name]
		if known == nil {
			known = &zone{state: -1, limiter: rate.NewLimiter(rate.Limit(z.settings.EvictionRate), 1)}
			z.byName[name] = known
		}
		state := judge(ready[name], n, z.settings.UnhealthyZone)
		stopped = stopped && state == zoneFull
		if state != known.state || n+ready[name] != known.size {
			changed = changed || state != known.state
			known.state, known.size = state, n+ready[name]
			known.limiter.SetLimitAt(now, z.limit(known))
		}
	}
	for name := range z.byName {
		if _, there := lost[name]; !there {
			delete(z.byName, name)
		}
	}
	if z.stopped && !stopped {
		z.since = now // those that were silent while nobody was heard get another chance
	}
	changed = changed || stopped != z.stopped
	z.stopped = stopped
	return changed
}

// judge says how a zone with so many ready and so many lost nodes is. One or two lost nodes are no disruption.
func judge(ready, lost int, threshold float64) zoneState {
	switch {
	case ready == 0 && lost > 0:
		return zoneFull
	case lost > 2 && float64(lost)/float64(lost+ready) >= threshold:
		return zonePartial
	default:
		return zoneNormal
	}
}

// limit is how many nodes per second of a zone may be tainted.
func (z *zones) limit(of *zone) rate.Limit {
	if of.state != zonePartial {
		return rate.Limit(z.settings.EvictionRate)
	}
	if of.size > z.settings.LargeZone {
		return rate.Limit(z.settings.SecondaryRate)
	}
	return 0
}

// drive says whether pods may be driven off the lost nodes of a zone.
func (z *zones) drive(name string) drive {
	z.mu.Lock()
	defer z.mu.Unlock()
	known := z.byName[name]
	switch {
	case z.stopped:
		return driveStopped
	case known == nil || known.limiter.Limit() == 0:
		return driveNobody
	default:
		return driveSlowly
	}
}

// take asks for a turn. It is false when another node of the zone had one just now.
func (z *zones) take(name string, now time.Time) bool {
	z.mu.Lock()
	defer z.mu.Unlock()
	known := z.byName[name]
	return known != nil && known.limiter.AllowN(now, 1)
}

// wait is when to ask again.
func (z *zones) wait(name string) time.Duration {
	z.mu.Lock()
	defer z.mu.Unlock()
	if known := z.byName[name]; known != nil && known.limiter.Limit() > 0 {
		return max(100*time.Millisecond, min(5*time.Second, time.Duration(float64(time.Second)/float64(known.limiter.Limit()))))
	}
	return 5 * time.Second
}

// resumed is when nodes were heard again after none had been.
func (z *zones) resumed() time.Time {
	z.mu.Lock()
	defer z.mu.Unlock()
	return z.since
}
