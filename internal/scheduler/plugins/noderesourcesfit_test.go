package plugins

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"skiff/internal/scheduler/schedulertest"
	"skiff/internal/scheduler/snapshot/snapshottest"
)

func TestNodeResourcesFitFilter(t *testing.T) {
	const roomy = "cpu=4 memory=8Gi ephemeral-storage=10Gi example.com/fpga=2 other.org/nic=4 hugepages-2Mi=64Mi"
	short := func(names ...string) string {
		for i := range names {
			names[i] = "Insufficient " + names[i]
		}
		return strings.Join(names, ", ")
	}
	for _, test := range []struct {
		what, has, used, asks string
		want                  string
	}{
		{"nothing is asked of nothing", "", "", "", ""},
		{"nothing is asked of a node that is full", "cpu=1 memory=1Gi", "cpu=1 memory=1Gi", "", ""},
		{"nothing is asked of a node that is more than full", "cpu=1", "cpu=3", "", ""},
		{"all there is", roomy, "", roomy, ""},
		{"all that is left", "cpu=4", "cpu=3", "cpu=1", ""},
		{"a thousandth of a CPU too much", "cpu=4", "cpu=3", "cpu=1001m", "Insufficient cpu"},
		{"a byte too much", "memory=100", "memory=99", "memory=2", "Insufficient memory"},
		{"the last byte", "memory=100", "memory=99", "memory=1", ""},
		{"a byte of storage too much", "ephemeral-storage=100", "ephemeral-storage=99", "ephemeral-storage=2", short("ephemeral-storage")},
		{"the last device", roomy, "example.com/fpga=1", "example.com/fpga=1", ""},
		{"a device too much", roomy, "example.com/fpga=2", "example.com/fpga=1", short("example.com/fpga")},
		{"huge pages", roomy, "hugepages-2Mi=62Mi", "hugepages-2Mi=4Mi", short("hugepages-2Mi")},
		{"the last huge pages", roomy, "hugepages-2Mi=60Mi", "hugepages-2Mi=4Mi", ""},
		{"more than the node has at all", "cpu=4 memory=8Gi", "", "cpu=5", schedulertest.UnresolvablePrefix + short("cpu")},
		{"as much as the node has at all, but not now", "cpu=4 memory=8Gi", "cpu=1", "cpu=4", short("cpu")},
		{"more memory than the node has at all", "cpu=4 memory=8Gi", "", "memory=9Gi", schedulertest.UnresolvablePrefix + short("memory")},
		{"more storage than the node has at all", "cpu=4 ephemeral-storage=1Gi", "", "ephemeral-storage=2Gi", schedulertest.UnresolvablePrefix + short("ephemeral-storage")},
		{"more devices than the node has at all", roomy, "", "example.com/fpga=3", schedulertest.UnresolvablePrefix + short("example.com/fpga")},
		{"something the node does not have", "cpu=4", "", "example.com/fpga=1", schedulertest.UnresolvablePrefix + short("example.com/fpga")},
		{"nothing of something the node does not have", "cpu=4", "", "example.com/fpga=0", ""},
		{"nothing of CPU on a full node", "cpu=1", "cpu=1", "cpu=0", ""},
		{"two are short, one for good", "cpu=4 memory=8Gi", "memory=4Gi", "cpu=5 memory=5Gi", schedulertest.UnresolvablePrefix + short("cpu", "memory")},
		{"all three in order", "cpu=1 memory=1Gi ephemeral-storage=1Gi", "cpu=1 memory=1Gi ephemeral-storage=1Gi", "cpu=1 memory=1Gi ephemeral-storage=1Gi", short("cpu", "memory", "ephemeral-storage")},
		{"two devices", roomy, "example.com/fpga=2 other.org/nic=4", "other.org/nic=1 example.com/fpga=1", short("example.com/fpga", "other.org/nic")},
		{"a prefixed resource of Kubernetes itself", "kubernetes.io/something=2", "kubernetes.io/something=2", "kubernetes.io/something=1", short("kubernetes.io/something")},
		{"volumes as a resource", "attachable-volumes-x=1", "attachable-volumes-x=1", "attachable-volumes-x=1", short("attachable-volumes-x")},
		{"a resource of no kind is not counted", "cpu=1", "something=5", "something=1", ""},
		{"very large numbers", "memory=9223372036854775807", "memory=9223372036854775806", "memory=1", ""},
		{"a node without any", "", "", "cpu=1m", schedulertest.UnresolvablePrefix + short("cpu")},
	} {
		t.Run(test.what, func(t *testing.T) {
			rule := mustRule[*NodeResourcesFit](t, NodeResourcesFitName, "")
			s := snapshottest.New(t, []*corev1.Node{schedulertest.NodeWithAllocatable("n", test.has)}, schedulertest.PodWithoutContainers("1", schedulertest.OnNode("n"), schedulertest.AddContainer("c", test.used)))
			if got := pluginRefusals(t, rule, s, schedulertest.PodWithoutContainers("p", schedulertest.AddContainer("c", test.asks)))["n"]; got != test.want {
				t.Errorf("refused %q, want %q", got, test.want)
			}
		})
	}
}

func TestNodeResourcesFitCountsPods(t *testing.T) {
	for _, test := range []struct {
		what, pods string
		on         int
		asks       string
		want       string
	}{
		{"the last place", "3", 2, "", ""},
		{"no place", "3", 3, "", "Too many pods"},
		{"more than there should be", "3", 5, "", "Too many pods"},
		{"a node for no pods", "0", 0, "", "Too many pods"},
		{"too many pods and too little CPU", "1", 1, "cpu=9", schedulertest.UnresolvablePrefix + "Too many pods, Insufficient cpu"},
		{"too many pods and too little CPU now", "1", 1, "cpu=4", "Too many pods, Insufficient cpu"},
	} {
		n := schedulertest.TestNode("n", schedulertest.NodeHas(corev1.ResourcePods, test.pods))
		s := snapshottest.New(t, []*corev1.Node{n})
		for i := range test.on {
			s.SetPod(snapshottest.PodInfo(t, schedulertest.TestPod(fmt.Sprint(i), schedulertest.OnNode("n"), schedulertest.RequestingCPU("1m"))))
		}
		if got := pluginRefusals(t, &NodeResourcesFit{}, s, schedulertest.PodWithoutContainers("p", schedulertest.AddContainer("c", test.asks)))["n"]; got != test.want {
			t.Errorf("%s: %q, want %q", test.what, got, test.want)
		}
	}
	n := schedulertest.TestNode("n")
	delete(n.Status.Allocatable, corev1.ResourcePods)
	if got := pluginRefusals(t, &NodeResourcesFit{}, snapshottest.New(t, []*corev1.Node{n}), schedulertest.TestPod("p"))["n"]; got != "Too many pods" {
		t.Errorf("a node that does not say how many: %q", got)
	}
}

func TestBrokenLine(t *testing.T) {
	type shape = []configv1.UtilizationShapePoint
	rising := shape{{Utilization: 0, Score: 0}, {Utilization: 100, Score: 10}}
	falling := shape{{Utilization: 0, Score: 10}, {Utilization: 100, Score: 0}}
	hill := shape{{Utilization: 10, Score: 1}, {Utilization: 50, Score: 10}, {Utilization: 90, Score: 4}}
	for _, test := range []struct {
		what        string
		shape       shape
		utilization int64
		want        int64
	}{
		{"one point is everywhere the same", shape{{Utilization: 50, Score: 5}}, 0, 50}, {"one point, itself", shape{{Utilization: 50, Score: 5}}, 50, 50},
		{"one point, beyond", shape{{Utilization: 50, Score: 5}}, 100, 50},
		{"the first end", rising, 0, 0}, {"half way up", rising, 50, 50}, {"the last end", rising, 100, 100}, {"one part of a hundred", rising, 1, 1},
		{"the first end, falling", falling, 0, 100}, {"half way down", falling, 50, 50}, {"the last end, falling", falling, 100, 0}, {"a third down", falling, 33, 67},
		{"before the first point", hill, 0, 10}, {"the first point", hill, 10, 10}, {"just after", hill, 11, 12}, {"up the hill", hill, 30, 55}, {"just before the top", hill, 49, 97},
		{"the top", hill, 50, 100}, {"just after the top is rounded towards nothing", hill, 51, 99}, {"down the hill", hill, 70, 70}, {"the last point", hill, 90, 40}, {"after the last point", hill, 100, 40},
	} {
		if got := brokenLinear(test.shape, test.utilization); got != test.want {
			t.Errorf("%s: %d, want %d", test.what, got, test.want)
		}
	}
}

