package workload

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/controller"
)

const keepClaims, removeClaims = appsv1.RetainPersistentVolumeClaimRetentionPolicyType, appsv1.DeletePersistentVolumeClaimRetentionPolicyType

// claimOwner is an owner a claim can have, by a short name: the set and the pod as they are, without control, and as they were before; and foreign.
func claimOwner(name string, ordinal int) metav1.OwnerReference {
	pod := fmt.Sprint("db-", ordinal)
	ref := map[string]metav1.OwnerReference{
		"set":      {APIVersion: "apps/v1", Kind: "StatefulSet", Name: "db", UID: "uid-db", Controller: new(true), BlockOwnerDeletion: new(true)},
		"set-weak": {APIVersion: "apps/v1", Kind: "StatefulSet", Name: "db", UID: "uid-db"},
		"set-old":  {APIVersion: "apps/v1", Kind: "StatefulSet", Name: "db", UID: "before", Controller: new(true)},
		"pod":      {APIVersion: "v1", Kind: "Pod", Name: pod, UID: types.UID("uid-" + pod), Controller: new(true), BlockOwnerDeletion: new(true)},
		"pod-weak": {APIVersion: "v1", Kind: "Pod", Name: pod, UID: types.UID("uid-" + pod)},
		"pod-old":  {APIVersion: "v1", Kind: "Pod", Name: pod, UID: "before-pod", Controller: new(true)},
		"other":    {APIVersion: "v1", Kind: "ConfigMap", Name: "x", UID: "x", Controller: new(true)},
		"friend":   {APIVersion: "v1", Kind: "ConfigMap", Name: "y", UID: "y"},
	}[name]
	if ref.UID == "" {
		panic(name)
	}
	return ref
}

// ownersAfter is upstream's rule of who should own a claim, in its own words: first whether the owners are as they should be, then what they should be.
// Owners are short names; the answer "" with false means the claim is left alone.
func ownersAfter(deleted, scaled appsv1.PersistentVolumeClaimRetentionPolicyType, beyond bool, has []string) ([]string, bool) {
	contains := func(names ...string) bool {
		return slices.ContainsFunc(has, func(one string) bool { return slices.Contains(names, one) })
	}
	// Of several references to one object the first says whether it is stale.
	stale := func(kind string) bool {
		for _, one := range has {
			if strings.HasPrefix(one, kind) {
				return one == kind+"-old"
			}
		}
		return false
	}
	if stale("set") || stale("pod") {
		return nil, false
	}
	retains := deleted == keepClaims && scaled == keepClaims
	unexpected := !retains && contains("other", "set-old", "pod-old")
	withSet, withPod := contains("set", "set-weak"), contains("pod", "pod-weak")
	var wantSet, wantPod bool
	switch {
	case retains:
	case scaled == keepClaims:
		wantSet = true
	case deleted == keepClaims:
		wantPod = beyond
	default:
		wantSet, wantPod = !beyond, beyond
	}
	switch {
	case unexpected && !withSet && !withPod:
		return nil, false
	case unexpected:
		wantSet, wantPod = false, false
	case !contains("set-weak", "pod-weak") && withSet == wantSet && withPod == wantPod:
		return nil, false
	}
	var after []string
	for _, one := range has {
		if !strings.HasPrefix(one, "set") && !strings.HasPrefix(one, "pod") {
			after = append(after, one)
		}
	}
	if wantPod {
		after = append(after, "pod")
	}
	if wantSet {
		after = append(after, "set")
	}
	return after, true
}

// TestClaimOwnersModel tries every policy with every pair of owners a claim can have, within the set and beyond it.
func TestClaimOwnersModel(t *testing.T) {
	all := []string{"set", "set-weak", "set-old", "pod", "pod-weak", "pod-old", "other", "friend"}
	combinations := [][]string{nil}
	for _, a := range all {
		combinations = append(combinations, []string{a})
		for _, b := range all {
			if aKind, bKind := strings.SplitN(a, "-", 2)[0], strings.SplitN(b, "-", 2)[0]; aKind != bKind {
				combinations = append(combinations, []string{a, b})
			}
		}
	}
	policies := []appsv1.PersistentVolumeClaimRetentionPolicyType{keepClaims, removeClaims}
	tried := 0
	for _, deleted := range policies {
		for _, scaled := range policies {
			for _, ordinal := range []int{0, 5} {
				for _, has := range combinations {
					tried++
					set := aStatefulSet(2, retaining(deleted, scaled))
					claims := claimsFor(set, ordinal)
					claim := claims[fmt.Sprint("data-db-", ordinal)]
					for _, name := range has {
						claim.OwnerReferences = append(claim.OwnerReferences, claimOwner(name, ordinal))
					}
					l := &statefulSetSync{statefulSetView: statefulSetView{set: set, claims: claims, now: now}, plan: &controller.Plan{}}
					writes := l.newClaimOwnerUpdates(member(t, set, ordinal, 1))
					after, changes := ownersAfter(deleted, scaled, ordinal == 5, has)
					what := fmt.Sprintf("%s when deleted, %s when scaled, ordinal %d, owned by %v", deleted, scaled, ordinal, has)
					if (len(writes) == 1) != changes {
						t.Errorf("%s: %d writes, want it changed to %v: %v", what, len(writes), after, changes)
						continue
					}
					if !changes {
						continue
					}
					var want []metav1.OwnerReference
					for _, name := range after {
						want = append(want, claimOwner(name, ordinal))
					}
					same(t, what, writes[0].Object.GetOwnerReferences(), want)
				}
			}
		}
	}
	if tried < 400 {
		t.Errorf("only %d cases", tried)
	}
}

