package cri

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// AddImage makes an image present.
func (f *Fake) AddImage(image *runtimeapi.Image) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, name := range append(image.RepoTags, image.Id) {
		f.images[name] = image
	}
}

// ListImages implements Runtime.
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

// ImageStatus implements Runtime.
func (f *Fake) ImageStatus(_ context.Context, image *runtimeapi.ImageSpec, _ bool) (*runtimeapi.ImageStatusResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return &runtimeapi.ImageStatusResponse{Image: f.images[image.Image]}, nil
}

// PullImage implements Runtime. Every image can be pulled that Fail does not refuse.
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

// RemoveImage implements Runtime.
func (f *Fake) RemoveImage(_ context.Context, image *runtimeapi.ImageSpec) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.call("RemoveImage", image.Image); err != nil {
		return err
	}
	delete(f.images, image.Image)
	return nil
}

// ImageFsInfo implements Runtime.
func (f *Fake) ImageFsInfo(context.Context) (*runtimeapi.ImageFsInfoResponse, error) {
	return &runtimeapi.ImageFsInfoResponse{}, nil
}

// Exec implements Runtime.
func (f *Fake) Exec(context.Context, *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error) {
	return nil, unimplemented("Exec")
}

// Attach implements Runtime.
func (f *Fake) Attach(context.Context, *runtimeapi.AttachRequest) (*runtimeapi.AttachResponse, error) {
	return nil, unimplemented("Attach")
}

// PortForward implements Runtime.
func (f *Fake) PortForward(context.Context, *runtimeapi.PortForwardRequest) (*runtimeapi.PortForwardResponse, error) {
	return nil, unimplemented("PortForward")
}

// UpdatePodSandboxResources implements Runtime.
func (f *Fake) UpdatePodSandboxResources(_ context.Context, request *runtimeapi.UpdatePodSandboxResourcesRequest) (*runtimeapi.UpdatePodSandboxResourcesResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.sandboxes[request.PodSandboxId] == nil {
		return nil, missing("sandbox", request.PodSandboxId)
	}
	return &runtimeapi.UpdatePodSandboxResourcesResponse{}, f.call("UpdatePodSandboxResources", request.PodSandboxId)
}

// CheckpointPod implements Runtime.
func (f *Fake) CheckpointPod(context.Context, *runtimeapi.CheckpointPodRequest) error {
	return unimplemented("CheckpointPod")
}

// RestorePod implements Runtime.
func (f *Fake) RestorePod(context.Context, *runtimeapi.RestorePodRequest) (*runtimeapi.RestorePodResponse, error) {
	return nil, unimplemented("RestorePod")
}

// CheckpointContainer implements Runtime.
func (f *Fake) CheckpointContainer(context.Context, *runtimeapi.CheckpointContainerRequest) error {
	return unimplemented("CheckpointContainer")
}

// ContainerStats implements Runtime.
func (f *Fake) ContainerStats(_ context.Context, id string) (*runtimeapi.ContainerStats, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.containers[id]
	if c == nil {
		return nil, missing("container", id)
	}
	return &runtimeapi.ContainerStats{Attributes: &runtimeapi.ContainerAttributes{Id: id, Metadata: c.status.Metadata, Labels: c.status.Labels}}, nil
}

// ListContainerStats implements Runtime.
func (f *Fake) ListContainerStats(context.Context, *runtimeapi.ContainerStatsFilter) ([]*runtimeapi.ContainerStats, error) {
	return nil, nil
}

// PodSandboxStats implements Runtime.
func (f *Fake) PodSandboxStats(_ context.Context, id string) (*runtimeapi.PodSandboxStats, error) {
	return nil, status.Errorf(codes.Unimplemented, "PodSandboxStats of %s", id)
}

// ListPodSandboxStats implements Runtime.
func (f *Fake) ListPodSandboxStats(context.Context, *runtimeapi.PodSandboxStatsFilter) ([]*runtimeapi.PodSandboxStats, error) {
	return nil, nil
}

// ListMetricDescriptors implements Runtime.
func (f *Fake) ListMetricDescriptors(context.Context) ([]*runtimeapi.MetricDescriptor, error) {
	return nil, nil
}

// ListPodSandboxMetrics implements Runtime.
func (f *Fake) ListPodSandboxMetrics(context.Context) ([]*runtimeapi.PodSandboxMetrics, error) {
	return nil, nil
}
