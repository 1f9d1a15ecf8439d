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

// ValidatePod judges the annotations and the specification of a pod, whoever writes which part of it. What old, which
// is nil for a new pod, already held stays allowed where later rules would refuse it.
func ValidatePod(pod, old *corev1.Pod) field.ErrorList {
	return judgePod(pod, old, (*judge).pod)
}

// ValidateNewPod judges a pod that is about to come into being.
func ValidateNewPod(pod *corev1.Pod) field.ErrorList {
	return judgePod(pod, nil, func(j *judge) {
		path := field.NewPath("spec")
		j.pod()
		if len(pod.Spec.EphemeralContainers) > 0 {
			j.forbidden(path.Child("ephemeralContainers"), "cannot be set on create")
		}
		if pod.Spec.NodeName != "" && len(pod.Spec.SchedulingGates) > 0 {
			j.forbidden(path.Child("nodeName"), "cannot be set until all schedulingGates have been cleared")
		}
		j.annotationsMatch(pod.Annotations, path)
	})
}

// ValidateAnnotations judges the annotations of a pod that mean something to the system.
func ValidateAnnotations(pod, old *corev1.Pod) field.ErrorList {
	return judgePod(pod, old, func(j *judge) { j.annotations(pod.Annotations, field.NewPath("metadata", "annotations")) })
}

// ValidateTemplate judges the template of a workload; path is its own (spec.template). What old, which may be nil,
// already held stays allowed where later rules would refuse it.
func ValidateTemplate(t *corev1.PodTemplateSpec, old *corev1.PodTemplateSpec, path *field.Path) field.ErrorList {
	var oldSpec *corev1.PodSpec
	var oldMeta *metav1.ObjectMeta
	if old != nil {
		oldSpec, oldMeta = &old.Spec, &old.ObjectMeta
	}
	return judgeSpec(judge{spec: &t.Spec}, oldSpec, oldMeta, func(j *judge) {
		j.add(metavalidation.ValidateLabels(t.Labels, path.Child("labels"))...)
		j.add(validation.ValidateAnnotations(t.Annotations, path.Child("annotations"))...)
		j.annotations(t.Annotations, path.Child("annotations"))
		j.podSpec(path.Child("spec"))
		j.annotationsMatch(t.Annotations, path.Child("spec"))
		if len(t.Spec.EphemeralContainers) > 0 {
			j.forbidden(path.Child("spec", "ephemeralContainers"), "ephemeral containers not allowed in pod template")
		}
	})
}

func judgePod(pod, old *corev1.Pod, rule func(*judge)) field.ErrorList {
	j := judge{spec: &pod.Spec, meta: &pod.ObjectMeta}
	if old == nil {
		return judgeSpec(j, nil, nil, rule)
	}
	return judgeSpec(j, &old.Spec, &old.ObjectMeta, rule)
}

// judgeSpec applies a rule without allowances, and only if that finds errors asks what the stored object allows. Nearly
// all objects are good, and a status is written more often than anything else.
func judgeSpec(j judge, old *corev1.PodSpec, oldMeta *metav1.ObjectMeta, rule func(*judge)) field.ErrorList {
	strict := j
	if rule(&strict); len(strict.errs) == 0 || old == nil {
		return strict.errs
	}
	j.allow = allowancesFor(old, oldMeta)
	rule(&j)
	return j.errs
}

// pod judges what holds for pods at all times.
func (j *judge) pod() {
	path := field.NewPath("spec")
	j.annotations(j.meta.Annotations, field.NewPath("metadata", "annotations"))
	j.podSpec(path)
	if j.spec.ServiceAccountName == "" {
		j.noTokens(path.Child("volumes"))
	}
	if seconds := j.spec.TerminationGracePeriodSeconds; seconds != nil {
		j.nonNegative(path.Child("terminationGracePeriodSeconds"), *seconds)
	}
	VisitContainers(j.spec, path, func(c *corev1.Container, kind ContainerKind, path *field.Path) {
		if kind != EphemeralContainer { // judged already
			j.imageSpace(c, path)
		}
	})
}

