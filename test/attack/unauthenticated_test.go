package attack

import (
	"strings"
	"testing"
)

// Clients without valid credentials send requests with large headers and bodies, grant no window for the responses and keep their
// connections.
func TestUnauthenticatedMemory(t *testing.T) {
	a := start(t)
	before := a.usage()
	const connections, streams = 40, 100
	large := strings.Repeat("x", 4<<10)
	for connection := range connections {
		headers := []string{"x-large", large}
		if connection%2 == 0 {
			headers = append(headers, "authorization", "Bearer invalid")
		}
		p := a.connect(0)
		for range streams {
			id, err := p.request("POST", largeList, false, headers...)
			if err == nil {
				err = p.WriteData(id, false, make([]byte, 8<<10))
			}
			if err != nil {
				break // the server has closed the connection
			}
		}
	}
	// A request holds its goroutine, its headers and a small buffer; the connection's records are below 64 KiB.
	const most = connections * (streams*(24<<10) + (256 << 10))
	if during := a.usage(); during.heap > before.heap+most {
		t.Errorf("the heap grew from %.0f to %.0f bytes", before.heap, during.heap)
	} else {
		t.Logf("during the attack %+v", during)
	}
	a.expectReleased(before)
	var now usage
	a.eventually(func() bool { now = a.usage(); return now.goroutines <= before.goroutines+leftGoroutines }, func() string {
		t.Helper()
		return "goroutines remain for requests without credentials"
	})
}
