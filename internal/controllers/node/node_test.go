package node

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
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
		for _, t := range judged {
			says(t, corev1.ConditionUnknown)(n)
		}
	}
)

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
	return func(p *corev1.Pod) {
		t := corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute}
		if len(seconds) > 0 {
			t.TolerationSeconds = &seconds[0]
		}
		p.Spec.Tolerations = append(p.Spec.Tolerations, t)
	}
}

// words writes a plan down.
func words(plan controller.Plan) string {
	var all []string
	for _, step := range plan.Steps {
		for _, w := range step.Writes {
			kind := fmt.Sprintf("%T", w.Object)
			all = append(all, fmt.Sprintf("%s %s %s", w.Verb, kind[strings.LastIndexByte(kind, '.')+1:], w.Object.GetName()))
		}
	}
	for _, e := range plan.Events {
		all = append(all, "tell "+e.Reason)
	}
	if plan.RequeueAfter > 0 {
		all = append(all, "again "+plan.RequeueAfter.Round(time.Second).String())
	}
	return strings.Join(all, ", ")
}

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

func TestTaintsFollowConditions(t *testing.T) {
	const no, out = corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute
	mine := tainted("mine", no)
	for _, test := range []struct {
		what  string
		node  *corev1.Node
		drive drive
		want  string
	}{
		{"ready", aNode("n", isReady), driveSlowly, "as it is"},
		{"ready, with a foreign taint", aNode("n", isReady, mine), driveSlowly, "as it is"},
		{"not ready", aNode("n", isNotReady, mine), driveSlowly, "mine:NoSchedule not-ready:NoExecute not-ready:NoSchedule"},
		{"not ready, not its turn", aNode("n", isNotReady), driveNobody, "not-ready:NoSchedule"},
		{"not ready, nobody answers", aNode("n", isNotReady, tainted(corev1.TaintNodeNotReady, out), tainted(corev1.TaintNodeNotReady, no)), driveStopped, "not-ready:NoSchedule"},
		{"not ready, then silent: the taint changes, turn or not", aNode("n", isUnknown, tainted(corev1.TaintNodeNotReady, out)), driveNobody, "unreachable:NoExecute unreachable:NoSchedule"},
		{"ready again", aNode("n", isReady, tainted(corev1.TaintNodeUnreachable, out), tainted(corev1.TaintNodeUnreachable, no)), driveSlowly, ""},
		{"under pressure", aNode("n", isReady, says(corev1.NodeMemoryPressure, corev1.ConditionTrue), says(corev1.NodeDiskPressure, corev1.ConditionTrue)), driveSlowly, "disk-pressure:NoSchedule memory-pressure:NoSchedule"},
		{"without a network", aNode("n", isReady, says(corev1.NodeNetworkUnavailable, corev1.ConditionTrue)), driveSlowly, "network-unavailable:NoSchedule"},
		{"cordoned", aNode("n", isReady, func(n *corev1.Node) { n.Spec.Unschedulable = true }), driveSlowly, "unschedulable:NoSchedule"},
		{"no longer cordoned", aNode("n", isReady, tainted(corev1.TaintNodeUnschedulable, no)), driveSlowly, ""},
	} {
		v := nodeView{node: test.node, drive: test.drive, now: now, heard: now, grace: time.Minute}
		got := v.taints()
		if taintWords(got) != test.want {
			t.Errorf("%s: %s, want %s", test.what, taintWords(got), test.want)
		}
		if got != nil {
			changed := test.node.DeepCopy()
			changed.Spec.Taints = got
			v.node = changed
			if again := v.taints(); again != nil {
				t.Errorf("%s: a second look changes %s", test.what, taintWords(again))
			}
		}
	}
}

