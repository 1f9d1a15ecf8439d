package scheduler

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"

	"skiff/internal/podstate"
)

// The resources every node has. Extended resources follow, numbered as they are met.
const (
	cpu = iota
	memory
	storage
	pods
	firstExtended
)

// Snapshot is all the scheduler knows, as columns over nodes. It is changed in place: SetNode, SetPod and their likes take
// microseconds and touch only what changed. A Snapshot is not safe for use by several goroutines at once.
//
// What stays true: requested[r][n] is the sum of the requests of the pods on node n; counters and holders count exactly the pods
// in pods; every change of a node's columns appends the node to changes.
type Snapshot struct {
	// arrivals counts the nodes that have come.
	arrivals   uint64
	nodes      []node // by number; numbers are used again after a node and all its pods are gone
	nodeNumber map[string]int32
	free       []int32
	count      int // nodes that exist

	exists []bool  // by node: it is more than a name that pods speak of
	closed []bool  // by node: spec.unschedulable
	taints []int32 // by node: number of its combination of taints

	allocatable [][]int64 // by resource, node
	requested   [][]int64 // by resource, node
	assumed     [2][]int64
	// served is when a node last received a pod, as a count: among equals the node that waited longest is taken.
	served   []uint32
	services uint32
	extended map[corev1.ResourceName]int

	columns        map[string]*labelColumn
	identity       *labelColumn // every node is its own domain
	taintSets      []taintSet
	taintSetNumber map[string]int32
	images         map[string]*image
	imagesVersion  uint64 // grows when a node gets or loses an image

	pods        map[types.UID]*podEntry
	byNamespace map[string][]*podEntry
	nominated   map[int32][]*podEntry // by node
	nominatedAt map[types.UID]*podEntry
	claimUsers  map[string]int // pods on nodes that use a claim, by namespace/name

	counters         map[string]*counter
	counterIndex     termIndex[*counter]
	holders          map[holderKey]*holder
	holderIndex      termIndex[*holder]
	holdersKept      int
	neighbourVersion uint64 // grows when what a pod means to others may have changed: new terms, namespaces, services, owners
	neighbourhoods   map[string]*neighbourhood

	tables  map[string]*table
	changes []int32 // nodes changed, oldest first; the first has number changesFrom
	// changesFrom and clock only grow.
	changesFrom uint64
	clock       uint64

	namespaces map[string]labels.Set
	owners     ownerSelectors
	volumes    volumeObjects
	devices    deviceObjects
	work       workspace
	rehearsing bool // pods are moved only to see what would be, and moved back
	unrecorded bool // see KeepNoRecord
	// timed measures what a rule takes to read a pod, until the function it returns is called. It may be nil.
	timed func(rule, point string) func(*Refusal)
	// dropped is told of tables that nobody should keep any longer. It may be nil.
	dropped func(*table)
}

// maxChanges bounds the log of changed nodes. A table that has not followed for longer is made anew.
const maxChanges = 8192

// node is what is not a column because rules read it whole.
type node struct {
	// arrival tells the node from one that had its number before.
	arrival uint64
	name    string
	object  *corev1.Node // nil while only pods speak of the node
	pods    []*podEntry
	ports   []hostPort
	images  map[string]int64
	csi     *storagev1.CSINode
}

// podEntry is a pod on a node, or nominated to one.
type podEntry struct {
	info    *PodInfo
	node    int32
	place   int // in node.pods
	inSpace int // in byNamespace
	counted []*counter
	// assumed pods were decided by us and are not yet confirmed by the API server.
	assumed bool
}

// NewSnapshot makes an empty one.
func NewSnapshot() *Snapshot {
	s := &Snapshot{
		nodeNumber: map[string]int32{}, extended: map[corev1.ResourceName]int{}, columns: map[string]*labelColumn{},
		taintSetNumber: map[string]int32{}, taintSets: make([]taintSet, 1), images: map[string]*image{},
		pods: map[types.UID]*podEntry{}, byNamespace: map[string][]*podEntry{},
		nominated: map[int32][]*podEntry{}, nominatedAt: map[types.UID]*podEntry{}, claimUsers: map[string]int{},
		counters: map[string]*counter{}, counterIndex: newTermIndex[*counter](),
		holders: map[holderKey]*holder{}, holderIndex: newTermIndex[*holder](), holdersKept: 1024,
		neighbourhoods: map[string]*neighbourhood{}, tables: map[string]*table{}, namespaces: map[string]labels.Set{},
		owners: newOwnerSelectors(), volumes: newVolumeObjects(), devices: newDeviceObjects(),
	}
	s.identity = &labelColumn{}
	s.allocatable, s.requested = make([][]int64, firstExtended), make([][]int64, firstExtended)
	return s
}

