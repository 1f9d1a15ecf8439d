package scheduler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/component-helpers/storage/volume"

	"skiff/internal/client"
	"skiff/internal/scheduler/decision"
	"skiff/internal/scheduler/plugins"
	"skiff/internal/scheduler/queue"
	"skiff/internal/scheduler/snapshot"
)

// writer writes decisions to the API server. Tests replace it.
type writer interface {
	bind(ctx context.Context, pod *corev1.Pod, node string) error
	patchStatus(ctx context.Context, pod *corev1.Pod, patch []byte) error
	deletePod(ctx context.Context, pod *corev1.Pod) error
	updateVolume(ctx context.Context, pv *corev1.PersistentVolume) (*corev1.PersistentVolume, error)
	updateClaim(ctx context.Context, claim *corev1.PersistentVolumeClaim) (*corev1.PersistentVolumeClaim, error)
	getDeviceClaim(ctx context.Context, claim *resourcev1.ResourceClaim) (*resourcev1.ResourceClaim, error)
	createDeviceClaim(ctx context.Context, claim *resourcev1.ResourceClaim) (*resourcev1.ResourceClaim, error)
	deleteDeviceClaim(ctx context.Context, claim *resourcev1.ResourceClaim) error
	updateDeviceClaim(ctx context.Context, claim *resourcev1.ResourceClaim) (*resourcev1.ResourceClaim, error)
	updateDeviceClaimStatus(ctx context.Context, claim *resourcev1.ResourceClaim) (*resourcev1.ResourceClaim, error)
}

// apiWriter writes through the client.
type apiWriter struct {
	pods    client.Resource[*corev1.Pod]
	volumes client.Resource[*corev1.PersistentVolume]
	claims  client.Resource[*corev1.PersistentVolumeClaim]
	devices client.Resource[*resourcev1.ResourceClaim]
}

func newAPIWriter(c *client.Client) *apiWriter {
	return &apiWriter{
		pods: client.For[*corev1.Pod](c), volumes: client.For[*corev1.PersistentVolume](c), claims: client.For[*corev1.PersistentVolumeClaim](c),
		devices: client.For[*resourcev1.ResourceClaim](c),
	}
}

// bind assigns a pod to a node. An error means that the pod is not assigned to it.
func (w *apiWriter) bind(ctx context.Context, pod *corev1.Pod, node string) error {
	err := retried(ctx, func() error {
		return w.pods.CreateSubresource(ctx, types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}, "binding", &corev1.Binding{
			ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
			Target:     corev1.ObjectReference{Kind: "Node", Name: node},
		}, nil)
	})
	// The binding may have been written even though its response was lost. The resources of such a pod must not be given to another.
	for pause := 10 * time.Millisecond; err != nil && ctx.Err() == nil; pause = min(5*pause, 5*time.Second) {
		current, unknown := w.pods.Get(ctx, pod.Namespace, pod.Name)
		if unknown == nil && current.UID == pod.UID && current.Spec.NodeName == node {
			return nil
		}
		if unknown == nil || apierrors.IsNotFound(unknown) || apierrors.IsForbidden(unknown) {
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(jitter(pause)):
		}
	}
	return err
}

func (w *apiWriter) patchStatus(ctx context.Context, pod *corev1.Pod, patch []byte) error {
	return retried(ctx, func() error {
		_, err := w.pods.Patch(ctx, pod.Namespace, pod.Name, client.RawPatch(client.StrategicPatch, patch), client.WriteOptions{Subresource: "status"})
		return err
	})
}

func (w *apiWriter) deletePod(ctx context.Context, pod *corev1.Pod) error {
	return w.pods.Delete(ctx, pod.Namespace, pod.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}})
}

func (w *apiWriter) updateVolume(ctx context.Context, pv *corev1.PersistentVolume) (*corev1.PersistentVolume, error) {
	return w.volumes.Update(ctx, pv, client.WriteOptions{})
}

