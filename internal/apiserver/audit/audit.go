// Package audit records the requests to the API server and their responses as events of audit.k8s.io/v1. A Policy decides which
// requests are recorded and at which level; the backends, a log file and a webhook, receive the events.
//
// A recorded request has one Event from its authentication to its end, which is encoded each time the request reaches a stage:
// RequestReceived, ResponseStarted (long-running requests only), ResponseComplete or Panic. Most events contain metadata only and
// are written for every request, so they are appended to a reused buffer and put into a queue, from which one goroutine per
// backend takes batches.
//
// The contents of secrets and tokens are never recorded: requests for them have at most the level Metadata, and a token in a URL
// is redacted.
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
	"skiff/internal/egress"
)

// The modes of a backend, with upstream's names.
const (
	// ModeBatch sends events in batches. When the buffer is full, events are dropped and counted.
	ModeBatch = "batch"
	// ModeBlocking drops no events: a request waits until its event is sent or, for the log, until the queue has free space.
	ModeBlocking = "blocking"
	// ModeBlockingStrict rejects requests that cannot be recorded. Each event is written before its request is processed.
	ModeBlockingStrict = "blocking-strict"
)

// BackendOptions configure how a backend sends events; the fields are upstream's flags of the same names.
type BackendOptions struct {
	Mode string
	// BufferSize is the maximum number of queued events, MaxSize that of a batch, MaxWait how long a batch waits to be full.
	BufferSize, MaxSize int
	MaxWait             time.Duration
	// Throttle limits the rate of batches: QPS per second on average, Burst at once.
	Throttle bool
	QPS      float64
	Burst    int
	// Truncate removes the bodies of events larger than MaxEventBytes, and drops events that are still too large. MaxBatchBytes
	// is the maximum size of a batch.
	Truncate                     bool
	MaxEventBytes, MaxBatchBytes int64
}

// Log configures the log file.
type Log struct {
	// Path is a file, or "-" for standard output.
	Path string
	// MaxAge is in days, MaxSize in megabytes. Zero: no limit.
	MaxAge, MaxBackups, MaxSize int
	Compress                    bool
	// Format is json, or legacy for lines of text.
	Format         string
	BackendOptions BackendOptions
}

// Webhook configures the webhook, which receives EventLists.
type Webhook struct {
	// KubeconfigFile is the path of a kubeconfig file with the webhook's URL and credentials.
	KubeconfigFile string
	InitialBackoff time.Duration
	BackendOptions BackendOptions
	// Dial connects to the webhook; nil: the network of the host is used.
	Dial egress.DialFunc
}

// Config configures auditing. Without a policy file or without a backend, nothing is recorded.
type Config struct {
	PolicyFile string
	Log        Log
	Webhook    Webhook
}

// backend receives events. Its methods may be called concurrently.
type backend interface {
	// send queues or writes a line, which the caller reuses afterwards. It returns false only if the request must be rejected.
	send(line []byte) bool
	// run delivers events until ctx is done, and then the remaining ones.
	run(ctx context.Context) error
}

// output is a backend and its configuration.
type output struct {
	backend
	options BackendOptions
	legacy  bool
	name    string
}

// Auditor records requests. A nil Auditor records none.
type Auditor struct {
	policy  *Policy
	outputs []output
	log     *slog.Logger
	metrics metrics
}

// New reads the policy and opens the backends. It returns nil if nothing is to be recorded.
func New(c Config, log *slog.Logger) (*Auditor, error) {
	if c.PolicyFile == "" {
		if c.Log.Path != "" || c.Webhook.KubeconfigFile != "" {
			log.Warn("no audit policy file provided, no events will be recorded")
		}
		return nil, nil
	}
	policy, warnings, err := ReadPolicy(c.PolicyFile)
	if err != nil {
		return nil, err
	}
	for _, warning := range warnings {
		log.Warn("unknown field in audit policy", "error", warning)
	}
	a := &Auditor{policy: policy, log: log, metrics: newMetrics()}
	if c.Log.Path != "" {
		file, err := newLogFile(c.Log, a)
		if err != nil {
			return nil, err
		}
		a.outputs = append(a.outputs, output{backend: file, options: c.Log.BackendOptions, legacy: c.Log.Format == "legacy", name: "log"})
	}
	if c.Webhook.KubeconfigFile != "" {
		hook, err := newWebhook(c.Webhook, a)
		if err != nil {
			return nil, err
		}
		a.outputs = append(a.outputs, output{backend: hook, options: c.Webhook.BackendOptions, name: "webhook"})
	}
	if len(a.outputs) == 0 {
		return nil, nil
	}
	return a, nil
}

// Run delivers events until ctx is done, and then the remaining ones. It must end after the last request.
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

// Begin makes the event of a request with these attributes; attributes.User is empty if the request is not authenticated. It
// returns nil if the policy has the level None for it. Nothing is recorded before the event reaches a stage.
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
		auditor: a, auditConfig: v, id: id, received: received, uri: requestURI(r), verb: attributes.Verb,
		user: attributes.User, agent: userAgent(r),
	}
	e.addresses = appendAddresses(e.addressBuffer[:0], r)
	if attributes.ResourceRequest {
		e.hasObject = true
		e.object = objectReference{
			resource: attributes.Resource, namespace: attributes.Namespace, name: attributes.Name, group: attributes.Group,
			version: attributes.Version, subresource: attributes.Subresource,
		}
	}
	return e
}

// buffers are used to encode events.
var buffers = sync.Pool{New: func() any { b := make([]byte, 0, 4<<10); return &b }}

const maxPooledBytes = 1 << 20

// record sends the current state of the event to all backends. It returns false if one of them requires to reject the request.
func (a *Auditor) record(e *Event, at stage, now time.Time) bool {
	a.metrics.events.Inc()
	buffer := buffers.Get().(*[]byte)
	defer func() {
		if cap(*buffer) <= maxPooledBytes {
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
		if out.options.Truncate && int64(len(line)) > out.options.MaxEventBytes {
			if e.auditConfig.level >= levelRequest && !out.legacy {
				line = e.appendJSON(nil, at, now, true)
			}
			if int64(len(line)) > out.options.MaxEventBytes {
				a.lost("truncate", 1, errors.New("event is too large even after truncating"))
				continue
			}
		}
		ok = out.send(line) && ok
	}
	return ok
}

// rejected counts a request that was rejected because it could not be recorded.
func (a *Auditor) rejected() { a.metrics.rejected.Inc() }

// lost counts and logs events that were not delivered.
func (a *Auditor) lost(plugin string, events int, err error) {
	a.metrics.errors.WithLabelValues(plugin).Add(float64(events))
	a.log.Error("failed to deliver audit events", "plugin", plugin, "events", events, "error", err)
}

// metrics have upstream's names.
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
