package scheduler

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	configv1 "k8s.io/kube-scheduler/config/v1"
	"k8s.io/utils/ptr"
)

const gpu = corev1.ResourceName("example.com/gpu")

// classStandingFor is a class of all devices that stands for a resource.
func classStandingFor(name, resource string, age time.Duration) *resourcev1.DeviceClass {
	class := &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(time.Unix(1e9, 0).Add(-age))}}
	if resource != "" {
		class.Spec.ExtendedResourceName = &resource
	}
	return class
}

// claimHolding is a claim that has some of a node's devices.
func claimHolding(name, node string, devices ...string) *resourcev1.ResourceClaim {
	claim := deviceClaim(name, int64(len(devices)))
	claim.Status.Allocation = &resourcev1.AllocationResult{}
	for _, d := range devices {
		claim.Status.Allocation.Devices.Results = append(claim.Status.Allocation.Devices.Results, resourcev1.DeviceRequestAllocationResult{Request: "r", Driver: "example.com", Pool: node, Device: d})
	}
	return claim
}

func TestClassFor(t *testing.T) {
	for _, test := range []struct {
		what, resource string
		classes        []*resourcev1.DeviceClass
		want           string
	}{
		{"no class", "example.com/gpu", nil, ""},
		{"a class for nothing", "example.com/gpu", []*resourcev1.DeviceClass{classStandingFor("a", "", 0)}, ""},
		{"a class for it", "example.com/gpu", []*resourcev1.DeviceClass{classStandingFor("a", "example.com/gpu", 0)}, "a"},
		{"a class for another", "example.com/gpu", []*resourcev1.DeviceClass{classStandingFor("a", "example.com/nic", 0)}, ""},
		{"the newer of two", "example.com/gpu", []*resourcev1.DeviceClass{classStandingFor("a", "example.com/gpu", time.Hour), classStandingFor("b", "example.com/gpu", 0)}, "b"},
		{"of the same age, the first by name", "example.com/gpu", []*resourcev1.DeviceClass{classStandingFor("b", "example.com/gpu", 0), classStandingFor("a", "example.com/gpu", 0)}, "a"},
		{"its own name", "deviceclass.resource.kubernetes.io/a", []*resourcev1.DeviceClass{classStandingFor("a", "example.com/gpu", 0)}, "a"},
		{"the own name of a class that is not there", "deviceclass.resource.kubernetes.io/b", []*resourcev1.DeviceClass{classStandingFor("a", "", 0)}, ""},
		{"a resource of nodes", "cpu", []*resourcev1.DeviceClass{classStandingFor("a", "example.com/gpu", 0)}, ""},
	} {
		t.Run(test.what, func(t *testing.T) {
			d := newDeviceObjects()
			for _, class := range test.classes {
				d.set(class)
			}
			got := ""
			if class := d.classFor(corev1.ResourceName(test.resource)); class != nil {
				got = class.Name
			}
			if got != test.want {
				t.Errorf("%q stands for it, want %q", got, test.want)
			}
		})
	}
}

