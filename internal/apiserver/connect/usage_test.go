package connect

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const summary = `{"node":{"nodeName":"n","cpu":{"time":"2026-01-02T03:04:05Z","usageNanoCores":250000000},"memory":{"workingSetBytes":1048576}},
"pods":[
 {"podRef":{"name":"p","namespace":"ns","uid":"u"},"containers":[
  {"name":"a","cpu":{"time":"2026-01-02T03:04:05Z","usageNanoCores":1000000},"memory":{"workingSetBytes":1024}},
  {"name":"b","cpu":{"time":"2026-01-02T03:04:05Z","usageNanoCores":2000000},"memory":{"workingSetBytes":2048}}]},
 {"podRef":{"name":"young","namespace":"ns","uid":"y"},"containers":[{"name":"a","cpu":{"time":"2026-01-02T03:04:05Z"},"memory":{"workingSetBytes":1}}]},
 {"podRef":{"name":"p","namespace":"ns","uid":"before"},"containers":[{"name":"a","cpu":{"usageNanoCores":9},"memory":{"workingSetBytes":9}}]},
 {"podRef":{"name":"elsewhere","namespace":"ns","uid":"e"},"containers":[{"name":"a","cpu":{"usageNanoCores":9},"memory":{"workingSetBytes":9}}]},
 {"podRef":{"name":"idle","namespace":"ns","uid":"i"},"containers":[]}]}`

// TestMetrics: a kubelet is believed about its own pods only, and about those whose use it knows whole.
func TestMetrics(t *testing.T) {
	var asked atomic.Int32
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		if r.URL.String() != "/stats/summary?only_cpu_and_memory=true" {
			t.Errorf("asked for %s", r.URL)
		}
		fmt.Fprint(w, summary)
	}))
	t.Cleanup(s.Close)
	_, there := world(t, s, "a", "b")
	there["pods ns/p"].(*corev1.Pod).UID = "u"
	there["pods ns/p"].(*corev1.Pod).Labels = map[string]string{"app": "web"}
	for name, uid := range map[string]string{"young": "y", "elsewhere": "e", "idle": "i"} {
		pod := there["pods ns/p"].(*corev1.Pod).DeepCopy()
		pod.Name, pod.UID = name, types.UID(uid)
		if name == "elsewhere" {
			pod.Spec.NodeName = "other"
		}
		there["pods ns/"+name] = pod
	}
	ready := []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	there["nodes /n"].(*corev1.Node).Status.Conditions = ready
	there["nodes /silent"] = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "silent"}, Status: corev1.NodeStatus{Conditions: ready}}
	there["nodes /down"] = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "down"}}
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	m := NewMetrics(Config{Objects: there, Kubelet: &tls.Config{RootCAs: roots}})
	pods, err := m.PodMetrics(t.Context())
	if err != nil || len(pods) != 1 || pods[0].Name != "p" || pods[0].Labels["app"] != "web" || len(pods[0].Containers) != 2 {
		t.Fatalf("%v %v", pods, err)
	}
	if c := pods[0].Containers[1]; c.Name != "b" || c.Usage.Cpu().String() != "2m" || c.Usage.Memory().String() != "2Ki" {
		t.Errorf("%v", c)
	}
	nodes, err := m.NodeMetrics(t.Context())
	if err != nil || len(nodes) != 1 || nodes[0].Name != "n" || nodes[0].Usage.Cpu().String() != "250m" || nodes[0].Usage.Memory().String() != "1Mi" {
		t.Errorf("%v %v", nodes, err)
	}
	if asked.Load() != 1 {
		t.Errorf("the kubelet was asked %d times", asked.Load())
	}
	if !strings.HasPrefix(pods[0].Window.Duration.String(), "10s") {
		t.Errorf("window %s", pods[0].Window.Duration)
	}
}

// A kubelet is not believed about the pods of another node, whose name it claims.
func TestMetricsOfAnotherNode(t *testing.T) {
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, summary) }))
	t.Cleanup(s.Close)
	_, objects := world(t, s, "a", "b")
	objects["pods ns/p"].(*corev1.Pod).UID = "u"
	liar := objects["nodes /n"].(*corev1.Node)
	liar.Name, liar.Status.Conditions = "liar", []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	delete(objects, "nodes /n")
	objects["nodes /liar"], objects["nodes /n"] = liar, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	m := NewMetrics(Config{Objects: objects, Kubelet: &tls.Config{RootCAs: roots}})
	pods, err := m.PodMetrics(t.Context())
	nodes, nodesErr := m.NodeMetrics(t.Context())
	if err != nil || nodesErr != nil || len(pods) != 0 || len(nodes) != 0 {
		t.Errorf("pods %v, %v, nodes %v, %v", pods, err, nodes, nodesErr)
	}
}

// Requests for metrics share one query. Each waits for it as long as its own client does, and the query ends with none of them.
func TestMetricsOfSlowKubelet(t *testing.T) {
	queried, released := make(chan struct{}, 8), make(chan struct{})
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		queried <- struct{}{}
		<-released
		fmt.Fprint(w, summary)
	}))
	t.Cleanup(s.Close)
	_, objects := world(t, s, "a", "b")
	objects["nodes /n"].(*corev1.Node).Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	m := NewMetrics(Config{Objects: objects, Kubelet: &tls.Config{RootCAs: roots}})
	first, cancelFirst := context.WithCancel(t.Context())
	firstErr := make(chan error, 1)
	go func() {
		_, err := m.NodeMetrics(first)
		firstErr <- err
	}()
	<-queried
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := m.NodeMetrics(canceled); !errors.Is(err, context.Canceled) {
		t.Errorf("a second client that disconnects: %v", err)
	}
	cancelFirst()
	if err := <-firstErr; !errors.Is(err, context.Canceled) {
		t.Errorf("the first client disconnects: %v", err)
	}
	third := make(chan int, 1)
	go func() {
		nodes, err := m.NodeMetrics(t.Context())
		if err != nil {
			t.Error(err)
		}
		third <- len(nodes)
	}()
	close(released)
	if n := <-third; n != 1 {
		t.Errorf("the third client got the metrics of %d nodes", n)
	}
	if len(queried) != 0 {
		t.Errorf("the kubelet was queried %d times", 1+len(queried))
	}
}
