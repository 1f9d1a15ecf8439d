package client_test

import (
	"context"
	"errors"
	"net/http/httptest"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/client-go/rest"

	"skiff/internal/api"
	"skiff/internal/apiserver"
	"skiff/internal/apiserver/authn"
	"skiff/internal/apiserver/authz"
	"skiff/internal/client"
	"skiff/internal/openapi"
	"skiff/internal/store/cache"
	"skiff/internal/store/memory"
)

var admin = authn.User{Username: "admin", Groups: []string{authn.GroupMasters}}

// onBothTransports runs a test with a client in the server's process and with a remote one: both must behave the same.
func onBothTransports(t *testing.T, test func(t *testing.T, c *client.Client)) {
	for _, hinge := range []string{"in process", "across the network"} {
		t.Run(hinge, func(t *testing.T) {
			server := startServer(t)
			var c *client.Client
			var err error
			if hinge == "in process" {
				c, err = client.NewLocal(server.Local(admin), api.Scheme(), api.Kinds(api.Settings{}))
			} else {
				h := httptest.NewServer(server.Handler())
				t.Cleanup(h.Close)
				c, err = client.New(&rest.Config{Host: h.URL, BearerToken: "secret"}, api.Scheme(), api.Kinds(api.Settings{}))
			}
			if err != nil {
				t.Fatal(err)
			}
			test(t, c)
		})
	}
}

