package http2

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// peer is a client that sends and receives single frames.
type peer struct {
	*http2.Framer
	t       testing.TB
	conn    *tls.Conn
	encoder *hpack.Encoder
	block   bytes.Buffer
}

// connect opens a connection with some settings.
func connect(t testing.TB, s *server, settings ...http2.Setting) *peer {
	t.Helper()
	p := dial(t, s)
	p.must(io.WriteString(p.conn, http2.ClientPreface))
	p.do(p.WriteSettings(settings...))
	p.do(p.WriteSettingsAck())
	return p
}

func dial(t testing.TB, s *server) *peer {
	t.Helper()
	return dialWith(t, s, func(*tls.Config) {})
}

// dialWith is dial with a changed TLS configuration.
func dialWith(t testing.TB, s *server, change func(*tls.Config)) *peer {
	t.Helper()
	config := s.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
	config.NextProtos = []string{"h2"}
	change(config)
	conn, err := tls.Dial("tcp", s.Listener.Addr().String(), config)
	if err != nil {
		t.Fatal(err)
	}
	return newPeer(t, conn)
}

// dialOver is dial with a connection around the socket.
func dialOver(t testing.TB, s *server, around func(net.Conn) net.Conn) *peer {
	t.Helper()
	conn, err := net.Dial("tcp", s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	config := s.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
	config.NextProtos, config.ServerName = []string{"h2"}, "example.com"
	return newPeer(t, tls.Client(around(conn), config))
}

func newPeer(t testing.TB, conn *tls.Conn) *peer {
	t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	p := &peer{Framer: http2.NewFramer(conn, conn), t: t, conn: conn}
	p.AllowIllegalWrites = true
	p.encoder = hpack.NewEncoder(&p.block)
	p.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	return p
}

func (p *peer) must(_ int, err error) { p.do(err) }

func (p *peer) do(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

// pack packs headers given as "name value".
func (p *peer) pack(headers ...string) []byte {
	p.block.Reset()
	for _, h := range headers {
		name, value, _ := strings.Cut(h, " ")
		p.do(p.encoder.WriteField(hpack.HeaderField{Name: name, Value: value}))
	}
	return p.block.Bytes()
}

// the pseudo headers of an ordinary request
func request(method string, more ...string) []string {
	return append([]string{":method " + method, ":scheme https", ":path /", ":authority localhost"}, more...)
}

func (p *peer) ask(id uint32, end bool, headers ...string) {
	p.t.Helper()
	p.do(p.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: p.pack(headers...), EndStream: end, EndHeaders: true}))
}

// next is the next frame that is no mere housekeeping, in words.
func (p *peer) next() string {
	for {
		frame, err := p.ReadFrame()
		if err != nil {
			return "closed"
		}
		switch f := frame.(type) {
		case *http2.MetaHeadersFrame:
			return fmt.Sprintf("%d: %s", f.StreamID, f.PseudoValue("status"))
		case *http2.DataFrame:
			if len(f.Data()) > 0 || f.StreamEnded() {
				return fmt.Sprintf("%d: %q %t", f.StreamID, f.Data(), f.StreamEnded())
			}
		case *http2.RSTStreamFrame:
			return fmt.Sprintf("%d: %s", f.StreamID, f.ErrCode)
		case *http2.GoAwayFrame:
			return fmt.Sprintf("goaway: %s", f.ErrCode)
		case *http2.PingFrame:
			return fmt.Sprintf("ping: %t %s", f.IsAck(), f.Data)
		}
	}
}

