// Package memory is the memory manager: it gives containers memory and huge pages of certain NUMA nodes.
//
// With the policy None, a container may use the memory of all NUMA nodes. With the policy Static, the memory and the huge pages that a container of a
// guaranteed pod requests are counted at NUMA nodes that have as much, and the container may use the memory of these only. A NUMA node has either
// containers that use it alone, or containers that use it together with the same other NUMA nodes. The state is computed by pure functions (state.go) and
// stored in a checkpoint in upstream's format (checkpoint.go), so that it survives a restart.
package memory

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"

	"skiff/internal/api/podspec"
	"skiff/internal/container"
	"skiff/internal/kubelet/alignment"
	"skiff/internal/kubelet/metrics"
	"skiff/internal/kubelet/topology"
)

// The policies of the memory manager.
const (
	None   = kubeletconfig.NoneMemoryManagerPolicy
	Static = kubeletconfig.StaticMemoryManagerPolicy
)

// Options are the settings and dependencies of Memory.
type Options struct {
	Policy string
	// NUMANodes are those of the host.
	NUMANodes []topology.NUMANode
	// Reserved is the memory that is reserved for the system, by NUMA node. Its sum must be NodeReserved, the memory and huge pages that are not
	// allocatable.
	Reserved     []kubeletconfig.MemoryReservation
	NodeReserved corev1.ResourceList
	// Dir is the kubelet's directory, which has the checkpoint.
	Dir string
	// ActivePods returns the pods that may have memory. all is false while the list is incomplete, and no pod counts as removed. It is called
	// with a lock held: it must not call Memory.
	ActivePods func() (pods []*corev1.Pod, all bool)
	Metrics    *metrics.Metrics
	Log        *slog.Logger
}

// Memory is the memory of this node.
type Memory struct {
	Options
	isStatic bool

	mu       sync.Mutex
	host     hostState
	assigned assignments
	// reusable is the memory of init containers of the pod that is being admitted, which its later containers get first, by NUMA nodes.
	reusable    map[alignment.Mask]requests
	reusablePod types.UID
}

// New returns Memory with the assignments of the checkpoint. An error means that the kubelet must not start.
func New(o Options) (*Memory, error) {
	m := &Memory{Options: o, isStatic: o.Policy == Static, host: hostState{}, assigned: assignments{}, reusable: map[alignment.Mask]requests{}}
	switch o.Policy {
	case None:
		if err := m.load(); err != nil {
			return nil, err
		}
		m.stateChanged()
		return m, nil
	case Static:
	default:
		return nil, fmt.Errorf("unknown policy: %q", o.Policy)
	}
	reserved, err := reservedByNode(o)
	if err != nil {
		return nil, err
	}
	initial, err := newHostState(o.NUMANodes, reserved)
	if err != nil {
		return nil, err
	}
	if err := m.load(); err != nil {
		return nil, err
	}
	if err := m.validate(initial); err != nil {
		return nil, fmt.Errorf("invalid state, please drain node and remove policy state file: %w", err)
	}
	o.Log.Info("memory manager started", "policy", o.Policy)
	return m, m.save()
}

// reservedByNode returns the memory that is reserved for the system by NUMA node, and checks that its sum is what the node does not allocate.
func reservedByNode(o Options) (map[int]requests, error) {
	reserved, total, system := map[int]requests{}, corev1.ResourceList{}, uint64(0)
	for _, node := range o.NUMANodes {
		reserved[node.ID] = requests{}
	}
	for _, r := range o.Reserved {
		node := reserved[int(r.NumaNode)]
		if node == nil {
			return nil, fmt.Errorf("the reserved memory configuration references a NUMA node %d that does not exist on this machine", r.NumaNode)
		}
		for name, amount := range r.Limits {
			value, ok := amount.AsInt64()
			if !ok {
				return nil, errors.New("could not convert a variable of type Quantity to int64")
			}
			node[name] = uint64(value)
			sum := total[name]
			sum.Add(amount)
			total[name] = sum
			if name == corev1.ResourceMemory {
				system += uint64(value)
			}
		}
	}
	names := maps.Clone(total)
	for name, amount := range o.NodeReserved {
		if isMemory(name) {
			names[name] = amount
		}
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		// The zero quantity has no format, and is then formatted like the one added to it.
		ours, theirs := resource.NewQuantity(0, resource.DecimalSI), resource.NewQuantity(0, resource.DecimalSI)
		ours.Add(total[name])
		theirs.Add(o.NodeReserved[name])
		if ours.Cmp(*theirs) != 0 {
			return nil, fmt.Errorf("the total amount %q of type %q is not equal to the value %q determined by Node Allocatable feature", ours, name, theirs)
		}
	}
	if system == 0 {
		return nil, errors.New("[memorymanager] you should specify the system reserved memory")
	}
	return reserved, nil
}

