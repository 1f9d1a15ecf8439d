package plugins

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	configv1 "k8s.io/kube-scheduler/config/v1"
	"k8s.io/utils/ptr"

	"skiff/internal/scheduler/schedulertest"
	"skiff/internal/scheduler/snapshot"
	"skiff/internal/scheduler/snapshot/snapshottest"
)

func devicesRule(t testing.TB) *dynamicResources {
	t.Helper()
	return newDynamicResources(&configv1.DynamicResourcesArgs{}).(*dynamicResources)
}

// threeNodes are a with one small device, b with a small and a large one, and c with none.
func threeNodes(t testing.TB, known ...metav1.Object) *snapshot.Snapshot {
	t.Helper()
	return knowing(t, []*corev1.Node{schedulertest.TestNode("a", schedulertest.Zone("za")), schedulertest.TestNode("b", schedulertest.Zone("zb")), schedulertest.TestNode("c")},
		append(schedulertest.Objects{schedulertest.DeviceClass("class"), schedulertest.ModelSlice("a", "small"), schedulertest.ModelSlice("b", "small", "large")}, known...))
}

func TestDynamicResourcesFilter(t *testing.T) {
	const (
		none      = "never: cannot allocate all claims"
		elsewhere = "never: resourceclaim not available on the node"
	)
	one := schedulertest.DevicesClaim("one", schedulertest.Exactly("r", "class", 1, ""))
	for _, test := range []struct {
		what  string
		known schedulertest.Objects
		pod   *corev1.Pod
		want  schedulertest.Verdicts
	}{
		{"a pod without claims", nil, schedulertest.TestPod("p"), schedulertest.Verdicts{}},
		{"a claim that is missing", nil, schedulertest.TestPod("p", schedulertest.Claiming("x")), schedulertest.Verdicts{"*": `never: could not find ResourceClaim "default/x"`}},
		{"a claim of another namespace", schedulertest.Objects{func() *resourcev1.ResourceClaim { c := one.DeepCopy(); c.Namespace = "other"; return c }()}, schedulertest.TestPod("p", schedulertest.Claiming("one")), schedulertest.Verdicts{"*": `never: could not find ResourceClaim "default/one"`}},
		{"a claim on its way out", schedulertest.Objects{schedulertest.DevicesClaim("x", schedulertest.Exactly("r", "class", 1, ""), schedulertest.ClaimBeingDeleted)}, schedulertest.TestPod("p", schedulertest.Claiming("x")), schedulertest.Verdicts{"*": `never: resourceclaim "x" is being deleted`}},
		{"a claim not made yet", nil, schedulertest.TestPod("p", schedulertest.ClaimFromTemplate("d", "")), schedulertest.Verdicts{"*": `never: pod "default/p": ResourceClaim not created yet`}},
		{"a claim that was not needed after all", nil, schedulertest.TestPod("p", schedulertest.ClaimFromTemplate("d", "-")), schedulertest.Verdicts{}},
		{"a claim made for the pod", schedulertest.Objects{schedulertest.DevicesClaim("p-d", schedulertest.Exactly("r", "class", 2, ""), schedulertest.OwnedBy("p"))}, schedulertest.TestPod("p", schedulertest.ClaimFromTemplate("d", "p-d")), schedulertest.Verdicts{"a": none, "c": none}},
		{"a claim made for another pod", schedulertest.Objects{schedulertest.DevicesClaim("p-d", schedulertest.Exactly("r", "class", 1, ""), schedulertest.OwnedBy("q"))}, schedulertest.TestPod("p", schedulertest.ClaimFromTemplate("d", "p-d")), schedulertest.Verdicts{"*": "never: ResourceClaim default/p-d was not created for Pod default/p (Pod is not owner)"}},
		{"a claim another pod owns, asked for by name", schedulertest.Objects{schedulertest.DevicesClaim("x", schedulertest.Exactly("r", "class", 1, ""), schedulertest.OwnedBy("q"))}, schedulertest.TestPod("p", schedulertest.Claiming("x")), schedulertest.Verdicts{"c": none}},
		{"neither a name nor a template", nil, schedulertest.TestPod("p", func(p *corev1.Pod) { p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "d"}} }), schedulertest.Verdicts{"*": `never: pod "default/p", spec.resourceClaim "d": none of the supported fields are set`}},
		{"a class that is missing", schedulertest.Objects{schedulertest.DevicesClaim("x", schedulertest.Exactly("r", "other", 1, ""))}, schedulertest.TestPod("p", schedulertest.Claiming("x")), schedulertest.Verdicts{"*": "never: request r: device class other does not exist"}},
		{"the first class that is missing", schedulertest.Objects{schedulertest.DevicesClaim("x", schedulertest.Exactly("r1", "class", 1, ""), schedulertest.Exactly("r2", "other", 1, ""), schedulertest.Exactly("r3", "third", 1, ""))}, schedulertest.TestPod("p", schedulertest.Claiming("x")), schedulertest.Verdicts{"*": "never: request r2: device class other does not exist"}},
		{"the first alternative whose class is missing", schedulertest.Objects{schedulertest.DevicesClaim("x", schedulertest.FirstOf("r", schedulertest.NewAlternative("s1", "class", 1, ""), schedulertest.NewAlternative("s2", "other", 1, ""), schedulertest.NewAlternative("s3", "third", 1, "")))}, schedulertest.TestPod("p", schedulertest.Claiming("x")), schedulertest.Verdicts{"*": "never: request r/s2: device class other does not exist"}},
		{"a request for no class", schedulertest.Objects{schedulertest.DevicesClaim("x", schedulertest.Exactly("r", "", 1, ""))}, schedulertest.TestPod("p", schedulertest.Claiming("x")), schedulertest.Verdicts{"*": "error: request r: unsupported request type"}},
		{"a request of a kind we do not know", schedulertest.Objects{schedulertest.DevicesClaim("x", func(c *resourcev1.ResourceClaim) { c.Spec.Devices.Requests = []resourcev1.DeviceRequest{{Name: "r"}} })}, schedulertest.TestPod("p", schedulertest.Claiming("x")), schedulertest.Verdicts{"*": "never: resource claim default/x, request r: unknown request type"}},
		{"a class that is missing does not matter to who has devices", schedulertest.Objects{schedulertest.DevicesClaim("x", schedulertest.Exactly("r", "other", 1, ""), schedulertest.AllocatedDevice("r", "a", "device-0"))}, schedulertest.TestPod("p", schedulertest.Claiming("x")), schedulertest.Verdicts{}},
		{"the first claim that is wrong", schedulertest.Objects{one}, schedulertest.TestPod("p", schedulertest.Claiming("one"), schedulertest.Claiming("x"), schedulertest.Claiming("y")), schedulertest.Verdicts{"*": `never: could not find ResourceClaim "default/x"`}},

		{"one device", schedulertest.Objects{one}, schedulertest.TestPod("p", schedulertest.Claiming("one")), schedulertest.Verdicts{"c": none}},
		{"as many as a node has", schedulertest.Objects{schedulertest.DevicesClaim("x", schedulertest.Exactly("r", "class", 2, ""))}, schedulertest.TestPod("p", schedulertest.Claiming("x")), schedulertest.Verdicts{"a": none, "c": none}},
		{"more than any node has", schedulertest.Objects{schedulertest.DevicesClaim("x", schedulertest.Exactly("r", "class", 3, ""))}, schedulertest.TestPod("p", schedulertest.Claiming("x")), schedulertest.Verdicts{"a": none, "b": none, "c": none}},
		{"two claims of one device each", schedulertest.Objects{one, schedulertest.DevicesClaim("two", schedulertest.Exactly("r", "class", 1, ""))}, schedulertest.TestPod("p", schedulertest.Claiming("one"), schedulertest.Claiming("two")), schedulertest.Verdicts{"a": none, "c": none}},
		{"two requests of one device each", schedulertest.Objects{schedulertest.DevicesClaim("x", schedulertest.Exactly("r1", "class", 1, ""), schedulertest.Exactly("r2", "class", 1, ""))}, schedulertest.TestPod("p", schedulertest.Claiming("x")), schedulertest.Verdicts{"a": none, "c": none}},
		{"a request that selects", schedulertest.Objects{schedulertest.DevicesClaim("x", schedulertest.Exactly("r", "class", 1, schedulertest.ModelIs("large")))}, schedulertest.TestPod("p", schedulertest.Claiming("x")), schedulertest.Verdicts{"a": none, "c": none}},
		{"a class that selects", schedulertest.Objects{schedulertest.DeviceClass("large", schedulertest.ModelIs("large")), schedulertest.DevicesClaim("x", schedulertest.Exactly("r", "large", 1, ""))}, schedulertest.TestPod("p", schedulertest.Claiming("x")), schedulertest.Verdicts{"a": none, "c": none}},
		{"who selects is served though others would take anything", schedulertest.Objects{schedulertest.DevicesClaim("x", schedulertest.Exactly("r1", "class", 1, ""), schedulertest.Exactly("r2", "class", 1, schedulertest.ModelIs("small")))}, schedulertest.TestPod("p", schedulertest.Claiming("x")), schedulertest.Verdicts{"a": none, "c": none}},
		{"all devices of a node", schedulertest.Objects{schedulertest.DevicesClaim("x", schedulertest.Exactly("r", "class", 0, ""), func(c *resourcev1.ResourceClaim) {
			c.Spec.Devices.Requests[0].Exactly.AllocationMode = resourcev1.DeviceAllocationModeAll
		})}, schedulertest.TestPod("p", schedulertest.Claiming("x")), schedulertest.Verdicts{"c": none}},
		{"an alternative that can be had", schedulertest.Objects{schedulertest.DevicesClaim("x", schedulertest.FirstOf("r", schedulertest.NewAlternative("s1", "class", 3, ""), schedulertest.NewAlternative("s2", "class", 1, schedulertest.ModelIs("large"))))}, schedulertest.TestPod("p", schedulertest.Claiming("x")), schedulertest.Verdicts{"a": none, "c": none}},
		{"a device that is tainted", schedulertest.Objects{func() *resourcev1.ResourceSlice {
			s := schedulertest.ModelSlice("a", "small")
			s.Spec.Devices[0].Taints = []resourcev1.DeviceTaint{{Key: "k", Effect: resourcev1.DeviceTaintEffectNoSchedule}}
			return s
		}(), one}, schedulertest.TestPod("p", schedulertest.Claiming("one")), schedulertest.Verdicts{"a": none, "c": none}},
		{"a pool that is not complete", schedulertest.Objects{func() *resourcev1.ResourceSlice {
			s := schedulertest.ModelSlice("a", "small")
			s.Spec.Pool.ResourceSliceCount = 2
			return s
		}(), one}, schedulertest.TestPod("p", schedulertest.Claiming("one")), schedulertest.Verdicts{"a": none, "c": none}},
		{"devices of every node", schedulertest.Objects{func() *resourcev1.ResourceSlice {
			s := schedulertest.ModelSlice("x", "small")
			s.Spec.NodeName, s.Spec.AllNodes = nil, ptr.To(true)
			return s
		}(), one}, schedulertest.TestPod("p", schedulertest.Claiming("one")), schedulertest.Verdicts{}},
		{"devices of a zone", schedulertest.Objects{func() *resourcev1.ResourceSlice {
			s := schedulertest.ModelSlice("x", "small")
			s.Spec.NodeName, s.Spec.NodeSelector = nil, &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{schedulertest.Expression(corev1.LabelTopologyZone, corev1.NodeSelectorOpIn, "za")}}
			return s
		}(), schedulertest.DevicesClaim("x", schedulertest.Exactly("r", "class", 2, ""))}, schedulertest.TestPod("p", schedulertest.Claiming("x")), schedulertest.Verdicts{"c": none}},

		{"a device somebody has", schedulertest.Objects{one, schedulertest.DevicesClaim("x", schedulertest.AllocatedDevice("r", "a", "device-0"))}, schedulertest.TestPod("p", schedulertest.Claiming("one")), schedulertest.Verdicts{"a": none, "c": none}},
		{"a device somebody watches", schedulertest.Objects{one, schedulertest.DevicesClaim("x", schedulertest.AllocatedDevice("r", "a", "device-0"), func(c *resourcev1.ResourceClaim) { c.Status.Allocation.Devices.Results[0].AdminAccess = ptr.To(true) })}, schedulertest.TestPod("p", schedulertest.Claiming("one")), schedulertest.Verdicts{"c": none}},
		{"a device of that name of another driver", schedulertest.Objects{one, schedulertest.DevicesClaim("x", schedulertest.AllocatedDevice("r", "a", "device-0"), func(c *resourcev1.ResourceClaim) { c.Status.Allocation.Devices.Results[0].Driver = "other" })}, schedulertest.TestPod("p", schedulertest.Claiming("one")), schedulertest.Verdicts{"c": none}},
		{"what a claim on its way out holds is still held", schedulertest.Objects{one, schedulertest.DevicesClaim("x", schedulertest.AllocatedDevice("r", "a", "device-0"), schedulertest.ClaimBeingDeleted)}, schedulertest.TestPod("p", schedulertest.Claiming("one")), schedulertest.Verdicts{"a": none, "c": none}},

		{"devices it has, of one node", schedulertest.Objects{schedulertest.DevicesClaim("x", schedulertest.Exactly("r", "class", 1, ""), schedulertest.AllocatedDevice("r", "b", "device-0"), schedulertest.AllocatedNodes("b"))}, schedulertest.TestPod("p", schedulertest.Claiming("x")), schedulertest.Verdicts{"a": elsewhere, "c": elsewhere}},
		{"devices it has, of every node", schedulertest.Objects{schedulertest.DevicesClaim("x", schedulertest.Exactly("r", "class", 1, ""), schedulertest.AllocatedDevice("r", "b", "device-0"))}, schedulertest.TestPod("p", schedulertest.Claiming("x")), schedulertest.Verdicts{}},
		{"devices it has and others use too", schedulertest.Objects{schedulertest.DevicesClaim("x", schedulertest.Exactly("r", "class", 1, ""), schedulertest.AllocatedDevice("r", "b", "device-0"), schedulertest.ReservedFor("q", "s"))}, schedulertest.TestPod("p", schedulertest.Claiming("x")), schedulertest.Verdicts{}},
		{"devices it has, of two nodes", schedulertest.Objects{schedulertest.DevicesClaim("x", schedulertest.AllocatedDevice("r", "a", "device-0"), schedulertest.AllocatedNodes("a")), schedulertest.DevicesClaim("y", schedulertest.AllocatedDevice("r", "b", "device-0"), schedulertest.AllocatedNodes("b"))}, schedulertest.TestPod("p", schedulertest.Claiming("x"), schedulertest.Claiming("y")), schedulertest.Verdicts{"a": elsewhere, "b": elsewhere, "c": elsewhere}},
		{"devices it has that wait", schedulertest.Objects{schedulertest.DevicesClaim("x", schedulertest.AllocatedDevice("r", "b", "device-0"), schedulertest.AllocatedNodes("b"), schedulertest.BindingCondition(time.Minute))}, schedulertest.TestPod("p", schedulertest.Claiming("x")), schedulertest.Verdicts{"a": elsewhere, "c": elsewhere}},
		{"devices it has that are ready", schedulertest.Objects{schedulertest.DevicesClaim("x", schedulertest.AllocatedDevice("r", "b", "device-0"), schedulertest.BindingCondition(time.Hour, "Attached"))}, schedulertest.TestPod("p", schedulertest.Claiming("x")), schedulertest.Verdicts{}},
		{"devices it has that failed", schedulertest.Objects{schedulertest.DevicesClaim("x", schedulertest.AllocatedDevice("r", "b", "device-0"), schedulertest.BindingCondition(0, "Attached", "Broken"))}, schedulertest.TestPod("p", schedulertest.Claiming("x")), schedulertest.Verdicts{"a": elsewhere, "b": elsewhere, "c": elsewhere}},
		{"devices it has that waited too long", schedulertest.Objects{schedulertest.DevicesClaim("x", schedulertest.AllocatedDevice("r", "b", "device-0"), schedulertest.AllocatedNodes("b"), schedulertest.BindingCondition(601*time.Second))}, schedulertest.TestPod("p", schedulertest.Claiming("x")), schedulertest.Verdicts{"a": elsewhere, "b": elsewhere, "c": elsewhere}},
		{"devices it has and devices to find", schedulertest.Objects{schedulertest.DevicesClaim("x", schedulertest.AllocatedDevice("r", "b", "device-0"), schedulertest.AllocatedNodes("b")), one}, schedulertest.TestPod("p", schedulertest.Claiming("x"), schedulertest.Claiming("one")), schedulertest.Verdicts{"a": elsewhere, "c": none}},
		{"what cannot be found is told first", schedulertest.Objects{schedulertest.DevicesClaim("x", schedulertest.AllocatedDevice("r", "a", "device-0"), schedulertest.AllocatedNodes("a")), schedulertest.DevicesClaim("y", schedulertest.Exactly("r", "class", 2, ""))}, schedulertest.TestPod("p", schedulertest.Claiming("x"), schedulertest.Claiming("y")), schedulertest.Verdicts{"a": none, "b": elsewhere, "c": none}},
	} {
		t.Run(test.what, func(t *testing.T) {
			if got := heard(t, threeNodes(t, test.known...), devicesRule(t), test.pod); !maps.Equal(got, test.want) {
				t.Errorf("says %v, want %v", got, test.want)
			}
		})
	}
}

