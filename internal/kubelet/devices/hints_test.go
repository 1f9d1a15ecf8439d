package devices

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"skiff/internal/kubelet/alignment"
	"skiff/test/deviceplugin"
)

// at returns a device with affinity to NUMA nodes.
func at(id string, nodes ...int64) *api.Device {
	device := &api.Device{ID: id, Health: api.Healthy, Topology: &api.TopologyInfo{}}
	for _, node := range nodes {
		device.Topology.Nodes = append(device.Topology.Nodes, &api.NUMANode{ID: node})
	}
	return device
}

func writeHints(h alignment.Hints) string {
	list, ok := h[gpu]
	if !ok || list == nil {
		return "no preference"
	}
	var words []string
	for _, hint := range list {
		words = append(words, fmt.Sprintf("%s:%v", hint.Nodes, hint.Preferred))
	}
	return strings.Join(words, " ")
}

func TestHints(t *testing.T) {
	for _, row := range []struct {
		name    string
		devices []*api.Device
		number  int64
		want    string
	}{
		{"no affinity", devices("a", "b"), 1, "no preference"},
		{"one of two", []*api.Device{at("a", 0), at("b", 1)}, 1, "0:true 1:true 0,1:false"},
		{"both", []*api.Device{at("a", 0), at("b", 1)}, 2, "0,1:true"},
		{"several NUMA nodes", []*api.Device{at("a", 0, 1), at("b", 1)}, 2, "1:true 0,1:false"},
		{"one NUMA node", []*api.Device{at("a", 3), at("b", 3)}, 1, "3:true"},
		{"without affinity does not count", []*api.Device{at("a", 0), devices("b")[0]}, 2, ""},
		{"too many", []*api.Device{at("a", 0)}, 2, ""},
		{"unhealthy", []*api.Device{at("a", 0), {ID: "b", Health: api.Unhealthy, Topology: &api.TopologyInfo{Nodes: []*api.NUMANode{{ID: 1}}}}}, 1, "0:true 0,1:false"},
		{"unknown NUMA nodes", []*api.Device{at("a", 0), at("b", 60)}, 1, "0:true"},
		{"none requested", []*api.Device{at("a", 0)}, 0, "no preference"},
	} {
		t.Run(row.name, func(t *testing.T) {
			n := start(t, t.TempDir())
			n.NUMANodes = []int{0, 1, 2, 3}
			n.plug(t, &deviceplugin.Plugin{Resource: gpu}, "gpu.sock", row.devices...)
			user := pod("p", requesting("c", row.number))
			n.pods = []*corev1.Pod{user}
			if got := writeHints(n.Hints(user, &user.Spec.Containers[0])); got != row.want {
				t.Errorf("hints of a container %q, want %q", got, row.want)
			}
			if got := writeHints(n.PodHints(user)); got != row.want {
				t.Errorf("hints of a pod %q, want %q", got, row.want)
			}
		})
	}
}

// TestAllocateFromHint: devices with affinity to the NUMA nodes of the hint come first, then what the plugin prefers, then others.
func TestAllocateFromHint(t *testing.T) {
	for _, row := range []struct {
		name   string
		number int64
		hint   alignment.Mask
		prefer bool
		want   string
	}{
		{"no hint", 2, 0, false, "c: a b"},
		{"one aligned device of two", 1, 2, false, "c: b"},
		{"the one that the plugin prefers", 1, 2, true, "c: d"},
		{"all aligned devices", 2, 2, false, "c: b d"},
		{"more than are aligned", 3, 2, false, "c: a b d"},
		{"devices without affinity last", 4, 2, false, "c: a b d e"},
		{"more than are aligned, with a preference", 3, 2, true, "c: b c d"},
	} {
		t.Run(row.name, func(t *testing.T) {
			n := start(t, t.TempDir())
			n.NUMANodes = []int{0, 1}
			p := &deviceplugin.Plugin{Resource: gpu, Options: api.DevicePluginOptions{GetPreferredAllocationAvailable: row.prefer}, Prefer: func(*api.ContainerPreferredAllocationRequest) []string {
				return []string{"c", "d"}
			}}
			n.plug(t, p, "gpu.sock", at("a", 0), at("b", 1), devices("c")[0], at("d", 0, 1), at("e", 0))
			user := pod("p", requesting("c", row.number))
			n.pods = []*corev1.Pod{user}
			if err := n.Allocate(t.Context(), user, &user.Spec.Containers[0], alignment.Hint{Nodes: row.hint}); err != nil {
				t.Fatal(err)
			}
			if got := n.allocated(user); got != row.want {
				t.Errorf("allocated %q, want %q", got, row.want)
			}
			// The hints of devices that are allocated are those of these devices.
			n.NUMANodes = []int{0, 1}
			if got := writeHints(n.Hints(user, &user.Spec.Containers[0])); row.hint == 2 && row.number <= 2 && !strings.Contains(got, "1:true") {
				t.Errorf("hints %q after the allocation", got)
			}
			other := pod("p", requesting("c", row.number+1))
			if got := writeHints(n.Hints(other, &other.Spec.Containers[0])); got != "" {
				t.Errorf("hints %q for another number of devices than are allocated", got)
			}
		})
	}
}

// TestReuseFromHint: a container reuses the devices of an init container, and its hints contain their NUMA nodes.
func TestReuseFromHint(t *testing.T) {
	n := start(t, t.TempDir())
	n.NUMANodes = []int{0, 1}
	n.plug(t, &deviceplugin.Plugin{Resource: gpu}, "gpu.sock", at("a", 0), at("b", 1), at("c", 1))
	user := pod("p", requesting("c", 1))
	user.Spec.InitContainers = []corev1.Container{requesting("i", 1)}
	n.pods = []*corev1.Pod{user}
	if err := n.Allocate(t.Context(), user, &user.Spec.InitContainers[0], alignment.Hint{Nodes: 2}); err != nil {
		t.Fatal(err)
	}
	if got := writeHints(n.Hints(user, &user.Spec.Containers[0])); got != "1:true 0,1:false" {
		t.Errorf("hints %q", got)
	}
	if err := n.Allocate(t.Context(), user, &user.Spec.Containers[0], alignment.Hint{Nodes: 2}); err != nil || n.allocated(user) != "i: b; c: b" {
		t.Errorf("allocated %q, error %v", n.allocated(user), err)
	}
}
