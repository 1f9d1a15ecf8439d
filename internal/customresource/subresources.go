package customresource

import (
	"fmt"
	"math"
	"strings"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"skiff/internal/kind"
)

func (v *version) hasStatus() bool {
	return v.spec.Subresources != nil && v.spec.Subresources.Status != nil
}

// copyStatus copies the status, if the version has the subresource.
func (d *definition) copyStatus(to, from kind.Object) {
	if v := d.versionOf(to); v == nil || !v.hasStatus() {
		return
	}
	setStatus(content(to), content(from))
}

// setStatus makes the status that of another object; it may be absent.
func setStatus(to, from map[string]any) {
	if status, ok := from["status"]; ok {
		to["status"] = status
	} else {
		delete(to, "status")
	}
}

// statusSubresource writes only the status: not even labels and annotations, unlike that of built-in kinds.
func (v *version) statusSubresource() kind.Subresource {
	return kind.Subresource{Name: "status", Verbs: []string{"get", "patch", "update"}, Update: &kind.UpdateStrategy{
		Prepare: func(_ *kind.Request, obj, old kind.Object) {
			prepared := old.DeepCopyObject().(*unstructured.Unstructured)
			setStatus(prepared.Object, content(obj))
			obj.(*unstructured.Unstructured).Object = prepared.Object
		},
		Validate: v.validateStatus,
	}}
}

// noReplicas stands for an absent number of replicas in a Scale.
const noReplicas = math.MinInt32

// scaleSubresource shows the replicas of an object, wherever they are, as autoscaling/v1 Scale.
func scaleSubresource(paths *apiextensionsv1.CustomResourceSubresourceScale) kind.Subresource {
	return kind.Subresource{
		Name: "scale", GVK: autoscalingv1.SchemeGroupVersion.WithKind("Scale"), NewBody: func() kind.Object { return &autoscalingv1.Scale{} },
		View: &kind.View{
			From: func(parent kind.Object) (kind.Object, error) { return scaleOf(parent, paths) },
			CheckRead: func(view kind.Object) error {
				if view.(*autoscalingv1.Scale).Spec.Replicas == noReplicas {
					return apierrors.NewInternalError(fmt.Errorf("the spec replicas field %q does not exist", paths.SpecReplicasPath))
				}
				return nil
			},
			Apply: func(view, parent kind.Object) error {
				replicas := view.(*autoscalingv1.Scale).Spec.Replicas
				if replicas == noReplicas {
					return apierrors.NewBadRequest(fmt.Sprintf("the spec replicas field %q cannot be empty", paths.SpecReplicasPath))
				}
				return unstructured.SetNestedField(content(parent), int64(replicas), splitPath(paths.SpecReplicasPath)...)
			},
			Paths:   map[string]string{"spec.replicas": strings.TrimPrefix(paths.SpecReplicasPath, ".")},
			Columns: scaleColumns,
			Row:     kind.ScaleRow,
		},
	}
}

func splitPath(path string) []string { return strings.Split(strings.TrimPrefix(path, "."), ".") }

func scaleOf(parent kind.Object, paths *apiextensionsv1.CustomResourceSubresourceScale) (*autoscalingv1.Scale, error) {
	root := content(parent)
	scale := &autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{
		Name: parent.GetName(), Namespace: parent.GetNamespace(), UID: parent.GetUID(),
		ResourceVersion: parent.GetResourceVersion(), CreationTimestamp: parent.GetCreationTimestamp(),
	}}
	wanted, found, err := unstructured.NestedInt64(root, splitPath(paths.SpecReplicasPath)...)
	if err != nil {
		return nil, err
	}
	scale.Spec.Replicas = int32(wanted)
	if !found {
		scale.Spec.Replicas = noReplicas
	}
	current, _, err := unstructured.NestedInt64(root, splitPath(paths.StatusReplicasPath)...)
	if err != nil {
		return nil, err
	}
	scale.Status.Replicas = int32(current)
	if path := paths.LabelSelectorPath; path != nil && *path != "" {
		if scale.Status.Selector, _, err = unstructured.NestedString(root, splitPath(*path)...); err != nil {
			return nil, err
		}
	}
	return scale, nil
}

var scaleColumns = []metav1.TableColumnDefinition{
	kind.NameColumn(),
	kind.Column("Desired", "integer", "Number of desired replicas"),
	kind.Column("Available", "integer", "Number of actual replicas"),
	kind.Column("Age", "date", metav1.ObjectMeta{}.SwaggerDoc()["creationTimestamp"]),
}

func (v *version) scalePaths() *apiextensionsv1.CustomResourceSubresourceScale {
	if v.spec.Subresources == nil {
		return nil
	}
	return v.spec.Subresources.Scale
}

// validateScaleSpec validates the field that a Scale shows as spec.replicas.
func (v *version) validateScaleSpec(root map[string]any) field.ErrorList {
	if paths := v.scalePaths(); paths != nil {
		return validateReplicas(root, paths.SpecReplicasPath)
	}
	return nil
}

// validateScaleStatus validates the fields that a Scale shows in its status.
func (v *version) validateScaleStatus(root map[string]any) field.ErrorList {
	paths := v.scalePaths()
	if paths == nil {
		return nil
	}
	errs := validateReplicas(root, paths.StatusReplicasPath)
	if path := paths.LabelSelectorPath; path != nil {
		if selector, _, err := unstructured.NestedString(root, splitPath(*path)...); err != nil {
			errs = append(errs, field.Invalid(field.NewPath(*path), selector, err.Error()))
		}
	}
	return errs
}

func validateReplicas(root map[string]any, path string) field.ErrorList {
	replicas, _, err := unstructured.NestedInt64(root, splitPath(path)...)
	text := ""
	switch {
	case err != nil:
		text = err.Error()
	case replicas < 0:
		text = "should be a non-negative integer"
	case replicas > math.MaxInt32:
		text = fmt.Sprintf("should be less than or equal to %v", math.MaxInt32)
	default:
		return nil
	}
	return field.ErrorList{field.Invalid(field.NewPath(path), replicas, text)}
}
