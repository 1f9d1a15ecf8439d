package apiserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/apiserver/authn"
	"skiff/internal/health"
)

// HealthCheck is the check of one component.
type HealthCheck = health.Check

// healthChecks serves /healthz, /livez and /readyz.
type healthChecks struct {
	// byRoot are the checks of each path, with their results counted by slis.
	byRoot map[string]health.Checks
	slis   *health.SLIs
}

func newHealth(s *Server, checks []HealthCheck) *healthChecks {
	ready := append(health.Checks{health.Ping, {Name: "informer-sync", ReadinessOnly: true, Check: func(context.Context) error {
		select {
		case <-s.config.Cache.Ready():
			return nil
		default:
			return errors.New("the cache is not loaded yet")
		}
	}}}, checks...)
	ready = append(ready, HealthCheck{Name: "shutdown", ReadinessOnly: true, Check: s.shutdown.check})
	h := &healthChecks{slis: health.NewSLIs()}
	h.byRoot = map[string]health.Checks{
		"healthz": h.slis.Observe(health.Healthy(ready), "healthz"), "livez": h.slis.Observe(health.Live(ready), "livez"), "readyz": h.slis.Observe(ready, "readyz"),
	}
	return h
}

// serve serves a path below one of the three roots. ok is false when there is no such check.
func (h *healthChecks) serve(req *request, root, name string) (ok bool) {
	return h.byRoot[root].Serve(req.ctx, req.w, req.query, root, name)
}

// dispatchPath serves paths that are not resources.
func (s *Server) dispatchPath(req *request) error {
	if ok, err := s.discover(req); ok {
		return err
	}
	root, rest := cutSegment(strings.TrimPrefix(req.info.path, "/"))
	switch root {
	case "healthz", "livez", "readyz":
		if s.health.serve(req, root, rest) {
			return nil
		}
	case "version":
		if rest == "" {
			return writeRawJSON(req, s.config.Version)
		}
	case "metrics":
		switch rest {
		case "":
			s.metrics.handler.ServeHTTP(req.w, req.Request)
			return nil
		case "slis":
			s.health.slis.ServeHTTP(req.w, req.Request)
			return nil
		}
	case "statusz", "flagz":
		if page := s.zPageOf(root); page != nil && rest == "" {
			return s.serveZPage(req, page)
		}
	case "openapi":
		if s.config.OpenAPI != nil {
			// The documents of aggregated servers are requested as the user.
			s.config.OpenAPI.ServeHTTP(req.w, req.Request.WithContext(authn.WithUser(req.ctx, req.user)))
			return nil
		}
	case "", "index.html":
		return writeRawJSON(req, metav1.RootPaths{Paths: s.paths()})
	}
	return s.notFound(req)
}

// extraPath returns the handler of a configured path: the longest match.
func (s *Server) extraPath(path string) http.Handler {
	if handler := s.config.Paths[path]; handler != nil {
		return handler
	}
	var found http.Handler
	longest := 0
	for prefix, handler := range s.config.Paths {
		if strings.HasSuffix(prefix, "/") && strings.HasPrefix(path, prefix) && len(prefix) > longest {
			found, longest = handler, len(prefix)
		}
	}
	return found
}

// notFound serves paths that belong to no kind: configured paths, which may look like resources of another group and are then authorized
// as such, then the NotFound handler, and otherwise 404.
func (s *Server) notFound(req *request) error {
	if handler := s.extraPath(req.info.path); handler != nil {
		handler.ServeHTTP(req.w, req.Request.WithContext(authn.WithUser(req.ctx, req.user)))
		return nil
	}
	if s.config.NotFound != nil {
		s.config.NotFound.ServeHTTP(req.w, req.Request.WithContext(req.ctx))
		return nil
	}
	http.NotFound(req.w, req.Request)
	return nil
}

// writeRawJSON responds with a value that is not an API object.
func writeRawJSON(req *request, value any) error {
	text, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return fmt.Errorf("write %T: %w", value, err)
	}
	req.w.Header()["Content-Type"] = []string{mediaJSON}
	_, _ = req.w.Write(text)
	return nil
}

// paths lists all paths, for /.
func (s *Server) paths() []string {
	paths := []string{"/api", "/apis", "/healthz", "/livez", "/readyz", "/metrics", "/metrics/slis", "/version"}
	for _, root := range []string{"statusz", "flagz"} {
		if s.zPageOf(root) != nil {
			paths = append(paths, "/"+root)
		}
	}
	for root, checks := range s.health.byRoot {
		for _, check := range checks {
			paths = append(paths, "/"+root+"/"+check.Name)
		}
	}
	if s.config.OpenAPI != nil {
		paths = append(paths, "/openapi/v2", "/openapi/v3")
	}
	for path := range s.config.Paths {
		paths = append(paths, path)
	}
	for _, gv := range s.catalog.groupVersions() {
		if gv.Group == "" {
			paths = append(paths, "/api/"+gv.Version)
		} else {
			paths = append(paths, "/apis/"+gv.Group, "/apis/"+gv.String())
		}
	}
	slices.Sort(paths)
	return slices.Compact(paths)
}
