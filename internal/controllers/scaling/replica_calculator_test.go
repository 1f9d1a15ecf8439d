package scaling

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func inPhase(phase corev1.PodPhase) change[*corev1.Pod] {
	return func(p *corev1.Pod) { p.Status.Phase = phase }
}

// since sets when a pod began and when its readiness last changed, as ages.
func since(began, changed time.Duration) change[*corev1.Pod] {
	return func(p *corev1.Pod) {
		p.Status.StartTime, p.Status.Conditions[0].LastTransitionTime = new(ago(began)), ago(changed)
	}
}

// TestStartingPods: when the CPU usage of a pod counts.
func TestStartingPods(t *testing.T) {
	const startup, delay = 5 * time.Minute, 30 * time.Second
	for _, test := range []struct {
		what   string
		pod    *corev1.Pod
		sample sample
		want   bool
	}{
		{"old and ready", aPod("p"), sample{at: now, window: time.Minute}, false},
		{"no Ready condition", aPod("p", func(p *corev1.Pod) { p.Status.Conditions = nil }), sample{at: now}, true},
		{"another condition only", aPod("p", func(p *corev1.Pod) { p.Status.Conditions[0].Type = corev1.PodScheduled }), sample{at: now}, true},
		{"no start time", aPod("p", func(p *corev1.Pod) { p.Status.StartTime = nil }), sample{at: now}, true},
		{"young and not ready", aPod("p", since(time.Minute, time.Minute), unready), sample{at: now, window: time.Second}, true},
		{"young and ready, sampled since", aPod("p", since(2*time.Minute, time.Minute)), sample{at: now, window: 30 * time.Second}, false},
		{"young and ready, the sample began before", aPod("p", since(2*time.Minute, time.Minute)), sample{at: now, window: 90 * time.Second}, true},
		{"the sample began just when it became ready", aPod("p", since(2*time.Minute, time.Minute)), sample{at: now, window: time.Minute}, false},
		{"one nanosecond earlier", aPod("p", since(2*time.Minute, time.Minute)), sample{at: now.Add(-time.Nanosecond), window: time.Minute}, true},
		{"readiness unknown is no unreadiness", aPod("p", since(2*time.Minute, time.Minute), func(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionUnknown }), sample{at: now, window: time.Second}, false},
		{"exactly at the end of the start: it is old", aPod("p", since(startup, time.Second)), sample{at: now, window: time.Hour}, false},
		{"just before the end of the start", aPod("p", since(startup-time.Nanosecond, time.Second)), sample{at: now, window: time.Hour}, true},
		{"old, not ready and never was", aPod("p", since(time.Hour, time.Hour-delay+time.Second), unready), sample{at: now}, true},
		{"old, not ready since the moment the delay ended", aPod("p", since(time.Hour, time.Hour-delay), unready), sample{at: now}, false},
		{"old, not ready any more", aPod("p", since(time.Hour, time.Minute), unready), sample{at: now}, false},
		{"old, not ready for long, but ready once", aPod("p", since(time.Hour, 59*time.Minute), unready), sample{at: now}, false},
	} {
		c := podSamples{cpuInitialization: startup, initialReadiness: delay, now: now}
		if got := c.isInitializing(test.pod, test.sample); got != test.want {
			t.Errorf("%s: starting %v", test.what, got)
		}
	}
}

