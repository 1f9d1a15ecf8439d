// Package apiserver is HTTP in front of kinds and store. It has no code for any particular resource: a request's path
// names a row of the table of kinds in one of its served versions (resource), and the row says what the request may do.
//
// A request takes one road, which chain.go shows in order: authentication, its turn, authorization, dispatch. The verbs
// have a file each. Reads are answered from the cache (package store/cache) with encodings that are made once per object
// and shared by everyone who asks; writes go through admission and the row's rules.
//
// The set of resources can change while the server runs: it is an immutable catalog behind an atomic pointer.
package apiserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apimanagedfields "k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/version"

	"skiff/internal/apiserver/admission"
	"skiff/internal/apiserver/audit"
	"skiff/internal/apiserver/authn"
	"skiff/internal/apiserver/authz"
	"skiff/internal/apiserver/fairness"
	"skiff/internal/apiserver/managedfields"
	"skiff/internal/kind"
	"skiff/internal/store/cache"
)

// Config is everything a server is made of. Scheme, Cache, Authenticator and Authorizer must be set.
type Config struct {
	Kinds         []*kind.Kind
	Scheme        *runtime.Scheme
	Cache         *cache.Cache
	Authenticator authn.Authenticator
	Authorizer    authz.Authorizer
	Admission     admission.Chain
	// OpenAPI serves /openapi/v2 and /openapi/v3; nil serves neither.
	OpenAPI http.Handler
	// TypeConverter knows the schemas that server-side apply and managedFields need. It is asked once per write.
	TypeConverter func() (apimanagedfields.TypeConverter, error)
	Version       version.Info
	Limits        Limits
	// Fairness gives requests their turns; nil: they are only counted, up to the Limits.
	Fairness *fairness.Fairness
	Log      *slog.Logger
	// Checks are asked by /healthz, /livez and /readyz besides the server's own.
	Checks []HealthCheck

	// Impersonate returns the user on whose behalf the request acts, after checking that user may do so, and for the audit the
	// verb by which that is allowed when it is for this request only. nil: nobody can act for another.
	Impersonate func(r *http.Request, user authn.User) (acting authn.User, constraint string, err error)
	// CheckWrite looks at what a client wants to write in the light of who it is, after admission has changed it and before it
	// is judged: nobody may grant what they do not have. old is nil on create. nil: nothing is checked.
	CheckWrite func(ctx context.Context, a *authz.Attributes, obj, old kind.Object) error
	// JudgeWrite finds what is wrong with an object, valid otherwise, because of who writes it. old is nil on create. nil: nothing is.
	JudgeWrite func(ctx context.Context, a *authz.Attributes, obj, old kind.Object) field.ErrorList
	// Tokens signs tokens of service accounts; nil: nobody gets any.
	Tokens kind.TokenIssuer
	// Components tells how the parts of the control plane are; nil: nobody knows.
	Components func(ctx context.Context) []kind.ComponentHealth
	// Audit records requests; nil: none.
	Audit *audit.Auditor
	// Connectors serve the subresources that are streams rather than objects, by "resource/subresource" ("pods/log").
	Connectors map[string]Connector
	// Paths serve further paths that no kind has, exactly as written or with everything below when they end in "/".
	Paths map[string]http.Handler
	// Address is where clients reach the server, as discovery tells them ("10.0.0.1:6443").
	Address string
	// Registry collects what /metrics shows; nil: one of the server's own.
	Registry *prometheus.Registry
	// NotFound answers paths the server knows nothing about (a seam for further API servers); nil: 404.
	NotFound http.Handler
}

// Connection is a request for a stream below an object.
type Connection struct {
	User        authn.User
	Resource    schema.GroupResource
	Subresource string
	Namespace   string
	Name        string
	// Path is what follows the subresource, with its leading slash, or empty.
	Path string
}

// Connector serves streams. An error returned before anything was written becomes a Status.
type Connector interface {
	Connect(w http.ResponseWriter, r *http.Request, c *Connection) error
}

