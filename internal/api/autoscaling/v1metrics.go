package autoscaling

import (
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
)

// The metrics of v1 exist only inside annotations. They have one field for each type of target, where v2 has a target with
// a type.

func metricToV1(metric autoscalingv2.MetricSpec) autoscalingv1.MetricSpec {
	out := autoscalingv1.MetricSpec{Type: autoscalingv1.MetricSourceType(metric.Type)}
	if source := metric.Object; source != nil {
		out.Object = &autoscalingv1.ObjectMetricSource{
			Target:     autoscalingv1.CrossVersionObjectReference(source.DescribedObject),
			MetricName: source.Metric.Name, Selector: source.Metric.Selector,
			TargetValue: orZero(source.Target.Value), AverageValue: source.Target.AverageValue,
		}
	}
	if source := metric.Pods; source != nil {
		out.Pods = &autoscalingv1.PodsMetricSource{
			MetricName: source.Metric.Name, Selector: source.Metric.Selector, TargetAverageValue: orZero(source.Target.AverageValue),
		}
	}
	if source := metric.Resource; source != nil {
		out.Resource = &autoscalingv1.ResourceMetricSource{
			Name: source.Name, TargetAverageUtilization: source.Target.AverageUtilization, TargetAverageValue: source.Target.AverageValue,
		}
	}
	if source := metric.ContainerResource; source != nil {
		out.ContainerResource = &autoscalingv1.ContainerResourceMetricSource{
			Name: source.Name, Container: source.Container,
			TargetAverageUtilization: source.Target.AverageUtilization, TargetAverageValue: source.Target.AverageValue,
		}
	}
	if source := metric.External; source != nil {
		out.External = &autoscalingv1.ExternalMetricSource{
			MetricName: source.Metric.Name, MetricSelector: source.Metric.Selector,
			TargetValue: source.Target.Value, TargetAverageValue: source.Target.AverageValue,
		}
	}
	return out
}

func metricFromV1(metric autoscalingv1.MetricSpec) autoscalingv2.MetricSpec {
	out := autoscalingv2.MetricSpec{Type: autoscalingv2.MetricSourceType(metric.Type)}
	if source := metric.Object; source != nil {
		target := autoscalingv2.MetricTarget{Type: autoscalingv2.ValueMetricType, Value: &source.TargetValue}
		if source.AverageValue != nil {
			target = autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: source.AverageValue}
			// v1 cannot omit the value: absent and zero are the same.
			if !source.TargetValue.IsZero() {
				target.Value = &source.TargetValue
			}
		}
		out.Object = &autoscalingv2.ObjectMetricSource{
			DescribedObject: autoscalingv2.CrossVersionObjectReference(source.Target),
			Metric:          autoscalingv2.MetricIdentifier{Name: source.MetricName, Selector: source.Selector},
			Target:          target,
		}
	}
	if source := metric.Pods; source != nil {
		out.Pods = &autoscalingv2.PodsMetricSource{
			Metric: autoscalingv2.MetricIdentifier{Name: source.MetricName, Selector: source.Selector},
			Target: autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: &source.TargetAverageValue},
		}
	}
	if source := metric.Resource; source != nil {
		out.Resource = &autoscalingv2.ResourceMetricSource{
			Name: source.Name, Target: usageTarget(source.TargetAverageUtilization, source.TargetAverageValue),
		}
	}
	if source := metric.ContainerResource; source != nil {
		out.ContainerResource = &autoscalingv2.ContainerResourceMetricSource{
			Name: source.Name, Container: source.Container, Target: usageTarget(source.TargetAverageUtilization, source.TargetAverageValue),
		}
	}
	if source := metric.External; source != nil {
		target := autoscalingv2.MetricTarget{Type: autoscalingv2.ValueMetricType, Value: source.TargetValue, AverageValue: source.TargetAverageValue}
		if source.TargetValue == nil {
			target.Type = autoscalingv2.AverageValueMetricType
		}
		out.External = &autoscalingv2.ExternalMetricSource{
			Metric: autoscalingv2.MetricIdentifier{Name: source.MetricName, Selector: source.MetricSelector}, Target: target,
		}
	}
	return out
}

