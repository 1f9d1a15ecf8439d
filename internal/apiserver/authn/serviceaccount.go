package authn

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"skiff/internal/kind"
)

const (
	serviceAccountPrefix = "system:serviceaccount:"
	serviceAccountsGroup = "system:serviceaccounts"

	extraPodName = "authentication.kubernetes.io/pod-name"
	extraPodUID  = "authentication.kubernetes.io/pod-uid"
	// ExtraNodeName is the extra field that names the node a service account's pod runs on.
	ExtraNodeName = "authentication.kubernetes.io/node-name"
	extraNodeUID  = "authentication.kubernetes.io/node-uid"

	// leeway allows for clock skew, and for objects that are being deleted to terminate.
	leeway = time.Minute
)

// ServiceAccountName is the user name of a service account.
func ServiceAccountName(namespace, name string) string {
	return serviceAccountPrefix + namespace + ":" + name
}

// ServiceAccountGroups are the groups of all service accounts of a namespace.
func ServiceAccountGroups(namespace string) []string {
	return []string{serviceAccountsGroup, serviceAccountsGroup + ":" + namespace}
}

// SplitServiceAccountName splits the user name of a service account into namespace and name.
func SplitServiceAccountName(username string) (namespace, name string, ok bool) {
	rest, ok := strings.CutPrefix(username, serviceAccountPrefix)
	if !ok {
		return "", "", false
	}
	namespace, name, ok = strings.Cut(rest, ":")
	if !ok || len(validation.ValidateNamespaceName(namespace, false)) > 0 || len(validation.ValidateServiceAccountName(name, false)) > 0 {
		return "", "", false
	}
	return namespace, name, true
}

// Objects gives token authenticators access to API objects. kind.Client implements it.
type Objects interface {
	Get(ctx context.Context, resource schema.GroupResource, namespace, name string) (kind.Object, error)
	Update(ctx context.Context, resource schema.GroupResource, namespace, name string, change func(obj kind.Object) error) (kind.Object, error)
}

// ServiceAccountsConfig configures ServiceAccounts.
type ServiceAccountsConfig struct {
	// Issuers are the accepted values of the iss claim, the current one first; the others are former issuers whose tokens
	// have not yet expired.
	Issuers []string
	Keys    *Keys
	// Audiences are the API server's own. Default: the issuers.
	Audiences []string
	Objects   Objects
	// SkipLookup accepts legacy tokens also after their secret or service account was deleted (--service-account-lookup=false).
	SkipLookup bool
	Log        *slog.Logger
}

// ServiceAccounts authenticates service-account tokens: bound tokens, which are valid as long as their service account and
// the pod, secret or node they are bound to exist; and legacy tokens, which are stored in a secret.
//
// A signature is verified once and cached. Expiry and the existence of the bound objects are checked on every use, so that a
// token becomes invalid together with its pod.
type ServiceAccounts struct {
	config   ServiceAccountsConfig
	issuers  map[string]bool
	digester digester
	verified digestCache[*verifiedClaims]
	// uses count the tokens that were used.
	uses tokenUses
}

// verifiedClaims are the claims of a token with a valid signature, and the identity they describe.
type verifiedClaims struct {
	claims
	keys *jose.JSONWebKeySet // the key set that verified the token
	id   Identity
}

