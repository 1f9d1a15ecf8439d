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

	"golang.org/x/sync/singleflight"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"skiff/internal/kind"
)

const (
	// usageWindow is the window over which kubelets measure.
	usageWindow = 10 * time.Second
	// usageTTL is how long responses of kubelets are cached; they do not measure more often.
	usageTTL = 5 * time.Second
	// usageTimeout bounds the requests to kubelets.
	usageTimeout = 5 * time.Second
	// maxSummaryBytes bounds the response of a kubelet.
	maxSummaryBytes = 32 << 20
)

// Metrics reads the resource usage of nodes and pods from the kubelets.
type Metrics struct {
	backends *backends
	// queries has the query in flight. Those who wait for it share it, and each may give up.
	queries singleflight.Group

	mu        sync.Mutex
	queried   time.Time
	summaries []*statsapi.Summary
}

// NewMetrics makes a source of metrics.
func NewMetrics(c Config) *Metrics { return &Metrics{backends: newBackends(c)} }

// all returns the responses of the kubelets of all ready nodes: cached ones, or those of a query that is made now. Nodes that do not respond are
// left out.
func (m *Metrics) all(ctx context.Context) ([]*statsapi.Summary, error) {
	if summaries, ok := m.cached(); ok {
		return summaries, nil
	}
	// The query does not end with the request that began it: others wait for it, too.
	result := m.queries.DoChan("", func() (any, error) { return m.query(context.WithoutCancel(ctx)) })
	select {
	case r := <-result:
		summaries, _ := r.Val.([]*statsapi.Summary)
		return summaries, r.Err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// cached returns the responses of the last query, unless they are too old.
func (m *Metrics) cached() ([]*statsapi.Summary, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.summaries, time.Since(m.queried) < usageTTL
}

// query queries the kubelets in parallel.
func (m *Metrics) query(ctx context.Context) ([]*statsapi.Summary, error) {
	objs, err := m.backends.objects.List(nodes, metav1.NamespaceNone, labels.Everything())
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, usageTimeout)
	defer cancel()
	responses := make([]*statsapi.Summary, len(objs))
	var queries sync.WaitGroup
	for i, obj := range objs {
		if !ready(obj.(*corev1.Node)) {
			continue
		}
		queries.Go(func() { responses[i], _ = m.backends.summary(ctx, obj.GetName()) }) // nil for a node that does not respond
	}
	queries.Wait()
	summaries := slices.DeleteFunc(responses, func(s *statsapi.Summary) bool { return s == nil })
	m.mu.Lock()
	defer m.mu.Unlock()
	m.queried, m.summaries = time.Now(), summaries
	return summaries, nil
}

func ready(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// summary queries one kubelet.
func (b *backends) summary(ctx context.Context, node string) (*statsapi.Summary, error) {
	location, err := b.kubeletOf(ctx, node)
	if err != nil {
		return nil, err
	}
	location.Path, location.RawQuery = "/stats/summary", "only_cpu_and_memory=true"
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, location.String(), nil)
	if err != nil {
		return nil, err
	}
	response, err := b.kubelet.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("kubelet of node %s responded %s", node, response.Status)
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, maxSummaryBytes))
	if err != nil {
		return nil, err
	}
	summary := &statsapi.Summary{}
	if err := json.Unmarshal(body, summary); err != nil {
		return nil, err
	}
	if summary.Node.NodeName != node {
		return nil, fmt.Errorf("kubelet of node %s responded with the usage of node %s", node, summary.Node.NodeName)
	}
	return summary, nil
}

// NodeMetrics implements metrics.Source.
func (m *Metrics) NodeMetrics(ctx context.Context) (all []*metricsv1beta1.NodeMetrics, _ error) {
	summaries, err := m.all(ctx)
	if err != nil {
		return nil, err
	}
	for _, s := range summaries {
		used, at, ok := used(s.Node.CPU, s.Node.Memory)
		obj, err := m.backends.objects.Get(ctx, nodes, metav1.NamespaceNone, s.Node.NodeName)
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
			obj, err := m.backends.objects.Get(ctx, pods, pod.PodRef.Namespace, pod.PodRef.Name)
			if err != nil || string(obj.GetUID()) != pod.PodRef.UID || obj.(*corev1.Pod).Spec.NodeName != s.Node.NodeName {
				continue // deleted, or not a pod of this kubelet's node
			}
			if found := podMetrics(obj, pod); found != nil {
				all = append(all, found)
			}
		}
	}
	return all, nil
}

// podMetrics is nil while the usage of a container is unknown: partial metrics would mislead an autoscaler.
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
