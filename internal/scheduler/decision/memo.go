package decision

import (
	"slices"

	"skiff/internal/scheduler/plugins"
	"skiff/internal/scheduler/snapshot"
)

// memo is the cache between pods of one snapshot: tables by PodInfo.LocalKey, topology states by PodInfo.TopologyKey, and buffers.
type memo struct {
	tables     map[string]*table
	topologies map[string]*topology
	// spareRecords are dropped records for reuse.
	spareRecords []*topologyRecord
	Options
}

// Options are settings of the decisions made on a snapshot.
type Options struct {
	// Timed measures the duration of a plugin's PreFilter or PreScore, until the returned function is called. It may be nil.
	Timed func(plugin, extensionPoint string) func(*plugins.Refusal)
	// Log, if set, is notified when a table is dropped.
	Log *Log
	// NoRecord drops what only Explain needs. Benchmarks use it to measure the cost of records.
	NoRecord bool
}

// maxSpareRecords bounds the records kept for reuse.
const maxSpareRecords = 4

// SetOptions changes the settings of the decisions made on a snapshot from now on.
func SetOptions(s *snapshot.Snapshot, options Options) { memoOf(s).Options = options }

func memoOf(s *snapshot.Snapshot) *memo {
	if m, ok := s.Memo.(*memo); ok {
		return m
	}
	m := &memo{tables: map[string]*table{}, topologies: map[string]*topology{}}
	s.Memo = m
	return m
}

// topologyRecord returns an empty record for n nodes.
func (m *memo) topologyRecord(n int) *topologyRecord {
	r := &topologyRecord{}
	if last := len(m.spareRecords) - 1; last >= 0 {
		r = m.spareRecords[last]
		m.spareRecords = m.spareRecords[:last]
	}
	r.refusals = snapshot.Sized(&r.refusals, n)
	clear(r.refusals)
	return r
}

// slot returns the record of one plugin's scores; nil without a record.
func (r *topologyRecord) slot(i int) *plugins.ScoreRecord {
	if r == nil {
		return nil
	}
	return &r.scores[i]
}

// dropRecord drops a decision's record. Explain has nothing to return then.
func (d *Decision) dropRecord() {
	if m := memoOf(d.Snapshot); d.topology != nil && len(m.spareRecords) < maxSpareRecords {
		m.spareRecords = append(m.spareRecords, d.topology)
	}
	d.topology, d.Table, d.RecordDropped = nil, nil, true
}

// maxTopologies bounds the cached topology states.
const maxTopologies = 4096

// topology is the state of PodTopologySpread and InterPodAffinity, shared by all pods with equal labels, terms and constraints.
type topology struct {
	version  uint64
	spread   plugins.SpreadState
	Affinity plugins.AffinityState
	// affinityFirst is set where InterPodAffinity filters before PodTopologySpread.
	affinityFirst bool
}

// TopologyFor returns a pod's topology state.
func TopologyFor(s *snapshot.Snapshot, p *snapshot.PodInfo, profile *plugins.Profile) (*topology, error) {
	m := memoOf(s)
	key := profile.Name + "\x00" + p.TopologyKey()
	if t := m.topologies[key]; t != nil && t.version == s.TopologyVersion {
		return t, nil
	}
	s.DropUnusedTerms()
	if len(m.topologies) >= maxTopologies {
		clear(m.topologies)
	}
	t := &topology{affinityFirst: profile.AffinityOrder >= 0 && profile.AffinityOrder < profile.SpreadOrder}
	if profile.Spread != nil {
		var err error
		if t.spread, err = profile.Spread.State(s, p); err != nil {
			return nil, err
		}
	}
	if profile.Affinity != nil {
		t.Affinity = profile.Affinity.State(s, p)
	}
	t.disableUnused(profile)
	t.version = s.TopologyVersion
	m.topologies[key] = t
	return t, nil
}

// disableUnused drops the state of extension points that the profile does not use.
func (t *topology) disableUnused(profile *plugins.Profile) {
	if profile.SpreadOrder < 0 {
		t.spread.DisableFilter()
	}
	if profile.SpreadWeight == 0 {
		t.spread.DisableScore()
	}
	if profile.AffinityOrder < 0 {
		t.Affinity.DisableFilter()
	}
	if profile.AffinityWeight == 0 {
		t.Affinity.DisableScore()
	}
}

// inactive reports whether neither plugin filters or scores any node.
func (t *topology) inactive() bool { return t.spread.Inactive() && t.Affinity.Inactive() }

// check returns the code of the first refusal of a node, or 0. spread and affinity select the plugins to run.
func (t *topology) check(node int32, spread, affinity bool) uint8 {
	if affinity && t.affinityFirst {
		if code := t.Affinity.Check(node); code != 0 {
			return code
		}
	}
	if spread {
		if code := t.spread.Check(node); code != 0 {
			return code
		}
	}
	if affinity && !t.affinityFirst {
		return t.Affinity.Check(node)
	}
	return 0
}

// refusals returns the codes of all refusals of a node, each once, where check returns the first.
func (t *topology) refusals(node int32, spread, affinity bool) (codes []uint8) {
	if spread {
		codes = t.spread.Refusals(node)
	}
	if affinity {
		codes = slices.Concat(codes, t.Affinity.Refusals(node))
	}
	return codes
}

// filter keeps the feasible nodes in list, and sets the refusal codes of the others.
func (t *topology) filter(list []int32, refusals []uint8) []int32 {
	if t.affinityFirst {
		return t.spread.Filter(t.Affinity.Filter(list, refusals), refusals)
	}
	return t.Affinity.Filter(t.spread.Filter(list, refusals), refusals)
}