// What clients may not do, and what they may: RFC 9113.
func TestProtocol(t *testing.T) {
	const fine = "1: 200"
	ask := func(headers ...string) func(*peer) { return func(p *peer) { p.ask(1, true, headers...) } }
	for _, test := range []struct {
		name string
		do   func(p *peer)
		want string
	}{
		{"an ordinary request", ask(request("GET")...), fine},
		{"a method of its own", ask(request("SPROUT")...), fine},
		{"host in place of authority", ask(":method GET", ":scheme https", ":path /", "host here"), fine},
		{"all of the server", ask(":method OPTIONS", ":scheme https", ":path *"), fine},
		{"te trailers", ask(request("GET", "te trailers")...), fine},
		{"te gzip", ask(request("GET", "te gzip")...), "1: PROTOCOL_ERROR"},
		{"connection", ask(request("GET", "connection close")...), "1: PROTOCOL_ERROR"},
		{"transfer-encoding", ask(request("GET", "transfer-encoding chunked")...), "1: PROTOCOL_ERROR"},
		{"upgrade", ask(request("GET", "upgrade websocket")...), "1: PROTOCOL_ERROR"},
		{"upper case", ask(request("GET", "X-Up 1")...), "1: PROTOCOL_ERROR"},
		{"a line break in a value", ask(request("GET", "x a\r\nb: c")...), "1: PROTOCOL_ERROR"},
		{"no method", ask(":scheme https", ":path /"), "1: PROTOCOL_ERROR"},
		{"no scheme", ask(":method GET", ":path /"), "1: PROTOCOL_ERROR"},
		{"another scheme", ask(":method GET", ":path /", ":scheme ftp"), "1: PROTOCOL_ERROR"},
		{"no path", ask(":method GET", ":scheme https"), "1: PROTOCOL_ERROR"},
		{"a path that is none", ask(":method GET", ":scheme https", ":path a b"), "1: PROTOCOL_ERROR"},
		{"a path on another server", ask(":method GET", ":scheme https", ":path http://elsewhere/"), "1: PROTOCOL_ERROR"},
		{"CONNECT", ask(":method CONNECT", ":authority a:1"), "1: PROTOCOL_ERROR"},
		{"two methods", ask(request("GET", ":method PUT")...), "1: PROTOCOL_ERROR"},
		{"a pseudo header too late", ask("a b", ":method GET", ":scheme https", ":path /"), "1: PROTOCOL_ERROR"},
		{"an unknown pseudo header", ask(request("GET", ":color red")...), "1: PROTOCOL_ERROR"},
		{"a status in a request", ask(request("GET", ":status 200")...), "1: PROTOCOL_ERROR"},
		{"a length without a body", ask(request("POST", "content-length 5")...), "1: PROTOCOL_ERROR"},
		{"a length that is none", ask(request("POST", "content-length -0")...), "1: PROTOCOL_ERROR"},
		{"two lengths", ask(request("POST", "content-length 0", "content-length 0")...), "1: PROTOCOL_ERROR"},
		{"large headers", ask(request("GET", "x-big "+strings.Repeat("x", 60<<10))...), fine},
		{"headers too large", ask(request("GET", "x-big "+strings.Repeat("x", 40<<10), "x-too "+strings.Repeat("x", 40<<10))...), "1: 431"},
		{"a header beyond all measure", ask(request("GET", "x-big "+strings.Repeat("x", 70<<10))...), "goaway: COMPRESSION_ERROR"},
		{"headers in pieces", func(p *peer) {
			block := p.pack(request("GET")...)
			p.do(p.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block[:2], EndStream: true}))
			p.do(p.WriteContinuation(1, false, block[2:3]))
			p.do(p.WriteContinuation(1, true, block[3:]))
		}, fine},
		{"something between pieces", func(p *peer) {
			p.do(p.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: p.pack(request("GET")...), EndStream: true}))
			p.do(p.WritePing(false, [8]byte{}))
		}, "goaway: PROTOCOL_ERROR"},
		{"headers without end", func(p *peer) {
			p.do(p.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: p.pack(request("GET")...), EndStream: true}))
			for i := range 1000 { // the server gives up before all are sent
				if p.WriteContinuation(1, false, p.pack(fmt.Sprint("x-", i, " ", strings.Repeat("x", 1000)))) != nil {
					return
				}
			}
		}, "goaway: PROTOCOL_ERROR|closed"},
		{"headers that cannot be unpacked", func(p *peer) {
			p.do(p.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, EndHeaders: true}))
		}, "goaway: COMPRESSION_ERROR"},
		{"an even stream", func(p *peer) { p.ask(2, true, request("GET")...) }, "goaway: PROTOCOL_ERROR"},
		{"a stream of the past", func(p *peer) {
			p.ask(5, true, request("GET")...)
			p.next()
			p.ask(3, true, request("GET")...)
		}, "goaway: STREAM_CLOSED"},
		{"a stream that depends on itself", func(p *peer) {
			p.do(p.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: p.pack(request("GET")...), EndStream: true, EndHeaders: true,
				Priority: http2.PriorityParam{StreamDep: 1, Weight: 1}}))
		}, "1: PROTOCOL_ERROR"},
		{"a priority on itself", func(p *peer) { p.do(p.WritePriority(1, http2.PriorityParam{StreamDep: 1})) }, "1: PROTOCOL_ERROR"},
		{"a priority", func(p *peer) {
			p.do(p.WritePriority(3, http2.PriorityParam{StreamDep: 1}))
			p.ask(1, true, request("GET")...)
		}, fine},
		{"an unknown frame", func(p *peer) { p.do(p.WriteRawFrame(0x77, 1, 9, []byte("x"))); p.ask(1, true, request("GET")...) }, fine},
		{"a promise", func(p *peer) {
			p.do(p.WritePushPromise(http2.PushPromiseParam{StreamID: 1, PromiseID: 2, BlockFragment: p.pack("a b"), EndHeaders: true}))
		}, "goaway: PROTOCOL_ERROR"},
		{"a ping", func(p *peer) { p.do(p.WritePing(false, [8]byte{'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h'})) }, "ping: true abcdefgh"},
		{"a PING ACK without PING", func(p *peer) { p.do(p.WritePing(true, [8]byte{})); p.ask(1, true, request("GET")...) }, fine},
		{"a short ping", func(p *peer) { p.do(p.WriteRawFrame(http2.FramePing, 0, 0, []byte("abc"))) }, "goaway: FRAME_SIZE_ERROR"},
		{"too large a frame", func(p *peer) { p.do(p.WriteRawFrame(http2.FrameData, 0, 1, make([]byte, maxFrameSize+1))) }, "goaway: FRAME_SIZE_ERROR"},
		{"data on stream 0", func(p *peer) { p.do(p.WriteRawFrame(http2.FrameData, 0, 0, []byte("x"))) }, "goaway: PROTOCOL_ERROR"},
		{"data on a stream to come", func(p *peer) { p.do(p.WriteData(1, true, []byte("x"))) }, "goaway: PROTOCOL_ERROR"},
		{"data after the end", func(p *peer) { p.ask(1, true, request("HANG")...); p.do(p.WriteData(1, true, []byte("x"))) }, "1: STREAM_CLOSED"},
		{"headers after the end", func(p *peer) { p.ask(1, true, request("HANG")...); p.ask(1, true, "a b") }, "1: STREAM_CLOSED"},
		{"data on a closed stream", func(p *peer) {
			p.ask(1, true, request("GET")...)
			p.next()
			p.do(p.WriteData(1, true, []byte("x")))
		}, "1: STREAM_CLOSED"},
		{"more than declared", func(p *peer) {
			p.ask(1, false, request("HANG", "content-length 1")...)
			p.do(p.WriteData(1, true, []byte("xx")))
		}, "1: PROTOCOL_ERROR"},
		{"less than declared", func(p *peer) {
			p.ask(1, false, request("HANG", "content-length 3")...)
			p.do(p.WriteData(1, true, []byte("xx")))
		}, "1: PROTOCOL_ERROR"},
		{"less than declared, then trailers", func(p *peer) {
			p.ask(1, false, request("HANG", "content-length 3")...)
			p.do(p.WriteData(1, false, []byte("xx")))
			p.ask(1, true, "a b")
		}, "1: PROTOCOL_ERROR"},
		{"trailers that do not end", func(p *peer) { p.ask(1, false, request("HANG")...); p.ask(1, false, "a b") }, "1: PROTOCOL_ERROR"},
		{"trailers with a pseudo header", func(p *peer) { p.ask(1, false, request("HANG")...); p.ask(1, true, ":path /") }, "1: PROTOCOL_ERROR"},
		{"padded data", func(p *peer) {
			p.ask(1, false, request("ECHO")...)
			p.do(p.WriteDataPadded(1, true, []byte("x"), make([]byte, 200)))
			p.next()
		}, `1: "x" true`},
		{"more on a stream than its window", func(p *peer) {
			p.ask(1, false, request("HANG")...)
			p.do(p.WriteData(1, false, make([]byte, streamWindow)))
			p.do(p.WriteData(1, false, make([]byte, 1)))
		}, "1: FLOW_CONTROL_ERROR"},
		{"more than the connection's window", func(p *peer) {
			for id := uint32(1); id < 11; id += 2 {
				p.ask(id, false, request("HANG")...)
				p.do(p.WriteData(id, false, make([]byte, streamWindow)))
			}
		}, "goaway: FLOW_CONTROL_ERROR"},
		{"a reset of a stream to come", func(p *peer) { p.do(p.WriteRSTStream(1, http2.ErrCodeCancel)) }, "goaway: PROTOCOL_ERROR"},
		{"a reset of a closed stream", func(p *peer) {
			p.ask(1, true, request("HANG")...)
			p.do(p.WriteRSTStream(1, http2.ErrCodeCancel))
			p.do(p.WriteRSTStream(1, http2.ErrCodeCancel))
			p.ask(3, true, request("GET")...)
		}, "3: 200"},
		{"a window for a stream to come", func(p *peer) { p.do(p.WriteWindowUpdate(1, 1)) }, "goaway: PROTOCOL_ERROR"},
		{"a window for a closed stream", func(p *peer) {
			p.ask(1, true, request("HANG")...)
			p.do(p.WriteRSTStream(1, http2.ErrCodeCancel))
			p.do(p.WriteWindowUpdate(1, 1))
			p.ask(3, true, request("GET")...)
		}, "3: 200"},
		{"a stream's window widened by nothing", func(p *peer) { p.ask(1, true, request("HANG")...); p.do(p.WriteWindowUpdate(1, 0)) }, "1: PROTOCOL_ERROR"},
		{"the window widened by nothing", func(p *peer) { p.do(p.WriteWindowUpdate(0, 0)) }, "goaway: PROTOCOL_ERROR"},
		{"a stream's window beyond all measure", func(p *peer) { p.ask(1, true, request("HANG")...); p.do(p.WriteWindowUpdate(1, maxWindow)) }, "1: FLOW_CONTROL_ERROR"},
		{"the window beyond all measure", func(p *peer) { p.do(p.WriteWindowUpdate(0, maxWindow)) }, "goaway: FLOW_CONTROL_ERROR"},
		{"initial windows beyond all measure", func(p *peer) {
			p.do(p.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 31}))
		}, "goaway: FLOW_CONTROL_ERROR"},
		{"initial windows that make another overflow", func(p *peer) {
			p.ask(1, true, request("HANG")...)
			p.do(p.WriteWindowUpdate(1, maxWindow-65535))
			p.do(p.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 65536}))
		}, "goaway: FLOW_CONTROL_ERROR"},
		{"small frames", func(p *peer) { p.do(p.WriteSettings(http2.Setting{ID: http2.SettingMaxFrameSize, Val: 1})) }, "goaway: PROTOCOL_ERROR"},
		{"a setting of its own", func(p *peer) { p.do(p.WriteSettings(http2.Setting{ID: 99, Val: 1})); p.ask(1, true, request("GET")...) }, fine},
		{"the same setting twice", func(p *peer) {
			p.do(p.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 3}))
			p.ask(1, false, request("ECHO")...)
			p.do(p.WriteData(1, true, []byte("four")))
			p.next()
		}, `1: "fou" false`},
		{"very many settings", func(p *peer) { p.do(p.WriteSettings(make([]http2.Setting, maxSettings+1)...)) }, "goaway: ENHANCE_YOUR_CALM"},
		{"no table for headers", func(p *peer) {
			p.do(p.WriteSettings(http2.Setting{ID: http2.SettingHeaderTableSize, Val: 0}))
			for id := uint32(1); id < 9; id += 2 {
				p.ask(id, true, request("GET")...)
				p.next()
			}
			p.ask(9, true, request("GET")...)
		}, "9: 200"},
		{"settings for a stream", func(p *peer) { p.do(p.WriteRawFrame(http2.FrameSettings, 0, 1, nil)) }, "goaway: PROTOCOL_ERROR"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, func(w http.ResponseWriter, r *http.Request) {
				switch r.Method {
				case "HANG":
					<-r.Context().Done()
				case "ECHO":
					body, _ := io.ReadAll(r.Body)
					_, _ = w.Write(body)
				}
			})
			p := connect(t, s)
			test.do(p)
			if got := p.next(); !strings.Contains("|"+test.want+"|", "|"+got+"|") {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}

