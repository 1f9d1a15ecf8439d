package controller_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"skiff/internal/client"
	"skiff/internal/controller"
)

// recordedEvents records the keys a controller syncs.
type recordedEvents struct {
	mu   sync.Mutex
	keys []string
}

func (r *recordedEvents) Sync(_ context.Context, key controller.Key) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.keys = append(r.keys, key.Name)
	return nil
}

// read returns the keys recorded since the last call, without duplicates, sorted.
func (r *recordedEvents) read() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	slices.Sort(r.keys)
	text := strings.Join(slices.Compact(r.keys), " ")
	r.keys = nil
	return text
}

func owned(by *corev1.ConfigMap, apiVersion, kind string) []metav1.OwnerReference {
	return []metav1.OwnerReference{{APIVersion: apiVersion, Kind: kind, Name: by.Name, UID: by.UID, Controller: new(true)}}
}

// TestWatchEnqueues: which owners are enqueued when an object they control, controlled or could adopt changes.
func TestWatchEnqueues(t *testing.T) {
	inSynctest(t, func(b *testEnvironment) {
		notes := &recordedEvents{}
		configMaps := corev1.SchemeGroupVersion.WithKind("ConfigMap")
		b.start(controller.Definition{Name: "listener", New: func(s *controller.Setup) (controller.Syncer, error) {
			selector := func(c *corev1.ConfigMap) (labels.Selector, error) {
				if c.Data["selector"] == "broken" {
					return nil, errors.New("broken")
				}
				return labels.Parse(c.Data["selector"])
			}
			return notes, controller.WatchDependents[*corev1.Secret](s, configMaps, selector)
		}})
		owners := map[string]*corev1.ConfigMap{}
		for name, selector := range map[string]string{"a": "app=a", "b": "app=b", "ab": "app in (a,b)", "broken": "broken", "none": "app=nothing"} {
			made, err := client.For[*corev1.ConfigMap](b.client).Create(b.ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Data: map[string]string{"selector": selector}}, client.WriteOptions{})
			if err != nil {
				t.Fatal(err)
			}
			owners[name] = made
		}
		pass(time.Second)
		if heard := notes.read(); heard != "" {
			t.Errorf("owners alone are not watched, but %q were looked at", heard)
		}
		secrets := client.For[*corev1.Secret](b.client)
		change := func(edit func(*corev1.Secret)) {
			secret, err := secrets.Get(b.ctx, "default", "s")
			if err != nil {
				t.Fatal(err)
			}
			secret = secret.DeepCopy()
			edit(secret)
			if _, err := secrets.Update(b.ctx, secret, client.WriteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		for _, step := range []struct {
			what string
			do   func()
			want string
		}{
			{"an orphan without labels appears", func() {
				if _, err := secrets.Create(b.ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "s"}}, client.WriteOptions{}); err != nil {
					t.Fatal(err)
				}
			}, ""},
			{"it gets labels", func() { change(func(s *corev1.Secret) { s.Labels = map[string]string{"app": "a"} }) }, "a ab"},
			{"it changes, but not its labels", func() { change(func(s *corev1.Secret) { s.StringData = map[string]string{"x": "1"} }) }, ""},
			{"it gets other labels", func() { change(func(s *corev1.Secret) { s.Labels["app"] = "b" }) }, "ab b"},
			{"it is adopted", func() { change(func(s *corev1.Secret) { s.OwnerReferences = owned(owners["a"], "v1", "ConfigMap") }) }, "a"},
			{"it changes", func() { change(func(s *corev1.Secret) { s.StringData = map[string]string{"x": "2"} }) }, "a"},
			{"it goes from hand to hand", func() { change(func(s *corev1.Secret) { s.OwnerReferences = owned(owners["b"], "v1", "ConfigMap") }) }, "a b"},
			{"its owner only stops controlling it", func() { change(func(s *corev1.Secret) { s.OwnerReferences[0].Controller = nil }) }, "ab b"},
			{"it belongs to another kind", func() { change(func(s *corev1.Secret) { s.OwnerReferences = owned(owners["a"], "v1", "Pod") }) }, ""},
			{"it belongs to another group", func() {
				change(func(s *corev1.Secret) { s.OwnerReferences = owned(owners["a"], "example.com/v1", "ConfigMap") })
			}, ""},
			{"it belongs to an owner that is not there", func() {
				change(func(s *corev1.Secret) {
					s.OwnerReferences = owned(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "ghost", UID: "ghost"}}, "v1", "ConfigMap")
				})
			}, "ghost"},
			{"it is released", func() { change(func(s *corev1.Secret) { s.OwnerReferences = nil }) }, "ab b ghost"},
			{"it is gone", func() {
				if err := secrets.Delete(b.ctx, "default", "s", metav1.DeleteOptions{}); err != nil {
					t.Fatal(err)
				}
			}, "ab b"},
		} {
			step.do()
			pass(time.Second)
			if heard := notes.read(); heard != step.want {
				t.Errorf("%s: %q were looked at, want %q", step.what, heard, step.want)
			}
		}
	})
}