func (w *apiWriter) updateClaim(ctx context.Context, claim *corev1.PersistentVolumeClaim) (*corev1.PersistentVolumeClaim, error) {
	return w.claims.Update(ctx, claim, client.WriteOptions{})
}

func (w *apiWriter) getDeviceClaim(ctx context.Context, claim *resourcev1.ResourceClaim) (*resourcev1.ResourceClaim, error) {
	return w.devices.Get(ctx, claim.Namespace, claim.Name)
}

func (w *apiWriter) createDeviceClaim(ctx context.Context, claim *resourcev1.ResourceClaim) (*resourcev1.ResourceClaim, error) {
	return w.devices.Create(ctx, claim, client.WriteOptions{})
}

func (w *apiWriter) deleteDeviceClaim(ctx context.Context, claim *resourcev1.ResourceClaim) error {
	return w.devices.Delete(ctx, claim.Namespace, claim.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &claim.UID}})
}

func (w *apiWriter) updateDeviceClaim(ctx context.Context, claim *resourcev1.ResourceClaim) (*resourcev1.ResourceClaim, error) {
	return w.devices.Update(ctx, claim, client.WriteOptions{})
}

func (w *apiWriter) updateDeviceClaimStatus(ctx context.Context, claim *resourcev1.ResourceClaim) (*resourcev1.ResourceClaim, error) {
	return w.devices.UpdateStatus(ctx, claim)
}

// retried repeats a write a few times while the server is unavailable.
func retried(ctx context.Context, write func() error) error {
	pause := 10 * time.Millisecond
	for try := 1; ; try++ {
		err := write()
		retriable := apierrors.IsInternalError(err) || apierrors.IsServiceUnavailable(err) || utilnet.IsConnectionRefused(err) || apierrors.IsTooManyRequests(err)
		if err == nil || !retriable || try == 5 {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(jitter(pause)):
			pause *= 5
		}
	}
}

// assume counts the pod as running on the chosen node and binds it in the background. The caller holds s.mu.
func (s *Scheduler) assume(ctx context.Context, p *queue.QueuedPod, d *decision.Decision, began time.Time) {
	info := p.PodInfo
	done := s.metrics.timed("Reserve", d.Profile)
	plan, err := reserve(s.snapshot, d)
	done(err)
	if err != nil {
		s.metrics.attempted(info.Pod, err, began)
		s.failed(ctx, p, d, err)
		return
	}
	s.snapshot.Assume(info, d.Node)
	// The pod leaves the queue here. If binding fails, it is queued again as it was.
	s.queue.Done(info.Pod.UID)
	s.backgroundThen(func() func() {
		err := s.bind(ctx, d, plan)
		if err == nil {
			s.metrics.bound(p, began)
			s.recordEvent(d.Profile, info.Pod, corev1.EventTypeNormal, "Scheduled",
				fmt.Sprintf("Successfully assigned %v/%v to %v", info.Pod.Namespace, info.Pod.Name, d.Node))
			return nil
		}
		s.metrics.attempted(info.Pod, err, began)
		return func() { s.bindingFailed(ctx, p, d, plan, err) }
	})
}

// reservation is the volumes and devices that a pod gets on its node.
type reservation struct {
	volumes snapshot.PodVolumes
	devices []snapshot.ClaimAllocation
}

func (r *reservation) empty() bool { return r.volumes.Empty() && len(r.devices) == 0 }

// reserve decides which volumes and devices the pod gets on its node.
func reserve(cluster *snapshot.Snapshot, d *decision.Decision) (*reservation, error) {
	r := &reservation{}
	if err := reserveDevices(cluster, d, r); err != nil {
		return nil, fmt.Errorf("running Reserve plugin %q: %w", plugins.DynamicResourcesName, err)
	}
	if d.Profile.VolumeBinding == nil || len(snapshot.ClaimNames(d.Pod.Pod)) == 0 {
		return r, nil
	}
	if err := reserveVolumes(cluster, d, r); err != nil {
		release(cluster, r)
		return nil, fmt.Errorf("running Reserve plugin %q: %w", plugins.VolumeBindingName, err)
	}
	return r, nil
}

