// Package webhook is the one place from which the API server calls webhooks: for admission, for the conversion of custom resources, and for
// authentication, authorization and audit, whose address is in a kubeconfig file.
//
// A webhook is not trusted. Its certificate must be valid for its name. Redirects are not followed. The time of a call, the size of the
// response and the number of connections that are kept are bounded.
//
// Services says how the API server reaches the pods behind a Service.
package webhook

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"
	"k8s.io/utils/lru"
	"k8s.io/utils/ptr"

	"skiff/internal/egress"
)

const (
	// maxTransports bounds the webhooks with open connections. The connections of the one that was not called for the longest time are
	// closed first.
	maxTransports = 200
	// maxIdleConnections bounds the idle connections to one address.
	maxIdleConnections = 25
	// callTimeout bounds a call whose context has no earlier deadline.
	callTimeout = 30 * time.Second
	userAgent   = "kube-apiserver-admission"
)

// ClientConfig says where a webhook is: exactly one of URL and Service is set.
type ClientConfig struct {
	URL     string
	Service *ServiceReference
	// CABundle verifies the webhook's certificate. Empty: the host's certificate authorities do.
	CABundle []byte
}

// ServiceReference is a port of a Service, and a path there.
type ServiceReference struct {
	Namespace, Name, Path string
	Port                  int32
}

// serverName is the name for which the webhook's certificate must be valid.
func (s *ServiceReference) serverName() string { return s.Name + "." + s.Namespace + ".svc" }

// AdmissionConfig is the ClientConfig of an admission webhook.
func AdmissionConfig(c *admissionregistrationv1.WebhookClientConfig) ClientConfig {
	return ClientConfig{URL: ptr.Deref(c.URL, ""), Service: newServiceReference((*serviceReference)(c.Service)), CABundle: c.CABundle}
}

// ConversionConfig is the ClientConfig of a conversion webhook. A bundle of white space is none.
func ConversionConfig(c *apiextensionsv1.WebhookClientConfig) ClientConfig {
	return ClientConfig{URL: ptr.Deref(c.URL, ""), Service: newServiceReference((*serviceReference)(c.Service)), CABundle: bytes.TrimSpace(c.CABundle)}
}

// serviceReference has the fields of the ServiceReferences of both API groups.
type serviceReference struct {
	Namespace, Name string
	Path            *string
	Port            *int32
}

func newServiceReference(s *serviceReference) *ServiceReference {
	if s == nil {
		return nil
	}
	return &ServiceReference{Namespace: s.Namespace, Name: s.Name, Path: ptr.Deref(s.Path, ""), Port: ptr.Deref(s.Port, 443)}
}

// Options are the dependencies of Clients.
type Options struct {
	// Services resolves the Services of webhooks.
	Services *Services
	// Egress selects the networks: the cluster's for Services, the control plane's for URLs. nil: the network of the host is used.
	Egress *egress.Selector
	// Credentials are those of the API server for webhooks. nil: it calls them without.
	Credentials *Credentials
	Metrics     *Metrics
}

// Clients makes the clients of webhooks. Webhooks at the same address share their connections.
type Clients struct {
	services    *Services
	egress      *egress.Selector
	credentials *Credentials
	metrics     *Metrics
	mu          sync.Mutex // guards adding a transport, so that there is one for each key
	transports  *lru.Cache // by transportKey; values are *pooled
}

// New makes a source of clients.
func New(o Options) *Clients {
	return &Clients{
		services: o.Services, egress: o.Egress, credentials: o.Credentials, metrics: o.Metrics,
		transports: lru.NewWithEvictionFunc(maxTransports, func(_ lru.Key, value any) { value.(*pooled).close() }),
	}
}

// WithCredentials makes clients that use other credentials, with connections of their own.
func (c *Clients) WithCredentials(credentials *Credentials) *Clients {
	return New(Options{Services: c.services, Egress: c.egress, Credentials: credentials, Metrics: c.metrics})
}

// pooled is a transport with its idle connections.
type pooled struct {
	http.RoundTripper
	base   *http.Transport
	closed atomic.Bool
}

// closeDelay is the time after which the connection of a call that has just ended is idle for sure.
const closeDelay = time.Second

// close closes the idle connections. Calls in flight finish, and close theirs.
func (p *pooled) close() {
	p.closed.Store(true)
	p.base.CloseIdleConnections()
	time.AfterFunc(closeDelay, p.base.CloseIdleConnections)
}

// release ends a call.
func (p *pooled) release() {
	if p.closed.Load() {
		p.close()
	}
}

// transportKey identifies the webhooks that share connections.
type transportKey struct{ address, caBundle string }

// Client calls one webhook.
type Client struct {
	clients *Clients
	config  ClientConfig
	key     transportKey
	url     url.URL
	// maxResponse bounds the size of a response in bytes.
	maxResponse int64
}

