package volume

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/client"
	"skiff/internal/controller"
)

// resyncPeriod is the period in which pending claims are synced, so that their events do not expire.
const resyncPeriod = time.Minute

// Binder binds claims to volumes, updates the phase of both, and reclaims volumes whose claims are deleted.
//
// It has three kinds of keys: claims, with a namespace, volumes, without one, and storage classes, with a prefix. A binding is written to the volume first; if two
// claims want the same volume, the second write conflicts, and that claim gets another volume.
var Binder = controller.Definition{
	Name: "persistentvolume-binder-controller", Aliases: []string{"persistentvolume-binder"}, Component: "persistentvolume-controller", Queue: "claims", Workers: 4,
	New: func(s *controller.Setup) (controller.Syncer, error) {
		b := &binder{
			setup:   s,
			claims:  client.InformerFor[*corev1.PersistentVolumeClaim](s.Informers),
			volumes: client.InformerFor[*corev1.PersistentVolume](s.Informers),
			classes: client.InformerFor[*storagev1.StorageClass](s.Informers),
			pods:    client.InformerFor[*corev1.Pod](s.Informers),
		}
		if err := errors.Join(indexPods(b.pods), b.index()); err != nil {
			return nil, err
		}
		return b, b.watch()
	},
}

type binder struct {
	setup   *controller.Setup
	claims  client.Informer[*corev1.PersistentVolumeClaim]
	volumes client.Informer[*corev1.PersistentVolume]
	classes client.Informer[*storagev1.StorageClass]
	pods    client.Informer[*corev1.Pod]
}

const (
	// pendingClaims is the index of unbound claims: by storage class, by the volume they request, and all of them as anyClaim.
	pendingClaims = "pending"
	anyClaim      = "any"
	// volumesByClaim is the index of volumes by the claim they refer to; those without are indexed by storage class.
	volumesByClaim = "claim"
	// classKeyPrefix marks keys of storage classes, under which the unbound claims of a class are enqueued. Object names contain no
	// slash. matchDelay batches changes of volumes and classes for that.
	classKeyPrefix = "class/"
	matchDelay     = 200 * time.Millisecond
)

func classValue(class string) string           { return classKeyPrefix + class }
func volumeValue(name string) string           { return "volume/" + name }
func claimValue(namespace, name string) string { return "claim/" + namespace + "/" + name }

// index adds the indexes of claims and volumes.
func (b *binder) index() error {
	err := b.claims.EnsureIndex(pendingClaims, func(claim *corev1.PersistentVolumeClaim) []string {
		if metav1.HasAnnotation(claim.ObjectMeta, bindCompleted) {
			return nil
		}
		values := []string{anyClaim, classValue(classOfClaim(claim))}
		if claim.Spec.VolumeName != "" {
			values = append(values, volumeValue(claim.Spec.VolumeName))
		}
		return values
	})
	if err != nil {
		return fmt.Errorf("index pending claims: %w", err)
	}
	err = b.volumes.EnsureIndex(volumesByClaim, func(volume *corev1.PersistentVolume) []string {
		if ref := volume.Spec.ClaimRef; ref != nil {
			return []string{claimValue(ref.Namespace, ref.Name)}
		}
		return []string{classValue(classOfVolume(volume))}
	})
	if err != nil {
		return fmt.Errorf("index volumes by claim: %w", err)
	}
	return nil
}

// volumesOf returns the volumes with a value in the index volumesByClaim.
func (b *binder) volumesOf(value string) []*corev1.PersistentVolume {
	// The index exists: index added it.
	volumes, _ := b.volumes.ByIndex(volumesByClaim, value)
	return volumes
}

