package node

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/client"
	"skiff/internal/controller"
	"skiff/test/metrics"
	"skiff/test/world"
)

const (
	no     = corev1.TaintEffectNoSchedule
	out    = corev1.TaintEffectNoExecute
	prefer = corev1.TaintEffectPreferNoSchedule
)

func TestTaintsFollowConditions(t *testing.T) {
	mine := tainted("mine", no)
	for _, test := range []struct {
		what  string
		node  *corev1.Node
		drive evictionMode
		want  string
	}{
		{"ready", aNode("n", isReady), evictRateLimited, "as it is"},
		{"ready, with a foreign taint", aNode("n", isReady, mine), evictRateLimited, "as it is"},
		{"no conditions", aNode("n"), evictRateLimited, "as it is"},
		{"no conditions: the taint it registered with goes", aNode("n", tainted(corev1.TaintNodeNotReady, no), mine), evictRateLimited, "mine:NoSchedule"},
		{"not ready", aNode("n", isNotReady, mine), evictRateLimited, "mine:NoSchedule not-ready:NoExecute not-ready:NoSchedule"},
		{"not ready, not its turn", aNode("n", isNotReady), evictNone, "not-ready:NoSchedule"},
		{"not ready, it had its turn", aNode("n", isNotReady, tainted(corev1.TaintNodeNotReady, out), tainted(corev1.TaintNodeNotReady, no)), evictNone, "as it is"},
		{"not ready, nobody answers", aNode("n", isNotReady, tainted(corev1.TaintNodeNotReady, out), tainted(corev1.TaintNodeNotReady, no)), evictStopped, "not-ready:NoSchedule"},
		{"silent, nobody answers", aNode("n", isUnknown, tainted(corev1.TaintNodeUnreachable, out), tainted(corev1.TaintNodeUnreachable, no)), evictStopped, "unreachable:NoSchedule"},
		{"silent", aNode("n", isUnknown), evictRateLimited, "unreachable:NoExecute unreachable:NoSchedule"},
		{"silent, not its turn", aNode("n", isUnknown), evictNone, "unreachable:NoSchedule"},
		{"not ready, then silent: the taint changes, turn or not", aNode("n", isUnknown, tainted(corev1.TaintNodeNotReady, out)), evictNone, "unreachable:NoExecute unreachable:NoSchedule"},
		{"silent, then not ready: the taint changes, turn or not", aNode("n", isNotReady, tainted(corev1.TaintNodeUnreachable, out), tainted(corev1.TaintNodeUnreachable, no)), evictNone, "not-ready:NoExecute not-ready:NoSchedule"},
		{"both taints: only the right one stays", aNode("n", isNotReady, tainted(corev1.TaintNodeNotReady, out), tainted(corev1.TaintNodeNotReady, no), tainted(corev1.TaintNodeUnreachable, out)), evictRateLimited, "not-ready:NoExecute not-ready:NoSchedule"},
		{"ready again", aNode("n", isReady, tainted(corev1.TaintNodeUnreachable, out), tainted(corev1.TaintNodeUnreachable, no)), evictRateLimited, ""},
		{"ready again, not its turn", aNode("n", isReady, tainted(corev1.TaintNodeUnreachable, out)), evictNone, ""},
		{"ready again, a foreign taint between", aNode("n", isReady, tainted(corev1.TaintNodeUnreachable, out), mine, tainted(corev1.TaintNodeUnreachable, no)), evictRateLimited, "mine:NoSchedule"},
		{"under pressure", aNode("n", isReady, says(corev1.NodeMemoryPressure, corev1.ConditionTrue), says(corev1.NodeDiskPressure, corev1.ConditionTrue)), evictRateLimited, "disk-pressure:NoSchedule memory-pressure:NoSchedule"},
		{"many processes", aNode("n", isReady, says(corev1.NodePIDPressure, corev1.ConditionTrue)), evictRateLimited, "pid-pressure:NoSchedule"},
		{"pressure is over", aNode("n", isReady, says(corev1.NodeDiskPressure, corev1.ConditionFalse), tainted(corev1.TaintNodeDiskPressure, no)), evictRateLimited, ""},
		{"pressure is not known", aNode("n", isReady, says(corev1.NodeMemoryPressure, corev1.ConditionUnknown), tainted(corev1.TaintNodeMemoryPressure, no)), evictRateLimited, ""},
		{"without a network", aNode("n", isReady, says(corev1.NodeNetworkUnavailable, corev1.ConditionTrue)), evictRateLimited, "network-unavailable:NoSchedule"},
		{"the network is not known", aNode("n", isReady, says(corev1.NodeNetworkUnavailable, corev1.ConditionUnknown)), evictRateLimited, "as it is"},
		{"a condition of somebody else", aNode("n", isReady, says("KernelDeadlock", corev1.ConditionTrue)), evictRateLimited, "as it is"},
		{"cordoned", aNode("n", isReady, isCordoned), evictRateLimited, "unschedulable:NoSchedule"},
		{"cordoned and known to be", aNode("n", isReady, isCordoned, tainted(corev1.TaintNodeUnschedulable, no)), evictRateLimited, "as it is"},
		{"no longer cordoned", aNode("n", isReady, tainted(corev1.TaintNodeUnschedulable, no)), evictRateLimited, ""},
		{"cordoned and silent", aNode("n", isUnknown, isCordoned), evictNone, "unreachable:NoSchedule unschedulable:NoSchedule"},
		{"our key with an effect that is not ours stays", aNode("n", isReady, tainted(corev1.TaintNodeNotReady, prefer), tainted(corev1.TaintNodeUnschedulable, out), tainted(corev1.TaintNodeMemoryPressure, out)), evictRateLimited, "as it is"},
		{"our key with another effect does not stand for ours", aNode("n", isNotReady, tainted(corev1.TaintNodeNotReady, prefer)), evictNone, "not-ready:PreferNoSchedule not-ready:NoSchedule"},
		{"out of service is a person's taint", aNode("n", isReady, tainted(corev1.TaintNodeOutOfService, out)), evictRateLimited, "as it is"},
		{"a foreign taint does not give a turn", aNode("n", isNotReady, tainted("mine", out)), evictNone, "mine:NoExecute not-ready:NoSchedule"},
		{"two Ready conditions: both speak", aNode("n", isNotReady, says(corev1.NodeReady, corev1.ConditionUnknown)), evictNone, "not-ready:NoSchedule unreachable:NoSchedule"},
	} {
		v := nodeView{node: test.node, evictions: test.drive, now: now, lastSeen: now, grace: time.Minute}
		was := test.node.DeepCopy()
		got := v.taints()
		if taintWords(got) != test.want {
			t.Errorf("%s: %s, want %s", test.what, taintWords(got), test.want)
		}
		if !reflect.DeepEqual(was, test.node) {
			t.Errorf("%s: the node of the cache has changed", test.what)
		}
		if got != nil {
			changed := test.node.DeepCopy()
			changed.Spec.Taints = got
			v.node = changed
			if again := v.taints(); again != nil {
				t.Errorf("%s: a second sync changes %s", test.what, taintWords(again))
			}
		}
	}
}

