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
)

// retryWatch is how long an API server that is away is left alone.
const retryWatch = 500 * time.Millisecond

// watchPods follows the pods that the API has bound to this node until ctx ends. After every interruption all are listed anew.
func (k *Kubelet) watchPods(ctx context.Context) error {
	pods := client.For[*corev1.Pod](k.Client)
	match := client.Selector{Fields: fields.OneTermEqualSelector("spec.nodeName", k.NodeName)}
	known := map[types.UID]*corev1.Pod{}
	for ctx.Err() == nil {
		if err := k.followPods(ctx, pods, match, known); err != nil && ctx.Err() == nil {
			k.Log.Debug("the watch of this node's pods was interrupted", "error", err)
			select {
			case <-ctx.Done():
			case <-time.After(retryWatch):
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
	there := map[types.UID]bool{}
	for _, pod := range list {
		there[pod.UID] = true
		known[pod.UID] = pod
		k.observe(pod)
	}
	for uid, pod := range known {
		if !there[uid] {
			delete(known, uid)
			k.vanished(pod)
		}
	}
	k.listed(&k.apiListed)
	stream, err := pods.Watch(ctx, "", match, revision)
	if err != nil {
		return err
	}
	defer stream.Stop()
	for event := range stream.ResultChan() {
		pod, ok := event.Object.(*corev1.Pod)
		switch {
		case event.Type == watch.Error:
			return errors.New("the server ended the watch")
		case !ok || event.Type == watch.Bookmark:
			continue
		case event.Type == watch.Deleted:
			delete(known, pod.UID)
			k.vanished(pod)
		default:
			if old := known[pod.UID]; old == nil {
				// A pod of the same name may have been replaced between two events.
				for uid, other := range known {
					if name(other) == name(pod) {
						delete(known, uid)
						k.vanished(other)
					}
				}
			}
			known[pod.UID] = pod
			k.observe(pod)
		}
	}
	return errors.New("the watch has ended")
}

// listed notes that a source has told all its pods.
func (k *Kubelet) listed(source *bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	*source = true
}

// observe takes note of a pod as the API has it.
func (k *Kubelet) observe(pod *corev1.Pod) {
	if _, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
		k.observeMirror(pod)
		return
	}
	k.writer.Observe(pod.UID, pod)
	k.update(pod)
}

// vanished takes note that the API no longer has a pod.
func (k *Kubelet) vanished(pod *corev1.Pod) {
	if _, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
		k.mirrorVanished(pod)
		return
	}
	k.remove(pod.UID)
}
