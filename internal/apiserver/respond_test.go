package apiserver

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"skiff/internal/http2"
	"skiff/internal/store/cache"
)

// TestWritersAnswerIsNotRemembered: memory is for what more than one client may ask for.
func TestWritersAnswerIsNotRemembered(t *testing.T) {
	s := newTestServer(t)
	res := s.find("pods")
	remembered := func(name string) bool {
		entry := res.table.Get(res.kind.Key("ns", name))
		made := false
		_, _ = entry.Encoding(res.encodingIDs.json, func(*cache.Entry) ([]byte, error) { made = true; return nil, nil })
		return !made
	}
	write := func(name string) {
		entry := s.add("pods", pod("ns", name, ""))
		r := benchRequest(context.Background(), "/api/v1/namespaces/ns/pods", "Accept: "+mediaJSON)
		r.Method = http.MethodPost
		req := &request{Request: r, w: &responseWriter{ResponseWriter: httptest.NewRecorder()}, ctx: r.Context(), res: res}
		if err := s.respondEntry(req, http.StatusCreated, entry); err != nil {
			t.Fatal(err)
		}
	}
	if write("alone"); remembered("alone") {
		t.Error("the answer was remembered though nobody watches")
	}
	res.watchers.Add(1)
	if write("watched"); !remembered("watched") {
		t.Error("the answer was not remembered though somebody watches")
	}
}

// BenchmarkListOverHTTP2 lists over TLS, where most of the time goes: frames, records and system calls.
func BenchmarkListOverHTTP2(b *testing.B) {
	s := newTestServer(b)
	for i := range 2000 {
		s.add("pods", benchPod(i))
	}
	server := httptest.NewUnstartedServer(s.Handler())
	server.EnableHTTP2 = true
	server.TLS = &tls.Config{DynamicRecordSizingDisabled: true}
	http2.Configure(server.Config)
	server.Listener = http2.Listener(server.Listener)
	server.StartTLS()
	defer server.Close()
	for _, accept := range []string{mediaJSON, mediaProtobuf} {
		for _, query := range []string{"", "?limit=500"} {
			b.Run(fmt.Sprint(accept, query), func(b *testing.B) {
				for b.Loop() {
					r, err := http.NewRequest(http.MethodGet, server.URL+"/api/v1/pods"+query, nil)
					if err != nil {
						b.Fatal(err)
					}
					r.Header = http.Header{"Authorization": {"Bearer admin"}, "Accept": {accept}, "Accept-Encoding": {"identity"}}
					resp, err := server.Client().Do(r)
					if err != nil {
						b.Fatal(err)
					}
					n, err := io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
					if err != nil || resp.ProtoMajor != 2 {
						b.Fatal(resp.Proto, err)
					}
					b.SetBytes(n)
				}
			})
		}
	}
}
