package scheduler

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
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
	rule := newNodeResourcesFit(&configv1.NodeResourcesFitArgs{ScoringStrategy: &configv1.ScoringStrategy{
		Type: configv1.LeastAllocated, Resources: []configv1.ResourceSpec{{Name: string(gpu), Weight: 1}},
	}})
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
			if got := devicesRule(t).usable(test.claim); got != test.usable {
				t.Errorf("usable is %t", got)
			}
		})
	}
}

// extendedUse is a container that asks for some of a resource.
type extendedUse struct {
	kind  string // init, side or main
	count int64
}

// devicesNeeded is the model of what a pod needs at once: all that stays, and above that what the neediest init container lacks when
// it may use whatever later containers will have.
func devicesNeeded(uses []extendedUse) (total int64) {
	var extra int64
	for i, u := range uses {
		if u.kind != "init" {
			total += u.count
			continue
		}
		lacks := u.count
		for _, later := range uses[i+1:] {
			if later.kind != "init" {
				lacks -= later.count
			}
		}
		extra = max(extra, lacks)
	}
	return total + extra
}

// Random pods ask for just as many devices as they need, and every container is pointed to enough of them.
func TestExtendedRequestsAreAsTheModelSays(t *testing.T) {
	const seed = 51
	random := rand.New(rand.NewPCG(seed, 7))
	for round := range 2000 {
		pod := testPod("p")
		pod.Spec.Containers = nil
		var uses []extendedUse
		for range random.IntN(5) {
			uses = append(uses, extendedUse{[]string{"init", "side"}[random.IntN(2)], int64(random.IntN(4))})
		}
		for range 1 + random.IntN(2) {
			uses = append(uses, extendedUse{"main", int64(random.IntN(3))})
		}
		asked := map[string]int64{}
		for i, u := range uses {
			c := corev1.Container{Name: fmt.Sprint("c", i)}
			asked[c.Name] = u.count
			if u.count > 0 || random.IntN(2) == 0 {
				c.Resources.Requests = corev1.ResourceList{gpu: *resource.NewQuantity(u.count, resource.DecimalSI), corev1.ResourceCPU: resource.MustParse("1")}
			}
			switch u.kind {
			case "side":
				c.RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways)
				fallthrough
			case "init":
				pod.Spec.InitContainers = append(pod.Spec.InitContainers, c)
			default:
				pod.Spec.Containers = append(pod.Spec.Containers, c)
			}
		}
		requests, mappings := extendedRequests(pod, []classedResource{{name: gpu, class: classStandingFor("class", string(gpu), 0)}})
		counts, total := map[string]int64{}, int64(0)
		for _, r := range requests {
			if counts[r.Name] != 0 || r.Exactly.Count <= 0 || r.Exactly.DeviceClassName != "class" || r.Exactly.AllocationMode != resourcev1.DeviceAllocationModeExactCount {
				t.Fatalf("seed %d, round %d: request %+v of %v", seed, round, r, requests)
			}
			counts[r.Name] = r.Exactly.Count
			total += r.Exactly.Count
		}
		if want := devicesNeeded(uses); total != want {
			t.Fatalf("seed %d, round %d: %v needs %d, asks for %d: %v", seed, round, uses, want, total, counts)
		}
		pointed := map[string]int64{}
		for _, m := range mappings {
			if m.ResourceName != string(gpu) || counts[m.RequestName] == 0 {
				t.Fatalf("seed %d, round %d: mapping %+v to none of %v", seed, round, m, counts)
			}
			pointed[m.ContainerName] += counts[m.RequestName]
		}
		for name, n := range asked {
			if pointed[name] < n || n == 0 && pointed[name] > 0 {
				t.Fatalf("seed %d, round %d: %v: %s asks for %d and is pointed to %d: %v", seed, round, uses, name, n, pointed[name], mappings)
			}
		}
		if !slices.IsSortedFunc(requests, func(a, b resourcev1.DeviceRequest) int { return strings.Compare(a.Name, b.Name) }) {
			t.Fatalf("seed %d, round %d: requests are not in order: %v", seed, round, requests)
		}
	}
}