func TestNodeFallsSilent(t *testing.T) {
	pods := []*corev1.Pod{aPod("a"), aPod("b", func(p *corev1.Pod) { p.Status.Conditions = nil })}
	for _, test := range []struct {
		what  string
		view  nodeView
		words string
	}{
		{"heard just now", nodeView{node: aNode("n", isReady), heard: now, wasReady: true}, "again 50s"},
		{"heard a while ago", nodeView{node: aNode("n", isReady), heard: now.Add(-45 * time.Second), wasReady: true}, "again 5s"},
		{"silent", nodeView{node: aNode("n", isReady), heard: now.Add(-time.Minute), wasReady: true, pods: pods}, "update status of Node n, update status of Pod a, tell NodeNotReady"},
		{"silent and known to be", nodeView{node: aNode("n", isUnknown), heard: now.Add(-time.Minute), drive: driveNobody}, "patch Node n"},
		{"never heard", nodeView{node: aNode("n"), heard: now.Add(-time.Hour)}, "update status of Node n"},
		{"says it is not ready", nodeView{node: aNode("n", isNotReady), heard: now, wasReady: true, pods: pods, drive: driveNobody}, "update status of Pod a, patch Node n, tell NodeNotReady, again 50s"},
		{"labels", nodeView{node: aNode("n", isReady, func(n *corev1.Node) { n.Labels[corev1.LabelOSStable] = "linux" }), heard: now}, "patch Node n, again 50s"},
	} {
		test.view.now, test.view.grace = now, 50*time.Second
		if got := words(test.view.reconcile()); got != test.words {
			t.Errorf("%s: %s\nwant %s", test.what, got, test.words)
		}
	}
	v := nodeView{node: aNode("n"), heard: now.Add(-time.Hour), now: now}
	silent := v.unknown().(*corev1.Node)
	for _, c := range silent.Status.Conditions {
		if c.Status != corev1.ConditionUnknown || c.Reason != "NodeStatusNeverUpdated" || c.Message != "Kubelet never posted node status." {
			t.Errorf("condition %+v", c)
		}
	}
	if len(silent.Status.Conditions) != 4 {
		t.Errorf("conditions %+v", silent.Status.Conditions)
	}
}

func TestJudgeZones(t *testing.T) {
	for _, test := range []struct {
		ready, lost int
		want        zoneState
	}{
		{0, 0, zoneNormal}, {3, 0, zoneNormal}, {0, 1, zoneFull}, {1, 2, zoneNormal}, {2, 3, zonePartial}, {10, 3, zoneNormal}, {9, 11, zonePartial}, {0, 5, zoneFull},
	} {
		if got := judge(test.ready, test.lost, 0.55); got != test.want {
			t.Errorf("%d ready, %d lost: %v, want %v", test.ready, test.lost, got, test.want)
		}
	}
}

func TestZonesLimitHowFastPodsGo(t *testing.T) {
	inZone := func(zone string) change[*corev1.Node] {
		return func(n *corev1.Node) { n.Labels[corev1.LabelTopologyZone] = zone }
	}
	z := newZones(DefaultLifecycle)
	see := func(nodes ...*corev1.Node) bool {
		z.touch()
		return z.update(func(string, labels.Selector) []*corev1.Node { return nodes }, now)
	}
	a, b, lost := aNode("a", isReady, inZone("1")), aNode("b", isReady, inZone("2")), aNode("b", isUnknown, inZone("2"))
	if !see(a, b) || see(a, b) {
		t.Error("zones are new once")
	}
	if !see(a, lost) || z.drive(zoneOf(b)) != driveSlowly || z.drive("nowhere") != driveNobody {
		t.Error("one zone of two is lost: its pods go, by turns")
	}
	if !z.take(zoneOf(b), now) || z.take(zoneOf(b), now.Add(9*time.Second)) || !z.take(zoneOf(b), now.Add(10*time.Second)) {
		t.Error("a turn every ten seconds")
	}
	if !see(aNode("a", isUnknown, inZone("1")), lost) || z.drive(zoneOf(a)) != driveStopped {
		t.Error("nobody answers: nothing is done")
	}
	if !see(a, lost) || !z.resumed().Equal(now) || z.drive(zoneOf(b)) != driveSlowly {
		t.Error("one answers again: the others are given time")
	}
	var many []*corev1.Node
	for i := range 60 {
		state := isReady
		if i < 40 {
			state = isNotReady
		}
		many = append(many, aNode(fmt.Sprint(i), state))
	}
	see(many...)
	if limit := z.byName[""].limiter.Limit(); limit != 0.01 {
		t.Errorf("a large disrupted zone has rate %v", limit)
	}
	see(many[:50]...)
	if z.drive("") != driveNobody {
		t.Error("in a small disrupted zone nothing is done")
	}
}

