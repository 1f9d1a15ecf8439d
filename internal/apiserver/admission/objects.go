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

// The resources that plugins handle or read.
var (
	pods                    = schema.GroupResource{Resource: "pods"}
	nodes                   = schema.GroupResource{Resource: "nodes"}
	namespaces              = schema.GroupResource{Resource: "namespaces"}
	services                = schema.GroupResource{Resource: "services"}
	serviceAccounts         = schema.GroupResource{Resource: "serviceaccounts"}
	limitRanges             = schema.GroupResource{Resource: "limitranges"}
	resourceQuotas          = schema.GroupResource{Resource: "resourcequotas"}
	events                  = schema.GroupResource{Resource: "events"}
	persistentVolumes       = schema.GroupResource{Resource: "persistentvolumes"}
	persistentVolumeClaims  = schema.GroupResource{Resource: "persistentvolumeclaims"}
	storageClasses          = schema.GroupResource{Group: "storage.k8s.io", Resource: "storageclasses"}
	volumeAttributesClasses = schema.GroupResource{Group: "storage.k8s.io", Resource: "volumeattributesclasses"}
	csiDrivers              = schema.GroupResource{Group: "storage.k8s.io", Resource: "csidrivers"}
	csiNodes                = schema.GroupResource{Group: "storage.k8s.io", Resource: "csinodes"}
	priorityClasses         = schema.GroupResource{Group: "scheduling.k8s.io", Resource: "priorityclasses"}
	runtimeClasses          = schema.GroupResource{Group: "node.k8s.io", Resource: "runtimeclasses"}
	ingresses               = schema.GroupResource{Group: "networking.k8s.io", Resource: "ingresses"}
	ingressClasses          = schema.GroupResource{Group: "networking.k8s.io", Resource: "ingressclasses"}
	leases                  = schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}
	signingRequests         = schema.GroupResource{Group: "certificates.k8s.io", Resource: "certificatesigningrequests"}
	trustBundles            = schema.GroupResource{Group: "certificates.k8s.io", Resource: "clustertrustbundles"}
	podCertificates         = schema.GroupResource{Group: "certificates.k8s.io", Resource: "podcertificaterequests"}
	resourceSlices          = schema.GroupResource{Group: "resource.k8s.io", Resource: "resourceslices"}
	resourceClaims          = schema.GroupResource{Group: "resource.k8s.io", Resource: "resourceclaims"}
	deviceClasses           = schema.GroupResource{Group: "resource.k8s.io", Resource: "deviceclasses"}
)

// lazyClient returns the client that plugins read other objects with. It is called on every use, because plugins are made before
// the server.
type lazyClient func() kind.Client

// get reads an object. It is shared and read-only.
func get[T kind.Object](ctx context.Context, client lazyClient, resource schema.GroupResource, namespace, name string) (T, error) {
	var none T
	obj, err := client().Get(ctx, resource, namespace, name)
	if err != nil {
		return none, err
	}
	typed, ok := obj.(T)
	if !ok {
		return none, fmt.Errorf("%s %q is a %T", resource, name, obj)
	}
	return typed, nil
}

// list reads the objects of a namespace, or of all if it is empty, sorted by name. They are shared and read-only.
func list[T kind.Object](ctx context.Context, client lazyClient, resource schema.GroupResource, namespace string) ([]T, error) {
	objs, err := client().List(ctx, resource, namespace)
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

// objectOf is the written object in its own type.
func objectOf[T runtime.Object](a *Attributes) (T, error) { return typed[T](a.Object) }

// oldOf is the existing object in its own type.
func oldOf[T runtime.Object](a *Attributes) (T, error) { return typed[T](a.Old) }

func typed[T runtime.Object](obj runtime.Object) (T, error) {
	t, ok := obj.(T)
	if !ok {
		return t, apierrors.NewBadRequest(fmt.Sprintf("expected %T but got %T", t, obj))
	}
	return t, nil
}

// forbid returns a Forbidden error for the write.
func forbid(a *Attributes, format string, args ...any) error {
	return Forbidden(a, fmt.Errorf(format, args...))
}

// Forbidden converts an error to a Forbidden error for the write, unless it is one already.
func Forbidden(a *Attributes, err error) error {
	if apierrors.IsForbidden(err) {
		return err
	}
	return apierrors.NewForbidden(a.Resource.GroupResource(), nameOf(a), err)
}

// nameOf is the name of the object in messages. An object that is being created may not have one yet.
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
