// Package assignments compares the CPUs and the memory that skiff's kubelet assigns to containers with those of upstream's CPU manager, memory manager
// and topology manager, in one process, on random hosts with random sequences of pods. Admission results, assignments and checkpoint files must be the
// same, and each must be able to continue from the other's checkpoints.
package assignments

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	cadvisor "github.com/google/cadvisor/lib/model"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
	internalconfig "k8s.io/kubernetes/pkg/kubelet/apis/config"
	"k8s.io/kubernetes/pkg/kubelet/cm/containermap"
	"k8s.io/kubernetes/pkg/kubelet/cm/cpumanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/memorymanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager/bitmask"
	"k8s.io/kubernetes/pkg/kubelet/lifecycle"
	"k8s.io/utils/cpuset"

	"skiff/internal/kubelet/alignment"
	"skiff/internal/kubelet/cpus"
	"skiff/internal/kubelet/memory"
	"skiff/internal/kubelet/topology"
)

// scenario is a host and the configuration of its kubelet.
type scenario struct {
	random    *rand.Rand
	nodes     []cadvisor.Node
	numCPUs   int
	sockets   int
	reserved  cpuset.CPUSet
	cpuPolicy string
	options   map[string]string
	policy    string
	scope     string
	alignment map[string]string
	memory    []internalconfig.MemoryReservation
	reserves  corev1.ResourceList

	mu   sync.Mutex
	pods []*corev1.Pod // the active ones
}

// active returns the active pods; setActive replaces them.
func (s *scenario) active() []*corev1.Pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pods
}

func (s *scenario) setActive(pods []*corev1.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pods = pods
}

// pick returns one of some values.
func pick[T any](r *rand.Rand, values ...T) T { return values[r.IntN(len(values))] }

// newHost makes a random host: sockets with one or several NUMA nodes, or NUMA nodes with several sockets.
func (s *scenario) newHost() {
	r := s.random
	s.sockets = pick(r, 1, 2, 2, 4)
	perSocket, threads, cores := pick(r, 1, 1, 2), pick(r, 1, 2, 2), pick(r, 2, 3, 4)
	numNodes := min(s.sockets*perSocket, 4)
	if s.sockets == 4 {
		numNodes = pick(r, 2, 4)
	}
	totalCores := cores * max(s.sockets, numNodes)
	caches := pick(r, 1, 1, 2)
	interleaved := r.IntN(2) == 0
	for id := range numNodes {
		distances := []uint64{}
		for other := range numNodes {
			distances = append(distances, uint64(10+10*min(abs(id-other), 3)))
		}
		s.nodes = append(s.nodes, cadvisor.Node{
			Id: id, Memory: 8 << 30, Distances: distances, HugePages: []cadvisor.HugePagesInfo{{PageSize: 2048, NumPages: 512}},
		})
	}
	for core := range totalCores {
		node := core * numNodes / totalCores
		socket := core * s.sockets / totalCores
		c := cadvisor.Core{Id: core, SocketID: socket}
		for thread := range threads {
			id := core*threads + thread
			if interleaved {
				id = core + thread*totalCores
			}
			c.Threads = append(c.Threads, id)
		}
		if caches > 1 {
			c.UncoreCaches = []cadvisor.Cache{{Id: core * max(s.sockets, numNodes) * caches / totalCores, Level: 3}}
		}
		s.nodes[node].Cores = append(s.nodes[node].Cores, c)
	}
	s.numCPUs = totalCores * threads
}

func abs(n int) int { return max(n, -n) }

// newScenario makes a random host with a random configuration.
func newScenario(seed uint64) *scenario {
	s := &scenario{random: rand.New(rand.NewPCG(seed, 7)), options: map[string]string{}, alignment: map[string]string{}, reserves: corev1.ResourceList{}}
	r := s.random
	s.newHost()
	s.cpuPolicy = pick(r, "static", "static", "static", "none")
	s.policy = pick(r, "none", "best-effort", "restricted", "single-numa-node")
	s.scope = pick(r, "container", "pod")
	if r.IntN(3) == 0 {
		s.alignment["prefer-closest-numa-nodes"] = "true"
	}
	s.reserves[corev1.ResourceCPU] = *resource.NewMilliQuantity(int64(pick(r, 500, 1000, 2000)), resource.DecimalSI)
	if r.IntN(2) == 0 {
		number := int((s.reserves.Cpu().MilliValue() + 999) / 1000)
		s.reserved = cpuset.New(r.Perm(s.numCPUs)[:number]...)
	}
	if s.cpuPolicy == "static" {
		s.chooseOptions()
	}
	total := int64(0)
	for _, node := range s.nodes {
		amount := int64(256+r.IntN(256)) << 20
		s.memory = append(s.memory, internalconfig.MemoryReservation{NumaNode: int32(node.Id), Limits: corev1.ResourceList{corev1.ResourceMemory: *resource.NewQuantity(amount, resource.BinarySI)}})
		total += amount
	}
	s.reserves[corev1.ResourceMemory] = *resource.NewQuantity(total, resource.BinarySI)
	return s
}

