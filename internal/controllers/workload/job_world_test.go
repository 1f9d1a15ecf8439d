package workload

import (
	"fmt"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestJobsReachAFixedPoint runs jobs of all sorts with pods that fail, are deleted and suspended. In the end each has
// finished, every pod was counted once, and no finalizer is left.
func TestJobsReachAFixedPoint(t *testing.T) {
	seeds(t, 12, func(t *testing.T, seed uint64) {
		inWorld(t, seed, 3, func(w *world) {
			stop := w.run(Job)
			indexed := w.chance(0.5)
			job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "work"}, Spec: batchv1.JobSpec{
				Parallelism: new(int32(1 + w.random.IntN(5))), Completions: new(int32(1 + w.random.IntN(8))), BackoffLimit: new(int32(w.random.IntN(40))),
				Template: template("image:1"),
			}}
			job.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
			if indexed {
				job.Spec.CompletionMode = new(batchv1.IndexedCompletion)
				if w.chance(0.5) {
					job.Spec.BackoffLimitPerIndex = new(int32(w.random.IntN(3)))
				}
			}
			if w.chance(0.3) {
				job.Spec.PodReplacementPolicy = new(batchv1.Failed)
			}
			create(w, job)
			w.chaos(0.3, 0.5)
			for range 12 {
				w.pass(time.Duration(w.random.IntN(20)) * time.Second)
				if jobFinished(get[*batchv1.Job](w, "work")) {
					break
				}
				switch w.random.IntN(4) {
				case 0:
					if pods := list[*corev1.Pod](w); len(pods) > 0 {
						remove(w, pick(w, pods...))
					}
				case 1:
					edit(w, "work", func(j *batchv1.Job) { j.Spec.Suspend = new(!*j.Spec.Suspend) })
				case 2:
					edit(w, "work", func(j *batchv1.Job) { j.Spec.Parallelism = new(int32(w.random.IntN(6))) })
				case 3:
					w.pass(time.Minute)
				}
			}
			if !jobFinished(get[*batchv1.Job](w, "work")) {
				edit(w, "work", func(j *batchv1.Job) { j.Spec.Suspend = new(false); j.Spec.Parallelism = new(int32(3)) })
			}
			w.chaos(0, 1)
			for range 40 {
				w.pass(time.Minute)
				w.nudge()
			}
			done := get[*batchv1.Job](w, "work")
			s := done.Status
			if !jobFinished(done) || s.Active != 0 || *s.Ready != 0 || *s.Terminating != 0 || len(s.UncountedTerminatedPods.Succeeded)+len(s.UncountedTerminatedPods.Failed) != 0 {
				t.Errorf("ended as %+v", s)
			}
			if isTrue(s.Conditions, batchv1.JobComplete) && (s.Succeeded < *done.Spec.Completions || s.CompletionTime == nil || !isTrue(s.Conditions, batchv1.JobSuccessCriteriaMet)) {
				t.Errorf("complete: %+v", s)
			}
			if isTrue(s.Conditions, batchv1.JobFailed) && !isTrue(s.Conditions, batchv1.JobFailureTarget) {
				t.Errorf("failed: %+v", s)
			}
			if indexed && isTrue(s.Conditions, batchv1.JobComplete) {
				if want := (indexes{{0, int(*done.Spec.Completions) - 1}}).String(); s.CompletedIndexes != want {
					t.Errorf("completed %s, want %s", s.CompletedIndexes, want)
				}
			}
			for _, pod := range list[*corev1.Pod](w) {
				if isTracked(pod) || active(pod) {
					t.Errorf("pod %s is left: %v %v", pod.Name, pod.Status.Phase, pod.Finalizers)
				}
			}
			stop()
			w.assertSettled(Job)
		})
	})
}

// TestJobPodsAreFreed removes the finalizer from pods whose job is gone or which have no job at all.
func TestJobPodsAreFreed(t *testing.T) {
	inWorld(t, 1, 1, func(w *world) {
		stop := w.run(Job)
		tmpl := template("image:1")
		for i, ref := range [][]metav1.OwnerReference{nil, {{APIVersion: "batch/v1", Kind: "Job", Name: "gone", UID: "gone", Controller: new(true)}},
			{{APIVersion: "example.com/v1", Kind: "Job", Name: "other", UID: "other", Controller: new(true)}}} {
			create(w, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint("p", i), Finalizers: []string{batchv1.JobTrackingFinalizer}, OwnerReferences: ref}, Spec: tmpl.Spec})
		}
		w.pass(time.Minute)
		stop()
		for i, want := range []bool{false, false, true} {
			if pod := get[*corev1.Pod](w, fmt.Sprint("p", i)); isTracked(pod) != want {
				t.Errorf("pod %d: %v", i, pod.Finalizers)
			}
		}
	})
}
