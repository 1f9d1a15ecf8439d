package apiserver

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"runtime/debug"
	"strconv"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"skiff/internal/apiserver/authn"
	"skiff/internal/kind"
	"skiff/internal/store/cache"
)

// Local is the in-process client's access to the server. Reads return the cache's own objects, which are read-only; everything else
// goes through the handler, without a connection, as the given user.
type Local struct {
	server *Server
	user   authn.User
}

// Local returns the access of a component in the same process that acts as user. Reads are not authorized.
func (s *Server) Local(user authn.User) *Local { return &Local{server: s, user: user} }

// As returns the same access as another user.
func (l *Local) As(user authn.User) *Local { return l.server.Local(user) }

// find returns the resource, which must be requested in its storage version: other versions are converted for each reader.
func (l *Local) find(gvr schema.GroupVersionResource) (*resource, error) {
	res := l.server.catalog.find(gvr)
	if res == nil || res.table == nil || !res.stored() {
		return nil, apierrors.NewNotFound(gvr.GroupResource(), "")
	}
	return res, nil
}

// acquire is find for a resource that must be released.
func (l *Local) acquire(gvr schema.GroupVersionResource) (*resource, error) {
	return acquire(func() (*resource, error) { return l.find(gvr) })
}

// recovered turns a panic in a read into its error, and must be deferred. A request through the handler recovers there.
func (l *Local) recovered(gvr schema.GroupVersionResource, err *error) {
	if cause := recover(); cause != nil {
		*err = l.server.localPanic(gvr, cause)
	}
}

// localPanic logs and counts a panic, as the handler does for requests, and returns the error of the caller.
func (s *Server) localPanic(gvr schema.GroupVersionResource, cause any) error {
	s.metrics.panics.Inc()
	s.log.Error("request panicked", "resource", gvr, "cause", cause, "stack", string(debug.Stack()))
	return errPanicked()
}

// Get returns the cache's own object.
func (l *Local) Get(ctx context.Context, gvr schema.GroupVersionResource, namespace, name string) (obj kind.Object, err error) {
	defer l.recovered(gvr, &err)
	res, err := l.acquire(gvr)
	if err != nil {
		return nil, err
	}
	defer res.release()
	snapshot, err := l.server.newestState(ctx, res.table)
	if err != nil {
		return nil, err
	}
	e := snapshot.Get(res.kind.Key(namespace, name))
	if e == nil {
		return nil, apierrors.NewNotFound(gvr.GroupResource(), name)
	}
	return res.objectForWrite(ctx, e)
}

// List returns the cache's own objects that match, and the revision of the list. A nil selector matches everything.
func (l *Local) List(ctx context.Context, gvr schema.GroupVersionResource, namespace string, ls labels.Selector, fs fields.Selector) (objs []kind.Object, revision string, err error) {
	defer l.recovered(gvr, &err)
	res, err := l.acquire(gvr)
	if err != nil {
		return nil, "", err
	}
	defer res.release()
	snapshot, err := l.server.newestState(ctx, res.table)
	if err != nil {
		return nil, "", err
	}
	objs, err = res.objectsOf(snapshot, localMatcher(ctx, res, namespace, &listOptions{labels: ls, fields: fs}))
	return objs, strconv.FormatInt(snapshot.Revision(), 10), err
}

func localMatcher(ctx context.Context, res *resource, namespace string, opts *listOptions) *matcher {
	req := &request{ctx: ctx, res: res, info: requestInfo{namespace: namespace}}
	return req.matcher(opts)
}

// objectsOf returns the objects of a snapshot that match, as objectForWrite does.
func (r *resource) objectsOf(snapshot cache.Snapshot, match *matcher) (objs []kind.Object, err error) {
	match.ascend(snapshot, "", 0, func(e *cache.Entry) bool {
		var obj kind.Object
		if obj, err = e.Object(); err == nil {
			objs = append(objs, obj)
		}
		return err == nil
	})
	if err = errors.Join(err, match.err); err != nil || r.kind.Custom == nil {
		return objs, err
	}
	return r.fromStorageVersions(match.ctx, objs)
}

// readInitial reads what the watch sends first. The objects of custom resources are converted together; others are decoded when they are sent, because
// the cache keeps decoded objects only while they are in use, and all of them may be too large.
func (w *localWatch) readInitial(snapshot cache.Snapshot) (err error) {
	if w.res.kind.Custom != nil {
		w.converted, err = w.res.objectsOf(snapshot, w.match)
		return err
	}
	w.match.ascend(snapshot, "", 0, func(e *cache.Entry) bool {
		w.initial = append(w.initial, e)
		return true
	})
	return w.match.err
}

// sendInitial sends what readInitial has read, and reports whether the watch goes on.
func (w *localWatch) sendInitial(ctx context.Context) bool {
	for _, obj := range w.converted {
		if !w.send(ctx, watch.Added, obj) {
			return false
		}
	}
	for _, e := range w.initial {
		obj, err := e.Object()
		if err != nil {
			return w.fail(ctx, err)
		}
		if !w.send(ctx, watch.Added, obj) {
			return false
		}
	}
	w.initial, w.converted = nil, nil
	return w.bookmark == nil || w.send(ctx, watch.Bookmark, w.bookmark)
}

