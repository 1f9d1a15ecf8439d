package node

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"skiff/test/cluster"
	"skiff/test/netns"
)

// twoNodesManifest has a web server, the demo's, behind a Service, and on each node a client of it. The pods of the StatefulSet have identities.
const twoNodesManifest = `
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  type: NodePort
  selector: {app: web}
  ports: [{port: 80, targetPort: 8080, nodePort: 30779}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 4
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      tolerations:
      - {key: node.kubernetes.io/not-ready, operator: Exists, effect: NoExecute, tolerationSeconds: 1}
      - {key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 1}
      topologySpreadConstraints:
      - {maxSkew: 2, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: DoNotSchedule, nodeTaintsPolicy: Honor, labelSelector: {matchLabels: {app: web}}, matchLabelKeys: [pod-template-hash]}
      containers:
      - name: c
        image: registry.k8s.io/skiff/web:1
        env: ENV
        readinessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1}
        lifecycle: {preStop: {sleep: {seconds: 5}}}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: identity}
spec:
  replicas: 2
  podManagementPolicy: Parallel
  selector: {matchLabels: {app: identity}}
  template:
    metadata: {labels: {app: identity}}
    spec:
      terminationGracePeriodSeconds: 1
      tolerations:
      - {key: node.kubernetes.io/not-ready, operator: Exists, effect: NoExecute, tolerationSeconds: 1}
      - {key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 1}
      topologySpreadConstraints:
      - {maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: DoNotSchedule, nodeTaintsPolicy: Honor, labelSelector: {matchLabels: {app: identity}}}
      containers:
      - {name: c, image: "registry.k8s.io/e2e-test-images/busybox:1.37.0-2", command: [sleep, "100000"], env: ENV}
`

// clientPod is a pod on a node whose network a client uses.
const clientPod = `
---
apiVersion: v1
kind: Pod
metadata: {name: client-NUMBER}
spec:
  nodeName: agent-NUMBER
  terminationGracePeriodSeconds: 0
  containers:
  - {name: c, image: "registry.k8s.io/e2e-test-images/busybox:1.37.0-2", command: [sleep, "100000"], env: ENV}
`

const (
	webImage = "registry.k8s.io/skiff/web:"
	// lostNode is the node that is lost, otherNode the one that stays.
	lostNode, otherNode = 1, 0
	// stageTimeout bounds the time of what takes several seconds on an idle host.
	stageTimeout = 2 * time.Minute
)

// twoNodes is a cluster of one server and two nodes, each on a host of its own.
type twoNodes struct {
	*cluster.Cluster
	t          *testing.T
	fleet      *cluster.Fleet
	identities *cluster.Identities
	// clients send requests to the Service, by the node that they reach it through.
	clients [2][]*serviceClient
}

// TestPodLifecycleOverTwoNodes follows pods through an update and the loss of a node, while clients in pods and outside of the cluster send requests to their
// Service, over new connections and over those they keep open. The update fails no request. The loss of a node fails those that went to its pods, and none
// once the Service has no endpoints there.
func TestPodLifecycleOverTwoNodes(t *testing.T) {
	n := newTwoNodes(t)
	for number := range 2 {
		n.checkConnections(number)
	}
	n.startClients()
	n.update()
	n.loseNode()
}

func newTwoNodes(t *testing.T) *twoNodes {
	t.Helper()
	fleet, err := cluster.NewFleet(t.TempDir(), 1, 2, "--node-monitor-grace-period=12s", "--node-eviction-rate=10")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(fleet.Stop)
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	for _, version := range []string{"1", "2"} {
		if err := fleet.AddImage("skiff/web:"+version, filepath.Join(root, "bin/web")); err != nil {
			t.Fatal(err)
		}
	}
	n := &twoNodes{Cluster: fleet.Servers[0].Cluster, t: t, fleet: fleet, identities: cluster.ObserveIdentities()}
	t.Cleanup(n.identities.Stop)
	t.Cleanup(n.logOnFailure)
	env, err := json.Marshal(cluster.IdentityEnv())
	if err != nil {
		t.Fatal(err)
	}
	manifest := twoNodesManifest
	for number := range 2 {
		manifest += strings.ReplaceAll(clientPod, "NUMBER", fmt.Sprint(number))
	}
	kubectl(t, n.Cluster, strings.ReplaceAll(manifest, "ENV", string(env)), "apply", "-f", "-")
	for _, object := range []string{"deployment/web", "statefulset/identity"} {
		n.kubectl("rollout", "status", object, "--timeout="+stageTimeout.String())
	}
	n.kubectl("wait", "--for=condition=Ready", "pod/client-0", "pod/client-1", "--timeout="+stageTimeout.String())
	return n
}

