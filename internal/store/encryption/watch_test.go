package encryption

import (
	"testing"

	"skiff/internal/store"
	"skiff/internal/store/storetest"
)

func TestEndedWatchHasNoGap(t *testing.T) {
	e := configure(t, oneProvider(providers["aescbc"]))
	storetest.RunEndedWatch(t, func(s store.Store) store.Store { return e.Wrap(s, resourceOf) })
}
