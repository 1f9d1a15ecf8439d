package devices

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"skiff/internal/kubelet/alignment"
	"skiff/internal/kubelet/cri"
	"skiff/test/deviceplugin"
)

const gpu = "example.com/gpu"

// node is a node whose pods the test sets.
type node struct {
	*Devices
	dir  string
	stop func()

	mu   sync.Mutex
	pods []*corev1.Pod
	some bool // not all pods are known yet
	news []types.UID
}

// start runs Devices until the test ends, or is stopped.
func start(t *testing.T, dir string) *node {
	t.Helper()
	n := &node{dir: dir}
	n.Devices = New(Options{
		Dir: dir, Changed: func() {},
		ActivePods: func() ([]*corev1.Pod, bool) {
			n.mu.Lock()
			defer n.mu.Unlock()
			return n.pods, !n.some
		},
		PodChanged: func(uid types.UID) {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.news = append(n.news, uid)
		},
		Log: slog.New(slog.DiscardHandler),
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	n.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(n.stop)
	eventually(t, "the socket is there", func() bool {
		_, err := os.Stat(filepath.Join(dir, socketName))
		return err == nil
	})
	return n
}

// admit allocates the devices of a pod without alignment.
func (n *node) admit(ctx context.Context, pod *corev1.Pod) error {
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if err := n.Allocate(ctx, pod, &list[i], alignment.Hint{}); err != nil {
				return err
			}
		}
	}
	return nil
}

func eventually(t *testing.T, what string, check func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !check(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s", what)
		}
	}
}

func (n *node) plug(t *testing.T, p *deviceplugin.Plugin, socket string, devices ...*api.Device) {
	t.Helper()
	if err := p.Start(t.Context(), n.dir, socket, devices...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Stop)
	n.counts(t, corev1.ResourceName(p.Resource), len(devices), count(devices, api.Healthy))
}

func count(devices []*api.Device, health string) (number int) {
	for _, d := range devices {
		if d.Health == health {
			number++
		}
	}
	return number
}

// counts waits until a resource has the given numbers of devices and of healthy devices.
func (n *node) counts(t *testing.T, name corev1.ResourceName, all, usable int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d devices, %d usable", all, usable), func() bool {
		capacity, allocatable, _ := n.Capacity(time.Now())
		c, known := capacity[name]
		a := allocatable[name]
		return known && c.Value() == int64(all) && a.Value() == int64(usable)
	})
}

func devices(ids ...string) []*api.Device {
	var all []*api.Device
	for _, id := range ids {
		all = append(all, &api.Device{ID: id, Health: api.Healthy})
	}
	return all
}

func unhealthy(id string) *api.Device { return &api.Device{ID: id, Health: api.Unhealthy} }

// requesting returns a container that requests devices.
func requesting(name string, number int64, of ...string) corev1.Container {
	c := corev1.Container{Name: name}
	if number > 0 {
		c.Resources.Limits = corev1.ResourceList{}
		for _, one := range append([]string{gpu}, of...)[min(len(of), 1):] {
			c.Resources.Limits[corev1.ResourceName(one)] = *resource.NewQuantity(number, resource.DecimalSI)
		}
	}
	return c
}

func sidecar(c corev1.Container) corev1.Container {
	always := corev1.ContainerRestartPolicyAlways
	c.RestartPolicy = &always
	return c
}

func pod(uid string, containers ...corev1.Container) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid), Name: uid}, Spec: corev1.PodSpec{Containers: containers}}
}

// allocated returns the allocated devices of a pod's containers.
func (n *node) allocated(p *corev1.Pod) string {
	var words []string
	for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
		word := c.Name + ":"
		for _, h := range n.Allocated(p.UID, c.Name) {
			word += " " + h.ID
		}
		words = append(words, word)
	}
	return strings.Join(words, "; ")
}

