package workload

import (
	"fmt"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ended are containers that exited: "web" 1 is the main one with code 1.
func ended(named ...any) (all []corev1.ContainerStatus) {
	for i := 0; i < len(named); i += 2 {
		all = append(all, corev1.ContainerStatus{Name: named[i].(string), State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: int32(named[i+1].(int)), FinishedAt: ago(time.Minute)}}})
	}
	return all
}

func withStatuses(containers, inits []corev1.ContainerStatus) change[*corev1.Pod] {
	return func(p *corev1.Pod) { p.Status.ContainerStatuses, p.Status.InitContainerStatuses = containers, inits }
}

func TestFailureRules(t *testing.T) {
	code := func(action batchv1.PodFailurePolicyAction, op batchv1.PodFailurePolicyOnExitCodesOperator, container string, values ...int32) batchv1.PodFailurePolicyRule {
		rule := batchv1.PodFailurePolicyRule{Action: action, OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{Operator: op, Values: values}}
		if container != "" {
			rule.OnExitCodes.ContainerName = &container
		}
		return rule
	}
	on := func(action batchv1.PodFailurePolicyAction, patterns ...batchv1.PodFailurePolicyOnPodConditionsPattern) batchv1.PodFailurePolicyRule {
		return batchv1.PodFailurePolicyRule{Action: action, OnPodConditions: patterns}
	}
	pattern := func(kind corev1.PodConditionType, status corev1.ConditionStatus) batchv1.PodFailurePolicyOnPodConditionsPattern {
		return batchv1.PodFailurePolicyOnPodConditionsPattern{Type: kind, Status: status}
	}
	running := corev1.ContainerStatus{Name: "web", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}
	message := func(container string, exit int, index int) string {
		return fmt.Sprintf("Container %s for pod default/a failed with exit code %d matching FailJob rule at index %d", container, exit, index)
	}
	rules := func(all ...batchv1.PodFailurePolicyRule) []batchv1.PodFailurePolicyRule { return all }
	for _, test := range []struct {
		what   string
		rules  []batchv1.PodFailurePolicyRule
		pod    change[*corev1.Pod]
		action batchv1.PodFailurePolicyAction
		reason string
		counts bool
	}{
		{"no rules", nil, withStatuses(ended("web", 1), nil), "", "", true},
		{"a code that is listed", rules(code("FailJob", "In", "", 1, 42)), withStatuses(ended("web", 42), nil), "FailJob", message("web", 42, 0), true},
		{"a code that is not", rules(code("FailJob", "In", "", 1, 42)), withStatuses(ended("web", 2), nil), "", "", true},
		{"not one of these", rules(code("FailJob", "NotIn", "", 1, 42)), withStatuses(ended("web", 2), nil), "FailJob", message("web", 2, 0), true},
		{"not one of these, but it is", rules(code("FailJob", "NotIn", "", 1, 42)), withStatuses(ended("web", 42), nil), "", "", true},
		{"zero is never not one of these", rules(code("FailJob", "NotIn", "", 1)), withStatuses(ended("web", 0), nil), "", "", true},
		{"zero is never one of these", rules(code("FailJob", "In", "", 0)), withStatuses(ended("web", 0), nil), "", "", true},
		{"an operator nobody knows", rules(code("FailJob", "Odd", "", 1)), withStatuses(ended("web", 1), nil), "", "", true},
		{"of a named container", rules(code("FailJob", "In", "side", 1)), withStatuses(ended("web", 2, "side", 1), nil), "FailJob", message("side", 1, 0), true},
		{"of another container", rules(code("FailJob", "In", "side", 1)), withStatuses(ended("web", 1, "side", 2), nil), "", "", true},
		{"of the first that matches", rules(code("FailJob", "In", "", 1)), withStatuses(ended("web", 2, "side", 1, "third", 1), nil), "FailJob", message("side", 1, 0), true},
		{"of an init container", rules(code("FailJob", "In", "", 1)), withStatuses(nil, ended("init", 1)), "FailJob", message("init", 1, 0), true},
		{"of a container before an init container", rules(code("FailJob", "In", "", 1, 2)), withStatuses(ended("web", 2), ended("init", 1)), "FailJob", message("web", 2, 0), true},
		{"of a named init container", rules(code("Ignore", "In", "init", 1)), withStatuses(ended("web", 1), ended("init", 1)), "Ignore", "", false},
		{"of a container that still runs", rules(code("FailJob", "NotIn", "", 5)), withStatuses([]corev1.ContainerStatus{running}, nil), "", "", true},
		{"nothing is known of containers", rules(code("FailJob", "NotIn", "", 5)), withStatuses(nil, nil), "", "", true},
		{"ignored", rules(code("Ignore", "In", "", 1)), withStatuses(ended("web", 1), nil), "Ignore", "", false},
		{"counted", rules(code("Count", "In", "", 1)), withStatuses(ended("web", 1), nil), "Count", "", true},
		{"the index fails", rules(code("FailIndex", "In", "", 1)), withStatuses(ended("web", 1), nil), "FailIndex", "", true},
		{"the first rule decides", rules(code("Count", "In", "", 1), code("FailJob", "In", "", 1)), withStatuses(ended("web", 1), nil), "Count", "", true},
		{"the second rule decides where the first does not match", rules(code("Ignore", "In", "", 9), code("FailJob", "In", "", 1)), withStatuses(ended("web", 1), nil), "FailJob", message("web", 1, 1), true},
		{"a condition", rules(on("FailJob", pattern(corev1.DisruptionTarget, "True"))), conditioned(corev1.DisruptionTarget, "True", 0), "FailJob", "Pod default/a has condition DisruptionTarget matching FailJob rule at index 0", true},
		{"a condition of another status", rules(on("FailJob", pattern(corev1.DisruptionTarget, "True"))), conditioned(corev1.DisruptionTarget, "False", 0), "", "", true},
		{"a condition that should be false", rules(on("Ignore", pattern("Custom", "False"))), conditioned("Custom", "False", 0), "Ignore", "", false},
		{"a condition that is unknown", rules(on("Ignore", pattern("Custom", "Unknown"))), conditioned("Custom", "Unknown", 0), "Ignore", "", false},
		{"another condition", rules(on("Ignore", pattern("Custom", "True"))), conditioned(corev1.DisruptionTarget, "True", 0), "", "", true},
		{"one of several patterns", rules(on("Ignore", pattern("Custom", "True"), pattern(corev1.DisruptionTarget, "True"))), conditioned(corev1.DisruptionTarget, "True", 0), "Ignore", "", false},
		{"no conditions", rules(on("Ignore", pattern("Custom", "True"))), func(*corev1.Pod) {}, "", "", true},
		{"a code before a condition", rules(code("FailJob", "In", "", 1), on("Ignore", pattern(corev1.DisruptionTarget, "True"))), func(p *corev1.Pod) {
			withStatuses(ended("web", 1), nil)(p)
			conditioned(corev1.DisruptionTarget, "True", 0)(p)
		}, "FailJob", message("web", 1, 0), true},
	} {
		got := matchPodFailurePolicy(&batchv1.PodFailurePolicy{Rules: test.rules}, work("a", corev1.PodFailed, test.pod))
		if got.action != test.action || got.reason != test.reason || got.countsAsFailure() != test.counts {
			t.Errorf("%s: %+v, counts %v", test.what, got, got.countsAsFailure())
		}
	}
	if got := matchPodFailurePolicy(nil, work("a", corev1.PodFailed)); got != (policyMatch{}) || !got.countsAsFailure() {
		t.Errorf("no policy: %+v", got)
	}
}

