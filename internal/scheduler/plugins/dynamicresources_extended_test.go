package plugins

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

	"skiff/internal/scheduler/schedulertest"
	"skiff/internal/scheduler/snapshot"
	"skiff/internal/scheduler/snapshot/snapshottest"
)

func TestClassFor(t *testing.T) {
	for _, test := range []struct {
		what, resource string
		classes        []*resourcev1.DeviceClass
		want           string
	}{
		{"no class", "example.com/gpu", nil, ""},
		{"a class for nothing", "example.com/gpu", []*resourcev1.DeviceClass{schedulertest.ClassForExtendedResource("a", "", 0)}, ""},
		{"a class for it", "example.com/gpu", []*resourcev1.DeviceClass{schedulertest.ClassForExtendedResource("a", "example.com/gpu", 0)}, "a"},
		{"a class for another", "example.com/gpu", []*resourcev1.DeviceClass{schedulertest.ClassForExtendedResource("a", "example.com/nic", 0)}, ""},
		{"the newer of two", "example.com/gpu", []*resourcev1.DeviceClass{schedulertest.ClassForExtendedResource("a", "example.com/gpu", time.Hour), schedulertest.ClassForExtendedResource("b", "example.com/gpu", 0)}, "b"},
		{"of the same age, the first by name", "example.com/gpu", []*resourcev1.DeviceClass{schedulertest.ClassForExtendedResource("b", "example.com/gpu", 0), schedulertest.ClassForExtendedResource("a", "example.com/gpu", 0)}, "a"},
		{"its own name", "deviceclass.resource.kubernetes.io/a", []*resourcev1.DeviceClass{schedulertest.ClassForExtendedResource("a", "example.com/gpu", 0)}, "a"},
		{"the own name of a class that is not there", "deviceclass.resource.kubernetes.io/b", []*resourcev1.DeviceClass{schedulertest.ClassForExtendedResource("a", "", 0)}, ""},
		{"a resource of nodes", "cpu", []*resourcev1.DeviceClass{schedulertest.ClassForExtendedResource("a", "example.com/gpu", 0)}, ""},
	} {
		t.Run(test.what, func(t *testing.T) {
			d := snapshot.NewDeviceObjects()
			for _, class := range test.classes {
				d.SetObject(class)
			}
			got := ""
			if class := d.ClassFor(corev1.ResourceName(test.resource)); class != nil {
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
	stale := schedulertest.DeviceClaim("old", 1)
	stale.Annotations = map[string]string{resourcev1.ExtendedResourceClaimAnnotation: "true"}
	stale.OwnerReferences = []metav1.OwnerReference{{Kind: "Pod", Name: "p", UID: "p", Controller: ptr.To(true)}}
	other := stale.DeepCopy()
	other.OwnerReferences[0].UID = "q"
	standing := schedulertest.ClassForExtendedResource("class", "example.com/gpu", 0)
	// Node a offers two itself; b has two devices, c one and d none.
	for what, test := range map[string]struct {
		objects []metav1.Object
		running []*corev1.Pod
		pod     *corev1.Pod
		want    map[string]string
	}{
		"no class": {
			pod: schedulertest.TestPod("p", schedulertest.Requesting(schedulertest.Gpu, "1")), want: map[string]string{"b": elsewhere, "c": elsewhere, "d": elsewhere},
		},
		"a class": {
			objects: []metav1.Object{standing}, pod: schedulertest.TestPod("p", schedulertest.Requesting(schedulertest.Gpu, "1")), want: map[string]string{"d": "cannot allocate all claims"},
		},
		"more than there are": {
			objects: []metav1.Object{standing}, pod: schedulertest.TestPod("p", schedulertest.Requesting(schedulertest.Gpu, "2")), want: map[string]string{"c": "cannot allocate all claims", "d": "cannot allocate all claims"},
		},
		"more than anybody has": {
			objects: []metav1.Object{standing}, pod: schedulertest.TestPod("p", schedulertest.Requesting(schedulertest.Gpu, "3")),
			want: map[string]string{"a": elsewhere, "b": "cannot allocate all claims", "c": "cannot allocate all claims", "d": "cannot allocate all claims"},
		},
		"nothing at all": {
			objects: []metav1.Object{standing}, pod: schedulertest.TestPod("p", schedulertest.Requesting(schedulertest.Gpu, "0")), want: map[string]string{},
		},
		"taken by a claim": {
			objects: []metav1.Object{standing, schedulertest.AllocatedClaim("x", "c", "device-0")}, pod: schedulertest.TestPod("p", schedulertest.Requesting(schedulertest.Gpu, "1")),
			want: map[string]string{"c": "cannot allocate all claims", "d": "cannot allocate all claims"},
		},
		"nodes that offer it count themselves": {
			objects: []metav1.Object{standing}, running: []*corev1.Pod{schedulertest.TestPod("1", schedulertest.OnNode("a"), schedulertest.Requesting(schedulertest.Gpu, "2"))}, pod: schedulertest.TestPod("p", schedulertest.Requesting(schedulertest.Gpu, "1")),
			want: map[string]string{"a": elsewhere, "d": "cannot allocate all claims"},
		},
		"the class's own name": {
			objects: []metav1.Object{schedulertest.ClassForExtendedResource("class", "", 0)}, pod: schedulertest.TestPod("p", schedulertest.Requesting("deviceclass.resource.kubernetes.io/class", "2")),
			want: map[string]string{"a": "cannot allocate all claims", "c": "cannot allocate all claims", "d": "cannot allocate all claims"},
		},
		"a resource nobody stands for": {
			objects: []metav1.Object{standing}, pod: schedulertest.TestPod("p", schedulertest.Requesting(schedulertest.Gpu, "1"), schedulertest.Requesting("example.com/nic", "1")),
			want: map[string]string{"a": "Insufficient example.com/nic", "b": "Insufficient example.com/nic", "c": "Insufficient example.com/nic", "d": "Insufficient example.com/nic"},
		},
		"beside a claim of its own": {
			objects: []metav1.Object{standing, schedulertest.DeviceClaim("claim", 1)}, pod: schedulertest.TestPod("p", schedulertest.Requesting(schedulertest.Gpu, "1"), schedulertest.Claiming("claim")),
			want: map[string]string{"a": "cannot allocate all claims", "c": "cannot allocate all claims", "d": "cannot allocate all claims"},
		},
		"a claim of an earlier attempt": {
			objects: []metav1.Object{standing, stale}, pod: schedulertest.TestPod("p", schedulertest.Requesting(schedulertest.Gpu, "1")),
			want: map[string]string{"a": staleExtendedClaim.Reasons[0], "b": staleExtendedClaim.Reasons[0], "c": staleExtendedClaim.Reasons[0], "d": staleExtendedClaim.Reasons[0]},
		},
		"another pod's claim": {
			objects: []metav1.Object{standing, other}, pod: schedulertest.TestPod("p", schedulertest.Requesting(schedulertest.Gpu, "1")), want: map[string]string{"d": "cannot allocate all claims"},
		},
	} {
		t.Run(what, func(t *testing.T) {
			s := snapshottest.New(t, []*corev1.Node{schedulertest.TestNode("a", schedulertest.NodeHas(schedulertest.Gpu, "2")), schedulertest.TestNode("b"), schedulertest.TestNode("c", schedulertest.NodeHas(schedulertest.Gpu, "0")), schedulertest.TestNode("d")}, test.running...)
			s.SetObject(schedulertest.DeviceSlice("b", 2))
			s.SetObject(schedulertest.DeviceSlice("c", 1))
			for _, o := range test.objects {
				s.SetObject(o)
			}
			if got := filterReasons(t, s, test.pod, DefaultProfile()); !maps.Equal(got, test.want) {
				t.Errorf("refused %v, want %v", got, test.want)
			}
		})
	}
}

// What is remembered of a kind of pod must not outlive a change of the classes.
func TestClassesComeAndGo(t *testing.T) {
	s := snapshottest.New(t, []*corev1.Node{schedulertest.TestNode("a")})
	s.SetObject(schedulertest.DeviceSlice("a", 1))
	class := schedulertest.ClassForExtendedResource("class", "example.com/gpu", 0)
	for round := range 3 {
		if got := filterReasons(t, s, schedulertest.TestPod("p", schedulertest.Requesting(schedulertest.Gpu, "1")), DefaultProfile()); got["a"] == "" {
			t.Fatalf("round %d: fits without a class", round)
		}
		s.SetObject(class)
		if got := filterReasons(t, s, schedulertest.TestPod("p", schedulertest.Requesting(schedulertest.Gpu, "1")), DefaultProfile()); len(got) != 0 {
			t.Fatalf("round %d: refused with a class: %v", round, got)
		}
		s.DeleteObject(class)
	}
}

func TestExtendedRequests(t *testing.T) {
	class := schedulertest.ClassForExtendedResource("class", "example.com/gpu", 0)
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
			pod := schedulertest.TestPod("p")
			made := func(c container) corev1.Container {
				made := corev1.Container{Name: c.name, Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}}}
				if c.count != "" {
					made.Resources.Requests[schedulertest.Gpu] = resource.MustParse(c.count)
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
			requests, mappings := extendedRequests(pod, []extendedResource{{name: schedulertest.Gpu, class: class}})
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
		Type: configv1.LeastAllocated, Resources: []configv1.ResourceSpec{{Name: string(schedulertest.Gpu), Weight: 1}},
	}})
	everywhere := schedulertest.DeviceSlice("shared", 1)
	everywhere.Spec.NodeName, everywhere.Spec.AllNodes = nil, ptr.To(true)
	inZone := schedulertest.DeviceSlice("zoned", 2)
	inZone.Spec.NodeName = nil
	inZone.Spec.NodeSelector = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{schedulertest.Expression(corev1.LabelTopologyZone, corev1.NodeSelectorOpIn, "z")}}
	each := schedulertest.DeviceSlice("each", 2)
	each.Spec.NodeName, each.Spec.PerDeviceNodeSelection = nil, ptr.To(true)
	each.Spec.Devices[0].NodeName, each.Spec.Devices[1].AllNodes = ptr.To("a"), ptr.To(true)
	none := schedulertest.ClassForExtendedResource("class", string(schedulertest.Gpu), 0)
	none.Spec.Selectors = []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{Expression: `device.driver == "other"`}}}
	class := schedulertest.ClassForExtendedResource("class", string(schedulertest.Gpu), 0)
	for _, test := range []struct {
		what    string
		objects []metav1.Object
		want    [2]int64 // of nodes a and b; b is in zone z
	}{
		{"no class", []metav1.Object{schedulertest.DeviceSlice("a", 4)}, [2]int64{0, 0}},
		{"devices of one node", []metav1.Object{class, schedulertest.DeviceSlice("a", 4)}, [2]int64{75, 0}},
		{"some are taken", []metav1.Object{class, schedulertest.DeviceSlice("a", 4), schedulertest.AllocatedClaim("x", "a", "device-0", "device-1")}, [2]int64{25, 0}},
		{"devices of every node", []metav1.Object{class, schedulertest.DeviceSlice("a", 1), everywhere}, [2]int64{50, 0}},
		{"devices of a zone", []metav1.Object{class, inZone}, [2]int64{0, 50}},
		{"devices that say where they are", []metav1.Object{class, each}, [2]int64{50, 0}},
		{"devices of another class", []metav1.Object{none, schedulertest.DeviceSlice("a", 4)}, [2]int64{0, 0}},
	} {
		t.Run(test.what, func(t *testing.T) {
			s := snapshottest.New(t, []*corev1.Node{schedulertest.TestNode("a"), schedulertest.TestNode("b", schedulertest.Zone("z"))})
			for _, o := range test.objects {
				s.SetObject(o)
			}
			score := rule.(ScorePlugin).Score(s, snapshottest.PodInfo(t, schedulertest.TestPod("p", schedulertest.Requesting(schedulertest.Gpu, "1"))))
			if got := [2]int64{score.Score(0), score.Score(1)}; got != test.want {
				t.Errorf("scores %v, want %v", got, test.want)
			}
		})
	}
}

