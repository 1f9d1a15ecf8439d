package workload

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"skiff/internal/controller"
)

// amount reads "3" as a number and "25%" as a percentage; "" is none.
func amount(text string) *intstr.IntOrString {
	if text == "" {
		return nil
	}
	return new(intstr.Parse(text))
}

func bounds(surge, unavailable string) change[*appsv1.Deployment] {
	return func(d *appsv1.Deployment) {
		d.Spec.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{MaxSurge: amount(surge), MaxUnavailable: amount(unavailable)}
	}
}

// setsOf reads sets of a deployment, written "revision:size/available", such as "1:10/9 2:1/0". "@n" behind it is what the set was last scaled for.
func setsOf(d *appsv1.Deployment, text string) (sets []*appsv1.ReplicaSet) {
	for word := range strings.FieldsSeq(text) {
		var revision, size, available int
		desired := int(ptr.Deref(d.Spec.Replicas, 1))
		word, noted, isNoted := strings.Cut(word, "@")
		if isNoted {
			desired, _ = strconv.Atoi(noted)
		}
		if _, err := fmt.Sscanf(word, "%d:%d/%d", &revision, &size, &available); err != nil {
			panic(word + ": " + err.Error())
		}
		surge, _ := resolveFenceposts(with(d.DeepCopy(), func(d *appsv1.Deployment) { d.Spec.Replicas = new(int32(desired)) }))
		sets = append(sets, setOf(d, revision, int32(size), int32(available), noted2(desired, desired+int(surge))))
	}
	return sets
}

func noted2(desired, most int) change[*appsv1.ReplicaSet] {
	return func(s *appsv1.ReplicaSet) {
		s.Annotations[desiredReplicasAnnotation], s.Annotations[maxReplicasAnnotation] = fmt.Sprint(desired), fmt.Sprint(most)
	}
}

// sizes are the sets after a plan: "1:9 2:1", a new one as "new:1", a deleted one as "1:gone".
func sizes(sets []*appsv1.ReplicaSet, plan controller.Plan) string {
	size := map[string]string{}
	var order []string
	for _, set := range sets {
		name := strings.TrimPrefix(set.Name, "web-")
		order = append(order, name)
		size[name] = fmt.Sprint(ptr.Deref(set.Spec.Replicas, 1))
	}
	for _, w := range writesOf(plan) {
		set, ok := w.Object.(*appsv1.ReplicaSet)
		name := strings.TrimPrefix(w.Object.GetName(), "web-")
		switch {
		case !ok:
		case w.Verb == controller.Create:
			order = append(order, "new")
			size["new"] = fmt.Sprint(ptr.Deref(set.Spec.Replicas, 1))
		case w.Verb == controller.Delete:
			size[name] = "gone"
		case w.Verb == controller.Update:
			size[name] = fmt.Sprint(ptr.Deref(set.Spec.Replicas, 1))
		}
	}
	var words []string
	for _, name := range order {
		words = append(words, name+":"+size[name])
	}
	return strings.Join(words, " ")
}

func TestFences(t *testing.T) {
	for _, test := range []struct {
		replicas           int32
		surge, unavailable string
		more, less         int32
	}{
		{0, "25%", "25%", 0, 0}, {1, "25%", "25%", 1, 0}, {2, "25%", "25%", 1, 0}, {3, "25%", "25%", 1, 0}, {4, "25%", "25%", 1, 1}, {5, "25%", "25%", 2, 1},
		{7, "25%", "25%", 2, 1}, {8, "25%", "25%", 2, 2}, {9, "25%", "25%", 3, 2}, {10, "25%", "25%", 3, 2}, {100, "25%", "25%", 25, 25}, {101, "25%", "25%", 26, 25},
		{10, "1", "1", 1, 1}, {10, "1", "0", 1, 0}, {10, "0", "1", 0, 1}, {10, "5", "3", 5, 3}, {10, "20", "0", 20, 0},
		// None and none would never move: one may be missing.
		{10, "0", "0", 0, 1}, {10, "0%", "0%", 0, 1}, {10, "0", "0%", 0, 1}, {10, "", "", 0, 1}, {10, "", "0", 0, 1}, {10, "0", "", 0, 1}, {1, "0", "0", 0, 1},
		// A percentage that rounds down to none is none, unless surge rounds up to one.
		{10, "0", "1%", 0, 1}, {10, "0", "9%", 0, 1}, {10, "0", "10%", 0, 1}, {10, "0", "19%", 0, 1}, {10, "0", "20%", 0, 2}, {10, "1%", "1%", 1, 0}, {10, "1%", "10%", 1, 1},
		{1, "1%", "99%", 1, 0}, {1, "0", "100%", 0, 1}, {3, "34%", "34%", 2, 1}, {3, "33%", "33%", 1, 0}, {3, "0", "66%", 0, 1}, {3, "0", "67%", 0, 2},
		// More may be missing than there are only on paper.
		{10, "0", "11", 0, 10}, {10, "0", "10", 0, 10}, {10, "0", "200%", 0, 10}, {10, "100%", "100%", 10, 10}, {10, "150%", "50%", 15, 5}, {2, "0", "1000", 0, 2},
		{0, "1", "1", 1, 0}, {0, "0", "0", 0, 0}, {0, "3", "0", 3, 0}, {2147483647, "0", "1", 0, 1},
	} {
		d := aDeployment(test.replicas, bounds(test.surge, test.unavailable))
		r := &rollout{deploymentView: deploymentView{deployment: d}}
		if r.maxSurge() != test.more || r.maxUnavailable() != test.less {
			t.Errorf("%d pods, surge %q, unavailable %q: %d more and %d less, want %d and %d", test.replicas, test.surge, test.unavailable, r.maxSurge(), r.maxUnavailable(), test.more, test.less)
		}
	}
	if more, less := resolveFenceposts(aDeployment(10, recreating)); more != 0 || less != 0 {
		t.Errorf("recreating: %d more, %d less", more, less)
	}
	if more, less := resolveFenceposts(aDeployment(10, func(d *appsv1.Deployment) { d.Spec.Strategy.RollingUpdate = nil })); more != 0 || less != 1 {
		t.Errorf("no bounds: %d more, %d less", more, less)
	}
}

