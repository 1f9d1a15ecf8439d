package admission

import (
	"context"
	"fmt"
	mathrand "math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/sets"

	"skiff/internal/container"
)

// serviceAccount sets the service account of pods: the namespace's default if they have none. The account must exist. Its token is
// mounted into every container without another mount at the same path, and its image pull secrets are added. Mirror pods may not
// refer to service accounts or secrets.
type serviceAccount struct{ client lazyClient }

const (
	defaultAccount = "default"
	// tokenMountPath is the mount path of the token, the CA certificate and the namespace.
	tokenMountPath    = "/var/run/secrets/kubernetes.io/serviceaccount"
	tokenVolumePrefix = "kube-api-access-"
	// tokenSeconds is the requested lifetime of a mounted token: an hour and a few seconds, by which the issuer recognises it.
	tokenSeconds = 60*60 + 7
	// enforceMountableSecrets is the annotation of accounts whose pods may use only the account's secrets.
	enforceMountableSecrets = "kubernetes.io/enforce-mountable-secrets"
	// defaultAccountAttempts is how often the default account is looked up: it is created shortly after its namespace.
	defaultAccountAttempts = 10
)

func (*serviceAccount) Name() string { return "ServiceAccount" }

func (*serviceAccount) Handles(a *Attributes) bool {
	return a.is(pods) && (a.Operation == Create && a.Subresource == "" || a.Operation == Update && a.Subresource == "ephemeralcontainers")
}

func (p *serviceAccount) Mutate(ctx context.Context, a *Attributes) error {
	if a.Operation != Create {
		return nil
	}
	pod, err := objectOf[*corev1.Pod](a)
	if err != nil {
		return err
	}
	// A mirror pod must not be changed: the kubelet compares it with its static pod.
	if isMirror(pod) {
		return validateMirrorPod(a, pod)
	}
	if pod.Spec.ServiceAccountName == "" {
		pod.Spec.ServiceAccountName = defaultAccount
		pod.Spec.DeprecatedServiceAccount = defaultAccount
	}
	account, err := p.account(ctx, a, pod)
	if err != nil {
		return err
	}
	if automount(account, pod) {
		mountToken(pod)
	}
	if len(pod.Spec.ImagePullSecrets) == 0 {
		pod.Spec.ImagePullSecrets = slices.Clone(account.ImagePullSecrets)
	}
	return nil
}

func (p *serviceAccount) Validate(ctx context.Context, a *Attributes) error {
	pod, err := objectOf[*corev1.Pod](a)
	if err != nil {
		return err
	}
	if a.Operation == Create && isMirror(pod) {
		return validateMirrorPod(a, pod)
	}
	if pod.Spec.ServiceAccountName == "" {
		return forbid(a, "no service account specified for pod %s/%s", a.Namespace, pod.Name)
	}
	account, err := p.account(ctx, a, pod)
	if err != nil {
		return err
	}
	text, annotated := account.Annotations[enforceMountableSecrets]
	if !annotated {
		return nil
	}
	if enforced, _ := strconv.ParseBool(text); !enforced {
		return nil
	}
	if err := validateSecretReferences(account, pod, a.Operation == Create); err != nil {
		return Forbidden(a, err)
	}
	return nil
}

// account gets the pod's account. It waits for the default account of a new namespace.
func (p *serviceAccount) account(ctx context.Context, a *Attributes, pod *corev1.Pod) (*corev1.ServiceAccount, error) {
	name := pod.Spec.ServiceAccountName
	attempts := 1
	if name == defaultAccount {
		attempts = defaultAccountAttempts
	}
	pause := time.Duration(100+mathrand.IntN(100)) * time.Millisecond
	for i := range attempts {
		if i > 0 {
			select {
			case <-ctx.Done():
				return nil, ctx.Err()
			case <-time.After(pause):
			}
		}
		account, err := get[*corev1.ServiceAccount](ctx, p.client, serviceAccounts, a.Namespace, name)
		if err == nil {
			return account, nil
		}
		if !apierrors.IsNotFound(err) {
			return nil, forbid(a, "error looking up service account %s/%s: %w", a.Namespace, name, err)
		}
	}
	missing := apierrors.NewNotFound(schema.GroupResource{Resource: "serviceaccount"}, name)
	return nil, forbid(a, "error looking up service account %s/%s: %v", a.Namespace, name, missing)
}

func isMirror(pod *corev1.Pod) bool {
	_, ok := pod.Annotations[corev1.MirrorPodAnnotationKey]
	return ok
}

