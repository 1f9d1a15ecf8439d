package snapshot

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"

	"skiff/internal/podstate"
)

// The column numbers of the resources that every node has. Scalar resources follow in order of first use.
const (
	ResourceCPU = iota
	ResourceMemory
	ResourceEphemeralStorage
	ResourcePods
	firstExtended
)

// Snapshot is the scheduler's state of the cluster, as columns over nodes. It is changed in place: SetNode, SetPod and the other setters
// take microseconds and touch only what changed. A Snapshot is not safe for concurrent use.
//
// Invariants: Requested[r][n] is the sum of the requests of the pods on node n; Counters and ExistingTerms count exactly the pods in
// PodEntries; every change of a node's columns appends the node to Changes.
type Snapshot struct {
	// NodeGeneration counts the nodes that were ever added.
	NodeGeneration uint64
	NodeInfos      []NodeInfo // by number; numbers are reused after a node and all its pods are removed
	NodeNumbers    map[string]int32
	freeNumbers    []int32
	NodeCount      int // nodes that exist

	Exists        []bool  // by node: the Node object exists, and not only pods that name it
	Unschedulable []bool  // by node: spec.unschedulable
	NodeTaintSets []int32 // by node: index into TaintSets

	Allocatable      [][]int64 // by resource, node
	Requested        [][]int64 // by resource, node
	NonZeroRequested [2][]int64
	// LastPlacement is the value of Placements when a pod was last added to the node: of nodes with equal scores the one with the oldest
	// placement is chosen.
	LastPlacement     []uint32
	Placements        uint32
	extendedResources map[corev1.ResourceName]int

	LabelColumns   map[string]*LabelColumn
	HostColumn     *LabelColumn // every node is its own domain
	TaintSets      []taintSet
	taintSetNumber map[string]int32
	Images         map[string]*image
	ImagesVersion  uint64 // grows when a node gets or loses an image

	PodEntries      map[types.UID]*PodEntry
	podsByNamespace map[string][]*PodEntry
	NominatedPods   map[int32][]*PodEntry // by node
	Nominations     map[types.UID]*PodEntry
	ClaimUsers      map[string]int // number of pods on nodes that use a PersistentVolumeClaim, by namespace/name

	// Counters caches counters by what they count. It is exported for tests; use CounterFor.
	Counters          map[string]*Counter
	counterIndex      termIndex[*Counter]
	ExistingTerms     map[existingTermKey]*ExistingTerm
	ExistingTermIndex termIndex[*ExistingTerm]
	MaxExistingTerms  int
	TopologyVersion   uint64 // grows when cached topology states become invalid: new terms, namespaces, services, owners

	Changes []int32 // changed nodes, oldest first; the first entry has sequence number ChangesFrom
	// ChangesFrom is the sequence number of the first entry of Changes.
	ChangesFrom uint64
	// UseClock counts uses of cached objects, to find the least recently used.
	UseClock uint64

	Namespaces map[string]labels.Set
	Owners     ownerSelectors
	Volumes    volumeObjects
	Devices    DeviceObjects
	workspace  workspace
	simulating bool // see Simulate
	// Memo belongs to the decision package: its cache between pods.
	Memo any
}

// MaxChanges bounds the log of changed nodes. A table that is further behind is filled again. It is exported for tests.
const MaxChanges = 8192

// NodeInfo holds the data of a node that is not in columns.
type NodeInfo struct {
	// Generation distinguishes the node from an earlier one with the same number.
	Generation uint64
	Name       string
	Node       *corev1.Node // nil while only pods or a CSINode name the node
	Pods       []*PodEntry
	HostPorts  []HostPort
	Images     map[string]int64
	CSINode    *storagev1.CSINode
}

// PodEntry is a pod on a node, or nominated to one.
type PodEntry struct {
	Info           *PodInfo
	Node           int32
	nodeIndex      int // in NodeInfo.Pods
	namespaceIndex int // in podsByNamespace
	counters       []*Counter
	// Assumed is set until the API server confirms the binding.
	Assumed bool
}

