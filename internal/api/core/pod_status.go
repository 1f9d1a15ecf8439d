package core

import (
	"fmt"
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"

	"skiff/internal/api/podspec"
	"skiff/internal/kind"
)

// eachContainerStatus visits the status of every container with its path.
func eachContainerStatus(status *corev1.PodStatus, visit func(s *corev1.ContainerStatus, path *field.Path)) {
	for _, list := range []struct {
		name     string
		statuses []corev1.ContainerStatus
	}{
		{"containerStatuses", status.ContainerStatuses},
		{"initContainerStatuses", status.InitContainerStatuses},
		{"ephemeralContainerStatuses", status.EphemeralContainerStatuses},
	} {
		if len(list.statuses) == 0 {
			continue
		}
		path := field.NewPath("status", list.name)
		for i := range list.statuses {
			visit(&list.statuses[i], path.Index(i))
		}
	}
}

// preparePodStatus keeps fields that older clients would clear, and drops those of disabled features.
func preparePodStatus(_ *kind.Request, obj, old *corev1.Pod) {
	newStatus, oldStatus := &obj.Status, &old.Status
	if newStatus.QOSClass == "" {
		newStatus.QOSClass = oldStatus.QOSClass
	}
	if newStatus.ResourceClaimStatuses == nil {
		newStatus.ResourceClaimStatuses = oldStatus.ResourceClaimStatuses
	}
	if newStatus.ExtendedResourceClaimStatus == nil {
		newStatus.ExtendedResourceClaimStatus = oldStatus.ExtendedResourceClaimStatus
	}
	if newStatus.NodeAllocatableResourceClaimStatuses == nil {
		newStatus.NodeAllocatableResourceClaimStatuses = oldStatus.NodeAllocatableResourceClaimStatuses
	}
	keepObservedGenerations(newStatus, oldStatus)

	if len(oldStatus.NodeAllocatableResourceClaimStatuses) == 0 {
		newStatus.NodeAllocatableResourceClaimStatuses = nil
	}
	if len(oldStatus.VolumeHealth) == 0 {
		newStatus.VolumeHealth = nil
	}
	hasVolumeStatus := false
	eachContainerStatus(oldStatus, func(s *corev1.ContainerStatus, _ *field.Path) {
		hasVolumeStatus = hasVolumeStatus || slices.ContainsFunc(s.VolumeMounts, func(m corev1.VolumeMountStatus) bool { return m.VolumeStatus != nil })
	})
	if !hasVolumeStatus {
		eachContainerStatus(newStatus, func(s *corev1.ContainerStatus, _ *field.Path) {
			for i := range s.VolumeMounts {
				s.VolumeMounts[i].VolumeStatus = nil
			}
		})
	}
}

// keepObservedGenerations keeps the observed generations that the client left out: of the status, and of each condition, paired by
// type and order.
func keepObservedGenerations(newStatus, oldStatus *corev1.PodStatus) {
	if newStatus.ObservedGeneration == 0 {
		newStatus.ObservedGeneration = oldStatus.ObservedGeneration
	}
	generations := map[corev1.PodConditionType][]int64{}
	for _, condition := range oldStatus.Conditions {
		generations[condition.Type] = append(generations[condition.Type], condition.ObservedGeneration)
	}
	for i := range newStatus.Conditions {
		condition := &newStatus.Conditions[i]
		known := generations[condition.Type]
		if len(known) == 0 {
			continue
		}
		generations[condition.Type] = known[1:]
		if condition.ObservedGeneration == 0 {
			condition.ObservedGeneration = known[0]
		}
	}
}

func warnPodStatus(obj, _ *corev1.Pod) (warnings []string) {
	for i, ip := range obj.Status.PodIPs {
		warnings = append(warnings, validation.GetWarningsForIP(field.NewPath("status", "podIPs").Index(i).Child("ip"), ip.IP)...)
	}
	for i, ip := range obj.Status.HostIPs {
		warnings = append(warnings, validation.GetWarningsForIP(field.NewPath("status", "hostIPs").Index(i).Child("ip"), ip.IP)...)
	}
	return warnings
}

