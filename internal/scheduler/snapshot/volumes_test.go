package snapshot

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/ptr"

	"skiff/internal/scheduler/schedulertest"
)

// planned reads a plan as text: "claim=volume" for what is bound, "claim+" for what is made.
func planned(plan *PodVolumes) string {
	var words []string
	for _, b := range plan.StaticBindings {
		words = append(words, b.Claim.Name+"="+b.Volume.Name)
	}
	for _, p := range plan.DynamicProvisions {
		word := p.Claim.Name + "+"
		if p.Capacity != nil {
			word += p.Capacity.Name
		}
		words = append(words, word)
	}
	return strings.Join(words, " ")
}

func planFor(t testing.TB, s *Snapshot, pod *corev1.Pod, node string) (PodVolumes, []string) {
	t.Helper()
	claims, err := s.Volumes.PodVolumeClaims(pod)
	if err != nil {
		t.Fatal(err)
	}
	n := s.NodeNumbers[node]
	plan, reasons, err := s.Volumes.FindPodVolumes(claims, s.NodeInfos[n].Node, s.NodeInfos[n].CSINode)
	if err != nil {
		t.Fatal(err)
	}
	return plan, reasons
}

func TestVolumePlans(t *testing.T) {
	static, made := schedulertest.WaitForConsumerClass("late", volume.NotSupportedProvisioner), schedulertest.WaitForConsumerClass("late", schedulertest.CsiName)
	tracks := schedulertest.StorageDriver(schedulertest.CsiName, ptr.To(true), nil)
	for _, test := range []struct {
		what  string
		known schedulertest.Objects
		pod   *corev1.Pod
		want  [2]string // on a and b; reasons in brackets
	}{
		{"nothing to do", nil, schedulertest.TestPod("p"), [2]string{"", ""}},
		{"all is bound", schedulertest.Objects{schedulertest.StorageClaim("c", schedulertest.ClaimBoundTo("v")), schedulertest.StorageVolume("v")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), [2]string{"", ""}},
		{"the only volume", schedulertest.Objects{static, schedulertest.StorageClaim("c"), schedulertest.StorageVolume("v")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), [2]string{"c=v", "c=v"}},
		{"the smallest that will do", schedulertest.Objects{static, schedulertest.StorageClaim("c", schedulertest.ClaimSize("2Gi")), schedulertest.StorageVolume("v", schedulertest.VolumeSize("9Gi")), schedulertest.StorageVolume("w", schedulertest.VolumeSize("2Gi")), schedulertest.StorageVolume("x", schedulertest.VolumeSize("1Gi")), schedulertest.StorageVolume("y", schedulertest.VolumeSize("3Gi"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), [2]string{"c=w", "c=w"}},
		{"of two alike the first by name", schedulertest.Objects{static, schedulertest.StorageClaim("c"), schedulertest.StorageVolume("w"), schedulertest.StorageVolume("v"), schedulertest.StorageVolume("x")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), [2]string{"c=v", "c=v"}},
		{"the smallest the node reaches", schedulertest.Objects{static, schedulertest.StorageClaim("c"), schedulertest.StorageVolume("v", schedulertest.VolumeSize("1Gi"), schedulertest.VolumeOnNode("b")), schedulertest.StorageVolume("w", schedulertest.VolumeSize("2Gi"), schedulertest.VolumeOnNode("a"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), [2]string{"c=w", "c=v"}},
		{"what is kept for the claim, though larger", schedulertest.Objects{static, schedulertest.StorageClaim("c"), schedulertest.StorageVolume("v", schedulertest.VolumeSize("1Gi")), schedulertest.StorageVolume("w", schedulertest.VolumeSize("9Gi"), schedulertest.VolumeClaimRef("default", "c", ""))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), [2]string{"c=w", "c=w"}},
		{"small claims first", schedulertest.Objects{static, schedulertest.StorageClaim("c", schedulertest.ClaimSize("3Gi")), schedulertest.StorageClaim("d", schedulertest.ClaimSize("1Gi")), schedulertest.StorageClaim("e", schedulertest.ClaimSize("2Gi")), schedulertest.StorageVolume("v", schedulertest.VolumeSize("3Gi")), schedulertest.StorageVolume("w", schedulertest.VolumeSize("3Gi")), schedulertest.StorageVolume("x", schedulertest.VolumeSize("3Gi"))},
			schedulertest.TestPod("p", schedulertest.UsingClaim("c"), schedulertest.UsingClaim("d"), schedulertest.UsingClaim("e")), [2]string{"d=v e=w c=x", "d=v e=w c=x"}},
		{"a small claim may take the only large volume", schedulertest.Objects{static, schedulertest.StorageClaim("c", schedulertest.ClaimSize("3Gi")), schedulertest.StorageClaim("d"), schedulertest.StorageVolume("v", schedulertest.VolumeSize("3Gi"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c"), schedulertest.UsingClaim("d")), [2]string{"d=v [" + ReasonBindConflict + "]", "d=v [" + ReasonBindConflict + "]"}},
		{"made when nothing is there", schedulertest.Objects{made, schedulertest.StorageClaim("c")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), [2]string{"c+", "c+"}},
		{"provisioned where there is capacity", schedulertest.Objects{made, tracks, schedulertest.StorageClaim("c"), schedulertest.StorageCapacity("x", "late", "za", "2Gi", ""), schedulertest.StorageCapacity("y", "late", "zb", "1Mi", "")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), [2]string{"c+x", "[" + ReasonNotEnoughSpace + "]"}},
		{"one taken, one made", schedulertest.Objects{made, schedulertest.StorageClaim("c"), schedulertest.StorageClaim("d", schedulertest.ClaimSize("2Gi")), schedulertest.StorageVolume("v", schedulertest.VolumeOnNode("a"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("d"), schedulertest.UsingClaim("c")), [2]string{"c=v d+", "c+ d+"}},
		{"sent to a node before, others after", schedulertest.Objects{made, schedulertest.StorageClaim("c"), schedulertest.StorageClaim("d", schedulertest.ClaimSize("9Gi"), schedulertest.ClaimSelectedNode("a"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c"), schedulertest.UsingClaim("d")), [2]string{"d+ c+", "[" + ReasonBindConflict + "]"}},
		{"a claim used twice is two claims", schedulertest.Objects{static, schedulertest.StorageClaim("c"), schedulertest.StorageVolume("v"), schedulertest.StorageVolume("w")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c"), schedulertest.UsingClaim("c")), [2]string{"c=v c=w", "c=v c=w"}},
		{"classes keep to themselves", schedulertest.Objects{static, schedulertest.WaitForConsumerClass("other", volume.NotSupportedProvisioner), schedulertest.StorageClaim("c"), schedulertest.StorageClaim("d", schedulertest.ClaimClass("other")), schedulertest.StorageVolume("v", schedulertest.VolumeClass("other"), schedulertest.VolumeSize("1Gi")), schedulertest.StorageVolume("w")}, schedulertest.TestPod("p", schedulertest.UsingClaim("c"), schedulertest.UsingClaim("d")), [2]string{"c=w d=v", "c=w d=v"}},
		{"the class of the old annotation", schedulertest.Objects{schedulertest.WaitForConsumerClass("other", volume.NotSupportedProvisioner), schedulertest.StorageClaim("c", schedulertest.ClaimAnnotation(corev1.BetaStorageClassAnnotation, "other")), schedulertest.StorageVolume("v", schedulertest.VolumeSize("1Gi")), schedulertest.StorageVolume("w", func(v *corev1.PersistentVolume) {
			v.Annotations = map[string]string{corev1.BetaStorageClassAnnotation: "other"}
		})}, schedulertest.TestPod("p", schedulertest.UsingClaim("c")), [2]string{"c=w", "c=w"}},
		{"its own claim", schedulertest.Objects{static, schedulertest.StorageClaim("p-x", schedulertest.ClaimOwnedBy("p")), schedulertest.StorageVolume("v")}, schedulertest.TestPod("p", schedulertest.UsingEphemeralVolume("x")), [2]string{"p-x=v", "p-x=v"}},
		{"bound here, to be bound there", schedulertest.Objects{static, schedulertest.StorageClaim("c", schedulertest.ClaimBoundTo("v")), schedulertest.StorageVolume("v", schedulertest.VolumeOnNode("b"), schedulertest.VolumeClaimRef("default", "c", "c")), schedulertest.StorageClaim("d"), schedulertest.StorageVolume("w", schedulertest.VolumeOnNode("a"))}, schedulertest.TestPod("p", schedulertest.UsingClaim("c"), schedulertest.UsingClaim("d")),
			[2]string{"d=w [" + ReasonNodeConflict + "]", "[" + ReasonBindConflict + "]"}},
	} {
		t.Run(test.what, func(t *testing.T) {
			s := knowing(t, schedulertest.TwoZones(), test.known)
			for i, node := range []string{"a", "b"} {
				plan, reasons := planFor(t, s, test.pod, node)
				got := planned(&plan)
				if len(reasons) > 0 {
					got = strings.TrimSpace(got + " [" + strings.Join(reasons, ", ") + "]")
				}
				if got != test.want[i] {
					t.Errorf("on %s: %q, want %q", node, got, test.want[i])
				}
				if plan.Empty() != (!strings.ContainsAny(got, "=+")) {
					t.Errorf("on %s: empty is %t", node, plan.Empty())
				}
			}
		})
	}
}

func TestClaimsOf(t *testing.T) {
	known := schedulertest.Objects{
		schedulertest.WaitForConsumerClass("late", schedulertest.CsiName), schedulertest.ImmediateClass("soon"), schedulertest.ClassWithoutBindingMode("odd"), schedulertest.StorageVolume("v1"), schedulertest.StorageVolume("v2"), schedulertest.StorageVolume("v3", schedulertest.VolumeClass("soon")),
		schedulertest.StorageClaim("bound", schedulertest.ClaimBoundTo("v1")), schedulertest.StorageClaim("waits"), schedulertest.StorageClaim("waits-too"), schedulertest.StorageClaim("soon", schedulertest.ClaimClass("soon")), schedulertest.StorageClaim("named", schedulertest.ClaimVolumeName("v2")),
		schedulertest.StorageClaim("odd", schedulertest.ClaimClass("odd")), schedulertest.StorageClaim("odd-bound", schedulertest.ClaimClass("odd"), schedulertest.ClaimBoundTo("v1")), schedulertest.StorageClaim("noted", schedulertest.ClaimAnnotation(volume.AnnBindCompleted, "yes")),
		schedulertest.StorageClaim("unset", func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = nil }), schedulertest.StorageClaim("elsewhere", schedulertest.ClaimNamespace("other")),
	}
	for _, test := range []struct {
		what           string
		names          []string
		bound, waiting string
		immediate      bool
		volumes        string // by class
		fail           string
	}{
		{"none", nil, "", "", false, "", ""},
		{"a bound one", []string{"bound"}, "bound", "", false, "", ""},
		{"a bound one of a class without mode", []string{"odd-bound"}, "odd-bound", "", false, "", ""},
		{"one that waits", []string{"waits"}, "", "waits", false, "late: v1 v2", ""},
		{"two that wait", []string{"waits-too", "waits"}, "", "waits-too waits", false, "late: v1 v2", ""},
		{"one that is said to be complete but has no volume", []string{"noted"}, "", "noted", false, "late: v1 v2", ""},
		{"one that should be bound already", []string{"soon"}, "", "", true, "", ""},
		{"one that names its volume", []string{"named"}, "", "", true, "", ""},
		{"one without class", []string{"unset"}, "", "", true, "", ""},
		{"all kinds", []string{"waits", "bound", "soon"}, "bound", "waits", true, "late: v1 v2", ""},
		{"one that is missing", []string{"gone"}, "", "", false, "", `error getting PVC "default/gone": persistentvolumeclaim "gone" not found`},
		{"one of another namespace", []string{"elsewhere"}, "", "", false, "", `error getting PVC "default/elsewhere": persistentvolumeclaim "elsewhere" not found`},
		{"one of a class without mode", []string{"odd"}, "", "", false, "", `VolumeBindingMode not set for StorageClass "odd"`},
	} {
		t.Run(test.what, func(t *testing.T) {
			s := knowing(t, nil, known)
			pod := schedulertest.TestPod("p")
			for _, n := range test.names {
				schedulertest.UsingClaim(n)(pod)
			}
			got, err := s.Volumes.PodVolumeClaims(pod)
			if (err != nil) != (test.fail != "") || err != nil && err.Error() != test.fail {
				t.Fatalf("error %v, want %q", err, test.fail)
			}
			if err != nil {
				return
			}
			names := func(claims []*corev1.PersistentVolumeClaim) string {
				var all []string
				for _, c := range claims {
					all = append(all, c.Name)
				}
				return strings.Join(all, " ")
			}
			volumes := ""
			for _, class := range slices.Sorted(maps.Keys(got.volumesByClass)) {
				volumes += class + ":"
				for _, v := range got.volumesByClass[class].items {
					volumes += " " + v.Name
				}
			}
			if names(got.bound) != test.bound || names(got.DelayBinding) != test.waiting || got.UnboundImmediate != test.immediate || volumes != test.volumes {
				t.Errorf("bound %q, waiting %q, immediate %t, volumes %q", names(got.bound), names(got.DelayBinding), got.UnboundImmediate, volumes)
			}
		})
	}
}

func TestTopologyAllows(t *testing.T) {
	set := map[string]string{"zone": "za", "rack": "1", "empty": ""}
	for _, test := range []struct {
		what  string
		terms []corev1.TopologySelectorTerm
		want  bool
	}{
		{"no terms", nil, true},
		{"an empty list", []corev1.TopologySelectorTerm{}, true},
		{"an empty term", []corev1.TopologySelectorTerm{{}}, false},
		{"an empty term beside one that fits", []corev1.TopologySelectorTerm{{}, schedulertest.AllowedTopology("zone", "za")}, true},
		{"the value", []corev1.TopologySelectorTerm{schedulertest.AllowedTopology("zone", "za")}, true},
		{"one of the values", []corev1.TopologySelectorTerm{schedulertest.AllowedTopology("zone", "zb,za")}, true},
		{"another value", []corev1.TopologySelectorTerm{schedulertest.AllowedTopology("zone", "zb")}, false},
		{"a key that is missing", []corev1.TopologySelectorTerm{schedulertest.AllowedTopology("room", "za")}, false},
		{"a key that is missing, and no value", []corev1.TopologySelectorTerm{schedulertest.AllowedTopology("room", "")}, false},
		{"a key with an empty value", []corev1.TopologySelectorTerm{schedulertest.AllowedTopology("empty", "")}, true},
		{"no values at all", []corev1.TopologySelectorTerm{{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: "zone"}}}}, false},
		{"both of two", []corev1.TopologySelectorTerm{schedulertest.AllowedTopology("zone", "za", "rack", "1")}, true},
		{"one of two", []corev1.TopologySelectorTerm{schedulertest.AllowedTopology("zone", "za", "rack", "2")}, false},
		{"either of two terms", []corev1.TopologySelectorTerm{schedulertest.AllowedTopology("zone", "zb"), schedulertest.AllowedTopology("rack", "1")}, true},
		{"neither of two terms", []corev1.TopologySelectorTerm{schedulertest.AllowedTopology("zone", "zb"), schedulertest.AllowedTopology("rack", "2")}, false},
	} {
		if got := topologyAllows(test.terms, set); got != test.want {
			t.Errorf("%s: %t", test.what, got)
		}
	}
}

func TestCanProvision(t *testing.T) {
	node := schedulertest.TestNode("a", schedulertest.Zone("za"))
	for _, test := range []struct {
		what             string
		known            schedulertest.Objects
		claim            *corev1.PersistentVolumeClaim
		capacity, reason string
		fail             string
	}{
		{"no class", nil, schedulertest.StorageClaim("c", schedulertest.ClaimClass("")), "", "", `no class for claim "default/c"`},
		{"a class that is missing", nil, schedulertest.StorageClaim("c"), "", "", `failed to find storage class "late"`},
		{"nobody makes volumes", schedulertest.Objects{schedulertest.WaitForConsumerClass("late", "")}, schedulertest.StorageClaim("c"), "", ReasonBindConflict, ""},
		{"nobody may make volumes", schedulertest.Objects{schedulertest.WaitForConsumerClass("late", volume.NotSupportedProvisioner)}, schedulertest.StorageClaim("c"), "", ReasonBindConflict, ""},
		{"not here", schedulertest.Objects{schedulertest.WaitForConsumerClass("late", schedulertest.CsiName, schedulertest.AllowedTopology(corev1.LabelTopologyZone, "zb"))}, schedulertest.StorageClaim("c"), "", ReasonBindConflict, ""},
		{"the driver does not track capacity", schedulertest.Objects{schedulertest.WaitForConsumerClass("late", schedulertest.CsiName)}, schedulertest.StorageClaim("c"), "", "", ""},
		{"no capacity is known", schedulertest.Objects{schedulertest.WaitForConsumerClass("late", schedulertest.CsiName), schedulertest.StorageDriver(schedulertest.CsiName, ptr.To(true), nil)}, schedulertest.StorageClaim("c"), "", ReasonNotEnoughSpace, ""},
		{"capacity", schedulertest.Objects{schedulertest.WaitForConsumerClass("late", schedulertest.CsiName), schedulertest.StorageDriver(schedulertest.CsiName, ptr.To(true), nil), schedulertest.StorageCapacity("x", "late", "za", "1Gi", "")}, schedulertest.StorageClaim("c"), "x", "", ""},
		{"no size asked", schedulertest.Objects{schedulertest.WaitForConsumerClass("late", schedulertest.CsiName), schedulertest.StorageDriver(schedulertest.CsiName, ptr.To(true), nil)}, schedulertest.StorageClaim("c", func(c *corev1.PersistentVolumeClaim) { c.Spec.Resources.Requests = corev1.ResourceList{} }), "", "", ""},
		{"a size of nothing still needs a place", schedulertest.Objects{schedulertest.WaitForConsumerClass("late", schedulertest.CsiName), schedulertest.StorageDriver(schedulertest.CsiName, ptr.To(true), nil)}, schedulertest.StorageClaim("c", schedulertest.ClaimSize("0")), "", ReasonNotEnoughSpace, ""},
		{"a size beyond all numbers", schedulertest.Objects{schedulertest.WaitForConsumerClass("late", schedulertest.CsiName), schedulertest.StorageDriver(schedulertest.CsiName, ptr.To(true), nil), schedulertest.StorageCapacity("x", "late", "za", "8Ei", "")}, schedulertest.StorageClaim("c", schedulertest.ClaimSize("7Ei")), "x", "", ""},
	} {
		t.Run(test.what, func(t *testing.T) {
			s := knowing(t, []*corev1.Node{node}, test.known)
			capacity, reason, err := s.Volumes.canProvision(test.claim, node)
			name := ""
			if capacity != nil {
				name = capacity.Name
			}
			if (err != nil) != (test.fail != "") || err != nil && err.Error() != test.fail || name != test.capacity || reason != test.reason {
				t.Errorf("capacity %q, reason %q, error %v", name, reason, err)
			}
		})
	}
}

// Every node is compared with its own volumes and capacities, however many other nodes have.
func TestVolumesComparedPerNode(t *testing.T) {
	const small, factor = 20, 4
	for _, n := range []int{small, small * factor} {
		known := schedulertest.Objects{
			schedulertest.WaitForConsumerClass("late", schedulertest.CsiName), schedulertest.StorageDriver(schedulertest.CsiName, ptr.To(true), nil), schedulertest.StorageClaim("c"),
			schedulertest.StorageVolume("taken", schedulertest.VolumeClaimRef("default", "other", "other")),
			schedulertest.StorageVolume("anywhere", schedulertest.VolumePhase(corev1.VolumeReleased)),
		}
		var nodes []*corev1.Node
		for i := range n {
			name := fmt.Sprint("n", i)
			nodes = append(nodes, schedulertest.TestNode(name, schedulertest.Zone(name)))
			known = append(known, schedulertest.StorageVolume("small-"+name, schedulertest.VolumeOnNode(name), schedulertest.VolumeSize("1")),
				schedulertest.StorageVolume("gone-"+name, schedulertest.VolumeOnNode(name), schedulertest.VolumeClaimRef("default", "other-"+name, "x")),
				schedulertest.StorageCapacity("cap-"+name, "late", name, "1Gi", ""))
		}
		s := knowing(t, nodes, known)
		claims, err := s.Volumes.PodVolumeClaims(schedulertest.TestPod("p", schedulertest.UsingClaim("c")))
		if err != nil {
			t.Fatal(err)
		}
		for _, node := range nodes {
			if volumes, capacities := claims.volumesByClass["late"].on(node.Labels), s.Volumes.capacitiesOf("late").on(node.Labels); len(volumes) != 2 || len(capacities) != 1 {
				t.Fatalf("one of %d nodes is compared with %d volumes and %d capacities, want its own and one that is everywhere", n, len(volumes), len(capacities))
			}
			plan, reasons, err := s.Volumes.FindPodVolumes(claims, node, nil)
			if err != nil || len(reasons) > 0 || len(plan.DynamicProvisions) != 1 || plan.DynamicProvisions[0].Capacity.Name != "cap-"+node.Name {
				t.Fatalf("%s: plan %+v, reasons %v, error %v", node.Name, plan, reasons, err)
			}
		}
	}
}

// The index finds what a comparison with all volumes finds, in the same order.
func TestNodeIndexLeavesOutNothing(t *testing.T) {
	const seed = 7
	r := rand.New(rand.NewPCG(seed, 1))
	value := func() string { return schedulertest.OneOf(r, "1", "2", "3") }
	operator := func() corev1.NodeSelectorOperator {
		return schedulertest.OneOf(r, corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn, corev1.NodeSelectorOpExists, corev1.NodeSelectorOpDoesNotExist)
	}
	expression := func() corev1.NodeSelectorRequirement {
		e := corev1.NodeSelectorRequirement{Key: schedulertest.OneOf(r, "a", "b"), Operator: operator()}
		if e.Operator == corev1.NodeSelectorOpIn || e.Operator == corev1.NodeSelectorOpNotIn {
			e.Values = []string{value(), value()}[:1+r.IntN(2)]
		}
		return e
	}
	found := 0
	for range 500 {
		index := &nodeIndex[*corev1.PersistentVolume]{}
		var all []*corev1.PersistentVolume
		for i := range 1 + r.IntN(10) {
			pv := schedulertest.StorageVolume(fmt.Sprint("v", i))
			if r.IntN(5) > 0 {
				required := &corev1.NodeSelector{}
				for range r.IntN(3) {
					term := corev1.NodeSelectorTerm{}
					for range r.IntN(3) {
						term.MatchExpressions = append(term.MatchExpressions, expression())
					}
					required.NodeSelectorTerms = append(required.NodeSelectorTerms, term)
				}
				pv.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: required}
			}
			all = append(all, pv)
			if anyOf, ok := requirementsOf(pv.Spec.NodeAffinity); ok {
				index.add(pv, anyOf...)
			} else {
				index.addEverywhere(pv)
			}
		}
		set := schedulertest.RandomLabels(r, []string{"a", "b"}, "1", "2", "3")
		reachable := func(pv *corev1.PersistentVolume) bool { return volume.CheckNodeAffinity(pv, set) == nil }
		want := slices.DeleteFunc(slices.Clone(all), func(pv *corev1.PersistentVolume) bool { return !reachable(pv) })
		got := slices.DeleteFunc(index.on(set), func(pv *corev1.PersistentVolume) bool { return !reachable(pv) })
		if !slices.Equal(got, want) {
			t.Fatalf("seed %d: %d volumes are found on %v, want %d", seed, len(got), set, len(want))
		}
		found += len(want)
	}
	if found < 500 {
		t.Errorf("only %d volumes were found", found)
	}
}

// What is decided about a volume or a claim counts until the API server tells something newer, and no longer.
func TestAssumedVolumes(t *testing.T) {
	const none, taken, sent = "free", "taken", "sent to a"
	known := schedulertest.Objects{schedulertest.WaitForConsumerClass("late", schedulertest.CsiName), schedulertest.StorageClaim("bind"), schedulertest.StorageClaim("make", schedulertest.ClaimSize("9Gi")), schedulertest.StorageVolume("v")}
	stateOf := func(s *Snapshot) [2]string {
		got := [2]string{none, none}
		if pv := s.Volumes.Volume("v"); pv == nil {
			got[0] = "gone"
		} else if pv.Spec.ClaimRef != nil {
			got[0] = taken
		}
		if c := s.Volumes.Claim("default", "make"); c == nil {
			got[1] = "gone"
		} else if n := c.Annotations[volume.AnnSelectedNode]; n != "" {
			got[1] = "sent to " + n
		}
		return got
	}
	for _, test := range []struct {
		what  string
		after func(s *Snapshot, plan *PodVolumes)
		want  [2]string
	}{
		{"decided", func(*Snapshot, *PodVolumes) {}, [2]string{taken, sent}},
		{"taken back", func(s *Snapshot, plan *PodVolumes) { s.Volumes.RevertAssumedPodVolumes(plan) }, [2]string{none, none}},
		{"taken back twice", func(s *Snapshot, plan *PodVolumes) {
			s.Volumes.RevertAssumedPodVolumes(plan)
			s.Volumes.RevertAssumedPodVolumes(plan)
		}, [2]string{none, none}},
		{"told of as they were", func(s *Snapshot, plan *PodVolumes) {
			s.SetObject(schedulertest.StorageVolume("v"))
			s.SetObject(schedulertest.StorageClaim("make"))
		}, [2]string{taken, sent}},
		{"told of as they were long ago", func(s *Snapshot, plan *PodVolumes) {
			s.SetObject(schedulertest.StorageVolume("v", schedulertest.VolumeVersion("9")))
			s.SetObject(schedulertest.StorageClaim("make", schedulertest.ClaimVersion("9")))
		}, [2]string{taken, sent}},
		{"something newer is told", func(s *Snapshot, plan *PodVolumes) {
			s.SetObject(schedulertest.StorageVolume("v", schedulertest.VolumeVersion("11")))
			s.SetObject(schedulertest.StorageClaim("make", schedulertest.ClaimVersion("11")))
		}, [2]string{none, none}},
		{"versions are numbers, not words", func(s *Snapshot, plan *PodVolumes) {
			s.SetObject(schedulertest.StorageVolume("v", schedulertest.VolumeVersion("100")))
			s.SetObject(schedulertest.StorageClaim("make", schedulertest.ClaimVersion("100")))
		}, [2]string{none, none}},
		{"another volume and another claim are told of", func(s *Snapshot, plan *PodVolumes) {
			s.SetObject(schedulertest.StorageVolume("w", schedulertest.VolumeVersion("99")))
			s.SetObject(schedulertest.StorageClaim("make", schedulertest.ClaimNamespace("other"), schedulertest.ClaimVersion("99")))
		}, [2]string{taken, sent}},
		{"deleted", func(s *Snapshot, plan *PodVolumes) {
			s.DeleteObject(schedulertest.StorageVolume("v"))
			s.DeleteObject(schedulertest.StorageClaim("make"))
		}, [2]string{"gone", "gone"}},
		{"deleted and made again", func(s *Snapshot, plan *PodVolumes) {
			s.DeleteObject(schedulertest.StorageVolume("v"))
			s.DeleteObject(schedulertest.StorageClaim("make"))
			s.SetObject(schedulertest.StorageVolume("v", schedulertest.VolumeVersion("12")))
			s.SetObject(schedulertest.StorageClaim("make", schedulertest.ClaimVersion("12")))
		}, [2]string{none, none}},
		{"written: what is taken back then is the API server's to tell", func(s *Snapshot, plan *PodVolumes) {
			plan.StaticBindings[0].Volume = schedulertest.StorageVolume("v", schedulertest.VolumeClaimRef("default", "bind", "bind"), schedulertest.VolumeVersion("11"))
			plan.DynamicProvisions[0].Claim = schedulertest.StorageClaim("make", schedulertest.ClaimSelectedNode("a"), schedulertest.ClaimVersion("11"))
			s.Volumes.RevertAssumedPodVolumes(plan)
		}, [2]string{taken, sent}},
		{"one written, the other taken back", func(s *Snapshot, plan *PodVolumes) {
			plan.StaticBindings[0].Volume = schedulertest.StorageVolume("v", schedulertest.VolumeClaimRef("default", "bind", "bind"), schedulertest.VolumeVersion("11"))
			s.Volumes.RevertAssumedPodVolumes(plan)
		}, [2]string{taken, none}},
		{"another pod of the claim is taken back", func(s *Snapshot, plan *PodVolumes) {
			second, _ := planFor(t, s, schedulertest.TestPod("q", schedulertest.UsingClaim("bind"), schedulertest.UsingClaim("make")), "a")
			if err := s.Volumes.AssumePodVolumes(&second, "a"); err != nil || planned(&second) != "bind=v make+" {
				t.Fatalf("plan %s, %v", planned(&second), err)
			}
			s.Volumes.RevertAssumedPodVolumes(&second)
		}, [2]string{taken, sent}},
		{"decided by another since", func(s *Snapshot, plan *PodVolumes) {
			old := PodVolumes{StaticBindings: slices.Clone(plan.StaticBindings), DynamicProvisions: slices.Clone(plan.DynamicProvisions)}
			s.Volumes.RevertAssumedPodVolumes(plan)
			again, _ := planFor(t, s, schedulertest.TestPod("q", schedulertest.UsingClaim("bind"), schedulertest.UsingClaim("make")), "a")
			if err := s.Volumes.AssumePodVolumes(&again, "a"); err != nil {
				t.Fatal(err)
			}
			s.Volumes.RevertAssumedPodVolumes(&old)
		}, [2]string{taken, sent}},
	} {
		t.Run(test.what, func(t *testing.T) {
			s := knowing(t, schedulertest.TwoZones(), known)
			plan, _ := planFor(t, s, schedulertest.TestPod("p", schedulertest.UsingClaim("bind"), schedulertest.UsingClaim("make")), "a")
			if got := planned(&plan); got != "bind=v make+" {
				t.Fatalf("plan %s", got)
			}
			if err := s.Volumes.AssumePodVolumes(&plan, "a"); err != nil {
				t.Fatal(err)
			}
			test.after(s, &plan)
			if got := stateOf(s); got != test.want {
				t.Errorf("volume and claim are %v, want %v", got, test.want)
			}
			// What the API server has told is never changed by a decision.
			for _, o := range known {
				switch o := o.(type) {
				case *corev1.PersistentVolume:
					if o.Spec.ClaimRef != nil || o.Annotations != nil {
						t.Error("the volume itself was changed")
					}
				case *corev1.PersistentVolumeClaim:
					if o.Annotations != nil {
						t.Error("the claim itself was changed")
					}
				}
			}
		})
	}
}

// What is written for a claim is what the volume controller looks for.
func TestWhatIsAssumedIsWhatIsWritten(t *testing.T) {
	s := knowing(t, schedulertest.TwoZones(), schedulertest.Objects{schedulertest.WaitForConsumerClass("late", schedulertest.CsiName), schedulertest.StorageClaim("bind"), schedulertest.StorageClaim("kept"), schedulertest.StorageClaim("make", schedulertest.ClaimSize("9Gi"), schedulertest.ClaimAnnotation("mine", "stays")), schedulertest.StorageVolume("v"), schedulertest.StorageVolume("w", schedulertest.VolumeClaimRef("default", "kept", "kept"))})
	plan, _ := planFor(t, s, schedulertest.TestPod("p", schedulertest.UsingClaim("bind"), schedulertest.UsingClaim("kept"), schedulertest.UsingClaim("make")), "b")
	if err := s.Volumes.AssumePodVolumes(&plan, "b"); err != nil {
		t.Fatal(err)
	}
	for _, b := range plan.StaticBindings {
		ref, noted := b.Volume.Spec.ClaimRef, b.Volume.Annotations[volume.AnnBoundByController]
		if ref == nil || ref.Kind != "PersistentVolumeClaim" || ref.APIVersion != "v1" || ref.Namespace != "default" || ref.Name != b.Claim.Name || ref.UID != types.UID(b.Claim.Name) || b.Volume.ResourceVersion != "10" {
			t.Errorf("volume %s is for %+v", b.Volume.Name, ref)
		}
		// Who was bound by hand is not said to be bound by us.
		if want := map[string]string{"v": "yes", "w": ""}[b.Volume.Name]; noted != want {
			t.Errorf("volume %s is noted %q, want %q", b.Volume.Name, noted, want)
		}
	}
	if _, assumed := s.Volumes.AssumedVolumes["w"]; assumed {
		t.Error("a volume that needs no change is assumed to change")
	}
	if got := plan.DynamicProvisions[0].Claim.Annotations; !maps.Equal(got, map[string]string{volume.AnnSelectedNode: "b", "mine": "stays"}) {
		t.Errorf("the claim says %v", got)
	}
}

func TestNewerAndOlder(t *testing.T) {
	at := func(version string) metav1.Object {
		return schedulertest.StorageVolume("v", schedulertest.VolumeVersion(version))
	}
	for _, test := range []struct {
		now, than    string
		newer, older bool
	}{
		{"1", "1", false, false}, {"2", "1", true, false}, {"1", "2", false, true}, {"10", "9", true, false}, {"9", "10", false, true},
		{"18446744073709551616", "18446744073709551615", true, false}, {"", "1", true, false}, {"x", "1", true, false}, {"1", "", true, false}, {"", "", true, false},
	} {
		if got := IsNewer(at(test.now), at(test.than)); got != test.newer {
			t.Errorf("newer(%q, %q) is %t", test.now, test.than, got)
		}
		if got := isOlder(at(test.now), at(test.than)); got != test.older {
			t.Errorf("older(%q, %q) is %t", test.now, test.than, got)
		}
	}
}

// Every object of storage is known from the moment it is told of until it is gone, and attachments by the node they are of.
func TestObjectsOfStorage(t *testing.T) {
	s := NewSnapshot()
	count := func() map[string]int {
		v := &s.Volumes
		return map[string]int{
			"claims": len(v.Claims), "volumes": len(v.Volumes), "classes": len(v.Classes), "drivers": len(v.Drivers), "capacities": len(v.capacities),
			"attachments": len(v.attachments), "nodes with attachments": len(v.attachedTo), "nodes": len(s.NodeNumbers),
		}
	}
	all := schedulertest.Objects{
		schedulertest.StorageClaim("c"), schedulertest.StorageClaim("c", schedulertest.ClaimNamespace("other")), schedulertest.StorageVolume("v"), schedulertest.WaitForConsumerClass("late", schedulertest.CsiName), schedulertest.StorageDriver(schedulertest.CsiName, nil, nil),
		schedulertest.StorageCapacity("r", "late", "za", "1Gi", ""), schedulertest.Attachment("x", "a", schedulertest.CsiName, "v"), schedulertest.Attachment("y", "a", schedulertest.CsiName, "v"), schedulertest.Attachment("z", "b", schedulertest.CsiName, "v"), schedulertest.CSINodeWithDrivers("a", nil),
	}
	for range 2 {
		for _, o := range all {
			s.SetObject(o)
		}
	}
	want := map[string]int{"claims": 2, "volumes": 1, "classes": 1, "drivers": 1, "capacities": 1, "attachments": 3, "nodes with attachments": 2, "nodes": 1}
	if got := count(); !maps.Equal(got, want) {
		t.Errorf("knows of %v, want %v", got, want)
	}
	// An attachment that moves is of its new node only.
	s.SetObject(schedulertest.Attachment("z", "a", schedulertest.CsiName, "v"))
	if n := len(s.Volumes.attachedTo["a"]); n != 3 || s.Volumes.attachedTo["b"] != nil {
		t.Errorf("%d attachments to a, %v to b", n, s.Volumes.attachedTo["b"])
	}
	for range 2 {
		for _, o := range all {
			s.DeleteObject(o)
		}
	}
	for what, n := range count() {
		if n != 0 {
			t.Errorf("%d %s are left", n, what)
		}
	}
}

// volumeModel decides about volumes the slow way: it knows sizes in units and nodes as letters.
type volumeModel struct {
	claims  []modelClaim
	volumes []modelVolume
	// makes says on which nodes new volumes can be made; rooms how large they may be there, when that is tracked.
	makes string
	rooms map[string]int
}

type modelClaim struct {
	name string
	size int
	sent string
}

type modelVolume struct {
	name  string
	size  int
	nodes string
	taken string // a claim
}

// decide tells the plan for claims on a node, as planned writes it, and the reason against it.
func (m *volumeModel) decide(node string, claims []modelClaim) (plan, reason string) {
	var words, makes []string
	sizes := map[string]int{}
	used := map[string]bool{}
	rest := slices.Clone(claims)
	for _, c := range claims {
		sizes[c.name] = c.size
		if c.sent != "" && c.sent != node {
			return "", ReasonBindConflict
		}
		if c.sent != "" {
			makes = append(makes, c.name)
		}
	}
	rest = slices.DeleteFunc(rest, func(c modelClaim) bool { return c.sent != "" })
	slices.SortStableFunc(rest, func(a, b modelClaim) int { return a.size - b.size })
	for _, c := range rest {
		best := -1
		for i, v := range m.volumes {
			if v.size < c.size || !strings.Contains(v.nodes, node) || used[v.name] || v.taken != "" && v.taken != c.name {
				continue
			}
			if v.taken == c.name {
				best = i
				break
			}
			if best < 0 || v.size < m.volumes[best].size {
				best = i
			}
		}
		// What is kept for the claim and cannot be had here leaves it nothing.
		kept := slices.IndexFunc(m.volumes, func(v modelVolume) bool { return v.taken == c.name && v.size >= c.size && !used[v.name] })
		if kept >= 0 && !strings.Contains(m.volumes[kept].nodes, node) {
			best = -1
		}
		if best < 0 {
			makes = append(makes, c.name)
			continue
		}
		used[m.volumes[best].name] = true
		words = append(words, c.name+"="+m.volumes[best].name)
	}
	for _, name := range makes {
		if !strings.Contains(m.makes, node) {
			return strings.Join(words, " "), ReasonBindConflict
		}
		if size, tracked := m.rooms[node]; m.rooms != nil && (!tracked || size < sizes[name]) {
			return strings.Join(words, " "), ReasonNotEnoughSpace
		}
		words = append(words, name+"+")
	}
	return strings.Join(words, " "), ""
}

func (m *volumeModel) objects() schedulertest.Objects {
	all := schedulertest.Objects{}
	size := func(n int) string { return fmt.Sprintf("%dGi", n) }
	if m.makes == "" {
		all = append(all, schedulertest.WaitForConsumerClass("late", volume.NotSupportedProvisioner))
	} else {
		all = append(all, schedulertest.WaitForConsumerClass("late", schedulertest.CsiName, schedulertest.AllowedTopology(corev1.LabelHostname, strings.Join(strings.Split(m.makes, ""), ","))))
	}
	if m.rooms != nil {
		all = append(all, schedulertest.StorageDriver(schedulertest.CsiName, ptr.To(true), nil))
		for node, n := range m.rooms {
			c := schedulertest.StorageCapacity("room-"+node, "late", "", size(n), "")
			c.NodeTopology = &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelHostname: node}}
			all = append(all, c)
		}
	}
	for _, c := range m.claims {
		options := []schedulertest.ClaimOption{schedulertest.ClaimSize(size(c.size))}
		if c.sent != "" {
			options = append(options, schedulertest.ClaimSelectedNode(c.sent))
		}
		all = append(all, schedulertest.StorageClaim(c.name, options...))
	}
	for _, v := range m.volumes {
		options := []schedulertest.VolumeOption{schedulertest.VolumeSize(size(v.size)), schedulertest.VolumeNodeAffinity(corev1.LabelHostname, strings.Split(v.nodes, "")...)}
		if v.taken != "" {
			options = append(options, schedulertest.VolumeClaimRef("default", v.taken, types.UID(v.taken)))
		}
		all = append(all, schedulertest.StorageVolume(v.name, options...))
	}
	return all
}

func randomVolumeModel(random *rand.Rand) *volumeModel {
	m := &volumeModel{makes: []string{"", "a", "ab", "abc"}[random.IntN(4)]}
	if random.IntN(2) == 0 {
		m.rooms = map[string]int{}
		for _, n := range []string{"a", "b", "c"} {
			if random.IntN(3) > 0 {
				m.rooms[n] = 1 + random.IntN(5)
			}
		}
	}
	for i := range 1 + random.IntN(4) {
		c := modelClaim{name: fmt.Sprint("c", i), size: 1 + random.IntN(4)}
		if random.IntN(8) == 0 {
			c.sent = []string{"a", "b"}[random.IntN(2)]
		}
		m.claims = append(m.claims, c)
	}
	for i := range random.IntN(6) {
		v := modelVolume{name: fmt.Sprint("v", i), size: 1 + random.IntN(5), nodes: []string{"a", "b", "ab", "abc", "bc"}[random.IntN(5)]}
		if random.IntN(5) == 0 {
			v.taken = []string{"c0", "c1", "other"}[random.IntN(3)]
			if slices.ContainsFunc(m.volumes, func(o modelVolume) bool { return o.taken == v.taken }) {
				v.taken = "other"
			}
		}
		m.volumes = append(m.volumes, v)
	}
	return m
}

// Plans on random clusters are the model's, for one pod after another, each on what the last has left.
func TestPlansAreAsTheModelSays(t *testing.T) {
	const seed = 21
	random := rand.New(rand.NewPCG(seed, 4))
	kinds := map[string]int{}
	for round := range 1500 {
		m := randomVolumeModel(random)
		all := m.objects()
		random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		s := knowing(t, []*corev1.Node{schedulertest.TestNode("a"), schedulertest.TestNode("b"), schedulertest.TestNode("c")}, all)
		for pod := range 3 {
			var claims []modelClaim
			p := schedulertest.TestPod(fmt.Sprint("p", pod))
			for _, i := range random.Perm(len(m.claims))[:1+random.IntN(len(m.claims))] {
				claims = append(claims, m.claims[i])
				schedulertest.UsingClaim(m.claims[i].name)(p)
			}
			for _, node := range []string{"a", "b", "c"} {
				want, reason := m.decide(node, claims)
				plan, reasons := planFor(t, s, p, node)
				got := planned(&plan)
				if m.rooms != nil {
					got = strings.ReplaceAll(got, "room-"+node, "")
				}
				if got != want || strings.Join(reasons, " ") != reason {
					t.Fatalf("seed %d, round %d: %+v: claims %v on %s: plan %q %v, want %q %q", seed, round, m, claims, node, got, reasons, want, reason)
				}
				kinds[reason]++
			}
			node := []string{"a", "b", "c"}[random.IntN(3)]
			plan, reasons := planFor(t, s, p, node)
			if len(reasons) > 0 {
				continue
			}
			before := snapshotOfStorage(s)
			if err := s.Volumes.AssumePodVolumes(&plan, node); err != nil {
				t.Fatal(err)
			}
			if random.IntN(3) == 0 {
				s.Volumes.RevertAssumedPodVolumes(&plan)
				if after := snapshotOfStorage(s); after != before {
					t.Fatalf("seed %d, round %d: taking back leaves %s, was %s", seed, round, after, before)
				}
				continue
			}
			for _, b := range plan.StaticBindings {
				i := slices.IndexFunc(m.volumes, func(v modelVolume) bool { return v.name == b.Volume.Name })
				m.volumes[i].taken = b.Claim.Name
			}
			for _, made := range plan.DynamicProvisions {
				i := slices.IndexFunc(m.claims, func(c modelClaim) bool { return c.name == made.Claim.Name })
				m.claims[i].sent = node
			}
		}
	}
	for _, reason := range []string{"", ReasonBindConflict, ReasonNotEnoughSpace} {
		if kinds[reason] < 300 {
			t.Errorf("only %d times %q", kinds[reason], reason)
		}
	}
}

// snapshotOfStorage is all that is assumed, as text.
func snapshotOfStorage(s *Snapshot) string {
	var words []string
	for name, pv := range s.Volumes.AssumedVolumes {
		words = append(words, name+"="+pv.Spec.ClaimRef.Name)
	}
	for key, claim := range s.Volumes.AssumedClaims {
		words = append(words, key+"@"+claim.Annotations[volume.AnnSelectedNode])
	}
	slices.Sort(words)
	return strings.Join(words, " ")
}

// No volume is ever promised to two claims, and none to a claim it is too small for or on a node that does not reach it.
func TestVolumesAreNeverPromisedTwice(t *testing.T) {
	const seed = 22
	random := rand.New(rand.NewPCG(seed, 5))
	promises := 0
	for round := range 400 {
		m := randomVolumeModel(random)
		for i := range m.volumes {
			m.volumes[i].taken = ""
		}
		for i := range m.claims {
			m.claims[i].sent = ""
		}
		s := knowing(t, []*corev1.Node{schedulertest.TestNode("a"), schedulertest.TestNode("b"), schedulertest.TestNode("c")}, m.objects())
		promised := map[string]string{}
		for _, c := range m.claims {
			p := schedulertest.TestPod("p-"+c.name, schedulertest.UsingClaim(c.name))
			node := ""
			for _, name := range []string{"a", "b", "c"} {
				if _, reasons := planFor(t, s, p, name); len(reasons) == 0 && (node == "" || random.IntN(2) == 0) {
					node = name
				}
			}
			if node == "" {
				continue
			}
			plan, _ := planFor(t, s, p, node)
			if err := s.Volumes.AssumePodVolumes(&plan, node); err != nil {
				t.Fatal(err)
			}
			s.Assume(infoOf(t, p), node)
			for _, b := range plan.StaticBindings {
				i := slices.IndexFunc(m.volumes, func(v modelVolume) bool { return v.name == b.Volume.Name })
				if v := m.volumes[i]; promised[v.name] != "" || v.size < c.size || !strings.Contains(v.nodes, node) {
					t.Fatalf("seed %d, round %d: %s gets %+v on %s, which is promised to %q", seed, round, c.name, v, node, promised[v.name])
				}
				promised[b.Volume.Name] = c.name
				promises++
			}
		}
	}
	if promises < 200 {
		t.Errorf("only %d promises", promises)
	}
}
