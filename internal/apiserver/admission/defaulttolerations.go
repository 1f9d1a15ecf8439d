package admission

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
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
