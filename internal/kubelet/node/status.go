package node

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/utils/ptr"

	"skiff/internal/kubelet/cri"
	"skiff/internal/version"
)

const (
	// runtimeTimeout is how long after its last ready status a runtime counts as down.
	runtimeTimeout = 30 * time.Second
	// maxNamesPerImage bounds the names reported per image.
	maxNamesPerImage = 5
	// maxImages bounds the images in the status unless the settings do.
	maxImages = 50
)

// ErrShuttingDown makes the node not ready during a graceful shutdown.
var ErrShuttingDown = errors.New("node is shutting down")

// StatusInput is the input of Status.
type StatusInput struct {
	Now      time.Time
	Settings Settings
	// Reported is the status of the API object.
	Reported corev1.NodeStatus
	Host     Host
	// HostError is set if Host could not be read.
	HostError error
	// Addresses are the node's addresses, the primary one first. If empty, the reported ones are kept.
	Addresses []string
	Runtime   RuntimeState
	Images    []*cri.Image
	Pressure  Pressure
	// Problems make the node not ready.
	Problems []error
	Network  Network
	// Devices are the resources of device plugins.
	Devices Devices
	// VolumesInUse is only reported if VolumesInUseKnown is set.
	VolumesInUse      []corev1.UniqueVolumeName
	VolumesInUseKnown bool
}

// RuntimeState is the last observed state of the container runtime.
type RuntimeState struct {
	Name, Version string
	// LastReady is when the runtime last reported to be ready.
	LastReady time.Time
	// Status is its last status, LastReadyStatus the last one that was ready; nil before the first.
	Status, LastReadyStatus *cri.Status
}

// Pressure is the set of pressure conditions.
type Pressure struct{ Memory, Disk, PID bool }

// Network is the state of the pod network, which the condition NetworkUnavailable reports.
type Network struct {
	// Known is false if the condition is another component's, or the network has not been set up yet.
	Known bool
	// Error is what keeps pods from the network. It is reported also if the condition is another component's.
	Error error
	// Message is what else is to be known about it.
	Message string
}

// Devices are the resources of device plugins.
type Devices struct {
	Capacity, Allocatable corev1.ResourceList
	// Removed are resources whose plugin is gone. They are reported with a quantity of zero.
	Removed []corev1.ResourceName
}

// Event is an event about the node.
type Event struct{ Type, Reason, Message string }

// Status computes the node's status and the events for its changes.
func Status(in StatusInput) (corev1.NodeStatus, []Event) {
	s := *in.Reported.DeepCopy()
	var events []Event
	setAddresses(&s, in)
	events = append(events, setHost(&s, in)...)
	setAllocatable(&s, in)
	setVersions(&s, in)
	s.DaemonEndpoints.KubeletEndpoint.Port = in.Settings.Port
	s.Images = images(in.Images, int(ptr.Deref(in.Settings.MaxImages, maxImages)))
	setRuntime(&s, in)
	s.DeclaredFeatures = in.Settings.DeclaredFeatures
	if in.VolumesInUseKnown {
		s.VolumesInUse = in.VolumesInUse
	}
	events = append(events, setPressure(&s, in)...)
	setNetwork(&s, in)
	events = append(events, setReady(&s, in)...)
	return s, events
}

