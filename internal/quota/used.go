package quota

import (
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Matching returns the evaluators that count any of the names.
func (r *Registry) Matching(names []corev1.ResourceName) []*Evaluator {
	var matching []*Evaluator
	for _, e := range r.evaluators {
		if len(e.MatchingResources(names)) > 0 {
			matching = append(matching, e)
		}
	}
	for _, name := range names {
		if gr, ok := countedResource(name); ok && r.evaluators[gr] == nil {
			if e := r.For(gr); e != nil {
				matching = append(matching, e)
			}
		}
	}
	slices.SortFunc(matching, func(a, b *Evaluator) int {
		return compare(a.Resource, b.Resource)
	})
	return matching
}

func compare(a, b schema.GroupResource) int {
	switch {
	case a == b:
		return 0
	case a.String() < b.String():
		return -1
	}
	return 1
}

// Used sums up what the objects of the quota's namespace use of everything the quota limits. list returns the objects of
// a resource in that namespace. Names whose objects cannot be listed are left out, and the errors are returned with the
// rest.
func (r *Registry) Used(quota *corev1.ResourceQuota, list func(schema.GroupResource) ([]runtime.Object, error), now time.Time) (corev1.ResourceList, error) {
	hard := Names(quota.Spec.Hard)
	used := corev1.ResourceList{}
	var failed []corev1.ResourceName
	var errs []error
	for _, e := range r.Matching(hard) {
		names := e.MatchingResources(hard)
		sum, err := e.sum(quota, names, list, now)
		if err != nil {
			errs = append(errs, fmt.Errorf("sum up usage of %s: %w", e.Resource, err))
			failed = append(failed, names...)
			continue
		}
		used = Add(used, sum)
	}
	for _, name := range failed {
		delete(used, name)
	}
	return used, errors.Join(errs...)
}

func (e *Evaluator) sum(quota *corev1.ResourceQuota, names []corev1.ResourceName, list func(schema.GroupResource) ([]runtime.Object, error), now time.Time) (corev1.ResourceList, error) {
	sum := corev1.ResourceList{}
	for _, name := range names {
		sum[name] = resource.Quantity{Format: resource.DecimalSI}
	}
	objs, err := list(e.Resource)
	if err != nil {
		return nil, err
	}
	for _, obj := range objs {
		if in, err := e.InScopes(quota, obj); err != nil {
			return nil, err
		} else if !in {
			continue
		}
		usage, err := e.usage(obj, now)
		if err != nil {
			return nil, err
		}
		sum = Add(sum, Mask(usage, names))
	}
	return sum, nil
}

// ReducesUsage reports whether an update may have lowered an object's usage, so that quotas must be recomputed. Deletions
// always do.
func ReducesUsage(obj, old runtime.Object, now time.Time) bool {
	switch obj := obj.(type) {
	case *corev1.Pod:
		before, ok := old.(*corev1.Pod)
		return ok && (Terminating(obj) != Terminating(before) || !PodReleased(before, now) && PodReleased(obj, now) || resized(obj, before))
	case *corev1.Service:
		before, ok := old.(*corev1.Service)
		return ok && countedType(obj) != countedType(before)
	case *corev1.PersistentVolumeClaim:
		before, ok := old.(*corev1.PersistentVolumeClaim)
		return ok && claimStatusCounts(obj, before)
	}
	return false
}

// countedType returns a service's type if quotas count it separately.
func countedType(service *corev1.Service) corev1.ServiceType {
	if t := service.Spec.Type; t == corev1.ServiceTypeNodePort || t == corev1.ServiceTypeLoadBalancer {
		return t
	}
	return ""
}

// resized reports whether the resources of running containers have changed.
func resized(pod, old *corev1.Pod) bool {
	differ := func(now, before []corev1.ContainerStatus) bool {
		for _, b := range before {
			for _, n := range now {
				if n.Name == b.Name && !equality.Semantic.DeepEqual(n.Resources, b.Resources) {
					return true
				}
			}
		}
		return false
	}
	return differ(pod.Status.ContainerStatuses, old.Status.ContainerStatuses) ||
		differ(pod.Status.InitContainerStatuses, old.Status.InitContainerStatuses)
}
