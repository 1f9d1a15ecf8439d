package status

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/container"
	"skiff/internal/kubelet/cri"
)

// The reasons and messages of containers.
const (
	Creating          = "ContainerCreating"
	Initializing      = "PodInitializing"
	StatusUnknown     = "ContainerStatusUnknown"
	RestartingAll     = "RestartingAllContainers"
	removedForRestart = "The container is removed because RestartAllContainers in place"
	lostWhenDeleted   = "The container could not be located when the pod was deleted.  The container used to be Running"
	lostWhenEnded     = "The container could not be located when the pod was terminated"
	initAssumedDone   = "Unable to get init container status from container runtime and pod has been initialized, treat it as exited normally"
	// killedCode is the exit code reported for containers whose exit was not observed.
	killedCode = 137
)

// containers computes the statuses of all containers of one kind.
func (b *builder) containers(kind container.Kind, before []corev1.ContainerStatus) []corev1.ContainerStatus {
	var statuses []corev1.ContainerStatus
	for k, c := range container.All(&b.pod.Spec) {
		if k == kind {
			statuses = append(statuses, b.container(kind, c, find(before, c.Name)))
		}
	}
	if kind != container.Init {
		slices.SortFunc(statuses, func(x, y corev1.ContainerStatus) int { return cmp.Compare(x.Name, y.Name) })
	}
	return statuses
}

func find(statuses []corev1.ContainerStatus, name string) *corev1.ContainerStatus {
	for i := range statuses {
		if statuses[i].Name == name {
			return &statuses[i]
		}
	}
	return nil
}

// container computes the status of one container.
func (b *builder) container(kind container.Kind, c *corev1.Container, old *corev1.ContainerStatus) corev1.ContainerStatus {
	var seen []*cri.Container // the newest and the one before
	for _, candidate := range b.Runtime.Containers {
		if candidate.Name == c.Name && len(seen) < 2 {
			seen = append(seen, candidate)
		}
	}
	var status corev1.ContainerStatus
	if len(seen) == 0 {
		status = b.missing(c, old)
	} else {
		status = b.convert(c, seen[0], old)
		if len(seen) > 1 {
			status.LastTerminationState = b.convert(c, seen[1], old).State
		}
	}
	if b.Devices != nil && kind == container.Regular {
		status.AllocatedResourcesStatus = b.Devices(c)
	}
	return b.waiting(kind, c, seen, status)
}

// initialStatus is the status of a container that has not been created.
func (b *builder) initialStatus(c *corev1.Container) corev1.ContainerStatus {
	reason := Creating
	if len(b.pod.Spec.InitContainers) > 0 {
		reason = Initializing
	}
	return corev1.ContainerStatus{
		Name: c.Name, Image: c.Image, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}, VolumeMounts: b.mounts(c),
	}
}

// missing is the status of a container that the runtime does not have. If it ran before, its exit was not observed.
func (b *builder) missing(c *corev1.Container, old *corev1.ContainerStatus) corev1.ContainerStatus {
	status := b.initialStatus(c)
	if old == nil {
		return status
	}
	if b.restarting && old.State.Waiting == nil {
		status.State.Waiting = &corev1.ContainerStateWaiting{Reason: RestartingAll, Message: removedForRestart}
		status.LastTerminationState.Terminated = &corev1.ContainerStateTerminated{Reason: RestartingAll, Message: removedForRestart, ExitCode: killedCode}
		status.RestartCount = old.RestartCount + 1
		return status
	}
	if old.State.Terminated != nil {
		return *old.DeepCopy()
	}
	status.RestartCount = old.RestartCount
	status.LastTerminationState = *old.LastTerminationState.DeepCopy()
	if old.State.Running != nil && status.LastTerminationState.Terminated == nil {
		status.LastTerminationState.Terminated = &corev1.ContainerStateTerminated{Reason: StatusUnknown, Message: lostWhenDeleted, ExitCode: killedCode}
		if b.pod.DeletionTimestamp == nil {
			status.RestartCount++
		}
	}
	return status
}

