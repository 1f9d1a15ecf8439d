package evict

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"

	"skiff/internal/api/podspec"
	"skiff/internal/container"
	"skiff/internal/podstate"
)

// Reason is the reason in the status of evicted pods.
const Reason = "Evicted"

// immediateGraceSeconds is the grace period of pods evicted for a hard threshold or a disk limit.
const immediateGraceSeconds = 1

// Observation is the state of one signal.
type Observation struct{ Available, Capacity int64 }

// Disk is an amount of disk space and inodes.
type Disk struct{ Bytes, Inodes int64 }

func (d Disk) add(o Disk) Disk { return Disk{d.Bytes + o.Bytes, d.Inodes + o.Inodes} }

// ContainerUsage is the usage of a container. Rootfs is its writable layer.
type ContainerUsage struct {
	Name         string
	Memory       int64
	Rootfs, Logs Disk
}

// PodUsage is the usage of a pod.
type PodUsage struct {
	Memory, Processes int64
	Containers        []ContainerUsage
	// Volumes is the usage of volumes on the node's file system, by name.
	Volumes map[string]Disk
	// Disk is the sum of everything the pod has on disk.
	Disk Disk
}

// Usage is a measurement of the node and its pods.
type Usage struct {
	Signals map[Signal]Observation
	Pods    map[types.UID]PodUsage
	// DedicatedImageFs is set if images are on another file system than pods.
	DedicatedImageFs bool
}

// Config configures evictions.
type Config struct {
	Thresholds []Threshold
	// PressureTransitionPeriod is how long a pressure condition is reported after its threshold was last met.
	PressureTransitionPeriod time.Duration
	// MaxPodGracePeriodSeconds bounds the grace period of pods evicted for a soft threshold.
	MaxPodGracePeriodSeconds int64
}

// State is carried from one decision to the next.
type State struct {
	// Met are the thresholds that were met with their grace over.
	Met []Threshold
	// FirstObserved is when each threshold was first met, LastObserved when each condition last was.
	FirstObserved map[Threshold]time.Time
	LastObserved  map[corev1.NodeConditionType]time.Time
}

// Eviction is a pod to evict, and why.
type Eviction struct {
	Pod     *corev1.Pod
	Grace   int64
	Message string
	// Signal is the value of the metrics' label: the signal, or the limit that was exceeded.
	Signal string
	// SetDisruptionTarget is set if the pod did not exceed a limit of its own.
	SetDisruptionTarget bool
}

// Decision is what to do now.
type Decision struct {
	// Conditions are the pressure conditions to report.
	Conditions []corev1.NodeConditionType
	// OverLimit are pods that exceed a disk limit.
	OverLimit []Eviction
	// StarvedResource is the resource to reclaim, empty if there is none. Containers and Images say whether deleting
	// unused ones can help.
	StarvedResource    corev1.ResourceName
	Containers, Images bool
	// Candidates are the pods that can be evicted, in order. One is evicted at a time.
	Candidates []Eviction
}

// Decide decides what to do about the current usage. pods are the running ones.
func Decide(c Config, s State, u Usage, pods []*corev1.Pod, now time.Time) (State, Decision) {
	met := thresholdsMet(c.Thresholds, u, false)
	// A threshold stays met until its minimum reclaim is free as well.
	for _, t := range thresholdsMet(s.Met, u, true) {
		if !slices.Contains(met, t) {
			met = append(met, t)
		}
	}
	next := State{FirstObserved: map[Threshold]time.Time{}, LastObserved: map[corev1.NodeConditionType]time.Time{}}
	for condition, at := range s.LastObserved {
		next.LastObserved[condition] = at
	}
	for _, t := range met {
		since, ok := s.FirstObserved[t]
		if !ok {
			since = now
		}
		next.FirstObserved[t] = since
		next.LastObserved[t.Signal.condition()] = now
		if now.Sub(since) >= t.Grace {
			next.Met = append(next.Met, t)
		}
	}
	decision := Decision{OverLimit: overLimit(u, pods)}
	for condition, at := range next.LastObserved {
		if now.Sub(at) < c.PressureTransitionPeriod || at.Equal(now) {
			decision.Conditions = append(decision.Conditions, condition)
		}
	}
	slices.Sort(decision.Conditions)
	if len(next.Met) == 0 || len(decision.OverLimit) > 0 {
		return next, decision
	}
	slices.SortStableFunc(next.Met, func(a, b Threshold) int { return a.Signal.rank() - b.Signal.rank() })
	first := next.Met[0]
	decision.StarvedResource = first.Signal.resource()
	decision.Containers, decision.Images = reclaimable(first.Signal, u)
	decision.Candidates = candidates(c, first, next.Met, u, pods)
	return next, decision
}

