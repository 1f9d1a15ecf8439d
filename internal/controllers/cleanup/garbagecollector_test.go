package cleanup

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/restmapper"

	"skiff/internal/client"
	"skiff/internal/controller"
	"skiff/internal/kind"
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
	objects, _, err := client.For[*corev1.ConfigMap](c).List(t.Context(), namespace, client.Selector{})
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
	if _, err := things.Patch(t.Context(), "default", "blocking", client.RawPatch(client.MergePatch, []byte(`{"metadata":{"finalizers":null}}`)), client.WriteOptions{}); err != nil {
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
		events, _, err := client.For[*corev1.Event](c).List(t.Context(), "default", client.Selector{})
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
		pods, _, err := client.For[*corev1.Pod](c).List(t.Context(), "default", client.Selector{})
		if err != nil {
			t.Fatal(err)
		}
		return len(pods) == 0
	})
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("100 pods took %v", took)
	}
}

// TestDecide goes through all there is to know about an object and compares with the rules in another formulation.
func TestDecide(t *testing.T) {
	uid := []types.UID{"x"}
	finalizers := map[string][]string{"none": nil, "other": {"example.com/other"}, "orphan": {metav1.FinalizerOrphanDependents}, "foreground": {metav1.FinalizerDeleteDependents}, "both": {metav1.FinalizerDeleteDependents, metav1.FinalizerOrphanDependents}}
	kinds := map[string]nodeSnapshot{"alone": {}, "parent": {dependents: []identity{{}}}, "circular": {dependents: []identity{{}}, mayBeCircular: true}}
	names := map[decision]string{keep: "keep", release: "release", unblockAndDelete: "unblock", deleteForeground: "foreground", deleteOrphan: "orphan", deleteBackground: "background"}
	lists := [][]types.UID{nil, uid}
	for _, solid := range []bool{false, true} {
		for _, absent := range lists {
			for _, waiting := range lists {
				if !solid && absent == nil && waiting == nil {
					continue // it has owners
				}
				for shape, it := range kinds {
					for held, list := range finalizers {
						want := "background"
						switch {
						case solid && absent == nil && waiting == nil:
							want = "keep"
						case solid:
							want = "release"
						case waiting != nil && shape == "circular":
							want = "unblock"
						case waiting != nil && shape == "parent", held == "foreground":
							want = "foreground"
						case held == "orphan", held == "both":
							want = "orphan"
						}
						got := decide(ownerStates{solid: solid, absent: absent, waiting: waiting}, it, &metav1.ObjectMeta{Finalizers: list})
						if names[got] != want {
							t.Errorf("solid %v, absent %v, waiting %v, %s, finalizers %s: %s, want %s", solid, absent, waiting, shape, held, names[got], want)
						}
					}
				}
			}
		}
	}
}

