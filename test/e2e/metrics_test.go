package e2e

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"skiff/test/cluster"
)

// absentEtcdMetrics are metrics of etcd that an etcd inside of skiff does not have, by prefix, with the reason.
var absentEtcdMetrics = map[string]string{
	"etcd_debugging_":    "etcd does not promise that they stay",
	"etcd_network_":      "the embedded etcd has no peers, and its client is in the same process",
	"etcd_grpc_proxy_":   "there is no proxy",
	"etcd_cluster_":      "the version of a cluster is for its other members",
	"etcd_server_client": "the client is in the same process",
	"etcd_server_health": "the health of the embedded etcd is a check of /readyz and /livez, whose results /metrics/slis counts",
}

// TestUpstreamMetrics runs the same workload on upstream and on skiff. Whatever stable or beta metric upstream's programs then show, and
// whatever metric etcd shows, skiff has with the same type and the same labels, unless the lists of absent metrics have a reason.
func TestUpstreamMetrics(t *testing.T) {
	t.Parallel()
	theirs, ours := upstreamFamilies(t), skiffFamilies(t)
	listed, absent := listedMetrics(t), absentMetrics(t)
	compared := 0
	for name, family := range theirs {
		if reason := absentReason(name, absent); reason != "" {
			if ours[name] != nil && !strings.HasPrefix(name, "etcd_") {
				t.Errorf("%s exists, but is listed as absent: %s", name, reason)
			}
			continue
		}
		if isStable := strings.Contains(family.GetHelp(), "[STABLE]") || strings.Contains(family.GetHelp(), "[BETA]"); isStable && !listed[name] {
			t.Errorf("%s is not in the list of upstream's metrics", name)
		}
		compared++
		own := ours[name]
		switch {
		case own == nil:
			t.Errorf("skiff does not show %s", name)
		case own.GetType() != family.GetType():
			t.Errorf("%s is a %s, in upstream a %s", name, own.GetType(), family.GetType())
		case labelsOf(own) != labelsOf(family):
			t.Errorf("%s has the labels %s, in upstream %s", name, labelsOf(own), labelsOf(family))
		}
	}
	if compared < 60 {
		t.Errorf("only %d metrics are compared", compared)
	}
}

func absentReason(name string, absent map[string]string) string {
	if reason := absent[name]; reason != "" {
		return reason
	}
	for prefix, reason := range absentEtcdMetrics {
		if strings.HasPrefix(name, prefix) {
			return reason
		}
	}
	return ""
}

// labelsOf are the labels of a family's first series.
func labelsOf(family *dto.MetricFamily) string {
	var names []string
	for _, label := range family.Metric[0].Label {
		names = append(names, label.GetName())
	}
	slices.Sort(names)
	return strings.Join(names, ",")
}