// TestRollingStep: each row is one sync at a deployment in the middle of an update from older revisions to revision 2.
func TestRollingStep(t *testing.T) {
	for _, test := range []struct {
		what               string
		replicas           int32
		surge, unavailable string
		sets, want         string
	}{
		{"first rollout", 3, "1", "0", "", "new:3"},
		{"first rollout of none", 0, "1", "0", "", "new:0"},
		{"first rollout is not held by surge", 10, "0", "1", "", "new:10"},
		{"second rollout: the new set has what surge allows", 10, "3", "0", "1:10/10", "1:10 new:3"},
		{"second rollout without surge: an empty set first", 10, "0", "2", "1:10/10", "1:10 new:0"},
		{"second rollout with room left by scaling", 10, "0", "2", "1:7/7", "1:7 new:3"},
		{"second rollout: never more than wanted", 3, "100%", "0", "1:1/1", "1:1 new:3"},
		{"old sets that are too many leave no room", 10, "1", "1", "1:12/12", "1:12 new:0"},
		{"the new set grows into surge", 10, "3", "0", "1:10/10 2:1/1", "1:10 2:3"},
		{"the new set grows into the room old pods left", 10, "0", "1", "1:9/9 2:0/0", "1:9 2:1"},
		{"the new set grows to what is wanted and no more", 10, "5", "0", "1:2/2 2:8/8", "1:2 2:10"},
		{"the new set has all: old ones go", 10, "5", "0", "1:2/2 2:10/10", "1:0 2:10"},
		{"the new set is larger than wanted", 10, "1", "1", "1:0/0 2:13/13", "1:0 2:10"},
		{"the new set is larger than wanted: first it shrinks, then the others", 5, "1", "1", "1:3/3 2:7/7", "1:3 2:5"},
		{"no surge: old pods make room first", 10, "0", "2", "1:10/10 2:0/0", "1:8 2:0"},
		{"nothing moves while new pods are not available", 10, "1", "0", "1:10/10 2:1/0", "1:10 2:1"},
		{"nothing moves at the lower bound", 10, "0", "2", "1:8/8 2:2/0", "1:8 2:2"},
		{"one new pod is available: one old goes", 10, "1", "0", "1:10/10 2:1/1", "1:9 2:1"},
		{"two new pods are available: two old go", 10, "2", "0", "1:10/10 2:2/2", "1:8 2:2"},
		{"leeway and new ones add up", 10, "2", "2", "1:10/10 2:2/2", "1:6 2:2"},
		{"leeway alone", 10, "2", "2", "1:10/10 2:2/0", "1:8 2:2"},
		{"sick old pods go first, no matter how few are available", 10, "0", "1", "1:10/5 2:0/0", "1:9 2:0"},
		{"all old pods are sick", 10, "2", "2", "1:10/0 2:2/0", "1:8 2:2"},
		{"all old pods are sick and the new ones well", 10, "2", "2", "1:10/0 2:2/2", "1:6 2:2"},
		{"sick pods of the oldest set first", 10, "2", "2", "0:5/3 1:5/3 2:2/0", "0:3 1:5 2:2"},
		{"sick pods of both", 10, "2", "4", "0:5/3 1:5/3 2:2/0", "0:3 1:3 2:2"},
		{"sick pods, then well ones of the oldest", 10, "5", "1", "0:4/3 1:6/5 2:5/5", "0:0 1:4 2:5"},
		{"well pods of the oldest set first", 10, "1", "1", "0:5/5 1:5/5 2:1/1", "0:3 1:5 2:1"},
		{"well pods of the oldest set, then of the next", 10, "1", "5", "0:3/3 1:7/7 2:1/1", "0:0 1:4 2:1"},
		{"an empty old set is passed over", 10, "1", "1", "0:0/0 1:10/10 2:1/1", "0:0 1:8 2:1"},
		{"a set that says more pods are available than it should have: nothing is taken on its word", 10, "1", "1", "1:3/5 2:8/8", "1:3 2:8"},
		{"what was taken before it stays taken", 10, "5", "5", "0:5/4 1:3/5 2:7/7", "0:4 1:3 2:7"},
		{"behind the sick ones that use up the budget nobody asks", 10, "0", "1", "0:5/0 1:3/5 2:2/2", "0:4 1:3 2:2"},
		{"more available than the new set should have: only the old ones shrink", 10, "1", "1", "1:10/10 2:1/3", "1:6 2:1"},
		{"everything may be missing", 4, "0", "100%", "1:4/4 2:0/0", "1:0 2:0"},
		{"and then comes back at once", 4, "0", "100%", "1:0/0 2:0/0", "1:0 2:4"},
		{"everything may be doubled", 4, "100%", "0", "1:4/4 2:0/0", "1:4 2:4"},
		{"to none: the new set shrinks", 0, "1", "1", "1:0/0 2:2/2", "1:0 2:0"},
		{"to none: the old sets shrink", 0, "1", "1", "1:2/2 2:0/0", "1:0 2:0"},
		{"done", 3, "1", "1", "1:0/0 2:3/3", "1:0 2:3"},
		{"done, not all available yet", 3, "1", "1", "1:0/0 2:3/1", "1:0 2:3"},
		{"two sets have the template: the older counts", 3, "1", "1", "2:3/3 2:3/3", "2:3 2b:0"},
	} {
		d := aDeployment(test.replicas, bounds(test.surge, test.unavailable))
		sets := setsOf(d, test.sets)
		if test.want == "2:3 2b:0" {
			sets[1].Name, sets[1].UID, sets[1].CreationTimestamp = "web-2b", "set-2b", ago(time.Second)
		}
		for _, order := range [][]*appsv1.ReplicaSet{sets, backwards(sets)} {
			expect(t, test.what, sizes(sets, syncPlan(d, order...)), test.want)
		}
	}
}

