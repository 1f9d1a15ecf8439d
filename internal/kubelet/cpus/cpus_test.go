package cpus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/cpuset"

	"skiff/internal/kubelet/alignment"
	"skiff/internal/kubelet/alignment/alignmenttest"
)

// node is a node whose pods and containers a test sets.
type node struct {
	*CPUs
	alignmenttest.Pods
	mu      sync.Mutex
	running []Container
	cpus    map[string]string // of running containers, as set by updates
	updates []string
	fail    error
}

// options are those of a host with eight CPUs, two for each of four cores, of which one is reserved.
func options(dir string) Options {
	return Options{
		Policy: Static, Topology: host(1, 1, 4, 2), Reserved: cpuset.New(0), ReservedAmount: resource.MustParse("1"), Dir: dir,
		ReconcilePeriod: 10 * time.Second, Log: slog.New(slog.DiscardHandler),
	}
}

func start(t *testing.T, o Options) *node {
	t.Helper()
	n, err := tryStart(o)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func tryStart(o Options) (*node, error) {
	n := &node{cpus: map[string]string{}}
	o.ActivePods = n.Active
	o.Running = func(context.Context) ([]Container, error) {
		n.mu.Lock()
		defer n.mu.Unlock()
		return slices.Clone(n.running), n.fail
	}
	o.Update = func(_ context.Context, id string, cpus cpuset.CPUSet) error {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.updates = append(n.updates, id+"="+cpus.String())
		n.cpus[id] = cpus.String()
		return n.fail
	}
	var err error
	n.CPUs, err = New(o)
	return n, err
}

// takeUpdates returns the updates since the last call.
func (n *node) takeUpdates() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	updates := strings.Join(n.updates, " ")
	n.updates = nil
	return updates
}

// admit allocates the CPUs of a pod without alignment.
func (n *node) admit(pod *corev1.Pod) error { return n.Admit(n, pod, alignment.Hint{}) }

func requesting(name, cpu string) corev1.Container {
	return alignmenttest.Container(name, corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse("1Mi")})
}

// The builders of pods.
var sidecar, pod, withInit = alignmenttest.Sidecar, alignmenttest.Pod, alignmenttest.WithInit

// describe formats the CPUs of a pod's containers.
func (n *node) describe(p *corev1.Pod) string {
	var words []string
	for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
		words = append(words, c.Name+"="+n.Of(p.UID, c.Name).String())
	}
	return strings.Join(words, " ")
}

func TestAllocate(t *testing.T) {
	burstable := pod("p", requesting("c", "2"))
	burstable.Spec.Containers[0].Resources.Limits = nil
	ofPod := pod("p", requesting("c", "2"))
	ofPod.Spec.Resources = &corev1.ResourceRequirements{Requests: requesting("", "2").Resources.Requests, Limits: requesting("", "2").Resources.Limits}
	for _, row := range []struct {
		name    string
		pod     *corev1.Pod
		options StaticOptions
		want    string
		failure string
	}{
		{name: "whole CPUs", pod: pod("p", requesting("c", "2")), want: "c=2-3"},
		{name: "a fraction", pod: pod("p", requesting("c", "1500m")), want: "c=0-7"},
		{name: "a fraction besides whole CPUs", pod: pod("p", requesting("c", "1"), requesting("d", "500m")), want: "c=1 d=0,2-7"},
		{name: "burstable", pod: burstable, want: "c=0-7"},
		{name: "resources of the pod", pod: ofPod, want: "c=0-7"},
		{name: "init container", pod: withInit(pod("p", requesting("c", "2"), requesting("d", "2")), requesting("i", "2")), want: "i=2-3 c=2-3 d=4-5"},
		{name: "larger init container", pod: withInit(pod("p", requesting("c", "2")), requesting("i", "4")), want: "i=2-5 c=2-3"},
		{name: "sidecar", pod: withInit(pod("p", requesting("c", "2")), sidecar(requesting("s", "2"))), want: "s=2-3 c=4-5"},
		{name: "too many", pod: pod("p", requesting("c", "8")), failure: "UnexpectedAdmissionError: Allocate failed due to not enough cpus available to satisfy request: requested=8, available=7, which is unexpected"},
		{
			name: "part of a core", pod: pod("p", requesting("c", "3")), options: StaticOptions{FullPhysicalCPUs: true},
			failure: "SMTAlignmentError: SMT Alignment Error: requested 3 cpus not multiple cpus per core = 2",
		},
		{
			name: "more than whole cores", pod: pod("p", requesting("c", "8")), options: StaticOptions{FullPhysicalCPUs: true},
			failure: "SMTAlignmentError: SMT Alignment Error: not enough free physical CPUs: available physical CPUs = 6, requested CPUs = 8, CPUs per core = 2",
		},
		{name: "whole cores", pod: pod("p", requesting("c", "2")), options: StaticOptions{FullPhysicalCPUs: true}, want: "c=2-3"},
		{name: "strict reservation", pod: pod("p", requesting("c", "1"), requesting("d", "500m")), options: StaticOptions{StrictReservation: true}, want: "c=1 d=2-7"},
	} {
		t.Run(row.name, func(t *testing.T) {
			o := options(t.TempDir())
			o.StaticOptions = row.options
			n := start(t, o)
			failure := ""
			if err := n.admit(row.pod); err != nil {
				reason, message := alignment.AdmissionFailure(err)
				failure = reason + ": " + message
			}
			if failure != row.failure {
				t.Fatalf("failure %q, want %q", failure, row.failure)
			}
			if got := n.describe(row.pod); failure == "" && got != row.want {
				t.Errorf("CPUs %s, want %s", got, row.want)
			}
			// A second admission, as after a restart, changes nothing.
			if err := n.admit(row.pod); failure == "" && (err != nil || n.describe(row.pod) != row.want) {
				t.Errorf("CPUs %s after another admission, error %v", n.describe(row.pod), err)
			}
		})
	}
}

