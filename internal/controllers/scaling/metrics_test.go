package scaling

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"strings"
	"testing"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
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
			a, server := apiOf(t, answers)
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
	a, server := apiOf(t, map[string]string{
		"/apis/custom.metrics.k8s.io": customGroup,
		"/apis/apps/v1":               appsList,
		customPath + "pods/*/hits": values(`{"describedObject":{"name":"a"},"timestamp":"2026-03-01T12:00:00Z","value":"1500m"}`,
			`{"describedObject":{"name":"b"},"windowSeconds":90,"value":"2"}`, `{"describedObject":{"name":"c"},"window":7,"value":"3k"}`),
		customPath + "pods/*/none":               values(),
		customPath + "deployments.apps/web/hits": values(`{"value":"42"}`),
		customPath + "deployments.apps/web/many": values(`{"value":"1"}`, `{"value":"2"}`),
		customPath + "metrics/hits":              values(`{"value":"7"}`),
	})
	samples, err := a.podMetric(t.Context(), "default", labels.SelectorFromSet(labels.Set{"app": "web"}), "hits", queue)
	if got := sampleWords(samples); err != nil || got != "a=1500 b=2000 c=3000000" || samples["a"].window != defaultWindow || samples["b"].window != 90*time.Second || samples["c"].window != 7*time.Second {
		t.Errorf("%s %+v, %v", got, samples, err)
	}
	if last := server.asked[len(server.asked)-1]; last != customPath+"pods/%2A/hits?labelSelector=app%3Dweb&metricLabelSelector=queue%3Dmail" && last != customPath+"pods/*/hits?labelSelector=app%3Dweb&metricLabelSelector=queue%3Dmail" {
		t.Errorf("asked %s", last)
	}
	if _, err := a.podMetric(t.Context(), "default", labels.Everything(), "none", labels.Everything()); errorText(err) != "no metrics returned from custom metrics API" {
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
		if got, err := a.objectMetric(t.Context(), "default", test.object, test.metric, labels.Everything()); got != test.want || errorText(err) != test.err {
			t.Errorf("%s: %d, %v", test.what, got, err)
		}
	}
	deaf, _ := apiOf(t, nil)
	if _, err := deaf.objectMetric(t.Context(), "default", autoscalingv2.CrossVersionObjectReference{APIVersion: "v1", Kind: "Namespace", Name: "default"}, "hits", labels.Everything()); !strings.HasPrefix(errorText(err), "unable to fetch metrics from custom metrics API: ") {
		t.Error(err)
	}
}

func TestExternalMetrics(t *testing.T) {
	const path = "/apis/external.metrics.k8s.io/v1beta1/namespaces/default/"
	a, server := apiOf(t, map[string]string{
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
		if got, err := a.externalMetric(t.Context(), "default", test.metric, labels.SelectorFromSet(labels.Set{"q": "a"})); got != test.want || errorText(err) != test.err {
			t.Errorf("%s: %d, %v", test.metric, got, err)
		}
	}
	if server.asked[0] != path+"jobs?labelSelector=q%3Da" {
		t.Errorf("asked %v", server.asked)
	}
}

// fixedMeter answers every question the same way.
type fixedMetrics struct {
	samples map[string]sample
	whole   int64
	err     error
}

func (m fixedMetrics) usage(context.Context, string, labels.Selector, corev1.ResourceName, string) (map[string]sample, error) {
	return m.samples, m.err
}

func (m fixedMetrics) podMetric(context.Context, string, labels.Selector, string, labels.Selector) (map[string]sample, error) {
	return m.samples, m.err
}

func (m fixedMetrics) objectMetric(context.Context, string, autoscalingv2.CrossVersionObjectReference, string, labels.Selector) (int64, error) {
	return m.whole, m.err
}

func (m fixedMetrics) externalMetric(context.Context, string, string, labels.Selector) (int64, error) {
	return m.whole, m.err
}

func TestToleranceOfItsOwn(t *testing.T) {
	autoscaler := &autoscalerSync{controller: &autoscaler{measured: newAutoscalerMetrics(), settings: DefaultAutoscaler}, scaler: &autoscalingv2.HorizontalPodAutoscaler{}}
	if got := autoscaler.tolerance(); got.down != 0.1 || got.up != 0.1 {
		t.Errorf("by default %+v", got)
	}
	autoscaler.scaler.Spec.Behavior = &autoscalingv2.HorizontalPodAutoscalerBehavior{
		ScaleUp:   &autoscalingv2.HPAScalingRules{Tolerance: new(resource.MustParse("0.5"))},
		ScaleDown: &autoscalingv2.HPAScalingRules{Tolerance: new(resource.MustParse("0"))},
	}
	if got := autoscaler.tolerance(); got.down != 0 || got.up != 0.5 {
		t.Errorf("by its own rules %+v", got)
	}
}

// TestMetricsThatCannotBeHad: every error names the API that was queried and its error.
func TestMetricsThatCannotBeHad(t *testing.T) {
	broken := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusForbidden)
		_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","message":"you may not","code":403,"details":{"kind":"pods"}}`))
	})
	nonsense := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("{")) })
	all := labels.Everything()
	namespace := autoscalingv2.CrossVersionObjectReference{APIVersion: "v1", Kind: "Namespace", Name: "default"}
	other := autoscalingv2.CrossVersionObjectReference{APIVersion: "example.com/v1", Kind: "Thing", Name: "x"}
	for what, ask := range map[string]func(a *api) error{
		"resource metrics API": func(a *api) error { _, err := a.usage(t.Context(), "default", all, "cpu", ""); return err },
		"custom metrics API":   func(a *api) error { _, err := a.podMetric(t.Context(), "default", all, "hits", all); return err },
		"custom metrics API of the namespace": func(a *api) error {
			_, err := a.objectMetric(t.Context(), "default", namespace, "hits", all)
			return err
		},
		"external metrics API": func(a *api) error { _, err := a.externalMetric(t.Context(), "default", "jobs", all); return err },
	} {
		prefix := "unable to fetch metrics from " + strings.TrimSuffix(what, " of the namespace") + ": "
		if err := ask(apiAt(t, broken)); errorText(err) != prefix+"you may not" {
			t.Errorf("%s, forbidden: %v", what, err)
		}
		if err := ask(apiAt(t, nonsense)); !strings.HasPrefix(errorText(err), prefix) {
			t.Errorf("%s, nonsense: %v", what, err)
		}
	}
	if _, err := apiAt(t, broken).objectMetric(t.Context(), "default", other, "hits", all); errorText(err) != "unable to fetch metrics from custom metrics API: discover example.com/v1: you may not" {
		t.Errorf("an object whose kind cannot be found out: %v", err)
	}
}