func TestPick(t *testing.T) {
	ids := func(text string) []string { return strings.Fields(text) }
	for _, row := range []struct {
		name           string
		required       int
		reusable, free string
		preferred      string
		preferError    error
		want, wrong    string
		asked          string
	}{
		{name: "those that are free, in order", required: 2, free: "a b c", want: "a b", asked: "[a b c] with []"},
		{name: "exactly as many as there are", required: 3, free: "a b c", want: "a b c", asked: "[a b c] with []"},
		{name: "one more than there are", required: 4, free: "a b c", wrong: "requested number of devices unavailable for r. Requested: 4, Available: 3"},
		{name: "none are there", required: 1, wrong: "requested number of devices unavailable for r. Requested: 1, Available: 0"},
		{name: "what can be used again comes first, and the plugin is not asked", required: 1, reusable: "z", free: "a", want: "z"},
		{name: "more can be used again than are needed", required: 1, reusable: "x y", free: "a", want: "x"},
		{name: "the plugin must include what is used again", required: 2, reusable: "z", free: "a b", preferred: "z b", want: "z b", asked: "[a b z] with [z]"},
		{name: "what is missing counts without what is used again", required: 3, reusable: "z", free: "a", wrong: "requested number of devices unavailable for r. Requested: 2, Available: 1"},
		{name: "what the plugin prefers", required: 2, free: "a b c", preferred: "c a", want: "c a", asked: "[a b c] with []"},
		{name: "the plugin prefers too few", required: 2, free: "a b c", preferred: "c", want: "c a", asked: "[a b c] with []"},
		{name: "the plugin prefers too many", required: 1, free: "a b c", preferred: "c b", want: "c", asked: "[a b c] with []"},
		{name: "the plugin prefers what is not free", required: 1, free: "a b", preferred: "q b", want: "b", asked: "[a b] with []"},
		{name: "the plugin prefers one twice", required: 2, free: "a b", preferred: "b b", want: "b a", asked: "[a b] with []"},
		{name: "the plugin fails", required: 1, free: "a", preferError: errors.New("no idea"), wrong: "no idea", asked: "[a] with []"},
	} {
		t.Run(row.name, func(t *testing.T) {
			asked := ""
			got, err := pick("r", row.required, ids(row.reusable), affinityGroups{withoutAffinity: ids(row.free)}, func(available, include []string) ([]string, error) {
				asked = fmt.Sprintf("%v with %v", available, include)
				return ids(row.preferred), row.preferError
			})
			wrong := ""
			if err != nil {
				wrong = err.Error()
			}
			if strings.Join(got, " ") != row.want || wrong != row.wrong {
				t.Errorf("picked %v, error %q; want %q, error %q", got, wrong, row.want, row.wrong)
			}
			if row.wrong == "" && asked != row.asked {
				t.Errorf("asked the plugin for %q, want %q", asked, row.asked)
			}
		})
	}
}

func TestRunContainerOptions(t *testing.T) {
	response := func(a *api.ContainerAllocateResponse) *allocation { return &allocation{response: a} }
	got := runContainerOptions(map[string]*allocation{
		"b": response(&api.ContainerAllocateResponse{
			Envs: map[string]string{"X": "late", "Y": "2"}, Annotations: map[string]string{"k": "late", "l": "2"},
			Mounts:     []*api.Mount{{ContainerPath: "/m", HostPath: "/late"}, {ContainerPath: "/n", HostPath: "/h", ReadOnly: true}},
			Devices:    []*api.DeviceSpec{{ContainerPath: "/dev/x", HostPath: "/dev/late"}, {ContainerPath: "/dev/y", HostPath: "/dev/h", Permissions: "rw"}},
			CdiDevices: []*api.CDIDevice{{Name: "v/c=1"}, {Name: "v/c=2"}},
		}),
		"a": response(&api.ContainerAllocateResponse{
			Envs: map[string]string{"X": "1", "A": "0"}, Annotations: map[string]string{"k": "1"}, Mounts: []*api.Mount{{ContainerPath: "/m", HostPath: "/first"}},
			Devices: []*api.DeviceSpec{{ContainerPath: "/dev/x", HostPath: "/dev/first", Permissions: "r"}}, CdiDevices: []*api.CDIDevice{{Name: "v/c=1"}},
		}),
	})
	want := RunContainerOptions{
		Env:         []corev1.EnvVar{{Name: "A", Value: "0"}, {Name: "X", Value: "1"}, {Name: "Y", Value: "2"}},
		Mounts:      []cri.Mount{{ContainerPath: "/m", HostPath: "/first"}, {ContainerPath: "/n", HostPath: "/h", ReadOnly: true}},
		Devices:     []cri.Device{{ContainerPath: "/dev/x", HostPath: "/dev/first", Permissions: "r"}, {ContainerPath: "/dev/y", HostPath: "/dev/h", Permissions: "rw"}},
		Annotations: map[string]string{"k": "1", "l": "2"}, CDI: []string{"v/c=1", "v/c=2"},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("settings %+v\nwant %+v", got, want)
	}
}