// A claim that we are about to write is nobody else's to allocate, and its devices are taken.
func TestPendingClaims(t *testing.T) {
	s := threeNodes(t, schedulertest.DevicesClaim("one", schedulertest.Exactly("r", "class", 1, "")), schedulertest.DevicesClaim("two", schedulertest.Exactly("r", "class", 1, "")))
	rule := devicesRule(t)
	request, refusal := rule.PodDevices(s, snapshottest.PodInfo(t, schedulertest.TestPod("p", schedulertest.Claiming("one"))))
	if refusal != nil {
		t.Fatal(refusal)
	}
	grants, refusal := request.AllocateOn(s, s.NodeNumbers["a"])
	if refusal != nil || len(grants) != 1 || grants[0].Allocation == nil || grants[0].Allocation.Devices.Results[0].Device != "device-0" {
		t.Fatalf("grants %+v, %v", grants, refusal)
	}
	s.Devices.AssumeAllocations(grants)
	if got := heard(t, s, rule, schedulertest.TestPod("q", schedulertest.Claiming("one"))); !maps.Equal(got, schedulertest.Verdicts{"*": "never: resource claim default/one is in the process of being allocated"}) {
		t.Errorf("who shares the claim is told %v", got)
	}
	if got := heard(t, s, rule, schedulertest.TestPod("q", schedulertest.Claiming("two"))); got["a"] == "" || got["b"] != "" {
		t.Errorf("who has another claim is told %v", got)
	}
	s.Devices.RevertAllocations(grants)
	if got := heard(t, s, rule, schedulertest.TestPod("q", schedulertest.Claiming("two"))); got["a"] != "" {
		t.Errorf("the device is not free again: %v", got)
	}
}

