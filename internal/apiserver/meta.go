package apiserver

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/api/validation/path"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilrand "k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"skiff/internal/apiserver/managedfields"
	"skiff/internal/kind"
	"skiff/internal/store"
)

// now is the time of a write, truncated to seconds: API times have no fractions, so the object in memory equals the stored one.
func now() metav1.Time { return metav1.Time{Time: time.Now().UTC().Truncate(time.Second)} }

// clearSystemFields clears the fields of a new object that a client cannot set.
func clearSystemFields(obj metav1.Object) {
	obj.SetCreationTimestamp(metav1.Time{})
	obj.SetUID("")
	obj.SetDeletionTimestamp(nil)
	obj.SetDeletionGracePeriodSeconds(nil)
	obj.SetSelfLink("")
}

// fillSystemFields sets the fields of a new object that the server decides.
func fillSystemFields(obj metav1.Object, at metav1.Time) {
	obj.SetCreationTimestamp(at)
	obj.SetUID(types.UID(uuid.NewString()))
	if obj.GetName() == "" && obj.GetGenerateName() != "" {
		obj.SetName(generateName(obj.GetGenerateName()))
	}
}

const (
	generatedSuffix   = 5
	generatedLongest  = 63
	generatedAttempts = 8
)

// generateName appends a random suffix and truncates the base so that the name fits into a DNS label.
func generateName(base string) string {
	base = base[:min(len(base), generatedLongest-generatedSuffix)]
	return base + utilrand.String(generatedSuffix)
}

// ensureNamespace sets the object's namespace to that of the request, or checks it.
func ensureNamespace(expected string, obj metav1.Object) error {
	switch namespace := obj.GetNamespace(); {
	case namespace == expected:
		return nil
	case namespace == "" || expected == "":
		obj.SetNamespace(expected)
		return nil
	}
	return apierrors.NewBadRequest("the namespace of the provided object does not match the namespace sent on the request")
}

// checkName compares the name in a body with the one in the URL.
func checkName(obj metav1.Object, name, namespace string) error {
	switch {
	case obj.GetName() == "":
		return apierrors.NewBadRequest(fmt.Sprintf("the name of the object (%s based on URL) was undeterminable: name must be provided", name))
	case obj.GetName() != name:
		return apierrors.NewBadRequest(fmt.Sprintf("the name of the object (%s) does not match the name on the URL (%s)", obj.GetName(), name))
	case namespace != "" && obj.GetNamespace() != "" && obj.GetNamespace() != namespace:
		return apierrors.NewBadRequest(fmt.Sprintf("the namespace of the object (%s) does not match the namespace on the request (%s)", obj.GetNamespace(), namespace))
	}
	return nil
}

const (
	textDuplicateOwners = ".metadata.ownerReferences contains duplicate entries; API server dedups owner references in 1.20+, " +
		"and may reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: %v"
	textDuplicateOwnersAfterAdmission = ".metadata.ownerReferences contains duplicate entries after mutating admission happens; " +
		"API server dedups owner references in 1.20+, and may reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: %v"
)

// dropDuplicateOwners removes duplicate owner references and warns the client.
func dropDuplicateOwners(obj metav1.Object, warn func(string), text string) {
	owners := obj.GetOwnerReferences()
	if len(owners) < 2 {
		return
	}
	seen := sets.New[ownerContent]()
	var kept []metav1.OwnerReference
	var dropped []string
	for _, owner := range owners {
		content := contentOf(owner)
		if seen.Has(content) {
			dropped = append(dropped, string(owner.UID))
			continue
		}
		seen.Insert(content)
		kept = append(kept, owner)
	}
	if len(dropped) > 0 {
		warn(fmt.Sprintf(text, strings.Join(dropped, ", ")))
		obj.SetOwnerReferences(kept)
	}
}

// ownerContent is an owner reference as a comparable value: the values of its pointers follow as text.
type ownerContent struct {
	reference metav1.OwnerReference
	pointers  string
}

func contentOf(owner metav1.OwnerReference) ownerContent {
	text := func(b *bool) string {
		if b == nil {
			return "unset"
		}
		return strconv.FormatBool(*b)
	}
	pointers := text(owner.Controller) + " " + text(owner.BlockOwnerDeletion)
	owner.Controller, owner.BlockOwnerDeletion = nil, nil
	return ownerContent{owner, pointers}
}

var metadataPath = field.NewPath("metadata")

func validatePathSegment(name string, prefix bool) []string {
	if prefix {
		return path.IsValidPathSegmentPrefix(name)
	}
	return path.IsValidPathSegmentName(name)
}

// validateNewMetadata validates the metadata of a new object.
func validateNewMetadata(k *kind.Kind, obj kind.Object) field.ErrorList {
	return apivalidation.ValidateObjectMetaAccessor(obj, k.Namespaced, k.ValidateName, metadataPath)
}

// validateNames checks that the name is a valid path segment, whatever the kind allows.
func validateNames(obj kind.Object) (errs field.ErrorList) {
	if base := obj.GetGenerateName(); base != "" {
		for _, msg := range validatePathSegment(base, true) {
			errs = append(errs, field.Invalid(metadataPath.Child("generateName"), base, msg))
		}
	}
	for _, msg := range validatePathSegment(obj.GetName(), false) {
		errs = append(errs, field.Invalid(metadataPath.Child("name"), obj.GetName(), msg))
	}
	return errs
}

