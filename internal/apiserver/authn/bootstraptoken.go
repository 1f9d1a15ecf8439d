package authn

import (
	"context"
	"crypto/subtle"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

const (
	bootstrapSecretType   = corev1.SecretType("bootstrap.kubernetes.io/token")
	bootstrapSecretPrefix = "bootstrap-token-"
	bootstrapUserPrefix   = "system:bootstrap:"
	bootstrapGroup        = "system:bootstrappers"

	bootstrapIDLength     = 6
	bootstrapSecretLength = 16
	bootstrapGroupLength  = 256 // of what follows the common group's name
)

// BootstrapTokens accepts the tokens by which new nodes join: id.secret, kept in the secret kube-system/bootstrap-token-<id>.
type BootstrapTokens struct {
	objects Objects
}

// NewBootstrapTokens makes an authenticator for bootstrap tokens.
func NewBootstrapTokens(objects Objects) *BootstrapTokens { return &BootstrapTokens{objects} }

func (b *BootstrapTokens) find(ctx context.Context, token string) (User, bool, error) {
	id, secret, ok := strings.Cut(token, ".")
	if !ok || len(id) != bootstrapIDLength || len(secret) != bootstrapSecretLength || !isAlphanumeric(id) || !isAlphanumeric(secret) {
		return User{}, false, nil
	}
	obj, err := b.objects.Get(ctx, corev1.Resource("secrets"), "kube-system", bootstrapSecretPrefix+id)
	if apierrors.IsNotFound(err) {
		return User{}, false, nil
	}
	if err != nil {
		return User{}, false, err
	}
	kept, ok := obj.(*corev1.Secret)
	if !ok || kept.DeletionTimestamp != nil || kept.Type != bootstrapSecretType {
		return User{}, false, nil
	}
	if subtle.ConstantTimeCompare(kept.Data["token-secret"], []byte(secret)) != 1 || string(kept.Data["token-id"]) != id {
		return User{}, false, nil
	}
	groups, ok := bootstrapGroups(string(kept.Data["auth-extra-groups"]))
	if !ok || string(kept.Data["usage-bootstrap-authentication"]) != "true" || bootstrapExpired(string(kept.Data["expiration"]), time.Now()) {
		return User{}, false, nil
	}
	return User{Username: bootstrapUserPrefix + id, Groups: groups}, true, nil
}

// isAlphanumeric looks at every character, however early the first wrong one comes.
func isAlphanumeric(s string) bool {
	good := true
	for i := range len(s) {
		c := s[i]
		good = (c >= '0' && c <= '9' || c >= 'a' && c <= 'z') && good
	}
	return good
}

// bootstrapExpired: a date nobody can read is past.
func bootstrapExpired(date string, now time.Time) bool {
	if date == "" {
		return false
	}
	t, err := time.Parse(time.RFC3339, date)
	return err != nil || !now.Before(t)
}

func bootstrapGroups(extra string) ([]string, bool) {
	groups := []string{bootstrapGroup}
	if extra == "" {
		return groups, true
	}
	for group := range strings.SplitSeq(extra, ",") {
		if !isBootstrapGroup(group) {
			return nil, false
		}
		groups = append(groups, group)
	}
	slices.Sort(groups)
	return slices.Compact(groups), true
}

// isBootstrapGroup: extra groups are below the common one, so that a bootstrap token cannot make its bearer anything else.
func isBootstrapGroup(group string) bool {
	name, ok := strings.CutPrefix(group, bootstrapGroup+":")
	return ok && name != "" && len(name) <= bootstrapGroupLength &&
		isAlphanumeric(strings.NewReplacer(":", "", "-", "").Replace(name)) && isAlphanumeric(name[len(name)-1:])
}