// NewSnapshot returns an empty snapshot.
func NewSnapshot() *Snapshot {
	s := &Snapshot{
		NodeNumbers: map[string]int32{}, extendedResources: map[corev1.ResourceName]int{}, LabelColumns: map[string]*LabelColumn{},
		taintSetNumber: map[string]int32{}, TaintSets: make([]taintSet, 1), Images: map[string]*image{},
		PodEntries: map[types.UID]*PodEntry{}, podsByNamespace: map[string][]*PodEntry{},
		NominatedPods: map[int32][]*PodEntry{}, Nominations: map[types.UID]*PodEntry{}, ClaimUsers: map[string]int{},
		Counters: map[string]*Counter{}, counterIndex: newTermIndex[*Counter](),
		ExistingTerms: map[existingTermKey]*ExistingTerm{}, ExistingTermIndex: newTermIndex[*ExistingTerm](), MaxExistingTerms: 1024,
		Namespaces: map[string]labels.Set{},
		Owners:     newOwnerSelectors(), Volumes: newVolumeObjects(), Devices: NewDeviceObjects(),
	}
	s.HostColumn = &LabelColumn{}
	s.Allocatable, s.Requested = make([][]int64, firstExtended), make([][]int64, firstExtended)
	return s
}

// NumNodes is the number of nodes that exist.
func (s *Snapshot) NumNodes() int { return s.NodeCount }

// NumPods is the number of pods on nodes, assumed ones included.
func (s *Snapshot) NumPods() int { return len(s.PodEntries) }

func (s *Snapshot) nextVersion() uint64 {
	s.UseClock++
	return s.UseClock
}

// Changed appends a node to the log of changed nodes.
func (s *Snapshot) Changed(node int32) {
	if s.simulating {
		return
	}
	if len(s.Changes) >= 2*MaxChanges {
		drop := len(s.Changes) - MaxChanges
		s.Changes = append(s.Changes[:0], s.Changes[drop:]...)
		s.ChangesFrom += uint64(drop)
	}
	s.Changes = append(s.Changes, node)
}

// ChangesEnd is the sequence number of the next change.
func (s *Snapshot) ChangesEnd() uint64 { return s.ChangesFrom + uint64(len(s.Changes)) }

// Resource returns the number of a resource's columns.
func (s *Snapshot) Resource(name corev1.ResourceName) int {
	switch name {
	case corev1.ResourceCPU:
		return ResourceCPU
	case corev1.ResourceMemory:
		return ResourceMemory
	case corev1.ResourceEphemeralStorage:
		return ResourceEphemeralStorage
	case corev1.ResourcePods:
		return ResourcePods
	}
	r, ok := s.extendedResources[name]
	if !ok {
		r = len(s.Allocatable)
		s.extendedResources[name] = r
		s.Allocatable = append(s.Allocatable, make([]int64, len(s.NodeInfos)))
		s.Requested = append(s.Requested, make([]int64, len(s.NodeInfos)))
	}
	return r
}

// nodeNumberFor returns the number of a node, allocating one if it is new.
func (s *Snapshot) nodeNumberFor(name string) int32 {
	if n, ok := s.NodeNumbers[name]; ok {
		return n
	}
	var n int32
	if len(s.freeNumbers) > 0 {
		n = s.freeNumbers[len(s.freeNumbers)-1]
		s.freeNumbers = s.freeNumbers[:len(s.freeNumbers)-1]
	} else {
		n = int32(len(s.NodeInfos))
		s.NodeInfos = append(s.NodeInfos, NodeInfo{})
		s.LastPlacement = append(s.LastPlacement, 0)
		s.Exists, s.Unschedulable, s.NodeTaintSets = append(s.Exists, false), append(s.Unschedulable, false), append(s.NodeTaintSets, 0)
		for r := range s.Allocatable {
			s.Allocatable[r] = append(s.Allocatable[r], 0)
			s.Requested[r] = append(s.Requested[r], 0)
		}
		for i := range s.NonZeroRequested {
			s.NonZeroRequested[i] = append(s.NonZeroRequested[i], 0)
		}
		for _, c := range s.LabelColumns {
			c.Set(n, "", false)
		}
		s.HostColumn.ValueOf = append(s.HostColumn.ValueOf, n)
		for _, c := range s.Counters {
			if c.eligible != nil {
				c.eligibleNodes = append(c.eligibleNodes, false)
			}
		}
	}
	s.NodeInfos[n] = NodeInfo{Name: name}
	s.NodeNumbers[name] = n
	return n
}

