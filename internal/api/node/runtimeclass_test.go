package node

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"skiff/internal/kind/kindtest"
)

type class = *nodev1.RuntimeClass

func base() class {
	return &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "sandboxed", CreationTimestamp: kindtest.MinutesAgo(4)}, Handler: "gvisor"}
}

func TestValidateRuntimeClass(t *testing.T) {
	overhead := func(name corev1.ResourceName, quantity string) func(class) {
		return func(c class) {
			c.Overhead = &nodev1.Overhead{PodFixed: corev1.ResourceList{name: resource.MustParse(quantity)}}
		}
	}
	tolerate := func(tolerations ...corev1.Toleration) func(class) {
		return func(c class) { c.Scheduling = &nodev1.Scheduling{Tolerations: tolerations} }
	}
	kindtest.Validations(t, RuntimeClass, base(), []kindtest.Case[class]{
		{Name: "ordinary"},
		{Name: "no handler", Change: func(c class) { c.Handler = "" }, Want: []string{"handler: Required value"}},
		{Name: "bad handler", Change: func(c class) { c.Handler = "A.b" }, Want: []string{"handler: a lowercase RFC 1123 label"}},
		{Name: "overhead", Change: overhead("cpu", "100m")},
		{Name: "negative overhead", Change: overhead("cpu", "-1"), Want: []string{"overhead.limits[cpu]: must be greater than or equal to 0"}},
		{Name: "overhead of nothing known", Change: overhead("bananas", "1"), Want: []string{
			"overhead.limits[bananas]: must be a standard resource type or fully qualified", "overhead.limits[bananas]: must be a standard resource for containers",
		}},
		{Name: "selector", Change: func(c class) { c.Scheduling = &nodev1.Scheduling{NodeSelector: map[string]string{"a": "not valid"}} }, Want: []string{"scheduling.nodeSelector: a valid label must be"}},
		{Name: "tolerations", Change: tolerate(corev1.Toleration{Key: "a", Operator: corev1.TolerationOpExists}, corev1.Toleration{Key: "b", Value: "x"})},
		{Name: "toleration twice", Change: tolerate(
			corev1.Toleration{Key: "a", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute},
			corev1.Toleration{Key: "a", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: ptr.To[int64](5)},
		), Want: []string{"scheduling.tolerations[1]: Duplicate value"}},
		{Name: "bad toleration", Change: tolerate(corev1.Toleration{Operator: "Equal"}), Want: []string{"scheduling.tolerations[0].operator: operator must be Exists when `key` is empty"}},
		{Name: "another handler", Update: true, Change: func(c class) { c.Handler = "other" }, Want: []string{"handler: Invalid value: null: field is immutable"}},
		{Name: "another overhead", Update: true, Change: overhead("memory", "1Mi")},
	})
}

func TestRuntimeClassRowAndWarnings(t *testing.T) {
	kindtest.ColumnsDescribed(t, RuntimeClass, "Handler")
	kindtest.Row(t, RuntimeClass, base(), "sandboxed", "gvisor", "4m")
	kindtest.Warnings(t, RuntimeClass.Warn(base(), nil))
	kindtest.Warnings(t, RuntimeClass.Warn(kindtest.With(base(), func(c class) {
		c.Scheduling = &nodev1.Scheduling{NodeSelector: map[string]string{"beta.kubernetes.io/os": "linux", "x": "y"}}
	}), nil), `scheduling.nodeSelector: deprecated since v1.14; use "kubernetes.io/os" instead`)
}
