package scheduler

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	configv1 "k8s.io/kube-scheduler/config/v1"
	"k8s.io/utils/ptr"
)

const (
	opIn, opNotIn       = corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn
	opExists, opAbsent  = corev1.NodeSelectorOpExists, corev1.NodeSelectorOpDoesNotExist
	opGt, opLt          = corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt
	noSchedule          = corev1.TaintEffectNoSchedule
	noExecute           = corev1.TaintEffectNoExecute
	preferNo            = corev1.TaintEffectPreferNoSchedule
	tolExists, tolEqual = corev1.TolerationOpExists, corev1.TolerationOpEqual
	affinityReason      = lasting + "node(s) didn't match Pod's node affinity/selector"
	enforcedReason      = lasting + "node(s) didn't match scheduler-enforced node affinity"
	conflictReason      = lasting + "pod affinity terms conflict"
	taintReason         = lasting + "node(s) had untolerated taint(s)"
	unschedulableReason = lasting + "node(s) were unschedulable"
	otherNodeReason     = lasting + "node(s) didn't match the requested node name"
	takenPortReason     = "node(s) didn't have free ports for the requested pod ports"
	unschedulableTaint  = corev1.TaintNodeUnschedulable
	notReadyTaint       = corev1.TaintNodeNotReady
)

// nodeRequirement is one demand of a selector term.
func nodeRequirement(key string, operator corev1.NodeSelectorOperator, values ...string) corev1.NodeSelectorRequirement {
	return corev1.NodeSelectorRequirement{Key: key, Operator: operator, Values: values}
}

// nodeTerm is a term of several demands on labels.
func nodeTerm(expressions ...corev1.NodeSelectorRequirement) corev1.NodeSelectorTerm {
	return corev1.NodeSelectorTerm{MatchExpressions: expressions}
}

// nodeFieldTerm is a term of several demands on fields.
func nodeFieldTerm(fields ...corev1.NodeSelectorRequirement) corev1.NodeSelectorTerm {
	return corev1.NodeSelectorTerm{MatchFields: fields}
}

func prefersNode(weight int32, term corev1.NodeSelectorTerm) podOption {
	return func(p *corev1.Pod) {
		a := affinityOf(p)
		if a.NodeAffinity == nil {
			a.NodeAffinity = &corev1.NodeAffinity{}
		}
		a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution = append(a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution,
			corev1.PreferredSchedulingTerm{Weight: weight, Preference: term})
	}
}

func unlabelled(key string) nodeOption { return func(n *corev1.Node) { delete(n.Labels, key) } }

func toleration(key string, operator corev1.TolerationOperator, value string, effect corev1.TaintEffect) podOption {
	return tolerating(corev1.Toleration{Key: key, Operator: operator, Value: value, Effect: effect})
}

func TestNodeNameFilter(t *testing.T) {
	s := cluster(t, []*corev1.Node{testNode("a"), testNode("ab"), testNode("b")})
	for _, test := range []struct {
		what string
		pod  *corev1.Pod
		want map[string]string
	}{
		{"a pod without a node may go anywhere", testPod("p"), nil},
		{"a pod with a node goes there alone", testPod("p", on("a")), map[string]string{"ab": otherNodeReason, "b": otherNodeReason}},
		{"a node that does not exist is none of them", testPod("p", on("c")), map[string]string{"a": otherNodeReason, "ab": otherNodeReason, "b": otherNodeReason}},
		{"where a pod is nominated to does not bind it", testPod("p", nominatedTo("b")), nil},
	} {
		if got := ruleRefusals(t, nodeName{}, s, test.pod); !maps.Equal(got, test.want) {
			t.Errorf("%s: %v, want %v", test.what, got, test.want)
		}
	}
	checkHints(t, DefaultProfile(), nodeNameName, s, []ruleHint{
		{"a node came", testPod("p", on("x")), ruleNodeCame(testNode("x")), true},
		{"another node came, which is not asked for its name", testPod("p", on("x")), ruleNodeCame(testNode("y")), true},
		{"a node has other labels", testPod("p", on("x")), ruleNodeIs(testNode("x"), testNode("x", zone("1"))), false},
		{"a node went", testPod("p", on("x")), ruleNodeWent(testNode("x")), false},
		{"a pod went", testPod("p", on("x")), rulePodWent(testPod("q", on("x"))), false},
	})
}

func TestNodeUnschedulableFilter(t *testing.T) {
	s := cluster(t, []*corev1.Node{testNode("open"), testNode("closed", cordoned), testNode("tainted", taint(unschedulableTaint, "", noSchedule))})
	closed := map[string]string{"closed": unschedulableReason}
	for _, test := range []struct {
		what string
		pod  *corev1.Pod
		want map[string]string
	}{
		{"a closed node takes nobody; the taint alone is not this rule's business", testPod("p"), closed},
		{"by key and existence", testPod("p", toleration(unschedulableTaint, tolExists, "", "")), nil},
		{"by key, existence and effect", testPod("p", toleration(unschedulableTaint, tolExists, "", noSchedule)), nil},
		{"by key and the empty value", testPod("p", toleration(unschedulableTaint, "", "", noSchedule)), nil},
		{"by key and the empty value, the operator spelt out", testPod("p", toleration(unschedulableTaint, tolEqual, "", "")), nil},
		{"everything is tolerated", testPod("p", toleration("", tolExists, "", "")), nil},
		{"a value the taint does not have", testPod("p", toleration(unschedulableTaint, tolEqual, "true", noSchedule)), closed},
		{"another effect", testPod("p", toleration(unschedulableTaint, tolExists, "", noExecute)), closed},
		{"the soft effect", testPod("p", toleration(unschedulableTaint, tolExists, "", preferNo)), closed},
		{"another key", testPod("p", toleration(notReadyTaint, tolExists, "", "")), closed},
		{"an operator nobody knows", testPod("p", toleration(unschedulableTaint, "Is", "", "")), closed},
		{"a comparison", testPod("p", toleration(unschedulableTaint, corev1.TolerationOpGt, "0", "")), closed},
		{"the second of two", testPod("p", toleration("x", tolExists, "", ""), toleration(unschedulableTaint, tolExists, "", "")), nil},
	} {
		if got := ruleRefusals(t, nodeUnschedulable{}, s, test.pod); !maps.Equal(got, test.want) {
			t.Errorf("%s: %v, want %v", test.what, got, test.want)
		}
	}
	tolerant := toleration(unschedulableTaint, tolExists, "", "")
	checkHints(t, DefaultProfile(), nodeUnschedulableName, s, []ruleHint{
		{"an open node came", testPod("p"), ruleNodeCame(testNode("n")), true},
		{"a closed node came", testPod("p"), ruleNodeCame(testNode("n", cordoned)), false},
		{"a node was opened", testPod("p"), ruleNodeIs(testNode("n", cordoned), testNode("n")), true},
		{"a node was closed", testPod("p"), ruleNodeIs(testNode("n"), testNode("n", cordoned)), false},
		{"an open node got rid of a taint", testPod("p"), ruleNodeIs(testNode("n", taint("k", "v", noSchedule)), testNode("n")), false},
		{"a closed node got rid of a taint", testPod("p"), ruleNodeIs(testNode("n", cordoned, taint("k", "v", noSchedule)), testNode("n", cordoned)), false},
		{"a node was opened and got a label", testPod("p"), ruleNodeIs(testNode("n", cordoned), testNode("n", zone("1"))), true},
		{"the pod tolerates it now", testPod("p"), ruleItselfIs(testPod("p"), testPod("p", tolerant)), true},
		{"the pod tolerates something else now", testPod("p"), ruleItselfIs(testPod("p"), testPod("p", toleration("x", tolExists, "", ""))), false},
		{"the pod has another label", testPod("p"), ruleItselfIs(testPod("p"), testPod("p", labelled("a", "b"))), false},
	})
}

