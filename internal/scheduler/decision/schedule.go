package decision

import (
	"fmt"
	"slices"

	"skiff/internal/scheduler/plugins"
	"skiff/internal/scheduler/snapshot"
)

// Schedule chooses a node for a pod. It changes nothing but caches: the same snapshot, pod and profile give the same decision. The error is
// ErrNoNodes, a *FitError if no node is feasible, or the error of a plugin.
func Schedule(s *snapshot.Snapshot, p *snapshot.PodInfo, profile *plugins.Profile) (*Decision, error) {
	return Decide(s, p, profile, true)
}

// Decide is Schedule; if nominated is set, a feasible nominated node is chosen without checking others.
func Decide(s *snapshot.Snapshot, p *snapshot.PodInfo, profile *plugins.Profile, nominated bool) (*Decision, error) {
	d := &Decision{Pod: p, Nodes: s.NodeCount, Snapshot: s, Profile: profile, NodeNumber: snapshot.NoValue, nodeGeneration: s.NodeGeneration}
	if s.NodeCount == 0 {
		return d, ErrNoNodes
	}
	t, refusal := tableFor(s, p, profile)
	if refusal != nil {
		d.Refusal = refusal
		if refusal.Err != nil {
			return d, fmt.Errorf("running PreFilter plugin %q: %w", refusal.Plugin, refusal.Err)
		}
		return d, d.FitError()
	}
	d.Table = t
	topo, err := TopologyFor(s, p, profile)
	if err != nil {
		return d, err
	}
	d.SkipAffinity = topo.Affinity.FiltersNothing()
	if nominated && d.useNominatedNode(topo) {
		return d, nil
	}
	switch {
	case t.limitedToNames:
		d.amongNamedNodes(topo)
	case topo.inactive() && t.normalizedScoresEqual():
		d.byTree(topo)
	default:
		d.byAllNodes(topo)
	}
	if err := d.pluginError(); err != nil {
		return d, err
	}
	// As in upstream, nodes are scored only if more than one is feasible.
	if d.Feasible > 1 && t.scoreError != nil {
		return d, t.scoreError
	}
	if d.NodeNumber == snapshot.NoValue {
		return d, d.FitError()
	}
	d.Node = s.NodeInfos[d.NodeNumber].Name
	if t.noRecord {
		d.dropRecord()
	}
	return d, nil
}

// pluginError returns the error of a plugin for some node.
func (d *Decision) pluginError() error {
	for _, r := range d.Limited {
		if r != nil && r.Err != nil {
			return filterError(r)
		}
	}
	for code, r := range d.Table.refusals {
		if r != nil && r.Err != nil && d.Table.refused[code] > 0 {
			return filterError(r)
		}
	}
	return nil
}

// filterError wraps the error of a filter plugin.
func filterError(r *plugins.Refusal) error {
	if r.Plugin == "" {
		return r.Err
	}
	return fmt.Errorf("running %q filter plugin: %w", r.Plugin, r.Err)
}

// useNominatedNode chooses the pod's nominated node if it is feasible.
func (d *Decision) useNominatedNode(topo *topology) bool {
	name := d.Pod.Pod.Status.NominatedNodeName
	if name == "" {
		return false
	}
	s := d.Snapshot
	node, ok := s.NodeNumbers[name]
	if !ok || s.NodeInfos[node].Node == nil || d.Table.limitedToNames && !slices.Contains(d.Table.nodeNames, name) {
		return false
	}
	if d.CheckWithNominated(topo, node) != nil {
		return false
	}
	d.Node, d.NodeNumber, d.Feasible, d.Nominated = name, node, 1, true
	d.position = d.Table.position()
	if d.Table.limitedToNames {
		d.Limited = map[int32]*plugins.Refusal{node: nil}
	}
	return true
}

// check runs all filters on one node in the profile's order and returns the first refusal.
func (d *Decision) check(topo *topology, node int32) *plugins.Refusal {
	t := d.Table
	spread, affinity := d.Profile.SpreadOrder, d.Profile.AffinityOrder
	if d.SkipAffinity {
		affinity = -1
	}
	for i := range t.filters {
		f := &t.filters[i]
		if spread >= 0 && f.order > spread {
			if code := topo.check(node, true, false); code != 0 {
				return plugins.TopologyRefusals[code]
			}
			spread = -1
		}
		if affinity >= 0 && f.order > affinity {
			if code := topo.check(node, false, true); code != 0 {
				return plugins.TopologyRefusals[code]
			}
			affinity = -1
		}
		if r := f.check(node); r != nil {
			return r
		}
	}
	if code := topo.check(node, spread >= 0, affinity >= 0); code != 0 {
		return plugins.TopologyRefusals[code]
	}
	return nil
}

