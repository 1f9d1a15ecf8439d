package cleanup

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func id(namespace, name string) identity {
	return identity{apiVersion: "v1", kind: "ConfigMap", namespace: namespace, name: name, uid: types.UID(name)}
}

func ref(kind, name string, uid types.UID) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: "v1", Kind: kind, Name: name, UID: uid}
}

func naming(refs ...metav1.OwnerReference) *metav1.ObjectMeta {
	return &metav1.ObjectMeta{OwnerReferences: refs}
}

func leaving(finalizer string) *metav1.ObjectMeta {
	now := metav1.Now()
	return &metav1.ObjectMeta{DeletionTimestamp: &now, Finalizers: []string{finalizer}}
}

func uids(list []types.UID) []string {
	var result []string
	for _, uid := range list {
		result = append(result, string(uid))
	}
	slices.Sort(result)
	return slices.Compact(result)
}

// TestGraph tells stories: changes one after another, and after the last what is to be looked at.
func TestGraph(t *testing.T) {
	owner, child, other := id("default", "owner"), id("default", "child"), id("default", "other")
	ofOwner := ref("ConfigMap", "owner", "owner")
	blocking := ofOwner
	blocking.BlockOwnerDeletion = new(true)
	for _, test := range []struct {
		what                  string
		story                 func(g *graph) graphWork
		scan, later, orphaned []string
		invalid               int
	}{
		{"an object alone", func(g *graph) graphWork { return g.observe(owner, naming()) }, nil, nil, nil, 0},
		{"an owner nobody has seen", func(g *graph) graphWork { return g.observe(child, naming(ofOwner)) }, []string{"owner"}, nil, nil, 0},
		{"an owner that is known", func(g *graph) graphWork {
			g.observe(owner, naming())
			return g.observe(child, naming(ofOwner))
		}, nil, nil, nil, 0},
		{"the owner appears later", func(g *graph) graphWork {
			g.observe(child, naming(ofOwner))
			return g.observe(owner, naming())
		}, nil, nil, nil, 0},
		{"the owner is deleted", func(g *graph) graphWork {
			g.observe(owner, naming())
			g.observe(child, naming(ofOwner))
			return g.objectDeleted("owner")
		}, []string{"child"}, nil, nil, 0},
		{"the owner does not exist", func(g *graph) graphWork {
			g.observe(child, naming(ofOwner))
			return g.objectNotFound(owner)
		}, []string{"child"}, nil, nil, 0},
		{"the owner waits for its dependents", func(g *graph) graphWork {
			g.observe(owner, naming())
			g.observe(child, naming(ofOwner))
			return g.observe(owner, leaving(metav1.FinalizerDeleteDependents))
		}, []string{"child", "owner"}, nil, nil, 0},
		{"that it waits is news only once", func(g *graph) graphWork {
			g.observe(owner, leaving(metav1.FinalizerDeleteDependents))
			return g.observe(owner, leaving(metav1.FinalizerDeleteDependents))
		}, nil, nil, nil, 0},
		{"a dependent of an owner that waits is gone", func(g *graph) graphWork {
			g.observe(owner, leaving(metav1.FinalizerDeleteDependents))
			g.observe(child, naming(ofOwner))
			return g.objectDeleted("child")
		}, []string{"owner"}, nil, nil, 0},
		{"a dependent appears while its owner waits", func(g *graph) graphWork {
			g.observe(owner, leaving(metav1.FinalizerDeleteDependents))
			return g.observe(child, naming(ofOwner))
		}, []string{"child"}, nil, nil, 0},
		{"the owner leaves orphans", func(g *graph) graphWork {
			g.observe(child, naming(ofOwner))
			return g.observe(owner, leaving(metav1.FinalizerOrphanDependents))
		}, nil, nil, []string{"owner"}, 0},
		{"a dependent no longer blocks", func(g *graph) graphWork {
			g.observe(owner, naming())
			g.observe(child, naming(blocking))
			return g.observe(child, naming(ofOwner))
		}, []string{"owner"}, nil, nil, 0},
		{"a dependent that blocked is released", func(g *graph) graphWork {
			g.observe(owner, naming())
			g.observe(child, naming(blocking))
			return g.observe(child, naming())
		}, []string{"owner"}, nil, nil, 0},
		{"an owner in another namespace", func(g *graph) graphWork {
			g.observe(id("elsewhere", "owner"), naming())
			return g.observe(child, naming(ofOwner))
		}, []string{"child"}, nil, nil, 1},
		{"the owner turns out to be elsewhere", func(g *graph) graphWork {
			g.observe(child, naming(ofOwner))
			return g.observe(id("elsewhere", "owner"), naming())
		}, []string{"child"}, nil, nil, 1},
		{"an owner of another name", func(g *graph) graphWork {
			g.observe(owner, naming())
			return g.observe(child, naming(ref("ConfigMap", "wrong", "owner")))
		}, []string{"child"}, nil, nil, 0},
		{"one of two names is missing, the other is tried", func(g *graph) graphWork {
			g.observe(child, naming(ofOwner))
			g.observe(other, naming(ref("Secret", "owner", "owner")))
			return g.objectNotFound(owner)
		}, []string{"child"}, []string{"owner"}, nil, 0},
		{"a wrong name of what exists is missing", func(g *graph) graphWork {
			g.observe(owner, naming())
			g.observe(child, naming(ofOwner))
			g.observe(other, naming(ref("Secret", "owner", "owner")))
			return g.objectNotFound(identityOf(ref("Secret", "owner", "owner"), "default"))
		}, []string{"other"}, nil, nil, 0},
		{"two owners nobody has seen", func(g *graph) graphWork { return g.observe(child, naming(ofOwner, ref("Secret", "other", "other"))) }, []string{"other", "owner"}, nil, nil, 0},
		{"two dependents of an owner nobody has seen: it is looked for once", func(g *graph) graphWork {
			g.observe(child, naming(ofOwner))
			return g.observe(other, naming(ofOwner))
		}, nil, nil, nil, 0},
		{"the owner of two is deleted", func(g *graph) graphWork {
			g.observe(owner, naming())
			g.observe(child, naming(ofOwner))
			g.observe(other, naming(ofOwner))
			return g.objectDeleted("owner")
		}, []string{"child", "other"}, nil, nil, 0},
		{"a dependent is deleted", func(g *graph) graphWork {
			g.observe(owner, naming())
			g.observe(child, naming(ofOwner))
			return g.objectDeleted("child")
		}, nil, nil, nil, 0},
		{"what nobody knows is deleted", func(g *graph) graphWork { return g.objectDeleted("nobody") }, nil, nil, nil, 0},
		{"what nobody knows is missing", func(g *graph) graphWork { return g.objectNotFound(owner) }, nil, nil, nil, 0},
		{"a dependent is given an owner", func(g *graph) graphWork {
			g.observe(child, naming())
			return g.observe(child, naming(ofOwner))
		}, []string{"owner"}, nil, nil, 0},
		{"a dependent is taken from an owner: the owner does not care", func(g *graph) graphWork {
			g.observe(owner, naming())
			g.observe(child, naming(ofOwner))
			g.observe(child, naming())
			return g.objectDeleted("owner")
		}, nil, nil, nil, 0},
		{"a dependent begins to block: no news", func(g *graph) graphWork {
			g.observe(owner, naming())
			g.observe(child, naming(ofOwner))
			return g.observe(child, naming(blocking))
		}, nil, nil, nil, 0},
		{"nothing has changed", func(g *graph) graphWork {
			g.observe(owner, naming())
			g.observe(child, naming(blocking))
			return g.observe(child, naming(blocking))
		}, nil, nil, nil, 0},
		{"the owner is deleted, in no particular way", func(g *graph) graphWork {
			g.observe(owner, naming())
			g.observe(child, naming(ofOwner))
			return g.observe(owner, leaving("example.com/other"))
		}, nil, nil, nil, 0},
		{"the owner has the finalizer, but is not deleted", func(g *graph) graphWork {
			g.observe(child, naming(ofOwner))
			return g.observe(owner, &metav1.ObjectMeta{Finalizers: []string{metav1.FinalizerDeleteDependents, metav1.FinalizerOrphanDependents}})
		}, nil, nil, nil, 0},
		{"an owner with both finalizers leaves orphans", func(g *graph) graphWork {
			g.observe(child, naming(ofOwner))
			both := leaving(metav1.FinalizerDeleteDependents)
			both.Finalizers = append(both.Finalizers, metav1.FinalizerOrphanDependents)
			return g.observe(owner, both)
		}, nil, nil, []string{"owner"}, 0},
		{"that it leaves orphans is news only once", func(g *graph) graphWork {
			g.observe(owner, leaving(metav1.FinalizerOrphanDependents))
			return g.observe(owner, leaving(metav1.FinalizerOrphanDependents))
		}, nil, nil, nil, 0},
		{"a dependent appears while its owner leaves orphans", func(g *graph) graphWork {
			g.observe(owner, leaving(metav1.FinalizerOrphanDependents))
			return g.observe(child, naming(ofOwner))
		}, nil, nil, []string{"owner"}, 0},
		{"an owner without dependents waits", func(g *graph) graphWork { return g.observe(owner, leaving(metav1.FinalizerDeleteDependents)) }, []string{"owner"}, nil, nil, 0},
		{"an owner in the cluster", func(g *graph) graphWork {
			g.observe(id("", "owner"), naming())
			return g.observe(child, naming(ofOwner))
		}, nil, nil, nil, 0},
		{"the owner turns out to be in the cluster: its dependent is looked at again", func(g *graph) graphWork {
			g.observe(child, naming(ofOwner))
			return g.observe(id("", "owner"), naming())
		}, nil, nil, nil, 0},
		{"an owner that one without a namespace named first is doubtful", func(g *graph) graphWork {
			g.observe(id("", "cluster-child"), naming(ofOwner))
			return g.observe(child, naming(ofOwner))
		}, []string{"child"}, nil, nil, 0},
		{"one without a namespace names an owner that has one", func(g *graph) graphWork {
			g.observe(owner, naming())
			return g.observe(id("", "cluster-child"), naming(ofOwner))
		}, []string{"cluster-child"}, nil, nil, 1},
		{"an owner of another kind", func(g *graph) graphWork {
			g.observe(owner, naming())
			return g.observe(child, naming(ref("Secret", "owner", "owner")))
		}, []string{"child"}, nil, nil, 0},
		{"the owner turns out to be of another kind", func(g *graph) graphWork {
			g.observe(child, naming(ref("Secret", "owner", "owner")))
			return g.observe(owner, naming())
		}, []string{"child"}, nil, nil, 0},
		{"two ways to name the same uid in one object", func(g *graph) graphWork {
			g.observe(child, naming(ofOwner, ref("Secret", "owner", "owner")))
			return g.objectNotFound(owner)
		}, []string{"child"}, []string{"owner"}, nil, 0},
		{"what exists is missing under its own name", func(g *graph) graphWork {
			g.observe(owner, naming())
			g.observe(child, naming(ofOwner))
			return g.objectNotFound(owner)
		}, []string{"child"}, nil, nil, 0},
		{"a dependent that waits is gone: its owner waits no longer", func(g *graph) graphWork {
			g.observe(owner, leaving(metav1.FinalizerDeleteDependents))
			waiting := leaving(metav1.FinalizerDeleteDependents)
			waiting.OwnerReferences = []metav1.OwnerReference{blocking}
			g.observe(child, waiting)
			return g.objectNotFound(child)
		}, []string{"owner"}, nil, nil, 0},
		{"one that owns itself is deleted", func(g *graph) graphWork {
			g.observe(owner, naming(ofOwner))
			return g.objectDeleted("owner")
		}, []string{"owner"}, nil, nil, 0},
	} {
		g := newGraph()
		w := test.story(g)
		if !slices.Equal(uids(w.attemptDelete), test.scan) || !slices.Equal(uids(w.attemptDeleteLater), test.later) || !slices.Equal(uids(w.orphanDependents), test.orphaned) || len(w.invalid) != test.invalid {
			t.Errorf("%s: %+v", test.what, w)
		}
	}
}

