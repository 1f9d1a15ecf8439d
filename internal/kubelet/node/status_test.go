package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"skiff/internal/kubelet/cri"
)

var now = time.Date(2026, 11, 15, 12, 0, 0, 0, time.UTC)

// list makes a list of resources from "cpu=1 memory=1Gi".
func list(text string) corev1.ResourceList {
	l := corev1.ResourceList{}
	for _, pair := range strings.Fields(text) {
		name, value, _ := strings.Cut(pair, "=")
		l[corev1.ResourceName(name)] = resource.MustParse(value)
	}
	return l
}

// text is the inverse of list, sorted.
func text(l corev1.ResourceList) string {
	var all []string
	for name, q := range l {
		all = append(all, string(name)+"="+q.String())
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// runtimeStatus is a status of a runtime.
func runtimeStatus(up, network bool) *cri.Status {
	return &cri.Status{Conditions: []cri.Condition{
		{Type: "RuntimeReady", Status: up, Reason: "R", Message: "m"},
		{Type: "NetworkReady", Status: network, Reason: "NetworkPluginNotReady", Message: "Network plugin returns error: cni plugin not initialized"},
	}}
}

// healthy is the input of a healthy node.
func healthy() StatusInput {
	return StatusInput{
		Now: now, Settings: Settings{Name: "a", EvictionReserved: list("memory=100Mi")}.withDefaults(),
		Host:      Host{CPUs: 4, Memory: 8 << 30, Storage: 100 << 30, MachineID: "m", SystemUUID: "s", BootID: "b", KernelVersion: "6.1", OSImage: "Debian"},
		Addresses: []string{"10.0.0.1", "fd00::1"},
		Runtime:   RuntimeState{Name: "containerd", Version: "v2.4.2", LastReady: now.Add(-time.Second), Status: runtimeStatus(true, true)},
	}
}

func condition(s corev1.NodeStatus, kind corev1.NodeConditionType) corev1.NodeCondition {
	for _, c := range s.Conditions {
		if c.Type == kind {
			return c
		}
	}
	return corev1.NodeCondition{}
}

func TestReady(t *testing.T) {
	tests := map[string]struct {
		change func(*StatusInput)
		want   string
	}{
		"all is well": {func(*StatusInput) {}, "True KubeletReady kubelet is posting ready status"},
		"the runtime has not answered yet": {
			func(in *StatusInput) { in.Runtime = RuntimeState{} },
			"False KubeletNotReady [container runtime status check may not have completed yet, network state unknown]",
		},
		"the runtime is silent": {func(in *StatusInput) { in.Runtime.LastReady = now.Add(-30 * time.Second) }, "False KubeletNotReady container runtime is down"},
		"the runtime is not ready": {
			func(in *StatusInput) { in.Runtime.Status = runtimeStatus(false, true) },
			"False KubeletNotReady container runtime not ready: RuntimeReady=false reason:R message:m",
		},
		"the network is not ready": {
			func(in *StatusInput) { in.Runtime.Status = runtimeStatus(true, false) },
			"False KubeletNotReady container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady message:Network plugin returns error: cni plugin not initialized",
		},
		"the runtime says nothing of its network": {
			func(in *StatusInput) { in.Runtime.Status.Conditions = in.Runtime.Status.Conditions[:1] },
			"False KubeletNotReady container runtime network not ready: <nil>",
		},
		"the host goes down": {func(in *StatusInput) { in.Problems = []error{ErrShuttingDown} }, "False KubeletNotReady node is shutting down"},
		"two problems":       {func(in *StatusInput) { in.Problems = []error{errors.New("one"), errors.New("two")} }, "False KubeletNotReady [one, two]"},
		"the host is not known": {
			func(in *StatusInput) { in.HostError = errors.New("no /proc") },
			"False KubeletNotReady missing node capacity for resources: ephemeral-storage",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			in := healthy()
			test.change(&in)
			s, _ := Status(in)
			c := condition(s, corev1.NodeReady)
			if got := fmt.Sprint(c.Status, " ", c.Reason, " ", c.Message); got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
			if s.Conditions[len(s.Conditions)-1].Type != corev1.NodeReady {
				t.Error("Ready is not the last condition")
			}
		})
	}
}

func TestNetworkUnavailable(t *testing.T) {
	for name, test := range map[string]struct {
		network Network
		want    string
	}{
		"another component's":          {Network{}, "  "},
		"set up":                       {Network{Known: true}, "False RouteCreated the pod network is set up"},
		"another node is not reached":  {Network{Known: true, Message: "node b: no address"}, "False RouteCreated the pod network is set up; node b: no address"},
		"this node has no pod network": {Network{Known: true, Error: errors.New("no links of type vxlan")}, "True NoRouteCreated no links of type vxlan"},
		"error, another component's":   {Network{Error: errors.New("no bridge")}, "True PodNetworkError no bridge"},
	} {
		t.Run(name, func(t *testing.T) {
			in := healthy()
			in.Network = test.network
			s, _ := Status(in)
			c := condition(s, corev1.NodeNetworkUnavailable)
			if got := fmt.Sprintf("%s %s %s", c.Status, c.Reason, c.Message); got != test.want {
				t.Errorf("condition %q, want %q", got, test.want)
			}
		})
	}
}

// An error of a network whose condition is another component's is revoked when it is over. What the other component has set stays.
func TestNetworkErrorIsRevoked(t *testing.T) {
	in := healthy()
	in.Network = Network{Error: errors.New("no bridge")}
	in.Reported, _ = Status(in)
	in.Network = Network{}
	s, _ := Status(in)
	if c := condition(s, corev1.NodeNetworkUnavailable); c.Status != corev1.ConditionFalse {
		t.Errorf("after the error the condition is %s %s", c.Status, c.Reason)
	}
	theirs := corev1.NodeCondition{Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionTrue, Reason: "NoRouteCreated", Message: "no route"}
	in.Reported = corev1.NodeStatus{Conditions: []corev1.NodeCondition{theirs}}
	s, _ = Status(in)
	if c := condition(s, corev1.NodeNetworkUnavailable); c != theirs {
		t.Errorf("another component's condition has become %s %s", c.Status, c.Reason)
	}
}

func TestConditionsAndEvents(t *testing.T) {
	first, events := Status(healthy())
	if got := fmt.Sprint(reasons(events)); got != "[NodeHasSufficientMemory NodeHasNoDiskPressure NodeHasSufficientPID]" {
		t.Errorf("a new node has the events %s", got)
	}
	tests := map[string]struct {
		change func(*StatusInput)
		events string
		kind   corev1.NodeConditionType
		want   string
	}{
		"nothing new":       {func(*StatusInput) {}, "[]", corev1.NodeReady, "True KubeletReady true"},
		"memory runs short": {func(in *StatusInput) { in.Pressure.Memory = true }, "[NodeHasInsufficientMemory]", corev1.NodeMemoryPressure, "True KubeletHasInsufficientMemory false"},
		"disk runs short":   {func(in *StatusInput) { in.Pressure.Disk = true }, "[NodeHasDiskPressure]", corev1.NodeDiskPressure, "True KubeletHasDiskPressure false"},
		"processes run out": {func(in *StatusInput) { in.Pressure.PID = true }, "[NodeHasInsufficientPID]", corev1.NodePIDPressure, "True KubeletHasInsufficientPID false"},
		"no longer ready":   {func(in *StatusInput) { in.Problems = []error{ErrShuttingDown} }, "[NodeNotReady]", corev1.NodeReady, "False KubeletNotReady false"},
		"another boot":      {func(in *StatusInput) { in.Host.BootID = "c" }, "[Rebooted]", corev1.NodeReady, "True KubeletReady true"},
		"ready after all": {
			func(in *StatusInput) { in.Reported.Conditions[3].Status = corev1.ConditionFalse }, "[NodeReady]", corev1.NodeReady, "True KubeletReady false",
		},
		"unknown before, as the node controller sets it": {
			func(in *StatusInput) { in.Reported.Conditions[0].Status = corev1.ConditionUnknown }, "[NodeHasSufficientMemory]", corev1.NodeMemoryPressure, "False KubeletHasSufficientMemory false",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			in := healthy()
			in.Now, in.Reported = now.Add(time.Minute), *first.DeepCopy()
			in.Runtime.LastReady = in.Now
			test.change(&in)
			s, events := Status(in)
			c := condition(s, test.kind)
			kept := c.LastTransitionTime.Time.Equal(now)
			if got := fmt.Sprint(c.Status, " ", c.Reason, " ", kept); got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
			if got := fmt.Sprint(reasons(events)); got != test.events {
				t.Errorf("events %s, want %s", got, test.events)
			}
			if !c.LastHeartbeatTime.Time.Equal(in.Now) {
				t.Error("the heartbeat is old")
			}
			if changed := statusChanged(&in.Reported, &s); changed == (name == "nothing new") {
				t.Errorf("changed: %v", changed)
			}
		})
	}
}

