package scheduler

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	configv1 "k8s.io/kube-scheduler/config/v1"
	"k8s.io/utils/ptr"
)

func devicesRule(t testing.TB) *dynamicResources {
	t.Helper()
	return newDynamicResources(&configv1.DynamicResourcesArgs{}).(*dynamicResources)
}

// threeNodes are a with one small device, b with a small and a large one, and c with none.
func threeNodes(t testing.TB, known ...metav1.Object) *Snapshot {
	t.Helper()
	return knowing(t, []*corev1.Node{testNode("a", zone("za")), testNode("b", zone("zb")), testNode("c")},
		append(objects{deviceClass("class"), modelSlice("a", "small"), modelSlice("b", "small", "large")}, known...))
}

func TestDynamicResourcesFilter(t *testing.T) {
	const (
		none      = "never: cannot allocate all claims"
		elsewhere = "never: resourceclaim not available on the node"
	)
	one := devicesClaim("one", exactly("r", "class", 1, ""))
	for _, test := range []struct {
		what  string
		known objects
		pod   *corev1.Pod
		want  says
	}{
		{"a pod without claims", nil, testPod("p"), says{}},
		{"a claim that is missing", nil, testPod("p", claiming("x")), says{"*": `never: could not find ResourceClaim "default/x"`}},
		{"a claim of another namespace", objects{func() *resourcev1.ResourceClaim { c := one.DeepCopy(); c.Namespace = "other"; return c }()}, testPod("p", claiming("one")), says{"*": `never: could not find ResourceClaim "default/one"`}},
		{"a claim on its way out", objects{devicesClaim("x", exactly("r", "class", 1, ""), leavingDevices)}, testPod("p", claiming("x")), says{"*": `never: resourceclaim "x" is being deleted`}},
		{"a claim not made yet", nil, testPod("p", claimingMade("d", "")), says{"*": `never: pod "default/p": ResourceClaim not created yet`}},
		{"a claim that was not needed after all", nil, testPod("p", claimingMade("d", "-")), says{}},
		{"a claim made for the pod", objects{devicesClaim("p-d", exactly("r", "class", 2, ""), ownedBy("p"))}, testPod("p", claimingMade("d", "p-d")), says{"a": none, "c": none}},
		{"a claim made for another pod", objects{devicesClaim("p-d", exactly("r", "class", 1, ""), ownedBy("q"))}, testPod("p", claimingMade("d", "p-d")), says{"*": "never: ResourceClaim default/p-d was not created for Pod default/p (Pod is not owner)"}},
		{"a claim another pod owns, asked for by name", objects{devicesClaim("x", exactly("r", "class", 1, ""), ownedBy("q"))}, testPod("p", claiming("x")), says{"c": none}},
		{"neither a name nor a template", nil, testPod("p", func(p *corev1.Pod) { p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "d"}} }), says{"*": `never: pod "default/p", spec.resourceClaim "d": none of the supported fields are set`}},
		{"a class that is missing", objects{devicesClaim("x", exactly("r", "other", 1, ""))}, testPod("p", claiming("x")), says{"*": "never: request r: device class other does not exist"}},
		{"the first class that is missing", objects{devicesClaim("x", exactly("r1", "class", 1, ""), exactly("r2", "other", 1, ""), exactly("r3", "third", 1, ""))}, testPod("p", claiming("x")), says{"*": "never: request r2: device class other does not exist"}},
		{"the first alternative whose class is missing", objects{devicesClaim("x", firstOf("r", alternative{"s1", "class", 1, ""}, alternative{"s2", "other", 1, ""}, alternative{"s3", "third", 1, ""}))}, testPod("p", claiming("x")), says{"*": "never: request r/s2: device class other does not exist"}},
		{"a request for no class", objects{devicesClaim("x", exactly("r", "", 1, ""))}, testPod("p", claiming("x")), says{"*": "error: request r: unsupported request type"}},
		{"a request of a kind we do not know", objects{devicesClaim("x", func(c *resourcev1.ResourceClaim) { c.Spec.Devices.Requests = []resourcev1.DeviceRequest{{Name: "r"}} })}, testPod("p", claiming("x")), says{"*": "never: resource claim default/x, request r: unknown request type"}},
		{"a class that is missing does not matter to who has devices", objects{devicesClaim("x", exactly("r", "other", 1, ""), holds("r", "a", "device-0"))}, testPod("p", claiming("x")), says{}},
		{"the first claim that is wrong", objects{one}, testPod("p", claiming("one"), claiming("x"), claiming("y")), says{"*": `never: could not find ResourceClaim "default/x"`}},

		{"one device", objects{one}, testPod("p", claiming("one")), says{"c": none}},
		{"as many as a node has", objects{devicesClaim("x", exactly("r", "class", 2, ""))}, testPod("p", claiming("x")), says{"a": none, "c": none}},
		{"more than any node has", objects{devicesClaim("x", exactly("r", "class", 3, ""))}, testPod("p", claiming("x")), says{"a": none, "b": none, "c": none}},
		{"two claims of one device each", objects{one, devicesClaim("two", exactly("r", "class", 1, ""))}, testPod("p", claiming("one"), claiming("two")), says{"a": none, "c": none}},
		{"two requests of one device each", objects{devicesClaim("x", exactly("r1", "class", 1, ""), exactly("r2", "class", 1, ""))}, testPod("p", claiming("x")), says{"a": none, "c": none}},
		{"a request that selects", objects{devicesClaim("x", exactly("r", "class", 1, modelIs("large")))}, testPod("p", claiming("x")), says{"a": none, "c": none}},
		{"a class that selects", objects{deviceClass("large", modelIs("large")), devicesClaim("x", exactly("r", "large", 1, ""))}, testPod("p", claiming("x")), says{"a": none, "c": none}},
		{"who selects is served though others would take anything", objects{devicesClaim("x", exactly("r1", "class", 1, ""), exactly("r2", "class", 1, modelIs("small")))}, testPod("p", claiming("x")), says{"a": none, "c": none}},
		{"all devices of a node", objects{devicesClaim("x", exactly("r", "class", 0, ""), func(c *resourcev1.ResourceClaim) {
			c.Spec.Devices.Requests[0].Exactly.AllocationMode = resourcev1.DeviceAllocationModeAll
		})}, testPod("p", claiming("x")), says{"c": none}},
		{"an alternative that can be had", objects{devicesClaim("x", firstOf("r", alternative{"s1", "class", 3, ""}, alternative{"s2", "class", 1, modelIs("large")}))}, testPod("p", claiming("x")), says{"a": none, "c": none}},
		{"a device that is tainted", objects{func() *resourcev1.ResourceSlice {
			s := modelSlice("a", "small")
			s.Spec.Devices[0].Taints = []resourcev1.DeviceTaint{{Key: "k", Effect: resourcev1.DeviceTaintEffectNoSchedule}}
			return s
		}(), one}, testPod("p", claiming("one")), says{"a": none, "c": none}},
		{"a pool that is not complete", objects{func() *resourcev1.ResourceSlice {
			s := modelSlice("a", "small")
			s.Spec.Pool.ResourceSliceCount = 2
			return s
		}(), one}, testPod("p", claiming("one")), says{"a": none, "c": none}},
		{"devices of every node", objects{func() *resourcev1.ResourceSlice {
			s := modelSlice("x", "small")
			s.Spec.NodeName, s.Spec.AllNodes = nil, ptr.To(true)
			return s
		}(), one}, testPod("p", claiming("one")), says{}},
		{"devices of a zone", objects{func() *resourcev1.ResourceSlice {
			s := modelSlice("x", "small")
			s.Spec.NodeName, s.Spec.NodeSelector = nil, &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{expression(corev1.LabelTopologyZone, corev1.NodeSelectorOpIn, "za")}}
			return s
		}(), devicesClaim("x", exactly("r", "class", 2, ""))}, testPod("p", claiming("x")), says{"c": none}},

		{"a device somebody has", objects{one, devicesClaim("x", holds("r", "a", "device-0"))}, testPod("p", claiming("one")), says{"a": none, "c": none}},
		{"a device somebody watches", objects{one, devicesClaim("x", holds("r", "a", "device-0"), func(c *resourcev1.ResourceClaim) { c.Status.Allocation.Devices.Results[0].AdminAccess = ptr.To(true) })}, testPod("p", claiming("one")), says{"c": none}},
		{"a device of that name of another driver", objects{one, devicesClaim("x", holds("r", "a", "device-0"), func(c *resourcev1.ResourceClaim) { c.Status.Allocation.Devices.Results[0].Driver = "other" })}, testPod("p", claiming("one")), says{"c": none}},
		{"what a claim on its way out holds is still held", objects{one, devicesClaim("x", holds("r", "a", "device-0"), leavingDevices)}, testPod("p", claiming("one")), says{"a": none, "c": none}},

		{"devices it has, of one node", objects{devicesClaim("x", exactly("r", "class", 1, ""), holds("r", "b", "device-0"), onlyOn("b"))}, testPod("p", claiming("x")), says{"a": elsewhere, "c": elsewhere}},
		{"devices it has, of every node", objects{devicesClaim("x", exactly("r", "class", 1, ""), holds("r", "b", "device-0"))}, testPod("p", claiming("x")), says{}},
		{"devices it has and others use too", objects{devicesClaim("x", exactly("r", "class", 1, ""), holds("r", "b", "device-0"), usedBy("q", "s"))}, testPod("p", claiming("x")), says{}},
		{"devices it has, of two nodes", objects{devicesClaim("x", holds("r", "a", "device-0"), onlyOn("a")), devicesClaim("y", holds("r", "b", "device-0"), onlyOn("b"))}, testPod("p", claiming("x"), claiming("y")), says{"a": elsewhere, "b": elsewhere, "c": elsewhere}},
		{"devices it has that wait", objects{devicesClaim("x", holds("r", "b", "device-0"), onlyOn("b"), awaits(time.Minute))}, testPod("p", claiming("x")), says{"a": elsewhere, "c": elsewhere}},
		{"devices it has that are ready", objects{devicesClaim("x", holds("r", "b", "device-0"), awaits(time.Hour, "Attached"))}, testPod("p", claiming("x")), says{}},
		{"devices it has that failed", objects{devicesClaim("x", holds("r", "b", "device-0"), awaits(0, "Attached", "Broken"))}, testPod("p", claiming("x")), says{"a": elsewhere, "b": elsewhere, "c": elsewhere}},
		{"devices it has that waited too long", objects{devicesClaim("x", holds("r", "b", "device-0"), onlyOn("b"), awaits(601*time.Second))}, testPod("p", claiming("x")), says{"a": elsewhere, "b": elsewhere, "c": elsewhere}},
		{"devices it has and devices to find", objects{devicesClaim("x", holds("r", "b", "device-0"), onlyOn("b")), one}, testPod("p", claiming("x"), claiming("one")), says{"a": elsewhere, "c": none}},
		{"what cannot be found is told first", objects{devicesClaim("x", holds("r", "a", "device-0"), onlyOn("a")), devicesClaim("y", exactly("r", "class", 2, ""))}, testPod("p", claiming("x"), claiming("y")), says{"a": none, "b": elsewhere, "c": none}},
	} {
		t.Run(test.what, func(t *testing.T) {
			if got := heard(t, threeNodes(t, test.known...), devicesRule(t), test.pod); !maps.Equal(got, test.want) {
				t.Errorf("says %v, want %v", got, test.want)
			}
		})
	}
}

