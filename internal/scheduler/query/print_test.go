package query

import (
	"errors"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/scheduler/decision"
	"skiff/internal/scheduler/plugins"
)

func TestPrintWhy(t *testing.T) {
	decided := metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.FixedZone("", 3600)))
	refused := func(rule string, reasons ...string) *plugins.Refusal {
		return &plugins.Refusal{Plugin: rule, Reasons: reasons}
	}
	for _, test := range []struct {
		rule string
		e    decision.Explanation
		want string
	}{
		{"a pod with a node and nothing else to tell", decision.Explanation{Namespace: "n", Name: "p", Node: "a"}, "Pod n/p goes to node a\n"},
		{"a gated pod", decision.Explanation{Namespace: "n", Name: "p", Message: "waiting for scheduling gates: [g]", Changes: []decision.Suggestion{{Steps: []string{"remove the pod's scheduling gates"}}}},
			"Pod n/p has no node: waiting for scheduling gates: [g]\n\nThe smallest changes that would let it run:\n  remove the pod's scheduling gates\n"},
		{"columns of all rules that said something, by name", decision.Explanation{Namespace: "n", Name: "p", Node: "a", Decided: &decided, Feasible: 2, Nodes: 2, Verdicts: []decision.Verdict{
			{Node: "a", Total: 300, Scores: map[string]int64{"Zebra": 100, "Ant": 200}}, {Node: "longer-name", Total: 0, Scores: map[string]int64{"Middle": 0}}}},
			"Pod n/p goes to node a\nDecided 2026-01-02T03:04:05+01:00; of 2 nodes 2 could take it.\n\n" +
				"NODE         VERDICT  TOTAL  Ant  Middle  Zebra\na            chosen   300    200  0       100\nlonger-name  fits     0      0    0       0\n"},
		{"several reasons", decision.Explanation{Namespace: "n", Name: "p", Message: "m", Decided: &decided, Nodes: 1, Verdicts: []decision.Verdict{{Node: "a", Refusal: refused("NodeResourcesFit", "Insufficient cpu", "Too many pods")}}},
			"Pod n/p has no node: m\nDecided 2026-01-02T03:04:05+01:00; of 1 nodes 0 could take it.\n\nNODE  VERDICT  TOTAL\na     refused by NodeResourcesFit: Insufficient cpu, Too many pods\n"},
		{"preemption of several pods", decision.Explanation{Namespace: "n", Name: "p", Message: "m", Preemption: &decision.PreemptionPreview{Node: "a", Victims: 2}}, "Pod n/p has no node: m\n\nIt would fit on node a if 2 pods of lower priority were preempted.\n"},
	} {
		var text strings.Builder
		if err := PrintWhy(&text, &test.e); err != nil || text.String() != test.want {
			t.Errorf("%s: %v\n%s\nwant\n%s", test.rule, err, text.String(), test.want)
		}
	}
}

func TestPrintWhatIf(t *testing.T) {
	for _, test := range []struct {
		rule string
		all  []decision.Explanation
		want string
	}{
		{"nothing", nil, "NAMESPACE  POD  NODE  COULD TAKE IT\n\n0 of 0 pods would have a node.\n"},
		{"verdicts are told of pods with nodes too", []decision.Explanation{{Namespace: "n", Name: "p", Node: "a", Feasible: 1, Nodes: 1, Verdicts: []decision.Verdict{{Node: "a", Total: 1, Scores: map[string]int64{"R": 1}}}}},
			"NAMESPACE  POD  NODE  COULD TAKE IT\nn          p    a     1 of 1\n\n1 of 1 pods would have a node.\n\nPod n/p goes to node a\n\nNODE  VERDICT  TOTAL  R\na     chosen   1      1\n"},
		{"what would help those without", []decision.Explanation{{Namespace: "n", Name: "p", Message: "m", Nodes: 3, Changes: []decision.Suggestion{{Node: "a", Others: 2, Steps: []string{"x", "y"}}}}},
			"NAMESPACE  POD  NODE    COULD TAKE IT\nn          p    <none>  0 of 3\n\n0 of 1 pods would have a node.\n\nPod n/p has no node: m\n\nThe smallest changes that would let it run:\n  on node a (likewise on 2 other nodes): x; and y\n"},
	} {
		var text strings.Builder
		if err := PrintWhatIf(&text, test.all); err != nil || text.String() != test.want {
			t.Errorf("%s: %v\n%s\nwant\n%s", test.rule, err, text.String(), test.want)
		}
	}
}

type brokenWriter struct{}

var errBroken = errors.New("broken pipe")

