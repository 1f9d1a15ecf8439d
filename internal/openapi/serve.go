package openapi

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/munnerz/goautoneg"
)

const (
	jsonType = "application/json"
	protoV2  = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
	protoV3  = "application/com.github.proto-openapi.spec.v3.v1.0+protobuf"
)

// older spellings of the protobuf types, which are not valid MIME types.
var older = map[string]string{
	protoV2: "application/com.github.proto-openapi.spec.v2@v1.0+protobuf",
	protoV3: "application/com.github.proto-openapi.spec.v3@v1.0+protobuf",
}

// ServeHTTP serves all paths below /openapi.
func (d *Documents) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch path := strings.TrimSuffix(r.URL.Path, "/"); {
	case path == "/openapi/v2":
		d.ServeV2(w, r)
	case path == "/openapi/v3" || strings.HasPrefix(path, "/openapi/v3/"):
		d.ServeV3(w, r)
	default:
		http.NotFound(w, r)
	}
}

// ServeV2 serves /openapi/v2.
func (d *Documents) ServeV2(w http.ResponseWriter, r *http.Request) {
	d.current().v2.serve(w, r, protoV2)
}

// ServeV3 serves /openapi/v3, the list of documents, and the documents below it.
func (d *Documents) ServeV3(w http.ResponseWriter, r *http.Request) {
	s := d.current()
	path := strings.Trim(strings.TrimPrefix(r.URL.Path, "/openapi/v3"), "/")
	if path == "" {
		w.Header().Set("Content-Type", jsonType)
		w.Header().Set("Etag", strconv.Quote(s.indexHash))
		http.ServeContent(w, r, "", s.v2.modified, bytes.NewReader(s.index))
		return
	}
	doc := s.documents[path]
	if doc == nil {
		http.NotFound(w, r)
		return
	}
	if doc.handler != nil {
		doc.handler.ServeHTTP(w, r)
		return
	}
	if hash := r.URL.Query().Get("hash"); hash != "" {
		if hash != doc.hash {
			http.Redirect(w, r, hashedURL(path, doc.hash), http.StatusMovedPermanently)
			return
		}
		w.Header().Set("Cache-Control", "public, immutable")
		w.Header().Set("Expires", time.Now().AddDate(1, 0, 0).UTC().Format(http.TimeFormat))
	}
	doc.serve(w, r, protoV3)
}

// serve writes the document in the first encoding that the client accepts.
func (doc *document) serve(w http.ResponseWriter, r *http.Request, protoType string) {
	contentType := acceptable(r.Header.Get("Accept"), protoType)
	header := w.Header()
	header.Add("Vary", "Accept")
	header.Add("Vary", "Accept-Encoding")
	var compressed []byte
	var err error
	switch contentType {
	case jsonType:
		compressed, err = doc.json()
	case protoType:
		compressed, err = doc.proto()
	default:
		w.WriteHeader(http.StatusNotAcceptable)
		return
	}
	if err != nil {
		header.Del("Cache-Control")
		header.Del("Expires")
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	header.Set("Content-Type", contentType)
	header.Set("Etag", strconv.Quote(doc.hash))
	if acceptsGzip(r) {
		header.Set("Content-Encoding", "gzip")
		http.ServeContent(w, r, "", doc.modified, bytes.NewReader(compressed))
		return
	}
	plain, err := expand(compressed)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	http.ServeContent(w, r, "", doc.modified, bytes.NewReader(plain))
}

func expand(compressed []byte) ([]byte, error) {
	zip, err := gzip.NewReader(bytes.NewReader(compressed))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(zip)
}

// acceptable selects the encoding: JSON for a client without preference.
func acceptable(accept, protoType string) string {
	if accept == "" {
		return jsonType
	}
	for _, clause := range goautoneg.ParseAccept(accept) {
		for _, offer := range []string{jsonType, protoType, older[protoType]} {
			typ, subtype, _ := strings.Cut(offer, "/")
			if (clause.Type == "*" || clause.Type == typ) && (clause.SubType == "*" || clause.SubType == subtype) {
				if offer == older[protoType] {
					return protoType
				}
				return offer
			}
		}
	}
	return ""
}

func acceptsGzip(r *http.Request) bool {
	for clause := range strings.SplitSeq(r.Header.Get("Accept-Encoding"), ",") {
		coding, weight, _ := strings.Cut(strings.ReplaceAll(clause, " ", ""), ";")
		if coding == "gzip" || coding == "*" {
			q, err := strconv.ParseFloat(strings.TrimPrefix(weight, "q="), 64)
			return weight == "" || err == nil && q > 0
		}
	}
	return false
}
