package workload

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/controller"
	"skiff/internal/podstate"
)

// crew reads the pods of a set, written "ordinal:revision" with signs behind it: "!" is not ready, "?" pending, "x" failed, "o" succeeded, "-" leaving,
// "~" ready for a second only. "0:1 1:1! 2:2-" are three pods.
func crew(t *testing.T, set *appsv1.StatefulSet, text string) (pods []*corev1.Pod) {
	t.Helper()
	for word := range strings.FieldsSeq(text) {
		var ordinal, revision int
		signs := strings.TrimLeft(word, "0123456789:")
		if _, err := fmt.Sscanf(word, "%d:%d", &ordinal, &revision); err != nil {
			t.Fatalf("%s: %v", word, err)
		}
		pod := member(t, set, ordinal, revision)
		for _, sign := range signs {
			map[rune]change[*corev1.Pod]{'!': notReady, '-': beingDeleted, '~': readyFor(time.Second),
				'?': func(p *corev1.Pod) { notReady(p); inPhase(corev1.PodPending)(p) },
				'x': func(p *corev1.Pod) { notReady(p); inPhase(corev1.PodFailed)(p) },
				'o': func(p *corev1.Pod) { notReady(p); inPhase(corev1.PodSucceeded)(p) }}[sign](pod)
		}
		pods = append(pods, pod)
	}
	return pods
}

// orders are the pods a plan creates, changes and deletes: "+2 *1 -0".
func orders(plan controller.Plan) string {
	var words []string
	for _, w := range writesOf(plan) {
		if pod := asPod(w.Object); pod != nil {
			sign := map[controller.Verb]string{controller.Create: "+", controller.Update: "*", controller.Patch: "@", controller.Delete: "-"}[w.Verb]
			words = append(words, sign+strings.TrimPrefix(pod.Name, "db-"))
		}
	}
	return strings.Join(words, " ")
}

func onDelete(s *appsv1.StatefulSet) {
	s.Spec.UpdateStrategy = appsv1.StatefulSetUpdateStrategy{Type: appsv1.OnDeleteStatefulSetStrategyType}
}
func unavailableOf(text string) change[*appsv1.StatefulSet] {
	return func(s *appsv1.StatefulSet) { s.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable = amount(text) }
}
func waitingFor(seconds int32) change[*appsv1.StatefulSet] {
	return func(s *appsv1.StatefulSet) { s.Spec.MinReadySeconds = seconds }
}

// stateful looks at a set of image:2, whose revision 1 came before, with all claims in place.
func stateful(t *testing.T, set *appsv1.StatefulSet, pods ...*corev1.Pod) controller.Plan {
	t.Helper()
	return statefulSetView{set: set, pods: pods, revisions: []*appsv1.ControllerRevision{revisionFor(t, set, 1), revisionFor(t, set, 2)}, claims: claimsFor(set, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9), now: now}.reconcile()
}