// TestWatchRevisions: a revision that is added with a controller enqueues nobody, everything else that happens to it does.
func TestWatchRevisions(t *testing.T) {
	inSynctest(t, func(b *testEnvironment) {
		notes := &recordedEvents{}
		b.start(controller.Definition{Name: "listener", New: func(s *controller.Setup) (controller.Syncer, error) {
			selector := func(c *corev1.ConfigMap) (labels.Selector, error) { return labels.Parse(c.Data["selector"]) }
			return notes, controller.WatchRevisions(s, corev1.SchemeGroupVersion.WithKind("ConfigMap"), selector)
		}})
		owner, err := client.For[*corev1.ConfigMap](b.client).Create(b.ctx,
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a"}, Data: map[string]string{"selector": "app=a"}}, client.WriteOptions{})
		if err != nil {
			t.Fatal(err)
		}
		revisions := client.For[*appsv1.ControllerRevision](b.client)
		create := func(name string, refs []metav1.OwnerReference) error {
			_, err := revisions.Create(b.ctx, &appsv1.ControllerRevision{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{"app": "a"}, OwnerReferences: refs}, Data: runtime.RawExtension{Raw: []byte("{}")},
			}, client.WriteOptions{})
			return err
		}
		for _, step := range []struct {
			what string
			do   func() error
			want string
		}{
			{"one with a controller is added", func() error { return create("owned", owned(owner, "v1", "ConfigMap")) }, ""},
			{"it changes", func() error {
				revision, err := revisions.Get(b.ctx, "default", "owned")
				if err != nil {
					return err
				}
				revision = revision.DeepCopy()
				revision.Revision = 2
				_, err = revisions.Update(b.ctx, revision, client.WriteOptions{})
				return err
			}, "a"},
			{"it is deleted", func() error { return revisions.Delete(b.ctx, "default", "owned", metav1.DeleteOptions{}) }, "a"},
			{"an orphan is added", func() error { return create("orphan", nil) }, "a"},
		} {
			if err := step.do(); err != nil {
				t.Fatalf("%s: %v", step.what, err)
			}
			pass(time.Second)
			if heard := notes.read(); heard != step.want {
				t.Errorf("%s: %q were enqueued, want %q", step.what, heard, step.want)
			}
		}
	})
}

// TestDependents: the index finds an owner's objects and the orphans of its namespace, and follows updates.
func TestDependents(t *testing.T) {
	inSynctest(t, func(b *testEnvironment) {
		var secrets controller.Dependents[*corev1.Secret]
		b.start(controller.Definition{Name: "finder", New: func(s *controller.Setup) (controller.Syncer, error) {
			var err error
			secrets, err = controller.DependentsOf[*corev1.Secret](s)
			if _, again := controller.DependentsOf[*corev1.Secret](s); again != nil {
				t.Errorf("asked for twice: %v", again)
			}
			return &recordedEvents{}, err
		}})
		owner := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a", UID: "uid-a"}}
		make := func(namespace, name string, refs []metav1.OwnerReference) {
			if _, err := client.For[*corev1.Secret](b.client).Create(b.ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, OwnerReferences: refs}}, client.WriteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		weak := owned(owner, "v1", "ConfigMap")
		weak[0].Controller = nil
		make("default", "mine", owned(owner, "v1", "ConfigMap"))
		make("default", "orphan", nil)
		make("default", "weak", weak)
		make("kube-system", "elsewhere", nil)
		if _, err := client.For[*corev1.Secret](b.client).Create(b.ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "labelled", Labels: map[string]string{"app": "web"}}}, client.WriteOptions{}); err != nil {
			t.Fatal(err)
		}
		hasApp, err := labels.Parse("app")
		if err != nil {
			t.Fatal(err)
		}
		make("default", "other", owned(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "b", UID: "uid-b"}}, "v1", "ConfigMap"))
		pass(time.Second)
		names := func(all []*corev1.Secret) string {
			var words []string
			for _, s := range all {
				words = append(words, s.Name)
			}
			slices.Sort(words)
			return strings.Join(words, " ")
		}
		for what, test := range map[string]struct{ got, want string }{
			"of a":              {names(secrets.ControlledBy("uid-a")), "mine"},
			"of b":              {names(secrets.ControlledBy("uid-b")), "other"},
			"of nobody":         {names(secrets.ControlledBy("uid-c")), ""},
			"what a could have": {names(secrets.Claimable(owner, nil)), "labelled mine orphan weak"},
			"what it selects":   {names(secrets.Claimable(owner, labels.SelectorFromSet(labels.Set{"app": "web"}))), "labelled mine"},
			"what nobody has":   {names(secrets.Claimable(owner, labels.SelectorFromSet(labels.Set{"app": "other"}))), "mine"},
			"without equality":  {names(secrets.Claimable(owner, hasApp)), "labelled mine orphan weak"},
		} {
			if test.got != test.want {
				t.Errorf("%s: %q, want %q", what, test.got, test.want)
			}
		}
	})
}