// TestSorted: who counts.
func TestSorted(t *testing.T) {
	young := since(time.Minute, 10*time.Second)
	for _, test := range []struct {
		what     string
		pod      *corev1.Pod
		measured bool
		resource corev1.ResourceName
		want     string
	}{
		{"a ready pod", aPod("p"), true, "", "counted ready"},
		{"an unready pod counts for all but CPU", aPod("p", unready, young), true, corev1.ResourceMemory, "counted ready"},
		{"an unready young pod does not for CPU", aPod("p", unready, young), true, corev1.ResourceCPU, "unready"},
		{"no sample", aPod("p"), false, "", "missing"},
		{"no sample, young", aPod("p", young), false, corev1.ResourceCPU, "missing"},
		{"pending", aPod("p", inPhase(corev1.PodPending)), true, "", "unready"},
		{"pending, no sample", aPod("p", inPhase(corev1.PodPending)), false, "", "unready"},
		{"failed", aPod("p", inPhase(corev1.PodFailed)), true, "", ""},
		{"succeeded counts", aPod("p", inPhase(corev1.PodSucceeded)), true, "", "counted ready"},
		{"unknown counts", aPod("p", inPhase(corev1.PodUnknown)), true, "", "counted ready"},
		{"leaving", aPod("p", beingDeleted), true, "", ""},
		{"leaving and pending", aPod("p", beingDeleted, inPhase(corev1.PodPending)), false, "", ""},
	} {
		c := podSamples{pods: []*corev1.Pod{test.pod}, resource: test.resource, cpuInitialization: 5 * time.Minute, initialReadiness: 30 * time.Second, now: now}
		if test.measured {
			c.samples = map[string]sample{"p": {value: 1, at: now, window: time.Minute}}
		}
		counted, ready, unready, missing := c.groupPods()
		got := ""
		if len(counted) > 0 {
			got = "counted "
		}
		for _, part := range []struct {
			is   bool
			word string
		}{{ready == 1, "ready"}, {len(unready) == 1, "unready"}, {len(missing) == 1, "missing"}} {
			if part.is {
				got += part.word
			}
		}
		if got != test.want {
			t.Errorf("%s: %q, want %q", test.what, got, test.want)
		}
	}
	// Samples of pods that are not in the list stay: they are on their way into it.
	if counted, _, _, _ := (podSamples{pods: ready(1), samples: uses(1, 2)}).groupPods(); len(counted) != 2 {
		t.Errorf("samples of two pods, one known: %v", counted)
	}
}

// TestTolerance: its bounds belong to it.
func TestTolerance(t *testing.T) {
	for _, test := range []struct {
		down, up, ratio float64
		want            bool
	}{
		{0.1, 0.1, 1, true}, {0.1, 0.1, 0.9, true}, {0.1, 0.1, 0.899, false}, {0.1, 0.1, 1.1, true}, {0.1, 0.1, 1.101, false},
		{0, 0, 1, true}, {0, 0, 1.0001, false}, {0, 0, 0.9999, false}, {0.5, 0, 0.5, true}, {0.5, 0, 1.01, false}, {0, 0.5, 1.5, true}, {0, 0.5, 0.99, false}, {1, 0, 0, true},
	} {
		if got := (tolerance{test.down, test.up}).contains(test.ratio); got != test.want {
			t.Errorf("%+v: %v", test, got)
		}
	}
}