func TestTaintTolerationFilter(t *testing.T) {
	type row struct {
		what   string
		taints []nodeOption
		pod    []podOption
		fits   bool
	}
	for _, test := range []row{
		{"no taints", nil, nil, true},
		{"no taints, a toleration too many", nil, []podOption{toleration("k", tolExists, "", "")}, true},
		{"NoSchedule", []nodeOption{taint("k", "v", noSchedule)}, nil, false},
		{"NoExecute", []nodeOption{taint("k", "v", noExecute)}, nil, false},
		{"PreferNoSchedule keeps nobody away", []nodeOption{taint("k", "v", preferNo)}, nil, true},
		{"an effect nobody knows keeps nobody away", []nodeOption{taint("k", "v", "NoFun")}, nil, true},
		{"a taint without effect keeps nobody away", []nodeOption{taint("k", "v", "")}, nil, true},
		{"equal in all", []nodeOption{taint("k", "v", noSchedule)}, []podOption{toleration("k", tolEqual, "v", noSchedule)}, true},
		{"equal, the operator left out", []nodeOption{taint("k", "v", noSchedule)}, []podOption{toleration("k", "", "v", noSchedule)}, true},
		{"any effect", []nodeOption{taint("k", "v", noExecute)}, []podOption{toleration("k", tolEqual, "v", "")}, true},
		{"another effect", []nodeOption{taint("k", "v", noExecute)}, []podOption{toleration("k", tolEqual, "v", noSchedule)}, false},
		{"another value", []nodeOption{taint("k", "v", noSchedule)}, []podOption{toleration("k", tolEqual, "w", noSchedule)}, false},
		{"another key", []nodeOption{taint("k", "v", noSchedule)}, []podOption{toleration("l", tolEqual, "v", noSchedule)}, false},
		{"any value", []nodeOption{taint("k", "v", noSchedule)}, []podOption{toleration("k", tolExists, "", noSchedule)}, true},
		{"a value is not looked at where existence is asked", []nodeOption{taint("k", "v", noSchedule)}, []podOption{toleration("k", tolExists, "w", noSchedule)}, true},
		{"any key", []nodeOption{taint("k", "v", noSchedule), taint("l", "", noExecute)}, []podOption{toleration("", tolExists, "", "")}, true},
		{"any key of one effect", []nodeOption{taint("k", "v", noSchedule), taint("l", "", noExecute)}, []podOption{toleration("", tolExists, "", noSchedule)}, false},
		{"no key and a value: all taints with that value", []nodeOption{taint("k", "v", noSchedule)}, []podOption{toleration("", tolEqual, "v", "")}, true},
		{"no key and another value", []nodeOption{taint("k", "v", noSchedule)}, []podOption{toleration("", tolEqual, "w", "")}, false},
		{"an empty value equals an empty value", []nodeOption{taint("k", "", noSchedule)}, []podOption{toleration("k", "", "", "")}, true},
		{"an empty value is not any value", []nodeOption{taint("k", "v", noSchedule)}, []podOption{toleration("k", "", "", "")}, false},
		{"one of two", []nodeOption{taint("k", "v", noSchedule), taint("l", "w", noSchedule)}, []podOption{toleration("k", tolExists, "", "")}, false},
		{"the other of two", []nodeOption{taint("k", "v", noSchedule), taint("l", "w", noSchedule)}, []podOption{toleration("l", tolExists, "", "")}, false},
		{"both of two", []nodeOption{taint("k", "v", noSchedule), taint("l", "w", noSchedule)}, []podOption{toleration("l", tolExists, "", ""), toleration("k", tolExists, "", "")}, true},
		{"one key with two effects, one tolerated", []nodeOption{taint("k", "v", noSchedule), taint("k", "v", noExecute)}, []podOption{toleration("k", tolExists, "", noExecute)}, false},
		{"one key with two effects, both tolerated", []nodeOption{taint("k", "v", noSchedule), taint("k", "v", noExecute)}, []podOption{toleration("k", tolExists, "", "")}, true},
		{"a soft taint beside a tolerated hard one", []nodeOption{taint("s", "", preferNo), taint("k", "v", noSchedule)}, []podOption{toleration("k", tolExists, "", "")}, true},
		{"tolerating for a while is tolerating", []nodeOption{taint("k", "v", noExecute)}, []podOption{tolerating(corev1.Toleration{Key: "k", Operator: tolExists, TolerationSeconds: ptr.To[int64](0)})}, true},
		{"more than, which is not switched on", []nodeOption{taint("k", "5", noSchedule)}, []podOption{toleration("k", corev1.TolerationOpGt, "4", "")}, false},
		{"less than, which is not switched on", []nodeOption{taint("k", "5", noSchedule)}, []podOption{toleration("k", corev1.TolerationOpLt, "6", "")}, false},
		{"an operator nobody knows", []nodeOption{taint("k", "v", noSchedule)}, []podOption{toleration("k", "Is", "v", "")}, false},
		{"keys are compared to the letter", []nodeOption{taint("k", "v", noSchedule)}, []podOption{toleration("K", tolExists, "", "")}, false},
	} {
		t.Run(test.what, func(t *testing.T) {
			want := map[string]string{}
			if !test.fits {
				want["n"] = taintReason
			}
			s := cluster(t, []*corev1.Node{testNode("n", test.taints...), testNode("free")})
			if got := ruleRefusals(t, taintToleration{}, s, testPod("p", test.pod...)); !maps.Equal(got, want) {
				t.Errorf("refused %v, want %v", got, want)
			}
			// What a pod tolerates must count from the first to the last node with the same taints, and whatever taints came before.
			many := nodesNamed(6, func(i int) nodeOption {
				return func(n *corev1.Node) {
					if i%2 == 0 {
						taint("other", fmt.Sprint(i), noSchedule)(n)
						return
					}
					for _, o := range test.taints {
						o(n)
					}
				}
			})
			refused := ruleRefusals(t, taintToleration{}, cluster(t, many), testPod("p", append(test.pod, toleration("other", tolExists, "", ""))...))
			if want := 3 * len(want); len(refused) != want {
				t.Errorf("refused %v, want %d nodes", refused, want)
			}
		})
	}
}

func TestTaintTolerationScore(t *testing.T) {
	nodes := []*corev1.Node{
		testNode("none"), testNode("one", taint("a", "1", preferNo)), testNode("two", taint("a", "1", preferNo), taint("b", "2", preferNo)),
		testNode("three", taint("a", "1", preferNo), taint("b", "2", preferNo), taint("c", "3", preferNo)), testNode("hard", taint("a", "1", noSchedule), taint("b", "2", noExecute)),
	}
	for _, test := range []struct {
		what string
		pod  *corev1.Pod
		want map[string]int64
	}{
		{"the fewer the better; hard taints do not count", testPod("p"), map[string]int64{"none": 100, "one": 67, "two": 34, "three": 0, "hard": 100}},
		{"a tolerated taint does not count", testPod("p", toleration("a", tolExists, "", preferNo)), map[string]int64{"none": 100, "one": 100, "two": 50, "three": 0, "hard": 100}},
		{"no effect means any effect", testPod("p", toleration("a", tolEqual, "1", "")), map[string]int64{"none": 100, "one": 100, "two": 50, "three": 0, "hard": 100}},
		{"another effect does not help", testPod("p", toleration("a", tolExists, "", noSchedule), toleration("b", tolExists, "", noExecute)), map[string]int64{"none": 100, "one": 67, "two": 34, "three": 0, "hard": 100}},
		{"any key of another effect does not help", testPod("p", toleration("", tolExists, "", noSchedule)), map[string]int64{"none": 100, "one": 67, "two": 34, "three": 0, "hard": 100}},
		{"another value does not help", testPod("p", toleration("b", tolEqual, "9", "")), map[string]int64{"none": 100, "one": 67, "two": 34, "three": 0, "hard": 100}},
		{"everything tolerated: all are best", testPod("p", toleration("", tolExists, "", "")), map[string]int64{"none": 100, "one": 100, "two": 100, "three": 100, "hard": 100}},
		{"all but one tolerated", testPod("p", toleration("a", tolExists, "", ""), toleration("b", tolExists, "", "")), map[string]int64{"none": 100, "one": 100, "two": 100, "three": 0, "hard": 100}},
	} {
		if got := ruleScores(t, taintToleration{}, cluster(t, nodes), test.pod); !maps.Equal(got, test.want) {
			t.Errorf("%s: %v, want %v", test.what, got, test.want)
		}
	}
	if got := ruleScores(t, taintToleration{}, cluster(t, nodes[:1]), testPod("p")); !maps.Equal(got, map[string]int64{"none": 100}) {
		t.Errorf("without any taint: %v", got)
	}
}

