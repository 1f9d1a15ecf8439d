package authn

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"net/http"
	"net/url"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/kind"
)

const testIssuer = "https://issuer.example.org"

var testKey = mustKey()

func mustKey() *ecdsa.PrivateKey {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	return key
}

// fakeObjects are Objects in memory.
type fakeObjects struct {
	mu      sync.Mutex
	objects map[string]kind.Object
	updates int
}

func newObjects(objs ...kind.Object) *fakeObjects {
	f := &fakeObjects{objects: map[string]kind.Object{}}
	for _, obj := range objs {
		f.put(obj)
	}
	return f
}

func objectKey(resource, namespace, name string) string {
	return resource + "/" + namespace + "/" + name
}

func resourceOf(obj kind.Object) string {
	switch obj.(type) {
	case *corev1.ServiceAccount:
		return "serviceaccounts"
	case *corev1.Pod:
		return "pods"
	case *corev1.Secret:
		return "secrets"
	case *corev1.Node:
		return "nodes"
	}
	panic("unknown object")
}

func (f *fakeObjects) put(obj kind.Object) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.objects[objectKey(resourceOf(obj), obj.GetNamespace(), obj.GetName())] = obj
}

func (f *fakeObjects) remove(obj kind.Object) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.objects, objectKey(resourceOf(obj), obj.GetNamespace(), obj.GetName()))
}

func (f *fakeObjects) Get(_ context.Context, resource schema.GroupResource, namespace, name string) (kind.Object, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	obj, ok := f.objects[objectKey(resource.Resource, namespace, name)]
	if !ok {
		return nil, apierrors.NewNotFound(resource, name)
	}
	return obj, nil
}

func (f *fakeObjects) Update(ctx context.Context, resource schema.GroupResource, namespace, name string, change func(kind.Object) error) (kind.Object, error) {
	obj, err := f.Get(ctx, resource, namespace, name)
	if err != nil {
		return nil, err
	}
	obj = obj.DeepCopyObject().(kind.Object)
	if err := change(obj); err != nil {
		return nil, err
	}
	f.put(obj)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.updates++
	return obj, nil
}

func meta(name, uid string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(uid)}
}

func deleted(ago time.Duration) *metav1.Time {
	return &metav1.Time{Time: time.Now().Add(-ago)}
}

func mustRequest(t testing.TB, path string, headers ...string) *http.Request {
	t.Helper()
	u, err := url.Parse(path)
	if err != nil {
		t.Fatal(err)
	}
	r := (&http.Request{Method: http.MethodGet, URL: u, Header: http.Header{}}).WithContext(t.Context())
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	return r
}

type response struct {
	header http.Header
	body   bytes.Buffer
	code   int
}

func newResponse() *response                       { return &response{header: http.Header{}, code: http.StatusOK} }
func (w *response) Header() http.Header            { return w.header }
func (w *response) Write(data []byte) (int, error) { return w.body.Write(data) }
func (w *response) WriteHeader(code int)           { w.code = code }