func TestHandshake(t *testing.T) {
	s := serve(t, func(http.ResponseWriter, *http.Request) {})
	for name, say := range map[string]func(*peer){
		"HTTP/1":   func(p *peer) { p.must(io.WriteString(p.conn, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")) },
		"no setup": func(p *peer) { p.must(io.WriteString(p.conn, http2.ClientPreface)); p.ask(1, true, request("GET")...) },
		"only a SETTINGS ACK": func(p *peer) {
			p.must(io.WriteString(p.conn, http2.ClientPreface))
			p.do(p.WriteSettingsAck())
		},
	} {
		p := dial(t, s)
		say(p)
		if got := p.next(); got != "goaway: PROTOCOL_ERROR" {
			t.Errorf("%s: got %s", name, got)
		}
	}
}

// However little the client allows at a time, everything arrives once and in order, and never more than it allows.
func TestFlowControl(t *testing.T) {
	data := random(3*writeSize + 1000)
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		rest := data
		for _, size := range []int{5, payload, writeSize, 1, 2 * payload, len(data)} {
			n := min(size, len(rest))
			_, _ = w.Write(rest[:n])
			if rest = rest[n:]; n%2 == 1 {
				w.(http.Flusher).Flush()
			}
		}
	})
	for seed := range uint64(12) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(seed, 1))
			initial := r.IntN(40_000) * r.IntN(2)
			p := connect(t, s, http2.Setting{ID: http2.SettingInitialWindowSize, Val: uint32(initial)})
			p.ask(1, true, request("GET")...)
			stream, conn := initial, 65535
			var got []byte
			for ended := false; !ended; {
				if stream <= 0 || conn <= 0 {
					more := 1 + r.IntN(30_000)*r.IntN(2)
					switch {
					case conn <= 0:
						p.do(p.WriteWindowUpdate(0, uint32(more)))
						conn += more
					case r.IntN(4) == 0: // all streams at once, and perhaps below zero before
						p.do(p.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: uint32(initial / 2)}))
						p.do(p.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: uint32(initial + more)}))
						stream, initial = stream+more, initial+more
					default:
						p.do(p.WriteWindowUpdate(1, uint32(more)))
						stream += more
					}
				}
				frame, err := p.ReadFrame()
				if err != nil {
					t.Fatalf("after %d of %d bytes: %v", len(got), len(data), err)
				}
				if f, ok := frame.(*http2.DataFrame); ok {
					got = append(got, f.Data()...)
					stream, conn = stream-len(f.Data()), conn-len(f.Data())
					if stream < 0 || conn < 0 {
						t.Fatalf("the window was passed by %d", max(-stream, -conn))
					}
					ended = f.StreamEnded()
				}
			}
			if !bytes.Equal(got, data) {
				t.Errorf("%d bytes arrived of %d, or others", len(got), len(data))
			}
		})
	}
}