func validatePodStatus(_ *kind.Request, obj, old *corev1.Pod) field.ErrorList {
	path := field.NewPath("status")
	newStatus, oldStatus := &obj.Status, &old.Status
	errs := append(podspec.ValidateAnnotations(obj, old), validatePodAnnotationChange(obj, old)...)
	for i, condition := range newStatus.Conditions {
		path := path.Child("conditions").Index(i)
		if condition.ObservedGeneration < 0 {
			errs = append(errs, field.Invalid(path.Child("observedGeneration"), condition.ObservedGeneration, "must be a non-negative integer"))
		}
		for _, msg := range validation.IsQualifiedName(string(condition.Type)) {
			errs = append(errs, field.Invalid(path.Child("Type"), string(condition.Type), msg))
		}
	}
	if newStatus.NominatedNodeName != "" && newStatus.NominatedNodeName != oldStatus.NominatedNodeName {
		path := path.Child("nominatedNodeName")
		for _, msg := range apivalidation.NameIsDNSSubdomain(newStatus.NominatedNodeName, false) {
			errs = append(errs, field.Invalid(path, newStatus.NominatedNodeName, msg))
		}
		if old.Spec.NodeName != "" {
			errs = append(errs, field.Forbidden(path, "may not be set on pods that are already bound to a node"))
		}
	}
	if newStatus.ObservedGeneration < 0 {
		errs = append(errs, field.Invalid(path.Child("observedGeneration"), newStatus.ObservedGeneration, "must be a non-negative integer"))
	}
	errs = append(errs, apivalidation.ValidateImmutableField(newStatus.QOSClass, oldStatus.QOSClass, path.Child("qosClass"))...)
	errs = append(errs, validateStateTransitions(newStatus, oldStatus, &old.Spec)...)
	errs = append(errs, validateClaimStatuses(obj, path)...)
	errs = append(errs, validateVolumeHealth(obj, path.Child("volumeHealth"))...)
	errs = append(errs, validateStatusIPs(newStatus, oldStatus, path)...)
	eachContainerStatus(newStatus, func(s *corev1.ContainerStatus, path *field.Path) {
		errs = append(errs, validateContainerUser(s, obj.Spec.OS, path.Child("user", "linux"))...)
	})
	errs = append(errs, validateAllocatedResources(obj)...)
	return errs
}

// validateStateTransitions rejects a status in which a container runs again that has terminated and may not be restarted.
func validateStateTransitions(newStatus, oldStatus *corev1.PodStatus, spec *corev1.PodSpec) field.ErrorList {
	var errs field.ErrorList
	restartsAll := slices.ContainsFunc(slices.Concat(spec.InitContainers, spec.Containers), func(c corev1.Container) bool {
		return slices.ContainsFunc(c.RestartPolicyRules, func(r corev1.ContainerRestartRule) bool {
			return r.Action == corev1.ContainerRestartRuleActionRestartAllContainers
		})
	})
	validate := func(statuses, oldStatuses []corev1.ContainerStatus, name string, mayRestart func(s *corev1.ContainerStatus) bool) {
		position := firstByName(statuses, func(s *corev1.ContainerStatus) string { return s.Name })
		for i := range oldStatuses {
			terminated := &oldStatuses[i]
			if terminated.State.Terminated == nil {
				continue
			}
			j, found := position[terminated.Name]
			if found && statuses[j].State.Terminated == nil && !mayRestart(terminated) {
				errs = append(errs, field.Forbidden(field.NewPath("status", name).Index(i).Child("state"), "may not be transitioned to non-terminated state"))
			}
		}
	}
	restartableIn := func(containers []corev1.Container) func(s *corev1.ContainerStatus) bool {
		position := firstByName(containers, func(c *corev1.Container) string { return c.Name })
		return func(s *corev1.ContainerStatus) bool {
			j, found := position[s.Name]
			return found && restartsAfter(&containers[j], spec.RestartPolicy, s.State.Terminated.ExitCode)
		}
	}
	if !restartsAll {
		validate(newStatus.ContainerStatuses, oldStatus.ContainerStatuses, "containerStatuses", restartableIn(spec.Containers))
		validate(newStatus.InitContainerStatuses, oldStatus.InitContainerStatuses, "initContainerStatuses", restartableIn(spec.InitContainers))
	}
	validate(newStatus.EphemeralContainerStatuses, oldStatus.EphemeralContainerStatuses, "ephemeralContainerStatuses",
		func(*corev1.ContainerStatus) bool { return false })
	return errs
}

