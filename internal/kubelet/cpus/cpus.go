// Package cpus is the CPU manager: it gives containers exclusive CPUs.
//
// With the policy none, every container may use all CPUs. With the policy static (static.go), a container of a guaranteed pod that requests whole
// CPUs gets CPUs that no other container may use; the others share the rest. Which CPUs a container gets is computed by pure functions from the
// host's topology (take.go, distribute.go). The assignments are in a checkpoint in upstream's format (checkpoint.go), so that they survive a restart.
// When the shared CPUs change, the cpusets of running containers follow (reconcile.go).
package cpus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/utils/cpuset"

	"skiff/internal/api/podspec"
	"skiff/internal/container"
	"skiff/internal/kubelet/alignment"
	"skiff/internal/kubelet/metrics"
	"skiff/internal/kubelet/topology"
)

// The policies of the CPU manager.
const (
	None   = "none"
	Static = "static"
)

// Container is a running container.
type Container struct {
	UID      types.UID
	Name, ID string
}

// Options are the settings and dependencies of CPUs.
type Options struct {
	Policy        string
	StaticOptions StaticOptions
	// Topology is that of the host.
	Topology *topology.Topology
	// Alignment is the policy with which hints are merged.
	Alignment string
	// Reserved are the CPUs that are never exclusive; if it is empty, ReservedAmount says how many, and the policy chooses them.
	Reserved       cpuset.CPUSet
	ReservedAmount resource.Quantity
	// Dir is the kubelet's directory, which has the checkpoint.
	Dir string
	// ReconcilePeriod is the period of updating the cpusets of running containers.
	ReconcilePeriod time.Duration
	// ActivePods returns the pods that may have CPUs. all is false while the list is incomplete, and no pod counts as removed. It is called
	// with a lock held: it must not call CPUs.
	ActivePods func() (pods []*corev1.Pod, all bool)
	// Running lists the running containers of pods. Update changes the CPUs that one may use.
	Running func(ctx context.Context) ([]Container, error)
	Update  func(ctx context.Context, id string, cpus cpuset.CPUSet) error
	Metrics *metrics.Metrics
	Log     *slog.Logger
}

// CPUs are the CPUs of this node.
type CPUs struct {
	Options
	policy *static // nil: the policy is none

	mu    sync.Mutex
	state state
	// reusable are the CPUs of init containers of the pod that is being admitted; its later containers get them first.
	reusable    cpuset.CPUSet
	reusablePod types.UID
	// applied are the CPUs last set for each running container.
	applied map[string]cpuset.CPUSet
	// changed is signalled when containers have to be updated.
	changed chan struct{}
}

// New returns CPUs with the assignments of the checkpoint. It starts nothing. An error means that the kubelet must not start.
func New(o Options) (*CPUs, error) {
	c := &CPUs{Options: o, applied: map[string]cpuset.CPUSet{}, changed: make(chan struct{}, 1), state: state{exclusive: map[types.UID]map[string]cpuset.CPUSet{}}}
	switch o.Policy {
	case None:
	case Static:
		var err error
		if c.policy, err = newStaticOf(o); err != nil {
			return nil, fmt.Errorf("new static policy error: %w", err)
		}
	default:
		return nil, fmt.Errorf("unknown policy: %q", o.Policy)
	}
	if err := c.load(); err != nil {
		return nil, err
	}
	if c.policy == nil {
		if err := c.save(); err != nil {
			o.Log.Warn("failed to write CPU manager checkpoint", "error", err)
		}
		return c, nil
	}
	if err := c.policy.validate(&c.state); err != nil {
		return nil, fmt.Errorf("invalid state, please drain node and remove policy state file: %w", err)
	}
	o.Metrics.InitAligned(alignment.ContainerScope, metrics.PhysicalCPU)
	o.Metrics.InitAligned(alignment.ContainerScope, metrics.UncoreCache)
	c.setMetrics()
	o.Log.Info("CPU manager started", "policy", o.Policy, "reserved", c.policy.reserved, "shared", c.state.shared, "options", o.StaticOptions)
	return c, c.save()
}