// A stream that its client does not read leaves the others alone.
func TestBlockedStream(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == "MUCH" {
			for {
				if _, err := w.Write(make([]byte, 10_000)); err != nil {
					return
				}
			}
		}
	})
	p := connect(t, s)
	p.do(p.WriteWindowUpdate(0, 1<<20))
	p.ask(1, true, request("MUCH")...)
	for read := 0; read < 65535; {
		frame, err := p.ReadFrame()
		p.do(err)
		if f, ok := frame.(*http2.DataFrame); ok {
			read += len(f.Data())
		}
	}
	p.ask(3, true, request("GET")...)
	if got := p.next(); got != "3: 200" {
		t.Errorf("got %s", got)
	}
}

// A client that opens streams and resets them at once cannot have more handlers than streams.
func TestRapidReset(t *testing.T) {
	release, running := make(chan struct{}), make(chan struct{}, 2*defaultMaxStreams)
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		running <- struct{}{}
		<-release
	})
	p := connect(t, s)
	for i := range uint32(defaultMaxStreams) {
		p.ask(2*i+1, true, request("GET")...)
		p.do(p.WriteRSTStream(2*i+1, http2.ErrCodeCancel))
	}
	for range defaultMaxStreams {
		<-running
	}
	p.ask(2*defaultMaxStreams+1, true, request("GET")...)
	if got, want := p.next(), fmt.Sprint(2*defaultMaxStreams+1, ": REFUSED_STREAM"); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if len(running) > 0 {
		t.Error("more handlers run than may")
	}
	close(release)
	for i := uint32(1); ; i++ { // until one of them has ended
		p.ask(2*defaultMaxStreams+1+2*i, true, request("GET")...)
		if got := p.next(); !strings.Contains(got, "REFUSED") || i > 1000 {
			if !strings.Contains(got, ": 200") {
				t.Errorf("got %s", got)
			}
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// A connection that has ended is not looked after any more.
func TestClosedConnectionIsNotWritten(t *testing.T) {
	c := &conn{server: &http.Server{}, closed: true, timer: time.AfterFunc(time.Hour, func() {})}
	c.timer.Stop()
	if c.keepalive(); c.timer.Stop() {
		t.Error("the keepalive timer was started again")
	}
}

// A client that requests responses without reading them is disconnected, whether handlers are writing or not.
func TestFlood(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		for {
			if _, err := w.Write(make([]byte, 1<<20)); err != nil {
				return
			}
		}
	})
	for what, send := range map[string]func(p *peer, i uint32) error{
		"pings":    func(p *peer, _ uint32) error { return p.WritePing(false, [8]byte{}) },
		"settings": func(p *peer, _ uint32) error { return p.WriteSettings() },
		"bad requests": func(p *peer, i uint32) error {
			return p.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*i + 101, BlockFragment: p.pack(":method GET"), EndStream: true, EndHeaders: true})
		},
	} {
		for _, requests := range []uint32{0, 1, 2} {
			t.Run(fmt.Sprint(what, " after ", requests, " requests"), func(t *testing.T) {
				p := connect(t, s, http2.Setting{ID: http2.SettingInitialWindowSize, Val: maxWindow})
				_ = p.conn.SetDeadline(time.Now().Add(2 * time.Minute)) // a million frames take long on a busy host
				p.do(p.WriteWindowUpdate(0, maxWindow-65535))
				for i := range requests {
					p.ask(2*i+1, true, request("GET")...)
				}
				var err error
				for i := range uint32(1_000_000) {
					if err = send(p, i); err != nil {
						break
					}
				}
				if err == nil {
					t.Error("the server accepted a million frames")
				}
				var timeout interface{ Timeout() bool }
				if errors.As(err, &timeout) && timeout.Timeout() {
					t.Errorf("the server stopped reading instead of closing the connection: %v", err)
				}
			})
		}
	}
}

