package apiserver

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/gorilla/websocket"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"skiff/internal/kind"
	"skiff/internal/store"
	"skiff/internal/store/cache"
)

// The types of events that are not changes.
const (
	eventBookmark = "BOOKMARK"
	eventError    = "ERROR"
)

// lastBookmark is how long before its end a watch sends a last bookmark, from which the client's next watch goes on.
const lastBookmark = 2 * time.Second

// initialChunk is how much of the initial state is gathered before it is sent.
const initialChunk = 64 << 10

// watcher serves one watch. It reads changes where its cursor stands, and writes all that are there with one flush.
type watcher struct {
	s      *Server
	req    *request
	res    *resource
	out    output
	opts   *listOptions
	match  *matcher
	key    string // the only one that can match, or empty
	table  *tableWriter
	sink   sink
	cursor *cache.Cursor
	// shared is where watchers who see the same find what one of them made of the last events; nil for those who select.
	shared *atomic.Pointer[batch]
	// reached is the revision up to which the client has seen everything.
	reached store.Revision
	headers bool // the columns of a table have not been sent yet
	// buffer gathers events until they are sent. It is borrowed for as long: most watchers are idle most of the time.
	buffer   []byte
	borrowed *[]byte
	counted  int // events in the buffer
}

// sink is where a watch writes to: chunks of an HTTP answer, or messages of a WebSocket.
type sink interface {
	// begin answers the request.
	begin(mediaType string) error
	// mark ends an event that was appended to the buffer.
	mark(buffer []byte)
	// send writes all events of the buffer.
	send(buffer []byte) error
	// gone is closed when the client has gone away.
	gone() <-chan struct{}
	close()
}

// watch answers a WATCH.
func (s *Server) watch(req *request) error {
	if req.res.table == nil {
		return apierrors.NewMethodNotSupported(req.res.groupResource(), "watch")
	}
	out, err := req.negotiateStream()
	if err != nil {
		return err
	}
	if out.shape == shapePartialList {
		return errNotAcceptable(acceptedTypes(req.res.codec.protobuf)...)
	}
	opts, err := req.listOptions()
	if err != nil {
		return err
	}
	if _, err := parseResourceVersion(opts.resourceVersion); err != nil {
		return err
	}
	w := &watcher{s: s, req: req, res: req.res, out: out, opts: opts, match: req.matcher(opts), headers: true}
	w.key, _ = w.match.onlyKey()
	if out.shape == shapeObject && w.match.everything() && !websocket.IsWebSocketUpgrade(req.Request) {
		w.shared = &req.res.batches[out.format]
	}
	if out.shape == shapeTable {
		if w.table, err = req.tableWriter(out); err != nil {
			return err
		}
	}
	if websocket.IsWebSocketUpgrade(req.Request) {
		w.sink = &socketSink{req: req, text: out.format == formatJSON}
	} else {
		w.sink = &chunkSink{req: req}
	}
	timeout := opts.timeout
	if timeout == 0 {
		timeout = s.limits.WatchTimeout + rand.N(s.limits.WatchTimeout)
	}
	done := s.metrics.longRunning(req)
	defer done()
	forget := s.countWatch(req, opts)
	defer forget()
	if out.format == formatJSON && out.shape == shapeObject {
		req.res.watchers.Add(1)
		defer req.res.watchers.Add(-1)
	}
	return w.serve(timeout)
}

func (w *watcher) mediaType() string {
	if w.out.format == formatProtobuf {
		return mediaProtobuf + ";stream=watch"
	}
	return mediaJSON
}