// noTokens refuses tokens of a service account to a pod that has none.
func (j *judge) noTokens(path *field.Path) {
	for i, v := range j.spec.Volumes {
		if v.Projected == nil {
			continue
		}
		for k, source := range v.Projected.Sources {
			if source.ServiceAccountToken != nil {
				j.forbidden(path.Index(i).Child("projected", "sources").Index(k).Child("serviceAccountToken"),
					"must not be specified when serviceAccountName is not set")
			}
		}
	}
}

// podSpec judges a specification from top to bottom.
func (j *judge) podSpec(path *field.Path) {
	spec := j.spec
	if spec.TerminationGracePeriodSeconds == nil {
		j.required(path.Child("terminationGracePeriodSeconds"), "")
	}
	j.claims = sets.New[string]()
	for _, claim := range spec.ResourceClaims {
		if claim.Name != "" {
			j.claims.Insert(claim.Name)
		}
	}
	j.volumeList(path.Child("volumes"))
	j.podClaims(path.Child("resourceClaims"))
	j.containers(path)
	j.podResources(path)
	j.hostNetwork(path)
	requiredOneOf(j, path.Child("restartPolicy"), spec.RestartPolicy,
		corev1.RestartPolicyAlways, corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever)
	j.podSecurity(path.Child("securityContext"))
	if spec.ShareProcessNamespace != nil && *spec.ShareProcessNamespace && spec.HostPID {
		j.invalid(path.Child("shareProcessNamespace"), true, "ShareProcessNamespace and HostPID cannot both be enabled")
	}
	j.placement(path)
	j.naming(path)
	j.hostProcess(path)
	j.hostUsers(path)
	if spec.ServiceAccountName != "" {
		j.messages(path.Child("serviceAccountName"), spec.ServiceAccountName, validation.ValidateServiceAccountName(spec.ServiceAccountName, false))
	}
	if seconds := spec.ActiveDeadlineSeconds; seconds != nil && (*seconds < 1 || *seconds > math.MaxInt32) {
		j.invalid(path.Child("activeDeadlineSeconds"), *seconds, utilvalidation.InclusiveRangeError(1, math.MaxInt32))
	}
	if spec.RuntimeClassName != nil {
		j.subdomain(path.Child("runtimeClassName"), *spec.RuntimeClassName)
	}
	if spec.Overhead != nil {
		j.resources(&corev1.ResourceRequirements{Limits: spec.Overhead}, j.containerResourceName, path.Child("overhead"))
	}
	j.operatingSystem(path)
	j.fileKeyVolumes(path)
}

// placement judges where and when the pod may run.
func (j *judge) placement(path *field.Path) {
	spec := j.spec
	j.add(metavalidation.ValidateLabels(spec.NodeSelector, path.Child("nodeSelector"))...)
	if spec.NodeName != "" {
		j.subdomain(path.Child("nodeName"), spec.NodeName)
	}
	j.affinity(path.Child("affinity"))
	j.topologySpread(path.Child("topologySpreadConstraints"))
	j.tolerations(spec.Tolerations, path.Child("tolerations"))
	for i, gate := range spec.ReadinessGates {
		j.qualifiedName(path.Child("readinessGates").Index(i).Child("conditionType"), string(gate.ConditionType))
	}
	j.schedulingGates(path.Child("schedulingGates"))
	if spec.PriorityClassName != "" {
		j.subdomain(path.Child("priorityClassName"), spec.PriorityClassName)
	}
	if policy := spec.PreemptionPolicy; policy != nil {
		requiredOneOf(j, path.Child("preemptionPolicy"), *policy, corev1.PreemptLowerPriority, corev1.PreemptNever)
	}
	if group := spec.SchedulingGroup; group != nil {
		path := path.Child("schedulingGroup")
		if group.PodGroupName == nil {
			j.invalid(path.Child("podGroupName"), group.PodGroupName, "must specify one of: `podGroupName`")
		} else {
			j.subdomain(path.Child("podGroupName"), *group.PodGroupName)
		}
		if len(spec.EvictionResponders) > 0 {
			j.forbidden(path, "may not be set when evictionResponders is set")
		}
	}
}

