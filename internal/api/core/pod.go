package core

import (
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"skiff/internal/api/podspec"
	"skiff/internal/kind"
	"skiff/internal/podstate"
)

// Pod. What applies to pod specifications everywhere is in package podspec.
var Pod = kind.Of(kind.Definition[*corev1.Pod]{
	GVK: corev1.SchemeGroupVersion.WithKind("Pod"), Plural: "pods", Short: []string{"po"}, Categories: []string{"all"},
	Namespaced: true, List: &corev1.PodList{},

	Default:     defaultPod,
	Prepare:     preparePod,
	Validate:    validatePod,
	Warn:        warnPod,
	SpecChanged: podSpecChanged,

	CopyStatus:     func(to, from *corev1.Pod) { to.Status = from.Status },
	PrepareStatus:  preparePodStatus,
	ValidateStatus: validatePodStatus,
	WarnStatus:     warnPodStatus,

	Subresources: []kind.Subresource{
		{Name: "attach", GVK: corev1.SchemeGroupVersion.WithKind("PodAttachOptions"), Verbs: []string{"create", "get"}, ConnectNeedsCreate: true, ConnectOptions: attachOptions},
		{Name: "binding", GVK: corev1.SchemeGroupVersion.WithKind("Binding"), NewBody: func() kind.Object { return &corev1.Binding{} }, Create: bindNamedPod, KeepBodyUID: true},
		{Name: "ephemeralcontainers", Verbs: []string{"get", "patch", "update"}, Update: ephemeralContainersUpdate()},
		{Name: "eviction", GVK: policyv1.SchemeGroupVersion.WithKind("Eviction"), NewBody: func() kind.Object { return &policyv1.Eviction{} }, Create: evictPod},
		{Name: "exec", GVK: corev1.SchemeGroupVersion.WithKind("PodExecOptions"), Verbs: []string{"create", "get"}, ConnectNeedsCreate: true, ConnectOptions: execOptions},
		{Name: "log", Verbs: []string{"get"}},
		{Name: "portforward", GVK: corev1.SchemeGroupVersion.WithKind("PodPortForwardOptions"), Verbs: []string{"create", "get"}, ConnectNeedsCreate: true, ConnectOptions: portForwardOptions},
		{Name: "proxy", GVK: corev1.SchemeGroupVersion.WithKind("PodProxyOptions"), Verbs: proxyVerbs, ConnectOptions: podProxyOptions},
		{Name: "resize", Verbs: []string{"get", "patch", "update"}, Update: resizeUpdate()},
	},

	IndexedField: "spec.nodeName",
	Fields: map[string]func(*corev1.Pod) string{
		"spec.nodeName":            func(obj *corev1.Pod) string { return obj.Spec.NodeName },
		"spec.host":                func(obj *corev1.Pod) string { return obj.Spec.NodeName }, // the original name of the field
		"spec.restartPolicy":       func(obj *corev1.Pod) string { return string(obj.Spec.RestartPolicy) },
		"spec.schedulerName":       func(obj *corev1.Pod) string { return obj.Spec.SchedulerName },
		"spec.serviceAccountName":  func(obj *corev1.Pod) string { return obj.Spec.ServiceAccountName },
		"spec.hostNetwork":         func(obj *corev1.Pod) string { return strconv.FormatBool(obj.Spec.HostNetwork) },
		"status.phase":             func(obj *corev1.Pod) string { return string(obj.Status.Phase) },
		"status.podIP":             podIP,
		"status.podIPs":            podIPs,
		"status.nominatedNodeName": func(obj *corev1.Pod) string { return obj.Status.NominatedNodeName },
	},
	Columns:       podColumns,
	Row:           podRow,
	RowConditions: podRowConditions,

	CheckGracefulDelete: podGrace,
	ReturnDeleted:       true,
})

// proxyVerbs: a proxy forwards requests with any verb.
var proxyVerbs = []string{"create", "delete", "get", "patch", "update"}

func podIP(obj *corev1.Pod) string {
	if len(obj.Status.PodIPs) == 0 {
		return ""
	}
	return obj.Status.PodIPs[0].IP
}

