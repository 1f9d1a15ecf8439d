package workload

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"skiff/internal/controller"
)

func template(image string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: image}}}}
}

// aDeployment wants size pods of image:2, one more or one less on the way.
func aDeployment(size int32, changes ...change[*appsv1.Deployment]) *appsv1.Deployment {
	return with(&appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "uid-web", Generation: 2},
		Spec: appsv1.DeploymentSpec{
			Replicas: &size, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}, Template: template("image:2"),
			Strategy: appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType, RollingUpdate: &appsv1.RollingUpdateDeployment{
				MaxSurge: new(intstr.FromInt32(1)), MaxUnavailable: new(intstr.FromInt32(1))}},
			ProgressDeadlineSeconds: new(int32(600)), RevisionHistoryLimit: new(int32(10)),
		},
	}, changes...)
}

func fencesOf(surge, unavailable intstr.IntOrString) change[*appsv1.Deployment] {
	return func(d *appsv1.Deployment) {
		d.Spec.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{MaxSurge: &surge, MaxUnavailable: &unavailable}
	}
}

func recreating(d *appsv1.Deployment) {
	d.Spec.Strategy = appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType}
}

func paused(d *appsv1.Deployment) { d.Spec.Paused = true }

func progressing(reason string, age time.Duration) change[*appsv1.Deployment] {
	return func(d *appsv1.Deployment) {
		d.Status.Conditions = append(d.Status.Conditions, appsv1.DeploymentCondition{Type: appsv1.DeploymentProgressing, Status: "True", Reason: reason, LastUpdateTime: ago(age), LastTransitionTime: ago(age)})
	}
}

// setOf is a set of the deployment: revision n runs image:n, has size pods of which some are available.
func setOf(d *appsv1.Deployment, revision int, size, available int32, changes ...change[*appsv1.ReplicaSet]) *appsv1.ReplicaSet {
	desired := ptr.Deref(d.Spec.Replicas, 1)
	return with(&appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("web-%d", revision), UID: types.UID(fmt.Sprint("set-", revision)),
			Labels: map[string]string{"app": "web"}, CreationTimestamp: ago(time.Hour - time.Duration(revision)*time.Minute),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(d, deploymentKind)},
			Annotations: map[string]string{revisionAnnotation: fmt.Sprint(revision), desiredReplicasAnnotation: fmt.Sprint(desired),
				maxReplicasAnnotation: fmt.Sprint(desired + 1)}},
		Spec:   appsv1.ReplicaSetSpec{Replicas: &size, Template: template(fmt.Sprintf("image:%d", revision))},
		Status: appsv1.ReplicaSetStatus{Replicas: size, ReadyReplicas: available, AvailableReplicas: available, TerminatingReplicas: new(int32(0))},
	}, changes...)
}

func noted(key, value string) change[*appsv1.ReplicaSet] {
	return func(s *appsv1.ReplicaSet) { s.Annotations[key] = value }
}

func syncPlan(d *appsv1.Deployment, sets ...*appsv1.ReplicaSet) controller.Plan {
	return deploymentView{deployment: d, sets: sets, now: now}.reconcile()
}

func withoutTimer(plan controller.Plan) controller.Plan { plan.RequeueAfter = 0; return plan }

func newName(d *appsv1.Deployment) string {
	return replicaSetName(d.Name, templateHash(&d.Spec.Template, d.Status.CollisionCount))
}

func TestTemplateHash(t *testing.T) {
	// If these change, every deployment in every cluster is rolled out anew.
	for _, test := range []struct {
		collisions *int32
		want       string
	}{{nil, "6f5dbf7885"}, {new(int32(0)), "676bbbcb5c"}, {new(int32(1)), "cb44495d8"}} {
		tmpl := template("image:2")
		if got := templateHash(&tmpl, test.collisions); got != test.want {
			t.Errorf("collisions %v: hash %s, want %s", test.collisions, got, test.want)
		}
	}
	if got := replicaSetName(strings.Repeat("x", 300), "abc"); len(got) != 253 || !strings.HasSuffix(got, "x-abc") {
		t.Errorf("a long name becomes %d long, %s", len(got), got[240:])
	}
}

