package admission

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/lru"

	"skiff/internal/kind"
	"skiff/internal/quota"
)

// resourceQuota charges writes to the quotas of their namespace. The charge is written to the status of the quotas before the
// object is stored, so that writers on several servers see one another; it is refunded when the write fails.
//
// Invariant: the charges minus the refunds never exceed a quota, with any number of writers. A refund must keep it: if the quota
// controller has recalculated the usage since the charge, the failed write is not included, and refunding it would allow too
// much. So a charge is refunded only if nobody else has written the quota since (epoch); otherwise the next recalculation
// corrects it.
//
// The writers of a namespace are processed in batches (queue): all that wait together cost one write per quota.
type resourceQuota struct {
	client   lazyClient
	registry *quota.Registry
	limited  []quota.LimitedResource
	claims   *extendedClaims

	mu     sync.Mutex
	queues map[string]*queue // by namespace; only those in use

	epochs    *lru.Cache // namespace/name of a quota → epoch
	lastEpoch atomic.Int64
}

// quotaTimeout bounds the processing of a batch.
const quotaTimeout = 10 * time.Second

// maxEpochs is the size of the cache of epochs. A charge to a quota that was evicted is not refunded.
const maxEpochs = 4096

// epoch is a period during which only this plugin has written a quota.
type epoch struct {
	number          int
	resourceVersion string // of the quota as this plugin last wrote it
}

// queue has the writers of a namespace: one processes a batch for itself and all that waited when it began; the others wait.
type queue struct {
	busy    bool
	waiting []*charge
}

// charge is a charge or refund of one write.
type charge struct {
	a         *Attributes
	write     quota.Write
	evaluator *quota.Evaluator
	refund    bool
	charged   []quotaCharge
	err       error
	// done is closed when the charge has been processed; next is sent to when its writer must process the next batch.
	done chan struct{}
	next chan struct{}
}

// quotaCharge is what was charged to one quota.
type quotaCharge struct {
	quota  string
	amount corev1.ResourceList
	epoch  int
}

func newResourceQuota(client lazyClient, limited []quota.LimitedResource) *resourceQuota {
	claims := &extendedClaims{}
	return &resourceQuota{
		client: client, limited: limited, claims: claims, registry: quota.NewRegistry(claimUsageLister{client, claims}),
		queues: map[string]*queue{}, epochs: lru.New(maxEpochs),
	}
}

func (*resourceQuota) Name() string { return "ResourceQuota" }

// Handles creation, and updates of the resources whose usage is more than the number of objects.
func (*resourceQuota) Handles(a *Attributes) bool {
	switch {
	case a.Namespace == "" || a.is(namespaces):
		return false
	case a.Operation == Create:
		return a.Subresource == "" && !quota.IsIgnored(a.Resource.GroupResource())
	case a.Operation == Update:
		return a.is(pods) || a.is(services) || a.is(persistentVolumeClaims) || a.is(resourceClaims)
	}
	return false
}

func (r *resourceQuota) Validate(ctx context.Context, a *Attributes) error {
	c := &charge{a: a, evaluator: r.registry.For(a.Resource.GroupResource()), write: quota.Write{Subresource: a.Subresource, Object: a.Object, Old: a.Old}}
	if c.evaluator == nil || !c.evaluator.AffectsUsage(c.write) {
		return nil
	}
	if len(r.limited) == 0 {
		// Most namespaces have no quotas.
		quotas, err := r.quotas(ctx, a.Namespace)
		if err != nil || len(quotas) == 0 {
			return err
		}
	}
	r.queue(ctx, c)
	if len(c.charged) > 0 {
		a.charged = c
	}
	return c.err
}

// Undo refunds what Validate has charged.
func (r *resourceQuota) Undo(ctx context.Context, a *Attributes) {
	if a.charged == nil {
		return
	}
	refund := &charge{a: a, refund: true, charged: a.charged.charged}
	a.charged = nil
	// The quota controller corrects what cannot be refunded.
	r.queue(ctx, refund)
}

func (r *resourceQuota) quotas(ctx context.Context, namespace string) ([]*corev1.ResourceQuota, error) {
	quotas, err := list[*corev1.ResourceQuota](ctx, r.client, resourceQuotas, namespace)
	if err != nil {
		return nil, fmt.Errorf("error resolving quota: %w", err)
	}
	return quotas, nil
}