func TestStatefulStep(t *testing.T) {
	of := func(size int32, changes ...change[*appsv1.StatefulSet]) *appsv1.StatefulSet {
		return aStatefulSet(size, append([]change[*appsv1.StatefulSet]{atImage(2)}, changes...)...)
	}
	for _, test := range []struct {
		what       string
		set        *appsv1.StatefulSet
		pods, want string
	}{
		// One after the other.
		{"nothing wanted", of(0), "", ""},
		{"the first", of(3), "", "+0"},
		{"the first is pending", of(3), "0:2?", ""},
		{"the first is not ready", of(3), "0:2!", ""},
		{"the first is leaving", of(3), "0:2-", ""},
		{"the first is ready", of(3), "0:2", "+1"},
		{"the first is not ready for long enough", of(3, waitingFor(10)), "0:2~", ""},
		{"the first is ready for long enough", of(3, waitingFor(10)), "0:2", "+1"},
		{"the first is missing, the others wait", of(3), "1:2 2:2", "+0"},
		{"one in the middle is missing", of(3), "0:2 2:2", "+1"},
		{"one in the middle is missing, the one before is not ready", of(3), "0:2! 2:2", ""},
		{"a later one is not ready: it is no reason to wait for an earlier one", of(3), "1:2! 2:2", "+0"},
		{"one has failed", of(3), "0:2 1:2x 2:2", "-1"},
		{"one has succeeded", of(3), "0:2 1:2o 2:2", "-1"},
		{"one has failed and leaves", of(3), "0:2 1:2x- 2:2", ""},
		{"the first that failed holds up the next that failed", of(3), "0:2x 1:2x 2:2", "-0"},
		{"all there", of(3), "0:2 1:2 2:2", ""},
		{"from an ordinal", of(2, startingAt(3)), "", "+3"},
		{"from an ordinal, the next", of(2, startingAt(3)), "3:2", "+4"},
		{"moved up: what lies below goes last, after all are there", of(2, startingAt(3)), "0:2 3:2 4:2", "-0"},
		{"moved up: first the new ones", of(2, startingAt(3)), "0:2 1:2", "+3"},
		// Scaling down.
		{"the highest goes first", of(1), "0:2 1:2 2:2", "-2"},
		{"one at a time", of(1), "0:2 1:2 2:2-", ""},
		{"then the next", of(1), "0:2 1:2", "-1"},
		{"to none", of(0), "0:2 1:2", "-1"},
		{"not while a wanted one is not ready", of(1), "0:2! 1:2 2:2", ""},
		{"not while a wanted one is missing", of(1), "1:2 2:2", "+0"},
		{"a sick one at the end goes", of(1), "0:2 1:2 2:2!", "-2"},
		{"a sick one behind a sick one waits for the lower", of(1), "0:2 1:2! 2:2!", ""},
		{"a well one goes though a lower one is sick", of(1), "0:2 1:2! 2:2", "-2"},
		{"a pending one at the end goes", of(1), "0:2 1:2 2:2?", "-2"},
		{"one not ready for long is sick", of(1, waitingFor(10)), "0:2 1:2 2:2~", "-2"},
		{"a failed one beyond goes", of(1), "0:2 1:2x", "-1"},
		// Updating.
		{"the last first", of(3), "0:1 1:1 2:1", "-2"},
		{"then wait", of(3), "0:1 1:1 2:2!", ""},
		{"then the next", of(3), "0:1 1:1 2:2", "-1"},
		{"then the first", of(3), "0:1 1:2 2:2", "-0"},
		{"in disorder: the highest old one", of(3), "0:1 1:2 2:1", "-2"},
		{"one leaves: wait", of(3), "0:1 1:1 2:1-", ""},
		{"not ready for long enough: wait", of(3, waitingFor(10)), "0:1 1:1 2:2~", ""},
		{"not while scaling down", of(2), "0:1 1:1 2:1", "-2"},
		{"not while one is missing", of(3), "0:1 1:1", "+2"},
		{"down to a partition", of(3, partition(1)), "0:1 1:1 2:1", "-2"},
		{"down to a partition: done", of(3, partition(1)), "0:1 1:2 2:2", ""},
		{"a partition of all", of(3, partition(3)), "0:1 1:1 2:1", ""},
		{"a partition beyond all", of(3, partition(9)), "0:1 1:1 2:1", ""},
		{"two at a time", of(3, unavailableOf("2")), "0:1 1:1 2:1", "-2 -1"},
		{"two at a time, down to a partition", of(3, unavailableOf("2"), partition(2)), "0:1 1:1 2:1", "-2"},
		{"more at a time than there are", of(3, unavailableOf("9")), "0:1 1:1 2:1", "-2 -1 -0"},
		{"half of them, rounded down", of(3, unavailableOf("50%")), "0:1 1:1 2:1", "-2"},
		{"two thirds, rounded down", of(3, unavailableOf("67%")), "0:1 1:1 2:1", "-2 -1"},
		{"a percentage of nothing is one all the same", of(3, unavailableOf("1%")), "0:1 1:1 2:1", "-2"},
		{"none is one all the same", of(3, unavailableOf("0")), "0:1 1:1 2:1", "-2"},
		{"on delete: nothing", of(3, onDelete), "0:1 1:1 2:1", ""},
		{"on delete: what is missing comes new", of(3, onDelete), "0:1 1:1", "+2"},
		{"a revision nobody knows is old", of(2), "0:9 1:2", "-0"},
		// All at once.
		{"all at once", of(3, parallel), "", "+0 +1 +2"},
		{"all that are missing", of(3, parallel), "1:2!", "+0 +2"},
		{"those that leave are waited for", of(3, parallel), "0:2- 1:2 2:2", ""},
		{"all that failed", of(3, parallel), "0:2x 1:2o 2:2", "-0 -1"},
		{"down at once", of(1, parallel), "0:2 1:2 2:2!", "-2 -1"},
		{"down while one is missing", of(2, parallel), "1:2 2:2 3:2", "+0 -3 -2"},
		{"leaving ones beyond are left alone", of(1, parallel), "0:2 1:2- 2:2", "-2"},
		{"an update: one at a time", of(3, parallel), "0:1 1:1 2:1", "-2"},
		{"an update: two at a time", of(3, parallel, unavailableOf("2")), "0:1 1:1 2:1", "-2 -1"},
		{"an update: one is sick anyway", of(3, parallel), "0:1! 1:1 2:1", "-0"},
		{"an update: all are sick anyway", of(3, parallel), "0:1! 1:1! 2:1!", "-2 -1 -0"},
		{"an update: sick ones below the partition stay", of(3, parallel, partition(1)), "0:1! 1:1! 2:1", "-1"},
		{"an update: a sick new one uses up the budget", of(3, parallel), "0:1 1:1 2:2!", ""},
		{"an update: a sick new one, two at a time", of(3, parallel, unavailableOf("2")), "0:1 1:1 2:2!", "-1"},
		{"an update: a leaving one uses up the budget", of(3, parallel), "0:1 1:1 2:1-", ""},
		{"an update: a missing one uses up the budget", of(3, parallel), "0:1 1:1", "+2"},
		{"an update: a failed old one is deleted once", of(3, parallel), "0:1x 1:1 2:1", "-0"},
		{"an update: pending old ones go", of(3, parallel), "0:1? 1:1? 2:1", "-1 -0"},
		{"an update: not ready for long counts as sick", of(3, parallel, waitingFor(10)), "0:1~ 1:1 2:1", "-0"},
	} {
		expect(t, test.what, orders(stateful(t, test.set, crew(t, test.set, test.pods)...)), test.want)
		expect(t, test.what+", in another order", orders(stateful(t, test.set, backwards(crew(t, test.set, test.pods))...)), test.want)
	}
}

