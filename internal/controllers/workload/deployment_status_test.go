package workload

import (
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/controller"
)

// statusAfterSync returns the conditions, by type, and the status that a plan writes.
func statusAfterSync(d *appsv1.Deployment, plan controller.Plan) (map[appsv1.DeploymentConditionType]appsv1.DeploymentCondition, appsv1.DeploymentStatus) {
	status := d.Status
	if plan.Status != nil {
		if changed := plan.Status(controller.ApplyResult{}); changed != nil {
			status = changed.(*appsv1.Deployment).Status
		}
	}
	all := map[appsv1.DeploymentConditionType]appsv1.DeploymentCondition{}
	for _, c := range status.Conditions {
		all[c.Type] = c
	}
	return all, status
}

func reported(replicas, updated, ready, available int32) change[*appsv1.Deployment] {
	return func(d *appsv1.Deployment) {
		d.Status.Replicas, d.Status.UpdatedReplicas, d.Status.ReadyReplicas, d.Status.AvailableReplicas = replicas, updated, ready, available
	}
}

func progressingAs(status corev1.ConditionStatus, reason string, age time.Duration) change[*appsv1.Deployment] {
	return func(d *appsv1.Deployment) {
		d.Status.Conditions = append(d.Status.Conditions, appsv1.DeploymentCondition{Type: appsv1.DeploymentProgressing, Status: status, Reason: reason, Message: "before",
			LastUpdateTime: ago(age), LastTransitionTime: ago(2 * age)})
	}
}

func deadlineOf(seconds int32) change[*appsv1.Deployment] {
	return func(d *appsv1.Deployment) { d.Spec.ProgressDeadlineSeconds = &seconds }
}

