package admission

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"skiff/internal/container"
	"skiff/internal/resourcename"
)

// extendedResourceToleration adds tolerations to pods that request extended resources: nodes with such a resource can be dedicated
// by a taint of its name. Off by default.
type extendedResourceToleration struct{}

func (extendedResourceToleration) Name() string { return "ExtendedResourceToleration" }

func (extendedResourceToleration) Handles(a *Attributes) bool { return a.changes() && a.isPlain(pods) }

func (extendedResourceToleration) Mutate(_ context.Context, a *Attributes) error {
	pod, err := objectOf[*corev1.Pod](a)
	if err != nil {
		return err
	}
	var names []string
	for _, c := range container.All(&pod.Spec) {
		for name := range c.Resources.Requests {
			if resourcename.IsExtended(name) {
				names = append(names, string(name))
			}
		}
	}
	existing := sets.New[corev1.Toleration]()
	for _, toleration := range pod.Spec.Tolerations {
		toleration.TolerationSeconds = nil
		existing.Insert(toleration)
	}
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		toleration := corev1.Toleration{Key: name, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}
		if !existing.Has(toleration) {
			pod.Spec.Tolerations = append(pod.Spec.Tolerations, toleration)
		}
	}
	return nil
}
