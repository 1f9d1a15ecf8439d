package queue

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/scheduler/plugins"
	"skiff/internal/scheduler/schedulertest"
	"skiff/internal/scheduler/snapshot/snapshottest"
)

// queueModel is the queue as a list that is searched anew for every question. Times are in milliseconds.
type queueModel struct {
	pods []*modelPod
	now  int64
	next int64 // when those who have waited too long are looked for
}

type modelPod struct {
	name                      string
	priority                  int32
	place                     Location
	since, until              int64
	refusals, failures, tries int
	rules                     []string
	heard                     []string // while it is being tried
	gated, held, helped       bool
}

// before is the order of equals in place: of active pods by priority and time, of those in backoff by the second it ends first.
func (m *queueModel) before(a, b *modelPod) int {
	if a.place == InBackoffQ {
		if c := cmp.Compare(a.until, b.until); c != 0 {
			return c
		}
	}
	return cmp.Or(-cmp.Compare(a.priority, b.priority), cmp.Compare(a.since, b.since))
}

func (m *queueModel) in(places ...Location) (all []*modelPod) {
	for _, p := range m.pods {
		if slices.Contains(places, p.place) {
			all = append(all, p)
		}
	}
	slices.SortFunc(all, m.before)
	return all
}

func (m *queueModel) String() string {
	var parts []string
	for _, place := range []struct {
		name string
		of   Location
	}{{"active", InActiveQ}, {"backoff", InBackoffQ}, {"waiting", InUnschedulablePods}, {"inFlight", IsInFlight}} {
		var names, erred []string
		for _, p := range m.in(place.of) {
			name := p.name
			if p.gated {
				name += "*"
			}
			if p.held {
				name += "#"
			}
			if place.of == InBackoffQ && len(p.rules) == 0 {
				erred = append(erred, name+"!")
			} else {
				names = append(names, name)
			}
		}
		if place.of == InUnschedulablePods || place.of == IsInFlight {
			slices.Sort(names)
		}
		if names = append(names, erred...); len(names) > 0 {
			parts = append(parts, place.name+"["+strings.Join(names, " ")+"]")
		}
	}
	return strings.Join(parts, " ")
}

func (m *queueModel) wake(p *modelPod) {
	switch {
	case p.held:
		p.helped, p.place = true, InUnschedulablePods
	case p.until > m.now:
		p.place = InBackoffQ
	default:
		p.place = InActiveQ
	}
}

func (m *queueModel) pop() *modelPod {
	if m.now >= m.next {
		m.next = m.now + 30000
		for _, p := range m.in(InUnschedulablePods) {
			if !p.gated && m.now-p.since > 300000 {
				m.wake(p)
			}
		}
	}
	var first *modelPod
	for _, p := range m.in(InBackoffQ) {
		if p.until <= m.now {
			p.place = InActiveQ
		} else if first == nil && len(p.rules) > 0 {
			first = p
		}
	}
	if active := m.in(InActiveQ); len(active) > 0 {
		first = active[0]
	}
	if first != nil {
		first.place, first.heard = IsInFlight, nil
		first.tries++
	}
	return first
}

func (m *queueModel) back(p *modelPod, rules []string) {
	tries := 0
	if p.rules = rules; len(rules) == 0 {
		p.failures++
		tries = p.failures
	} else {
		p.refusals++
		p.failures = 0
		tries = p.refusals
	}
	p.since = m.now
	wait := int64(1000)
	for range tries - 1 {
		wait = min(2*wait, 10000)
	}
	p.until = (m.now + wait + 999) / 1000 * 1000
	switch {
	case len(rules) == 0:
		p.place = InBackoffQ
	case slices.ContainsFunc(p.heard, func(rule string) bool { return slices.Contains(rules, rule) }):
		m.wake(p)
	default:
		p.place = InUnschedulablePods
	}
}

// happens tells of a change that helps those a rule has refused.
func (m *queueModel) happens(rule string) {
	for _, p := range m.in(InUnschedulablePods, IsInFlight) {
		if p.place == IsInFlight {
			p.heard = append(p.heard, rule)
		} else if !p.gated && slices.Contains(p.rules, rule) {
			m.wake(p)
		}
	}
}

