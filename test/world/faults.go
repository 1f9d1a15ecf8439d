package world

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"skiff/internal/client"
	"skiff/internal/controller"
	"skiff/internal/kind"
)

// Faults are injected into a process that runs controllers. The zero value injects none.
type Faults struct {
	// StopAfter stops the process after its n-th write: the write is stored, but the process gets no response.
	StopAfter int
	// Lag delays watch events.
	Lag time.Duration
	// MissEvery ends every watch at its n-th event, which is lost, so that everything is listed again.
	MissEvery int

	underway sync.RWMutex // held by writes in progress; the last one waits for the others
	mu       sync.Mutex
	stop     func() // stops the process
	writes   []string
	by       map[string]int
	asked    map[string]bool
}

// Asked returns all requests of the controllers, including reads, without duplicates: "namespace-controller: GET
// /api/v1/namespaces/work". Requests of informers are left out.
func (f *Faults) Asked() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Sorted(maps.Keys(f.asked))
}

// ask records a request.
func (f *Faults) ask(who, method, path string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.asked == nil {
		f.asked = map[string]bool{}
	}
	f.asked[who+": "+method+" "+path] = true
}

// Writes returns the writes of the controllers in order, and their number by controller.
func (f *Faults) Writes() (all []string, by map[string]int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.writes, f.by
}

// Manage runs controllers in a process with faults. When a fault stops the process, it is restarted without faults. It
// stops with the world.
func (w *World) Manage(faults *Faults, definitions ...controller.Definition) {
	w.T.Helper()
	first, cancel := context.WithCancel(w.Ctx)
	faults.stop = cancel
	faults.by = map[string]int{}
	stop := w.start(first, faults, definitions)
	context.AfterFunc(first, func() {
		stop()
		if w.Ctx.Err() == nil {
			stop = w.start(w.Ctx, &Faults{}, definitions)
			context.AfterFunc(w.Ctx, stop)
		}
	})
}

// errStopped is the error of requests after the process has stopped.
var errStopped = errors.New("the process has ended")

// note counts a write. done is set if the process has stopped before it, last if it stops after it.
func (f *Faults) note(who string, r *http.Request) (done, last bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.StopAfter > 0 && len(f.writes) >= f.StopAfter {
		return true, false
	}
	f.writes = append(f.writes, fmt.Sprintf("%s: %s %s", who, r.Method, r.URL.Path))
	if f.by != nil {
		f.by[who]++
	}
	return false, len(f.writes) == f.StopAfter
}

// writing is the server as a controller of the process accesses it.
func (f *Faults) writing(local client.Local, who string) client.Local { return writer{local, f, who} }

type writer struct {
	client.Local
	faults *Faults
	who    string
}

func (w writer) Transport() http.RoundTripper { return transport{w.Local.Transport(), w.faults, w.who} }

func (w writer) Get(ctx context.Context, gvr schema.GroupVersionResource, namespace, name string) (kind.Object, error) {
	w.faults.ask(w.who, http.MethodGet, pathOf(gvr, namespace)+"/"+name)
	return w.Local.Get(ctx, gvr, namespace, name)
}

func (w writer) List(ctx context.Context, gvr schema.GroupVersionResource, namespace string, l labels.Selector, f fields.Selector) ([]kind.Object, string, error) {
	w.faults.ask(w.who, http.MethodGet, pathOf(gvr, namespace))
	return w.Local.List(ctx, gvr, namespace, l, f)
}

// pathOf returns the API path of a resource.
func pathOf(gvr schema.GroupVersionResource, namespace string) string {
	path := "/apis/" + gvr.Group + "/" + gvr.Version
	if gvr.Group == "" {
		path = "/api/" + gvr.Version
	}
	if namespace != "" {
		path += "/namespaces/" + namespace
	}
	return path + "/" + gvr.Resource
}

type transport struct {
	http.RoundTripper
	faults *Faults
	who    string
}

// RoundTrip passes requests on until the process has stopped. Reviews, which are sent as creates, do not count as writes.
func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	t.faults.ask(t.who, r.Method, r.URL.Path)
	if r.Method == http.MethodGet || strings.HasSuffix(r.URL.Path, "reviews") {
		return t.RoundTripper.RoundTrip(r)
	}
	done, last := t.faults.note(t.who, r)
	if done {
		return nil, errStopped
	}
	if last {
		t.faults.underway.Lock()
		defer t.faults.underway.Unlock()
		// The process stops before it receives the response.
		resp, err := t.RoundTripper.RoundTrip(r.WithContext(context.WithoutCancel(r.Context())))
		if err == nil {
			resp.Body.Close()
		}
		t.faults.stop()
		return nil, errStopped
	}
	t.faults.underway.RLock()
	defer t.faults.underway.RUnlock()
	return t.RoundTripper.RoundTrip(r)
}

// reading is the server as the process's informers access it.
func (f *Faults) reading(local client.Local) client.Local {
	if f.Lag == 0 && f.MissEvery == 0 {
		return local
	}
	return reader{local, f}
}

type reader struct {
	client.Local
	faults *Faults
}

func (r reader) Watch(ctx context.Context, gvr schema.GroupVersionResource, namespace string, options *internalversion.ListOptions) (watch.Interface, error) {
	source, err := r.Local.Watch(ctx, gvr, namespace, options)
	if err != nil {
		return nil, err
	}
	w := &faultyWatch{source: source, events: make(chan watch.Event), ended: make(chan struct{})}
	delayed := make(chan delayedEvent, 10000)
	go w.receive(delayed, r.faults, options.SendInitialEvents != nil && *options.SendInitialEvents)
	go w.deliver(delayed)
	return w, nil
}

// faultyWatch delivers events with delay or loss.
type faultyWatch struct {
	source watch.Interface
	events chan watch.Event
	once   sync.Once
	ended  chan struct{}
}

func (w *faultyWatch) ResultChan() <-chan watch.Event { return w.events }

func (w *faultyWatch) Stop() {
	w.once.Do(func() { close(w.ended) })
	w.source.Stop()
}

type delayedEvent struct {
	event watch.Event
	at    time.Time
}

// receive receives events from the server and drops those to be missed. Initial events are never dropped, or nothing
// would ever be listed.
func (w *faultyWatch) receive(delayed chan<- delayedEvent, faults *Faults, initial bool) {
	defer close(delayed)
	defer w.source.Stop()
	received := 0
	for event := range w.source.ResultChan() {
		switch {
		case event.Type == watch.Bookmark:
			initial = false
		case !initial:
			received++
		}
		if faults.MissEvery > 0 && received >= faults.MissEvery {
			expired := apierrors.NewResourceExpired("too old resource version").Status()
			event = watch.Event{Type: watch.Error, Object: &expired}
		}
		select {
		case delayed <- delayedEvent{event, time.Now().Add(faults.Lag)}:
		case <-w.ended:
			return
		}
		if event.Type == watch.Error {
			return
		}
	}
}

// deliver delivers events after their delay.
func (w *faultyWatch) deliver(delayed <-chan delayedEvent) {
	defer close(w.events)
	for e := range delayed {
		select {
		case <-time.After(time.Until(e.at)):
		case <-w.ended:
			return
		}
		select {
		case w.events <- e.event:
		case <-w.ended:
			return
		}
	}
}
