package apiserver

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"skiff/internal/store/cache"
)

// pieces remembers what it was given at once.
type pieces struct {
	discard
	sizes []int
	all   bytes.Buffer
}

func (p *pieces) Write(data []byte) (int, error) {
	p.sizes = append(p.sizes, len(data))
	return p.all.Write(data)
}

func TestWritesFillFrames(t *testing.T) {
	data := make([]byte, 4*framePayload+100)
	_, _ = rand.Read(data)
	for _, test := range []struct {
		frames bool
		pieces []int
		want   []int
	}{
		{true, []int{}, nil},
		{true, []int{10}, []int{10}},
		{true, []int{10, 20}, []int{30}},
		{true, []int{framePayload}, []int{framePayload}},
		{true, []int{framePayload + 1}, []int{framePayload, 1}},
		{true, []int{2*framePayload + 100}, []int{framePayload, framePayload, 100}},
		{true, []int{100, 2 * framePayload, framePayload - 100}, []int{framePayload, framePayload, framePayload}},
		{true, []int{framePayload - 1, 1, 1}, []int{framePayload, 1}},
		{false, []int{2*framePayload + 100}, []int{2*framePayload + 100}},
		{false, []int{100, 2 * framePayload, 7}, []int{framePayload, framePayload + 100, 7}},
	} {
		to := &pieces{}
		w := &responseWriter{ResponseWriter: to, frames: test.frames}
		f, at := w.frameWriter(), 0
		for _, size := range test.pieces {
			f.write(data[at : at+size])
			at += size
		}
		f.close()
		if w.bytes != int64(at) || !bytes.Equal(to.all.Bytes(), data[:at]) {
			t.Errorf("pieces of %d: %d of %d bytes arrived, or others", test.pieces, w.bytes, at)
		}
		if !slices.Equal(to.sizes, test.want) {
			t.Errorf("pieces of %d were written as %d, want %d", test.pieces, to.sizes, test.want)
		}
	}
}

// TestWritersAnswerIsNotRemembered: memory is for what more than one client may ask for.
func TestWritersAnswerIsNotRemembered(t *testing.T) {
	s := newTestServer(t)
	res := s.find("pods")
	remembered := func(name string) bool {
		entry := res.table.Get(res.kind.Key("ns", name))
		made := false
		_, _ = entry.Encoding(res.ids.json, func(*cache.Entry) ([]byte, error) { made = true; return nil, nil })
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
