package system

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"skiff/internal/config"
)

// TestServeHTTP2 serves with both implementations of HTTP/2: a response with a body, a stream that ends when the server stops,
// and a shutdown that waits for nothing.
func TestServeHTTP2(t *testing.T) {
	for _, implementation := range []string{config.HTTP2Skiff, config.HTTP2Go} {
		t.Run(implementation, func(t *testing.T) {
			// httptest has a certificate for 127.0.0.1 and a client that trusts it.
			credentials := httptest.NewUnstartedServer(nil)
			credentials.EnableHTTP2 = true
			credentials.StartTLS()
			defer credentials.Close()
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/watch" {
					_ = http.NewResponseController(w).Flush()
					<-r.Context().Done()
					return
				}
				body, _ := io.ReadAll(r.Body)
				_, _ = w.Write([]byte(r.Proto + " " + strings.ToUpper(string(body))))
			})
			ctx, stop := context.WithCancel(context.Background())
			defer stop()
			served := make(chan error, 1)
			certificates := &tls.Config{Certificates: credentials.TLS.Certificates, NextProtos: []string{"h2", "http/1.1"}}
			go func() { served <- serve(ctx, listener, newHTTPServer(handler, certificates), implementation) }()

			base := "https://" + listener.Addr().String()
			response, err := credentials.Client().Post(base+"/echo", "text/plain", strings.NewReader("hello"))
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(response.Body)
			_ = response.Body.Close()
			if err != nil || string(body) != "HTTP/2.0 HELLO" {
				t.Fatalf("response %q, error %v", body, err)
			}
			stream, err := credentials.Client().Get(base + "/watch")
			if err != nil {
				t.Fatal(err)
			}
			defer stream.Body.Close()
			stop()
			if _, err := io.ReadAll(stream.Body); err != nil {
				t.Fatalf("the stream did not end cleanly: %v", err)
			}
			select {
			case err := <-served:
				if err != nil {
					t.Fatal(err)
				}
			case <-time.After(shutdownGrace):
				t.Fatal("the server has not stopped")
			}
		})
	}
}