// TestEveryConditionAndItsTaint: which condition in which status stands for which taint, one by one.
func TestEveryConditionAndItsTaint(t *testing.T) {
	for _, test := range []struct {
		condition                corev1.NodeConditionType
		whenTrue, false, unknown string
	}{
		{corev1.NodeReady, "", "not-ready", "unreachable"},
		{corev1.NodeMemoryPressure, "memory-pressure", "", ""},
		{corev1.NodeDiskPressure, "disk-pressure", "", ""},
		{corev1.NodePIDPressure, "pid-pressure", "", ""},
		{corev1.NodeNetworkUnavailable, "network-unavailable", "", ""},
	} {
		for status, taint := range map[corev1.ConditionStatus]string{corev1.ConditionTrue: test.whenTrue, corev1.ConditionFalse: test.false, corev1.ConditionUnknown: test.unknown, "odd": ""} {
			want := "as it is"
			if taint != "" {
				want = taint + ":NoSchedule"
			}
			v := nodeView{node: aNode("n", says(test.condition, status)), evictions: evictNone, now: now, lastSeen: now, grace: time.Minute}
			if got := taintWords(v.taints()); got != want {
				t.Errorf("%s is %s: %s, want %s", test.condition, status, got, want)
			}
		}
	}
}

func TestNewTaintsHaveATime(t *testing.T) {
	old := corev1.Taint{Key: corev1.TaintNodeNotReady, Effect: no, TimeAdded: new(ago(time.Hour))}
	valued := corev1.Taint{Key: "mine", Value: "v", Effect: out, TimeAdded: new(ago(time.Hour))}
	v := nodeView{node: aNode("n", isNotReady, func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{valued, old} }), evictions: evictRateLimited, now: now}
	want := []corev1.Taint{valued, old, {Key: corev1.TaintNodeNotReady, Effect: out, TimeAdded: new(ago(0))}}
	if got := v.taints(); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v\nwant %+v", got, want)
	}
}

func TestOurTaints(t *testing.T) {
	ourKeys := []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable, corev1.TaintNodeUnschedulable, corev1.TaintNodeMemoryPressure,
		corev1.TaintNodeDiskPressure, corev1.TaintNodeNetworkUnavailable, corev1.TaintNodePIDPressure}
	for _, key := range append(ourKeys, corev1.TaintNodeOutOfService, "node.cloudprovider.kubernetes.io/uninitialized", "mine", "") {
		for _, effect := range []corev1.TaintEffect{no, out, prefer, ""} {
			want := effect == no && slices.Contains(ourKeys, key) || effect == out && (key == corev1.TaintNodeNotReady || key == corev1.TaintNodeUnreachable)
			if got := isConditionTaint(corev1.Taint{Key: key, Value: "any", Effect: effect}); got != want {
				t.Errorf("%s:%s: %v", key, effect, got)
			}
		}
	}
}