// TestSelectors: those that match are found, whether their selectors require a label or not, and only in the same namespace.
func TestSelectors(t *testing.T) {
	inSynctest(t, func(b *testEnvironment) {
		var selectors client.Selectors[*policyv1.PodDisruptionBudget]
		b.start(controller.Definition{Name: "selectors", New: func(s *controller.Setup) (_ controller.Syncer, err error) {
			selectors, err = client.SelectorsOf(s.Informers, func(budget *policyv1.PodDisruptionBudget) (labels.Selector, error) {
				return metav1.LabelSelectorAsSelector(budget.Spec.Selector)
			})
			return &recordedEvents{}, err
		}})
		for _, budget := range []struct{ namespace, name, selector string }{
			{"default", "web", "app=web"}, {"default", "both", "app=web,tier=front"}, {"default", "other", "app=db"},
			{"default", "any-app", "app"}, {"default", "no-app", "!app"}, {"default", "one-of", "app in (web,db)"}, {"kube-system", "elsewhere", "app=web"},
		} {
			selector, err := metav1.ParseToLabelSelector(budget.selector)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := client.For[*policyv1.PodDisruptionBudget](b.client).Create(b.ctx, &policyv1.PodDisruptionBudget{
				ObjectMeta: metav1.ObjectMeta{Namespace: budget.namespace, Name: budget.name}, Spec: policyv1.PodDisruptionBudgetSpec{Selector: selector}}, client.WriteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		pass(time.Second)
		for _, test := range []struct {
			labels map[string]string
			want   string
		}{
			{map[string]string{"app": "web"}, "any-app one-of web"},
			{map[string]string{"app": "web", "tier": "front"}, "any-app both one-of web"},
			{map[string]string{"app": "db", "tier": "front"}, "any-app one-of other"},
			{map[string]string{"app": "cache"}, "any-app"},
			{map[string]string{"tier": "front"}, "no-app"},
			{nil, "no-app"},
		} {
			var names []string
			for _, budget := range selectors.Matching(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Labels: test.labels}}) {
				names = append(names, budget.Name)
			}
			slices.Sort(names)
			if got := strings.Join(names, " "); got != test.want {
				t.Errorf("%v: %s, want %s", test.labels, got, test.want)
			}
		}
	})
}

// TestQueue: keys enqueued before Run, twice, with and without delay.
func TestQueue(t *testing.T) {
	inSynctest(t, func(b *testEnvironment) {
		began := time.Now()
		var setup *controller.Setup
		var syncs []string
		b.start(controller.Definition{Name: "queue", New: func(s *controller.Setup) (controller.Syncer, error) {
			setup = s
			for range 3 {
				s.Enqueue(controller.Key{Name: "early"}) // before Run: stored once
			}
			s.EnqueueAfter(controller.Key{Name: "early-later"}, time.Hour) // before Run the delay is ignored
			return controller.SyncFunc(func(_ context.Context, key controller.Key) error {
				syncs = append(syncs, fmt.Sprintf("%s@%v", key.Name, time.Since(began).Round(time.Second)))
				return nil
			}), nil
		}})
		pass(time.Second)
		slices.Sort(syncs)
		if got := strings.Join(syncs, " "); got != "early-later@0s early@0s" {
			t.Errorf("before the start: %s", got)
		}
		syncs = nil
		setup.EnqueueAfter(controller.Key{Name: "later"}, 10*time.Second)
		setup.EnqueueAfter(controller.Key{Name: "later"}, 4*time.Second)
		setup.EnqueueAfter(controller.Key{Name: "later"}, 20*time.Second)
		setup.EnqueueAfter(controller.Key{Name: "now"}, 0)
		setup.EnqueueAfter(controller.Key{Name: "past"}, -time.Hour)
		setup.Enqueue(controller.Key{Namespace: "n", Name: "named"})
		pass(time.Minute)
		slices.Sort(syncs)
		if got := strings.Join(syncs, " "); got != "later@5s named@1s now@1s past@1s" {
			t.Errorf("a key that is asked for several times comes at the earliest: %s", got)
		}
	})
}

