package node

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"skiff/test/cluster"
)

// TestUserNamespacePod runs a pod in a user namespace. It must be able to access its image, all types of volumes, a
// subPath, the hosts file and the termination log.
func TestUserNamespacePod(t *testing.T) {
	dir := shortDir(t)
	if err := os.Chmod(dir, 0o755); err != nil { // skiff opens only what is its own
		t.Fatal(err)
	}
	c, err := cluster.SkiffNode(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Stop()
	defer func() {
		if t.Failed() {
			out, _ := kubectlCommand(c, "", "get", "pods,events", "-o", "yaml")
			t.Logf("%s", out)
		}
	}()
	kubectl(t, c, strings.ReplaceAll(`
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {word: hello}
---
apiVersion: v1
kind: Secret
metadata: {name: hidden}
stringData: {word: psst}
---
apiVersion: v1
kind: Pod
metadata: {name: own}
spec:
  hostUsers: false
  terminationGracePeriodSeconds: 0
  securityContext: {fsGroup: 2000}
  initContainers:
  - {name: i, image: IMAGE, command: [sh, -c, 'mkdir /scratch/part; echo below > /scratch/part/file'], volumeMounts: [{name: scratch, mountPath: /scratch}]}
  containers:
  - name: c
    image: IMAGE
    command: [sh, -c, 'echo end > /dev/termination-log && touch /ready && exec sleep 1000']
    readinessProbe: {exec: {command: [test, -e, /ready]}, periodSeconds: 1}
    volumeMounts:
    - {name: scratch, mountPath: /scratch}
    - {name: scratch, mountPath: /part, subPath: part}
    - {name: memory, mountPath: /memory}
    - {name: settings, mountPath: /settings}
    - {name: hidden, mountPath: /hidden}
    - {name: about, mountPath: /about}
  - name: d
    image: IMAGE
    command: [sleep, "1000"]
    securityContext: {runAsUser: 1000}
    volumeMounts: [{name: scratch, mountPath: /scratch}, {name: settings, mountPath: /settings}]
  volumes:
  - {name: scratch, emptyDir: {}}
  - {name: memory, emptyDir: {medium: Memory}}
  - {name: settings, configMap: {name: settings}}
  - {name: hidden, secret: {secretName: hidden, defaultMode: 0400}}
  - {name: about, downwardAPI: {items: [{path: name, fieldRef: {fieldPath: metadata.name}}]}}
`, "IMAGE", busybox), "apply", "-f", "-")
	kubectl(t, c, "", "wait", "--for=condition=Ready", "pod/own", "--timeout=60s")
	in := func(container, command string) string {
		return strings.TrimSpace(kubectl(t, c, "", "exec", "own", "-c", container, "--", "sh", "-c", command))
	}
	for _, row := range []struct{ container, command, want string }{
		{"c", "id -u", "0"},
		{"c", "cat /settings/word", "hello"},
		{"c", "cat /hidden/word", "psst"},
		{"c", "cat /about/name", "own"},
		{"c", "cat /part/file", "below"},
		{"c", "echo mine > /memory/x && cat /memory/x", "mine"},
		{"c", "test -s /var/run/secrets/kubernetes.io/serviceaccount/token && echo there", "there"},
		{"c", "grep -c own /etc/hosts", "1"},
		{"c", "stat -c %u:%g /scratch/part/file", "0:2000"},
		{"d", "id -u", "1000"},
		{"d", "cat /settings/word", "hello"},
		{"d", "echo too > /scratch/other && cat /scratch/other", "too"},
	} {
		if got := in(row.container, row.command); got != row.want {
			t.Errorf("%s: %s: %q, want %q", row.container, row.command, got, row.want)
		}
	}
	first := in("c", "cat /proc/self/uid_map")
	var inside, outside, length int64
	if _, err := fmt.Sscan(first, &inside, &outside, &length); err != nil || inside != 0 || outside < 65536 || length != 65536 {
		t.Errorf("the users of the pod are %q, %v", first, err)
	}
	// On the host the files belong to root: the pod's mapped IDs do not appear on its disks.
	file := filepath.Join(c.Dir, "data/kubelet/pods", string(podNow(t, c, "own").UID), "volumes/kubernetes.io~empty-dir/scratch/part/file")
	if _, err := os.Stat(file); err != nil {
		t.Error(err)
	}
	kubectl(t, c, "", "delete", "pod", "own", "--timeout=60s")
}
