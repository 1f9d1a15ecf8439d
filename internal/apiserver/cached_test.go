package apiserver

import (
	"fmt"
	"runtime"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"skiff/internal/store/cache"
	"skiff/internal/store/memory"
)

// Objects that a selector does not match are not decoded.
func TestCachedDecodesMatches(t *testing.T) {
	selector := labels.SelectorFromSet(labels.Set{"service": "hook"})
	allocations := func(others int) float64 {
		s := newTestServer(t)
		for i := range others {
			s.add("configmaps", configMap("team", fmt.Sprintf("other-%d", i), "service=other"))
		}
		s.add("configmaps", configMap("team", "matching", "service=hook"))
		s.add("configmaps", configMap("default", "matching", "service=hook"))
		list := func() {
			found, err := s.Cached().List(corev1.Resource("configmaps"), "team", selector)
			if err != nil || len(found) != 1 {
				t.Fatalf("%d objects, error %v", len(found), err)
			}
			// Decoded objects are kept only while they are used.
			runtime.GC()
			runtime.GC()
		}
		list() // parses the labels, once
		return testing.AllocsPerRun(5, list)
	}
	of50, of200 := allocations(50), allocations(200)
	if of200 > of50+20 {
		t.Errorf("%v allocations beside 50 objects that do not match, %v beside 200", of50, of200)
	}
}

// A cache that is not loaded has nothing to decide with: it is not an empty one.
func TestCachedNotLoaded(t *testing.T) {
	config := testConfig()
	config.Cache = cache.New(memory.New(), nil)
	s, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	if found, err := s.Cached().List(corev1.Resource("configmaps"), "", nil); err == nil {
		t.Errorf("%d objects", len(found))
	}
	if obj, err := s.Cached().Get(corev1.Resource("configmaps"), "team", "c"); err == nil {
		t.Errorf("%v", obj)
	}
}
