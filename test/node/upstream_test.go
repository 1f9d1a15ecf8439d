package node

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"skiff/internal/pki"
	"skiff/test/cluster"
	"skiff/test/namespaces"
)

// TestKubeletOfUpstreamsCluster runs `skiff kubelet` as a node of upstream's API server and controllers, with only the
// rights of a node: the Node authorizer and NodeRestriction are enabled.
func TestKubeletOfUpstreamsCluster(t *testing.T) {
	c, err := cluster.UpstreamAPI(t.TempDir(), "", "--enable-admission-plugins=NodeRestriction", "--allow-privileged=true")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Stop()
	if err := c.ControllerManager("--allocate-node-cidrs=true", "--cluster-cidr=10.42.0.0/16"); err != nil {
		t.Fatal(err)
	}
	log := startKubelet(t, c, "n1")
	eventually(t, "the node is ready", func() bool {
		out, err := kubectlCommand(c, "", "get", "node", "n1", "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].status}`)
		return err == nil && string(out) == "True"
	})
	eventually(t, "the service account", func() bool {
		_, err := kubectlCommand(c, "", "get", "serviceaccount", "default")
		return err == nil
	})
	defer func() {
		if t.Failed() {
			out, _ := kubectlCommand(c, "", "get", "pods,events", "-o", "wide")
			text, _ := os.ReadFile(log)
			t.Logf("%s\n%s", out, text)
		}
	}()
	kubectl(t, c, `
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {word: hello}
---
apiVersion: v1
kind: Pod
metadata: {name: guest}
spec:
  nodeName: n1
  terminationGracePeriodSeconds: 1
  containers:
  - name: c
    image: registry.k8s.io/e2e-test-images/busybox:1.37.0-2
    command: [sh, -c, 'echo $WORD > /dev/termination-log; test -s /var/run/secrets/kubernetes.io/serviceaccount/token && sleep 1000']
    env: [{name: WORD, valueFrom: {configMapKeyRef: {name: settings, key: word}}}]
    resources: {requests: {cpu: 10m}}
`, "apply", "-f", "-")
	kubectl(t, c, "", "wait", "--for=condition=Ready", "pod/guest", "--timeout=60s")
	if ip := kubectl(t, c, "", "get", "pod", "guest", "-o", "jsonpath={.status.podIP}"); !strings.HasPrefix(ip, "10.42.") {
		t.Errorf("the pod's address is %q", ip)
	}
	kubectl(t, c, "", "delete", "pod", "guest", "--timeout=30s")
	if text, err := os.ReadFile(log); err != nil || strings.Contains(strings.ToLower(string(text)), "forbidden") {
		t.Errorf("the node did what it may not, or left no log: %v\n%s", err, text)
	}
}

// startKubelet starts `skiff kubelet` as a node of the cluster until the test ends, and returns its log.
func startKubelet(t *testing.T, c *cluster.Cluster, name string) string {
	t.Helper()
	ca, err := pki.Dir(filepath.Join(c.Dir, "pki")).CA("ca", "kubernetes", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	pair, err := ca.Issue(pki.NodeClient(name), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	dir := nodeDir(t)
	credentials := writeCredentials(t, c, dir, &clientcmdapi.AuthInfo{ClientCertificateData: pair.Cert, ClientKeyData: pair.Key})
	return runKubelet(t, dir, name, "--kubeconfig="+credentials)
}

// nodeDir returns a data directory with busybox to import.
func nodeDir(t *testing.T) string {
	t.Helper()
	images, err := cluster.Images("busybox")
	if err != nil {
		t.Fatal(err)
	}
	dir := shortDir(t)
	if err := os.Mkdir(filepath.Join(dir, "images"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(images+"/busybox.tar", filepath.Join(dir, "images/busybox.tar")); err != nil {
		t.Fatal(err)
	}
	return dir
}

// writeCredentials writes a kubeconfig for a user of an upstream cluster, and returns its path.
func writeCredentials(t *testing.T, c *cluster.Cluster, dir string, user *clientcmdapi.AuthInfo) string {
	t.Helper()
	kubeconfig := clientcmdapi.NewConfig()
	kubeconfig.Clusters["c"] = &clientcmdapi.Cluster{Server: c.URL, CertificateAuthority: filepath.Join(c.Dir, "pki/ca.crt")}
	kubeconfig.AuthInfos["u"] = user
	kubeconfig.Contexts["x"], kubeconfig.CurrentContext = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}, "x"
	path := filepath.Join(dir, "credentials")
	if err := clientcmd.WriteToFile(*kubeconfig, path); err != nil {
		t.Fatal(err)
	}
	return path
}

// runKubelet runs `skiff kubelet` until the test ends, and returns its log.
func runKubelet(t *testing.T, dir, name string, flags ...string) string {
	t.Helper()
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(t.TempDir(), "kubelet.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(filepath.Join(root, "bin/skiff"), append([]string{"kubelet", "--root-dir=" + filepath.Join(dir, "kubelet"), "--hostname-override=" + name,
		"--node-ip=" + namespaces.NodeAddress}, flags...)...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	})
	return log.Name()
}
