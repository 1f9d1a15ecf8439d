package cache

import (
	"bytes"
	"context"
	"errors"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"skiff/internal/store"
	"skiff/internal/store/memory"
)

// sealing is a store that seals values by writing something before them.
type sealing struct {
	store.Store
	locked, stale atomic.Bool
}

var seal = []byte("k8s:enc:test:")

var errLocked = errors.New("nobody has the key")

func (s *sealing) Open(_ context.Context, _ string, value []byte) ([]byte, error) {
	if s.locked.Load() {
		return nil, &store.SealError{Err: errLocked}
	}
	return bytes.TrimPrefix(value, seal), nil
}

func (s *sealing) Stale(context.Context, string) (bool, error) { return s.stale.Load(), nil }

func TestSealedEntryIsOpenedWhenItCanBe(t *testing.T) {
	inner := &sealing{Store: memory.New()}
	value, err := podResource().Codec.Encode(newPod("ns", "a"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := inner.Create(t.Context(), podKey("ns", "a"), append(bytes.Clone(seal), value...), 0); err != nil {
		t.Fatal(err)
	}
	inner.locked.Store(true)
	_, tables := start(t, inner, podResource())
	table := tables[0]
	// The cache runs, the entry is there, and others can be written and read.
	if _, err := table.Create(t.Context(), podKey("ns", "b"), newPod("ns", "b"), 0); err != nil {
		t.Fatal(err)
	}
	entry := table.Get(podKey("ns", "a"))
	encoding := func() ([]byte, error) {
		return entry.Encoding(EncodingID{Format: "name"}, func(e *Entry) ([]byte, error) {
			obj, err := e.Object()
			if err != nil {
				return nil, err
			}
			return []byte(obj.GetName()), nil
		})
	}
	var sealed *store.SealError
	if _, err := entry.Object(); !errors.As(err, &sealed) || !errors.Is(err, errLocked) {
		t.Error(err)
	}
	if _, err := encoding(); !errors.Is(err, errLocked) || entry.Labels() != nil || entry.Fields() != nil {
		t.Error(err)
	}
	inner.locked.Store(false)
	obj, err := entry.Object()
	if err != nil || obj.(*corev1.Pod).Name != "a" {
		t.Error(obj, err)
	}
	if text, err := encoding(); err != nil || string(text) != "a" || entry.Labels()["app"] != "a" || entry.Fields()["spec.nodeName"] != "node-1" {
		t.Errorf("%q %v", text, err)
	}
}

func TestSealedValueWithoutConfiguration(t *testing.T) {
	inner := memory.New()
	if _, err := inner.Create(t.Context(), podKey("ns", "a"), []byte("k8s:enc:aescbc:v1:key1:x"), 0); err != nil {
		t.Fatal(err)
	}
	_, tables := start(t, inner, podResource())
	if _, err := tables[0].Get(podKey("ns", "a")).Object(); !errors.Is(err, store.ErrNotConfigured) {
		t.Error(err)
	}
}

func TestStaleValueIsWrittenAgain(t *testing.T) {
	inner := &sealing{Store: memory.New()}
	_, tables := start(t, inner, podResource())
	first, err := tables[0].Create(t.Context(), podKey("ns", "a"), newPod("ns", "a"), 0)
	if err != nil {
		t.Fatal(err)
	}
	same, err := tables[0].Update(t.Context(), podKey("ns", "a"), newPod("ns", "a"), 0, first.Revision())
	if err != nil || same != first {
		t.Errorf("%v %v", same, err)
	}
	inner.stale.Store(true)
	again, err := tables[0].Update(t.Context(), podKey("ns", "a"), newPod("ns", "a"), 0, first.Revision())
	if err != nil || again.Revision() <= first.Revision() {
		t.Errorf("%v %v", again, err)
	}
}
