package cache

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"skiff/internal/kind"
	"skiff/internal/store/memory"
)

func entryOf(t testing.TB, pod *corev1.Pod) (*Entry, *podCodec) {
	t.Helper()
	codec := &podCodec{}
	stored, err := codec.Encode(pod)
	if err != nil {
		t.Fatal(err)
	}
	resource := podResource()
	resource.Codec = codec
	table := newTable(New(memory.New(), discardLog()), resource)
	return table.entry(podKey(pod.Namespace, pod.Name), stored, 7), codec
}

func TestStoredLabels(t *testing.T) {
	plain := newPod("default", "plain")
	plain.Labels = nil
	many := newPod("default", "many")
	many.Labels = map[string]string{"a": "1", "empty": "", "example.com/long": "value", "b": "2"}
	many.Annotations = map[string]string{"a": "not a label"}
	many.Generation = 1 << 40
	for _, pod := range []*corev1.Pod{plain, many, newPod("default", "one")} {
		entry, _ := entryOf(t, pod)
		labels, ok := storedLabels(entry.Stored())
		if !ok || !maps.Equal(labels, pod.Labels) {
			t.Errorf("%s: got %v, %v; want %v", pod.Name, labels, ok, pod.Labels)
		}
		for cut := range len(entry.Stored()) {
			storedLabels(entry.Stored()[:cut]) // must not panic
		}
	}
	for _, stored := range []string{"", "{}", "k8s:enc:aescbc", "k8s\x00\xff", "k8s\x00\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"} {
		if labels, ok := storedLabels([]byte(stored)); ok && labels != nil {
			t.Errorf("%q: got %v", stored, labels)
		}
	}
}

func FuzzStoredLabels(f *testing.F) {
	entry, _ := entryOf(f, newPod("default", "a"))
	f.Add(entry.Stored())
	f.Fuzz(func(t *testing.T, stored []byte) { storedLabels(stored) })
}

func TestLabelsWithoutDecoding(t *testing.T) {
	entry, codec := entryOf(t, newPod("default", "a"))
	for range 2 {
		if must(entry.Labels())["app"] != "a" {
			t.Errorf("labels %v", must(entry.Labels()))
		}
	}
	if n := codec.decoded.Load(); n != 0 {
		t.Errorf("%d decodes for labels", n)
	}
	for range 2 {
		if must(entry.Fields(t.Context()))["spec.nodeName"] != "node-1" {
			t.Errorf("fields %v", must(entry.Fields(t.Context())))
		}
	}
	if n := codec.decoded.Load(); n != 1 {
		t.Errorf("%d decodes for fields, want 1", n)
	}
}

func TestObjectDecodedOnceAndHeldWeakly(t *testing.T) {
	entry, codec := entryOf(t, newPod("default", "a"))
	objects := make([]any, 20)
	var wait sync.WaitGroup
	for i := range objects {
		wait.Go(func() {
			obj, err := entry.Object()
			if err != nil {
				t.Error(err)
			}
			objects[i] = obj
		})
	}
	wait.Wait()
	for _, obj := range objects {
		if obj != objects[0] || obj.(*corev1.Pod).ResourceVersion != "7" {
			t.Fatalf("readers got different objects")
		}
	}
	if n := codec.decoded.Load(); n != 1 {
		t.Errorf("%d decodes, want 1", n)
	}
	runtime.GC()
	if obj, _ := entry.Object(); obj != objects[0] {
		t.Error("an object in use was decoded again")
	}
	runtime.KeepAlive(objects)
	clear(objects)
	runtime.GC()
	if obj := entry.object.Load().value(); obj != nil {
		t.Error("an unused object is kept")
	}
	if obj, err := entry.Object(); err != nil || obj.GetName() != "a" {
		t.Errorf("decoding again: %v, %v", obj, err)
	}
}

func TestObjectError(t *testing.T) {
	entry, _ := entryOf(t, newPod("default", "a"))
	broken := entry.table.entry("/registry/pods/default/b", []byte("?"), 8)
	if _, err := broken.Object(); err == nil {
		t.Error("broken bytes decode")
	}
	if must(broken.Labels()) != nil || must(broken.Fields(t.Context())) != nil {
		t.Error("broken bytes have labels")
	}
}

