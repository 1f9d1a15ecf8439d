package snapshot

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"skiff/internal/resourcename"
	"skiff/internal/scheduler/schedulertest"
)

// podStatus adds what a container was given, and what it has; of memory nothing.
func podStatus(container, allocated, has string) schedulertest.PodOption {
	return func(p *corev1.Pod) {
		c := corev1.ContainerStatus{Name: container}
		if allocated != "" {
			c.AllocatedResources = schedulertest.ParseResources(allocated + " memory=0")
		}
		if has != "" {
			c.Resources = &corev1.ResourceRequirements{Requests: schedulertest.ParseResources(has + " memory=0")}
		}
		if container[0] == 'c' {
			p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, c)
		} else {
			p.Status.InitContainerStatuses = append(p.Status.InitContainerStatuses, c)
		}
	}
}

// podResize is a resize that waits, and why.
func podResize(reason string) schedulertest.PodOption {
	return func(p *corev1.Pod) {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodResizePending, Status: corev1.ConditionTrue, Reason: reason}}
	}
}

// podWholeStatus is what a pod as a whole was given, and what it has.
func podWholeStatus(allocated, has string) schedulertest.PodOption {
	return func(p *corev1.Pod) {
		p.Status.AllocatedResources = schedulertest.ParseResources(allocated)
		if has != "" {
			p.Status.Resources = &corev1.ResourceRequirements{Requests: schedulertest.ParseResources(has)}
		}
	}
}

const podMi = 1 << 20

