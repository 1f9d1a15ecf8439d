package node

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"skiff/test/cluster"
	"skiff/test/namespaces"
	"skiff/test/netns"
)

// TestJoinWithToken: a host with nothing but a token becomes a node, runs a pod, and its logs can be read.
func TestJoinWithToken(t *testing.T) {
	c, err := cluster.SkiffNode(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Stop()
	if err := c.AddNode(); err != nil {
		t.Fatal(err)
	}
	kubectl(t, c, `
apiVersion: v1
kind: Pod
metadata: {name: guest}
spec:
  nodeName: node-2
  terminationGracePeriodSeconds: 0
  automountServiceAccountToken: false
  containers:
  - name: c
    image: registry.k8s.io/e2e-test-images/busybox:1.37.0-2
    command: [sh, -c, 'echo hello; sleep 1000']
`, "apply", "-f", "-")
	kubectl(t, c, "", "wait", "--for=condition=Ready", "pod/guest", "--timeout=60s")
	// Both use the kubelet's server, which has a serving certificate signed by the cluster.
	if out := kubectl(t, c, "", "logs", "guest"); out != "hello\n" {
		t.Errorf("the log is %q", out)
	}
	if out := kubectl(t, c, "", "exec", "guest", "--", "hostname"); strings.TrimSpace(out) != "guest" {
		t.Errorf("exec says %q", out)
	}
	for path, want := range map[string]string{
		"configz": `"kind":"KubeletConfiguration"`, "runningpods/": `"name":"guest"`, "logs/": "<a href=",
	} {
		out := kubectl(t, c, "", "get", "--raw", "/api/v1/nodes/node-2/proxy/"+path)
		if !strings.Contains(strings.Join(strings.Fields(out), ""), strings.Join(strings.Fields(want), "")) {
			t.Errorf("no %s at /%s:\n%s", want, path, out)
		}
	}
	requests := strings.Split(strings.TrimSpace(kubectl(t, c, "", "get", "csr", "--sort-by=.spec.signerName", "-o",
		`jsonpath={range .items[*]}{.spec.signerName} {.spec.username} {.status.conditions[*].type}{"\n"}{end}`)), "\n")
	if len(requests) != 2 || !strings.HasPrefix(requests[0], "kubernetes.io/kube-apiserver-client-kubelet system:bootstrap:") ||
		requests[1] != "kubernetes.io/kubelet-serving system:node:node-2 Approved" {
		t.Errorf("certificates were asked for %d times:\n%s", len(requests), strings.Join(requests, "\n"))
	}
	directory := filepath.Join(c.Dir, "node-2/kubelet")
	for _, name := range []string{"pki/kubelet-client-current.pem", "pki/kubelet-server-current.pem", "kubeconfig"} {
		if info, err := os.Stat(filepath.Join(directory, name)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
	// The node has the rights of a node, not those of its token.
	// Its kubeconfig names the balancer on the loopback interface of the node, which cannot be reached from here.
	config, err := c.Config()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cluster.Kubectl(filepath.Join(directory, "kubeconfig"), "", "--server="+config.Host, "auth", "whoami", "-o", "jsonpath={.status.userInfo.username}")
	if string(out) != "system:node:node-2" {
		t.Errorf("the node is %q to the API server, %v", out, err)
	}
	// It needs no token to restart.
	c.Others[len(c.Others)-1].Stop()
	if _, _, err := c.StartAgent(2, ""); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the log of the pod that ran on", func() bool {
		out, err := kubectlCommand(c, "", "logs", "guest")
		return err == nil && string(out) == "hello\n"
	})
	if out := kubectl(t, c, "", "get", "csr", "-o", "name"); strings.Count(out, "\n") != 2 {
		t.Errorf("certificates were asked for again:\n%s", out)
	}
	// The host gets another address, as from DHCP. The node has it too, and the pod runs on.
	before := identity(podNow(t, c, "guest"))
	if err := changeAddress(c.Host(2), "10.88.0.77"); err != nil {
		t.Fatal(err)
	}
	kubectl(t, c, "", "wait", "node/node-2", "--for=jsonpath={.status.addresses[0].address}=10.88.0.77", "--timeout=90s")
	eventually(t, "the log of the pod, over the new address", func() bool {
		out, err := kubectlCommand(c, "", "logs", "guest")
		return err == nil && string(out) == "hello\n"
	})
	if after := identity(podNow(t, c, "guest")); after != before {
		t.Errorf("the pod has %s, and had %s", after, before)
	}
	kubectl(t, c, "", "delete", "pod", "guest", "--wait")
}

// changeAddress gives a host another address instead of the one it has.
func changeAddress(host *namespaces.Host, address string) error {
	return netns.At(host.Network()).Do(func() error {
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		addresses := map[string]*netlink.Addr{}
		for _, text := range []string{host.Address, address} {
			if addresses[text], err = netlink.ParseAddr(text + "/16"); err != nil {
				return err
			}
		}
		everywhere := &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}
		return errors.Join(netlink.AddrDel(link, addresses[host.Address]), netlink.AddrAdd(link, addresses[address]),
			netlink.RouteReplace(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: everywhere, Scope: netlink.SCOPE_LINK}))
	})
}

