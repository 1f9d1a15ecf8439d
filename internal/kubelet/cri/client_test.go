package cri

import (
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestOperations: what upstream's kubelet calls the runtime's methods.
func TestOperations(t *testing.T) {
	names := map[string]string{
		"Version": "version", "Status": "status", "CreateContainer": "create_container", "StartContainer": "start_container", "StopContainer": "stop_container",
		"RemoveContainer": "remove_container", "ListContainers": "list_containers", "ContainerStatus": "container_status", "UpdateContainerResources": "update_container",
		"ReopenContainerLog": "reopen_container_log", "ExecSync": "exec_sync", "Exec": "exec", "Attach": "attach", "RunPodSandbox": "run_podsandbox",
		"StopPodSandbox": "stop_podsandbox", "RemovePodSandbox": "remove_podsandbox", "PodSandboxStatus": "podsandbox_status", "ListPodSandbox": "list_podsandbox",
		"ContainerStats": "container_stats", "ListContainerStats": "list_container_stats", "PodSandboxStats": "podsandbox_stats", "ListPodSandboxStats": "list_podsandbox_stats",
		"PortForward": "port_forward", "UpdatePodSandboxResources": "update_podsandbox_resources", "UpdateRuntimeConfig": "update_runtime_config",
		"CheckpointContainer": "checkpoint_container", "CheckpointPod": "checkpoint_pod", "RestorePod": "restore_pod", "ListMetricDescriptors": "list_metric_descriptors",
		"ListPodSandboxMetrics": "list_podsandbox_metrics", "RuntimeConfig": "runtime_config",
		"ListImages": "list_images", "ImageStatus": "image_status", "PullImage": "pull_image", "RemoveImage": "remove_image", "ImageFsInfo": "image_fs_info",
	}
	for name, want := range names {
		if got := operation("/runtime.v1.RuntimeService/" + name); got != want {
			t.Errorf("%s is called %s, want %s", name, got, want)
		}
	}
	for _, service := range []string{runtimeapi.RuntimeService_ServiceDesc.ServiceName, runtimeapi.ImageService_ServiceDesc.ServiceName} {
		if service != "runtime.v1.RuntimeService" && service != "runtime.v1.ImageService" {
			t.Errorf("the runtime's service is %s", service)
		}
	}
	for _, method := range append(runtimeapi.RuntimeService_ServiceDesc.Methods, runtimeapi.ImageService_ServiceDesc.Methods...) {
		if names[method.MethodName] == "" {
			t.Errorf("nobody says what %s is called", method.MethodName)
		}
	}
}
