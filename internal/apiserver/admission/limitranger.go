package admission

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	resourcehelper "k8s.io/component-helpers/resource"

	"skiff/internal/container"
)

// limitRanger sets the default requests and limits of containers, and enforces the minimum, maximum and ratio for pods and claims,
// from the LimitRanges of their namespace.
type limitRanger struct{ client lazyClient }

const limitRangerAnnotation = "kubernetes.io/limit-ranger"

func (*limitRanger) Name() string { return "LimitRanger" }

// Handles creation and resize of pods: their resources cannot change otherwise.
func (*limitRanger) Handles(a *Attributes) bool {
	switch {
	case a.is(pods):
		return a.Operation == Create && a.Subresource == "" || a.Operation == Update && a.Subresource == "resize"
	case a.isPlain(persistentVolumeClaims):
		return a.changes()
	}
	return false
}

func (r *limitRanger) Mutate(ctx context.Context, a *Attributes) error {
	if !a.is(pods) {
		return nil
	}
	ranges, err := r.ranges(ctx, a)
	if err != nil || len(ranges) == 0 {
		return err
	}
	pod, err := objectOf[*corev1.Pod](a)
	if err != nil {
		return err
	}
	for _, limitRange := range ranges {
		setDefaults(pod, limitRange)
	}
	return nil
}

func (r *limitRanger) Validate(ctx context.Context, a *Attributes) error {
	ranges, err := r.ranges(ctx, a)
	if err != nil {
		return err
	}
	for _, limitRange := range ranges {
		var errs []error
		for i := range limitRange.Spec.Limits {
			limit := &limitRange.Spec.Limits[i]
			switch obj := a.Object.(type) {
			case *corev1.Pod:
				errs = append(errs, validatePodLimits(limit, obj)...)
			case *corev1.PersistentVolumeClaim:
				errs = append(errs, validateClaimLimits(limit, obj)...)
			}
		}
		if len(errs) > 0 {
			return Forbidden(a, utilerrors.NewAggregate(errs))
		}
	}
	return nil
}

// ranges are the LimitRanges for the write: none for an object that is being deleted.
func (r *limitRanger) ranges(ctx context.Context, a *Attributes) ([]*corev1.LimitRange, error) {
	if a.Old != nil {
		old, err := meta.Accessor(a.Old)
		if err != nil {
			return nil, Forbidden(a, err)
		}
		if old.GetDeletionTimestamp() != nil {
			return nil, nil
		}
	}
	ranges, err := list[*corev1.LimitRange](ctx, r.client, limitRanges, a.Namespace)
	if err != nil {
		return nil, forbid(a, "unable to %s %v at this time because there was an error enforcing limit ranges", a.Operation, a.Resource)
	}
	return ranges, nil
}

// setDefaults sets the defaults of a LimitRange on the pod's containers, and annotates the pod with what it has set.
func setDefaults(pod *corev1.Pod, limitRange *corev1.LimitRange) {
	requests, limits := corev1.ResourceList{}, corev1.ResourceList{}
	for _, limit := range limitRange.Spec.Limits {
		if limit.Type == corev1.LimitTypeContainer {
			maps.Copy(requests, limit.DefaultRequest)
			maps.Copy(limits, limit.Default)
		}
	}
	var changes [3][]string
	for kind, c := range container.All(&pod.Spec) {
		if kind == container.Ephemeral {
			continue // they have no resources of their own
		}
		if names := addMissing(&c.Resources.Requests, requests); names != "" {
			changes[kind] = append(changes[kind], fmt.Sprintf("%s request for %s %s", names, kind, c.Name))
		}
		if names := addMissing(&c.Resources.Limits, limits); names != "" {
			changes[kind] = append(changes[kind], fmt.Sprintf("%s limit for %s %s", names, kind, c.Name))
		}
	}
	if all := append(changes[container.Regular], changes[container.Init]...); len(all) > 0 {
		if pod.Annotations == nil {
			pod.Annotations = map[string]string{}
		}
		pod.Annotations[limitRangerAnnotation] = "LimitRanger plugin set: " + strings.Join(all, "; ")
	}
}

// addMissing adds the missing defaults and returns their names.
func addMissing(to *corev1.ResourceList, defaults corev1.ResourceList) string {
	var added []string
	for name, quantity := range defaults {
		if _, ok := (*to)[name]; ok {
			continue
		}
		if *to == nil {
			*to = corev1.ResourceList{}
		}
		(*to)[name] = quantity.DeepCopy()
		added = append(added, string(name))
	}
	slices.Sort(added)
	return strings.Join(added, ", ")
}

func validatePodLimits(limit *corev1.LimitRangeItem, pod *corev1.Pod) (errs []error) {
	switch limit.Type {
	case corev1.LimitTypeContainer:
		var byKind [3][]error
		for kind, c := range container.All(&pod.Spec) {
			if kind != container.Ephemeral { // they have no resources of their own
				byKind[kind] = append(byKind[kind], validateLimits(limit, c.Resources.Requests, c.Resources.Limits)...)
			}
		}
		return append(byKind[container.Regular], byKind[container.Init]...)
	case corev1.LimitTypePod:
		// The overhead of the runtime is not requested by the user.
		options := resourcehelper.PodResourcesOptions{ExcludeOverhead: true}
		return validateLimits(limit, resourcehelper.PodRequests(pod, options), resourcehelper.PodLimits(pod, options))
	}
	return nil
}

