package apiserver

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"skiff/internal/kind"
)

// gadgetKind is a custom kind of its own plural.
func gadgetKind(plural string) *kind.Kind {
	gvk := schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: strings.ToUpper(plural[:1]) + plural[1:]}
	k := kind.Of(kind.Definition[*unstructured.Unstructured]{
		GVK: gvk, Plural: plural, Prefix: "example.com/" + plural, Namespaced: true, List: &unstructured.UnstructuredList{},
	})
	k.New = func() kind.Object {
		u := &unstructured.Unstructured{}
		u.SetGroupVersionKind(gvk)
		return u
	}
	return k
}

func TestReplacedKind(t *testing.T) {
	s := newTestServer(t)
	first := widgetKind()
	if err := s.AddKind(first); err != nil {
		t.Fatal(err)
	}
	s.add("widgets.example.com", widget("a"))
	const path = "/apis/example.com/v1/widgets"
	watching := s.watch(path + "?watch=true&resourceVersion=0")
	watching.expect("ADDED a@2")

	// What does not concern objects changes under the watch.
	second := widgetKind()
	second.DiscoveryVerbs = []string{"get"}
	if err := s.UpdateKind(first, second); err != nil {
		t.Fatal(err)
	}
	var list metav1.APIResourceList
	s.get("/apis/example.com/v1").into(&list)
	if len(list.APIResources) != 1 || list.APIResources[0].Verbs.String() != "[get]" {
		t.Errorf("discovery has %+v", list.APIResources)
	}
	s.add("widgets.example.com", widget("b"))
	watching.expect("ADDED b@3")

	// Another schema ends the watch; the objects are there without a gap.
	third := widgetKind()
	third.Columns, third.Row = defaultColumns, defaultRow
	if err := s.ReplaceKind(second, third, true); err != nil {
		t.Fatal(err)
	}
	watching.expectEnd()
	if got := s.get(path); got.code != http.StatusOK || strings.Count(string(got.body), `"kind":"Widget"`) != 2 {
		t.Errorf("%d %s", got.code, got.body)
	}
	for _, wrong := range []*kind.Kind{first, second, s.find("pods").kind} {
		if s.RemoveKind(wrong) == nil || s.UpdateKind(wrong, widgetKind()) == nil || s.ReplaceKind(wrong, widgetKind(), true) == nil {
			t.Errorf("%s was not added and was changed", wrong.Plural)
		}
	}
	if err := s.RemoveKind(third); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{path, "/apis/example.com/v1", "/apis/example.com"} {
		if got := s.get(path); got.code != http.StatusNotFound {
			t.Errorf("%s: %d %s", path, got.code, got.body)
		}
	}
}

// A kind that is served before discovery lists it.
func TestUndiscoveredKind(t *testing.T) {
	s := newTestServer(t)
	hidden := widgetKind()
	hidden.DiscoveryVerbs = []string{}
	if err := s.AddKind(hidden); err != nil {
		t.Fatal(err)
	}
	if got := s.get("/apis/example.com/v1/widgets"); got.code != http.StatusOK {
		t.Errorf("%d %s", got.code, got.body)
	}
	if got := s.get("/apis/example.com/v1"); got.code != http.StatusNotFound {
		t.Errorf("%d %s", got.code, got.body)
	}
	if body := string(s.get("/apis").body); strings.Contains(body, "example.com") {
		t.Errorf("discovery has %s", body)
	}
}

// Two kinds may have the same name for a while, because a definition gets the names of another one before that one's kind is removed. Then the kind that
// remains is found.
func TestKindsOfOneName(t *testing.T) {
	s := newTestServer(t)
	former, next := gadgetKind("gadgets"), widgetKind()
	former.GVK, former.Versions = next.GVK, next.Versions
	for _, k := range []*kind.Kind{former, next} {
		if err := s.AddKind(k); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.RemoveKind(former); err != nil {
		t.Fatal(err)
	}
	if found, _ := s.KindOf(next.GVK); found != next {
		t.Errorf("the kind is %v", found)
	}
	if err := s.RemoveKind(next); err != nil {
		t.Fatal(err)
	}
	if found, _ := s.KindOf(next.GVK); found != nil {
		t.Errorf("a removed kind is found: %v", found)
	}
}

// While a kind is replaced, those who name its objects by group and resource find them in the storage version.
func TestStorageVersionDuringChange(t *testing.T) {
	s := newTestServer(t)
	twoVersions := func() *kind.Kind {
		k := gadgetKind("gadgets")
		preferred := kind.Version{GVK: k.GVK}
		preferred.GVK.Version = "v2"
		k.Versions = append([]kind.Version{preferred}, k.Versions...)
		return k
	}
	current := twoVersions()
	if err := s.AddKind(current); err != nil {
		t.Fatal(err)
	}
	gr := current.GroupResource()
	var stop atomic.Bool
	var reading sync.WaitGroup
	reading.Go(func() {
		for !stop.Load() {
			if res := s.catalog.findStored(gr); !res.stored() {
				t.Errorf("found in version %s", res.gvr.Version)
				return
			}
		}
	})
	for range 5000 {
		next := twoVersions()
		if err := s.UpdateKind(current, next); err != nil {
			t.Error(err)
			break
		}
		current = next
	}
	stop.Store(true)
	reading.Wait()
}

// A kind cannot take the objects or the path of a built-in one.
func TestKindOfBuiltInResource(t *testing.T) {
	s := newTestServer(t)
	for _, k := range readKinds() {
		overlapping := *k
		if err := s.AddKind(&overlapping); err == nil {
			t.Errorf("%s is served twice", k.Plural)
		}
		// A definition may name a version that the server does not have, and is stored elsewhere.
		custom := gadgetKind(k.Plural)
		custom.GVK.Group, custom.GVK.Version, custom.Plural, custom.Prefix = k.GVK.Group, "v9", k.Plural, k.GVK.Group+"/"+k.Plural
		custom.Versions = []kind.Version{{GVK: custom.GVK}}
		if err := s.AddKind(custom); err == nil {
			t.Errorf("%s is a custom resource too", k.GroupResource())
		}
	}
}

// Adding a kind costs the same with one and with hundreds of kinds, also in one group.
func TestCostOfAddingKinds(t *testing.T) {
	s := newTestServer(t)
	next := 0
	add := func() {
		next++
		if err := s.AddKind(gadgetKind(fmt.Sprintf("gadget%d", next))); err != nil {
			t.Fatal(err)
		}
	}
	add()
	before := testing.AllocsPerRun(20, add)
	for range 400 {
		add()
	}
	after := testing.AllocsPerRun(20, add)
	if after > 2*before {
		t.Errorf("adding a kind takes %.0f allocations, and %.0f with 400 others", before, after)
	}
	var list metav1.APIResourceList
	s.get("/apis/example.com/v1").into(&list)
	if len(list.APIResources) != next {
		t.Errorf("discovery has %d of %d kinds", len(list.APIResources), next)
	}
}

func BenchmarkAddKind(b *testing.B) {
	for _, others := range []int{0, 500, 4000} {
		b.Run(fmt.Sprintf("others=%d", others), func(b *testing.B) {
			s := newTestServer(b)
			for i := range others {
				if err := s.AddKind(gadgetKind(fmt.Sprintf("gadget%d", i))); err != nil {
					b.Fatal(err)
				}
			}
			k := gadgetKind("more")
			b.ReportAllocs()
			for b.Loop() {
				if err := s.AddKind(k); err != nil {
					b.Fatal(err)
				}
				if err := s.RemoveKind(k); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
