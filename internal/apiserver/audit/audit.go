// Package audit records what is asked of the API server and what came of it, as events of audit.k8s.io/v1. A Policy says
// which requests are recorded and how much of each; a log file and a webhook receive the events.
//
// A request that is recorded has one Event from its authentication to its end, which becomes a line each time the request
// reaches a stage: RequestReceived, ResponseStarted (streams only), ResponseComplete or Panic. Most lines hold metadata alone and
// are written on every request, so they are appended byte by byte into a reused buffer and handed to a queue, from
// which one goroutine for each back end takes many at a time.
//
// The contents of secrets and tokens are never recorded: requests for them are cut down to their metadata, and a
// token in a URL is blotted out.
package audit

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"skiff/internal/apiserver/authz"
)

// The modes of a back end, with upstream's names.
const (
	// ModeBatch gathers events and sends many at once; when too many wait, events are lost and counted.
	ModeBatch = "batch"
	// ModeBlocking loses none: who asks waits until the event is sent, or, for the log, until there is room in the queue.
	ModeBlocking = "blocking"
	// ModeBlockingStrict refuses requests that cannot be recorded. Each event is written before the request goes on.
	ModeBlockingStrict = "blocking-strict"
)

// Delivery says how a back end sends events; see upstream's flags of the same names.
type Delivery struct {
	Mode string
	// BufferSize is how many events wait at most, MaxSize how many are sent at once, MaxWait how long a batch waits to be full.
	BufferSize, MaxSize int
	MaxWait             time.Duration
	// Throttle bounds how many batches are sent each second: QPS on average, Burst at once.
	Throttle bool
	QPS      float64
	Burst    int
	// Truncate cuts bodies from events larger than MaxEventBytes, and drops those that are still too large. MaxBatchBytes
	// bounds a batch.
	Truncate                     bool
	MaxEventBytes, MaxBatchBytes int64
}

// Log is the file that receives events as lines.
type Log struct {
	// Path is a file, or "-" for the standard output.
	Path string
	// MaxAge is in days, MaxSize in megabytes. Zero: no limit.
	MaxAge, MaxBackups, MaxSize int
	Compress                    bool
	// Format is json, or legacy for lines of text.
	Format   string
	Delivery Delivery
}

// Webhook is the service that receives lists of events.
type Webhook struct {
	// Kubeconfig names the service.
	Kubeconfig     string
	InitialBackoff time.Duration
	Delivery       Delivery
}

// Config says what is recorded and where. Without a policy file or without a back end, nothing is.
type Config struct {
	PolicyFile string
	Log        Log
	Webhook    Webhook
}

// backend receives events. Both methods may be called by many at once.
type backend interface {
	// send takes a line, which the caller reuses afterwards. It reports false only when the request must not go on without.
	send(line []byte) bool
	// run delivers until ctx ends, and then what is left.
	run(ctx context.Context) error
}

// output is a back end, and what it wants to get.
type output struct {
	backend
	delivery Delivery
	legacy   bool
	name     string
}

// Auditor records requests. A nil Auditor records none.
type Auditor struct {
	policy  *Policy
	outputs []output
	log     *slog.Logger
	metrics metrics
}

// New reads the policy and opens the back ends. It returns nil when nothing is to be recorded.
func New(c Config, log *slog.Logger) (*Auditor, error) {
	if c.PolicyFile == "" {
		if c.Log.Path != "" || c.Webhook.Kubeconfig != "" {
			log.Warn("no audit policy, so nothing is recorded")
		}
		return nil, nil
	}
	policy, warnings, err := ReadPolicy(c.PolicyFile)
	if err != nil {
		return nil, err
	}
	for _, warning := range warnings {
		log.Warn("the audit policy says something unknown", "error", warning)
	}
	a := &Auditor{policy: policy, log: log, metrics: newMetrics()}
	if c.Log.Path != "" {
		file, err := newLogFile(c.Log, a)
		if err != nil {
			return nil, err
		}
		a.outputs = append(a.outputs, output{backend: file, delivery: c.Log.Delivery, legacy: c.Log.Format == "legacy", name: "log"})
	}
	if c.Webhook.Kubeconfig != "" {
		hook, err := newWebhook(c.Webhook, a)
		if err != nil {
			return nil, err
		}
		a.outputs = append(a.outputs, output{backend: hook, delivery: c.Webhook.Delivery, name: "webhook"})
	}
	if len(a.outputs) == 0 {
		return nil, nil
	}
	return a, nil
}