func TestClaimEvents(t *testing.T) {
	for _, test := range []struct {
		what string
		has  []string
		want []string
	}{
		{"nothing to do", []string{"set"}, nil},
		{"taken", nil, []string{"SuccessfulUpdate: Update Pod db-0 in StatefulSet db successful"}},
		{"in conflict with another", []string{"other", "set"}, []string{"SuccessfulUpdate: Update Pod db-0 in StatefulSet db successful",
			"ConflictingController: PersistentVolumeClaim data-db-0 has a conflicting OwnerReference that acts as a manging controller, the retention policy is ignored for this claim"}},
		{"another's alone", []string{"other"}, nil},
	} {
		set := aStatefulSet(1, retaining(removeClaims, keepClaims))
		claims := claimsFor(set, 0)
		for _, name := range test.has {
			claims["data-db-0"].OwnerReferences = append(claims["data-db-0"].OwnerReferences, claimOwner(name, 0))
		}
		plan := statefulSetView{set: set, pods: crew(t, set, "0:1"), revisions: []*appsv1.ControllerRevision{revisionFor(t, set, 1)}, claims: claims, now: now}.reconcile()
		if got := events(plan); !slices.Equal(got, test.want) {
			t.Errorf("%s: events %q", test.what, got)
		}
	}
}

// TestClaimsOfNewPods: what is made, what is waited for and what is reported before a pod can be made.
func TestClaimsOfNewPods(t *testing.T) {
	two := func(s *appsv1.StatefulSet) {
		s.Spec.VolumeClaimTemplates = append(s.Spec.VolumeClaimTemplates, corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "logs", Labels: map[string]string{"own": "1"}}})
	}
	type claims map[string]func(*corev1.PersistentVolumeClaim)
	fine := func(*corev1.PersistentVolumeClaim) {}
	leaves := func(c *corev1.PersistentVolumeClaim) { gone(c) }
	stale := func(c *corev1.PersistentVolumeClaim) {
		c.OwnerReferences = []metav1.OwnerReference{claimOwner("pod-old", 0)}
	}
	const data, logs, pod = "create PersistentVolumeClaim data-db-0", "create PersistentVolumeClaim logs-db-0", "create Pod db-0"
	told1 := "FailedCreate: Create Pod db-0 in StatefulSet db failed error: pvc data-db-0 is being deleted"
	for _, test := range []struct {
		what   string
		set    *appsv1.StatefulSet
		claims claims
		want   string
		event  string
	}{
		{"no claims at all", aStatefulSet(1, withoutClaims), nil, pod, ""},
		{"none there", aStatefulSet(1), nil, data + ", " + pod, ""},
		{"there", aStatefulSet(1), claims{"data-db-0": fine}, pod, ""},
		{"two, none there", aStatefulSet(1, two), nil, data + " + " + logs + ", " + pod, ""},
		{"two, one there", aStatefulSet(1, two), claims{"data-db-0": fine}, logs + ", " + pod, ""},
		{"one that leaves", aStatefulSet(1), claims{"data-db-0": leaves}, "again 2s", told1},
		{"one that leaves, the other is made already", aStatefulSet(1, two), claims{"data-db-0": leaves}, logs + ", again 2s", told1},
		{"two that leave", aStatefulSet(1, two), claims{"data-db-0": leaves, "logs-db-0": leaves}, "again 2s",
			"FailedCreate: Create Pod db-0 in StatefulSet db failed error: [pvc data-db-0 is being deleted, pvc logs-db-0 is being deleted]"},
		{"one of a pod before, where claims go with pods", aStatefulSet(1, retaining(keepClaims, removeClaims)), claims{"data-db-0": stale}, "again 2s", ""},
		{"one of a pod before, the other is not made yet", aStatefulSet(1, two, retaining(keepClaims, removeClaims)), claims{"data-db-0": stale}, "again 2s", ""},
		{"one of a pod before, where claims stay", aStatefulSet(1, retaining(removeClaims, keepClaims)), claims{"data-db-0": stale}, pod, ""},
		{"another ordinal's is no matter", aStatefulSet(1), claims{"data-db-1": leaves, "data-db-0": fine}, pod, ""},
	} {
		known := map[string]*corev1.PersistentVolumeClaim{}
		for name, change := range test.claims {
			known[name] = &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
			change(known[name])
		}
		plan := statefulSetView{set: test.set, revisions: []*appsv1.ControllerRevision{revisionFor(t, test.set, 1)}, claims: known, now: now}.reconcile()
		expect(t, test.what, told(plan), test.want)
		told := slices.DeleteFunc(events(plan), func(e string) bool { return strings.HasPrefix(e, "Successful") })
		if strings.Join(told, "; ") != test.event {
			t.Errorf("%s: events %q", test.what, told)
		}
	}
}

