package node

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"skiff/test/cluster"
)

const writer = `
apiVersion: v1
kind: Pod
metadata: {name: writer}
spec:
  terminationGracePeriodSeconds: 1
  tolerations: [{operator: Exists}]
  containers:
  - {name: c, image: "registry.k8s.io/e2e-test-images/busybox:1.37.0-2", command: [sh, -c, "echo written; exec sleep 1000"]}
`

// TestConfiguredNode: what a node is configured with shows on a running node.
func TestConfiguredNode(t *testing.T) {
	dir := t.TempDir()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := listener.Addr().(*net.TCPAddr).Port
	listener.Close()
	config, logs, root := filepath.Join(dir, "kubelet.yaml"), filepath.Join(dir, "logs/pods"), filepath.Join(dir, "root")
	text := fmt.Sprintf("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nhealthzPort: %d\npodLogsDir: %s\nkubeReserved: {memory: 1Gi}\nenforceNodeAllocatable: []\n", port, logs)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := cluster.SkiffNode(dir, "--kubelet-config="+config, "--root-dir="+root, "--node-labels=disk=fast", "--register-with-taints=special=yes:NoSchedule")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Stop()
	node := kubectl(t, c, "", "get", "nodes", "-o", `jsonpath={.items[0].metadata.labels.disk} {.items[0].spec.taints[?(@.key=="special")].value}`)
	if node != "fast yes" {
		t.Errorf("the label and the taint of the node are %q", node)
	}
	response, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/healthz", port))
	if err != nil {
		t.Error(err)
	} else if response.Body.Close(); response.StatusCode != http.StatusOK {
		t.Errorf("healthz: %s", response.Status)
	}
	kubectl(t, c, writer, "apply", "-f", "-")
	kubectl(t, c, "", "wait", "--for=condition=Ready", "pod/writer", "--timeout=60s")
	pod := podNow(t, c, "writer")
	link, err := filepath.Glob(filepath.Join(dir, "logs/containers/writer_default_c-*.log"))
	if err != nil || len(link) != 1 {
		t.Fatalf("links to the log: %v, %v", link, err)
	}
	eventually(t, "the log is where it is configured", func() bool {
		log, _ := os.ReadFile(link[0])
		return strings.HasSuffix(string(log), " stdout F written\n")
	})
	if target, err := os.Readlink(link[0]); err != nil || target != filepath.Join(logs, "default_writer_"+string(pod.UID), "c/0.log") {
		t.Errorf("the link leads to %s, %v", target, err)
	}
	entries, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"device-plugins", "plugins", "plugins_registry", "pods", "pod-resources"} {
		if !slices.ContainsFunc(entries, func(e os.DirEntry) bool { return e.Name() == name }) {
			t.Errorf("--root-dir has no %s: %v", name, entries)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "data/kubelet")); err == nil {
		t.Error("the data directory has another directory of the kubelet")
	}
	kubectl(t, c, "", "delete", "pod", "writer", "--timeout=60s")
}

// TestHealthyStart: a node that starts for the first time, and a pod that comes and goes, log nothing that an operator has to look at.
func TestHealthyStart(t *testing.T) {
	c, err := cluster.SkiffNode(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Stop()
	kubectl(t, c, writer, "apply", "-f", "-")
	kubectl(t, c, "", "wait", "--for=condition=Ready", "pod/writer", "--timeout=60s")
	kubectl(t, c, "", "delete", "pod", "writer", "--timeout=60s")
	for _, want := range []string{`step="container runtime" duration=`, "step=node duration=", "msg=ready duration="} {
		if log := c.Server[0].Log(1 << 20); strings.Count(log, want) != 1 {
			t.Errorf("not one line of the log has %q:\n%s", want, log)
		}
	}
	for line := range strings.Lines(c.Server[0].Log(1 << 20)) {
		if strings.Contains(line, "cgroup controllers are missing on this host") {
			continue // this is about the host
		}
		if strings.Contains(line, "level=WARN") || strings.Contains(line, "level=ERROR") || strings.Contains(line, "panic") {
			t.Errorf("logged: %s", line)
		}
	}
}
