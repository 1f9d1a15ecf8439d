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

// resourceQuota charges writes to the quotas of their namespace. The charge is written into the quotas' status before the
// object is stored, so that writers on several servers see one another; it is given back when the write fails.
//
// Invariant: what is charged and not given back is never more than a quota allows, however many writers there are. Giving
// back must keep it: when somebody else, the quota controller, has added up the objects in the meantime, the failed write
// is not in its sum, and giving back what it does not contain would let in too much. So a charge is given back only to a
// quota that nobody else has written since (turn); otherwise the next sum sets it right.
//
// Writers of one namespace come one batch at a time (queue): all who wait together cost one write for each quota.
type resourceQuota struct {
	env      access
	registry *quota.Registry
	limited  []quota.LimitedResource

	mu     sync.Mutex
	queues map[string]*queue // by namespace, while somebody is in them

	turns      *lru.Cache // namespace/name of a quota → turn
	turnNumber atomic.Int64
}

// quotaTimeout bounds how long a write waits for its turn.
const quotaTimeout = 10 * time.Second

// rememberedQuotas bounds turns. A charge to a quota that was forgotten is not given back.
const rememberedQuotas = 4096

// turn is a time during which only this plugin has written a quota.
type turn struct {
	number  int
	version string // of the quota as this plugin last wrote it
}

// queue is the writers of a namespace: one at work, for itself and all who waited when it began, and those who wait now.
type queue struct {
	busy    bool
	waiting []*charge
}

// charge is one writer's wish, to take or to give back.
type charge struct {
	a         *Attributes
	write     quota.Write
	evaluator *quota.Evaluator
	back      bool
	taken     []portion
	err       error
	// done is closed when the charge is decided; turn is sent to when its owner is the next to work.
	done chan struct{}
	turn chan struct{}
}

// portion is what was taken from one quota.
type portion struct {
	quota  string
	amount corev1.ResourceList
	turn   int
}

func newResourceQuota(env access, limited []quota.LimitedResource) *resourceQuota {
	return &resourceQuota{
		env: env, limited: limited, registry: quota.NewRegistry(devices{env}),
		queues: map[string]*queue{}, turns: lru.New(rememberedQuotas),
	}
}

func (*resourceQuota) Name() string { return "ResourceQuota" }

// Handles: only creation changes counts; updates matter for the few resources of which more than objects is counted.
func (*resourceQuota) Handles(a *Attributes) bool {
	switch {
	case a.Namespace == "" || a.is(namespaces):
		return false
	case a.Operation == Create:
		return a.Subresource == "" && !quota.IsIgnored(a.Resource.GroupResource())
	case a.Operation == Update:
		return a.is(pods) || a.is(services) || a.is(volumeClaims) || a.is(resourceClaims)
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
	if len(c.taken) > 0 {
		a.charged = c
	}
	return c.err
}

// Undo gives back what Validate took.
func (r *resourceQuota) Undo(ctx context.Context, a *Attributes) {
	if a.charged == nil {
		return
	}
	back := &charge{a: a, back: true, taken: a.charged.taken}
	a.charged = nil
	// What cannot be given back is set right by the quota controller.
	r.queue(ctx, back)
}

func (r *resourceQuota) quotas(ctx context.Context, namespace string) ([]*corev1.ResourceQuota, error) {
	quotas, err := list[*corev1.ResourceQuota](ctx, r.env, resourceQuotas, namespace)
	if err != nil {
		return nil, fmt.Errorf("error resolving quota: %w", err)
	}
	return quotas, nil
}

// queue waits until the charge is decided. One of those who wait does the work for all of them; the work is bounded in
// time, so everybody's waiting is.
func (r *resourceQuota) queue(ctx context.Context, c *charge) {
	c.done, c.turn = make(chan struct{}), make(chan struct{}, 1)
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
		case <-c.turn:
		}
	}
	r.mu.Lock()
	batch := q.waiting
	q.waiting = nil
	r.mu.Unlock()
	r.lead(ctx, namespace, q, batch)
}

// lead decides a batch and leaves the queue to the next, whatever happens.
func (r *resourceQuota) lead(ctx context.Context, namespace string, q *queue, batch []*charge) {
	decided := false
	defer func() {
		r.mu.Lock()
		if len(q.waiting) > 0 {
			q.waiting[0].turn <- struct{}{}
		} else {
			delete(r.queues, namespace)
		}
		r.mu.Unlock()
		for _, c := range batch {
			if !decided {
				c.err = apierrors.NewInternalError(errors.New("resource quota evaluation failed"))
			}
			close(c.done)
		}
	}()
	// Others depend on the work, so it goes on when its own client is gone.
	work, cancel := context.WithTimeout(context.WithoutCancel(ctx), quotaTimeout)
	defer cancel()
	r.decide(work, namespace, batch)
	decided = true
}

// wish is what a charge wants of one quota.
type wish struct {
	c       *charge
	amount  corev1.ResourceList
	turn    int  // of what is given back
	granted bool // as decided on the quota's latest state
	err     error
}

// decide judges a batch of charges together and writes the outcome, one write for each quota they touch.
func (r *resourceQuota) decide(ctx context.Context, namespace string, batch []*charge) {
	quotas, err := r.quotas(ctx, namespace)
	if err != nil {
		for _, c := range batch {
			c.err = timedOut(ctx, err)
		}
		return
	}
	wishes := r.plan(quotas, batch)
	for i, q := range quotas {
		r.write(ctx, namespace, q.Name, wishes[i])
	}
	for _, c := range batch {
		if c.err == nil || len(c.taken) == 0 || c.back {
			continue
		}
		// One quota granted what another refused.
		for _, p := range c.taken {
			r.write(ctx, namespace, p.quota, []*wish{{c: &charge{back: true}, amount: p.amount, turn: p.turn}})
		}
		c.taken = nil
	}
}