func TestTaintTolerationHints(t *testing.T) {
	hard, soft := taint("k", "v", noSchedule), taint("k", "v", preferNo)
	tolerant := testPod("p", toleration("k", tolExists, "", ""))
	checkHints(t, DefaultProfile(), taintTolerationName, cluster(t, nil), []ruleHint{
		{"a node without taints came", testPod("p"), ruleNodeCame(testNode("n")), true},
		{"a tainted node came", testPod("p"), ruleNodeCame(testNode("n", hard)), false},
		{"a tainted node came that the pod tolerates", tolerant, ruleNodeCame(testNode("n", hard)), true},
		{"a node with a soft taint came", testPod("p"), ruleNodeCame(testNode("n", soft)), true},
		{"the taint is gone", testPod("p"), ruleNodeIs(testNode("n", hard), testNode("n")), true},
		{"the taint has become soft", testPod("p"), ruleNodeIs(testNode("n", hard), testNode("n", soft)), true},
		{"the taint has another value", testPod("p"), ruleNodeIs(testNode("n", hard), testNode("n", taint("k", "w", noSchedule))), false},
		{"the taint has a value the pod tolerates", testPod("p", toleration("k", tolEqual, "w", "")), ruleNodeIs(testNode("n", hard), testNode("n", taint("k", "w", noSchedule))), true},
		{"the taint has come", testPod("p"), ruleNodeIs(testNode("n"), testNode("n", hard)), false},
		{"the node had nothing against the pod before", testPod("p"), ruleNodeIs(testNode("n", soft), testNode("n")), false},
		{"one of two is gone", testPod("p"), ruleNodeIs(testNode("n", hard, taint("l", "", noExecute)), testNode("n", hard)), false},
		{"the untolerated one of two is gone", tolerant, ruleNodeIs(testNode("n", hard, taint("l", "", noExecute)), testNode("n", hard)), true},
		{"the tolerated one of two is gone", tolerant, ruleNodeIs(testNode("n", hard, taint("l", "", noExecute)), testNode("n", taint("l", "", noExecute))), false},
		{"a node was opened that has no taints", testPod("p"), ruleNodeIs(testNode("n", cordoned), testNode("n")), false},
		{"another label", testPod("p"), ruleNodeIs(testNode("n", hard), testNode("n", hard, zone("1"))), false},
		{"a toleration, whichever", testPod("p"), ruleItselfIs(testPod("p"), testPod("p", toleration("x", tolExists, "", ""))), true},
		{"a label of the pod", testPod("p"), ruleItselfIs(testPod("p"), testPod("p", labelled("a", "b"))), false},
		{"a pod went", testPod("p"), rulePodWent(testPod("q", on("n"))), false},
	})
}

