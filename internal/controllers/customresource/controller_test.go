package customresource

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/apiserver/admission"
	"skiff/internal/client"
	"skiff/internal/kind"
	"skiff/test/inprocess"
)

// instances are custom resources whose deletion the test decides about.
type instances struct {
	kind.Client
	mu    sync.Mutex
	names []string
	// stuck: a deletion only marks.
	stuck   bool
	deletes int
	err     error
	// onDelete is called before a deletion.
	onDelete func()
	// again are the instances that were deleted and created again; conflicts counts the deletions of their former ones.
	again     []string
	conflicts int
}

func (i *instances) uid(name string) types.UID {
	if slices.Contains(i.again, name) {
		return types.UID(name + " again")
	}
	return types.UID(name)
}

func (i *instances) List(context.Context, schema.GroupResource, string) ([]kind.Object, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	var all []kind.Object
	for _, name := range i.names {
		u := &unstructured.Unstructured{}
		u.SetName(name)
		u.SetUID(i.uid(name))
		all = append(all, u)
	}
	return all, i.err
}

func (i *instances) Delete(_ context.Context, gr schema.GroupResource, _, name string, options *metav1.DeleteOptions) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.onDelete != nil {
		i.onDelete()
	}
	if p := options.Preconditions; p != nil && p.UID != nil && *p.UID != i.uid(name) {
		i.conflicts++
		return apierrors.NewConflict(gr, name, errors.New("it has another UID"))
	}
	i.deletes++
	if !i.stuck {
		i.names = slices.DeleteFunc(i.names, func(n string) bool { return n == name })
	}
	return nil
}

func (i *instances) set(change func()) {
	i.mu.Lock()
	defer i.mu.Unlock()
	change()
}

// world is a server with the controllers.
type world struct {
	t           *testing.T
	ctx         context.Context
	definitions client.Resource[*definition]
	instances   *instances
	controllers *Controllers

	mu sync.Mutex
	// onServe is called when a definition is to be served; unserved is why one cannot be.
	onServe  func(*definition)
	unserved map[string]error
	early    map[string]bool // by Serve, until Unserve
	removed  []string        // by Unserve
	replaced bool            // another state of each definition is served
}

// run runs a test in a bubble with the controllers. Every definition is served, unless the test says otherwise.
func run(t *testing.T, delay time.Duration, test func(*world), plugins ...admission.Plugin) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		c := inprocess.Start(t, ctx, plugins...)
		w := &world{t: t, ctx: ctx, definitions: client.For[*definition](c), instances: &instances{}, early: map[string]bool{}}
		var err error
		w.controllers, err = New(Config{
			Client: c, Instances: w.instances, EstablishingDelay: delay, Log: slog.New(slog.DiscardHandler),
			Served: w.served, Serve: w.serve, Unserve: w.unserve,
		})
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- w.controllers.Run(ctx) }()
		synctest.Wait()
		test(w)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func (w *world) served(crd *definition) (bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	err := w.unserved[crd.Name]
	return err == nil && !w.replaced, err
}

func (w *world) setReplaced(replaced bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.replaced = replaced
}

func (w *world) serve(crd *definition) error {
	w.mu.Lock()
	onServe, err := w.onServe, w.unserved[crd.Name]
	w.mu.Unlock()
	if onServe != nil {
		onServe(crd)
	}
	if err == nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.early[crd.Name] = true
	}
	return err
}

func (w *world) unserve(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.removed = append(w.removed, name)
	delete(w.early, name)
}

// expectEarly waits until a definition is served because of Serve, or is not.
func (w *world) expectEarly(plural string, within time.Duration, want bool) {
	w.t.Helper()
	for end := time.Now().Add(within); ; time.Sleep(10 * time.Millisecond) {
		synctest.Wait()
		w.mu.Lock()
		got := w.early[plural+".example.com"]
		w.mu.Unlock()
		if got == want {
			return
		}
		if !time.Now().Before(end) {
			w.t.Fatalf("%s is served: %v, want %v", plural, got, want)
		}
	}
}

