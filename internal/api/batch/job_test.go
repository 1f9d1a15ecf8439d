package batch

import (
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"skiff/internal/kind/kindtest"
)

type job = *batchv1.Job

func baseJob() job {
	return &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: "pi", Namespace: "default", UID: "u-1", CreationTimestamp: kindtest.MinutesAgo(9)},
		Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "pi"}},
			Spec: corev1.PodSpec{
				RestartPolicy:  corev1.RestartPolicyNever,
				Containers:     []corev1.Container{{Name: "pi", Image: "perl:5"}},
				InitContainers: []corev1.Container{{Name: "init", Image: "perl:5"}},
			},
		}},
	}
}

// indexed makes a job an indexed one with n completions.
func indexed(n int32, also func(*batchv1.JobSpec)) func(job) {
	return func(j job) {
		j.Spec.CompletionMode, j.Spec.Completions, j.Spec.Parallelism = ptr.To(batchv1.IndexedCompletion), &n, ptr.To[int32](2)
		if also != nil {
			also(&j.Spec)
		}
	}
}

func TestJobDefaults(t *testing.T) {
	stored, _ := kindtest.Create(Job, nil, baseJob())
	spec := &stored.Spec
	if *spec.Completions != 1 || *spec.Parallelism != 1 || *spec.BackoffLimit != 6 || *spec.CompletionMode != "NonIndexed" || *spec.Suspend ||
		*spec.PodReplacementPolicy != "TerminatingOrFailed" || *spec.ManualSelector {
		t.Errorf("defaults %+v", spec)
	}
	elastic, _ := kindtest.Create(Job, nil, kindtest.With(baseJob(), func(j job) {
		j.Spec.Parallelism, j.Spec.BackoffLimitPerIndex = ptr.To[int32](3), ptr.To[int32](1)
		j.Spec.PodFailurePolicy = &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{{OnPodConditions: []batchv1.PodFailurePolicyOnPodConditionsPattern{{Type: "A"}}}}}
	}))
	if elastic.Spec.Completions != nil || *elastic.Spec.BackoffLimit != math.MaxInt32 || *elastic.Spec.PodReplacementPolicy != "Failed" ||
		elastic.Spec.PodFailurePolicy.Rules[0].OnPodConditions[0].Status != "True" {
		t.Errorf("defaults %+v", elastic.Spec)
	}
}

func TestJobSelector(t *testing.T) {
	own := map[string]string{
		"controller-uid": "u-1", "job-name": "pi", "batch.kubernetes.io/controller-uid": "u-1", "batch.kubernetes.io/job-name": "pi", "app": "pi",
	}
	stored, _ := kindtest.Create(Job, nil, baseJob())
	if !maps.Equal(stored.Spec.Template.Labels, own) || !maps.Equal(stored.Labels, own) {
		t.Errorf("labels %v, template's %v", stored.Labels, stored.Spec.Template.Labels)
	}
	if !maps.Equal(stored.Spec.Selector.MatchLabels, map[string]string{"batch.kubernetes.io/controller-uid": "u-1"}) {
		t.Errorf("selector %v", stored.Spec.Selector)
	}
	labeled, _ := kindtest.Create(Job, nil, kindtest.With(baseJob(), func(j job) { j.Labels = map[string]string{"mine": "x"} }))
	if len(labeled.Labels) != 1 {
		t.Errorf("labels %v", labeled.Labels)
	}
	manual, errs := kindtest.Create(Job, nil, kindtest.With(baseJob(), func(j job) {
		j.Spec.ManualSelector, j.Spec.Selector = ptr.To(true), &metav1.LabelSelector{MatchLabels: map[string]string{"app": "pi"}}
	}))
	if len(errs) > 0 || len(manual.Spec.Template.Labels) != 1 {
		t.Errorf("manual selector: %v, %v", errs, manual.Spec.Template.Labels)
	}
}