func podIPs(obj *corev1.Pod) string {
	ips := make([]string, len(obj.Status.PodIPs))
	for i, ip := range obj.Status.PodIPs {
		ips[i] = ip.IP
	}
	return strings.Join(ips, ",")
}

// defaultPod sets the defaults for pods only, then those for pods and templates.
func defaultPod(obj *corev1.Pod) {
	spec := &obj.Spec
	if seconds := spec.TerminationGracePeriodSeconds; seconds != nil && *seconds < 0 {
		spec.TerminationGracePeriodSeconds = ptr.To[int64](1)
	}
	if spec.EnableServiceLinks == nil {
		spec.EnableServiceLinks = ptr.To(corev1.DefaultEnableServiceLinks)
	}
	podspec.VisitContainers(spec, nil, func(c *corev1.Container, kind podspec.ContainerKind, _ *field.Path) {
		if kind == podspec.EphemeralContainer {
			return
		}
		defaultRequests(&c.Resources)
		for i := range c.Ports {
			if port := &c.Ports[i]; spec.HostNetwork && port.HostPort == 0 {
				port.HostPort = port.ContainerPort
			}
		}
	})
	podspec.Default(spec)
	defaultPodStatus(&obj.Status)
}

// defaultRequests sets requests to the limits where no request is set.
func defaultRequests(r *corev1.ResourceRequirements) {
	if r.Limits != nil && r.Requests == nil {
		r.Requests = corev1.ResourceList{}
	}
	for name, limit := range r.Limits {
		if _, set := r.Requests[name]; !set {
			r.Requests[name] = limit.DeepCopy()
		}
	}
}

func defaultPodStatus(status *corev1.PodStatus) {
	// podIP is the first of podIPs. If the two differ, the older field takes precedence.
	switch {
	case status.PodIP == "" && len(status.PodIPs) > 0:
		status.PodIP = status.PodIPs[0].IP
	case status.PodIP != "" && (len(status.PodIPs) == 0 || status.PodIPs[0].IP != status.PodIP):
		status.PodIPs = []corev1.PodIP{{IP: status.PodIP}}
	}
	eachContainerStatus(status, func(s *corev1.ContainerStatus, _ *field.Path) {
		podspec.RoundUpToMilli(s.AllocatedResources)
		if s.Resources != nil {
			podspec.RoundUpToMilli(s.Resources.Limits)
			podspec.RoundUpToMilli(s.Resources.Requests)
		}
	})
	podspec.RoundUpToMilli(status.AllocatedResources)
	if status.Resources != nil {
		podspec.RoundUpToMilli(status.Resources.Limits)
		podspec.RoundUpToMilli(status.Resources.Requests)
	}
}

func preparePod(req *kind.Request, obj, old *corev1.Pod) {
	// Admission may have set the service account; the alias must have the same value.
	obj.Spec.DeprecatedServiceAccount = obj.Spec.ServiceAccountName
	podspec.DropLegacyAnnotations(obj.Annotations)
	if old != nil {
		keepPodResources(obj, old)
		podspec.DropDisabled(&obj.Spec, &old.Spec)
		return
	}
	podspec.DropDisabled(&obj.Spec, nil)
	obj.Status = corev1.PodStatus{Phase: corev1.PodPending}
	if len(obj.Spec.SchedulingGates) > 0 {
		setPodCondition(&obj.Status, corev1.PodCondition{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonSchedulingGated,
			Message: "Scheduling is blocked due to non-empty scheduling gates",
		}, req.Now)
	}
	mergeLabelKeys(obj)
	adoptAppArmorAnnotations(obj)
	podspec.DefaultPodResources(&obj.Spec)
	obj.Status.QOSClass = podspec.ComputeQOSClass(obj)
}

// keepPodResources keeps the pod-level resources when a client without the field leaves them out.
func keepPodResources(obj, old *corev1.Pod) {
	if obj.Spec.Resources == nil {
		obj.Spec.Resources = old.Spec.Resources.DeepCopy()
	}
}

