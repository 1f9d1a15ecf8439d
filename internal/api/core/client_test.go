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

func (e *memoryClient) put(key string, obj kind.Object) kind.Object {
	e.revision++
	obj = obj.DeepCopyObject().(kind.Object)
	obj.SetResourceVersion(strconv.Itoa(e.revision))
	if obj.GetUID() == "" {
		obj.SetUID(types.UID("uid-" + strconv.Itoa(e.revision)))
	}
	e.objs[key] = obj
	return obj
}

func (e *memoryClient) Get(_ context.Context, resource schema.GroupResource, namespace, name string) (kind.Object, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if obj, found := e.objs[key(resource, namespace, name)]; found {
		return obj, nil
	}
	return nil, apierrors.NewNotFound(resource, name)
}

func (e *memoryClient) List(_ context.Context, resource schema.GroupResource, namespace string) ([]kind.Object, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	var keys []string
	for k, obj := range e.objs {
		if strings.HasPrefix(k, resource.String()+"|") && (namespace == "" || obj.GetNamespace() == namespace) {
			keys = append(keys, k)
		}
	}
	sort.Strings(keys)
	var objs []kind.Object
	for _, k := range keys {
		objs = append(objs, e.objs[k])
	}
	return objs, nil
}

func (e *memoryClient) Create(_ context.Context, resource schema.GroupResource, obj kind.Object) (kind.Object, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	k := key(resource, obj.GetNamespace(), obj.GetName())
	if _, found := e.objs[k]; found {
		return nil, apierrors.NewAlreadyExists(resource, obj.GetName())
	}
	return e.put(k, obj), nil
}

func (e *memoryClient) Update(ctx context.Context, resource schema.GroupResource, namespace, name string, change func(kind.Object) error) (kind.Object, error) {
	for {
		stored, err := e.Get(ctx, resource, namespace, name)
		if err != nil {
			return nil, err
		}
		changed := stored.DeepCopyObject().(kind.Object)
		if err := change(changed); err != nil {
			return nil, err
		}
		if interfere := e.interfere; interfere != nil {
			e.interfere = nil
			interfere()
		}
		e.mu.Lock()
		k := key(resource, namespace, name)
		if current, found := e.objs[k]; found && current.GetResourceVersion() == stored.GetResourceVersion() {
			defer e.mu.Unlock()
			return e.put(k, changed), nil
		}
		e.mu.Unlock()
	}
}

func (e *memoryClient) Delete(_ context.Context, resource schema.GroupResource, namespace, name string, options *metav1.DeleteOptions) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	k := key(resource, namespace, name)
	obj, found := e.objs[k]
	if !found {
		return apierrors.NewNotFound(resource, name)
	}
	if options != nil && options.Preconditions != nil && options.Preconditions.UID != nil && *options.Preconditions.UID != obj.GetUID() {
		return apierrors.NewConflict(resource, name, fmt.Errorf("UID differs"))
	}
	delete(e.objs, k)
	return nil
}

// names lists the stored objects of a resource.
func (e *memoryClient) names(t *testing.T, resource schema.GroupResource) []string {
	t.Helper()
	objs, err := e.List(context.Background(), resource, "")
	if err != nil {
		t.Fatal(err)
	}
	names := []string{}
	for _, obj := range objs {
		names = append(names, obj.GetName())
	}
	return names
}
