package workload

import (
	"fmt"
	"maps"
	"math"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"skiff/internal/controller"
)

func TestSetName(t *testing.T) {
	long := strings.Repeat("x", 253)
	for _, test := range []struct{ deployment, hash, want string }{
		{"web", "abc", "web-abc"}, {"web", "", "web-"}, {"a.b-c", "1", "a.b-c-1"},
		{long[:249], "abc", long[:249] + "-abc"}, {long[:248], "abc", long[:248] + "-abc"}, {long[:250], "abc", long[:249] + "-abc"}, {long, "abc", long[:249] + "-abc"},
		{long, "6f5dbf7885", long[:242] + "-6f5dbf7885"},
	} {
		if got := replicaSetName(test.deployment, test.hash); got != test.want {
			t.Errorf("%d characters and %q: %d characters, want %d", len(test.deployment), test.hash, len(got), len(test.want))
		}
	}
}

func TestSameTemplate(t *testing.T) {
	base := template("image:1")
	changed := func(change func(*corev1.PodTemplateSpec)) *corev1.PodTemplateSpec {
		c := base.DeepCopy()
		change(c)
		return c
	}
	hashed := func(hash string) *corev1.PodTemplateSpec {
		return changed(func(p *corev1.PodTemplateSpec) { p.Labels[appsv1.DefaultDeploymentUniqueLabelKey] = hash })
	}
	for _, test := range []struct {
		what string
		a, b *corev1.PodTemplateSpec
		same bool
	}{
		{"itself", &base, &base, true},
		{"a copy", &base, base.DeepCopy(), true},
		{"a hash on one side", &base, hashed("x"), true},
		{"other hashes", hashed("y"), hashed("x"), true},
		{"another image", &base, changed(func(p *corev1.PodTemplateSpec) { p.Spec.Containers[0].Image = "image:2" }), false},
		{"another label", &base, changed(func(p *corev1.PodTemplateSpec) { p.Labels["b"] = "1" }), false},
		{"another label beside a hash", hashed("x"), changed(func(p *corev1.PodTemplateSpec) { p.Labels["b"] = "1" }), false},
		{"an annotation", &base, changed(func(p *corev1.PodTemplateSpec) {
			p.Annotations = map[string]string{"kubectl.kubernetes.io/restartedAt": "now"}
		}), false},
		{"empty is none: annotations", &base, changed(func(p *corev1.PodTemplateSpec) { p.Annotations = map[string]string{} }), true},
		{"empty is none: volumes", &base, changed(func(p *corev1.PodTemplateSpec) { p.Spec.Volumes = []corev1.Volume{} }), true},
		{"only the hash on one side, nothing on the other", &corev1.PodTemplateSpec{}, &corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{appsv1.DefaultDeploymentUniqueLabelKey: "x"}}}, true},
		{"one container more", &base, changed(func(p *corev1.PodTemplateSpec) { p.Spec.Containers = append(p.Spec.Containers, corev1.Container{}) }), false},
		{"a pointer to zero is not nothing", &base, changed(func(p *corev1.PodTemplateSpec) { p.Spec.TerminationGracePeriodSeconds = new(int64(0)) }), false},
	} {
		if got := sameTemplate(test.a, test.b); got != test.same {
			t.Errorf("%s: %v", test.what, got)
		}
		if got := sameTemplate(test.b, test.a); got != test.same {
			t.Errorf("%s, the other way round: %v", test.what, got)
		}
	}
	if own := hashed("x"); !sameTemplate(own, &base) || own.Labels[appsv1.DefaultDeploymentUniqueLabelKey] != "x" {
		t.Error("comparing took the hash away")
	}
}