func TestNodeAffinityFilter(t *testing.T) {
	nodes := []*corev1.Node{
		testNode("a", nodeLabel("disk", "ssd"), nodeLabel("n", "5")), testNode("b", nodeLabel("disk", "hdd"), nodeLabel("n", "10")),
		testNode("c", nodeLabel("disk", ""), nodeLabel("n", "-5")), testNode("d", nodeLabel("n", "five")), testNode("e", nodeLabel("n", "9223372036854775807")),
	}
	all := []string{"a", "b", "c", "d", "e"}
	for _, test := range []struct {
		what string
		pod  *corev1.Pod
		fits string // the nodes that are selected; the others are refused
		only string // the nodes that are asked, when the pod names some
	}{
		{"nothing is selected: all", testPod("p"), "a b c d e", ""},
		{"a selector", testPod("p", selecting("disk", "ssd")), "a", ""},
		{"a selector of the empty value", testPod("p", selecting("disk", "")), "c", ""},
		{"a selector of two labels", testPod("p", selecting("disk", "ssd"), selecting("n", "5")), "a", ""},
		{"a selector of two labels, one of them wrong", testPod("p", selecting("disk", "ssd"), selecting("n", "10")), "", ""},
		{"a selector of an unknown label", testPod("p", selecting("no", "where")), "", ""},
		{"In", testPod("p", requiresNodes(expression("disk", opIn, "ssd", "hdd"))), "a b", ""},
		{"In the empty value", testPod("p", requiresNodes(expression("disk", opIn, ""))), "c", ""},
		{"In nothing cannot be read", testPod("p", requiresNodes(expression("disk", opIn))), "", ""},
		{"NotIn takes nodes without the label", testPod("p", requiresNodes(expression("disk", opNotIn, "ssd"))), "b c d e", ""},
		{"NotIn the empty value", testPod("p", requiresNodes(expression("disk", opNotIn, ""))), "a b d e", ""},
		{"NotIn nothing cannot be read", testPod("p", requiresNodes(expression("disk", opNotIn))), "", ""},
		{"NotIn a value no label can have cannot be read", testPod("p", requiresNodes(expression("disk", opNotIn, "a value!"))), "", ""},
		{"In a value no label can have beside one that can", testPod("p", requiresNodes(expression("disk", opIn, "ssd", "a value!"))), "", ""},
		{"a key no label can have", testPod("p", requiresNodes(expression("a key!", opAbsent))), "", ""},
		{"Exists takes the empty value", testPod("p", requiresNodes(expression("disk", opExists))), "a b c", ""},
		{"Exists with a value cannot be read", testPod("p", requiresNodes(expression("disk", opExists, "ssd"))), "", ""},
		{"DoesNotExist", testPod("p", requiresNodes(expression("disk", opAbsent))), "d e", ""},
		{"DoesNotExist of what nobody has", testPod("p", requiresNodes(expression("nobody", opAbsent))), "a b c d e", ""},
		{"DoesNotExist with a value cannot be read", testPod("p", requiresNodes(expression("disk", opAbsent, "ssd"))), "", ""},
		{"Gt is of numbers, not of letters", testPod("p", requiresNodes(expression("n", opGt, "6"))), "b e", ""},
		{"Gt is more than, not as much", testPod("p", requiresNodes(expression("n", opGt, "10"))), "e", ""},
		{"Gt of a negative number cannot be read: it is no label value", testPod("p", requiresNodes(expression("n", opGt, "-6"))), "", ""},
		{"Lt is less than, not as much", testPod("p", requiresNodes(expression("n", opLt, "5"))), "c", ""},
		{"Lt", testPod("p", requiresNodes(expression("n", opLt, "10"))), "a c", ""},
		{"Lt of a very large number", testPod("p", requiresNodes(expression("n", opLt, "9223372036854775807"))), "a b c", ""},
		{"Gt needs the label", testPod("p", requiresNodes(expression("disk", opGt, "0"))), "", ""},
		{"Lt of two numbers cannot be read", testPod("p", requiresNodes(expression("n", opLt, "5", "50"))), "", ""},
		{"Gt of none cannot be read", testPod("p", requiresNodes(expression("n", opGt))), "", ""},
		{"Gt of a word cannot be read", testPod("p", requiresNodes(expression("n", opGt, "few"))), "", ""},
		{"an operator nobody knows", testPod("p", requiresNodes(expression("n", "Near", "5"))), "", ""},
		{"all demands of a term", testPod("p", requiresNodes(nodeTerm(nodeRequirement("disk", opExists), nodeRequirement("n", opGt, "6")))), "b", ""},
		{"a demand that cannot be read spoils its term", testPod("p", requiresNodes(nodeTerm(nodeRequirement("disk", opExists), nodeRequirement("n", opNotIn)))), "", ""},
		{"but not the other terms", testPod("p", requiresNodes(expression("n", opNotIn), expression("disk", opIn, "hdd"))), "b", ""},
		{"any term", testPod("p", requiresNodes(expression("disk", opIn, "ssd"), expression("n", opIn, "five"))), "a d", ""},
		{"an empty term matches nothing", testPod("p", requiresNodes(corev1.NodeSelectorTerm{})), "", ""},
		{"an empty term beside another", testPod("p", requiresNodes(corev1.NodeSelectorTerm{}, expression("disk", opIn, "ssd"))), "a", ""},
		{"no term at all matches nothing", testPod("p", requiresNodes()), "", ""},
		{"selector and affinity must both match", testPod("p", selecting("disk", "ssd"), requiresNodes(expression("n", opIn, "5", "10"))), "a", ""},
		{"selector and affinity that exclude each other", testPod("p", selecting("disk", "ssd"), requiresNodes(expression("n", opIn, "10"))), "", ""},
		{"a selector without affinity but for other pods", testPod("p", selecting("disk", "hdd"), near("disk", "a", "b")), "b", ""},
		{"one node by name", testPod("p", requiresNodes(named("b"))), "b", "b"},
		{"one of two nodes by name", testPod("p", requiresNodes(named("b"), named("d"))), "b d", "b d"},
		{"a node that does not exist", testPod("p", requiresNodes(named("z"))), "", "z"},
		{"the same node twice", testPod("p", requiresNodes(named("b"), named("b"))), "b", "b"},
		{"two names in one demand cannot be read", testPod("p", requiresNodes(named("a", "b"))), "", "a b"},
		{"no name in a demand", testPod("p", requiresNodes(named())), "conflict", ""},
		{"not one node", testPod("p", requiresNodes(nodeFieldTerm(nodeRequirement("metadata.name", opNotIn, "b")))), "a c d e", ""},
		{"not two nodes in one demand cannot be read", testPod("p", requiresNodes(nodeFieldTerm(nodeRequirement("metadata.name", opNotIn, "b", "c")))), "", ""},
		{"not two nodes", testPod("p", requiresNodes(nodeFieldTerm(nodeRequirement("metadata.name", opNotIn, "b"), nodeRequirement("metadata.name", opNotIn, "c")))), "a d e", ""},
		{"a name and not the same name", testPod("p", requiresNodes(nodeFieldTerm(nodeRequirement("metadata.name", opIn, "b"), nodeRequirement("metadata.name", opNotIn, "b")))), "", "b"},
		{"two names that exclude each other", testPod("p", requiresNodes(nodeFieldTerm(nodeRequirement("metadata.name", opIn, "a"), nodeRequirement("metadata.name", opIn, "b")))), "conflict", ""},
		{"two names that exclude each other, or another", testPod("p", requiresNodes(nodeFieldTerm(nodeRequirement("metadata.name", opIn, "a"), nodeRequirement("metadata.name", opIn, "b")), named("c"))), "c", "c"},
		{"a name, or any with a label: all are asked", testPod("p", requiresNodes(named("c"), expression("disk", opIn, "ssd"))), "a c", ""},
		{"a name, or an empty term: all are asked", testPod("p", requiresNodes(named("c"), corev1.NodeSelectorTerm{})), "c", ""},
		{"a name and a label", testPod("p", requiresNodes(corev1.NodeSelectorTerm{MatchFields: named("b").MatchFields, MatchExpressions: expression("disk", opIn, "ssd").MatchExpressions})), "", "b"},
		{"a name and a selector", testPod("p", selecting("disk", "ssd"), requiresNodes(named("a"), named("b"))), "a", "a b"},
		{"a field by existence cannot be read", testPod("p", requiresNodes(nodeFieldTerm(nodeRequirement("metadata.name", opExists)))), "", ""},
		{"another field is empty", testPod("p", requiresNodes(nodeFieldTerm(nodeRequirement("metadata.namespace", opIn, "x")))), "", ""},
		{"another field is not something", testPod("p", requiresNodes(nodeFieldTerm(nodeRequirement("metadata.namespace", opNotIn, "x")))), "a b c d e", ""},
		{"another field and a name", testPod("p", requiresNodes(nodeFieldTerm(nodeRequirement("spec.unschedulable", opNotIn, "true"), nodeRequirement("metadata.name", opIn, "e")))), "e", "e"},
	} {
		t.Run(test.what, func(t *testing.T) {
			rule := mustRule[*nodeAffinity](t, nodeAffinityName, "")
			want := map[string]string{}
			for _, name := range all {
				switch fits, only := strings.Fields(test.fits), strings.Fields(test.only); {
				case test.fits == "conflict":
					want[name] = conflictReason
				case len(only) > 0 && !slices.Contains(only, name):
					want[name] = "not asked"
				case !slices.Contains(fits, name):
					want[name] = affinityReason
				}
			}
			s := cluster(t, nodes)
			if got := ruleRefusals(t, rule, s, test.pod); !maps.Equal(got, want) {
				t.Errorf("refused %v, want %v", got, want)
			}
			// Nodes that come after the pod was read, with values nobody had before, are judged as those that were there.
			late := cluster(t, nodes[:1])
			f, _ := rule.Filter(late, infoOf(t, test.pod))
			for _, n := range nodes[1:] {
				late.SetNode(n)
			}
			for _, name := range all {
				if f.Check == nil || want[name] == "not asked" || want[name] == conflictReason {
					continue
				}
				if refused := f.Check(late.nodeNumber[name]) != nil; refused != (want[name] != "") {
					t.Errorf("node %s that came later: refused is %t", name, refused)
				}
			}
		})
	}
}