// TestGraphForgets: what was seen and deleted leaves nothing behind.
func TestGraphForgets(t *testing.T) {
	g := newGraph()
	g.observe(id("default", "child"), naming(ref("ConfigMap", "owner", "owner")))
	g.observe(id("default", "owner"), naming(ref("ConfigMap", "child", "child")))
	g.objectDeleted("child")
	g.objectDeleted("owner")
	if w := g.objectNotFound(id("default", "child")); len(g.nodes) != 0 || len(w.attemptDelete) != 0 {
		t.Errorf("%d nodes remain, %+v", len(g.nodes), w)
	}
	if !g.isAbsent(id("default", "child")) {
		t.Error("an owner that was deleted is not remembered as absent")
	}
}

// TestRandomGraphs: however changes come, in the end everyone knows its dependents, and which of them it must wait for.
func TestRandomGraphs(t *testing.T) {
	const seed = 13
	random := rand.New(rand.NewPCG(seed, 0))
	for round := range 300 {
		g := newGraph()
		const objects = 8
		name := func(i int) string { return string(rune('a' + i)) }
		state := make([]*metav1.ObjectMeta, objects)
		gone := make([]bool, objects)
		for range 40 {
			i := random.IntN(objects)
			if gone[i] {
				continue
			}
			if state[i] != nil && random.IntN(12) == 0 {
				g.objectDeleted(types.UID(name(i)))
				gone[i] = true
				continue
			}
			next := naming()
			for j := range objects {
				if random.IntN(4) == 0 && !gone[j] {
					r := ref("ConfigMap", name(j), types.UID(name(j)))
					r.BlockOwnerDeletion = []*bool{nil, new(false), new(true)}[random.IntN(3)]
					next.OwnerReferences = append(next.OwnerReferences, r)
				}
			}
			if random.IntN(6) == 0 {
				leave := leaving(metav1.FinalizerDeleteDependents)
				next.DeletionTimestamp, next.Finalizers = leave.DeletionTimestamp, leave.Finalizers
			}
			state[i] = next
			g.observe(id("default", name(i)), next)
		}
		for i := range objects {
			it, ok := g.snapshot(types.UID(name(i)))
			var dependents, blockers, waiting []string
			circular := false
			for j := range objects {
				if state[j] == nil || gone[j] {
					continue
				}
				if r := findOwnerRef(state[j].OwnerReferences, types.UID(name(i))); r != nil {
					dependents = append(dependents, name(j))
					waits := state[j].DeletionTimestamp != nil
					circular = circular || waits
					if blocksOwnerDeletion(*r) {
						blockers = append(blockers, name(j))
						if !waits {
							waiting = append(waiting, name(j))
						}
					}
				}
			}
			if gone[i] {
				if ok {
					t.Fatalf("seed %d, round %d: %s is gone and known", seed, round, name(i))
				}
				continue
			}
			if !ok && (state[i] != nil || len(dependents) > 0) {
				t.Fatalf("seed %d, round %d: %s is not known", seed, round, name(i))
			}
			if !ok {
				continue
			}
			var known []types.UID
			for _, d := range it.dependents {
				known = append(known, d.uid)
			}
			if !slices.Equal(uids(known), dependents) || !slices.Equal(uids(it.blockers), blockers) || !slices.Equal(uids(it.blockersToDelete), waiting) || it.mayBeCircular != circular || it.virtual != (state[i] == nil) {
				t.Fatalf("seed %d, round %d: %s has dependents %v, blockers %v, waiting %v, circular %v; want %v, %v, %v, %v", seed, round, name(i), uids(known), uids(it.blockers), uids(it.blockersToDelete), it.mayBeCircular, dependents, blockers, waiting, circular)
			}
		}
	}
}

