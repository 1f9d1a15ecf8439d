package admission

import (
	"context"
	"errors"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"skiff/test/metrics"
)

// refusingDeletion mutates everything and refuses deletions.
type refusingDeletion struct{ undone *int }

func (refusingDeletion) Name() string                              { return "Refusing" }
func (refusingDeletion) Handles(*Attributes) bool                  { return true }
func (refusingDeletion) Mutate(context.Context, *Attributes) error { return nil }
func (r refusingDeletion) Undo(context.Context, *Attributes)       { *r.undone++ }
func (refusingDeletion) Validate(_ context.Context, a *Attributes) error {
	if a.Operation == Delete {
		return errors.New("no")
	}
	return nil
}

func TestMetrics(t *testing.T) {
	registry := prometheus.NewRegistry()
	undone := 0
	chain := NewMetrics(registry).Measure(Chain{refusingDeletion{&undone}, refusingDeletion{&undone}})
	for _, a := range []*Attributes{{Operation: Create}, {Operation: Create}, {Operation: Delete}} {
		if err := chain.Mutate(t.Context(), a); err != nil {
			t.Fatal(err)
		}
		if err := chain.Validate(t.Context(), a); (err != nil) != (a.Operation == Delete) {
			t.Errorf("%s: error %v", a.Operation, err)
		}
	}
	const step, plugin = "apiserver_admission_step_admission_duration_seconds", "apiserver_admission_controller_admission_duration_seconds"
	metrics.Check(t, registry, map[string]float64{
		step + "{operation=CREATE,rejected=false,type=admit}": 2, step + "{operation=CREATE,rejected=false,type=validate}": 2,
		step + "{operation=DELETE,rejected=false,type=admit}": 1, step + "{operation=DELETE,rejected=true,type=validate}": 1,
		plugin + "{name=Refusing,operation=CREATE,rejected=false,type=admit}":   4,
		plugin + "{name=Refusing,operation=DELETE,rejected=true,type=validate}": 1, // the second is not asked
	})
	if undone != 0 {
		t.Errorf("%d plugins undone, though none had validated", undone)
	}
	chain.Undo(t.Context(), &Attributes{Operation: Create})
	if undone != 2 {
		t.Errorf("%d plugins undone", undone)
	}
}

// Measuring allocates nothing once the series exist.
func TestMeasuringDoesNotAllocate(t *testing.T) {
	chain := NewMetrics(prometheus.NewRegistry()).Measure(Chain{refusingDeletion{new(int)}})
	a := &Attributes{Operation: Create}
	if n := testing.AllocsPerRun(100, func() { _ = chain.Mutate(context.Background(), a) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// changing requests that all plugins run once more, each time.
type changing struct{ runs *int }

func (changing) Name() string             { return "Changing" }
func (changing) Handles(*Attributes) bool { return true }
func (c changing) Mutate(_ context.Context, a *Attributes) error {
	*c.runs++
	a.RequestReinvocation()
	return nil
}

// A measured chain runs a second time like another one, and is one step.
func TestMeasuredReinvocation(t *testing.T) {
	registry := prometheus.NewRegistry()
	runs := 0
	if err := NewMetrics(registry).Measure(Chain{changing{&runs}}).Mutate(t.Context(), &Attributes{Operation: Create}); err != nil || runs != 2 {
		t.Errorf("%d runs, error %v", runs, err)
	}
	metrics.Check(t, registry, map[string]float64{
		"apiserver_admission_step_admission_duration_seconds{operation=CREATE,rejected=false,type=admit}":                     1,
		"apiserver_admission_controller_admission_duration_seconds{name=Changing,operation=CREATE,rejected=false,type=admit}": 2,
	})
}