func reserveVolumes(cluster *snapshot.Snapshot, d *decision.Decision, r *reservation) error {
	claims, err := cluster.Volumes.PodVolumeClaims(d.Pod.Pod)
	if err != nil {
		return err
	}
	plan, reasons, err := cluster.Volumes.FindPodVolumes(claims, cluster.NodeInfos[d.NodeNumber].Node, cluster.NodeInfos[d.NodeNumber].CSINode)
	if err != nil {
		return err
	}
	if len(reasons) > 0 {
		return fmt.Errorf("volumes on node %s: %v", d.Node, reasons)
	}
	r.volumes = plan
	return cluster.Volumes.AssumePodVolumes(&r.volumes, d.Node)
}

// release reverts reserve.
func release(cluster *snapshot.Snapshot, r *reservation) {
	cluster.Volumes.RevertAssumedPodVolumes(&r.volumes)
	cluster.Devices.RevertAllocations(r.devices)
}

// bind writes a decision: volumes first, then the binding itself.
func (s *Scheduler) bind(ctx context.Context, d *decision.Decision, r *reservation) error {
	pod := d.Pod.Pod
	if !r.empty() {
		// This may take long. The nominated node shows meanwhile where the pod will run.
		s.nominate(ctx, pod, d.Node)
		done := s.metrics.timed("PreBind", d.Profile)
		err := s.prepare(ctx, d, r)
		done(err)
		if err != nil {
			return err
		}
	}
	done := s.metrics.timed("Bind", d.Profile)
	err := s.bindPod(ctx, d)
	done(err)
	return err
}

// prepare binds volumes and devices, unless the pod is preempted meanwhile.
func (s *Scheduler) prepare(ctx context.Context, d *decision.Decision, r *reservation) error {
	uid := d.Pod.Pod.UID
	ctx, callOff := context.WithCancelCause(ctx)
	defer callOff(nil)
	s.mu.Lock()
	s.preparing[uid] = callOff
	s.mu.Unlock()
	err := s.prepareNode(ctx, d, r)
	s.mu.Lock()
	delete(s.preparing, uid)
	s.mu.Unlock()
	if err == nil {
		err = context.Cause(ctx)
	}
	return err
}

// prepareNode binds volumes and devices concurrently, because either may take long.
func (s *Scheduler) prepareNode(ctx context.Context, d *decision.Decision, r *reservation) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var failed error
	var first sync.Once
	prepare := func(plugin string, err error) {
		if err != nil {
			first.Do(func() { failed = fmt.Errorf("running PreBind plugin %q: %w", plugin, err) })
			stop(err) // the other is not needed any more
		}
	}
	var volumes sync.WaitGroup
	if !r.volumes.Empty() {
		volumes.Go(func() { prepare(plugins.VolumeBindingName, s.bindVolumes(ctx, d, &r.volumes)) })
	}
	prepare(plugins.DynamicResourcesName, s.prepareDevices(ctx, d, r.devices))
	volumes.Wait()
	return failed
}

// bindPod writes the binding, or lets an extender write it.
func (s *Scheduler) bindPod(ctx context.Context, d *decision.Decision) error {
	pod := d.Pod.Pod
	for _, e := range s.extenders {
		if e.config.BindVerb == "" || !e.interested(pod) {
			continue
		}
		if err := e.bind(ctx, pod, d.Node); err == nil || !e.config.Ignorable {
			return err
		}
	}
	if err := s.writer.bind(ctx, pod, d.Node); err != nil {
		return fmt.Errorf("running Bind plugin \"DefaultBinder\": %w", err)
	}
	return nil
}

