package quota

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var volumeClaimsResource = schema.GroupResource{Resource: "persistentvolumeclaims"}

// ofStorageClass separates a storage class from what is counted of it: gold.storageclass.storage.k8s.io/requests.storage.
const ofStorageClass = ".storageclass.storage.k8s.io/"

func volumeClaimEvaluator() *Evaluator {
	return &Evaluator{
		Resource: volumeClaimsResource,
		counts: func(name corev1.ResourceName) bool {
			if _, what, ok := strings.Cut(string(name), ofStorageClass); ok {
				name = corev1.ResourceName(what)
			} else if name == CountName(volumeClaimsResource) {
				return true
			}
			return name == corev1.ResourcePersistentVolumeClaims || name == corev1.ResourceRequestsStorage
		},
		usage: func(obj runtime.Object, _ time.Time) (corev1.ResourceList, error) {
			claim, err := as[*corev1.PersistentVolumeClaim](obj)
			if err != nil {
				return nil, err
			}
			return volumeClaimUsage(claim), nil
		},
		inScope: func(scope corev1.ScopedResourceSelectorRequirement, obj runtime.Object) (bool, error) {
			claim, err := as[*corev1.PersistentVolumeClaim](obj)
			if err != nil || scope.ScopeName != corev1.ResourceQuotaScopeVolumeAttributesClass {
				return false, err
			}
			return selects(scope, attributesClasses(claim))
		},
		affectsUsage: func(w Write) bool {
			switch w.Subresource {
			case "":
				return true
			case "status":
				claim, isClaim := w.Object.(*corev1.PersistentVolumeClaim)
				old, wasClaim := w.Old.(*corev1.PersistentVolumeClaim)
				return isClaim && wasClaim && claimStatusCounts(claim, old)
			}
			return false
		},
	}
}

func volumeClaimUsage(claim *corev1.PersistentVolumeClaim) corev1.ResourceList {
	used := corev1.ResourceList{corev1.ResourcePersistentVolumeClaims: count(1), CountName(volumeClaimsResource): count(1)}
	class := StorageClassOf(claim)
	if class != "" {
		used[corev1.ResourceName(class+ofStorageClass)+corev1.ResourcePersistentVolumeClaims] = count(1)
	}
	storage, ok := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	if !ok {
		return used
	}
	// An expansion that went further than the claim's current request still uses its space.
	if allocated, ok := claim.Status.AllocatedResources[corev1.ResourceStorage]; ok && allocated.Cmp(storage) > 0 {
		storage = allocated
	}
	storage = wholeBytes(storage)
	used[corev1.ResourceRequestsStorage] = storage
	if class != "" {
		used[corev1.ResourceName(class+ofStorageClass)+corev1.ResourceRequestsStorage] = storage
	}
	return used
}

// wholeBytes rounds up, because quotas count whole bytes.
func wholeBytes(q resource.Quantity) resource.Quantity {
	rounded := q.DeepCopy()
	if rounded.RoundUp(0) {
		return q
	}
	return rounded
}

// StorageClassOf returns the storage class of a claim, from the field or the older annotation.
func StorageClassOf(claim *corev1.PersistentVolumeClaim) string {
	if class, ok := claim.Annotations[corev1.BetaStorageClassAnnotation]; ok {
		return class
	}
	if claim.Spec.StorageClassName != nil {
		return *claim.Spec.StorageClassName
	}
	return ""
}

// attributesClasses returns all VolumeAttributesClasses a claim has or requests: while it changes from one to another it
// is in the scope of both.
func attributesClasses(claim *corev1.PersistentVolumeClaim) []string {
	var classes []string
	add := func(class *string) {
		if class != nil && *class != "" && !slices.Contains(classes, *class) {
			classes = append(classes, *class)
		}
	}
	add(claim.Spec.VolumeAttributesClassName)
	add(claim.Status.CurrentVolumeAttributesClassName)
	if modify := claim.Status.ModifyVolumeStatus; modify != nil {
		add(&modify.TargetVolumeAttributesClassName)
	}
	slices.Sort(classes)
	return classes
}

// claimStatusCounts reports whether a change of a claim's status changes its usage or scopes.
func claimStatusCounts(claim, old *corev1.PersistentVolumeClaim) bool {
	return claim.Status.AllocatedResources.Storage().Cmp(*old.Status.AllocatedResources.Storage()) != 0 ||
		!slices.Equal(attributesClasses(claim), attributesClasses(old))
}