// rollingModel is a rolling update as upstream describes it, set by set, with a list of numbers for the old sets and one for the new: slow and obvious.
func rollingModel(want, surge, leeway int32, oldSize, oldAvailable []int32, newSize, newAvailable int32) ([]int32, int32) {
	sum := func(all []int32) (n int32) {
		for _, one := range all {
			n += one
		}
		return n
	}
	oldSize = slices.Clone(oldSize)
	total := sum(oldSize) + newSize
	if newSize > want {
		return oldSize, want
	}
	if newSize < want && total < want+surge {
		return oldSize, newSize + min(want+surge-total, want-newSize)
	}
	canGo := total - (want - leeway) - (newSize - newAvailable)
	for i := range oldSize {
		for oldSize[i] > oldAvailable[i] && canGo > 0 {
			oldSize[i]--
			canGo--
		}
	}
	// What was spent on sick pods does not count against well ones: they are checked by what is available.
	if total-(want-leeway)-(newSize-newAvailable) <= 0 {
		return oldSize, newSize
	}
	spare := sum(oldAvailable) + newAvailable - (want - leeway)
	for i := range oldSize {
		for oldSize[i] > 0 && spare > 0 {
			oldSize[i]--
			spare--
		}
	}
	return oldSize, newSize
}

func TestRollingModel(t *testing.T) {
	for seed := range uint64(3000) {
		random := rand.New(rand.NewPCG(seed, 3))
		want := int32(random.IntN(12))
		d := aDeployment(want, bounds(fmt.Sprint(random.IntN(5)), fmt.Sprint(random.IntN(5))))
		r := &rollout{deploymentView: deploymentView{deployment: d}}
		var words []string
		var oldSize, oldAvailable []int32
		for i := range random.IntN(3) {
			size := 1 + random.IntN(8)
			available := random.IntN(size + 1)
			words = append(words, fmt.Sprintf("%d:%d/%d", i-1, size, available))
			oldSize, oldAvailable = append(oldSize, int32(size)), append(oldAvailable, int32(available))
		}
		size := random.IntN(14)
		available := random.IntN(size + 1)
		words = append(words, fmt.Sprintf("2:%d/%d", size, available))
		sets := setsOf(d, strings.Join(words, " "))
		old, current := rollingModel(want, r.maxSurge(), r.maxUnavailable(), oldSize, oldAvailable, int32(size), int32(available))
		var expected []string
		for i, n := range old {
			expected = append(expected, fmt.Sprintf("%d:%d", i-1, n))
		}
		expected = append(expected, fmt.Sprintf("2:%d", current))
		if got, want := sizes(sets, syncPlan(d, sets...)), strings.Join(expected, " "); got != want {
			t.Fatalf("seed %d: %d pods, %d more, %d less, sets %v\n got %s\nwant %s", seed, *d.Spec.Replicas, r.maxSurge(), r.maxUnavailable(), words, got, want)
		}
	}
}

