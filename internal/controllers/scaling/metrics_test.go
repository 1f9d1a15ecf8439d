package scaling

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"

	skiffapi "skiff/internal/api"
	"skiff/internal/client"
)

// metricsServer answers paths with JSON; others are not found. It notes what it was asked.
type metricsServer struct {
	answers map[string]string
	asked   []string
}

func (s *metricsServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.asked = append(s.asked, r.URL.RequestURI())
	answer, ok := s.answers[r.URL.Path]
	if !ok {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write([]byte(answer))
}

func meterOf(t *testing.T, answers map[string]string) (*api, *metricsServer) {
	t.Helper()
	server := &metricsServer{answers: answers}
	listening := httptest.NewServer(server)
	t.Cleanup(listening.Close)
	c, err := client.New(&rest.Config{Host: listening.URL}, skiffapi.Scheme(), nil)
	if err != nil {
		t.Fatal(err)
	}
	a, err := newAPI(c)
	if err != nil {
		t.Fatal(err)
	}
	return a, server
}

func podUsage(items ...string) string {
	return `{"kind":"PodMetricsList","items":[` + strings.Join(items, ",") + `]}`
}

func usageOf(pod string, containers ...string) string {
	return fmt.Sprintf(`{"metadata":{"name":%q},"timestamp":"2026-03-01T12:00:00Z","window":"30s","containers":[%s]}`, pod, strings.Join(containers, ","))
}

func TestUsageOfPods(t *testing.T) {
	const path = "/apis/metrics.k8s.io/v1beta1/namespaces/default/pods"
	web, side := `{"name":"web","usage":{"cpu":"250m","memory":"1Ki"}}`, `{"name":"side","usage":{"cpu":"50m"}}`
	for _, test := range []struct {
		what      string
		answer    string
		resource  corev1.ResourceName
		container string
		want      string
		err       string
	}{
		{"all containers count", podUsage(usageOf("a", web, side), usageOf("b", web)), corev1.ResourceCPU, "", "a=300 b=250", ""},
		{"one container", podUsage(usageOf("a", web, side)), corev1.ResourceCPU, "side", "a=50", ""},
		{"a pod without that container says nothing", podUsage(usageOf("a", web), usageOf("b", web, side)), corev1.ResourceCPU, "side", "b=50", ""},
		{"a container without that resource makes a pod say nothing", podUsage(usageOf("a", web, side), usageOf("b", web)), corev1.ResourceMemory, "", "b=1024000", ""},
		{"nothing", podUsage(), corev1.ResourceCPU, "", "", "no metrics returned from resource metrics API"},
		{"nobody serves it", "", corev1.ResourceCPU, "", "", "unable to fetch metrics from resource metrics API: the server could not find the requested resource (get pods.metrics.k8s.io)"},
	} {
		t.Run(test.what, func(t *testing.T) {
			answers := map[string]string{}
			if test.answer != "" {
				answers[path] = test.answer
			}
			a, server := meterOf(t, answers)
			samples, err := a.usage(t.Context(), "default", labels.SelectorFromSet(labels.Set{"app": "web"}), test.resource, test.container)
			if got := sampleWords(samples); got != test.want || errorText(err) != test.err {
				t.Errorf("%q, %v; want %q, %q", got, err, test.want, test.err)
			}
			if server.asked[0] != path+"?labelSelector=app%3Dweb" {
				t.Errorf("asked %v", server.asked)
			}
			if s, ok := samples["a"]; ok && (s.window != 30*time.Second || !s.at.Equal(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))) {
				t.Errorf("measured %+v", s)
			}
		})
	}
}