// TestStatefulOwnership: whose pods count, by name, label and owner.
func TestStatefulOwnership(t *testing.T) {
	set := aStatefulSet(1, atImage(2))
	orphan := func(p *corev1.Pod) { p.OwnerReferences = nil }
	for _, test := range []struct {
		what string
		set  *appsv1.StatefulSet
		pod  *corev1.Pod
		want string
	}{
		{"its own", set, member(t, set, 0, 2), ""},
		{"an orphan of its name", set, member(t, set, 0, 2, orphan), "@0"},
		{"an orphan of its name without the label", set, member(t, set, 0, 2, orphan, labelled("app", "db")), "+0"},
		{"an orphan of another name", set, aPod("cache-0"), "+0"},
		{"an orphan without an ordinal", set, aPod("db"), "+0"},
		{"an orphan that leaves", set, member(t, set, 0, 2, orphan, beingDeleted), "+0"},
		{"another's of its name", set, member(t, set, 0, 2, ownedBy(aPod("x"), "StatefulSet")), "+0"},
		{"its own, the label changed: released", set, member(t, set, 0, 2, labelled("app", "db")), "@0 +0"},
		{"its own, with no member's name: released", set, aPod("cache-0", ownedBy(set, "StatefulSet")), "@cache-0 +0"},
		{"its own, with a number nobody counts to: kept, and passed over", set, aPod("db-99999999999", ownedBy(set, "StatefulSet"), readyFor(time.Hour)), "+0"},
		{"an orphan beyond the set is adopted and goes", aStatefulSet(0, atImage(2)), member(t, set, 3, 2, orphan), "@3 -3"},
		{"a leaving set keeps, adopts and releases nothing", aStatefulSet(1, atImage(2), func(s *appsv1.StatefulSet) { gone(s) }), member(t, set, 0, 2, orphan), ""},
	} {
		expect(t, test.what, orders(stateful(t, test.set, test.pod)), test.want)
	}
}

