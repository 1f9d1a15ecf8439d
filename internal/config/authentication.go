package config

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// Authentication configures the credentials that are accepted, with upstream's meanings.
type Authentication struct {
	// ServiceAccounts are the tokens of service accounts. Audiences are the server's own names and default to the issuers.
	ServiceAccounts ServiceAccountTokens
	Audiences       []string
	// ClientCAFile has CAs of client certificates, besides the cluster's own CA.
	ClientCAFile      string
	RequestHeader     RequestHeader
	OIDC              OIDC
	TokenFile         string
	PasswordFile      string
	BootstrapTokens   bool
	WebhookConfigFile string
	// WebhookVersion is the API version of the TokenReviews that are sent. WebhookCacheTTL is how long responses are cached.
	WebhookVersion  string
	WebhookCacheTTL time.Duration
	// File is an AuthenticationConfiguration.
	File      string
	Anonymous bool
	// AnonymousGiven is set by --anonymous-auth: it must not contradict File.
	AnonymousGiven bool
}

// ServiceAccountTokens configures the tokens of service accounts.
type ServiceAccountTokens struct {
	// Issuers are the accepted issuers. The first one issues tokens.
	Issuers []string
	// JWKSURI replaces the URL of the keys in the discovery document of the issuer.
	JWKSURI string
	// SigningKeyFile is the private key that signs tokens. Empty: a key in the data directory.
	SigningKeyFile string
	// KeyFiles hold further public keys that verify tokens, besides the one that signs.
	KeyFiles []string
	// Lookup checks that the tokens that are stored in secrets still exist.
	Lookup bool
	// MaxExpiration limits the lifetime that clients may request for tokens. 0 means no limit.
	MaxExpiration time.Duration
	Extend        bool
}

// OIDC configures one identity provider, as an alternative to an AuthenticationConfiguration.
type OIDC struct {
	IssuerURL, ClientID, CAFile, UsernameClaim, UsernamePrefix, GroupsClaim, GroupsPrefix string
	SigningAlgs                                                                           []string
	RequiredClaims                                                                        map[string]string
	// Given is set by every --oidc flag.
	Given bool
}

func defaultAuthentication() Authentication {
	return Authentication{
		ServiceAccounts: ServiceAccountTokens{Issuers: []string{"https://kubernetes.default.svc.cluster.local"}, Lookup: true, Extend: true},
		OIDC:            OIDC{UsernameClaim: "sub", SigningAlgs: []string{"RS256"}},
		RequestHeader:   defaultRequestHeader(),
		BootstrapTokens: true,
		WebhookVersion:  "v1beta1",
		WebhookCacheTTL: 2 * time.Minute,
		Anonymous:       true,
	}
}

func (c *Authentication) flags(groups *FlagGroups) {
	fs := groups.Common(groupAuthentication)
	fs.StringVar(&c.File, "authentication-config", c.File, "Path to an AuthenticationConfiguration file, which configures OIDC issuers and anonymous access.")
	fs.BoolVar(&c.Anonymous, "anonymous-auth", c.Anonymous, "Serve requests without credentials as system:anonymous.")
	trackGiven(fs, "anonymous-auth", &c.AnonymousGiven)
	fs.StringVar(&c.WebhookConfigFile, "authentication-token-webhook-config-file", c.WebhookConfigFile,
		"Path to a kubeconfig file for the webhook that reviews bearer tokens.")
	fs = groups.Advanced(groupAuthentication)
	fs.StringVar(&c.WebhookVersion, "authentication-token-webhook-version", c.WebhookVersion, "API version of the TokenReviews that are sent to the webhook: v1 or v1beta1.")
	fs.DurationVar(&c.WebhookCacheTTL, "authentication-token-webhook-cache-ttl", c.WebhookCacheTTL, "Time to cache responses of the webhook.")
	fs.StringVar(&c.TokenFile, "token-auth-file", c.TokenFile, "Path to a CSV file of static bearer tokens: token,user,uid,\"groups\".")
	fs.StringVar(&c.PasswordFile, "basic-auth-file", c.PasswordFile, "Path to a file of users and bcrypt passwords. Without it basic authentication is disabled.")
	fs.BoolVar(&c.BootstrapTokens, "enable-bootstrap-token-auth", c.BootstrapTokens, "Accept bootstrap tokens, with which new nodes join.")
	listVar(fs, &c.Audiences, "api-audiences", "Audiences of tokens that this API server accepts, separated by commas. Defaults to --service-account-issuer.")
	fs.StringVar(&c.ClientCAFile, "client-ca-file", c.ClientCAFile,
		"Path to CA certificates that sign the client certificates of users, besides the cluster's own CA. It is reloaded when it changes.")
	c.RequestHeader.flags(fs)
	c.ServiceAccounts.flags(fs)
	c.OIDC.flags(fs)
}

func (c *ServiceAccountTokens) flags(fs *pflag.FlagSet) {
	fs.StringArrayVar(&c.Issuers, "service-account-issuer", c.Issuers,
		"Issuer of service account tokens. Can be repeated: the first one issues tokens, all are accepted.")
	fs.StringVar(&c.JWKSURI, "service-account-jwks-uri", c.JWKSURI,
		"URL of the keys in the discovery document of the issuer. Defaults to this API server's own.")
	fs.StringVar(&c.SigningKeyFile, "service-account-signing-key-file", c.SigningKeyFile,
		"Path to the private key that signs service account tokens. Defaults to pki/service-account.key in --data-dir.")
	fs.StringArrayVar(&c.KeyFiles, "service-account-key-file", c.KeyFiles,
		"Path to keys that verify service account tokens, besides the signing key. Can be repeated: name the old key during rotation.")
	fs.BoolVar(&c.Lookup, "service-account-lookup", c.Lookup, "Accept a token that is stored in a secret only while the secret exists.")
	fs.DurationVar(&c.MaxExpiration, "service-account-max-token-expiration", c.MaxExpiration, "Maximum lifetime of a service account token. 0 means no limit.")
	fs.BoolVar(&c.Extend, "service-account-extend-token-expiration", c.Extend,
		"Extend the lifetime of the tokens that pods mount to one year, with a warning after the requested hour.")
}

