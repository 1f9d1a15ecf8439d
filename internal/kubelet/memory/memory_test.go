package memory

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"

	"skiff/internal/kubelet/alignment"
	"skiff/internal/kubelet/alignment/alignmenttest"
	"skiff/internal/kubelet/topology"
)

const (
	mega  = 1 << 20
	pages = corev1.ResourceName("hugepages-2Mi")
)

// node is a node whose pods a test sets.
type node struct {
	*Memory
	alignmenttest.Pods
}

func list(memory, hugePages string) corev1.ResourceList {
	l := corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(memory)}
	if hugePages != "" {
		l[pages] = resource.MustParse(hugePages)
	}
	return l
}

// options are those of a host with NUMA nodes of 1100Mi, of which 100Mi are reserved and 100Mi are huge pages.
func options(dir string, nodes int) Options {
	o := Options{Policy: Static, NodeReserved: list(fmt.Sprintf("%dMi", 100*nodes), ""), Dir: dir, Log: slog.New(slog.DiscardHandler)}
	for id := range nodes {
		o.NUMANodes = append(o.NUMANodes, topology.NUMANode{ID: id, Memory: 1200 * mega, HugePages: []topology.HugePages{{PageSize: 2 * mega, Count: 50}}})
		o.Reserved = append(o.Reserved, kubeletconfig.MemoryReservation{NumaNode: int32(id), Limits: list("100Mi", "")})
	}
	return o
}

func tryStart(o Options) (*node, error) {
	n := &node{}
	o.ActivePods = n.Active
	var err error
	n.Memory, err = New(o)
	return n, err
}

func start(t *testing.T, o Options) *node {
	t.Helper()
	n, err := tryStart(o)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func (n *node) admit(p *corev1.Pod, hint alignment.Hint) error { return n.Admit(n, p, hint) }

func requesting(name, memory, hugePages string) corev1.Container {
	l := list(memory, hugePages)
	l[corev1.ResourceCPU] = resource.MustParse("1")
	return alignmenttest.Container(name, l)
}

// The builders of pods.
var sidecar, pod, withInit = alignmenttest.Sidecar, alignmenttest.Pod, alignmenttest.WithInit

// describe formats the memory of a pod's containers in Mi.
func (n *node) describe(p *corev1.Pod) string {
	var words []string
	for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
		word := c.Name + "@" + n.NUMANodes(p.UID, c.Name).String()
		for _, b := range n.Blocks(p.UID, c.Name) {
			word += fmt.Sprintf(":%d", b.Size/mega)
		}
		words = append(words, word)
	}
	return strings.Join(words, " ")
}

// free formats the free memory of each NUMA node in Mi.
func (n *node) free() string {
	var words []string
	for id := range len(n.host) {
		words = append(words, fmt.Sprint(n.host[id].MemoryMap[corev1.ResourceMemory].Free/mega))
	}
	return strings.Join(words, " ")
}

