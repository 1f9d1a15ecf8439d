package scheduler

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"

	"skiff/internal/client"
	"skiff/internal/kind"
	"skiff/internal/podstate"
	"skiff/internal/scheduler/plugins"
	"skiff/internal/scheduler/snapshot"
)

// lists is what the scheduler reads from informers directly, and whether their first lists have been handled.
type lists struct {
	pods      func(namespace, name string) (*corev1.Pod, bool)
	budgets   plugins.BudgetsOf
	informers []syncedInformer
}

// syncedInformer is an informer with handlers of the scheduler.
type syncedInformer struct {
	name string
	// synced reports whether the first list has been handled.
	synced func() bool
}

// synced reports whether the first lists of all informers are in the snapshot.
func (l *lists) synced() bool {
	return !slices.ContainsFunc(l.informers, func(f syncedInformer) bool { return !f.synced() })
}

// Synced fails until the first lists of all informers are in the snapshot.
func (s *Scheduler) Synced(context.Context) error {
	if !s.lists.synced() {
		return errors.New("the first lists have not been handled")
	}
	return nil
}

// waitForSync returns when the first lists of all informers are in the snapshot. Scheduling earlier would overcommit nodes whose pods
// are not counted yet.
func (l *lists) waitForSync(ctx context.Context) error {
	for _, f := range l.informers {
		for !f.synced() {
			select {
			case <-ctx.Done():
				return fmt.Errorf("wait for the first list of %s: %w", f.name, context.Cause(ctx))
			case <-time.After(5 * time.Millisecond):
			}
		}
	}
	return nil
}

// follow registers handlers for one kind of object. They run with s.mu held.
func follow[T kind.Object](s *Scheduler, informers *client.Informers, added func(T), changed func(old, now T), deleted func(T)) error {
	informer := client.InformerFor[T](informers)
	name := reflect.TypeFor[T]().Elem().Name()
	locked := func(do func()) {
		s.locked(do)
		s.wakeUp()
	}
	handled, err := informer.AddEventHandlerWithSync(
		func(now T) { locked(func() { added(now) }) },
		func(old, now T) { locked(func() { changed(old, now) }) },
		func(old T) { locked(func() { deleted(old) }) },
	)
	if err != nil {
		return fmt.Errorf("follow %s: %w", name, err)
	}
	s.lists.informers = append(s.lists.informers, syncedInformer{name: name, synced: handled})
	return nil
}

// watch registers handlers for all kinds of objects the scheduler depends on.
func (s *Scheduler) watch(informers *client.Informers) error {
	pods := client.InformerFor[*corev1.Pod](informers)
	s.lists.pods = pods.Get
	budgets, err := client.SelectorsOf(informers, plugins.BudgetSelector)
	if err != nil {
		return err
	}
	s.lists.budgets = func(pod *corev1.Pod) []*policyv1.PodDisruptionBudget {
		matching := budgets.Matching(pod)
		slices.SortFunc(matching, func(a, b *policyv1.PodDisruptionBudget) int { return strings.Compare(a.Name, b.Name) })
		return matching
	}
	n := s.snapshot
	for _, register := range []func() error{
		// Nodes first: pods whose node does not exist yet are kept, but that costs more.
		func() error { return follow(s, informers, s.nodeAdded, s.nodeChanged, s.nodeDeleted) },
		func() error { return follow(s, informers, s.podAdded, s.podChanged, s.podDeleted) },
		func() error {
			return followSimply(s, informers, "", n.SetNamespace, func(o *corev1.Namespace) { n.DeleteNamespace(o.Name) })
		},
		func() error {
			return followSimply(s, informers, "", n.SetService, func(o *corev1.Service) { n.DeleteService(o.Namespace, o.Name) })
		},
		func() error {
			return followSimply(s, informers, "", n.SetReplicationController, func(o *corev1.ReplicationController) {
				n.DeleteController("v1", "ReplicationController", o.Namespace, o.Name)
			})
		},
		func() error {
			return followSimply(s, informers, "", n.SetReplicaSet, func(o *appsv1.ReplicaSet) { n.DeleteController("apps/v1", "ReplicaSet", o.Namespace, o.Name) })
		},
		func() error {
			return followSimply(s, informers, "", n.SetStatefulSet, func(o *appsv1.StatefulSet) { n.DeleteController("apps/v1", "StatefulSet", o.Namespace, o.Name) })
		},
		func() error {
			return followSimply(s, informers, plugins.PersistentVolumeClaim, setObject[*corev1.PersistentVolumeClaim](n), deleteObject[*corev1.PersistentVolumeClaim](n))
		},
		func() error {
			return followSimply(s, informers, plugins.PersistentVolumeResource, setObject[*corev1.PersistentVolume](n), deleteObject[*corev1.PersistentVolume](n))
		},
		func() error {
			return followSimply(s, informers, plugins.StorageClassResource, setObject[*storagev1.StorageClass](n), deleteObject[*storagev1.StorageClass](n))
		},
		func() error {
			return followSimply(s, informers, plugins.CSINodeResource, setObject[*storagev1.CSINode](n), deleteObject[*storagev1.CSINode](n))
		},
		func() error {
			return followSimply(s, informers, plugins.CSIDriverResource, setObject[*storagev1.CSIDriver](n), deleteObject[*storagev1.CSIDriver](n))
		},
		func() error {
			return followSimply(s, informers, plugins.CSIStorageCapacityResource, setObject[*storagev1.CSIStorageCapacity](n), deleteObject[*storagev1.CSIStorageCapacity](n))
		},
		func() error {
			return followSimply(s, informers, plugins.VolumeAttachmentResource, setObject[*storagev1.VolumeAttachment](n), deleteObject[*storagev1.VolumeAttachment](n))
		},
		func() error {
			return followSimply(s, informers, plugins.ResourceClaimResource, setObject[*resourcev1.ResourceClaim](n), deleteObject[*resourcev1.ResourceClaim](n))
		},
		func() error {
			return followSimply(s, informers, plugins.ResourceSliceResource, setObject[*resourcev1.ResourceSlice](n), deleteObject[*resourcev1.ResourceSlice](n))
		},
		func() error {
			return followSimply(s, informers, plugins.DeviceClassResource, setObject[*resourcev1.DeviceClass](n), deleteObject[*resourcev1.DeviceClass](n))
		},
		func() error {
			return followSimply(s, informers, plugins.DeviceTaintRuleResource, setObject[*resourcev1.DeviceTaintRule](n), deleteObject[*resourcev1.DeviceTaintRule](n))
		},
	} {
		if err := register(); err != nil {
			return err
		}
	}
	return nil
}

