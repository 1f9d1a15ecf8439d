package scaling

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// The targets of metrics.
func perPod(q string) autoscalingv2.MetricTarget {
	return autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: new(resource.MustParse(q))}
}

func inAll(q string) autoscalingv2.MetricTarget {
	return autoscalingv2.MetricTarget{Type: autoscalingv2.ValueMetricType, Value: new(resource.MustParse(q))}
}

func share(percent int32) autoscalingv2.MetricTarget {
	return autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType, AverageUtilization: &percent}
}

// The five sorts of metrics.
func resourceMetric(name corev1.ResourceName, target autoscalingv2.MetricTarget) autoscalingv2.MetricSpec {
	return autoscalingv2.MetricSpec{Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricSource{Name: name, Target: target}}
}

func containerMetric(container string, name corev1.ResourceName, target autoscalingv2.MetricTarget) autoscalingv2.MetricSpec {
	return autoscalingv2.MetricSpec{Type: autoscalingv2.ContainerResourceMetricSourceType,
		ContainerResource: &autoscalingv2.ContainerResourceMetricSource{Container: container, Name: name, Target: target}}
}

func podsMetric(name string, target autoscalingv2.MetricTarget) autoscalingv2.MetricSpec {
	return autoscalingv2.MetricSpec{Type: autoscalingv2.PodsMetricSourceType, Pods: &autoscalingv2.PodsMetricSource{Metric: autoscalingv2.MetricIdentifier{Name: name}, Target: target}}
}

func objectMetric(name string, target autoscalingv2.MetricTarget) autoscalingv2.MetricSpec {
	return autoscalingv2.MetricSpec{Type: autoscalingv2.ObjectMetricSourceType, Object: &autoscalingv2.ObjectMetricSource{Metric: autoscalingv2.MetricIdentifier{Name: name}, Target: target,
		DescribedObject: autoscalingv2.CrossVersionObjectReference{APIVersion: "networking.k8s.io/v1", Kind: "Ingress", Name: "door"}}}
}

func externalMetric(name string, target autoscalingv2.MetricTarget) autoscalingv2.MetricSpec {
	return autoscalingv2.MetricSpec{Type: autoscalingv2.ExternalMetricSourceType, External: &autoscalingv2.ExternalMetricSource{Metric: autoscalingv2.MetricIdentifier{Name: name}, Target: target}}
}

// metricWords writes the status of a metric down.
func metricWords(s autoscalingv2.MetricStatus) string {
	value := func(v autoscalingv2.MetricValueStatus) string {
		var parts []string
		if v.AverageUtilization != nil {
			parts = append(parts, fmt.Sprintf("%d%%", *v.AverageUtilization))
		}
		if v.AverageValue != nil {
			parts = append(parts, "each "+v.AverageValue.String())
		}
		if v.Value != nil {
			parts = append(parts, "all "+v.Value.String())
		}
		return strings.Join(parts, ", ")
	}
	switch {
	case s.Resource != nil:
		return fmt.Sprintf("%s %s: %s", s.Type, s.Resource.Name, value(s.Resource.Current))
	case s.ContainerResource != nil:
		return fmt.Sprintf("%s %s of %s: %s", s.Type, s.ContainerResource.Name, s.ContainerResource.Container, value(s.ContainerResource.Current))
	case s.Pods != nil:
		return fmt.Sprintf("%s %s: %s", s.Type, s.Pods.Metric.Name, value(s.Pods.Current))
	case s.Object != nil:
		return fmt.Sprintf("%s %s of %s %s: %s", s.Type, s.Object.Metric.Name, s.Object.DescribedObject.Kind, s.Object.DescribedObject.Name, value(s.Object.Current))
	case s.External != nil:
		return fmt.Sprintf("%s %s: %s", s.Type, s.External.Metric.Name, value(s.External.Current))
	}
	return string(s.Type)
}

