package quota

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var resourceClaimsResource = schema.GroupResource{Group: resourcev1.GroupName, Resource: "resourceclaims"}

// ClaimUsageLister lists the objects the usage of a resource claim depends on.
type ClaimUsageLister interface {
	// DeviceClasses returns all device classes.
	DeviceClasses() ([]*resourcev1.DeviceClass, error)
	// Pod returns a pod, nil if it does not exist.
	Pod(namespace, name string) *corev1.Pod
	// ExtendedClaims returns the claims that were created for the extended resources of a pod: those whose PodOfExtendedClaim it is. It is
	// called for every claim of a namespace, so it must not go through all of them.
	ExtendedClaims(pod *corev1.Pod) ([]*resourcev1.ResourceClaim, error)
}

func resourceClaimEvaluator(lister ClaimUsageLister) *Evaluator {
	return &Evaluator{
		Resource: resourceClaimsResource,
		counts: func(name corev1.ResourceName) bool {
			return name == CountName(resourceClaimsResource) || strings.HasSuffix(string(name), corev1.ResourceClaimsPerClass) ||
				lister != nil && isDeviceClassResource(lister, name)
		},
		usage: func(obj runtime.Object, now time.Time) (corev1.ResourceList, error) {
			claim, err := as[*resourcev1.ResourceClaim](obj)
			if err != nil {
				return nil, err
			}
			used := resourceClaimUsage(claim)
			if lister == nil {
				return used, nil
			}
			return used, addExtended(used, lister, usageOfClaimPod(claim, lister, now))
		},
		affectsUsage: func(w Write) bool { return w.Subresource == "" },
	}
}

// resourceClaimUsage counts the devices a claim requests by class; of alternatives, the maximum of each class.
func resourceClaimUsage(claim *resourcev1.ResourceClaim) corev1.ResourceList {
	used := corev1.ResourceList{CountName(resourceClaimsResource): count(1)}
	add := func(class string, n int64) {
		name := corev1.ResourceName(class + corev1.ResourceClaimsPerClass)
		sum := used[name]
		sum.Add(count(n))
		used[name] = sum
	}
	for _, request := range claim.Spec.Devices.Requests {
		switch {
		case len(request.FirstAvailable) > 0:
			most := map[string]int64{}
			for _, alternative := range request.FirstAvailable {
				n := deviceCount(alternative.AllocationMode, alternative.Count)
				most[alternative.DeviceClassName] = max(most[alternative.DeviceClassName], n)
			}
			for class, n := range most {
				if n > 0 {
					add(class, n)
				}
			}
		case request.Exactly != nil:
			add(request.Exactly.DeviceClassName, deviceCount(request.Exactly.AllocationMode, request.Exactly.Count))
		}
	}
	return used
}

// deviceCount charges a request for all devices with the maximum of a claim.
func deviceCount(mode resourcev1.DeviceAllocationMode, n int64) int64 {
	switch mode {
	case resourcev1.DeviceAllocationModeExactCount:
		return n
	case resourcev1.DeviceAllocationModeAll:
		return resourcev1.AllocationResultsMaxSize
	}
	return 0
}

// isDeviceClassResource reports whether a name in a quota counts an extended resource that a device class provides.
func isDeviceClassResource(lister ClaimUsageLister, name corev1.ResourceName) bool {
	class, implicit := strings.CutPrefix(string(name), corev1.ResourceImplicitExtendedClaimsPerClass)
	if !implicit && !extendedInQuota(name) {
		return false
	}
	classes, err := lister.DeviceClasses()
	if err != nil {
		return false
	}
	extended := strings.TrimPrefix(string(name), corev1.DefaultResourceRequestsPrefix)
	for _, c := range classes {
		explicit := c.Spec.ExtendedResourceName
		if explicit != nil && *explicit == extended || implicit && c.Name == class {
			return true
		}
	}
	return false
}

// addExtended counts the devices of a claim also as the extended resources of their classes, minus what the pod the claim
// was created for is already charged with.
func addExtended(used corev1.ResourceList, lister ClaimUsageLister, charged corev1.ResourceList) error {
	extended := corev1.ResourceList{}
	var classes []*resourcev1.DeviceClass
	for name, quantity := range used {
		class, ok := strings.CutSuffix(string(name), corev1.ResourceClaimsPerClass)
		if !ok || class == "" {
			continue
		}
		extended[corev1.ResourceName(corev1.ResourceImplicitExtendedClaimsPerClass+class)] = quantity
		if classes == nil {
			var err error
			if classes, err = lister.DeviceClasses(); err != nil {
				return err
			}
		}
		for _, c := range classes {
			if c.Name == class && c.Spec.ExtendedResourceName != nil {
				extended[corev1.ResourceName(corev1.DefaultResourceRequestsPrefix+*c.Spec.ExtendedResourceName)] = quantity
			}
		}
	}
	for name, quantity := range extended {
		quantity = quantity.DeepCopy()
		if already, ok := charged[name]; ok {
			quantity.Sub(already)
		}
		if quantity.Sign() > 0 {
			used[name] = quantity
		}
	}
	return nil
}

// usageOfClaimPod returns the usage of the pod for whose extended resources the claim was created, nil if there is none.
// Only one claim of a pod counts as charged with it: the one in its status, or the first.
func usageOfClaimPod(claim *resourcev1.ResourceClaim, lister ClaimUsageLister, now time.Time) corev1.ResourceList {
	owner := PodOfExtendedClaim(claim)
	if owner == nil {
		return nil
	}
	pod := lister.Pod(claim.Namespace, owner.Name)
	if pod == nil || pod.UID != owner.UID {
		return nil
	}
	if status := pod.Status.ExtendedResourceClaimStatus; status != nil {
		if status.ResourceClaimName != claim.Name {
			return nil
		}
		return PodUsage(pod, now)
	}
	claims, err := lister.ExtendedClaims(pod)
	if err != nil {
		return nil
	}
	for _, other := range claims {
		order := other.CreationTimestamp.Time.Compare(claim.CreationTimestamp.Time)
		if order < 0 || order == 0 && other.Name < claim.Name {
			return nil
		}
	}
	return PodUsage(pod, now)
}

// PodOfExtendedClaim returns the pod for whose extended resources a claim was created, according to the claim; nil if there is none.
func PodOfExtendedClaim(claim *resourcev1.ResourceClaim) *metav1.OwnerReference {
	if claim.Annotations[resourcev1.ExtendedResourceClaimAnnotation] != "true" {
		return nil
	}
	owner := metav1.GetControllerOfNoCopy(claim)
	if owner == nil || owner.Kind != "Pod" || owner.APIVersion != "v1" {
		return nil
	}
	return owner
}