// chooseOptions chooses options of the static policy that do not exclude each other.
func (s *scenario) chooseOptions() {
	switch r := s.random; r.IntN(6) {
	case 0:
		s.options["distribute-cpus-across-numa"] = "true"
		if r.IntN(2) == 0 {
			s.options["full-pcpus-only"] = "true"
		}
		if s.policy != "single-numa-node" && s.sockets <= len(s.nodes) && r.IntN(2) == 0 {
			s.options["align-by-socket"] = "true"
		}
	case 1:
		s.options["distribute-cpus-across-cores"] = "true"
	case 2:
		s.options["prefer-align-cpus-by-uncorecache"] = "true"
		if r.IntN(2) == 0 {
			s.options["full-pcpus-only"] = "true"
		}
	case 3:
		s.options["full-pcpus-only"] = "true"
		if s.policy != "single-numa-node" && s.sockets <= len(s.nodes) {
			s.options["align-by-socket"] = "true"
		}
	case 4:
		s.options["strict-cpu-reservation"] = "true"
	}
}

// pod makes a random pod, most often a guaranteed one.
func (s *scenario) pod(number int) *corev1.Pod {
	r := s.random
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p" + strconv.Itoa(number), Namespace: "default", UID: types.UID(fmt.Sprintf("uid-%d", number))}}
	guaranteed := r.IntN(5) > 0
	add := func(list *[]corev1.Container, prefix string, number int) {
		for i := range number {
			cpu := pick(r, "1", "1", "2", "2", "3", "4", "500m", strconv.Itoa(1+r.IntN(s.numCPUs)))
			limits := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: *resource.NewQuantity(int64(1+r.IntN(4000))<<20, resource.BinarySI)}
			if r.IntN(4) == 0 {
				limits["hugepages-2Mi"] = *resource.NewQuantity(int64(1+r.IntN(300))<<21, resource.BinarySI)
			}
			c := corev1.Container{Name: prefix + strconv.Itoa(i), Resources: corev1.ResourceRequirements{Limits: limits, Requests: limits.DeepCopy()}}
			if !guaranteed {
				delete(c.Resources.Limits, corev1.ResourceCPU)
			}
			if prefix == "init" && r.IntN(3) == 0 {
				always := corev1.ContainerRestartPolicyAlways
				c.RestartPolicy = &always
			}
			*list = append(*list, c)
		}
	}
	add(&pod.Spec.InitContainers, "init", max(r.IntN(4)-1, 0))
	add(&pod.Spec.Containers, "c", 1+r.IntN(2))
	return pod
}

// sources say whether all pods are known: not in the first sync of upstream's CPU manager, which is not in order with the rest.
type sources struct {
	first chan struct{}
	ready atomic.Bool
}

func (*sources) AddSource(string) {}
func (s *sources) AllReady() bool {
	if !s.ready.Load() {
		s.first <- struct{}{}
		return false
	}
	return true
}

// noStatus has no status of pods, so that nothing is updated in the runtime.
type noStatus struct{}

func (noStatus) GetPodStatus(types.UID) (corev1.PodStatus, bool) { return corev1.PodStatus{}, false }
func (noStatus) UpdateContainerResources(context.Context, string, *runtimeapi.ContainerResources) error {
	return nil
}

// otherHints are the hints of a provider that both sides have, such as one of devices.
type otherHints map[string][]alignment.Hint

func (h otherHints) Hints(_ *corev1.Pod, c *corev1.Container) alignment.Hints {
	if list, ok := h[c.Name]; ok {
		return alignment.Hints{"example.com/device": list}
	}
	return nil
}
func (h otherHints) PodHints(*corev1.Pod) alignment.Hints {
	return h.Hints(nil, &corev1.Container{Name: "c0"})
}
func (h otherHints) Allocate(context.Context, *corev1.Pod, *corev1.Container, alignment.Hint) error {
	return nil
}

// upstreamHints converts otherHints for upstream.
type upstreamHints struct{ hints *otherHints }