// TestRolloutKeepsItsPromise plays rollouts in which pods become available in random order, scaled and turned back on the way. There are never more
// pods than surge allows, never fewer available than promised, and in the end only the last template runs.
func TestRolloutKeepsItsPromise(t *testing.T) {
	for seed := range uint64(150) {
		random := rand.New(rand.NewPCG(seed, 4))
		want := int32(1 + random.IntN(9))
		d := aDeployment(want, bounds(fmt.Sprint(random.IntN(4)), fmt.Sprint(random.IntN(4))))
		d.Spec.Template = template("image:1")
		r := &rollout{deploymentView: deploymentView{deployment: d}}
		surge, leeway := r.maxSurge(), r.maxUnavailable()
		var sets []*appsv1.ReplicaSet
		born := 0
		settled := func() bool {
			return len(sets) > 0 && !slices.ContainsFunc(sets, func(s *appsv1.ReplicaSet) bool { return s.Status.AvailableReplicas != *s.Spec.Replicas })
		}
		idle := 0
		for step := 0; idle < 3; step++ {
			if step > 500 {
				t.Fatalf("seed %d: no end", seed)
			}
			if born > 0 && step < 60 && random.IntN(12) == 0 && settled() {
				d.Spec.Template = template(fmt.Sprint("image:", 1+random.IntN(4)))
			}
			plan := syncPlan(d, sets...)
			if len(plan.Steps) == 0 {
				idle++
			} else {
				idle = 0
			}
			for _, w := range writesOf(plan) {
				set := w.Object.(*appsv1.ReplicaSet).DeepCopy()
				i := slices.IndexFunc(sets, func(s *appsv1.ReplicaSet) bool { return s.Name == set.Name })
				switch w.Verb {
				case controller.Create:
					born++
					set.UID, set.CreationTimestamp = types.UID(fmt.Sprint("set-", born)), ago(time.Hour-time.Duration(born)*time.Second)
					set.Status.TerminatingReplicas = new(int32(0))
					sets = append(sets, set)
				case controller.Update:
					sets[i] = set
				case controller.Delete:
					sets = slices.Delete(sets, i, i+1)
				}
			}
			total, available := int32(0), int32(0)
			for _, set := range sets {
				// Pods go at once, sick ones first; they become available one by one.
				set.Status.Replicas = *set.Spec.Replicas
				set.Status.AvailableReplicas = min(set.Status.AvailableReplicas, *set.Spec.Replicas)
				total += *set.Spec.Replicas
				available += set.Status.AvailableReplicas
			}
			if total > want+surge || born > 1 && settledOnce(sets) && available < want-leeway {
				t.Fatalf("seed %d: %d pods of at most %d, %d available of at least %d", seed, total, want+surge, available, want-leeway)
			}
			if len(sets) > 0 {
				set := sets[random.IntN(len(sets))]
				if set.Status.AvailableReplicas < *set.Spec.Replicas {
					set.Status.AvailableReplicas++
					idle = 0
				}
				set.Status.ReadyReplicas = set.Status.AvailableReplicas
			}
			if idle > 0 && !settled() {
				idle = 0
			}
		}
		for _, set := range sets {
			isLast := sameTemplate(&set.Spec.Template, &d.Spec.Template)
			if isLast && set.Status.AvailableReplicas != want || !isLast && *set.Spec.Replicas != 0 {
				t.Errorf("seed %d: %s has %d of %d pods", seed, set.Name, set.Status.AvailableReplicas, want)
			}
		}
	}
}

// settledOnce reports whether the first set has come up, so that there is something to promise.
func settledOnce(sets []*appsv1.ReplicaSet) bool { return len(sets) > 1 }

// proportions is proportional scaling in upstream's words: every set gets its rounded share while there is something left to give or take, the largest the rest.
func proportions(want, surge, reported int32, sets []*appsv1.ReplicaSet) map[string]int32 {
	type entry struct {
		set  *appsv1.ReplicaSet
		size int32
	}
	var all []entry
	total, after := int32(0), map[string]int32{}
	for _, set := range sets {
		after[set.Name] = *set.Spec.Replicas
		if *set.Spec.Replicas > 0 {
			all = append(all, entry{set, *set.Spec.Replicas})
			total += *set.Spec.Replicas
		}
	}
	allowed := want + surge
	if want == 0 {
		allowed = 0
	}
	toAdd, added := allowed-total, int32(0)
	if toAdd == 0 {
		return after
	}
	slices.SortFunc(all, func(a, b entry) int {
		if a.size != b.size {
			return int(b.size - a.size)
		}
		older := a.set.CreationTimestamp.Compare(b.set.CreationTimestamp.Time)
		if toAdd > 0 {
			return -older
		}
		return older
	})
	for _, e := range all {
		share := -e.size
		if want > 0 {
			before, err := strconv.Atoi(e.set.Annotations[maxReplicasAnnotation])
			if err != nil || before <= 0 {
				before = int(reported)
			}
			share = 0
			if before != 0 {
				share = int32(math.Floor(float64(e.size*(want+surge))/float64(before)+0.5)) - e.size
			}
		}
		switch {
		case added == toAdd:
			share = 0
		case toAdd > 0:
			share = min(share, toAdd-added)
		default:
			share = max(share, toAdd-added)
		}
		after[e.set.Name] += share
		added += share
	}
	largest := all[0].set.Name
	after[largest] = max(0, after[largest]+toAdd-added)
	return after
}

