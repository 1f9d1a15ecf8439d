package policy

import (
	"context"
	"errors"
	"fmt"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"skiff/internal/apiserver/admission/cel"
	"skiff/internal/kind"
)

// paramReader reads the objects that policies are evaluated with.
type paramReader struct {
	client kind.Client
	kinds  func(schema.GroupVersionKind) (*kind.Kind, *kind.Version)
}

// check reports that the kind of a policy's params is not served.
func (r *paramReader) check(gvk *schema.GroupVersionKind) error {
	if gvk == nil {
		return nil
	}
	if k, _ := r.kinds(*gvk); k == nil {
		return fmt.Errorf("failed to find resource referenced by paramKind: '%v'", *gvk)
	}
	return nil
}

// noParams evaluates a policy once, with params null.
var noParams = []*cel.Params{nil}

// read returns the params of a binding for a write in the namespace: the policy is evaluated once for each. None and no error means that
// the binding does not apply.
func (r *paramReader) read(ctx context.Context, gvk *schema.GroupVersionKind, ref *admissionregistrationv1.ParamRef, namespace string) ([]*cel.Params, error) {
	if gvk == nil || ref == nil {
		return noParams, nil
	}
	k, version := r.kinds(*gvk)
	if k == nil {
		return nil, r.check(gvk)
	}
	if k.Namespaced {
		if ref.Namespace != "" {
			namespace = ref.Namespace
		} else if namespace == "" {
			return nil, errors.New("cannot use namespaced paramRef in policy binding that matches cluster-scoped resources")
		}
	} else if namespace = ""; ref.Namespace != "" {
		return nil, errors.New("paramRef.namespace must not be provided for a cluster-scoped `paramKind`")
	}
	found, err := r.find(ctx, k.GroupResource(), ref, namespace)
	if err != nil {
		return nil, err
	}
	if len(found) == 0 && ref.ParameterNotFoundAction != nil && *ref.ParameterNotFoundAction == admissionregistrationv1.DenyAction {
		return nil, errors.New("no params found for policy binding with `Deny` parameterNotFoundAction")
	}
	if found, err = k.FromStorageVersion(ctx, version, found); err != nil {
		return nil, err
	}
	params := make([]*cel.Params, len(found))
	for i, obj := range found {
		params[i] = cel.NewParams(obj, *gvk)
	}
	return params, nil
}

// find returns the objects that the reference names or selects. An object that does not exist is none.
func (r *paramReader) find(ctx context.Context, resource schema.GroupResource, ref *admissionregistrationv1.ParamRef, namespace string) ([]kind.Object, error) {
	switch {
	case ref.Name != "" && ref.Selector != nil:
		return nil, errors.New("paramRef.name and paramRef.selector are mutually exclusive")
	case ref.Name != "":
		obj, err := r.client.Get(ctx, resource, namespace, ref.Name)
		if apierrors.IsNotFound(err) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		return []kind.Object{obj}, nil
	case ref.Selector == nil:
		return nil, errors.New("one of name or selector must be provided")
	}
	selector, err := metav1.LabelSelectorAsSelector(ref.Selector)
	if err != nil {
		return nil, err
	}
	all, err := r.client.List(ctx, resource, namespace)
	if err != nil {
		return nil, err
	}
	var selected []kind.Object
	for _, obj := range all {
		if selector.Matches(labels.Set(obj.GetLabels())) {
			selected = append(selected, obj)
		}
	}
	return selected, nil
}
