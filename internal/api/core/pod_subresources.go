package core

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/diff"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"skiff/internal/api/podspec"
	"skiff/internal/kind"
	"skiff/internal/podstate"
)

// ephemeralContainersUpdate adds ephemeral containers to a running pod, for debugging.
func ephemeralContainersUpdate() *kind.UpdateStrategy {
	part := kind.UpdateStrategyOf(prepareEphemeralContainers, validateEphemeralContainers)
	part.OwnedFields = []string{"spec.ephemeralContainers"}
	return part
}

func prepareEphemeralContainers(_ *kind.Request, obj, old *corev1.Pod) {
	containers := obj.Spec.EphemeralContainers
	*obj = *old.DeepCopy()
	obj.Spec.EphemeralContainers = containers
	podspec.DropDisabled(&obj.Spec, &old.Spec)
}

func validateEphemeralContainers(_ *kind.Request, obj, old *corev1.Pod) field.ErrorList {
	if podstate.IsMirror(old) {
		return field.ErrorList{field.Forbidden(field.NewPath(""), "static pods do not support ephemeral containers")}
	}
	errs := podspec.ValidatePod(obj, old)
	path := field.NewPath("spec", "ephemeralContainers")
	position := firstByName(obj.Spec.EphemeralContainers, func(c *corev1.EphemeralContainer) string { return c.Name })
	for i := range old.Spec.EphemeralContainers {
		oldContainer := &old.Spec.EphemeralContainers[i]
		j, found := position[oldContainer.Name]
		if !found {
			errs = append(errs, field.Forbidden(path, fmt.Sprintf("existing ephemeral containers %q may not be removed\n", oldContainer.Name)))
		} else if container := &obj.Spec.EphemeralContainers[j]; !equality.Semantic.DeepEqual(oldContainer, container) {
			errs = append(errs, field.Forbidden(path, fmt.Sprintf("existing ephemeral containers %q may not be changed\n%v", oldContainer.Name, diff.Diff(*oldContainer, *container))))
		}
	}
	return errs
}

// firstByName maps each name to the index of the first item that has it.
func firstByName[T any](items []T, name func(*T) string) map[string]int {
	first := make(map[string]int, len(items))
	for i := range items {
		if _, known := first[name(&items[i])]; !known {
			first[name(&items[i])] = i
		}
	}
	return first
}

// resizeUpdate changes the cpu and memory of a running pod.
func resizeUpdate() *kind.UpdateStrategy {
	part := kind.UpdateStrategyOf(prepareResize, validateResize)
	part.OwnedFields = []string{"spec.containers", "spec.initContainers", "spec.resources"}
	return part
}

// prepareResize keeps the resources and resize policies of the client's object. If its containers are not those of the pod,
// all of their fields are kept, and validation refuses them.
func prepareResize(_ *kind.Request, obj, old *corev1.Pod) {
	containers := resizedContainers(obj.Spec.Containers, old.Spec.Containers)
	initContainers := resizedContainers(obj.Spec.InitContainers, old.Spec.InitContainers)
	resources := obj.Spec.Resources
	*obj = *old.DeepCopy()
	obj.Spec.Containers, obj.Spec.InitContainers = containers, initContainers
	if resources != nil {
		obj.Spec.Resources = resources
	}
	podspec.DefaultPodResources(&obj.Spec)
	podspec.DropDisabled(&obj.Spec, &old.Spec)
}

func resizedContainers(containers, old []corev1.Container) []corev1.Container {
	same := slices.EqualFunc(containers, old, func(a, b corev1.Container) bool { return a.Name == b.Name })
	if !same {
		return containers
	}
	resized := slices.Clone(old)
	for i := range resized {
		resized[i] = *old[i].DeepCopy()
		resized[i].Resources, resized[i].ResizePolicy = containers[i].Resources, containers[i].ResizePolicy
	}
	return resized
}

const onlyCPUAndMemory = "only cpu and memory resources are mutable"

func validateResize(_ *kind.Request, obj, old *corev1.Pod) field.ErrorList {
	if podstate.IsMirror(old) {
		return field.ErrorList{field.Forbidden(field.NewPath(""), "static pods cannot be resized")}
	}
	if old.Spec.OS != nil && old.Spec.OS.Name == corev1.Windows {
		return field.ErrorList{field.Forbidden(field.NewPath(""), "windows pods cannot be resized")}
	}
	path := field.NewPath("spec")
	errs := podspec.ValidatePod(obj, old)
	if podspec.QOSClass(old) != podspec.ComputeQOSClass(obj) {
		errs = append(errs, field.Invalid(path, obj.Status.QOSClass, "Pod QOS Class may not change as a result of resizing"))
	}
	if !canResize(old) {
		errs = append(errs, field.Forbidden(path, "Pod running on node without support for resize"))
	}
	spec := obj.Spec.DeepCopy()
	errs = append(errs, validatePodResourcesResize(spec, &old.Spec, path)...)
	if order := validateResizeOrder(obj, old, path); len(order) > 0 {
		return append(errs, order...)
	}
	errs = append(errs, validateContainersResize(spec, &old.Spec, path)...)
	if len(errs) == 0 && !equality.Semantic.DeepEqual(spec, &old.Spec) {
		errs = append(errs, field.Forbidden(path, onlyCPUAndMemory))
	}
	return errs
}