// Several resources of one pod: each has its requests, named by its place among all the container asks for.
func TestExtendedRequestsOfSeveralResources(t *testing.T) {
	const nic = corev1.ResourceName("example.com/nic")
	pod := testPod("p", asks(nic, "1"), asks(gpu, "2"), asksCPU("1"), asksMemory("1Gi"))
	pod.Spec.InitContainers = []corev1.Container{{Name: "i", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{nic: resource.MustParse("3")}}}}
	requests, mappings := extendedRequests(pod, []classedResource{{gpu, classStandingFor("gpus", "", 0)}, {nic, classStandingFor("nics", "", 0)}})
	var got []string
	for _, r := range requests {
		got = append(got, fmt.Sprintf("%s=%d of %s", r.Name, r.Exactly.Count, r.Exactly.DeviceClassName))
	}
	if want := "container-0-request-0=2 of nics, container-1-request-1=2 of gpus, container-1-request-2=1 of nics"; strings.Join(got, ", ") != want {
		t.Errorf("requests %s, want %s", strings.Join(got, ", "), want)
	}
	got = nil
	for _, m := range mappings {
		got = append(got, m.ContainerName+":"+m.ResourceName+":"+m.RequestName)
	}
	if want := "c:example.com/gpu:container-1-request-1 c:example.com/nic:container-1-request-2 i:example.com/nic:container-1-request-2 i:example.com/nic:container-0-request-0"; strings.Join(got, " ") != want {
		t.Errorf("mappings %s, want %s", strings.Join(got, " "), want)
	}
}

func TestAskedOf(t *testing.T) {
	for _, test := range []struct {
		quantity string
		want     int64
	}{{"", 0}, {"0", 0}, {"1", 1}, {"3", 3}, {"1k", 1000}, {"2Ki", 2048}, {"1500m", 0}, {"2000m", 0}, {"999999999999999999", 999999999999999999}} {
		c := &corev1.Container{}
		if test.quantity != "" {
			c.Resources.Requests = corev1.ResourceList{gpu: resource.MustParse(test.quantity)}
		}
		if got := askedOf(c, gpu); got != test.want {
			t.Errorf("%q: %d, want %d", test.quantity, got, test.want)
		}
	}
}

// What a pod needs on a node is what the node does not offer itself.
func TestExtendedOn(t *testing.T) {
	const nic = corev1.ResourceName("example.com/nic")
	const own = corev1.ResourceName("deviceclass.resource.kubernetes.io/nics")
	gpus, nics := classStandingFor("gpus", string(gpu), 0), classStandingFor("nics", string(nic), 0)
	both := testPod("p", asks(gpu, "1"), asks(nic, "2"))
	for _, test := range []struct {
		what    string
		classes objects
		node    *corev1.Node
		pod     *corev1.Pod
		want    string // classes of the claim, "-" for no claim, or the refusal
	}{
		{"neither is offered", objects{gpus, nics}, testNode("a"), both, "gpus nics"},
		{"one is offered", objects{gpus, nics}, testNode("a", nodeHas(gpu, "4")), both, "nics"},
		{"both are offered", objects{gpus, nics}, testNode("a", nodeHas(gpu, "4"), nodeHas(nic, "4")), both, "-"},
		{"offered, but none", objects{gpus, nics}, testNode("a", nodeHas(gpu, "0"), nodeHas(nic, "4")), both, "gpus"},
		{"offered, but too few, is the node's business", objects{gpus, nics}, testNode("a", nodeHas(gpu, "4"), nodeHas(nic, "1")), both, "-"},
		{"no class stands for one", objects{gpus}, testNode("a"), both, "cannot fit resource"},
		{"no class stands for one, which is offered", objects{gpus}, testNode("a", nodeHas(nic, "9")), both, "gpus"},
		{"no class stands for one, which is offered as none", objects{gpus}, testNode("a", nodeHas(nic, "0")), both, "gpus"},
		{"a class by its own name", objects{nics}, testNode("a"), testPod("p", asks(own, "1")), "nics"},
		{"a class by both its names", objects{nics}, testNode("a"), testPod("p", asks(own, "1"), asks(nic, "1")), "nics nics"},
		{"a class by its own name, which is missing", objects{gpus}, testNode("a"), testPod("p", asks(own, "1"), asks(gpu, "1")), "cannot fit resource"},
		{"none of one", objects{gpus, nics}, testNode("a"), testPod("p", asks(gpu, "0"), asks(nic, "1")), "nics"},
		{"resources that are not extended do not matter", objects{gpus}, testNode("a"), testPod("p", asks(gpu, "1"), asksCPU("1"), asks("hugepages-2Mi", "2Mi")), "gpus"},
	} {
		t.Run(test.what, func(t *testing.T) {
			s := knowing(t, []*corev1.Node{test.node}, test.classes)
			e := s.extendedDevices(infoOf(t, test.pod))
			claim, refusal := e.on(s, 0)
			got := "-"
			if refusal != nil {
				got = strings.Join(refusal.Reasons, ", ")
				if !refusal.Unresolvable || refusal.Rule != dynamicResourcesName {
					t.Errorf("refusal %+v", refusal)
				}
			} else if claim != nil {
				var classes []string
				for _, r := range claim.claim.Spec.Devices.Requests {
					classes = append(classes, r.Exactly.DeviceClassName)
				}
				got = strings.Join(classes, " ")
				c := claim.claim
				if c.Namespace != "default" || c.GenerateName != "p-extended-resources-" || !standsForExtended(c) || !metav1.IsControlledBy(c, test.pod) || c.OwnerReferences[0].Kind != "Pod" || c.OwnerReferences[0].APIVersion != "v1" || c.OwnerReferences[0].Name != "p" {
					t.Errorf("claim %+v", c.ObjectMeta)
				}
				if again, _ := e.on(s, 0); again != claim {
					t.Error("the claim is made twice")
				}
			}
			if got != test.want {
				t.Errorf("%q, want %q", got, test.want)
			}
		})
	}
}

