package attack

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
)

// The normal load.
const (
	loadNamespace = "load"
	loadAccount   = "load"
	loadWriters   = 4
	loadWatchers  = 4
	// loadPause is the pause of a writer between two requests: the load must leave most of the CPU free, or it would measure itself.
	loadPause = 15 * time.Millisecond
)

// load is a normal load whose results are verified: writers with objects of their own, clients that list in pages, and watchers.
type load struct {
	t    *testing.T
	maps []typedcorev1.ConfigMapInterface // one client, with a connection of its own, for each writer and watcher

	mu           sync.Mutex
	acknowledged map[string]string // value by name
	generation   int               // of object names
}

// latencies are the durations of requests.
type latencies []time.Duration

func (l latencies) p99() time.Duration {
	if len(l) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(l))
	return sorted[len(sorted)*99/100]
}

func newLoad(t *testing.T, config *rest.Config) *load {
	l := &load{t: t, acknowledged: map[string]string{}}
	for range loadWriters + loadWatchers {
		own := rest.CopyConfig(config)
		own.Dial = nil
		client, err := rest.HTTPClientFor(own)
		if err != nil {
			t.Fatal(err)
		}
		k, err := kubernetes.NewForConfigAndClient(own, client)
		if err != nil {
			t.Fatal(err)
		}
		l.maps = append(l.maps, k.CoreV1().ConfigMaps(loadNamespace))
	}
	return l
}

// run runs the load for a time and returns how long its requests took. Every request must succeed, and watchers must receive what was written.
func (l *load) run(duration time.Duration) latencies {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.t.Context(), duration)
	defer cancel()
	l.generation++
	list, err := l.maps[0].List(l.t.Context(), metav1.ListOptions{})
	if err != nil {
		l.t.Fatal(err)
	}
	watching, stop := context.WithCancel(l.t.Context())
	defer stop()
	var watchers, writers sync.WaitGroup
	views := make([]*view, loadWatchers)
	for i := range views {
		views[i] = newView(list)
		watchers.Go(func() {
			if err := views[i].follow(watching, l.maps[loadWriters+i]); err != nil {
				l.t.Errorf("watch: %v", err)
			}
		})
	}
	results := make([]latencies, loadWriters)
	for i := range results {
		writers.Go(func() { results[i] = l.write(ctx, i) })
	}
	writers.Wait()
	l.expectViews(views)
	stop()
	watchers.Wait()
	return slices.Concat(results...)
}

// write creates, updates, reads, lists and deletes objects until ctx is done.
func (l *load) write(ctx context.Context, writer int) (took latencies) {
	maps := l.maps[writer]
	timed := func(what string, request func(ctx context.Context) error) bool {
		time.Sleep(loadPause)
		began := time.Now()
		if err := request(l.t.Context()); err != nil {
			l.t.Errorf("%s: %v", what, err)
			return false
		}
		took = append(took, time.Since(began))
		return true
	}
	for i := 0; ctx.Err() == nil; i++ {
		name := fmt.Sprintf("object-%d-%d-%d", l.generation, writer, i)
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"value": "0"}}
		put := func(request func(ctx context.Context) (*corev1.ConfigMap, error)) func(ctx context.Context) error {
			return func(ctx context.Context) error {
				stored, err := request(ctx)
				if err == nil {
					object = stored
					l.acknowledge(name, stored.Data["value"])
				}
				return err
			}
		}
		ok := timed("create "+name, put(func(ctx context.Context) (*corev1.ConfigMap, error) {
			return maps.Create(ctx, object, metav1.CreateOptions{})
		}))
		for update := 1; ok && update <= 3; update++ {
			object = object.DeepCopy()
			object.Data["value"] = strconv.Itoa(update)
			ok = timed("update "+name, put(func(ctx context.Context) (*corev1.ConfigMap, error) {
				return maps.Update(ctx, object, metav1.UpdateOptions{})
			}))
		}
		ok = ok && timed("get "+name, func(ctx context.Context) error {
			read, err := maps.Get(ctx, name, metav1.GetOptions{})
			if err == nil && read.Data["value"] != object.Data["value"] {
				err = fmt.Errorf("the value is %q, want %q", read.Data["value"], object.Data["value"])
			}
			return err
		})
		ok = ok && timed("list", func(ctx context.Context) error {
			_, err := maps.List(ctx, metav1.ListOptions{Limit: 100})
			return err
		})
		if i%2 == 0 {
			ok = ok && timed("delete "+name, func(ctx context.Context) error {
				err := maps.Delete(ctx, name, metav1.DeleteOptions{})
				if err == nil {
					l.acknowledge(name, "")
				}
				return err
			})
		}
		if !ok {
			return took
		}
	}
	return took
}