func TestAllocateFromHint(t *testing.T) {
	o := options(t.TempDir())
	o.Topology = host(2, 1, 2, 2)
	n := start(t, o)
	p := pod("p", requesting("c", "2"), requesting("d", "4"))
	n.Set(p)
	for i := range p.Spec.Containers {
		if err := n.Allocate(t.Context(), p, &p.Spec.Containers[i], alignment.Hint{Nodes: alignment.NewMask(1)}); err != nil {
			t.Fatal(err)
		}
	}
	if got := n.describe(p); got != "c=4-5 d=2-3,6-7" {
		t.Errorf("CPUs %s", got)
	}
}

func TestHints(t *testing.T) {
	o := options(t.TempDir())
	o.Topology = host(2, 1, 2, 2)
	n := start(t, o)
	describe := func(h alignment.Hints) string {
		list, ok := h[string(corev1.ResourceCPU)]
		if !ok {
			return "no preference"
		}
		var words []string
		for _, hint := range list {
			words = append(words, fmt.Sprintf("%s:%v", hint.Nodes, hint.Preferred))
		}
		return strings.Join(words, " ")
	}
	one := func(cpu string) string {
		p := pod("p", requesting("c", cpu))
		return describe(n.Hints(p, &p.Spec.Containers[0]))
	}
	for cpu, want := range map[string]string{"500m": "no preference", "3": "0:true 1:true 0,1:false", "4": "1:true 0,1:false", "6": "0,1:true", "8": ""} {
		if got := one(cpu); got != want {
			t.Errorf("hints for %s CPUs: %s, want %s", cpu, got, want)
		}
	}
	p := withInit(pod("p", requesting("c", "2"), requesting("d", "1")), requesting("i", "2"))
	if got := describe(n.PodHints(p)); got != "0:true 1:true 0,1:false" {
		t.Errorf("hints for a pod: %s", got)
	}
	if err := n.admit(p); err != nil {
		t.Fatal(err)
	}
	// The same CPUs again.
	if got := describe(n.PodHints(p)); got != "0,1:false" && got != "0:true 0,1:false" {
		t.Errorf("hints for a pod with CPUs: %s of %s", got, n.describe(p))
	}
	if got := describe(n.Hints(p, &p.Spec.Containers[0])); !strings.HasPrefix(got, "0:true") {
		t.Errorf("hints for a container with CPUs: %s of %s", got, n.describe(p))
	}
	changed := pod("p", requesting("c", "4"))
	if got := describe(n.Hints(changed, &changed.Spec.Containers[0])); got != "" {
		t.Errorf("hints for a container that requests other CPUs than it has: %s", got)
	}
}