func TestExtendedClaimOf(t *testing.T) {
	pod := testPod("p")
	for _, test := range []struct {
		what  string
		claim *resourcev1.ResourceClaim
		found bool
	}{
		{"made for it", devicesClaim("x", ownedBy("p"), standingForExtended), true},
		{"made for another", devicesClaim("x", ownedBy("q"), standingForExtended), false},
		{"its own, for something else", devicesClaim("x", ownedBy("p")), false},
		{"not its controller", devicesClaim("x", ownedBy("p"), standingForExtended, func(c *resourcev1.ResourceClaim) { c.OwnerReferences[0].Controller = nil }), false},
		{"nobody's", devicesClaim("x", standingForExtended), false},
		{"said not to be", devicesClaim("x", ownedBy("p"), func(c *resourcev1.ResourceClaim) {
			c.Annotations = map[string]string{resourcev1.ExtendedResourceClaimAnnotation: "false"}
		}), false},
	} {
		d := newDeviceObjects()
		d.set(devicesClaim("other", ownedBy("q"), standingForExtended))
		d.set(test.claim)
		if got := d.extendedClaimOf(pod); (got != nil) != test.found {
			t.Errorf("%s: found %v", test.what, got)
		}
	}
}

// A device is of a class when all the class's selectors say so.
func TestDeviceMatches(t *testing.T) {
	device := &resourcev1.Device{Name: "d", Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{"model": {StringValue: ptr.To("large")}, "other.com/size": {IntValue: ptr.To(int64(3))}},
		Capacity: map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{"memory": {Value: resource.MustParse("4Gi")}}}
	for _, test := range []struct {
		what        string
		expressions []string
		want        bool
	}{
		{"no selector", nil, true},
		{"the driver", []string{`device.driver == "example.com"`}, true},
		{"another driver", []string{`device.driver == "other.com"`}, false},
		{"an attribute of the driver's", []string{modelIs("large")}, true},
		{"another value", []string{modelIs("small")}, false},
		{"an attribute of somebody else's", []string{`device.attributes["other.com"].size > 2`}, true},
		{"a capacity", []string{`device.capacity["example.com"].memory.compareTo(quantity("4Gi")) >= 0`}, true},
		{"more than the capacity", []string{`device.capacity["example.com"].memory.compareTo(quantity("5Gi")) >= 0`}, false},
		{"both of two", []string{modelIs("large"), `device.driver == "example.com"`}, true},
		{"one of two", []string{modelIs("large"), `device.driver == "other.com"`}, false},
		{"one that cannot be read", []string{`device.`}, false},
		{"one that fails", []string{`device.attributes["example.com"].missing == "x"`}, false},
		{"one that asks before", []string{`"missing" in device.attributes["example.com"]`}, false},
	} {
		d := newDeviceObjects()
		if got := d.matches(deviceClass("class", test.expressions...), "example.com", device); got != test.want {
			t.Errorf("%s: %t", test.what, got)
		}
	}
	d := newDeviceObjects()
	if !d.matches(&resourcev1.DeviceClass{Spec: resourcev1.DeviceClassSpec{Selectors: []resourcev1.DeviceSelector{{}}}}, "example.com", device) {
		t.Error("a selector of a kind we do not know keeps devices out")
	}
}

