package admission

import (
	"context"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics measure a chain and its plugins, under upstream's names.
type Metrics struct {
	steps, plugins *prometheus.HistogramVec
}

// NewMetrics makes the metrics and registers them.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	buckets := []float64{0.005, 0.025, 0.1, 0.5, 1.0, 2.5}
	m := &Metrics{
		steps: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "apiserver_admission_step_admission_duration_seconds", Buckets: buckets,
			Help: "Admission sub-step latency histogram in seconds, broken out for each operation and API resource and step type (validate or admit).",
		}, []string{"type", "operation", "rejected"}),
		plugins: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "apiserver_admission_controller_admission_duration_seconds", Buckets: buckets,
			Help: "Admission controller latency histogram in seconds, identified by name and broken out for each operation and API resource and type (validate or admit).",
		}, []string{"name", "type", "operation", "rejected"}),
	}
	registry.MustRegister(m.steps, m.plugins)
	return m
}

// Measure returns a chain of one plugin that runs a chain and measures it.
func (m *Metrics) Measure(chain Chain) Chain {
	if len(chain) == 0 {
		return chain
	}
	measured := &measuredChain{chain: chain, plugins: make([]durations, len(chain))}
	measured.step.observer = func(labels ...string) prometheus.Observer { return m.steps.WithLabelValues(labels...) }
	for i, p := range chain {
		name := []string{p.Name()}
		measured.plugins[i].observer = func(labels ...string) prometheus.Observer {
			return m.plugins.WithLabelValues(append(name[:1:1], labels...)...)
		}
	}
	return Chain{measured}
}

// measuredChain is a chain as one plugin.
type measuredChain struct {
	chain   Chain
	step    durations
	plugins []durations
}

// Name implements Plugin.
func (*measuredChain) Name() string { return "chain" }

// Handles implements Plugin.
func (*measuredChain) Handles(*Attributes) bool { return true }

// Mutate implements Mutator.
func (m *measuredChain) Mutate(ctx context.Context, a *Attributes) error {
	began := time.Now()
	err := m.chain.mutate(ctx, a, m.plugins)
	m.step.observe(stepAdmit, a.Operation, began, err)
	return err
}

// Validate implements Validator.
func (m *measuredChain) Validate(ctx context.Context, a *Attributes) error {
	began := time.Now()
	err := m.chain.validate(ctx, a, m.plugins)
	m.step.observe(stepValidate, a.Operation, began, err)
	return err
}

// Undo implements Undoer.
func (m *measuredChain) Undo(ctx context.Context, a *Attributes) { m.chain.Undo(ctx, a) }

// step is one of the two steps of admission.
type step int

const (
	stepAdmit step = iota
	stepValidate
)

var (
	stepNames  = [...]string{stepAdmit: "admit", stepValidate: "validate"}
	operations = [...]Operation{Create, Update, Delete, Connect}
)

// durations are the series of a chain or of a plugin. Each is made when it is first observed, and found without looking up labels.
type durations struct {
	observer func(labels ...string) prometheus.Observer
	series   [len(stepNames)][len(operations)][2]atomic.Pointer[prometheus.Observer]
}

// observe records how long something took that began at a time and ended now.
func (d *durations) observe(step step, operation Operation, began time.Time, err error) {
	for i, name := range operations {
		if name != operation {
			continue
		}
		rejected := 0
		if err != nil {
			rejected = 1
		}
		series := &d.series[step][i][rejected]
		observer := series.Load()
		if observer == nil {
			made := d.observer(stepNames[step], string(operation), strconv.FormatBool(err != nil))
			observer = &made
			series.Store(observer)
		}
		(*observer).Observe(time.Since(began).Seconds())
		return
	}
}
