package authn

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/egress"
	"skiff/internal/webhook"
)

const (
	// webhookTimeout bounds one request. A lookup makes at most webhookTries requests with a growing delay between them.
	webhookTimeout  = 30 * time.Second
	webhookTries    = 5
	webhookDelay    = 500 * time.Millisecond
	webhookMaxBytes = 1 << 20
	// webhookCacheTTL is the default of WebhookConfig.CacheTTL.
	webhookCacheTTL = 2 * time.Minute
)

// WebhookConfig configures a token webhook.
type WebhookConfig struct {
	// Kubeconfig is the path of a kubeconfig file with the webhook's URL and CA and the client's credentials.
	Kubeconfig string
	// Version is the API version of the TokenReview that is sent: v1 or v1beta1, upstream's default.
	Version string
	// CacheTTL is how long responses are cached. Zero: two minutes.
	CacheTTL time.Duration
	// Audiences are the API server's own.
	Audiences []string
	// Dial connects to the webhook; nil: the network of the host is used.
	Dial egress.DialFunc
}

// Webhook authenticates tokens by sending a TokenReview to a remote server.
type Webhook struct {
	client    *webhook.KubeconfigClient
	version   string
	audiences []string
}

// NewWebhook makes a webhook authenticator with a cache.
func NewWebhook(c WebhookConfig) (TokenAuthenticator, error) {
	if c.Version == "" {
		c.Version = "v1beta1"
	}
	if c.Version != "v1" && c.Version != "v1beta1" {
		return nil, fmt.Errorf(`unsupported authentication webhook version %q, supported versions are "v1", "v1beta1"`, c.Version)
	}
	if c.CacheTTL == 0 {
		c.CacheTTL = webhookCacheTTL
	}
	client, err := webhook.NewKubeconfigClient(c.Kubeconfig, webhookTimeout, webhookMaxBytes, c.Dial)
	if err != nil {
		return nil, fmt.Errorf("authentication webhook: %w", err)
	}
	hook := &Webhook{client: client, version: c.Version, audiences: c.Audiences}
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

// review sends the TokenReview and retries with backoff on transient errors.
func (w *Webhook) review(ctx context.Context, body []byte) (*authenticationv1.TokenReviewStatus, error) {
	delay := webhookDelay
	for try := 1; ; try++ {
		status, retry, err := w.call(ctx, body)
		if err == nil || !retry || try == webhookTries {
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

// call sends one request. v1 and v1beta1 differ in apiVersion only.
func (w *Webhook) call(ctx context.Context, body []byte) (status *authenticationv1.TokenReviewStatus, retry bool, err error) {
	response, err := w.client.Post(ctx, body)
	if err != nil {
		return nil, true, fmt.Errorf("call the authentication webhook: %w", err)
	}
	if response.StatusCode != http.StatusOK && response.StatusCode != http.StatusCreated {
		retry := response.StatusCode >= 500 || response.StatusCode == http.StatusTooManyRequests
		return nil, retry, fmt.Errorf("the authentication webhook returned status %s", response.Status)
	}
	var review authenticationv1.TokenReview
	if err := json.Unmarshal(response.Body, &review); err != nil {
		return nil, false, fmt.Errorf("decode the response of the authentication webhook: %w", err)
	}
	if want := "authentication.k8s.io/" + w.version; review.APIVersion != want || review.Kind != "TokenReview" {
		return nil, false, fmt.Errorf("the authentication webhook returned %s %s, want %s TokenReview", review.APIVersion, review.Kind, want)
	}
	return &review.Status, false, nil
}
