package apiserver

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync"

	"github.com/klauspost/compress/gzip"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"sigs.k8s.io/yaml"

	"skiff/internal/apiserver/audit"
	"skiff/internal/kind"
	"skiff/internal/store/cache"
)

// responseWriter records status and size for metrics, audit and the handling of panics.
type responseWriter struct {
	http.ResponseWriter
	code     int // 0 until the header is written
	bytes    int64
	event    *audit.Event
	recorded []byte // the body, for the audit event; nil when it is not recorded
	// wait returns the request's seats while the client does not read; nil for requests without.
	wait *clientWait
	// onBegin is called when the response begins; nil: nothing.
	onBegin func()
}

// startRecording makes Write also keep the body, for the audit event.
func (w *responseWriter) startRecording() { w.recorded = []byte{} }

// begin records the status code of the response.
func (w *responseWriter) begin(code int) {
	if w.code == 0 {
		if w.onBegin != nil {
			w.onBegin()
		}
		w.code = code
		w.event.Started(code)
	}
}

func (w *responseWriter) WriteHeader(code int) {
	w.begin(code)
	w.ResponseWriter.WriteHeader(code)
}

func (w *responseWriter) Write(p []byte) (int, error) {
	w.begin(http.StatusOK)
	if w.recorded != nil {
		w.recorded = append(w.recorded, p...)
	}
	if w.wait == nil || w.bytes+int64(len(p)) < minWaitBytes {
		n, err := w.ResponseWriter.Write(p)
		w.bytes += int64(n)
		return n, err
	}
	w.wait.begin()
	n, err := w.ResponseWriter.Write(p)
	w.bytes += int64(n)
	return n, w.wait.end(err)
}

// Flush implements http.Flusher.
func (w *responseWriter) Flush() {
	flusher, ok := w.ResponseWriter.(http.Flusher)
	switch {
	case !ok:
	case w.wait == nil:
		flusher.Flush()
	default:
		w.wait.begin()
		flusher.Flush()
		_ = w.wait.end(nil) // an error: the request's context is done, which the handler finds out itself
	}
}

// Hijack implements http.Hijacker, for streams that leave HTTP.
func (w *responseWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	hijacker, ok := w.ResponseWriter.(http.Hijacker)
	if !ok {
		return nil, nil, fmt.Errorf("connection of %T cannot be hijacked", w.ResponseWriter)
	}
	w.begin(http.StatusSwitchingProtocols)
	return hijacker.Hijack()
}

