// Package openapi knows the schemas of the API. It publishes them, as the documents below /openapi/v2 and /openapi/v3
// that kubectl and other clients read, and it hands them to server-side apply, which merges objects by them.
//
// The schemas of the built-in kinds are text files, made by gen from the comments of the Go types and embedded in the
// program. Nothing is parsed at start: a file is split when a definition of it is first wanted, a document is put together
// when it is first asked for and then kept compressed, and the merge schema of a kind is made with its first write.
//
// What a document says besides the schemas (paths, operations, parameters) follows from the table of kinds.
package openapi

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/handler3"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"skiff/internal/kind"
)

// layout is part of every document's hash, by which clients keep documents for good. It is raised when the same kinds
// begin to give other documents; a test holds it to that.
const layout = "1"

// Documents serves the API's descriptions. Its methods may be called concurrently.
type Documents struct {
	version string

	mu    sync.Mutex // one writer
	state atomic.Pointer[state]
}

// state is everything served at one time. It is replaced, never changed.
type state struct {
	parts     map[schema.GroupVersion]*part
	documents map[string]*document // by their path below /openapi/v3/
	v2        *document
	index     []byte // the answer of /openapi/v3
	indexHash string
}

// part is one group version as it is served.
type part struct {
	gv    schema.GroupVersion
	kinds []*kind.Kind
	own   Custom
	hash  string
	v3    *document
}

// Custom holds the schemas of a group version that are not built in, by definition name (see Name). They may refer to
// built-in ones, by "#/components/schemas/…" in V3 and "#/definitions/…" in V2, which is V3 with what the older version cannot
// say left out.
type Custom struct {
	V2, V3 map[string]*spec.Schema
}

// New describes the kinds, as the server of the given version. It does no work that a start would notice.
func New(kinds []*kind.Kind, version string) *Documents {
	d := &Documents{version: version}
	parts := map[schema.GroupVersion]*part{}
	for _, k := range kinds {
		for _, v := range k.Versions {
			gv := v.GVK.GroupVersion()
			if parts[gv] == nil {
				parts[gv] = &part{gv: gv}
			}
			parts[gv].kinds = append(parts[gv].kinds, k)
		}
	}
	for _, p := range parts {
		d.complete(p)
	}
	d.publish(parts)
	return d
}

// Update replaces what is known of one group version; without kinds it is gone. Only its own documents are made anew.
func (d *Documents) Update(gv schema.GroupVersion, kinds []*kind.Kind, own Custom) {
	d.mu.Lock()
	defer d.mu.Unlock()
	parts := maps.Clone(d.state.Load().parts)
	delete(parts, gv)
	if len(kinds) > 0 {
		parts[gv] = &part{gv: gv, kinds: kinds, own: own}
		d.complete(parts[gv])
	}
	d.publish(parts)
}

// complete gives a part its hash and its document.
func (d *Documents) complete(p *part) {
	h := sha256.New()
	fmt.Fprintln(h, layout, d.version, p.gv)
	for _, pkg := range slices.Sorted(maps.Keys(files)) {
		fmt.Fprintln(h, files[pkg].hash)
	}
	for _, k := range p.kinds {
		fmt.Fprintln(h, k.GVK, k.Plural, k.ListKind, k.Namespaced, k.Verbs)
		for _, v := range k.Versions {
			fmt.Fprintln(h, v.GVK)
		}
		for _, s := range k.Subresources {
			fmt.Fprintln(h, s.Name, s.GVK, s.Verbs, s.Create != nil)
		}
	}
	// Schemas encode with their keys sorted, so equal ones are equal text.
	if err := json.NewEncoder(h).Encode(p.own); err != nil {
		panic(fmt.Sprintf("schemas of %s do not encode: %v", p.gv, err))
	}
	p.hash = fmt.Sprintf("%X", h.Sum(nil))
	p.v3 = newDocument(p.hash, func() (*content, error) { return d.groupVersionContent(p) })
}

