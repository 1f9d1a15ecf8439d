package kubelet

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
)

// prepareClaims prepares the devices of a pod's resource claims. A container must not start without them.
func (k *Kubelet) prepareClaims(ctx context.Context, pod *corev1.Pod) error {
	if k.ResourceClaims != nil {
		return k.ResourceClaims.Prepare(ctx, pod)
	}
	if len(pod.Spec.ResourceClaims) > 0 || pod.Status.ExtendedResourceClaimStatus != nil {
		return errors.New("prepare dynamic resources: this kubelet has no DRA drivers")
	}
	return nil
}

// deviceHealth returns the health of a container's devices, of device plugins and of resource claims.
func (k *Kubelet) deviceHealth(pod *corev1.Pod, c *corev1.Container) (all []corev1.ResourceStatus) {
	if k.Devices != nil {
		all = k.Devices.Health(pod.UID, c.Name)
	}
	if k.ResourceClaims != nil {
		all = append(all, k.ResourceClaims.Health(pod, c)...)
	}
	return all
}
