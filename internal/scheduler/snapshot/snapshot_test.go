package snapshot

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/podstate"
	"skiff/internal/scheduler/schedulertest"
)

// snapshotStory is a snapshot, and the cluster it should know of as objects.
type snapshotStory struct {
	t         testing.TB
	s         *Snapshot
	nodes     map[string]*corev1.Node
	pods      map[types.UID]*corev1.Pod // on nodes
	assumed   map[types.UID]string
	pending   map[types.UID]*corev1.Pod // assumed or nominated
	nominated map[types.UID]string
}

func newSnapshotStory(t testing.TB) *snapshotStory {
	w := &snapshotStory{t: t, s: NewSnapshot(), nodes: map[string]*corev1.Node{}, pods: map[types.UID]*corev1.Pod{}, assumed: map[types.UID]string{}, pending: map[types.UID]*corev1.Pod{}, nominated: map[types.UID]string{}}
	probe(t, w.s)
	return w
}

// probe makes a snapshot count what pods of many kinds want to know.
func probe(t testing.TB, s *Snapshot) {
	host, zone := corev1.LabelHostname, corev1.LabelTopologyZone
	for i, o := range [][]schedulertest.PodOption{
		{schedulertest.WithAffinity(host, "color", "green")},
		{schedulertest.WithAntiAffinity(zone, "color", "blue")},
		{schedulertest.WithAffinity(zone, "color", "red"), schedulertest.WithAntiAffinity(host, "color", "red"), schedulertest.Namespace("other")},
		{schedulertest.Labelled("color", "green"), schedulertest.Spread(host, 1, corev1.DoNotSchedule, "color=green")},
		{schedulertest.Labelled("color", "green"), schedulertest.Spread(zone, 1, corev1.DoNotSchedule, "color=green"), schedulertest.Selecting("disk", "ssd")},
		{schedulertest.Labelled("color", "blue"), schedulertest.Spread(zone, 2, corev1.ScheduleAnyway, "color=blue"), schedulertest.WithPreferredAffinity(5, host, "color", "green")},
		{schedulertest.Labelled("color", "red"), schedulertest.Spread(zone, 1, corev1.DoNotSchedule, "color=red", func(c *corev1.TopologySpreadConstraint) {
			honor := corev1.NodeInclusionPolicyHonor
			c.NodeTaintsPolicy = &honor
		})},
	} {
		probeCounters(t, s, infoOf(t, schedulertest.TestPod(fmt.Sprint("probe-", i), o...)))
	}
	for _, key := range []string{host, zone, "disk", "rack"} {
		s.LabelColumn(key)
	}
}

func (w *snapshotStory) setNode(n *corev1.Node) { w.nodes[n.Name] = n; w.s.SetNode(n) }
func (w *snapshotStory) deleteNode(name string) { delete(w.nodes, name); w.s.DeleteNode(name) }

func (w *snapshotStory) setPod(p *corev1.Pod) {
	delete(w.pods, p.UID)
	delete(w.assumed, p.UID)
	if p.Spec.NodeName != "" && !podstate.IsTerminal(p) {
		w.pods[p.UID] = p
	}
	w.s.SetPod(infoOf(w.t, p))
}

func (w *snapshotStory) deletePod(uid types.UID) {
	delete(w.pods, uid)
	delete(w.assumed, uid)
	delete(w.nominated, uid)
	w.s.DeletePod(uid)
}

func (w *snapshotStory) assume(p *corev1.Pod, node string) {
	delete(w.pods, p.UID)
	delete(w.nominated, p.UID)
	w.assumed[p.UID], w.pending[p.UID] = node, p
	w.s.Assume(infoOf(w.t, p), node)
}

func (w *snapshotStory) forget(uid types.UID, was bool) {
	w.t.Helper()
	if got := w.s.Forget(uid); got != was {
		w.t.Fatalf("forgetting %s says %v", uid, got)
	}
	delete(w.assumed, uid)
}

func (w *snapshotStory) nominate(p *corev1.Pod, node string) {
	if delete(w.nominated, p.UID); node != "" {
		w.nominated[p.UID], w.pending[p.UID] = node, p
	}
	w.s.Nominate(infoOf(w.t, p), p.UID, node)
}

