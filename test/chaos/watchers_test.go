package chaos

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// event is one watch event.
type event struct {
	kind     watch.EventType
	key      string
	value    string
	revision int64
}

// watcher lists once, then watches, and resumes after every disconnect at its last revision, with the next of the servers.
type watcher struct {
	id        int
	servers   []connection
	bookmarks bool

	initial map[string]string // result of the list
	start   int64             // revision of the list
	events  []event
	resumed int
	expired int // how many servers in a row have no history from the last revision on
	failure string
}

// run watches until the marker is seen, the watch fails, or ctx is done.
func (w *watcher) run(ctx context.Context, listed chan<- struct{}) {
	version := w.list(ctx)
	listed <- struct{}{}
	for server := w.id; ctx.Err() == nil && w.failure == ""; server++ {
		stream, err := w.servers[server%len(w.servers)].watches.Watch(ctx, metav1.ListOptions{
			ResourceVersion: version, LabelSelector: selector, AllowWatchBookmarks: w.bookmarks,
		})
		if err != nil {
			w.fail(err)
			time.Sleep(20 * time.Millisecond)
			continue
		}
		w.resumed++
		done := false
		for e := range stream.ResultChan() {
			cm, isObject := e.Object.(*corev1.ConfigMap)
			if !isObject {
				w.fail(apierrors.FromObject(e.Object))
				break
			}
			version, w.expired = cm.ResourceVersion, 0
			if done = cm.Name == marker; done {
				break
			}
			w.record(e.Type, cm)
		}
		stream.Stop()
		if done {
			return
		}
	}
}

// list reads the initial state.
func (w *watcher) list(ctx context.Context) string {
	for ctx.Err() == nil {
		list, err := w.servers[w.id%len(w.servers)].requests.List(ctx, metav1.ListOptions{LabelSelector: selector})
		if err != nil {
			w.fail(err)
			continue
		}
		w.initial = map[string]string{}
		for _, cm := range list.Items {
			w.initial[cm.Name] = cm.Data["value"]
		}
		w.start, _ = strconv.ParseInt(list.ResourceVersion, 10, 64)
		return list.ResourceVersion
	}
	return ""
}

// fail records an error response of a server. A broken connection is not one, although the client reports it as an event if it
// breaks in the middle of an event. Neither is the response of one of several servers that has no majority of the others.
func (w *watcher) fail(err error) {
	if w.servers[0].losesWrites && (apierrors.IsServiceUnavailable(err) || apierrors.IsTimeout(err)) {
		return
	}
	// A server that has started a moment ago has a shorter history than the others.
	if apierrors.IsResourceExpired(err) {
		if w.expired++; w.expired < len(w.servers) {
			return
		}
	}
	if status := apierrors.APIStatus(nil); errors.As(err, &status) && !apierrors.HasStatusCause(err, "ClientWatchDecoding") {
		w.failure = err.Error()
	}
}

func (w *watcher) record(kind watch.EventType, cm *corev1.ConfigMap) {
	revision, err := strconv.ParseInt(cm.ResourceVersion, 10, 64)
	if err != nil {
		w.failure = "resourceVersion is not a number: " + err.Error()
	}
	w.events = append(w.events, event{kind, cm.Name, cm.Data["value"], revision})
}

// check requires that revisions increase, each event is consistent with the state before it, every acknowledged write is present, no
// event is unexplained, and the events add up to the final list.
func (w *watcher) check(t *testing.T, h *history, final []corev1.ConfigMap) {
	t.Helper()
	if w.failure != "" {
		t.Errorf("watcher %d failed: %s", w.id, w.failure)
		return
	}
	state := w.initial
	last := w.start
	seen := map[int64]event{}
	for i, e := range w.events {
		bookmark := e.kind == watch.Bookmark
		if e.revision < last || e.revision == last && !bookmark {
			t.Fatalf("watcher %d: event %d (%v) after revision %d: repeated or out of order", w.id, i, e, last)
		}
		last = e.revision
		if bookmark {
			continue
		}
		seen[e.revision] = e
		if _, present := state[e.key]; present == (e.kind == watch.Added) {
			t.Fatalf("watcher %d: event %d (%v) is inconsistent: key present before: %v", w.id, i, e, present)
		}
		state[e.key] = e.value
		if e.kind == watch.Deleted {
			delete(state, e.key)
		}
	}
	w.compare(t, h, seen)
	if len(state) != len(final) {
		t.Errorf("watcher %d ends with %d objects, the list has %d", w.id, len(state), len(final))
	}
	for _, cm := range final {
		if state[cm.Name] != cm.Data["value"] {
			t.Errorf("watcher %d ends with %s=%q, the list has %q", w.id, cm.Name, state[cm.Name], cm.Data["value"])
		}
	}
}

// compare compares the events with the responses that the writers received.
func (w *watcher) compare(t *testing.T, h *history, seen map[int64]event) {
	t.Helper()
	tried := map[string]bool{}
	for _, o := range h.operations {
		op, out := o.Input.(operation), o.Output.(outcome)
		if op.kind != "create" && op.kind != "update" {
			continue
		}
		tried[op.key+"="+op.value] = out.result == ok || out.result == unknown
		if out.result == ok && out.version > w.start {
			if e := seen[out.version]; e.key != op.key || e.value != op.value || e.kind == watch.Deleted {
				t.Errorf("watcher %d: %s of %s=%s at %d was acknowledged, but the event at that revision is %v", w.id, op.kind, op.key, op.value, out.version, e)
			}
		}
	}
	for _, e := range seen {
		if e.kind != watch.Deleted && !tried[e.key+"="+e.value] {
			t.Errorf("watcher %d: %v was never written", w.id, e)
		}
	}
}