func TestAlternativeIdentities(t *testing.T) {
	at := func(kind, namespace, name string) identity {
		return identity{apiVersion: "v1", kind: kind, namespace: namespace, name: name, uid: "u"}
	}
	in := func(namespace string, refs ...metav1.OwnerReference) *node {
		return &node{identity: identity{namespace: namespace}, owners: refs}
	}
	named := func(kind, name string) metav1.OwnerReference { return ref(kind, name, "u") }
	for _, test := range []struct {
		what       string
		dependents []*node
		absent     identity
		want       identity
		none       bool
	}{
		{"nobody names another", nil, at("A", "x", "n"), identity{}, true},
		{"only the same", []*node{in("x", named("A", "n"))}, at("A", "x", "n"), identity{}, true},
		{"another uid does not count", []*node{in("x", ref("B", "n", "other"))}, at("A", "x", "n"), identity{}, true},
		{"another kind", []*node{in("x", named("B", "n"))}, at("A", "x", "n"), at("B", "x", "n"), false},
		{"another name", []*node{in("x", named("A", "m"))}, at("A", "x", "n"), at("A", "x", "m"), false},
		{"another namespace", []*node{in("y", named("A", "n"))}, at("A", "x", "n"), at("A", "y", "n"), false},
		{"the next in order", []*node{in("x", named("A", "n")), in("x", named("D", "n")), in("x", named("C", "n"))}, at("B", "x", "n"), at("C", "x", "n"), false},
		{"from the beginning after the last", []*node{in("x", named("B", "n")), in("x", named("A", "n"))}, at("C", "x", "n"), at("A", "x", "n"), false},
		{"a kind known to have no namespace", []*node{in("x", named("A", "m"))}, at("A", "", "n"), at("A", "", "m"), false},
		{"a kind known to have no namespace: the same", []*node{in("x", named("A", "n")), in("y", named("A", "n"))}, at("A", "", "n"), identity{}, true},
	} {
		got, ok := nextIdentity(test.dependents, test.absent)
		if ok == test.none || got != test.want {
			t.Errorf("%s: %v %v, want %v", test.what, ok, got, test.want)
		}
	}
	order := []identity{at("A", "x", "a"), at("A", "x", "b"), at("A", "y", "a"), {apiVersion: "v2", kind: "A", namespace: "a", name: "a"}, at("B", "a", "a")}
	for i, a := range order {
		for j, b := range order {
			if got := compareIdentities(a, b); got != cmp.Compare(i, j) {
				t.Errorf("%v and %v: %d", a, b, got)
			}
		}
	}
}

