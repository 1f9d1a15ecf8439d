package batch

import (
	"fmt"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"skiff/internal/kind"
)

// statusJudge judges a write of a job's status. Since others than the system's own controller may write it
// (spec.managedBy), it is judged closely; but what a write does not touch, it is not blamed for.
type statusJudge struct {
	job, old *batchv1.Job
	path     *field.Path
	errs     field.ErrorList
}

func validateJobStatus(_ *kind.Request, job, old *batchv1.Job) field.ErrorList {
	j := &statusJudge{job: job, old: old, path: field.NewPath("status")}
	j.counts()
	j.uncounted()
	j.conditions()
	j.times()
	j.finished()
	j.indexes()
	j.change()
	return j.errs
}

func (j *statusJudge) invalid(name string, value any, detail string) {
	j.errs = append(j.errs, field.Invalid(j.path.Child(name), value, detail))
}

func (j *statusJudge) required(name, detail string) {
	j.errs = append(j.errs, field.Required(j.path.Child(name), detail))
}

// condition refuses the conditions as a whole.
func (j *statusJudge) condition(refused bool, detail string) {
	if refused {
		j.invalid("conditions", field.OmitValueType{}, detail)
	}
}

// turned reports whether a condition became true or ceased to be so.
func (j *statusJudge) turned(condition batchv1.JobConditionType) bool {
	return isTrue(j.job, condition) != isTrue(j.old, condition)
}

func (j *statusJudge) counts() {
	status := &j.job.Status
	nonnegative := func(name string, value int32) {
		j.errs = append(j.errs, validation.ValidateNonnegativeField(int64(value), j.path.Child(name))...)
	}
	nonnegative("active", status.Active)
	nonnegative("succeeded", status.Succeeded)
	nonnegative("failed", status.Failed)
	nonnegative("ready", ptr.Deref(status.Ready, 0))
	nonnegative("terminating", ptr.Deref(status.Terminating, 0))
	changed := !ptr.Equal(status.Ready, j.old.Status.Ready) || status.Active != j.old.Status.Active
	if changed && status.Ready != nil && *status.Ready > status.Active {
		j.invalid("ready", *status.Ready, "cannot set more ready pods than active")
	}
}

func (j *statusJudge) uncounted() {
	pods := j.job.Status.UncountedTerminatedPods
	if pods == nil {
		return
	}
	seen := sets.New[types.UID]()
	for _, list := range []struct {
		field string
		uids  []types.UID
	}{{"succeeded", pods.Succeeded}, {"failed", pods.Failed}} {
		for i, uid := range list.uids {
			at := j.path.Child("uncountedTerminatedPods", list.field).Index(i)
			switch {
			case uid == "":
				j.errs = append(j.errs, field.Invalid(at, uid, "must not be empty"))
			case seen.Has(uid):
				j.errs = append(j.errs, field.Duplicate(at, uid))
			}
			seen.Insert(uid)
		}
	}
}

func (j *statusJudge) conditions() {
	complete, failed := isTrue(j.job, batchv1.JobComplete), isTrue(j.job, batchv1.JobFailed)
	target, met := isTrue(j.job, batchv1.JobFailureTarget), isTrue(j.job, batchv1.JobSuccessCriteriaMet)
	completeTurned, failedTurned := j.turned(batchv1.JobComplete), j.turned(batchv1.JobFailed)
	failedIndexesChanged := !ptr.Equal(j.old.Status.FailedIndexes, j.job.Status.FailedIndexes)

	j.condition((completeTurned || failedTurned) && complete && failed, "cannot set Complete=True and Failed=true conditions")
	j.condition((completeTurned || j.turned(batchv1.JobFailureTarget)) && complete && target, "cannot set Complete=True and FailureTarget=true conditions")
	j.condition((failedTurned || failedIndexesChanged) && failed && !target, "cannot set Failed=True condition without the FailureTarget=true condition")
	j.condition((completeTurned || j.turned(batchv1.JobSuccessCriteriaMet)) && complete && !met, "cannot set Complete=True condition without the SuccessCriteriaMet=true condition")
	j.condition(met && failed, "cannot set SuccessCriteriaMet=True and Failed=true conditions")
	j.condition(met && target, "cannot set SuccessCriteriaMet=True and FailureTarget=true conditions")
	j.condition(j.job.Spec.SuccessPolicy != nil && !met && complete, "cannot set Complete=True for Job with SuccessPolicy unless SuccessCriteriaMet=True")
}