func (brokenWriter) Write([]byte) (int, error) { return 0, errBroken }

func TestPrintingFails(t *testing.T) {
	if err := PrintWhy(brokenWriter{}, &decision.Explanation{}); !errors.Is(err, errBroken) {
		t.Error(err)
	}
	if err := PrintWhatIf(brokenWriter{}, nil); !errors.Is(err, errBroken) {
		t.Error(err)
	}
}

// Nodes and pods are counted in words a person would use.
func TestCounted(t *testing.T) {
	for _, test := range []struct {
		change decision.Suggestion
		want   string
	}{
		{decision.Suggestion{Steps: []string{"add a node"}}, "  add a node\n"},
		{decision.Suggestion{Others: 3, Steps: []string{"without a node the others are nobody's"}}, "  without a node the others are nobody's\n"},
		{decision.Suggestion{Node: "a", Steps: []string{"x"}}, "  on node a: x\n"},
		{decision.Suggestion{Node: "a", Others: 1, Steps: []string{"x"}}, "  on node a (likewise on 1 other node): x\n"},
		{decision.Suggestion{Node: "a", Others: 2, Steps: []string{"x", "y", "z"}}, "  on node a (likewise on 2 other nodes): x; and y; and z\n"},
	} {
		e := decision.Explanation{Namespace: "n", Name: "p", Message: "m", Preemption: &decision.PreemptionPreview{Node: "b", Victims: 1}, Changes: []decision.Suggestion{test.change}}
		var text strings.Builder
		want := "Pod n/p has no node: m\n\nIt would fit on node b if 1 pod of lower priority were preempted.\n\nThe smallest changes that would let it run:\n" + test.want
		if err := PrintWhy(&text, &e); err != nil || text.String() != want {
			t.Errorf("%v\n%s\nwant\n%s", err, text.String(), want)
		}
	}
}

// What is told about many pods keeps their order, and tells more only of those that have no node.
func TestPrintWhatIfOfMany(t *testing.T) {
	all := []decision.Explanation{
		{Namespace: "n", Name: "p-0", Node: "node-a", Feasible: 2, Nodes: 3}, {Namespace: "n", Name: "p-1", Message: "0/3 nodes are available:", Nodes: 3, Preemption: &decision.PreemptionPreview{Node: "node-b", Victims: 3}},
		{Namespace: "longer", Name: "q", Node: "node-c", Feasible: 1, Nodes: 3}, {Namespace: "n", Name: "g", Message: "waiting for scheduling gates: [g]", Nodes: 3},
	}
	const want = "NAMESPACE  POD  NODE    COULD TAKE IT\nn          p-0  node-a  2 of 3\nn          p-1  <none>  0 of 3\nlonger     q    node-c  1 of 3\nn          g    <none>  0 of 3\n\n2 of 4 pods would have a node.\n" +
		"\nPod n/p-1 has no node: 0/3 nodes are available:\n\nIt would fit on node node-b if 3 pods of lower priority were preempted.\n\nPod n/g has no node: waiting for scheduling gates: [g]\n"
	var text strings.Builder
	if err := PrintWhatIf(&text, all); err != nil || text.String() != want {
		t.Errorf("%v\n%s\nwant\n%s", err, text.String(), want)
	}
}

// A decision whose record is gone is told as what would be decided now; without verdicts there is nothing to say of it.
func TestPrintWhyWithoutARecord(t *testing.T) {
	for verdicts, want := range map[int]string{
		0: "Pod n/p goes to node a\n",
		1: "Pod n/p goes to node a\nThe decision's record is gone; this is how it would be decided now: of 5 nodes 2 could take it.\n\nNODE  VERDICT  TOTAL  R\na     chosen   7      7\n",
		2: "Pod n/p goes to node a\nThe decision's record is gone; this is how it would be decided now: of 5 nodes 2 could take it.\n\nNODE  VERDICT  TOTAL  R\na     chosen   7      7\nb     fits     -1     -1\n",
	} {
		all := []decision.Verdict{{Node: "a", Total: 7, Scores: map[string]int64{"R": 7}}, {Node: "b", Total: -1, Scores: map[string]int64{"R": -1}}}
		e := decision.Explanation{Namespace: "n", Name: "p", Node: "a", Feasible: 2, Nodes: 5, Verdicts: all[:verdicts]}
		var text strings.Builder
		if err := PrintWhy(&text, &e); err != nil || text.String() != want {
			t.Errorf("%d verdicts: %v\n%s\nwant\n%s", verdicts, err, text.String(), want)
		}
	}
}