// TestDeploymentProgress: what the condition says after a sync, with its times, and when the next sync is due.
func TestDeploymentProgress(t *testing.T) {
	const hour = time.Hour
	updated, complete, timedOut := `ReplicaSet "web-2" is progressing.`, `ReplicaSet "web-2" has successfully progressed.`, `ReplicaSet "web-2" has timed out progressing.`
	for _, test := range []struct {
		what               string
		d                  *appsv1.Deployment
		sets               string
		want               string        // status, reason and message
		update, transition time.Duration // how long ago
		again              time.Duration
	}{
		{"complete from progressing: the transition stays", aDeployment(2, progressingAs("True", "ReplicaSetUpdated", time.Minute)), "1:0/0 2:2/2", "True NewReplicaSetAvailable " + complete, 0, 2 * time.Minute, 0},
		{"complete from paused: a transition", aDeployment(2, progressingAs("Unknown", "DeploymentResumed", time.Minute)), "2:2/2", "True NewReplicaSetAvailable " + complete, 0, 0, 0},
		{"complete after a timeout: a transition", aDeployment(2, progressingAs("False", "ProgressDeadlineExceeded", time.Minute)), "2:2/2", "True NewReplicaSetAvailable " + complete, 0, 0, 0},
		{"complete before: nothing is reported again", aDeployment(2, progressingAs("True", "NewReplicaSetAvailable", hour), reported(2, 2, 2, 2)), "2:2/2", "True NewReplicaSetAvailable before", hour, 2 * hour, 0},
		{"complete before, a pod got sick: what was reported stands", aDeployment(2, progressingAs("True", "NewReplicaSetAvailable", hour), reported(2, 2, 2, 2)), "2:2/1", "True NewReplicaSetAvailable before", hour, 2 * hour, time.Second},
		{"complete before, and scaled down since", aDeployment(1, progressingAs("True", "NewReplicaSetAvailable", hour), reported(2, 2, 2, 2)), "2:1/1", "True NewReplicaSetAvailable before", hour, 2 * hour, 0},
		{"complete before, a new rollout moves", aDeployment(2, progressingAs("True", "NewReplicaSetAvailable", hour), reported(2, 0, 2, 2)), "1:2/2 2:1/0", "True ReplicaSetUpdated " + updated, 0, 2 * hour, 10*time.Minute + time.Second},
		{"complete before, a new rollout that does not move is not timed", aDeployment(2, progressingAs("True", "NewReplicaSetAvailable", hour), reported(3, 1, 2, 2)), "1:2/2 2:1/0", "True NewReplicaSetAvailable before", hour, 2 * hour, time.Second},
		{"more new pods", aDeployment(3, progressingAs("True", "ReplicaSetUpdated", 5*time.Minute), reported(3, 1, 3, 3)), "1:2/2 2:2/1", "True ReplicaSetUpdated " + updated, 0, 10 * time.Minute, 10*time.Minute + time.Second},
		{"fewer old pods", aDeployment(3, progressingAs("True", "ReplicaSetUpdated", 5*time.Minute), reported(4, 2, 3, 3)), "1:1/1 2:2/2", "True ReplicaSetUpdated " + updated, 0, 10 * time.Minute, 10*time.Minute + time.Second},
		{"more ready pods", aDeployment(3, progressingAs("True", "ReplicaSetUpdated", 5*time.Minute), reported(4, 2, 2, 3)), "1:2/2 2:2/1", "True ReplicaSetUpdated " + updated, 0, 10 * time.Minute, 10*time.Minute + time.Second},
		{"more available pods", aDeployment(3, progressingAs("True", "ReplicaSetUpdated", 5*time.Minute), reported(4, 2, 3, 2)), "1:2/2 2:2/1", "True ReplicaSetUpdated " + updated, 0, 10 * time.Minute, 10*time.Minute + time.Second},
		{"progress after a timeout: a transition", aDeployment(3, progressingAs("False", "ProgressDeadlineExceeded", hour), reported(3, 1, 3, 3)), "1:2/2 2:2/1", "True ReplicaSetUpdated " + updated, 0, 0, 10*time.Minute + time.Second},
		{"progress after a pause: a transition", aDeployment(3, progressingAs("Unknown", "DeploymentResumed", hour), reported(3, 1, 3, 3)), "1:2/2 2:2/1", "True ReplicaSetUpdated " + updated, 0, 0, 10*time.Minute + time.Second},
		{"no progress: what was reported stands", aDeployment(3, progressingAs("True", "ReplicaSetUpdated", 5*time.Minute), reported(4, 2, 3, 3)), "1:2/2 2:2/1", "True ReplicaSetUpdated before", 5 * time.Minute, 10 * time.Minute, 5*time.Minute + time.Second},
		{"fewer available is no progress", aDeployment(3, progressingAs("True", "ReplicaSetUpdated", 5*time.Minute), reported(4, 2, 4, 4)), "1:2/2 2:2/1", "True ReplicaSetUpdated before", 5 * time.Minute, 10 * time.Minute, 5*time.Minute + time.Second},
		{"exactly at the deadline: not yet", aDeployment(3, progressingAs("True", "ReplicaSetUpdated", 10*time.Minute), reported(4, 2, 3, 3)), "1:2/2 2:2/1", "True ReplicaSetUpdated before", 10 * time.Minute, 20 * time.Minute, time.Second},
		{"a moment past the deadline", aDeployment(3, progressingAs("True", "ReplicaSetUpdated", 10*time.Minute+1), reported(4, 2, 3, 3)), "1:2/2 2:2/1", "False ProgressDeadlineExceeded " + timedOut, 0, 0, 0},
		{"another deadline", aDeployment(3, progressingAs("True", "ReplicaSetUpdated", 31*time.Second), deadlineOf(30), reported(4, 2, 3, 3)), "1:2/2 2:2/1", "False ProgressDeadlineExceeded " + timedOut, 0, 0, 0},
		{"another deadline, ahead", aDeployment(3, progressingAs("True", "ReplicaSetUpdated", 10*time.Second), deadlineOf(30), reported(4, 2, 3, 3)), "1:2/2 2:2/1", "True ReplicaSetUpdated before", 10 * time.Second, 20 * time.Second, 21 * time.Second},
		{"timed out before: nothing is reported again", aDeployment(3, progressingAs("False", "ProgressDeadlineExceeded", hour), reported(4, 2, 3, 3)), "1:2/2 2:2/1", "False ProgressDeadlineExceeded before", hour, 2 * hour, 0},
		{"resumed long ago and stuck", aDeployment(3, progressingAs("Unknown", "DeploymentResumed", hour), reported(4, 2, 3, 3)), "1:2/2 2:2/1", "False ProgressDeadlineExceeded " + timedOut, 0, 0, 0},
		{"a set could not be created, and still moves nothing", aDeployment(3, progressingAs("False", "ReplicaSetCreateError", time.Minute), reported(4, 2, 3, 3)), "1:2/2 2:2/1", "False ReplicaSetCreateError before", time.Minute, 2 * time.Minute, 9*time.Minute + time.Second},
		{"nobody asks for progress", aDeployment(3, progressingAs("True", "ReplicaSetUpdated", hour), func(d *appsv1.Deployment) { d.Spec.ProgressDeadlineSeconds = nil }), "1:2/2 2:2/1", "", 0, 0, 0},
		{"a deadline that is none", aDeployment(3, progressingAs("True", "ReplicaSetUpdated", hour), deadlineOf(math.MaxInt32)), "1:2/2 2:2/1", "", 0, 0, 0},
		{"paused: only that is reported", aDeployment(3, paused, progressingAs("True", "ReplicaSetUpdated", hour)), "1:2/2 2:2/1", "Unknown DeploymentPaused Deployment is paused", 0, 0, 0},
		{"paused before: it stands", aDeployment(3, paused, progressingAs("Unknown", "DeploymentPaused", hour)), "1:2/2 2:2/1", "Unknown DeploymentPaused before", hour, 2 * hour, 0},
		{"paused after a timeout: the timeout stands", aDeployment(3, paused, progressingAs("False", "ProgressDeadlineExceeded", hour)), "1:2/2 2:2/1", "False ProgressDeadlineExceeded before", hour, 2 * hour, 0},
		{"paused, and nobody asks for progress", aDeployment(3, paused, func(d *appsv1.Deployment) { d.Spec.ProgressDeadlineSeconds = nil }), "1:2/2 2:2/1", "", 0, 0, 0},
		{"resumed: the transition stays unknown", aDeployment(3, progressingAs("Unknown", "DeploymentPaused", hour), reported(4, 2, 3, 3)), "1:2/2 2:2/1", "Unknown DeploymentResumed Deployment is resumed", 0, 2 * hour, 10*time.Minute + time.Second},
		{"a leaving deployment is not checked", aDeployment(3, progressingAs("True", "ReplicaSetUpdated", hour), func(d *appsv1.Deployment) { gone(d) }), "1:2/2 2:2/1", "True ReplicaSetUpdated before", hour, 2 * hour, 0},
		{"one that is scaled is not checked", aDeployment(3, progressingAs("True", "ReplicaSetUpdated", hour), reported(4, 2, 3, 3)), "1:2/2@4 2:2/1@4", "True ReplicaSetUpdated before", hour, 2 * hour, 0},
	} {
		plan := syncPlan(test.d, setsOf(test.d, test.sets)...)
		conditions, _ := statusAfterSync(test.d, plan)
		c, ok := conditions[appsv1.DeploymentProgressing]
		got := ""
		if ok {
			got = fmt.Sprintf("%s %s %s", c.Status, c.Reason, c.Message)
			if c.LastUpdateTime.Time.Equal(now.Add(-test.update)) != true || !c.LastTransitionTime.Time.Equal(now.Add(-test.transition)) {
				t.Errorf("%s: updated %v ago, changed %v ago", test.what, now.Sub(c.LastUpdateTime.Time), now.Sub(c.LastTransitionTime.Time))
			}
		}
		expect(t, test.what, got, test.want)
		if plan.RequeueAfter != test.again {
			t.Errorf("%s: again after %v, want %v", test.what, plan.RequeueAfter, test.again)
		}
	}
}