func TestValidateJob(t *testing.T) {
	spec := func(f func(*batchv1.JobSpec)) func(job) { return func(j job) { f(&j.Spec) } }
	kindtest.Validations(t, Job, baseJob(), []kindtest.Case[job]{
		{Name: "ordinary"},
		{Name: "negative", Change: spec(func(s *batchv1.JobSpec) {
			s.Parallelism, s.Completions, s.BackoffLimit, s.TTLSecondsAfterFinished = ptr.To[int32](-1), ptr.To[int32](-1), ptr.To[int32](-1), ptr.To[int32](-1)
			s.ActiveDeadlineSeconds = ptr.To[int64](-1)
		}), Want: []string{
			"spec.parallelism: must be greater than or equal to 0", "spec.completions: must be greater than or equal to 0", "spec.backoffLimit: must be greater than or equal to 0",
			"spec.ttlSecondsAfterFinished: must be greater than or equal to 0", "spec.activeDeadlineSeconds: must be greater than or equal to 0",
		}},
		{Name: "someone else's labels", Change: spec(func(s *batchv1.JobSpec) { s.Template.Labels["job-name"] = "other" }), Want: []string{"spec.template.metadata.labels[job-name]: must be 'pi'"}},
		{Name: "a selector of its own", Change: spec(func(s *batchv1.JobSpec) {
			s.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "pi"}}
		}), Want: []string{"spec.selector: `selector` not auto-generated"}},
		{Name: "manual without selector", Change: spec(func(s *batchv1.JobSpec) { s.ManualSelector = ptr.To(true) }), Want: []string{"spec.selector: Required value", "spec.template.metadata.labels: `selector` does not match template `labels`"}},
		{Name: "always", Change: spec(func(s *batchv1.JobSpec) { s.Template.Spec.RestartPolicy = "Always" }), Want: []string{`spec.template.spec.restartPolicy: Required value: valid values: "OnFailure", "Never"`}},
		{Name: "never heard of", Change: spec(func(s *batchv1.JobSpec) { s.Template.Spec.RestartPolicy = "x" }), Want: []string{
			`spec.template.spec.restartPolicy: Unsupported value: "x": supported values: "OnFailure", "Never"`, "spec.template.spec.restartPolicy: Unsupported value",
		}},
		{Name: "mode", Change: spec(func(s *batchv1.JobSpec) { s.CompletionMode = ptr.To(batchv1.CompletionMode("x")) }), Want: []string{`spec.completionMode: Unsupported value: "x": supported values: "NonIndexed", "Indexed"`}},
		{Name: "per index without index", Change: spec(func(s *batchv1.JobSpec) {
			s.BackoffLimitPerIndex, s.MaxFailedIndexes = ptr.To[int32](1), ptr.To[int32](1)
		}), Want: []string{
			"spec.backoffLimitPerIndex: requires indexed completion mode", "spec.maxFailedIndexes: requires indexed completion mode",
		}},
		{Name: "indexed", Change: indexed(3, func(s *batchv1.JobSpec) {
			s.BackoffLimitPerIndex, s.MaxFailedIndexes = ptr.To[int32](1), ptr.To[int32](3)
		})},
		{Name: "indexed without completions", Change: spec(func(s *batchv1.JobSpec) {
			s.CompletionMode, s.Parallelism = ptr.To(batchv1.IndexedCompletion), ptr.To[int32](1)
		}), Want: []string{"spec.completions: Required value: when completion mode is Indexed"}},
		{Name: "failed indexes without limit", Change: indexed(3, func(s *batchv1.JobSpec) { s.MaxFailedIndexes = ptr.To[int32](4) }), Want: []string{
			"spec.backoffLimitPerIndex: Required value: when maxFailedIndexes is specified", "spec.maxFailedIndexes: must be less than or equal to completions",
		}},
		{Name: "many indexes", Change: indexed(100_001, func(s *batchv1.JobSpec) {
			s.BackoffLimitPerIndex, s.Parallelism = ptr.To[int32](1), ptr.To[int32](100_001)
		}), Want: []string{
			"spec.parallelism: must be less than or equal to 100000 when completion mode is Indexed", "spec.maxFailedIndexes: Required value: must be specified when completions is above 100000",
			"spec.parallelism: must be less than or equal to 10000 when completions are above 100000 and used with backoff limit per index",
		}},
		{Name: "many failures", Change: indexed(200_000, func(s *batchv1.JobSpec) {
			s.BackoffLimitPerIndex, s.MaxFailedIndexes = ptr.To[int32](1), ptr.To[int32](100_001)
		}), Want: []string{
			"spec.maxFailedIndexes: must be less than or equal to 100000", "spec.maxFailedIndexes: must be less than or equal to 10000 when completions are above 100000",
		}},
		{Name: "long name", Change: func(j job) {
			indexed(11, nil)(j)
			j.Name = strings.Repeat("a", 61)
		}, Want: []string{"metadata.name: will not able to create pod with invalid DNS label: " + strings.Repeat("a", 61) + "-10"}},
		{Name: "managed", Change: spec(func(s *batchv1.JobSpec) { s.ManagedBy = ptr.To("example.com/queue") })},
		{Name: "managed by whom", Change: spec(func(s *batchv1.JobSpec) { s.ManagedBy = ptr.To(strings.Repeat("a", 64)) }), Want: []string{"spec.managedBy: must be a domain-prefixed path", "spec.managedBy: Too long: may not be more than 63 bytes"}},
		{Name: "replacement", Change: spec(func(s *batchv1.JobSpec) { s.PodReplacementPolicy = ptr.To(batchv1.PodReplacementPolicy("x")) }), Want: []string{`spec.podReplacementPolicy: Unsupported value: "x": supported values: "Failed", "TerminatingOrFailed"`}},
		{Name: "template is validated", Change: spec(func(s *batchv1.JobSpec) { s.Template.Spec.Containers = nil }), Want: []string{"spec.template.spec.containers: Required value"}},

		{Name: "what may change", Update: true, Change: spec(func(s *batchv1.JobSpec) {
			s.Completions, s.Parallelism, s.Suspend, s.BackoffLimit = ptr.To[int32](1), ptr.To[int32](5), ptr.To(true), ptr.To[int32](1)
			s.ActiveDeadlineSeconds, s.TTLSecondsAfterFinished = ptr.To[int64](9), ptr.To[int32](4)
			keepGenerated(s)
		})},
		{Name: "what stays", Update: true, Change: spec(func(s *batchv1.JobSpec) {
			keepGenerated(s)
			s.Completions, s.ManagedBy, s.Template.Spec.Containers[0].Image = ptr.To[int32](7), ptr.To("a.b/c"), "perl:6"
		}), Want: []string{"spec.completions: field is immutable", "spec.managedBy: field is immutable", "spec.template: field is immutable"}},
		{Name: "mode stays", Update: true, Change: spec(func(s *batchv1.JobSpec) {
			keepGenerated(s)
			s.CompletionMode, s.BackoffLimitPerIndex, s.BackoffLimit = ptr.To(batchv1.IndexedCompletion), ptr.To[int32](1), ptr.To[int32](6)
			s.Completions = ptr.To[int32](1)
			s.SuccessPolicy = &batchv1.SuccessPolicy{Rules: []batchv1.SuccessPolicyRule{{SucceededCount: ptr.To[int32](1)}}}
		}), Want: []string{"spec.completionMode: field is immutable", "spec.backoffLimitPerIndex: field is immutable", "spec.successPolicy: field is immutable"}},
		{Name: "selector stays", Update: true, Change: spec(func(s *batchv1.JobSpec) {
			keepGenerated(s)
			s.Selector.MatchLabels = map[string]string{"app": "pi"}
		}), Want: []string{"spec.selector: field is immutable"}},
	})
}