func setAddresses(s *corev1.NodeStatus, in StatusInput) {
	if len(in.Addresses) == 0 {
		return
	}
	s.Addresses = nil
	for _, a := range in.Addresses {
		s.Addresses = append(s.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
	}
	s.Addresses = append(s.Addresses, corev1.NodeAddress{Type: corev1.NodeHostName, Address: in.Settings.Hostname})
}

// setHost reports the host's properties and capacity. Resources that others added to the capacity are kept.
func setHost(s *corev1.NodeStatus, in StatusInput) (events []Event) {
	if s.Capacity == nil {
		s.Capacity = corev1.ResourceList{}
	}
	info, h := &s.NodeInfo, in.Host
	info.OperatingSystem, info.Architecture = runtime.GOOS, runtime.GOARCH
	if in.HostError != nil {
		s.Capacity[corev1.ResourceCPU], s.Capacity[corev1.ResourceMemory] = *resource.NewMilliQuantity(0, resource.DecimalSI), resource.MustParse("0Gi")
		s.Capacity[corev1.ResourcePods] = *resource.NewQuantity(in.Settings.MaxPods, resource.DecimalSI)
		return nil
	}
	info.MachineID, info.SystemUUID = h.MachineID, h.SystemUUID
	info.KernelVersion, info.OSImage = h.KernelVersion, h.OSImage
	if info.BootID != "" && info.BootID != h.BootID {
		events = append(events, Event{corev1.EventTypeWarning, "Rebooted", fmt.Sprintf("Node %s has been rebooted, boot id: %s", in.Settings.Name, h.BootID)})
	}
	info.BootID = h.BootID
	info.Swap = nil
	if h.Swap > 0 {
		info.Swap = &corev1.NodeSwapStatus{Capacity: &h.Swap}
	}
	// Remove huge page sizes the host no longer has.
	maps.DeleteFunc(s.Capacity, func(name corev1.ResourceName, _ resource.Quantity) bool { return isHugePage(name) })
	maps.Copy(s.Capacity, Capacity(h, in.Settings))
	maps.Copy(s.Capacity, in.Devices.Capacity)
	for _, name := range in.Devices.Removed {
		s.Capacity[name] = *resource.NewQuantity(0, resource.DecimalSI)
	}
	return events
}

// Capacity returns the capacity of a host.
func Capacity(h Host, s Settings) corev1.ResourceList {
	pods := s.MaxPods
	if s.PodsPerCore > 0 {
		pods = min(pods, s.PodsPerCore*int64(h.CPUs))
	}
	list := corev1.ResourceList{
		corev1.ResourceCPU:              *resource.NewMilliQuantity(int64(h.CPUs)*1000, resource.DecimalSI),
		corev1.ResourceMemory:           *resource.NewQuantity(h.Memory, resource.BinarySI),
		corev1.ResourcePods:             *resource.NewQuantity(pods, resource.DecimalSI),
		corev1.ResourceEphemeralStorage: *resource.NewQuantity(h.Storage, resource.BinarySI),
	}
	for size, bytes := range h.HugePages {
		name := corev1.ResourceName(corev1.ResourceHugePagesPrefix + resource.NewQuantity(size, resource.BinarySI).String())
		list[name] = *resource.NewQuantity(bytes, resource.BinarySI)
	}
	return list
}

// EnforcedAllocatable is the limit of the pods' cgroup: the capacity without the reservations. Eviction thresholds are
// not subtracted, because eviction has to act before the limit is reached.
func EnforcedAllocatable(capacity corev1.ResourceList, s Settings) corev1.ResourceList {
	return subtract(capacity, s.SystemReserved, s.KubeReserved)
}

// subtract subtracts lists, with a minimum of zero.
func subtract(from corev1.ResourceList, lists ...corev1.ResourceList) corev1.ResourceList {
	result := corev1.ResourceList{}
	for name, amount := range from {
		left := amount.DeepCopy()
		for _, list := range lists {
			if reserved, ok := list[name]; ok {
				left.Sub(reserved)
			}
		}
		if left.Sign() < 0 {
			left.Set(0)
		}
		result[name] = left
	}
	return result
}

func isHugePage(name corev1.ResourceName) bool {
	return strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix)
}

// isExtended reports whether a resource is an extended resource.
func isExtended(name corev1.ResourceName) bool {
	domain, _, qualified := strings.Cut(string(name), "/")
	return qualified && domain != "kubernetes.io" && !strings.HasSuffix(domain, ".kubernetes.io") && !strings.HasPrefix(string(name), corev1.DefaultResourceRequestsPrefix)
}

// setAllocatable reports the capacity without reservations and huge pages.
func setAllocatable(s *corev1.NodeStatus, in StatusInput) {
	list := subtract(s.Capacity, in.Settings.SystemReserved, in.Settings.KubeReserved, in.Settings.EvictionReserved)
	// Keep resources that others added, unless they are extended resources.
	for name, amount := range s.Allocatable {
		if _, known := list[name]; !known && !isExtended(name) && !isHugePage(name) {
			list[name] = amount
		}
	}
	maps.Copy(list, in.Devices.Allocatable)
	memory := list[corev1.ResourceMemory]
	for name, amount := range s.Capacity {
		if isHugePage(name) {
			memory.Sub(amount)
		}
	}
	if memory.Sign() < 0 {
		memory.Set(0)
	}
	list[corev1.ResourceMemory] = memory
	s.Allocatable = list
}

