package authn

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/validation"
	authenticationcel "k8s.io/apiserver/pkg/authentication/cel"

	"skiff/internal/configfile"
	"skiff/internal/egress"
)

// IdentityProviders authenticates the JWTs of external issuers, as configured by an AuthenticationConfiguration: OpenID
// Connect providers, and any other issuer that publishes its keys. Keys are fetched when the first token arrives.
type IdentityProviders struct {
	options       IdentityProvidersOptions
	configuration atomic.Pointer[Configuration]
	providers     atomic.Pointer[[]*identityProvider]
}

// IdentityProvidersOptions are the settings that are not in the AuthenticationConfiguration.
type IdentityProvidersOptions struct {
	// Algorithms are the signature algorithms tokens may use. Default: RS, PS and ES with 256, 384 and 512 bits.
	Algorithms []string
	// ServiceAccountIssuers are this server's own issuers. No identity provider may have the same URL.
	ServiceAccountIssuers []string
	// Egress has the networks that issuers can name. nil: they can name none.
	Egress *egress.Selector
	// Reloads counts the reloads of the configuration file. It may be nil.
	Reloads *configfile.Reloads
}

// NewIdentityProviders makes the authenticators of a configuration.
func NewIdentityProviders(c *Configuration, o IdentityProvidersOptions) (*IdentityProviders, error) {
	for _, algorithm := range o.Algorithms {
		if !slices.Contains(acceptedAlgorithms, jose.SignatureAlgorithm(algorithm)) {
			return nil, fmt.Errorf("oidc: unsupported signing alg: %q", algorithm)
		}
	}
	p := &IdentityProviders{options: o}
	return p, p.Replace(c)
}

// Replace changes to another configuration if it is valid.
func (p *IdentityProviders) Replace(c *Configuration) error {
	var providers []*identityProvider
	if len(c.JWT) > 0 || c.Anonymous != nil {
		compiler := authenticationcel.NewDefaultCompiler()
		if err := validation.ValidateAuthenticationConfiguration(compiler, c, p.options.ServiceAccountIssuers).ToAggregate(); err != nil {
			return fmt.Errorf("invalid authentication configuration: %w", err)
		}
		for _, config := range c.JWT {
			provider, err := newIdentityProvider(compiler, config, p.options)
			if err != nil {
				return err
			}
			providers = append(providers, provider)
		}
	}
	p.configuration.Store(c)
	p.providers.Store(&providers)
	return nil
}

// authenticate returns the user of a token, false if no provider has the URL of its issuer.
func (p *IdentityProviders) authenticate(ctx context.Context, token string) (User, bool, error) {
	providers := *p.providers.Load()
	if len(providers) == 0 {
		return User{}, false, nil
	}
	t, err := parseToken(token)
	if err != nil {
		return User{}, false, nil
	}
	issuer, err := unverifiedIssuer(t)
	if err != nil {
		return User{}, false, nil
	}
	for _, provider := range providers {
		if provider.config.Issuer.URL == issuer {
			user, err := provider.identify(ctx, t)
			return user, err == nil, err
		}
	}
	return User{}, false, nil
}

const (
	googleIssuer = "https://accounts.google.com"
	// googleIssuerShort is what Google sometimes sends instead.
	googleIssuerShort = "accounts.google.com"
)

// unverifiedIssuer is the issuer a token claims to have. It only selects the keys to verify the token with.
func unverifiedIssuer(t *unverifiedToken) (string, error) {
	var c struct {
		Issuer string `json:"iss"`
	}
	if err := decodeStrict(t.claims, &c); err != nil {
		return "", err
	}
	if c.Issuer == googleIssuerShort {
		return googleIssuer, nil
	}
	return c.Issuer, nil
}

// identityProvider is one JWT authenticator of the configuration.
type identityProvider struct {
	config     apiserver.JWTAuthenticator
	algorithms []string
	mapper     authenticationcel.CELMapper
	keys       *providerKeys
	groups     *distributedClaims // nil: groups are not mapped from a claim
}