// TestOwnersOfEveryKind plays many small stories in one cluster: who owns whom, what is deleted and how, what is left.
func TestOwnersOfEveryKind(t *testing.T) {
	c := inprocess.Start(t, t.Context())
	run(t, c, GarbageCollector)
	const background, foreground, orphaned = metav1.DeletePropagationBackground, metav1.DeletePropagationForeground, metav1.DeletePropagationOrphan
	type story struct {
		t         *testing.T
		namespace string
	}
	owned := func(kind, apiVersion string, owner metav1.Object) metav1.OwnerReference {
		return metav1.OwnerReference{APIVersion: apiVersion, Kind: kind, Name: owner.GetName(), UID: owner.GetUID(), BlockOwnerDeletion: new(true)}
	}
	mine := func(owner *corev1.ConfigMap) metav1.OwnerReference { return owned("ConfigMap", "v1", owner) }
	add := func(s story, name string, refs ...metav1.OwnerReference) *corev1.ConfigMap {
		return create(s.t, c, thing(s.namespace, name, refs...))
	}
	role := func(s story, refs ...metav1.OwnerReference) *rbacv1.ClusterRole {
		return create(s.t, c, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: s.namespace, OwnerReferences: refs}})
	}
	erase := func(s story, obj kind.Object, policy metav1.DeletionPropagation) {
		time.Sleep(30 * time.Millisecond) // the collector has seen who owns whom
		if err := c.Delete(s.t.Context(), obj, metav1.DeleteOptions{PropagationPolicy: &policy}); err != nil {
			s.t.Fatal(err)
		}
	}
	stories := []struct {
		what string
		play func(s story)
		left string // of the config maps, with their owners
	}{
		{"nobody owns anything", func(s story) { add(s, "a"); add(s, "b") }, "a→ b→"},
		{"background takes dependents along", func(s story) {
			a := add(s, "a")
			add(s, "c", mine(add(s, "b", mine(a))))
			erase(s, a, background)
		}, ""},
		{"foreground takes dependents along", func(s story) {
			a := add(s, "a")
			add(s, "c", mine(add(s, "b", mine(a))))
			erase(s, a, foreground)
		}, ""},
		{"orphans stay, and what they own", func(s story) {
			a := add(s, "a")
			add(s, "c", mine(add(s, "b", mine(a))))
			erase(s, a, orphaned)
		}, "b→ c→b"},
		{"one of two owners goes", func(s story) {
			a := add(s, "a")
			add(s, "c", mine(a), mine(add(s, "b")))
			erase(s, a, background)
		}, "b→ c→b"},
		{"one of two owners goes in the foreground: it waits for nobody", func(s story) {
			a := add(s, "a")
			add(s, "c", mine(a), mine(add(s, "b")))
			erase(s, a, foreground)
		}, "b→ c→b"},
		{"both owners go", func(s story) {
			a, b := add(s, "a"), add(s, "b")
			add(s, "c", mine(a), mine(b))
			erase(s, a, background)
			erase(s, b, foreground)
		}, ""},
		{"an owner that never was", func(s story) {
			add(s, "a", metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: "never", UID: types.UID("never-" + s.namespace)})
		}, ""},
		{"an owner that never was, beside one that is", func(s story) {
			add(s, "b", mine(add(s, "a")), metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: "never", UID: types.UID("never-" + s.namespace)})
		}, "a→ b→a"},
		{"an owner's successor of the same name is another", func(s story) {
			a := add(s, "a")
			erase(s, a, background)
			add(s, "a")
			add(s, "b", mine(a))
		}, "a→"},
		{"the uid of another kind", func(s story) { add(s, "b", owned("Secret", "v1", add(s, "a"))) }, "a→"},
		{"the uid of another name", func(s story) {
			wrong := mine(add(s, "a"))
			wrong.Name = "else"
			add(s, "b", wrong)
		}, "a→"},
		{"an owner of the cluster", func(s story) { add(s, "a", owned("ClusterRole", "rbac.authorization.k8s.io/v1", role(s))) }, "a→" + "ROLE"},
		{"an owner of the cluster goes", func(s story) {
			r := role(s)
			add(s, "a", owned("ClusterRole", "rbac.authorization.k8s.io/v1", r))
			erase(s, r, background)
		}, ""},
		{"an owner of the cluster goes in the foreground", func(s story) {
			r := role(s)
			add(s, "a", owned("ClusterRole", "rbac.authorization.k8s.io/v1", r))
			erase(s, r, foreground)
		}, ""},
		{"an owner of the cluster leaves orphans", func(s story) {
			r := role(s)
			add(s, "a", owned("ClusterRole", "rbac.authorization.k8s.io/v1", r))
			erase(s, r, orphaned)
		}, "a→"},
		{"an object of the cluster names an owner in a namespace: it stays", func(s story) {
			a := add(s, "a")
			role(s, mine(a))
			erase(s, a, background)
		}, "ROLE"},
		{"an owner of a kind nobody knows: the object stays", func(s story) {
			add(s, "a", metav1.OwnerReference{APIVersion: "example.com/v1", Kind: "Widget", Name: "w", UID: types.UID("w-" + s.namespace)})
		}, "a→w"},
		{"an owner of a kind nobody knows, beside one that is gone: the object stays", func(s story) {
			a := add(s, "a")
			add(s, "b", mine(a), metav1.OwnerReference{APIVersion: "example.com/v1", Kind: "Widget", Name: "w", UID: types.UID("w-" + s.namespace)})
			erase(s, a, background)
		}, "b→a,w"},
		{"two that own each other stay", func(s story) {
			a := add(s, "a")
			b := add(s, "b", mine(a))
			next := a.DeepCopy()
			next.OwnerReferences = []metav1.OwnerReference{mine(b)}
			if _, err := client.For[*corev1.ConfigMap](c).Update(s.t.Context(), next, client.WriteOptions{}); err != nil {
				s.t.Fatal(err)
			}
		}, "a→b b→a"},
		{"one that owns itself stays", func(s story) {
			a := add(s, "a").DeepCopy()
			a.OwnerReferences = []metav1.OwnerReference{mine(a)}
			if _, err := client.For[*corev1.ConfigMap](c).Update(s.t.Context(), a, client.WriteOptions{}); err != nil {
				s.t.Fatal(err)
			}
		}, "a→a"},
		{"a dependent that asked for orphans leaves them when its owner goes", func(s story) {
			a := add(s, "a")
			b := thing(s.namespace, "b", mine(a))
			b.Finalizers = []string{metav1.FinalizerOrphanDependents}
			middle := create(s.t, c, b)
			add(s, "c", mine(middle))
			erase(s, a, background)
		}, "c→"},
		{"a dependent with a finalizer of its own is only marked", func(s story) {
			a := add(s, "a")
			b := thing(s.namespace, "b", mine(a))
			b.Finalizers = []string{"example.com/hold"}
			create(s.t, c, b)
			erase(s, a, background)
		}, "b→a"},
		{"a version the server also serves", func(s story) {
			hpa := create(s.t, c, &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "h"},
				Spec: autoscalingv2.HorizontalPodAutoscalerSpec{MaxReplicas: 1, ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{Kind: "Deployment", Name: "d", APIVersion: "apps/v1"}}})
			add(s, "a", owned("HorizontalPodAutoscaler", "autoscaling/v1", hpa))
		}, "a→h"},
	}
	for i, st := range stories {
		namespace := fmt.Sprintf("story-%02d", i)
		create(t, c, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})
		st.play(story{t, namespace})
	}
	check := func(i int) (string, string) {
		namespace := fmt.Sprintf("story-%02d", i)
		left := state(t, c, namespace).String()
		want := strings.ReplaceAll(stories[i].left, "a→ROLE", "a→"+namespace)
		if want == "ROLE" {
			if want = ""; gone[*rbacv1.ClusterRole](t, c, "", namespace) {
				left += " and the role is gone"
			}
		}
		return left, want
	}
	for i, st := range stories {
		eventually(t, st.what+": "+st.left, func() bool { left, want := check(i); return left == want })
	}
	time.Sleep(300 * time.Millisecond) // nothing more goes
	for i, st := range stories {
		if left, want := check(i); left != want {
			t.Errorf("%s: %s, want %s", st.what, left, want)
		}
	}
}