func TestSuccessRules(t *testing.T) {
	rule := func(indexes string, count int32) batchv1.SuccessPolicyRule {
		r := batchv1.SuccessPolicyRule{}
		if indexes != "" {
			r.SucceededIndexes = &indexes
		}
		if count > 0 {
			r.SucceededCount = &count
		}
		return r
	}
	for _, test := range []struct {
		what  string
		rules []batchv1.SuccessPolicyRule
		done  string
		want  string
	}{
		{"nothing is done", []batchv1.SuccessPolicyRule{rule("0-2", 1)}, "", ""},
		{"no rules", nil, "0-9", ""},
		{"a rule that says nothing", []batchv1.SuccessPolicyRule{rule("", 0)}, "0-9", ""},
		{"any one", []batchv1.SuccessPolicyRule{rule("", 1)}, "7", "Matched rules at index 0"},
		{"any three: two", []batchv1.SuccessPolicyRule{rule("", 3)}, "1,7", ""},
		{"any three: three", []batchv1.SuccessPolicyRule{rule("", 3)}, "1,3,7", "Matched rules at index 0"},
		{"any three: four", []batchv1.SuccessPolicyRule{rule("", 3)}, "1-4", "Matched rules at index 0"},
		{"all of these", []batchv1.SuccessPolicyRule{rule("1-3", 0)}, "1-3", "Matched rules at index 0"},
		{"all of these and others", []batchv1.SuccessPolicyRule{rule("1-3", 0)}, "0-9", "Matched rules at index 0"},
		{"not all of these", []batchv1.SuccessPolicyRule{rule("1-3", 0)}, "0,1,3-9", ""},
		{"two of these", []batchv1.SuccessPolicyRule{rule("1-3", 2)}, "1,3", "Matched rules at index 0"},
		{"two of these: one and another", []batchv1.SuccessPolicyRule{rule("1-3", 2)}, "1,7", ""},
		{"of several runs", []batchv1.SuccessPolicyRule{rule("0,2-4,8", 4)}, "0,3,4,8", "Matched rules at index 0"},
		{"more wanted than there are: all are enough", []batchv1.SuccessPolicyRule{rule("1-2", 5)}, "1,2", "Matched rules at index 0"},
		{"the second rule", []batchv1.SuccessPolicyRule{rule("0", 0), rule("5", 0)}, "5", "Matched rules at index 1"},
		{"the first that matches", []batchv1.SuccessPolicyRule{rule("5", 0), rule("", 1)}, "5", "Matched rules at index 0"},
		{"indexes nobody can read", []batchv1.SuccessPolicyRule{rule("x", 1)}, "0-9", ""},
		{"indexes beyond the job", []batchv1.SuccessPolicyRule{rule("20-30", 1)}, "0-9", ""},
		{"partly beyond the job", []batchv1.SuccessPolicyRule{rule("8-30", 0)}, "8,9", "Matched rules at index 0"},
	} {
		message, met := matchSuccessPolicy(&batchv1.SuccessPolicy{Rules: test.rules}, 10, parseIndexes(test.done, 10))
		if message != test.want || met != (test.want != "") {
			t.Errorf("%s: %q, %v", test.what, message, met)
		}
	}
	if _, met := matchSuccessPolicy(nil, 10, parseIndexes("0-9", 10)); met {
		t.Error("no policy is met")
	}
}

