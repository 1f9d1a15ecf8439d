package authz

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	authorizationv1beta1 "k8s.io/api/authorization/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/cache"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/validation"
	authorizationcel "k8s.io/apiserver/pkg/authorization/cel"

	"skiff/internal/apiserver/authn"
	"skiff/internal/egress"
	"skiff/internal/webhook"
)

const (
	// webhookCacheSize bounds the number of cached responses.
	webhookCacheSize = 8192
	// maxCachedKeyBytes bounds the client-controlled part of a cache key. Responses to larger requests are not cached.
	maxCachedKeyBytes = 10000
	// maxWebhookResponse bounds the size of a response in bytes.
	maxWebhookResponse    = 1 << 20
	defaultWebhookTimeout = 30 * time.Second
)

// webhookRetry is the backoff after transient errors.
var webhookRetry = wait.Backoff{Duration: 500 * time.Millisecond, Factor: 1.5, Jitter: 0.2, Steps: 5}

// Webhook authorizes requests by sending a SubjectAccessReview to a remote server, and caches the responses.
type Webhook struct {
	client          *webhook.KubeconfigClient
	beta            bool // use v1beta1
	authorizedTTL   time.Duration
	unauthorizedTTL time.Duration
	onError         Decision
	matcher         *authorizationcel.CELMatcher // nil matches everything
	responses       *cache.LRUExpireCache
	retry           wait.Backoff
}

// NewWebhook makes an authorizer from a validated webhook of an AuthorizationConfiguration. compile returns the compiler of match
// conditions; it is called only if there are any.
func NewWebhook(c *apiserver.WebhookConfiguration, compile func() authorizationcel.Compiler, dial egress.DialFunc) (*Webhook, error) {
	w := &Webhook{responses: cache.NewLRUExpireCache(webhookCacheSize), retry: webhookRetry}
	switch c.SubjectAccessReviewVersion {
	case "v1":
	case "v1beta1":
		w.beta = true
	default:
		return nil, fmt.Errorf("unsupported webhook authorizer version %q, supported versions are %q, %q", c.SubjectAccessReviewVersion, "v1", "v1beta1")
	}
	if c.FailurePolicy == apiserver.FailurePolicyDeny {
		w.onError = Deny
	}
	if c.CacheAuthorizedRequests {
		w.authorizedTTL = c.AuthorizedTTL.Duration
	}
	if c.CacheUnauthorizedRequests {
		w.unauthorizedTTL = c.UnauthorizedTTL.Duration
	}
	if len(c.MatchConditions) > 0 {
		matcher, errs := validation.ValidateAndCompileMatchConditions(compile(), c.MatchConditions)
		if err := errs.ToAggregate(); err != nil {
			return nil, err
		}
		w.matcher = matcher
	}
	if c.ConnectionInfo.KubeConfigFile == nil {
		return nil, fmt.Errorf("connection type %s is not supported, only %s is", c.ConnectionInfo.Type, apiserver.AuthorizationWebhookConnectionInfoTypeKubeConfigFile)
	}
	var err error
	w.client, err = webhook.NewKubeconfigClient(*c.ConnectionInfo.KubeConfigFile, cmp.Or(c.Timeout.Duration, defaultWebhookTimeout), maxWebhookResponse, dial)
	return w, err
}

// RulesFor implements RuleResolver. The remote server cannot list rules.
func (w *Webhook) RulesFor(context.Context, authn.User, string) (Rules, error) {
	return Rules{Incomplete: true}, errors.New("webhook authorizer does not support user rule resolution")
}

// Authorize implements Authorizer.
func (w *Webhook) Authorize(ctx context.Context, a *Attributes) (Decision, string, error) {
	review := &authorizationv1.SubjectAccessReview{Spec: a.Review()}
	if w.matcher != nil {
		matches, err := w.matcher.Eval(ctx, review)
		if err != nil {
			return w.onError, "", err
		}
		if !matches {
			return NoOpinion, "", nil
		}
	}
	key, err := json.Marshal(review.Spec)
	if err != nil {
		return w.onError, "", err
	}
	if status, ok := w.responses.Get(string(key)); ok {
		return decide(status.(authorizationv1.SubjectAccessReviewStatus))
	}
	status, err := w.review(ctx, review)
	if err != nil {
		return w.onError, "", err
	}
	if size := len(a.Namespace) + len(a.Verb) + len(a.Group) + len(a.Version) + len(a.Resource) + len(a.Subresource) + len(a.Name) + len(a.Path); size < maxCachedKeyBytes {
		ttl := w.unauthorizedTTL
		if status.Allowed {
			ttl = w.authorizedTTL
		}
		w.responses.Add(string(key), status, ttl)
	}
	return decide(status)
}

