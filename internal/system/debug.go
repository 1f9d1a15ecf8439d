package system

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/pprof"
	"runtime"
	"strconv"

	"skiff/internal/apiserver/fairness"
	"skiff/internal/config"
)

// addProfiling adds the paths of net/http/pprof, which are authorized like all others. The package also registers them with
// http.DefaultServeMux, which nothing serves.
func addProfiling(paths map[string]http.Handler) {
	paths["/debug/pprof/"] = http.HandlerFunc(pprof.Index)
	paths["/debug/pprof/cmdline"] = http.HandlerFunc(pprof.Cmdline)
	paths["/debug/pprof/profile"] = http.HandlerFunc(pprof.Profile)
	paths["/debug/pprof/symbol"] = http.HandlerFunc(pprof.Symbol)
	paths["/debug/pprof/trace"] = http.HandlerFunc(pprof.Trace)
}

// addDebugging adds the paths below /debug: profiles, and the log level.
func addDebugging(paths map[string]http.Handler, c config.APIServer, level *slog.LevelVar) {
	if !c.Profiling {
		return
	}
	if c.ContentionProfiling {
		runtime.SetBlockProfileRate(1)
	}
	addProfiling(paths)
	if level != nil {
		paths["/debug/flags/v"] = verbosityHandler{level}
	}
}

// addFairnessDumps adds the paths that show the state of priority and fairness.
func addFairnessDumps(paths map[string]http.Handler, f *fairness.Fairness) {
	if f != nil {
		paths[fairness.DumpPriorityLevelsPath] = http.HandlerFunc(f.DumpPriorityLevels)
		paths[fairness.DumpQueuesPath] = http.HandlerFunc(f.DumpQueues)
		paths[fairness.DumpRequestsPath] = http.HandlerFunc(f.DumpRequests)
	}
}

// debugVerbosity is the lowest verbosity at which upstream's components log for debugging.
const debugVerbosity = 4

// maxVerbosityBytes is the size of the largest body of a request that sets the verbosity.
const maxVerbosityBytes = 64

// verbosityHandler changes the log level while the program runs. A request has upstream's verbosity, a number of which 4 and more mean
// debug, or the name of a level.
type verbosityHandler struct{ level *slog.LevelVar }

// ServeHTTP implements http.Handler.
func (h verbosityHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	respond := func(code int, text string) {
		w.Header().Set("Content-Type", "text/plain")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.WriteHeader(code)
		_, _ = io.WriteString(w, text)
	}
	if r.Method != http.MethodPut {
		respond(http.StatusNotAcceptable, "unsupported http method")
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxVerbosityBytes))
	if err != nil {
		respond(http.StatusBadRequest, "error reading request body: "+err.Error())
		return
	}
	level, err := parseVerbosity(string(body))
	if err != nil {
		respond(http.StatusBadRequest, err.Error())
		return
	}
	h.level.Set(level)
	respond(http.StatusOK, fmt.Sprintf("successfully set klog.logging.verbosity to %s", body))
}

// parseVerbosity returns the level of a verbosity or of the name of a level.
func parseVerbosity(text string) (level slog.Level, err error) {
	verbosity, err := strconv.ParseUint(text, 10, 32)
	switch {
	case err != nil && level.UnmarshalText([]byte(text)) == nil:
		return level, nil
	case err != nil:
		return 0, err
	case verbosity >= debugVerbosity:
		return slog.LevelDebug, nil
	}
	return slog.LevelInfo, nil
}
