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
	"golang.org/x/net/http2"
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
	sniff        bool // Content-Type must be detected
	noBody       bool // HEAD, or a status without a body
	sent         bool // the headers have been sent
	out          *sendBuffer
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
	done := 0
	for done < len(p) && r.err == nil {
		r.ready()
		done += r.out.append(p[done:])
		if r.out.full() {
			r.send(false)
		}
	}
	return done, r.err
}

// ready ensures that there is a sendBuffer.
func (r *response) ready() {
	if r.out == nil {
		r.out = sendBuffers.Get().(*sendBuffer)
		r.out.reset()
	}
}

// drop returns the sendBuffer to the pool.
func (r *response) drop() {
	if r.out != nil {
		sendBuffers.Put(r.out)
		r.out = nil
	}
}

// Flush sends what was written.
func (r *response) Flush() { _ = r.FlushError() }

// FlushError is Flush for http.ResponseController.
func (r *response) FlushError() error {
	if r.status == 0 {
		r.WriteHeader(http.StatusOK)
	}
	if r.err == nil && (!r.sent || r.out != nil && r.out.waiting() > 0) {
		r.send(false)
	}
	return r.err
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
	if r.err == nil && r.length > r.written && !r.noBody {
		// Fewer bytes than Content-Length: the client must not take the response for complete.
		panic(http.ErrAbortHandler)
	}
	if r.closing {
		// Before the end of the response, or the client could send its next request on this connection.
		r.stream.conn.drain()
	}
	if r.err == nil {
		r.send(true)
	}
	r.drop()
}

// send sends the headers, unless they were sent, and all of the sendBuffer. end ends the response.
func (r *response) send(end bool) {
	trailers := r.trailerFields(end)
	data := 0
	if r.out != nil {
		data = r.out.waiting()
	}
	last := end && len(trailers) == 0
	for first := true; first || data > 0; first = false {
		n := 0
		if data > 0 {
			if n, r.err = r.stream.take(data); r.err != nil {
				r.drop()
				return
			}
		}
		data -= n
		if r.err = r.transmit(n, last && data == 0); r.err != nil {
			r.drop()
			return
		}
	}
	if r.out != nil && !end {
		r.drop() // most flushes are of watches, which are then idle for long
	}
	if len(trailers) > 0 {
		r.fields = trailers
		r.sent = false
		r.err = r.transmit(0, true)
	}
}

// transmit writes the headers, unless they were sent, and n bytes of the sendBuffer.
func (r *response) transmit(n int, end bool) error {
	c := r.stream.conn
	if r.sniff && !r.sent && n > 0 {
		r.fields = append(r.fields, hpack.HeaderField{Name: "content-type", Value: http.DetectContentType(r.out.first())})
	}
	if err := r.stream.beginWrite(end); err != nil {
		return err
	}
	defer c.writeQueue()
	c.writing.Lock()
	defer c.writing.Unlock()
	c.writeQueued() // first: settings and their acknowledgement must precede headers
	var head []byte
	if !r.sent {
		headersOnly := end && n == 0
		c.heads = appendHeaders(c.heads[:0], r.stream.id, c.encodeHeaders(r.fields), headersOnly)
		head = c.heads
		r.sent = true
		if headersOnly || len(head) > headerSpace || n == 0 {
			if err := c.write(head); err != nil || n == 0 {
				return err
			}
			head = nil
		}
	} else if n == 0 {
		if !end {
			return nil
		}
		c.heads = appendFrameHeader(c.heads[:0], 0, http2.FrameData, http2.FlagDataEndStream, r.stream.id)
		return c.write(c.heads)
	}
	if n+len(head) <= payload || c.raw == nil {
		return r.writeFrames(n, end, head)
	}
	return c.coalesceWrites(func() error { return r.writeFrames(n, end, head) })
}

func (r *response) writeFrames(n int, end bool, head []byte) error {
	for n > 0 {
		before := r.out.waiting()
		frame := r.out.frame(r.stream.id, n, end, head)
		if err := r.stream.conn.write(frame); err != nil {
			return err
		}
		n -= before - r.out.waiting()
		head = nil
	}
	return nil
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
	c := r.stream.conn
	defer c.writeQueue()
	c.writing.Lock()
	defer c.writing.Unlock()
	c.writeQueued() // first: settings and their acknowledgement must precede headers
	_ = c.write(appendHeaders(nil, r.stream.id, c.encodeHeaders(fields), false))
}

// sendContinue sends 100 Continue, if the client expects it, when the handler first reads the body.
func (r *response) sendContinue() {
	if r.continueSent.CompareAndSwap(false, true) && strings.EqualFold(r.stream.request.Header.Get("Expect"), "100-continue") {
		r.writeInterim([]hpack.HeaderField{{Name: ":status", Value: "100"}})
	}
}
