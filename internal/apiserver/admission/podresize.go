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

// podResizeValidator rejects resizes that the pod's node can never satisfy.
type podResizeValidator struct{ client lazyClient }

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
	node, err := nodeOf(ctx, r.client, a, pod)
	if err != nil {
		return err
	}
	if system, ok := node.Labels[corev1.LabelOSStable]; ok && system != string(corev1.Linux) {
		return withCause("UnsupportedPlatform", forbid(a, "pod resize is only supported on linux nodes, node %q is %q", node.Name, system))
	}
	if err := checkAllocatable(pod, node.Status.Allocatable); err != nil {
		return withCause("NodeCapacity", Forbidden(a, err))
	}
	return nil
}

// nodeOf gets the node of a pod.
func nodeOf(ctx context.Context, client lazyClient, a *Attributes, pod *corev1.Pod) (*corev1.Node, error) {
	node, err := get[*corev1.Node](ctx, client, nodes, "", pod.Spec.NodeName)
	if apierrors.IsNotFound(err) {
		return nil, forbid(a, "node %q not found", pod.Spec.NodeName)
	}
	if err != nil {
		return nil, forbid(a, "failed to get node %q: %w", pod.Spec.NodeName, err)
	}
	return node, nil
}

// withCause adds a cause to the details of a Status error.
func withCause(cause metav1.CauseType, err error) error {
	var status *apierrors.StatusError
	if errors.As(err, &status) {
		status.ErrStatus.Details.Causes = append(status.ErrStatus.Details.Causes, metav1.StatusCause{Type: cause})
	}
	return err
}

// checkAllocatable returns an error if the pod requests more than the node's allocatable resources.
func checkAllocatable(pod *corev1.Pod, allocatable corev1.ResourceList) error {
	requests := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
	var texts []string
	if available, requested := allocatable.Cpu(), requests.Cpu(); requested.Cmp(*available) > 0 {
		texts = append(texts, fmt.Sprintf("cpu, requested: %d, allocatable: %d", requested.MilliValue(), available.MilliValue()))
	}
	if available, requested := allocatable.Memory(), requests.Memory(); requested.Cmp(*available) > 0 {
		texts = append(texts, fmt.Sprintf("memory, requested: %d, allocatable: %d", requested.Value(), available.Value()))
	}
	if len(texts) == 0 {
		return nil
	}
	return fmt.Errorf("node didn't have enough allocatable resources: %s", strings.Join(texts, "; "))
}