// Run delivers events until ctx ends, and then those that are left. It is to outlive the requests.
func (a *Auditor) Run(ctx context.Context) error {
	if a == nil {
		return nil
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, out := range a.outputs {
		group.Go(func() error { return out.run(ctx) })
	}
	return group.Wait()
}

// Begin makes the event of a request that the attributes describe; a.User is who sent it, empty when nobody knows. It returns
// nil when the policy wants none. Nothing is recorded before the event reaches a stage.
func (a *Auditor) Begin(r *http.Request, id string, received time.Time, attributes *authz.Attributes) *Event {
	if a == nil {
		return nil
	}
	v := a.policy.evaluate(attributes)
	a.metrics.levels[v.level].Inc()
	if v.level == levelNone {
		return nil
	}
	e := &Event{
		auditor: a, verdict: v, id: id, received: received, uri: requestURI(r), verb: attributes.Verb,
		user: attributes.User, agent: userAgent(r),
	}
	e.addresses = appendAddresses(e.addressSpace[:0], r)
	if attributes.ResourceRequest {
		e.hasObject = true
		e.object = objectReference{
			resource: attributes.Resource, namespace: attributes.Namespace, name: attributes.Name, group: attributes.Group,
			version: attributes.Version, subresource: attributes.Subresource,
		}
	}
	return e
}

// buffers hold lines while they are made.
var buffers = sync.Pool{New: func() any { b := make([]byte, 0, 4<<10); return &b }}

const largestPooled = 1 << 20

// record sends the event as it is now to all back ends. It reports false when one of them insists and could not take it.
func (a *Auditor) record(e *Event, at stage, now time.Time) bool {
	a.metrics.events.Inc()
	buffer := buffers.Get().(*[]byte)
	defer func() {
		if cap(*buffer) <= largestPooled {
			*buffer = (*buffer)[:0]
			buffers.Put(buffer)
		}
	}()
	ok := true
	encoded := false
	for i := range a.outputs {
		out := &a.outputs[i]
		line := *buffer
		switch {
		case out.legacy:
			line = e.appendLegacy(nil, at)
		case !encoded:
			*buffer = e.appendJSON((*buffer)[:0], at, now, false)
			line, encoded = *buffer, true
		}
		if out.delivery.Truncate && int64(len(line)) > out.delivery.MaxEventBytes {
			if e.verdict.level >= levelRequest && !out.legacy {
				line = e.appendJSON(nil, at, now, true)
			}
			if int64(len(line)) > out.delivery.MaxEventBytes {
				a.lost("truncate", 1, errors.New("event is too large even after truncating"))
				continue
			}
		}
		ok = out.send(line) && ok
	}
	return ok
}

// rejected counts a request that was refused because it could not be recorded.
func (a *Auditor) rejected() { a.metrics.rejected.Inc() }

// lost counts events that did not arrive.
func (a *Auditor) lost(plugin string, events int, err error) {
	a.metrics.errors.WithLabelValues(plugin).Add(float64(events))
	a.log.Error("audit events were lost", "plugin", plugin, "events", events, "error", err)
}

// metrics count under upstream's names.
type metrics struct {
	events   prometheus.Counter
	rejected prometheus.Counter
	errors   *prometheus.CounterVec
	levelVec *prometheus.CounterVec
	levels   [4]prometheus.Counter
}

func newMetrics() metrics {
	m := metrics{
		events: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "apiserver_audit_event_total", Help: "Counter of audit events generated and sent to the audit backend.",
		}),
		rejected: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "apiserver_audit_requests_rejected_total", Help: "Counter of apiserver requests rejected due to an error in audit logging backend.",
		}),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "apiserver_audit_error_total",
			Help: "Counter of audit events that failed to be audited properly. Plugin identifies the plugin affected by the error.",
		}, []string{"plugin"}),
		levelVec: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "apiserver_audit_level_total", Help: "Counter of policy levels for audit events (1 per request).",
		}, []string{"level"}),
	}
	for i, name := range levelNames {
		m.levels[i] = m.levelVec.WithLabelValues(name)
	}
	return m
}

// Describe implements prometheus.Collector.
func (a *Auditor) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range a.metrics.all() {
		c.Describe(ch)
	}
}

// Collect implements prometheus.Collector.
func (a *Auditor) Collect(ch chan<- prometheus.Metric) {
	for _, c := range a.metrics.all() {
		c.Collect(ch)
	}
}

func (m *metrics) all() []prometheus.Collector {
	return []prometheus.Collector{m.events, m.rejected, m.errors, m.levelVec}
}
