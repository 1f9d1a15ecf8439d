package connect

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"skiff/internal/kind"
)

const (
	// usageWindow is over how much time kubelets measure.
	usageWindow = 10 * time.Second
	// usageTTL is how long answers of kubelets are used again; they take a reading no more often.
	usageTTL = 5 * time.Second
	// usageTimeout is how long a kubelet may take.
	usageTimeout = 5 * time.Second
	// largestSummary bounds what a kubelet may say.
	largestSummary = 32 << 20
)

// Metrics asks kubelets what their nodes and pods use.
type Metrics struct {
	roads *roads

	mu        sync.Mutex
	asked     time.Time
	summaries []*statsapi.Summary
}

// NewMetrics makes a source of metrics.
func NewMetrics(c Config) *Metrics { return &Metrics{roads: newRoads(c)} }

// all asks the kubelets of all nodes that are ready, at the same time, unless that was just done. A node that does not answer is left out.
func (m *Metrics) all(ctx context.Context) ([]*statsapi.Summary, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if time.Since(m.asked) < usageTTL {
		return m.summaries, nil
	}
	objs, err := m.roads.objects.List(ctx, nodes, metav1.NamespaceNone)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, usageTimeout)
	defer cancel()
	answers := make([]*statsapi.Summary, len(objs))
	var asking sync.WaitGroup
	for i, obj := range objs {
		if !ready(obj.(*corev1.Node)) {
			continue
		}
		asking.Go(func() { answers[i], _ = m.roads.summary(ctx, obj.GetName()) }) // who has not answered is missing
	}
	asking.Wait()
	m.asked = time.Now()
	m.summaries = slices.DeleteFunc(answers, func(s *statsapi.Summary) bool { return s == nil })
	return m.summaries, nil
}

func ready(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// summary asks one kubelet.
func (d *roads) summary(ctx context.Context, node string) (*statsapi.Summary, error) {
	location, err := d.kubeletOf(ctx, node)
	if err != nil {
		return nil, err
	}
	location.Path, location.RawQuery = "/stats/summary", "only_cpu_and_memory=true"
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, location.String(), nil)
	if err != nil {
		return nil, err
	}
	response, err := d.kubelet.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the kubelet of %s answers %s", node, response.Status)
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, largestSummary))
	if err != nil {
		return nil, err
	}
	summary := &statsapi.Summary{}
	return summary, json.Unmarshal(body, summary)
}

// NodeMetrics implements metrics.Source.
func (m *Metrics) NodeMetrics(ctx context.Context) (all []*metricsv1beta1.NodeMetrics, _ error) {
	summaries, err := m.all(ctx)
	if err != nil {
		return nil, err
	}
	for _, s := range summaries {
		used, at, ok := used(s.Node.CPU, s.Node.Memory)
		obj, err := m.roads.objects.Get(ctx, nodes, metav1.NamespaceNone, s.Node.NodeName)
		if !ok || err != nil {
			continue
		}
		all = append(all, &metricsv1beta1.NodeMetrics{
			ObjectMeta: describe(obj), Timestamp: at, Window: metav1.Duration{Duration: usageWindow}, Usage: used,
		})
	}
	return all, nil
}

// PodMetrics implements metrics.Source.
func (m *Metrics) PodMetrics(ctx context.Context) (all []*metricsv1beta1.PodMetrics, _ error) {
	summaries, err := m.all(ctx)
	if err != nil {
		return nil, err
	}
	for _, s := range summaries {
		for _, pod := range s.Pods {
			obj, err := m.roads.objects.Get(ctx, pods, pod.PodRef.Namespace, pod.PodRef.Name)
			if err != nil || string(obj.GetUID()) != pod.PodRef.UID || obj.(*corev1.Pod).Spec.NodeName != s.Node.NodeName {
				continue // it is gone, or a kubelet speaks of pods that are not its own
			}
			if found := podMetrics(obj, pod); found != nil {
				all = append(all, found)
			}
		}
	}
	return all, nil
}

// podMetrics is nil when the use of a container is not known yet: half an answer would mislead an autoscaler.
func podMetrics(obj kind.Object, pod statsapi.PodStats) *metricsv1beta1.PodMetrics {
	found := &metricsv1beta1.PodMetrics{ObjectMeta: describe(obj), Window: metav1.Duration{Duration: usageWindow}}
	for _, c := range pod.Containers {
		used, at, ok := used(c.CPU, c.Memory)
		if !ok {
			return nil
		}
		found.Timestamp = at
		found.Containers = append(found.Containers, metricsv1beta1.ContainerMetrics{Name: c.Name, Usage: used})
	}
	if len(found.Containers) == 0 {
		return nil
	}
	return found
}

func describe(obj kind.Object) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: obj.GetName(), Namespace: obj.GetNamespace(), Labels: obj.GetLabels(), CreationTimestamp: metav1.Now()}
}

func used(cpu *statsapi.CPUStats, memory *statsapi.MemoryStats) (corev1.ResourceList, metav1.Time, bool) {
	if cpu == nil || cpu.UsageNanoCores == nil || memory == nil || memory.WorkingSetBytes == nil {
		return nil, metav1.Time{}, false
	}
	return corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewScaledQuantity(int64(*cpu.UsageNanoCores), resource.Nano),
		corev1.ResourceMemory: *resource.NewQuantity(int64(*memory.WorkingSetBytes), resource.BinarySI),
	}, cpu.Time, true
}
