package http2

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// server is a server with a client, over TLS on loopback.
type server struct {
	*httptest.Server
	log lockedBuffer
}

func serve(t testing.TB, handler http.HandlerFunc) *server {
	t.Helper()
	s := &server{Server: httptest.NewUnstartedServer(handler)}
	s.EnableHTTP2 = true
	s.TLS = &tls.Config{DynamicRecordSizingDisabled: true}
	s.Config.ErrorLog = log.New(&s.log, "", 0)
	s.Config.MaxHeaderBytes = 64 << 10
	Configure(s.Config)
	s.Listener = Listener(s.Listener)
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func (s *server) do(t *testing.T, method, path string, body io.Reader, header ...string) (*http.Response, []byte) {
	t.Helper()
	req, err := http.NewRequest(method, s.URL+path, body)
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range header {
		name, value, _ := strings.Cut(h, ": ")
		req.Header.Add(name, value)
	}
	resp, err := s.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	if resp.ProtoMajor != 2 {
		t.Fatalf("answered by %s", resp.Proto)
	}
	return resp, data
}

// random bytes differ everywhere, so that any that are lost or out of place are noticed.
func random(n int) []byte {
	data := make([]byte, n)
	r := rand.New(rand.NewPCG(1, uint64(n)))
	for i := range data {
		data[i] = byte(r.Uint32())
	}
	return data
}

func TestResponses(t *testing.T) {
	big := random(1<<20 + 77)
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/nothing":
		case "/small":
			w.Header().Set("Content-Type", "application/json")
			w.Header()["X-Two"] = []string{"a", "b"}
			w.WriteHeader(http.StatusCreated)
			fmt.Fprint(w, "{}")
		case "/status":
			w.WriteHeader(http.StatusNoContent)
			if _, err := w.Write([]byte("x")); !errors.Is(err, http.ErrBodyNotAllowed) {
				t.Errorf("a body where none is allowed: %v", err)
			}
		case "/big":
			w.Header().Set("Content-Length", fmt.Sprint(len(big)))
			_, _ = w.Write(big)
		case "/pieces":
			for at, n := 0, 1; at < len(big); at, n = at+n, n*3/2+1 {
				_, _ = w.Write(big[at:min(at+n, len(big))])
			}
		case "/flushed":
			for at := 0; at < len(big); at += 100_000 {
				_, _ = w.Write(big[at:min(at+100_000, len(big))])
				w.(http.Flusher).Flush()
			}
		case "/html":
			fmt.Fprint(w, "<html><body>hello")
		case "/http1":
			w.Header().Set("Connection", "keep-alive")
			w.Header().Set("Transfer-Encoding", "chunked")
			w.Header().Set("Bad Name", "x")
			w.Header().Set("Bad-Value", "x\ny")
			fmt.Fprint(w, "fine")
		case "/late":
			w.WriteHeader(http.StatusAccepted)
			w.Header().Set("X-Late", "yes")
			w.WriteHeader(http.StatusTeapot)
		case "/hint":
			w.Header().Set("Link", "</style.css>")
			w.WriteHeader(http.StatusEarlyHints)
			w.WriteHeader(http.StatusOK)
		}
	})
	for _, test := range []struct {
		method, path string
		status       int
		header       string // name: value, separated by |; a value of - is absence
		body         []byte
	}{
		{"GET", "/nothing", 200, "Content-Length: 0|Content-Type: -", nil},
		{"GET", "/small", 201, "Content-Length: 2|Content-Type: application/json|X-Two: a,b", []byte("{}")},
		{"HEAD", "/small", 201, "Content-Length: 2|Content-Type: application/json", nil},
		{"GET", "/status", 204, "Content-Length: -", nil},
		{"GET", "/big", 200, fmt.Sprint("Content-Length: ", len(big), "|Content-Type: application/octet-stream"), big},
		{"HEAD", "/big", 200, fmt.Sprint("Content-Length: ", len(big)), nil},
		{"GET", "/pieces", 200, "Content-Length: -", big},
		{"GET", "/flushed", 200, "Content-Length: -", big},
		{"GET", "/html", 200, "Content-Type: text/html; charset=utf-8|Content-Length: 17", []byte("<html><body>hello")},
		{"GET", "/http1", 200, "Connection: -|Transfer-Encoding: -|Bad Name: -|Bad-Value: -", []byte("fine")},
		{"GET", "/late", 202, "X-Late: -", nil},
		{"GET", "/hint", 200, "Link: </style.css>", nil},
	} {
		t.Run(test.method+test.path, func(t *testing.T) {
			resp, body := s.do(t, test.method, test.path, nil)
			if resp.StatusCode != test.status || !bytes.Equal(body, test.body) {
				t.Errorf("got %d with %d bytes, want %d with %d", resp.StatusCode, len(body), test.status, len(test.body))
			}
			if date, err := http.ParseTime(resp.Header.Get("Date")); err != nil || time.Since(date).Abs() > time.Minute {
				t.Errorf("date is %q", resp.Header.Get("Date"))
			}
			for line := range strings.SplitSeq(test.header, "|") {
				name, want, _ := strings.Cut(line, ": ")
				if values, ok := resp.Header[name]; (want == "-") == ok || ok && strings.Join(values, ",") != want {
					t.Errorf("%s is %q, want %q", name, values, want)
				}
			}
		})
	}
}

