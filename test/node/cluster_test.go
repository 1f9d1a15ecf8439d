package node

import (
	"strings"
	"testing"

	"skiff/test/cluster"
)

// kubectl runs kubectl as the cluster's administrator, and fails the test if it fails.
func kubectl(t *testing.T, c *cluster.Cluster, input string, args ...string) string {
	t.Helper()
	out, err := kubectlCommand(c, input, args...)
	if err != nil {
		t.Fatalf("kubectl %s: %v\n%s\nthe server's log ends:\n%s", strings.Join(args, " "), err, out, c.Server[0].Log(20))
	}
	return string(out)
}

// kubectlCommand runs kubectl as the cluster's administrator and returns its output.
func kubectlCommand(c *cluster.Cluster, input string, args ...string) ([]byte, error) {
	return cluster.Kubectl(c.Kubeconfig, input, args...)
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

const imageVolume = `
apiVersion: v1
kind: Pod
metadata: {name: looks}
spec:
  restartPolicy: Never
  containers:
  - name: c
    image: registry.k8s.io/e2e-test-images/busybox:1.37.0-2
    command: [sh, -c, '[ -x /volume/pause ] && ! touch /volume/x']
    volumeMounts: [{name: v, mountPath: /volume}]
  volumes:
  - name: v
    image: {reference: 'registry.k8s.io/e2e-test-images/nginx:1.27.0-2', pullPolicy: Always}
---
apiVersion: v1
kind: Pod
metadata: {name: absent}
spec:
  restartPolicy: Never
  containers:
  - name: c
    image: registry.k8s.io/e2e-test-images/absent:1
`

func TestImagesComeFromTheRegistry(t *testing.T) {
	c, err := cluster.SkiffNode(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Stop()
	eventually(t, "the default service account", func() bool {
		return strings.Contains(kubectl(t, c, "", "get", "serviceaccounts"), "default")
	})
	kubectl(t, c, imageVolume, "apply", "-f", "-")
	kubectl(t, c, "", "wait", "pod/looks", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=60s")
	// A failed pull is reported and retried with backoff.
	waiting := "jsonpath={.status.containerStatuses[0].state.waiting.reason}"
	kubectl(t, c, "", "wait", "pod/absent", "--for="+waiting+"=ImagePullBackOff", "--timeout=60s")
	message := kubectl(t, c, "", "get", "pod", "absent", "-o", "jsonpath={.status.containerStatuses[0].state.waiting.message}")
	if want := `Back-off pulling image "registry.k8s.io/e2e-test-images/absent:1": ErrImagePull: `; !strings.HasPrefix(message, want) || !strings.Contains(message, "not found") {
		t.Errorf("message %q, want %q and what went wrong", message, want)
	}
	events := kubectl(t, c, "", "get", "events", "--field-selector", "involvedObject.name=absent", "-o", `jsonpath={range .items[*]}{.type} {.reason} {.message}{"\n"}{end}`)
	for _, want := range []string{
		`Normal Pulling Pulling image "registry.k8s.io/e2e-test-images/absent:1"`,
		`Warning Failed Failed to pull image "registry.k8s.io/e2e-test-images/absent:1": `,
		`Warning Failed Error: ErrImagePull`,
		`Normal BackOff Back-off pulling image "registry.k8s.io/e2e-test-images/absent:1"`,
		`Warning Failed Error: ImagePullBackOff`,
	} {
		if !strings.Contains(events, want) {
			t.Errorf("no event %q among\n%s", want, events)
		}
	}
}
