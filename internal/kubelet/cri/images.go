package cri

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Image is an image in the runtime's store.
type Image struct {
	ID                    string
	RepoTags, RepoDigests []string
	// Size is in bytes.
	Size uint64
	// Pinned images are never garbage-collected.
	Pinned bool
	// UID and Username are the user the image runs as, as a number or else by name. Both unset means root.
	UID      *int64
	Username string
}

func newImage(i *runtimeapi.Image) *Image {
	if i == nil {
		return nil
	}
	image := &Image{ID: i.Id, RepoTags: i.RepoTags, RepoDigests: i.RepoDigests, Size: i.Size, Pinned: i.Pinned, Username: i.Username}
	if i.Uid != nil {
		image.UID = &i.Uid.Value
	}
	return image
}

// ImageSpec names an image.
type ImageSpec struct {
	// Image is the reference that is looked up, UserSpecifiedImage the one in the pod's spec, if they differ.
	Image, UserSpecifiedImage string
	Annotations               map[string]string
}

func (s ImageSpec) message() *runtimeapi.ImageSpec {
	return &runtimeapi.ImageSpec{Image: s.Image, UserSpecifiedImage: s.UserSpecifiedImage, Annotations: s.Annotations}
}

// RegistryAuth authenticates to an image registry.
type RegistryAuth struct{ Username, Password string }

// ListImages lists all images.
func (r *Runtime) ListImages(ctx context.Context) ([]*Image, error) {
	list, err := r.api.ListImages(ctx, nil)
	if err != nil {
		return nil, err
	}
	images := make([]*Image, 0, len(list))
	for _, i := range list {
		images = append(images, newImage(i))
	}
	return images, nil
}

// ImageStatus returns an image, or nil if it is not present.
func (r *Runtime) ImageStatus(ctx context.Context, spec ImageSpec) (*Image, error) {
	response, err := r.api.ImageStatus(ctx, spec.message(), false)
	return newImage(response.GetImage()), err
}

// PullImage pulls an image for a pod and returns its reference. auth may be nil.
func (r *Runtime) PullImage(ctx context.Context, spec ImageSpec, auth *RegistryAuth, sandboxConfig *SandboxConfig) (ref string, err error) {
	var config *runtimeapi.AuthConfig
	if auth != nil {
		config = &runtimeapi.AuthConfig{Username: auth.Username, Password: auth.Password}
	}
	return r.api.PullImage(ctx, spec.message(), config, sandboxConfig.message())
}

// RemoveImage removes an image.
func (r *Runtime) RemoveImage(ctx context.Context, id string) error {
	return r.api.RemoveImage(ctx, &runtimeapi.ImageSpec{Image: id})
}

// ImageFilesystem returns the mount point of the filesystem that images are stored on; empty if the runtime does not report it.
func (r *Runtime) ImageFilesystem(ctx context.Context) (mountpoint string, err error) {
	response, err := r.api.ImageFsInfo(ctx)
	if err != nil || len(response.GetImageFilesystems()) == 0 {
		return "", err
	}
	return response.ImageFilesystems[0].GetFsId().GetMountpoint(), nil
}

// SandboxConfig is the configuration of a pod sandbox, opaque outside this package.
type SandboxConfig struct {
	config *runtimeapi.PodSandboxConfig
}

func (c *SandboxConfig) message() *runtimeapi.PodSandboxConfig {
	if c == nil {
		return nil
	}
	return c.config
}

// PullConfig is the configuration of a pod that has no sandbox, for pulling the images of its volumes.
func PullConfig(pod *corev1.Pod) *SandboxConfig {
	return &SandboxConfig{&runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: pod.Name, Namespace: pod.Namespace, Uid: string(pod.UID)},
	}}
}
