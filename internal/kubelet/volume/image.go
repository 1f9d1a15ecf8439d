package volume

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
)

const imagePlugin = "kubernetes.io/image"

// setUpImage makes sure that the image is present. The runtime mounts it itself.
func (v *Volumes) setUpImage(ctx context.Context, pod *corev1.Pod, volume *corev1.Volume) (*mounted, error) {
	if v.Image == nil {
		return nil, errors.New("this kubelet has no images to make volumes of")
	}
	reference, err := v.Image(ctx, pod, volume)
	if err != nil {
		return nil, err
	}
	return &mounted{kind: imagePlugin, image: reference, readOnly: true}, nil
}