func (u upstreamHints) GetTopologyHints(_ klog.Logger, pod *corev1.Pod, c *corev1.Container, _ lifecycle.Operation) map[string][]topologymanager.TopologyHint {
	return u.convert(u.hints.Hints(pod, c))
}
func (u upstreamHints) GetPodTopologyHints(_ klog.Logger, pod *corev1.Pod, _ lifecycle.Operation) map[string][]topologymanager.TopologyHint {
	return u.convert(u.hints.PodHints(pod))
}
func (upstreamHints) AllocatePod(klog.Logger, *corev1.Pod, lifecycle.Operation) error { return nil }
func (upstreamHints) Allocate(context.Context, *corev1.Pod, *corev1.Container, lifecycle.Operation) error {
	return nil
}
func (upstreamHints) convert(all alignment.Hints) map[string][]topologymanager.TopologyHint {
	if all == nil {
		return nil
	}
	converted := map[string][]topologymanager.TopologyHint{}
	for name, list := range all {
		if list != nil {
			converted[name] = []topologymanager.TopologyHint{}
		}
		for _, h := range list {
			mask, err := bitmask.NewBitMask(h.Nodes.Nodes()...)
			if err != nil {
				panic(err)
			}
			converted[name] = append(converted[name], topologymanager.TopologyHint{NUMANodeAffinity: mask, Preferred: h.Preferred})
		}
	}
	return converted
}

// upstreamSide are upstream's managers.
type upstreamSide struct {
	cpus     cpumanager.Manager
	memory   memorymanager.Manager
	topology topologymanager.Manager
}

func (s *scenario) upstream(ctx context.Context, dir string, hints *otherHints) (*upstreamSide, error) {
	logger := klog.FromContext(ctx)
	u := &upstreamSide{}
	host := &cadvisor.MachineInfo{NumCores: s.numCPUs, NumSockets: s.sockets, Topology: s.nodes}
	var err error
	if u.topology, err = topologymanager.NewManager(logger, s.nodes, s.policy, s.scope, s.alignment); err != nil {
		return nil, err
	}
	u.topology.AddHintProvider(logger, upstreamHints{hints})
	if u.cpus, err = cpumanager.NewManager(logger, s.cpuPolicy, s.options, time.Hour, host, s.reserved, s.reserves, dir, u.topology); err != nil {
		return nil, err
	}
	u.topology.AddHintProvider(logger, u.cpus)
	if u.memory, err = memorymanager.NewManager(logger, "Static", host, s.reserves, s.memory, dir, u.topology); err != nil {
		return nil, err
	}
	u.topology.AddHintProvider(logger, u.memory)
	known := &sources{first: make(chan struct{})}
	if err := u.cpus.Start(ctx, s.active, known, noStatus{}, noStatus{}, containermap.NewContainerMap()); err != nil {
		return nil, err
	}
	if s.cpuPolicy == "static" {
		<-known.first
	}
	known.ready.Store(true)
	return u, u.memory.Start(ctx, s.active, known, noStatus{}, noStatus{}, containermap.NewContainerMap())
}

// skiffSide are skiff's.
type skiffSide struct {
	cpus      *cpus.CPUs
	memory    *memory.Memory
	admission *alignment.Admission
}

func (s *scenario) skiff(dir string, hints *otherHints) (*skiffSide, error) {
	host := s.topology()
	options, err := cpus.ParseOptions(s.options, cpus.Gates{AlphaOptions: true, BetaOptions: true})
	if err != nil {
		return nil, err
	}
	o := &skiffSide{}
	active := func() ([]*corev1.Pod, bool) { return s.active(), true }
	log := slog.New(slog.DiscardHandler)
	if o.cpus, err = cpus.New(cpus.Options{
		Policy: s.cpuPolicy, StaticOptions: options, Topology: host, Alignment: s.policy, Reserved: s.reserved, ReservedAmount: s.reserves[corev1.ResourceCPU],
		Dir: dir, ActivePods: active, Log: log,
	}); err != nil {
		return nil, err
	}
	var reserved []kubeletconfig.MemoryReservation
	for _, r := range s.memory {
		reserved = append(reserved, kubeletconfig.MemoryReservation{NumaNode: r.NumaNode, Limits: r.Limits})
	}
	if o.memory, err = memory.New(memory.Options{
		Policy: memory.Static, NUMANodes: host.NUMANodes, Reserved: reserved, NodeReserved: s.reserves, Dir: dir, ActivePods: active, Log: log,
	}); err != nil {
		return nil, err
	}
	policyOptions, err := alignment.ParseOptions(s.alignment)
	if err != nil {
		return nil, err
	}
	policy, err := alignment.NewPolicy(s.policy, policyOptions, host.NUMANodes)
	if err != nil {
		return nil, err
	}
	o.admission = &alignment.Admission{Policy: policy, Scope: s.scope, Providers: []alignment.Provider{sharedHints{hints}, o.cpus, o.memory}}
	return o, nil
}