// keepGenerated sets the fields that were generated on create.
func keepGenerated(s *batchv1.JobSpec) {
	stored, _ := kindtest.Create(Job, nil, baseJob())
	s.Selector, s.Template.Labels = stored.Spec.Selector, stored.Spec.Template.Labels
}

func TestElasticJob(t *testing.T) {
	stored, _ := kindtest.Create(Job, nil, kindtest.With(baseJob(), indexed(3, nil)))
	for _, c := range []struct {
		completions, parallelism int32
		want                     []string
	}{
		{completions: 5, parallelism: 5},
		{completions: 3, parallelism: 9},
		{completions: 5, parallelism: 2, want: []string{"spec.completions: Invalid value: can only be modified in tandem with spec.parallelism"}},
	} {
		_, errs := kindtest.Update(Job, nil, kindtest.With(stored, func(j job) { j.Spec.Completions, j.Spec.Parallelism = &c.completions, &c.parallelism }), stored)
		kindtest.Errors(t, errs, c.want...)
	}
}

func TestSuspendedJobTemplate(t *testing.T) {
	node := &corev1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{Weight: 1, Preference: corev1.NodeSelectorTerm{
		MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "a", Operator: corev1.NodeSelectorOpExists}},
	}}}}
	place := func(j job) {
		j.Spec.Template.Annotations = map[string]string{"a": "b"}
		j.Spec.Template.Spec.NodeSelector = map[string]string{"disk": "ssd"}
		j.Spec.Template.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
		j.Spec.Template.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "x"}}
		j.Spec.Template.Spec.Affinity = &corev1.Affinity{NodeAffinity: node}
	}
	resize := func(j job) {
		j.Spec.Template.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"cpu": resource.MustParse("2")}
		j.Spec.Template.Spec.InitContainers[0].Resources.Requests = corev1.ResourceList{"cpu": resource.MustParse("1")}
	}
	image := func(j job) { j.Spec.Template.Spec.Containers[0].Image = "other:1" }
	started := func(j job) { j.Status.StartTime = ptr.To(kindtest.MinutesAgo(1)) }
	for name, c := range map[string]struct {
		suspended bool
		old       func(job)
		change    func(job)
		want      []string
	}{
		"suspended":                  {suspended: true, change: place},
		"suspended, resized":         {suspended: true, change: resize},
		"suspended, another image":   {suspended: true, change: image, want: []string{"spec.template.spec: Invalid value: field is immutable"}},
		"suspended, affinity gone":   {suspended: true, old: place, change: func(j job) { j.Spec.Template.Spec.Affinity = nil }},
		"suspended, pod affinity":    {suspended: true, change: func(j job) { j.Spec.Template.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{}} }, want: []string{"spec.template.spec: Invalid value: field is immutable"}},
		"running":                    {change: place, want: []string{"spec.template: Invalid value: field is immutable"}},
		"suspended after it started": {suspended: true, old: started, change: place, want: []string{"spec.template: Invalid value: field is immutable"}},
		"started, then suspended": {suspended: true, old: func(j job) {
			started(j)
			j.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobSuspended, Status: "True"}}
		}, change: resize},
		"pods still run": {suspended: true, old: func(j job) { j.Status.Active = 1 }, change: place, want: []string{"spec.template: Invalid value: field is immutable"}},
	} {
		t.Run(name, func(t *testing.T) {
			stored, _ := kindtest.Create(Job, nil, kindtest.With(baseJob(), func(j job) { j.Spec.Suspend = &c.suspended }))
			if c.old != nil {
				c.old(stored)
			}
			_, errs := kindtest.Update(Job, nil, kindtest.With(stored, c.change), stored)
			kindtest.Errors(t, errs, c.want...)
		})
	}
}

