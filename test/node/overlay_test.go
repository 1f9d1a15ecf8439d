package node

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"skiff/internal/network/cni"
	"skiff/test/cluster"
	"skiff/test/netns"
)

// webPod is a pod on a node that logs the addresses of its clients.
func webPod(name, node string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s, labels: {app: %s}}
spec:
  nodeName: %s
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: registry.k8s.io/e2e-test-images/busybox:1.37.0-2
    command: [sh, -c, 'mkdir /tmp/www; hostname >/tmp/www/index.html; exec httpd -f -vv -p 8080 -h /tmp/www']
    readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: %s}
spec:
  selector: {app: %s}
  ports: [{port: 80, targetPort: 8080}]
---
`, name, name, node, name, name)
}

// Pods of two nodes reach each other by address and by name, and see each other's own addresses.
func TestPodsOfTwoNodes(t *testing.T) {
	for _, backend := range []string{"vxlan", "host-gw"} {
		t.Run(backend, func(t *testing.T) { testPodsOfTwoNodes(t, backend) })
	}
}

func testPodsOfTwoNodes(t *testing.T, backend string) {
	c, err := cluster.SkiffNode(t.TempDir(), "--network-backend="+backend)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Stop()
	if err := c.AddNode(); err != nil {
		t.Fatal(err)
	}
	nodes := strings.Fields(kubectl(t, c, "", "get", "nodes", "-o", "jsonpath={.items[*].metadata.name}"))
	if len(nodes) != 2 {
		t.Fatalf("nodes %v, want two", nodes)
	}
	kubectl(t, c, webPod("a", nodes[0])+webPod("b", nodes[1]), "apply", "-f", "-")
	kubectl(t, c, "", "wait", "--for=condition=Ready", "pod/a", "pod/b", "--timeout=60s")
	ip := func(pod string) string { return kubectl(t, c, "", "get", "pod", pod, "-o", "jsonpath={.status.podIP}") }
	for from, to := range map[string]string{"a": "b", "b": "a"} {
		for _, address := range []string{ip(to) + ":8080", to + ".default.svc.cluster.local"} {
			eventually(t, from+" reaches "+address, func() bool {
				out, err := kubectlCommand(c, "", "exec", from, "--", "wget", "-q", "-T", "5", "-O", "-", "http://"+address+"/index.html")
				return err == nil && strings.TrimSpace(string(out)) == to
			})
		}
		eventually(t, to+" sees the address of "+from, func() bool {
			return strings.Contains(kubectl(t, c, "", "logs", to), ip(from)+"]:")
		})
	}
	for _, node := range nodes {
		eventually(t, node+" reports its network", func() bool {
			return kubectl(t, c, "", "get", "node", node, "-o", `jsonpath={.status.conditions[?(@.type=="NetworkUnavailable")].status}`) == "False"
		})
	}
	checkCleanAgent(t, c)
}

// checkCleanAgent checks that `skiff clean` leaves nothing of the network on the second host.
func checkCleanAgent(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	isOwn := func(trace string) bool {
		return slices.ContainsFunc([]string{"skiff", "veth", "10.42.", "10.96."}, func(part string) bool { return strings.Contains(trace, part) })
	}
	host := c.Host(2)
	left := func() (found []string) {
		err := netns.At(host.Network()).Do(func() (err error) { found, err = netns.Traces(); return err })
		if err != nil {
			t.Fatal(err)
		}
		return slices.DeleteFunc(found, func(trace string) bool { return !isOwn(trace) })
	}
	if len(left()) == 0 {
		t.Error("a running node has no traces")
	}
	c.Others[len(c.Others)-1].Stop()
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(c.Dir, host.Name)
	cmd := exec.Command(filepath.Join(root, "bin/skiff"), "clean", "--data-dir="+dir, "--kubelet-config="+filepath.Join(dir, "kubelet.yaml"))
	out := &strings.Builder{}
	cmd.Stdout, cmd.Stderr = out, out
	if err := host.Start(cmd); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if found := left(); len(found) > 0 {
		t.Errorf("left on the host: %q", found)
	}
}

// With --network-backend=none the network plugin of somebody else is used, also if it is configured only when the node runs.
func TestAnotherNetworkPlugin(t *testing.T) {
	dir := t.TempDir()
	data := filepath.Join(dir, "data")
	// Other tests leave their network, as skiff does when it stops.
	ownLinks := []string{"skiff0", "skiff-vxlan"}
	for _, name := range ownLinks {
		if link, err := netlink.LinkByName(name); err == nil {
			if err := netlink.LinkDel(link); err != nil {
				t.Fatal(err)
			}
		}
	}
	failed := make(chan error, 1)
	go func() { failed <- configureOtherPlugin(data) }()
	c, err := cluster.SkiffNode(dir, "--network-backend=none")
	if err := <-failed; err != nil {
		t.Fatal(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer c.Stop()
	node := strings.TrimSpace(kubectl(t, c, "", "get", "nodes", "-o", "jsonpath={.items[*].metadata.name}"))
	kubectl(t, c, webPod("a", node), "apply", "-f", "-")
	kubectl(t, c, "", "wait", "--for=condition=Ready", "pod/a", "--timeout=60s")
	if ip := kubectl(t, c, "", "get", "pod", "a", "-o", "jsonpath={.status.podIP}"); !strings.HasPrefix(ip, "10.89.0.") {
		t.Errorf("the pod has the address %s, want one of the other plugin", ip)
	}
	if others, err := cni.Others(filepath.Join(data, "cni/net.d")); err != nil || len(others) != 1 {
		t.Errorf("configurations %v, %v", others, err)
	}
	if _, configured, err := cni.Read(filepath.Join(data, "cni/net.d")); err != nil || configured {
		t.Errorf("skiff has configured its own plugin: %v, %v", configured, err)
	}
	for _, name := range ownLinks {
		if _, err := net.InterfaceByName(name); err == nil {
			t.Errorf("link %s exists", name)
		}
	}
}

// configureOtherPlugin waits until containerd runs and configures a plugin: skiff's own, under the name and with the links of another.
func configureOtherPlugin(data string) error {
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		if _, err := os.Stat(filepath.Join(data, "containerd")); err == nil {
			break
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s/containerd does not appear", data)
		}
	}
	root, err := cluster.Root()
	if err != nil {
		return err
	}
	for _, sub := range []string{"cni/bin", "cni/net.d"} {
		if err := os.MkdirAll(filepath.Join(data, sub), 0o755); err != nil {
			return err
		}
	}
	if err := os.Symlink(filepath.Join(root, "bin/skiff-cni"), filepath.Join(data, "cni/bin/skiff-cni")); err != nil {
		return err
	}
	text, err := json.Marshal(map[string]any{
		"cniVersion": cni.Version, "name": "other",
		"plugins": []any{map[string]any{
			"type": "skiff-cni", "bridge": "other0", "table": "other", "dataDir": filepath.Join(data, "other"), "podCIDRs": []string{"10.89.0.0/24"},
			"capabilities": map[string]bool{"portMappings": true},
		}},
	})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(data, "cni/net.d/20-other.conflist"), text, 0o600)
}

// TestBandwidth checks that annotations of a pod limit what it receives and what it sends.
func TestBandwidth(t *testing.T) {
	c, err := cluster.SkiffNode(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Stop()
	// 16 Mbit/s are 2 MB/s, and what is sent at once is at most a tenth of that.
	const (
		annotations = "{name: limited, annotations: {kubernetes.io/ingress-bandwidth: 16M, kubernetes.io/egress-bandwidth: 16M}}"
		size        = 4_000_000
		atLeast     = time.Second
	)
	command := fmt.Sprintf("mkdir /tmp/www; head -c %d /dev/zero >/tmp/www/file; exec httpd -f -p 8080 -h /tmp/www", size)
	manifest := shellPod("limited", 1, command) + shellPod("free", 1, command)
	kubectl(t, c, strings.Replace(manifest, "{name: limited, labels: {app: limited}}", annotations, 1), "apply", "-f", "-")
	kubectl(t, c, "", "wait", "--for=condition=Ready", "pod/limited", "pod/free", "--timeout=60s")
	for from, to := range map[string]string{"limited": "free", "free": "limited"} {
		url := "http://" + kubectl(t, c, "", "get", "pod", to, "-o", "jsonpath={.status.podIP}") + ":8080/file"
		eventually(t, from+" fetches a file from "+to, func() bool {
			began := time.Now()
			out, err := kubectlCommand(c, "", "exec", from, "--", "sh", "-c", "wget -q -O - "+url+" | wc -c")
			if err != nil || strings.TrimSpace(string(out)) != fmt.Sprint(size) {
				return false
			}
			if took := time.Since(began); took < atLeast {
				t.Errorf("%d bytes from %s to %s took %s, want at least %s", size, to, from, took, atLeast)
			}
			return true
		})
	}
}