func usageTarget(utilization *int32, value *resource.Quantity) autoscalingv2.MetricTarget {
	target := autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType, AverageUtilization: utilization, AverageValue: value}
	if utilization == nil {
		target.Type = autoscalingv2.AverageValueMetricType
	}
	return target
}

func statusToV1(status autoscalingv2.MetricStatus) autoscalingv1.MetricStatus {
	out := autoscalingv1.MetricStatus{Type: autoscalingv1.MetricSourceType(status.Type)}
	if s := status.Object; s != nil {
		out.Object = &autoscalingv1.ObjectMetricStatus{
			Target:     autoscalingv1.CrossVersionObjectReference(s.DescribedObject),
			MetricName: s.Metric.Name, Selector: s.Metric.Selector,
			CurrentValue: orZero(s.Current.Value), AverageValue: s.Current.AverageValue,
		}
	}
	if s := status.Pods; s != nil {
		out.Pods = &autoscalingv1.PodsMetricStatus{
			MetricName: s.Metric.Name, Selector: s.Metric.Selector, CurrentAverageValue: orZero(s.Current.AverageValue),
		}
	}
	if s := status.Resource; s != nil {
		out.Resource = &autoscalingv1.ResourceMetricStatus{
			Name: s.Name, CurrentAverageUtilization: s.Current.AverageUtilization, CurrentAverageValue: orZero(s.Current.AverageValue),
		}
	}
	if s := status.ContainerResource; s != nil {
		out.ContainerResource = &autoscalingv1.ContainerResourceMetricStatus{
			Name: s.Name, Container: s.Container,
			CurrentAverageUtilization: s.Current.AverageUtilization, CurrentAverageValue: orZero(s.Current.AverageValue),
		}
	}
	if s := status.External; s != nil {
		out.External = &autoscalingv1.ExternalMetricStatus{
			MetricName: s.Metric.Name, MetricSelector: s.Metric.Selector,
			CurrentValue: orZero(s.Current.Value), CurrentAverageValue: s.Current.AverageValue,
		}
	}
	return out
}

func statusFromV1(status autoscalingv1.MetricStatus) autoscalingv2.MetricStatus {
	out := autoscalingv2.MetricStatus{Type: autoscalingv2.MetricSourceType(status.Type)}
	if s := status.Object; s != nil {
		out.Object = &autoscalingv2.ObjectMetricStatus{
			DescribedObject: autoscalingv2.CrossVersionObjectReference(s.Target),
			Metric:          autoscalingv2.MetricIdentifier{Name: s.MetricName, Selector: s.Selector},
			Current:         autoscalingv2.MetricValueStatus{Value: &s.CurrentValue, AverageValue: s.AverageValue},
		}
	}
	if s := status.Pods; s != nil {
		out.Pods = &autoscalingv2.PodsMetricStatus{
			Metric:  autoscalingv2.MetricIdentifier{Name: s.MetricName, Selector: s.Selector},
			Current: autoscalingv2.MetricValueStatus{AverageValue: &s.CurrentAverageValue},
		}
	}
	if s := status.Resource; s != nil {
		out.Resource = &autoscalingv2.ResourceMetricStatus{
			Name:    s.Name,
			Current: autoscalingv2.MetricValueStatus{AverageUtilization: s.CurrentAverageUtilization, AverageValue: &s.CurrentAverageValue},
		}
	}
	if s := status.ContainerResource; s != nil {
		out.ContainerResource = &autoscalingv2.ContainerResourceMetricStatus{
			Name: s.Name, Container: s.Container,
			Current: autoscalingv2.MetricValueStatus{AverageUtilization: s.CurrentAverageUtilization, AverageValue: &s.CurrentAverageValue},
		}
	}
	if s := status.External; s != nil {
		out.External = &autoscalingv2.ExternalMetricStatus{
			Metric:  autoscalingv2.MetricIdentifier{Name: s.MetricName, Selector: s.MetricSelector},
			Current: autoscalingv2.MetricValueStatus{Value: &s.CurrentValue, AverageValue: s.CurrentAverageValue},
		}
	}
	return out
}

func orZero(quantity *resource.Quantity) resource.Quantity {
	return ptr.Deref(quantity, resource.Quantity{})
}