func TestRequestOf(t *testing.T) {
	for _, test := range []struct {
		what    string
		running bool
		pod     *corev1.Pod
		want    Request
	}{
		{"no containers", false, schedulertest.PodWithoutContainers("p"), Request{}},
		{"a container that asks for nothing is taken to use something", false, schedulertest.PodWithoutContainers("p", schedulertest.AddContainer("c", "")), Request{NonZeroMilliCPU: 100, NonZeroMemory: 200 * podMi}},
		{"asking for nothing in so many words", false, schedulertest.PodWithoutContainers("p", schedulertest.AddContainer("c", "cpu=0 memory=0")), Request{}},
		{"CPU alone", false, schedulertest.PodWithoutContainers("p", schedulertest.AddContainer("c", "cpu=250m")), Request{MilliCPU: 250, NonZeroMilliCPU: 250, NonZeroMemory: 200 * podMi}},
		{"memory alone", false, schedulertest.PodWithoutContainers("p", schedulertest.AddContainer("c", "memory=64Mi")), Request{Memory: 64 * podMi, NonZeroMilliCPU: 100, NonZeroMemory: 64 * podMi}},
		{"storage alone", false, schedulertest.PodWithoutContainers("p", schedulertest.AddContainer("c", "ephemeral-storage=1Mi")), Request{Storage: podMi, NonZeroMilliCPU: 100, NonZeroMemory: 200 * podMi}},
		{"less than a thousandth of a CPU is a thousandth", false, schedulertest.PodWithoutContainers("p", schedulertest.AddContainer("c", "cpu=100u")), Request{MilliCPU: 1, NonZeroMilliCPU: 1, NonZeroMemory: 200 * podMi}},
		{"containers add up", false, schedulertest.PodWithoutContainers("p", schedulertest.AddContainer("c", "cpu=1 memory=1Mi ephemeral-storage=3"), schedulertest.AddContainer("c2", "cpu=2 memory=2Mi ephemeral-storage=4")), Request{MilliCPU: 3000, Memory: 3 * podMi, Storage: 7, NonZeroMilliCPU: 3000, NonZeroMemory: 3 * podMi}},
		{"each container that leaves something out is taken to use it", false, schedulertest.PodWithoutContainers("p", schedulertest.AddContainer("c", "cpu=1"), schedulertest.AddContainer("c2", "memory=1Mi"), schedulertest.AddContainer("c3", "")), Request{MilliCPU: 1000, Memory: podMi, NonZeroMilliCPU: 1200, NonZeroMemory: 401 * podMi}},
		{"parts of a byte are rounded up together", false, schedulertest.PodWithoutContainers("p", schedulertest.AddContainer("c", "memory=1500m ephemeral-storage=2500m"), schedulertest.AddContainer("c2", "memory=1500m ephemeral-storage=2500m")), Request{Memory: 3, Storage: 5, NonZeroMilliCPU: 200, NonZeroMemory: 3}},
		{"parts of a byte of memory alone", false, schedulertest.PodWithoutContainers("p", schedulertest.AddContainer("c", "memory=1500m"), schedulertest.AddContainer("c2", "memory=1500m")), Request{Memory: 3, NonZeroMilliCPU: 200, NonZeroMemory: 3}},
		{"parts of a byte of storage alone", false, schedulertest.PodWithoutContainers("p", schedulertest.AddContainer("c", "ephemeral-storage=2500m cpu=0 memory=0"), schedulertest.AddContainer("c2", "ephemeral-storage=2500m cpu=0 memory=0")), Request{Storage: 5}},
		{"a large init container counts in place of the containers", false, schedulertest.PodWithoutContainers("p", schedulertest.AddContainer("i", "cpu=3 memory=1Mi"), schedulertest.AddContainer("c", "cpu=1 memory=2Mi")), Request{MilliCPU: 3000, Memory: 2 * podMi, NonZeroMilliCPU: 3000, NonZeroMemory: 2 * podMi}},
		{"the largest of two init containers", false, schedulertest.PodWithoutContainers("p", schedulertest.AddContainer("i", "cpu=3 memory=0"), schedulertest.AddContainer("i2", "cpu=4 memory=0"), schedulertest.AddContainer("c", "cpu=1 memory=0")), Request{MilliCPU: 4000, NonZeroMilliCPU: 4000}},
		{"an init container that asks for nothing is taken to use something", false, schedulertest.PodWithoutContainers("p", schedulertest.AddContainer("i", ""), schedulertest.AddContainer("c", "cpu=10m memory=1Mi")), Request{MilliCPU: 10, Memory: podMi, NonZeroMilliCPU: 100, NonZeroMemory: 200 * podMi}},
		{"a sidecar is added", false, schedulertest.PodWithoutContainers("p", schedulertest.AddContainer("s", "cpu=2 memory=0"), schedulertest.AddContainer("c", "cpu=1 memory=0")), Request{MilliCPU: 3000, NonZeroMilliCPU: 3000}},
		{"an init container beside the sidecars before it", false, schedulertest.PodWithoutContainers("p", schedulertest.AddContainer("s", "cpu=2 memory=0"), schedulertest.AddContainer("i", "cpu=3 memory=0"), schedulertest.AddContainer("c", "cpu=1 memory=0")), Request{MilliCPU: 5000, NonZeroMilliCPU: 5000}},
		{"an init container before the sidecars", false, schedulertest.PodWithoutContainers("p", schedulertest.AddContainer("i", "cpu=3 memory=0"), schedulertest.AddContainer("s", "cpu=2 memory=0"), schedulertest.AddContainer("c", "cpu=1 memory=0")), Request{MilliCPU: 3000, NonZeroMilliCPU: 3000}},
		{"overhead is added", false, schedulertest.PodWithoutContainers("p", schedulertest.AddContainer("c", "cpu=1 memory=1Mi"), schedulertest.Overhead("cpu=100m memory=1Mi ephemeral-storage=5")), Request{MilliCPU: 1100, Memory: 2 * podMi, Storage: 5, NonZeroMilliCPU: 1100, NonZeroMemory: 2 * podMi}},
		{"overhead is added to what containers are taken to use", false, schedulertest.PodWithoutContainers("p", schedulertest.AddContainer("c", ""), schedulertest.Overhead("cpu=100m")), Request{MilliCPU: 100, NonZeroMilliCPU: 200, NonZeroMemory: 200 * podMi}},
		{"devices, in order", false, schedulertest.PodWithoutContainers("p", schedulertest.AddContainer("c", "other.org/nic=1 example.com/fpga=2 hugepages-2Mi=4Mi cpu=1 memory=0")), Request{MilliCPU: 1000, NonZeroMilliCPU: 1000, Extended: []Amount{{schedulertest.FitFPGA, 2}, {schedulertest.FitPages, 4 * podMi}, {schedulertest.FitNIC, 1}}}},
		{"devices of two containers", false, schedulertest.PodWithoutContainers("p", schedulertest.AddContainer("c", "example.com/fpga=2 cpu=0 memory=0"), schedulertest.AddContainer("c2", "example.com/fpga=1 cpu=0 memory=0")), Request{Extended: []Amount{{schedulertest.FitFPGA, 3}}}},
		{"a resource of no kind is left out", false, schedulertest.PodWithoutContainers("p", schedulertest.AddContainer("c", "something=1 cpu=0 memory=0")), Request{}},
		{"a quota's name is left out", false, schedulertest.PodWithoutContainers("p", schedulertest.AddContainer("c", "requests.example.com/fpga=1 cpu=0 memory=0")), Request{}},

		{"as a whole, in place of the containers", false, schedulertest.PodWithoutContainers("p", schedulertest.PodLevelRequests("cpu=3 memory=3Mi"), schedulertest.AddContainer("c", "cpu=1 memory=1Mi")), Request{MilliCPU: 3000, Memory: 3 * podMi, NonZeroMilliCPU: 3000, NonZeroMemory: 3 * podMi}},
		{"as a whole in CPU; memory is the containers'", false, schedulertest.PodWithoutContainers("p", schedulertest.PodLevelRequests("cpu=3"), schedulertest.AddContainer("c", "cpu=1 memory=1Mi"), schedulertest.AddContainer("c2", "")), Request{MilliCPU: 3000, Memory: podMi, NonZeroMilliCPU: 3000, NonZeroMemory: podMi}},
		{"as a whole in CPU; nobody says a word of memory", false, schedulertest.PodWithoutContainers("p", schedulertest.PodLevelRequests("cpu=3"), schedulertest.AddContainer("c", "cpu=1"), schedulertest.AddContainer("c2", "")), Request{MilliCPU: 3000, NonZeroMilliCPU: 3000, NonZeroMemory: 400 * podMi}},
		{"as a whole in memory; nobody says a word of CPU", false, schedulertest.PodWithoutContainers("p", schedulertest.PodLevelRequests("memory=3Mi"), schedulertest.AddContainer("c", "memory=1Mi"), schedulertest.AddContainer("c2", "")), Request{Memory: 3 * podMi, NonZeroMilliCPU: 200, NonZeroMemory: 3 * podMi}},
		{"as a whole, less than the containers", false, schedulertest.PodWithoutContainers("p", schedulertest.PodLevelRequests("cpu=1 memory=0"), schedulertest.AddContainer("c", "cpu=3 memory=1Mi")), Request{MilliCPU: 1000, NonZeroMilliCPU: 1000}},
		{"as a whole, with overhead", false, schedulertest.PodWithoutContainers("p", schedulertest.PodLevelRequests("cpu=1 memory=0"), schedulertest.AddContainer("c", ""), schedulertest.Overhead("cpu=1")), Request{MilliCPU: 2000, NonZeroMilliCPU: 2000}},
		{"as a whole, huge pages", false, schedulertest.PodWithoutContainers("p", schedulertest.PodLevelRequests("hugepages-2Mi=4Mi cpu=1 memory=0"), schedulertest.AddContainer("c", "")), Request{MilliCPU: 1000, NonZeroMilliCPU: 1000, Extended: []Amount{{schedulertest.FitPages, 4 * podMi}}}},
		{"as a whole, what cannot be asked as a whole", false, schedulertest.PodWithoutContainers("p", schedulertest.PodLevelRequests("ephemeral-storage=1Gi"), schedulertest.AddContainer("c", "ephemeral-storage=5 cpu=0 memory=0")), Request{Storage: 5}},
		{"as a whole, nothing", false, schedulertest.PodWithoutContainers("p", schedulertest.PodLevelRequests(""), schedulertest.AddContainer("c", "cpu=1 memory=0")), Request{MilliCPU: 1000, NonZeroMilliCPU: 1000}},

		{"running: given more than it asks", true, schedulertest.PodWithoutContainers("p", schedulertest.AddContainer("c", "cpu=1 memory=0"), podStatus("c", "cpu=3", "")), Request{MilliCPU: 3000, NonZeroMilliCPU: 3000}},
		{"running: has more than it was given", true, schedulertest.PodWithoutContainers("p", schedulertest.AddContainer("c", "cpu=1 memory=0"), podStatus("c", "cpu=2", "cpu=4")), Request{MilliCPU: 4000, NonZeroMilliCPU: 4000}},
		{"running: asks for more than it has", true, schedulertest.PodWithoutContainers("p", schedulertest.AddContainer("c", "cpu=5 memory=0"), podStatus("c", "cpu=2", "cpu=4")), Request{MilliCPU: 5000, NonZeroMilliCPU: 5000}},
		{"running: asks for more than can ever be", true, schedulertest.PodWithoutContainers("p", schedulertest.AddContainer("c", "cpu=5 memory=0"), podStatus("c", "cpu=2", "cpu=1"), podResize(corev1.PodReasonInfeasible)), Request{MilliCPU: 2000, NonZeroMilliCPU: 2000}},
		{"running: asks for more than can be now", true, schedulertest.PodWithoutContainers("p", schedulertest.AddContainer("c", "cpu=5 memory=0"), podStatus("c", "cpu=2", ""), podResize(corev1.PodReasonDeferred)), Request{MilliCPU: 5000, NonZeroMilliCPU: 5000}},
		{"running: what can never be, of which nothing was given", true, schedulertest.PodWithoutContainers("p", schedulertest.AddContainer("c", "cpu=5 memory=0"), podResize(corev1.PodReasonInfeasible)), Request{NonZeroMilliCPU: 100, NonZeroMemory: 200 * podMi}},
		{"waiting: its status does not count", false, schedulertest.PodWithoutContainers("p", schedulertest.AddContainer("c", "cpu=1 memory=0"), podStatus("c", "cpu=3", "")), Request{MilliCPU: 1000, NonZeroMilliCPU: 1000}},
		{"running: one of two containers was given more", true, schedulertest.PodWithoutContainers("p", schedulertest.AddContainer("c", "cpu=1 memory=0"), schedulertest.AddContainer("c2", "cpu=1 memory=0"), podStatus("c2", "cpu=3", "")), Request{MilliCPU: 4000, NonZeroMilliCPU: 4000}},
		{"running: a sidecar was given more", true, schedulertest.PodWithoutContainers("p", schedulertest.AddContainer("s", "cpu=1 memory=0"), schedulertest.AddContainer("c", "cpu=1 memory=0"), podStatus("s", "cpu=3", "")), Request{MilliCPU: 4000, NonZeroMilliCPU: 4000}},
		{"running: the whole was given more", true, schedulertest.PodWithoutContainers("p", schedulertest.PodLevelRequests("cpu=1 memory=0"), schedulertest.AddContainer("c", "cpu=1 memory=0"), podWholeStatus("cpu=3", "cpu=2")), Request{MilliCPU: 3000, NonZeroMilliCPU: 3000}},
		{"running: the whole has more", true, schedulertest.PodWithoutContainers("p", schedulertest.PodLevelRequests("cpu=1 memory=0"), schedulertest.AddContainer("c", "cpu=1 memory=0"), podWholeStatus("cpu=3", "cpu=4")), Request{MilliCPU: 4000, NonZeroMilliCPU: 4000}},
		{"running: a plain pod whose sum was given more", true, schedulertest.PodWithoutContainers("p", schedulertest.AddContainer("c", "cpu=1 memory=0"), podWholeStatus("cpu=3", "cpu=2")), Request{MilliCPU: 3000, NonZeroMilliCPU: 3000}},
		{"running: a plain pod whose sum is not all told", true, schedulertest.PodWithoutContainers("p", schedulertest.AddContainer("c", "cpu=1 memory=0"), podWholeStatus("cpu=3", "")), Request{MilliCPU: 1000, NonZeroMilliCPU: 1000}},
		{"running: what was given says nothing of memory, so that it is taken to use some", true, schedulertest.PodWithoutContainers("p", schedulertest.AddContainer("c", "cpu=1 memory=0"), func(p *corev1.Pod) {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", AllocatedResources: schedulertest.ParseResources("cpu=1")}}
		}), Request{MilliCPU: 1000, NonZeroMilliCPU: 1000, NonZeroMemory: 200 * podMi}},
		{"running: nothing is told", true, schedulertest.PodWithoutContainers("p", schedulertest.AddContainer("c", "cpu=1 memory=0"), podStatus("c", "", "")), Request{MilliCPU: 1000, NonZeroMilliCPU: 1000}},
	} {
		t.Run(test.what, func(t *testing.T) {
			if got := PodRequests(test.pod, test.running); !reflect.DeepEqual(got, test.want) {
				t.Errorf("asks for %+v, want %+v", got, test.want)
			}
		})
	}
}