// check compares the snapshot with one made from the objects in one go, and counts the objects.
func (w *snapshotStory) check() {
	w.t.Helper()
	fresh := NewSnapshot()
	for _, uid := range slices.Sorted(maps.Keys(w.pods)) {
		fresh.SetPod(infoOf(w.t, w.pods[uid]))
	}
	for _, uid := range slices.Sorted(maps.Keys(w.assumed)) {
		fresh.Assume(infoOf(w.t, w.pending[uid]), w.assumed[uid])
	}
	for _, uid := range slices.Sorted(maps.Keys(w.nominated)) {
		fresh.Nominate(infoOf(w.t, w.pending[uid]), uid, w.nominated[uid])
	}
	for _, name := range slices.Sorted(maps.Keys(w.nodes)) {
		fresh.SetNode(w.nodes[name])
	}
	probe(w.t, fresh)
	got, want := strings.Split(w.s.Dump(), "\n"), strings.Split(fresh.Dump(), "\n")
	if !slices.Equal(got, want) {
		w.t.Fatalf("what was followed and what is differ:\n%s\n--\n%s", strings.Join(missingFrom(got, want), "\n"), strings.Join(missingFrom(want, got), "\n"))
	}
	if w.s.NumNodes() != len(w.nodes) || w.s.NumPods() != len(w.pods)+len(w.assumed) {
		w.t.Fatalf("%d nodes and %d pods, want %d and %d", w.s.NumNodes(), w.s.NumPods(), len(w.nodes), len(w.pods)+len(w.assumed))
	}
	known := map[string]bool{}
	for name := range w.nodes {
		known[name] = true
	}
	for _, p := range w.pods {
		known[p.Spec.NodeName] = true
	}
	for _, node := range w.assumed {
		known[node] = true
	}
	for _, node := range w.nominated {
		known[node] = true
	}
	if len(known) != len(w.s.NodeNumbers) || len(w.s.NodeInfos) != len(known)+len(w.s.freeNumbers) {
		w.t.Fatalf("numbers for %d of %d nodes, %d are free", len(w.s.NodeNumbers), len(known), len(w.s.freeNumbers))
	}
	for uid := range w.pods {
		if node, ok := w.s.Assumed(uid); ok {
			w.t.Fatalf("pod %s is still assumed on %s", uid, node)
		}
	}
	for uid, want := range w.assumed {
		if node, ok := w.s.Assumed(uid); !ok || node != want {
			w.t.Fatalf("pod %s is assumed on %q, want %q", uid, node, want)
		}
	}
}

func missingFrom(all, others []string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(line string) bool { return slices.Contains(others, line) })
}

