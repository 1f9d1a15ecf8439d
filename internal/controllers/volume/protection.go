package volume

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/client"
	"skiff/internal/controller"
	"skiff/internal/kind"
)

// The finalizers that protect objects in use.
const (
	claimFinalizer  = "kubernetes.io/pvc-protection"
	volumeFinalizer = "kubernetes.io/pv-protection"
	classFinalizer  = "kubernetes.io/vac-protection"
)

// protect adds the finalizer to an object, and removes it when the object is being deleted and not used.
func protect(obj kind.Object, finalizer string, used func() bool) (plan controller.Plan) {
	held := slices.Contains(obj.GetFinalizers(), finalizer)
	switch {
	case obj.GetDeletionTimestamp() == nil && !held:
		plan.AddStep(addFinalizer(obj, finalizer))
	case obj.GetDeletionTimestamp() != nil && held && !used():
		plan.AddStep(removeFinalizer(obj, finalizer))
	}
	return plan
}

// ClaimProtection protects claims used by pods, and maintains the Unused condition of bound claims.
var ClaimProtection = controller.Definition{
	Name: "persistentvolumeclaim-protection-controller", Aliases: []string{"pvc-protection"}, Component: "pvc-protection-controller", Queue: "pvcprotection", Workers: 2,
	New: func(s *controller.Setup) (controller.Syncer, error) {
		c := &claimProtection{
			setup: s, claims: client.InformerFor[*corev1.PersistentVolumeClaim](s.Informers), pods: client.InformerFor[*corev1.Pod](s.Informers),
		}
		if err := indexPods(c.pods); err != nil {
			return nil, err
		}
		if err := controller.WatchPrimary[*corev1.PersistentVolumeClaim](s); err != nil {
			return nil, err
		}
		return c, controller.Watch(s, claimKeys)
	},
}

type claimProtection struct {
	setup  *controller.Setup
	claims client.Informer[*corev1.PersistentVolumeClaim]
	pods   client.Informer[*corev1.Pod]
}

// Sync protects one claim. Before it removes the finalizer, it lists the pods live: a stale cache must not cause data loss.
func (c *claimProtection) Sync(ctx context.Context, key controller.Key) error {
	claim, ok := c.claims.Get(key.Namespace, key.Name)
	if !ok {
		return nil
	}
	pods := podsUsing(c.pods, key.Namespace, key.Name)
	plan := protect(claim, claimFinalizer, func() bool { return slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return holds(p, claim) }) })
	if claim.DeletionTimestamp != nil && len(plan.Steps) > 0 {
		live, _, err := client.For[*corev1.Pod](c.setup.Client).List(ctx, key.Namespace, client.Selector{})
		if err != nil {
			return fmt.Errorf("list pods: %w", err)
		}
		if slices.ContainsFunc(live, func(p *corev1.Pod) bool { return holds(p, claim) }) {
			return nil
		}
	}
	if w, ok := noteUse(claim, pods, time.Now()); ok {
		plan.AddStep(w)
	}
	return c.setup.Apply(ctx, key, plan)
}

// noteUse writes the Unused condition of a bound claim.
func noteUse(claim *corev1.PersistentVolumeClaim, pods []*corev1.Pod, now time.Time) (controller.Write, bool) {
	if claim.DeletionTimestamp != nil || claim.Status.Phase != corev1.ClaimBound {
		return controller.Write{}, false
	}
	c := corev1.PersistentVolumeClaimCondition{Type: corev1.PersistentVolumeClaimUnused, Status: corev1.ConditionTrue,
		LastTransitionTime: metav1.NewTime(now), Reason: "NoPodsUsingPVC", Message: "No pods are currently referencing this PVC"}
	if slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return !isPodTerminated(p) && refers(p, claim) }) {
		c.Status, c.Reason, c.Message = corev1.ConditionFalse, "PodUsingPVC", "A pod is currently referencing this PVC"
	}
	if slices.ContainsFunc(claim.Status.Conditions, func(old corev1.PersistentVolumeClaimCondition) bool {
		return old.Type == c.Type && old.Status == c.Status
	}) {
		return controller.Write{}, false
	}
	w := controller.NewPatch(claim, client.StrategicPatch, encode(map[string]any{
		"metadata": map[string]any{"uid": claim.UID}, "status": map[string]any{"conditions": []corev1.PersistentVolumeClaimCondition{c}}}))
	w.Verb = controller.PatchStatus
	return w.Ignoring(metav1.StatusReasonNotFound), true
}

// refers reports whether a pod has a volume of the claim.
func refers(pod *corev1.Pod, claim *corev1.PersistentVolumeClaim) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		return claimName(pod, &v) == claim.Name && (v.Ephemeral == nil || metav1.IsControlledBy(claim, pod))
	})
}

