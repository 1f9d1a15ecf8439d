package scheduler

import (
	"context"
	"net/http"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/client-go/rest"

	"skiff/internal/api"
	"skiff/internal/apiserver"
	"skiff/internal/apiserver/authn"
	"skiff/internal/apiserver/authz"
	"skiff/internal/client"
	"skiff/internal/openapi"
	"skiff/internal/store/cache"
	memorystore "skiff/internal/store/memory"
)

// realServer is skiff's own API server in this process, on a store in memory.
type realServer struct {
	t      testing.TB
	local  client.Local
	client *client.Client
	pods   client.Resource[*corev1.Pod]
}

var writeOptions = client.WriteOptions{}

func newRealServer(t testing.TB) *realServer {
	t.Helper()
	store := memorystore.New()
	objects := cache.New(store, nil)
	server, err := apiserver.New(apiserver.Config{
		Kinds: api.Kinds(api.Settings{}), Scheme: api.Scheme(), Cache: objects, Authenticator: authn.Chain{authn.InProcess{}}, Authorizer: authz.Masters{},
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
	s := &realServer{t: t, local: server.Local(authn.User{Username: "admin", Groups: []string{authn.GroupMasters}})}
	if s.client, err = client.NewLocal(s.local, api.Scheme(), api.Kinds(api.Settings{})); err != nil {
		t.Fatal(err)
	}
	s.pods = client.For[*corev1.Pod](s.client)
	return s
}

// clientThrough is a client of the server whose requests go through a transport.
func (s *realServer) clientThrough(transport http.RoundTripper) *client.Client {
	s.t.Helper()
	c, err := client.New(&rest.Config{Host: "http://skiff.local", Transport: transport}, api.Scheme(), api.Kinds(api.Settings{}))
	if err != nil {
		s.t.Fatal(err)
	}
	return c
}

func (s *realServer) create(pod *corev1.Pod) {
	s.t.Helper()
	pod = pod.DeepCopy()
	pod.UID = ""
	if _, err := s.pods.Create(context.Background(), pod, writeOptions); err != nil {
		s.t.Fatal(err)
	}
}

// pod is a pod as it is, or nil.
func (s *realServer) pod(name string) *corev1.Pod {
	s.t.Helper()
	p, err := s.pods.Get(context.Background(), "default", name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		s.t.Fatal(err)
	}
	return p
}

func (s *realServer) bind(name, node string) {
	s.t.Helper()
	err := s.pods.Act(context.Background(), "default", name, "binding", &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: name}, Target: corev1.ObjectReference{Kind: "Node", Name: node}}, nil)
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *realServer) delete(name string) {
	s.t.Helper()
	if err := s.pods.Delete(context.Background(), "default", name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil {
		s.t.Fatal(err)
	}
}
