package node

import (
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"skiff/internal/kubelet/cri"
	"skiff/internal/kubelet/runtime"
	"skiff/test/cluster"
)

// TestContainersRemovedMeanwhile removes real containers from containerd while skiff is not running.
func TestContainersRemovedMeanwhile(t *testing.T) {
	c, err := cluster.SkiffNode(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Stop()
	defer func() {
		if t.Failed() {
			out, _ := kubectlCommand(c, "", "get", "pods,events", "-o", "yaml")
			t.Logf("%s", out)
		}
	}()
	for _, policy := range []string{"Always", "OnFailure", "Never"} {
		kubectl(t, c, fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  restartPolicy: %s
  terminationGracePeriodSeconds: 0
  containers:
  - {name: c, image: %q, command: [sleep, "1000"]}
`, strings.ToLower(policy), policy, busybox), "apply", "-f", "-")
	}
	kubectl(t, c, "", "wait", "--for=condition=Ready", "pod/always", "pod/onfailure", "pod/never", "--timeout=60s")
	endpoint, err := runtime.Endpoint(filepath.Join(c.Dir, "data"))
	if err != nil {
		t.Fatal(err)
	}
	containerd, err := cri.Dial(endpoint)
	if err != nil {
		t.Fatal(err)
	}
	defer containerd.Close()
	containers, err := containerd.ListContainers(t.Context(), nil)
	if err != nil || len(containers) < 3 {
		t.Fatalf("%d containers, %v", len(containers), err)
	}
	skiff := c.Server[0].PID()
	if err := syscall.Kill(skiff, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for _, container := range containers {
		if err := containerd.RemoveContainer(t.Context(), container.Id); err != nil {
			t.Error(err)
		}
	}
	if err := syscall.Kill(skiff, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"always", "onfailure"} {
		eventually(t, name+" runs again", func() bool {
			s := podNow(t, c, name).Status.ContainerStatuses[0]
			end := s.LastTerminationState.Terminated
			return s.State.Running != nil && s.RestartCount == 1 && end != nil && end.Reason == "ContainerStatusUnknown" && end.ExitCode == 137 &&
				end.Message == "The container could not be located when the pod was deleted.  The container used to be Running"
		})
	}
	eventually(t, "the pod that never restarts has failed", func() bool {
		pod := podNow(t, c, "never")
		end := pod.Status.ContainerStatuses[0].State.Terminated
		return pod.Status.Phase == corev1.PodFailed && end != nil && end.Reason == "ContainerStatusUnknown" && end.ExitCode == 137
	})
}
