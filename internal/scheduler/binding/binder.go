package binding

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/scheduler/decision"
	"skiff/internal/scheduler/plugins"
	"skiff/internal/scheduler/snapshot"
)

// Config is what a Binder needs of the scheduler.
type Config struct {
	Writer Writer
	Log    *slog.Logger
	// WithSnapshot calls do with the snapshot while its lock is held.
	WithSnapshot func(do func(cluster *snapshot.Snapshot))
	// Background starts a write that is not waited for. The caller holds the snapshot's lock.
	Background func(write func())
	// BindWithExtender lets an extender bind the pod. It reports false if the Binder has to.
	BindWithExtender func(ctx context.Context, pod *corev1.Pod, node string) (handled bool, err error)
	// Timed measures an extension point until the function it returns is called with the result.
	Timed func(extensionPoint string, profile *plugins.Profile) func(error)
	// ClaimCreated is called after a request that creates a claim for extended resources, with its error.
	ClaimCreated func(claim *resourcev1.ResourceClaim, err error)
	// RecordEvent records an event about a pod.
	RecordEvent func(profile *plugins.Profile, pod *corev1.Pod, eventType, reason, message string)
}

// Binder binds pods that are assumed in the snapshot. Its methods are safe for concurrent use.
type Binder struct {
	Config

	mu sync.Mutex
	// preparing has the pods that wait for volumes and devices before they are bound, and the functions that cancel their binding.
	preparing map[types.UID]context.CancelCauseFunc
}

// New makes a Binder.
func New(config Config) *Binder {
	return &Binder{Config: config, preparing: map[types.UID]context.CancelCauseFunc{}}
}

// Bind writes a decision: volumes and devices first, then the binding itself. The caller does not hold the snapshot's lock.
func (b *Binder) Bind(ctx context.Context, d *decision.Decision, r *Reservation) error {
	pod := d.Pod.Pod
	if !r.empty() {
		// This may take long. The nominated node shows meanwhile where the pod will run.
		b.Nominate(ctx, pod, d.Node)
		done := b.Timed("PreBind", d.Profile)
		err := b.prepare(ctx, d, r)
		done(err)
		if err != nil {
			return err
		}
	}
	done := b.Timed("Bind", d.Profile)
	err := b.bindPod(ctx, d)
	done(err)
	return err
}

// prepare binds volumes and devices, unless the pod is preempted meanwhile.
func (b *Binder) prepare(ctx context.Context, d *decision.Decision, r *Reservation) error {
	uid := d.Pod.Pod.UID
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	b.setPreparing(uid, cancel)
	err := b.prepareNode(ctx, d, r)
	b.setPreparing(uid, nil)
	if err == nil {
		err = context.Cause(ctx)
	}
	return err
}

// setPreparing sets the function that cancels the binding of a pod. It is nil when the pod does not wait any more.
func (b *Binder) setPreparing(uid types.UID, cancel context.CancelCauseFunc) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if cancel == nil {
		delete(b.preparing, uid)
		return
	}
	b.preparing[uid] = cancel
}

// prepareNode binds volumes and devices concurrently, because either may take long.
func (b *Binder) prepareNode(ctx context.Context, d *decision.Decision, r *Reservation) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var failed error
	var first sync.Once
	prepare := func(plugin string, err error) {
		if err != nil {
			first.Do(func() { failed = fmt.Errorf("running PreBind plugin %q: %w", plugin, err) })
			stop(err) // the other is not needed any more
		}
	}
	var volumes sync.WaitGroup
	if !r.volumes.Empty() {
		volumes.Go(func() { prepare(plugins.VolumeBindingName, b.bindVolumes(ctx, d, &r.volumes)) })
	}
	prepare(plugins.DynamicResourcesName, b.prepareDevices(ctx, d, r.devices))
	volumes.Wait()
	return failed
}

// bindPod writes the binding, or lets an extender write it.
func (b *Binder) bindPod(ctx context.Context, d *decision.Decision) error {
	pod := d.Pod.Pod
	if handled, err := b.BindWithExtender(ctx, pod, d.Node); handled {
		return err
	}
	if err := b.Writer.Bind(ctx, pod, d.Node); err != nil {
		return fmt.Errorf("running Bind plugin \"DefaultBinder\": %w", err)
	}
	return nil
}

// Cancel ends the binding of a pod that still waits for volumes or devices: Bind fails with the cause. It reports false when the pod does
// not wait.
func (b *Binder) Cancel(uid types.UID, cause error) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	cancel := b.preparing[uid]
	if cancel == nil {
		return false
	}
	cancel(cause)
	return true
}

// Nominate writes the nominated node of a pod; "" removes it.
func (b *Binder) Nominate(ctx context.Context, pod *corev1.Pod, node string) {
	if pod.Status.NominatedNodeName == node {
		return
	}
	patch := statusPatch(pod, map[string]any{"nominatedNodeName": orNull(node)})
	if err := b.Writer.PatchStatus(ctx, pod, patch); err != nil && !apierrors.IsNotFound(err) && ctx.Err() == nil {
		b.Log.Warn("failed to write nominated node", "pod", snapshot.ObjectKey(pod), "node", node, "error", err)
	}
}
