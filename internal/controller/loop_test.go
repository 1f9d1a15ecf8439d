package controller_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/client"
	"skiff/internal/controller"
	"skiff/test/inprocess"
)

// testEnvironment runs one controller with its own API server.
type testEnvironment struct {
	t        *testing.T
	ctx      context.Context
	client   *client.Client
	registry *prometheus.Registry
}

func (e *testEnvironment) start(d controller.Definition) {
	e.t.Helper()
	e.registry = prometheus.NewRegistry()
	metrics, err := controller.NewMetrics(e.registry)
	if err != nil {
		e.t.Fatal(err)
	}
	informers := client.NewInformers(e.client)
	loop, err := controller.NewLoop(d, controller.Environment{Client: e.client, Informers: informers, Metrics: metrics, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		e.t.Fatal(err)
	}
	go func() { _ = informers.Run(e.ctx) }()
	if err := informers.WaitForSync(e.ctx); err != nil {
		e.t.Fatal(err)
	}
	go func() { _ = loop.Run(e.ctx) }()
}

// inSynctest runs a test with a server in a synctest bubble.
func inSynctest(t *testing.T, test func(b *testEnvironment)) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		test(&testEnvironment{t: t, ctx: ctx, client: inprocess.Start(t, ctx)})
		cancel()
		time.Sleep(time.Minute) // everything stops
	})
}

// pass advances the time and waits until all goroutines are blocked.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (e *testEnvironment) configMap(name string) {
	e.t.Helper()
	_, err := client.For[*corev1.ConfigMap](e.client).Create(e.ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}, client.WriteOptions{})
	if err != nil {
		e.t.Fatal(err)
	}
}

func (e *testEnvironment) metric(name string, label string) float64 {
	families, err := e.registry.Gather()
	if err != nil {
		e.t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.Metric {
			for _, l := range m.Label {
				if f.GetName() == name && l.GetValue() == label {
					return m.GetCounter().GetValue() + m.GetGauge().GetValue()
				}
			}
		}
	}
	return 0
}

func (e *testEnvironment) watching(sync controller.SyncFunc) controller.Definition {
	return controller.Definition{Name: "test-controller", Workers: 3, New: func(s *controller.Setup) (controller.Syncer, error) {
		return sync, controller.WatchPrimary[*corev1.ConfigMap](s)
	}}
}

func TestOneWorkerPerKey(t *testing.T) {
	inSynctest(t, func(b *testEnvironment) {
		var mu sync.Mutex
		working, syncs, most := map[controller.Key]int{}, map[controller.Key]int{}, 0
		b.start(b.watching(func(_ context.Context, key controller.Key) error {
			mu.Lock()
			working[key]++
			syncs[key]++
			most = max(most, len(working))
			if working[key] > 1 {
				t.Errorf("two workers on %v", key)
			}
			mu.Unlock()
			time.Sleep(time.Second)
			mu.Lock()
			delete(working, key)
			mu.Unlock()
			return nil
		}))
		for i := range 5 {
			b.configMap(fmt.Sprint("c", i))
		}
		time.Sleep(500 * time.Millisecond)
		// While the first three are synced, all five change twice. Each is synced once more, not twice.
		for range 2 {
			for i := range 5 {
				_, err := client.For[*corev1.ConfigMap](b.client).Patch(b.ctx, "default", fmt.Sprint("c", i), client.RawPatch(client.MergePatch, fmt.Appendf(nil, `{"data":{"t":"%d"}}`, time.Now().UnixNano())), client.WriteOptions{})
				if err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(time.Millisecond)
		}
		pass(time.Minute)
		mu.Lock()
		defer mu.Unlock()
		for key, n := range syncs {
			if want := 2; n > want || n < 1 {
				t.Errorf("%v was looked at %d times", key, n)
			}
		}
		if len(syncs) != 5 || most != 3 {
			t.Errorf("%d keys, %d at once", len(syncs), most)
		}
		if b.metric("workqueue_adds_total", "test-controller") < 5 || b.metric("running_managed_controllers", "test-controller") != 1 {
			t.Error("metrics do not count")
		}
	})
}

func TestBackoffAndPanic(t *testing.T) {
	inSynctest(t, func(b *testEnvironment) {
		began := time.Now()
		var syncs []time.Duration
		b.start(b.watching(func(_ context.Context, key controller.Key) error {
			if syncs = append(syncs, time.Since(began)); len(syncs) == 3 {
				panic("a bug")
			}
			if len(syncs) < 30 {
				return errors.New("not yet")
			}
			return nil
		}))
		b.configMap("a")
		pass(5 * time.Hour)
		if len(syncs) != 30 {
			t.Fatalf("%d syncs", len(syncs))
		}
		for i := 2; i < len(syncs); i++ {
			before, after := syncs[i-1]-syncs[i-2], syncs[i]-syncs[i-1]
			if after < before || after > 1001*time.Second {
				t.Errorf("look %d came %v after the one before, that one %v", i, after, before)
			}
		}
		if got := syncs[29] - syncs[28]; got < 999*time.Second {
			t.Errorf("the last backoff was %v", got)
		}
		if b.metric("controller_syncs_total", "error") != 29 || b.metric("controller_syncs_total", "success") != 1 {
			t.Errorf("syncs counted: %v failed, %v succeeded", b.metric("controller_syncs_total", "error"), b.metric("controller_syncs_total", "success"))
		}
	})
}

// eagerSyncer wants three pods and creates those missing in its cache. Without reading its own writes it would create more.
type eagerSyncer struct {
	pods controller.Dependents[*corev1.Pod]
	maps client.Informer[*corev1.ConfigMap]
}

func (e *eagerSyncer) Observe(key controller.Key) (view []*corev1.Pod, ok bool) {
	owner, ok := e.maps.Get(key.Namespace, key.Name)
	if !ok {
		return nil, false
	}
	return e.pods.ControlledBy(owner.UID), true
}

func (e *eagerSyncer) Reconcile(pods []*corev1.Pod) (plan controller.Plan) {
	for i := len(pods); i < 3; i++ {
		owner := e.maps.List("default", nil)[0]
		plan.AddStep(controller.NewCreate(&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", GenerateName: "p-", OwnerReferences: []metav1.OwnerReference{
				*metav1.NewControllerRef(owner, corev1.SchemeGroupVersion.WithKind("ConfigMap"))}},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
		}))
	}
	plan.Requeue(time.Minute)
	return plan
}