// waitingClaim is an allocated claim whose device has conditions; nil conditions are those of a driver that has told nothing.
func waitingClaim(name string, age time.Duration, conditions map[string]metav1.ConditionStatus) *resourcev1.ResourceClaim {
	claim := schedulertest.AllocatedClaim(name, "a", "device-0")
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
		{"no devices yet", schedulertest.DeviceClaim("c", 1), false, false, true},
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
			ready, err := BindingConditionsMet(test.claim)
			if ready != test.ready || errors.Is(err, ErrDeviceBindingFailed) != test.failed {
				t.Errorf("ready %t, %v", ready, err)
			}
			if got := devicesRule(t).devicesUsable(test.claim); got != test.usable {
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
		pod := schedulertest.TestPod("p")
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
				c.Resources.Requests = corev1.ResourceList{schedulertest.Gpu: *resource.NewQuantity(u.count, resource.DecimalSI), corev1.ResourceCPU: resource.MustParse("1")}
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
		requests, mappings := extendedRequests(pod, []extendedResource{{name: schedulertest.Gpu, class: schedulertest.ClassForExtendedResource("class", string(schedulertest.Gpu), 0)}})
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
			if m.ResourceName != string(schedulertest.Gpu) || counts[m.RequestName] == 0 {
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
	pod := schedulertest.TestPod("p", schedulertest.Requesting(nic, "1"), schedulertest.Requesting(schedulertest.Gpu, "2"), schedulertest.RequestingCPU("1"), schedulertest.RequestingMemory("1Gi"))
	pod.Spec.InitContainers = []corev1.Container{{Name: "i", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{nic: resource.MustParse("3")}}}}
	requests, mappings := extendedRequests(pod, []extendedResource{{schedulertest.Gpu, schedulertest.ClassForExtendedResource("gpus", "", 0)}, {nic, schedulertest.ClassForExtendedResource("nics", "", 0)}})
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
			c.Resources.Requests = corev1.ResourceList{schedulertest.Gpu: resource.MustParse(test.quantity)}
		}
		if got := requestedOf(c, schedulertest.Gpu); got != test.want {
			t.Errorf("%q: %d, want %d", test.quantity, got, test.want)
		}
	}
}