// Watch streams the cached objects: with SendInitialEvents, first those that match now, followed by a bookmark; otherwise all changes
// after ResourceVersion.
func (l *Local) Watch(ctx context.Context, gvr schema.GroupVersionResource, namespace string, options *internalversion.ListOptions) (_ watch.Interface, err error) {
	defer l.recovered(gvr, &err)
	res, err := l.acquire(gvr)
	if err != nil {
		return nil, err
	}
	defer res.release()
	ctx, cancel := context.WithCancel(ctx)
	defer func() {
		if err != nil {
			cancel()
		}
	}()
	selected := &listOptions{labels: options.LabelSelector, fields: options.FieldSelector}
	w := &localWatch{server: l.server, match: localMatcher(ctx, res, namespace, selected), res: res, out: make(chan watch.Event), cancel: cancel}
	revision, err := parseResourceVersion(options.ResourceVersion)
	if err != nil {
		return nil, err
	}
	initial := options.SendInitialEvents != nil && *options.SendInitialEvents
	if initial || revision == 0 {
		snapshot, err := l.server.newestState(ctx, res.table)
		if err != nil {
			return nil, err
		}
		revision = snapshot.Revision()
		if initial {
			if err := w.readInitial(snapshot); err != nil {
				return nil, err
			}
			w.bookmark = res.newObject()
			w.bookmark.SetResourceVersion(strconv.FormatInt(revision, 10))
			w.bookmark.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
		}
	}
	if w.cursor, err = res.table.Watch(revision, w.match.scope()); err != nil {
		return nil, apiError(err, gvr.GroupResource(), "").(error)
	}
	go w.run(ctx)
	return w, nil
}

// localWatch sends the changes of a table to a component in the same process.
type localWatch struct {
	server *Server
	res    *resource
	match  *matcher
	cursor *cache.Cursor
	out    chan watch.Event
	cancel context.CancelFunc
	// initial or converted are sent first, then the bookmark.
	initial   []*cache.Entry
	converted []kind.Object
	bookmark  kind.Object
}

// ResultChan implements watch.Interface.
func (w *localWatch) ResultChan() <-chan watch.Event { return w.out }

// Stop implements watch.Interface.
func (w *localWatch) Stop() { w.cancel() }

func (w *localWatch) run(ctx context.Context) {
	defer close(w.out)
	defer w.cancel()
	defer w.cursor.Close()
	defer func() {
		if cause := recover(); cause != nil {
			w.send(ctx, watch.Error, statusOf(w.server.localPanic(w.res.gvr, cause), w.res.groupResource(), ""))
		}
	}()
	if !w.sendInitial(ctx) {
		return
	}
	for {
		events, _, err := w.cursor.Next(ctx)
		if prepared := w.match.prepare(events); prepared != nil {
			events, err = nil, prepared
		}
		if !w.forward(ctx, events) {
			return
		}
		if err != nil {
			if ctx.Err() == nil {
				w.send(ctx, watch.Error, statusOf(err, w.res.groupResource(), ""))
			}
			return
		}
	}
}

// forward sends changes as the selector sees them: an object that begins to match is added, one that ceases to match is deleted. Custom resources are
// converted together. It reports whether the watch goes on.
func (w *localWatch) forward(ctx context.Context, events []cache.Event) bool {
	var changes []cache.EventType
	var objs []kind.Object
	for i := range events {
		change, obj, err := w.classify(&events[i])
		switch {
		case err != nil:
			return w.sendConverted(ctx, changes, objs) && w.fail(ctx, err)
		case change == 0:
		case w.res.kind.Custom != nil:
			changes, objs = append(changes, change), append(objs, obj)
		case !w.send(ctx, watch.EventType(change.String()), obj):
			return false
		}
	}
	return w.sendConverted(ctx, changes, objs)
}

// classify returns how the watch sees a change, 0 if it does not, and the object in the version in which it is stored.
func (w *localWatch) classify(event *cache.Event) (cache.EventType, kind.Object, error) {
	change, deselected, err := w.match.classify(event)
	if change == 0 || err != nil {
		return 0, nil, err
	}
	var obj kind.Object
	if deselected {
		obj, err = deselectedObject(event)
	} else {
		obj, err = event.Entry.Object()
	}
	return change, obj, err
}

// sendConverted converts objects to the version of the watch and sends them.
func (w *localWatch) sendConverted(ctx context.Context, changes []cache.EventType, objs []kind.Object) bool {
	if len(objs) == 0 {
		return true
	}
	converted, err := w.res.fromStorageVersions(ctx, objs)
	if err != nil {
		return w.fail(ctx, err)
	}
	for i, obj := range converted {
		if !w.send(ctx, watch.EventType(changes[i].String()), obj) {
			return false
		}
	}
	return true
}

