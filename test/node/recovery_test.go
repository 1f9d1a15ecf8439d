package node

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"skiff/test/cluster"
	"skiff/test/namespaces"
)

const survivors = `
apiVersion: v1
kind: Pod
metadata: {name: steady}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: c, image: "registry.k8s.io/e2e-test-images/busybox:1.37.0-2", command: [sh, -c, 'trap "exit 0" TERM; while true; do sleep 0.2; done']}
  - {name: d, image: "registry.k8s.io/e2e-test-images/busybox:1.37.0-2", command: [sh, -c, 'trap "exit 0" TERM; while true; do sleep 0.2; done'], readinessProbe: {exec: {command: ["true"]}}}
---
apiVersion: v1
kind: Pod
metadata: {name: leaving}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: c, image: "registry.k8s.io/e2e-test-images/busybox:1.37.0-2", command: [sh, -c, 'while [ ! -e /scratch/go ]; do sleep 0.2; done; rm /scratch/go; exit 7'], volumeMounts: [{name: scratch, mountPath: /scratch}]}
  volumes: [{name: scratch, emptyDir: {}}]
---
apiVersion: v1
kind: Pod
metadata: {name: done}
spec:
  restartPolicy: Never
  containers:
  - {name: c, image: "registry.k8s.io/e2e-test-images/busybox:1.37.0-2", command: [sh, -c, 'while [ ! -e /scratch/go ]; do sleep 0.2; done; exit 3'], volumeMounts: [{name: scratch, mountPath: /scratch}]}
  volumes: [{name: scratch, emptyDir: {}}]
---
apiVersion: v1
kind: Pod
metadata: {name: deleted}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: c, image: "registry.k8s.io/e2e-test-images/busybox:1.37.0-2", command: [sleep, "1000"]}
`

// podNow reads a pod.
func podNow(t *testing.T, c *cluster.Cluster, name string) corev1.Pod {
	t.Helper()
	var pod corev1.Pod
	if err := json.Unmarshal([]byte(kubectl(t, c, "", "get", "pod", name, "-o", "json")), &pod); err != nil {
		t.Fatal(err)
	}
	return pod
}

// identity returns what must not change while a pod keeps running: its containers and their restart counts.
func identity(pod corev1.Pod) string {
	var words []string
	for _, s := range pod.Status.ContainerStatuses {
		words = append(words, fmt.Sprint(s.Name, " ", s.ContainerID, " ", s.RestartCount))
	}
	return strings.Join(words, ", ")
}

// eventCount counts the events about a pod that have one of the reasons.
func eventCount(t *testing.T, c *cluster.Cluster, pod string, reasons ...string) int {
	t.Helper()
	var list corev1.EventList
	if err := json.Unmarshal([]byte(kubectl(t, c, "", "get", "events", "--field-selector", "involvedObject.name="+pod, "-o", "json")), &list); err != nil {
		t.Fatal(err)
	}
	count := 0
	for _, e := range list.Items {
		for _, reason := range reasons {
			if e.Reason == reason {
				count += max(int(e.Count), 1)
			}
		}
	}
	return count
}

// letGo lets a container exit that waits for a file in its volume.
func letGo(t *testing.T, dataDir string, pod corev1.Pod) {
	t.Helper()
	file := filepath.Join(dataDir, "kubelet/pods", string(pod.UID), "volumes/kubernetes.io~empty-dir/scratch/go")
	if err := writeFile(file); err != nil {
		t.Fatal(err)
	}
}

