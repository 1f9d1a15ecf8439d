package policy

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/network/cni"
	"skiff/internal/podstate"
)

// staticPodWait is how long a static pod waits for policies that have never been read.
const staticPodWait = 2 * time.Second

// announcement are the addresses that the CNI plugin has reserved for a pod.
type announcement struct {
	uid       types.UID
	addresses []netip.Addr
	at        time.Time
	once      sync.Once
	// done is closed when the pod's rules are in the kernel.
	done chan struct{}
}

// isFor reports whether a pod is the one that was announced. The runtime has the UID of a static pod, the API that of its mirror pod.
func (a *announcement) isFor(pod *corev1.Pod) bool {
	return a.uid == "" || pod.UID == a.uid || pod.Annotations[corev1.MirrorPodAnnotationKey] == string(a.uid)
}

// isOlder reports whether a pod that was not announced has replaced the announced one.
func (a *announcement) isOlder(pod *corev1.Pod) bool { return pod.CreationTimestamp.After(a.at) }

// inForce ends the waiting.
func (a *announcement) inForce() { a.once.Do(func() { close(a.done) }) }

func (a *announcement) isWaiting() bool {
	select {
	case <-a.done:
		return false
	default:
		return true
	}
}

// announcedPod returns the object of an announced pod: that of the API, or else that of the kubelet. There is none if the pod was replaced by one that
// was not announced.
func (p *Policy) announcedPod(key types.NamespacedName, a *announcement) (*corev1.Pod, bool) {
	if a == nil {
		return nil, false
	}
	object, _ := p.pods.Get(key.Namespace, key.Name)
	running, isRunning := p.kubeletPod(a.uid)
	if !isRunning {
		running = nil
	}
	pod := a.podOf(object, running)
	return pod, pod != nil
}

// podOf returns the object of the announced pod. object is the pod of its name in the API, running that of its UID in the kubelet; nil: there is none.
func (a *announcement) podOf(object, running *corev1.Pod) *corev1.Pod {
	switch {
	case object == nil:
		return running
	case a.isFor(object):
		return object
	// The annotation of a mirror pod has no UID that the static pod sets itself, and a mirror pod is created again when it was deleted.
	case running != nil && podstate.IsStatic(running) && podstate.IsMirror(object):
		return running
	case a.isOlder(object):
		return nil
	}
	return running
}

// kubeletPod returns a pod that the kubelet runs.
func (p *Policy) kubeletPod(uid types.UID) (*corev1.Pod, bool) {
	if p.KubeletPod == nil || uid == "" {
		return nil, false
	}
	return p.KubeletPod(uid)
}

// Announce says that the CNI plugin has reserved addresses for a pod, and waits until the pod's rules are in the kernel. A static pod must run without
// the API server too: while the policies have never been read, it waits no longer than staticPodWait. Its rules follow when they have been.
func (p *Policy) Announce(ctx context.Context, pod cni.Announcement) error {
	started := time.Now()
	key := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Pod}
	a := &announcement{uid: types.UID(pod.UID), addresses: pod.Addresses, at: started, done: make(chan struct{})}
	p.addAnnouncement(key, a)
	p.loop.Signal()
	var unread <-chan time.Time
	if object, ok := p.kubeletPod(a.uid); ok && podstate.IsStatic(object) && !p.hasSynced() {
		unread = time.After(staticPodWait)
	}
	for {
		select {
		case <-a.done:
			p.Metrics.waited(started)
			return nil
		case <-unread:
			if !p.hasSynced() {
				p.Log.Warn("failed to read network policies in time, a static pod starts before they are in force", "pod", key.String())
				return nil
			}
		case <-ctx.Done():
			return p.notInForce(key, a, context.Cause(ctx))
		}
	}
}

// notInForce is the error of a pod whose rules are not in the kernel in time.
func (p *Policy) notInForce(key types.NamespacedName, a *announcement, cause error) error {
	// If nothing is known of the pod, nothing else would remove the entry.
	if _, known := p.announcedPod(key, a); !known {
		p.forgetAnnouncement(key, a)
	}
	if !p.hasSynced() {
		return fmt.Errorf("network policies, pods and namespaces have not been read: %w", cause)
	}
	return fmt.Errorf("wait for the network policies of pod %s: %w", key, cause)
}

// addAnnouncement records an announcement. Another pod that was announced with one of the addresses did not get its network.
func (p *Policy) addAnnouncement(key types.NamespacedName, a *announcement) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for other, b := range p.announced {
		if other != key && slices.ContainsFunc(b.addresses, func(address netip.Addr) bool { return slices.Contains(a.addresses, address) }) {
			delete(p.announced, other)
			p.changed.pods[other] = true
		}
	}
	p.announced[key] = a
}

// forgetAnnouncement removes an announcement unless there is a newer one.
func (p *Policy) forgetAnnouncement(key types.NamespacedName, a *announcement) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.announced[key] == a {
		delete(p.announced, key)
	}
}

// recheckAnnounced marks the announced pods that are not in the API. No event says when the kubelet has removed them.
func (p *Policy) recheckAnnounced() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for key, a := range p.announced {
		if object, ok := p.pods.Get(key.Namespace, key.Name); !ok || !a.isFor(object) {
			p.changed.pods[key] = true
		}
	}
}

// restoreAttachments reads the addresses of the pods that run already. Their status may lack them.
func (p *Policy) restoreAttachments() error {
	if p.Attachments == nil {
		return nil
	}
	list, err := p.Attachments()
	if err != nil {
		return err
	}
	slices.SortFunc(list, func(a, b cni.Attachment) int { return cmp.Compare(a.Sequence, b.Sequence) })
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, attached := range list {
		key := types.NamespacedName{Namespace: attached.Namespace, Name: attached.Pod}
		if known := p.announced[key]; known != nil && known.isWaiting() {
			continue // the plugin has announced it since
		}
		a := &announcement{uid: types.UID(attached.UID), addresses: attached.Addresses, at: time.Now(), done: make(chan struct{})}
		a.inForce()
		p.announced[key] = a
		p.changed.pods[key] = true
	}
	return nil
}
