package admission

import (
	"context"
	"slices"

	"skiff/internal/kind"
)

// storageObjectInUseProtection adds a finalizer to volumes, claims and volume attributes classes, which controllers remove when
// the object is no longer in use.
type storageObjectInUseProtection struct{}

func (storageObjectInUseProtection) Name() string { return "StorageObjectInUseProtection" }

func (storageObjectInUseProtection) Handles(a *Attributes) bool {
	return a.Operation == Create && a.Subresource == "" && (a.is(persistentVolumes) || a.is(persistentVolumeClaims) || a.is(volumeAttributesClasses))
}

func (storageObjectInUseProtection) Mutate(_ context.Context, a *Attributes) error {
	obj, ok := a.Object.(kind.Object)
	if !ok {
		return nil
	}
	finalizer := "kubernetes.io/pvc-protection"
	switch {
	case a.is(persistentVolumes):
		finalizer = "kubernetes.io/pv-protection"
	case a.is(volumeAttributesClasses):
		finalizer = "kubernetes.io/vac-protection"
	}
	if finalizers := obj.GetFinalizers(); !slices.Contains(finalizers, finalizer) {
		obj.SetFinalizers(append(finalizers, finalizer))
	}
	return nil
}