// queue returns when the charge has been processed. One of the waiting writers processes the batch for all. Its time is bounded by
// quotaTimeout, and so is the wait.
func (r *resourceQuota) queue(ctx context.Context, c *charge) {
	c.done, c.next = make(chan struct{}), make(chan struct{}, 1)
	namespace := c.a.Namespace
	r.mu.Lock()
	q := r.queues[namespace]
	if q == nil {
		q = &queue{}
		r.queues[namespace] = q
	}
	q.waiting = append(q.waiting, c)
	first := !q.busy
	q.busy = true
	r.mu.Unlock()
	if !first {
		select {
		case <-c.done:
			return
		case <-c.next:
		}
	}
	r.mu.Lock()
	batch := q.waiting
	q.waiting = nil
	r.mu.Unlock()
	r.process(ctx, namespace, q, batch)
}

// process evaluates a batch and then wakes the next writer, also after a panic.
func (r *resourceQuota) process(ctx context.Context, namespace string, q *queue, batch []*charge) {
	evaluated := false
	defer func() {
		r.mu.Lock()
		if len(q.waiting) > 0 {
			q.waiting[0].next <- struct{}{}
		} else {
			delete(r.queues, namespace)
		}
		r.mu.Unlock()
		for _, c := range batch {
			if !evaluated {
				c.err = apierrors.NewInternalError(errors.New("resource quota evaluation failed"))
			}
			close(c.done)
		}
	}()
	// Other writers depend on the batch, so it continues when the client of this one has disconnected.
	work, cancel := context.WithTimeout(context.WithoutCancel(ctx), quotaTimeout)
	defer cancel()
	r.evaluate(work, namespace, batch)
	evaluated = true
}

// delta is the change of one quota by a charge.
type delta struct {
	c       *charge
	amount  corev1.ResourceList
	epoch   int  // of a refund
	applied bool // to the quota's latest state
	err     error
}

// evaluate checks a batch of charges together and writes the result, with one write per quota.
func (r *resourceQuota) evaluate(ctx context.Context, namespace string, batch []*charge) {
	quotas, err := r.quotas(ctx, namespace)
	if err != nil {
		for _, c := range batch {
			c.err = timedOut(ctx, err)
		}
		return
	}
	deltas := r.plan(quotas, batch)
	for i, q := range quotas {
		r.write(ctx, namespace, q.Name, deltas[i])
	}
	for _, c := range batch {
		if c.err == nil || len(c.charged) == 0 || c.refund {
			continue
		}
		// One quota was charged and another is exceeded.
		for _, p := range c.charged {
			r.write(ctx, namespace, p.quota, []*delta{{c: &charge{refund: true}, amount: p.amount, epoch: p.epoch}})
		}
		c.charged = nil
	}
}

// plan computes the deltas of all charges, and rejects charges that exceed a quota before anything is written. deltas[i] are those
// of quotas[i].
func (r *resourceQuota) plan(quotas []*corev1.ResourceQuota, batch []*charge) (deltas [][]*delta) {
	now := time.Now()
	deltas = make([][]*delta, len(quotas))
	projected := make([]*corev1.ResourceQuota, len(quotas))
	for i, q := range quotas {
		projected[i] = &corev1.ResourceQuota{ObjectMeta: q.ObjectMeta, Spec: q.Spec, Status: q.Status}
	}
	for _, c := range batch {
		if c.refund {
			for _, p := range c.charged {
				for i, q := range quotas {
					if q.Name == p.quota {
						deltas[i] = append(deltas[i], &delta{c: c, amount: p.amount, epoch: p.epoch})
					}
				}
			}
			continue
		}
		charges, err := c.evaluator.Charge(projected, c.write, r.limited, now)
		for i := 0; err == nil && i < len(charges); i++ {
			if charges[i] != nil && c.a.Subresource != "status" {
				err = quota.CheckFits(projected[i], charges[i])
			}
		}
		if err != nil {
			c.fail(err)
			continue
		}
		if c.a.DryRun {
			continue
		}
		for i, amount := range charges {
			if len(amount) > 0 {
				projected[i].Status.Used = quota.Add(projected[i].Status.Used, amount)
				deltas[i] = append(deltas[i], &delta{c: c, amount: amount})
			}
		}
	}
	return deltas
}

