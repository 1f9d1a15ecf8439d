package volume

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/client"
	"skiff/internal/controller"
)

// Expand records an event for claims that request more capacity than they have. The resizer of the CSI driver does the expansion.
var Expand = controller.Definition{
	Name: "persistentvolume-expander-controller", Aliases: []string{"persistentvolume-expander"}, Component: "volume_expand", Queue: "volume_expand", Workers: 2,
	New: func(s *controller.Setup) (controller.Syncer, error) {
		c := expand{claims: client.InformerFor[*corev1.PersistentVolumeClaim](s.Informers), volumes: client.InformerFor[*corev1.PersistentVolume](s.Informers)}
		enqueue := func(claim *corev1.PersistentVolumeClaim) {
			if claim.Status.Phase == corev1.ClaimBound {
				s.Enqueue(controller.KeyOf(claim))
			}
		}
		grown := func(old, claim *corev1.PersistentVolumeClaim) {
			if storageOf(claim.Spec.Resources.Requests) > storageOf(old.Spec.Resources.Requests) || storageOf(claim.Status.Capacity) > storageOf(old.Status.Capacity) {
				enqueue(claim)
			}
		}
		if err := c.claims.AddEventHandler(enqueue, grown, nil); err != nil {
			return nil, fmt.Errorf("watch claims: %w", err)
		}
		return controller.NewSyncer(s, c), nil
	},
}

type expand struct {
	claims  client.Informer[*corev1.PersistentVolumeClaim]
	volumes client.Informer[*corev1.PersistentVolume]
}

type expandView struct {
	claim  *corev1.PersistentVolumeClaim
	volume *corev1.PersistentVolume
}

// Observe gathers a bound claim and its volume.
func (c expand) Observe(key controller.Key) (v expandView, ok bool) {
	if v.claim, ok = c.claims.Get(key.Namespace, key.Name); !ok || v.claim.Spec.VolumeName == "" {
		return v, false
	}
	v.volume, ok = c.volumes.Get("", v.claim.Spec.VolumeName)
	return v, ok && v.volume.Spec.ClaimRef != nil && v.volume.Spec.ClaimRef.UID == v.claim.UID
}

// Reconcile records the event.
func (c expand) Reconcile(v expandView) (plan controller.Plan) {
	if storageOf(v.claim.Spec.Resources.Requests) <= storageOf(v.claim.Status.Capacity) && !metav1.HasAnnotation(v.volume.ObjectMeta, preResizeCapacity) {
		return plan
	}
	plan.Events = append(plan.Events, normal(v.claim, "ExternalExpanding", "waiting for an external controller to expand this PVC"))
	return plan
}