func TestRevisions(t *testing.T) {
	for value, want := range map[string]struct {
		revision int64
		ok       bool
	}{"0": {0, true}, "1": {1, true}, "12": {12, true}, "-3": {-3, true}, "9223372036854775807": {math.MaxInt64, true}, "9223372036854775808": {math.MaxInt64, false}, "": {0, false}, "x": {0, false}, "1.5": {0, false}} {
		set := aSet(1, func(s *appsv1.ReplicaSet) { s.Annotations = map[string]string{revisionAnnotation: value} })
		if revision, ok := revisionOf(set); revision != want.revision || ok != want.ok {
			t.Errorf("%q is revision %d, %v", value, revision, ok)
		}
	}
	if revision, ok := revisionOf(aSet(1)); revision != 0 || !ok {
		t.Errorf("no annotation is revision %d, %v", revision, ok)
	}
	for _, test := range []struct {
		revisions     string
		highest, last int64
	}{
		{"", 0, 0}, {"1", 1, 0}, {"1 2", 2, 1}, {"2 1", 2, 1}, {"1 2 3", 3, 2}, {"3 1 2", 3, 2}, {"3 2 1", 3, 2}, {"1 3 2", 3, 2},
		{"5 5", 5, 5}, {"5 5 2", 5, 5}, {"2 5 5", 5, 5}, {"x 1", 1, 0}, {"x y", 0, 0}, {"1 x 2", 2, 1}, {"-1 -2", 0, 0}, {"0 0", 0, 0}, {"0 4", 4, 0}, {"10 9 11", 11, 10},
	} {
		var sets []*appsv1.ReplicaSet
		for word := range strings.FieldsSeq(test.revisions) {
			sets = append(sets, aSet(1, func(s *appsv1.ReplicaSet) { s.Annotations = map[string]string{revisionAnnotation: word} }))
		}
		if got := highestRevision(sets); got != test.highest {
			t.Errorf("%q: highest %d, want %d", test.revisions, got, test.highest)
		}
		if got := previousRevision(sets); got != test.last {
			t.Errorf("%q: last %d, want %d", test.revisions, got, test.last)
		}
	}
}

func TestAnnotatedReplicas(t *testing.T) {
	for value, want := range map[string]struct {
		n  int32
		ok bool
	}{"0": {0, true}, "7": {7, true}, "2147483647": {math.MaxInt32, true}, "2147483648": {0, false}, "4294967296": {0, false}, "-1": {0, false}, "": {0, false}, "x": {0, false}, "1.0": {0, false}, "+1": {0, false}} {
		set := aSet(1, func(s *appsv1.ReplicaSet) { s.Annotations = map[string]string{desiredReplicasAnnotation: value} })
		if n, ok := annotatedReplicas(set, desiredReplicasAnnotation); ok != want.ok || ok && n != want.n {
			t.Errorf("%q is %d, %v", value, n, ok)
		}
	}
	if _, ok := annotatedReplicas(aSet(1), desiredReplicasAnnotation); ok {
		t.Error("no annotation is a number")
	}
}

func TestIsOurs(t *testing.T) {
	for key, want := range map[string]bool{
		"kubectl.kubernetes.io/last-applied-configuration": true, "deployment.kubernetes.io/revision": true, "deployment.kubernetes.io/revision-history": true,
		"deployment.kubernetes.io/desired-replicas": true, "deployment.kubernetes.io/max-replicas": true, "deprecated.deployment.rollback.to": true,
		"kubernetes.io/change-cause": false, "deployment.kubernetes.io/other": false, "kubectl.kubernetes.io/restartedAt": false, "": false,
	} {
		if isControllerAnnotation(key) != want {
			t.Errorf("%q is ours: %v", key, !want)
		}
	}
}

