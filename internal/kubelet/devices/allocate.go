package devices

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"skiff/internal/container"
	"skiff/internal/kubelet/alignment"
	"skiff/internal/kubelet/cri"
)

// defaultAllocateTimeout bounds the calls of a plugin that allocate a container's devices of one resource. Upstream's kubelet waits for ever, and admits no
// other pod meanwhile. A pod whose plugin does not respond in time is rejected as one whose plugin fails; plugins that need longer to set devices up do that
// before the container starts, in PreStartContainer, which is repeated.
const defaultAllocateTimeout = 2 * time.Minute

// Allocate implements alignment.Provider. Devices of init containers that are not sidecars are reused by later containers.
func (d *Devices) Allocate(ctx context.Context, pod *corev1.Pod, c *corev1.Container, hint alignment.Hint) error {
	if len(d.requestedResources(pod, c)) == 0 {
		return nil
	}
	d.allocating.Lock()
	defer d.allocating.Unlock()
	d.FreeRemovedPods()
	if err := d.allocate(ctx, pod, c, hint); err != nil {
		return err
	}
	isReusable := container.IsRegularInit(&pod.Spec, c.Name)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.reusablePod != pod.UID {
		d.reusablePod, d.reusable = pod.UID, map[string][]string{}
	}
	for name, a := range d.allocations[pod.UID][c.Name] {
		ids := a.names()
		d.reusable[name] = slices.DeleteFunc(d.reusable[name], func(id string) bool { return slices.Contains(ids, id) })
		if isReusable {
			d.reusable[name] = append(d.reusable[name], ids...)
		}
	}
	return nil
}

// reusableBy are the devices of a resource that the pod's init containers have. The caller holds mu.
func (d *Devices) reusableBy(pod *corev1.Pod, resource string) []string {
	if d.reusablePod != pod.UID {
		return nil
	}
	return d.reusable[resource]
}

// isDeviceResource reports whether a resource belongs to a device plugin, connected or with devices allocated earlier.
// The caller holds mu.
func (d *Devices) isDeviceResource(name string) bool {
	if d.resources[name] != nil {
		return true
	}
	for _, containers := range d.allocations {
		for _, resources := range containers {
			if resources[name] != nil {
				return true
			}
		}
	}
	return false
}

// FreeRemovedPods releases the devices of removed pods.
func (d *Devices) FreeRemovedPods() {
	pods, all := d.ActivePods()
	if !all {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for uid := range d.allocations {
		if !slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return p.UID == uid }) {
			delete(d.allocations, uid)
		}
	}
}

// requestedResources returns the device plugin resources a container requests, sorted by name. Those that a resource
// claim satisfies are left out.
func (d *Devices) requestedResources(pod *corev1.Pod, c *corev1.Container) []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var names []string
	for name, amount := range c.Resources.Limits {
		if d.isDeviceResource(string(name)) && amount.Value() > 0 && !coveredByClaim(pod, c.Name, string(name)) {
			names = append(names, string(name))
		}
	}
	slices.Sort(names)
	return names
}

func coveredByClaim(pod *corev1.Pod, container, resource string) bool {
	s := pod.Status.ExtendedResourceClaimStatus
	return s != nil && slices.ContainsFunc(s.RequestMappings, func(m corev1.ContainerExtendedResourceRequest) bool {
		return m.ContainerName == container && m.ResourceName == resource
	})
}

// allocate assigns one container its devices of all resources. The caller holds allocating.
func (d *Devices) allocate(ctx context.Context, pod *corev1.Pod, c *corev1.Container, hint alignment.Hint) error {
	for _, name := range d.requestedResources(pod, c) {
		if err := d.allocateResource(ctx, pod, c, name, hint); err != nil {
			return err
		}
	}
	return nil
}

// allocateResource assigns one container its devices of one resource. The caller holds allocating.
func (d *Devices) allocateResource(ctx context.Context, pod *corev1.Pod, c *corev1.Container, name string, hint alignment.Hint) error {
	amount := c.Resources.Limits[corev1.ResourceName(name)]
	names, response, err := d.request(ctx, deviceRequest{pod: pod, container: c, resource: name, count: int(amount.Value()), hint: hint})
	if err != nil || len(names) == 0 { // none: they are already allocated
		return err
	}
	a := &allocation{byNUMANode: map[int64][]string{}, response: response}
	d.mu.Lock()
	for _, id := range names {
		nodes := []int64{noNUMANode}
		if r := d.resources[name]; r != nil && len(numaNodes(r.devices[id])) > 0 {
			nodes = numaNodes(r.devices[id])
		}
		for _, node := range nodes {
			a.byNUMANode[node] = append(a.byNUMANode[node], id)
		}
	}
	d.record(pod.UID, c.Name, name, a)
	d.mu.Unlock()
	if err := d.save(); err != nil {
		return fmt.Errorf("failed to write checkpoint file %q: %w", checkpointName, err)
	}
	return nil
}

