package apiserver

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
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

// The event types besides ADDED, MODIFIED and DELETED.
const (
	eventBookmark = "BOOKMARK"
	eventError    = "ERROR"
)

// finalBookmark is how long before its end a watch sends a last bookmark, from which the client's next watch continues.
const finalBookmark = 2 * time.Second

// initialChunk is the size at which the initial events are flushed.
const initialChunk = 64 << 10

// watcher serves one watch. It reads events at its cursor and writes all that are available with one flush.
type watcher struct {
	s      *Server
	req    *request
	res    *resource
	encode *encoder // of the resource, for this request
	out    output
	opts   *listOptions
	match  *matcher
	key    string // the only one that can match, or empty
	table  *tableWriter
	sink   sink
	cursor *cache.Cursor
	// shared is the last encoded batch, which watchers without a selector share; nil for those with one.
	shared *atomic.Pointer[batch]
	// group sends the events of watchers that share batches; nil if the watcher cannot be in one. signal is sent when the watcher becomes
	// the group's leader, or is no longer a member. direct is the response, for the leader.
	group  *watchGroup
	signal chan struct{}
	direct directWriter
	// reached is the revision up to which the client has seen everything.
	reached store.Revision
	headers bool // the columns of a table have not been sent yet
	// buffer collects events until they are sent. It comes from a pool and is returned then: most watchers are idle.
	buffer         []byte
	pooled         *[]byte
	bufferedEvents int // events in the buffer
}

// sink is where a watch writes to: an HTTP response, or the messages of a WebSocket.
type sink interface {
	// begin sends the response header.
	begin(mediaType string) error
	// mark ends an event that was appended to the buffer.
	mark(buffer []byte)
	// send writes all events of the buffer.
	send(buffer []byte) error
	// disconnected is closed when the client disconnects; nil if the request's context is done then.
	disconnected() <-chan struct{}
	close()
}

