package node

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"testing"
	"time"

	"skiff/test/cluster"
)

// releasedVersion is the version of the release that the test makes.
const releasedVersion = "v0.0.1-test"

// testRelease makes a release of the programs in bin/ and returns its directory.
func testRelease(t *testing.T, root string) string {
	t.Helper()
	dir, out := t.TempDir(), t.TempDir()
	run := func(name string, args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Dir = root
		output, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s %q: %v\n%s", name, args, err, output)
		}
		return strings.TrimSpace(string(output))
	}
	for _, name := range []string{"skiff-cni", "containerd", "containerd-shim-runc-v2", "runc", "pause", "pause.tar", "libraries.txt", "web"} {
		if err := os.Symlink(filepath.Join(root, "bin", name), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	// skiff itself is linked statically, as in a release, and still with cgo: without it every package would be compiled again.
	run("go", "build", "-buildvcs=false", "-ldflags", `-s -w -linkmode=external -extldflags "-static -Wl,--no-warnings" -X skiff/internal/version.skiff=`+releasedVersion,
		"-o", filepath.Join(dir, "skiff"), "./cmd/skiff")
	run("go", "run", "./tools/release", "-version", releasedVersion, "-commit", "none", "-date", "2026-01-02T15:04:05Z", "-maintainer", "Some One <one@example.org>",
		"-modules", run("go", "env", "GOMODCACHE"), "-goroot", run("go", "env", "GOROOT"), "-out", out, goruntime.GOARCH+"="+dir)
	return out
}

// checkClusterInContainer waits until the node of a cluster in a privileged container is ready.
func checkClusterInContainer(t *testing.T, c *cluster.Cluster, kubeconfig string) {
	t.Helper()
	kubectl(t, c, "", "wait", "pod/cluster", "--for=jsonpath={.status.phase}=Running", "--timeout=120s")
	server := "https://" + kubectl(t, c, "", "get", "pod", "cluster", "-o", "jsonpath={.status.podIP}") + ":6443"
	var last []byte
	// It starts a container runtime of its own and imports its images.
	for deadline := time.Now().Add(3 * time.Minute); time.Now().Before(deadline); time.Sleep(200 * time.Millisecond) {
		var err error
		last, err = cluster.Kubectl(kubeconfig, "", "--server", server, "get", "nodes", "-o", `jsonpath={.items[*].status.conditions[?(@.type=="Ready")].status}`)
		if err == nil && string(last) == "True" {
			return
		}
	}
	log, _ := kubectlCommand(c, "", "logs", "cluster", "--tail=40")
	t.Fatalf("the node in the container is not ready: %s\n%s", last, log)
}

// TestReleasedImage imports the image of a release and runs it, and the images of the demo. It is a program, and in a privileged container a cluster.
func TestReleasedImage(t *testing.T) {
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	release := testRelease(t, root)
	c, err := cluster.SkiffNode(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Stop()
	name := fmt.Sprintf("skiff-%s-linux-%s", releasedVersion, goruntime.GOARCH)
	for _, archive := range []string{name + "-image.tar", name + "-airgap-images.tar"} {
		cmd := exec.Command(filepath.Join(root, "bin/skiff"), "image", "import", "--data-dir", filepath.Join(c.Dir, "data"), filepath.Join(release, archive))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("import %s: %v\n%s", archive, err, out)
		}
	}
	shared := t.TempDir()
	eventually(t, "the default service account", func() bool {
		return strings.Contains(kubectl(t, c, "", "get", "serviceaccounts"), "default")
	})
	kubectl(t, c, `
apiVersion: v1
kind: Pod
metadata: {name: skiff}
spec:
  restartPolicy: Never
  containers:
  - name: c
    image: localhost/skiff/skiff:`+releasedVersion+`
    imagePullPolicy: Never
    args: [--version]
---
apiVersion: v1
kind: Pod
metadata: {name: demo}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: localhost/skiff/demo:1
    imagePullPolicy: Never
---
apiVersion: v1
kind: Pod
metadata: {name: cluster}
spec:
  terminationGracePeriodSeconds: 10
  containers:
  - name: c
    image: localhost/skiff/skiff:`+releasedVersion+`
    imagePullPolicy: Never
    args: [server, --cluster-cidr=10.142.0.0/16, --service-cidr=10.143.0.0/16, --write-kubeconfig=/out/kubeconfig]
    securityContext: {privileged: true}
    volumeMounts: [{name: data, mountPath: /var/lib/skiff}, {name: out, mountPath: /out}]
  volumes:
  - {name: data, emptyDir: {}}
  - {name: out, hostPath: {path: `+shared+`}}
`, "apply", "-f", "-")
	kubectl(t, c, "", "wait", "pod/skiff", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=120s")
	if log := kubectl(t, c, "", "logs", "skiff"); !strings.Contains(log, releasedVersion+" (Kubernetes v1.") || !strings.Contains(log, "linux/"+goruntime.GOARCH) {
		t.Errorf("the image's skiff says %q", log)
	}
	kubectl(t, c, "", "wait", "pod/demo", "--for=jsonpath={.status.phase}=Running", "--timeout=120s")
	checkClusterInContainer(t, c, filepath.Join(shared, "kubeconfig"))
}