// TestProposals: how many pods, by average use of a target of 100, with the tolerance of a tenth.
func TestProposals(t *testing.T) {
	pending, failed := inPhase(corev1.PodPending), inPhase(corev1.PodFailed)
	and := func(pods []*corev1.Pod, more ...*corev1.Pod) []*corev1.Pod { return append(pods, more...) }
	for _, test := range []struct {
		what    string
		pods    []*corev1.Pod
		samples map[string]sample
		current int32
		want    int32
		err     string
	}{
		{"exactly the upper bound is within", ready(10), uses(110, 110, 110, 110, 110, 110, 110, 110, 110, 110), 10, 10, ""},
		{"just above it", ready(10), uses(111, 111, 111, 111, 111, 111, 111, 111, 111, 111), 10, 12, ""},
		{"exactly the lower bound is within", ready(10), uses(90, 90, 90, 90, 90, 90, 90, 90, 90, 90), 10, 10, ""},
		{"just below it", ready(10), uses(89, 89, 89, 89, 89, 89, 89, 89, 89, 89), 10, 9, ""},
		{"the mean counts", ready(4), uses(0, 0, 400, 400), 4, 8, ""},
		{"the mean is rounded down before it is judged", ready(3), uses(111, 110, 110), 3, 3, ""},
		{"nothing is used", ready(3), uses(0, 0, 0), 3, 0, ""},
		{"more pods than the target says: those there are, are multiplied", ready(4), uses(200, 200, 200, 200), 2, 8, ""},
		{"fewer pods than the target says", ready(2), uses(50, 50), 8, 1, ""},
		{"a little more is a whole pod", ready(3), uses(115, 115, 115), 3, 4, ""},
		{"missing, and on target: they count as nothing special", ready(3), uses(100, 100, -1), 3, 3, ""},
		{"missing, and much more wanted", ready(4), uses(400, 400, 400, -1), 4, 12, ""},
		{"missing ones bring it within the tolerance", ready(3), uses(150, 150, -1), 3, 3, ""},
		{"missing ones would turn it round", ready(5), uses(120, -1, -1, -1, -1), 5, 5, ""},
		{"missing, and less wanted: they count as at the target", ready(4), uses(20, 20, -1, -1), 4, 3, ""},
		{"missing, less wanted, and within the tolerance then", ready(10), uses(80, -1, -1, -1, -1, -1, -1, -1, -1, -1), 10, 10, ""},
		{"unready does not matter when fewer are wanted", and(ready(3), aPod("p3", pending)), uses(30, 30, 30, 30), 4, 1, ""},
		{"unready counts as idle when more are wanted", and(ready(2), aPod("p2", pending), aPod("p3", pending)), uses(220, 220), 4, 4, ""},
		{"unready and missing, more wanted", and(ready(3), aPod("p3", pending)), uses(500, 500, -1), 4, 10, ""},
		{"unready and missing, less wanted", and(ready(3), aPod("p3", pending)), uses(10, 10, -1), 4, 2, ""},
		{"fewer pods known than there are: not fewer when more are wanted", ready(2), uses(200, -1), 8, 8, ""},
		{"more pods known than there should be: not more when fewer are wanted", ready(6), uses(80, 80, 80, 80, 80, -1), 2, 2, ""},
		{"failed ones do not count", and(ready(2), aPod("p2", failed), aPod("p3", failed)), uses(200, 200, 0, 0), 4, 4, ""},
		{"all are leaving", []*corev1.Pod{aPod("p0", beingDeleted)}, uses(100), 1, 0, "did not receive metrics for targeted pods (pods might be unready)"},
		{"all are pending", []*corev1.Pod{aPod("p0", pending)}, uses(100), 1, 0, "did not receive metrics for targeted pods (pods might be unready)"},
		{"nobody is measured", ready(2), nil, 2, 0, "did not receive metrics for targeted pods (pods might be unready)"},
		{"no pods at all", nil, uses(100), 2, 0, "no pods returned by selector while calculating replica count"},
	} {
		c := podSamples{pods: test.pods, samples: test.samples, now: now}
		got, err := c.propose(test.current, averageValue{100}, tolerance{0.1, 0.1})
		if got != test.want || errorText(err) != test.err {
			t.Errorf("%s: %d, %v; want %d, %q", test.what, got, err, test.want, test.err)
		}
	}
}

// TestUtilization: shares of requests, in whole percents.
func TestUtilization(t *testing.T) {
	requests := map[string]int64{"p0": 1000, "p1": 1000, "p2": 500}
	for _, test := range []struct {
		what    string
		samples map[string]sample
		percent int32
		mean    int64
		err     string
	}{
		{"half", uses(500, 500), 50, 500, ""},
		{"by weight", uses(1000, 0, 500), 60, 500, ""},
		{"rounded down", uses(999, 999), 99, 999, ""},
		{"more than requested", uses(3000), 300, 3000, ""},
		{"a pod nobody knows does not count", map[string]sample{"p0": {value: 100}, "x": {value: 9999}}, 10, 100, ""},
		{"none that is known", map[string]sample{"x": {value: 1}}, 0, 0, "no metrics returned matched known pods"},
		{"nothing", nil, 0, 0, "no metrics returned matched known pods"},
	} {
		percent, mean, err := utilization{target: 50, requests: requests}.of(test.samples)
		if percent != test.percent || mean != test.mean || errorText(err) != test.err {
			t.Errorf("%s: %d%%, %d, %v", test.what, percent, mean, err)
		}
	}
	if _, _, err := (utilization{requests: map[string]int64{"p0": 0}}).of(uses(5)); errorText(err) != "no metrics returned matched known pods" {
		t.Errorf("pods that request nothing: %v", err)
	}
	// A pod without a sample is taken to use all it requests, or what the target is when that is more.
	for _, test := range []struct {
		target int32
		want   int64
	}{{50, 1000}, {100, 1000}, {101, 1010}, {200, 2000}} {
		if got := (utilization{target: test.target, requests: requests}).assumedUsage("p0"); got != test.want {
			t.Errorf("target %d%%: %d", test.target, got)
		}
	}
	// By shares, the same rules as by averages: a missing pod counts as full when fewer are wanted.
	for _, test := range []struct {
		what    string
		samples map[string]sample
		target  int32
		want    int32
	}{
		{"as wanted", uses(500, 500, 250), 50, 3},
		{"twice as wanted", uses(1000, 1000, 500), 50, 6},
		{"half as wanted", uses(250, 250, 125), 50, 2},
		{"one missing, less wanted", uses(100, 100, -1), 50, 2},
		{"one missing, less wanted, target above all", uses(1000, 1000, -1), 200, 2},
		{"one missing, more wanted", uses(1000, 1000, -1), 50, 5},
	} {
		c := podSamples{pods: ready(3), samples: test.samples, now: now}
		if got, err := c.propose(3, utilization{target: test.target, requests: requests}, tolerance{0.1, 0.1}); err != nil || got != test.want {
			t.Errorf("%s: %d, %v; want %d", test.what, got, err, test.want)
		}
	}
}

