package core

import (
	"context"
	"log/slog"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"skiff/internal/kind"
)

// Allocation of service addresses and node ports. Invariants: an address belongs to the service that its IPAddress object
// names, and a node port is allocated when its bit in the RangeAllocation is set. Both are stored before the service is,
// so that no two API servers allocate the same one. A failed write is undone at once; Repair finds what a crash leaves
// behind.

// allocateNewService allocates the addresses and ports of a new service.
func allocateNewService(ctx context.Context, client kind.Client, req *kind.Request, obj *corev1.Service) (func(), error) {
	if obj.Spec.ClusterIP != "" && len(obj.Spec.ClusterIPs) == 0 {
		obj.Spec.ClusterIPs = []string{obj.Spec.ClusterIP}
	}
	return allocate(ctx, client, req, obj, nil)
}

// allocateServiceChange keeps what a service has and allocates what the change needs. What the service no longer needs is
// released only after the change is stored.
func allocateServiceChange(ctx context.Context, client kind.Client, req *kind.Request, obj, old *corev1.Service) (func(), error) {
	keepAllocated(obj, old)
	followClusterIP(obj, old)
	return allocate(ctx, client, req, obj, old)
}

func allocate(ctx context.Context, client kind.Client, req *kind.Request, obj, old *corev1.Service) (func(), error) {
	a := &allocation{ctx: ctx, client: client, dryRun: req.DryRun, service: obj}
	err := a.addresses(old)
	if err == nil {
		err = a.ports(old)
	}
	if err != nil {
		a.undo()
		return nil, err
	}
	return a.undo, nil
}

// allocation is what one write of a service allocates.
type allocation struct {
	ctx     context.Context
	client  kind.Client
	dryRun  bool
	service *corev1.Service

	takenIPs   []string
	takenPorts []int32
}

// undo releases everything, also when the request has been cancelled.
func (a *allocation) undo() {
	release(context.WithoutCancel(a.ctx), a.client, a.service, a.takenIPs, a.takenPorts)
	a.takenIPs, a.takenPorts = nil, nil
}

func releaseServiceChange(ctx context.Context, client kind.Client, obj, old *corev1.Service) {
	ips, ports := sets.New(heldIPs(old)...), heldPorts(old)
	release(ctx, client, old, sets.List(ips.Difference(sets.New(heldIPs(obj)...))), sets.List(ports.Difference(heldPorts(obj))))
}

func releaseService(ctx context.Context, client kind.Client, obj *corev1.Service) {
	release(ctx, client, obj, heldIPs(obj), sets.List(heldPorts(obj)))
}

// release logs failures: the service is already deleted or changed, and Repair releases the rest later.
func release(ctx context.Context, client kind.Client, owner *corev1.Service, ips []string, ports []int32) {
	for _, ip := range ips {
		if err := releaseIP(ctx, client, owner, ip); err != nil {
			slog.WarnContext(ctx, "failed to release cluster IP", "namespace", owner.Namespace, "service", owner.Name, "ip", ip, "error", err)
		}
	}
	if len(ports) == 0 {
		return
	}
	if err := releasePorts(ctx, client, ports); err != nil {
		slog.WarnContext(ctx, "failed to release node ports", "namespace", owner.Namespace, "service", owner.Name, "ports", ports, "error", err)
	}
}

func heldIPs(obj *corev1.Service) []string {
	if !needsClusterIP(obj) || isHeadless(obj) {
		return nil
	}
	return obj.Spec.ClusterIPs
}

func heldPorts(obj *corev1.Service) sets.Set[int32] {
	ports := nodePorts(obj)
	if needsHealthCheckPort(obj) && obj.Spec.HealthCheckNodePort > 0 {
		ports.Insert(obj.Spec.HealthCheckNodePort)
	}
	return ports
}

// keepAllocated copies from the stored service what the client left out of a full update.
func keepAllocated(obj, old *corev1.Service) {
	if needsClusterIP(old) && needsClusterIP(obj) {
		if obj.Spec.ClusterIP == "" {
			obj.Spec.ClusterIP = old.Spec.ClusterIP
		}
		if len(obj.Spec.ClusterIPs) == 0 {
			obj.Spec.ClusterIPs = slices.Clone(old.Spec.ClusterIPs)
		}
	}
	if usesNodePorts(old) && usesNodePorts(obj) {
		used := nodePorts(old).Intersection(nodePorts(obj))
		byName := map[string]int32{}
		for _, port := range old.Spec.Ports {
			byName[port.Name] = port.NodePort
		}
		for i := range obj.Spec.Ports {
			port := &obj.Spec.Ports[i]
			if before := byName[port.Name]; port.NodePort == 0 && !used.Has(before) {
				port.NodePort = before
			}
		}
	}
	if needsHealthCheckPort(old) && needsHealthCheckPort(obj) && obj.Spec.HealthCheckNodePort == 0 {
		obj.Spec.HealthCheckNodePort = old.Spec.HealthCheckNodePort
	}
}

func usesNodePorts(obj *corev1.Service) bool {
	allocate := obj.Spec.AllocateLoadBalancerNodePorts
	return obj.Spec.Type == corev1.ServiceTypeNodePort || obj.Spec.Type == corev1.ServiceTypeLoadBalancer && (allocate == nil || *allocate)
}

// followClusterIP updates clusterIPs for a client that sets only clusterIP.
func followClusterIP(obj, old *corev1.Service) {
	spec, before := &obj.Spec, &old.Spec
	if len(spec.ClusterIPs) == 0 && len(before.ClusterIPs) > 0 && spec.ClusterIP == before.ClusterIP {
		spec.ClusterIPs = slices.Clone(before.ClusterIPs)
	}
	if spec.ClusterIP == before.ClusterIP || !slices.Equal(spec.ClusterIPs, before.ClusterIPs) {
		return
	}
	if spec.ClusterIP == "" {
		spec.ClusterIPs = nil
	} else {
		spec.ClusterIPs = []string{spec.ClusterIP}
	}
}

// invalidService is the error for a request that cannot be fulfilled.
func invalidService(obj *corev1.Service, errs ...*field.Error) error {
	return kind.NewInvalid(corev1.SchemeGroupVersion.WithKind("Service").GroupKind(), obj.Name, errs)
}
