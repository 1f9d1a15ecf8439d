package apiserver

import (
	"fmt"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/fields"
	apiwatch "k8s.io/apimachinery/pkg/watch"

	"skiff/internal/apiserver/authn"
	"skiff/internal/kind"
)

// counting counts how often a selector is applied.
type counting struct {
	fields.Selector
	count *atomic.Int64
}

func (c counting) Matches(set fields.Fields) bool {
	c.count.Add(1)
	return c.Selector.Matches(set)
}

// DeepCopySelector implements fields.Selector.
func (c counting) DeepCopySelector() fields.Selector { return c }

// A change of a pod is matched with the selectors of the watchers of its own node only.
func TestPodUpdateConcernsItsNode(t *testing.T) {
	s := newTestServer(t)
	const nodes = 3000
	local := s.Local(authn.User{Username: "system:nodes"})
	var mine, others atomic.Int64
	gvr := corev1.SchemeGroupVersion.WithResource("pods")
	version := fmt.Sprint(s.config.Cache.Revision())
	var watches []apiwatch.Interface
	for i := range nodes {
		count := &others
		if i == 7 {
			count = &mine
		}
		selector := counting{fields.OneTermEqualSelector("spec.nodeName", fmt.Sprint("node-", i)), count}
		w, err := local.Watch(t.Context(), gvr, "", &internalversion.ListOptions{FieldSelector: selector, ResourceVersion: version})
		if err != nil {
			t.Fatal(err)
		}
		watches = append(watches, w)
	}
	s.add("pods", pod("ns", "a", "node-7"))
	const updates = 20
	for i := range updates {
		s.change("pods", "ns", "a", func(obj kind.Object) { obj.SetAnnotations(map[string]string{"n": fmt.Sprint(i)}) })
	}
	s.remove("pods", "ns", "a")
	s.add("pods", pod("ns", "b", "node-8")) // the last event of another node
	for i := range updates + 2 {
		event := <-watches[7].ResultChan()
		want := apiwatch.Modified
		switch i {
		case 0:
			want = apiwatch.Added
		case updates + 1:
			want = apiwatch.Deleted
		}
		if event.Type != want || event.Object.(*corev1.Pod).Name != "a" {
			t.Errorf("event %d is %s %v", i, event.Type, event.Object)
		}
	}
	if event := <-watches[8].ResultChan(); event.Object.(*corev1.Pod).Name != "b" {
		t.Errorf("another node's watcher gets %v", event.Object)
	}
	var ended sync.WaitGroup
	for _, w := range watches {
		w.Stop()
		ended.Go(func() {
			for range w.ResultChan() {
			}
		})
	}
	ended.Wait()
	// An event is matched in its new and in its old state.
	if mine.Load() != 2*(updates+1) || others.Load() != 1 {
		t.Errorf("%d selectors of the node and %d of others were applied", mine.Load(), others.Load())
	}
}

// The indexed field is read from the stored bytes as the field selector reads it from the object.
func TestStoredIndex(t *testing.T) {
	for _, node := range []string{"", "node-1", strings.Repeat("n", 253)} {
		s := newTestServer(t)
		entry := s.add("pods", pod("ns", "a", node))
		if value, ok := s.find("pods").table.Resource().Index(entry.Stored()); value != node || !ok {
			t.Errorf("indexed as %q, %v; want %q", value, ok, node)
		}
	}
	for path, want := range map[string]string{
		"spec.nodeName": "[2 10]", "metadata.name": "[1 1]", "spec.hostNetwork": "no protobuf encoding as bytes", "spec": "is not a string",
		"spec.none": "has no field none", "spec.nodeName.x": "is not a struct",
	} {
		got, err := protobufPath(reflect.TypeFor[*corev1.Pod](), strings.Split(path, "."))
		if text := fmt.Sprint(got, err); !strings.Contains(text, want) {
			t.Errorf("%s: %s, want %s", path, text, want)
		}
	}
}