// Server answers API requests. Make one with New; serve Handler.
type Server struct {
	config  Config
	log     *slog.Logger
	limits  Limits
	metrics *metrics
	health  *healthChecks
	// readOnly and mutating count the requests that are running.
	readOnly, mutating inFlightLimiter
	// identify tells who sends a request, and what is to be said of how that was found out.
	identify func(*http.Request) (authn.Identity, bool, error)

	managedFields *managedfields.Factory
	mu            sync.Mutex // guards changes of the catalog
	catalog       atomic.Pointer[catalog]
}

// New makes a server for the kinds of the configuration. It starts nothing.
func New(c Config) (*Server, error) {
	if c.Scheme == nil || c.Cache == nil || c.Authenticator == nil || c.Authorizer == nil {
		return nil, errors.New("apiserver: Scheme, Cache, Authenticator and Authorizer are needed")
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	s := &Server{config: c, log: c.Log, limits: c.Limits.withDefaults(), metrics: newMetrics(c.Registry)}
	s.managedFields = managedfields.NewFactory(c.TypeConverter, c.Log)
	s.identify = identifierOf(c.Authenticator)
	if c.Audit != nil {
		s.metrics.registry.MustRegister(c.Audit)
	}
	s.readOnly.limit, s.mutating.limit = int64(s.limits.ReadOnly), int64(s.limits.Mutating)
	s.metrics.watch(s)
	s.health = newHealth(s, c.Checks)
	s.catalog.Store(&catalog{})
	if err := s.SetKinds(c.Kinds); err != nil {
		return nil, err
	}
	return s, nil
}

// identifierOf asks an authenticator for all it knows; most know the user alone.
func identifierOf(a authn.Authenticator) func(*http.Request) (authn.Identity, bool, error) {
	if knows, ok := a.(interface {
		Identify(*http.Request) (authn.Identity, bool, error)
	}); ok {
		return knows.Identify
	}
	return func(r *http.Request) (authn.Identity, bool, error) {
		user, ok, err := a.Authenticate(r)
		return authn.Identity{User: user}, ok, err
	}
}

// SetKinds makes kinds the whole set that is served. Kinds that were served before keep their tables.
func (s *Server) SetKinds(kinds []*kind.Kind) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.setKinds(kinds)
}

// AddKind serves one more kind.
func (s *Server) AddKind(k *kind.Kind) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.catalog.Load().kinds
	kinds := make([]*kind.Kind, 0, len(old)+1)
	for _, o := range old {
		kinds = append(kinds, o.kind)
	}
	return s.setKinds(append(kinds, k))
}

// RemoveKind stops serving a kind. Its objects stay in the store.
func (s *Server) RemoveKind(k *kind.Kind) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var kinds []*kind.Kind
	for _, o := range s.catalog.Load().kinds {
		if o.kind != k {
			kinds = append(kinds, o.kind)
		}
	}
	return s.setKinds(kinds)
}

func (s *Server) setKinds(kinds []*kind.Kind) error {
	old := s.catalog.Load()
	next := &catalog{
		byVersion:  make(map[schema.GroupVersionResource]*resource),
		byResource: make(map[schema.GroupResource]*resource),
		versions:   make(map[schema.GroupVersion]bool),
		groups:     make(map[string]bool),
	}
	kept := make(map[*kind.Kind]*servedKind, len(old.kinds))
	for _, o := range old.kinds {
		kept[o.kind] = o
	}
	for _, k := range kinds {
		served := kept[k]
		if served == nil {
			served = s.newServedKind(k)
		}
		delete(kept, k)
		if err := next.add(served); err != nil {
			return err
		}
	}
	next.documents = s.newDocuments(next)
	for _, served := range next.kinds {
		if served.table == nil && served.storable() {
			served.attach(s.config.Cache)
		}
	}
	s.catalog.Store(next)
	for _, gone := range kept {
		if gone.table != nil {
			s.config.Cache.Remove(gone.table)
		}
	}
	return nil
}

// Handler is the whole road of a request; see chain.go.
func (s *Server) Handler() http.Handler { return http.HandlerFunc(s.serve) }

// resource finds the resource of a kind in its stored version, or the preferred one where the kind is stored under
// another group's version. nil when nothing of that name is served.
func (s *Server) resource(gr schema.GroupResource) *resource {
	return s.catalog.Load().byResource[gr]
}

