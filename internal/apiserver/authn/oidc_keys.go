package authn

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
)

const (
	providerTimeout  = 30 * time.Second
	providerMaxBytes = 1 << 20
	// keysPause is the least time between two fetches of a provider's keys: tokens with keys nobody has heard of cost
	// the sender nothing.
	keysPause = 10 * time.Second
	// keysLife is how long keys count without being looked at again: a provider may have withdrawn one.
	keysLife = time.Hour
)

// newProviderClient talks to a provider that one of the authorities (PEM; empty: the machine's own) vouches for. It goes
// nowhere without TLS.
func newProviderClient(authorities string) (*http.Client, error) {
	var roots *x509.CertPool
	if authorities != "" {
		roots = x509.NewCertPool()
		if !roots.AppendCertsFromPEM([]byte(authorities)) {
			return nil, errors.New("oidc: failed to read the CA contents")
		}
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	return &http.Client{
		Transport: transport, Timeout: providerTimeout,
		CheckRedirect: func(r *http.Request, via []*http.Request) error {
			if r.URL.Scheme != "https" || len(via) > 5 {
				return errors.New("oidc: redirected too often, or away from https")
			}
			return nil
		},
	}, nil
}

// providerKeys are the keys a provider publishes.
type providerKeys struct {
	client            *http.Client
	issuer, discovery string

	mu      sync.Mutex
	set     *keySet
	fetched time.Time // last success
	tried   time.Time // last attempt
	err     error     // of the last attempt
	running chan struct{}
}

func newProviderKeys(client *http.Client, issuer, discovery string) *providerKeys {
	if discovery == "" {
		discovery = strings.TrimSuffix(issuer, "/") + OpenIDConfigurationPath
	}
	return &providerKeys{client: client, issuer: issuer, discovery: discovery}
}

// verify checks the token's signature with the keys at hand, and with fresh ones when those do not fit.
func (p *providerKeys) verify(ctx context.Context, t *jwt) error {
	set, err := p.current(ctx, false)
	if err != nil {
		return err
	}
	if verifyWith(set, t) == nil {
		return nil
	}
	fresh, err := p.current(ctx, true)
	if err != nil {
		return err
	}
	if fresh != set && verifyWith(fresh, t) == nil {
		return nil
	}
	return errors.New("failed to verify id token signature")
}

func verifyWith(set *keySet, t *jwt) error {
	err := errInvalidSignature
	for _, key := range set.candidates(t.keyID) {
		if key.algorithm != "" && key.algorithm != t.algorithm {
			continue
		}
		if err = t.verify(key.key); err == nil {
			return nil
		}
	}
	return err
}

// current returns the keys, fetching them when there are none, when they are old, or when others are wanted; but not more often
// than every keysPause. Many may wait for one fetch. Keys at hand count when the provider cannot be reached.
func (p *providerKeys) current(ctx context.Context, others bool) (*keySet, error) {
	p.mu.Lock()
	now := time.Now()
	need := p.set == nil || others || now.Sub(p.fetched) > keysLife
	if need && p.running == nil && (p.tried.IsZero() || now.Sub(p.tried) >= keysPause) {
		p.running, p.tried = make(chan struct{}), now
		go p.fetch(p.running)
	}
	if running := p.running; need && running != nil {
		p.mu.Unlock()
		select {
		case <-running:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		p.mu.Lock()
	}
	defer p.mu.Unlock()
	if p.set == nil {
		return nil, fmt.Errorf("oidc: authenticator not initialized: %w", p.err)
	}
	return p.set, nil
}

// fetch belongs to all who wait for it, so it does not end with any of them.
func (p *providerKeys) fetch(done chan struct{}) {
	ctx, cancel := context.WithTimeout(context.Background(), providerTimeout)
	defer cancel()
	set, err := p.download(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err = err; err == nil {
		p.set, p.fetched = set, time.Now()
	}
	p.running = nil
	close(done)
}

func (p *providerKeys) download(ctx context.Context) (*keySet, error) {
	var metadata struct {
		Issuer  string `json:"issuer"`
		KeysURL string `json:"jwks_uri"`
	}
	data, err := p.get(ctx, p.discovery, "")
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(data, &metadata); err != nil {
		return nil, fmt.Errorf("oidc: failed to decode provider discovery object: %w", err)
	}
	if metadata.Issuer != p.issuer {
		return nil, fmt.Errorf("oidc: issuer did not match the issuer returned by provider, expected %q got %q", p.issuer, metadata.Issuer)
	}
	if u, err := url.Parse(metadata.KeysURL); err != nil || u.Scheme != "https" {
		return nil, errors.New("oidc: provider did not return an https JWKS URL")
	}
	if data, err = p.get(ctx, metadata.KeysURL, ""); err != nil {
		return nil, err
	}
	set, err := parseKeys(data)
	if err != nil {
		return nil, fmt.Errorf("oidc: keys of %s: %w", p.issuer, err)
	}
	return set, nil
}

func (p *providerKeys) get(ctx context.Context, url, bearer string) ([]byte, error) {
	return getDocument(ctx, p.client, url, bearer)
}

func getDocument(ctx context.Context, client *http.Client, url, bearer string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	if bearer != "" {
		request.Header.Set("Authorization", "Bearer "+bearer)
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("oidc: %s answered %s", url, response.Status)
	}
	data, err := io.ReadAll(io.LimitReader(response.Body, providerMaxBytes))
	if err != nil {
		return nil, fmt.Errorf("oidc: read %s: %w", url, err)
	}
	return data, nil
}
