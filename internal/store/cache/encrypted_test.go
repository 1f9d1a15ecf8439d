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

// encrypting is a store that "encrypts" values with a prefix.
type encrypting struct {
	store.Store
	failing, stale atomic.Bool
}

var testPrefix = []byte("k8s:enc:test:")

var _ store.Decrypter = (*encrypting)(nil)

var errNoKey = errors.New("no key")

func (s *encrypting) Decrypt(_ context.Context, _ string, value []byte) ([]byte, error) {
	if s.failing.Load() {
		return nil, &store.EncryptionError{Err: errNoKey}
	}
	return bytes.TrimPrefix(value, testPrefix), nil
}

func (s *encrypting) Stale(context.Context, string) (bool, error) { return s.stale.Load(), nil }

func TestEntryIsDecryptedLater(t *testing.T) {
	inner := &encrypting{Store: memory.New()}
	value, err := podResource().Codec.Encode(newPod("ns", "a"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := inner.Create(t.Context(), podKey("ns", "a"), append(bytes.Clone(testPrefix), value...), 0); err != nil {
		t.Fatal(err)
	}
	inner.failing.Store(true)
	_, tables := start(t, inner, podResource())
	table := tables[0]
	// The cache runs, the entry exists, and other objects can be written and read.
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
	var encrypted *store.EncryptionError
	if _, err := entry.Object(); !errors.As(err, &encrypted) || !errors.Is(err, errNoKey) {
		t.Error(err)
	}
	if _, err := encoding(); !errors.Is(err, errNoKey) || must(entry.Labels()) != nil || must(entry.Fields(t.Context())) != nil {
		t.Error(err)
	}
	inner.failing.Store(false)
	obj, err := entry.Object()
	if err != nil || obj.(*corev1.Pod).Name != "a" {
		t.Error(obj, err)
	}
	if text, err := encoding(); err != nil || string(text) != "a" || must(entry.Labels())["app"] != "a" || must(entry.Fields(t.Context()))["spec.nodeName"] != "node-1" {
		t.Errorf("%q %v", text, err)
	}
}

func TestEncryptedValueWithoutProvider(t *testing.T) {
	inner := memory.New()
	if _, err := inner.Create(t.Context(), podKey("ns", "a"), []byte("k8s:enc:aescbc:v1:key1:x"), 0); err != nil {
		t.Fatal(err)
	}
	_, tables := start(t, inner, podResource())
	if _, err := tables[0].Get(podKey("ns", "a")).Object(); !errors.Is(err, store.ErrNoProvider) {
		t.Error(err)
	}
}

func TestStaleValueIsRewritten(t *testing.T) {
	inner := &encrypting{Store: memory.New()}
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