// A pod that is on a node is read as one that runs; one that waits is not.
func TestPodInfoReadsStatusOfRunningPods(t *testing.T) {
	given := []schedulertest.PodOption{schedulertest.RequestingCPU("1"), podStatus("c", "cpu=3", "")}
	if got := infoOf(t, schedulertest.TestPod("p", given...)).Request.MilliCPU; got != 1000 {
		t.Errorf("waiting: %dm", got)
	}
	if got := infoOf(t, schedulertest.TestPod("p", append(given, schedulertest.OnNode("n"))...)).Request.MilliCPU; got != 3000 {
		t.Errorf("running: %dm", got)
	}
}

// podModel adds requests up as the sidecar proposal writes it down, in thousandths.
func podModel(p *corev1.Pod, name corev1.ResourceName, left int64) int64 {
	of := func(c *corev1.Container) int64 {
		if q, named := c.Resources.Requests[name]; named {
			return q.MilliValue()
		}
		return left
	}
	var sum, sidecars, peak int64
	for i := range p.Spec.InitContainers {
		c := &p.Spec.InitContainers[i]
		if c.RestartPolicy != nil {
			sidecars += of(c)
			peak = max(peak, sidecars)
		} else {
			peak = max(peak, sidecars+of(c))
		}
	}
	for i := range p.Spec.Containers {
		sum += of(&p.Spec.Containers[i])
	}
	sum = max(sum+sidecars, peak)
	if p.Spec.Resources != nil {
		if q, named := p.Spec.Resources.Requests[name]; named {
			sum = q.MilliValue()
		}
	}
	if q, named := p.Spec.Overhead[name]; named {
		sum += q.MilliValue()
	}
	return sum
}

