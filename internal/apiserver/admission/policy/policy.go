// Package policy has the admission plugins that evaluate policies: MutatingAdmissionPolicy and ValidatingAdmissionPolicy.
//
// A source keeps the policies that have bindings in an index by operation and resource, which is made again when a policy or binding has
// changed. A write that no policy is about costs a lookup in it. Expressions are compiled when a write first needs them, and kept until
// the policy's spec changes.
package policy

import (
	"context"
	"errors"
	"log/slog"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"

	"skiff/internal/apiserver/admission"
	"skiff/internal/apiserver/admission/cel"
	"skiff/internal/apiserver/admission/match"
	"skiff/internal/apiserver/authz"
	"skiff/internal/kind"
)

// The names of the plugins.
const (
	ValidatingName = "ValidatingAdmissionPolicy"
	MutatingName   = "MutatingAdmissionPolicy"
)

// Options are the dependencies of the plugins. Client, Objects and Kinds are functions because the server is made after the plugins.
type Options struct {
	// Client reads namespaces and params.
	Client func() kind.Client
	// Objects reads policies and bindings.
	Objects func() Objects
	// Kinds returns the Kind that is served as gvk and the version, or nil.
	Kinds func(gvk schema.GroupVersionKind) (*kind.Kind, *kind.Version)
	// Authorizer is what expressions can ask.
	Authorizer authz.Authorizer
	// TypeConverter returns the schemas of built-in kinds, for apply configurations.
	TypeConverter func() (managedfields.TypeConverter, error)
	// Conditions are the metrics of match conditions.
	Conditions *cel.Metrics
	Log        *slog.Logger
}

// Objects is the API server's own cache. Reads do not wait for the store: writes wait for them.
type Objects interface {
	List(resource schema.GroupResource, namespace string, selector labels.Selector) ([]kind.Object, error)
	// LastChange is the revision of the last change of a resource. It must be cheap.
	LastChange(resource schema.GroupResource) int64
}

func (o *Options) check() error {
	if o.Client == nil || o.Objects == nil || o.Kinds == nil || o.Authorizer == nil || o.TypeConverter == nil || o.Log == nil {
		return errors.New("policies need a client, objects, kinds, an authorizer, a type converter and a log")
	}
	return nil
}

// isExempt reports whether no policy is about the resource: policies and bindings, so that a wrong one can be removed, and reviews, so that
// nobody is locked out.
func isExempt(a *admission.Attributes) bool {
	if match.IsReview(a) {
		return true
	}
	if a.Resource.Group != admissionregistrationv1.GroupName {
		return false
	}
	switch a.Resource.Resource {
	case "validatingadmissionpolicies", "validatingadmissionpolicybindings", "mutatingadmissionpolicies", "mutatingadmissionpolicybindings":
		return true
	}
	return false
}

// namespaceOf returns the namespace that expressions see. A namespace itself is not in one.
func namespaceOf(ctx context.Context, client kind.Client, a *admission.Attributes) (*corev1.Namespace, error) {
	if a.Namespace == "" || a.Kind == corev1.SchemeGroupVersion.WithKind("Namespace") {
		return nil, nil
	}
	obj, err := client.Get(ctx, corev1.Resource("namespaces"), "", a.Namespace)
	if err != nil {
		return nil, err
	}
	return obj.(*corev1.Namespace), nil
}

// failurePolicyOf returns the failure policy; the default is Fail.
func failurePolicyOf(p *admissionregistrationv1.FailurePolicyType) admissionregistrationv1.FailurePolicyType {
	if p == nil {
		return admissionregistrationv1.Fail
	}
	return *p
}
