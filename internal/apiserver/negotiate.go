package apiserver

import (
	"mime"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/munnerz/goautoneg"
)

// format is a wire format.
type format uint8

// The supported formats, in the server's order of preference.
const (
	formatJSON format = iota
	formatYAML
	formatProtobuf
)

const (
	mediaJSON     = "application/json"
	mediaYAML     = "application/yaml"
	mediaProtobuf = "application/vnd.kubernetes.protobuf"
)

var mediaTypes = [...]string{formatJSON: mediaJSON, formatYAML: mediaYAML, formatProtobuf: mediaProtobuf}

func (f format) mediaType() string { return mediaTypes[f] }

// transform is the transformation of an object that the client requests.
type transform uint8

const (
	transformNone transform = iota
	transformTable
	transformPartial
	transformPartialList
)

// output is the negotiated form of the response.
type output struct {
	format    format
	transform transform
	// metaVersion is the version of meta.k8s.io that tables and partial objects are in: v1 or v1beta1.
	metaVersion string
	pretty      bool
}

// clause is one media range of an Accept header. Clauses are in the client's order of preference.
type clause struct {
	formats   []format // those it matches, in order of the server's preference
	transform bool     // as, g or v is set
	as, g, v  string
	stream    string
	pretty    bool
	version   string // sv
	profile   string
}

// acceptCache caches parsed Accept headers; clients send few different ones. Its size is bounded.
var acceptCache struct {
	parsed sync.Map // string → []clause
	size   atomic.Int64
}

const acceptCacheLimit = 512

func parseAccept(header string) []clause {
	if known, ok := acceptCache.parsed.Load(header); ok {
		return known.([]clause)
	}
	clauses := parseClauses(header)
	if len(header) <= 512 && acceptCache.size.Load() < acceptCacheLimit {
		if _, had := acceptCache.parsed.LoadOrStore(strings.Clone(header), clauses); !had {
			acceptCache.size.Add(1)
		}
	}
	return clauses
}

func parseClauses(header string) []clause {
	var clauses []clause
	for _, accept := range goautoneg.ParseAccept(header) {
		c := clause{
			as: accept.Params["as"], g: accept.Params["g"], v: accept.Params["v"], stream: accept.Params["stream"],
			pretty: accept.Params["pretty"] == "1", version: accept.Params["sv"], profile: accept.Params["profile"],
		}
		for _, key := range []string{"as", "g", "v"} {
			if _, ok := accept.Params[key]; ok {
				c.transform = true
			}
		}
		for f := formatJSON; f <= formatProtobuf; f++ {
			kind, subKind, _ := strings.Cut(f.mediaType(), "/")
			if (accept.Type == kind && (accept.SubType == subKind || accept.SubType == "*")) || (accept.Type == "*" && accept.SubType == "*") {
				c.formats = append(c.formats, f)
			}
		}
		if len(c.formats) > 0 {
			clauses = append(clauses, c)
		}
	}
	return clauses
}

// offer is what a resource supports besides JSON and YAML of whole objects.
type offer struct {
	protobuf bool // plain objects have a protobuf encoding
	partial  bool // PartialObjectMetadata
	tables   bool
}

// transformIn is the transformation that a clause requests, in a format. ok is false when it is not supported.
func (c *clause) transformIn(f format, o offer) (s transform, ok bool) {
	if !c.transform {
		return transformNone, o.protobuf || f != formatProtobuf
	}
	if !o.partial || c.g != "meta.k8s.io" || (c.v != "v1" && c.v != "v1beta1") {
		return 0, false
	}
	switch c.as {
	case "Table":
		return transformTable, o.tables && f != formatProtobuf
	case "PartialObjectMetadata":
		return transformPartial, true
	case "PartialObjectMetadataList":
		return transformPartialList, true
	}
	return 0, false
}

// negotiate returns the first of the client's preferences that is supported.
func negotiate(r *http.Request, o offer) (output, bool) {
	header := r.Header.Get("Accept")
	out := output{pretty: wantsPretty(r)}
	if header == "" {
		return out, true
	}
	clauses := parseAccept(header)
	for i := range clauses {
		c := &clauses[i]
		if c.version != "" && c.version != "v1" {
			continue
		}
		for _, f := range c.formats {
			if c.stream != "" && (c.stream != "watch" || f == formatYAML) {
				continue
			}
			if s, ok := c.transformIn(f, o); ok {
				out.format, out.transform, out.metaVersion = f, s, c.v
				out.pretty = out.pretty || c.pretty
				return out, true
			}
		}
	}
	return out, false
}

// negotiate returns the form of a response with an object of the resource.
func (r *request) negotiate() (output, error) {
	o := r.offer()
	out, ok := negotiate(r.Request, o)
	if !ok {
		return out, errNotAcceptable(acceptedTypes(o.protobuf)...)
	}
	return out, nil
}

// offer is what the resource of the request supports. The result of an action cannot be listed, so it has no table unless the kind
// has columns.
func (r *request) offer() offer {
	if r.res == nil {
		return offer{protobuf: true}
	}
	return offer{protobuf: r.res.codec.protobuf, partial: true, tables: r.res.kind.Action == nil || r.res.kind.Columns != nil}
}

// negotiateStream returns the form of a stream of events. There are no streams in YAML.
func (r *request) negotiateStream() (output, error) {
	out, ok := negotiate(r.Request, r.offer())
	if ok && out.format != formatYAML {
		return out, nil
	}
	accepted := []string{mediaJSON + ";stream=watch"}
	if r.res.codec.protobuf {
		accepted = append(accepted, mediaProtobuf+";stream=watch")
	}
	return out, errNotAcceptable(accepted...)
}

func acceptedTypes(protobuf bool) []string {
	if protobuf {
		return mediaTypes[:]
	}
	return mediaTypes[:formatProtobuf]
}

// wantsPretty: the pretty parameter decides; without it, curl, wget and browsers get indented JSON.
func wantsPretty(r *http.Request) bool {
	if strings.Contains(r.URL.RawQuery, "pretty") {
		if value := r.URL.Query().Get("pretty"); value != "" {
			pretty, _ := strconv.ParseBool(value)
			return pretty
		}
	}
	agent := r.UserAgent()
	return strings.HasPrefix(agent, "curl") || strings.HasPrefix(agent, "Wget") || strings.HasPrefix(agent, "Mozilla/5.0")
}

// contentFormat is the format of the request's body by its Content-Type; JSON when there is none.
func (r *request) contentFormat() (format, error) {
	protobuf := r.res == nil || r.res.codec.protobuf
	header := r.Header.Get("Content-Type")
	switch header {
	case "", mediaJSON:
		return formatJSON, nil
	case mediaProtobuf:
		if protobuf {
			return formatProtobuf, nil
		}
	}
	if mediaType, _, err := mime.ParseMediaType(header); err == nil {
		for i, known := range acceptedTypes(protobuf) {
			if mediaType == known {
				return format(i), nil
			}
		}
	}
	return 0, errUnsupportedMediaType(acceptedTypes(protobuf)...)
}

// acceptsGzip follows upstream: the header must contain gzip; weights are ignored.
func acceptsGzip(r *http.Request) bool {
	header := r.Header.Get("Accept-Encoding")
	for header != "" {
		var next string
		next, header, _ = strings.Cut(header, ",")
		if strings.TrimSpace(next) == "gzip" {
			return true
		}
	}
	return false
}
