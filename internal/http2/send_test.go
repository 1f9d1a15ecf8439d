package http2

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// eventually waits for a condition.
func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !condition(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

// A response that its client does not accept ends at its deadline, whether the client grants no window or does not read the socket.
func TestWriteDeadline(t *testing.T) {
	for _, test := range []struct {
		name   string
		window uint32
		want   string // the next frame that the client reads; "" when it reads none
	}{
		{"no window for the stream", 0, "1: 200"},
		{"the socket is not read", maxWindow, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			const requests = 10
			errs := make(chan error, requests)
			s := serve(t, func(w http.ResponseWriter, r *http.Request) {
				if err := http.NewResponseController(w).SetWriteDeadline(time.Now().Add(200 * time.Millisecond)); err != nil {
					errs <- fmt.Errorf("set deadline: %w", err)
					return
				}
				for {
					if _, err := w.Write(make([]byte, 100_000)); err != nil {
						errs <- err
						return
					}
				}
			})
			p := connect(t, s, http2.Setting{ID: http2.SettingInitialWindowSize, Val: test.window})
			p.do(p.WriteWindowUpdate(0, maxWindow-65535))
			for i := range uint32(requests) {
				p.ask(2*i+1, true, request("GET")...)
			}
			for range requests {
				select {
				case err := <-errs:
					if !errors.Is(err, os.ErrDeadlineExceeded) {
						t.Errorf("the write failed with %v", err)
					}
				case <-time.After(10 * time.Second):
					t.Fatal("a handler waits beyond its deadline")
				}
			}
			if test.want == "" {
				return
			}
			resets := 0
			for range 2 * requests { // headers and reset of each
				if _, code := p.nextOf(); code == http2.ErrCodeInternal {
					resets++
				}
			}
			if resets != requests {
				t.Errorf("%d of %d streams were reset", resets, requests)
			}
		})
	}
	eventually(t, "nothing unsent is held", func() bool { return unsent.held.Load() == 0 })
}

// Each write may wait for the client as long as the timeout; the time between writes does not count.
func TestWriteTimeout(t *testing.T) {
	const timeout = 200 * time.Millisecond
	failed := make(chan error, 1)
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.(*response).SetWriteTimeout(timeout)
		for range 3 {
			if _, err := w.Write(make([]byte, 2000)); err != nil {
				failed <- fmt.Errorf("a write that the client accepts: %w", err)
				return
			}
			w.(http.Flusher).Flush()
			time.Sleep(timeout)
		}
		_, err := w.Write(make([]byte, 2000))
		failed <- err
	})
	p := connect(t, s, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 7000})
	p.ask(1, true, request("GET")...)
	select {
	case err := <-failed:
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("the write failed with %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the handler waits beyond its timeout")
	}
}

// TryWrite writes all or nothing, and does not wait.
func TestTryWrite(t *testing.T) {
	const window = 100_000
	type use func(w *response)
	uses := make(chan use)
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if w.(*response).TryWrite([]byte("early")) {
			t.Error("written before the headers")
		}
		w.(http.Flusher).Flush()
		for f := range uses {
			f(w.(*response))
		}
	})
	p := connect(t, s, http2.Setting{ID: http2.SettingInitialWindowSize, Val: window})
	p.do(p.WriteWindowUpdate(0, 1<<20))
	p.ask(1, true, request("GET")...)
	defer close(uses)
	try := func(data []byte, want bool) {
		t.Helper()
		done := make(chan bool)
		uses <- func(w *response) {
			written := w.TryWrite(data)
			w.FlushPending()
			done <- written
		}
		if got := <-done; got != want {
			t.Errorf("writing %d bytes: %t, want %t", len(data), got, want)
		}
	}
	small, large := random(3000), random(60_000)
	try(small, true)
	try(make([]byte, writeSize+1), false)
	try(large, true)
	try(large, false) // the stream has no window for it
	try(small, true)
	want := slices.Concat(small, large, small)
	var got []byte
	for len(got) < len(want) {
		frame, err := p.ReadFrame()
		p.do(err)
		if f, ok := frame.(*http2.DataFrame); ok {
			got = append(got, f.Data()...)
		}
	}
	if !bytes.Equal(got, want) {
		t.Error("other bytes arrived")
	}
	p.do(p.WriteWindowUpdate(1, 1<<20))
	p.do(p.WritePing(false, [8]byte{}))
	for { // until the update was read
		frame, err := p.ReadFrame()
		p.do(err)
		if f, ok := frame.(*http2.PingFrame); ok && f.IsAck() {
			break
		}
	}
	try(large, true)
}

