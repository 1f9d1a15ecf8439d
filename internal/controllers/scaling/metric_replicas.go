package scaling

import (
	"errors"
	"fmt"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// metricProposal is the number of replicas that one metric proposes.
type metricProposal struct {
	replicas int32
	metric   string // description for events and conditions
}

// metricError is a failure to get a metric: reason and inner are used in events and conditions. The prefix names the metric in the
// error that joins those of all metrics.
type metricError struct {
	reason, prefix string
	inner          error
}

func (e *metricError) Error() string { return e.prefix + e.inner.Error() }
func (e *metricError) Unwrap() error { return e.inner }

// computeForMetric computes the replicas proposed by one metric and fills its status.
func (s *autoscalerSync) computeForMetric(spec autoscalingv2.MetricSpec, scale *autoscalingv1.Scale, status *autoscalingv2.MetricStatus) (metricProposal, *metricError) {
	status.Type = spec.Type
	var a metricProposal
	var err error
	failure := &metricError{}
	switch spec.Type {
	case autoscalingv2.ResourceMetricSourceType:
		failure.reason, failure.prefix = "FailedGetResourceMetric", fmt.Sprintf("failed to get %s resource metric value: ", spec.Resource.Name)
		status.Resource = &autoscalingv2.ResourceMetricStatus{Name: spec.Resource.Name}
		a, err = s.computeForResource(scale, spec.Resource.Name, "", spec.Resource.Target, &status.Resource.Current)
	case autoscalingv2.ContainerResourceMetricSourceType:
		r := spec.ContainerResource
		failure.reason, failure.prefix = "FailedGetContainerResourceMetric", fmt.Sprintf("failed to get %s container metric value: ", r.Container)
		status.ContainerResource = &autoscalingv2.ContainerResourceMetricStatus{Name: r.Name, Container: r.Container}
		a, err = s.computeForResource(scale, r.Name, r.Container, r.Target, &status.ContainerResource.Current)
	case autoscalingv2.PodsMetricSourceType:
		failure.reason, failure.prefix = "FailedGetPodsMetric", "failed to get pods metric value: "
		status.Pods = &autoscalingv2.PodsMetricStatus{Metric: spec.Pods.Metric}
		a, err = s.computeForPods(scale, spec.Pods, &status.Pods.Current)
	case autoscalingv2.ObjectMetricSourceType:
		failure.reason, failure.prefix = "FailedGetObjectMetric", "failed to get object metric value: "
		if targetsAverage(spec.Object.Target) {
			failure.prefix += fmt.Sprintf("failed to get %s object metric: ", spec.Object.Metric.Name)
		}
		status.Object = &autoscalingv2.ObjectMetricStatus{Metric: spec.Object.Metric, DescribedObject: spec.Object.DescribedObject}
		a, err = s.computeForObject(scale, spec.Object, &status.Object.Current)
	case autoscalingv2.ExternalMetricSourceType:
		name := spec.External.Metric.Name
		failure.reason, failure.prefix = "FailedGetExternalMetric", fmt.Sprintf("failed to get %s external metric value: ", name)
		if spec.External.Target.AverageValue != nil {
			failure.prefix += fmt.Sprintf("failed to get %s external metric: ", name)
		} else if spec.External.Target.Value != nil {
			failure.prefix += fmt.Sprintf("failed to get external metric %s: ", name)
		}
		status.External = &autoscalingv2.ExternalMetricStatus{Metric: spec.External.Metric}
		a, err = s.computeForExternal(scale, spec.External, &status.External.Current)
	default:
		failure.reason, err = "InvalidMetricSourceType", specError{fmt.Errorf("unknown metric source type %q", spec.Type)}
	}
	if err != nil {
		*status = autoscalingv2.MetricStatus{}
		failure.inner = err
		return metricProposal{}, failure
	}
	return a, nil
}

func (s *autoscalerSync) tolerance() tolerance {
	t := tolerance{down: s.controller.settings.Tolerance, up: s.controller.settings.Tolerance}
	if b := s.scaler.Spec.Behavior; b != nil {
		if b.ScaleDown != nil && b.ScaleDown.Tolerance != nil {
			t.down = b.ScaleDown.Tolerance.AsApproximateFloat64()
		}
		if b.ScaleUp != nil && b.ScaleUp.Tolerance != nil {
			t.up = b.ScaleUp.Tolerance.AsApproximateFloat64()
		}
	}
	return t
}

func (s *autoscalerSync) podMetricsFor(samples map[string]sample, name corev1.ResourceName) podSamples {
	return podSamples{pods: s.pods, samples: samples, resource: name, cpuInitialization: s.controller.settings.CPUInitialization, initialReadiness: s.controller.settings.InitialReadiness, now: s.now}
}

// quantity converts milli-units as the metrics API does: memory has a binary suffix.
func quantity(name corev1.ResourceName, milli int64) *resource.Quantity {
	if name == corev1.ResourceMemory {
		return resource.NewMilliQuantity(milli, resource.BinarySI)
	}
	return resource.NewMilliQuantity(milli, resource.DecimalSI)
}

func (s *autoscalerSync) computeForResource(scale *autoscalingv1.Scale, name corev1.ResourceName, container string, target autoscalingv2.MetricTarget, status *autoscalingv2.MetricValueStatus) (metricProposal, error) {
	if target.AverageValue == nil && target.AverageUtilization == nil {
		return metricProposal{}, errors.New("invalid resource metric source: neither an average utilization target nor an average value (usage) target was set")
	}
	kind := "usage"
	if target.AverageValue == nil {
		kind = "utilization"
	}
	fail := func(err error) (metricProposal, error) {
		return metricProposal{}, fmt.Errorf("failed to get %s %s: %w", name, kind, err)
	}
	samples, err := s.metrics.usage(s.ctx, s.scaler.Namespace, s.selector, name, container)
	if err != nil {
		return fail(fmt.Errorf("unable to get metrics for resource %s: %w", name, err))
	}
	c := s.podMetricsFor(samples, name)
	if target.AverageValue != nil {
		replicas, err := c.propose(scale.Spec.Replicas, averageValue{target.AverageValue.MilliValue()}, s.tolerance())
		if err != nil {
			return fail(err)
		}
		counted, _, _, _ := c.groupPods()
		status.AverageValue = quantity(name, mean(counted))
		return metricProposal{replicas, fmt.Sprintf("%s resource", name)}, nil
	}
	counted, err := c.countedSamples()
	if err != nil {
		return fail(err)
	}
	requests, err := requestsOf(s.pods, name, container)
	if err != nil {
		return fail(err)
	}
	m := utilization{target: *target.AverageUtilization, requests: requests}
	replicas, err := c.propose(scale.Spec.Replicas, m, s.tolerance())
	if err != nil {
		return fail(err)
	}
	percent, each, err := m.of(counted)
	if err != nil {
		return fail(err)
	}
	status.AverageUtilization, status.AverageValue = &percent, quantity(name, each)
	if container != "" {
		return metricProposal{replicas, fmt.Sprintf("%s container resource utilization (percentage of request)", name)}, nil
	}
	return metricProposal{replicas, fmt.Sprintf("%s resource utilization (percentage of request)", name)}, nil
}

func (s *autoscalerSync) computeForPods(scale *autoscalingv1.Scale, source *autoscalingv2.PodsMetricSource, status *autoscalingv2.MetricValueStatus) (metricProposal, error) {
	selector, err := metricSelector(source.Metric.Selector)
	if err != nil {
		return metricProposal{}, err
	}
	samples, err := s.metrics.podMetric(s.ctx, s.scaler.Namespace, s.selector, source.Metric.Name, selector)
	if err != nil {
		return metricProposal{}, fmt.Errorf("unable to get metric %s: %w", source.Metric.Name, err)
	}
	c := s.podMetricsFor(samples, "")
	replicas, err := c.propose(scale.Spec.Replicas, averageValue{source.Target.AverageValue.MilliValue()}, s.tolerance())
	if err != nil {
		return metricProposal{}, err
	}
	counted, _, _, _ := c.groupPods()
	status.AverageValue = quantity("", mean(counted))
	return metricProposal{replicas, "pods metric " + source.Metric.Name}, nil
}

func (s *autoscalerSync) computeForObject(scale *autoscalingv1.Scale, source *autoscalingv2.ObjectMetricSource, status *autoscalingv2.MetricValueStatus) (metricProposal, error) {
	selector, err := metricSelector(source.Metric.Selector)
	if err != nil {
		return metricProposal{}, err
	}
	if !targetsValue(source.Target) && !targetsAverage(source.Target) {
		return metricProposal{}, errors.New("invalid object metric source: neither a value target nor an average value target was set")
	}
	o := source.DescribedObject
	usage, err := s.metrics.objectMetric(s.ctx, s.scaler.Namespace, o, source.Metric.Name, selector)
	if err != nil {
		return metricProposal{}, fmt.Errorf("unable to get metric %s on %s %s/%s: %w", source.Metric.Name, o.Kind, s.scaler.Namespace, o.Name, err)
	}
	if targetsValue(source.Target) {
		replicas, err := s.podMetricsFor(nil, "").replicasForRatio(scale.Spec.Replicas, float64(usage)/float64(source.Target.Value.MilliValue()), s.tolerance())
		if err != nil {
			return metricProposal{}, err
		}
		status.Value = quantity("", usage)
		return metricProposal{replicas, fmt.Sprintf("%s metric %s", o.Kind, source.Metric.Name)}, nil
	}
	replicas, each := replicasForAverage(scale.Status.Replicas, usage, source.Target.AverageValue.MilliValue(), s.tolerance())
	status.AverageValue = quantity("", each)
	return metricProposal{replicas, fmt.Sprintf("external metric %s(%+v)", source.Metric.Name, source.Metric.Selector)}, nil
}

func (s *autoscalerSync) computeForExternal(scale *autoscalingv1.Scale, source *autoscalingv2.ExternalMetricSource, status *autoscalingv2.MetricValueStatus) (metricProposal, error) {
	selector, err := metricSelector(source.Metric.Selector)
	if err != nil {
		return metricProposal{}, err
	}
	if source.Target.Value == nil && source.Target.AverageValue == nil {
		return metricProposal{}, errors.New("invalid external metric source: neither a value target nor an average value target was set")
	}
	usage, err := s.metrics.externalMetric(s.ctx, s.scaler.Namespace, source.Metric.Name, selector)
	if err != nil {
		return metricProposal{}, fmt.Errorf("unable to get external metric %s/%s/%+v: %w", s.scaler.Namespace, source.Metric.Name, source.Metric.Selector, err)
	}
	name := fmt.Sprintf("external metric %s(%+v)", source.Metric.Name, source.Metric.Selector)
	if source.Target.AverageValue != nil {
		replicas, each := replicasForAverage(scale.Status.Replicas, usage, source.Target.AverageValue.MilliValue(), s.tolerance())
		status.AverageValue = quantity("", each)
		return metricProposal{replicas, name}, nil
	}
	replicas, err := s.podMetricsFor(nil, "").replicasForRatio(scale.Spec.Replicas, float64(usage)/float64(source.Target.Value.MilliValue()), s.tolerance())
	if err != nil {
		return metricProposal{}, err
	}
	status.Value = quantity("", usage)
	return metricProposal{replicas, name}, nil
}

// targetsValue and targetsAverage report the target type of an object metric. The value must be set, too.
func targetsValue(target autoscalingv2.MetricTarget) bool {
	return target.Type == autoscalingv2.ValueMetricType && target.Value != nil
}

func targetsAverage(target autoscalingv2.MetricTarget) bool {
	return target.Type == autoscalingv2.AverageValueMetricType && target.AverageValue != nil
}

// metricSelector returns the selector of a metric's series; without one, all are selected.
func metricSelector(selector *metav1.LabelSelector) (labels.Selector, error) {
	if selector == nil {
		return labels.Everything(), nil
	}
	return metav1.LabelSelectorAsSelector(selector)
}