func TestNodeResourcesFitScore(t *testing.T) {
	const (
		least  = ""
		most   = `{"scoringStrategy":{"type":"MostAllocated"}}`
		packed = `{"scoringStrategy":{"type":"RequestedToCapacityRatio","requestedToCapacityRatio":{"shape":[{"utilization":0,"score":0},{"utilization":100,"score":10}]}}}`
	)
	with := func(kind, resources string) string {
		return `{"scoringStrategy":{"type":"` + kind + `","resources":[` + resources + `]}}`
	}
	ratioOf := func(resources, points string) string {
		return `{"scoringStrategy":{"type":"RequestedToCapacityRatio","resources":[` + resources + `],"requestedToCapacityRatio":{"shape":[` + points + `]}}}`
	}
	const line = `{"utilization":0,"score":0},{"utilization":100,"score":10}`
	for _, test := range []struct {
		what, arguments, has, used, asks string
		want                             int64
	}{
		{"half of both", least, "cpu=4 memory=8Gi", "", "cpu=2 memory=4Gi", 50},
		{"all of both", least, "cpu=4 memory=8Gi", "", "cpu=4 memory=8Gi", 0},
		{"what is used counts as what is asked", least, "cpu=4 memory=8Gi", "cpu=1 memory=2Gi", "cpu=1 memory=2Gi", 50},
		{"the mean of both", least, "cpu=4 memory=8Gi", "", "cpu=1 memory=6Gi", 50},
		{"each is rounded down before the mean is", least, "cpu=3 memory=3Gi", "", "cpu=1 memory=2Gi", 49},
		{"more than all is all", least, "cpu=1 memory=1Gi", "cpu=5 memory=5Gi", "cpu=1 memory=1Gi", 0},
		{"a container that asks for nothing uses a little", least, "cpu=1 memory=1000Mi", "", "", 85},
		{"so does one on the node", least, "cpu=1 memory=1000Mi", "cpu=0", "cpu=500m memory=500Mi", 40},
		{"asking for nothing in so many words is asking for nothing", least, "cpu=1 memory=1000Mi", "", "cpu=0 memory=0", 100},
		{"what the node does not have does not count", least, "memory=8Gi", "", "cpu=1 memory=2Gi", 75},
		{"a node without either", least, "", "", "cpu=1 memory=2Gi", 0},
		{"weights", with("LeastAllocated", `{"name":"cpu","weight":3},{"name":"memory","weight":1}`), "cpu=4 memory=8Gi", "", "cpu=4 memory=0", 25},
		{"weights the other way round", with("LeastAllocated", `{"name":"cpu","weight":1},{"name":"memory","weight":3}`), "cpu=4 memory=8Gi", "", "cpu=4 memory=0", 75},
		{"a weight of 0 is 1", with("LeastAllocated", `{"name":"cpu"},{"name":"memory","weight":1}`), "cpu=4 memory=8Gi", "", "cpu=4 memory=0", 50},
		{"storage", with("LeastAllocated", `{"name":"ephemeral-storage","weight":1}`), "ephemeral-storage=10Gi", "ephemeral-storage=2Gi", "ephemeral-storage=3Gi", 50},
		{"storage that is not asked for counts nevertheless", with("LeastAllocated", `{"name":"ephemeral-storage","weight":1}`), "ephemeral-storage=10Gi", "ephemeral-storage=2Gi", "", 80},
		{"a device", with("LeastAllocated", `{"name":"example.com/fpga","weight":1}`), "example.com/fpga=4", "example.com/fpga=1", "example.com/fpga=1", 50},
		{"a device that is not asked for says nothing", with("LeastAllocated", `{"name":"example.com/fpga","weight":9},{"name":"cpu","weight":1}`), "cpu=4 example.com/fpga=4", "cpu=0 example.com/fpga=2", "cpu=1", 75},
		{"a device of which none is asked says nothing", with("LeastAllocated", `{"name":"example.com/fpga","weight":9},{"name":"cpu","weight":1}`), "cpu=4 example.com/fpga=4", "cpu=0 example.com/fpga=2", "cpu=1 example.com/fpga=0", 75},
		{"a device the node does not have", with("LeastAllocated", `{"name":"example.com/fpga","weight":9},{"name":"cpu","weight":1}`), "cpu=4", "", "cpu=1 example.com/fpga=1", 75},
		{"pods are not a resource here", with("LeastAllocated", `{"name":"pods","weight":9},{"name":"cpu","weight":1}`), "cpu=4", "", "cpu=1", 75},
		{"a resource of no kind", with("LeastAllocated", `{"name":"something","weight":9},{"name":"cpu","weight":1}`), "cpu=4", "", "cpu=1 something=1", 75},

		{"most: half of both", most, "cpu=4 memory=8Gi", "", "cpu=2 memory=4Gi", 50},
		{"most: all of both", most, "cpu=4 memory=8Gi", "", "cpu=4 memory=8Gi", 100},
		{"most: more than all is all", most, "cpu=1 memory=1Gi", "cpu=5 memory=5Gi", "cpu=1 memory=1Gi", 100},
		{"most: what is used counts", most, "cpu=4 memory=8Gi", "cpu=1 memory=2Gi", "cpu=1 memory=4Gi", 62},
		{"most: each is rounded down", most, "cpu=3 memory=3Gi", "", "cpu=1 memory=2Gi", 49},
		{"most: a container that asks for nothing", most, "cpu=1 memory=1000Mi", "", "", 15},
		{"most: weights", with("MostAllocated", `{"name":"cpu","weight":3},{"name":"memory","weight":1}`), "cpu=4 memory=8Gi", "", "cpu=4 memory=0", 75},
		{"most: a node without either", most, "", "", "cpu=1", 0},

		{"ratio: on the line", packed, "cpu=4 memory=8Gi", "cpu=1 memory=2Gi", "cpu=1 memory=2Gi", 50},
		{"ratio: more than all is all", packed, "cpu=1 memory=1Gi", "cpu=2 memory=2Gi", "cpu=1 memory=1Gi", 100},
		{"ratio: exactly all", packed, "cpu=2 memory=2Gi", "cpu=1 memory=1Gi", "cpu=1 memory=1Gi", 100},
		{"ratio: the mean is rounded, not cut off", packed, "cpu=4 memory=8Gi", "", "cpu=1 memory=4177526784", 37},
		{"ratio: the mean is rounded up at a half", packed, "cpu=100 memory=100", "", "cpu=25 memory=50", 38},
		{"ratio: a resource that scores nothing does not count", packed, "cpu=4 memory=8Gi", "", "cpu=2 memory=0", 50},
		{"ratio: none scores anything", packed, "cpu=4 memory=8Gi", "", "cpu=0 memory=0", 0},
		{"ratio: a node without either", packed, "", "", "cpu=1", 0},
		{"ratio: weights", ratioOf(`{"name":"cpu","weight":3},{"name":"memory","weight":1}`, line), "cpu=4 memory=8Gi", "", "cpu=4 memory=4Gi", 88},
		{"ratio: a device", ratioOf(`{"name":"example.com/fpga","weight":1}`, line), "example.com/fpga=4", "example.com/fpga=2", "example.com/fpga=1", 75},
		{"ratio: a device that is not asked for", ratioOf(`{"name":"example.com/fpga","weight":9},{"name":"cpu","weight":1}`, line), "cpu=4 example.com/fpga=4", "cpu=0 example.com/fpga=2", "cpu=1", 25},
		{"ratio: spreading", ratioOf(`{"name":"cpu","weight":1}`, `{"utilization":0,"score":10},{"utilization":100,"score":0}`), "cpu=4", "", "cpu=1", 75},
		{"ratio: the top of a hill", ratioOf(`{"name":"cpu","weight":1}`, `{"utilization":0,"score":0},{"utilization":50,"score":10},{"utilization":100,"score":0}`), "cpu=4", "cpu=1", "cpu=1", 100},
		{"ratio: behind the hill", ratioOf(`{"name":"cpu","weight":1}`, `{"utilization":0,"score":0},{"utilization":50,"score":10},{"utilization":100,"score":0}`), "cpu=4", "cpu=2", "cpu=1", 50},
		{"ratio: utilization is cut off", ratioOf(`{"name":"cpu","weight":1}`, line), "cpu=3", "", "cpu=1", 33},
	} {
		t.Run(test.what, func(t *testing.T) {
			rule := mustRule[*NodeResourcesFit](t, NodeResourcesFitName, test.arguments)
			s := snapshottest.New(t, []*corev1.Node{schedulertest.NodeWithAllocatable("n", test.has)})
			if test.used != "" {
				s.SetPod(snapshottest.PodInfo(t, schedulertest.PodWithoutContainers("1", schedulertest.OnNode("n"), schedulertest.AddContainer("c", test.used))))
			}
			if got := pluginScores(t, rule, s, schedulertest.PodWithoutContainers("p", schedulertest.AddContainer("c", test.asks)))["n"]; got != test.want {
				t.Errorf("scores %d, want %d", got, test.want)
			}
		})
	}
}

