package workload

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"skiff/internal/api/apps"
	"skiff/internal/controller"
)

// revisionFor is the revision of image:n.
func revisionFor(t *testing.T, set *appsv1.StatefulSet, n int) *appsv1.ControllerRevision {
	t.Helper()
	tmpl := template(fmt.Sprintf("image:%d", n))
	patch, err := templatePatch(&tmpl)
	if err != nil {
		t.Fatal(err)
	}
	r := newRevision(set, statefulSetKind, revisionContent{labels: tmpl.Labels, patch: patch, number: int64(n), collisions: 0})
	return r
}

func parallel(s *appsv1.StatefulSet) { s.Spec.PodManagementPolicy = appsv1.ParallelPodManagement }
func atImage(n int) change[*appsv1.StatefulSet] {
	return func(s *appsv1.StatefulSet) { s.Spec.Template = template(fmt.Sprintf("image:%d", n)) }
}
func partition(n int32) change[*appsv1.StatefulSet] {
	return func(s *appsv1.StatefulSet) { s.Spec.UpdateStrategy.RollingUpdate.Partition = &n }
}
func leewayOf(n int32) change[*appsv1.StatefulSet] {
	return func(s *appsv1.StatefulSet) {
		s.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable = new(intstr.FromInt32(n))
	}
}
func withoutClaims(s *appsv1.StatefulSet) { s.Spec.VolumeClaimTemplates = nil }
func retaining(deleted, scaled appsv1.PersistentVolumeClaimRetentionPolicyType) change[*appsv1.StatefulSet] {
	return func(s *appsv1.StatefulSet) {
		s.Spec.PersistentVolumeClaimRetentionPolicy = &appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{WhenDeleted: deleted, WhenScaled: scaled}
	}
}

// member is a pod of the set at its place, of revision n, that is ready for long.
func member(t *testing.T, set *appsv1.StatefulSet, ordinal, n int, changes ...change[*corev1.Pod]) *corev1.Pod {
	t.Helper()
	name := fmt.Sprintf("%s-%d", set.Name, ordinal)
	l := &statefulSetSync{statefulSetView: statefulSetView{set: set}}
	pod := aPod(name, ownedBy(set, "StatefulSet"), readyFor(time.Hour), labelled(appsv1.StatefulSetPodNameLabel, name), labelled(appsv1.StatefulSetRevisionLabel, revisionFor(t, set, n).Name))
	l.updateStorage(pod)
	return with(pod, changes...)
}

func claimsFor(set *appsv1.StatefulSet, ordinals ...int) map[string]*corev1.PersistentVolumeClaim {
	all := map[string]*corev1.PersistentVolumeClaim{}
	for _, ordinal := range ordinals {
		name := fmt.Sprintf("data-%s-%d", set.Name, ordinal)
		all[name] = &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	}
	return all
}

