package client

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/tools/record/util"
	"k8s.io/client-go/tools/reference"
	"k8s.io/utils/clock"

	"skiff/internal/kind"
)

const (
	// eventQueueSize is the maximum number of queued events. When the server cannot keep up, new events are dropped: events are best
	// effort.
	eventQueueSize = 1000
	// eventTries and eventRetryDelay bound the attempts to write an event while the server cannot be reached.
	eventTries      = 12
	eventRetryDelay = 10 * time.Second
	// eventLogInterval is the least time between two log messages about dropped events, and about events that were not written.
	eventLogInterval = time.Minute
)

// EventBroadcaster writes the events of all components of the process.
//
// Repeated events are counted, similar ones aggregated, and events about the same object rate-limited, by client-go's event correlator with
// its default limits: from the tenth event of a reason about an object in ten minutes on, one combined event is updated, and of a source
// and object 25 events are written at once, then one every five minutes. The correlator's memory is bounded: it forgets the least
// recently used of 4096 objects.
type EventBroadcaster struct {
	client *Client
	log    *slog.Logger
	queue  chan queuedEvent

	dropped                atomic.Uint64
	logDropped, logFailure rate.Sometimes
}

// queuedEvent is an event that has not been written yet.
type queuedEvent struct {
	recorder                   EventRecorder
	at                         time.Time
	object                     kind.Object
	fieldPath                  string
	eventType, reason, message string
}

// NewEventBroadcaster creates the broadcaster of a process. Nothing is written before Run.
func NewEventBroadcaster(c *Client) *EventBroadcaster {
	return &EventBroadcaster{
		client: c, log: slog.New(slog.DiscardHandler), queue: make(chan queuedEvent, eventQueueSize),
		logDropped: rate.Sometimes{First: 1, Interval: eventLogInterval}, logFailure: rate.Sometimes{First: 1, Interval: eventLogInterval},
	}
}

// WithLog sets the logger for events that are dropped or cannot be written.
func (e *EventBroadcaster) WithLog(log *slog.Logger) *EventBroadcaster {
	e.log = log
	return e
}

// EventRecorder records events of one component.
type EventRecorder struct {
	broadcaster     *EventBroadcaster
	component, host string
}

// NewRecorder returns the recorder of a component, such as "deployment-controller". The recorder of a nil EventBroadcaster drops all
// events.
func (e *EventBroadcaster) NewRecorder(component string) EventRecorder {
	return EventRecorder{broadcaster: e, component: component}
}

// WithHost returns a recorder of the same component whose event source has the host.
func (r EventRecorder) WithHost(host string) EventRecorder {
	r.host = host
	return r
}

// Event records an event about an object. eventType is corev1.EventTypeNormal or EventTypeWarning. It never blocks.
func (r EventRecorder) Event(object kind.Object, eventType, reason, message string) {
	r.EventWithFieldPath(object, "", eventType, reason, message)
}

// EventWithFieldPath records an event about a field of an object, such as spec.containers{web}.
func (r EventRecorder) EventWithFieldPath(object kind.Object, fieldPath, eventType, reason, message string) {
	if r.broadcaster == nil {
		return
	}
	event := queuedEvent{recorder: r, at: time.Now(), object: object, fieldPath: fieldPath, eventType: eventType, reason: reason, message: message}
	select {
	case r.broadcaster.queue <- event:
	default:
		r.broadcaster.drop(event)
	}
}

// drop counts an event for which the queue has no space.
func (e *EventBroadcaster) drop(event queuedEvent) {
	eventsDropped.Inc()
	dropped := e.dropped.Add(1)
	e.logDropped.Do(func() {
		e.log.Warn("failed to record event: too many queued events", "component", event.recorder.component, "reason", event.reason,
			"object", event.object.GetName(), "namespace", event.object.GetNamespace(), "dropped", dropped)
	})
}

// Eventf is Event with a format.
func (r EventRecorder) Eventf(object kind.Object, eventType, reason, format string, args ...any) {
	r.Event(object, eventType, reason, fmt.Sprintf(format, args...))
}

// Run writes events until ctx is done.
func (e *EventBroadcaster) Run(ctx context.Context) error {
	correlator := record.NewEventCorrelator(clock.RealClock{})
	for {
		select {
		case <-ctx.Done():
			return nil
		case queued := <-e.queue:
			event, err := e.newEvent(queued)
			if err == nil {
				err = e.record(ctx, correlator, event)
			}
			if err != nil && ctx.Err() == nil {
				e.logFailure.Do(func() {
					e.log.Warn("failed to write event", "component", queued.recorder.component, "reason", queued.reason,
						"object", queued.object.GetName(), "namespace", queued.object.GetNamespace(), "error", err)
				})
			}
		}
	}
}

// newEvent returns the API object of an event.
func (e *EventBroadcaster) newEvent(queued queuedEvent) (*corev1.Event, error) {
	object, err := reference.GetPartialReference(e.client.Scheme, queued.object, queued.fieldPath)
	if err != nil {
		return nil, fmt.Errorf("make reference to object: %w", err)
	}
	namespace := object.Namespace
	if namespace == "" {
		namespace = metav1.NamespaceDefault
	}
	source := corev1.EventSource{Component: queued.recorder.component, Host: queued.recorder.host}
	at := metav1.NewTime(queued.at)
	return &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Name: util.GenerateEventName(object.Name, queued.at.UnixNano()), Namespace: namespace},
		InvolvedObject: *object, Reason: queued.reason, Message: queued.message, Type: queued.eventType,
		FirstTimestamp: at, LastTimestamp: at, Count: 1,
		Source: source, ReportingController: source.Component, ReportingInstance: source.Host,
	}, nil
}

// record correlates an event with earlier ones and writes the result, with retries while the server cannot be reached.
func (e *EventBroadcaster) record(ctx context.Context, correlator *record.EventCorrelator, event *corev1.Event) error {
	result, err := correlator.EventCorrelate(event)
	if err != nil {
		return fmt.Errorf("correlate event: %w", err)
	}
	if result.Skip {
		return nil
	}
	for try := 1; ; try++ {
		written, err := e.write(ctx, result)
		switch {
		case err == nil:
			correlator.UpdateState(written)
			return nil
		case apierrors.IsAlreadyExists(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
			return nil
		case isRejection(err) || try == eventTries:
			return err
		}
		delay := eventRetryDelay
		if try == 1 {
			delay = time.Duration(float64(delay) * rand.Float64()) // clients do not all retry at once
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(delay):
		}
	}
}

// isRejection reports whether the server responded with an error: the same event would be rejected again.
func isRejection(err error) bool {
	_, rejected := err.(*apierrors.StatusError)
	_, unsent := err.(*rest.RequestConstructionError)
	return rejected || unsent
}

// write updates the count of an event, or creates it.
func (e *EventBroadcaster) write(ctx context.Context, result *record.EventCorrelateResult) (*corev1.Event, error) {
	events := For[*corev1.Event](e.client)
	if result.Event.Count > 1 {
		written, err := events.Patch(ctx, result.Event.Namespace, result.Event.Name, RawPatch(StrategicPatch, result.Patch), WriteOptions{})
		if !apierrors.IsNotFound(err) {
			return written, err
		}
		// It has expired.
		result.Event.ResourceVersion = ""
	}
	return events.Create(ctx, result.Event, WriteOptions{})
}