func TestRegistration(t *testing.T) {
	n := start(t, t.TempDir())
	for _, row := range []struct{ name, version, resource, wrong string }{
		{"an unknown version", "v1alpha", gpu, `requested API version "v1alpha" is not supported by kubelet. Supported version is ["v1beta1"]`},
		{"no version", "", gpu, "is not supported by kubelet"},
		{"a resource that is not the plugin's to bring", api.Version, "cpu", `the ResourceName "cpu" is invalid`},
	} {
		t.Run(row.name, func(t *testing.T) {
			err := deviceplugin.Register(t.Context(), n.dir, &api.RegisterRequest{Version: row.version, ResourceName: row.resource, Endpoint: "x.sock"})
			if err == nil || !strings.Contains(err.Error(), row.wrong) {
				t.Errorf("error %v, want %q", err, row.wrong)
			}
		})
	}
	if capacity, _, _ := n.Capacity(time.Now()); len(capacity) != 0 {
		t.Errorf("capacity %v after nothing but mistakes", capacity)
	}
}

func TestHealthAndDisconnect(t *testing.T) {
	n := start(t, t.TempDir())
	p := &deviceplugin.Plugin{Resource: gpu}
	n.plug(t, p, "gpu.sock", append(devices("a", "b"), unhealthy("c"))...)
	user := pod("user", requesting("c", 1))
	n.pods = []*corev1.Pod{user}
	if err := n.admit(t.Context(), user); err != nil {
		t.Fatal(err)
	}
	update := func() string { return fmt.Sprint(n.Health("user", "c")) }
	if want := "[{example.com/gpu [{a Healthy <nil>}]}]"; update() != want {
		t.Errorf("healths %s, want %s", update(), want)
	}
	p.Set(unhealthy("a"), devices("b")[0])
	n.counts(t, gpu, 2, 1)
	if want := "[{example.com/gpu [{a Unhealthy <nil>}]}]"; update() != want {
		t.Errorf("healths %s, want %s", update(), want)
	}
	eventually(t, "the pod is update", func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return slices.Contains(n.news, "user")
	})
	p.Stop()
	n.counts(t, gpu, 2, 0)
	if err := n.admit(t.Context(), pod("next", requesting("c", 1))); err == nil || err.Error() != "no healthy devices present; cannot allocate unhealthy devices "+gpu {
		t.Errorf("error %v", err)
	}
	now := time.Now()
	if _, _, removed := n.Capacity(now.Add(endpointGracePeriod - time.Minute)); len(removed) != 0 {
		t.Errorf("removed %v although its plugin may come back", removed)
	}
	if capacity, _, removed := n.Capacity(now.Add(endpointGracePeriod + time.Second)); len(capacity) != 0 || !slices.Equal(removed, []corev1.ResourceName{gpu}) {
		t.Errorf("capacity %v, removed %v", capacity, removed)
	}
	if _, _, removed := n.Capacity(now.Add(endpointGracePeriod + time.Minute)); len(removed) != 0 {
		t.Errorf("removed %v a second time", removed)
	}
	if err := n.admit(t.Context(), pod("later", requesting("c", 1))); err == nil || err.Error() != "cannot allocate unregistered device "+gpu {
		t.Errorf("error %v", err)
	}
}