// TestRequests: what a pod requests.
func TestRequests(t *testing.T) {
	list := func(pairs ...string) corev1.ResourceList {
		l := corev1.ResourceList{}
		for i := 0; i < len(pairs); i += 2 {
			l[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
		}
		return l
	}
	container := func(name string, requests corev1.ResourceList) corev1.Container {
		return corev1.Container{Name: name, Resources: corev1.ResourceRequirements{Requests: requests}}
	}
	always := corev1.ContainerRestartPolicyAlways
	sidecar := func(c corev1.Container) corev1.Container { c.RestartPolicy = &always; return c }
	cpu := list("cpu", "200m")
	for _, test := range []struct {
		what      string
		spec      corev1.PodSpec
		name      corev1.ResourceName
		container string
		want      int64
		err       string
	}{
		{"one container", corev1.PodSpec{Containers: []corev1.Container{container("a", cpu)}}, "cpu", "", 200, ""},
		{"all containers", corev1.PodSpec{Containers: []corev1.Container{container("a", cpu), container("b", list("cpu", "1"))}}, "cpu", "", 1200, ""},
		{"sidecars count", corev1.PodSpec{Containers: []corev1.Container{container("a", cpu)}, InitContainers: []corev1.Container{sidecar(container("s", cpu))}}, "cpu", "", 400, ""},
		{"init containers do not", corev1.PodSpec{Containers: []corev1.Container{container("a", cpu)}, InitContainers: []corev1.Container{container("i", list("cpu", "9"))}}, "cpu", "", 200, ""},
		{"overhead does not, where containers request", corev1.PodSpec{Containers: []corev1.Container{container("a", cpu)}, Overhead: list("cpu", "1")}, "cpu", "", 200, ""},
		{"one that requests nothing", corev1.PodSpec{Containers: []corev1.Container{container("a", cpu), container("b", nil)}}, "cpu", "", 0, "missing request for cpu in container b of Pod p"},
		{"a sidecar that requests nothing", corev1.PodSpec{Containers: []corev1.Container{container("a", cpu)}, InitContainers: []corev1.Container{sidecar(container("s", nil))}}, "cpu", "", 0, "missing request for cpu in container s of Pod p"},
		{"a request of zero is one", corev1.PodSpec{Containers: []corev1.Container{container("a", list("cpu", "0"))}}, "cpu", "", 0, ""},
		{"another resource", corev1.PodSpec{Containers: []corev1.Container{container("a", cpu)}}, "memory", "", 0, "missing request for memory in container a of Pod p"},
		{"bytes, in thousandths", corev1.PodSpec{Containers: []corev1.Container{container("a", list("memory", "1Ki"))}}, "memory", "", 1024000, ""},
		{"one container of two", corev1.PodSpec{Containers: []corev1.Container{container("a", cpu), container("b", nil)}}, "cpu", "a", 200, ""},
		{"a sidecar by name", corev1.PodSpec{Containers: []corev1.Container{container("a", nil)}, InitContainers: []corev1.Container{sidecar(container("s", cpu))}}, "cpu", "s", 200, ""},
		{"an init container by name", corev1.PodSpec{InitContainers: []corev1.Container{container("i", cpu)}}, "cpu", "i", 0, "container i not found in Pod p"},
		{"a container that is not there", corev1.PodSpec{Containers: []corev1.Container{container("a", cpu)}}, "cpu", "x", 0, "container x not found in Pod p"},
		{"no containers", corev1.PodSpec{}, "cpu", "", 0, ""},
		{"the pod as a whole", corev1.PodSpec{Resources: &corev1.ResourceRequirements{Requests: list("cpu", "3")}, Containers: []corev1.Container{container("a", nil)}}, "cpu", "", 3000, ""},
		{"the pod as a whole, its overhead included", corev1.PodSpec{Resources: &corev1.ResourceRequirements{Requests: list("cpu", "3")}, Overhead: list("cpu", "250m")}, "cpu", "", 3250, ""},
		{"what the whole says nothing about, containers say", corev1.PodSpec{Resources: &corev1.ResourceRequirements{Requests: list("cpu", "3")}, Containers: []corev1.Container{container("a", list("memory", "1")), container("b", nil)}}, "memory", "", 1000, ""},
		{"nobody says it", corev1.PodSpec{Resources: &corev1.ResourceRequirements{Requests: list("cpu", "3")}, Containers: []corev1.Container{container("a", nil)}}, "memory", "", 0, "missing pod-level request for memory in Pod p"},
		{"the whole says nothing that counts", corev1.PodSpec{Resources: &corev1.ResourceRequirements{Requests: list("example.com/x", "3")}, Containers: []corev1.Container{container("a", cpu)}}, "cpu", "", 200, ""},
		{"the whole does not matter for one container", corev1.PodSpec{Resources: &corev1.ResourceRequirements{Requests: list("cpu", "3")}, Containers: []corev1.Container{container("a", cpu)}}, "cpu", "a", 200, ""},
	} {
		got, err := requestsOf([]*corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: test.spec}}, test.name, test.container)
		if errorText(err) != test.err || got["p"] != test.want {
			t.Errorf("%s: %v, %v", test.what, got, err)
		}
	}
}