// TestTaintsOfRandomNodes compares with a model that writes down, taint by taint, who must and who may be there.
func TestTaintsOfRandomNodes(t *testing.T) {
	const seed = 7
	random := rand.New(rand.NewPCG(seed, 0))
	keys := []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable, corev1.TaintNodeUnschedulable, corev1.TaintNodeMemoryPressure, corev1.TaintNodeDiskPressure,
		corev1.TaintNodePIDPressure, corev1.TaintNodeNetworkUnavailable, corev1.TaintNodeOutOfService, "mine"}
	types := []corev1.NodeConditionType{corev1.NodeReady, corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure, corev1.NodeNetworkUnavailable, "Other"}
	statuses := []corev1.ConditionStatus{corev1.ConditionTrue, corev1.ConditionFalse, corev1.ConditionUnknown}
	for round := range 3000 {
		node := aNode("n")
		reported := map[corev1.NodeConditionType]corev1.ConditionStatus{}
		for _, c := range types {
			if random.IntN(4) > 0 {
				reported[c] = statuses[random.IntN(3)]
				says(c, reported[c])(node)
			}
		}
		node.Spec.Unschedulable = random.IntN(2) == 0
		had := map[corev1.Taint]bool{}
		for _, key := range keys {
			for _, effect := range []corev1.TaintEffect{no, out, prefer} {
				if random.IntN(4) == 0 {
					had[corev1.Taint{Key: key, Effect: effect}] = true
					tainted(key, effect)(node)
				}
			}
		}
		how := evictionMode(random.IntN(3))
		want := map[corev1.Taint]bool{}
		for _, key := range keys {
			for _, effect := range []corev1.TaintEffect{no, out, prefer} {
				taint := corev1.Taint{Key: key, Effect: effect}
				lost := key == corev1.TaintNodeNotReady && reported[corev1.NodeReady] == corev1.ConditionFalse || key == corev1.TaintNodeUnreachable && reported[corev1.NodeReady] == corev1.ConditionUnknown
				pressed := key == corev1.TaintNodeMemoryPressure && reported[corev1.NodeMemoryPressure] == corev1.ConditionTrue ||
					key == corev1.TaintNodeDiskPressure && reported[corev1.NodeDiskPressure] == corev1.ConditionTrue ||
					key == corev1.TaintNodePIDPressure && reported[corev1.NodePIDPressure] == corev1.ConditionTrue ||
					key == corev1.TaintNodeNetworkUnavailable && reported[corev1.NodeNetworkUnavailable] == corev1.ConditionTrue
				inUse := had[corev1.Taint{Key: corev1.TaintNodeNotReady, Effect: out}] || had[corev1.Taint{Key: corev1.TaintNodeUnreachable, Effect: out}]
				switch {
				case !isConditionTaint(taint):
					want[taint] = had[taint]
				case effect == no:
					want[taint] = lost || pressed || key == corev1.TaintNodeUnschedulable && node.Spec.Unschedulable
				default:
					want[taint] = lost && (how == evictRateLimited || how == evictNone && inUse)
				}
			}
		}
		v := nodeView{node: node, evictions: how, now: now, lastSeen: now, grace: time.Minute}
		taints := v.taints()
		if taints == nil {
			taints = node.Spec.Taints
		}
		got := map[corev1.Taint]bool{}
		for _, taint := range taints {
			if id := (corev1.Taint{Key: taint.Key, Effect: taint.Effect}); got[id] {
				t.Fatalf("seed %d, round %d: %v twice", seed, round, id)
			} else {
				got[id] = true
			}
		}
		for taint, there := range want {
			if got[taint] != there {
				t.Fatalf("seed %d, round %d: %s has %s:%s %v, want %v (%s, drive %d)", seed, round, taintWords(node.Spec.Taints), taint.Key, taint.Effect, got[taint], there, taintWords(taints), how)
			}
		}
		if v.needsEvictionToken() != (how == evictRateLimited && reported[corev1.NodeReady] != "" && reported[corev1.NodeReady] != corev1.ConditionTrue && !v.hasNoExecuteTaint()) {
			t.Fatalf("seed %d, round %d: needs a turn: %v", seed, round, v.needsEvictionToken())
		}
	}
}