// NewClient makes the client of a webhook. It connects at the first call.
func (c *Clients) NewClient(config ClientConfig, maxResponse int64) (*Client, error) {
	client := &Client{clients: c, config: config, maxResponse: maxResponse}
	switch {
	case config.Service != nil:
		s := config.Service
		client.url = url.URL{Scheme: "https", Host: net.JoinHostPort(s.serverName(), strconv.Itoa(int(s.Port))), Path: s.Path}
		client.key = transportKey{"service " + client.url.Host, string(config.CABundle)}
	case config.URL != "":
		u, err := url.Parse(config.URL)
		if err != nil {
			return nil, fmt.Errorf("parse the URL of the webhook: %w", err)
		}
		client.url = url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}
		client.key = transportKey{u.Scheme + "://" + u.Host, string(config.CABundle)}
	default:
		return nil, errors.New("webhook configuration must have either service or URL")
	}
	return client, nil
}

// Close closes the connections to the webhook. Others at the same address connect again.
func (c *Client) Close() { c.clients.transports.Remove(c.key) }

// transport returns the shared transport.
func (c *Client) transport() (*pooled, error) {
	c.clients.mu.Lock()
	defer c.clients.mu.Unlock()
	if shared, ok := c.clients.transports.Get(c.key); ok {
		return shared.(*pooled), nil
	}
	made, err := c.newTransport()
	if err != nil {
		return nil, err
	}
	c.clients.transports.Add(c.key, made)
	return made, nil
}

func (c *Client) newTransport() (*pooled, error) {
	target := c.url.Host
	if c.url.Port() == "" {
		target = net.JoinHostPort(c.url.Hostname(), "443")
	}
	config, err := c.clients.credentials.forTarget(target)
	if err != nil {
		return nil, err
	}
	config.UserAgent = userAgent
	config.TLSClientConfig.CAData = c.config.CABundle
	base := &http.Transport{
		DialContext:            (&net.Dialer{Timeout: callTimeout, KeepAlive: 30 * time.Second}).DialContext,
		TLSHandshakeTimeout:    10 * time.Second,
		MaxIdleConnsPerHost:    maxIdleConnections,
		IdleConnTimeout:        90 * time.Second,
		MaxResponseHeaderBytes: 64 << 10,
	}
	var inner http.RoundTripper = base
	switch {
	case c.config.Service != nil:
		config.TLSClientConfig.ServerName = c.config.Service.serverName()
		if dial := c.clients.egress.Dialer(egress.Cluster); dial != nil {
			base.DialContext = dial
		}
		if dial := c.clients.services.Dial; dial != nil {
			base.DialContext = DialEndpoint(dial, base.DialContext)
		}
		inner = &resolver{RoundTripper: base, services: c.clients.services, reference: c.config.Service}
	case c.clients.egress.Dialer(egress.ControlPlane) != nil:
		base.DialContext = c.clients.egress.Dialer(egress.ControlPlane)
	default:
		base.Proxy = http.ProxyFromEnvironment
	}
	// The requests of one HTTP/2 connection would all go to the same backend of a load balancer.
	if c.config.Service != nil || !isLoopback(c.url.Hostname()) {
		config.TLSClientConfig.NextProtos = []string{"http/1.1"}
	} else {
		base.ForceAttemptHTTP2 = true
	}
	wrapped, err := withCredentials(config, base, inner)
	if err != nil {
		return nil, err
	}
	return &pooled{RoundTripper: &certificateCounter{wrapped, c.clients.metrics.CertificateMetrics}, base: base}, nil
}

// withCredentials sets the TLS configuration of base, and adds the other credentials to the requests of inner.
func withCredentials(config *rest.Config, base *http.Transport, inner http.RoundTripper) (http.RoundTripper, error) {
	settings, err := config.TransportConfig()
	if err != nil {
		return nil, err
	}
	if base.TLSClientConfig, err = transport.TLSConfigFor(settings); err != nil {
		return nil, err
	}
	return transport.HTTPWrappersForConfig(settings, inner)
}

func isLoopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	address, err := netip.ParseAddr(host)
	return err == nil && address.IsLoopback()
}

// resolver sends each request to an endpoint of the Service. Connections are kept for each endpoint.
type resolver struct {
	http.RoundTripper
	services  *Services
	reference *ServiceReference
}

func (r *resolver) RoundTrip(request *http.Request) (*http.Response, error) {
	endpoint, err := r.services.Resolve(request.Context(), r.reference.Namespace, r.reference.Name, r.reference.Port)
	if err != nil {
		return nil, err
	}
	resolved := request.Clone(WithEndpoint(request.Context(), endpoint))
	if resolved.Host == "" {
		resolved.Host = request.URL.Host
	}
	resolved.URL.Host = endpoint.Address
	return r.RoundTripper.RoundTrip(resolved)
}

// endpointKey is the context key of the resolved Endpoint.
type endpointKey struct{}

// WithEndpoint returns a context for requests to an endpoint, which DialEndpoint dials.
func WithEndpoint(ctx context.Context, e Endpoint) context.Context {
	return context.WithValue(ctx, endpointKey{}, e)
}

type dialContext = func(ctx context.Context, network, address string) (net.Conn, error)

// DialEndpoint dials the endpoint of the request's context with dial, and everything else with fallback.
func DialEndpoint(dial func(context.Context, Endpoint) (net.Conn, error), fallback dialContext) dialContext {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		if endpoint, ok := ctx.Value(endpointKey{}).(Endpoint); ok && endpoint.Address == address {
			return dial(ctx, endpoint)
		}
		return fallback(ctx, network, address)
	}
}
