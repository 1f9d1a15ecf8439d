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

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
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
