package cpus

import (
	"errors"
	"fmt"
	"strconv"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/cpuset"

	"skiff/internal/kubelet/alignment"
	"skiff/internal/kubelet/topology"
)

// The options of the static policy.
const (
	fullPhysicalCPUs         = "full-pcpus-only"
	distributeAcrossNUMA     = "distribute-cpus-across-numa"
	alignBySocket            = "align-by-socket"
	distributeAcrossCores    = "distribute-cpus-across-cores"
	strictReservation        = "strict-cpu-reservation"
	preferAlignByUncoreCache = "prefer-align-cpus-by-uncorecache"
)

// StaticOptions are the options of the static policy.
type StaticOptions struct {
	// FullPhysicalCPUs gives containers whole cores only.
	FullPhysicalCPUs bool
	// DistributeAcrossNUMA takes the same number of CPUs from all NUMA nodes if one does not have enough.
	DistributeAcrossNUMA bool
	// AlignBySocket prefers CPUs of one socket to those of one NUMA node.
	AlignBySocket bool
	// DistributeAcrossCores takes CPUs from different cores if possible.
	DistributeAcrossCores bool
	// StrictReservation keeps all containers off the reserved CPUs, not only those with exclusive CPUs.
	StrictReservation bool
	// PreferAlignByUncoreCache takes CPUs that share an uncore cache if possible.
	PreferAlignByUncoreCache bool
}

// Gates are the feature gates that make options available which are not stable.
type Gates struct{ AlphaOptions, BetaOptions bool }

// ParseOptions parses the policy options of a KubeletConfiguration.
func ParseOptions(options map[string]string, gates Gates) (StaticOptions, error) {
	o := StaticOptions{}
	fields := map[string]*bool{
		fullPhysicalCPUs: &o.FullPhysicalCPUs, distributeAcrossNUMA: &o.DistributeAcrossNUMA, alignBySocket: &o.AlignBySocket,
		distributeAcrossCores: &o.DistributeAcrossCores, strictReservation: &o.StrictReservation, preferAlignByUncoreCache: &o.PreferAlignByUncoreCache,
	}
	for name, value := range options {
		field := fields[name]
		switch {
		case field == nil:
			return o, fmt.Errorf("unknown CPU Manager Policy option: %q", name)
		case (name == alignBySocket || name == distributeAcrossCores) && !gates.AlphaOptions:
			return o, fmt.Errorf("CPU Manager Policy Alpha-level Options not enabled, but option %q provided", name)
		case name == distributeAcrossNUMA && !gates.BetaOptions:
			return o, fmt.Errorf("CPU Manager Policy Beta-level Options not enabled, but option %q provided", name)
		}
		var err error
		if *field, err = strconv.ParseBool(value); err != nil {
			return o, fmt.Errorf("bad value for option %q: %w", name, err)
		}
	}
	for _, conflict := range [][2]string{
		{fullPhysicalCPUs, distributeAcrossCores}, {distributeAcrossNUMA, distributeAcrossCores},
		{preferAlignByUncoreCache, distributeAcrossCores}, {preferAlignByUncoreCache, distributeAcrossNUMA},
	} {
		if *fields[conflict[0]] && *fields[conflict[1]] {
			return o, fmt.Errorf("static policy options %s and %s can not be used at the same time", conflict[0], conflict[1])
		}
	}
	return o, nil
}

// state is who has which CPUs.
type state struct {
	// shared are the CPUs of the containers without exclusive CPUs.
	shared cpuset.CPUSet
	// exclusive are the CPUs of the others, by pod and container.
	exclusive map[types.UID]map[string]cpuset.CPUSet
}

// allExclusive are the CPUs that are exclusive to any container.
func (s *state) allExclusive() cpuset.CPUSet {
	var sets []cpuset.CPUSet
	for _, containers := range s.exclusive {
		for _, cpus := range containers {
			sets = append(sets, cpus)
		}
	}
	return cpuset.New().Union(sets...)
}

