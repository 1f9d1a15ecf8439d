package attack

import (
	"testing"
)

// A client of HTTP/2 that grants no window requests lists and keeps its connections. They must not keep their seats, and their memory must come
// back.
func TestZeroWindow(t *testing.T) {
	for _, server := range []string{"skiff", "go"} {
		t.Run(server, func(t *testing.T) {
			a := start(t, "--http2-server="+server)
			const connections, lists, watches = 8, 50, 40
			a.get(largeList) // what is made once is made before
			before := a.usage()
			for range connections {
				p := a.connect(0)
				for range lists {
					if _, err := p.request("GET", largeList, true, a.bearer()...); err != nil {
						t.Fatal(err)
					}
				}
				for range watches {
					if _, err := p.request("GET", largeList+"?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true", true, a.bearer()...); err != nil {
						t.Fatal(err)
					}
				}
			}
			a.expectWaiting(50)
			// Each of the requests that execute holds a run of its list and small buffers.
			const most = 192 << 20
			if during := a.usage(); during.heap > before.heap+most {
				t.Errorf("the heap grew from %.0f to %.0f bytes", before.heap, during.heap)
			} else {
				t.Logf("during the attack %+v", during)
			}
			a.expectReleased(before)
		})
	}
}