func TestTaintEviction(t *testing.T) {
	out := corev1.Taint{Key: "a", Effect: corev1.TaintEffectNoExecute}
	other := corev1.Taint{Key: "b", Effect: corev1.TaintEffectNoExecute}
	const evict = "patch status of Pod p, delete Pod p, tell TaintManagerEviction"
	for _, test := range []struct {
		what   string
		pod    *corev1.Pod
		taints []corev1.Taint
		due    time.Time
		want   string
		keeps  time.Time
	}{
		{"no taints", aPod("p"), nil, time.Time{}, "", time.Time{}},
		{"not tolerated", aPod("p"), []corev1.Taint{out}, time.Time{}, evict, now},
		{"tolerated for good", aPod("p", tolerates("a")), []corev1.Taint{out}, time.Time{}, "", time.Time{}},
		{"one of two tolerated", aPod("p", tolerates("a")), []corev1.Taint{out, other}, time.Time{}, evict, now},
		{"tolerated for a while", aPod("p", tolerates("a", 60)), []corev1.Taint{out}, time.Time{}, "again 1m0s", now.Add(time.Minute)},
		{"for the shorter while", aPod("p", tolerates("a", 60), tolerates("b", 5)), []corev1.Taint{out, other}, time.Time{}, "again 5s", now.Add(5 * time.Second)},
		{"for no time", aPod("p", tolerates("a", 0)), []corev1.Taint{out}, time.Time{}, evict, now},
		{"the time given stays", aPod("p", tolerates("a", 60)), []corev1.Taint{out}, now.Add(20 * time.Second), "again 20s", now.Add(20 * time.Second)},
		{"the time is up", aPod("p", tolerates("a", 60)), []corev1.Taint{out}, now, evict, now},
		{"a taint that is not tolerated comes", aPod("p", tolerates("a", 60)), []corev1.Taint{out, other}, now.Add(20 * time.Second), evict, now},
		{"the taints go", aPod("p", tolerates("a", 60)), nil, now.Add(20 * time.Second), "tell TaintManagerEviction", time.Time{}},
	} {
		plan, due := evictionView{pod: test.pod, taints: test.taints, due: test.due, now: now}.reconcile()
		if got := words(plan); got != test.want || !due.Equal(test.keeps) {
			t.Errorf("%s: %s, due %v\nwant %s, due %v", test.what, got, due, test.want, test.keeps)
		}
	}
}

func TestPodRanges(t *testing.T) {
	r := PodRange{Prefix: netip.MustParsePrefix("10.244.0.0/16"), NodeBits: 24}
	six := PodRange{Prefix: netip.MustParsePrefix("fd00:10::/48"), NodeBits: 64}
	for n, want := range map[uint64]string{0: "10.244.0.0/24", 1: "10.244.1.0/24", 255: "10.244.255.0/24"} {
		if got := r.piece(n); got.String() != want || r.number(got.Addr()) != n {
			t.Errorf("piece %d is %s, and that is number %d", n, got, r.number(got.Addr()))
		}
	}
	if got := six.piece(258); got.String() != "fd00:10:0:102::/64" {
		t.Errorf("piece 258 is %s", got)
	}
	for _, test := range []struct {
		text string
		ok   bool
	}{
		{"10.0.0.0/16", true}, {"10.0.0.0/16,fd00::/48", true}, {"10.0.0.0/16,10.1.0.0/16", false}, {"10.0.0.0/25", false}, {"10.0.0.0/4", false}, {"x", false}, {"", false},
	} {
		if ranges, err := ParsePodRanges(test.text, 0, 0); (err == nil) != test.ok {
			t.Errorf("%q: %v, %v", test.text, ranges, err)
		}
	}
}

func TestPodCIDRs(t *testing.T) {
	holds := func(cidrs ...string) change[*corev1.Node] { return func(n *corev1.Node) { n.Spec.PodCIDRs = cidrs } }
	ranges, err := ParsePodRanges("10.0.0.0/22,fd00::/62", 24, 64)
	if err != nil {
		t.Fatal(err)
	}
	given := func(plan controller.Plan) (all []string) {
		for _, step := range plan.Steps {
			for _, w := range step.Writes {
				all = append(all, w.Object.GetName()+" "+string(w.Patch[strings.Index(string(w.Patch), `"podCIDRs"`):]))
			}
		}
		for _, e := range plan.Events {
			all = append(all, e.About.GetName()+" "+e.Reason)
		}
		return all
	}
	for _, test := range []struct {
		what  string
		nodes []*corev1.Node
		taken string
		last  uint64
		want  []string
	}{
		{"two nodes", []*corev1.Node{aNode("b"), aNode("a")}, "", 0, []string{`a "podCIDRs":["10.0.0.0/24","fd00::/64"]}}`, `b "podCIDRs":["10.0.1.0/24","fd00:0:0:1::/64"]}}`}},
		{"what others hold is not given", []*corev1.Node{aNode("a", holds("10.0.0.0/24", "fd00::/64")), aNode("b")}, "", 0, []string{`b "podCIDRs":["10.0.1.0/24","fd00:0:0:1::/64"]}}`}},
		{"nor what is taken", []*corev1.Node{aNode("a")}, "10.0.0.0/23", 0, []string{`a "podCIDRs":["10.0.2.0/24","fd00::/64"]}}`}},
		{"in turn", []*corev1.Node{aNode("a")}, "", 3, []string{`a "podCIDRs":["10.0.3.0/24","fd00:0:0:3::/64"]}}`}},
		{"around", []*corev1.Node{aNode("a"), aNode("z", holds("10.0.3.0/24", "fd00:0:0:3::/64"))}, "", 3, []string{`a "podCIDRs":["10.0.0.0/24","fd00::/64"]}}`}},
		{"none left", []*corev1.Node{aNode("a")}, "10.0.0.0/8", 0, []string{"a CIDRNotAvailable"}},
	} {
		v := podCIDRView{nodes: test.nodes, ranges: ranges, last: []uint64{test.last, test.last}}
		if test.taken != "" {
			v.taken = []netip.Prefix{netip.MustParsePrefix(test.taken)}
		}
		plan, _ := v.reconcile()
		if got := given(plan); !slices.Equal(got, test.want) {
			t.Errorf("%s: %q\nwant %q", test.what, got, test.want)
		}
	}
}

