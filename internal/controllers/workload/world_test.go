package workload

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
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/client"
	"skiff/internal/controller"
	"skiff/internal/kind"
	"skiff/test/inprocess"
)

// world is an API server with nodes that play pods, in a bubble of its own time. Its controllers are the real ones.
type world struct {
	t       *testing.T
	ctx     context.Context
	client  *client.Client
	random  *rand.Rand // the test's own
	nodes   int
	mu      sync.Mutex
	luck    *rand.Rand // the pods'
	failing float64    // how likely a pod fails instead of getting ready
	ending  float64    // how likely a pod succeeds after it ran
}

// inWorld runs a test in a world with some nodes.
func inWorld(t *testing.T, seed uint64, nodes int, test func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		w := &world{t: t, ctx: ctx, client: inprocess.Start(t, ctx), random: rand.New(rand.NewPCG(seed, 1)), luck: rand.New(rand.NewPCG(seed, 2)), nodes: nodes}
		for i := range nodes {
			create(w, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", i), Labels: map[string]string{"zone": fmt.Sprint(i % 2)}},
				Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("110")}}})
		}
		w.play()
		test(w)
		cancel()
		time.Sleep(time.Minute) // everything winds up
	})
}

// run starts controllers and returns how to stop them.
func (w *world) run(definitions ...controller.Definition) (stop func()) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.ctx)
	informers := client.NewInformers(w.client)
	events := client.NewEvents(w.client)
	log := slog.New(slog.DiscardHandler)
	if testing.Verbose() {
		log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	var running sync.WaitGroup
	var loops []*controller.Loop
	for _, d := range definitions {
		loop, err := controller.NewLoop(d, controller.Environment{Client: w.client, Informers: informers, Events: events, Log: log})
		if err != nil {
			w.t.Fatal(err)
		}
		loops = append(loops, loop)
	}
	running.Go(func() { _ = informers.Run(ctx) })
	running.Go(func() { _ = events.Run(ctx) })
	if err := informers.WaitForSync(ctx); err != nil {
		w.t.Fatal(err)
	}
	for _, loop := range loops {
		running.Go(func() { _ = loop.Run(ctx) })
	}
	return func() { cancel(); running.Wait() }
}

// pass lets time pass, and everything that is due be done.
func (w *world) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// chaos sets how pods behave.
func (w *world) chaos(failing, ending float64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failing, w.ending = failing, ending
}

func (w *world) chance(p float64) bool { return p > 0 && w.random.Float64() < p }

// play binds pods to nodes, lets them start, fail or end, and removes those that were deleted.
func (w *world) play() {
	informers := client.NewInformers(w.client)
	pods := client.InformerFor[*corev1.Pod](informers)
	changed := make(chan *corev1.Pod, 10000)
	told := func(pod *corev1.Pod) { changed <- pod }
	if err := pods.Handle(told, func(_, pod *corev1.Pod) { told(pod) }, nil); err != nil {
		w.t.Fatal(err)
	}
	go func() { _ = informers.Run(w.ctx) }()
	go func() {
		for {
			select {
			case <-w.ctx.Done():
				return
			case pod := <-changed:
				time.Sleep(time.Millisecond)
				w.mu.Lock()
				w.playPod(pod)
				w.mu.Unlock()
			}
		}
	}()
}

