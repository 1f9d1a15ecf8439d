package podspec

import (
	"fmt"
	"math"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// ValidatePod validates the annotations and the specification of a pod. Violations of newer validations that old, which
// is nil for a new pod, already has are allowed.
func ValidatePod(pod, old *corev1.Pod) field.ErrorList {
	return validatePod(pod, old, (*validator).pod)
}

// ValidateNewPod validates a pod that is being created.
func ValidateNewPod(pod *corev1.Pod) field.ErrorList {
	return validatePod(pod, nil, func(val *validator) {
		path := field.NewPath("spec")
		val.pod()
		if len(pod.Spec.EphemeralContainers) > 0 {
			val.forbidden(path.Child("ephemeralContainers"), "cannot be set on create")
		}
		if pod.Spec.NodeName != "" && len(pod.Spec.SchedulingGates) > 0 {
			val.forbidden(path.Child("nodeName"), "cannot be set until all schedulingGates have been cleared")
		}
		val.annotationsMatch(pod.Annotations, path)
	})
}

// ValidateAnnotations validates the annotations of a pod that have a meaning for Kubernetes.
func ValidateAnnotations(pod, old *corev1.Pod) field.ErrorList {
	return validatePod(pod, old, func(val *validator) { val.annotations(pod.Annotations, field.NewPath("metadata", "annotations")) })
}

// ValidateTemplate validates the template of a workload; path is that of the template (spec.template). Violations of newer
// validations that old, which may be nil, already has are allowed.
func ValidateTemplate(t *corev1.PodTemplateSpec, old *corev1.PodTemplateSpec, path *field.Path) field.ErrorList {
	var oldSpec *corev1.PodSpec
	var oldMeta *metav1.ObjectMeta
	if old != nil {
		oldSpec, oldMeta = &old.Spec, &old.ObjectMeta
	}
	return validateSpec(validator{spec: &t.Spec}, oldSpec, oldMeta, func(val *validator) {
		val.add(metavalidation.ValidateLabels(t.Labels, path.Child("labels"))...)
		val.add(validation.ValidateAnnotations(t.Annotations, path.Child("annotations"))...)
		val.annotations(t.Annotations, path.Child("annotations"))
		val.podSpec(path.Child("spec"))
		val.annotationsMatch(t.Annotations, path.Child("spec"))
		if len(t.Spec.EphemeralContainers) > 0 {
			val.forbidden(path.Child("spec", "ephemeralContainers"), "ephemeral containers not allowed in pod template")
		}
	})
}

func validatePod(pod, old *corev1.Pod, validate func(*validator)) field.ErrorList {
	val := validator{spec: &pod.Spec, meta: &pod.ObjectMeta}
	if old == nil {
		return validateSpec(val, nil, nil, validate)
	}
	return validateSpec(val, &old.Spec, &old.ObjectMeta, validate)
}

// validateSpec validates without allowances first, and determines those of the stored object only if there are errors.
// Nearly all objects are valid, and status updates are the most frequent writes.
func validateSpec(val validator, old *corev1.PodSpec, oldMeta *metav1.ObjectMeta, validate func(*validator)) field.ErrorList {
	strict := val
	if validate(&strict); len(strict.errs) == 0 || old == nil {
		return strict.errs
	}
	val.allow = allowancesFor(old, oldMeta)
	validate(&val)
	return val.errs
}

// pod validates what applies to pods on every write.
func (val *validator) pod() {
	path := field.NewPath("spec")
	val.annotations(val.meta.Annotations, field.NewPath("metadata", "annotations"))
	val.podSpec(path)
	if val.spec.ServiceAccountName == "" {
		val.noServiceAccountTokens(path.Child("volumes"))
	}
	if seconds := val.spec.TerminationGracePeriodSeconds; seconds != nil {
		val.nonNegative(path.Child("terminationGracePeriodSeconds"), *seconds)
	}
	VisitContainers(val.spec, path, func(c *corev1.Container, kind ContainerKind, path *field.Path) {
		if kind != EphemeralContainer { // already validated
			val.imageWhitespace(c, path)
		}
	})
}

// noServiceAccountTokens refuses projected tokens in a pod without a service account.
func (val *validator) noServiceAccountTokens(path *field.Path) {
	for i, v := range val.spec.Volumes {
		if v.Projected == nil {
			continue
		}
		for k, source := range v.Projected.Sources {
			if source.ServiceAccountToken != nil {
				val.forbidden(path.Index(i).Child("projected", "sources").Index(k).Child("serviceAccountToken"),
					"must not be specified when serviceAccountName is not set")
			}
		}
	}
}

// podSpec validates a specification from top to bottom.
func (val *validator) podSpec(path *field.Path) {
	spec := val.spec
	if spec.TerminationGracePeriodSeconds == nil {
		val.required(path.Child("terminationGracePeriodSeconds"), "")
	}
	val.claims = sets.New[string]()
	for _, claim := range spec.ResourceClaims {
		if claim.Name != "" {
			val.claims.Insert(claim.Name)
		}
	}
	val.volumeList(path.Child("volumes"))
	val.podClaims(path.Child("resourceClaims"))
	val.containers(path)
	val.podResources(path)
	val.hostNetwork(path)
	requiredOneOf(val, path.Child("restartPolicy"), spec.RestartPolicy,
		corev1.RestartPolicyAlways, corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever)
	val.podSecurity(path.Child("securityContext"))
	if spec.ShareProcessNamespace != nil && *spec.ShareProcessNamespace && spec.HostPID {
		val.invalid(path.Child("shareProcessNamespace"), true, "ShareProcessNamespace and HostPID cannot both be enabled")
	}
	val.scheduling(path)
	val.hostnameAndDNS(path)
	val.hostProcess(path)
	val.hostUsers(path)
	if spec.ServiceAccountName != "" {
		val.invalidEach(path.Child("serviceAccountName"), spec.ServiceAccountName, validation.ValidateServiceAccountName(spec.ServiceAccountName, false))
	}
	if seconds := spec.ActiveDeadlineSeconds; seconds != nil && (*seconds < 1 || *seconds > math.MaxInt32) {
		val.invalid(path.Child("activeDeadlineSeconds"), *seconds, utilvalidation.InclusiveRangeError(1, math.MaxInt32))
	}
	if spec.RuntimeClassName != nil {
		val.subdomain(path.Child("runtimeClassName"), *spec.RuntimeClassName)
	}
	if spec.Overhead != nil {
		val.resources(&corev1.ResourceRequirements{Limits: spec.Overhead}, val.containerResourceName, path.Child("overhead"))
	}
	val.operatingSystem(path)
	val.fileKeyVolumes(path)
}

// scheduling validates the fields that determine where and when the pod runs.
func (val *validator) scheduling(path *field.Path) {
	spec := val.spec
	val.add(metavalidation.ValidateLabels(spec.NodeSelector, path.Child("nodeSelector"))...)
	if spec.NodeName != "" {
		val.subdomain(path.Child("nodeName"), spec.NodeName)
	}
	val.affinity(path.Child("affinity"))
	val.topologySpread(path.Child("topologySpreadConstraints"))
	val.tolerations(spec.Tolerations, path.Child("tolerations"))
	for i, gate := range spec.ReadinessGates {
		val.qualifiedName(path.Child("readinessGates").Index(i).Child("conditionType"), string(gate.ConditionType))
	}
	val.schedulingGates(path.Child("schedulingGates"))
	if spec.PriorityClassName != "" {
		val.subdomain(path.Child("priorityClassName"), spec.PriorityClassName)
	}
	if policy := spec.PreemptionPolicy; policy != nil {
		requiredOneOf(val, path.Child("preemptionPolicy"), *policy, corev1.PreemptLowerPriority, corev1.PreemptNever)
	}
	if group := spec.SchedulingGroup; group != nil {
		path := path.Child("schedulingGroup")
		if group.PodGroupName == nil {
			val.invalid(path.Child("podGroupName"), group.PodGroupName, "must specify one of: `podGroupName`")
		} else {
			val.subdomain(path.Child("podGroupName"), *group.PodGroupName)
		}
		if len(spec.EvictionResponders) > 0 {
			val.forbidden(path, "may not be set when evictionResponders is set")
		}
	}
}

const (
	dnsNameservers      = 3
	dnsSearchPaths      = 32
	dnsSearchCharacters = 2048
	hostnameLength      = 64 // the kernel's limit
)

// hostnameAndDNS validates the pod's hostname and DNS configuration.
func (val *validator) hostnameAndDNS(path *field.Path) {
	spec := val.spec
	requiredOneOf(val, path.Child("dnsPolicy"), spec.DNSPolicy,
		corev1.DNSClusterFirstWithHostNet, corev1.DNSClusterFirst, corev1.DNSDefault, corev1.DNSNone)
	val.dnsConfig(path.Child("dnsConfig"))
	if spec.Hostname != "" {
		val.label(path.Child("hostname"), spec.Hostname)
	}
	if spec.Subdomain != "" {
		val.label(path.Child("subdomain"), spec.Subdomain)
	}
	for i, alias := range spec.HostAliases {
		path := path.Child("hostAliases").Index(i)
		val.add(utilvalidation.IsValidIPForLegacyField(path.Child("ip"), alias.IP, true, nil)...)
		for k, name := range alias.Hostnames {
			val.subdomain(path.Child("hostnames").Index(k), name)
		}
	}
	name := spec.HostnameOverride
	if name == nil {
		return
	}
	path = path.Child("hostnameOverride")
	if spec.SetHostnameAsFQDN != nil && *spec.SetHostnameAsFQDN {
		val.forbidden(path, "may not be specified when setHostnameAsFQDN is true")
	}
	if spec.HostNetwork {
		val.forbidden(path, "may not be specified when hostNetwork is true")
	}
	if len(*name) > hostnameLength {
		val.add(field.TooLong(path, "", hostnameLength))
	}
	val.subdomain(path, *name)
}

func (val *validator) dnsConfig(path *field.Path) {
	config := val.spec.DNSConfig
	if val.spec.DNSPolicy == corev1.DNSNone {
		if config == nil {
			val.required(path, fmt.Sprintf("must provide `dnsConfig` when `dnsPolicy` is %s", corev1.DNSNone))
			return
		}
		if len(config.Nameservers) == 0 {
			val.required(path.Child("nameservers"), fmt.Sprintf("must provide at least one DNS nameserver when `dnsPolicy` is %s", corev1.DNSNone))
			return
		}
	}
	if config == nil {
		return
	}
	servers, searches := path.Child("nameservers"), path.Child("searches")
	if len(config.Nameservers) > dnsNameservers {
		val.invalid(servers, config.Nameservers, fmt.Sprintf("must not have more than %v nameservers", dnsNameservers))
	}
	for i, server := range config.Nameservers {
		val.add(utilvalidation.IsValidIPForLegacyField(servers.Index(i), server, true, nil)...)
	}
	if len(config.Searches) > dnsSearchPaths {
		val.invalid(searches, config.Searches, fmt.Sprintf("must not have more than %v search paths", dnsSearchPaths))
	}
	if len(strings.Join(config.Searches, " ")) > dnsSearchCharacters {
		val.invalid(searches, config.Searches, fmt.Sprintf("must not have more than %v characters (including spaces) in the search list", dnsSearchCharacters))
	}
	for i, search := range config.Searches {
		if search != "." {
			search = strings.TrimSuffix(search, ".")
			val.invalidEach(searches.Index(i), search, utilvalidation.IsDNS1123SubdomainWithUnderscore(search))
		}
	}
	for i, option := range config.Options {
		if option.Name == "" {
			val.required(path.Child("options").Index(i), "must not be empty")
		}
	}
}
