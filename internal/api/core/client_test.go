package core

import (
	"context"
	"fmt"
	"sort"
	"strconv"
	"strings"
	"sync"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/kind"
)

// memoryClient keeps objects in a map and updates them by compare and swap, as the server does.
type memoryClient struct {
	mu       sync.Mutex
	objs     map[string]kind.Object
	revision int
	// interfere runs once, between the read and the write of the next update.
	interfere func()
}

func newMemoryClient(objs ...kind.Object) *memoryClient {
	client := &memoryClient{objs: map[string]kind.Object{}}
	for _, obj := range objs {
		resource := schema.GroupResource{}
		switch fmt.Sprintf("%T", obj) {
		case "*v1.ServiceCIDR":
			resource = serviceCIDRs
		case "*v1.IPAddress":
			resource = ipAddresses
		case "*v1.Service":
			resource = services
		case "*v1.RangeAllocation":
			resource = RangeAllocation.GroupResource()
		}
		if _, err := client.Create(context.Background(), resource, obj); err != nil {
			panic(err)
		}
	}
	return client
}

func key(resource schema.GroupResource, namespace, name string) string {
	return resource.String() + "|" + namespace + "|" + name
}

func (m *memoryClient) put(key string, obj kind.Object) kind.Object {
	m.revision++
	obj = obj.DeepCopyObject().(kind.Object)
	obj.SetResourceVersion(strconv.Itoa(m.revision))
	if obj.GetUID() == "" {
		obj.SetUID(types.UID("uid-" + strconv.Itoa(m.revision)))
	}
	m.objs[key] = obj
	return obj
}

func (m *memoryClient) Get(_ context.Context, resource schema.GroupResource, namespace, name string) (kind.Object, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if obj, found := m.objs[key(resource, namespace, name)]; found {
		return obj, nil
	}
	return nil, apierrors.NewNotFound(resource, name)
}

func (m *memoryClient) List(_ context.Context, resource schema.GroupResource, namespace string) ([]kind.Object, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var keys []string
	for k, obj := range m.objs {
		if strings.HasPrefix(k, resource.String()+"|") && (namespace == "" || obj.GetNamespace() == namespace) {
			keys = append(keys, k)
		}
	}
	sort.Strings(keys)
	var objs []kind.Object
	for _, k := range keys {
		objs = append(objs, m.objs[k])
	}
	return objs, nil
}

func (m *memoryClient) Create(_ context.Context, resource schema.GroupResource, obj kind.Object) (kind.Object, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	k := key(resource, obj.GetNamespace(), obj.GetName())
	if _, found := m.objs[k]; found {
		return nil, apierrors.NewAlreadyExists(resource, obj.GetName())
	}
	return m.put(k, obj), nil
}

func (m *memoryClient) Update(ctx context.Context, resource schema.GroupResource, namespace, name string, change func(kind.Object) error) (kind.Object, error) {
	for {
		stored, err := m.Get(ctx, resource, namespace, name)
		if err != nil {
			return nil, err
		}
		changed := stored.DeepCopyObject().(kind.Object)
		if err := change(changed); err != nil {
			return nil, err
		}
		if interfere := m.interfere; interfere != nil {
			m.interfere = nil
			interfere()
		}
		m.mu.Lock()
		k := key(resource, namespace, name)
		if current, found := m.objs[k]; found && current.GetResourceVersion() == stored.GetResourceVersion() {
			defer m.mu.Unlock()
			return m.put(k, changed), nil
		}
		m.mu.Unlock()
	}
}

func (m *memoryClient) Delete(_ context.Context, resource schema.GroupResource, namespace, name string, options *metav1.DeleteOptions) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	k := key(resource, namespace, name)
	obj, found := m.objs[k]
	if !found {
		return apierrors.NewNotFound(resource, name)
	}
	if options != nil && options.Preconditions != nil && options.Preconditions.UID != nil && *options.Preconditions.UID != obj.GetUID() {
		return apierrors.NewConflict(resource, name, fmt.Errorf("UID differs"))
	}
	delete(m.objs, k)
	return nil
}

// names lists the stored objects of a resource.
func (m *memoryClient) names(t *testing.T, resource schema.GroupResource) []string {
	t.Helper()
	objs, err := m.List(context.Background(), resource, "")
	if err != nil {
		t.Fatal(err)
	}
	names := []string{}
	for _, obj := range objs {
		names = append(names, obj.GetName())
	}
	return names
}
