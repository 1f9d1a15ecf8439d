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

// eventQueue bounds the events that wait to be written. When the server cannot keep up, the newest are dropped: an event is
// news, and what it tells of stands in the objects.
const eventQueue = 1000

// Events tells users what the parts of this process do, as `kubectl describe` shows it. Repeated events are counted, similar
// ones aggregated, and floods about one object cut off, as upstream's recorder does it.
type Events struct {
	client   *Client
	incoming chan toldEvent
}

// toldEvent is an event on its way to the server.
type toldEvent struct {
	recorder                Recorder
	about                   kind.Object
	fieldPath               string
	eventType, reason, text string
}

// NewEvents makes the recorder of a process. Nothing is written before Run.
func NewEvents(c *Client) *Events {
	return &Events{client: c, incoming: make(chan toldEvent, eventQueue)}
}

// Recorder tells events in the name of one component.
type Recorder struct {
	events          *Events
	component, host string
}

// For returns the recorder of a component, such as "deployment-controller". A nil Events gives a recorder that is silent.
func (e *Events) For(component string) Recorder { return Recorder{events: e, component: component} }

// On returns the recorder of the same component on a node.
func (r Recorder) On(host string) Recorder {
	r.host = host
	return r
}

// Event tells that something happened to an object. eventType is corev1.EventTypeNormal or EventTypeWarning. It never blocks.
func (r Recorder) Event(about kind.Object, eventType, reason, message string) {
	r.EventAt(about, "", eventType, reason, message)
}

// EventAt is Event about a part of an object, such as spec.containers{web}.
func (r Recorder) EventAt(about kind.Object, fieldPath, eventType, reason, message string) {
	if r.events == nil {
		return
	}
	select {
	case r.events.incoming <- toldEvent{recorder: r, about: about, fieldPath: fieldPath, eventType: eventType, reason: reason, text: message}:
	default:
	}
}

// Eventf is Event with a format.
func (r Recorder) Eventf(about kind.Object, eventType, reason, format string, args ...any) {
	r.Event(about, eventType, reason, fmt.Sprintf(format, args...))
}

// Run writes events until ctx ends.
func (e *Events) Run(ctx context.Context) error {
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	defer broadcaster.Shutdown()
	broadcaster.StartRecordingToSink(eventSink{ctx: ctx, events: For[*corev1.Event](e.client)})
	recorders := map[corev1.EventSource]record.EventRecorder{}
	for {
		select {
		case <-ctx.Done():
			return nil
		case told := <-e.incoming:
			source := corev1.EventSource{Component: told.recorder.component, Host: told.recorder.host}
			recorder := recorders[source]
			if recorder == nil {
				recorder = broadcaster.NewRecorder(e.client.Scheme, source)
				recorders[source] = recorder
			}
			var about runtime.Object = told.about
			if told.fieldPath != "" {
				if part, err := reference.GetPartialReference(e.client.Scheme, told.about, told.fieldPath); err == nil {
					about = part
				}
			}
			recorder.Event(about, told.eventType, told.reason, told.text)
		}
	}
}

// eventSink writes what the broadcaster has counted and aggregated.
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
	return s.events.Patch(s.ctx, event.Namespace, event.Name, StrategicPatch, patch, WriteOptions{})
}
