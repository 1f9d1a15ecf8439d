package core

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net/netip"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/kind"
)

const (
	// leakedAfter is the minimum age of an address without a service before it is released.
	leakedAfter = time.Minute
	// leakedPasses is in how many passes a port must be found without a service before it is released: a server allocates the
	// port before it stores the service.
	leakedPasses = 3
)

// Repair releases what crashes leave behind: addresses and ports without a service, and allocates the addresses and ports
// of services that are not recorded. The server runs it at start and every few minutes. It is not for concurrent use.
type Repair struct {
	leakedPorts map[int32]int // ports without a service, and in how many passes they were found
}

// repairInterval is the time between two passes.
const repairInterval = 3 * time.Minute

// RunRepair repairs the allocations of services at the start and every few minutes until ctx is done. It calls onFirst once, after the first pass. That
// pass may have failed: a server without space in its store is ready to be read.
func RunRepair(ctx context.Context, client kind.Client, portRange string, onFirst func(), log *slog.Logger) {
	var repair Repair
	onFirst = sync.OnceFunc(onFirst)
	ticker := time.NewTicker(repairInterval)
	defer ticker.Stop()
	for {
		if err := repair.Run(ctx, client, portRange, time.Now()); err != nil && ctx.Err() == nil {
			log.Warn("failed to repair the allocations of service IPs and node ports", "error", err)
		}
		onFirst()
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// Run makes one pass. portRange is the configured range of node ports, such as 30000-32767; an allocation with another
// range is changed to it.
func (r *Repair) Run(ctx context.Context, client kind.Client, portRange string, now time.Time) error {
	if portRange == "" {
		portRange = DefaultNodePortRange
	}
	return errors.Join(r.repairPorts(ctx, client, portRange), repairAddresses(ctx, client, now))
}

func (r *Repair) repairPorts(ctx context.Context, client kind.Client, portRange string) error {
	if err := createPortMap(ctx, client, portRange); err != nil {
		return err
	}
	// The map is read before the services, so that a port allocated in between is not regarded as unused.
	stored, err := readPortMap(ctx, client)
	if err != nil {
		return err
	}
	used, err := portsOfServices(ctx, client, portRange)
	if err != nil {
		return err
	}
	leakedPorts := map[int32]int{}
	for i := range stored.ports.Size {
		if port := int32(stored.ports.Base + i); stored.has(port) && !used.has(port) {
			leakedPorts[port] = r.leakedPorts[port] + 1
		}
	}
	r.leakedPorts = leakedPorts
	return changePorts(ctx, client, func(m *portMap) error {
		next := &portMap{ports: used.ports, taken: new(big.Int).Set(used.taken)}
		for i := range m.ports.Size {
			port := int32(m.ports.Base + i)
			if m.has(port) && leakedPorts[port] < leakedPasses {
				next.set(port, true)
			}
		}
		if m.ports == next.ports && m.taken.Cmp(next.taken) == 0 {
			return errNoChange
		}
		*m = *next
		return nil
	})
}

func repairAddresses(ctx context.Context, client kind.Client, now time.Time) error {
	claims, err := client.List(ctx, ipAddresses, "")
	if err != nil {
		return fmt.Errorf("list IP addresses: %w", err)
	}
	objs, err := client.List(ctx, services, "")
	if err != nil {
		return fmt.Errorf("list services: %w", err)
	}
	owners := map[string]*corev1.Service{}
	for _, obj := range objs {
		service := obj.(*corev1.Service)
		for _, text := range heldIPs(service) {
			if ip := parseIP(text); ip.IsValid() {
				owners[ip.String()] = service
			}
		}
	}
	var errs []error
	for _, obj := range claims {
		claim := obj.(*networkingv1.IPAddress)
		owner := owners[claim.Name]
		delete(owners, claim.Name)
		if owner != nil && belongsTo(claim, owner) || claim.Labels[networkingv1.LabelManagedBy] != ipAllocator || now.Sub(claim.CreationTimestamp.Time) < leakedAfter {
			continue
		}
		slog.WarnContext(ctx, "deleting IP address without service", "ip", claim.Name)
		uid := claim.UID
		if err := client.Delete(ctx, ipAddresses, "", claim.Name, &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}}); err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("delete IP address %s: %w", claim.Name, err))
			continue
		}
		if owner != nil {
			owners[claim.Name] = owner
		}
	}
	for name, owner := range owners {
		slog.WarnContext(ctx, "repairing unallocated cluster IP", "namespace", owner.Namespace, "service", owner.Name, "ip", name)
		if _, err := client.Create(ctx, ipAddresses, newIPAddress(netip.MustParseAddr(name), owner)); err != nil && !apierrors.IsAlreadyExists(err) {
			errs = append(errs, fmt.Errorf("create IP address %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

// belongsTo reports whether the IPAddress belongs to this service.
func belongsTo(claim *networkingv1.IPAddress, owner *corev1.Service) bool {
	ref := claim.Spec.ParentRef
	return ref != nil && ref.Group == "" && ref.Resource == "services" && ref.Namespace == owner.Namespace && ref.Name == owner.Name
}
