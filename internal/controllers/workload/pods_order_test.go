package workload

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/podstate"
)

func conditioned(kind corev1.PodConditionType, status corev1.ConditionStatus, age time.Duration) change[*corev1.Pod] {
	return func(p *corev1.Pod) {
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: kind, Status: status, LastTransitionTime: ago(age)})
	}
}

// untimed forgets when the conditions changed.
func untimed(p *corev1.Pod) {
	for i := range p.Status.Conditions {
		p.Status.Conditions[i].LastTransitionTime = metav1.Time{}
	}
}

func TestAvailabilityAtItsLimits(t *testing.T) {
	for _, test := range []struct {
		what             string
		pod              *corev1.Pod
		seconds          int32
		ready, available bool
		until            time.Duration
	}{
		{"no conditions", aPod("a"), 0, false, false, 0},
		{"another condition is true", aPod("a", conditioned(corev1.PodInitialized, "True", time.Hour)), 0, false, false, 0},
		{"containers ready is not ready", aPod("a", conditioned(corev1.ContainersReady, "True", time.Hour)), 0, false, false, 0},
		{"ready is false", aPod("a", conditioned(corev1.PodReady, "False", time.Hour)), 0, false, false, 0},
		{"ready is unknown", aPod("a", conditioned(corev1.PodReady, "Unknown", time.Hour)), 0, false, false, 0},
		{"false needs no wait either", aPod("a", conditioned(corev1.PodReady, "False", time.Second)), 30, false, false, 0},
		{"ready behind another condition", aPod("a", conditioned(corev1.PodScheduled, "True", 0), conditioned(corev1.PodReady, "True", 0)), 0, true, true, 0},
		{"ready counts whatever the phase", aPod("a", conditioned(corev1.PodReady, "True", time.Hour), inPhase(corev1.PodPending)), 5, true, true, 0},
		{"no wait asked, no time known", aPod("a", conditioned(corev1.PodReady, "True", 0), untimed), 0, true, true, 0},
		{"a wait asked, no time known", aPod("a", conditioned(corev1.PodReady, "True", 0), untimed), 1, true, false, 0},
		{"just now", aPod("a", conditioned(corev1.PodReady, "True", 0)), 1, true, false, time.Second},
		{"a nanosecond short", aPod("a", conditioned(corev1.PodReady, "True", time.Second-1)), 1, true, false, 1},
		{"exactly", aPod("a", conditioned(corev1.PodReady, "True", time.Second)), 1, true, true, 0},
		{"a nanosecond more", aPod("a", conditioned(corev1.PodReady, "True", time.Second+1)), 1, true, true, 0},
		{"ready in the future, no wait asked", aPod("a", conditioned(corev1.PodReady, "True", -time.Minute)), 0, true, true, 0},
		{"ready in the future, a wait asked", aPod("a", conditioned(corev1.PodReady, "True", -time.Minute)), 10, true, false, 70 * time.Second},
		{"a very long wait", aPod("a", conditioned(corev1.PodReady, "True", time.Hour)), math.MaxInt32, true, false, math.MaxInt32*time.Second - time.Hour},
	} {
		if got := podstate.IsReady(test.pod); got != test.ready {
			t.Errorf("%s: ready %v", test.what, got)
		}
		if got := available(test.pod, test.seconds, now); got != test.available {
			t.Errorf("%s: available %v", test.what, got)
		}
		if got := untilAvailable(test.pod, test.seconds, now); got != test.until {
			t.Errorf("%s: available in %v, want %v", test.what, got, test.until)
		}
	}
}