const (
	dnsNameservers      = 3
	dnsSearchPaths      = 32
	dnsSearchCharacters = 2048
	hostnameLength      = 64 // the kernel's limit
)

// naming judges what the pod is called and how it finds others.
func (j *judge) naming(path *field.Path) {
	spec := j.spec
	requiredOneOf(j, path.Child("dnsPolicy"), spec.DNSPolicy,
		corev1.DNSClusterFirstWithHostNet, corev1.DNSClusterFirst, corev1.DNSDefault, corev1.DNSNone)
	j.dnsConfig(path.Child("dnsConfig"))
	if spec.Hostname != "" {
		j.label(path.Child("hostname"), spec.Hostname)
	}
	if spec.Subdomain != "" {
		j.label(path.Child("subdomain"), spec.Subdomain)
	}
	for i, alias := range spec.HostAliases {
		path := path.Child("hostAliases").Index(i)
		j.add(utilvalidation.IsValidIPForLegacyField(path.Child("ip"), alias.IP, true, nil)...)
		for k, name := range alias.Hostnames {
			j.subdomain(path.Child("hostnames").Index(k), name)
		}
	}
	name := spec.HostnameOverride
	if name == nil {
		return
	}
	path = path.Child("hostnameOverride")
	if spec.SetHostnameAsFQDN != nil && *spec.SetHostnameAsFQDN {
		j.forbidden(path, "may not be specified when setHostnameAsFQDN is true")
	}
	if spec.HostNetwork {
		j.forbidden(path, "may not be specified when hostNetwork is true")
	}
	if len(*name) > hostnameLength {
		j.add(field.TooLong(path, "", hostnameLength))
	}
	j.subdomain(path, *name)
}

func (j *judge) dnsConfig(path *field.Path) {
	config := j.spec.DNSConfig
	if j.spec.DNSPolicy == corev1.DNSNone {
		if config == nil {
			j.required(path, fmt.Sprintf("must provide `dnsConfig` when `dnsPolicy` is %s", corev1.DNSNone))
			return
		}
		if len(config.Nameservers) == 0 {
			j.required(path.Child("nameservers"), fmt.Sprintf("must provide at least one DNS nameserver when `dnsPolicy` is %s", corev1.DNSNone))
			return
		}
	}
	if config == nil {
		return
	}
	servers, searches := path.Child("nameservers"), path.Child("searches")
	if len(config.Nameservers) > dnsNameservers {
		j.invalid(servers, config.Nameservers, fmt.Sprintf("must not have more than %v nameservers", dnsNameservers))
	}
	for i, server := range config.Nameservers {
		j.add(utilvalidation.IsValidIPForLegacyField(servers.Index(i), server, true, nil)...)
	}
	if len(config.Searches) > dnsSearchPaths {
		j.invalid(searches, config.Searches, fmt.Sprintf("must not have more than %v search paths", dnsSearchPaths))
	}
	if len(strings.Join(config.Searches, " ")) > dnsSearchCharacters {
		j.invalid(searches, config.Searches, fmt.Sprintf("must not have more than %v characters (including spaces) in the search list", dnsSearchCharacters))
	}
	for i, search := range config.Searches {
		if search != "." {
			search = strings.TrimSuffix(search, ".")
			j.messages(searches.Index(i), search, utilvalidation.IsDNS1123SubdomainWithUnderscore(search))
		}
	}
	for i, option := range config.Options {
		if option.Name == "" {
			j.required(path.Child("options").Index(i), "must not be empty")
		}
	}
}
