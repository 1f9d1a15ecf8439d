package node

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/controller"
	"skiff/test/world"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func ago(d time.Duration) metav1.Time { return metav1.NewTime(now.Add(-d)) }

type change[T any] func(T)

func with[T any](obj T, changes ...change[T]) T {
	for _, c := range changes {
		c(obj)
	}
	return obj
}

func aNode(name string, changes ...change[*corev1.Node]) *corev1.Node {
	return with(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{}, CreationTimestamp: ago(time.Hour)}}, changes...)
}

func says(t corev1.NodeConditionType, status corev1.ConditionStatus) change[*corev1.Node] {
	return func(n *corev1.Node) {
		n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: t, Status: status, LastHeartbeatTime: ago(time.Minute)})
	}
}

var (
	isReady    = says(corev1.NodeReady, corev1.ConditionTrue)
	isNotReady = says(corev1.NodeReady, corev1.ConditionFalse)
	isUnknown  = func(n *corev1.Node) {
		for _, t := range kubeletConditions {
			says(t, corev1.ConditionUnknown)(n)
		}
	}
	isCordoned = func(n *corev1.Node) { n.Spec.Unschedulable = true }
	isDeleted  = func(n *corev1.Node) { n.DeletionTimestamp = new(ago(time.Second)) }
)

func labelled(key, value string) change[*corev1.Node] {
	return func(n *corev1.Node) { n.Labels[key] = value }
}

func inZone(zone string) change[*corev1.Node] { return labelled(corev1.LabelTopologyZone, zone) }

func tainted(key string, effect corev1.TaintEffect) change[*corev1.Node] {
	return func(n *corev1.Node) { n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Effect: effect}) }
}

func aPod(name string, changes ...change[*corev1.Pod]) *corev1.Pod {
	return with(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)}, Spec: corev1.PodSpec{NodeName: "n1"},
		Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
	}, changes...)
}

func tolerates(key string, seconds ...int64) change[*corev1.Pod] {
	t := corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute}
	if len(seconds) > 0 {
		t.TolerationSeconds = &seconds[0]
	}
	return toleration(t)
}

func toleration(t corev1.Toleration) change[*corev1.Pod] {
	return func(p *corev1.Pod) { p.Spec.Tolerations = append(p.Spec.Tolerations, t) }
}

func podSays(conditions ...corev1.PodCondition) change[*corev1.Pod] {
	return func(p *corev1.Pod) { p.Status.Conditions = conditions }
}

func podDeleted(p *corev1.Pod) { p.DeletionTimestamp = new(ago(time.Second)) }

// words writes a plan down: what is written, with the patch, the event of its success and of its failure, and what is reported.
func words(plan controller.Plan) string {
	var all []string
	for _, step := range plan.Steps {
		for _, w := range step.Writes {
			kind := fmt.Sprintf("%T", w.Object)
			line := fmt.Sprintf("%s %s %s", w.Verb, kind[strings.LastIndexByte(kind, '.')+1:], w.Object.GetName())
			if w.Patch != nil {
				line += " " + string(w.Patch)
			}
			if w.SuccessEvent != nil {
				line += " then " + told(*w.SuccessEvent)
			}
			if w.FailureEvent != nil {
				line += " else " + told(*w.FailureEvent)
			}
			all = append(all, line)
		}
	}
	for _, e := range plan.Events {
		all = append(all, told(e))
	}
	if plan.RequeueAfter > 0 {
		all = append(all, "again "+plan.RequeueAfter.Round(time.Second).String())
	}
	return strings.Join(all, "; ")
}

func told(e controller.Event) string { return fmt.Sprintf("%s %s %q", e.Type, e.Reason, e.Message) }

// taintWords writes taints down: "not-ready:NoSchedule".
func taintWords(taints []corev1.Taint) string {
	if taints == nil {
		return "as it is"
	}
	var all []string
	for _, t := range taints {
		all = append(all, strings.TrimPrefix(t.Key, "node.kubernetes.io/")+":"+string(t.Effect))
	}
	return strings.Join(all, " ")
}

// heartbeat is what a kubelet that is well writes.
func heartbeat(w *world.World, name string) {
	nodeSays(w, name, corev1.ConditionTrue)
}

func nodeSays(w *world.World, name string, status corev1.ConditionStatus) {
	w.T.Helper()
	world.EditStatus(w, "", name, func(n *corev1.Node) {
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status, LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now()}}
	})
}

