package customresource

import (
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/sets"
)

// names records which definition uses which names. Looking up the conflicts of a definition costs no more than it has names.
type names struct {
	used    map[name]sets.Set[string] // the definitions that have an accepted name
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
	resourceVersion string
	names, waiting  []name
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

// record replaces the names that a definition uses by its accepted names, and returns the definitions that waited for one it no longer
// uses. An older state than the last one is ignored.
func (n *names) record(crd *definition) (freed []string) {
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
	for _, old := range held.names {
		if !slices.Contains(accepted, old) {
			freed = append(freed, n.release(old, crd.Name)...)
		}
	}
	held.resourceVersion, held.names = crd.ResourceVersion, accepted
	n.held[crd.Name] = held
	return freed
}

// remove removes a definition, and returns those that waited for one of its names.
func (n *names) remove(crd string) (freed []string) {
	held := n.held[crd]
	for _, name := range held.names {
		freed = append(freed, n.release(name, crd)...)
	}
	for _, name := range held.waiting {
		drop(n.waiting, name, crd)
	}
	delete(n.held, crd)
	return freed
}

// release removes a user of a name, and returns the definitions that wait for it.
func (n *names) release(name name, crd string) []string {
	drop(n.used, name, crd)
	return n.waiting[name].UnsortedList()
}

// conflicts returns the requested names of a definition that another one uses. The definition waits for them until the next call.
func (n *names) conflicts(crd *definition) map[name]bool {
	held := n.held[crd.Name]
	for _, name := range held.waiting {
		drop(n.waiting, name, crd.Name)
	}
	held.waiting = nil
	conflicts := map[name]bool{}
	for _, name := range namesOf(crd.Spec.Group, &crd.Spec.Names) {
		others := n.used[name].Len()
		if n.used[name].Has(crd.Name) {
			others--
		}
		if others > 0 {
			conflicts[name] = true
			held.waiting = append(held.waiting, name)
			add(n.waiting, name, crd.Name)
		}
	}
	n.held[crd.Name] = held
	return conflicts
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