func (j *statusJudge) times() {
	status, before := &j.job.Status, &j.old.Status
	complete := isTrue(j.job, batchv1.JobComplete)
	startChanged, endChanged := !status.StartTime.Equal(before.StartTime), !status.CompletionTime.Equal(before.CompletionTime)
	if j.turned(batchv1.JobComplete) || endChanged {
		if status.CompletionTime != nil && !complete {
			j.invalid("completionTime", status.CompletionTime, "cannot set completionTime when there is no Complete=True condition")
		}
		if status.CompletionTime == nil && complete {
			j.required("completionTime", "completionTime is required for Complete jobs")
		}
	}
	if (startChanged || endChanged) && status.StartTime != nil && status.CompletionTime != nil && status.CompletionTime.Before(status.StartTime) {
		j.invalid("completionTime", status.CompletionTime, "must be equal to or after `startTime`")
	}
	if endChanged && status.CompletionTime != nil && before.CompletionTime != nil {
		j.invalid("completionTime", status.CompletionTime, "field is immutable")
	}
	resuming := isTrue(j.old, batchv1.JobSuspended) && hasCondition(j.job, batchv1.JobSuspended, corev1.ConditionFalse)
	if startChanged && !resuming && before.StartTime != nil && !ptr.Deref(j.job.Spec.Suspend, false) {
		j.invalid("startTime", status.StartTime, "field is immutable for unsuspended job once set")
	}
}

// finished: nothing may be left over of a finished job.
func (j *statusJudge) finished() {
	if !isFinished(j.job) {
		return
	}
	status, before := &j.job.Status, &j.old.Status
	turned := !isFinished(j.old)
	if (turned || status.Active != before.Active) && status.Active > 0 {
		j.invalid("active", status.Active, "active>0 is invalid for finished job")
	}
	if (turned || !ptr.Equal(status.Terminating, before.Terminating)) && ptr.Deref(status.Terminating, 0) > 0 {
		j.invalid("terminating", status.Terminating, "terminating>0 is invalid for finished job")
	}
	neverRuns := ptr.Deref(j.job.Spec.Suspend, false) && ptr.Equal(j.job.Spec.Completions, ptr.To[int32](0))
	if (turned || !status.StartTime.Equal(before.StartTime)) && status.StartTime == nil && !neverRuns {
		j.required("startTime", "startTime is required for finished job")
	}
	uncounted := status.UncountedTerminatedPods
	if (turned || !equality.Semantic.DeepEqual(uncounted, before.UncountedTerminatedPods)) &&
		uncounted != nil && len(uncounted.Failed)+len(uncounted.Succeeded) > 0 {
		j.invalid("uncountedTerminatedPods", uncounted, "must be empty for finished job")
	}
}

func (j *statusJudge) indexes() {
	spec, status, before := &j.job.Spec, &j.job.Status, &j.old.Status
	completedChanged, failedChanged := status.CompletedIndexes != before.CompletedIndexes, !ptr.Equal(status.FailedIndexes, before.FailedIndexes)
	if completedChanged && spec.Completions != nil {
		if _, err := countIndexes(status.CompletedIndexes, *spec.Completions); err != nil {
			j.invalid("completedIndexes", status.CompletedIndexes, fmt.Sprintf("error parsing completedIndexes: %s", err))
		}
	}
	if completedChanged && status.CompletedIndexes != "" && !isIndexed(spec) {
		j.invalid("completedIndexes", status.CompletedIndexes, "cannot set non-empty completedIndexes when non-indexed completion mode")
	}
	if status.FailedIndexes == nil {
		return
	}
	if failedChanged && spec.Completions != nil && spec.BackoffLimitPerIndex != nil {
		if _, err := countIndexes(*status.FailedIndexes, *spec.Completions); err != nil {
			j.invalid("failedIndexes", status.FailedIndexes, fmt.Sprintf("error parsing failedIndexes: %s", err))
		}
	}
	if failedChanged && spec.BackoffLimitPerIndex == nil {
		j.invalid("failedIndexes", *status.FailedIndexes, "cannot set non-null failedIndexes when backoffLimitPerIndex is null")
	}
	if (failedChanged || completedChanged) && spec.Completions != nil {
		if err := checkDisjoint(status.CompletedIndexes, *status.FailedIndexes, *spec.Completions); err != nil {
			j.invalid("failedIndexes", *status.FailedIndexes, err.Error())
		}
	}
}

// change: what has come to an end stays at its end, and counters only grow.
func (j *statusJudge) change() {
	for _, condition := range []batchv1.JobConditionType{batchv1.JobFailed, batchv1.JobComplete, batchv1.JobFailureTarget} {
		j.condition(isTrue(j.old, condition) && !isTrue(j.job, condition), fmt.Sprintf("cannot disable the terminal %s=True condition", condition))
	}
	status, before := &j.job.Status, &j.old.Status
	if status.Failed < before.Failed {
		j.invalid("failed", status.Failed, "cannot decrease the failed counter")
	}
	// An elastic job forgets the indexes it is shrunk by.
	elastic := isIndexed(&j.job.Spec) && ptr.Equal(j.job.Spec.Completions, j.job.Spec.Parallelism)
	if !elastic && status.Succeeded < before.Succeeded {
		j.invalid("succeeded", status.Succeeded, "cannot decrease the succeeded counter")
	}
	metBefore, metNow := isTrue(j.old, batchv1.JobSuccessCriteriaMet), isTrue(j.job, batchv1.JobSuccessCriteriaMet)
	j.condition(metBefore && !metNow, "cannot disable the SuccessCriteriaMet=True condition")
	j.condition(isTrue(j.old, batchv1.JobComplete) && !metBefore && metNow, "cannot set SuccessCriteriaMet=True for Job already has Complete=true conditions")
}
