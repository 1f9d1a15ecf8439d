package scaling

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"skiff/internal/podstate"
)

// tolerance is the allowed deviation of the usage ratio from 1.
type tolerance struct{ down, up float64 }

func (t tolerance) contains(ratio float64) bool { return 1-t.down <= ratio && ratio <= 1+t.up }

// podSamples are the pods of a target and their usage.
type podSamples struct {
	pods    []*corev1.Pod
	samples map[string]sample
	// resource is the resource of the samples, "" for other metrics. CPU samples of initializing pods are ignored.
	resource corev1.ResourceName
	// cpuInitialization and initialReadiness are the periods of AutoscalerSettings.
	cpuInitialization, initialReadiness time.Duration
	now                                 time.Time
}

// groupPods returns the samples that count, the number of ready pods, and the pods that are unready or have no sample.
func (c podSamples) groupPods() (counted map[string]sample, ready int, unready, missing []string) {
	counted = map[string]sample{}
	ignored := map[string]bool{}
	for _, pod := range c.pods {
		s, measured := c.samples[pod.Name]
		switch {
		case pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodFailed:
			ignored[pod.Name] = true
		case pod.Status.Phase == corev1.PodPending:
			unready = append(unready, pod.Name)
		case !measured:
			missing = append(missing, pod.Name)
		case c.resource == corev1.ResourceCPU && c.isInitializing(pod, s):
			unready = append(unready, pod.Name)
		default:
			ready++
		}
	}
	for name, s := range c.samples {
		if !ignored[name] && !slices.Contains(unready, name) {
			counted[name] = s
		}
	}
	return counted, ready, unready, missing
}

// isInitializing reports whether a pod is initializing, so that its CPU usage is ignored.
func (c podSamples) isInitializing(pod *corev1.Pod, s sample) bool {
	condition := podstate.Condition(pod, corev1.PodReady)
	if condition == nil || pod.Status.StartTime == nil {
		return true
	}
	startTime := pod.Status.StartTime.Time
	if startTime.Add(c.cpuInitialization).After(c.now) {
		return condition.Status == corev1.ConditionFalse || s.at.Before(condition.LastTransitionTime.Add(s.window))
	}
	return condition.Status == corev1.ConditionFalse && startTime.Add(c.initialReadiness).After(condition.LastTransitionTime.Time)
}

// usageMetric compares samples to a target.
type usageMetric interface {
	ratio(samples map[string]sample) (float64, error)
	// assumedUsage is the usage assumed for a pod without a sample when scaling down.
	assumedUsage(pod string) int64
}

// countedSamples returns the samples that count, or an error if there are none.
func (c podSamples) countedSamples() (map[string]sample, error) {
	if len(c.pods) == 0 {
		return nil, errors.New("no pods returned by selector while calculating replica count")
	}
	counted, _, _, _ := c.groupPods()
	if len(counted) == 0 {
		return nil, errors.New("did not receive metrics for targeted pods (pods might be unready)")
	}
	return counted, nil
}

// propose computes the desired replicas. Pods without a sample count conservatively: as using nothing when scaling up, as using
// assumedUsage when scaling down. Unready pods count as using nothing when scaling up.
func (c podSamples) propose(current int32, m usageMetric, t tolerance) (int32, error) {
	if _, err := c.countedSamples(); err != nil {
		return 0, err
	}
	samples, ready, unready, missing := c.groupPods()
	ratio, err := m.ratio(samples)
	if err != nil {
		return 0, err
	}
	scaleUp := ratio > 1
	if !(scaleUp && len(unready) > 0) && len(missing) == 0 {
		if t.contains(ratio) {
			return current, nil
		}
		return int32(math.Ceil(ratio * float64(ready))), nil
	}
	for _, name := range missing {
		switch {
		case ratio < 1:
			samples[name] = sample{value: m.assumedUsage(name)}
		case scaleUp:
			samples[name] = sample{}
		}
	}
	if scaleUp {
		for _, name := range unready {
			samples[name] = sample{}
		}
	}
	adjusted, err := m.ratio(samples)
	if err != nil {
		return 0, err
	}
	if t.contains(adjusted) || ratio < 1 && adjusted > 1 || scaleUp && adjusted < 1 {
		return current, nil
	}
	proposed := int32(math.Ceil(adjusted * float64(len(samples))))
	if adjusted < 1 && proposed > current || adjusted > 1 && proposed < current {
		return current, nil // the direction must not reverse
	}
	return proposed, nil
}

