package cleanup

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/lru"
)

// absentOwners is the size of the cache of absent owners.
const absentOwners = 500

// identity identifies an object of any kind.
type identity struct {
	apiVersion, kind, namespace, name string
	uid                               types.UID
}

func (id identity) String() string {
	return fmt.Sprintf("[%s/%s, namespace: %s, name: %s, uid: %s]", id.apiVersion, id.kind, id.namespace, id.name, id.uid)
}

// identityOf returns the identity a reference refers to, assuming a namespaced owner.
func identityOf(ref metav1.OwnerReference, namespace string) identity {
	return identity{apiVersion: ref.APIVersion, kind: ref.Kind, namespace: namespace, name: ref.Name, uid: ref.UID}
}

// named reports whether a reference matches the object, ignoring namespaces.
func (id identity) named(ref metav1.OwnerReference) bool { return identityOf(ref, id.namespace) == id }

// node is one object in the graph.
type node struct {
	identity
	owners     []metav1.OwnerReference
	dependents map[*node]struct{}
	// virtual: the object was only seen in owner references so far.
	virtual bool
	// deleting: it has a deletion timestamp. foreground: it also waits for the deletion of its dependents. orphaning: it also
	// waits until its dependents are orphaned.
	deleting, foreground, orphaning bool
	// attempts counts the syncs in which the object existed but was still virtual.
	attempts int
}

// graph tracks the ownership of all objects. An owner that was only seen in references is a virtual node. References can be wrong:
// they may have the right UID with a wrong kind, name or namespace. So the graph only finds candidates; whether an owner exists is
// checked with the live object.
type graph struct {
	mu     sync.Mutex
	nodes  map[types.UID]*node
	absent *lru.Cache // identities of owners known not to exist
}

func newGraph() *graph {
	return &graph{nodes: map[types.UID]*node{}, absent: lru.New(absentOwners)}
}

// graphWork is the work that results from a change of the graph.
type graphWork struct {
	// attemptDelete are objects to delete if they have no owner left.
	attemptDelete []types.UID
	// attemptDeleteLater are the same, after a delay.
	attemptDeleteLater []types.UID
	// orphanDependents are objects whose dependents are to be orphaned.
	orphanDependents []types.UID
	// invalid are references to owners in other namespaces.
	invalid []invalidReference
}

type invalidReference struct {
	dependent identity
	owner     identity
}

// isAbsent reports whether an owner is cached as absent.
func (g *graph) isAbsent(id identity) bool { _, ok := g.absent.Get(id); return ok }

func (g *graph) markAbsent(id identity) { g.absent.Add(id, nil) }

// observe updates the graph with the state of an object.
func (g *graph) observe(id identity, obj metav1.Object) (w graphWork) {
	g.mu.Lock()
	defer g.mu.Unlock()
	owners := obj.GetOwnerReferences()
	n, found := g.nodes[id.uid]
	if !found {
		n = &node{identity: id, owners: owners, dependents: map[*node]struct{}{}}
		g.nodes[id.uid] = n
		g.addDependent(n, owners, &w)
	} else {
		g.makeReal(n, id, &w)
		g.updateOwners(n, owners, &w)
	}
	deleting := obj.GetDeletionTimestamp() != nil
	orphaning := deleting && slices.Contains(obj.GetFinalizers(), metav1.FinalizerOrphanDependents)
	foreground := deleting && !orphaning && slices.Contains(obj.GetFinalizers(), metav1.FinalizerDeleteDependents)
	if orphaning && !n.orphaning {
		w.orphanDependents = append(w.orphanDependents, id.uid)
	}
	if foreground && !n.foreground {
		for dependent := range n.dependents {
			w.attemptDelete = append(w.attemptDelete, dependent.uid)
		}
		w.attemptDelete = append(w.attemptDelete, id.uid)
	}
	n.deleting, n.orphaning, n.foreground = deleting, orphaning, foreground
	return w
}

// makeReal makes a virtual node real. Dependents whose reference does not match the object are enqueued.
func (g *graph) makeReal(n *node, id identity, w *graphWork) {
	if n.virtual && n.identity != id {
		_, mismatched := n.partition(id)
		for _, dependent := range mismatched {
			if id.namespace != "" && dependent.namespace != id.namespace {
				w.addInvalid(dependent, id.uid)
			}
			w.attemptDelete = append(w.attemptDelete, dependent.uid)
		}
	}
	n.identity, n.virtual = id, false
}

