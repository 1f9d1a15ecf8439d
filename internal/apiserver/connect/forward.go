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

// send forwards the request and turns what fails into an error of the API.
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

// through is send for a proxy: below its own path the other side looks like a whole server. Its redirects and the
// links of its pages are made to lead back through here.
func through(w http.ResponseWriter, r *http.Request, to *url.URL, rest string, over http.RoundTripper) error {
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
	noted := &noting{RoundTripper: over}
	over = noted
	if r.Header.Get("Upgrade") == "" {
		over = &withoutOrigins{&proxy.Transport{Scheme: r.URL.Scheme, Host: r.URL.Host, PathPrepend: prepend, RoundTripper: over}}
	}
	err := send(w, r, &location, over)
	if errors.Is(noted.failed, errNotAllowed) {
		return apierrors.NewBadRequest(errNotAllowed.Error())
	}
	return err
}

// noting remembers why it failed, where others make a text of that.
type noting struct {
	http.RoundTripper
	failed error
}

func (t *noting) RoundTrip(r *http.Request) (*http.Response, error) {
	var response *http.Response
	response, t.failed = t.RoundTripper.RoundTrip(r)
	return response, t.failed
}

// withoutOrigins takes the other side's rules about foreign origins out of its answers: here they would speak for the API
// server.
type withoutOrigins struct{ http.RoundTripper }

func (t *withoutOrigins) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := t.RoundTripper.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	for _, name := range []string{"Allow-Credentials", "Allow-Headers", "Allow-Methods", "Allow-Origin", "Expose-Headers", "Max-Age"} {
		response.Header.Del("Access-Control-" + name)
	}
	return response, nil
}

// checked turns the kubelet's refusals into errors of the API, and refuses redirects, for answers that are not proxied as
// they are.
type checked struct {
	http.RoundTripper
	resource schema.GroupResource
	name     string
}

// maxRefusal bounds how much of a refusal is told on.
const maxRefusal = 4 << 10

func (t *checked) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := t.RoundTripper.RoundTrip(r)
	if err != nil || response.StatusCode == http.StatusSwitchingProtocols ||
		response.StatusCode >= http.StatusOK && response.StatusCode < http.StatusMultipleChoices {
		return response, err
	}
	defer response.Body.Close()
	if response.StatusCode < http.StatusBadRequest {
		return nil, apierrors.NewInternalError(errors.New("the kubelet answers with a redirect, which is not followed"))
	}
	text, err := io.ReadAll(io.LimitReader(response.Body, maxRefusal))
	if err != nil {
		return nil, err
	}
	said := strings.TrimSpace(string(text))
	switch response.StatusCode {
	case http.StatusInternalServerError:
		return nil, apierrors.NewInternalError(errors.New(said))
	case http.StatusBadRequest:
		return nil, apierrors.NewBadRequest(said)
	}
	return nil, apierrors.NewGenericServerResponse(response.StatusCode, "", t.resource, t.name, said, 0, false)
}