// TestRecovery kills skiff, and then containerd, and checks that containers keep running, that nothing is started twice,
// and that what happened meanwhile is noticed.
func TestRecovery(t *testing.T) {
	dir := t.TempDir()
	c, err := cluster.SkiffNode(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { c.Stop() }()
	dataDir := filepath.Join(dir, "data")
	kubectl(t, c, survivors, "apply", "-f", "-")
	kubectl(t, c, "", "wait", "--for=condition=Ready", "pod/steady", "pod/leaving", "pod/done", "pod/deleted", "--timeout=60s")
	steady, leaving, done := podNow(t, c, "steady"), podNow(t, c, "leaving"), podNow(t, c, "done")
	starts := eventCount(t, c, "steady", "Created", "Started")

	t.Run("skiff is killed", func(t *testing.T) {
		c.Server[0].Kill()
		letGo(t, dataDir, leaving)
		letGo(t, dataDir, done)
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
		eventually(t, "what ended meanwhile is noticed", func() bool {
			pod := podNow(t, c, "leaving")
			s := pod.Status.ContainerStatuses[0]
			return s.RestartCount == 1 && s.State.Running != nil && endedWith(s.LastTerminationState, 7)
		})
		eventually(t, "a pod that ended meanwhile is failed", func() bool {
			pod := podNow(t, c, "done")
			return pod.Status.Phase == corev1.PodFailed && endedWith(pod.Status.ContainerStatuses[0].State, 3)
		})
		now := podNow(t, c, "steady")
		if identity(now) != identity(steady) || now.Status.Phase != corev1.PodRunning {
			t.Errorf("the containers are %s, were %s", identity(now), identity(steady))
		}
		for _, condition := range now.Status.Conditions {
			if condition.Type == corev1.PodReady && (condition.Status != corev1.ConditionTrue || !condition.LastTransitionTime.Time.Equal(readySince(steady))) {
				t.Errorf("the pod was not ready all the time: %+v", condition)
			}
		}
		if count := eventCount(t, c, "steady", "Created", "Started"); count != starts {
			t.Errorf("%d events of starting, were %d", count, starts)
		}
		if count := eventCount(t, c, "steady", "Killing", "SandboxChanged", "BackOff"); count != 0 {
			t.Errorf("%d events of a pod that was left alone", count)
		}
	})

	pid := func() int {
		data, _ := os.ReadFile(filepath.Join(dataDir, "containerd/pid")) // absent while it starts
		n, _ := strconv.Atoi(string(data))
		return n
	}
	past := 0
	t.Run("skiff is killed while a pod is deleted", func(t *testing.T) {
		eventually(t, "containerd runs", func() bool { return pid() != 0 && syscall.Kill(pid(), 0) == nil })
		past = pid()
		kubectl(t, c, "", "delete", "pod", "deleted", "--wait=false")
		c.Server[0].Kill()
		again, err := cluster.Skiff(dir, "--no-node=false", "--without=", "--bind-address=0.0.0.0", "--advertise-address="+namespaces.NodeAddress, "--node-ip="+namespaces.NodeAddress)
		if err != nil {
			t.Fatal(err)
		}
		c.Server = again.Server
		eventually(t, "the pod is gone", func() bool { return !strings.Contains(kubectl(t, c, "", "get", "pods", "-o", "name"), "pod/deleted") })
		if now := podNow(t, c, "steady"); identity(now) != identity(steady) {
			t.Errorf("the containers are %s, were %s", identity(now), identity(steady))
		}
	})

	t.Run("containerd is killed", func(t *testing.T) {
		// Not the one of the previous skiff.
		eventually(t, "containerd runs", func() bool { now := pid(); return now != 0 && now != past })
		before := pid()
		if err := syscall.Kill(before, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		eventually(t, "containerd runs again", func() bool { now := pid(); return now != before && now != 0 })
		kubectl(t, c, strings.ReplaceAll(strings.Split(survivors, "---")[3], "deleted", "fresh"), "apply", "-f", "-")
		kubectl(t, c, "", "wait", "--for=condition=Ready", "pod/fresh", "--timeout=60s")
		if now := podNow(t, c, "steady"); identity(now) != identity(steady) || now.Status.Phase != corev1.PodRunning {
			t.Errorf("the containers are %s, were %s", identity(now), identity(steady))
		}
		if count := eventCount(t, c, "steady", "Created", "Started"); count != starts {
			t.Errorf("%d events of starting, were %d", count, starts)
		}
		kubectl(t, c, "", "delete", "pod", "fresh", "--timeout=60s")
	})

	t.Run("containerd is killed while shims are slow", func(t *testing.T) {
		before := pid()
		paused := shims(t)
		signal(t, paused, syscall.SIGSTOP)
		if err := syscall.Kill(before, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		eventually(t, "containerd runs again", func() bool { now := pid(); return now != before && now != 0 })
		time.Sleep(slowShim)
		signal(t, paused, syscall.SIGCONT)
		kubectl(t, c, strings.ReplaceAll(strings.Split(survivors, "---")[3], "deleted", "fresh"), "apply", "-f", "-")
		kubectl(t, c, "", "wait", "--for=condition=Ready", "pod/fresh", "--timeout=60s")
		kubectl(t, c, "", "delete", "pod", "fresh", "--timeout=60s")
		if now := podNow(t, c, "steady"); identity(now) != identity(steady) || now.Status.Phase != corev1.PodRunning {
			t.Errorf("the containers are %s, were %s", identity(now), identity(steady))
		}
		if count := eventCount(t, c, "steady", "Killing", "SandboxChanged", "BackOff"); count != 0 {
			t.Errorf("%d events of a pod that was left alone", count)
		}
		kubectl(t, c, "", "delete", "pods", "--all", "--timeout=60s")
	})
}

// slowShim is longer than containerd waits for shims by default, when it loads them and when it asks them for the state of a container.
const slowShim = 6 * time.Second

// shims returns the processes of the shims of all pods.
func shims(t *testing.T) (pids []int) {
	t.Helper()
	processes, err := filepath.Glob("/proc/[0-9]*/comm")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range processes {
		name, err := os.ReadFile(path)
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err == nil && strings.HasPrefix(string(name), "containerd-shim") {
			pids = append(pids, pid)
		}
	}
	if len(pids) == 0 {
		t.Fatal("there are no shims")
	}
	return pids
}

func signal(t *testing.T, pids []int, s syscall.Signal) {
	t.Helper()
	for _, pid := range pids {
		if err := syscall.Kill(pid, s); err != nil {
			t.Errorf("signal %v to process %d: %v", s, pid, err)
		}
	}
}

// endedWith reports whether a container exited with a code. containerd stops with skiff; if a container exits while
// neither is running, containerd may not know the code, and reports 255.
func endedWith(s corev1.ContainerState, code int32) bool {
	return s.Terminated != nil && (s.Terminated.ExitCode == code || s.Terminated.ExitCode == 255 && s.Terminated.Reason == "Unknown")
}

// readySince returns when a pod became ready.
func readySince(pod corev1.Pod) time.Time {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.LastTransitionTime.Time
		}
	}
	return time.Time{}
}

func writeFile(path string) error { return os.WriteFile(path, nil, 0o644) }