// TestStatefulRepairs: what a pod has lost is given back, once it is its turn.
func TestStatefulRepairs(t *testing.T) {
	nameless := func(p *corev1.Pod) { delete(p.Labels, appsv1.StatefulSetPodNameLabel) }
	volumeless := func(p *corev1.Pod) { p.Spec.Volumes = nil }
	for _, test := range []struct {
		what   string
		policy change[*appsv1.StatefulSet]
		pod    change[*corev1.Pod]
		want   string
		labels bool
		volume string
	}{
		{"nothing is lost", func(*appsv1.StatefulSet) {}, func(*corev1.Pod) {}, "", false, ""},
		{"its name", func(*appsv1.StatefulSet) {}, nameless, "*0", true, "data-db-0"},
		{"its name is another's", func(*appsv1.StatefulSet) {}, labelled(appsv1.StatefulSetPodNameLabel, "db-7"), "*0", true, "data-db-0"},
		{"its volume", func(*appsv1.StatefulSet) {}, volumeless, "*0", true, "data-db-0"},
		{"its volume is another claim's", func(*appsv1.StatefulSet) {}, func(p *corev1.Pod) { p.Spec.Volumes[0].PersistentVolumeClaim.ClaimName = "data-db-9" }, "*0", true, "data-db-0"},
		{"its volume is no claim", func(*appsv1.StatefulSet) {}, func(p *corev1.Pod) {
			p.Spec.Volumes[0].VolumeSource = corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}
		}, "*0", true, "data-db-0"},
		{"its name, while it is not ready: later", func(*appsv1.StatefulSet) {}, func(p *corev1.Pod) { nameless(p); notReady(p) }, "", false, ""},
		{"its name, while it is not ready, all at once", parallel, func(p *corev1.Pod) { nameless(p); notReady(p) }, "*0", true, "data-db-0"},
		{"its name, while it leaves, all at once", parallel, func(p *corev1.Pod) { nameless(p); beingDeleted(p) }, "*0", true, "data-db-0"},
	} {
		set := aStatefulSet(1, atImage(2), test.policy)
		plan := stateful(t, set, member(t, set, 0, 2, test.pod))
		expect(t, test.what, orders(plan), test.want)
		if test.want == "" {
			continue
		}
		pod := plan.Steps[0].Writes[0].Object.(*corev1.Pod)
		if pod.Labels[appsv1.StatefulSetPodNameLabel] != "db-0" || pod.Labels[appsv1.PodIndexLabel] != "0" || pod.Spec.Volumes[0].PersistentVolumeClaim.ClaimName != test.volume {
			t.Errorf("%s: %v %+v", test.what, pod.Labels, pod.Spec.Volumes)
		}
		if got := events(plan); !slices.Equal(got, []string{"SuccessfulUpdate: Update Pod db-0 in StatefulSet db successful"}) {
			t.Errorf("%s: events %q", test.what, got)
		}
	}
	set := aStatefulSet(1, atImage(2))
	lost := statefulSetView{set: set, pods: []*corev1.Pod{member(t, set, 0, 2, func(p *corev1.Pod) { p.Spec.Volumes = nil })}, revisions: []*appsv1.ControllerRevision{revisionFor(t, set, 2)}, now: now}.reconcile()
	expect(t, "volume and claim are both lost", told(lost), "create PersistentVolumeClaim data-db-0, update Pod db-0")
}