func setObject[T kind.Object](n *snapshot.Snapshot) func(T) { return func(o T) { n.SetObject(o) } }
func deleteObject[T kind.Object](n *snapshot.Snapshot) func(T) {
	return func(o T) { n.DeleteObject(o) }
}

// followSimply updates the snapshot with a kind of object, and moves unschedulable pods that its changes may help.
func followSimply[T kind.Object](s *Scheduler, informers *client.Informers, resource plugins.Resource, set, remove func(T)) error {
	return follow(s, informers,
		func(now T) {
			set(now)
			s.moveQueuedPods(plugins.Event{Resource: resource, Action: plugins.Add, New: now})
		},
		func(old, now T) {
			set(now)
			s.moveQueuedPods(plugins.Event{Resource: resource, Action: plugins.UpdateOther, Old: old, New: now})
		},
		func(old T) {
			remove(old)
			s.moveQueuedPods(plugins.Event{Resource: resource, Action: plugins.Delete, Old: old})
		},
	)
}

// moveQueuedPods moves the unschedulable pods that an event may help to activeQ or backoffQ. The caller holds s.mu.
func (s *Scheduler) moveQueuedPods(e plugins.Event) {
	for _, part := range e.Split() {
		s.queue.MoveToActiveOrBackoff(s.snapshot, part, time.Now(), nil)
	}
}

func (s *Scheduler) nodeAdded(node *corev1.Node) {
	s.snapshot.SetNode(node)
	s.moveQueuedPods(plugins.Event{Resource: plugins.NodeResource, Action: plugins.Add, New: node})
}

func (s *Scheduler) nodeChanged(old, now *corev1.Node) {
	s.snapshot.SetNode(now)
	if a := plugins.NodeUpdateActions(old, now); a != 0 {
		s.moveQueuedPods(plugins.Event{Resource: plugins.NodeResource, Action: a, Old: old, New: now})
	}
}

func (s *Scheduler) nodeDeleted(node *corev1.Node) {
	s.snapshot.DeleteNode(node.Name)
	s.moveQueuedPods(plugins.Event{Resource: plugins.NodeResource, Action: plugins.Delete, Old: node})
}

func (s *Scheduler) podAdded(pod *corev1.Pod) {
	info := s.readPod(pod)
	if info == nil {
		return
	}
	if pod.Spec.NodeName != "" {
		s.assigned(info)
	} else if s.responsible(pod) {
		s.pending(nil, info)
	}
}