// A pod is scored by what its containers ask, each of which uses something, whatever they leave out.
func TestNodeResourcesFitScoreOfWholePods(t *testing.T) {
	const has = "cpu=10 memory=10000Mi"
	for _, test := range []struct {
		what string
		pod  *corev1.Pod
		want int64
	}{
		{"two containers that ask for nothing", schedulertest.PodWithoutContainers("p", schedulertest.AddContainer("c", ""), schedulertest.AddContainer("c2", "")), (98 + 96) / 2},
		{"one of two asks", schedulertest.PodWithoutContainers("p", schedulertest.AddContainer("c", "cpu=1 memory=1000Mi"), schedulertest.AddContainer("c2", "")), (89 + 88) / 2},
		{"one asks for CPU, the other for memory", schedulertest.PodWithoutContainers("p", schedulertest.AddContainer("c", "cpu=1"), schedulertest.AddContainer("c2", "memory=1000Mi")), (89 + 88) / 2},
		{"overhead is added", schedulertest.PodWithoutContainers("p", schedulertest.AddContainer("c", "cpu=1 memory=1000Mi"), schedulertest.Overhead("cpu=1 memory=1000Mi")), 80},
		{"a larger init container counts in place of the containers", schedulertest.PodWithoutContainers("p", schedulertest.AddContainer("i", "cpu=5 memory=5000Mi"), schedulertest.AddContainer("c", "cpu=1 memory=1000Mi")), 50},
		{"a smaller init container does not count", schedulertest.PodWithoutContainers("p", schedulertest.AddContainer("i", "cpu=500m memory=500Mi"), schedulertest.AddContainer("c", "cpu=1 memory=1000Mi")), 90},
		{"a sidecar is added", schedulertest.PodWithoutContainers("p", schedulertest.AddContainer("s", "cpu=1 memory=1000Mi"), schedulertest.AddContainer("c", "cpu=1 memory=1000Mi")), 80},
		{"a pod that asks as a whole is scored by its containers", schedulertest.PodWithoutContainers("p", schedulertest.PodLevelRequests("cpu=8 memory=8000Mi"), schedulertest.AddContainer("c", "cpu=1 memory=1000Mi")), 90},
		{"a pod that asks as a whole, its containers for nothing", schedulertest.PodWithoutContainers("p", schedulertest.PodLevelRequests("cpu=8 memory=8000Mi"), schedulertest.AddContainer("c", "")), (99 + 98) / 2},
	} {
		if got := pluginScores(t, mustRule[*NodeResourcesFit](t, NodeResourcesFitName, ""), snapshottest.New(t, []*corev1.Node{schedulertest.NodeWithAllocatable("n", has)}), test.pod)["n"]; got != test.want {
			t.Errorf("%s: %d, want %d", test.what, got, test.want)
		}
	}
	// On the node, however, a pod that asks as a whole counts as the whole.
	s := snapshottest.New(t, []*corev1.Node{schedulertest.NodeWithAllocatable("n", has)}, schedulertest.PodWithoutContainers("1", schedulertest.OnNode("n"), schedulertest.PodLevelRequests("cpu=4 memory=4000Mi"), schedulertest.AddContainer("c", "cpu=1 memory=1000Mi")))
	if got := pluginScores(t, mustRule[*NodeResourcesFit](t, NodeResourcesFitName, ""), s, schedulertest.PodWithoutContainers("p", schedulertest.AddContainer("c", "cpu=1 memory=1000Mi")))["n"]; got != 50 {
		t.Errorf("beside a pod that asks as a whole: %d, want 50", got)
	}
}

func TestBalancedAllocationScore(t *testing.T) {
	const three = `{"resources":[{"name":"cpu"},{"name":"memory"},{"name":"example.com/fpga"}]}`
	for _, test := range []struct {
		what, arguments, has, used, asks string
		want                             int64
		silent                           bool
	}{
		{"balanced before and after", "", "cpu=4 memory=8Gi", "", "cpu=1 memory=2Gi", 75, false},
		{"out of balance by a half", "", "cpu=4 memory=8Gi", "", "cpu=2 memory=0", 50 + (50-25)/2, false},
		{"out of balance by all", "", "cpu=4 memory=8Gi", "", "cpu=4 memory=0", 50, false},
		{"back into balance", "", "cpu=4 memory=8Gi", "cpu=4", "memory=8Gi", 50 + (50+50)/2, false},
		{"half way back", "", "cpu=4 memory=8Gi", "cpu=4", "memory=4Gi", 50 + (50+25)/2, false},
		{"a node that is full before", "", "cpu=4 memory=8Gi", "cpu=4 memory=8Gi", "cpu=1", 75, false},
		{"more than full is full", "", "cpu=1 memory=1Gi", "cpu=9 memory=1Gi", "memory=5Gi", 75, false},
		{"what containers leave out does not count here", "", "cpu=1 memory=1000Mi", "cpu=0", "cpu=500m", 50 + (50-25)/2, false},
		{"a pod that asks for nothing has no say", "", "cpu=4 memory=8Gi", "cpu=4", "", 0, true},
		{"a pod that asks for nothing in so many words", "", "cpu=4 memory=8Gi", "cpu=4", "cpu=0 memory=0", 0, true},
		{"a pod that asks for what is not weighed", "", "cpu=4 memory=8Gi example.com/fpga=2", "cpu=4", "example.com/fpga=1", 0, true},
		{"storage is not weighed unless told", "", "cpu=4 memory=8Gi ephemeral-storage=1Gi", "", "ephemeral-storage=1Gi", 0, true},
		{"one resource is always balanced", "", "cpu=4", "cpu=1", "cpu=2", 75, false},
		{"a node without any is balanced", "", "", "", "cpu=2", 75, false},
		{"three resources: the standard deviation", three, "cpu=4 memory=8Gi example.com/fpga=4", "", "cpu=4 memory=0 example.com/fpga=2", 50 + (50+59-100)/2, false},
		{"three resources of which one is not asked for: two", three, "cpu=4 memory=8Gi example.com/fpga=4", "example.com/fpga=4", "cpu=2 memory=0", 50 + (50-25)/2, false},
		{"three resources of which the node has two", three, "cpu=4 memory=8Gi", "", "cpu=2 example.com/fpga=1", 50 + (50-25)/2, false},
		{"storage when told", `{"resources":[{"name":"cpu"},{"name":"ephemeral-storage"}]}`, "cpu=4 ephemeral-storage=4Gi", "", "ephemeral-storage=2Gi", 50 + (50-25)/2, false},
		{"the quotient is cut off towards nothing", "", "cpu=1000 memory=1000", "", "cpu=10 memory=20", 50 + (50+99-100)/2, false},
	} {
		t.Run(test.what, func(t *testing.T) {
			s := snapshottest.New(t, []*corev1.Node{schedulertest.NodeWithAllocatable("n", test.has)})
			if test.used != "" {
				s.SetPod(snapshottest.PodInfo(t, schedulertest.PodWithoutContainers("1", schedulertest.OnNode("n"), schedulertest.AddContainer("c", test.used))))
			}
			scores := pluginScores(t, mustRule[*balancedAllocation](t, BalancedAllocationName, test.arguments), s, schedulertest.PodWithoutContainers("p", schedulertest.AddContainer("c", test.asks)))
			if test.silent != (scores == nil) || scores["n"] != test.want {
				t.Errorf("scores %v, want %d", scores, test.want)
			}
		})
	}
	whole := schedulertest.PodWithoutContainers("p", schedulertest.PodLevelRequests("cpu=2 memory=0"), schedulertest.AddContainer("c", "cpu=1 memory=2Gi"))
	if got := pluginScores(t, mustRule[*balancedAllocation](t, BalancedAllocationName, ""), snapshottest.New(t, []*corev1.Node{schedulertest.NodeWithAllocatable("n", "cpu=4 memory=8Gi")}), whole)["n"]; got != 62 {
		t.Errorf("a pod that asks as a whole: %d, want 62", got)
	}
}

