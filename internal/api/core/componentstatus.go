package core

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/kind"
)

// ComponentStatus is the health of the control plane's components, checked when it is requested. Components that the
// server does not check are not listed.
var ComponentStatus = kind.Of(kind.Definition[*corev1.ComponentStatus]{
	GVK: corev1.SchemeGroupVersion.WithKind("ComponentStatus"), Plural: "componentstatuses", Short: []string{"cs"},
	List: &corev1.ComponentStatusList{},

	Computed: func(ctx context.Context, client kind.Client) ([]*corev1.ComponentStatus, error) {
		health, ok := client.(kind.HealthChecker)
		if !ok {
			return nil, nil
		}
		var statuses []*corev1.ComponentStatus
		for _, component := range health.ComponentHealth(ctx) {
			statuses = append(statuses, componentStatus(component))
		}
		return statuses, nil
	},

	Columns: []metav1.TableColumnDefinition{
		kind.NameColumn(),
		kind.Column("Status", "string", "Status of the component conditions"),
		kind.Column("Message", "string", "Message of the component conditions"),
		kind.Column("Error", "string", "Error of the component conditions"),
	},
	Row: func(obj *corev1.ComponentStatus, _ time.Time) []any {
		for _, condition := range obj.Conditions {
			if condition.Type != corev1.ComponentHealthy {
				continue
			}
			status := "Unhealthy"
			if condition.Status == corev1.ConditionTrue {
				status = "Healthy"
			}
			return []any{obj.Name, status, condition.Message, condition.Error}
		}
		return []any{obj.Name, "Unknown", "", ""}
	},
})

func componentStatus(component kind.ComponentHealth) *corev1.ComponentStatus {
	condition := corev1.ComponentCondition{Type: corev1.ComponentHealthy, Status: corev1.ConditionTrue, Message: component.Message}
	if component.Err != nil {
		condition.Status, condition.Error = corev1.ConditionFalse, component.Err.Error()
	}
	return &corev1.ComponentStatus{
		ObjectMeta: metav1.ObjectMeta{Name: component.Name},
		Conditions: []corev1.ComponentCondition{condition},
	}
}
