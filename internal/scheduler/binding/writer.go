package binding

import (
	"context"
	"math/rand/v2"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"

	"skiff/internal/client"
)

// Writer writes what a scheduler decides to the API server. Its methods are safe for concurrent use. Updates fail with a conflict if the
// object has changed; DeletePod and DeleteResourceClaim do so if another object has the name now. Tests replace it.
type Writer interface {
	// Bind assigns a pod to a node. An error means that the pod is not assigned to it.
	Bind(ctx context.Context, pod *corev1.Pod, node string) error
	// PatchStatus applies a strategic merge patch to the status of a pod.
	PatchStatus(ctx context.Context, pod *corev1.Pod, patch []byte) error
	DeletePod(ctx context.Context, pod *corev1.Pod) error
	UpdatePersistentVolume(ctx context.Context, pv *corev1.PersistentVolume) (*corev1.PersistentVolume, error)
	UpdatePersistentVolumeClaim(ctx context.Context, claim *corev1.PersistentVolumeClaim) (*corev1.PersistentVolumeClaim, error)
	GetResourceClaim(ctx context.Context, claim *resourcev1.ResourceClaim) (*resourcev1.ResourceClaim, error)
	CreateResourceClaim(ctx context.Context, claim *resourcev1.ResourceClaim) (*resourcev1.ResourceClaim, error)
	DeleteResourceClaim(ctx context.Context, claim *resourcev1.ResourceClaim) error
	UpdateResourceClaim(ctx context.Context, claim *resourcev1.ResourceClaim) (*resourcev1.ResourceClaim, error)
	UpdateResourceClaimStatus(ctx context.Context, claim *resourcev1.ResourceClaim) (*resourcev1.ResourceClaim, error)
}

// apiWriter is the Writer that uses a client.
type apiWriter struct {
	pods           client.Resource[*corev1.Pod]
	volumes        client.Resource[*corev1.PersistentVolume]
	volumeClaims   client.Resource[*corev1.PersistentVolumeClaim]
	resourceClaims client.Resource[*resourcev1.ResourceClaim]
}

// NewWriter returns the Writer that uses a client. It repeats bindings and status patches while the server is unavailable.
func NewWriter(c *client.Client) Writer {
	return &apiWriter{
		pods: client.For[*corev1.Pod](c), volumes: client.For[*corev1.PersistentVolume](c), volumeClaims: client.For[*corev1.PersistentVolumeClaim](c),
		resourceClaims: client.For[*resourcev1.ResourceClaim](c),
	}
}

// Bind checks whether the pod was bound if the response to its binding was lost.
func (w *apiWriter) Bind(ctx context.Context, pod *corev1.Pod, node string) error {
	err := retried(ctx, func() error {
		return w.pods.CreateSubresource(ctx, types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}, "binding", &corev1.Binding{
			ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
			Target:     corev1.ObjectReference{Kind: "Node", Name: node},
		}, nil)
	})
	// The binding may have been written even though its response was lost. The resources of such a pod must not be given to another.
	for pause := 10 * time.Millisecond; err != nil && ctx.Err() == nil; pause = min(5*pause, 5*time.Second) {
		current, unknown := w.pods.Get(ctx, pod.Namespace, pod.Name)
		if unknown == nil && current.UID == pod.UID && current.Spec.NodeName == node {
			return nil
		}
		if unknown == nil || apierrors.IsNotFound(unknown) || apierrors.IsForbidden(unknown) {
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(jitter(pause)):
		}
	}
	return err
}

func (w *apiWriter) PatchStatus(ctx context.Context, pod *corev1.Pod, patch []byte) error {
	return retried(ctx, func() error {
		_, err := w.pods.Patch(ctx, pod.Namespace, pod.Name, client.RawPatch(client.StrategicPatch, patch), client.WriteOptions{Subresource: "status"})
		return err
	})
}

func (w *apiWriter) DeletePod(ctx context.Context, pod *corev1.Pod) error {
	return w.pods.Delete(ctx, pod.Namespace, pod.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}})
}

func (w *apiWriter) UpdatePersistentVolume(ctx context.Context, pv *corev1.PersistentVolume) (*corev1.PersistentVolume, error) {
	return w.volumes.Update(ctx, pv, client.WriteOptions{})
}

func (w *apiWriter) UpdatePersistentVolumeClaim(ctx context.Context, claim *corev1.PersistentVolumeClaim) (*corev1.PersistentVolumeClaim, error) {
	return w.volumeClaims.Update(ctx, claim, client.WriteOptions{})
}

func (w *apiWriter) GetResourceClaim(ctx context.Context, claim *resourcev1.ResourceClaim) (*resourcev1.ResourceClaim, error) {
	return w.resourceClaims.Get(ctx, claim.Namespace, claim.Name)
}

func (w *apiWriter) CreateResourceClaim(ctx context.Context, claim *resourcev1.ResourceClaim) (*resourcev1.ResourceClaim, error) {
	return w.resourceClaims.Create(ctx, claim, client.WriteOptions{})
}

func (w *apiWriter) DeleteResourceClaim(ctx context.Context, claim *resourcev1.ResourceClaim) error {
	return w.resourceClaims.Delete(ctx, claim.Namespace, claim.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &claim.UID}})
}

func (w *apiWriter) UpdateResourceClaim(ctx context.Context, claim *resourcev1.ResourceClaim) (*resourcev1.ResourceClaim, error) {
	return w.resourceClaims.Update(ctx, claim, client.WriteOptions{})
}

func (w *apiWriter) UpdateResourceClaimStatus(ctx context.Context, claim *resourcev1.ResourceClaim) (*resourcev1.ResourceClaim, error) {
	return w.resourceClaims.UpdateStatus(ctx, claim)
}

// retried repeats a write a few times while the server is unavailable.
func retried(ctx context.Context, write func() error) error {
	pause := 10 * time.Millisecond
	for try := 1; ; try++ {
		err := write()
		retriable := apierrors.IsInternalError(err) || apierrors.IsServiceUnavailable(err) || utilnet.IsConnectionRefused(err) || apierrors.IsTooManyRequests(err)
		if err == nil || !retriable || try == 5 {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(jitter(pause)):
			pause *= 5
		}
	}
}

// jitter adds a random part to the pause before a retry.
func jitter(d time.Duration) time.Duration { return d + rand.N(d/2+1) }