// acknowledge records that the server has stored a value, or with "" that it has deleted the object.
func (l *load) acknowledge(name, value string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if value == "" {
		delete(l.acknowledged, name)
	} else {
		l.acknowledged[name] = value
	}
}

// state is what the server has acknowledged.
func (l *load) state() map[string]string {
	l.mu.Lock()
	defer l.mu.Unlock()
	state := make(map[string]string, len(l.acknowledged))
	for name, value := range l.acknowledged {
		state[name] = value
	}
	return state
}

// verify reads all objects back, in pages and one by one.
func (l *load) verify() {
	l.t.Helper()
	want := l.state()
	found := 0
	for options := (metav1.ListOptions{Limit: 50}); ; {
		list, err := l.maps[0].List(l.t.Context(), options)
		if err != nil {
			l.t.Fatal(err)
		}
		for _, object := range list.Items {
			if object.Name == "kube-root-ca.crt" {
				continue
			}
			found++
			if value, ok := want[object.Name]; !ok || object.Data["value"] != value {
				l.t.Errorf("%s has the value %q, acknowledged was %q", object.Name, object.Data["value"], value)
			}
		}
		if options.Continue = list.Continue; options.Continue == "" {
			break
		}
	}
	if found != len(want) || found == 0 {
		l.t.Errorf("%d objects are listed, %d were acknowledged", found, len(want))
	}
	for name, value := range want {
		object, err := l.maps[0].Get(l.t.Context(), name, metav1.GetOptions{})
		if err != nil || object.Data["value"] != value {
			l.t.Errorf("acknowledged write %s=%q: %v, %v", name, value, object.Data, err)
		}
	}
}

// view is the state that a watcher has received.
type view struct {
	mu       sync.Mutex
	values   map[string]string
	revision string
}

func newView(list *corev1.ConfigMapList) *view {
	v := &view{values: map[string]string{}, revision: list.ResourceVersion}
	for _, object := range list.Items {
		v.values[object.Name] = object.Data["value"]
	}
	return v
}

// follow watches until ctx is done. A watch that ends is continued from the last revision.
func (v *view) follow(ctx context.Context, maps typedcorev1.ConfigMapInterface) error {
	for ctx.Err() == nil {
		events, err := maps.Watch(ctx, metav1.ListOptions{ResourceVersion: v.revision, AllowWatchBookmarks: true})
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		for event := range events.ResultChan() {
			if err := v.apply(event); err != nil && ctx.Err() == nil {
				events.Stop()
				return err
			}
		}
	}
	return nil
}

// apply applies an event. Revisions ascend.
func (v *view) apply(event watch.Event) error {
	object, ok := event.Object.(*corev1.ConfigMap)
	if !ok {
		return fmt.Errorf("%s: %w", event.Type, apierrors.FromObject(event.Object))
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	last, err := strconv.ParseInt(v.revision, 10, 64)
	if err != nil {
		return err
	}
	now, err := strconv.ParseInt(object.ResourceVersion, 10, 64)
	if err != nil {
		return err
	}
	if now < last || now == last && event.Type != watch.Bookmark {
		return fmt.Errorf("%s of %s at revision %d after %d", event.Type, object.Name, now, last)
	}
	v.revision = object.ResourceVersion
	switch event.Type {
	case watch.Added, watch.Modified:
		v.values[object.Name] = object.Data["value"]
	case watch.Deleted:
		delete(v.values, object.Name)
	}
	return nil
}

// missing is the first object of which the watcher has not received the acknowledged state, or "".
func (v *view) missing(want map[string]string) string {
	v.mu.Lock()
	defer v.mu.Unlock()
	for name, value := range want {
		if v.values[name] != value {
			return fmt.Sprintf("%s=%q, want %q", name, v.values[name], value)
		}
	}
	for name := range v.values {
		if _, ok := want[name]; !ok && name != "kube-root-ca.crt" {
			return name + " was deleted"
		}
	}
	return ""
}

// expectViews waits until all watchers have received everything.
func (l *load) expectViews(views []*view) {
	l.t.Helper()
	want := l.state()
	for i, v := range views {
		for end := time.Now().Add(30 * time.Second); v.missing(want) != ""; time.Sleep(20 * time.Millisecond) {
			if time.Now().After(end) {
				l.t.Errorf("watcher %d: %s", i, v.missing(want))
				break
			}
		}
	}
}