func TestPluginReconnects(t *testing.T) {
	n := start(t, t.TempDir())
	first := &deviceplugin.Plugin{Resource: gpu}
	n.plug(t, first, "one.sock", devices("a")...)
	second := &deviceplugin.Plugin{Resource: gpu}
	n.plug(t, second, "two.sock", devices("a", "b")...)
	second.Stop()
	third := &deviceplugin.Plugin{Resource: gpu}
	n.plug(t, third, "two.sock", devices("a", "b", "c")...)
	if err := n.admit(t.Context(), pod("p", requesting("c", 3))); err != nil {
		t.Fatal(err)
	}
	if got := third.Asked(); !slices.Equal(got, []string{"give [a b c]"}) || len(first.Asked()) != 0 {
		t.Errorf("calls of the newest plugin %q, of the oldest %q", got, first.Asked())
	}
}

func TestAllocate(t *testing.T) {
	for _, row := range []struct {
		name    string
		devices []*api.Device
		before  *corev1.Pod // has its devices already
		pod     *corev1.Pod
		init    []corev1.Container
		want    string
		wrong   string
	}{
		{name: "nothing is asked for", devices: devices("a"), pod: pod("p", requesting("c", 0)), want: "c:"},
		{name: "a resource that no plugin brings", devices: devices("a"), pod: pod("p", requesting("c", 1, "example.com/other")), want: "c:"},
		{name: "each container has its own", devices: devices("a", "b", "c"), pod: pod("p", requesting("x", 1), requesting("y", 2)), want: "x: a; y: b c"},
		{name: "sick devices are not given", devices: append(devices("b"), unhealthy("a")), pod: pod("p", requesting("x", 1)), want: "x: b"},
		{name: "all are sick", devices: []*api.Device{unhealthy("a")}, pod: pod("p", requesting("x", 1)), wrong: "no healthy devices present; cannot allocate unhealthy devices " + gpu},
		{name: "those of others are not given", devices: devices("a", "b"), before: pod("o", requesting("x", 1)), pod: pod("p", requesting("x", 1)), want: "x: b"},
		{
			name: "too few are left", devices: devices("a", "b"), before: pod("o", requesting("x", 1)), pod: pod("p", requesting("x", 2)),
			wrong: "requested number of devices unavailable for " + gpu + ". Requested: 2, Available: 1",
		},
		{
			name: "what an init container had can be used again", devices: devices("a", "b"), pod: pod("p", requesting("x", 1), requesting("y", 1)),
			init: []corev1.Container{requesting("i", 2)}, want: "i: a b; x: a; y: b",
		},
		{name: "init containers share", devices: devices("a"), pod: pod("p", requesting("x", 1)), init: []corev1.Container{requesting("i", 1), requesting("j", 1)}, want: "i: a; j: a; x: a"},
		{name: "a sidecar keeps its devices", devices: devices("a", "b"), pod: pod("p", requesting("x", 1)), init: []corev1.Container{sidecar(requesting("s", 1))}, want: "s: a; x: b"},
		{
			name: "a sidecar takes over what an init container had", devices: devices("a", "b"), pod: pod("p", requesting("x", 1)),
			init: []corev1.Container{requesting("i", 1), sidecar(requesting("s", 1))}, want: "i: a; s: a; x: b",
		},
		{
			name: "a sidecar leaves too few", devices: devices("a"), pod: pod("p", requesting("x", 1)), init: []corev1.Container{sidecar(requesting("s", 1))},
			wrong: "requested number of devices unavailable for " + gpu + ". Requested: 1, Available: 0",
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			n := start(t, t.TempDir())
			n.plug(t, &deviceplugin.Plugin{Resource: gpu}, "gpu.sock", row.devices...)
			row.pod.Spec.InitContainers = row.init
			n.pods = []*corev1.Pod{row.pod}
			if row.before != nil {
				n.pods = append(n.pods, row.before)
				if err := n.admit(t.Context(), row.before); err != nil {
					t.Fatal(err)
				}
			}
			wrong := ""
			if err := n.admit(t.Context(), row.pod); err != nil {
				wrong = err.Error()
			}
			if wrong != row.wrong {
				t.Errorf("error %q, want %q", wrong, row.wrong)
			}
			if got := n.allocated(row.pod); row.wrong == "" && got != row.want {
				t.Errorf("held %q, want %q", got, row.want)
			}
		})
	}
}

