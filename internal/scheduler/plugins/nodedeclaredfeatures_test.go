package plugins

import (
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"skiff/internal/scheduler/schedulertest"
	"skiff/internal/scheduler/snapshot/snapshottest"
)

const (
	featureReason    = schedulertest.UnresolvablePrefix + "node(s) didn't match Pod's required features"
	featureHostUsers = "UserNamespacesHostNetworkSupport"
	featureRestart   = "RestartAllContainersOnContainerExits"
)

func declaring(features ...string) schedulertest.NodeOption {
	return func(n *corev1.Node) { n.Status.DeclaredFeatures = features }
}

// ownUsersOnHost needs the nodes' feature of that; so do rules that restart all containers need theirs.
func ownUsersOnHost(p *corev1.Pod) { p.Spec.HostNetwork, p.Spec.HostUsers = true, ptr.To(false) }

func restartingAll(init bool) schedulertest.PodOption {
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
	nodes := []*corev1.Node{schedulertest.TestNode("none"), schedulertest.TestNode("users", declaring(featureHostUsers)), schedulertest.TestNode("restart", declaring(featureRestart)), schedulertest.TestNode("both", declaring(featureRestart, featureHostUsers)), schedulertest.TestNode("unknown", declaring("Unheard", featureHostUsers))}
	all := []string{"none", "users", "restart", "both", "unknown"}
	for _, test := range []struct {
		what string
		pod  *corev1.Pod
		fits string
	}{
		{"a pod that needs nothing", schedulertest.TestPod("p"), "none users restart both unknown"},
		{"the host's network alone", schedulertest.TestPod("p", func(p *corev1.Pod) { p.Spec.HostNetwork = true }), "none users restart both unknown"},
		{"users of its own alone", schedulertest.TestPod("p", func(p *corev1.Pod) { p.Spec.HostUsers = ptr.To(false) }), "none users restart both unknown"},
		{"the host's network and the host's users", schedulertest.TestPod("p", func(p *corev1.Pod) { p.Spec.HostNetwork, p.Spec.HostUsers = true, ptr.To(true) }), "none users restart both unknown"},
		{"users of its own on the host's network", schedulertest.TestPod("p", ownUsersOnHost), "users both unknown"},
		{"containers that restart all", schedulertest.TestPod("p", restartingAll(false)), "restart both"},
		{"init containers that restart all", schedulertest.TestPod("p", restartingAll(true)), "restart both"},
		{"both", schedulertest.TestPod("p", ownUsersOnHost, restartingAll(false)), "both"},
	} {
		t.Run(test.what, func(t *testing.T) {
			want, texts := map[string]string{}, map[string]string{}
			for _, name := range all {
				if !slices.Contains(strings.Fields(test.fits), name) {
					want[name], texts[name] = featureReason, strings.TrimPrefix(featureReason, schedulertest.UnresolvablePrefix)
				}
			}
			s := snapshottest.New(t, nodes)
			if got := pluginRefusals(t, nodeDeclaredFeatures{}, s, test.pod); !maps.Equal(got, want) {
				t.Errorf("refused %v, want %v", got, want)
			}
			// A pod that is the same to all other rules was here before: it must not be taken for this one, nor this one for it.
			profile := DefaultProfile()
			for _, pod := range []*corev1.Pod{schedulertest.TestPod("plain"), test.pod, schedulertest.TestPod("plain"), test.pod} {
				want := texts
				if pod.Name == "plain" {
					want = map[string]string{}
				}
				if got := filterReasons(t, s, pod, profile); !maps.Equal(got, want) {
					t.Errorf("%s among its like: refused %v, want %v", pod.Name, got, want)
				}
			}
			// A node may be upgraded.
			s.SetNode(schedulertest.TestNode("none", declaring(featureRestart, featureHostUsers)))
			if got := filterReasons(t, s, test.pod, profile); got["none"] != "" {
				t.Errorf("an upgraded node is refused: %v", got)
			}
		})
	}
}