// bindingFailed reverts a decision that could not be written. The caller holds s.mu.
func (s *Scheduler) bindingFailed(ctx context.Context, p *queue.QueuedPod, d *decision.Decision, r *reservation, err error) {
	pod := p.PodInfo.Pod
	release(s.snapshot, r)
	s.releaseDevices(ctx, pod, r.devices)
	if !s.snapshot.Forget(pod.UID) {
		return // deleted, or bound by another scheduler
	}
	s.moveQueuedPods(plugins.Event{Resource: plugins.AssignedPod, Action: plugins.Delete, Old: placed(pod)})
	s.wakeUp()
	current, ok := s.lists.pods(pod.Namespace, pod.Name)
	if !ok || current.UID != pod.UID || current.Spec.NodeName != "" || current.DeletionTimestamp != nil {
		return
	}
	if info := s.readPod(current); info != nil {
		p.PodInfo = info
	}
	if ctx.Err() != nil {
		s.queue.Add(p.PodInfo, time.Now()) // for the next Run
		return
	}
	s.log.Warn("failed to bind pod", "pod", snapshot.ObjectKey(pod), "node", d.Node, "error", err)
	s.queue.All[pod.UID] = p
	p.Location = queue.NotQueued
	s.failed(ctx, p, d, err)
}