// logOnFailure logs what is known about a test that has failed.
func (n *twoNodes) logOnFailure() {
	if !n.t.Failed() {
		return
	}
	for _, what := range []string{"nodes", "pods", "endpointslices", "events"} {
		out, _ := kubectlCommand(n.Cluster, "", "get", what, "-o", "wide")
		n.t.Logf("%s", out)
	}
	n.t.Logf("the log of the server ends:\n%s", n.Server[0].Log(20))
	for _, agent := range n.fleet.Agents {
		n.t.Logf("the log of %s ends:\n%s", agent.Host.Name, agent.Process.Log(20))
	}
}

func (n *twoNodes) kubectl(args ...string) string {
	n.t.Helper()
	return kubectl(n.t, n.Cluster, "", args...)
}

// pods returns the pods with a label, by name. Those that are to be deleted are among them.
func (n *twoNodes) pods(app string) map[string]corev1.Pod {
	n.t.Helper()
	var list corev1.PodList
	if err := json.Unmarshal([]byte(n.kubectl("get", "pods", "-l", "app="+app, "-o", "json")), &list); err != nil {
		n.t.Fatal(err)
	}
	pods := map[string]corev1.Pod{}
	for _, pod := range list.Items {
		pods[pod.Name] = pod
	}
	return pods
}

// podsOn returns the pods with a label on a node, which has some.
func (n *twoNodes) podsOn(app string, number int) map[string]corev1.Pod {
	n.t.Helper()
	pods := n.pods(app)
	for name, pod := range pods {
		if pod.Spec.NodeName != fmt.Sprint("agent-", number) {
			delete(pods, name)
		}
	}
	if len(pods) == 0 {
		n.t.Fatalf("no pod of %s is on node %d", app, number)
	}
	return pods
}

// network is the network of a node's host.
func (n *twoNodes) network(number int) netns.Namespace {
	return netns.At(n.fleet.Agents[number].Host.Network())
}

// checkConnections reads the log of a pod, runs a command in it and connects to its port, all through the API server, which is on another host.
func (n *twoNodes) checkConnections(number int) {
	n.t.Helper()
	for name := range n.podsOn("web", number) {
		want := ", says " + name
		// The kubelet serves when it has got a certificate.
		eventually(n.t, "the log of "+name, func() bool {
			out, err := kubectlCommand(n.Cluster, "", "logs", name)
			return err == nil && strings.Contains(string(out), name+" listens on :8080\n")
		})
		if out := n.kubectl("exec", name, "--", "/web", "http://127.0.0.1:8080"); strings.TrimSpace(out) != want {
			n.t.Errorf("exec in %s says %q, want %q", name, out, want)
		}
		out, stop := follow(n.t, n.Cluster, "port-forward", "pod/"+name, ":8080")
		defer stop()
		line, err := out.ReadString('\n')
		match := regexp.MustCompile(`^Forwarding from (127\.0\.0\.1:\d+) -> 8080`).FindStringSubmatch(line)
		if match == nil {
			n.t.Fatalf("port-forward to %s says %q (%v)", name, line, err)
		}
		response, err := (&http.Client{Timeout: 30 * time.Second}).Get("http://" + match[1])
		if err != nil {
			n.t.Fatalf("through the port of %s: %v", name, err)
		}
		defer response.Body.Close()
		if body, err := io.ReadAll(response.Body); err != nil || strings.TrimSpace(string(body)) != want {
			n.t.Errorf("through the port of %s: %q, %v, want %q", name, body, err, want)
		}
		return
	}
}