func TestExtendedResourcesFromDevices(t *testing.T) {
	const elsewhere = "Insufficient example.com/gpu"
	stale := deviceClaim("old", 1)
	stale.Annotations = map[string]string{resourcev1.ExtendedResourceClaimAnnotation: "true"}
	stale.OwnerReferences = []metav1.OwnerReference{{Kind: "Pod", Name: "p", UID: "p", Controller: ptr.To(true)}}
	other := stale.DeepCopy()
	other.OwnerReferences[0].UID = "q"
	standing := classStandingFor("class", "example.com/gpu", 0)
	// Node a offers two itself; b has two devices, c one and d none.
	for what, test := range map[string]struct {
		objects []metav1.Object
		running []*corev1.Pod
		pod     *corev1.Pod
		want    map[string]string
	}{
		"no class": {
			pod: testPod("p", asks(gpu, "1")), want: map[string]string{"b": elsewhere, "c": elsewhere, "d": elsewhere},
		},
		"a class": {
			objects: []metav1.Object{standing}, pod: testPod("p", asks(gpu, "1")), want: map[string]string{"d": "cannot allocate all claims"},
		},
		"more than there are": {
			objects: []metav1.Object{standing}, pod: testPod("p", asks(gpu, "2")), want: map[string]string{"c": "cannot allocate all claims", "d": "cannot allocate all claims"},
		},
		"more than anybody has": {
			objects: []metav1.Object{standing}, pod: testPod("p", asks(gpu, "3")),
			want: map[string]string{"a": elsewhere, "b": "cannot allocate all claims", "c": "cannot allocate all claims", "d": "cannot allocate all claims"},
		},
		"nothing at all": {
			objects: []metav1.Object{standing}, pod: testPod("p", asks(gpu, "0")), want: map[string]string{},
		},
		"taken by a claim": {
			objects: []metav1.Object{standing, claimHolding("x", "c", "device-0")}, pod: testPod("p", asks(gpu, "1")),
			want: map[string]string{"c": "cannot allocate all claims", "d": "cannot allocate all claims"},
		},
		"nodes that offer it count themselves": {
			objects: []metav1.Object{standing}, running: []*corev1.Pod{testPod("1", on("a"), asks(gpu, "2"))}, pod: testPod("p", asks(gpu, "1")),
			want: map[string]string{"a": elsewhere, "d": "cannot allocate all claims"},
		},
		"the class's own name": {
			objects: []metav1.Object{classStandingFor("class", "", 0)}, pod: testPod("p", asks("deviceclass.resource.kubernetes.io/class", "2")),
			want: map[string]string{"a": "cannot allocate all claims", "c": "cannot allocate all claims", "d": "cannot allocate all claims"},
		},
		"a resource nobody stands for": {
			objects: []metav1.Object{standing}, pod: testPod("p", asks(gpu, "1"), asks("example.com/nic", "1")),
			want: map[string]string{"a": "Insufficient example.com/nic", "b": "Insufficient example.com/nic", "c": "Insufficient example.com/nic", "d": "Insufficient example.com/nic"},
		},
		"beside a claim of its own": {
			objects: []metav1.Object{standing, deviceClaim("claim", 1)}, pod: testPod("p", asks(gpu, "1"), claiming("claim")),
			want: map[string]string{"a": "cannot allocate all claims", "c": "cannot allocate all claims", "d": "cannot allocate all claims"},
		},
		"a claim of an earlier attempt": {
			objects: []metav1.Object{standing, stale}, pod: testPod("p", asks(gpu, "1")),
			want: map[string]string{"a": refusedStaleClaim.Reasons[0], "b": refusedStaleClaim.Reasons[0], "c": refusedStaleClaim.Reasons[0], "d": refusedStaleClaim.Reasons[0]},
		},
		"another pod's claim": {
			objects: []metav1.Object{standing, other}, pod: testPod("p", asks(gpu, "1")), want: map[string]string{"d": "cannot allocate all claims"},
		},
	} {
		t.Run(what, func(t *testing.T) {
			s := cluster(t, []*corev1.Node{testNode("a", nodeHas(gpu, "2")), testNode("b"), testNode("c", nodeHas(gpu, "0")), testNode("d")}, test.running...)
			s.SetObject(deviceSlice("b", 2))
			s.SetObject(deviceSlice("c", 1))
			for _, o := range test.objects {
				s.SetObject(o)
			}
			if got := refusalsOf(t, s, test.pod, DefaultProfile()); !maps.Equal(got, test.want) {
				t.Errorf("refused %v, want %v", got, test.want)
			}
		})
	}
}

