package http2

import (
	"net/http"
	"net/textproto"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2/hpack"
)

// response is the http.ResponseWriter of a handler.
type response struct {
	stream   *stream
	header   http.Header
	tooLarge bool // the request's headers exceed the limit

	status       int // 0 until it is written
	fields       []hpack.HeaderField
	trailers     []string // announced
	length       int64    // Content-Length set by the handler, or -1
	written      int64
	sniff        bool        // Content-Type must be detected
	noBody       bool        // HEAD, or a status without a body
	sent         bool        // the headers have been sent
	out          *buffer     // written and not yet sent
	grown        bool        // out holds a frame, which is acquired from unsent
	err          error       // of a failed write
	continueSent atomic.Bool // 100 Continue was sent or is not needed
	closing      bool        // the handler set Connection: close
	buffer       [12]hpack.HeaderField
}

func (r *response) Header() http.Header { return r.header }

// WriteHeader implements http.ResponseWriter: the headers are final.
func (r *response) WriteHeader(status int) {
	if r.status != 0 {
		return
	}
	if status < 100 || status > 999 {
		panic("http2: invalid status " + strconv.Itoa(status))
	}
	if status < 200 {
		if status != http.StatusSwitchingProtocols {
			r.sendInterim(status)
		}
		return
	}
	r.status, r.length = status, -1
	r.continueSent.Store(true)
	r.noBody = r.stream.request.Method == http.MethodHead || !bodyAllowed(status)
	r.fields = append(r.buffer[:0], hpack.HeaderField{Name: ":status", Value: statusText(status)})
	if lengths := r.header["Content-Length"]; len(lengths) > 0 {
		if n, err := strconv.ParseInt(lengths[0], 10, 64); err == nil && n >= 0 {
			r.length = n
		} else {
			delete(r.header, "Content-Length")
		}
	}
	for _, names := range r.header["Trailer"] {
		for name := range strings.SplitSeq(names, ",") {
			r.trailers = append(r.trailers, textproto.CanonicalMIMEHeaderKey(strings.TrimSpace(name)))
		}
	}
	r.appendFields(r.header)
	_, typed := r.header["Content-Type"]
	r.sniff = !typed && !r.noBody && r.header.Get("Content-Encoding") == ""
	if _, dated := r.header["Date"]; !dated {
		r.fields = append(r.fields, hpack.HeaderField{Name: "date", Value: date()})
	}
	r.closing = r.header.Get("Connection") == "close"
}

func bodyAllowed(status int) bool {
	return status >= 200 && status != http.StatusNoContent && status != http.StatusNotModified
}

func statusText(status int) string {
	if status == http.StatusOK {
		return "200"
	}
	return strconv.Itoa(status)
}

// appendFields appends the fields of a header that are sent in HTTP/2.
func (r *response) appendFields(header http.Header) {
	for name, values := range header {
		switch name {
		case "Connection", "Proxy-Connection", "Keep-Alive", "Transfer-Encoding", "Upgrade":
			continue // only for HTTP/1
		}
		if strings.HasPrefix(name, http.TrailerPrefix) || slices.Contains(r.trailers, name) {
			continue
		}
		r.appendField(name, values)
	}
}

func (r *response) appendField(name string, values []string) {
	if !httpguts.ValidHeaderFieldName(name) {
		return
	}
	name = lower(name)
	for _, value := range values {
		if httpguts.ValidHeaderFieldValue(value) {
			r.fields = append(r.fields, hpack.HeaderField{Name: name, Value: value})
		}
	}
}

// lower is the name of a header in lower case, as HTTP/2 requires.
func lower(name string) string {
	switch name { // frequent names, without an allocation
	case "Content-Type":
		return "content-type"
	case "Content-Length":
		return "content-length"
	case "Cache-Control":
		return "cache-control"
	case "Audit-Id":
		return "audit-id"
	}
	return strings.ToLower(name)
}

