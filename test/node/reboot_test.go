package node

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"skiff/internal/kubelet/cgroup"
	"skiff/internal/kubelet/runtime"
	"skiff/test/cluster"
	"skiff/test/namespaces"
)

const sleepers = `
apiVersion: v1
kind: Pod
metadata: {name: lasting}
spec:
  terminationGracePeriodSeconds: 1
  initContainers:
  - name: first
    image: registry.k8s.io/e2e-test-images/busybox:1.37.0-2
    command: [sh, -c, 'echo first >> /disk/starts']
    volumeMounts: [{name: disk, mountPath: /disk}]
  containers:
  - name: c
    image: registry.k8s.io/e2e-test-images/busybox:1.37.0-2
    command: [sh, -c, 'echo main >> /disk/starts; echo main >> /memory/starts; exec sleep 1000']
    volumeMounts: [{name: disk, mountPath: /disk}, {name: memory, mountPath: /memory}]
  volumes:
  - {name: disk, emptyDir: {}}
  - {name: memory, emptyDir: {medium: Memory}}
---
apiVersion: v1
kind: Pod
metadata: {name: once}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  containers:
  - {name: c, image: "registry.k8s.io/e2e-test-images/busybox:1.37.0-2", command: [sleep, "1000"]}
`

// TestReboot kills all processes of the node and removes what a reboot would. Pods are restarted with their disks; those
// that must not restart have failed.
func TestReboot(t *testing.T) {
	dir := t.TempDir()
	c, err := cluster.SkiffNode(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { c.Stop() }()
	kubectl(t, c, sleepers, "apply", "-f", "-")
	kubectl(t, c, "", "wait", "--for=condition=Ready", "pod/lasting", "pod/once", "--timeout=60s")
	before := podNow(t, c, "lasting")

	c.Server[0].Kill()
	reboot(t, filepath.Join(dir, "data"), "/")
	again, err := cluster.Skiff(dir, "--no-node=false", "--without=", "--bind-address=0.0.0.0", "--advertise-address="+namespaces.NodeAddress, "--node-ip="+namespaces.NodeAddress)
	if err != nil {
		t.Fatal(err)
	}
	c.Server = again.Server
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(kubectl(t, c, "", "get", "pods", "-o", "yaml"), kubectl(t, c, "", "get", "events"), c.Server[0].Log(40))
		}
	})
	eventually(t, "the pod runs again", func() bool {
		pod := podNow(t, c, "lasting")
		s := pod.Status.ContainerStatuses[0]
		return s.RestartCount == 1 && s.Ready && s.State.Running != nil
	})
	now := podNow(t, c, "lasting")
	s, old := now.Status.ContainerStatuses[0], before.Status.ContainerStatuses[0]
	if now.UID != before.UID || now.Status.Phase != corev1.PodRunning || s.ContainerID == old.ContainerID {
		t.Errorf("it is %s %s %s, was %s %s", now.UID, now.Status.Phase, identity(now), before.UID, identity(before))
	}
	if last := s.LastTerminationState.Terminated; last == nil || last.ContainerID != old.ContainerID || last.ExitCode == 0 {
		t.Errorf("its last state is %v", s.LastTerminationState)
	}
	if lines := eventLines(t, c, "lasting"); !slices.Contains(lines, "Normal SandboxChanged Pod sandbox changed, it will be killed and re-created.") {
		t.Errorf("the events are %q", lines)
	}
	if count := eventCount(t, c, "lasting", "Started"); count != 4 {
		t.Errorf("%d starts, want two of the init container and two of the container", count)
	}
	// The disk is unchanged, and the init container ran again in the new sandbox; what was in memory is gone.
	if got := kubectl(t, c, "", "exec", "lasting", "-c", "c", "--", "cat", "/disk/starts", "/memory/starts"); got != "first\nmain\nfirst\nmain\n"+"main\n" {
		t.Errorf("disk and memory have %q", got)
	}
	eventually(t, "the pod that runs once has failed", func() bool { return podNow(t, c, "once").Status.Phase == corev1.PodFailed })
	if once := podNow(t, c, "once"); once.Status.ContainerStatuses[0].RestartCount != 0 || eventCount(t, c, "once", "Started") != 1 {
		t.Errorf("the pod that runs once is %s", identity(once))
	}
	kubectl(t, c, "", "delete", "pods", "--all", "--timeout=60s")
}

// reboot kills all processes of a node, containers and their shims, and removes what is not on its disk: mounts, cgroups,
// sockets. cgroupRoot is the kubelet's cgroupRoot.
func reboot(t *testing.T, dataDir, cgroupRoot string) {
	t.Helper()
	endpoint, err := runtime.Endpoint(dataDir)
	if err != nil {
		t.Fatal(err)
	}
	socket := strings.TrimPrefix(endpoint, "unix://")
	// Processes that would record the exit of containers are killed first.
	eventually(t, "containerd and its shims have ended", func() bool {
		processes := processesWith(t, dataDir+"/containerd", socket)
		for _, pid := range processes {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
				t.Fatal(err)
			}
		}
		return len(processes) == 0
	})
	groups, err := cgroup.New(cgroup.Settings{Root: cgroupRoot})
	if err != nil {
		t.Fatal(err)
	}
	if err := groups.Teardown(); err != nil {
		t.Fatal(err)
	}
	mounts, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		return !strings.HasPrefix(m.Mountpoint, dataDir+"/") && !strings.HasPrefix(m.Mountpoint, "/run/netns/"), false
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range slices.Backward(mounts) {
		if err := unix.Unmount(m.Mountpoint, unix.MNT_DETACH); err != nil {
			t.Fatalf("unmount %s: %v", m.Mountpoint, err)
		}
	}
	// The state on disk is from another boot from now on.
	if err := errors.Join(os.WriteFile(filepath.Join(dataDir, "containerd/boot"), []byte("another"), 0o600), os.RemoveAll(filepath.Dir(socket))); err != nil {
		t.Fatal(err)
	}
}

// processesWith returns the processes whose command line contains one of the texts.
func processesWith(t *testing.T, texts ...string) []int {
	t.Helper()
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var found []int
	for _, file := range lines {
		line, _ := os.ReadFile(file) // it may have ended meanwhile
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err == nil && pid != os.Getpid() && slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(string(line), text) }) {
			found = append(found, pid)
		}
	}
	return found
}
