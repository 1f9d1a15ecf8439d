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

// statusValidator validates an update of a job's status. Other controllers may write it (spec.managedBy), so it is
// validated strictly; but an update is not refused for what it does not change.
type statusValidator struct {
	job, old *batchv1.Job
	path     *field.Path
	errs     field.ErrorList
}

func validateJobStatus(_ *kind.Request, job, old *batchv1.Job) field.ErrorList {
	v := &statusValidator{job: job, old: old, path: field.NewPath("status")}
	v.counts()
	v.uncounted()
	v.conditions()
	v.times()
	v.finished()
	v.indexes()
	v.change()
	return v.errs
}

func (v *statusValidator) invalid(name string, value any, detail string) {
	v.errs = append(v.errs, field.Invalid(v.path.Child(name), value, detail))
}

func (v *statusValidator) required(name, detail string) {
	v.errs = append(v.errs, field.Required(v.path.Child(name), detail))
}

// condition refuses the list of conditions.
func (v *statusValidator) condition(refused bool, detail string) {
	if refused {
		v.invalid("conditions", field.OmitValueType{}, detail)
	}
}

// changed reports whether a condition became true or stopped being true.
func (v *statusValidator) changed(condition batchv1.JobConditionType) bool {
	return isTrue(v.job, condition) != isTrue(v.old, condition)
}

func (v *statusValidator) counts() {
	status := &v.job.Status
	nonnegative := func(name string, value int32) {
		v.errs = append(v.errs, validation.ValidateNonnegativeField(int64(value), v.path.Child(name))...)
	}
	nonnegative("active", status.Active)
	nonnegative("succeeded", status.Succeeded)
	nonnegative("failed", status.Failed)
	nonnegative("ready", ptr.Deref(status.Ready, 0))
	nonnegative("terminating", ptr.Deref(status.Terminating, 0))
	changed := !ptr.Equal(status.Ready, v.old.Status.Ready) || status.Active != v.old.Status.Active
	if changed && status.Ready != nil && *status.Ready > status.Active {
		v.invalid("ready", *status.Ready, "cannot set more ready pods than active")
	}
}

func (v *statusValidator) uncounted() {
	pods := v.job.Status.UncountedTerminatedPods
	if pods == nil {
		return
	}
	seen := sets.New[types.UID]()
	for _, list := range []struct {
		field string
		uids  []types.UID
	}{{"succeeded", pods.Succeeded}, {"failed", pods.Failed}} {
		for i, uid := range list.uids {
			idxPath := v.path.Child("uncountedTerminatedPods", list.field).Index(i)
			switch {
			case uid == "":
				v.errs = append(v.errs, field.Invalid(idxPath, uid, "must not be empty"))
			case seen.Has(uid):
				v.errs = append(v.errs, field.Duplicate(idxPath, uid))
			}
			seen.Insert(uid)
		}
	}
}

func (v *statusValidator) conditions() {
	complete, failed := isTrue(v.job, batchv1.JobComplete), isTrue(v.job, batchv1.JobFailed)
	target, met := isTrue(v.job, batchv1.JobFailureTarget), isTrue(v.job, batchv1.JobSuccessCriteriaMet)
	completeChanged, failedChanged := v.changed(batchv1.JobComplete), v.changed(batchv1.JobFailed)
	failedIndexesChanged := !ptr.Equal(v.old.Status.FailedIndexes, v.job.Status.FailedIndexes)

	v.condition((completeChanged || failedChanged) && complete && failed, "cannot set Complete=True and Failed=true conditions")
	v.condition((completeChanged || v.changed(batchv1.JobFailureTarget)) && complete && target, "cannot set Complete=True and FailureTarget=true conditions")
	v.condition((failedChanged || failedIndexesChanged) && failed && !target, "cannot set Failed=True condition without the FailureTarget=true condition")
	v.condition((completeChanged || v.changed(batchv1.JobSuccessCriteriaMet)) && complete && !met, "cannot set Complete=True condition without the SuccessCriteriaMet=true condition")
	v.condition(met && failed, "cannot set SuccessCriteriaMet=True and Failed=true conditions")
	v.condition(met && target, "cannot set SuccessCriteriaMet=True and FailureTarget=true conditions")
	v.condition(v.job.Spec.SuccessPolicy != nil && !met && complete, "cannot set Complete=True for Job with SuccessPolicy unless SuccessCriteriaMet=True")
}