func TestNodeAffinityAdded(t *testing.T) {
	added := func(required *corev1.NodeSelector, preferred ...corev1.PreferredSchedulingTerm) *nodeAffinity {
		return &nodeAffinity{added: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: required, PreferredDuringSchedulingIgnoredDuringExecution: preferred}}
	}
	ssd := &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{expression("disk", opIn, "ssd")}}
	nodes := []*corev1.Node{testNode("a", nodeLabel("disk", "ssd"), zone("1")), testNode("b", nodeLabel("disk", "hdd"), zone("1")), testNode("c", nodeLabel("disk", "ssd")), testNode("d")}
	for _, test := range []struct {
		what string
		rule *nodeAffinity
		pod  *corev1.Pod
		want map[string]string
	}{
		{"all pods are kept to the nodes", added(ssd), testPod("p"), map[string]string{"b": enforcedReason, "d": enforcedReason}},
		{"what the profile demands is named first", added(ssd), testPod("p", selecting(corev1.LabelTopologyZone, "1")), map[string]string{"b": enforcedReason, "c": affinityReason, "d": enforcedReason}},
		{"by name, but all nodes are asked", added(&corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{named("d")}}), testPod("p"), map[string]string{"a": enforcedReason, "b": enforcedReason, "c": enforcedReason}},
		{"a pod that names its node", added(ssd), testPod("p", requiresNodes(named("b"))), map[string]string{"a": "not asked", "b": enforcedReason, "c": "not asked", "d": "not asked"}},
		{"no term matches nothing", added(&corev1.NodeSelector{}), testPod("p"), map[string]string{"a": enforcedReason, "b": enforcedReason, "c": enforcedReason, "d": enforcedReason}},
		{"preferences refuse nobody", added(nil, corev1.PreferredSchedulingTerm{Weight: 1, Preference: expression("disk", opIn, "ssd")}), testPod("p"), nil},
		{"nothing is added", &nodeAffinity{}, testPod("p"), nil},
	} {
		if got := ruleRefusals(t, test.rule, cluster(t, nodes), test.pod); !maps.Equal(got, test.want) {
			t.Errorf("%s: %v, want %v", test.what, got, test.want)
		}
	}
	preferSSD := corev1.PreferredSchedulingTerm{Weight: 3, Preference: expression("disk", opIn, "ssd")}
	for _, test := range []struct {
		what string
		rule *nodeAffinity
		pod  *corev1.Pod
		want map[string]int64
	}{
		{"the profile prefers for all pods", added(nil, preferSSD), testPod("p"), map[string]int64{"a": 100, "b": 0, "c": 100, "d": 0}},
		{"what the pod prefers is added", added(nil, preferSSD), testPod("p", prefersNode(1, expression(corev1.LabelTopologyZone, opIn, "1"))), map[string]int64{"a": 100, "b": 25, "c": 75, "d": 0}},
		{"the pod alone", added(ssd), testPod("p", prefersNode(1, expression(corev1.LabelTopologyZone, opIn, "1"))), map[string]int64{"a": 100, "b": 100, "c": 0, "d": 0}},
		{"nobody prefers anything", added(ssd), testPod("p"), nil},
	} {
		if got := ruleScores(t, test.rule, cluster(t, nodes), test.pod); !maps.Equal(got, test.want) {
			t.Errorf("%s: %v, want %v", test.what, got, test.want)
		}
	}
	profile, err := newProfile(ptr.To(profileWith(nodeAffinityName, `{"addedAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"disk","operator":"In","values":["ssd"]}]}]}}}`)))
	if err != nil {
		t.Fatal(err)
	}
	pod := testPod("p", selecting(corev1.LabelTopologyZone, "1"))
	checkHints(t, profile, nodeAffinityName, cluster(t, nodes), []ruleHint{
		{"a node came that both select", pod, ruleNodeCame(nodes[0]), true},
		{"a node came that the profile does not select", pod, ruleNodeCame(nodes[1]), false},
		{"a node came that the pod does not select", pod, ruleNodeCame(nodes[2]), false},
		{"a node got the pod's label", pod, ruleNodeIs(testNode("n", nodeLabel("disk", "ssd")), testNode("n", nodeLabel("disk", "ssd"), zone("1"))), true},
		{"a node got the profile's label", pod, ruleNodeIs(testNode("n", zone("1")), testNode("n", nodeLabel("disk", "ssd"), zone("1"))), true},
		{"a node got the pod's label but not the profile's", pod, ruleNodeIs(testNode("n"), testNode("n", zone("1"))), false},
		{"a node that both select got another label", pod, ruleNodeIs(nodes[0], testNode("a", nodeLabel("disk", "ssd"), zone("1"), nodeLabel("x", "y"))), false},
	})
}

func TestNodeAffinityScore(t *testing.T) {
	nodes := []*corev1.Node{testNode("a", nodeLabel("x", "1"), nodeLabel("y", "1")), testNode("b", nodeLabel("x", "1")), testNode("c", nodeLabel("y", "2")), testNode("d")}
	x1, y1, yAny := expression("x", opIn, "1"), expression("y", opIn, "1"), expression("y", opExists)
	for _, test := range []struct {
		what string
		pod  *corev1.Pod
		want map[string]int64
	}{
		{"nothing is preferred", testPod("p"), nil},
		{"required is not preferred", testPod("p", requiresNodes(x1)), nil},
		{"one preference", testPod("p", prefersNode(1, x1)), map[string]int64{"a": 100, "b": 100, "c": 0, "d": 0}},
		{"one preference of any weight", testPod("p", prefersNode(100, x1)), map[string]int64{"a": 100, "b": 100, "c": 0, "d": 0}},
		{"weights add up", testPod("p", prefersNode(2, x1), prefersNode(1, yAny)), map[string]int64{"a": 100, "b": 66, "c": 33, "d": 0}},
		{"the same preference twice counts twice", testPod("p", prefersNode(1, x1), prefersNode(1, x1), prefersNode(1, yAny)), map[string]int64{"a": 100, "b": 66, "c": 33, "d": 0}},
		{"nobody has it", testPod("p", prefersNode(5, expression("z", opExists))), map[string]int64{"a": 0, "b": 0, "c": 0, "d": 0}},
		{"what is not there is preferred", testPod("p", prefersNode(5, expression("x", opAbsent))), map[string]int64{"a": 0, "b": 0, "c": 100, "d": 100}},
		{"a preference of weight 0 does not count", testPod("p", prefersNode(0, x1), prefersNode(1, y1)), map[string]int64{"a": 100, "b": 0, "c": 0, "d": 0}},
		{"only preferences of weight 0", testPod("p", prefersNode(0, x1)), map[string]int64{"a": 0, "b": 0, "c": 0, "d": 0}},
		{"an empty preference matches nothing", testPod("p", prefersNode(9, corev1.NodeSelectorTerm{}), prefersNode(1, y1)), map[string]int64{"a": 100, "b": 0, "c": 0, "d": 0}},
		{"all demands of a preference", testPod("p", prefersNode(4, nodeTerm(x1.MatchExpressions[0], y1.MatchExpressions[0])), prefersNode(1, yAny)), map[string]int64{"a": 100, "b": 0, "c": 20, "d": 0}},
		{"a node by name", testPod("p", prefersNode(4, named("d")), prefersNode(1, x1)), map[string]int64{"a": 25, "b": 25, "c": 0, "d": 100}},
		{"any but a node by name", testPod("p", prefersNode(4, nodeFieldTerm(nodeRequirement("metadata.name", opNotIn, "d")))), map[string]int64{"a": 100, "b": 100, "c": 100, "d": 0}},
		{"numbers", testPod("p", prefersNode(4, expression("y", opGt, "1"))), map[string]int64{"a": 0, "b": 0, "c": 100, "d": 0}},
	} {
		if got := ruleScores(t, &nodeAffinity{}, cluster(t, nodes), test.pod); !maps.Equal(got, test.want) || (got == nil) != (test.want == nil) {
			t.Errorf("%s: %v, want %v", test.what, got, test.want)
		}
	}
}

// The API server lets preferences in whose values no label can have: such a pod is scheduled where it has no choice, and nowhere else.
func TestNodeAffinityPreferencesThatCannotBeRead(t *testing.T) {
	const why = `running PreScore plugin "NodeAffinity": [1].matchExpressions[0].values[0][x]: Invalid value: "a value!": a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')`
	odd := []podOption{prefersNode(1, expression("x", opExists)), prefersNode(1, expression("x", opIn, "a value!"))}
	for _, test := range []struct {
		what  string
		nodes []*corev1.Node
		pod   *corev1.Pod
		node  string
		fail  string
	}{
		{"two nodes", []*corev1.Node{testNode("a"), testNode("b")}, testPod("p", odd...), "", why},
		{"one node", []*corev1.Node{testNode("a")}, testPod("p", odd...), "a", ""},
		{"two nodes, one of them closed", []*corev1.Node{testNode("a", cordoned), testNode("b")}, testPod("p", odd...), "b", ""},
		{"two nodes, neither of them open", []*corev1.Node{testNode("a", cordoned), testNode("b", cordoned)}, testPod("p", odd...), "", "0/2 nodes are available: 2 node(s) were unschedulable."},
		{"two nodes of which the pod names one", []*corev1.Node{testNode("a"), testNode("b")}, testPod("p", append([]podOption{requiresNodes(named("b"))}, odd...)...), "b", ""},
		{"two nodes of which the pod names both", []*corev1.Node{testNode("a"), testNode("b")}, testPod("p", append([]podOption{requiresNodes(named("a"), named("b"))}, odd...)...), "", why},
		{"two nodes, nominated to one", []*corev1.Node{testNode("a"), testNode("b")}, testPod("p", append([]podOption{nominatedTo("b")}, odd...)...), "b", ""},
		{"two nodes that differ for neighbours", []*corev1.Node{testNode("a", zone("1")), testNode("b")}, testPod("p", append([]podOption{spread(corev1.LabelTopologyZone, 1, corev1.ScheduleAnyway, "a", "b")}, odd...)...), "", why},
	} {
		d, err := Schedule(cluster(t, test.nodes), infoOf(t, test.pod), DefaultProfile())
		fail := ""
		if err != nil {
			fail = err.Error()
		}
		if d.Node != test.node || fail != test.fail {
			t.Errorf("%s: %q, %s, want %q, %s", test.what, d.Node, fail, test.node, test.fail)
		}
	}
}

