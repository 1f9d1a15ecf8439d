package apiserver

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"skiff/internal/kind"
	"skiff/internal/store/cache"
)

// kindClient is the access of a Kind's functions to other objects; see kind.Client.
type kindClient struct {
	s *Server
}

// KindClient returns the client that the functions of a Kind get. It bypasses admission.
func (s *Server) KindClient() kind.Client {
	if s.config.Tokens != nil {
		return issuingKindClient{kindClient{s}, s.config.Tokens}
	}
	return kindClient{s}
}

// issuingKindClient is a kindClient that also signs tokens.
type issuingKindClient struct {
	kindClient
	kind.TokenIssuer
}

// ComponentHealth implements kind.HealthChecker.
func (c kindClient) ComponentHealth(ctx context.Context) []kind.ComponentHealth {
	if c.s.config.Components == nil {
		return nil
	}
	return c.s.config.Components(ctx)
}

func (c kindClient) resource(gr schema.GroupResource) (*resource, error) {
	res := c.s.resource(gr)
	if res == nil || res.table == nil {
		return nil, fmt.Errorf("resource %s is not served", gr)
	}
	return res, nil
}

// acquire returns a stored resource, which must be released.
func (c kindClient) acquire(gr schema.GroupResource) (*resource, error) {
	return acquire(func() (*resource, error) { return c.resource(gr) })
}

// Get implements kind.Client.
func (c kindClient) Get(ctx context.Context, gr schema.GroupResource, namespace, name string) (kind.Object, error) {
	res, err := c.acquire(gr)
	if err != nil {
		return nil, err
	}
	defer res.release()
	key := res.kind.Key(namespace, name)
	entry := res.table.Get(key)
	if entry == nil {
		// The cache may be behind the store.
		if _, err := c.s.config.Cache.Sync(ctx); err != nil {
			return nil, err
		}
		if entry = res.table.Get(key); entry == nil {
			return nil, apierrors.NewNotFound(gr, name)
		}
	}
	return entry.Object()
}

// List implements kind.Client.
func (c kindClient) List(ctx context.Context, gr schema.GroupResource, namespace string) ([]kind.Object, error) {
	res, err := c.acquire(gr)
	if err != nil {
		return nil, err
	}
	defer res.release()
	snapshot, err := c.s.newestState(ctx, res.table)
	if err != nil {
		return nil, err
	}
	if snapshot.Len("") == 0 {
		return nil, nil // frequent for limit ranges and quotas
	}
	prefix := res.kind.KeyPrefix(namespace)
	objs := make([]kind.Object, 0, snapshot.Len(prefix))
	snapshot.Ascend(prefix, "", func(entry *cache.Entry) bool {
		var obj kind.Object
		if obj, err = entry.Object(); err != nil {
			return false
		}
		objs = append(objs, obj)
		return true
	})
	return objs, err
}

// Create implements kind.Client.
func (c kindClient) Create(ctx context.Context, gr schema.GroupResource, obj kind.Object) (kind.Object, error) {
	res, err := c.acquire(gr)
	if err != nil {
		return nil, err
	}
	defer res.release()
	w := c.s.ownWrite(ctx, res, obj.GetNamespace(), obj.GetName())
	if res.kind.Default != nil {
		res.kind.Default(obj)
	}
	made, err := w.create(obj, createOptions(nil, "", ""))
	if err != nil {
		return nil, err
	}
	return made.entry.Object()
}

// Update implements kind.Client.
func (c kindClient) Update(ctx context.Context, gr schema.GroupResource, namespace, name string, alter func(obj kind.Object) error) (kind.Object, error) {
	res, err := c.acquire(gr)
	if err != nil {
		return nil, err
	}
	defer res.release()
	w := c.s.ownWrite(ctx, res, namespace, name)
	done, err := w.change(&change{internal: true, next: func(live kind.Object) (kind.Object, error) {
		obj := live.DeepCopyObject().(kind.Object)
		return obj, alter(obj)
	}})
	if err != nil {
		return nil, err
	}
	if done.entry == nil {
		return done.obj, nil
	}
	return done.entry.Object()
}

// Delete implements kind.Client.
func (c kindClient) Delete(ctx context.Context, gr schema.GroupResource, namespace, name string, options *metav1.DeleteOptions) error {
	res, err := c.acquire(gr)
	if err != nil {
		return err
	}
	defer res.release()
	if options == nil {
		options = &metav1.DeleteOptions{}
	}
	w := c.s.ownWrite(ctx, res, namespace, name)
	w.kindRequest.DryRun = isDryRun(options.DryRun)
	_, err = w.delete(options)
	return err
}