func TestStatefulSetPlan(t *testing.T) {
	set, other := aStatefulSet(3), aStatefulSet(3, atImage(2))
	pod := func(ordinal, n int, changes ...change[*corev1.Pod]) *corev1.Pod {
		return member(t, set, ordinal, n, changes...)
	}
	pods := func(all ...*corev1.Pod) []*corev1.Pod { return all }
	three := pods(pod(0, 1), pod(1, 1), pod(2, 1))
	unready := func(p *corev1.Pod) { p.Status.Conditions = nil }
	update := func(changes ...change[*appsv1.StatefulSet]) *appsv1.StatefulSet {
		return aStatefulSet(3, append([]change[*appsv1.StatefulSet]{atImage(2)}, changes...)...)
	}
	for _, test := range []struct {
		what string
		set  *appsv1.StatefulSet
		pods []*corev1.Pod
		want string
	}{
		{"the first pod, with its claim", set, nil, "create PersistentVolumeClaim data-db-0, create Pod db-0"},
		{"the next waits for the one before", set, pods(pod(0, 1, unready)), ""},
		{"the next", set, pods(pod(0, 1)), "create PersistentVolumeClaim data-db-1, create Pod db-1"},
		{"all at once", aStatefulSet(3, parallel, withoutClaims), nil, "create Pod db-0 + create Pod db-1 + create Pod db-2"},
		{"a hole is filled first", set, pods(pod(0, 1), pod(2, 1)), "create PersistentVolumeClaim data-db-1, create Pod db-1"},
		{"a pod that ended is replaced", set, pods(pod(0, 1, inPhase(corev1.PodFailed)), pod(1, 1), pod(2, 1)), "delete Pod db-0"},
		{"one that is leaving is waited for", set, pods(pod(0, 1, beingDeleted), pod(1, 1), pod(2, 1)), ""},
		{"a pending pod gets its claim again", set, pods(pod(0, 1, unready, inPhase(corev1.PodPending))), "create PersistentVolumeClaim data-db-0"},
		{"done", set, three, ""},
		{"scaled down: the last first", aStatefulSet(1), three, "delete Pod db-2"},
		{"scaled down: one after the other", aStatefulSet(1), pods(pod(0, 1), pod(1, 1), pod(2, 1, beingDeleted)), ""},
		{"scaled down: a sick one may go", aStatefulSet(1), pods(pod(0, 1), pod(1, 1), pod(2, 1, unready)), "delete Pod db-2"},
		{"scaled down: a sick one behind another sick one waits", aStatefulSet(1), pods(pod(0, 1), pod(1, 1, unready), pod(2, 1, unready)), ""},
		{"scaled down all at once", aStatefulSet(1, parallel), three, "delete Pod db-1 + delete Pod db-2"},
		{"other ordinals", aStatefulSet(2, withoutClaims, func(s *appsv1.StatefulSet) { s.Spec.Ordinals = &appsv1.StatefulSetOrdinals{Start: 5} }), pods(pod(0, 1), member(t, aStatefulSet(2, withoutClaims), 5, 1)),
			"create Pod db-6"},
		{"a new template: the last first", update(), three, "create ControllerRevision " + revisionFor(t, other, 2).Name + ", delete Pod db-2"},
		{"the next when it is available", update(), pods(pod(0, 1), pod(1, 1), pod(2, 2, unready)), "create ControllerRevision " + revisionFor(t, other, 2).Name},
		{"and so on", update(), pods(pod(0, 1), pod(1, 1), pod(2, 2)), "create ControllerRevision " + revisionFor(t, other, 2).Name + ", delete Pod db-1"},
		{"down to the partition", update(partition(2)), pods(pod(0, 1), pod(1, 1), pod(2, 2)), "create ControllerRevision " + revisionFor(t, other, 2).Name},
		{"two may be unavailable", update(leewayOf(2)), three, "create ControllerRevision " + revisionFor(t, other, 2).Name + ", delete Pod db-1 + delete Pod db-2"},
		{"parallel: what is unavailable goes too", update(parallel), pods(pod(0, 1, unready), pod(1, 1), pod(2, 1)), "create ControllerRevision " + revisionFor(t, other, 2).Name + ", delete Pod db-0"},
		{"only when deleted", update(func(s *appsv1.StatefulSet) {
			s.Spec.UpdateStrategy = appsv1.StatefulSetUpdateStrategy{Type: appsv1.OnDeleteStatefulSetStrategyType}
		}), three,
			"create ControllerRevision " + revisionFor(t, other, 2).Name},
		{"an orphan at the right place is adopted", set, pods(pod(0, 1, func(p *corev1.Pod) { p.OwnerReferences = nil }), pod(1, 1), pod(2, 1)), "patch Pod db-0"},
		{"a pod whose name is no member's is released", set, append(pods(aPod("stray", ownedBy(set, "StatefulSet"))), three...), "patch Pod stray"},
		{"lost labels come back", set, pods(pod(0, 1, func(p *corev1.Pod) { delete(p.Labels, appsv1.StatefulSetPodNameLabel) }), pod(1, 1), pod(2, 1)), "update Pod db-0"},
		{"a leaving set does nothing", aStatefulSet(3, func(s *appsv1.StatefulSet) { t := ago(0); s.DeletionTimestamp = &t }), nil, ""},
		{"not long enough ready", aStatefulSet(2, withoutClaims, func(s *appsv1.StatefulSet) { s.Spec.MinReadySeconds = 30 }), pods(member(t, aStatefulSet(2, withoutClaims), 0, 1, readyFor(10*time.Second))), "again 20s"},
	} {
		plan := statefulSetView{set: test.set, pods: test.pods, revisions: []*appsv1.ControllerRevision{revisionFor(t, set, 1)}, claims: claimsOfPods(set, test.pods), now: now}.reconcile()
		expect(t, test.what, told(plan), test.want)
	}
}

