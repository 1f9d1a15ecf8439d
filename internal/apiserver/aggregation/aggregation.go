// Package aggregation serves the group versions of aggregated API servers. It follows the APIServices in the server's own cache, passes
// requests on to the Services that they name, and adds what the aggregated servers serve to discovery and OpenAPI. It runs inside every API
// server and writes nothing; the status of APIServices is maintained by package controllers/apiservice.
//
// An aggregated server is trusted with nothing but its group version. What it responds to the API server itself is bounded in time and size,
// and an invalid response concerns that group version only.
package aggregation

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"
	"k8s.io/utils/ptr"

	"skiff/internal/apiserver"
	"skiff/internal/openapi"
	"skiff/internal/webhook"
)

type apiService = apiregistrationv1.APIService

var apiServices = apiregistrationv1.SchemeGroupVersion.WithResource("apiservices")

// The number of aggregated servers from which documents are downloaded at the same time.
const (
	discoveryWorkers = 4
	openAPIWorkers   = 2
)

// refreshInterval is the time after which a document is requested again.
const refreshInterval = time.Minute

// Config is what the aggregation needs.
type Config struct {
	Server *apiserver.Server
	// Local reads the APIServices.
	Local *apiserver.Local
	// OpenAPI has the documents of aggregated servers.
	OpenAPI *openapi.Documents
	// Clients connects to Services.
	Clients *webhook.Clients
	// ClientCertificate proves to aggregated servers that the request comes from an API server, which has authenticated its user.
	ClientCertificate func(*tls.CertificateRequestInfo) (*tls.Certificate, error)
	// ForwardRedirects: redirects of aggregated servers are returned to the client. They are never followed.
	ForwardRedirects bool
	// Metrics count connections that fail because of the server's certificate.
	Metrics *webhook.CertificateMetrics
	// OnRegistered is called once, when all APIServices that existed at the start are known; OnDiscovered when the discovery of each of
	// them was requested, or after discoveryTimeout: servers that do not respond must not keep the API server from being ready.
	OnRegistered, OnDiscovered func()
	Log                        *slog.Logger
}

// Aggregation serves aggregated group versions.
type Aggregation struct {
	Config
	// discovery and openAPI are the names of APIServices whose documents have to be downloaded. Run makes the queues.
	discovery, openAPI workqueue.TypedRateLimitingInterface[string]

	mu sync.Mutex
	// backends are the servers of all APIServices, by name. They are nil for local ones.
	backends map[string]*backend
	// undiscovered are the APIServices at the start whose discovery has not been requested. It is nil before they are known, and
	// onDiscovered is called when it is empty, at the latest by timeout.
	undiscovered map[string]bool
	onDiscovered func()
	timeout      *time.Timer
}

// backend is an aggregated server as an APIService registers it. It is replaced when the APIService changes.
type backend struct {
	name      string
	gv        schema.GroupVersion
	spec      apiregistrationv1.APIServiceSpec
	available bool
	// transport is nil if transportErr is set.
	transport    *webhook.ServiceTransport
	transportErr error

	// What was downloaded last. Aggregation.mu guards it.
	discovered *discovered
	published  *published
}

// New returns an aggregation that serves nothing before Run.
func New(c Config) *Aggregation {
	return &Aggregation{Config: c, backends: map[string]*backend{}, onDiscovered: sync.OnceFunc(c.OnDiscovered)}
}

// Run follows the APIServices until ctx is done.
func (a *Aggregation) Run(ctx context.Context) error {
	a.discovery = newQueue("discovery-manager", minDiscoveryRetry, refreshInterval)
	a.openAPI = newQueue("open_api_aggregation_controller", refreshInterval, maxOpenAPIRetry)
	var running sync.WaitGroup
	for range discoveryWorkers {
		running.Go(func() { work(ctx, a.discovery, a.syncDiscovery) })
	}
	for range openAPIWorkers {
		running.Go(func() { work(ctx, a.openAPI, a.syncOpenAPI) })
	}
	registered := sync.OnceFunc(a.OnRegistered)
	apiserver.Follow(ctx, a.Local, apiServices, apiserver.FollowHandler[*apiService]{
		Apply: a.apply, Remove: func(name string, _ types.UID) { a.remove(name) },
		Synced: func() {
			registered()
			a.awaitDiscovery()
		},
		Fail: func(err error, retry time.Duration) {
			a.Log.Warn("failed to watch APIServices", "error", err, "retry", retry.String())
		},
	})
	a.discovery.ShutDown()
	a.openAPI.ShutDown()
	running.Wait()
	a.stopWaiting()
	a.removeAll()
	return nil
}

// stopWaiting stops what awaitDiscovery began.
func (a *Aggregation) stopWaiting() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.timeout != nil {
		a.timeout.Stop()
	}
}

func newQueue(name string, minRetry, maxRetry time.Duration) workqueue.TypedRateLimitingInterface[string] {
	return workqueue.NewTypedRateLimitingQueueWithConfig(
		workqueue.NewTypedItemExponentialFailureRateLimiter[string](minRetry, maxRetry), workqueue.TypedRateLimitingQueueConfig[string]{Name: name})
}

// work processes the names in a queue until it is shut down. sync reports whether the APIService still exists.
func work(ctx context.Context, queue workqueue.TypedRateLimitingInterface[string], sync func(ctx context.Context, name string) (exists bool, err error)) {
	for {
		name, stopped := queue.Get()
		if stopped {
			return
		}
		exists, err := recovered(ctx, name, sync)
		switch {
		case err != nil:
			queue.AddRateLimited(name)
		default:
			queue.Forget(name)
			if exists {
				queue.AddAfter(name, refreshInterval)
			}
		}
		queue.Done(name)
	}
}