func TestJobPolicies(t *testing.T) {
	failure := func(rules ...batchv1.PodFailurePolicyRule) func(job) {
		return func(j job) { j.Spec.PodFailurePolicy = &batchv1.PodFailurePolicy{Rules: rules} }
	}
	codes := func(operator batchv1.PodFailurePolicyOnExitCodesOperator, values ...int32) *batchv1.PodFailurePolicyOnExitCodesRequirement {
		return &batchv1.PodFailurePolicyOnExitCodesRequirement{Operator: operator, Values: values}
	}
	conditions := []batchv1.PodFailurePolicyOnPodConditionsPattern{{Type: corev1.DisruptionTarget, Status: "True"}}
	success := func(rules ...batchv1.SuccessPolicyRule) func(job) {
		return indexed(5, func(s *batchv1.JobSpec) { s.SuccessPolicy = &batchv1.SuccessPolicy{Rules: rules} })
	}
	kindtest.Validations(t, Job, baseJob(), []kindtest.Case[job]{
		{Name: "failure", Change: failure(
			batchv1.PodFailurePolicyRule{Action: "FailJob", OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{ContainerName: ptr.To("init"), Operator: "In", Values: []int32{1, 5}}},
			batchv1.PodFailurePolicyRule{Action: "Ignore", OnPodConditions: conditions},
		)},
		{Name: "restart", Change: func(j job) {
			failure(batchv1.PodFailurePolicyRule{Action: "Count", OnPodConditions: conditions})(j)
			j.Spec.Template.Spec.RestartPolicy, j.Spec.PodReplacementPolicy = "OnFailure", ptr.To(batchv1.TerminatingOrFailed)
		}, Want: []string{
			`spec.template.spec.restartPolicy: only "Never" is supported when podFailurePolicy is specified`,
			`spec.podReplacementPolicy: Unsupported value: "TerminatingOrFailed": supported values: "Failed"`,
		}},
		{Name: "empty rule", Change: failure(batchv1.PodFailurePolicyRule{}), Want: []string{
			`spec.podFailurePolicy.rules[0].action: Required value: valid values: ["Count" "FailIndex" "FailJob" "Ignore"]`,
			"spec.podFailurePolicy.rules[0]: specifying one of OnExitCodes and OnPodConditions is required",
		}},
		{Name: "both", Change: failure(batchv1.PodFailurePolicyRule{Action: "x", OnExitCodes: codes("NotIn", 0), OnPodConditions: conditions}), Want: []string{
			`spec.podFailurePolicy.rules[0].action: Unsupported value: "x": supported values: "Count", "FailIndex", "FailJob", "Ignore"`,
			"spec.podFailurePolicy.rules[0]: specifying both OnExitCodes and OnPodConditions is not supported",
		}},
		{Name: "fail index", Change: failure(batchv1.PodFailurePolicyRule{Action: "FailIndex", OnExitCodes: codes("NotIn", 0)}), Want: []string{"spec.podFailurePolicy.rules[0].action: requires the backoffLimitPerIndex to be set"}},
		{Name: "exit codes", Change: failure(
			batchv1.PodFailurePolicyRule{Action: "Count", OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{ContainerName: ptr.To("who")}},
			batchv1.PodFailurePolicyRule{Action: "Count", OnExitCodes: codes("In", 4, 0, 4)},
			batchv1.PodFailurePolicyRule{Action: "Count", OnExitCodes: codes("x", make([]int32, 256)[:1]...)},
		), Want: []string{
			`spec.podFailurePolicy.rules[0].onExitCodes.operator: Required value: valid values: ["In" "NotIn"]`,
			"spec.podFailurePolicy.rules[0].onExitCodes.containerName: must be one of the container or initContainer names in the pod template",
			"spec.podFailurePolicy.rules[0].onExitCodes.values: at least one value is required",
			"spec.podFailurePolicy.rules[1].onExitCodes.values[1]: must not be 0 for the In operator", "spec.podFailurePolicy.rules[1].onExitCodes.values[2]: Duplicate value: 4",
			"spec.podFailurePolicy.rules[1].onExitCodes.values: must be ordered",
			`spec.podFailurePolicy.rules[2].onExitCodes.operator: Unsupported value: "x"`,
		}},
		{Name: "conditions", Change: failure(batchv1.PodFailurePolicyRule{Action: "Count", OnPodConditions: []batchv1.PodFailurePolicyOnPodConditionsPattern{{Type: "", Status: "x"}}}), Want: []string{
			"spec.podFailurePolicy.rules[0].onPodConditions[0].type: name part must be non-empty", "spec.podFailurePolicy.rules[0].onPodConditions[0].type: name part must consist of",
			`spec.podFailurePolicy.rules[0].onPodConditions[0].status: Unsupported value: "x": supported values: "False", "True", "Unknown"`,
		}},
		{Name: "many rules", Change: failure(slices.Repeat([]batchv1.PodFailurePolicyRule{{Action: "Count", OnPodConditions: conditions}}, 21)...), Want: []string{"spec.podFailurePolicy.rules: Too many: 21: must have at most 20 items"}},

		{Name: "success", Change: success(batchv1.SuccessPolicyRule{SucceededIndexes: ptr.To("0,2-4"), SucceededCount: ptr.To[int32](4)})},
		{Name: "success without indexes", Change: func(j job) { j.Spec.SuccessPolicy = &batchv1.SuccessPolicy{} }, Want: []string{"spec.successPolicy: requires indexed completion mode"}},
		{Name: "no rules", Change: success(), Want: []string{"spec.successPolicy.rules: Required value: at least one rules must be specified when the successPolicy is specified"}},
		{Name: "empty rule of success", Change: success(batchv1.SuccessPolicyRule{}), Want: []string{"spec.successPolicy.rules[0]: Required value: at least one of succeededCount or succeededIndexes must be specified"}},
		{Name: "counts", Change: success(
			batchv1.SuccessPolicyRule{SucceededCount: ptr.To[int32](6)}, batchv1.SuccessPolicyRule{SucceededCount: ptr.To[int32](3), SucceededIndexes: ptr.To("0-1")},
			batchv1.SuccessPolicyRule{SucceededIndexes: ptr.To("3-1")},
		), Want: []string{
			"spec.successPolicy.rules[0].succeededCount: must be less than or equal to 5 (the number of specified completions)",
			"spec.successPolicy.rules[1].succeededCount: must be less than or equal to 2 (the number of indexes in the specified succeededIndexes field)",
			"spec.successPolicy.rules[2].succeededIndexes: error parsing succeededIndexes: non-increasing order, previous: 3, current: 1",
		}},
	})
}