func TestRequestEqualsModel(t *testing.T) {
	const seed = 61
	r := rand.New(rand.NewPCG(seed, 1))
	list := func() string {
		text := ""
		for _, name := range []string{"cpu", "memory", "example.com/fpga"} {
			if schedulertest.OneIn(r, 2) {
				text += fmt.Sprintf("%s=%d ", name, r.IntN(4))
			}
		}
		return text
	}
	for round := range 1500 {
		p := schedulertest.PodWithoutContainers("p")
		for i := range r.IntN(4) {
			schedulertest.AddContainer(fmt.Sprint(schedulertest.OneOf(r, "i", "s"), i), list())(p)
		}
		for i := range 1 + r.IntN(3) {
			schedulertest.AddContainer(fmt.Sprint("c", i), list())(p)
		}
		if schedulertest.OneIn(r, 4) {
			schedulertest.Overhead(list())(p)
		}
		// A pod that states something as a whole states both here: what is left out then is another rule.
		if schedulertest.OneIn(r, 4) {
			schedulertest.PodLevelRequests(fmt.Sprintf("cpu=%d memory=%d", r.IntN(9), r.IntN(9)))(p)
		}
		got := PodRequests(p, schedulertest.OneIn(r, 2))
		var fpgas int64
		for _, a := range got.Extended {
			fpgas += a.Value
		}
		want := []int64{podModel(p, schedulertest.FitCPU, 0), podModel(p, schedulertest.FitMemory, 0) / 1000, podModel(p, schedulertest.FitCPU, 100), podModel(p, schedulertest.FitMemory, 200*podMi*1000) / 1000, podModel(p, schedulertest.FitFPGA, 0) / 1000}
		if is := []int64{got.MilliCPU, got.Memory, got.NonZeroMilliCPU, got.NonZeroMemory, fpgas}; !slices.Equal(is, want) {
			t.Fatalf("seed %d, round %d: %+v asks for %v, want %v", seed, round, p.Spec, is, want)
		}
	}
}