// bindVolumes writes a volume plan and waits until the volume controller has carried it out.
func (s *Scheduler) bindVolumes(ctx context.Context, d *decision.Decision, plan *snapshot.PodVolumes) error {
	for i := range plan.StaticBindings {
		b := &plan.StaticBindings[i]
		pv, err := s.writer.updateVolume(ctx, b.Volume)
		if err != nil {
			return err
		}
		b.Volume = pv
	}
	for i := range plan.DynamicProvisions {
		p := &plan.DynamicProvisions[i]
		claim, err := s.writer.updateClaim(ctx, p.Claim)
		if err != nil {
			return err
		}
		p.Claim = claim
	}
	deadline := time.NewTimer(time.Duration(d.Profile.VolumeBinding.TimeoutSeconds) * time.Second)
	defer deadline.Stop()
	for {
		s.mu.Lock()
		done, err := s.volumesBound(d, plan)
		s.mu.Unlock()
		if err != nil {
			return fmt.Errorf("binding volumes: %w", err)
		}
		if done {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-deadline.C:
			return fmt.Errorf("binding volumes: %w", context.DeadlineExceeded)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// volumesBound reports whether all volumes of a plan are bound. An error means that they never will be. The caller holds s.mu.
func (s *Scheduler) volumesBound(d *decision.Decision, plan *snapshot.PodVolumes) (bool, error) {
	v := &s.snapshot.Volumes
	number, known := s.snapshot.NodeNumbers[d.Node]
	if !known || s.snapshot.NodeInfos[number].Node == nil {
		return false, fmt.Errorf("failed to get node %q: %w", d.Node, apierrors.NewNotFound(corev1.Resource("node"), d.Node))
	}
	if s.snapshot.PodEntries[d.Pod.Pod.UID] == nil {
		return false, fmt.Errorf("pod does not exist any more: %w", apierrors.NewNotFound(corev1.Resource("pod"), d.Pod.Pod.Name))
	}
	checkAffinity := func(pv *corev1.PersistentVolume) error {
		translated, err := snapshot.TranslateForNode(pv, s.snapshot.NodeInfos[number].CSINode)
		if err != nil {
			return fmt.Errorf("failed to translate pv to csi: %w", err)
		}
		if err := volume.CheckNodeAffinity(translated, s.snapshot.NodeInfos[number].Node.Labels); err != nil {
			return fmt.Errorf("pv %q node affinity doesn't match node %q: %w", pv.Name, d.Node, err)
		}
		return nil
	}
	for _, b := range plan.StaticBindings {
		pv, claim := v.Volumes[b.Volume.Name], v.Claims[snapshot.ObjectKey(b.Claim)]
		switch {
		case pv == nil:
			return false, fmt.Errorf("failed to check binding: %w", apierrors.NewNotFound(corev1.Resource("persistentvolumes"), b.Volume.Name))
		case claim == nil:
			return false, fmt.Errorf("failed to check binding: %w", apierrors.NewNotFound(corev1.Resource("persistentvolumeclaims"), snapshot.ObjectKey(b.Claim)))
		case snapshot.IsNewer(b.Volume, pv):
			return false, nil
		}
		if err := checkAffinity(pv); err != nil {
			return false, err
		}
		if pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID == "" {
			return false, fmt.Errorf("ClaimRef got reset for pv %q", pv.Name)
		}
		if !snapshot.FullyBound(claim) {
			return false, nil
		}
	}
	for _, p := range plan.DynamicProvisions {
		claim := v.Claims[snapshot.ObjectKey(p.Claim)]
		switch {
		case claim == nil:
			return false, fmt.Errorf("failed to check provisioning pvc: %w", apierrors.NewNotFound(corev1.Resource("persistentvolumeclaims"), snapshot.ObjectKey(p.Claim)))
		case snapshot.IsNewer(p.Claim, claim):
			return false, nil
		case claim.Annotations == nil:
			return false, fmt.Errorf("selectedNode annotation reset for PVC %q", claim.Name)
		case claim.Annotations[volume.AnnSelectedNode] != d.Node:
			return false, fmt.Errorf("provisioning failed for PVC %q", claim.Name)
		}
		if claim.Spec.VolumeName != "" {
			pv := v.Volumes[claim.Spec.VolumeName]
			if pv == nil {
				return false, nil // the volume has not been observed yet, or the claim will be unbound
			}
			if err := checkAffinity(pv); err != nil {
				return false, err
			}
		}
		if !snapshot.FullyBound(claim) {
			return false, nil
		}
	}
	return true, nil
}

// evict deletes the victims of a preemption in the background. The caller holds s.mu.
func (s *Scheduler) evict(ctx context.Context, info *snapshot.PodInfo, preemption *plugins.Preemption) {
	pod := info.Pod
	victims := slices.DeleteFunc(slices.Clone(preemption.Victims), func(v *corev1.Pod) bool { return v.DeletionTimestamp != nil })
	if len(victims) == 0 {
		s.queue.Unblock(pod.UID, time.Now(), false)
		return
	}
	var weaker []*corev1.Pod
	if number, ok := s.snapshot.NodeNumbers[preemption.Node]; ok {
		for _, p := range s.snapshot.NominatedPods[number] {
			if snapshot.PriorityOf(p.Info.Pod) < snapshot.PriorityOf(pod) {
				weaker = append(weaker, p.Info.Pod)
			}
		}
	}
	s.backgroundThen(func() func() {
		failed := false
		for _, w := range weaker {
			s.nominate(ctx, w, "")
		}
		for _, victim := range victims {
			if err := s.evictOne(ctx, info, victim, preemption.Node); err != nil && !apierrors.IsNotFound(err) {
				s.log.Warn("failed to evict victim", "pod", snapshot.ObjectKey(pod), "victim", snapshot.ObjectKey(victim), "error", err)
				failed = true
				break // evicting the others would not help without this one
			}
		}
		return func() {
			s.queue.Unblock(pod.UID, time.Now(), failed)
			s.wakeUp()
		}
	})
}

// evictOne deletes one victim. A victim that still waits for volumes or devices is not bound yet: its binding is cancelled instead.
func (s *Scheduler) evictOne(ctx context.Context, by *snapshot.PodInfo, victim *corev1.Pod, node string) error {
	message := fmt.Sprintf("Preempted by pod %v on node %v", by.Pod.UID, node)
	if s.cancelBinding(victim.UID) {
		message += " (in kube-scheduler memory)."
	} else if err := s.deleteVictim(ctx, by, victim); err != nil {
		return err
	}
	if profile := s.profiles[by.Pod.Spec.SchedulerName]; profile != nil {
		s.recordEvent(profile, victim, corev1.EventTypeNormal, "Preempted", message)
	}
	return nil
}

// cancelBinding cancels the binding of a pod that still waits for volumes or devices. It reports false when the pod does not wait.
func (s *Scheduler) cancelBinding(uid types.UID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	cancel := s.preparing[uid]
	if cancel == nil {
		return false
	}
	cancel(errors.New("preempted by " + plugins.DefaultPreemptionName))
	return true
}

func (s *Scheduler) deleteVictim(ctx context.Context, by *snapshot.PodInfo, victim *corev1.Pod) error {
	condition := corev1.PodCondition{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: corev1.PodReasonPreemptionByScheduler,
		Message: fmt.Sprintf("%s: preempting to accommodate a higher priority pod", by.Pod.Spec.SchedulerName),
	}
	if patch := conditionPatch(victim, condition, nil); patch != nil {
		if err := s.writer.patchStatus(ctx, victim, patch); err != nil {
			return fmt.Errorf("mark victim: %w", err)
		}
	}
	if err := s.writer.deletePod(ctx, victim); err != nil {
		return fmt.Errorf("delete victim: %w", err)
	}
	return nil
}

// setCondition writes to the pod's status why it is not scheduled, and its nominated node. The caller holds s.mu.
func (s *Scheduler) setCondition(ctx context.Context, pod *corev1.Pod, reason, message, nominated string) {
	condition := corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: reason, Message: message}
	patch := conditionPatch(pod, condition, &nominated)
	if patch == nil {
		return
	}
	s.background(func() {
		if err := s.writer.patchStatus(ctx, pod, patch); err != nil && !apierrors.IsNotFound(err) && ctx.Err() == nil {
			s.log.Warn("failed to write pod status", "pod", snapshot.ObjectKey(pod), "error", err)
		}
	})
}

// nominate writes the nominated node of a pod.
func (s *Scheduler) nominate(ctx context.Context, pod *corev1.Pod, node string) {
	if pod.Status.NominatedNodeName == node {
		return
	}
	patch := statusPatch(pod, map[string]any{"nominatedNodeName": orNull(node)})
	if err := s.writer.patchStatus(ctx, pod, patch); err != nil && !apierrors.IsNotFound(err) && ctx.Err() == nil {
		s.log.Warn("failed to write nominated node", "pod", snapshot.ObjectKey(pod), "node", node, "error", err)
	}
}

// conditionPatch sets a condition in a pod's status, and the nominated node unless it is nil. It returns nil when nothing changes.
func conditionPatch(pod *corev1.Pod, c corev1.PodCondition, nominated *string) []byte {
	c.ObservedGeneration = pod.Generation
	status := map[string]any{}
	i := slices.IndexFunc(pod.Status.Conditions, func(old corev1.PodCondition) bool { return old.Type == c.Type })
	c.LastTransitionTime = metav1.Now()
	if i >= 0 && pod.Status.Conditions[i].Status == c.Status {
		c.LastTransitionTime = pod.Status.Conditions[i].LastTransitionTime
	}
	same := i >= 0 && pod.Status.Conditions[i].Status == c.Status && pod.Status.Conditions[i].Reason == c.Reason &&
		pod.Status.Conditions[i].Message == c.Message
	if !same {
		status["conditions"] = []corev1.PodCondition{c}
	}
	if nominated != nil && *nominated != pod.Status.NominatedNodeName {
		status["nominatedNodeName"] = orNull(*nominated)
	}
	if len(status) == 0 {
		return nil
	}
	return statusPatch(pod, status)
}

// statusPatch is a patch of status. It contains the UID, so that a new pod of the same name is not changed.
func statusPatch(pod *corev1.Pod, status map[string]any) []byte {
	// Maps of strings and API types always encode.
	data, _ := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID}, "status": status})
	return data
}

func orNull(name string) any {
	if name == "" {
		return nil
	}
	return name
}
