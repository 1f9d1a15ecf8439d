package workload

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"skiff/internal/controller"
	"skiff/internal/kind"
	"skiff/internal/podstate"
)

// The values of the label action of job syncs.
const (
	actionReconciling = "reconciling" // the job is about to finish
	actionTracking    = "tracking"
	actionPodsCreated = "pods_created"
	actionPodsDeleted = "pods_deleted"
)

// jobMetrics are the metrics of the job controller, under upstream's names.
type jobMetrics struct {
	syncDuration                                              *prometheus.HistogramVec
	syncs, finished, podsFinished, policyMatches, trackedPods *prometheus.CounterVec
}

func newJobMetrics() *jobMetrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Subsystem: "job_controller", Name: name, Help: help}, labels)
	}
	return &jobMetrics{
		syncDuration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Subsystem: "job_controller", Name: "job_sync_duration_seconds", Help: "The time it took to sync a job", Buckets: prometheus.ExponentialBuckets(0.004, 2, 15),
		}, []string{"completion_mode", "result", "action"}),
		syncs:        counter("job_syncs_total", "The number of job syncs", "completion_mode", "result", "action"),
		finished:     counter("jobs_finished_total", "The number of finished jobs", "completion_mode", "result", "reason"),
		podsFinished: counter("job_pods_finished_total", "The number of finished Pods that are fully tracked", "completion_mode", "result"),
		policyMatches: counter("pod_failures_handled_by_failure_policy_total",
			"The number of failed Pods handled by failure policy, by the action of the matched rule.", "action"),
		trackedPods: counter("terminated_pods_tracking_finalizer_total",
			`The number of terminated pods (phase=Failed|Succeeded) that have the finalizer batch.kubernetes.io/job-tracking. The event label can be "add" or "delete".`, "event"),
	}
}

func (m *jobMetrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.syncDuration, m.syncs, m.finished, m.podsFinished, m.policyMatches, m.trackedPods}
}

func completionMode(job *batchv1.Job) string {
	if job.Spec.CompletionMode != nil {
		return string(*job.Spec.CompletionMode)
	}
	return string(batchv1.NonIndexedCompletion)
}

// synced counts a sync of a job that began at a time.
func (m *jobMetrics) synced(job *batchv1.Job, plan controller.Plan, began time.Time, err error) {
	result := "success"
	if err != nil {
		result = "error"
	}
	labels := []string{completionMode(job), result, jobAction(job, plan)}
	m.syncs.WithLabelValues(labels...).Inc()
	m.syncDuration.WithLabelValues(labels...).Observe(time.Since(began).Seconds())
}

// jobAction is what a plan does, as the label action names it.
func jobAction(job *batchv1.Job, plan controller.Plan) string {
	if isTrue(job.Status.Conditions, batchv1.JobSuccessCriteriaMet) || isTrue(job.Status.Conditions, batchv1.JobFailureTarget) {
		return actionReconciling
	}
	for _, step := range plan.Steps {
		for _, w := range step.Writes {
			switch {
			case w.Verb == controller.Create:
				return actionPodsCreated
			case w.Verb == controller.Delete:
				return actionPodsDeleted
			}
		}
	}
	return actionTracking
}

// observeWrites returns a function that counts the pods and jobs which the writes for a job finish.
func (m *jobMetrics) observeWrites(v jobView) func(kind.Object) {
	last := v.job
	return func(obj kind.Object) {
		switch written := obj.(type) {
		case *batchv1.Job: // the status is written by one write after the other
			m.statusWritten(last, written)
			last = written
		case *corev1.Pod:
			// The finalizer of a pod is removed once, after the pod was counted.
			if !isTracked(written) && v.job.Spec.PodFailurePolicy != nil && jobPodFailed(written, v.job) {
				if action := matchPodFailurePolicy(v.job.Spec.PodFailurePolicy, written).action; action != "" {
					m.policyMatches.WithLabelValues(string(action)).Inc()
				}
			}
		}
	}
}

// statusWritten counts what a write of the status has finished.
func (m *jobMetrics) statusWritten(old, job *batchv1.Job) {
	mode := completionMode(job)
	for result, n := range map[string]int32{"succeeded": job.Status.Succeeded - old.Status.Succeeded, "failed": job.Status.Failed - old.Status.Failed} {
		if n > 0 {
			m.podsFinished.WithLabelValues(mode, result).Add(float64(n))
		}
	}
	if jobFinished(old) {
		return
	}
	if c := jobCondition(job.Status.Conditions, batchv1.JobComplete); c != nil && c.Status == corev1.ConditionTrue {
		m.finished.WithLabelValues(mode, "succeeded", c.Reason).Inc()
	} else if c := jobCondition(job.Status.Conditions, batchv1.JobFailed); c != nil && c.Status == corev1.ConditionTrue {
		m.finished.WithLabelValues(mode, "failed", c.Reason).Inc()
	}
}

// podChanged counts pods that terminate with the finalizer, and those whose finalizer is removed. A pod is nil before it is added and
// after it is deleted.
func (m *jobMetrics) podChanged(old, pod *corev1.Pod) {
	awaitsCounting := func(pod *corev1.Pod) bool {
		return pod != nil && isTracked(pod) && podstate.IsTerminal(pod)
	}
	switch before, after := awaitsCounting(old), awaitsCounting(pod); {
	case !before && after:
		m.trackedPods.WithLabelValues("add").Inc()
	case before && !after:
		m.trackedPods.WithLabelValues("delete").Inc()
	}
}

// newCreationSkew is the metric of the CronJob controller, under upstream's name.
func newCreationSkew() prometheus.Histogram {
	return prometheus.NewHistogram(prometheus.HistogramOpts{
		Subsystem: "cronjob_controller", Name: "job_creation_skew_duration_seconds",
		Help:    "Time between when a cronjob is scheduled to be run, and when the corresponding job is created",
		Buckets: prometheus.ExponentialBuckets(1, 2, 10),
	})
}

// observeCreationSkew observes a job that was written for a CronJob. Only jobs are created; other writes are of the CronJob.
func observeCreationSkew(skew prometheus.Observer) func(kind.Object) {
	return func(obj kind.Object) {
		job, ok := obj.(*batchv1.Job)
		if !ok {
			return
		}
		if scheduled, err := time.Parse(time.RFC3339, job.Annotations[batchv1.CronJobScheduledTimestampAnnotation]); err == nil {
			skew.Observe(job.CreationTimestamp.Sub(scheduled).Seconds())
		}
	}
}
