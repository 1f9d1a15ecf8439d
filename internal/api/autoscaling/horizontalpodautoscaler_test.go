package autoscaling

import (
	"testing"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"skiff/internal/kind/kindtest"
)

type hpa = *autoscalingv2.HorizontalPodAutoscaler

func base() hpa {
	return &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", CreationTimestamp: kindtest.MinutesAgo(7)},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"},
			MaxReplicas:    5,
		},
	}
}

func quantity(s string) *resource.Quantity { return ptr.To(resource.MustParse(s)) }

// The metrics of each type, and one status for each.
var (
	object = autoscalingv2.MetricSpec{Type: autoscalingv2.ObjectMetricSourceType, Object: &autoscalingv2.ObjectMetricSource{
		DescribedObject: autoscalingv2.CrossVersionObjectReference{APIVersion: "v1", Kind: "Service", Name: "s"},
		Metric:          autoscalingv2.MetricIdentifier{Name: "hits", Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}},
		Target:          autoscalingv2.MetricTarget{Type: autoscalingv2.ValueMetricType, Value: quantity("10")},
	}}
	objectAverage = autoscalingv2.MetricSpec{Type: autoscalingv2.ObjectMetricSourceType, Object: &autoscalingv2.ObjectMetricSource{
		DescribedObject: autoscalingv2.CrossVersionObjectReference{APIVersion: "v1", Kind: "Service", Name: "s"},
		Metric:          autoscalingv2.MetricIdentifier{Name: "hits"},
		Target:          autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: quantity("3")},
	}}
	pods = autoscalingv2.MetricSpec{Type: autoscalingv2.PodsMetricSourceType, Pods: &autoscalingv2.PodsMetricSource{
		Metric: autoscalingv2.MetricIdentifier{Name: "queue"},
		Target: autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: quantity("7")},
	}}
	memory = autoscalingv2.MetricSpec{Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricSource{
		Name: corev1.ResourceMemory, Target: autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: quantity("1Gi")},
	}}
	container = autoscalingv2.MetricSpec{Type: autoscalingv2.ContainerResourceMetricSourceType, ContainerResource: &autoscalingv2.ContainerResourceMetricSource{
		Name: corev1.ResourceCPU, Container: "app", Target: autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType, AverageUtilization: ptr.To[int32](50)},
	}}
	external = autoscalingv2.MetricSpec{Type: autoscalingv2.ExternalMetricSourceType, External: &autoscalingv2.ExternalMetricSource{
		Metric: autoscalingv2.MetricIdentifier{Name: "outside"}, Target: autoscalingv2.MetricTarget{Type: autoscalingv2.ValueMetricType, Value: quantity("100m")},
	}}
	externalAverage = autoscalingv2.MetricSpec{Type: autoscalingv2.ExternalMetricSourceType, External: &autoscalingv2.ExternalMetricSource{
		Metric: autoscalingv2.MetricIdentifier{Name: "outside"}, Target: autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: quantity("4")},
	}}
)

func statuses() []autoscalingv2.MetricStatus {
	value, average := autoscalingv2.MetricValueStatus{Value: quantity("8")}, autoscalingv2.MetricValueStatus{Value: quantity("0"), AverageValue: quantity("2")}
	usage := autoscalingv2.MetricValueStatus{AverageUtilization: ptr.To[int32](40), AverageValue: quantity("500m")}
	return []autoscalingv2.MetricStatus{
		{Type: object.Type, Object: &autoscalingv2.ObjectMetricStatus{DescribedObject: object.Object.DescribedObject, Metric: object.Object.Metric, Current: value}},
		{Type: pods.Type, Pods: &autoscalingv2.PodsMetricStatus{Metric: pods.Pods.Metric, Current: autoscalingv2.MetricValueStatus{AverageValue: quantity("6")}}},
		{Type: memory.Type, Resource: &autoscalingv2.ResourceMetricStatus{Name: corev1.ResourceCPU, Current: usage}},
		{Type: container.Type, ContainerResource: &autoscalingv2.ContainerResourceMetricStatus{Name: corev1.ResourceCPU, Container: "app", Current: usage}},
		{Type: external.Type, External: &autoscalingv2.ExternalMetricStatus{Metric: external.External.Metric, Current: average}},
	}
}