func reasons(events []Event) []string {
	all := []string{}
	for _, e := range events {
		all = append(all, e.Reason)
	}
	return all
}

func TestResources(t *testing.T) {
	tests := map[string]struct {
		change                func(*StatusInput)
		capacity, allocatable string
	}{
		"plain": {
			func(*StatusInput) {},
			"cpu=4 ephemeral-storage=100Gi memory=8Gi pods=110", "cpu=4 ephemeral-storage=100Gi memory=8092Mi pods=110",
		},
		"reserved": {
			func(in *StatusInput) {
				in.Settings.SystemReserved, in.Settings.KubeReserved = list("cpu=500m memory=1Gi"), list("cpu=250m memory=1Gi ephemeral-storage=10Gi")
			},
			"cpu=4 ephemeral-storage=100Gi memory=8Gi pods=110", "cpu=3250m ephemeral-storage=90Gi memory=6044Mi pods=110",
		},
		"more reserved than there is": {
			func(in *StatusInput) { in.Settings.SystemReserved = list("cpu=5") },
			"cpu=4 ephemeral-storage=100Gi memory=8Gi pods=110", "cpu=0 ephemeral-storage=100Gi memory=8092Mi pods=110",
		},
		"pods per core": {
			func(in *StatusInput) { in.Settings.PodsPerCore = 10 },
			"cpu=4 ephemeral-storage=100Gi memory=8Gi pods=40", "cpu=4 ephemeral-storage=100Gi memory=8092Mi pods=40",
		},
		"huge pages are not memory": {
			func(in *StatusInput) { in.Host.HugePages = map[int64]int64{2 << 20: 1 << 30, 1 << 30: 0} },
			"cpu=4 ephemeral-storage=100Gi hugepages-1Gi=0 hugepages-2Mi=1Gi memory=8Gi pods=110",
			"cpu=4 ephemeral-storage=100Gi hugepages-1Gi=0 hugepages-2Mi=1Gi memory=7068Mi pods=110",
		},
		"a page size that is gone": {
			func(in *StatusInput) {
				in.Reported.Capacity, in.Reported.Allocatable = list("hugepages-2Mi=1Gi"), list("hugepages-2Mi=1Gi")
			},
			"cpu=4 ephemeral-storage=100Gi memory=8Gi pods=110", "cpu=4 ephemeral-storage=100Gi memory=8092Mi pods=110",
		},
		"an extended resource that an administrator added": {
			func(in *StatusInput) { in.Reported.Capacity = list("example.com/dongle=4") },
			"cpu=4 ephemeral-storage=100Gi example.com/dongle=4 memory=8Gi pods=110",
			"cpu=4 ephemeral-storage=100Gi example.com/dongle=4 memory=8092Mi pods=110",
		},
		"an extended resource that an administrator removed": {
			func(in *StatusInput) { in.Reported.Allocatable = list("example.com/dongle=4") },
			"cpu=4 ephemeral-storage=100Gi memory=8Gi pods=110", "cpu=4 ephemeral-storage=100Gi memory=8092Mi pods=110",
		},
		"devices": {
			func(in *StatusInput) {
				in.Devices = Devices{Capacity: list("example.com/gpu=2"), Allocatable: list("example.com/gpu=1"), Removed: []corev1.ResourceName{"example.com/nic"}}
			},
			"cpu=4 ephemeral-storage=100Gi example.com/gpu=2 example.com/nic=0 memory=8Gi pods=110",
			"cpu=4 ephemeral-storage=100Gi example.com/gpu=1 example.com/nic=0 memory=8092Mi pods=110",
		},
		"more memory than before": {
			func(in *StatusInput) {
				in.Reported.Capacity, in.Reported.Allocatable = list("memory=1Gi cpu=1"), list("memory=1Gi cpu=1")
			},
			"cpu=4 ephemeral-storage=100Gi memory=8Gi pods=110", "cpu=4 ephemeral-storage=100Gi memory=8092Mi pods=110",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			in := healthy()
			test.change(&in)
			s, _ := Status(in)
			if got := text(s.Capacity); got != test.capacity {
				t.Errorf("capacity\ngot  %s\nwant %s", got, test.capacity)
			}
			if got := text(s.Allocatable); got != test.allocatable {
				t.Errorf("allocatable\ngot  %s\nwant %s", got, test.allocatable)
			}
			// Computing it again changes nothing.
			in.Reported = s
			again, _ := Status(in)
			if statusChanged(&s, &again) {
				t.Errorf("a second computation differs: %s, %s", text(again.Capacity), text(again.Allocatable))
			}
		})
	}
	if got := text(EnforcedAllocatable(list("cpu=4 memory=8Gi pid=1000"), Settings{KubeReserved: list("memory=1Gi pid=100"), EvictionReserved: list("memory=1Gi")})); got != "cpu=4 memory=7Gi pid=900" {
		t.Error(got)
	}
}