func (b *binder) watch() error {
	if err := controller.Watch(b.setup, func(claim *corev1.PersistentVolumeClaim) []controller.Key {
		keys := []controller.Key{controller.KeyOf(claim)}
		if claim.Spec.VolumeName != "" {
			keys = append(keys, controller.Key{Name: claim.Spec.VolumeName})
		}
		return keys
	}); err != nil {
		return err
	}
	// A deleted claim releases all volumes that refer to it.
	if err := b.claims.AddEventHandler(nil, nil, func(claim *corev1.PersistentVolumeClaim) {
		for _, volume := range b.volumesOf(claimValue(claim.Namespace, claim.Name)) {
			if volume.Spec.ClaimRef.UID == claim.UID {
				b.setup.Enqueue(controller.KeyOf(volume))
			}
		}
	}); err != nil {
		return fmt.Errorf("watch claims: %w", err)
	}
	if err := controller.Watch(b.setup, func(volume *corev1.PersistentVolume) []controller.Key {
		keys := []controller.Key{{Name: volume.Name}}
		if ref := volume.Spec.ClaimRef; ref != nil {
			return append(keys, controller.Key{Namespace: ref.Namespace, Name: ref.Name})
		}
		b.enqueueClass(classOfVolume(volume)) // one of its claims may match
		return append(keys, b.pending(volumeValue(volume.Name))...)
	}); err != nil {
		return err
	}
	classChanged := func(class *storagev1.StorageClass) {
		b.enqueueClass(class.Name)
		b.enqueueClass("") // it may be the default
	}
	if err := b.classes.AddEventHandler(classChanged, func(_, class *storagev1.StorageClass) { classChanged(class) }, classChanged); err != nil {
		return fmt.Errorf("watch storage classes: %w", err)
	}
	return nil
}

// enqueueClass enqueues the unbound claims of a storage class soon.
func (b *binder) enqueueClass(class string) {
	b.setup.EnqueueAfter(controller.Key{Name: classKeyPrefix + class}, matchDelay)
}

// pending returns the claims that are not bound and have a value in the index pendingClaims. They include those that request a volume
// by name, which may be created later.
func (b *binder) pending(value string) (keys []controller.Key) {
	// The index exists: index added it.
	claims, _ := b.claims.ByIndex(pendingClaims, value)
	for _, claim := range claims {
		keys = append(keys, controller.KeyOf(claim))
	}
	return keys
}

// enqueuePending enqueues the pending claims with a value.
func (b *binder) enqueuePending(value string) {
	for _, key := range b.pending(value) {
		b.setup.Enqueue(key)
	}
}

// Run enqueues all pending claims periodically.
func (b *binder) Run(ctx context.Context) error {
	ticker := time.NewTicker(resyncPeriod)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			b.enqueuePending(anyClaim)
		}
	}
}

// Sync reconciles a claim or a volume, or enqueues the unbound claims of a class.
func (b *binder) Sync(ctx context.Context, key controller.Key) error {
	if strings.HasPrefix(key.Name, classKeyPrefix) {
		b.enqueuePending(key.Name)
		return nil
	}
	if key.Namespace == "" {
		return b.syncVolume(ctx, key)
	}
	claim, ok := b.claims.Get(key.Namespace, key.Name)
	if !ok {
		return nil
	}
	v := claimView{claim: claim, classes: b.classes.List("", nil)}
	if claim.Spec.VolumeName != "" {
		v.volume, _ = b.volumes.Get("", claim.Spec.VolumeName)
	} else if !metav1.HasAnnotation(claim.ObjectMeta, bindCompleted) {
		var err error
		candidates := slices.Concat(b.volumesOf(classValue(classOfClaim(claim))), b.volumesOf(claimValue(claim.Namespace, claim.Name)))
		if v.volume, err = match(claim, candidates, waitsForFirstConsumer(v.class())); err != nil {
			return err
		}
		if v.volume == nil {
			v.unscheduledPods = unscheduled(podsUsing(b.pods, claim.Namespace, claim.Name))
		}
	}
	return b.setup.Apply(ctx, key, v.reconcile())
}

