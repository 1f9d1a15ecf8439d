package apiserver

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/version"
	clientscheme "k8s.io/client-go/kubernetes/scheme"

	"skiff/internal/apiserver/authn"
	"skiff/internal/apiserver/authz"
	"skiff/internal/kind"
	"skiff/internal/store"
	"skiff/internal/store/cache"
	"skiff/internal/store/memory"
)

// The kinds that the tests of reading serve: one of each sort the server treats differently.
func readKinds() []*kind.Kind {
	configMaps := kind.Of(kind.Definition[*corev1.ConfigMap]{
		GVK: corev1.SchemeGroupVersion.WithKind("ConfigMap"), Plural: "configmaps", Short: []string{"cm"}, Namespaced: true,
		List: &corev1.ConfigMapList{},
	})
	pods := kind.Of(kind.Definition[*corev1.Pod]{
		GVK: corev1.SchemeGroupVersion.WithKind("Pod"), Plural: "pods", Short: []string{"po"}, Categories: []string{"all"}, Namespaced: true,
		List:         &corev1.PodList{},
		IndexedField: "spec.nodeName",
		Fields: map[string]func(*corev1.Pod) string{
			"spec.nodeName": func(p *corev1.Pod) string { return p.Spec.NodeName },
			"status.phase":  func(p *corev1.Pod) string { return string(p.Status.Phase) },
		},
		Columns: []metav1.TableColumnDefinition{kind.NameColumn(), kind.Column("Phase", "string", "The phase."), kind.AgeColumn()},
		Row: func(p *corev1.Pod, now time.Time) []any {
			return []any{p.Name, string(p.Status.Phase), kind.Age(p.CreationTimestamp, now)}
		},
		RowConditions: func(p *corev1.Pod) []metav1.TableRowCondition {
			if p.Status.Phase != corev1.PodSucceeded {
				return nil
			}
			return []metav1.TableRowCondition{{Type: metav1.RowCompleted, Status: metav1.ConditionTrue, Reason: "Succeeded"}}
		},
		CopyStatus: func(to, from *corev1.Pod) { to.Status = from.Status },
		Subresources: []kind.Subresource{
			{Name: "log", Verbs: []string{"get"}},
			{Name: "exec", GVK: corev1.SchemeGroupVersion.WithKind("PodExecOptions"), Verbs: []string{"create", "get"}, ConnectNeedsCreate: true},
		},
	})
	nodes := kind.Of(kind.Definition[*corev1.Node]{
		GVK: corev1.SchemeGroupVersion.WithKind("Node"), Plural: "nodes", Short: []string{"no"}, Prefix: "minions", List: &corev1.NodeList{},
	})
	namespaces := kind.Of(kind.Definition[*corev1.Namespace]{
		GVK: corev1.SchemeGroupVersion.WithKind("Namespace"), Plural: "namespaces", IsNamespace: true, Short: []string{"ns"}, List: &corev1.NamespaceList{},
		Verbs:      []string{"create", "delete", "get", "list", "patch", "update", "watch"},
		CopyStatus: func(to, from *corev1.Namespace) { to.Status = from.Status },
	})
	reviews := kind.Of(kind.Definition[*authorizationv1.SelfSubjectAccessReview]{
		GVK:    authorizationv1.SchemeGroupVersion.WithKind("SelfSubjectAccessReview"),
		Plural: "selfsubjectaccessreviews",
		Action: func(context.Context, kind.Client, *kind.Request, *authorizationv1.SelfSubjectAccessReview) (runtime.Object, error) {
			return &authorizationv1.SelfSubjectAccessReview{}, nil
		},
	})
	components := kind.Of(kind.Definition[*corev1.ComponentStatus]{
		GVK: corev1.SchemeGroupVersion.WithKind("ComponentStatus"), Plural: "componentstatuses", Short: []string{"cs"}, List: &corev1.ComponentStatusList{},
		Computed: func(context.Context, kind.Client) ([]*corev1.ComponentStatus, error) {
			return []*corev1.ComponentStatus{
				{ObjectMeta: metav1.ObjectMeta{Name: "etcd-0"}}, {ObjectMeta: metav1.ObjectMeta{Name: "scheduler"}},
			}, nil
		},
	})
	return []*kind.Kind{configMaps, pods, nodes, namespaces, eventKind(), reviews, components}
}