func newIdentityProvider(compiler authenticationcel.Compiler, config apiserver.JWTAuthenticator, o IdentityProvidersOptions) (*identityProvider, error) {
	mapper, errs := validation.CompileAndValidateJWTAuthenticator(compiler, config, o.ServiceAccountIssuers)
	if err := errs.ToAggregate(); err != nil {
		return nil, err
	}
	var dial egress.DialFunc
	if network := string(config.Issuer.EgressSelectorType); network != "" {
		if !o.Egress.Has(network) {
			return nil, fmt.Errorf("oidc: egress lookup for %q is not configured", network)
		}
		dial = o.Egress.Dialer(network)
	}
	client, err := newProviderClient(config.Issuer.CertificateAuthority, dial)
	if err != nil {
		return nil, err
	}
	p := &identityProvider{
		config: config, algorithms: o.Algorithms, mapper: mapper,
		keys: newProviderKeys(client, config.Issuer.URL, config.Issuer.DiscoveryURL),
	}
	if claim := config.ClaimMappings.Groups.Claim; claim != "" {
		p.groups = &distributedClaims{claim: claim, client: client, issuers: map[string]*providerKeys{}}
	}
	return p, nil
}

// providerClaims are the claims of a token, each decoded on use.
type providerClaims map[string]json.RawMessage

func (c providerClaims) decode(name string, into any) error {
	raw, ok := c[name]
	if !ok {
		return errors.New("claim not present")
	}
	return json.Unmarshal(raw, into)
}

// identify verifies the token and maps its claims to a user.
func (p *identityProvider) identify(ctx context.Context, t *unverifiedToken) (User, error) {
	c, err := p.verify(ctx, t, p.keys)
	if err != nil {
		return User{}, fmt.Errorf("oidc: verify token: %w", err)
	}
	if p.groups != nil {
		if err := p.groups.resolve(ctx, p, c); err != nil {
			return User{}, fmt.Errorf("oidc: could not expand distributed claims: %w", err)
		}
	}
	e := newEvaluation(&p.mapper, c)
	user := User{}
	if user.Username, err = p.username(ctx, c, e); err != nil {
		return User{}, err
	}
	if user.Groups, err = p.userGroups(ctx, c, e); err != nil {
		return User{}, err
	}
	if user.UID, err = p.uid(ctx, c, e); err != nil {
		return User{}, err
	}
	if user.Extra, err = p.extra(ctx, c, e); err != nil {
		return User{}, err
	}
	if err := p.checkRules(ctx, c, e, &user); err != nil {
		return User{}, err
	}
	return user, nil
}

// verify checks algorithm, signature, issuer, audience, expiry and not-before.
func (p *identityProvider) verify(ctx context.Context, t *unverifiedToken, keys *providerKeys) (providerClaims, error) {
	if len(p.algorithms) > 0 && !slices.Contains(p.algorithms, string(t.algorithm)) {
		return nil, fmt.Errorf("oidc: id token signed with unsupported algorithm, expected %q got %q", p.algorithms, t.algorithm)
	}
	if err := keys.verify(ctx, t); err != nil {
		return nil, fmt.Errorf("failed to verify signature: %w", err)
	}
	var registered struct {
		Issuer    string           `json:"iss"`
		Audience  stringOrArray    `json:"aud"`
		Expiry    jwt.NumericDate  `json:"exp"`
		NotBefore *jwt.NumericDate `json:"nbf"`
	}
	var all providerClaims
	if err := errors.Join(decodeStrict(t.claims, &registered), decodeStrict(t.claims, &all)); err != nil {
		return nil, fmt.Errorf("oidc: failed to unmarshal claims: %w", err)
	}
	if registered.Issuer != keys.issuer && (keys.issuer != googleIssuer || registered.Issuer != googleIssuerShort) {
		return nil, fmt.Errorf("oidc: id token issued by a different provider, expected %q got %q", keys.issuer, registered.Issuer)
	}
	if expected := p.config.Issuer.Audiences; len(intersect(registered.Audience, expected)) == 0 {
		return nil, fmt.Errorf("oidc: expected audience in %q got %q", expected, []string(registered.Audience))
	}
	now := time.Now()
	if expiry := registered.Expiry.Time(); expiry.Before(now) {
		return nil, fmt.Errorf("oidc: token is expired (Token Expiry: %v)", expiry)
	}
	if n := registered.NotBefore; n != nil && now.Add(leeway).Before(n.Time()) {
		return nil, fmt.Errorf("oidc: current time %v before the nbf (not before) time: %v", now, n.Time())
	}
	return all, nil
}