func TestSnapshot(t *testing.T) {
	green, red := schedulertest.Labelled("color", "green"), schedulertest.Labelled("color", "red")
	host := corev1.LabelHostname
	for name, tell := range map[string]func(w *snapshotStory){
		"an empty cluster": func(*snapshotStory) {},
		"a node and a pod": func(w *snapshotStory) {
			w.setNode(schedulertest.TestNode("a"))
			w.setPod(schedulertest.TestPod("p", schedulertest.OnNode("a"), green, schedulertest.RequestingCPU("1"), schedulertest.RequestingMemory("1Gi"), schedulertest.Requesting("example.com/gpu", "2"), schedulertest.Port(80, "", "TCP")))
		},
		"a pod before its node": func(w *snapshotStory) {
			w.setPod(schedulertest.TestPod("p", schedulertest.OnNode("a"), green, schedulertest.RequestingCPU("1")))
			w.check()
			w.setNode(schedulertest.TestNode("a", schedulertest.Zone("1")))
		},
		"a node goes before its pods, and comes again": func(w *snapshotStory) {
			w.setNode(schedulertest.TestNode("a", schedulertest.Zone("1"), schedulertest.NodeImage("x:1", 5), schedulertest.Taint("k", "v", corev1.TaintEffectNoSchedule), schedulertest.Cordoned))
			w.setPod(schedulertest.TestPod("p", schedulertest.OnNode("a"), green))
			w.deleteNode("a")
			w.check()
			w.setNode(schedulertest.TestNode("a", schedulertest.Zone("2")))
			w.check()
			w.deleteNode("a")
			w.deletePod("p")
		},
		"a node is deleted twice, and one nobody knows": func(w *snapshotStory) {
			w.setNode(schedulertest.TestNode("a"))
			w.deleteNode("a")
			w.deleteNode("a")
			w.deleteNode("b")
		},
		"the number of a node that is gone is used again": func(w *snapshotStory) {
			w.setNode(schedulertest.TestNode("a", schedulertest.Zone("1"), schedulertest.NodeHas("example.com/gpu", "4"), schedulertest.NodeImage("x:1", 5)))
			w.setPod(schedulertest.TestPod("p", schedulertest.OnNode("a"), green, schedulertest.Port(80, "", "TCP"), schedulertest.Requesting("example.com/gpu", "1")))
			w.deletePod("p")
			w.deleteNode("a")
			w.setNode(schedulertest.TestNode("b"))
			if n := w.s.NodeNumbers["b"]; n != 0 || w.s.LastPlacement[n] != 0 {
				w.t.Errorf("number %d, served %d", n, w.s.LastPlacement[n])
			}
		},
		"but not while a nominated pod speaks of it": func(w *snapshotStory) {
			w.setNode(schedulertest.TestNode("a"))
			w.nominate(schedulertest.TestPod("p", green), "a")
			w.deleteNode("a")
			w.setNode(schedulertest.TestNode("b"))
			if w.s.NodeNumbers["b"] == w.s.NodeNumbers["a"] {
				w.t.Error("two nodes with one number")
			}
			w.check()
			w.nominate(schedulertest.TestPod("p", green), "")
		},
		"nor while an assumed one does": func(w *snapshotStory) {
			w.setNode(schedulertest.TestNode("a"))
			w.assume(schedulertest.TestPod("p", green), "a")
			w.deleteNode("a")
			w.check()
			w.forget("p", true)
		},
		"a node's labels change under its pods": func(w *snapshotStory) {
			w.setNode(schedulertest.TestNode("a", schedulertest.Zone("1")))
			w.setNode(schedulertest.TestNode("b", schedulertest.Zone("1")))
			w.setPod(schedulertest.TestPod("p", schedulertest.OnNode("a"), green, schedulertest.WithAffinity(corev1.LabelTopologyZone, "color", "green")))
			w.setPod(schedulertest.TestPod("q", schedulertest.OnNode("b"), green, schedulertest.WithAntiAffinity(corev1.LabelTopologyZone, "color", "red")))
			w.setNode(schedulertest.TestNode("a", schedulertest.Zone("2")))
			w.check()
			w.setNode(schedulertest.TestNode("a"))
		},
		"a node's taints, closing and labels decide whether its pods count": func(w *snapshotStory) {
			w.setNode(schedulertest.TestNode("a", schedulertest.Zone("1"), schedulertest.NodeLabel("disk", "ssd")))
			w.setPod(schedulertest.TestPod("p", schedulertest.OnNode("a"), green))
			w.setPod(schedulertest.TestPod("q", schedulertest.OnNode("a"), red))
			w.setNode(schedulertest.TestNode("a", schedulertest.Zone("1"), schedulertest.Taint("k", "v", corev1.TaintEffectNoSchedule)))
			w.check()
			w.setNode(schedulertest.TestNode("a", schedulertest.Zone("1"), schedulertest.Cordoned, schedulertest.NodeLabel("disk", "ssd")))
			w.check()
			w.setNode(schedulertest.TestNode("a", schedulertest.Zone("1"), schedulertest.Taint("k", "v", corev1.TaintEffectPreferNoSchedule)))
		},
		"a resource is taken away from a node": func(w *snapshotStory) {
			w.setNode(schedulertest.TestNode("a", schedulertest.NodeHas("example.com/gpu", "4"), schedulertest.NodeHas("hugepages-2Mi", "1Gi"), schedulertest.NodeHas("attachable-volumes-x", "5")))
			w.setPod(schedulertest.TestPod("p", schedulertest.OnNode("a"), schedulertest.Requesting("example.com/gpu", "1")))
			w.setNode(schedulertest.TestNode("a", schedulertest.NodeHas(corev1.ResourceCPU, "1")))
		},
		"images come and go": func(w *snapshotStory) {
			w.setNode(schedulertest.TestNode("a", schedulertest.NodeImage("x:1", 5), schedulertest.NodeImage("y:1", 6)))
			w.setNode(schedulertest.TestNode("b", schedulertest.NodeImage("x:1", 5)))
			w.setNode(schedulertest.TestNode("a", schedulertest.NodeImage("y:1", 6), schedulertest.NodeImage("z:1", 7)))
			w.check()
			w.setNode(schedulertest.TestNode("a", schedulertest.NodeImage("y:1", 6), schedulertest.NodeImage("z:1", 7), schedulertest.Zone("1")))
			w.deleteNode("b")
		},
		"a pod changes its labels": func(w *snapshotStory) {
			w.setNode(schedulertest.TestNode("a", schedulertest.Zone("1")))
			w.setPod(schedulertest.TestPod("p", schedulertest.OnNode("a"), green))
			w.setPod(schedulertest.TestPod("p", schedulertest.OnNode("a"), red))
		},
		"a pod changes what it asks": func(w *snapshotStory) {
			w.setNode(schedulertest.TestNode("a"))
			w.setPod(schedulertest.TestPod("p", schedulertest.OnNode("a"), schedulertest.RequestingCPU("1"), schedulertest.Requesting("example.com/gpu", "1")))
			w.setPod(schedulertest.TestPod("p", schedulertest.OnNode("a"), schedulertest.RequestingCPU("2")))
		},
		"a pod begins to go": func(w *snapshotStory) {
			w.setNode(schedulertest.TestNode("a", schedulertest.Zone("1")))
			w.setPod(schedulertest.TestPod("p", schedulertest.OnNode("a"), green))
			w.setPod(schedulertest.TestPod("p", schedulertest.OnNode("a"), green, schedulertest.Terminating))
		},
		"a pod is updated in ways that do not matter": func(w *snapshotStory) {
			w.setNode(schedulertest.TestNode("a"))
			w.setPod(schedulertest.TestPod("p", schedulertest.OnNode("a"), green))
			before := w.s.ChangesEnd()
			now := schedulertest.TestPod("p", schedulertest.OnNode("a"), green, schedulertest.InPhase(corev1.PodRunning))
			w.setPod(now)
			if w.s.ChangesEnd() != before {
				w.t.Error("tables are told")
			}
			if w.s.PodEntries["p"].Info.Pod != now {
				w.t.Error("the old state is kept")
			}
		},
		"pods that have ended hold nothing": func(w *snapshotStory) {
			w.setNode(schedulertest.TestNode("a"))
			w.setPod(schedulertest.TestPod("p", schedulertest.OnNode("a"), green, schedulertest.RequestingCPU("1"), schedulertest.Port(80, "", "TCP")))
			w.setPod(schedulertest.TestPod("q", schedulertest.OnNode("a"), schedulertest.RequestingCPU("1")))
			w.setPod(schedulertest.TestPod("p", schedulertest.OnNode("a"), green, schedulertest.RequestingCPU("1"), schedulertest.Port(80, "", "TCP"), schedulertest.InPhase(corev1.PodSucceeded)))
			w.setPod(schedulertest.TestPod("q", schedulertest.OnNode("a"), schedulertest.RequestingCPU("1"), schedulertest.InPhase(corev1.PodFailed)))
			w.setPod(schedulertest.TestPod("r", schedulertest.OnNode("a"), schedulertest.RequestingCPU("1"), schedulertest.InPhase(corev1.PodFailed)))
		},
		"a pod on another node than before": func(w *snapshotStory) {
			w.setNode(schedulertest.TestNode("a"))
			w.setNode(schedulertest.TestNode("b"))
			w.setPod(schedulertest.TestPod("p", schedulertest.OnNode("a"), green))
			w.setPod(schedulertest.TestPod("p", schedulertest.OnNode("b"), green))
		},
		"an assumed pod is confirmed": func(w *snapshotStory) {
			w.setNode(schedulertest.TestNode("a"))
			w.assume(schedulertest.TestPod("p", green, schedulertest.RequestingCPU("1")), "a")
			w.check()
			w.setPod(schedulertest.TestPod("p", schedulertest.OnNode("a"), green, schedulertest.RequestingCPU("1")))
			w.forget("p", false)
		},
		"an assumed pod is confirmed elsewhere": func(w *snapshotStory) {
			w.setNode(schedulertest.TestNode("a"))
			w.setNode(schedulertest.TestNode("b"))
			w.assume(schedulertest.TestPod("p", green, schedulertest.RequestingCPU("1")), "a")
			w.setPod(schedulertest.TestPod("p", schedulertest.OnNode("b"), green, schedulertest.RequestingCPU("1")))
			w.forget("p", false)
		},
		"an assumed pod has run to its end before it is confirmed": func(w *snapshotStory) {
			w.setNode(schedulertest.TestNode("a"))
			w.assume(schedulertest.TestPod("p", green, schedulertest.RequestingCPU("1")), "a")
			w.setPod(schedulertest.TestPod("p", schedulertest.OnNode("a"), green, schedulertest.RequestingCPU("1"), schedulertest.InPhase(corev1.PodSucceeded)))
			w.forget("p", false)
		},
		"an assumed pod is deleted": func(w *snapshotStory) {
			w.setNode(schedulertest.TestNode("a"))
			w.assume(schedulertest.TestPod("p", green), "a")
			w.deletePod("p")
			w.forget("p", false)
		},
		"an assumption is taken back, and made again": func(w *snapshotStory) {
			w.setNode(schedulertest.TestNode("a"))
			w.setNode(schedulertest.TestNode("b"))
			w.assume(schedulertest.TestPod("p", green, schedulertest.RequestingCPU("1")), "a")
			w.forget("p", true)
			w.check()
			w.assume(schedulertest.TestPod("p", green, schedulertest.RequestingCPU("1")), "b")
			w.check()
			w.assume(schedulertest.TestPod("p", green, schedulertest.RequestingCPU("1")), "a")
		},
		"assuming ends a nomination": func(w *snapshotStory) {
			w.setNode(schedulertest.TestNode("a"))
			w.nominate(schedulertest.TestPod("p", green), "a")
			w.assume(schedulertest.TestPod("p", green), "a")
			w.check()
			w.forget("p", true)
		},
		"a nomination moves": func(w *snapshotStory) {
			w.setNode(schedulertest.TestNode("a"))
			w.nominate(schedulertest.TestPod("p", green), "a")
			w.nominate(schedulertest.TestPod("q", red), "a")
			w.nominate(schedulertest.TestPod("p", green), "b")
			w.check()
			w.setNode(schedulertest.TestNode("b"))
			w.deletePod("p")
		},
		"a nomination to nowhere is none": func(w *snapshotStory) {
			w.nominate(schedulertest.TestPod("p", schedulertest.WithAffinity(host, "color", "green")), "")
			w.s.Nominate(nil, "q", "a")
			w.s.Nominate(nil, "r", "")
		},
		"claims and who uses them": func(w *snapshotStory) {
			w.setNode(schedulertest.TestNode("a"))
			w.setPod(schedulertest.TestPod("p", schedulertest.OnNode("a"), schedulertest.UsingClaim("one"), schedulertest.UsingClaim("two")))
			w.setPod(schedulertest.TestPod("q", schedulertest.OnNode("a"), schedulertest.UsingClaim("one")))
			w.setPod(schedulertest.TestPod("r", schedulertest.OnNode("a"), schedulertest.UsingClaim("one"), schedulertest.Namespace("other")))
			w.check()
			if w.s.ClaimUsers["default/one"] != 2 || w.s.ClaimUsers["other/one"] != 1 || w.s.ClaimUsers["default/two"] != 1 {
				w.t.Errorf("users %v", w.s.ClaimUsers)
			}
			w.deletePod("p")
			w.deletePod("r")
			if len(w.s.ClaimUsers) != 1 {
				w.t.Errorf("users %v", w.s.ClaimUsers)
			}
		},
		"the same port held twice": func(w *snapshotStory) {
			w.setNode(schedulertest.TestNode("a"))
			w.setPod(schedulertest.TestPod("p", schedulertest.OnNode("a"), schedulertest.Port(80, "", "TCP")))
			w.setPod(schedulertest.TestPod("q", schedulertest.OnNode("a"), schedulertest.Port(80, "", "TCP"), schedulertest.Port(81, "1.2.3.4", "UDP")))
			w.check()
			w.deletePod("p")
			w.check()
			if n := w.s.NodeNumbers["a"]; len(w.s.NodeInfos[n].HostPorts) != 2 {
				w.t.Errorf("ports %v", w.s.NodeInfos[n].HostPorts)
			}
		},
		"a pod is deleted twice, and one nobody knows": func(w *snapshotStory) {
			w.setNode(schedulertest.TestNode("a"))
			w.setPod(schedulertest.TestPod("p", schedulertest.OnNode("a"), green))
			w.deletePod("p")
			w.deletePod("p")
			w.deletePod("q")
			w.forget("p", false)
		},
		"a pod loses its node": func(w *snapshotStory) {
			w.setNode(schedulertest.TestNode("a"))
			w.setPod(schedulertest.TestPod("p", schedulertest.OnNode("a"), green))
			w.setPod(schedulertest.TestPod("p", green))
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newSnapshotStory(t)
			tell(w)
			w.check()
		})
	}
}

