// Package forward hands a request on to another server, and its answer back. Redirects are part of the answer and never
// followed; a connection that the other side upgrades is carried byte for byte; whoever sent the request is not made
// known, because only the one who forwards has been believed.
package forward

import (
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
)

// Request sends the request to a location, over a transport that speaks HTTP/1.1 where connections may be upgraded. Of an
// error that is returned nothing has been written yet. It is nil when the client has gone away.
func Request(w http.ResponseWriter, r *http.Request, to *url.URL, over http.RoundTripper) error {
	var failed error
	reverse := &httputil.ReverseProxy{
		Transport: over,
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL, p.Out.Host = to, to.Host
			p.SetXForwarded()
			removeIdentity(p.Out.Header)
		},
		FlushInterval: -1, // logs are followed
		ErrorHandler:  func(_ http.ResponseWriter, _ *http.Request, err error) { failed = err },
		ErrorLog:      log.New(io.Discard, "", 0),
	}
	reverse.ServeHTTP(w, r)
	if errors.Is(failed, r.Context().Err()) {
		return nil
	}
	return failed
}

// removeIdentity takes away what tells the other side who somebody is.
func removeIdentity(header http.Header) {
	for name := range header {
		if name == "Authorization" || strings.HasPrefix(name, "Impersonate-") || strings.HasPrefix(name, "X-Remote-") {
			header.Del(name)
		}
	}
}
