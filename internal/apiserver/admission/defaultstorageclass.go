package admission

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
)

// defaultStorageClass sets the default StorageClass of claims without a class.
type defaultStorageClass struct{ client lazyClient }

func (*defaultStorageClass) Name() string { return "DefaultStorageClass" }

func (*defaultStorageClass) Handles(a *Attributes) bool {
	return a.Operation == Create && a.isPlain(persistentVolumeClaims)
}

func (p *defaultStorageClass) Mutate(ctx context.Context, a *Attributes) error {
	claim, err := objectOf[*corev1.PersistentVolumeClaim](a)
	if err != nil {
		return err
	}
	// An empty name requests a volume without a class.
	if _, annotated := claim.Annotations[corev1.BetaStorageClassAnnotation]; annotated || claim.Spec.StorageClassName != nil {
		return nil
	}
	classes, err := list[*storagev1.StorageClass](ctx, p.client, storageClasses, "")
	if err != nil {
		return Forbidden(a, err)
	}
	if class, ok := newestDefault(classes, isDefaultStorageClass); ok {
		name := class.Name
		claim.Spec.StorageClassName = &name
	}
	return nil
}

func isDefaultStorageClass(annotations map[string]string) bool {
	return annotations["storageclass.kubernetes.io/is-default-class"] == "true" ||
		annotations["storageclass.beta.kubernetes.io/is-default-class"] == "true"
}
