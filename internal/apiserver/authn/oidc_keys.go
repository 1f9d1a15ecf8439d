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

	"github.com/go-jose/go-jose/v4"

	"skiff/internal/egress"
)

const (
	providerTimeout  = 30 * time.Second
	providerMaxBytes = 1 << 20
	// minFetchInterval is the minimum time between two fetches of a provider's keys: forged tokens with unknown keys must not
	// cause a request each.
	minFetchInterval = 10 * time.Second
	// maxKeyAge is how long keys are used before they are fetched again: a provider may have withdrawn one.
	maxKeyAge = time.Hour
)

// newProviderClient makes an HTTP client that trusts the CA certificates (PEM; empty: those of the host). It follows redirects
// to https URLs only. dial connects to the provider; nil: the network of the host is used.
func newProviderClient(caPEM string, dial egress.DialFunc) (*http.Client, error) {
	var roots *x509.CertPool
	if caPEM != "" {
		roots = x509.NewCertPool()
		if !roots.AppendCertsFromPEM([]byte(caPEM)) {
			return nil, errors.New("oidc: failed to read the CA contents")
		}
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	if dial != nil {
		transport.DialContext, transport.Proxy = dial, nil
	}
	return &http.Client{
		Transport: transport, Timeout: providerTimeout,
		CheckRedirect: func(r *http.Request, via []*http.Request) error {
			if r.URL.Scheme != "https" || len(via) > 5 {
				return errors.New("oidc: too many redirects, or a redirect to a URL that is not https")
			}
			return nil
		},
	}, nil
}

// providerKeys fetches and caches the key set of a provider. go-oidc's RemoteKeySet is not used: it fetches for every token
// with an unknown key, keeps keys forever and does not bound the size of a response.
type providerKeys struct {
	client               *http.Client
	issuer, discoveryURL string

	mu        sync.Mutex
	set       *jose.JSONWebKeySet
	fetched   time.Time     // last success
	attempted time.Time     // last attempt
	err       error         // of the last attempt
	fetching  chan struct{} // closed when the current fetch ends; nil without one
}

func newProviderKeys(client *http.Client, issuer, discoveryURL string) *providerKeys {
	if discoveryURL == "" {
		discoveryURL = strings.TrimSuffix(issuer, "/") + OpenIDConfigurationPath
	}
	return &providerKeys{client: client, issuer: issuer, discoveryURL: discoveryURL}
}

// verify checks the signature of the token with the cached keys, and with newly fetched ones if that fails.
func (p *providerKeys) verify(ctx context.Context, t *unverifiedToken) error {
	set, err := p.current(ctx, false)
	if err != nil {
		return err
	}
	if verifyWith(set, t) == nil {
		return nil
	}
	fetched, err := p.current(ctx, true)
	if err != nil {
		return err
	}
	if fetched != set && verifyWith(fetched, t) == nil {
		return nil
	}
	return errors.New("failed to verify id token signature")
}

func verifyWith(set *jose.JSONWebKeySet, t *unverifiedToken) error {
	err := errInvalidSignature
	candidates := candidateKeys(set, t.keyID)
	for i := range candidates {
		key := &candidates[i]
		if key.Algorithm != "" && key.Algorithm != string(t.algorithm) {
			continue
		}
		if err = t.verify(key); err == nil {
			return nil
		}
	}
	return err
}

// current returns the keys. It fetches them if there are none, if they are older than maxKeyAge, or if refresh is set; but at
// most once per minFetchInterval. Concurrent callers wait for the same fetch. If it fails, the cached keys are returned.
func (p *providerKeys) current(ctx context.Context, refresh bool) (*jose.JSONWebKeySet, error) {
	if fetching := p.startFetch(refresh); fetching != nil {
		select {
		case <-fetching:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.set == nil {
		return nil, fmt.Errorf("oidc: authenticator not initialized: %w", p.err)
	}
	return p.set, nil
}

// startFetch starts a fetch if one is due. It returns a channel to wait on, nil if the cached keys are to be used.
func (p *providerKeys) startFetch(refresh bool) <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if p.set != nil && !refresh && now.Sub(p.fetched) <= maxKeyAge {
		return nil
	}
	if p.fetching == nil && (p.attempted.IsZero() || now.Sub(p.attempted) >= minFetchInterval) {
		p.fetching, p.attempted = make(chan struct{}), now
		go p.fetch(p.fetching)
	}
	return p.fetching
}

// fetch has a context of its own, because several requests may wait for it.
func (p *providerKeys) fetch(done chan struct{}) {
	ctx, cancel := context.WithTimeout(context.Background(), providerTimeout)
	defer cancel()
	set, err := p.download(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err = err; err == nil {
		p.set, p.fetched = set, time.Now()
	}
	p.fetching = nil
	close(done)
}

func (p *providerKeys) download(ctx context.Context) (*jose.JSONWebKeySet, error) {
	var metadata struct {
		Issuer  string `json:"issuer"`
		JWKSURL string `json:"jwks_uri"`
	}
	data, err := getDocument(ctx, p.client, p.discoveryURL, "")
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(data, &metadata); err != nil {
		return nil, fmt.Errorf("oidc: failed to decode provider discovery object: %w", err)
	}
	if metadata.Issuer != p.issuer {
		return nil, fmt.Errorf("oidc: issuer did not match the issuer returned by provider, expected %q got %q", p.issuer, metadata.Issuer)
	}
	if u, err := url.Parse(metadata.JWKSURL); err != nil || u.Scheme != "https" {
		return nil, errors.New("oidc: provider did not return an https JWKS URL")
	}
	if data, err = getDocument(ctx, p.client, metadata.JWKSURL, ""); err != nil {
		return nil, err
	}
	set, err := parseKeys(data)
	if err != nil {
		return nil, fmt.Errorf("oidc: keys of %s: %w", p.issuer, err)
	}
	return set, nil
}

// getDocument reads a document of at most providerMaxBytes.
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
		return nil, fmt.Errorf("oidc: GET %s: unexpected status %s", url, response.Status)
	}
	data, err := io.ReadAll(io.LimitReader(response.Body, providerMaxBytes))
	if err != nil {
		return nil, fmt.Errorf("oidc: read %s: %w", url, err)
	}
	return data, nil
}
