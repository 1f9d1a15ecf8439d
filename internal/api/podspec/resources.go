package podspec

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	resourcehelper "k8s.io/component-helpers/resource"

	"skiff/internal/resourcename"
)

// standardResources are the names without a domain that are valid everywhere (containers, quotas, limit ranges).
var standardResources = sets.New(
	corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage, corev1.ResourceStorage,
	corev1.ResourceRequestsCPU, corev1.ResourceRequestsMemory, corev1.ResourceRequestsEphemeralStorage, corev1.ResourceRequestsStorage,
	corev1.ResourceLimitsCPU, corev1.ResourceLimitsMemory, corev1.ResourceLimitsEphemeralStorage,
	corev1.ResourcePods, corev1.ResourceQuotas, corev1.ResourceServices, corev1.ResourceReplicationControllers,
	corev1.ResourceSecrets, corev1.ResourceConfigMaps, corev1.ResourcePersistentVolumeClaims,
	corev1.ResourceServicesNodePorts, corev1.ResourceServicesLoadBalancers)

// countedResources are the standard ones that are integers.
var countedResources = sets.New(
	corev1.ResourcePods, corev1.ResourceQuotas, corev1.ResourceServices, corev1.ResourceReplicationControllers,
	corev1.ResourceSecrets, corev1.ResourceConfigMaps, corev1.ResourcePersistentVolumeClaims,
	corev1.ResourceServicesNodePorts, corev1.ResourceServicesLoadBalancers)

// IsHugePages reports whether the resource is huge pages of some size.
func IsHugePages(name corev1.ResourceName) bool {
	return strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix)
}

// canOvercommit reports whether requests may be smaller than limits.
func canOvercommit(name corev1.ResourceName) bool {
	return resourcename.IsNative(name) && !IsHugePages(name)
}

// isPageMultiple reports whether quantity is a multiple of the page size in name.
func isPageMultiple(name corev1.ResourceName, quantity resource.Quantity) bool {
	size, err := resource.ParseQuantity(strings.TrimPrefix(string(name), corev1.ResourceHugePagesPrefix))
	if err != nil || size.Sign() <= 0 || size.MilliValue()%1000 != 0 {
		return false
	}
	return quantity.Value()%size.Value() == 0
}

// resourceName validates the name of any resource and reports whether it is valid.
func (val *validator) resourceName(name corev1.ResourceName, path *field.Path) bool {
	if texts := utilvalidation.IsQualifiedName(string(name)); len(texts) > 0 {
		val.invalidEach(path, name, texts)
		return false
	}
	if !strings.Contains(string(name), "/") && !standardResources.Has(name) && !IsHugePages(name) &&
		!strings.HasPrefix(string(name), corev1.ResourceRequestsHugePagesPrefix) {
		val.invalid(path, name, "must be a standard resource type or fully qualified")
		return false
	}
	return true
}

// containerResourceName validates the name of a resource that a container can request.
func (val *validator) containerResourceName(name corev1.ResourceName, path *field.Path) {
	val.resourceName(name, path)
	if !strings.Contains(string(name), "/") {
		switch {
		case name == corev1.ResourceCPU, name == corev1.ResourceMemory, name == corev1.ResourceEphemeralStorage, IsHugePages(name):
		default:
			val.invalid(path, name, "must be a standard resource for containers")
		}
	} else if !resourcename.IsNative(name) && !resourcename.IsExtended(name) {
		val.invalid(path, name, "doesn't follow extended resource name standard")
	}
}

// podResourceName validates the name of a resource that a pod can request.
func (val *validator) podResourceName(name corev1.ResourceName, path *field.Path) {
	if val.resourceName(name, path) && !resourcehelper.IsSupportedPodLevelResource(name) {
		val.add(field.NotSupported(path, name, sets.List(resourcehelper.SupportedPodLevelResources())))
	}
}

// quantity validates an amount of a resource.
func (val *validator) quantity(name corev1.ResourceName, value resource.Quantity, path *field.Path) {
	if value.Sign() < 0 {
		val.invalid(path, value.String(), validation.IsNegativeErrorMsg)
	}
	if (countedResources.Has(name) || resourcename.IsExtended(name)) && value.MilliValue()%1000 != 0 {
		val.invalid(path, value, "must be an integer")
	}
	if IsHugePages(name) && !val.allow.indivisibleHugePages && !isPageMultiple(name, value) {
		val.invalid(path, value.String(), fmt.Sprintf("%s is not positive integer multiple of %s", value.String(), name))
	}
}

// resources validates requests and limits.
func (val *validator) resources(r *corev1.ResourceRequirements, validateName func(corev1.ResourceName, *field.Path), path *field.Path) {
	limits, requests := path.Child("limits"), path.Child("requests")
	for _, name := range sortedKeys(r.Limits) {
		validateName(name, limits.Key(string(name)))
		val.quantity(name, r.Limits[name], limits.Key(string(name)))
	}
	for _, name := range sortedKeys(r.Requests) {
		request := r.Requests[name]
		validateName(name, requests.Key(string(name)))
		val.quantity(name, request, requests.Key(string(name)))
		limit, limited := r.Limits[name]
		switch {
		case !limited && !canOvercommit(name):
			val.required(limits, "Limit must be set for non overcommitable resources")
		case !limited:
		case request.Cmp(limit) != 0 && !canOvercommit(name):
			val.invalid(requests, request.String(), fmt.Sprintf("must be equal to %s limit of %s", name, limit.String()))
		case request.Cmp(limit) > 0:
			val.invalid(requests, request.String(), fmt.Sprintf("must be less than or equal to %s limit of %s", name, limit.String()))
		}
	}
	computes := func(name corev1.ResourceName) bool {
		return name == corev1.ResourceCPU || name == corev1.ResourceMemory
	}
	if hasResource(r, IsHugePages) && !hasResource(r, computes) {
		val.forbidden(path, "HugePages require cpu or memory")
	}
	val.claimNames(r.Claims, path.Child("claims"))
}