// Nodes is the number of nodes that exist.
func (s *Snapshot) Nodes() int { return s.count }

// Pods is the number of pods on nodes, assumed ones included.
func (s *Snapshot) Pods() int { return len(s.pods) }

func (s *Snapshot) nextVersion() uint64 {
	s.clock++
	return s.clock
}

// changed notes that a node's columns differ from before.
func (s *Snapshot) changed(node int32) {
	if s.rehearsing {
		return
	}
	if len(s.changes) >= 2*maxChanges {
		drop := len(s.changes) - maxChanges
		s.changes = append(s.changes[:0], s.changes[drop:]...)
		s.changesFrom += uint64(drop)
	}
	s.changes = append(s.changes, node)
}

func (s *Snapshot) changesEnd() uint64 { return s.changesFrom + uint64(len(s.changes)) }

// resource returns the number of a resource's columns.
func (s *Snapshot) resource(name corev1.ResourceName) int {
	switch name {
	case corev1.ResourceCPU:
		return cpu
	case corev1.ResourceMemory:
		return memory
	case corev1.ResourceEphemeralStorage:
		return storage
	case corev1.ResourcePods:
		return pods
	}
	r, ok := s.extended[name]
	if !ok {
		r = len(s.allocatable)
		s.extended[name] = r
		s.allocatable = append(s.allocatable, make([]int64, len(s.nodes)))
		s.requested = append(s.requested, make([]int64, len(s.nodes)))
	}
	return r
}

// number returns the number of a node, giving it one if it is new.
func (s *Snapshot) number(name string) int32 {
	if n, ok := s.nodeNumber[name]; ok {
		return n
	}
	var n int32
	if len(s.free) > 0 {
		n = s.free[len(s.free)-1]
		s.free = s.free[:len(s.free)-1]
	} else {
		n = int32(len(s.nodes))
		s.nodes = append(s.nodes, node{})
		s.served = append(s.served, 0)
		s.exists, s.closed, s.taints = append(s.exists, false), append(s.closed, false), append(s.taints, 0)
		for r := range s.allocatable {
			s.allocatable[r] = append(s.allocatable[r], 0)
			s.requested[r] = append(s.requested[r], 0)
		}
		for i := range s.assumed {
			s.assumed[i] = append(s.assumed[i], 0)
		}
		for _, c := range s.columns {
			c.set(n, "", false)
		}
		s.identity.of = append(s.identity.of, n)
		for _, c := range s.counters {
			if c.eligible != nil {
				c.counts = append(c.counts, false)
			}
		}
	}
	s.nodes[n] = node{name: name}
	s.nodeNumber[name] = n
	return n
}

// SetNode takes over a node as it is now.
func (s *Snapshot) SetNode(object *corev1.Node) {
	n := s.number(object.Name)
	nd := &s.nodes[n]
	old := nd.object
	if old == nil {
		s.count++
		s.arrivals++
		nd.arrival = s.arrivals
	}
	// Domains move under the feet of the pods on the node: count them out before and in after.
	moves := old == nil || !sameLabels(old.Labels, object.Labels) || !slices.EqualFunc(old.Spec.Taints, object.Spec.Taints, sameTaint) ||
		old.Spec.Unschedulable != object.Spec.Unschedulable
	if moves {
		s.leaveDomains(n)
	}
	nd.object = object
	s.exists[n], s.closed[n], s.taints[n] = true, object.Spec.Unschedulable, s.taintSetOf(object.Spec.Taints)
	for r := range s.allocatable {
		s.allocatable[r][n] = 0
	}
	for name, quantity := range object.Status.Allocatable {
		switch name {
		case corev1.ResourceCPU:
			s.allocatable[cpu][n] = quantity.MilliValue()
		case corev1.ResourceMemory, corev1.ResourceEphemeralStorage, corev1.ResourcePods:
			s.allocatable[s.resource(name)][n] = quantity.Value()
		default:
			if countable(name) {
				r := s.resource(name)
				s.allocatable[r][n] = quantity.Value()
			}
		}
	}
	if old == nil || !slices.EqualFunc(old.Status.Images, object.Status.Images, sameImage) {
		s.setImages(nd, object.Status.Images)
	}
	if moves {
		for key, c := range s.columns {
			value, has := object.Labels[key]
			c.set(n, value, has)
		}
		s.enterDomains(n)
	}
	s.changed(n)
}