// TryWrite holds no more than others may when the client does not read.
func TestTryWriteBounds(t *testing.T) {
	conns := make(chan *conn, 1)
	bounded := make(chan int, 1)
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		response := w.(*response)
		conns <- response.stream.conn
		response.Flush()
		data := make([]byte, 10_000)
		n := 0
		for response.TryWrite(data) {
			response.FlushPending()
			n++
		}
		bounded <- n
		<-r.Context().Done()
		if response.TryWrite(data) {
			t.Error("written after the end of the connection")
		}
	})
	p := connect(t, s, http2.Setting{ID: http2.SettingInitialWindowSize, Val: maxWindow})
	p.do(p.WriteWindowUpdate(0, maxWindow-65535))
	p.ask(1, true, request("GET")...)
	c := <-conns
	select {
	case n := <-bounded:
		t.Logf("%d writes until the client's socket was full", n)
	case <-time.After(10 * time.Second):
		t.Fatal("a client that does not read is sent to without bound")
	}
	c.mu.Lock()
	size := c.pendingSize()
	c.mu.Unlock()
	if size > largeBuffer {
		t.Errorf("%d bytes are pending", size)
	}
	_ = p.conn.Close()
	eventually(t, "nothing unsent is held", func() bool { return unsent.held.Load() == 0 })
}

// nextOf returns the stream of the next HEADERS or RST_STREAM frame, and the code of a reset.
func (p *peer) nextOf() (uint32, http2.ErrCode) {
	p.t.Helper()
	for {
		frame, err := p.ReadFrame()
		p.do(err)
		switch f := frame.(type) {
		case *http2.MetaHeadersFrame:
			return f.StreamID, http2.ErrCodeNo
		case *http2.RSTStreamFrame:
			return f.StreamID, f.ErrCode
		}
	}
}

// A deadline that is set while the response waits holds too.
func TestWriteDeadlineWhileWaiting(t *testing.T) {
	failed := make(chan error, 1)
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		time.AfterFunc(50*time.Millisecond, func() { _ = http.NewResponseController(w).SetWriteDeadline(time.Now()) })
		_, err := w.Write(make([]byte, 100_000))
		failed <- err
	})
	p := connect(t, s, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	p.ask(1, true, request("GET")...)
	select {
	case err := <-failed:
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("the write failed with %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the handler waits beyond its deadline")
	}
}

// Streams get the connection's window in the order in which they began to wait for it, and an update wakes only as many as can go on.
func TestConnectionWindowIsGrantedInOrder(t *testing.T) {
	const streams = 20
	conns := make(chan *conn, streams+1)
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		conns <- w.(*response).stream.conn
		if r.Method == "ALL" {
			_, _ = w.Write(make([]byte, 65535))
			return
		}
		_, _ = io.WriteString(w, "x")
	})
	p := connect(t, s, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20})
	p.ask(1, true, request("ALL")...)
	c := <-conns
	eventually(t, "the connection's window is used up", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.send == 0
	})
	for i := range streams {
		p.ask(uint32(2*i+3), true, request("GET")...)
		eventually(t, "the stream waits", func() bool {
			c.mu.Lock()
			defer c.mu.Unlock()
			return len(c.forWindow) == i+1
		})
	}
	for i := range streams {
		p.do(p.WriteWindowUpdate(0, 1))
		want := fmt.Sprintf("%d: %q true", 2*i+3, "x")
		for {
			got := p.next()
			if got == "closed" {
				t.Fatal("the connection was closed")
			}
			if bytes.HasSuffix([]byte(got), []byte(`"x" true`)) {
				if got != want {
					t.Fatalf("got %s, want %s", got, want)
				}
				break
			}
		}
	}
}

