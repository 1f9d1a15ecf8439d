package cleanup

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/client"
	"skiff/test/inprocess"
)

func ownedBy(block bool, owners ...*corev1.ConfigMap) []metav1.OwnerReference {
	var refs []metav1.OwnerReference
	for _, owner := range owners {
		refs = append(refs, metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: owner.Name, UID: owner.UID, BlockOwnerDeletion: &block})
	}
	return refs
}

func thing(namespace, name string, refs ...metav1.OwnerReference) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, OwnerReferences: refs}}
}

// model says what must remain when an object is deleted: all whose owners are all gone go too, and who stays names only
// owners that exist.
type model map[string][]string // name → names of owners

func (m model) delete(name string, policy metav1.DeletionPropagation) {
	gone := map[string]bool{name: true}
	for again := policy != metav1.DeletePropagationOrphan; again; {
		again = false
		for object, owners := range m {
			if !gone[object] && len(owners) > 0 && !slices.ContainsFunc(owners, func(owner string) bool { return !gone[owner] }) {
				gone[object], again = true, true
			}
		}
	}
	for object, owners := range m {
		m[object] = slices.DeleteFunc(owners, func(owner string) bool { return gone[owner] })
		if gone[object] {
			delete(m, object)
		}
	}
}

func (m model) String() string {
	var lines []string
	for object, owners := range m {
		slices.Sort(owners)
		lines = append(lines, object+"→"+strings.Join(owners, ","))
	}
	slices.Sort(lines)
	return strings.Join(lines, " ")
}

// state is what the server has, in the form of a model.
func state(t *testing.T, c *client.Client, namespace string) model {
	t.Helper()
	objects, _, err := client.For[*corev1.ConfigMap](c).List(t.Context(), namespace, client.Match{})
	if err != nil {
		t.Fatal(err)
	}
	m := model{}
	for _, object := range objects {
		m[object.Name] = nil
		for _, ref := range object.OwnerReferences {
			m[object.Name] = append(m[object.Name], ref.Name)
		}
	}
	return m
}

