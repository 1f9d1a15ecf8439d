package workload

import (
	"context"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"skiff/internal/client"
	"skiff/internal/controller"
)

// TTLAfterFinished deletes finished jobs when their TTL has expired.
var TTLAfterFinished = controller.Definition{
	Name: "ttl-after-finished-controller", Aliases: []string{"ttl-after-finished"}, Queue: "ttl_jobs_to_delete", Workers: 5,
	New: func(s *controller.Setup) (controller.Syncer, error) {
		jobs := client.InformerFor[*batchv1.Job](s.Informers)
		sync := func(ctx context.Context, key controller.Key) error {
			job, ok := jobs.Get(key.Namespace, key.Name)
			if !ok {
				return nil
			}
			return syncTTL(ctx, s, key, job)
		}
		return controller.SyncFunc(sync), controller.Watch(s, func(job *batchv1.Job) []controller.Key {
			if _, expires := expiry(job); !expires {
				return nil
			}
			return []controller.Key{controller.KeyOf(job)}
		})
	},
}

func syncTTL(ctx context.Context, s *controller.Setup, key controller.Key, job *batchv1.Job) error {
	at, expires := expiry(job)
	if !expires {
		return nil
	}
	if left := time.Until(at); left > 0 {
		s.EnqueueAfter(key, left)
		return nil
	}
	// Read the live job: its TTL may have changed, and the deletion is final.
	live, err := client.For[*batchv1.Job](s.Client).Get(ctx, key.Namespace, key.Name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if at, expires = expiry(live); !expires {
		return nil
	}
	if left := time.Until(at); left > 0 {
		s.EnqueueAfter(key, left)
		return nil
	}
	deletion := controller.NewDelete(live)
	deletion.DeleteOptions.PropagationPolicy = ptr.To(metav1.DeletePropagationForeground)
	var plan controller.Plan
	plan.AddStep(deletion)
	return s.Apply(ctx, key, plan)
}

// expiry is the time at which a job is to be deleted; false if it has no TTL or is not finished.
func expiry(job *batchv1.Job) (time.Time, bool) {
	if job.Spec.TTLSecondsAfterFinished == nil || job.DeletionTimestamp != nil {
		return time.Time{}, false
	}
	for _, c := range job.Status.Conditions {
		if (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) && c.Status == corev1.ConditionTrue && !c.LastTransitionTime.IsZero() {
			return c.LastTransitionTime.Add(seconds(*job.Spec.TTLSecondsAfterFinished)), true
		}
	}
	return time.Time{}, false
}