// What a stream has reserved of the connection's window is not lost when it is reset.
func TestResetReturnsConnectionWindow(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		size := 2000
		if r.Method == "ALL" {
			size = 100_000
		}
		_, _ = w.Write(make([]byte, size))
	})
	p := connect(t, s)
	id := uint32(1)
	for range 25 {
		p.ask(id, true, request("GET")...)
		for range rand.IntN(50) {
			p.do(p.WritePing(false, [8]byte{})) // some time passes
		}
		p.do(p.WriteRSTStream(id, http2.ErrCodeCancel))
		id += 2
	}
	p.ask(id, true, request("ALL")...)
	for received := 0; received < 65535; {
		frame, err := p.ReadFrame()
		if err != nil {
			t.Fatalf("%d of 65535 bytes of the connection's window were used: %v", received, err)
		}
		if f, ok := frame.(*http2.DataFrame); ok {
			received += len(f.Data())
		}
	}
}

// After GOAWAY the frames of requests that the client sent before it has read it are ignored; those of earlier requests are served.
func TestFramesAfterGoAway(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) })
	p := connect(t, s)
	p.ask(1, false, request("POST")...)
	p.do(p.WriteData(1, false, []byte("a")))
	p.do(p.WritePing(false, [8]byte{}))
	p.next() // the request was read
	stopped := make(chan error, 1)
	go func() { stopped <- s.Config.Shutdown(context.Background()) }()
	if got := p.next(); got != "goaway: NO_ERROR" {
		t.Fatalf("got %s", got)
	}
	p.ask(3, false, request("POST")...)
	p.do(p.WriteData(3, false, make([]byte, 1000)))
	p.do(p.WriteWindowUpdate(3, 10))
	p.ask(3, true, "a b")
	p.ask(5, true, request("GET", "Not-Lower 1")...)
	p.do(p.WriteRSTStream(3, http2.ErrCodeCancel))
	p.do(p.WriteData(1, true, []byte("b")))
	for _, want := range []string{"1: 200", `1: "ab" true`} {
		if got := p.next(); got != want {
			t.Fatalf("got %s, want %s", got, want)
		}
	}
	if frame, err := p.ReadFrame(); err != io.EOF {
		t.Errorf("got %v, %v, want the end of TLS", frame, err)
	}
	_ = p.conn.Close()
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

// HTTP/2 must not be used with the cipher suites of RFC 9113, appendix A.
func TestInadequateSecurity(t *testing.T) {
	s := serve(t, func(http.ResponseWriter, *http.Request) {})
	s.TLS.CipherSuites = []uint16{tls.TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA, tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256}
	for suite, want := range map[uint16]string{
		tls.TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA:    "goaway: INADEQUATE_SECURITY",
		tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256: "1: 200",
	} {
		p := dialWith(t, s, func(c *tls.Config) { c.MaxVersion, c.CipherSuites = tls.VersionTLS12, []uint16{suite} })
		_, _ = io.WriteString(p.conn, http2.ClientPreface)
		_ = p.WriteSettings()
		_ = p.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: p.pack(request("GET")...), EndStream: true, EndHeaders: true})
		if got := p.next(); got != want {
			t.Errorf("%s: got %s, want %s", tls.CipherSuiteName(suite), got, want)
		}
	}
}