// holds reports whether a pod prevents the deletion of a claim. An unscheduled pod does not: it cannot start with a deleted claim.
func holds(pod *corev1.Pod, claim *corev1.PersistentVolumeClaim) bool {
	if pod.Spec.NodeName == "" {
		return false
	}
	shutDown := pod.DeletionTimestamp != nil && pod.DeletionGracePeriodSeconds != nil && *pod.DeletionGracePeriodSeconds == 0
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		if claimName(pod, &v) != claim.Name {
			return false
		}
		return v.Ephemeral == nil || !shutDown && metav1.IsControlledBy(claim, pod)
	})
}

// VolumeProtection protects bound volumes.
var VolumeProtection = controller.Definition{
	Name: "persistentvolume-protection-controller", Aliases: []string{"pv-protection"}, Component: "pv-protection-controller", Queue: "pvprotection",
	New: func(s *controller.Setup) (controller.Syncer, error) {
		c := volumeProtection{client.InformerFor[*corev1.PersistentVolume](s.Informers)}
		return controller.NewSyncer(s, c), controller.WatchPrimary[*corev1.PersistentVolume](s)
	},
}

type volumeProtection struct {
	volumes client.Informer[*corev1.PersistentVolume]
}

// Observe gathers a volume.
func (c volumeProtection) Observe(key controller.Key) (*corev1.PersistentVolume, bool) {
	return c.volumes.Get("", key.Name)
}

// Reconcile protects the volume.
func (c volumeProtection) Reconcile(volume *corev1.PersistentVolume) controller.Plan {
	return protect(volume, volumeFinalizer, func() bool { return volume.Status.Phase == corev1.VolumeBound })
}

// AttributesClassProtection protects VolumeAttributesClasses used by claims or volumes.
var AttributesClassProtection = controller.Definition{
	Name: "volumeattributesclass-protection-controller", Component: "vac-protection-controller", Queue: "vacprotection",
	New: func(s *controller.Setup) (controller.Syncer, error) {
		c := attributesClassProtection{
			classes: client.InformerFor[*storagev1.VolumeAttributesClass](s.Informers),
			claims:  client.InformerFor[*corev1.PersistentVolumeClaim](s.Informers),
			volumes: client.InformerFor[*corev1.PersistentVolume](s.Informers),
		}
		if err := c.claims.EnsureIndex(byAttributesClass, classesOfClaim); err != nil {
			return nil, fmt.Errorf("index claims by attributes class: %w", err)
		}
		if err := c.volumes.EnsureIndex(byAttributesClass, classesOfVolume); err != nil {
			return nil, fmt.Errorf("index volumes by attributes class: %w", err)
		}
		if err := controller.WatchPrimary[*storagev1.VolumeAttributesClass](s); err != nil {
			return nil, err
		}
		if err := controller.Watch(s, func(claim *corev1.PersistentVolumeClaim) []controller.Key { return classKeys(classesOfClaim(claim)) }); err != nil {
			return nil, err
		}
		if err := controller.Watch(s, func(volume *corev1.PersistentVolume) []controller.Key { return classKeys(classesOfVolume(volume)) }); err != nil {
			return nil, err
		}
		return controller.NewSyncer(s, c), nil
	},
}

// byAttributesClass is the index of claims and volumes by VolumeAttributesClass.
const byAttributesClass = "attributes class"

type attributesClassProtection struct {
	classes client.Informer[*storagev1.VolumeAttributesClass]
	claims  client.Informer[*corev1.PersistentVolumeClaim]
	volumes client.Informer[*corev1.PersistentVolume]
}

func classKeys(names []string) (keys []controller.Key) {
	for _, name := range names {
		if name != "" {
			keys = append(keys, controller.Key{Name: name})
		}
	}
	return keys
}

// classesOfClaim returns the desired, current and target attributes classes of a claim.
func classesOfClaim(claim *corev1.PersistentVolumeClaim) []string {
	names := []string{deref(claim.Spec.VolumeAttributesClassName), deref(claim.Status.CurrentVolumeAttributesClassName)}
	if s := claim.Status.ModifyVolumeStatus; s != nil {
		names = append(names, s.TargetVolumeAttributesClassName)
	}
	return names
}

func classesOfVolume(volume *corev1.PersistentVolume) []string {
	return []string{deref(volume.Spec.VolumeAttributesClassName)}
}

type classView struct {
	class *storagev1.VolumeAttributesClass
	used  bool
}

// Observe gathers a class and, if it is being deleted, whether it is used.
func (c attributesClassProtection) Observe(key controller.Key) (v classView, ok bool) {
	if v.class, ok = c.classes.Get("", key.Name); !ok || v.class.DeletionTimestamp == nil {
		return v, ok
	}
	// The indexes exist: New added them.
	claims, _ := c.claims.ByIndex(byAttributesClass, key.Name)
	volumes, _ := c.volumes.ByIndex(byAttributesClass, key.Name)
	v.used = len(claims)+len(volumes) > 0
	return v, true
}

// Reconcile protects the class.
func (c attributesClassProtection) Reconcile(v classView) controller.Plan {
	return protect(v.class, classFinalizer, func() bool { return v.used })
}
