// Package devices assigns the devices of device plugins to containers.
//
// A plugin registers at a socket in the kubelet's directory (register.go) and reports its devices and their health. The
// node advertises them as an extended resource. A pod is assigned its devices when it is admitted (allocate.go), if possible
// close to its CPUs and memory (hints.go). The plugin's response says what the container needs to use them; it is stored in a checkpoint until the pod is removed, so
// that a restarted container gets the same devices, also after a restart of the kubelet.
package devices

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"skiff/internal/atomicfile"
)

const (
	// socketName and checkpointName are upstream's file names in the plugin directory.
	socketName     = "kubelet.sock"
	checkpointName = "kubelet_internal_checkpoint"
	// endpointGracePeriod is how long a resource is advertised after its last plugin has disconnected.
	endpointGracePeriod = 5 * time.Minute
)

// Options are the dependencies of Devices.
type Options struct {
	// Dir has the kubelet's socket and those of the plugins.
	Dir string
	// NUMANodes are those of the host.
	NUMANodes []int
	// ActivePods returns the pods that may have devices. all is false while the list is incomplete, and no pod counts as
	// removed.
	ActivePods func() (pods []*corev1.Pod, all bool)
	// Changed is called when the number of devices changes, PodChanged when the health of a pod's device does.
	Changed    func()
	PodChanged func(uid types.UID)
	Log        *slog.Logger
}

// Devices are the devices of this node.
type Devices struct {
	Options

	mu          sync.Mutex
	resources   map[string]*deviceResource
	allocations map[types.UID]map[string]map[string]*allocation // by pod, container and resource
	// reusable are the devices of init containers of the pod that is being admitted, by resource; its later containers get them first.
	reusable    map[string][]string
	reusablePod types.UID
	// allocating serializes allocations.
	allocating sync.Mutex
	// allocateTimeout is defaultAllocateTimeout, except in tests.
	allocateTimeout time.Duration
}

// deviceResource is the state of one resource, which may have several plugins.
type deviceResource struct {
	// plugins are the connected plugins; the last one is used.
	plugins []*plugin
	devices map[string]*pluginapi.Device
	// stoppedAt is when the last plugin disconnected, zero while there is one.
	stoppedAt time.Time
}

// allocation are a container's devices of one resource.
type allocation struct {
	byNUMANode map[int64][]string // device IDs by NUMA node; noNUMANode for those without one
	response   *pluginapi.ContainerAllocateResponse
}

// noNUMANode is the key of devices without NUMA affinity.
const noNUMANode = -1