var errOtherState = errors.New("[memorymanager] the expected machine state is different from the real one")

// validate checks the state that was read from the checkpoint. initial is that of a host without assignments.
func (m *Memory) validate(initial hostState) error {
	if len(m.host) == 0 {
		if len(m.assigned) != 0 {
			return errors.New("[memorymanager] machine state can not be empty when it has memory assignments")
		}
		m.host = initial
		return nil
	}
	return m.host.check(initial, m.assigned)
}

// requestedBy returns the memory and huge pages that a container requests exclusively; nil if it requests none. Pods with resources of their own have
// none: upstream assigns them only with the feature gate PodLevelResourceManagers, which is off by default.
func requestedBy(pod *corev1.Pod, c *corev1.Container) (requests, error) {
	if podspec.QOSClass(pod) != corev1.PodQOSGuaranteed || resourcehelper.IsPodLevelResourcesSet(pod) {
		return nil, nil
	}
	r := requests{}
	for name, amount := range c.Resources.Requests {
		if !isMemory(name) {
			continue
		}
		size, ok := amount.AsInt64()
		if !ok {
			return nil, errors.New("[memorymanager] failed to represent quantity as int64")
		}
		r[name] = uint64(size)
	}
	return r, nil
}

// requestedByPod returns the memory that the containers of a pod request together, at any time. Types that only init containers request are left out.
func requestedByPod(pod *corev1.Pod) (requests, error) {
	byInit, bySidecars, byRegular := requests{}, requests{}, requests{}
	for kind, c := range container.All(&pod.Spec) {
		r, err := requestedBy(pod, c)
		if err != nil {
			return nil, err
		}
		for name, size := range r {
			switch {
			case kind == container.Regular:
				byRegular[name] += size
			case kind == container.Init && container.IsSidecar(c):
				bySidecars[name] += size
			case kind == container.Init:
				byInit[name] = max(byInit[name], bySidecars[name]+size)
			}
		}
	}
	for name, size := range byRegular {
		byRegular[name] = max(size+bySidecars[name], byInit[name])
	}
	return byRegular, nil
}