func sampleWords(samples map[string]sample) string {
	var words []string
	for _, pod := range []string{"a", "b", "c"} {
		if s, ok := samples[pod]; ok {
			words = append(words, fmt.Sprintf("%s=%d", pod, s.value))
		}
	}
	return strings.Join(words, " ")
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

const (
	customGroup = `{"kind":"APIGroup","name":"custom.metrics.k8s.io","preferredVersion":{"groupVersion":"custom.metrics.k8s.io/v1beta2","version":"v1beta2"}}`
	customPath  = "/apis/custom.metrics.k8s.io/v1beta2/namespaces/default/"
	appsList    = `{"kind":"APIResourceList","groupVersion":"apps/v1","resources":[{"name":"deployments","namespaced":true,"kind":"Deployment"}]}`
)

func TestCustomMetrics(t *testing.T) {
	values := func(items ...string) string { return `{"items":[` + strings.Join(items, ",") + `]}` }
	queue := labels.SelectorFromSet(labels.Set{"queue": "mail"})
	a, server := meterOf(t, map[string]string{
		"/apis/custom.metrics.k8s.io": customGroup,
		"/apis/apps/v1":               appsList,
		customPath + "pods/*/hits": values(`{"describedObject":{"name":"a"},"timestamp":"2026-03-01T12:00:00Z","value":"1500m"}`,
			`{"describedObject":{"name":"b"},"windowSeconds":90,"value":"2"}`, `{"describedObject":{"name":"c"},"window":7,"value":"3k"}`),
		customPath + "pods/*/none":               values(),
		customPath + "deployments.apps/web/hits": values(`{"value":"42"}`),
		customPath + "deployments.apps/web/many": values(`{"value":"1"}`, `{"value":"2"}`),
		customPath + "metrics/hits":              values(`{"value":"7"}`),
	})
	samples, err := a.ofPods(t.Context(), "default", labels.SelectorFromSet(labels.Set{"app": "web"}), "hits", queue)
	if got := sampleWords(samples); err != nil || got != "a=1500 b=2000 c=3000000" || samples["a"].window != defaultWindow || samples["b"].window != 90*time.Second || samples["c"].window != 7*time.Second {
		t.Errorf("%s %+v, %v", got, samples, err)
	}
	if last := server.asked[len(server.asked)-1]; last != customPath+"pods/%2A/hits?labelSelector=app%3Dweb&metricLabelSelector=queue%3Dmail" && last != customPath+"pods/*/hits?labelSelector=app%3Dweb&metricLabelSelector=queue%3Dmail" {
		t.Errorf("asked %s", last)
	}
	if _, err := a.ofPods(t.Context(), "default", labels.Everything(), "none", labels.Everything()); errorText(err) != "no metrics returned from custom metrics API" {
		t.Error(err)
	}
	web := autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}
	for _, test := range []struct {
		what   string
		object autoscalingv2.CrossVersionObjectReference
		metric string
		want   int64
		err    string
	}{
		{"of an object", web, "hits", 42000, ""},
		{"of the namespace", autoscalingv2.CrossVersionObjectReference{APIVersion: "v1", Kind: "Namespace", Name: "default"}, "hits", 7000, ""},
		{"more than one answer", web, "many", 0, "unable to fetch metrics from custom metrics API: the custom metrics API server returned 2 results when we asked for exactly one"},
		{"no answer", web, "unknown", 0, "unable to fetch metrics from custom metrics API: the server could not find the requested resource"},
		{"an object of no kind", autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Nothing", Name: "x"}, "hits", 0, `unable to fetch metrics from custom metrics API: no matches for kind "Nothing" in group "apps"`},
	} {
		if got, err := a.ofObject(t.Context(), "default", test.object, test.metric, labels.Everything()); got != test.want || errorText(err) != test.err {
			t.Errorf("%s: %d, %v", test.what, got, err)
		}
	}
	deaf, _ := meterOf(t, nil)
	if _, err := deaf.ofObject(t.Context(), "default", autoscalingv2.CrossVersionObjectReference{APIVersion: "v1", Kind: "Namespace", Name: "default"}, "hits", labels.Everything()); !strings.HasPrefix(errorText(err), "unable to fetch metrics from custom metrics API: ") {
		t.Error(err)
	}
}

func TestExternalMetrics(t *testing.T) {
	const path = "/apis/external.metrics.k8s.io/v1beta1/namespaces/default/"
	a, server := meterOf(t, map[string]string{
		path + "jobs": `{"items":[{"value":"3"},{"value":"1500m"}]}`,
		path + "huge": fmt.Sprintf(`{"items":[{"value":"%dm"},{"value":"%dm"}]}`, int64(math.MaxInt64), int64(math.MaxInt64)),
		path + "none": `{"items":[]}`,
	})
	for _, test := range []struct {
		metric string
		want   int64
		err    string
	}{
		{"jobs", 4500, ""},
		{"huge", math.MaxInt64, ""},
		{"none", 0, "no metrics returned from external metrics API"},
		{"absent", 0, "unable to fetch metrics from external metrics API: the server could not find the requested resource"},
	} {
		if got, err := a.external(t.Context(), "default", test.metric, labels.SelectorFromSet(labels.Set{"q": "a"})); got != test.want || errorText(err) != test.err {
			t.Errorf("%s: %d, %v", test.metric, got, err)
		}
	}
	if server.asked[0] != path+"jobs?labelSelector=q%3Da" {
		t.Errorf("asked %v", server.asked)
	}
}

// fixedMeter answers every question the same way.
type fixedMeter struct {
	samples map[string]sample
	whole   int64
	err     error
}

func (m fixedMeter) usage(context.Context, string, labels.Selector, corev1.ResourceName, string) (map[string]sample, error) {
	return m.samples, m.err
}

func (m fixedMeter) ofPods(context.Context, string, labels.Selector, string, labels.Selector) (map[string]sample, error) {
	return m.samples, m.err
}

func (m fixedMeter) ofObject(context.Context, string, autoscalingv2.CrossVersionObjectReference, string, labels.Selector) (int64, error) {
	return m.whole, m.err
}

func (m fixedMeter) external(context.Context, string, string, labels.Selector) (int64, error) {
	return m.whole, m.err
}

// TestAsk asks every sort of metric: three pods that each ask for 200m of CPU.
func TestAsk(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	old := metav1.NewTime(now.Add(-time.Hour))
	var pods []*corev1.Pod
	samples := map[string]sample{}
	for _, name := range []string{"a", "b", "c"} {
		pods = append(pods, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{Containers: []corev1.Container{
			{Name: "web", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("200m")}}}}},
			Status: corev1.PodStatus{Phase: corev1.PodRunning, StartTime: &old, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: old}}}})
		samples[name] = sample{value: 300, at: now, window: time.Minute}
	}
	metric := func(name string) autoscalingv2.MetricIdentifier { return autoscalingv2.MetricIdentifier{Name: name} }
	q := func(text string) *resource.Quantity { return new(resource.MustParse(text)) }
	cpu := func(target autoscalingv2.MetricTarget) autoscalingv2.MetricSpec {
		return autoscalingv2.MetricSpec{Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricSource{Name: corev1.ResourceCPU, Target: target}}
	}
	deployment := autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}
	for _, test := range []struct {
		what  string
		spec  autoscalingv2.MetricSpec
		meter fixedMeter
		want  int32
		name  string
		fails string // the reason
	}{
		{"average usage", cpu(autoscalingv2.MetricTarget{AverageValue: q("100m")}), fixedMeter{samples: samples}, 9, "cpu resource", ""},
		{"usage as wanted", cpu(autoscalingv2.MetricTarget{AverageValue: q("300m")}), fixedMeter{samples: samples}, 3, "cpu resource", ""},
		{"usage within the tolerance", cpu(autoscalingv2.MetricTarget{AverageValue: q("280m")}), fixedMeter{samples: samples}, 3, "cpu resource", ""},
		{"utilization", cpu(autoscalingv2.MetricTarget{AverageUtilization: new(int32(50))}), fixedMeter{samples: samples}, 9, "cpu resource utilization (percentage of request)", ""},
		{"no target", cpu(autoscalingv2.MetricTarget{}), fixedMeter{samples: samples}, 0, "", "FailedGetResourceMetric"},
		{"no metrics", cpu(autoscalingv2.MetricTarget{AverageValue: q("1")}), fixedMeter{err: fmt.Errorf("none")}, 0, "", "FailedGetResourceMetric"},
		{"of one container", autoscalingv2.MetricSpec{Type: autoscalingv2.ContainerResourceMetricSourceType, ContainerResource: &autoscalingv2.ContainerResourceMetricSource{
			Name: corev1.ResourceCPU, Container: "web", Target: autoscalingv2.MetricTarget{AverageUtilization: new(int32(75))}}}, fixedMeter{samples: samples}, 6, "cpu container resource utilization (percentage of request)", ""},
		{"of a container nobody has", autoscalingv2.MetricSpec{Type: autoscalingv2.ContainerResourceMetricSourceType, ContainerResource: &autoscalingv2.ContainerResourceMetricSource{
			Name: corev1.ResourceCPU, Container: "other", Target: autoscalingv2.MetricTarget{AverageUtilization: new(int32(75))}}}, fixedMeter{samples: samples}, 0, "", "FailedGetContainerResourceMetric"},
		{"of pods", autoscalingv2.MetricSpec{Type: autoscalingv2.PodsMetricSourceType, Pods: &autoscalingv2.PodsMetricSource{Metric: metric("hits"), Target: autoscalingv2.MetricTarget{AverageValue: q("150m")}}},
			fixedMeter{samples: samples}, 6, "pods metric hits", ""},
		{"of pods, none", autoscalingv2.MetricSpec{Type: autoscalingv2.PodsMetricSourceType, Pods: &autoscalingv2.PodsMetricSource{Metric: metric("hits"), Target: autoscalingv2.MetricTarget{AverageValue: q("1")}}},
			fixedMeter{err: fmt.Errorf("none")}, 0, "", "FailedGetPodsMetric"},
		{"of an object", autoscalingv2.MetricSpec{Type: autoscalingv2.ObjectMetricSourceType, Object: &autoscalingv2.ObjectMetricSource{DescribedObject: deployment, Metric: metric("hits"),
			Target: autoscalingv2.MetricTarget{Type: autoscalingv2.ValueMetricType, Value: q("10")}}}, fixedMeter{whole: 20000}, 6, "Deployment metric hits", ""},
		{"of an object, each pod's share", autoscalingv2.MetricSpec{Type: autoscalingv2.ObjectMetricSourceType, Object: &autoscalingv2.ObjectMetricSource{DescribedObject: deployment, Metric: metric("hits"),
			Target: autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: q("5")}}}, fixedMeter{whole: 20000}, 4, "external metric hits(nil)", ""},
		{"of an object, no target", autoscalingv2.MetricSpec{Type: autoscalingv2.ObjectMetricSourceType, Object: &autoscalingv2.ObjectMetricSource{DescribedObject: deployment, Metric: metric("hits")}},
			fixedMeter{}, 0, "", "FailedGetObjectMetric"},
		{"external", autoscalingv2.MetricSpec{Type: autoscalingv2.ExternalMetricSourceType, External: &autoscalingv2.ExternalMetricSource{Metric: metric("jobs"), Target: autoscalingv2.MetricTarget{Value: q("10")}}},
			fixedMeter{whole: 5000}, 2, "external metric jobs(nil)", ""},
		{"external, each pod's share", autoscalingv2.MetricSpec{Type: autoscalingv2.ExternalMetricSourceType, External: &autoscalingv2.ExternalMetricSource{Metric: metric("jobs"), Target: autoscalingv2.MetricTarget{AverageValue: q("1")}}},
			fixedMeter{whole: 5000}, 5, "external metric jobs(nil)", ""},
		{"external, none", autoscalingv2.MetricSpec{Type: autoscalingv2.ExternalMetricSourceType, External: &autoscalingv2.ExternalMetricSource{Metric: metric("jobs"), Target: autoscalingv2.MetricTarget{Value: q("10")}}},
			fixedMeter{err: fmt.Errorf("none")}, 0, "", "FailedGetExternalMetric"},
	} {
		t.Run(test.what, func(t *testing.T) {
			look := &scalerLook{ctx: t.Context(), controller: &autoscaler{settings: DefaultAutoscaler}, meter: test.meter, pods: pods, selector: labels.Everything(), now: now,
				scaler: &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: metav1.ObjectMeta{Namespace: "default"}}}
			scale := &autoscalingv1.Scale{Spec: autoscalingv1.ScaleSpec{Replicas: 3}, Status: autoscalingv1.ScaleStatus{Replicas: 3}}
			var status autoscalingv2.MetricStatus
			got, failure := look.ask(test.spec, scale, &status)
			if failure != nil {
				if failure.reason != test.fails || failure.Unwrap() == nil || status.Type != "" {
					t.Errorf("failed with %s: %v, status %+v; want %q", failure.reason, failure, status, test.fails)
				}
				return
			}
			if test.fails != "" || got.replicas != test.want || !strings.HasPrefix(got.metric, strings.TrimSuffix(test.name, "(nil)")) || status.Type != test.spec.Type {
				t.Errorf("%d by %q, status %+v; want %d by %q", got.replicas, got.metric, status, test.want, test.name)
			}
		})
	}
}

func TestToleranceOfItsOwn(t *testing.T) {
	look := &scalerLook{controller: &autoscaler{settings: DefaultAutoscaler}, scaler: &autoscalingv2.HorizontalPodAutoscaler{}}
	if got := look.tolerance(); got.down != 0.1 || got.up != 0.1 {
		t.Errorf("by default %+v", got)
	}
	look.scaler.Spec.Behavior = &autoscalingv2.HorizontalPodAutoscalerBehavior{
		ScaleUp:   &autoscalingv2.HPAScalingRules{Tolerance: new(resource.MustParse("0.5"))},
		ScaleDown: &autoscalingv2.HPAScalingRules{Tolerance: new(resource.MustParse("0"))},
	}
	if got := look.tolerance(); got.down != 0 || got.up != 0.5 {
		t.Errorf("by its own rules %+v", got)
	}
}
