package snapshot

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// Fork is a private copy of a snapshot, for a query that simulates other placements. It is made in two steps, so that the lock
// on the original is held briefly: Fork copies the columns, the pods' entries and the maps of objects; Snapshot derives the rest
// (counters, existing terms, indexes by name) from the copy and needs no lock. API objects are shared; they are read-only.
type Fork struct {
	snapshot *Snapshot
	pods     []PodEntry
	// nominated pods follow in the order of their nodes.
	nominated []PodEntry
}

// Fork begins a private copy. It only reads s, which must not change meanwhile.
func (s *Snapshot) Fork() *Fork {
	c := &Snapshot{
		NodeGeneration: s.NodeGeneration, NodeInfos: slices.Clone(s.NodeInfos), freeNumbers: slices.Clone(s.freeNumbers), NodeCount: s.NodeCount,
		Exists: slices.Clone(s.Exists), Unschedulable: slices.Clone(s.Unschedulable), NodeTaintSets: slices.Clone(s.NodeTaintSets),
		Allocatable: cloneColumns(s.Allocatable), Requested: cloneColumns(s.Requested),
		LastPlacement: slices.Clone(s.LastPlacement), Placements: s.Placements, extendedResources: maps.Clone(s.extendedResources),
		TaintSets: slices.Clone(s.TaintSets), taintSetNumber: maps.Clone(s.taintSetNumber),
		Images: make(map[string]*image, len(s.Images)), ImagesVersion: s.ImagesVersion,
		TopologyVersion: s.TopologyVersion, UseClock: s.UseClock, MaxExistingTerms: s.MaxExistingTerms,
		Namespaces: maps.Clone(s.Namespaces), Owners: s.Owners.clone(), Volumes: s.Volumes.clone(), Devices: s.Devices.clone(),
	}
	for i := range s.NonZeroRequested {
		c.NonZeroRequested[i] = slices.Clone(s.NonZeroRequested[i])
	}
	images := make([]image, 0, len(s.Images))
	for name, held := range s.Images {
		images = append(images, *held)
		c.Images[name] = &images[len(images)-1]
	}
	f := &Fork{snapshot: c, pods: make([]PodEntry, 0, len(s.PodEntries)), nominated: make([]PodEntry, 0, len(s.Nominations))}
	entries := make([]*PodEntry, 0, len(s.PodEntries))
	for n := range s.NodeInfos {
		from := len(entries)
		for _, p := range s.NodeInfos[n].Pods {
			f.pods = append(f.pods, PodEntry{Info: p.Info, Node: p.Node, nodeIndex: p.nodeIndex, Assumed: p.Assumed})
			entries = append(entries, &f.pods[len(f.pods)-1])
		}
		c.NodeInfos[n].Pods = slices.Clip(entries[from:])
		c.NodeInfos[n].HostPorts = slices.Clone(s.NodeInfos[n].HostPorts)
		for _, p := range s.NominatedPods[int32(n)] {
			f.nominated = append(f.nominated, PodEntry{Info: p.Info, Node: p.Node})
		}
	}
	return f
}

// Snapshot completes the copy.
func (f *Fork) Snapshot() *Snapshot {
	c := f.snapshot
	c.NodeNumbers, c.LabelColumns, c.HostColumn = make(map[string]int32, len(c.NodeInfos)), map[string]*LabelColumn{}, &LabelColumn{}
	c.PodEntries, c.podsByNamespace = make(map[types.UID]*PodEntry, len(f.pods)), map[string][]*PodEntry{}
	c.NominatedPods, c.Nominations, c.ClaimUsers = map[int32][]*PodEntry{}, map[types.UID]*PodEntry{}, map[string]int{}
	c.Counters, c.counterIndex = map[string]*Counter{}, newTermIndex[*Counter]()
	c.ExistingTerms, c.ExistingTermIndex = map[existingTermKey]*ExistingTerm{}, newTermIndex[*ExistingTerm]()
	for n := range c.NodeInfos {
		c.HostColumn.ValueOf = append(c.HostColumn.ValueOf, int32(n))
		if name := c.NodeInfos[n].Name; name != "" {
			c.NodeNumbers[name] = int32(n)
		}
	}
	for i := range f.pods {
		p := &f.pods[i]
		pod := p.Info.Pod
		c.PodEntries[pod.UID] = p
		p.namespaceIndex = len(c.podsByNamespace[pod.Namespace])
		c.podsByNamespace[pod.Namespace] = append(c.podsByNamespace[pod.Namespace], p)
		c.countClaimUsers(p.Info, 1)
		c.countTerms(p, 1)
	}
	for i := range f.nominated {
		p := &f.nominated[i]
		c.Nominations[p.Info.Pod.UID] = p
		c.countTerms(p, 1)
		c.countTerms(p, -1)
		c.NominatedPods[p.Node] = append(c.NominatedPods[p.Node], p)
	}
	return c
}

func cloneColumns(columns [][]int64) [][]int64 {
	cloned := make([][]int64, len(columns))
	for i := range columns {
		cloned[i] = slices.Clone(columns[i])
	}
	return cloned
}

func (o *ownerSelectors) clone() ownerSelectors {
	c := ownerSelectors{services: make(map[string]map[string]map[string]string, len(o.services)), replicationControllers: maps.Clone(o.replicationControllers), Controllers: maps.Clone(o.Controllers)}
	for namespace, services := range o.services {
		c.services[namespace] = maps.Clone(services)
	}
	return c
}

func (v *volumeObjects) clone() volumeObjects {
	c := volumeObjects{
		Claims: maps.Clone(v.Claims), Volumes: maps.Clone(v.Volumes), Classes: maps.Clone(v.Classes), Drivers: maps.Clone(v.Drivers),
		capacities: maps.Clone(v.capacities), attachments: maps.Clone(v.attachments), AssumedClaims: maps.Clone(v.AssumedClaims), AssumedVolumes: maps.Clone(v.AssumedVolumes),
		attachedTo: maps.Clone(v.attachedTo),
	}
	for node, attachments := range c.attachedTo {
		c.attachedTo[node] = maps.Clone(attachments)
	}
	return c
}

func (d *DeviceObjects) clone() DeviceObjects {
	return DeviceObjects{
		Claims: maps.Clone(d.Claims), slices: maps.Clone(d.slices), Classes: maps.Clone(d.Classes), taintRules: maps.Clone(d.taintRules),
		Assumed: maps.Clone(d.Assumed), expressions: d.expressions, // the cache of compiled expressions has a lock of its own
	}
}