func TestCountIndexes(t *testing.T) {
	for list, want := range map[string]string{
		"": "", "0": "", "0,2-4,9": "", "a": `cannot convert string to integer for index: "a"`, "0-a": `cannot convert string to integer for index: "a"`,
		"10": `too large index: "10"`, "1-10": `too large index: "10"`, "1-2-3": "at most two parts", "2,1": "non-increasing order, previous: 2, current: 1", "2-2": "non-increasing order, previous: 2, current: 2",
	} {
		_, err := countIndexes(list, 10)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", list, err, want)
		}
	}
	if n, _ := countIndexes("0,2-4,9", 10); n != 5 {
		t.Errorf("counted %d", n)
	}
	for _, c := range []struct{ done, lost, want string }{
		{"0-2,7", "3-5,9", ""}, {"", "1", ""}, {"0-4", "3-5", "overlap at index: 3"}, {"1,5-7", "x,0,6", "overlap at index: 6"},
	} {
		err := checkDisjoint(c.done, c.lost, 10)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q and %q: %v, want %q", c.done, c.lost, err, c.want)
		}
	}
}

func conditions(types ...batchv1.JobConditionType) []batchv1.JobCondition {
	var out []batchv1.JobCondition
	for _, typ := range types {
		out = append(out, batchv1.JobCondition{Type: typ, Status: corev1.ConditionTrue})
	}
	return out
}