// startClients starts on each node a client in a pod, and one outside that uses the port of the node.
func (n *twoNodes) startClients() {
	n.t.Helper()
	clusterIP := n.kubectl("get", "service", "web", "-o", "jsonpath={.spec.clusterIP}")
	for number, agent := range n.fleet.Agents {
		pod := fmt.Sprint("client-", number)
		address := netip.MustParseAddr(n.kubectl("get", "pod", pod, "-o", "jsonpath={.status.podIP}"))
		places := []*serviceClient{
			{name: pod, network: n.podNetwork(pod), source: address, url: "http://" + clusterIP},
			{name: fmt.Sprint("outside, by node ", number), source: netip.MustParseAddr("10.88.0.1"), url: "http://" + agent.Host.Address + ":30779"},
		}
		for _, place := range places {
			for _, keepsOpen := range []bool{false, true} {
				c := &serviceClient{name: place.name, network: place.network, source: place.source, url: place.url, nat: n.network(number), keepsOpen: keepsOpen}
				n.checkEndpoint(c)
				c.start()
				n.t.Cleanup(c.stop)
				n.clients[number] = append(n.clients[number], c)
			}
		}
	}
	n.awaitRequests(time.Now(), n.clients[0], n.clients[1])
}

// podNetwork is the network of a pod's process.
func (n *twoNodes) podNetwork(name string) netns.Namespace {
	n.t.Helper()
	for _, p := range cluster.PodProcesses() {
		if p.Name == name {
			file, err := os.Open(filepath.Join(p.Dir, "ns/net"))
			if err != nil {
				n.t.Fatal(err)
			}
			n.t.Cleanup(func() { file.Close() })
			return netns.At(fmt.Sprintf("/proc/self/fd/%d", file.Fd()))
		}
	}
	n.t.Fatalf("%s has no process", name)
	return netns.Namespace{}
}

// checkEndpoint checks that it is known to which pod a request of a client went: the one that answers.
func (n *twoNodes) checkEndpoint(c *serviceClient) {
	n.t.Helper()
	pods := n.pods("web")
	eventually(n.t, "an answer to "+c.name, func() bool {
		connection := c.connection()
		defer connection.CloseIdleConnections()
		r := c.send(connection)
		if r.err != nil {
			return false // the Service may be unknown to the node
		}
		endpoint, err := c.endpoint(connection)
		if pod, ok := pods[r.pod]; err != nil || !ok || endpoint.String() != pod.Status.PodIP {
			n.t.Fatalf("%s: %s answers, which has %s; the request went to %s, %v", c.name, r.pod, pod.Status.PodIP, endpoint, err)
		}
		return true
	})
}

// awaitRequests waits until every client has some answers to requests that were sent after a time.
func (n *twoNodes) awaitRequests(since time.Time, groups ...[]*serviceClient) {
	n.t.Helper()
	for _, c := range slices.Concat(groups...) {
		eventuallyWithin(n.t, stageTimeout, "answers to "+c.String(), func() bool {
			return countRequests(c.results(), func(r serviceRequest) bool { return r.err == nil && r.began.After(since) }) >= 20
		})
	}
}

// checkNoFailure checks that all requests of clients were answered.
func (n *twoNodes) checkNoFailure(groups ...[]*serviceClient) {
	n.t.Helper()
	for _, c := range slices.Concat(groups...) {
		var problems []string
		for _, r := range c.results() {
			if r.err != nil {
				problems = append(problems, r.String())
			}
		}
		n.report(c, problems)
	}
}

// report reports requests of a client: all problems are of a few kinds.
func (n *twoNodes) report(c *serviceClient, problems []string) {
	n.t.Helper()
	if len(problems) > 0 {
		n.t.Errorf("%s: %d requests, the first are\n%s", c, len(problems), strings.Join(problems[:min(len(problems), 5)], "\n"))
	}
}

