// Package apiserver serves the Kubernetes API over HTTP. It has no code for any particular resource: a request's path names a Kind of
// the Kind table in one of its served versions (type resource), and the Kind defines defaults, validation, columns and subresources.
//
// chain.go is the filter chain of every request, in order: authentication, priority and fairness, authorization, dispatch. The verbs
// have a file each. Reads are served from the cache (package store/cache) with encodings that are made once per object and shared by
// all readers; writes go through admission and the Kind's validation.
//
// The set of resources can change while the server runs (catalog.go): a change costs no more than the kind that it adds or removes.
package apiserver

import (
	"context"
	"errors"
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
	"skiff/internal/tracing"
)

// Config is the configuration of a server. Scheme, Cache, Authenticator and Authorizer must be set.
type Config struct {
	Kinds         []*kind.Kind
	Scheme        *runtime.Scheme
	Cache         *cache.Cache
	Authenticator authn.Authenticator
	Authorizer    authz.Authorizer
	Admission     admission.Chain
	// OpenAPI serves /openapi/v2 and /openapi/v3; nil serves neither.
	OpenAPI http.Handler
	// TypeConverter returns the schemas for server-side apply and managedFields. It is called when a resource is first written.
	TypeConverter func() (apimanagedfields.TypeConverter, error)
	Version       version.Info
	Limits        Limits
	// Fairness is API priority and fairness; nil: requests are limited by Limits only.
	Fairness *fairness.Fairness
	Log      *slog.Logger
	// Disabled are resources of the kinds that are not served.
	Disabled map[schema.GroupVersionResource]bool
	// Priority is the priority in discovery of a group version that has no APIService; nil: all have the same.
	Priority func(schema.GroupVersion) Priority
	// Headers are headers of all responses.
	Headers ResponseHeaders
	ZPages  ZPages
	// Checks are further checks of /healthz, /livez and /readyz.
	Checks []HealthCheck

	// Impersonate returns the impersonated user, after checking that user may impersonate it, and for the audit the verb that allows it
	// when impersonation is constrained. nil: there is no impersonation.
	Impersonate func(r *http.Request, user authn.User) (acting authn.User, constraint string, err error)
	// CheckWrite checks whether the client may write this object (privilege escalation), after mutating admission and before
	// validation. old is nil on create. nil: nothing is checked.
	CheckWrite func(ctx context.Context, a *authz.Attributes, obj, old kind.Object) error
	// ValidateWrite validates what the client may set in an otherwise valid object. old is nil on create. nil: nothing is validated.
	ValidateWrite func(ctx context.Context, a *authz.Attributes, obj, old kind.Object) field.ErrorList
	// Tokens issues service account tokens; nil: none are issued.
	Tokens kind.TokenIssuer
	// Components returns the health of the control plane's components; nil: it is unknown.
	Components func(ctx context.Context) []kind.ComponentHealth
	// Tracing records spans of requests; nil: none.
	Tracing *tracing.Provider
	// Audit records requests; nil: none.
	Audit *audit.Auditor
	// Connectors serve the subresources that are streams rather than objects, by "resource/subresource" ("pods/log").
	Connectors map[string]Connector
	// Paths serve further paths that no kind has, exactly as written or with everything below when they end in "/". authn.UserFrom returns the user.
	Paths map[string]http.Handler
	// Address is the server's address in discovery ("10.0.0.1:6443").
	Address string
	// Registry is the registry of /metrics; nil: the server makes its own.
	Registry *prometheus.Registry
	// LibraryMetrics are served at /metrics besides those of Registry.
	LibraryMetrics []prometheus.Gatherer
	// NotFound serves unknown paths; nil: 404.
	NotFound http.Handler
}

// Connection is a request for a streaming subresource.
type Connection struct {
	User        authn.User
	Resource    schema.GroupResource
	Subresource string
	Namespace   string
	Name        string
	// Path is what follows the subresource, with its leading slash, or empty.
	Path string
}

// Connector serves a streaming subresource. An error returned before anything was written becomes a Status.
type Connector interface {
	Connect(w http.ResponseWriter, r *http.Request, c *Connection) error
}

// Server serves API requests.
type Server struct {
	config  Config
	log     *slog.Logger
	limits  Limits
	metrics *metrics
	health  *healthChecks
	// shutdown is how far the shutdown has come.
	shutdown *shutdown
	// readOnly and mutating count the requests in flight.
	readOnly, mutating inFlightLimiter
	waits              clientWaits
	large              largeWrites
	// identify authenticates a request. The identity includes warnings and audit annotations.
	identify func(*http.Request) (authn.Identity, bool, error)

	managedFields *managedfields.Factory
	changes       sync.Mutex // serializes changes of the catalog, which load tables
	catalog       *catalog
}

