package workload

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/controller"
	"skiff/test/metrics"
	"skiff/test/world"
)

// measured gives a world a registry for the metrics of its controllers.
func measured(w *world.World) *prometheus.Registry {
	registry := prometheus.NewRegistry()
	var err error
	if w.Metrics, err = controller.NewMetrics(registry); err != nil {
		w.T.Fatal(err)
	}
	return registry
}

// A job whose three pods succeed is counted as upstream counts it.
func TestJobMetrics(t *testing.T) {
	inWorld(t, 2, func(w *world.World) {
		registry := measured(w)
		w.Run(Job)
		w.Chaos(0, 1)
		job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "work"}, Spec: batchv1.JobSpec{
			Completions: new(int32(3)), Parallelism: new(int32(3)), BackoffLimit: new(int32(1)), Template: template("image:1"),
		}}
		job.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
		world.Create(w, job)
		for range 10 {
			w.Pass(time.Minute)
			w.Nudge()
		}
		metrics.Check(t, registry, map[string]float64{
			"job_controller_jobs_finished_total{completion_mode=NonIndexed,reason=CompletionsReached,result=succeeded}": 1,
			"job_controller_job_pods_finished_total{completion_mode=NonIndexed,result=succeeded}":                       3,
			"job_controller_terminated_pods_tracking_finalizer_total{event=add}":                                        3,
			"job_controller_terminated_pods_tracking_finalizer_total{event=delete}":                                     3,
			"job_controller_job_syncs_total{action=pods_created,completion_mode=NonIndexed,result=success}":             1,
		})
		values := metrics.Values(t, registry)
		for _, action := range []string{actionPodsCreated, actionTracking} {
			labels := "{action=" + action + ",completion_mode=NonIndexed,result=success}"
			if n := values["job_controller_job_syncs_total"+labels]; n == 0 || values["job_controller_job_sync_duration_seconds"+labels] != n {
				t.Errorf("%s: %v syncs, %v durations", action, n, values["job_controller_job_sync_duration_seconds"+labels])
			}
		}
	})
}

// The failure of a pod is counted by the action of the rule that matches it.
func TestPodFailurePolicyMetrics(t *testing.T) {
	m := newJobMetrics()
	registry := prometheus.NewRegistry()
	registry.MustRegister(m.collectors()...)
	job := &batchv1.Job{Spec: batchv1.JobSpec{PodFailurePolicy: &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{{
		Action:          batchv1.PodFailurePolicyActionIgnore,
		OnPodConditions: []batchv1.PodFailurePolicyOnPodConditionsPattern{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue}},
	}}}}}
	observe := m.observeWrites(jobView{job: job})
	pod := &corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodFailed, Conditions: []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue}}}}
	observe(pod)
	observe(&corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodFailed}}) // matches no rule
	observe(&corev1.Pod{})                                                  // was not failed
	metrics.Check(t, registry, map[string]float64{"job_controller_pod_failures_handled_by_failure_policy_total{action=Ignore}": 1})
}

// The jobs of a CronJob are counted with the time they are late.
func TestCronJobMetrics(t *testing.T) {
	inWorld(t, 1, func(w *world.World) {
		registry := measured(w)
		w.Run(CronJob)
		jobTemplate := template("image:1")
		jobTemplate.Spec.RestartPolicy = corev1.RestartPolicyNever
		world.Create(w, &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "tick"}, Spec: batchv1.CronJobSpec{
			Schedule: "* * * * *", JobTemplate: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{Template: jobTemplate}},
		}})
		w.Pass(3*time.Minute + time.Second)
		jobs := world.List[*batchv1.Job](w)
		if len(jobs) == 0 {
			t.Fatal("no job was created")
		}
		metrics.Check(t, registry, map[string]float64{"cronjob_controller_job_creation_skew_duration_seconds{}": float64(len(jobs))})
	})
}