func TestSilentConditions(t *testing.T) {
	created, beat := ago(time.Hour), ago(time.Minute)
	never := func(c corev1.NodeConditionType) corev1.NodeCondition {
		return corev1.NodeCondition{Type: c, Status: corev1.ConditionUnknown, Reason: "NodeStatusNeverUpdated", Message: "Kubelet never posted node status.", LastHeartbeatTime: created, LastTransitionTime: ago(0)}
	}
	stopped := func(c corev1.NodeConditionType) corev1.NodeCondition {
		return corev1.NodeCondition{Type: c, Status: corev1.ConditionUnknown, Reason: "NodeStatusUnknown", Message: "Kubelet stopped posting node status.", LastHeartbeatTime: beat, LastTransitionTime: ago(0)}
	}
	kept := func(c corev1.NodeConditionType, status corev1.ConditionStatus) corev1.NodeCondition {
		return corev1.NodeCondition{Type: c, Status: status, LastHeartbeatTime: beat}
	}
	const ready, memory, disk, pids, network = corev1.NodeReady, corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure, corev1.NodeNetworkUnavailable
	for _, test := range []struct {
		what string
		node *corev1.Node
		want []corev1.NodeCondition
	}{
		{"never heard", aNode("n"), []corev1.NodeCondition{never(ready), never(memory), never(disk), never(pids)}},
		{"only Ready was reported", aNode("n", isReady), []corev1.NodeCondition{stopped(ready), never(memory), never(disk), never(pids)}},
		{"it had reported it is not ready", aNode("n", isNotReady), []corev1.NodeCondition{stopped(ready), never(memory), never(disk), never(pids)}},
		{"only Ready was not reported", aNode("n", says(disk, corev1.ConditionFalse)), []corev1.NodeCondition{stopped(disk), never(ready), never(memory), never(pids)}},
		{"everything was reported", aNode("n", isReady, says(pids, corev1.ConditionFalse), says(disk, corev1.ConditionTrue), says(memory, corev1.ConditionFalse)), []corev1.NodeCondition{stopped(ready), stopped(pids), stopped(disk), stopped(memory)}},
		{"the network is somebody else's", aNode("n", says(network, corev1.ConditionTrue), isReady), []corev1.NodeCondition{kept(network, corev1.ConditionTrue), stopped(ready), never(memory), never(disk), never(pids)}},
		{"what others say stays", aNode("n", isReady, says("Other", corev1.ConditionFalse)), []corev1.NodeCondition{stopped(ready), kept("Other", corev1.ConditionFalse), never(memory), never(disk), never(pids)}},
		{"what is unknown already stays", aNode("n", isReady, says(memory, corev1.ConditionUnknown)), []corev1.NodeCondition{stopped(ready), kept(memory, corev1.ConditionUnknown), never(disk), never(pids)}},
		{"known to be silent", aNode("n", isUnknown), nil},
		{"known to be silent, whatever the other conditions say", aNode("n", says(ready, corev1.ConditionUnknown), says(memory, corev1.ConditionTrue)), nil},
	} {
		for _, heard := range []struct {
			ago    time.Duration
			silent bool
		}{{0, false}, {49 * time.Second, false}, {50 * time.Second, false}, {50*time.Second + 1, true}, {time.Hour, true}} {
			was := test.node.DeepCopy()
			var want, got []corev1.NodeCondition
			if heard.silent {
				want = test.want
			}
			if changed, ok := (nodeView{node: test.node, lastSeen: now.Add(-heard.ago), grace: 50 * time.Second, now: now}).unknownStatus().(*corev1.Node); ok {
				got = changed.Status.Conditions
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("%s, heard %s ago: %+v\nwant %+v", test.what, heard.ago, got, want)
			}
			if !reflect.DeepEqual(was, test.node) {
				t.Errorf("%s: the node of the cache has changed", test.what)
			}
		}
	}
}