// claimsOfPods are the claims of all pods but pending ones.
func claimsOfPods(set *appsv1.StatefulSet, pods []*corev1.Pod) map[string]*corev1.PersistentVolumeClaim {
	var ordinals []int
	for _, pod := range pods {
		if pod.Status.Phase != corev1.PodPending {
			ordinals = append(ordinals, ordinalOf(pod))
		}
	}
	return claimsFor(set, ordinals...)
}

func TestStatefulPod(t *testing.T) {
	set := aStatefulSet(2, func(s *appsv1.StatefulSet) {
		s.Spec.Template.Spec.Volumes = []corev1.Volume{{Name: "data"}, {Name: "config"}}
	})
	plan := statefulSetView{set: set, now: now}.reconcile()
	expect(t, "plan", told(plan), "create ControllerRevision "+plan.Steps[0].Writes[0].Object.GetName()+", create PersistentVolumeClaim data-db-0, create Pod db-0")
	pod, claim := plan.Steps[2].Writes[0].Object.(*corev1.Pod), plan.Steps[1].Writes[0].Object.(*corev1.PersistentVolumeClaim)
	if pod.Spec.Hostname != "db-0" || pod.Spec.Subdomain != "db" || pod.Labels[appsv1.PodIndexLabel] != "0" || pod.Labels[appsv1.StatefulSetPodNameLabel] != "db-0" || pod.Labels[appsv1.StatefulSetRevisionLabel] != plan.Steps[0].Writes[0].Object.GetName() {
		t.Errorf("%+v", pod)
	}
	if len(pod.Spec.Volumes) != 2 || pod.Spec.Volumes[0].PersistentVolumeClaim.ClaimName != "data-db-0" || pod.Spec.Volumes[1].Name != "config" {
		t.Errorf("%+v", pod.Spec.Volumes)
	}
	if claim.Labels["app"] != "web" || len(claim.OwnerReferences) != 0 {
		t.Errorf("%+v", claim)
	}
	want := []string{"SuccessfulCreate: Create Claim data-db-0 Pod db-0 in StatefulSet db success", "SuccessfulCreate: Create Pod db-0 in StatefulSet db successful"}
	if got := events(plan); !slices.Equal(got, want) {
		t.Errorf("events %q", got)
	}
	// Below the partition a lost pod comes back as it was.
	old := revisionFor(t, set, 1)
	set = aStatefulSet(2, atImage(2), partition(1), func(s *appsv1.StatefulSet) { s.Status.CurrentRevision = old.Name })
	plan = statefulSetView{set: set, revisions: []*appsv1.ControllerRevision{old}, now: now}.reconcile()
	pod = plan.Steps[2].Writes[0].Object.(*corev1.Pod)
	if pod.Spec.Containers[0].Image != "image:1" || pod.Labels[appsv1.StatefulSetRevisionLabel] != old.Name {
		t.Errorf("%+v", pod)
	}
}

