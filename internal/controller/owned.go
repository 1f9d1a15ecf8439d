package controller

import (
	"encoding/json"
	"fmt"
	"maps"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/client"
	"skiff/internal/kind"
)

// controllerIndex finds objects by the uid of their controller, and those without one by their namespace.
const controllerIndex = "controller"

// Dependents are the objects of type T that a controller owns: an informer with an index by owner.
type Dependents[T kind.Object] struct {
	client.Informer[T]
}

// DependentsOf returns the objects of type T by their owner.
func DependentsOf[T kind.Object](s *Setup) (Dependents[T], error) {
	informer := client.InformerFor[T](s.Informers)
	err := informer.EnsureIndex(controllerIndex, func(obj T) []string {
		if owner := metav1.GetControllerOfNoCopy(obj); owner != nil {
			return []string{string(owner.UID)}
		}
		return []string{orphansIn(obj.GetNamespace())}
	})
	if err != nil {
		return Dependents[T]{}, fmt.Errorf("index %T by controller: %w", *new(T), err)
	}
	return Dependents[T]{informer}, nil
}

// Of returns the objects the owner controls.
func (d Dependents[T]) Of(owner types.UID) []T { return d.by(string(owner)) }

// Orphans returns the objects of a namespace that have no controller.
func (d Dependents[T]) Orphans(namespace string) []T { return d.by(orphansIn(namespace)) }

// OfAndOrphans returns the objects the owner controls and those it could adopt.
func (d Dependents[T]) OfAndOrphans(owner kind.Object) []T {
	return append(d.Of(owner.GetUID()), d.Orphans(owner.GetNamespace())...)
}

func (d Dependents[T]) by(value string) []T {
	// The index exists: DependentsOf made it.
	objs, _ := d.ByIndex(controllerIndex, value)
	return objs
}

func orphansIn(namespace string) string { return "orphans in " + namespace }

// WatchDependents enqueues the owner of every object of type D that changes. For an object without a controller, all owners in its
// namespace whose selector matches are enqueued: one may want to adopt it. selector may be nil: nothing is adopted.
func WatchDependents[D, O kind.Object](s *Setup, ownerKind schema.GroupVersionKind, selector func(owner O) (labels.Selector, error)) error {
	owners := client.InformerFor[O](s.Informers)
	enqueue := func(obj D) {
		if ref := metav1.GetControllerOfNoCopy(obj); ref != nil {
			if ref.Kind == ownerKind.Kind && groupOf(ref.APIVersion) == ownerKind.Group {
				s.Enqueue(Key{Namespace: obj.GetNamespace(), Name: ref.Name})
			}
			return
		}
		if selector == nil || len(obj.GetLabels()) == 0 {
			return
		}
		for _, owner := range owners.List(obj.GetNamespace(), nil) {
			if match, err := selector(owner); err == nil && match.Matches(labels.Set(obj.GetLabels())) {
				s.Enqueue(KeyOf(owner))
			}
		}
	}
	changed := func(old, obj D) {
		before, now := metav1.GetControllerOfNoCopy(old), metav1.GetControllerOfNoCopy(obj)
		if before == nil && now == nil && maps.Equal(old.GetLabels(), obj.GetLabels()) {
			return // an orphan as unwanted as before
		}
		if before != nil && (now == nil || now.UID != before.UID) {
			enqueue(old)
		}
		enqueue(obj)
	}
	if err := client.InformerFor[D](s.Informers).Handle(enqueue, changed, enqueue); err != nil {
		return fmt.Errorf("watch %T: %w", *new(D), err)
	}
	return nil
}

func groupOf(apiVersion string) string {
	gv, err := schema.ParseGroupVersion(apiVersion)
	if err != nil {
		return ""
	}
	return gv.Group
}

// Claim decides whose the objects are. It returns those that are the owner's or are going to be, and adds steps to the plan that
// adopt matching orphans and release what no longer matches. An owner that is being deleted neither adopts nor releases.
// finalizers, if any, are added to what is adopted and removed from what is released.
func Claim[T kind.Object](plan *Plan, owner kind.Object, ownerKind schema.GroupVersionKind, matches func(T) bool, objs []T, finalizers ...string) []T {
	var mine []T
	var adopt, release []Write
	leaving := owner.GetDeletionTimestamp() != nil
	for _, obj := range objs {
		ref := metav1.GetControllerOfNoCopy(obj)
		switch {
		case ref != nil && ref.UID != owner.GetUID():
		case ref != nil && matches(obj):
			mine = append(mine, obj)
		case leaving:
		case ref != nil:
			release = append(release, Patching(obj, client.StrategicPatch, releasePatch(obj, owner, finalizers)).
				Tolerating(metav1.StatusReasonNotFound, metav1.StatusReasonInvalid))
		case matches(obj) && obj.GetDeletionTimestamp() == nil && obj.GetNamespace() == owner.GetNamespace():
			mine = append(mine, obj)
			adopt = append(adopt, Patching(obj, client.StrategicPatch, adoptPatch(obj, owner, ownerKind, finalizers)).
				Tolerating(metav1.StatusReasonNotFound))
		}
	}
	plan.Then(release...)
	if len(adopt) > 0 {
		plan.Steps = append(plan.Steps, Step{Confirm: owner, Writes: adopt})
	}
	return mine
}

// adoptPatch makes owner the controller of obj. The uid guards against another object of the same name.
func adoptPatch(obj, owner kind.Object, ownerKind schema.GroupVersionKind, finalizers []string) []byte {
	metadata := map[string]any{
		"uid":             obj.GetUID(),
		"ownerReferences": []*metav1.OwnerReference{metav1.NewControllerRef(owner, ownerKind)},
	}
	if len(finalizers) > 0 {
		metadata["finalizers"] = finalizers
	}
	return mustMarshal(map[string]any{"metadata": metadata})
}

// releasePatch takes obj from owner.
func releasePatch(obj, owner kind.Object, finalizers []string) []byte {
	metadata := map[string]any{
		"uid":             obj.GetUID(),
		"ownerReferences": []map[string]any{{"$patch": "delete", "uid": owner.GetUID()}},
	}
	if len(finalizers) > 0 {
		metadata["$deleteFromPrimitiveList/finalizers"] = finalizers
	}
	return mustMarshal(map[string]any{"metadata": metadata})
}

// mustMarshal encodes what is made of strings and maps and cannot fail.
func mustMarshal(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return data
}
