package autoscaling

import (
	"encoding/json"
	"fmt"
	"maps"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
)

// The annotations of a v1 object for what v1 has no fields for.
const (
	metricsAnnotation        = "autoscaling.alpha.kubernetes.io/metrics"
	currentMetricsAnnotation = "autoscaling.alpha.kubernetes.io/current-metrics"
	conditionsAnnotation     = "autoscaling.alpha.kubernetes.io/conditions"
	behaviorAnnotation       = "autoscaling.alpha.kubernetes.io/behavior"
)

// v1Annotations are the annotations that no v2 object may have: the ones above, and two that older servers wrote.
var v1Annotations = []string{
	metricsAnnotation, currentMetricsAnnotation, conditionsAnnotation, behaviorAnnotation,
	"autoscaling.alpha.kubernetes.io/scale-down-tolerance", "autoscaling.alpha.kubernetes.io/scale-up-tolerance",
}

// withoutV1Annotations returns annotations without v1Annotations; the same map if it has none of them.
func withoutV1Annotations(annotations map[string]string) map[string]string {
	kept := annotations
	for _, name := range v1Annotations {
		if _, has := kept[name]; has {
			if len(kept) == len(annotations) {
				kept = maps.Clone(annotations)
			}
			delete(kept, name)
		}
	}
	return kept
}

// encodedBehavior is the behavior as encoded in the annotation: with Go's capitalization and without omitempty.
type encodedBehavior struct {
	ScaleUp, ScaleDown *encodedRules
}

type encodedRules struct {
	StabilizationWindowSeconds *int32
	SelectPolicy               *autoscalingv2.ScalingPolicySelect
	Policies                   []encodedPolicy
	Tolerance                  *resource.Quantity
}

type encodedPolicy struct {
	Type          autoscalingv2.HPAScalingPolicyType
	Value         int32
	PeriodSeconds int32
}

func encodeRules(rules *autoscalingv2.HPAScalingRules) *encodedRules {
	if rules == nil {
		return nil
	}
	out := &encodedRules{StabilizationWindowSeconds: rules.StabilizationWindowSeconds, SelectPolicy: rules.SelectPolicy, Tolerance: rules.Tolerance}
	if rules.Policies != nil {
		out.Policies = make([]encodedPolicy, len(rules.Policies)) // nil and an empty list are encoded differently
	}
	for i, policy := range rules.Policies {
		out.Policies[i] = encodedPolicy(policy)
	}
	return out
}

func isCPUUtilization(metric autoscalingv2.MetricSpec) bool {
	return metric.Type == autoscalingv2.ResourceMetricSourceType && metric.Resource != nil &&
		metric.Resource.Name == corev1.ResourceCPU && metric.Resource.Target.AverageUtilization != nil
}

// toV1 converts a stored autoscaler to v1.
func toV1(stored *autoscalingv2.HorizontalPodAutoscaler) (*autoscalingv1.HorizontalPodAutoscaler, error) {
	stored = stored.DeepCopy()
	hpa := &autoscalingv1.HorizontalPodAutoscaler{
		ObjectMeta: stored.ObjectMeta,
		Spec: autoscalingv1.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv1.CrossVersionObjectReference(stored.Spec.ScaleTargetRef),
			MinReplicas:    stored.Spec.MinReplicas,
			MaxReplicas:    stored.Spec.MaxReplicas,
		},
		Status: autoscalingv1.HorizontalPodAutoscalerStatus{
			ObservedGeneration: stored.Status.ObservedGeneration,
			LastScaleTime:      stored.Status.LastScaleTime,
			CurrentReplicas:    stored.Status.CurrentReplicas,
			DesiredReplicas:    stored.Status.DesiredReplicas,
		},
	}
	var others []autoscalingv1.MetricSpec
	for _, metric := range stored.Spec.Metrics {
		switch {
		case !isCPUUtilization(metric):
			others = append(others, metricToV1(metric))
		case hpa.Spec.TargetCPUUtilizationPercentage == nil:
			hpa.Spec.TargetCPUUtilizationPercentage = metric.Resource.Target.AverageUtilization
		}
	}
	// The annotation has the statuses of all metrics: of the CPU's, too, v1 has fields only for a part.
	var current []autoscalingv1.MetricStatus
	for _, status := range stored.Status.CurrentMetrics {
		current = append(current, statusToV1(status))
		if status.Type == autoscalingv2.ResourceMetricSourceType && status.Resource != nil &&
			status.Resource.Name == corev1.ResourceCPU && status.Resource.Current.AverageUtilization != nil {
			hpa.Status.CurrentCPUUtilizationPercentage = ptr.To(*status.Resource.Current.AverageUtilization)
		}
	}
	var conditions []autoscalingv1.HorizontalPodAutoscalerCondition
	for _, condition := range stored.Status.Conditions {
		conditions = append(conditions, autoscalingv1.HorizontalPodAutoscalerCondition{
			Type: autoscalingv1.HorizontalPodAutoscalerConditionType(condition.Type), Status: condition.Status,
			LastTransitionTime: condition.LastTransitionTime, Reason: condition.Reason, Message: condition.Message,
			ObservedGeneration: condition.ObservedGeneration,
		})
	}

	hpa.Annotations = withoutV1Annotations(hpa.Annotations)
	annotate := func(annotation string, present bool, value any) error {
		if !present {
			return nil
		}
		text, err := json.Marshal(value)
		if err != nil {
			return fmt.Errorf("write annotation %s: %w", annotation, err)
		}
		if hpa.Annotations == nil {
			hpa.Annotations = map[string]string{}
		}
		hpa.Annotations[annotation] = string(text)
		return nil
	}
	if err := annotate(metricsAnnotation, len(others) > 0, others); err != nil {
		return nil, err
	}
	if err := annotate(currentMetricsAnnotation, len(current) > 0, current); err != nil {
		return nil, err
	}
	if behavior := stored.Spec.Behavior; behavior != nil {
		if err := annotate(behaviorAnnotation, true, encodedBehavior{encodeRules(behavior.ScaleUp), encodeRules(behavior.ScaleDown)}); err != nil {
			return nil, err
		}
	}
	if err := annotate(conditionsAnnotation, len(conditions) > 0, conditions); err != nil {
		return nil, err
	}
	return hpa, nil
}