// eventKind is served in two groups and stored in one.
func eventKind() *kind.Kind {
	return kind.Of(kind.Definition[*corev1.Event]{
		GVK: corev1.SchemeGroupVersion.WithKind("Event"), Plural: "events", Short: []string{"ev"}, Namespaced: true,
		List: &corev1.EventList{},
		Fields: map[string]func(*corev1.Event) string{
			"involvedObject.name": func(e *corev1.Event) string { return e.InvolvedObject.Name },
		},
		Versions: []kind.Version{
			{GVK: corev1.SchemeGroupVersion.WithKind("Event")},
			{
				GVK:     eventsv1.SchemeGroupVersion.WithKind("Event"),
				New:     func() kind.Object { return &eventsv1.Event{} },
				NewList: func() runtime.Object { return &eventsv1.EventList{} },
				Fields:  map[string]string{"regarding.name": "involvedObject.name"},
				ToStorageVersion: func(obj kind.Object) (kind.Object, error) {
					e := obj.(*eventsv1.Event)
					return &corev1.Event{ObjectMeta: *e.ObjectMeta.DeepCopy(), InvolvedObject: e.Regarding, Message: e.Note}, nil
				},
				FromStorageVersion: func(obj kind.Object) (kind.Object, error) {
					e := obj.(*corev1.Event)
					return &eventsv1.Event{ObjectMeta: *e.ObjectMeta.DeepCopy(), Regarding: e.InvolvedObject, Note: e.Message}, nil
				},
			},
		},
	})
}

// testServer is a server on a memory store, with a running cache, reachable over HTTP.
type testServer struct {
	*Server
	t     testing.TB
	store *memory.Store
	http  *httptest.Server
}

func testConfig() Config {
	return Config{
		Kinds:         readKinds(),
		Scheme:        clientscheme.Scheme,
		Authenticator: authn.Chain{authn.NewTokens(map[string]authn.User{"admin": {Username: "admin", Groups: []string{authn.GroupMasters}}, "guest": {Username: "guest"}})},
		Authorizer:    authz.Chain{authz.Masters{}, authz.AlwaysAllowPaths{"/healthz", "/livez", "/readyz", "/version"}},
		Version:       version.Info{Major: "1", Minor: "37", GitVersion: "v1.37.1"},
		Address:       "10.0.0.1:6443",
		Priority: func(gv schema.GroupVersion) Priority {
			return map[string]Priority{"": {18000, 1}, "events.k8s.io": {17750, 15}, "authorization.k8s.io": {17600, 15}}[gv.Group]
		},
	}
}

func newTestServer(t testing.TB, change ...func(*Config)) *testServer {
	t.Helper()
	config := testConfig()
	backend := memory.New()
	config.Cache = cache.New(backend, nil)
	for _, c := range change {
		c(&config)
	}
	s, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = config.Cache.Run(ctx)
	}()
	<-config.Cache.Ready()
	front := httptest.NewServer(s.Handler())
	t.Cleanup(func() {
		front.CloseClientConnections()
		front.Close()
		cancel()
		<-done
	})
	return &testServer{Server: s, t: t, store: backend, http: front}
}

func (s *testServer) find(resource string) *resource {
	gr := schema.ParseGroupResource(resource)
	res := s.resource(gr)
	if res == nil {
		s.t.Fatalf("no resource %s", resource)
	}
	return res
}

// add stores an object past all rules of writing.
func (s *testServer) add(resource string, obj kind.Object) *cache.Entry {
	s.t.Helper()
	res := s.find(resource)
	entry, err := res.table.Create(context.Background(), res.kind.Key(obj.GetNamespace(), obj.GetName()), obj, 0)
	if err != nil {
		s.t.Fatal(err)
	}
	return entry
}