// request chooses devices and requests them from their plugin, within allocateTimeout. It returns none if the container has them already.
func (d *Devices) request(ctx context.Context, request deviceRequest) ([]string, *pluginapi.ContainerAllocateResponse, error) {
	limited, cancel := context.WithTimeout(ctx, d.allocateTimeout)
	defer cancel()
	names, response, err := d.call(limited, request)
	// The plugin's side may notice the deadline first.
	if err != nil && ctx.Err() == nil && (limited.Err() != nil || status.Code(err) == codes.DeadlineExceeded) {
		err = fmt.Errorf("the device plugin of %s did not respond within %s", request.resource, d.allocateTimeout)
	}
	return names, response, err
}

func (d *Devices) call(ctx context.Context, request deviceRequest) ([]string, *pluginapi.ContainerAllocateResponse, error) {
	names, p, err := d.choose(ctx, request)
	if err != nil || len(names) == 0 {
		return nil, nil, err
	}
	response, err := p.client.Allocate(ctx, &pluginapi.AllocateRequest{ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: names}}})
	if err != nil {
		return nil, nil, err
	}
	if len(response.ContainerResponses) == 0 {
		return nil, nil, fmt.Errorf("no containers return in allocation response %v", response)
	}
	return names, response.ContainerResponses[0], nil
}

// deviceRequest is a container's request for devices of one resource.
type deviceRequest struct {
	pod       *corev1.Pod
	container *corev1.Container
	resource  string
	count     int
	hint      alignment.Hint
}

// choose selects the devices for a container, none if it already has them, and the plugin to allocate them from.
func (d *Devices) choose(ctx context.Context, request deviceRequest) ([]string, *plugin, error) {
	pod, c, name, required := request.pod, request.container, request.resource, request.count
	d.mu.Lock()
	var has []string
	if a := d.allocations[pod.UID][c.Name][name]; a != nil {
		if has = a.names(); len(has) != required {
			d.mu.Unlock()
			return nil, nil, fmt.Errorf("pod %q container %q changed request for resource %q from %d to %d", pod.UID, c.Name, name, len(has), required)
		}
	}
	r := d.resources[name]
	if r == nil {
		d.mu.Unlock()
		return nil, nil, fmt.Errorf("cannot allocate unregistered device %s", name)
	}
	healthy, free, reusable := r.healthy(), d.free(name), slices.Clone(d.reusableBy(pod, name))
	groups := r.groupByAffinity(free, request.hint)
	var p *plugin
	if len(r.plugins) > 0 {
		p = r.plugins[len(r.plugins)-1]
	}
	d.mu.Unlock()
	switch {
	case len(healthy) == 0:
		return nil, nil, fmt.Errorf("no healthy devices present; cannot allocate unhealthy devices %s", name)
	case slices.ContainsFunc(has, func(id string) bool { return !slices.Contains(healthy, id) }):
		return nil, nil, fmt.Errorf("previously allocated devices are no longer healthy; cannot allocate unhealthy devices %s", name)
	case len(has) > 0:
		return nil, nil, nil
	}
	prefer := func(available, include []string) ([]string, error) {
		return p.prefer(ctx, available, include, required)
	}
	names, err := pick(name, required, reusable, groups, prefer)
	return names, p, err
}

// free are the healthy devices of a resource that are not allocated, sorted. The caller holds mu.
func (d *Devices) free(resource string) []string {
	used := map[string]bool{}
	for _, containers := range d.allocations {
		for _, resources := range containers {
			if a := resources[resource]; a != nil {
				for _, id := range a.names() {
					used[id] = true
				}
			}
		}
	}
	return slices.DeleteFunc(d.resources[resource].healthy(), func(id string) bool { return used[id] })
}

// pick selects the required number of devices: reusable ones first, then free ones, those with affinity to the NUMA nodes of the hint first. Of
// devices with the same affinity the plugin may prefer some.
func pick(name string, required int, reusable []string, free affinityGroups, prefer func(available, include []string) ([]string, error)) ([]string, error) {
	var picked []string
	from := func(candidates []string) bool {
		for _, id := range candidates {
			if len(picked) < required && !slices.Contains(picked, id) {
				picked = append(picked, id)
			}
		}
		return len(picked) == required
	}
	preferred := func(available []string) error {
		names, err := prefer(slices.Sorted(slices.Values(slices.Concat(available, picked))), slices.Clone(picked))
		from(slices.DeleteFunc(slices.Clone(names), func(id string) bool { return !slices.Contains(available, id) }))
		return err
	}
	if from(reusable) {
		return picked, nil
	}
	all := free.all()
	missing := required - len(picked)
	if len(all) < missing {
		return nil, fmt.Errorf("requested number of devices unavailable for %s. Requested: %d, Available: %d", name, missing, len(all))
	}
	if missing < len(free.aligned) {
		if err := preferred(free.aligned); err != nil {
			return nil, err
		}
		from(free.aligned)
		return picked, nil
	}
	if from(free.aligned) {
		return picked, nil
	}
	if err := preferred(all); err != nil {
		return nil, err
	}
	from(free.unaligned)
	from(free.withoutAffinity)
	return picked, nil
}