// TestReferencesThatOnlyAPlainPatchCanChange: custom resources know no strategic patch; the list is replaced as it was read, and again when
// somebody was faster.
func TestReferencesThatOnlyAPlainPatchCanChange(t *testing.T) {
	const at = "/apis/example.com/v1/namespaces/work/widgets/w"
	object := func(revision string) string {
		return `{"apiVersion":"meta.k8s.io/v1","kind":"PartialObjectMetadata","metadata":{"namespace":"work","name":"w","uid":"u","resourceVersion":"` + revision + `","finalizers":["x","foregroundDeletion"],"ownerReferences":[` +
			`{"apiVersion":"v1","kind":"ConfigMap","name":"a","uid":"a","blockOwnerDeletion":true},{"apiVersion":"v1","kind":"ConfigMap","name":"b","uid":"b"}]}}`
	}
	discovered := map[string][]string{
		"GET /api": {`{"kind":"APIVersions","versions":[]}`}, "GET /apis": {`{"kind":"APIGroupList","groups":[{"name":"example.com","versions":[{"groupVersion":"example.com/v1","version":"v1"}],"preferredVersion":{"groupVersion":"example.com/v1","version":"v1"}}]}`},
		"GET /apis/example.com/v1": {`{"kind":"APIResourceList","groupVersion":"example.com/v1","resources":[{"name":"widgets","kind":"Widget","namespaced":true,"verbs":["get","patch"]}]}`},
	}
	unsupportedPatch, conflict, notThere := refusal(415, metav1.StatusReasonUnsupportedMediaType, "no"), refusal(409, metav1.StatusReasonConflict, "late"), refusal(404, metav1.StatusReasonNotFound, "gone")
	widget := identity{apiVersion: "example.com/v1", kind: "Widget", namespace: "work", name: "w", uid: "u"}
	for _, test := range []struct {
		what    string
		patches []string // answers
		do      func(g *garbageCollector) error
		err     bool
		asked   int // patches
	}{
		{"released by a strategic patch", []string{object("2")}, func(g *garbageCollector) error { return g.release(t.Context(), widget, []types.UID{"a"}) }, false, 1},
		{"released by a plain one", []string{unsupportedPatch, object("2")}, func(g *garbageCollector) error { return g.release(t.Context(), widget, []types.UID{"a"}) }, false, 2},
		{"released at the second try", []string{unsupportedPatch, conflict, object("2")}, func(g *garbageCollector) error { return g.release(t.Context(), widget, []types.UID{"a"}) }, false, 3},
		{"gone: nothing to release", []string{notThere}, func(g *garbageCollector) error { return g.release(t.Context(), widget, []types.UID{"a"}) }, false, 1},
		{"refused", []string{refusal(403, metav1.StatusReasonForbidden, "no")}, func(g *garbageCollector) error { return g.release(t.Context(), widget, []types.UID{"a"}) }, true, 1},
		{"a finalizer is taken out", []string{object("2")}, func(g *garbageCollector) error { return g.removeFinalizer(t.Context(), widget, "foregroundDeletion") }, false, 1},
		{"a finalizer is taken out at the second try", []string{conflict, object("2")}, func(g *garbageCollector) error { return g.removeFinalizer(t.Context(), widget, "foregroundDeletion") }, false, 2},
		{"a finalizer that is not there", nil, func(g *garbageCollector) error { return g.removeFinalizer(t.Context(), widget, "orphan") }, false, 0},
		{"a finalizer of a successor", nil, func(g *garbageCollector) error {
			other := widget
			other.uid = "v"
			return g.removeFinalizer(t.Context(), other, "foregroundDeletion")
		}, false, 0},
		{"unblocked", []string{unsupportedPatch, object("2")}, func(g *garbageCollector) error {
			latest, err := g.get(t.Context(), widget)
			if err == nil {
				_, err = g.unblock(t.Context(), widget, latest)
			}
			return err
		}, false, 2},
		{"nothing to unblock", nil, func(g *garbageCollector) error {
			_, err := g.unblock(t.Context(), widget, &metav1.PartialObjectMetadata{})
			return err
		}, false, 0},
		{"a kind nobody knows", nil, func(g *garbageCollector) error {
			return g.release(t.Context(), identity{apiVersion: "example.com/v1", kind: "Gadget", namespace: "work", name: "w"}, nil)
		}, true, 0},
		{"an object without the namespace it needs", nil, func(g *garbageCollector) error {
			return g.release(t.Context(), identity{apiVersion: "example.com/v1", kind: "Widget", name: "w"}, nil)
		}, true, 0},
	} {
		responses := maps.Clone(discovered)
		responses["GET "+at], responses["PATCH "+at] = []string{object("1")}, test.patches
		metadataClient, heard := playing(t, responses)
		g := &garbageCollector{metadataClient: metadataClient, graph: newGraph(), mapper: restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(metadataClient.discovery))}
		if err := test.do(g); (err != nil) != test.err {
			t.Errorf("%s: %v", test.what, err)
		}
		if got := slices.DeleteFunc(slices.Clone(heard.asked), func(r string) bool { return r != "PATCH "+at }); len(got) != test.asked {
			t.Errorf("%s: %d patches, want %d", test.what, len(got), test.asked)
		}
	}
}

