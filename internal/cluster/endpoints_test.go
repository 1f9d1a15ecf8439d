package cluster

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"

	"skiff/internal/store"
	"skiff/internal/store/memory"
)

// published are the endpoints of the service, as the servers write them.
type published struct {
	mu      sync.Mutex
	servers []netip.Addr
	err     error
}

func (p *published) set(_ context.Context, servers []netip.Addr) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		return p.err
	}
	p.servers = slices.Clone(servers)
	return nil
}

func (p *published) expect(t *testing.T, when string, want ...string) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	var got []string
	for _, server := range p.servers {
		got = append(got, server.String())
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s: endpoints %v, want %v", when, got, want)
	}
}

// The endpoints are the servers that run: one that shuts down is removed at once, one that dies when its lease expires.
func TestEndpoints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.New()
		defer s.Close()
		var endpoints published
		var all sync.WaitGroup
		defer all.Wait()
		run := func(address string, shutdown <-chan struct{}, store store.Store) context.CancelFunc {
			ctx, cancel := context.WithCancel(t.Context())
			e := &Endpoints{Store: store, Address: netip.MustParseAddr(address), Publish: endpoints.set, Log: discardLog()}
			all.Go(func() {
				if err := e.Run(ctx, shutdown); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
			return cancel
		}
		shutdown := make(chan struct{})
		defer run("192.0.2.2", nil, s)()
		endpoints.expect(t, "one server", "192.0.2.2")
		defer run("192.0.2.1", shutdown, s)()
		endpoints.expect(t, "two servers", "192.0.2.1", "192.0.2.2")
		dying := &dyingStore{Store: s}
		defer run("192.0.2.3", nil, dying)()
		endpoints.expect(t, "three servers", "192.0.2.1", "192.0.2.2", "192.0.2.3")
		time.Sleep(time.Minute)
		endpoints.expect(t, "after a minute", "192.0.2.1", "192.0.2.2", "192.0.2.3")

		close(shutdown)
		synctest.Wait()
		endpoints.expect(t, "one has shut down", "192.0.2.2", "192.0.2.3")

		dying.die()
		time.Sleep(leaseTTL + 2*leaseInterval)
		synctest.Wait()
		endpoints.expect(t, "one has died", "192.0.2.2")
	})
}

// dyingStore fails when its server has died.
type dyingStore struct {
	store.Store
	mu   sync.Mutex
	dead bool
}

func (d *dyingStore) die() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.dead = true
}

func (d *dyingStore) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (store.Revision, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.dead {
		return 0, errors.New("dead")
	}
	return d.Store.Create(ctx, key, value, ttl)
}

func (d *dyingStore) Get(ctx context.Context, key string) (store.KeyValue, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.dead {
		return store.KeyValue{}, errors.New("dead")
	}
	return d.Store.Get(ctx, key)
}

// Upstream's servers read the address from the value.
func TestLeaseValue(t *testing.T) {
	data, err := encodeLease(netip.MustParseAddr("192.0.2.1"))
	if err != nil {
		t.Fatal(err)
	}
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	obj, _, err := protobuf.NewSerializer(scheme, scheme).Decode(data, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if e := obj.(*corev1.Endpoints); len(e.Subsets) != 1 || e.Subsets[0].Addresses[0].IP != "192.0.2.1" {
		t.Errorf("%+v", e)
	}
}
