package cleanup

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"skiff/internal/client"
	"skiff/internal/controller"
	"skiff/internal/kind"
	"skiff/test/inprocess"
)

// run runs controllers against a server in memory until the test ends.
func run(t *testing.T, c *client.Client, definitions ...controller.Definition) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	informers, events := client.NewInformers(c), client.NewEventBroadcaster(c)
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
	if _, err := client.For[*corev1.Pod](c).Patch(t.Context(), "work", "held", client.RawPatch(client.MergePatch, patch), client.WriteOptions{}); err != nil {
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

// TestHowLongPodsMayTake: the longest grace of a pod that has not ended, counted from the deletion of the namespace.
func TestHowLongPodsMayTake(t *testing.T) {
	grace := func(seconds int64) podChange {
		return func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = &seconds }
	}
	for i, test := range []struct {
		what    string
		deleted time.Duration // ago
		pods    []podChange
		want    time.Duration
	}{
		{"no pods", 0, nil, 0},
		{"one", 0, []podChange{grace(30)}, 30 * time.Second},
		{"the longest", 0, []podChange{grace(30), grace(600), grace(5)}, 10 * time.Minute},
		{"of no time", 0, []podChange{grace(0)}, 0},
		{"those that ended do not count", 0, []podChange{func(p *corev1.Pod) { grace(600)(p); succeeded(p) }, func(p *corev1.Pod) { grace(300)(p); failed(p) }, grace(7)}, 7 * time.Second},
		{"a part of it is over", 20 * time.Second, []podChange{grace(30)}, 30 * time.Second},
		{"it is over", 31 * time.Second, []podChange{grace(30)}, 0},
	} {
		c := inprocess.Start(t, t.Context())
		n := &namespaces{setup: &controller.Setup{Client: c}}
		for j, change := range test.pods {
			pod := podOf("default", string(rune('a'+i))+string(rune('a'+j)))
			change(pod)
			status := pod.Status
			made := create(t, c, pod).DeepCopy()
			made.Status = status
			if _, err := client.For[*corev1.Pod](c).UpdateStatus(t.Context(), made); status.Phase != "" && err != nil {
				t.Fatal(err)
			}
		}
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default", DeletionTimestamp: new(metav1.NewTime(time.Now().Add(-test.deleted)))}}
		if got, err := n.podTerminationGrace(t.Context(), namespace); err != nil || got != test.want {
			t.Errorf("%s: %s, %v; want %s", test.what, got, err, test.want)
		}
	}
}

// answers is a fake API server: it responds to requests by method and path and records them.
type answers struct {
	mu        sync.Mutex
	responses map[string][]string // the last one is repeated
	asked     []string
	bodies    []string // of those that had one
}

func (a *answers) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	request := r.Method + " " + r.URL.Path
	a.asked = append(a.asked, request)
	if body, err := io.ReadAll(r.Body); err == nil && len(body) > 0 {
		a.bodies = append(a.bodies, request+" "+string(body))
	}
	all := a.responses[request]
	if len(all) == 0 {
		http.NotFound(w, r)
		return
	}
	if len(all) > 1 {
		a.responses[request] = all[1:]
	}
	w.Header().Set("Content-Type", "application/json")
	var status metav1.Status
	if err := json.Unmarshal([]byte(all[0]), &status); err == nil && status.Code >= 400 {
		w.WriteHeader(int(status.Code))
	}
	_, _ = w.Write([]byte(all[0]))
}

// playing starts an API server with these responses.
func playing(t *testing.T, responses map[string][]string) (*metadataClient, *answers) {
	t.Helper()
	a := &answers{responses: responses}
	http := httptest.NewServer(a)
	t.Cleanup(http.Close)
	s, err := newMetadataClient(&rest.Config{Host: http.URL})
	if err != nil {
		t.Fatal(err)
	}
	return s, a
}