// TestAllocateAndRelease admits and removes random pods. No CPU is ever used twice or lost, and a restart changes nothing.
func TestAllocateAndRelease(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for round := range 8 {
		o := options(t.TempDir())
		o.Topology = host(2, 2, 2, 2)
		o.StaticOptions = []StaticOptions{{}, {StrictReservation: true}, {DistributeAcrossNUMA: true}, {PreferAlignByUncoreCache: true}}[round%4]
		n := start(t, o)
		for i := range 30 {
			if r.IntN(3) == 0 && len(n.List()) > 0 {
				gone := r.IntN(len(n.List()))
				n.Set(slices.Delete(slices.Clone(n.List()), gone, gone+1)...)
			}
			p := pod(fmt.Sprint("p", i), requesting("a", fmt.Sprint(1+r.IntN(4))), requesting("b", "500m"))
			if r.IntN(2) == 0 {
				withInit(p, requesting("i", fmt.Sprint(1+r.IntN(5))), sidecar(requesting("s", "1")))
			}
			if err := n.admit(p); err != nil {
				n.Set(n.List()[:len(n.List())-1]...)
			}
			n.checkInvariants(t)
		}
		before, want := n.List(), maps.Collect(func(yield func(string, string) bool) {
			for _, p := range n.List() {
				yield(p.Name, n.describe(p))
			}
		})
		n = start(t, o)
		n.Set(before...)
		for _, p := range n.List() {
			if got := n.describe(p); got != want[p.Name] {
				t.Errorf("%s has %s after a restart, want %s", p.Name, got, want[p.Name])
			}
		}
	}
}

// checkInvariants checks that every CPU is shared or exclusive to one pod.
func (n *node) checkInvariants(t *testing.T) {
	t.Helper()
	n.CPUs.mu.Lock()
	defer n.CPUs.mu.Unlock()
	owner := map[int]types.UID{}
	for uid, containers := range n.state.exclusive {
		for _, cpus := range containers {
			for _, id := range cpus.List() {
				if other, ok := owner[id]; ok && other != uid || n.state.shared.Contains(id) || n.policy.reserved.Contains(id) {
					t.Fatalf("CPU %d of %s is also used by %q, or shared, or reserved", id, uid, other)
				}
				owner[id] = uid
			}
		}
	}
	if all := n.state.shared.Union(n.state.allExclusive()); !all.Equals(n.policy.usable()) {
		t.Fatalf("CPUs %q are known, %q exist", all, n.policy.usable())
	}
}

func TestRemovedPodsAreReleased(t *testing.T) {
	n := start(t, options(t.TempDir()))
	gone := pod("gone", requesting("c", "6"))
	if err := n.admit(gone); err != nil {
		t.Fatal(err)
	}
	n.SetIncomplete(true)
	next := pod("next", requesting("c", "6"))
	n.Set()
	if err := n.admit(next); err == nil {
		t.Error("CPUs were taken from a pod that may still be there")
	}
	n.SetIncomplete(false)
	if err := n.admit(next); err != nil || n.describe(next) != "c=2-7" || n.describe(gone) != "c=0-1" {
		t.Errorf("error %v, CPUs %s and %s", err, n.describe(next), n.describe(gone))
	}
	if !n.HasExclusive("next") || n.HasExclusive("gone") || n.Exclusive("next", "c").String() != "2-7" || !n.Exclusive("gone", "c").IsEmpty() {
		t.Error("exclusive CPUs of the wrong pod")
	}
}

func TestPolicyNone(t *testing.T) {
	o := options(t.TempDir())
	o.Policy = None
	n := start(t, o)
	p := pod("p", requesting("c", "2"))
	if err := n.admit(p); err != nil || n.describe(p) != "c=" || n.HasExclusive("p") || n.Hints(p, &p.Spec.Containers[0]) != nil || n.PodHints(p) != nil || !n.Allocatable().IsEmpty() {
		t.Errorf("error %v, CPUs %s", err, n.describe(p))
	}
}

func TestNewErrors(t *testing.T) {
	for _, row := range []struct {
		name   string
		change func(*Options)
		want   string
	}{
		{"unknown policy", func(o *Options) { o.Policy = "dynamic" }, `unknown policy: "dynamic"`},
		{"nothing reserved", func(o *Options) { o.ReservedAmount, o.Reserved = resource.Quantity{}, cpuset.New() }, "the static policy requires systemreserved.cpu + kubereserved.cpu to be greater than zero"},
		{"more reserved than there are", func(o *Options) { o.ReservedAmount, o.Reserved = resource.MustParse("9"), cpuset.New() }, "unable to reserve the required amount of CPUs (size of  did not equal 9)"},
		{"another number reserved", func(o *Options) { o.ReservedAmount = resource.MustParse("1500m") }, "unable to reserve the required amount of CPUs (size of 0 did not equal 2)"},
		{"unknown CPU reserved", func(o *Options) { o.Reserved = cpuset.New(8) }, "unknown CPU ID: 8"},
		{"aligned by socket on one NUMA node", func(o *Options) { o.StaticOptions.AlignBySocket, o.Alignment = true, alignment.SingleNUMANode }, "policy is incompatible with CPUManager align-by-socket policy option"},
	} {
		t.Run(row.name, func(t *testing.T) {
			o := options(t.TempDir())
			row.change(&o)
			if _, err := tryStart(o); err == nil || !strings.Contains(err.Error(), row.want) {
				t.Errorf("error %v, want %q", err, row.want)
			}
		})
	}
	o := options(t.TempDir())
	o.Reserved, o.ReservedAmount = cpuset.New(), resource.MustParse("1100m")
	if n := start(t, o); n.policy.reserved.String() != "0-1" || n.Allocatable().String() != "2-7" {
		t.Errorf("reserved %s, allocatable %s", n.policy.reserved, n.Allocatable())
	}
}

