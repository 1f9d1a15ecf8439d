package cache

import "sync"

// maxMemoized bounds the values memoized for one state: the usual lists and their pages.
const maxMemoized = 256

// memoized holds values derived from one state of a table: the lists that many clients request while it does not change,
// for example when all reconnect to a restarted server. They are dropped with the state, and at every sweep of the cache:
// making them again is cheap and marks the memos of the entries as used.
type memoized struct {
	mu     sync.Mutex
	values map[any]any
}

// Memoize returns the value that make made of this state under the key, calling make if there is none. Errors are not
// kept. The value is shared, must not be changed, and should reference nothing large that the entries do not keep too.
func (s Snapshot) Memoize(key any, make func() (any, error)) (any, error) {
	if s.memoized == nil {
		return make()
	}
	if value, ok := s.memoized.get(key); ok {
		return value, nil
	}
	value, err := make()
	if err == nil {
		s.memoized.put(key, value)
	}
	return value, err
}

func (v *memoized) get(key any) (any, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	value, ok := v.values[key]
	return value, ok
}

func (v *memoized) put(key, value any) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.values == nil {
		v.values = map[any]any{}
	}
	if len(v.values) < maxMemoized {
		v.values[key] = value
	}
}

func (v *memoized) clear() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.values = nil
}