func TestAllocate(t *testing.T) {
	burstable := pod("p", requesting("c", "100Mi", ""))
	burstable.Spec.Containers[0].Resources.Limits = nil
	for _, row := range []struct {
		name       string
		before     *corev1.Pod
		pod        *corev1.Pod
		hint       alignment.Hint
		want, free string
		failure    string
	}{
		{name: "the first NUMA node", pod: pod("p", requesting("c", "600Mi", "")), want: "c@0:600", free: "400 1000"},
		{name: "burstable", pod: burstable, want: "c@", free: "1000 1000"},
		{name: "the one that has enough", before: pod("b", requesting("c", "600Mi", "")), pod: pod("p", requesting("c", "600Mi", "")), want: "c@1:600", free: "400 400"},
		{name: "both", pod: pod("p", requesting("c", "1500Mi", "")), want: "c@0,1:1500", free: "0 500"},
		{name: "huge pages", pod: pod("p", requesting("c", "100Mi", "100Mi")), want: "c@0:100:100", free: "900 1000"},
		{name: "huge pages of both", pod: pod("p", requesting("c", "100Mi", "120Mi")), want: "c@0,1:120:100", free: "900 1000"},
		{name: "the hint", pod: pod("p", requesting("c", "600Mi", "")), hint: alignment.Hint{Nodes: 2, Preferred: true}, want: "c@1:600", free: "1000 400"},
		{name: "more than the hint", pod: pod("p", requesting("c", "1500Mi", "")), hint: alignment.Hint{Nodes: 2}, want: "c@0,1:1500", free: "0 500"},
		{
			name: "init container", pod: withInit(pod("p", requesting("c", "500Mi", "")), requesting("i", "600Mi", "")), want: "i@0:100 c@0:500", free: "400 1000",
		},
		{
			name: "sidecar", pod: withInit(pod("p", requesting("c", "500Mi", "")), sidecar(requesting("s", "300Mi", ""))), want: "s@0:300 c@0:500", free: "200 1000",
		},
		{
			name: "a NUMA node that is used alone is not used with another", before: pod("b", requesting("c", "600Mi", "")), pod: pod("p", requesting("c", "1300Mi", "")),
			failure: "[memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough memory is available",
		},
		{
			name: "nor one that is used with another alone", before: pod("b", requesting("c", "1300Mi", "")), pod: pod("p", requesting("c", "100Mi", "")), want: "c@0,1:100", free: "0 600",
		},
		{
			name: "too much", pod: pod("p", requesting("c", "3Gi", "")),
			failure: "[memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough memory is available",
		},
		{
			name: "a preferred hint that must not be extended", before: pod("b", requesting("c", "600Mi", "")), pod: pod("p", requesting("c", "600Mi", "")), hint: alignment.Hint{Nodes: 1, Preferred: true},
			failure: "[memorymanager] failed to find NUMA nodes to extend the current topology hint",
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			n := start(t, options(t.TempDir(), 2))
			if row.before != nil {
				if err := n.admit(row.before, alignment.Hint{}); err != nil {
					t.Fatal(err)
				}
			}
			err := n.admit(row.pod, row.hint)
			if row.failure != "" {
				if err == nil || err.Error() != row.failure {
					t.Errorf("error %v, want %s", err, row.failure)
				}
				return
			}
			if got := n.describe(row.pod); err != nil || got != row.want || n.free() != row.free {
				t.Errorf("memory %s, free %s, error %v, want %s and %s", got, n.free(), err, row.want, row.free)
			}
			if err := n.admit(row.pod, row.hint); err != nil || n.describe(row.pod) != row.want || n.free() != row.free {
				t.Errorf("memory %s, free %s after another admission, error %v", n.describe(row.pod), n.free(), err)
			}
		})
	}
}

func TestHints(t *testing.T) {
	n := start(t, options(t.TempDir(), 2))
	hints := func(h alignment.Hints) string {
		if len(h) == 0 {
			return "no preference"
		}
		var words []string
		for _, hint := range h[string(corev1.ResourceMemory)] {
			words = append(words, fmt.Sprintf("%s:%v", hint.Nodes, hint.Preferred))
		}
		return strings.Join(words, " ")
	}
	for amount, want := range map[string]string{"500Mi": "0:true 1:true 0,1:false", "1500Mi": "0,1:true", "3Gi": "no preference"} {
		p := pod("p", requesting("c", amount, ""))
		if got := hints(n.Hints(p, &p.Spec.Containers[0])); got != want {
			t.Errorf("hints for %s: %s, want %s", amount, got, want)
		}
		if got := hints(n.PodHints(p)); got != want {
			t.Errorf("hints for a pod with %s: %s, want %s", amount, got, want)
		}
	}
	p := pod("p", requesting("c", "500Mi", ""))
	if err := n.admit(p, alignment.Hint{Nodes: 2}); err != nil {
		t.Fatal(err)
	}
	if got := hints(n.Hints(p, &p.Spec.Containers[0])); got != "1:true" {
		t.Errorf("hints for a container that has its memory: %s", got)
	}
	q := pod("q", requesting("c", "500Mi", ""))
	if got := hints(n.Hints(q, &q.Spec.Containers[0])); got != "0:true 1:true" {
		t.Errorf("hints besides a container on the second NUMA node: %s", got)
	}
	changed := pod("p", requesting("c", "600Mi", ""))
	if got := hints(n.Hints(changed, &changed.Spec.Containers[0])); got != "no preference" {
		t.Errorf("hints for a container that requests more than it has: %s", got)
	}
}