func TestDeploymentCounts(t *testing.T) {
	type counts struct{ replicas, updated, ready, available, unavailable int32 }
	for _, test := range []struct {
		what string
		d    *appsv1.Deployment
		sets string
		want counts
		full bool // whether it says that enough pods are available
	}{
		{"one set, all there", aDeployment(3), "2:3/3", counts{3, 3, 3, 3, 0}, true},
		{"one set, one missing of leeway one", aDeployment(3), "2:3/2", counts{3, 3, 2, 2, 1}, true},
		{"one set, two missing of leeway one", aDeployment(3), "2:3/1", counts{3, 3, 1, 1, 2}, false},
		{"no leeway", aDeployment(3, bounds("1", "0")), "2:3/2", counts{3, 3, 2, 2, 1}, false},
		{"none wanted", aDeployment(0), "2:0/0", counts{}, true},
		{"old and new add up", aDeployment(5), "1:3/3 2:2/1", counts{5, 2, 4, 4, 1}, true},
		{"only old ones", aDeployment(5, paused), "1:5/5", counts{5, 0, 5, 5, 0}, true},
		{"recreating knows no leeway", aDeployment(3, recreating), "2:3/2", counts{3, 3, 2, 2, 1}, false},
		{"everything may be missing", aDeployment(3, bounds("0", "100%")), "2:3/0", counts{3, 3, 0, 0, 3}, true},
		{"more available than there should be", aDeployment(3), "2:3/5", counts{3, 3, 5, 5, 0}, true},
		{"what this sync scales is not counted yet", aDeployment(4), "2:2/1@2", counts{2, 2, 1, 1, 1}, false},
		{"three sets", aDeployment(9), "0:2/1 1:3/2 2:4/3", counts{9, 4, 6, 6, 3}, false},
	} {
		_, status := statusAfterSync(test.d, syncPlan(test.d, setsOf(test.d, test.sets)...))
		got := counts{status.Replicas, status.UpdatedReplicas, status.ReadyReplicas, status.AvailableReplicas, status.UnavailableReplicas}
		if got != test.want {
			t.Errorf("%s: %+v, want %+v", test.what, got, test.want)
		}
		conditions, _ := statusAfterSync(test.d, syncPlan(test.d, setsOf(test.d, test.sets)...))
		want := "False MinimumReplicasUnavailable Deployment does not have minimum availability."
		if test.full {
			want = "True MinimumReplicasAvailable Deployment has minimum availability."
		}
		c := conditions[appsv1.DeploymentAvailable]
		expect(t, test.what, fmt.Sprintf("%s %s %s", c.Status, c.Reason, c.Message), want)
		if status.ObservedGeneration != 2 {
			t.Errorf("%s: generation %d", test.what, status.ObservedGeneration)
		}
	}
}