func TestReadsItsOwnWrites(t *testing.T) {
	inSynctest(t, func(b *testEnvironment) {
		syncs := 0
		b.start(controller.Definition{Name: "eager", Workers: 4, New: func(s *controller.Setup) (controller.Syncer, error) {
			e := &eagerSyncer{maps: client.InformerFor[*corev1.ConfigMap](s.Informers)}
			var err error
			if e.pods, err = controller.DependentsOf[*corev1.Pod](s); err != nil {
				return nil, err
			}
			if err := controller.WatchPrimary[*corev1.ConfigMap](s); err != nil {
				return nil, err
			}
			// Every watch event enqueues the key, so that it is synced while the cache is stale.
			if err := controller.WatchDependents[*corev1.Pod, *corev1.ConfigMap](s, corev1.SchemeGroupVersion.WithKind("ConfigMap"), nil); err != nil {
				return nil, err
			}
			planned := controller.NewSyncer(s, e)
			return controller.SyncFunc(func(ctx context.Context, key controller.Key) error {
				syncs++
				defer s.Enqueue(key)
				time.Sleep(time.Millisecond)
				return planned.Sync(ctx, key)
			}), nil
		}})
		b.configMap("owner")
		pass(30 * time.Second)
		pods, _, err := client.For[*corev1.Pod](b.client).List(b.ctx, "default", client.Selector{})
		if err != nil || len(pods) != 3 || syncs < 100 {
			t.Errorf("%d pods after %d syncs, want 3; %v", len(pods), syncs, err)
		}
	})
}

func TestRequeueAfter(t *testing.T) {
	inSynctest(t, func(b *testEnvironment) {
		var syncs []time.Time
		b.start(controller.Definition{Name: "later", New: func(s *controller.Setup) (controller.Syncer, error) {
			return controller.SyncFunc(func(ctx context.Context, key controller.Key) error {
				syncs = append(syncs, time.Now())
				return s.Apply(ctx, key, controller.Plan{RequeueAfter: 10 * time.Minute})
			}), controller.WatchPrimary[*corev1.ConfigMap](s)
		}})
		b.configMap("a")
		pass(59 * time.Minute)
		if len(syncs) != 6 {
			t.Errorf("%d syncs in an hour, want one each ten minutes: %v", len(syncs), syncs)
		}
	})
}