// convert converts the runtime's report to a status.
func (b *builder) convert(c *corev1.Container, seen *cri.Container, old *corev1.ContainerStatus) corev1.ContainerStatus {
	id := b.RuntimeName + "://" + seen.ID
	status := corev1.ContainerStatus{
		Name: c.Name, RestartCount: seen.RestartCount, Image: first(seen.Image, c.Image), ImageID: seen.ImageRef, ContainerID: id, VolumeMounts: b.mounts(c),
	}
	if old != nil {
		// The restart count is kept when containers are removed.
		status.RestartCount = max(status.RestartCount, old.RestartCount)
		if old.ContainerID != id && old.State.Terminated != nil {
			status.LastTerminationState.Terminated = old.State.Terminated.DeepCopy()
		} else if old.LastTerminationState.Terminated != nil {
			status.LastTerminationState.Terminated = old.LastTerminationState.Terminated.DeepCopy()
		}
	}
	switch seen.State {
	case cri.Running:
		status.State.Running = &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(seen.StartedAt)}
		if old != nil && old.State.Terminated != nil && old.ContainerID != id && old.RestartCount >= seen.RestartCount {
			status.RestartCount = old.RestartCount + 1
		}
	case cri.Exited:
		status.State.Terminated = &corev1.ContainerStateTerminated{
			ExitCode: seen.ExitCode, Reason: seen.Reason, Message: seen.Message, ContainerID: id,
			StartedAt: metav1.NewTime(seen.StartedAt), FinishedAt: metav1.NewTime(seen.FinishedAt),
		}
	case cri.Unknown:
		if old != nil && old.State.Running != nil {
			reason := StatusUnknown
			if b.restarting {
				reason = RestartingAll
			}
			status.State.Terminated = &corev1.ContainerStateTerminated{Reason: reason, Message: lostWhenEnded, ExitCode: killedCode}
			status.RestartCount = old.RestartCount + 1
			break
		}
		fallthrough
	default:
		status.State.Waiting = &corev1.ContainerStateWaiting{}
	}
	status.Resources = b.resources(c, seen, old, id)
	status.AllocatedResources = c.Resources.Requests
	if user := seen.User; user != nil {
		status.User = &corev1.ContainerUser{Linux: user}
	}
	return status
}

// minMilliCPU is the smallest CPU request and limit that cgroups can express. Below it, the value in the spec is reported.
const (
	minMilliRequest = 2
	minMilliLimit   = 10
)

// resources are a container's resources: as reported by the runtime, else as last applied, else as allocated.
func (b *builder) resources(c *corev1.Container, seen *cri.Container, old *corev1.ContainerStatus, id string) *corev1.ResourceRequirements {
	r := c.Resources.DeepCopy()
	if seen.State != cri.Running {
		return r
	}
	applied := b.Actuated[c.Name]
	same := old != nil && old.State.Running != nil && old.ContainerID == id && old.Resources != nil
	keep := func(name corev1.ResourceName, to, from, before corev1.ResourceList) {
		if value, ok := from[name]; ok {
			to[name] = value
		} else if value, ok := before[name]; ok && same {
			to[name] = value
		}
	}
	var before corev1.ResourceRequirements
	if same {
		before = *old.Resources
	}
	if r.Limits != nil {
		if q := seen.Resources.CPULimit; q == nil {
			keep(corev1.ResourceCPU, r.Limits, applied.Limits, before.Limits)
		} else if q.MilliValue() > minMilliLimit || r.Limits.Cpu().MilliValue() > minMilliLimit {
			r.Limits[corev1.ResourceCPU] = *q
		}
		if q := seen.Resources.MemoryLimit; q == nil {
			keep(corev1.ResourceMemory, r.Limits, applied.Limits, before.Limits)
		} else {
			r.Limits[corev1.ResourceMemory] = *q
		}
	}
	if r.Requests != nil {
		if q := seen.Resources.CPURequest; q == nil {
			keep(corev1.ResourceCPU, r.Requests, applied.Requests, before.Requests)
		} else if q.MilliValue() > minMilliRequest || r.Requests.Cpu().MilliValue() > minMilliRequest {
			r.Requests[corev1.ResourceCPU] = *q
		}
		keep(corev1.ResourceMemory, r.Requests, applied.Requests, before.Requests)
	}
	return r
}

// mounts are the container's volume mounts and their read-only modes.
func (b *builder) mounts(c *corev1.Container) []corev1.VolumeMountStatus {
	var mounts []corev1.VolumeMountStatus
	for _, m := range c.VolumeMounts {
		status := corev1.VolumeMountStatus{Name: m.Name, MountPath: m.MountPath, ReadOnly: m.ReadOnly}
		if m.ReadOnly {
			mode := corev1.RecursiveReadOnlyDisabled
			if m.RecursiveReadOnly != nil && (*m.RecursiveReadOnly == corev1.RecursiveReadOnlyEnabled ||
				*m.RecursiveReadOnly == corev1.RecursiveReadOnlyIfPossible && b.RecursiveReadOnly) {
				mode = corev1.RecursiveReadOnlyEnabled
			}
			status.RecursiveReadOnly = &mode
		}
		mounts = append(mounts, status)
	}
	return mounts
}

