package customresource

import (
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/sets"
)

// names records which definition uses which names. Looking up the conflicts of a definition costs no more than it has names.
//
// A definition uses the names that are accepted in its status, and while it is synced also those it may get: they are reserved. A definition
// that requests a name of another one waits for it. When nobody uses a name any more, one of those that wait for it is synced; it takes the name,
// or the next one is synced.
type names struct {
	used    map[name]sets.Set[string] // the definitions that have an accepted or reserved name
	waiting map[name]sets.Set[string] // the definitions that request a name that another one uses
	held    map[string]heldNames      // by definition
}

// name is a name in one group. Kinds and resources have separate names; plural, singular and short names have not.
type name struct {
	group  string
	isKind bool
	text   string
}

type heldNames struct {
	resourceVersion          string
	names, reserved, waiting []name
}

func newNames() names {
	return names{used: map[name]sets.Set[string]{}, waiting: map[name]sets.Set[string]{}, held: map[string]heldNames{}}
}

// namesOf are the names that a definition uses or requests, without empty ones.
func namesOf(group string, n *apiextensionsv1.CustomResourceDefinitionNames) []name {
	all := []name{{group, false, n.Plural}, {group, false, n.Singular}, {group, true, n.Kind}, {group, true, n.ListKind}}
	for _, short := range n.ShortNames {
		all = append(all, name{group, false, short})
	}
	return slices.DeleteFunc(all, func(n name) bool { return n.text == "" })
}

// record replaces the names that a definition uses by its accepted names, and returns the definitions that can have one it no longer
// uses. An older state than the last one is ignored.
func (n *names) record(crd *definition) (next []string) {
	held, ok := n.held[crd.Name]
	if ok {
		if order, err := resourceversion.CompareResourceVersion(crd.ResourceVersion, held.resourceVersion); err == nil && order < 0 {
			return nil
		}
	}
	accepted := namesOf(crd.Spec.Group, &crd.Status.AcceptedNames)
	for _, name := range accepted {
		add(n.used, name, crd.Name)
	}
	old := held.names
	held.resourceVersion, held.names = crd.ResourceVersion, accepted
	n.held[crd.Name] = held
	return n.releaseUnused(crd.Name, old)
}

// remove removes a definition, and returns those that can have one of its names.
func (n *names) remove(crd string) (next []string) {
	held := n.held[crd]
	delete(n.held, crd)
	next = n.releaseUnused(crd, slices.Concat(held.names, held.reserved))
	return append(next, n.stopWaiting(crd, held.waiting)...)
}

// reserve reserves the requested names of a definition as far as no other one uses them, until release. It returns the names that others use,
// for which the definition waits until the next call, and the definitions that can have a name for which it no longer waits.
func (n *names) reserve(crd *definition) (conflicts map[name]bool, next []string) {
	held := n.held[crd.Name]
	waited := held.waiting
	held.waiting = nil
	conflicts = map[name]bool{}
	for _, name := range namesOf(crd.Spec.Group, &crd.Spec.Names) {
		if n.usedByOthers(name, crd.Name) {
			conflicts[name] = true
			held.waiting = append(held.waiting, name)
			add(n.waiting, name, crd.Name)
			continue
		}
		if !slices.Contains(held.reserved, name) {
			held.reserved = append(held.reserved, name)
			add(n.used, name, crd.Name)
		}
	}
	n.held[crd.Name] = held
	return conflicts, n.stopWaiting(crd.Name, slices.DeleteFunc(waited, func(name name) bool { return conflicts[name] }))
}

// release ends the reservations of a definition, and returns those that can have a name it has not got.
func (n *names) release(crd string) (next []string) {
	held, ok := n.held[crd]
	if !ok {
		return nil
	}
	reserved := held.reserved
	held.reserved = nil
	n.held[crd] = held
	return n.releaseUnused(crd, reserved)
}

func (n *names) usedByOthers(name name, crd string) bool {
	others := n.used[name].Len()
	if n.used[name].Has(crd) {
		others--
	}
	return others > 0
}

// releaseUnused removes a definition as user of the names that it has neither accepted nor reserved, and returns the definitions that can have
// one now.
func (n *names) releaseUnused(crd string, released []name) (next []string) {
	held := n.held[crd]
	for _, name := range released {
		if !slices.Contains(held.names, name) && !slices.Contains(held.reserved, name) {
			drop(n.used, name, crd)
			next = n.appendNext(next, name)
		}
	}
	return next
}

// stopWaiting removes a definition from those that wait for names, and returns the definitions that can have one in its place.
func (n *names) stopWaiting(crd string, waited []name) (next []string) {
	for _, name := range waited {
		drop(n.waiting, name, crd)
		next = n.appendNext(next, name)
	}
	return next
}

// appendNext appends one of the definitions that wait for a name, if nobody uses it.
func (n *names) appendNext(to []string, name name) []string {
	if n.used[name].Len() > 0 {
		return to
	}
	for crd := range n.waiting[name] {
		return append(to, crd)
	}
	return to
}

func add(to map[name]sets.Set[string], name name, crd string) {
	if to[name] == nil {
		to[name] = sets.New[string]()
	}
	to[name].Insert(crd)
}

func drop(from map[name]sets.Set[string], name name, crd string) {
	if from[name].Delete(crd); from[name].Len() == 0 {
		delete(from, name)
	}
}