// TestBackoffIsReset: the backoff doubles from five milliseconds to 1000 seconds, and is reset by a success.
func TestBackoffIsReset(t *testing.T) {
	inSynctest(t, func(b *testEnvironment) {
		var setup *controller.Setup
		var syncs []time.Time
		fail := 20
		b.start(controller.Definition{Name: "failing", New: func(s *controller.Setup) (controller.Syncer, error) {
			setup = s
			return controller.SyncFunc(func(context.Context, controller.Key) error {
				if syncs = append(syncs, time.Now()); len(syncs) <= fail {
					return errors.New("not yet")
				}
				return nil
			}), nil
		}})
		check := func(what string) {
			t.Helper()
			want := 5 * time.Millisecond
			for i := 1; i < len(syncs); i++ {
				if got := syncs[i].Sub(syncs[i-1]); got != min(want, 1000*time.Second) {
					t.Errorf("%s: pause %d is %v, want %v", what, i, got, min(want, 1000*time.Second))
				}
				want *= 2
			}
		}
		setup.Enqueue(controller.Key{Name: "k"})
		pass(3 * time.Hour)
		if len(syncs) != 21 {
			t.Fatalf("%d syncs", len(syncs))
		}
		check("at first")
		syncs, fail = nil, 3
		setup.Enqueue(controller.Key{Name: "k"})
		pass(time.Hour)
		if len(syncs) != 4 {
			t.Fatalf("%d syncs", len(syncs))
		}
		check("after a success")
		if got := b.metric("workqueue_retries_total", "failing"); got < 19 {
			t.Errorf("%v retries", got)
		}
	})
}

// TestKeysDoNotBlockEachOther: while one key fails, others are synced as usual.
func TestKeysDoNotBlockEachOther(t *testing.T) {
	inSynctest(t, func(b *testEnvironment) {
		var setup *controller.Setup
		good := 0
		b.start(controller.Definition{Name: "mixed", New: func(s *controller.Setup) (controller.Syncer, error) {
			setup = s
			return controller.SyncFunc(func(_ context.Context, key controller.Key) error {
				if key.Name == "bad" {
					panic("always")
				}
				good++
				return nil
			}), nil
		}})
		setup.Enqueue(controller.Key{Name: "bad"})
		for i := range 100 {
			setup.Enqueue(controller.Key{Name: fmt.Sprint("good", i)})
			pass(time.Second)
			if good != i+1 {
				t.Fatalf("after %d keys %d were looked at", i+1, good)
			}
		}
	})
}

// worker is a Syncer that implements Background.
type worker struct {
	recordedEvents
	run func(ctx context.Context) error
}

func (w *worker) Run(ctx context.Context) error { return w.run(ctx) }