// CheckWithNominated runs all filters on a node twice: with the nominated pods of the same or higher priority added, and without. The pod
// must fit in both cases, because nominated pods may not be scheduled there.
func (d *Decision) CheckWithNominated(topo *topology, node int32) *plugins.Refusal {
	s := d.Snapshot
	if nominated := d.nominatedBefore(node); len(nominated) > 0 {
		var refusal *plugins.Refusal
		s.Simulate(func(sim *snapshot.Simulation) {
			for _, p := range nominated {
				sim.Add(p)
			}
			refusal = d.check(topo, node)
		})
		if refusal != nil {
			return refusal
		}
	}
	return d.check(topo, node)
}

// nominatedBefore returns the pods nominated to a node with the same or higher priority.
func (d *Decision) nominatedBefore(node int32) (nominated []*snapshot.PodEntry) {
	for _, p := range d.Snapshot.NominatedPods[node] {
		if p.Info.Pod.UID != d.Pod.Pod.UID && snapshot.PriorityOf(p.Info.Pod) >= snapshot.PriorityOf(d.Pod.Pod) && d.Snapshot.PodEntries[p.Info.Pod.UID] == nil {
			nominated = append(nominated, &snapshot.PodEntry{Info: p.Info, Node: node})
		}
	}
	return nominated
}

// overrideNominated sets the refusals of nodes that are not feasible with their nominated pods added. They replace other refusals of these
// nodes.
func (d *Decision) overrideNominated(topo *topology) {
	s := d.Snapshot
	for node := range s.NominatedPods {
		if s.NodeInfos[node].Node == nil || len(d.nominatedBefore(node)) == 0 {
			continue
		}
		if r := d.CheckWithNominated(topo, node); r != nil {
			if d.Overrides == nil {
				d.Overrides = map[int32]*plugins.Refusal{}
			}
			d.Overrides[node] = r
		}
	}
}

// amongNamedNodes chooses among the nodes the pod selects by name, as DaemonSet pods do.
func (d *Decision) amongNamedNodes(topo *topology) {
	s, t := d.Snapshot, d.Table
	d.Limited = map[int32]*plugins.Refusal{}
	var list []int32
	for _, name := range t.nodeNames {
		node, ok := s.NodeNumbers[name]
		if !ok || s.NodeInfos[node].Node == nil {
			continue
		}
		r := d.CheckWithNominated(topo, node)
		if d.Limited[node] = r; r == nil {
			list = append(list, node)
		}
	}
	if d.Feasible = len(list); len(list) == 0 {
		return
	}
	totals := make([]int64, len(list))
	if len(list) > 1 {
		d.scoreNamedNodes(topo, list, totals)
	}
	best := int64(refusedKey)
	for i, node := range list {
		if key := orderKey(totals[i], s.LastPlacement[node]); key > best {
			best, d.NodeNumber = key, node
		}
	}
}

// scoreNamedNodes adds the scores of all plugins to totals, and records them.
func (d *Decision) scoreNamedNodes(topo *topology, list []int32, totals []int64) {
	t := d.Table
	d.limitedScores = map[int32]map[string]int64{}
	for i, node := range list {
		d.limitedScores[node] = map[string]int64{}
		for x := range t.scorers {
			score := t.scorers[x].weight * min(max(t.scorers[x].score(node), 0), plugins.MaxScore)
			d.limitedScores[node][t.scorers[x].name] = score
			totals[i] += score
		}
	}
	for x := range t.normalized {
		scorer := &t.normalized[x]
		raw, largest := make([]int64, len(list)), int64(0)
		for i, node := range list {
			raw[i] = scorer.score(node)
			largest = max(largest, raw[i])
		}
		for i, node := range list {
			score := scorer.weight * scorer.normalization.Normalize(raw[i], largest)
			d.limitedScores[node][scorer.name] = score
			totals[i] += score
		}
	}
	d.topology = memoOf(d.Snapshot).topologyRecord(len(d.Snapshot.NodeInfos))
	d.addTopologyScores(topo, list, totals)
}