// update replaces all pods by those of another image.
func (n *twoNodes) update() {
	n.t.Helper()
	before, began := n.pods("web"), time.Now()
	n.kubectl("set", "image", "deployment/web", "c="+webImage+"2")
	n.kubectl("rollout", "status", "deployment/web", "--timeout="+stageTimeout.String())
	eventuallyWithin(n.t, stageTimeout, "the former pods are gone", func() bool { return len(n.pods("web")) == 4 })
	updated := time.Now()
	n.awaitRequests(updated, n.clients[0], n.clients[1])
	n.checkNoFailure(n.clients[0], n.clients[1])
	after, requests := n.pods("web"), 0
	for name, pod := range after {
		if _, ok := before[name]; ok || pod.Spec.Containers[0].Image != webImage+"2" {
			n.t.Errorf("after the update %s has the image %s", name, pod.Spec.Containers[0].Image)
		}
	}
	for _, c := range slices.Concat(n.clients[0], n.clients[1]) {
		var problems []string
		for _, r := range c.results() {
			requests++
			if _, ok := after[r.pod]; !ok && r.began.After(updated) {
				problems = append(problems, r.String()+", which is not one of the pods after the update")
			}
		}
		n.report(c, problems)
	}
	n.t.Logf("the update took %s; %d requests were answered until then", updated.Sub(began).Round(time.Millisecond), requests)
}

// loseNode cuts the network of a node, ends all that runs there, and brings the node back when its pods run on the other one.
func (n *twoNodes) loseNode() {
	n.t.Helper()
	for _, c := range n.clients[lostNode] {
		c.stop() // they are lost with the node
	}
	n.checkNoFailure(n.clients[lostNode])
	lost, lostIdentities := n.podsOn("web", lostNode), n.podsOn("identity", lostNode)
	agent := n.fleet.Agents[lostNode]
	cut := time.Now()
	if err := agent.Host.SetLink(false); err != nil {
		n.t.Fatal(err)
	}
	agent.Process.Kill()
	reboot(n.t, agent.Dir, "/"+agent.Host.Name)
	if left := n.processesOf(lost, lostIdentities); len(left) > 0 {
		n.t.Fatalf("processes of the lost node: %v", left)
	}
	agent.Host.Remove()

	gone := n.awaitEndpointsGone(lost)
	n.kubectl("wait", "--for=condition=Ready=Unknown", "node/"+agent.Host.Name, "--timeout="+stageTimeout.String())
	eventuallyWithin(n.t, stageTimeout, "four pods are ready on the other node", func() bool {
		ready := 0
		for _, pod := range n.pods("web") {
			if pod.DeletionTimestamp == nil && pod.Spec.NodeName == fmt.Sprint("agent-", otherNode) && condition(pod, corev1.PodReady) != nil {
				ready++
			}
		}
		return ready == 4
	})
	n.t.Logf("the Service had no endpoints on the lost node after %s, and four pods elsewhere after %s", gone.Sub(cut).Round(time.Millisecond), time.Since(cut).Round(time.Millisecond))
	// Nobody knows whether the pods of the lost node still run. Those with an identity have no successors yet.
	for name, old := range lostIdentities {
		if pod, ok := n.pods("identity")[name]; !ok || pod.UID != old.UID || pod.DeletionTimestamp == nil {
			n.t.Errorf("%s of the lost node is %s now, was %s; to be deleted: %v", name, pod.UID, old.UID, pod.DeletionTimestamp)
		}
	}
	n.returnNode(lost, lostIdentities)
	n.awaitRequests(gone, n.clients[otherNode])
	for _, c := range n.clients[otherNode] {
		c.stop()
	}
	n.checkLoss(lost, cut, gone)
}

// processesOf returns the processes of pods.
func (n *twoNodes) processesOf(groups ...map[string]corev1.Pod) (found []cluster.PodProcess) {
	return slices.DeleteFunc(cluster.PodProcesses(), func(p cluster.PodProcess) bool {
		return !slices.ContainsFunc(groups, func(pods map[string]corev1.Pod) bool { return string(pods[p.Name].UID) == p.UID })
	})
}