// New makes a server for the kinds of the configuration.
func New(c Config) (*Server, error) {
	if c.Scheme == nil || c.Cache == nil || c.Authenticator == nil || c.Authorizer == nil {
		return nil, errors.New("apiserver: Scheme, Cache, Authenticator and Authorizer are needed")
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	s := &Server{config: c, log: c.Log, limits: c.Limits.withDefaults(), metrics: newMetrics(c.Registry, c.LibraryMetrics), shutdown: newShutdown()}
	s.managedFields = managedfields.NewFactory(c.TypeConverter, c.Log)
	s.identify = identifierOf(c.Authenticator)
	if c.Audit != nil {
		s.metrics.registry.MustRegister(c.Audit)
	}
	for _, plugin := range c.Admission {
		if collector, ok := plugin.(prometheus.Collector); ok {
			s.metrics.registry.MustRegister(collector)
		}
	}
	s.config.Admission = admission.NewMetrics(s.metrics.registry).Measure(c.Admission)
	s.readOnly.limit, s.mutating.limit = int64(s.limits.ReadOnly), int64(s.limits.Mutating)
	s.metrics.watch(s)
	s.health = newHealth(s, c.Checks)
	s.catalog = newCatalog(&c)
	if err := s.addBuiltIn(c.Kinds); err != nil {
		return nil, err
	}
	return s, nil
}

// identifierOf uses the authenticator's Identify method if it has one; otherwise the identity is the user alone.
func identifierOf(a authn.Authenticator) func(*http.Request) (authn.Identity, bool, error) {
	if identifier, ok := a.(interface {
		Identify(*http.Request) (authn.Identity, bool, error)
	}); ok {
		return identifier.Identify
	}
	return func(r *http.Request) (authn.Identity, bool, error) {
		user, ok, err := a.Authenticate(r)
		return authn.Identity{User: user}, ok, err
	}
}

// Handler is the filter chain and all handlers; see chain.go.
func (s *Server) Handler() http.Handler { return http.HandlerFunc(s.serve) }

// servedKind is a kind with its table, and the resources it is served as: one for each version.
type servedKind struct {
	kind      *kind.Kind
	codec     *storeCodec
	table     *cache.Table // nil for kinds that are not stored
	resources []*resource
}

// resource is a kind in one served version, bound to its table.
type resource struct {
	served  *servedKind
	kind    *kind.Kind
	version *kind.Version
	gvk     schema.GroupVersionKind
	gvr     schema.GroupVersionResource
	table   *cache.Table // nil for kinds that are not stored
	codec   *storeCodec
	subs    map[string]*kind.Subresource
	// deprecation is the warning in every response; empty if the version is not deprecated. removedRelease is the release in which the
	// version is removed.
	deprecation, removedRelease string

	encoder
	lists    *encoder                                  // for lists
	watchers atomic.Int64                              // open watches in JSON
	batches  [formatProtobuf + 1]atomic.Pointer[batch] // by format, the last batch for watches without a selector
	groups   watchGroups
	metrics  *resourceMetrics
	managers *managedfields.Resource
}

// stored reports whether the served version is the stored one.
func (r *resource) stored() bool { return r.gvk == r.kind.GVK }

// groupResource names the resource in errors and for authorization.
func (r *resource) groupResource() schema.GroupResource { return r.gvr.GroupResource() }

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
			served: served, kind: k, version: version, gvk: version.GVK, codec: served.codec,
			gvr: version.GVK.GroupVersion().WithResource(k.Plural), managers: s.managedFields.Resource(k, version),
			subs: make(map[string]*kind.Subresource), deprecation: version.Deprecation,
		}
		subs := k.SubresourcesOf(version)
		for j := range subs {
			res.subs[subs[j].Name] = &subs[j]
		}
		empty := res.newObject()
		if res.removedRelease = removedRelease(empty); res.deprecation == "" {
			res.deprecation = deprecationOf(empty, res.gvk)
		}
		res.encoder = newEncoder(res)
		res.lists = res.encoder.forLists()
		res.metrics = s.metrics.forResource(res)
		served.resources = append(served.resources, res)
	}
	return served
}

func (k *servedKind) storable() bool { return k.kind.Action == nil && k.kind.Computed == nil }

// cacheResource describes the kind's table.
func (k *servedKind) cacheResource() cache.Resource {
	return cache.Resource{
		Name:   k.kind.GroupResource().String(),
		Prefix: k.kind.KeyPrefix(""),
		Codec:  k.codec,
		Fields: selectableFields(k.kind),
		Index:  storedIndex(k.kind),
	}
}

// attach makes the table that of all versions.
func (k *servedKind) attach(table *cache.Table) {
	k.table = table
	for _, res := range k.resources {
		res.table = table
	}
}
