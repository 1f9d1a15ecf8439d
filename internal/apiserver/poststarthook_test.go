package apiserver

import (
	"context"
	"testing"
)

func TestPostStartHooks(t *testing.T) {
	hooks := NewPostStartHooks("one", "two")
	hooks.Done("one")
	var failing []string
	for _, check := range hooks.Checks() {
		if check.Check(t.Context()) != nil {
			failing = append(failing, check.Name)
		}
	}
	if len(failing) != 1 || failing[0] != "poststarthook/two" {
		t.Errorf("failing checks %v, want poststarthook/two", failing)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if hooks.Wait(ended) {
		t.Error("Wait returned true before all hooks have finished")
	}
	hooks.Done("two")
	if !hooks.Wait(t.Context()) {
		t.Error("Wait returned false after all hooks have finished")
	}
}
