package scheduler

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/test/metrics"
)

// resourcesOf collects the requests of one pod.
type resourcesOf struct{ pod *corev1.Pod }

func (resourcesOf) Describe(descs chan<- *prometheus.Desc) { podResources{}.Describe(descs) }

func (r resourcesOf) Collect(to chan<- prometheus.Metric) {
	sendResources(to, podResourceRequest, r.pod, r.pod.Spec.Containers[0].Resources.Requests)
}

func TestPodResources(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}, Spec: corev1.PodSpec{
		NodeName: "n", SchedulerName: "s", Priority: new(int32(7)), Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("1500m"), corev1.ResourceMemory: resource.MustParse("1Ki"), "hugepages-2Mi": resource.MustParse("2Mi"),
			"example.com/gpu": resource.MustParse("2"), "attachable-volumes-csi-x": resource.MustParse("1"), corev1.ResourceEphemeralStorage: resource.MustParse("0"),
		}}}},
	}}
	registry := prometheus.NewRegistry()
	registry.MustRegister(resourcesOf{pod})
	name := func(resource, unit string) string {
		return "kube_pod_resource_request{namespace=ns,node=n,pod=p,priority=7,resource=" + resource + ",scheduler=s,unit=" + unit + "}"
	}
	want := map[string]float64{
		name("cpu", "cores"): 1.5, name("memory", "bytes"): 1024, name("hugepages-2Mi", "bytes"): 2 << 20, name("example.com/gpu", ""): 2,
		name("attachable-volumes-csi-x", "integer"): 1,
	}
	metrics.Check(t, registry, want)
	if got := metrics.Values(t, registry); len(got) != len(want) {
		t.Errorf("series %v", got)
	}
}
