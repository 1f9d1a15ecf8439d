// Package world runs controllers against skiff's API server on an in-memory store, in a synctest bubble: hours pass in
// milliseconds, and a test knows when everything has been processed. It is for tests of whole controllers; their
// decisions have table tests of their own.
package world

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"skiff/internal/api/core"
	"skiff/internal/apiserver"
	"skiff/internal/apiserver/authn"
	"skiff/internal/client"
	"skiff/internal/controller"
	"skiff/internal/kind"
	"skiff/test/inprocess"
)

// World is a server and a client.
type World struct {
	T      *testing.T
	Ctx    context.Context
	Client *client.Client
	// Random is for the test's own choices, the same in every run.
	Random *rand.Rand
	// Metrics are those of the controllers; nil: nothing is counted.
	Metrics *controller.Metrics

	local client.Local
	nodes int
	mu    sync.Mutex // guards the state of Play
	luck  *rand.Rand // for the behavior of pods
	// failing is the probability that a pod fails instead of becoming ready, ending that it succeeds after running.
	failing, ending float64
	played          int // number of pods with an address
}

// In runs a test in a new world.
func In(t *testing.T, test func(w *World)) { InSeeded(t, 0, test) }

// Seeds runs a test in several worlds with different seeds.
func Seeds(t *testing.T, n int, test func(w *World)) {
	if testing.Short() {
		n = min(n, 3)
	}
	for seed := range n {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) { InSeeded(t, uint64(seed), test) })
	}
}

// InSeeded runs a test in a new world with a seed.
func InSeeded(t *testing.T, seed uint64, test func(w *World)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		local := inprocess.Server(t, ctx)
		w := &World{T: t, Ctx: ctx, Client: inprocess.Client(t, local), local: local,
			Random: rand.New(rand.NewPCG(seed, 1)), luck: rand.New(rand.NewPCG(seed, 2))}
		for _, name := range []string{metav1.NamespaceDefault, metav1.NamespaceSystem} {
			Create(w, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
		}
		Create(w, core.NewDefaultServiceCIDR([]string{"10.96.0.0/12"}, metav1.Now())) // services need addresses
		test(w)
		cancel()
		time.Sleep(time.Minute) // let everything finish
	})
}

// Run starts controllers and returns a function that stops them. They also stop with the world.
func (w *World) Run(definitions ...controller.Definition) (stop func()) {
	w.T.Helper()
	return w.start(w.Ctx, &Faults{}, definitions)
}