// hasResource reports whether requests or limits contain a resource that satisfies the predicate.
func hasResource(r *corev1.ResourceRequirements, predicate func(corev1.ResourceName) bool) bool {
	for _, list := range []corev1.ResourceList{r.Limits, r.Requests} {
		for name := range list {
			if predicate(name) {
				return true
			}
		}
	}
	return false
}

func sortedKeys[K ~string, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }

// claimNames validates a container's references to the pod's resource claims: to a claim or to some of its requests.
func (val *validator) claimNames(claims []corev1.ResourceClaim, path *field.Path) {
	seen := claimReferences{sets.New[string](), map[string]int{}}
	detail := "" // the same text for all errors
	for i, claim := range claims {
		path := path.Index(i)
		if claim.Name == "" {
			val.required(path, "")
			continue
		}
		val.claimName(claim, seen, path)
		if val.claims.Has(claim.Name) {
			continue
		}
		if detail == "" {
			detail = "must be one of the names in pod.spec.resourceClaims"
			if len(val.claims) == 0 {
				detail += " which is empty"
			} else {
				detail += ": " + strings.Join(sets.List(val.claims), ", ")
			}
		}
		err := field.NotFound(path, claim.Name)
		err.Detail = detail
		val.add(err)
	}
}

// claimReferences are the references to claims of one container that have been validated.
type claimReferences struct {
	sets.Set[string] // a claim's name, or "name/request"
	// requests is the number of references to requests of each claim.
	requests map[string]int
}

func (val *validator) claimName(claim corev1.ResourceClaim, seen claimReferences, path *field.Path) {
	if seen.Has(claim.Name) {
		val.duplicate(path, claim.Name)
		return
	}
	key := claim.Name
	if claim.Request != "" {
		val.label(path.Child("request"), claim.Request)
		key += "/" + claim.Request
	}
	if seen.Has(key) {
		val.duplicate(path, key)
	} else if claim.Request == "" {
		for range seen.requests[claim.Name] {
			val.duplicate(path, claim.Name)
		}
	}
	if claim.Request != "" && !seen.Has(key) {
		seen.requests[claim.Name]++
	}
	seen.Insert(key)
}

// podClaims validates the pod's resource claims.
func (val *validator) podClaims(path *field.Path) {
	seen := sets.New[string]()
	for i, claim := range val.spec.ResourceClaims {
		path := path.Index(i)
		if val.meta != nil {
			if _, mirror := val.meta.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
				val.forbidden(field.NewPath(""), "static pods do not support resource claims")
				continue
			}
		}
		switch {
		case claim.Name == "":
			val.required(path.Child("name"), "")
		case seen.Has(claim.Name):
			val.duplicate(path.Child("name"), claim.Name)
		default:
			val.label(path.Child("name"), claim.Name)
			seen.Insert(claim.Name)
		}
		switch {
		case claim.ResourceClaimName != nil && claim.ResourceClaimTemplateName != nil:
			val.invalid(path, claim, "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified")
		case claim.ResourceClaimName == nil && claim.ResourceClaimTemplateName == nil:
			val.invalid(path, claim, "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`")
		}
		if name := claim.ResourceClaimName; name != nil {
			val.subdomain(path.Child("resourceClaimName"), *name)
		}
		if name := claim.ResourceClaimTemplateName; name != nil {
			val.subdomain(path.Child("resourceClaimTemplateName"), *name)
		}
	}
}

// podResources validates the pod-level resources against those of the containers.
func (val *validator) podResources(path *field.Path) {
	r := val.spec.Resources
	if r == nil {
		return
	}
	path = path.Child("resources")
	if val.isWindows() {
		val.forbidden(path, "may not be set for a windows pod")
		return
	}
	if r.Claims != nil {
		val.forbidden(path.Child("claims"), "claims may not be set for Resources at pod-level")
	}
	val.resources(r, val.podResourceName, path)

	pod := &corev1.Pod{Spec: *val.spec}
	requests := resourcehelper.AggregateContainerRequests(pod, resourcehelper.PodResourcesOptions{})
	for _, name := range sortedKeys(requests) {
		sum := requests[name]
		if own, set := r.Requests[name]; set && sum.Cmp(own) > 0 {
			val.invalid(path.Child("requests").Key(string(name)), own.String(),
				fmt.Sprintf("must be greater than or equal to aggregate container requests of %s", sum.String()))
		}
	}
	limits := resourcehelper.AggregateContainerLimits(pod, resourcehelper.PodResourcesOptions{})
	for _, name := range sortedKeys(limits) {
		sum := limits[name]
		if own, set := r.Limits[name]; set && IsHugePages(name) && sum.Cmp(own) > 0 {
			val.invalid(path.Child("limits").Key(string(name)), own.String(),
				fmt.Sprintf("must be greater than or equal to aggregate container limits of %s", sum.String()))
		}
	}
	for i, c := range val.spec.Containers {
		for _, name := range sortedKeys(c.Resources.Limits) {
			limit := c.Resources.Limits[name]
			if own, set := r.Limits[name]; set && limit.Cmp(own) > 0 {
				val.invalid(path.Child("containers").Index(i).Key(string(name)).Child("limits"), limit.String(),
					fmt.Sprintf("must be less than or equal to pod limits of %s", own.String()))
			}
		}
	}
}