func TestJobPodFailed(t *testing.T) {
	for _, test := range []struct {
		phase         corev1.PodPhase
		leaving       bool
		either, ended bool // counted as failed: when failing or leaving, when failed only
	}{
		{corev1.PodPending, false, false, false}, {corev1.PodPending, true, true, false}, {corev1.PodRunning, false, false, false}, {corev1.PodRunning, true, true, false},
		{corev1.PodUnknown, false, false, false}, {corev1.PodUnknown, true, true, false}, {corev1.PodSucceeded, false, false, false}, {corev1.PodSucceeded, true, false, false},
		{corev1.PodFailed, false, true, true}, {corev1.PodFailed, true, true, true}, {"", true, true, false},
	} {
		pod := work("a", test.phase)
		if test.leaving {
			beingDeleted(pod)
		}
		unset := func(j *batchv1.Job) { j.Spec.PodReplacementPolicy = nil }
		if jobPodFailed(pod, aJob()) != test.either || jobPodFailed(pod, aJob(unset)) != test.either || jobPodFailed(pod, aJob(patient)) != test.ended {
			t.Errorf("%q, leaving %v: %v, patiently %v", test.phase, test.leaving, jobPodFailed(pod, aJob()), jobPodFailed(pod, aJob(patient)))
		}
	}
}

func TestPauses(t *testing.T) {
	const s, m = time.Second, time.Minute
	if got := remainingBackoff(0, now, now); got != 0 {
		t.Errorf("no failures: %v", got)
	}
	for i, want := range []time.Duration{10 * s, 20 * s, 40 * s, 80 * s, 160 * s, 320 * s, 10 * m, 10 * m, 10 * m} {
		for _, passed := range []time.Duration{0, 1, want - 1, want, want + 1, time.Hour} {
			if got := remainingBackoff(int32(i+1), now.Add(-passed), now); got != max(0, want-passed) {
				t.Errorf("%d failures, %v passed: %v", i+1, passed, got)
			}
		}
	}
	if got := remainingBackoff(2147483647, now, now); got != 10*m {
		t.Errorf("after the most failures there can be: %v", got)
	}
	if got := remainingBackoff(1, now.Add(time.Minute), now); got != 70*s {
		t.Errorf("a failure in the future: %v", got)
	}
}

