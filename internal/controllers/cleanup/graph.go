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

// named says whether a reference means the object, namespaces apart.
func (id identity) named(ref metav1.OwnerReference) bool { return identityOf(ref, id.namespace) == id }

// node is one object in the graph.
type node struct {
	identity
	owners     []metav1.OwnerReference
	dependents map[*node]struct{}
	// virtual: nobody has seen the object yet; somebody's reference names it.
	virtual bool
	// ending: it has a deletion timestamp. foreground: and waits until its dependents are gone. orphaning: and waits until its
	// dependents have let go of it.
	ending, foreground, orphaning bool
	// looks counts how often the object was there while it was still virtual.
	looks int
}

// graph knows which object belongs to which. Every object of the cluster is a node; an owner that is named but was not seen
// yet is a virtual one. References are claims that may be wrong: they can name the right uid with the wrong kind, name or
// namespace. The graph therefore only finds candidates; whether an owner exists is asked of the server itself.
type graph struct {
	mu     sync.Mutex
	nodes  map[types.UID]*node
	absent *lru.Cache // of identity: owners known not to exist
}

func newGraph() *graph {
	return &graph{nodes: map[types.UID]*node{}, absent: lru.New(absentOwners)}
}

// work is what a change in the graph asks for.
type work struct {
	// look are objects that may have to be deleted, or let go.
	look []types.UID
	// lookLater is the same without hurry.
	lookLater []types.UID
	// orphan are objects whose dependents are to be released.
	orphan []types.UID
	// invalid are references to owners in other namespaces.
	invalid []invalidReference
}

type invalidReference struct {
	dependent identity
	owner     identity
}

// knownAbsent says whether an owner is remembered as gone.
func (g *graph) knownAbsent(id identity) bool { _, ok := g.absent.Get(id); return ok }

func (g *graph) markAbsent(id identity) { g.absent.Add(id, nil) }

// observe takes in the newest state of an object.
func (g *graph) observe(id identity, obj metav1.Object) (w work) {
	g.mu.Lock()
	defer g.mu.Unlock()
	owners := obj.GetOwnerReferences()
	n, found := g.nodes[id.uid]
	if !found {
		n = &node{identity: id, owners: owners, dependents: map[*node]struct{}{}}
		g.nodes[id.uid] = n
		g.link(n, owners, &w)
	} else {
		g.appear(n, id, &w)
		g.relink(n, owners, &w)
	}
	ending := obj.GetDeletionTimestamp() != nil
	orphaning := ending && slices.Contains(obj.GetFinalizers(), metav1.FinalizerOrphanDependents)
	foreground := ending && !orphaning && slices.Contains(obj.GetFinalizers(), metav1.FinalizerDeleteDependents)
	if orphaning && !n.orphaning {
		w.orphan = append(w.orphan, id.uid)
	}
	if foreground && !n.foreground {
		for dependent := range n.dependents {
			w.look = append(w.look, dependent.uid)
		}
		w.look = append(w.look, id.uid)
	}
	n.ending, n.orphaning, n.foreground = ending, orphaning, foreground
	return w
}

// appear makes a virtual node real. Dependents that had imagined another object under the uid are looked at again.
func (g *graph) appear(n *node, id identity, w *work) {
	if n.virtual && n.identity != id {
		_, mistaken := n.partition(id)
		for _, dependent := range mistaken {
			if id.namespace != "" && dependent.namespace != id.namespace {
				w.report(dependent, id.uid)
			}
			w.look = append(w.look, dependent.uid)
		}
	}
	n.identity, n.virtual = id, false
}

// relink takes in that a node's owners have changed. An owner that is no longer blocked is looked at.
func (g *graph) relink(n *node, owners []metav1.OwnerReference, w *work) {
	if reflect.DeepEqual(n.owners, owners) {
		return
	}
	before := n.owners
	n.owners = owners
	var added []metav1.OwnerReference
	for _, ref := range owners {
		if find(before, ref.UID) == nil {
			added = append(added, ref)
		}
	}
	for _, ref := range before {
		now := find(owners, ref.UID)
		owner := g.nodes[ref.UID]
		if owner == nil {
			continue
		}
		if now == nil {
			delete(owner.dependents, n)
		}
		if blocks(ref) && (now == nil || !blocks(*now)) {
			w.look = append(w.look, ref.UID)
		}
	}
	g.link(n, added, w)
}

// link makes n a dependent of its owners. An owner nobody has seen becomes a virtual node, to be looked for. If a reference
// does not fit the owner of that uid, the dependent itself is looked at.
func (g *graph) link(n *node, owners []metav1.OwnerReference, w *work) {
	doubtful := false
	for _, ref := range owners {
		owner, found := g.nodes[ref.UID]
		if !found {
			owner = &node{identity: identityOf(ref, n.namespace), dependents: map[*node]struct{}{}, virtual: true}
			g.nodes[ref.UID] = owner
			w.look = append(w.look, ref.UID)
		}
		owner.dependents[n] = struct{}{}
		// The owner may have begun to leave before this dependent was seen.
		if owner.foreground {
			w.look = append(w.look, n.uid)
		}
		if owner.orphaning {
			w.orphan = append(w.orphan, owner.uid)
		}
		switch {
		case !found || doubtful:
		case owner.namespace != "" && owner.namespace != n.namespace:
			if !owner.virtual {
				w.report(n, ref.UID)
			}
			doubtful = true
		case !owner.named(ref):
			doubtful = true
		case owner.namespace == "" && n.namespace != "" && owner.virtual:
			// The one who named it first had no namespace; whether the owner has one is not known yet.
			doubtful = true
		}
	}
	if doubtful {
		w.look = append(w.look, n.uid)
	}
}