// fitModel is a node as a list of requests, added up anew for every question.
type fitModel struct {
	has  map[corev1.ResourceName]int64
	pods []map[corev1.ResourceName]int64
}

// Cpu in thousandths, all else in ones.
var fitNames = []corev1.ResourceName{schedulertest.FitCPU, schedulertest.FitMemory, schedulertest.FitStorage, schedulertest.FitFPGA, schedulertest.FitNIC, schedulertest.FitPages}

func (m *fitModel) used(name corev1.ResourceName, assume bool) (sum int64) {
	for _, p := range m.pods {
		sum += schedulertest.NonZeroRequest(p, name, assume)
	}
	return sum
}

func (m *fitModel) refusal(p map[corev1.ResourceName]int64) string {
	var reasons []string
	forGood := false
	if int64(len(m.pods)+1) > m.has[corev1.ResourcePods] {
		reasons = append(reasons, "Too many pods")
	}
	for _, name := range fitNames {
		if p[name] > 0 && m.used(name, false)+p[name] > m.has[name] {
			reasons = append(reasons, "Insufficient "+string(name))
			forGood = forGood || p[name] > m.has[name]
		}
	}
	if slices.Sort(reasons[min(len(reasons), 1):]); forGood {
		return schedulertest.UnresolvablePrefix + strings.Join(fitSorted(reasons), ", ")
	}
	return strings.Join(fitSorted(reasons), ", ")
}

func fitSorted(reasons []string) []string { return slices.Sorted(slices.Values(reasons)) }

// share is the used part of a resource with the pod there, at most 1.
func (m *fitModel) share(name corev1.ResourceName, p map[corev1.ResourceName]int64, assume bool) (share float64, exact int64, counts bool) {
	if m.has[name] == 0 {
		return 0, 0, false
	}
	used := min(m.used(name, assume)+schedulertest.NonZeroRequest(p, name, assume), m.has[name])
	return float64(used) / float64(m.has[name]), used * 100 / m.has[name], true
}

// Random nodes and pods: refusals and all four scores beside the model.
func TestResourceRulesEqualModel(t *testing.T) {
	const seed = 21
	r := rand.New(rand.NewPCG(seed, 1))
	quantityOf := func(name corev1.ResourceName, n int64) resource.Quantity {
		if name == schedulertest.FitCPU {
			return *resource.NewMilliQuantity(n, resource.DecimalSI)
		}
		return *resource.NewQuantity(n, resource.DecimalSI)
	}
	amounts := map[corev1.ResourceName][]int64{
		schedulertest.FitCPU: {0, 1, 100, 250, 1000, 3999}, schedulertest.FitMemory: {0, 1, 100 << 20, 1 << 30, 5 << 30}, schedulertest.FitStorage: {0, 1 << 20, 1 << 30}, schedulertest.FitFPGA: {0, 1, 2}, schedulertest.FitNIC: {0, 1}, schedulertest.FitPages: {0, 2 << 20},
	}
	draw := func() (map[corev1.ResourceName]int64, corev1.ResourceList) {
		model, list := map[corev1.ResourceName]int64{}, corev1.ResourceList{}
		for _, name := range fitNames {
			if n := schedulertest.OneOf(r, amounts[name]...); schedulertest.OneIn(r, 2) {
				model[name], list[name] = n, quantityOf(name, n)
			}
		}
		return model, list
	}
	least, most := mustRule[*NodeResourcesFit](t, NodeResourcesFitName, ""), mustRule[*NodeResourcesFit](t, NodeResourcesFitName, `{"scoringStrategy":{"type":"MostAllocated","resources":[{"name":"cpu","weight":2},{"name":"memory","weight":1},{"name":"ephemeral-storage","weight":3}]}}`)
	balance := mustRule[*balancedAllocation](t, BalancedAllocationName, "")
	refused, forGood := 0, 0
	for round := range 1200 {
		m := fitModel{has: map[corev1.ResourceName]int64{corev1.ResourcePods: int64(1 + r.IntN(5))}}
		node := schedulertest.NodeWithAllocatable("n", "")
		node.Status.Allocatable[corev1.ResourcePods] = quantityOf("", m.has[corev1.ResourcePods])
		for _, name := range fitNames {
			if n := 2 * amounts[name][1+r.IntN(len(amounts[name])-1)]; !schedulertest.OneIn(r, 4) {
				m.has[name], node.Status.Allocatable[name] = n, quantityOf(name, n)
			}
		}
		s := snapshottest.New(t, []*corev1.Node{node})
		for i := range r.IntN(5) {
			model, list := draw()
			m.pods = append(m.pods, model)
			p := schedulertest.TestPod(fmt.Sprint(i), schedulertest.OnNode("n"))
			p.Spec.Containers[0].Resources.Requests = list
			s.SetPod(snapshottest.PodInfo(t, p))
		}
		model, list := draw()
		pod := schedulertest.TestPod("p")
		pod.Spec.Containers[0].Resources.Requests = list
		said := fmt.Sprintf("seed %d, round %d: %v on %v with %v", seed, round, model, m.has, m.pods)
		got := pluginRefusals(t, least, s, pod)["n"]
		text, gone := strings.CutPrefix(got, schedulertest.UnresolvablePrefix)
		if got = strings.Join(fitSorted(strings.Split(text, ", ")), ", "); gone {
			got = schedulertest.UnresolvablePrefix + got
		}
		want := m.refusal(model)
		if got != want {
			t.Fatalf("%s: refused %q, want %q", said, got, want)
		}
		if want != "" {
			refused++
		}
		if strings.HasPrefix(want, schedulertest.UnresolvablePrefix) {
			forGood++
		}
		score := func(weights map[corev1.ResourceName]int64, of func(used int64) int64, has func(name corev1.ResourceName) (int64, bool)) int64 {
			var sum, total int64
			for name, weight := range weights {
				if used, counts := has(name); counts {
					sum, total = sum+weight*of(used), total+weight
				}
			}
			if total == 0 {
				return 0
			}
			return sum / total
		}
		free := func(name corev1.ResourceName) (int64, bool) {
			if m.has[name] == 0 {
				return 0, false
			}
			left := m.has[name] - min(m.used(name, true)+schedulertest.NonZeroRequest(model, name, true), m.has[name])
			return left * 100 / m.has[name], true
		}
		taken := func(name corev1.ResourceName) (int64, bool) {
			_, exact, counts := m.share(name, model, true)
			return exact, counts
		}
		same := func(n int64) int64 { return n }
		if got, want := pluginScores(t, least, s, pod)["n"], score(map[corev1.ResourceName]int64{schedulertest.FitCPU: 1, schedulertest.FitMemory: 1}, same, free); got != want {
			t.Fatalf("%s: least allocated scores %d, want %d", said, got, want)
		}
		if got, want := pluginScores(t, most, s, pod)["n"], score(map[corev1.ResourceName]int64{schedulertest.FitCPU: 2, schedulertest.FitMemory: 1, schedulertest.FitStorage: 3}, same, taken); got != want {
			t.Fatalf("%s: most allocated scores %d, want %d", said, got, want)
		}
		scores := pluginScores(t, balance, s, pod)
		if silent := model[schedulertest.FitCPU] == 0 && model[schedulertest.FitMemory] == 0; silent != (scores == nil) {
			t.Fatalf("%s: balance says %v", said, scores)
		} else if !silent {
			balanceOf := func(p map[corev1.ResourceName]int64) int64 {
				cpu, _, hasCPU := m.share(schedulertest.FitCPU, p, false)
				memory, _, hasMemory := m.share(schedulertest.FitMemory, p, false)
				if !hasCPU || !hasMemory {
					return 100
				}
				return int64((1 - math.Abs(cpu-memory)/2) * 100)
			}
			if want := 50 + (50+balanceOf(model)-balanceOf(nil))/2; scores["n"] != want {
				t.Fatalf("%s: balance scores %d, want %d", said, scores["n"], want)
			}
		}
	}
	if refused < 200 || refused > 1150 || forGood < 50 {
		t.Errorf("%d of 1200 are refused, %d for good: too one-sided to tell anything", refused, forGood)
	}
}