// TestLoopEnds: what Run returns, and that it returns only after everything has stopped.
func TestLoopEnds(t *testing.T) {
	for _, test := range []struct {
		what string
		run  func(ctx context.Context) error // nil: no Background
		sync func(ctx context.Context) error
		most time.Duration // time it takes to stop
	}{
		{"nothing to do", nil, func(context.Context) error { return nil }, 0},
		{"a look in the middle", nil, func(context.Context) error { time.Sleep(30 * time.Second); return nil }, 30 * time.Second},
		{"a look that hears of the end", nil, func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }, 0},
		{"work of its own", func(ctx context.Context) error { <-ctx.Done(); time.Sleep(5 * time.Second); return nil }, func(context.Context) error { return nil }, 5 * time.Second},
		{"work of its own that fails at the end", func(ctx context.Context) error { <-ctx.Done(); return errors.New("late") }, func(context.Context) error { return nil }, 0},
	} {
		inSynctest(t, func(b *testEnvironment) {
			ctx, cancel := context.WithCancel(b.ctx)
			informers := client.NewInformers(b.client)
			var text strings.Builder
			loop, err := controller.NewLoop(controller.Definition{Name: "ending", New: func(s *controller.Setup) (controller.Syncer, error) {
				s.Enqueue(controller.Key{Name: "k"})
				syncer := controller.SyncFunc(func(ctx context.Context, _ controller.Key) error { return test.sync(ctx) })
				if test.run == nil {
					return syncer, nil
				}
				return &worker{run: test.run}, nil
			}}, controller.Environment{Client: b.client, Informers: informers, Log: slog.New(slog.NewTextHandler(&text, nil))})
			if err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			go func() { done <- loop.Run(ctx) }()
			pass(time.Second)
			cancel()
			asked := time.Now()
			if err := <-done; fmt.Sprint(err) != "<nil>" {
				t.Errorf("%s: %v", test.what, err)
			}
			if took := time.Since(asked); took > test.most {
				t.Errorf("%s: the end took %v", test.what, took)
			}
			if text.Len() > 0 {
				t.Errorf("%s: the end is no failure: %s", test.what, &text)
			}
		})
	}
	inSynctest(t, func(b *testEnvironment) {
		env := controller.Environment{Client: b.client, Informers: client.NewInformers(b.client), Log: slog.New(slog.DiscardHandler)}
		_, err := controller.NewLoop(controller.Definition{Name: "broken", New: func(*controller.Setup) (controller.Syncer, error) { return nil, errors.New("no index") }}, env)
		if err == nil || err.Error() != "set up broken: no index" {
			t.Errorf("%v", err)
		}
		loop, err := controller.NewLoop(controller.Definition{Name: "own", New: func(*controller.Setup) (controller.Syncer, error) {
			return &worker{run: func(context.Context) error { return errors.New("out of order") }}, nil
		}}, env)
		if err != nil {
			t.Fatal(err)
		}
		if err := loop.Run(b.ctx); err == nil || err.Error() != "own: out of order" {
			t.Errorf("a controller whose own work has failed: %v", err)
		}
	})
}

// TestLogLevels: conflicts are logged at debug level; other failures are warnings with key and controller.
func TestLogLevels(t *testing.T) {
	for _, test := range []struct {
		err  error
		want string
	}{
		{errors.New("broken"), `level=WARN msg="failed to sync" controller=logging key=default/k error=broken`},
		{apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, "a", errors.New("old")), "level=DEBUG"},
		{fmt.Errorf("sync: %w", apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, "a", errors.New("old"))), "level=DEBUG"},
	} {
		inSynctest(t, func(b *testEnvironment) {
			var text strings.Builder
			log := slog.New(slog.NewTextHandler(&text, &slog.HandlerOptions{Level: slog.LevelDebug}))
			n := 0
			loop, err := controller.NewLoop(controller.Definition{Name: "logging", New: func(s *controller.Setup) (controller.Syncer, error) {
				s.Enqueue(controller.Key{Namespace: "default", Name: "k"})
				return controller.SyncFunc(func(context.Context, controller.Key) error {
					if n++; n == 1 {
						return test.err
					}
					return nil
				}), nil
			}}, controller.Environment{Client: b.client, Informers: client.NewInformers(b.client), Log: log})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(b.ctx)
			done := make(chan error, 1)
			go func() { done <- loop.Run(ctx) }()
			pass(time.Second)
			cancel()
			<-done
			if got := text.String(); strings.Count(got, "failed to sync") != 1 || !strings.Contains(got, test.want) {
				t.Errorf("%v: %s", test.err, got)
			}
		})
	}
}