// vanish takes in that an object was deleted.
func (g *graph) vanish(uid types.UID) (w work) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if n := g.nodes[uid]; n != nil {
		g.remove(n, n.identity, &w)
	}
	return w
}

// missing takes in that the server has no object of this identity. If others name the same uid in other ways, theirs may
// still exist: then only those who named this one are looked at, and a virtual node tries the next of its possible identities.
func (g *graph) missing(id identity) (w work) {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := g.nodes[id.uid]
	if n == nil {
		return w
	}
	right, others := n.partition(id)
	if n.virtual && len(others) == 0 || !n.virtual && n.identity == id {
		g.remove(n, id, &w)
		return w
	}
	if len(right) > 0 {
		g.markAbsent(id)
		for _, dependent := range right {
			w.look = append(w.look, dependent.uid)
		}
	}
	if n.virtual && n.identity == id {
		if next, ok := alternative(others, id); ok {
			n.identity = next
			w.lookLater = append(w.lookLater, id.uid)
		}
	}
	return w
}

// remove takes a node out. Its dependents may have lost their last owner; its owners may have waited for it.
func (g *graph) remove(n *node, id identity, w *work) {
	delete(g.nodes, n.uid)
	for _, ref := range n.owners {
		owner := g.nodes[ref.UID]
		if owner == nil {
			continue
		}
		delete(owner.dependents, n)
		if owner.foreground {
			w.look = append(w.look, ref.UID)
		}
	}
	if len(n.dependents) > 0 {
		g.markAbsent(id)
	}
	for dependent := range n.dependents {
		w.look = append(w.look, dependent.uid)
	}
}

// partition divides a node's dependents into those whose reference means this identity and those that mean another one.
func (n *node) partition(id identity) (right, others []*node) {
	for dependent := range n.dependents {
		if id.namespace != "" && dependent.namespace != id.namespace {
			others = append(others, dependent)
			continue
		}
		isRight, isOther := false, false
		for _, ref := range dependent.owners {
			if ref.UID == id.uid {
				isRight, isOther = isRight || id.named(ref), isOther || !id.named(ref)
			}
		}
		if isRight {
			right = append(right, dependent)
		}
		if isOther {
			others = append(others, dependent)
		}
	}
	return right, others
}

// alternative is the identity to try after one that was not found: the next in order that a dependent names, from the
// beginning again after the last.
func alternative(dependents []*node, absent identity) (identity, bool) {
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

func (w *work) report(dependent *node, owner types.UID) {
	if ref := find(dependent.owners, owner); ref != nil {
		w.invalid = append(w.invalid, invalidReference{dependent: dependent.identity, owner: identityOf(*ref, dependent.namespace)})
	}
}

// item is a node as it was when it was looked at.
type item struct {
	identity
	virtual, ending, foreground bool
	dependents                  []identity
	// blockers are the dependents that must be gone before it may go; waiting are those of them that do not themselves wait
	// for others.
	blockers, waiting []types.UID
	// circular: a dependent waits until its own dependents are gone, so the item may be waiting for itself.
	circular bool
}

// item returns the node of a uid.
func (g *graph) item(uid types.UID) (item, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := g.nodes[uid]
	if n == nil {
		return item{}, false
	}
	it := item{identity: n.identity, virtual: n.virtual, ending: n.ending, foreground: n.foreground}
	for dependent := range n.dependents {
		it.dependents = append(it.dependents, dependent.identity)
		it.circular = it.circular || dependent.foreground
		if ref := find(dependent.owners, uid); ref != nil && blocks(*ref) {
			it.blockers = append(it.blockers, dependent.uid)
			if !dependent.foreground {
				it.waiting = append(it.waiting, dependent.uid)
			}
		}
	}
	return it, true
}

// patience is how long to wait until a virtual node is looked at again, though the server has the object: until it is seen, or
// for as long as nobody watches its kind.
func (g *graph) patience(uid types.UID) (time.Duration, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := g.nodes[uid]
	if n == nil || !n.virtual {
		return 0, false
	}
	n.looks++
	return min(5*time.Millisecond<<min(n.looks, 20), time.Minute), true
}

func find(refs []metav1.OwnerReference, uid types.UID) *metav1.OwnerReference {
	for i := range refs {
		if refs[i].UID == uid {
			return &refs[i]
		}
	}
	return nil
}

func blocks(ref metav1.OwnerReference) bool {
	return ref.BlockOwnerDeletion != nil && *ref.BlockOwnerDeletion
}