// TestTerminatingReplicas: the sum is only known when every set that was looked at counts.
func TestTerminatingReplicas(t *testing.T) {
	const none = -1
	for _, test := range []struct {
		what     string
		counts   []int32 // of each set; none: it does not count
		observed []int64
		want     int32
	}{
		{"no sets", nil, nil, 0},
		{"one", []int32{2}, []int64{1}, 2},
		{"several", []int32{2, 0, 3}, []int64{1, 1, 1}, 5},
		{"one that does not count", []int32{2, none}, []int64{1, 1}, none},
		{"one that nobody has looked at yet", []int32{2, none}, []int64{1, 0}, 2},
		{"all of them new", []int32{none, none}, []int64{0, 0}, 0},
		{"new, but counting", []int32{2, 1}, []int64{0, 0}, 3},
	} {
		d := aDeployment(0)
		var sets []*appsv1.ReplicaSet
		for i, n := range test.counts {
			set := setOf(d, i, 0, 0)
			if set.Status.ObservedGeneration, set.Status.TerminatingReplicas = test.observed[i], nil; n != none {
				set.Status.TerminatingReplicas = &n
			}
			sets = append(sets, set)
		}
		status := (&rollout{deploymentView: deploymentView{deployment: d, now: now}, old: sets}).calculateStatus()
		got := int32(none)
		if status.TerminatingReplicas != nil {
			got = *status.TerminatingReplicas
		}
		if got != test.want {
			t.Errorf("%s: %d, want %d", test.what, got, test.want)
		}
	}
}