// known are the resources of the server that plays along below: things of a namespace, boxes of the cluster.
var known = map[string][]string{
	"GET /api":                 {`{"kind":"APIVersions","versions":[]}`},
	"GET /apis":                {`{"kind":"APIGroupList","groups":[{"name":"example.com","versions":[{"groupVersion":"example.com/v1","version":"v1"}],"preferredVersion":{"groupVersion":"example.com/v1","version":"v1"}}]}`},
	"GET /apis/example.com/v1": {`{"kind":"APIResourceList","groupVersion":"example.com/v1","resources":[{"name":"things","kind":"Thing","namespaced":true,"verbs":["get"]},{"name":"boxes","kind":"Box","namespaced":false,"verbs":["get"]}]}`},
}

// stored is the metadata of an object as the server has it.
func stored(name, uid, revision string, finalizers []string, refs ...metav1.OwnerReference) string {
	m := metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadata"},
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(uid), ResourceVersion: revision, Finalizers: finalizers, OwnerReferences: refs}}
	text, _ := json.Marshal(m)
	return string(text)
}

// storedLeaving is the same of one that is being deleted.
func storedLeaving(name, uid string, finalizers ...string) string {
	return strings.Replace(stored(name, uid, "1", finalizers), `"metadata":{`, `"metadata":{"deletionTimestamp":"2026-01-01T00:00:00Z",`, 1)
}

