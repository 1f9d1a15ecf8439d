package pki

import (
	"crypto/tls"
	"crypto/x509"
	"slices"
	"sync/atomic"
)

// TrustedCAs are CA certificates to verify with. *CA and *CABundle implement it.
type TrustedCAs interface {
	// Pool returns the certificates as a pool. Other certificates are in another pool.
	Pool() *x509.CertPool
	certificates() []*x509.Certificate
}

// ServerTLS returns the TLS configuration of a server. It requests client certificates, naming the given CAs as a hint, but does not verify
// them: the authenticators do, so that a client with an expired certificate gets a readable response.
func ServerTLS(get GetCertificate, clients ...TrustedCAs) *tls.Config {
	base := &tls.Config{
		MinVersion:     tls.VersionTLS12,
		GetCertificate: get,
		ClientAuth:     tls.RequestClientCert,
		NextProtos:     []string{"h2", "http/1.1"},
		// Small first records let a browser show something sooner. API clients only pay for more records.
		DynamicRecordSizingDisabled: true,
	}
	base.GetConfigForClient = hintClientCAs(base, clients)
	return base
}

// hintedConfig is a configuration that names the CAs of certain pools.
type hintedConfig struct {
	pools  []*x509.CertPool
	config *tls.Config
}

// hintClientCAs returns a function that adds the current CAs to the configuration. The same configuration is returned until the CAs change,
// so that sessions can be resumed.
func hintClientCAs(base *tls.Config, clients []TrustedCAs) func(*tls.ClientHelloInfo) (*tls.Config, error) {
	var current atomic.Pointer[hintedConfig]
	return func(*tls.ClientHelloInfo) (*tls.Config, error) {
		pools := make([]*x509.CertPool, len(clients))
		for i, cas := range clients {
			pools[i] = cas.Pool()
		}
		if hinted := current.Load(); hinted != nil && slices.Equal(hinted.pools, pools) {
			return hinted.config, nil
		}
		config := base.Clone()
		config.GetConfigForClient, config.ClientCAs = nil, x509.NewCertPool()
		for _, cas := range clients {
			for _, cert := range cas.certificates() {
				config.ClientCAs.AddCert(cert)
			}
		}
		current.Store(&hintedConfig{pools, config})
		return config, nil
	}
}
