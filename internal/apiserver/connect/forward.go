package connect

import (
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/proxy"

	"skiff/internal/forward"
)

// send forwards the request. A failure becomes an API error.
func send(w http.ResponseWriter, r *http.Request, to *url.URL, over http.RoundTripper) error {
	err := forward.Request(w, r, to, over)
	var status *apierrors.StatusError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &status):
		return status
	}
	return apierrors.NewServiceUnavailable("error trying to reach service: " + err.Error())
}

// proxyTo is send for a proxy subresource. Redirects and the links of HTML pages are rewritten to go through the proxy.
func proxyTo(w http.ResponseWriter, r *http.Request, to *url.URL, rest string, over http.RoundTripper) error {
	if rest == "" && strings.HasSuffix(r.URL.Path, "/") {
		rest = "/"
	}
	if rest == "" && (r.Method == http.MethodGet || r.Method == http.MethodHead) && r.Header.Get("Upgrade") == "" {
		// Relative links only work from a directory.
		target := r.URL.Path + "/"
		if r.URL.RawQuery != "" {
			target += "?" + r.URL.RawQuery
		}
		w.Header().Set("Location", target)
		w.WriteHeader(http.StatusMovedPermanently)
		return nil
	}
	prepend := strings.TrimSuffix(strings.TrimSuffix(r.URL.Path, "/"), strings.TrimSuffix(rest, "/"))
	if strings.HasSuffix(r.URL.Path, "/") && !strings.HasSuffix(rest, "/") {
		rest += "/"
	}
	location := *to
	location.Path, location.RawQuery = rest, r.URL.RawQuery
	recorder := &errorRecorder{RoundTripper: over}
	over = recorder
	if r.Header.Get("Upgrade") == "" {
		over = &corsStripper{&proxy.Transport{Scheme: r.URL.Scheme, Host: r.URL.Host, PathPrepend: prepend, RoundTripper: over}}
	}
	err := send(w, r, &location, over)
	if errors.Is(recorder.failed, errNotAllowed) {
		return apierrors.NewBadRequest(errNotAllowed.Error())
	}
	return err
}

// errorRecorder keeps the error of the last request: the proxy library only passes its text on.
type errorRecorder struct {
	http.RoundTripper
	failed error
}

func (t *errorRecorder) RoundTrip(r *http.Request) (*http.Response, error) {
	var response *http.Response
	response, t.failed = t.RoundTripper.RoundTrip(r)
	return response, t.failed
}

// corsStripper removes the backend's CORS headers: they would apply to the API server.
type corsStripper struct{ http.RoundTripper }

func (t *corsStripper) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := t.RoundTripper.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	for _, name := range []string{"Allow-Credentials", "Allow-Headers", "Allow-Methods", "Allow-Origin", "Expose-Headers", "Max-Age"} {
		response.Header.Del("Access-Control-" + name)
	}
	return response, nil
}

// statusChecker turns the kubelet's error responses into API errors and rejects redirects.
type statusChecker struct {
	http.RoundTripper
	resource schema.GroupResource
	name     string
}

// maxErrorBody bounds how much of an error response is returned to the client.
const maxErrorBody = 4 << 10

func (t *statusChecker) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := t.RoundTripper.RoundTrip(r)
	if err != nil || response.StatusCode == http.StatusSwitchingProtocols ||
		response.StatusCode >= http.StatusOK && response.StatusCode < http.StatusMultipleChoices {
		return response, err
	}
	defer response.Body.Close()
	if response.StatusCode < http.StatusBadRequest {
		return nil, apierrors.NewInternalError(errors.New("the kubelet responded with a redirect, which is not followed"))
	}
	text, err := io.ReadAll(io.LimitReader(response.Body, maxErrorBody))
	if err != nil {
		return nil, err
	}
	message := strings.TrimSpace(string(text))
	switch response.StatusCode {
	case http.StatusInternalServerError:
		return nil, apierrors.NewInternalError(errors.New(message))
	case http.StatusBadRequest:
		return nil, apierrors.NewBadRequest(message)
	}
	return nil, apierrors.NewGenericServerResponse(response.StatusCode, "", t.resource, t.name, message, 0, false)
}