// TestSnapshotFollows does random things to a cluster. A snapshot that has followed knows what one made at the end knows.
func TestSnapshotFollows(t *testing.T) {
	for seed := range uint64(40) {
		random := rand.New(rand.NewPCG(seed, 11))
		w := newSnapshotStory(t)
		shapes := schedulertest.NewRandomObjects(seed)
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			w.t = t
			node := func() string { return fmt.Sprint("n", random.IntN(6)) }
			one := func(all map[types.UID]*corev1.Pod) *corev1.Pod {
				uids := slices.Sorted(maps.Keys(all))
				if len(uids) == 0 {
					return nil
				}
				return all[uids[random.IntN(len(uids))]]
			}
			for i := range 300 {
				pod := one(w.pods)
				switch k := random.IntN(20); {
				case k < 3:
					w.setNode(shapes.RandomNode(node()))
				case k == 3:
					w.deleteNode(node())
				case k < 8:
					w.setPod(func() *corev1.Pod { p := shapes.RandomPod(); schedulertest.OnNode(node())(p); return p }())
				case k < 10:
					w.assume(shapes.RandomPod(), node())
				case k == 10:
					w.nominate(shapes.RandomPod(), node())
				case k == 11:
					for uid := range w.nominated {
						w.nominate(w.pending[uid], schedulertest.Pick(shapes, "", node()))
						break
					}
				case k < 14:
					for uid, where := range w.assumed {
						bound := w.pending[uid].DeepCopy()
						bound.Spec.NodeName = schedulertest.Pick(shapes, where, where, node())
						if shapes.OneIn(5) {
							bound.Status.Phase = corev1.PodSucceeded
						}
						if shapes.OneIn(3) {
							w.forget(uid, true)
						} else {
							w.setPod(bound)
						}
						break
					}
				case pod == nil:
				case k < 16:
					w.deletePod(pod.UID)
				default:
					now := pod.DeepCopy()
					switch random.IntN(5) {
					case 0:
						now.Labels["color"] = schedulertest.Pick(shapes, "green", "blue", "red")
					case 1:
						now.DeletionTimestamp = &metav1.Time{}
					case 2:
						now.Status.Phase = schedulertest.Pick(shapes, corev1.PodRunning, corev1.PodSucceeded, corev1.PodFailed)
					case 3:
						now.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(schedulertest.Pick(shapes, "0", "250m", "3"))}
					case 4:
						now.Spec.NodeName = node()
					}
					w.setPod(now)
				}
				if i%10 == 9 {
					w.check()
				}
			}
			for _, uid := range slices.Collect(maps.Keys(w.pods)) {
				w.deletePod(uid)
			}
			for _, uid := range slices.Collect(maps.Keys(w.assumed)) {
				w.forget(uid, true)
			}
			for _, uid := range slices.Collect(maps.Keys(w.nominated)) {
				w.nominate(w.pending[uid], "")
			}
			for _, name := range slices.Collect(maps.Keys(w.nodes)) {
				w.deleteNode(name)
			}
			w.check()
			if len(w.s.NodeNumbers) != 0 || len(w.s.podsByNamespace) != 0 || len(w.s.Images) != 0 {
				t.Errorf("left: %s", w.s.Dump())
			}
		})
	}
}

