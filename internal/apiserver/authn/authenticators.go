package authn

import (
	"context"
	"net/http"
	"time"
)

// providerCacheTTL is how long an accepted token of an identity provider is cached.
const providerCacheTTL = 10 * time.Second

// Config selects the credentials a server accepts. Kinds that are nil or empty are not accepted.
type Config struct {
	// Audiences are the API server's own: a token must be valid for one of them.
	Audiences []string

	FrontProxy *FrontProxyConfig
	// ClientCAs sign the client certificates of users.
	ClientCAs Pool
	// Tokens and TokenFile are static tokens.
	Tokens            *Tokens
	TokenFile         string
	ServiceAccounts   *ServiceAccounts
	BootstrapTokens   *BootstrapTokens
	IdentityProviders *IdentityProviders
	Webhook           *WebhookConfig
	PasswordFile      string
	Anonymous         *AnonymousUser
}

// Authenticators are all authenticators of a server. It is an Authenticator of requests, and reviews tokens for TokenReview.
type Authenticators struct {
	requests Chain
	tokens   TokenAuthenticator
}

// New makes the authenticators in the order in which they are tried: those that need no other server first.
func New(c Config) (*Authenticators, error) {
	a := &Authenticators{requests: Chain{InProcess{}}}
	if c.FrontProxy != nil {
		proxy, err := NewFrontProxy(*c.FrontProxy)
		if err != nil {
			return nil, err
		}
		a.requests = append(a.requests, proxy)
	}
	if c.ClientCAs != nil {
		a.requests = append(a.requests, NewCertificates(c.ClientCAs))
	}
	tokens, err := newTokenChain(&c)
	if err != nil {
		return nil, err
	}
	a.tokens = tokens
	if len(tokens.members) > 0 {
		a.requests = append(a.requests, bearerHeader{tokens}, webSocketProtocol{tokens})
	}
	if c.PasswordFile != "" {
		passwords, err := ReadPasswordFile(c.PasswordFile)
		if err != nil {
			return nil, err
		}
		a.requests = append(a.requests, passwords)
	}
	if c.Anonymous != nil {
		a.requests = append(a.requests, *c.Anonymous)
	}
	return a, nil
}

func newTokenChain(c *Config) (*tokenChain, error) {
	chain := &tokenChain{audiences: c.Audiences}
	add := func(a TokenAuthenticator) { chain.members = append(chain.members, a) }
	if c.Tokens != nil {
		add(audienceAgnostic{c.Audiences, c.Tokens.authenticate})
	}
	if c.TokenFile != "" {
		tokens, err := ReadTokenFile(c.TokenFile)
		if err != nil {
			return nil, err
		}
		add(audienceAgnostic{c.Audiences, tokens.authenticate})
	}
	if c.ServiceAccounts != nil {
		add(c.ServiceAccounts)
	}
	if c.BootstrapTokens != nil {
		add(audienceAgnostic{c.Audiences, c.BootstrapTokens.authenticate})
	}
	if c.IdentityProviders != nil {
		add(newTokenCache(audienceAgnostic{c.Audiences, c.IdentityProviders.authenticate}, providerCacheTTL, 0))
	}
	if c.Webhook != nil {
		config := *c.Webhook
		if len(config.Audiences) == 0 {
			config.Audiences = c.Audiences
		}
		hook, err := NewWebhook(config)
		if err != nil {
			return nil, err
		}
		add(hook)
	}
	return chain, nil
}

// Authenticate implements Authenticator.
func (a *Authenticators) Authenticate(r *http.Request) (User, bool, error) {
	return a.requests.Authenticate(r)
}

// Identify is Authenticate that also returns warnings for the client and audit annotations.
func (a *Authenticators) Identify(r *http.Request) (Identity, bool, error) {
	return a.requests.identify(r)
}

// AuthenticateToken implements TokenReview: it returns the user of a token and those of the audiences it is valid for.
// Without audiences, the server's own are used.
func (a *Authenticators) AuthenticateToken(ctx context.Context, token string, audiences []string) (User, []string, bool, error) {
	if len(token) > maxTokenBytes {
		return User{}, nil, false, errBadToken
	}
	id, ok, err := a.tokens.IdentifyToken(ctx, token, audiences)
	if !ok && err == nil {
		err = errBadToken
	}
	return id.User, id.Audiences, ok, err
}