// newNodes makes nodes that are well.
func newNodes(w *world.World, names ...string) {
	w.T.Helper()
	for _, name := range names {
		world.Create(w, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
		heartbeat(w, name)
	}
}

// newPod makes a pod that runs on a node and is ready.
func newPod(w *world.World, name, node string, tolerations ...corev1.Toleration) {
	w.T.Helper()
	world.Create(w, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: corev1.PodSpec{
		NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "i"}}, TerminationGracePeriodSeconds: new(int64(0)), Tolerations: tolerations}})
	world.EditStatus(w, "default", name, func(p *corev1.Pod) { p.Status = aPod("").Status })
}

// forSeconds tolerates a NoExecute taint for a while.
func forSeconds(key string, seconds int64) corev1.Toleration {
	return corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: &seconds}
}

// keepAlive lets time pass while nodes write their status every ten seconds.
func keepAlive(w *world.World, rounds int, names ...string) {
	for range rounds {
		w.Pass(10 * time.Second)
		for _, name := range names {
			heartbeat(w, name)
		}
	}
	w.Pass(time.Second)
}

// podReadiness is the status of the pod's Ready condition.
func podReadiness(w *world.World, name string) corev1.ConditionStatus {
	w.T.Helper()
	for _, c := range world.Get[*corev1.Pod](w, "default", name).Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status
		}
	}
	return ""
}

func taintsOf(w *world.World, node string) string {
	w.T.Helper()
	taints := append([]corev1.Taint{}, world.Get[*corev1.Node](w, "", node).Spec.Taints...)
	slices.SortFunc(taints, func(a, b corev1.Taint) int {
		return cmp.Or(strings.Compare(a.Key, b.Key), strings.Compare(string(a.Effect), string(b.Effect)))
	})
	return taintWords(taints)
}

func TestConditionsAreFoundByType(t *testing.T) {
	pressed := says(corev1.NodeMemoryPressure, corev1.ConditionTrue)
	for _, test := range []struct {
		what string
		node *corev1.Node
		want corev1.ConditionStatus
	}{
		{"no conditions", aNode("n"), ""},
		{"others only", aNode("n", pressed), ""},
		{"behind others", aNode("n", pressed, isReady), corev1.ConditionTrue},
		{"of two the first", aNode("n", isNotReady, isReady), corev1.ConditionFalse},
		{"unknown", aNode("n", isUnknown), corev1.ConditionUnknown},
	} {
		if got := readiness(test.node); got != test.want {
			t.Errorf("%s: %q, want %q", test.what, got, test.want)
		}
	}
}

func TestSetPodCondition(t *testing.T) {
	before, after, probe := ago(time.Hour), ago(0), ago(time.Minute)
	is := func(status corev1.ConditionStatus, reason, message string, at metav1.Time) corev1.PodCondition {
		return corev1.PodCondition{Type: corev1.PodReady, Status: status, Reason: reason, Message: message, LastTransitionTime: at}
	}
	probed := func(c corev1.PodCondition) corev1.PodCondition { c.LastProbeTime = probe; return c }
	other := corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}
	lost := is("False", "Lost", "gone", after)
	for _, test := range []struct {
		what    string
		was     []corev1.PodCondition
		changed bool
		want    []corev1.PodCondition
	}{
		{"the first", nil, true, []corev1.PodCondition{lost}},
		{"new: at the end", []corev1.PodCondition{other}, true, []corev1.PodCondition{other, lost}},
		{"the same: the time stays", []corev1.PodCondition{other, is("False", "Lost", "gone", before)}, false, []corev1.PodCondition{other, is("False", "Lost", "gone", before)}},
		{"another status: in its place, with a new time", []corev1.PodCondition{is("True", "", "", before), other}, true, []corev1.PodCondition{lost, other}},
		{"unknown is another status", []corev1.PodCondition{is("Unknown", "Lost", "gone", before)}, true, []corev1.PodCondition{lost}},
		{"another reason: no transition", []corev1.PodCondition{is("False", "Slow", "gone", before)}, true, []corev1.PodCondition{is("False", "Lost", "gone", before)}},
		{"another message: no transition", []corev1.PodCondition{is("False", "Lost", "", before)}, true, []corev1.PodCondition{is("False", "Lost", "gone", before)}},
		{"the time of the probe stays", []corev1.PodCondition{probed(is("True", "", "", before))}, true, []corev1.PodCondition{probed(lost)}},
	} {
		kept := slices.Clone(test.was)
		got, changed := setPodCondition(test.was, lost)
		if changed != test.changed || !slices.Equal(got, test.want) {
			t.Errorf("%s: %v %+v\nwant %v %+v", test.what, changed, got, test.changed, test.want)
		}
		if !slices.Equal(test.was, kept) {
			t.Errorf("%s: what was given has changed", test.what)
		}
		if again, changes := setPodCondition(got, lost); changes || !slices.Equal(again, got) {
			t.Errorf("%s: a second time changes %+v", test.what, again)
		}
	}
}

