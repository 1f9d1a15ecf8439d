package apiserver

import (
	"math/rand/v2"
	"net/http"
	"regexp"
	"slices"
	"strings"
)

// ResponseHeaders configures headers that responses have apart from what they contain.
type ResponseHeaders struct {
	// AllowedOrigins are the origins whose scripts may read responses (CORS).
	AllowedOrigins []*regexp.Regexp
	// HSTS are the directives of Strict-Transport-Security. Empty: the header is not sent.
	HSTS []string
	// GoawayChance is the probability with which a request closes its HTTP/2 connection.
	GoawayChance float64
}

// The values of the CORS headers.
var (
	corsMethods = []string{"POST, GET, OPTIONS, PUT, DELETE, PATCH"}
	corsHeaders = []string{"Content-Type, Content-Length, Accept-Encoding, X-CSRF-Token, Authorization, X-Requested-With, If-Modified-Since"}
	corsExposed = []string{"Date"}
	corsAllowed = []string{"true"}
)

// set sets the headers of a response. random is in [0, 1).
func (h *ResponseHeaders) set(header http.Header, r *http.Request, random func() float64) {
	if len(h.HSTS) > 0 {
		header["Strict-Transport-Security"] = []string{strings.Join(h.HSTS, "; ")}
	}
	if h.GoawayChance > 0 && r.ProtoMajor == 2 && random() < h.GoawayChance {
		header["Connection"] = []string{"close"} // the HTTP/2 server sends GOAWAY
	}
	if !h.allows(r) {
		return
	}
	header["Access-Control-Allow-Origin"] = []string{r.Header.Get("Origin")}
	header["Access-Control-Allow-Methods"] = corsMethods
	header["Access-Control-Allow-Headers"] = corsHeaders
	header["Access-Control-Expose-Headers"] = corsExposed
	header["Access-Control-Allow-Credentials"] = corsAllowed
}

// allows reports whether a request comes from an allowed origin.
func (h *ResponseHeaders) allows(r *http.Request) bool {
	if len(h.AllowedOrigins) == 0 {
		return false
	}
	origin := r.Header.Get("Origin")
	return origin != "" && slices.ContainsFunc(h.AllowedOrigins, func(allowed *regexp.Regexp) bool { return allowed.MatchString(origin) })
}

// servePreflight responds to the request with which a browser asks for permission, which has no credentials. It reports whether the request
// is one.
func (s *Server) servePreflight(req *request) bool {
	if req.Method != http.MethodOptions || !s.config.Headers.allows(req.Request) {
		return false
	}
	req.w.WriteHeader(http.StatusNoContent)
	return true
}

// setResponseHeaders sets the headers that do not depend on the response.
func (s *Server) setResponseHeaders(req *request) {
	s.config.Headers.set(req.w.Header(), req.Request, rand.Float64)
}
