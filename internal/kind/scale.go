package kind

import (
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ScaleColumns are the table columns of the scale of a built-in kind.
func ScaleColumns() []metav1.TableColumnDefinition {
	return []metav1.TableColumnDefinition{
		Column("Name", "string", metav1.ObjectMeta{}.SwaggerDoc()["name"]),
		Column("Desired", "integer", autoscalingv1.ScaleSpec{}.SwaggerDoc()["replicas"]),
		Column("Available", "integer", autoscalingv1.ScaleStatus{}.SwaggerDoc()["replicas"]),
		AgeColumn(),
	}
}

// ScaleRow are the cells of a scale.
func ScaleRow(view Object, now time.Time) []any {
	scale := view.(*autoscalingv1.Scale)
	return []any{scale.Name, int64(scale.Spec.Replicas), int64(scale.Status.Replicas), Age(scale.CreationTimestamp, now)}
}
