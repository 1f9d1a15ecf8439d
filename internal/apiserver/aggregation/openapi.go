package aggregation

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"k8s.io/kube-openapi/pkg/aggregator"
	"k8s.io/kube-openapi/pkg/handler3"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"skiff/internal/apiserver/authn"
	"skiff/internal/openapi"
)

const (
	// openAPITimeout bounds the requests for the OpenAPI documents of one aggregated server.
	openAPITimeout = time.Minute
	// maxOpenAPIRetry is the longest time until a failed download is repeated. The first is refreshInterval.
	maxOpenAPIRetry = time.Hour
	// maxOpenAPIBytes bounds a document.
	maxOpenAPIBytes = 16 << 20
	// maxParameterBytes bounds the parameters that operations share: they are examined once for each reference to them.
	maxParameterBytes = 64 << 10
)

// openAPIUser is the user as which the API server requests OpenAPI documents.
var openAPIUser = authn.User{Username: "system:aggregator"}

// published is what was published of the OpenAPI documents of an aggregated server.
type published struct {
	openapi.Aggregated
	etag string // of the v2 document
}

// syncOpenAPI downloads the OpenAPI documents of an APIService. After a failure the last ones remain.
func (a *Aggregation) syncOpenAPI(ctx context.Context, name string) (exists bool, err error) {
	b := a.find(name)
	if b == nil {
		return false, nil
	}
	known := a.publishedOf(b)
	ctx, cancel := context.WithTimeout(ctx, openAPITimeout)
	defer cancel()
	next, err := a.describe(ctx, b, known)
	if err != nil {
		a.Log.Debug("failed to get the OpenAPI documents of an aggregated API server", "apiService", name, "error", err)
		return true, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.backends[name] != b {
		return true, nil // changed meanwhile, and enqueued again
	}
	b.published = next
	if known == nil || known.Hash != next.Hash || known.V2Hash != next.V2Hash {
		a.OpenAPI.SetAggregated(b.gv, &next.Aggregated)
	}
	return true, nil
}

func (a *Aggregation) publishedOf(b *backend) *published {
	a.mu.Lock()
	defer a.mu.Unlock()
	return b.published
}

// describe downloads the v2 document, and from the list of v3 documents the hash of the one of the group version. That is requested by
// clients only.
func (a *Aggregation) describe(ctx context.Context, b *backend, known *published) (*published, error) {
	next := &published{}
	if err := b.downloadV2(ctx, known, next); err != nil {
		return nil, err
	}
	response, err := b.get(ctx, download{path: "/openapi/v3", user: openAPIUser, accept: "application/json", limit: maxOpenAPIBytes})
	switch {
	case err != nil:
		return nil, err
	case response.status == http.StatusNotFound:
		next.Hash = next.V2Hash // made from the v2 document
		return next, nil
	case response.status != http.StatusOK:
		return nil, fmt.Errorf("get /openapi/v3: status %d", response.status)
	}
	var list handler3.OpenAPIV3Discovery
	if err := json.Unmarshal(response.body, &list); err != nil {
		return nil, fmt.Errorf("parse /openapi/v3: %w", err)
	}
	if entry, ok := list.Paths[strings.TrimPrefix(discoveryPath(b.gv), "/")]; ok {
		next.Hash = hashOf(entry.ServerRelativeURL)
		next.V3 = a.documentHandler(b.name)
	}
	return next, nil
}

// hashOf is the hash of a document by its URL. A URL without one identifies the document itself.
func hashOf(relativeURL string) string {
	if u, err := url.Parse(relativeURL); err == nil && u.Query().Get("hash") != "" {
		return u.Query().Get("hash")
	}
	return fmt.Sprintf("%X", sha256.Sum256([]byte(relativeURL)))
}

// documentHandler passes requests for a v3 document on to the aggregated server.
func (a *Aggregation) documentHandler(name string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, ok := authn.UserFrom(r.Context())
		b := a.find(name)
		if b == nil || !ok {
			http.NotFound(w, r)
			return
		}
		a.proxyTo(b)(w, r, &user)
	})
}

// downloadV2 sets the part of the v2 document that is about the group version. A server need not have the document.
func (b *backend) downloadV2(ctx context.Context, known, next *published) error {
	request := download{path: "/openapi/v2", user: openAPIUser, accept: "application/json", limit: maxOpenAPIBytes}
	if known != nil {
		request.etag = known.etag
	}
	response, err := b.get(ctx, request)
	switch {
	case err != nil:
		return err
	case response.status == http.StatusNotModified && request.etag != "":
		next.V2, next.V2Hash, next.etag = known.V2, known.V2Hash, known.etag
		return nil
	case response.status == http.StatusNotFound:
		return nil
	case response.status != http.StatusOK:
		return fmt.Errorf("failed to retrieve openAPI spec, http error: status %d", response.status)
	}
	document := &spec.Swagger{}
	if err := document.UnmarshalJSON(response.body); err != nil {
		return fmt.Errorf("parse /openapi/v2: %w", err)
	}
	if err := checkParameters(document); err != nil {
		return fmt.Errorf("check /openapi/v2: %w", err)
	}
	filtered := aggregator.FilterSpecByPathsWithoutSideEffects(document, []string{discoveryPath(b.gv) + "/"})
	if next.V2, err = json.Marshal(filtered); err != nil {
		return fmt.Errorf("encode /openapi/v2: %w", err)
	}
	next.V2Hash, next.etag = fmt.Sprintf("%X", sha256.Sum256(next.V2)), response.header.Get("Etag")
	return nil
}

// checkParameters refuses parameters that refer to parameters. The library follows these references without noticing a cycle, until the stack
// overflows, which ends the process.
func checkParameters(document *spec.Swagger) error {
	text, err := json.Marshal(document.Parameters)
	switch {
	case err != nil:
		return err
	case len(text) > maxParameterBytes:
		return fmt.Errorf("%w: its parameters have more than %d bytes", errTooLarge, maxParameterBytes)
	case bytes.Contains(text, []byte(`"#/parameters/`)):
		return errors.New("a parameter refers to a parameter")
	}
	return nil
}