// collector is a garbage collector of a server that answers so.
func collector(t *testing.T, responses map[string][]string) (*garbageCollector, *answers) {
	t.Helper()
	all := maps.Clone(known)
	maps.Copy(all, responses)
	metadataClient, heard := playing(t, all)
	c := inprocess.Client(t, inprocess.Server(t, t.Context()))
	g := &garbageCollector{metadataClient: metadataClient, graph: newGraph(), mapper: restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(metadataClient.discovery))}
	_, err := controller.NewLoop(controller.Definition{Name: "garbage", New: func(s *controller.Setup) (controller.Syncer, error) {
		g.setup = s
		return g, nil
	}}, controller.Environment{Client: c, Informers: client.NewInformers(c), Events: client.NewEventBroadcaster(c), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return g, heard
}

// TestOneLook goes through what the server may say about an object and its owners, and scans what is asked of it then.
func TestAttemptToDelete(t *testing.T) {
	const at = "/apis/example.com/v1/namespaces/work/things/"
	const success = `{"apiVersion":"v1","kind":"Status","status":"Success"}`
	id := func(name string) identity {
		return identity{apiVersion: "example.com/v1", kind: "Thing", namespace: "work", name: name, uid: types.UID(name)}
	}
	ref := func(kind, name string) metav1.OwnerReference {
		return metav1.OwnerReference{APIVersion: "example.com/v1", Kind: kind, Name: name, UID: types.UID(name)}
	}
	blocking := func(name string) metav1.OwnerReference {
		r := ref("Thing", name)
		r.BlockOwnerDeletion = new(true)
		return r
	}
	notThere := refusal(404, metav1.StatusReasonNotFound, "gone")
	conflict := refusal(409, metav1.StatusReasonConflict, "changed")
	get := func(name string) string { return "GET " + at + name }
	remove := func(policy, revision string) string {
		condition := `{"uid":"child"`
		if revision != "" {
			condition += `,"resourceVersion":"` + revision + `"`
		}
		return "DELETE " + at + `child {"kind":"DeleteOptions","apiVersion":"v1","preconditions":` + condition + `},"propagationPolicy":"` + policy + `"}`
	}
	patch := func(name, body string) string { return "PATCH " + at + name + " " + body }
	owner := ref("Thing", "owner")
	foreground := []string{metav1.FinalizerDeleteDependents}
	for _, test := range []struct {
		what      string
		graph     func(g *graph) // beside the child itself
		child     *metav1.ObjectMeta
		responses map[string][]string
		asked     []string // without discovery; bodies where there are any
		err       bool
		gone      bool // from the graph
	}{
		{what: "without owners it stays", child: naming(), responses: map[string][]string{get("child"): {stored("child", "child", "1", nil)}}, asked: []string{get("child")}},
		{what: "it is gone", child: naming(owner), responses: map[string][]string{get("child"): {notThere}}, asked: []string{get("child")}, gone: true},
		{what: "its name is another's", child: naming(owner), responses: map[string][]string{get("child"): {stored("child", "successor", "1", nil)}}, asked: []string{get("child")}, gone: true},
		{what: "the server does not say", child: naming(owner), responses: map[string][]string{get("child"): {refusal(500, metav1.StatusReasonInternalError, "no")}}, asked: []string{get("child")}, err: true},
		{what: "its owner stays", child: naming(owner), responses: map[string][]string{get("child"): {stored("child", "child", "1", nil, owner)}, get("owner"): {stored("owner", "owner", "1", nil)}}, asked: []string{get("child"), get("owner")}},
		{what: "its owner was taken from it meanwhile", child: naming(owner), responses: map[string][]string{get("child"): {stored("child", "child", "1", nil)}}, asked: []string{get("child")}},
		{what: "its owner is gone", child: naming(owner), responses: map[string][]string{get("child"): {stored("child", "child", "7", nil, owner)}, get("owner"): {notThere}, "DELETE " + at + "child": {success}},
			asked: []string{get("child"), get("owner"), remove("Background", "7")}},
		{what: "its owner's name is another's", child: naming(owner), responses: map[string][]string{get("child"): {stored("child", "child", "7", nil, owner)}, get("owner"): {stored("owner", "successor", "1", nil)}, "DELETE " + at + "child": {success}},
			asked: []string{get("child"), get("owner"), remove("Background", "7")}},
		{what: "its owner cannot be asked for", child: naming(owner), responses: map[string][]string{get("child"): {stored("child", "child", "7", nil, owner)}, get("owner"): {refusal(403, metav1.StatusReasonForbidden, "no")}}, asked: []string{get("child"), get("owner")}, err: true},
		{what: "its owner is known to be gone", graph: func(g *graph) { g.markAbsent(id("owner")) }, child: naming(owner), responses: map[string][]string{get("child"): {stored("child", "child", "7", nil, owner)}, "DELETE " + at + "child": {success}},
			asked: []string{get("child"), remove("Background", "7")}},
		{what: "its owner is gone, and it is to leave orphans", child: naming(owner), responses: map[string][]string{get("child"): {stored("child", "child", "7", []string{metav1.FinalizerOrphanDependents}, owner)}, get("owner"): {notThere}, "DELETE " + at + "child": {success}},
			asked: []string{get("child"), get("owner"), remove("Orphan", "7")}},
		{what: "its owner is gone, and it is to wait for its own", child: naming(owner), responses: map[string][]string{get("child"): {stored("child", "child", "7", foreground, owner)}, get("owner"): {notThere}, "DELETE " + at + "child": {success}},
			asked: []string{get("child"), get("owner"), remove("Foreground", "7")}},
		{what: "one owner is gone, one stays", child: naming(owner, ref("Thing", "other")), responses: map[string][]string{get("child"): {stored("child", "child", "7", nil, owner, ref("Thing", "other"))}, get("owner"): {notThere}, get("other"): {stored("other", "other", "1", nil)}, "PATCH " + at + "child": {stored("child", "child", "8", nil)}},
			asked: []string{get("child"), get("owner"), get("other"), patch("child", `{"metadata":{"ownerReferences":[{"$patch":"delete","uid":"owner"}],"uid":"child"}}`)}},
		{what: "one owner waits, one is gone, one stays", child: naming(owner, ref("Thing", "gone"), ref("Thing", "other")),
			responses: map[string][]string{get("child"): {stored("child", "child", "7", nil, owner, ref("Thing", "gone"), ref("Thing", "other"))}, get("owner"): {storedLeaving("owner", "owner", foreground...)}, get("gone"): {notThere}, get("other"): {stored("other", "other", "1", nil)}, "PATCH " + at + "child": {stored("child", "child", "8", nil)}},
			asked:     []string{get("child"), get("owner"), get("gone"), get("other"), patch("child", `{"metadata":{"ownerReferences":[{"$patch":"delete","uid":"gone"},{"$patch":"delete","uid":"owner"}],"uid":"child"}}`)}},
		{what: "its owner waits for it", child: naming(blocking("owner")), responses: map[string][]string{get("child"): {stored("child", "child", "7", nil, blocking("owner"))}, get("owner"): {storedLeaving("owner", "owner", foreground...)}, "DELETE " + at + "child": {success}},
			asked: []string{get("child"), get("owner"), remove("Background", "7")}},
		{what: "its owner is being deleted, but does not wait", child: naming(owner), responses: map[string][]string{get("child"): {stored("child", "child", "7", nil, owner)}, get("owner"): {storedLeaving("owner", "owner", "example.com/other")}}, asked: []string{get("child"), get("owner")}},
		{what: "its owner has the finalizer, but is not being deleted", child: naming(owner), responses: map[string][]string{get("child"): {stored("child", "child", "7", nil, owner)}, get("owner"): {stored("owner", "owner", "1", foreground)}}, asked: []string{get("child"), get("owner")}},
		{what: "its owner waits for it, and it has dependents", graph: func(g *graph) { g.observe(id("grandchild"), naming(ref("Thing", "child"))) }, child: naming(blocking("owner")),
			responses: map[string][]string{get("child"): {stored("child", "child", "7", nil, blocking("owner"))}, get("owner"): {storedLeaving("owner", "owner", foreground...)}, "DELETE " + at + "child": {success}},
			asked:     []string{get("child"), get("owner"), remove("Foreground", "7")}},
		{what: "its owner waits for it, and a dependent of its own waits, too", graph: func(g *graph) {
			waits := leaving(metav1.FinalizerDeleteDependents)
			waits.OwnerReferences = []metav1.OwnerReference{blocking("child")}
			g.observe(id("owner"), waits)
		}, child: naming(blocking("owner")),
			responses: map[string][]string{get("child"): {stored("child", "child", "7", nil, blocking("owner"))}, get("owner"): {storedLeaving("owner", "owner", foreground...)}, "PATCH " + at + "child": {stored("child", "child", "8", nil, ref("Thing", "owner"))}, "DELETE " + at + "child": {success}},
			asked:     []string{get("child"), get("owner"), patch("child", `{"metadata":{"ownerReferences":[{"blockOwnerDeletion":false,"uid":"owner"}],"uid":"child"}}`), remove("Foreground", "8")}},
		{what: "it is being deleted", child: leaving("example.com/other"), responses: nil, asked: nil},
		{what: "it waits, and nobody blocks it", child: leaving(metav1.FinalizerDeleteDependents), responses: map[string][]string{get("child"): {stored("child", "child", "7", []string{"x", metav1.FinalizerDeleteDependents})}, "PATCH " + at + "child": {stored("child", "child", "8", nil)}},
			asked: []string{get("child"), get("child"), patch("child", `{"metadata":{"finalizers":["x"],"resourceVersion":"7"}}`)}},
		{what: "it waits, and a dependent does not block it", graph: func(g *graph) { g.observe(id("grandchild"), naming(ref("Thing", "child"))) }, child: leaving(metav1.FinalizerDeleteDependents),
			responses: map[string][]string{get("child"): {stored("child", "child", "7", []string{metav1.FinalizerDeleteDependents})}, "PATCH " + at + "child": {stored("child", "child", "8", nil)}},
			asked:     []string{get("child"), get("child"), patch("child", `{"metadata":{"finalizers":[],"resourceVersion":"7"}}`)}},
		{what: "it waits for one that blocks it", graph: func(g *graph) { g.observe(id("grandchild"), naming(blocking("child"))) }, child: leaving(metav1.FinalizerDeleteDependents),
			responses: map[string][]string{get("child"): {stored("child", "child", "7", []string{metav1.FinalizerDeleteDependents})}}, asked: []string{get("child")}},
		{what: "somebody changed it, but not its owners", child: naming(owner), responses: map[string][]string{get("child"): {stored("child", "child", "7", nil, owner), stored("child", "child", "9", nil, owner)}, get("owner"): {notThere}, "DELETE " + at + "child": {conflict, success}},
			asked: []string{get("child"), get("owner"), remove("Background", "7"), get("child"), remove("Background", "")}},
		{what: "somebody gave it another owner", child: naming(owner), responses: map[string][]string{get("child"): {stored("child", "child", "7", nil, owner), stored("child", "child", "9", nil, ref("Thing", "other"))}, get("owner"): {notThere}, "DELETE " + at + "child": {conflict}},
			asked: []string{get("child"), get("owner"), remove("Background", "7"), get("child")}, err: true},
		{what: "somebody deleted it", child: naming(owner), responses: map[string][]string{get("child"): {stored("child", "child", "7", nil, owner)}, get("owner"): {notThere}, "DELETE " + at + "child": {notThere}},
			asked: []string{get("child"), get("owner"), remove("Background", "7")}, gone: true},
		{what: "somebody changed and deleted it", child: naming(owner), responses: map[string][]string{get("child"): {stored("child", "child", "7", nil, owner), notThere}, get("owner"): {notThere}, "DELETE " + at + "child": {conflict}},
			asked: []string{get("child"), get("owner"), remove("Background", "7"), get("child")}, gone: true},
		{what: "an owner of the cluster stays", child: naming(ref("Box", "box")), responses: map[string][]string{get("child"): {stored("child", "child", "7", nil, ref("Box", "box"))}, "GET /apis/example.com/v1/boxes/box": {stored("box", "box", "1", nil)}}, asked: []string{get("child"), "GET /apis/example.com/v1/boxes/box"}},
		{what: "an owner of the cluster is gone", child: naming(ref("Box", "box")), responses: map[string][]string{get("child"): {stored("child", "child", "7", nil, ref("Box", "box"))}, "DELETE " + at + "child": {success}}, asked: []string{get("child"), "GET /apis/example.com/v1/boxes/box", remove("Background", "7")}},
		{what: "an owner of a kind nobody knows", child: naming(ref("Gadget", "g")), responses: map[string][]string{get("child"): {stored("child", "child", "7", nil, ref("Gadget", "g"))}}, asked: []string{get("child")}, err: true},
	} {
		t.Run(test.what, func(t *testing.T) {
			g, heard := collector(t, test.responses)
			if test.graph != nil {
				test.graph(g.graph)
			}
			g.observe(id("child"), test.child)
			it, _ := g.snapshot("child")
			if err := g.attemptToDelete(t.Context(), it); (err != nil) != test.err {
				t.Errorf("%v", err)
			}
			var asked []string
			bodies := slices.Clone(heard.bodies)
			for _, request := range heard.asked {
				if !strings.Contains(request, "/v1/") {
					continue // discovery
				}
				if i := slices.IndexFunc(bodies, func(b string) bool { return strings.HasPrefix(b, request+" ") }); i >= 0 {
					request = strings.TrimSpace(bodies[i])
					bodies = slices.Delete(bodies, i, i+1)
				}
				asked = append(asked, request)
			}
			if !slices.Equal(asked, test.asked) {
				t.Errorf("asked\n%s\nwant\n%s", strings.Join(asked, "\n"), strings.Join(test.asked, "\n"))
			}
			if _, there := g.snapshot("child"); there == test.gone {
				t.Errorf("it is in the graph: %v", there)
			}
		})
	}
}

// TestOrphans: all dependents are released before their owner goes, and it stays as long as one is not.
func TestOrphans(t *testing.T) {
	const at = "/apis/example.com/v1/namespaces/work/things/"
	id := func(name string) identity {
		return identity{apiVersion: "example.com/v1", kind: "Thing", namespace: "work", name: name, uid: types.UID(name)}
	}
	ofOwner := metav1.OwnerReference{APIVersion: "example.com/v1", Kind: "Thing", Name: "owner", UID: "owner"}
	released, forbidden, notThere := stored("a", "a", "2", nil), refusal(403, metav1.StatusReasonForbidden, "no"), refusal(404, metav1.StatusReasonNotFound, "gone")
	holds := []string{metav1.FinalizerOrphanDependents}
	for _, test := range []struct {
		what    string
		answers []string // for a, b and the owner
		held    []string // the owner's finalizers
		patched []string
		err     bool
	}{
		{"all are released", []string{released, released, released}, holds, []string{"a", "b", "owner"}, false},
		{"one is gone", []string{notThere, released, released}, holds, []string{"a", "b", "owner"}, false},
		{"one cannot be released: the owner stays", []string{released, forbidden, released}, holds, []string{"a", "b"}, true},
		{"the owner is released already", []string{released, released, released}, nil, []string{"a", "b"}, false},
		{"the owner cannot be released", []string{released, released, forbidden}, holds, []string{"a", "b", "owner"}, true},
		{"the owner goes meanwhile", []string{released, released, notThere}, holds, []string{"a", "b", "owner"}, false},
	} {
		g, heard := collector(t, map[string][]string{"PATCH " + at + "a": {test.answers[0]}, "PATCH " + at + "b": {test.answers[1]}, "PATCH " + at + "owner": {test.answers[2]}, "GET " + at + "owner": {stored("owner", "owner", "1", test.held)}})
		g.observe(id("owner"), leaving(metav1.FinalizerOrphanDependents))
		g.observe(id("a"), naming(ofOwner))
		g.observe(id("b"), naming(ofOwner))
		it, _ := g.snapshot("owner")
		if err := g.releaseDependents(t.Context(), it); (err != nil) != test.err {
			t.Errorf("%s: %v", test.what, err)
		}
		var patched []string
		for _, request := range heard.asked {
			if name, ok := strings.CutPrefix(request, "PATCH "+at); ok {
				patched = append(patched, name)
			}
		}
		if owner := slices.Index(patched, "owner"); owner >= 0 && owner != len(patched)-1 {
			t.Errorf("%s: the owner goes before its dependents: %v", test.what, patched)
		}
		if slices.Sort(patched); !slices.Equal(patched, test.patched) {
			t.Errorf("%s: patched %v, want %v", test.what, patched, test.patched)
		}
	}
}

// TestManyOrphans: more than are released at once.
func TestManyOrphans(t *testing.T) {
	c := inprocess.Start(t, t.Context())
	run(t, c, GarbageCollector)
	owner := create(t, c, thing("default", "owner"))
	const orphans = 3*maxConcurrentReleases + 1
	for i := range orphans {
		create(t, c, thing("default", fmt.Sprint("orphan-", i), ownedBy(true, owner)...))
	}
	time.Sleep(100 * time.Millisecond) // the collector has seen them
	if err := c.Delete(t.Context(), owner, metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationOrphan)}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the owner is gone", func() bool { return gone[*corev1.ConfigMap](t, c, "default", "owner") })
	left := state(t, c, "default")
	for name, owners := range left {
		if len(owners) > 0 {
			t.Errorf("%s is still owned by %v", name, owners)
		}
	}
	if len(left) != orphans {
		t.Errorf("%d are left of %d", len(left), orphans)
	}
}