func TestNodePlans(t *testing.T) {
	const lost = `Normal NodeNotReady "Node n status is now: NodeNotReady"`
	taint := func(what string) string {
		return `patch Node n {"metadata":{"resourceVersion":"7"},"spec":{"taints":[` + what + `]}}`
	}
	added := func(key string, effect corev1.TaintEffect) string {
		return fmt.Sprintf(`{"key":"node.kubernetes.io/%s","effect":%q,"timeAdded":"2026-03-01T12:00:00Z"}`, key, effect)
	}
	for _, test := range []struct {
		what  string
		node  *corev1.Node
		heard time.Duration // ago
		drive evictionMode
		words string
	}{
		{"heard just now", aNode("n", isReady), 0, evictRateLimited, "again 50s"},
		{"heard a while ago", aNode("n", isReady), 45 * time.Second, evictRateLimited, "again 5s"},
		{"heard as long ago as it may be", aNode("n", isReady), 50 * time.Second, evictRateLimited, ""},
		{"silent: told", aNode("n", isReady), time.Minute, evictRateLimited, "update status of Node n then " + lost},
		{"silent after it was not ready: not told", aNode("n", isNotReady), time.Minute, evictRateLimited, "update status of Node n"},
		{"never heard: not told", aNode("n"), time.Hour, evictRateLimited, "update status of Node n"},
		{"never heard, new", aNode("n"), time.Second, evictRateLimited, "again 49s"},
		{"silent and known to be, its turn", aNode("n", isUnknown), time.Minute, evictRateLimited, taint(added("unreachable", out) + "," + added("unreachable", no))},
		{"silent and known to be, not its turn", aNode("n", isUnknown), time.Minute, evictNone, taint(added("unreachable", no))},
		{"silent and tainted: it is not looked at again", aNode("n", isUnknown, tainted(corev1.TaintNodeUnreachable, out), tainted(corev1.TaintNodeUnreachable, no)), time.Minute, evictNone, ""},
		{"says it is not ready: not told", aNode("n", isNotReady), 0, evictNone, taint(added("not-ready", no)) + "; again 50s"},
		{"ready again", aNode("n", isReady, tainted(corev1.TaintNodeUnreachable, out)), 0, evictRateLimited, taint("") + "; again 50s"},
		{"a label and a taint", aNode("n", isReady, isCordoned, labelled(corev1.LabelOSStable, "linux")), 0, evictRateLimited,
			`patch Node n {"metadata":{"labels":{"beta.kubernetes.io/os":"linux"},"resourceVersion":"7"},"spec":{"taints":[` + added("unschedulable", no) + `]}}; again 50s`},
	} {
		test.node.ResourceVersion = "7"
		v := nodeView{node: test.node, lastSeen: now.Add(-test.heard), evictions: test.drive, now: now, grace: 50 * time.Second}
		want := test.words
		if want == "" && test.heard == 50*time.Second {
			want = "again 0s" // a millisecond later
		}
		if got := words(v.reconcile()); got != want {
			t.Errorf("%s: %s\nwant %s", test.what, got, want)
		}
	}
}

func TestOlderLabelsFollow(t *testing.T) {
	const os, arch, betaOS, betaArch = corev1.LabelOSStable, corev1.LabelArchStable, "beta.kubernetes.io/os", "beta.kubernetes.io/arch"
	for _, test := range []struct {
		what string
		has  map[string]string
		want map[string]string
	}{
		{"no labels", nil, map[string]string{}},
		{"only older ones", map[string]string{betaOS: "linux", betaArch: "amd64"}, map[string]string{}},
		{"only newer ones", map[string]string{os: "linux", arch: "arm64"}, map[string]string{betaOS: "linux", betaArch: "arm64"}},
		{"both", map[string]string{os: "linux", betaOS: "linux", arch: "arm64", betaArch: "arm64"}, map[string]string{}},
		{"they differ: the newer wins", map[string]string{os: "linux", betaOS: "windows", arch: "arm64", betaArch: "arm64"}, map[string]string{betaOS: "linux"}},
		{"others do not matter", map[string]string{"failure-domain.beta.kubernetes.io/zone": "a", corev1.LabelTopologyZone: "b"}, map[string]string{}},
	} {
		v := nodeView{node: aNode("n", func(n *corev1.Node) { n.Labels = test.has })}
		if got := v.labels(); !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s: %v, want %v", test.what, got, test.want)
		}
	}
}

func TestPodsOfLostNodesAreMarked(t *testing.T) {
	before := ago(time.Hour)
	ready := func(status corev1.ConditionStatus) corev1.PodCondition {
		return corev1.PodCondition{Type: corev1.PodReady, Status: status, Reason: "r", Message: "m", LastTransitionTime: before, LastProbeTime: before}
	}
	containers := corev1.PodCondition{Type: corev1.ContainersReady, Status: corev1.ConditionTrue}
	marked := ready(corev1.ConditionFalse)
	marked.LastTransitionTime = ago(0)
	silent, unready, well, mute := aNode("n1", isUnknown), aNode("n1", isNotReady), aNode("n1", isReady), aNode("n1")
	for _, test := range []struct {
		what string
		pod  *corev1.Pod
		node *corev1.Node
		want []corev1.PodCondition
	}{
		{"a ready pod of a silent node", aPod("p", podSays(containers, ready(corev1.ConditionTrue))), silent, []corev1.PodCondition{containers, marked}},
		{"a ready pod of a node that is not", aPod("p", podSays(ready(corev1.ConditionTrue))), unready, []corev1.PodCondition{marked}},
		{"unknown counts as ready", aPod("p", podSays(ready(corev1.ConditionUnknown))), silent, []corev1.PodCondition{marked}},
		{"not ready already", aPod("p", podSays(ready(corev1.ConditionFalse))), silent, nil},
		{"no Ready condition", aPod("p", podSays(containers)), silent, nil},
		{"no conditions", aPod("p", podSays()), silent, nil},
		{"a pod that is being deleted", aPod("p", podSays(ready(corev1.ConditionTrue)), podDeleted), silent, []corev1.PodCondition{marked}},
		{"the node is well", aPod("p", podSays(ready(corev1.ConditionTrue))), well, nil},
		{"the node has not spoken", aPod("p", podSays(ready(corev1.ConditionTrue))), mute, nil},
	} {
		was := test.pod.DeepCopy()
		write, needed := markPodNotReady(test.pod, test.node, now)
		var got []corev1.PodCondition
		if needed {
			got = write.Object.(*corev1.Pod).Status.Conditions
			if write.Verb != "update status of" || told(*write.SuccessEvent) != `Warning NodeNotReady "Node is not ready"` || !slices.Equal(write.Ignore, []metav1.StatusReason{metav1.StatusReasonNotFound}) {
				t.Errorf("%s: %+v", test.what, write)
			}
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: %+v\nwant %+v", test.what, got, test.want)
		}
		if !reflect.DeepEqual(was, test.pod) {
			t.Errorf("%s: the pod of the cache has changed", test.what)
		}
	}
}