func TestDefaults(t *testing.T) {
	obj := kindtest.With(base(), func(h hpa) {
		h.Spec.Behavior = &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleUp: &autoscalingv2.HPAScalingRules{StabilizationWindowSeconds: ptr.To[int32](9)}}
	})
	HorizontalPodAutoscaler.Default(obj)
	want := autoscalingv2.HorizontalPodAutoscalerSpec{
		ScaleTargetRef: base().Spec.ScaleTargetRef, MinReplicas: ptr.To[int32](1), MaxReplicas: 5,
		Metrics: []autoscalingv2.MetricSpec{cpuUtilization(80)},
		Behavior: &autoscalingv2.HorizontalPodAutoscalerBehavior{
			ScaleUp: &autoscalingv2.HPAScalingRules{
				StabilizationWindowSeconds: ptr.To[int32](9), SelectPolicy: ptr.To(autoscalingv2.MaxChangePolicySelect),
				Policies: []autoscalingv2.HPAScalingPolicy{{Type: "Pods", Value: 4, PeriodSeconds: 15}, {Type: "Percent", Value: 100, PeriodSeconds: 15}},
			},
			ScaleDown: &autoscalingv2.HPAScalingRules{
				SelectPolicy: ptr.To(autoscalingv2.MaxChangePolicySelect),
				Policies:     []autoscalingv2.HPAScalingPolicy{{Type: "Percent", Value: 100, PeriodSeconds: 15}},
			},
		},
	}
	if !equality.Semantic.DeepEqual(obj.Spec, want) {
		t.Errorf("got %+v", obj.Spec)
	}
}

