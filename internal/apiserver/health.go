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
)

// HealthCheck is one part's answer to the question whether it works.
type HealthCheck struct {
	Name  string
	Check func(ctx context.Context) error
	// OnlyReady: a failure means that the server should get no requests, not that it should be restarted.
	OnlyReady bool
}

// health answers /healthz, /livez and /readyz.
type health struct {
	live, ready []HealthCheck
}

func newHealth(s *Server, checks []HealthCheck) *health {
	own := []HealthCheck{{Name: "ping", Check: func(context.Context) error { return nil }}}
	h := &health{live: slices.Clone(own), ready: own}
	h.ready = append(h.ready, HealthCheck{Name: "informer-sync", Check: func(context.Context) error {
		select {
		case <-s.config.Cache.Ready():
			return nil
		default:
			return errors.New("the cache has not been loaded")
		}
	}})
	for _, check := range checks {
		if !check.OnlyReady {
			h.live = append(h.live, check)
		}
		h.ready = append(h.ready, check)
	}
	return h
}

// serve answers a path below one of the three roots. ok is false when there is no such check.
func (h *health) serve(req *request, root, name string) (ok bool) {
	checks := h.live
	if root == "readyz" {
		checks = h.ready
	}
	if name != "" {
		for _, check := range checks {
			if check.Name == name {
				serveCheck(req, check)
				return true
			}
		}
		return false
	}
	h.serveAll(req, root, checks)
	return true
}

func serveCheck(req *request, check HealthCheck) {
	if err := check.Check(req.ctx); err != nil {
		http.Error(req.w, fmt.Sprintf("internal server error: %v", err), http.StatusInternalServerError)
		return
	}
	writeText(req, "ok")
}

// serveAll asks all checks. It names those that failed, but not why: the path is open to everyone.
func (h *health) serveAll(req *request, root string, checks []HealthCheck) {
	excluded := slices.Clone(req.query["exclude"])
	var text strings.Builder
	failed := false
	for _, check := range checks {
		if i := slices.Index(excluded, check.Name); i >= 0 {
			excluded = slices.DeleteFunc(excluded, func(name string) bool { return name == check.Name })
			fmt.Fprintf(&text, "[+]%s excluded: ok\n", check.Name)
			continue
		}
		if err := check.Check(req.ctx); err != nil {
			failed = true
			fmt.Fprintf(&text, "[-]%s failed: reason withheld\n", check.Name)
			continue
		}
		fmt.Fprintf(&text, "[+]%s ok\n", check.Name)
	}
	if len(excluded) > 0 {
		slices.Sort(excluded)
		fmt.Fprintf(&text, "warn: some health checks cannot be excluded: no matches for %s\n", quoted(slices.Compact(excluded)))
	}
	if failed {
		http.Error(req.w, fmt.Sprintf("%s%s check failed", text.String(), root), http.StatusInternalServerError)
		return
	}
	if _, verbose := req.query["verbose"]; !verbose {
		writeText(req, "ok")
		return
	}
	writeText(req, fmt.Sprintf("%s%s check passed\n", text.String(), root))
}

func quoted(names []string) string {
	all := make([]string, len(names))
	for i, name := range names {
		all[i] = fmt.Sprintf("%q", name)
	}
	return strings.Join(all, ",")
}

func writeText(req *request, text string) {
	header := req.w.Header()
	header["Content-Type"] = []string{"text/plain; charset=utf-8"}
	header["X-Content-Type-Options"] = nosniff
	_, _ = req.w.Write([]byte(text))
}

// dispatchPath answers what is not a resource.
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
		if rest == "" {
			s.metrics.handler.ServeHTTP(req.w, req.Request)
			return nil
		}
	case "openapi":
		if s.config.OpenAPI != nil {
			s.config.OpenAPI.ServeHTTP(req.w, req.Request)
			return nil
		}
	case "", "index.html":
		return writeRawJSON(req, metav1.RootPaths{Paths: s.paths()})
	}
	if handler := s.extraPath(req.info.path); handler != nil {
		handler.ServeHTTP(req.w, req.Request.WithContext(req.ctx))
		return nil
	}
	return s.notFound(req)
}

// extraPath finds who serves a path that the configuration added: the longest match wins.
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

// notFound answers paths nobody knows.
func (s *Server) notFound(req *request) error {
	if s.config.NotFound != nil {
		s.config.NotFound.ServeHTTP(req.w, req.Request.WithContext(req.ctx))
		return nil
	}
	http.NotFound(req.w, req.Request)
	return nil
}

// writeRawJSON answers with something that is no API object.
func writeRawJSON(req *request, value any) error {
	text, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return fmt.Errorf("write %T: %w", value, err)
	}
	req.w.Header()["Content-Type"] = []string{mediaJSON}
	_, _ = req.w.Write(text)
	return nil
}

// paths are all paths there are, for /.
func (s *Server) paths() []string {
	paths := []string{"/api", "/apis", "/healthz", "/livez", "/readyz", "/metrics", "/version"}
	for _, check := range s.health.live {
		paths = append(paths, "/healthz/"+check.Name, "/livez/"+check.Name)
	}
	for _, check := range s.health.ready {
		paths = append(paths, "/readyz/"+check.Name)
	}
	if s.config.OpenAPI != nil {
		paths = append(paths, "/openapi/v2", "/openapi/v3")
	}
	for path := range s.config.Paths {
		paths = append(paths, path)
	}
	d := s.catalog.Load().documents
	for gv := range d.resources {
		if gv.Group == "" {
			paths = append(paths, "/api/"+gv.Version)
		} else {
			paths = append(paths, "/apis/"+gv.Group, "/apis/"+gv.String())
		}
	}
	slices.Sort(paths)
	return slices.Compact(paths)
}
