package devices

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"skiff/internal/container"
	"skiff/internal/kubelet/cri"
)

// Allocate gives the containers of a pod the devices that they ask for. What a pod's init containers had, but for its sidecars, the others can have.
// Asked again for a pod that has its devices, it gives nothing more.
func (d *Devices) Allocate(ctx context.Context, pod *corev1.Pod) error {
	if !d.requestsDevices(pod) {
		return nil
	}
	d.allocating.Lock()
	defer d.allocating.Unlock()
	d.FreeRemovedPods()
	reusable := map[string][]string{}
	for kind, c := range container.All(&pod.Spec) {
		if kind == container.Ephemeral {
			continue
		}
		if err := d.allocate(ctx, pod, c, reusable); err != nil {
			return err
		}
		d.mu.Lock()
		for name, a := range d.allocations[pod.UID][c.Name] {
			mine := a.names()
			reusable[name] = slices.DeleteFunc(reusable[name], func(id string) bool { return slices.Contains(mine, id) })
			if kind == container.Init && !container.IsSidecar(c) {
				reusable[name] = append(reusable[name], mine...)
			}
		}
		d.mu.Unlock()
	}
	return nil
}

// wanted reports whether a pod requested for anything that plugins bring.
func (d *Devices) requestsDevices(pod *corev1.Pod) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range container.All(&pod.Spec) {
		for name := range c.Resources.Limits {
			if d.isDeviceResource(string(name)) {
				return true
			}
		}
	}
	return false
}

// known reports whether a resource is a plugin's: there is one, or was one when devices of it were given. mu is held.
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

// Free takes back the devices of pods that are gone.
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

// requested are the plugins' resources that a container requested for, in the order of their names. What the cluster's own allocation of devices covers is none.
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

// allocate gives one container its devices of all resources.
func (d *Devices) allocate(ctx context.Context, pod *corev1.Pod, c *corev1.Container, reusable map[string][]string) error {
	for _, name := range d.requestedResources(pod, c) {
		amount := c.Resources.Limits[corev1.ResourceName(name)]
		names, p, err := d.choose(ctx, pod, c, name, int(amount.Value()), reusable[name])
		if err != nil {
			return err
		}
		if len(names) == 0 {
			continue // it has them already
		}
		response, err := p.client.Allocate(ctx, &pluginapi.AllocateRequest{ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: names}}})
		if err != nil {
			return err
		}
		if len(response.ContainerResponses) == 0 {
			return fmt.Errorf("no containers return in allocation response %v", response)
		}
		a := &allocation{byNUMANode: map[int64][]string{}, response: response.ContainerResponses[0]}
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
	}
	return nil
}

// choose picks the devices a container is to be given, none if it has them already, and the plugin to ask for them.
func (d *Devices) choose(ctx context.Context, pod *corev1.Pod, c *corev1.Container, name string, required int, reusable []string) ([]string, *plugin, error) {
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
	healthy := r.healthy()
	used := map[string]bool{}
	for _, containers := range d.allocations {
		for _, resources := range containers {
			if a := resources[name]; a != nil {
				for _, id := range a.names() {
					used[id] = true
				}
			}
		}
	}
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
	free := slices.DeleteFunc(slices.Clone(healthy), func(id string) bool { return used[id] })
	prefer := func(available, include []string) ([]string, error) {
		return p.prefer(ctx, available, include, required)
	}
	names, err := pick(name, required, reusable, free, prefer)
	return names, p, err
}

// pick takes as many devices as are required: those that can be used again first, then those the plugin prefers, then whichever are free.
func pick(name string, required int, reusable, free []string, prefer func(available, include []string) ([]string, error)) ([]string, error) {
	var picked []string
	from := func(candidates []string) bool {
		for _, id := range candidates {
			if len(picked) < required && !slices.Contains(picked, id) {
				picked = append(picked, id)
			}
		}
		return len(picked) == required
	}
	if from(reusable) {
		return picked, nil
	}
	if missing := required - len(picked); len(free) < missing {
		return nil, fmt.Errorf("requested number of devices unavailable for %s. Requested: %d, Available: %d", name, missing, len(free))
	}
	preferred, err := prefer(slices.Sorted(slices.Values(slices.Concat(free, picked))), slices.Clone(picked))
	if err != nil {
		return nil, err
	}
	if !from(slices.DeleteFunc(slices.Clone(preferred), func(id string) bool { return !slices.Contains(free, id) })) {
		from(free)
	}
	return picked, nil
}

// prefer requested a plugin which devices it would give, if it has an opinion.
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

// Prepare readies the devices of a container that is about to start, and says what it needs to use them.
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
		// The pod was admitted before the plugin was there, as happens after a restart.
		if err := d.Allocate(ctx, pod); err != nil {
			return RunContainerOptions{}, err
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return runContainerOptions(d.allocations[pod.UID][c.Name]), nil
}

// preStart lets a plugin that wants to reset a container's devices do so.
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

// settings puts together what the plugins of several resources said. Where two say different things, the first by name wins.
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
			if _, said := s.Annotations[key]; !said {
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

// AdmissionFailure is what a pod is update that could not be given its devices.
func AdmissionFailure(err error) (reason, message string) {
	return "UnexpectedAdmissionError", fmt.Sprintf("Allocate failed due to %v, which is unexpected", err)
}