func TestRolling(t *testing.T) {
	d := aDeployment(10)
	percent := aDeployment(10, fencesOf(intstr.FromString("25%"), intstr.FromString("25%")))
	careful := aDeployment(10, fencesOf(intstr.FromInt32(1), intstr.FromInt32(0)))
	stuck := aDeployment(10, fencesOf(intstr.FromInt32(0), intstr.FromInt32(0)))
	for _, test := range []struct {
		what string
		d    *appsv1.Deployment
		sets []*appsv1.ReplicaSet
		want string
	}{
		{"first rollout", d, nil, "create ReplicaSet " + newName(d) + " size 10"},
		{"second rollout: as many as surge allows", d, []*appsv1.ReplicaSet{setOf(d, 1, 10, 10)}, "create ReplicaSet " + newName(d) + " size 1"},
		{"percentages: surge rounds up", percent, []*appsv1.ReplicaSet{setOf(percent, 1, 10, 10)}, "create ReplicaSet " + newName(d) + " size 3"},
		{"old pods go as far as availability allows", d, []*appsv1.ReplicaSet{setOf(d, 1, 10, 10), setOf(d, 2, 1, 0)}, "update ReplicaSet web-1 size 9"},
		{"new pods grow into the room", d, []*appsv1.ReplicaSet{setOf(d, 1, 9, 9), setOf(d, 2, 1, 0)}, "update ReplicaSet web-2 size 2"},
		{"nothing may move", d, []*appsv1.ReplicaSet{setOf(d, 1, 9, 9), setOf(d, 2, 2, 0)}, ""},
		{"one came up: one old may go", careful, []*appsv1.ReplicaSet{setOf(careful, 1, 10, 10), setOf(careful, 2, 1, 1)}, "update ReplicaSet web-1 size 9"},
		{"no surge, no leeway: one may be missing all the same", stuck, []*appsv1.ReplicaSet{setOf(stuck, 1, 10, 10), setOf(stuck, 2, 0, 0)}, "update ReplicaSet web-1 size 9"},
		{"sick old pods go first, of the oldest set first", d, []*appsv1.ReplicaSet{setOf(d, 0, 3, 1), setOf(d, 1, 6, 6), setOf(d, 2, 2, 2)}, "update ReplicaSet web-0 size 1"},
		{"sick ones of several sets, and a healthy one", aDeployment(10, fencesOf(intstr.FromInt32(5), intstr.FromInt32(1))),
			[]*appsv1.ReplicaSet{setOf(d, 0, 4, 3), setOf(d, 1, 6, 5), setOf(d, 2, 5, 5)}, "update ReplicaSet web-0 size 0 + update ReplicaSet web-1 size 4"},
		{"the new set alone, too large", d, []*appsv1.ReplicaSet{setOf(d, 2, 12, 12)}, "update ReplicaSet web-2 size 10"},
		{"done", d, []*appsv1.ReplicaSet{setOf(d, 1, 0, 0), setOf(d, 2, 10, 10)}, ""},
		{"back to an old template: it becomes the newest revision", d, []*appsv1.ReplicaSet{setOf(d, 2, 0, 0), setOf(d, 3, 10, 10)}, "update ReplicaSet web-2 size 1"},
		{"an orphan of the template is adopted", d, []*appsv1.ReplicaSet{setOf(d, 2, 10, 10, func(s *appsv1.ReplicaSet) { s.OwnerReferences = nil })}, "patch ReplicaSet web-2 size 10"},
	} {
		expect(t, test.what, told(withoutTimer(syncPlan(test.d, test.sets...))), test.want)
	}
}