func TestClaimRetention(t *testing.T) {
	const keep, remove = appsv1.RetainPersistentVolumeClaimRetentionPolicyType, appsv1.DeletePersistentVolumeClaimRetentionPolicyType
	set := aStatefulSet(2)
	pod := func(ordinal int) *corev1.Pod { return member(t, set, ordinal, 1) }
	bySet := metav1.NewControllerRef(set, statefulSetKind)
	byPod := metav1.NewControllerRef(pod(2), podKind)
	foreign := &metav1.OwnerReference{APIVersion: "v1", Kind: "Other", Name: "x", UID: "x", Controller: new(true)}
	stale := &metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: "db-2", UID: "before", Controller: new(true)}
	weak := &metav1.OwnerReference{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "db", UID: set.UID}
	for _, test := range []struct {
		what            string
		deleted, scaled appsv1.PersistentVolumeClaimRetentionPolicyType
		ordinal         int
		has, want       []*metav1.OwnerReference
	}{
		{"kept, nobody owns it", keep, keep, 0, nil, nil},
		{"kept, the set owned it", keep, keep, 0, []*metav1.OwnerReference{bySet}, nil},
		{"goes with the set", remove, keep, 0, nil, []*metav1.OwnerReference{bySet}},
		{"goes with the set, also beyond", remove, keep, 2, nil, []*metav1.OwnerReference{bySet}},
		{"goes when scaled down, within", keep, remove, 0, nil, nil},
		{"goes when scaled down, beyond", keep, remove, 2, nil, []*metav1.OwnerReference{byPod}},
		{"goes with both, within", remove, remove, 0, nil, []*metav1.OwnerReference{bySet}},
		{"goes with both, beyond", remove, remove, 2, []*metav1.OwnerReference{bySet}, []*metav1.OwnerReference{byPod}},
		{"someone else's", remove, remove, 0, []*metav1.OwnerReference{foreign}, []*metav1.OwnerReference{foreign}},
		{"someone else's and ours", remove, remove, 0, []*metav1.OwnerReference{foreign, bySet}, []*metav1.OwnerReference{foreign}},
		{"of a pod that was here before", remove, remove, 2, []*metav1.OwnerReference{stale}, []*metav1.OwnerReference{stale}},
		{"owned, but not controlled", remove, keep, 0, []*metav1.OwnerReference{weak}, []*metav1.OwnerReference{bySet}},
	} {
		claims := claimsFor(set, test.ordinal)
		claim := claims[fmt.Sprintf("data-db-%d", test.ordinal)]
		for _, ref := range test.has {
			claim.OwnerReferences = append(claim.OwnerReferences, *ref)
		}
		s := aStatefulSet(2, retaining(test.deleted, test.scaled))
		l := &statefulSetSync{statefulSetView: statefulSetView{set: s, claims: claims, now: now}, plan: &controller.Plan{}}
		got := claim.OwnerReferences
		if writes := l.newClaimOwnerUpdates(pod(test.ordinal)); len(writes) > 0 {
			got = writes[0].Object.GetOwnerReferences()
		}
		var want []metav1.OwnerReference
		for _, ref := range test.want {
			want = append(want, *ref)
		}
		if !sameOwnerRefs(got, want) {
			t.Errorf("%s: owners %+v", test.what, got)
		}
	}
	// A claim that is terminating is not used again.
	claims := claimsFor(set, 0)
	gone := ago(0)
	claims["data-db-0"].DeletionTimestamp = &gone
	plan := statefulSetView{set: set, revisions: []*appsv1.ControllerRevision{revisionFor(t, set, 1)}, claims: claims, now: now}.reconcile()
	expect(t, "a claim that goes", told(plan), "again 2s")
}