// thresholdsMet returns the thresholds that are met. With reclaim, the minimum reclaim is added to each threshold.
func thresholdsMet(thresholds []Threshold, u Usage, reclaim bool) (met []Threshold) {
	for _, t := range thresholds {
		observed, ok := u.Signals[t.Signal]
		if !ok {
			continue
		}
		least := t.Value.of(observed.Capacity)
		if reclaim {
			least += t.MinReclaim.of(observed.Capacity)
		}
		if observed.Available < least {
			met = append(met, t)
		}
	}
	return met
}

// relieved reports whether no threshold is met, including the minimum reclaims.
func relieved(c Config, u Usage) bool { return len(thresholdsMet(c.Thresholds, u, true)) == 0 }

// reclaimable reports whether deleting exited containers and unused images frees what a signal measures. Both are on the
// image file system.
func reclaimable(s Signal, u Usage) (containers, images bool) {
	switch s {
	case ImageFsAvailable, ImageFsInodesFree:
		return true, true
	case NodeFsAvailable, NodeFsInodesFree:
		return !u.DedicatedImageFs, !u.DedicatedImageFs
	}
	return false, false
}

// candidates returns the pods to evict for a threshold, in order.
func candidates(c Config, t Threshold, met []Threshold, u Usage, pods []*corev1.Pod) []Eviction {
	var all []Eviction
	for _, pod := range ranked(t.Signal, u, pods) {
		if podstate.IsCritical(pod) {
			continue
		}
		grace := int64(immediateGraceSeconds)
		if !t.hard() {
			grace = c.MaxPodGracePeriodSeconds
			if own := pod.Spec.TerminationGracePeriodSeconds; own != nil {
				grace = min(grace, *own)
			}
		}
		all = append(all, Eviction{Pod: pod, Grace: grace, Message: message(t.Signal.resource(), pod, met, u), Signal: string(t.Signal), SetDisruptionTarget: true})
	}
	return all
}

// ranked sorts pods in eviction order: first those without statistics, then those that exceed their requests, then by
// ascending priority, then by usage above request. PIDs cannot be requested, so there priority comes first.
func ranked(s Signal, u Usage, pods []*corev1.Pod) []*corev1.Pod {
	type entry struct {
		pod      *corev1.Pod
		noStats  bool
		exceeds  bool
		priority int32
		excess   int64
	}
	var entries []entry
	for _, pod := range pods {
		usage, known := u.Pods[pod.UID]
		e := entry{pod: pod, noStats: !known, priority: corev1helpers.PodPriority(pod)}
		requests := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
		used, requested := int64(0), int64(0)
		switch s.resource() {
		case corev1.ResourceMemory:
			used, requested = usage.Memory, requests.Memory().Value()
		case resourcePIDs:
			used = usage.Processes
		case corev1.ResourceEphemeralStorage:
			used, requested = usage.on(s, pod, u.DedicatedImageFs).Bytes, requests.StorageEphemeral().Value()
		case resourceInodes:
			used = usage.on(s, pod, u.DedicatedImageFs).Inodes
		}
		e.exceeds, e.excess = used > requested, used-requested
		entries = append(entries, e)
	}
	trueFirst := func(a, b bool) int {
		switch {
		case a == b:
			return 0
		case a:
			return -1
		}
		return 1
	}
	slices.SortStableFunc(entries, func(a, b entry) int {
		if s.resource() == resourcePIDs {
			return cmp.Or(cmp.Compare(a.priority, b.priority), trueFirst(a.noStats, b.noStats), cmp.Compare(b.excess, a.excess))
		}
		return cmp.Or(trueFirst(a.noStats, b.noStats), trueFirst(a.exceeds, b.exceeds), cmp.Compare(a.priority, b.priority), cmp.Compare(b.excess, a.excess))
	})
	var sorted []*corev1.Pod
	for _, e := range entries {
		sorted = append(sorted, e.pod)
	}
	return sorted
}