// SetNode adds or updates a node.
func (s *Snapshot) SetNode(object *corev1.Node) {
	n := s.nodeNumberFor(object.Name)
	nd := &s.NodeInfos[n]
	old := nd.Node
	if old == nil {
		s.NodeCount++
		s.NodeGeneration++
		nd.Generation = s.NodeGeneration
	}
	// The node's topology domains or eligibility may change: remove its pods from the counters before, and add them again after.
	domainsChange := old == nil || !SameLabels(old.Labels, object.Labels) || !slices.EqualFunc(old.Spec.Taints, object.Spec.Taints, SameTaint) ||
		old.Spec.Unschedulable != object.Spec.Unschedulable
	if domainsChange {
		s.removeFromDomains(n)
	}
	nd.Node = object
	s.Exists[n], s.Unschedulable[n], s.NodeTaintSets[n] = true, object.Spec.Unschedulable, s.taintSetNumberFor(object.Spec.Taints)
	for r := range s.Allocatable {
		s.Allocatable[r][n] = 0
	}
	for name, quantity := range object.Status.Allocatable {
		switch name {
		case corev1.ResourceCPU:
			s.Allocatable[ResourceCPU][n] = quantity.MilliValue()
		case corev1.ResourceMemory, corev1.ResourceEphemeralStorage, corev1.ResourcePods:
			s.Allocatable[s.Resource(name)][n] = quantity.Value()
		default:
			if isScalarResource(name) {
				r := s.Resource(name)
				s.Allocatable[r][n] = quantity.Value()
			}
		}
	}
	if old == nil || !slices.EqualFunc(old.Status.Images, object.Status.Images, sameImage) {
		s.setImages(nd, object.Status.Images)
	}
	if domainsChange {
		for key, c := range s.LabelColumns {
			value, has := object.Labels[key]
			c.Set(n, value, has)
		}
		s.addToDomains(n)
	}
	s.Changed(n)
}

// DeleteNode removes a node. Its pods stay until they are deleted too.
func (s *Snapshot) DeleteNode(name string) {
	n, ok := s.NodeNumbers[name]
	if !ok || s.NodeInfos[n].Node == nil {
		return
	}
	nd := &s.NodeInfos[n]
	s.removeFromDomains(n)
	s.setImages(nd, nil)
	nd.Node = nil
	s.Exists[n], s.Unschedulable[n], s.NodeTaintSets[n] = false, false, 0
	s.NodeCount--
	for r := range s.Allocatable {
		s.Allocatable[r][n] = 0
	}
	for _, c := range s.LabelColumns {
		c.Set(n, "", false)
	}
	s.addToDomains(n)
	s.Changed(n)
	s.releaseNumber(n)
}

// releaseNumber frees a node's number when no object refers to the node any more.
func (s *Snapshot) releaseNumber(n int32) {
	nd := &s.NodeInfos[n]
	if nd.Node == nil && len(nd.Pods) == 0 && len(s.NominatedPods[n]) == 0 && nd.CSINode == nil {
		delete(s.NodeNumbers, nd.Name)
		s.NodeInfos[n] = NodeInfo{}
		s.LastPlacement[n] = 0
		s.freeNumbers = append(s.freeNumbers, n)
	}
}

func (s *Snapshot) removeFromDomains(n int32) {
	for _, p := range s.NodeInfos[n].Pods {
		s.countPod(p, -1)
	}
	for _, c := range s.Counters {
		c.countDomain(s, n, -1)
	}
}

func (s *Snapshot) addToDomains(n int32) {
	for _, c := range s.Counters {
		c.addNode(s, n)
	}
	for _, p := range s.NodeInfos[n].Pods {
		s.countPod(p, 1)
	}
}

// SameTaint compares key, value and effect.
func SameTaint(a, b corev1.Taint) bool {
	return a.Key == b.Key && a.Value == b.Value && a.Effect == b.Effect
}

func sameImage(a, b corev1.ContainerImage) bool {
	return a.SizeBytes == b.SizeBytes && slices.Equal(a.Names, b.Names)
}

func SameLabels(a, b map[string]string) bool {
	if len(a) != len(b) {
		return false
	}
	for key, value := range a {
		if other, ok := b[key]; !ok || other != value {
			return false
		}
	}
	return true
}

