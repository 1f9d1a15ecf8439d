package authn

import (
	"context"
	"crypto"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"

	"skiff/internal/kind"
)

const (
	// mountedExpiration is the lifetime in seconds that a pod's token volume requests. The odd value distinguishes it from
	// other requests.
	mountedExpiration = 60*60 + 7
	// extendedExpiration is the real lifetime of such a token, so that clients which never reload their token keep working.
	extendedExpiration = 365 * 24 * 60 * 60

	legacyIssuer = "kubernetes/serviceaccount"
)

// claims are the claims of a service-account token. The fields are in alphabetical order, as upstream encodes them.
type claims struct {
	Audience   stringOrArray    `json:"aud,omitempty"`
	Expiry     *jwt.NumericDate `json:"exp,omitempty"`
	IssuedAt   *jwt.NumericDate `json:"iat,omitempty"`
	Issuer     string           `json:"iss,omitempty"`
	ID         string           `json:"jti,omitempty"`
	Kubernetes *boundClaims     `json:"kubernetes.io,omitempty"`
	legacyClaims
	NotBefore *jwt.NumericDate `json:"nbf,omitempty"`
	Subject   string           `json:"sub,omitempty"`
}

// boundClaims are the objects a token is bound to.
type boundClaims struct {
	Namespace      string           `json:"namespace,omitempty"`
	Node           *objectRef       `json:"node,omitempty"`
	Pod            *objectRef       `json:"pod,omitempty"`
	Secret         *objectRef       `json:"secret,omitempty"`
	ServiceAccount objectRef        `json:"serviceaccount"`
	WarnAfter      *jwt.NumericDate `json:"warnafter,omitempty"`
}

// legacyClaims are the claims of a token that is stored in a secret.
type legacyClaims struct {
	Namespace          string `json:"kubernetes.io/serviceaccount/namespace,omitempty"`
	SecretName         string `json:"kubernetes.io/serviceaccount/secret.name,omitempty"`
	ServiceAccountName string `json:"kubernetes.io/serviceaccount/service-account.name,omitempty"`
	ServiceAccountUID  string `json:"kubernetes.io/serviceaccount/service-account.uid,omitempty"`
}

type objectRef struct {
	Name string `json:"name,omitempty"`
	UID  string `json:"uid,omitempty"`
}

func refTo(obj kind.Object) *objectRef {
	return &objectRef{Name: obj.GetName(), UID: string(obj.GetUID())}
}

// IssuerConfig configures an Issuer.
type IssuerConfig struct {
	// Issuer is the URL in the iss claim.
	Issuer string
	// Key is the signing key: ECDSA or RSA.
	Key crypto.Signer
	// Audiences are the API server's own. Default: the issuer.
	Audiences []string
	// MaxExpiration bounds the lifetime clients can request. Zero: no limit.
	MaxExpiration time.Duration
	// KeepExpiration issues the tokens that pods mount with the lifetime they request, instead of a year with a warning.
	KeepExpiration bool
}

// Issuer signs tokens for service accounts. It implements kind.TokenIssuer.
type Issuer struct {
	config IssuerConfig
	signer *signer
}

var _ kind.TokenIssuer = (*Issuer)(nil)

// NewIssuer makes an issuer.
func NewIssuer(c IssuerConfig) (*Issuer, error) {
	if c.Issuer == "" || c.Key == nil {
		return nil, errors.New("a token issuer needs an issuer URL and a signing key")
	}
	if c.MaxExpiration != 0 && (c.MaxExpiration < time.Hour || c.MaxExpiration > 1<<32*time.Second) {
		return nil, errors.New("the service-account-max-token-expiration must be between 1 hour and 2^32 seconds")
	}
	if len(c.Audiences) == 0 {
		c.Audiences = []string{c.Issuer}
	}
	s, err := newSigner(c.Key)
	if err != nil {
		return nil, fmt.Errorf("service-account signing key: %w", err)
	}
	return &Issuer{config: c, signer: s}, nil
}

// Audiences implements kind.TokenIssuer.
func (i *Issuer) Audiences() []string { return i.config.Audiences }

// IssueToken implements kind.TokenIssuer. It returns the lifetime that is reported to the client: a pod's token is to be
// reloaded within the hour, but is valid for a year.
func (i *Issuer) IssueToken(_ context.Context, c kind.TokenClaims) (string, int64, error) {
	if c.Secret != nil && (c.Pod != nil || c.Node != nil) {
		return "", 0, errors.New("internal error, token can only be bound to one object type")
	}
	now := time.Now()
	reported := c.ExpirationSeconds
	if limit := int64(i.config.MaxExpiration / time.Second); limit > 0 && reported > limit {
		reported = limit
	}
	bound := &boundClaims{Namespace: c.ServiceAccount.GetNamespace(), ServiceAccount: *refTo(c.ServiceAccount)}
	lifetime := reported
	if !i.config.KeepExpiration && c.Pod != nil && reported == mountedExpiration && i.onlyForAPIServer(c.Audiences) {
		bound.WarnAfter = jwt.NewNumericDate(now.Add(time.Duration(reported) * time.Second))
		lifetime = extendedExpiration
	}
	if c.Pod != nil {
		bound.Pod = refTo(c.Pod)
	}
	if c.Node != nil {
		bound.Node = refTo(c.Node)
	}
	if c.Secret != nil {
		bound.Secret = refTo(c.Secret)
	}
	id := uuid.NewString()
	token, err := i.signer.sign(claims{
		Issuer:     i.config.Issuer,
		Subject:    ServiceAccountName(bound.Namespace, bound.ServiceAccount.Name),
		Audience:   c.Audiences,
		IssuedAt:   jwt.NewNumericDate(now),
		NotBefore:  jwt.NewNumericDate(now),
		Expiry:     jwt.NewNumericDate(now.Add(time.Duration(lifetime) * time.Second)),
		ID:         id,
		Kubernetes: bound,
	})
	if err == nil && c.Annotate != nil {
		c.Annotate("authentication.kubernetes.io/issued-credential-id", "JTI="+id)
	}
	return token, reported, err
}

// onlyForAPIServer reports whether all audiences are the API server's own.
func (i *Issuer) onlyForAPIServer(audiences []string) bool {
	for _, a := range audiences {
		if !slices.Contains(i.config.Audiences, a) {
			return false
		}
	}
	return true
}

// LegacyToken signs the token of a secret of type kubernetes.io/service-account-token. It does not expire: it is valid as
// long as the secret and the service account exist.
func (i *Issuer) LegacyToken(account *corev1.ServiceAccount, secret *corev1.Secret) (string, error) {
	return i.signer.sign(claims{
		Issuer:  legacyIssuer,
		Subject: ServiceAccountName(account.Namespace, account.Name),
		legacyClaims: legacyClaims{
			Namespace: account.Namespace, SecretName: secret.Name,
			ServiceAccountName: account.Name, ServiceAccountUID: string(account.UID),
		},
	})
}
