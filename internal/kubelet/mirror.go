package kubelet

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/client"
	"skiff/internal/podstate"
)

// mirrorTimeout bounds the requests about a mirror pod. A static pod does not wait longer for the API server, which may be that pod.
const mirrorTimeout = 5 * time.Second

// observeMirror handles a mirror pod that was added or changed in the API.
func (k *Kubelet) observeMirror(mirror *corev1.Pod) {
	k.mu.Lock()
	k.mirrors[name(mirror)] = mirror
	w := k.staticOf(mirror)
	if w != nil && isMirrorOf(mirror, w.current()) {
		k.writer.Observe(w.uid, mirror)
	}
	k.mu.Unlock()
	if w != nil {
		w.wakeUp()
	} else if k.allSourcesListed() {
		k.deleteOrphanedMirror(mirror)
	}
}

// isMirrorOf reports whether a mirror pod was made from the manifest of a static pod.
func isMirrorOf(mirror, pod *corev1.Pod) bool {
	return mirror.Annotations[corev1.MirrorPodAnnotationKey] == pod.Annotations[annotationHash]
}

// staticOf returns the worker of the static pod of a mirror pod. While a static pod is being replaced there are two, and the one whose
// manifest is that of the mirror pod is returned. The caller holds mu.
func (k *Kubelet) staticOf(mirror *corev1.Pod) (found *worker) {
	for _, w := range k.workers {
		pod := w.current()
		if !podstate.IsStatic(pod) || name(pod) != name(mirror) {
			continue
		}
		if found = w; isMirrorOf(mirror, pod) {
			return found
		}
	}
	return found
}

// mirrorDeleted wakes the worker of a static pod to create its mirror pod again.
func (k *Kubelet) mirrorDeleted(mirror *corev1.Pod) {
	k.mu.Lock()
	if known := k.mirrors[name(mirror)]; known != nil && known.UID == mirror.UID {
		delete(k.mirrors, name(mirror))
	}
	w := k.staticOf(mirror)
	k.mu.Unlock()
	if w != nil {
		w.wakeUp()
	}
}

// deleteOrphanedMirrors deletes the mirror pods without a static pod: their manifests were removed while no kubelet ran, or the API server
// could not be reached when they were.
func (k *Kubelet) deleteOrphanedMirrors(ctx context.Context) {
	var orphans []*corev1.Pod
	k.mu.Lock()
	for _, mirror := range k.mirrors {
		if k.staticOf(mirror) == nil {
			orphans = append(orphans, mirror)
		}
	}
	k.mu.Unlock()
	for _, mirror := range orphans {
		k.deleteMirror(ctx, mirror)
	}
}

// deleteOrphanedMirror deletes a mirror pod without a static pod in the background.
func (k *Kubelet) deleteOrphanedMirror(mirror *corev1.Pod) {
	k.mu.Lock()
	ctx := k.ctx
	k.mu.Unlock()
	k.running.Go(func() { k.deleteMirror(ctx, mirror) })
}

// deleteMirror deletes a mirror pod. A failure is logged; housekeeping tries again.
func (k *Kubelet) deleteMirror(ctx context.Context, mirror *corev1.Pod) bool {
	bounded, cancel := context.WithTimeout(ctx, mirrorTimeout)
	defer cancel()
	if err := k.deletePod(bounded, mirror); err != nil {
		if ctx.Err() == nil {
			k.Log.Warn("failed to delete mirror pod", "pod", describe(mirror), "error", err)
		}
		return false
	}
	return true
}

func (k *Kubelet) deletePod(ctx context.Context, pod *corev1.Pod) error {
	zero := int64(0)
	err := client.For[*corev1.Pod](k.Client).Delete(ctx, pod.Namespace, pod.Name, metav1.DeleteOptions{
		GracePeriodSeconds: &zero, Preconditions: &metav1.Preconditions{UID: &pod.UID},
	})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// mirrored reports whether a pod is in the API. A static pod is if it has a mirror pod.
func (k *Kubelet) mirrored(pod *corev1.Pod) bool {
	if !podstate.IsStatic(pod) {
		return true
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	mirror := k.mirrors[name(pod)]
	return mirror != nil && isMirrorOf(mirror, pod)
}

// wakeUnmirrored wakes the workers of static pods without a mirror pod: the API server responds again.
func (k *Kubelet) wakeUnmirrored() {
	for _, w := range k.listWorkers() {
		if !k.mirrored(w.current()) {
			w.wakeUp()
		}
	}
}

// ensureMirror creates the mirror pod of a static pod. The pod runs even if that fails.
func (w *worker) ensureMirror(ctx context.Context, pod *corev1.Pod) {
	if !podstate.IsStatic(pod) {
		return
	}
	k := w.k
	k.mu.Lock()
	mirror, listed := k.mirrors[name(pod)], k.apiListed
	k.mu.Unlock()
	if !listed {
		return
	}
	if mirror != nil && mirror.DeletionTimestamp == nil && isMirrorOf(mirror, pod) && mirror.UID != w.oldMirror {
		k.writer.Observe(pod.UID, mirror) // it may have been observed before its static pod
		return
	}
	if mirror != nil && !k.deleteMirror(ctx, mirror) {
		return
	}
	node := k.Node()
	if node == nil || node.UID == "" {
		return
	}
	created := &corev1.Pod{ObjectMeta: *pod.ObjectMeta.DeepCopy(), Spec: *pod.Spec.DeepCopy()}
	created.UID, created.ResourceVersion, created.Generation = "", "", 0
	created.Annotations[corev1.MirrorPodAnnotationKey] = pod.Annotations[annotationHash]
	yes := true
	created.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID, Controller: &yes}}
	bounded, cancel := context.WithTimeout(ctx, mirrorTimeout)
	defer cancel()
	created, err := client.For[*corev1.Pod](k.Client).Create(bounded, created, client.WriteOptions{})
	if err == nil {
		k.observeMirror(created)
	} else if !apierrors.IsAlreadyExists(err) && ctx.Err() == nil {
		k.Log.Warn("failed to create mirror pod", "pod", describe(pod), "error", err)
	}
}

// deleteMirrorOf deletes the mirror pod of a removed static pod.
func (k *Kubelet) deleteMirrorOf(ctx context.Context, pod *corev1.Pod) {
	k.mu.Lock()
	mirror := k.mirrors[name(pod)]
	k.mu.Unlock()
	if mirror != nil && isMirrorOf(mirror, pod) {
		k.deleteMirror(ctx, mirror)
	}
}

// statusInAPI returns the status of a pod in the API: for a static pod, that of its mirror pod.
func (w *worker) statusInAPI(pod *corev1.Pod) *corev1.PodStatus {
	if podstate.IsStatic(pod) {
		w.k.mu.Lock()
		defer w.k.mu.Unlock()
		if mirror := w.k.mirrors[name(pod)]; mirror != nil && isMirrorOf(mirror, pod) && mirror.UID != w.oldMirror {
			return &mirror.Status
		}
	}
	return &pod.Status
}