func TestNewSet(t *testing.T) {
	d := aDeployment(4, func(d *appsv1.Deployment) {
		d.Annotations = map[string]string{"team": "a", corev1.LastAppliedConfigAnnotation: "x", revisionAnnotation: "7"}
		d.Spec.MinReadySeconds = 9
	})
	plan := syncPlan(d, setOf(d, 1, 4, 4, noted(revisionAnnotation, "7")))
	set := plan.Steps[0].Writes[0].Object.(*appsv1.ReplicaSet)
	hash := set.Labels[appsv1.DefaultDeploymentUniqueLabelKey]
	want := map[string]string{"team": "a", revisionAnnotation: "8", desiredReplicasAnnotation: "4", maxReplicasAnnotation: "5"}
	if fmt.Sprint(set.Annotations) != fmt.Sprint(want) || set.Spec.MinReadySeconds != 9 || hash == "" || set.Name != "web-"+hash ||
		set.Spec.Selector.MatchLabels[appsv1.DefaultDeploymentUniqueLabelKey] != hash || set.Spec.Template.Labels[appsv1.DefaultDeploymentUniqueLabelKey] != hash ||
		set.Spec.Selector.MatchLabels["app"] != "web" || !metav1.IsControlledBy(set, d) {
		t.Errorf("%+v", set)
	}
	if d.Spec.Selector.MatchLabels[appsv1.DefaultDeploymentUniqueLabelKey] != "" || d.Spec.Template.Labels[appsv1.DefaultDeploymentUniqueLabelKey] != "" {
		t.Error("the deployment was changed")
	}
	if got := events(plan); !slices.Equal(got, []string{"ScalingReplicaSet: Scaled up replica set " + set.Name + " from 0 to 1"}) {
		t.Errorf("events %q", got)
	}
	after := plan.Status(controller.ApplyResult{Written: []kindObject{set}}).(*appsv1.Deployment)
	c := after.Status.Conditions[0]
	if after.Annotations[revisionAnnotation] != "8" || d.Annotations[revisionAnnotation] != "7" || c.Reason != "NewReplicaSetCreated" || c.Message != fmt.Sprintf("Created new replica set %q", set.Name) {
		t.Errorf("%+v", after)
	}
	refused := controller.ApplyResult{Err: &controller.WriteError{Verb: controller.Create, Object: set, Err: errors.New("forbidden")}}
	failed := syncPlan(d).Status(refused).(*appsv1.Deployment).Status.Conditions[0]
	if failed.Status != "False" || failed.Reason != "ReplicaSetCreateError" || failed.Message != fmt.Sprintf("Failed to create new replica set %q: forbidden", set.Name) {
		t.Errorf("%+v", failed)
	}
	exists := controller.ApplyResult{Err: &controller.WriteError{Verb: controller.Create, Object: set, Err: apierrors.NewAlreadyExists(schema.GroupResource{}, "x")}}
	if got := syncPlan(d).Status(exists); got != nil {
		t.Errorf("a set the cache has not shown yet is no failure: %+v", got)
	}
	if got := syncPlan(d).Status(controller.ApplyResult{}); got != nil {
		t.Errorf("nothing was created in a namespace that ends, but the status says %+v", got)
	}
}

func TestHashCollision(t *testing.T) {
	d := aDeployment(1)
	foreign := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: newName(d), UID: "foreign"}}
	for want := int32(1); want < 3; want++ {
		plan := deploymentView{deployment: d, setOfSameName: foreign, now: now}.reconcile()
		if len(plan.Steps) != 0 {
			t.Fatalf("%s", told(plan))
		}
		d = plan.Status(controller.ApplyResult{}).(*appsv1.Deployment)
		if *d.Status.CollisionCount != want || newName(d) == foreign.Name {
			t.Errorf("%+v", d.Status)
		}
	}
	own := setOf(d, 2, 1, 1, func(s *appsv1.ReplicaSet) { s.Labels = nil })
	plan := deploymentView{deployment: d, setOfSameName: own, now: now}.reconcile()
	expect(t, "a namesake that is ours", told(withoutTimer(plan)), "")
}