func TestNodeDeclaredFeaturesHints(t *testing.T) {
	pod, plain := schedulertest.TestPod("p", ownUsersOnHost), schedulertest.TestPod("p")
	labelledToo := schedulertest.TestPod("p", ownUsersOnHost, schedulertest.Labelled("a", "b"))
	checkHints(t, DefaultProfile(), NodeDeclaredFeaturesName, snapshottest.New(t, nil), []ruleHint{
		{"a node came, whatever it declares", pod, ruleNodeCame(schedulertest.TestNode("n")), true},
		{"a node declares something", pod, ruleNodeIs(schedulertest.TestNode("n"), schedulertest.TestNode("n", declaring(featureRestart))), true},
		{"a node declares what is needed", pod, ruleNodeIs(schedulertest.TestNode("n"), schedulertest.TestNode("n", declaring(featureHostUsers))), true},
		{"a node declares less", pod, ruleNodeIs(schedulertest.TestNode("n", declaring(featureHostUsers)), schedulertest.TestNode("n")), true},
		{"a node declares the same", pod, ruleNodeIs(schedulertest.TestNode("n", declaring(featureHostUsers)), schedulertest.TestNode("n", declaring(featureHostUsers), schedulertest.Zone("1"))), false},
		{"a node has more free resources", pod, ruleNodeIs(schedulertest.TestNode("n"), schedulertest.TestNode("n", schedulertest.NodeHas(corev1.ResourceCPU, "9"))), false},
		{"a node has more free resources and declares the same", pod, Event{Resource: NodeResource, Action: UpdateNodeFeature, Old: schedulertest.TestNode("n"), New: schedulertest.TestNode("n", schedulertest.NodeHas(corev1.ResourceCPU, "9"))}, false},
		{"the pod needs nothing any more", plain, ruleItselfIs(pod, plain), true},
		{"the pod needs something else", schedulertest.TestPod("p", restartingAll(false)), ruleItselfIs(pod, schedulertest.TestPod("p", restartingAll(false))), true},
		{"the pod needs the same", labelledToo, ruleItselfIs(pod, labelledToo), false},
		{"a pod went", pod, rulePodWent(schedulertest.TestPod("q", schedulertest.OnNode("n"))), false},
	})
}

func TestSchedulingGates(t *testing.T) {
	gated := func(names ...string) schedulertest.PodOption {
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
		{"no gates", schedulertest.TestPod("p"), ""}, {"one gate", schedulertest.TestPod("p", gated("example.com/a")), "waiting for scheduling gates: [example.com/a]"},
		{"two gates, in their order", schedulertest.TestPod("p", gated("b", "a")), "waiting for scheduling gates: [b a]"}, {"one gate twice", schedulertest.TestPod("p", gated("a", "a")), "waiting for scheduling gates: [a a]"},
	} {
		if got := GateMessage(test.pod); got != test.want {
			t.Errorf("%s: %q, want %q", test.what, got, test.want)
		}
	}
	one, two, none := schedulertest.TestPod("p", gated("a")), schedulertest.TestPod("p", gated("a", "b")), schedulertest.TestPod("p")
	checkHints(t, DefaultProfile(), SchedulingGatesName, snapshottest.New(t, nil), []ruleHint{
		{"the last gate is gone", none, ruleItselfIs(one, none), true},
		{"both gates are gone", none, ruleItselfIs(two, none), true},
		{"one of two gates is gone", one, ruleItselfIs(two, one), false},
		{"there never was a gate", none, ruleItselfIs(none, schedulertest.TestPod("p", schedulertest.Labelled("a", "b"))), false},
		{"a node came", one, ruleNodeCame(schedulertest.TestNode("n")), false},
		{"a pod went", one, rulePodWent(schedulertest.TestPod("q", schedulertest.OnNode("n"))), false},
	})
}
