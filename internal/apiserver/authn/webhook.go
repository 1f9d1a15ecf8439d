package authn

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	// webhookTimeout bounds one call, webhookTries and the delays between them a whole lookup.
	webhookTimeout  = 30 * time.Second
	webhookTries    = 5
	webhookDelay    = 500 * time.Millisecond
	webhookMaxBytes = 1 << 20
	// webhookLife is how long the webhook's answers count, unless the administrator says otherwise.
	webhookLife = 2 * time.Minute
)

// WebhookConfig says whom to ask about tokens.
type WebhookConfig struct {
	// Kubeconfig is a file that names the service: its URL, its authority and the server's own credentials.
	Kubeconfig string
	// Version of the TokenReview that is sent: v1 or v1beta1. Upstream's default is v1beta1, and so is ours.
	Version string
	// CacheTTL is how long answers count. Zero: two minutes.
	CacheTTL time.Duration
	// Audiences are the API server's own.
	Audiences []string
}

// Webhook asks a service whose token it is, by a TokenReview.
type Webhook struct {
	url       string
	client    *http.Client
	version   string
	audiences []string
}

// NewWebhook makes an authenticator that asks the service and remembers what it said.
func NewWebhook(c WebhookConfig) (TokenAuthenticator, error) {
	if c.Version == "" {
		c.Version = "v1beta1"
	}
	if c.Version != "v1" && c.Version != "v1beta1" {
		return nil, fmt.Errorf(`unsupported authentication webhook version %q, supported versions are "v1", "v1beta1"`, c.Version)
	}
	if c.CacheTTL == 0 {
		c.CacheTTL = webhookLife
	}
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		&clientcmd.ClientConfigLoadingRules{ExplicitPath: c.Kubeconfig}, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("authentication webhook: %w", err)
	}
	if u, err := url.Parse(config.Host); err != nil || u.Scheme != "https" && u.Scheme != "http" {
		return nil, fmt.Errorf("authentication webhook: %s names no URL", c.Kubeconfig)
	}
	config.Timeout = webhookTimeout
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("authentication webhook: %w", err)
	}
	// A service that sends us elsewhere would send the token elsewhere.
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	hook := &Webhook{url: config.Host, client: client, version: c.Version, audiences: c.Audiences}
	return newTokenCache(hook, c.CacheTTL, c.CacheTTL), nil
}

// IdentifyToken implements TokenAuthenticator.
func (w *Webhook) IdentifyToken(ctx context.Context, token string, wanted []string) (Identity, bool, error) {
	if len(wanted) == 0 {
		wanted = w.audiences
	}
	body, err := json.Marshal(authenticationv1.TokenReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "authentication.k8s.io/" + w.version, Kind: "TokenReview"},
		Spec:     authenticationv1.TokenReviewSpec{Token: token, Audiences: wanted},
	})
	if err != nil {
		return Identity{}, false, err
	}
	status, err := w.review(ctx, body)
	if err != nil {
		return Identity{}, false, err
	}
	var accepted []string
	if len(wanted) > 0 {
		given := status.Audiences
		if len(given) == 0 {
			given = w.audiences
		}
		if accepted = intersect(given, wanted); len(accepted) == 0 {
			return Identity{}, false, nil
		}
	}
	if !status.Authenticated {
		if status.Error != "" {
			return Identity{}, false, errors.New(status.Error)
		}
		return Identity{}, false, nil
	}
	return Identity{User: status.User, Audiences: accepted}, true, nil
}

// review calls the service, again after a while when it could not answer.
func (w *Webhook) review(ctx context.Context, body []byte) (*authenticationv1.TokenReviewStatus, error) {
	delay := webhookDelay
	for try := 1; ; try++ {
		status, again, err := w.call(ctx, body)
		if err == nil || !again || try == webhookTries {
			return status, err
		}
		select {
		case <-time.After(delay):
		case <-ctx.Done():
			return nil, err
		}
		delay = delay * 3 / 2
	}
}

// call sends one review. v1 and v1beta1 look alike but for the version's name.
func (w *Webhook) call(ctx context.Context, body []byte) (status *authenticationv1.TokenReviewStatus, again bool, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url, bytes.NewReader(body))
	if err != nil {
		return nil, false, err
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Accept", "application/json")
	response, err := w.client.Do(request)
	if err != nil {
		return nil, true, fmt.Errorf("ask the authentication webhook: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK && response.StatusCode != http.StatusCreated {
		again := response.StatusCode >= 500 || response.StatusCode == http.StatusTooManyRequests
		return nil, again, fmt.Errorf("the authentication webhook answered %s", response.Status)
	}
	answer, err := io.ReadAll(io.LimitReader(response.Body, webhookMaxBytes))
	if err != nil {
		return nil, true, fmt.Errorf("read the authentication webhook's answer: %w", err)
	}
	var review authenticationv1.TokenReview
	if err := json.Unmarshal(answer, &review); err != nil {
		return nil, false, fmt.Errorf("decode the authentication webhook's answer: %w", err)
	}
	if want := "authentication.k8s.io/" + w.version; review.APIVersion != want || review.Kind != "TokenReview" {
		return nil, false, fmt.Errorf("the authentication webhook answered with %s %s, want %s TokenReview", review.APIVersion, review.Kind, want)
	}
	return &review.Status, false, nil
}
