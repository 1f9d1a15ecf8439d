package node

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"skiff/test/cluster"
)

// badPod is a pod with an invalid or impossible spec.
type badPod struct {
	name string
	// spec are fields of the pod's spec as YAML in one line; CONTAINER begins a container.
	spec string
	// phase, reason and message are patterns for the final state. Reason and message are the container's, or the pod's if
	// the container was never created.
	phase, reason, message string
	exit                   int32
	// events must be among those of the pod, each "type reason message".
	events []string
	// then fixes the pod, if that is possible: the pod must become ready soon.
	then string
}

var badPods = []badPod{
	{
		name: "no-image", spec: `containers: [{name: c, image: registry.k8s.io/absent/image:1}]`,
		phase: "Pending", reason: "ImagePullBackOff|ErrImagePull",
		message: `^(Back-off pulling image "registry\.k8s\.io/absent/image:1": ErrImagePull: )?rpc error: code = NotFound desc = failed to pull and unpack image "registry\.k8s\.io/absent/image:1": .*not found$`,
		events: []string{
			`Normal Pulling Pulling image "registry.k8s.io/absent/image:1"`,
			`Warning Failed Failed to pull image "registry.k8s.io/absent/image:1": rpc error: code = NotFound desc = failed to pull and unpack image "registry.k8s.io/absent/image:1": `,
			"Warning Failed Error: ErrImagePull", "Warning Failed Error: ImagePullBackOff",
		},
	},
	{
		name: "no-image-name", spec: `containers: [{name: c, image: "No:Such:Name"}]`,
		phase: "Pending", reason: "InvalidImageName", message: `^Failed to apply default image tag "No:Such:Name": couldn't parse image name "No:Such:Name": invalid reference format`,
		events: []string{`Warning InspectFailed Failed to apply default image tag "No:Such:Name": couldn't parse image name "No:Such:Name": invalid reference format`, "Warning Failed Error: InvalidImageName"},
	},
	{
		name: "never-pulled", spec: `containers: [{name: c, image: "registry.k8s.io/absent/image:1", imagePullPolicy: Never}]`,
		phase: "Pending", reason: "ErrImageNeverPull", message: `^Container image "registry\.k8s\.io/absent/image:1" is not present with pull policy of Never$`,
		events: []string{`Warning ErrImageNeverPull Container image "registry.k8s.io/absent/image:1" is not present with pull policy of Never`, "Warning Failed Error: ErrImageNeverPull"},
	},
	{
		name: "no-command", spec: `restartPolicy: Never, containers: [{CONTAINER, command: [no-such-program]}]`,
		phase: "Failed", reason: "StartError", message: `^failed to create containerd task: .*exec: "no-such-program": executable file not found in \$PATH`, exit: 128,
		events: []string{"Normal Created Container created", "Warning Failed Error: failed to create containerd task: failed to create shim task: OCI runtime create failed: "},
	},
	{
		name: "no-command-again", spec: `containers: [{CONTAINER, command: [/no/such/program]}]`,
		phase: "Running|Pending", reason: "RunContainerError|CrashLoopBackOff", message: `exec: "/no/such/program": .*no such file or directory|^back-off \d+s restarting failed container=c pod=no-command-again_default`,
		events: []string{"Warning Failed Error: failed to create containerd task: failed to create shim task: OCI runtime create failed: ", "Warning BackOff Back-off restarting failed container c in pod no-command-again_default"},
	},
	{
		name: "no-config-map", spec: `volumes: [{name: v, configMap: {name: late}}], containers: [{CONTAINER, command: [sleep, "1000"], volumeMounts: [{name: v, mountPath: /v}]}]`,
		phase: "Pending", reason: "ContainerCreating", events: []string{`Warning FailedMount MountVolume.SetUp failed for volume "v" : configmap "late" not found`},
		then: "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: late}\n",
	},
	{
		name: "no-secret", spec: `volumes: [{name: v, secret: {secretName: absent}}], containers: [{CONTAINER, volumeMounts: [{name: v, mountPath: /v}]}]`,
		phase: "Pending", reason: "ContainerCreating", events: []string{`Warning FailedMount MountVolume.SetUp failed for volume "v" : secret "absent" not found`},
	},
	{
		name: "no-directory", spec: `volumes: [{name: v, hostPath: {path: /etc/passwd, type: Directory}}], containers: [{CONTAINER, volumeMounts: [{name: v, mountPath: /v}]}]`,
		phase: "Pending", reason: "ContainerCreating",
		events: []string{`Warning FailedMount MountVolume.SetUp failed for volume "v" : hostPath type check failed: /etc/passwd is not a directory, it's a File`},
	},
	{
		name: "no-variables", spec: `containers: [{CONTAINER, command: [sleep, "1000"], envFrom: [{configMapRef: {name: late-variables}}]}]`,
		phase: "Pending", reason: "CreateContainerConfigError", message: `^configmap "late-variables" not found$`, events: []string{`Warning Failed Error: configmap "late-variables" not found`},
		then: "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: late-variables}\n",
	},
	{
		name: "too-large", spec: `restartPolicy: Never, containers: [{CONTAINER, command: [dd, if=/dev/zero, of=/dev/null, bs=200M], resources: {limits: {memory: 32Mi}}}]`,
		phase: "Failed", reason: "OOMKilled", exit: 137, events: []string{"Normal Started Container started"},
	},
	{
		name: "bomb", spec: `restartPolicy: Never, containers: [{CONTAINER, command: [sh, -c, 'for i in $(seq 500); do sleep 1000 & done']}]`,
		phase: "Failed", reason: "Error", exit: 2, events: []string{"Normal Started Container started"},
	},
	{
		// Every shell forks two more. The first one only waits.
		name: "bomb-that-goes-on", spec: `containers: [{CONTAINER, command: [sh, -c, 'sh -c "b() { b | b & sleep 1; b; }; b" & while true; do sleep 1; done']}]`,
		phase: "Running",
	},
}

