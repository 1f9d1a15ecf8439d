package memory_test

import (
	"testing"

	"skiff/internal/store"
	"skiff/internal/store/memory"
	"skiff/internal/store/storetest"
)

func TestStore(t *testing.T) {
	storetest.Run(t, func(t *testing.T) store.Store {
		s := memory.New()
		t.Cleanup(func() { s.Close() })
		return s
	})
}