func TestJobStatus(t *testing.T) {
	running, _ := kindtest.Create(Job, nil, baseJob())
	running.Status = batchv1.JobStatus{StartTime: ptr.To(kindtest.MinutesAgo(5)), Active: 1, Failed: 1}
	done := kindtest.With(running, func(j job) {
		j.Status = batchv1.JobStatus{StartTime: j.Status.StartTime, CompletionTime: ptr.To(kindtest.MinutesAgo(2)), Succeeded: 1, Failed: 1, Conditions: conditions("SuccessCriteriaMet", "Complete")}
	})
	kindtest.StatusUpdates(t, Job, running, []kindtest.Case[job]{
		{Name: "same"},
		{Name: "done", Change: func(j job) { j.Status = done.Status }},
		{Name: "failed", Change: func(j job) {
			j.Status.Active, j.Status.Failed, j.Status.Conditions = 0, 2, conditions("FailureTarget", "Failed")
		}},
		{Name: "negative", Change: func(j job) {
			j.Status.Active, j.Status.Succeeded, j.Status.Failed, j.Status.Ready, j.Status.Terminating = -1, -1, -1, ptr.To[int32](-2), ptr.To[int32](-1)
		}, Want: []string{
			"status.active: must be greater than or equal to 0", "status.succeeded: must be greater than or equal to 0", "status.failed: must be greater than or equal to 0",
			"status.ready: must be greater than or equal to 0", "status.terminating: must be greater than or equal to 0",
			"status.failed: cannot decrease the failed counter", "status.succeeded: cannot decrease the succeeded counter",
		}},
		{Name: "ready", Change: func(j job) { j.Status.Ready = ptr.To[int32](2) }, Want: []string{"status.ready: cannot set more ready pods than active"}},
		{Name: "uncounted", Change: func(j job) {
			j.Status.UncountedTerminatedPods = &batchv1.UncountedTerminatedPods{Succeeded: []types.UID{"a", ""}, Failed: []types.UID{"a"}}
		}, Want: []string{"status.uncountedTerminatedPods.succeeded[1]: must not be empty", `status.uncountedTerminatedPods.failed[0]: Duplicate value: "a"`}},
		{Name: "complete at once", Change: func(j job) { j.Status.Conditions = conditions("Complete") }, Want: []string{
			"status.conditions: cannot set Complete=True condition without the SuccessCriteriaMet=true condition", "status.completionTime: Required value: completionTime is required for Complete jobs",
			"status.active: active>0 is invalid for finished job",
		}},
		{Name: "everything at once", Change: func(j job) {
			j.Status = done.Status
			j.Status.Conditions = conditions("Complete", "Failed", "FailureTarget", "SuccessCriteriaMet")
		}, Want: []string{
			"status.conditions: cannot set Complete=True and Failed=true conditions", "status.conditions: cannot set Complete=True and FailureTarget=true conditions",
			"status.conditions: cannot set SuccessCriteriaMet=True and Failed=true conditions", "status.conditions: cannot set SuccessCriteriaMet=True and FailureTarget=true conditions",
		}},
		{Name: "failed without target", Change: func(j job) { j.Status.Active, j.Status.Conditions = 0, conditions("Failed") }, Want: []string{"status.conditions: cannot set Failed=True condition without the FailureTarget=true condition"}},
		{Name: "leftovers", Change: func(j job) {
			j.Status = done.Status
			j.Status.Terminating, j.Status.UncountedTerminatedPods = ptr.To[int32](1), &batchv1.UncountedTerminatedPods{Failed: []types.UID{"a"}}
		}, Want: []string{"status.terminating: terminating>0 is invalid for finished job", "status.uncountedTerminatedPods: must be empty for finished job"}},
		{Name: "ends before it starts", Change: func(j job) {
			j.Status = done.Status
			j.Status.CompletionTime = ptr.To(kindtest.MinutesAgo(8))
		}, Want: []string{"status.completionTime: must be equal to or after `startTime`"}},
		{Name: "ends without an end", Change: func(j job) { j.Status.CompletionTime = ptr.To(kindtest.MinutesAgo(1)) }, Want: []string{"status.completionTime: cannot set completionTime when there is no Complete=True condition"}},
		{Name: "starts again", Change: func(j job) { j.Status.StartTime = ptr.To(kindtest.MinutesAgo(1)) }, Want: []string{"status.startTime: field is immutable for unsuspended job once set"}},
		{Name: "indexes of a job without", Change: func(j job) { j.Status.CompletedIndexes, j.Status.FailedIndexes = "0", ptr.To("") }, Want: []string{
			"status.completedIndexes: cannot set non-empty completedIndexes when non-indexed completion mode", "status.failedIndexes: cannot set non-null failedIndexes when backoffLimitPerIndex is null",
		}},
	})
	kindtest.StatusUpdates(t, Job, done, []kindtest.Case[job]{
		{Name: "done stays done", Change: func(j job) { j.Status.Conditions = nil }, Want: []string{
			"status.conditions: cannot disable the terminal Complete=True condition", "status.conditions: cannot disable the SuccessCriteriaMet=True condition",
			"status.completionTime: cannot set completionTime when there is no Complete=True condition",
		}},
		{Name: "another end", Change: func(j job) { j.Status.CompletionTime = ptr.To(kindtest.MinutesAgo(1)) }, Want: []string{"status.completionTime: field is immutable"}},
	})
	elastic, _ := kindtest.Create(Job, nil, kindtest.With(baseJob(), indexed(4, func(s *batchv1.JobSpec) { s.BackoffLimitPerIndex, s.Parallelism = ptr.To[int32](1), ptr.To[int32](4) })))
	elastic.Status.Succeeded = 3
	kindtest.StatusUpdates(t, Job, elastic, []kindtest.Case[job]{
		{Name: "indexes", Change: func(j job) { j.Status.CompletedIndexes, j.Status.FailedIndexes = "0-1", ptr.To("3") }},
		{Name: "shrunk", Change: func(j job) { j.Status.Succeeded = 1 }},
		{Name: "bad indexes", Change: func(j job) { j.Status.CompletedIndexes, j.Status.FailedIndexes = "0-9", ptr.To("x") }, Want: []string{
			`status.completedIndexes: error parsing completedIndexes: too large index: "9"`, `status.failedIndexes: error parsing failedIndexes: cannot convert string to integer for index: "x"`,
		}},
		{Name: "overlap", Change: func(j job) { j.Status.CompletedIndexes, j.Status.FailedIndexes = "0-2", ptr.To("2") }, Want: []string{"status.failedIndexes: failedIndexes and completedIndexes overlap at index: 2"}},
	})
}

