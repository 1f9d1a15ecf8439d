package identity

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/client"
	"skiff/internal/controller"
)

// The format of bootstrap token secrets.
const (
	bootstrapSecretType   = "bootstrap.kubernetes.io/token"
	bootstrapSecretPrefix = "bootstrap-token-"
	tokenIDKey            = "token-id"
	tokenSecretKey        = "token-secret"
	tokenExpirationKey    = "expiration"
	tokenSigningKey       = "usage-bootstrap-signing"

	clusterInfoName    = "cluster-info"
	clusterInfoKey     = "kubeconfig"
	signatureKeyPrefix = "jws-kubeconfig-"
)

// bootstrapTokens is the index of bootstrap tokens, and its only value.
const bootstrapTokens = "bootstrap token"

var clusterInfo = controller.Key{Namespace: metav1.NamespacePublic, Name: clusterInfoName}

// BootstrapSigner signs the cluster-info ConfigMap with every bootstrap token, so that a joining node that has only a token can
// verify the cluster.
var BootstrapSigner = controller.Definition{
	Name: "bootstrap-signer-controller", Aliases: []string{"bootstrapsigner"}, Queue: "bootstrap_signer_queue", DisabledByDefault: true,
	New: func(s *controller.Setup) (controller.Syncer, error) {
		c := &bootstrapSigner{maps: client.InformerFor[*corev1.ConfigMap](s.Informers), secrets: client.InformerFor[*corev1.Secret](s.Informers)}
		err := c.secrets.EnsureIndex(bootstrapTokens, func(secret *corev1.Secret) []string {
			if !isBootstrapToken(secret) {
				return nil
			}
			return []string{bootstrapTokens}
		})
		if err != nil {
			return nil, fmt.Errorf("index bootstrap tokens: %w", err)
		}
		err = controller.Watch(s, func(m *corev1.ConfigMap) []controller.Key {
			if controller.KeyOf(m) == clusterInfo {
				return []controller.Key{clusterInfo}
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		return controller.NewSyncer(s, c), controller.Watch(s, func(secret *corev1.Secret) []controller.Key {
			if isBootstrapToken(secret) {
				return []controller.Key{clusterInfo}
			}
			return nil
		})
	},
}

func isBootstrapToken(secret *corev1.Secret) bool {
	return secret.Type == bootstrapSecretType && secret.Namespace == metav1.NamespaceSystem
}

type bootstrapSigner struct {
	maps    client.Informer[*corev1.ConfigMap]
	secrets client.Informer[*corev1.Secret]
}

type bootstrapView struct {
	info    *corev1.ConfigMap
	secrets []*corev1.Secret
	now     time.Time
}

// Observe gathers the ConfigMap and the tokens.
func (c *bootstrapSigner) Observe(key controller.Key) (bootstrapView, bool) {
	info, ok := c.maps.Get(key.Namespace, key.Name)
	// The index exists: New added it.
	secrets, _ := c.secrets.ByIndex(bootstrapTokens, bootstrapTokens)
	return bootstrapView{info: info, secrets: secrets, now: time.Now()}, ok
}

// Reconcile updates the signatures to those of the existing tokens.
func (c *bootstrapSigner) Reconcile(v bootstrapView) controller.Plan {
	var plan controller.Plan
	content, ok := v.info.Data[clusterInfoKey]
	if !ok {
		return plan
	}
	data := map[string]string{}
	for key, value := range v.info.Data {
		if !strings.HasPrefix(key, signatureKeyPrefix) {
			data[key] = value
		}
	}
	for _, secret := range v.secrets {
		if id, key, ok := signingToken(secret, v.now); ok {
			data[signatureKeyPrefix+id] = detachedSignature(content, id, key)
		}
	}
	if !maps.Equal(data, v.info.Data) {
		next := v.info.DeepCopy()
		next.Data = data
		plan.AddStep(controller.NewUpdate(next).Ignoring(metav1.StatusReasonNotFound))
	}
	return plan
}

// signingToken returns the ID and secret of a token that is valid for signing.
func signingToken(secret *corev1.Secret, now time.Time) (id, key string, ok bool) {
	id, key = string(secret.Data[tokenIDKey]), string(secret.Data[tokenSecretKey])
	if !isBootstrapToken(secret) || !isTokenID(id) || key == "" || secret.Name != bootstrapSecretPrefix+id || string(secret.Data[tokenSigningKey]) != "true" {
		return "", "", false
	}
	if _, expired := timeLeft(secret, now); expired {
		return "", "", false
	}
	return id, key, true
}

// isTokenID reports whether id has six lower-case letters or digits.
func isTokenID(id string) bool {
	return len(id) == 6 && !strings.ContainsFunc(id, func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') })
}

// timeLeft returns the time until a token expires, zero if it never does. A malformed time counts as expired.
func timeLeft(secret *corev1.Secret, now time.Time) (left time.Duration, expired bool) {
	text := string(secret.Data[tokenExpirationKey])
	if text == "" {
		return 0, false
	}
	end, err := time.Parse(time.RFC3339, text)
	if err != nil || !now.Before(end) {
		return 0, true
	}
	return end.Sub(now), false
}

// detachedSignature is a JSON Web Signature (HS256) with detached content, RFC 7515 appendix F.
func detachedSignature(content, id, key string) string {
	header, err := json.Marshal(struct {
		Algorithm string `json:"alg"`
		KeyID     string `json:"kid"`
	}{"HS256", id})
	if err != nil {
		panic(err) // marshalling strings cannot fail
	}
	encoded := base64.RawURLEncoding.EncodeToString(header)
	mac := hmac.New(sha256.New, []byte(key))
	mac.Write([]byte(encoded + "." + base64.RawURLEncoding.EncodeToString([]byte(content))))
	return encoded + ".." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// BootstrapTokenCleaner deletes expired bootstrap tokens.
var BootstrapTokenCleaner = controller.Definition{
	Name: "token-cleaner-controller", Aliases: []string{"tokencleaner"}, Queue: "token_cleaner", DisabledByDefault: true,
	New: func(s *controller.Setup) (controller.Syncer, error) {
		secrets := client.InformerFor[*corev1.Secret](s.Informers)
		err := controller.Watch(s, func(secret *corev1.Secret) []controller.Key {
			if isBootstrapToken(secret) {
				return []controller.Key{controller.KeyOf(secret)}
			}
			return nil
		})
		return controller.SyncFunc(func(ctx context.Context, key controller.Key) error {
			secret, ok := secrets.Get(key.Namespace, key.Name)
			if !ok || !isBootstrapToken(secret) {
				return nil
			}
			return s.Apply(ctx, key, cleanToken(secret, time.Now()))
		}), err
	},
}

func cleanToken(secret *corev1.Secret, now time.Time) controller.Plan {
	var plan controller.Plan
	left, expired := timeLeft(secret, now)
	if expired {
		plan.AddStep(controller.NewDelete(secret).Ignoring(metav1.StatusReasonConflict))
	}
	plan.Requeue(left)
	return plan
}
