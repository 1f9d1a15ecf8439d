package attack

import (
	"testing"

	"golang.org/x/net/http2"
)

// A client opens more streams on a connection than the server allows, and grants no window. Those above the limit are refused.
func TestStreamFlood(t *testing.T) {
	a := start(t)
	before := a.usage()
	p := a.connect(0)
	const streams, limit = 1000, 100
	for range streams {
		if _, err := p.request("GET", "/api/v1/pods?watch=true", true, a.bearer()...); err != nil {
			t.Fatal(err)
		}
	}
	served, refused := 0, 0
	for served+refused < streams {
		frame, err := p.ReadFrame()
		if err != nil {
			t.Fatalf("after %d responses and %d refusals: %v", served, refused, err)
		}
		switch f := frame.(type) {
		case *http2.MetaHeadersFrame:
			served++
		case *http2.RSTStreamFrame:
			if f.ErrCode != http2.ErrCodeRefusedStream {
				t.Fatalf("a stream was reset with %s", f.ErrCode)
			}
			refused++
		}
	}
	if served != limit {
		t.Errorf("%d streams were served at the same time, want %d", served, limit)
	}
	const most = 32 << 20
	if during := a.usage(); during.heap > before.heap+most {
		t.Errorf("the heap grew from %.0f to %.0f bytes", before.heap, during.heap)
	}
	_ = p.conn.Close()
	a.expectReleased(before)
}
