// Package health serves /healthz, /livez and /readyz, with all checks or a single one, in upstream's format.
package health

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// Check is one health check of a component.
type Check struct {
	Name  string
	Check func(ctx context.Context) error
	// ReadinessOnly checks are not part of /healthz and /livez: on failure the component should get no requests, but not
	// be restarted.
	ReadinessOnly bool
	// Startup checks are of what is done once after the start. /livez has them, but does not fail, because a restart would not help.
	Startup bool
}

// Public marks the error of a check as one that everybody may read: it is shown among the results of all checks.
func Public(err error) error { return publicError{err} }

type publicError struct{ error }

func (e publicError) Unwrap() error { return e.error }

// Ping always succeeds: responding is enough.
var Ping = Check{Name: "ping", Check: func(context.Context) error { return nil }}

// Checks are the checks of one of the three paths.
type Checks []Check

// Healthy returns the checks of /healthz.
func Healthy(all []Check) Checks {
	return slices.DeleteFunc(slices.Clone(all), func(c Check) bool { return c.ReadinessOnly })
}

// Live returns the checks of /livez.
func Live(all []Check) Checks {
	checks := Healthy(all)
	for i := range checks {
		if checks[i].Startup {
			checks[i].Check = func(context.Context) error { return nil }
		}
	}
	return checks
}

// AddTo adds the handlers of the checks to mux, below /root.
func (c Checks) AddTo(mux *http.ServeMux, root string) {
	serve := func(w http.ResponseWriter, r *http.Request) {
		if !c.Serve(r.Context(), w, r.URL.Query(), root, strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, "/"+root), "/")) {
			http.NotFound(w, r)
		}
	}
	mux.HandleFunc("/"+root, serve)
	mux.HandleFunc("/"+root+"/", serve)
}

// Serve responds for root, one of healthz, livez and readyz, with all checks or the one with the given name. It returns
// false if there is no such check.
func (c Checks) Serve(ctx context.Context, w http.ResponseWriter, query url.Values, root, name string) bool {
	if name == "" {
		c.serveAll(ctx, w, query, root)
		return true
	}
	i := slices.IndexFunc(c, func(check Check) bool { return check.Name == name })
	if i < 0 {
		return false
	}
	if err := c[i].Check(ctx); err != nil {
		http.Error(w, fmt.Sprintf("internal server error: %v", err), http.StatusInternalServerError)
		return true
	}
	writeText(w, "ok")
	return true
}

// serveAll runs all checks. It names those that failed, but not why unless the reason is public, because the path needs no authorization.
func (c Checks) serveAll(ctx context.Context, w http.ResponseWriter, query url.Values, root string) {
	excluded := slices.Clone(query["exclude"])
	var text strings.Builder
	failed := false
	for _, check := range c {
		if slices.Contains(excluded, check.Name) {
			excluded = slices.DeleteFunc(excluded, func(name string) bool { return name == check.Name })
			fmt.Fprintf(&text, "[+]%s excluded: ok\n", check.Name)
			continue
		}
		if err := check.Check(ctx); err != nil {
			failed = true
			fmt.Fprintf(&text, "[-]%s failed: %s\n", check.Name, publicReason(err))
			continue
		}
		fmt.Fprintf(&text, "[+]%s ok\n", check.Name)
	}
	if len(excluded) > 0 {
		slices.Sort(excluded)
		fmt.Fprintf(&text, "warn: some health checks cannot be excluded: no matches for %s\n", quoted(slices.Compact(excluded)))
	}
	if failed {
		http.Error(w, fmt.Sprintf("%s%s check failed", text.String(), root), http.StatusInternalServerError)
		return
	}
	if _, verbose := query["verbose"]; !verbose {
		writeText(w, "ok")
		return
	}
	writeText(w, fmt.Sprintf("%s%s check passed\n", text.String(), root))
}

// publicReason is why a check has failed, as far as everybody may know it.
func publicReason(err error) string {
	if public, ok := errors.AsType[publicError](err); ok {
		return public.Error()
	}
	return "reason withheld"
}

func quoted(names []string) string {
	all := make([]string, len(names))
	for i, name := range names {
		all[i] = fmt.Sprintf("%q", name)
	}
	return strings.Join(all, ",")
}

func writeText(w http.ResponseWriter, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_, _ = w.Write([]byte(text))
}