// TestSignsOfLife follows one node: at each step something may be seen, and it is known when the node was last heard.
func TestSignsOfLife(t *testing.T) {
	beat := func(status corev1.ConditionStatus, minute int) change[*corev1.Node] {
		return func(n *corev1.Node) {
			n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status, LastHeartbeatTime: metav1.NewTime(now.Add(time.Duration(minute) * time.Minute))}}
		}
	}
	noBeat := func(n *corev1.Node) {
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: "True"}}
	}
	written := func(n *corev1.Node) {
		n.Status = nodeView{node: n, lastSeen: n.CreationTimestamp.Time, now: now}.unknownStatus().(*corev1.Node).Status
	}
	type step struct {
		minute  int
		node    change[*corev1.Node]
		renewed int // the minute of the lease's last renewal; 0: none
		heard   int // the minute it counts as heard
	}
	const born = -60
	silence := func(*corev1.Node) {}
	for _, test := range []struct {
		what  string
		steps []step
	}{
		{"one that never spoke counts from its creation", []step{{0, silence, 0, born}, {5, silence, 0, born}}},
		{"one that spoke before we began counts from now", []step{{3, beat("True", -30), 0, 3}, {4, beat("True", -30), 0, 3}}},
		{"a heartbeat is heard when we see it, whatever its own clock says", []step{{0, beat("True", -30), 0, 0}, {5, beat("True", -29), 0, 5}, {9, beat("True", 500), 0, 9}}},
		{"a clock that goes back is a heartbeat too", []step{{0, beat("True", 10), 0, 0}, {5, beat("True", -10), 0, 5}}},
		{"not being ready is a sign of life", []step{{0, beat("True", 0), 0, 0}, {5, beat("False", 5), 0, 5}}},
		{"the first word of one that never spoke", []step{{0, silence, 0, born}, {7, beat("True", 7), 0, 7}}},
		{"the first word without a time", []step{{0, silence, 0, born}, {7, noBeat, 0, 7}, {9, noBeat, 0, 7}}},
		{"our own writing is no sign of life", []step{{0, silence, 0, born}, {5, written, 0, born}, {6, written, 0, born}}},
		{"its first word after our own writing", []step{{0, silence, 0, born}, {5, written, 0, born}, {8, beat("True", 8), 0, 8}}},
		{"what we wrote before we began counts from now", []step{{5, written, 0, 5}, {6, written, 0, 5}}},
		{"the condition is taken away", []step{{0, beat("True", 0), 0, 0}, {4, silence, 0, 4}, {6, silence, 0, 4}, {8, beat("True", 0), 0, 8}}},
		{"a lease is renewed", []step{{0, beat("True", 0), 0, 0}, {5, beat("True", 0), 4, 4}, {9, beat("True", 0), 4, 4}, {9, beat("True", 0), 9, 9}}},
		{"a lease of one that never spoke", []step{{2, silence, 1, 1}, {9, silence, 8, 8}}},
		{"an older renewal does not count", []step{{5, beat("True", 5), 2, 5}}},
	} {
		c := &lifecycle{settings: DefaultLifecycle, zones: newZones(DefaultLifecycle), health: map[string]*nodeHealth{}, renewals: map[string]time.Time{}}
		for i, s := range test.steps {
			if s.renewed != 0 {
				c.renewals["n"] = now.Add(time.Duration(s.renewed) * time.Minute)
			}
			node := aNode("n", s.node)
			v, fresh := c.observe(node, now.Add(time.Duration(s.minute)*time.Minute))
			if got := int(v.lastSeen.Sub(now).Minutes()); got != s.heard || fresh != (i == 0) {
				t.Errorf("%s, step %d: heard at %d, want %d; new: %v", test.what, i, got, s.heard, fresh)
			}
			want := DefaultLifecycle.Grace
			if len(node.Status.Conditions) == 0 {
				want = DefaultLifecycle.StartupGrace
			}
			if v.grace != want {
				t.Errorf("%s, step %d: grace %s, want %s", test.what, i, v.grace, want)
			}
		}
	}
}

