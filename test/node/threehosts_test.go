package node

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"skiff/internal/network/hostnet"
	"skiff/internal/network/nft"
	"skiff/internal/network/proxy"
	"skiff/test/cluster"
	"skiff/test/namespaces"
	"skiff/test/netns"
)

// threeHostsManifest has a web server on each of three nodes behind one Service, and on the third a server that sends back what it receives.
const threeHostsManifest = `
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  type: NodePort
  selector: {app: web}
  ports: [{port: 80, targetPort: 8080, nodePort: 30778}]
---
apiVersion: v1
kind: Service
metadata: {name: echo}
spec:
  selector: {app: echo}
  ports: [{port: 9000}]
---
apiVersion: v1
kind: Pod
metadata: {name: echo, labels: {app: echo}}
spec:
  nodeName: node-3
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: registry.k8s.io/e2e-test-images/busybox:1.37.0-2
    command: [nc, -lk, -p, '9000', -e, cat]
    readinessProbe: {tcpSocket: {port: 9000}, periodSeconds: 1}
`

// threeHostsPolicy lets only the pods that keep a connection open connect to the server of the third node.
const threeHostsPolicy = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: echo}
spec:
  podSelector: {matchLabels: {app: echo}}
  ingress: [{from: [{podSelector: {matchLabels: {app: stream}}}]}]
`

// shellPod is a pod on the node with a number that runs a shell command.
func shellPod(name string, number int, command string) string {
	return fmt.Sprintf(`
---
apiVersion: v1
kind: Pod
metadata: {name: %s, labels: {app: %s}}
spec:
  nodeName: node-%d
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: registry.k8s.io/e2e-test-images/busybox:1.37.0-2
    command:
    - sh
    - -c
    - |
      %s
`, name, strings.TrimRight(name, "-0123456789"), number, strings.ReplaceAll(command, "\n", "\n      "))
}

// threeHosts is a cluster of three nodes, each on a host of its own. The first is the test's.
type threeHosts struct {
	*cluster.Cluster
	t   *testing.T
	dir string
	// networks are the hosts' networks, agents the processes, by the number of the node.
	networks map[int]netns.Namespace
	agents   map[int]*cluster.Process
	// podIPs are the addresses of the web servers, cidrs the nodes' pod CIDRs, by the number of the node.
	podIPs map[int]string
	cidrs  map[int]netip.Prefix
	// service is the address of the web servers' Service.
	service string
}

// TestThreeHosts checks what a network between hosts has to withstand: a host without link, skiff killed and started again, a node that is removed.
func TestThreeHosts(t *testing.T) {
	h := newThreeHosts(t)
	defer h.Stop()
	h.checkTraffic()
	// Connections that stay open, through a Service, from the first and the second node to the third.
	for _, number := range []int{1, 2} {
		const command = `(i=0; while :; do i=$((i+1)); echo $i; sleep 0.2; done) | nc echo.default.svc.cluster.local 9000