// TestAnnotate: what the current set is given of its deployment, and which revision it becomes.
func TestAnnotate(t *testing.T) {
	type notes map[string]string
	const cause = "kubernetes.io/change-cause"
	for _, test := range []struct {
		what       string
		deployment notes
		set        notes
		highest    string // revision of the old set
		want       notes
		changed    bool
	}{
		{"nothing to say but the revision", nil, nil, "", notes{revisionAnnotation: "1"}, true},
		{"the first revision stands", nil, notes{revisionAnnotation: "1"}, "", notes{revisionAnnotation: "1"}, false},
		{"behind an old one", nil, notes{revisionAnnotation: "1"}, "4", notes{revisionAnnotation: "5", revisionHistoryAnnotation: "1"}, true},
		{"the same as an old one", nil, notes{revisionAnnotation: "4"}, "4", notes{revisionAnnotation: "5", revisionHistoryAnnotation: "4"}, true},
		{"ahead of the old ones", nil, notes{revisionAnnotation: "7"}, "4", notes{revisionAnnotation: "7"}, false},
		{"just ahead", nil, notes{revisionAnnotation: "5"}, "4", notes{revisionAnnotation: "5"}, false},
		{"a history goes on", nil, notes{revisionAnnotation: "3", revisionHistoryAnnotation: "1"}, "4", notes{revisionAnnotation: "5", revisionHistoryAnnotation: "1,3"}, true},
		{"an empty revision counts as none", nil, notes{revisionAnnotation: ""}, "", notes{revisionAnnotation: "1", revisionHistoryAnnotation: ""}, true},
		{"an old set that cannot be read is passed over", nil, notes{revisionAnnotation: "1"}, "x", notes{revisionAnnotation: "1"}, false},
		{"annotations are handed down", notes{cause: "a"}, notes{revisionAnnotation: "1"}, "", notes{revisionAnnotation: "1", cause: "a"}, true},
		{"and follow", notes{cause: "b"}, notes{revisionAnnotation: "1", cause: "a"}, "", notes{revisionAnnotation: "1", cause: "b"}, true},
		{"the same is no change", notes{cause: "a"}, notes{revisionAnnotation: "1", cause: "a"}, "", notes{revisionAnnotation: "1", cause: "a"}, false},
		{"an empty value is handed down too", notes{cause: ""}, notes{revisionAnnotation: "1"}, "", notes{revisionAnnotation: "1", cause: ""}, true},
		{"what the deployment no longer has stays", nil, notes{revisionAnnotation: "1", cause: "a"}, "", notes{revisionAnnotation: "1", cause: "a"}, false},
		{"what is the controller's own is not", notes{revisionAnnotation: "9", desiredReplicasAnnotation: "9", corev1.LastAppliedConfigAnnotation: "{}", appsv1.DeprecatedRollbackTo: "1"}, notes{revisionAnnotation: "1"}, "", notes{revisionAnnotation: "1"}, false},
		{"a revision nobody can read is left, and nothing is written", notes{cause: "b"}, notes{revisionAnnotation: "x", cause: "a"}, "4", notes{revisionAnnotation: "x", cause: "b"}, false},
	} {
		d := aDeployment(1, func(d *appsv1.Deployment) { d.Annotations = test.deployment })
		r := &rollout{deploymentView: deploymentView{deployment: d}}
		if test.highest != "" {
			r.old = []*appsv1.ReplicaSet{setOf(d, 1, 0, 0, noted(revisionAnnotation, test.highest))}
		}
		set := setOf(d, 2, 1, 1, func(s *appsv1.ReplicaSet) {
			if s.Annotations = maps.Clone(test.set); s.Annotations == nil {
				s.Annotations = map[string]string{}
			}
		})
		if changed := r.annotate(set); changed != test.changed || !maps.Equal(set.Annotations, test.want) {
			t.Errorf("%s: changed %v, %v, want %v", test.what, changed, set.Annotations, test.want)
		}
	}
}

func TestHistoryHasAnEnd(t *testing.T) {
	join := func(n int, word string) string { return strings.TrimSuffix(strings.Repeat(word+",", n), ",") }
	for _, test := range []struct {
		what, history, revision, want string
	}{
		{"none yet", "", "3", "3"},
		{"one more", "1", "3", "1,3"},
		{"one that was there before", "1,3", "1", "1,3,1"},
		{"just full", join(199, "123456789"), "12345678", join(199, "123456789") + ",12345678"},
		{"full to the last character", join(199, "123456789"), "123456789", join(200, "123456789")},
		{"one too long: the oldest goes", join(199, "123456789"), "12345678901", join(198, "123456789") + ",12345678901"},
		{"several go for a long one", join(666, "12"), "1234567890", join(663, "12") + ",1234567890"},
	} {
		set := aSet(1, func(s *appsv1.ReplicaSet) { s.Annotations = map[string]string{revisionHistoryAnnotation: test.history} })
		appendRevisionHistory(set, test.revision)
		got := set.Annotations[revisionHistoryAnnotation]
		if got != test.want || len(got) > maxRevisionHistoryChars {
			t.Errorf("%s: %d characters, %.40s…", test.what, len(got), got)
		}
	}
}