// byTree takes the best node of the table's tree: no score depends on other nodes.
func (d *Decision) byTree(topo *topology) {
	s, t := d.Snapshot, d.Table
	d.position = t.position()
	if len(s.NominatedPods) > 0 {
		d.overrideNominated(topo)
	}
	if t.tree.size == 0 {
		t.tree.grow(t, s)
	}
	d.Feasible = t.feasible
	for node := range d.Overrides {
		if t.cells[node].refusal == 0 {
			d.Feasible--
		}
		t.tree.set(node, refusedKey)
	}
	if best, ok := t.tree.best(); ok {
		d.NodeNumber = best
	}
	for node := range d.Overrides {
		t.tree.update(t, s, node)
	}
}

// byAllNodes filters and scores all nodes, because results depend on other nodes.
func (d *Decision) byAllNodes(topo *topology) {
	s, t := d.Snapshot, d.Table
	d.topology = memoOf(s).topologyRecord(len(t.cells))
	first := d.Profile.FirstTopologyPlugin()
	list := s.NodeBuffer(len(t.cells))
	refused := false
	for node := range t.cells {
		code := t.cells[node].refusal
		if code == 0 {
			list = append(list, int32(node))
		} else if code != nodeAbsent && t.pluginOrder[code] > first {
			// PodTopologySpread or InterPodAffinity comes before the plugin that rejected the node: run it, because the first refusal is reported.
			list, refused = append(list, int32(node)), true
		}
	}
	list = topo.filter(list, d.topology.refusals)
	if refused {
		list = slices.DeleteFunc(list, func(node int32) bool { return t.cells[node].refusal != 0 })
	}
	d.position = t.position()
	if len(s.NominatedPods) > 0 {
		d.overrideNominated(topo)
		list = slices.DeleteFunc(list, func(node int32) bool { return d.Overrides[node] != nil })
	}
	d.Feasible = len(list)
	if len(list) == 0 {
		return
	}
	totals := s.TotalsBuffer(len(list))
	for i, node := range list {
		totals[i] = t.weightedScores[node]
	}
	d.addNormalizedScores(list, totals)
	d.addTopologyScores(topo, list, totals)
	best := int64(refusedKey)
	for i, node := range list {
		if key := orderKey(totals[i], s.LastPlacement[node]); key > best {
			best, d.NodeNumber = key, node
		}
	}
}

func (d *Decision) addNormalizedScores(list []int32, totals []int64) {
	for x := range d.Table.normalized {
		scorer := &d.Table.normalized[x]
		if scorer.nonzero == 0 {
			continue
		}
		var largest int64
		for _, node := range list {
			largest = max(largest, scorer.raw[node])
		}
		for i, node := range list {
			totals[i] += scorer.weight * scorer.normalization.Normalize(scorer.raw[node], largest)
		}
	}
}

func (d *Decision) addTopologyScores(topo *topology, list []int32, totals []int64) {
	record := d.topology
	if d.Table.noRecord {
		record = nil
	}
	add := func(plugin string, weight int64) plugins.Scoring {
		x := plugins.Scoring{Nodes: list, Totals: totals, Weight: weight, Record: record.slot(len(d.topologyScores))}
		d.topologyScores = append(d.topologyScores, recordedScore{plugin, weight})
		return x
	}
	if weight := d.Profile.SpreadWeight; len(topo.spread.Preferred) > 0 && weight > 0 {
		topo.spread.AddScores(d.Snapshot, add(plugins.PodTopologySpreadName, weight))
	}
	if weight := d.Profile.AffinityWeight; len(topo.Affinity.Preferred) > 0 && weight > 0 {
		if !topo.Affinity.AddScores(d.Snapshot, add(plugins.InterPodAffinityName, weight)) {
			d.topologyScores = d.topologyScores[:len(d.topologyScores)-1]
		}
	}
}

// ClaimBlocksNode reports whether an allocated claim, given by index, is the reason why some node is not feasible.
func ClaimBlocksNode(q *plugins.PodDevices, d *Decision, claim int) bool {
	verdicts, _ := d.Explain()
	return slices.ContainsFunc(verdicts, func(v Verdict) bool {
		return v.Refusal == plugins.ClaimNotAvailable && q.Unavailable(claim, d.Snapshot.NodeNumbers[v.Node])
	})
}