// serve runs the watch to its end. Once it has begun, what goes wrong is told to the client as an event.
func (w *watcher) serve(timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(w.req.ctx, timeout)
	defer cancel()
	deadline, _ := ctx.Deadline()
	if err := w.sink.begin(w.mediaType()); err != nil {
		return err
	}
	defer w.sink.close()
	err := w.start(ctx)
	w.req.seats.Release() // events after the initial ones need no seat
	if err == nil {
		defer w.cursor.Close()
		err = w.follow(ctx, deadline)
	}
	if err == nil || ctx.Err() != nil {
		return nil
	}
	if errors.Is(err, errClientGone) || errors.Is(err, cache.ErrRemoved) {
		return nil
	}
	if errors.Is(err, cache.ErrExpired) {
		err = apierrors.NewResourceExpired(textWatchExpired)
	}
	w.appendError(statusOf(err, w.res.groupResource(), w.req.info.name))
	_ = w.flush()
	return nil
}

var errClientGone = errors.New("the client has gone away")

// start puts the cursor where the client wants to begin, after sending what there is if it wants that.
func (w *watcher) start(ctx context.Context) error {
	initial := w.opts.initialEvents
	wanted, err := parseResourceVersion(w.opts.resourceVersion)
	if err != nil {
		return err
	}
	if wanted > 0 && (initial == nil || !*initial) {
		w.reached = wanted
		w.cursor, err = w.res.table.Watch(wanted)
		return err
	}
	if w.opts.resourceVersion == "" {
		_, err = w.s.config.Cache.Sync(ctx)
	} else {
		err = w.s.waitFor(ctx, wanted)
	}
	if err != nil {
		return err
	}
	snapshot := w.res.table.Snapshot()
	w.reached = snapshot.Revision()
	if w.cursor, err = w.res.table.Watch(w.reached); err != nil {
		return err
	}
	if initial == nil || !*initial {
		return nil
	}
	if err := w.sendInitial(snapshot); err != nil {
		return err
	}
	if w.opts.bookmarks {
		w.appendBookmark(true)
	}
	return w.flush()
}

// sendInitial sends the state as if all of it had just been created.
func (w *watcher) sendInitial(snapshot cache.Snapshot) (err error) {
	send := func(e *cache.Entry) bool {
		if !w.match.matches(e) {
			return true
		}
		event := cache.Event{Type: cache.Added, Entry: e, Revision: e.Revision()}
		if err = w.appendChange(&event, cache.Added, false); err == nil && len(w.buffer) >= initialChunk {
			err = w.flush()
		}
		return err == nil
	}
	if w.key != "" {
		if e := snapshot.Get(w.key); e != nil {
			send(e)
		}
		return err
	}
	snapshot.Ascend(w.match.prefix, "", send)
	return err
}

// follow sends changes until the time is up or the client is gone.
func (w *watcher) follow(ctx context.Context, deadline time.Time) error {
	bookmarks, stop := w.bookmarkTimer(deadline)
	defer func() { stop() }()
	due := false
	for {
		changed := w.cursor.Changed()
		events, reached, err := w.cursor.Poll()
		if err != nil {
			return err
		}
		if err := w.take(events); err != nil {
			return err
		}
		w.reached = reached
		if due {
			w.appendBookmark(false)
			due = false
			bookmarks, stop = w.bookmarkTimer(deadline)
		}
		if err := w.flush(); err != nil {
			return err
		}
		if len(events) > 0 {
			continue
		}
		select {
		case <-changed:
		case <-bookmarks:
			due = true
		case <-ctx.Done():
			return nil
		case <-w.sink.gone():
			return nil
		}
	}
}

// take sends or appends events. Watchers of all of a resource that are woken together send the same bytes, which the first
// of them makes.
func (w *watcher) take(events []cache.Event) error {
	if w.shared == nil || len(events) == 0 {
		return w.considerAll(events)
	}
	key := batchKey{prefix: w.match.prefix, first: events[0].Revision, last: events[len(events)-1].Revision}
	if made := w.shared.Load(); made != nil && made.batchKey == key {
		if made.count == 0 {
			return nil
		}
		w.res.metrics.watched(made.count, len(made.bytes))
		return w.sink.send(made.bytes)
	}
	if err := w.considerAll(events); err != nil {
		return err
	}
	if len(w.buffer) <= largestBatch {
		w.shared.Store(&batch{batchKey: key, count: w.counted, bytes: bytes.Clone(w.buffer)})
	}
	return nil
}