// TestThoseWhoWereSilentWithAllOthersGetAnotherChance: when some node answers again, all count as heard then.
func TestThoseWhoWereSilentWithAllOthersGetAnotherChance(t *testing.T) {
	c := &lifecycle{settings: DefaultLifecycle, zones: newZones(DefaultLifecycle), health: map[string]*nodeHealth{}, renewals: map[string]time.Time{}}
	c.observe(aNode("n", isReady), now)
	c.zones.recovered = now.Add(time.Hour)
	if v, _ := c.observe(aNode("n", isReady), now.Add(2*time.Hour)); !v.lastSeen.Equal(now.Add(time.Hour)) {
		t.Errorf("heard at %v", v.lastSeen)
	}
}

// TestNobodyAnswers: when no node is heard, nothing is driven anywhere; when one answers, the others have time to.
func TestNobodyAnswers(t *testing.T) {
	world.In(t, func(w *world.World) {
		registry := prometheus.NewRegistry()
		var err error
		if w.Metrics, err = controller.NewMetrics(registry); err != nil {
			t.Fatal(err)
		}
		defer w.Run(Lifecycle(DefaultLifecycle))()
		newNodes(w, "a", "b")
		w.Pass(10 * time.Minute)
		// One of the nodes may have been tainted before the other was unknown.
		const evictions = "node_collector_evictions_total{zone=}"
		before := metrics.Values(t, registry)[evictions]
		for _, name := range []string{"a", "b"} {
			if n := world.Get[*corev1.Node](w, "", name); readiness(n) != corev1.ConditionUnknown || taintsOf(w, name) != "unreachable:NoSchedule" {
				t.Errorf("%s is %s with taints %s", name, readiness(n), taintsOf(w, name))
			}
		}
		keepAlive(w, 2, "a")
		if a, b := taintsOf(w, "a"), taintsOf(w, "b"); a != "" || b != "unreachable:NoExecute unreachable:NoSchedule" {
			t.Errorf("a answers: its taints are %s, those of b %s", a, b)
		}
		metrics.Check(t, registry, map[string]float64{evictions: before + 1})
		w.Pass(5 * time.Minute)
		if a, b := taintsOf(w, "a"), taintsOf(w, "b"); a != "unreachable:NoSchedule" || b != "unreachable:NoSchedule" {
			t.Errorf("nobody answers again: the taints of a are %s, those of b %s", a, b)
		}
	})
}

// TestAKubeletThatSaysItIsNotReady: it answers itself for the pods it has, not for those that come now.
func TestAKubeletThatSaysItIsNotReady(t *testing.T) {
	world.In(t, func(w *world.World) {
		defer w.Run(Lifecycle(DefaultLifecycle))()
		newNodes(w, "well", "ill")
		newPod(w, "early", "ill")
		w.Pass(20 * time.Second)
		nodeSays(w, "ill", corev1.ConditionFalse)
		w.Pass(10 * time.Second)
		newPod(w, "late", "")
		binding := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "late"}, Target: corev1.ObjectReference{Kind: "Node", Name: "ill"}}
		if err := client.For[*corev1.Pod](w.Client).CreateSubresource(w.Ctx, types.NamespacedName{Namespace: "default", Name: "late"}, "binding", binding, &metav1.Status{}); err != nil {
			t.Fatal(err)
		}
		w.Pass(10 * time.Second)
		if early, late := podReadiness(w, "early"), podReadiness(w, "late"); early != corev1.ConditionTrue || late != corev1.ConditionFalse {
			t.Errorf("the pod that was there is ready: %s, the one that came: %s", early, late)
		}
		if got := taintsOf(w, "ill"); got != "not-ready:NoExecute not-ready:NoSchedule" {
			t.Errorf("taints %s", got)
		}
		if got := w.Events("ill"); !slices.Equal(got, []string{"RegisteredNode: Node ill event: Registered Node ill in Controller"}) {
			t.Errorf("told %q", got)
		}
	})
}

