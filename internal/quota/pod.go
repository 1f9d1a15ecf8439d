package quota

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	resourcehelper "k8s.io/component-helpers/resource"

	"skiff/internal/container"
	"skiff/internal/podstate"
	"skiff/internal/resourcename"
)

var (
	podsResource  = schema.GroupResource{Resource: "pods"}
	podsCountName = CountName(podsResource)
)

// podNames are the names a quota counts pods under, besides huge pages and extended resources.
var podNames = []corev1.ResourceName{
	podsCountName, corev1.ResourcePods,
	corev1.ResourceCPU, corev1.ResourceRequestsCPU, corev1.ResourceLimitsCPU,
	corev1.ResourceMemory, corev1.ResourceRequestsMemory, corev1.ResourceLimitsMemory,
	corev1.ResourceEphemeralStorage, corev1.ResourceRequestsEphemeralStorage, corev1.ResourceLimitsEphemeralStorage,
}

// mustBeSpecified are the names for which every container must specify a value. No more will be added: tying validation
// to quota was a mistake, kept for compatibility.
var mustBeSpecified = []corev1.ResourceName{
	corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceRequestsCPU, corev1.ResourceRequestsMemory,
	corev1.ResourceLimitsCPU, corev1.ResourceLimitsMemory,
}

func podEvaluator() *Evaluator {
	return &Evaluator{
		Resource: podsResource,
		counts:   countsPods,
		usage: func(obj runtime.Object, now time.Time) (corev1.ResourceList, error) {
			pod, err := as[*corev1.Pod](obj)
			if err != nil {
				return nil, err
			}
			return PodUsage(pod, now), nil
		},
		inScope:       podInScope,
		checkRequired: checkRequiredResources,
		affectsUsage:  podWriteAffectsUsage,
	}
}

func as[T runtime.Object](obj runtime.Object) (T, error) {
	typed, ok := obj.(T)
	if !ok {
		return typed, fmt.Errorf("expected %T, got %T", typed, obj)
	}
	return typed, nil
}

// podWriteAffectsUsage: an update of a pod changes its usage if its resources or its Terminating scope change.
func podWriteAffectsUsage(w Write) bool {
	switch w.Subresource {
	case "":
		if w.Old == nil {
			return true
		}
		pod, isPod := w.Object.(*corev1.Pod)
		old, wasPod := w.Old.(*corev1.Pod)
		return isPod && wasPod && Terminating(pod) != Terminating(old)
	case "resize":
		return w.Old != nil
	}
	return false
}

func countsPods(name corev1.ResourceName) bool {
	return slices.Contains(podNames, name) || strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix) ||
		strings.HasPrefix(string(name), corev1.ResourceRequestsHugePagesPrefix) || extendedInQuota(name)
}

// extendedInQuota reports whether a name in a quota counts an extended resource: requests.example.com/gpu.
func extendedInQuota(name corev1.ResourceName) bool {
	if !strings.HasPrefix(string(name), corev1.DefaultResourceRequestsPrefix) {
		return false
	}
	return !resourcename.IsNative(name) || strings.HasPrefix(string(name), corev1.ResourceImplicitExtendedClaimsPerClass)
}

// PodUsage returns what a pod uses. Every stored pod counts as an object; only pods that are not released use anything
// else.
func PodUsage(pod *corev1.Pod, now time.Time) corev1.ResourceList {
	used := corev1.ResourceList{podsCountName: count(1)}
	if PodReleased(pod, now) {
		return used
	}
	options := resourcehelper.PodResourcesOptions{UseStatusResources: true}
	addResources(used, resourcehelper.PodRequests(pod, options), resourcehelper.PodLimits(pod, options))
	return used
}

// addResources adds requests and limits under their names in quotas.
func addResources(used, requests, limits corev1.ResourceList) {
	used[corev1.ResourcePods] = count(1)
	for name, quantity := range requests {
		switch {
		case name == corev1.ResourceCPU || name == corev1.ResourceMemory || name == corev1.ResourceEphemeralStorage ||
			strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix):
			used[name] = quantity
			used[corev1.DefaultResourceRequestsPrefix+name] = quantity
		case resourcename.IsExtended(name) || strings.HasPrefix(string(name), resourcev1.ResourceDeviceClassPrefix):
			used[corev1.DefaultResourceRequestsPrefix+name] = quantity
		}
	}
	for name, quantity := range limits {
		switch name {
		case corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage:
			used["limits."+name] = quantity
		}
	}
}

// PodReleased reports whether a pod no longer uses its resources: it is terminal, or its deletion grace period is over
// because its node is lost.
func PodReleased(pod *corev1.Pod, now time.Time) bool {
	if podstate.IsTerminal(pod) {
		return true
	}
	if pod.DeletionTimestamp == nil || pod.DeletionGracePeriodSeconds == nil {
		return false
	}
	return now.After(pod.DeletionTimestamp.Add(time.Duration(*pod.DeletionGracePeriodSeconds) * time.Second))
}