func (p *identityProvider) username(ctx context.Context, c providerClaims, e *evaluation) (string, error) {
	mapping := p.config.ClaimMappings.Username
	if p.mapper.Username != nil {
		username, err := e.evaluateString(ctx, p.mapper.Username, "username")
		if err == nil && username == "" {
			err = errors.New("oidc: empty username via CEL expression is not allowed")
		}
		return username, err
	}
	var username string
	if err := c.decode(mapping.Claim, &username); err != nil {
		return "", fmt.Errorf("oidc: parse username claims %q: %w", mapping.Claim, err)
	}
	// An email address that is not verified must not become a user name.
	if _, ok := c["email_verified"]; ok && mapping.Claim == "email" {
		var verified bool
		if err := c.decode("email_verified", &verified); err != nil {
			return "", fmt.Errorf("oidc: parse 'email_verified' claim: %w", err)
		}
		if !verified {
			return "", errors.New("oidc: email not verified")
		}
	}
	if mapping.Prefix != nil {
		username = *mapping.Prefix + username
	}
	return username, nil
}

func (p *identityProvider) userGroups(ctx context.Context, c providerClaims, e *evaluation) ([]string, error) {
	mapping := p.config.ClaimMappings.Groups
	if _, ok := c[mapping.Claim]; ok && mapping.Claim != "" {
		var groups stringOrArray
		if err := c.decode(mapping.Claim, &groups); err != nil {
			return nil, fmt.Errorf("oidc: parse groups claim %q: %w", mapping.Claim, err)
		}
		if mapping.Prefix != nil {
			for i := range groups {
				groups[i] = *mapping.Prefix + groups[i]
			}
		}
		return groups, nil
	}
	if p.mapper.Groups == nil {
		return nil, nil
	}
	return e.evaluateStrings(ctx, p.mapper.Groups, "group")
}

func (p *identityProvider) uid(ctx context.Context, c providerClaims, e *evaluation) (string, error) {
	if claim := p.config.ClaimMappings.UID.Claim; claim != "" {
		var uid string
		if err := c.decode(claim, &uid); err != nil {
			return "", fmt.Errorf("oidc: parse uid claim %q: %w", claim, err)
		}
		return uid, nil
	}
	if p.mapper.UID == nil {
		return "", nil
	}
	return e.evaluateString(ctx, p.mapper.UID, "uid")
}

func (p *identityProvider) extra(ctx context.Context, c providerClaims, e *evaluation) (map[string]authenticationv1.ExtraValue, error) {
	extra := map[string]authenticationv1.ExtraValue{}
	var id string
	if c.decode("jti", &id) == nil && id != "" {
		extra[credentialID] = authenticationv1.ExtraValue{"JTI=" + id}
	}
	if p.mapper.Extra != nil {
		if err := e.extra(ctx, p.mapper.Extra, extra); err != nil {
			return nil, err
		}
	}
	if len(extra) == 0 {
		return nil, nil
	}
	return extra, nil
}

// checkRules checks the claim validation rules, and the user validation rules.
func (p *identityProvider) checkRules(ctx context.Context, c providerClaims, e *evaluation, user *User) error {
	for _, rule := range p.config.ClaimValidationRules {
		if rule.Claim == "" {
			continue
		}
		if _, ok := c[rule.Claim]; !ok {
			return fmt.Errorf("oidc: required claim %s not present in ID token", rule.Claim)
		}
		var value string
		if err := c.decode(rule.Claim, &value); err != nil {
			return fmt.Errorf("oidc: parse claim %s: %w", rule.Claim, err)
		}
		if value != rule.RequiredValue {
			return fmt.Errorf("oidc: required claim %s value does not match. Got = %s, want = %s", rule.Claim, value, rule.RequiredValue)
		}
	}
	return e.checkRules(ctx, user)
}