// The order in which nodes were served decides among equals, and only what really happened counts as service.
func TestSnapshotServed(t *testing.T) {
	s := cluster(t, []*corev1.Node{schedulertest.TestNode("a"), schedulertest.TestNode("b"), schedulertest.TestNode("c")})
	served := func() string { return fmt.Sprint(s.LastPlacement) }
	if served() != "[0 0 0]" {
		t.Errorf("served %s", served())
	}
	s.Assume(infoOf(t, schedulertest.TestPod("1")), "b")
	s.Assume(infoOf(t, schedulertest.TestPod("2")), "a")
	s.SetPod(infoOf(t, schedulertest.TestPod("3", schedulertest.OnNode("b"))))
	if served() != "[2 3 0]" {
		t.Errorf("served %s", served())
	}
	// A confirmation and a departure are no service.
	s.SetPod(infoOf(t, schedulertest.TestPod("1", schedulertest.OnNode("b"))))
	s.DeletePod("3")
	if served() != "[2 3 0]" {
		t.Errorf("served %s", served())
	}
	s.Simulate(func(sim *Simulation) {
		sim.Add(&PodEntry{Info: infoOf(t, schedulertest.TestPod("4")), Node: 2})
		if served() != "[2 3 4]" {
			t.Errorf("served %s", served())
		}
	})
	if served() != "[2 3 0]" || s.Placements != 3 || s.simulating {
		t.Errorf("served %s, %d services", served(), s.Placements)
	}
}