// canResize reports whether the node supports it. A kubelet that does reports the resources of containers.
func canResize(pod *corev1.Pod) bool {
	for _, status := range pod.Status.ContainerStatuses {
		if status.State.Running != nil {
			return status.Resources != nil
		}
	}
	return true
}

// validatePodResourcesResize validates the pod-level resources and resets cpu and memory.
func validatePodResourcesResize(spec, old *corev1.PodSpec, path *field.Path) field.ErrorList {
	set := func(s *corev1.PodSpec) bool {
		return s.Resources != nil && len(s.Resources.Requests)+len(s.Resources.Limits) > 0
	}
	if !set(old) && !set(spec) {
		return nil
	}
	fldPath := path.Child("resources")
	var errs field.ErrorList
	if old.Resources != nil {
		if spec.Resources == nil {
			return field.ErrorList{field.Forbidden(fldPath, "pod-level resources cannot be removed")}
		}
		if resourceRemoved(spec.Resources.Requests, old.Resources.Requests) {
			errs = append(errs, field.Forbidden(fldPath.Child("requests"), "pod-level resource requests cannot be removed"))
		}
		if resourceRemoved(spec.Resources.Limits, old.Resources.Limits) {
			errs = append(errs, field.Forbidden(fldPath.Child("limits"), "pod-level resource limits cannot be removed"))
		}
	}
	oldResources := corev1.ResourceRequirements{}
	if old.Resources != nil {
		oldResources = *old.Resources
	}
	if spec.Resources != nil {
		restoreCPUAndMemory(spec.Resources, &oldResources)
		if empty := len(spec.Resources.Requests)+len(spec.Resources.Limits)+len(spec.Resources.Claims) == 0; empty && old.Resources == nil {
			spec.Resources = nil
		}
	}
	if !equality.Semantic.DeepEqual(spec.Resources, old.Resources) {
		errs = append(errs, field.Forbidden(path, onlyCPUAndMemory+" at pod-level"))
	}
	return errs
}

func validateResizeOrder(obj, old *corev1.Pod, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	validate := func(name string, containers, oldContainers []corev1.Container) {
		if len(containers) != len(oldContainers) {
			errs = append(errs, field.Forbidden(path.Child(name), name+" may not be added or removed on resize"))
			return
		}
		for i := range oldContainers {
			if containers[i].Name != oldContainers[i].Name {
				errs = append(errs, field.Forbidden(path.Child(name).Index(i).Child("name"), name+" may not be renamed or reordered on resize"))
			}
		}
	}
	validate("containers", obj.Spec.Containers, old.Spec.Containers)
	validate("initContainers", obj.Spec.InitContainers, old.Spec.InitContainers)
	return errs
}

// validateContainersResize validates the resources of the containers and resets cpu and memory.
func validateContainersResize(spec, old *corev1.PodSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	validate := func(name string, container, oldContainer *corev1.Container, i int) {
		idxPath := path.Child(name).Index(i)
		if resourceRemoved(container.Resources.Requests, oldContainer.Resources.Requests) {
			errs = append(errs, field.Forbidden(idxPath.Child("resources", "requests"), "resource requests cannot be removed"))
		}
		if resourceRemoved(container.Resources.Limits, oldContainer.Resources.Limits) {
			errs = append(errs, field.Forbidden(idxPath.Child("resources", "limits"), "resource limits cannot be removed"))
		}
		changed := !equality.Semantic.DeepEqual(container, oldContainer)
		restoreCPUAndMemory(&container.Resources, &oldContainer.Resources)
		isInit := name == "initContainers"
		if !equality.Semantic.DeepEqual(container, oldContainer) {
			if isInit {
				errs = append(errs, field.Forbidden(idxPath, "only cpu and memory resources for init or sidecar containers are mutable"))
			} else {
				errs = append(errs, field.Forbidden(path, onlyCPUAndMemory))
			}
		}
		if isInit && changed && !podspec.Restartable(container) {
			for _, policy := range container.ResizePolicy {
				if policy.RestartPolicy == corev1.RestartContainer {
					errs = append(errs, field.Forbidden(idxPath, "non-sidecar init containers with a resize policy of RestartContainer cannot be resized"))
				}
			}
		}
	}
	for i := range spec.InitContainers {
		validate("initContainers", &spec.InitContainers[i], &old.InitContainers[i], i)
	}
	for i := range spec.Containers {
		validate("containers", &spec.Containers[i], &old.Containers[i], i)
	}
	return errs
}

func resourceRemoved(list, old corev1.ResourceList) bool {
	for name := range old {
		if _, kept := list[name]; !kept {
			return true
		}
	}
	return false
}

// restoreCPUAndMemory resets what a resize may change.
func restoreCPUAndMemory(resources, old *corev1.ResourceRequirements) {
	restore := func(resources, old corev1.ResourceList) corev1.ResourceList {
		list := resources.DeepCopy()
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
			delete(list, name)
			if quantity, set := old[name]; set {
				if list == nil {
					list = corev1.ResourceList{}
				}
				list[name] = quantity
			}
		}
		return list
	}
	resources.Requests = restore(resources.Requests, old.Requests)
	resources.Limits = restore(resources.Limits, old.Limits)
}