func TestRequests(t *testing.T) {
	type seen struct {
		r    *http.Request
		body []byte
		err  error
	}
	var last seen
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		last = seen{r, body, err}
	})
	big := random(3 << 20)
	t.Run("get", func(t *testing.T) {
		s.do(t, "GET", "/a%2Fb/c?x=1&y=%20", nil, "X-One: 1", "X-One: 2", "Cookie: a=1", "Cookie: b=2", "Accept: */*")
		r := last.r
		if r.Method != "GET" || r.URL.Path != "/a/b/c" || r.URL.RawPath != "/a%2Fb/c" || r.URL.RawQuery != "x=1&y=%20" || r.RequestURI != "/a%2Fb/c?x=1&y=%20" {
			t.Errorf("got %s %v", r.Method, r.URL)
		}
		if r.Proto != "HTTP/2.0" || r.ProtoMajor != 2 || "https://"+r.Host != s.URL || r.TLS == nil || r.TLS.NegotiatedProtocol != "h2" || r.RemoteAddr == "" {
			t.Errorf("got %s, host %s, from %s", r.Proto, r.Host, r.RemoteAddr)
		}
		if fmt.Sprint(r.Header["X-One"]) != "[1 2]" || r.Header.Get("Cookie") != "a=1; b=2" || r.Header.Get("Host") != "" {
			t.Errorf("headers are %v", r.Header)
		}
		if r.ContentLength != 0 || len(last.body) > 0 || last.err != nil {
			t.Errorf("the body is %d long: %v, %v", r.ContentLength, last.body, last.err)
		}
		if r.Context().Value(http.ServerContextKey) != s.Config {
			t.Error("the context is not that of the server")
		}
	})
	for _, size := range []int{0, 1, 1000, streamWindow, streamWindow + 1, len(big)} {
		t.Run(fmt.Sprint("post ", size), func(t *testing.T) {
			s.do(t, "POST", "/", bytes.NewReader(big[:size]))
			if last.r.ContentLength != int64(size) || !bytes.Equal(last.body, big[:size]) || last.err != nil {
				t.Errorf("declared %d, read %d, %v", last.r.ContentLength, len(last.body), last.err)
			}
			s.do(t, "POST", "/", io.MultiReader(bytes.NewReader(big[:size]), strings.NewReader("end")))
			if last.r.ContentLength != -1 || string(last.body) != string(big[:size])+"end" || last.err != nil {
				t.Errorf("of unknown length: declared %d, read %d, %v", last.r.ContentLength, len(last.body), last.err)
			}
		})
	}
	t.Run("expects to be told", func(t *testing.T) {
		s.Client().Transport.(*http.Transport).ExpectContinueTimeout = 10 * time.Second
		began := time.Now()
		s.do(t, "POST", "/", strings.NewReader("body"), "Expect: 100-continue")
		if string(last.body) != "body" || time.Since(began) > 5*time.Second {
			t.Errorf("read %q, %v after %v", last.body, last.err, time.Since(began))
		}
	})
	t.Run("trailers", func(t *testing.T) {
		req, _ := http.NewRequest("POST", s.URL, io.NopCloser(strings.NewReader("body")))
		req.Trailer = http.Header{"X-Sum": {"7"}}
		resp, err := s.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if string(last.body) != "body" || last.r.Trailer.Get("X-Sum") != "7" || last.r.Header.Get("Trailer") != "" {
			t.Errorf("got %q and %v", last.body, last.r.Trailer)
		}
	})
}