// waiting changes the state of a container that will be restarted to Waiting, if there is a reason to show.
func (b *builder) waiting(kind container.Kind, c *corev1.Container, seen []*cri.Container, status corev1.ContainerStatus) corev1.ContainerStatus {
	if kind == container.Init {
		if len(seen) > 0 && seen[0].State == cri.Exited && seen[0].ExitCode == 0 && !container.IsSidecar(c) {
			return status
		}
		if len(seen) == 0 && !container.IsSidecar(c) && status.State.Waiting != nil && anyRegularCreated(b.pod, b.Runtime) {
			status.State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Completed", Message: initAssumedDone}}
			return status
		}
	}
	if !Restarts(kind, c, b.pod, b.Runtime) {
		return status
	}
	why, ok := b.Failed[c.Name]
	if !ok {
		return status
	}
	if status.State.Terminated != nil {
		status.LastTerminationState = status.State
	}
	status.State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: why.Reason, Message: why.Message}}
	return status
}

func anyRegularCreated(pod *corev1.Pod, seen *cri.Pod) bool {
	return slices.ContainsFunc(pod.Spec.Containers, func(c corev1.Container) bool {
		found := seen.Container(c.Name)
		return found != nil && found.State != cri.Unknown
	})
}

// Restarts reports whether a container that is not running must be started. Ephemeral containers are started once.
func Restarts(kind container.Kind, c *corev1.Container, pod *corev1.Pod, seen *cri.Pod) bool {
	if pod.DeletionTimestamp != nil {
		return false
	}
	found := seen.Container(c.Name)
	switch {
	case found == nil:
		return true
	case kind == container.Ephemeral, found.State == cri.Running:
		return false
	case found.State != cri.Exited:
		return true
	}
	return container.ShouldRestart(c, &pod.Spec, found.ExitCode)
}

// allRestarting reports whether all containers of the pod are being restarted because of a container's restart rules.
func allRestarting(pod *corev1.Pod, seen *cri.Pod, old *corev1.PodStatus) bool {
	if !container.HasRestartAllRule(&pod.Spec) {
		return false
	}
	if c := condition(old.Conditions, corev1.AllContainersRestarting); c != nil && c.Status == corev1.ConditionTrue {
		return true
	}
	statuses := map[string]*corev1.ContainerStatus{}
	for _, list := range [][]corev1.ContainerStatus{old.InitContainerStatuses, old.ContainerStatuses} {
		for i := range list {
			statuses[list[i].Name] = &list[i]
		}
	}
	for kind, c := range container.All(&pod.Spec) {
		if kind == container.Ephemeral {
			continue
		}
		found := seen.Container(c.Name)
		if found == nil || found.State != cri.Exited {
			continue
		}
		if container.RestartsAllContainers(c, found.ExitCode) {
			return true
		}
		if s := statuses[c.Name]; s != nil && s.State.Terminated != nil && container.RestartsAllContainers(c, s.State.Terminated.ExitCode) {
			return true
		}
	}
	return false
}

// probes sets whether containers are started and ready, according to their probes.
func (b *builder) probes(status *corev1.PodStatus) {
	kinds := map[string]container.Kind{}
	specs := map[string]*corev1.Container{}
	for kind, c := range container.All(&b.pod.Spec) {
		kinds[c.Name], specs[c.Name] = kind, c
	}
	for _, s := range slices.Concat(pointers(status.InitContainerStatuses), pointers(status.ContainerStatuses)) {
		c := specs[s.Name]
		running := s.State.Running != nil
		id := idOf(s.ContainerID)
		started := running && (b.Started == nil || b.Started(c, id))
		s.Started = &started
		switch {
		case kinds[s.Name] == container.Init && !container.IsSidecar(c):
			s.Ready = s.State.Terminated != nil && s.State.Terminated.ExitCode == 0
		default:
			s.Ready = started && (b.Ready == nil || b.Ready(c, id))
		}
	}
	for _, s := range pointers(status.EphemeralContainerStatuses) {
		s.Started = nil
	}
}

func pointers(list []corev1.ContainerStatus) []*corev1.ContainerStatus {
	out := make([]*corev1.ContainerStatus, len(list))
	for i := range list {
		out[i] = &list[i]
	}
	return out
}

// idOf is a container's ID without the name of the runtime.
func idOf(id string) string {
	for i := range id {
		if i+3 <= len(id) && id[i:i+3] == "://" {
			return id[i+3:]
		}
	}
	return id
}