func TestAllocateTwice(t *testing.T) {
	n := start(t, t.TempDir())
	p := &deviceplugin.Plugin{Resource: gpu}
	n.plug(t, p, "gpu.sock", devices("a", "b")...)
	user := pod("p", requesting("c", 1))
	n.pods = []*corev1.Pod{user}
	for range 3 {
		if err := n.admit(t.Context(), user); err != nil {
			t.Fatal(err)
		}
	}
	if got := p.Asked(); !slices.Equal(got, []string{"give [a]"}) {
		t.Errorf("calls of the plugin: %q", got)
	}
	if err := n.admit(t.Context(), pod("p", requesting("c", 2))); err == nil || err.Error() != `pod "p" container "c" changed request for resource "example.com/gpu" from 1 to 2` {
		t.Errorf("error %v", err)
	}
	p.Set(unhealthy("a"), devices("b")[0])
	n.counts(t, gpu, 2, 1)
	if err := n.admit(t.Context(), user); err == nil || err.Error() != "previously allocated devices are no longer healthy; cannot allocate unhealthy devices "+gpu {
		t.Errorf("error %v", err)
	}
}

func TestDevicesOfRemovedPodsAreFree(t *testing.T) {
	n := start(t, t.TempDir())
	n.plug(t, &deviceplugin.Plugin{Resource: gpu}, "gpu.sock", devices("a")...)
	gone, next := pod("gone", requesting("c", 1)), pod("next", requesting("c", 1))
	n.pods = []*corev1.Pod{gone}
	if err := n.admit(t.Context(), gone); err != nil {
		t.Fatal(err)
	}
	n.mu.Lock()
	n.pods, n.some = []*corev1.Pod{next}, true
	n.mu.Unlock()
	if err := n.admit(t.Context(), next); err == nil {
		t.Error("a device was taken from a pod that may still be there")
	}
	n.mu.Lock()
	n.some = false
	n.mu.Unlock()
	if err := n.admit(t.Context(), next); err != nil || n.allocated(next) != "c: a" || n.allocated(gone) != "c:" {
		t.Errorf("error %v, held %q and %q", err, n.allocated(next), n.allocated(gone))
	}
}

func TestCoveredByResourceClaim(t *testing.T) {
	n := start(t, t.TempDir())
	p := &deviceplugin.Plugin{Resource: gpu}
	n.plug(t, p, "gpu.sock", devices("a")...)
	user := pod("p", requesting("c", 1))
	user.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{RequestMappings: []corev1.ContainerExtendedResourceRequest{{ContainerName: "c", ResourceName: gpu}}}
	if err := n.admit(t.Context(), user); err != nil || len(p.Asked()) != 0 {
		t.Errorf("error %v, the plugin was asked for %q", err, p.Asked())
	}
}

func TestPrepare(t *testing.T) {
	n := start(t, t.TempDir())
	p := &deviceplugin.Plugin{
		Resource: gpu, Options: api.DevicePluginOptions{PreStartRequired: true, GetPreferredAllocationAvailable: true},
		Prefer: func(r *api.ContainerPreferredAllocationRequest) []string { return r.AvailableDeviceIDs[1:] },
		Give: func(ids []string) (*api.ContainerAllocateResponse, error) {
			return &api.ContainerAllocateResponse{Envs: map[string]string{"GPU": strings.Join(ids, ",")}}, nil
		},
	}
	n.plug(t, p, "gpu.sock", devices("a", "b")...)
	user := pod("p", requesting("c", 1), requesting("d", 0))
	n.pods = []*corev1.Pod{user}
	if _, err := n.Prepare(t.Context(), user, &user.Spec.Containers[0]); err == nil || err.Error() != "no devices found allocated in local cache for pod p, container c, resource example.com/gpu" {
		t.Errorf("error %v", err)
	}
	if err := n.admit(t.Context(), user); err != nil {
		t.Fatal(err)
	}
	s, err := n.Prepare(t.Context(), user, &user.Spec.Containers[0])
	if err != nil || !reflect.DeepEqual(s, RunContainerOptions{Env: []corev1.EnvVar{{Name: "GPU", Value: "b"}}}) {
		t.Errorf("settings %+v, error %v", s, err)
	}
	if s, err := n.Prepare(t.Context(), user, &user.Spec.Containers[1]); err != nil || !reflect.DeepEqual(s, RunContainerOptions{}) {
		t.Errorf("settings %+v, error %v of a container that requested for nothing", s, err)
	}
	if want := []string{"prefer 1 of [a b] with []", "give [b]", "ready [b]"}; !slices.Equal(p.Asked(), want) {
		t.Errorf("asked for %q, want %q", p.Asked(), want)
	}
	p.Ready = func([]string) error { return errors.New("it is stuck") }
	if _, err := n.Prepare(t.Context(), user, &user.Spec.Containers[0]); err == nil || !strings.HasPrefix(err.Error(), "device plugin PreStartContainer rpc failed with err: ") {
		t.Errorf("error %v", err)
	}
}

