package plugins

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

	"skiff/internal/scheduler/schedulertest"
	"skiff/internal/scheduler/snapshot/snapshottest"
)

func TestNodeNameFilter(t *testing.T) {
	s := snapshottest.New(t, []*corev1.Node{schedulertest.TestNode("a"), schedulertest.TestNode("ab"), schedulertest.TestNode("b")})
	for _, test := range []struct {
		what string
		pod  *corev1.Pod
		want map[string]string
	}{
		{"a pod without a node may go anywhere", schedulertest.TestPod("p"), nil},
		{"a pod with a node goes there alone", schedulertest.TestPod("p", schedulertest.OnNode("a")), map[string]string{"ab": schedulertest.OtherNodeReason, "b": schedulertest.OtherNodeReason}},
		{"a node that does not exist is none of them", schedulertest.TestPod("p", schedulertest.OnNode("c")), map[string]string{"a": schedulertest.OtherNodeReason, "ab": schedulertest.OtherNodeReason, "b": schedulertest.OtherNodeReason}},
		{"where a pod is nominated to does not bind it", schedulertest.TestPod("p", schedulertest.NominatedTo("b")), nil},
	} {
		if got := pluginRefusals(t, nodeName{}, s, test.pod); !maps.Equal(got, test.want) {
			t.Errorf("%s: %v, want %v", test.what, got, test.want)
		}
	}
	checkHints(t, DefaultProfile(), NodeNameName, s, []ruleHint{
		{"a node came", schedulertest.TestPod("p", schedulertest.OnNode("x")), ruleNodeCame(schedulertest.TestNode("x")), true},
		{"another node came, which is not asked for its name", schedulertest.TestPod("p", schedulertest.OnNode("x")), ruleNodeCame(schedulertest.TestNode("y")), true},
		{"a node has other labels", schedulertest.TestPod("p", schedulertest.OnNode("x")), ruleNodeIs(schedulertest.TestNode("x"), schedulertest.TestNode("x", schedulertest.Zone("1"))), false},
		{"a node went", schedulertest.TestPod("p", schedulertest.OnNode("x")), ruleNodeWent(schedulertest.TestNode("x")), false},
		{"a pod went", schedulertest.TestPod("p", schedulertest.OnNode("x")), rulePodWent(schedulertest.TestPod("q", schedulertest.OnNode("x"))), false},
	})
}

func TestNodeUnschedulableFilter(t *testing.T) {
	s := snapshottest.New(t, []*corev1.Node{schedulertest.TestNode("open"), schedulertest.TestNode("closed", schedulertest.Cordoned), schedulertest.TestNode("tainted", schedulertest.Taint(schedulertest.UnschedulableTaint, "", schedulertest.NoSchedule))})
	closed := map[string]string{"closed": schedulertest.UnschedulableReason}
	for _, test := range []struct {
		what string
		pod  *corev1.Pod
		want map[string]string
	}{
		{"a closed node takes nobody; the taint alone is not this rule's business", schedulertest.TestPod("p"), closed},
		{"by key and existence", schedulertest.TestPod("p", schedulertest.Toleration(schedulertest.UnschedulableTaint, schedulertest.TolExists, "", "")), nil},
		{"by key, existence and effect", schedulertest.TestPod("p", schedulertest.Toleration(schedulertest.UnschedulableTaint, schedulertest.TolExists, "", schedulertest.NoSchedule)), nil},
		{"by key and the empty value", schedulertest.TestPod("p", schedulertest.Toleration(schedulertest.UnschedulableTaint, "", "", schedulertest.NoSchedule)), nil},
		{"by key and the empty value, the operator spelt out", schedulertest.TestPod("p", schedulertest.Toleration(schedulertest.UnschedulableTaint, schedulertest.TolEqual, "", "")), nil},
		{"everything is tolerated", schedulertest.TestPod("p", schedulertest.Toleration("", schedulertest.TolExists, "", "")), nil},
		{"a value the taint does not have", schedulertest.TestPod("p", schedulertest.Toleration(schedulertest.UnschedulableTaint, schedulertest.TolEqual, "true", schedulertest.NoSchedule)), closed},
		{"another effect", schedulertest.TestPod("p", schedulertest.Toleration(schedulertest.UnschedulableTaint, schedulertest.TolExists, "", schedulertest.NoExecute)), closed},
		{"the soft effect", schedulertest.TestPod("p", schedulertest.Toleration(schedulertest.UnschedulableTaint, schedulertest.TolExists, "", schedulertest.PreferNo)), closed},
		{"another key", schedulertest.TestPod("p", schedulertest.Toleration(schedulertest.NotReadyTaint, schedulertest.TolExists, "", "")), closed},
		{"an operator nobody knows", schedulertest.TestPod("p", schedulertest.Toleration(schedulertest.UnschedulableTaint, "Is", "", "")), closed},
		{"a comparison", schedulertest.TestPod("p", schedulertest.Toleration(schedulertest.UnschedulableTaint, corev1.TolerationOpGt, "0", "")), closed},
		{"the second of two", schedulertest.TestPod("p", schedulertest.Toleration("x", schedulertest.TolExists, "", ""), schedulertest.Toleration(schedulertest.UnschedulableTaint, schedulertest.TolExists, "", "")), nil},
	} {
		if got := pluginRefusals(t, nodeUnschedulable{}, s, test.pod); !maps.Equal(got, test.want) {
			t.Errorf("%s: %v, want %v", test.what, got, test.want)
		}
	}
	tolerant := schedulertest.Toleration(schedulertest.UnschedulableTaint, schedulertest.TolExists, "", "")
	checkHints(t, DefaultProfile(), NodeUnschedulableName, s, []ruleHint{
		{"an open node came", schedulertest.TestPod("p"), ruleNodeCame(schedulertest.TestNode("n")), true},
		{"a closed node came", schedulertest.TestPod("p"), ruleNodeCame(schedulertest.TestNode("n", schedulertest.Cordoned)), false},
		{"a node was opened", schedulertest.TestPod("p"), ruleNodeIs(schedulertest.TestNode("n", schedulertest.Cordoned), schedulertest.TestNode("n")), true},
		{"a node was closed", schedulertest.TestPod("p"), ruleNodeIs(schedulertest.TestNode("n"), schedulertest.TestNode("n", schedulertest.Cordoned)), false},
		{"an open node got rid of a taint", schedulertest.TestPod("p"), ruleNodeIs(schedulertest.TestNode("n", schedulertest.Taint("k", "v", schedulertest.NoSchedule)), schedulertest.TestNode("n")), false},
		{"a closed node got rid of a taint", schedulertest.TestPod("p"), ruleNodeIs(schedulertest.TestNode("n", schedulertest.Cordoned, schedulertest.Taint("k", "v", schedulertest.NoSchedule)), schedulertest.TestNode("n", schedulertest.Cordoned)), false},
		{"a node was opened and got a label", schedulertest.TestPod("p"), ruleNodeIs(schedulertest.TestNode("n", schedulertest.Cordoned), schedulertest.TestNode("n", schedulertest.Zone("1"))), true},
		{"the pod tolerates it now", schedulertest.TestPod("p"), ruleItselfIs(schedulertest.TestPod("p"), schedulertest.TestPod("p", tolerant)), true},
		{"the pod tolerates something else now", schedulertest.TestPod("p"), ruleItselfIs(schedulertest.TestPod("p"), schedulertest.TestPod("p", schedulertest.Toleration("x", schedulertest.TolExists, "", ""))), false},
		{"the pod has another label", schedulertest.TestPod("p"), ruleItselfIs(schedulertest.TestPod("p"), schedulertest.TestPod("p", schedulertest.Labelled("a", "b"))), false},
	})
}

