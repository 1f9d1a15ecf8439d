package node

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"skiff/test/cluster"
)

// claimOnNode has a claim of the default storage class and a pod of an ordinary user that writes to it.
const claimOnNode = `
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: NODE}
spec:
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: 1Mi}}
---
apiVersion: v1
kind: Pod
metadata: {name: NODE}
spec:
  nodeSelector: {kubernetes.io/hostname: NODE}
  restartPolicy: Never
  securityContext: {runAsUser: 1000, runAsGroup: 1000, runAsNonRoot: true}
  containers:
  - name: c
    image: registry.k8s.io/e2e-test-images/busybox:1.37.0-2
    command: [sh, -c, 'mkdir /data/deep && echo written > /data/deep/file']
    volumeMounts: [{name: data, mountPath: /data}]
  volumes:
  - name: data
    persistentVolumeClaim: {claimName: NODE}
`

// TestDefaultStorageClass: pods that are not root write to volumes of the default storage class on every node, and the data is removed with
// the claims.
func TestDefaultStorageClass(t *testing.T) {
	c, err := cluster.SkiffNode(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Stop()
	if err := c.AddNode(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the default service account and storage class", func() bool {
		return strings.Contains(kubectl(t, c, "", "get", "serviceaccounts"), "default") && strings.Contains(kubectl(t, c, "", "get", "storageclasses"), "local-path (default)")
	})
	nodes := strings.Fields(kubectl(t, c, "", "get", "nodes", "-o", "jsonpath={.items[*].metadata.name}"))
	if len(nodes) != 2 {
		t.Fatalf("nodes %v", nodes)
	}
	paths := map[string]string{}
	for _, node := range nodes {
		kubectl(t, c, strings.ReplaceAll(claimOnNode, "NODE", node), "apply", "-f", "-")
	}
	for _, node := range nodes {
		kubectl(t, c, "", "wait", "pod/"+node, "--for=jsonpath={.status.phase}=Succeeded", "--timeout=60s")
		volume := kubectl(t, c, "", "get", "pvc", node, "-o", "jsonpath={.spec.volumeName}")
		paths[node] = kubectl(t, c, "", "get", "pv", volume, "-o", "jsonpath={.spec.hostPath.path}")
		if data, err := os.ReadFile(filepath.Join(paths[node], "deep/file")); err != nil || string(data) != "written\n" {
			t.Errorf("%s has %q, %v", paths[node], data, err)
		}
		if info, err := os.Stat(filepath.Dir(paths[node])); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("the parent of %s: %v, %v", paths[node], info, err)
		}
	}
	if filepath.Dir(paths[nodes[0]]) == filepath.Dir(paths[nodes[1]]) {
		t.Errorf("both nodes have volumes in %s", filepath.Dir(paths[nodes[0]]))
	}
	for _, node := range nodes {
		kubectl(t, c, "", "delete", "pod/"+node, "pvc/"+node, "--timeout=60s")
	}
	eventually(t, "the volumes are deleted", func() bool {
		return strings.TrimSpace(kubectl(t, c, "", "get", "pv", "-o", "name")) == ""
	})
	for node, path := range paths {
		if _, err := os.Stat(path); !os.IsNotExist(err) {
			t.Errorf("the data on %s was not removed: %v", node, err)
		}
	}
}
