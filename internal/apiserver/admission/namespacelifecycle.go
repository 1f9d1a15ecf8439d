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

// namespaceLifecycle rejects creating objects in a namespace that does not exist or is terminating, and deleting the system
// namespaces.
type namespaceLifecycle struct{ client lazyClient }

// immortalNamespaces cannot be deleted.
var immortalNamespaces = []string{metav1.NamespaceDefault, metav1.NamespaceSystem, metav1.NamespacePublic}

// accessReviews are allowed in any namespace: the response must not reveal whether it exists.
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

func (p *namespaceLifecycle) Mutate(ctx context.Context, a *Attributes) error {
	if a.Operation == Delete {
		if slices.Contains(immortalNamespaces, a.Name) {
			return apierrors.NewForbidden(namespaces, a.Name, errors.New("this namespace may not be deleted"))
		}
		return nil
	}
	namespace, err := get[*corev1.Namespace](ctx, p.client, namespaces, "", a.Namespace)
	switch {
	case err == nil && namespace.Status.Phase != corev1.NamespaceTerminating:
		return nil
	case apierrors.IsNotFound(err):
		return err
	case err != nil:
		return apierrors.NewInternalError(err)
	}
	err = forbid(a, "unable to create new content in namespace %s because it is being terminated", a.Namespace)
	var status *apierrors.StatusError
	if errors.As(err, &status) {
		status.ErrStatus.Details.Causes = append(status.ErrStatus.Details.Causes, metav1.StatusCause{
			Type: corev1.NamespaceTerminatingCause, Field: "metadata.namespace",
			Message: fmt.Sprintf("namespace %s is being terminated", a.Namespace),
		})
	}
	return err
}