// syncVolume reconciles a volume.
func (b *binder) syncVolume(ctx context.Context, key controller.Key) error {
	volume, ok := b.volumes.Get("", key.Name)
	if !ok {
		return nil
	}
	v := volumeView{volume: volume}
	if ref := volume.Spec.ClaimRef; ref != nil {
		v.claim, _ = b.claims.Get(ref.Namespace, ref.Name)
		if v.wouldRelease() {
			// Data may be lost: confirm with a live read that the claim is deleted.
			live, err := client.For[*corev1.PersistentVolumeClaim](b.setup.Client).Get(ctx, ref.Namespace, ref.Name)
			if err != nil && !apierrors.IsNotFound(err) {
				return fmt.Errorf("get claim %s/%s: %w", ref.Namespace, ref.Name, err)
			}
			if v.claim = nil; err == nil {
				v.claim = live
			}
		}
	}
	return b.setup.Apply(ctx, key, v.reconcile())
}

// unscheduled returns the names of pods without a node.
func unscheduled(pods []*corev1.Pod) (names []string) {
	for _, pod := range pods {
		if pod.Spec.NodeName == "" && !isPodTerminated(pod) {
			names = append(names, pod.Name)
		}
	}
	slices.Sort(names)
	return names
}

// claimView is the observed state of one claim.
type claimView struct {
	claim           *corev1.PersistentVolumeClaim
	volume          *corev1.PersistentVolume // the bound or requested volume, or the best match; nil if there is none
	classes         []*storagev1.StorageClass
	unscheduledPods []string // pods that use the claim and have no node
}

// class is the storage class of the claim, or nil.
func (v claimView) class() *storagev1.StorageClass {
	i := slices.IndexFunc(v.classes, func(c *storagev1.StorageClass) bool { return c.Name == classOfClaim(v.claim) })
	if i < 0 {
		return nil
	}
	return v.classes[i]
}

func (v claimView) reconcile() controller.Plan {
	switch {
	case metav1.HasAnnotation(v.claim.ObjectMeta, bindCompleted):
		return v.checkBound()
	case v.claim.Spec.VolumeName != "":
		return v.bindRequestedVolume()
	case v.volume != nil:
		return v.bind()
	}
	return v.unbound()
}

// checkBound checks that a binding is still valid.
func (v claimView) checkBound() controller.Plan {
	switch {
	case v.claim.Spec.VolumeName == "":
		return v.lost("ClaimLost", "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!")
	case v.volume == nil:
		return v.lost("ClaimLost", "Bound claim has lost its PersistentVolume. Data on the volume is lost!")
	case v.volume.Spec.ClaimRef == nil || v.volume.Spec.ClaimRef.UID == v.claim.UID:
		return v.bind()
	}
	return v.lost("ClaimMisbound", "Two claims are bound to the same volume, this one is bound incorrectly")
}

func (v claimView) lost(reason, message string) (plan controller.Plan) {
	if v.claim.Status.Phase != corev1.ClaimLost {
		plan.AddStep(v.phase(corev1.ClaimLost)...)
		plan.Events = append(plan.Events, warning(v.claim, reason, message))
	}
	return plan
}

// bindRequestedVolume handles a claim with spec.volumeName.
func (v claimView) bindRequestedVolume() (plan controller.Plan) {
	switch {
	case v.volume == nil: // it may be created later
	case v.volume.Spec.ClaimRef == nil:
		err := checkSatisfies(v.volume, v.claim)
		if err == nil {
			return v.bind()
		}
		plan.Events = append(plan.Events, warning(v.claim, "VolumeMismatch", fmt.Sprintf("Cannot bind to requested volume %q: %s", v.volume.Name, err)))
	case isBoundTo(v.volume, v.claim):
		return v.bind()
	default:
		plan.Events = append(plan.Events, warning(v.claim, "FailedBinding", fmt.Sprintf("volume %q already bound to a different claim.", v.volume.Name)))
	}
	plan.AddStep(v.phase(corev1.ClaimPending)...)
	return plan
}