func TestDynamicResourcesScore(t *testing.T) {
	large, small := schedulertest.NewAlternative("l", "class", 1, schedulertest.ModelIs("large")), schedulertest.NewAlternative("s", "class", 1, "")
	chosen := func(name string, sub string) *resourcev1.ResourceClaim {
		return schedulertest.DevicesClaim(name, schedulertest.FirstOf("r", large, small), schedulertest.AllocatedDevice("r/"+sub, "z", "device-9"))
	}
	for _, test := range []struct {
		what  string
		known schedulertest.Objects
		pod   *corev1.Pod
		want  map[string]int64 // raw, by node; nil when nothing is said
	}{
		{"no claims", nil, schedulertest.TestPod("p"), nil},
		{"no alternatives", schedulertest.Objects{schedulertest.DevicesClaim("x", schedulertest.Exactly("r", "class", 1, ""))}, schedulertest.TestPod("p", schedulertest.Claiming("x")), nil},
		{"the first is worth eight, the second seven", schedulertest.Objects{schedulertest.DevicesClaim("x", schedulertest.FirstOf("r", large, small))}, schedulertest.TestPod("p", schedulertest.Claiming("x")), map[string]int64{"a": 7, "b": 8}},
		{"what cannot be had is worth nothing", schedulertest.Objects{schedulertest.DevicesClaim("x", schedulertest.FirstOf("r", large))}, schedulertest.TestPod("p", schedulertest.Claiming("x")), map[string]int64{"a": 0, "b": 8}},
		{"two claims are added up", schedulertest.Objects{schedulertest.DevicesClaim("x", schedulertest.FirstOf("r", large, small)), schedulertest.DevicesClaim("y", schedulertest.FirstOf("r", large, small))}, schedulertest.TestPod("p", schedulertest.Claiming("x"), schedulertest.Claiming("y")), map[string]int64{"a": 0, "b": 15}},
		{"two requests are added up", schedulertest.Objects{schedulertest.DevicesClaim("x", schedulertest.FirstOf("r1", large, small), schedulertest.FirstOf("r2", small))}, schedulertest.TestPod("p", schedulertest.Claiming("x")), map[string]int64{"a": 0, "b": 16}},
		{"what is asked exactly adds nothing", schedulertest.Objects{schedulertest.DevicesClaim("x", schedulertest.FirstOf("r1", large, small), schedulertest.Exactly("r2", "class", 1, ""))}, schedulertest.TestPod("p", schedulertest.Claiming("x")), map[string]int64{"a": 0, "b": 8}},
		{"what it has already counts everywhere", schedulertest.Objects{chosen("x", "s"), schedulertest.DevicesClaim("y", schedulertest.FirstOf("r", large, small))}, schedulertest.TestPod("p", schedulertest.Claiming("x"), schedulertest.Claiming("y")), map[string]int64{"a": 14, "b": 15}},
		{"even beside a claim without alternatives", schedulertest.Objects{chosen("x", "l"), schedulertest.DevicesClaim("y", schedulertest.Exactly("r", "class", 1, ""))}, schedulertest.TestPod("p", schedulertest.Claiming("x"), schedulertest.Claiming("y")), map[string]int64{"a": 8, "b": 8}},
		{"but not alone", schedulertest.Objects{chosen("x", "l")}, schedulertest.TestPod("p", schedulertest.Claiming("x")), nil},
		{"a claim that is missing", nil, schedulertest.TestPod("p", schedulertest.Claiming("x")), nil},
	} {
		t.Run(test.what, func(t *testing.T) {
			s := threeNodes(t, test.known...)
			scorer := devicesRule(t).Score(s, snapshottest.PodInfo(t, test.pod))
			if (scorer.Score == nil) != (test.want == nil) {
				t.Fatalf("something is said: %t", scorer.Score != nil)
			}
			for node, want := range test.want {
				if got := scorer.Score(s.NodeNumbers[node]); got != want || scorer.Normalization != HigherIsBetter {
					t.Errorf("%s gets %d, want %d", node, got, want)
				}
			}
		})
	}
}

