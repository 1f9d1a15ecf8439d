package system

import (
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"skiff/internal/config"
)

// servedAPI is an apiService with a handler of the test. /watch runs until it has to end, /slow until the test releases it.
type servedAPI struct {
	apiService
	t        *testing.T
	url      string
	client   *http.Client
	stop     context.CancelFunc // begins the shutdown
	stopped  chan error         // receives the result of serve
	notReady atomic.Bool
	running  chan struct{} // receives a value when a request of /slow runs
	release  chan struct{} // closed: requests of /slow finish
}

// serveAPI serves with one of the implementations of HTTP/2.
func serveAPI(t *testing.T, http2Server string, configure func(*apiService)) *servedAPI {
	t.Helper()
	// httptest has a certificate for 127.0.0.1 and a client that trusts it.
	credentials := httptest.NewUnstartedServer(nil)
	credentials.EnableHTTP2 = true
	credentials.StartTLS()
	t.Cleanup(credentials.Close)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &servedAPI{
		t: t, url: "https://" + listener.Addr().String(), client: credentials.Client(), stopped: make(chan error, 1),
		running: make(chan struct{}, 1), release: make(chan struct{}),
	}
	ending, endWatches := context.WithCancel(t.Context())
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/watch":
			_ = http.NewResponseController(w).Flush()
			<-ending.Done()
			return
		case "/slow":
			s.running <- struct{}{}
			select {
			case <-s.release:
			case <-r.Context().Done():
				w.WriteHeader(http.StatusGatewayTimeout)
				return
			}
		}
		body, _ := io.ReadAll(r.Body)
		_, _ = w.Write([]byte(r.Proto + " " + strings.ToUpper(string(body))))
	})
	certificates := &tls.Config{Certificates: credentials.TLS.Certificates, NextProtos: []string{"h2", "http/1.1"}}
	s.apiService = apiService{
		server: newHTTPServer(handler, certificates, 0), http2Server: http2Server, requestTimeout: time.Minute,
		begin: func() { s.notReady.Store(true) }, endLongRunning: func(time.Duration) { endWatches() }, log: slog.New(slog.DiscardHandler),
	}
	if configure != nil {
		configure(&s.apiService)
	}
	var ctx context.Context
	ctx, s.stop = context.WithCancel(t.Context())
	go func() { s.stopped <- s.serve(ctx, listener) }()
	return s
}

// post sends a request and returns the response's body, or the error.
func (s *servedAPI) post(path string) string {
	response, err := s.client.Post(s.url+path, "text/plain", strings.NewReader("hello"))
	if err != nil {
		return err.Error()
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return err.Error()
	}
	return string(body)
}

// wait waits until the server has stopped.
func (s *servedAPI) wait() {
	s.t.Helper()
	select {
	case err := <-s.stopped:
		if err != nil {
			s.t.Error(err)
		}
	case <-time.After(30 * time.Second):
		s.t.Fatal("the server has not stopped")
	}
}

const echoed = "HTTP/2.0 HELLO"

// forBoth runs a test with both implementations of HTTP/2.
func forBoth(t *testing.T, run func(t *testing.T, http2Server string)) {
	for _, implementation := range []string{config.HTTP2Skiff, config.HTTP2Go} {
		t.Run(implementation, func(t *testing.T) { run(t, implementation) })
	}
}

// A shutdown ends watches and waits for running requests.
func TestServeShutdown(t *testing.T) {
	forBoth(t, func(t *testing.T, http2Server string) {
		s := serveAPI(t, http2Server, nil)
		if got := s.post("/echo"); got != echoed {
			t.Fatalf("response %q", got)
		}
		watch, err := s.client.Get(s.url + "/watch")
		if err != nil {
			t.Fatal(err)
		}
		defer watch.Body.Close()
		slow := make(chan string, 1)
		go func() { slow <- s.post("/slow") }()
		<-s.running
		s.stop()
		if _, err := io.ReadAll(watch.Body); err != nil {
			t.Errorf("the watch did not end cleanly: %v", err)
		}
		if !s.notReady.Load() {
			t.Error("readiness did not fail before the listener was closed")
		}
		select {
		case err := <-s.stopped:
			t.Fatalf("the server did not wait for a running request: %v", err)
		case got := <-slow:
			t.Fatalf("the running request ended with %q", got)
		default:
		}
		close(s.release)
		if got := <-slow; got != echoed {
			t.Errorf("the running request: %q", got)
		}
		s.wait()
	})
}

// During the delay new connections are served.
func TestServeDuringDelay(t *testing.T) {
	forBoth(t, func(t *testing.T, http2Server string) {
		s := serveAPI(t, http2Server, func(a *apiService) { a.shutdown.Delay = time.Second })
		s.stop()
		for !s.notReady.Load() {
			time.Sleep(time.Millisecond)
		}
		if got := s.post("/echo"); got != echoed {
			t.Errorf("response %q", got)
		}
		s.wait()
	})
}

// A request that does not finish is cut off after the timeout.
func TestServeCutsOff(t *testing.T) {
	forBoth(t, func(t *testing.T, http2Server string) {
		s := serveAPI(t, http2Server, func(a *apiService) { a.requestTimeout = 50 * time.Millisecond })
		slow := make(chan string, 1)
		go func() { slow <- s.post("/slow") }()
		<-s.running
		s.stop()
		s.wait()
		if got := <-slow; got == echoed {
			t.Error("the request was served after the timeout")
		}
	})
}
