package admission

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
)

// defaultTolerationSeconds adds tolerations for nodes that are not ready or unreachable to pods without their own.
type defaultTolerationSeconds struct{ notReady, unreachable int64 }

func defaultFiveMinutes(seconds *int64) int64 {
	if seconds == nil {
		return 300
	}
	return *seconds
}

func (*defaultTolerationSeconds) Name() string { return "DefaultTolerationSeconds" }

func (*defaultTolerationSeconds) Handles(a *Attributes) bool { return a.changes() && a.isPlain(pods) }

func (p *defaultTolerationSeconds) Mutate(_ context.Context, a *Attributes) error {
	pod, err := objectOf[*corev1.Pod](a)
	if err != nil {
		return err
	}
	existing := pod.Spec.Tolerations
	for _, taint := range []struct {
		key     string
		seconds int64
	}{{corev1.TaintNodeNotReady, p.notReady}, {corev1.TaintNodeUnreachable, p.unreachable}} {
		tolerated := slices.ContainsFunc(existing, func(t corev1.Toleration) bool {
			return (t.Key == taint.key || t.Key == "") && (t.Effect == corev1.TaintEffectNoExecute || t.Effect == "")
		})
		if !tolerated {
			if len(pod.Spec.Tolerations) == len(existing) {
				pod.Spec.Tolerations = slices.Grow(existing, 2)
			}
			seconds := taint.seconds
			pod.Spec.Tolerations = append(pod.Spec.Tolerations, corev1.Toleration{
				Key: taint.key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: &seconds,
			})
		}
	}
	return nil
}

// mergeTolerations merges two lists and drops tolerations that another one covers. Of equal ones the first is kept.
func mergeTolerations(first, second []corev1.Toleration) []corev1.Toleration {
	all := append(slices.Clone(first), second...)
	var merged []corev1.Toleration
	for i := range all {
		t := &all[i]
		covered := slices.ContainsFunc(merged, func(other corev1.Toleration) bool { return coversToleration(&other, t) }) ||
			slices.ContainsFunc(all[i+1:], func(other corev1.Toleration) bool {
				return !equality.Semantic.DeepEqual(t, &other) && coversToleration(&other, t)
			})
		if !covered {
			merged = append(merged, *t)
		}
	}
	return merged
}

// coversToleration reports whether wide tolerates everything that t does.
func coversToleration(wide, t *corev1.Toleration) bool {
	switch {
	case equality.Semantic.DeepEqual(wide, t):
		return true
	case t.Key != wide.Key && (wide.Key != "" || wide.Operator != corev1.TolerationOpExists):
		return false
	case t.Effect != wide.Effect && wide.Effect != "":
		return false
	case wide.Effect == corev1.TaintEffectNoExecute && wide.TolerationSeconds != nil &&
		(t.TolerationSeconds == nil || *t.TolerationSeconds > *wide.TolerationSeconds):
		return false
	}
	switch wide.Operator {
	case corev1.TolerationOpEqual, "":
		return t.Operator == corev1.TolerationOpEqual && t.Value == wide.Value
	case corev1.TolerationOpExists:
		return true
	}
	return false
}