func TestProportionalScaling(t *testing.T) {
	for _, test := range []struct {
		what                  string
		replicas              int32
		surge, sets, expected string
	}{
		{"doubled", 20, "0", "1:5/5@10 2:5/5@10", "1:10 2:10"},
		{"halved", 5, "0", "1:6/6@10 2:4/4@10", "1:3 2:2"},
		{"one more: the largest has it", 11, "0", "1:6/6@10 2:4/4@10", "1:7 2:4"},
		{"one less: the largest gives it", 9, "0", "1:6/6@10 2:4/4@10", "1:5 2:4"},
		{"one more among equals: the younger has it", 11, "0", "1:5/5@10 2:5/5@10", "1:5 2:6"},
		{"one less among equals: the older gives it", 9, "0", "1:5/5@10 2:5/5@10", "1:4 2:5"},
		{"three sets grow", 20, "0", "0:2/2@10 1:3/3@10 2:5/5@10", "0:4 1:6 2:10"},
		{"three sets shrink", 5, "0", "0:2/2@10 1:3/3@10 2:5/5@10", "0:1 1:2 2:2"},
		{"a set with nothing has no share", 20, "0", "0:0/0@10 1:5/5@10 2:5/5@10", "0:0 1:10 2:10"},
		{"to none", 0, "0", "1:5/5@10 2:5/5@10", "1:0 2:0"},
		{"surge is shared too", 20, "2", "1:6/6@10 2:6/6@10", "1:11 2:11"},
		{"a third each does not add up: the largest has the rest", 13, "0", "0:4/4@12 1:4/4@12 2:4/4@12", "0:4 1:4 2:5"},
	} {
		d := aDeployment(test.replicas, bounds(test.surge, "1"))
		sets := setsOf(d, test.sets)
		expect(t, test.what, sizes(sets, syncPlan(d, sets...)), test.expected)
	}
	for seed := range uint64(2000) {
		random := rand.New(rand.NewPCG(seed, 5))
		d := aDeployment(int32(random.IntN(30)), bounds(fmt.Sprint(random.IntN(4)), "1"))
		d.Status.Replicas = int32(random.IntN(20))
		var words []string
		for i := range 2 + random.IntN(3) {
			words = append(words, fmt.Sprintf("%d:%d/0@%d", i, 1+random.IntN(9), 1+random.IntN(25)))
		}
		sets := setsOf(d, strings.Join(words, " "))
		for _, set := range sets {
			if random.IntN(8) == 0 {
				set.Annotations[maxReplicasAnnotation] = []string{"", "odd", "0", "-1"}[random.IntN(4)]
			}
		}
		r := newRollout(deploymentView{deployment: d, now: now}, &controller.Plan{}, slices.Clone(sets))
		r.scaleProportionally()
		expected := proportions(*d.Spec.Replicas, r.maxSurge(), d.Status.Replicas, sets)
		for _, set := range sets {
			if got := r.replicasOf(set); got != expected[set.Name] {
				t.Fatalf("seed %d: to %d and %d more from %v: %s has %d, want %d", seed, *d.Spec.Replicas, r.maxSurge(), words, set.Name, got, expected[set.Name])
			}
			if note := r.effective(set).Annotations; *set.Spec.Replicas > 0 && (note[desiredReplicasAnnotation] != fmt.Sprint(*d.Spec.Replicas) || note[maxReplicasAnnotation] != fmt.Sprint(*d.Spec.Replicas+r.maxSurge())) {
				t.Fatalf("seed %d: %s notes %v", seed, set.Name, note)
			}
		}
	}
}

// TestScalingStep: a sync at a deployment whose number of replicas was changed, or that is paused.
func TestScalingStep(t *testing.T) {
	for _, test := range []struct {
		what       string
		d          *appsv1.Deployment
		sets, want string
	}{
		{"one set", aDeployment(5), "2:3/3@3", "2:5"},
		{"one set, down", aDeployment(2), "2:3/3@3", "2:2"},
		{"to none", aDeployment(0), "2:3/3@3", "2:0"},
		{"an old set alone has pods: it is scaled, the rollout waits", aDeployment(5), "1:3/3@3 2:0/0@3", "1:5 2:0"},
		{"an old set alone, no new one yet", aDeployment(5), "1:3/3@3", "1:5"},
		{"only the notes of sets that have pods count", aDeployment(5), "1:0/0@3 2:5/5@5", "1:0 2:5"},
		{"a note of one set is enough", aDeployment(10, bounds("2", "0")), "1:6/6@10 2:6/6@8", "1:6 2:6"},
		{"paused: scaled all the same", aDeployment(5, paused), "2:3/3@3", "2:5"},
		{"paused: a new template waits", aDeployment(3, paused), "1:3/3@3", "1:3"},
		{"paused, no set at all", aDeployment(3, paused), "", ""},
		{"paused: none has pods, the new set gets them", aDeployment(3, paused), "1:0/0@3 2:0/0@3", "1:0 2:3"},
		{"paused: none has pods, no new set, the youngest gets them", aDeployment(3, paused), "0:0/0@3 1:0/0@3", "0:0 1:3"},
		{"paused: the new set is all there, old ones go", aDeployment(3, paused), "1:2/2@3 2:3/3@3", "1:0 2:3"},
		{"paused: the new set is not available: shares are kept", aDeployment(3, paused, bounds("2", "0")), "1:2/2@3 2:3/2@3", "1:2 2:3"},
		{"paused: what is too much is taken from the largest", aDeployment(3, paused, bounds("0", "1")), "1:2/2@3 2:3/2@3", "1:2 2:1"},
		{"recreating, one set", aDeployment(5, recreating), "2:3/3@3", "2:5"},
		{"recreating, the new set is all there", aDeployment(5, recreating), "1:2/2@3 2:5/5@5", "1:0 2:5"},
		{"recreating with several sets: old ones go", aDeployment(5, recreating), "0:2/2@3 1:2/2@3", "0:0 1:0"},
		{"recreating and paused with several sets: nothing moves", aDeployment(5, recreating, paused), "0:2/2@3 1:2/2@3", "0:2 1:2"},
		{"a set without a note is not asked", aDeployment(5), "2:5/5@99999999999", "2:5"},
	} {
		sets := setsOf(test.d, test.sets)
		for _, set := range sets {
			if strings.HasPrefix(set.Annotations[desiredReplicasAnnotation], "9999") {
				delete(set.Annotations, desiredReplicasAnnotation)
			}
		}
		expect(t, test.what, sizes(sets, syncPlan(test.d, sets...)), test.want)
	}
}