// TestAdmittedBeforeRegistration: a pod that was admitted before its resource was known gets its devices when its
// container starts.
func TestAdmittedBeforeRegistration(t *testing.T) {
	n := start(t, t.TempDir())
	user := pod("p", requesting("c", 1))
	n.pods = []*corev1.Pod{user}
	if err := n.admit(t.Context(), user); err != nil {
		t.Fatal(err)
	}
	n.plug(t, &deviceplugin.Plugin{Resource: gpu}, "gpu.sock", devices("a")...)
	if _, err := n.Prepare(t.Context(), user, &user.Spec.Containers[0]); err != nil || n.allocated(user) != "c: a" {
		t.Errorf("error %v, held %q", err, n.allocated(user))
	}
}

// TestHungPlugin: a plugin that does not respond to what allocates devices keeps neither its pods nor those of other plugins waiting for ever.
func TestHungPlugin(t *testing.T) {
	hung := make(chan struct{})
	for name, p := range map[string]*deviceplugin.Plugin{
		"Allocate": {Give: func([]string) (*api.ContainerAllocateResponse, error) { <-hung; return nil, errors.New("it is stuck") }},
		"GetPreferredAllocation": {
			Options: api.DevicePluginOptions{GetPreferredAllocationAvailable: true},
			Prefer:  func(*api.ContainerPreferredAllocationRequest) []string { <-hung; return nil },
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := start(t, t.TempDir())
			n.allocateTimeout = 50 * time.Millisecond
			p.Resource = gpu
			n.plug(t, p, "gpu.sock", devices("a", "b")...)
			other := &deviceplugin.Plugin{Resource: "example.com/other"}
			n.plug(t, other, "other.sock", devices("x")...)
			first, second := pod("first", requesting("c", 1)), pod("second", requesting("c", 1))
			second.Spec.Containers[0].Resources.Limits = corev1.ResourceList{"example.com/other": resource.MustParse("1")}
			n.pods = []*corev1.Pod{first, second}
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			const message = "the device plugin of example.com/gpu did not respond within 50ms"
			if err := n.admit(ctx, first); err == nil || err.Error() != message {
				t.Errorf("error %v, want %s", err, message)
			}
			if held := n.allocated(first); held != "c:" {
				t.Errorf("it has %s", held)
			}
			if err := n.admit(ctx, second); err != nil {
				t.Errorf("a pod with devices of another plugin: %v", err)
			}
		})
	}
	close(hung)
}

// TestFailedAllocation: a plugin that refuses leaves nothing allocated.
func TestFailedAllocation(t *testing.T) {
	n := start(t, t.TempDir())
	n.plug(t, &deviceplugin.Plugin{Resource: gpu, Give: func([]string) (*api.ContainerAllocateResponse, error) { return nil, errors.New("they are mine") }}, "gpu.sock", devices("a")...)
	if err := n.admit(t.Context(), pod("p", requesting("c", 1))); err == nil || !strings.Contains(err.Error(), "they are mine") {
		t.Errorf("error %v", err)
	}
	if got := n.allocated(pod("p", requesting("c", 1))); got != "c:" {
		t.Errorf("held %q", got)
	}
}

