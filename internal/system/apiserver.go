package system

import (
	"cmp"
	"context"
	"crypto/tls"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"skiff/internal/api"
	"skiff/internal/api/apiregistration"
	"skiff/internal/apiserver"
	"skiff/internal/apiserver/authn"
	"skiff/internal/apiserver/authz"
	streams "skiff/internal/apiserver/connect"
	"skiff/internal/config"
	"skiff/internal/kind"
	"skiff/internal/openapi"
	"skiff/internal/store/cache"
	"skiff/internal/tracing"
	"skiff/internal/version"
)

// apiServerOptions are what the API server is made of.
type apiServerOptions struct {
	cache  *cache.Cache
	access *accessControl
	// proxy is how the server reaches kubelets, pods and services.
	proxy        streams.Config
	storeHealthy func(context.Context) error
	checks       []apiserver.HealthCheck
	// paths are served besides the API.
	paths    map[string]http.Handler
	registry *prometheus.Registry
	// tracing records requests; nil: no request is traced.
	tracing *tracing.Provider
	// flags are shown by /flagz.
	flags map[string]string
	// logLevel can be changed at /debug/flags/v; nil: it cannot.
	logLevel *slog.LevelVar
}

// newAPIServer makes the API server with all built-in kinds, and their OpenAPI documents.
func newAPIServer(c config.APIServer, o apiServerOptions, log *slog.Logger) (*apiserver.Server, *openapi.Documents, error) {
	kinds := api.Kinds(api.Settings{
		EventTTL: c.EventTTL, Authenticator: o.access.authenticator, Authorizer: authz.AccessReviewer{Authorizers: o.access.authorizer},
		Metrics: streams.NewMetrics(o.proxy),
	})
	paths := map[string]http.Handler{
		authn.OpenIDConfigurationPath: o.access.discovery,
		authn.JWKSPath:                o.access.discovery,
	}
	for path, handler := range o.paths {
		paths[path] = handler
	}
	addDebugging(paths, c, o.logLevel)
	addFairnessDumps(paths, o.access.fairness)
	origins, err := c.HTTP.CORSOrigins()
	if err != nil {
		return nil, nil, err
	}
	disabled, err := disabledResources(c.RuntimeConfig, kinds)
	if err != nil {
		return nil, nil, err
	}
	documents := openAPIDocuments(kinds, disabled)
	pages := apiserver.ZPages{Statusz: c.FeatureGates.Enabled(config.GateComponentStatusz)}
	if c.FeatureGates.Enabled(config.GateComponentFlagz) {
		pages.Flags = o.flags
	}
	o.registry.MustRegister(o.access.metrics...)
	server, err := apiserver.New(apiserver.Config{
		Kinds:         kinds,
		Scheme:        api.Scheme(),
		Cache:         o.cache,
		Authenticator: o.access.authenticator,
		Authorizer:    o.access.authorizer,
		Impersonate:   o.access.impersonation.Impersonate,
		CheckWrite:    o.access.escalation.Check,
		ValidateWrite: o.access.fieldAccess.Check,
		Tokens:        o.access.issuer,
		Components: func(ctx context.Context) []kind.ComponentHealth {
			return []kind.ComponentHealth{{Name: "etcd-0", Message: "ok", Err: o.storeHealthy(ctx)}}
		},
		Connectors: streams.New(o.proxy),
		Paths:      paths,
		Admission:  o.access.admission,
		OpenAPI:    documents,
		Disabled:   disabled,
		Priority: func(gv schema.GroupVersion) apiserver.Priority {
			return apiserver.Priority(apiregistration.PriorityOf(gv))
		},
		TypeConverter: o.access.typeConverter,
		Version:       version.Info(),
		Limits: apiserver.Limits{
			ReadOnly: unlimited(c.Limits.MaxRequestsInflight), Mutating: unlimited(c.Limits.MaxMutatingRequestsInflight), Timeout: c.RequestTimeout,
			WatchTimeout: time.Duration(c.HTTP.MinRequestTimeout) * time.Second,
		},
		Headers:  apiserver.ResponseHeaders{AllowedOrigins: origins, HSTS: c.HTTP.HSTSDirectives, GoawayChance: c.HTTP.GoawayChance},
		ZPages:   pages,
		Fairness: o.access.fairness,
		Tracing:  o.tracing,
		Audit:    o.access.auditor,
		Checks:   o.checks,
		Registry: o.registry, LibraryMetrics: libraryMetrics(c.Etcd),
		Log: log.With("component", "apiserver"),
	})
	if err != nil {
		return nil, nil, err
	}
	o.access.attach(server)
	o.registry.MustRegister(o.access.webhooks.metrics, o.access.webhooks.admissionMetrics)
	o.registry.MustRegister(o.access.matchConditions)
	return server, documents, nil
}

// disabledResources are the resources that --runtime-config disables.
func disabledResources(c config.RuntimeConfig, kinds []*kind.Kind) (map[schema.GroupVersionResource]bool, error) {
	var all []schema.GroupVersionResource
	for _, k := range kinds {
		for i := range k.Versions {
			all = append(all, k.Versions[i].GVK.GroupVersion().WithResource(k.Plural))
		}
	}
	return c.Disabled(all)
}

// openAPIDocuments are the OpenAPI documents of the resources that are served.
func openAPIDocuments(kinds []*kind.Kind, disabled map[schema.GroupVersionResource]bool) *openapi.Documents {
	var served []*kind.Kind
	for _, k := range kinds {
		enabled := *k
		enabled.Versions = slices.DeleteFunc(slices.Clone(k.Versions), func(v kind.Version) bool {
			return disabled[v.GVK.GroupVersion().WithResource(k.Plural)]
		})
		if len(enabled.Versions) > 0 {
			served = append(served, &enabled)
		}
	}
	return openapi.New(served, version.Info().GitVersion)
}

// unlimited turns the limit of a flag, where 0 means none, into one of the API server, where that is -1.
func unlimited(limit int) int {
	if limit == 0 {
		return -1
	}
	return limit
}

// defaultMaxStreams is the limit of streams of an HTTP/2 connection that upstream uses when none is set.
const defaultMaxStreams = 100

// newHTTPServer is the HTTP server of the API.
func newHTTPServer(handler http.Handler, secure *tls.Config, maxStreams int) *http.Server {
	return &http.Server{
		Handler:           handler,
		TLSConfig:         secure,
		ReadHeaderTimeout: 30 * time.Second,
		IdleTimeout:       3 * time.Minute,
		MaxHeaderBytes:    1 << 20,
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: cmp.Or(maxStreams, defaultMaxStreams)},
		// Errors of clients while they connect are not the server's.
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug),
	}
}