// unbound handles a claim without a matching volume.
func (v claimView) unbound() (plan controller.Plan) {
	if name := v.defaultClassName(); name != "" {
		changed := v.claim.DeepCopy()
		changed.Spec.StorageClassName = &name
		plan.AddStep(controller.NewUpdate(changed))
		return plan
	}
	class := v.class()
	_, chosen := v.claim.Annotations[selectedNode]
	switch {
	case waitsForFirstConsumer(class) && !chosen:
		reason, message := "WaitForFirstConsumer", "waiting for first consumer to be created before binding"
		if len(v.unscheduledPods) == 1 {
			reason, message = "WaitForPodScheduled", fmt.Sprintf("waiting for pod %s to be scheduled", v.unscheduledPods[0])
		} else if len(v.unscheduledPods) > 1 {
			reason, message = "WaitForPodScheduled", fmt.Sprintf("waiting for pods %s to be scheduled", strings.Join(v.unscheduledPods, ","))
		}
		plan.Events = append(plan.Events, normal(v.claim, reason, message))
	case classOfClaim(v.claim) == "":
		plan.Events = append(plan.Events, normal(v.claim, "FailedBinding", "no persistent volumes available for this claim and no storage class is set"))
	case class == nil:
		plan.Events = append(plan.Events, warning(v.claim, "ProvisioningFailed", fmt.Sprintf("storageclass.storage.k8s.io %q not found", classOfClaim(v.claim))))
	case strings.HasPrefix(class.Provisioner, "kubernetes.io/"):
		plan.Events = append(plan.Events, warning(v.claim, "ProvisioningFailed", "no volume plugin matched name: "+class.Provisioner))
	default:
		return v.provision(class)
	}
	plan.AddStep(v.phase(corev1.ClaimPending)...)
	return plan
}

// defaultClassName returns the default class for a claim without a class that was created before there was a default. Of several
// defaults the newest is used.
func (v claimView) defaultClassName() string {
	if _, old := v.claim.Annotations[corev1.BetaStorageClassAnnotation]; old || v.claim.Spec.StorageClassName != nil {
		return ""
	}
	var newest *storagev1.StorageClass
	for _, class := range v.classes {
		if !isDefault(class) {
			continue
		}
		if newest == nil || newest.CreationTimestamp.Before(&class.CreationTimestamp) ||
			newest.CreationTimestamp.Equal(&class.CreationTimestamp) && class.Name < newest.Name {
			newest = class
		}
	}
	if newest == nil {
		return ""
	}
	return newest.Name
}

// provision requests provisioning: the external provisioner watches for its name in the annotation.
func (v claimView) provision(class *storagev1.StorageClass) (plan controller.Plan) {
	if v.claim.Annotations[storageProvisioner] != class.Provisioner {
		changed := v.claim.DeepCopy()
		metav1.SetMetaDataAnnotation(&changed.ObjectMeta, oldStorageProvisioner, class.Provisioner)
		metav1.SetMetaDataAnnotation(&changed.ObjectMeta, storageProvisioner, class.Provisioner)
		plan.AddStep(controller.NewUpdate(changed))
	}
	plan.AddStep(v.phase(corev1.ClaimPending)...)
	plan.Events = append(plan.Events, normal(v.claim, "ExternalProvisioning", fmt.Sprintf("Waiting for a volume to be created either by the external provisioner '%s' "+
		"or manually by the system administrator. If volume creation is delayed, please verify that the provisioner is running and correctly registered.", class.Provisioner)))
	return plan
}

// phase writes the phase of a claim without a volume, if it differs.
func (v claimView) phase(phase corev1.PersistentVolumeClaimPhase) []controller.Write {
	s := v.claim.Status
	if s.Phase == phase && len(s.AccessModes) == 0 && len(s.Capacity) == 0 && s.CurrentVolumeAttributesClassName == nil {
		return nil
	}
	return []controller.Write{patchStatus(v.claim, map[string]any{"phase": phase, "accessModes": nil, "capacity": nil, "currentVolumeAttributesClassName": nil})}
}