// TestClaimsOfPendingPods: a pod that waits is given its claims and they their owner, though it is not its turn for anything else.
func TestClaimsOfPendingPods(t *testing.T) {
	for _, test := range []struct {
		what   string
		set    *appsv1.StatefulSet
		pod    string
		claims map[string]*corev1.PersistentVolumeClaim
		want   string
	}{
		{"the claim is there", aStatefulSet(1), "0:1?", claimsFor(aStatefulSet(1), 0), ""},
		{"the claim is missing", aStatefulSet(1), "0:1?", nil, "create PersistentVolumeClaim data-db-0"},
		{"the claim leaves: it has to be made again", aStatefulSet(1), "0:1?", map[string]*corev1.PersistentVolumeClaim{"data-db-0": with(claimsFor(aStatefulSet(1), 0)["data-db-0"], func(c *corev1.PersistentVolumeClaim) { gone(c) })}, "again 2s"},
		{"the claim goes with the set", aStatefulSet(1, retaining(removeClaims, keepClaims)), "0:1?", claimsFor(aStatefulSet(1), 0), "update PersistentVolumeClaim data-db-0"},
		{"the claim goes with the set, all at once", aStatefulSet(1, parallel, retaining(removeClaims, keepClaims)), "0:1?", claimsFor(aStatefulSet(1), 0), "update PersistentVolumeClaim data-db-0"},
		{"the claim of a pod that runs and is not ready waits", aStatefulSet(1, retaining(removeClaims, keepClaims)), "0:1!", claimsFor(aStatefulSet(1), 0), ""},
		{"the claim of a pod that runs is not made again", aStatefulSet(1), "0:1!", nil, ""},
		{"the claim of a ready pod is taken over", aStatefulSet(1, retaining(removeClaims, keepClaims)), "0:1", claimsFor(aStatefulSet(1), 0), "update PersistentVolumeClaim data-db-0"},
		{"the claims of pods that go are taken over by the pods", aStatefulSet(1, retaining(keepClaims, removeClaims)), "0:1 1:1 2:1", claimsFor(aStatefulSet(1), 0, 1, 2), "update PersistentVolumeClaim data-db-1 + update PersistentVolumeClaim data-db-2, delete Pod db-2"},
	} {
		plan := statefulSetView{set: test.set, pods: crew(t, test.set, test.pod), revisions: []*appsv1.ControllerRevision{revisionFor(t, test.set, 1)}, claims: test.claims, now: now}.reconcile()
		expect(t, test.what, told(plan), test.want)
	}
}

func TestNewClaim(t *testing.T) {
	set := aStatefulSet(1, startingAt(3), retaining(removeClaims, keepClaims), func(s *appsv1.StatefulSet) {
		s.Spec.VolumeClaimTemplates[0].Labels = map[string]string{"own": "1", "app": "mine"}
		s.Spec.VolumeClaimTemplates[0].Annotations = map[string]string{"note": "2"}
	})
	plan := statefulSetView{set: set, revisions: []*appsv1.ControllerRevision{revisionFor(t, set, 1)}, now: now}.reconcile()
	write := plan.Steps[0].Writes[0]
	same(t, "the claim", write.Object, &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "data-db-3", Labels: map[string]string{"own": "1", "app": "web"}, Annotations: map[string]string{"note": "2"}, OwnerReferences: []metav1.OwnerReference{claimOwner("set", 3)}},
		Spec:       set.Spec.VolumeClaimTemplates[0].Spec,
	})
	if write.FailureEvent.Reason != "FailedCreate" || write.FailureEvent.Message != "Create Claim data-db-3 for Pod db-3 in StatefulSet db failed error: %s" || !slices.Equal(write.Ignore, []metav1.StatusReason{metav1.StatusReasonAlreadyExists}) {
		t.Errorf("%+v", write)
	}
	if set.Spec.VolumeClaimTemplates[0].Name != "data" || set.Spec.VolumeClaimTemplates[0].Labels["app"] != "mine" {
		t.Error("the template was changed")
	}
}