// restartsAfter reports whether a container restarts after exiting with code: by the first matching restart rule, then by
// its own policy, then by the pod's.
func restartsAfter(c *corev1.Container, pod corev1.RestartPolicy, code int32) bool {
	if c.RestartPolicy != nil {
		for _, rule := range c.RestartPolicyRules {
			if rule.ExitCodes == nil {
				continue
			}
			listed := slices.Contains(rule.ExitCodes.Values, code)
			if listed == (rule.ExitCodes.Operator == corev1.ContainerRestartRuleOnExitCodesOpIn) {
				return true // both actions restart it
			}
		}
		pod = corev1.RestartPolicy(*c.RestartPolicy)
	}
	switch pod {
	case corev1.RestartPolicyOnFailure:
		return code != 0
	case corev1.RestartPolicyNever:
		return false
	}
	return true
}

func validateClaimStatuses(obj *corev1.Pod, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	claims := firstByName(obj.Spec.ResourceClaims, func(c *corev1.PodResourceClaim) string { return c.Name })
	seen := sets.New[string]()
	for i, status := range obj.Status.ResourceClaimStatuses {
		path := path.Child("resourceClaimStatuses").Index(i)
		if _, known := claims[status.Name]; !known {
			errs = append(errs, field.Invalid(path.Child("name"), status.Name, "must match the name of an entry in `spec.resourceClaims`"))
		}
		if seen.Has(status.Name) {
			errs = append(errs, field.Duplicate(path.Child("name"), status.Name))
		}
		seen.Insert(status.Name)
		if name := status.ResourceClaimName; name != nil {
			for _, msg := range apivalidation.NameIsDNSSubdomain(*name, false) {
				errs = append(errs, field.Invalid(path.Child("resourceClaimName"), *name, msg))
			}
		}
	}
	if status := obj.Status.ExtendedResourceClaimStatus; status != nil {
		errs = append(errs, validateExtendedClaim(status, &obj.Spec, path.Child("extendedResourceClaimStatus"))...)
	}
	return append(errs, validateNodeAllocatable(obj, path.Child("nodeAllocatableResourceClaimStatuses"))...)
}

// validateExtendedClaim validates the claim for the devices that containers request as extended resources.
func validateExtendedClaim(status *corev1.PodExtendedResourceClaimStatus, spec *corev1.PodSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(status.RequestMappings) == 0 {
		errs = append(errs, field.Required(path.Child("requestMappings"), "at least one request mapping is required"))
	}
	seen := sets.New[corev1.ContainerExtendedResourceRequest]()
	for i, mapping := range status.RequestMappings {
		idxPath := path.Child("requestMappings").Index(i)
		if c := findContainer(slices.Concat(spec.InitContainers, spec.Containers), mapping.ContainerName); c == nil {
			errs = append(errs, field.Invalid(idxPath.Child("containerName"), mapping.ContainerName,
				"must match the name of an entry in spec.initContainers.name or spec.containers.name"))
		} else if _, set := c.Resources.Requests[corev1.ResourceName(mapping.ResourceName)]; !set {
			errs = append(errs, field.Invalid(idxPath.Child("resourceName"), mapping.ResourceName,
				"must match the extended resource name of an entry in spec.initContainers.resources.requests or spec.containers.resources.requests"))
		}
		for _, msg := range validation.IsDNS1123Label(mapping.RequestName) {
			errs = append(errs, field.Invalid(path.Child("requestName"), mapping.RequestName, msg))
		}
		if seen.Has(mapping) {
			errs = append(errs, field.Duplicate(idxPath.Child("containerName"), mapping.ContainerName),
				field.Duplicate(idxPath.Child("resourceName"), mapping.ResourceName), field.Duplicate(idxPath.Child("requestName"), mapping.RequestName))
		}
		seen.Insert(mapping)
	}
	if status.ResourceClaimName == "" {
		return append(errs, field.Required(path.Child("resourceClaimName"), ""))
	}
	for _, msg := range apivalidation.NameIsDNSSubdomain(status.ResourceClaimName, false) {
		errs = append(errs, field.Invalid(path.Child("resourceClaimName"), status.ResourceClaimName, msg))
	}
	return errs
}

func findContainer(containers []corev1.Container, name string) *corev1.Container {
	for i := range containers {
		if containers[i].Name == name {
			return &containers[i]
		}
	}
	return nil
}

