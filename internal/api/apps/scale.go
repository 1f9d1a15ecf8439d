package apps

import (
	"fmt"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"skiff/internal/kind"
)

// scalable points to the fields of a workload that its scale shows.
type scalable struct {
	replicas **int32
	selector *metav1.LabelSelector
	current  int32
}

// scaleOf is the scale subresource: the desired and the current number of pods of any workload.
func scaleOf[T kind.Object](resource schema.GroupResource, of func(T) scalable) kind.Subresource {
	return kind.Subresource{
		Name:    "scale",
		GVK:     autoscalingv1.SchemeGroupVersion.WithKind("Scale"),
		NewBody: func() kind.Object { return &autoscalingv1.Scale{} },
		View: &kind.View{
			From: func(parent kind.Object) (kind.Object, error) {
				workload := of(parent.(T))
				selector, err := metav1.LabelSelectorAsSelector(workload.selector)
				if err != nil {
					return nil, apierrors.NewBadRequest(err.Error())
				}
				return &autoscalingv1.Scale{
					ObjectMeta: metav1.ObjectMeta{
						Name: parent.GetName(), Namespace: parent.GetNamespace(), UID: parent.GetUID(),
						ResourceVersion: parent.GetResourceVersion(), CreationTimestamp: parent.GetCreationTimestamp(),
					},
					Spec:   autoscalingv1.ScaleSpec{Replicas: ptr.Deref(*workload.replicas, 0)},
					Status: autoscalingv1.ScaleStatus{Replicas: workload.current, Selector: selector.String()},
				}, nil
			},
			Apply: func(view, parent kind.Object) error {
				scale := view.(*autoscalingv1.Scale)
				if scale.UID != "" && scale.UID != parent.GetUID() {
					return apierrors.NewConflict(schema.GroupResource{Group: resource.Group, Resource: resource.Resource + "/scale"}, parent.GetName(),
						fmt.Errorf("Precondition failed: UID in precondition: %v, UID in object meta: %v", scale.UID, parent.GetUID()))
				}
				*of(parent.(T)).replicas = ptr.To(scale.Spec.Replicas)
				if scale.ResourceVersion != "" {
					parent.SetResourceVersion(scale.ResourceVersion)
				}
				return nil
			},
			Validate: func(view kind.Object) field.ErrorList {
				if replicas := view.(*autoscalingv1.Scale).Spec.Replicas; replicas < 0 {
					return field.ErrorList{field.Invalid(field.NewPath("spec", "replicas"), replicas, content.MinError(0))}
				}
				return nil
			},
			Paths:   map[string]string{"spec.replicas": "spec.replicas"},
			Columns: kind.ScaleColumns(),
			Row:     kind.ScaleRow,
		},
	}
}