// TestAllocateAndRelease admits and removes random pods. When all are removed, all memory is free; a restart at any time accepts the state.
func TestAllocateAndRelease(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for range 4 {
		o := options(t.TempDir(), 3)
		n := start(t, o)
		initial := n.Allocatable()
		for i := range 20 {
			if r.IntN(3) == 0 && len(n.List()) > 0 {
				gone := r.IntN(len(n.List()))
				n.Set(slices.Delete(slices.Clone(n.List()), gone, gone+1)...)
			}
			p := pod(fmt.Sprint("p", i), requesting("a", fmt.Sprintf("%dMi", 1+r.IntN(1500)), ""), requesting("b", "10Mi", fmt.Sprintf("%dMi", 2+2*r.IntN(40))))
			if r.IntN(2) == 0 {
				withInit(p, requesting("i", fmt.Sprintf("%dMi", 1+r.IntN(900)), ""), sidecar(requesting("s", "20Mi", "")))
			}
			if err := n.admit(p, alignment.Hint{}); err != nil {
				n.Set(n.List()[:len(n.List())-1]...)
				n.releaseRemoved()
			}
			if r.IntN(3) == 0 && len(n.List()) > 0 {
				started := n.List()[r.IntN(len(n.List()))]
				n.Starting(started, &started.Spec.Containers[0])
			}
			if _, err := tryStart(o); err != nil {
				t.Fatalf("restart after pod %d: %v", i, err)
			}
		}
		n.Set()
		n.releaseRemoved()
		if n.free() != "1000 1000 1000" || !reflect.DeepEqual(n.Allocatable(), initial) || len(n.assigned) != 0 {
			t.Fatalf("free %s after all pods are removed", n.free())
		}
		for id, s := range n.host {
			if s.NumberOfAssignments != 0 || !slices.Equal(s.Cells, []int{id}) {
				t.Fatalf("NUMA node %d has %d assignments in the group %v", id, s.NumberOfAssignments, s.Cells)
			}
		}
	}
}

func TestStarting(t *testing.T) {
	n := start(t, options(t.TempDir(), 2))
	p := withInit(pod("p", requesting("c", "300Mi", "")), requesting("i", "600Mi", ""), sidecar(requesting("s", "100Mi", "")), requesting("j", "200Mi", ""))
	if err := n.admit(p, alignment.Hint{}); err != nil {
		t.Fatal(err)
	}
	n.Starting(p, &p.Spec.InitContainers[0])
	if got := n.NUMANodes("p", "i"); got != 1 {
		t.Errorf("NUMA nodes %s of an init container that starts", got)
	}
	n.Starting(p, &p.Spec.Containers[0])
	if i, j, s, c := n.Blocks("p", "i"), n.Blocks("p", "j"), n.Blocks("p", "s"), n.Blocks("p", "c"); i != nil || j != nil || len(s) != 1 || len(c) != 1 {
		t.Errorf("memory %v and %v of ended init containers, %v of a sidecar, %v of a container", i, j, s, c)
	}
	if n.free() != "600 1000" {
		t.Errorf("free %s", n.free())
	}
}

func TestRemovedPodsAreReleased(t *testing.T) {
	n := start(t, options(t.TempDir(), 1))
	if err := n.admit(pod("gone", requesting("c", "800Mi", "")), alignment.Hint{}); err != nil {
		t.Fatal(err)
	}
	n.Set()
	n.SetIncomplete(true)
	if err := n.admit(pod("next", requesting("c", "800Mi", "")), alignment.Hint{}); err == nil {
		t.Error("memory was taken from a pod that may still be there")
	}
	n.SetIncomplete(false)
	if err := n.admit(pod("next", requesting("c", "800Mi", "")), alignment.Hint{}); err != nil {
		t.Error(err)
	}
}

