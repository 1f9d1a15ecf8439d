package client_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/client"
	"skiff/test/inprocess"
)

// inEventTest runs a test with a broadcaster that writes to an API server, in a synctest bubble.
func inEventTest(t *testing.T, test func(c *client.Client, events *client.EventBroadcaster)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		c := inprocess.Start(t, ctx)
		events := client.NewEventBroadcaster(c)
		var running sync.WaitGroup
		running.Go(func() { _ = events.Run(ctx) })
		test(c, events)
		cancel()
		running.Wait()
		time.Sleep(time.Minute) // let the server finish
	})
}

func listEvents(t *testing.T, c *client.Client) []*corev1.Event {
	t.Helper()
	time.Sleep(time.Second)
	synctest.Wait()
	events, _, err := client.For[*corev1.Event](c).List(t.Context(), "", client.Selector{})
	if err != nil {
		t.Fatal(err)
	}
	return events
}

func eventPod(name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: "1"}}
}

// TestRepeatedEvents: a repeated event is one object with a count, and its source, object and times are set.
func TestRepeatedEvents(t *testing.T) {
	inEventTest(t, func(c *client.Client, events *client.EventBroadcaster) {
		recorder := events.NewRecorder("kubelet").WithHost("n1")
		began := time.Now()
		for range 5 {
			recorder.EventWithFieldPath(eventPod("web"), "spec.containers{c}", corev1.EventTypeWarning, "BackOff", "back-off restarting")
			time.Sleep(time.Minute)
		}
		all := listEvents(t, c)
		if len(all) != 1 {
			t.Fatalf("%d events", len(all))
		}
		e := all[0]
		if e.Count != 5 || e.Type != corev1.EventTypeWarning || e.Reason != "BackOff" || e.Message != "back-off restarting" || e.Namespace != "default" {
			t.Errorf("%+v", e)
		}
		if e.Source != (corev1.EventSource{Component: "kubelet", Host: "n1"}) || e.ReportingController != "kubelet" || e.ReportingInstance != "n1" {
			t.Errorf("source %v, reported by %s on %s", e.Source, e.ReportingController, e.ReportingInstance)
		}
		if o := e.InvolvedObject; o.Kind != "Pod" || o.Name != "web" || o.FieldPath != "spec.containers{c}" {
			t.Errorf("about %+v", o)
		}
		if first, last := e.FirstTimestamp.Sub(began), e.LastTimestamp.Sub(began); first > time.Second || last < 3*time.Minute+59*time.Second {
			t.Errorf("from %v to %v", first, last)
		}
	})
}

// TestSimilarEvents: the tenth event of a reason about an object within ten minutes is combined with the following ones.
func TestSimilarEvents(t *testing.T) {
	inEventTest(t, func(c *client.Client, events *client.EventBroadcaster) {
		recorder := events.NewRecorder("scheduler")
		for i := range 20 {
			recorder.Eventf(eventPod("web"), corev1.EventTypeWarning, "FailedScheduling", "attempt %d", i)
			time.Sleep(time.Second)
		}
		combined := 0
		all := listEvents(t, c)
		for _, e := range all {
			if strings.HasPrefix(e.Message, "(combined from similar events): ") {
				combined++
				if e.Count != 11 || e.Message != "(combined from similar events): attempt 19" {
					t.Errorf("%d combined events, %s", e.Count, e.Message)
				}
			}
		}
		if len(all) != 10 || combined != 1 {
			t.Errorf("%d events, %d of them combined", len(all), combined)
		}
	})
}

// TestEventsPerObjectAreLimited: of a source and object 25 events are written at once, then one every five minutes. Others are not affected.
func TestEventsPerObjectAreLimited(t *testing.T) {
	inEventTest(t, func(c *client.Client, events *client.EventBroadcaster) {
		recorder := events.NewRecorder("kubelet")
		for i := range 500 {
			recorder.Event(eventPod("noisy"), corev1.EventTypeNormal, fmt.Sprint("Reason", i), "message")
			time.Sleep(time.Microsecond) // the names of events contain the time
		}
		recorder.Event(eventPod("other"), corev1.EventTypeNormal, "Started", "message")
		events.NewRecorder("scheduler").Event(eventPod("noisy"), corev1.EventTypeNormal, "Scheduled", "message")
		count := func() map[string]int {
			n := map[string]int{}
			for _, e := range listEvents(t, c) {
				n[e.Source.Component+" "+e.InvolvedObject.Name]++
			}
			return n
		}
		if n := count(); n["kubelet noisy"] != 25 || n["kubelet other"] != 1 || n["scheduler noisy"] != 1 {
			t.Errorf("written: %v", n)
		}
		time.Sleep(5 * time.Minute)
		for i := range 10 {
			recorder.Event(eventPod("noisy"), corev1.EventTypeNormal, fmt.Sprint("Later", i), "message")
			time.Sleep(time.Microsecond)
		}
		if n := count(); n["kubelet noisy"] != 26 {
			t.Errorf("written after five minutes: %v", n)
		}
	})
}

// TestEventQueueIsBounded: events that find the queue full are dropped, counted, and logged once a minute.
func TestEventQueueIsBounded(t *testing.T) {
	registry := prometheus.NewRegistry()
	if err := client.RegisterMetrics(registry); err != nil {
		t.Fatal(err)
	}
	dropped := func() float64 {
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, family := range families {
			if family.GetName() == "events_dropped_total" {
				return family.Metric[0].GetCounter().GetValue()
			}
		}
		t.Fatal("no metric")
		return 0
	}
	before := dropped()
	var log strings.Builder
	events := client.NewEventBroadcaster(nil).WithLog(slog.New(slog.NewTextHandler(&log, nil)))
	recorder := events.NewRecorder("kubelet")
	for range 5000 {
		recorder.Event(eventPod("web"), corev1.EventTypeNormal, "Started", "message")
	}
	if got := dropped() - before; got != 4000 {
		t.Errorf("%v events dropped", got)
	}
	if got := strings.Count(log.String(), "too many queued events"); got != 1 {
		t.Errorf("%d log messages", got)
	}
}
