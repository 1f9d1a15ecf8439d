package scaling

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// sample is the usage of one pod in milli-units.
type sample struct {
	value  int64
	at     time.Time
	window time.Duration
}

// defaultWindow is the window of custom metrics that have none.
const defaultWindow = time.Minute

// metricsClient reads metrics. api implements it, and fakes in tests.
type metricsClient interface {
	// usage returns the resource usage of pods, or of one container of each. Pods with incomplete metrics are missing.
	usage(ctx context.Context, namespace string, selector labels.Selector, resource corev1.ResourceName, container string) (map[string]sample, error)
	// podMetric returns a custom metric of each pod.
	podMetric(ctx context.Context, namespace string, pods labels.Selector, metric string, selector labels.Selector) (map[string]sample, error)
	// objectMetric returns a custom metric of an object.
	objectMetric(ctx context.Context, namespace string, object autoscalingv2.CrossVersionObjectReference, metric string, selector labels.Selector) (int64, error)
	// externalMetric returns the sum of an external metric.
	externalMetric(ctx context.Context, namespace, metric string, selector labels.Selector) (int64, error)
}

// podMetrics is the part of metrics.k8s.io's PodMetricsList that is used.
type podMetrics struct {
	Items []struct {
		Metadata   metav1.ObjectMeta
		Timestamp  metav1.Time
		Window     metav1.Duration
		Containers []struct {
			Name  string
			Usage corev1.ResourceList
		}
	}
}

// isNotServed reports whether the API does not exist, as opposed to an object in it.
func isNotServed(err error) bool {
	var status apierrors.APIStatus
	if !apierrors.IsNotFound(err) || !errors.As(err, &status) {
		return false
	}
	details := status.Status().Details
	return details == nil || details.Kind == ""
}

func (a *api) usage(ctx context.Context, namespace string, selector labels.Selector, name corev1.ResourceName, container string) (map[string]sample, error) {
	var list podMetrics
	path := []string{"apis", "metrics.k8s.io", "v1beta1", "namespaces", namespace, "pods"}
	if err := a.get(ctx, path, url.Values{"labelSelector": {selector.String()}}, &list); err != nil {
		if isNotServed(err) {
			// Return the error that a typed client would get.
			err = apierrors.NewGenericServerResponse(http.StatusNotFound, "get", schema.GroupResource{Group: "metrics.k8s.io", Resource: "pods"}, "", "", 0, true)
		}
		return nil, fmt.Errorf("unable to fetch metrics from resource metrics API: %w", err)
	}
	if len(list.Items) == 0 {
		return nil, errors.New("no metrics returned from resource metrics API")
	}
	samples := map[string]sample{}
	for _, item := range list.Items {
		s, complete := sample{at: item.Timestamp.Time, window: item.Window.Duration}, false
		for _, c := range item.Containers {
			if container != "" && c.Name != container {
				continue
			}
			used, known := c.Usage[name]
			s.value += used.MilliValue()
			if complete = known; !known {
				break
			}
		}
		if complete {
			samples[item.Metadata.Name] = s
		}
	}
	return samples, nil
}

// metricValues is a MetricValueList of custom.metrics.k8s.io, in either version.
type metricValues struct {
	Items []struct {
		DescribedObject       struct{ Name string }
		Timestamp             metav1.Time
		Window, WindowSeconds *int64
		Value                 resource.Quantity
	}
}

func (a *api) custom(ctx context.Context, path []string, query url.Values) (metricValues, error) {
	var group metav1.APIGroup
	if err := a.get(ctx, []string{"apis", "custom.metrics.k8s.io"}, nil, &group); err != nil {
		return metricValues{}, fmt.Errorf("unable to fetch metrics from custom metrics API: %w", err)
	}
	var list metricValues
	path = append([]string{"apis", "custom.metrics.k8s.io", group.PreferredVersion.Version}, path...)
	if err := a.get(ctx, path, query, &list); err != nil {
		return metricValues{}, fmt.Errorf("unable to fetch metrics from custom metrics API: %w", err)
	}
	return list, nil
}

func withSelector(key string, selector labels.Selector, query url.Values) url.Values {
	if !selector.Empty() {
		query.Set(key, selector.String())
	}
	return query
}

func (a *api) podMetric(ctx context.Context, namespace string, pods labels.Selector, metric string, selector labels.Selector) (map[string]sample, error) {
	query := withSelector("metricLabelSelector", selector, withSelector("labelSelector", pods, url.Values{}))
	list, err := a.custom(ctx, []string{"namespaces", namespace, "pods", "*", metric}, query)
	if err != nil {
		return nil, err
	}
	if len(list.Items) == 0 {
		return nil, errors.New("no metrics returned from custom metrics API")
	}
	samples := map[string]sample{}
	for _, item := range list.Items {
		s := sample{value: item.Value.MilliValue(), at: item.Timestamp.Time, window: defaultWindow}
		for _, seconds := range []*int64{item.Window, item.WindowSeconds} {
			if seconds != nil {
				s.window = time.Duration(*seconds) * time.Second
			}
		}
		samples[item.DescribedObject.Name] = s
	}
	return samples, nil
}

func (a *api) objectMetric(ctx context.Context, namespace string, object autoscalingv2.CrossVersionObjectReference, metric string, selector labels.Selector) (int64, error) {
	gvk := schema.FromAPIVersionAndKind(object.APIVersion, object.Kind)
	path := []string{"namespaces", namespace, "metrics", metric}
	if gvk.Group != "" || gvk.Kind != "Namespace" {
		t, err := a.find(ctx, gvk)
		if err != nil {
			return 0, fmt.Errorf("unable to fetch metrics from custom metrics API: %w", err)
		}
		path = []string{"namespaces", namespace, t.GroupResource().String(), object.Name, metric}
	}
	list, err := a.custom(ctx, path, withSelector("metricLabelSelector", selector, url.Values{}))
	if err != nil {
		return 0, err
	}
	if len(list.Items) != 1 {
		return 0, fmt.Errorf("unable to fetch metrics from custom metrics API: the custom metrics API server returned %d results when we asked for exactly one", len(list.Items))
	}
	return list.Items[0].Value.MilliValue(), nil
}

func (a *api) externalMetric(ctx context.Context, namespace, metric string, selector labels.Selector) (int64, error) {
	var list struct {
		Items []struct{ Value resource.Quantity }
	}
	path := []string{"apis", "external.metrics.k8s.io", "v1beta1", "namespaces", namespace, metric}
	if err := a.get(ctx, path, withSelector("labelSelector", selector, url.Values{}), &list); err != nil {
		return 0, fmt.Errorf("unable to fetch metrics from external metrics API: %w", err)
	}
	if len(list.Items) == 0 {
		return 0, errors.New("no metrics returned from external metrics API")
	}
	var sum int64
	for _, item := range list.Items {
		value := item.Value.MilliValue()
		if value > 0 && sum > math.MaxInt64-value {
			return math.MaxInt64, nil
		}
		sum += value
	}
	return sum, nil
}
