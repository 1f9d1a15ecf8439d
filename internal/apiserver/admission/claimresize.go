package admission

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"skiff/internal/quota"
)

// persistentVolumeClaimResize rejects expanding a claim that is not bound or whose StorageClass does not allow it.
type persistentVolumeClaimResize struct{ client lazyClient }

func (*persistentVolumeClaimResize) Name() string { return "PersistentVolumeClaimResize" }

func (*persistentVolumeClaimResize) Handles(a *Attributes) bool {
	return a.Operation == Update && a.isPlain(persistentVolumeClaims)
}

func (r *persistentVolumeClaimResize) Validate(ctx context.Context, a *Attributes) error {
	claim, err := objectOf[*corev1.PersistentVolumeClaim](a)
	if err != nil {
		return err
	}
	old, err := oldOf[*corev1.PersistentVolumeClaim](a)
	if err != nil {
		return err
	}
	if claim.Spec.Resources.Requests.Storage().Cmp(*old.Spec.Resources.Requests.Storage()) <= 0 {
		return nil
	}
	if old.Status.Phase != corev1.ClaimBound {
		return forbid(a, "Only bound persistent volume claims can be expanded") //nolint:staticcheck // clients know the text
	}
	if !r.expandable(ctx, claim, old) {
		return forbid(a, "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize")
	}
	return nil
}

func (r *persistentVolumeClaimResize) expandable(ctx context.Context, claim, old *corev1.PersistentVolumeClaim) bool {
	name := quota.StorageClassOf(claim)
	if name == "" || name != quota.StorageClassOf(old) {
		return false
	}
	class, err := get[*storagev1.StorageClass](ctx, r.client, storageClasses, "", name)
	return err == nil && class.AllowVolumeExpansion != nil && *class.AllowVolumeExpansion
}