// TestRandomOwnership deletes objects of random graphs, circles included, in random ways: what remains must be what a simple
// model says.
func TestRandomOwnership(t *testing.T) {
	c := inprocess.Start(t, t.Context())
	run(t, c, GarbageCollector)
	policies := []metav1.DeletionPropagation{metav1.DeletePropagationBackground, metav1.DeletePropagationForeground, metav1.DeletePropagationOrphan}
	things := client.For[*corev1.ConfigMap](c)
	for seed := range uint64(40) {
		random := rand.New(rand.NewPCG(seed, 1))
		namespace := fmt.Sprintf("graph-%d", seed)
		create(t, c, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})
		want := model{}
		var objects []*corev1.ConfigMap
		for i := range 3 + random.IntN(10) {
			object := create(t, c, thing(namespace, fmt.Sprintf("%c", 'a'+i)))
			objects = append(objects, object)
			want[object.Name] = nil
		}
		for i, object := range objects {
			var owners []*corev1.ConfigMap
			for j, owner := range objects {
				// Mostly earlier objects own later ones; now and then the other way round, which makes circles.
				if i != j && (j < i && random.IntN(3) == 0 || random.IntN(12) == 0) {
					owners = append(owners, owner)
					want[object.Name] = append(want[object.Name], owner.Name)
				}
			}
			next := object.DeepCopy()
			next.OwnerReferences = ownedBy(random.IntN(2) == 0, owners...)
			if _, err := things.Update(t.Context(), next, client.WriteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		for range 3 {
			names := slices.Sorted(maps.Keys(want))
			if len(names) == 0 {
				break
			}
			// The graph must have seen the owners before one of them orphans its dependents.
			time.Sleep(20 * time.Millisecond)
			name, policy := names[random.IntN(len(names))], policies[random.IntN(len(policies))]
			before := want.String()
			want.delete(name, policy)
			if err := things.Delete(t.Context(), namespace, name, metav1.DeleteOptions{PropagationPolicy: &policy}); err != nil {
				t.Fatal(err)
			}
			eventually(t, fmt.Sprintf("seed %d: deleting %s (%s) of %s leaves %s", seed, name, policy, before, want), func() bool {
				return state(t, c, namespace).String() == want.String()
			})
		}
	}
}

func TestForegroundWaitsForBlockers(t *testing.T) {
	c := inprocess.Start(t, t.Context())
	run(t, c, GarbageCollector)
	owner := create(t, c, thing("default", "owner"))
	blocking := thing("default", "blocking", ownedBy(true, owner)...)
	blocking.Finalizers = []string{"example.com/hold"}
	create(t, c, blocking)
	create(t, c, thing("default", "other", ownedBy(false, owner)...))
	foreground := metav1.DeletePropagationForeground
	things := client.For[*corev1.ConfigMap](c)
	if err := things.Delete(t.Context(), "default", "owner", metav1.DeleteOptions{PropagationPolicy: &foreground}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the dependent that nothing holds is gone", func() bool { return gone[*corev1.ConfigMap](t, c, "default", "other") })
	time.Sleep(100 * time.Millisecond)
	if gone[*corev1.ConfigMap](t, c, "default", "owner") {
		t.Fatal("the owner did not wait for the dependent that blocks it")
	}
	if _, err := things.Patch(t.Context(), "default", "blocking", client.MergePatch, []byte(`{"metadata":{"finalizers":null}}`), client.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "both are gone", func() bool { return len(state(t, c, "default")) == 0 })
}

// TestForegroundCircle: three that own one another, each of which would wait for the next.
func TestForegroundCircle(t *testing.T) {
	c := inprocess.Start(t, t.Context())
	run(t, c, GarbageCollector)
	things := client.For[*corev1.ConfigMap](c)
	first := create(t, c, thing("default", "first"))
	second := create(t, c, thing("default", "second", ownedBy(true, first)...))
	third := create(t, c, thing("default", "third", ownedBy(true, second)...))
	closing := first.DeepCopy()
	closing.OwnerReferences = ownedBy(true, third)
	if _, err := things.Update(t.Context(), closing, client.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	time.Sleep(100 * time.Millisecond) // the collector has seen the circle
	foreground := metav1.DeletePropagationForeground
	if err := things.Delete(t.Context(), "default", "first", metav1.DeleteOptions{PropagationPolicy: &foreground}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the whole circle is gone", func() bool { return len(state(t, c, "default")) == 0 })
}

func TestOwnerInAnotherNamespace(t *testing.T) {
	c := inprocess.Start(t, t.Context())
	run(t, c, GarbageCollector)
	owner := create(t, c, thing("kube-system", "owner"))
	create(t, c, thing("kube-system", "right", ownedBy(false, owner)...))
	time.Sleep(50 * time.Millisecond)
	create(t, c, thing("default", "wrong", ownedBy(false, owner)...))
	eventually(t, "who names an owner elsewhere is collected", func() bool { return gone[*corev1.ConfigMap](t, c, "default", "wrong") })
	eventually(t, "an event tells of it", func() bool {
		events, _, err := client.For[*corev1.Event](c).List(t.Context(), "default", client.Match{})
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(events, func(e *corev1.Event) bool {
			return e.Reason == "OwnerRefInvalidNamespace" && e.InvolvedObject.Name == "wrong" && e.InvolvedObject.Kind == "ConfigMap" &&
				e.Message == fmt.Sprintf(`ownerRef [v1/ConfigMap, namespace: default, name: owner, uid: %s] does not exist in namespace "default"`, owner.UID)
		})
	})
	if gone[*corev1.ConfigMap](t, c, "kube-system", "right") {
		t.Error("the reference from elsewhere took a true dependent along")
	}
}

// TestManyDependents is upstream's case of a controller with a hundred pods.
func TestManyDependents(t *testing.T) {
	c := inprocess.Start(t, t.Context())
	run(t, c, GarbageCollector)
	owner := create(t, c, thing("default", "owner"))
	for i := range 100 {
		pod := podOf("default", fmt.Sprintf("pod-%d", i))
		pod.OwnerReferences = ownedBy(true, owner)
		create(t, c, pod)
	}
	began := time.Now()
	if err := client.For[*corev1.ConfigMap](c).Delete(t.Context(), "default", "owner", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all pods are gone", func() bool {
		pods, _, err := client.For[*corev1.Pod](c).List(t.Context(), "default", client.Match{})
		if err != nil {
			t.Fatal(err)
		}
		return len(pods) == 0
	})
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("100 pods took %v", took)
	}
}

func TestDecide(t *testing.T) {
	uid := []types.UID{"x"}
	plain, orphaning := &metav1.ObjectMeta{}, &metav1.ObjectMeta{Finalizers: []string{metav1.FinalizerOrphanDependents}}
	waiting := &metav1.ObjectMeta{Finalizers: []string{metav1.FinalizerDeleteDependents}}
	alone, parent := item{}, item{dependents: []identity{{}}}
	circular := item{dependents: []identity{{}}, circular: true}
	for _, test := range []struct {
		what   string
		owners ownership
		it     item
		latest metav1.Object
		want   decision
	}{
		{"an owner that stays", ownership{solid: true}, alone, plain, keep},
		{"one stays, one is gone", ownership{solid: true, absent: uid}, alone, plain, release},
		{"one stays, one waits", ownership{solid: true, waiting: uid}, parent, plain, release},
		{"all gone", ownership{absent: uid}, parent, plain, deleteBackground},
		{"all gone, to orphan", ownership{absent: uid}, parent, orphaning, deleteOrphan},
		{"all gone, to wait", ownership{absent: uid}, parent, waiting, deleteForeground},
		{"waited for, nothing below", ownership{waiting: uid}, alone, plain, deleteBackground},
		{"waited for, with dependents", ownership{waiting: uid}, parent, plain, deleteForeground},
		{"waited for, in a circle", ownership{waiting: uid}, circular, plain, unblockAndDelete},
	} {
		if got := decide(test.owners, test.it, test.latest); got != test.want {
			t.Errorf("%s: %v, want %v", test.what, got, test.want)
		}
	}
}