func TestEnsureCurrent(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "replicasets"}, "x", nil)
	exists := apierrors.NewAlreadyExists(schema.GroupResource{Resource: "replicasets"}, "x")
	patient := func(d *appsv1.Deployment) { d.Spec.ProgressDeadlineSeconds = nil }
	endless := func(d *appsv1.Deployment) { d.Spec.ProgressDeadlineSeconds = new(int32(math.MaxInt32)) }
	refused := func(err error) controller.ApplyResult {
		return controller.ApplyResult{Err: &controller.WriteError{Verb: controller.Create, Object: aSet(1), Err: err}}
	}
	created := controller.ApplyResult{Written: []kindObject{&appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: newName(aDeployment(1))}}}}
	quoted := fmt.Sprintf("%q", newName(aDeployment(1)))
	for _, test := range []struct {
		what     string
		d        *appsv1.Deployment
		outcome  controller.ApplyResult
		want     string // the condition
		revision string
	}{
		{"created", aDeployment(1), created, "Progressing True NewReplicaSetCreated: Created new replica set " + quoted, "1"},
		{"created, nobody asks for progress", aDeployment(1, patient), created, "", "1"},
		{"created, with a deadline that is none", aDeployment(1, endless), created, "", "1"},
		{"refused", aDeployment(1), refused(forbidden), "Progressing False ReplicaSetCreateError: Failed to create new replica set " + quoted + ": " + forbidden.Error(), ""},
		{"refused, nobody asks for progress", aDeployment(1, patient), refused(forbidden), "", ""},
		{"there already, behind a cache that lags", aDeployment(1), refused(exists), "", ""},
		{"in a namespace that ends", aDeployment(1), controller.ApplyResult{}, "", ""},
		{"an adoption failed before", aDeployment(1), refusal(controller.Patch, aSet(1), "conflict"), "", ""},
		{"refused again: the condition stands", aDeployment(1, func(d *appsv1.Deployment) {
			d.Status.Conditions = []appsv1.DeploymentCondition{{Type: appsv1.DeploymentProgressing, Status: "False", Reason: "ReplicaSetCreateError", Message: "before"}}
		}), refused(forbidden), "", ""},
	} {
		changed := syncPlan(test.d).Status(test.outcome)
		got, revision := "", ""
		if changed != nil {
			after := changed.(*appsv1.Deployment)
			revision = after.Annotations[revisionAnnotation]
			for _, c := range after.Status.Conditions {
				got = fmt.Sprintf("%s %s %s: %s", c.Type, c.Status, c.Reason, c.Message)
			}
		}
		expect(t, test.what, got, test.want)
		if revision != test.revision {
			t.Errorf("%s: revision %q, want %q", test.what, revision, test.revision)
		}
	}
	// What is reported when a creation fails; a set that is there already is no news.
	write := syncPlan(aDeployment(2)).Steps[0].Writes[0]
	if write.FailureEvent.Reason != "ReplicaSetCreateError" || write.FailureEvent.Type != corev1.EventTypeWarning || write.FailureEvent.Message != fmt.Sprintf("Failed to create new replica set %q: %%s", newName(aDeployment(2))) ||
		len(write.NoEvent) != 1 || write.NoEvent[0] != metav1.StatusReasonAlreadyExists {
		t.Errorf("%+v", write)
	}
	if empty := syncPlan(aDeployment(0)).Steps[0].Writes[0]; empty.SuccessEvent != nil {
		t.Errorf("a set of no pods is told as scaled: %+v", empty.SuccessEvent)
	}
}