func TestReplicaFailures(t *testing.T) {
	failing := func(reason string, status corev1.ConditionStatus) []appsv1.ReplicaSetCondition {
		return []appsv1.ReplicaSetCondition{{Type: "Other"}, {Type: appsv1.ReplicaSetReplicaFailure, Status: status, Reason: reason, Message: reason + " happened", LastTransitionTime: ago(time.Minute)}}
	}
	for _, test := range []struct {
		what      string
		old, next []appsv1.ReplicaSetCondition
		was       []appsv1.DeploymentCondition
		want      string
	}{
		{"nothing fails", nil, nil, nil, ""},
		{"other conditions are none of ours", []appsv1.ReplicaSetCondition{{Type: "Other", Status: "True"}}, nil, nil, ""},
		{"the new set fails", nil, failing("FailedCreate", "True"), nil, "True FailedCreate FailedCreate happened"},
		{"an old set fails", failing("FailedDelete", "True"), nil, nil, "True FailedDelete FailedDelete happened"},
		{"both fail: the new one counts", failing("FailedDelete", "True"), failing("FailedCreate", "True"), nil, "True FailedCreate FailedCreate happened"},
		{"a condition that is false is handed on", nil, failing("FailedCreate", "False"), nil, "False FailedCreate FailedCreate happened"},
		{"it failed before in the same way: what was reported stands", nil, failing("FailedCreate", "True"), []appsv1.DeploymentCondition{{Type: appsv1.DeploymentReplicaFailure, Status: "True", Reason: "FailedCreate", Message: "before", LastUpdateTime: ago(time.Minute), LastTransitionTime: ago(time.Minute)}}, "True FailedCreate before"},
		{"it failed before in another way", nil, failing("FailedCreate", "True"), []appsv1.DeploymentCondition{{Type: appsv1.DeploymentReplicaFailure, Status: "True", Reason: "FailedDelete", LastTransitionTime: ago(time.Minute)}}, "True FailedCreate FailedCreate happened"},
		{"it fails no more", nil, nil, []appsv1.DeploymentCondition{{Type: appsv1.DeploymentReplicaFailure, Status: "True", Reason: "FailedCreate"}}, ""},
	} {
		d := aDeployment(3, func(d *appsv1.Deployment) { d.Status.Conditions = test.was })
		sets := setsOf(d, "1:1/1 2:3/2")
		sets[0].Status.Conditions, sets[1].Status.Conditions = test.old, test.next
		conditions, _ := statusAfterSync(d, syncPlan(d, sets...))
		got := ""
		if c, ok := conditions[appsv1.DeploymentReplicaFailure]; ok {
			got = fmt.Sprintf("%s %s %s", c.Status, c.Reason, c.Message)
			if !c.LastTransitionTime.Time.Equal(now.Add(-time.Minute)) || !c.LastUpdateTime.Time.Equal(now.Add(-time.Minute)) {
				t.Errorf("%s: since %v, updated %v", test.what, c.LastTransitionTime, c.LastUpdateTime)
			}
		}
		expect(t, test.what, got, test.want)
	}
}

func TestComplete(t *testing.T) {
	status := func(updated, replicas, available int32, observed int64) appsv1.DeploymentStatus {
		return appsv1.DeploymentStatus{UpdatedReplicas: updated, Replicas: replicas, AvailableReplicas: available, ObservedGeneration: observed}
	}
	for _, test := range []struct {
		what   string
		status appsv1.DeploymentStatus
		want   bool
	}{
		{"all", status(3, 3, 3, 2), true},
		{"all, and ahead", status(3, 3, 3, 3), true},
		{"seen too early", status(3, 3, 3, 1), false},
		{"not all new", status(2, 3, 3, 2), false},
		{"an old one left", status(3, 4, 3, 2), false},
		{"one missing", status(3, 2, 3, 2), false},
		{"not all available", status(3, 3, 2, 2), false},
		{"more available than wanted", status(3, 3, 4, 2), false},
		{"more new than wanted", status(4, 3, 3, 2), false},
		{"nothing", status(0, 0, 0, 2), false},
	} {
		if got := complete(aDeployment(3), &test.status); got != test.want {
			t.Errorf("%s: %v", test.what, got)
		}
	}
	none := status(0, 0, 0, 2)
	if !complete(aDeployment(0), &none) {
		t.Error("nothing wanted, nothing there: not complete")
	}
}

