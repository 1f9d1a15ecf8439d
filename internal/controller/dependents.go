package controller

import (
	"encoding/json"
	"fmt"
	"maps"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/client"
	"skiff/internal/kind"
)

// controllerIndex indexes objects by the UID of their controller, and orphans by their namespace and by each of their labels.
const controllerIndex = "controller"

// Dependents is an informer of objects of type T with an index by their controller.
type Dependents[T kind.Object] struct {
	client.Informer[T]
}

// DependentsOf returns the Dependents of type T and adds the index to the shared informer.
func DependentsOf[T kind.Object](s *Setup) (Dependents[T], error) {
	informer := client.InformerFor[T](s.Informers)
	err := informer.EnsureIndex(controllerIndex, func(obj T) []string {
		if owner := metav1.GetControllerOfNoCopy(obj); owner != nil {
			return []string{string(owner.UID)}
		}
		values := []string{orphansIn(obj.GetNamespace())}
		for key, value := range obj.GetLabels() {
			values = append(values, orphansIn(client.LabelIndexValue(obj.GetNamespace(), key, value)))
		}
		return values
	})
	if err != nil {
		return Dependents[T]{}, fmt.Errorf("index %T by controller: %w", *new(T), err)
	}
	return Dependents[T]{informer}, nil
}

// ControlledBy returns the objects whose controller has the UID.
func (d Dependents[T]) ControlledBy(owner types.UID) []T { return d.by(string(owner)) }

// Claimable returns the objects the owner controls, and orphans of its namespace, at least those that the selector matches.
func (d Dependents[T]) Claimable(owner kind.Object, selector labels.Selector) []T {
	orphans := orphansIn(owner.GetNamespace())
	if key, value, ok := client.RequiredLabel(selector); ok {
		orphans = orphansIn(client.LabelIndexValue(owner.GetNamespace(), key, value))
	}
	return append(d.ControlledBy(owner.GetUID()), d.by(orphans)...)
}

func (d Dependents[T]) by(value string) []T {
	// The index exists: DependentsOf made it.
	objs, _ := d.ByIndex(controllerIndex, value)
	return objs
}

func orphansIn(place string) string { return "orphans in " + place }

// WatchDependents enqueues the controller of every object of type D that changes. For an orphan, it enqueues all owners of type O in the
// namespace whose selector matches, since one may adopt it. If selector is nil, orphans are ignored.
func WatchDependents[D, O kind.Object](s *Setup, ownerKind schema.GroupVersionKind, selector func(owner O) (labels.Selector, error)) error {
	w, err := newDependentWatch[D](s, ownerKind, selector)
	if err != nil {
		return err
	}
	return w.start(w.enqueue)
}

// WatchRevisions is WatchDependents for the history of owners. A revision that is added with a controller enqueues nobody, as upstream: its controller has made
// it, or somebody has who may remove it again before the next sync merges it with one that is equal.
func WatchRevisions[O kind.Object](s *Setup, ownerKind schema.GroupVersionKind, selector func(owner O) (labels.Selector, error)) error {
	w, err := newDependentWatch[*appsv1.ControllerRevision](s, ownerKind, selector)
	if err != nil {
		return err
	}
	return w.start(func(revision *appsv1.ControllerRevision) {
		if metav1.GetControllerOfNoCopy(revision) == nil {
			w.enqueue(revision)
		}
	})
}

// dependentWatch enqueues the owners of objects of type D.
type dependentWatch[D, O kind.Object] struct {
	setup     *Setup
	ownerKind schema.GroupVersionKind
	owners    *client.Selectors[O] // nil: orphans are ignored
}

func newDependentWatch[D, O kind.Object](s *Setup, ownerKind schema.GroupVersionKind, selector func(owner O) (labels.Selector, error)) (*dependentWatch[D, O], error) {
	w := &dependentWatch[D, O]{setup: s, ownerKind: ownerKind}
	if selector == nil {
		return w, nil
	}
	owners, err := client.SelectorsOf(s.Informers, selector)
	w.owners = &owners
	return w, err
}

func (w *dependentWatch[D, O]) start(added func(D)) error {
	if err := client.InformerFor[D](w.setup.Informers).AddEventHandler(added, w.changed, w.enqueue); err != nil {
		return fmt.Errorf("watch %T: %w", *new(D), err)
	}
	return nil
}

func (w *dependentWatch[D, O]) enqueue(obj D) {
	if ref := metav1.GetControllerOfNoCopy(obj); ref != nil {
		if ref.Kind == w.ownerKind.Kind && groupOf(ref.APIVersion) == w.ownerKind.Group {
			w.setup.Enqueue(Key{Namespace: obj.GetNamespace(), Name: ref.Name})
		}
		return
	}
	if w.owners == nil || len(obj.GetLabels()) == 0 {
		return
	}
	for _, owner := range w.owners.Matching(obj) {
		w.setup.Enqueue(KeyOf(owner))
	}
}

func (w *dependentWatch[D, O]) changed(old, obj D) {
	oldRef, newRef := metav1.GetControllerOfNoCopy(old), metav1.GetControllerOfNoCopy(obj)
	if oldRef == nil && newRef == nil && maps.Equal(old.GetLabels(), obj.GetLabels()) {
		return // still an orphan with the same labels
	}
	if oldRef != nil && (newRef == nil || newRef.UID != oldRef.UID) {
		w.enqueue(old)
	}
	w.enqueue(obj)
}

func groupOf(apiVersion string) string {
	gv, err := schema.ParseGroupVersion(apiVersion)
	if err != nil {
		return ""
	}
	return gv.Group
}

// Claimer is the owner on whose behalf Claim adopts and releases objects.
type Claimer struct {
	Owner kind.Object
	Kind  schema.GroupVersionKind
	// Finalizers, if any, are added to adopted objects and removed from released ones.
	Finalizers []string
}

// Claim returns the objects the owner controls or will adopt, and adds steps to the plan that adopt matching orphans and release
// objects that no longer match. An owner that is being deleted neither adopts nor releases.
func Claim[T kind.Object](plan *Plan, claimer Claimer, matches func(T) bool, objs []T) []T {
	owner, finalizers := claimer.Owner, claimer.Finalizers
	var claimed []T
	var adopt, release []Write
	deleting := owner.GetDeletionTimestamp() != nil
	for _, obj := range objs {
		ref := metav1.GetControllerOfNoCopy(obj)
		switch {
		case ref != nil && ref.UID != owner.GetUID():
		case ref != nil && matches(obj):
			claimed = append(claimed, obj)
		case deleting:
		case ref != nil:
			release = append(release, NewPatch(obj, client.StrategicPatch, releasePatch(obj, owner, finalizers)).
				Ignoring(metav1.StatusReasonNotFound, metav1.StatusReasonInvalid))
		case matches(obj) && obj.GetDeletionTimestamp() == nil && obj.GetNamespace() == owner.GetNamespace():
			claimed = append(claimed, obj)
			adopt = append(adopt, NewPatch(obj, client.StrategicPatch, adoptPatch(obj, owner, claimer.Kind, finalizers)).
				Ignoring(metav1.StatusReasonNotFound))
		}
	}
	plan.AddStep(release...)
	if len(adopt) > 0 {
		plan.Steps = append(plan.Steps, Step{Recheck: owner, Writes: adopt})
	}
	return claimed
}

// adoptPatch makes owner the controller of obj. The UID protects another object of the same name.
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

// releasePatch removes the owner reference from obj.
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

// mustMarshal encodes maps and slices of strings, which cannot fail.
func mustMarshal(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return data
}
