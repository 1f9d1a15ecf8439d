package cleanup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/client"
	"skiff/internal/controller"
)

const (
	day              = 24 * time.Hour
	tokenCheckPeriod = day
	// DefaultLegacyTokenUnusedPeriod is the default time after which an unused token secret becomes invalid.
	DefaultLegacyTokenUnusedPeriod = 365 * day

	lastUsedLabel     = "kubernetes.io/legacy-token-last-used"
	invalidSinceLabel = "kubernetes.io/legacy-token-invalid-since"

	// The ConfigMap in which the API server records since when it tracks the use of tokens.
	trackingMap = "kube-apiserver-legacy-service-account-token-tracking"
	trackingKey = "since"
)

// LegacyTokens marks auto-generated service account token secrets as invalid if they have not been used for life, and deletes them
// after the same period again.
func LegacyTokens(life time.Duration) controller.Definition {
	return controller.Definition{
		Name: "legacy-serviceaccount-token-cleaner-controller", Aliases: []string{"legacy-service-account-token-cleaner"}, Queue: "legacy_serviceaccount_token_cleaner",
		New: func(s *controller.Setup) (controller.Syncer, error) {
			secrets, accounts := client.InformerFor[*corev1.Secret](s.Informers), client.InformerFor[*corev1.ServiceAccount](s.Informers)
			pods, configMaps := client.InformerFor[*corev1.Pod](s.Informers), client.InformerFor[*corev1.ConfigMap](s.Informers)
			return periodically(s, tokenCheckPeriod, func(ctx context.Context, key controller.Key) error {
				now := time.Now().UTC()
				tracking, _ := configMaps.Get(metav1.NamespaceSystem, trackingMap)
				if !trackedFor(tracking, life, now) {
					return nil
				}
				var failures []error
				for _, secret := range secrets.List("", nil) {
					account, _ := accounts.Get(secret.Namespace, secret.Annotations[corev1.ServiceAccountNameKey])
					view := tokenView{secret: secret, account: account, unusedPeriod: life, now: now}
					if verdict := view.action(); verdict != keepToken && !isReferenced(pods.List(secret.Namespace, nil), secret.Name) {
						failures = append(failures, s.Apply(ctx, key, view.plan(verdict)))
					}
				}
				return errors.Join(failures...)
			}), nil
		},
	}
}

// trackedFor reports whether the use of tokens has been tracked for that long. The start is known to the day only.
func trackedFor(tracking *corev1.ConfigMap, life time.Duration, now time.Time) bool {
	if tracking == nil {
		return false
	}
	since, err := time.Parse(time.DateOnly, tracking.Data[trackingKey])
	return err == nil && !now.Before(since.Add(day).Add(life))
}

type tokenView struct {
	secret       *corev1.Secret
	account      *corev1.ServiceAccount // nil if it does not exist
	unusedPeriod time.Duration
	now          time.Time
}

type tokenAction int

const (
	keepToken tokenAction = iota
	invalidateToken
	deleteToken
)

// action decides what to do with a secret. Only secrets listed in the service account are auto-generated.
func (v tokenView) action() tokenAction {
	s := v.secret
	unusedSince := v.now.Add(-v.unusedPeriod)
	if s.Type != corev1.SecretTypeServiceAccountToken || s.DeletionTimestamp != nil || !s.CreationTimestamp.Time.Before(unusedSince) || v.account == nil {
		return keepToken
	}
	if uid := s.Annotations[corev1.ServiceAccountUIDKey]; uid != "" && uid != string(v.account.UID) {
		return keepToken
	}
	if !slices.ContainsFunc(v.account.Secrets, func(ref corev1.ObjectReference) bool { return ref.Name == s.Name }) {
		return keepToken
	}
	limit := unusedSince.Format(time.DateOnly)
	if used, ok := s.Labels[lastUsedLabel]; ok {
		if _, err := time.Parse(time.DateOnly, used); err != nil || used >= limit {
			return keepToken
		}
	}
	invalid := s.Labels[invalidSinceLabel]
	if _, err := time.Parse(time.DateOnly, invalid); err != nil {
		return invalidateToken
	}
	if invalid >= limit {
		return keepToken
	}
	return deleteToken
}

func (v tokenView) plan(verdict tokenAction) controller.Plan {
	var plan controller.Plan
	switch verdict {
	case invalidateToken:
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
			"uid": v.secret.UID, "labels": map[string]string{invalidSinceLabel: v.now.Format(time.DateOnly)}}})
		if err != nil {
			panic(fmt.Sprintf("encode strings: %v", err))
		}
		plan.AddStep(controller.NewPatch(v.secret, client.MergePatch, patch).Ignoring(metav1.StatusReasonNotFound))
	case deleteToken:
		deletion := controller.NewDelete(v.secret).Ignoring(metav1.StatusReasonConflict)
		// Do not delete it if it has been used meanwhile.
		deletion.DeleteOptions.Preconditions.ResourceVersion = &v.secret.ResourceVersion
		plan.AddStep(deletion)
	}
	return plan
}

// isReferenced reports whether a pod refers to the secret.
func isReferenced(pods []*corev1.Pod, secret string) bool {
	return slices.ContainsFunc(pods, func(pod *corev1.Pod) bool { return slices.Contains(secretsOf(pod), secret) })
}

// secretsOf returns the names of all secrets a pod refers to.
func secretsOf(pod *corev1.Pod) []string {
	var names []string
	for _, ref := range pod.Spec.ImagePullSecrets {
		names = append(names, ref.Name)
	}
	container := func(env []corev1.EnvVar, from []corev1.EnvFromSource) {
		for _, e := range env {
			if e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil {
				names = append(names, e.ValueFrom.SecretKeyRef.Name)
			}
		}
		for _, f := range from {
			if f.SecretRef != nil {
				names = append(names, f.SecretRef.Name)
			}
		}
	}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		container(c.Env, c.EnvFrom)
	}
	for _, c := range pod.Spec.EphemeralContainers {
		container(c.Env, c.EnvFrom)
	}
	for i := range pod.Spec.Volumes {
		names = append(names, secretsOfVolume(&pod.Spec.Volumes[i].VolumeSource)...)
	}
	return names
}

func secretsOfVolume(source *corev1.VolumeSource) []string {
	var refs []*corev1.LocalObjectReference
	switch {
	case source.Secret != nil:
		return []string{source.Secret.SecretName}
	case source.AzureFile != nil:
		return []string{source.AzureFile.SecretName}
	case source.Projected != nil:
		var names []string
		for _, projection := range source.Projected.Sources {
			if projection.Secret != nil {
				names = append(names, projection.Secret.Name)
			}
		}
		return names
	case source.CephFS != nil:
		refs = append(refs, source.CephFS.SecretRef)
	case source.Cinder != nil:
		refs = append(refs, source.Cinder.SecretRef)
	case source.FlexVolume != nil:
		refs = append(refs, source.FlexVolume.SecretRef)
	case source.RBD != nil:
		refs = append(refs, source.RBD.SecretRef)
	case source.ScaleIO != nil:
		refs = append(refs, source.ScaleIO.SecretRef)
	case source.ISCSI != nil:
		refs = append(refs, source.ISCSI.SecretRef)
	case source.StorageOS != nil:
		refs = append(refs, source.StorageOS.SecretRef)
	case source.CSI != nil:
		refs = append(refs, source.CSI.NodePublishSecretRef)
	}
	if len(refs) == 0 || refs[0] == nil {
		return nil
	}
	return []string{refs[0].Name}
}