// date is the value of the Date header, cached for a second.
func date() string {
	now := time.Now()
	if last := lastDate.Load(); last != nil && last.second == now.Unix() {
		return last.text
	}
	current := &dated{second: now.Unix(), text: now.UTC().Format(http.TimeFormat)}
	lastDate.Store(current)
	return current.text
}

type dated struct {
	second int64
	text   string
}

var lastDate atomic.Pointer[dated]

func (r *response) Write(p []byte) (int, error)          { return write(r, p) }
func (r *response) WriteString(text string) (int, error) { return write(r, []byte(text)) }

func write(r *response, p []byte) (int, error) {
	if r.status == 0 {
		r.WriteHeader(http.StatusOK)
	}
	if !bodyAllowed(r.status) {
		return 0, http.ErrBodyNotAllowed
	}
	if r.written += int64(len(p)); r.length >= 0 && r.written > r.length {
		return 0, http.ErrContentLength
	}
	if r.noBody {
		return len(p), nil
	}
	rest := p
	for len(rest) > 0 && r.err == nil {
		if r.out == nil && (len(rest) >= payload || r.sent && len(rest) >= minDirect) {
			r.send(rest, false)
			break
		}
		n := r.collect(rest)
		if rest = rest[n:]; len(rest) > 0 {
			r.sendBuffered(false)
		}
	}
	if r.err != nil {
		return 0, r.err
	}
	return len(p), nil
}

// minDirect is the size from which data is framed without being collected with what is written after it.
const minDirect = 1 << 10

// collect appends as much as there is space for. The buffer grows from small to that of a frame.
func (r *response) collect(p []byte) int {
	if r.out == nil {
		r.out = newBuffer(smallBuffer)
	}
	limit := smallBuffer
	if !r.grown && len(r.out.bytes)+len(p) > smallBuffer {
		r.grown = unsent.acquire(mediumBuffer)
	}
	if r.grown {
		limit = payload
	}
	n := min(len(p), limit-len(r.out.bytes))
	r.out = r.out.extend(n)
	r.out.bytes = append(r.out.bytes, p[:n]...)
	return n
}

// drop frees the buffer.
func (r *response) drop() {
	r.out.free()
	r.out = nil
	if r.grown {
		r.grown = false
		unsent.release(mediumBuffer)
	}
}

// sendBuffered sends the headers, unless they were sent, and the buffer; end ends the response. The buffer is freed: most responses that
// are flushed are watches, which are then idle for long.
func (r *response) sendBuffered(end bool) {
	var data []byte
	if r.out != nil {
		data = r.out.bytes
	}
	r.send(data, end)
	r.drop()
}

// Flush sends what was written.
func (r *response) Flush() { _ = r.FlushError() }

// FlushError is Flush for http.ResponseController.
func (r *response) FlushError() error {
	if r.status == 0 {
		r.WriteHeader(http.StatusOK)
	}
	if r.err == nil && (!r.sent || r.out != nil) {
		r.sendBuffered(false)
	}
	if r.err == nil {
		r.stream.conn.flushTogether()
	}
	return r.err
}

// TryWrite is Write for a goroutine that must not wait for the client: it appends p to the pending frames of the connection, or does
// nothing and returns false. The headers must have been flushed, the handler must not use the response at the same time, and
// FlushPending must follow.
func (r *response) TryWrite(p []byte) bool {
	if !r.sent || r.out != nil || r.err != nil || r.noBody || r.length >= 0 || !r.stream.appendNow(p) {
		return false
	}
	r.written += int64(len(p))
	return true
}

// FlushPending writes the pending frames of the connection. It does not wait for the client.
func (r *response) FlushPending() { r.stream.conn.flush() }

// SetWriteTimeout sets how long each later write may wait for the client before the response is reset. Unlike a deadline it is set
// once for a response that is written from time to time.
func (r *response) SetWriteTimeout(d time.Duration) { r.stream.writeTimeout = d }