// upstreamFamilies are the stable and beta metrics of upstream's programs, and the metrics of etcd.
func upstreamFamilies(t *testing.T) map[string]*dto.MetricFamily {
	dir := t.TempDir()
	etcd, url, err := cluster.Etcd(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(etcd.Stop)
	c, err := cluster.UpstreamAPI(filepath.Join(dir, "api"), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	ports := map[string]string{}
	for name, start := range map[string]func(...string) error{"controllers": c.ControllerManager, "scheduler": c.Scheduler} {
		port, err := cluster.FreePort()
		if err != nil {
			t.Fatal(err)
		}
		ports[name] = "https://127.0.0.1:" + strconv.Itoa(port)
		if err := start("--secure-port=" + strconv.Itoa(port)); err != nil {
			t.Fatal(err)
		}
	}
	runMeasuredWorkload(t, c)
	all := map[string]*dto.MetricFamily{}
	for _, address := range []string{c.URL + "/metrics", c.URL + "/metrics/slis", ports["controllers"] + "/metrics", ports["scheduler"] + "/metrics", ports["scheduler"] + "/metrics/resources"} {
		for name, family := range scrape(t, c, address) {
			if help := family.GetHelp(); strings.Contains(help, "[STABLE]") || strings.Contains(help, "[BETA]") {
				all[name] = family
			}
		}
	}
	for name, family := range scrape(t, c, url+"/metrics") {
		if strings.HasPrefix(name, "etcd_") {
			all[name] = family
		}
	}
	return all
}

// skiffFamilies are the metrics of a server with controllers and scheduler.
func skiffFamilies(t *testing.T) map[string]*dto.MetricFamily {
	c, err := cluster.Skiff(t.TempDir(), "--without=")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	runMeasuredWorkload(t, c)
	all := map[string]*dto.MetricFamily{}
	for _, path := range []string{"/metrics", "/metrics/slis", "/metrics/resources"} {
		for name, family := range scrape(t, c, c.URL+path) {
			all[name] = family
		}
	}
	return all
}

// runMeasuredWorkload runs pods of a deployment and of a job on hollow nodes, requests a deprecated version and begins a streaming list.
func runMeasuredWorkload(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	if _, err := c.Hollow(2, "--cpu=4"); err != nil {
		t.Fatal(err)
	}
	config, err := c.Config()
	if err != nil {
		t.Fatal(err)
	}
	k := clientset.NewForConfigOrDie(config)
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	eventually(ctx, t, "pods can be created", func(ctx context.Context) (bool, error) {
		_, err := k.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{})
		return err == nil, nil
	})
	labels := map[string]string{"app": "web"}
	pod := corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "image", Resources: corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")}, Limits: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("200m")},
	}}}}
	giant := corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "image", Resources: corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100")},
	}}}}
	jobPod := pod
	jobPod.RestartPolicy = corev1.RestartPolicyNever
	_, err = k.AppsV1().Deployments("default").Create(ctx, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: appsv1.DeploymentSpec{
		Replicas: new(int32(3)), Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: pod},
	}}, metav1.CreateOptions{})
	if err == nil {
		_, err = k.BatchV1().Jobs("default").Create(ctx, &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "job"}, Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{Spec: jobPod}}}, metav1.CreateOptions{})
	}
	if err == nil {
		_, err = k.CoreV1().Pods("default").Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "giant"}, Spec: giant}, metav1.CreateOptions{})
	}
	if err == nil {
		_, err = k.CoreV1().Services("default").Create(ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: corev1.ServiceSpec{
			Selector: labels, Ports: []corev1.ServicePort{{Port: 80}}, TrafficDistribution: new("PreferSameZone"),
		}}, metav1.CreateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	eventually(ctx, t, "three pods run and a job has finished", func(ctx context.Context) (bool, error) {
		pods, err := k.CoreV1().Pods("default").List(ctx, metav1.ListOptions{FieldSelector: "status.phase=Running", LabelSelector: "app=web"})
		if err != nil {
			return false, nil
		}
		job, err := k.BatchV1().Jobs("default").Get(ctx, "job", metav1.GetOptions{})
		return err == nil && len(pods.Items) == 3 && job.Status.CompletionTime != nil, nil
	})
	//lint:ignore SA1019 the deprecated version is requested on purpose
	if _, err := k.CoreV1().Endpoints("default").List(ctx, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	watch, err := k.CoreV1().Pods("default").Watch(ctx, metav1.ListOptions{
		SendInitialEvents: new(true), AllowWatchBookmarks: true, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Stop()
	for event := range watch.ResultChan() {
		if event.Type == "BOOKMARK" {
			break
		}
	}
	eventually(ctx, t, "the endpoints are published", func(ctx context.Context) (bool, error) {
		slices, err := k.DiscoveryV1().EndpointSlices("default").List(ctx, metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=web"})
		return err == nil && len(slices.Items) == 1 && len(slices.Items[0].Endpoints) == 3, nil
	})
	for _, path := range []string{"/healthz", "/livez", "/readyz"} {
		_, _ = k.CoreV1().RESTClient().Get().AbsPath(path).DoRaw(ctx) // only counted
	}
}

// scrape reads metrics with the credentials of the administrator. Components have self-signed certificates.
func scrape(t *testing.T, c *cluster.Cluster, url string) map[string]*dto.MetricFamily {
	t.Helper()
	config, err := c.Config()
	if err != nil {
		t.Fatal(err)
	}
	secure, err := rest.TLSConfigFor(config)
	if err != nil {
		t.Fatal(err)
	}
	if secure == nil {
		secure = &tls.Config{}
	}
	secure.InsecureSkipVerify = true
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: secure}, Timeout: time.Minute}
	defer client.CloseIdleConnections()
	var text []byte
	eventually(t.Context(), t, url+" responds", func(ctx context.Context) (bool, error) {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return false, err
		}
		if config.BearerToken != "" {
			request.Header.Set("Authorization", "Bearer "+config.BearerToken)
		}
		response, err := client.Do(request)
		if err != nil {
			return false, nil // the component may be starting
		}
		defer response.Body.Close()
		text, err = io.ReadAll(response.Body)
		if err == nil && response.StatusCode != http.StatusOK {
			err = fmt.Errorf("status %d: %s", response.StatusCode, text)
		}
		return err == nil, err
	})
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(string(text)))
	if err != nil {
		t.Fatalf("%s: %v", url, err)
	}
	return families
}

// metricLines are the lines of a list of metrics.
func metricLines(t *testing.T, name string) [][]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "internal", "system", "testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	var lines [][]string
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "#") {
			lines = append(lines, strings.Fields(line))
		}
	}
	return lines
}

func listedMetrics(t *testing.T) map[string]bool {
	all := map[string]bool{}
	for _, fields := range metricLines(t, "upstream-metrics.txt") {
		all[fields[3]] = true
	}
	return all
}

func absentMetrics(t *testing.T) map[string]string {
	all := map[string]string{}
	for _, fields := range metricLines(t, "absent-metrics.txt") {
		all[fields[0]] = strings.Join(fields[1:], " ")
	}
	return all
}