func TestRecreateStep(t *testing.T) {
	d := aDeployment(3, recreating)
	pods := func(set types.UID, all ...*corev1.Pod) map[types.UID][]*corev1.Pod {
		return map[types.UID][]*corev1.Pod{set: all}
	}
	still := func(text string, n int32) []*appsv1.ReplicaSet {
		sets := setsOf(d, text)
		sets[0].Status.Replicas = n
		return sets
	}
	for _, test := range []struct {
		what string
		sets []*appsv1.ReplicaSet
		pods map[types.UID][]*corev1.Pod
		want string
	}{
		{"first rollout", nil, nil, "new:3"},
		{"old pods go first", setsOf(d, "1:3/3"), nil, "1:0"},
		{"of all sets at once", setsOf(d, "0:1/1 1:2/2"), nil, "0:0 1:0"},
		{"even when the new set is there", setsOf(d, "1:2/2 2:0/0"), nil, "1:0 2:0"},
		{"the old set still counts pods", still("1:0/0", 1), nil, "1:0"},
		{"an old pod is leaving", setsOf(d, "1:0/0"), pods("set-1", aPod("a", beingDeleted)), "1:0"},
		{"an old pod runs", setsOf(d, "1:0/0"), pods("set-1", aPod("a", inPhase(corev1.PodRunning))), "1:0"},
		{"an old pod is unknown", setsOf(d, "1:0/0"), pods("set-1", aPod("a", inPhase(corev1.PodUnknown))), "1:0"},
		{"an old pod waits", setsOf(d, "1:0/0"), pods("set-1", aPod("a")), "1:0"},
		{"old pods have ended", setsOf(d, "1:0/0"), pods("set-1", aPod("a", inPhase(corev1.PodFailed)), aPod("b", inPhase(corev1.PodSucceeded))), "1:0 new:3"},
		{"one of them has not", setsOf(d, "1:0/0"), pods("set-1", aPod("a", inPhase(corev1.PodFailed)), aPod("b", inPhase(corev1.PodRunning))), "1:0"},
		{"pods of the new set are no reason to wait", setsOf(d, "1:0/0 2:0/0"), pods("set-2", aPod("a", inPhase(corev1.PodRunning))), "1:0 2:3"},
		{"no old pods", setsOf(d, "1:0/0"), nil, "1:0 new:3"},
		{"the new set comes up at once", setsOf(d, "1:0/0 2:1/1"), nil, "1:0 2:3"},
		{"the new set shrinks at once", setsOf(d, "1:0/0 2:5/5"), nil, "1:0 2:3"},
		{"done", setsOf(d, "1:0/0 2:3/3"), nil, "1:0 2:3"},
	} {
		plan := deploymentView{deployment: d, sets: test.sets, pods: test.pods, now: now}.reconcile()
		expect(t, test.what, sizes(test.sets, plan), test.want)
	}
}

func TestCleanUp(t *testing.T) {
	done := func(limit int32, changes ...change[*appsv1.Deployment]) *appsv1.Deployment {
		return aDeployment(1, append([]change[*appsv1.Deployment]{func(d *appsv1.Deployment) {
			d.Spec.RevisionHistoryLimit = &limit
			d.Status = appsv1.DeploymentStatus{Replicas: 1, UpdatedReplicas: 1, AvailableReplicas: 1, ObservedGeneration: 2}
		}}, changes...)...)
	}
	unlimited := func(d *appsv1.Deployment) { d.Spec.RevisionHistoryLimit = nil }
	busy := func(d *appsv1.Deployment) { d.Status.AvailableReplicas = 0 }
	for _, test := range []struct {
		what string
		d    *appsv1.Deployment
		// edit changes the sets 0, -1, -2, -3 of the deployment; the current one is 2.
		edit func(sets []*appsv1.ReplicaSet)
		want string
	}{
		{"as many as the limit", done(4), nil, ""},
		{"one more than the limit", done(3), nil, "-3"},
		{"keep one", done(1), nil, "-3 -2 -1"},
		{"keep none", done(0), nil, "-3 -2 -1 0"},
		{"no limit", done(0, unlimited), nil, ""},
		{"a limit that is none", done(math.MaxInt32), nil, ""},
		{"not complete yet", done(0, busy), nil, ""},
		{"not seen yet", done(0, func(d *appsv1.Deployment) { d.Status.ObservedGeneration = 1 }), nil, ""},
		{"one that has pods is kept", done(0), func(s []*appsv1.ReplicaSet) { s[0].Status.Replicas = 1 }, "-2 -1 0"},
		{"and is counted among those that may go", done(3), func(s []*appsv1.ReplicaSet) { s[0].Status.Replicas = 1 }, ""},
		{"one whose controller lags is kept", done(0), func(s []*appsv1.ReplicaSet) { s[1].Generation, s[1].Status.ObservedGeneration = 5, 4 }, "-3 -1 0"},
		{"one that was seen may go", done(0), func(s []*appsv1.ReplicaSet) { s[1].Generation, s[1].Status.ObservedGeneration = 5, 5 }, "-3 -2 -1 0"},
		{"one that is leaving counts no more", done(3), func(s []*appsv1.ReplicaSet) { goneSet(s[3]) }, ""},
		{"by revision, not by age", done(3), func(s []*appsv1.ReplicaSet) { s[0].Annotations[revisionAnnotation] = "7" }, "-2"},
		{"without a revision first", done(3), func(s []*appsv1.ReplicaSet) {
			delete(s[3].Annotations, revisionAnnotation)
			s[0].Annotations[revisionAnnotation] = "1"
			s[1].Annotations[revisionAnnotation] = "1"
			s[2].Annotations[revisionAnnotation] = "1"
		}, "0"},
		{"the same revision: by age", done(3), func(s []*appsv1.ReplicaSet) {
			s[0].Annotations[revisionAnnotation], s[1].Annotations[revisionAnnotation] = "1", "1"
			s[2].Annotations[revisionAnnotation] = "3"
			s[3].Annotations[revisionAnnotation] = "4"
		}, "-3"},
		{"a revision nobody can read: by age", done(3), func(s []*appsv1.ReplicaSet) {
			for _, set := range s {
				set.Annotations[revisionAnnotation] = "x"
			}
		}, "-3"},
		{"paused: cleaned up too, complete or not", done(3, paused, busy), nil, "-3"},
		{"paused with a rollback to come: not yet", done(3, paused, func(d *appsv1.Deployment) { d.Annotations = map[string]string{appsv1.DeprecatedRollbackTo: "1"} }), nil, ""},
	} {
		sets := setsOf(test.d, "-3:0/0 -2:0/0 -1:0/0 0:0/0 2:1/1")
		if test.edit != nil {
			test.edit(sets[:4])
		}
		var deleted []string
		for _, w := range writesOf(syncPlan(test.d, sets...)) {
			if w.Verb == controller.Delete {
				deleted = append(deleted, strings.TrimPrefix(w.Object.GetName(), "web-"))
			}
		}
		expect(t, test.what, strings.Join(deleted, " "), test.want)
	}
	// Scaled to nothing in this very round, it still has a size that has to be written.
	d := done(0, paused)
	sets := setsOf(d, "1:2/0 2:1/1")
	sets[0].Status.Replicas = 0
	expect(t, "a set that is emptied in this sync", told(withoutTimer(syncPlan(d, sets...))), "update ReplicaSet web-1 size 0")
}