// The log of changes names the nodes whose columns changed, is bounded, and is silent in a rehearsal.
func TestSnapshotChanges(t *testing.T) {
	s := NewSnapshot()
	since := func(what string, do func(), want ...int32) {
		t.Helper()
		from := s.ChangesEnd()
		do()
		if got := s.Changes[from-s.ChangesFrom:]; !slices.Equal(got, want) {
			t.Errorf("%s changed %v, want %v", what, got, want)
		}
	}
	since("a node", func() { s.SetNode(schedulertest.TestNode("a")) }, 0)
	since("the same node", func() { s.SetNode(schedulertest.TestNode("a")) }, 0)
	since("another", func() { s.SetNode(schedulertest.TestNode("b")) }, 1)
	since("a pod", func() { s.SetPod(infoOf(t, schedulertest.TestPod("p", schedulertest.OnNode("b")))) }, 1)
	since("a pod that moves", func() { s.SetPod(infoOf(t, schedulertest.TestPod("p", schedulertest.OnNode("a")))) }, 1, 0)
	since("an assumption", func() { s.Assume(infoOf(t, schedulertest.TestPod("q")), "b") }, 1)
	since("its end", func() { s.Forget("q") }, 1)
	since("a nomination", func() { s.Nominate(infoOf(t, schedulertest.TestPod("q")), "q", "b") })
	since("a pod that goes", func() { s.DeletePod("p") }, 0)
	since("a node that goes", func() { s.DeleteNode("b") }, 1)
	since("a rehearsal", func() {
		s.Simulate(func(sim *Simulation) { sim.Add(&PodEntry{Info: infoOf(t, schedulertest.TestPod("p")), Node: 0}) })
	})
	from := s.ChangesEnd()
	for range 3 * MaxChanges {
		s.Changed(0)
	}
	if got := s.ChangesEnd() - from; got != 3*MaxChanges || len(s.Changes) > 2*MaxChanges || len(s.Changes) < MaxChanges {
		t.Errorf("%d changes, %d kept", got, len(s.Changes))
	}
}