// sharedHints are hints that change for each pod.
type sharedHints struct{ *otherHints }

// topology converts the host.
func (s *scenario) topology() *topology.Topology {
	all := map[int]topology.CPU{}
	var nodes []topology.NUMANode
	for _, node := range s.nodes {
		converted := topology.NUMANode{ID: node.Id, Memory: node.Memory, Distances: node.Distances}
		for _, pages := range node.HugePages {
			converted.HugePages = append(converted.HugePages, topology.HugePages{PageSize: pages.PageSize * 1024, Count: pages.NumPages})
		}
		nodes = append(nodes, converted)
		for _, core := range node.Cores {
			cache := core.SocketID
			if len(core.UncoreCaches) > 0 {
				cache = core.UncoreCaches[0].Id
			}
			for _, id := range core.Threads {
				all[id] = topology.CPU{NUMANode: node.Id, Socket: core.SocketID, Core: slices.Min(core.Threads), UncoreCache: cache}
			}
		}
	}
	return topology.New(all, nodes)
}

// randomHints makes the hints of a device for some containers of the next pod.
func (s *scenario) randomHints() otherHints {
	hints := otherHints{}
	for _, name := range []string{"init0", "c0", "c1"} {
		if s.random.IntN(4) > 0 {
			continue
		}
		list := []alignment.Hint{}
		for range s.random.IntN(4) {
			mask := alignment.Mask(1 + s.random.IntN(1<<len(s.nodes)-1))
			list = append(list, alignment.Hint{Nodes: mask, Preferred: s.random.IntN(2) == 0})
		}
		hints[name] = list
	}
	return hints
}

// outcome describes whether a pod was admitted.
func outcome(admitted bool, reason, message string) string {
	if admitted {
		return "admitted"
	}
	return reason + ": " + message
}

// compare reports differences between what containers have on both sides.
func (s *scenario) compare(t *testing.T, pod *corev1.Pod, u *upstreamSide, o *skiffSide) {
	t.Helper()
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		if want, got := u.cpus.GetCPUAffinity(string(pod.UID), c.Name), o.cpus.Of(pod.UID, c.Name); want.String() != got.String() {
			t.Errorf("%s/%s may use CPUs %q, upstream's %q", pod.Name, c.Name, got, want)
		}
		var want []memory.Block
		for _, b := range u.memory.GetMemory(logr.Discard(), string(pod.UID), c.Name) {
			want = append(want, memory.Block{NUMANodes: b.NUMAAffinity, Type: b.Type, Size: b.Size})
		}
		got := o.memory.Blocks(pod.UID, c.Name)
		for _, list := range [][]memory.Block{got, want} {
			slices.SortFunc(list, func(a, b memory.Block) int { return strings.Compare(string(a.Type), string(b.Type)) })
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s/%s has memory %v, upstream's %v", pod.Name, c.Name, got, want)
		}
	}
}

func TestAssignments(t *testing.T) {
	if err := utilfeature.DefaultMutableFeatureGate.Set("CPUManagerPolicyAlphaOptions=true"); err != nil {
		t.Fatal(err)
	}
	admitted, rejected := 0, map[string]int{}
	for seed := range uint64(200) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) { runScenario(t, newScenario(seed), &admitted, rejected) })
	}
	if admitted < 200 || rejected["TopologyAffinityError"] < 10 || rejected["SMTAlignmentError"] < 10 || rejected["UnexpectedAdmissionError"] < 50 {
		t.Errorf("%d pods were admitted, rejected for %v: the scenarios are not diverse", admitted, rejected)
	}
}

