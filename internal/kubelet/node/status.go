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
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"skiff/internal/version"
)

const (
	// runtimeSilence is how long a runtime may be silent before it counts as down.
	runtimeSilence = 30 * time.Second
	// maxImageNames bounds the names told of one image.
	maxImageNames = 5
)

// ErrShuttingDown makes the node not ready while the machine goes down.
var ErrShuttingDown = errors.New("node is shutting down")

// View is everything a node's status is made of.
type View struct {
	Now      time.Time
	Settings Settings
	// Old is the status the API has.
	Old     corev1.NodeStatus
	Machine Machine
	// MachineError says why Machine is not known.
	MachineError error
	// Addresses of the node, the primary one first; none leaves those that are reported.
	Addresses []string
	Runtime   RuntimeView
	Images    []*runtimeapi.Image
	Pressure  Pressure
	// Problems keep the node from being ready.
	Problems []error
	// Devices are resources of device plugins.
	Devices Devices
	// VolumesInUse are reported where they are known.
	VolumesInUse []corev1.UniqueVolumeName
	VolumesKnown bool
}

// RuntimeView is what is known of the container runtime.
type RuntimeView struct {
	Name, Version string
	// Answered is when the runtime last said that it is ready.
	Answered time.Time
	// Last is its last answer, nil before the first.
	Last *runtimeapi.RuntimeStatus
	// Handlers and Features are those of the last answer that said it is ready.
	Handlers []*runtimeapi.RuntimeHandler
	Features *runtimeapi.RuntimeFeatures
}

// Pressure is what the node runs short of.
type Pressure struct{ Memory, Disk, PID bool }

// Devices are resources device plugins bring.
type Devices struct {
	Capacity, Allocatable corev1.ResourceList
	// Removed are those of plugins that are gone: they are reported as none, so that it is known that they were there.
	Removed []corev1.ResourceName
}

// Event is news about the node.
type Event struct{ Type, Reason, Message string }

// Status computes a node's status, and what is to be told about its change.
func Status(v View) (corev1.NodeStatus, []Event) {
	s := *v.Old.DeepCopy()
	var events []Event
	setAddresses(&s, v)
	events = append(events, setMachine(&s, v)...)
	setAllocatable(&s, v)
	setVersions(&s, v)
	s.DaemonEndpoints.KubeletEndpoint.Port = v.Settings.Port
	s.Images = images(v.Images, v.Settings.MaxImages)
	setRuntime(&s, v)
	s.DeclaredFeatures = v.Settings.DeclaredFeatures
	if v.VolumesKnown {
		s.VolumesInUse = v.VolumesInUse
	}
	events = append(events, setPressure(&s, v)...)
	events = append(events, setReady(&s, v)...)
	return s, events
}