func TestTTLSteps(t *testing.T) {
	c := &ttl{}
	for _, test := range []struct{ size, want int }{{50, 0}, {100, 0}, {101, 15}, {95, 15}, {89, 0}, {600, 30}, {3000, 300}, {10, 0}} {
		c.resize(test.size)
		if got := steps[c.step].seconds; got != test.want {
			t.Errorf("%d nodes: %d seconds, want %d", test.size, got, test.want)
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
		beat := func(name string) {
			world.EditStatus(w, "", name, func(n *corev1.Node) {
				n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now()}}
			})
		}
		for _, name := range []string{"n1", "n2"} {
			world.Create(w, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
			beat(name)
		}
		lease := world.Create(w, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: "n1"}, Spec: coordinationv1.LeaseSpec{RenewTime: new(metav1.NowMicro())}})
		pod := func(name string, seconds int64) {
			world.Create(w, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: corev1.PodSpec{
				NodeName: "n2", Containers: []corev1.Container{{Name: "c", Image: "i"}}, TerminationGracePeriodSeconds: new(int64(0)),
				Tolerations: []corev1.Toleration{{Key: corev1.TaintNodeUnreachable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: &seconds}}}})
			world.EditStatus(w, "default", name, func(p *corev1.Pod) { p.Status = aPod("").Status })
		}
		pod("hasty", 0)
		pod("patient", 600)
		w.Pass(10 * time.Second)
		cidrs := map[string]bool{}
		for _, n := range world.List[*corev1.Node](w) {
			cidrs[n.Spec.PodCIDR] = true
			if _, ok := n.Annotations[corev1.ObjectTTLAnnotationKey]; !ok {
				t.Errorf("node %s has no ttl", n.Name)
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
		if readiness(n2) != corev1.ConditionUnknown || taintWords(n2.Spec.Taints) != "unreachable:NoExecute unreachable:NoSchedule" {
			t.Errorf("n2 is %s with taints %s", readiness(n2), taintWords(n2.Spec.Taints))
		}
		if !world.Gone[*corev1.Pod](w, "default", "hasty") {
			t.Error("the hasty pod stays")
		}
		if p := world.Get[*corev1.Pod](w, "default", "patient"); p.Status.Conditions[0].Status != corev1.ConditionFalse || p.DeletionTimestamp != nil {
			t.Errorf("the patient pod: %+v", p.Status)
		}
		if told := w.Events("hasty"); !slices.Contains(told, "TaintManagerEviction: Marking for deletion Pod default/hasty") {
			t.Errorf("events %q", told)
		}
		// n2 speaks again.
		beat("n2")
		w.Pass(5 * time.Second)
		if n2 = world.Get[*corev1.Node](w, "", "n2"); len(n2.Spec.Taints) != 0 {
			t.Errorf("n2 has taints %s", taintWords(n2.Spec.Taints))
		}
		for range 120 {
			w.Pass(10 * time.Second)
			beat("n1")
			beat("n2")
		}
		if world.Gone[*corev1.Pod](w, "default", "patient") {
			t.Error("the patient pod went although its node is back")
		}
	})
}

// TestNobodyAnswers: when no node is heard, nothing is driven anywhere.
func TestNobodyAnswers(t *testing.T) {
	world.In(t, func(w *world.World) {
		defer w.Run(Lifecycle(DefaultLifecycle))()
		world.Create(w, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "alone"}})
		world.EditStatus(w, "", "alone", func(n *corev1.Node) { isReady(n) })
		w.Pass(10 * time.Minute)
		n := world.Get[*corev1.Node](w, "", "alone")
		if readiness(n) != corev1.ConditionUnknown || taintWords(n.Spec.Taints) != "unreachable:NoSchedule" {
			t.Errorf("%s with taints %s", readiness(n), taintWords(n.Spec.Taints))
		}
	})
}