func (c *OIDC) flags(fs *pflag.FlagSet) {
	fs.StringVar(&c.IssuerURL, "oidc-issuer-url", c.IssuerURL, "URL of the OpenID issuer, with scheme https, whose tokens are accepted.")
	fs.StringVar(&c.ClientID, "oidc-client-id", c.ClientID, "Client ID for which the OpenID issuer issues tokens. Required with --oidc-issuer-url.")
	fs.StringVar(&c.CAFile, "oidc-ca-file", c.CAFile, "Path to the CA certificate of the OpenID issuer. Defaults to the host's CAs.")
	fs.StringVar(&c.UsernameClaim, "oidc-username-claim", c.UsernameClaim, "Claim that holds the user name.")
	fs.StringVar(&c.UsernamePrefix, "oidc-username-prefix", c.UsernamePrefix,
		"Prefix of user names, or - for none. Defaults to the issuer URL and #, unless the claim is email.")
	fs.StringVar(&c.GroupsClaim, "oidc-groups-claim", c.GroupsClaim, "Claim that holds the user's groups, a string or an array of strings.")
	fs.StringVar(&c.GroupsPrefix, "oidc-groups-prefix", c.GroupsPrefix, "Prefix of groups.")
	fs.StringSliceVar(&c.SigningAlgs, "oidc-signing-algs", c.SigningAlgs,
		"Accepted signature algorithms: RS256, RS384, RS512, ES256, ES384, ES512, PS256, PS384, PS512.")
	fs.Var((*stringMap)(&c.RequiredClaims), "oidc-required-claim", "Claim and value, as key=value, that a token must have. Can be repeated.")
	fs.VisitAll(func(f *pflag.Flag) {
		if strings.HasPrefix(f.Name, "oidc-") {
			trackGiven(fs, f.Name, &c.Given)
		}
	})
}

// validate checks what can be checked without reading files.
func (c *Authentication) validate() error {
	errs := []error{c.ServiceAccounts.validate(), c.RequestHeader.validate()}
	switch {
	case c.OIDC.Given && c.File != "":
		errs = append(errs, errors.New("authentication-config file and oidc-* flags are mutually exclusive"))
	case c.OIDC.Given && (c.OIDC.IssuerURL == "" || c.OIDC.ClientID == ""):
		errs = append(errs, errors.New("oidc-issuer-url and oidc-client-id must be specified together when any oidc-* flags are set"))
	}
	if c.WebhookCacheTTL <= 0 {
		errs = append(errs, errors.New("--authentication-token-webhook-cache-ttl: must be positive"))
	}
	return errors.Join(errs...)
}

func (c *ServiceAccountTokens) validate() error {
	var errs []error
	seen := map[string]bool{}
	for _, issuer := range c.Issuers {
		switch _, err := url.Parse(issuer); {
		case issuer == "":
			errs = append(errs, errors.New("service-account-issuer should not be an empty string"))
		case strings.Contains(issuer, ":") && err != nil:
			errs = append(errs, fmt.Errorf("service-account-issuer %q contained a ':' but was not a valid URL: %w", issuer, err))
		case seen[issuer]:
			errs = append(errs, fmt.Errorf("service-account-issuer %q is already specified", issuer))
		}
		seen[issuer] = true
	}
	if len(c.Issuers) == 0 {
		errs = append(errs, errors.New("service-account-issuer is a required flag"))
	}
	if c.JWKSURI != "" {
		if u, err := url.Parse(c.JWKSURI); err != nil {
			errs = append(errs, fmt.Errorf("service-account-jwks-uri must be a valid URL: %w", err))
		} else if u.Scheme != "https" {
			errs = append(errs, fmt.Errorf("service-account-jwks-uri requires https scheme, parsed as: %v", u))
		}
	}
	return errors.Join(errs...)
}

// givenTracker is a flag that records that it was given.
type givenTracker struct {
	pflag.Value
	given *bool
}

// trackGiven sets given when the flag is given, also with its default value.
func trackGiven(fs *pflag.FlagSet, name string, given *bool) {
	f := fs.Lookup(name)
	f.Value = givenTracker{f.Value, given}
}

// Set implements pflag.Value.
func (t givenTracker) Set(text string) error {
	*t.given = true
	return t.Value.Set(text)
}

// stringMap is a flag that can be repeated, each time with one key=value.
type stringMap map[string]string

// String implements pflag.Value.
func (m *stringMap) String() string {
	return strings.Join(m.values(), ",")
}

// values are the pairs, each as Set takes it.
func (m *stringMap) values() []string {
	var pairs []string
	for _, key := range slices.Sorted(maps.Keys(*m)) {
		pairs = append(pairs, key+"="+(*m)[key])
	}
	return pairs
}

// Type implements pflag.Value; the help shows it.
func (*stringMap) Type() string { return "key=value" }

// Set implements pflag.Value.
func (m *stringMap) Set(text string) error {
	key, value, ok := strings.Cut(text, "=")
	if !ok {
		return errors.New("malformed pair, expect string=string")
	}
	if *m == nil {
		*m = stringMap{}
	}
	(*m)[strings.TrimSpace(key)] = strings.TrimSpace(value)
	return nil
}
