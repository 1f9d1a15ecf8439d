package apiserver

import (
	"context"
	"slices"
	"testing"
)

func TestPostStartHooks(t *testing.T) {
	one, two := NewPostStartHook("one"), NewPostStartHook("two", "three")
	hooks := PostStartHooks{one, two}
	one.Done()
	var failing []string
	for _, check := range hooks.Checks() {
		if check.Check(t.Context()) != nil {
			failing = append(failing, check.Name)
		}
	}
	if want := []string{"poststarthook/two", "poststarthook/three"}; !slices.Equal(failing, want) {
		t.Errorf("failing checks %v, want %v", failing, want)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if hooks.Wait(ended) {
		t.Error("Wait returned true before all hooks have finished")
	}
	two.Done()
	if !hooks.Wait(t.Context()) {
		t.Error("Wait returned false after all hooks have finished")
	}
}
