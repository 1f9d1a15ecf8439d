package churn

import (
	"context"
	"embed"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clientset "k8s.io/client-go/kubernetes"

	"skiff/test/cluster"
)

//go:embed testdata/*.yaml
var manifests embed.FS

const (
	durationVariable = "SKIFF_CHURN_DURATION"
	serversVariable  = "SKIFF_CHURN_SERVERS"

	// shortRounds are the rounds of the run that is part of all tests.
	shortRounds = 3
	// changes is how often a round changes its ConfigMap.
	changes = 200
	// settleTimeout bounds the time until nothing is left of a round's pods.
	settleTimeout = time.Minute
	// firstServer is the number of the host of the second server.
	firstServer = 51
)

func TestMain(m *testing.M) {
	cluster.Main(m, cluster.Needs{Images: []string{"busybox", "pause"}})
}

// TestChurn makes rounds of creating, changing and deleting, for SKIFF_CHURN_DURATION or only a few, in a cluster with one server, or with as many as
// SKIFF_CHURN_SERVERS says and a second node.
func TestChurn(t *testing.T) {
	var duration time.Duration
	servers := 1
	var err error
	if text := os.Getenv(durationVariable); text != "" {
		if duration, err = time.ParseDuration(text); err != nil {
			t.Fatalf("%s: %v", durationVariable, err)
		}
	}
	if text := os.Getenv(serversVariable); text != "" {
		if servers, err = strconv.Atoi(text); err != nil {
			t.Fatalf("%s: %v", serversVariable, err)
		}
	}
	h := newHarness(t, servers)
	var samples []sample
	var first sample
	for began, n := time.Now(), 1; n <= shortRounds || time.Since(began) < duration; n++ {
		roundBegan := time.Now()
		h.round(n)
		s := h.settle(first)
		if first == nil {
			first = s // what the first round has started and every other one uses
		}
		samples = append(samples, s)
		t.Logf("round %d took %v: %s", n, time.Since(roundBegan).Round(time.Millisecond), s)
	}
	if duration > 0 && len(samples) < minSamples {
		t.Errorf("%d rounds are too few to see growth", len(samples))
	}
	for _, grown := range growth(samples) {
		t.Error(grown)
	}
}

// String lists the values in order.
func (s sample) String() string {
	var values []string
	for q, value := range s {
		values = append(values, fmt.Sprintf("%s %.4g", q, value))
	}
	slices.Sort(values)
	return strings.Join(values, ", ")
}

// harness is the cluster of a test.
type harness struct {
	t *testing.T
	// cluster is the first server with its node, last the server that clients use.
	cluster, last *cluster.Cluster
	clients       map[string]clientset.Interface
	nodes         []string
}

func newHarness(t *testing.T, servers int) *harness {
	t.Helper()
	h := &harness{t: t, clients: map[string]clientset.Interface{}}
	var flags []string
	if servers > 1 {
		flags = append(flags, "--cluster-init")
	}
	var err error
	if h.cluster, err = cluster.SkiffNode(t.TempDir(), flags...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.cluster.Stop)
	h.addClient(h.cluster)
	h.last = h.cluster
	for i := range servers - 1 {
		if h.last, err = h.cluster.AddServer(firstServer + i); err != nil {
			t.Fatal(err)
		}
		h.addClient(h.last)
	}
	if servers > 1 {
		if err := h.cluster.AddNode(); err != nil {
			t.Fatal(err)
		}
	}
	nodes, err := h.client().CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, node := range nodes.Items {
		h.nodes = append(h.nodes, node.Name)
	}
	return h
}

func (h *harness) addClient(server *cluster.Cluster) {
	h.t.Helper()
	config, err := server.Config()
	if err != nil {
		h.t.Fatal(err)
	}
	h.clients[server.Name] = clientset.NewForConfigOrDie(config)
}

func (h *harness) client() clientset.Interface { return h.clients[h.last.Name] }

// kubectl runs kubectl as administrator, and fails the test if it fails.
func (h *harness) kubectl(input string, args ...string) string {
	h.t.Helper()
	out, err := cluster.Kubectl(h.last.Kubeconfig, input, args...)
	if err != nil {
		h.t.Fatalf("kubectl %s: %v\n%s\nthe server's log ends:\n%s", strings.Join(args, " "), err, out, h.cluster.Server[0].Log(20))
	}
	return string(out)
}