// SetPod adds or updates a pod that has a node. Terminal pods are removed.
func (s *Snapshot) SetPod(info *PodInfo) {
	pod := info.Pod
	old := s.PodEntries[pod.UID]
	if podstate.IsTerminal(pod) || pod.Spec.NodeName == "" {
		if old != nil {
			s.RemovePod(old)
		}
		return
	}
	if old != nil {
		if s.NodeInfos[old.Node].Name == pod.Spec.NodeName && sameForColumns(old.Info, info) {
			old.Info, old.Assumed = info, false
			return
		}
		s.RemovePod(old)
	}
	s.AddPod(&PodEntry{Info: info, Node: s.nodeNumberFor(pod.Spec.NodeName)})
}

// sameForColumns reports whether an update of a pod changes no column: most updates are of status only.
func sameForColumns(old, now *PodInfo) bool {
	a, b := old.Pod, now.Pod
	return (a.DeletionTimestamp == nil) == (b.DeletionTimestamp == nil) && SameRequest(&old.Request, &now.Request) &&
		SameLabels(a.Labels, b.Labels) && slices.Equal(old.HostPorts, now.HostPorts)
}

// SameRequest compares two requests.
func SameRequest(a, b *Request) bool {
	return a.MilliCPU == b.MilliCPU && a.Memory == b.Memory && a.Storage == b.Storage && a.NonZeroMilliCPU == b.NonZeroMilliCPU &&
		a.NonZeroMemory == b.NonZeroMemory && slices.Equal(a.Extended, b.Extended)
}

// DeletePod removes a pod and its nomination.
func (s *Snapshot) DeletePod(uid types.UID) {
	if p := s.PodEntries[uid]; p != nil {
		s.RemovePod(p)
	}
	s.Nominate(nil, uid, "")
}

// Assume adds a pod to a node before the binding is written.
func (s *Snapshot) Assume(info *PodInfo, nodeName string) {
	if old := s.PodEntries[info.Pod.UID]; old != nil {
		s.RemovePod(old)
	}
	s.Nominate(nil, info.Pod.UID, "")
	s.AddPod(&PodEntry{Info: info, Node: s.nodeNumberFor(nodeName), Assumed: true})
}

// Forget removes an assumed pod. It reports false if the pod is not assumed, because it was confirmed or deleted since.
func (s *Snapshot) Forget(uid types.UID) bool {
	p := s.PodEntries[uid]
	if p == nil || !p.Assumed {
		return false
	}
	s.RemovePod(p)
	return true
}

// Assumed reports whether a pod is assumed to be on a node, and on which.
func (s *Snapshot) Assumed(uid types.UID) (nodeName string, ok bool) {
	if p := s.PodEntries[uid]; p != nil && p.Assumed {
		return s.NodeInfos[p.Node].Name, true
	}
	return "", false
}

// Nominate sets the node a pod is nominated to; an empty name removes the nomination.
func (s *Snapshot) Nominate(info *PodInfo, uid types.UID, nodeName string) {
	if old := s.Nominations[uid]; old != nil {
		delete(s.Nominations, uid)
		s.NominatedPods[old.Node] = slices.DeleteFunc(s.NominatedPods[old.Node], func(p *PodEntry) bool { return p == old })
		if len(s.NominatedPods[old.Node]) == 0 {
			delete(s.NominatedPods, old.Node)
		}
		s.releaseNumber(old.Node)
	}
	if nodeName == "" || info == nil {
		return
	}
	p := &PodEntry{Info: info, Node: s.nodeNumberFor(nodeName)}
	s.Nominations[uid] = p
	// Register the pod's affinity terms, so that simulating it on the node adds no terms and TopologyVersion stays.
	s.countTerms(p, 1)
	s.countTerms(p, -1)
	s.NominatedPods[p.Node] = append(s.NominatedPods[p.Node], p)
}

// AddPod adds a pod to the columns and counters.
func (s *Snapshot) AddPod(p *PodEntry) {
	nd := &s.NodeInfos[p.Node]
	p.nodeIndex = len(nd.Pods)
	nd.Pods = append(nd.Pods, p)
	pod := p.Info.Pod
	s.PodEntries[pod.UID] = p
	p.namespaceIndex = len(s.podsByNamespace[pod.Namespace])
	s.podsByNamespace[pod.Namespace] = append(s.podsByNamespace[pod.Namespace], p)
	s.addRequest(p, 1)
	nd.HostPorts = append(nd.HostPorts, p.Info.HostPorts...)
	s.countClaimUsers(p.Info, 1)

	p.counters = p.counters[:0]
	s.counterIndex.Candidates(pod, func(c *Counter) {
		if c.matches(s, pod) {
			p.counters = append(p.counters, c)
		}
	})
	s.countPod(p, 1)
	s.Placements++
	s.LastPlacement[p.Node] = s.Placements
	s.Changed(p.Node)
}

