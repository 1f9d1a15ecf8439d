package admission

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	resourcehelper "k8s.io/component-helpers/resource"
)

// podResizeValidator refuses a resize that the pod's node can never carry out.
type podResizeValidator struct{ env access }

func (*podResizeValidator) Name() string { return "PodResizeValidator" }

func (*podResizeValidator) Handles(a *Attributes) bool {
	return a.Operation == Update && a.Subresource == "resize" && a.is(pods)
}

func (r *podResizeValidator) Validate(ctx context.Context, a *Attributes) error {
	pod, err := objectOf[*corev1.Pod](a)
	if err != nil {
		return err
	}
	old, err := oldOf[*corev1.Pod](a)
	if err != nil {
		return err
	}
	if pod.Spec.NodeName == "" || pod.Generation == old.Generation {
		return nil
	}
	node, err := nodeOf(ctx, r.env, a, pod)
	if err != nil {
		return err
	}
	if system, ok := node.Labels[corev1.LabelOSStable]; ok && system != string(corev1.Linux) {
		return becauseOf("UnsupportedPlatform", forbid(a, "pod resize is only supported on linux nodes, node %q is %q", node.Name, system))
	}
	if err := fits(pod, node.Status.Allocatable); err != nil {
		return becauseOf("NodeCapacity", forbidden(a, err))
	}
	return nil
}

// nodeOf finds the node a pod is on.
func nodeOf(ctx context.Context, env access, a *Attributes, pod *corev1.Pod) (*corev1.Node, error) {
	node, err := get[*corev1.Node](ctx, env, nodes, "", pod.Spec.NodeName)
	if apierrors.IsNotFound(err) {
		return nil, forbid(a, "node %q not found", pod.Spec.NodeName)
	}
	if err != nil {
		return nil, forbid(a, "failed to get node %q: %w", pod.Spec.NodeName, err)
	}
	return node, nil
}

// becauseOf adds a cause that programs can tell apart to a refusal.
func becauseOf(cause metav1.CauseType, refusal error) error {
	var status *apierrors.StatusError
	if errors.As(refusal, &status) {
		status.ErrStatus.Details.Causes = append(status.ErrStatus.Details.Causes, metav1.StatusCause{Type: cause})
	}
	return refusal
}

// fits refuses requests that are more than the whole node has to give.
func fits(pod *corev1.Pod, allocatable corev1.ResourceList) error {
	requests := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
	var texts []string
	if has, wants := allocatable.Cpu(), requests.Cpu(); wants.Cmp(*has) > 0 {
		texts = append(texts, fmt.Sprintf("cpu, requested: %d, allocatable: %d", wants.MilliValue(), has.MilliValue()))
	}
	if has, wants := allocatable.Memory(), requests.Memory(); wants.Cmp(*has) > 0 {
		texts = append(texts, fmt.Sprintf("memory, requested: %d, allocatable: %d", wants.Value(), has.Value()))
	}
	if len(texts) == 0 {
		return nil
	}
	return fmt.Errorf("node didn't have enough allocatable resources: %s", strings.Join(texts, "; "))
}