// TestByRatioAndShare: metrics of the whole.
func TestByRatioAndShare(t *testing.T) {
	mixed := append(ready(4), aPod("u", unready), aPod("q", inPhase(corev1.PodPending)), aPod("s", inPhase(corev1.PodSucceeded)))
	for _, test := range []struct {
		what    string
		pods    []*corev1.Pod
		current int32
		ratio   float64
		want    int32
		err     string
	}{
		{"ready and running ones are multiplied", mixed, 7, 2, 8, ""},
		{"within the tolerance", mixed, 7, 1.1, 7, ""},
		{"within it without any pod", nil, 7, 1, 7, ""},
		{"rounded up", mixed, 7, 1.3, 6, ""},
		{"nothing is left", mixed, 7, 0, 0, ""},
		{"from zero: the ratio itself", nil, 0, 2.1, 3, ""},
		{"from zero, nothing to do", nil, 0, 0, 0, ""},
		{"from zero, no tolerance", nil, 0, 1, 1, ""},
		{"no pods", nil, 3, 2, 0, "unable to calculate ready pods: no pods returned by selector while calculating replica count"},
		{"none is ready", []*corev1.Pod{aPod("u", unready)}, 3, 5, 0, ""},
		{"more than there can be", mixed, 7, 1e15, math.MaxInt32, ""},
	} {
		got, err := podSamples{pods: test.pods}.replicasForRatio(test.current, test.ratio, tolerance{0.1, 0.1})
		if got != test.want || errorText(err) != test.err {
			t.Errorf("%s: %d, %v", test.what, got, err)
		}
	}
	for _, test := range []struct {
		what          string
		current       int32
		usage, target int64
		want          int32
		each          int64
	}{
		{"ten shares", 4, 1000, 100, 10, 250},
		{"a part of a share is a pod", 4, 1001, 100, 11, 251},
		{"within the tolerance", 10, 1099, 100, 10, 110},
		{"at its bound", 10, 1100, 100, 10, 110},
		{"beyond it", 10, 1101, 100, 12, 111},
		{"less", 10, 100, 100, 1, 10},
		{"nothing", 10, 0, 100, 0, 0},
		{"from zero", 0, 1000, 100, 10, 1000},
		{"more than can be counted", 5, math.MaxInt64, 1, math.MaxInt32, math.MaxInt64},
	} {
		if got, each := replicasForAverage(test.current, test.usage, test.target, tolerance{0.1, 0.1}); got != test.want || each != test.each {
			t.Errorf("%s: %d, each %d", test.what, got, each)
		}
	}
}