// What is remembered of a kind of pod must not outlive a change of the classes.
func TestClassesComeAndGo(t *testing.T) {
	s := cluster(t, []*corev1.Node{testNode("a")})
	s.SetObject(deviceSlice("a", 1))
	class := classStandingFor("class", "example.com/gpu", 0)
	for round := range 3 {
		if got := refusalsOf(t, s, testPod("p", asks(gpu, "1")), DefaultProfile()); got["a"] == "" {
			t.Fatalf("round %d: fits without a class", round)
		}
		s.SetObject(class)
		if got := refusalsOf(t, s, testPod("p", asks(gpu, "1")), DefaultProfile()); len(got) != 0 {
			t.Fatalf("round %d: refused with a class: %v", round, got)
		}
		s.DeleteObject(class)
	}
}

func TestExtendedRequests(t *testing.T) {
	class := classStandingFor("class", "example.com/gpu", 0)
	type container struct {
		name  string
		count string // "" asks for none
	}
	for _, test := range []struct {
		what             string
		init, side, main []container
		requests, uses   string
	}{
		{"one", nil, nil, []container{{"m", "2"}}, "container-0-request-1=2", "m:container-0-request-1"},
		{"two", nil, nil, []container{{"m", "2"}, {"n", "1"}}, "container-0-request-1=2 container-1-request-1=1", "m:container-0-request-1 n:container-1-request-1"},
		{"one that asks for none", nil, nil, []container{{"m", ""}, {"n", "1"}}, "container-1-request-1=1", "n:container-1-request-1"},
		{"none of nothing", nil, nil, []container{{"m", "0"}, {"n", "1"}}, "container-1-request-1=1", "n:container-1-request-1"},
		{"an init container uses what comes later", []container{{"i", "1"}}, nil, []container{{"m", "2"}}, "container-1-request-1=2", "m:container-1-request-1 i:container-1-request-1"},
		{"of several, as few as will do", []container{{"i", "2"}}, nil, []container{{"m", "2"}, {"n", "1"}}, "container-1-request-1=2 container-2-request-1=1", "m:container-1-request-1 n:container-2-request-1 i:container-1-request-1"},
		{"and asks for the rest", []container{{"i", "5"}}, nil, []container{{"m", "2"}}, "container-0-request-1=3 container-1-request-1=2", "m:container-1-request-1 i:container-1-request-1 i:container-0-request-1"},
		{"init containers share the largest rest", []container{{"i", "1"}, {"j", "3"}}, nil, []container{{"m", ""}}, "container-1-request-1=3", "i:container-1-request-1 j:container-1-request-1"},
		{"a sidecar stays", nil, []container{{"s", "1"}}, []container{{"m", "1"}}, "container-0-request-1=1 container-1-request-1=1", "s:container-0-request-1 m:container-1-request-1"},
		{"and lends to those before it", []container{{"i", "1"}}, []container{{"s", "1"}}, []container{{"m", ""}}, "container-1-request-1=1", "s:container-1-request-1 i:container-1-request-1"},
	} {
		t.Run(test.what, func(t *testing.T) {
			pod := testPod("p")
			made := func(c container) corev1.Container {
				made := corev1.Container{Name: c.name, Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}}}
				if c.count != "" {
					made.Resources.Requests[gpu] = resource.MustParse(c.count)
				}
				return made
			}
			pod.Spec.Containers = nil
			for _, c := range test.init {
				pod.Spec.InitContainers = append(pod.Spec.InitContainers, made(c))
			}
			for _, c := range test.side {
				side := made(c)
				side.RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways)
				pod.Spec.InitContainers = append(pod.Spec.InitContainers, side)
			}
			for _, c := range test.main {
				pod.Spec.Containers = append(pod.Spec.Containers, made(c))
			}
			requests, mappings := extendedRequests(pod, []classedResource{{name: gpu, class: class}})
			var gotRequests, gotUses []string
			for _, r := range requests {
				gotRequests = append(gotRequests, fmt.Sprintf("%s=%d", r.Name, r.Exactly.Count))
				if r.Exactly.DeviceClassName != "class" || r.Exactly.AllocationMode != resourcev1.DeviceAllocationModeExactCount {
					t.Errorf("request %+v", r.Exactly)
				}
			}
			for _, m := range mappings {
				gotUses = append(gotUses, m.ContainerName+":"+m.RequestName)
			}
			// The place of the resource counts among all that a container asks: "cpu" is before "example.com/gpu".
			if got := strings.Join(gotRequests, " "); got != test.requests {
				t.Errorf("requests %s, want %s", got, test.requests)
			}
			if got := strings.Join(gotUses, " "); got != test.uses {
				t.Errorf("uses %s, want %s", got, test.uses)
			}
		})
	}
}

