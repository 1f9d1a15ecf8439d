package authn

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
)

// maxClaimIssuers bounds how many issuers of distributed claims are kept for one provider.
const maxClaimIssuers = 16

// distributedClaims resolves the groups claim of a user with too many groups for one token: such a token has the URL of
// another token with the claim (OpenID Connect Core 1.0, section 5.6.2).
type distributedClaims struct {
	claim  string
	client *http.Client

	mu      sync.Mutex
	issuers map[string]*providerKeys
}

// resolve adds the claim to c if c does not have it but refers to its source.
func (d *distributedClaims) resolve(ctx context.Context, p *identityProvider, c providerClaims) error {
	if _, ok := c[d.claim]; ok || c["_claim_names"] == nil {
		return nil
	}
	var names map[string]string
	if err := c.decode("_claim_names", &names); err != nil {
		return fmt.Errorf("oidc: error parsing distributed claim names: %w", err)
	}
	source, ok := names[d.claim]
	if !ok {
		return nil
	}
	var sources map[string]struct {
		URL         string `json:"endpoint"`
		AccessToken string `json:"access_token"`
	}
	if c["_claim_sources"] == nil {
		return errors.New("oidc: no claim sources")
	}
	if err := c.decode("_claim_sources", &sources); err != nil {
		return fmt.Errorf("oidc: could not parse claim sources: %w", err)
	}
	endpoint, ok := sources[source]
	if !ok {
		return fmt.Errorf("id token _claim_names contained a source %s missing in _claims_sources", source)
	}
	if endpoint.URL == "" {
		return nil
	}
	value, err := d.fetch(ctx, p, endpoint.URL, endpoint.AccessToken)
	if err != nil {
		return err
	}
	c[d.claim] = value
	return nil
}

func (d *distributedClaims) fetch(ctx context.Context, p *identityProvider, url, accessToken string) (json.RawMessage, error) {
	if !strings.HasPrefix(url, "https://") {
		return nil, fmt.Errorf("distributed claim %q is not behind https", d.claim)
	}
	data, err := getDocument(ctx, d.client, url, accessToken)
	if err != nil {
		return nil, fmt.Errorf("while getting distributed claim %q: %w", d.claim, err)
	}
	t, err := parseToken(strings.TrimSpace(string(data)))
	if err != nil {
		return nil, fmt.Errorf("distributed claim %q: %w", d.claim, err)
	}
	issuer, err := unverifiedIssuer(t)
	if err != nil {
		return nil, fmt.Errorf("getting untrusted issuer from endpoint %v failed for claim %q: %w", url, d.claim, err)
	}
	keys, err := d.keysOf(issuer, p)
	if err != nil {
		return nil, err
	}
	c, err := p.verify(ctx, t, keys)
	if err != nil {
		return nil, fmt.Errorf("verify distributed claim token: %w", err)
	}
	value, ok := c[d.claim]
	if !ok {
		return nil, fmt.Errorf("jwt returned by distributed claim endpoint %q did not contain claim: %v", url, d.claim)
	}
	return value, nil
}

// keysOf returns the keys of the issuer of a claim, which need not be the provider itself.
func (d *distributedClaims) keysOf(issuer string, p *identityProvider) (*providerKeys, error) {
	if issuer == p.keys.issuer {
		return p.keys, nil
	}
	if !strings.HasPrefix(issuer, "https://") {
		return nil, fmt.Errorf("verifying untrusted issuer %v failed: it is not behind https", issuer)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	keys := d.issuers[issuer]
	if keys == nil {
		if len(d.issuers) >= maxClaimIssuers {
			return nil, fmt.Errorf("verifying untrusted issuer %v failed: too many issuers of distributed claims", issuer)
		}
		keys = newProviderKeys(d.client, issuer, "")
		d.issuers[issuer] = keys
	}
	return keys, nil
}
