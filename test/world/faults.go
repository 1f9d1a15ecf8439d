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

// Faults is what goes wrong for a process that runs controllers. The zero value: nothing.
type Faults struct {
	// StopAfter ends the process right behind its n-th write: the write is done, but nobody hears so.
	StopAfter int
	// Lag is how much later than it happened the process hears of a change.
	Lag time.Duration
	// MissEvery breaks every watch at its n-th event, which is lost: all is read anew.
	MissEvery int

	underway sync.RWMutex // held by writes that are under way; the last waits for the others
	mu       sync.Mutex
	stop     func() // ends the process
	writes   []string
	by       map[string]int
	asked    map[string]bool
}

// Asked are all requests of the controllers, readings included, each once: "namespace-controller: GET /api/v1/namespaces/work". What
// informers read is not among them.
func (f *Faults) Asked() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Sorted(maps.Keys(f.asked))
}

// ask notes a request.
func (f *Faults) ask(who, method, path string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.asked == nil {
		f.asked = map[string]bool{}
	}
	f.asked[who+": "+method+" "+path] = true
}

// Writes are what the controllers wrote, in order, and how often each of them did.
func (f *Faults) Writes() (all []string, by map[string]int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.writes, f.by
}

// Manage runs controllers in a process that faults happen to. When it ends of them it is started again, and then nothing more
// happens to it. It stops with the world.
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

// errStopped is what a process that has ended would have seen.
var errStopped = errors.New("the process has ended")

// note counts a write. done says that the process has ended before it, last that it ends behind it.
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

// writing is the server as one controller of the process writes to it.
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

// pathOf is where a resource is served.
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

// RoundTrip lets requests through until the process has ended. Questions that are sent as creations are no writes.
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
		// The process ends while the answer is on its way.
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

// reading is the server as the process's informers see it.
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
	late := make(chan lateEvent, 10000)
	go w.receive(late, r.faults, options.SendInitialEvents != nil && *options.SendInitialEvents)
	go w.deliver(late)
	return w, nil
}

// faultyWatch hands events on: late, or not all.
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

type lateEvent struct {
	event watch.Event
	due   time.Time
}

// receive takes events from the server and loses those that are to be missed. What there is at the start is never lost: nothing
// would ever be read.
func (w *faultyWatch) receive(late chan<- lateEvent, faults *Faults, initial bool) {
	defer close(late)
	defer w.source.Stop()
	seen := 0
	for event := range w.source.ResultChan() {
		switch {
		case event.Type == watch.Bookmark:
			initial = false
		case !initial:
			seen++
		}
		if faults.MissEvery > 0 && seen >= faults.MissEvery {
			expired := apierrors.NewResourceExpired("too old resource version").Status()
			event = watch.Event{Type: watch.Error, Object: &expired}
		}
		select {
		case late <- lateEvent{event, time.Now().Add(faults.Lag)}:
		case <-w.ended:
			return
		}
		if event.Type == watch.Error {
			return
		}
	}
}

// deliver hands events on when they are due.
func (w *faultyWatch) deliver(late <-chan lateEvent) {
	defer close(w.events)
	for l := range late {
		select {
		case <-time.After(time.Until(l.due)):
		case <-w.ended:
			return
		}
		select {
		case w.events <- l.event:
		case <-w.ended:
			return
		}
	}
}
