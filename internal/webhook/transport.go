package webhook

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"time"

	"skiff/internal/egress"
)

// upgradeTimeout bounds how long a server may take to upgrade a connection. The connection then lasts as long as its two sides want.
const upgradeTimeout = time.Minute

// ServiceConfig says how a server behind a Service is reached.
type ServiceConfig struct {
	Service ServiceReference
	// CABundle verifies the server's certificate. Empty: the host's certificate authorities do.
	CABundle []byte
	// InsecureSkipTLSVerify: the server's certificate is not verified, as the one who registered the server wants it.
	InsecureSkipTLSVerify bool
	// ClientCertificate is the certificate that the API server presents. nil: none.
	ClientCertificate func(*tls.CertificateRequestInfo) (*tls.Certificate, error)
	// Metrics may be nil.
	Metrics *CertificateMetrics
}

// ServiceTransport sends requests to the endpoints of a Service. A request is sent to the endpoint that Resolve picked for it. Requests to
// upgrade a connection use HTTP/1.1, all others HTTP/2 if the server has it.
type ServiceTransport struct {
	services              *Services
	reference             ServiceReference
	multiplexed, upgrades *http.Transport
	counter               *CertificateMetrics
}

// NewServiceTransport makes a transport. It connects at the first request.
func (c *Clients) NewServiceTransport(config ServiceConfig) (*ServiceTransport, error) {
	secure := &tls.Config{
		MinVersion: tls.VersionTLS12, ServerName: config.Service.serverName(), InsecureSkipVerify: config.InsecureSkipTLSVerify,
		GetClientCertificate: config.ClientCertificate,
	}
	if len(config.CABundle) > 0 {
		secure.RootCAs = x509.NewCertPool()
		if !secure.RootCAs.AppendCertsFromPEM(config.CABundle) {
			return nil, errors.New("unable to load root certificates: unable to parse bytes as PEM block")
		}
	}
	t := &ServiceTransport{services: c.services, reference: config.Service, counter: config.Metrics}
	t.multiplexed, t.upgrades = c.serviceTransport(secure.Clone()), c.serviceTransport(secure)
	t.multiplexed.ForceAttemptHTTP2 = true
	// A connection that has been cut must not make all its requests wait.
	t.multiplexed.HTTP2 = &http.HTTP2Config{SendPingTimeout: 30 * time.Second, PingTimeout: 15 * time.Second}
	t.upgrades.ResponseHeaderTimeout = upgradeTimeout
	t.upgrades.TLSClientConfig.NextProtos = []string{"http/1.1"}
	t.upgrades.TLSNextProto = map[string]func(string, *tls.Conn) http.RoundTripper{}
	return t, nil
}

// serviceTransport makes one of the transports to a Service.
func (c *Clients) serviceTransport(secure *tls.Config) *http.Transport {
	base := &http.Transport{
		DialContext:            (&net.Dialer{Timeout: callTimeout, KeepAlive: 30 * time.Second}).DialContext,
		TLSClientConfig:        secure,
		TLSHandshakeTimeout:    10 * time.Second,
		MaxIdleConnsPerHost:    maxIdleConnections,
		IdleConnTimeout:        90 * time.Second,
		MaxResponseHeaderBytes: 64 << 10,
	}
	if dial := c.egress.Dialer(egress.Cluster); dial != nil {
		base.DialContext = dial
	}
	if dial := c.services.Dial; dial != nil {
		base.DialContext = DialEndpoint(dial, base.DialContext)
	}
	return base
}

// Resolve picks an endpoint for a request. The URL of the request must have the host that is returned, and its context must be the one that
// is returned.
func (t *ServiceTransport) Resolve(ctx context.Context) (_ context.Context, host string, err error) {
	endpoint, err := t.services.Resolve(ctx, t.reference.Namespace, t.reference.Name, t.reference.Port)
	if err != nil {
		return ctx, "", err
	}
	return WithEndpoint(ctx, endpoint), endpoint.Address, nil
}

// RoundTrip implements http.RoundTripper.
func (t *ServiceTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	over := t.multiplexed
	if r.Header.Get("Upgrade") != "" {
		over = t.upgrades
	}
	if t.counter == nil {
		return over.RoundTrip(r)
	}
	return (&certificateCounter{over, t.counter}).RoundTrip(r)
}

// Close closes the connections that are not in use. Requests in flight finish; their connections are closed when they have been idle for some
// time.
func (t *ServiceTransport) Close() {
	for _, base := range []*http.Transport{t.multiplexed, t.upgrades} {
		base.CloseIdleConnections()
		time.AfterFunc(closeDelay, base.CloseIdleConnections)
	}
}