func TestTaintTolerationFilter(t *testing.T) {
	type row struct {
		what   string
		taints []schedulertest.NodeOption
		pod    []schedulertest.PodOption
		fits   bool
	}
	for _, test := range []row{
		{"no taints", nil, nil, true},
		{"no taints, a toleration too many", nil, []schedulertest.PodOption{schedulertest.Toleration("k", schedulertest.TolExists, "", "")}, true},
		{"NoSchedule", []schedulertest.NodeOption{schedulertest.Taint("k", "v", schedulertest.NoSchedule)}, nil, false},
		{"NoExecute", []schedulertest.NodeOption{schedulertest.Taint("k", "v", schedulertest.NoExecute)}, nil, false},
		{"PreferNoSchedule keeps nobody away", []schedulertest.NodeOption{schedulertest.Taint("k", "v", schedulertest.PreferNo)}, nil, true},
		{"an effect nobody knows keeps nobody away", []schedulertest.NodeOption{schedulertest.Taint("k", "v", "NoFun")}, nil, true},
		{"a taint without effect keeps nobody away", []schedulertest.NodeOption{schedulertest.Taint("k", "v", "")}, nil, true},
		{"equal in all", []schedulertest.NodeOption{schedulertest.Taint("k", "v", schedulertest.NoSchedule)}, []schedulertest.PodOption{schedulertest.Toleration("k", schedulertest.TolEqual, "v", schedulertest.NoSchedule)}, true},
		{"equal, the operator left out", []schedulertest.NodeOption{schedulertest.Taint("k", "v", schedulertest.NoSchedule)}, []schedulertest.PodOption{schedulertest.Toleration("k", "", "v", schedulertest.NoSchedule)}, true},
		{"any effect", []schedulertest.NodeOption{schedulertest.Taint("k", "v", schedulertest.NoExecute)}, []schedulertest.PodOption{schedulertest.Toleration("k", schedulertest.TolEqual, "v", "")}, true},
		{"another effect", []schedulertest.NodeOption{schedulertest.Taint("k", "v", schedulertest.NoExecute)}, []schedulertest.PodOption{schedulertest.Toleration("k", schedulertest.TolEqual, "v", schedulertest.NoSchedule)}, false},
		{"another value", []schedulertest.NodeOption{schedulertest.Taint("k", "v", schedulertest.NoSchedule)}, []schedulertest.PodOption{schedulertest.Toleration("k", schedulertest.TolEqual, "w", schedulertest.NoSchedule)}, false},
		{"another key", []schedulertest.NodeOption{schedulertest.Taint("k", "v", schedulertest.NoSchedule)}, []schedulertest.PodOption{schedulertest.Toleration("l", schedulertest.TolEqual, "v", schedulertest.NoSchedule)}, false},
		{"any value", []schedulertest.NodeOption{schedulertest.Taint("k", "v", schedulertest.NoSchedule)}, []schedulertest.PodOption{schedulertest.Toleration("k", schedulertest.TolExists, "", schedulertest.NoSchedule)}, true},
		{"a value is not looked at where existence is asked", []schedulertest.NodeOption{schedulertest.Taint("k", "v", schedulertest.NoSchedule)}, []schedulertest.PodOption{schedulertest.Toleration("k", schedulertest.TolExists, "w", schedulertest.NoSchedule)}, true},
		{"any key", []schedulertest.NodeOption{schedulertest.Taint("k", "v", schedulertest.NoSchedule), schedulertest.Taint("l", "", schedulertest.NoExecute)}, []schedulertest.PodOption{schedulertest.Toleration("", schedulertest.TolExists, "", "")}, true},
		{"any key of one effect", []schedulertest.NodeOption{schedulertest.Taint("k", "v", schedulertest.NoSchedule), schedulertest.Taint("l", "", schedulertest.NoExecute)}, []schedulertest.PodOption{schedulertest.Toleration("", schedulertest.TolExists, "", schedulertest.NoSchedule)}, false},
		{"no key and a value: all taints with that value", []schedulertest.NodeOption{schedulertest.Taint("k", "v", schedulertest.NoSchedule)}, []schedulertest.PodOption{schedulertest.Toleration("", schedulertest.TolEqual, "v", "")}, true},
		{"no key and another value", []schedulertest.NodeOption{schedulertest.Taint("k", "v", schedulertest.NoSchedule)}, []schedulertest.PodOption{schedulertest.Toleration("", schedulertest.TolEqual, "w", "")}, false},
		{"an empty value equals an empty value", []schedulertest.NodeOption{schedulertest.Taint("k", "", schedulertest.NoSchedule)}, []schedulertest.PodOption{schedulertest.Toleration("k", "", "", "")}, true},
		{"an empty value is not any value", []schedulertest.NodeOption{schedulertest.Taint("k", "v", schedulertest.NoSchedule)}, []schedulertest.PodOption{schedulertest.Toleration("k", "", "", "")}, false},
		{"one of two", []schedulertest.NodeOption{schedulertest.Taint("k", "v", schedulertest.NoSchedule), schedulertest.Taint("l", "w", schedulertest.NoSchedule)}, []schedulertest.PodOption{schedulertest.Toleration("k", schedulertest.TolExists, "", "")}, false},
		{"the other of two", []schedulertest.NodeOption{schedulertest.Taint("k", "v", schedulertest.NoSchedule), schedulertest.Taint("l", "w", schedulertest.NoSchedule)}, []schedulertest.PodOption{schedulertest.Toleration("l", schedulertest.TolExists, "", "")}, false},
		{"both of two", []schedulertest.NodeOption{schedulertest.Taint("k", "v", schedulertest.NoSchedule), schedulertest.Taint("l", "w", schedulertest.NoSchedule)}, []schedulertest.PodOption{schedulertest.Toleration("l", schedulertest.TolExists, "", ""), schedulertest.Toleration("k", schedulertest.TolExists, "", "")}, true},
		{"one key with two effects, one tolerated", []schedulertest.NodeOption{schedulertest.Taint("k", "v", schedulertest.NoSchedule), schedulertest.Taint("k", "v", schedulertest.NoExecute)}, []schedulertest.PodOption{schedulertest.Toleration("k", schedulertest.TolExists, "", schedulertest.NoExecute)}, false},
		{"one key with two effects, both tolerated", []schedulertest.NodeOption{schedulertest.Taint("k", "v", schedulertest.NoSchedule), schedulertest.Taint("k", "v", schedulertest.NoExecute)}, []schedulertest.PodOption{schedulertest.Toleration("k", schedulertest.TolExists, "", "")}, true},
		{"a soft taint beside a tolerated hard one", []schedulertest.NodeOption{schedulertest.Taint("s", "", schedulertest.PreferNo), schedulertest.Taint("k", "v", schedulertest.NoSchedule)}, []schedulertest.PodOption{schedulertest.Toleration("k", schedulertest.TolExists, "", "")}, true},
		{"tolerating for a while is tolerating", []schedulertest.NodeOption{schedulertest.Taint("k", "v", schedulertest.NoExecute)}, []schedulertest.PodOption{schedulertest.Tolerating(corev1.Toleration{Key: "k", Operator: schedulertest.TolExists, TolerationSeconds: ptr.To[int64](0)})}, true},
		{"more than, which is not switched on", []schedulertest.NodeOption{schedulertest.Taint("k", "5", schedulertest.NoSchedule)}, []schedulertest.PodOption{schedulertest.Toleration("k", corev1.TolerationOpGt, "4", "")}, false},
		{"less than, which is not switched on", []schedulertest.NodeOption{schedulertest.Taint("k", "5", schedulertest.NoSchedule)}, []schedulertest.PodOption{schedulertest.Toleration("k", corev1.TolerationOpLt, "6", "")}, false},
		{"an operator nobody knows", []schedulertest.NodeOption{schedulertest.Taint("k", "v", schedulertest.NoSchedule)}, []schedulertest.PodOption{schedulertest.Toleration("k", "Is", "v", "")}, false},
		{"keys are compared to the letter", []schedulertest.NodeOption{schedulertest.Taint("k", "v", schedulertest.NoSchedule)}, []schedulertest.PodOption{schedulertest.Toleration("K", schedulertest.TolExists, "", "")}, false},
	} {
		t.Run(test.what, func(t *testing.T) {
			want := map[string]string{}
			if !test.fits {
				want["n"] = schedulertest.TaintReason
			}
			s := snapshottest.New(t, []*corev1.Node{schedulertest.TestNode("n", test.taints...), schedulertest.TestNode("free")})
			if got := pluginRefusals(t, taintToleration{}, s, schedulertest.TestPod("p", test.pod...)); !maps.Equal(got, want) {
				t.Errorf("refused %v, want %v", got, want)
			}
			// What a pod tolerates must count from the first to the last node with the same taints, and whatever taints came before.
			many := schedulertest.TestNodes(6, func(i int) schedulertest.NodeOption {
				return func(n *corev1.Node) {
					if i%2 == 0 {
						schedulertest.Taint("other", fmt.Sprint(i), schedulertest.NoSchedule)(n)
						return
					}
					for _, o := range test.taints {
						o(n)
					}
				}
			})
			refused := pluginRefusals(t, taintToleration{}, snapshottest.New(t, many), schedulertest.TestPod("p", append(test.pod, schedulertest.Toleration("other", schedulertest.TolExists, "", ""))...))
			if want := 3 * len(want); len(refused) != want {
				t.Errorf("refused %v, want %d nodes", refused, want)
			}
		})
	}
}

func TestTaintTolerationScore(t *testing.T) {
	nodes := []*corev1.Node{
		schedulertest.TestNode("none"), schedulertest.TestNode("one", schedulertest.Taint("a", "1", schedulertest.PreferNo)), schedulertest.TestNode("two", schedulertest.Taint("a", "1", schedulertest.PreferNo), schedulertest.Taint("b", "2", schedulertest.PreferNo)),
		schedulertest.TestNode("three", schedulertest.Taint("a", "1", schedulertest.PreferNo), schedulertest.Taint("b", "2", schedulertest.PreferNo), schedulertest.Taint("c", "3", schedulertest.PreferNo)), schedulertest.TestNode("hard", schedulertest.Taint("a", "1", schedulertest.NoSchedule), schedulertest.Taint("b", "2", schedulertest.NoExecute)),
	}
	for _, test := range []struct {
		what string
		pod  *corev1.Pod
		want map[string]int64
	}{
		{"the fewer the better; hard taints do not count", schedulertest.TestPod("p"), map[string]int64{"none": 100, "one": 67, "two": 34, "three": 0, "hard": 100}},
		{"a tolerated taint does not count", schedulertest.TestPod("p", schedulertest.Toleration("a", schedulertest.TolExists, "", schedulertest.PreferNo)), map[string]int64{"none": 100, "one": 100, "two": 50, "three": 0, "hard": 100}},
		{"no effect means any effect", schedulertest.TestPod("p", schedulertest.Toleration("a", schedulertest.TolEqual, "1", "")), map[string]int64{"none": 100, "one": 100, "two": 50, "three": 0, "hard": 100}},
		{"another effect does not help", schedulertest.TestPod("p", schedulertest.Toleration("a", schedulertest.TolExists, "", schedulertest.NoSchedule), schedulertest.Toleration("b", schedulertest.TolExists, "", schedulertest.NoExecute)), map[string]int64{"none": 100, "one": 67, "two": 34, "three": 0, "hard": 100}},
		{"any key of another effect does not help", schedulertest.TestPod("p", schedulertest.Toleration("", schedulertest.TolExists, "", schedulertest.NoSchedule)), map[string]int64{"none": 100, "one": 67, "two": 34, "three": 0, "hard": 100}},
		{"another value does not help", schedulertest.TestPod("p", schedulertest.Toleration("b", schedulertest.TolEqual, "9", "")), map[string]int64{"none": 100, "one": 67, "two": 34, "three": 0, "hard": 100}},
		{"everything tolerated: all are best", schedulertest.TestPod("p", schedulertest.Toleration("", schedulertest.TolExists, "", "")), map[string]int64{"none": 100, "one": 100, "two": 100, "three": 100, "hard": 100}},
		{"all but one tolerated", schedulertest.TestPod("p", schedulertest.Toleration("a", schedulertest.TolExists, "", ""), schedulertest.Toleration("b", schedulertest.TolExists, "", "")), map[string]int64{"none": 100, "one": 100, "two": 100, "three": 0, "hard": 100}},
	} {
		if got := pluginScores(t, taintToleration{}, snapshottest.New(t, nodes), test.pod); !maps.Equal(got, test.want) {
			t.Errorf("%s: %v, want %v", test.what, got, test.want)
		}
	}
	if got := pluginScores(t, taintToleration{}, snapshottest.New(t, nodes[:1]), schedulertest.TestPod("p")); !maps.Equal(got, map[string]int64{"none": 100}) {
		t.Errorf("without any taint: %v", got)
	}
}

