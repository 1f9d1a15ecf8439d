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

	"skiff/internal/container"
)

// Reason is that of pods that were evicted.
const Reason = "Evicted"

// immediately is the grace of a pod when there is no time.
const immediately = 1

// Observation is how much of something is left.
type Observation struct{ Available, Capacity int64 }

// Disk is what lies on a disk.
type Disk struct{ Bytes, Inodes int64 }

func (d Disk) plus(o Disk) Disk { return Disk{d.Bytes + o.Bytes, d.Inodes + o.Inodes} }

// ContainerUsage is what a container uses. Root is its own layer.
type ContainerUsage struct {
	Name       string
	Memory     int64
	Root, Logs Disk
}

// PodUsage is what a pod uses.
type PodUsage struct {
	Memory, Processes int64
	Containers        []ContainerUsage
	// Volumes are those that lie on the node's own disk, by name.
	Volumes map[string]Disk
	// Disk is everything of the pod on disks.
	Disk Disk
}

// Usage is what is seen of the node at one time.
type Usage struct {
	Signals map[Signal]Observation
	Pods    map[types.UID]PodUsage
	// SeparateImages says that images have a disk of their own.
	SeparateImages bool
}

// Config is how the node is guarded.
type Config struct {
	Thresholds []Threshold
	// Transition is how long a pressure is reported after it was last seen.
	Transition time.Duration
	// MaxGrace bounds the grace, in seconds, of pods evicted for a soft threshold.
	MaxGrace int64
	// Critical tells pods that are never evicted.
	Critical func(*corev1.Pod) bool
}

// State is what is remembered from one look to the next.
type State struct {
	// Met are the thresholds that were met with their grace over.
	Met []Threshold
	// Since is when each threshold was first seen to be met, Seen when each condition was last.
	Since map[Threshold]time.Time
	Seen  map[corev1.NodeConditionType]time.Time
}

// Eviction is a pod that is to go, and why.
type Eviction struct {
	Pod     *corev1.Pod
	Grace   int64
	Message string
	// Signal is what metrics count it by: what ran short, or which limit was exceeded.
	Signal string
	// Disruption says that the pod is not to blame: it did not use more than it may.
	Disruption bool
}

// Decision is what to do now.
type Decision struct {
	// Conditions are the pressures to report.
	Conditions []corev1.NodeConditionType
	// OverLimit are pods that use more disk than they may.
	OverLimit []Eviction
	// Starved is what runs short, empty when nothing does. Containers and Images say what can be freed before any pod has to go.
	Starved            corev1.ResourceName
	Containers, Images bool
	// Candidates are the pods that can go, in order. One goes at a time.
	Candidates []Eviction
}

// Decide looks at what is used and decides what to do. pods are those that run.
func Decide(c Config, s State, u Usage, pods []*corev1.Pod, now time.Time) (State, Decision) {
	met := metBy(c.Thresholds, u, false)
	// What was met goes on being met until enough is free.
	for _, t := range metBy(s.Met, u, true) {
		if !slices.Contains(met, t) {
			met = append(met, t)
		}
	}
	next := State{Since: map[Threshold]time.Time{}, Seen: map[corev1.NodeConditionType]time.Time{}}
	for condition, at := range s.Seen {
		next.Seen[condition] = at
	}
	for _, t := range met {
		since, ok := s.Since[t]
		if !ok {
			since = now
		}
		next.Since[t] = since
		next.Seen[t.Signal.condition()] = now
		if now.Sub(since) >= t.Grace {
			next.Met = append(next.Met, t)
		}
	}
	decision := Decision{OverLimit: overLimit(c, u, pods)}
	for condition, at := range next.Seen {
		if now.Sub(at) < c.Transition || at.Equal(now) {
			decision.Conditions = append(decision.Conditions, condition)
		}
	}
	slices.Sort(decision.Conditions)
	if len(next.Met) == 0 || len(decision.OverLimit) > 0 {
		return next, decision
	}
	slices.SortStableFunc(next.Met, func(a, b Threshold) int { return a.Signal.rank() - b.Signal.rank() })
	first := next.Met[0]
	decision.Starved = first.Signal.resource()
	decision.Containers, decision.Images = freeable(first.Signal, u)
	decision.Candidates = candidates(c, first, next.Met, u, pods)
	return next, decision
}

// metBy are the thresholds that are met; with reclaim, those that are met or have not enough free beyond.
func metBy(thresholds []Threshold, u Usage, reclaim bool) (met []Threshold) {
	for _, t := range thresholds {
		seen, ok := u.Signals[t.Signal]
		if !ok {
			continue
		}
		least := t.Value.of(seen.Capacity)
		if reclaim {
			least += t.MinReclaim.of(seen.Capacity)
		}
		if seen.Available < least {
			met = append(met, t)
		}
	}
	return met
}

