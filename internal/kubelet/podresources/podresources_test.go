package podresources

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"
	"k8s.io/utils/cpuset"

	"skiff/internal/kubelet/devices"
	"skiff/internal/kubelet/dra"
	"skiff/internal/kubelet/memory"
)

// fakeDevices are the devices of a node, by container.
type fakeDevices struct {
	of          map[string][]devices.Device
	allocatable []devices.Device
	freed       int
}

func (d *fakeDevices) FreeRemovedPods() { d.freed++ }
func (d *fakeDevices) Allocated(uid types.UID, container string) []devices.Device {
	return d.of[string(uid)+"/"+container]
}
func (d *fakeDevices) Allocatable() []devices.Device { return d.allocatable }

// fakeCPUs are the exclusive CPUs of containers.
type fakeCPUs map[string]cpuset.CPUSet

func (f fakeCPUs) Exclusive(uid types.UID, container string) cpuset.CPUSet {
	return f[string(uid)+"/"+container]
}
func (fakeCPUs) Allocatable() cpuset.CPUSet { return cpuset.New(3, 1, 2) }

// fakeMemory is the memory of containers.
type fakeMemory map[string][]memory.Block

func (f fakeMemory) Blocks(uid types.UID, container string) []memory.Block {
	return f[string(uid)+"/"+container]
}
func (fakeMemory) Allocatable() []memory.Block {
	return []memory.Block{{NUMANodes: []int{0}, Type: corev1.ResourceMemory, Size: 9}}
}

// writeAssigned formats CPUs and memory; nothing if there is none.
func writeAssigned(cpus []int64, blocks []*api.ContainerMemory) string {
	var words []string
	if len(cpus) > 0 {
		words = append(words, fmt.Sprint("cpus", cpus))
	}
	for _, b := range blocks {
		var nodes []int64
		for _, node := range b.Topology.Nodes {
			nodes = append(nodes, node.ID)
		}
		words = append(words, fmt.Sprint(b.MemoryType, "=", b.Size, "@", nodes))
	}
	if len(words) == 0 {
		return ""
	}
	return "{" + strings.Join(words, " ") + "}"
}

// fakeClaims are the claims of a container.
type fakeClaims map[string][]dra.Claim

func (f fakeClaims) Allocated(pod *corev1.Pod, c *corev1.Container) []dra.Claim {
	return f[string(pod.UID)+"/"+c.Name]
}

// write formats a response in one line.
func write(pods ...*api.PodResources) string {
	var words []string
	for _, p := range pods {
		word := p.Namespace + "/" + p.Name
		for _, c := range p.Containers {
			word += " " + c.Name + writeDevices(c.Devices) + writeClaims(c.DynamicResources) + writeAssigned(c.CpuIds, c.Memory)
		}
		words = append(words, word)
	}
	return strings.Join(words, "; ")
}

func writeClaims(claims []*api.DynamicResource) string {
	var words []string
	for _, claim := range claims {
		for _, r := range claim.ClaimResources {
			word := claim.ClaimNamespace + "/" + claim.ClaimName + ":" + r.DriverName + "/" + r.PoolName + "/" + r.DeviceName
			for _, d := range r.CdiDevices {
				word += "+" + d.Name
			}
			if r.ShareId != nil {
				word += "#" + *r.ShareId
			}
			words = append(words, word)
		}
	}
	if len(words) == 0 {
		return ""
	}
	return fmt.Sprint(words)
}

func writeDevices(list []*api.ContainerDevices) string {
	var words []string
	for _, d := range list {
		word := d.ResourceName + "=" + strings.Join(d.DeviceIds, "+")
		if d.Topology != nil {
			word += "@"
			for _, node := range d.Topology.Nodes {
				word += fmt.Sprint(node.ID)
			}
		}
		words = append(words, word)
	}
	return fmt.Sprint(words)
}