// plan says what each charge wants of each quota, and refuses those for which there is not enough even before anything
// is written. wishes[i] are for quotas[i].
func (r *resourceQuota) plan(quotas []*corev1.ResourceQuota, batch []*charge) (wishes [][]*wish) {
	now := time.Now()
	wishes = make([][]*wish, len(quotas))
	running := make([]*corev1.ResourceQuota, len(quotas))
	for i, q := range quotas {
		running[i] = &corev1.ResourceQuota{ObjectMeta: q.ObjectMeta, Spec: q.Spec, Status: q.Status}
	}
	for _, c := range batch {
		if c.back {
			for _, p := range c.taken {
				for i, q := range quotas {
					if q.Name == p.quota {
						wishes[i] = append(wishes[i], &wish{c: c, amount: p.amount, turn: p.turn})
					}
				}
			}
			continue
		}
		charges, err := c.evaluator.Charge(running, c.write, r.limited, now)
		for i := 0; err == nil && i < len(charges); i++ {
			if charges[i] != nil && c.a.Subresource != "status" {
				err = quota.CheckFits(running[i], charges[i])
			}
		}
		if err != nil {
			c.refuse(err)
			continue
		}
		if c.a.DryRun {
			continue
		}
		for i, amount := range charges {
			if len(amount) > 0 {
				running[i].Status.Used = quota.Add(running[i].Status.Used, amount)
				wishes[i] = append(wishes[i], &wish{c: c, amount: amount})
			}
		}
	}
	return wishes
}

// refuse ends a charge with an error.
func (c *charge) refuse(err error) {
	var refusal *quota.ForbiddenError
	if errors.As(err, &refusal) {
		err = forbidden(c.a, err)
	}
	c.err = err
}

// errUnchanged stops the update of a quota that nobody got anything of.
var errUnchanged = errors.New("nothing to charge")

// write grants what it can of the wishes, on the state the quota has when it is written.
func (r *resourceQuota) write(ctx context.Context, namespace, name string, wishes []*wish) {
	open := wishes[:0:0]
	for _, w := range wishes {
		if w.c.err == nil {
			open = append(open, w)
		}
	}
	if len(open) == 0 {
		return
	}
	key := namespace + "/" + name
	var current turn
	written, err := r.env().Update(ctx, resourceQuotas, namespace, name, func(obj kind.Object) error {
		q, ok := obj.(*corev1.ResourceQuota)
		if !ok {
			return fmt.Errorf("quota %s is a %T", key, obj)
		}
		current = r.turnOf(key, q)
		return grant(q, open, current.number)
	})
	switch {
	case err == nil:
		current.version = written.GetResourceVersion()
		r.turns.Add(key, current)
	case errors.Is(err, errUnchanged):
	case apierrors.IsNotFound(err):
		return // a quota that is gone limits nothing
	default:
		for _, w := range open {
			w.c.err = timedOut(ctx, err)
		}
		return
	}
	for _, w := range open {
		if w.err != nil {
			w.c.refuse(w.err)
		} else if w.granted && !w.c.back {
			w.c.taken = append(w.c.taken, portion{quota: name, amount: w.amount, turn: current.number})
		}
	}
}

// grant changes the quota by as many of the wishes as it can bear.
func grant(q *corev1.ResourceQuota, wishes []*wish, turn int) error {
	changed := false
	for _, w := range wishes {
		w.granted, w.err = false, nil
		if w.c.back {
			if w.turn == turn {
				q.Status.Used = quota.Subtract(q.Status.Used, w.amount)
				w.granted, changed = true, true
			}
			continue
		}
		if w.c.a.Subresource != "status" {
			if w.err = quota.CheckFits(q, w.amount); w.err != nil {
				continue
			}
		}
		q.Status.Used = quota.Add(q.Status.Used, w.amount)
		w.granted, changed = true, true
	}
	if !changed {
		return errUnchanged
	}
	return nil
}

// turnOf is the turn that a state of a quota belongs to: a new one when somebody else has written it.
func (r *resourceQuota) turnOf(key string, q *corev1.ResourceQuota) turn {
	if last, ok := r.turns.Get(key); ok {
		if last := last.(turn); last.version == q.ResourceVersion {
			return last
		}
	}
	return turn{number: int(r.turnNumber.Add(1)), version: q.ResourceVersion}
}

func timedOut(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return apierrors.NewInternalError(errors.New("resource quota evaluation timed out"))
	}
	return err
}

// devices shows the quota package the objects that the use of resource claims depends on.
type devices struct{ env access }

func (d devices) DeviceClasses() ([]*resourcev1.DeviceClass, error) {
	return list[*resourcev1.DeviceClass](context.Background(), d.env, deviceClasses, "")
}

func (d devices) Pod(namespace, name string) *corev1.Pod {
	pod, err := get[*corev1.Pod](context.Background(), d.env, pods, namespace, name)
	if err != nil {
		return nil
	}
	return pod
}

func (d devices) ResourceClaims(namespace string) ([]*resourcev1.ResourceClaim, error) {
	return list[*resourcev1.ResourceClaim](context.Background(), d.env, resourceClaims, namespace)
}