// Relieved reports whether no threshold is met, with what must be free beyond them.
func Relieved(c Config, u Usage) bool { return len(metBy(c.Thresholds, u, true)) == 0 }

// freeable says what could help: containers that have ended and images nobody uses lie on the images' disk.
func freeable(s Signal, u Usage) (containers, images bool) {
	switch s {
	case ImageFsAvailable, ImageFsInodesFree:
		return true, true
	case NodeFsAvailable, NodeFsInodesFree:
		return !u.SeparateImages, !u.SeparateImages
	}
	return false, false
}

// candidates are the pods that can go for a threshold, the first to go first.
func candidates(c Config, t Threshold, met []Threshold, u Usage, pods []*corev1.Pod) []Eviction {
	var all []Eviction
	for _, pod := range ranked(t.Signal, u, pods) {
		if c.Critical != nil && c.Critical(pod) {
			continue
		}
		grace := int64(immediately)
		if !t.hard() {
			grace = c.MaxGrace
			if own := pod.Spec.TerminationGracePeriodSeconds; own != nil {
				grace = min(grace, *own)
			}
		}
		all = append(all, Eviction{Pod: pod, Grace: grace, Message: message(t.Signal.resource(), pod, met, u), Signal: string(t.Signal), Disruption: true})
	}
	return all
}

// ranked orders pods: first those that use more than they asked for (or of which nothing is known), among equals the less important,
// among these the greediest. Nobody can ask for processes, so there it begins with the less important.
func ranked(s Signal, u Usage, pods []*corev1.Pod) []*corev1.Pod {
	type entry struct {
		pod      *corev1.Pod
		unknown  bool
		over     bool
		priority int32
		excess   int64
	}
	var entries []entry
	for _, pod := range pods {
		usage, known := u.Pods[pod.UID]
		e := entry{pod: pod, unknown: !known, priority: corev1helpers.PodPriority(pod)}
		requests := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
		used, asked := int64(0), int64(0)
		switch s.resource() {
		case corev1.ResourceMemory:
			used, asked = usage.Memory, requests.Memory().Value()
		case resourcePIDs:
			used = usage.Processes
		case corev1.ResourceEphemeralStorage:
			used, asked = usage.on(s, pod, u.SeparateImages).Bytes, requests.StorageEphemeral().Value()
		case resourceInodes:
			used = usage.on(s, pod, u.SeparateImages).Inodes
		}
		e.over, e.excess = used > asked, used-asked
		entries = append(entries, e)
	}
	first := func(a, b bool) int {
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
			return cmp.Or(cmp.Compare(a.priority, b.priority), first(a.unknown, b.unknown), cmp.Compare(b.excess, a.excess))
		}
		return cmp.Or(first(a.unknown, b.unknown), first(a.over, b.over), cmp.Compare(a.priority, b.priority), cmp.Compare(b.excess, a.excess))
	})
	var sorted []*corev1.Pod
	for _, e := range entries {
		sorted = append(sorted, e.pod)
	}
	return sorted
}

// on is what a pod has on the disk a signal is about.
func (p PodUsage) on(s Signal, pod *corev1.Pod, separateImages bool) (sum Disk) {
	images := s == ImageFsAvailable || s == ImageFsInodesFree
	for _, c := range p.Containers {
		if images || !separateImages {
			sum = sum.plus(c.Root)
		}
		if !images || !separateImages {
			sum = sum.plus(c.Logs)
		}
	}
	if images && separateImages {
		return sum
	}
	for i := range pod.Spec.Volumes {
		sum = sum.plus(p.Volumes[pod.Spec.Volumes[i].Name])
	}
	return sum
}

func bytes(n int64) string { return resource.NewQuantity(n, resource.BinarySI).String() }

// message says why a pod has to go, with upstream's words.
func message(starved corev1.ResourceName, pod *corev1.Pod, met []Threshold, u Usage) string {
	var b strings.Builder
	fmt.Fprintf(&b, "The node was low on resource: %v. ", starved)
	for _, t := range met {
		if seen, ok := u.Signals[t.Signal]; ok && t.Signal.resource() == starved {
			text := bytes
			if starved == resourceInodes || starved == resourcePIDs {
				text = func(n int64) string { return resource.NewQuantity(n, resource.DecimalSI).String() }
			}
			fmt.Fprintf(&b, "Threshold quantity: %s, available: %s. ", text(t.Value.of(seen.Capacity)), text(seen.Available))
			break
		}
	}
	usage, ok := u.Pods[pod.UID]
	if !ok {
		return b.String()
	}
	if starved == corev1.ResourceMemory && resourcehelper.IsPodLevelResourcesSet(pod) {
		if asked, ok := pod.Spec.Resources.Requests[starved]; ok {
			fmt.Fprintf(&b, "Pod %s was using %s, request is %s, has larger consumption of %v. ", pod.Name, bytes(usage.Memory), asked.String(), starved)
		}
	}
	for _, seen := range usage.Containers {
		for kind, c := range container.All(&pod.Spec) {
			// Ephemeral containers cannot ask for anything, and are not to blame for that.
			if kind == container.Ephemeral || c.Name != seen.Name {
				continue
			}
			used := int64(0)
			switch starved {
			case corev1.ResourceMemory:
				used = seen.Memory
			case corev1.ResourceEphemeralStorage:
				used = seen.Root.Bytes + seen.Logs.Bytes
			}
			if asked := c.Resources.Requests[starved]; used > asked.Value() {
				fmt.Fprintf(&b, "Container %s was using %s, request is %s, has larger consumption of %v. ", c.Name, bytes(used), asked.String(), starved)
			}
			break
		}
	}
	return b.String()
}