func TestEncodingOnce(t *testing.T) {
	entry, _ := entryOf(t, newPod("default", "a"))
	var made atomic.Int64
	ids := []EncodingID{{"v1", "json"}, {"v1", "protobuf"}, {"v1beta1", "json"}}
	var wait sync.WaitGroup
	for range 20 {
		wait.Go(func() {
			for _, id := range ids {
				got, err := entry.Encoding(id, func(e *Entry) ([]byte, error) {
					made.Add(1)
					return []byte(id.Version + id.Format), nil
				})
				if err != nil || string(got) != id.Version+id.Format {
					t.Errorf("%v: got %q, %v", id, got, err)
				}
			}
		})
	}
	wait.Wait()
	if made.Load() != int64(len(ids)) {
		t.Errorf("%d encodings made, want %d", made.Load(), len(ids))
	}
	failure := errors.New("failure")
	for range 2 {
		if _, err := entry.Encoding(EncodingID{Format: "bad"}, func(*Entry) ([]byte, error) { return nil, failure }); err != failure {
			t.Errorf("got %v", err)
		}
	}
}

// An encoding that is requested once is not kept; one that is requested again is, until it is not used for a while.
func TestRepeatedEncoding(t *testing.T) {
	entry, _ := entryOf(t, newPod("default", "a"))
	id := EncodingID{Version: "v1", Format: "json"}
	made := 0
	read := func() {
		t.Helper()
		body, err := entry.RepeatedEncoding(id, func(*Entry) ([]byte, error) { made++; return []byte("body"), nil })
		if err != nil || string(body) != "body" {
			t.Errorf("%q, %v", body, err)
		}
	}
	for _, want := range []int{1, 2, 2, 2} {
		if read(); made != want || entry.HasEncoding(id) != (made > 1) {
			t.Errorf("made %d times, want %d; kept: %t", made, want, entry.HasEncoding(id))
		}
	}
	entry.dropMemos(entry.table.cache.epoch.Load(), true)
	for _, want := range []int{3, 4, 4} {
		if read(); made != want {
			t.Errorf("made %d times after it was dropped, want %d", made, want)
		}
	}
}

func TestForget(t *testing.T) {
	entry, _ := entryOf(t, newPod("default", "a"))
	cache := entry.table.cache
	ids := []EncodingID{{"v1", "1"}, {"v1", "2"}, {"v1", "3"}, {"v1", "4"}}
	made := map[EncodingID]int{}
	ask := func(ids ...EncodingID) {
		for _, id := range ids {
			entry.Encoding(id, func(*Entry) ([]byte, error) { made[id]++; return make([]byte, 100), nil })
		}
	}
	ask(ids...)
	if kept := entry.dropMemos(cache.epoch.Add(1), false); kept != 400 {
		t.Errorf("%d bytes stay after one epoch, want 400", kept)
	}
	ask(ids[1], ids[2])
	if kept := entry.dropMemos(cache.epoch.Add(1), false); kept != 200 {
		t.Errorf("%d bytes stay after two epochs, want those of the two that were used", kept)
	}
	ask(ids...)
	if made[ids[0]] != 2 || made[ids[1]] != 1 || made[ids[2]] != 1 || made[ids[3]] != 2 {
		t.Errorf("made %v", made)
	}
	if kept := entry.dropMemos(cache.epoch.Load(), true); kept != 0 || entry.memos.Load() != nil {
		t.Errorf("%d bytes stay of nothing", kept)
	}
}

// An entry that was superseded keeps no new encodings of lists, and none is kept beyond the budget.
func TestListEncoding(t *testing.T) {
	story(t, func(t *testing.T, _ *shaky, c *Cache, pods *Table) {
		old := mustCreate(t, pods, "a")
		made := 0
		encode := func(e *Entry, format string) {
			t.Helper()
			got, err := e.ListEncoding(EncodingID{"v1", format}, func(*Entry) ([]byte, error) { made++; return []byte(format), nil })
			if string(got) != format || err != nil {
				t.Errorf("got %q, %v", got, err)
			}
		}
		encode(old, "first")
		encode(old, "first")
		changed := newPod("default", "a")
		changed.Spec.NodeName = "node-2"
		entry, err := pods.Update(t.Context(), old.Key(), changed, 0, old.Revision())
		if err != nil {
			t.Fatal(err)
		}
		encode(old, "first")
		if made != 1 {
			t.Errorf("made %d times, want once", made)
		}
		encode(old, "second")
		encode(old, "second")
		if made != 3 || c.memoBytes.Load() != int64(len("first")) {
			t.Errorf("made %d times, want again for each list; %d bytes are kept", made, c.memoBytes.Load())
		}
		c.memoBytes.Add(memoBudget)
		encode(entry, "third")
		encode(entry, "third")
		if made != 5 || entry.memos.Load() != nil {
			t.Errorf("made %d times, want again for each list", made)
		}
		c.memoBytes.Add(-memoBudget)
		encode(entry, "third")
		encode(entry, "third")
		if made != 6 {
			t.Errorf("made %d times, want once more", made)
		}
	})
}

