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
)

// standardResources are the names without a domain that anything (containers, quotas, limits) may use.
var standardResources = sets.New(
	corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage, corev1.ResourceStorage,
	corev1.ResourceRequestsCPU, corev1.ResourceRequestsMemory, corev1.ResourceRequestsEphemeralStorage, corev1.ResourceRequestsStorage,
	corev1.ResourceLimitsCPU, corev1.ResourceLimitsMemory, corev1.ResourceLimitsEphemeralStorage,
	corev1.ResourcePods, corev1.ResourceQuotas, corev1.ResourceServices, corev1.ResourceReplicationControllers,
	corev1.ResourceSecrets, corev1.ResourceConfigMaps, corev1.ResourcePersistentVolumeClaims,
	corev1.ResourceServicesNodePorts, corev1.ResourceServicesLoadBalancers)

// countedResources are the standard ones that come in whole numbers.
var countedResources = sets.New(
	corev1.ResourcePods, corev1.ResourceQuotas, corev1.ResourceServices, corev1.ResourceReplicationControllers,
	corev1.ResourceSecrets, corev1.ResourceConfigMaps, corev1.ResourcePersistentVolumeClaims,
	corev1.ResourceServicesNodePorts, corev1.ResourceServicesLoadBalancers)

// IsHugePages reports whether the resource is memory in pages of a certain size.
func IsHugePages(name corev1.ResourceName) bool {
	return strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix)
}

// isNative reports whether the system itself hands out the resource.
func isNative(name corev1.ResourceName) bool {
	return !strings.Contains(string(name), "/") || strings.Contains(string(name), corev1.ResourceDefaultNamespacePrefix)
}

// isExtended reports whether the resource is a device that someone else announces on nodes.
func isExtended(name corev1.ResourceName) bool {
	if isNative(name) || strings.HasPrefix(string(name), corev1.DefaultResourceRequestsPrefix) {
		return false
	}
	// A quota must be able to name its requests.
	return len(utilvalidation.IsQualifiedName(corev1.DefaultResourceRequestsPrefix+string(name))) == 0
}

// canOvercommit reports whether requests may be smaller than limits.
func canOvercommit(name corev1.ResourceName) bool { return isNative(name) && !IsHugePages(name) }

// dividesIntoPages reports whether quantity is a whole number of the pages that name speaks of.
func dividesIntoPages(name corev1.ResourceName, quantity resource.Quantity) bool {
	size, err := resource.ParseQuantity(strings.TrimPrefix(string(name), corev1.ResourceHugePagesPrefix))
	if err != nil || size.Sign() <= 0 || size.MilliValue()%1000 != 0 {
		return false
	}
	return quantity.Value()%size.Value() == 0
}

// resourceName judges the name of a resource of any kind and reports whether it is good.
func (j *judge) resourceName(name corev1.ResourceName, path *field.Path) bool {
	if texts := utilvalidation.IsQualifiedName(string(name)); len(texts) > 0 {
		j.messages(path, name, texts)
		return false
	}
	if !strings.Contains(string(name), "/") && !standardResources.Has(name) && !IsHugePages(name) &&
		!strings.HasPrefix(string(name), corev1.ResourceRequestsHugePagesPrefix) {
		j.invalid(path, name, "must be a standard resource type or fully qualified")
		return false
	}
	return true
}

// containerResourceName judges the name of something a container can ask for.
func (j *judge) containerResourceName(name corev1.ResourceName, path *field.Path) {
	j.resourceName(name, path)
	if !strings.Contains(string(name), "/") {
		switch {
		case name == corev1.ResourceCPU, name == corev1.ResourceMemory, name == corev1.ResourceEphemeralStorage, IsHugePages(name):
		default:
			j.invalid(path, name, "must be a standard resource for containers")
		}
	} else if !isNative(name) && !isExtended(name) {
		j.invalid(path, name, "doesn't follow extended resource name standard")
	}
}

// podResourceName judges the name of something a pod as a whole can ask for.
func (j *judge) podResourceName(name corev1.ResourceName, path *field.Path) {
	if j.resourceName(name, path) && !resourcehelper.IsSupportedPodLevelResource(name) {
		j.add(field.NotSupported(path, name, sets.List(resourcehelper.SupportedPodLevelResources())))
	}
}

// quantity judges an amount of a resource.
func (j *judge) quantity(name corev1.ResourceName, value resource.Quantity, path *field.Path) {
	if value.Sign() < 0 {
		j.invalid(path, value.String(), validation.IsNegativeErrorMsg)
	}
	if (countedResources.Has(name) || isExtended(name)) && value.MilliValue()%1000 != 0 {
		j.invalid(path, value, "must be an integer")
	}
	if IsHugePages(name) && !j.allow.indivisibleHugePages && !dividesIntoPages(name, value) {
		j.invalid(path, value.String(), fmt.Sprintf("%s is not positive integer multiple of %s", value.String(), name))
	}
}