// fromV1 converts a v1 autoscaler to the storage version. An annotation that cannot be parsed is ignored.
func fromV1(hpa *autoscalingv1.HorizontalPodAutoscaler) *autoscalingv2.HorizontalPodAutoscaler {
	hpa = hpa.DeepCopy()
	stored := &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: hpa.ObjectMeta,
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference(hpa.Spec.ScaleTargetRef),
			MinReplicas:    hpa.Spec.MinReplicas,
			MaxReplicas:    hpa.Spec.MaxReplicas,
		},
		Status: autoscalingv2.HorizontalPodAutoscalerStatus{
			ObservedGeneration: hpa.Status.ObservedGeneration,
			LastScaleTime:      hpa.Status.LastScaleTime,
			CurrentReplicas:    hpa.Status.CurrentReplicas,
			DesiredReplicas:    hpa.Status.DesiredReplicas,
		},
	}
	annotations := hpa.Annotations

	if others, ok := read[[]autoscalingv1.MetricSpec](annotations, metricsAnnotation); ok {
		for _, metric := range others {
			stored.Spec.Metrics = append(stored.Spec.Metrics, metricFromV1(metric))
		}
	}
	if percent := hpa.Spec.TargetCPUUtilizationPercentage; percent != nil {
		stored.Spec.Metrics = append(stored.Spec.Metrics, cpuUtilization(*percent))
	}
	if len(stored.Spec.Metrics) == 0 {
		stored.Spec.Metrics = []autoscalingv2.MetricSpec{cpuUtilization(defaultCPUUtilization)}
	}
	if behavior, ok := read[autoscalingv2.HorizontalPodAutoscalerBehavior](annotations, behaviorAnnotation); ok &&
		(behavior.ScaleUp != nil || behavior.ScaleDown != nil) {
		stored.Spec.Behavior = &behavior
	}
	if current, ok := read[[]autoscalingv1.MetricStatus](annotations, currentMetricsAnnotation); ok {
		for _, status := range current {
			stored.Status.CurrentMetrics = append(stored.Status.CurrentMetrics, statusFromV1(status))
		}
	} else if percent := hpa.Status.CurrentCPUUtilizationPercentage; percent != nil {
		stored.Status.CurrentMetrics = []autoscalingv2.MetricStatus{{
			Type: autoscalingv2.ResourceMetricSourceType,
			Resource: &autoscalingv2.ResourceMetricStatus{
				Name: corev1.ResourceCPU, Current: autoscalingv2.MetricValueStatus{AverageUtilization: percent},
			},
		}}
	}
	if conditions, ok := read[[]autoscalingv1.HorizontalPodAutoscalerCondition](annotations, conditionsAnnotation); ok {
		for _, condition := range conditions {
			stored.Status.Conditions = append(stored.Status.Conditions, autoscalingv2.HorizontalPodAutoscalerCondition{
				Type: autoscalingv2.HorizontalPodAutoscalerConditionType(condition.Type), Status: condition.Status,
				LastTransitionTime: condition.LastTransitionTime, Reason: condition.Reason, Message: condition.Message,
				ObservedGeneration: condition.ObservedGeneration,
			})
		}
	}
	stored.Annotations = withoutV1Annotations(annotations)
	return stored
}

func read[T any](annotations map[string]string, name string) (value T, ok bool) {
	text, ok := annotations[name]
	if !ok {
		return value, false
	}
	return value, json.Unmarshal([]byte(text), &value) == nil
}