func TestParseOptions(t *testing.T) {
	all := Gates{AlphaOptions: true, BetaOptions: true}
	for _, row := range []struct {
		options map[string]string
		gates   Gates
		want    string
	}{
		{options: map[string]string{"full-pcpus-only": "true", "strict-cpu-reservation": "true", "prefer-align-cpus-by-uncorecache": "false"}},
		{options: map[string]string{"distribute-cpus-across-numa": "true"}, gates: Gates{BetaOptions: true}},
		{options: map[string]string{"align-by-socket": "true"}, gates: all},
		{map[string]string{"distribute-cpus-across-numa": "true"}, Gates{}, `CPU Manager Policy Beta-level Options not enabled, but option "distribute-cpus-across-numa" provided`},
		{map[string]string{"align-by-socket": "true"}, Gates{BetaOptions: true}, `CPU Manager Policy Alpha-level Options not enabled, but option "align-by-socket" provided`},
		{map[string]string{"fast": "true"}, all, `unknown CPU Manager Policy option: "fast"`},
		{map[string]string{"full-pcpus-only": "yes"}, all, `bad value for option "full-pcpus-only"`},
		{map[string]string{"full-pcpus-only": "true", "distribute-cpus-across-cores": "true"}, all, "static policy options full-pcpus-only and distribute-cpus-across-cores can not be used at the same time"},
		{map[string]string{"distribute-cpus-across-numa": "1", "prefer-align-cpus-by-uncorecache": "1"}, all, "static policy options prefer-align-cpus-by-uncorecache and distribute-cpus-across-numa can not be used at the same time"},
	} {
		if _, err := ParseOptions(row.options, row.gates); (err == nil) != (row.want == "") || err != nil && !strings.Contains(err.Error(), row.want) {
			t.Errorf("%v: error %v, want %q", row.options, err, row.want)
		}
	}
}

// upstreamCheckpoint was written by upstream's kubelet 1.37 with one pod.
const upstreamCheckpoint = `{"policyName":"static","defaultCpuSet":"0-1,4-7","entries":{"p":{"c":"2-3"}},"checksum":812720287,"data":"{\"policyName\":\"static\",\"defaultCpuSet\":\"0-1,4-7\",\"entries\":{\"p\":{\"c\":\"2-3\"}}}","dataChecksum":2175426044}`

const upstreamOldCheckpoint = `{"policyName":"static","defaultCpuSet":"0-1,4-7","entries":{"p":{"c":"2-3"}},"checksum":812720287}`