// TestKubeletBootstrap runs `skiff kubelet` with a bootstrap token as a node of upstream's cluster, where an
// administrator approves its serving certificate.
func TestKubeletBootstrap(t *testing.T) {
	c, err := cluster.UpstreamAPI(t.TempDir(), "", "--enable-admission-plugins=NodeRestriction", "--enable-bootstrap-token-auth=true")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Stop()
	if err := c.ControllerManager(); err != nil {
		t.Fatal(err)
	}
	token, err := c.NodeToken()
	if err != nil {
		t.Fatal(err)
	}
	for role, group := range map[string]string{
		"system:node-bootstrapper": "system:bootstrappers:kubeadm:default-node-token",
		"system:certificates.k8s.io:certificatesigningrequests:nodeclient": "system:bootstrappers:kubeadm:default-node-token",
	} {
		kubectl(t, c, "", "create", "clusterrolebinding", "test-"+role[strings.LastIndex(role, ":")+1:], "--clusterrole="+role, "--group="+group)
	}
	dir := nodeDir(t)
	credentials := writeCredentials(t, c, dir, &clientcmdapi.AuthInfo{Token: token[:strings.LastIndex(token, ".")]})
	settings := filepath.Join(dir, "kubelet.yaml")
	text := "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nserverTLSBootstrap: true\nrotateCertificates: true\n"
	if err := os.WriteFile(settings, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	log := runKubelet(t, dir, "n1", "--bootstrap-kubeconfig="+credentials, "--kubeconfig="+filepath.Join(dir, "kubeconfig"), "--config="+settings)
	defer func() {
		if t.Failed() {
			text, _ := os.ReadFile(log)
			t.Logf("%s", text)
		}
	}()
	var request string
	eventually(t, "the node asks for what it serves with", func() bool {
		out, err := kubectlCommand(c, "", "get", "csr", "-o", `jsonpath={.items[?(@.spec.signerName=="kubernetes.io/kubelet-serving")].metadata.name}`)
		request = string(out)
		return err == nil && request != ""
	})
	kubectl(t, c, "", "certificate", "approve", request)
	data, err := os.ReadFile(filepath.Join(c.Dir, "pki/ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(data)
	eventually(t, "the node's server proves itself", func() bool {
		conn, err := tls.Dial("tcp", net.JoinHostPort(namespaces.NodeAddress, "10250"), &tls.Config{RootCAs: roots})
		if err != nil {
			return false
		}
		return conn.Close() == nil
	})
	if out, err := cluster.Kubectl(filepath.Join(dir, "kubeconfig"), "", "auth", "whoami", "-o", "jsonpath={.status.userInfo.username}"); string(out) != "system:node:n1" {
		t.Errorf("the node is %q to the API server, %v", out, err)
	}
}

// TestAgentAfterCARotation: the cluster rotates its CA and removes the old one; a node that joined before keeps working.
func TestAgentAfterCARotation(t *testing.T) {
	dir := t.TempDir()
	first, err := cluster.SkiffNode(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Stop()
	if err := first.AddNode(); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "node-2/kubelet/pki/kubelet-server-current.pem")
	before, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	restart := func(verb string) {
		t.Helper()
		first.Server[0].Stop()
		root, err := cluster.Root()
		if err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command(filepath.Join(root, "bin/skiff"), "cert", verb, "ca", "--data-dir="+filepath.Join(dir, "data")).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		c, err := cluster.SkiffNode(dir)
		if err != nil {
			t.Fatal(err)
		}
		first.Server = c.Server
	}
	restart("rotate-ca")
	agent := first.Others[len(first.Others)-1]
	agent.Stop()
	if agent, _, err = first.StartAgent(2, ""); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the node has certificates of the new CA", func() bool {
		after, err := os.ReadFile(file)
		return err == nil && string(after) != string(before) &&
			strings.Count(kubectl(t, first, "", "get", "csr", "-o", "jsonpath={.items[*].status.conditions[*].type}"), "Approved") == 4
	})
	restart("forget-ca")
	kubectl(t, first, `
apiVersion: v1
kind: Pod
metadata: {name: late}
spec:
  nodeName: node-2
  terminationGracePeriodSeconds: 0
  automountServiceAccountToken: false
  containers:
  - name: c
    image: registry.k8s.io/e2e-test-images/busybox:1.37.0-2
    command: [sh, -c, 'echo still here; sleep 1000']
`, "apply", "-f", "-")
	kubectl(t, first, "", "wait", "--for=condition=Ready", "pod/late", "--timeout=60s")
	if out := kubectl(t, first, "", "logs", "late"); out != "still here\n" {
		t.Errorf("the log is %q; the agent says:\n%s", out, agent.Log(20))
	}
	kubectl(t, first, "", "delete", "pod", "late", "--wait")
}

// TestAgentBeforeAPIServer: after a reboot of the whole cluster, an agent runs its static pods before any API server answers.
func TestAgentBeforeAPIServer(t *testing.T) {
	dir := t.TempDir()
	first, err := cluster.SkiffNode(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Stop()
	if err := first.AddNode(); err != nil {
		t.Fatal(err)
	}
	first.Others[len(first.Others)-1].Stop()
	first.Server[0].Stop()
	manifests, proof := filepath.Join(dir, "node-2/manifests"), filepath.Join(dir, "proof")
	for _, directory := range []string{manifests, proof} {
		if err := os.MkdirAll(directory, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	manifest := `
apiVersion: v1
kind: Pod
metadata: {name: early}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: registry.k8s.io/e2e-test-images/busybox:1.37.0-2
    command: [sh, -c, 'ip -4 addr show eth0 > /proof/address; sleep 1000']
    volumeMounts: [{name: proof, mountPath: /proof}]
  volumes:
  - {name: proof, hostPath: {path: ` + proof + `}}
`
	if err := os.WriteFile(filepath.Join(manifests, "early.yaml"), []byte(manifest), 0o600); err != nil {
		t.Fatal(err)
	}
	agent, _, err := first.StartAgent(2, "")
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the static pod runs and has an address", func() bool {
		address, err := os.ReadFile(filepath.Join(proof, "address"))
		return err == nil && strings.Contains(string(address), "inet 10.42.")
	})
	c, err := cluster.SkiffNode(dir)
	if err != nil {
		t.Fatal(err)
	}
	first.Server = c.Server
	eventually(t, "the API has the static pod", func() bool {
		out, err := kubectlCommand(first, "", "get", "pod", "early-node-2", "-o", "jsonpath={.status.phase}")
		return err == nil && string(out) == "Running"
	})
	if t.Failed() {
		t.Logf("%s", agent.Log(50))
	}
}
