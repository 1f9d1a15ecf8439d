package node

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"skiff/test/cluster"
)

// kubectl runs kubectl as the cluster's administrator, and fails the test if it fails.
func kubectl(t *testing.T, c *cluster.Cluster, input string, args ...string) string {
	t.Helper()
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(root, "bin/kubectl"), append([]string{"--kubeconfig", c.Kubeconfig}, args...)...)
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("kubectl %s: %v\n%s\nthe server's log ends:\n%s", strings.Join(args, " "), err, out, c.Server[0].Log(20))
	}
	return string(out)
}

const daemonSet = `
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: everywhere}
spec:
  selector: {matchLabels: {app: everywhere}}
  template:
    metadata: {labels: {app: everywhere}}
    spec:
      containers:
      - name: c
        image: registry.k8s.io/e2e-test-images/busybox:1.37.0-2
        command: [sh, -c, 'echo hello from $NODE; sleep 1000']
        env:
        - {name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
      terminationGracePeriodSeconds: 0
`

func TestTwoNodesRunContainers(t *testing.T) {
	c, err := cluster.SkiffNode(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Stop()
	if err := c.AddNode(); err != nil {
		t.Fatal(err)
	}
	kubectl(t, c, daemonSet, "apply", "-f", "-")
	kubectl(t, c, "", "rollout", "status", "daemonset/everywhere", "--timeout=60s")
	nodes := strings.Fields(kubectl(t, c, "", "get", "pods", "-l", "app=everywhere", "-o", "jsonpath={.items[*].spec.nodeName}"))
	if len(nodes) != 2 || nodes[0] == nodes[1] {
		t.Errorf("pods run on %v, want one on each node", nodes)
	}
	kubectl(t, c, "", "delete", "daemonset", "everywhere", "--wait")
	eventually(t, "the pods are gone", func() bool {
		return strings.TrimSpace(kubectl(t, c, "", "get", "pods", "-o", "name")) == ""
	})
}