// TestStatefulTemplate: from which revision a pod is made.
func TestStatefulTemplate(t *testing.T) {
	at := func(revision int) change[*appsv1.StatefulSet] {
		return func(s *appsv1.StatefulSet) { s.Status.CurrentRevision = revisionFor(t, s, revision).Name }
	}
	unbounded := func(current int32) change[*appsv1.StatefulSet] {
		return func(s *appsv1.StatefulSet) {
			s.Spec.UpdateStrategy.RollingUpdate, s.Status.CurrentReplicas = nil, current
		}
	}
	for _, test := range []struct {
		what string
		set  *appsv1.StatefulSet
		want string // images by ordinal
	}{
		{"all new", aStatefulSet(3, atImage(2), parallel, at(1)), "2 2 2"},
		{"below a partition as before", aStatefulSet(3, atImage(2), parallel, at(1), partition(2)), "1 1 2"},
		{"a partition of all", aStatefulSet(3, atImage(2), parallel, at(1), partition(3)), "1 1 1"},
		{"a partition counts from the first ordinal", aStatefulSet(3, atImage(2), parallel, at(1), partition(1), startingAt(4)), "1 2 2"},
		{"no bounds: as many as are still of old", aStatefulSet(3, atImage(2), parallel, at(1), unbounded(2)), "1 1 2"},
		{"no bounds, none of old", aStatefulSet(3, atImage(2), parallel, at(1), unbounded(0)), "2 2 2"},
		{"on delete: always the new one", aStatefulSet(3, atImage(2), parallel, at(1), onDelete), "2 2 2"},
		{"the old revision is gone", aStatefulSet(3, atImage(2), parallel, partition(2), func(s *appsv1.StatefulSet) { s.Status.CurrentRevision = "db-gone" }), "2 2 2"},
	} {
		var images []string
		for _, w := range writesOf(stateful(t, test.set)) {
			if pod := asPod(w.Object); pod != nil {
				image := strings.TrimPrefix(pod.Spec.Containers[0].Image, "image:")
				images = append(images, image)
				if want := revisionFor(t, test.set, int(image[0]-'0')).Name; pod.Labels[appsv1.StatefulSetRevisionLabel] != want {
					t.Errorf("%s: %s says %s", test.what, pod.Name, pod.Labels[appsv1.StatefulSetRevisionLabel])
				}
			}
		}
		expect(t, test.what, strings.Join(images, " "), test.want)
	}
	broken := revisionFor(t, aStatefulSet(1), 1)
	broken.Data.Raw = []byte("{")
	set := aStatefulSet(1, atImage(2), partition(1), func(s *appsv1.StatefulSet) { s.Status.CurrentRevision = broken.Name })
	plan := statefulSetView{set: set, revisions: []*appsv1.ControllerRevision{broken, revisionFor(t, set, 2)}, now: now}.reconcile()
	if got := events(plan); orders(plan) != "" || len(got) != 1 || !strings.HasPrefix(got[0], "FailedCreate: decode revision "+broken.Name) {
		t.Errorf("a revision nobody can read: %s, %q", told(plan), got)
	}
}

func TestStatefulPodWhole(t *testing.T) {
	set := aStatefulSet(3, startingAt(2), func(s *appsv1.StatefulSet) {
		s.Spec.Template = corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}, Annotations: map[string]string{"a": "1"}, Finalizers: []string{"f/f"}},
			Spec: corev1.PodSpec{Hostname: "ignored", Subdomain: "ignored", Containers: []corev1.Container{{Name: "c"}}, Volumes: []corev1.Volume{{Name: "logs"}, {Name: "data"}}}}
		s.Spec.VolumeClaimTemplates = append(s.Spec.VolumeClaimTemplates, corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "logs"}})
	})
	plan := statefulSetView{set: set, now: now}.reconcile()
	revision := plan.Steps[0].Writes[0].Object.GetName()
	claim := func(name string) corev1.Volume {
		return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name + "-db-2"}}}
	}
	same(t, "the pod", plan.Steps[2].Writes[0].Object, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "db-2", GenerateName: "db-", Annotations: map[string]string{"a": "1"}, Finalizers: []string{"f/f"},
			Labels:          map[string]string{"app": "web", "statefulset.kubernetes.io/pod-name": "db-2", "apps.kubernetes.io/pod-index": "2", "controller-revision-hash": revision},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "db", UID: "uid-db", Controller: new(true), BlockOwnerDeletion: new(true)}}},
		Spec: corev1.PodSpec{Hostname: "db-2", Subdomain: "db", Containers: []corev1.Container{{Name: "c"}}, Volumes: []corev1.Volume{claim("data"), claim("logs")}},
	})
	if write := plan.Steps[2].Writes[0]; write.FailureEvent.Reason != "FailedCreate" || write.FailureEvent.Message != "Create Pod db-2 in StatefulSet db failed error: %s" || !slices.Equal(write.NoEvent, []metav1.StatusReason{metav1.StatusReasonAlreadyExists}) {
		t.Errorf("%+v", write)
	}
	deletion := stateful(t, aStatefulSet(0, atImage(2)), crew(t, aStatefulSet(1), "0:2")...).Steps[0].Writes[0]
	if deletion.SuccessEvent.Message != "Delete Pod db-0 in StatefulSet db successful" || deletion.FailureEvent.Message != "Delete Pod db-0 in StatefulSet db failed error: %s" || deletion.SuccessEvent.Reason != "SuccessfulDelete" || deletion.FailureEvent.Reason != "FailedDelete" {
		t.Errorf("%+v", deletion)
	}
}

