package admission_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"

	"skiff/internal/api"
	"skiff/internal/apiserver"
	"skiff/internal/apiserver/admission"
	"skiff/internal/apiserver/authn"
	"skiff/internal/apiserver/authz"
	"skiff/internal/kind"
	"skiff/internal/openapi"
	"skiff/internal/store/cache"
	"skiff/internal/store/memory"
)

var converter = sync.OnceValues(func() (managedfields.TypeConverter, error) { return openapi.TypeConverter() })

// server is the real server with all built-in kinds, on a store in memory.
type server struct {
	t       testing.TB
	handler http.Handler
	env     kind.Client
}

func newServer(t testing.TB, withRules bool) *server {
	t.Helper()
	objects := cache.New(memory.New(), nil)
	authorizer := authz.Chain{authz.Masters{}}
	var made *apiserver.Server
	var chain admission.Chain
	var err error
	if withRules {
		chain, err = admission.List(admission.Options{Client: func() kind.Client { return made.KindClient() }, Authorizer: authorizer})
		if err != nil {
			t.Fatal(err)
		}
	}
	made, err = apiserver.New(apiserver.Config{
		Kinds: api.Kinds(api.Settings{}), Scheme: api.Scheme(), Cache: objects, Authorizer: authorizer, Admission: chain, TypeConverter: converter,
		Authenticator: authn.NewTokens(map[string]authn.User{"admin": {Username: "admin", Groups: []string{authn.GroupMasters}}}),
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
	t.Cleanup(func() { cancel(); <-done })
	<-objects.Ready()
	s := &server{t: t, handler: made.Handler(), env: made.KindClient()}
	s.create("namespaces", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team"}})
	s.create("serviceaccounts", &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default", Namespace: "team"}})
	return s
}

// create stores an object without admission.
func (s *server) create(resource string, obj kind.Object) {
	s.t.Helper()
	if _, err := s.env.Create(context.Background(), schema.ParseGroupResource(resource), obj); err != nil {
		s.t.Fatal(err)
	}
}

func (s *server) send(method, path, body string) (int, string) {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Header.Set("Authorization", "Bearer admin")
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	s.handler.ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

func (s *server) quota(name string) string {
	obj, err := s.env.Get(context.Background(), schema.GroupResource{Resource: "resourcequotas"}, "team", name)
	if err != nil {
		s.t.Fatal(err)
	}
	used := obj.(*corev1.ResourceQuota).Status.Used[corev1.ResourcePods]
	return used.String()
}

func (s *server) limitPods(n string) {
	s.t.Helper()
	hard := corev1.ResourceList{corev1.ResourcePods: resource.MustParse(n)}
	s.create("resourcequotas", &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "q", Namespace: "team"}, Spec: corev1.ResourceQuotaSpec{Hard: hard}})
	_, err := s.env.Update(context.Background(), schema.GroupResource{Resource: "resourcequotas"}, "team", "q", func(obj kind.Object) error {
		obj.(*corev1.ResourceQuota).Status = corev1.ResourceQuotaStatus{Hard: hard, Used: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("0")}}
		return nil
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

const podsPath = "/api/v1/namespaces/team/pods"

func podBody(name string) string {
	return fmt.Sprintf(`{"metadata":{"name":%q,"labels":{"app":"web"}},"spec":{"containers":[{"name":"main","image":"busybox"}]}}`, name)
}

// TestWithServer creates pods on a real server with all plugins: what is added, what is rejected, and that the quota's usage is
// the number of pods.
func TestWithServer(t *testing.T) {
	s := newServer(t, true)
	s.limitPods("5")
	if code, body := s.send("POST", podsPath, podBody("web")); code != http.StatusCreated ||
		!strings.Contains(body, "kube-api-access-") || !strings.Contains(body, `"preemptionPolicy":"PreemptLowerPriority"`) || !strings.Contains(body, corev1.TaintNodeUnreachable) {
		t.Fatalf("%d %s", code, body)
	}
	for path, body := range map[string]string{podsPath: podBody("web"), podsPath + "?dryRun=All": podBody("dry")} {
		s.send("POST", path, body)
		if got := s.quota("q"); got != "1" {
			t.Errorf("used %s after %s", got, path)
		}
	}
	if code, body := s.send("POST", "/api/v1/namespaces/nowhere/pods", podBody("web")); code != http.StatusNotFound || !strings.Contains(body, `namespaces \"nowhere\" not found`) {
		t.Errorf("%d %s", code, body)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	made, refused := 1, 0
	for i := range 20 {
		wg.Go(func() {
			code, body := s.send("POST", podsPath, podBody(fmt.Sprint("web-", i)))
			mu.Lock()
			defer mu.Unlock()
			switch {
			case code == http.StatusCreated:
				made++
			case code == http.StatusForbidden && strings.Contains(body, "exceeded quota: q, requested: pods=1, used: pods=5, limited: pods=5"):
				refused++
			default:
				t.Errorf("%d %s", code, body)
			}
		})
	}
	wg.Wait()
	if made != 5 || refused != 16 || s.quota("q") != "5" {
		t.Errorf("%d created, %d rejected, %s used", made, refused, s.quota("q"))
	}
	if code, body := s.send("DELETE", "/api/v1/namespaces/team/pods/web-x", ""); code != http.StatusNotFound {
		t.Errorf("%d %s", code, body)
	}
	if _, err := s.env.Get(context.Background(), schema.GroupResource{Resource: "pods"}, "team", "web-x"); !apierrors.IsNotFound(err) {
		t.Error(err)
	}
}

// nowhere is a client without objects.
type nowhere struct{ header http.Header }

func (n nowhere) Header() http.Header         { return n.header }
func (n nowhere) WriteHeader(int)             {}
func (n nowhere) Write(p []byte) (int, error) { return len(p), nil }

// BenchmarkCreate measures a create request with and without plugins, on a store in memory.
func BenchmarkCreate(b *testing.B) {
	for _, test := range []struct {
		name          string
		plugins, room bool
	}{{"no plugins", false, false}, {"plugins", true, false}, {"plugins and a quota", true, true}} {
		for what, body := range map[string]func(name string) string{
			"pod": podBody, "configmap": func(name string) string { return fmt.Sprintf(`{"metadata":{"name":%q},"data":{"a":"b"}}`, name) },
		} {
			b.Run(what+" "+test.name, func(b *testing.B) {
				s := newServer(b, test.plugins)
				if test.room {
					s.limitPods("1000000000")
				}
				n := 0
				b.ReportAllocs()
				for b.Loop() {
					n++
					r := httptest.NewRequest("POST", "/api/v1/namespaces/team/"+what+"s", io.NopCloser(bytes.NewBufferString(body(fmt.Sprint("x", n)))))
					r.Header.Set("Authorization", "Bearer admin")
					r.Header.Set("Content-Type", "application/json")
					s.handler.ServeHTTP(nowhere{http.Header{}}, r)
				}
			})
		}
	}
}

// BenchmarkChain measures Mutate and Validate of all plugins for a pod.
func BenchmarkChain(b *testing.B) {
	s := newServer(b, false)
	chain, err := admission.List(admission.Options{Client: func() kind.Client { return s.env }, Authorizer: authz.Chain{}})
	if err != nil {
		b.Fatal(err)
	}
	template := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "team"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "busybox"}}}}
	for name, old := range map[string]*corev1.Pod{"create": nil, "update": template} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				a := &admission.Attributes{
					Operation: admission.Create, Resource: corev1.SchemeGroupVersion.WithResource("pods"), Kind: corev1.SchemeGroupVersion.WithKind("Pod"),
					Namespace: "team", Name: "web", Object: template.DeepCopy(), User: authn.User{Username: "jane"},
				}
				if old != nil {
					a.Operation, a.Old = admission.Update, old
				}
				if err := chain.Mutate(context.Background(), a); err != nil {
					b.Fatal(err)
				}
				if err := chain.Validate(context.Background(), a); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
