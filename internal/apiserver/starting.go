package apiserver

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/health"
)

// startingRetrySeconds is when the client of a server that is starting should try again.
const startingRetrySeconds = 1

// StartingHandler responds while the store of a server is not open yet. reason is why, as far as the client of a request may know it. /healthz and
// /livez succeed, because a restart would not help; the check etcd of /readyz fails; everything else gets 503 and may be sent again.
func StartingHandler(reason func(*http.Request) string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header["Cache-Control"] = cacheControl
		// The next request is for the server that has started. For HTTP/2 this is a GOAWAY.
		header["Connection"] = closeConnection
		text := reason(r)
		checks := health.Checks{health.Ping, {Name: "etcd", ReadinessOnly: true, Check: func(context.Context) error {
			return health.Public(errors.New(text))
		}}}
		root, name := cutSegment(strings.TrimPrefix(r.URL.Path, "/"))
		switch root {
		case "healthz", "livez":
			checks = health.Live(checks)
		case "readyz":
		default:
			writeStarting(w, text)
			return
		}
		if !checks.Serve(r.Context(), w, r.URL.Query(), root, name) {
			http.NotFound(w, r)
		}
	})
}

// writeStarting responds that nothing was done, and when to try again.
func writeStarting(w http.ResponseWriter, reason string) {
	status := apierrors.NewServiceUnavailable("the server is starting: " + reason).ErrStatus
	status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	status.Details = &metav1.StatusDetails{RetryAfterSeconds: startingRetrySeconds}
	header := w.Header()
	header["Content-Type"] = []string{mediaJSON}
	header.Set("Retry-After", strconv.Itoa(startingRetrySeconds))
	w.WriteHeader(int(status.Code))
	_ = json.NewEncoder(w).Encode(status) // the client may have closed the connection
}