// watch serves a WATCH.
func (s *Server) watch(req *request) error {
	if req.res.table == nil {
		return apierrors.NewMethodNotSupported(req.res.groupResource(), "watch")
	}
	out, err := req.negotiateStream()
	if err != nil {
		return err
	}
	if out.transform == transformPartialList {
		return errNotAcceptable(acceptedTypes(req.res.codec.protobuf)...)
	}
	opts, err := req.listOptions()
	if err != nil {
		return err
	}
	if _, err := parseResourceVersion(opts.resourceVersion); err != nil {
		return err
	}
	w := &watcher{s: s, req: req, res: req.res, encode: req.res.with(req.ctx), out: out, opts: opts, match: req.matcher(opts), headers: true}
	w.key, _ = w.match.onlyKey()
	if out.transform == transformNone && w.match.everything() && !websocket.IsWebSocketUpgrade(req.Request) {
		w.shared = &req.res.batches[out.format]
	}
	if out.transform == transformTable {
		if w.table, err = req.tableWriter(out); err != nil {
			return err
		}
	}
	if websocket.IsWebSocketUpgrade(req.Request) {
		w.sink = &socketSink{req: req, text: out.format == formatJSON}
	} else {
		w.sink = &chunkSink{req: req, timeout: s.limits.Timeout}
	}
	timeout := opts.timeout
	if timeout == 0 {
		timeout = s.limits.WatchTimeout + rand.N(s.limits.WatchTimeout)
	}
	done := s.metrics.longRunning(req)
	defer done()
	unregister := s.countWatch(req, opts)
	defer unregister()
	if out.format == formatJSON && out.transform == transformNone {
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

// serve runs the watch to its end. Once it has begun, errors are sent as ERROR events.
func (w *watcher) serve(timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(w.req.ctx, timeout)
	defer cancel()
	deadline, _ := ctx.Deadline()
	defer func() {
		if w.cursor != nil {
			w.cursor.Close()
		}
	}()
	snapshot, err := w.position(ctx)
	if err := w.sink.begin(w.mediaType()); err != nil {
		return err
	}
	defer w.sink.close()
	if err == nil {
		err = w.sendInitial(snapshot)
	}
	// Events after the initial ones need no seat, so there is none to return while the client does not read.
	w.req.seats.Release()
	w.req.w.wait = nil
	if err == nil {
		err = w.follow(ctx, deadline)
	}
	if err == nil || ctx.Err() != nil {
		return nil
	}
	if errors.Is(err, errClientGone) || errors.Is(err, cache.ErrRemoved) {
		return nil
	}
	var tooOld *cache.ExpiredError
	if errors.Is(err, cache.ErrExpired) && !errors.As(err, &tooOld) {
		err = apierrors.NewResourceExpired(textWatchExpired)
	}
	w.appendError(statusOf(err, w.res.groupResource(), w.req.info.name))
	_ = w.flush()
	return nil
}

var errClientGone = errors.New("client disconnected")

// position positions the cursor, before the response begins: who has its header sees every event from then on. The snapshot is the state there.
func (w *watcher) position(ctx context.Context) (snapshot cache.Snapshot, err error) {
	wanted, err := parseResourceVersion(w.opts.resourceVersion)
	if err != nil {
		return snapshot, err
	}
	if wanted > 0 && !w.wantsInitial() {
		w.reached = wanted
		w.cursor, err = w.res.table.Watch(wanted, w.match.scope())
		return snapshot, err
	}
	if w.opts.resourceVersion == "" {
		_, err = w.s.config.Cache.Sync(ctx)
	} else {
		err = w.s.waitFor(ctx, wanted)
	}
	if err != nil {
		return snapshot, err
	}
	snapshot = w.res.table.Snapshot()
	w.reached = snapshot.Revision()
	w.cursor, err = w.res.table.Watch(w.reached, w.match.scope())
	return snapshot, err
}

// wantsInitial reports whether the watch begins with the state.
func (w *watcher) wantsInitial() bool { return w.opts.initialEvents != nil && *w.opts.initialEvents }

// sendInitial sends the state, and the bookmark that ends it, if requested.
func (w *watcher) sendInitial(snapshot cache.Snapshot) error {
	if !w.wantsInitial() {
		return nil
	}
	if err := w.sendState(snapshot); err != nil {
		return err
	}
	if w.opts.bookmarks {
		w.appendBookmark(true)
	}
	if err := w.flush(); err != nil {
		return err
	}
	if w.opts.bookmarks {
		w.res.metrics.watchListed(scopeOf(&w.req.info), time.Since(w.req.start))
	}
	return nil
}

// sendState sends the state as ADDED events.
func (w *watcher) sendState(snapshot cache.Snapshot) (err error) {
	var run []selectedEvent // of objects that a webhook converts
	send := func(e *cache.Entry) bool {
		added := selectedEvent{event: &cache.Event{Type: cache.Added, Entry: e, Revision: e.Revision()}, eventType: cache.Added}
		switch {
		case !w.encode.webhook:
			err = w.sendEvent(added)
		case len(run) < maxMatchRun-1:
			run = append(run, added)
		default:
			err, run = w.convertEvents(append(run, added), w.sendEvent), run[:0]
		}
		return err == nil
	}
	if w.key == "" {
		w.match.ascend(snapshot, "", 0, send)
	} else if e := snapshot.Get(w.key); e != nil && w.match.matches(e) {
		send(e)
	}
	if err == nil && w.match.err == nil {
		err = w.convertEvents(run, w.sendEvent)
	}
	return errors.Join(err, w.match.err)
}

// sendEvent appends an event and sends those that were appended if they are large.
func (w *watcher) sendEvent(c selectedEvent) error {
	if err := w.appendSelected(c); err != nil || len(w.buffer) < initialChunk {
		return err
	}
	return w.flush()
}

// follow sends events until the timeout or until the client disconnects.
func (w *watcher) follow(ctx context.Context, deadline time.Time) error {
	release := w.enterGroup()
	defer release()
	bookmarks, stop := w.bookmarkTimer(deadline)
	defer func() { stop() }()
	bookmarkDue := false
	for {
		changed := w.cursor.Changed()
		events, reached, err := w.cursor.Poll()
		if err != nil {
			return err
		}
		if err := w.deliver(events); err != nil {
			return err
		}
		w.reached = reached
		if bookmarkDue {
			w.appendBookmark(false)
			bookmarkDue = false
			bookmarks, stop = w.bookmarkTimer(deadline)
		}
		if err := w.flush(); err != nil {
			return err
		}
		if len(events) > 0 {
			continue
		}
		if w.group != nil && w.group.join(w) {
			changed = nil // the leader sends events
		}
		select {
		case <-changed:
		case <-w.signal:
		case <-bookmarks:
			bookmarkDue = true
			if w.group != nil {
				w.group.leave(w)
			}
		case <-ctx.Done():
			return nil
		case <-w.sink.disconnected():
			return nil
		}
	}
}

// deliver sends or appends events. Watchers without a selector that are woken together send the same bytes, which the first of them
// encodes.
func (w *watcher) deliver(events []cache.Event) error {
	if w.shared == nil || len(events) == 0 {
		return w.appendEvents(events)
	}
	made, err := w.batchOf(events)
	if err != nil {
		return err
	}
	defer w.releaseBuffer()
	if w.group != nil && w.group.send(w, made) || made.count == 0 {
		return nil
	}
	w.res.metrics.watched(1, made.count, len(made.bytes))
	return w.sink.send(made.bytes)
}

// batchOf encodes events, unless another watcher has done so. The batch is valid until the buffer is released.
func (w *watcher) batchOf(events []cache.Event) (*batch, error) {
	key := batchKey{prefix: w.match.prefix, first: events[0].Revision, last: events[len(events)-1].Revision}
	if made := w.shared.Load(); made != nil && made.batchKey == key {
		return made, nil
	}
	if err := w.appendEvents(events); err != nil {
		return nil, err
	}
	made := &batch{batchKey: key, count: w.bufferedEvents, bytes: w.buffer}
	if len(w.buffer) <= maxBatchBytes {
		made.bytes = bytes.Clone(w.buffer)
		w.shared.Store(made)
	}
	return made, nil
}

// maxBatchBytes bounds the batch that a resource keeps for its watchers.
const maxBatchBytes = 64 << 10

// batch is the encoding of some events for watchers without a selector.
type batch struct {
	batchKey
	count int // of events within the prefix
	bytes []byte
}

type batchKey struct {
	prefix      string
	first, last store.Revision
}

// appendEvents appends events as the client's selector sees them: an object that begins to match is ADDED, one that ceases to match is DELETED.
func (w *watcher) appendEvents(events []cache.Event) error {
	if err := w.match.prepare(events); err != nil {
		return err
	}
	var run []selectedEvent // of objects that a webhook converts
	for i := range events {
		event := &events[i]
		if w.key != "" && event.Entry.Key() != w.key {
			continue
		}
		eventType, deselected, err := w.match.classify(event)
		c := selectedEvent{event: event, eventType: eventType, deselected: deselected}
		switch {
		case eventType == 0:
		case w.encode.webhook:
			run = append(run, c)
		default:
			err = w.appendSelected(c)
		}
		if err != nil {
			return err
		}
	}
	for part := range slices.Chunk(run, maxMatchRun) {
		if err := w.convertEvents(part, w.appendSelected); err != nil {
			return err
		}
	}
	return nil
}

// bookmarkTimer fires when the next bookmark is due; never when the client did not request bookmarks.
func (w *watcher) bookmarkTimer(deadline time.Time) (<-chan time.Time, func()) {
	if !w.opts.bookmarks {
		return nil, func() {}
	}
	wait := w.s.limits.Bookmark
	if last := time.Until(deadline) - finalBookmark; last < wait {
		if last <= 0 {
			return nil, func() {}
		}
		wait = last
	}
	timer := time.NewTimer(wait)
	return timer.C, func() { timer.Stop() }
}

// selectedEvent is an event as the client's selector sees it.
type selectedEvent struct {
	event     *cache.Event
	eventType cache.EventType
	// deselected: the object exists but no longer matches. It is sent in the last state that matched, with the revision of the event.
	deselected bool
	// served is the object in the served version, if it was converted already.
	served kind.Object
}

// object is the object that is sent, in the storage version.
func (c *selectedEvent) object() (kind.Object, error) {
	if c.deselected {
		return deselectedObject(c.event)
	}
	return c.event.Entry.Object()
}

// convertEvents calls do with events of objects that a webhook converts: all with one call.
func (w *watcher) convertEvents(events []selectedEvent, do func(selectedEvent) error) error {
	if len(events) == 0 {
		return nil
	}
	if w.table != nil && w.table.convertsOnce() {
		if err := w.convertRows(events); err != nil {
			return err
		}
	} else if err := w.encode.prepare(events, w.out); err != nil {
		return err
	}
	for _, c := range events {
		if err := do(c); err != nil {
			return err
		}
	}
	return nil
}

// convertRows converts the objects of a table. Nothing that is made of them is cached.
func (w *watcher) convertRows(events []selectedEvent) error {
	objs := make([]kind.Object, len(events))
	for i := range events {
		var err error
		if objs[i], err = events[i].object(); err != nil {
			return err
		}
	}
	converted, err := w.res.fromStorageVersions(w.req.ctx, objs)
	if err != nil {
		return err
	}
	for i := range events {
		events[i].served = converted[i]
	}
	return nil
}

// appendSelected appends one event.
func (w *watcher) appendSelected(c selectedEvent) (err error) {
	name := c.eventType.String()
	w.acquireBuffer()
	start := len(w.buffer)
	switch {
	case w.out.transform == transformTable:
		err = w.appendTable(c, name)
	case w.out.format == formatProtobuf:
		err = w.appendProto(c.event, name, c.deselected)
	default:
		err = w.appendJSON(c.event, name, c.deselected)
	}
	if err != nil {
		w.buffer = w.buffer[:start] // do not send a partial event
		return fmt.Errorf("encode %s for a watch: %w", c.event.Entry.Key(), err)
	}
	w.mark()
	return nil
}

// acquireBuffer makes the buffer ready for appending.
func (w *watcher) acquireBuffer() {
	if w.pooled == nil {
		w.pooled = getBuffer()
		w.buffer = *w.pooled
	}
}

func (w *watcher) mark() {
	w.bufferedEvents++
	w.sink.mark(w.buffer)
}

func (w *watcher) openJSON(event string) {
	w.buffer = append(w.buffer, `{"type":"`...)
	w.buffer = append(w.buffer, event...)
	w.buffer = append(w.buffer, `","object":`...)
}

func (w *watcher) closeJSON() { w.buffer = append(w.buffer, "}\n"...) }

func (w *watcher) appendJSON(event *cache.Event, name string, deselected bool) error {
	var body []byte
	var err error
	switch {
	case deselected && w.out.transform == transformPartial:
		obj, err := deselectedObject(event)
		if err != nil {
			return err
		}
		w.openJSON(name)
		w.buffer, err = appendObjectPartialJSON(w.buffer, obj, w.out.metaVersion)
		w.closeJSON()
		return err
	case deselected:
		body, err = w.encode.deselectedJSON(event)
	case w.out.transform == transformPartial:
		body, err = w.encode.partialJSON(event.Entry)
	default:
		body, err = w.encode.json(event.Entry)
	}
	if err != nil {
		return err
	}
	w.openJSON(name)
	if w.out.transform == transformPartial {
		w.buffer = append(append(w.buffer, partialPrefixes[w.out.metaVersion].json...), body[1:]...)
	} else {
		w.buffer = w.res.appendBody(w.buffer, body)
	}
	w.closeJSON()
	return nil
}

func (w *watcher) appendProto(event *cache.Event, name string, deselected bool) error {
	var item protoItem
	var err error
	prefix := w.res.protoPrefix
	switch {
	case deselected && w.out.transform == transformPartial:
		item, err = w.encode.deselectedPartial(event)
	case deselected:
		item, err = w.encode.deselectedProto(event)
	case w.out.transform == transformPartial:
		item, err = w.encode.partialProto(event.Entry)
	default:
		item, err = w.encode.proto(event.Entry)
	}
	if err != nil {
		return err
	}
	if w.out.transform == transformPartial {
		prefix = partialPrefixes[w.out.metaVersion].proto
	}
	size := item.size()
	raw := len(prefix) + 1 + uvarintLen(size) + size + len(envelopeTail)
	w.openProto(name, raw)
	w.buffer = append(append(w.buffer, prefix...), tagField2)
	w.buffer = binary.AppendUvarint(w.buffer, uint64(size))
	w.buffer = append(item.append(w.buffer), envelopeTail...)
	return nil
}

// openProto opens a frame: four bytes of length, then a message with the event's type (field 1) and a RawExtension (field 2) that
// contains (field 1) the object's protobuf encoding, which follows and is raw bytes long.
func (w *watcher) openProto(event string, raw int) {
	wrapped := 1 + uvarintLen(raw) + raw
	message := 2 + len(event) + 1 + uvarintLen(wrapped) + wrapped
	w.buffer = binary.BigEndian.AppendUint32(w.buffer, uint32(message))
	w.buffer = append(w.buffer, tagField1, byte(len(event)))
	w.buffer = append(w.buffer, event...)
	w.buffer = binary.AppendUvarint(append(w.buffer, tagField2), uint64(wrapped))
	w.buffer = binary.AppendUvarint(append(w.buffer, tagField1), uint64(raw))
}

func (w *watcher) appendTable(c selectedEvent, name string) (err error) {
	obj := c.served
	if obj == nil {
		if obj, err = c.object(); err != nil {
			return err
		}
	}
	w.openJSON(name)
	w.buffer, err = w.table.appendTableEvent(w.buffer, obj, w.headers, func(to []byte) ([]byte, error) {
		if c.deselected || c.served != nil {
			return w.table.appendIncluded(to, obj, w.table.include)
		}
		return w.table.appendEntry(to, c.event.Entry)
	})
	w.closeJSON()
	w.headers = false
	return err
}

// deselectedObject is the last state of an object that matched, with the revision of the event by which it ceased to match.
func deselectedObject(event *cache.Event) (kind.Object, error) {
	obj, err := event.Old.Object()
	if err != nil {
		return nil, err
	}
	obj = obj.DeepCopyObject().(kind.Object)
	obj.SetResourceVersion(strconv.FormatInt(event.Revision, 10))
	return obj, nil
}

// deselectedJSON is cached with the new entry, so that it is encoded once for all watchers.
func (e *encoder) deselectedJSON(event *cache.Event) ([]byte, error) {
	return event.Entry.Encoding(e.encodingIDs.deselectedJSON, func(*cache.Entry) ([]byte, error) {
		obj, err := e.deselected(event)
		if err != nil {
			return nil, err
		}
		return marshalJSON(obj)
	})
}

func (e *encoder) deselectedProto(event *cache.Event) (protoItem, error) {
	if e.stored {
		if s, ok := newSplice(event.Old.Stored(), e.protoPrefix, event.Revision); ok {
			return protoItem{splice: s}, nil
		}
	}
	encoded, err := event.Entry.Encoding(e.encodingIDs.deselectedProto, func(*cache.Entry) ([]byte, error) {
		obj, err := e.deselected(event)
		if err != nil {
			return nil, err
		}
		return marshalMessage(obj)
	})
	return protoItem{encoded: encoded}, err
}

func (e *encoder) deselectedPartial(event *cache.Event) (protoItem, error) {
	obj, err := deselectedObject(event)
	if err != nil {
		return protoItem{}, err
	}
	encoded, err := marshalMessage(toPartialMetadata(obj))
	return protoItem{encoded: encoded}, err
}

// deselected is deselectedObject in the served version.
func (e *encoder) deselected(event *cache.Event) (kind.Object, error) {
	obj, err := deselectedObject(event)
	if err != nil || e.convert == nil {
		return obj, err
	}
	return e.convert(e.ctx, obj)
}

// appendBookmark appends a BOOKMARK event with the revision reached. end marks the end of the initial events.
func (w *watcher) appendBookmark(end bool) {
	version := strconv.FormatInt(w.reached, 10)
	var annotations map[string]string
	if end {
		annotations = map[string]string{metav1.InitialEventsAnnotationKey: "true"}
	}
	var obj kind.Object
	if w.out.transform == transformTable {
		obj = w.res.kind.New()
	} else {
		obj = w.res.newObject()
	}
	if u, ok := obj.(*unstructured.Unstructured); ok && len(u.Object) == 0 {
		u.SetGroupVersionKind(w.res.gvk)
	}
	obj.SetResourceVersion(version)
	obj.SetAnnotations(annotations)
	w.acquireBuffer()
	start := len(w.buffer)
	if err := w.appendBookmarkOf(obj, end); err != nil {
		w.s.log.Error("failed to encode bookmark", "resource", w.res.gvr, "error", err)
		w.buffer = w.buffer[:start]
		return
	}
	w.mark()
}

func (w *watcher) appendBookmarkOf(obj kind.Object, end bool) (err error) {
	switch {
	case w.out.transform == transformTable:
		include := w.table.include
		if end {
			include = metav1.IncludeMetadata // it contains the annotation
		}
		w.openJSON(eventBookmark)
		w.buffer, err = w.table.appendTableEvent(w.buffer, obj, w.headers, func(to []byte) ([]byte, error) {
			return w.table.appendIncluded(to, obj, include)
		})
		w.closeJSON()
		w.headers = false
		return err
	case w.out.transform == transformPartial:
		return w.appendObject(eventBookmark, toPartialMetadata(obj), partialKind(w.out.metaVersion))
	}
	return w.appendObject(eventBookmark, obj, w.res.gvk)
}

func (w *watcher) appendError(status *metav1.Status) {
	w.acquireBuffer()
	if err := w.appendObject(eventError, status, metav1.Unversioned.WithKind("Status")); err != nil {
		w.s.log.Error("failed to encode error for watch", "resource", w.res.gvr, "error", err)
		return
	}
	w.mark()
}

// appendObject appends an event with an object that is not a cache entry.
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

// flush sends the appended events.
func (w *watcher) flush() error {
	if w.pooled == nil {
		return nil
	}
	// Count first: a client that has seen an event must find it counted.
	w.res.metrics.watched(1, w.bufferedEvents, len(w.buffer))
	err := w.sink.send(w.buffer)
	w.releaseBuffer()
	return err
}

// releaseBuffer discards the appended events.
func (w *watcher) releaseBuffer() {
	if w.pooled == nil {
		return
	}
	w.bufferedEvents = 0
	*w.pooled = w.buffer
	putBuffer(w.pooled)
	w.pooled, w.buffer = nil, nil
}

// chunkSink writes to an HTTP response. A client that does not accept events for the timeout is disconnected, as upstream disconnects one
// that falls behind.
type chunkSink struct {
	req     *request
	timeout time.Duration
	// timeoutSet: the HTTP server applies the timeout to each write.
	timeoutSet bool
}

func (c *chunkSink) begin(mediaType string) error {
	header := c.req.w.Header()
	header["Content-Type"] = contentType(mediaType)
	c.req.writeWarnings()
	if server, ok := c.req.w.ResponseWriter.(interface{ SetWriteTimeout(time.Duration) }); ok {
		server.SetWriteTimeout(c.timeout)
		c.timeoutSet = true
	}
	c.req.w.WriteHeader(http.StatusOK)
	c.req.w.Flush()
	return nil
}

func (c *chunkSink) mark([]byte) {}

func (c *chunkSink) send(buffer []byte) error {
	if !c.timeoutSet {
		c.req.writeBy(time.Now().Add(c.timeout))
		defer c.req.writeBy(time.Time{}) // the watch may be idle for long
	}
	if _, err := c.req.w.Write(buffer); err != nil {
		return errClientGone
	}
	c.req.w.Flush()
	return nil
}

// disconnected is nil: the request's context is done when the client disconnects.
func (c *chunkSink) disconnected() <-chan struct{} { return nil }

func (c *chunkSink) close() {}