func (v *statusValidator) times() {
	status, before := &v.job.Status, &v.old.Status
	complete := isTrue(v.job, batchv1.JobComplete)
	startChanged, endChanged := !status.StartTime.Equal(before.StartTime), !status.CompletionTime.Equal(before.CompletionTime)
	if v.changed(batchv1.JobComplete) || endChanged {
		if status.CompletionTime != nil && !complete {
			v.invalid("completionTime", status.CompletionTime, "cannot set completionTime when there is no Complete=True condition")
		}
		if status.CompletionTime == nil && complete {
			v.required("completionTime", "completionTime is required for Complete jobs")
		}
	}
	if (startChanged || endChanged) && status.StartTime != nil && status.CompletionTime != nil && status.CompletionTime.Before(status.StartTime) {
		v.invalid("completionTime", status.CompletionTime, "must be equal to or after `startTime`")
	}
	if endChanged && status.CompletionTime != nil && before.CompletionTime != nil {
		v.invalid("completionTime", status.CompletionTime, "field is immutable")
	}
	resuming := isTrue(v.old, batchv1.JobSuspended) && hasCondition(v.job, batchv1.JobSuspended, corev1.ConditionFalse)
	if startChanged && !resuming && before.StartTime != nil && !ptr.Deref(v.job.Spec.Suspend, false) {
		v.invalid("startTime", status.StartTime, "field is immutable for unsuspended job once set")
	}
}

// finished: the status of a finished job must have no active pods.
func (v *statusValidator) finished() {
	if !isFinished(v.job) {
		return
	}
	status, before := &v.job.Status, &v.old.Status
	changed := !isFinished(v.old)
	if (changed || status.Active != before.Active) && status.Active > 0 {
		v.invalid("active", status.Active, "active>0 is invalid for finished job")
	}
	if (changed || !ptr.Equal(status.Terminating, before.Terminating)) && ptr.Deref(status.Terminating, 0) > 0 {
		v.invalid("terminating", status.Terminating, "terminating>0 is invalid for finished job")
	}
	neverRuns := ptr.Deref(v.job.Spec.Suspend, false) && ptr.Equal(v.job.Spec.Completions, ptr.To[int32](0))
	if (changed || !status.StartTime.Equal(before.StartTime)) && status.StartTime == nil && !neverRuns {
		v.required("startTime", "startTime is required for finished job")
	}
	uncounted := status.UncountedTerminatedPods
	if (changed || !equality.Semantic.DeepEqual(uncounted, before.UncountedTerminatedPods)) &&
		uncounted != nil && len(uncounted.Failed)+len(uncounted.Succeeded) > 0 {
		v.invalid("uncountedTerminatedPods", uncounted, "must be empty for finished job")
	}
}

func (v *statusValidator) indexes() {
	spec, status, before := &v.job.Spec, &v.job.Status, &v.old.Status
	completedChanged, failedChanged := status.CompletedIndexes != before.CompletedIndexes, !ptr.Equal(status.FailedIndexes, before.FailedIndexes)
	if completedChanged && spec.Completions != nil {
		if _, err := countIndexes(status.CompletedIndexes, *spec.Completions); err != nil {
			v.invalid("completedIndexes", status.CompletedIndexes, fmt.Sprintf("error parsing completedIndexes: %s", err))
		}
	}
	if completedChanged && status.CompletedIndexes != "" && !isIndexed(spec) {
		v.invalid("completedIndexes", status.CompletedIndexes, "cannot set non-empty completedIndexes when non-indexed completion mode")
	}
	if status.FailedIndexes == nil {
		return
	}
	if failedChanged && spec.Completions != nil && spec.BackoffLimitPerIndex != nil {
		if _, err := countIndexes(*status.FailedIndexes, *spec.Completions); err != nil {
			v.invalid("failedIndexes", status.FailedIndexes, fmt.Sprintf("error parsing failedIndexes: %s", err))
		}
	}
	if failedChanged && spec.BackoffLimitPerIndex == nil {
		v.invalid("failedIndexes", *status.FailedIndexes, "cannot set non-null failedIndexes when backoffLimitPerIndex is null")
	}
	if (failedChanged || completedChanged) && spec.Completions != nil {
		if err := checkDisjoint(status.CompletedIndexes, *status.FailedIndexes, *spec.Completions); err != nil {
			v.invalid("failedIndexes", *status.FailedIndexes, err.Error())
		}
	}
}

// change: a finished job stays finished, and counters only grow.
func (v *statusValidator) change() {
	for _, condition := range []batchv1.JobConditionType{batchv1.JobFailed, batchv1.JobComplete, batchv1.JobFailureTarget} {
		v.condition(isTrue(v.old, condition) && !isTrue(v.job, condition), fmt.Sprintf("cannot disable the terminal %s=True condition", condition))
	}
	status, before := &v.job.Status, &v.old.Status
	if status.Failed < before.Failed {
		v.invalid("failed", status.Failed, "cannot decrease the failed counter")
	}
	// A scaled-down elastic job drops indexes.
	elastic := isIndexed(&v.job.Spec) && ptr.Equal(v.job.Spec.Completions, v.job.Spec.Parallelism)
	if !elastic && status.Succeeded < before.Succeeded {
		v.invalid("succeeded", status.Succeeded, "cannot decrease the succeeded counter")
	}
	metBefore, metNow := isTrue(v.old, batchv1.JobSuccessCriteriaMet), isTrue(v.job, batchv1.JobSuccessCriteriaMet)
	v.condition(metBefore && !metNow, "cannot disable the SuccessCriteriaMet=True condition")
	v.condition(isTrue(v.old, batchv1.JobComplete) && !metBefore && metNow, "cannot set SuccessCriteriaMet=True for Job already has Complete=true conditions")
}
