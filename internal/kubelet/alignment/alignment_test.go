package alignment

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"skiff/internal/kubelet/topology"
)

func nodes(number int) []topology.NUMANode {
	var all []topology.NUMANode
	for id := range number {
		node := topology.NUMANode{ID: id}
		for other := range number {
			node.Distances = append(node.Distances, uint64(10+10*max(id-other, other-id)))
		}
		all = append(all, node)
	}
	return all
}

func policy(t *testing.T, name string, options map[string]string, numaNodes int) *Policy {
	t.Helper()
	o, err := ParseOptions(options)
	if err != nil {
		t.Fatal(err)
	}
	p, err := NewPolicy(name, o, nodes(numaNodes))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func preferred(nodes ...int) Hint { return Hint{NewMask(nodes...), true} }
func other(nodes ...int) Hint     { return Hint{NewMask(nodes...), false} }

func TestMerge(t *testing.T) {
	type result struct {
		hint  Hint
		admit bool
	}
	for _, row := range []struct {
		name  string
		hints []Hints
		want  map[string]result
	}{
		{
			name: "no providers",
			want: map[string]result{BestEffort: {preferred(0, 1), true}, Restricted: {preferred(0, 1), true}, SingleNUMANode: {preferred(), true}},
		},
		{
			name: "no preference", hints: []Hints{nil, {"a": nil}},
			want: map[string]result{BestEffort: {preferred(0, 1), true}, Restricted: {preferred(0, 1), true}, SingleNUMANode: {preferred(), true}},
		},
		{
			name: "impossible", hints: []Hints{{"a": {}}},
			want: map[string]result{BestEffort: {other(0, 1), true}, Restricted: {other(0, 1), false}, SingleNUMANode: {other(), false}},
		},
		{
			name: "both on the second NUMA node", hints: []Hints{{"a": {preferred(0), preferred(1), other(0, 1)}}, {"b": {preferred(1)}}},
			want: map[string]result{BestEffort: {preferred(1), true}, Restricted: {preferred(1), true}, SingleNUMANode: {preferred(1), true}},
		},
		{
			name: "on different NUMA nodes", hints: []Hints{{"a": {preferred(0)}}, {"b": {preferred(1), other(0, 1)}}},
			want: map[string]result{BestEffort: {other(0), true}, Restricted: {other(0), false}, SingleNUMANode: {other(), false}},
		},
		{
			name: "only together", hints: []Hints{{"a": {preferred(0, 1)}}},
			want: map[string]result{BestEffort: {preferred(0, 1), true}, Restricted: {preferred(0, 1), true}, SingleNUMANode: {other(), false}},
		},
		{
			name: "nothing in common", hints: []Hints{{"a": {preferred(0)}}, {"b": {preferred(1)}}},
			want: map[string]result{BestEffort: {other(0, 1), true}, Restricted: {other(0, 1), false}, SingleNUMANode: {other(), false}},
		},
	} {
		for name, want := range row.want {
			t.Run(row.name+"/"+name, func(t *testing.T) {
				if hint, admit := policy(t, name, nil, 2).merge(row.hints); hint != want.hint || admit != want.admit {
					t.Errorf("hint %v, admitted %v, want %v", hint, admit, want)
				}
			})
		}
	}
}

func TestPreferClosest(t *testing.T) {
	hints := []Hints{{"a": {preferred(0, 3), preferred(2, 3)}}}
	for value, want := range map[string]Hint{"false": preferred(0, 3), "true": preferred(2, 3)} {
		if got, _ := policy(t, Restricted, map[string]string{"prefer-closest-numa-nodes": value}, 4).merge(hints); got != want {
			t.Errorf("prefer-closest-numa-nodes=%s: %v, want %v", value, got, want)
		}
	}
}

// TestBestOfAllCombinations compares the result with that of trying all combinations in order.
func TestBestOfAllCombinations(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 3000 {
		p := policy(t, BestEffort, map[string]string{"prefer-closest-numa-nodes": fmt.Sprint(r.IntN(2) == 0)}, 4)
		var resources [][]Hint
		for range r.IntN(4) {
			var list []Hint
			for range 1 + r.IntN(4) {
				list = append(list, Hint{Mask(r.IntN(16)), r.IntN(2) == 0})
			}
			resources = append(resources, list)
		}
		found, best := false, Hint{Nodes: p.all}
		var combine func(rest [][]Hint, chosen []Hint)
		combine = func(rest [][]Hint, chosen []Hint) {
			if len(rest) > 0 {
				for _, h := range rest[0] {
					combine(rest[1:], append(slices.Clone(chosen), h))
				}
				return
			}
			all, first := Hint{p.all, true}, Mask(0)
			for _, h := range chosen {
				if h.Nodes != 0 {
					all.Nodes &= h.Nodes
					if first == 0 {
						first = h.Nodes
					}
					all.Preferred = all.Preferred && h.Nodes == first
				}
				all.Preferred = all.Preferred && h.Preferred
			}
			if all.Nodes != 0 && (!found || p.isBetter(all, best, widestMinimum(resources))) {
				found, best = true, all
			}
		}
		combine(resources, nil)
		if got := p.best(resources); got != best {
			t.Fatalf("best of %v is %v, want %v", resources, got, best)
		}
	}
}

// TestManyResources checks that the cost is not that of all combinations: 255 hints for each of 30 resources have 255^30.
func TestManyResources(t *testing.T) {
	p := policy(t, Restricted, nil, 8)
	hints := Hints{}
	for i := range 30 {
		var list []Hint
		for mask := range Subsets([]int{0, 1, 2, 3, 4, 5, 6, 7}) {
			list = append(list, Hint{mask, mask.Count() == 1})
		}
		hints[fmt.Sprint("resource", i)] = list
	}
	if got, admit := p.merge([]Hints{hints}); got != preferred(0) || !admit {
		t.Errorf("best hint %v, admitted %v", got, admit)
	}
}

func TestNewPolicy(t *testing.T) {
	for _, row := range []struct {
		name    string
		options map[string]string
		nodes   []topology.NUMANode
		want    string
	}{
		{name: BestEffort, nodes: nodes(8)},
		{name: None, nodes: nodes(20)},
		{name: "best", want: `unknown policy: "best"`},
		{name: Restricted, nodes: nodes(9), want: "unsupported on machines with more than 8 NUMA Nodes"},
		{name: Restricted, nodes: nodes(9), options: map[string]string{"max-allowable-numa-nodes": "9"}},
		{name: Restricted, options: map[string]string{"max-allowable-numa-nodes": "7"}, want: `the minimum value of "max-allowable-numa-nodes" should not be less than 8`},
		{name: Restricted, options: map[string]string{"max-allowable-numa-nodes": "x"}, want: "unable to convert policy option to integer"},
		{name: Restricted, options: map[string]string{"prefer-closest-numa-nodes": "x"}, want: `bad value for option "prefer-closest-numa-nodes"`},
		{name: Restricted, options: map[string]string{"spread": "true"}, want: `unknown Topology Manager Policy option: "spread"`},
		{name: Restricted, options: map[string]string{"prefer-closest-numa-nodes": "true"}, nodes: []topology.NUMANode{{ID: 0}}, want: "error getting NUMA distances"},
	} {
		o, err := ParseOptions(row.options)
		if err == nil {
			_, err = NewPolicy(row.name, o, row.nodes)
		}
		if (err == nil) != (row.want == "") || err != nil && !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s %v: error %v, want %q", row.name, row.options, err, row.want)
		}
	}
}