// NewServiceAccounts makes an authenticator of service-account tokens.
func NewServiceAccounts(c ServiceAccountsConfig) (*ServiceAccounts, error) {
	if len(c.Issuers) == 0 || c.Keys == nil || c.Objects == nil {
		return nil, errors.New("service-account tokens need an issuer, keys and the objects they are bound to")
	}
	if len(c.Audiences) == 0 {
		c.Audiences = c.Issuers
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	s := &ServiceAccounts{config: c, issuers: map[string]bool{legacyIssuer: true}, digester: newDigester()}
	for _, issuer := range c.Issuers {
		s.issuers[issuer] = true
	}
	return s, nil
}

// IdentifyToken implements TokenAuthenticator.
func (s *ServiceAccounts) IdentifyToken(ctx context.Context, token string, wanted []string) (Identity, bool, error) {
	verified, err := s.verify(token)
	if verified == nil || err != nil {
		return Identity{}, false, err
	}
	if len(wanted) == 0 {
		wanted = s.config.Audiences
	}
	audiences := []string(verified.Audience)
	if len(audiences) == 0 {
		audiences = s.config.Audiences
		s.uses.legacy.Add(1)
	}
	id := verified.id
	if id.Audiences = intersect(audiences, wanted); len(id.Audiences) == 0 {
		return Identity{}, false, fmt.Errorf("token audiences %q is invalid for the target audiences %q", audiences, wanted)
	}
	if verified.Issuer == legacyIssuer {
		err = s.checkLegacy(ctx, token, verified, &id)
	} else {
		err = s.checkBound(ctx, verified, &id)
	}
	if err != nil {
		return Identity{}, false, err
	}
	return id, true, nil
}

// verify returns the claims of a token with a valid signature, nil if it is not a token of these issuers.
func (s *ServiceAccounts) verify(token string) (*verifiedClaims, error) {
	keys, key := s.config.Keys.set.Load(), s.digester.sum(token, nil)
	if verified, ok := s.verified.get(key); ok && verified.keys == keys {
		return verified, nil
	}
	t, err := parseToken(token)
	if err != nil {
		return nil, nil
	}
	verified := &verifiedClaims{keys: keys}
	if err := decodeStrict(t.claims, &verified.claims); err != nil || !s.issuers[verified.Issuer] {
		return nil, nil
	}
	candidates := candidateKeys(keys, t.keyID)
	if len(candidates) == 0 {
		return nil, errors.New("invalid signature, no keys found")
	}
	for i := range candidates {
		if err = t.verify(&candidates[i]); err == nil {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	verified.identify()
	s.verified.set(key, verified)
	return verified, nil
}

// identify sets the identity, which is the same on every use of the token.
func (c *verifiedClaims) identify() {
	namespace, account := c.Namespace, objectRef{c.ServiceAccountName, c.ServiceAccountUID}
	extra := map[string]authenticationv1.ExtraValue{}
	if b := c.Kubernetes; b != nil && c.Issuer != legacyIssuer {
		namespace, account = b.Namespace, b.ServiceAccount
		if b.Pod != nil && b.Pod.Name != "" && b.Pod.UID != "" {
			extra[extraPodName], extra[extraPodUID] = authenticationv1.ExtraValue{b.Pod.Name}, authenticationv1.ExtraValue{b.Pod.UID}
		}
		if b.Node != nil && b.Node.Name != "" {
			extra[ExtraNodeName] = authenticationv1.ExtraValue{b.Node.Name}
			if b.Node.UID != "" {
				extra[extraNodeUID] = authenticationv1.ExtraValue{b.Node.UID}
			}
		}
		if c.ID != "" {
			extra[credentialID] = authenticationv1.ExtraValue{"JTI=" + c.ID}
		}
	}
	if len(extra) == 0 {
		extra = nil
	}
	c.id.User = withAuthenticated(User{
		Username: ServiceAccountName(namespace, account.Name), UID: account.UID,
		Groups: ServiceAccountGroups(namespace), Extra: extra,
	})
	if len(c.Audience) == 0 {
		c.id.Annotations = map[string]string{"authentication.k8s.io/legacy-token": c.Subject}
	}
}

var errTokenInvalidated = errors.New("service account token has been invalidated")

// checkBound checks that the token is not expired and that all objects it is bound to exist.
func (s *ServiceAccounts) checkBound(ctx context.Context, c *verifiedClaims, id *Identity) error {
	now := time.Now()
	switch {
	case c.NotBefore != nil && now.Add(leeway).Before(c.NotBefore.Time()):
		return errors.New("service account token is not valid yet")
	case c.Expiry != nil && now.Add(-leeway).After(c.Expiry.Time()):
		return errors.New("service account token has expired")
	case c.IssuedAt != nil && now.Add(leeway).Before(c.IssuedAt.Time()):
		return errors.New("service account token is issued in the future")
	}
	b := c.Kubernetes
	if b == nil {
		b = &boundClaims{}
	}
	account, err := s.config.Objects.Get(ctx, corev1.Resource("serviceaccounts"), b.Namespace, b.ServiceAccount.Name)
	if err != nil {
		return err
	}
	if string(account.GetUID()) != b.ServiceAccount.UID {
		return fmt.Errorf("service account UID (%s) does not match claim (%s)", account.GetUID(), b.ServiceAccount.UID)
	}
	if deletedBefore(account, now.Add(-leeway)) {
		return fmt.Errorf("service account %s/%s has been deleted", b.Namespace, b.ServiceAccount.Name)
	}
	if err := s.checkExists(ctx, "secrets", b.Namespace, b.Secret, now); err != nil {
		return err
	}
	if err := s.checkExists(ctx, "pods", b.Namespace, b.Pod, now); err != nil {
		return err
	}
	// In the token of a pod the node is informational; only a token without a pod is bound to it.
	if b.Pod == nil {
		if err := s.checkExists(ctx, "nodes", "", b.Node, now); err != nil {
			return err
		}
	}
	after := b.WarnAfter
	if after == nil || *after == 0 {
		return nil
	}
	if now.After(after.Time()) {
		s.uses.stale.Add(1)
		id.Annotations = map[string]string{"authentication.k8s.io/stale-token": fmt.Sprintf(
			"subject: %s, seconds after warning threshold: %d", c.Subject, now.Unix()-int64(*after))}
	} else {
		s.uses.valid.Add(1)
	}
	return nil
}

// checkExists checks an object that the token is bound to. An object that is being deleted is accepted during its grace
// period, which its deletion timestamp includes, and for the leeway after it.
func (s *ServiceAccounts) checkExists(ctx context.Context, resource, namespace string, ref *objectRef, now time.Time) error {
	if ref == nil {
		return nil
	}
	obj, err := s.config.Objects.Get(ctx, corev1.Resource(resource), namespace, ref.Name)
	if err != nil {
		return errTokenInvalidated
	}
	if singular := strings.TrimSuffix(resource, "s"); string(obj.GetUID()) != ref.UID {
		return fmt.Errorf("%s UID (%s) does not match service account %s ref claim (%s)", singular, obj.GetUID(), singular, ref.UID)
	}
	if deletedBefore(obj, now.Add(-leeway)) {
		return errTokenInvalidated
	}
	return nil
}

func deletedBefore(obj kind.Object, t time.Time) bool {
	deleted := obj.GetDeletionTimestamp()
	return deleted != nil && deleted.Time.Before(t)
}