// awaitEndpointsGone waits until the other node sends nothing to pods that were lost, and returns when that was so.
func (n *twoNodes) awaitEndpointsGone(lost map[string]corev1.Pod) time.Time {
	n.t.Helper()
	var gone time.Time
	for name, pod := range lost {
		eventuallyWithin(n.t, stageTimeout, name+" is no endpoint", func() bool {
			gone = time.Now()
			return !hasEndpoint(n.t, n.network(otherNode), pod.Status.PodIP)
		})
	}
	// The last one was read at a time at which the others had been seen to be gone.
	return gone
}

// returnNode starts the lost node again. Its pods are removed, and none of them runs there again; those with an identity get their successors then.
func (n *twoNodes) returnNode(lost, lostIdentities map[string]corev1.Pod) {
	n.t.Helper()
	n.identities.Forget()
	if err := n.fleet.StartAgent(lostNode); err != nil {
		n.t.Fatal(err)
	}
	n.kubectl("wait", "--for=condition=Ready", fmt.Sprint("node/agent-", lostNode), "--timeout="+stageTimeout.String())
	eventuallyWithin(n.t, stageTimeout, "the pods of the lost node are removed", func() bool {
		for name := range n.pods("web") {
			if _, ok := lost[name]; ok {
				return false
			}
		}
		return true
	})
	eventuallyWithin(n.t, stageTimeout, "the identities of the lost node run again", func() bool {
		pods, started := n.pods("identity"), n.identities.Started()
		for name, old := range lostIdentities {
			// A pod may be ready before its process is observed.
			if pod, ok := pods[name]; !ok || pod.UID == old.UID || condition(pod, corev1.PodReady) == nil || len(started[name]) == 0 {
				return false
			}
		}
		return true
	})
	address := n.fleet.Agents[lostNode].Host.Address + ":30779"
	eventuallyWithin(n.t, stageTimeout, "the Service answers at "+address, func() bool { _, err := get(address); return err == nil })
	for _, text := range n.identities.Twice() {
		n.t.Errorf("two pods with the same identity ran at the same time: %s", text)
	}
	started := n.identities.Started()
	for _, pods := range []map[string]corev1.Pod{lost, lostIdentities} {
		for name, pod := range pods {
			if slices.Contains(started[name], string(pod.UID)) {
				n.t.Errorf("%s, a pod of the lost node, was started again", name)
			}
		}
	}
	for name := range lostIdentities {
		if len(started[name]) != 1 {
			n.t.Errorf("%s has run as %v since the node is back, want one successor", name, started[name])
		}
	}
}

// checkLoss checks the requests of the clients that do not depend on the lost node: those that failed went to one of its pods, and were sent before the Service
// had no endpoints there. Meanwhile others were answered.
func (n *twoNodes) checkLoss(lost map[string]corev1.Pod, cut, gone time.Time) {
	n.t.Helper()
	isLost := map[string]bool{}
	for _, pod := range lost {
		isLost[pod.Status.PodIP] = true
	}
	const slot = 5 * time.Second
	answered := make([]int, gone.Sub(cut)/slot+1)
	failed, total := 0, 0
	n.t.Logf("the node was lost at %s, its endpoints were gone at %s, its pods had %v", clock(cut), clock(gone), slices.Sorted(maps.Keys(isLost)))
	for _, c := range n.clients[otherNode] {
		var problems []string
		for _, r := range c.results() {
			total++
			if r.err == nil {
				if r.began.After(cut) && r.began.Before(gone) {
					answered[r.began.Sub(cut)/slot]++
				}
				continue
			}
			failed++
			if r.ended.Before(cut) || r.began.After(gone) || !isLost[r.endpoint.String()] {
				problems = append(problems, r.String())
			}
		}
		n.report(c, problems)
	}
	if failed == 0 {
		n.t.Error("no request failed: no client had a connection to the lost node")
	}
	for i, count := range answered[:len(answered)-1] {
		if count == 0 {
			n.t.Errorf("no request that was sent from %s to %s after the loss was answered", time.Duration(i)*slot, time.Duration(i+1)*slot)
		}
	}
	n.t.Logf("%d of %d requests failed; in each %s after the loss %v were answered", failed, total, slot, answered)
}