// round creates, changes and deletes everything once.
func (h *harness) round(n int) {
	h.t.Helper()
	namespace := fmt.Sprintf("churn-%d", n)
	in := func(args ...string) string {
		h.t.Helper()
		return h.kubectl("", append([]string{"-n", namespace}, args...)...)
	}
	h.kubectl(h.manifest("round", n), "apply", "-f", "-")
	in("rollout", "status", "deployment/web", "--timeout=3m")
	in("rollout", "status", "statefulset/db", "--timeout=3m")
	in("wait", "job/work", "--for=condition=Complete", "--timeout=3m")
	in("wait", "crd/things.churn.example.com", "--for=condition=Established", "--timeout=1m")
	h.kubectl(h.manifest("thing", n), "apply", "-f", "-")
	in("exec", "db-0", "--", "cat", "/data/started")
	if logs := in("logs", "deployment/web", "-c", "c"); !strings.Contains(logs, "hello") {
		h.t.Errorf("the log of a pod is %q", logs)
	}
	in("set", "env", "deployment/web", "VERSION=2")
	in("rollout", "status", "deployment/web", "--timeout=3m")
	in("scale", "deployment/web", "--replicas=1")
	h.change(namespace)
	in("delete", "pod/db-0", "--timeout=1m")
	in("rollout", "status", "statefulset/db", "--timeout=3m")
	h.kubectl("", "delete", "crd/things.churn.example.com", "namespace/"+namespace, "--timeout=3m")
}

// manifest returns the objects of a round.
func (h *harness) manifest(name string, n int) string {
	h.t.Helper()
	data, err := manifests.ReadFile("testdata/" + name + ".yaml")
	if err != nil {
		h.t.Fatal(err)
	}
	return strings.ReplaceAll(string(data), "ROUND", strconv.Itoa(n))
}

// change changes an object many times.
func (h *harness) change(namespace string) {
	h.t.Helper()
	text := strings.Repeat("x", 1000)
	for i := range changes {
		patch := fmt.Appendf(nil, `{"data":{"counter":"%d","text":%q}}`, i, text)
		if _, err := h.client().CoreV1().ConfigMaps(namespace).Patch(h.t.Context(), "settings", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			h.t.Fatal(err)
		}
	}
}

// settle waits until no more is left of pods than in the first sample, and measures. It fails the test if something is left. The first sample itself is
// taken when what is left does not change any more.
func (h *harness) settle(first sample) sample {
	h.t.Helper()
	if first == nil {
		first = h.stable()
	}
	for deadline := time.Now().Add(settleTimeout); ; time.Sleep(100 * time.Millisecond) {
		s, err := h.measure()
		over := leftovers(first, s)
		if err == nil && len(over) == 0 {
			return s
		}
		if time.Now().After(deadline) {
			h.t.Fatalf("left behind: %s (%v)", strings.Join(over, ", "), err)
		}
	}
}

// stable measures until nothing is removed any more for a second.
func (h *harness) stable() sample {
	h.t.Helper()
	var last sample
	for deadline := time.Now().Add(settleTimeout); ; time.Sleep(time.Second) {
		s, err := h.measure()
		if err == nil && last != nil && len(leftovers(s, last)) == 0 && len(leftovers(last, s)) == 0 {
			return s
		}
		if time.Now().After(deadline) {
			h.t.Fatalf("the hosts do not come to rest: %s after %s (%v)", s, last, err)
		}
		last = s
	}
}

// leftovers returns what pods have left behind since the first sample, which may be nil.
func leftovers(first, now sample) []string {
	var over []string
	for q, before := range first {
		if slices.Contains(leftoverQuantities, q.name) && now[q] > before {
			over = append(over, fmt.Sprintf("%s: %v, was %v", q, now[q], before))
		}
	}
	slices.Sort(over)
	return over
}

func (h *harness) measure() (sample, error) {
	ctx, cancel := context.WithTimeout(h.t.Context(), time.Minute)
	defer cancel()
	s := sample{}
	for i, p := range append(slices.Clone(h.cluster.Server), h.cluster.Others...) {
		if err := measureProcess(s, fmt.Sprintf("process %d (%s)", i, p.Name), p); err != nil {
			return nil, err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(h.clients)) {
		if err := measureMetrics(ctx, s, metricsSource{name, h.clients[name].CoreV1().RESTClient(), "/metrics"}, goroutines, databaseMiB); err != nil {
			return nil, err
		}
	}
	for _, node := range h.nodes {
		if err := measureMetrics(ctx, s, metricsSource{"kubelet " + node, h.client().CoreV1().RESTClient(), "/api/v1/nodes/" + node + "/proxy/metrics"}, goroutines); err != nil {
			return nil, err
		}
	}
	return s, measureHosts(s)
}