// prefer returns the plugin's preferred devices, none if it does not support preferences.
func (p *plugin) prefer(ctx context.Context, available, include []string, size int) ([]string, error) {
	if !p.options.GetGetPreferredAllocationAvailable() {
		return nil, nil
	}
	response, err := p.client.GetPreferredAllocation(ctx, &pluginapi.PreferredAllocationRequest{ContainerRequests: []*pluginapi.ContainerPreferredAllocationRequest{{
		AvailableDeviceIDs: available, MustIncludeDeviceIDs: include, AllocationSize: int32(size),
	}}})
	if err != nil {
		return nil, fmt.Errorf("device plugin GetPreferredAllocation rpc failed with err: %w", err)
	}
	if len(response.ContainerResponses) == 0 {
		return nil, nil
	}
	return response.ContainerResponses[0].DeviceIDs, nil
}

// RunContainerOptions are what a container needs to use its devices.
type RunContainerOptions struct {
	Env         []corev1.EnvVar
	Mounts      []cri.Mount
	Devices     []cri.Device
	Annotations map[string]string
	CDI         []string
}

// Prepare prepares the devices of a container that is about to start, and returns its options.
func (d *Devices) Prepare(ctx context.Context, pod *corev1.Pod, c *corev1.Container) (RunContainerOptions, error) {
	requested := d.requestedResources(pod, c)
	if len(requested) == 0 {
		return RunContainerOptions{}, nil
	}
	missing := false
	for _, name := range requested {
		if err := d.preStart(ctx, pod, c, name); err != nil {
			return RunContainerOptions{}, err
		}
		d.mu.Lock()
		missing = missing || d.allocations[pod.UID][c.Name][name] == nil
		d.mu.Unlock()
	}
	if missing {
		// The pod was admitted before the plugin registered, as after a restart.
		for kind, other := range container.All(&pod.Spec) {
			if kind == container.Ephemeral {
				continue
			}
			if err := d.Allocate(ctx, pod, other, alignment.Hint{}); err != nil {
				return RunContainerOptions{}, err
			}
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return runContainerOptions(d.allocations[pod.UID][c.Name]), nil
}

// preStart calls PreStartContainer of plugins that require it.
func (d *Devices) preStart(ctx context.Context, pod *corev1.Pod, c *corev1.Container, name string) error {
	d.mu.Lock()
	r := d.resources[name]
	if r == nil {
		d.mu.Unlock()
		return fmt.Errorf("endpoint not found in cache for a registered resource: %s", name)
	}
	var p *plugin
	if len(r.plugins) > 0 {
		p = r.plugins[len(r.plugins)-1]
	}
	a := d.allocations[pod.UID][c.Name][name]
	d.mu.Unlock()
	if p == nil || !p.options.GetPreStartRequired() {
		return nil
	}
	if a == nil {
		return fmt.Errorf("no devices found allocated in local cache for pod %s, container %s, resource %s", pod.UID, c.Name, name)
	}
	ctx, cancel := context.WithTimeout(ctx, pluginapi.KubeletPreStartContainerRPCTimeoutInSecs*time.Second)
	defer cancel()
	if _, err := p.client.PreStartContainer(ctx, &pluginapi.PreStartContainerRequest{DevicesIds: a.names()}); err != nil {
		return fmt.Errorf("device plugin PreStartContainer rpc failed with err: %w", err)
	}
	return nil
}

// runContainerOptions merges the responses of the plugins of several resources. On conflicts the first by name wins.
func runContainerOptions(resources map[string]*allocation) RunContainerOptions {
	s := RunContainerOptions{}
	env, mounts, devices, cdi := map[string]bool{}, map[string]bool{}, map[string]bool{}, map[string]bool{}
	first := func(seen map[string]bool, key string) bool {
		before := seen[key]
		seen[key] = true
		return !before
	}
	for _, name := range slices.Sorted(maps.Keys(resources)) {
		response := resources[name].response
		for _, key := range slices.Sorted(maps.Keys(response.Envs)) {
			if first(env, key) {
				s.Env = append(s.Env, corev1.EnvVar{Name: key, Value: response.Envs[key]})
			}
		}
		for _, device := range response.Devices {
			if first(devices, device.ContainerPath) {
				s.Devices = append(s.Devices, cri.Device{ContainerPath: device.ContainerPath, HostPath: device.HostPath, Permissions: device.Permissions})
			}
		}
		for _, mount := range response.Mounts {
			if first(mounts, mount.ContainerPath) {
				s.Mounts = append(s.Mounts, cri.Mount{ContainerPath: mount.ContainerPath, HostPath: mount.HostPath, ReadOnly: mount.ReadOnly})
			}
		}
		for key, value := range response.Annotations {
			if s.Annotations == nil {
				s.Annotations = map[string]string{}
			}
			if _, exists := s.Annotations[key]; !exists {
				s.Annotations[key] = value
			}
		}
		for _, device := range response.CdiDevices {
			if first(cdi, device.Name) {
				s.CDI = append(s.CDI, device.Name)
			}
		}
	}
	return s
}