func TestCountableResources(t *testing.T) {
	for name, want := range map[corev1.ResourceName][2]bool{
		// counted on nodes; extended
		"cpu": {}, "memory": {}, "ephemeral-storage": {}, "pods": {}, "storage": {}, "something": {}, "": {},
		"example.com/fpga": {true, true}, "example.com/a.b-c_d": {true, true}, "a/b": {true, true}, "example.com/": {}, "/fpga": {}, "example.com/a/b": {}, "example.com/not valid": {},
		"hugepages-2Mi": {true, false}, "hugepages-": {true, false}, "hugepages": {}, "attachable-volumes-x": {true, false}, "attachable-volumes": {},
		"kubernetes.io/x": {true, false}, "sub.kubernetes.io/x": {true, false}, "deviceclass.resource.kubernetes.io/c": {true, false}, "mykubernetes.io/x": {true, false},
		"requests.example.com/fpga": {}, "requests.cpu": {}, "limits.example.com/fpga": {true, true},
	} {
		if got := [2]bool{isScalarResource(name), resourcename.IsExtended(name)}; got != want {
			t.Errorf("%q: countable is %t, extended is %t, want %v", name, got[0], got[1], want)
		}
	}
}

func TestHostPortsOf(t *testing.T) {
	ports := func(given ...corev1.ContainerPort) schedulertest.PodOption {
		return func(p *corev1.Pod) {
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "c", Ports: given})
		}
	}
	in := func(policy *corev1.ContainerRestartPolicy, given ...corev1.ContainerPort) schedulertest.PodOption {
		return func(p *corev1.Pod) {
			p.Spec.InitContainers = append(p.Spec.InitContainers, corev1.Container{Name: "i", RestartPolicy: policy, Ports: given})
		}
	}
	always, never := ptr.To(corev1.ContainerRestartPolicyAlways), ptr.To(corev1.ContainerRestartPolicyNever)
	for _, test := range []struct {
		what string
		pod  *corev1.Pod
		want []HostPort
	}{
		{"none", schedulertest.PodWithoutContainers("p"), nil},
		{"a port of the container alone", schedulertest.PodWithoutContainers("p", ports(corev1.ContainerPort{ContainerPort: 80})), nil},
		{"a port of the host", schedulertest.PodWithoutContainers("p", ports(corev1.ContainerPort{ContainerPort: 80, HostPort: 8080})), []HostPort{{"0.0.0.0", "TCP", 8080}}},
		{"all that can be said", schedulertest.PodWithoutContainers("p", ports(corev1.ContainerPort{HostPort: 53, HostIP: "fd00::1", Protocol: "UDP"})), []HostPort{{"fd00::1", "UDP", 53}}},
		{"a negative port is none", schedulertest.PodWithoutContainers("p", ports(corev1.ContainerPort{HostPort: -1})), nil},
		{"sidecars first, then containers", schedulertest.PodWithoutContainers("p", ports(corev1.ContainerPort{HostPort: 1}, corev1.ContainerPort{HostPort: 2}), in(always, corev1.ContainerPort{HostPort: 3}), ports(corev1.ContainerPort{HostPort: 4})), []HostPort{{"0.0.0.0", "TCP", 3}, {"0.0.0.0", "TCP", 1}, {"0.0.0.0", "TCP", 2}, {"0.0.0.0", "TCP", 4}}},
		{"init containers hold none for long", schedulertest.PodWithoutContainers("p", in(nil, corev1.ContainerPort{HostPort: 3}), in(never, corev1.ContainerPort{HostPort: 4})), nil},
	} {
		if got := HostPortsOf(test.pod); !slices.Equal(got, test.want) {
			t.Errorf("%s: %v, want %v", test.what, got, test.want)
		}
	}
}

