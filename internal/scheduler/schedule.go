package scheduler

import (
	"fmt"
	"slices"
)

// Schedule decides where a pod goes. It changes nothing but what the snapshot remembers of its own work: the same snapshot, pod and
// profile give the same decision. The error is ErrNoNodes, a *FitError that tells why no node can take the pod, or what kept
// a rule from deciding.
func Schedule(s *Snapshot, p *PodInfo, profile *Profile) (*Decision, error) {
	return decide(s, p, profile, true)
}

// decide is Schedule, which may take the pod's nominated node without looking at others.
func decide(s *Snapshot, p *PodInfo, profile *Profile, nominated bool) (*Decision, error) {
	d := &Decision{Pod: p, Nodes: s.count, snapshot: s, profile: profile, number: none, arrivals: s.arrivals}
	if s.count == 0 {
		return d, ErrNoNodes
	}
	t, refusal := s.tableFor(p, profile)
	if refusal != nil {
		d.refusal = refusal
		if refusal.Err != nil {
			return d, fmt.Errorf("running PreFilter plugin %q: %w", refusal.Rule, refusal.Err)
		}
		return d, d.fitError()
	}
	d.table = t
	near, err := s.neighbourhoodFor(p, profile)
	if err != nil {
		return d, err
	}
	d.alone = near.alone()
	if nominated && d.takeNominated(near) {
		return d, nil
	}
	switch {
	case t.limited:
		d.amongFew(near)
	case near.quiet() && t.even():
		d.byTree(near)
	default:
		d.byNeighbours(near)
	}
	if err := d.ruleError(); err != nil {
		return d, err
	}
	// As in upstream, nodes are compared only where there is a choice.
	if d.Feasible > 1 && t.unscored != nil {
		return d, t.unscored
	}
	if d.number == none {
		return d, d.fitError()
	}
	d.Node = s.nodes[d.number].name
	if s.unrecorded {
		d.fade()
	}
	return d, nil
}

// ruleError is what kept a rule from deciding about some node.
func (d *Decision) ruleError() error {
	for _, r := range d.limited {
		if r != nil && r.Err != nil {
			return filterError(r)
		}
	}
	for code, r := range d.table.refusals {
		if r != nil && r.Err != nil && d.table.refused[code] > 0 {
			return filterError(r)
		}
	}
	return nil
}

// filterError tells which rule could not decide about a node.
func filterError(r *Refusal) error {
	if r.Rule == "" {
		return r.Err
	}
	return fmt.Errorf("running %q filter plugin: %w", r.Rule, r.Err)
}

// takeNominated takes the node other pods were moved away from for this pod, if it fits there now.
func (d *Decision) takeNominated(near *neighbourhood) bool {
	name := d.Pod.Pod.Status.NominatedNodeName
	if name == "" {
		return false
	}
	s := d.snapshot
	node, ok := s.nodeNumber[name]
	if !ok || s.nodes[node].object == nil || d.table.limited && !slices.Contains(d.table.only, name) {
		return false
	}
	if d.checkWithNominated(near, node) != nil {
		return false
	}
	d.Node, d.number, d.Feasible, d.nominated = name, node, 1, true
	d.position = d.table.position()
	if d.table.limited {
		d.limited = map[int32]*Refusal{node: nil}
	}
	return true
}

// check asks all rules about one node, as it is now. Refusals come in the profile's order.
func (d *Decision) check(near *neighbourhood, node int32) *Refusal {
	t := d.table
	spread, affinity := d.profile.spreadOrder, d.profile.affinityOrder
	if d.alone {
		affinity = -1
	}
	for i := range t.filters {
		f := &t.filters[i]
		if spread >= 0 && f.order > spread {
			if code := near.check(node, true, false); code != 0 {
				return besideRefusals[code]
			}
			spread = -1
		}
		if affinity >= 0 && f.order > affinity {
			if code := near.check(node, false, true); code != 0 {
				return besideRefusals[code]
			}
			affinity = -1
		}
		if r := f.check(node); r != nil {
			return r
		}
	}
	if code := near.check(node, spread >= 0, affinity >= 0); code != 0 {
		return besideRefusals[code]
	}
	return nil
}

// checkWithNominated asks about a node both as it is and as it will be when the pods nominated to it, of the same or higher
// priority, have arrived: the pod must fit in either case, for it cannot be known whether they will.
func (d *Decision) checkWithNominated(near *neighbourhood, node int32) *Refusal {
	s := d.snapshot
	if coming := d.nominatedBefore(node); len(coming) > 0 {
		var refusal *Refusal
		s.trying(node, func() {
			for _, p := range coming {
				s.addPod(p)
			}
			refusal = d.check(near, node)
			for _, p := range slices.Backward(coming) {
				s.removePod(p)
			}
		})
		if refusal != nil {
			return refusal
		}
	}
	return d.check(near, node)
}

// trying lets do move pods on a node. It must move them back again: tables are not told, and it does not count as service.
func (s *Snapshot) trying(node int32, do func()) {
	services, served := s.services, s.served[node]
	s.rehearsing = true
	do()
	s.rehearsing = false
	s.services, s.served[node] = services, served
}

// nominatedBefore are the pods nominated to a node that go before this one.
func (d *Decision) nominatedBefore(node int32) (coming []*podEntry) {
	for _, p := range d.snapshot.nominated[node] {
		if p.info.Pod.UID != d.Pod.Pod.UID && priorityOf(p.info.Pod) >= priorityOf(d.Pod.Pod) && d.snapshot.pods[p.info.Pod.UID] == nil {
			coming = append(coming, &podEntry{info: p.info, node: node})
		}
	}
	return coming
}

