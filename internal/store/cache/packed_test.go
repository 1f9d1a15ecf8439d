package cache

import (
	"bytes"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"weak"

	corev1 "k8s.io/api/core/v1"

	"skiff/internal/kind"
	"skiff/internal/store/memory"
)

// largePod has an annotation of about 60 KB that can be compressed.
func largePod(name string) *corev1.Pod {
	pod := newPod("default", name)
	var text strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&text, "Line %d of a text that is stored with the object.\n", i)
	}
	pod.Annotations = map[string]string{"text": text.String()}
	return pod
}

func packedOf(e *Entry) *packed {
	if replaced := e.replacement.Load(); replaced != nil {
		return replaced.packed
	}
	return nil
}

func TestPackedBytesAreHeldWeakly(t *testing.T) {
	entry, _ := entryOf(t, largePod("a"))
	want, err := (&podCodec{}).Encode(largePod("a"))
	if err != nil {
		t.Fatal(err)
	}
	p := packedOf(entry)
	if p == nil || entry.StoredSize() != len(want) || entry.keptSize() > len(want)/4 {
		t.Fatalf("%d of %d bytes are kept", entry.keptSize(), len(want))
	}
	func() {
		first, second := entry.Stored(), entry.Stored()
		if !bytes.Equal(first, want) || &first[0] != &second[0] {
			t.Error("readers at the same time do not share the bytes")
		}
	}()
	runtime.GC()
	if p.plain.Load().Value() != nil {
		t.Error("unused bytes are kept")
	}
	if value, err := entry.Value(); err != nil || !bytes.Equal(value, want) {
		t.Errorf("bytes differ after they were compressed, %v", err)
	}
	if obj, err := entry.Object(); err != nil || obj.GetAnnotations()["text"] != largePod("a").Annotations["text"] {
		t.Errorf("object differs after it was compressed, %v", err)
	}
	if !entry.hasValue(want) || entry.hasValue(want[1:]) || entry.encrypted() {
		t.Error("an entry is not compared by its bytes")
	}
}

func TestWhatIsPacked(t *testing.T) {
	table := newTable(New(memory.New(), discardLog()), podResource())
	for _, test := range []struct {
		name   string
		stored string
		packed bool
	}{
		{"small", strings.Repeat("x", minPackedBytes-1), false},
		{"large", strings.Repeat("x", minPackedBytes), true},
		{"incompressible", incompressible(minPackedBytes), false},
		{"encrypted", "k8s:enc:aescbc:v1:" + strings.Repeat("x", minPackedBytes), false},
		{"empty", "", false},
	} {
		entry := table.entry(podKey("default", "a"), []byte(test.stored), 7)
		kept := len(test.stored)
		if test.packed {
			kept = len(packedOf(entry).compressed)
		}
		if entry.isPacked() != test.packed || string(entry.Stored()) != test.stored || entry.keptSize() != kept {
			t.Errorf("%s: packed %v with %d bytes", test.name, entry.isPacked(), entry.keptSize())
		}
	}
}

// Neither the watch feed nor history unpack anything, and history counts what it keeps.
func TestPackedValuesInHistory(t *testing.T) {
	c, tables := start(t, memory.New(), podResource())
	pods := tables[0]
	created, err := pods.Create(t.Context(), podKey("default", "a"), largePod("a"), 0)
	if err != nil {
		t.Fatal(err)
	}
	same, err := pods.Update(t.Context(), created.Key(), largePod("a"), 0, created.Revision())
	if err != nil || same != created {
		t.Errorf("an unchanged object was written: %v", err)
	}
	changed := largePod("a")
	changed.Labels["app"] = "changed"
	changed.Spec.NodeName = "node-2"
	updated, err := pods.Update(t.Context(), created.Key(), changed, 0, created.Revision())
	if err != nil {
		t.Fatal(err)
	}
	deleted, err := pods.Delete(t.Context(), created.Key(), updated.Revision())
	if err != nil {
		t.Fatal(err)
	}
	if packedOf(deleted) == nil || packedOf(deleted) != packedOf(updated) {
		t.Error("the last state of a deleted object was compressed again")
	}
	if total, _ := heldBytes(c); total != created.keptSize()+updated.keptSize() || total > created.StoredSize()/2 {
		t.Errorf("history counts %d bytes", total)
	}
	for entry, node := range map[*Entry]string{created: "node-1", updated: "node-2", deleted: "node-2"} {
		if value, ok := entry.indexValue(); !ok || value != node {
			t.Errorf("indexed as %q %v, want %q", value, ok, node)
		}
	}
	evictAll(c, pods)
	if total, _ := heldBytes(c); total != 0 || created.Stored() != nil || deleted.Stored() != nil {
		t.Errorf("%d bytes are held", total)
	}
	for entry, app := range map[*Entry]string{created: "a", updated: "changed", deleted: "changed"} {
		entry.object.Store(nil)
		var obj kind.Object
		if obj, err = entry.Object(); err != nil || obj.GetLabels()["app"] != app || obj.GetResourceVersion() != fmt.Sprint(entry.Revision()) {
			t.Errorf("%v %v", obj, err)
		}
		if value, ok := entry.indexValue(); !ok || value == "" {
			t.Errorf("indexed as %q %v", value, ok)
		}
	}
}

// The labels of a large object are kept, also if it has none: finding that again costs more than a memo.
func TestLabelsOfPackedEntry(t *testing.T) {
	pod := largePod("a")
	pod.Labels = nil
	entry, codec := entryOf(t, pod)
	for range 2 {
		if labels := must(entry.Labels()); len(labels) != 0 {
			t.Errorf("labels %v", labels)
		}
	}
	if entry.findMemo(labelsID) == nil || codec.decoded.Load() != 0 {
		t.Errorf("labels are not kept, %d decodes", codec.decoded.Load())
	}
}

// BenchmarkPack is what a large value costs besides its write, and what the first reader after a while pays.
func BenchmarkPack(b *testing.B) {
	stored, err := (&podCodec{}).Encode(largePod("a"))
	if err != nil {
		b.Fatal(err)
	}
	b.Run("pack", func(b *testing.B) {
		b.SetBytes(int64(len(stored)))
		b.ReportAllocs()
		for b.Loop() {
			pack(stored)
		}
		b.ReportMetric(float64(len(pack(stored).compressed)), "bytes")
	})
	b.Run("unpack", func(b *testing.B) {
		b.SetBytes(int64(len(stored)))
		b.ReportAllocs()
		p := pack(bytes.Clone(stored))
		for b.Loop() {
			p.plain.Store(&weak.Pointer[byte]{})
			p.unpack()
		}
	})
}
