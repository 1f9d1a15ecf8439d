package scheduler

import (
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

const (
	featureReason    = lasting + "node(s) didn't match Pod's required features"
	featureHostUsers = "UserNamespacesHostNetworkSupport"
	featureRestart   = "RestartAllContainersOnContainerExits"
)

func declaring(features ...string) nodeOption {
	return func(n *corev1.Node) { n.Status.DeclaredFeatures = features }
}

// ownUsersOnHost needs the nodes' feature of that; so do rules that restart all containers need theirs.
func ownUsersOnHost(p *corev1.Pod) { p.Spec.HostNetwork, p.Spec.HostUsers = true, ptr.To(false) }

func restartingAll(init bool) podOption {
	return func(p *corev1.Pod) {
		rules := []corev1.ContainerRestartRule{{Action: corev1.ContainerRestartRuleActionRestart}, {Action: corev1.ContainerRestartRuleActionRestartAllContainers}}
		if init {
			p.Spec.InitContainers = append(p.Spec.InitContainers, corev1.Container{Name: "i", RestartPolicyRules: rules})
		} else {
			p.Spec.Containers[0].RestartPolicyRules = rules
		}
	}
}

func TestNodeDeclaredFeaturesFilter(t *testing.T) {
	nodes := []*corev1.Node{testNode("none"), testNode("users", declaring(featureHostUsers)), testNode("restart", declaring(featureRestart)), testNode("both", declaring(featureRestart, featureHostUsers)), testNode("unknown", declaring("Unheard", featureHostUsers))}
	all := []string{"none", "users", "restart", "both", "unknown"}
	for _, test := range []struct {
		what string
		pod  *corev1.Pod
		fits string
	}{
		{"a pod that needs nothing", testPod("p"), "none users restart both unknown"},
		{"the host's network alone", testPod("p", func(p *corev1.Pod) { p.Spec.HostNetwork = true }), "none users restart both unknown"},
		{"users of its own alone", testPod("p", func(p *corev1.Pod) { p.Spec.HostUsers = ptr.To(false) }), "none users restart both unknown"},
		{"the host's network and the host's users", testPod("p", func(p *corev1.Pod) { p.Spec.HostNetwork, p.Spec.HostUsers = true, ptr.To(true) }), "none users restart both unknown"},
		{"users of its own on the host's network", testPod("p", ownUsersOnHost), "users both unknown"},
		{"containers that restart all", testPod("p", restartingAll(false)), "restart both"},
		{"init containers that restart all", testPod("p", restartingAll(true)), "restart both"},
		{"both", testPod("p", ownUsersOnHost, restartingAll(false)), "both"},
	} {
		t.Run(test.what, func(t *testing.T) {
			want, texts := map[string]string{}, map[string]string{}
			for _, name := range all {
				if !slices.Contains(strings.Fields(test.fits), name) {
					want[name], texts[name] = featureReason, strings.TrimPrefix(featureReason, lasting)
				}
			}
			s := cluster(t, nodes)
			if got := ruleRefusals(t, nodeDeclaredFeatures{}, s, test.pod); !maps.Equal(got, want) {
				t.Errorf("refused %v, want %v", got, want)
			}
			// A pod that is the same to all other rules was here before: it must not be taken for this one, nor this one for it.
			profile := DefaultProfile()
			for _, pod := range []*corev1.Pod{testPod("plain"), test.pod, testPod("plain"), test.pod} {
				want := texts
				if pod.Name == "plain" {
					want = map[string]string{}
				}
				if got := refusalsOf(t, s, pod, profile); !maps.Equal(got, want) {
					t.Errorf("%s among its like: refused %v, want %v", pod.Name, got, want)
				}
			}
			// A node may be upgraded.
			s.SetNode(testNode("none", declaring(featureRestart, featureHostUsers)))
			if got := refusalsOf(t, s, test.pod, profile); got["none"] != "" {
				t.Errorf("an upgraded node is refused: %v", got)
			}
		})
	}
}

func TestNodeDeclaredFeaturesHints(t *testing.T) {
	pod, plain := testPod("p", ownUsersOnHost), testPod("p")
	labelledToo := testPod("p", ownUsersOnHost, labelled("a", "b"))
	checkHints(t, DefaultProfile(), nodeDeclaredFeaturesName, cluster(t, nil), []ruleHint{
		{"a node came, whatever it declares", pod, ruleNodeCame(testNode("n")), true},
		{"a node declares something", pod, ruleNodeIs(testNode("n"), testNode("n", declaring(featureRestart))), true},
		{"a node declares what is needed", pod, ruleNodeIs(testNode("n"), testNode("n", declaring(featureHostUsers))), true},
		{"a node declares less", pod, ruleNodeIs(testNode("n", declaring(featureHostUsers)), testNode("n")), true},
		{"a node declares the same", pod, ruleNodeIs(testNode("n", declaring(featureHostUsers)), testNode("n", declaring(featureHostUsers), zone("1"))), false},
		{"a node has room", pod, ruleNodeIs(testNode("n"), testNode("n", nodeHas(corev1.ResourceCPU, "9"))), false},
		{"a node has room and declares the same", pod, Event{Resource: NodeResource, Action: UpdateNodeFeature, Old: testNode("n"), New: testNode("n", nodeHas(corev1.ResourceCPU, "9"))}, false},
		{"the pod needs nothing any more", plain, ruleItselfIs(pod, plain), true},
		{"the pod needs something else", testPod("p", restartingAll(false)), ruleItselfIs(pod, testPod("p", restartingAll(false))), true},
		{"the pod needs the same", labelledToo, ruleItselfIs(pod, labelledToo), false},
		{"a pod went", pod, rulePodWent(testPod("q", on("n"))), false},
	})
}

func TestSchedulingGates(t *testing.T) {
	gated := func(names ...string) podOption {
		return func(p *corev1.Pod) {
			for _, name := range names {
				p.Spec.SchedulingGates = append(p.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: name})
			}
		}
	}
	for _, test := range []struct {
		what string
		pod  *corev1.Pod
		want string
	}{
		{"no gates", testPod("p"), ""}, {"one gate", testPod("p", gated("example.com/a")), "waiting for scheduling gates: [example.com/a]"},
		{"two gates, in their order", testPod("p", gated("b", "a")), "waiting for scheduling gates: [b a]"}, {"one gate twice", testPod("p", gated("a", "a")), "waiting for scheduling gates: [a a]"},
	} {
		if got := gateMessage(test.pod); got != test.want {
			t.Errorf("%s: %q, want %q", test.what, got, test.want)
		}
	}
	one, two, none := testPod("p", gated("a")), testPod("p", gated("a", "b")), testPod("p")
	checkHints(t, DefaultProfile(), schedulingGatesName, cluster(t, nil), []ruleHint{
		{"the last gate is gone", none, ruleItselfIs(one, none), true},
		{"both gates are gone", none, ruleItselfIs(two, none), true},
		{"one of two gates is gone", one, ruleItselfIs(two, one), false},
		{"there never was a gate", none, ruleItselfIs(none, testPod("p", labelled("a", "b"))), false},
		{"a node came", one, ruleNodeCame(testNode("n")), false},
		{"a pod went", one, rulePodWent(testPod("q", on("n"))), false},
	})
}
