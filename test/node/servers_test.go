package node

import (
	"strings"
	"testing"
	"time"

	"skiff/test/cluster"
)

// oncePod is a pod on a node that is ready when its container runs.
const oncePod = `
apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  nodeName: node-2
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: registry.k8s.io/e2e-test-images/busybox:1.37.0-2
    command: [sleep, '1000']
`

// An agent that was given one of three servers works when that server is dead, and starts again without it. The endpoints of the service kubernetes are
// the servers that run.
func TestAgentChangesServer(t *testing.T) {
	c, err := cluster.SkiffNode(t.TempDir(), "--cluster-init")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Stop()
	var others []*cluster.Cluster
	for _, number := range []int{11, 12} {
		server, err := c.AddServer(number)
		if err != nil {
			t.Fatal(err)
		}
		others = append(others, server)
	}
	if err := c.AddNode(); err != nil {
		t.Fatal(err)
	}
	agent := c.Others[len(c.Others)-1]
	waitEndpoints(t, others[0], "10.88.0.1", "10.88.0.11", "10.88.0.12")

	c.Server[0].Kill()
	kubectl(t, others[0], strings.ReplaceAll(oncePod, "NAME", "after-kill"), "apply", "-f", "-")
	kubectl(t, others[1], "", "wait", "--for=condition=Ready", "pod/after-kill", "--timeout=120s")
	waitEndpoints(t, others[0], "10.88.0.11", "10.88.0.12")

	if code := agent.Terminate(); code != 0 {
		t.Errorf("the agent ends with %d:\n%s", code, agent.Log(20))
	}
	if _, _, err := c.StartAgent(2, ""); err != nil {
		t.Fatal(err)
	}
	kubectl(t, others[1], strings.ReplaceAll(oncePod, "NAME", "after-restart"), "apply", "-f", "-")
	kubectl(t, others[1], "", "wait", "--for=condition=Ready", "pod/after-restart", "--timeout=120s")
}

// waitEndpoints waits until the service kubernetes has the endpoints.
func waitEndpoints(t *testing.T, c *cluster.Cluster, want ...string) {
	t.Helper()
	var got string
	for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		out, err := kubectlCommand(c, "", "get", "endpointslice", "kubernetes", "-o", "jsonpath={.endpoints[*].addresses[0]}")
		if got = string(out); err == nil && got == strings.Join(want, " ") {
			return
		}
	}
	t.Fatalf("endpoints of the service kubernetes are %s, want %v", got, want)
}

// A server on a host without a node has no route to pods and reaches them through the kubelets of their nodes, of one inside a
// server and of an agent: conversion and admission webhooks, and the proxies to pods and Services.
func TestServerWithoutNodeReachesPods(t *testing.T) {
	c, err := cluster.SkiffNode(t.TempDir(), "--cluster-init")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Stop()
	server, err := c.AddServer(11)
	if err != nil {
		t.Fatal(err)
	}
	// Webhooks first: only this node has the operator's image.
	o := &operatorTest{T: t, c: c}
	o.install()
	o.c = server
	o.versions()
	if err := c.AddNode(); err != nil {
		t.Fatal(err)
	}
	kubectl(t, server, webPod("web-1", "node-1")+webPod("web-2", "node-2"), "apply", "-f", "-")
	kubectl(t, server, "", "wait", "--for=condition=Ready", "pod/web-1", "pod/web-2", "--timeout=120s")
	for path, want := range map[string]string{"pods/web-1:8080": "web-1", "pods/web-2:8080": "web-2", "services/web-1:80": "web-1", "services/web-2:80": "web-2"} {
		var out []byte
		eventually(t, path+" answers", func() bool {
			// The endpoints of a pod follow a moment after it is ready.
			out, err = kubectlCommand(server, "", "get", "--raw", "/api/v1/namespaces/default/"+path+"/proxy/")
			return err == nil || !strings.Contains(string(out), "no endpoints available")
		})
		if err != nil || strings.TrimSpace(string(out)) != want {
			t.Errorf("%s: %v, %q", path, err, out)
		}
	}
}
