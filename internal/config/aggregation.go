package config

import (
	"errors"

	"github.com/spf13/pflag"
)

// Aggregation configures how the API server passes requests on to aggregated API servers. Empty files mean a client certificate of the
// cluster's own front-proxy CA.
type Aggregation struct {
	CertFile, KeyFile string
	// RejectRedirects: a redirect of an aggregated server is answered with an error. It is never followed.
	RejectRedirects bool
}

func defaultAggregation() Aggregation { return Aggregation{RejectRedirects: true} }

func (c *Aggregation) flags(fs *pflag.FlagSet) {
	fs.StringVar(&c.CertFile, "proxy-client-cert-file", c.CertFile, "Path to the client certificate that proves to aggregated API servers that a request comes from an API server. Defaults to one of the cluster's front-proxy CA.")
	fs.StringVar(&c.KeyFile, "proxy-client-key-file", c.KeyFile, "Path to the private key of --proxy-client-cert-file.")
	fs.BoolVar(&c.RejectRedirects, "aggregator-reject-forwarding-redirect", c.RejectRedirects, "Reject redirects of aggregated API servers instead of returning them to the client.")
}

func (c *Aggregation) validate() error {
	if (c.CertFile == "") != (c.KeyFile == "") {
		return errors.New("--proxy-client-cert-file: certificate and key are needed together")
	}
	return nil
}