func setVersions(s *corev1.NodeStatus, in StatusInput) {
	s.NodeInfo.KubeletVersion, s.NodeInfo.KubeProxyVersion = version.Info().GitVersion, ""
	name, number := in.Runtime.Name, strings.TrimPrefix(in.Runtime.Version, "v")
	if number == "" {
		number = "Unknown"
	}
	s.NodeInfo.ContainerRuntimeVersion = name + "://" + number
}

// images returns the largest images, which matter most to the scheduler.
func images(all []*cri.Image, limit int) []corev1.ContainerImage {
	sorted := slices.SortedFunc(slices.Values(all), func(a, b *cri.Image) int {
		return cmp.Or(cmp.Compare(b.Size, a.Size), cmp.Compare(a.ID, b.ID))
	})
	if limit >= 0 && len(sorted) > limit {
		sorted = sorted[:limit]
	}
	var list []corev1.ContainerImage
	for _, image := range sorted {
		names := slices.Concat(image.RepoDigests, image.RepoTags)
		list = append(list, corev1.ContainerImage{Names: names[:min(len(names), maxNamesPerImage)], SizeBytes: int64(image.Size)})
	}
	return list
}

func setRuntime(s *corev1.NodeStatus, in StatusInput) {
	s.RuntimeHandlers = nil
	if in.Runtime.LastReadyStatus == nil {
		return
	}
	sorted := slices.SortedFunc(slices.Values(in.Runtime.LastReadyStatus.Handlers), func(a, b cri.Handler) int { return cmp.Compare(a.Name, b.Name) })
	for _, h := range sorted {
		readOnly, users := h.RecursiveReadOnlyMounts, h.UserNamespaces
		s.RuntimeHandlers = append(s.RuntimeHandlers, corev1.NodeRuntimeHandler{
			Name: h.Name, Features: &corev1.NodeRuntimeHandlerFeatures{RecursiveReadOnlyMounts: &readOnly, UserNamespaces: &users},
		})
	}
	if policy := in.Runtime.LastReadyStatus.SupplementalGroupsPolicy; policy != nil {
		s.Features = &corev1.NodeFeatures{SupplementalGroupsPolicy: policy}
	}
}

// pressures are the pressure conditions with their reasons, messages and events.
var pressures = []struct {
	condition             corev1.NodeConditionType
	active                func(Pressure) bool
	whenTrue, whenFalse   [2]string // reason and message
	eventTrue, eventFalse string
}{
	{
		corev1.NodeMemoryPressure, func(p Pressure) bool { return p.Memory },
		[2]string{"KubeletHasInsufficientMemory", "kubelet has insufficient memory available"},
		[2]string{"KubeletHasSufficientMemory", "kubelet has sufficient memory available"}, "NodeHasInsufficientMemory", "NodeHasSufficientMemory",
	},
	{
		corev1.NodeDiskPressure, func(p Pressure) bool { return p.Disk },
		[2]string{"KubeletHasDiskPressure", "kubelet has disk pressure"},
		[2]string{"KubeletHasNoDiskPressure", "kubelet has no disk pressure"}, "NodeHasDiskPressure", "NodeHasNoDiskPressure",
	},
	{
		corev1.NodePIDPressure, func(p Pressure) bool { return p.PID },
		[2]string{"KubeletHasInsufficientPID", "kubelet has insufficient PID available"},
		[2]string{"KubeletHasSufficientPID", "kubelet has sufficient PID available"}, "NodeHasInsufficientPID", "NodeHasSufficientPID",
	},
}

func setPressure(s *corev1.NodeStatus, in StatusInput) (events []Event) {
	for _, p := range pressures {
		status, text, event := corev1.ConditionFalse, p.whenFalse, p.eventFalse
		if p.active(in.Pressure) {
			status, text, event = corev1.ConditionTrue, p.whenTrue, p.eventTrue
		}
		condition := corev1.NodeCondition{Type: p.condition, Status: status, Reason: text[0], Message: text[1]}
		if changed, _ := setCondition(s, in.Now, condition); changed {
			events = append(events, statusEvent(in, event))
		}
	}
	return events
}

// setCondition sets a condition and reports whether its status changed, and whether the condition existed before.
func setCondition(s *corev1.NodeStatus, now time.Time, c corev1.NodeCondition) (changed, existed bool) {
	c.LastHeartbeatTime, c.LastTransitionTime = metav1.NewTime(now), metav1.NewTime(now)
	i := slices.IndexFunc(s.Conditions, func(old corev1.NodeCondition) bool { return old.Type == c.Type })
	if i < 0 {
		s.Conditions = append(s.Conditions, c)
		return true, false
	}
	if changed = s.Conditions[i].Status != c.Status; !changed {
		c.LastTransitionTime = s.Conditions[i].LastTransitionTime
	}
	s.Conditions[i] = c
	return changed, true
}