func TestValidation(t *testing.T) {
	metrics := func(metrics ...autoscalingv2.MetricSpec) func(hpa) { return func(h hpa) { h.Spec.Metrics = metrics } }
	rules := func(rules autoscalingv2.HPAScalingRules) func(hpa) {
		return func(h hpa) {
			h.Spec.Behavior = &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleDown: &rules}
		}
	}
	kindtest.Validations(t, HorizontalPodAutoscaler, base(), []kindtest.Case[hpa]{
		{Name: "ordinary"},
		{Name: "all metrics", Change: metrics(object, objectAverage, pods, memory, container, external, externalAverage)},
		{Name: "no maximum", Change: func(h hpa) { h.Spec.MaxReplicas = 0 }, Want: []string{"spec.maxReplicas: Required value", "spec.maxReplicas: must be greater than or equal to `minReplicas`"}},
		{Name: "negative", Change: func(h hpa) { h.Spec.MaxReplicas, h.Spec.MinReplicas = -1, ptr.To[int32](-2) }, Want: []string{
			"spec.maxReplicas: must be greater than or equal to 1", "spec.minReplicas: Invalid value: -2: must be greater than or equal to 0",
		}},
		{Name: "scale to zero", Change: func(h hpa) {
			h.Spec.MinReplicas, h.Spec.Metrics = ptr.To[int32](0), []autoscalingv2.MetricSpec{external}
		}},
		{Name: "zero without a metric from outside", Change: func(h hpa) { h.Spec.MinReplicas = ptr.To[int32](0) }, Want: []string{"spec.metrics: Forbidden: must specify at least one Object or External metric to support scaling to zero replicas"}},
		{Name: "target", Change: func(h hpa) { h.Spec.ScaleTargetRef = autoscalingv2.CrossVersionObjectReference{} }, Want: []string{
			"spec.scaleTargetRef.kind: Required value", "spec.scaleTargetRef.name: Required value", "spec.scaleTargetRef.apiVersion: apiVersion must specify API group",
		}},
		{Name: "target with bad names", Change: func(h hpa) {
			h.Spec.ScaleTargetRef = autoscalingv2.CrossVersionObjectReference{APIVersion: "a/b/c", Kind: "a/b", Name: ".."}
		}, Want: []string{
			"spec.scaleTargetRef.kind: may not contain '/'", "spec.scaleTargetRef.name: may not be '..'", "spec.scaleTargetRef.apiVersion: unexpected GroupVersion string: a/b/c",
		}},
		{Name: "replication controllers have no group", Change: func(h hpa) {
			h.Spec.ScaleTargetRef.APIVersion, h.Spec.ScaleTargetRef.Kind = "v1", "ReplicationController"
		}},
		{Name: "no type", Change: metrics(autoscalingv2.MetricSpec{}), Want: []string{
			"spec.metrics[0].type: Required value: must specify a metric source type",
			`spec.metrics[0].type: Unsupported value: "": supported values: "ContainerResource", "External", "Object", "Pods", "Resource"`, "spec.metrics[0].type: Unsupported value",
		}},
		{Name: "two sources", Change: metrics(autoscalingv2.MetricSpec{Type: pods.Type, Pods: pods.Pods, External: external.External}), Want: []string{"spec.metrics[0].external: Forbidden: must populate the given metric source only"}},
		{Name: "no source", Change: metrics(autoscalingv2.MetricSpec{Type: pods.Type}), Want: []string{"spec.metrics[0].pods: Required value: must populate information for the given metric source"}},
		{Name: "wrong source", Change: metrics(autoscalingv2.MetricSpec{Type: pods.Type, External: external.External}), Want: []string{"spec.metrics[0].pods: Required value"}},
		{Name: "empty object", Change: metrics(autoscalingv2.MetricSpec{Type: object.Type, Object: &autoscalingv2.ObjectMetricSource{}}), Want: []string{
			"spec.metrics[0].object.describedObject.kind: Required value", "spec.metrics[0].object.describedObject.name: Required value",
			"spec.metrics[0].object.metric.name: Required value: must specify a metric name", "spec.metrics[0].object.target.type: Required value: must specify a metric target type",
			"spec.metrics[0].object.target.type: must be either Utilization, Value, or AverageValue", "spec.metrics[0].object.target.averageValue: Required value: must set either a target value or averageValue",
		}},
		{Name: "external with both", Change: metrics(autoscalingv2.MetricSpec{Type: external.Type, External: &autoscalingv2.ExternalMetricSource{
			Metric: autoscalingv2.MetricIdentifier{Name: "m"}, Target: autoscalingv2.MetricTarget{Type: "Value", Value: quantity("0"), AverageValue: quantity("-1")},
		}}), Want: []string{
			"spec.metrics[0].external.target.value: must be positive", "spec.metrics[0].external.target.averageValue: must be positive",
			"spec.metrics[0].external.target.value: Forbidden: may not set both a target value for metric and a per-pod target",
		}},
		{Name: "empty container resource", Change: metrics(autoscalingv2.MetricSpec{Type: container.Type, ContainerResource: &autoscalingv2.ContainerResourceMetricSource{
			Target: autoscalingv2.MetricTarget{Type: "Utilization", AverageUtilization: ptr.To[int32](0), AverageValue: quantity("1")},
		}}), Want: []string{
			"spec.metrics[0].containerResource.name: Required value", "spec.metrics[0].containerResource.container: Required value: must specify a container",
			"spec.metrics[0].containerResource.target.averageUtilization: must be greater than 0",
			"spec.metrics[0].containerResource.target.averageValue: Forbidden: may not set both a target raw value and a target utilization",
		}},
		{Name: "container resource", Change: metrics(autoscalingv2.MetricSpec{Type: container.Type, ContainerResource: &autoscalingv2.ContainerResourceMetricSource{
			Name: "pods", Container: "A", Target: autoscalingv2.MetricTarget{Type: "Utilization"},
		}}), Want: []string{
			"spec.metrics[0].containerResource.name: must be a standard resource for containers", "spec.metrics[0].containerResource.container: a lowercase RFC 1123 label",
			"spec.metrics[0].containerResource.target.averageUtilization: Required value: must set either a target raw value or a target utilization",
		}},
		{Name: "behavior", Change: rules(autoscalingv2.HPAScalingRules{
			StabilizationWindowSeconds: ptr.To[int32](3601), SelectPolicy: ptr.To(autoscalingv2.ScalingPolicySelect("x")), Tolerance: quantity("-0.1"),
			Policies: []autoscalingv2.HPAScalingPolicy{{Type: "y", PeriodSeconds: 1801}, {Type: "Pods", Value: 1}},
		}), Want: []string{
			"spec.behavior.scaleDown.stabilizationWindowSeconds: must be less than or equal to 3600",
			`spec.behavior.scaleDown.selectPolicy: Unsupported value: "x": supported values: "Disabled", "Max", "Min"`,
			"spec.behavior.scaleDown.tolerance: must be greater than or equal to 0",
			`spec.behavior.scaleDown.policies[0].type: Unsupported value: "y": supported values: "Percent", "Pods"`,
			"spec.behavior.scaleDown.policies[0].value: must be greater than zero", "spec.behavior.scaleDown.policies[0].periodSeconds: must be less than or equal to 1800",
			"spec.behavior.scaleDown.policies[1].periodSeconds: must be greater than zero",
		}},
		{Name: "no policies", Change: rules(autoscalingv2.HPAScalingRules{Policies: []autoscalingv2.HPAScalingPolicy{}, StabilizationWindowSeconds: ptr.To[int32](-1)}), Want: []string{
			"spec.behavior.scaleDown.policies: Required value: must specify at least one Policy", "spec.behavior.scaleDown.stabilizationWindowSeconds: must be greater than or equal to zero",
		}},
		{Name: "another target", Update: true, Change: func(h hpa) { h.Spec.ScaleTargetRef.Kind, h.Spec.ScaleTargetRef.APIVersion = "Other", "v1" }, Want: []string{"spec.scaleTargetRef.apiVersion: apiVersion must specify API group"}},
	})
	stored := kindtest.With(base(), func(h hpa) { h.Spec.ScaleTargetRef.APIVersion = "a/b/c" })
	if _, errs := kindtest.Update(HorizontalPodAutoscaler, nil, stored, stored); len(errs) > 0 {
		t.Errorf("a stored reference is refused: %v", errs)
	}
	kindtest.StatusUpdates(t, HorizontalPodAutoscaler, base(), []kindtest.Case[hpa]{{Name: "negative", Change: func(h hpa) {
		h.Status.CurrentReplicas, h.Status.DesiredReplicas = -1, -1
		h.Status.Conditions = []autoscalingv2.HorizontalPodAutoscalerCondition{{ObservedGeneration: ptr.To[int64](-1)}}
	}, Want: []string{
		"status.currentReplicas: must be greater than or equal to 0", "status.desiredReplicas: must be greater than or equal to 0",
		"status.conditions[0].observedGeneration: must be greater than or equal to 0",
	}}})
}