// refusal is an answer of a server that does not do what was asked.
func refusal(code int, reason metav1.StatusReason, message string) string {
	text, _ := json.Marshal(metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: "Failure", Code: int32(code), Reason: reason, Message: message})
	return string(text)
}

// listing is an answer with the metadata of objects, by name; behind a colon stand their finalizers.
func listing(names ...string) string {
	list := metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadataList"}}
	for _, name := range names {
		name, finalizers, found := strings.Cut(name, ":")
		item := metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadata"}, ObjectMeta: metav1.ObjectMeta{Namespace: "work", Name: name}}
		if found {
			item.Finalizers = strings.Split(finalizers, ",")
		}
		list.Items = append(list.Items, item)
	}
	text, _ := json.Marshal(list)
	return string(text)
}

func TestOneResourceIsEmptied(t *testing.T) {
	const at = "/apis/example.com/v1/namespaces/work/widgets"
	const done = `{"apiVersion":"v1","kind":"Status","status":"Success"}`
	const lists, collection = "GET " + at, "DELETE " + at
	notServed, notThere, forbidden := refusal(405, metav1.StatusReasonMethodNotAllowed, "no"), refusal(404, metav1.StatusReasonNotFound, "gone"), refusal(403, metav1.StatusReasonForbidden, "forbidden")
	const unexpected = "unexpected items still remain in namespace: work for gvr: example.com/v1, Resource=widgets"
	all := []string{"list", "delete", "deletecollection"}
	single := []string{"list", "delete"}
	for _, test := range []struct {
		what      string
		verbs     []string
		responses map[string][]string
		grace     time.Duration
		left      remainingContent
		err       string
		asked     []string
	}{
		{"nothing is there", all, map[string][]string{lists: {listing()}}, 0, remainingContent{}, "", []string{lists}},
		{"all goes at once", all, map[string][]string{lists: {listing("a", "b"), listing()}, collection: {done}}, 0, remainingContent{}, "", []string{lists, collection, lists}},
		{"one by one", single, map[string][]string{lists: {listing("a", "b"), listing()}, "DELETE " + at + "/a": {done}, "DELETE " + at + "/b": {done}}, 0, remainingContent{}, "", []string{lists, "DELETE " + at + "/a", "DELETE " + at + "/b", lists}},
		{"one by one because the server does not do it otherwise", all, map[string][]string{lists: {listing("a"), listing()}, collection: {notServed}, "DELETE " + at + "/a": {done}}, 0, remainingContent{}, "", []string{lists, collection, "DELETE " + at + "/a", lists}},
		{"one is gone already", single, map[string][]string{lists: {listing("a", "b"), listing()}, "DELETE " + at + "/a": {notThere}, "DELETE " + at + "/b": {done}}, 0, remainingContent{}, "", []string{lists, "DELETE " + at + "/a", "DELETE " + at + "/b", lists}},
		{"one must not be deleted", single, map[string][]string{lists: {listing("a", "b")}, "DELETE " + at + "/a": {forbidden}}, 9 * time.Second, remainingContent{delay: 9 * time.Second}, "forbidden", []string{lists, "DELETE " + at + "/a"}},
		{"they must not be deleted", all, map[string][]string{lists: {listing("a")}, collection: {forbidden}}, 0, remainingContent{}, "forbidden", []string{lists, collection}},
		{"they must not be listed", all, map[string][]string{lists: {forbidden}}, 0, remainingContent{}, "forbidden", []string{lists}},
		{"the resource is no longer there", all, map[string][]string{lists: {notThere}, collection: {notThere}}, 0, remainingContent{}, "", []string{lists, collection}},
		{"the resource cannot be listed", []string{"delete", "deletecollection"}, map[string][]string{collection: {done}}, 0, remainingContent{}, "", []string{collection}},
		{"finalizers hold some", all, map[string][]string{lists: {listing("a", "b", "c"), listing("a:x", "b:x,y")}, collection: {done}}, 0, remainingContent{objects: 2, finalizers: map[string]int{"x": 2, "y": 1}, delay: 15 * time.Second}, "", []string{lists, collection, lists}},
		{"a grace period is left", all, map[string][]string{lists: {listing("a"), listing("a")}, collection: {done}}, 30 * time.Second, remainingContent{objects: 1, finalizers: map[string]int{}, delay: 30 * time.Second}, "", []string{lists, collection, lists}},
		{"a grace period is left, and a finalizer", all, map[string][]string{lists: {listing("a"), listing("a:x")}, collection: {done}}, 30 * time.Second, remainingContent{objects: 1, finalizers: map[string]int{"x": 1}, delay: 30 * time.Second}, "", []string{lists, collection, lists}},
		{"nothing explains what is left", all, map[string][]string{lists: {listing("a"), listing("a")}, collection: {done}}, 0, remainingContent{objects: 1, finalizers: map[string]int{}}, unexpected, []string{lists, collection, lists}},
	} {
		metadataClient, heard := playing(t, test.responses)
		left, err := (&namespaces{metadataClient: metadataClient}).deleteResource(t.Context(), resource{GroupVersionResource: widgets, verbs: test.verbs}, "work", test.grace)
		if message(err) != test.err || !reflect.DeepEqual(left, test.left) {
			t.Errorf("%s: %+v, %v; want %+v, %s", test.what, left, err, test.left, test.err)
		}
		if !slices.Equal(heard.asked, test.asked) {
			t.Errorf("%s: asked %q, want %q", test.what, heard.asked, test.asked)
		}
	}
}