// Expressions that cannot be read end the attempt; those that fail on a device end it as well.
func TestDeviceExpressionsThatFail(t *testing.T) {
	for what, test := range map[string]struct {
		known objects
		want  string // part of what is said
	}{
		"in a claim":                {objects{devicesClaim("x", exactly("r", "class", 1, "device.")), modelSlice("a", "small")}, "claim default/x: selector #0: CEL compile error"},
		"in a class":                {objects{deviceClass("bad", "device."), devicesClaim("x", exactly("r", "bad", 1, ""))}, "class bad: selector #0: CEL compile error"},
		"an attribute that is none": {objects{devicesClaim("x", exactly("r", "class", 1, `device.attributes["example.com"].size == "large"`))}, "no such key: size"},
	} {
		t.Run(what, func(t *testing.T) {
			s := threeNodes(t, test.known...)
			_, err := Schedule(s, infoOf(t, testPod("p", claiming("x"))), DefaultProfile())
			if err == nil || IsUnschedulable(err) || !strings.HasPrefix(err.Error(), `running "DynamicResources" filter plugin: `) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, want %q", err, test.want)
			}
		})
	}
}

// A claim that we are about to write is nobody else's to allocate, and its devices are taken.
func TestPendingClaims(t *testing.T) {
	s := threeNodes(t, devicesClaim("one", exactly("r", "class", 1, "")), devicesClaim("two", exactly("r", "class", 1, "")))
	rule := devicesRule(t)
	request, refusal := rule.request(s, infoOf(t, testPod("p", claiming("one"))))
	if refusal != nil {
		t.Fatal(refusal)
	}
	grants, refusal := request.on(s, s.nodeNumber["a"])
	if refusal != nil || len(grants) != 1 || grants[0].allocation == nil || grants[0].allocation.Devices.Results[0].Device != "device-0" {
		t.Fatalf("grants %+v, %v", grants, refusal)
	}
	s.devices.assume(grants)
	if got := heard(t, s, rule, testPod("q", claiming("one"))); !maps.Equal(got, says{"*": "never: resource claim default/one is in the process of being allocated"}) {
		t.Errorf("who shares the claim is told %v", got)
	}
	if got := heard(t, s, rule, testPod("q", claiming("two"))); got["a"] == "" || got["b"] != "" {
		t.Errorf("who has another claim is told %v", got)
	}
	s.devices.revert(grants)
	if got := heard(t, s, rule, testPod("q", claiming("two"))); got["a"] != "" {
		t.Errorf("the device is not free again: %v", got)
	}
}

