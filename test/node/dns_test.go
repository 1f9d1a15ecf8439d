package node

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/vishvananda/netlink"

	"skiff/test/cluster"
)

// dnsAddress is the address of the cluster's DNS with the default service CIDR.
const dnsAddress = "10.96.0.10"

const dnsObjects = `
apiVersion: v1
kind: Service
metadata: {name: peers}
spec:
  clusterIP: None
  selector: {app: peer}
  ports: [{name: http, port: 80}]
---
apiVersion: v1
kind: Pod
metadata: {name: client, labels: {app: peer}}
spec:
  hostname: first
  subdomain: peers
  nodeName: node-2
  terminationGracePeriodSeconds: 0
  automountServiceAccountToken: false
  containers:
  - name: c
    image: registry.k8s.io/e2e-test-images/busybox:1.37.0-2
    command: [sleep, '1000']
---
apiVersion: v1
kind: Pod
metadata: {name: on-host}
spec:
  hostNetwork: true
  dnsPolicy: ClusterFirstWithHostNet
  terminationGracePeriodSeconds: 0
  automountServiceAccountToken: false
  containers:
  - name: c
    image: registry.k8s.io/e2e-test-images/busybox:1.37.0-2
    command: [sleep, '1000']
---
apiVersion: v1
kind: ConfigMap
metadata: {namespace: kube-system, name: kube-dns}
data:
  hosts: 192.0.2.1 configured.example
`

// TestOtherClusterDNS checks that an agent learns the cluster's domain and service CIDR, and that there is no DNS server where it is disabled.
func TestOtherClusterDNS(t *testing.T) {
	dir := t.TempDir()
	c, err := cluster.SkiffNode(dir, "--cluster-domain=example.org", "--service-cidr=10.200.0.0/16")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { c.Stop() }()
	if err := c.AddNode(); err != nil {
		t.Fatal(err)
	}
	kubectl(t, c, dnsObjects, "apply", "-f", "-")
	kubectl(t, c, "", "wait", "--for=condition=Ready", "pod/client", "--timeout=60s")
	resolver := kubectl(t, c, "", "exec", "client", "--", "cat", "/etc/resolv.conf")
	if !strings.Contains(resolver, "nameserver 10.200.0.10\n") || !strings.Contains(resolver, "search default.svc.example.org svc.example.org example.org") {
		t.Errorf("resolv.conf of a pod on an agent:\n%s", resolver)
	}
	eventually(t, "a pod on an agent resolves a name", func() bool {
		out, err := kubectlCommand(c, "", "exec", "client", "--", "nslookup", "-type=a", "kubernetes.default.svc.example.org")
		return err == nil && strings.HasSuffix(strings.TrimSpace(string(out)), "Address: 10.200.0.1")
	})
	c.Stop()

	if c, err = cluster.SkiffNode(dir, "--service-cidr=10.200.0.0/16", "--disable=dns"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the Service kube-dns is deleted", func() bool {
		_, err := kubectlCommand(c, "", "-n", "kube-system", "get", "service", "kube-dns")
		return err != nil
	})
	if addresses := loopbackAddresses(t); len(addresses) != 1 {
		t.Errorf("the host has %v", addresses)
	}
}

// TestClusterDNS checks that pods on both nodes and the host itself resolve names at the address of the Service kube-dns, and that the address
// is removed with the node.
func TestClusterDNS(t *testing.T) {
	c, err := cluster.SkiffNode(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	stopped := false
	defer func() {
		if !stopped {
			c.Stop()
		}
	}()
	if err := c.AddNode(); err != nil {
		t.Fatal(err)
	}
	service := kubectl(t, c, "", "-n", "kube-system", "get", "service", "kube-dns", "-o", "jsonpath={.spec.clusterIP} {.metadata.labels.k8s-app} {.spec.ports[*].name}")
	if service != dnsAddress+" kube-dns dns dns-tcp metrics" {
		t.Errorf("the Service kube-dns is %q", service)
	}
	kubectl(t, c, dnsObjects, "apply", "-f", "-")
	kubectl(t, c, "", "wait", "--for=condition=Ready", "pod/client", "pod/on-host", "--timeout=60s")
	podIP := kubectl(t, c, "", "get", "pod", "client", "-o", "jsonpath={.status.podIP}")

	for _, pod := range []string{"client", "on-host"} {
		resolver := kubectl(t, c, "", "exec", pod, "--", "cat", "/etc/resolv.conf")
		if !strings.Contains(resolver, "nameserver "+dnsAddress+"\n") || !strings.Contains(resolver, "search default.svc.cluster.local svc.cluster.local cluster.local") {
			t.Errorf("resolv.conf of %s:\n%s", pod, resolver)
		}
		for name, want := range map[string]string{
			"kubernetes.default.svc.cluster.local": "10.96.0.1", "peers.default.svc.cluster.local": podIP, "first.peers.default.svc.cluster.local": podIP, "configured.example": "192.0.2.1",
		} {
			eventually(t, pod+" resolves "+name, func() bool {
				out, err := kubectlCommand(c, "", "exec", pod, "--", "nslookup", "-type=a", name)
				return err == nil && strings.HasSuffix(strings.TrimSpace(string(out)), "Address: "+want)
			})
		}
	}
	testHostDNS(t)
	stopped = true
	c.Stop()
	if hasDNSAddress(t) {
		t.Error("the address of the DNS server was not removed")
	}
}

// testHostDNS queries the DNS server from its host.
func testHostDNS(t *testing.T) {
	t.Helper()
	for _, network := range []string{"udp", "tcp"} {
		query := &dns.Client{Net: network, Timeout: 10 * time.Second}
		reply, _, err := query.Exchange(new(dns.Msg).SetQuestion("_http._tcp.peers.default.svc.cluster.local.", dns.TypeSRV), dnsAddress+":53")
		if err != nil {
			t.Errorf("query from the host over %s: %v", network, err)
			continue
		}
		if len(reply.Answer) != 1 || reply.Answer[0].(*dns.SRV).Target != "first.peers.default.svc.cluster.local." {
			t.Errorf("SRV over %s: %v", network, reply)
		}
	}
	response, err := http.Get("http://" + dnsAddress + ":9153/metrics")
	if err != nil {
		t.Error(err)
		return
	}
	defer response.Body.Close()
	if body, err := io.ReadAll(response.Body); err != nil || !strings.Contains(string(body), "coredns_dns_requests_total") {
		t.Errorf("metrics %s, %v", body, err)
	}
	if !hasDNSAddress(t) {
		t.Error("the host does not have the address")
	}
}

func hasDNSAddress(t *testing.T) bool {
	t.Helper()
	return slices.Contains(loopbackAddresses(t), dnsAddress)
}

// loopbackAddresses are the IPv4 addresses of the loopback interface.
func loopbackAddresses(t *testing.T) []string {
	t.Helper()
	loopback, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	addresses, err := netlink.AddrList(loopback, netlink.FAMILY_V4)
	if err != nil {
		t.Fatal(err)
	}
	var ips []string
	for _, a := range addresses {
		ips = append(ips, a.IP.String())
	}
	return ips
}
