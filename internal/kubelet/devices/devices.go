// Package devices gives containers the devices that plugins bring: graphics cards, network functions, whatever a vendor's program knows about.
//
// A plugin announces itself at a socket in a directory of the kubelet (register.go), and tells from then on which devices there are and how they
// are. The node shows them as a resource. A pod that requested for some is given them when it is admitted (allocate.go): the plugin says what the
// container needs to use them, and that is remembered in a file until the pod is gone, so that a container that starts again, also
// after the kubelet has, gets the same. Of the devices themselves nothing is known here but their names.
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
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"skiff/internal/atomicfile"
)

const (
	// socketName and checkpointName are upstream's, in the directory of plugins.
	socketName     = "kubelet.sock"
	checkpointName = "kubelet_internal_checkpoint"
	// endpointGracePeriod is how long a plugin that is gone may take to come back before its resource is given up.
	endpointGracePeriod = 5 * time.Minute
)

// Options are what Devices works with.
type Options struct {
	// Directory is where plugins find the kubelet's socket and put their own.
	Dir string
	// Active are the pods that may hold devices, and whether those are all: until then no pod is known to be gone.
	ActivePods func() (pods []*corev1.Pod, all bool)
	// Changed is called when there are more or fewer devices, PodChanged when a device of a pod has become better or worse.
	Changed    func()
	PodChanged func(uid types.UID)
	Log        *slog.Logger
}

// Devices are those of this node.
type Devices struct {
	Options

	mu          sync.Mutex
	resources   map[string]*deviceResource
	allocations map[types.UID]map[string]map[string]*allocation // by pod, container and resource
	// asking lets one pod be given devices at a time.
	allocating sync.Mutex
}

// deviceResource is what one or more plugins of one resource have update.
type deviceResource struct {
	// plugins are those that are connected; the last one is asked.
	plugins []*plugin
	devices map[string]*pluginapi.Device
	// stoppedAt is when the last plugin went, zero while there is one.
	stoppedAt time.Time
}

// allocation is what a container was given of one resource.
type allocation struct {
	byNUMANode map[int64][]string // device names by the memory node they are ids to; noNUMANode where they are ids to none
	response   *pluginapi.ContainerAllocateResponse
}

// noNUMANode is the memory node of devices that are not ids to any.
const noNUMANode = -1

func (a *allocation) names() []string {
	var names []string
	for _, ids := range a.byNUMANode {
		names = append(names, ids...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// New makes Devices, with what was given before. It starts nothing.
func New(o Options) *Devices {
	d := &Devices{Options: o, resources: map[string]*deviceResource{}, allocations: map[types.UID]map[string]map[string]*allocation{}}
	if err := d.load(); err != nil {
		d.Log.Warn("which containers have which devices is not known", "error", err)
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

// take notes the devices that a plugin has update.
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

// podWithDevice is the pod that has a device, or empty. mu is held.
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

// Capacity is how many devices there are of each resource, how many of them can be used, and which resources are no more since it was last
// asked.
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

// Health tells, for each resource a container has devices of, how they are.
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

// Device is one device and the memory nodes it is ids to.
type Device struct {
	Resource, ID string
	NUMANodes    []int64
}

// Of are the devices a container has.
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

// Allocatable are all devices that are healthy, given or not.
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

// extended tells names that a plugin may give to its resource.
func isExtendedResource(name string) bool {
	native := !strings.Contains(name, "/") || strings.Contains(name, corev1.ResourceDefaultNamespacePrefix)
	return !native && !strings.HasPrefix(name, corev1.DefaultResourceRequestsPrefix) &&
		len(validation.IsQualifiedName(corev1.DefaultResourceRequestsPrefix+name)) == 0
}

// checkpoint is what is remembered of the devices given, in upstream's form.
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

// write remembers what is given. A kubelet that cannot write goes on with what it knows.
func (d *Devices) saveOrLog() {
	if err := d.save(); err != nil {
		d.Log.Warn("which containers have which devices is not remembered", "error", err)
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
					return fmt.Errorf("encode what %s said: %w", name, err)
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

// read takes up what was given before. Resources that were there count as stoppedAt until their plugins are back.
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
			return fmt.Errorf("read what %s said for container %s of pod %s: %w", e.ResourceName, e.ContainerName, e.PodUID, err)
		}
		d.record(e.PodUID, e.ContainerName, e.ResourceName, &allocation{byNUMANode: e.DeviceIDs, response: response})
	}
	return nil
}

// record notes what a container was given. mu is held, or nobody else knows d yet.
func (d *Devices) record(uid types.UID, container, name string, a *allocation) {
	if d.allocations[uid] == nil {
		d.allocations[uid] = map[string]map[string]*allocation{}
	}
	if d.allocations[uid][container] == nil {
		d.allocations[uid][container] = map[string]*allocation{}
	}
	d.allocations[uid][container][name] = a
}