func TestResponseTrailers(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/announced" {
			w.Header().Set("Trailer", "X-Sum")
		}
		fmt.Fprint(w, "body")
		w.Header().Set("X-Sum", "7")
		w.Header().Set(http.TrailerPrefix+"X-More", "8")
	})
	for path, want := range map[string]string{"/announced": "7 8", "/": " 8"} {
		resp, body := s.do(t, "GET", path, nil)
		if got := resp.Trailer.Get("X-Sum") + " " + resp.Trailer.Get("X-More"); got != want || string(body) != "body" {
			t.Errorf("%s: trailers are %q, body is %q", path, got, body)
		}
	}
}

// A watch's client sees what was flushed before the handler goes on.
func TestFlush(t *testing.T) {
	next := make(chan string)
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		for word := range next {
			fmt.Fprintln(w, word)
			if err := http.NewResponseController(w).Flush(); err != nil {
				t.Error(err)
			}
		}
	})
	resp, err := s.Client().Get(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	for _, word := range []string{"one", strings.Repeat("two", 100_000), "three"} {
		next <- word
		got := make([]byte, len(word)+1)
		if _, err := io.ReadFull(resp.Body, got); err != nil || string(got) != word+"\n" {
			t.Fatalf("got %.10q, %v", got, err)
		}
	}
	close(next)
	if rest, err := io.ReadAll(resp.Body); len(rest) > 0 || err != nil {
		t.Errorf("at the end: %q, %v", rest, err)
	}
}

// A handler notices that its client has disconnected: by its context, by reading and by writing.
func TestClientDisconnects(t *testing.T) {
	for _, test := range []struct {
		name  string
		leave func(cancel context.CancelFunc, s *server)
	}{
		{"the request is cancelled", func(cancel context.CancelFunc, _ *server) { cancel() }},
		{"the connection is closed", func(_ context.CancelFunc, s *server) { s.CloseClientConnections() }},
	} {
		t.Run(test.name, func(t *testing.T) {
			began, errs := make(chan struct{}), make(chan error, 3)
			s := serve(t, func(w http.ResponseWriter, r *http.Request) {
				reading := make(chan error)
				go func() {
					_, err := r.Body.Read(make([]byte, 1))
					reading <- err
				}()
				close(began)
				<-r.Context().Done()
				errs <- r.Context().Err()
				errs <- <-reading
				for err := error(nil); ; {
					if _, err = w.Write(make([]byte, 1<<20)); err != nil {
						errs <- err
						return
					}
				}
			})
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			body, silent := io.Pipe()
			defer silent.Close()
			req, _ := http.NewRequestWithContext(ctx, "POST", s.URL, body)
			go func() {
				<-began
				test.leave(cancel, s)
			}()
			if resp, err := s.Client().Do(req); err == nil {
				resp.Body.Close()
				t.Error("was answered")
			}
			for range 3 {
				select {
				case err := <-errs:
					if err == nil {
						t.Error("did not learn of it")
					}
				case <-time.After(10 * time.Second):
					t.Fatal("the handler was left waiting")
				}
			}
		})
	}
}

func TestReadDeadline(t *testing.T) {
	for _, after := range []time.Duration{-time.Second, 20 * time.Millisecond} {
		s := serve(t, func(w http.ResponseWriter, r *http.Request) {
			if err := http.NewResponseController(w).SetReadDeadline(time.Now().Add(after)); err != nil {
				t.Error(err)
			}
			_, err := io.ReadAll(r.Body)
			fmt.Fprint(w, errors.Is(err, os.ErrDeadlineExceeded))
		})
		body, silent := io.Pipe()
		if _, got := s.do(t, "POST", "/", body); string(got) != "true" {
			t.Errorf("after %v: %s", after, got)
		}
		silent.Close()
	}
}

