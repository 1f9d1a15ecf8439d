package cri

import (
	"context"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ListImages lists the images that match.
func (c *Client) ListImages(ctx context.Context, filter *runtimeapi.ImageFilter) ([]*runtimeapi.Image, error) {
	response, err := call(ctx, c.images.ListImages, &runtimeapi.ListImagesRequest{Filter: filter})
	return response.GetImages(), err
}

// ImageStatus returns an image; one that is absent has no Image in the answer, and is no error.
func (c *Client) ImageStatus(ctx context.Context, image *runtimeapi.ImageSpec, verbose bool) (*runtimeapi.ImageStatusResponse, error) {
	return call(ctx, c.images.ImageStatus, &runtimeapi.ImageStatusRequest{Image: image, Verbose: verbose})
}

// PullImage fetches an image and returns its reference. It takes as long as it takes.
func (c *Client) PullImage(ctx context.Context, image *runtimeapi.ImageSpec, auth *runtimeapi.AuthConfig, sandbox *runtimeapi.PodSandboxConfig) (string, error) {
	response, err := c.images.PullImage(ctx, &runtimeapi.PullImageRequest{Image: image, Auth: auth, SandboxConfig: sandbox})
	return response.GetImageRef(), err
}

// RemoveImage removes an image.
func (c *Client) RemoveImage(ctx context.Context, image *runtimeapi.ImageSpec) error {
	_, err := call(ctx, c.images.RemoveImage, &runtimeapi.RemoveImageRequest{Image: image})
	return err
}

// ImageFsInfo returns how much the images take on disk.
func (c *Client) ImageFsInfo(ctx context.Context) (*runtimeapi.ImageFsInfoResponse, error) {
	return call(ctx, c.images.ImageFsInfo, &runtimeapi.ImageFsInfoRequest{})
}

// ContainerStats returns what a container uses.
func (c *Client) ContainerStats(ctx context.Context, id string) (*runtimeapi.ContainerStats, error) {
	response, err := call(ctx, c.runtime.ContainerStats, &runtimeapi.ContainerStatsRequest{ContainerId: id})
	return response.GetStats(), err
}

// ListContainerStats returns what the containers that match use.
func (c *Client) ListContainerStats(ctx context.Context, filter *runtimeapi.ContainerStatsFilter) ([]*runtimeapi.ContainerStats, error) {
	response, err := call(ctx, c.runtime.ListContainerStats, &runtimeapi.ListContainerStatsRequest{Filter: filter})
	return response.GetStats(), err
}

// PodSandboxStats returns what a pod uses.
func (c *Client) PodSandboxStats(ctx context.Context, id string) (*runtimeapi.PodSandboxStats, error) {
	response, err := call(ctx, c.runtime.PodSandboxStats, &runtimeapi.PodSandboxStatsRequest{PodSandboxId: id})
	return response.GetStats(), err
}

// ListPodSandboxStats returns what the pods that match use.
func (c *Client) ListPodSandboxStats(ctx context.Context, filter *runtimeapi.PodSandboxStatsFilter) ([]*runtimeapi.PodSandboxStats, error) {
	response, err := call(ctx, c.runtime.ListPodSandboxStats, &runtimeapi.ListPodSandboxStatsRequest{Filter: filter})
	return response.GetStats(), err
}

// ListMetricDescriptors describes what ListPodSandboxMetrics returns.
func (c *Client) ListMetricDescriptors(ctx context.Context) ([]*runtimeapi.MetricDescriptor, error) {
	response, err := call(ctx, c.runtime.ListMetricDescriptors, &runtimeapi.ListMetricDescriptorsRequest{})
	return response.GetDescriptors(), err
}

// ListPodSandboxMetrics returns the metrics of all pods.
func (c *Client) ListPodSandboxMetrics(ctx context.Context) ([]*runtimeapi.PodSandboxMetrics, error) {
	response, err := call(ctx, c.runtime.ListPodSandboxMetrics, &runtimeapi.ListPodSandboxMetricsRequest{})
	return response.GetPodMetrics(), err
}
