package admission

import (
	"context"
	"slices"
	"testing"
)

// recorder records its runs, and requests another one if it changes the object.
type recorder struct {
	name    string
	changes bool
	runs    *[]string
}

func (r recorder) Name() string           { return r.name }
func (recorder) Handles(*Attributes) bool { return true }

func (r recorder) Mutate(_ context.Context, a *Attributes) error {
	text := r.name
	if a.IsReinvocation() {
		text += " again, kept " + a.PluginState(r.name).(string)
	}
	*r.runs = append(*r.runs, text)
	a.SetPluginState(r.name, r.name)
	if r.changes {
		a.RequestReinvocation()
	}
	return nil
}

// TestReinvocation: all mutating plugins run a second time after a change of a webhook, and not a third time.
func TestReinvocation(t *testing.T) {
	for _, test := range []struct {
		changes bool
		want    []string
	}{
		{false, []string{"a", "b"}},
		{true, []string{"a", "b", "a again, kept a", "b again, kept b"}},
	} {
		var runs []string
		chain := Chain{recorder{"a", false, &runs}, recorder{"b", test.changes, &runs}}
		if err := chain.Mutate(t.Context(), creating(pod())); err != nil || !slices.Equal(runs, test.want) {
			t.Errorf("ran %q, %v, want %q", runs, err, test.want)
		}
	}
}