// updateOwners updates the owners of a node. Owners that are no longer blocked by it are enqueued.
func (g *graph) updateOwners(n *node, owners []metav1.OwnerReference, w *graphWork) {
	if reflect.DeepEqual(n.owners, owners) {
		return
	}
	oldOwners := n.owners
	n.owners = owners
	var added []metav1.OwnerReference
	for _, ref := range owners {
		if findOwnerRef(oldOwners, ref.UID) == nil {
			added = append(added, ref)
		}
	}
	for _, ref := range oldOwners {
		newRef := findOwnerRef(owners, ref.UID)
		owner := g.nodes[ref.UID]
		if owner == nil {
			continue
		}
		if newRef == nil {
			delete(owner.dependents, n)
		}
		if blocksOwnerDeletion(ref) && (newRef == nil || !blocksOwnerDeletion(*newRef)) {
			w.attemptDelete = append(w.attemptDelete, ref.UID)
		}
	}
	g.addDependent(n, added, w)
}

// addDependent adds n as a dependent of its owners. An unknown owner becomes a virtual node and is enqueued. If a reference does
// not match the owner with that UID, the dependent is enqueued.
func (g *graph) addDependent(n *node, owners []metav1.OwnerReference, w *graphWork) {
	mismatch := false
	for _, ref := range owners {
		owner, found := g.nodes[ref.UID]
		if !found {
			owner = &node{identity: identityOf(ref, n.namespace), dependents: map[*node]struct{}{}, virtual: true}
			g.nodes[ref.UID] = owner
			w.attemptDelete = append(w.attemptDelete, ref.UID)
		}
		owner.dependents[n] = struct{}{}
		// The owner may have been deleted before this dependent was observed.
		if owner.foreground {
			w.attemptDelete = append(w.attemptDelete, n.uid)
		}
		if owner.orphaning {
			w.orphanDependents = append(w.orphanDependents, owner.uid)
		}
		switch {
		case !found || mismatch:
		case owner.namespace != "" && owner.namespace != n.namespace:
			if !owner.virtual {
				w.addInvalid(n, ref.UID)
			}
			mismatch = true
		case !owner.named(ref):
			mismatch = true
		case owner.namespace == "" && n.namespace != "" && owner.virtual:
			// The virtual owner came from a cluster-scoped dependent; its scope is not known yet.
			mismatch = true
		}
	}
	if mismatch {
		w.attemptDelete = append(w.attemptDelete, n.uid)
	}
}

// objectDeleted removes a deleted object.
func (g *graph) objectDeleted(uid types.UID) (w graphWork) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if n := g.nodes[uid]; n != nil {
		g.remove(n, n.identity, &w)
	}
	return w
}

// objectNotFound handles that the server has no object of this identity. If other references use the same UID with another
// identity, only the dependents that refer to this one are enqueued, and a virtual node gets the next candidate identity.
func (g *graph) objectNotFound(id identity) (w graphWork) {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := g.nodes[id.uid]
	if n == nil {
		return w
	}
	matching, others := n.partition(id)
	if n.virtual && len(others) == 0 || !n.virtual && n.identity == id {
		g.remove(n, id, &w)
		return w
	}
	if len(matching) > 0 {
		g.markAbsent(id)
		for _, dependent := range matching {
			w.attemptDelete = append(w.attemptDelete, dependent.uid)
		}
	}
	if n.virtual && n.identity == id {
		if next, ok := nextIdentity(others, id); ok {
			n.identity = next
			w.attemptDeleteLater = append(w.attemptDeleteLater, id.uid)
		}
	}
	return w
}

// remove removes a node and enqueues its dependents, which may have lost their last owner, and owners that waited for it.
func (g *graph) remove(n *node, id identity, w *graphWork) {
	delete(g.nodes, n.uid)
	for _, ref := range n.owners {
		owner := g.nodes[ref.UID]
		if owner == nil {
			continue
		}
		delete(owner.dependents, n)
		if owner.foreground {
			w.attemptDelete = append(w.attemptDelete, ref.UID)
		}
	}
	if len(n.dependents) > 0 {
		g.markAbsent(id)
	}
	for dependent := range n.dependents {
		w.attemptDelete = append(w.attemptDelete, dependent.uid)
	}
}