func decide(status authorizationv1.SubjectAccessReviewStatus) (Decision, string, error) {
	switch {
	case status.Denied && status.Allowed:
		return Deny, status.Reason, errors.New("webhook subject access review returned both allow and deny response")
	case status.Denied:
		return Deny, status.Reason, nil
	case status.Allowed:
		return Allow, status.Reason, nil
	}
	return NoOpinion, status.Reason, nil
}

// review calls the server and retries after transient errors.
func (w *Webhook) review(ctx context.Context, review *authorizationv1.SubjectAccessReview) (authorizationv1.SubjectAccessReviewStatus, error) {
	body, err := w.encode(review)
	if err != nil {
		return authorizationv1.SubjectAccessReviewStatus{}, err
	}
	var status authorizationv1.SubjectAccessReviewStatus
	var last error
	err = wait.ExponentialBackoffWithContext(ctx, w.retry, func(ctx context.Context) (bool, error) {
		status, last = w.post(ctx, body)
		if last != nil && isTransient(last) {
			return false, nil
		}
		return last == nil, last
	})
	if last != nil {
		return status, last
	}
	if err != nil {
		return status, fmt.Errorf("webhook call failed: %w", err)
	}
	return status, nil
}

func isTransient(err error) bool {
	if utilnet.IsConnectionReset(err) || utilnet.IsHTTP2ConnectionLost(err) {
		return true
	}
	_, delay := apierrors.SuggestsClientDelay(err)
	return delay || apierrors.IsInternalError(err) || apierrors.IsTimeout(err) || apierrors.IsTooManyRequests(err)
}

func (w *Webhook) encode(review *authorizationv1.SubjectAccessReview) ([]byte, error) {
	if !w.beta {
		review.TypeMeta = metav1.TypeMeta{APIVersion: authorizationv1.SchemeGroupVersion.String(), Kind: "SubjectAccessReview"}
		return json.Marshal(review)
	}
	spec := &review.Spec
	old := authorizationv1beta1.SubjectAccessReview{
		TypeMeta: metav1.TypeMeta{APIVersion: authorizationv1beta1.SchemeGroupVersion.String(), Kind: "SubjectAccessReview"},
		Spec:     authorizationv1beta1.SubjectAccessReviewSpec{User: spec.User, Groups: spec.Groups, UID: spec.UID},
	}
	if spec.Extra != nil {
		old.Spec.Extra = make(map[string]authorizationv1beta1.ExtraValue, len(spec.Extra))
		for key, values := range spec.Extra {
			old.Spec.Extra[key] = authorizationv1beta1.ExtraValue(values)
		}
	}
	if spec.ResourceAttributes != nil {
		old.Spec.ResourceAttributes = (*authorizationv1beta1.ResourceAttributes)(spec.ResourceAttributes)
	}
	if spec.NonResourceAttributes != nil {
		old.Spec.NonResourceAttributes = (*authorizationv1beta1.NonResourceAttributes)(spec.NonResourceAttributes)
	}
	return json.Marshal(old)
}

func (w *Webhook) post(ctx context.Context, body []byte) (authorizationv1.SubjectAccessReviewStatus, error) {
	var review struct {
		metav1.TypeMeta
		Status *authorizationv1.SubjectAccessReviewStatus `json:"status"`
	}
	response, err := w.client.Post(ctx, body)
	if err != nil {
		return authorizationv1.SubjectAccessReviewStatus{}, err
	}
	if response.StatusCode < 200 || response.StatusCode > 206 {
		return authorizationv1.SubjectAccessReviewStatus{}, response.Err()
	}
	if err := json.Unmarshal(response.Body, &review); err != nil {
		return authorizationv1.SubjectAccessReviewStatus{}, fmt.Errorf("read the response of the authorization webhook: %w", err)
	}
	version := authorizationv1.SchemeGroupVersion.String()
	if w.beta {
		version = authorizationv1beta1.SchemeGroupVersion.String()
	}
	if review.Kind != "SubjectAccessReview" || review.APIVersion != version || review.Status == nil {
		return authorizationv1.SubjectAccessReviewStatus{}, fmt.Errorf("the authorization webhook returned %s %s, want SubjectAccessReview of %s", review.APIVersion, review.Kind, version)
	}
	return *review.Status, nil
}
