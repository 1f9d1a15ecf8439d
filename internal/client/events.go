package client

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/tools/reference"

	"skiff/internal/kind"
)

// eventQueueSize is the maximum number of queued events. When the server cannot keep up, new events are dropped: events are best
// effort.
const eventQueueSize = 1000

// EventBroadcaster writes the events of all components of the process. Repeated events are counted, similar ones aggregated, and
// events about the same object rate-limited, by client-go's event correlator.
type EventBroadcaster struct {
	client *Client
	queue  chan queuedEvent
}

// queuedEvent is an event that has not been written yet.
type queuedEvent struct {
	recorder                   EventRecorder
	object                     kind.Object
	fieldPath                  string
	eventType, reason, message string
}

// NewEventBroadcaster creates the broadcaster of a process. Nothing is written before Run.
func NewEventBroadcaster(c *Client) *EventBroadcaster {
	return &EventBroadcaster{client: c, queue: make(chan queuedEvent, eventQueueSize)}
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
	select {
	case r.broadcaster.queue <- queuedEvent{recorder: r, object: object, fieldPath: fieldPath, eventType: eventType, reason: reason, message: message}:
	default:
	}
}

// Eventf is Event with a format.
func (r EventRecorder) Eventf(object kind.Object, eventType, reason, format string, args ...any) {
	r.Event(object, eventType, reason, fmt.Sprintf(format, args...))
}

// Run writes events until ctx is done.
func (e *EventBroadcaster) Run(ctx context.Context) error {
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	defer broadcaster.Shutdown()
	broadcaster.StartRecordingToSink(eventSink{ctx: ctx, events: For[*corev1.Event](e.client)})
	recorders := map[corev1.EventSource]record.EventRecorder{}
	for {
		select {
		case <-ctx.Done():
			return nil
		case event := <-e.queue:
			source := corev1.EventSource{Component: event.recorder.component, Host: event.recorder.host}
			recorder := recorders[source]
			if recorder == nil {
				recorder = broadcaster.NewRecorder(e.client.Scheme, source)
				recorders[source] = recorder
			}
			var object runtime.Object = event.object
			if event.fieldPath != "" {
				if reference, err := reference.GetPartialReference(e.client.Scheme, event.object, event.fieldPath); err == nil {
					object = reference
				}
			}
			recorder.Event(object, event.eventType, event.reason, event.message)
		}
	}
}

// eventSink writes the correlated events.
type eventSink struct {
	ctx    context.Context
	events Resource[*corev1.Event]
}

func (s eventSink) Create(event *corev1.Event) (*corev1.Event, error) {
	return s.events.Create(s.ctx, event, WriteOptions{})
}

func (s eventSink) Update(event *corev1.Event) (*corev1.Event, error) {
	return s.events.Update(s.ctx, event, WriteOptions{})
}

func (s eventSink) Patch(event *corev1.Event, patch []byte) (*corev1.Event, error) {
	return s.events.Patch(s.ctx, event.Namespace, event.Name, RawPatch(StrategicPatch, patch), WriteOptions{})
}