// partition splits a node's dependents into those whose reference matches the identity and others.
func (n *node) partition(id identity) (matching, others []*node) {
	for dependent := range n.dependents {
		if id.namespace != "" && dependent.namespace != id.namespace {
			others = append(others, dependent)
			continue
		}
		isMatching, isOther := false, false
		for _, ref := range dependent.owners {
			if ref.UID == id.uid {
				isMatching, isOther = isMatching || id.named(ref), isOther || !id.named(ref)
			}
		}
		if isMatching {
			matching = append(matching, dependent)
		}
		if isOther {
			others = append(others, dependent)
		}
	}
	return matching, others
}

// nextIdentity returns the next candidate identity, in order and cyclic, that a dependent refers to.
func nextIdentity(dependents []*node, absent identity) (identity, bool) {
	var candidates []identity
	for _, dependent := range dependents {
		for _, ref := range dependent.owners {
			id := identityOf(ref, dependent.namespace)
			if absent.namespace == "" && id.apiVersion == absent.apiVersion && id.kind == absent.kind {
				id.namespace = "" // the kind is known to be cluster-scoped
			}
			if ref.UID == absent.uid && id != absent {
				candidates = append(candidates, id)
			}
		}
	}
	if len(candidates) == 0 {
		return identity{}, false
	}
	slices.SortFunc(candidates, compareIdentities)
	for _, candidate := range candidates {
		if compareIdentities(absent, candidate) < 0 {
			return candidate, true
		}
	}
	return candidates[0], true
}

func compareIdentities(a, b identity) int {
	for _, pair := range [][2]string{{a.kind, b.kind}, {a.apiVersion, b.apiVersion}, {a.namespace, b.namespace}, {a.name, b.name}} {
		if order := strings.Compare(pair[0], pair[1]); order != 0 {
			return order
		}
	}
	return 0
}

func (w *graphWork) addInvalid(dependent *node, owner types.UID) {
	if ref := findOwnerRef(dependent.owners, owner); ref != nil {
		w.invalid = append(w.invalid, invalidReference{dependent: dependent.identity, owner: identityOf(*ref, dependent.namespace)})
	}
}

// nodeSnapshot is a copy of a node's state.
type nodeSnapshot struct {
	identity
	virtual, deleting, foreground bool
	dependents                    []identity
	// blockers are the dependents that block the deletion; blockersToDelete are those not themselves in foreground deletion.
	blockers, blockersToDelete []types.UID
	// mayBeCircular: a dependent is in foreground deletion, so there may be a cycle.
	mayBeCircular bool
}

// snapshot returns the state of the node with the UID.
func (g *graph) snapshot(uid types.UID) (nodeSnapshot, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := g.nodes[uid]
	if n == nil {
		return nodeSnapshot{}, false
	}
	it := nodeSnapshot{identity: n.identity, virtual: n.virtual, deleting: n.deleting, foreground: n.foreground}
	for dependent := range n.dependents {
		it.dependents = append(it.dependents, dependent.identity)
		it.mayBeCircular = it.mayBeCircular || dependent.foreground
		if ref := findOwnerRef(dependent.owners, uid); ref != nil && blocksOwnerDeletion(*ref) {
			it.blockers = append(it.blockers, dependent.uid)
			if !dependent.foreground {
				it.blockersToDelete = append(it.blockersToDelete, dependent.uid)
			}
		}
	}
	return it, true
}

// virtualRetryDelay is the delay until a virtual node is checked again although the object exists: its kind may not be watched
// yet.
func (g *graph) virtualRetryDelay(uid types.UID) (time.Duration, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := g.nodes[uid]
	if n == nil || !n.virtual {
		return 0, false
	}
	n.attempts++
	return min(5*time.Millisecond<<min(n.attempts, 20), time.Minute), true
}

func findOwnerRef(refs []metav1.OwnerReference, uid types.UID) *metav1.OwnerReference {
	for i := range refs {
		if refs[i].UID == uid {
			return &refs[i]
		}
	}
	return nil
}

func blocksOwnerDeletion(ref metav1.OwnerReference) bool {
	return ref.BlockOwnerDeletion != nil && *ref.BlockOwnerDeletion
}
