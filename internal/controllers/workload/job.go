package workload

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"skiff/internal/client"
	"skiff/internal/controller"
)

var jobKind = batchv1.SchemeGroupVersion.WithKind("Job")

// Job runs pods until enough of them have succeeded.
//
// Pods have a finalizer until they are counted, so that none is missed: the UID of a finished pod is first added to the status
// (uncountedTerminatedPods), then the finalizer is removed, and when the cache shows that, the pod is counted.
var Job = controller.Definition{
	Name: "job-controller", Aliases: []string{"job"}, Queue: "job", Workers: 5,
	New: newJobs,
}

// orphanKeyPrefix marks keys of pods with the tracking finalizer whose job may be gone.
const orphanKeyPrefix = "pod/"

type jobs struct {
	setup   *controller.Setup
	jobs    client.Informer[*batchv1.Job]
	pods    controller.Dependents[*corev1.Pod]
	metrics *jobMetrics
}

func newJobs(s *controller.Setup) (controller.Syncer, error) {
	c := &jobs{setup: s, jobs: client.InformerFor[*batchv1.Job](s.Informers), metrics: newJobMetrics()}
	if err := s.Register(c.metrics.collectors()...); err != nil {
		return nil, err
	}
	var err error
	if c.pods, err = controller.DependentsOf[*corev1.Pod](s); err != nil {
		return nil, err
	}
	enqueue := func(job *batchv1.Job) { s.Enqueue(controller.KeyOf(job)) }
	onFinish := func(job *batchv1.Job) {
		for _, pod := range c.pods.ControlledBy(job.UID) {
			c.enqueueOrphanPod(pod)
		}
		enqueue(job)
	}
	onUpdate := func(_, job *batchv1.Job) {
		if jobFinished(job) {
			onFinish(job)
		} else {
			enqueue(job)
		}
	}
	if err := c.jobs.AddEventHandler(enqueue, onUpdate, onFinish); err != nil {
		return nil, fmt.Errorf("watch jobs: %w", err)
	}
	selector := func(job *batchv1.Job) (labels.Selector, error) {
		return metav1.LabelSelectorAsSelector(job.Spec.Selector)
	}
	if err := controller.WatchDependents[*corev1.Pod](s, jobKind, selector); err != nil {
		return nil, err
	}
	onPodUpdate := func(old, pod *corev1.Pod) {
		c.metrics.podChanged(old, pod)
		c.enqueueOrphanPod(pod)
	}
	onPodAdd := func(pod *corev1.Pod) { onPodUpdate(nil, pod) }
	onPodDelete := func(pod *corev1.Pod) { c.metrics.podChanged(pod, nil) }
	if err := client.InformerFor[*corev1.Pod](s.Informers).AddEventHandler(onPodAdd, onPodUpdate, onPodDelete); err != nil {
		return nil, fmt.Errorf("watch pods: %w", err)
	}
	jobSyncer := controller.NewSyncer(s, c)
	return controller.SyncFunc(func(ctx context.Context, key controller.Key) error {
		if name, ok := strings.CutPrefix(key.Name, orphanKeyPrefix); ok {
			return c.syncOrphanPod(ctx, key, name)
		}
		return jobSyncer.Sync(ctx, key)
	}), nil
}

// enqueueOrphanPod enqueues a pod that has the finalizer but no job that would remove it.
func (c *jobs) enqueueOrphanPod(pod *corev1.Pod) {
	if isTracked(pod) && c.isOrphanPod(pod) {
		c.setup.Enqueue(controller.Key{Namespace: pod.Namespace, Name: orphanKeyPrefix + pod.Name})
	}
}

// isOrphanPod reports whether no job tracks the pod.
func (c *jobs) isOrphanPod(pod *corev1.Pod) bool {
	ref := metav1.GetControllerOfNoCopy(pod)
	if ref == nil {
		return true
	}
	if ref.Kind != jobKind.Kind || ref.APIVersion != batchv1.SchemeGroupVersion.String() {
		return false
	}
	job, ok := c.jobs.Get(pod.Namespace, ref.Name)
	if !ok || job.UID != ref.UID {
		return true
	}
	return !managedByExternalController(job) && jobFinished(job)
}

func (c *jobs) syncOrphanPod(ctx context.Context, key controller.Key, name string) error {
	pod, ok := c.pods.Get(key.Namespace, name)
	if !ok || !isTracked(pod) || !c.isOrphanPod(pod) {
		return nil
	}
	var plan controller.Plan
	plan.AddStep(removingFinalizer(pod))
	return c.setup.Apply(ctx, key, plan)
}

// isTracked reports whether a pod has the tracking finalizer.
func isTracked(pod *corev1.Pod) bool {
	return slices.Contains(pod.Finalizers, batchv1.JobTrackingFinalizer)
}

// removingFinalizer is a write that removes the tracking finalizer.
func removingFinalizer(pod *corev1.Pod) controller.Write {
	patch := fmt.Appendf(nil, `{"metadata":{"$deleteFromPrimitiveList/finalizers":[%q]}}`, batchv1.JobTrackingFinalizer)
	return controller.NewPatch(pod, client.StrategicPatch, patch).Ignoring(metav1.StatusReasonNotFound)
}

// managedByExternalController reports whether spec.managedBy names another controller.
func managedByExternalController(job *batchv1.Job) bool {
	return job.Spec.ManagedBy != nil && *job.Spec.ManagedBy != batchv1.JobControllerName
}

func jobFinished(job *batchv1.Job) bool {
	return isTrue(job.Status.Conditions, batchv1.JobComplete) || isTrue(job.Status.Conditions, batchv1.JobFailed)
}

func jobCondition(conditions []batchv1.JobCondition, t batchv1.JobConditionType) *batchv1.JobCondition {
	for i := range conditions {
		if conditions[i].Type == t {
			return &conditions[i]
		}
	}
	return nil
}

func isTrue(conditions []batchv1.JobCondition, t batchv1.JobConditionType) bool {
	c := jobCondition(conditions, t)
	return c != nil && c.Status == corev1.ConditionTrue
}

// jobView is the observed state of one job.
type jobView struct {
	job  *batchv1.Job
	pods []*corev1.Pod // those it controls and the orphans of its namespace
	now  time.Time
}

// Size counts the pods.
func (v jobView) Size() int { return len(v.pods) }

// Observe gathers the job and its pods. Finished jobs and those of external controllers are ignored.
func (c *jobs) Observe(key controller.Key) (jobView, bool) {
	job, ok := c.jobs.Get(key.Namespace, key.Name)
	if !ok || managedByExternalController(job) || jobFinished(job) {
		return jobView{}, false
	}
	return jobView{job: job, pods: c.pods.Claimable(job, selectorOf(job.Spec.Selector)), now: time.Now()}, true
}

// Reconcile counts, creates and deletes pods until the job is finished.
func (c *jobs) Reconcile(v jobView) controller.Plan {
	plan := v.reconcile()
	plan.OnWrite = c.metrics.observeWrites(v)
	return plan
}

// Applied counts the sync.
func (c *jobs) Applied(v jobView, plan controller.Plan, err error) {
	c.metrics.synced(v.job, plan, v.now, err)
}