// validateMirrorPod rejects references to service accounts and secrets: by creating mirror pods, a node could gain access to them.
func validateMirrorPod(a *Attributes, pod *corev1.Pod) error {
	if pod.Spec.ServiceAccountName != "" {
		return forbid(a, "a mirror pod may not reference service accounts")
	}
	for range container.SecretNames(&pod.Spec) {
		return forbid(a, "a mirror pod may not reference secrets")
	}
	for _, volume := range pod.Spec.Volumes {
		if volume.Projected == nil {
			continue
		}
		for _, source := range volume.Projected.Sources {
			if source.ServiceAccountToken != nil {
				return forbid(a, "a mirror pod may not use ServiceAccountToken volume projections")
			}
		}
	}
	return nil
}

// automount reports whether to mount the token: the pod's setting takes precedence over the account's. The default is true.
func automount(account *corev1.ServiceAccount, pod *corev1.Pod) bool {
	for _, setting := range []*bool{pod.Spec.AutomountServiceAccountToken, account.AutomountServiceAccountToken} {
		if setting != nil {
			return *setting
		}
	}
	return true
}

// mountToken mounts the token into every container without another mount at tokenMountPath. An existing volume whose name has
// tokenVolumePrefix is used.
func mountToken(pod *corev1.Pod) {
	var name string
	for _, volume := range pod.Spec.Volumes {
		if strings.HasPrefix(volume.Name, tokenVolumePrefix) {
			name = volume.Name
			break
		}
	}
	exists := name != ""
	if !exists {
		name = tokenVolumePrefix + rand.String(5)
	}
	needed := false
	for kind, c := range container.All(&pod.Spec) {
		if kind == container.Ephemeral {
			continue // a new pod has none
		}
		if slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == tokenMountPath }) {
			continue
		}
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: name, ReadOnly: true, MountPath: tokenMountPath})
		needed = true
	}
	if needed && !exists {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{Projected: tokenVolume()}})
	}
}

func tokenVolume() *corev1.ProjectedVolumeSource {
	mode, seconds := corev1.ProjectedVolumeSourceDefaultMode, int64(tokenSeconds)
	return &corev1.ProjectedVolumeSource{
		DefaultMode: &mode,
		Sources: []corev1.VolumeProjection{
			{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token", ExpirationSeconds: &seconds}},
			{ConfigMap: &corev1.ConfigMapProjection{
				LocalObjectReference: corev1.LocalObjectReference{Name: "kube-root-ca.crt"},
				Items:                []corev1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}},
			}},
			{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{{
				Path: "namespace", FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.namespace"},
			}}}},
		},
	}
}

// validateSecretReferences rejects references to secrets that the account does not list. On an update, only ephemeral containers
// are checked.
func validateSecretReferences(account *corev1.ServiceAccount, pod *corev1.Pod, created bool) error {
	secrets := sets.New[string]()
	for _, secret := range account.Secrets {
		secrets.Insert(secret.Name)
	}
	listed := secrets.Has
	if created {
		for _, volume := range pod.Spec.Volumes {
			if volume.Secret != nil && !listed(volume.Secret.SecretName) {
				return fmt.Errorf("volume with secret.secretName=%q is not allowed because service account %s does not reference that secret",
					volume.Secret.SecretName, account.Name)
			}
		}
	}
	for kind, c := range container.All(&pod.Spec) {
		if !created && kind != container.Ephemeral {
			continue
		}
		for _, env := range c.Env {
			if env.ValueFrom != nil && env.ValueFrom.SecretKeyRef != nil && !listed(env.ValueFrom.SecretKeyRef.Name) {
				return fmt.Errorf("%s %s with envVar %s referencing secret.secretName=%q is not allowed because service account %s does not reference that secret",
					kind, c.Name, env.Name, env.ValueFrom.SecretKeyRef.Name, account.Name)
			}
		}
		for _, from := range c.EnvFrom {
			if from.SecretRef != nil && !listed(from.SecretRef.Name) {
				return fmt.Errorf("%s %s with envFrom referencing secret.secretName=%q is not allowed because service account %s does not reference that secret",
					kind, c.Name, from.SecretRef.Name, account.Name)
			}
		}
	}
	if !created {
		return nil
	}
	pullSecrets := sets.New(account.ImagePullSecrets...)
	for i, wanted := range pod.Spec.ImagePullSecrets {
		if !pullSecrets.Has(wanted) {
			return fmt.Errorf("imagePullSecrets[%d].name=%q is not allowed because service account %s does not reference that imagePullSecret",
				i, wanted.Name, account.Name)
		}
	}
	return nil
}