func TestCheckpoint(t *testing.T) {
	other := strings.ReplaceAll(upstreamCheckpoint, "static", "none")
	for _, row := range []struct {
		name, text, want string
		change           func(*Options)
	}{
		{name: "upstream's", text: upstreamCheckpoint},
		{name: "of an older version", text: upstreamOldCheckpoint},
		{name: "of an older version without checksum", text: `{"policyName":"static","defaultCpuSet":"0-1,4-7","entries":{"p":{"c":"2-3"}}}`},
		{name: "of another policy", text: `{"policyName":"none","defaultCpuSet":""}`, want: `could not restore state from checkpoint: configured policy "static" differs from state checkpoint policy "none", please drain this node and delete the CPU manager checkpoint file`},
		{name: "with another checksum", text: other, want: "could not restore state from checkpoint: could not load v4 checkpoint: checkpoint is corrupted, please drain this node and delete the CPU manager checkpoint file"},
		{name: "of an older version with another checksum", text: strings.ReplaceAll(upstreamOldCheckpoint, "2-3", "2,3"), want: "checkpoint is corrupted"},
		{name: "not JSON", text: "{", want: "failed to deserialize cpu manager checkpoint"},
		{name: "an invalid set", text: `{"policyName":"static","defaultCpuSet":"all"}`, want: `could not parse default CPU set "all"`},
		{name: "an invalid set of a container", text: `{"policyName":"static","defaultCpuSet":"0-7","entries":{"p":{"c":"x"}}}`, want: `could not parse cpuset "x" for container "c" in pod "p"`},
		{name: "CPUs missing", text: `{"policyName":"static","defaultCpuSet":"0-5"}`, want: `current set of available CPUs "0-7" doesn't match with CPUs in state "0-5"`},
		{name: "reserved CPUs missing", text: `{"policyName":"static","defaultCpuSet":"1-7"}`, want: `not all reserved cpus: "0" are present in defaultCpuSet: "1-7"`},
		{name: "overlap", text: `{"policyName":"static","defaultCpuSet":"0-7","entries":{"p":{"c":"2"}}}`, want: `pod: p, container: c cpuset: "2" overlaps with default cpuset "0-7"`},
		{name: "nothing shared", text: `{"policyName":"static","defaultCpuSet":"","entries":{"p":{"c":"2"}}}`, want: "default cpuset cannot be empty"},
		{
			name: "reserved strictly", text: `{"policyName":"static","defaultCpuSet":"0-7"}`, want: `some of strictly reserved cpus: "0" are present in defaultCpuSet: "0-7"`,
			change: func(o *Options) { o.StaticOptions.StrictReservation = true },
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			o := options(t.TempDir())
			if row.change != nil {
				row.change(&o)
			}
			file := alignmenttest.Checkpoint{Path: filepath.Join(o.Dir, checkpointName), Text: row.text}
			var n *node
			if !file.Restore(t, row.want, func() (err error) { n, err = tryStart(o); return err }) {
				return
			}
			if n.Exclusive("p", "c").String() != "2-3" || n.Of("q", "c").String() != "0-1,4-7" {
				t.Fatalf("CPUs %s", n.Exclusive("p", "c"))
			}
			file.ExpectText(t, upstreamCheckpoint)
		})
	}
}

// TestCheckpointOfPolicyNone: the policy cannot be changed while there is a checkpoint.
func TestCheckpointOfPolicyNone(t *testing.T) {
	o := options(t.TempDir())
	o.Policy = None
	start(t, o)
	o.Policy = Static
	want := fmt.Sprintf("could not restore state from checkpoint: configured policy %q differs from state checkpoint policy %q, please drain this node and delete the CPU manager checkpoint file %q before restarting Kubelet",
		"static", "none", filepath.Join(o.Dir, checkpointName))
	if _, err := tryStart(o); err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
}

func TestReconcile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := start(t, options(t.TempDir()))
		shared, exclusive := pod("shared", requesting("c", "500m")), pod("exclusive", requesting("c", "2"))
		n.Set(shared)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- n.Run(ctx) }()
		expect := func(what, want string) {
			t.Helper()
			synctest.Wait()
			if got := n.takeUpdates(); got != want {
				t.Errorf("%s: updates %q, want %q", what, got, want)
			}
		}
		expect("no containers", "")

		// A container of an earlier run of the kubelet is updated once, one of this run is not.
		n.mu.Lock()
		n.running = []Container{{"shared", "c", "old"}, {"shared", "c", "new"}}
		n.mu.Unlock()
		n.Applied(Container{"shared", "c", "new"}, n.Of("shared", "c"))
		time.Sleep(10 * time.Second)
		expect("found after a restart", "old=0-7")
		time.Sleep(time.Minute)
		expect("unchanged", "")

		if err := n.admit(exclusive); err != nil {
			t.Fatal(err)
		}
		expect("exclusive CPUs are assigned", "old=0-1,4-7 new=0-1,4-7")

		// A container that was created meanwhile with CPUs that are no longer shared is updated at once.
		n.mu.Lock()
		n.running = append(n.running, Container{"shared", "c", "late"})
		n.mu.Unlock()
		n.Applied(Container{"shared", "c", "late"}, cpuset.New(0, 1, 2, 3))
		expect("created with old CPUs", "late=0-1,4-7")

		n.Set(shared)
		n.mu.Lock()
		n.fail = errors.New("the runtime is down")
		n.mu.Unlock()
		time.Sleep(10 * time.Second)
		expect("no list of containers", "")
		n.mu.Lock()
		n.fail, n.running = nil, n.running[:1]
		n.mu.Unlock()
		time.Sleep(10 * time.Second)
		expect("the pod is removed", "old=0-7")
		if len(n.applied) != 1 {
			t.Errorf("CPUs of %d containers are remembered", len(n.applied))
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