// newStaticOf makes the static policy.
func newStaticOf(o Options) (*static, error) {
	if o.ReservedAmount.IsZero() {
		return nil, errors.New("[cpumanager] the static policy requires systemreserved.cpu + kubereserved.cpu to be greater than zero")
	}
	if o.StaticOptions.AlignBySocket {
		if o.Alignment == alignment.SingleNUMANode {
			return nil, fmt.Errorf("Topology manager %s policy is incompatible with CPUManager %s policy option", alignment.SingleNUMANode, alignBySocket)
		}
		if o.Topology.Sockets > len(o.Topology.NUMANodesWithCPUs()) {
			return nil, errors.New("Align by socket is not compatible with hardware where number of sockets are more than number of NUMA")
		}
	}
	number := (o.ReservedAmount.MilliValue() + 999) / 1000
	return newStatic(o.Topology, o.StaticOptions, o.Reserved, int(number))
}

// requested is the number of exclusive CPUs that a container requests. Pods with resources of their own have none: upstream assigns them only
// with the feature gate PodLevelResourceManagers, which is off by default.
func requested(pod *corev1.Pod, c *corev1.Container) int {
	if podspec.QOSClass(pod) != corev1.PodQOSGuaranteed || resourcehelper.IsPodLevelResourcesSet(pod) {
		return 0
	}
	amount := c.Resources.Requests.Cpu()
	if amount.Value()*1000 != amount.MilliValue() {
		return 0
	}
	return int(amount.Value())
}

// requestedByPod is the number of exclusive CPUs that the containers of a pod request together, at any time.
func requestedByPod(pod *corev1.Pod) int {
	byInit, bySidecars, byRegular := 0, 0, 0
	for kind, c := range container.All(&pod.Spec) {
		switch number := requested(pod, c); {
		case kind == container.Regular:
			byRegular += number
		case kind == container.Init && container.IsSidecar(c):
			bySidecars += number
		case kind == container.Init:
			byInit = max(byInit, bySidecars+number)
		}
	}
	return max(byInit, byRegular+bySidecars)
}

// Hints implements alignment.Provider.
func (c *CPUs) Hints(pod *corev1.Pod, ctr *corev1.Container) alignment.Hints {
	if c.policy == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.releaseRemoved()
	number := requested(pod, ctr)
	if number == 0 {
		return nil
	}
	if has, ok := c.state.exclusive[pod.UID][ctr.Name]; ok {
		if has.Size() != number {
			return hints([]alignment.Hint{})
		}
		return hints(c.policy.hints(has, cpuset.New(), number))
	}
	return hints(c.policy.hints(c.policy.available(&c.state), c.reusableBy(pod), number))
}

func hints(list []alignment.Hint) alignment.Hints {
	return alignment.Hints{string(corev1.ResourceCPU): list}
}

// PodHints implements alignment.Provider.
func (c *CPUs) PodHints(pod *corev1.Pod) alignment.Hints {
	if c.policy == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.releaseRemoved()
	number := requestedByPod(pod)
	if number == 0 {
		return nil
	}
	assigned := cpuset.New()
	for _, ctr := range container.All(&pod.Spec) {
		if has, ok := c.state.exclusive[pod.UID][ctr.Name]; ok {
			if has.Size() != requested(pod, ctr) {
				return hints([]alignment.Hint{})
			}
			assigned = assigned.Union(has)
		}
	}
	if assigned.Size() == number {
		return hints(c.policy.hints(assigned, cpuset.New(), number))
	}
	return hints(c.policy.hints(c.policy.available(&c.state), c.reusableBy(pod).Union(assigned), number))
}

// Allocate implements alignment.Provider.
func (c *CPUs) Allocate(_ context.Context, pod *corev1.Pod, ctr *corev1.Container, hint alignment.Hint) error {
	if c.policy == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.releaseRemoved() // also before a container that shares CPUs is created
	number := requested(pod, ctr)
	if number == 0 {
		return nil
	}
	err := c.allocate(pod, ctr, number, hint)
	c.Metrics.CPUsPinned(err)
	if c.policy.FullPhysicalCPUs {
		c.Metrics.Aligned(alignment.ContainerScope, metrics.PhysicalCPU, err == nil)
	}
	return err
}

// allocate gives a container exclusive CPUs, unless it has them. The caller holds mu.
func (c *CPUs) allocate(pod *corev1.Pod, ctr *corev1.Container, number int, hint alignment.Hint) error {
	if has, ok := c.state.exclusive[pod.UID][ctr.Name]; ok {
		c.updateReusable(pod, ctr, has)
		return nil
	}
	if err := c.policy.checkAlignment(&c.state, number); err != nil {
		return err
	}
	chosen, err := c.policy.choose(&c.state, number, hint, c.reusableBy(pod))
	if err != nil {
		return err
	}
	c.state.shared = c.state.shared.Difference(chosen)
	if c.state.exclusive[pod.UID] == nil {
		c.state.exclusive[pod.UID] = map[string]cpuset.CPUSet{}
	}
	c.state.exclusive[pod.UID][ctr.Name] = chosen
	c.updateReusable(pod, ctr, chosen)
	if c.policy.sharesUncoreCache(chosen) {
		c.Metrics.Aligned(alignment.ContainerScope, metrics.UncoreCache, true)
	}
	c.Metrics.ResourceAllocated(metrics.CPU, 1)
	c.stateChanged()
	c.Log.Info("assigned exclusive CPUs", "pod", pod.Namespace+"/"+pod.Name, "container", ctr.Name, "cpus", chosen.String())
	return nil
}