func TestNodeResourcesFitHints(t *testing.T) {
	pod := schedulertest.PodWithoutContainers("p", schedulertest.AddContainer("c", "cpu=2 memory=2Gi"))
	small, large := "cpu=1 memory=8Gi", "cpu=4 memory=8Gi"
	fpgas := schedulertest.PodWithoutContainers("p", schedulertest.AddContainer("c", "example.com/fpga=2"))
	held := func(requests string) *corev1.Pod {
		return schedulertest.PodWithoutContainers("x", schedulertest.OnNode("n"), schedulertest.AddContainer("c", requests))
	}
	waiting := func(requests string) *corev1.Pod {
		return schedulertest.PodWithoutContainers("p", schedulertest.AddContainer("c", requests))
	}
	fewer := func(text string) *corev1.Node { return testNodeWith(schedulertest.NodeWithAllocatable("n", text), "1") }
	class := func(name, stands string) *resourcev1.DeviceClass {
		return schedulertest.ClassForExtendedResource(name, stands, 0)
	}
	added := func(c *resourcev1.DeviceClass) Event {
		return Event{Resource: DeviceClassResource, Action: Add, New: c}
	}
	changed := func(old, now *resourcev1.DeviceClass) Event {
		return Event{Resource: DeviceClassResource, Action: UpdateOther, Old: old, New: now}
	}
	checkHints(t, DefaultProfile(), NodeResourcesFitName, snapshottest.New(t, nil), []ruleHint{
		{"a pod went", pod, rulePodWent(held("cpu=1")), true},
		{"a pod went that asked for something else", pod, rulePodWent(held("example.com/fpga=1")), true},
		{"a nominated pod went", pod, rulePodWent(schedulertest.TestPod("x", schedulertest.NominatedTo("n"))), true},
		{"a pod that was nowhere went", pod, rulePodWent(schedulertest.TestPod("x")), false},
		{"a pod came", pod, rulePodCame(held("cpu=1")), false},
		{"a pod asks for less CPU", pod, rulePodIs(held("cpu=2"), held("cpu=1")), true},
		{"a pod asks for more CPU", pod, rulePodIs(held("cpu=1"), held("cpu=2")), false},
		{"a pod asks for less memory and more CPU", pod, rulePodIs(held("cpu=1 memory=2Gi"), held("cpu=2 memory=1Gi")), true},
		{"a pod asks for less storage", pod, rulePodIs(held("ephemeral-storage=2Gi"), held("ephemeral-storage=1Gi")), false},
		{"a pod asks for fewer devices", pod, rulePodIs(held("example.com/fpga=2"), held("example.com/fpga=1")), false},
		{"a pod asks for fewer devices that are wanted", fpgas, rulePodIs(held("example.com/fpga=2"), held("example.com/fpga=1")), true},
		{"a pod has other labels", pod, rulePodIs(held("cpu=2"), schedulertest.PodWithoutContainers("x", schedulertest.OnNode("n"), schedulertest.AddContainer("c", "cpu=2"), schedulertest.Labelled("a", "b"))), false},
		{"the pod itself asks for less", waiting("cpu=1"), ruleItselfIs(waiting("cpu=2"), waiting("cpu=1")), true},
		{"the pod itself does not ask any more", waiting(""), ruleItselfIs(waiting("cpu=2"), waiting("")), true},
		{"the pod itself asks for more", waiting("cpu=2"), ruleItselfIs(waiting("cpu=1"), waiting("cpu=2")), false},
		{"the pod itself has other labels", pod, ruleItselfIs(pod, schedulertest.PodWithoutContainers("p", schedulertest.AddContainer("c", "cpu=2 memory=2Gi"), schedulertest.Labelled("a", "b"))), false},

		{"a node that is large enough came", pod, ruleNodeCame(schedulertest.NodeWithAllocatable("n", large)), true},
		{"a node exactly large enough came", pod, ruleNodeCame(schedulertest.NodeWithAllocatable("n", "cpu=2 memory=2Gi")), true},
		{"a node that is too small came", pod, ruleNodeCame(schedulertest.NodeWithAllocatable("n", small)), false},
		{"a node for no pods came", pod, ruleNodeCame(testNodeWith(schedulertest.NodeWithAllocatable("n", large), "0")), false},
		{"a node without the device came", fpgas, ruleNodeCame(schedulertest.NodeWithAllocatable("n", large)), false},
		{"a node with the device came", fpgas, ruleNodeCame(schedulertest.NodeWithAllocatable("n", "example.com/fpga=2")), true},
		{"a node has grown enough", pod, ruleNodeIs(schedulertest.NodeWithAllocatable("n", small), schedulertest.NodeWithAllocatable("n", large)), true},
		{"a node has grown, not enough", pod, ruleNodeIs(schedulertest.NodeWithAllocatable("n", small), schedulertest.NodeWithAllocatable("n", "cpu=1900m memory=9Gi")), false},
		{"a node that was large enough has grown", pod, ruleNodeIs(schedulertest.NodeWithAllocatable("n", large), schedulertest.NodeWithAllocatable("n", "cpu=5 memory=8Gi")), true},
		{"a node that was large enough has shrunk", pod, ruleNodeIs(schedulertest.NodeWithAllocatable("n", large), schedulertest.NodeWithAllocatable("n", "cpu=3 memory=8Gi")), false},
		{"a node has grown in what is not wanted", pod, ruleNodeIs(schedulertest.NodeWithAllocatable("n", large), schedulertest.NodeWithAllocatable("n", large+" ephemeral-storage=9Gi")), false},
		{"a node has grown in one and shrunk in the other", pod, ruleNodeIs(schedulertest.NodeWithAllocatable("n", large), schedulertest.NodeWithAllocatable("n", "cpu=3 memory=9Gi")), true},
		{"a node takes more pods", pod, ruleNodeIs(fewer(large), schedulertest.NodeWithAllocatable("n", large)), true},
		{"a node takes fewer pods", pod, ruleNodeIs(schedulertest.NodeWithAllocatable("n", large), fewer(large)), false},
		{"a node takes more pods than none asks for", schedulertest.TestPod("p"), ruleNodeIs(fewer(large), schedulertest.NodeWithAllocatable("n", large)), true},
		{"a node has grown, and nothing is asked", schedulertest.TestPod("p"), ruleNodeIs(schedulertest.NodeWithAllocatable("n", small), schedulertest.NodeWithAllocatable("n", large)), false},
		{"a node has more devices", fpgas, ruleNodeIs(schedulertest.NodeWithAllocatable("n", "example.com/fpga=2"), schedulertest.NodeWithAllocatable("n", "example.com/fpga=3")), true},
		{"a node has other labels", pod, ruleNodeIs(schedulertest.NodeWithAllocatable("n", large), func() *corev1.Node {
			n := schedulertest.NodeWithAllocatable("n", large)
			schedulertest.Zone("1")(n)
			return n
		}()), false},
		{"a node went", pod, ruleNodeWent(schedulertest.NodeWithAllocatable("n", large)), false},

		{"a class for the device came", fpgas, added(class("c", string(schedulertest.FitFPGA))), true},
		{"a class for another device came", fpgas, added(class("c", string(schedulertest.FitNIC))), false},
		{"a class for none came", fpgas, added(class("c", "")), false},
		{"a class for the device came, nothing is asked", schedulertest.TestPod("p"), added(class("c", string(schedulertest.FitFPGA))), false},
		{"a class that is asked for by name came", waiting("deviceclass.resource.kubernetes.io/c=1"), added(class("c", "")), true},
		{"another class than is asked for by name came", waiting("deviceclass.resource.kubernetes.io/c=1"), added(class("d", "")), false},
		{"a class stands for the device now", fpgas, changed(class("c", ""), class("c", string(schedulertest.FitFPGA))), true},
		{"a class stands for the device as before", fpgas, changed(class("c", string(schedulertest.FitFPGA)), class("c", string(schedulertest.FitFPGA))), false},
		{"a class stands for the device no longer", fpgas, changed(class("c", string(schedulertest.FitFPGA)), class("c", "")), false},
		{"a class that is asked for by name stands for something now", waiting("deviceclass.resource.kubernetes.io/c=1"), changed(class("c", ""), class("c", string(schedulertest.FitNIC))), false},
	})
}

