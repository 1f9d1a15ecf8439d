package kubelet

import (
	corev1 "k8s.io/api/core/v1"

	"skiff/internal/kubelet/cri"
)

// userNamespace is the ids a pod has on this host: the host's own, or a range for a pod that wants users of its own, if its
// runtime handler can do that.
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
	return k.users.Of(pod, handler, supported)
}
