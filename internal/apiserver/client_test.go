package apiserver

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"skiff/internal/kind"
)

func (s *testServer) clientConfig() *rest.Config {
	return &rest.Config{Host: s.http.URL, BearerToken: "admin", QPS: -1}
}

func TestClientGo(t *testing.T) {
	s := newTestServer(t)
	ctx := context.Background()
	for i := range 30 {
		s.add("pods", pod("ns", fmt.Sprintf("p%02d", i), "", fmt.Sprint("n=", i%2)))
	}
	config := s.clientConfig()
	for _, contentType := range []string{runtime.ContentTypeJSON, runtime.ContentTypeProtobuf} {
		typed := rest.CopyConfig(config)
		typed.ContentType = contentType
		client := kubernetes.NewForConfigOrDie(typed)
		list, err := client.CoreV1().Pods("ns").List(ctx, metav1.ListOptions{LabelSelector: "n=1", Limit: 10})
		if err != nil || len(list.Items) != 10 || list.Continue == "" {
			t.Fatalf("%s: %v %v", contentType, list, err)
		}
		one, err := client.CoreV1().Pods("ns").Get(ctx, "p03", metav1.GetOptions{})
		if err != nil || one.Name != "p03" || one.Spec.Containers[0].Image != "busybox" {
			t.Errorf("%v %v", one, err)
		}
		if _, err := client.CoreV1().Pods("ns").Get(ctx, "x", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("%v", err)
		}
		w, err := client.CoreV1().Pods("ns").Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
		if err != nil {
			t.Fatal(err)
		}
		s.add("pods", pod("ns", "new-"+contentType[12:16], ""))
		if e := <-w.ResultChan(); e.Type != watch.Added || e.Object.(*corev1.Pod).Name != "new-"+contentType[12:16] {
			t.Errorf("%+v", e)
		}
		w.Stop()
	}
	dyn := dynamic.NewForConfigOrDie(config)
	gvr := schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	list, err := dyn.Resource(gvr).List(ctx, metav1.ListOptions{})
	if err != nil || len(list.Items) != 32 {
		t.Errorf("%v", err)
	}
	partial, err := metadata.NewForConfigOrDie(config).Resource(gvr).Namespace("ns").List(ctx, metav1.ListOptions{})
	if err != nil || len(partial.Items) != 32 || partial.Items[0].Name == "" {
		t.Errorf("%v", err)
	}
	_, resources, err := discovery.NewDiscoveryClientForConfigOrDie(config).ServerGroupsAndResources()
	if err != nil || len(resources) != 3 {
		t.Errorf("%v %v", resources, err)
	}
	version, err := discovery.NewDiscoveryClientForConfigOrDie(config).ServerVersion()
	if err != nil || version.GitVersion != "v1.37.1" {
		t.Errorf("%v %v", version, err)
	}
}

func TestInformer(t *testing.T) {
	s := newTestServer(t)
	for i := range 100 {
		s.add("pods", pod("ns", fmt.Sprint("p", i), ""))
	}
	config := s.clientConfig()
	config.ContentType = runtime.ContentTypeProtobuf
	factory := informers.NewSharedInformerFactory(kubernetes.NewForConfigOrDie(config), 0)
	pods := factory.Core().V1().Pods()
	informer := pods.Informer()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	factory.Start(ctx.Done())
	for name, ok := range factory.WaitForCacheSync(ctx.Done()) {
		if !ok {
			t.Fatalf("%v did not sync", name)
		}
	}
	s.add("pods", pod("ns", "late", ""))
	s.remove("pods", "ns", "p0")
	for len(informer.GetStore().ListKeys()) != 100 || informer.LastSyncResourceVersion() != "103" {
		select {
		case <-ctx.Done():
			t.Fatalf("%d objects at %s", len(informer.GetStore().ListKeys()), informer.LastSyncResourceVersion())
		case <-time.After(10 * time.Millisecond):
		}
	}
	all, err := pods.Lister().List(labels.Everything())
	if err != nil || len(all) != 100 {
		t.Errorf("%d %v", len(all), err)
	}
	cancel()
	factory.Shutdown()
}

// widgetKind is a custom resource: stored as JSON, without a Go type.
func widgetKind() *kind.Kind {
	gvk := schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Widget"}
	k := kind.Of(kind.Definition[*unstructured.Unstructured]{
		GVK: gvk, Plural: "widgets", Prefix: "example.com/widgets", Namespaced: true, List: &unstructured.UnstructuredList{},
	})
	k.New = func() kind.Object {
		u := &unstructured.Unstructured{}
		u.SetGroupVersionKind(gvk)
		return u
	}
	return k
}

func widget(name string) *unstructured.Unstructured {
	u := widgetKind().New().(*unstructured.Unstructured)
	u.SetNamespace("ns")
	u.SetName(name)
	u.SetLabels(map[string]string{"size": "big"})
	u.SetAnnotations(map[string]string{"resourceVersion": "fake"})
	_ = unstructured.SetNestedField(u.Object, int64(3), "spec", "count")
	return u
}

func TestCustomResources(t *testing.T) {
	s := newTestServer(t)
	if err := s.AddKind(widgetKind()); err != nil {
		t.Fatal(err)
	}
	s.add("widgets.example.com", widget("a"))
	ctx := context.Background()
	gvr := schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}
	client := dynamic.NewForConfigOrDie(s.clientConfig()).Resource(gvr)
	w, err := client.Namespace("ns").Watch(ctx, metav1.ListOptions{LabelSelector: "size=big", AllowWatchBookmarks: true})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	expect := func(kindOfEvent watch.EventType, version string) {
		t.Helper()
		e := <-w.ResultChan()
		if obj, ok := e.Object.(*unstructured.Unstructured); !ok || e.Type != kindOfEvent || obj.GetResourceVersion() != version || obj.GetKind() != "Widget" {
			t.Fatalf("%s %v, want %s at %s", e.Type, e.Object, kindOfEvent, version)
		}
	}
	expect(watch.Added, "2")
	expect(watch.Bookmark, "2")
	s.change("widgets.example.com", "ns", "a", func(obj kind.Object) { obj.SetLabels(nil) })
	expect(watch.Deleted, "3")
	list, err := client.List(ctx, metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 || list.GetKind() != "WidgetList" {
		t.Fatalf("%v %v", list, err)
	}
	if item := list.Items[0]; item.GetKind() != "Widget" || item.GetAPIVersion() != "example.com/v1" || item.GetResourceVersion() != "3" {
		t.Errorf("%v", item)
	}
	one, err := client.Namespace("ns").Get(ctx, "a", metav1.GetOptions{})
	if count, _, _ := unstructured.NestedInt64(one.Object, "spec", "count"); err != nil || count != 3 {
		t.Errorf("%v %v", one, err)
	}
	partial, err := metadata.NewForConfigOrDie(s.clientConfig()).Resource(gvr).List(ctx, metav1.ListOptions{})
	if err != nil || len(partial.Items) != 1 || partial.Items[0].Annotations["resourceVersion"] != "fake" || partial.Items[0].ResourceVersion != "3" {
		t.Errorf("%v %v", partial, err)
	}
	refused := s.get("/apis/example.com/v1/widgets", "Accept: "+mediaProtobuf)
	if refused.code != 406 || !strings.Contains(string(refused.body), "only the following media types are accepted: application/json, application/yaml") {
		t.Errorf("%d %q", refused.code, refused.body)
	}
}