// testNodeWith is the node with a limited number of pods.
func testNodeWith(n *corev1.Node, pods string) *corev1.Node {
	schedulertest.NodeHas(corev1.ResourcePods, pods)(n)
	return n
}

func TestFreesSomeOf(t *testing.T) {
	storage := func(quantity string) schedulertest.PodOption {
		return schedulertest.Requesting(corev1.ResourceEphemeralStorage, quantity)
	}
	nothing := func(*corev1.Pod) {}
	allocated := func(cpu string) schedulertest.PodOption {
		return func(p *corev1.Pod) {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", AllocatedResources: schedulertest.ParseResources("cpu=" + cpu)}}
		}
	}
	both := func(options ...schedulertest.PodOption) schedulertest.PodOption {
		return func(p *corev1.Pod) {
			for _, o := range options {
				o(p)
			}
		}
	}
	for _, test := range []struct {
		what             string
		wanted, old, now schedulertest.PodOption
		helps            bool
	}{
		{"less CPU for who wants CPU", schedulertest.RequestingCPU("1"), schedulertest.RequestingCPU("2"), schedulertest.RequestingCPU("1"), true},
		{"as much CPU", schedulertest.RequestingCPU("1"), schedulertest.RequestingCPU("2"), schedulertest.RequestingCPU("2"), false},
		{"less CPU for who wants memory", schedulertest.RequestingMemory("1Gi"), schedulertest.RequestingCPU("2"), schedulertest.RequestingCPU("1"), false},
		{"less CPU for who wants nothing", nothing, schedulertest.RequestingCPU("2"), schedulertest.RequestingCPU("1"), false},
		{"less CPU for who wants none of it", schedulertest.RequestingCPU("0"), schedulertest.RequestingCPU("2"), schedulertest.RequestingCPU("1"), false},
		{"less memory", schedulertest.RequestingMemory("1Gi"), schedulertest.RequestingMemory("2Gi"), schedulertest.RequestingMemory("1Gi"), true},
		{"more memory", schedulertest.RequestingMemory("1Gi"), schedulertest.RequestingMemory("1Gi"), schedulertest.RequestingMemory("2Gi"), false},
		{"less storage", storage("1Gi"), storage("2Gi"), storage("1Gi"), true},
		{"one device less", schedulertest.Requesting(schedulertest.Gpu, "1"), schedulertest.Requesting(schedulertest.Gpu, "2"), schedulertest.Requesting(schedulertest.Gpu, "1"), true},
		{"one device more", schedulertest.Requesting(schedulertest.Gpu, "1"), schedulertest.Requesting(schedulertest.Gpu, "1"), schedulertest.Requesting(schedulertest.Gpu, "2"), false},
		{"none of the devices", schedulertest.Requesting(schedulertest.Gpu, "1"), schedulertest.Requesting(schedulertest.Gpu, "2"), nothing, true},
		{"a device of another kind", schedulertest.Requesting(schedulertest.Gpu, "1"), schedulertest.Requesting("example.com/nic", "2"), schedulertest.Requesting("example.com/nic", "1"), false},
		{"asked less, but still held", schedulertest.RequestingCPU("1"), both(schedulertest.RequestingCPU("2"), allocated("2")), both(schedulertest.RequestingCPU("1"), allocated("2")), false},
		{"what was held is given back", schedulertest.RequestingCPU("1"), both(schedulertest.RequestingCPU("1"), allocated("2")), both(schedulertest.RequestingCPU("1"), allocated("1")), true},
		{"less CPU, more memory", schedulertest.RequestingCPU("1"), both(schedulertest.RequestingCPU("2"), schedulertest.RequestingMemory("1Gi")), both(schedulertest.RequestingCPU("1"), schedulertest.RequestingMemory("2Gi")), true},
	} {
		if got := scaleDownHint(nil, schedulertest.TestPod("p", test.wanted), schedulertest.TestPod("x", schedulertest.OnNode("n"), test.old), schedulertest.TestPod("x", schedulertest.OnNode("n"), test.now)); got != test.helps {
			t.Errorf("%s: helps is %t", test.what, got)
		}
	}
	if scaleDownHint(nil, schedulertest.TestPod("p", schedulertest.RequestingCPU("1")), schedulertest.TestPod("x", schedulertest.RequestingCPU("2")), schedulertest.TestPod("x", schedulertest.RequestingCPU("1"))) {
		t.Error("a pod without a node frees something")
	}
}