func (a *allocation) names() []string {
	var names []string
	for _, ids := range a.byNUMANode {
		names = append(names, ids...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// New returns Devices with the allocations of the checkpoint. It starts nothing.
func New(o Options) *Devices {
	d := &Devices{
		Options: o, resources: map[string]*deviceResource{}, allocations: map[types.UID]map[string]map[string]*allocation{}, allocateTimeout: defaultAllocateTimeout,
	}
	if err := d.load(); err != nil {
		d.Log.Warn("failed to read device checkpoint", "error", err)
	}
	return d
}

func (r *deviceResource) healthy() []string {
	var names []string
	for name, device := range r.devices {
		if device.Health == pluginapi.Healthy && r.stoppedAt.IsZero() {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// updateDevices stores the devices a plugin has reported.
func (d *Devices) updateDevices(name string, devices []*pluginapi.Device) {
	d.mu.Lock()
	r := d.resources[name]
	before := r.devices
	r.devices = map[string]*pluginapi.Device{}
	changed := map[types.UID]bool{}
	for _, device := range devices {
		r.devices[device.ID] = device
		if old := before[device.ID]; old == nil || old.Health != device.Health {
			if uid := d.podWithDevice(name, device.ID); uid != "" {
				changed[uid] = true
			}
		}
	}
	d.mu.Unlock()
	d.saveOrLog()
	d.Changed()
	for uid := range changed {
		d.PodChanged(uid)
	}
}

// podWithDevice returns the pod a device is allocated to, or "". The caller holds mu.
func (d *Devices) podWithDevice(resource, device string) types.UID {
	for uid, containers := range d.allocations {
		for _, resources := range containers {
			if a := resources[resource]; a != nil && slices.Contains(a.names(), device) {
				return uid
			}
		}
	}
	return ""
}

// Capacity returns the number of devices and of healthy devices per resource, and the resources removed since the last
// call.
func (d *Devices) Capacity(now time.Time) (capacity, allocatable corev1.ResourceList, removed []corev1.ResourceName) {
	capacity, allocatable = corev1.ResourceList{}, corev1.ResourceList{}
	d.mu.Lock()
	for name, r := range d.resources {
		if !r.stoppedAt.IsZero() && now.Sub(r.stoppedAt) > endpointGracePeriod {
			removed = append(removed, corev1.ResourceName(name))
			delete(d.resources, name)
			continue
		}
		capacity[corev1.ResourceName(name)] = *resource.NewQuantity(int64(len(r.devices)), resource.DecimalSI)
		allocatable[corev1.ResourceName(name)] = *resource.NewQuantity(int64(len(r.healthy())), resource.DecimalSI)
	}
	d.mu.Unlock()
	if len(removed) > 0 {
		slices.Sort(removed)
		d.saveOrLog()
	}
	return capacity, allocatable, removed
}

// Health returns the health of a container's devices by resource.
func (d *Devices) Health(uid types.UID, container string) []corev1.ResourceStatus {
	d.mu.Lock()
	defer d.mu.Unlock()
	var all []corev1.ResourceStatus
	resources := d.allocations[uid][container]
	for _, name := range slices.Sorted(maps.Keys(resources)) {
		status := corev1.ResourceStatus{Name: corev1.ResourceName(name)}
		for _, id := range resources[name].names() {
			health := corev1.ResourceHealthStatusHealthy
			if r := d.resources[name]; r != nil && r.devices[id] != nil && r.devices[id].Health != pluginapi.Healthy {
				health = corev1.ResourceHealthStatusUnhealthy
			}
			status.Resources = append(status.Resources, corev1.ResourceHealth{ResourceID: corev1.ResourceID(id), Health: health})
		}
		all = append(all, status)
	}
	return all
}

// Device is a device and its NUMA nodes.
type Device struct {
	Resource, ID string
	NUMANodes    []int64
}

// Allocated returns the devices of a container.
func (d *Devices) Allocated(uid types.UID, container string) []Device {
	d.mu.Lock()
	defer d.mu.Unlock()
	var all []Device
	resources := d.allocations[uid][container]
	for _, name := range slices.Sorted(maps.Keys(resources)) {
		nodes := map[string][]int64{}
		for _, node := range slices.Sorted(maps.Keys(resources[name].byNUMANode)) {
			for _, id := range resources[name].byNUMANode[node] {
				if node != noNUMANode {
					nodes[id] = append(nodes[id], node)
				}
			}
		}
		for _, id := range resources[name].names() {
			all = append(all, Device{Resource: name, ID: id, NUMANodes: nodes[id]})
		}
	}
	return all
}

// Allocatable returns all healthy devices, whether allocated or not.
func (d *Devices) Allocatable() []Device {
	d.mu.Lock()
	defer d.mu.Unlock()
	var all []Device
	for _, name := range slices.Sorted(maps.Keys(d.resources)) {
		r := d.resources[name]
		for _, id := range r.healthy() {
			all = append(all, Device{Resource: name, ID: id, NUMANodes: numaNodes(r.devices[id])})
		}
	}
	return all
}

func numaNodes(device *pluginapi.Device) (nodes []int64) {
	for _, node := range device.GetTopology().GetNodes() {
		nodes = append(nodes, node.ID)
	}
	return nodes
}

// checkpoint is the stored state, in upstream's format.
type checkpoint struct {
	Data struct {
		PodDeviceEntries  []entry
		RegisteredDevices map[string][]string
	}
}

type entry struct {
	PodUID        types.UID
	ContainerName string
	ResourceName  string
	DeviceIDs     map[int64][]string
	AllocResp     []byte
}

// saveOrLog writes the checkpoint. A kubelet that cannot write it continues with its state in memory.
func (d *Devices) saveOrLog() {
	if err := d.save(); err != nil {
		d.Log.Warn("failed to write device checkpoint", "error", err)
	}
}

func (d *Devices) save() error {
	var c checkpoint
	c.Data.PodDeviceEntries, c.Data.RegisteredDevices = []entry{}, map[string][]string{}
	d.mu.Lock()
	for name, r := range d.resources {
		c.Data.RegisteredDevices[name] = r.healthy()
	}
	for uid, containers := range d.allocations {
		for container, resources := range containers {
			for name, a := range resources {
				response, err := proto.Marshal(a.response)
				if err != nil {
					d.mu.Unlock()
					return fmt.Errorf("encode allocation of %s: %w", name, err)
				}
				c.Data.PodDeviceEntries = append(c.Data.PodDeviceEntries, entry{uid, container, name, a.byNUMANode, response})
			}
		}
	}
	d.mu.Unlock()
	text, err := json.Marshal(c)
	if err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(d.Dir, checkpointName), text, 0o600)
}

// load reads the checkpoint. Its resources count as stopped until their plugins register again.
func (d *Devices) load() error {
	text, err := os.ReadFile(filepath.Join(d.Dir, checkpointName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var c checkpoint
	if err := json.Unmarshal(text, &c); err != nil {
		return err
	}
	for name := range c.Data.RegisteredDevices {
		d.resources[name] = &deviceResource{devices: map[string]*pluginapi.Device{}, stoppedAt: time.Now()}
	}
	for _, e := range c.Data.PodDeviceEntries {
		response := &pluginapi.ContainerAllocateResponse{}
		if err := proto.Unmarshal(e.AllocResp, response); err != nil {
			return fmt.Errorf("decode allocation of %s for container %s of pod %s: %w", e.ResourceName, e.ContainerName, e.PodUID, err)
		}
		d.record(e.PodUID, e.ContainerName, e.ResourceName, &allocation{byNUMANode: e.DeviceIDs, response: response})
	}
	return nil
}

// record stores an allocation. The caller holds mu, or is the constructor.
func (d *Devices) record(uid types.UID, container, name string, a *allocation) {
	if d.allocations[uid] == nil {
		d.allocations[uid] = map[string]map[string]*allocation{}
	}
	if d.allocations[uid][container] == nil {
		d.allocations[uid][container] = map[string]*allocation{}
	}
	d.allocations[uid][container][name] = a
}