// TestAnswers: three ready pods that request 200m of CPU and 1Ki of memory each; what every sort of metric answers, how it is called and
// what stands in the status.
func TestAnswers(t *testing.T) {
	var pods []*corev1.Pod
	for i := range 3 {
		pods = append(pods, aPod(fmt.Sprint("p", i), func(p *corev1.Pod) {
			p.Spec.Containers = []corev1.Container{{Name: "web", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("200m"), "memory": resource.MustParse("1Ki")}}}}
		}))
	}
	selecting := func(m autoscalingv2.MetricSpec) autoscalingv2.MetricSpec {
		idOf(m).Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"queue": "mail"}}
		return m
	}
	selector := fmt.Sprintf("(%+v)", &metav1.LabelSelector{MatchLabels: map[string]string{"queue": "mail"}})
	for _, test := range []struct {
		what   string
		spec   autoscalingv2.MetricSpec
		meter  fixedMetrics
		want   int32
		name   string
		status string
	}{
		{"average use", resourceMetric("cpu", perPod("100m")), fixedMetrics{samples: uses(300, 300, 300)}, 9, "cpu resource", "Resource cpu: each 300m"},
		{"average use of memory, in powers of two", resourceMetric("memory", perPod("1Ki")), fixedMetrics{samples: uses(2048000, 2048000, 2048000)}, 6, "memory resource", "Resource memory: each 2Ki"},
		{"a share", resourceMetric("cpu", share(50)), fixedMetrics{samples: uses(200, 200, 200)}, 6, "cpu resource utilization (percentage of request)", "Resource cpu: 100%, each 200m"},
		{"a share, less", resourceMetric("cpu", share(90)), fixedMetrics{samples: uses(30, 30, 30)}, 1, "cpu resource utilization (percentage of request)", "Resource cpu: 15%, each 30m"},
		{"a share of memory", resourceMetric("memory", share(100)), fixedMetrics{samples: uses(1024000, 1024000, 1024000)}, 3, "memory resource utilization (percentage of request)", "Resource memory: 100%, each 1Ki"},
		{"one container's average", containerMetric("web", "cpu", perPod("100m")), fixedMetrics{samples: uses(200, 200, 200)}, 6, "cpu resource", "ContainerResource cpu of web: each 200m"},
		{"one container's share", containerMetric("web", "cpu", share(50)), fixedMetrics{samples: uses(200, 200, 200)}, 6, "cpu container resource utilization (percentage of request)", "ContainerResource cpu of web: 100%, each 200m"},
		{"pods", podsMetric("hits", perPod("10")), fixedMetrics{samples: uses(20000, 20000, 20000)}, 6, "pods metric hits", "Pods hits: each 20"},
		{"pods, a part of one", podsMetric("hits", perPod("10")), fixedMetrics{samples: uses(20001, 20001, 20001)}, 7, "pods metric hits", "Pods hits: each 20001m"},
		{"an object, in all", objectMetric("hits", inAll("10")), fixedMetrics{whole: 20000}, 6, "Ingress metric hits", "Object hits of Ingress door: all 20"},
		{"an object, each pod's share", objectMetric("hits", perPod("10")), fixedMetrics{whole: 61000}, 7, "external metric hits(nil)", "Object hits of Ingress door: each 20334m"},
		{"an object with series", selecting(objectMetric("hits", perPod("10"))), fixedMetrics{whole: 30000}, 3, "external metric hits" + selector, "Object hits of Ingress door: each 10"},
		{"from outside, in all", externalMetric("jobs", inAll("10")), fixedMetrics{whole: 20000}, 6, "external metric jobs(nil)", "External jobs: all 20"},
		{"from outside, each pod's share", externalMetric("jobs", perPod("10")), fixedMetrics{whole: 61000}, 7, "external metric jobs(nil)", "External jobs: each 20334m"},
		{"from outside, with series", selecting(externalMetric("jobs", inAll("10"))), fixedMetrics{whole: 30000}, 9, "external metric jobs" + selector, "External jobs: all 30"},
		{"from outside, the share goes first", externalMetric("jobs", autoscalingv2.MetricTarget{AverageValue: new(resource.MustParse("10")), Value: new(resource.MustParse("1"))}), fixedMetrics{whole: 50000}, 5, "external metric jobs(nil)", "External jobs: each 16667m"},
	} {
		autoscaler := &autoscalerSync{ctx: t.Context(), controller: &autoscaler{measured: newAutoscalerMetrics(), settings: DefaultAutoscaler}, metrics: test.meter, pods: pods, selector: labels.Everything(), now: now,
			scaler: &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: metav1.ObjectMeta{Namespace: "default"}}}
		scale := &autoscalingv1.Scale{Spec: autoscalingv1.ScaleSpec{Replicas: 3}, Status: autoscalingv1.ScaleStatus{Replicas: 3}}
		var status autoscalingv2.MetricStatus
		got, failure := autoscaler.computeForMetric(test.spec, scale, &status)
		if failure != nil {
			t.Errorf("%s: %v", test.what, failure)
			continue
		}
		name := strings.ReplaceAll(test.name, "(nil)", fmt.Sprintf("(%+v)", (*metav1.LabelSelector)(nil)))
		if got.replicas != test.want || got.metric != name || metricWords(status) != test.status || status.Type != test.spec.Type {
			t.Errorf("%s: %d by %q, %s\nwant %d by %q, %s", test.what, got.replicas, got.metric, metricWords(status), test.want, name, test.status)
		}
	}
}