func TestNodeAffinityHints(t *testing.T) {
	pod := testPod("p", selecting("disk", "ssd"), requiresNodes(expression("n", opGt, "5"), expression("n", opAbsent)))
	byName := testPod("p", requiresNodes(named("n")))
	ssd := nodeLabel("disk", "ssd")
	checkHints(t, DefaultProfile(), nodeAffinityName, cluster(t, nil), []ruleHint{
		{"a node that is selected came", pod, ruleNodeCame(testNode("n", ssd, nodeLabel("n", "6"))), true},
		{"a node the other term selects came", pod, ruleNodeCame(testNode("n", ssd)), true},
		{"a node the selector alone selects came", pod, ruleNodeCame(testNode("n", ssd, nodeLabel("n", "5"))), false},
		{"a node the affinity alone selects came", pod, ruleNodeCame(testNode("n", nodeLabel("n", "6"))), false},
		{"the node got the label", pod, ruleNodeIs(testNode("n"), testNode("n", ssd)), true},
		{"the node's number is large enough now", pod, ruleNodeIs(testNode("n", ssd, nodeLabel("n", "5")), testNode("n", ssd, nodeLabel("n", "6"))), true},
		{"the node was selected before, by the other term", pod, ruleNodeIs(testNode("n", ssd), testNode("n", ssd, nodeLabel("n", "6"))), false},
		{"the node lost the label", pod, ruleNodeIs(testNode("n", ssd), testNode("n")), false},
		{"the node has room", pod, ruleNodeIs(testNode("n", ssd), testNode("n", ssd, nodeHas(corev1.ResourceCPU, "8"))), false},
		{"the node that is named came", byName, ruleNodeCame(testNode("n")), true},
		{"another node came", byName, ruleNodeCame(testNode("m")), false},
		{"the node that is named got a label", byName, ruleNodeIs(testNode("n"), testNode("n", ssd)), false},
		{"a term that cannot be read may match: a node that is not selected otherwise came", testPod("p", requiresNodes(expression("x", opNotIn, "a value!"), expression("disk", opIn, "hdd"))), ruleNodeCame(testNode("n", ssd)), true},
		{"a node that is selected otherwise came", testPod("p", requiresNodes(expression("x", opNotIn, "a value!"), expression("disk", opIn, "ssd"))), ruleNodeCame(testNode("n", ssd)), true},
		{"a node that was selected otherwise has another label", testPod("p", requiresNodes(expression("x", opNotIn, "a value!"), expression("disk", opIn, "ssd"))), ruleNodeIs(testNode("n", ssd), testNode("n", ssd, zone("1"))), false},
		{"a node that was selected otherwise is so no longer", testPod("p", requiresNodes(expression("x", opNotIn, "a value!"), expression("disk", opIn, "ssd"))), ruleNodeIs(testNode("n", ssd), testNode("n")), true},
		{"a node is selected otherwise now", testPod("p", requiresNodes(expression("x", opNotIn, "a value!"), expression("disk", opIn, "ssd"))), ruleNodeIs(testNode("n"), testNode("n", ssd)), true},
		{"the selector is not met, and a term cannot be read", testPod("p", selecting("disk", "hdd"), requiresNodes(expression("x", opNotIn, "a value!"))), ruleNodeCame(testNode("n", ssd)), false},
		{"a pod that selects nothing was not refused for the node's labels", testPod("p"), ruleNodeIs(testNode("n"), testNode("n", ssd)), false},
	})
}

// What a pod selects is what the library the whole of Kubernetes uses says it selects.
func TestNodeAffinityEqualsLibrary(t *testing.T) {
	const seed = 11
	r := rand.New(rand.NewPCG(seed, 1))
	keys := []string{"a", "b", "c"}
	values := []string{"", "1", "2", "10", "x", "-3", "not valid!"}
	requirement := func() corev1.NodeSelectorRequirement {
		return nodeRequirement(oneOf(r, "a", "b", "c", "missing"), oneOf(r, opIn, opNotIn, opExists, opAbsent, opGt, opLt, "Odd"), someOf(r, 2, func() string { return oneOf(r, values...) })...)
	}
	fieldRequirement := func() corev1.NodeSelectorRequirement {
		return nodeRequirement(oneOf(r, "metadata.name", "metadata.name", "metadata.uid"), oneOf(r, opIn, opIn, opNotIn, opExists), someOf(r, 2, func() string { return oneOf(r, "node-00000", "node-00001", "node-00002") })...)
	}
	term := func() corev1.NodeSelectorTerm {
		t := corev1.NodeSelectorTerm{MatchExpressions: someOf(r, 2, requirement)}
		if chance(r, 4) {
			t.MatchFields = someOf(r, 2, fieldRequirement)
		}
		return t
	}
	matched := 0
	for round := range 1500 {
		nodes := nodesNamed(4, func(int) nodeOption {
			set := randomLabels(r, keys, values[:6]...)
			return func(n *corev1.Node) { maps.Copy(n.Labels, set) }
		})
		pod := testPod("p")
		if chance(r, 3) {
			pod.Spec.NodeSelector = randomLabels(r, keys[:2], values[:6]...)
		}
		if !chance(r, 4) {
			requiresNodes(someOf(r, 3, term)...)(pod)
		}
		s := cluster(t, nodes)
		selected := s.requiredSelection(pod)
		library := nodeaffinity.GetRequiredNodeAffinity(pod)
		for i, n := range nodes {
			want, _ := library.Match(n)
			if got := selected == nil || selected.matches(int32(i)); got != want {
				t.Fatalf("seed %d, round %d: node %v is selected by %+v: %t, want %t", seed, round, n.Labels, pod.Spec, got, want)
			}
			if want {
				matched++
			}
		}
		// Preferences, too; one that cannot be read spoils all, so that each is asked for itself.
		for _, x := range someOf(r, 3, func() corev1.PreferredSchedulingTerm {
			return corev1.PreferredSchedulingTerm{Weight: int32(r.IntN(5)), Preference: term()}
		}) {
			preferring := testPod("p", prefersNode(x.Weight, x.Preference))
			score := (&nodeAffinity{}).Score(s, infoOf(t, preferring))
			read, err := nodeaffinity.NewPreferredSchedulingTerms([]corev1.PreferredSchedulingTerm{x})
			for i, n := range nodes {
				if err != nil {
					if score.Err == nil || score.Err.Error() != err.Error() || score.Of != nil {
						t.Fatalf("seed %d, round %d: %+v cannot be read: %v, want %v", seed, round, x, score.Err, err)
					}
					continue
				}
				if got, want := score.Of(int32(i)), read.Score(n); got != want {
					t.Fatalf("seed %d, round %d: node %v is worth %d to %+v, want %d", seed, round, n.Labels, got, x, want)
				}
			}
		}
	}
	if matched < 500 || matched > 5500 {
		t.Errorf("%d of 6000 nodes are selected: too one-sided to tell anything", matched)
	}
}

// The short cut through named nodes never leaves out a node the affinity selects.
func TestNamedNodesLeaveOutNobody(t *testing.T) {
	r := rand.New(rand.NewPCG(12, 1))
	names := []string{"node-00000", "node-00001", "node-00002", "node-00003"}
	limitedOnes := 0
	for range 1000 {
		terms := someOf(r, 3, func() corev1.NodeSelectorTerm {
			t := corev1.NodeSelectorTerm{MatchFields: someOf(r, 2, func() corev1.NodeSelectorRequirement {
				return nodeRequirement("metadata.name", oneOf(r, opIn, opIn, opIn, opNotIn), oneOf(r, names...))
			})}
			if chance(r, 3) {
				t.MatchExpressions = expression("x", opAbsent).MatchExpressions
			}
			return t
		})
		pod := testPod("p", requiresNodes(terms...))
		only, limited := namedNodes(pod)
		if !slices.IsSorted(only) || len(slices.Compact(slices.Clone(only))) != len(only) {
			t.Fatalf("names %v are not in order, or not once each", only)
		}
		library := nodeaffinity.GetRequiredNodeAffinity(pod)
		for _, n := range nodesNamed(4) {
			if match, _ := library.Match(n); match && limited && !slices.Contains(only, n.Name) {
				t.Fatalf("%s is selected by %+v, but only %v are asked", n.Name, terms, only)
			}
		}
		if limited {
			limitedOnes++
		}
	}
	if limitedOnes < 100 {
		t.Errorf("only %d pods are limited to nodes they name", limitedOnes)
	}
}