// on returns what a pod has on the file system a signal measures.
func (p PodUsage) on(s Signal, pod *corev1.Pod, dedicatedImageFs bool) (sum Disk) {
	images := s == ImageFsAvailable || s == ImageFsInodesFree
	for _, c := range p.Containers {
		if images || !dedicatedImageFs {
			sum = sum.add(c.Rootfs)
		}
		if !images || !dedicatedImageFs {
			sum = sum.add(c.Logs)
		}
	}
	if images && dedicatedImageFs {
		return sum
	}
	for i := range pod.Spec.Volumes {
		sum = sum.add(p.Volumes[pod.Spec.Volumes[i].Name])
	}
	return sum
}

func bytes(n int64) string { return resource.NewQuantity(n, resource.BinarySI).String() }

// message is upstream's eviction message.
func message(resourceName corev1.ResourceName, pod *corev1.Pod, met []Threshold, u Usage) string {
	var b strings.Builder
	fmt.Fprintf(&b, "The node was low on resource: %v. ", resourceName)
	for _, t := range met {
		if observed, ok := u.Signals[t.Signal]; ok && t.Signal.resource() == resourceName {
			text := bytes
			if resourceName == resourceInodes || resourceName == resourcePIDs {
				text = func(n int64) string { return resource.NewQuantity(n, resource.DecimalSI).String() }
			}
			fmt.Fprintf(&b, "Threshold quantity: %s, available: %s. ", text(t.Value.of(observed.Capacity)), text(observed.Available))
			break
		}
	}
	usage, ok := u.Pods[pod.UID]
	if !ok {
		return b.String()
	}
	if resourceName == corev1.ResourceMemory && resourcehelper.IsPodLevelResourcesSet(pod) {
		if requested, ok := pod.Spec.Resources.Requests[resourceName]; ok {
			fmt.Fprintf(&b, "Pod %s was using %s, request is %s, has larger consumption of %v. ", pod.Name, bytes(usage.Memory), requested.String(), resourceName)
		}
	}
	for _, observed := range usage.Containers {
		for kind, c := range container.All(&pod.Spec) {
			// Ephemeral containers cannot have requests.
			if kind == container.Ephemeral || c.Name != observed.Name {
				continue
			}
			used := int64(0)
			switch resourceName {
			case corev1.ResourceMemory:
				used = observed.Memory
			case corev1.ResourceEphemeralStorage:
				used = observed.Rootfs.Bytes + observed.Logs.Bytes
			}
			if requested := c.Resources.Requests[resourceName]; used > requested.Value() {
				fmt.Fprintf(&b, "Container %s was using %s, request is %s, has larger consumption of %v. ", c.Name, bytes(used), requested.String(), resourceName)
			}
			break
		}
	}
	return b.String()
}

// overLimit returns the pods that exceed a disk limit.
func overLimit(u Usage, pods []*corev1.Pod) (all []Eviction) {
	for _, pod := range pods {
		usage, ok := u.Pods[pod.UID]
		if !ok || podstate.IsCritical(pod) {
			continue
		}
		if limit, why := usage.exceeded(pod, u.DedicatedImageFs); why != "" {
			all = append(all, Eviction{Pod: pod, Grace: immediateGraceSeconds, Message: why, Signal: limit})
		}
	}
	return all
}

// The disk limits that pods can exceed, as metrics label them.
const (
	emptyDirLimit  = "emptydirfs.limit"
	podLimit       = "ephemeralpodfs.limit"
	containerLimit = "ephemeralcontainerfs.limit"
)

