package config

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/spf13/pflag"
)

// HTTP configures how HTTP requests are served, with upstream's meanings.
type HTTP struct {
	// DisableHTTP2 serves HTTP/1.1 only.
	DisableHTTP2 bool
	// PermitPortSharing and PermitAddressSharing are the socket options SO_REUSEPORT and SO_REUSEADDR.
	PermitPortSharing, PermitAddressSharing bool
	// ExternalHostname is the name of this server in URLs for clients. Empty: the advertised address.
	ExternalHostname string
	// CORSAllowedOrigins are regular expressions of the origins whose scripts browsers allow to read responses.
	CORSAllowedOrigins []string
	// HSTSDirectives are the values of the header Strict-Transport-Security.
	HSTSDirectives []string
	// GoawayChance is the probability with which a request over HTTP/2 closes its connection, so that clients connect to other servers.
	GoawayChance float64
	// MinRequestTimeout is the shortest duration of a watch without a timeout, in seconds.
	MinRequestTimeout int
}

// maxGoawayChance is one in fifty requests.
const maxGoawayChance = 0.02

func (c *HTTP) flags(fs *pflag.FlagSet) {
	fs.BoolVar(&c.DisableHTTP2, "disable-http2-serving", c.DisableHTTP2, "Serve HTTP/1.1 only.")
	fs.BoolVar(&c.PermitPortSharing, "permit-port-sharing", c.PermitPortSharing, "Listen with SO_REUSEPORT, so that several servers can use the same address and port.")
	fs.BoolVar(&c.PermitAddressSharing, "permit-address-sharing", c.PermitAddressSharing,
		"Listen with SO_REUSEADDR, so that a wildcard address and a specific one can be used in parallel.")
	fs.StringVar(&c.ExternalHostname, "external-hostname", c.ExternalHostname, "Host name of this server in the URLs of OpenID discovery. Defaults to the advertised address.")
	fs.StringSliceVar(&c.CORSAllowedOrigins, "cors-allowed-origins", c.CORSAllowedOrigins,
		"Regular expressions, separated by commas, of the origins that are allowed for CORS, such as ^https://example.org$. Without any, CORS is disabled.")
	fs.StringSliceVar(&c.HSTSDirectives, "strict-transport-security-directives", c.HSTSDirectives,
		"Directives of the header Strict-Transport-Security: max-age=SECONDS, includeSubDomains, preload. Without any, the header is not sent.")
	fs.Float64Var(&c.GoawayChance, "goaway-chance", c.GoawayChance,
		"Probability with which a request closes its HTTP/2 connection with GOAWAY, from 0 to 0.02, so that clients spread over several API servers.")
	fs.IntVar(&c.MinRequestTimeout, "min-request-timeout", c.MinRequestTimeout,
		"Minimum duration of a watch without timeout, in seconds. The actual duration is chosen at random between this and twice as long.")
}

func (c *HTTP) validate() error {
	var errs []error
	if c.GoawayChance < 0 || c.GoawayChance > maxGoawayChance {
		errs = append(errs, errors.New("--goaway-chance can not be less than 0 or greater than 0.02"))
	}
	if c.MinRequestTimeout < 0 {
		errs = append(errs, errors.New("--min-request-timeout can not be negative value"))
	} else if c.MinRequestTimeout == 0 {
		errs = append(errs, errors.New("--min-request-timeout: must be positive, because watches would end at once"))
	}
	for _, directive := range c.HSTSDirectives {
		name, _, valued := strings.Cut(directive, "=")
		switch {
		case strings.TrimSpace(directive) == "":
			errs = append(errs, errors.New("empty value in strict-transport-security-directives"))
		case directive == "includeSubDomains", directive == "preload", name == "max-age" && valued && strings.Count(directive, "=") == 1:
		default:
			errs = append(errs, errors.New("--strict-transport-security-directives invalid, allowed values: max-age=expireTime, includeSubDomains, preload. see https://tools.ietf.org/html/rfc6797#section-6.1 for more information"))
		}
	}
	for _, origin := range c.CORSAllowedOrigins {
		if err := validateOrigin(origin); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// validateOrigin checks that an expression is anchored at the start and the end of the host, so that it does not match longer names.
func validateOrigin(expression string) error {
	if expression == "" {
		return errors.New("empty value in --cors-allowed-origins")
	}
	if _, err := regexp.Compile(expression); err != nil {
		return fmt.Errorf("--cors-allowed-origins has an invalid regular expression: %w", err)
	}
	start := strings.Contains(expression, "^") || strings.Contains(expression, "//")
	if end := strings.ContainsAny(expression, "$:"); !start || !end {
		return errors.New("--cors-allowed-origins has an invalid regular expression: regular expression does not pin to start/end of host in the origin header")
	}
	return nil
}

// CORSOrigins are the compiled expressions of CORSAllowedOrigins.
func (c *HTTP) CORSOrigins() ([]*regexp.Regexp, error) {
	var origins []*regexp.Regexp
	for _, expression := range c.CORSAllowedOrigins {
		origin, err := regexp.Compile(expression)
		if err != nil {
			return nil, fmt.Errorf("--cors-allowed-origins has an invalid regular expression: %w", err)
		}
		origins = append(origins, origin)
	}
	return origins, nil
}
