package node

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"skiff/internal/network/nft"
	"skiff/internal/network/policy"
	"skiff/test/cluster"
)

const policyServer = `
apiVersion: v1
kind: Pod
metadata: {name: server, labels: {app: server}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: registry.k8s.io/e2e-test-images/busybox:1.37.0-2
    command:
    - sh
    - -c
    - |
      mkdir -p /tmp/www/cgi-bin; hostname >/tmp/www/index.html
      printf '#!/bin/sh\necho; while echo tick; do sleep 0.1; done\n' >/tmp/www/cgi-bin/ticks; chmod +x /tmp/www/cgi-bin/ticks
      exec httpd -f -p 8080 -h /tmp/www
    ports: [{name: http, containerPort: 8080}]
    readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: server}
spec:
  selector: {app: server}
  ports: [{port: 80, targetPort: http}]
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: server}
spec:
  podSelector: {matchLabels: {app: server}}
  ingress:
  - from: [{podSelector: {matchLabels: {friend: "true"}}}]
    ports: [{port: http}]
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: blocked}
spec:
  podSelector: {matchLabels: {app: blocked}}
  policyTypes: [Egress]
`

// policyClients are a pod that may reach the server, one that may not, and one whose egress is denied, which tries from its first moment on.
const policyClients = `
apiVersion: v1
kind: Pod
metadata: {name: friend, labels: {friend: "true"}}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: c, image: registry.k8s.io/e2e-test-images/busybox:1.37.0-2, command: [sleep, "100000"]}]
---
apiVersion: v1
kind: Pod
metadata: {name: other}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: c, image: registry.k8s.io/e2e-test-images/busybox:1.37.0-2, command: [sleep, "100000"]}]
---
apiVersion: v1
kind: Pod
metadata: {name: blocked, labels: {app: blocked, friend: "true"}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: registry.k8s.io/e2e-test-images/busybox:1.37.0-2
    command: [sh, -c, 'for i in 1 2 3; do wget -q -T 1 -O - http://ADDRESS:8080/index.html && echo reached; done; echo finished; sleep 100000']
`

// A policy is enforced for direct connections and for those through a Service, before the first packet of a pod, and for connections that exist when it
// begins to deny them. Probes pass.
func TestNetworkPolicy(t *testing.T) {
	c, err := cluster.SkiffNode(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Stop()
	kubectl(t, c, policyServer, "apply", "-f", "-")
	// The kubelet's probe is not a pod that the policy allows.
	kubectl(t, c, "", "wait", "--for=condition=Ready", "pod/server", "--timeout=120s")
	address := kubectl(t, c, "", "get", "pod", "server", "-o", "jsonpath={.status.podIP}")
	kubectl(t, c, strings.ReplaceAll(policyClients, "ADDRESS", address), "apply", "-f", "-")
	kubectl(t, c, "", "wait", "--for=condition=Ready", "pod/friend", "pod/other", "pod/blocked", "--timeout=120s")
	service := kubectl(t, c, "", "get", "service", "server", "-o", "jsonpath={.spec.clusterIP}")
	reaches := func(pod, address string) bool {
		_, err := kubectlCommand(c, "", "exec", pod, "--", "wget", "-q", "-T", "1", "-O", "-", "http://"+address+"/index.html")
		return err == nil
	}
	for _, at := range []string{address + ":8080", service} {
		eventually(t, "friend reaches "+at, func() bool { return reaches("friend", at) })
		if reaches("other", at) {
			t.Errorf("other reaches %s", at)
		}
	}
	eventually(t, "blocked has tried", func() bool { return strings.Contains(kubectl(t, c, "", "logs", "blocked"), "finished") })
	if log := kubectl(t, c, "", "logs", "blocked"); strings.Contains(log, "reached") {
		t.Errorf("the first packets of a pod are not subject to its policy:\n%s", log)
	}
	ticks, stop := follow(t, c, "exec", "friend", "--", "wget", "-q", "-O", "-", "http://"+service+"/cgi-bin/ticks")
	defer stop()
	if line, err := ticks.ReadString('\n'); line != "tick\n" {
		t.Fatalf("the connection carries %q, %v", line, err)
	}
	// The server's end is reset, which ends the program that writes to it. The client's end receives nothing any more.
	writes := func() bool {
		return kubectl(t, c, "", "exec", "server", "--", "sh", "-c", "pidof ticks || echo none") != "none\n"
	}
	if !writes() {
		t.Fatal("nothing writes to the connection")
	}
	kubectl(t, c, "", "label", "pod", "friend", "friend-")
	eventually(t, "the established connection is cut", func() bool { return !writes() })
	eventually(t, "friend does not reach the server without its label", func() bool { return !reaches("friend", service) })
	kubectl(t, c, "", "delete", "networkpolicy", "server")
	eventually(t, "other reaches the server without policy", func() bool { return reaches("other", service) })
	if lines, err := nft.Read(policy.DefaultTable); err != nil || len(lines) == 0 {
		t.Errorf("no rules: %v", err)
	}
}

// Without the component pods do not wait for it, and nothing is enforced.
func TestWithoutPolicy(t *testing.T) {
	c, err := cluster.SkiffNode(t.TempDir(), "--without=policy")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Stop()
	kubectl(t, c, policyServer, "apply", "-f", "-")
	kubectl(t, c, "", "wait", "--for=condition=Ready", "pod/server", "--timeout=120s")
	if lines, err := nft.Read(policy.DefaultTable); err != nil || len(lines) > 0 {
		t.Errorf("--without=policy has rules: %q, %v", lines, err)
	}
}

const staticPod = `
apiVersion: v1
kind: Pod
metadata: {name: static}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: registry.k8s.io/e2e-test-images/busybox:1.37.0-2
    command: [sh, -c, 'ip address show dev eth0 >/out/address; exec sleep 100000']
    volumeMounts: [{name: out, mountPath: /out}]
  volumes: [{name: out, hostPath: {path: DIRECTORY}}]
`

// A static pod gets its network while the API server is away.
func TestStaticPodWithoutAPIServer(t *testing.T) {
	c, err := cluster.SkiffNode(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Stop()
	if err := c.AddNode(); err != nil {
		t.Fatal(err)
	}
	// With a pod, the agent has read the policies, and its pod network is set up.
	kubectl(t, c, "", "run", "first", "--image=registry.k8s.io/e2e-test-images/busybox:1.37.0-2", `--overrides={"spec":{"nodeName":"node-2"}}`, "--", "sleep", "100000")
	kubectl(t, c, "", "wait", "--for=condition=Ready", "pod/first", "--timeout=120s")
	c.Server[0].Stop()
	node := filepath.Join(c.Dir, "node-2")
	manifest := strings.ReplaceAll(staticPod, "DIRECTORY", node)
	if err := os.MkdirAll(filepath.Join(node, "manifests"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(node, "manifests/static.yaml"), []byte(manifest), 0o600); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the static pod has an address", func() bool {
		text, err := os.ReadFile(filepath.Join(node, "address"))
		return err == nil && strings.Contains(string(text), "inet 10.42.")
	})
}