// TestExternalSums: many series are one sum, which never turns over.
func TestExternalSums(t *testing.T) {
	const path = "/apis/external.metrics.k8s.io/v1beta1/namespaces/default/jobs"
	huge := fmt.Sprintf("%dm", int64(math.MaxInt64))
	for _, test := range []struct {
		values []string
		want   int64
	}{
		{[]string{"0"}, 0}, {[]string{"1", "2", "3"}, 6000}, {[]string{"1m", "1m"}, 2}, {[]string{"5", "-2"}, 3000}, {[]string{"-1"}, -1000}, {[]string{"1n"}, 1},
		{[]string{huge}, math.MaxInt64}, {[]string{huge, "1m"}, math.MaxInt64}, {[]string{"1m", huge}, math.MaxInt64}, {[]string{huge, "-1m"}, math.MaxInt64 - 1}, {[]string{"-1m", huge}, math.MaxInt64 - 1},
	} {
		var items []string
		for _, v := range test.values {
			items = append(items, fmt.Sprintf(`{"value":%q}`, v))
		}
		a, _ := apiOf(t, map[string]string{path: `{"items":[` + strings.Join(items, ",") + `]}`})
		if got, err := a.externalMetric(t.Context(), "default", "jobs", labels.Everything()); err != nil || got != test.want {
			t.Errorf("%v: %d, %v; want %d", test.values, got, err, test.want)
		}
	}
}

// TestSeriesSelectors: a selector goes along when there is one, and only then.
func TestSeriesSelectors(t *testing.T) {
	const pods = customPath + "pods/*/hits"
	queue := labels.SelectorFromSet(labels.Set{"queue": "mail"})
	for _, test := range []struct {
		what         string
		pods, series labels.Selector
		want         string
	}{
		{"neither", labels.Everything(), labels.Everything(), ""},
		{"pods", queue, labels.Everything(), "labelSelector=queue%3Dmail"},
		{"series", labels.Everything(), queue, "metricLabelSelector=queue%3Dmail"},
		{"both", queue, queue, "labelSelector=queue%3Dmail&metricLabelSelector=queue%3Dmail"},
	} {
		a, server := apiOf(t, map[string]string{"/apis/custom.metrics.k8s.io": customGroup, pods: `{"items":[{"describedObject":{"name":"a"},"value":"1"}]}`})
		if _, err := a.podMetric(t.Context(), "default", test.pods, "hits", test.series); err != nil {
			t.Errorf("%s: %v", test.what, err)
		}
		if _, query, _ := strings.Cut(server.asked[len(server.asked)-1], "?"); query != test.want {
			t.Errorf("%s: asked with %q", test.what, query)
		}
	}
	for what, selector := range map[string]*metav1.LabelSelector{"none": nil, "an empty one": {}} {
		if got, err := metricSelector(selector); err != nil || !got.Empty() {
			t.Errorf("%s: %v, %v", what, got, err)
		}
	}
}