// The pod all keys below are compared with, and ways to change it.
func podOfAll() *corev1.Pod {
	p := schedulertest.TestPod("p", schedulertest.RequestingCPU("1"), schedulertest.RequestingMemory("1Gi"), schedulertest.Requesting(schedulertest.FitFPGA, "1"), schedulertest.Labelled("app", "x"), schedulertest.Selecting("disk", "ssd"), schedulertest.Toleration("k", schedulertest.TolEqual, "v", schedulertest.NoSchedule), schedulertest.Port(80, "10.0.0.1", corev1.ProtocolTCP),
		schedulertest.RequiresNodes(schedulertest.Expression("a", schedulertest.OpIn, "b")), schedulertest.WithAffinity("zone", "app", "db"), schedulertest.Spread("zone", 1, schedulertest.SpreadHard, "app=x"), schedulertest.SpreadOwned("apps/v1", "ReplicaSet", "rs"))
	p.Spec.InitContainers = []corev1.Container{{Name: "i", Image: "init"}}
	p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: "volume"}}}}
	return p
}

// Pods of one key are treated as one by the rules that look at a node alone, or at neighbours: every field such a rule reads must be in the
// key, and what no rule reads should not be.
func TestKeysCoverWhatRulesRead(t *testing.T) {
	container := func(change func(*corev1.Container)) schedulertest.PodOption {
		return func(p *corev1.Pod) { change(&p.Spec.Containers[0]) }
	}
	constraint := func(change func(*corev1.TopologySpreadConstraint)) schedulertest.PodOption {
		return func(p *corev1.Pod) { change(&p.Spec.TopologySpreadConstraints[0]) }
	}
	tol := func(change func(*corev1.Toleration)) schedulertest.PodOption {
		return func(p *corev1.Pod) { change(&p.Spec.Tolerations[0]) }
	}
	nodeAffinityOf := func(p *corev1.Pod) *corev1.NodeAffinity { return p.Spec.Affinity.NodeAffinity }
	base := infoOf(t, podOfAll())
	for _, test := range []struct {
		what              string
		change            schedulertest.PodOption
		local, neighbours bool // whether the key differs
	}{
		{"nothing", func(*corev1.Pod) {}, false, false},
		{"its name", func(p *corev1.Pod) { p.Name, p.UID = "q", "q" }, false, false},
		{"its annotations", func(p *corev1.Pod) { p.Annotations = map[string]string{"a": "b"} }, false, false},
		{"its priority", schedulertest.Priority(9), false, false},
		{"its status", podResize("x"), false, false},
		{"its command", container(func(c *corev1.Container) { c.Command = []string{"sh"} }), false, false},
		{"its limits", container(func(c *corev1.Container) { c.Resources.Limits = schedulertest.ParseResources("cpu=9") }), false, false},
		{"its namespace", schedulertest.Namespace("other"), false, true},
		{"a label more", schedulertest.Labelled("tier", "web"), false, true},
		{"another label", schedulertest.Labelled("app", "y"), false, true},
		{"no label", func(p *corev1.Pod) { p.Labels = nil }, false, true},
		{"its owner", schedulertest.SpreadOwned("apps/v1", "ReplicaSet", "other"), false, true},
		{"its owner's kind", schedulertest.SpreadOwned("apps/v1", "StatefulSet", "rs"), false, true},
		{"its owner's version", schedulertest.SpreadOwned("v1", "ReplicaSet", "rs"), false, true},
		{"no owner", func(p *corev1.Pod) { p.OwnerReferences = nil }, false, true},
		{"an owner that does not control it", func(p *corev1.Pod) { p.OwnerReferences[0].Controller = nil }, false, true},
		{"CPU", schedulertest.RequestingCPU("2"), true, false},
		{"memory", schedulertest.RequestingMemory("2Gi"), true, false},
		{"storage", schedulertest.Requesting(corev1.ResourceEphemeralStorage, "1Gi"), true, false},
		{"devices", schedulertest.Requesting(schedulertest.FitFPGA, "2"), true, false},
		{"other devices", schedulertest.Requesting(schedulertest.FitNIC, "1"), true, false},
		{"overhead", schedulertest.Overhead("cpu=1"), true, false},
		{"as a whole", schedulertest.PodLevelRequests("cpu=1 memory=1Gi"), true, false},
		{"its node", schedulertest.OnNode("n"), true, false},
		{"a selector more", schedulertest.Selecting("zone", "1"), true, true},
		{"another selector", schedulertest.Selecting("disk", "hdd"), true, true},
		{"required nodes", func(p *corev1.Pod) {
			nodeAffinityOf(p).RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms = []corev1.NodeSelectorTerm{schedulertest.Expression("a", schedulertest.OpNotIn, "b")}
		}, true, true},
		{"a toleration more", schedulertest.Toleration("l", schedulertest.TolExists, "", ""), true, true},
		{"no toleration", func(p *corev1.Pod) { p.Spec.Tolerations = nil }, true, true},
		{"a toleration's key", tol(func(x *corev1.Toleration) { x.Key = "l" }), true, true},
		{"a toleration's operator", tol(func(x *corev1.Toleration) { x.Operator = schedulertest.TolExists }), true, true},
		{"a toleration's value", tol(func(x *corev1.Toleration) { x.Value = "w" }), true, true},
		{"a toleration's effect", tol(func(x *corev1.Toleration) { x.Effect = "" }), true, true},
		{"a port more", schedulertest.Port(81, "", corev1.ProtocolTCP), true, false},
		{"a port's number", container(func(c *corev1.Container) { c.Ports[0].HostPort = 81 }), true, false},
		{"a port's address", container(func(c *corev1.Container) { c.Ports[0].HostIP = "10.0.0.2" }), true, false},
		{"a port's protocol", container(func(c *corev1.Container) { c.Ports[0].Protocol = corev1.ProtocolUDP }), true, false},
		{"an image", container(func(c *corev1.Container) { c.Image = "other" }), true, false},
		{"an init container's image", func(p *corev1.Pod) { p.Spec.InitContainers[0].Image = "other" }, true, false},
		{"an init container more", func(p *corev1.Pod) {
			p.Spec.InitContainers = append(p.Spec.InitContainers, corev1.Container{Name: "j", Image: "init"})
		}, true, false},
		{"a volume's image", func(p *corev1.Pod) { p.Spec.Volumes[0].Image.Reference = "other" }, true, false},
		{"no image among volumes", func(p *corev1.Pod) { p.Spec.Volumes = nil }, true, false},
		{"whom it wants near", func(p *corev1.Pod) {
			p.Spec.Affinity.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution[0] = schedulertest.PodTermOf("host", map[string]string{"app": "db"})
		}, false, true},
		{"whom it wants away", schedulertest.WithAntiAffinity("zone", "app", "x"), false, true},
		{"whom it likes", schedulertest.WithPreferredAffinity(1, "zone", "app", "x"), false, true},
		{"nobody near", func(p *corev1.Pod) { p.Spec.Affinity.PodAffinity = nil }, false, true},
		{"a constraint more", schedulertest.Spread("host", 1, schedulertest.SpreadSoft, "app=x"), false, true},
		{"a constraint's skew", constraint(func(c *corev1.TopologySpreadConstraint) { c.MaxSkew = 2 }), false, true},
		{"a constraint's key", constraint(func(c *corev1.TopologySpreadConstraint) { c.TopologyKey = "host" }), false, true},
		{"a constraint's action", constraint(func(c *corev1.TopologySpreadConstraint) { c.WhenUnsatisfiable = schedulertest.SpreadSoft }), false, true},
		{"a constraint's selector", constraint(func(c *corev1.TopologySpreadConstraint) { c.LabelSelector = nil }), false, true},
		{"a constraint's domains", constraint(schedulertest.SpreadMinDomains(2)), false, true},
		{"a constraint's policies", constraint(schedulertest.SpreadPolicies(corev1.NodeInclusionPolicyIgnore, "")), false, true},
		{"a constraint's labels", constraint(schedulertest.SpreadByLabels("app")), false, true},
		{"no constraints", func(p *corev1.Pod) { p.Spec.TopologySpreadConstraints = nil }, false, true},
	} {
		t.Run(test.what, func(t *testing.T) {
			pod := podOfAll()
			test.change(pod)
			info := infoOf(t, pod)
			if differs := info.LocalKey() != base.LocalKey(); differs != test.local {
				t.Errorf("the key of what it means to a node differs: %t", differs)
			}
			if differs := info.TopologyKey() != base.TopologyKey(); differs != test.neighbours {
				t.Errorf("the key of what it means to neighbours differs: %t", differs)
			}
			if again := infoOf(t, pod.DeepCopy()); again.LocalKey() != info.LocalKey() || again.TopologyKey() != info.TopologyKey() {
				t.Error("the same pod has two keys")
			}
		})
	}
	preferring := podOfAll()
	schedulertest.PrefersNode(3, schedulertest.Expression("c", schedulertest.OpExists))(preferring)
	if infoOf(t, preferring).LocalKey() == base.LocalKey() {
		t.Error("what it prefers of nodes is not in the key")
	}
}