func TestSameForNeighbours(t *testing.T) {
	base := []schedulertest.PodOption{schedulertest.OnNode("a"), schedulertest.Labelled("color", "green"), schedulertest.RequestingCPU("1"), schedulertest.Port(80, "", "TCP")}
	for name, test := range map[string]struct {
		change schedulertest.PodOption
		same   bool
	}{
		"nothing":                {func(*corev1.Pod) {}, true},
		"its phase":              {schedulertest.InPhase(corev1.PodRunning), true},
		"an annotation":          {func(p *corev1.Pod) { p.Annotations = map[string]string{"a": "b"} }, true},
		"a condition":            {schedulertest.DisruptionTarget(corev1.ConditionTrue, "x"), true},
		"a label's value":        {schedulertest.Labelled("color", "red"), false},
		"a label more":           {schedulertest.Labelled("shape", "round"), false},
		"a label for another":    {func(p *corev1.Pod) { p.Labels = map[string]string{"shape": "green"} }, false},
		"no labels":              {func(p *corev1.Pod) { p.Labels = nil }, false},
		"it begins to go":        {schedulertest.Terminating, false},
		"its processor":          {schedulertest.RequestingCPU("2"), false},
		"its memory":             {schedulertest.RequestingMemory("1"), false},
		"its storage":            {schedulertest.Requesting(corev1.ResourceEphemeralStorage, "1"), false},
		"an extended resource":   {schedulertest.Requesting("example.com/gpu", "1"), false},
		"a port more":            {schedulertest.Port(81, "", "TCP"), false},
		"a container that waits": {func(p *corev1.Pod) { p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "d"}) }, false},
	} {
		if got := sameForColumns(infoOf(t, schedulertest.TestPod("p", base...)), infoOf(t, schedulertest.TestPod("p", append(slices.Clone(base), test.change)...))); got != test.same {
			t.Errorf("%s: same is %v", name, got)
		}
	}
	if !sameForColumns(infoOf(t, schedulertest.TestPod("p", append(slices.Clone(base), schedulertest.Terminating)...)), infoOf(t, schedulertest.TestPod("p", append(slices.Clone(base), func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{} })...))) {
		t.Error("when it goes does not matter")
	}
}