// bind binds the claim and the volume to each other: the volume first, the claim's status last.
func (v claimView) bind() (plan controller.Plan) {
	if volume := v.boundVolume(); volume != nil {
		plan.AddStep(controller.NewUpdate(volume))
	}
	if v.volume.Status.Phase != corev1.VolumeBound {
		plan.AddStep(patchStatus(v.volume, map[string]any{"phase": corev1.VolumeBound, "message": nil}))
	}
	if claim := v.boundClaim(); claim != nil {
		plan.AddStep(controller.NewUpdate(claim))
	}
	if status := v.boundStatus(); len(status) > 0 {
		plan.AddStep(patchStatus(v.claim, status))
	}
	return plan
}

// boundVolume returns the volume with the claim reference, nil if it has it already.
func (v claimView) boundVolume() *corev1.PersistentVolume {
	ref := v.volume.Spec.ClaimRef
	if ref != nil && ref.Name == v.claim.Name && ref.Namespace == v.claim.Namespace && ref.UID == v.claim.UID {
		return nil
	}
	changed := v.volume.DeepCopy()
	if !isBoundTo(v.volume, v.claim) {
		metav1.SetMetaDataAnnotation(&changed.ObjectMeta, boundByController, "yes")
	}
	changed.Spec.ClaimRef = &corev1.ObjectReference{
		APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: v.claim.Namespace, Name: v.claim.Name, UID: v.claim.UID, ResourceVersion: v.claim.ResourceVersion,
	}
	return changed
}

// boundClaim returns the claim with the volume name, nil if it has it already.
func (v claimView) boundClaim() *corev1.PersistentVolumeClaim {
	changed := v.claim.DeepCopy()
	if v.claim.Spec.VolumeName != v.volume.Name {
		changed.Spec.VolumeName = v.volume.Name
		metav1.SetMetaDataAnnotation(&changed.ObjectMeta, boundByController, "yes")
	} else if metav1.HasAnnotation(v.claim.ObjectMeta, bindCompleted) {
		return nil
	}
	metav1.SetMetaDataAnnotation(&changed.ObjectMeta, bindCompleted, "yes")
	return changed
}

// boundStatus returns the changed status fields of a bound claim. The capacity is set once; later it is updated by resizing.
func (v claimView) boundStatus() map[string]any {
	status := map[string]any{}
	if !slices.Equal(v.claim.Status.AccessModes, v.volume.Spec.AccessModes) {
		status["accessModes"] = v.volume.Spec.AccessModes
	}
	if v.claim.Status.Phase != corev1.ClaimBound {
		status["phase"] = corev1.ClaimBound
		status["capacity"] = v.volume.Spec.Capacity
		if before, err := resource.ParseQuantity(v.volume.Annotations[preResizeCapacity]); err == nil {
			status["capacity"] = corev1.ResourceList{corev1.ResourceStorage: before}
		}
		if class := v.volume.Spec.VolumeAttributesClassName; v.claim.Status.Phase == corev1.ClaimPending && class != nil {
			status["currentVolumeAttributesClassName"] = *class
		}
	}
	return status
}

// volumeView is the observed state of one volume.
type volumeView struct {
	volume *corev1.PersistentVolume
	claim  *corev1.PersistentVolumeClaim // the claim of its reference; nil if deleted
}

// wouldRelease reports whether the volume would be released: its claim is deleted or was recreated.
func (v volumeView) wouldRelease() bool {
	ref := v.volume.Spec.ClaimRef
	if ref.UID == "" || v.claim != nil && v.claim.UID == ref.UID {
		return false
	}
	return v.claim != nil || v.volume.Status.Phase != corev1.VolumeReleased && v.volume.Status.Phase != corev1.VolumeFailed
}