// Parts of a key do not run into each other.
func TestKeyWriter(t *testing.T) {
	write := func(do ...func(*keyWriter)) string {
		var k keyWriter
		for _, f := range do {
			f(&k)
		}
		return string(k)
	}
	text := func(s string) func(*keyWriter) { return func(k *keyWriter) { k.text(s) } }
	number := func(n int64) func(*keyWriter) { return func(k *keyWriter) { k.number(n) } }
	pairs := func(m map[string]string) func(*keyWriter) { return func(k *keyWriter) { k.pairs(m) } }
	request := func(r Request) func(*keyWriter) { return func(k *keyWriter) { k.request(&r) } }
	keys := map[string]string{}
	for what, key := range map[string]string{
		"ab c": write(text("ab"), text("c")), "a bc": write(text("a"), text("bc")), "abc": write(text("abc")), "abc and nothing": write(text("abc"), text("")), "nothing and abc": write(text(""), text("abc")),
		"1 23": write(number(1), number(23)), "12 3": write(number(12), number(3)), "-1": write(number(-1)), "the largest": write(number(1<<63 - 1)), "the least": write(number(-1 << 63)),
		"no pairs": write(pairs(nil)), "a pair": write(pairs(map[string]string{"a": "b"})), "the pair turned round": write(pairs(map[string]string{"b": "a"})), "two pairs": write(pairs(map[string]string{"a": "b", "c": "d"})),
		"two other pairs": write(pairs(map[string]string{"a": "d", "c": "b"})), "a pair of nothing": write(pairs(map[string]string{"": ""})),
		"a request": write(request(Request{MilliCPU: 1})), "of memory": write(request(Request{Memory: 1})), "of storage": write(request(Request{Storage: 1})), "assumed": write(request(Request{NonZeroMilliCPU: 1})),
		"assumed memory": write(request(Request{NonZeroMemory: 1})), "of one": write(request(Request{Extended: []Amount{{"a", 1}}})), "of another": write(request(Request{Extended: []Amount{{"b", 1}}})), "of two": write(request(Request{Extended: []Amount{{"a", 2}}})),
		"of both": write(request(Request{Extended: []Amount{{"a", 1}, {"b", 1}}})),
	} {
		if other, taken := keys[key]; taken {
			t.Errorf("%s and %s have one key", what, other)
		}
		keys[key] = what
	}
	if write(pairs(map[string]string{})) != write(pairs(nil)) {
		t.Error("no pairs and no map are not the same")
	}
	for range 20 {
		m := map[string]string{"z": "1", "y": "2", "x": "3", "w": "4"}
		if write(pairs(m)) != write(pairs(maps.Clone(m))) {
			t.Fatal("the key of a map depends on its order")
		}
	}
}