// recovered calls sync. A document that makes a library panic must not end the process.
func recovered(ctx context.Context, name string, sync func(ctx context.Context, name string) (exists bool, err error)) (exists bool, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			exists, err = true, fmt.Errorf("panic: %v", cause)
		}
	}()
	return sync(ctx, name)
}

// find returns the server of an APIService, nil if there is none.
func (a *Aggregation) find(name string) *backend {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.backends[name]
}

func (a *Aggregation) set(name string, b *backend) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.backends[name] = b
}

// apply serves an APIService in its current state. Only the goroutine of Run calls it.
func (a *Aggregation) apply(service *apiService) {
	old := a.find(service.Name)
	if service.Spec.Service == nil {
		a.set(service.Name, nil)
		a.Server.SetAPIService(helper.APIServiceNameToGroupVersion(service.Name), &apiserver.APIService{Priority: priorityOf(&service.Spec)})
		a.release(old)
		return
	}
	next := &backend{name: service.Name, gv: helper.APIServiceNameToGroupVersion(service.Name), spec: service.Spec, available: helper.IsAPIServiceConditionTrue(service, apiregistrationv1.Available)}
	if old != nil && old.available == next.available && equality.Semantic.DeepEqual(old.spec, next.spec) {
		return
	}
	reconnect := old == nil || !sameServer(&old.spec, &next.spec)
	if reconnect {
		next.transport, next.transportErr = a.newTransport(&next.spec)
	} else {
		next.transport, next.transportErr = old.transport, old.transportErr
	}
	a.replace(old, next)
	if reconnect {
		a.release(old)
	}
	for _, queue := range []workqueue.TypedRateLimitingInterface[string]{a.discovery, a.openAPI} {
		queue.Forget(service.Name)
		queue.Add(service.Name)
	}
}

// replace publishes a new state of an APIService. What was downloaded before remains until it is downloaded again.
func (a *Aggregation) replace(old, next *backend) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if old != nil {
		next.discovered, next.published = old.discovered, old.published
	}
	a.backends[next.name] = next
	a.publishDiscovery(next)
	if next.published == nil {
		a.OpenAPI.SetAggregated(next.gv, &openapi.Aggregated{})
	}
}

// publishDiscovery makes the server's description of its group version part of discovery. mu must be held.
func (a *Aggregation) publishDiscovery(b *backend) {
	entry := &apidiscoveryv2.APIVersionDiscovery{Version: b.gv.Version, Freshness: apidiscoveryv2.DiscoveryFreshnessStale}
	if b.discovered != nil {
		entry = b.discovered.entry
	}
	a.Server.SetAPIService(b.gv, &apiserver.APIService{Priority: priorityOf(&b.spec), Proxy: a.proxyTo(b), Discovery: entry})
}

// remove stops serving an APIService.
func (a *Aggregation) remove(name string) {
	a.mu.Lock()
	old := a.backends[name]
	delete(a.backends, name)
	a.mu.Unlock()
	a.Server.SetAPIService(helper.APIServiceNameToGroupVersion(name), nil)
	a.release(old)
}

// release ends the use of an aggregated server.
func (a *Aggregation) release(old *backend) {
	if old == nil {
		return
	}
	if a.find(old.name) == nil {
		a.OpenAPI.SetAggregated(old.gv, nil)
	}
	if old.transport != nil {
		old.transport.Close()
	}
}

// removeAll stops serving all APIServices.
func (a *Aggregation) removeAll() {
	a.mu.Lock()
	names := slices.Collect(maps.Keys(a.backends))
	a.mu.Unlock()
	for _, name := range names {
		a.remove(name)
	}
}

// awaitDiscovery notes the aggregated servers that exist at the start.
func (a *Aggregation) awaitDiscovery() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.undiscovered != nil {
		return
	}
	a.undiscovered = map[string]bool{}
	for name, b := range a.backends {
		if b != nil && b.discovered == nil {
			a.undiscovered[name] = true
		}
	}
	if len(a.undiscovered) == 0 {
		a.onDiscovered()
		return
	}
	a.timeout = time.AfterFunc(discoveryTimeout, a.onDiscovered)
}

// setRequested notes that the discovery of an APIService was requested. mu must be held.
func (a *Aggregation) setRequested(name string) {
	if !a.undiscovered[name] {
		return
	}
	delete(a.undiscovered, name)
	if len(a.undiscovered) == 0 {
		a.onDiscovered()
	}
}

func (a *Aggregation) newTransport(spec *apiregistrationv1.APIServiceSpec) (*webhook.ServiceTransport, error) {
	return a.Clients.NewServiceTransport(webhook.ServiceConfig{
		Service:  webhook.ServiceReference{Namespace: spec.Service.Namespace, Name: spec.Service.Name, Port: ptr.Deref(spec.Service.Port, 443)},
		CABundle: spec.CABundle, InsecureSkipTLSVerify: spec.InsecureSkipTLSVerify, ClientCertificate: a.ClientCertificate, Metrics: a.Metrics,
	})
}

// sameServer reports whether two specifications mean the same connection.
func sameServer(a, b *apiregistrationv1.APIServiceSpec) bool {
	return equality.Semantic.DeepEqual(a.Service, b.Service) && string(a.CABundle) == string(b.CABundle) && a.InsecureSkipTLSVerify == b.InsecureSkipTLSVerify
}

func priorityOf(spec *apiregistrationv1.APIServiceSpec) apiserver.Priority {
	return apiserver.Priority{Group: spec.GroupPriorityMinimum, Version: spec.VersionPriority}
}