// largestBatch bounds what a resource keeps for watchers who come together: it stays when they have gone.
const largestBatch = 64 << 10

// batch is what a watcher of all of a resource sends for some events.
type batch struct {
	batchKey
	count int // of events within the prefix
	bytes []byte
}

type batchKey struct {
	prefix      string
	first, last store.Revision
}

func (w *watcher) considerAll(events []cache.Event) error {
	for i := range events {
		if err := w.consider(&events[i]); err != nil {
			return err
		}
	}
	return nil
}

// bookmarkTimer fires when the next bookmark is due; never when the client wants none.
func (w *watcher) bookmarkTimer(deadline time.Time) (<-chan time.Time, func()) {
	if !w.opts.bookmarks {
		return nil, func() {}
	}
	wait := w.s.limits.Bookmark
	if last := time.Until(deadline) - lastBookmark; last < wait {
		if last <= 0 {
			return nil, func() {}
		}
		wait = last
	}
	timer := time.NewTimer(wait)
	return timer.C, func() { timer.Stop() }
}

// consider appends a change as the client sees it: what enters the selection was added, what leaves it was deleted.
func (w *watcher) consider(event *cache.Event) error {
	if w.key != "" && event.Entry.Key() != w.key {
		return nil
	}
	change, departed := w.match.judge(event)
	if change == 0 {
		return nil
	}
	// Of what departs the client is shown the last state it selected, at the revision at which it lost it.
	return w.appendChange(event, change, departed)
}

// appendChange appends one event. departed says that the object still is but no longer in the selection.
func (w *watcher) appendChange(event *cache.Event, kindOfEvent cache.EventType, departed bool) (err error) {
	name := kindOfEvent.String()
	w.borrow()
	start := len(w.buffer)
	switch {
	case w.out.shape == shapeTable:
		err = w.appendTable(event, name, departed)
	case w.out.format == formatProtobuf:
		err = w.appendProto(event, name, departed)
	default:
		err = w.appendJSON(event, name, departed)
	}
	if err != nil {
		w.buffer = w.buffer[:start] // the client gets no half event
		return fmt.Errorf("encode %s for a watch: %w", event.Entry.Key(), err)
	}
	w.mark()
	return nil
}

// borrow makes the buffer ready to be appended to.
func (w *watcher) borrow() {
	if w.borrowed == nil {
		w.borrowed = getBuffer()
		w.buffer = *w.borrowed
	}
}

func (w *watcher) mark() {
	w.counted++
	w.sink.mark(w.buffer)
}

func (w *watcher) openJSON(event string) {
	w.buffer = append(w.buffer, `{"type":"`...)
	w.buffer = append(w.buffer, event...)
	w.buffer = append(w.buffer, `","object":`...)
}

func (w *watcher) closeJSON() { w.buffer = append(w.buffer, "}\n"...) }

func (w *watcher) appendJSON(event *cache.Event, name string, departed bool) error {
	var body []byte
	var err error
	switch {
	case departed && w.out.shape == shapePartial:
		obj, err := departedObject(event)
		if err != nil {
			return err
		}
		w.openJSON(name)
		w.buffer, err = appendPartialOf(w.buffer, obj, w.out.metaVersion)
		w.closeJSON()
		return err
	case departed:
		body, err = w.res.departedJSON(event)
	case w.out.shape == shapePartial:
		body, err = w.res.partialJSON(event.Entry)
	default:
		body, err = w.res.json(event.Entry)
	}
	if err != nil {
		return err
	}
	w.openJSON(name)
	if w.out.shape == shapePartial {
		w.buffer = append(append(w.buffer, partialHeads[w.out.metaVersion].json...), body[1:]...)
	} else {
		w.buffer = w.res.appendBody(w.buffer, body)
	}
	w.closeJSON()
	return nil
}