func TestMaxStreams(t *testing.T) {
	for configured, want := range map[int]uint32{0: 100, 7: 7} {
		s := serve(t, func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
		s.Config.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: configured}
		p := connect(t, s)
		frame, err := p.ReadFrame()
		p.do(err)
		if got, _ := frame.(*http2.SettingsFrame).Value(http2.SettingMaxConcurrentStreams); got != want {
			t.Errorf("%d streams were announced, want %d", got, want)
		}
		for i := range want {
			p.ask(2*i+1, true, request("GET")...)
		}
		p.ask(2*want+1, true, request("GET")...)
		if got, want := p.next(), fmt.Sprint(2*want+1, ": REFUSED_STREAM"); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

// When the process may hold nothing unsent, responses still arrive, in smaller pieces, and a connection holds little.
func TestUnsentLimit(t *testing.T) {
	unsent.held.Add(unsentLimit)
	defer unsent.release(unsentLimit)
	data := random(1 << 20)
	conns := make(chan *conn, 10)
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		conns <- w.(*response).stream.conn
		for at := 0; at < len(data); at += 1000 {
			if _, err := w.Write(data[at:min(at+1000, len(data))]); err != nil {
				return
			}
		}
		_, _ = w.Write(data)
		for r.Method == "ENDLESS" {
			if _, err := w.Write(data); err != nil {
				return
			}
		}
	})
	if _, got := s.do(t, "GET", "/", nil); !bytes.Equal(got, append(bytes.Clone(data), data...)) {
		t.Errorf("%d bytes arrived of %d, or others", len(got), 2*len(data))
	}
	<-conns
	p := connect(t, s, http2.Setting{ID: http2.SettingInitialWindowSize, Val: maxWindow})
	p.do(p.WriteWindowUpdate(0, maxWindow-65535))
	p.ask(1, true, request("ENDLESS")...)
	p.ask(3, true, request("ENDLESS")...)
	c := <-conns
	eventually(t, "the socket is full", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return len(c.forSpace) == 2
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	if size := c.pendingSize(); size > minPending+recordSize {
		t.Errorf("%d bytes are pending", size)
	}
}

// The events of watches that share a connection are sent together.
func TestFlushedTogether(t *testing.T) {
	const streams, events = 25, 40
	var mu sync.Mutex
	next := make(chan struct{})
	var arrived atomic.Int64
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		for range events {
			mu.Lock()
			wait := next
			mu.Unlock()
			arrived.Add(1)
			<-wait
			_, _ = w.Write(make([]byte, 100))
			w.(http.Flusher).Flush()
		}
	})
	var counted *recordCounter
	p := dialOver(t, s, func(c net.Conn) net.Conn { counted = &recordCounter{Conn: c}; return counted })
	p.must(io.WriteString(p.conn, http2.ClientPreface))
	p.do(p.WriteSettings())
	p.do(p.WriteWindowUpdate(0, 1<<20))
	for i := range uint32(streams) {
		p.ask(2*i+1, true, request("GET")...)
	}
	received := make(chan error, 1)
	go func() {
		for left := streams * events; left > 0; {
			frame, err := p.ReadFrame()
			if err != nil {
				received <- err
				return
			}
			if f, ok := frame.(*http2.DataFrame); ok && len(f.Data()) > 0 {
				left--
			}
		}
		received <- nil
	}()
	for event := range events {
		eventually(t, fmt.Sprint("all streams wait for event ", event), func() bool { return arrived.Load() == int64(streams*(event+1)) })
		mu.Lock()
		woken := next
		next = make(chan struct{})
		mu.Unlock()
		close(woken)
	}
	if err := <-received; err != nil {
		t.Fatal(err)
	}
	if records := counted.records.Load(); records > streams*events/2 {
		t.Errorf("%d events were sent in %d records", streams*events, records)
	} else {
		t.Logf("%d events were sent in %d records", streams*events, records)
	}
}

// recordCounter counts the TLS records that a client reads.
type recordCounter struct {
	net.Conn
	records atomic.Int64
	header  []byte
	skip    int
}

func (c *recordCounter) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	for rest := p[:n]; len(rest) > 0; {
		if skipped := min(c.skip, len(rest)); skipped > 0 {
			c.skip -= skipped
			rest = rest[skipped:]
			continue
		}
		c.header = append(c.header, rest[0])
		if rest = rest[1:]; len(c.header) == 5 {
			c.skip = int(c.header[3])<<8 | int(c.header[4])
			c.header = c.header[:0]
			c.records.Add(1)
		}
	}
	return n, err
}