// mergeLabelKeys merges the values of the pod's labels into selectors with label keys, so that readers of the pod need not
// handle the keys.
func mergeLabelKeys(obj *corev1.Pod) {
	merge := func(selector *metav1.LabelSelector, keys []string, operator metav1.LabelSelectorOperator) {
		if selector == nil {
			return
		}
		for _, key := range keys {
			if value, set := obj.Labels[key]; set {
				selector.MatchExpressions = append(selector.MatchExpressions,
					metav1.LabelSelectorRequirement{Key: key, Operator: operator, Values: []string{value}})
			}
		}
	}
	podspec.VisitAffinityTerms(&obj.Spec, func(term *corev1.PodAffinityTerm) {
		merge(term.LabelSelector, term.MatchLabelKeys, metav1.LabelSelectorOpIn)
		merge(term.LabelSelector, term.MismatchLabelKeys, metav1.LabelSelectorOpNotIn)
	})
	for i := range obj.Spec.TopologySpreadConstraints {
		constraint := &obj.Spec.TopologySpreadConstraints[i]
		merge(constraint.LabelSelector, constraint.MatchLabelKeys, metav1.LabelSelectorOpIn)
	}
}

// adoptAppArmorAnnotations sets the field of a container from the annotation of older clients.
func adoptAppArmorAnnotations(obj *corev1.Pod) {
	if obj.Spec.OS != nil && obj.Spec.OS.Name == corev1.Windows {
		return
	}
	var whole *corev1.AppArmorProfile
	if obj.Spec.SecurityContext != nil {
		whole = obj.Spec.SecurityContext.AppArmorProfile
	}
	podspec.VisitContainers(&obj.Spec, nil, func(c *corev1.Container, _ podspec.ContainerKind, _ *field.Path) {
		value, set := obj.Annotations[corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix+c.Name]
		if !set || c.SecurityContext != nil && c.SecurityContext.AppArmorProfile != nil {
			return
		}
		profile := podspec.AppArmorFromAnnotation(value)
		if profile == nil || equality.Semantic.DeepEqual(profile, whole) {
			return
		}
		if c.SecurityContext == nil {
			c.SecurityContext = &corev1.SecurityContext{}
		}
		c.SecurityContext.AppArmorProfile = profile
	})
}

// setPodCondition sets a condition; its transition time changes only with its status.
func setPodCondition(status *corev1.PodStatus, condition corev1.PodCondition, now metav1.Time) {
	condition.LastTransitionTime = now
	for i := range status.Conditions {
		if old := &status.Conditions[i]; old.Type == condition.Type {
			if old.Status == condition.Status {
				condition.LastTransitionTime = old.LastTransitionTime
			}
			*old = condition
			return
		}
	}
	status.Conditions = append(status.Conditions, condition)
}

// podSpecChanged ignores the node name: binding does not change the generation.
func podSpecChanged(obj, old *corev1.Pod) bool {
	spec := obj.Spec
	spec.NodeName = old.Spec.NodeName
	return !equality.Semantic.DeepEqual(&spec, &old.Spec)
}

func warnPod(obj, old *corev1.Pod) (warnings []string) {
	if old != nil {
		return nil
	}
	if texts := validation.IsDNS1123Label(obj.Name); len(texts) > 0 {
		warnings = append(warnings, "metadata.name: this is used in the Pod's hostname, which can result in surprising behavior; "+
			"a DNS label is recommended: "+listed(texts))
	}
	return append(warnings, podspec.WarnPod(obj)...)
}

// listed formats texts as upstream's warnings do.
func listed(texts []string) string { return "[" + strings.Join(texts, " ") + "]" }

// podGrace gives a running pod its grace period. A pod without a node or in a terminal phase needs none.
func podGrace(obj *corev1.Pod, options *metav1.DeleteOptions) bool {
	if options == nil {
		return false
	}
	period := ptr.Deref(obj.Spec.TerminationGracePeriodSeconds, 0)
	if options.GracePeriodSeconds != nil {
		period = *options.GracePeriodSeconds
	}
	switch {
	case obj.Spec.NodeName == "", podstate.IsTerminal(obj):
		period = 0
	case period < 0:
		period = 1
	}
	options.GracePeriodSeconds = &period
	return true
}
