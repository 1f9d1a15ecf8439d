package admission

import (
	"context"
	"slices"

	"skiff/internal/kind"
)

// storageObjectInUseProtection keeps volumes, claims and classes from vanishing while something uses them: a finalizer
// that controllers take off when nothing does.
type storageObjectInUseProtection struct{}

func (storageObjectInUseProtection) Name() string { return "StorageObjectInUseProtection" }

func (storageObjectInUseProtection) Handles(a *Attributes) bool {
	return a.Operation == Create && a.Subresource == "" && (a.is(volumes) || a.is(volumeClaims) || a.is(attributesClasses))
}

func (storageObjectInUseProtection) Mutate(_ context.Context, a *Attributes) error {
	obj, ok := a.Object.(kind.Object)
	if !ok {
		return nil
	}
	finalizer := "kubernetes.io/pvc-protection"
	switch {
	case a.is(volumes):
		finalizer = "kubernetes.io/pv-protection"
	case a.is(attributesClasses):
		finalizer = "kubernetes.io/vac-protection"
	}
	if had := obj.GetFinalizers(); !slices.Contains(had, finalizer) {
		obj.SetFinalizers(append(had, finalizer))
	}
	return nil
}