func TestV1RoundTrip(t *testing.T) {
	version := HorizontalPodAutoscaler.Versions[1]
	full := kindtest.With(base(), func(h hpa) {
		h.Annotations = map[string]string{"mine": "kept"}
		h.Spec.Metrics = []autoscalingv2.MetricSpec{object, objectAverage, pods, memory, container, external, externalAverage, cpuUtilization(33)}
		h.Spec.Behavior = &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleUp: &autoscalingv2.HPAScalingRules{Tolerance: quantity("0.2")}}
		h.Status = autoscalingv2.HorizontalPodAutoscalerStatus{
			ObservedGeneration: ptr.To[int64](3), LastScaleTime: ptr.To(kindtest.MinutesAgo(1)), CurrentReplicas: 2, DesiredReplicas: 3,
			CurrentMetrics: statuses(),
			Conditions: []autoscalingv2.HorizontalPodAutoscalerCondition{{
				Type: autoscalingv2.AbleToScale, Status: corev1.ConditionTrue, Reason: "R", Message: "m", LastTransitionTime: metav1.NewTime(kindtest.Now.Local()), ObservedGeneration: ptr.To[int64](3),
			}},
		}
	})
	HorizontalPodAutoscaler.Default(full)
	for name, stored := range map[string]hpa{"full": full, "small": kindtest.With(base(), func(h hpa) { HorizontalPodAutoscaler.Default(h) })} {
		before := stored.DeepCopy()
		v1, err := version.FromStorageVersion(stored)
		if err != nil {
			t.Fatal(err)
		}
		if !equality.Semantic.DeepEqual(before, stored) {
			t.Errorf("%s: the conversion changed its argument", name)
		}
		back, err := version.ToStorageVersion(v1)
		if err != nil {
			t.Fatal(err)
		}
		if !equality.Semantic.DeepEqual(back, stored) {
			t.Errorf("%s: round trip\n got %+v\nwant %+v", name, back, stored)
		}
	}
}