func TestNextAvailable(t *testing.T) {
	since := func(ages ...time.Duration) (pods []*corev1.Pod) {
		for i, age := range ages {
			pods = append(pods, aPod(fmt.Sprint("p", i), readyFor(age)))
		}
		return pods
	}
	for _, test := range []struct {
		what    string
		pods    []*corev1.Pod
		seconds int32
		want    time.Duration
	}{
		{"no pods", nil, 10, 0},
		{"nobody is ready", []*corev1.Pod{aPod("a"), aPod("b")}, 10, 0},
		{"no wait asked", since(time.Second), 0, 0},
		{"all are available", since(time.Minute, time.Hour), 10, 0},
		{"one is going to be", since(3 * time.Second), 10, 7 * time.Second},
		{"the first of several", since(3*time.Second, 9*time.Second, time.Second), 10, time.Second},
		{"the first of several, last in line", since(3*time.Second, time.Second, 9*time.Second), 10, time.Second},
		{"those that are do not hide those that will be", since(time.Hour, 4*time.Second, time.Hour), 10, 6 * time.Second},
		{"one without a time is nobody's next", append(since(2*time.Second), aPod("z", readyFor(0), untimed)), 10, 8 * time.Second},
		{"one at the very moment is available", since(10*time.Second, 6*time.Second), 10, 4 * time.Second},
	} {
		if got := nextAvailable(test.pods, test.seconds, now); got != test.want {
			t.Errorf("%s: %v, want %v", test.what, got, test.want)
		}
	}
}

func TestDeletionCost(t *testing.T) {
	for value, want := range map[string]int32{
		"0": 0, "1": 1, "-1": -1, "10": 10, "100": 100, "2147483647": math.MaxInt32, "-2147483648": math.MinInt32,
		"2147483648": 0, "-2147483649": 0, "99999999999999999999": 0, // too large for the type
		"": 0, "+1": 0, "+0": 0, "00": 0, "01": 0, "007": 0, // digits nothing would write
		"-0": 0, "-05": -5, "-": 0, " 5": 0, "5 ": 0, "1e3": 0, "0x10": 0, "5.0": 0, "five": 0, "--5": 0, "1_000": 0,
	} {
		if got := deletionCost(aPod("a", annotated(corev1.PodDeletionCost, value))); got != want {
			t.Errorf("%q costs %d, want %d", value, got, want)
		}
	}
	if got := deletionCost(aPod("a")); got != 0 {
		t.Errorf("a pod that says nothing costs %d", got)
	}
	if got := deletionCost(aPod("a", annotated("other/pod-deletion-cost", "9"))); got != 0 {
		t.Errorf("another annotation costs %d", got)
	}
}

func TestRestarts(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	never := corev1.ContainerRestartPolicyNever
	counts := func(named ...any) (all []corev1.ContainerStatus) {
		for i := 0; i < len(named); i += 2 {
			all = append(all, corev1.ContainerStatus{Name: named[i].(string), RestartCount: int32(named[i+1].(int))})
		}
		return all
	}
	for _, test := range []struct {
		what              string
		init              []corev1.Container
		containers, inits []corev1.ContainerStatus
		regular, sidecar  int32
	}{
		{"nothing is known", nil, nil, nil, 0, 0},
		{"the most of all containers", nil, counts("a", 1, "b", 7, "c", 3), nil, 7, 0},
		{"not the sum", nil, counts("a", 2, "b", 2), nil, 2, 0},
		{"a sidecar counts for itself", []corev1.Container{{Name: "s", RestartPolicy: &always}}, counts("a", 1), counts("s", 5), 1, 5},
		{"the most of all sidecars", []corev1.Container{{Name: "s", RestartPolicy: &always}, {Name: "r", RestartPolicy: &always}}, nil, counts("s", 2, "r", 4), 0, 4},
		{"an init container does not", []corev1.Container{{Name: "i"}}, counts("a", 1), counts("i", 9), 1, 0},
		{"nor one that is never restarted", []corev1.Container{{Name: "i", RestartPolicy: &never}}, nil, counts("i", 9), 0, 0},
		{"a status nobody specified", nil, nil, counts("ghost", 9), 0, 0},
		{"a sidecar without a status", []corev1.Container{{Name: "s", RestartPolicy: &always}}, counts("a", 3), nil, 3, 0},
	} {
		pod := aPod("a", func(p *corev1.Pod) {
			p.Spec.InitContainers, p.Status.ContainerStatuses, p.Status.InitContainerStatuses = test.init, test.containers, test.inits
		})
		if regular, sidecar := restarts(pod); regular != test.regular || sidecar != test.sidecar {
			t.Errorf("%s: %d, %d of sidecars", test.what, regular, sidecar)
		}
	}
}

