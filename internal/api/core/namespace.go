package core

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"skiff/internal/kind"
)

// Namespace has spec.finalizers as well as metadata.finalizers: the namespace controller deletes its contents first and
// then removes its own finalizer through the finalize subresource.
var Namespace = kind.Of(kind.Definition[*corev1.Namespace]{
	GVK: corev1.SchemeGroupVersion.WithKind("Namespace"), Plural: "namespaces", Short: []string{"ns"}, IsNamespace: true,
	// There is no deletecollection, so that all namespaces cannot be deleted at once.
	Verbs: []string{"create", "delete", "get", "list", "patch", "update", "watch"},
	List:  &corev1.NamespaceList{},

	ValidateName: apivalidation.ValidateNamespaceName,
	Default:      defaultNamespace,
	Prepare:      prepareNamespace,
	Validate:     validateNamespace,
	Canonicalize: labelNamespace,

	CopyStatus:     func(to, from *corev1.Namespace) { to.Status = from.Status },
	ValidateStatus: validateNamespaceStatus,
	Subresources: []kind.Subresource{{
		Name: "finalize", Verbs: []string{"update"},
		Update: namespaceFinalize(),
	}},

	HasSpecFinalizers: func(obj *corev1.Namespace) bool { return len(obj.Spec.Finalizers) > 0 },
	MarkTerminating:   func(obj *corev1.Namespace) { obj.Status.Phase = corev1.NamespaceTerminating },
	ReturnDeleted:     true,

	Fields: map[string]func(*corev1.Namespace) string{
		"status.phase": func(obj *corev1.Namespace) string { return string(obj.Status.Phase) },
	},
	Columns: []metav1.TableColumnDefinition{
		kind.NameColumn(),
		kind.Column("Status", "string", "The status of the namespace"),
		kind.AgeColumn(),
	},
	Row: func(obj *corev1.Namespace, now time.Time) []any {
		return []any{obj.Name, string(obj.Status.Phase), kind.Age(obj.CreationTimestamp, now)}
	},
})

func defaultNamespace(obj *corev1.Namespace) {
	if obj.Name != "" {
		labelNamespace(obj)
	}
	if obj.Status.Phase == "" {
		obj.Status.Phase = corev1.NamespaceActive
	}
}

// labelNamespace sets the label with the namespace's name, for selectors. With generateName the name is set only after
// defaulting, so it runs again before the object is stored.
func labelNamespace(obj *corev1.Namespace) {
	if obj.Labels == nil {
		obj.Labels = map[string]string{}
	}
	obj.Labels[corev1.LabelMetadataName] = obj.Name
}

func prepareNamespace(_ *kind.Request, obj, old *corev1.Namespace) {
	if old != nil {
		obj.Spec.Finalizers = old.Spec.Finalizers
		return
	}
	obj.Status = corev1.NamespaceStatus{Phase: corev1.NamespaceActive}
	if !slices.Contains(obj.Spec.Finalizers, corev1.FinalizerKubernetes) {
		obj.Spec.Finalizers = append(obj.Spec.Finalizers, corev1.FinalizerKubernetes)
	}
}

func validateNamespace(_ *kind.Request, obj, _ *corev1.Namespace) (errs field.ErrorList) {
	for _, finalizer := range obj.Spec.Finalizers {
		errs = append(errs, validateFinalizer(string(finalizer), field.NewPath("spec", "finalizers"))...)
	}
	return errs
}

func validateNamespaceStatus(_ *kind.Request, obj, _ *corev1.Namespace) field.ErrorList {
	path := field.NewPath("status", "Phase")
	switch {
	case obj.DeletionTimestamp.IsZero() && obj.Status.Phase != corev1.NamespaceActive:
		return field.ErrorList{field.Invalid(path, obj.Status.Phase, "may only be 'Active' if `deletionTimestamp` is empty")}
	case !obj.DeletionTimestamp.IsZero() && obj.Status.Phase != corev1.NamespaceTerminating:
		return field.ErrorList{field.Invalid(path, obj.Status.Phase, "may only be 'Terminating' if `deletionTimestamp` is not empty")}
	}
	return nil
}

func namespaceFinalize() *kind.UpdateStrategy {
	part := kind.UpdateStrategyOf(
		func(_ *kind.Request, obj, old *corev1.Namespace) {
			finalizers := obj.Spec.Finalizers
			old.DeepCopyInto(obj)
			obj.Spec.Finalizers = finalizers
		},
		func(_ *kind.Request, obj, _ *corev1.Namespace) (errs field.ErrorList) {
			path := field.NewPath("spec", "finalizers")
			for i, finalizer := range obj.Spec.Finalizers {
				errs = append(errs, validateFinalizer(string(finalizer), path.Index(i))...)
			}
			return errs
		})
	part.OwnedFields = []string{"spec.finalizers"}
	part.UpdatesMetadata = true
	return part
}

var standardFinalizers = sets.New(string(corev1.FinalizerKubernetes), metav1.FinalizerOrphanDependents, metav1.FinalizerDeleteDependents)

func validateFinalizer(name string, path *field.Path) field.ErrorList {
	errs := apivalidation.ValidateFinalizerName(name, path)
	if !strings.Contains(name, "/") && !standardFinalizers.Has(name) {
		errs = append(errs, field.Invalid(path, name, "name is neither a standard finalizer name nor is it fully qualified"))
	}
	return errs
}