func TestDynamicResourcesHints(t *testing.T) {
	pod := schedulertest.TestPod("p", schedulertest.Claiming("mine"))
	mine := schedulertest.DevicesClaim("mine", schedulertest.Exactly("r", "class", 1, ""))
	other := schedulertest.DevicesClaim("other", schedulertest.Exactly("r", "class", 1, ""))
	has := func(c *resourcev1.ResourceClaim) *resourcev1.ResourceClaim {
		c = c.DeepCopy()
		schedulertest.AllocatedDevice("r", "a", "device-0")(c)
		return c
	}
	update := func(old, now *resourcev1.ResourceClaim) Event {
		return Event{Resource: ResourceClaimResource, Action: UpdateOther, Old: old, New: now}
	}
	gone := func(c *resourcev1.ResourceClaim) Event {
		return Event{Resource: ResourceClaimResource, Action: Delete, Old: c}
	}
	finalized := mine.DeepCopy()
	finalized.Finalizers = []string{resourcev1.Finalizer}
	for _, test := range []struct {
		what  string
		known schedulertest.Objects
		pod   *corev1.Pod
		event Event
		helps bool
	}{
		{"its claim", schedulertest.Objects{mine}, pod, Event{Resource: ResourceClaimResource, Action: Add, New: mine}, true},
		{"another claim", schedulertest.Objects{mine, other}, pod, Event{Resource: ResourceClaimResource, Action: Add, New: other}, false},
		{"its claim, while another is missing", schedulertest.Objects{mine}, schedulertest.TestPod("p", schedulertest.Claiming("mine"), schedulertest.Claiming("missing")), Event{Resource: ResourceClaimResource, Action: Add, New: mine}, false},
		{"a claim of its name that is another object", schedulertest.Objects{mine}, pod, Event{Resource: ResourceClaimResource, Action: Add, New: schedulertest.DevicesClaim("mine", func(c *resourcev1.ResourceClaim) { c.UID = "new" })}, false},
		{"its claim has devices", schedulertest.Objects{has(mine)}, pod, update(mine, has(mine)), true},
		{"its claim has a finalizer", schedulertest.Objects{finalized}, pod, update(mine, finalized), false},
		{"its claim is used by another pod", schedulertest.Objects{mine}, pod, update(mine, schedulertest.DevicesClaim("mine", schedulertest.ReservedFor("q"))), true},
		{"its claim has lost its devices", schedulertest.Objects{mine}, pod, update(has(mine), mine), true},
		{"another claim has devices", schedulertest.Objects{mine, has(other)}, pod, update(other, has(other)), false},
		{"another claim has lost its devices", schedulertest.Objects{mine, other}, pod, update(has(other), other), true},
		{"another claim has lost its devices, while its own is missing", schedulertest.Objects{other}, pod, update(has(other), other), false},
		{"another claim has lost its devices, for a pod that asks by resource", schedulertest.Objects{other}, schedulertest.TestPod("p", schedulertest.Requesting(schedulertest.Gpu, "1")), update(has(other), other), true},
		{"another claim with devices is gone", schedulertest.Objects{mine}, pod, gone(has(other)), true},
		{"another claim without devices is gone", schedulertest.Objects{mine}, pod, gone(other), false},
		{"its own claim without devices is gone", nil, pod, gone(mine), false},
		{"a claim with devices is gone, while its own is missing", nil, pod, gone(has(other)), true},
		{"the claim of an earlier attempt is gone", nil, schedulertest.TestPod("p", schedulertest.Requesting(schedulertest.Gpu, "1")), gone(schedulertest.DevicesClaim("p-x", schedulertest.OwnedBy("p"), schedulertest.ExtendedResourceClaim)), true},
		{"the claim of another pod's attempt is gone", nil, schedulertest.TestPod("p", schedulertest.Requesting(schedulertest.Gpu, "1")), gone(schedulertest.DevicesClaim("q-x", schedulertest.OwnedBy("q"), schedulertest.ExtendedResourceClaim)), false},
		{"a claim of its own for something else is gone", nil, schedulertest.TestPod("p", schedulertest.Requesting(schedulertest.Gpu, "1")), gone(schedulertest.DevicesClaim("p-x", schedulertest.OwnedBy("p"))), false},
		{"its claim was made", schedulertest.Objects{schedulertest.DevicesClaim("p-d", schedulertest.OwnedBy("p"))}, schedulertest.TestPod("p", schedulertest.ClaimFromTemplate("d", "p-d")), Event{Resource: TargetPod, Action: UpdatePodClaims, Old: schedulertest.TestPod("p", schedulertest.ClaimFromTemplate("d", "")), New: schedulertest.TestPod("p", schedulertest.ClaimFromTemplate("d", "p-d"))}, true},
		{"its claim was made, and we do not know it yet", nil, schedulertest.TestPod("p", schedulertest.ClaimFromTemplate("d", "p-d")), Event{Resource: TargetPod, Action: UpdatePodClaims, Old: schedulertest.TestPod("p", schedulertest.ClaimFromTemplate("d", "")), New: schedulertest.TestPod("p", schedulertest.ClaimFromTemplate("d", "p-d"))}, false},
		{"one of two claims was made", schedulertest.Objects{schedulertest.DevicesClaim("p-d", schedulertest.OwnedBy("p"))}, schedulertest.TestPod("p"), Event{Resource: TargetPod, Action: UpdatePodClaims, Old: schedulertest.TestPod("p"), New: schedulertest.TestPod("p", schedulertest.ClaimFromTemplate("d", "p-d"), schedulertest.ClaimFromTemplate("e", ""))}, false},
		{"its claim turned out not to be needed", nil, schedulertest.TestPod("p"), Event{Resource: TargetPod, Action: UpdatePodClaims, Old: schedulertest.TestPod("p"), New: schedulertest.TestPod("p", schedulertest.ClaimFromTemplate("d", "-"))}, true},
		{"its labels", schedulertest.Objects{mine}, pod, Event{Resource: TargetPod, Action: UpdatePodLabel, Old: pod, New: pod}, false},
		{"a node", nil, pod, Event{Resource: NodeResource, Action: Add, New: schedulertest.TestNode("n")}, true},
		{"a node's labels", nil, pod, Event{Resource: NodeResource, Action: UpdateNodeLabel, Old: schedulertest.TestNode("n"), New: schedulertest.TestNode("n")}, true},
		{"a node's resources", nil, pod, Event{Resource: NodeResource, Action: UpdateNodeAllocatable, Old: schedulertest.TestNode("n"), New: schedulertest.TestNode("n")}, true},
		{"a node's taints", nil, pod, Event{Resource: NodeResource, Action: UpdateNodeTaint, Old: schedulertest.TestNode("n"), New: schedulertest.TestNode("n")}, false},
		{"a class", nil, pod, Event{Resource: DeviceClassResource, Action: Add, New: schedulertest.DeviceClass("class")}, true},
		{"a class changes", nil, pod, Event{Resource: DeviceClassResource, Action: UpdateOther, Old: schedulertest.DeviceClass("class"), New: schedulertest.DeviceClass("class")}, true},
		{"a class is gone", nil, pod, Event{Resource: DeviceClassResource, Action: Delete, Old: schedulertest.DeviceClass("class")}, false},
		{"devices", nil, pod, Event{Resource: ResourceSliceResource, Action: Add, New: schedulertest.DeviceSlice("n", 1)}, true},
		{"devices change", nil, pod, Event{Resource: ResourceSliceResource, Action: UpdateOther, Old: schedulertest.DeviceSlice("n", 1), New: schedulertest.DeviceSlice("n", 2)}, true},
		{"devices are gone", nil, pod, Event{Resource: ResourceSliceResource, Action: Delete, Old: schedulertest.DeviceSlice("n", 1)}, false},
		{"a taint", nil, pod, Event{Resource: DeviceTaintRuleResource, Action: Add, New: schedulertest.TaintRule(nil, "")}, false},
		{"a taint changes", nil, pod, Event{Resource: DeviceTaintRuleResource, Action: UpdateOther, Old: schedulertest.TaintRule(nil, ""), New: schedulertest.TaintRule(nil, "")}, true},
		{"a taint is gone", nil, pod, Event{Resource: DeviceTaintRuleResource, Action: Delete, Old: schedulertest.TaintRule(nil, "")}, true},
		{"a pod is gone", nil, pod, Event{Resource: AssignedPod, Action: Delete, Old: schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.Claiming("other"))}, false},
	} {
		t.Run(test.what, func(t *testing.T) {
			if got := helpsPod(t, threeNodes(t, test.known...), devicesRule(t), test.pod, test.event); got != test.helps {
				t.Errorf("helps is %t", got)
			}
		})
	}
}