func TestStatefulNumbers(t *testing.T) {
	type counts struct{ replicas, ready, available, current, updated int32 }
	of := func(size int32, changes ...change[*appsv1.StatefulSet]) *appsv1.StatefulSet {
		return aStatefulSet(size, append([]change[*appsv1.StatefulSet]{atImage(2), func(s *appsv1.StatefulSet) { s.Status.CurrentRevision = revisionFor(t, s, 1).Name }}, changes...)...)
	}
	for _, test := range []struct {
		what string
		set  *appsv1.StatefulSet
		pods string
		want counts
		done bool // the new revision has become the current one
	}{
		{"nothing", of(0), "", counts{}, true},
		{"nothing yet", of(3), "", counts{}, false},
		{"all old: the one that goes is current no more", of(3), "0:1 1:1 2:1", counts{3, 3, 3, 2, 0}, false},
		{"on delete: none goes", of(3, onDelete), "0:1 1:1 2:1", counts{3, 3, 3, 3, 0}, false},
		{"two go at once", of(3, unavailableOf("2")), "0:1 1:1 2:1", counts{3, 3, 3, 1, 0}, false},
		{"half way", of(3), "0:1 1:1 2:2!", counts{3, 2, 2, 2, 1}, false},
		{"all new", of(3), "0:2 1:2 2:2", counts{3, 3, 3, 3, 3}, true},
		{"all new, one not ready", of(3), "0:2 1:2 2:2!", counts{3, 2, 2, 0, 3}, false},
		{"all new, one not ready for long", of(3, waitingFor(10)), "0:2 1:2 2:2~", counts{3, 3, 2, 3, 3}, true},
		{"all new and one beyond", of(3), "0:2 1:2 2:2 3:2", counts{4, 4, 4, 0, 4}, false},
		{"all new, and a sick old one beyond", of(3), "0:2 1:2 2:2 3:1!", counts{4, 3, 3, 1, 3}, false},
		{"leaving pods are of no revision", of(3), "0:1 1:1- 2:2-", counts{3, 3, 3, 1, 0}, false},
		{"pods that ended are replicas, not ready", of(2), "0:1x 1:2o", counts{2, 0, 0, 1, 1}, false},
		{"a revision nobody knows counts for none", of(2, onDelete), "0:7 1:1", counts{2, 2, 2, 1, 0}, false},
		{"pending pods", of(2), "0:2? 1:2?", counts{2, 0, 0, 0, 2}, false},
	} {
		plan := stateful(t, test.set, crew(t, test.set, test.pods)...)
		status := plan.Status(controller.ApplyResult{}).(*appsv1.StatefulSet).Status
		if got := (counts{status.Replicas, status.ReadyReplicas, status.AvailableReplicas, status.CurrentReplicas, status.UpdatedReplicas}); got != test.want {
			t.Errorf("%s: %+v, want %+v", test.what, got, test.want)
		}
		if (status.CurrentRevision == status.UpdateRevision) != test.done || status.UpdateRevision != revisionFor(t, test.set, 2).Name || status.ObservedGeneration != 1 || *status.CollisionCount != 0 {
			t.Errorf("%s: %+v", test.what, status)
		}
	}
	set := of(1)
	settled := stateful(t, set, crew(t, set, "0:2")...).Status(controller.ApplyResult{}).(*appsv1.StatefulSet)
	if again := stateful(t, settled, crew(t, set, "0:2")...).Status(controller.ApplyResult{}); again != nil {
		t.Errorf("a second sync reports again: %+v", again)
	}
}

