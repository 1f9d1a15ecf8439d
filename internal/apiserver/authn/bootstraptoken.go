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
	bootstrapGroupLength  = 256 // of the part after bootstrapGroup
)

// BootstrapTokens authenticates the tokens with which new nodes join: id.secret, stored in the Secret
// kube-system/bootstrap-token-<id>.
type BootstrapTokens struct {
	objects Objects
}

// NewBootstrapTokens makes an authenticator for bootstrap tokens.
func NewBootstrapTokens(objects Objects) *BootstrapTokens { return &BootstrapTokens{objects} }

func (b *BootstrapTokens) authenticate(ctx context.Context, token string) (User, bool, error) {
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
	stored, ok := obj.(*corev1.Secret)
	if !ok || stored.DeletionTimestamp != nil || stored.Type != bootstrapSecretType {
		return User{}, false, nil
	}
	if subtle.ConstantTimeCompare(stored.Data["token-secret"], []byte(secret)) != 1 || string(stored.Data["token-id"]) != id {
		return User{}, false, nil
	}
	groups, ok := bootstrapGroups(string(stored.Data["auth-extra-groups"]))
	if !ok || string(stored.Data["usage-bootstrap-authentication"]) != "true" || bootstrapExpired(string(stored.Data["expiration"]), time.Now()) {
		return User{}, false, nil
	}
	return User{Username: bootstrapUserPrefix + id, Groups: groups}, true, nil
}

// isAlphanumeric checks every character, so that its time does not reveal the first wrong one.
func isAlphanumeric(s string) bool {
	valid := true
	for i := range len(s) {
		c := s[i]
		valid = (c >= '0' && c <= '9' || c >= 'a' && c <= 'z') && valid
	}
	return valid
}

// bootstrapExpired reports whether the date has passed. A date that cannot be parsed has.
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

// isBootstrapGroup reports whether a bootstrap token may have the extra group: all have the prefix of bootstrapGroup.
func isBootstrapGroup(group string) bool {
	name, ok := strings.CutPrefix(group, bootstrapGroup+":")
	return ok && name != "" && len(name) <= bootstrapGroupLength &&
		isAlphanumeric(strings.NewReplacer(":", "", "-", "").Replace(name)) && isAlphanumeric(name[len(name)-1:])
}