// TestPodsThatCannotBeDeleted: the condition has the server's own words.
func TestPodsThatCannotBeDeleted(t *testing.T) {
	discovered := `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"v1","resources":[{"name":"pods","kind":"Pod","namespaced":true,"verbs":["delete","deletecollection","list"]}]}`
	metadataClient, _ := playing(t, map[string][]string{"GET /api": {`{"kind":"APIVersions","versions":["v1"]}`}, "GET /apis": {`{"kind":"APIGroupList","groups":[]}`}, "GET /api/v1": {discovered},
		"GET /api/v1/namespaces/work/pods": {refusal(403, metav1.StatusReasonForbidden, "you may not")}})
	n := &namespaces{metadataClient: metadataClient, setup: &controller.Setup{Client: inprocess.Start(t, t.Context())}}
	found, err := n.deleteContent(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "work", DeletionTimestamp: new(metav1.Now())}})
	if want := "Failed to delete all resource types, 1 remaining: you may not"; err != nil || found.failureMessage() != want {
		t.Errorf("%v, %q, want %q", err, found.failureMessage(), want)
	}
}

// TestNamespacesInAWorld: one is left alone for its grace, one goes at once, and one that is not deleted stays.
func TestNamespacesInAWorld(t *testing.T) {
	c := inprocess.Start(t, t.Context())
	run(t, c, Namespace(300*time.Millisecond))
	for _, name := range []string{"stays", "goes", "empty"} {
		create(t, c, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	for _, name := range []string{"stays", "goes"} {
		create(t, c, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: "settings"}})
		create(t, c, podOf(name, "pod"))
	}
	began := time.Now()
	for _, name := range []string{"goes", "empty"} {
		if err := client.For[*corev1.Namespace](c).Delete(t.Context(), "", name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "both are gone", func() bool {
		return gone[*corev1.Namespace](t, c, "", "goes") && gone[*corev1.Namespace](t, c, "", "empty")
	})
	if took := time.Since(began); took < 300*time.Millisecond {
		t.Errorf("they were gone after %s", took)
	}
	if !gone[*corev1.Pod](t, c, "goes", "pod") || !gone[*corev1.ConfigMap](t, c, "goes", "settings") {
		t.Error("something is left of a namespace that is gone")
	}
	if gone[*corev1.Pod](t, c, "stays", "pod") || gone[*corev1.ConfigMap](t, c, "stays", "settings") {
		t.Error("something of another namespace is gone")
	}
}