// overrideNominated refuses the nodes that have room only until the pods nominated to them arrive. A node that is refused anyway
// is refused as it will be then.
func (d *Decision) overrideNominated(near *neighbourhood) {
	s := d.snapshot
	for node := range s.nominated {
		if s.nodes[node].object == nil || len(d.nominatedBefore(node)) == 0 {
			continue
		}
		if r := d.checkWithNominated(near, node); r != nil {
			if d.overrides == nil {
				d.overrides = map[int32]*Refusal{}
			}
			d.overrides[node] = r
		}
	}
}

// amongFew decides among nodes the pod names itself, as pods of a DaemonSet do.
func (d *Decision) amongFew(near *neighbourhood) {
	s, t := d.snapshot, d.table
	d.limited = map[int32]*Refusal{}
	var list []int32
	for _, name := range t.only {
		node, ok := s.nodeNumber[name]
		if !ok || s.nodes[node].object == nil {
			continue
		}
		r := d.checkWithNominated(near, node)
		if d.limited[node] = r; r == nil {
			list = append(list, node)
		}
	}
	if d.Feasible = len(list); len(list) == 0 {
		return
	}
	totals := make([]int64, len(list))
	if len(list) > 1 {
		d.scoreFew(near, list, totals)
	}
	best := int64(refusedKey)
	for i, node := range list {
		if key := orderKey(totals[i], s.served[node]); key > best {
			best, d.number = key, node
		}
	}
}

// scoreFew adds up what all rules say in favour of some nodes, and remembers it.
func (d *Decision) scoreFew(near *neighbourhood, list []int32, totals []int64) {
	t := d.table
	d.few = map[int32]map[string]int64{}
	for i, node := range list {
		d.few[node] = map[string]int64{}
		for x := range t.scorers {
			score := t.scorers[x].weight * min(max(t.scorers[x].of(node), 0), MaxScore)
			d.few[node][t.scorers[x].name] = score
			totals[i] += score
		}
	}
	for x := range t.scales {
		scale := &t.scales[x]
		raw, largest := make([]int64, len(list)), int64(0)
		for i, node := range list {
			raw[i] = scale.of(node)
			largest = max(largest, raw[i])
		}
		for i, node := range list {
			score := scale.weight * scale.scale.scaled(raw[i], largest)
			d.few[node][scale.name] = score
			totals[i] += score
		}
	}
	d.beside = d.snapshot.besideRecord(len(d.snapshot.nodes))
	d.addNeighbours(near, list, totals)
}

// byTree takes the best cell of the table: nothing but the node itself matters to the pod.
func (d *Decision) byTree(near *neighbourhood) {
	s, t := d.snapshot, d.table
	d.position = t.position()
	if len(s.nominated) > 0 {
		d.overrideNominated(near)
	}
	if t.tree.size == 0 {
		t.tree.grow(t, s)
	}
	d.Feasible = t.feasible
	for node := range d.overrides {
		if t.cells[node].refusal == 0 {
			d.Feasible--
		}
		t.tree.set(node, refusedKey)
	}
	if best, ok := t.tree.best(); ok {
		d.number = best
	}
	for node := range d.overrides {
		t.tree.update(t, s, node)
	}
}

// byNeighbours looks at all nodes, because what counts for one depends on the others.
func (d *Decision) byNeighbours(near *neighbourhood) {
	s, t := d.snapshot, d.table
	d.beside = s.besideRecord(len(t.cells))
	first := d.profile.firstNeighbourRule()
	list := s.list(len(t.cells))
	refused := false
	for node := range t.cells {
		code := t.cells[node].refusal
		if code == 0 {
			list = append(list, int32(node))
		} else if code != absent && t.orders[code] > first {
			// A node refused by a rule that comes after those about neighbours is still asked, to name the first refusal.
			list, refused = append(list, int32(node)), true
		}
	}
	list = near.keep(list, d.beside.refusals)
	if refused {
		list = slices.DeleteFunc(list, func(node int32) bool { return t.cells[node].refusal != 0 })
	}
	d.position = t.position()
	if len(s.nominated) > 0 {
		d.overrideNominated(near)
		list = slices.DeleteFunc(list, func(node int32) bool { return d.overrides[node] != nil })
	}
	d.Feasible = len(list)
	if len(list) == 0 {
		return
	}
	totals := s.totals(len(list))
	for i, node := range list {
		totals[i] = t.base[node]
	}
	d.addScales(list, totals)
	d.addNeighbours(near, list, totals)
	best := int64(refusedKey)
	for i, node := range list {
		if key := orderKey(totals[i], s.served[node]); key > best {
			best, d.number = key, node
		}
	}
}

func (d *Decision) addScales(list []int32, totals []int64) {
	for x := range d.table.scales {
		scale := &d.table.scales[x]
		if scale.nonzero == 0 {
			continue
		}
		var largest int64
		for _, node := range list {
			largest = max(largest, scale.raw[node])
		}
		for i, node := range list {
			totals[i] += scale.weight * scale.scale.scaled(scale.raw[node], largest)
		}
	}
}

func (d *Decision) addNeighbours(near *neighbourhood, list []int32, totals []int64) {
	record := d.beside
	if d.snapshot.unrecorded {
		record = nil
	}
	if weight := d.profile.spreadWeight; len(near.soft) > 0 && weight > 0 {
		near.spreadScores(d.snapshot, list, totals, record.slot(len(d.besideNames)), weight)
		d.besideNames = append(d.besideNames, besideName{podTopologySpreadName, weight})
	}
	if weight := d.profile.affinityWeight; len(near.attraction) > 0 && weight > 0 {
		if near.attractionScores(d.snapshot, list, totals, record.slot(len(d.besideNames)), weight) {
			d.besideNames = append(d.besideNames, besideName{interPodAffinityName, weight})
		}
	}
}
