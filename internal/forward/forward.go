// Package forward proxies a request to another server. Redirects are returned to the client, not followed. Upgraded
// connections are proxied byte by byte. Headers that identify the user are removed, because the proxy has already
// authenticated the client.
package forward

import (
	"context"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
)

// Request sends the request to a URL. The transport must use HTTP/1.1 where connections may be upgraded. If it returns an
// error, no response has been written. It returns nil if the client has disconnected.
func Request(w http.ResponseWriter, r *http.Request, to *url.URL, over http.RoundTripper) error {
	var failed error
	reverse := &httputil.ReverseProxy{
		Transport: withoutInterim{over, r.Context()},
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL, p.Out.Host = to, to.Host
			p.SetXForwarded()
			removeIdentity(p.Out.Header)
		},
		FlushInterval: -1, // streamed logs are flushed immediately
		ErrorHandler:  func(_ http.ResponseWriter, _ *http.Request, err error) { failed = err },
		ErrorLog:      log.New(io.Discard, "", 0),
	}
	reverse.ServeHTTP(w, r)
	if errors.Is(failed, r.Context().Err()) {
		return nil
	}
	return failed
}

// withoutInterim keeps responses of status 1xx, before the final one, from the client. The proxy would write them like final ones and remove the
// headers that are already set; it learns about them by the trace in the context of its request.
type withoutInterim struct {
	http.RoundTripper
	ctx context.Context // of the client's request
}

// RoundTrip implements http.RoundTripper.
func (t withoutInterim) RoundTrip(r *http.Request) (*http.Response, error) {
	return t.RoundTripper.RoundTrip(r.WithContext(t.ctx))
}

// removeIdentity removes headers that identify the user.
func removeIdentity(header http.Header) {
	for name := range header {
		if name == "Authorization" || strings.HasPrefix(name, "Impersonate-") || strings.HasPrefix(name, "X-Remote-") {
			header.Del(name)
		}
	}
}