// fail sets the error of a charge.
func (c *charge) fail(err error) {
	var exceeded *quota.ForbiddenError
	if errors.As(err, &exceeded) {
		err = Forbidden(c.a, err)
	}
	c.err = err
}

// errUnchanged aborts the update of a quota without changes.
var errUnchanged = errors.New("nothing to charge")

// write applies as many of the deltas as possible to the latest state of the quota.
func (r *resourceQuota) write(ctx context.Context, namespace, name string, deltas []*delta) {
	open := deltas[:0:0]
	for _, d := range deltas {
		if d.c.err == nil {
			open = append(open, d)
		}
	}
	if len(open) == 0 {
		return
	}
	key := namespace + "/" + name
	var current epoch
	written, err := r.client().Update(ctx, resourceQuotas, namespace, name, func(obj kind.Object) error {
		q, ok := obj.(*corev1.ResourceQuota)
		if !ok {
			return fmt.Errorf("quota %s is a %T", key, obj)
		}
		current = r.epochOf(key, q)
		return apply(q, open, current.number)
	})
	switch {
	case err == nil:
		current.resourceVersion = written.GetResourceVersion()
		r.epochs.Add(key, current)
	case errors.Is(err, errUnchanged):
	case apierrors.IsNotFound(err):
		return // the quota was deleted
	default:
		for _, d := range open {
			d.c.err = timedOut(ctx, err)
		}
		return
	}
	for _, d := range open {
		if d.err != nil {
			d.c.fail(d.err)
		} else if d.applied && !d.c.refund {
			d.c.charged = append(d.c.charged, quotaCharge{quota: name, amount: d.amount, epoch: current.number})
		}
	}
}

// apply applies the deltas that do not exceed the quota.
func apply(q *corev1.ResourceQuota, deltas []*delta, epoch int) error {
	changed := false
	for _, d := range deltas {
		d.applied, d.err = false, nil
		if d.c.refund {
			if d.epoch == epoch {
				q.Status.Used = quota.Subtract(q.Status.Used, d.amount)
				d.applied, changed = true, true
			}
			continue
		}
		if d.c.a.Subresource != "status" {
			if d.err = quota.CheckFits(q, d.amount); d.err != nil {
				continue
			}
		}
		q.Status.Used = quota.Add(q.Status.Used, d.amount)
		d.applied, changed = true, true
	}
	if !changed {
		return errUnchanged
	}
	return nil
}

// epochOf is the epoch of a state of a quota: a new one if somebody else has written it.
func (r *resourceQuota) epochOf(key string, q *corev1.ResourceQuota) epoch {
	if last, ok := r.epochs.Get(key); ok {
		if last := last.(epoch); last.resourceVersion == q.ResourceVersion {
			return last
		}
	}
	return epoch{number: int(r.lastEpoch.Add(1)), resourceVersion: q.ResourceVersion}
}

func timedOut(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return apierrors.NewInternalError(errors.New("resource quota evaluation timed out"))
	}
	return err
}

// Follow implements Follower.
func (r *resourceQuota) Follow(ctx context.Context, watcher Watcher) error {
	return r.claims.follow(ctx, watcher)
}

// claimUsageLister gives the quota package the objects that the usage of resource claims depends on.
type claimUsageLister struct {
	client lazyClient
	claims *extendedClaims
}

func (l claimUsageLister) DeviceClasses() ([]*resourcev1.DeviceClass, error) {
	return list[*resourcev1.DeviceClass](context.Background(), l.client, deviceClasses, "")
}

func (l claimUsageLister) Pod(namespace, name string) *corev1.Pod {
	pod, err := get[*corev1.Pod](context.Background(), l.client, pods, namespace, name)
	if err != nil {
		return nil
	}
	return pod
}

func (l claimUsageLister) ExtendedClaims(pod *corev1.Pod) ([]*resourcev1.ResourceClaim, error) {
	return l.claims.of(pod)
}