func TestRecreate(t *testing.T) {
	d := aDeployment(3, recreating)
	one, two := setOf(d, 1, 3, 3), setOf(d, 2, 0, 0)
	empty := setOf(d, 1, 0, 0)
	pods := func(p ...*corev1.Pod) map[types.UID][]*corev1.Pod { return map[types.UID][]*corev1.Pod{"set-1": p} }
	for _, test := range []struct {
		what string
		sets []*appsv1.ReplicaSet
		pods map[types.UID][]*corev1.Pod
		want string
	}{
		{"old pods go", []*appsv1.ReplicaSet{one}, nil, "update ReplicaSet web-1 size 0"},
		{"old pods are still counted", []*appsv1.ReplicaSet{setOf(d, 1, 0, 0, func(s *appsv1.ReplicaSet) { s.Status.Replicas = 1 })}, nil, ""},
		{"old pods are leaving", []*appsv1.ReplicaSet{empty}, pods(aPod("a", beingDeleted)), ""},
		{"old pods have ended", []*appsv1.ReplicaSet{empty}, pods(aPod("a", inPhase(corev1.PodFailed))), "create ReplicaSet " + newName(d) + " size 3"},
		{"the new set is there", []*appsv1.ReplicaSet{empty, two}, nil, "update ReplicaSet web-2 size 3"},
		{"done", []*appsv1.ReplicaSet{empty, setOf(d, 2, 3, 3)}, nil, ""},
		{"a rolling update it once was, and scaled since: all old pods go", []*appsv1.ReplicaSet{setOf(d, 0, 2, 2, noted(desiredReplicasAnnotation, "9")), setOf(d, 1, 2, 2, noted(desiredReplicasAnnotation, "9"))}, nil,
			"update ReplicaSet web-0 size 0 + update ReplicaSet web-1 size 0"},
	} {
		plan := deploymentView{deployment: d, sets: test.sets, pods: test.pods, now: now}.reconcile()
		expect(t, test.what, told(withoutTimer(plan)), test.want)
	}
}

func TestScaling(t *testing.T) {
	// from is what the sets were last scaled for.
	from := func(n int32) change[*appsv1.ReplicaSet] {
		return func(s *appsv1.ReplicaSet) {
			s.Annotations[desiredReplicasAnnotation], s.Annotations[maxReplicasAnnotation] = fmt.Sprint(n), fmt.Sprint(n+1)
		}
	}
	d := aDeployment(20)
	for _, test := range []struct {
		what string
		d    *appsv1.Deployment
		sets []*appsv1.ReplicaSet
		want string
	}{
		{"one set", d, []*appsv1.ReplicaSet{setOf(d, 1, 0, 0), setOf(d, 2, 10, 10, from(10))}, "update ReplicaSet web-2 size 20"},
		{"one set, an old one: the rollout does not move", d, []*appsv1.ReplicaSet{setOf(d, 1, 10, 10, from(10)), setOf(d, 2, 0, 0)}, "update ReplicaSet web-1 size 20"},
		{"in the middle of a rollout: shares", d, []*appsv1.ReplicaSet{setOf(d, 1, 6, 6, from(10)), setOf(d, 2, 5, 0, from(10))}, "update ReplicaSet web-1 size 11 + update ReplicaSet web-2 size 10"},
		{"down in the middle of a rollout", aDeployment(5), []*appsv1.ReplicaSet{setOf(d, 1, 6, 6, from(10)), setOf(d, 2, 5, 0, from(10))}, "update ReplicaSet web-1 size 3 + update ReplicaSet web-2 size 3"},
		{"to nothing", aDeployment(0), []*appsv1.ReplicaSet{setOf(d, 1, 6, 6, from(10)), setOf(d, 2, 5, 0, from(10))}, "update ReplicaSet web-1 size 0 + update ReplicaSet web-2 size 0"},
		{"paused in the middle of a rollout: nothing moves, shares are kept", aDeployment(10, paused), []*appsv1.ReplicaSet{setOf(d, 1, 6, 6, from(10)), setOf(d, 2, 5, 0, from(10))}, ""},
		{"paused: a new template gets no set", aDeployment(10, paused), []*appsv1.ReplicaSet{setOf(d, 1, 10, 10, from(10))}, ""},
		{"paused and scaled", aDeployment(12, paused), []*appsv1.ReplicaSet{setOf(d, 1, 10, 10, from(10))}, "update ReplicaSet web-1 size 12"},
		{"paused, the new set has it all: old ones go", aDeployment(4, paused), []*appsv1.ReplicaSet{setOf(d, 1, 2, 2, from(4)), setOf(d, 2, 4, 4, from(4))}, "update ReplicaSet web-1 size 0"},
	} {
		expect(t, test.what, told(withoutTimer(syncPlan(test.d, test.sets...))), test.want)
	}
	plan := syncPlan(aDeployment(20), setOf(d, 2, 10, 10, from(10)))
	if got := events(plan); !slices.Equal(got, []string{"ScalingReplicaSet: Scaled up replica set web-2 from 10 to 20"}) {
		t.Errorf("events %q", got)
	}
	plan = syncPlan(aDeployment(5), setOf(d, 2, 10, 10, from(10)))
	if got := events(plan); !slices.Equal(got, []string{"ScalingReplicaSet: Scaled down replica set web-2 from 10 to 5"}) {
		t.Errorf("events %q", got)
	}
	// Shares always add up to what is allowed.
	for total := int32(1); total < 40; total += 3 {
		sets := []*appsv1.ReplicaSet{setOf(d, 0, 3, 3, from(10)), setOf(d, 1, 3, 3, from(10)), setOf(d, 2, 5, 0, from(10))}
		plan, sum := syncPlan(aDeployment(total), sets...), int32(0)
		sizes := map[string]int32{"web-0": 3, "web-1": 3, "web-2": 5}
		for _, w := range writesOf(plan) {
			sizes[w.Object.GetName()] = *w.Object.(*appsv1.ReplicaSet).Spec.Replicas
		}
		for _, n := range sizes {
			sum += n
		}
		if total != 10 && sum != total+1 {
			t.Errorf("scaled to %d: sizes %v add up to %d", total, sizes, sum)
		}
	}
}