func (w *world) create(plural string, change ...func(*definition)) {
	w.t.Helper()
	crd := newDefinition(plural, change...)
	crd.ResourceVersion = ""
	if _, err := w.definitions.Create(w.ctx, crd, client.WriteOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

// expect waits until the conditions of a definition are these.
func (w *world) expect(plural string, within time.Duration, want ...string) {
	w.t.Helper()
	var got []string
	for end := time.Now().Add(within); ; {
		synctest.Wait()
		crd, err := w.definitions.Get(w.ctx, "", plural+".example.com")
		if err != nil {
			w.t.Fatal(err)
		}
		got = nil
		for _, c := range crd.Status.Conditions {
			got = append(got, fmt.Sprintf("%s=%s %s", c.Type, c.Status, c.Reason))
		}
		slices.Sort(got)
		if slices.Equal(got, want) {
			return
		}
		if !time.Now().Before(end) {
			w.t.Fatalf("conditions of %s are %q, want %q", plural, got, want)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (w *world) delete(plural string) {
	w.t.Helper()
	if err := w.definitions.Delete(w.ctx, "", plural+".example.com", metav1.DeleteOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

// expectGone waits until a definition is deleted.
func (w *world) expectGone(plural string, within time.Duration) {
	w.t.Helper()
	for end := time.Now().Add(within); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		synctest.Wait()
		if _, err := w.definitions.Get(w.ctx, "", plural+".example.com"); apierrors.IsNotFound(err) {
			return
		}
	}
	w.t.Fatalf("%s is still there", plural)
}

const (
	isAccepted    = "NamesAccepted=True NoConflicts"
	isEstablished = "Established=True InitialNamesAccepted"
)

func TestEstablishing(t *testing.T) {
	run(t, 0, func(w *world) {
		w.create("foos")
		w.expect("foos", time.Second, isEstablished, isAccepted)
		// Another definition wants the kind, and gets it when the first one is deleted.
		w.create("bars", func(crd *definition) { crd.Spec.Names.Kind = "Foos" })
		w.expect("bars", time.Second, "Established=False NotAccepted", "NamesAccepted=False KindConflict")
		w.delete("foos")
		w.expectGone("foos", 10*time.Second)
		w.expect("bars", time.Second, isEstablished, isAccepted)
	})
}

// A definition is served, with its names, before it is written as established. One that cannot be served is not.
func TestServedBeforeEstablished(t *testing.T) {
	run(t, 0, func(w *world) {
		failure := errors.New("no converter")
		w.mu.Lock()
		w.unserved = map[string]error{"bars.example.com": failure}
		w.onServe = func(crd *definition) {
			stored, err := w.definitions.Get(w.ctx, "", crd.Name)
			if err != nil || len(stored.Status.Conditions) > 0 || stored.ResourceVersion != crd.ResourceVersion {
				t.Errorf("stored: %+v, %v", stored, err)
			}
			if crd.Status.AcceptedNames.Kind != crd.Spec.Names.Kind || !isTrue(&crd.Status, apiextensionsv1.NamesAccepted) || crd.Spec.Versions[0].Schema == nil {
				t.Errorf("to be served: %+v", crd)
			}
		}
		w.mu.Unlock()
		w.create("foos")
		w.expect("foos", time.Second, isEstablished, isAccepted)
		w.create("bars")
		w.expect("bars", time.Second, "Established=False Installing", isAccepted)
		crd, err := w.definitions.Get(w.ctx, "", "bars.example.com")
		if err != nil || find(&crd.Status, apiextensionsv1.Established).Message != failure.Error() {
			t.Errorf("%+v, %v", crd.Status, err)
		}
	})
}

// A definition that is deleted while it is made ready for serving is not served.
func TestDeletedBeforeEstablished(t *testing.T) {
	run(t, 0, func(w *world) {
		w.mu.Lock()
		w.onServe = func(crd *definition) {
			// A sync that has not observed the deletion yet serves the definition again.
			if err := w.definitions.Delete(w.ctx, "", crd.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
				t.Error(err)
			}
		}
		w.mu.Unlock()
		w.create("foos")
		w.expectGone("foos", 10*time.Second)
		synctest.Wait()
		w.mu.Lock()
		defer w.mu.Unlock()
		if !slices.Contains(w.removed, "foos.example.com") {
			t.Errorf("a definition that was deleted is served; removed: %q", w.removed)
		}
	})
}

// statusAdmission is an admission plugin for the status of definitions. It refuses those of one group.
type statusAdmission struct {
	group   string
	refused atomic.Int32
	partial atomic.Bool // an object without its schemas was seen
}

func (*statusAdmission) Name() string { return "StatusAdmission" }

func (*statusAdmission) Handles(a *admission.Attributes) bool { return a.Subresource == "status" }

func (p *statusAdmission) Mutate(_ context.Context, a *admission.Attributes) error {
	crd := a.Object.(*definition)
	if crd.Spec.Versions[0].Schema == nil {
		p.partial.Store(true)
	}
	if crd.Spec.Group == p.group {
		p.refused.Add(1)
		return apierrors.NewForbidden(apiextensionsv1.Resource("customresourcedefinitions"), crd.Name, errors.New("not in this cluster"))
	}
	return nil
}

// Admission plugins get whole definitions. One whose status they refuse is not served, and is tried again with backoff.
func TestRefusedStatus(t *testing.T) {
	plugin := &statusAdmission{group: "refused.example.com"}
	run(t, 0, func(w *world) {
		w.create("foos")
		w.expect("foos", time.Second, isEstablished, isAccepted)
		w.create("bars", func(crd *definition) {
			crd.Spec.Group, crd.Name = plugin.group, "bars."+plugin.group
		})
		time.Sleep(time.Minute)
		synctest.Wait()
		if tries := plugin.refused.Load(); tries < 2 || tries > 50 {
			t.Errorf("%d tries in a minute", tries)
		}
		if plugin.partial.Load() {
			t.Error("a plugin got a definition without its schemas")
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if !slices.Contains(w.removed, "bars."+plugin.group) || slices.Contains(w.removed, "foos.example.com") {
			t.Errorf("removed: %q", w.removed)
		}
	}, plugin)
}

// brokenStatus is an admission plugin that fails for the status of one definition, as the one does that calls webhooks.
type brokenStatus struct {
	definition string
	err        atomic.Pointer[apierrors.StatusError]
}

func (*brokenStatus) Name() string { return "BrokenStatus" }

func (*brokenStatus) Handles(a *admission.Attributes) bool { return a.Subresource == "status" }

func (p *brokenStatus) Mutate(_ context.Context, a *admission.Attributes) error {
	if err := p.err.Load(); err != nil && a.Object.(*definition).Name == p.definition {
		return err
	}
	return nil
}

var (
	notCalled = apierrors.NewInternalError(errors.New("failed calling webhook"))
	forbidden = apierrors.NewForbidden(apiextensionsv1.Resource("customresourcedefinitions"), "foos.example.com", errors.New("not in this cluster"))
)

// As long as a definition may have been written, it is served and keeps its names. No other one is served with them.
func TestNamesOfUnknownOutcome(t *testing.T) {
	plugin := &brokenStatus{definition: "foos.example.com"}
	plugin.err.Store(notCalled)
	run(t, 0, func(w *world) {
		w.mu.Lock()
		w.onServe = func(crd *definition) {
			w.mu.Lock()
			defer w.mu.Unlock()
			if crd.Name == "bars.example.com" && w.early["foos.example.com"] {
				t.Error("two definitions are served as the same kind")
			}
		}
		w.mu.Unlock()
		w.create("foos")
		w.expectEarly("foos", time.Second, true)
		w.create("bars", func(crd *definition) { crd.Spec.Names.Kind = "Foos" })
		w.expect("bars", time.Second, "Established=False NotAccepted", "NamesAccepted=False KindConflict")
		time.Sleep(time.Minute)
		w.expectEarly("foos", 0, true)
		w.controllers.conditions.mu.Lock()
		if reserved := w.controllers.conditions.names.held["foos.example.com"].reserved; len(reserved) > 4 {
			t.Errorf("%d names are reserved: %v", len(reserved), reserved)
		}
		w.controllers.conditions.mu.Unlock()
		plugin.err.Store(forbidden)
		w.expect("bars", 5*time.Minute, isEstablished, isAccepted)
		plugin.err.Store(nil)
		w.expect("foos", 5*time.Minute, "Established=False NotAccepted", "NamesAccepted=False KindConflict")
		w.expectEarly("foos", 0, false)
	}, plugin)
}

// A definition that loses its names is not served any more, also while that cannot be written.
func TestServedUntilNamesAreLost(t *testing.T) {
	plugin := &brokenStatus{definition: "foos.example.com"}
	run(t, 0, func(w *world) {
		w.create("bars")
		w.expect("bars", time.Second, isEstablished, isAccepted)
		plugin.err.Store(notCalled)
		w.create("foos")
		w.expectEarly("foos", time.Second, true)
		crd, err := w.definitions.Get(w.ctx, "", "foos.example.com")
		if err != nil {
			t.Fatal(err)
		}
		crd = crd.DeepCopy()
		crd.Spec.Names.Kind = "Bars"
		if _, err := w.definitions.Update(w.ctx, crd, client.WriteOptions{}); err != nil {
			t.Fatal(err)
		}
		w.expectEarly("foos", 5*time.Minute, false)
	}, plugin)
}

// Whoever follows the definitions may have missed one, its last write and its deletion. It is not served any more.
func TestDeletedAfterEstablished(t *testing.T) {
	run(t, 0, func(w *world) {
		w.create("foos")
		w.expect("foos", time.Second, isEstablished, isAccepted)
		w.expectEarly("foos", 0, true)
		w.delete("foos")
		w.expectGone("foos", 10*time.Second)
		w.expectEarly("foos", time.Second, false)
	})
}

// Definitions are synced at the same time, but a name has one user. When that is deleted, one of those that wait gets it.
func TestOneNameForMany(t *testing.T) {
	const count = 12
	run(t, 0, func(w *world) {
		for i := range count {
			w.create(fmt.Sprintf("foos%d", i), func(crd *definition) { crd.Spec.Names.ShortNames = []string{"f"} })
		}
		for left := count; left > 0; left-- {
			user := ""
			for end := time.Now().Add(time.Minute); user == "" && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
				synctest.Wait()
				list, _, err := w.definitions.List(w.ctx, "", client.Selector{})
				if err != nil {
					t.Fatal(err)
				}
				for _, crd := range list {
					if len(crd.Status.AcceptedNames.ShortNames) == 0 {
						continue
					}
					if user != "" {
						t.Fatalf("%s and %s have the same name", user, crd.Spec.Names.Plural)
					}
					user = crd.Spec.Names.Plural
				}
			}
			if user == "" {
				t.Fatalf("none of %d definitions has the name", left)
			}
			w.expect(user, time.Second, isEstablished, isAccepted)
			w.delete(user)
			w.expectGone(user, 10*time.Second)
		}
		synctest.Wait()
		w.controllers.conditions.mu.Lock()
		defer w.controllers.conditions.mu.Unlock()
		if n := w.controllers.conditions.names; len(n.used)+len(n.waiting)+len(n.held) != 0 {
			t.Errorf("left over: %+v", n)
		}
	})
}

func TestEstablishingDelay(t *testing.T) {
	run(t, 5*time.Second, func(w *world) {
		w.create("foos")
		w.expect("foos", time.Second, "Established=False Installing", isAccepted)
		time.Sleep(4 * time.Second)
		w.expect("foos", 0, "Established=False Installing", isAccepted)
		w.expect("foos", 3*time.Second, isEstablished, isAccepted)
	})
}

func TestInstancesAreDeleted(t *testing.T) {
	run(t, 0, func(w *world) {
		w.create("foos")
		w.expect("foos", time.Second, isEstablished, isAccepted)
		w.instances.set(func() { w.instances.names, w.instances.stuck = []string{"a", "b"}, true })
		w.delete("foos")
		w.expect("foos", time.Second, isEstablished, isAccepted, "Terminating=True InstanceDeletionInProgress")
		w.expect("foos", 2*time.Minute, isEstablished, isAccepted, "Terminating=True InstanceDeletionCheck")
		w.instances.set(func() { w.instances.err = errors.New("no store") })
		w.expect("foos", time.Minute, isEstablished, isAccepted, "Terminating=True InstanceDeletionFailed")
		w.instances.set(func() { w.instances.err, w.instances.names = nil, nil })
		w.expectGone("foos", 20*time.Minute)
		if w.instances.deletes < 2 || w.instances.deletes > 200 {
			t.Errorf("%d deletions were requested", w.instances.deletes)
		}
	})
}

// While instances are deleted, their definition may be gone, and another one have them. They are not deleted any more.
func TestInstancesOfAnotherDefinition(t *testing.T) {
	run(t, 0, func(w *world) {
		w.create("foos")
		w.expect("foos", time.Second, isEstablished, isAccepted)
		w.instances.set(func() {
			for i := range 10 * maxConcurrentDeletes {
				w.instances.names = append(w.instances.names, fmt.Sprint(i))
			}
			w.instances.onDelete = func() { w.setReplaced(true) }
		})
		w.delete("foos")
		time.Sleep(10 * time.Minute)
		w.expect("foos", 0, isEstablished, isAccepted, "Terminating=True InstanceDeletionInProgress")
		w.instances.set(func() {
			if w.instances.deletes == 0 || w.instances.deletes > maxConcurrentDeletes {
				t.Errorf("%d deletions were requested", w.instances.deletes)
			}
			w.instances.onDelete = nil
		})
		w.setReplaced(false)
		w.controllers.Enqueue("foos.example.com")
		w.expectGone("foos", time.Minute)
	})
}

// An instance that was created again after it was listed is not deleted in place of the former one.
func TestInstanceThatIsCreatedAgain(t *testing.T) {
	run(t, 0, func(w *world) {
		w.create("foos")
		w.expect("foos", time.Second, isEstablished, isAccepted)
		w.instances.set(func() {
			w.instances.names = []string{"a"}
			w.instances.onDelete = func() { w.instances.again = []string{"a"} }
		})
		w.delete("foos")
		w.expectGone("foos", time.Minute)
		if w.instances.conflicts != 1 || w.instances.deletes != 1 {
			t.Errorf("%d deletions were refused, and %d requested", w.instances.conflicts, w.instances.deletes)
		}
	})
}

// A definition that is created again in a protected group gets the condition of its approval, also if the deletion was not observed.
func TestApprovalOfDefinitionThatIsCreatedAgain(t *testing.T) {
	protected := func(uid types.UID) *definition {
		return newDefinition("foos", accepted(0), func(crd *definition) {
			crd.Spec.Group, crd.Name, crd.UID = "foos.k8s.io", "foos.foos.k8s.io", uid
		})
	}
	c := &conditions{names: newNames(), checked: map[string]checked{}, Config: Config{Served: func(*definition) (bool, error) { return false, nil }}}
	c.setChecked(protected("a"))
	if c.view(protected("a")).unchecked {
		t.Error("the definition is checked twice")
	}
	if !c.view(protected("b")).unchecked {
		t.Error("another definition is taken for the one that was checked")
	}
}

// A definition that was never established has no instances; one that shares them with a built-in kind must not delete them.
func TestDeletionWithoutInstances(t *testing.T) {
	run(t, time.Hour, func(w *world) {
		w.create("foos")
		w.expect("foos", time.Second, "Established=False Installing", isAccepted)
		w.instances.set(func() { w.instances.names = []string{"a"} })
		w.delete("foos")
		w.expectGone("foos", time.Second)
		if w.instances.deletes != 0 {
			t.Error("instances were deleted")
		}
	})
}

// Establishing many definitions of one group takes a number of writes that grows with them.
func TestCostOfManyDefinitions(t *testing.T) {
	run(t, 0, func(w *world) {
		const count = 60
		for i := range count {
			w.create(fmt.Sprintf("foos%d", i))
		}
		for i := range count {
			w.expect(fmt.Sprintf("foos%d", i), time.Minute, isEstablished, isAccepted)
		}
		list, revision, err := w.definitions.List(w.ctx, "", client.Selector{})
		if err != nil || len(list) != count {
			t.Fatal(len(list), err)
		}
		// Two namespaces, and for each definition its creation and one write of its status.
		if want := fmt.Sprint(1 + 2 + 2*count); revision != want {
			t.Errorf("revision %s, want %s", revision, want)
		}
		for _, crd := range list {
			if !slices.Equal(crd.Status.StoredVersions, []string{"v1"}) || crd.Status.AcceptedNames.Kind != crd.Spec.Names.Kind {
				t.Errorf("status of %s: %+v", crd.Name, crd.Status)
			}
		}
	})
}

// Until a large definition is established, it is decoded, validated and encoded a few times in all.
func TestCostOfLargeDefinitions(t *testing.T) {
	large := func(crd *definition) {
		properties := map[string]apiextensionsv1.JSONSchemaProps{}
		for i := range 300 {
			properties[fmt.Sprint("property", i)] = apiextensionsv1.JSONSchemaProps{Type: "string", Description: fmt.Sprintf("Property %d of %s has a description "+
				"about as long as those that are generated from comments: what it is for, when it is set, and what its default is.", i, crd.Name)}
		}
		crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties = map[string]apiextensionsv1.JSONSchemaProps{"spec": {Type: "object", Properties: properties}}
	}
	run(t, 0, func(w *world) {
		w.create("first", large)
		w.expect("first", time.Second, isEstablished, isAccepted)
		const count = 20
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for i := range count {
			w.create(fmt.Sprintf("foos%d", i), large)
		}
		for i := range count {
			w.expect(fmt.Sprintf("foos%d", i), time.Minute, isEstablished, isAccepted)
		}
		runtime.ReadMemStats(&after)
		crd, err := w.definitions.Get(w.ctx, "", "first.example.com")
		if err != nil {
			t.Fatal(err)
		}
		each := float64(after.TotalAlloc-before.TotalAlloc) / count / float64(crd.Size())
		t.Logf("%.1f bytes are allocated for each of %d", each, crd.Size())
		if each > maxAllocated {
			t.Errorf("%.1f bytes are allocated for each of %d, want at most %d", each, crd.Size(), maxAllocated)
		}
	})
}

// maxAllocated is how many bytes may be allocated for each byte of a definition: each time it is decoded or copied takes about ten.
const maxAllocated = 110