// Unwrap lets http.ResponseController reach the server's own writer.
func (w *responseWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// buffers are reused between responses, except those that have grown beyond maxPooledBuffer.
var buffers = sync.Pool{New: func() any { b := make([]byte, 0, 16<<10); return &b }}

const maxPooledBuffer = 4 << 20

func getBuffer() *[]byte { return buffers.Get().(*[]byte) }

func putBuffer(b *[]byte) {
	if cap(*b) <= maxPooledBuffer {
		*b = (*b)[:0]
		buffers.Put(b)
	}
}

// gzipThreshold is the size above which a response is compressed for clients that accept it.
const gzipThreshold = 128 << 10

// gzipWriters use level 1: several times cheaper than the default, for little more bytes.
var gzipWriters = sync.Pool{New: func() any {
	w, err := gzip.NewWriterLevel(nil, gzip.BestSpeed)
	if err != nil {
		panic(err)
	}
	return w
}}

// writeBody writes a complete response.
func (s *Server) writeBody(req *request, code int, mediaType string, body []byte) error {
	header := req.w.Header()
	header["Content-Type"] = contentType(mediaType)
	req.writeWarnings()
	if len(body) > gzipThreshold && acceptsGzip(req.Request) {
		header["Content-Encoding"] = gzipEncoding
		header.Add("Vary", "Accept-Encoding")
		req.w.WriteHeader(code)
		writer := gzipWriters.Get().(*gzip.Writer)
		defer gzipWriters.Put(writer)
		writer.Reset(req.w)
		if _, err := writer.Write(body); err != nil {
			return nil // the client has disconnected
		}
		_ = writer.Close()
		return nil
	}
	header["Content-Length"] = []string{strconv.Itoa(len(body))}
	req.w.WriteHeader(code)
	_, _ = req.w.Write(body)
	return nil
}

// Frequent header values. They are never modified.
var (
	gzipEncoding    = []string{"gzip"}
	jsonContent     = []string{mediaJSON}
	protobufContent = []string{mediaProtobuf}
)

func contentType(mediaType string) []string {
	switch mediaType {
	case mediaJSON:
		return jsonContent
	case mediaProtobuf:
		return protobufContent
	}
	return []string{mediaType}
}

// If all warnings together exceed warningTotal, each is truncated to warningItem; those that still do not fit are dropped.
const (
	warningTotal = 4 << 10
	warningItem  = 256
)

func (r *request) writeWarnings() {
	total := 0
	for _, text := range r.warnings {
		total += len(text)
	}
	written := 0
	for _, text := range r.warnings {
		if runes := []rune(text); total > warningTotal && len(runes) > warningItem {
			text = string(runes[:warningItem])
		}
		if written += len(text); written > warningTotal {
			break
		}
		if value, err := utilnet.NewWarningHeader(299, "-", text); err == nil {
			r.w.Header().Add("Warning", value)
		}
	}
	r.warnings = nil
}

// largeEntry is the size in the store from which the JSON of an object is cached only when it is read again.
const largeEntry = 16 << 10

// respondEntry responds with a cache entry in the negotiated form.
func (s *Server) respondEntry(req *request, code int, entry *cache.Entry) error {
	out, err := req.negotiate()
	if err != nil {
		return err
	}
	if out.transform != transformNone {
		obj, err := entry.Object()
		if err != nil {
			return err
		}
		return s.respondTransformed(req, code, out, obj)
	}
	buffer := getBuffer()
	defer putBuffer(buffer)
	encoder := req.res.with(req.ctx)
	switch {
	case out.format == formatProtobuf:
		*buffer, err = encoder.appendProto(*buffer, entry)
	case isMutating(req.Method) && req.res.watchers.Load() == 0:
		// Nobody else is expected to read this revision in JSON, so the encoding is not cached.
		*buffer, err = encoder.appendMarshaled(*buffer, entry)
	case !isMutating(req.Method) && entry.StoredSize() >= largeEntry && !encoder.webhook:
		*buffer, err = encoder.appendRepeatedJSON(*buffer, entry)
	default:
		*buffer, err = encoder.appendJSON(*buffer, entry)
	}
	if err != nil {
		return err
	}
	return s.writeEncoded(req, code, out, buffer)
}

// writeEncoded writes a body of protobuf or compact JSON, converted to indented JSON or YAML if requested.
func (s *Server) writeEncoded(req *request, code int, out output, body *[]byte) error {
	switch {
	case out.format == formatYAML:
		text, err := yaml.JSONToYAML(*body)
		if err != nil {
			return fmt.Errorf("write YAML: %w", err)
		}
		return s.writeBody(req, code, mediaYAML, text)
	case out.format == formatJSON && out.pretty:
		indented, err := indentJSON(*body)
		if err != nil {
			return fmt.Errorf("indent JSON: %w", err)
		}
		return s.writeBody(req, code, mediaJSON, indented)
	case out.format == formatJSON:
		*body = append(*body, '\n')
	}
	return s.writeBody(req, code, out.format.mediaType(), *body)
}

// respondObject responds with an object that is not a cache entry: a Status, a view, the result of an action or of a dry run. An object
// of the storage version is converted to the version of the request. The object is not modified.
func (s *Server) respondObject(req *request, code int, obj runtime.Object) error {
	if _, isStatus := obj.(*metav1.Status); isStatus {
		return s.respondStatus(req, code, obj)
	}
	out, err := req.negotiate()
	if err != nil {
		return err
	}
	if out.transform != transformNone {
		own, ok := obj.(kind.Object)
		if !ok {
			return errNotAcceptable(acceptedTypes(true)...)
		}
		return s.respondTransformed(req, code, out, own)
	}
	gvk := s.kindOf(req, obj)
	if own, ok := obj.(kind.Object); ok && req.res != nil && !req.res.stored() && gvk == req.res.kind.GVK {
		if obj, err = req.res.fromStorageVersion(req.ctx, own); err != nil {
			return err
		}
		gvk = req.res.gvk
	}
	buffer := getBuffer()
	defer putBuffer(buffer)
	if *buffer, err = appendObject(*buffer, obj, gvk, out.format); err != nil {
		return err
	}
	return s.writeEncoded(req, code, out, buffer)
}

// respondStatus responds with a Status, which is never transformed. It is sent even when the Accept header cannot be satisfied.
func (s *Server) respondStatus(req *request, code int, status runtime.Object) error {
	out, ok := negotiate(req.Request, offer{protobuf: true})
	if !ok {
		req.w.recorded = nil // a response in a format that the client did not accept is not recorded
		text, err := json.MarshalIndent(status, "", "  ")
		if err != nil {
			return err
		}
		return s.writeBody(req, code, mediaJSON, text)
	}
	if typed, ok := status.(*metav1.Status); ok {
		s.auditStatus(req, typed)
	}
	buffer := getBuffer()
	defer putBuffer(buffer)
	var err error
	if *buffer, err = appendObject(*buffer, status, metav1.Unversioned.WithKind("Status"), out.format); err != nil {
		return err
	}
	return s.writeEncoded(req, code, out, buffer)
}

// kindOf is the kind of an object. For a type registered under several kinds it is the one in the request's group version.
func (s *Server) kindOf(req *request, obj runtime.Object) schema.GroupVersionKind {
	if gvk := obj.GetObjectKind().GroupVersionKind(); gvk.Kind != "" {
		return gvk
	}
	kinds, _, err := s.config.Scheme.ObjectKinds(obj)
	if err != nil || len(kinds) == 0 {
		switch {
		case req.sub != nil && req.sub.GVK.Kind != "":
			return req.sub.GVK
		case req.res != nil:
			return req.res.gvk
		}
		return schema.GroupVersionKind{}
	}
	for _, gvk := range kinds {
		if req.res != nil && gvk.GroupVersion() == req.res.gvk.GroupVersion() {
			return gvk
		}
	}
	return kinds[0]
}

// appendObject appends an object with its type in protobuf or JSON (which also serves YAML).
func appendObject(to []byte, obj runtime.Object, gvk schema.GroupVersionKind, f format) ([]byte, error) {
	if f == formatProtobuf {
		message, ok := obj.(protoMessage)
		if !ok {
			return to, errNotAcceptable(acceptedTypes(false)...)
		}
		return appendEnvelope(to, envelopePrefix(gvk), message)
	}
	body, err := marshalJSON(obj)
	if err != nil {
		return to, fmt.Errorf("write JSON: %w", err)
	}
	if obj.GetObjectKind().GroupVersionKind().Kind != "" {
		return append(to, body...), nil
	}
	to = append(to, jsonPrefix(gvk)...)
	if len(body) == 2 { // no fields: remove the comma after the type
		to = to[:len(to)-1]
	}
	return append(to, body[1:]...), nil
}
