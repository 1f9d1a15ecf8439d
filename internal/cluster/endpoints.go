package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"

	"skiff/internal/store"
)

// How API servers record in the store that they run. Prefix, value and times are upstream's, so that upstream's servers can take part.
const (
	leasePrefix           = store.DefaultPrefix + "/masterleases/"
	leaseTTL              = 15 * time.Second
	leaseInterval         = 10 * time.Second
	leaseRetryInterval    = time.Second
	endpointRemoveTimeout = 5 * time.Second
)

// Endpoints maintains the endpoints of the service `kubernetes`: the API servers that run. Every server writes its address under a key that
// expires unless it is written again, and publishes the addresses that it finds.
type Endpoints struct {
	Store store.Store
	// Address is that of this server.
	Address netip.Addr
	// Publish makes the addresses, which are sorted, the endpoints of the service.
	Publish func(ctx context.Context, servers []netip.Addr) error
	Log     *slog.Logger
}

// Run records and publishes this server until shutdown is closed or ctx is done. Then it removes the server from the endpoints, so that clients do
// not connect to it any more.
func (e *Endpoints) Run(ctx context.Context, shutdown <-chan struct{}) error {
	for {
		wait := leaseInterval
		if err := e.sync(ctx); err != nil {
			if ctx.Err() != nil {
				return e.remove(context.WithoutCancel(ctx))
			}
			e.Log.Error("failed to publish the endpoints of the API servers", "error", err)
			wait = leaseRetryInterval
		}
		select {
		case <-time.After(wait):
		case <-shutdown:
			return e.remove(ctx)
		case <-ctx.Done():
			return e.remove(context.WithoutCancel(ctx))
		}
	}
}

// sync renews this server's key and publishes all servers.
func (e *Endpoints) sync(ctx context.Context) error {
	if err := e.renew(ctx); err != nil {
		return fmt.Errorf("renew the lease of this server: %w", err)
	}
	return e.publish(ctx)
}

func (e *Endpoints) publish(ctx context.Context) error {
	servers, err := e.servers(ctx)
	if err != nil {
		return fmt.Errorf("list the leases of the servers: %w", err)
	}
	if len(servers) == 0 {
		return nil // the last server leaves the endpoints as they are, as upstream's does
	}
	return e.Publish(ctx, servers)
}

func (e *Endpoints) key() string { return leasePrefix + e.Address.String() }

func (e *Endpoints) renew(ctx context.Context) error {
	value, err := encodeLease(e.Address)
	if err != nil {
		return err
	}
	_, err = e.Store.Create(ctx, e.key(), value, leaseTTL)
	if !errors.Is(err, store.ErrExists) {
		return err
	}
	found, err := e.Store.Get(ctx, e.key())
	if err != nil {
		return err
	}
	_, err = e.Store.Update(ctx, e.key(), value, leaseTTL, found.Modified)
	return err
}

// servers are the addresses of all servers that run.
func (e *Endpoints) servers(ctx context.Context) ([]netip.Addr, error) {
	found, _, _, err := e.Store.List(ctx, leasePrefix, "", 0, 0)
	if err != nil {
		return nil, err
	}
	var servers []netip.Addr
	for _, kv := range found {
		if address, err := netip.ParseAddr(strings.TrimPrefix(kv.Key, leasePrefix)); err == nil {
			servers = append(servers, address)
		}
	}
	slices.SortFunc(servers, netip.Addr.Compare)
	return servers, nil
}

// remove removes this server from the endpoints.
func (e *Endpoints) remove(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, endpointRemoveTimeout)
	defer cancel()
	found, err := e.Store.Get(ctx, e.key())
	if err == nil {
		_, err = e.Store.Delete(ctx, e.key(), found.Modified)
	}
	if err == nil || errors.Is(err, store.ErrNotFound) {
		err = e.publish(ctx)
	}
	if err != nil {
		// The key expires.
		e.Log.Warn("failed to remove this server from the endpoints of the API servers", "error", err)
	}
	return nil
}

// encodeLease encodes the value that upstream's servers read.
func encodeLease(address netip.Addr) ([]byte, error) {
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	var out bytes.Buffer
	err := protobuf.NewSerializer(scheme, scheme).Encode(&corev1.Endpoints{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Endpoints"},
		Subsets:  []corev1.EndpointSubset{{Addresses: []corev1.EndpointAddress{{IP: address.String()}}}},
	}, &out)
	return out.Bytes(), err
}