func (v volumeView) reconcile() (plan controller.Plan) {
	ref := v.volume.Spec.ClaimRef
	switch {
	case ref == nil || ref.UID == "": // available, or reserved for a claim that does not exist yet
		plan.AddStep(v.phase(corev1.VolumeAvailable)...)
	case v.claim == nil || v.claim.UID != ref.UID:
		return v.release()
	case v.claim.Spec.VolumeName == v.volume.Name:
		plan.AddStep(v.phase(corev1.VolumeBound)...)
	case v.claim.Spec.VolumeName == "":
		if modeOf(v.claim.Spec.VolumeMode) != modeOf(v.volume.Spec.VolumeMode) {
			plan.Events = append(plan.Events,
				warning(v.volume, "VolumeMismatch", fmt.Sprintf("Cannot bind PersistentVolume to requested PersistentVolumeClaim %q due to incompatible volumeMode.", v.claim.Name)),
				warning(v.claim, "VolumeMismatch", fmt.Sprintf("Cannot bind PersistentVolume %q to requested PersistentVolumeClaim due to incompatible volumeMode.", v.volume.Name)))
		}
		// The sync of the claim completes the binding; the change of the volume has enqueued it.
	case metav1.HasAnnotation(v.volume.ObjectMeta, provisionedBy) && v.volume.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete:
		return v.release() // provisioned for a claim that was bound to another volume
	default:
		return v.unbind()
	}
	return plan
}

// unbind removes a claim that is bound to another volume. A reservation by a user is kept, without the UID.
func (v volumeView) unbind() (plan controller.Plan) {
	changed := v.volume.DeepCopy()
	if metav1.HasAnnotation(v.volume.ObjectMeta, boundByController) {
		changed.Spec.ClaimRef = nil
		delete(changed.Annotations, boundByController)
	} else {
		changed.Spec.ClaimRef.UID = ""
	}
	plan.AddStep(controller.NewUpdate(changed))
	plan.AddStep(v.phase(corev1.VolumeAvailable)...)
	return plan
}

func (v volumeView) phase(phase corev1.PersistentVolumePhase) []controller.Write {
	if v.volume.Status.Phase == phase {
		return nil
	}
	return []controller.Write{patchStatus(v.volume, map[string]any{"phase": phase, "message": nil})}
}

// release releases a volume and applies the reclaim policy.
func (v volumeView) release() (plan controller.Plan) {
	failed := v.volume.Status.Phase == corev1.VolumeFailed
	if !failed {
		plan.AddStep(v.phase(corev1.VolumeReleased)...)
	}
	if migrated := v.volume.Annotations[migratedTo] != ""; migrated || failed || v.volume.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRetain {
		return plan
	}
	fail := func(reason, message string) controller.Plan {
		plan.AddStep(patchStatus(v.volume, map[string]any{"phase": corev1.VolumeFailed, "message": message}))
		plan.Events = append(plan.Events, warning(v.volume, reason, message))
		return plan
	}
	switch v.volume.Spec.PersistentVolumeReclaimPolicy {
	case corev1.PersistentVolumeReclaimRecycle:
		return fail("VolumeFailedRecycle", "No recycler plugin found for the volume!")
	case corev1.PersistentVolumeReclaimDelete:
		by := v.volume.Annotations[provisionedBy]
		switch {
		case strings.HasPrefix(by, "kubernetes.io/"):
			return fail("VolumeFailedDelete", "no volume plugin matched name: "+by)
		case by != "" || v.volume.Spec.CSI != nil || metav1.HasAnnotation(v.volume.ObjectMeta, migratedTo):
			return plan // deleted by the provisioner or CSI driver
		case v.volume.Spec.HostPath != nil || v.volume.Spec.NFS != nil:
			return fail("VolumeFailedDelete", fmt.Sprintf("error getting deleter volume plugin for volume %q: no deletable volume plugin matched", v.volume.Name))
		}
		return fail("VolumeFailedDelete", fmt.Sprintf("error getting deleter volume plugin for volume %q: no volume plugin matched", v.volume.Name))
	}
	return fail("VolumeUnknownReclaimPolicy", "Volume has unrecognized PersistentVolumeReclaimPolicy")
}