func TestHistoryAndCleanup(t *testing.T) {
	done := func(d *appsv1.Deployment) {
		d.Status = appsv1.DeploymentStatus{Replicas: 2, UpdatedReplicas: 2, AvailableReplicas: 2, ObservedGeneration: 2}
		d.Spec.RevisionHistoryLimit = new(int32(1))
	}
	d := aDeployment(2, done)
	current := setOf(d, 2, 2, 2, noted(revisionAnnotation, "9"))
	for _, test := range []struct {
		what string
		d    *appsv1.Deployment
		sets []*appsv1.ReplicaSet
		want string
	}{
		{"the oldest beyond the limit go", d, []*appsv1.ReplicaSet{setOf(d, 4, 0, 0), setOf(d, 3, 0, 0), setOf(d, 5, 0, 0), current}, "delete ReplicaSet web-3 + delete ReplicaSet web-4"},
		{"one that has pods stays", d, []*appsv1.ReplicaSet{setOf(d, 3, 0, 0, func(s *appsv1.ReplicaSet) { s.Status.Replicas = 1 }), setOf(d, 4, 0, 0), setOf(d, 5, 0, 0), current}, "delete ReplicaSet web-4"},
		{"one that was not looked at stays", d, []*appsv1.ReplicaSet{setOf(d, 3, 0, 0, func(s *appsv1.ReplicaSet) { s.Generation = 1 }), setOf(d, 4, 0, 0), current}, ""},
		{"within the limit", d, []*appsv1.ReplicaSet{setOf(d, 3, 0, 0), current}, ""},
		{"during a rollout all stay", aDeployment(2, done, func(d *appsv1.Deployment) { d.Status.AvailableReplicas = 1 }), []*appsv1.ReplicaSet{setOf(d, 3, 0, 0), setOf(d, 4, 0, 0), current}, ""},
		{"no limit", aDeployment(2, done, func(d *appsv1.Deployment) { d.Spec.RevisionHistoryLimit = new(int32(math.MaxInt32)) }), []*appsv1.ReplicaSet{setOf(d, 3, 0, 0), setOf(d, 4, 0, 0), current}, ""},
		{"paused", aDeployment(2, done, paused), []*appsv1.ReplicaSet{setOf(d, 3, 0, 0), setOf(d, 4, 0, 0), current}, "delete ReplicaSet web-3"},
	} {
		expect(t, test.what, told(withoutTimer(syncPlan(test.d, test.sets...))), test.want)
	}
	plan := syncPlan(d, setOf(d, 2, 2, 2, noted(revisionHistoryAnnotation, "1")), setOf(d, 5, 0, 0))
	renumbered := plan.Steps[0].Writes[0].Object.(*appsv1.ReplicaSet)
	if renumbered.Annotations[revisionAnnotation] != "6" || renumbered.Annotations[revisionHistoryAnnotation] != "1,2" {
		t.Errorf("%v", renumbered.Annotations)
	}
	if got := plan.Status(controller.ApplyResult{}).GetAnnotations()[revisionAnnotation]; got != "6" {
		t.Errorf("the deployment says revision %s", got)
	}
	long := setOf(d, 2, 2, 2, noted(revisionHistoryAnnotation, strings.Repeat("123456789,", 199)+"123456789"))
	appendRevisionHistory(long, "42")
	if history := long.Annotations[revisionHistoryAnnotation]; len(history) > maxRevisionHistoryChars || !strings.HasSuffix(history, ",42") {
		t.Errorf("history of %d characters ends %s", len(history), history[len(history)-10:])
	}
	plan = syncPlan(aDeployment(2, done, func(d *appsv1.Deployment) {
		d.Annotations = map[string]string{"new": "1", revisionAnnotation: "9"}
		d.Spec.MinReadySeconds = 5
	}), current)
	handed := plan.Steps[0].Writes[0].Object.(*appsv1.ReplicaSet)
	if handed.Annotations["new"] != "1" || handed.Spec.MinReadySeconds != 5 {
		t.Errorf("%+v", handed)
	}
}