func TestDynamicResourcesScore(t *testing.T) {
	large, small := alternative{"l", "class", 1, modelIs("large")}, alternative{"s", "class", 1, ""}
	chosen := func(name string, sub string) *resourcev1.ResourceClaim {
		return devicesClaim(name, firstOf("r", large, small), holds("r/"+sub, "z", "device-9"))
	}
	for _, test := range []struct {
		what  string
		known objects
		pod   *corev1.Pod
		want  map[string]int64 // raw, by node; nil when nothing is said
	}{
		{"no claims", nil, testPod("p"), nil},
		{"no alternatives", objects{devicesClaim("x", exactly("r", "class", 1, ""))}, testPod("p", claiming("x")), nil},
		{"the first is worth eight, the second seven", objects{devicesClaim("x", firstOf("r", large, small))}, testPod("p", claiming("x")), map[string]int64{"a": 7, "b": 8}},
		{"what cannot be had is worth nothing", objects{devicesClaim("x", firstOf("r", large))}, testPod("p", claiming("x")), map[string]int64{"a": 0, "b": 8}},
		{"two claims are added up", objects{devicesClaim("x", firstOf("r", large, small)), devicesClaim("y", firstOf("r", large, small))}, testPod("p", claiming("x"), claiming("y")), map[string]int64{"a": 0, "b": 15}},
		{"two requests are added up", objects{devicesClaim("x", firstOf("r1", large, small), firstOf("r2", small))}, testPod("p", claiming("x")), map[string]int64{"a": 0, "b": 16}},
		{"what is asked exactly adds nothing", objects{devicesClaim("x", firstOf("r1", large, small), exactly("r2", "class", 1, ""))}, testPod("p", claiming("x")), map[string]int64{"a": 0, "b": 8}},
		{"what it has already counts everywhere", objects{chosen("x", "s"), devicesClaim("y", firstOf("r", large, small))}, testPod("p", claiming("x"), claiming("y")), map[string]int64{"a": 14, "b": 15}},
		{"even beside a claim without alternatives", objects{chosen("x", "l"), devicesClaim("y", exactly("r", "class", 1, ""))}, testPod("p", claiming("x"), claiming("y")), map[string]int64{"a": 8, "b": 8}},
		{"but not alone", objects{chosen("x", "l")}, testPod("p", claiming("x")), nil},
		{"a claim that is missing", nil, testPod("p", claiming("x")), nil},
	} {
		t.Run(test.what, func(t *testing.T) {
			s := threeNodes(t, test.known...)
			scorer := devicesRule(t).Score(s, infoOf(t, test.pod))
			if (scorer.Of == nil) != (test.want == nil) {
				t.Fatalf("something is said: %t", scorer.Of != nil)
			}
			for node, want := range test.want {
				if got := scorer.Of(s.nodeNumber[node]); got != want || scorer.Scale != MostIsBest {
					t.Errorf("%s gets %d, want %d", node, got, want)
				}
			}
		})
	}
}

