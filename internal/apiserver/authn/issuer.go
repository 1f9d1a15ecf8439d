package authn

import (
	"context"
	"crypto"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"

	"skiff/internal/kind"
)

const (
	// mountedExpiration is what the token volume of a pod asks for. It is odd, so that nobody else asks for it by chance.
	mountedExpiration = 60*60 + 7
	// extendedExpiration is what such a token really lives, so that programs which never read their token again go on working.
	extendedExpiration = 365 * 24 * 60 * 60

	legacyIssuer = "kubernetes/serviceaccount"
)

// claims are what a service-account token says. The order is that of the names, as upstream writes them.
type claims struct {
	Audience   oneOrMany    `json:"aud,omitempty"`
	Expiry     *unixTime    `json:"exp,omitempty"`
	IssuedAt   *unixTime    `json:"iat,omitempty"`
	Issuer     string       `json:"iss,omitempty"`
	ID         string       `json:"jti,omitempty"`
	Kubernetes *boundClaims `json:"kubernetes.io,omitempty"`
	legacyClaims
	NotBefore *unixTime `json:"nbf,omitempty"`
	Subject   string    `json:"sub,omitempty"`
}

// boundClaims name the objects a token is bound to.
type boundClaims struct {
	Namespace      string     `json:"namespace,omitempty"`
	Node           *objectRef `json:"node,omitempty"`
	Pod            *objectRef `json:"pod,omitempty"`
	Secret         *objectRef `json:"secret,omitempty"`
	ServiceAccount objectRef  `json:"serviceaccount"`
	WarnAfter      *unixTime  `json:"warnafter,omitempty"`
}

// legacyClaims are those of a token that lives in a secret.
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

// IssuerConfig says in whose name tokens are issued.
type IssuerConfig struct {
	// Issuer is the URL that tokens carry as iss.
	Issuer string
	// Key signs: ECDSA or RSA.
	Key crypto.Signer
	// Audiences are the API server's own. Empty: the issuer.
	Audiences []string
	// MaxExpiration shortens what clients ask for. Zero: no limit.
	MaxExpiration time.Duration
	// KeepExpiration leaves the tokens that pods mount at the life they ask for, instead of a year with a warning.
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
		return nil, errors.New("an issuer of tokens needs a name and a key")
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

// IssueToken implements kind.TokenIssuer. The life it returns is the one the client should count on: the token that a pod
// mounts is to be read again within the hour, but is honoured for a year.
func (i *Issuer) IssueToken(_ context.Context, c kind.TokenClaims) (string, int64, error) {
	if c.Secret != nil && (c.Pod != nil || c.Node != nil) {
		return "", 0, errors.New("internal error, token can only be bound to one object type")
	}
	now := time.Now()
	told := c.ExpirationSeconds
	if limit := int64(i.config.MaxExpiration / time.Second); limit > 0 && told > limit {
		told = limit
	}
	bound := &boundClaims{Namespace: c.ServiceAccount.GetNamespace(), ServiceAccount: *refTo(c.ServiceAccount)}
	life := told
	if !i.config.KeepExpiration && c.Pod != nil && told == mountedExpiration && i.own(c.Audiences) {
		bound.WarnAfter = newUnixTime(now.Add(time.Duration(told) * time.Second))
		life = extendedExpiration
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
		IssuedAt:   newUnixTime(now),
		NotBefore:  newUnixTime(now),
		Expiry:     newUnixTime(now.Add(time.Duration(life) * time.Second)),
		ID:         id,
		Kubernetes: bound,
	})
	if err == nil && c.Annotate != nil {
		c.Annotate("authentication.kubernetes.io/issued-credential-id", "JTI="+id)
	}
	return token, told, err
}

// own reports whether a token for these audiences is for the API server alone.
func (i *Issuer) own(audiences []string) bool {
	for _, a := range audiences {
		if !slices.Contains(i.config.Audiences, a) {
			return false
		}
	}
	return true
}

// LegacyToken signs the token that is kept in a secret of type kubernetes.io/service-account-token. It has no end: it
// counts as long as the secret and the service account exist.
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