func runScenario(t *testing.T, s *scenario, admitted *int, rejected map[string]int) {
	ctx := klog.NewContext(t.Context(), logr.Discard())
	theirs, ours := t.TempDir(), t.TempDir()
	hints := &otherHints{}
	u, upstreamErr := s.upstream(ctx, theirs, hints)
	o, err := s.skiff(ours, hints)
	if (err != nil) != (upstreamErr != nil) {
		t.Fatalf("error %v, upstream's %v", err, upstreamErr)
	}
	if err != nil {
		return
	}
	for number := range 12 {
		if before := s.active(); s.random.IntN(4) == 0 && len(before) > 0 {
			i := s.random.IntN(len(before))
			s.setActive(slices.Delete(slices.Clone(before), i, i+1))
		}
		pod := s.pod(number)
		*hints = s.randomHints()
		before := s.active()
		s.setActive(append(slices.Clone(before), pod))
		result := u.topology.Admit(ctx, &lifecycle.PodAdmitAttributes{Pod: pod, Operation: lifecycle.AddOperation})
		want, got := outcome(result.Admit, result.Reason, result.Message), "admitted"
		if err := o.admission.Allocate(ctx, pod); err != nil {
			reason, message := alignment.AdmissionFailure(err)
			got = outcome(false, reason, message)
		}
		if got != want {
			t.Fatalf("pod %d: %s, upstream's result is %s\npolicy %s %s %v, options %v, reserved %q", number, got, want, s.policy, s.scope, s.alignment, s.options, s.reserved)
		}
		s.compare(t, pod, u, o)
		if t.Failed() {
			t.Fatalf("pod %d of policy %s %s %v, options %v, reserved %q, hints %v", number, s.policy, s.scope, s.alignment, s.options, s.reserved, *hints)
		}
		if !result.Admit {
			rejected[result.Reason]++
			s.setActive(before)
			continue
		}
		*admitted++
	}
	s.compareCheckpoints(ctx, t, theirs, ours)
}

// restartUpstream starts upstream's managers with checkpoints. They compute the expected state in the random order of a map, which decides in rare
// cases whether they accept it, so they are started several times.
func (s *scenario) restartUpstream(ctx context.Context, dir string, hints *otherHints) (started *upstreamSide, err error) {
	for range 20 {
		if started, err = s.upstream(ctx, dir, hints); err == nil || !strings.Contains(err.Error(), "expected machine state") {
			break
		}
	}
	return started, err
}

// compareCheckpoints compares the files, and lets each side continue from the other's.
func (s *scenario) compareCheckpoints(ctx context.Context, t *testing.T, theirs, ours string) {
	t.Helper()
	// Both sides forget rejected and removed pods at the next request.
	hints := &otherHints{}
	u, err := s.restartUpstream(ctx, ours, hints)
	if err != nil && strings.Contains(err.Error(), "default cpuset cannot be empty") && s.options["strict-cpu-reservation"] != "" {
		return // upstream's kubelet cannot restart when all CPUs that are not reserved are exclusive
	}
	if err != nil {
		if _, own := s.restartUpstream(ctx, theirs, hints); own != nil {
			t.Logf("upstream does not start with its own checkpoints either: %v", own)
			return
		}
		t.Fatalf("upstream does not start with skiff's checkpoints: %v", err)
	}
	o, err := s.skiff(theirs, hints)
	if err != nil {
		t.Fatalf("skiff does not start with upstream's checkpoints: %v", err)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "last", UID: "last"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{
		Limits:   corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("1Mi")},
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("1Mi")},
	}}}}}
	s.setActive(append(slices.Clone(s.active()), pod))
	u.topology.Admit(ctx, &lifecycle.PodAdmitAttributes{Pod: pod, Operation: lifecycle.AddOperation})
	if err := o.admission.Allocate(ctx, pod); err != nil {
		t.Log(err)
	}
	for _, pod := range s.active() {
		s.compare(t, pod, u, o)
	}
	for _, name := range []string{"cpu_manager_state", "memory_manager_state"} {
		if want, got := readCheckpoint(t, filepath.Join(ours, name)), readCheckpoint(t, filepath.Join(theirs, name)); !reflect.DeepEqual(got, want) {
			t.Errorf("%s is\n%v\nupstream writes\n%v", name, got, want)
		}
	}
}

// readCheckpoint reads a checkpoint. Upstream writes the blocks of a container in random order, so the checksum of a file with several is not compared.
func readCheckpoint(t *testing.T, path string) map[string]any {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	file := map[string]any{}
	if err := json.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	if sortBlocks(file) {
		delete(file, "data")
		delete(file, "checksum")
		delete(file, "dataChecksum")
	}
	return file
}

// sortBlocks sorts the lists of blocks in a checkpoint of memory, and reports whether one has several.
func sortBlocks(value any) (several bool) {
	switch v := value.(type) {
	case map[string]any:
		for _, item := range v {
			several = sortBlocks(item) || several
		}
	case []any:
		if len(v) > 1 {
			if _, isBlock := v[0].(map[string]any); isBlock {
				several = true
				slices.SortFunc(v, func(a, b any) int {
					return strings.Compare(fmt.Sprint(a.(map[string]any)["type"]), fmt.Sprint(b.(map[string]any)["type"]))
				})
			}
		}
	}
	return several
}
