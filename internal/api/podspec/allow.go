package podspec

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"
)

// allowances are validations newer than some stored objects (ratcheting). An object that already violates one may keep
// violating it, because it could not be updated otherwise; a new object may not.
type allowances struct {
	deletionCost              bool // an annotation that is not a number
	affinityValues            bool // invalid label values in pod selectors
	nodeAffinityValues        bool // the same in required node selectors
	indivisibleHugePages      bool
	spreadSelector            bool // an invalid selector in a topology spread constraint
	spreadLabelKeys           bool // matchLabelKeys that are not merged into their selector
	nonLocalTokenPath         bool // a projected token outside its volume
	hostSysctls               bool // sysctls of namespaces shared with the node
	initResizeRestart         bool // restarting an init container to resize it
	userNamespaceDevices      bool // block devices in a pod with its own user namespace
	userNamespaceHostNetwork  bool // the host network in such a pod
	comparingTolerations      bool // operators Lt and Gt, whose feature gate is off
	emptyImageReference       bool // an image volume without image
	sysAdminWithoutEscalation bool // CAP_SYS_ADMIN where privilege escalation is denied
}

// allowancesFor returns what the stored specification, if there is one, already violates.
func allowancesFor(old *corev1.PodSpec, meta *metav1.ObjectMeta) allowances {
	var a allowances
	if meta != nil {
		value, set := meta.Annotations[corev1.PodDeletionCost]
		a.deletionCost = set && !validDeletionCost(value)
	}
	if old == nil {
		return a
	}
	violates := func(validate func(val *validator)) bool {
		val := &validator{spec: old}
		validate(val)
		return len(val.errs) > 0
	}
	ownUsers := !ptr.Deref(old.HostUsers, true)
	a.affinityValues = violates(func(val *validator) {
		VisitAffinityTerms(old, func(t *corev1.PodAffinityTerm) { val.affinitySelectors(t, false, nil) })
	})
	a.nodeAffinityValues = hasInvalidNodeAffinityValue(old)
	a.indivisibleHugePages = usesIndivisibleHugePages(old)
	a.spreadSelector = violates(func(val *validator) {
		for _, c := range old.TopologySpreadConstraints {
			val.selector(nil, c.LabelSelector, false)
		}
	})
	a.spreadLabelKeys = violates(func(val *validator) {
		for _, c := range old.TopologySpreadConstraints {
			val.labelKeys(c.MatchLabelKeys, nil, c.LabelSelector, nil)
		}
	})
	a.nonLocalTokenPath = violates(func(val *validator) {
		eachProjection(old, func(p *corev1.VolumeProjection) {
			if p.ServiceAccountToken != nil {
				val.localFile(nil, p.ServiceAccountToken.Path)
			}
		})
	})
	if old.SecurityContext != nil {
		for _, setting := range old.SecurityContext.Sysctls {
			a.hostSysctls = a.hostSysctls || hostSysctl(setting.Name, old) != ""
		}
	}
	for i := range old.InitContainers {
		for _, policy := range old.InitContainers[i].ResizePolicy {
			a.initResizeRestart = a.initResizeRestart || !Restartable(&old.InitContainers[i]) && policy.RestartPolicy == corev1.RestartContainer
		}
	}
	a.userNamespaceDevices = ownUsers && anyContainer(old, func(c *corev1.Container) bool { return len(c.VolumeDevices) > 0 })
	a.userNamespaceHostNetwork = ownUsers && old.HostNetwork
	for _, t := range old.Tolerations {
		a.comparingTolerations = a.comparingTolerations || t.Operator == corev1.TolerationOpLt || t.Operator == corev1.TolerationOpGt
	}
	for _, v := range old.Volumes {
		a.emptyImageReference = a.emptyImageReference || v.Image != nil && v.Image.Reference == ""
	}
	a.sysAdminWithoutEscalation = anyContainer(old, func(c *corev1.Container) bool {
		return c.SecurityContext != nil && !ptr.Deref(c.SecurityContext.AllowPrivilegeEscalation, false) && addsSysAdmin(c.SecurityContext)
	})
	return a
}

// VisitAffinityTerms visits the terms of a pod's affinity and anti-affinity to other pods.
func VisitAffinityTerms(spec *corev1.PodSpec, visit func(term *corev1.PodAffinityTerm)) {
	if spec.Affinity == nil {
		return
	}
	if a := spec.Affinity.PodAffinity; a != nil {
		eachTerm(a.RequiredDuringSchedulingIgnoredDuringExecution, a.PreferredDuringSchedulingIgnoredDuringExecution, visit)
	}
	if a := spec.Affinity.PodAntiAffinity; a != nil {
		eachTerm(a.RequiredDuringSchedulingIgnoredDuringExecution, a.PreferredDuringSchedulingIgnoredDuringExecution, visit)
	}
}

func eachTerm(required []corev1.PodAffinityTerm, preferred []corev1.WeightedPodAffinityTerm, visit func(term *corev1.PodAffinityTerm)) {
	for i := range preferred {
		visit(&preferred[i].PodAffinityTerm)
	}
	for i := range required {
		visit(&required[i])
	}
}

// eachProjection visits the sources of all projected volumes.
func eachProjection(spec *corev1.PodSpec, visit func(p *corev1.VolumeProjection)) {
	for i := range spec.Volumes {
		if projected := spec.Volumes[i].Projected; projected != nil {
			for k := range projected.Sources {
				visit(&projected.Sources[k])
			}
		}
	}
}

func hasInvalidNodeAffinityValue(spec *corev1.PodSpec) bool {
	if spec.Affinity == nil || spec.Affinity.NodeAffinity == nil || spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return false
	}
	for _, term := range spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		for _, expression := range term.MatchExpressions {
			for _, value := range expression.Values {
				if len(utilvalidation.IsValidLabelValue(value)) > 0 {
					return true
				}
			}
		}
	}
	return false
}

func usesIndivisibleHugePages(spec *corev1.PodSpec) bool {
	indivisible := func(list corev1.ResourceList) bool {
		for name, quantity := range list {
			if IsHugePages(name) && !isPageMultiple(name, quantity) {
				return true
			}
		}
		return false
	}
	return indivisible(spec.Overhead) || anyContainer(spec, func(c *corev1.Container) bool {
		return indivisible(c.Resources.Limits) || indivisible(c.Resources.Requests)
	})
}