// slowProposal says the same as propose, the long way: it goes through the pods one by one and builds the list of what each is taken
// to use.
func slowProposal(c podSamples, current int32, target int64, t tolerance) (int32, error) {
	if len(c.pods) == 0 {
		return 0, errors.New("no pods")
	}
	type use struct {
		pod   string
		value int64
	}
	var used []use
	var unready, missing []string
	known := map[string]bool{}
	sound := 0
	for _, p := range c.pods {
		known[p.Name] = true
		s, ok := c.samples[p.Name]
		if p.DeletionTimestamp != nil || p.Status.Phase == corev1.PodFailed {
			continue
		}
		if p.Status.Phase == corev1.PodPending || ok && c.resource == corev1.ResourceCPU && c.isInitializing(p, s) {
			unready = append(unready, p.Name)
			continue
		}
		if !ok {
			missing = append(missing, p.Name)
			continue
		}
		sound++
		used = append(used, use{p.Name, s.value})
	}
	for name, s := range c.samples {
		if !known[name] {
			used = append(used, use{name, s.value})
		}
	}
	if len(used) == 0 {
		return 0, errors.New("no metrics")
	}
	ratio := func() float64 {
		var sum int64
		for _, u := range used {
			sum += u.value
		}
		return float64(sum/int64(len(used))) / float64(target)
	}
	first := ratio()
	if len(missing) == 0 && (len(unready) == 0 || first <= 1) {
		if first >= 1-t.down && first <= 1+t.up {
			return current, nil
		}
		return int32(math.Ceil(first * float64(sound))), nil
	}
	for _, name := range missing {
		if first < 1 {
			used = append(used, use{name, target})
		} else if first > 1 {
			used = append(used, use{name, 0})
		}
	}
	if first > 1 {
		for _, name := range unready {
			used = append(used, use{name, 0})
		}
	}
	second := ratio()
	within := second >= 1-t.down && second <= 1+t.up
	turned := first < 1 && second > 1 || first > 1 && second < 1
	if within || turned {
		return current, nil
	}
	n := int32(math.Ceil(second * float64(len(used))))
	if second < 1 && n > current || second > 1 && n < current {
		return current, nil
	}
	return n, nil
}

// TestProposalsLikeAModel: random manyPods, the short way and the long one; and the order of pods does not matter.
func TestProposalsLikeAModel(t *testing.T) {
	const seed = 17
	random := rand.New(rand.NewPCG(seed, seed))
	for round := range 3000 {
		c := podSamples{samples: map[string]sample{}, cpuInitialization: 5 * time.Minute, initialReadiness: 30 * time.Second, now: now}
		c.resource = []corev1.ResourceName{"", corev1.ResourceCPU, corev1.ResourceMemory}[random.IntN(3)]
		for i := range random.IntN(8) {
			pod := aPod(fmt.Sprint("p", i), since(time.Duration(random.IntN(600))*time.Second, time.Duration(random.IntN(600))*time.Second))
			for _, change := range []change[*corev1.Pod]{unready, beingDeleted, inPhase(corev1.PodPending), inPhase(corev1.PodFailed), func(p *corev1.Pod) { p.Status.StartTime = nil }} {
				if random.IntN(6) == 0 {
					change(pod)
				}
			}
			c.pods = append(c.pods, pod)
			if random.IntN(4) > 0 {
				c.samples[pod.Name] = sample{value: random.Int64N(300), at: now.Add(-time.Duration(random.IntN(60)) * time.Second), window: time.Duration(random.IntN(90)) * time.Second}
			}
		}
		if random.IntN(5) == 0 {
			c.samples["stranger"] = sample{value: random.Int64N(300)}
		}
		current, tol := random.Int32N(12), tolerance{float64(random.IntN(4)) / 10, float64(random.IntN(4)) / 10}
		got, err := c.propose(current, averageValue{100}, tol)
		want, wantErr := slowProposal(c, current, 100, tol)
		if got != want || (err == nil) != (wantErr == nil) {
			t.Fatalf("seed %d, round %d: %d, %v; the long way %d, %v", seed, round, got, err, want, wantErr)
		}
		slices.Reverse(c.pods)
		if again, _ := c.propose(current, averageValue{100}, tol); again != got {
			t.Fatalf("seed %d, round %d: in another order %d, not %d", seed, round, again, got)
		}
	}
}