// TestStatefulReportAfterFailure: the numbers are reported whatever became of the pods, but not when it is open whose they are or of which revision.
func TestStatefulReportAfterFailure(t *testing.T) {
	set, revision := aStatefulSet(1, atImage(2)), revisionFor(t, aStatefulSet(1), 2)
	for _, test := range []struct {
		what    string
		outcome controller.ApplyResult
		written bool
	}{
		{"all is well", controller.ApplyResult{}, true},
		{"a pod could not be made", refusal(controller.Create, aPod("db-0"), "quota"), true},
		{"a pod could not be changed", refusal(controller.Update, aPod("db-0"), "conflict"), true},
		{"a pod could not be deleted", refusal(controller.Delete, aPod("db-0"), "no"), true},
		{"a claim could not be made", refusal(controller.Create, &corev1.PersistentVolumeClaim{}, "quota"), true},
		{"an old revision could not be deleted", refusal(controller.Delete, revision, "no"), true},
		{"the revision could not be made", refusal(controller.Create, revision, "quota"), false},
		{"the revision could not be renumbered", refusal(controller.Update, revision, "conflict"), false},
		{"a pod could not be adopted", refusal(controller.Patch, aPod("db-0"), "conflict"), false},
		{"a revision could not be adopted", refusal(controller.Patch, revision, "conflict"), false},
		{"the set could not be confirmed", controller.ApplyResult{Err: errors.New("gone")}, false},
	} {
		if got := stateful(t, set).Status(test.outcome); (got != nil) != test.written {
			t.Errorf("%s: %v", test.what, got)
		}
		daemons := daemonSetView{set: aDaemonSet(func(s *appsv1.DaemonSet) { s.Generation = 5 }), revisions: []*appsv1.ControllerRevision{daemonRevision(t, 1)}, now: now}.reconcile()
		if got := daemons.Status(test.outcome); (got != nil) != test.written {
			t.Errorf("a daemon set: %s: %v", test.what, got)
		}
	}
}

// TestStatefulHistory: which revisions go.
func TestStatefulHistory(t *testing.T) {
	limited := func(n int32, changes ...change[*appsv1.StatefulSet]) *appsv1.StatefulSet {
		return aStatefulSet(1, append([]change[*appsv1.StatefulSet]{atImage(6), onDelete, func(s *appsv1.StatefulSet) {
			s.Spec.RevisionHistoryLimit, s.Status.CurrentRevision = &n, revisionFor(t, s, 5).Name
		}}, changes...)...)
	}
	for _, test := range []struct {
		what string
		set  *appsv1.StatefulSet
		pods string
		want string
	}{
		{"as many as the limit", limited(4), "0:6", ""},
		{"one more", limited(3), "0:6", "1"},
		{"keep none", limited(0), "0:6", "1 2 3 4"},
		{"one that a pod has is kept, and does not count", limited(3), "0:1", ""},
		{"one that a pod has is kept", limited(0), "0:2", "1 3 4"},
		{"one that a pod beyond has is kept", limited(0), "0:6 7:3", "1 2 4"},
		{"one that a leaving pod has is kept", limited(0), "0:4-", "1 2 3"},
		{"no limit is ten", limited(0, func(s *appsv1.StatefulSet) { s.Spec.RevisionHistoryLimit = nil }), "0:6", ""},
		{"a negative limit keeps all", limited(-1), "0:6", ""},
	} {
		var history []*appsv1.ControllerRevision
		number := map[string]string{}
		for n := 1; n <= 6; n++ {
			r := revisionFor(t, test.set, n)
			history = append(history, r)
			number[r.Name] = fmt.Sprint(n)
		}
		plan := statefulSetView{set: test.set, pods: crew(t, test.set, test.pods), revisions: backwards(history), claims: claimsFor(test.set, 0, 7), now: now}.reconcile()
		var deleted []string
		for _, w := range writesOf(plan) {
			if w.Verb == controller.Delete && number[w.Object.GetName()] != "" {
				deleted = append(deleted, number[w.Object.GetName()])
			}
		}
		expect(t, test.what, strings.Join(deleted, " "), test.want)
	}
}