// A response may end before the request's body; the stream is reset, and the connection stays open.
func TestEarlyResponse(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == "POST" {
			w.WriteHeader(http.StatusRequestEntityTooLarge)
		}
	})
	for range 20 {
		req, _ := http.NewRequest("POST", s.URL, bytes.NewReader(random(2<<20)))
		resp, err := s.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusRequestEntityTooLarge {
			t.Fatal(resp.Status)
		}
	}
	if resp, _ := s.do(t, "GET", "/", nil); resp.StatusCode != http.StatusOK {
		t.Error(resp.Status)
	}
}

func TestPanics(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/abort":
			panic(http.ErrAbortHandler)
		case "/short":
			w.Header().Set("Content-Length", "10")
			fmt.Fprint(w, "short")
		case "/panic":
			fmt.Fprint(w, "half")
			w.(http.Flusher).Flush()
			panic("for a reason")
		}
	})
	for _, path := range []string{"/abort", "/short", "/panic"} {
		resp, err := s.Client().Get(s.URL + path)
		if err == nil {
			_, err = io.ReadAll(resp.Body)
			resp.Body.Close()
		}
		var reset http2.StreamError
		if err == nil || !strings.Contains(err.Error(), "INTERNAL_ERROR") && !errors.As(err, &reset) {
			t.Errorf("%s: %v", path, err)
		}
	}
	s.do(t, "GET", "/", nil)
	if text := s.log.String(); !strings.Contains(text, "for a reason") || strings.Contains(text, "abort") {
		t.Errorf("the log says %q", text)
	}
}

// Many at once, on one connection, both ways.
func TestConcurrency(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		for len(body) > 0 {
			n := min(len(body), 1+rand.IntN(50_000))
			_, _ = w.Write(body[:n])
			body = body[n:]
			if rand.IntN(3) == 0 {
				w.(http.Flusher).Flush()
			}
		}
	})
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			data := random(rand.IntN(300_000) + i)
			resp, err := s.Client().Post(s.URL, "", bytes.NewReader(data))
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			if got, err := io.ReadAll(resp.Body); err != nil || !bytes.Equal(got, data) {
				t.Errorf("sent %d bytes, got %d, %v", len(data), len(got), err)
			}
		})
	}
	wg.Wait()
}

func TestShutdown(t *testing.T) {
	release, began := make(chan struct{}), make(chan struct{})
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			close(began)
			<-release
			fmt.Fprint(w, "finished")
		}
	})
	s.do(t, "GET", "/", nil)
	response := make(chan string)
	go func() {
		resp, err := s.Client().Get(s.URL + "/slow")
		if err != nil {
			response <- err.Error()
			return
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		response <- string(body)
	}()
	<-began
	done := make(chan error)
	go func() { done <- s.Config.Shutdown(context.Background()) }()
	select {
	case err := <-done:
		t.Fatalf("did not wait: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	close(release)
	if got := <-response; got != "finished" {
		t.Errorf("the request that was running: %s", got)
	}
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("the connection was not closed")
	}
}

// A handler that sets Connection: close, to spread clients over several servers, still sends its response.
func TestConnectionClose(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Connection", "close")
		fmt.Fprint(w, r.RemoteAddr)
	})
	from := map[string]bool{}
	for range 3 {
		_, body := s.do(t, "GET", "/", nil)
		from[string(body)] = true
	}
	if len(from) != 3 {
		t.Errorf("three requests came over the connections %v", from)
	}
}

// A server that is not HTTP/2 by this package alone still speaks HTTP/1.1.
func TestHTTP1(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Proto) })
	config := s.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
	config.NextProtos = []string{"http/1.1"}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: config}}
	defer client.CloseIdleConnections()
	resp, err := client.Get(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, _ := io.ReadAll(resp.Body); string(body) != "HTTP/1.1" {
		t.Errorf("got %s", body)
	}
}