// SetWriteDeadline is for http.ResponseController: a response that its client has not accepted by then is reset.
func (r *response) SetWriteDeadline(t time.Time) error {
	r.stream.setWriteDeadline(t)
	return nil
}

// SetReadDeadline is for http.ResponseController.
func (r *response) SetReadDeadline(t time.Time) error {
	r.stream.setReadDeadline(t)
	return nil
}

// EnableFullDuplex is for http.ResponseController: HTTP/2 is always full duplex.
func (r *response) EnableFullDuplex() error { return nil }

// finish sends the rest and ends the response.
func (r *response) finish() {
	if r.status == 0 {
		r.WriteHeader(http.StatusOK)
	}
	if !r.sent && r.length < 0 && bodyAllowed(r.status) && (!r.noBody || r.written > 0) && len(r.trailers) == 0 {
		r.fields = append(r.fields, hpack.HeaderField{Name: "content-length", Value: strconv.FormatInt(r.written, 10)})
	}
	if r.stream.request.Body != http.NoBody {
		r.stream.stopReading(http.ErrBodyReadAfterClose) // the rest of the request is not kept while the response waits
	}
	if r.err == nil && r.length > r.written && !r.noBody {
		// Fewer bytes than Content-Length: the client must not take the response for complete.
		panic(http.ErrAbortHandler)
	}
	if r.closing {
		// Before the end of the response, or the client could send its next request on this connection.
		r.stream.conn.drain()
	}
	if r.err == nil {
		r.sendBuffered(true)
	}
	r.drop()
}

// send appends the headers, unless they were sent, and data to the pending frames of the connection; end ends the response.
func (r *response) send(data []byte, end bool) {
	trailers := r.trailerFields(end)
	last := end && len(trailers) == 0
	if !r.sent {
		if r.sniff && len(data) > 0 {
			r.fields = append(r.fields, hpack.HeaderField{Name: "content-type", Value: http.DetectContentType(data)})
		}
		r.sent = true
		if r.err = r.stream.sendHeaders(r.fields, last && len(data) == 0); r.err != nil || last && len(data) == 0 {
			return
		}
	}
	if len(data) > 0 || last {
		r.err = r.stream.sendData(data, last)
	}
	if r.err == nil && len(trailers) > 0 {
		r.err = r.stream.sendHeaders(trailers, true)
	}
}

// trailerFields are the trailers of a response that ends.
func (r *response) trailerFields(end bool) []hpack.HeaderField {
	if !end || r.noBody {
		return nil
	}
	var names []string
	for name := range r.header {
		if strings.HasPrefix(name, http.TrailerPrefix) {
			names = append(names, name)
		}
	}
	names = append(names, r.trailers...)
	if len(names) == 0 {
		return nil
	}
	slices.Sort(names)
	held := r.fields
	defer func() { r.fields = held }()
	r.fields = nil
	for _, name := range names {
		r.appendField(strings.TrimPrefix(name, http.TrailerPrefix), r.header[name])
	}
	return r.fields
}

// sendInterim sends an informational (1xx) response.
func (r *response) sendInterim(status int) {
	r.fields = append(r.buffer[:0], hpack.HeaderField{Name: ":status", Value: statusText(status)})
	if status != http.StatusContinue {
		r.appendFields(r.header)
	}
	r.writeInterim(r.fields)
}

func (r *response) writeInterim(fields []hpack.HeaderField) {
	r.stream.sendInterim(fields)
	r.stream.conn.flush()
}

// sendContinue sends 100 Continue, if the client expects it, when the handler first reads the body.
func (r *response) sendContinue() {
	if r.continueSent.CompareAndSwap(false, true) && strings.EqualFold(r.stream.request.Header.Get("Expect"), "100-continue") {
		r.writeInterim([]hpack.HeaderField{{Name: ":status", Value: "100"}})
	}
}