func TestNewErrors(t *testing.T) {
	for _, row := range []struct {
		name   string
		change func(*Options)
		want   string
	}{
		{"unknown policy", func(o *Options) { o.Policy = "static" }, `unknown policy: "static"`},
		{"unknown NUMA node", func(o *Options) { o.Reserved[1].NumaNode = 5 }, "the reserved memory configuration references a NUMA node 5 that does not exist on this machine"},
		{"another sum", func(o *Options) { o.NodeReserved = list("1Gi", "") }, `the total amount "200Mi" of type "memory" is not equal to the value "1Gi" determined by Node Allocatable feature`},
		{"nothing reserved", func(o *Options) { o.Reserved, o.NodeReserved = nil, nil }, "[memorymanager] you should specify the system reserved memory"},
		{"huge pages reserved", func(o *Options) { o.NodeReserved = list("200Mi", "2Mi") }, `of type "hugepages-2Mi" is not equal to the value "2Mi"`},
		{"more reserved than there is", func(o *Options) { o.NUMANodes[0].Memory = 150 * mega }, "NUMA node 0 has"},
	} {
		t.Run(row.name, func(t *testing.T) {
			o := options(t.TempDir(), 2)
			row.change(&o)
			if _, err := tryStart(o); err == nil || !strings.Contains(err.Error(), row.want) {
				t.Errorf("error %v, want %q", err, row.want)
			}
		})
	}
}

func TestPolicyNone(t *testing.T) {
	o := options(t.TempDir(), 2)
	o.Policy, o.Reserved = None, nil
	n := start(t, o)
	p := pod("p", requesting("c", "9Gi", ""))
	if err := n.admit(p, alignment.Hint{}); err != nil || n.describe(p) != "c@" || n.Hints(p, &p.Spec.Containers[0]) != nil || n.Allocatable() != nil {
		t.Errorf("error %v, memory %s", err, n.describe(p))
	}
	n.Starting(p, &p.Spec.Containers[0])
	o = options(o.Dir, 2)
	want := fmt.Sprintf("could not restore state from checkpoint: [memorymanager] configured policy %q differs from state checkpoint policy %q, please drain this node and delete the memory manager checkpoint file %q before restarting Kubelet",
		"Static", "None", filepath.Join(o.Dir, checkpointName))
	if _, err := tryStart(o); err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
}

// upstreamCheckpoint was written by upstream's kubelet 1.37 with one pod.
const upstreamCheckpoint = `{"policyName":"Static","machineState":{"0":{"numberOfAssignments":1,"memoryMap":{"hugepages-2Mi":{"total":104857600,"systemReserved":0,"allocatable":104857600,"reserved":0,"free":104857600},"memory":{"total":1258291200,"systemReserved":104857600,"allocatable":1048576000,"reserved":314572800,"free":734003200}},"cells":[0]}},"entries":{"p":{"c":[{"numaAffinity":[0],"type":"memory","size":314572800}]}},"checksum":3962877638,"data":"{\"policyName\":\"Static\",\"machineState\":{\"0\":{\"numberOfAssignments\":1,\"memoryMap\":{\"hugepages-2Mi\":{\"total\":104857600,\"systemReserved\":0,\"allocatable\":104857600,\"reserved\":0,\"free\":104857600},\"memory\":{\"total\":1258291200,\"systemReserved\":104857600,\"allocatable\":1048576000,\"reserved\":314572800,\"free\":734003200}},\"cells\":[0]}},\"entries\":{\"p\":{\"c\":[{\"numaAffinity\":[0],\"type\":\"memory\",\"size\":314572800}]}}}","dataChecksum":4219581314}`

const upstreamOldCheckpoint = `{"policyName":"Static","machineState":{"0":{"numberOfAssignments":1,"memoryMap":{"hugepages-2Mi":{"total":104857600,"systemReserved":0,"allocatable":104857600,"reserved":0,"free":104857600},"memory":{"total":1258291200,"systemReserved":104857600,"allocatable":1048576000,"reserved":314572800,"free":734003200}},"cells":[0]}},"entries":{"p":{"c":[{"numaAffinity":[0],"type":"memory","size":314572800}]}},"checksum":3962877638}`

