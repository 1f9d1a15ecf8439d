package core

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"skiff/internal/api/podspec"
	"skiff/internal/kind"
)

// Node is stored under /registry/minions, the original name of nodes.
var Node = kind.Of(kind.Definition[*corev1.Node]{
	GVK: corev1.SchemeGroupVersion.WithKind("Node"), Plural: "nodes", Short: []string{"no"}, Prefix: "minions",
	List: &corev1.NodeList{},

	Default:  defaultNode,
	Prepare:  prepareNode,
	Validate: validateNode,
	Warn:     warnNode,

	CopyStatus:     func(to, from *corev1.Node) { to.Status = from.Status },
	StatusOnCreate: true,
	PrepareStatus: func(_ *kind.Request, obj, old *corev1.Node) {
		if old.Status.Config == nil {
			obj.Status.Config = nil
		}
	},
	ValidateStatus: validateNodeUpdate,
	Subresources: []kind.Subresource{
		{Name: "proxy", GVK: corev1.SchemeGroupVersion.WithKind("NodeProxyOptions"), Verbs: proxyVerbs, ConnectOptions: nodeProxyOptions},
	},

	Fields: map[string]func(*corev1.Node) string{
		"spec.unschedulable": func(obj *corev1.Node) string { return fmt.Sprint(obj.Spec.Unschedulable) },
	},
	Columns: []metav1.TableColumnDefinition{
		kind.NameColumn(),
		kind.Column("Status", "string", "The status of the node"),
		kind.Column("Roles", "string", "The roles of the node"),
		kind.AgeColumn(),
		kind.Column("Version", "string", corev1.NodeSystemInfo{}.SwaggerDoc()["kubeletVersion"]),
		kind.Wide("Internal-IP", "string", corev1.NodeStatus{}.SwaggerDoc()["addresses"]),
		kind.Wide("External-IP", "string", corev1.NodeStatus{}.SwaggerDoc()["addresses"]),
		kind.Wide("OS-Image", "string", corev1.NodeSystemInfo{}.SwaggerDoc()["osImage"]),
		kind.Wide("Kernel-Version", "string", corev1.NodeSystemInfo{}.SwaggerDoc()["kernelVersion"]),
		kind.Wide("Container-Runtime", "string", corev1.NodeSystemInfo{}.SwaggerDoc()["containerRuntimeVersion"]),
	},
	Row: nodeRow,
})

func defaultNode(obj *corev1.Node) {
	// podCIDR is the first of podCIDRs. If the two differ, the older field takes precedence.
	switch spec := &obj.Spec; {
	case spec.PodCIDR == "" && len(spec.PodCIDRs) > 0:
		spec.PodCIDR = spec.PodCIDRs[0]
	case spec.PodCIDR != "" && (len(spec.PodCIDRs) == 0 || spec.PodCIDRs[0] != spec.PodCIDR):
		spec.PodCIDRs = []string{spec.PodCIDR}
	}
	if obj.Status.Allocatable == nil && obj.Status.Capacity != nil {
		obj.Status.Allocatable = obj.Status.Capacity.DeepCopy()
	}
	podspec.RoundUpToMilli(obj.Status.Capacity)
	podspec.RoundUpToMilli(obj.Status.Allocatable)
}

// prepareNode drops fields without a meaning: kubelet configuration by reference, which was removed, and the preemption
// policy, whose feature gate is off.
func prepareNode(_ *kind.Request, obj, old *corev1.Node) {
	if old == nil {
		obj.Status.Config = nil
	}
	if old == nil || old.Spec.ConfigSource == nil {
		obj.Spec.ConfigSource = nil
	}
	if old == nil || old.Spec.PodPreemptionPolicy == nil {
		obj.Spec.PodPreemptionPolicy = nil
	}
}

func warnNode(obj, _ *corev1.Node) (warnings []string) {
	if obj.Spec.ConfigSource != nil {
		warnings = append(warnings, "spec.configSource: the feature is removed")
	}
	if obj.Spec.DoNotUseExternalID != "" {
		warnings = append(warnings, "spec.externalID: this field is deprecated, and is unused by Kubernetes")
	}
	for i, cidr := range obj.Spec.PodCIDRs {
		warnings = append(warnings, validation.GetWarningsForCIDR(field.NewPath("spec", "podCIDRs").Index(i), cidr)...)
	}
	return warnings
}

func nodeRow(obj *corev1.Node, now time.Time) []any {
	status := "Unknown"
	for _, condition := range obj.Status.Conditions {
		if condition.Type != corev1.NodeReady {
			continue
		}
		status = "NotReady"
		if condition.Status == corev1.ConditionTrue {
			status = "Ready"
		}
	}
	if obj.Spec.Unschedulable {
		status += ",SchedulingDisabled"
	}
	info := obj.Status.NodeInfo
	kernel := orElse(info.KernelVersion, "<unknown>")
	if info.Architecture != "" {
		kernel += " (" + info.Architecture + ")"
	}
	return []any{
		obj.Name, status, orElse(strings.Join(nodeRoles(obj), ","), "<none>"), kind.Age(obj.CreationTimestamp, now), info.KubeletVersion,
		nodeAddress(obj, corev1.NodeInternalIP), nodeAddress(obj, corev1.NodeExternalIP),
		orElse(info.OSImage, "<unknown>"), kernel, orElse(info.ContainerRuntimeVersion, "<unknown>"),
	}
}

func nodeRoles(obj *corev1.Node) []string {
	roles := sets.New[string]()
	for key, value := range obj.Labels {
		if role, ok := strings.CutPrefix(key, "node-role.kubernetes.io/"); ok && role != "" {
			roles.Insert(role)
		} else if key == "kubernetes.io/role" && value != "" {
			roles.Insert(value)
		}
	}
	return sets.List(roles)
}

func nodeAddress(obj *corev1.Node, wanted corev1.NodeAddressType) string {
	for _, address := range obj.Status.Addresses {
		if address.Type == wanted {
			return address.Address
		}
	}
	return "<none>"
}

func orElse(value, otherwise string) string {
	if value == "" {
		return otherwise
	}
	return value
}
