package volume

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
)

const imagePlugin = "kubernetes.io/image"

// setUpImage pulls the image. The runtime mounts it.
func (v *Volumes) setUpImage(ctx context.Context, pod *corev1.Pod, volume *corev1.Volume) (*mounted, error) {
	if v.Image == nil {
		return nil, errors.New("image volumes are not supported by this kubelet")
	}
	reference, err := v.Image(ctx, pod, volume)
	if err != nil {
		return nil, err
	}
	return &mounted{plugin: imagePlugin, image: reference, readOnly: true}, nil
}