// validateChangedMetadata validates the metadata of a changed object, and the change. Unchanged metadata is not validated again; most
// writes do not touch it.
func validateChangedMetadata(k *kind.Kind, obj, old kind.Object) field.ErrorList {
	if sameMetadata(obj, old) {
		return nil
	}
	errs := apivalidation.ValidateObjectMetaAccessor(obj, k.Namespaced, validatePathSegment, metadataPath)
	seen := sets.New[string]()
	for _, err := range errs {
		seen.Insert(err.Error())
	}
	for _, err := range apivalidation.ValidateObjectMetaAccessorUpdate(obj, old, metadataPath) {
		if !seen.Has(err.Error()) {
			errs = append(errs, err)
		}
	}
	return errs
}

// sameMetadata reports whether nothing that validation checks has changed.
func sameMetadata(obj, old kind.Object) bool {
	if obj.GetName() != old.GetName() || obj.GetNamespace() != old.GetNamespace() || obj.GetGenerateName() != old.GetGenerateName() ||
		obj.GetUID() != old.GetUID() || obj.GetResourceVersion() == "" || obj.GetGeneration() < old.GetGeneration() {
		return false
	}
	created, createdBefore := obj.GetCreationTimestamp(), old.GetCreationTimestamp()
	if !created.Equal(&createdBefore) || !obj.GetDeletionTimestamp().Equal(old.GetDeletionTimestamp()) ||
		!ptr.Equal(obj.GetDeletionGracePeriodSeconds(), old.GetDeletionGracePeriodSeconds()) {
		return false
	}
	return maps.Equal(obj.GetLabels(), old.GetLabels()) && maps.Equal(obj.GetAnnotations(), old.GetAnnotations()) &&
		slices.Equal(obj.GetFinalizers(), old.GetFinalizers()) &&
		slices.EqualFunc(obj.GetOwnerReferences(), old.GetOwnerReferences(), func(a, b metav1.OwnerReference) bool {
			return apiequality.Semantic.DeepEqual(a, b)
		})
}

// keepSystemFields restores the fields that no update can change.
func keepSystemFields(obj, old metav1.Object) {
	if obj.GetUID() == "" {
		obj.SetUID(old.GetUID())
	}
	if created := old.GetCreationTimestamp(); !created.IsZero() {
		obj.SetCreationTimestamp(created)
	}
	if deleted := old.GetDeletionTimestamp(); deleted != nil {
		obj.SetDeletionTimestamp(deleted)
	}
	if grace := old.GetDeletionGracePeriodSeconds(); grace != nil && obj.GetDeletionGracePeriodSeconds() == nil {
		obj.SetDeletionGracePeriodSeconds(grace)
	}
}

// copyMetadata makes obj's metadata that of from.
func copyMetadata(obj, from metav1.Object) {
	obj.SetName(from.GetName())
	obj.SetGenerateName(from.GetGenerateName())
	obj.SetNamespace(from.GetNamespace())
	obj.SetSelfLink(from.GetSelfLink())
	obj.SetUID(from.GetUID())
	obj.SetResourceVersion(from.GetResourceVersion())
	obj.SetGeneration(from.GetGeneration())
	obj.SetCreationTimestamp(from.GetCreationTimestamp())
	obj.SetDeletionTimestamp(from.GetDeletionTimestamp())
	obj.SetDeletionGracePeriodSeconds(from.GetDeletionGracePeriodSeconds())
	obj.SetLabels(maps.Clone(from.GetLabels()))
	obj.SetAnnotations(maps.Clone(from.GetAnnotations()))
	obj.SetOwnerReferences(slices.Clone(from.GetOwnerReferences()))
	obj.SetFinalizers(slices.Clone(from.GetFinalizers()))
	obj.SetManagedFields(slices.Clone(from.GetManagedFields()))
}

// keepUnchangedTimes restores the times of managedFields when nothing else has changed, so that an update without changes writes
// nothing.
func keepUnchangedTimes(obj, old kind.Object) {
	entries, before := obj.GetManagedFields(), old.GetManagedFields()
	if len(entries) == 0 || len(entries) != len(before) {
		return
	}
	timesChanged := false
	for i := range entries {
		a, b := entries[i], before[i]
		if !a.Time.Equal(b.Time) {
			timesChanged = true
		}
		a.Time, b.Time = nil, nil
		if !managedfields.EqualEntries([]metav1.ManagedFieldsEntry{a}, []metav1.ManagedFieldsEntry{b}) {
			return
		}
	}
	if !timesChanged {
		return
	}
	obj.SetManagedFields(slices.Clone(before))
	if !apiequality.Semantic.DeepEqual(obj, old) {
		obj.SetManagedFields(entries)
	}
}

// parseVersion parses an object's resourceVersion; 0 means that it has none.
func parseVersion(obj metav1.Object) (store.Revision, error) {
	text := obj.GetResourceVersion()
	if text == "" {
		return 0, nil
	}
	version, err := strconv.ParseUint(text, 10, 63)
	return store.Revision(version), err
}

// errPrecondition is upstream's error for a failed precondition in the store.
func errPrecondition(w *write, key, what string) error {
	return apierrors.NewConflict(w.res.groupResource(), w.name, fmt.Errorf(
		"StorageError: invalid object, Code: 4, Key: %s, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: %s", key, what))
}