func TestLeadership(t *testing.T) {
	inSynctest(t, func(b *testEnvironment) {
		election := func(identity string) *controller.LeaderElection {
			return &controller.LeaderElection{Namespace: "kube-system", Name: "kube-controller-manager", Identity: identity}
		}
		first, stopFirst := context.WithCancel(b.ctx)
		var mu sync.Mutex
		leads := map[string]bool{}
		run := func(ctx context.Context, identity string) <-chan error {
			done := make(chan error, 1)
			go func() {
				done <- election(identity).Run(ctx, b.client, nil, func(ctx context.Context) error {
					mu.Lock()
					if leads[identity] = true; len(leads) > 1 {
						t.Errorf("two lead: %v", leads)
					}
					mu.Unlock()
					<-ctx.Done()
					time.Sleep(5 * time.Second) // stopping
					mu.Lock()
					delete(leads, identity)
					mu.Unlock()
					return nil
				})
			}()
			return done
		}
		ended := run(first, "a")
		time.Sleep(time.Second)
		secondEnded := run(b.ctx, "b")
		pass(time.Minute)
		lease, err := client.For[*coordinationv1.Lease](b.client).Get(b.ctx, "kube-system", "kube-controller-manager")
		if err != nil || !leads["a"] || *lease.Spec.HolderIdentity != "a" {
			t.Fatalf("leads %v, lease %+v, %v", leads, lease, err)
		}
		stopFirst()
		if err := <-ended; err != nil {
			t.Errorf("a leader told to stop: %v", err)
		}
		pass(10 * time.Second)
		if !leads["b"] {
			t.Error("nobody took over a lease that was given back")
		}
		// The lease is overwritten: b must stop.
		lease, err = client.For[*coordinationv1.Lease](b.client).Get(b.ctx, "kube-system", "kube-controller-manager")
		if err != nil {
			t.Fatal(err)
		}
		stolen := lease.DeepCopy()
		thief := "thief"
		stolen.Spec.HolderIdentity = &thief
		stolen.Spec.RenewTime = &metav1.MicroTime{Time: time.Now()}
		if _, err := client.For[*coordinationv1.Lease](b.client).Update(b.ctx, stolen, client.WriteOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := <-secondEnded; !errors.Is(err, controller.ErrLeadershipLost) {
			t.Errorf("a leader that lost its lease: %v", err)
		}
	})
}

// TestRetriesAreLimited: keys that fail are retried 10 times per second altogether, after a burst of 100.
func TestRetriesAreLimited(t *testing.T) {
	inSynctest(t, func(b *testEnvironment) {
		const keys = 1000
		var setup *controller.Setup
		var mu sync.Mutex
		syncs := 0
		b.start(controller.Definition{Name: "failing", Workers: 5, New: func(s *controller.Setup) (controller.Syncer, error) {
			setup = s
			return controller.SyncFunc(func(context.Context, controller.Key) error {
				mu.Lock()
				defer mu.Unlock()
				syncs++
				return errors.New("never")
			}), nil
		}})
		for i := range keys {
			setup.Enqueue(controller.Key{Name: fmt.Sprint(i)})
		}
		pass(time.Minute)
		mu.Lock()
		defer mu.Unlock()
		if retries := syncs - keys; retries < 600 || retries > 710 {
			t.Errorf("%d retries in a minute", retries)
		}
	})
}

// largeView is a view of many objects.
type largeView int

func (v largeView) Size() int { return int(v) }

// largeReconciler counts its syncs.
type largeReconciler struct {
	size  int
	syncs []time.Time
}

func (r *largeReconciler) Observe(controller.Key) (largeView, bool) {
	r.syncs = append(r.syncs, time.Now())
	return largeView(r.size), true
}

func (r *largeReconciler) Reconcile(largeView) controller.Plan { return controller.Plan{} }

// TestSpacing: a key with many objects is synced rarely, a small one at once, and no change is missed.
func TestSpacing(t *testing.T) {
	for size, want := range map[int]int{1: 100, 39: 100, 4000: 11, 100000: 3} {
		inSynctest(t, func(b *testEnvironment) {
			var setup *controller.Setup
			r := &largeReconciler{size: size}
			b.start(controller.Definition{Name: "large", New: func(s *controller.Setup) (controller.Syncer, error) {
				setup = s
				return controller.NewSyncer(s, r), nil
			}})
			var last time.Time
			for range 100 {
				last = time.Now()
				setup.Enqueue(controller.Key{Name: "k"})
				pass(100 * time.Millisecond)
			}
			pass(time.Minute)
			if got := len(r.syncs); got < want-1 || got > want {
				t.Errorf("%d objects: %d syncs for 100 changes in 10 s, want %d", size, got, want)
			}
			if r.syncs[len(r.syncs)-1].Before(last) {
				t.Errorf("%d objects: the last change was missed", size)
			}
			setup.Enqueue(controller.Key{Name: "k"})
			if pass(0); !r.syncs[len(r.syncs)-1].Equal(time.Now()) {
				t.Errorf("%d objects: a change after a long time is not synced at once", size)
			}
		})
	}
}