func TestRollback(t *testing.T) {
	to := func(revision string) change[*appsv1.Deployment] {
		return func(d *appsv1.Deployment) {
			d.Annotations = map[string]string{appsv1.DeprecatedRollbackTo: revision, "mine": "1", revisionAnnotation: "2"}
		}
	}
	for _, test := range []struct {
		what, revision, image, event string
		sets                         int
	}{
		{"to a revision", "1", "image:1", `DeploymentRollback: Rolled back deployment "web" to revision 1`, 2},
		{"to the one before", "0", "image:1", `DeploymentRollback: Rolled back deployment "web" to revision 1`, 2},
		{"to itself", "2", "image:2", `DeploymentRollbackTemplateUnchanged: The rollback revision contains the same template as current deployment "web"`, 2},
		{"to nowhere", "5", "image:2", "DeploymentRollbackRevisionNotFound: Unable to find the revision to rollback to.", 2},
		{"with nothing before", "0", "image:2", "DeploymentRollbackRevisionNotFound: Unable to find last revision.", 1},
	} {
		d := aDeployment(1, to(test.revision))
		sets := []*appsv1.ReplicaSet{setOf(d, 2, 1, 1, noted("mine", "1"), noted(desiredReplicasAnnotation, "1"))}
		if test.sets > 1 {
			sets = append(sets, setOf(d, 1, 0, 0, noted("then", "yes"), func(s *appsv1.ReplicaSet) { s.Spec.Template.Labels[appsv1.DefaultDeploymentUniqueLabelKey] = "x" }))
		}
		plan := syncPlan(d, sets...)
		if got := events(plan); !slices.Equal(got, []string{test.event}) {
			t.Errorf("%s: events %q", test.what, got)
		}
		back := plan.Steps[0].Writes[0].Object.(*appsv1.Deployment)
		if _, still := back.Annotations[appsv1.DeprecatedRollbackTo]; still || back.Spec.Template.Spec.Containers[0].Image != test.image || back.Spec.Template.Labels[appsv1.DefaultDeploymentUniqueLabelKey] != "" {
			t.Errorf("%s: %+v", test.what, back)
		}
		if test.image == "image:1" && (back.Annotations["then"] != "yes" || back.Annotations["mine"] != "" || back.Annotations[revisionAnnotation] != "2") {
			t.Errorf("%s: annotations %v", test.what, back.Annotations)
		}
	}
}