func TestResponses(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	user := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "user", UID: "u"}, Spec: corev1.PodSpec{
		InitContainers: []corev1.Container{{Name: "init"}, {Name: "sidecar", RestartPolicy: &always}}, Containers: []corev1.Container{{Name: "c"}, {Name: "plain"}},
		EphemeralContainers: []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug"}}},
	}}
	ended := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "ended", UID: "e"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}}}
	held := &fakeDevices{
		of: map[string][]devices.Device{
			"u/c": {{Resource: "x/gpu", ID: "1"}, {Resource: "x/nic", ID: "2", NUMANodes: []int64{0, 1}}}, "u/sidecar": {{Resource: "x/gpu", ID: "3"}}, "u/init": {{Resource: "x/gpu", ID: "3"}},
		},
		allocatable: []devices.Device{{Resource: "x/gpu", ID: "1"}, {Resource: "x/gpu", ID: "4", NUMANodes: []int64{1}}},
	}
	share := types.UID("s")
	claims := fakeClaims{"u/c": {{Key: types.NamespacedName{Namespace: "a", Name: "claim"}, Devices: []dra.Device{
		{Driver: "d", Pool: "p", Name: "gpu0", CDIDeviceIDs: []string{"x/y=0", "x/y=1"}}, {Driver: "d", Pool: "p", Name: "gpu1", CDIDeviceIDs: []string{"x/y=2"}, ShareID: &share},
	}}}}
	s := &Server{
		Dir: t.TempDir(), Devices: held, Claims: claims, CPUs: fakeCPUs{"u/plain": cpuset.New(2, 1)},
		Memory: fakeMemory{"u/plain": {{NUMANodes: []int{0, 1}, Type: corev1.ResourceMemory, Size: 5}, {NUMANodes: []int{1}, Type: "hugepages-2Mi", Size: 4}}}, Pods: func() []*corev1.Pod { return []*corev1.Pod{user} }, Log: slog.New(slog.DiscardHandler),
		Pod: func(namespace, name string) (*corev1.Pod, bool) {
			for _, p := range []*corev1.Pod{user, ended} {
				if p.Namespace == namespace && p.Name == name {
					return p, true
				}
			}
			return nil, false
		},
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	connection, err := grpc.NewClient("unix://"+filepath.Join(s.Dir, "kubelet.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	lister := api.NewPodResourcesListerClient(connection)
	const whole = "a/user sidecar[x/gpu=3] c[x/gpu=1 x/nic=2@0 x/nic=2@1][a/claim:d/p/gpu0+x/y=0+x/y=1 a/claim:d/p/gpu1+x/y=2#s] plain[]{cpus[1 2] memory=5@[0 1] hugepages-2Mi=4@[1]}"
	all, err := lister.List(ctx, &api.ListPodResourcesRequest{})
	if got := write(all.GetPodResources()...); err != nil || got != whole {
		t.Errorf("all: %q, %v; want %q", got, err, whole)
	}
	if held.freed != 1 {
		t.Error("the devices of pods that are gone were not taken back")
	}
	for _, row := range []struct{ namespace, name, want, wrong string }{
		{"a", "user", whole, ""},
		{"a", "ended", "a/ended c[]", ""},
		{"b", "user", "", "pod user in namespace b not found"},
	} {
		one, err := lister.Get(ctx, &api.GetPodResourcesRequest{PodNamespace: row.namespace, PodName: row.name})
		if row.wrong != "" {
			if status.Convert(err).Message() != row.wrong {
				t.Errorf("%s/%s: error %v, want %q", row.namespace, row.name, err, row.wrong)
			}
			continue
		}
		if got := write(one.GetPodResources()); err != nil || got != row.want {
			t.Errorf("%s/%s: %q, %v; want %q", row.namespace, row.name, got, err, row.want)
		}
	}
	allocatable, err := lister.GetAllocatableResources(ctx, &api.AllocatableResourcesRequest{})
	if got, want := writeDevices(allocatable.GetDevices()), "[x/gpu=1 x/gpu=4@1]"; err != nil || got != want {
		t.Errorf("allocatable: %q, %v; want %q", got, err, want)
	}
	if got, want := writeAssigned(allocatable.GetCpuIds(), allocatable.GetMemory()), "{cpus[1 2 3] memory=9@[0]}"; got != want {
		t.Errorf("allocatable: %q, want %q", got, want)
	}
	refused := false
	for range 20 * burst {
		if _, err := lister.List(ctx, &api.ListPodResourcesRequest{}); err != nil {
			refused = true
			if s := status.Convert(err); s.Code() != codes.ResourceExhausted || s.Message() != "rejected by rate limit" {
				t.Errorf("error %v", err)
			}
		}
	}
	if !refused {
		t.Error("requests are not rate limited")
	}
}