func TestImageLocalityScore(t *testing.T) {
	const mb, gb = 1 << 20, 1 << 30
	image := func(name string) schedulertest.PodOption {
		return func(p *corev1.Pod) {
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: name, Image: name})
		}
	}
	initImage := func(name string) schedulertest.PodOption {
		return func(p *corev1.Pod) {
			p.Spec.InitContainers = append(p.Spec.InitContainers, corev1.Container{Name: name, Image: name})
		}
	}
	volumeImage := func(name string) schedulertest.PodOption {
		return func(p *corev1.Pod) {
			p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "v", VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: name}}})
		}
	}
	// The worth of images between 23 MB and 1000 MB for each of the pod's.
	worth := func(megabytes, images int64) int64 {
		return 100 * (min(max(megabytes, 23), 1000*images) - 23) * mb / ((1000*images - 23) * mb)
	}
	for _, test := range []struct {
		what  string
		nodes []*corev1.Node
		pod   *corev1.Pod
		want  map[string]int64
	}{
		{"nobody holds it", []*corev1.Node{schedulertest.TestNode("a"), schedulertest.TestNode("b")}, schedulertest.PodWithoutContainers("p", image("x:1")), map[string]int64{"a": 0, "b": 0}},
		{"the only node holds it", []*corev1.Node{schedulertest.TestNode("a", schedulertest.NodeImage("x:1", 500*mb))}, schedulertest.PodWithoutContainers("p", image("x:1")), map[string]int64{"a": worth(500, 1)}},
		{"one of two holds it: half its size", []*corev1.Node{schedulertest.TestNode("a", schedulertest.NodeImage("x:1", 500*mb)), schedulertest.TestNode("b")}, schedulertest.PodWithoutContainers("p", image("x:1")), map[string]int64{"a": worth(250, 1), "b": 0}},
		{"one of three: a third", []*corev1.Node{schedulertest.TestNode("a", schedulertest.NodeImage("x:1", 900*mb)), schedulertest.TestNode("b"), schedulertest.TestNode("c")}, schedulertest.PodWithoutContainers("p", image("x:1")), map[string]int64{"a": worth(300, 1), "b": 0, "c": 0}},
		{"both hold it", []*corev1.Node{schedulertest.TestNode("a", schedulertest.NodeImage("x:1", 500*mb)), schedulertest.TestNode("b", schedulertest.NodeImage("x:1", 500*mb))}, schedulertest.PodWithoutContainers("p", image("x:1")), map[string]int64{"a": worth(500, 1), "b": worth(500, 1)}},
		{"a small one is worth nothing", []*corev1.Node{schedulertest.TestNode("a", schedulertest.NodeImage("x:1", 23*mb))}, schedulertest.PodWithoutContainers("p", image("x:1")), map[string]int64{"a": 0}},
		{"just more than small", []*corev1.Node{schedulertest.TestNode("a", schedulertest.NodeImage("x:1", 33*mb))}, schedulertest.PodWithoutContainers("p", image("x:1")), map[string]int64{"a": 1}},
		{"a large one is worth all", []*corev1.Node{schedulertest.TestNode("a", schedulertest.NodeImage("x:1", 1000*mb))}, schedulertest.PodWithoutContainers("p", image("x:1")), map[string]int64{"a": 100}},
		{"a larger one is not worth more", []*corev1.Node{schedulertest.TestNode("a", schedulertest.NodeImage("x:1", 9*gb))}, schedulertest.PodWithoutContainers("p", image("x:1")), map[string]int64{"a": 100}},
		{"one of the pod's two", []*corev1.Node{schedulertest.TestNode("a", schedulertest.NodeImage("x:1", 1000*mb))}, schedulertest.PodWithoutContainers("p", image("x:1"), image("y:1")), map[string]int64{"a": worth(1000, 2)}},
		{"both of the pod's two add up", []*corev1.Node{schedulertest.TestNode("a", schedulertest.NodeImage("x:1", 600*mb), schedulertest.NodeImage("y:1", 700*mb))}, schedulertest.PodWithoutContainers("p", image("x:1"), image("y:1")), map[string]int64{"a": worth(1300, 2)}},
		{"one large image may be worth more than one image's share", []*corev1.Node{schedulertest.TestNode("a", schedulertest.NodeImage("x:1", 1500*mb))}, schedulertest.PodWithoutContainers("p", image("x:1"), image("y:1")), map[string]int64{"a": worth(1500, 2)}},
		{"an image used twice counts twice", []*corev1.Node{schedulertest.TestNode("a", schedulertest.NodeImage("x:1", 600*mb))}, schedulertest.PodWithoutContainers("p", image("x:1"), image("x:1")), map[string]int64{"a": worth(1200, 2)}},
		{"an init container's", []*corev1.Node{schedulertest.TestNode("a", schedulertest.NodeImage("x:1", 600*mb))}, schedulertest.PodWithoutContainers("p", initImage("x:1"), image("y:1")), map[string]int64{"a": worth(600, 2)}},
		{"a volume's", []*corev1.Node{schedulertest.TestNode("a", schedulertest.NodeImage("x:1", 600*mb))}, schedulertest.PodWithoutContainers("p", volumeImage("x:1"), image("y:1")), map[string]int64{"a": worth(600, 2)}},
		{"a volume that is no image does not count", []*corev1.Node{schedulertest.TestNode("a", schedulertest.NodeImage("x:1", 600*mb))}, schedulertest.PodWithoutContainers("p", image("x:1"), schedulertest.UsingClaim("c")), map[string]int64{"a": worth(600, 1)}},
		{"no tag is the latest", []*corev1.Node{schedulertest.TestNode("a", schedulertest.NodeImage("x:latest", 600*mb))}, schedulertest.PodWithoutContainers("p", image("x")), map[string]int64{"a": worth(600, 1)}},
		{"another tag is another image", []*corev1.Node{schedulertest.TestNode("a", schedulertest.NodeImage("x:2", 600*mb))}, schedulertest.PodWithoutContainers("p", image("x:1")), map[string]int64{"a": 0}},
		{"a registry's port is no tag", []*corev1.Node{schedulertest.TestNode("a", schedulertest.NodeImage("host:5000/x:latest", 600*mb))}, schedulertest.PodWithoutContainers("p", image("host:5000/x")), map[string]int64{"a": worth(600, 1)}},
		{"a digest is its own name", []*corev1.Node{schedulertest.TestNode("a", schedulertest.NodeImage("x@sha256:ab", 600*mb))}, schedulertest.PodWithoutContainers("p", image("x@sha256:ab")), map[string]int64{"a": worth(600, 1)}},
		{"the size is the first one's", []*corev1.Node{schedulertest.TestNode("a", schedulertest.NodeImage("x:1", 500*mb)), schedulertest.TestNode("b", schedulertest.NodeImage("x:1", 900*mb))}, schedulertest.PodWithoutContainers("p", image("x:1")), map[string]int64{"a": worth(500, 1), "b": worth(500, 1)}},
		{"a name twice on one node has the first's size", []*corev1.Node{schedulertest.TestNode("a", schedulertest.NodeImage("x:1", 500*mb), schedulertest.NodeImage("x:1", 900*mb))}, schedulertest.PodWithoutContainers("p", image("x:1")), map[string]int64{"a": worth(500, 1)}},
	} {
		t.Run(test.what, func(t *testing.T) {
			if got := pluginScores(t, imageLocality{}, snapshottest.New(t, test.nodes), test.pod); !maps.Equal(got, test.want) {
				t.Errorf("scores %v, want %v", got, test.want)
			}
		})
	}
	if got := pluginScores(t, imageLocality{}, snapshottest.New(t, []*corev1.Node{schedulertest.TestNode("a")}), schedulertest.PodWithoutContainers("p")); got != nil {
		t.Errorf("a pod without images: %v", got)
	}
}