// averageValue compares to a value per pod.
type averageValue struct{ target int64 }

func (a averageValue) assumedUsage(string) int64 { return a.target }

func (a averageValue) ratio(samples map[string]sample) (float64, error) {
	return float64(mean(samples)) / float64(a.target), nil
}

func mean(samples map[string]sample) int64 {
	var sum int64
	for _, s := range samples {
		sum += s.value
	}
	return sum / int64(len(samples))
}

// utilization compares to a percentage of the pods' requests.
type utilization struct {
	target   int32
	requests map[string]int64
}

func (u utilization) assumedUsage(pod string) int64 {
	return u.requests[pod] * int64(max(100, u.target)) / 100
}

func (u utilization) ratio(samples map[string]sample) (float64, error) {
	percent, _, err := u.of(samples)
	return float64(percent) / float64(u.target), err
}

// of returns the utilization in percent and the average usage.
func (u utilization) of(samples map[string]sample) (percent int32, mean int64, err error) {
	var used, requested, n int64
	for name, s := range samples {
		if request, ok := u.requests[name]; ok {
			used, requested, n = used+s.value, requested+request, n+1
		}
	}
	if requested == 0 {
		return 0, 0, errors.New("no metrics returned matched known pods")
	}
	return int32(used * 100 / requested), used / n, nil
}

// requestsOf returns the resource requests of pods, or of one container of each. Pod-level requests are computed as in the
// scheduler.
func requestsOf(pods []*corev1.Pod, name corev1.ResourceName, container string) (map[string]int64, error) {
	requests := map[string]int64{}
	for _, pod := range pods {
		if container == "" && resourcehelper.IsPodLevelRequestsSet(pod) {
			quantity, ok := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})[name]
			if !ok {
				return nil, fmt.Errorf("missing pod-level request for %s in Pod %s", name, pod.Name)
			}
			requests[pod.Name] = quantity.MilliValue()
			continue
		}
		containers := slices.Clone(pod.Spec.Containers)
		for _, c := range pod.Spec.InitContainers {
			if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
				containers = append(containers, c)
			}
		}
		found := container == ""
		var sum int64
		for _, c := range containers {
			if container != "" && c.Name != container {
				continue
			}
			found = true
			quantity, ok := c.Resources.Requests[name]
			if !ok {
				return nil, fmt.Errorf("missing request for %s in container %s of Pod %s", name, c.Name, pod.Name)
			}
			sum += quantity.MilliValue()
		}
		if !found {
			return nil, fmt.Errorf("container %s not found in Pod %s", container, pod.Name)
		}
		requests[pod.Name] = sum
	}
	return requests, nil
}

// replicasForRatio computes the replicas for the ratio of a metric to its target value.
func (c podSamples) replicasForRatio(current int32, ratio float64, t tolerance) (int32, error) {
	if current == 0 {
		return bounded(math.Ceil(ratio)), nil
	}
	if t.contains(ratio) {
		return current, nil
	}
	if len(c.pods) == 0 {
		return 0, errors.New("unable to calculate ready pods: no pods returned by selector while calculating replica count")
	}
	ready := 0
	for _, pod := range c.pods {
		if pod.Status.Phase == corev1.PodRunning && podstate.IsReady(pod) {
			ready++
		}
	}
	return bounded(math.Ceil(ratio * float64(ready))), nil
}

// replicasForAverage computes the replicas for a target average value, and returns the current average.
func replicasForAverage(current int32, usage, target int64, t tolerance) (replicas int32, each int64) {
	replicas = current
	if !t.contains(float64(usage) / (float64(target) * float64(current))) {
		replicas = bounded(math.Ceil(float64(usage) / float64(target)))
	}
	if current == 0 || usage == math.MaxInt64 {
		return replicas, usage
	}
	return replicas, int64(math.Ceil(float64(usage) / float64(current)))
}

func bounded(n float64) int32 { return int32(min(n, math.MaxInt32)) }