echo ended
exec sleep 1000`
		h.apply(shellPod(fmt.Sprintf("stream-%d", number), number, command))
		h.checkStream(number)
	}
	h.apply(threeHostsPolicy)
	h.checkPolicy()
	h.cutLink()
	h.restart()
	h.checkPolicy()
	h.removeNode()
}

func newThreeHosts(t *testing.T) *threeHosts {
	t.Helper()
	dir := t.TempDir()
	c, err := cluster.SkiffNode(dir)
	if err != nil {
		t.Fatal(err)
	}
	h := &threeHosts{
		Cluster: c, t: t, dir: dir, networks: map[int]netns.Namespace{1: {}}, agents: map[int]*cluster.Process{},
		podIPs: map[int]string{}, cidrs: map[int]netip.Prefix{},
	}
	manifest := threeHostsManifest
	for number := 1; number <= 3; number++ {
		if number > 1 {
			if err := c.AddNode(); err != nil {
				c.Stop()
				t.Fatal(err)
			}
			h.networks[number], h.agents[number] = netns.At(c.Host(number).Network()), c.Others[len(c.Others)-1]
		}
		manifest += shellPod(fmt.Sprintf("web-%d", number), number, "mkdir /tmp/www; hostname >/tmp/www/index.html; exec httpd -f -p 8080 -h /tmp/www")
	}
	h.apply(manifest)
	h.kubectl("wait", "--for=condition=Ready", "pod", "--all", "--timeout=60s")
	for number := 1; number <= 3; number++ {
		h.podIPs[number] = h.kubectl("get", "pod", fmt.Sprintf("web-%d", number), "-o", "jsonpath={.status.podIP}")
		h.cidrs[number] = netip.MustParsePrefix(h.kubectl("get", "node", fmt.Sprintf("node-%d", number), "-o", "jsonpath={.spec.podCIDR}"))
	}
	h.service = h.kubectl("get", "service", "web", "-o", "jsonpath={.spec.clusterIP}")
	return h
}

func (h *threeHosts) kubectl(args ...string) string {
	h.t.Helper()
	return kubectl(h.t, h.Cluster, "", args...)
}

func (h *threeHosts) apply(manifest string) {
	h.t.Helper()
	kubectl(h.t, h.Cluster, manifest, "apply", "-f", "-")
}

// get returns the name of the web server that answers at an address, seen from the host with a number.
func (h *threeHosts) get(number int, address string) (name string, err error) {
	err = h.networks[number].Do(func() error {
		connection, err := net.DialTimeout("tcp", address, 5*time.Second)
		if err != nil {
			return err
		}
		defer connection.Close()
		if err := connection.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
			return err
		}
		if _, err := io.WriteString(connection, "GET / HTTP/1.0\r\n\r\n"); err != nil {
			return err
		}
		response, err := io.ReadAll(connection)
		_, body, _ := strings.Cut(string(response), "\r\n\r\n")
		name = strings.TrimSpace(body)
		return err
	})
	return name, err
}

// checkTraffic checks that each pod reaches each other one by its address and all by the Service's name, and that each host reaches all at the node
// port of each host.
func (h *threeHosts) checkTraffic() {
	h.t.Helper()
	for from := 1; from <= 3; from++ {
		var script strings.Builder
		for to := 1; to <= 3; to++ {
			fmt.Fprintf(&script, "wget -q -T 5 -O - http://%s:8080/\n", h.podIPs[to])
		}
		pod := fmt.Sprintf("web-%d", from)
		h.checkOutput(pod, script.String())
		h.checkOutput(pod, "for i in $(seq 20); do wget -q -T 5 -O - http://web.default.svc.cluster.local/; done | sort -u")
		for to := 1; to <= 3; to++ {
			h.checkAnswers(from, fmt.Sprintf("10.88.0.%d:30778", to), 3)
		}
	}
}

// checkOutput checks that a script in a pod writes the names of all web servers.
func (h *threeHosts) checkOutput(pod, script string) {
	h.t.Helper()
	var out []byte
	defer h.logOnFailure(&out)
	eventually(h.t, pod+" reaches all pods with\n"+script, func() (ok bool) {
		var err error
		out, err = kubectlCommand(h.Cluster, "", "exec", pod, "--", "sh", "-c", script)
		return err == nil && string(out) == "web-1\nweb-2\nweb-3\n"
	})
}

// logOnFailure logs the last output of a command, and the ends of the logs of all nodes.
func (h *threeHosts) logOnFailure(out *[]byte) {
	if !h.t.Failed() {
		return
	}
	h.t.Logf("the last output: %s", *out)
	h.t.Logf("log of the server:\n%s", h.Server[0].Log(20))
	for number, p := range h.agents {
		h.t.Logf("log of node %d:\n%s", number, p.Log(20))
	}
}

// checkAnswers checks that all of the first web servers answer at an address, seen from a host.
func (h *threeHosts) checkAnswers(from int, address string, servers int) {
	h.t.Helper()
	names := map[string]bool{}
	eventually(h.t, fmt.Sprintf("%d servers answer host %d at %s", servers, from, address), func() bool {
		name, err := h.get(from, address)
		if err == nil {
			names[name] = true
		}
		return len(names) == servers
	})
}

// checkStream checks that the connection of a node's pod is still open and sends data.
func (h *threeHosts) checkStream(number int) {
	h.t.Helper()
	pod := fmt.Sprintf("stream-%d", number)
	var first string
	var out []byte
	defer h.logOnFailure(&out)
	eventually(h.t, "the connection of "+pod+" sends data", func() bool {
		var err error
		out, err = kubectlCommand(h.Cluster, "", "logs", pod, "--tail=1")
		last := strings.TrimSpace(string(out))
		if err != nil || last == "" {
			return false
		}
		if last == "ended" {
			h.t.Fatalf("the connection of %s was closed", pod)
		}
		if first == "" {
			first = last
		}
		return last != first
	})
}

// checkPolicy checks that the policy is enforced for pods of other nodes, and lets open connections of the pods that it allows pass.
func (h *threeHosts) checkPolicy() {
	h.t.Helper()
	connects := func(pod string) bool {
		_, err := kubectlCommand(h.Cluster, "", "exec", pod, "--", "nc", "-z", "-w", "2", "echo.default.svc.cluster.local", "9000")
		return err == nil
	}
	for _, number := range []int{1, 2} {
		denied, allowed := fmt.Sprintf("web-%d", number), fmt.Sprintf("stream-%d", number)
		eventually(h.t, denied+" is denied", func() bool { return !connects(denied) })
		eventually(h.t, allowed+" is allowed", func() bool { return connects(allowed) })
		h.checkStream(number)
	}
}

// cutLink disconnects a host for a while.
func (h *threeHosts) cutLink() {
	h.t.Helper()
	if err := h.Host(2).SetLink(false); err != nil {
		h.t.Fatal(err)
	}
	if name, err := h.get(1, h.podIPs[2]+":8080"); err == nil {
		h.t.Errorf("%s was reached without a link", name)
	}
	if err := h.Host(2).SetLink(true); err != nil {
		h.t.Fatal(err)
	}
	eventually(h.t, "the host is reached again", func() bool { _, err := h.get(1, h.podIPs[2]+":8080"); return err == nil })
	h.checkTraffic()
	h.checkStream(2)
}

// restart kills skiff on the second and on the first host, and starts it again. Connections stay open, and new ones arrive where they should.
func (h *threeHosts) restart() {
	h.t.Helper()
	for _, number := range []int{1, 2} {
		h.apply(shellPod(fmt.Sprintf("probe-%d", number), number, h.probeCommand()))
	}
	h.kubectl("wait", "--for=condition=Ready", "pod/probe-1", "pod/probe-2", "--timeout=60s")
	h.agents[2].Kill()
	h.checkWithout(2)
	p, _, err := h.StartAgent(2, "")
	if err != nil {
		h.t.Fatal(err)
	}
	h.agents[2] = p
	h.checkStream(2)
	h.checkProbes()
	h.Server[0].Kill()
	h.checkWithout(1)
	c, err := cluster.SkiffNode(h.dir)
	if err != nil {
		h.t.Fatal(err)
	}
	h.Server = c.Server
	h.checkStream(1)
	h.checkStream(2)
	h.checkProbes()
	h.checkTraffic()
}

// probeCommand connects to all web servers and to their Service again and again, and writes what does not answer as it should.
func (h *threeHosts) probeCommand() string {
	command := `get() { answer=$(wget -q -T 10 -O - http://$1/ 2>&1); case "$answer" in $2) ;; *) echo "$1 answers $answer";; esac; }
while :; do
`
	for number, ip := range h.podIPs {
		command += fmt.Sprintf("  get %s:8080 web-%d\n", ip, number)
	}
	return command + fmt.Sprintf("  get %s 'web-*'\n  sleep 0.05\ndone", h.service)
}

// checkProbes checks that everything has answered.
func (h *threeHosts) checkProbes() {
	h.t.Helper()
	for _, number := range []int{1, 2} {
		pod := fmt.Sprintf("probe-%d", number)
		var out []byte
		eventually(h.t, "the log of "+pod, func() (ok bool) {
			var err error
			out, err = kubectlCommand(h.Cluster, "", "logs", pod)
			return err == nil
		})
		if len(out) > 0 {
			h.t.Errorf("%s did not reach all pods: %s", pod, out)
		}
	}
}

// checkWithout checks new connections from and to a host on which skiff does not run.
func (h *threeHosts) checkWithout(number int) {
	h.t.Helper()
	for other := 1; other <= 3; other++ {
		want := fmt.Sprintf("web-%d", other)
		if name, err := h.get(number, h.podIPs[other]+":8080"); err != nil || name != want {
			h.t.Errorf("from host %d without skiff to %s: %q, %v", number, want, name, err)
		}
		h.checkAnswers(number, h.service+":80", 3)
		h.checkAnswers(other, namespaceAddress(number)+":30778", 3)
	}
}

// namespaceAddress is the address of the host with a number.
func namespaceAddress(number int) string {
	if number == 1 {
		return namespaces.NodeAddress
	}
	return fmt.Sprintf("10.88.0.%d", number)
}

// removeNode removes a node. The others have no route to it and no endpoint on it then.
func (h *threeHosts) removeNode() {
	h.t.Helper()
	for _, number := range []int{1, 2} {
		if !h.hasRoute(number, h.cidrs[3]) || !hasEndpoint(h.t, h.networks[number], h.podIPs[3]) {
			h.t.Fatalf("node %d: a route to node 3: %v, an endpoint on it: %v", number, h.hasRoute(number, h.cidrs[3]), hasEndpoint(h.t, h.networks[number], h.podIPs[3]))
		}
	}
	h.agents[3].Kill()
	h.kubectl("delete", "node", "node-3")
	began := time.Now()
	for _, number := range []int{1, 2} {
		eventually(h.t, fmt.Sprintf("node %d has nothing of node 3", number), func() bool {
			return !h.hasRoute(number, h.cidrs[3]) && !hasEndpoint(h.t, h.networks[number], h.podIPs[3])
		})
		h.checkAnswers(number, h.service+":80", 2)
	}
	h.t.Logf("all routes to the removed node and its endpoints were gone after %s", time.Since(began).Round(time.Millisecond))
	// The unreachable route of all pods is left: nothing leaves the host.
	if name, err := h.get(2, h.podIPs[3]+":8080"); err == nil {
		h.t.Errorf("%s of the removed node answers", name)
	}
}

// hasRoute reports whether a host has a route to a pod CIDR.
func (h *threeHosts) hasRoute(number int, cidr netip.Prefix) (found bool) {
	h.t.Helper()
	err := h.networks[number].Do(func() error {
		routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Dst: hostnet.IPNet(cidr)}, netlink.RT_FILTER_DST)
		found = len(routes) > 0
		return err
	})
	if err != nil {
		h.t.Fatal(err)
	}
	return found
}

// hasEndpoint reports whether the Service proxy of a host sends packets to a pod.
func hasEndpoint(t *testing.T, host netns.Namespace, ip string) (found bool) {
	t.Helper()
	err := host.Do(func() error {
		lines, err := nft.Read(proxy.DefaultTable)
		address := fmt.Sprintf("%x", netip.MustParseAddr(ip).AsSlice())
		found = slices.ContainsFunc(lines, func(line string) bool { return strings.HasPrefix(line, "element ") && strings.Contains(line, address) })
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}
