package controllers_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"skiff/internal/controller"
	"skiff/internal/controllers"
	"skiff/test/world"
)

// scenario is a sequence of user actions while some controllers run, after which the state is stable.
type scenario struct {
	name string
	// run are the names of the controllers.
	run      []string
	settings controllers.Settings
	// nodes run the pods, if there are any.
	nodes int
	play  func(w *world.World)
}

// silent are the controllers that only record events.
var silent = []string{"persistentvolume-expander-controller"}

// TestFaults plays every scenario undisturbed, and then again and again: the process that runs the controllers is stopped right behind
// its first write, its second, and so on, and started again; it hears of every change late; it misses events and reads all anew. The end
// is always the same.
func TestFaults(t *testing.T) {
	wrote := map[string]int{}
	played := 0
	for _, s := range scenarios() {
		t.Run(s.name, func(t *testing.T) {
			played++
			var calm world.Faults
			want := s.end(t, "undisturbed", &calm)
			all, by := calm.Writes()
			for who, n := range by {
				wrote[who] += n
			}
			if t.Failed() {
				return
			}
			t.Logf("%d writes: %v", len(all), by)
			compare := func(what string, faults *world.Faults) {
				if got := s.end(t, what, faults); !slices.Equal(got, want) {
					t.Errorf("%s, the end is another:\n%s", what, difference(got, want))
				}
			}
			compare("changes are heard late", &world.Faults{Lag: 700 * time.Millisecond})
			compare("every second event is missed", &world.Faults{MissEvery: 2})
			step := 1
			if testing.Short() {
				step = max(1, len(all)/3)
			}
			for n := 1; n <= len(all) && !t.Failed(); n += step {
				compare(fmt.Sprintf("stopped behind write %d", n), &world.Faults{StopAfter: n})
			}
		})
	}
	if played < len(scenarios()) {
		return // some were skipped on purpose
	}
	for _, d := range controllers.All(allSettings()) {
		if wrote[d.Name] == 0 && !slices.Contains(silent, d.Name) {
			t.Errorf("no scenario lets %s write", d.Name)
		}
	}
	t.Logf("%d controllers wrote: %v", len(wrote), slices.Sorted(maps.Keys(wrote)))
}

// end runs the scenario and returns the final state.
func (s scenario) end(t *testing.T, what string, faults *world.Faults) (state []string) {
	t.Helper()
	t.Run(what, func(t *testing.T) {
		world.In(t, func(w *world.World) {
			if s.nodes > 0 {
				w.Play(s.nodes)
			}
			w.Manage(faults, s.definitions(t)...)
			w.Pass(time.Second)
			s.play(w)
			w.Pass(2 * time.Minute)
			state = w.State()
		})
	})
	return state
}

func (s scenario) definitions(t *testing.T) []controller.Definition {
	t.Helper()
	definitions, err := controllers.Select(controllers.All(s.settings), s.run)
	if err != nil {
		t.Fatal(err)
	}
	return definitions
}

// difference shows the lines that only one of two states has, with some context.
func difference(got, want []string) string {
	only := func(lines, others []string) (left []string) {
		others = slices.Clone(others)
		for _, line := range lines {
			if i := slices.Index(others, line); i >= 0 {
				others = slices.Delete(others, i, i+1)
				continue
			}
			left = append(left, line)
		}
		return left
	}
	more, less := only(got, want), only(want, got)
	var text strings.Builder
	for i := range max(len(more), len(less)) {
		switch {
		case i >= len(less):
			fmt.Fprintf(&text, "+ %s\n", more[i])
		case i >= len(more):
			fmt.Fprintf(&text, "- %s\n", less[i])
		default:
			same := 0
			for same < min(len(more[i]), len(less[i])) && more[i][same] == less[i][same] {
				same++
			}
			name, _, _ := strings.Cut(more[i], "{")
			from := max(0, same-200)
			fmt.Fprintf(&text, "+ %s…%s\n- %s…%s\n", name, more[i][from:], name, less[i][from:])
		}
	}
	return text.String()
}