func TestToV1(t *testing.T) {
	stored := kindtest.With(base(), func(h hpa) {
		h.Spec.Metrics = []autoscalingv2.MetricSpec{cpuUtilization(33), pods}
		h.Spec.Behavior = &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleDown: &autoscalingv2.HPAScalingRules{Policies: []autoscalingv2.HPAScalingPolicy{{Type: "Pods", Value: 1, PeriodSeconds: 2}}}}
		h.Status.CurrentMetrics = statuses()[2:3]
		h.Status.Conditions = []autoscalingv2.HorizontalPodAutoscalerCondition{{Type: "AbleToScale", Status: "True"}}
		h.Annotations = map[string]string{metricsAnnotation: "stale"}
	})
	v1, err := toV1(stored)
	if err != nil {
		t.Fatal(err)
	}
	if *v1.Spec.TargetCPUUtilizationPercentage != 33 || *v1.Status.CurrentCPUUtilizationPercentage != 40 {
		t.Errorf("processor: %v, %v", v1.Spec, v1.Status)
	}
	for annotation, want := range map[string]string{
		metricsAnnotation:        `[{"type":"Pods","pods":{"metricName":"queue","targetAverageValue":"7"}}]`,
		behaviorAnnotation:       `{"ScaleUp":null,"ScaleDown":{"StabilizationWindowSeconds":null,"SelectPolicy":null,"Policies":[{"Type":"Pods","Value":1,"PeriodSeconds":2}],"Tolerance":null}}`,
		currentMetricsAnnotation: `[{"type":"Resource","resource":{"name":"cpu","currentAverageUtilization":40,"currentAverageValue":"500m"}}]`,
		conditionsAnnotation:     `[{"type":"AbleToScale","status":"True","lastTransitionTime":null}]`,
	} {
		if got := v1.Annotations[annotation]; got != want {
			t.Errorf("%s\n got %s\nwant %s", annotation, got, want)
		}
	}
}

func TestFromV1(t *testing.T) {
	v1 := &autoscalingv1.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{metricsAnnotation: "no JSON", behaviorAnnotation: "{}", "mine": "kept"}},
		Status:     autoscalingv1.HorizontalPodAutoscalerStatus{CurrentCPUUtilizationPercentage: ptr.To[int32](12)},
	}
	HorizontalPodAutoscaler.Versions[1].Default(v1)
	stored := fromV1(v1)
	if !equality.Semantic.DeepEqual(stored.Spec.Metrics, []autoscalingv2.MetricSpec{cpuUtilization(80)}) || stored.Spec.Behavior != nil || *stored.Spec.MinReplicas != 1 {
		t.Errorf("spec %+v", stored.Spec)
	}
	if *stored.Status.CurrentMetrics[0].Resource.Current.AverageUtilization != 12 {
		t.Errorf("status %+v", stored.Status)
	}
	if len(stored.Annotations) != 1 || len(v1.Annotations) != 3 {
		t.Errorf("annotations %v of %v", stored.Annotations, v1.Annotations)
	}
}

func TestV2DropsCarriedAnnotations(t *testing.T) {
	got, _ := kindtest.Create(HorizontalPodAutoscaler, nil, kindtest.With(base(), func(h hpa) {
		h.Annotations = map[string]string{conditionsAnnotation: "[]", "mine": "kept"}
	}))
	if len(got.Annotations) != 1 || got.Annotations["mine"] != "kept" {
		t.Errorf("annotations %v", got.Annotations)
	}
}

func TestRow(t *testing.T) {
	kindtest.ColumnsDescribed(t, HorizontalPodAutoscaler)
	kindtest.Row(t, HorizontalPodAutoscaler, base(), "web", "Deployment/web", "<none>", "<unset>", int64(5), int64(0), "7m")
	for _, c := range []struct {
		metrics []autoscalingv2.MetricSpec
		status  []autoscalingv2.MetricStatus
		want    string
	}{
		{metrics: []autoscalingv2.MetricSpec{cpuUtilization(80)}, want: "cpu: <unknown>/80%"},
		{metrics: []autoscalingv2.MetricSpec{cpuUtilization(80)}, status: statuses()[2:], want: "cpu: 40%/80%"},
		{metrics: []autoscalingv2.MetricSpec{memory}, status: statuses()[2:], want: "memory: 500m/1Gi"},
		{metrics: []autoscalingv2.MetricSpec{object, pods}, status: statuses(), want: "8/10, 6/7"},
		{metrics: []autoscalingv2.MetricSpec{objectAverage}, status: statuses(), want: "<unknown>/3 (avg)"},
		{metrics: []autoscalingv2.MetricSpec{container}, status: statuses()[3:], want: "cpu: 40%/50%"},
		{metrics: []autoscalingv2.MetricSpec{external}, status: statuses()[4:], want: "0/100m"},
		{metrics: []autoscalingv2.MetricSpec{externalAverage}, status: statuses()[4:], want: "2/4 (avg)"},
		{metrics: []autoscalingv2.MetricSpec{pods, pods, pods, pods}, want: "<unknown>/7, <unknown>/7 + 2 more..."},
		{metrics: []autoscalingv2.MetricSpec{{Type: "x"}}, want: "<unknown type>"},
	} {
		if got := formatTargets(c.metrics, c.status); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}
