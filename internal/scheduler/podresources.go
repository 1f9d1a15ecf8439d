package scheduler

import (
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"skiff/internal/client"
	"skiff/internal/podstate"
)

// PodResourcesPath is where upstream's scheduler serves the resources of pods.
const PodResourcesPath = "/metrics/resources"

var (
	podResourceLabels  = []string{"namespace", "pod", "node", "scheduler", "priority", "resource", "unit"}
	podResourceRequest = prometheus.NewDesc("kube_pod_resource_request",
		"Resources requested by workloads on the cluster, broken down by pod. This shows the resource usage the scheduler and kubelet expect per pod for resources along with the unit for the resource if any.",
		podResourceLabels, nil)
	podResourceLimit = prometheus.NewDesc("kube_pod_resource_limit",
		"Resources limit for workloads on the cluster, broken down by pod. This shows the resource usage the scheduler and kubelet expect per pod for resources along with the unit for the resource if any.",
		podResourceLabels, nil)
)

// podResources collects requests and limits of all pods. There are several series for each pod, so that they have a path of their own.
type podResources struct{ pods client.Informer[*corev1.Pod] }

// PodResources collects the requests and limits of all pods.
func PodResources(informers *client.Informers) prometheus.Collector {
	return podResources{client.InformerFor[*corev1.Pod](informers)}
}

// Describe implements prometheus.Collector.
func (podResources) Describe(descs chan<- *prometheus.Desc) {
	descs <- podResourceRequest
	descs <- podResourceLimit
}

// Collect implements prometheus.Collector. Pods that have ended use nothing.
func (c podResources) Collect(metrics chan<- prometheus.Metric) {
	for _, pod := range c.pods.List("", nil) {
		if pod.Spec.NodeName != "" && podstate.IsTerminal(pod) {
			continue
		}
		sendResources(metrics, podResourceRequest, pod, resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{}))
		sendResources(metrics, podResourceLimit, pod, resourcehelper.PodLimits(pod, resourcehelper.PodResourcesOptions{}))
	}
}

func sendResources(metrics chan<- prometheus.Metric, desc *prometheus.Desc, pod *corev1.Pod, resources corev1.ResourceList) {
	priority := ""
	if pod.Spec.Priority != nil {
		priority = strconv.Itoa(int(*pod.Spec.Priority))
	}
	for name, quantity := range resources {
		if quantity.IsZero() {
			continue
		}
		metrics <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, quantity.AsApproximateFloat64(),
			pod.Namespace, pod.Name, pod.Spec.NodeName, pod.Spec.SchedulerName, priority, string(name), unitOf(name))
	}
}

// unitOf is the unit of a resource; "" if it is not known.
func unitOf(name corev1.ResourceName) string {
	switch {
	case name == corev1.ResourceCPU:
		return "cores"
	case name == corev1.ResourceMemory, name == corev1.ResourceStorage, name == corev1.ResourceEphemeralStorage,
		strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix):
		return "bytes"
	case strings.HasPrefix(string(name), corev1.ResourceAttachableVolumesPrefix):
		return "integer"
	}
	return ""
}