// resources judges requests against limits. nameRule judges the names.
func (j *judge) resources(r *corev1.ResourceRequirements, nameRule func(corev1.ResourceName, *field.Path), path *field.Path) {
	limits, requests := path.Child("limits"), path.Child("requests")
	for _, name := range sortedKeys(r.Limits) {
		nameRule(name, limits.Key(string(name)))
		j.quantity(name, r.Limits[name], limits.Key(string(name)))
	}
	for _, name := range sortedKeys(r.Requests) {
		request := r.Requests[name]
		nameRule(name, requests.Key(string(name)))
		j.quantity(name, request, requests.Key(string(name)))
		limit, limited := r.Limits[name]
		switch {
		case !limited && !canOvercommit(name):
			j.required(limits, "Limit must be set for non overcommitable resources")
		case !limited:
		case request.Cmp(limit) != 0 && !canOvercommit(name):
			j.invalid(requests, request.String(), fmt.Sprintf("must be equal to %s limit of %s", name, limit.String()))
		case request.Cmp(limit) > 0:
			j.invalid(requests, request.String(), fmt.Sprintf("must be less than or equal to %s limit of %s", name, limit.String()))
		}
	}
	computes := func(name corev1.ResourceName) bool {
		return name == corev1.ResourceCPU || name == corev1.ResourceMemory
	}
	if mentions(r, IsHugePages) && !mentions(r, computes) {
		j.forbidden(path, "HugePages require cpu or memory")
	}
	j.claimNames(r.Claims, path.Child("claims"))
}

// mentions reports whether requests or limits hold a resource that satisfies the predicate.
func mentions(r *corev1.ResourceRequirements, predicate func(corev1.ResourceName) bool) bool {
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

// claimNames judges a container's references to the pod's claims: all of a claim, or some of its requests.
func (j *judge) claimNames(claims []corev1.ResourceClaim, path *field.Path) {
	seen := sets.New[string]()
	for i, claim := range claims {
		path := path.Index(i)
		if claim.Name == "" {
			j.required(path, "")
			continue
		}
		j.claimName(claim, seen, path)
		if !j.claims.Has(claim.Name) {
			err := field.NotFound(path, claim.Name)
			err.Detail = "must be one of the names in pod.spec.resourceClaims"
			if len(j.claims) == 0 {
				err.Detail += " which is empty"
			} else {
				err.Detail += ": " + strings.Join(sets.List(j.claims), ", ")
			}
			j.add(err)
		}
	}
}

func (j *judge) claimName(claim corev1.ResourceClaim, seen sets.Set[string], path *field.Path) {
	if seen.Has(claim.Name) {
		j.duplicate(path, claim.Name)
		return
	}
	key := claim.Name
	if claim.Request != "" {
		j.label(path.Child("request"), claim.Request)
		key += "/" + claim.Request
	}
	if seen.Has(key) {
		j.duplicate(path, key)
	} else if claim.Request == "" {
		for other := range seen {
			if strings.HasPrefix(other, claim.Name+"/") {
				j.duplicate(path, claim.Name)
			}
		}
	}
	seen.Insert(key)
}

// podClaims judges the claims the pod brings for its containers.
func (j *judge) podClaims(path *field.Path) {
	seen := sets.New[string]()
	for i, claim := range j.spec.ResourceClaims {
		path := path.Index(i)
		if j.meta != nil {
			if _, mirror := j.meta.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
				j.forbidden(field.NewPath(""), "static pods do not support resource claims")
				continue
			}
		}
		switch {
		case claim.Name == "":
			j.required(path.Child("name"), "")
		case seen.Has(claim.Name):
			j.duplicate(path.Child("name"), claim.Name)
		default:
			j.label(path.Child("name"), claim.Name)
			seen.Insert(claim.Name)
		}
		switch {
		case claim.ResourceClaimName != nil && claim.ResourceClaimTemplateName != nil:
			j.invalid(path, claim, "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified")
		case claim.ResourceClaimName == nil && claim.ResourceClaimTemplateName == nil:
			j.invalid(path, claim, "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`")
		}
		if name := claim.ResourceClaimName; name != nil {
			j.subdomain(path.Child("resourceClaimName"), *name)
		}
		if name := claim.ResourceClaimTemplateName; name != nil {
			j.subdomain(path.Child("resourceClaimTemplateName"), *name)
		}
	}
}

// podResources judges what the pod as a whole asks for against what its containers ask for.
func (j *judge) podResources(path *field.Path) {
	r := j.spec.Resources
	if r == nil {
		return
	}
	path = path.Child("resources")
	if j.isWindows() {
		j.forbidden(path, "may not be set for a windows pod")
		return
	}
	if r.Claims != nil {
		j.forbidden(path.Child("claims"), "claims may not be set for Resources at pod-level")
	}
	j.resources(r, j.podResourceName, path)

	pod := &corev1.Pod{Spec: *j.spec}
	requests := resourcehelper.AggregateContainerRequests(pod, resourcehelper.PodResourcesOptions{})
	for _, name := range sortedKeys(requests) {
		sum := requests[name]
		if own, set := r.Requests[name]; set && sum.Cmp(own) > 0 {
			j.invalid(path.Child("requests").Key(string(name)), own.String(),
				fmt.Sprintf("must be greater than or equal to aggregate container requests of %s", sum.String()))
		}
	}
	limits := resourcehelper.AggregateContainerLimits(pod, resourcehelper.PodResourcesOptions{})
	for _, name := range sortedKeys(limits) {
		sum := limits[name]
		if own, set := r.Limits[name]; set && IsHugePages(name) && sum.Cmp(own) > 0 {
			j.invalid(path.Child("limits").Key(string(name)), own.String(),
				fmt.Sprintf("must be greater than or equal to aggregate container limits of %s", sum.String()))
		}
	}
	for i, c := range j.spec.Containers {
		for _, name := range sortedKeys(c.Resources.Limits) {
			limit := c.Resources.Limits[name]
			if own, set := r.Limits[name]; set && limit.Cmp(own) > 0 {
				j.invalid(path.Child("containers").Index(i).Key(string(name)).Child("limits"), limit.String(),
					fmt.Sprintf("must be less than or equal to pod limits of %s", own.String()))
			}
		}
	}
}
