package workload

import (
	"fmt"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/podstate"
	"skiff/test/world"
)

// TestJobsReachAFixedPoint runs jobs of all sorts with pods that fail, are deleted and suspended. In the end each has
// finished, every pod was counted once, and no finalizer is left.
func TestJobsReachAFixedPoint(t *testing.T) {
	seeds(t, 12, 3, func(w *world.World) {
		t := w.T
		stop := w.Run(Job)
		indexed := w.Chance(0.5)
		job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "work"}, Spec: batchv1.JobSpec{
			Parallelism: new(int32(1 + w.Random.IntN(5))), Completions: new(int32(1 + w.Random.IntN(8))), BackoffLimit: new(int32(w.Random.IntN(40))),
			Template: template("image:1"),
		}}
		job.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
		if indexed {
			job.Spec.CompletionMode = new(batchv1.IndexedCompletion)
			if w.Chance(0.5) {
				job.Spec.BackoffLimitPerIndex = new(int32(w.Random.IntN(3)))
			}
		}
		if w.Chance(0.3) {
			job.Spec.PodReplacementPolicy = new(batchv1.Failed)
		}
		world.Create(w, job)
		w.Chaos(0.3, 0.5)
		for range 12 {
			w.Pass(time.Duration(w.Random.IntN(20)) * time.Second)
			if jobFinished(world.Get[*batchv1.Job](w, "default", "work")) {
				break
			}
			switch w.Random.IntN(4) {
			case 0:
				if pods := world.List[*corev1.Pod](w); len(pods) > 0 {
					w.Remove(world.Pick(w, pods...))
				}
			case 1:
				world.Edit(w, "default", "work", func(j *batchv1.Job) { j.Spec.Suspend = new(!*j.Spec.Suspend) })
			case 2:
				world.Edit(w, "default", "work", func(j *batchv1.Job) { j.Spec.Parallelism = new(int32(w.Random.IntN(6))) })
			case 3:
				w.Pass(time.Minute)
			}
		}
		if !jobFinished(world.Get[*batchv1.Job](w, "default", "work")) {
			world.Edit(w, "default", "work", func(j *batchv1.Job) { j.Spec.Suspend = new(false); j.Spec.Parallelism = new(int32(3)) })
		}
		w.Chaos(0, 1)
		for range 40 {
			w.Pass(time.Minute)
			w.Nudge()
		}
		done := world.Get[*batchv1.Job](w, "default", "work")
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
			if want := (indexSet{{0, int(*done.Spec.Completions) - 1}}).String(); s.CompletedIndexes != want {
				t.Errorf("completed %s, want %s", s.CompletedIndexes, want)
			}
		}
		for _, pod := range world.List[*corev1.Pod](w) {
			if isTracked(pod) || podstate.IsActive(pod) {
				t.Errorf("pod %s is left: %v %v", pod.Name, pod.Status.Phase, pod.Finalizers)
			}
		}
		stop()
		w.AssertSettled(Job)
	})
}

// TestJobPodsAreFreed removes the finalizer from pods whose job is gone or which have no job at all.
func TestJobPodsAreFreed(t *testing.T) {
	inWorld(t, 1, func(w *world.World) {
		stop := w.Run(Job)
		tmpl := template("image:1")
		for i, ref := range [][]metav1.OwnerReference{nil, {{APIVersion: "batch/v1", Kind: "Job", Name: "gone", UID: "gone", Controller: new(true)}},
			{{APIVersion: "example.com/v1", Kind: "Job", Name: "other", UID: "other", Controller: new(true)}}} {
			world.Create(w, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint("p", i), Finalizers: []string{batchv1.JobTrackingFinalizer}, OwnerReferences: ref}, Spec: tmpl.Spec})
		}
		w.Pass(time.Minute)
		stop()
		for i, want := range []bool{false, false, true} {
			if pod := world.Get[*corev1.Pod](w, "default", fmt.Sprint("p", i)); isTracked(pod) != want {
				t.Errorf("pod %d: %v", i, pod.Finalizers)
			}
		}
	})
}
