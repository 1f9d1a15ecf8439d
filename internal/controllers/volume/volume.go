// Package volume contains the controllers of storage: the persistent volume binder, protection of objects in use, ephemeral
// volumes, expansion, attach/detach, and a provisioner of local directories.
package volume

import (
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/client"
	"skiff/internal/controller"
	"skiff/internal/kind"
	"skiff/internal/podstate"
)

// Annotations shared by binder, provisioners and scheduler.
const (
	bindCompleted         = "pv.kubernetes.io/bind-completed"
	boundByController     = "pv.kubernetes.io/bound-by-controller"
	provisionedBy         = "pv.kubernetes.io/provisioned-by"
	migratedTo            = "pv.kubernetes.io/migrated-to"
	selectedNode          = "volume.kubernetes.io/selected-node"
	storageProvisioner    = "volume.kubernetes.io/storage-provisioner"
	oldStorageProvisioner = "volume.beta.kubernetes.io/storage-provisioner"
	preResizeCapacity     = "volume.alpha.kubernetes.io/pre-resize-capacity"
	defaultClass          = "storageclass.kubernetes.io/is-default-class"
	oldDefaultClass       = "storageclass.beta.kubernetes.io/is-default-class"
)

// podsByClaim is the index of pods by claim.
const podsByClaim = "claim"

// indexPods adds the index of pods by claim.
func indexPods(pods client.Informer[*corev1.Pod]) error {
	if err := pods.EnsureIndex(podsByClaim, claimsOf); err != nil {
		return fmt.Errorf("index pods by claim: %w", err)
	}
	return nil
}

// claimsOf returns the keys of the claims a pod uses.
func claimsOf(pod *corev1.Pod) (keys []string) {
	for i := range pod.Spec.Volumes {
		if name := claimName(pod, &pod.Spec.Volumes[i]); name != "" {
			keys = append(keys, pod.Namespace+"/"+name)
		}
	}
	return keys
}

// claimName is the name of the claim behind a volume of a pod, "" if there is none.
func claimName(pod *corev1.Pod, volume *corev1.Volume) string {
	switch {
	case volume.PersistentVolumeClaim != nil:
		return volume.PersistentVolumeClaim.ClaimName
	case volume.Ephemeral != nil:
		return pod.Name + "-" + volume.Name
	}
	return ""
}

// podsUsing returns the pods that use a claim.
func podsUsing(pods client.Informer[*corev1.Pod], namespace, name string) []*corev1.Pod {
	// The index exists: indexPods added it.
	found, _ := pods.ByIndex(podsByClaim, namespace+"/"+name)
	return found
}

// claimKeys are the keys of the claims a pod uses.
func claimKeys(pod *corev1.Pod) (keys []controller.Key) {
	for i := range pod.Spec.Volumes {
		if name := claimName(pod, &pod.Spec.Volumes[i]); name != "" {
			keys = append(keys, controller.Key{Namespace: pod.Namespace, Name: name})
		}
	}
	return keys
}

// isPodTerminated reports whether a pod no longer uses its volumes: it is terminal, or being deleted without running containers.
func isPodTerminated(pod *corev1.Pod) bool {
	if podstate.IsTerminal(pod) {
		return true
	}
	if pod.DeletionTimestamp == nil {
		return false
	}
	return !slices.ContainsFunc(pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool { return s.State.Terminated == nil && s.State.Waiting == nil })
}

// classOfClaim is the storage class of a claim. The beta annotation takes precedence.
func classOfClaim(claim *corev1.PersistentVolumeClaim) string {
	if class, ok := claim.Annotations[corev1.BetaStorageClassAnnotation]; ok {
		return class
	}
	return deref(claim.Spec.StorageClassName)
}

func classOfVolume(volume *corev1.PersistentVolume) string {
	if class, ok := volume.Annotations[corev1.BetaStorageClassAnnotation]; ok {
		return class
	}
	return volume.Spec.StorageClassName
}

// deref returns the value of a pointer, or the zero value.
func deref[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// modeOf is the volume mode, Filesystem by default.
func modeOf(mode *corev1.PersistentVolumeMode) corev1.PersistentVolumeMode {
	if mode == nil {
		return corev1.PersistentVolumeFilesystem
	}
	return *mode
}

// waitsForFirstConsumer reports whether a class has volumeBindingMode WaitForFirstConsumer.
func waitsForFirstConsumer(class *storagev1.StorageClass) bool {
	return class != nil && class.VolumeBindingMode != nil && *class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer
}

// isDefault reports whether a class is a default class.
func isDefault(class *storagev1.StorageClass) bool {
	return class.Annotations[defaultClass] == "true" || class.Annotations[oldDefaultClass] == "true"
}

func storageOf(resources corev1.ResourceList) int64 {
	quantity := resources[corev1.ResourceStorage]
	return quantity.Value()
}

// addFinalizer and removeFinalizer are writes that change one finalizer.
func addFinalizer(obj kind.Object, finalizer string) controller.Write {
	return controller.NewPatch(obj, client.StrategicPatch, finalizerPatch(obj, "finalizers", finalizer)).Ignoring(metav1.StatusReasonNotFound)
}

func removeFinalizer(obj kind.Object, finalizer string) controller.Write {
	return controller.NewPatch(obj, client.StrategicPatch, finalizerPatch(obj, "$deleteFromPrimitiveList/finalizers", finalizer)).Ignoring(metav1.StatusReasonNotFound)
}

func finalizerPatch(obj kind.Object, key, finalizer string) []byte {
	return encode(map[string]any{"metadata": map[string]any{"uid": obj.GetUID(), key: []string{finalizer}}})
}

// patchStatus is a write that patches fields of the status.
func patchStatus(obj kind.Object, status map[string]any) controller.Write {
	w := controller.NewPatch(obj, client.MergePatch, encode(map[string]any{"metadata": map[string]any{"uid": obj.GetUID()}, "status": status}))
	w.Verb = controller.PatchStatus
	return w
}

// encode marshals maps, lists and strings, which cannot fail.
func encode(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return data
}

func normal(about kind.Object, reason, message string) controller.Event {
	return controller.Event{Object: about, Type: corev1.EventTypeNormal, Reason: reason, Message: message}
}

func warning(about kind.Object, reason, message string) controller.Event {
	return controller.Event{Object: about, Type: corev1.EventTypeWarning, Reason: reason, Message: message}
}
