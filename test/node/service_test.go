package node

import (
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"skiff/internal/network/nft"
	"skiff/internal/network/proxy"
	"skiff/test/cluster"
	"skiff/test/namespaces"
)

const serviceManifest = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 0
      containers:
      - name: c
        image: registry.k8s.io/e2e-test-images/busybox:1.37.0-2
        command: [sh, -c, 'mkdir /tmp/www; hostname >/tmp/www/index.html; exec httpd -f -p 8080 -h /tmp/www']
        readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  type: NodePort
  selector: {app: web}
  ports: [{port: 80, targetPort: 8080, nodePort: 30777}]
---
apiVersion: v1
kind: Service
metadata: {name: balanced}
spec:
  type: LoadBalancer
  selector: {app: web}
  ports: [{port: 8088, targetPort: 8080}]
`

// get returns the name of the pod that answers an HTTP request.
func get(address string) (string, error) {
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Get("http://" + address + "/index.html")
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return strings.TrimSpace(string(body)), err
}

// A Service is reached from the node, from a pod and at its node port. It is refused when it has no endpoints.
func TestServiceTraffic(t *testing.T) {
	c, err := cluster.SkiffNode(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Stop()
	kubectl(t, c, serviceManifest, "apply", "-f", "-")
	kubectl(t, c, "", "rollout", "status", "deployment/web", "--timeout=120s")
	clusterIP := func(service string) string {
		return kubectl(t, c, "", "get", "service", service, "-o", "jsonpath={.spec.clusterIP}")
	}
	clusterAddress, nodeAddress := clusterIP("web")+":80", namespaces.NodeAddress+":30777"
	// Load balancers have the addresses of nodes.
	for _, address := range []string{clusterAddress, nodeAddress, namespaces.NodeAddress + ":8088"} {
		answered := map[string]bool{}
		eventually(t, "both pods answer at "+address, func() bool {
			pod, err := get(address)
			if err == nil {
				answered[pod] = true
			}
			return len(answered) == 2
		})
	}
	pod := strings.Fields(kubectl(t, c, "", "get", "pods", "-o", "jsonpath={.items[*].metadata.name}"))[0]
	answered := map[string]bool{}
	// One of the answers is the pod's own.
	eventually(t, "both pods answer a pod", func() bool {
		out, err := kubectlCommand(c, "", "exec", pod, "--", "wget", "-q", "-T", "5", "-O", "-", "http://"+clusterAddress+"/index.html")
		if err == nil {
			answered[strings.TrimSpace(string(out))] = true
		}
		return len(answered) == 2
	})
	// The API server's own Service.
	connection, err := net.DialTimeout("tcp", clusterIP("kubernetes")+":443", 5*time.Second)
	if err != nil {
		t.Errorf("the Service kubernetes does not answer: %v", err)
	} else {
		connection.Close()
	}
	checkNoEndpoints(t, c, clusterAddress, nodeAddress)
	if lines, err := nft.Read(proxy.DefaultTable); err != nil || len(lines) == 0 {
		t.Errorf("no rules: %v", err)
	}
	checkProxyHealth(t)
	checkProxyMetrics(t, proxy.DefaultMetricsAddress)
}

// checkNoEndpoints removes all endpoints. Their Service is refused.
func checkNoEndpoints(t *testing.T, c *cluster.Cluster, addresses ...string) {
	t.Helper()
	kubectl(t, c, "", "scale", "deployment/web", "--replicas=0")
	for _, address := range addresses {
		eventually(t, address+" is refused", func() bool { _, err := get(address); return errors.Is(err, syscall.ECONNREFUSED) })
	}
}

func checkProxyHealth(t *testing.T) {
	t.Helper()
	health, err := http.Get("http://127.0.0.1:10256/healthz")
	if err != nil {
		t.Fatal(err)
	}
	health.Body.Close()
	if health.StatusCode != http.StatusOK {
		t.Errorf("the proxy's health is %s", health.Status)
	}
}

// checkProxyMetrics waits for the metrics of the first sync. The port is open to everybody on the host, so those of the kubelet are not there.
func checkProxyMetrics(t *testing.T, address string) {
	t.Helper()
	var text []byte
	eventually(t, "the metrics of a sync", func() bool {
		response, err := http.Get("http://" + address + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		text, err = io.ReadAll(response.Body)
		return err == nil && strings.Contains(string(text), `kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family="IPv4"}`)
	})
	if strings.Contains(string(text), "\nkubelet_") {
		t.Errorf("metrics of the kubelet:\n%s", text)
	}
}

// `skiff proxy` takes the place of the proxy inside the server, with a configuration file of kube-proxy.
func TestProxyAlone(t *testing.T) {
	c, err := cluster.SkiffNode(t.TempDir(), "--without=proxy")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Stop()
	kubectl(t, c, serviceManifest, "apply", "-f", "-")
	kubectl(t, c, "", "rollout", "status", "deployment/web", "--timeout=120s")
	if lines, err := nft.Read(proxy.DefaultTable); err != nil || len(lines) > 0 {
		t.Fatalf("--without=proxy has rules: %q, %v", lines, err)
	}
	file := filepath.Join(t.TempDir(), "proxy.yaml")
	const configuration = `
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
clusterCIDR: 10.42.0.0/16
nodePortAddresses: [10.88.0.0/16]
nftables: {minSyncPeriod: 10ms, masqueradeBit: 20}
metricsBindAddress: 127.0.0.1:10349
`
	if err := os.WriteFile(file, []byte(configuration), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := c.OwnProxy("--config", file)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Stop()
	nodeAddress := namespaces.NodeAddress + ":30777"
	eventually(t, "a pod answers", func() bool { _, err := get(nodeAddress); return err == nil })
	checkProxyHealth(t)
	checkProxyMetrics(t, "127.0.0.1:10349")
	checkNoEndpoints(t, c, nodeAddress)
	if code := p.Terminate(); code != 0 {
		t.Errorf("exit code %d\n%s", code, p.Log(20))
	}
	clean, err := c.OwnProxy("--cleanup")
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "--cleanup ends", clean.Exited)
	if lines, err := nft.Read(proxy.StandaloneTable); err != nil || len(lines) > 0 {
		t.Errorf("rules are left: %q, %v", lines, err)
	}
}
