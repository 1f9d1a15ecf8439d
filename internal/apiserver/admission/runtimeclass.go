package admission

import (
	"context"
	"maps"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// runtimeClass sets the overhead, node selector and tolerations of a pod from its RuntimeClass.
type runtimeClass struct{ client lazyClient }

func (*runtimeClass) Name() string { return "RuntimeClass" }

func (*runtimeClass) Handles(a *Attributes) bool { return a.Operation == Create && a.isPlain(pods) }

func (r *runtimeClass) Mutate(ctx context.Context, a *Attributes) error {
	pod, class, err := r.find(ctx, a)
	if err != nil || class == nil {
		return err
	}
	if class.Overhead != nil {
		if len(pod.Spec.Overhead) > 0 && !equality.Semantic.DeepEqual(class.Overhead.PodFixed, pod.Spec.Overhead) {
			return errOverhead(a)
		}
		pod.Spec.Overhead = class.Overhead.PodFixed.DeepCopy()
	}
	if class.Scheduling == nil {
		return nil
	}
	if pod.Spec.NodeSelector == nil {
		pod.Spec.NodeSelector = maps.Clone(class.Scheduling.NodeSelector)
	} else {
		for key, value := range class.Scheduling.NodeSelector {
			if own, ok := pod.Spec.NodeSelector[key]; ok && own != value {
				return forbid(a, "conflict: runtimeClass.scheduling.nodeSelector[%s] = %s; pod.spec.nodeSelector[%s] = %s", key, value, key, own)
			}
			pod.Spec.NodeSelector[key] = value
		}
	}
	pod.Spec.Tolerations = mergeTolerations(pod.Spec.Tolerations, class.Scheduling.DeepCopy().Tolerations)
	return nil
}

func (r *runtimeClass) Validate(ctx context.Context, a *Attributes) error {
	pod, class, err := r.find(ctx, a)
	switch {
	case err != nil:
		return err
	case class != nil && class.Overhead != nil:
		if !equality.Semantic.DeepEqual(class.Overhead.PodFixed, pod.Spec.Overhead) {
			return errOverhead(a)
		}
	case pod.Spec.Overhead != nil:
		return forbid(a, "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead")
	}
	return nil
}

func errOverhead(a *Attributes) error {
	return forbid(a, "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead")
}

// find returns the pod and its RuntimeClass, nil if it has none.
func (r *runtimeClass) find(ctx context.Context, a *Attributes) (*corev1.Pod, *nodev1.RuntimeClass, error) {
	pod, err := objectOf[*corev1.Pod](a)
	if err != nil || pod.Spec.RuntimeClassName == nil {
		return pod, nil, err
	}
	class, err := get[*nodev1.RuntimeClass](ctx, r.client, runtimeClasses, "", *pod.Spec.RuntimeClassName)
	if apierrors.IsNotFound(err) {
		return nil, nil, forbid(a, "pod rejected: RuntimeClass %q not found", *pod.Spec.RuntimeClassName)
	}
	return pod, class, err
}
