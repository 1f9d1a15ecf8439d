package cel

import (
	"maps"
	"reflect"

	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/cel/common"
	"k8s.io/apiserver/pkg/cel/library"

	"skiff/internal/apiserver/admission"
	"skiff/internal/apiserver/authz"
)

// Request is a write as the expressions of all policies, or of all webhooks, see it. It keeps what they have in common: the object in
// each version that one of them asks for, and decisions of the authorizer. It is not safe for concurrent use.
type Request struct {
	attributes *admission.Attributes
	authorizer *cachingAuthorizer
	versions   map[schema.GroupVersionKind]*Version
	namespace  ref.Val
}

// NewRequest describes a write to expressions. They can ask the authorizer.
func NewRequest(a *admission.Attributes, authorizer authz.Authorizer) *Request {
	return &Request{
		attributes: a, authorizer: newCachingAuthorizer(authorizer, a.User), versions: map[schema.GroupVersionKind]*Version{},
		namespace: types.NullValue,
	}
}

// SetNamespace sets namespaceObject, which match conditions do not see. It is null for objects without namespace.
func (r *Request) SetNamespace(namespace *corev1.Namespace) {
	r.namespace = common.SchemalessTypedToVal(plugincel.CreateNamespaceObject(namespace))
}

// Version returns the request in a version of the written kind, converting the objects on first use.
func (r *Request) Version(gvk schema.GroupVersionKind) (*Version, error) {
	if known := r.versions[gvk]; known != nil {
		return known, nil
	}
	v := &Version{request: r, Kind: gvk}
	var err error
	if obj := r.attributes.Object; obj != nil {
		if v.Object, err = r.convert(obj, gvk); err != nil {
			return nil, err
		}
	}
	if old := r.attributes.Old; old != nil {
		if v.Old, err = r.convert(old, gvk); err != nil {
			return nil, err
		}
	}
	r.versions[gvk] = v
	return v, nil
}

// convert returns an object of the write in another version, with apiVersion and kind. The result shares its content with obj.
func (r *Request) convert(obj runtime.Object, gvk schema.GroupVersionKind) (runtime.Object, error) {
	obj, err := r.attributes.Versions.Convert(obj, gvk)
	if err != nil {
		return nil, err
	}
	return withType(obj, gvk), nil
}

// withType returns the object with apiVersion and kind. It copies the outermost struct or map only.
func withType(obj runtime.Object, gvk schema.GroupVersionKind) runtime.Object {
	if obj.GetObjectKind().GroupVersionKind() == gvk {
		return obj
	}
	var typed runtime.Object
	if dynamic, ok := obj.(*unstructured.Unstructured); ok {
		typed = &unstructured.Unstructured{Object: maps.Clone(dynamic.Object)}
	} else {
		content := reflect.ValueOf(obj).Elem()
		made := reflect.New(content.Type())
		made.Elem().Set(content)
		typed = made.Interface().(runtime.Object)
	}
	typed.GetObjectKind().SetGroupVersionKind(gvk)
	return typed
}

// Changed must be called after the written object was replaced: the next Version is made of the new one.
func (r *Request) Changed() { clear(r.versions) }

// Version is a request in one API version. Object and Old are nil where the operation has none.
type Version struct {
	request     *Request
	Kind        schema.GroupVersionKind
	Object, Old runtime.Object

	// The values of object and oldObject. For mutations they are plain maps, because what they are assembled into is one.
	object, old           ref.Val
	objectCopy, oldCopy   ref.Val
	requests              map[schema.GroupVersionResource]ref.Val
	authorizer, ownAccess ref.Val
}

// objectValue returns the value of object or oldObject without converting it.
func objectValue(obj runtime.Object, known *ref.Val) any {
	if obj == nil {
		return nil
	}
	if *known == nil {
		if dynamic, ok := obj.(*unstructured.Unstructured); ok {
			*known = types.DefaultTypeAdapter.NativeToValue(dynamic.Object)
		} else {
			*known = common.SchemalessTypedToVal(obj)
		}
	}
	return *known
}

// objectCopy returns the value of object or oldObject as a map.
func objectCopy(obj runtime.Object, known *ref.Val) any {
	if obj == nil {
		return nil
	}
	if *known == nil {
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
		if err != nil {
			*known = types.NewErr("failed to convert %T: %v", obj, err)
		} else {
			*known = types.DefaultTypeAdapter.NativeToValue(content)
		}
	}
	return *known
}

// requestValue returns the value of request. resource is the one that the rule matched.
func (v *Version) requestValue(resource schema.GroupVersionResource) ref.Val {
	if known := v.requests[resource]; known != nil {
		return known
	}
	value := common.SchemalessTypedToVal(v.admissionRequest(resource))
	if v.requests == nil {
		v.requests = map[schema.GroupVersionResource]ref.Val{}
	}
	v.requests[resource] = value
	return value
}

func (v *Version) admissionRequest(resource schema.GroupVersionResource) *admissionv1.AdmissionRequest {
	a := v.request.attributes
	requestKind, requestResource := metav1.GroupVersionKind(a.Kind), metav1.GroupVersionResource(a.Resource)
	dryRun := a.DryRun
	return &admissionv1.AdmissionRequest{
		Kind: metav1.GroupVersionKind(v.Kind), Resource: metav1.GroupVersionResource(resource), SubResource: a.Subresource,
		RequestKind: &requestKind, RequestResource: &requestResource, RequestSubResource: a.Subresource,
		Name: a.Name, Namespace: a.Namespace, Operation: admissionv1.Operation(a.Operation),
		UserInfo: authenticationv1.UserInfo{Username: a.User.Username, UID: a.User.UID, Groups: a.User.Groups, Extra: a.User.Extra},
		DryRun:   &dryRun, Options: runtime.RawExtension{Object: a.Options},
	}
}

func (v *Version) authorizerValue() ref.Val {
	if v.authorizer == nil {
		v.authorizer = library.NewAuthorizerVal(v.request.authorizer.requester, v.request.authorizer)
	}
	return v.authorizer
}

func (v *Version) ownAccessValue() ref.Val {
	if v.ownAccess == nil {
		v.ownAccess = library.NewResourceAuthorizerVal(v.request.authorizer.requester, v.request.authorizer, requestedResource{v.request.attributes})
	}
	return v.ownAccess
}

// requestedResource is the resource that authorizer.requestResource is about.
type requestedResource struct{ *admission.Attributes }

func (r requestedResource) GetName() string                          { return r.Name }
func (r requestedResource) GetNamespace() string                     { return r.Namespace }
func (r requestedResource) GetResource() schema.GroupVersionResource { return r.Resource }
func (r requestedResource) GetSubresource() string                   { return r.Subresource }

// Params is an object that a policy is evaluated with. Its value is made when an expression first reads it.
type Params struct {
	Object      runtime.Object
	value, copy ref.Val
}

// NewParams returns the params of a policy with paramKind gvk.
func NewParams(obj runtime.Object, gvk schema.GroupVersionKind) *Params {
	return &Params{Object: withType(obj, gvk)}
}

// get returns the value of params, as a plain map if copied; p is nil for null.
func (p *Params) get(copied bool) any {
	switch {
	case p == nil:
		return nil
	case copied:
		return objectCopy(p.Object, &p.copy)
	}
	return objectValue(p.Object, &p.value)
}
