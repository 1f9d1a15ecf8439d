package admission

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"skiff/internal/kind"
)

// The resources that plugins are about.
var (
	pods              = schema.GroupResource{Resource: "pods"}
	nodes             = schema.GroupResource{Resource: "nodes"}
	namespaces        = schema.GroupResource{Resource: "namespaces"}
	services          = schema.GroupResource{Resource: "services"}
	serviceAccounts   = schema.GroupResource{Resource: "serviceaccounts"}
	limitRanges       = schema.GroupResource{Resource: "limitranges"}
	resourceQuotas    = schema.GroupResource{Resource: "resourcequotas"}
	events            = schema.GroupResource{Resource: "events"}
	volumes           = schema.GroupResource{Resource: "persistentvolumes"}
	volumeClaims      = schema.GroupResource{Resource: "persistentvolumeclaims"}
	storageClasses    = schema.GroupResource{Group: "storage.k8s.io", Resource: "storageclasses"}
	attributesClasses = schema.GroupResource{Group: "storage.k8s.io", Resource: "volumeattributesclasses"}
	csiDrivers        = schema.GroupResource{Group: "storage.k8s.io", Resource: "csidrivers"}
	csiNodes          = schema.GroupResource{Group: "storage.k8s.io", Resource: "csinodes"}
	priorityClasses   = schema.GroupResource{Group: "scheduling.k8s.io", Resource: "priorityclasses"}
	runtimeClasses    = schema.GroupResource{Group: "node.k8s.io", Resource: "runtimeclasses"}
	ingresses         = schema.GroupResource{Group: "networking.k8s.io", Resource: "ingresses"}
	ingressClasses    = schema.GroupResource{Group: "networking.k8s.io", Resource: "ingressclasses"}
	leases            = schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}
	signingRequests   = schema.GroupResource{Group: "certificates.k8s.io", Resource: "certificatesigningrequests"}
	trustBundles      = schema.GroupResource{Group: "certificates.k8s.io", Resource: "clustertrustbundles"}
	podCertificates   = schema.GroupResource{Group: "certificates.k8s.io", Resource: "podcertificaterequests"}
	resourceSlices    = schema.GroupResource{Group: "resource.k8s.io", Resource: "resourceslices"}
	resourceClaims    = schema.GroupResource{Group: "resource.k8s.io", Resource: "resourceclaims"}
	deviceClasses     = schema.GroupResource{Group: "resource.k8s.io", Resource: "deviceclasses"}
)

// access is how plugins see other objects. It is asked for at every use, because plugins are made before the server is.
type access func() kind.Client

// get reads one object. It is shared and read-only.
func get[T kind.Object](ctx context.Context, env access, resource schema.GroupResource, namespace, name string) (T, error) {
	var none T
	obj, err := env().Get(ctx, resource, namespace, name)
	if err != nil {
		return none, err
	}
	typed, ok := obj.(T)
	if !ok {
		return none, fmt.Errorf("%s %q is a %T", resource, name, obj)
	}
	return typed, nil
}

// list reads the objects of a namespace, or all when it is empty, in the order of their names. They are shared and read-only.
func list[T kind.Object](ctx context.Context, env access, resource schema.GroupResource, namespace string) ([]T, error) {
	objs, err := env().List(ctx, resource, namespace)
	if err != nil || len(objs) == 0 {
		return nil, err
	}
	typed := make([]T, len(objs))
	for i, obj := range objs {
		var ok bool
		if typed[i], ok = obj.(T); !ok {
			return nil, fmt.Errorf("one of %s is a %T", resource, obj)
		}
	}
	return typed, nil
}

// objectOf is the object of the write in its own type.
func objectOf[T runtime.Object](a *Attributes) (T, error) { return typed[T](a.Object) }

// oldOf is the object that the write changes, in its own type.
func oldOf[T runtime.Object](a *Attributes) (T, error) { return typed[T](a.Old) }

func typed[T runtime.Object](obj runtime.Object) (T, error) {
	t, ok := obj.(T)
	if !ok {
		return t, apierrors.NewBadRequest(fmt.Sprintf("expected %T but got %T", t, obj))
	}
	return t, nil
}

// forbid refuses the write for a reason.
func forbid(a *Attributes, format string, args ...any) error {
	return forbidden(a, fmt.Errorf(format, args...))
}

// forbidden turns an error into the refusal of the write, unless it is one already.
func forbidden(a *Attributes, err error) error {
	if apierrors.IsForbidden(err) {
		return err
	}
	return apierrors.NewForbidden(a.Resource.GroupResource(), nameOf(a), err)
}

// nameOf is the name of the object in messages. While it is being created it may have none yet.
func nameOf(a *Attributes) string {
	if a.Name != "" {
		return a.Name
	}
	if a.Object == nil {
		return "Unknown"
	}
	obj, err := meta.Accessor(a.Object)
	switch {
	case err != nil:
		return "Unknown/errorGettingName"
	case obj.GetName() != "":
		return obj.GetName()
	case obj.GetGenerateName() != "":
		return obj.GetGenerateName()
	}
	return "Unknown"
}

func (a *Attributes) warn(text string) {
	if a.Warn != nil {
		a.Warn(text)
	}
}

func (a *Attributes) annotate(key, value string) {
	if a.Annotate != nil {
		a.Annotate(key, value)
	}
}