// TestRefusals: why a metric has no answer: the reason, the text of the event and the condition, and the one of all metrics together.
func TestRefusals(t *testing.T) {
	none := errors.New("no metrics")
	broken := fixedMetrics{err: none}
	bad := &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Sometimes"}}}
	const badText = `"Sometimes" is not a valid label selector operator`
	selecting := func(m autoscalingv2.MetricSpec) autoscalingv2.MetricSpec {
		idOf(m).Selector = bad
		return m
	}
	nothing := fmt.Sprintf("%+v", (*metav1.LabelSelector)(nil))
	for _, test := range []struct {
		what                string
		spec                autoscalingv2.MetricSpec
		meter               fixedMetrics
		pods                []*corev1.Pod
		reason, text, whole string
	}{
		{"a resource nobody measures", resourceMetric("cpu", perPod("1")), broken, ready(1), "FailedGetResourceMetric",
			"failed to get cpu usage: unable to get metrics for resource cpu: no metrics", "failed to get cpu resource metric value: "},
		{"its share", resourceMetric("cpu", share(50)), broken, ready(1), "FailedGetResourceMetric",
			"failed to get cpu utilization: unable to get metrics for resource cpu: no metrics", "failed to get cpu resource metric value: "},
		{"no pods", resourceMetric("cpu", perPod("1")), fixedMetrics{samples: uses(1)}, nil, "FailedGetResourceMetric",
			"failed to get cpu usage: no pods returned by selector while calculating replica count", "failed to get cpu resource metric value: "},
		{"no pods, a share", resourceMetric("cpu", share(50)), fixedMetrics{samples: uses(1)}, nil, "FailedGetResourceMetric",
			"failed to get cpu utilization: no pods returned by selector while calculating replica count", "failed to get cpu resource metric value: "},
		{"nobody counts, which is reported before requests are asked for", resourceMetric("cpu", share(50)), fixedMetrics{}, []*corev1.Pod{aPod("p0", func(p *corev1.Pod) { p.Spec.Containers = []corev1.Container{{Name: "c"}} })}, "FailedGetResourceMetric",
			"failed to get cpu utilization: did not receive metrics for targeted pods (pods might be unready)", "failed to get cpu resource metric value: "},
		{"nothing is requested", resourceMetric("cpu", share(50)), fixedMetrics{samples: uses(1)}, []*corev1.Pod{aPod("p0", func(p *corev1.Pod) { p.Spec.Containers = []corev1.Container{{Name: "c"}} })}, "FailedGetResourceMetric",
			"failed to get cpu utilization: missing request for cpu in container c of Pod p0", "failed to get cpu resource metric value: "},
		{"no target", resourceMetric("cpu", autoscalingv2.MetricTarget{}), fixedMetrics{}, ready(1), "FailedGetResourceMetric",
			"invalid resource metric source: neither an average utilization target nor an average value (usage) target was set", "failed to get cpu resource metric value: "},
		{"a container nobody has", containerMetric("side", "cpu", share(50)), fixedMetrics{samples: uses(1)}, ready(1), "FailedGetContainerResourceMetric",
			"failed to get cpu utilization: container side not found in Pod p0", "failed to get side container metric value: "},
		{"a container nobody measures", containerMetric("side", "memory", perPod("1")), broken, ready(1), "FailedGetContainerResourceMetric",
			"failed to get memory usage: unable to get metrics for resource memory: no metrics", "failed to get side container metric value: "},
		{"pods nobody measures", podsMetric("hits", perPod("1")), broken, ready(1), "FailedGetPodsMetric", "unable to get metric hits: no metrics", "failed to get pods metric value: "},
		{"no pods of which to know", podsMetric("hits", perPod("1")), fixedMetrics{}, ready(1), "FailedGetPodsMetric", "did not receive metrics for targeted pods (pods might be unready)", "failed to get pods metric value: "},
		{"pods, by series that cannot be", selecting(podsMetric("hits", perPod("1"))), fixedMetrics{}, ready(1), "FailedGetPodsMetric", badText, "failed to get pods metric value: "},
		{"an object nobody measures", objectMetric("hits", inAll("1")), broken, ready(1), "FailedGetObjectMetric",
			"unable to get metric hits on Ingress default/door: no metrics", "failed to get object metric value: "},
		{"an object's share", objectMetric("hits", perPod("1")), broken, ready(1), "FailedGetObjectMetric",
			"unable to get metric hits on Ingress default/door: no metrics", "failed to get object metric value: failed to get hits object metric: "},
		{"an object without pods", objectMetric("hits", inAll("1")), fixedMetrics{whole: 5000}, nil, "FailedGetObjectMetric",
			"unable to calculate ready pods: no pods returned by selector while calculating replica count", "failed to get object metric value: "},
		{"an object without a target", objectMetric("hits", autoscalingv2.MetricTarget{}), fixedMetrics{}, ready(1), "FailedGetObjectMetric",
			"invalid object metric source: neither a value target nor an average value target was set", "failed to get object metric value: "},
		{"an object whose target is not of its type", objectMetric("hits", autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, Value: new(resource.MustParse("1"))}), fixedMetrics{}, ready(1), "FailedGetObjectMetric",
			"invalid object metric source: neither a value target nor an average value target was set", "failed to get object metric value: "},
		{"the other way round", objectMetric("hits", autoscalingv2.MetricTarget{Type: autoscalingv2.ValueMetricType, AverageValue: new(resource.MustParse("1"))}), fixedMetrics{}, ready(1), "FailedGetObjectMetric",
			"invalid object metric source: neither a value target nor an average value target was set", "failed to get object metric value: "},
		{"an object, by series that cannot be", selecting(objectMetric("hits", inAll("1"))), fixedMetrics{}, ready(1), "FailedGetObjectMetric", badText, "failed to get object metric value: "},
		{"nothing from outside", externalMetric("jobs", inAll("1")), broken, ready(1), "FailedGetExternalMetric",
			"unable to get external metric default/jobs/" + nothing + ": no metrics", "failed to get jobs external metric value: failed to get external metric jobs: "},
		{"nothing from outside, a share", externalMetric("jobs", perPod("1")), broken, ready(1), "FailedGetExternalMetric",
			"unable to get external metric default/jobs/" + nothing + ": no metrics", "failed to get jobs external metric value: failed to get jobs external metric: "},
		{"from outside without a target", externalMetric("jobs", autoscalingv2.MetricTarget{}), fixedMetrics{}, ready(1), "FailedGetExternalMetric",
			"invalid external metric source: neither a value target nor an average value target was set", "failed to get jobs external metric value: "},
		{"from outside without pods", externalMetric("jobs", inAll("1")), fixedMetrics{whole: 5000}, nil, "FailedGetExternalMetric",
			"unable to calculate ready pods: no pods returned by selector while calculating replica count", "failed to get jobs external metric value: failed to get external metric jobs: "},
		{"a sort nobody knows", autoscalingv2.MetricSpec{Type: "Moon"}, fixedMetrics{}, ready(1), "InvalidMetricSourceType", `unknown metric source type "Moon"`, ""},
	} {
		autoscaler := &autoscalerSync{ctx: t.Context(), controller: &autoscaler{measured: newAutoscalerMetrics(), settings: DefaultAutoscaler}, metrics: test.meter, pods: test.pods, selector: labels.Everything(), now: now,
			scaler: &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: metav1.ObjectMeta{Namespace: "default"}}}
		status := autoscalingv2.MetricStatus{Type: "before"}
		_, failure := autoscaler.computeForMetric(test.spec, &autoscalingv1.Scale{Spec: autoscalingv1.ScaleSpec{Replicas: 3}}, &status)
		if failure == nil {
			t.Errorf("%s: it has an answer", test.what)
			continue
		}
		if failure.reason != test.reason || failure.inner.Error() != test.text || failure.Error() != test.whole+test.text || metricWords(status) != "" {
			t.Errorf("%s: %s\n got %s\nwant %s\n got %s\nwant %s\nstatus %s", test.what, failure.reason, failure.inner, test.text, failure, test.whole+test.text, metricWords(status))
		}
	}
}

func idOf(m autoscalingv2.MetricSpec) *autoscalingv2.MetricIdentifier {
	switch {
	case m.Pods != nil:
		return &m.Pods.Metric
	case m.Object != nil:
		return &m.Object.Metric
	}
	return &m.External.Metric
}