// validateNodeAllocatable validates the node allocatable resources (CPU, memory, huge pages) that claims use.
func validateNodeAllocatable(obj *corev1.Pod, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	claims := sets.New[string]()
	for _, claim := range obj.Spec.ResourceClaims {
		if claim.ResourceClaimName != nil {
			claims.Insert(*claim.ResourceClaimName)
		}
	}
	for _, claim := range obj.Status.ResourceClaimStatuses {
		if claim.ResourceClaimName != nil {
			claims.Insert(*claim.ResourceClaimName)
		}
	}
	name := func(path *field.Path, name corev1.ResourceName) {
		if name != corev1.ResourceCPU && name != corev1.ResourceMemory && !podspec.IsHugePages(name) {
			errs = append(errs, field.Invalid(path, name, "must be a node allocatable resource name"))
		}
	}
	amount := func(path *field.Path, quantity *resource.Quantity) {
		if quantity != nil && quantity.Sign() < 0 {
			errs = append(errs, field.Invalid(path, quantity.String(), "must be non-negative"))
		}
	}
	for i, status := range obj.Status.NodeAllocatableResourceClaimStatuses {
		path := path.Index(i)
		if status.ResourceClaimName == "" {
			continue
		}
		if !claims.Has(status.ResourceClaimName) {
			errs = append(errs, field.Invalid(path.Child("resourceClaimName"), status.ResourceClaimName, "no mapping found in pod reference"))
		}
		for j, mapping := range status.Mapping {
			path := path.Child("mapping").Index(j)
			name(path.Child("name"), mapping.Name)
			amount(path.Child("quantity"), mapping.Quantity)
		}
		for j, overhead := range status.Overhead {
			path := path.Child("overhead").Index(j)
			name(path.Child("name"), overhead.Name)
			if overhead.PerPod == nil && overhead.PerContainer == nil {
				errs = append(errs, field.Invalid(path, "", "at least one of perPod or perContainer must be set"))
			}
			amount(path.Child("perPod"), overhead.PerPod)
			amount(path.Child("perContainer"), overhead.PerContainer)
		}
	}
	return errs
}

func validateVolumeHealth(obj *corev1.Pod, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	volumes := firstByName(obj.Spec.Volumes, func(v *corev1.Volume) string { return v.Name })
	for i, health := range obj.Status.VolumeHealth {
		path := path.Index(i)
		_, known := volumes[health.Name]
		if health.Name != "" && !known {
			errs = append(errs, field.NotFound(path.Child("name"), health.Name))
		}
		for j, condition := range health.HealthConditions {
			if condition.Reason == "" {
				continue
			}
			for _, msg := range metavalidation.IsValidConditionReason(condition.Reason) {
				errs = append(errs, field.Invalid(path.Child("healthConditions").Index(j).Child("reason"), condition.Reason, msg))
			}
		}
	}
	return errs
}

func validateStatusIPs(newStatus, oldStatus *corev1.PodStatus, path *field.Path) field.ErrorList {
	ips := func(status *corev1.PodStatus) (pod, host []string) {
		for _, ip := range status.PodIPs {
			pod = append(pod, ip.IP)
		}
		for _, ip := range status.HostIPs {
			host = append(host, ip.IP)
		}
		return pod, host
	}
	pod, host := ips(newStatus)
	oldPod, oldHost := ips(oldStatus)
	podPath, hostPath := path.Child("podIPs"), path.Child("hostIPs")
	errs := validateIPList(pod, oldPod, podPath, newStatus.PodIPs)
	switch {
	case (newStatus.PodIP != "") != (len(pod) > 0):
		errs = append(errs, field.Invalid(podPath, newStatus.PodIPs, "podIP and podIPs must either both be set or both be unset"))
	case len(pod) > 0 && newStatus.PodIP != pod[0]:
		errs = append(errs, field.Invalid(podPath.Index(0).Child("ip"), pod[0], "must be equal to `podIP`"))
	}
	if len(host) > 0 && newStatus.HostIP != host[0] {
		errs = append(errs, field.Invalid(hostPath.Index(0).Child("ip"), host[0], "must be equal to `hostIP`"))
	}
	return append(errs, validateIPList(host, oldHost, hostPath, newStatus.HostIPs)...)
}

// validateIPList allows one address of each family.
func validateIPList(ips, old []string, path *field.Path, value any) field.ErrorList {
	var errs field.ErrorList
	for i, ip := range ips {
		errs = append(errs, validation.IsValidIPForLegacyField(path.Index(i), ip, true, old)...)
	}
	if len(ips) > 1 {
		dual, err := netutils.IsDualStackIPStrings(ips)
		if err != nil {
			errs = append(errs, field.InternalError(path, fmt.Errorf("failed to check for dual stack with error:%v", err)))
		}
		if !dual || len(ips) > 2 {
			errs = append(errs, field.Invalid(path, value, "may specify no more than one IP for each IP family"))
		}
	}
	return errs
}