// TestNodesInAWorld: nodes come, one falls silent, its pods go, it comes back.
func TestNodesInAWorld(t *testing.T) {
	world.In(t, func(w *world.World) {
		ranges, err := ParsePodRanges("10.244.0.0/16", 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer w.Run(Lifecycle(DefaultLifecycle), TaintEviction, PodCIDR(ranges, nil), TTL)()
		world.Create(w, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: corev1.NamespaceNodeLease}})
		newNodes(w, "n1", "n2")
		lease := world.Create(w, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: "n1"}, Spec: coordinationv1.LeaseSpec{RenewTime: new(metav1.NowMicro())}})
		newPod(w, "hasty", "n2", forSeconds(corev1.TaintNodeUnreachable, 0))
		newPod(w, "patient", "n2", forSeconds(corev1.TaintNodeUnreachable, 600))
		w.Pass(10 * time.Second)
		cidrs := map[string]bool{}
		for _, n := range world.List[*corev1.Node](w) {
			cidrs[n.Spec.PodCIDR] = true
			if n.Annotations[corev1.ObjectTTLAnnotationKey] != "0" {
				t.Errorf("node %s has ttl %q", n.Name, n.Annotations[corev1.ObjectTTLAnnotationKey])
			}
		}
		if len(cidrs) != 2 || cidrs[""] {
			t.Errorf("pod CIDRs %v", cidrs)
		}
		// n1 renews its lease, n2 says nothing more.
		for range 12 {
			w.Pass(10 * time.Second)
			world.Edit(w, corev1.NamespaceNodeLease, lease.Name, func(l *coordinationv1.Lease) { l.Spec.RenewTime = new(metav1.NowMicro()) })
		}
		n1, n2 := world.Get[*corev1.Node](w, "", "n1"), world.Get[*corev1.Node](w, "", "n2")
		if readiness(n1) != corev1.ConditionTrue || len(n1.Spec.Taints) != 0 {
			t.Errorf("n1 is %s with taints %s", readiness(n1), taintWords(n1.Spec.Taints))
		}
		if readiness(n2) != corev1.ConditionUnknown || taintsOf(w, "n2") != "unreachable:NoExecute unreachable:NoSchedule" {
			t.Errorf("n2 is %s with taints %s", readiness(n2), taintsOf(w, "n2"))
		}
		if !world.Gone[*corev1.Pod](w, "default", "hasty") {
			t.Error("the hasty pod stays")
		}
		if p := world.Get[*corev1.Pod](w, "default", "patient"); podReadiness(w, "patient") != corev1.ConditionFalse || p.DeletionTimestamp != nil {
			t.Errorf("the patient pod: %+v", p.Status)
		}
		for about, want := range map[string][]string{
			"hasty":   {"NodeNotReady: Node is not ready", "TaintManagerEviction: Marking for deletion Pod default/hasty"},
			"patient": {"NodeNotReady: Node is not ready"},
			"n1":      {"RegisteredNode: Node n1 event: Registered Node n1 in Controller"},
			"n2":      {"NodeNotReady: Node n2 status is now: NodeNotReady", "RegisteredNode: Node n2 event: Registered Node n2 in Controller"},
		} {
			if got := slices.Sorted(slices.Values(w.Events(about))); !slices.Equal(got, want) {
				t.Errorf("about %s was told %q, want %q", about, got, want)
			}
		}
		// n2 speaks again.
		heartbeat(w, "n2")
		w.Pass(5 * time.Second)
		if got := taintsOf(w, "n2"); got != "" {
			t.Errorf("n2 has taints %s", got)
		}
		if told := w.Events("patient"); !slices.Contains(told, "TaintManagerEviction: Cancelling deletion of Pod default/patient") {
			t.Errorf("about the patient pod was told %q", told)
		}
		keepAlive(w, 120, "n1", "n2")
		if world.Gone[*corev1.Pod](w, "default", "patient") {
			t.Error("the patient pod went although its node is back")
		}
		w.Remove(n2)
		w.Pass(time.Second)
		if told := w.Events("n2"); !slices.Contains(told, "RemovingNode: Node n2 event: Removing Node n2 from Controller") {
			t.Errorf("about n2 was told %q", told)
		}
		for _, e := range world.List[*corev1.Event](w) {
			if e.Reason == "RemovingNode" && (e.InvolvedObject.UID != n2.UID || e.InvolvedObject.Kind != "Node" || e.Source.Component != "node-controller") {
				t.Errorf("it was told by %s about %+v, want uid %s", e.Source.Component, e.InvolvedObject, n2.UID)
			}
		}
	})
}