// overLimit are the pods that use more disk than they may.
func overLimit(c Config, u Usage, pods []*corev1.Pod) (all []Eviction) {
	for _, pod := range pods {
		usage, ok := u.Pods[pod.UID]
		if !ok || c.Critical != nil && c.Critical(pod) {
			continue
		}
		if limit, why := usage.over(pod, u.SeparateImages); why != "" {
			all = append(all, Eviction{Pod: pod, Grace: immediately, Message: why, Signal: limit})
		}
	}
	return all
}

// The limits of disk that pods can exceed, as metrics have them.
const (
	emptyDirLimit  = "emptydirfs.limit"
	podLimit       = "ephemeralpodfs.limit"
	containerLimit = "ephemeralcontainerfs.limit"
)

// over says which limit of disk a pod exceeds.
func (p PodUsage) over(pod *corev1.Pod, separateImages bool) (limit, why string) {
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		// The kernel holds volumes in memory to their size.
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
	for _, seen := range p.Containers {
		used := seen.Logs.Bytes
		if !separateImages {
			used += seen.Root.Bytes
		}
		for kind, c := range container.All(&pod.Spec) {
			sidecar := kind == container.Init && c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
			if c.Name != seen.Name || kind != container.Regular && !sidecar {
				continue
			}
			if limit := c.Resources.Limits.StorageEphemeral(); !limit.IsZero() && used > limit.Value() {
				return containerLimit, fmt.Sprintf("Container %s exceeded its local ephemeral storage limit %q. ", c.Name, limit.String())
			}
		}
	}
	return "", ""
}

// HasDiskLimits tells pods whose use of disks must be known even when there is enough of it.
func HasDiskLimits(pod *corev1.Pod) bool {
	for i := range pod.Spec.Volumes {
		if v := pod.Spec.Volumes[i].EmptyDir; v != nil && v.SizeLimit != nil && v.Medium != corev1.StorageMediumMemory {
			return true
		}
	}
	limits := resourcehelper.PodLimits(pod, resourcehelper.PodResourcesOptions{})
	return !limits.StorageEphemeral().IsZero()
}

// Condition is what the pod's status says of its eviction, nil where the pod has only itself to blame.
func (e Eviction) Condition(now time.Time) *corev1.PodCondition {
	if !e.Disruption {
		return nil
	}
	return &corev1.PodCondition{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: corev1.PodReasonTerminationByKubelet, Message: e.Message,
		ObservedGeneration: e.Pod.Generation, LastTransitionTime: metav1.NewTime(now),
	}
}

// Admits decides whether a node with these pressures takes a pod, and says why not. Short of memory alone it takes pods that say how
// much they need, and those that tolerate the pressure; critical pods it takes always.
func Admits(conditions []corev1.NodeConditionType, pod *corev1.Pod, class corev1.PodQOSClass, critical bool) (ok bool, why string) {
	if len(conditions) == 0 || critical {
		return true, ""
	}
	if len(conditions) == 1 && conditions[0] == corev1.NodeMemoryPressure {
		taint := corev1.Taint{Key: corev1.TaintNodeMemoryPressure, Effect: corev1.TaintEffectNoSchedule}
		if class != corev1.PodQOSBestEffort || slices.ContainsFunc(pod.Spec.Tolerations, func(t corev1.Toleration) bool { return tolerates(t, taint) }) {
			return true, ""
		}
	}
	return false, fmt.Sprintf("The node had condition: %v. ", conditions)
}

// tolerates knows taints without a value, as a node's pressures are.
func tolerates(t corev1.Toleration, taint corev1.Taint) bool {
	if t.Effect != "" && t.Effect != taint.Effect || t.Key != "" && t.Key != taint.Key {
		return false
	}
	return t.Operator == corev1.TolerationOpExists || t.Key != "" && (t.Operator == "" || t.Operator == corev1.TolerationOpEqual) && t.Value == ""
}