// TestPutCondition: a condition is replaced when its status or reason changes; the time of transition belongs to the status.
func TestPutCondition(t *testing.T) {
	was := appsv1.DeploymentCondition{Type: appsv1.DeploymentAvailable, Status: "True", Reason: "A", Message: "was", LastUpdateTime: ago(time.Hour), LastTransitionTime: ago(2 * time.Hour)}
	for _, test := range []struct {
		what            string
		status          corev1.ConditionStatus
		reason, message string
		want            appsv1.DeploymentCondition
	}{
		{"the same", "True", "A", "was", was},
		{"another message only", "True", "A", "is", was},
		{"another reason", "True", "B", "is", appsv1.DeploymentCondition{Type: appsv1.DeploymentAvailable, Status: "True", Reason: "B", Message: "is", LastUpdateTime: ago(0), LastTransitionTime: ago(2 * time.Hour)}},
		{"another status", "False", "A", "is", appsv1.DeploymentCondition{Type: appsv1.DeploymentAvailable, Status: "False", Reason: "A", Message: "is", LastUpdateTime: ago(0), LastTransitionTime: ago(0)}},
	} {
		r := &rollout{deploymentView: deploymentView{now: now}, conditions: []appsv1.DeploymentCondition{{Type: "First"}, was, {Type: "Last"}}}
		r.setCondition(appsv1.DeploymentAvailable, test.status, test.reason, test.message)
		if len(r.conditions) != 3 {
			t.Errorf("%s: %d conditions", test.what, len(r.conditions))
		}
		same(t, test.what, *r.condition(appsv1.DeploymentAvailable), test.want)
	}
	r := &rollout{deploymentView: deploymentView{now: now}}
	r.setCondition(appsv1.DeploymentAvailable, "True", "A", "is")
	same(t, "the first", r.conditions, []appsv1.DeploymentCondition{{Type: appsv1.DeploymentAvailable, Status: "True", Reason: "A", Message: "is", LastUpdateTime: ago(0), LastTransitionTime: ago(0)}})
	r.removeCondition("Other")
	r.removeCondition(appsv1.DeploymentAvailable)
	if len(r.conditions) != 0 || r.condition(appsv1.DeploymentAvailable) != nil {
		t.Errorf("%+v", r.conditions)
	}
}

// TestDeploymentWrites: the status is written when something in it or the revision changed, and not after a step that failed.
func TestDeploymentWrites(t *testing.T) {
	settled := aDeployment(2)
	for range 3 {
		if changed := syncPlan(settled, setsOf(settled, "2:2/2")...).Status(controller.ApplyResult{}); changed != nil {
			settled = changed.(*appsv1.Deployment)
		}
	}
	for _, test := range []struct {
		what    string
		edit    change[*appsv1.Deployment]
		sets    string
		outcome controller.ApplyResult
		written bool
	}{
		{"nothing changed", func(*appsv1.Deployment) {}, "2:2/2", controller.ApplyResult{}, false},
		{"another generation", func(d *appsv1.Deployment) { d.Generation++ }, "2:2/2", controller.ApplyResult{}, true},
		{"another count", func(*appsv1.Deployment) {}, "2:2/1", controller.ApplyResult{}, true},
		{"the revision is not noted", func(d *appsv1.Deployment) { d.Annotations = map[string]string{"other": "1"} }, "2:2/2", controller.ApplyResult{}, true},
		{"the revision is wrong", func(d *appsv1.Deployment) { d.Annotations = map[string]string{revisionAnnotation: "7"} }, "2:2/2", controller.ApplyResult{}, true},
		{"a condition is missing", func(d *appsv1.Deployment) { d.Status.Conditions = d.Status.Conditions[:1] }, "2:2/2", controller.ApplyResult{}, true},
		{"another count, but a step failed", func(*appsv1.Deployment) {}, "2:2/1", controller.ApplyResult{Err: errors.New("conflict")}, false},
	} {
		d := with(settled.DeepCopy(), test.edit)
		before := d.DeepCopy()
		changed := syncPlan(d, setsOf(d, test.sets)...).Status(test.outcome)
		if (changed != nil) != test.written {
			t.Errorf("%s: written %v", test.what, changed)
		}
		same(t, test.what+", the shared object", d, before)
		if changed != nil && changed.GetAnnotations()[revisionAnnotation] != "2" {
			t.Errorf("%s: annotations %v", test.what, changed.GetAnnotations())
		}
	}
	if got := settled.Status.Conditions[0].LastUpdateTime; !got.Equal(&metav1.Time{Time: now}) {
		t.Errorf("updated %v", got)
	}
}