// The worth of an image follows the nodes that hold it, in scores that were asked for before.
func TestImageLocalityFollowsTheNodes(t *testing.T) {
	const mb = 1 << 20
	worth := func(megabytes int64) int64 { return 100 * (megabytes - 23) / (1000 - 23) }
	s := snapshottest.New(t, []*corev1.Node{schedulertest.TestNode("a"), schedulertest.TestNode("b")})
	rule := mustRule[imageLocality](t, ImageLocalityName, "")
	pod := schedulertest.TestPod("p", func(p *corev1.Pod) { p.Spec.Containers[0].Image = "x:1" })
	x := rule.Score(s, snapshottest.PodInfo(t, pod))
	seen := NewImageVersions(s, snapshottest.PodInfo(t, pod))
	for _, step := range []struct {
		what    string
		do      func()
		want    map[string]int64
		changes bool // whether tables made before must be made anew
	}{
		{"nobody has it", func() {}, map[string]int64{"a": 0, "b": 0}, false},
		{"a node comes while nobody has it", func() { s.SetNode(schedulertest.TestNode("z")) }, map[string]int64{"a": 0, "b": 0, "z": 0}, false},
		{"and goes", func() { s.DeleteNode("z") }, map[string]int64{"a": 0, "b": 0}, false},
		{"a has it", func() { s.SetNode(schedulertest.TestNode("a", schedulertest.NodeImage("x:1", 600*mb))) }, map[string]int64{"a": worth(300), "b": 0}, true},
		{"b has it too, larger", func() { s.SetNode(schedulertest.TestNode("b", schedulertest.NodeImage("x:1", 900*mb))) }, map[string]int64{"a": worth(600), "b": worth(600)}, true},
		{"a has another label", func() {
			s.SetNode(schedulertest.TestNode("a", schedulertest.NodeImage("x:1", 600*mb), schedulertest.Zone("1")))
		}, map[string]int64{"a": worth(600), "b": worth(600)}, false},
		{"c comes without it", func() { s.SetNode(schedulertest.TestNode("c")) }, map[string]int64{"a": worth(400), "b": worth(400), "c": 0}, true},
		{"c goes", func() { s.DeleteNode("c") }, map[string]int64{"a": worth(600), "b": worth(600)}, true},
		{"a has lost it; its size was what counted, and still does", func() { s.SetNode(schedulertest.TestNode("a")) }, map[string]int64{"a": 0, "b": worth(300)}, true},
		{"b, which alone has it, has a new one of the name", func() { s.SetNode(schedulertest.TestNode("b", schedulertest.NodeImage("x:1", 800*mb))) }, map[string]int64{"a": 0, "b": worth(400)}, true},
		{"a has got something else", func() { s.SetNode(schedulertest.TestNode("a", schedulertest.NodeImage("y:1", 800*mb))) }, map[string]int64{"a": 0, "b": worth(400)}, false},
		{"a has it again, of another size", func() { s.SetNode(schedulertest.TestNode("a", schedulertest.NodeImage("x:1", 100*mb))) }, map[string]int64{"a": worth(800), "b": worth(800)}, true},
		{"a's size changes, but b has it too", func() { s.SetNode(schedulertest.TestNode("a", schedulertest.NodeImage("x:1", 200*mb))) }, map[string]int64{"a": worth(800), "b": worth(800)}, false},
		{"b goes with it", func() { s.DeleteNode("b") }, map[string]int64{"a": worth(800)}, true},
		{"nobody has it any more", func() { s.SetNode(schedulertest.TestNode("a")) }, map[string]int64{"a": 0}, true},
	} {
		step.do()
		got := map[string]int64{}
		for i := range s.NodeInfos {
			if s.NodeInfos[i].Node != nil {
				got[s.NodeInfos[i].Name] = x.Score(int32(i))
			}
		}
		if !maps.Equal(got, step.want) {
			t.Errorf("%s: %v, want %v", step.what, got, step.want)
		}
		if current := seen.Current(s); current == step.changes {
			t.Errorf("%s: what was seen before is still so: %t", step.what, current)
		}
		seen.Refresh(s)
	}
	if len(s.Images) != 0 {
		t.Errorf("images are remembered that nobody holds: %v", s.Images)
	}
}

// Devices stand for an extended resource only where the node does not offer the resource itself.
func TestNodeResourcesFitLeavesDevicesToOthers(t *testing.T) {
	for _, test := range []struct {
		what, has, asks, want string
	}{
		{"the node offers none: devices may", "cpu=4", "example.com/fpga=9", ""},
		{"the node offers some: they must do", "example.com/fpga=1", "example.com/fpga=2", schedulertest.UnresolvablePrefix + "Insufficient example.com/fpga"},
		{"the node offers enough", "example.com/fpga=2", "example.com/fpga=2", ""},
		{"the node says that it has none: devices may", "example.com/fpga=0", "example.com/fpga=2", ""},
		{"no class stands for it", "cpu=4", "other.org/nic=1", schedulertest.UnresolvablePrefix + "Insufficient other.org/nic"},
		{"CPU is not a device's business", "cpu=1", "cpu=2 example.com/fpga=9", schedulertest.UnresolvablePrefix + "Insufficient cpu"},
	} {
		s := snapshottest.New(t, []*corev1.Node{schedulertest.NodeWithAllocatable("n", test.has)})
		s.SetObject(schedulertest.ClassForExtendedResource("c", string(schedulertest.FitFPGA), 0))
		rule := mustRule[*NodeResourcesFit](t, NodeResourcesFitName, "")
		pod := schedulertest.PodWithoutContainers("p", schedulertest.AddContainer("c", test.asks))
		if got := pluginRefusals(t, rule, s, pod)["n"]; got != test.want {
			t.Errorf("%s: %q, want %q", test.what, got, test.want)
		}
		f, _ := rule.Filter(s, snapshottest.PodInfo(t, pod))
		if devices := strings.Contains(test.asks, "fpga"); f.Volatile != devices {
			t.Errorf("%s: volatile is %t", test.what, f.Volatile)
		}
		if helps := pluginHelps(t, DefaultProfile(), NodeResourcesFitName, s, pod, ruleNodeCame(schedulertest.NodeWithAllocatable("m", test.has))); helps != (test.want == "") {
			t.Errorf("%s: such a node helps is %t", test.what, helps)
		}
	}
}

func TestNodeResourcesFitIgnores(t *testing.T) {
	const none = schedulertest.UnresolvablePrefix + "Insufficient "
	for _, test := range []struct{ what, arguments, asks, want string }{
		{"a resource by name", `{"ignoredResources":["example.com/fpga"]}`, "example.com/fpga=1", ""},
		{"another resource", `{"ignoredResources":["example.com/fpga"]}`, "example.com/gpu=1", none + "example.com/gpu"},
		{"a group", `{"ignoredResourceGroups":["example.com"]}`, "example.com/fpga=1", ""},
		{"another group", `{"ignoredResourceGroups":["example.com"]}`, "other.org/nic=1", none + "other.org/nic"},
		{"a group is the whole group", `{"ignoredResourceGroups":["example"]}`, "example.com/fpga=1", none + "example.com/fpga"},
		{"one of two", `{"ignoredResources":["other.org/nic"]}`, "other.org/nic=1 example.com/fpga=1", none + "example.com/fpga"},
		{"CPU cannot be ignored", `{"ignoredResources":["cpu"]}`, "cpu=1", none + "cpu"},
		{"huge pages cannot be ignored", `{"ignoredResources":["hugepages-2Mi"]}`, "hugepages-2Mi=2Mi", none + "hugepages-2Mi"},
		{"nor what is Kubernetes' own", `{"ignoredResources":["kubernetes.io/something"],"ignoredResourceGroups":["kubernetes.io"]}`, "kubernetes.io/something=1", none + "kubernetes.io/something"},
	} {
		rule := mustRule[*NodeResourcesFit](t, NodeResourcesFitName, test.arguments)
		s := snapshottest.New(t, []*corev1.Node{schedulertest.NodeWithAllocatable("n", "")})
		if got := pluginRefusals(t, rule, s, schedulertest.PodWithoutContainers("p", schedulertest.AddContainer("c", test.asks)))["n"]; got != test.want {
			t.Errorf("%s: %q, want %q", test.what, got, test.want)
		}
	}
	// What an extender accounts for is ignored, too.
	profile := DefaultProfile()
	profile.IgnoreResources([]string{"example.com/fpga"})
	s := snapshottest.New(t, []*corev1.Node{schedulertest.NodeWithAllocatable("n", "")})
	for asks, want := range map[string]string{"example.com/fpga=1": "", "other.org/nic=1": "Insufficient other.org/nic"} {
		if got := filterReasons(t, s, schedulertest.PodWithoutContainers("p", schedulertest.AddContainer("c", asks)), profile)["n"]; got != want {
			t.Errorf("%s of an extender: %q, want %q", asks, got, want)
		}
	}
}
