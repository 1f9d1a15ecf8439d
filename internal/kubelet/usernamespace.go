package kubelet

import (
	corev1 "k8s.io/api/core/v1"

	"skiff/internal/kubelet/cri"
)

// userNamespace returns the user namespace of a pod, nil for the host's. It is an error if the pod needs one and its runtime handler does
// not support them.
func (k *Kubelet) userNamespace(pod *corev1.Pod) (*cri.UserNamespace, error) {
	handler := ""
	if k.Handlers != nil {
		var err error
		if handler, err = k.Handlers.Handler(pod.Spec.RuntimeClassName); err != nil {
			return nil, err
		}
	}
	supported := false
	if node := k.Node(); node != nil {
		for _, known := range node.Status.RuntimeHandlers {
			if known.Name == handler && known.Features != nil && known.Features.UserNamespaces != nil {
				supported = *known.Features.UserNamespaces
			}
		}
	}
	return k.userNamespaces.Of(pod, handler, supported)
}