// One pod's taints and tolerations, judged by the model below, which knows nothing of sets of taints.
func TestTaintTolerationEqualsModel(t *testing.T) {
	r := rand.New(rand.NewPCG(13, 1))
	keys, values := []string{"a", "b"}, []string{"", "1", "2"}
	effects := []corev1.TaintEffect{noSchedule, noExecute, preferNo}
	tolerates := func(tol corev1.Toleration, tnt corev1.Taint) bool {
		if tol.Effect != "" && tol.Effect != tnt.Effect || tol.Key != "" && tol.Key != tnt.Key {
			return false
		}
		return tol.Operator == tolExists || (tol.Operator == "" || tol.Operator == tolEqual) && tol.Value == tnt.Value
	}
	for round := range 600 {
		nodes := nodesNamed(5, func(int) nodeOption {
			taints := someOf(r, 3, func() corev1.Taint {
				return corev1.Taint{Key: oneOf(r, keys...), Value: oneOf(r, values...), Effect: oneOf(r, effects...)}
			})
			return func(n *corev1.Node) { n.Spec.Taints = taints }
		})
		pod := testPod("p")
		pod.Spec.Tolerations = someOf(r, 3, func() corev1.Toleration {
			return corev1.Toleration{Key: oneOf(r, "", "a", "b"), Operator: oneOf(r, tolExists, tolEqual, ""), Value: oneOf(r, values...), Effect: oneOf(r, "", noSchedule, noExecute, preferNo)}
		})
		want, disliked, most := map[string]string{}, map[string]int64{}, int64(0)
		for _, n := range nodes {
			for _, tnt := range n.Spec.Taints {
				if slices.ContainsFunc(pod.Spec.Tolerations, func(tol corev1.Toleration) bool { return tolerates(tol, tnt) }) {
					continue
				}
				if tnt.Effect == preferNo {
					disliked[n.Name]++
				} else {
					want[n.Name] = taintReason
				}
			}
			most = max(most, disliked[n.Name])
		}
		s := cluster(t, nodes)
		if got := ruleRefusals(t, taintToleration{}, s, pod); !maps.Equal(got, want) {
			t.Fatalf("round %d: refused %v, want %v", round, got, want)
		}
		for name, got := range ruleScores(t, taintToleration{}, s, pod) {
			score := int64(100)
			if most > 0 {
				score = 100 - 100*disliked[name]/most
			}
			if got != score {
				t.Fatalf("round %d: %s has %d of at most %d taints and scores %d, want %d", round, name, disliked[name], most, got, score)
			}
		}
	}
}

func TestNodePortsFilter(t *testing.T) {
	tcp, udp, sctp := corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP
	inInit := func(sidecar bool, number int32) podOption {
		return func(p *corev1.Pod) {
			c := corev1.Container{Name: "init", Ports: []corev1.ContainerPort{{HostPort: number}}}
			if sidecar {
				c.RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways)
			}
			p.Spec.InitContainers = append(p.Spec.InitContainers, c)
		}
	}
	inSecond := func(number int32) podOption {
		return func(p *corev1.Pod) {
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "second", Ports: []corev1.ContainerPort{{HostPort: number}}})
		}
	}
	for _, test := range []struct {
		what          string
		has, wants    []podOption
		taken, always bool
	}{
		{what: "nobody wants any port"},
		{what: "a port is wanted that is free", wants: []podOption{port(80, "", tcp)}},
		{what: "a port is taken that nobody wants", has: []podOption{port(80, "", tcp)}},
		{what: "the same port", has: []podOption{port(80, "", tcp)}, wants: []podOption{port(80, "", tcp)}, taken: true},
		{what: "another port", has: []podOption{port(80, "", tcp)}, wants: []podOption{port(81, "", tcp)}},
		{what: "another protocol", has: []podOption{port(80, "", tcp)}, wants: []podOption{port(80, "", udp)}},
		{what: "the same port of UDP", has: []podOption{port(53, "", udp)}, wants: []podOption{port(53, "", udp)}, taken: true},
		{what: "the same port of SCTP", has: []podOption{port(53, "", sctp)}, wants: []podOption{port(53, "", sctp)}, taken: true},
		{what: "no protocol is TCP", has: []podOption{port(80, "", "")}, wants: []podOption{port(80, "", tcp)}, taken: true},
		{what: "no protocol on both sides", has: []podOption{port(80, "", "")}, wants: []podOption{port(80, "", "")}, taken: true},
		{what: "no protocol is not UDP", has: []podOption{port(80, "", "")}, wants: []podOption{port(80, "", udp)}},
		{what: "no address is all addresses", has: []podOption{port(80, "", tcp)}, wants: []podOption{port(80, "0.0.0.0", tcp)}, taken: true},
		{what: "all addresses, and one of them is taken", has: []podOption{port(80, "10.0.0.1", tcp)}, wants: []podOption{port(80, "", tcp)}, taken: true},
		{what: "one address, and all of them are taken", has: []podOption{port(80, "0.0.0.0", tcp)}, wants: []podOption{port(80, "10.0.0.1", tcp)}, taken: true},
		{what: "the same address", has: []podOption{port(80, "10.0.0.1", tcp)}, wants: []podOption{port(80, "10.0.0.1", tcp)}, taken: true},
		{what: "two addresses", has: []podOption{port(80, "10.0.0.1", tcp)}, wants: []podOption{port(80, "10.0.0.2", tcp)}},
		{what: "all addresses of another protocol", has: []podOption{port(80, "10.0.0.1", udp)}, wants: []podOption{port(80, "", tcp)}},
		{what: "an address of the other family under all addresses", has: []podOption{port(80, "", tcp)}, wants: []podOption{port(80, "fd00::1", tcp)}, taken: true},
		{what: "two addresses of the other family", has: []podOption{port(80, "fd00::1", tcp)}, wants: []podOption{port(80, "fd00::2", tcp)}},
		{what: "the other family's any address is an address like others", has: []podOption{port(80, "::", tcp)}, wants: []podOption{port(80, "fd00::1", tcp)}},
		{what: "port 0 is no port", has: []podOption{port(0, "", tcp)}, wants: []podOption{port(0, "", tcp)}},
		{what: "a negative port is no port", has: []podOption{port(-1, "", tcp)}, wants: []podOption{port(-1, "", tcp)}},
		{what: "the second of two ports", has: []podOption{port(80, "", tcp), port(81, "", tcp)}, wants: []podOption{port(90, "", tcp), port(81, "", tcp)}, taken: true},
		{what: "the second container", has: []podOption{inSecond(80)}, wants: []podOption{inSecond(80)}, taken: true},
		{what: "a sidecar's port is wanted", has: []podOption{port(80, "", tcp)}, wants: []podOption{inInit(true, 80)}, taken: true},
		{what: "a sidecar's port is taken", has: []podOption{inInit(true, 80)}, wants: []podOption{port(80, "", tcp)}, taken: true},
		{what: "an init container's port is not wanted", has: []podOption{port(80, "", tcp)}, wants: []podOption{inInit(false, 80)}},
		{what: "an init container's port is not taken", has: []podOption{inInit(false, 80)}, wants: []podOption{port(80, "", tcp)}},
		{what: "a pod that wants a port twice has no quarrel with itself", wants: []podOption{port(80, "", tcp), port(80, "", tcp)}},
	} {
		t.Run(test.what, func(t *testing.T) {
			want := map[string]string{}
			if test.taken {
				want["a"] = takenPortReason
			}
			holder := testPod("holder", append(test.has, on("a"))...)
			s := cluster(t, []*corev1.Node{testNode("a"), testNode("b")}, holder)
			wanting := testPod("p", test.wants...)
			if got := ruleRefusals(t, nodePorts{}, s, wanting); !maps.Equal(got, want) {
				t.Errorf("refused %v, want %v", got, want)
			}
			// It is the holder's going that helps, and nothing else.
			if got := ruleHelps(t, DefaultProfile(), nodePortsName, s, wanting, rulePodWent(holder)); got != test.taken {
				t.Errorf("the holder's going helps is %t", got)
			}
			s.DeletePod("holder")
			if got := ruleRefusals(t, nodePorts{}, s, wanting); len(got) > 0 {
				t.Errorf("after the holder has gone: %v", got)
			}
		})
	}
}

