package authn

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/validation"
	authenticationcel "k8s.io/apiserver/pkg/authentication/cel"
)

// IdentityProviders accepts the tokens that outside issuers sign, as an AuthenticationConfiguration says: OpenID Connect, or
// anybody who signs JWTs and publishes the keys. Keys are fetched when the first token comes.
type IdentityProviders struct {
	options       IdentityProvidersOptions
	configuration atomic.Pointer[Configuration]
	providers     atomic.Pointer[[]*identityProvider]
}

// IdentityProvidersOptions are what the configuration does not say.
type IdentityProvidersOptions struct {
	// Algorithms that tokens may be signed with. Empty: all that this package knows.
	Algorithms []string
	// ServiceAccountIssuers are this server's own: no provider may have their names.
	ServiceAccountIssuers []string
}

// NewIdentityProviders makes the authenticators of a configuration.
func NewIdentityProviders(c *Configuration, o IdentityProvidersOptions) (*IdentityProviders, error) {
	for _, algorithm := range o.Algorithms {
		if _, ok := hashes[algorithm]; !ok {
			return nil, fmt.Errorf("oidc: unsupported signing alg: %q", algorithm)
		}
	}
	p := &IdentityProviders{options: o}
	return p, p.Replace(c)
}

// Replace takes over another configuration, if it is valid.
func (p *IdentityProviders) Replace(c *Configuration) error {
	var providers []*identityProvider
	if len(c.JWT) > 0 || c.Anonymous != nil {
		compiler := authenticationcel.NewDefaultCompiler()
		if err := validation.ValidateAuthenticationConfiguration(compiler, c, p.options.ServiceAccountIssuers).ToAggregate(); err != nil {
			return fmt.Errorf("invalid authentication configuration: %w", err)
		}
		for _, jwt := range c.JWT {
			provider, err := newIdentityProvider(compiler, jwt, p.options)
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

func (p *IdentityProviders) find(ctx context.Context, token string) (User, bool, error) {
	providers := *p.providers.Load()
	if len(providers) == 0 {
		return User{}, false, nil
	}
	t, err := parseJWT(token)
	if err != nil {
		return User{}, false, nil
	}
	issuer, err := claimedIssuer(t)
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
	// googleIssuerShort is what Google once wrote, and sometimes still does.
	googleIssuerShort = "accounts.google.com"
)

// claimedIssuer is who the token says has signed it. That is not to be believed: it only says whose keys to try.
func claimedIssuer(t *jwt) (string, error) {
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

// identityProvider is one issuer.
type identityProvider struct {
	config     apiserver.JWTAuthenticator
	algorithms []string
	mapper     authenticationcel.CELMapper
	keys       *providerKeys
	groups     *distributedClaims // nil: groups do not come from a claim
}

func newIdentityProvider(compiler authenticationcel.Compiler, config apiserver.JWTAuthenticator, o IdentityProvidersOptions) (*identityProvider, error) {
	mapper, errs := validation.CompileAndValidateJWTAuthenticator(compiler, config, o.ServiceAccountIssuers)
	if err := errs.ToAggregate(); err != nil {
		return nil, err
	}
	if egress := config.Issuer.EgressSelectorType; egress != "" {
		return nil, fmt.Errorf("oidc: egress lookup for %q is not configured", egress)
	}
	client, err := newProviderClient(config.Issuer.CertificateAuthority)
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

// providerClaims are a token's claims, each to be read as what it should be.
type providerClaims map[string]json.RawMessage

func (c providerClaims) read(name string, into any) error {
	raw, ok := c[name]
	if !ok {
		return errors.New("claim not present")
	}
	return json.Unmarshal(raw, into)
}

// identify believes the token, or says why not, and makes a user of it.
func (p *identityProvider) identify(ctx context.Context, t *jwt) (User, error) {
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

// verify checks signature, issuer, audience and time.
func (p *identityProvider) verify(ctx context.Context, t *jwt, keys *providerKeys) (providerClaims, error) {
	if len(p.algorithms) > 0 && !slices.Contains(p.algorithms, t.algorithm) {
		return nil, fmt.Errorf("oidc: id token signed with unsupported algorithm, expected %q got %q", p.algorithms, t.algorithm)
	}
	if err := keys.verify(ctx, t); err != nil {
		return nil, fmt.Errorf("failed to verify signature: %w", err)
	}
	var registered struct {
		Issuer    string    `json:"iss"`
		Audience  oneOrMany `json:"aud"`
		Expiry    unixTime  `json:"exp"`
		NotBefore *unixTime `json:"nbf"`
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
	if expiry := registered.Expiry.time(); expiry.Before(now) {
		return nil, fmt.Errorf("oidc: token is expired (Token Expiry: %v)", expiry)
	}
	if n := registered.NotBefore; n != nil && now.Add(leeway).Before(n.time()) {
		return nil, fmt.Errorf("oidc: current time %v before the nbf (not before) time: %v", now, n.time())
	}
	return all, nil
}

func (p *identityProvider) username(ctx context.Context, c providerClaims, e *evaluation) (string, error) {
	mapping := p.config.ClaimMappings.Username
	if p.mapper.Username != nil {
		username, err := e.text(ctx, p.mapper.Username, "username")
		if err == nil && username == "" {
			err = errors.New("oidc: empty username via CEL expression is not allowed")
		}
		return username, err
	}
	var username string
	if err := c.read(mapping.Claim, &username); err != nil {
		return "", fmt.Errorf("oidc: parse username claims %q: %w", mapping.Claim, err)
	}
	// Who has not shown that an address is theirs must not be known by it.
	if _, ok := c["email_verified"]; ok && mapping.Claim == "email" {
		var verified bool
		if err := c.read("email_verified", &verified); err != nil {
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
		var groups oneOrMany
		if err := c.read(mapping.Claim, &groups); err != nil {
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
	return e.texts(ctx, p.mapper.Groups, "group")
}

func (p *identityProvider) uid(ctx context.Context, c providerClaims, e *evaluation) (string, error) {
	if claim := p.config.ClaimMappings.UID.Claim; claim != "" {
		var uid string
		if err := c.read(claim, &uid); err != nil {
			return "", fmt.Errorf("oidc: parse uid claim %q: %w", claim, err)
		}
		return uid, nil
	}
	if p.mapper.UID == nil {
		return "", nil
	}
	return e.text(ctx, p.mapper.UID, "uid")
}

func (p *identityProvider) extra(ctx context.Context, c providerClaims, e *evaluation) (map[string]authenticationv1.ExtraValue, error) {
	extra := map[string]authenticationv1.ExtraValue{}
	var id string
	if c.read("jti", &id) == nil && id != "" {
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

// checkRules checks what the administrator wants of the claims, and of the user that came of them.
func (p *identityProvider) checkRules(ctx context.Context, c providerClaims, e *evaluation, user *User) error {
	for _, rule := range p.config.ClaimValidationRules {
		if rule.Claim == "" {
			continue
		}
		if _, ok := c[rule.Claim]; !ok {
			return fmt.Errorf("oidc: required claim %s not present in ID token", rule.Claim)
		}
		var value string
		if err := c.read(rule.Claim, &value); err != nil {
			return fmt.Errorf("oidc: parse claim %s: %w", rule.Claim, err)
		}
		if value != rule.RequiredValue {
			return fmt.Errorf("oidc: required claim %s value does not match. Got = %s, want = %s", rule.Claim, value, rule.RequiredValue)
		}
	}
	return e.checkRules(ctx, user)
}