func TestNodeInfo(t *testing.T) {
	in := healthy()
	yes, no := true, false
	in.Settings.DeclaredFeatures, in.Settings.MaxImages = []string{"A"}, new(int32(2))
	in.Runtime.LastReadyStatus = &cri.Status{
		Handlers: []cri.Handler{{Name: "runsc"}, {Name: "", RecursiveReadOnlyMounts: true}}, SupplementalGroupsPolicy: &yes,
	}
	in.VolumesInUse, in.VolumesInUseKnown = []corev1.UniqueVolumeName{"v"}, true
	in.Host.Swap = 1 << 30
	in.Images = []*cri.Image{
		{ID: "a", Size: 10, RepoTags: []string{"small"}}, {ID: "b", Size: 30, RepoTags: []string{"t1", "t2", "t3", "t4", "t5"}, RepoDigests: []string{"d1"}}, {ID: "c", Size: 20},
	}
	s, _ := Status(in)
	if got := fmt.Sprint(s.Addresses); got != "[{InternalIP 10.0.0.1} {InternalIP fd00::1} {Hostname a}]" {
		t.Error(got)
	}
	if got := fmt.Sprint(s.Images); got != "[{[d1 t1 t2 t3 t4] 30} {[] 20}]" {
		t.Error(got)
	}
	info := s.NodeInfo
	if info.ContainerRuntimeVersion != "containerd://2.4.2" || !strings.HasPrefix(info.KubeletVersion, "v1.37.1") || info.OperatingSystem != "linux" ||
		info.OSImage != "Debian" || info.KernelVersion != "6.1" || info.BootID != "b" || info.MachineID != "m" || info.SystemUUID != "s" || *info.Swap.Capacity != 1<<30 {
		t.Errorf("%+v", info)
	}
	if s.DaemonEndpoints.KubeletEndpoint.Port != 10250 || !*s.Features.SupplementalGroupsPolicy || s.VolumesInUse[0] != "v" || s.DeclaredFeatures[0] != "A" {
		t.Errorf("%+v", s)
	}
	h := s.RuntimeHandlers
	if len(h) != 2 || h[0].Name != "" || *h[0].Features.RecursiveReadOnlyMounts != yes || *h[0].Features.UserNamespaces != no || *h[1].Features.UserNamespaces != no {
		t.Errorf("%+v", h)
	}
	in.Addresses, in.Reported = nil, s
	if kept, _ := Status(in); len(kept.Addresses) != 3 {
		t.Error("addresses that are not known were taken away")
	}
}