const kubeletSettings = `
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
podPidsLimit: 40
`

// TestBadInput starts pods with impossible specs. Each gets upstream's reason and message, and neither the node nor
// another pod is affected.
func TestBadInput(t *testing.T) {
	dir := t.TempDir()
	settings := filepath.Join(dir, "kubelet.yaml")
	if err := os.WriteFile(settings, []byte(kubeletSettings), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := cluster.SkiffNode(dir, "--kubelet-config="+settings)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Stop()
	container := fmt.Sprintf("name: c, image: %q", busybox)
	manifest := func(name, spec string) string {
		return fmt.Sprintf("---\napiVersion: v1\nkind: Pod\nmetadata: {name: %s}\nspec: {terminationGracePeriodSeconds: 0, dnsPolicy: Default, %s}\n",
			name, strings.ReplaceAll(spec, "CONTAINER", container))
	}
	kubectl(t, c, manifest("neighbour", `containers: [{CONTAINER, command: [sleep, "1000"]}]`), "apply", "-f", "-")
	kubectl(t, c, "", "wait", "--for=condition=Ready", "pod/neighbour", "--timeout=30s")
	neighbour, since := podNow(t, c, "neighbour"), nodeReadySince(t, c, "node-1")
	var all strings.Builder
	for _, bad := range badPods {
		all.WriteString(manifest(bad.name, bad.spec))
	}
	kubectl(t, c, all.String(), "apply", "-f", "-")
	for _, bad := range badPods {
		t.Run(bad.name, func(t *testing.T) { bad.check(t, c) })
	}
	t.Run("the bombs are held", func(t *testing.T) {
		if output := kubectl(t, c, "", "logs", "bomb"); !strings.Contains(output, "can't fork: Resource temporarily unavailable") {
			t.Errorf("the bomb says %q", output)
		}
		uid := string(podNow(t, c, "bomb-that-goes-on").UID)
		files, err := filepath.Glob("/sys/fs/cgroup/pids/kubepods/*/pod" + uid + "/pids.max") // with cgroup v1
		if err == nil && len(files) == 0 {
			files, err = filepath.Glob("/sys/fs/cgroup/kubepods/*/pod" + uid + "/pids.max")
		}
		if err != nil || len(files) != 1 {
			t.Fatalf("the pod's cgroup is in %v, %v", files, err)
		}
		if limit, err := os.ReadFile(files[0]); err != nil || strings.TrimSpace(string(limit)) != "40" {
			t.Errorf("pids.max is %s, %v", limit, err)
		}
		eventually(t, "the bomb hits its limit", func() bool {
			now, err := os.ReadFile(filepath.Join(filepath.Dir(files[0]), "pids.current"))
			count, _ := strconv.Atoi(strings.TrimSpace(string(now)))
			return err == nil && count >= 35
		})
	})
	if now := nodeReadySince(t, c, "node-1"); !now.Equal(since) {
		t.Errorf("the node is ready since %v, was since %v", now, since)
	}
	if now := podNow(t, c, "neighbour"); identity(now) != identity(neighbour) || !readySince(now).Equal(readySince(neighbour)) {
		t.Errorf("the neighbour is %s, was %s", identity(now), identity(neighbour))
	}
	kubectl(t, c, "", "delete", "pods", "--all", "--timeout=60s")
}

// check waits until a pod is in its expected final state.
func (bad badPod) check(t *testing.T, c *cluster.Cluster) {
	var pod corev1.Pod
	var missing string
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		pod = podNow(t, c, bad.name)
		missing = bad.differs(pod)
		events := eventLines(t, c, bad.name)
		for _, want := range bad.events {
			if missing == "" && !slices.ContainsFunc(events, func(line string) bool { return strings.HasPrefix(line, want) }) {
				missing = fmt.Sprintf("no event %q among\n%s", want, strings.Join(events, "\n"))
			}
		}
		if missing == "" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(missing)
		}
	}
	if bad.then != "" {
		kubectl(t, c, bad.then, "apply", "-f", "-")
		kubectl(t, c, "", "wait", "--for=condition=Ready", "pod/"+bad.name, "--timeout=30s")
	}
}

