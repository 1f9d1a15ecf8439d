package critest

import (
	"context"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// AddImage adds an image to the store.
func (f *Fake) AddImage(image *runtimeapi.Image) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, name := range append(image.RepoTags, image.Id) {
		f.images[name] = image
	}
}

// ListImages implements cri.API.
func (f *Fake) ListImages(_ context.Context, filter *runtimeapi.ImageFilter) ([]*runtimeapi.Image, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var found []*runtimeapi.Image
	seen := map[string]bool{}
	for name, image := range f.images {
		if wanted := filter.GetImage().GetImage(); (wanted == "" || wanted == name) && !seen[image.Id] {
			seen[image.Id] = true
			found = append(found, image)
		}
	}
	return found, nil
}

// ImageStatus implements cri.API.
func (f *Fake) ImageStatus(_ context.Context, image *runtimeapi.ImageSpec, _ bool) (*runtimeapi.ImageStatusResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return &runtimeapi.ImageStatusResponse{Image: f.images[image.Image]}, nil
}

// PullImage implements cri.API. Every image can be pulled for which Fail returns no error.
func (f *Fake) PullImage(_ context.Context, image *runtimeapi.ImageSpec, _ *runtimeapi.AuthConfig, _ *runtimeapi.PodSandboxConfig) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.call("PullImage", image.Image); err != nil {
		return "", err
	}
	made := &runtimeapi.Image{Id: "sha256:" + image.Image, RepoTags: []string{image.Image}, Size: 1 << 20}
	f.images[image.Image], f.images[made.Id] = made, made
	return made.Id, nil
}

// RemoveImage implements cri.API.
func (f *Fake) RemoveImage(_ context.Context, image *runtimeapi.ImageSpec) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.call("RemoveImage", image.Image); err != nil {
		return err
	}
	delete(f.images, image.Image)
	return nil
}

// ImageFsInfo implements cri.API.
func (f *Fake) ImageFsInfo(context.Context) (*runtimeapi.ImageFsInfoResponse, error) {
	return &runtimeapi.ImageFsInfoResponse{}, nil
}

// Exec implements cri.API.
func (f *Fake) Exec(context.Context, *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error) {
	return nil, unimplemented("Exec")
}

// Attach implements cri.API.
func (f *Fake) Attach(context.Context, *runtimeapi.AttachRequest) (*runtimeapi.AttachResponse, error) {
	return nil, unimplemented("Attach")
}

// PortForward implements cri.API.
func (f *Fake) PortForward(context.Context, *runtimeapi.PortForwardRequest) (*runtimeapi.PortForwardResponse, error) {
	return nil, unimplemented("PortForward")
}

// UpdatePodSandboxResources implements cri.API.
func (f *Fake) UpdatePodSandboxResources(_ context.Context, request *runtimeapi.UpdatePodSandboxResourcesRequest) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.sandboxes[request.PodSandboxId] == nil {
		return missing("sandbox", request.PodSandboxId)
	}
	return f.call("UpdatePodSandboxResources", request.PodSandboxId)
}

// ContainerStats implements cri.API.
func (f *Fake) ContainerStats(_ context.Context, id string) (*runtimeapi.ContainerStats, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.containers[id]
	if c == nil {
		return nil, missing("container", id)
	}
	return &runtimeapi.ContainerStats{Attributes: &runtimeapi.ContainerAttributes{Id: id, Metadata: c.status.Metadata, Labels: c.status.Labels}}, nil
}

// ListContainerStats implements cri.API.
func (f *Fake) ListContainerStats(context.Context, *runtimeapi.ContainerStatsFilter) ([]*runtimeapi.ContainerStats, error) {
	return nil, nil
}