// Devices are counted on nodes as a look at every device for every node would: by name, by labels, everywhere, as the slice or the device says.
func TestDeviceCountsAreAsTheModelSays(t *testing.T) {
	const seed = 71
	class := deviceClass("class", modelIs("large"))
	inZone := func(z string) *corev1.NodeSelector {
		return &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{expression(corev1.LabelTopologyZone, corev1.NodeSelectorOpIn, z)}}
	}
	for round := range 60 {
		random := rand.New(rand.NewPCG(seed, uint64(round)))
		s := cluster(t, []*corev1.Node{testNode("a", zone("0")), testNode("b", zone("1")), testNode("c", zone("1")), testNode("d")})
		zones := []string{"0", "1", "1", "-"}
		want := make([]deviceCount, 4)
		place := func() (name *string, selector *corev1.NodeSelector, all *bool, on func(node int) bool) {
			switch n := random.IntN(4); random.IntN(3) {
			case 0:
				return ptr.To(string("abcd"[n])), nil, nil, func(node int) bool { return node == n }
			case 1:
				z := fmt.Sprint(n % 3) // no node is in zone 2
				return nil, inZone(z), nil, func(node int) bool { return zones[node] == z }
			}
			return nil, nil, ptr.To(true), func(int) bool { return true }
		}
		holder := claimHolding("holder", "none")
		for i := range random.IntN(4) {
			slice := modelSlice(fmt.Sprint("pool", i), []string{"large", "small", "large", "large"}[:random.IntN(5)]...)
			var on func(int) bool
			slice.Spec.NodeName, slice.Spec.NodeSelector, slice.Spec.AllNodes, on = place()
			each := random.IntN(2) == 0
			if each {
				slice.Spec.NodeName, slice.Spec.NodeSelector, slice.Spec.AllNodes, slice.Spec.PerDeviceNodeSelection = nil, nil, nil, ptr.To(true)
			}
			for j := range slice.Spec.Devices {
				device := &slice.Spec.Devices[j]
				if each {
					device.NodeName, device.NodeSelector, device.AllNodes, on = place()
				}
				taken := random.IntN(2) == 0
				if taken {
					holds("r", slice.Spec.Pool.Name, device.Name)(holder)
				}
				for node := range want {
					if on(node) && *device.Attributes["model"].StringValue == "large" {
						want[node].all++
						if taken {
							want[node].taken++
						}
					}
				}
			}
			s.SetObject(slice)
		}
		s.SetObject(holder)
		count := s.countDevices(class)
		for node := range want {
			if got := count(s.nodeNumber[string("abcd"[node])]); got != want[node] {
				t.Fatalf("seed %d, round %d: %+v on node %d, want %+v", seed, round, got, node, want[node])
			}
		}
	}
}

// Classes stand for what pods ask some of.
func TestStandFor(t *testing.T) {
	d := newDeviceObjects()
	d.set(classStandingFor("class", string(gpu), 0))
	for _, test := range []struct {
		rule    string
		amounts []Amount
		want    bool
	}{
		{"nothing is asked", nil, false}, {"none of it is asked", []Amount{{Resource: gpu}}, false}, {"some of it", []Amount{{Resource: gpu, Value: 1}}, true},
		{"something else", []Amount{{Resource: "example.com/nic", Value: 1}}, false}, {"it among others", []Amount{{Resource: "example.com/nic", Value: 1}, {Resource: gpu, Value: 2}}, true},
		{"the class by its own name", []Amount{{Resource: "deviceclass.resource.kubernetes.io/class", Value: 1}}, true},
		{"a class that is not there", []Amount{{Resource: "deviceclass.resource.kubernetes.io/other", Value: 1}}, false},
	} {
		if got := d.standFor(test.amounts); got != test.want {
			t.Errorf("%s: %t", test.rule, got)
		}
	}
}
