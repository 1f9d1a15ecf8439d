package attack

import (
	"fmt"
	"testing"
)

// A client of HTTP/1.1 requests lists and does not read them.
func TestSlowReader(t *testing.T) {
	a := start(t)
	a.get(largeList)
	before := a.usage()
	for range 40 {
		if _, err := fmt.Fprintf(a.dial("http/1.1"), "GET %s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\n\r\n", largeList, a.host, a.token); err != nil {
			t.Fatal(err)
		}
	}
	a.expectWaiting(30)
	a.expectReleased(before)
}