func TestMagnitude(t *testing.T) {
	for age, want := range map[time.Duration]int64{
		-time.Hour: -1, -1: -1, 0: -1, 1: 0, 2: 1, 3: 1, 4: 2, 1023: 9, 1024: 10, 1025: 10,
		time.Second: 29, time.Minute: 35, time.Hour: 41, 24 * time.Hour: 46, math.MaxInt64: 63,
	} {
		if got := log2Age(age); got != want {
			t.Errorf("%v has magnitude %d, want %d", age, got, want)
		}
	}
}

// TestSortByProgress: a job looks at exact times and knows no costs.
func TestSortByProgress(t *testing.T) {
	placed := onNode("n")
	for _, test := range []struct {
		what string
		pods []*corev1.Pod // in the order they should have
	}{
		{"without a node first", []*corev1.Pod{aPod("b", readyFor(time.Hour)), aPod("a", placed)}},
		{"pending, unknown, running", []*corev1.Pod{aPod("c", placed), aPod("b", placed, inPhase(corev1.PodUnknown)), aPod("a", placed, inPhase(corev1.PodRunning))}},
		{"not ready before ready", []*corev1.Pod{aPod("b", placed, inPhase(corev1.PodRunning)), aPod("a", placed, readyFor(0))}},
		{"a cost is no matter", []*corev1.Pod{
			aPod("b", placed, readyFor(time.Second), annotated(corev1.PodDeletionCost, "100")), aPod("a", placed, readyFor(time.Hour), annotated(corev1.PodDeletionCost, "-100"))}},
		{"a second makes a difference, whatever the uid", []*corev1.Pod{
			aPod("c", placed, readyFor(99*time.Minute)), aPod("b", placed, readyFor(100*time.Minute)), aPod("a", placed, readyFor(101*time.Minute))}},
		{"ready since nobody knows when first", []*corev1.Pod{aPod("b", placed, readyFor(0), untimed), aPod("a", placed, readyFor(time.Second))}},
		{"more restarts first", []*corev1.Pod{aPod("b", placed, inPhase(corev1.PodRunning), restarted(7)), aPod("a", placed, inPhase(corev1.PodRunning), restarted(3))}},
		{"the younger first", []*corev1.Pod{aPod("c", placed, created(99*time.Minute)), aPod("b", placed, created(100*time.Minute)), aPod("a", placed, created(101*time.Minute))}},
		{"created nobody knows when first", []*corev1.Pod{aPod("b", func(p *corev1.Pod) { p.CreationTimestamp = metav1.Time{} }), aPod("a", created(0))}},
	} {
		for _, pods := range [][]*corev1.Pod{slices.Clone(test.pods), backwards(test.pods)} {
			sortByProgress(pods)
			if names(pods) != names(test.pods) {
				t.Errorf("%s: %s, want %s", test.what, names(pods), names(test.pods))
			}
		}
	}
}

func backwards[T any](all []T) []T {
	all = slices.Clone(all)
	slices.Reverse(all)
	return all
}