// differs describes how a pod differs from its expected final state.
func (bad badPod) differs(pod corev1.Pod) string {
	if !matches(bad.phase, string(pod.Status.Phase)) {
		return fmt.Sprintf("phase %s, want %s", pod.Status.Phase, bad.phase)
	}
	if len(pod.Status.ContainerStatuses) != 1 {
		return "no status of the container"
	}
	var reason, message string
	var exit int32
	state := pod.Status.ContainerStatuses[0].State
	switch {
	case state.Waiting != nil:
		reason, message = state.Waiting.Reason, state.Waiting.Message
	case state.Terminated != nil:
		reason, message, exit = state.Terminated.Reason, state.Terminated.Message, state.Terminated.ExitCode
	}
	if !matches(bad.reason, reason) || exit != bad.exit || bad.message == "" && message != "" || bad.message != "" && !regexp.MustCompile(bad.message).MatchString(message) {
		return fmt.Sprintf("reason %q, exit code %d, message %q, want %q, %d, %q", reason, exit, message, bad.reason, bad.exit, bad.message)
	}
	return ""
}

// matches compares a word with alternatives.
func matches(pattern, word string) bool {
	return regexp.MustCompile("^(" + pattern + ")$").MatchString(word)
}

// eventLines returns a pod's events, one line each.
func eventLines(t *testing.T, c *cluster.Cluster, pod string) []string {
	t.Helper()
	text := kubectl(t, c, "", "get", "events", "--field-selector", "involvedObject.name="+pod, "-o", `jsonpath={range .items[*]}{.type} {.reason} {.message}{"\n"}{end}`)
	return strings.Split(strings.TrimSpace(text), "\n")
}

