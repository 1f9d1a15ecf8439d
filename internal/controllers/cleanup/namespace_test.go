package cleanup

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"

	"skiff/internal/client"
	"skiff/internal/controller"
	"skiff/internal/kind"
	"skiff/test/inprocess"
)

// run runs controllers against a server in memory until the test ends.
func run(t *testing.T, c *client.Client, definitions ...controller.Definition) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	informers, events := client.NewInformers(c), client.NewEvents(c)
	var loops []*controller.Loop
	for _, d := range definitions {
		loop, err := controller.NewLoop(d, controller.Environment{Client: c, Informers: informers, Events: events, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		loops = append(loops, loop)
	}
	done := make(chan struct{}, len(loops)+2)
	start := func(f func(context.Context) error) {
		go func() {
			if err := f(ctx); err != nil {
				t.Error(err)
			}
			done <- struct{}{}
		}()
	}
	start(informers.Run)
	start(events.Run)
	if err := informers.WaitForSync(ctx); err != nil {
		t.Fatal(err)
	}
	for _, loop := range loops {
		start(loop.Run)
	}
	t.Cleanup(func() {
		cancel()
		for range cap(done) {
			<-done
		}
	})
}

func create[T kind.Object](t *testing.T, c *client.Client, obj T) T {
	t.Helper()
	created, err := client.For[T](c).Create(t.Context(), obj, client.WriteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return created
}

// eventually waits until the condition holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !holds(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("in vain waited until %s", what)
		}
	}
}

func gone[T kind.Object](t *testing.T, c *client.Client, namespace, name string) bool {
	t.Helper()
	_, err := client.For[T](c).Get(t.Context(), namespace, name)
	if err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	return err != nil
}

func podOf(namespace, name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "image"}}}}
}

func TestNamespaceIsEmptiedPodsFirst(t *testing.T) {
	c := inprocess.Start(t, t.Context())
	run(t, c, Namespace(0))
	create(t, c, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "work"}})
	create(t, c, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "work", Name: "settings"}})
	held := podOf("work", "held")
	held.Finalizers = []string{"example.com/hold"}
	create(t, c, held)
	create(t, c, podOf("work", "free"))
	if err := client.For[*corev1.Namespace](c).Delete(t.Context(), "", "work", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the conditions tell of the pod that is held", func() bool {
		namespace, err := client.For[*corev1.Namespace](c).Get(t.Context(), "", "work")
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(namespace.Status.Conditions, func(c corev1.NamespaceCondition) bool {
			return c.Type == corev1.NamespaceFinalizersRemaining && c.Status == corev1.ConditionTrue &&
				c.Message == "Some content in the namespace has finalizers remaining: example.com/hold in 1 resource instances"
		})
	})
	if gone[*corev1.ConfigMap](t, c, "work", "settings") {
		t.Fatal("the config map was deleted before the pods")
	}
	if !gone[*corev1.Pod](t, c, "work", "free") {
		t.Error("the pod that nothing holds is still there")
	}
	patch := []byte(`{"metadata":{"finalizers":null}}`)
	if _, err := client.For[*corev1.Pod](c).Patch(t.Context(), "work", "held", client.MergePatch, patch, client.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	eventually(t, "the namespace is gone", func() bool { return gone[*corev1.Namespace](t, c, "", "work") })
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("the namespace lasted %v beyond its last pod", took)
	}
	if !gone[*corev1.ConfigMap](t, c, "work", "settings") {
		t.Error("the namespace is gone and its config map is not")
	}
}

func TestNamespaceKeepsForeignFinalizers(t *testing.T) {
	c := inprocess.Start(t, t.Context())
	run(t, c, Namespace(0))
	create(t, c, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "work"}, Spec: corev1.NamespaceSpec{Finalizers: []corev1.FinalizerName{"example.com/mine"}}})
	if err := client.For[*corev1.Namespace](c).Delete(t.Context(), "", "work", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "only the foreign finalizer is left", func() bool {
		namespace, err := client.For[*corev1.Namespace](c).Get(t.Context(), "", "work")
		if err != nil {
			t.Fatal(err)
		}
		return slices.Equal(namespace.Spec.Finalizers, []corev1.FinalizerName{"example.com/mine"})
	})
}

func TestNamespaceConditions(t *testing.T) {
	groups := &discovery.ErrGroupDiscoveryFailed{Groups: map[schema.GroupVersion]error{{Group: "metrics.k8s.io", Version: "v1"}: errors.New("away")}}
	widgets := schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}
	for _, test := range []struct {
		what  string
		found func(*contents)
		want  string // type, reason and message of those that are true
	}{
		{"nothing", func(*contents) {}, ""},
		{"a group is away", func(c *contents) { c.discovered(groups) },
			"NamespaceDeletionDiscoveryFailure DiscoveryFailed: Discovery failed for some groups, 1 failing: " + groups.Error()},
		{"discovery fails", func(c *contents) { c.discovered(errors.New("no route")) }, "NamespaceDeletionDiscoveryFailure DiscoveryFailed: no route"},
		{"a strange version", func(c *contents) { c.discovered(&misread{errors.New("a/b/c")}) }, "NamespaceDeletionGroupVersionParsingFailure GroupVersionParsingFailed: a/b/c"},
		{"failures, sorted", func(c *contents) {
			c.add(widgets, remains{}, errors.New("z"))
			c.add(podResource, remains{}, errors.New("a"))
		},
			"NamespaceDeletionContentFailure ContentDeletionFailed: Failed to delete all resource types, 2 remaining: a, z"},
		{"what remains", func(c *contents) {
			c.add(widgets, remains{objects: 2, finalizers: map[string]int{"f": 2}}, nil)
			c.add(podResource, remains{objects: 1, finalizers: map[string]int{"f": 1}}, nil)
		}, "NamespaceContentRemaining SomeResourcesRemain: Some resources are remaining: pods. has 1 resource instances, widgets.example.com has 2 resource instances\n" +
			"NamespaceFinalizersRemaining SomeFinalizersRemain: Some content in the namespace has finalizers remaining: f in 3 resource instances"},
	} {
		var found contents
		test.found(&found)
		now := metav1.NewTime(time.Unix(1000, 0))
		conditions, changed := found.conditions(nil, now)
		if !changed || len(conditions) != 5 {
			t.Errorf("%s: changed %v, %d conditions", test.what, changed, len(conditions))
		}
		var got []string
		for _, c := range conditions {
			if c.Status == corev1.ConditionTrue {
				got = append(got, string(c.Type)+" "+c.Reason+": "+c.Message)
			}
		}
		if text := strings.Join(got, "\n"); text != test.want {
			t.Errorf("%s:\n%s\nwant\n%s", test.what, text, test.want)
		}
		later := metav1.NewTime(now.Add(time.Minute))
		if again, changed := found.conditions(conditions, later); changed || again[0].LastTransitionTime != now {
			t.Errorf("%s: a second report changes %v", test.what, again)
		}
		if again, _ := new(contents).conditions(conditions, later); (again[0].LastTransitionTime == later) != (conditions[0].Status == corev1.ConditionTrue) {
			t.Errorf("%s: transition times %v", test.what, again[0])
		}
	}
}