func (w *watcher) appendProto(event *cache.Event, name string, departed bool) error {
	var item protoItem
	var err error
	head := w.res.protoHead
	switch {
	case departed && w.out.shape == shapePartial:
		item, err = w.res.departedPartial(event)
	case departed:
		item, err = w.res.departedProto(event)
	case w.out.shape == shapePartial:
		item, err = w.res.partialProto(event.Entry)
	default:
		item, err = w.res.proto(event.Entry)
	}
	if err != nil {
		return err
	}
	if w.out.shape == shapePartial {
		head = partialHeads[w.out.metaVersion].proto
	}
	size := item.size()
	raw := len(head) + 1 + uvarintLen(size) + size + len(envelopeTail)
	w.openProto(name, raw)
	w.buffer = append(append(w.buffer, head...), tagField2)
	w.buffer = binary.AppendUvarint(w.buffer, uint64(size))
	w.buffer = append(item.append(w.buffer), envelopeTail...)
	return nil
}

// openProto opens a frame: four bytes of length, then a message with the event's type (field 1) and, wrapped
// once (field 2, therein field 1), the object's protobuf form, which follows and is raw bytes long.
func (w *watcher) openProto(event string, raw int) {
	wrapped := 1 + uvarintLen(raw) + raw
	message := 2 + len(event) + 1 + uvarintLen(wrapped) + wrapped
	w.buffer = binary.BigEndian.AppendUint32(w.buffer, uint32(message))
	w.buffer = append(w.buffer, tagField1, byte(len(event)))
	w.buffer = append(w.buffer, event...)
	w.buffer = binary.AppendUvarint(append(w.buffer, tagField2), uint64(wrapped))
	w.buffer = binary.AppendUvarint(append(w.buffer, tagField1), uint64(raw))
}

func (w *watcher) appendTable(event *cache.Event, name string, departed bool) error {
	obj, err := event.Entry.Object()
	if departed {
		obj, err = departedObject(event)
	}
	if err != nil {
		return err
	}
	w.openJSON(name)
	w.buffer, err = w.table.appendTableEvent(w.buffer, obj, w.headers, func(to []byte) ([]byte, error) {
		if departed {
			return w.table.appendIncluded(to, obj, w.table.include)
		}
		return w.table.appendEntry(to, event.Entry)
	})
	w.closeJSON()
	w.headers = false
	return err
}

// departedObject is the last state of an object that was selected, at the revision at which it was lost.
func departedObject(event *cache.Event) (kind.Object, error) {
	obj, err := event.Old.Object()
	if err != nil {
		return nil, err
	}
	obj = obj.DeepCopyObject().(kind.Object)
	obj.SetResourceVersion(strconv.FormatInt(event.Revision, 10))
	return obj, nil
}

// departedJSON is memoized with the new entry, so that it too is made once for all watchers: what departed there is
// the same for everyone.
func (e *encoder) departedJSON(event *cache.Event) ([]byte, error) {
	return event.Entry.Encoding(e.ids.departedJSON, func(*cache.Entry) ([]byte, error) {
		obj, err := e.departed(event)
		if err != nil {
			return nil, err
		}
		return json.Marshal(obj)
	})
}

func (e *encoder) departedProto(event *cache.Event) (protoItem, error) {
	if e.stored {
		if s, ok := newSplice(event.Old.Stored(), e.protoHead, event.Revision); ok {
			return protoItem{splice: s}, nil
		}
	}
	encoded, err := event.Entry.Encoding(e.ids.departedProto, func(*cache.Entry) ([]byte, error) {
		obj, err := e.departed(event)
		if err != nil {
			return nil, err
		}
		return marshalMessage(obj)
	})
	return protoItem{encoded: encoded}, err
}

func (e *encoder) departedPartial(event *cache.Event) (protoItem, error) {
	obj, err := departedObject(event)
	if err != nil {
		return protoItem{}, err
	}
	encoded, err := marshalMessage(partialOf(obj))
	return protoItem{encoded: encoded}, err
}