// TestAManagerThatStartsLate: what was not done by the one before it is done.
func TestAManagerThatStartsLate(t *testing.T) {
	world.In(t, func(w *world.World) {
		newNodes(w, "well", "lost", "starting", "cordoned")
		world.Edit(w, "", "cordoned", func(n *corev1.Node) { n.Spec.Unschedulable = true })
		world.EditStatus(w, "", "lost", func(n *corev1.Node) { n.Status.Conditions = nil; isUnknown(n) })
		nodeSays(w, "starting", corev1.ConditionFalse)
		for _, node := range []string{"well", "lost", "starting", "cordoned"} {
			newPod(w, "on-"+node, node)
		}
		defer w.Run(Lifecycle(DefaultLifecycle))()
		w.Pass(15 * time.Second) // two turns
		for node, want := range map[string]struct {
			taints string
			ready  corev1.ConditionStatus
		}{
			"well": {"", corev1.ConditionTrue}, "lost": {"unreachable:NoExecute unreachable:NoSchedule", corev1.ConditionFalse},
			"starting": {"not-ready:NoExecute not-ready:NoSchedule", corev1.ConditionTrue}, "cordoned": {"unschedulable:NoSchedule", corev1.ConditionTrue},
		} {
			if got := taintsOf(w, node); got != want.taints || podReadiness(w, "on-"+node) != want.ready {
				t.Errorf("%s: taints %s, its pod is ready: %s", node, got, podReadiness(w, "on-"+node))
			}
		}
		world.Edit(w, "", "cordoned", func(n *corev1.Node) { n.Spec.Unschedulable = false })
		w.Pass(time.Second)
		if got := taintsOf(w, "cordoned"); got != "" {
			t.Errorf("no longer cordoned: taints %s", got)
		}
	})
}

// TestPodsAreMarkedOnce: what the pod of a silent node says after it was marked is not overruled whenever the node changes.
func TestPodsAreMarkedOnce(t *testing.T) {
	world.In(t, func(w *world.World) {
		defer w.Run(Lifecycle(DefaultLifecycle))()
		newNodes(w, "well", "lost")
		newPod(w, "p", "lost")
		keepAlive(w, 6, "well")
		if got := podReadiness(w, "p"); got != corev1.ConditionFalse {
			t.Fatalf("the pod is ready: %s", got)
		}
		world.EditStatus(w, "default", "p", func(p *corev1.Pod) { p.Status = aPod("").Status })
		world.Edit(w, "", "lost", func(n *corev1.Node) { n.Annotations = map[string]string{"x": "y"} })
		keepAlive(w, 1, "well")
		if got := podReadiness(w, "p"); got != corev1.ConditionTrue {
			t.Errorf("the pod is ready: %s", got)
		}
	})
}

// TestHowLongANodeMayBeSilent: with a lease, without, and one that never spoke, to the second.
func TestHowLongANodeMayBeSilent(t *testing.T) {
	world.In(t, func(w *world.World) {
		defer w.Run(Lifecycle(DefaultLifecycle))()
		world.Create(w, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: corev1.NamespaceNodeLease}})
		newNodes(w, "speaks", "stops", "leases")
		world.Create(w, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "mute"}})
		world.Create(w, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "leases-only"}})
		for _, name := range []string{"leases", "leases-only"} {
			world.Create(w, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: name}, Spec: coordinationv1.LeaseSpec{RenewTime: new(metav1.NowMicro())}})
		}
		// A lease of the same name in another namespace is no sign of life.
		world.Create(w, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "stops"}, Spec: coordinationv1.LeaseSpec{RenewTime: new(metav1.NowMicro())}})
		states := func() string {
			var all []string
			for _, name := range []string{"speaks", "stops", "leases", "mute", "leases-only"} {
				all = append(all, fmt.Sprintf("%s=%s", name, readiness(world.Get[*corev1.Node](w, "", name))))
			}
			return strings.Join(all, " ")
		}
		renew := func() {
			heartbeat(w, "speaks")
			for _, at := range []struct{ namespace, name string }{{corev1.NamespaceNodeLease, "leases"}, {corev1.NamespaceNodeLease, "leases-only"}, {"default", "stops"}} {
				world.Edit(w, at.namespace, at.name, func(l *coordinationv1.Lease) { l.Spec.RenewTime = new(metav1.NowMicro()) })
			}
		}
		w.Pass(25 * time.Second)
		renew()
		for _, test := range []struct {
			pass time.Duration
			want string
		}{
			{24 * time.Second, "speaks=True stops=True leases=True mute= leases-only="},                        // 49 s
			{2 * time.Second, "speaks=True stops=Unknown leases=True mute= leases-only="},                      // 51 s
			{8 * time.Second, "speaks=True stops=Unknown leases=True mute= leases-only="},                      // 59 s
			{2 * time.Second, "speaks=True stops=Unknown leases=True mute=Unknown leases-only="},               // 61 s
			{15 * time.Second, "speaks=Unknown stops=Unknown leases=Unknown mute=Unknown leases-only="},        // 76 s
			{10 * time.Second, "speaks=Unknown stops=Unknown leases=Unknown mute=Unknown leases-only=Unknown"}, // 86 s
		} {
			w.Pass(test.pass)
			if got := states(); got != test.want {
				t.Errorf("%s\nwant %s", got, test.want)
			}
		}
	})
}