// Which pods are bothered with volumes, and which with features.
func TestPodInfoNoticesVolumes(t *testing.T) {
	volume := func(source corev1.VolumeSource) schedulertest.PodOption {
		return func(p *corev1.Pod) {
			p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "v", VolumeSource: source})
		}
	}
	for _, test := range []struct {
		what string
		pod  *corev1.Pod
		want bool
	}{
		{"none", schedulertest.TestPod("p"), false},
		{"an empty directory", schedulertest.TestPod("p", volume(corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}})), false},
		{"a directory of the host", schedulertest.TestPod("p", volume(corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{}})), false},
		{"a config map", schedulertest.TestPod("p", volume(corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{}})), false},
		{"an image", schedulertest.TestPod("p", volume(corev1.VolumeSource{Image: &corev1.ImageVolumeSource{}})), false},
		{"a claim", schedulertest.TestPod("p", schedulertest.UsingClaim("c")), true},
		{"a claim of its own", schedulertest.TestPod("p", volume(corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}})), true},
		{"a disk", schedulertest.TestPod("p", volume(corev1.VolumeSource{GCEPersistentDisk: &corev1.GCEPersistentDiskVolumeSource{PDName: "d"}})), true},
		{"a target of blocks", schedulertest.TestPod("p", volume(corev1.VolumeSource{ISCSI: &corev1.ISCSIVolumeSource{}})), true},
		{"a disk that has moved to a driver", schedulertest.TestPod("p", schedulertest.InlineDisk("d")), true},
		{"the second of two", schedulertest.TestPod("p", volume(corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}), schedulertest.UsingClaim("c")), true},
	} {
		if got := infoOf(t, test.pod).HasVolumes; got != test.want {
			t.Errorf("%s: %t", test.what, got)
		}
	}
}

// A pod that asks as a whole is the sum of its containers where nodes are scored; any other is itself.
func TestPodParts(t *testing.T) {
	plain := infoOf(t, schedulertest.PodWithoutContainers("p", schedulertest.AddContainer("c", "cpu=1 memory=1Mi")))
	if plain.WithoutPodLevelResources() != plain {
		t.Error("a pod that does not ask as a whole is read twice")
	}
	whole := infoOf(t, schedulertest.PodWithoutContainers("p", schedulertest.PodLevelRequests("cpu=4 memory=4Mi"), schedulertest.AddContainer("c", "cpu=1 memory=1Mi"), schedulertest.AddContainer("c2", "")))
	want := Request{MilliCPU: 1000, Memory: podMi, NonZeroMilliCPU: 1100, NonZeroMemory: 201 * podMi}
	if got := whole.WithoutPodLevelResources(); !reflect.DeepEqual(got.Request, want) || got.Pod.Spec.Resources != nil {
		t.Errorf("parts %+v, want %+v", got.Request, want)
	}
	if whole.Pod.Spec.Resources == nil || whole.Request.MilliCPU != 4000 {
		t.Error("looking at the parts has changed the whole")
	}
}