// departed is departedObject in the served version.
func (e *encoder) departed(event *cache.Event) (kind.Object, error) {
	obj, err := departedObject(event)
	if err != nil || e.convert == nil {
		return obj, err
	}
	return e.convert(obj)
}

// appendBookmark tells the client how far it has seen everything. end marks the end of the initial events.
func (w *watcher) appendBookmark(end bool) {
	version := strconv.FormatInt(w.reached, 10)
	var annotations map[string]string
	if end {
		annotations = map[string]string{metav1.InitialEventsAnnotationKey: "true"}
	}
	var obj kind.Object
	if w.out.shape == shapeTable {
		obj = w.res.kind.New()
	} else {
		obj = w.res.newObject()
	}
	if u, ok := obj.(*unstructured.Unstructured); ok && len(u.Object) == 0 {
		u.SetGroupVersionKind(w.res.gvk)
	}
	obj.SetResourceVersion(version)
	obj.SetAnnotations(annotations)
	w.borrow()
	start := len(w.buffer)
	if err := w.appendBookmarkOf(obj, end); err != nil {
		w.s.log.Error("cannot encode a bookmark", "resource", w.res.gvr, "error", err)
		w.buffer = w.buffer[:start]
		return
	}
	w.mark()
}

func (w *watcher) appendBookmarkOf(obj kind.Object, end bool) (err error) {
	switch {
	case w.out.shape == shapeTable:
		include := w.table.include
		if end {
			include = metav1.IncludeMetadata // the annotation must reach the client
		}
		w.openJSON(eventBookmark)
		w.buffer, err = w.table.appendTableEvent(w.buffer, obj, w.headers, func(to []byte) ([]byte, error) {
			return w.table.appendIncluded(to, obj, include)
		})
		w.closeJSON()
		w.headers = false
		return err
	case w.out.shape == shapePartial:
		return w.appendObject(eventBookmark, partialOf(obj), partialKind(w.out.metaVersion))
	}
	return w.appendObject(eventBookmark, obj, w.res.gvk)
}

func (w *watcher) appendError(status *metav1.Status) {
	w.borrow()
	if err := w.appendObject(eventError, status, metav1.Unversioned.WithKind("Status")); err != nil {
		w.s.log.Error("cannot encode an error for a watch", "resource", w.res.gvr, "error", err)
		return
	}
	w.mark()
}

// appendObject appends an event with an object that is no entry.
func (w *watcher) appendObject(event string, obj runtime.Object, gvk schema.GroupVersionKind) error {
	body, err := appendObject(nil, obj, gvk, w.out.format)
	if err != nil {
		return err
	}
	if w.out.format == formatProtobuf {
		w.openProto(event, len(body))
		w.buffer = append(w.buffer, body...)
		return nil
	}
	w.openJSON(event)
	w.buffer = append(w.buffer, body...)
	w.closeJSON()
	return nil
}

// flush sends what has been appended.
func (w *watcher) flush() error {
	if w.borrowed == nil {
		return nil
	}
	// Counted first: whoever has seen an event finds it counted.
	w.res.metrics.watched(w.counted, len(w.buffer))
	err := w.sink.send(w.buffer)
	w.counted = 0
	*w.borrowed = w.buffer
	putBuffer(w.borrowed)
	w.borrowed, w.buffer = nil, nil
	return err
}

// chunkSink writes to an ordinary HTTP answer.
type chunkSink struct {
	req *request
}

func (c *chunkSink) begin(mediaType string) error {
	header := c.req.w.Header()
	header["Content-Type"] = contentType(mediaType)
	c.req.writeWarnings()
	c.req.w.WriteHeader(http.StatusOK)
	c.req.w.Flush()
	return nil
}

func (c *chunkSink) mark([]byte) {}

func (c *chunkSink) send(buffer []byte) error {
	if _, err := c.req.w.Write(buffer); err != nil {
		return errClientGone
	}
	c.req.w.Flush()
	return nil
}

// gone: the request's context tells.
func (c *chunkSink) gone() <-chan struct{} { return nil }

func (c *chunkSink) close() {}
