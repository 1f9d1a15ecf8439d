package kubelet

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"skiff/internal/client"
	"skiff/internal/podstate"
)

// watchRetry is the delay before a failed list or watch is retried.
const watchRetry = 500 * time.Millisecond

// watchPods watches the pods bound to this node until ctx is done. After every interruption it lists them again.
func (k *Kubelet) watchPods(ctx context.Context) error {
	pods := client.For[*corev1.Pod](k.Client)
	match := client.Selector{Fields: fields.OneTermEqualSelector("spec.nodeName", k.NodeName)}
	known := map[types.UID]*corev1.Pod{}
	for ctx.Err() == nil {
		if err := k.followPods(ctx, pods, match, known); err != nil && ctx.Err() == nil {
			k.Log.Debug("watch of pods was interrupted", "error", err)
			select {
			case <-ctx.Done():
			case <-time.After(watchRetry):
			}
		}
	}
	return nil
}

func (k *Kubelet) followPods(ctx context.Context, pods client.Resource[*corev1.Pod], match client.Selector, known map[types.UID]*corev1.Pod) error {
	list, revision, err := pods.List(ctx, "", match)
	if err != nil {
		return err
	}
	listed := map[types.UID]bool{}
	for _, pod := range list {
		listed[pod.UID] = true
		known[pod.UID] = pod
		k.observe(pod)
	}
	for uid, pod := range known {
		if !listed[uid] {
			delete(known, uid)
			k.podDeleted(pod)
		}
	}
	k.markListed(&k.apiListed)
	k.wakeUnmirrored()
	stream, err := pods.Watch(ctx, "", match, revision)
	if err != nil {
		return err
	}
	defer stream.Stop()
	for event := range stream.ResultChan() {
		pod, ok := event.Object.(*corev1.Pod)
		switch {
		case event.Type == watch.Error:
			return errors.New("watch ended with an error event")
		case !ok || event.Type == watch.Bookmark:
			continue
		case event.Type == watch.Deleted:
			delete(known, pod.UID)
			k.podDeleted(pod)
		default:
			if old := known[pod.UID]; old == nil {
				// The pod may have replaced another with the same name between two events.
				for uid, other := range known {
					if name(other) == name(pod) {
						delete(known, uid)
						k.podDeleted(other)
					}
				}
			}
			known[pod.UID] = pod
			k.observe(pod)
		}
	}
	return errors.New("watch closed")
}

// markListed records that a source has listed all its pods.
func (k *Kubelet) markListed(source *bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	*source = true
}

// observe handles a pod that was added or changed in the API.
func (k *Kubelet) observe(pod *corev1.Pod) {
	if podstate.IsMirror(pod) {
		k.observeMirror(pod)
		return
	}
	k.writer.Observe(pod.UID, pod)
	k.update(withAPISource(pod))
}

// withAPISource returns the pod without a claim to another source than the API. The annotation makes a pod static, and so critical; only
// this kubelet may set it, otherwise everyone who may create pods could preempt others' and be exempt from eviction.
func withAPISource(pod *corev1.Pod) *corev1.Pod {
	if !podstate.IsStatic(pod) {
		return pod
	}
	pod = pod.DeepCopy()
	pod.Annotations[podstate.ConfigSourceAnnotationKey] = "api"
	return pod
}

// podDeleted handles a pod that was deleted from the API.
func (k *Kubelet) podDeleted(pod *corev1.Pod) {
	if podstate.IsMirror(pod) {
		k.mirrorDeleted(pod)
		return
	}
	k.remove(pod.UID)
}