// TestStatusPatch applies the patch to an object that others have changed meanwhile.
func TestStatusPatch(t *testing.T) {
	in := healthy()
	old, _ := Status(in)
	in.Reported, in.Addresses, in.Pressure.Disk = old, []string{"10.0.0.9"}, true
	status, _ := Status(in)
	patch, err := statusPatch(&old, &status)
	if err != nil {
		t.Fatal(err)
	}
	theirs := old.DeepCopy()
	theirs.Conditions = append(theirs.Conditions, corev1.NodeCondition{Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionFalse, LastTransitionTime: metav1.NewTime(now)})
	theirs.Capacity["example.com/dongle"] = resource.MustParse("3")
	before, err := json.Marshal(corev1.Node{Status: *theirs})
	if err != nil {
		t.Fatal(err)
	}
	after, err := strategicpatch.StrategicMergePatch(before, patch, corev1.Node{})
	if err != nil {
		t.Fatal(err)
	}
	var node corev1.Node
	if err := json.Unmarshal(after, &node); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(node.Status.Addresses); got != "[{InternalIP 10.0.0.9} {Hostname a}]" {
		t.Errorf("%s from %s", got, patch)
	}
	if condition(node.Status, corev1.NodeNetworkUnavailable).Status != corev1.ConditionFalse || condition(node.Status, corev1.NodeDiskPressure).Status != corev1.ConditionTrue ||
		node.Status.Capacity["example.com/dongle"] != resource.MustParse("3") {
		t.Errorf("%s", after)
	}
}

func TestReadHost(t *testing.T) {
	h, err := ReadHost(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if h.CPUs < 1 || h.Memory < 1<<20 || h.Storage < 1<<20 || h.BootID == "" || h.KernelVersion == "" || h.OSImage == "" {
		t.Errorf("%+v", h)
	}
	if id, err := os.ReadFile("/etc/machine-id"); err == nil && h.MachineID != strings.TrimSpace(string(id)) {
		t.Errorf("machine ID %q, want %q", h.MachineID, id)
	}
	for given, want := range map[string]string{
		"127.0.0.1": "can't be loopback", "224.0.0.1": "can't be a multicast", "fe80::1": "can't be a link-local", "0.0.0.0": "all zeros",
		"x": "must be a valid IP", "203.0.113.77": "not found in the host's network interfaces",
	} {
		if err := CheckAddresses([]string{given}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", given, err)
		}
	}
}