// TestRandomReferences gives objects references that are right, or wrong in kind, name, namespace or UID. Only right ones count: who has
// none of them, though it has references, goes, and so on; who stays has only right ones left.
func TestRandomReferences(t *testing.T) {
	c := inprocess.Start(t, t.Context())
	run(t, c, GarbageCollector)
	type object struct {
		kind, namespace, name string
		made                  kind.Object
		refs                  []metav1.OwnerReference
	}
	update := func(o *object) {
		next := o.made.DeepCopyObject().(kind.Object)
		next.SetOwnerReferences(o.refs)
		if _, err := c.Update(t.Context(), next, client.WriteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for seed := range uint64(15) {
		random := rand.New(rand.NewPCG(seed, 3))
		spaces := []string{fmt.Sprintf("left-%d", seed), fmt.Sprintf("right-%d", seed)}
		for _, name := range spaces {
			create(t, c, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
		}
		var objects []*object
		for i := range 4 + random.IntN(8) {
			o := &object{kind: []string{"ConfigMap", "Secret"}[random.IntN(2)], namespace: spaces[random.IntN(2)], name: fmt.Sprintf("%c", 'a'+i)}
			if meta := (metav1.ObjectMeta{Namespace: o.namespace, Name: o.name}); o.kind == "Secret" {
				o.made = create(t, c, &corev1.Secret{ObjectMeta: meta})
			} else {
				o.made = create(t, c, &corev1.ConfigMap{ObjectMeta: meta})
			}
			objects = append(objects, o)
		}
		alive := map[*object]bool{}
		for i, o := range objects {
			alive[o] = true
			for j, owner := range objects {
				if i == j || random.IntN(4) > 0 {
					continue
				}
				ref := metav1.OwnerReference{APIVersion: "v1", Kind: owner.kind, Name: owner.name, UID: owner.made.GetUID(), BlockOwnerDeletion: new(random.IntN(2) == 0)}
				switch random.IntN(12) {
				case 0:
					ref.Kind = map[string]string{"ConfigMap": "Secret", "Secret": "ConfigMap"}[ref.Kind]
				case 1:
					ref.Name = "else"
				case 2:
					ref.UID = types.UID(fmt.Sprintf("nobody-%d-%d-%d", seed, i, j))
				}
				o.refs = append(o.refs, ref)
			}
		}
		right := func(o *object, ref metav1.OwnerReference) bool {
			return slices.ContainsFunc(objects, func(owner *object) bool {
				return alive[owner] && owner.made.GetUID() == ref.UID && owner.kind == ref.Kind && owner.name == ref.Name && owner.namespace == o.namespace
			})
		}
		settle := func() {
			for again := true; again; {
				again = false
				for _, o := range objects {
					if alive[o] && len(o.refs) > 0 && !slices.ContainsFunc(o.refs, func(ref metav1.OwnerReference) bool { return right(o, ref) }) {
						alive[o], again = false, true
					}
				}
			}
		}
		words := func(name string, refs []metav1.OwnerReference) string {
			var owners []string
			for _, ref := range refs {
				owners = append(owners, ref.Kind+"/"+ref.Name)
			}
			slices.Sort(owners)
			return name + "→" + strings.Join(owners, ",")
		}
		check := func(what string) {
			settle()
			var want []string
			for _, o := range objects {
				if alive[o] {
					want = append(want, words(o.name, slices.DeleteFunc(slices.Clone(o.refs), func(ref metav1.OwnerReference) bool { return !right(o, ref) })))
				}
			}
			slices.Sort(want)
			var got []string
			defer func() {
				if t.Failed() {
					t.Logf("seed %d, %s: %v, want %v", seed, what, got, want)
				}
			}()
			eventually(t, fmt.Sprintf("seed %d: %s leaves %v", seed, what, want), func() bool {
				got = nil
				for _, namespace := range spaces {
					maps, _, err := client.For[*corev1.ConfigMap](c).List(t.Context(), namespace, client.Selector{})
					if err != nil {
						t.Fatal(err)
					}
					for _, m := range maps {
						got = append(got, words(m.Name, m.OwnerReferences))
					}
					secrets, _, err := client.For[*corev1.Secret](c).List(t.Context(), namespace, client.Selector{})
					if err != nil {
						t.Fatal(err)
					}
					for _, s := range secrets {
						got = append(got, words(s.Name, s.OwnerReferences))
					}
				}
				slices.Sort(got)
				return slices.Equal(got, want)
			})
		}
		for _, o := range objects {
			if len(o.refs) > 0 {
				update(o)
			}
		}
		check("the references themselves")
		for _, o := range objects {
			if alive[o] {
				if err := c.Delete(t.Context(), o.made, metav1.DeleteOptions{PropagationPolicy: new([]metav1.DeletionPropagation{metav1.DeletePropagationBackground, metav1.DeletePropagationForeground}[random.IntN(2)])}); err != nil {
					t.Fatal(err)
				}
				alive[o] = false
				check("deleting " + o.name)
				break
			}
		}
	}
}