func validateContainerUser(s *corev1.ContainerStatus, os *corev1.PodOS, path *field.Path) field.ErrorList {
	if s.User == nil || s.User.Linux == nil {
		return nil
	}
	if os != nil && os.Name == corev1.Windows {
		return field.ErrorList{field.Forbidden(path, "cannot be set for a windows pod")}
	}
	var errs field.ErrorList
	user := s.User.Linux
	if user.UID < 0 || user.UID > math.MaxUint32 {
		errs = append(errs, field.Invalid(path.Child("uid"), user.UID, fmt.Sprintf("must be between 0 and %d, inclusive", int64(math.MaxUint32))))
	}
	group := func(path *field.Path, id int64) {
		for _, msg := range validation.IsValidGroupID(id) {
			errs = append(errs, field.Invalid(path, id, msg))
		}
	}
	group(path.Child("gid"), user.GID)
	for i, id := range user.SupplementalGroups {
		group(path.Child("supplementalGroups").Index(i), id)
	}
	return errs
}

// validateAllocatedResources validates the health of the devices allocated to containers.
func validateAllocatedResources(obj *corev1.Pod) field.ErrorList {
	var errs field.ErrorList
	containers := map[string]*corev1.Container{}
	podspec.VisitContainers(&obj.Spec, nil, func(c *corev1.Container, _ podspec.ContainerKind, _ *field.Path) { containers[c.Name] = c })
	eachContainerStatus(&obj.Status, func(s *corev1.ContainerStatus, path *field.Path) {
		path = path.Child("allocatedResourcesStatus")
		if len(s.AllocatedResourcesStatus) > 0 && strings.HasPrefix(path.String(), "status.ephemeralContainerStatuses") {
			errs = append(errs, field.Forbidden(path, "must not be specified in container status"))
			return
		}
		for i, allocated := range s.AllocatedResourcesStatus {
			path := path.Index(i)
			if c := containers[s.Name]; c != nil {
				if text := unrequestedResource(allocated.Name, c, obj.Status.ExtendedResourceClaimStatus); text != "" {
					errs = append(errs, field.Invalid(path.Child("name"), allocated.Name, text))
				}
			}
			errs = append(errs, validateResourceHealth(allocated.Resources, path.Child("resources"))...)
		}
	})
	return errs
}

// unrequestedResource says why a resource cannot have been allocated: the container did not request it.
func unrequestedResource(name corev1.ResourceName, c *corev1.Container, extended *corev1.PodExtendedResourceClaimStatus) string {
	reference, isClaim := strings.CutPrefix(string(name), "claim:")
	if !isClaim {
		if _, requested := c.Resources.Requests[name]; !requested {
			return "must match one of the container's resource requests"
		}
		return ""
	}
	for _, claim := range c.Resources.Claims {
		if reference == claim.Name && claim.Request == "" || reference == claim.Name+"/"+claim.Request {
			return ""
		}
	}
	claim, request, _ := strings.Cut(reference, "/")
	if extended != nil && request != "" && claim == extended.ResourceClaimName {
		for _, mapping := range extended.RequestMappings {
			quantity := c.Resources.Requests[corev1.ResourceName(mapping.ResourceName)]
			if mapping.ContainerName == c.Name && mapping.RequestName == request && !quantity.IsZero() {
				return ""
			}
		}
	}
	return "must match one of the container's resource claims as 'claim:<claimName>/<requestName>' when container.resources.claims[*].request is set or 'claim:<claimName>' when it is empty"
}

func validateResourceHealth(resources []corev1.ResourceHealth, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := sets.New[corev1.ResourceID]()
	for i, r := range resources {
		path := path.Index(i)
		errs = append(errs, supported(path.Child("health"), r.Health,
			sets.New(corev1.ResourceHealthStatusHealthy, corev1.ResourceHealthStatusUnhealthy, corev1.ResourceHealthStatusUnknown))...)
		if r.Message != nil && *r.Message == "" {
			errs = append(errs, field.Required(path.Child("message"), "must be non-empty if specified"))
		} else if r.Message != nil && len(*r.Message) > corev1.ResourceHealthMessageMaxLength {
			errs = append(errs, field.TooLong(path.Child("message"), *r.Message, corev1.ResourceHealthMessageMaxLength))
		}
		if seen.Has(r.ResourceID) {
			errs = append(errs, field.Duplicate(path.Child("resourceID"), r.ResourceID))
		}
		seen.Insert(r.ResourceID)
	}
	return errs
}
