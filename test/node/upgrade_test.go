package node

import (
	"encoding/json"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"skiff/test/cluster"
	"skiff/test/namespaces"
)

// TestUpgradeKeepsPods upgrades a server with its node, and then an agent. The containers of both nodes keep running, as they were.
func TestUpgradeKeepsPods(t *testing.T) {
	next, err := cluster.BuildAhead(t.TempDir(), 1)
	if err != nil {
		t.Fatal(err)
	}
	release, err := next.Release()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	c, err := cluster.SkiffNode(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { c.Stop() }()
	if err := c.AddNode(); err != nil {
		t.Fatal(err)
	}
	kubectl(t, c, daemonSet, "apply", "-f", "-")
	kubectl(t, c, "", "rollout", "status", "daemonset/everywhere", "--timeout=60s")
	before := containers(t, c)
	if strings.Count(before, "\n") != 2 {
		t.Fatalf("pods:\n%s", before)
	}
	kubelets := func() string {
		return kubectl(t, c, "", "get", "nodes", "-o", "jsonpath={.items[*].status.nodeInfo.kubeletVersion}")
	}
	suffix := "+skiff." + strings.TrimPrefix(release.Skiff, "v")

	if code := c.Server[0].Terminate(); code != 0 {
		t.Errorf("the server ends with %d:\n%s", code, c.Server[0].Log(20))
	}
	again, err := next.Skiff(dir, "--no-node=false", "--without=", "--bind-address=0.0.0.0", "--advertise-address="+namespaces.NodeAddress, "--node-ip="+namespaces.NodeAddress)
	if err != nil {
		t.Fatal(err)
	}
	c.Server = again.Server
	eventually(t, "the node of the server has the new version", func() bool { return strings.Count(kubelets(), suffix) == 1 })

	agent := c.Others[len(c.Others)-1]
	if code := agent.Terminate(); code != 0 {
		t.Errorf("the agent ends with %d:\n%s", code, agent.Log(20))
	}
	c.Agent = next
	if _, _, err := c.StartAgent(2, ""); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the agent has the new version", func() bool { return strings.Count(kubelets(), suffix) == 2 })
	kubectl(t, c, "", "wait", "--for=condition=Ready", "nodes", "--all", "--timeout=60s")
	if after := containers(t, c); after != before {
		t.Errorf("containers\n%swere\n%s", after, before)
	}
	// The new versions run new pods.
	kubectl(t, c, strings.ReplaceAll(oncePod, "NAME", "after-upgrade"), "apply", "-f", "-")
	kubectl(t, c, "", "wait", "--for=condition=Ready", "pod/after-upgrade", "--timeout=120s")
}

// containers describes the containers of all pods of the DaemonSet: what must not change while they keep running.
func containers(t *testing.T, c *cluster.Cluster) string {
	t.Helper()
	var list corev1.PodList
	if err := json.Unmarshal([]byte(kubectl(t, c, "", "get", "pods", "-l", "app=everywhere", "--sort-by=.spec.nodeName", "-o", "json")), &list); err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for _, pod := range list.Items {
		text.WriteString(pod.Spec.NodeName + " " + pod.Name + " " + pod.Status.PodIP + ": " + identity(pod) + "\n")
	}
	return text.String()
}
