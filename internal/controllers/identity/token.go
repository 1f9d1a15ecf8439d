package identity

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/client"
	"skiff/internal/controller"
)

// TokenSigner signs the tokens in secrets. The API server's token issuer implements it.
type TokenSigner interface {
	LegacyToken(account *corev1.ServiceAccount, secret *corev1.Secret) (string, error)
}

// Tokens fills secrets of type kubernetes.io/service-account-token that users create, and deletes them with their service account.
// rootCA, as PEM, is stored with the token; it may be empty. It is disabled without a signer.
func Tokens(signer TokenSigner, rootCA []byte) controller.Definition {
	return controller.Definition{
		Name: "serviceaccount-token-controller", Aliases: []string{"serviceaccount-token"}, Queue: "serviceaccount_tokens_service", Workers: 5,
		DisabledByDefault: signer == nil,
		New: func(s *controller.Setup) (controller.Syncer, error) {
			if signer == nil {
				return nil, errors.New("no key to sign service account tokens")
			}
			c := &tokens{
				setup: s, signer: signer, rootCA: rootCA,
				accounts: client.InformerFor[*corev1.ServiceAccount](s.Informers), secrets: client.InformerFor[*corev1.Secret](s.Informers),
			}
			enqueue := func(secret *corev1.Secret) {
				if secret.Type == corev1.SecretTypeServiceAccountToken {
					s.Enqueue(controller.KeyOf(secret))
				}
			}
			onDelete := func(secret *corev1.Secret) {
				if secret.Type == corev1.SecretTypeServiceAccountToken {
					s.Enqueue(forgetting(secret))
				}
			}
			if err := c.secrets.AddEventHandler(enqueue, func(_, secret *corev1.Secret) { enqueue(secret) }, onDelete); err != nil {
				return nil, fmt.Errorf("watch secrets: %w", err)
			}
			if err := c.secrets.EnsureIndex(tokensByAccount, func(secret *corev1.Secret) []string {
				if secret.Type != corev1.SecretTypeServiceAccountToken {
					return nil
				}
				return []string{secret.Namespace + "/" + secret.Annotations[corev1.ServiceAccountNameKey]}
			}); err != nil {
				return nil, fmt.Errorf("index secrets by service account: %w", err)
			}
			ofAccount := func(account *corev1.ServiceAccount) {
				// The index exists: it was added above.
				secrets, _ := c.secrets.ByIndex(tokensByAccount, account.Namespace+"/"+account.Name)
				for _, secret := range secrets {
					enqueue(secret)
				}
			}
			if err := c.accounts.AddEventHandler(ofAccount, nil, ofAccount); err != nil {
				return nil, fmt.Errorf("watch service accounts: %w", err)
			}
			return c, nil
		},
	}
}

// tokensByAccount is the index of token secrets by service account.
const tokensByAccount = "service account"

// forgetPrefix marks keys for the removal of a deleted secret from its service account: the prefix, the account's name and UID,
// and the secret's name, separated by slashes, which names do not contain.
const forgetPrefix = "forget/"

// forgetting returns the key for the removal of a deleted secret from its service account.
func forgetting(secret *corev1.Secret) controller.Key {
	parts := []string{secret.Annotations[corev1.ServiceAccountNameKey], secret.Annotations[corev1.ServiceAccountUIDKey], secret.Name}
	return controller.Key{Namespace: secret.Namespace, Name: forgetPrefix + strings.Join(parts, "/")}
}

type tokens struct {
	setup    *controller.Setup
	signer   TokenSigner
	rootCA   []byte
	accounts client.Informer[*corev1.ServiceAccount]
	secrets  client.Informer[*corev1.Secret]
}