func TestRollbackChoice(t *testing.T) {
	asking := func(revision string, image int) *appsv1.Deployment {
		return aDeployment(1, func(d *appsv1.Deployment) {
			d.Annotations = map[string]string{appsv1.DeprecatedRollbackTo: revision, "mine": "1", corev1.LastAppliedConfigAnnotation: "{}"}
			d.Spec.Template = template(fmt.Sprint("image:", image))
		})
	}
	const unchanged, unknown, nothing = "TemplateUnchanged", "RevisionNotFound: Unable to find the revision to rollback to.", "RevisionNotFound: Unable to find last revision."
	for _, test := range []struct {
		what, revision string
		image          int
		sets           string
		rolled         string // the image afterwards and the revision that is reported
		refused        string
	}{
		{"to the first of three", "1", 3, "1:0/0 2:0/0 3:1/1", "image:1 revision 1", ""},
		{"to the second", "2", 3, "1:0/0 2:0/0 3:1/1", "image:2 revision 2", ""},
		{"to the one before", "0", 3, "1:0/0 2:0/0 3:1/1", "image:2 revision 2", ""},
		{"to the one before, whatever the order of birth", "0", 1, "1:1/1 2:0/0 3:0/0", "image:3 revision 3", ""},
		{"to itself", "3", 3, "1:0/0 2:0/0 3:1/1", "", unchanged},
		{"to one that is not there", "9", 3, "1:0/0 2:0/0 3:1/1", "", unknown},
		{"to a negative one", "-1", 3, "1:0/0 3:1/1", "", unknown},
		{"to the one before the only one", "0", 3, "3:1/1", "", nothing},
	} {
		d := asking(test.revision, test.image)
		plan := syncPlan(d, setsOf(d, test.sets)...)
		var back *appsv1.Deployment
		for _, w := range writesOf(plan) {
			if w.Verb == controller.Update {
				if changed, ok := w.Object.(*appsv1.Deployment); ok {
					back = changed
				}
			}
		}
		if back == nil {
			t.Errorf("%s: the deployment is not written: %s", test.what, told(plan))
			continue
		}
		if _, still := back.Annotations[appsv1.DeprecatedRollbackTo]; still || d.Annotations[appsv1.DeprecatedRollbackTo] == "" {
			t.Errorf("%s: annotations %v, and the shared object's %v", test.what, back.Annotations, d.Annotations)
		}
		told := events(plan)
		told = slices.DeleteFunc(told, func(e string) bool { return !strings.HasPrefix(e, "DeploymentRollback") })
		want := "DeploymentRollback" + test.refused
		if image, revision, ok := strings.Cut(test.rolled, " "); ok {
			want = fmt.Sprintf("DeploymentRollback: Rolled back deployment \"web\" to %s", revision)
			if got := back.Spec.Template.Spec.Containers[0].Image; got != image {
				t.Errorf("%s: %s", test.what, got)
			}
			if _, mine := back.Annotations["mine"]; mine || back.Annotations[corev1.LastAppliedConfigAnnotation] != "{}" {
				t.Errorf("%s: annotations %v", test.what, back.Annotations)
			}
		} else if got := back.Spec.Template.Spec.Containers[0].Image; got != fmt.Sprint("image:", test.image) || back.Annotations["mine"] != "1" {
			t.Errorf("%s: changed to %s, %v", test.what, got, back.Annotations)
		}
		if len(told) != 1 || !strings.HasPrefix(told[0], want) {
			t.Errorf("%s: events %q, want %q", test.what, told, want)
		}
	}
	for _, odd := range []string{"", "x", "1.5", "99999999999999999999"} {
		if _, wanted := rollbackTo(asking(odd, 2)); wanted {
			t.Errorf("%q asks for a rollback", odd)
		}
	}
	for _, fine := range []string{"0", "1", "-1", "+2", "9223372036854775807"} {
		if _, wanted := rollbackTo(asking(fine, 2)); !wanted {
			t.Errorf("%q does not ask for a rollback", fine)
		}
	}
	// With no set for its template yet, a deployment first gets one.
	d := asking("1", 2)
	expect(t, "no set for the template yet", told(withoutTimer(syncPlan(d, setsOf(d, "1:1/1")...))), "create ReplicaSet "+newName(d)+" size 1")
}