// TestRestart: after a restart of the kubelet the allocations are known before the plugin registers, and a container
// keeps its devices.
func TestRestart(t *testing.T) {
	dir := t.TempDir()
	n := start(t, dir)
	ids := &api.Device{ID: "a", Health: api.Healthy, Topology: &api.TopologyInfo{Nodes: []*api.NUMANode{{ID: 1}, {ID: 0}}}}
	give := func(ids []string) (*api.ContainerAllocateResponse, error) {
		return &api.ContainerAllocateResponse{Envs: map[string]string{"GPU": ids[0]}, Devices: []*api.DeviceSpec{{ContainerPath: "/dev/gpu", HostPath: "/dev/null", Permissions: "rw"}}}, nil
	}
	n.plug(t, &deviceplugin.Plugin{Resource: gpu, Give: give}, "gpu.sock", ids, devices("b")[0])
	user := pod("p", requesting("c", 2))
	n.pods = []*corev1.Pod{user}
	if err := n.admit(t.Context(), user); err != nil {
		t.Fatal(err)
	}
	before, err := n.Prepare(t.Context(), user, &user.Spec.Containers[0])
	if err != nil {
		t.Fatal(err)
	}
	want := []Device{{gpu, "a", []int64{0, 1}}, {gpu, "b", nil}}
	if got := n.Allocated("p", "c"); !reflect.DeepEqual(got, want) {
		t.Errorf("devices %v, want %v", got, want)
	}
	n.stop()

	n = start(t, dir)
	n.pods = []*corev1.Pod{user}
	if got := n.Allocated("p", "c"); !reflect.DeepEqual(got, want) {
		t.Errorf("devices %v after the restart, want %v", got, want)
	}
	n.counts(t, gpu, 0, 0)
	if got := n.Allocatable(); len(got) != 0 {
		t.Errorf("usable %v before the plugin is back", got)
	}
	if _, err := os.Stat(filepath.Join(dir, "gpu.sock")); err == nil {
		t.Error("the plugin's socket is still there: it will not notice that it has to register again")
	}
	again := &deviceplugin.Plugin{Resource: gpu, Give: give}
	n.plug(t, again, "gpu.sock", ids, devices("b")[0])
	after, err := n.Prepare(t.Context(), user, &user.Spec.Containers[0])
	if err != nil || !reflect.DeepEqual(fmt.Sprint(before), fmt.Sprint(after)) || len(again.Asked()) != 0 {
		t.Errorf("settings %v, error %v; want %v; the plugin was asked for %q", after, err, before, again.Asked())
	}
	if got := n.Allocatable(); len(got) != 2 || !reflect.DeepEqual(got[0], Device{gpu, "a", []int64{1, 0}}) {
		t.Errorf("usable %v", got)
	}
}

// TestUpstreamCheckpoint: a node that ran upstream's kubelet before.
func TestUpstreamCheckpoint(t *testing.T) {
	for _, row := range []struct {
		name, text string
		want       int
	}{
		{"upstream's form", `{"Data":{"PodDeviceEntries":[{"PodUID":"p","ContainerName":"c","ResourceName":"example.com/gpu","DeviceIDs":{"-1":["a"]},"AllocResp":"CgoKA0dQVRIDYWJj"}],"RegisteredDevices":{"example.com/gpu":["a","b"]}},"Checksum":123}`, 1},
		{"not JSON", `{"Data":`, 0},
		{"an response that is none", `{"Data":{"PodDeviceEntries":[{"PodUID":"p","ContainerName":"c","ResourceName":"r","DeviceIDs":{},"AllocResp":"/w=="}]}}`, 0},
	} {
		t.Run(row.name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, checkpointName), []byte(row.text), 0o600); err != nil {
				t.Fatal(err)
			}
			n := start(t, dir)
			if got := n.Allocated("p", "c"); len(got) != row.want {
				t.Fatalf("devices %v", got)
			}
			if row.want > 0 {
				if s := runContainerOptions(n.allocations["p"]["c"]); len(s.Env) != 1 || s.Env[0].Name != "GPU" || s.Env[0].Value != "abc" {
					t.Errorf("settings %+v", s)
				}
			}
		})
	}
}