func TestStatefulRevisions(t *testing.T) {
	set := aStatefulSet(0)
	one, two := revisionFor(t, set, 1), revisionFor(t, set, 2)
	syncPlan := func(s *appsv1.StatefulSet, taken func(string) *appsv1.ControllerRevision, revisions ...*appsv1.ControllerRevision) controller.Plan {
		return statefulSetView{set: s, revisions: revisions, revisionByName: taken, now: now}.reconcile()
	}
	expect(t, "known", told(syncPlan(set, nil, one)), "")
	back := syncPlan(set, nil, one, two)
	expect(t, "back to an old template", told(back), "update ControllerRevision "+one.Name)
	if r := back.Steps[0].Writes[0].Object.(*appsv1.ControllerRevision); r.Revision != 3 || one.Revision != 1 {
		t.Errorf("renumbered to %d", r.Revision)
	}
	three := aStatefulSet(0, atImage(3))
	made := syncPlan(three, nil, one, two).Steps[0].Writes[0].Object.(*appsv1.ControllerRevision)
	if made.Revision != 3 || !strings.HasPrefix(made.Name, "db-") || made.Labels["controller.kubernetes.io/hash"] != made.Name[3:] || !metav1.IsControlledBy(made, three) {
		t.Errorf("%+v", made)
	}
	taken := syncPlan(three, func(name string) *appsv1.ControllerRevision {
		if name == made.Name {
			return two
		}
		return nil
	}, one, two)
	if r := taken.Steps[0].Writes[0].Object; r.GetName() == made.Name || *taken.Status(controller.ApplyResult{}).(*appsv1.StatefulSet).Status.CollisionCount != 1 {
		t.Errorf("a name that is taken: %s", r.GetName())
	}
	orphan := one.DeepCopy()
	orphan.OwnerReferences = nil
	expect(t, "an orphan is adopted", told(syncPlan(set, nil, orphan)), "patch ControllerRevision "+one.Name)
	history := []*appsv1.ControllerRevision{one}
	for n := 2; n < 6; n++ {
		history = append(history, revisionFor(t, set, n))
	}
	limited := aStatefulSet(0, atImage(5), func(s *appsv1.StatefulSet) {
		s.Spec.RevisionHistoryLimit = new(int32(1))
		s.Status.CurrentRevision = history[1].Name
	})
	expect(t, "old ones go, the current stays", told(syncPlan(limited, nil, history...)), fmt.Sprintf("delete ControllerRevision %s + delete ControllerRevision %s", min(one.Name, history[2].Name), max(one.Name, history[2].Name)))
	// A revision written before a field had a default is still the same.
	defaulted := aStatefulSet(0)
	apps.StatefulSet.Default(defaulted)
	plan := syncPlan(defaulted, nil, one)
	expect(t, "defaults that came later", told(plan), "")
	if got := plan.Status(controller.ApplyResult{}).(*appsv1.StatefulSet).Status.UpdateRevision; got != one.Name {
		t.Errorf("revision %s", got)
	}
}

func TestStatefulStatus(t *testing.T) {
	old := revisionFor(t, aStatefulSet(3), 1)
	set := aStatefulSet(3, atImage(2), func(s *appsv1.StatefulSet) { s.Status.CurrentRevision = old.Name })
	new2 := revisionFor(t, set, 2)
	pods := []*corev1.Pod{member(t, set, 0, 1), member(t, set, 1, 1, beingDeleted), member(t, set, 2, 2)}
	plan := statefulSetView{set: set, pods: pods, revisions: []*appsv1.ControllerRevision{old, new2}, now: now, claims: claimsFor(set, 0, 1, 2)}.reconcile()
	s := plan.Status(controller.ApplyResult{}).(*appsv1.StatefulSet).Status
	if s.Replicas != 3 || s.ReadyReplicas != 3 || s.AvailableReplicas != 3 || s.CurrentReplicas != 1 || s.UpdatedReplicas != 1 || s.CurrentRevision != old.Name || s.UpdateRevision != new2.Name || *s.CollisionCount != 0 {
		t.Errorf("%+v", s)
	}
	pods = []*corev1.Pod{member(t, set, 0, 2), member(t, set, 1, 2), member(t, set, 2, 2)}
	plan = statefulSetView{set: set, pods: pods, revisions: []*appsv1.ControllerRevision{old, new2}, now: now, claims: claimsFor(set, 0, 1, 2)}.reconcile()
	if s := plan.Status(controller.ApplyResult{}).(*appsv1.StatefulSet).Status; s.CurrentRevision != new2.Name || s.CurrentReplicas != 3 {
		t.Errorf("a rollout that is complete: %+v", s)
	}
}
