package scheduler

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
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/podstate"
)

// dumpOf writes out everything a snapshot knows, in an order of its own, so that two can be compared. Numbers that only tell in
// which order things came are left out.
func dumpOf(s *Snapshot) string {
	var lines []string
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	for name, n := range s.nodeNumber {
		nd := &s.nodes[n]
		if nd.name != name {
			add("node %s has number %d, which is %s", name, n, nd.name)
		}
		var pods, coming, ports []string
		for i, p := range nd.pods {
			pods = append(pods, fmt.Sprint(p.info.Pod.UID, p.assumed))
			if p.place != i || p.node != n || s.pods[p.info.Pod.UID] != p {
				add("pod %s is lost", p.info.Pod.UID)
			}
		}
		for _, p := range s.nominated[n] {
			coming = append(coming, string(p.info.Pod.UID))
			if s.nominatedAt[p.info.Pod.UID] != p {
				add("nominated pod %s is lost", p.info.Pod.UID)
			}
		}
		for _, p := range nd.ports {
			ports = append(ports, fmt.Sprint(p))
		}
		slices.Sort(pods)
		slices.Sort(coming)
		slices.Sort(ports)
		var resources []string
		named := map[int]string{cpu: "cpu", memory: "memory", storage: "storage", 3: "pods"}
		for resource, r := range s.extended {
			named[r] = string(resource)
		}
		for r := range s.allocatable {
			if s.allocatable[r][n] != 0 || s.requested[r][n] != 0 {
				resources = append(resources, fmt.Sprint(named[r], "=", s.requested[r][n], "/", s.allocatable[r][n]))
			}
		}
		slices.Sort(resources)
		var labels []string
		for key, c := range s.columns {
			if c.of[n] != none {
				labels = append(labels, key+"="+c.values[c.of[n]])
			}
		}
		slices.Sort(labels)
		add("node %s exists=%v closed=%v taints=%v %v assumed=%d,%d labels=%v pods=%v coming=%v ports=%v images=%v", name, s.exists[n] && nd.object != nil, s.closed[n],
			s.taintSets[s.taints[n]].taints, resources, s.assumed[cpu][n], s.assumed[memory][n], labels, pods, coming, ports, nd.images)
		if s.identity.of[n] != n {
			add("node %s is in domain %d of its own", name, s.identity.of[n])
		}
	}
	for namespace, pods := range s.byNamespace {
		for i, p := range pods {
			if p.inSpace != i || p.info.Pod.Namespace != namespace {
				add("pod %s is lost in %s", p.info.Pod.UID, namespace)
			}
		}
		add("namespace %s has %d pods", namespace, len(pods))
	}
	for name, i := range s.images {
		add("image %s of %d on %d nodes", name, i.size, i.nodes)
	}
	for claim, users := range s.claimUsers {
		add("claim %s has %d users", claim, users)
	}
	for _, c := range s.counters {
		for domain, n := range c.pods {
			if n != 0 {
				add("counter %q has %d in %s", c.key, n, s.domainName(c.column, int32(domain)))
			}
		}
		for domain, n := range c.domains {
			if n != 0 {
				add("counter %q has %d nodes in %s", c.key, n, s.domainName(c.column, int32(domain)))
			}
		}
		add("counter %q has %d in all", c.key, c.total)
	}
	for key, h := range s.holders {
		if h.total == 0 {
			continue // it may stay for a while
		}
		for domain, n := range h.pods {
			if n != 0 {
				add("holder %v has %d in %s", key, n, s.domainName(h.column, int32(domain)))
			}
		}
		add("holder %v has %d in all", key, h.total)
	}
	add("%d nodes, %d pods, %d nominated", s.count, len(s.pods), len(s.nominatedAt))
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func (s *Snapshot) domainName(c *labelColumn, domain int32) string {
	if c == s.identity {
		return s.nodes[domain].name
	}
	return c.values[domain]
}

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
	for i, o := range [][]podOption{
		{near(host, "color", "green")},
		{away(zone, "color", "blue")},
		{near(zone, "color", "red"), away(host, "color", "red"), namespace("other")},
		{labelled("color", "green"), spread(host, 1, corev1.DoNotSchedule, "color", "green")},
		{labelled("color", "green"), spread(zone, 1, corev1.DoNotSchedule, "color", "green"), selecting("disk", "ssd")},
		{labelled("color", "blue"), spread(zone, 2, corev1.ScheduleAnyway, "color", "blue"), prefersNear(5, host, "color", "green")},
		{labelled("color", "red"), spread(zone, 1, corev1.DoNotSchedule, "color", "red", func(c *corev1.TopologySpreadConstraint) {
			honor := corev1.NodeInclusionPolicyHonor
			c.NodeTaintsPolicy = &honor
		})},
	} {
		if _, err := s.neighbourhoodFor(infoOf(t, testPod(fmt.Sprint("probe-", i), o...)), worldProfile); err != nil {
			t.Fatal(err)
		}
	}
	for _, key := range []string{host, zone, "disk", "rack"} {
		s.column(key)
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
	got, want := strings.Split(dumpOf(w.s), "\n"), strings.Split(dumpOf(fresh), "\n")
	if !slices.Equal(got, want) {
		w.t.Fatalf("what was followed and what is differ:\n%s\n--\n%s", strings.Join(missingFrom(got, want), "\n"), strings.Join(missingFrom(want, got), "\n"))
	}
	if w.s.Nodes() != len(w.nodes) || w.s.Pods() != len(w.pods)+len(w.assumed) {
		w.t.Fatalf("%d nodes and %d pods, want %d and %d", w.s.Nodes(), w.s.Pods(), len(w.nodes), len(w.pods)+len(w.assumed))
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
	if len(known) != len(w.s.nodeNumber) || len(w.s.nodes) != len(known)+len(w.s.free) {
		w.t.Fatalf("numbers for %d of %d nodes, %d are free", len(w.s.nodeNumber), len(known), len(w.s.free))
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

func inPhase(phase corev1.PodPhase) podOption {
	return func(p *corev1.Pod) { p.Status.Phase = phase }
}

func TestSnapshot(t *testing.T) {
	green, red := labelled("color", "green"), labelled("color", "red")
	host := corev1.LabelHostname
	for name, tell := range map[string]func(w *snapshotStory){
		"an empty cluster": func(*snapshotStory) {},
		"a node and a pod": func(w *snapshotStory) {
			w.setNode(testNode("a"))
			w.setPod(testPod("p", on("a"), green, asksCPU("1"), asksMemory("1Gi"), asks("example.com/gpu", "2"), port(80, "", "TCP")))
		},
		"a pod before its node": func(w *snapshotStory) {
			w.setPod(testPod("p", on("a"), green, asksCPU("1")))
			w.check()
			w.setNode(testNode("a", zone("1")))
		},
		"a node goes before its pods, and comes again": func(w *snapshotStory) {
			w.setNode(testNode("a", zone("1"), nodeImage("x:1", 5), taint("k", "v", corev1.TaintEffectNoSchedule), cordoned))
			w.setPod(testPod("p", on("a"), green))
			w.deleteNode("a")
			w.check()
			w.setNode(testNode("a", zone("2")))
			w.check()
			w.deleteNode("a")
			w.deletePod("p")
		},
		"a node is deleted twice, and one nobody knows": func(w *snapshotStory) {
			w.setNode(testNode("a"))
			w.deleteNode("a")
			w.deleteNode("a")
			w.deleteNode("b")
		},
		"the number of a node that is gone is used again": func(w *snapshotStory) {
			w.setNode(testNode("a", zone("1"), nodeHas("example.com/gpu", "4"), nodeImage("x:1", 5)))
			w.setPod(testPod("p", on("a"), green, port(80, "", "TCP"), asks("example.com/gpu", "1")))
			w.deletePod("p")
			w.deleteNode("a")
			w.setNode(testNode("b"))
			if n := w.s.nodeNumber["b"]; n != 0 || w.s.served[n] != 0 {
				w.t.Errorf("number %d, served %d", n, w.s.served[n])
			}
		},
		"but not while a nominated pod speaks of it": func(w *snapshotStory) {
			w.setNode(testNode("a"))
			w.nominate(testPod("p", green), "a")
			w.deleteNode("a")
			w.setNode(testNode("b"))
			if w.s.nodeNumber["b"] == w.s.nodeNumber["a"] {
				w.t.Error("two nodes with one number")
			}
			w.check()
			w.nominate(testPod("p", green), "")
		},
		"nor while an assumed one does": func(w *snapshotStory) {
			w.setNode(testNode("a"))
			w.assume(testPod("p", green), "a")
			w.deleteNode("a")
			w.check()
			w.forget("p", true)
		},
		"a node's labels change under its pods": func(w *snapshotStory) {
			w.setNode(testNode("a", zone("1")))
			w.setNode(testNode("b", zone("1")))
			w.setPod(testPod("p", on("a"), green, near(corev1.LabelTopologyZone, "color", "green")))
			w.setPod(testPod("q", on("b"), green, away(corev1.LabelTopologyZone, "color", "red")))
			w.setNode(testNode("a", zone("2")))
			w.check()
			w.setNode(testNode("a"))
		},
		"a node's taints, closing and labels decide whether its pods count": func(w *snapshotStory) {
			w.setNode(testNode("a", zone("1"), nodeLabel("disk", "ssd")))
			w.setPod(testPod("p", on("a"), green))
			w.setPod(testPod("q", on("a"), red))
			w.setNode(testNode("a", zone("1"), taint("k", "v", corev1.TaintEffectNoSchedule)))
			w.check()
			w.setNode(testNode("a", zone("1"), cordoned, nodeLabel("disk", "ssd")))
			w.check()
			w.setNode(testNode("a", zone("1"), taint("k", "v", corev1.TaintEffectPreferNoSchedule)))
		},
		"a resource is taken away from a node": func(w *snapshotStory) {
			w.setNode(testNode("a", nodeHas("example.com/gpu", "4"), nodeHas("hugepages-2Mi", "1Gi"), nodeHas("attachable-volumes-x", "5")))
			w.setPod(testPod("p", on("a"), asks("example.com/gpu", "1")))
			w.setNode(testNode("a", nodeHas(corev1.ResourceCPU, "1")))
		},
		"images come and go": func(w *snapshotStory) {
			w.setNode(testNode("a", nodeImage("x:1", 5), nodeImage("y:1", 6)))
			w.setNode(testNode("b", nodeImage("x:1", 5)))
			w.setNode(testNode("a", nodeImage("y:1", 6), nodeImage("z:1", 7)))
			w.check()
			w.setNode(testNode("a", nodeImage("y:1", 6), nodeImage("z:1", 7), zone("1")))
			w.deleteNode("b")
		},
		"a pod changes its labels": func(w *snapshotStory) {
			w.setNode(testNode("a", zone("1")))
			w.setPod(testPod("p", on("a"), green))
			w.setPod(testPod("p", on("a"), red))
		},
		"a pod changes what it asks": func(w *snapshotStory) {
			w.setNode(testNode("a"))
			w.setPod(testPod("p", on("a"), asksCPU("1"), asks("example.com/gpu", "1")))
			w.setPod(testPod("p", on("a"), asksCPU("2")))
		},
		"a pod begins to go": func(w *snapshotStory) {
			w.setNode(testNode("a", zone("1")))
			w.setPod(testPod("p", on("a"), green))
			w.setPod(testPod("p", on("a"), green, isGoing))
		},
		"a pod is updated in ways that do not matter": func(w *snapshotStory) {
			w.setNode(testNode("a"))
			w.setPod(testPod("p", on("a"), green))
			before := w.s.changesEnd()
			now := testPod("p", on("a"), green, inPhase(corev1.PodRunning))
			w.setPod(now)
			if w.s.changesEnd() != before {
				w.t.Error("tables are told")
			}
			if w.s.pods["p"].info.Pod != now {
				w.t.Error("the old state is kept")
			}
		},
		"pods that have ended hold nothing": func(w *snapshotStory) {
			w.setNode(testNode("a"))
			w.setPod(testPod("p", on("a"), green, asksCPU("1"), port(80, "", "TCP")))
			w.setPod(testPod("q", on("a"), asksCPU("1")))
			w.setPod(testPod("p", on("a"), green, asksCPU("1"), port(80, "", "TCP"), inPhase(corev1.PodSucceeded)))
			w.setPod(testPod("q", on("a"), asksCPU("1"), inPhase(corev1.PodFailed)))
			w.setPod(testPod("r", on("a"), asksCPU("1"), inPhase(corev1.PodFailed)))
		},
		"a pod on another node than before": func(w *snapshotStory) {
			w.setNode(testNode("a"))
			w.setNode(testNode("b"))
			w.setPod(testPod("p", on("a"), green))
			w.setPod(testPod("p", on("b"), green))
		},
		"an assumed pod is confirmed": func(w *snapshotStory) {
			w.setNode(testNode("a"))
			w.assume(testPod("p", green, asksCPU("1")), "a")
			w.check()
			w.setPod(testPod("p", on("a"), green, asksCPU("1")))
			w.forget("p", false)
		},
		"an assumed pod is confirmed elsewhere": func(w *snapshotStory) {
			w.setNode(testNode("a"))
			w.setNode(testNode("b"))
			w.assume(testPod("p", green, asksCPU("1")), "a")
			w.setPod(testPod("p", on("b"), green, asksCPU("1")))
			w.forget("p", false)
		},
		"an assumed pod has run to its end before it is confirmed": func(w *snapshotStory) {
			w.setNode(testNode("a"))
			w.assume(testPod("p", green, asksCPU("1")), "a")
			w.setPod(testPod("p", on("a"), green, asksCPU("1"), inPhase(corev1.PodSucceeded)))
			w.forget("p", false)
		},
		"an assumed pod is deleted": func(w *snapshotStory) {
			w.setNode(testNode("a"))
			w.assume(testPod("p", green), "a")
			w.deletePod("p")
			w.forget("p", false)
		},
		"an assumption is taken back, and made again": func(w *snapshotStory) {
			w.setNode(testNode("a"))
			w.setNode(testNode("b"))
			w.assume(testPod("p", green, asksCPU("1")), "a")
			w.forget("p", true)
			w.check()
			w.assume(testPod("p", green, asksCPU("1")), "b")
			w.check()
			w.assume(testPod("p", green, asksCPU("1")), "a")
		},
		"assuming ends a nomination": func(w *snapshotStory) {
			w.setNode(testNode("a"))
			w.nominate(testPod("p", green), "a")
			w.assume(testPod("p", green), "a")
			w.check()
			w.forget("p", true)
		},
		"a nomination moves": func(w *snapshotStory) {
			w.setNode(testNode("a"))
			w.nominate(testPod("p", green), "a")
			w.nominate(testPod("q", red), "a")
			w.nominate(testPod("p", green), "b")
			w.check()
			w.setNode(testNode("b"))
			w.deletePod("p")
		},
		"a nomination to nowhere is none": func(w *snapshotStory) {
			w.nominate(testPod("p", near(host, "color", "green")), "")
			w.s.Nominate(nil, "q", "a")
			w.s.Nominate(nil, "r", "")
		},
		"claims and who uses them": func(w *snapshotStory) {
			w.setNode(testNode("a"))
			w.setPod(testPod("p", on("a"), usingClaim("one"), usingClaim("two")))
			w.setPod(testPod("q", on("a"), usingClaim("one")))
			w.setPod(testPod("r", on("a"), usingClaim("one"), namespace("other")))
			w.check()
			if w.s.claimUsers["default/one"] != 2 || w.s.claimUsers["other/one"] != 1 || w.s.claimUsers["default/two"] != 1 {
				w.t.Errorf("users %v", w.s.claimUsers)
			}
			w.deletePod("p")
			w.deletePod("r")
			if len(w.s.claimUsers) != 1 {
				w.t.Errorf("users %v", w.s.claimUsers)
			}
		},
		"the same port held twice": func(w *snapshotStory) {
			w.setNode(testNode("a"))
			w.setPod(testPod("p", on("a"), port(80, "", "TCP")))
			w.setPod(testPod("q", on("a"), port(80, "", "TCP"), port(81, "1.2.3.4", "UDP")))
			w.check()
			w.deletePod("p")
			w.check()
			if n := w.s.nodeNumber["a"]; len(w.s.nodes[n].ports) != 2 {
				w.t.Errorf("ports %v", w.s.nodes[n].ports)
			}
		},
		"a pod is deleted twice, and one nobody knows": func(w *snapshotStory) {
			w.setNode(testNode("a"))
			w.setPod(testPod("p", on("a"), green))
			w.deletePod("p")
			w.deletePod("p")
			w.deletePod("q")
			w.forget("p", false)
		},
		"a pod loses its node": func(w *snapshotStory) {
			w.setNode(testNode("a"))
			w.setPod(testPod("p", on("a"), green))
			w.setPod(testPod("p", green))
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
		shapes := newWorld(t, seed)
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
					w.setNode(shapes.randomNode(node()))
				case k == 3:
					w.deleteNode(node())
				case k < 8:
					w.setPod(func() *corev1.Pod { p := shapes.randomPod(); on(node())(p); return p }())
				case k < 10:
					w.assume(shapes.randomPod(), node())
				case k == 10:
					w.nominate(shapes.randomPod(), node())
				case k == 11:
					for uid := range w.nominated {
						w.nominate(w.pending[uid], pick(shapes, "", node()))
						break
					}
				case k < 14:
					for uid, where := range w.assumed {
						bound := w.pending[uid].DeepCopy()
						bound.Spec.NodeName = pick(shapes, where, where, node())
						if shapes.oneIn(5) {
							bound.Status.Phase = corev1.PodSucceeded
						}
						if shapes.oneIn(3) {
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
						now.Labels["color"] = pick(shapes, "green", "blue", "red")
					case 1:
						now.DeletionTimestamp = &metav1.Time{}
					case 2:
						now.Status.Phase = pick(shapes, corev1.PodRunning, corev1.PodSucceeded, corev1.PodFailed)
					case 3:
						now.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(pick(shapes, "0", "250m", "3"))}
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
			if len(w.s.nodeNumber) != 0 || len(w.s.byNamespace) != 0 || len(w.s.images) != 0 {
				t.Errorf("left: %s", dumpOf(w.s))
			}
		})
	}
}

// The order in which nodes were served decides among equals, and only what really happened counts as service.
func TestSnapshotServed(t *testing.T) {
	s := cluster(t, []*corev1.Node{testNode("a"), testNode("b"), testNode("c")})
	served := func() string { return fmt.Sprint(s.served) }
	if served() != "[0 0 0]" {
		t.Errorf("served %s", served())
	}
	s.Assume(infoOf(t, testPod("1")), "b")
	s.Assume(infoOf(t, testPod("2")), "a")
	s.SetPod(infoOf(t, testPod("3", on("b"))))
	if served() != "[2 3 0]" {
		t.Errorf("served %s", served())
	}
	// A confirmation and a departure are no service.
	s.SetPod(infoOf(t, testPod("1", on("b"))))
	s.DeletePod("3")
	if served() != "[2 3 0]" {
		t.Errorf("served %s", served())
	}
	s.trying(2, func() {
		p := &podEntry{info: infoOf(t, testPod("4")), node: 2}
		s.addPod(p)
		if served() != "[2 3 4]" {
			t.Errorf("served %s", served())
		}
		s.removePod(p)
	})
	if served() != "[2 3 0]" || s.services != 3 || s.rehearsing {
		t.Errorf("served %s, %d services", served(), s.services)
	}
}

// The log of changes names the nodes whose columns changed, is bounded, and is silent in a rehearsal.
func TestSnapshotChanges(t *testing.T) {
	s := NewSnapshot()
	since := func(what string, do func(), want ...int32) {
		t.Helper()
		from := s.changesEnd()
		do()
		if got := s.changes[from-s.changesFrom:]; !slices.Equal(got, want) {
			t.Errorf("%s changed %v, want %v", what, got, want)
		}
	}
	since("a node", func() { s.SetNode(testNode("a")) }, 0)
	since("the same node", func() { s.SetNode(testNode("a")) }, 0)
	since("another", func() { s.SetNode(testNode("b")) }, 1)
	since("a pod", func() { s.SetPod(infoOf(t, testPod("p", on("b")))) }, 1)
	since("a pod that moves", func() { s.SetPod(infoOf(t, testPod("p", on("a")))) }, 1, 0)
	since("an assumption", func() { s.Assume(infoOf(t, testPod("q")), "b") }, 1)
	since("its end", func() { s.Forget("q") }, 1)
	since("a nomination", func() { s.Nominate(infoOf(t, testPod("q")), "q", "b") })
	since("a pod that goes", func() { s.DeletePod("p") }, 0)
	since("a node that goes", func() { s.DeleteNode("b") }, 1)
	since("a rehearsal", func() {
		s.trying(0, func() {
			p := &podEntry{info: infoOf(t, testPod("p")), node: 0}
			s.addPod(p)
			s.removePod(p)
		})
	})
	from := s.changesEnd()
	for range 3 * maxChanges {
		s.changed(0)
	}
	if got := s.changesEnd() - from; got != 3*maxChanges || len(s.changes) > 2*maxChanges || len(s.changes) < maxChanges {
		t.Errorf("%d changes, %d kept", got, len(s.changes))
	}
}

func TestSameForNeighbours(t *testing.T) {
	base := []podOption{on("a"), labelled("color", "green"), asksCPU("1"), port(80, "", "TCP")}
	for name, test := range map[string]struct {
		change podOption
		same   bool
	}{
		"nothing":                {func(*corev1.Pod) {}, true},
		"its phase":              {inPhase(corev1.PodRunning), true},
		"an annotation":          {func(p *corev1.Pod) { p.Annotations = map[string]string{"a": "b"} }, true},
		"a condition":            {disruptionTarget(corev1.ConditionTrue, "x"), true},
		"a label's value":        {labelled("color", "red"), false},
		"a label more":           {labelled("shape", "round"), false},
		"a label for another":    {func(p *corev1.Pod) { p.Labels = map[string]string{"shape": "green"} }, false},
		"no labels":              {func(p *corev1.Pod) { p.Labels = nil }, false},
		"it begins to go":        {isGoing, false},
		"its processor":          {asksCPU("2"), false},
		"its memory":             {asksMemory("1"), false},
		"its storage":            {asks(corev1.ResourceEphemeralStorage, "1"), false},
		"an extended resource":   {asks("example.com/gpu", "1"), false},
		"a port more":            {port(81, "", "TCP"), false},
		"a container that waits": {func(p *corev1.Pod) { p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "d"}) }, false},
	} {
		if got := sameForNeighbours(infoOf(t, testPod("p", base...)), infoOf(t, testPod("p", append(slices.Clone(base), test.change)...))); got != test.same {
			t.Errorf("%s: same is %v", name, got)
		}
	}
	if !sameForNeighbours(infoOf(t, testPod("p", append(slices.Clone(base), isGoing)...)), infoOf(t, testPod("p", append(slices.Clone(base), func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{} })...))) {
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
		before := s.neighbourVersion
		if test.do(); (s.neighbourVersion != before) != test.changes {
			t.Errorf("%s: looked at again: %v", test.what, s.neighbourVersion != before)
		}
	}
	if len(s.namespaces) != 0 {
		t.Errorf("left: %v", s.namespaces)
	}
}

// A node's number stays as long as its CSINode speaks of it.
func TestSnapshotCSINode(t *testing.T) {
	s := NewSnapshot()
	csi := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
	s.SetObject(csi)
	s.SetNode(testNode("a"))
	s.DeleteNode("a")
	if _, known := s.nodeNumber["a"]; !known {
		t.Error("the number is free while a CSINode uses it")
	}
	s.SetNode(testNode("b"))
	if s.nodes[s.nodeNumber["a"]].csi != csi || s.nodes[s.nodeNumber["b"]].csi != nil {
		t.Error("the CSINode is lost")
	}
	s.DeleteObject(csi)
	if _, known := s.nodeNumber["a"]; known {
		t.Error("the number is not free after the CSINode is gone")
	}
}