// TestEventsAreCorrelated: as in client-go, a repeated event increases a count, ten similar ones are aggregated, and the events of
// one object are rate-limited.
func TestEventsAreCorrelated(t *testing.T) {
	for _, test := range []struct {
		what  string
		told  int
		text  func(i int) string
		every time.Duration
		// objects are the events there are, most is the highest count of one.
		objects, most int
		combined      bool
	}{
		{"one", 1, func(int) string { return "same" }, time.Second, 1, 1, false},
		{"the same seven times", 7, func(int) string { return "same" }, time.Second, 1, 7, false},
		{"seven different ones", 7, func(i int) string { return fmt.Sprint("number ", i) }, time.Second, 7, 1, false},
		{"nine different ones", 9, func(i int) string { return fmt.Sprint("number ", i) }, time.Second, 9, 1, false},
		{"twenty different ones: from the tenth on they are combined", 20, func(i int) string { return fmt.Sprint("number ", i) }, time.Second, 10, 11, true},
		{"a flood: twenty five and no more", 100, func(int) string { return "same" }, time.Millisecond, 1, 25, false},
		{"a drip: one in five minutes goes on", 40, func(int) string { return "same" }, 6 * time.Minute, 1, 40, false},
	} {
		inSynctest(t, func(b *testEnvironment) {
			events := client.NewEventBroadcaster(b.client)
			go func() { _ = events.Run(b.ctx) }()
			about, err := client.For[*corev1.ConfigMap](b.client).Create(b.ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "c"}}, client.WriteOptions{})
			if err != nil {
				t.Fatal(err)
			}
			recorder := events.NewRecorder("test-controller")
			for i := range test.told {
				recorder.Event(about, corev1.EventTypeWarning, "Odd", test.text(i))
				pass(test.every)
			}
			pass(time.Second)
			all, _, err := client.For[*corev1.Event](b.client).List(b.ctx, "default", client.Selector{})
			if err != nil {
				t.Fatal(err)
			}
			most, combined := 0, false
			for _, e := range all {
				most = max(most, int(e.Count))
				combined = combined || strings.HasPrefix(e.Message, "(combined from similar events): number ")
				if e.Source.Component != "test-controller" || e.Reason != "Odd" || e.Type != "Warning" || e.InvolvedObject.Name != "c" || e.InvolvedObject.Kind != "ConfigMap" {
					t.Errorf("%s: %+v", test.what, e)
				}
			}
			if len(all) != test.objects || most != test.most || combined != test.combined {
				t.Errorf("%s: %d events, the highest count %d, combined %v; want %d, %d, %v", test.what, len(all), most, combined, test.objects, test.most, test.combined)
			}
		})
	}
}