// statusEvent is upstream's event about a changed condition.
func statusEvent(in StatusInput, reason string) Event {
	return Event{corev1.EventTypeNormal, reason, fmt.Sprintf("Node %s status is now: %s", in.Settings.Name, reason)}
}

// podNetworkError is the reason of the condition NetworkUnavailable while it reports an error, although it is another component's.
const podNetworkError = "PodNetworkError"

// setNetwork reports the pod network. The reasons are those of upstream's route controller.
func setNetwork(s *corev1.NodeStatus, in StatusInput) {
	// An error that is over, perhaps one that an earlier process has reported, is revoked.
	isReported := slices.ContainsFunc(s.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeNetworkUnavailable && c.Reason == podNetworkError
	})
	if !in.Network.Known && in.Network.Error == nil && !isReported {
		return
	}
	c := corev1.NodeCondition{Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionFalse, Reason: "RouteCreated", Message: "the pod network is set up"}
	if in.Network.Error != nil {
		c.Status, c.Reason, c.Message = corev1.ConditionTrue, "NoRouteCreated", in.Network.Error.Error()
		if !in.Network.Known {
			c.Reason = podNetworkError
		}
	}
	if in.Network.Message != "" {
		c.Message += "; " + in.Network.Message
	}
	setCondition(s, in.Now, c)
}

func setReady(s *corev1.NodeStatus, in StatusInput) []Event {
	problems := append(in.Runtime.problems(in.Now), in.Problems...)
	var missing []string
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourcePods, corev1.ResourceEphemeralStorage} {
		if _, ok := s.Capacity[name]; !ok {
			missing = append(missing, string(name))
		}
	}
	if len(missing) > 0 {
		problems = append(problems, fmt.Errorf("missing node capacity for resources: %s", strings.Join(missing, ", ")))
	}
	status, reason, message, event := corev1.ConditionTrue, "KubeletReady", "kubelet is posting ready status", "NodeReady"
	if err := utilerrors.NewAggregate(problems); err != nil {
		status, reason, message, event = corev1.ConditionFalse, "KubeletNotReady", err.Error(), "NodeNotReady"
	}
	condition := corev1.NodeCondition{Type: corev1.NodeReady, Status: status, Reason: reason, Message: message}
	if changed, existed := setCondition(s, in.Now, condition); changed && existed {
		return []Event{statusEvent(in, event)}
	}
	return nil
}

// problems returns what is wrong with the runtime and its network.
func (r RuntimeState) problems(now time.Time) []error {
	var runtimeProblems, all []error
	switch {
	case r.LastReady.IsZero():
		runtimeProblems = append(runtimeProblems, errors.New("container runtime status check may not have completed yet"))
	case now.Sub(r.LastReady) >= runtimeTimeout:
		runtimeProblems = append(runtimeProblems, errors.New("container runtime is down"))
	}
	if r.Status == nil {
		return append(runtimeProblems, r.networkError())
	}
	if text, ok := r.condition(cri.RuntimeReady); !ok {
		runtimeProblems = append(runtimeProblems, fmt.Errorf("container runtime not ready: %s", text))
	}
	if err := utilerrors.NewAggregate(runtimeProblems); err != nil {
		all = append(all, err)
	}
	if err := r.networkError(); err != nil {
		all = append(all, err)
	}
	return all
}

// networkError is what is wrong with the runtime's network.
func (r RuntimeState) networkError() error {
	if r.Status == nil {
		return errors.New("network state unknown")
	}
	if text, ok := r.condition(cri.NetworkReady); !ok {
		return fmt.Errorf("container runtime network not ready: %s", text)
	}
	return nil
}

// condition returns one of the runtime's conditions as text, and whether it is true.
func (r RuntimeState) condition(kind string) (text string, holds bool) {
	if r.Status != nil {
		if c, ok := r.Status.Condition(kind); ok {
			return fmt.Sprintf("%s=%t reason:%s message:%s", c.Type, c.Status, c.Reason, c.Message), c.Status
		}
	}
	return "<nil>", false
}