// checkRequiredResources rejects a pod with a container that does not specify a resource a quota limits. Pod-level
// resources make it unnecessary.
func checkRequiredResources(names []corev1.ResourceName, obj runtime.Object) error {
	pod, err := as[*corev1.Pod](obj)
	if err != nil {
		return err
	}
	if resourcehelper.IsPodLevelResourcesSet(pod) {
		return nil
	}
	missing := map[corev1.ResourceName][]string{}
	for kind, c := range container.All(&pod.Spec) {
		if kind == container.Ephemeral {
			continue // they cannot have resources
		}
		has := corev1.ResourceList{}
		addResources(has, c.Resources.Requests, c.Resources.Limits)
		for _, name := range names {
			if _, ok := has[name]; !ok && slices.Contains(mustBeSpecified, name) {
				missing[name] = append(missing[name], c.Name)
			}
		}
	}
	if len(missing) == 0 {
		return nil
	}
	var texts []string
	for name, containers := range missing {
		slices.Sort(containers)
		texts = append(texts, fmt.Sprintf("%s for: %s", name, strings.Join(slices.Compact(containers), ",")))
	}
	slices.Sort(texts)
	return fmt.Errorf("must specify %s", strings.Join(texts, "; "))
}

func podInScope(scope corev1.ScopedResourceSelectorRequirement, obj runtime.Object) (bool, error) {
	pod, err := as[*corev1.Pod](obj)
	if err != nil {
		return false, err
	}
	switch scope.ScopeName {
	case corev1.ResourceQuotaScopeTerminating:
		return Terminating(pod), nil
	case corev1.ResourceQuotaScopeNotTerminating:
		return !Terminating(pod), nil
	case corev1.ResourceQuotaScopeBestEffort:
		return bestEffort(pod), nil
	case corev1.ResourceQuotaScopeNotBestEffort:
		return !bestEffort(pod), nil
	case corev1.ResourceQuotaScopePriorityClass:
		var names []string
		if pod.Spec.PriorityClassName != "" {
			names = []string{pod.Spec.PriorityClassName}
		}
		return selects(scope, names)
	case corev1.ResourceQuotaScopeCrossNamespacePodAffinity:
		return hasCrossNamespaceAffinity(pod.Spec.Affinity), nil
	}
	return false, nil
}

// selects reports whether a scope selects an object that references these classes.
func selects(scope corev1.ScopedResourceSelectorRequirement, classes []string) (bool, error) {
	listed := func(class string) bool { return slices.Contains(scope.Values, class) }
	switch scope.Operator {
	case corev1.ScopeSelectorOpExists:
		return len(classes) > 0, nil
	case corev1.ScopeSelectorOpDoesNotExist:
		return len(classes) == 0, nil
	case corev1.ScopeSelectorOpIn:
		return slices.ContainsFunc(classes, listed), nil
	case corev1.ScopeSelectorOpNotIn:
		return len(classes) == 0 || slices.ContainsFunc(classes, func(class string) bool { return !listed(class) }), nil
	}
	return false, fmt.Errorf("failed to parse and convert selector: %q is not a valid scope selector operator", scope.Operator)
}

// Terminating reports whether the pod is in the Terminating scope: it has an active deadline.
func Terminating(pod *corev1.Pod) bool {
	return pod.Spec.ActiveDeadlineSeconds != nil && *pod.Spec.ActiveDeadlineSeconds >= 0
}

// bestEffort reports whether the pod has neither requests nor limits of CPU and memory.
func bestEffort(pod *corev1.Pod) bool {
	if pod.Status.QOSClass != "" {
		return pod.Status.QOSClass == corev1.PodQOSBestEffort
	}
	if resourcehelper.IsPodLevelResourcesSet(pod) {
		return requestsNothing(pod.Spec.Resources)
	}
	for _, c := range container.All(&pod.Spec) {
		if !requestsNothing(&c.Resources) {
			return false
		}
	}
	return true
}

func requestsNothing(r *corev1.ResourceRequirements) bool {
	for _, list := range []corev1.ResourceList{r.Requests, r.Limits} {
		if !list.Cpu().IsZero() || !list.Memory().IsZero() {
			return false
		}
	}
	return true
}

// hasCrossNamespaceAffinity reports whether the pod has affinity or anti-affinity to pods of other namespaces.
func hasCrossNamespaceAffinity(affinity *corev1.Affinity) bool {
	if affinity == nil {
		return false
	}
	var terms []corev1.PodAffinityTerm
	var weighted []corev1.WeightedPodAffinityTerm
	if pods := affinity.PodAffinity; pods != nil {
		terms = append(terms, pods.RequiredDuringSchedulingIgnoredDuringExecution...)
		weighted = append(weighted, pods.PreferredDuringSchedulingIgnoredDuringExecution...)
	}
	if anti := affinity.PodAntiAffinity; anti != nil {
		terms = append(terms, anti.RequiredDuringSchedulingIgnoredDuringExecution...)
		weighted = append(weighted, anti.PreferredDuringSchedulingIgnoredDuringExecution...)
	}
	for _, w := range weighted {
		terms = append(terms, w.PodAffinityTerm)
	}
	return slices.ContainsFunc(terms, func(t corev1.PodAffinityTerm) bool {
		return len(t.Namespaces) > 0 || t.NamespaceSelector != nil
	})
}
