package cleanup

import (
	"slices"
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
		story                 func(g *graph) work
		look, later, orphaned []string
		invalid               int
	}{
		{"an object alone", func(g *graph) work { return g.observe(owner, naming()) }, nil, nil, nil, 0},
		{"an owner nobody has seen", func(g *graph) work { return g.observe(child, naming(ofOwner)) }, []string{"owner"}, nil, nil, 0},
		{"an owner that is known", func(g *graph) work {
			g.observe(owner, naming())
			return g.observe(child, naming(ofOwner))
		}, nil, nil, nil, 0},
		{"the owner appears later", func(g *graph) work {
			g.observe(child, naming(ofOwner))
			return g.observe(owner, naming())
		}, nil, nil, nil, 0},
		{"the owner is deleted", func(g *graph) work {
			g.observe(owner, naming())
			g.observe(child, naming(ofOwner))
			return g.vanish("owner")
		}, []string{"child"}, nil, nil, 0},
		{"the owner does not exist", func(g *graph) work {
			g.observe(child, naming(ofOwner))
			return g.missing(owner)
		}, []string{"child"}, nil, nil, 0},
		{"the owner waits for its dependents", func(g *graph) work {
			g.observe(owner, naming())
			g.observe(child, naming(ofOwner))
			return g.observe(owner, leaving(metav1.FinalizerDeleteDependents))
		}, []string{"child", "owner"}, nil, nil, 0},
		{"that it waits is news only once", func(g *graph) work {
			g.observe(owner, leaving(metav1.FinalizerDeleteDependents))
			return g.observe(owner, leaving(metav1.FinalizerDeleteDependents))
		}, nil, nil, nil, 0},
		{"a dependent of an owner that waits is gone", func(g *graph) work {
			g.observe(owner, leaving(metav1.FinalizerDeleteDependents))
			g.observe(child, naming(ofOwner))
			return g.vanish("child")
		}, []string{"owner"}, nil, nil, 0},
		{"a dependent appears while its owner waits", func(g *graph) work {
			g.observe(owner, leaving(metav1.FinalizerDeleteDependents))
			return g.observe(child, naming(ofOwner))
		}, []string{"child"}, nil, nil, 0},
		{"the owner leaves orphans", func(g *graph) work {
			g.observe(child, naming(ofOwner))
			return g.observe(owner, leaving(metav1.FinalizerOrphanDependents))
		}, nil, nil, []string{"owner"}, 0},
		{"a dependent no longer blocks", func(g *graph) work {
			g.observe(owner, naming())
			g.observe(child, naming(blocking))
			return g.observe(child, naming(ofOwner))
		}, []string{"owner"}, nil, nil, 0},
		{"a dependent that blocked is released", func(g *graph) work {
			g.observe(owner, naming())
			g.observe(child, naming(blocking))
			return g.observe(child, naming())
		}, []string{"owner"}, nil, nil, 0},
		{"an owner in another namespace", func(g *graph) work {
			g.observe(id("elsewhere", "owner"), naming())
			return g.observe(child, naming(ofOwner))
		}, []string{"child"}, nil, nil, 1},
		{"the owner turns out to be elsewhere", func(g *graph) work {
			g.observe(child, naming(ofOwner))
			return g.observe(id("elsewhere", "owner"), naming())
		}, []string{"child"}, nil, nil, 1},
		{"an owner of another name", func(g *graph) work {
			g.observe(owner, naming())
			return g.observe(child, naming(ref("ConfigMap", "wrong", "owner")))
		}, []string{"child"}, nil, nil, 0},
		{"one of two names is missing, the other is tried", func(g *graph) work {
			g.observe(child, naming(ofOwner))
			g.observe(other, naming(ref("Secret", "owner", "owner")))
			return g.missing(owner)
		}, []string{"child"}, []string{"owner"}, nil, 0},
		{"a wrong name of what exists is missing", func(g *graph) work {
			g.observe(owner, naming())
			g.observe(child, naming(ofOwner))
			g.observe(other, naming(ref("Secret", "owner", "owner")))
			return g.missing(identityOf(ref("Secret", "owner", "owner"), "default"))
		}, []string{"other"}, nil, nil, 0},
	} {
		g := newGraph()
		w := test.story(g)
		if !slices.Equal(uids(w.look), test.look) || !slices.Equal(uids(w.lookLater), test.later) || !slices.Equal(uids(w.orphan), test.orphaned) || len(w.invalid) != test.invalid {
			t.Errorf("%s: %+v", test.what, w)
		}
	}
}

// TestGraphForgets: what was seen and deleted leaves nothing behind.
func TestGraphForgets(t *testing.T) {
	g := newGraph()
	g.observe(id("default", "child"), naming(ref("ConfigMap", "owner", "owner")))
	g.observe(id("default", "owner"), naming(ref("ConfigMap", "child", "child")))
	g.vanish("child")
	g.vanish("owner")
	if w := g.missing(id("default", "child")); len(g.nodes) != 0 || len(w.look) != 0 {
		t.Errorf("%d nodes remain, %+v", len(g.nodes), w)
	}
	if !g.knownAbsent(id("default", "child")) {
		t.Error("an owner that was deleted is not remembered as absent")
	}
}

func TestPatience(t *testing.T) {
	g := newGraph()
	g.observe(id("default", "child"), naming(ref("ConfigMap", "owner", "owner")))
	first, ok := g.patience("owner")
	for range 30 {
		g.patience("owner")
	}
	if last, _ := g.patience("owner"); !ok || first > 50*time.Millisecond || last != time.Minute {
		t.Errorf("from %v to %v", first, last)
	}
	if _, ok := g.patience("child"); ok {
		t.Error("an object that was seen is waited for")
	}
}