func TestEndTime(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	at := func(name string, age time.Duration) corev1.ContainerStatus {
		return corev1.ContainerStatus{Name: name, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: ago(age)}}}
	}
	unknown := corev1.ContainerStatus{Name: "u", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}}
	running := corev1.ContainerStatus{Name: "r", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}
	sidecars := func(names ...string) change[*corev1.Pod] {
		return func(p *corev1.Pod) {
			for _, name := range names {
				p.Spec.InitContainers = append(p.Spec.InitContainers, corev1.Container{Name: name, RestartPolicy: &always})
			}
		}
	}
	grace := func(n int64) change[*corev1.Pod] { return func(p *corev1.Pod) { p.DeletionGracePeriodSeconds = &n } }
	type statuses = []corev1.ContainerStatus
	for _, test := range []struct {
		what string
		pod  *corev1.Pod
		want time.Duration
	}{
		{"the container", aPod("a", withStatuses(statuses{at("a", 5*time.Second)}, nil)), 5 * time.Second},
		{"the last of several containers", aPod("a", withStatuses(statuses{at("a", 5*time.Second), at("b", 2*time.Second), at("c", 9*time.Second)}, nil)), 2 * time.Second},
		{"a sidecar after them", aPod("a", sidecars("s"), withStatuses(statuses{at("a", 5*time.Second)}, statuses{at("s", time.Second)})), time.Second},
		{"a sidecar before them", aPod("a", sidecars("s"), withStatuses(statuses{at("a", 5*time.Second)}, statuses{at("s", 8*time.Second)})), 5 * time.Second},
		{"an init container does not count", aPod("a", withStatuses(statuses{at("a", 5*time.Second)}, statuses{at("i", time.Second)})), 5 * time.Second},
		{"a sidecar alone", aPod("a", sidecars("s"), withStatuses(nil, statuses{at("s", 3*time.Second)})), 3 * time.Second},
		{"one still runs: when it was created", aPod("a", withStatuses(statuses{at("a", 5*time.Second), running}, nil)), time.Hour},
		{"one ended nobody knows when: when it was created", aPod("a", withStatuses(statuses{at("a", 5*time.Second), unknown}, nil)), time.Hour},
		{"one still runs: when it stopped being ready", aPod("a", withStatuses(statuses{running}, nil), conditioned(corev1.PodReady, "False", 7*time.Second)), 7 * time.Second},
		{"ready is no end", aPod("a", conditioned(corev1.PodReady, "True", 7*time.Second)), time.Hour},
		{"not ready, since nobody knows when", aPod("a", conditioned(corev1.PodReady, "False", 0), untimed), time.Hour},
		{"not ready before the deletion", aPod("a", beingDeleted, conditioned(corev1.PodReady, "False", 7*time.Second)), 7 * time.Second},
		{"the deletion, less its grace", aPod("a", beingDeleted, grace(30)), 31 * time.Second},
		{"the deletion without grace", aPod("a", beingDeleted), time.Second},
		{"containers before all else", aPod("a", beingDeleted, grace(30), conditioned(corev1.PodReady, "False", 7*time.Second), withStatuses(statuses{at("a", 5*time.Second)}, nil)), 5 * time.Second},
		{"nothing is known", aPod("a", created(3*time.Minute)), 3 * time.Minute},
	} {
		if got := now.Sub(endTime(test.pod)); got != test.want {
			t.Errorf("%s: %v ago, want %v", test.what, got, test.want)
		}
	}
}

func TestPodNumbers(t *testing.T) {
	for value, want := range map[string]int{"0": 0, "1": 1, "12": 12, "-1": -1, "": -1, "x": -1, "1.0": -1, "99999999999999999999": -1, "007": 7} {
		if got := completionIndex(aPod("a", annotated(batchv1.JobCompletionIndexAnnotation, value))); got != want {
			t.Errorf("index %q is %d, want %d", value, got, want)
		}
	}
	if got := completionIndex(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{}}); got != -1 {
		t.Errorf("no index is %d", got)
	}
	for _, test := range []struct {
		counted, ignored string
		wantC, wantI     int32
	}{{"0", "0", 0, 0}, {"3", "2", 3, 2}, {"x", "2", 0, 2}, {"3", "", 3, 0}, {"-1", "-2", 0, 0}, {"2147483647", "1", 2147483647, 1}, {"2147483648", "1", 0, 1}, {"1.5", "1e1", 0, 0}} {
		pod := aPod("a", annotated(batchv1.JobIndexFailureCountAnnotation, test.counted), annotated(batchv1.JobIndexIgnoredFailureCountAnnotation, test.ignored))
		if c, i := indexFailures(pod); c != test.wantC || i != test.wantI {
			t.Errorf("%q and %q are %d and %d", test.counted, test.ignored, c, i)
		}
	}
	if c, i := indexFailures(aPod("a")); c != 0 || i != 0 {
		t.Errorf("nothing specified is %d and %d", c, i)
	}
}
