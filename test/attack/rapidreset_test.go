package attack

import (
	"testing"

	"golang.org/x/net/http2"
)

// A client resets its requests as soon as it has sent them, so that they never count as open (CVE-2023-44487). Others must be served
// meanwhile, and nothing remain.
func TestRapidReset(t *testing.T) {
	a := start(t)
	a.get(largeList)
	before := a.usage()
	const connections, requests = 4, 3000
	for range connections {
		p := a.connect(1 << 20)
		go func() {
			for {
				if _, err := p.ReadFrame(); err != nil {
					return
				}
			}
		}()
		for i := range requests {
			id, err := p.request("GET", largeList, true, a.bearer()...)
			if err == nil {
				err = p.WriteRSTStream(id, http2.ErrCodeCancel)
			}
			if err != nil {
				t.Logf("the server closed the connection after %d requests", i)
				break
			}
		}
		a.get("/readyz")
	}
	a.expectReleased(before)
	a.eventually(func() bool { return a.usage().goroutines <= before.goroutines+leftGoroutines }, func() string {
		return "goroutines remain for requests that were reset"
	})
}