// fail sends an error, after which the watch ends.
func (w *localWatch) fail(ctx context.Context, err error) bool {
	w.send(ctx, watch.Error, statusOf(err, w.res.groupResource(), ""))
	return false
}

func (w *localWatch) send(ctx context.Context, kind watch.EventType, obj runtime.Object) bool {
	select {
	case w.out <- watch.Event{Type: kind, Object: obj}:
		return true
	case <-ctx.Done():
		return false
	}
}

// Transport carries requests to the handler without a connection.
func (l *Local) Transport() http.RoundTripper { return l }

// RoundTrip implements http.RoundTripper. The handler runs in its own goroutine, so that streams work too.
func (l *Local) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(authn.WithUser(r.Context(), l.user))
	request := r.Clone(ctx)
	request.RequestURI = r.URL.RequestURI()
	if request.Body == nil {
		request.Body = http.NoBody
	}
	w := &localResponse{header: make(http.Header), started: make(chan struct{}), ctx: ctx, cancel: cancel}
	w.changed.L = &w.mu
	go func() {
		defer w.finish()
		defer request.Body.Close()
		defer l.server.abortLocal(w, request)
		l.server.Handler().ServeHTTP(w, request)
	}()
	select {
	case <-w.started:
	case <-r.Context().Done():
		cancel()
		return nil, r.Context().Err()
	}
	return &http.Response{
		Status: strconv.Itoa(w.code) + " " + http.StatusText(w.code), StatusCode: w.code,
		Proto: "HTTP/2.0", ProtoMajor: 2, Header: w.header, Body: w, ContentLength: -1, Request: r,
	}, nil
}

// abortLocal ends a response whose handler panicked, and must be deferred. The handler itself has recovered, logged and
// counted; http.ErrAbortHandler says that the response it had begun is not complete.
func (s *Server) abortLocal(w *localResponse, r *http.Request) {
	cause := recover()
	if cause == nil {
		return
	}
	if err, ok := cause.(error); !ok || !errors.Is(err, http.ErrAbortHandler) {
		s.metrics.panics.Inc()
		s.log.Error("request panicked", "path", r.URL.Path, "cause", cause, "stack", string(debug.Stack()))
	}
	w.abort()
}

// maxLocalBuffer is how much of a response is made before its caller reads it.
const maxLocalBuffer = 256 << 10

// localResponse carries a response from the handler to a caller in the same process.
type localResponse struct {
	header  http.Header
	code    int
	started chan struct{}
	ctx     context.Context
	cancel  context.CancelFunc

	mu            sync.Mutex
	changed       sync.Cond // the handler has written or the caller has read, or either has ended
	buffer        bytes.Buffer
	headerWritten bool
	finished      bool
	closed        bool
	aborted       bool // the handler panicked: the body is not complete
}

// Header implements http.ResponseWriter.
func (w *localResponse) Header() http.Header { return w.header }

// WriteHeader implements http.ResponseWriter.
func (w *localResponse) WriteHeader(code int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.writeHeader(code)
}

func (w *localResponse) writeHeader(code int) {
	if w.headerWritten {
		return
	}
	w.headerWritten, w.code = true, code
	close(w.started)
}

// Write implements http.ResponseWriter. It waits until the caller has read most of what was written before.
func (w *localResponse) Write(data []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.writeHeader(http.StatusOK)
	if w.buffer.Len() >= maxLocalBuffer {
		defer context.AfterFunc(w.ctx, w.wake)()
	}
	for w.buffer.Len() >= maxLocalBuffer && !w.closed && w.ctx.Err() == nil {
		w.changed.Wait()
	}
	if w.closed {
		return 0, errors.New("response body closed by the caller")
	}
	if w.buffer.Len() >= maxLocalBuffer {
		return 0, w.ctx.Err()
	}
	defer w.changed.Broadcast()
	return w.buffer.Write(data)
}

// wake makes a waiting Write examine the context.
func (w *localResponse) wake() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.changed.Broadcast()
}

// Flush implements http.Flusher: everything is visible as soon as it is written, a header alone included.
func (w *localResponse) Flush() { w.WriteHeader(http.StatusOK) }

func (w *localResponse) finish() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.writeHeader(http.StatusOK)
	w.finished = true
	w.changed.Broadcast()
}

// abort ends the response after a panic. Without a header the caller gets an internal error.
func (w *localResponse) abort() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.writeHeader(http.StatusInternalServerError)
	w.aborted = true
}

// Read implements the body the caller reads.
func (w *localResponse) Read(data []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.buffer.Len() == 0 {
		if w.finished && w.aborted {
			return 0, io.ErrUnexpectedEOF
		}
		if w.finished || w.closed {
			return 0, io.EOF
		}
		w.changed.Wait()
	}
	defer w.changed.Broadcast()
	return w.buffer.Read(data)
}

// Close ends the request.
func (w *localResponse) Close() error {
	w.cancel()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	w.changed.Broadcast()
	return nil
}