// Hints implements alignment.Provider.
func (m *Memory) Hints(pod *corev1.Pod, c *corev1.Container) alignment.Hints {
	if !m.isStatic {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.releaseRemoved()
	r, err := requestedBy(pod, c)
	if err != nil || len(r) == 0 {
		return nil
	}
	if blocks := m.assigned.blocks(pod.UID, c.Name); blocks != nil {
		return hintsOfBlocks(blocks, r)
	}
	return hintsOf(m.host.hints(r, m.reusableBy(pod)), r)
}

// PodHints implements alignment.Provider.
func (m *Memory) PodHints(pod *corev1.Pod) alignment.Hints {
	if !m.isStatic {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.releaseRemoved()
	r, err := requestedByPod(pod)
	if err != nil || len(r) == 0 {
		return nil
	}
	for _, c := range container.All(&pod.Spec) {
		if blocks := m.assigned.blocks(pod.UID, c.Name); blocks != nil {
			return hintsOfBlocks(blocks, r)
		}
	}
	return hintsOf(m.host.hints(r, m.reusableBy(pod)), r)
}

// hintsOf returns the same hints for all types of a request. Without hints there is no entry: upstream's topology manager then takes a request that
// cannot be satisfied for one without preference, and Allocate rejects it.
func hintsOf(list []alignment.Hint, r requests) alignment.Hints {
	hints := alignment.Hints{}
	for name := range r {
		if len(list) > 0 {
			hints[string(name)] = slices.Clone(list)
		}
	}
	return hints
}

// hintsOfBlocks returns the hints of a container that has its memory; nil if it requests other amounts.
func hintsOfBlocks(blocks []Block, r requests) alignment.Hints {
	if len(blocks) != len(r) {
		return nil
	}
	hints := alignment.Hints{}
	for _, b := range blocks {
		if size, ok := r[b.Type]; !ok || size != b.Size {
			return nil
		}
		hints[string(b.Type)] = []alignment.Hint{{Nodes: alignment.NewMask(b.NUMANodes...), Preferred: true}}
	}
	return hints
}

// Allocate implements alignment.Provider.
func (m *Memory) Allocate(_ context.Context, pod *corev1.Pod, c *corev1.Container, hint alignment.Hint) error {
	if !m.isStatic {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.releaseRemoved()
	r, err := requestedBy(pod, c)
	if err != nil || len(r) == 0 {
		return err
	}
	err = m.allocate(pod, c, r, hint)
	m.Metrics.MemoryPinned(err)
	return err
}

// allocate gives a container memory, unless it has it. The caller holds mu.
func (m *Memory) allocate(pod *corev1.Pod, c *corev1.Container, r requests, hint alignment.Hint) error {
	if blocks := m.assigned.blocks(pod.UID, c.Name); blocks != nil {
		m.updateReusable(pod, c, blocks)
		return nil
	}
	nodes, err := m.choose(pod, r, hint)
	if err != nil {
		return err
	}
	reusable := m.reusableBy(pod)[nodes]
	var blocks []Block
	for _, name := range r.sorted() {
		b := Block{NUMANodes: nodes.Nodes(), Type: name, Size: r[name]}
		m.host.assign(b, b.Size-min(reusable[name], b.Size))
		blocks = append(blocks, b)
	}
	m.updateReusable(pod, c, blocks)
	m.assigned.set(pod.UID, c.Name, blocks)
	m.reduceInitContainers(pod, c, blocks)
	m.stateChanged()
	m.Metrics.ResourceAllocated(metrics.Memory, len(blocks))
	m.Log.Info("assigned memory of NUMA nodes", "pod", pod.Namespace+"/"+pod.Name, "container", c.Name, "numaNodes", nodes.String())
	return nil
}

// choose returns the NUMA nodes for a request: those of the hint, or more if these do not have enough. The caller holds mu.
func (m *Memory) choose(pod *corev1.Pod, r requests, hint alignment.Hint) (alignment.Mask, error) {
	chosen := hint
	if chosen.Nodes == 0 {
		all := m.host.hints(r, m.reusableBy(pod))
		if len(all) == 0 {
			return 0, errors.New("[memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough memory is available")
		}
		if chosen = best(all); !chosen.Preferred && hint.Preferred {
			return 0, errors.New("[memorymanager] failed to find the default preferred hint")
		}
	}
	if !m.host.satisfies(chosen.Nodes, r) {
		wider := slices.DeleteFunc(m.host.hints(r, m.reusableBy(pod)), func(h alignment.Hint) bool { return chosen.Nodes&^h.Nodes != 0 })
		if len(wider) == 0 {
			return 0, errors.New("[memorymanager] failed to find NUMA nodes to extend the current topology hint")
		}
		extended := best(wider)
		if !extended.Preferred && chosen.Preferred {
			return 0, errors.New("[memorymanager] failed to find the extended preferred hint")
		}
		chosen = extended
	}
	if !m.host.canGroup(chosen.Nodes.Nodes()) {
		return 0, errors.New("[memorymanager] preferred hint violates NUMA node allocation")
	}
	return chosen.Nodes, nil
}

// reusableBy is the memory of a pod's init containers. The caller holds mu.
func (m *Memory) reusableBy(pod *corev1.Pod) map[alignment.Mask]requests {
	if m.reusablePod != pod.UID {
		return nil
	}
	return m.reusable
}

// updateReusable records that a container has blocks: those of an init container that is not a sidecar can be reused by later containers. The caller
// holds mu.
func (m *Memory) updateReusable(pod *corev1.Pod, c *corev1.Container, blocks []Block) {
	if m.reusablePod != pod.UID {
		m.reusablePod, m.reusable = pod.UID, map[alignment.Mask]requests{}
	}
	for _, b := range blocks {
		nodes := alignment.NewMask(b.NUMANodes...)
		if m.reusable[nodes] == nil {
			m.reusable[nodes] = requests{}
		}
		has := m.reusable[nodes][b.Type]
		if container.IsRegularInit(&pod.Spec, c.Name) {
			m.reusable[nodes][b.Type] = max(has, b.Size)
		} else {
			m.reusable[nodes][b.Type] = has - min(has, b.Size)
		}
	}
}

// reduceInitContainers subtracts the memory that a container reuses from the blocks of the init containers before it, so that the blocks of a pod add
// up to what it has. The caller holds mu.
func (m *Memory) reduceInitContainers(pod *corev1.Pod, c *corev1.Container, blocks []Block) {
	for _, b := range blocks {
		left := b.Size
		for i := range pod.Spec.InitContainers {
			earlier := &pod.Spec.InitContainers[i]
			if earlier.Name == c.Name {
				break
			}
			if container.IsSidecar(earlier) {
				continue
			}
			reused := m.assigned.blocks(pod.UID, earlier.Name)
			for j := range reused {
				if reused[j].Type == b.Type && equalSets(reused[j].NUMANodes, b.NUMANodes) {
					size := min(reused[j].Size, left)
					reused[j].Size -= size
					left -= size
				}
			}
		}
	}
}

// Starting releases the memory of the init containers that have ended before a container starts.
func (m *Memory) Starting(pod *corev1.Pod, c *corev1.Container) {
	if !m.isStatic {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	released := false
	for i := range pod.Spec.InitContainers {
		earlier := &pod.Spec.InitContainers[i]
		if earlier.Name == c.Name {
			break
		}
		if !container.IsSidecar(earlier) {
			released = m.release(string(pod.UID), earlier.Name) || released
		}
	}
	if released {
		m.stateChanged()
	}
}

// release releases the memory of a container, and reports whether it had any. The caller holds mu.
func (m *Memory) release(uid, name string) bool {
	blocks, ok := m.assigned[uid][name]
	if !ok {
		return false
	}
	m.host.release(blocks)
	delete(m.assigned[uid], name)
	if len(m.assigned[uid]) == 0 {
		delete(m.assigned, uid)
	}
	return true
}

// releaseRemoved releases the memory of containers whose pods are removed. The caller holds mu, so that no pod that is admitted meanwhile is
// missing in the list.
func (m *Memory) releaseRemoved() {
	pods, all := m.ActivePods()
	if !all {
		return
	}
	active := map[string]map[string]bool{}
	for _, pod := range pods {
		active[string(pod.UID)] = map[string]bool{}
		for _, c := range container.All(&pod.Spec) {
			active[string(pod.UID)][c.Name] = true
		}
	}
	released := false
	for uid, containers := range m.assigned {
		for name := range containers {
			if !active[uid][name] {
				released = m.release(uid, name) || released
			}
		}
	}
	if released {
		m.stateChanged()
	}
}

// stateChanged writes the checkpoint. A kubelet that cannot write it continues with its state in memory. The caller holds mu.
func (m *Memory) stateChanged() {
	if err := m.save(); err != nil {
		m.Log.Warn("failed to write memory manager checkpoint", "error", err)
	}
}

// NUMANodes returns the NUMA nodes whose memory a container may use; an empty mask means all.
func (m *Memory) NUMANodes(uid types.UID, name string) alignment.Mask {
	nodes := alignment.Mask(0)
	for _, b := range m.Blocks(uid, name) {
		nodes |= alignment.NewMask(b.NUMANodes...)
	}
	return nodes
}

// Blocks returns the memory and huge pages of a container.
func (m *Memory) Blocks(uid types.UID, name string) []Block {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.assigned.blocks(uid, name))
}

// Allocatable returns the memory and huge pages that can be assigned, by NUMA node, whether they are or not.
func (m *Memory) Allocatable() []Block {
	if !m.isStatic {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var blocks []Block
	for _, id := range slices.Sorted(maps.Keys(m.host)) {
		for _, name := range slices.Sorted(maps.Keys(m.host[id].MemoryMap)) {
			if size := m.host[id].MemoryMap[name].Allocatable; size > 0 {
				blocks = append(blocks, Block{NUMANodes: []int{id}, Type: name, Size: size})
			}
		}
	}
	return blocks
}