func TestNodePortsHints(t *testing.T) {
	web := testPod("p", port(80, "", corev1.ProtocolTCP))
	checkHints(t, DefaultProfile(), nodePortsName, cluster(t, nil), []ruleHint{
		{"who was only nominated went", web, rulePodWent(testPod("x", nominatedTo("n"), port(80, "", corev1.ProtocolTCP))), true},
		{"who was nowhere went", web, rulePodWent(testPod("x", port(80, "", corev1.ProtocolTCP))), false},
		{"who has no ports went", web, rulePodWent(testPod("x", on("n"))), false},
		{"a pod came", web, rulePodCame(testPod("x", on("n"), port(80, "", corev1.ProtocolTCP))), false},
		{"a pod has other labels", web, rulePodIs(testPod("x", on("n"), port(80, "", corev1.ProtocolTCP)), testPod("x", on("n"), labelled("a", "b"))), false},
		{"a node came, whatever it is", web, ruleNodeCame(testNode("n", cordoned)), true},
		{"a node has room", web, ruleNodeIs(testNode("n"), testNode("n", nodeHas(corev1.ResourceCPU, "9"))), false},
	})
}

// Two pods of a node that hold one port, as can be when somebody else binds: one of them goes, and the port is still taken.
func TestNodePortsHeldTwice(t *testing.T) {
	web := []podOption{on("a"), port(80, "", corev1.ProtocolTCP)}
	s := cluster(t, []*corev1.Node{testNode("a")}, testPod("1", web...), testPod("2", web...))
	for _, step := range []struct {
		gone string
		want int
	}{{"", 1}, {"1", 1}, {"2", 0}} {
		if step.gone != "" {
			s.DeletePod(testPod(step.gone).UID)
		}
		if got := ruleRefusals(t, nodePorts{}, s, testPod("p", port(80, "10.0.0.1", corev1.ProtocolTCP))); len(got) != step.want {
			t.Errorf("after %q went: %v, want %d", step.gone, got, step.want)
		}
	}
}

// Ports on random nodes, judged by a model that compares every pair of sockets.
func TestNodePortsEqualModel(t *testing.T) {
	r := rand.New(rand.NewPCG(14, 1))
	type socket struct {
		ip, protocol string
		port         int32
	}
	draw := func() socket {
		return socket{oneOf(r, "", "0.0.0.0", "10.0.0.1", "10.0.0.2", "::1"), oneOf(r, "", "TCP", "UDP"), int32(80 + r.IntN(3))}
	}
	same := func(a, b string, both string) bool {
		if a == "" {
			a = both
		}
		if b == "" {
			b = both
		}
		return a == b
	}
	conflict := func(a, b socket) bool {
		open := func(ip string) bool { return ip == "" || ip == "0.0.0.0" }
		return a.port == b.port && same(a.protocol, b.protocol, "TCP") && (open(a.ip) || open(b.ip) || a.ip == b.ip)
	}
	refused := 0
	for round := range 1000 {
		has, wants := someOf(r, 3, draw), someOf(r, 2, draw)
		podOf := func(name string, sockets []socket, options ...podOption) *corev1.Pod {
			for _, x := range sockets {
				options = append(options, port(x.port, x.ip, corev1.Protocol(x.protocol)))
			}
			return testPod(name, options...)
		}
		taken := slices.ContainsFunc(wants, func(w socket) bool {
			return slices.ContainsFunc(has, func(h socket) bool { return conflict(w, h) })
		})
		s := cluster(t, []*corev1.Node{testNode("a")}, podOf("1", has, on("a")))
		if got := len(ruleRefusals(t, nodePorts{}, s, podOf("p", wants))) > 0; got != taken {
			t.Fatalf("round %d: %v on a node with %v: refused is %t", round, wants, has, got)
		}
		if taken {
			refused++
		}
	}
	if refused < 100 || refused > 900 {
		t.Errorf("%d of 1000 are refused: too one-sided to tell anything", refused)
	}
}

// The arguments the file has, through the file's own path.
func TestNodeAffinityArgumentsReachTheRule(t *testing.T) {
	args := configv1.NodeAffinityArgs{AddedAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{expression("disk", opIn, "ssd")}}}}
	data, err := json.Marshal(args)
	if err != nil {
		t.Fatal(err)
	}
	profile, err := newProfile(ptr.To(profileWith(nodeAffinityName, string(data))))
	if err != nil {
		t.Fatal(err)
	}
	s := cluster(t, []*corev1.Node{testNode("a", nodeLabel("disk", "ssd")), testNode("b")})
	want := map[string]string{"b": strings.TrimPrefix(enforcedReason, lasting)}
	if got := refusalsOf(t, s, testPod("p"), profile); !maps.Equal(got, want) {
		t.Errorf("refused %v, want %v", got, want)
	}
	other := DefaultProfile()
	other.Name = "other"
	if got := refusalsOf(t, s, testPod("p"), other); len(got) > 0 {
		t.Errorf("another profile refuses %v", got)
	}
}

// Taints, labels and the like follow the node: what a node says today counts, in tables already made.
func TestNodeRulesFollowTheNode(t *testing.T) {
	profile := DefaultProfile()
	s := cluster(t, []*corev1.Node{testNode("a"), testNode("b")})
	pod := testPod("p", requiresNodes(expression("disk", opNotIn, "hdd")))
	for _, step := range []struct {
		what string
		node *corev1.Node
		want string
	}{
		{"as it came", testNode("a"), ""},
		{"closed", testNode("a", cordoned), unschedulableReason},
		{"opened", testNode("a"), ""},
		{"tainted", testNode("a", taint("k", "v", noExecute)), taintReason},
		{"tainted softly", testNode("a", taint("k", "v", preferNo)), ""},
		{"tainted otherwise", testNode("a", taint("k", "w", noSchedule)), taintReason},
		{"labelled as not wanted", testNode("a", nodeLabel("disk", "hdd")), affinityReason},
		{"labelled otherwise", testNode("a", nodeLabel("disk", "ssd")), ""},
		{"closed, tainted and labelled: the first rule speaks", testNode("a", cordoned, taint("k", "w", noSchedule), nodeLabel("disk", "hdd")), unschedulableReason},
		{"tainted and labelled", testNode("a", taint("k", "w", noSchedule), nodeLabel("disk", "hdd")), taintReason},
	} {
		s.SetNode(step.node)
		want := map[string]string{}
		if step.want != "" {
			want["a"] = strings.TrimPrefix(step.want, lasting)
		}
		if got := refusalsOf(t, s, pod, profile); !maps.Equal(got, want) {
			t.Errorf("%s: %v, want %v", step.what, got, want)
		}
	}
	s.DeleteNode("a")
	s.SetNode(testNode("c", cordoned)) // takes the number of a
	if got := refusalsOf(t, s, pod, profile); !maps.Equal(got, map[string]string{"c": strings.TrimPrefix(unschedulableReason, lasting)}) {
		t.Errorf("a node in place of another: %v", got)
	}
}