// start runs controllers as one process, until ctx is done.
func (w *World) start(ctx context.Context, faults *Faults, definitions []controller.Definition) (stop func()) {
	w.T.Helper()
	ctx, cancel := context.WithCancel(ctx)
	informers := client.NewInformers(inprocess.Client(w.T, faults.reading(w.local)))
	events := client.NewEventBroadcaster(w.Client)
	log := slog.New(slog.DiscardHandler)
	if testing.Verbose() {
		log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	var loops []*controller.Loop
	for _, d := range definitions {
		c := inprocess.Client(w.T, faults.writing(w.local, d.Name))
		loop, err := controller.NewLoop(d, controller.Environment{Client: c, Informers: informers, Events: events, Metrics: w.Metrics, Log: log})
		if err != nil {
			w.T.Fatal(err)
		}
		loops = append(loops, loop)
	}
	var running sync.WaitGroup
	running.Go(func() { _ = informers.Run(ctx) })
	running.Go(func() { _ = events.Run(ctx) })
	if err := informers.WaitForSync(ctx); err != nil && ctx.Err() == nil {
		w.T.Fatal(err)
	}
	for _, loop := range loops {
		running.Go(func() {
			if err := loop.Run(ctx); err != nil {
				w.T.Error(err)
			}
		})
	}
	return func() { cancel(); running.Wait() }
}

// Local returns the server's in-process interface.
func (w *World) Local() client.Local { return w.local }

// ClientOf returns a client of an in-process interface.
func (w *World) ClientOf(local client.Local) *client.Client {
	w.T.Helper()
	return inprocess.Client(w.T, local)
}

// Pass lets time pass and waits until everything has been processed.
func (w *World) Pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// Create creates an object with its status.
func Create[T kind.Object](w *World, obj T) T {
	w.T.Helper()
	made, err := client.For[T](w.Client).Create(w.Ctx, obj, client.WriteOptions{})
	if err != nil {
		w.T.Fatalf("create %T %s: %v", obj, obj.GetName(), err)
	}
	return made
}

// CreateAs creates an object as a user with groups who is allowed everything.
func CreateAs[T kind.Object](w *World, user string, groups []string, obj T) T {
	w.T.Helper()
	local := w.local.(*apiserver.Local).As(authn.User{Username: user, Groups: append(groups, authn.GroupMasters)})
	made, err := client.For[T](inprocess.Client(w.T, local)).Create(w.Ctx, obj, client.WriteOptions{})
	if err != nil {
		w.T.Fatalf("create %T %s as %s: %v", obj, obj.GetName(), user, err)
	}
	return made
}

// Get reads an object.
func Get[T kind.Object](w *World, namespace, name string) T {
	w.T.Helper()
	obj, err := client.For[T](w.Client).Get(w.Ctx, namespace, name)
	if err != nil {
		w.T.Fatalf("get %s: %v", name, err)
	}
	return obj
}

// Gone reports whether an object does not exist.
func Gone[T kind.Object](w *World, namespace, name string) bool {
	w.T.Helper()
	_, err := client.For[T](w.Client).Get(w.Ctx, namespace, name)
	if err != nil && !apierrors.IsNotFound(err) {
		w.T.Fatalf("get %s: %v", name, err)
	}
	return err != nil
}

// List returns all objects of a type.
func List[T kind.Object](w *World) []T {
	w.T.Helper()
	objs, _, err := client.For[T](w.Client).List(w.Ctx, "", client.Selector{})
	if err != nil {
		w.T.Fatal(err)
	}
	return objs
}

// Edit updates an object as a user, with retries on conflict.
func Edit[T kind.Object](w *World, namespace, name string, change func(T)) T {
	w.T.Helper()
	return edit(w, namespace, name, client.WriteOptions{}, change)
}

// EditStatus updates the status of an object.
func EditStatus[T kind.Object](w *World, namespace, name string, change func(T)) T {
	w.T.Helper()
	return edit(w, namespace, name, client.WriteOptions{Subresource: "status"}, change)
}

func edit[T kind.Object](w *World, namespace, name string, o client.WriteOptions, change func(T)) T {
	w.T.Helper()
	resource := client.For[T](w.Client)
	for {
		c := Get[T](w, namespace, name).DeepCopyObject().(T)
		change(c)
		changed, err := resource.Update(w.Ctx, c, o)
		if err == nil {
			return changed
		}
		if !apierrors.IsConflict(err) {
			w.T.Fatalf("edit %s: %v", name, err)
		}
	}
}

// Chance returns true with probability p.
func (w *World) Chance(p float64) bool { return p > 0 && w.Random.Float64() < p }

// Pick returns a random element.
func Pick[T any](w *World, from ...T) T { return from[w.Random.IntN(len(from))] }

// AssertSettled runs newly started controllers and fails if they write anything but events: the state must be a fixed
// point.
func (w *World) AssertSettled(definitions ...controller.Definition) {
	w.T.Helper()
	var nothing Faults
	stop := w.start(w.Ctx, &nothing, definitions)
	w.Pass(30 * time.Second)
	stop()
	if writes, _ := nothing.Writes(); len(writes) > 0 {
		w.T.Errorf("a second sync wrote %q", writes)
	}
}

// Remove deletes an object.
func (w *World) Remove(obj kind.Object) {
	w.T.Helper()
	if err := w.Client.Delete(w.Ctx, obj, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		w.T.Fatal(err)
	}
}

// Events returns the reasons and messages of all events about objects with a name.
func (w *World) Events(name string) (all []string) {
	w.T.Helper()
	for _, e := range List[*corev1.Event](w) {
		if e.InvolvedObject.Name == name {
			all = append(all, e.Reason+": "+e.Message)
		}
	}
	return all
}

// Newest returns the largest revision of the objects, to detect writes.
func Newest[T kind.Object](objs []T) (newest string) {
	for _, obj := range objs {
		rv := obj.GetResourceVersion()
		if order, err := resourceversion.CompareResourceVersion(rv, newest); newest == "" || err == nil && order > 0 {
			newest = rv
		}
	}
	return newest
}
