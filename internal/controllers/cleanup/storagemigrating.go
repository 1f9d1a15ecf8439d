package cleanup

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"skiff/internal/client"
	"skiff/internal/kind"
)

// definitionManager owns what migrations write to the status of definitions.
const definitionManager = "migration-runner-controller"

// definitionOf reads the definition of a migration's resource; nil: it is not a custom resource.
func (m *migrator) definitionOf(ctx context.Context, obj *migration) (*apiextensionsv1.CustomResourceDefinition, error) {
	crd, err := client.For[*apiextensionsv1.CustomResourceDefinition](m.setup.Client).Get(ctx, "", obj.Spec.Resource.Resource+"."+obj.Spec.Resource.Group)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("get the definition of %s: %w", resourceKey(obj).Name, err)
	}
	return crd, nil
}

// servesDefinition reports whether the API servers store objects in the storage version that the definition of the migration's resource has now. If
// not, the migration is synced again.
func (m *migrator) servesDefinition(ctx context.Context, obj *migration, r *resource) (bool, error) {
	crd, err := m.definitionOf(ctx, obj)
	if crd == nil {
		return err == nil, err
	}
	stored := schema.GroupVersionKind{Group: crd.Spec.Group, Version: storageVersionOf(crd), Kind: crd.Status.AcceptedNames.Kind}
	if r.storageVersionHash != "" && r.storageVersionHash != kind.StorageVersionHash(stored) {
		return false, fmt.Errorf("%s is not served with its storage version %s yet", crd.Name, stored.Version)
	}
	if began := meta.FindStatusCondition(obj.Status.Conditions, string(storagemigrationv1.MigrationRunning)); began != nil {
		if wait := definitionWait - time.Since(began.LastTransitionTime.Time); wait > 0 {
			m.setup.EnqueueAfter(resourceKey(obj), wait)
			return false, nil
		}
	}
	return true, nil
}

// storageVersionOf is the storage version of a definition. A definition has exactly one.
func storageVersionOf(crd *apiextensionsv1.CustomResourceDefinition) string {
	i := slices.IndexFunc(crd.Spec.Versions, func(v apiextensionsv1.CustomResourceDefinitionVersion) bool { return v.Storage })
	return crd.Spec.Versions[i].Name
}

// markDefinition records that a migration runs, and the generation of the definition at its start.
func (m *migrator) markDefinition(ctx context.Context, obj *migration) error {
	crd, err := m.definitionOf(ctx, obj)
	if crd == nil {
		return err
	}
	return m.applyMigrating(ctx, crd, apiextensionsv1.CustomResourceDefinitionCondition{
		Status: apiextensionsv1.ConditionTrue, Reason: "MigrationRunning", Message: fmt.Sprintf("Migration %s is running", obj.Name),
	}, crd.Status.StoredVersions)
}

// unmarkDefinition records how a migration has ended. If it succeeded, and the definition is the one of its start, all objects are stored in
// its storage version.
func (m *migrator) unmarkDefinition(ctx context.Context, obj *migration) error {
	crd, err := m.definitionOf(ctx, obj)
	if crd == nil {
		return err
	}
	ended := apiextensionsv1.CustomResourceDefinitionCondition{
		Status: apiextensionsv1.ConditionFalse, Reason: "MigrationFailed", Message: "The migration has failed",
	}
	storedVersions := crd.Status.StoredVersions
	if hasCondition(obj, storagemigrationv1.MigrationSucceeded) {
		ended.Reason, ended.Message = "MigrationSucceeded", "The migration has succeeded but the stored versions have not been updated due to a generation mismatch"
		if began := apihelpers.FindCRDCondition(crd, apiextensionsv1.StorageMigrating); began != nil && began.ObservedGeneration == crd.Generation {
			ended.Message = "The migration has succeeded and the stored versions have been updated"
			storedVersions = []string{storageVersionOf(crd)}
		}
	}
	return m.applyMigrating(ctx, crd, ended, storedVersions)
}

// applyMigrating applies the condition StorageMigrating and the stored versions to the definition that was read, and to no later one. What an
// owner no longer applies is removed, so both are always applied.
func (m *migrator) applyMigrating(ctx context.Context, crd *apiextensionsv1.CustomResourceDefinition, condition apiextensionsv1.CustomResourceDefinitionCondition, storedVersions []string) error {
	condition.Type, condition.LastTransitionTime, condition.ObservedGeneration = apiextensionsv1.StorageMigrating, metav1.Now(), crd.Generation
	data, err := json.Marshal(map[string]any{
		"apiVersion": apiextensionsv1.SchemeGroupVersion.String(), "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": crd.Name, "resourceVersion": crd.ResourceVersion},
		"status":   map[string]any{"conditions": []any{condition}, "storedVersions": storedVersions},
	})
	if err != nil {
		return err
	}
	_, err = client.For[*apiextensionsv1.CustomResourceDefinition](m.setup.Client).Patch(ctx, "", crd.Name, client.RawPatch(client.ApplyPatch, data),
		client.WriteOptions{Subresource: "status", FieldManager: definitionManager, Force: true})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("apply the status of definition %s: %w", crd.Name, err)
	}
	return nil
}