func TestTaintTolerationHints(t *testing.T) {
	hard, soft := schedulertest.Taint("k", "v", schedulertest.NoSchedule), schedulertest.Taint("k", "v", schedulertest.PreferNo)
	tolerant := schedulertest.TestPod("p", schedulertest.Toleration("k", schedulertest.TolExists, "", ""))
	checkHints(t, DefaultProfile(), TaintTolerationName, snapshottest.New(t, nil), []ruleHint{
		{"a node without taints came", schedulertest.TestPod("p"), ruleNodeCame(schedulertest.TestNode("n")), true},
		{"a tainted node came", schedulertest.TestPod("p"), ruleNodeCame(schedulertest.TestNode("n", hard)), false},
		{"a tainted node came that the pod tolerates", tolerant, ruleNodeCame(schedulertest.TestNode("n", hard)), true},
		{"a node with a soft taint came", schedulertest.TestPod("p"), ruleNodeCame(schedulertest.TestNode("n", soft)), true},
		{"the taint is gone", schedulertest.TestPod("p"), ruleNodeIs(schedulertest.TestNode("n", hard), schedulertest.TestNode("n")), true},
		{"the taint has become soft", schedulertest.TestPod("p"), ruleNodeIs(schedulertest.TestNode("n", hard), schedulertest.TestNode("n", soft)), true},
		{"the taint has another value", schedulertest.TestPod("p"), ruleNodeIs(schedulertest.TestNode("n", hard), schedulertest.TestNode("n", schedulertest.Taint("k", "w", schedulertest.NoSchedule))), false},
		{"the taint has a value the pod tolerates", schedulertest.TestPod("p", schedulertest.Toleration("k", schedulertest.TolEqual, "w", "")), ruleNodeIs(schedulertest.TestNode("n", hard), schedulertest.TestNode("n", schedulertest.Taint("k", "w", schedulertest.NoSchedule))), true},
		{"the taint has come", schedulertest.TestPod("p"), ruleNodeIs(schedulertest.TestNode("n"), schedulertest.TestNode("n", hard)), false},
		{"the node had nothing against the pod before", schedulertest.TestPod("p"), ruleNodeIs(schedulertest.TestNode("n", soft), schedulertest.TestNode("n")), false},
		{"one of two is gone", schedulertest.TestPod("p"), ruleNodeIs(schedulertest.TestNode("n", hard, schedulertest.Taint("l", "", schedulertest.NoExecute)), schedulertest.TestNode("n", hard)), false},
		{"the untolerated one of two is gone", tolerant, ruleNodeIs(schedulertest.TestNode("n", hard, schedulertest.Taint("l", "", schedulertest.NoExecute)), schedulertest.TestNode("n", hard)), true},
		{"the tolerated one of two is gone", tolerant, ruleNodeIs(schedulertest.TestNode("n", hard, schedulertest.Taint("l", "", schedulertest.NoExecute)), schedulertest.TestNode("n", schedulertest.Taint("l", "", schedulertest.NoExecute))), false},
		{"a node was opened that has no taints", schedulertest.TestPod("p"), ruleNodeIs(schedulertest.TestNode("n", schedulertest.Cordoned), schedulertest.TestNode("n")), false},
		{"another label", schedulertest.TestPod("p"), ruleNodeIs(schedulertest.TestNode("n", hard), schedulertest.TestNode("n", hard, schedulertest.Zone("1"))), false},
		{"a toleration, whichever", schedulertest.TestPod("p"), ruleItselfIs(schedulertest.TestPod("p"), schedulertest.TestPod("p", schedulertest.Toleration("x", schedulertest.TolExists, "", ""))), true},
		{"a label of the pod", schedulertest.TestPod("p"), ruleItselfIs(schedulertest.TestPod("p"), schedulertest.TestPod("p", schedulertest.Labelled("a", "b"))), false},
		{"a pod went", schedulertest.TestPod("p"), rulePodWent(schedulertest.TestPod("q", schedulertest.OnNode("n"))), false},
	})
}