func startServer(t *testing.T) *apiserver.Server {
	t.Helper()
	store := memory.New()
	objects := cache.New(store, nil)
	server, err := apiserver.New(apiserver.Config{
		Kinds: api.Kinds(api.Settings{}), Scheme: api.Scheme(), Cache: objects,
		Authenticator: authn.Chain{authn.InProcess{}, authn.NewTokens(map[string]authn.User{"secret": admin})},
		Authorizer:    authz.Masters{},
		TypeConverter: sync.OnceValues(func() (managedfields.TypeConverter, error) { return openapi.TypeConverter() }),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = objects.Run(ctx)
	}()
	<-objects.Ready()
	t.Cleanup(func() {
		cancel()
		<-done
		store.Close()
	})
	return server
}

func configMap(name string, data map[string]string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", Labels: map[string]string{"name": name}}, Data: data}
}

func TestReadAndWrite(t *testing.T) {
	onBothTransports(t, func(t *testing.T, c *client.Client) {
		ctx := t.Context()
		maps := client.For[*corev1.ConfigMap](c)
		created, err := maps.Create(ctx, configMap("a", map[string]string{"k": "1"}), client.WriteOptions{FieldManager: "test"})
		if err != nil {
			t.Fatal(err)
		}
		if created.UID == "" || created.ResourceVersion == "" {
			t.Fatalf("created without identity: %+v", created.ObjectMeta)
		}
		if _, err := maps.Create(ctx, configMap("a", nil), client.WriteOptions{}); !apierrors.IsAlreadyExists(err) {
			t.Fatalf("a second create: %v", err)
		}
		changed := created.DeepCopy()
		changed.Data["k"] = "2"
		if _, err = maps.Update(ctx, changed, client.WriteOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := maps.Update(ctx, created, client.WriteOptions{}); !apierrors.IsConflict(err) {
			t.Fatalf("an update of an old version: %v", err)
		}
		patched, err := maps.Patch(ctx, "default", "a", client.RawPatch(client.MergePatch, []byte(`{"data":{"k":"3"}}`)), client.WriteOptions{})
		if err != nil || patched.Data["k"] != "3" {
			t.Fatalf("patched to %v: %v", patched, err)
		}
		if _, err := maps.Create(ctx, configMap("b", nil), client.WriteOptions{}); err != nil {
			t.Fatal(err)
		}
		all, revision, err := maps.List(ctx, "default", client.Selector{})
		if err != nil || len(all) != 2 || revision == "" {
			t.Fatalf("listed %d at %q: %v", len(all), revision, err)
		}
		some, _, err := maps.List(ctx, "", client.Selector{Labels: labels.SelectorFromSet(labels.Set{"name": "b"})})
		if err != nil || len(some) != 1 || some[0].Name != "b" {
			t.Fatalf("by label: %v, %v", some, err)
		}
		some, _, err = maps.List(ctx, "", client.Selector{Fields: fields.OneTermEqualSelector("metadata.name", "a")})
		if err != nil || len(some) != 1 || some[0].Name != "a" {
			t.Fatalf("by field: %v, %v", some, err)
		}
		if err := maps.Delete(ctx, "default", "a", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := maps.Get(ctx, "default", "a"); !apierrors.IsNotFound(err) {
			t.Fatalf("get of a deleted object: %v", err)
		}
	})
}

func TestWatch(t *testing.T) {
	onBothTransports(t, func(t *testing.T, c *client.Client) {
		maps := client.For[*corev1.ConfigMap](c)
		_, revision, err := maps.List(t.Context(), "", client.Selector{})
		if err != nil {
			t.Fatal(err)
		}
		w, err := maps.Watch(t.Context(), "", client.Selector{Labels: labels.SelectorFromSet(labels.Set{"seen": "yes"})}, revision)
		if err != nil {
			t.Fatal(err)
		}
		defer w.Stop()
		obj, err := maps.Create(t.Context(), configMap("a", nil), client.WriteOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, label := range []string{"yes", "yes", "no"} {
			next := obj.DeepCopy()
			next.Labels = map[string]string{"seen": label}
			next.Data = map[string]string{"revision": obj.ResourceVersion}
			if obj, err = maps.Update(t.Context(), next, client.WriteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		var got []string
		timeout := time.After(10 * time.Second)
		for len(got) < 3 {
			select {
			case event, ok := <-w.ResultChan():
				if !ok {
					t.Fatalf("the watch ended after %v", got)
				}
				got = append(got, string(event.Type))
			case <-timeout:
				t.Fatalf("only %v arrived", got)
			}
		}
		if want := []string{"ADDED", "MODIFIED", "DELETED"}; !slices.Equal(got, want) {
			t.Fatalf("saw %v, want %v", got, want)
		}
	})
}

func TestInformer(t *testing.T) {
	onBothTransports(t, func(t *testing.T, c *client.Client) {
		ctx, cancel := context.WithCancel(t.Context())
		maps := client.For[*corev1.ConfigMap](c)
		if _, err := maps.Create(ctx, configMap("before", nil), client.WriteOptions{}); err != nil {
			t.Fatal(err)
		}
		informers := client.NewInformers(c)
		informer := client.InformerFor[*corev1.ConfigMap](informers)
		if err := informer.AddIndex("owner", func(cm *corev1.ConfigMap) []string { return []string{cm.Data["owner"]} }); err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		var seen []string
		note := func(what string) func(*corev1.ConfigMap) {
			return func(cm *corev1.ConfigMap) {
				mu.Lock()
				defer mu.Unlock()
				seen = append(seen, what+" "+cm.Name)
			}
		}
		if err := informer.AddEventHandler(note("added"), func(_, cm *corev1.ConfigMap) { note("changed")(cm) }, note("deleted")); err != nil {
			t.Fatal(err)
		}
		done := make(chan error)
		go func() { done <- informers.Run(ctx) }()
		if err := informers.WaitForSync(ctx); err != nil {
			t.Fatal(err)
		}
		if got := informer.List("default", nil); len(got) != 1 || got[0].Name != "before" {
			t.Fatalf("after the first list: %v", got)
		}
		created, err := maps.Create(ctx, configMap("after", map[string]string{"owner": "me"}), client.WriteOptions{})
		if err != nil {
			t.Fatal(err)
		}
		waitFor(t, func() bool { _, ok := informer.Get("default", "after"); return ok })
		mine, err := informer.ByIndex("owner", "me")
		if err != nil || len(mine) != 1 || !reflect.DeepEqual(mine[0].Data, created.Data) {
			t.Fatalf("by index: %v, %v", mine, err)
		}
		if err := maps.Delete(ctx, "default", "before", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		want := []string{"added before", "added after", "deleted before"}
		waitFor(t, func() bool {
			mu.Lock()
			defer mu.Unlock()
			return slices.Equal(seen, want)
		})
		cancel()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	})
}

// A remote informer keeps what the transformation returns. In the server's process it keeps the server's own objects.
func TestInformerTransform(t *testing.T) {
	onBothTransports(t, func(t *testing.T, c *client.Client) {
		ctx, cancel := context.WithCancel(t.Context())
		maps := client.For[*corev1.ConfigMap](c)
		if _, err := maps.Create(ctx, configMap("listed", map[string]string{"k": "1"}), client.WriteOptions{}); err != nil {
			t.Fatal(err)
		}
		informers := client.NewInformers(c)
		informer := client.InformerFor[*corev1.ConfigMap](informers)
		if err := informer.SetTransform(func(cm *corev1.ConfigMap) *corev1.ConfigMap {
			return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: cm.Namespace, Name: cm.Name, ResourceVersion: cm.ResourceVersion}}
		}); err != nil {
			t.Fatal(err)
		}
		done := make(chan error)
		go func() { done <- informers.Run(ctx) }()
		if err := informers.WaitForSync(ctx); err != nil {
			t.Fatal(err)
		}
		if _, err := maps.Create(ctx, configMap("watched", map[string]string{"k": "1"}), client.WriteOptions{}); err != nil {
			t.Fatal(err)
		}
		waitFor(t, func() bool { _, ok := informer.Get("default", "watched"); return ok })
		for _, kept := range informer.List("default", nil) {
			current, err := maps.Get(ctx, "default", kept.Name)
			if err != nil {
				t.Fatal(err)
			}
			if isTransformed := len(kept.Data) == 0; isTransformed == (kept == current) {
				t.Errorf("%s has data %v and is the server's own object: %v", kept.Name, kept.Data, kept == current)
			}
			if current.Data["k"] != "1" {
				t.Errorf("the transformation has changed the server's object: %v", current)
			}
		}
		cancel()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	})
}

// TestInProcessSharesObjects: inside the process all readers get the same cached object.
func TestInProcessSharesObjects(t *testing.T) {
	c, err := client.NewLocal(startServer(t).Local(admin), api.Scheme(), api.Kinds(api.Settings{}))
	if err != nil {
		t.Fatal(err)
	}
	maps := client.For[*corev1.ConfigMap](c)
	if _, err := maps.Create(t.Context(), configMap("a", nil), client.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	first, err := maps.Get(t.Context(), "default", "a")
	if err != nil {
		t.Fatal(err)
	}
	list, _, err := maps.List(t.Context(), "default", client.Selector{})
	if err != nil {
		t.Fatal(err)
	}
	if first != list[0] {
		t.Fatal("two readers got two copies")
	}
}

func waitFor(t *testing.T, condition func() bool) {
	t.Helper()
	for range 1000 {
		if condition() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("it did not happen within ten seconds")
}

// TestNodeRegistersWithStatus: a kubelet creates its node with a status; other kinds are created without one.
func TestNodeRegistersWithStatus(t *testing.T) {
	onBothTransports(t, func(t *testing.T, c *client.Client) {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Status: corev1.NodeStatus{Phase: corev1.NodeRunning}}
		made, err := client.For[*corev1.Node](c).Create(t.Context(), node, client.WriteOptions{})
		if err != nil || made.Status.Phase != corev1.NodeRunning {
			t.Fatalf("status after create: %+v, %v", made, err)
		}
		terminating := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}, Status: corev1.NamespaceStatus{Phase: corev1.NamespaceTerminating}}
		namespace, err := client.For[*corev1.Namespace](c).Create(t.Context(), terminating, client.WriteOptions{})
		if err != nil || namespace.Status.Phase != corev1.NamespaceActive {
			t.Fatalf("status after create: %+v, %v", namespace, err)
		}
	})
}

func TestEachPage(t *testing.T) {
	onBothTransports(t, func(t *testing.T, c *client.Client) {
		maps := client.For[*corev1.ConfigMap](c)
		for _, name := range []string{"a", "b", "c", "d", "e", "f", "g"} {
			if _, err := maps.Create(t.Context(), configMap(name, nil), client.WriteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		var names []string
		pages := 0
		visit := func(page []*corev1.ConfigMap) error {
			if pages++; len(page) > 3 {
				t.Errorf("a page has %d objects", len(page))
			}
			for _, m := range page {
				names = append(names, m.Name)
			}
			return nil
		}
		if err := maps.EachPage(t.Context(), "default", client.Selector{}, 3, visit); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(names, []string{"a", "b", "c", "d", "e", "f", "g"}) || pages != 3 {
			t.Errorf("%d pages have %q", pages, names)
		}
		stop := errors.New("stop")
		pages = 0
		if err := maps.EachPage(t.Context(), "default", client.Selector{}, 3, func([]*corev1.ConfigMap) error { pages++; return stop }); !errors.Is(err, stop) || pages != 1 {
			t.Errorf("%d pages, error %v", pages, err)
		}
	})
}