// release removes the CPUs of a container. Those that no other container of its pod has, such as one that reuses those of an init container,
// become shared.
func (s *state) release(uid types.UID, container string) {
	freed, ok := s.exclusive[uid][container]
	if !ok {
		return
	}
	delete(s.exclusive[uid], container)
	for _, cpus := range s.exclusive[uid] {
		freed = freed.Difference(cpus)
	}
	if len(s.exclusive[uid]) == 0 {
		delete(s.exclusive, uid)
	}
	s.shared = s.shared.Union(freed)
}

// static is the static policy: it gives containers of guaranteed pods that request whole CPUs exclusive ones.
type static struct {
	StaticOptions
	host *topology.Topology
	// reserved are the CPUs that are never exclusive; reservedCores are all CPUs of their cores.
	reserved, reservedCores cpuset.CPUSet
}

// newStatic makes the policy. number is the number of CPUs that are reserved, reserved which ones; if it is empty, the policy chooses.
func newStatic(host *topology.Topology, o StaticOptions, reserved cpuset.CPUSet, number int) (*static, error) {
	p := &static{StaticOptions: o, host: host, reserved: reserved}
	if reserved.IsEmpty() {
		p.reserved, _ = p.take(host.AllCPUs(), number) // too few CPUs are an error below
	}
	if p.reserved.Size() != number {
		return nil, fmt.Errorf("[cpumanager] unable to reserve the required amount of CPUs (size of %s did not equal %d)", p.reserved, number)
	}
	cores := map[int]bool{}
	for _, id := range p.reserved.UnsortedList() {
		c, ok := host.CPUs[id]
		if !ok {
			return nil, fmt.Errorf("[cpumanager] unable to build the reserved physical CPUs from the reserved set: unknown CPU ID: %d", id)
		}
		cores[c.Core] = true
	}
	var siblings []int
	for id, c := range host.CPUs {
		if cores[c.Core] {
			siblings = append(siblings, id)
		}
	}
	p.reservedCores = cpuset.New(siblings...)
	return p, nil
}

// usable are the CPUs that containers may use.
func (p *static) usable() cpuset.CPUSet {
	if p.StrictReservation {
		return p.host.AllCPUs().Difference(p.reserved)
	}
	return p.host.AllCPUs()
}

// validate checks a state that was read from a checkpoint.
func (p *static) validate(s *state) error {
	all := p.usable()
	if s.shared.IsEmpty() && len(s.exclusive) == 0 {
		s.shared = all
		return nil
	}
	// With a strict reservation all other CPUs may be exclusive.
	if s.shared.IsEmpty() && !(p.StrictReservation && s.allExclusive().Equals(all)) {
		return errors.New("default cpuset cannot be empty")
	}
	present := p.reserved.Intersection(s.shared)
	if p.StrictReservation && !present.IsEmpty() {
		return fmt.Errorf("some of strictly reserved cpus: %q are present in defaultCpuSet: %q", present, s.shared)
	}
	if !p.StrictReservation && !present.Equals(p.reserved) {
		return fmt.Errorf("not all reserved cpus: %q are present in defaultCpuSet: %q", p.reserved, s.shared)
	}
	for uid, containers := range s.exclusive {
		for name, cpus := range containers {
			if !s.shared.Intersection(cpus).IsEmpty() {
				return fmt.Errorf("pod: %s, container: %s cpuset: %q overlaps with default cpuset %q", uid, name, cpus, s.shared)
			}
		}
	}
	if known := s.shared.Union(s.allExclusive()); !known.Equals(all) {
		return fmt.Errorf("current set of available CPUs %q doesn't match with CPUs in state %q", all, known)
	}
	return nil
}

// available are the CPUs that can become exclusive.
func (p *static) available(s *state) cpuset.CPUSet { return s.shared.Difference(p.reserved) }

func (p *static) take(free cpuset.CPUSet, number int) (cpuset.CPUSet, error) {
	if p.DistributeAcrossNUMA {
		return takeDistributed(p.host, free, number, p.StaticOptions)
	}
	return takePacked(p.host, free, number, p.StaticOptions)
}

// alignmentError is why a request cannot be satisfied with whole cores.
type alignmentError string