// deviceModel counts small and large devices by node. Requests are for large ones or for any.
type deviceModel struct {
	free map[string][2]int // small, large
}

func (m *deviceModel) fits(node string, either, large int) bool {
	f := m.free[node]
	return large <= f[1] && either+large <= f[0]+f[1]
}

// Where random claims can be served is what counting says, and what is given is never given twice.
func TestDevicesAreAsTheModelSays(t *testing.T) {
	const seed = 31
	random := rand.New(rand.NewPCG(seed, 6))
	rule := devicesRule(t)
	served, refused := 0, 0
	for round := range 60 {
		nodes := []string{"a", "b", "c"}
		known := schedulertest.Objects{schedulertest.DeviceClass("class")}
		models := map[string]string{}
		m := &deviceModel{free: map[string][2]int{}}
		for _, n := range nodes {
			var kinds []string
			for i := range random.IntN(4) {
				kind := []string{"small", "large"}[random.IntN(2)]
				kinds = append(kinds, kind)
				models[fmt.Sprint(n, "/device-", i)] = kind
				f := m.free[n]
				f[map[string]int{"small": 0, "large": 1}[kind]]++
				m.free[n] = f
			}
			if len(kinds) > 0 {
				known = append(known, schedulertest.ModelSlice(n, kinds...))
			}
		}
		s := knowing(t, []*corev1.Node{schedulertest.TestNode("a"), schedulertest.TestNode("b"), schedulertest.TestNode("c")}, known)
		given := map[string]string{}
		for try := range 6 {
			either, large := random.IntN(3), random.IntN(2)
			name := fmt.Sprint("claim-", try)
			claim := schedulertest.DevicesClaim(name)
			if either > 0 {
				schedulertest.Exactly("any", "class", int64(either), "")(claim)
			}
			if large > 0 {
				schedulertest.Exactly("large", "class", int64(large), schedulertest.ModelIs("large"))(claim)
			}
			if either+large == 0 {
				continue
			}
			s.SetObject(claim)
			pod := schedulertest.TestPod("p", schedulertest.Claiming(name))
			said := heard(t, s, rule, pod)
			var fits []string
			for _, n := range nodes {
				if want := m.fits(n, either, large); (said[n] == "") != want {
					t.Fatalf("seed %d, round %d: %d of any kind and %d large on %s, where %v are free: %q", seed, round, either, large, n, m.free[n], said[n])
				} else if want {
					fits = append(fits, n)
				}
			}
			if len(fits) == 0 {
				refused++
				continue
			}
			served++
			node := fits[random.IntN(len(fits))]
			request, _ := rule.PodDevices(s, snapshottest.PodInfo(t, pod))
			grants, refusal := request.AllocateOn(s, s.NodeNumbers[node])
			if refusal != nil {
				t.Fatal(refusal)
			}
			s.Devices.AssumeAllocations(grants)
			if random.IntN(4) == 0 {
				s.Devices.RevertAllocations(grants)
				continue
			}
			for _, r := range grants[0].Allocation.Devices.Results {
				key := r.Pool + "/" + r.Device
				if given[key] != "" || r.Pool != node || r.Request == "large" && models[key] != "large" {
					t.Fatalf("seed %d, round %d: %s gets %s as %s, which %q has", seed, round, name, key, r.Request, given[key])
				}
				given[key] = name
				f := m.free[node]
				f[map[string]int{"small": 0, "large": 1}[models[key]]]--
				m.free[node] = f
			}
			if random.IntN(2) == 0 { // the API server tells of it
				written := claim.DeepCopy()
				written.Status.Allocation, written.ResourceVersion = grants[0].Allocation, "11"
				s.Devices.AllocationWritten(&grants[0], written)
				if random.IntN(2) == 0 {
					s.SetObject(written)
				}
			}
		}
	}
	if served < 80 || refused < 40 {
		t.Errorf("%d served, %d refused", served, refused)
	}
}