// Sync fills a secret, deletes it if its account does not exist, or removes a deleted secret from its account.
func (c *tokens) Sync(ctx context.Context, key controller.Key) error {
	if rest, ok := strings.CutPrefix(key.Name, forgetPrefix); ok {
		parts := strings.SplitN(rest, "/", 3)
		return c.forget(ctx, key.Namespace, parts[0], types.UID(parts[1]), parts[2])
	}
	secret, ok := c.secrets.Get(key.Namespace, key.Name)
	if !ok || secret.Type != corev1.SecretTypeServiceAccountToken || secret.Annotations[corev1.ServiceAccountNameKey] == "" {
		return nil
	}
	account, err := c.account(ctx, secret)
	if err != nil {
		return err
	}
	var plan controller.Plan
	if account == nil {
		plan.AddStep(controller.NewDelete(secret).Ignoring(metav1.StatusReasonConflict))
		return c.setup.Apply(ctx, key, plan)
	}
	next, err := c.fill(secret, account)
	if err != nil || next == nil {
		return err
	}
	plan.AddStep(controller.NewUpdate(next).Ignoring(metav1.StatusReasonNotFound))
	return c.setup.Apply(ctx, key, plan)
}

// account returns the service account of a secret, nil if it does not exist. If it is not in the cache it is read live: the
// account may be new.
func (c *tokens) account(ctx context.Context, secret *corev1.Secret) (*corev1.ServiceAccount, error) {
	name, uid := secret.Annotations[corev1.ServiceAccountNameKey], types.UID(secret.Annotations[corev1.ServiceAccountUIDKey])
	if account, ok := c.accounts.Get(secret.Namespace, name); ok && (uid == "" || uid == account.UID) {
		return account, nil
	}
	account, err := client.For[*corev1.ServiceAccount](c.setup.Client).Get(ctx, secret.Namespace, name)
	if apierrors.IsNotFound(err) || err == nil && uid != "" && uid != account.UID {
		return nil, nil
	}
	return account, err
}

// fill returns the secret with the missing data, nil if nothing is missing.
func (c *tokens) fill(secret *corev1.Secret, account *corev1.ServiceAccount) (*corev1.Secret, error) {
	needsCA := len(c.rootCA) > 0 && !bytes.Equal(secret.Data[corev1.ServiceAccountRootCAKey], c.rootCA)
	needsNamespace := len(secret.Data[corev1.ServiceAccountNamespaceKey]) == 0
	needsToken := len(secret.Data[corev1.ServiceAccountTokenKey]) == 0
	if !needsCA && !needsNamespace && !needsToken {
		return nil, nil
	}
	next := secret.DeepCopy()
	if next.Data == nil {
		next.Data = map[string][]byte{}
	}
	if needsCA {
		next.Data[corev1.ServiceAccountRootCAKey] = c.rootCA
	}
	if needsNamespace {
		next.Data[corev1.ServiceAccountNamespaceKey] = []byte(secret.Namespace)
	}
	if needsToken {
		token, err := c.signer.LegacyToken(account, secret)
		if err != nil {
			return nil, fmt.Errorf("sign token: %w", err)
		}
		next.Data[corev1.ServiceAccountTokenKey] = []byte(token)
	}
	metav1.SetMetaDataAnnotation(&next.ObjectMeta, corev1.ServiceAccountNameKey, account.Name)
	metav1.SetMetaDataAnnotation(&next.ObjectMeta, corev1.ServiceAccountUIDKey, string(account.UID))
	return next, nil
}

// forget removes a secret from the list of its service account, unless the account was recreated.
func (c *tokens) forget(ctx context.Context, namespace, name string, uid types.UID, secret string) error {
	named := func(ref corev1.ObjectReference) bool { return ref.Name == secret }
	if _, again := c.secrets.Get(namespace, secret); again {
		return nil
	}
	all := client.For[*corev1.ServiceAccount](c.setup.Client)
	account, err := all.Get(ctx, namespace, name)
	if err != nil || uid != "" && uid != account.UID || !slices.ContainsFunc(account.Secrets, named) {
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	}
	next := account.DeepCopy()
	next.Secrets = slices.DeleteFunc(next.Secrets, named)
	if _, err = all.Update(ctx, next, client.WriteOptions{}); apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