// What a pod needs on a node is what the node does not offer itself.
func TestExtendedOn(t *testing.T) {
	const nic = corev1.ResourceName("example.com/nic")
	const own = corev1.ResourceName("deviceclass.resource.kubernetes.io/nics")
	gpus, nics := schedulertest.ClassForExtendedResource("gpus", string(schedulertest.Gpu), 0), schedulertest.ClassForExtendedResource("nics", string(nic), 0)
	both := schedulertest.TestPod("p", schedulertest.Requesting(schedulertest.Gpu, "1"), schedulertest.Requesting(nic, "2"))
	for _, test := range []struct {
		what    string
		classes schedulertest.Objects
		node    *corev1.Node
		pod     *corev1.Pod
		want    string // classes of the claim, "-" for no claim, or the refusal
	}{
		{"neither is offered", schedulertest.Objects{gpus, nics}, schedulertest.TestNode("a"), both, "gpus nics"},
		{"one is offered", schedulertest.Objects{gpus, nics}, schedulertest.TestNode("a", schedulertest.NodeHas(schedulertest.Gpu, "4")), both, "nics"},
		{"both are offered", schedulertest.Objects{gpus, nics}, schedulertest.TestNode("a", schedulertest.NodeHas(schedulertest.Gpu, "4"), schedulertest.NodeHas(nic, "4")), both, "-"},
		{"offered, but none", schedulertest.Objects{gpus, nics}, schedulertest.TestNode("a", schedulertest.NodeHas(schedulertest.Gpu, "0"), schedulertest.NodeHas(nic, "4")), both, "gpus"},
		{"offered, but too few, is the node's business", schedulertest.Objects{gpus, nics}, schedulertest.TestNode("a", schedulertest.NodeHas(schedulertest.Gpu, "4"), schedulertest.NodeHas(nic, "1")), both, "-"},
		{"no class stands for one", schedulertest.Objects{gpus}, schedulertest.TestNode("a"), both, "cannot fit resource"},
		{"no class stands for one, which is offered", schedulertest.Objects{gpus}, schedulertest.TestNode("a", schedulertest.NodeHas(nic, "9")), both, "gpus"},
		{"no class stands for one, which is offered as none", schedulertest.Objects{gpus}, schedulertest.TestNode("a", schedulertest.NodeHas(nic, "0")), both, "gpus"},
		{"a class by its own name", schedulertest.Objects{nics}, schedulertest.TestNode("a"), schedulertest.TestPod("p", schedulertest.Requesting(own, "1")), "nics"},
		{"a class by both its names", schedulertest.Objects{nics}, schedulertest.TestNode("a"), schedulertest.TestPod("p", schedulertest.Requesting(own, "1"), schedulertest.Requesting(nic, "1")), "nics nics"},
		{"a class by its own name, which is missing", schedulertest.Objects{gpus}, schedulertest.TestNode("a"), schedulertest.TestPod("p", schedulertest.Requesting(own, "1"), schedulertest.Requesting(schedulertest.Gpu, "1")), "cannot fit resource"},
		{"none of one", schedulertest.Objects{gpus, nics}, schedulertest.TestNode("a"), schedulertest.TestPod("p", schedulertest.Requesting(schedulertest.Gpu, "0"), schedulertest.Requesting(nic, "1")), "nics"},
		{"resources that are not extended do not matter", schedulertest.Objects{gpus}, schedulertest.TestNode("a"), schedulertest.TestPod("p", schedulertest.Requesting(schedulertest.Gpu, "1"), schedulertest.RequestingCPU("1"), schedulertest.Requesting("hugepages-2Mi", "2Mi")), "gpus"},
	} {
		t.Run(test.what, func(t *testing.T) {
			s := knowing(t, []*corev1.Node{test.node}, test.classes)
			e := newExtendedDevices(s, snapshottest.PodInfo(t, test.pod))
			claim, refusal := e.claimOn(s, 0)
			got := "-"
			if refusal != nil {
				got = strings.Join(refusal.Reasons, ", ")
				if !refusal.Unresolvable || refusal.Plugin != DynamicResourcesName {
					t.Errorf("refusal %+v", refusal)
				}
			} else if claim != nil {
				var classes []string
				for _, r := range claim.Claim.Spec.Devices.Requests {
					classes = append(classes, r.Exactly.DeviceClassName)
				}
				got = strings.Join(classes, " ")
				c := claim.Claim
				if c.Namespace != "default" || c.GenerateName != "p-extended-resources-" || !snapshot.IsExtendedResourceClaim(c) || !metav1.IsControlledBy(c, test.pod) || c.OwnerReferences[0].Kind != "Pod" || c.OwnerReferences[0].APIVersion != "v1" || c.OwnerReferences[0].Name != "p" {
					t.Errorf("claim %+v", c.ObjectMeta)
				}
				if again, _ := e.claimOn(s, 0); again != claim {
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
	pod := schedulertest.TestPod("p")
	for _, test := range []struct {
		what  string
		claim *resourcev1.ResourceClaim
		found bool
	}{
		{"made for it", schedulertest.DevicesClaim("x", schedulertest.OwnedBy("p"), schedulertest.ExtendedResourceClaim), true},
		{"made for another", schedulertest.DevicesClaim("x", schedulertest.OwnedBy("q"), schedulertest.ExtendedResourceClaim), false},
		{"its own, for something else", schedulertest.DevicesClaim("x", schedulertest.OwnedBy("p")), false},
		{"not its controller", schedulertest.DevicesClaim("x", schedulertest.OwnedBy("p"), schedulertest.ExtendedResourceClaim, func(c *resourcev1.ResourceClaim) { c.OwnerReferences[0].Controller = nil }), false},
		{"nobody's", schedulertest.DevicesClaim("x", schedulertest.ExtendedResourceClaim), false},
		{"said not to be", schedulertest.DevicesClaim("x", schedulertest.OwnedBy("p"), func(c *resourcev1.ResourceClaim) {
			c.Annotations = map[string]string{resourcev1.ExtendedResourceClaimAnnotation: "false"}
		}), false},
	} {
		d := snapshot.NewDeviceObjects()
		d.SetObject(schedulertest.DevicesClaim("other", schedulertest.OwnedBy("q"), schedulertest.ExtendedResourceClaim))
		d.SetObject(test.claim)
		if got := d.ExtendedClaimOf(pod); (got != nil) != test.found {
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
		{"an attribute of the driver's", []string{schedulertest.ModelIs("large")}, true},
		{"another value", []string{schedulertest.ModelIs("small")}, false},
		{"an attribute of somebody else's", []string{`device.attributes["other.com"].size > 2`}, true},
		{"a capacity", []string{`device.capacity["example.com"].memory.compareTo(quantity("4Gi")) >= 0`}, true},
		{"more than the capacity", []string{`device.capacity["example.com"].memory.compareTo(quantity("5Gi")) >= 0`}, false},
		{"both of two", []string{schedulertest.ModelIs("large"), `device.driver == "example.com"`}, true},
		{"one of two", []string{schedulertest.ModelIs("large"), `device.driver == "other.com"`}, false},
		{"one that cannot be read", []string{`device.`}, false},
		{"one that fails", []string{`device.attributes["example.com"].missing == "x"`}, false},
		{"one that asks before", []string{`"missing" in device.attributes["example.com"]`}, false},
	} {
		d := snapshot.NewDeviceObjects()
		if got := d.Matches(schedulertest.DeviceClass("class", test.expressions...), "example.com", device); got != test.want {
			t.Errorf("%s: %t", test.what, got)
		}
	}
	d := snapshot.NewDeviceObjects()
	if !d.Matches(&resourcev1.DeviceClass{Spec: resourcev1.DeviceClassSpec{Selectors: []resourcev1.DeviceSelector{{}}}}, "example.com", device) {
		t.Error("a selector of a kind we do not know keeps devices out")
	}
}

// Devices are counted on nodes as a look at every device for every node would: by name, by labels, everywhere, as the slice or the device says.
func TestDeviceCountsAreAsTheModelSays(t *testing.T) {
	const seed = 71
	class := schedulertest.DeviceClass("class", schedulertest.ModelIs("large"))
	inZone := func(z string) *corev1.NodeSelector {
		return &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{schedulertest.Expression(corev1.LabelTopologyZone, corev1.NodeSelectorOpIn, z)}}
	}
	for round := range 60 {
		random := rand.New(rand.NewPCG(seed, uint64(round)))
		s := snapshottest.New(t, []*corev1.Node{schedulertest.TestNode("a", schedulertest.Zone("0")), schedulertest.TestNode("b", schedulertest.Zone("1")), schedulertest.TestNode("c", schedulertest.Zone("1")), schedulertest.TestNode("d")})
		zones := []string{"0", "1", "1", "-"}
		want := make([]snapshot.DeviceCount, 4)
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
		holder := schedulertest.AllocatedClaim("holder", "none")
		for i := range random.IntN(4) {
			slice := schedulertest.ModelSlice(fmt.Sprint("pool", i), []string{"large", "small", "large", "large"}[:random.IntN(5)]...)
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
					schedulertest.AllocatedDevice("r", slice.Spec.Pool.Name, device.Name)(holder)
				}
				for node := range want {
					if on(node) && *device.Attributes["model"].StringValue == "large" {
						want[node].Total++
						if taken {
							want[node].Allocated++
						}
					}
				}
			}
			s.SetObject(slice)
		}
		s.SetObject(holder)
		count := s.CountDevices(class)
		for node := range want {
			if got := count(s.NodeNumbers[string("abcd"[node])]); got != want[node] {
				t.Fatalf("seed %d, round %d: %+v on node %d, want %+v", seed, round, got, node, want[node])
			}
		}
	}
}

// Classes stand for what pods ask some of.
func TestStandFor(t *testing.T) {
	d := snapshot.NewDeviceObjects()
	d.SetObject(schedulertest.ClassForExtendedResource("class", string(schedulertest.Gpu), 0))
	for _, test := range []struct {
		rule    string
		amounts []snapshot.Amount
		want    bool
	}{
		{"nothing is asked", nil, false}, {"none of it is asked", []snapshot.Amount{{Resource: schedulertest.Gpu}}, false}, {"some of it", []snapshot.Amount{{Resource: schedulertest.Gpu, Value: 1}}, true},
		{"something else", []snapshot.Amount{{Resource: "example.com/nic", Value: 1}}, false}, {"it among others", []snapshot.Amount{{Resource: "example.com/nic", Value: 1}, {Resource: schedulertest.Gpu, Value: 2}}, true},
		{"the class by its own name", []snapshot.Amount{{Resource: "deviceclass.resource.kubernetes.io/class", Value: 1}}, true},
		{"a class that is not there", []snapshot.Amount{{Resource: "deviceclass.resource.kubernetes.io/other", Value: 1}}, false},
	} {
		if got := d.HasClassFor(test.amounts); got != test.want {
			t.Errorf("%s: %t", test.rule, got)
		}
	}
}
