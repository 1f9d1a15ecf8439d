package cache

import "sync"

// maxViews bounds what is kept of one state; more than the usual lists and their pages is not asked for again.
const maxViews = 256

// views keeps what was made of one state of a table: the lists that many clients ask for while it does not change, as
// when all of them come back to a server that was restarted. They go with the state, and at every sweep of the cache:
// making them again is cheap, and tells the entries that what was made of them is still in use.
type views struct {
	mu   sync.Mutex
	made map[any]any
}

// View returns what make made of this state under the key, from memory if it was made before. An error is not remembered.
// The value is shared by all, must not be changed, and should hold nothing large that is not kept with entries too.
func (s Snapshot) View(key any, make func() (any, error)) (any, error) {
	if s.views == nil {
		return make()
	}
	if value, ok := s.views.get(key); ok {
		return value, nil
	}
	value, err := make()
	if err == nil {
		s.views.put(key, value)
	}
	return value, err
}

func (v *views) get(key any) (any, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	value, ok := v.made[key]
	return value, ok
}

func (v *views) put(key, value any) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.made == nil {
		v.made = map[any]any{}
	}
	if len(v.made) < maxViews {
		v.made[key] = value
	}
}

func (v *views) forget() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.made = nil
}