func TestProgress(t *testing.T) {
	was := func(replicas, updated, available int32) change[*appsv1.Deployment] {
		return func(d *appsv1.Deployment) {
			d.Status.Replicas, d.Status.UpdatedReplicas, d.Status.AvailableReplicas, d.Status.ReadyReplicas = replicas, updated, available, available
		}
	}
	failing := func(s *appsv1.ReplicaSet) {
		s.Status.Conditions = []appsv1.ReplicaSetCondition{{Type: appsv1.ReplicaSetReplicaFailure, Status: "True", Reason: "FailedCreate", Message: "quota"}}
	}
	half := func(d *appsv1.Deployment, changes ...change[*appsv1.ReplicaSet]) []*appsv1.ReplicaSet {
		return []*appsv1.ReplicaSet{setOf(d, 1, 1, 1), setOf(d, 2, 2, 1, changes...)}
	}
	done := func(d *appsv1.Deployment) []*appsv1.ReplicaSet { return []*appsv1.ReplicaSet{setOf(d, 2, 2, 2)} }
	for _, test := range []struct {
		what  string
		d     *appsv1.Deployment
		sets  func(*appsv1.Deployment) []*appsv1.ReplicaSet
		want  string // the conditions, status and reason
		again time.Duration
	}{
		{"complete", aDeployment(2, progressing("ReplicaSetUpdated", time.Minute)), done, "Available True MinimumReplicasAvailable; Progressing True NewReplicaSetAvailable", 0},
		{"complete for long", aDeployment(2, progressing("NewReplicaSetAvailable", time.Hour), was(2, 2, 2)), done, "Progressing True NewReplicaSetAvailable; Available True MinimumReplicasAvailable", 0},
		{"what was reported is of another set", aDeployment(2, progressing("NewReplicaSetAvailable", time.Hour), was(2, 2, 2), func(d *appsv1.Deployment) {
			d.Status.Conditions[0].Message = `ReplicaSet "web-before" has successfully progressed.`
		}), done, "Available True MinimumReplicasAvailable; Progressing True NewReplicaSetAvailable", 0},
		{"moved on", aDeployment(2, progressing("ReplicaSetUpdated", 9*time.Minute), was(2, 1, 1)), func(d *appsv1.Deployment) []*appsv1.ReplicaSet { return half(d) },
			"Available True MinimumReplicasAvailable; Progressing True ReplicaSetUpdated", 10*time.Minute + time.Second},
		{"no progress, deadline ahead", aDeployment(2, progressing("ReplicaSetUpdated", 9*time.Minute), was(3, 2, 2)), func(d *appsv1.Deployment) []*appsv1.ReplicaSet { return half(d) },
			"Progressing True ReplicaSetUpdated; Available True MinimumReplicasAvailable", time.Minute + time.Second},
		{"no progress, deadline passed", aDeployment(2, progressing("ReplicaSetUpdated", 11*time.Minute), was(3, 2, 2)), func(d *appsv1.Deployment) []*appsv1.ReplicaSet { return half(d) },
			"Available True MinimumReplicasAvailable; Progressing False ProgressDeadlineExceeded", 0},
		{"a set that fails", aDeployment(2, progressing("ReplicaSetUpdated", time.Minute), was(3, 2, 2)), func(d *appsv1.Deployment) []*appsv1.ReplicaSet { return half(d, failing) },
			"Progressing True ReplicaSetUpdated; Available True MinimumReplicasAvailable; ReplicaFailure True FailedCreate", 9*time.Minute + time.Second},
		{"no deadline, no condition", aDeployment(2, progressing("ReplicaSetUpdated", time.Minute), func(d *appsv1.Deployment) { d.Spec.ProgressDeadlineSeconds = nil }), done, "Available True MinimumReplicasAvailable", 0},
		{"not enough", aDeployment(4, progressing("ReplicaSetUpdated", time.Minute), was(4, 4, 4)), func(d *appsv1.Deployment) []*appsv1.ReplicaSet { return []*appsv1.ReplicaSet{setOf(d, 2, 4, 2)} },
			"Progressing True ReplicaSetUpdated; Available False MinimumReplicasUnavailable", 9*time.Minute + time.Second},
		{"paused", aDeployment(2, paused), done, "Progressing Unknown DeploymentPaused; Available True MinimumReplicasAvailable", 0},
		{"resumed", aDeployment(2, progressing("DeploymentPaused", time.Hour), was(3, 2, 2)), func(d *appsv1.Deployment) []*appsv1.ReplicaSet { return half(d) },
			"Progressing Unknown DeploymentResumed; Available True MinimumReplicasAvailable", 10*time.Minute + time.Second},
		{"paused after it timed out", aDeployment(2, paused, progressing("ProgressDeadlineExceeded", time.Hour)), done, "Progressing True ProgressDeadlineExceeded; Available True MinimumReplicasAvailable", 0},
		{"a set found for the first time", aDeployment(2, was(3, 2, 2)), func(d *appsv1.Deployment) []*appsv1.ReplicaSet { return half(d) },
			"Progressing True FoundNewReplicaSet; Available True MinimumReplicasAvailable", 10*time.Minute + time.Second},
	} {
		plan := syncPlan(test.d, test.sets(test.d)...)
		var words []string
		status := test.d.Status
		if changed := plan.Status(controller.ApplyResult{}); changed != nil {
			status = changed.(*appsv1.Deployment).Status
		}
		for _, c := range status.Conditions {
			words = append(words, fmt.Sprintf("%s %s %s", c.Type, c.Status, c.Reason))
		}
		expect(t, test.what, strings.Join(words, "; "), test.want)
		if plan.RequeueAfter != test.again {
			t.Errorf("%s: again after %v, want %v", test.what, plan.RequeueAfter, test.again)
		}
	}
}