// Whatever a client sends, the server neither falls nor forgets to hang up.
func FuzzFrames(f *testing.F) {
	s := serve(f, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_, _ = w.Write(body)
	})
	var seed bytes.Buffer
	say := func(how func(p *peer)) {
		seed.Reset()
		p := &peer{Framer: http2.NewFramer(&seed, nil), t: f}
		p.AllowIllegalWrites = true
		p.encoder = hpack.NewEncoder(&p.block)
		how(p)
		f.Add(bytes.Clone(seed.Bytes()))
	}
	say(func(p *peer) { p.ask(1, true, request("GET")...) })
	say(func(p *peer) { p.ask(1, false, request("POST")...); p.do(p.WriteData(1, true, []byte("body"))) })
	say(func(p *peer) {
		p.ask(1, false, request("POST")...)
		p.do(p.WriteRSTStream(1, http2.ErrCodeCancel))
		p.ask(3, true, request("GET")...)
	})
	say(func(p *peer) {
		p.do(p.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1}))
		p.ask(1, false, request("POST")...)
		p.do(p.WriteDataPadded(1, false, []byte("body"), make([]byte, 9)))
		p.do(p.WriteWindowUpdate(1, 5))
		p.ask(1, true, "a b")
	})
	say(func(p *peer) {
		p.do(p.WritePing(false, [8]byte{}))
		p.do(p.WritePriority(1, http2.PriorityParam{StreamDep: 3}))
		p.do(p.WriteGoAway(0, http2.ErrCodeNo, nil))
	})
	say(func(p *peer) {
		block := p.pack(request("GET")...)
		p.do(p.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block[:3], EndStream: true}))
		p.do(p.WriteContinuation(1, true, block[3:]))
	})
	f.Fuzz(func(t *testing.T, frames []byte) {
		p := connect(t, s)
		defer p.conn.Close()
		_, _ = p.conn.Write(frames)
		_ = p.conn.CloseWrite()
		if _, err := io.Copy(io.Discard, p.conn); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error("the server does not hang up")
		}
		if text := s.log.String(); strings.Contains(text, "panic") {
			t.Error(text)
		}
	})
}

