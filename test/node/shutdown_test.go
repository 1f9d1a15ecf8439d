package node

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"skiff/test/cluster"
	"skiff/test/logind"
)

const goingDown = `
apiVersion: v1
kind: Pod
metadata: {name: ordinary}
spec:
  terminationGracePeriodSeconds: 20
  containers:
  - {name: c, image: IMAGE, command: [sh, -c, 'trap "sleep 1; exit 0" TERM; while true; do sleep 0.1; done']}
---
apiVersion: v1
kind: Pod
metadata: {name: system, namespace: kube-system}
spec:
  priorityClassName: system-node-critical
  terminationGracePeriodSeconds: 20
  containers:
  - {name: c, image: IMAGE, command: [sh, -c, 'trap "exit 3" TERM; while true; do sleep 0.1; done']}
`

// TestGracefulShutdown announces a shutdown to a node and observes its pods: the regular pod terminates before the
// critical one.
func TestGracefulShutdown(t *testing.T) {
	dir := shortDir(t)
	bus, err := logind.Start(dir, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	defer bus.Stop()
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", bus.Address)
	config := filepath.Join(dir, "kubelet.yaml")
	text := "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nshutdownGracePeriod: 30s\nshutdownGracePeriodCriticalPods: 10s\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := cluster.SkiffNode(t.TempDir(), "--kubelet-config="+config)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Stop()
	if !bus.Taken(1, 30*time.Second) {
		t.Fatalf("the node holds no lock; its log ends:\n%s", c.Server[0].Log(20))
	}
	kubectl(t, c, strings.ReplaceAll(goingDown, "IMAGE", busybox), "apply", "-f", "-")
	kubectl(t, c, "", "wait", "--for=condition=Ready", "pod/ordinary", "--timeout=60s")
	kubectl(t, c, "", "wait", "--for=condition=Ready", "pod/system", "-n", "kube-system", "--timeout=60s")
	if err := bus.Announce(true); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the node is not ready", func() bool {
		return strings.HasPrefix(nodeReady(t, c), "False KubeletNotReady node is shutting down")
	})
	kubectl(t, c, strings.ReplaceAll(strings.ReplaceAll(strings.Split(goingDown, "---")[0], "ordinary", "late"), "spec:\n", "spec:\n  nodeName: "+nodeName(t, c)+"\n"), "apply", "-f", "-")
	eventually(t, "a pod that comes too late is refused", func() bool {
		pod := readPod(t, c, "default", "late")
		return pod.Status.Phase == corev1.PodFailed && pod.Status.Reason == "NodeShutdown" &&
			pod.Status.Message == "Pod was rejected: Pod was rejected as the node is shutting down."
	})
	if !bus.Released(1, 40*time.Second) {
		t.Fatal("the inhibitor lock is held though all grace periods are over")
	}
	var ended []time.Time
	for _, at := range [][2]string{{"default", "ordinary"}, {"kube-system", "system"}} {
		var pod corev1.Pod
		eventually(t, at[1]+" has failed", func() bool {
			pod = readPod(t, c, at[0], at[1])
			return pod.Status.Phase == corev1.PodFailed && pod.Status.ContainerStatuses[0].State.Terminated != nil
		})
		const message = "Pod was terminated in response to imminent node shutdown."
		if pod.Status.Reason != "Terminated" || pod.Status.Message != message {
			t.Errorf("%s says %s: %s", at[1], pod.Status.Reason, pod.Status.Message)
		}
		if !slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue && c.Reason == "TerminationByKubelet" && c.Message == message
		}) {
			t.Errorf("%s does not say who ended it: %+v", at[1], pod.Status.Conditions)
		}
		ended = append(ended, pod.Status.ContainerStatuses[0].State.Terminated.FinishedAt.Time)
	}
	if ended[1].Before(ended[0]) {
		t.Errorf("the system's pod ended at %s, before the ordinary one at %s", ended[1], ended[0])
	}
	if err := bus.Announce(false); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the node is ready again", func() bool { return strings.HasPrefix(nodeReady(t, c), "True ") })
	if !bus.Taken(2, 10*time.Second) {
		t.Error("the next shutdown is not held back")
	}
	for _, event := range []string{"Normal NodeShutdown Shutdown manager detected shutdown event", "Normal NodeShutdown Shutdown manager detected shutdown cancellation"} {
		eventually(t, event, func() bool { return slices.Contains(eventLines(t, c, nodeName(t, c)), event) })
	}
}

// nodeName returns the name of the only node.
func nodeName(t *testing.T, c *cluster.Cluster) string {
	t.Helper()
	return kubectl(t, c, "", "get", "nodes", "-o", "jsonpath={.items[0].metadata.name}")
}

// nodeReady returns the Ready condition of the only node.
func nodeReady(t *testing.T, c *cluster.Cluster) string {
	t.Helper()
	const ready = `{range .items[0].status.conditions[?(@.type=="Ready")]}{.status} {.reason} {.message}{end}`
	return kubectl(t, c, "", "get", "nodes", "-o", "jsonpath="+ready)
}

// readPod reads a pod of any namespace.
func readPod(t *testing.T, c *cluster.Cluster, namespace, name string) (pod corev1.Pod) {
	t.Helper()
	if err := json.Unmarshal([]byte(kubectl(t, c, "", "get", "pod", name, "-n", namespace, "-o", "json")), &pod); err != nil {
		t.Fatal(err)
	}
	return pod
}