// change stores a changed copy of an object.
func (s *testServer) change(resource, namespace, name string, change func(kind.Object)) *cache.Entry {
	s.t.Helper()
	res := s.find(resource)
	key := res.kind.Key(namespace, name)
	old := res.table.Get(key)
	obj, err := old.Object()
	if err != nil {
		s.t.Fatal(err)
	}
	obj = obj.DeepCopyObject().(kind.Object)
	change(obj)
	entry, err := res.table.Update(context.Background(), key, obj, 0, old.Revision())
	if err != nil {
		s.t.Fatal(err)
	}
	return entry
}

func (s *testServer) remove(resource, namespace, name string) *cache.Entry {
	s.t.Helper()
	res := s.find(resource)
	key := res.kind.Key(namespace, name)
	entry, err := res.table.Delete(context.Background(), key, res.table.Get(key).Revision())
	if err != nil {
		s.t.Fatal(err)
	}
	return entry
}

func configMap(namespace, name string, labels ...string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: testMeta(namespace, name, labels), Data: map[string]string{"key": "value of " + name}}
}

func pod(namespace, name, node string, labels ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: testMeta(namespace, name, labels)}
	p.Spec.NodeName = node
	p.Spec.Containers = []corev1.Container{{Name: "main", Image: "busybox"}}
	p.Status.Phase = corev1.PodRunning
	return p
}

func testMeta(namespace, name string, labels []string) metav1.ObjectMeta {
	m := metav1.ObjectMeta{
		Namespace: namespace, Name: name, UID: types.UID("uid-of-" + name),
		CreationTimestamp: metav1.NewTime(time.Now().Add(-time.Hour).Truncate(time.Second)),
	}
	for _, label := range labels {
		key, value, _ := strings.Cut(label, "=")
		metav1.SetMetaDataLabel(&m, key, value)
	}
	return m
}

// answer is what came back for a request.
type answer struct {
	t      testing.TB
	code   int
	header http.Header
	body   []byte
}

// do sends a request as admin. headers are "Name: value".
func (s *testServer) do(method, path string, headers ...string) *answer {
	s.t.Helper()
	req, err := http.NewRequest(method, s.http.URL+path, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer admin")
	req.Header.Set("Accept-Encoding", "identity")
	for _, header := range headers {
		name, value, _ := strings.Cut(header, ": ")
		req.Header.Set(name, value)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatalf("%s %s: %v", method, path, err)
	}
	return &answer{t: s.t, code: resp.StatusCode, header: resp.Header, body: body}
}

func (s *testServer) get(path string, headers ...string) *answer {
	s.t.Helper()
	return s.do("GET", path, headers...)
}

// into reads the JSON body and checks that the request succeeded.
func (a *answer) into(what any) {
	a.t.Helper()
	if a.code != http.StatusOK {
		a.t.Fatalf("code %d: %s", a.code, a.body)
	}
	if err := json.Unmarshal(a.body, what); err != nil {
		a.t.Fatalf("%v in %s", err, a.body)
	}
}

// status checks that the answer is a Status of the code, reason and message.
func (a *answer) status(code int, reason metav1.StatusReason, message string) *metav1.Status {
	a.t.Helper()
	var got metav1.Status
	if err := json.Unmarshal(a.body, &got); err != nil {
		a.t.Fatalf("code %d, no Status: %v in %s", a.code, err, a.body)
	}
	if a.code != code || got.Code != int32(code) || got.Reason != reason || got.Message != message || got.Kind != "Status" || got.APIVersion != "v1" {
		a.t.Errorf("code %d, body %s\nwant code %d, reason %s, message %s", a.code, a.body, code, reason, message)
	}
	return &got
}

func mustRevision(t testing.TB, text string) store.Revision {
	t.Helper()
	revision, err := parseResourceVersion(text)
	if err != nil {
		t.Fatal(err)
	}
	return revision
}

func names[T any, P interface {
	*T
	metav1.Object
}](items []T) string {
	var b bytes.Buffer
	for i := range items {
		if i > 0 {
			b.WriteByte(' ')
		}
		fmt.Fprint(&b, P(&items[i]).GetName())
	}
	return b.String()
}