// A request that arrives after GOAWAY is ignored, with all its frames, and does not disturb the ones in flight.
func TestRequestsAfterGoAway(t *testing.T) {
	release, began := make(chan struct{}), make(chan struct{})
	s := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		close(began)
		<-release
		fmt.Fprint(w, "finished")
	})
	p := connect(t, s)
	p.ask(1, true, request("GET")...)
	<-began
	stopped := make(chan error, 1)
	go func() { stopped <- s.Config.Shutdown(t.Context()) }()
	p.expect("goaway: NO_ERROR")
	p.ask(3, false, request("POST")...)
	p.do(p.WriteData(3, false, []byte("ignored")))
	p.do(p.WriteWindowUpdate(3, 1))
	p.do(p.WriteRSTStream(3, http2.ErrCodeCancel))
	p.do(p.WriteData(3, true, nil))
	p.do(p.WritePing(false, [8]byte{'r', 'e', 'a', 'd', '?'}))
	p.expect("ping: true read?\x00\x00\x00")
	close(release)
	p.expect("1: 200")
	p.expect(`1: "finished" true`)
	p.conn.Close()
	p.do(<-stopped)
}

// A connection that begins during a shutdown is refused with GOAWAY, so that its requests can be sent again.
func TestConnectionDuringShutdown(t *testing.T) {
	s := serve(t, func(http.ResponseWriter, *http.Request) { t.Error("the request was served") })
	p := dial(t, s)
	stopped := make(chan error, 1)
	go func() { stopped <- s.Config.Shutdown(t.Context()) }()
	for {
		// The listener is closed before connections are refused.
		conn, err := net.Dial("tcp", s.Listener.Addr().String())
		if err != nil {
			break
		}
		conn.Close()
	}
	p.must(io.WriteString(p.conn, http2.ClientPreface))
	p.do(p.WriteSettings())
	p.ask(1, true, request("GET")...)
	p.expect("goaway: NO_ERROR")
	p.expect("closed")
	p.conn.Close()
	p.do(<-stopped)
}

func (p *peer) expect(want string) {
	p.t.Helper()
	if got := p.next(); got != want {
		p.t.Errorf("received %q, want %q", got, want)
	}
}