// fakeProvider records what is allocated from where.
type fakeProvider struct {
	hints     map[string]Hints // by container; "" for the pod
	fail      map[string]error
	allocated []string
}

func (f *fakeProvider) Hints(_ *corev1.Pod, c *corev1.Container) Hints { return f.hints[c.Name] }
func (f *fakeProvider) PodHints(*corev1.Pod) Hints                     { return f.hints[""] }
func (f *fakeProvider) Allocate(_ context.Context, _ *corev1.Pod, c *corev1.Container, hint Hint) error {
	f.allocated = append(f.allocated, c.Name+":"+hint.Nodes.String())
	return f.fail[c.Name]
}

func TestAdmission(t *testing.T) {
	pod := &corev1.Pod{Spec: corev1.PodSpec{
		InitContainers: []corev1.Container{{Name: "i"}}, Containers: []corev1.Container{{Name: "a"}, {Name: "b"}},
		EphemeralContainers: []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "e"}}},
	}}
	impossible := Hints{"x": {}}
	hints := map[string]Hints{"": {"x": {preferred(1)}}, "i": {"x": {preferred(0)}}, "a": {"x": {preferred(1)}}, "b": nil}
	for _, row := range []struct {
		name, policy, scope string
		provider            fakeProvider
		want, failure       string
	}{
		{name: "policy none", policy: None, scope: ContainerScope, provider: fakeProvider{hints: map[string]Hints{"a": impossible}}, want: "i: a: b:"},
		{name: "container scope", policy: Restricted, scope: ContainerScope, provider: fakeProvider{hints: hints}, want: "i:0 a:1 b:0,1"},
		{name: "pod scope", policy: Restricted, scope: PodScope, provider: fakeProvider{hints: hints}, want: "i:1 a:1 b:1"},
		{
			name: "rejected container", policy: Restricted, scope: ContainerScope, provider: fakeProvider{hints: map[string]Hints{"a": impossible}},
			want: "i:0,1", failure: "TopologyAffinityError: Resources cannot be allocated with Topology locality",
		},
		{
			name: "rejected pod", policy: SingleNUMANode, scope: PodScope, provider: fakeProvider{hints: map[string]Hints{"": impossible}},
			failure: "TopologyAffinityError: Resources cannot be allocated with Topology locality",
		},
		{
			name: "failed allocation", policy: None, scope: PodScope, provider: fakeProvider{fail: map[string]error{"a": errors.New("they are mine")}},
			want: "i: a:", failure: "UnexpectedAdmissionError: Allocate failed due to they are mine, which is unexpected",
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			a := &Admission{Policy: policy(t, row.policy, nil, 2), Scope: row.scope, Providers: []Provider{&row.provider}}
			failure := ""
			if err := a.Allocate(t.Context(), pod); err != nil {
				reason, message := AdmissionFailure(err)
				failure = reason + ": " + message
			}
			if got := strings.Join(row.provider.allocated, " "); got != row.want || failure != row.failure {
				t.Errorf("allocated %q, failure %q, want %q and %q", got, failure, row.want, row.failure)
			}
		})
	}
}

func TestMask(t *testing.T) {
	m := NewMask(3, 0, 64, -1)
	if m.String() != "0,3" || m.Count() != 2 || !m.Has(3) || m.Has(1) || m.Has(64) || !slices.Equal(m.Nodes(), []int{0, 3}) {
		t.Errorf("mask %s of %v", m, m.Nodes())
	}
	var all []string
	for m := range Subsets([]int{0, 1, 5}) {
		all = append(all, m.String())
	}
	if got := strings.Join(all, " "); got != "0 1 5 0,1 0,5 1,5 0,1,5" {
		t.Errorf("subsets %s", got)
	}
}
