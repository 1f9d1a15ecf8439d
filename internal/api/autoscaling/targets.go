package autoscaling

import (
	"fmt"
	"strconv"
	"strings"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
)

const (
	unknown      = "<unknown>"
	shownTargets = 2
)

func number(n int32) string { return strconv.Itoa(int(n)) }

// formatTargets is the targets column: current and target values of the first two metrics.
func formatTargets(specs []autoscalingv2.MetricSpec, statuses []autoscalingv2.MetricStatus) string {
	if len(specs) == 0 {
		return "<none>"
	}
	var texts []string
	for i, spec := range specs {
		if i == shownTargets {
			return fmt.Sprintf("%s + %d more...", strings.Join(texts, ", "), len(specs)-shownTargets)
		}
		var status autoscalingv2.MetricStatus
		if i < len(statuses) {
			status = statuses[i]
		}
		texts = append(texts, formatTarget(spec, status))
	}
	return strings.Join(texts, ", ")
}

func formatTarget(spec autoscalingv2.MetricSpec, status autoscalingv2.MetricStatus) string {
	switch spec.Type {
	case autoscalingv2.ExternalMetricSourceType:
		var current *autoscalingv2.MetricValueStatus
		if status.External != nil {
			current = &status.External.Current
		}
		return formatValue(spec.External.Target, current)
	case autoscalingv2.ObjectMetricSourceType:
		var current *autoscalingv2.MetricValueStatus
		if status.Object != nil {
			current = &status.Object.Current
		}
		return formatValue(spec.Object.Target, current)
	case autoscalingv2.PodsMetricSourceType:
		current := unknown
		if status.Pods != nil {
			current = status.Pods.Current.AverageValue.String()
		}
		return current + "/" + spec.Pods.Target.AverageValue.String()
	case autoscalingv2.ResourceMetricSourceType:
		var current *autoscalingv2.MetricValueStatus
		if status.Resource != nil {
			current = &status.Resource.Current
		}
		return spec.Resource.Name.String() + ": " + formatUsage(spec.Resource.Target, current)
	case autoscalingv2.ContainerResourceMetricSourceType:
		var current *autoscalingv2.MetricValueStatus
		if status.ContainerResource != nil {
			current = &status.ContainerResource.Current
		}
		return spec.ContainerResource.Name.String() + ": " + formatUsage(spec.ContainerResource.Target, current)
	}
	return "<unknown type>"
}

// formatValue is for metrics with a total value or an average per pod.
func formatValue(target autoscalingv2.MetricTarget, status *autoscalingv2.MetricValueStatus) string {
	current := unknown
	if target.AverageValue != nil {
		if status != nil && status.AverageValue != nil {
			current = status.AverageValue.String()
		}
		return fmt.Sprintf("%s/%s (avg)", current, target.AverageValue.String())
	}
	if status != nil {
		current = status.Value.String()
	}
	return current + "/" + target.Value.String()
}

// formatUsage is for resource metrics: an average per pod, or a percentage of the requests.
func formatUsage(target autoscalingv2.MetricTarget, status *autoscalingv2.MetricValueStatus) string {
	current := unknown
	if target.AverageValue != nil {
		if status != nil {
			current = status.AverageValue.String()
		}
		return current + "/" + target.AverageValue.String()
	}
	if status != nil && status.AverageUtilization != nil {
		current = number(*status.AverageUtilization) + "%"
	}
	goal := "<auto>"
	if target.AverageUtilization != nil {
		goal = number(*target.AverageUtilization) + "%"
	}
	return current + "/" + goal
}