// exceeded returns the disk limit a pod exceeds and the message for it.
func (p PodUsage) exceeded(pod *corev1.Pod, dedicatedImageFs bool) (limit, why string) {
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		// The kernel enforces the size of volumes in memory.
		if v.EmptyDir == nil || v.EmptyDir.SizeLimit == nil || v.EmptyDir.SizeLimit.Sign() <= 0 || v.EmptyDir.Medium == corev1.StorageMediumMemory {
			continue
		}
		if p.Volumes[v.Name].Bytes > v.EmptyDir.SizeLimit.Value() {
			return emptyDirLimit, fmt.Sprintf("Usage of EmptyDir volume %q exceeds the limit %q. ", v.Name, v.EmptyDir.SizeLimit.String())
		}
	}
	limits := resourcehelper.PodLimits(pod, resourcehelper.PodResourcesOptions{})
	if limit, ok := limits[corev1.ResourceEphemeralStorage]; ok && p.Disk.Bytes > limit.Value() {
		return podLimit, fmt.Sprintf("Pod ephemeral local storage usage exceeds the total limit of containers %s. ", limit.String())
	}
	for _, observed := range p.Containers {
		used := observed.Logs.Bytes
		if !dedicatedImageFs {
			used += observed.Rootfs.Bytes
		}
		for kind, c := range container.All(&pod.Spec) {
			sidecar := kind == container.Init && c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
			if c.Name != observed.Name || kind != container.Regular && !sidecar {
				continue
			}
			if limit := c.Resources.Limits.StorageEphemeral(); !limit.IsZero() && used > limit.Value() {
				return containerLimit, fmt.Sprintf("Container %s exceeded its local ephemeral storage limit %q. ", c.Name, limit.String())
			}
		}
	}
	return "", ""
}

// HasDiskLimits reports whether a pod's disk usage has to be measured even when no threshold is met.
func HasDiskLimits(pod *corev1.Pod) bool {
	for i := range pod.Spec.Volumes {
		if v := pod.Spec.Volumes[i].EmptyDir; v != nil && v.SizeLimit != nil && v.Medium != corev1.StorageMediumMemory {
			return true
		}
	}
	limits := resourcehelper.PodLimits(pod, resourcehelper.PodResourcesOptions{})
	return !limits.StorageEphemeral().IsZero()
}

// Condition is the pod condition for the eviction, nil if the pod exceeded its own limit.
func (e Eviction) Condition(now time.Time) *corev1.PodCondition {
	if !e.SetDisruptionTarget {
		return nil
	}
	return &corev1.PodCondition{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: corev1.PodReasonTerminationByKubelet, Message: e.Message,
		ObservedGeneration: e.Pod.Generation, LastTransitionTime: metav1.NewTime(now),
	}
}

// Admits decides whether a node with these pressure conditions admits a pod, and says why not. Under memory pressure
// alone it admits pods that are not BestEffort and pods that tolerate the taint. Critical pods are always admitted.
func Admits(conditions []corev1.NodeConditionType, pod *corev1.Pod) (ok bool, why string) {
	if len(conditions) == 0 || podstate.IsCritical(pod) {
		return true, ""
	}
	if len(conditions) == 1 && conditions[0] == corev1.NodeMemoryPressure {
		taint := corev1.Taint{Key: corev1.TaintNodeMemoryPressure, Effect: corev1.TaintEffectNoSchedule}
		if podspec.ComputeQOSClass(pod) != corev1.PodQOSBestEffort || slices.ContainsFunc(pod.Spec.Tolerations, func(t corev1.Toleration) bool { return tolerates(t, taint) }) {
			return true, ""
		}
	}
	return false, fmt.Sprintf("The node had condition: %v. ", conditions)
}

// tolerates handles taints without a value, as pressure taints are.
func tolerates(t corev1.Toleration, taint corev1.Taint) bool {
	if t.Effect != "" && t.Effect != taint.Effect || t.Key != "" && t.Key != taint.Key {
		return false
	}
	return t.Operator == corev1.TolerationOpExists || t.Key != "" && (t.Operator == "" || t.Operator == corev1.TolerationOpEqual) && t.Value == ""
}