// What a pod means to others is looked at again when namespaces change their labels, and not otherwise.
func TestSnapshotNamespaces(t *testing.T) {
	s := NewSnapshot()
	named := func(name string, labels map[string]string) *corev1.Namespace {
		return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
	}
	for _, test := range []struct {
		what    string
		do      func()
		changes bool
	}{
		{"a namespace", func() { s.SetNamespace(named("a", nil)) }, true},
		{"the same", func() { s.SetNamespace(named("a", map[string]string{})) }, false},
		{"with a label", func() { s.SetNamespace(named("a", map[string]string{"team": "x"})) }, true},
		{"with the same label", func() { s.SetNamespace(named("a", map[string]string{"team": "x"})) }, false},
		{"with another value", func() { s.SetNamespace(named("a", map[string]string{"team": "y"})) }, true},
		{"gone", func() { s.DeleteNamespace("a") }, true},
	} {
		before := s.TopologyVersion
		if test.do(); (s.TopologyVersion != before) != test.changes {
			t.Errorf("%s: looked at again: %v", test.what, s.TopologyVersion != before)
		}
	}
	if len(s.Namespaces) != 0 {
		t.Errorf("left: %v", s.Namespaces)
	}
}

// A node's number stays as long as its CSINode speaks of it.
func TestSnapshotCSINode(t *testing.T) {
	s := NewSnapshot()
	csi := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
	s.SetObject(csi)
	s.SetNode(schedulertest.TestNode("a"))
	s.DeleteNode("a")
	if _, known := s.NodeNumbers["a"]; !known {
		t.Error("the number is free while a CSINode uses it")
	}
	s.SetNode(schedulertest.TestNode("b"))
	if s.NodeInfos[s.NodeNumbers["a"]].CSINode != csi || s.NodeInfos[s.NodeNumbers["b"]].CSINode != nil {
		t.Error("the CSINode is lost")
	}
	s.DeleteObject(csi)
	if _, known := s.NodeNumbers["a"]; known {
		t.Error("the number is not free after the CSINode is gone")
	}
}

// probeCounters makes the counters that a pod's terms and constraints need.
func probeCounters(t testing.TB, s *Snapshot, info *PodInfo) {
	t.Helper()
	for _, terms := range [][]Term{info.Affinity, info.AntiAffinity} {
		for i := range terms {
			s.TermCounter(terms[i])
		}
	}
	for i := range info.PreferredAffinity {
		s.TermCounter(info.PreferredAffinity[i].Term)
	}
	for i := range info.Pod.Spec.TopologySpreadConstraints {
		c := &info.Pod.Spec.TopologySpreadConstraints[i]
		selector, err := metav1.LabelSelectorAsSelector(c.LabelSelector)
		if err != nil {
			t.Fatal(err)
		}
		selected, tolerated := s.RequiredSelection(info.Pod), &TaintMatcher{Snapshot: s, Tolerations: info.Pod.Spec.Tolerations}
		column := s.LabelColumn(c.TopologyKey)
		s.CounterFor(CounterSpec{
			Terms: []Term{NewTerm([]string{info.Pod.Namespace}, labels.Nothing(), selector, "")}, Column: column, SkipTerminating: true,
			EligibleKey: info.SelectionKey(),
			Eligible: func(node int32) bool {
				return column.ValueOf[node] != NoValue && (selected == nil || selected.Matches(node)) && (c.NodeTaintsPolicy == nil || tolerated.ResultFor(node).Untolerated == nil)
			},
		})
	}
}