// DeleteNode forgets a node. Its pods are remembered until they are gone too.
func (s *Snapshot) DeleteNode(name string) {
	n, ok := s.nodeNumber[name]
	if !ok || s.nodes[n].object == nil {
		return
	}
	nd := &s.nodes[n]
	s.leaveDomains(n)
	s.setImages(nd, nil)
	nd.object = nil
	s.exists[n], s.closed[n], s.taints[n] = false, false, 0
	s.count--
	for r := range s.allocatable {
		s.allocatable[r][n] = 0
	}
	for _, c := range s.columns {
		c.set(n, "", false)
	}
	s.enterDomains(n)
	s.changed(n)
	s.release(n)
}

// release gives a node's number free when nothing speaks of the node any more.
func (s *Snapshot) release(n int32) {
	nd := &s.nodes[n]
	if nd.object == nil && len(nd.pods) == 0 && len(s.nominated[n]) == 0 && nd.csi == nil {
		delete(s.nodeNumber, nd.name)
		s.nodes[n] = node{}
		s.served[n] = 0
		s.free = append(s.free, n)
	}
}

func (s *Snapshot) leaveDomains(n int32) {
	for _, p := range s.nodes[n].pods {
		s.countPod(p, -1)
	}
	for _, c := range s.counters {
		c.noteDomain(s, n, -1)
	}
}

func (s *Snapshot) enterDomains(n int32) {
	for _, c := range s.counters {
		c.noteNode(s, n)
	}
	for _, p := range s.nodes[n].pods {
		s.countPod(p, 1)
	}
}

func sameTaint(a, b corev1.Taint) bool {
	return a.Key == b.Key && a.Value == b.Value && a.Effect == b.Effect
}

func sameImage(a, b corev1.ContainerImage) bool {
	return a.SizeBytes == b.SizeBytes && slices.Equal(a.Names, b.Names)
}