// anyPod is a pod of any state, with few different values for each of its sides so that many pods are alike.
func anyPod(random *rand.Rand, i int) *corev1.Pod {
	pick := func(n int) int { return random.IntN(n) }
	pod := aPod(fmt.Sprint("p", i), inPhase([]corev1.PodPhase{corev1.PodPending, corev1.PodUnknown, corev1.PodRunning}[pick(3)]), restarted(int32(pick(2))))
	pod.UID = types.UID(fmt.Sprint("uid-", pick(1000)))
	pod.Spec.NodeName = []string{"", "n1", "n2"}[pick(3)]
	if pick(2) > 0 {
		conditioned(corev1.PodReady, "True", []time.Duration{0, time.Minute, 61 * time.Second, time.Hour}[pick(4)])(pod)
	}
	if pick(6) == 0 {
		untimed(pod)
	}
	if pick(3) == 0 {
		annotated(corev1.PodDeletionCost, []string{"-1", "1", "odd"}[pick(3)])(pod)
	}
	pod.CreationTimestamp = []metav1.Time{ago(time.Hour), ago(3600*time.Second + 5), ago(24 * time.Hour), {}}[pick(4)]
	return pod
}

// rank writes a pod down as numbers, smallest first to go: the rules of sortForDeletion one after the other, read off as a list. The time of being
// ready and of creation are two numbers each, because a time within one magnitude is decided by UID unless both are the same.
func rank(pod *corev1.Pod, many int) (coarse []int64) {
	flag := func(b bool) int64 {
		if b {
			return 1
		}
		return 0
	}
	isReady := slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady && c.Status == "True" })
	cost := map[string]int64{"-1": -1, "1": 1}[pod.Annotations[corev1.PodDeletionCost]]
	phase := map[corev1.PodPhase]int64{corev1.PodUnknown: 1, corev1.PodRunning: 2}[pod.Status.Phase]
	return []int64{flag(pod.Spec.NodeName != ""), phase, flag(isReady), cost, int64(-many)}
}

// TestSortForDeletionIsAnOrder sorts random pods from random beginnings. The order is always the same, follows the rules from the first to the
// last, and what decides between two pods that are alike so far is their time, restarts and UID.
func TestSortForDeletionIsAnOrder(t *testing.T) {
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 1))
		var pods []*corev1.Pod
		for i := range 2 + random.IntN(12) {
			pods = append(pods, anyPod(random, i))
		}
		onNode := map[string]int{"n1": random.IntN(3), "n2": random.IntN(3)}
		many := func(p *corev1.Pod) int { return onNode[p.Spec.NodeName] }
		sorted := slices.Clone(pods)
		sortForDeletion(sorted, many, now)
		for i := 1; i < len(sorted); i++ {
			a, b := sorted[i-1], sorted[i]
			c := slices.Compare(rank(a, many(a)), rank(b, many(b)))
			if c == 0 && podstate.IsReady(a) {
				c = compareTimes(podstate.Condition(a, corev1.PodReady).LastTransitionTime, podstate.Condition(b, corev1.PodReady).LastTransitionTime, a, b)
			}
			if c == 0 {
				c = cmp.Compare(b.Status.ContainerStatuses[0].RestartCount, a.Status.ContainerStatuses[0].RestartCount)
			}
			if c == 0 {
				c = compareTimes(a.CreationTimestamp, b.CreationTimestamp, a, b)
			}
			if c > 0 {
				t.Errorf("seed %d: %s comes before %s\n%+v\n%+v", seed, a.Name, b.Name, a, b)
			}
		}
	}
}

// compareTimes is upstream's rule for two times, in words: an unknown time first; then by the power of two of the age; then by UID.
func compareTimes(a, b metav1.Time, podA, podB *corev1.Pod) int {
	if a.Equal(&b) {
		return 0
	}
	if a.IsZero() {
		return -1
	}
	if b.IsZero() {
		return 1
	}
	power := func(t metav1.Time) (n int) {
		for age := now.Sub(t.Time); age > 1; age /= 2 {
			n++
		}
		if !now.After(t.Time) {
			n = -1
		}
		return n
	}
	if c := cmp.Compare(power(a), power(b)); c != 0 {
		return c
	}
	return cmp.Compare(podA.UID, podB.UID)
}
