package aggregation

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"k8s.io/client-go/transport"

	"skiff/internal/apiserver/authn"
	"skiff/internal/forward"
	"skiff/internal/tracing"
)

// textRedirect is the body of the response instead of a redirect.
const textRedirect = "the backend attempted to redirect this request, which is not permitted"

// proxyTo returns what passes requests on to an aggregated server. Its errors are plain text, as upstream's are.
func (a *Aggregation) proxyTo(b *backend) func(w http.ResponseWriter, r *http.Request, user *authn.User) {
	return func(w http.ResponseWriter, r *http.Request, user *authn.User) {
		switch {
		case !b.available:
			http.Error(w, "service unavailable", http.StatusServiceUnavailable)
			return
		case b.transportErr != nil:
			http.Error(w, b.transportErr.Error(), http.StatusInternalServerError)
			return
		}
		ctx, host, err := b.transport.Resolve(r.Context())
		if err != nil {
			a.Log.Warn("failed to resolve the Service of an APIService", "apiService", b.name, "error", err)
			http.Error(w, "service unavailable", http.StatusServiceUnavailable)
			return
		}
		// Path and query are encoded anew: the aggregated server must not read another request than the one that was authorized.
		location := &url.URL{Scheme: "https", Host: host, Path: r.URL.Path, RawQuery: r.URL.Query().Encode()}
		e := &exchange{over: b.transport, user: user, header: w.Header(), forwardRedirects: a.ForwardRedirects}
		err = forward.Request(w, r.WithContext(ctx), location, e)
		if err == nil && e.failed != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
			err = e.failed // the client is still there
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	}
}

// exchange is one request to an aggregated server, as the user, and its response.
type exchange struct {
	over http.RoundTripper
	user *authn.User
	// header is the header of the response to the client. What the aggregated server sets there replaces what is set.
	header           http.Header
	forwardRedirects bool
	failed           error
}

// RoundTrip implements http.RoundTripper. The request is the proxy's own.
func (e *exchange) RoundTrip(r *http.Request) (*http.Response, error) {
	setUser(r, e.user)
	tracing.Inject(r.Context(), r.Header)
	response, err := e.over.RoundTrip(r)
	if err != nil {
		e.failed = fmt.Errorf("error trying to reach service: %w", err)
		return nil, e.failed
	}
	switch code := response.StatusCode; {
	case r.Header.Get("Upgrade") != "" && code != http.StatusSwitchingProtocols && code < http.StatusBadRequest:
		response.Body.Close()
		e.failed = fmt.Errorf("invalid upgrade response: status code %d", code)
		return nil, e.failed
	case code/100 == 3 && response.Header.Get("Location") != "" && !e.forwardRedirects:
		response.Body.Close()
		return &http.Response{
			StatusCode: http.StatusBadGateway, Proto: response.Proto, ProtoMajor: response.ProtoMajor, ProtoMinor: response.ProtoMinor,
			Header: http.Header{}, Body: io.NopCloser(strings.NewReader(textRedirect)), ContentLength: int64(len(textRedirect)), Request: r,
		}, nil
	}
	for name := range response.Header {
		if strings.HasPrefix(name, "Access-Control-") {
			response.Header.Del(name) // they would apply to the API server
			continue
		}
		if name != "Warning" {
			e.header.Del(name)
		}
	}
	return response, nil
}

// setUser sets the headers by which an aggregated server knows the user. Others of the same names are removed.
func setUser(r *http.Request, user *authn.User) {
	extra := make(map[string][]string, len(user.Extra))
	for key, values := range user.Extra {
		extra[key] = values
	}
	transport.SetAuthProxyHeaders(r, user.Username, user.UID, user.Groups, extra)
}

// download is a request of the API server itself.
type download struct {
	path   string
	user   authn.User
	accept string
	etag   string
	limit  int64
}

// downloaded is the response to a download.
type downloaded struct {
	status int
	header http.Header
	body   []byte
}

// errTooLarge: the document of an aggregated server exceeds the bound.
var errTooLarge = errors.New("the response is too large")

// get downloads a document. Redirects are not followed.
func (b *backend) get(ctx context.Context, d download) (*downloaded, error) {
	if b.transportErr != nil {
		return nil, b.transportErr
	}
	ctx, host, err := b.transport.Resolve(ctx)
	if err != nil {
		return nil, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, (&url.URL{Scheme: "https", Host: host, Path: d.path}).String(), nil)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Accept", d.accept)
	if d.etag != "" {
		r.Header.Set("If-None-Match", d.etag)
	}
	setUser(r, &d.user)
	response, err := b.transport.RoundTrip(r)
	if err != nil {
		return nil, fmt.Errorf("get %s: %w", d.path, err)
	}
	defer response.Body.Close()
	var body bytes.Buffer
	if n, err := io.Copy(&body, io.LimitReader(response.Body, d.limit+1)); err != nil {
		return nil, fmt.Errorf("get %s: %w", d.path, err)
	} else if n > d.limit {
		return nil, fmt.Errorf("get %s: %w: it has more than %d bytes", d.path, errTooLarge, d.limit)
	}
	return &downloaded{status: response.StatusCode, header: response.Header, body: body.Bytes()}, nil
}