func (e alignmentError) Error() string { return "SMT Alignment Error: " + string(e) }
func (alignmentError) Reason() string  { return "SMTAlignmentError" }

// checkAlignment returns an error if only whole cores may be taken, and a request for a number of CPUs cannot be satisfied with these.
func (p *static) checkAlignment(s *state, number int) error {
	perCore := p.host.CPUsPerCore()
	if !p.FullPhysicalCPUs {
		return nil
	}
	if number%perCore != 0 {
		return alignmentError(fmt.Sprintf("requested %d cpus not multiple cpus per core = %d", number, perCore))
	}
	// A core of which a CPU is reserved is not a whole core.
	if free := s.shared.Difference(p.reservedCores).Size(); number > free {
		return alignmentError(fmt.Sprintf("not enough free physical CPUs: available physical CPUs = %d, requested CPUs = %d, CPUs per core = %d", free, number, perCore))
	}
	return nil
}

// choose returns the CPUs for a request, from the NUMA nodes of the hint as far as these have enough. reusable are CPUs of init containers of
// the same pod.
func (p *static) choose(s *state, number int, hint alignment.Hint, reusable cpuset.CPUSet) (cpuset.CPUSet, error) {
	free := p.available(s).Union(reusable)
	chosen := cpuset.New()
	if hint.Nodes != 0 {
		aligned := free.Intersection(p.cpusOf(hint.Nodes))
		var err error
		if chosen, err = p.take(aligned, min(number, aligned.Size())); err != nil {
			return cpuset.New(), err
		}
	}
	rest, err := p.take(free.Difference(chosen), number-chosen.Size())
	return chosen.Union(rest), err
}

// cpusOf are the CPUs of NUMA nodes, or of their sockets if CPUs are aligned by socket.
func (p *static) cpusOf(nodes alignment.Mask) cpuset.CPUSet {
	sockets := map[int]bool{}
	for _, c := range p.host.CPUs {
		if nodes.Has(c.NUMANode) {
			sockets[c.Socket] = true
		}
	}
	var ids []int
	for id, c := range p.host.CPUs {
		if nodes.Has(c.NUMANode) || p.AlignBySocket && sockets[c.Socket] {
			ids = append(ids, id)
		}
	}
	return cpuset.New(ids...)
}

// hints returns from which NUMA nodes a number of CPUs can be taken. reusable CPUs must be on them.
func (p *static) hints(available, reusable cpuset.CPUSet, number int) []alignment.Hint {
	nodes := p.host.NUMANodesWithCPUs()
	capacity := count(p.host.CPUs, numaNode)
	free := map[int]int{}
	reused := alignment.Mask(0)
	for _, id := range available.UnsortedList() {
		free[p.host.CPUs[id].NUMANode]++
	}
	for _, id := range reusable.UnsortedList() {
		free[p.host.CPUs[id].NUMANode]++
		reused |= alignment.NewMask(p.host.CPUs[id].NUMANode)
	}
	least := len(nodes)
	hints := []alignment.Hint{}
	for mask := range alignment.Subsets(nodes) {
		all, left := 0, 0
		for _, node := range mask.Nodes() {
			all += capacity[node]
			left += free[node]
		}
		if all >= number {
			least = min(least, mask.Count())
		}
		if left >= number && mask&reused == reused {
			hints = append(hints, alignment.Hint{Nodes: mask})
		}
	}
	for i := range hints {
		hints[i].Preferred = hints[i].Nodes.Count() == least || p.AlignBySocket && p.isSocketAligned(hints[i].Nodes, least)
	}
	return hints
}

// isSocketAligned reports whether NUMA nodes are in as few sockets as a request that needs at least a number of NUMA nodes needs.
func (p *static) isSocketAligned(nodes alignment.Mask, least int) bool {
	perSocket := len(p.host.NUMANodesWithCPUs()) / max(p.host.Sockets, 1)
	if perSocket == 0 {
		return false
	}
	sockets := map[int]bool{}
	for _, c := range p.host.CPUs {
		if nodes.Has(c.NUMANode) {
			sockets[c.Socket] = true
		}
	}
	return len(sockets) == (least+perSocket-1)/perSocket
}