func TestJobRow(t *testing.T) {
	kindtest.ColumnsDescribed(t, Job)
	kindtest.Row(t, Job, baseJob(), "pi", "Running", "0/1", "", "9m", "pi", "perl:5", "<none>")
	stored, _ := kindtest.Create(Job, nil, baseJob())
	stored.Status = batchv1.JobStatus{StartTime: ptr.To(kindtest.MinutesAgo(8)), Succeeded: 1, CompletionTime: ptr.To(kindtest.MinutesAgo(5)), Conditions: conditions("Complete")}
	kindtest.Row(t, Job, stored, "pi", "Complete", "1/1", "3m", "9m", "pi", "perl:5", "batch.kubernetes.io/controller-uid=u-1")
	queue := kindtest.With(baseJob(), func(j job) {
		j.Spec.Parallelism, j.Status.StartTime = ptr.To[int32](3), ptr.To(kindtest.MinutesAgo(4))
		j.Status.Conditions = conditions("Suspended")
	})
	kindtest.Row(t, Job, queue, "pi", "Suspended", "0/1 of 3", "4m", "9m", "pi", "perl:5", "<none>")
	for _, c := range []struct {
		job  job
		want string
	}{
		{kindtest.With(baseJob(), func(j job) { j.Status.Conditions = conditions("Failed") }), "Failed"},
		{kindtest.With(baseJob(), func(j job) { j.DeletionTimestamp = ptr.To(kindtest.MinutesAgo(1)) }), "Terminating"},
		{kindtest.With(baseJob(), func(j job) { j.Status.Conditions = conditions("FailureTarget") }), "FailureTarget"},
		{kindtest.With(baseJob(), func(j job) { j.Status.Conditions = conditions("SuccessCriteriaMet") }), "SuccessCriteriaMet"},
	} {
		if got := statusOf(c.job); got != c.want {
			t.Errorf("got %s, want %s", got, c.want)
		}
	}
	if got := Job.Fields["status.successful"](stored); got != "1" {
		t.Errorf("status.successful is %s", got)
	}
}

func TestJobWarnings(t *testing.T) {
	kindtest.Warnings(t, Job.Warn(kindtest.With(baseJob(), func(j job) { j.Name = "a.b" }), nil), "metadata.name: this is used in Pod names")
	kindtest.Warnings(t, Job.Warn(kindtest.With(baseJob(), indexed(100_001, func(s *batchv1.JobSpec) { s.Parallelism = ptr.To[int32](10_001) })), nil), "spec: In Indexed Jobs with a number of completions higher than 10^5")
	kindtest.Warnings(t, Job.Warn(baseJob(), baseJob()))
	kindtest.Warnings(t, Job.Delete.Warn(baseJob(), &metav1.DeleteOptions{}), "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background")
	kindtest.Warnings(t, Job.Delete.Warn(baseJob(), &metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationBackground)}))
	kindtest.Warnings(t, Job.Delete.Warn(baseJob(), &metav1.DeleteOptions{OrphanDependents: ptr.To(true)}))
	if Job.Delete.Propagation != metav1.DeletePropagationOrphan || CronJob.Delete.Propagation == metav1.DeletePropagationOrphan {
		t.Error("wrong propagation")
	}
}