func TestNodeAffinityFilter(t *testing.T) {
	nodes := []*corev1.Node{
		schedulertest.TestNode("a", schedulertest.NodeLabel("disk", "ssd"), schedulertest.NodeLabel("n", "5")), schedulertest.TestNode("b", schedulertest.NodeLabel("disk", "hdd"), schedulertest.NodeLabel("n", "10")),
		schedulertest.TestNode("c", schedulertest.NodeLabel("disk", ""), schedulertest.NodeLabel("n", "-5")), schedulertest.TestNode("d", schedulertest.NodeLabel("n", "five")), schedulertest.TestNode("e", schedulertest.NodeLabel("n", "9223372036854775807")),
	}
	all := []string{"a", "b", "c", "d", "e"}
	for _, test := range []struct {
		what string
		pod  *corev1.Pod
		fits string // the nodes that are selected; the others are refused
		only string // the nodes that are asked, when the pod names some
	}{
		{"nothing is selected: all", schedulertest.TestPod("p"), "a b c d e", ""},
		{"a selector", schedulertest.TestPod("p", schedulertest.Selecting("disk", "ssd")), "a", ""},
		{"a selector of the empty value", schedulertest.TestPod("p", schedulertest.Selecting("disk", "")), "c", ""},
		{"a selector of two labels", schedulertest.TestPod("p", schedulertest.Selecting("disk", "ssd"), schedulertest.Selecting("n", "5")), "a", ""},
		{"a selector of two labels, one of them wrong", schedulertest.TestPod("p", schedulertest.Selecting("disk", "ssd"), schedulertest.Selecting("n", "10")), "", ""},
		{"a selector of an unknown label", schedulertest.TestPod("p", schedulertest.Selecting("no", "where")), "", ""},
		{"In", schedulertest.TestPod("p", schedulertest.RequiresNodes(schedulertest.Expression("disk", schedulertest.OpIn, "ssd", "hdd"))), "a b", ""},
		{"In the empty value", schedulertest.TestPod("p", schedulertest.RequiresNodes(schedulertest.Expression("disk", schedulertest.OpIn, ""))), "c", ""},
		{"In nothing cannot be read", schedulertest.TestPod("p", schedulertest.RequiresNodes(schedulertest.Expression("disk", schedulertest.OpIn))), "", ""},
		{"NotIn takes nodes without the label", schedulertest.TestPod("p", schedulertest.RequiresNodes(schedulertest.Expression("disk", schedulertest.OpNotIn, "ssd"))), "b c d e", ""},
		{"NotIn the empty value", schedulertest.TestPod("p", schedulertest.RequiresNodes(schedulertest.Expression("disk", schedulertest.OpNotIn, ""))), "a b d e", ""},
		{"NotIn nothing cannot be read", schedulertest.TestPod("p", schedulertest.RequiresNodes(schedulertest.Expression("disk", schedulertest.OpNotIn))), "", ""},
		{"NotIn a value no label can have cannot be read", schedulertest.TestPod("p", schedulertest.RequiresNodes(schedulertest.Expression("disk", schedulertest.OpNotIn, "a value!"))), "", ""},
		{"In a value no label can have beside one that can", schedulertest.TestPod("p", schedulertest.RequiresNodes(schedulertest.Expression("disk", schedulertest.OpIn, "ssd", "a value!"))), "", ""},
		{"a key no label can have", schedulertest.TestPod("p", schedulertest.RequiresNodes(schedulertest.Expression("a key!", schedulertest.OpAbsent))), "", ""},
		{"Exists takes the empty value", schedulertest.TestPod("p", schedulertest.RequiresNodes(schedulertest.Expression("disk", schedulertest.OpExists))), "a b c", ""},
		{"Exists with a value cannot be read", schedulertest.TestPod("p", schedulertest.RequiresNodes(schedulertest.Expression("disk", schedulertest.OpExists, "ssd"))), "", ""},
		{"DoesNotExist", schedulertest.TestPod("p", schedulertest.RequiresNodes(schedulertest.Expression("disk", schedulertest.OpAbsent))), "d e", ""},
		{"DoesNotExist of what nobody has", schedulertest.TestPod("p", schedulertest.RequiresNodes(schedulertest.Expression("nobody", schedulertest.OpAbsent))), "a b c d e", ""},
		{"DoesNotExist with a value cannot be read", schedulertest.TestPod("p", schedulertest.RequiresNodes(schedulertest.Expression("disk", schedulertest.OpAbsent, "ssd"))), "", ""},
		{"Gt is of numbers, not of letters", schedulertest.TestPod("p", schedulertest.RequiresNodes(schedulertest.Expression("n", schedulertest.OpGt, "6"))), "b e", ""},
		{"Gt is more than, not as much", schedulertest.TestPod("p", schedulertest.RequiresNodes(schedulertest.Expression("n", schedulertest.OpGt, "10"))), "e", ""},
		{"Gt of a negative number cannot be read: it is no label value", schedulertest.TestPod("p", schedulertest.RequiresNodes(schedulertest.Expression("n", schedulertest.OpGt, "-6"))), "", ""},
		{"Lt is less than, not as much", schedulertest.TestPod("p", schedulertest.RequiresNodes(schedulertest.Expression("n", schedulertest.OpLt, "5"))), "c", ""},
		{"Lt", schedulertest.TestPod("p", schedulertest.RequiresNodes(schedulertest.Expression("n", schedulertest.OpLt, "10"))), "a c", ""},
		{"Lt of a very large number", schedulertest.TestPod("p", schedulertest.RequiresNodes(schedulertest.Expression("n", schedulertest.OpLt, "9223372036854775807"))), "a b c", ""},
		{"Gt needs the label", schedulertest.TestPod("p", schedulertest.RequiresNodes(schedulertest.Expression("disk", schedulertest.OpGt, "0"))), "", ""},
		{"Lt of two numbers cannot be read", schedulertest.TestPod("p", schedulertest.RequiresNodes(schedulertest.Expression("n", schedulertest.OpLt, "5", "50"))), "", ""},
		{"Gt of none cannot be read", schedulertest.TestPod("p", schedulertest.RequiresNodes(schedulertest.Expression("n", schedulertest.OpGt))), "", ""},
		{"Gt of a word cannot be read", schedulertest.TestPod("p", schedulertest.RequiresNodes(schedulertest.Expression("n", schedulertest.OpGt, "few"))), "", ""},
		{"an operator nobody knows", schedulertest.TestPod("p", schedulertest.RequiresNodes(schedulertest.Expression("n", "Near", "5"))), "", ""},
		{"all demands of a term", schedulertest.TestPod("p", schedulertest.RequiresNodes(schedulertest.NodeTerm(schedulertest.NodeRequirement("disk", schedulertest.OpExists), schedulertest.NodeRequirement("n", schedulertest.OpGt, "6")))), "b", ""},
		{"a demand that cannot be read spoils its term", schedulertest.TestPod("p", schedulertest.RequiresNodes(schedulertest.NodeTerm(schedulertest.NodeRequirement("disk", schedulertest.OpExists), schedulertest.NodeRequirement("n", schedulertest.OpNotIn)))), "", ""},
		{"but not the other terms", schedulertest.TestPod("p", schedulertest.RequiresNodes(schedulertest.Expression("n", schedulertest.OpNotIn), schedulertest.Expression("disk", schedulertest.OpIn, "hdd"))), "b", ""},
		{"any term", schedulertest.TestPod("p", schedulertest.RequiresNodes(schedulertest.Expression("disk", schedulertest.OpIn, "ssd"), schedulertest.Expression("n", schedulertest.OpIn, "five"))), "a d", ""},
		{"an empty term matches nothing", schedulertest.TestPod("p", schedulertest.RequiresNodes(corev1.NodeSelectorTerm{})), "", ""},
		{"an empty term beside another", schedulertest.TestPod("p", schedulertest.RequiresNodes(corev1.NodeSelectorTerm{}, schedulertest.Expression("disk", schedulertest.OpIn, "ssd"))), "a", ""},
		{"no term at all matches nothing", schedulertest.TestPod("p", schedulertest.RequiresNodes()), "", ""},
		{"selector and affinity must both match", schedulertest.TestPod("p", schedulertest.Selecting("disk", "ssd"), schedulertest.RequiresNodes(schedulertest.Expression("n", schedulertest.OpIn, "5", "10"))), "a", ""},
		{"selector and affinity that exclude each other", schedulertest.TestPod("p", schedulertest.Selecting("disk", "ssd"), schedulertest.RequiresNodes(schedulertest.Expression("n", schedulertest.OpIn, "10"))), "", ""},
		{"a selector without affinity but for other pods", schedulertest.TestPod("p", schedulertest.Selecting("disk", "hdd"), schedulertest.WithAffinity("disk", "a", "b")), "b", ""},
		{"one node by name", schedulertest.TestPod("p", schedulertest.RequiresNodes(schedulertest.Named("b"))), "b", "b"},
		{"one of two nodes by name", schedulertest.TestPod("p", schedulertest.RequiresNodes(schedulertest.Named("b"), schedulertest.Named("d"))), "b d", "b d"},
		{"a node that does not exist", schedulertest.TestPod("p", schedulertest.RequiresNodes(schedulertest.Named("z"))), "", "z"},
		{"the same node twice", schedulertest.TestPod("p", schedulertest.RequiresNodes(schedulertest.Named("b"), schedulertest.Named("b"))), "b", "b"},
		{"two names in one demand cannot be read", schedulertest.TestPod("p", schedulertest.RequiresNodes(schedulertest.Named("a", "b"))), "", "a b"},
		{"no name in a demand", schedulertest.TestPod("p", schedulertest.RequiresNodes(schedulertest.Named())), "conflict", ""},
		{"not one node", schedulertest.TestPod("p", schedulertest.RequiresNodes(schedulertest.NodeFieldTerm(schedulertest.NodeRequirement("metadata.name", schedulertest.OpNotIn, "b")))), "a c d e", ""},
		{"not two nodes in one demand cannot be read", schedulertest.TestPod("p", schedulertest.RequiresNodes(schedulertest.NodeFieldTerm(schedulertest.NodeRequirement("metadata.name", schedulertest.OpNotIn, "b", "c")))), "", ""},
		{"not two nodes", schedulertest.TestPod("p", schedulertest.RequiresNodes(schedulertest.NodeFieldTerm(schedulertest.NodeRequirement("metadata.name", schedulertest.OpNotIn, "b"), schedulertest.NodeRequirement("metadata.name", schedulertest.OpNotIn, "c")))), "a d e", ""},
		{"a name and not the same name", schedulertest.TestPod("p", schedulertest.RequiresNodes(schedulertest.NodeFieldTerm(schedulertest.NodeRequirement("metadata.name", schedulertest.OpIn, "b"), schedulertest.NodeRequirement("metadata.name", schedulertest.OpNotIn, "b")))), "", "b"},
		{"two names that exclude each other", schedulertest.TestPod("p", schedulertest.RequiresNodes(schedulertest.NodeFieldTerm(schedulertest.NodeRequirement("metadata.name", schedulertest.OpIn, "a"), schedulertest.NodeRequirement("metadata.name", schedulertest.OpIn, "b")))), "conflict", ""},
		{"two names that exclude each other, or another", schedulertest.TestPod("p", schedulertest.RequiresNodes(schedulertest.NodeFieldTerm(schedulertest.NodeRequirement("metadata.name", schedulertest.OpIn, "a"), schedulertest.NodeRequirement("metadata.name", schedulertest.OpIn, "b")), schedulertest.Named("c"))), "c", "c"},
		{"a name, or any with a label: all are asked", schedulertest.TestPod("p", schedulertest.RequiresNodes(schedulertest.Named("c"), schedulertest.Expression("disk", schedulertest.OpIn, "ssd"))), "a c", ""},
		{"a name, or an empty term: all are asked", schedulertest.TestPod("p", schedulertest.RequiresNodes(schedulertest.Named("c"), corev1.NodeSelectorTerm{})), "c", ""},
		{"a name and a label", schedulertest.TestPod("p", schedulertest.RequiresNodes(corev1.NodeSelectorTerm{MatchFields: schedulertest.Named("b").MatchFields, MatchExpressions: schedulertest.Expression("disk", schedulertest.OpIn, "ssd").MatchExpressions})), "", "b"},
		{"a name and a selector", schedulertest.TestPod("p", schedulertest.Selecting("disk", "ssd"), schedulertest.RequiresNodes(schedulertest.Named("a"), schedulertest.Named("b"))), "a", "a b"},
		{"a field by existence cannot be read", schedulertest.TestPod("p", schedulertest.RequiresNodes(schedulertest.NodeFieldTerm(schedulertest.NodeRequirement("metadata.name", schedulertest.OpExists)))), "", ""},
		{"another field is empty", schedulertest.TestPod("p", schedulertest.RequiresNodes(schedulertest.NodeFieldTerm(schedulertest.NodeRequirement("metadata.namespace", schedulertest.OpIn, "x")))), "", ""},
		{"another field is not something", schedulertest.TestPod("p", schedulertest.RequiresNodes(schedulertest.NodeFieldTerm(schedulertest.NodeRequirement("metadata.namespace", schedulertest.OpNotIn, "x")))), "a b c d e", ""},
		{"another field and a name", schedulertest.TestPod("p", schedulertest.RequiresNodes(schedulertest.NodeFieldTerm(schedulertest.NodeRequirement("spec.unschedulable", schedulertest.OpNotIn, "true"), schedulertest.NodeRequirement("metadata.name", schedulertest.OpIn, "e")))), "e", "e"},
	} {
		t.Run(test.what, func(t *testing.T) {
			rule := mustRule[*nodeAffinity](t, NodeAffinityName, "")
			want := map[string]string{}
			for _, name := range all {
				switch fits, only := strings.Fields(test.fits), strings.Fields(test.only); {
				case test.fits == "conflict":
					want[name] = schedulertest.ConflictReason
				case len(only) > 0 && !slices.Contains(only, name):
					want[name] = "not asked"
				case !slices.Contains(fits, name):
					want[name] = schedulertest.NodeAffinityReason
				}
			}
			s := snapshottest.New(t, nodes)
			if got := pluginRefusals(t, rule, s, test.pod); !maps.Equal(got, want) {
				t.Errorf("refused %v, want %v", got, want)
			}
			// Nodes that come after the pod was read, with values nobody had before, are filtered like those that were there.
			late := snapshottest.New(t, nodes[:1])
			f, _ := rule.Filter(late, snapshottest.PodInfo(t, test.pod))
			for _, n := range nodes[1:] {
				late.SetNode(n)
			}
			for _, name := range all {
				if f.Check == nil || want[name] == "not asked" || want[name] == schedulertest.ConflictReason {
					continue
				}
				if refused := f.Check(late.NodeNumbers[name]) != nil; refused != (want[name] != "") {
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
	ssd := &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{schedulertest.Expression("disk", schedulertest.OpIn, "ssd")}}
	nodes := []*corev1.Node{schedulertest.TestNode("a", schedulertest.NodeLabel("disk", "ssd"), schedulertest.Zone("1")), schedulertest.TestNode("b", schedulertest.NodeLabel("disk", "hdd"), schedulertest.Zone("1")), schedulertest.TestNode("c", schedulertest.NodeLabel("disk", "ssd")), schedulertest.TestNode("d")}
	for _, test := range []struct {
		what string
		rule *nodeAffinity
		pod  *corev1.Pod
		want map[string]string
	}{
		{"all pods are kept to the nodes", added(ssd), schedulertest.TestPod("p"), map[string]string{"b": schedulertest.EnforcedReason, "d": schedulertest.EnforcedReason}},
		{"what the profile demands is named first", added(ssd), schedulertest.TestPod("p", schedulertest.Selecting(corev1.LabelTopologyZone, "1")), map[string]string{"b": schedulertest.EnforcedReason, "c": schedulertest.NodeAffinityReason, "d": schedulertest.EnforcedReason}},
		{"by name, but all nodes are asked", added(&corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{schedulertest.Named("d")}}), schedulertest.TestPod("p"), map[string]string{"a": schedulertest.EnforcedReason, "b": schedulertest.EnforcedReason, "c": schedulertest.EnforcedReason}},
		{"a pod that names its node", added(ssd), schedulertest.TestPod("p", schedulertest.RequiresNodes(schedulertest.Named("b"))), map[string]string{"a": "not asked", "b": schedulertest.EnforcedReason, "c": "not asked", "d": "not asked"}},
		{"no term matches nothing", added(&corev1.NodeSelector{}), schedulertest.TestPod("p"), map[string]string{"a": schedulertest.EnforcedReason, "b": schedulertest.EnforcedReason, "c": schedulertest.EnforcedReason, "d": schedulertest.EnforcedReason}},
		{"preferences refuse nobody", added(nil, corev1.PreferredSchedulingTerm{Weight: 1, Preference: schedulertest.Expression("disk", schedulertest.OpIn, "ssd")}), schedulertest.TestPod("p"), nil},
		{"nothing is added", &nodeAffinity{}, schedulertest.TestPod("p"), nil},
	} {
		if got := pluginRefusals(t, test.rule, snapshottest.New(t, nodes), test.pod); !maps.Equal(got, test.want) {
			t.Errorf("%s: %v, want %v", test.what, got, test.want)
		}
	}
	preferSSD := corev1.PreferredSchedulingTerm{Weight: 3, Preference: schedulertest.Expression("disk", schedulertest.OpIn, "ssd")}
	for _, test := range []struct {
		what string
		rule *nodeAffinity
		pod  *corev1.Pod
		want map[string]int64
	}{
		{"the profile prefers for all pods", added(nil, preferSSD), schedulertest.TestPod("p"), map[string]int64{"a": 100, "b": 0, "c": 100, "d": 0}},
		{"what the pod prefers is added", added(nil, preferSSD), schedulertest.TestPod("p", schedulertest.PrefersNode(1, schedulertest.Expression(corev1.LabelTopologyZone, schedulertest.OpIn, "1"))), map[string]int64{"a": 100, "b": 25, "c": 75, "d": 0}},
		{"the pod alone", added(ssd), schedulertest.TestPod("p", schedulertest.PrefersNode(1, schedulertest.Expression(corev1.LabelTopologyZone, schedulertest.OpIn, "1"))), map[string]int64{"a": 100, "b": 100, "c": 0, "d": 0}},
		{"nobody prefers anything", added(ssd), schedulertest.TestPod("p"), nil},
	} {
		if got := pluginScores(t, test.rule, snapshottest.New(t, nodes), test.pod); !maps.Equal(got, test.want) {
			t.Errorf("%s: %v, want %v", test.what, got, test.want)
		}
	}
	profile, err := NewProfile(ptr.To(schedulertest.ProfileWith(NodeAffinityName, `{"addedAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"disk","operator":"In","values":["ssd"]}]}]}}}`)))
	if err != nil {
		t.Fatal(err)
	}
	pod := schedulertest.TestPod("p", schedulertest.Selecting(corev1.LabelTopologyZone, "1"))
	checkHints(t, profile, NodeAffinityName, snapshottest.New(t, nodes), []ruleHint{
		{"a node came that both select", pod, ruleNodeCame(nodes[0]), true},
		{"a node came that the profile does not select", pod, ruleNodeCame(nodes[1]), false},
		{"a node came that the pod does not select", pod, ruleNodeCame(nodes[2]), false},
		{"a node got the pod's label", pod, ruleNodeIs(schedulertest.TestNode("n", schedulertest.NodeLabel("disk", "ssd")), schedulertest.TestNode("n", schedulertest.NodeLabel("disk", "ssd"), schedulertest.Zone("1"))), true},
		{"a node got the profile's label", pod, ruleNodeIs(schedulertest.TestNode("n", schedulertest.Zone("1")), schedulertest.TestNode("n", schedulertest.NodeLabel("disk", "ssd"), schedulertest.Zone("1"))), true},
		{"a node got the pod's label but not the profile's", pod, ruleNodeIs(schedulertest.TestNode("n"), schedulertest.TestNode("n", schedulertest.Zone("1"))), false},
		{"a node that both select got another label", pod, ruleNodeIs(nodes[0], schedulertest.TestNode("a", schedulertest.NodeLabel("disk", "ssd"), schedulertest.Zone("1"), schedulertest.NodeLabel("x", "y"))), false},
	})
}

func TestNodeAffinityScore(t *testing.T) {
	nodes := []*corev1.Node{schedulertest.TestNode("a", schedulertest.NodeLabel("x", "1"), schedulertest.NodeLabel("y", "1")), schedulertest.TestNode("b", schedulertest.NodeLabel("x", "1")), schedulertest.TestNode("c", schedulertest.NodeLabel("y", "2")), schedulertest.TestNode("d")}
	x1, y1, yAny := schedulertest.Expression("x", schedulertest.OpIn, "1"), schedulertest.Expression("y", schedulertest.OpIn, "1"), schedulertest.Expression("y", schedulertest.OpExists)
	for _, test := range []struct {
		what string
		pod  *corev1.Pod
		want map[string]int64
	}{
		{"nothing is preferred", schedulertest.TestPod("p"), nil},
		{"required is not preferred", schedulertest.TestPod("p", schedulertest.RequiresNodes(x1)), nil},
		{"one preference", schedulertest.TestPod("p", schedulertest.PrefersNode(1, x1)), map[string]int64{"a": 100, "b": 100, "c": 0, "d": 0}},
		{"one preference of any weight", schedulertest.TestPod("p", schedulertest.PrefersNode(100, x1)), map[string]int64{"a": 100, "b": 100, "c": 0, "d": 0}},
		{"weights add up", schedulertest.TestPod("p", schedulertest.PrefersNode(2, x1), schedulertest.PrefersNode(1, yAny)), map[string]int64{"a": 100, "b": 66, "c": 33, "d": 0}},
		{"the same preference twice counts twice", schedulertest.TestPod("p", schedulertest.PrefersNode(1, x1), schedulertest.PrefersNode(1, x1), schedulertest.PrefersNode(1, yAny)), map[string]int64{"a": 100, "b": 66, "c": 33, "d": 0}},
		{"nobody has it", schedulertest.TestPod("p", schedulertest.PrefersNode(5, schedulertest.Expression("z", schedulertest.OpExists))), map[string]int64{"a": 0, "b": 0, "c": 0, "d": 0}},
		{"what is not there is preferred", schedulertest.TestPod("p", schedulertest.PrefersNode(5, schedulertest.Expression("x", schedulertest.OpAbsent))), map[string]int64{"a": 0, "b": 0, "c": 100, "d": 100}},
		{"a preference of weight 0 does not count", schedulertest.TestPod("p", schedulertest.PrefersNode(0, x1), schedulertest.PrefersNode(1, y1)), map[string]int64{"a": 100, "b": 0, "c": 0, "d": 0}},
		{"only preferences of weight 0", schedulertest.TestPod("p", schedulertest.PrefersNode(0, x1)), map[string]int64{"a": 0, "b": 0, "c": 0, "d": 0}},
		{"an empty preference matches nothing", schedulertest.TestPod("p", schedulertest.PrefersNode(9, corev1.NodeSelectorTerm{}), schedulertest.PrefersNode(1, y1)), map[string]int64{"a": 100, "b": 0, "c": 0, "d": 0}},
		{"all demands of a preference", schedulertest.TestPod("p", schedulertest.PrefersNode(4, schedulertest.NodeTerm(x1.MatchExpressions[0], y1.MatchExpressions[0])), schedulertest.PrefersNode(1, yAny)), map[string]int64{"a": 100, "b": 0, "c": 20, "d": 0}},
		{"a node by name", schedulertest.TestPod("p", schedulertest.PrefersNode(4, schedulertest.Named("d")), schedulertest.PrefersNode(1, x1)), map[string]int64{"a": 25, "b": 25, "c": 0, "d": 100}},
		{"any but a node by name", schedulertest.TestPod("p", schedulertest.PrefersNode(4, schedulertest.NodeFieldTerm(schedulertest.NodeRequirement("metadata.name", schedulertest.OpNotIn, "d")))), map[string]int64{"a": 100, "b": 100, "c": 100, "d": 0}},
		{"numbers", schedulertest.TestPod("p", schedulertest.PrefersNode(4, schedulertest.Expression("y", schedulertest.OpGt, "1"))), map[string]int64{"a": 0, "b": 0, "c": 100, "d": 0}},
	} {
		if got := pluginScores(t, &nodeAffinity{}, snapshottest.New(t, nodes), test.pod); !maps.Equal(got, test.want) || (got == nil) != (test.want == nil) {
			t.Errorf("%s: %v, want %v", test.what, got, test.want)
		}
	}
}

func TestNodeAffinityHints(t *testing.T) {
	pod := schedulertest.TestPod("p", schedulertest.Selecting("disk", "ssd"), schedulertest.RequiresNodes(schedulertest.Expression("n", schedulertest.OpGt, "5"), schedulertest.Expression("n", schedulertest.OpAbsent)))
	byName := schedulertest.TestPod("p", schedulertest.RequiresNodes(schedulertest.Named("n")))
	ssd := schedulertest.NodeLabel("disk", "ssd")
	checkHints(t, DefaultProfile(), NodeAffinityName, snapshottest.New(t, nil), []ruleHint{
		{"a node that is selected came", pod, ruleNodeCame(schedulertest.TestNode("n", ssd, schedulertest.NodeLabel("n", "6"))), true},
		{"a node the other term selects came", pod, ruleNodeCame(schedulertest.TestNode("n", ssd)), true},
		{"a node the selector alone selects came", pod, ruleNodeCame(schedulertest.TestNode("n", ssd, schedulertest.NodeLabel("n", "5"))), false},
		{"a node the affinity alone selects came", pod, ruleNodeCame(schedulertest.TestNode("n", schedulertest.NodeLabel("n", "6"))), false},
		{"the node got the label", pod, ruleNodeIs(schedulertest.TestNode("n"), schedulertest.TestNode("n", ssd)), true},
		{"the node's number is large enough now", pod, ruleNodeIs(schedulertest.TestNode("n", ssd, schedulertest.NodeLabel("n", "5")), schedulertest.TestNode("n", ssd, schedulertest.NodeLabel("n", "6"))), true},
		{"the node was selected before, by the other term", pod, ruleNodeIs(schedulertest.TestNode("n", ssd), schedulertest.TestNode("n", ssd, schedulertest.NodeLabel("n", "6"))), false},
		{"the node lost the label", pod, ruleNodeIs(schedulertest.TestNode("n", ssd), schedulertest.TestNode("n")), false},
		{"the node has more free resources", pod, ruleNodeIs(schedulertest.TestNode("n", ssd), schedulertest.TestNode("n", ssd, schedulertest.NodeHas(corev1.ResourceCPU, "8"))), false},
		{"the node that is named came", byName, ruleNodeCame(schedulertest.TestNode("n")), true},
		{"another node came", byName, ruleNodeCame(schedulertest.TestNode("m")), false},
		{"the node that is named got a label", byName, ruleNodeIs(schedulertest.TestNode("n"), schedulertest.TestNode("n", ssd)), false},
		{"a term that cannot be read may match: a node that is not selected otherwise came", schedulertest.TestPod("p", schedulertest.RequiresNodes(schedulertest.Expression("x", schedulertest.OpNotIn, "a value!"), schedulertest.Expression("disk", schedulertest.OpIn, "hdd"))), ruleNodeCame(schedulertest.TestNode("n", ssd)), true},
		{"a node that is selected otherwise came", schedulertest.TestPod("p", schedulertest.RequiresNodes(schedulertest.Expression("x", schedulertest.OpNotIn, "a value!"), schedulertest.Expression("disk", schedulertest.OpIn, "ssd"))), ruleNodeCame(schedulertest.TestNode("n", ssd)), true},
		{"a node that was selected otherwise has another label", schedulertest.TestPod("p", schedulertest.RequiresNodes(schedulertest.Expression("x", schedulertest.OpNotIn, "a value!"), schedulertest.Expression("disk", schedulertest.OpIn, "ssd"))), ruleNodeIs(schedulertest.TestNode("n", ssd), schedulertest.TestNode("n", ssd, schedulertest.Zone("1"))), false},
		{"a node that was selected otherwise is so no longer", schedulertest.TestPod("p", schedulertest.RequiresNodes(schedulertest.Expression("x", schedulertest.OpNotIn, "a value!"), schedulertest.Expression("disk", schedulertest.OpIn, "ssd"))), ruleNodeIs(schedulertest.TestNode("n", ssd), schedulertest.TestNode("n")), true},
		{"a node is selected otherwise now", schedulertest.TestPod("p", schedulertest.RequiresNodes(schedulertest.Expression("x", schedulertest.OpNotIn, "a value!"), schedulertest.Expression("disk", schedulertest.OpIn, "ssd"))), ruleNodeIs(schedulertest.TestNode("n"), schedulertest.TestNode("n", ssd)), true},
		{"the selector is not met, and a term cannot be read", schedulertest.TestPod("p", schedulertest.Selecting("disk", "hdd"), schedulertest.RequiresNodes(schedulertest.Expression("x", schedulertest.OpNotIn, "a value!"))), ruleNodeCame(schedulertest.TestNode("n", ssd)), false},
		{"a pod that selects nothing was not refused for the node's labels", schedulertest.TestPod("p"), ruleNodeIs(schedulertest.TestNode("n"), schedulertest.TestNode("n", ssd)), false},
	})
}

// What a pod selects is what the library the whole of Kubernetes uses says it selects.
func TestNodeAffinityEqualsLibrary(t *testing.T) {
	const seed = 11
	r := rand.New(rand.NewPCG(seed, 1))
	keys := []string{"a", "b", "c"}
	values := []string{"", "1", "2", "10", "x", "-3", "not valid!"}
	requirement := func() corev1.NodeSelectorRequirement {
		return schedulertest.NodeRequirement(schedulertest.OneOf(r, "a", "b", "c", "missing"), schedulertest.OneOf(r, schedulertest.OpIn, schedulertest.OpNotIn, schedulertest.OpExists, schedulertest.OpAbsent, schedulertest.OpGt, schedulertest.OpLt, "Odd"), schedulertest.SomeOf(r, 2, func() string { return schedulertest.OneOf(r, values...) })...)
	}
	fieldRequirement := func() corev1.NodeSelectorRequirement {
		return schedulertest.NodeRequirement(schedulertest.OneOf(r, "metadata.name", "metadata.name", "metadata.uid"), schedulertest.OneOf(r, schedulertest.OpIn, schedulertest.OpIn, schedulertest.OpNotIn, schedulertest.OpExists), schedulertest.SomeOf(r, 2, func() string { return schedulertest.OneOf(r, "node-00000", "node-00001", "node-00002") })...)
	}
	term := func() corev1.NodeSelectorTerm {
		t := corev1.NodeSelectorTerm{MatchExpressions: schedulertest.SomeOf(r, 2, requirement)}
		if schedulertest.OneIn(r, 4) {
			t.MatchFields = schedulertest.SomeOf(r, 2, fieldRequirement)
		}
		return t
	}
	matched := 0
	for round := range 1500 {
		nodes := schedulertest.TestNodes(4, func(int) schedulertest.NodeOption {
			set := schedulertest.RandomLabels(r, keys, values[:6]...)
			return func(n *corev1.Node) { maps.Copy(n.Labels, set) }
		})
		pod := schedulertest.TestPod("p")
		if schedulertest.OneIn(r, 3) {
			pod.Spec.NodeSelector = schedulertest.RandomLabels(r, keys[:2], values[:6]...)
		}
		if !schedulertest.OneIn(r, 4) {
			schedulertest.RequiresNodes(schedulertest.SomeOf(r, 3, term)...)(pod)
		}
		s := snapshottest.New(t, nodes)
		selected := s.RequiredSelection(pod)
		library := nodeaffinity.GetRequiredNodeAffinity(pod)
		for i, n := range nodes {
			want, _ := library.Match(n)
			if got := selected == nil || selected.Matches(int32(i)); got != want {
				t.Fatalf("seed %d, round %d: node %v is selected by %+v: %t, want %t", seed, round, n.Labels, pod.Spec, got, want)
			}
			if want {
				matched++
			}
		}
		// Preferences, too; one that cannot be read spoils all, so that each is asked for itself.
		for _, x := range schedulertest.SomeOf(r, 3, func() corev1.PreferredSchedulingTerm {
			return corev1.PreferredSchedulingTerm{Weight: int32(r.IntN(5)), Preference: term()}
		}) {
			preferring := schedulertest.TestPod("p", schedulertest.PrefersNode(x.Weight, x.Preference))
			score := (&nodeAffinity{}).Score(s, snapshottest.PodInfo(t, preferring))
			read, err := nodeaffinity.NewPreferredSchedulingTerms([]corev1.PreferredSchedulingTerm{x})
			for i, n := range nodes {
				if err != nil {
					if score.Err == nil || score.Err.Error() != err.Error() || score.Score != nil {
						t.Fatalf("seed %d, round %d: %+v cannot be read: %v, want %v", seed, round, x, score.Err, err)
					}
					continue
				}
				if got, want := score.Score(int32(i)), read.Score(n); got != want {
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
		terms := schedulertest.SomeOf(r, 3, func() corev1.NodeSelectorTerm {
			t := corev1.NodeSelectorTerm{MatchFields: schedulertest.SomeOf(r, 2, func() corev1.NodeSelectorRequirement {
				return schedulertest.NodeRequirement("metadata.name", schedulertest.OneOf(r, schedulertest.OpIn, schedulertest.OpIn, schedulertest.OpIn, schedulertest.OpNotIn), schedulertest.OneOf(r, names...))
			})}
			if schedulertest.OneIn(r, 3) {
				t.MatchExpressions = schedulertest.Expression("x", schedulertest.OpAbsent).MatchExpressions
			}
			return t
		})
		pod := schedulertest.TestPod("p", schedulertest.RequiresNodes(terms...))
		only, limited := namedNodes(pod)
		if !slices.IsSorted(only) || len(slices.Compact(slices.Clone(only))) != len(only) {
			t.Fatalf("names %v are not in order, or not once each", only)
		}
		library := nodeaffinity.GetRequiredNodeAffinity(pod)
		for _, n := range schedulertest.TestNodes(4) {
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

// One pod's taints and tolerations, compared with a model that has no taint sets.
func TestTaintTolerationEqualsModel(t *testing.T) {
	r := rand.New(rand.NewPCG(13, 1))
	keys, values := []string{"a", "b"}, []string{"", "1", "2"}
	effects := []corev1.TaintEffect{schedulertest.NoSchedule, schedulertest.NoExecute, schedulertest.PreferNo}
	tolerates := func(tol corev1.Toleration, tnt corev1.Taint) bool {
		if tol.Effect != "" && tol.Effect != tnt.Effect || tol.Key != "" && tol.Key != tnt.Key {
			return false
		}
		return tol.Operator == schedulertest.TolExists || (tol.Operator == "" || tol.Operator == schedulertest.TolEqual) && tol.Value == tnt.Value
	}
	for round := range 600 {
		nodes := schedulertest.TestNodes(5, func(int) schedulertest.NodeOption {
			taints := schedulertest.SomeOf(r, 3, func() corev1.Taint {
				return corev1.Taint{Key: schedulertest.OneOf(r, keys...), Value: schedulertest.OneOf(r, values...), Effect: schedulertest.OneOf(r, effects...)}
			})
			return func(n *corev1.Node) { n.Spec.Taints = taints }
		})
		pod := schedulertest.TestPod("p")
		pod.Spec.Tolerations = schedulertest.SomeOf(r, 3, func() corev1.Toleration {
			return corev1.Toleration{Key: schedulertest.OneOf(r, "", "a", "b"), Operator: schedulertest.OneOf(r, schedulertest.TolExists, schedulertest.TolEqual, ""), Value: schedulertest.OneOf(r, values...), Effect: schedulertest.OneOf(r, "", schedulertest.NoSchedule, schedulertest.NoExecute, schedulertest.PreferNo)}
		})
		want, disliked, most := map[string]string{}, map[string]int64{}, int64(0)
		for _, n := range nodes {
			for _, tnt := range n.Spec.Taints {
				if slices.ContainsFunc(pod.Spec.Tolerations, func(tol corev1.Toleration) bool { return tolerates(tol, tnt) }) {
					continue
				}
				if tnt.Effect == schedulertest.PreferNo {
					disliked[n.Name]++
				} else {
					want[n.Name] = schedulertest.TaintReason
				}
			}
			most = max(most, disliked[n.Name])
		}
		s := snapshottest.New(t, nodes)
		if got := pluginRefusals(t, taintToleration{}, s, pod); !maps.Equal(got, want) {
			t.Fatalf("round %d: refused %v, want %v", round, got, want)
		}
		for name, got := range pluginScores(t, taintToleration{}, s, pod) {
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
	inInit := func(sidecar bool, number int32) schedulertest.PodOption {
		return func(p *corev1.Pod) {
			c := corev1.Container{Name: "init", Ports: []corev1.ContainerPort{{HostPort: number}}}
			if sidecar {
				c.RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways)
			}
			p.Spec.InitContainers = append(p.Spec.InitContainers, c)
		}
	}
	inSecond := func(number int32) schedulertest.PodOption {
		return func(p *corev1.Pod) {
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "second", Ports: []corev1.ContainerPort{{HostPort: number}}})
		}
	}
	for _, test := range []struct {
		what          string
		has, wants    []schedulertest.PodOption
		taken, always bool
	}{
		{what: "nobody wants any port"},
		{what: "a port is wanted that is free", wants: []schedulertest.PodOption{schedulertest.Port(80, "", tcp)}},
		{what: "a port is taken that nobody wants", has: []schedulertest.PodOption{schedulertest.Port(80, "", tcp)}},
		{what: "the same port", has: []schedulertest.PodOption{schedulertest.Port(80, "", tcp)}, wants: []schedulertest.PodOption{schedulertest.Port(80, "", tcp)}, taken: true},
		{what: "another port", has: []schedulertest.PodOption{schedulertest.Port(80, "", tcp)}, wants: []schedulertest.PodOption{schedulertest.Port(81, "", tcp)}},
		{what: "another protocol", has: []schedulertest.PodOption{schedulertest.Port(80, "", tcp)}, wants: []schedulertest.PodOption{schedulertest.Port(80, "", udp)}},
		{what: "the same port of UDP", has: []schedulertest.PodOption{schedulertest.Port(53, "", udp)}, wants: []schedulertest.PodOption{schedulertest.Port(53, "", udp)}, taken: true},
		{what: "the same port of SCTP", has: []schedulertest.PodOption{schedulertest.Port(53, "", sctp)}, wants: []schedulertest.PodOption{schedulertest.Port(53, "", sctp)}, taken: true},
		{what: "no protocol is TCP", has: []schedulertest.PodOption{schedulertest.Port(80, "", "")}, wants: []schedulertest.PodOption{schedulertest.Port(80, "", tcp)}, taken: true},
		{what: "no protocol on both sides", has: []schedulertest.PodOption{schedulertest.Port(80, "", "")}, wants: []schedulertest.PodOption{schedulertest.Port(80, "", "")}, taken: true},
		{what: "no protocol is not UDP", has: []schedulertest.PodOption{schedulertest.Port(80, "", "")}, wants: []schedulertest.PodOption{schedulertest.Port(80, "", udp)}},
		{what: "no address is all addresses", has: []schedulertest.PodOption{schedulertest.Port(80, "", tcp)}, wants: []schedulertest.PodOption{schedulertest.Port(80, "0.0.0.0", tcp)}, taken: true},
		{what: "all addresses, and one of them is taken", has: []schedulertest.PodOption{schedulertest.Port(80, "10.0.0.1", tcp)}, wants: []schedulertest.PodOption{schedulertest.Port(80, "", tcp)}, taken: true},
		{what: "one address, and all of them are taken", has: []schedulertest.PodOption{schedulertest.Port(80, "0.0.0.0", tcp)}, wants: []schedulertest.PodOption{schedulertest.Port(80, "10.0.0.1", tcp)}, taken: true},
		{what: "the same address", has: []schedulertest.PodOption{schedulertest.Port(80, "10.0.0.1", tcp)}, wants: []schedulertest.PodOption{schedulertest.Port(80, "10.0.0.1", tcp)}, taken: true},
		{what: "two addresses", has: []schedulertest.PodOption{schedulertest.Port(80, "10.0.0.1", tcp)}, wants: []schedulertest.PodOption{schedulertest.Port(80, "10.0.0.2", tcp)}},
		{what: "all addresses of another protocol", has: []schedulertest.PodOption{schedulertest.Port(80, "10.0.0.1", udp)}, wants: []schedulertest.PodOption{schedulertest.Port(80, "", tcp)}},
		{what: "an address of the other family under all addresses", has: []schedulertest.PodOption{schedulertest.Port(80, "", tcp)}, wants: []schedulertest.PodOption{schedulertest.Port(80, "fd00::1", tcp)}, taken: true},
		{what: "two addresses of the other family", has: []schedulertest.PodOption{schedulertest.Port(80, "fd00::1", tcp)}, wants: []schedulertest.PodOption{schedulertest.Port(80, "fd00::2", tcp)}},
		{what: "the other family's any address is an address like others", has: []schedulertest.PodOption{schedulertest.Port(80, "::", tcp)}, wants: []schedulertest.PodOption{schedulertest.Port(80, "fd00::1", tcp)}},
		{what: "port 0 is no port", has: []schedulertest.PodOption{schedulertest.Port(0, "", tcp)}, wants: []schedulertest.PodOption{schedulertest.Port(0, "", tcp)}},
		{what: "a negative port is no port", has: []schedulertest.PodOption{schedulertest.Port(-1, "", tcp)}, wants: []schedulertest.PodOption{schedulertest.Port(-1, "", tcp)}},
		{what: "the second of two ports", has: []schedulertest.PodOption{schedulertest.Port(80, "", tcp), schedulertest.Port(81, "", tcp)}, wants: []schedulertest.PodOption{schedulertest.Port(90, "", tcp), schedulertest.Port(81, "", tcp)}, taken: true},
		{what: "the second container", has: []schedulertest.PodOption{inSecond(80)}, wants: []schedulertest.PodOption{inSecond(80)}, taken: true},
		{what: "a sidecar's port is wanted", has: []schedulertest.PodOption{schedulertest.Port(80, "", tcp)}, wants: []schedulertest.PodOption{inInit(true, 80)}, taken: true},
		{what: "a sidecar's port is taken", has: []schedulertest.PodOption{inInit(true, 80)}, wants: []schedulertest.PodOption{schedulertest.Port(80, "", tcp)}, taken: true},
		{what: "an init container's port is not wanted", has: []schedulertest.PodOption{schedulertest.Port(80, "", tcp)}, wants: []schedulertest.PodOption{inInit(false, 80)}},
		{what: "an init container's port is not taken", has: []schedulertest.PodOption{inInit(false, 80)}, wants: []schedulertest.PodOption{schedulertest.Port(80, "", tcp)}},
		{what: "a pod that wants a port twice has no quarrel with itself", wants: []schedulertest.PodOption{schedulertest.Port(80, "", tcp), schedulertest.Port(80, "", tcp)}},
	} {
		t.Run(test.what, func(t *testing.T) {
			want := map[string]string{}
			if test.taken {
				want["a"] = schedulertest.TakenPortReason
			}
			holder := schedulertest.TestPod("holder", append(test.has, schedulertest.OnNode("a"))...)
			s := snapshottest.New(t, []*corev1.Node{schedulertest.TestNode("a"), schedulertest.TestNode("b")}, holder)
			wanting := schedulertest.TestPod("p", test.wants...)
			if got := pluginRefusals(t, nodePorts{}, s, wanting); !maps.Equal(got, want) {
				t.Errorf("refused %v, want %v", got, want)
			}
			// It is the holder's going that helps, and nothing else.
			if got := pluginHelps(t, DefaultProfile(), NodePortsName, s, wanting, rulePodWent(holder)); got != test.taken {
				t.Errorf("the holder's going helps is %t", got)
			}
			s.DeletePod("holder")
			if got := pluginRefusals(t, nodePorts{}, s, wanting); len(got) > 0 {
				t.Errorf("after the holder has gone: %v", got)
			}
		})
	}
}

func TestNodePortsHints(t *testing.T) {
	web := schedulertest.TestPod("p", schedulertest.Port(80, "", corev1.ProtocolTCP))
	checkHints(t, DefaultProfile(), NodePortsName, snapshottest.New(t, nil), []ruleHint{
		{"who was only nominated went", web, rulePodWent(schedulertest.TestPod("x", schedulertest.NominatedTo("n"), schedulertest.Port(80, "", corev1.ProtocolTCP))), true},
		{"who was nowhere went", web, rulePodWent(schedulertest.TestPod("x", schedulertest.Port(80, "", corev1.ProtocolTCP))), false},
		{"who has no ports went", web, rulePodWent(schedulertest.TestPod("x", schedulertest.OnNode("n"))), false},
		{"a pod came", web, rulePodCame(schedulertest.TestPod("x", schedulertest.OnNode("n"), schedulertest.Port(80, "", corev1.ProtocolTCP))), false},
		{"a pod has other labels", web, rulePodIs(schedulertest.TestPod("x", schedulertest.OnNode("n"), schedulertest.Port(80, "", corev1.ProtocolTCP)), schedulertest.TestPod("x", schedulertest.OnNode("n"), schedulertest.Labelled("a", "b"))), false},
		{"a node came, whatever it is", web, ruleNodeCame(schedulertest.TestNode("n", schedulertest.Cordoned)), true},
		{"a node has more free resources", web, ruleNodeIs(schedulertest.TestNode("n"), schedulertest.TestNode("n", schedulertest.NodeHas(corev1.ResourceCPU, "9"))), false},
	})
}

// Two pods of a node that hold one port, as can be when somebody else binds: one of them goes, and the port is still taken.
func TestNodePortsHeldTwice(t *testing.T) {
	web := []schedulertest.PodOption{schedulertest.OnNode("a"), schedulertest.Port(80, "", corev1.ProtocolTCP)}
	s := snapshottest.New(t, []*corev1.Node{schedulertest.TestNode("a")}, schedulertest.TestPod("1", web...), schedulertest.TestPod("2", web...))
	for _, step := range []struct {
		gone string
		want int
	}{{"", 1}, {"1", 1}, {"2", 0}} {
		if step.gone != "" {
			s.DeletePod(schedulertest.TestPod(step.gone).UID)
		}
		if got := pluginRefusals(t, nodePorts{}, s, schedulertest.TestPod("p", schedulertest.Port(80, "10.0.0.1", corev1.ProtocolTCP))); len(got) != step.want {
			t.Errorf("after %q went: %v, want %d", step.gone, got, step.want)
		}
	}
}

// Ports on random nodes, compared with a model that compares every pair of sockets.
func TestNodePortsEqualModel(t *testing.T) {
	r := rand.New(rand.NewPCG(14, 1))
	type socket struct {
		ip, protocol string
		port         int32
	}
	draw := func() socket {
		return socket{schedulertest.OneOf(r, "", "0.0.0.0", "10.0.0.1", "10.0.0.2", "::1"), schedulertest.OneOf(r, "", "TCP", "UDP"), int32(80 + r.IntN(3))}
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
		has, wants := schedulertest.SomeOf(r, 3, draw), schedulertest.SomeOf(r, 2, draw)
		podOf := func(name string, sockets []socket, options ...schedulertest.PodOption) *corev1.Pod {
			for _, x := range sockets {
				options = append(options, schedulertest.Port(x.port, x.ip, corev1.Protocol(x.protocol)))
			}
			return schedulertest.TestPod(name, options...)
		}
		taken := slices.ContainsFunc(wants, func(w socket) bool {
			return slices.ContainsFunc(has, func(h socket) bool { return conflict(w, h) })
		})
		s := snapshottest.New(t, []*corev1.Node{schedulertest.TestNode("a")}, podOf("1", has, schedulertest.OnNode("a")))
		if got := len(pluginRefusals(t, nodePorts{}, s, podOf("p", wants))) > 0; got != taken {
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
		NodeSelectorTerms: []corev1.NodeSelectorTerm{schedulertest.Expression("disk", schedulertest.OpIn, "ssd")}}}}
	data, err := json.Marshal(args)
	if err != nil {
		t.Fatal(err)
	}
	profile, err := NewProfile(ptr.To(schedulertest.ProfileWith(NodeAffinityName, string(data))))
	if err != nil {
		t.Fatal(err)
	}
	s := snapshottest.New(t, []*corev1.Node{schedulertest.TestNode("a", schedulertest.NodeLabel("disk", "ssd")), schedulertest.TestNode("b")})
	want := map[string]string{"b": strings.TrimPrefix(schedulertest.EnforcedReason, schedulertest.UnresolvablePrefix)}
	if got := filterReasons(t, s, schedulertest.TestPod("p"), profile); !maps.Equal(got, want) {
		t.Errorf("refused %v, want %v", got, want)
	}
	other := DefaultProfile()
	other.Name = "other"
	if got := filterReasons(t, s, schedulertest.TestPod("p"), other); len(got) > 0 {
		t.Errorf("another profile refuses %v", got)
	}
}

// Taints, labels and the like follow the node: what a node says today counts, in tables already made.
func TestNodeRulesFollowTheNode(t *testing.T) {
	profile := DefaultProfile()
	s := snapshottest.New(t, []*corev1.Node{schedulertest.TestNode("a"), schedulertest.TestNode("b")})
	pod := schedulertest.TestPod("p", schedulertest.RequiresNodes(schedulertest.Expression("disk", schedulertest.OpNotIn, "hdd")))
	for _, step := range []struct {
		what string
		node *corev1.Node
		want string
	}{
		{"as it came", schedulertest.TestNode("a"), ""},
		{"closed", schedulertest.TestNode("a", schedulertest.Cordoned), schedulertest.UnschedulableReason},
		{"opened", schedulertest.TestNode("a"), ""},
		{"tainted", schedulertest.TestNode("a", schedulertest.Taint("k", "v", schedulertest.NoExecute)), schedulertest.TaintReason},
		{"tainted softly", schedulertest.TestNode("a", schedulertest.Taint("k", "v", schedulertest.PreferNo)), ""},
		{"tainted otherwise", schedulertest.TestNode("a", schedulertest.Taint("k", "w", schedulertest.NoSchedule)), schedulertest.TaintReason},
		{"labelled as not wanted", schedulertest.TestNode("a", schedulertest.NodeLabel("disk", "hdd")), schedulertest.NodeAffinityReason},
		{"labelled otherwise", schedulertest.TestNode("a", schedulertest.NodeLabel("disk", "ssd")), ""},
		{"closed, tainted and labelled: the first rule speaks", schedulertest.TestNode("a", schedulertest.Cordoned, schedulertest.Taint("k", "w", schedulertest.NoSchedule), schedulertest.NodeLabel("disk", "hdd")), schedulertest.UnschedulableReason},
		{"tainted and labelled", schedulertest.TestNode("a", schedulertest.Taint("k", "w", schedulertest.NoSchedule), schedulertest.NodeLabel("disk", "hdd")), schedulertest.TaintReason},
	} {
		s.SetNode(step.node)
		want := map[string]string{}
		if step.want != "" {
			want["a"] = strings.TrimPrefix(step.want, schedulertest.UnresolvablePrefix)
		}
		if got := filterReasons(t, s, pod, profile); !maps.Equal(got, want) {
			t.Errorf("%s: %v, want %v", step.what, got, want)
		}
	}
	s.DeleteNode("a")
	s.SetNode(schedulertest.TestNode("c", schedulertest.Cordoned)) // takes the number of a
	if got := filterReasons(t, s, pod, profile); !maps.Equal(got, map[string]string{"c": strings.TrimPrefix(schedulertest.UnschedulableReason, schedulertest.UnresolvablePrefix)}) {
		t.Errorf("a node in place of another: %v", got)
	}
}