func setAddresses(s *corev1.NodeStatus, v View) {
	if len(v.Addresses) == 0 {
		return
	}
	s.Addresses = nil
	for _, a := range v.Addresses {
		s.Addresses = append(s.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
	}
	s.Addresses = append(s.Addresses, corev1.NodeAddress{Type: corev1.NodeHostName, Address: v.Settings.Hostname})
}

// setMachine reports what the machine is and has. Resources that others have put there stay.
func setMachine(s *corev1.NodeStatus, v View) (events []Event) {
	if s.Capacity == nil {
		s.Capacity = corev1.ResourceList{}
	}
	info, m := &s.NodeInfo, v.Machine
	info.OperatingSystem, info.Architecture = runtime.GOOS, runtime.GOARCH
	if v.MachineError != nil {
		s.Capacity[corev1.ResourceCPU], s.Capacity[corev1.ResourceMemory] = *resource.NewMilliQuantity(0, resource.DecimalSI), resource.MustParse("0Gi")
		s.Capacity[corev1.ResourcePods] = *resource.NewQuantity(v.Settings.MaxPods, resource.DecimalSI)
		return nil
	}
	info.MachineID, info.SystemUUID = m.MachineID, m.SystemUUID
	info.KernelVersion, info.OSImage = m.KernelVersion, m.OSImage
	if info.BootID != "" && info.BootID != m.BootID {
		events = append(events, Event{corev1.EventTypeWarning, "Rebooted", fmt.Sprintf("Node %s has been rebooted, boot id: %s", v.Settings.Name, m.BootID)})
	}
	info.BootID = m.BootID
	info.Swap = nil
	if m.Swap > 0 {
		info.Swap = &corev1.NodeSwapStatus{Capacity: &m.Swap}
	}
	// Page sizes the machine no longer has are no resource of it.
	maps.DeleteFunc(s.Capacity, func(name corev1.ResourceName, _ resource.Quantity) bool { return isHugePage(name) })
	maps.Copy(s.Capacity, Capacity(m, v.Settings))
	maps.Copy(s.Capacity, v.Devices.Capacity)
	for _, name := range v.Devices.Removed {
		s.Capacity[name] = *resource.NewQuantity(0, resource.DecimalSI)
	}
	return events
}

// Capacity is what a machine has for pods and for itself.
func Capacity(m Machine, s Settings) corev1.ResourceList {
	pods := s.MaxPods
	if s.PodsPerCore > 0 {
		pods = min(pods, s.PodsPerCore*int64(m.CPUs))
	}
	list := corev1.ResourceList{
		corev1.ResourceCPU:              *resource.NewMilliQuantity(int64(m.CPUs)*1000, resource.DecimalSI),
		corev1.ResourceMemory:           *resource.NewQuantity(m.Memory, resource.BinarySI),
		corev1.ResourcePods:             *resource.NewQuantity(pods, resource.DecimalSI),
		corev1.ResourceEphemeralStorage: *resource.NewQuantity(m.Storage, resource.BinarySI),
	}
	for size, bytes := range m.HugePages {
		name := corev1.ResourceName(corev1.ResourceHugePagesPrefix + resource.NewQuantity(size, resource.BinarySI).String())
		list[name] = *resource.NewQuantity(bytes, resource.BinarySI)
	}
	return list
}

// Enforced is what all pods together may use: the capacity without what is reserved. The margin that eviction keeps free is part of it,
// because it is eviction that guards it.
func Enforced(capacity corev1.ResourceList, s Settings) corev1.ResourceList {
	return subtract(capacity, s.SystemReserved, s.KubeReserved)
}

// subtract takes amounts away, to zero at the least.
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

// isExtended tells resources that are not Kubernetes' own.
func isExtended(name corev1.ResourceName) bool {
	domain, _, qualified := strings.Cut(string(name), "/")
	return qualified && domain != "kubernetes.io" && !strings.HasSuffix(domain, ".kubernetes.io") && !strings.HasPrefix(string(name), corev1.DefaultResourceRequestsPrefix)
}

// setAllocatable reports what pods can have: the capacity without reservations and without what is set aside as huge pages.
func setAllocatable(s *corev1.NodeStatus, v View) {
	list := subtract(s.Capacity, v.Settings.SystemReserved, v.Settings.KubeReserved, v.Settings.EvictionReserved)
	// What others have put there and is no extended resource is theirs to take away.
	for name, amount := range s.Allocatable {
		if _, known := list[name]; !known && !isExtended(name) && !isHugePage(name) {
			list[name] = amount
		}
	}
	maps.Copy(list, v.Devices.Allocatable)
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

func setVersions(s *corev1.NodeStatus, v View) {
	s.NodeInfo.KubeletVersion, s.NodeInfo.KubeProxyVersion = version.Info().GitVersion, ""
	name, number := v.Runtime.Name, strings.TrimPrefix(v.Runtime.Version, "v")
	if number == "" {
		number = "Unknown"
	}
	s.NodeInfo.ContainerRuntimeVersion = name + "://" + number
}

// images are the largest ones, most useful to the scheduler.
func images(all []*runtimeapi.Image, most int) []corev1.ContainerImage {
	sorted := slices.SortedFunc(slices.Values(all), func(a, b *runtimeapi.Image) int {
		return cmp.Or(cmp.Compare(b.Size, a.Size), cmp.Compare(a.Id, b.Id))
	})
	if most >= 0 && len(sorted) > most {
		sorted = sorted[:most]
	}
	var list []corev1.ContainerImage
	for _, image := range sorted {
		names := slices.Concat(image.RepoDigests, image.RepoTags)
		list = append(list, corev1.ContainerImage{Names: names[:min(len(names), maxImageNames)], SizeBytes: int64(image.Size)})
	}
	return list
}

func setRuntime(s *corev1.NodeStatus, v View) {
	s.RuntimeHandlers = nil
	sorted := slices.SortedFunc(slices.Values(v.Runtime.Handlers), func(a, b *runtimeapi.RuntimeHandler) int { return cmp.Compare(a.Name, b.Name) })
	for _, h := range sorted {
		readOnly, users := h.Features.GetRecursiveReadOnlyMounts(), h.Features.GetUserNamespaces()
		s.RuntimeHandlers = append(s.RuntimeHandlers, corev1.NodeRuntimeHandler{
			Name: h.Name, Features: &corev1.NodeRuntimeHandlerFeatures{RecursiveReadOnlyMounts: &readOnly, UserNamespaces: &users},
		})
	}
	if v.Runtime.Features != nil {
		groups := v.Runtime.Features.SupplementalGroupsPolicy
		s.Features = &corev1.NodeFeatures{SupplementalGroupsPolicy: &groups}
	}
}

// pressures are the conditions of running short: what they are called with and without.
var pressures = []struct {
	kind     corev1.NodeConditionType
	of       func(Pressure) bool
	yes, no  [2]string // reason and message
	tell, ok string    // events
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

func setPressure(s *corev1.NodeStatus, v View) (events []Event) {
	for _, p := range pressures {
		status, words, event := corev1.ConditionFalse, p.no, p.ok
		if p.of(v.Pressure) {
			status, words, event = corev1.ConditionTrue, p.yes, p.tell
		}
		if changed, _ := setCondition(s, v.Now, p.kind, status, words[0], words[1]); changed {
			events = append(events, statusEvent(v, event))
		}
	}
	return events
}

// setCondition sets a condition and reports whether its status is another than before, and whether there was one.
func setCondition(s *corev1.NodeStatus, now time.Time, kind corev1.NodeConditionType, status corev1.ConditionStatus, reason, message string) (changed, had bool) {
	at := metav1.NewTime(now)
	c := corev1.NodeCondition{Type: kind, Status: status, Reason: reason, Message: message, LastHeartbeatTime: at, LastTransitionTime: at}
	i := slices.IndexFunc(s.Conditions, func(c corev1.NodeCondition) bool { return c.Type == kind })
	if i < 0 {
		s.Conditions = append(s.Conditions, c)
		return true, false
	}
	if changed = s.Conditions[i].Status != status; !changed {
		c.LastTransitionTime = s.Conditions[i].LastTransitionTime
	}
	s.Conditions[i] = c
	return changed, true
}

// statusEvent tells that a condition has changed, with upstream's words.
func statusEvent(v View, reason string) Event {
	return Event{corev1.EventTypeNormal, reason, fmt.Sprintf("Node %s status is now: %s", v.Settings.Name, reason)}
}

func setReady(s *corev1.NodeStatus, v View) []Event {
	problems := append(v.Runtime.problems(v.Now), v.Problems...)
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
	if changed, had := setCondition(s, v.Now, corev1.NodeReady, status, reason, message); changed && had {
		return []Event{statusEvent(v, event)}
	}
	return nil
}

// problems are what is wrong with the runtime and its network.
func (r RuntimeView) problems(now time.Time) []error {
	var runtimeProblems, all []error
	switch {
	case r.Answered.IsZero():
		runtimeProblems = append(runtimeProblems, errors.New("container runtime status check may not have completed yet"))
	case now.Sub(r.Answered) >= runtimeSilence:
		runtimeProblems = append(runtimeProblems, errors.New("container runtime is down"))
	}
	if r.Last == nil {
		return append(runtimeProblems, errors.New("network state unknown"))
	}
	if text, ok := r.condition(runtimeapi.RuntimeReady); !ok {
		runtimeProblems = append(runtimeProblems, fmt.Errorf("container runtime not ready: %s", text))
	}
	if err := utilerrors.NewAggregate(runtimeProblems); err != nil {
		all = append(all, err)
	}
	if text, ok := r.condition(runtimeapi.NetworkReady); !ok {
		all = append(all, fmt.Errorf("container runtime network not ready: %s", text))
	}
	return all
}

// condition is one of the runtime's own conditions, and whether it holds.
func (r RuntimeView) condition(kind string) (text string, holds bool) {
	for _, c := range r.Last.GetConditions() {
		if c.Type == kind {
			return fmt.Sprintf("%s=%t reason:%s message:%s", c.Type, c.Status, c.Reason, c.Message), c.Status
		}
	}
	return "<nil>", false
}