func TestDevicesInScores(t *testing.T) {
	rule, err := newNodeResourcesFit(&configv1.NodeResourcesFitArgs{ScoringStrategy: &configv1.ScoringStrategy{
		Type: configv1.LeastAllocated, Resources: []configv1.ResourceSpec{{Name: string(gpu), Weight: 1}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	everywhere := deviceSlice("shared", 1)
	everywhere.Spec.NodeName, everywhere.Spec.AllNodes = nil, ptr.To(true)
	inZone := deviceSlice("zoned", 2)
	inZone.Spec.NodeName = nil
	inZone.Spec.NodeSelector = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{expression(corev1.LabelTopologyZone, corev1.NodeSelectorOpIn, "z")}}
	each := deviceSlice("each", 2)
	each.Spec.NodeName, each.Spec.PerDeviceNodeSelection = nil, ptr.To(true)
	each.Spec.Devices[0].NodeName, each.Spec.Devices[1].AllNodes = ptr.To("a"), ptr.To(true)
	none := classStandingFor("class", string(gpu), 0)
	none.Spec.Selectors = []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{Expression: `device.driver == "other"`}}}
	class := classStandingFor("class", string(gpu), 0)
	for _, test := range []struct {
		what    string
		objects []metav1.Object
		want    [2]int64 // of nodes a and b; b is in zone z
	}{
		{"no class", []metav1.Object{deviceSlice("a", 4)}, [2]int64{0, 0}},
		{"devices of one node", []metav1.Object{class, deviceSlice("a", 4)}, [2]int64{75, 0}},
		{"some are taken", []metav1.Object{class, deviceSlice("a", 4), claimHolding("x", "a", "device-0", "device-1")}, [2]int64{25, 0}},
		{"devices of every node", []metav1.Object{class, deviceSlice("a", 1), everywhere}, [2]int64{50, 0}},
		{"devices of a zone", []metav1.Object{class, inZone}, [2]int64{0, 50}},
		{"devices that say where they are", []metav1.Object{class, each}, [2]int64{50, 0}},
		{"devices of another class", []metav1.Object{none, deviceSlice("a", 4)}, [2]int64{0, 0}},
	} {
		t.Run(test.what, func(t *testing.T) {
			s := cluster(t, []*corev1.Node{testNode("a"), testNode("b", zone("z"))})
			for _, o := range test.objects {
				s.SetObject(o)
			}
			score := rule.(ScoreRule).Score(s, infoOf(t, testPod("p", asks(gpu, "1"))))
			if got := [2]int64{score.Of(0), score.Of(1)}; got != test.want {
				t.Errorf("scores %v, want %v", got, test.want)
			}
		})
	}
}

// waitingClaim is an allocated claim whose device has conditions; nil conditions are those of a driver that has told nothing.
func waitingClaim(name string, age time.Duration, conditions map[string]metav1.ConditionStatus) *resourcev1.ResourceClaim {
	claim := claimHolding(name, "a", "device-0")
	r := &claim.Status.Allocation.Devices.Results[0]
	r.BindingConditions, r.BindingFailureConditions = []string{"Attached", "Cool"}, []string{"Broken"}
	claim.Status.Allocation.AllocationTimestamp = &metav1.Time{Time: time.Now().Add(-age)}
	if conditions != nil {
		told := resourcev1.AllocatedDeviceStatus{Driver: r.Driver, Pool: r.Pool, Device: r.Device}
		for _, kind := range slices.Sorted(maps.Keys(conditions)) {
			told.Conditions = append(told.Conditions, metav1.Condition{Type: kind, Status: conditions[kind], Reason: "Because", Message: "so"})
		}
		claim.Status.Devices = []resourcev1.AllocatedDeviceStatus{told}
	}
	return claim
}

func TestDevicesReady(t *testing.T) {
	const yes, no = metav1.ConditionTrue, metav1.ConditionFalse
	type told = map[string]metav1.ConditionStatus
	unasked := waitingClaim("c", 0, nil)
	unasked.Status.Allocation.Devices.Results[0].BindingConditions = nil
	elsewhere := waitingClaim("c", 0, told{"Attached": yes, "Cool": yes})
	elsewhere.Status.Devices[0].Pool = "b"
	share := waitingClaim("c", 0, told{"Attached": yes, "Cool": yes})
	share.Status.Devices[0].ShareID = ptr.To("s")
	for _, test := range []struct {
		what   string
		claim  *resourcev1.ResourceClaim
		ready  bool
		failed bool
		usable bool
	}{
		{"no devices yet", deviceClaim("c", 1), false, false, true},
		{"no conditions", unasked, true, false, true},
		{"nothing told", waitingClaim("c", 0, nil), false, false, true},
		{"one of two", waitingClaim("c", 0, told{"Attached": yes}), false, false, true},
		{"one is false", waitingClaim("c", 0, told{"Attached": yes, "Cool": no}), false, false, true},
		{"all", waitingClaim("c", 0, told{"Attached": yes, "Cool": yes}), true, false, true},
		{"all, long ago", waitingClaim("c", time.Hour, told{"Attached": yes, "Cool": yes}), true, false, true},
		{"a failure", waitingClaim("c", 0, told{"Broken": yes}), false, true, false},
		{"a failure in spite of all", waitingClaim("c", 0, told{"Attached": yes, "Cool": yes, "Broken": yes}), false, true, false},
		{"no failure", waitingClaim("c", 0, told{"Attached": yes, "Cool": yes, "Broken": no}), true, false, true},
		{"too late", waitingClaim("c", 11*time.Minute, told{"Attached": yes}), false, false, false},
		{"not yet too late", waitingClaim("c", 9*time.Minute, told{"Attached": yes}), false, false, true},
		{"told of another pool", elsewhere, false, false, true},
		{"told of a share of it", share, false, false, true},
	} {
		t.Run(test.what, func(t *testing.T) {
			ready, err := devicesReady(test.claim)
			if ready != test.ready || errors.Is(err, errDevicesFailed) != test.failed {
				t.Errorf("ready %t, %v", ready, err)
			}
			rule, err := newDynamicResources(&configv1.DynamicResourcesArgs{})
			if err != nil {
				t.Fatal(err)
			}
			if got := rule.(*dynamicResources).usable(test.claim); got != test.usable {
				t.Errorf("usable is %t", got)
			}
		})
	}
}

func TestDynamicResourcesArguments(t *testing.T) {
	duration := func(d time.Duration) *metav1.Duration { return &metav1.Duration{Duration: d} }
	for _, test := range []struct {
		what string
		args configv1.DynamicResourcesArgs
		fail string
	}{
		{"none", configv1.DynamicResourcesArgs{}, ""},
		{"no limit to filtering", configv1.DynamicResourcesArgs{FilterTimeout: duration(0)}, ""},
		{"negative", configv1.DynamicResourcesArgs{FilterTimeout: duration(-1)}, "filterTimeout"},
		{"a second", configv1.DynamicResourcesArgs{BindingTimeout: duration(time.Second)}, ""},
		{"less than a second", configv1.DynamicResourcesArgs{BindingTimeout: duration(999 * time.Millisecond)}, "bindingTimeout"},
	} {
		if _, err := newDynamicResources(&test.args); (err != nil) != (test.fail != "") || err != nil && !strings.Contains(err.Error(), test.fail) {
			t.Errorf("%s: %v", test.what, err)
		}
	}
}