// sharesUncoreCache reports whether CPUs have the same uncore cache.
func (p *static) sharesUncoreCache(cpus cpuset.CPUSet) bool {
	caches := map[int]bool{}
	for _, id := range cpus.UnsortedList() {
		caches[p.host.CPUs[id].UncoreCache] = true
	}
	return len(caches) <= 1
}

// reusableBy are the CPUs of a pod's init containers. The caller holds mu.
func (c *CPUs) reusableBy(pod *corev1.Pod) cpuset.CPUSet {
	if c.reusablePod != pod.UID {
		return cpuset.New()
	}
	return c.reusable
}

// updateReusable records that a container has CPUs: later containers can reuse those of an init container that is not a sidecar. The caller
// holds mu.
func (c *CPUs) updateReusable(pod *corev1.Pod, ctr *corev1.Container, cpus cpuset.CPUSet) {
	before := c.reusableBy(pod)
	c.reusablePod = pod.UID
	if container.IsRegularInit(&pod.Spec, ctr.Name) {
		c.reusable = before.Union(cpus)
		return
	}
	c.reusable = before.Difference(cpus)
}

// releaseRemoved releases the CPUs of containers whose pods are removed. The caller holds mu, so that no pod that is admitted meanwhile is
// missing in the list.
func (c *CPUs) releaseRemoved() {
	pods, all := c.ActivePods()
	if !all {
		return
	}
	active := map[types.UID]map[string]bool{}
	for _, pod := range pods {
		active[pod.UID] = map[string]bool{}
		for _, ctr := range container.All(&pod.Spec) {
			active[pod.UID][ctr.Name] = true
		}
	}
	released := false
	for uid, containers := range c.state.exclusive {
		for name := range containers {
			if !active[uid][name] {
				c.state.release(uid, name)
				released = true
			}
		}
	}
	if released {
		c.stateChanged()
	}
}

// stateChanged writes the checkpoint and makes running containers follow. A kubelet that cannot write it continues with its state in memory. The
// caller holds mu.
func (c *CPUs) stateChanged() {
	if err := c.save(); err != nil {
		c.Log.Warn("failed to write CPU manager checkpoint", "error", err)
	}
	c.setMetrics()
	c.wake()
}

// setMetrics sets the gauges. The caller holds mu, or is the constructor.
func (c *CPUs) setMetrics() {
	exclusive := c.state.allExclusive()
	byNode := map[int]int{}
	for _, node := range c.Topology.NUMANodesWithCPUs() {
		byNode[node] = 0
	}
	for _, id := range exclusive.UnsortedList() {
		byNode[c.Topology.CPUs[id].NUMANode]++
	}
	c.Metrics.SetCPUs(c.policy.available(&c.state).Size(), exclusive.Size(), byNode)
}

// Of returns the CPUs that a container may use: its exclusive ones, or those that are shared. An empty set means all.
func (c *CPUs) Of(uid types.UID, name string) cpuset.CPUSet {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.of(uid, name)
}

// of is Of for callers that hold mu.
func (c *CPUs) of(uid types.UID, name string) cpuset.CPUSet {
	if exclusive, ok := c.state.exclusive[uid][name]; ok {
		return exclusive
	}
	return c.state.shared
}

// Exclusive returns the exclusive CPUs of a container; it is empty if it has none.
func (c *CPUs) Exclusive(uid types.UID, name string) cpuset.CPUSet {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state.exclusive[uid][name]
}

// HasExclusive reports whether any container of a pod has exclusive CPUs.
func (c *CPUs) HasExclusive(uid types.UID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.state.exclusive[uid]) > 0
}

// Allocatable returns the CPUs that can be exclusive, whether they are or not.
func (c *CPUs) Allocatable() cpuset.CPUSet {
	if c.policy == nil {
		return cpuset.New()
	}
	return c.Topology.AllCPUs().Difference(c.policy.reserved)
}