// TestQueueEqualsModel does random things to a queue and to the model of it.
func TestQueueEqualsModel(t *testing.T) {
	helping := map[string]plugins.Event{plugins.NodeNameName: aNodeCame, plugins.NodeResourcesFitName: aPodWent, plugins.InterPodAffinityName: aPodCame}
	rules := []string{plugins.NodeNameName, plugins.NodeResourcesFitName, plugins.InterPodAffinityName}
	seen := map[string]int{}
	for seed := range uint64(60) {
		random := rand.New(rand.NewPCG(seed, 7))
		m, w := &queueModel{now: 1000000}, newQueueTest(t)
		step := func(name string) {
			seen[name]++
			if got, want := placesOf(w.q), m.String(); got != want {
				t.Fatalf("seed %d, after %s at %d: %s, want %s", seed, name, m.now, got, want)
			}
		}
		for i := range 400 {
			m.now += 1 + random.Int64N(300)
			if random.IntN(60) == 0 {
				m.now += 330000
			}
			w.now = time.UnixMilli(m.now)
			someone := func(places ...Location) (*modelPod, *QueuedPod) {
				all := m.in(places...)
				if len(all) == 0 {
					return nil, nil
				}
				p := all[random.IntN(len(all))]
				return p, w.q.All[types.UID(p.name)]
			}
			switch k := random.IntN(12); {
			case k < 2:
				p := &modelPod{name: fmt.Sprint("p", i), priority: random.Int32N(3), since: m.now, place: InActiveQ}
				pod := queueModelPod(p)
				if random.IntN(8) == 0 {
					p.place, p.gated = InUnschedulablePods, true
					schedulertest.WithSchedulingGates("x")(pod)
				}
				m.pods = append(m.pods, p)
				w.q.Add(snapshottest.PodInfo(t, pod), w.now)
				step("add")
			case k < 6:
				p := m.pop()
				got, _ := w.q.Pop(w.now)
				if (p == nil) != (got == nil) || p != nil && (got.PodInfo.Pod.Name != p.name || got.Attempts != p.tries) {
					t.Fatalf("seed %d: popped %+v, want %+v", seed, got, p)
				}
				step("pop")
			case k < 9:
				p, real := someone(IsInFlight)
				if p == nil {
					continue
				}
				var by []string
				for _, rule := range rules {
					if random.IntN(3) == 0 {
						by = append(by, rule)
					}
				}
				if random.IntN(4) == 0 && len(by) > 0 {
					p.held, p.helped = true, false
					w.q.Block(real)
				}
				m.back(p, by)
				w.q.AddUnschedulable(w.s, real, by, w.now)
				step("return")
			case k == 9:
				rule := rules[random.IntN(len(rules))]
				m.happens(rule)
				w.happens(helping[rule])
				step("change")
			case k == 10:
				p, _ := someone(InActiveQ, InBackoffQ, InUnschedulablePods, IsInFlight)
				if p == nil {
					continue
				}
				if random.IntN(2) == 0 || !p.gated {
					m.pods = slices.DeleteFunc(m.pods, func(other *modelPod) bool { return other == p })
					w.q.Delete(types.UID(p.name))
					step("delete")
					continue
				}
				p.gated, p.place = false, InActiveQ
				w.update(schedulertest.TestPod(p.name, schedulertest.WithSchedulingGates("x")), queueModelPod(p))
				step("open gates")
			case k == 11:
				p, _ := someone(InUnschedulablePods)
				if p == nil || !p.held {
					continue
				}
				retry := random.IntN(3) == 0
				p.held = false
				switch {
				case retry:
					p.place = InActiveQ
				case p.helped:
					m.wake(p)
				}
				w.q.Unblock(types.UID(p.name), w.now, retry)
				step("release")
			}
		}
	}
	for _, what := range []string{"add", "pop", "return", "change", "delete", "open gates", "release"} {
		if seen[what] < 50 {
			t.Errorf("%s happened %d times only", what, seen[what])
		}
	}
}

// queueModelPod is a pod that each of the changes helps past one rule only: no node is large enough for it, and none has racks.
func queueModelPod(p *modelPod) *corev1.Pod {
	return schedulertest.TestPod(p.name, schedulertest.Priority(p.priority), schedulertest.RequestingCPU("9"), func(pod *corev1.Pod) {
		schedulertest.AffinityOf(pod).PodAffinity = &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{schedulertest.PodTermOf("rack", nil)}}
	})
}