// validateClaimLimits checks the requests of a claim; its limits have no effect.
func validateClaimLimits(limit *corev1.LimitRangeItem, claim *corev1.PersistentVolumeClaim) (errs []error) {
	if limit.Type != corev1.LimitTypePersistentVolumeClaim {
		return nil
	}
	requests := claim.Spec.Resources.Requests
	for _, b := range bounds(limit, limit.Min, requests, nil) {
		errs = append(errs, b.atLeast())
	}
	for _, b := range bounds(limit, limit.Max, requests, nil) {
		errs = append(errs, b.requestAtMost())
	}
	return slices.DeleteFunc(errs, func(err error) bool { return err == nil })
}

func validateLimits(limit *corev1.LimitRangeItem, requests, limits corev1.ResourceList) (errs []error) {
	for _, b := range bounds(limit, limit.Min, requests, limits) {
		errs = append(errs, b.atLeast())
	}
	for _, b := range bounds(limit, limit.Max, requests, limits) {
		errs = append(errs, b.atMost())
	}
	for _, b := range bounds(limit, limit.MaxLimitRequestRatio, requests, limits) {
		errs = append(errs, b.ratio())
	}
	return slices.DeleteFunc(errs, func(err error) bool { return err == nil })
}

// bound is a minimum, maximum or ratio of a LimitRange, and the request and limit of an object.
type bound struct {
	resource             corev1.ResourceName
	limitType            corev1.LimitType
	enforced             resource.Quantity
	request, limit       resource.Quantity
	hasRequest, hasLimit bool
}

// bounds returns the bounds of a list, sorted by resource name.
func bounds(item *corev1.LimitRangeItem, enforced, requests, limits corev1.ResourceList) []bound {
	all := make([]bound, 0, len(enforced))
	for name, quantity := range enforced {
		b := bound{resource: name, limitType: item.Type, enforced: quantity}
		b.request, b.hasRequest = requests[name]
		b.limit, b.hasLimit = limits[name]
		all = append(all, b)
	}
	slices.SortFunc(all, func(a, b bound) int { return strings.Compare(string(a.resource), string(b.resource)) })
	return all
}

// values are the three quantities as milli-values if all of them allow it.
func (b *bound) values() (request, limit, enforced int64) {
	request, limit, enforced = b.request.Value(), b.limit.Value(), b.enforced.Value()
	if request <= resource.MaxMilliValue && limit <= resource.MaxMilliValue && enforced <= resource.MaxMilliValue {
		return b.request.MilliValue(), b.limit.MilliValue(), b.enforced.MilliValue()
	}
	return request, limit, enforced
}

func (b *bound) atLeast() error {
	request, limit, enforced := b.values()
	switch {
	case !b.hasRequest:
		return b.errorf("minimum", ".  No request is specified")
	case request < enforced:
		return b.errorf("minimum", ", but request is %s", &b.request)
	case b.hasLimit && limit < enforced:
		return b.errorf("minimum", ", but limit is %s", &b.limit)
	}
	return nil
}

func (b *bound) atMost() error {
	request, limit, enforced := b.values()
	switch {
	case !b.hasLimit:
		return b.errorf("maximum", ".  No limit is specified")
	case limit > enforced:
		return b.errorf("maximum", ", but limit is %s", &b.limit)
	case b.hasRequest && request > enforced:
		return b.errorf("maximum", ", but request is %s", &b.request)
	}
	return nil
}

func (b *bound) requestAtMost() error {
	request, _, enforced := b.values()
	switch {
	case !b.hasRequest:
		return b.errorf("maximum", ".  No request is specified")
	case request > enforced:
		return b.errorf("maximum", ", but request is %s", &b.request)
	}
	return nil
}

func (b *bound) errorf(which, format string, args ...any) error {
	return fmt.Errorf("%s %s usage per %s is %s%s", which, b.resource, b.limitType, &b.enforced, fmt.Sprintf(format, args...))
}

func (b *bound) ratio() error {
	request, limit, _ := b.values()
	switch {
	case !b.hasRequest || request == 0:
		return fmt.Errorf("%s max limit to request ratio per %s is %s, but no request is specified or request is 0", b.resource, b.limitType, &b.enforced)
	case !b.hasLimit || limit == 0:
		return fmt.Errorf("%s max limit to request ratio per %s is %s, but no limit is specified or limit is 0", b.resource, b.limitType, &b.enforced)
	}
	observed := float64(limit) / float64(request)
	compared, maximum := observed, float64(b.enforced.Value())
	if b.enforced.Value() <= resource.MaxMilliValue {
		compared, maximum = observed*1000, float64(b.enforced.MilliValue())
	}
	if compared > maximum {
		return fmt.Errorf("%s max limit to request ratio per %s is %s, but provided ratio is %f", b.resource, b.limitType, &b.enforced, observed)
	}
	return nil
}
