package admission

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// namespaceLifecycle lets nothing be created in a namespace that is not there or on its way out, and keeps the system's
// own namespaces from being deleted.
type namespaceLifecycle struct{ env access }

// immortal namespaces cannot be deleted.
var immortal = []string{metav1.NamespaceDefault, metav1.NamespaceSystem, metav1.NamespacePublic}

// accessReviews are answered whatever becomes of the namespace: the answer must not tell whether it exists.
var accessReviews = schema.GroupResource{Group: "authorization.k8s.io", Resource: "localsubjectaccessreviews"}

func (*namespaceLifecycle) Name() string { return "NamespaceLifecycle" }

func (*namespaceLifecycle) Handles(a *Attributes) bool {
	switch a.Operation {
	case Create:
		return a.Namespace != "" && !a.is(namespaces) && !a.is(accessReviews)
	case Delete:
		return a.is(namespaces)
	}
	return false
}

func (r *namespaceLifecycle) Mutate(ctx context.Context, a *Attributes) error {
	if a.Operation == Delete {
		if slices.Contains(immortal, a.Name) {
			return apierrors.NewForbidden(namespaces, a.Name, errors.New("this namespace may not be deleted"))
		}
		return nil
	}
	namespace, err := get[*corev1.Namespace](ctx, r.env, namespaces, "", a.Namespace)
	switch {
	case err == nil && namespace.Status.Phase != corev1.NamespaceTerminating:
		return nil
	case apierrors.IsNotFound(err):
		return err
	case err != nil:
		return apierrors.NewInternalError(err)
	}
	refusal := forbid(a, "unable to create new content in namespace %s because it is being terminated", a.Namespace)
	var status *apierrors.StatusError
	if errors.As(refusal, &status) {
		status.ErrStatus.Details.Causes = append(status.ErrStatus.Details.Causes, metav1.StatusCause{
			Type: corev1.NamespaceTerminatingCause, Field: "metadata.namespace",
			Message: fmt.Sprintf("namespace %s is being terminated", a.Namespace),
		})
	}
	return refusal
}