// RemovePod removes a pod from the columns and counters.
func (s *Snapshot) RemovePod(p *PodEntry) {
	nd := &s.NodeInfos[p.Node]
	last := nd.Pods[len(nd.Pods)-1]
	nd.Pods[p.nodeIndex], last.nodeIndex = last, p.nodeIndex
	nd.Pods[len(nd.Pods)-1] = nil
	nd.Pods = nd.Pods[:len(nd.Pods)-1]
	pod := p.Info.Pod
	delete(s.PodEntries, pod.UID)
	inNamespace := s.podsByNamespace[pod.Namespace]
	last = inNamespace[len(inNamespace)-1]
	inNamespace[p.namespaceIndex], last.namespaceIndex = last, p.namespaceIndex
	inNamespace[len(inNamespace)-1] = nil
	if s.podsByNamespace[pod.Namespace] = inNamespace[:len(inNamespace)-1]; len(inNamespace) == 1 {
		delete(s.podsByNamespace, pod.Namespace)
	}
	s.addRequest(p, -1)
	for _, port := range p.Info.HostPorts {
		if i := slices.Index(nd.HostPorts, port); i >= 0 {
			nd.HostPorts = slices.Delete(nd.HostPorts, i, i+1)
		}
	}
	s.countClaimUsers(p.Info, -1)
	s.countPod(p, -1)
	s.Changed(p.Node)
	s.releaseNumber(p.Node)
}

func (s *Snapshot) addRequest(p *PodEntry, sign int64) {
	r, n := &p.Info.Request, p.Node
	s.Requested[ResourceCPU][n] += sign * r.MilliCPU
	s.Requested[ResourceMemory][n] += sign * r.Memory
	s.Requested[ResourceEphemeralStorage][n] += sign * r.Storage
	s.Requested[ResourcePods][n] += sign
	s.NonZeroRequested[ResourceCPU][n] += sign * r.NonZeroMilliCPU
	s.NonZeroRequested[ResourceMemory][n] += sign * r.NonZeroMemory
	for _, a := range r.Extended {
		i := s.Resource(a.Resource)
		s.Requested[i][n] += sign * a.Value
	}
}

func (s *Snapshot) countPod(p *PodEntry, delta int32) {
	for _, c := range p.counters {
		c.add(p.Node, delta)
	}
	s.countTerms(p, delta)
}

func (s *Snapshot) countClaimUsers(info *PodInfo, delta int) {
	if !info.HasVolumes {
		return
	}
	for i := range info.Pod.Spec.Volumes {
		if claim := info.Pod.Spec.Volumes[i].PersistentVolumeClaim; claim != nil {
			key := info.Pod.Namespace + "/" + claim.ClaimName
			if s.ClaimUsers[key] += delta; s.ClaimUsers[key] <= 0 {
				delete(s.ClaimUsers, key)
			}
		}
	}
}

// SetNamespace adds or updates the labels of a namespace.
func (s *Snapshot) SetNamespace(namespace *corev1.Namespace) {
	if old, ok := s.Namespaces[namespace.Name]; !ok || !SameLabels(old, namespace.Labels) {
		s.TopologyVersion++
	}
	s.Namespaces[namespace.Name] = namespace.Labels
}

// DeleteNamespace removes a namespace.
func (s *Snapshot) DeleteNamespace(name string) {
	delete(s.Namespaces, name)
	s.TopologyVersion++
}

// PriorityOf returns a pod's priority, 0 if unset.
func PriorityOf(pod *corev1.Pod) int32 { return corev1helpers.PodPriority(pod) }

// Node returns a node by its number, for plugins.
func (s *Snapshot) Node(node int32) *corev1.Node { return s.NodeInfos[node].Node }

// PodsOn returns the pods on a node, for plugins.
func (s *Snapshot) PodsOn(node int32) []*corev1.Pod {
	var all []*corev1.Pod
	for _, p := range s.NodeInfos[node].Pods {
		all = append(all, p.Info.Pod)
	}
	return all
}