// Memos may be dropped while they are in use.
func TestDropMemosWhileUsed(t *testing.T) {
	entry, _ := entryOf(t, newPod("default", "a"))
	stop := make(chan struct{})
	var wait sync.WaitGroup
	for g := range 4 {
		wait.Go(func() {
			for i := g; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				id := EncodingID{Format: string(rune('a' + i%6))}
				got, _ := entry.Encoding(id, func(*Entry) ([]byte, error) { return []byte(id.Format), nil })
				if string(got) != id.Format || must(entry.Labels())["app"] != "a" {
					t.Errorf("got %q for %v", got, id)
				}
			}
		})
	}
	for i := range 2000 {
		entry.dropMemos(entry.table.cache.epoch.Add(1), i%2 == 0)
		runtime.Gosched()
	}
	close(stop)
	wait.Wait()
}

// A panic while an encoding is made is an error for everybody who requests it, never an empty encoding.
func TestPanicInMemo(t *testing.T) {
	resource := podResource()
	resource.Fields = func(context.Context, []kind.Object) ([]map[string]string, error) { panic("oh") }
	c, tables := start(t, memory.New(), resource)
	entry := mustCreate(t, tables[0], "a")
	id := EncodingID{Format: "broken"}
	for i := range 3 {
		got, err := entry.Encoding(id, func(*Entry) ([]byte, error) { panic("oh") })
		if len(got) != 0 || err == nil || !strings.Contains(err.Error(), "oh") {
			t.Errorf("request %d gets %q, %v", i, got, err)
		}
		if fields, err := entry.Fields(t.Context()); fields != nil || err == nil {
			t.Errorf("request %d gets fields %v, %v", i, fields, err)
		}
	}
	if c.Panics() != 2 {
		t.Errorf("%d panics counted", c.Panics())
	}
	var ended sync.WaitGroup
	ended.Go(func() {
		entry.Encoding(EncodingID{Format: "ended"}, func(*Entry) ([]byte, error) { runtime.Goexit(); return nil, nil })
	})
	ended.Wait()
	if got, err := entry.Encoding(EncodingID{Format: "ended"}, nil); err == nil {
		t.Errorf("an encoding whose maker ended its goroutine is %q", got)
	}
	if got, err := entry.Encoding(EncodingID{Format: "good"}, func(*Entry) ([]byte, error) { return []byte("good"), nil }); string(got) != "good" || err != nil {
		t.Errorf("%q %v", got, err)
	}
}

// A reader that waits for a value whose maker's request ends makes it itself.
func TestAbandonedEncoding(t *testing.T) {
	_, tables := start(t, memory.New(), podResource())
	entry := must(tables[0].Create(t.Context(), podKey("ns", "a"), newPod("ns", "a"), 0))
	id := EncodingID{Format: "test"}
	making, abandon := make(chan struct{}), make(chan struct{})
	first := make(chan error, 1)
	go func() {
		_, err := entry.Encoding(id, func(*Entry) ([]byte, error) {
			close(making)
			<-abandon
			return nil, fmt.Errorf("%w: client disconnected", ErrAbandoned)
		})
		first <- err
	}()
	<-making
	var made atomic.Int32
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			text, err := entry.Encoding(id, func(*Entry) ([]byte, error) {
				made.Add(1)
				return []byte("x"), nil
			})
			if string(text) != "x" || err != nil {
				t.Errorf("a second reader got %q, %v", text, err)
			}
		})
	}
	close(abandon)
	readers.Wait()
	if err := <-first; !errors.Is(err, ErrAbandoned) {
		t.Errorf("the first reader got %v", err)
	}
	if made.Load() != 1 {
		t.Errorf("the encoding was made %d times", made.Load())
	}
}

// The fields of several entries are made together, once, and kept.
func TestFieldsOf(t *testing.T) {
	resource := podResource()
	var calls [][]string
	fields := resource.Fields
	resource.Fields = func(ctx context.Context, objs []kind.Object) ([]map[string]string, error) {
		var names []string
		for _, obj := range objs {
			names = append(names, obj.GetName())
		}
		calls = append(calls, names)
		return fields(ctx, objs)
	}
	_, tables := start(t, memory.New(), resource)
	var entries []*Entry
	for _, name := range []string{"a", "b", "c"} {
		pod := newPod("ns", name)
		pod.Spec.NodeName = "node-" + name
		entries = append(entries, must(tables[0].Create(t.Context(), podKey("ns", name), pod, 0)))
	}
	must(entries[1].Fields(t.Context()))
	for range 2 {
		for i, values := range must(FieldsOf(t.Context(), entries)) {
			if want := "node-" + string(rune('a'+i)); values["spec.nodeName"] != want {
				t.Errorf("entry %d: %v", i, values)
			}
		}
	}
	if got := fmt.Sprint(calls); got != "[[b] [a c]]" {
		t.Errorf("calls: %s", got)
	}
}
