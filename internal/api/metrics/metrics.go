// Package metrics has the kinds of metrics.k8s.io: the current usage of nodes and pods, for `kubectl top` and autoscalers.
// They are not stored; a request gets the latest values of the kubelets.
package metrics

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"skiff/internal/kind"
)

// Source provides the current usage. Nodes and pods without a value yet are left out.
type Source interface {
	NodeMetrics(ctx context.Context) ([]*metricsv1beta1.NodeMetrics, error)
	PodMetrics(ctx context.Context) ([]*metricsv1beta1.PodMetrics, error)
}

// Kinds are the kinds of the group.
func Kinds(s Source) []*kind.Kind { return []*kind.Kind{nodeMetrics(s), podMetrics(s)} }

func columns() []metav1.TableColumnDefinition {
	return []metav1.TableColumnDefinition{
		kind.NameColumn(),
		kind.Column("cpu", "string", ""),
		kind.Column("memory", "string", ""),
		kind.Column("Window", "string", "over which the use was measured"),
	}
}

func nodeMetrics(s Source) *kind.Kind {
	return kind.Of(kind.Definition[*metricsv1beta1.NodeMetrics]{
		GVK: metricsv1beta1.SchemeGroupVersion.WithKind("NodeMetrics"), Plural: "nodes", List: &metricsv1beta1.NodeMetricsList{},
		Computed: func(ctx context.Context, _ kind.Client) ([]*metricsv1beta1.NodeMetrics, error) {
			return s.NodeMetrics(ctx)
		},
		Columns: columns(),
		Row: func(obj *metricsv1beta1.NodeMetrics, _ time.Time) []any {
			return []any{obj.Name, obj.Usage.Cpu().String(), obj.Usage.Memory().String(), obj.Window.Duration.String()}
		},
	})
}

func podMetrics(s Source) *kind.Kind {
	return kind.Of(kind.Definition[*metricsv1beta1.PodMetrics]{
		GVK: metricsv1beta1.SchemeGroupVersion.WithKind("PodMetrics"), Plural: "pods", Namespaced: true, List: &metricsv1beta1.PodMetricsList{},
		Computed: func(ctx context.Context, _ kind.Client) ([]*metricsv1beta1.PodMetrics, error) {
			return s.PodMetrics(ctx)
		},
		Columns: columns(),
		Row: func(obj *metricsv1beta1.PodMetrics, _ time.Time) []any {
			var cpu, memory = obj.Containers[0].Usage.Cpu().DeepCopy(), obj.Containers[0].Usage.Memory().DeepCopy()
			for _, c := range obj.Containers[1:] {
				cpu.Add(*c.Usage.Cpu())
				memory.Add(*c.Usage.Memory())
			}
			return []any{obj.Name, cpu.String(), memory.String(), obj.Window.Duration.String()}
		},
	})
}