func TestDeploymentStatus(t *testing.T) {
	d := aDeployment(5)
	old, current := setOf(d, 1, 2, 1), setOf(d, 2, 4, 3)
	old.Status.TerminatingReplicas = new(int32(2))
	plan := syncPlan(d, old, current)
	changed := plan.Status(controller.ApplyResult{}).(*appsv1.Deployment)
	s := changed.Status
	if s.Replicas != 6 || s.UpdatedReplicas != 4 || s.ReadyReplicas != 4 || s.AvailableReplicas != 4 || s.UnavailableReplicas != 2 || *s.TerminatingReplicas != 2 || s.ObservedGeneration != 2 {
		t.Errorf("%+v", s)
	}
	if plan.Status(controller.ApplyResult{Err: errors.New("conflict")}) != nil {
		t.Error("a status after a failed step")
	}
	old.Status.TerminatingReplicas, old.Status.ObservedGeneration = nil, 1
	if s := syncPlan(d, old, current).Status(controller.ApplyResult{}).(*appsv1.Deployment).Status; s.TerminatingReplicas != nil {
		t.Errorf("terminating %d, though one set does not count them", *s.TerminatingReplicas)
	}
	gone := aDeployment(5, func(d *appsv1.Deployment) { t := ago(0); d.DeletionTimestamp = &t })
	expect(t, "a leaving deployment only counts", told(syncPlan(gone, setOf(d, 1, 3, 3))), "")
	everything := aDeployment(5, func(d *appsv1.Deployment) { d.Spec.Selector = &metav1.LabelSelector{} })
	if plan := syncPlan(everything); len(plan.Steps) != 0 || plan.Events[0].Reason != "SelectingAll" || plan.Status(controller.ApplyResult{}).(*appsv1.Deployment).Status.ObservedGeneration != 2 {
		t.Errorf("%+v", plan)
	}
}