// nodeReadySince returns when a node became ready. It fails the test if the node is not.
func nodeReadySince(t *testing.T, c *cluster.Cluster, name string) time.Time {
	t.Helper()
	var node corev1.Node
	if err := json.Unmarshal([]byte(kubectl(t, c, "", "get", "node", name, "-o", "json")), &node); err != nil {
		t.Fatal(err)
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue {
			return condition.LastTransitionTime.Time
		}
	}
	t.Fatalf("%s is not ready: %v", name, node.Status.Conditions)
	return time.Time{}
}

// TestFullDisk lets a container fill its node's disk to the last byte. The pod is evicted, a pod that uses nothing is
// kept, and the node stays ready.
func TestFullDisk(t *testing.T) {
	c, err := cluster.SkiffNode(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Stop()
	disk := filepath.Join(c.Dir, "node-2")
	if err := os.Mkdir(disk, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "mode=700,size=128m"); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Unmount(disk, unix.MNT_DETACH) }()
	if err := c.AddNode(); err != nil {
		t.Fatal(err)
	}
	since := nodeReadySince(t, c, "node-2")
	// The pod to be kept starts first: it could not start on a full disk.
	kubectl(t, c, strings.ReplaceAll(`
apiVersion: v1
kind: Pod
metadata: {name: modest}
spec:
  nodeName: node-2
  terminationGracePeriodSeconds: 0
  containers:
  - {name: c, image: IMAGE, command: [sleep, "1000"]}
`, "IMAGE", busybox), "apply", "-f", "-")
	kubectl(t, c, "", "wait", "pod/modest", "--for=condition=Ready", "--timeout=60s")
	kubectl(t, c, strings.ReplaceAll(`
apiVersion: v1
kind: Pod
metadata: {name: glutton}
spec:
  nodeName: node-2
  terminationGracePeriodSeconds: 0
  containers:
  - {name: c, image: IMAGE, command: [sh, -c, 'cat /dev/zero > /scratch/all; exec sleep 1000'], volumeMounts: [{name: scratch, mountPath: /scratch}]}
  volumes: [{name: scratch, emptyDir: {}}]
`, "IMAGE", busybox), "apply", "-f", "-")
	kubectl(t, c, "", "wait", "pod/glutton", "--for=jsonpath={.status.phase}=Failed", "--timeout=60s")
	glutton := podNow(t, c, "glutton")
	message := regexp.MustCompile(`^The node was low on resource: ephemeral-storage\. Threshold quantity: \d+, available: (0|\d{1,5}Ki)\. (Container c was using \d+Ki, request is 0, has larger consumption of ephemeral-storage\. )?$`)
	if glutton.Status.Reason != "Evicted" || !message.MatchString(glutton.Status.Message) {
		t.Errorf("reason %q, message %q", glutton.Status.Reason, glutton.Status.Message)
	}
	if !slices.ContainsFunc(eventLines(t, c, "glutton"), func(line string) bool { return line == "Warning Evicted "+glutton.Status.Message }) {
		t.Errorf("the events are %q", eventLines(t, c, "glutton"))
	}
	if !slices.ContainsFunc(eventLines(t, c, "node-2"), func(line string) bool {
		return line == "Warning EvictionThresholdMet Attempting to reclaim ephemeral-storage"
	}) {
		t.Errorf("the node's events are %q", eventLines(t, c, "node-2"))
	}
	kubectl(t, c, "", "wait", "node/node-2", "--for=condition=DiskPressure", "--timeout=20s")
	if now := nodeReadySince(t, c, "node-2"); !now.Equal(since) {
		t.Errorf("the node is ready since %v, was since %v", now, since)
	}
	eventually(t, "the disk is free again", func() bool {
		var stat unix.Statfs_t
		return unix.Statfs(disk, &stat) == nil && stat.Bavail*2 > stat.Blocks
	})
	if modest := podNow(t, c, "modest"); modest.Status.Phase != corev1.PodRunning || modest.Status.ContainerStatuses[0].RestartCount != 0 {
		t.Errorf("the other pod is %s: %s", modest.Status.Phase, modest.Status.Message)
	}
}
