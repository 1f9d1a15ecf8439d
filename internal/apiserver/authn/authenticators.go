package authn

import (
	"context"
	"net/http"
	"time"
)

// tokenLife is how long the answer of an identity provider's authenticator counts.
const tokenLife = 10 * time.Second

// Config says which credentials a server accepts. What is nil or empty is not accepted.
type Config struct {
	// Audiences are the API server's own names: a token must be meant for one of them.
	Audiences []string

	FrontProxy *FrontProxyConfig
	// ClientCAs sign the certificates of users.
	ClientCAs Pool
	// Tokens and TokenFile are fixed tokens.
	Tokens            *Tokens
	TokenFile         string
	ServiceAccounts   *ServiceAccounts
	BootstrapTokens   *BootstrapTokens
	IdentityProviders *IdentityProviders
	Webhook           *WebhookConfig
	PasswordFile      string
	Anonymous         *AnonymousUser
}

// Authenticators is everything a server authenticates by. It is an Authenticator for requests, and answers TokenReviews.
type Authenticators struct {
	requests Chain
	tokens   TokenAuthenticator
}

// New puts the authenticators together, in the order in which they are asked: those that need nobody else first.
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
		add(unbound{c.Audiences, c.Tokens.find})
	}
	if c.TokenFile != "" {
		tokens, err := ReadTokenFile(c.TokenFile)
		if err != nil {
			return nil, err
		}
		add(unbound{c.Audiences, tokens.find})
	}
	if c.ServiceAccounts != nil {
		add(c.ServiceAccounts)
	}
	if c.BootstrapTokens != nil {
		add(unbound{c.Audiences, c.BootstrapTokens.find})
	}
	if c.IdentityProviders != nil {
		add(newTokenCache(unbound{c.Audiences, c.IdentityProviders.find}, tokenLife, 0))
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

// Identify is Authenticate that also tells what to warn the client of and what to note for audit.
func (a *Authenticators) Identify(r *http.Request) (Identity, bool, error) {
	return a.requests.identify(r)
}

// AuthenticateToken answers a TokenReview: whose token it is, and for which of the wanted audiences it is meant. Without
// wanted audiences the server's own count.
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
