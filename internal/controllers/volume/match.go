package volume

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// isBoundTo reports whether a volume is bound to or reserved for a claim.
func isBoundTo(volume *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) bool {
	ref := volume.Spec.ClaimRef
	return ref != nil && ref.Name == claim.Name && ref.Namespace == claim.Namespace && (ref.UID == "" || ref.UID == claim.UID)
}

// match finds the volume for a claim, among those with the fewest access modes: one that is reserved for it, or else the smallest
// that is large enough. With WaitForFirstConsumer only a reserved one is used: the scheduler chooses.
func match(claim *corev1.PersistentVolumeClaim, volumes []*corev1.PersistentVolume, delayed bool) (*corev1.PersistentVolume, error) {
	selector := labels.Everything()
	if claim.Spec.Selector != nil {
		var err error
		if selector, err = metav1.LabelSelectorAsSelector(claim.Spec.Selector); err != nil {
			return nil, fmt.Errorf("selector of claim %s/%s: %w", claim.Namespace, claim.Name, err)
		}
	}
	var best *corev1.PersistentVolume
	for _, volume := range volumes {
		reserved := isBoundTo(volume, claim)
		if volume.Spec.ClaimRef != nil && !reserved || !fits(claim, volume) {
			continue
		}
		if !reserved && (delayed || volume.Status.Phase != corev1.VolumeAvailable || !selector.Matches(labels.Set(volume.Labels)) || classOfVolume(volume) != classOfClaim(claim)) {
			continue
		}
		if best == nil || better(claim, volume, best) {
			best = volume
		}
	}
	return best, nil
}

// fits reports whether a volume satisfies the basic requirements of a claim.
func fits(claim *corev1.PersistentVolumeClaim, volume *corev1.PersistentVolume) bool {
	return volume.DeletionTimestamp == nil && storageOf(volume.Spec.Capacity) >= storageOf(claim.Spec.Resources.Requests) &&
		modeOf(volume.Spec.VolumeMode) == modeOf(claim.Spec.VolumeMode) && allows(volume, claim) &&
		deref(volume.Spec.VolumeAttributesClassName) == deref(claim.Spec.VolumeAttributesClassName)
}

// allows reports whether a volume has all requested access modes.
func allows(volume *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) bool {
	return !slices.ContainsFunc(claim.Spec.AccessModes, func(mode corev1.PersistentVolumeAccessMode) bool {
		return !slices.Contains(volume.Spec.AccessModes, mode)
	})
}

// better prefers fewer access modes, then a reserved volume, then a smaller one, then the name.
func better(claim *corev1.PersistentVolumeClaim, a, b *corev1.PersistentVolume) bool {
	if len(a.Spec.AccessModes) != len(b.Spec.AccessModes) {
		return len(a.Spec.AccessModes) < len(b.Spec.AccessModes)
	}
	if reserved := isBoundTo(a, claim); reserved != isBoundTo(b, claim) {
		return reserved
	}
	if sizeA, sizeB := storageOf(a.Spec.Capacity), storageOf(b.Spec.Capacity); sizeA != sizeB {
		return sizeA < sizeB
	}
	return strings.Compare(a.Name, b.Name) < 0
}

// checkSatisfies returns why a requested volume cannot be bound to the claim, nil if it can.
func checkSatisfies(volume *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) error {
	switch {
	case volume.DeletionTimestamp != nil:
		return fmt.Errorf("the volume is marked for deletion %q", volume.Name)
	case storageOf(volume.Spec.Capacity) < storageOf(claim.Spec.Resources.Requests):
		return errors.New("requested PV is too small")
	case classOfVolume(volume) != classOfClaim(claim):
		return errors.New("storageClassName does not match")
	case deref(volume.Spec.VolumeAttributesClassName) != deref(claim.Spec.VolumeAttributesClassName):
		return errors.New("volumeAttributesClassName does not match")
	case modeOf(volume.Spec.VolumeMode) != modeOf(claim.Spec.VolumeMode):
		return errors.New("incompatible volumeMode")
	case !allows(volume, claim):
		return errors.New("incompatible accessMode")
	}
	return nil
}