func TestIdentitiesInWords(t *testing.T) {
	if got := id("default", "owner").String(); got != "[v1/ConfigMap, namespace: default, name: owner, uid: owner]" {
		t.Error(got)
	}
	if !id("default", "owner").named(ref("ConfigMap", "owner", "owner")) || id("default", "owner").named(ref("ConfigMap", "owner", "else")) || id("default", "owner").named(metav1.OwnerReference{APIVersion: "v2", Kind: "ConfigMap", Name: "owner", UID: "owner"}) {
		t.Error("a reference that fits does not name it, or one that does not fit does")
	}
	for _, test := range []struct {
		block *bool
		want  bool
	}{{nil, false}, {new(false), false}, {new(true), true}} {
		if blocksOwnerDeletion(metav1.OwnerReference{BlockOwnerDeletion: test.block}) != test.want {
			t.Errorf("%v blocks", test.block)
		}
	}
}

// TestOnlySoManyAbsentOwnersAreRemembered: the oldest are forgotten.
func TestOnlySoManyAbsentOwnersAreRemembered(t *testing.T) {
	g := newGraph()
	for i := range absentOwners + 1 {
		g.markAbsent(id("default", strconv.Itoa(i)))
	}
	if g.isAbsent(id("default", "0")) || !g.isAbsent(id("default", "1")) || !g.isAbsent(id("default", strconv.Itoa(absentOwners))) || g.isAbsent(id("other", "1")) {
		t.Error("the wrong owners are remembered")
	}
}

func TestPatience(t *testing.T) {
	g := newGraph()
	g.observe(id("default", "child"), naming(ref("ConfigMap", "owner", "owner")))
	first, ok := g.virtualRetryDelay("owner")
	for range 30 {
		g.virtualRetryDelay("owner")
	}
	if last, _ := g.virtualRetryDelay("owner"); !ok || first > 50*time.Millisecond || last != time.Minute {
		t.Errorf("from %v to %v", first, last)
	}
	if _, ok := g.virtualRetryDelay("child"); ok {
		t.Error("an object that was seen is waited for")
	}
}