// TestLeaderElection: which process leads, what Run returns, and which events are recorded.
func TestLeaderElection(t *testing.T) {
	const name = "kube-controller-manager"
	lease := func(b *testEnvironment) *coordinationv1.Lease {
		l, err := client.For[*coordinationv1.Lease](b.client).Get(b.ctx, "kube-system", name)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	t.Run("a leader that ends gives the lease back", func(t *testing.T) {
		inSynctest(t, func(b *testEnvironment) {
			e := &controller.LeaderElection{Namespace: "kube-system", Name: name, Identity: "a"}
			if err := e.Check(b.ctx); err != nil {
				t.Errorf("before it begins: %v", err)
			}
			broken := errors.New("broken")
			led := false
			err := e.Run(b.ctx, b.client, nil, func(ctx context.Context) error {
				led = true
				l := lease(b)
				if *l.Spec.HolderIdentity != "a" || *l.Spec.LeaseDurationSeconds != 15 || *l.Spec.LeaseTransitions != 0 || e.Check(ctx) != nil {
					t.Errorf("%+v", l.Spec)
				}
				time.Sleep(time.Minute)
				if l := lease(b); time.Since(l.Spec.RenewTime.Time) > 3*time.Second || !l.Spec.AcquireTime.Time.Before(time.Now().Add(-50*time.Second)) {
					t.Errorf("after a minute: %+v", l.Spec)
				}
				return broken
			})
			if !led || !errors.Is(err, broken) || errors.Is(err, controller.ErrLeadershipLost) {
				t.Errorf("led %v, %v", led, err)
			}
			if l := lease(b); *l.Spec.HolderIdentity != "" {
				t.Errorf("the lease is still held by %q", *l.Spec.HolderIdentity)
			}
		})
	})
	t.Run("who never led ends in peace", func(t *testing.T) {
		inSynctest(t, func(b *testEnvironment) {
			first := &controller.LeaderElection{Namespace: "kube-system", Name: name, Identity: "a"}
			go func() {
				_ = first.Run(b.ctx, b.client, nil, func(ctx context.Context) error { <-ctx.Done(); return nil })
			}()
			pass(5 * time.Second)
			ctx, cancel := context.WithTimeout(b.ctx, time.Minute)
			defer cancel()
			second := &controller.LeaderElection{Namespace: "kube-system", Name: name, Identity: "b"}
			err := second.Run(ctx, b.client, nil, func(context.Context) error { t.Error("two lead"); return nil })
			if err != nil || second.Check(b.ctx) != nil || *lease(b).Spec.HolderIdentity != "a" {
				t.Errorf("%v", err)
			}
		})
	})
	t.Run("a leader that vanishes is followed when its lease is over", func(t *testing.T) {
		inSynctest(t, func(b *testEnvironment) {
			now := metav1.NewMicroTime(time.Now())
			_, err := client.For[*coordinationv1.Lease](b.client).Create(b.ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: name, Labels: map[string]string{"kept": "yes"}},
				Spec: coordinationv1.LeaseSpec{HolderIdentity: new("ghost"), LeaseDurationSeconds: new(int32(15)), AcquireTime: &now, RenewTime: &now, LeaseTransitions: new(int32(4))}}, client.WriteOptions{})
			if err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			e := &controller.LeaderElection{Namespace: "kube-system", Name: name, Identity: "b"}
			err = e.Run(b.ctx, b.client, nil, func(context.Context) error {
				if waited := time.Since(began); waited < 15*time.Second || waited > 20*time.Second {
					t.Errorf("it leads after %v", waited)
				}
				l := lease(b)
				if *l.Spec.LeaseTransitions != 5 || l.Labels["kept"] != "yes" {
					t.Errorf("%+v", l)
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	})
	t.Run("it is told who leads", func(t *testing.T) {
		inSynctest(t, func(b *testEnvironment) {
			events := client.NewEventBroadcaster(b.client)
			go func() { _ = events.Run(b.ctx) }()
			registry := prometheus.NewRegistry()
			metrics, err := controller.NewMetrics(registry)
			if err != nil {
				t.Fatal(err)
			}
			b.registry = registry
			e := &controller.LeaderElection{Namespace: "kube-system", Name: name, Identity: "host_1", Events: events.NewRecorder(name), LeaseDuration: 60 * time.Second, RenewDeadline: 40 * time.Second, RetryPeriod: 5 * time.Second}
			err = e.Run(b.ctx, b.client, metrics, func(context.Context) error {
				if b.metric("leader_election_master_status", name) != 1 || *lease(b).Spec.LeaseDurationSeconds != 60 {
					t.Error("a leader is not counted as one")
				}
				time.Sleep(time.Second) // the name of an event contains its time
				return nil
			})
			pass(time.Second)
			if err != nil || b.metric("leader_election_master_status", name) != 0 {
				t.Errorf("%v, status %v", err, b.metric("leader_election_master_status", name))
			}
			all, _, err := client.For[*corev1.Event](b.client).List(b.ctx, "kube-system", client.Selector{})
			if err != nil {
				t.Fatal(err)
			}
			var told []string
			for _, e := range all {
				told = append(told, fmt.Sprintf("%s %s %s/%s %s: %s", e.Source.Component, e.Type, e.InvolvedObject.Kind, e.InvolvedObject.Name, e.Reason, e.Message))
			}
			slices.Sort(told)
			want := []string{"kube-controller-manager Normal Lease/kube-controller-manager LeaderElection: host_1 became leader", "kube-controller-manager Normal Lease/kube-controller-manager LeaderElection: host_1 stopped leading"}
			if !slices.Equal(told, want) {
				t.Errorf("%q", told)
			}
		})
	})
	t.Run("durations that make no sense are refused", func(t *testing.T) {
		inSynctest(t, func(b *testEnvironment) {
			for _, e := range []*controller.LeaderElection{
				{Namespace: "kube-system", Name: name, Identity: "a", LeaseDuration: 5 * time.Second, RenewDeadline: 5 * time.Second},
				{Namespace: "kube-system", Name: name, Identity: "a", RenewDeadline: 2 * time.Second, RetryPeriod: 2 * time.Second},
			} {
				if err := e.Run(b.ctx, b.client, nil, func(context.Context) error { t.Error("it leads"); return nil }); err == nil || !strings.HasPrefix(err.Error(), "create leader elector: ") {
					t.Errorf("%v", err)
				}
			}
		})
	})
}

// TestMetrics: names, labels and values as upstream's; a nil Metrics records nothing.
func TestMetrics(t *testing.T) {
	inSynctest(t, func(b *testEnvironment) {
		ctx, cancel := context.WithCancel(b.ctx)
		whole := b.ctx
		b.ctx = ctx
		b.start(controller.Definition{Name: "counted-controller", Queue: "counted", New: func(s *controller.Setup) (controller.Syncer, error) {
			n := 0
			return controller.SyncFunc(func(context.Context, controller.Key) error {
				if n++; n == 1 {
					return errors.New("once")
				}
				return nil
			}), controller.WatchPrimary[*corev1.ConfigMap](s)
		}})
		b.configMap("a")
		pass(time.Minute)
		for _, test := range []struct {
			metric, label string
			want          float64
		}{
			{"workqueue_adds_total", "counted", 2}, {"workqueue_retries_total", "counted", 1}, {"workqueue_depth", "counted", 0}, {"running_managed_controllers", "counted-controller", 1},
			{"controller_syncs_total", "success", 1}, {"controller_syncs_total", "error", 1}, {"workqueue_adds_total", "counted-controller", 0}, {"controller_stale_sync_skips_total", "counted-controller", 0},
		} {
			if got := b.metric(test.metric, test.label); got != test.want {
				t.Errorf("%s of %s: %v, want %v", test.metric, test.label, got, test.want)
			}
		}
		families, err := b.registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		histograms := map[string]uint64{}
		for _, f := range families {
			for _, m := range f.Metric {
				histograms[f.GetName()] += m.GetHistogram().GetSampleCount()
			}
		}
		if histograms["workqueue_queue_duration_seconds"] != 2 || histograms["workqueue_work_duration_seconds"] != 2 || histograms["controller_sync_duration_seconds"] != 2 {
			t.Errorf("%v", histograms)
		}
		cancel()
		pass(time.Second)
		if got := b.metric("running_managed_controllers", "counted-controller"); got != 0 {
			t.Errorf("a controller that has ended runs: %v", got)
		}
		b.ctx = whole
		if _, err := controller.NewMetrics(b.registry); err == nil {
			t.Error("metrics were registered twice")
		}
	})
}

// TestWorkers: the number of concurrently synced keys is that of the definition, by default one.
func TestWorkers(t *testing.T) {
	for workers, want := range map[int]int{-1: 1, 0: 1, 1: 1, 2: 2, 5: 5} {
		inSynctest(t, func(b *testEnvironment) {
			var mu sync.Mutex
			under, most := 0, 0
			b.start(controller.Definition{Name: "busy", Workers: workers, New: func(s *controller.Setup) (controller.Syncer, error) {
				for i := range 10 {
					s.Enqueue(controller.Key{Name: fmt.Sprint(i)})
				}
				return controller.SyncFunc(func(context.Context, controller.Key) error {
					mu.Lock()
					under++
					most = max(most, under)
					mu.Unlock()
					time.Sleep(time.Second)
					mu.Lock()
					under--
					mu.Unlock()
					return nil
				}), nil
			}})
			pass(time.Minute)
			if mu.Lock(); most != want || under != 0 {
				t.Errorf("%d workers: %d at once, want %d", workers, most, want)
			}
			mu.Unlock()
		})
	}
}

// TestWatch: an update enqueues the keys of the old and of the new object.
func TestWatch(t *testing.T) {
	inSynctest(t, func(b *testEnvironment) {
		notes := &recordedEvents{}
		b.start(controller.Definition{Name: "watching", New: func(s *controller.Setup) (controller.Syncer, error) {
			return notes, controller.Watch(s, func(c *corev1.ConfigMap) (keys []controller.Key) {
				for name := range strings.FieldsSeq(c.Data["for"]) {
					keys = append(keys, controller.Key{Name: name})
				}
				return keys
			})
		}})
		maps := client.For[*corev1.ConfigMap](b.client)
		set := func(names string) {
			made := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "c"}, Data: map[string]string{"for": names}}
			_, err := maps.Create(b.ctx, made, client.WriteOptions{})
			if apierrors.IsAlreadyExists(err) {
				_, err = maps.Patch(b.ctx, "default", "c", client.RawPatch(client.MergePatch, fmt.Appendf(nil, `{"data":{"for":%q}}`, names)), client.WriteOptions{})
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		for _, step := range []struct{ names, want string }{{"a b", "a b"}, {"b c", "a b c"}, {"", "b c"}, {"d", "d"}} {
			set(step.names)
			pass(time.Second)
			if heard := notes.read(); heard != step.want {
				t.Errorf("changed to %q: %q were looked at, want %q", step.names, heard, step.want)
			}
		}
		if err := maps.Delete(b.ctx, "default", "c", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		pass(time.Second)
		if heard := notes.read(); heard != "d" {
			t.Errorf("gone: %q were looked at", heard)
		}
	})
}