// Of two nodes that both can serve a pod, it goes where what it would rather have is.
func TestBetterDevicesWin(t *testing.T) {
	for _, test := range []struct {
		first, second alternative
		want          string
	}{
		{alternative{"l", "class", 1, modelIs("large")}, alternative{"s", "class", 1, modelIs("small")}, "b"},
		{alternative{"s", "class", 2, modelIs("small")}, alternative{"l", "class", 1, modelIs("large")}, "b"},
	} {
		s := knowing(t, []*corev1.Node{testNode("a"), testNode("b")}, objects{deviceClass("class"), modelSlice("a", "small"), modelSlice("b", "large"), devicesClaim("x", firstOf("r", test.first, test.second))})
		d, err := Schedule(s, infoOf(t, testPod("p", claiming("x"))), DefaultProfile())
		if err != nil || d.Node != test.want {
			t.Errorf("%v: goes to %q, %v", test, d.Node, err)
		}
	}
}

func TestDynamicResourcesHints(t *testing.T) {
	pod := testPod("p", claiming("mine"))
	mine := devicesClaim("mine", exactly("r", "class", 1, ""))
	other := devicesClaim("other", exactly("r", "class", 1, ""))
	has := func(c *resourcev1.ResourceClaim) *resourcev1.ResourceClaim {
		c = c.DeepCopy()
		holds("r", "a", "device-0")(c)
		return c
	}
	update := func(old, now *resourcev1.ResourceClaim) Event {
		return Event{Resource: ResourceClaimResource, Action: updateOther, Old: old, New: now}
	}
	gone := func(c *resourcev1.ResourceClaim) Event {
		return Event{Resource: ResourceClaimResource, Action: Delete, Old: c}
	}
	finalized := mine.DeepCopy()
	finalized.Finalizers = []string{resourcev1.Finalizer}
	for _, test := range []struct {
		what  string
		known objects
		pod   *corev1.Pod
		event Event
		helps bool
	}{
		{"its claim", objects{mine}, pod, Event{Resource: ResourceClaimResource, Action: Add, New: mine}, true},
		{"another claim", objects{mine, other}, pod, Event{Resource: ResourceClaimResource, Action: Add, New: other}, false},
		{"its claim, while another is missing", objects{mine}, testPod("p", claiming("mine"), claiming("missing")), Event{Resource: ResourceClaimResource, Action: Add, New: mine}, false},
		{"a claim of its name that is another object", objects{mine}, pod, Event{Resource: ResourceClaimResource, Action: Add, New: devicesClaim("mine", func(c *resourcev1.ResourceClaim) { c.UID = "new" })}, false},
		{"its claim has devices", objects{has(mine)}, pod, update(mine, has(mine)), true},
		{"its claim has a finalizer", objects{finalized}, pod, update(mine, finalized), false},
		{"its claim is used by another pod", objects{mine}, pod, update(mine, devicesClaim("mine", usedBy("q"))), true},
		{"its claim has lost its devices", objects{mine}, pod, update(has(mine), mine), true},
		{"another claim has devices", objects{mine, has(other)}, pod, update(other, has(other)), false},
		{"another claim has lost its devices", objects{mine, other}, pod, update(has(other), other), true},
		{"another claim has lost its devices, while its own is missing", objects{other}, pod, update(has(other), other), false},
		{"another claim has lost its devices, for a pod that asks by resource", objects{other}, testPod("p", asks(gpu, "1")), update(has(other), other), true},
		{"another claim with devices is gone", objects{mine}, pod, gone(has(other)), true},
		{"another claim without devices is gone", objects{mine}, pod, gone(other), false},
		{"its own claim without devices is gone", nil, pod, gone(mine), false},
		{"a claim with devices is gone, while its own is missing", nil, pod, gone(has(other)), true},
		{"the claim of an earlier attempt is gone", nil, testPod("p", asks(gpu, "1")), gone(devicesClaim("p-x", ownedBy("p"), standingForExtended)), true},
		{"the claim of another pod's attempt is gone", nil, testPod("p", asks(gpu, "1")), gone(devicesClaim("q-x", ownedBy("q"), standingForExtended)), false},
		{"a claim of its own for something else is gone", nil, testPod("p", asks(gpu, "1")), gone(devicesClaim("p-x", ownedBy("p"))), false},
		{"its claim was made", objects{devicesClaim("p-d", ownedBy("p"))}, testPod("p", claimingMade("d", "p-d")), Event{Resource: TargetPod, Action: UpdatePodClaims, Old: testPod("p", claimingMade("d", "")), New: testPod("p", claimingMade("d", "p-d"))}, true},
		{"its claim was made, and we do not know it yet", nil, testPod("p", claimingMade("d", "p-d")), Event{Resource: TargetPod, Action: UpdatePodClaims, Old: testPod("p", claimingMade("d", "")), New: testPod("p", claimingMade("d", "p-d"))}, false},
		{"one of two claims was made", objects{devicesClaim("p-d", ownedBy("p"))}, testPod("p"), Event{Resource: TargetPod, Action: UpdatePodClaims, Old: testPod("p"), New: testPod("p", claimingMade("d", "p-d"), claimingMade("e", ""))}, false},
		{"its claim turned out not to be needed", nil, testPod("p"), Event{Resource: TargetPod, Action: UpdatePodClaims, Old: testPod("p"), New: testPod("p", claimingMade("d", "-"))}, true},
		{"its labels", objects{mine}, pod, Event{Resource: TargetPod, Action: UpdatePodLabel, Old: pod, New: pod}, false},
		{"a node", nil, pod, Event{Resource: NodeResource, Action: Add, New: testNode("n")}, true},
		{"a node's labels", nil, pod, Event{Resource: NodeResource, Action: UpdateNodeLabel, Old: testNode("n"), New: testNode("n")}, true},
		{"a node's resources", nil, pod, Event{Resource: NodeResource, Action: UpdateNodeAllocatable, Old: testNode("n"), New: testNode("n")}, true},
		{"a node's taints", nil, pod, Event{Resource: NodeResource, Action: UpdateNodeTaint, Old: testNode("n"), New: testNode("n")}, false},
		{"a class", nil, pod, Event{Resource: DeviceClassResource, Action: Add, New: deviceClass("class")}, true},
		{"a class changes", nil, pod, Event{Resource: DeviceClassResource, Action: updateOther, Old: deviceClass("class"), New: deviceClass("class")}, true},
		{"a class is gone", nil, pod, Event{Resource: DeviceClassResource, Action: Delete, Old: deviceClass("class")}, false},
		{"devices", nil, pod, Event{Resource: ResourceSliceResource, Action: Add, New: deviceSlice("n", 1)}, true},
		{"devices change", nil, pod, Event{Resource: ResourceSliceResource, Action: updateOther, Old: deviceSlice("n", 1), New: deviceSlice("n", 2)}, true},
		{"devices are gone", nil, pod, Event{Resource: ResourceSliceResource, Action: Delete, Old: deviceSlice("n", 1)}, false},
		{"a taint", nil, pod, Event{Resource: DeviceTaintRuleResource, Action: Add, New: taintRule(nil, "")}, false},
		{"a taint changes", nil, pod, Event{Resource: DeviceTaintRuleResource, Action: updateOther, Old: taintRule(nil, ""), New: taintRule(nil, "")}, true},
		{"a taint is gone", nil, pod, Event{Resource: DeviceTaintRuleResource, Action: Delete, Old: taintRule(nil, "")}, true},
		{"a pod is gone", nil, pod, Event{Resource: AssignedPod, Action: Delete, Old: testPod("1", on("a"), claiming("other"))}, false},
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
		known := objects{deviceClass("class")}
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
				known = append(known, modelSlice(n, kinds...))
			}
		}
		s := knowing(t, []*corev1.Node{testNode("a"), testNode("b"), testNode("c")}, known)
		given := map[string]string{}
		for try := range 6 {
			either, large := random.IntN(3), random.IntN(2)
			name := fmt.Sprint("claim-", try)
			claim := devicesClaim(name)
			if either > 0 {
				exactly("any", "class", int64(either), "")(claim)
			}
			if large > 0 {
				exactly("large", "class", int64(large), modelIs("large"))(claim)
			}
			if either+large == 0 {
				continue
			}
			s.SetObject(claim)
			pod := testPod("p", claiming(name))
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
			request, _ := rule.request(s, infoOf(t, pod))
			grants, refusal := request.on(s, s.nodeNumber[node])
			if refusal != nil {
				t.Fatal(refusal)
			}
			s.devices.assume(grants)
			if random.IntN(4) == 0 {
				s.devices.revert(grants)
				continue
			}
			for _, r := range grants[0].allocation.Devices.Results {
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
				written.Status.Allocation, written.ResourceVersion = grants[0].allocation, "11"
				s.devices.write(&grants[0], written)
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
	s := threeNodes(t, devicesClaim("x", exactly("r", "class", 1, "")))
	rule := newDynamicResources(&configv1.DynamicResourcesArgs{FilterTimeout: &metav1.Duration{Duration: 1}})
	want := says{"a": "error: node a: timed out trying to allocate devices", "b": "error: node b: timed out trying to allocate devices", "c": "error: node c: timed out trying to allocate devices"}
	if got := heard(t, s, rule, testPod("p", claiming("x"))); !maps.Equal(got, want) {
		t.Errorf("says %v", got)
	}
}

func TestWantsDevices(t *testing.T) {
	s := knowing(t, nil, objects{classStandingFor("class", string(gpu), 0)})
	for _, test := range []struct {
		what string
		pod  *corev1.Pod
		want bool
	}{
		{"nothing", testPod("p"), false}, {"a claim", testPod("p", claiming("x")), true}, {"a claim not made", testPod("p", claimingMade("d", "")), true},
		{"what a class stands for", testPod("p", asks(gpu, "1")), true}, {"none of it", testPod("p", asks(gpu, "0")), false},
		{"what no class stands for", testPod("p", asks("example.com/nic", "1")), false}, {"a class by its own name", testPod("p", asks("deviceclass.resource.kubernetes.io/class", "1")), true},
		{"cpu", testPod("p", asksCPU("1")), false},
	} {
		if got := s.wantsDevices(infoOf(t, test.pod)); got != test.want {
			t.Errorf("%s: %t", test.what, got)
		}
	}
}

func TestDynamicResourcesArguments(t *testing.T) {
	for arguments, want := range map[string]dynamicResources{
		"":                        {filterTimeout: 10 * time.Second, bindingTimeout: 10 * time.Minute},
		`{"filterTimeout":"0s"}`:  {bindingTimeout: 10 * time.Minute},
		`{"bindingTimeout":"1s"}`: {filterTimeout: 10 * time.Second, bindingTimeout: time.Second},
		`{"filterTimeout":"1ms","bindingTimeout":"1h"}`: {filterTimeout: time.Millisecond, bindingTimeout: time.Hour},
	} {
		if got := mustRule[*dynamicResources](t, dynamicResourcesName, arguments); *got != want {
			t.Errorf("%s: %+v, want %+v", arguments, *got, want)
		}
	}
}