func (s *Scheduler) podChanged(old, now *corev1.Pod) {
	// The pod was deleted and created again under the same name.
	if old.UID != now.UID {
		s.podDeleted(old)
		s.podAdded(now)
		return
	}
	info := s.readPod(now)
	if info == nil {
		return
	}
	switch {
	case old.Spec.NodeName != "":
		s.snapshot.SetPod(info)
		if podstate.IsTerminal(old) {
			return // it has used no resources since then
		}
		if podstate.IsTerminal(now) {
			s.moveQueuedPods(plugins.Event{Resource: plugins.AssignedPod, Action: plugins.Delete, Old: old})
		} else {
			s.moveQueuedPods(plugins.Event{Resource: plugins.AssignedPod, Action: plugins.PodUpdateActions(old, now), Old: old, New: now})
		}
	case now.Spec.NodeName != "":
		s.queue.Done(now.UID)
		s.assigned(info)
	case s.responsible(now):
		s.pending(old, info)
	}
}

// assigned handles a pod that has got a node. The caller holds s.mu.
func (s *Scheduler) assigned(info *snapshot.PodInfo) {
	s.snapshot.Nominate(nil, info.Pod.UID, "")
	s.snapshot.SetPod(info)
	if !podstate.IsTerminal(info.Pod) {
		s.moveQueuedPods(plugins.Event{Resource: plugins.AssignedPod, Action: plugins.Add, New: info.Pod})
	}
}

// pending handles a pod that has no node yet. The caller holds s.mu.
func (s *Scheduler) pending(old *corev1.Pod, info *snapshot.PodInfo) {
	pod := info.Pod
	if podstate.IsTerminal(pod) {
		if old != nil && !podstate.IsTerminal(old) {
			s.podDeleted(old)
		}
		return
	}
	if _, assumed := s.snapshot.Assumed(pod.UID); assumed {
		if pod.DeletionTimestamp != nil && (old == nil || old.DeletionTimestamp == nil) {
			s.snapshot.Forget(pod.UID)
			s.moveQueuedPods(plugins.Event{Resource: plugins.AssignedPod, Action: plugins.Delete, Old: placed(pod)})
		}
		return
	}
	if old == nil {
		s.queue.Add(info, time.Now())
	} else {
		s.queue.Update(s.snapshot, old, info, time.Now())
	}
	// A nomination of this scheduler may not be in the API server's copy yet.
	if was := nominatedName(old); pod.Status.NominatedNodeName != "" || was != "" {
		s.snapshot.Nominate(info, pod.UID, pod.Status.NominatedNodeName)
		if was != "" && was != pod.Status.NominatedNodeName {
			s.freed(old)
		}
	}
}

func nominatedName(pod *corev1.Pod) string {
	if pod == nil {
		return ""
	}
	return pod.Status.NominatedNodeName
}

// freed moves pods that may use the resources that were reserved for a nominated pod. The caller holds s.mu.
func (s *Scheduler) freed(pod *corev1.Pod) {
	s.queue.MoveToActiveOrBackoff(s.snapshot, plugins.Event{Resource: plugins.AssignedPod, Action: plugins.Delete, Old: pod}, time.Now(), func(other *corev1.Pod) bool {
		return snapshot.PriorityOf(other) <= snapshot.PriorityOf(pod)
	})
}

// placed is an assumed pod with a node name, for queueing hints that only handle pods with a node.
func placed(pod *corev1.Pod) *corev1.Pod {
	on := *pod
	on.Spec.NodeName = "assumed"
	return &on
}

func (s *Scheduler) podDeleted(pod *corev1.Pod) {
	_, assumed := s.snapshot.Assumed(pod.UID)
	s.snapshot.DeletePod(pod.UID)
	s.queue.Delete(pod.UID)
	switch {
	case podstate.IsTerminal(pod):
	case pod.Spec.NodeName != "":
		s.moveQueuedPods(plugins.Event{Resource: plugins.AssignedPod, Action: plugins.Delete, Old: pod})
	case assumed:
		s.moveQueuedPods(plugins.Event{Resource: plugins.AssignedPod, Action: plugins.Delete, Old: placed(pod)})
	case pod.Status.NominatedNodeName != "" && s.responsible(pod):
		s.freed(pod)
	}
}

func (s *Scheduler) responsible(pod *corev1.Pod) bool {
	return s.profiles[pod.Spec.SchedulerName] != nil
}

// readPod parses a pod. A pod with a node uses resources even if its affinity cannot be parsed.
func (s *Scheduler) readPod(pod *corev1.Pod) *snapshot.PodInfo {
	info, err := snapshot.NewPodInfo(pod)
	if err == nil {
		return info
	}
	s.log.Error("failed to parse pod", "pod", snapshot.ObjectKey(pod), "error", err)
	if pod.Spec.NodeName == "" {
		return nil
	}
	plain := *pod
	plain.Spec.Affinity = nil
	if info, err = snapshot.NewPodInfo(&plain); err != nil {
		return nil
	}
	return info
}
