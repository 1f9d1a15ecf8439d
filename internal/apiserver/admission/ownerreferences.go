package admission

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"skiff/internal/apiserver/authz"
)

// ownerReferencesPermissionEnforcement requires permission to delete an object for changing its owner references, which decide
// when it is deleted; and permission to set finalizers on an owner for setting blockOwnerDeletion. Off by default.
type ownerReferencesPermissionEnforcement struct {
	authorizer authz.Authorizer
	resources  func(schema.GroupVersionKind) (resource schema.GroupVersionResource, namespaced, ok bool)
}

func (*ownerReferencesPermissionEnforcement) Name() string {
	return "OwnerReferencesPermissionEnforcement"
}

// Handles ignores pod status, which cannot change owners and which old kubelets send with corrupted owners.
func (*ownerReferencesPermissionEnforcement) Handles(a *Attributes) bool {
	return a.changes() && !(a.Subresource == "status" && a.is(pods))
}

func (r *ownerReferencesPermissionEnforcement) Validate(ctx context.Context, a *Attributes) error {
	owners, oldOwners := ownersOf(a.Object), ownersOf(a.Old)
	if slices.EqualFunc(owners, oldOwners, func(a, b metav1.OwnerReference) bool { return equality.Semantic.DeepEqual(a, b) }) {
		return nil
	}
	// Creating an object needs no permission to delete it.
	if a.Operation != Create {
		decision, reason, err := r.authorizer.Authorize(ctx, &authz.Attributes{
			User: a.User, Verb: "delete", Namespace: a.Namespace, Group: a.Resource.Group, Version: a.Resource.Version,
			Resource: a.Resource.Resource, Subresource: a.Subresource, Name: a.Name, ResourceRequest: true,
		})
		if decision != authz.Allow {
			return forbid(a, "cannot set an ownerRef on a resource you can't delete: %v, %v", reason, err)
		}
	}
	blocking := newlyBlocking(owners, oldOwners)
	if len(blocking) == 0 {
		return nil
	}
	everything := &authz.Attributes{
		User: a.User, Verb: "update", Group: "*", Version: "*", Resource: "*", Subresource: "finalizers", Name: "*", ResourceRequest: true,
	}
	if decision, _, _ := r.authorizer.Authorize(ctx, everything); decision == authz.Allow {
		return nil
	}
	for _, owner := range blocking {
		attributes, err := r.finalizerAttributes(a, owner)
		if err != nil {
			return forbid(a, "cannot set blockOwnerDeletion in this case because cannot find RESTMapping for APIVersion %s Kind %s: %v", owner.APIVersion, owner.Kind, err)
		}
		if decision, reason, err := r.authorizer.Authorize(ctx, attributes); decision != authz.Allow {
			return forbid(a, "cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set finalizers on: %v, %v", reason, err)
		}
	}
	return nil
}

// finalizerAttributes describe a request to set finalizers on an owner.
func (r *ownerReferencesPermissionEnforcement) finalizerAttributes(a *Attributes, owner metav1.OwnerReference) (*authz.Attributes, error) {
	gv, err := schema.ParseGroupVersion(owner.APIVersion)
	if err != nil {
		return nil, err
	}
	resource, namespaced, ok := r.resources(gv.WithKind(owner.Kind))
	if !ok {
		return nil, fmt.Errorf("no matches for kind %q in version %q", owner.Kind, owner.APIVersion)
	}
	attributes := &authz.Attributes{
		User: a.User, Verb: "update", Group: resource.Group, Version: resource.Version, Resource: resource.Resource,
		Subresource: "finalizers", Name: owner.Name, ResourceRequest: true,
	}
	if namespaced {
		attributes.Namespace = a.Namespace // a namespaced owner is in the namespace of its dependent
	}
	return attributes, nil
}

func ownersOf(obj runtime.Object) []metav1.OwnerReference {
	if obj == nil {
		return nil
	}
	accessor, err := meta.Accessor(obj)
	if err != nil {
		return nil // without metadata there are no owners
	}
	return accessor.GetOwnerReferences()
}

// newlyBlocking are the owner references with blockOwnerDeletion that did not have it before.
func newlyBlocking(owners, oldOwners []metav1.OwnerReference) (blocking []metav1.OwnerReference) {
	blocks := func(owner metav1.OwnerReference) bool {
		return owner.BlockOwnerDeletion != nil && *owner.BlockOwnerDeletion
	}
	before := sets.New[types.UID]()
	for _, owner := range oldOwners {
		if blocks(owner) {
			before.Insert(owner.UID)
		}
	}
	for _, owner := range owners {
		if blocks(owner) && !before.Has(owner.UID) {
			blocking = append(blocking, owner)
		}
	}
	return blocking
}