// TestDeploymentOwnership: which sets a deployment takes for its own.
func TestDeploymentOwnership(t *testing.T) {
	d := aDeployment(1)
	for _, test := range []struct {
		what string
		d    *appsv1.Deployment
		edit change[*appsv1.ReplicaSet]
		want string
	}{
		{"its own", d, func(*appsv1.ReplicaSet) {}, ""},
		{"an orphan that matches", d, func(s *appsv1.ReplicaSet) { s.OwnerReferences = nil }, "patch ReplicaSet web-2 size 1"},
		{"an orphan that does not", d, func(s *appsv1.ReplicaSet) { s.OwnerReferences, s.Labels = nil, nil }, "create ReplicaSet " + newName(d) + " size 1"},
		{"another's", d, func(s *appsv1.ReplicaSet) { s.OwnerReferences[0].UID = "other" }, "create ReplicaSet " + newName(d) + " size 1"},
		{"its own, no longer matching", d, func(s *appsv1.ReplicaSet) { s.Labels = map[string]string{"app": "db"} }, "patch ReplicaSet web-2 size 1, create ReplicaSet " + newName(d) + " size 1"},
		{"a leaving orphan", d, func(s *appsv1.ReplicaSet) { s.OwnerReferences = nil; gone(s) }, "create ReplicaSet " + newName(d) + " size 1"},
		{"a leaving deployment keeps what it has", aDeployment(1, func(d *appsv1.Deployment) { gone(d) }), func(*appsv1.ReplicaSet) {}, ""},
		{"a leaving deployment adopts nothing", aDeployment(1, func(d *appsv1.Deployment) { gone(d) }), func(s *appsv1.ReplicaSet) { s.OwnerReferences = nil }, ""},
		{"a leaving deployment notes the revision", aDeployment(1, func(d *appsv1.Deployment) { gone(d) }), func(s *appsv1.ReplicaSet) { delete(s.Annotations, revisionAnnotation) }, "update ReplicaSet web-2 size 1"},
		{"a leaving deployment neither scales nor rolls", aDeployment(5, func(d *appsv1.Deployment) { gone(d) }), func(s *appsv1.ReplicaSet) { s.Annotations[desiredReplicasAnnotation] = "1" }, ""},
	} {
		expect(t, test.what, told(withoutTimer(syncPlan(test.d, setOf(d, 2, 1, 1, test.edit)))), test.want)
	}
	broken := aDeployment(1, func(d *appsv1.Deployment) {
		d.Spec.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Odd"}}}
	})
	if plan := syncPlan(broken, setOf(d, 2, 1, 1)); !plan.IsEmpty() {
		t.Errorf("a selector nobody can read: %s", told(plan))
	}
	all := aDeployment(1, func(d *appsv1.Deployment) { d.Spec.Selector, d.Status.ObservedGeneration = &metav1.LabelSelector{}, 2 })
	plan := syncPlan(all, setOf(d, 2, 1, 1))
	if plan.Status(controller.ApplyResult{}) != nil || len(plan.Steps) != 0 {
		t.Errorf("a selector of everything, seen before: %s", told(plan))
	}
	if got := events(plan); !slices.Equal(got, []string{"SelectingAll: This deployment is selecting all pods. A non-empty selector is required."}) {
		t.Errorf("%q", got)
	}
}

// TestDeploymentEvents: one event for each set that is scaled, with its old and new size.
func TestDeploymentEvents(t *testing.T) {
	for _, test := range []struct {
		what string
		d    *appsv1.Deployment
		sets string
		want []string
	}{
		{"up", aDeployment(10, bounds("3", "0")), "1:10/10 2:1/1", []string{"Scaled up replica set web-2 from 1 to 3"}},
		{"down", aDeployment(10, bounds("1", "0")), "1:10/10 2:1/1", []string{"Scaled down replica set web-1 from 10 to 9"}},
		{"several down", aDeployment(10, bounds("1", "5")), "0:3/3 1:7/7 2:1/1", []string{"Scaled down replica set web-0 from 3 to 0", "Scaled down replica set web-1 from 7 to 4"}},
		{"shares", aDeployment(20, bounds("0", "1")), "1:5/5@10 2:5/5@10", []string{"Scaled up replica set web-1 from 5 to 10", "Scaled up replica set web-2 from 5 to 10"}},
		{"only notes change: none", aDeployment(10, bounds("2", "0")), "1:6/6@9 2:6/6@9", nil},
		{"nothing", aDeployment(3), "2:3/3", nil},
	} {
		var got []string
		for _, e := range events(syncPlan(test.d, setsOf(test.d, test.sets)...)) {
			got = append(got, strings.TrimPrefix(e, "ScalingReplicaSet: "))
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: %q, want %q", test.what, got, test.want)
		}
	}
}