// TestStatefulSetsAlwaysArrive plays sets of all sorts in a model of pods alone: pods that are made come up after some looks, those that are deleted go after
// some. Ordered sets never have two pods in the making and never skip one; in the end exactly the wanted pods run the wanted template.
func TestStatefulSetsAlwaysArrive(t *testing.T) {
	for seed := range uint64(120) {
		random := rand.New(rand.NewPCG(seed, 6))
		size, start := int32(random.IntN(5)), int32(random.IntN(3))
		ordered := random.IntN(2) == 0
		set := aStatefulSet(size, atImage(2), withoutClaims, startingAt(start), unavailableOf(fmt.Sprint(1+random.IntN(3))))
		if !ordered {
			parallel(set)
		}
		pods := map[string]*corev1.Pod{}
		for n := range 7 {
			if random.IntN(2) == 0 {
				// Of pods beyond an ordered set none has failed: two of them would wait for each other, upstream too.
				states := 3
				if !ordered || n >= int(start) && n < int(start+size) {
					states = 4
				}
				pods[fmt.Sprint("db-", n)] = member(t, set, n, 1+random.IntN(2), []change[*corev1.Pod]{readyFor(time.Hour), notReady, beingDeleted, func(p *corev1.Pod) { notReady(p); inPhase(corev1.PodFailed)(p) }}[random.IntN(states)])
			}
		}
		for round := 0; ; round++ {
			if round > 200 {
				t.Fatalf("seed %d: no end: %v", seed, names(slices.Collect(maps.Values(pods))))
			}
			var all []*corev1.Pod
			for _, name := range slices.Sorted(maps.Keys(pods)) {
				all = append(all, pods[name])
			}
			plan := stateful(t, set, all...)
			if len(plan.Steps) == 0 && !slices.ContainsFunc(all, func(p *corev1.Pod) bool { return p.DeletionTimestamp != nil || !podstate.IsReady(p) }) {
				break
			}
			if words := strings.Fields(orders(plan)); ordered && len(words) > 1 && strings.HasPrefix(words[0], "+") {
				t.Fatalf("seed %d: an ordered set does %v at once", seed, words)
			}
			// The world moves by one pod: one that leaves is gone, or one that is not ready is.
			for _, pod := range all {
				if pod.DeletionTimestamp != nil {
					delete(pods, pod.Name)
					break
				}
				if !podstate.IsTerminal(pod) && !podstate.IsReady(pod) {
					pods[pod.Name] = with(pod.DeepCopy(), readyFor(time.Hour))
					break
				}
			}
			for _, w := range writesOf(plan) {
				pod := asPod(w.Object)
				switch {
				case pod == nil:
				case w.Verb == controller.Create:
					pods[pod.Name] = with(pod.DeepCopy(), inPhase(corev1.PodRunning))
				case w.Verb == controller.Delete && pods[pod.Name] != nil:
					pods[pod.Name] = with(pods[pod.Name].DeepCopy(), beingDeleted)
				}
			}
		}
		for n := range size {
			pod := pods[fmt.Sprint("db-", start+n)]
			if pod == nil || pod.Labels[appsv1.StatefulSetRevisionLabel] != revisionFor(t, set, 2).Name {
				t.Errorf("seed %d: pod %d is not as it should be: %v", seed, start+n, pod != nil)
			}
		}
		if len(pods) != int(size) {
			t.Errorf("seed %d: %d pods, want %d", seed, len(pods), size)
		}
	}
}
