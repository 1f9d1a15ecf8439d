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

// format is how bytes on the wire are written.
type format uint8

// The formats the server speaks, in the order of preference when the client does not care.
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

// shape is what is made of an object for the client.
type shape uint8

const (
	shapeObject shape = iota
	shapeTable
	shapePartial
	shapePartialList
)

// output is what the client wants to get: an object or something made of it, in a format.
type output struct {
	format format
	shape  shape
	// metaVersion is the version of meta.k8s.io that tables and partial objects are in: v1 or v1beta1.
	metaVersion string
	pretty      bool
}

// clause is one alternative of an Accept header. Clauses stand in the order of the client's preference.
type clause struct {
	formats  []format // those it matches, in order of the server's preference
	asked    bool     // a transformation was asked for (as, g, v)
	as, g, v string
	stream   string
	pretty   bool
	version  string // sv
	profile  string
}

// acceptCache remembers how Accept headers read; clients send few different ones. It stops growing when somebody sends many.
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
				c.asked = true
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

// offer is what can be had besides JSON and YAML of plain objects.
type offer struct {
	protobuf bool // plain objects have a protobuf form
	partial  bool // objects can be cut down to their metadata
	tables   bool
}

// shapeIn is the transformation a clause asks for, in a format. ok is false when it cannot be served.
func (c *clause) shapeIn(f format, o offer) (s shape, ok bool) {
	if !c.asked {
		return shapeObject, o.protobuf || f != formatProtobuf
	}
	if !o.partial || c.g != "meta.k8s.io" || (c.v != "v1" && c.v != "v1beta1") {
		return 0, false
	}
	switch c.as {
	case "Table":
		return shapeTable, o.tables && f != formatProtobuf
	case "PartialObjectMetadata":
		return shapePartial, true
	case "PartialObjectMetadataList":
		return shapePartialList, true
	}
	return 0, false
}

// negotiate finds the first of the client's wishes that can be met.
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
			if s, ok := c.shapeIn(f, o); ok {
				out.format, out.shape, out.metaVersion = f, s, c.v
				out.pretty = out.pretty || c.pretty
				return out, true
			}
		}
	}
	return out, false
}

// negotiate finds what the client wants to get for an object of its resource.
func (r *request) negotiate() (output, error) {
	o := r.offer()
	out, ok := negotiate(r.Request, o)
	if !ok {
		return out, errNotAcceptable(acceptedTypes(o.protobuf)...)
	}
	return out, nil
}

// offer is what the resource of the request can be had as. The answer to an action is no object that could be listed,
// so there are no tables of it.
func (r *request) offer() offer {
	if r.res == nil {
		return offer{protobuf: true}
	}
	return offer{protobuf: r.res.codec.protobuf, partial: true, tables: r.res.kind.Action == nil || r.res.kind.Columns != nil}
}

// negotiateStream finds what the client wants to get as a stream of events. YAML has no streams.
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

// wantsPretty: the parameter decides, and without it people's own tools get indented answers.
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

// contentFormat reads the Content-Type of a request's body. JSON when there is none.
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

// acceptsGzip follows upstream: the header must name gzip; weights are not looked at.
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