// catalog is the set of resources served at one time. It never changes; a new set is a new catalog.
type catalog struct {
	kinds      []*servedKind
	byVersion  map[schema.GroupVersionResource]*resource
	byResource map[schema.GroupResource]*resource
	versions   map[schema.GroupVersion]bool
	groups     map[string]bool
	documents  *documents
}

func (c *catalog) add(served *servedKind) error {
	c.kinds = append(c.kinds, served)
	for _, res := range served.resources {
		gr := res.gvr.GroupResource()
		if c.byResource[gr] == nil || res.stored() {
			c.byResource[gr] = res
		}
		if len(served.kind.Verbs) == 0 {
			continue // rows of the server itself use the kind; clients cannot
		}
		if c.byVersion[res.gvr] != nil {
			return fmt.Errorf("apiserver: %s is served twice", res.gvr)
		}
		c.byVersion[res.gvr] = res
		c.versions[res.gvr.GroupVersion()] = true
		c.groups[res.gvr.Group] = true
	}
	return nil
}

// servedKind is a kind with its table, and the resources it is served as: one for each version.
type servedKind struct {
	kind      *kind.Kind
	codec     *storeCodec
	table     *cache.Table // nil for actions and views
	resources []*resource
}

// resource is a kind in one served version, bound to its table.
type resource struct {
	kind    *kind.Kind
	version *kind.Version
	gvk     schema.GroupVersionKind
	gvr     schema.GroupVersionResource
	table   *cache.Table // nil for actions and views
	codec   *storeCodec
	subs    map[string]*kind.Subresource
	// deprecation is the warning that goes with every answer; empty for a resource that stays.
	deprecation string

	encoder
	watchers atomic.Int64                              // watches that are being served in JSON
	batches  [formatProtobuf + 1]atomic.Pointer[batch] // by format, what was last sent to those who watch everything
	metrics  *resourceMetrics
	managers *managedfields.Resource
}

// stored reports whether the served version is the stored one.
func (r *resource) stored() bool { return r.version.FromStored == nil }

// groupResource names the resource in errors and for authorization.
func (r *resource) groupResource() schema.GroupResource { return r.gvr.GroupResource() }

// fromStored shows an object in the served version. It returns obj itself when that is the stored one.
func (r *resource) fromStored(obj kind.Object) (kind.Object, error) {
	if r.version.FromStored == nil {
		return obj, nil
	}
	return r.version.FromStored(obj)
}

// newObject makes an empty object of the served version.
func (r *resource) newObject() kind.Object {
	return r.kind.NewObject(r.version)
}

// newList makes an empty list of the served version, or nil when the kind has no typed list.
func (r *resource) newList() runtime.Object {
	switch {
	case r.version.NewList != nil:
		return r.version.NewList()
	case r.version.New == nil && r.kind.NewList != nil:
		return r.kind.NewList()
	}
	return nil
}

func (s *Server) newServedKind(k *kind.Kind) *servedKind {
	served := &servedKind{kind: k, codec: newStoreCodec(k)}
	for i := range k.Versions {
		version := &k.Versions[i]
		res := &resource{
			kind: k, version: version, gvk: version.GVK, codec: served.codec,
			gvr: version.GVK.GroupVersion().WithResource(k.Plural), managers: s.managedFields.Resource(k, version),
			subs: make(map[string]*kind.Subresource, len(k.Subresources)),
		}
		for j := range k.Subresources {
			res.subs[k.Subresources[j].Name] = &k.Subresources[j]
		}
		res.deprecation = deprecationOf(res.newObject(), res.gvk)
		res.encoder = newEncoder(res)
		res.metrics = s.metrics.forResource(res)
		served.resources = append(served.resources, res)
	}
	return served
}

func (k *servedKind) storable() bool { return k.kind.Action == nil && k.kind.Virtual == nil }

// attach gives the kind its table.
func (k *servedKind) attach(c *cache.Cache) {
	k.table = c.Add(cache.Resource{
		Name:   k.kind.GroupResource().String(),
		Prefix: k.kind.KeyPrefix(""),
		Codec:  k.codec,
		Fields: selectableFields(k.kind),
	})
	for _, res := range k.resources {
		res.table = k.table
	}
}