func (w *world) playPod(pod *corev1.Pod) {
	resource := client.For[*corev1.Pod](w.client)
	var err error
	switch {
	case terminating(pod):
		c := pod.DeepCopy()
		c.Status.Phase, c.Status.Conditions = corev1.PodFailed, nil
		_, err = resource.UpdateStatus(w.ctx, c)
	case pod.DeletionTimestamp != nil && pod.DeletionGracePeriodSeconds != nil && *pod.DeletionGracePeriodSeconds > 0:
		err = resource.Delete(w.ctx, pod.Namespace, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0)), Preconditions: metav1.NewUIDPreconditions(string(pod.UID))})
	case pod.DeletionTimestamp != nil || finished(pod):
		return
	case pod.Spec.NodeName == "":
		node := fmt.Sprint("n", w.luck.IntN(w.nodes))
		if target := targetNode(pod); target != "" {
			node = target
		}
		err = resource.Act(w.ctx, pod.Namespace, pod.Name, "binding", &corev1.Binding{
			ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace, UID: pod.UID}, Target: corev1.ObjectReference{Kind: "Node", Name: node}}, nil)
	case pod.Status.Phase == corev1.PodPending:
		c := pod.DeepCopy()
		c.Status.StartTime = new(metav1.Now())
		switch {
		case w.luck.Float64() < w.failing:
			c.Status.Phase = corev1.PodFailed
		default:
			c.Status.Phase = corev1.PodRunning
			c.Status.Conditions = append(c.Status.Conditions, corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()})
		}
		_, err = resource.UpdateStatus(w.ctx, c)
	case w.luck.Float64() < w.ending:
		c := pod.DeepCopy()
		c.Status.Phase = corev1.PodSucceeded
		c.Status.Conditions = nil
		_, err = resource.UpdateStatus(w.ctx, c)
	}
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) && w.ctx.Err() == nil {
		w.t.Errorf("play pod %s: %v", pod.Name, err)
	}
}

func create[T kind.Object](w *world, obj T) T {
	w.t.Helper()
	made, err := client.For[T](w.client).Create(w.ctx, obj, client.WriteOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return made
}

func get[T kind.Object](w *world, name string) T {
	w.t.Helper()
	obj, err := client.For[T](w.client).Get(w.ctx, "default", name)
	if err != nil {
		w.t.Fatal(err)
	}
	return obj
}

func list[T kind.Object](w *world) []T {
	w.t.Helper()
	objs, _, err := client.For[T](w.client).List(w.ctx, "default", client.Match{})
	if err != nil {
		w.t.Fatal(err)
	}
	return objs
}

// edit changes an object as a user would, again if someone else was faster.
func edit[T kind.Object](w *world, name string, change func(T)) {
	w.t.Helper()
	resource := client.For[T](w.client)
	for {
		obj, err := resource.Get(w.ctx, "default", name)
		if err != nil {
			w.t.Fatal(err)
		}
		c := obj.DeepCopyObject().(T)
		change(c)
		if _, err = resource.Update(w.ctx, c, client.WriteOptions{}); err == nil {
			return
		}
		if !apierrors.IsConflict(err) {
			w.t.Fatalf("edit %s: %v", name, err)
		}
	}
}

func remove[T kind.Object](w *world, obj T) {
	w.t.Helper()
	if err := w.client.Delete(w.ctx, obj, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		w.t.Fatal(err)
	}
}

// revision grows with every write.
func (w *world) revision() string {
	w.t.Helper()
	_, revision, err := client.For[*corev1.ConfigMap](w.client).List(w.ctx, "default", client.Match{})
	if err != nil {
		w.t.Fatal(err)
	}
	return revision
}

// assertSettled lets controllers that start anew look at everything and fails if they write anything: a fixed point is one.
func (w *world) assertSettled(definitions ...controller.Definition) {
	w.t.Helper()
	before := w.revision()
	stop := w.run(definitions...)
	w.pass(30 * time.Second)
	stop()
	if after := w.revision(); after != before {
		w.t.Errorf("a second look wrote %s → %s", before, after)
	}
}

// pick returns a random element.
func pick[T any](w *world, from ...T) T { return from[w.random.IntN(len(from))] }

// seeds runs a test in several worlds.
func seeds(t *testing.T, n int, test func(t *testing.T, seed uint64)) {
	if testing.Short() {
		n = 3
	}
	for seed := range n {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) { test(t, uint64(seed)) })
	}
}

// nudge lets pods that run go on: the player only moves a pod when it changes.
func (w *world) nudge() {
	for _, pod := range list[*corev1.Pod](w) {
		w.mu.Lock()
		w.playPod(pod)
		w.mu.Unlock()
	}
}

func (w *world) node(name string) (*corev1.Node, error) {
	return client.For[*corev1.Node](w.client).Get(w.ctx, "", name)
}

func (w *world) updateNode(node *corev1.Node) error {
	_, err := client.For[*corev1.Node](w.client).Update(w.ctx, node, client.WriteOptions{})
	return err
}
