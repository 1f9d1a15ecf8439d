package connect

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"testing"
)

// A proxy is asked for the addresses of workloads, but not for those of this host.
func TestEgress(t *testing.T) {
	errProxy := errors.New("the proxy was asked")
	asked := ""
	transport := newTransport(&tls.Config{}, func(_ context.Context, _, address string) (net.Conn, error) {
		asked = address
		return nil, errProxy
	}, rejectLocal)
	for url, want := range map[string]error{"http://10.1.2.3:80": errProxy, "http://127.0.0.1:80": errNotAllowed, "http://169.254.169.254:80": errNotAllowed} {
		asked = ""
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := transport.RoundTrip(r)
		if err == nil {
			response.Body.Close()
		}
		if !errors.Is(err, want) || (asked != "") != (want == errProxy) {
			t.Errorf("%s: error %v, asked for %q", url, err, asked)
		}
	}
}