// A rule's patience: devices are looked for on a node for so long and no longer.
func TestFilterTimeout(t *testing.T) {
	s := threeNodes(t, schedulertest.DevicesClaim("x", schedulertest.Exactly("r", "class", 1, "")))
	rule := newDynamicResources(&configv1.DynamicResourcesArgs{FilterTimeout: &metav1.Duration{Duration: 1}})
	want := schedulertest.Verdicts{"a": "error: node a: timed out trying to allocate devices", "b": "error: node b: timed out trying to allocate devices", "c": "error: node c: timed out trying to allocate devices"}
	if got := heard(t, s, rule, schedulertest.TestPod("p", schedulertest.Claiming("x"))); !maps.Equal(got, want) {
		t.Errorf("says %v", got)
	}
}

func TestWantsDevices(t *testing.T) {
	s := knowing(t, nil, schedulertest.Objects{schedulertest.ClassForExtendedResource("class", string(schedulertest.Gpu), 0)})
	for _, test := range []struct {
		what string
		pod  *corev1.Pod
		want bool
	}{
		{"nothing", schedulertest.TestPod("p"), false}, {"a claim", schedulertest.TestPod("p", schedulertest.Claiming("x")), true}, {"a claim not made", schedulertest.TestPod("p", schedulertest.ClaimFromTemplate("d", "")), true},
		{"what a class stands for", schedulertest.TestPod("p", schedulertest.Requesting(schedulertest.Gpu, "1")), true}, {"none of it", schedulertest.TestPod("p", schedulertest.Requesting(schedulertest.Gpu, "0")), false},
		{"what no class stands for", schedulertest.TestPod("p", schedulertest.Requesting("example.com/nic", "1")), false}, {"a class by its own name", schedulertest.TestPod("p", schedulertest.Requesting("deviceclass.resource.kubernetes.io/class", "1")), true},
		{"cpu", schedulertest.TestPod("p", schedulertest.RequestingCPU("1")), false},
	} {
		if got := s.WantsDevices(snapshottest.PodInfo(t, test.pod)); got != test.want {
			t.Errorf("%s: %t", test.what, got)
		}
	}
}

func TestDynamicResourcesArguments(t *testing.T) {
	for arguments, want := range map[string]dynamicResources{
		"":                        {filterTimeout: 10 * time.Second, BindingTimeout: 10 * time.Minute},
		`{"filterTimeout":"0s"}`:  {BindingTimeout: 10 * time.Minute},
		`{"bindingTimeout":"1s"}`: {filterTimeout: 10 * time.Second, BindingTimeout: time.Second},
		`{"filterTimeout":"1ms","bindingTimeout":"1h"}`: {filterTimeout: time.Millisecond, BindingTimeout: time.Hour},
	} {
		if got := mustRule[*dynamicResources](t, DynamicResourcesName, arguments); *got != want {
			t.Errorf("%s: %+v, want %+v", arguments, *got, want)
		}
	}
}
