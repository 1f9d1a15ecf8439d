package scheduler

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

type deviceClaimOption func(*resourcev1.ResourceClaim)

// devicesClaim is a claim that asks for nothing but what the options say.
func devicesClaim(name string, options ...deviceClaimOption) *resourcev1.ResourceClaim {
	c := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name), ResourceVersion: "10"}}
	for _, o := range options {
		o(c)
	}
	return c
}

// exactly asks for some devices of a class; the expression may be empty.
func exactly(request, class string, count int64, expression string) deviceClaimOption {
	return func(c *resourcev1.ResourceClaim) {
		r := resourcev1.DeviceRequest{Name: request, Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: class, AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: count}}
		if expression != "" {
			r.Exactly.Selectors = []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{Expression: expression}}}
		}
		c.Spec.Devices.Requests = append(c.Spec.Devices.Requests, r)
	}
}

// alternative is one of several a request would take.
type alternative struct {
	name, class string
	count       int64
	expression  string
}

func firstOf(request string, alternatives ...alternative) deviceClaimOption {
	return func(c *resourcev1.ResourceClaim) {
		r := resourcev1.DeviceRequest{Name: request}
		for _, a := range alternatives {
			sub := resourcev1.DeviceSubRequest{Name: a.name, DeviceClassName: a.class, AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: a.count}
			if a.expression != "" {
				sub.Selectors = []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{Expression: a.expression}}}
			}
			r.FirstAvailable = append(r.FirstAvailable, sub)
		}
		c.Spec.Devices.Requests = append(c.Spec.Devices.Requests, r)
	}
}

// holds gives a claim a device of a node's pool, for a request.
func holds(request, pool, device string) deviceClaimOption {
	return func(c *resourcev1.ResourceClaim) {
		if c.Status.Allocation == nil {
			c.Status.Allocation = &resourcev1.AllocationResult{}
		}
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results, resourcev1.DeviceRequestAllocationResult{Request: request, Driver: "example.com", Pool: pool, Device: device})
	}
}

// onlyOn keeps what a claim holds to some nodes.
func onlyOn(nodes ...string) deviceClaimOption {
	return func(c *resourcev1.ResourceClaim) {
		c.Status.Allocation.NodeSelector = &corev1.NodeSelector{}
		for _, n := range nodes { // a field selects one name
			c.Status.Allocation.NodeSelector.NodeSelectorTerms = append(c.Status.Allocation.NodeSelector.NodeSelectorTerms, named(n))
		}
	}
}

// awaits makes a held device wait for a condition, and tells which it has.
func awaits(age time.Duration, has ...string) deviceClaimOption {
	return func(c *resourcev1.ResourceClaim) {
		c.Status.Allocation.AllocationTimestamp = &metav1.Time{Time: time.Now().Add(-age)}
		for i := range c.Status.Allocation.Devices.Results {
			r := &c.Status.Allocation.Devices.Results[i]
			r.BindingConditions, r.BindingFailureConditions = []string{"Attached"}, []string{"Broken"}
			told := resourcev1.AllocatedDeviceStatus{Driver: r.Driver, Pool: r.Pool, Device: r.Device}
			for _, kind := range has {
				told.Conditions = append(told.Conditions, metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: "Why", Message: "so"})
			}
			c.Status.Devices = append(c.Status.Devices, told)
		}
	}
}

func usedBy(pods ...string) deviceClaimOption {
	return func(c *resourcev1.ResourceClaim) {
		for _, p := range pods {
			c.Status.ReservedFor = append(c.Status.ReservedFor, resourcev1.ResourceClaimConsumerReference{Resource: "pods", Name: p, UID: types.UID(p)})
		}
	}
}

func ownedBy(pod string) deviceClaimOption {
	return func(c *resourcev1.ResourceClaim) {
		c.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod, UID: types.UID(pod), Controller: ptr.To(true)}}
	}
}

// standingForExtended marks a claim as made for extended resources.
func standingForExtended(c *resourcev1.ResourceClaim) {
	c.Annotations = map[string]string{resourcev1.ExtendedResourceClaimAnnotation: "true"}
}

func leavingDevices(c *resourcev1.ResourceClaim) {
	c.DeletionTimestamp = &metav1.Time{Time: time.Unix(1e9, 0)}
}

// claimingMade gives a pod a claim from a template: made under a name, not needed ("-"), or not made yet ("").
func claimingMade(name, made string) podOption {
	return func(p *corev1.Pod) {
		p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, corev1.PodResourceClaim{Name: name, ResourceClaimTemplateName: ptr.To("template")})
		switch made {
		case "":
		case "-":
			p.Status.ResourceClaimStatuses = append(p.Status.ResourceClaimStatuses, corev1.PodResourceClaimStatus{Name: name})
		default:
			p.Status.ResourceClaimStatuses = append(p.Status.ResourceClaimStatuses, corev1.PodResourceClaimStatus{Name: name, ResourceClaimName: &made})
		}
	}
}

// modelSlice is a slice of a node's devices, each of a model.
func modelSlice(node string, models ...string) *resourcev1.ResourceSlice {
	slice := deviceSlice(node, len(models))
	for i, m := range models {
		slice.Spec.Devices[i].Attributes = map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{"model": {StringValue: &m}}
	}
	return slice
}

func modelIs(model string) string {
	return fmt.Sprintf(`device.attributes["example.com"].model == %q`, model)
}

func deviceClass(name string, expressions ...string) *resourcev1.DeviceClass {
	class := &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, e := range expressions {
		class.Spec.Selectors = append(class.Spec.Selectors, resourcev1.DeviceSelector{CEL: &resourcev1.CELDeviceSelector{Expression: e}})
	}
	return class
}