func TestCheckpoint(t *testing.T) {
	for _, row := range []struct{ name, text, want string }{
		{name: "upstream's", text: upstreamCheckpoint},
		{name: "of an older version", text: upstreamOldCheckpoint},
		{name: "with another checksum", text: strings.ReplaceAll(upstreamCheckpoint, "Static", "None"), want: "could not load v3 checkpoint: checkpoint is corrupted, please drain this node and delete the memory manager checkpoint file"},
		{name: "of an older version with another checksum", text: strings.Replace(upstreamOldCheckpoint, `"size":`, `"size":1`, 1), want: "checkpoint is corrupted"},
		{name: "not JSON", text: "{", want: "failed to deserialize memory manager checkpoint"},
		{name: "no state", text: `{"policyName":"Static","machineState":{"0":null}}`, want: "NUMA node 0 has no state"},
		{name: "another host", text: `{"policyName":"Static","machineState":{"0":{"numberOfAssignments":0,"memoryMap":{},"cells":[0]}}}`, want: "[memorymanager] the expected machine state is different from the real one"},
		{name: "a NUMA node that does not exist", text: `{"policyName":"Static","machineState":{"0":{}},"entries":{"p":{"c":[{"numaAffinity":[7],"type":"memory","size":1}]}}}`, want: "(pod: p, container: c) the memory assignment uses the NUMA that does not exist"},
		{name: "memory that does not exist", text: `{"policyName":"Static","machineState":{"0":{}},"entries":{"p":{"c":[{"numaAffinity":[0],"type":"hugepages-1Gi","size":1}]}}}`, want: "(pod: p, container: c) the memory assignment uses memory resource that does not exist"},
		{name: "assignments without state", text: `{"policyName":"Static","machineState":{},"entries":{"p":{"c":[]}}}`, want: "machine state can not be empty when it has memory assignments"},
	} {
		t.Run(row.name, func(t *testing.T) {
			o := options(t.TempDir(), 1)
			file := alignmenttest.Checkpoint{Path: filepath.Join(o.Dir, checkpointName), Text: row.text}
			var n *node
			if !file.Restore(t, row.want, func() (err error) { n, err = tryStart(o); return err }) {
				return
			}
			if got := n.Blocks("p", "c"); !reflect.DeepEqual(got, []Block{{NUMANodes: []int{0}, Type: corev1.ResourceMemory, Size: 300 * mega}}) {
				t.Errorf("memory %v", got)
			}
			file.ExpectText(t, upstreamCheckpoint)
		})
	}
}

// A state is accepted every time, although the order in which its containers were assigned is not known, and refused if it is that of other assignments.
func TestCheckOfState(t *testing.T) {
	newHost := func() hostState {
		s, err := newHostState([]topology.NUMANode{{ID: 0, Memory: 100}, {ID: 1, Memory: 100}, {ID: 2, Memory: 100}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	block := func(size uint64, nodes ...int) Block {
		return Block{NUMANodes: nodes, Type: corev1.ResourceMemory, Size: size}
	}
	// In the other order, the second would find 40 free on the first node.
	first, second, third := block(60, 0), block(60, 0, 1), block(50, 2)
	all := assignments{"a": {"c": {second}}, "b": {"c": {first}}, "c": {"c": {third}}}
	state := func() hostState {
		s := newHost()
		for _, b := range []Block{first, second, third} {
			s.assign(b, b.Size)
		}
		return s
	}
	for range 20 { // the order of a map is random
		if err := state().check(newHost(), all); err != nil {
			t.Fatal(err)
		}
	}
	for name, change := range map[string]func(s hostState){
		"another number of assignments": func(s hostState) { s[0].NumberOfAssignments++ },
		"another group":                 func(s hostState) { s[1].Cells = []int{1, 2} },
		"a group of others":             func(s hostState) { s[2].Cells = []int{0, 1} },
		"other memory":                  func(s hostState) { s[2].MemoryMap[corev1.ResourceMemory].Free-- },
		"another host":                  func(s hostState) { s[2].MemoryMap[corev1.ResourceMemory].Total++ },
	} {
		s := state()
		if change(s); s.check(newHost(), all) == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}
