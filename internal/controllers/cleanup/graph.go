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

// absentOwners bounds how many owners are remembered as gone.
const absentOwners = 500

// identity names one object of any kind.
type identity struct {
	apiVersion, kind, namespace, name string
	uid                               types.UID
}

func (id identity) String() string {
	return fmt.Sprintf("[%s/%s, namespace: %s, name: %s, uid: %s]", id.apiVersion, id.kind, id.namespace, id.name, id.uid)
}

// identityOf is what a reference in an object of the namespace names, if the owner is namespaced.
func identityOf(ref metav1.OwnerReference, namespace string) identity {
	return identity{apiVersion: ref.APIVersion, kind: ref.Kind, namespace: namespace, name: ref.Name, uid: ref.UID}
}

// named reports whether a reference means the object, namespaces apart.
func (id identity) named(ref metav1.OwnerReference) bool { return identityOf(ref, id.namespace) == id }

// node is one object in the graph.
type node struct {
	identity
	owners     []metav1.OwnerReference
	dependents map[*node]struct{}
	// virtual: nothing has seen the object yet; somebody's reference names it.
	virtual bool
	// deleting: it has a deletion timestamp. foreground: and waits until its dependents are gone. orphaning: and waits until its
	// dependents have let go of it.
	deleting, foreground, orphaning bool
	// attempts counts how often the object was there while it was still virtual.
	attempts int
}

// graph knows which object belongs to which. Every object of the cluster is a node; an owner that is named but was not seen
// yet is a virtual one. References are claims that may be wrong: they can name the right UID with the wrong kind, name or
// namespace. The graph therefore only finds candidates; whether an owner exists is asked of the server itself.
type graph struct {
	mu     sync.Mutex
	nodes  map[types.UID]*node
	absent *lru.Cache // of identity: owners known not to exist
}

func newGraph() *graph {
	return &graph{nodes: map[types.UID]*node{}, absent: lru.New(absentOwners)}
}

// graphWork is what a change in the graph asks for.
type graphWork struct {
	// attemptDelete are objects that may have to be deleted, or let go.
	attemptDelete []types.UID
	// attemptDeleteLater is the same without hurry.
	attemptDeleteLater []types.UID
	// orphanDependents are objects whose dependents are to be released.
	orphanDependents []types.UID
	// invalid are references to owners in other namespaces.
	invalid []invalidReference
}

type invalidReference struct {
	dependent identity
	owner     identity
}

// isAbsent reports whether an owner is remembered as gone.
func (g *graph) isAbsent(id identity) bool { _, ok := g.absent.Get(id); return ok }

func (g *graph) markAbsent(id identity) { g.absent.Add(id, nil) }

// observe takes in the newest state of an object.
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

// makeReal makes a virtual node real. Dependents that had imagined another object under the UID are looked at again.
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

// updateOwners takes in that a node's owners have changed. An owner that is no longer blocked is looked at.
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

// addDependent makes n a dependent of its owners. An owner nothing has seen becomes a virtual node, to be looked for. If a reference
// does not fit the owner of that UID, the dependent itself is looked at.
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
		// The owner may have begun to leave before this dependent was seen.
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
			// The one who named it first had no namespace; whether the owner has one is not known yet.
			mismatch = true
		}
	}
	if mismatch {
		w.attemptDelete = append(w.attemptDelete, n.uid)
	}
}

// objectDeleted takes in that an object was deleted.
func (g *graph) objectDeleted(uid types.UID) (w graphWork) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if n := g.nodes[uid]; n != nil {
		g.remove(n, n.identity, &w)
	}
	return w
}

// objectNotFound takes in that the server has no object of this identity. If others name the same UID in other ways, theirs may
// still exist: then only those who named this one are looked at, and a virtual node tries the next of its possible identities.
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

// remove takes a node out. Its dependents may have lost their last owner; its owners may have waited for it.
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

// partition divides a node's dependents into those whose reference means this identity and those that mean another one.
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

// nextIdentity is the identity to try after one that was not found: the next in order that a dependent names, from the
// beginning again after the last.
func nextIdentity(dependents []*node, absent identity) (identity, bool) {
	var candidates []identity
	for _, dependent := range dependents {
		for _, ref := range dependent.owners {
			id := identityOf(ref, dependent.namespace)
			if absent.namespace == "" && id.apiVersion == absent.apiVersion && id.kind == absent.kind {
				id.namespace = "" // the kind is known to have no namespace
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

// nodeSnapshot is a node as it was when it was looked at.
type nodeSnapshot struct {
	identity
	virtual, deleting, foreground bool
	dependents                    []identity
	// blockers are the dependents that must be gone before it may go; waiting are those of them that do not themselves wait
	// for others.
	blockers, blockersToDelete []types.UID
	// mayBeCircular: a dependent waits until its own dependents are gone, so the item may be waiting for itself.
	mayBeCircular bool
}

// snapshot returns the node of a UID.
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

// virtualRetryDelay is how long to wait until a virtual node is looked at again, though the server has the object: until it is seen, or
// for as long as nothing watches its kind.
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