func TestCollisions(t *testing.T) {
	counted := func(n int32) change[*appsv1.Deployment] {
		return func(d *appsv1.Deployment) { d.Status.CollisionCount = &n }
	}
	for _, test := range []struct {
		what     string
		d        *appsv1.Deployment
		namesake *appsv1.ReplicaSet
		want     string
		count    int32
	}{
		{"another deployment's set", aDeployment(1), setOf(aDeployment(1), 2, 1, 1, func(s *appsv1.ReplicaSet) { s.OwnerReferences[0].UID = "other" }), "", 1},
		{"nobody's", aDeployment(1), setOf(aDeployment(1), 2, 1, 1, func(s *appsv1.ReplicaSet) { s.OwnerReferences, s.Labels = nil, nil }), "", 1},
		{"its own of another template", aDeployment(1), setOf(aDeployment(1), 1, 1, 1, func(s *appsv1.ReplicaSet) { s.Labels = nil }), "", 1},
		{"a second time", aDeployment(1, counted(1)), setOf(aDeployment(1), 1, 1, 1, func(s *appsv1.ReplicaSet) { s.Labels = nil }), "", 2},
		{"counted, but free now", aDeployment(1, counted(3)), nil, "create ReplicaSet " + newName(aDeployment(1, counted(3))) + " size 1", 3},
	} {
		plan := deploymentView{deployment: test.d, setOfSameName: test.namesake, now: now}.reconcile()
		expect(t, test.what, told(withoutTimer(plan)), test.want)
		result := controller.ApplyResult{Written: []kindObject{&appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: newName(test.d)}}}}
		if got := plan.Status(result).(*appsv1.Deployment).Status.CollisionCount; got == nil || *got != test.count {
			t.Errorf("%s: %v collisions", test.what, got)
		}
	}
	names := map[string]bool{}
	for n := range int32(100) {
		names[newName(aDeployment(1, counted(n)))] = true
	}
	if names[newName(aDeployment(1))] = true; len(names) != 101 {
		t.Errorf("%d names for 101 counts", len(names))
	}
}

// TestNoteRevision: what is written of the current set and of the deployment when a set is found.
func TestNoteRevision(t *testing.T) {
	d := aDeployment(1, progressing("ReplicaSetUpdated", time.Minute), func(d *appsv1.Deployment) { d.Annotations = map[string]string{revisionAnnotation: "2"} })
	for _, test := range []struct {
		what     string
		d        *appsv1.Deployment
		set      change[*appsv1.ReplicaSet]
		writes   string
		revision string
		found    bool
	}{
		{"all is noted", d, func(*appsv1.ReplicaSet) {}, "", "2", false},
		{"the set lacks annotations altogether", d, func(s *appsv1.ReplicaSet) { s.Annotations = nil }, "update ReplicaSet web-2 size 1", "1", false},
		{"the deployment lacks the revision", aDeployment(1, progressing("ReplicaSetUpdated", time.Minute)), func(*appsv1.ReplicaSet) {}, "", "2", false},
		{"the deployment has another", aDeployment(1, progressing("x", 0), func(d *appsv1.Deployment) { d.Annotations = map[string]string{revisionAnnotation: "9"} }), func(*appsv1.ReplicaSet) {}, "", "2", false},
		{"readiness has another delay", with(d.DeepCopy(), func(d *appsv1.Deployment) { d.Spec.MinReadySeconds = 5 }), func(*appsv1.ReplicaSet) {}, "update ReplicaSet web-2 size 1", "2", false},
		{"nothing was reported of progress", aDeployment(1), func(*appsv1.ReplicaSet) {}, "", "2", true},
		{"nothing was reported, nobody asks", aDeployment(1, func(d *appsv1.Deployment) { d.Spec.ProgressDeadlineSeconds = nil }), func(*appsv1.ReplicaSet) {}, "", "2", false},
	} {
		plan := controller.Plan{}
		r := newRollout(deploymentView{deployment: test.d, now: now}, &plan, []*appsv1.ReplicaSet{setOf(test.d, 2, 1, 1, test.set)})
		r.updateRevision()
		plan.AddStep(r.updates()...)
		expect(t, test.what, told(plan), test.writes)
		if r.revision != test.revision {
			t.Errorf("%s: revision %q", test.what, r.revision)
		}
		c := r.condition(appsv1.DeploymentProgressing)
		if found := c != nil && c.Reason == "FoundNewReplicaSet" && c.Status == "True" && c.Message == `Found new replica set "web-2"`; found != test.found {
			t.Errorf("%s: %+v", test.what, c)
		}
	}
}
