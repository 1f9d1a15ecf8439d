package authn

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

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

	// leeway allows for clocks that differ a little, and for what is being deleted to finish.
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

// SplitServiceAccountName takes the user name of a service account apart.
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

// Objects is what token authenticators look up. A kind.Client is one.
type Objects interface {
	Get(ctx context.Context, resource schema.GroupResource, namespace, name string) (kind.Object, error)
	Update(ctx context.Context, resource schema.GroupResource, namespace, name string, change func(obj kind.Object) error) (kind.Object, error)
}

// ServiceAccountsConfig says whose tokens count.
type ServiceAccountsConfig struct {
	// Issuers are the names tokens may carry, today's first; older ones count until their tokens have expired.
	Issuers []string
	Keys    *Keys
	// Audiences are the API server's own. Empty: the issuers.
	Audiences []string
	Objects   Objects
	Log       *slog.Logger
}

// ServiceAccounts accepts the tokens of service accounts: those that are bound to a service account, and perhaps to a pod,
// a secret or a node, and count as long as these exist; and those of old that live in a secret.
//
// A signature is verified once; that the token is in time and its objects still exist is checked on every use, so that a
// token ends with its pod and not some seconds later.
type ServiceAccounts struct {
	config   ServiceAccountsConfig
	issuers  map[string]bool
	digester digester
	seen     recent[*signedClaims]
}

// signedClaims are the claims of a token whose signature is good, and the identity they stand for.
type signedClaims struct {
	claims
	keys *keySet // that have verified it
	id   Identity
}

// NewServiceAccounts makes an authenticator for the tokens of service accounts.
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
	signed, err := s.verified(token)
	if signed == nil || err != nil {
		return Identity{}, false, err
	}
	if len(wanted) == 0 {
		wanted = s.config.Audiences
	}
	audiences := []string(signed.Audience)
	if len(audiences) == 0 {
		audiences = s.config.Audiences
	}
	id := signed.id
	if id.Audiences = intersect(audiences, wanted); len(id.Audiences) == 0 {
		return Identity{}, false, fmt.Errorf("token audiences %q is invalid for the target audiences %q", audiences, wanted)
	}
	if signed.Issuer == legacyIssuer {
		err = s.checkLegacy(ctx, token, signed, &id)
	} else {
		err = s.checkBound(ctx, signed, &id)
	}
	if err != nil {
		return Identity{}, false, err
	}
	return id, true, nil
}

// verified returns the claims of a token whose signature is good, nil when the token is not one of ours.
func (s *ServiceAccounts) verified(token string) (*signedClaims, error) {
	keys, key := s.config.Keys.set.Load(), s.digester.of(token, nil)
	if signed, ok := s.seen.get(key); ok && signed.keys == keys {
		return signed, nil
	}
	t, err := parseJWT(token)
	if err != nil {
		return nil, nil
	}
	signed := &signedClaims{keys: keys}
	if err := decodeStrict(t.claims, &signed.claims); err != nil || !s.issuers[signed.Issuer] {
		return nil, nil
	}
	candidates := keys.candidates(t.keyID)
	if len(candidates) == 0 {
		return nil, errors.New("invalid signature, no keys found")
	}
	for _, candidate := range candidates {
		if err = t.verify(candidate.key); err == nil {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	signed.identify()
	s.seen.set(key, signed)
	return signed, nil
}

// identify prepares the identity, which is the same on every use.
func (c *signedClaims) identify() {
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

// checkBound checks that the token is in time and that everything it is bound to still exists.
func (s *ServiceAccounts) checkBound(ctx context.Context, c *signedClaims, id *Identity) error {
	now := time.Now()
	switch {
	case c.NotBefore != nil && now.Add(leeway).Before(c.NotBefore.time()):
		return errors.New("service account token is not valid yet")
	case c.Expiry != nil && now.Add(-leeway).After(c.Expiry.time()):
		return errors.New("service account token has expired")
	case c.IssuedAt != nil && now.Add(leeway).Before(c.IssuedAt.time()):
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
	// A pod's token names the node for information; only a token without a pod is bound to it.
	if b.Pod == nil {
		if err := s.checkExists(ctx, "nodes", "", b.Node, now); err != nil {
			return err
		}
	}
	if after := b.WarnAfter; after != nil && *after != 0 && now.After(after.time()) {
		id.Annotations = map[string]string{"authentication.k8s.io/stale-token": fmt.Sprintf(
			"subject: %s, seconds after warning threshold: %d", c.Subject, now.Unix()-int64(*after))}
	}
	return nil
}

// checkExists checks an object that the token is bound to. One that is being deleted counts for as long as its grace period,
// which its deletion timestamp includes, and a minute more.
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