func sameLabels(a, b map[string]string) bool {
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

// SetPod takes over a pod that has a node, as it is now. Pods that have ended hold nothing and are forgotten.
func (s *Snapshot) SetPod(info *PodInfo) {
	pod := info.Pod
	old := s.pods[pod.UID]
	if podstate.IsTerminal(pod) || pod.Spec.NodeName == "" {
		if old != nil {
			s.removePod(old)
		}
		return
	}
	if old != nil {
		if s.nodes[old.node].name == pod.Spec.NodeName && sameForNeighbours(old.info, info) {
			old.info, old.assumed = info, false
			return
		}
		s.removePod(old)
	}
	s.addPod(&podEntry{info: info, node: s.number(pod.Spec.NodeName)})
}

// sameForNeighbours reports whether a pod's new state changes nothing the columns know: most updates are of status only.
func sameForNeighbours(old, now *PodInfo) bool {
	a, b := old.Pod, now.Pod
	return (a.DeletionTimestamp == nil) == (b.DeletionTimestamp == nil) && sameRequest(&old.Request, &now.Request) &&
		sameLabels(a.Labels, b.Labels) && slices.Equal(old.ports, now.ports)
}

func sameRequest(a, b *Request) bool {
	return a.MilliCPU == b.MilliCPU && a.Memory == b.Memory && a.Storage == b.Storage && a.AssumedMilliCPU == b.AssumedMilliCPU &&
		a.AssumedMemory == b.AssumedMemory && slices.Equal(a.Extended, b.Extended)
}

// DeletePod forgets a pod.
func (s *Snapshot) DeletePod(uid types.UID) {
	if p := s.pods[uid]; p != nil {
		s.removePod(p)
	}
	s.Nominate(nil, uid, "")
}

// Assume puts a pod on a node before the API server knows of it.
func (s *Snapshot) Assume(info *PodInfo, nodeName string) {
	if old := s.pods[info.Pod.UID]; old != nil {
		s.removePod(old)
	}
	s.Nominate(nil, info.Pod.UID, "")
	s.addPod(&podEntry{info: info, node: s.number(nodeName), assumed: true})
}

// Forget takes back an assumption. It reports false when the pod is not assumed, because it was confirmed or deleted since.
func (s *Snapshot) Forget(uid types.UID) bool {
	p := s.pods[uid]
	if p == nil || !p.assumed {
		return false
	}
	s.removePod(p)
	return true
}

// Assumed reports whether a pod is assumed to be on a node, and on which.
func (s *Snapshot) Assumed(uid types.UID) (nodeName string, ok bool) {
	if p := s.pods[uid]; p != nil && p.assumed {
		return s.nodes[p.node].name, true
	}
	return "", false
}

// Nominate remembers that a pod waits for room on a node; an empty name ends that.
func (s *Snapshot) Nominate(info *PodInfo, uid types.UID, nodeName string) {
	if old := s.nominatedAt[uid]; old != nil {
		delete(s.nominatedAt, uid)
		s.nominated[old.node] = slices.DeleteFunc(s.nominated[old.node], func(p *podEntry) bool { return p == old })
		if len(s.nominated[old.node]) == 0 {
			delete(s.nominated, old.node)
		}
		s.release(old.node)
	}
	if nodeName == "" || info == nil {
		return
	}
	p := &podEntry{info: info, node: s.number(nodeName)}
	s.nominatedAt[uid] = p
	// The terms the pod carries are known from now on, so that it can be tried on the node without making new ones.
	s.hold(p, 1)
	s.hold(p, -1)
	s.nominated[p.node] = append(s.nominated[p.node], p)
}

// addPod counts a pod into the columns.
func (s *Snapshot) addPod(p *podEntry) {
	nd := &s.nodes[p.node]
	p.place = len(nd.pods)
	nd.pods = append(nd.pods, p)
	pod := p.info.Pod
	s.pods[pod.UID] = p
	p.inSpace = len(s.byNamespace[pod.Namespace])
	s.byNamespace[pod.Namespace] = append(s.byNamespace[pod.Namespace], p)
	s.request(p, 1)
	nd.ports = append(nd.ports, p.info.ports...)
	s.useClaims(p.info, 1)

	p.counted = p.counted[:0]
	s.counterIndex.candidates(pod, func(c *counter) {
		if c.takes(s, pod) {
			p.counted = append(p.counted, c)
		}
	})
	s.countPod(p, 1)
	s.services++
	s.served[p.node] = s.services
	s.changed(p.node)
}

// removePod counts a pod out of the columns.
func (s *Snapshot) removePod(p *podEntry) {
	nd := &s.nodes[p.node]
	last := nd.pods[len(nd.pods)-1]
	nd.pods[p.place], last.place = last, p.place
	nd.pods[len(nd.pods)-1] = nil
	nd.pods = nd.pods[:len(nd.pods)-1]
	pod := p.info.Pod
	delete(s.pods, pod.UID)
	space := s.byNamespace[pod.Namespace]
	last = space[len(space)-1]
	space[p.inSpace], last.inSpace = last, p.inSpace
	space[len(space)-1] = nil
	if s.byNamespace[pod.Namespace] = space[:len(space)-1]; len(space) == 1 {
		delete(s.byNamespace, pod.Namespace)
	}
	s.request(p, -1)
	for _, port := range p.info.ports {
		if i := slices.Index(nd.ports, port); i >= 0 {
			nd.ports = slices.Delete(nd.ports, i, i+1)
		}
	}
	s.useClaims(p.info, -1)
	s.countPod(p, -1)
	s.changed(p.node)
	s.release(p.node)
}

func (s *Snapshot) request(p *podEntry, sign int64) {
	r, n := &p.info.Request, p.node
	s.requested[cpu][n] += sign * r.MilliCPU
	s.requested[memory][n] += sign * r.Memory
	s.requested[storage][n] += sign * r.Storage
	s.requested[pods][n] += sign
	s.assumed[cpu][n] += sign * r.AssumedMilliCPU
	s.assumed[memory][n] += sign * r.AssumedMemory
	for _, a := range r.Extended {
		i := s.resource(a.Resource)
		s.requested[i][n] += sign * a.Value
	}
}

func (s *Snapshot) countPod(p *podEntry, delta int32) {
	for _, c := range p.counted {
		c.add(p.node, delta)
	}
	s.hold(p, delta)
}

func (s *Snapshot) useClaims(info *PodInfo, delta int) {
	if !info.hasVolumes {
		return
	}
	for i := range info.Pod.Spec.Volumes {
		if claim := info.Pod.Spec.Volumes[i].PersistentVolumeClaim; claim != nil {
			key := info.Pod.Namespace + "/" + claim.ClaimName
			if s.claimUsers[key] += delta; s.claimUsers[key] <= 0 {
				delete(s.claimUsers, key)
			}
		}
	}
}

// SetNamespace takes over the labels of a namespace.
func (s *Snapshot) SetNamespace(namespace *corev1.Namespace) {
	if old, ok := s.namespaces[namespace.Name]; !ok || !sameLabels(old, namespace.Labels) {
		s.neighbourVersion++
	}
	s.namespaces[namespace.Name] = namespace.Labels
}

// DeleteNamespace forgets a namespace.
func (s *Snapshot) DeleteNamespace(name string) {
	delete(s.namespaces, name)
	s.neighbourVersion++
}

func priorityOf(pod *corev1.Pod) int32 { return corev1helpers.PodPriority(pod) }
