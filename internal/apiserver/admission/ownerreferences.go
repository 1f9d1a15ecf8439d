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

	"skiff/internal/apiserver/authz"
)

// ownerReferencesPermissionEnforcement: who changes the owners of an object decides when it is deleted, so he must be
// allowed to delete it; and who makes an owner's deletion wait must be allowed to set finalizers on the owner. Off by default.
type ownerReferencesPermissionEnforcement struct {
	authorizer authz.Authorizer
	resources  func(schema.GroupVersionKind) (resource schema.GroupVersionResource, namespaced, ok bool)
}

func (*ownerReferencesPermissionEnforcement) Name() string {
	return "OwnerReferencesPermissionEnforcement"
}

// Handles: the status of a pod cannot change owners, and old kubelets send them corrupted.
func (*ownerReferencesPermissionEnforcement) Handles(a *Attributes) bool {
	return a.changes() && !(a.Subresource == "status" && a.is(pods))
}

func (r *ownerReferencesPermissionEnforcement) Validate(ctx context.Context, a *Attributes) error {
	owners, had := ownersOf(a.Object), ownersOf(a.Old)
	if slices.EqualFunc(owners, had, func(a, b metav1.OwnerReference) bool { return equality.Semantic.DeepEqual(a, b) }) {
		return nil
	}
	// Who creates an object could as well have left it.
	if a.Operation != Create {
		decision, reason, err := r.authorizer.Authorize(ctx, &authz.Attributes{
			User: a.User, Verb: "delete", Namespace: a.Namespace, Group: a.Resource.Group, Version: a.Resource.Version,
			Resource: a.Resource.Resource, Subresource: a.Subresource, Name: a.Name, ResourceRequest: true,
		})
		if decision != authz.Allow {
			return forbid(a, "cannot set an ownerRef on a resource you can't delete: %v, %v", reason, err)
		}
	}
	blocking := newlyBlocking(owners, had)
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
		question, err := r.finalize(a, owner)
		if err != nil {
			return forbid(a, "cannot set blockOwnerDeletion in this case because cannot find RESTMapping for APIVersion %s Kind %s: %v", owner.APIVersion, owner.Kind, err)
		}
		if decision, reason, err := r.authorizer.Authorize(ctx, question); decision != authz.Allow {
			return forbid(a, "cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set finalizers on: %v, %v", reason, err)
		}
	}
	return nil
}

// finalize asks whether the user may set finalizers on an owner.
func (r *ownerReferencesPermissionEnforcement) finalize(a *Attributes, owner metav1.OwnerReference) (*authz.Attributes, error) {
	gv, err := schema.ParseGroupVersion(owner.APIVersion)
	if err != nil {
		return nil, err
	}
	resource, namespaced, ok := r.resources(gv.WithKind(owner.Kind))
	if !ok {
		return nil, fmt.Errorf("no matches for kind %q in version %q", owner.Kind, owner.APIVersion)
	}
	question := &authz.Attributes{
		User: a.User, Verb: "update", Group: resource.Group, Version: resource.Version, Resource: resource.Resource,
		Subresource: "finalizers", Name: owner.Name, ResourceRequest: true,
	}
	if namespaced {
		question.Namespace = a.Namespace // an owner is in the namespace of what it owns, or in none
	}
	return question, nil
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

// newlyBlocking are the owners whose deletion waits for the object, and did not before.
func newlyBlocking(owners, had []metav1.OwnerReference) (blocking []metav1.OwnerReference) {
	blocks := func(owner metav1.OwnerReference) bool {
		return owner.BlockOwnerDeletion != nil && *owner.BlockOwnerDeletion
	}
	for _, owner := range owners {
		before := slices.ContainsFunc(had, func(h metav1.OwnerReference) bool { return h.UID == owner.UID && blocks(h) })
		if blocks(owner) && !before {
			blocking = append(blocking, owner)
		}
	}
	return blocking
}
