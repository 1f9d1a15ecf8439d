package devices

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"skiff/internal/kubelet/alignment"
)

// Hints implements alignment.Provider.
func (d *Devices) Hints(pod *corev1.Pod, c *corev1.Container) alignment.Hints {
	d.FreeRemovedPods()
	hints := alignment.Hints{}
	for _, name := range d.requestedResources(pod, c) {
		amount := c.Resources.Limits[corev1.ResourceName(name)]
		hints[name] = d.containerHints(pod, c, name, int(amount.Value()))
	}
	return hints
}

// containerHints returns the hints of one resource of a container.
func (d *Devices) containerHints(pod *corev1.Pod, c *corev1.Container, name string, count int) []alignment.Hint {
	d.mu.Lock()
	defer d.mu.Unlock()
	r := d.resources[name]
	if r == nil || !r.hasAffinity() {
		return nil
	}
	if a := d.allocations[pod.UID][c.Name][name]; a != nil {
		return d.hintsOfAllocated(r, a.names(), count)
	}
	return d.hintsOf(r, d.free(name), d.reusableBy(pod, name), count)
}

// PodHints implements alignment.Provider.
func (d *Devices) PodHints(pod *corev1.Pod) alignment.Hints {
	d.FreeRemovedPods()
	hints := alignment.Hints{}
	d.mu.Lock()
	defer d.mu.Unlock()
	for resource, amount := range resourcehelper.PodLimits(pod, resourcehelper.PodResourcesOptions{ExcludeOverhead: true}) {
		name := string(resource)
		if !d.isDeviceResource(name) || amount.IsZero() {
			continue
		}
		r := d.resources[name]
		if r == nil || !r.hasAffinity() {
			hints[name] = nil
			continue
		}
		var allocated []string
		for _, resources := range d.allocations[pod.UID] {
			if a := resources[name]; a != nil {
				allocated = append(allocated, a.names()...)
			}
		}
		slices.Sort(allocated)
		if allocated = slices.Compact(allocated); len(allocated) > 0 {
			hints[name] = d.hintsOfAllocated(r, allocated, int(amount.Value()))
			continue
		}
		hints[name] = d.hintsOf(r, d.free(name), nil, int(amount.Value()))
	}
	return hints
}

// hasAffinity reports whether any device of a resource has affinity to NUMA nodes.
func (r *deviceResource) hasAffinity() bool {
	for _, device := range r.devices {
		if len(numaNodes(device)) > 0 {
			return true
		}
	}
	return false
}

// affinity is the mask of the NUMA nodes that a device has affinity to.
func (r *deviceResource) affinity(id string) alignment.Mask {
	mask := alignment.Mask(0)
	if device := r.devices[id]; device != nil {
		for _, node := range numaNodes(device) {
			mask |= alignment.NewMask(int(node))
		}
	}
	return mask
}

// hintsOfAllocated returns the hints of devices that are already allocated; none are possible if others were requested.
func (d *Devices) hintsOfAllocated(r *deviceResource, allocated []string, count int) []alignment.Hint {
	if len(allocated) != count {
		return []alignment.Hint{}
	}
	return d.hintsOf(r, allocated, nil, count)
}

// hintsOf returns from which NUMA nodes a number of devices can be taken. Reusable devices must be on them. Only NUMA nodes with devices are
// considered.
func (d *Devices) hintsOf(r *deviceResource, free, reusable []string, count int) []alignment.Hint {
	hints := []alignment.Hint{}
	if len(free)+len(reusable) < count {
		return hints
	}
	known, withDevices := alignment.NewMask(d.NUMANodes...), alignment.Mask(0)
	for id := range r.devices {
		withDevices |= r.affinity(id)
	}
	nodes := (withDevices & known).Nodes()
	if len(nodes) == 0 {
		nodes = known.Nodes()
	}
	number := func(ids []string, mask alignment.Mask) (matching int) {
		for _, id := range ids {
			if r.affinity(id)&mask != 0 {
				matching++
			}
		}
		return matching
	}
	var all []string
	for id := range r.devices {
		all = append(all, id)
	}
	least := len(nodes)
	for mask := range alignment.Subsets(nodes) {
		if number(all, mask) >= count {
			least = min(least, mask.Count())
		}
		isElsewhere := slices.ContainsFunc(reusable, func(id string) bool {
			affinity := r.affinity(id)
			return affinity != 0 && affinity&mask == 0
		})
		if !isElsewhere && number(free, mask)+number(reusable, mask) >= count {
			hints = append(hints, alignment.Hint{Nodes: mask})
		}
	}
	for i := range hints {
		hints[i].Preferred = hints[i].Nodes.Count() == least
	}
	return hints
}

// affinityGroups are free devices by their affinity to the NUMA nodes of a hint.
type affinityGroups struct {
	aligned, unaligned []string
	// withoutAffinity are the devices without affinity to any NUMA node, or all devices if there is nothing to align.
	withoutAffinity []string
}

func (g affinityGroups) all() []string {
	return slices.Sorted(slices.Values(slices.Concat(g.aligned, g.unaligned, g.withoutAffinity)))
}

// groupByAffinity groups free devices.
func (r *deviceResource) groupByAffinity(free []string, hint alignment.Hint) affinityGroups {
	if hint.Nodes == 0 || !r.hasAffinity() {
		return affinityGroups{withoutAffinity: free}
	}
	g := affinityGroups{}
	for _, id := range free {
		switch affinity := r.affinity(id); {
		case affinity == 0:
			g.withoutAffinity = append(g.withoutAffinity, id)
		case affinity&hint.Nodes != 0:
			g.aligned = append(g.aligned, id)
		default:
			g.unaligned = append(g.unaligned, id)
		}
	}
	return g
}