// publish makes parts what is served.
func (d *Documents) publish(parts map[schema.GroupVersion]*part) {
	s := &state{parts: parts, documents: map[string]*document{}}
	for gv, p := range parts {
		s.documents[rootOf(gv)[1:len(rootOf(gv))-1]] = p.v3
	}
	d.addRoots(s)
	h := sha256.New()
	index := handler3.OpenAPIV3Discovery{Paths: map[string]handler3.OpenAPIV3DiscoveryGroupVersion{}}
	for _, path := range slices.Sorted(maps.Keys(s.documents)) {
		index.Paths[path] = handler3.OpenAPIV3DiscoveryGroupVersion{ServerRelativeURL: hashedURL(path, s.documents[path].hash)}
		fmt.Fprintln(h, path, s.documents[path].hash)
	}
	s.indexHash = fmt.Sprintf("%X", h.Sum(nil))
	s.index, _ = json.Marshal(index) // strings only
	s.v2 = newDocument(s.indexHash, func() (*content, error) { return d.v2Content(s) })
	d.state.Store(s)
}

func hashedURL(path, hash string) string {
	return (&url.URL{Path: "/openapi/v3/" + path, RawQuery: url.Values{"hash": {hash}}.Encode()}).String()
}

// rootRoutes are the paths outside the group versions, with the document each belongs to.
func rootRoutes(groups []string) map[string]routes {
	version := &route{method: "GET", path: "/version/", id: "getCodeVersion", tag: "version", doc: "get the version information for this server",
		consumes: mediaTypes[:1], produces: mediaTypes[:1], writes: "io.k8s.apimachinery.pkg.version.Info", returns: []int{http.StatusOK}}
	out := map[string]routes{
		"api":     {discoveryRoute("/api/", "get available API versions", "APIVersions", "APIVersions")},
		"apis":    {discoveryRoute("/apis/", "get available API versions", "APIVersions", "APIGroupList")},
		"version": {version},
		".well-known/openid-configuration": {{method: "GET", path: "/.well-known/openid-configuration/", id: "getServiceAccountIssuerOpenIDConfiguration",
			tag: "WellKnown", doc: "get service account issuer OpenID configuration, also known as the 'OIDC discovery doc'",
			produces: mediaTypes[:1], writes: "string"}},
		"openid/v1/jwks": {{method: "GET", path: "/openid/v1/jwks/", id: "getServiceAccountIssuerOpenIDKeyset", tag: "openid",
			doc: "get service account issuer OpenID JSON Web Key Set (contains public token verification keys)", produces: []string{"application/jwk-set+json"}, writes: "string"}},
	}
	for _, group := range groups {
		out["apis/"+group] = routes{discoveryRoute("/apis/"+group+"/", "get information of a group", "APIGroup", "APIGroup")}
	}
	return out
}

// groups are the named groups served.
func (s *state) groups() []string {
	var out []string
	for gv := range s.parts {
		if gv.Group != "" && !slices.Contains(out, gv.Group) {
			out = append(out, gv.Group)
		}
	}
	slices.Sort(out)
	return out
}

func (d *Documents) addRoots(s *state) {
	for path, rs := range rootRoutes(s.groups()) {
		hash := fmt.Sprintf("%X", sha256.Sum256(fmt.Append(nil, layout, d.version, path, files[metaPackage[:len(metaPackage)-1]].hash)))
		s.documents[path] = newDocument(hash, func() (*content, error) { return d.v3Content(rs, nil) })
	}
}

// document is made when it is first asked for, in each of its two forms, and kept compressed.
type document struct {
	hash     string
	modified time.Time
	json     func() ([]byte, error)
	proto    func() ([]byte, error)
}

func newDocument(hash string, make func() (*content, error)) *document {
	return &document{hash: hash, modified: time.Now(),
		json: sync.OnceValues(func() ([]byte, error) {
			c, err := make()
			if err != nil {
				return nil, err
			}
			return compress(c.writeJSON)
		}),
		proto: sync.OnceValues(func() ([]byte, error) {
			c, err := make()
			if err != nil {
				return nil, err
			}
			return compress(c.writeProto)
		})}
}
