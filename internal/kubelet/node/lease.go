package node

import (
	"context"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/client"
)

// renewLease renews the node's lease every quarter of its duration.
func (n *Node) renewLease(ctx context.Context) {
	period := time.Duration(n.settings.LeaseDurationSeconds) * time.Second / 4
	var last *coordinationv1.Lease
	for wait := time.Duration(0); ; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		wait = period
		renewed, err := n.renew(ctx, last)
		if err != nil {
			if ctx.Err() == nil {
				n.Log.Warn("failed to renew node lease", "error", err)
			}
			// Retry soon, reading the lease from the server again.
			wait = min(period, time.Second)
		}
		last = renewed
	}
}

// renew updates the lease. If last is nil it starts from the server's, or creates one.
func (n *Node) renew(ctx context.Context, last *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	leases := client.For[*coordinationv1.Lease](n.Client)
	ctx, cancel := context.WithTimeout(ctx, time.Duration(n.settings.LeaseDurationSeconds)*time.Second/4)
	defer cancel()
	if last == nil {
		var err error
		if last, err = leases.Get(ctx, corev1.NamespaceNodeLease, n.settings.Name); err != nil && !apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("read lease: %w", err)
		} else if err != nil {
			last = nil
		}
	}
	desired := leaseOf(last, n.settings, n.Node(), time.Now())
	if last == nil {
		created, err := leases.Create(ctx, desired, client.WriteOptions{})
		if err != nil {
			return nil, fmt.Errorf("create lease: %w", err)
		}
		return created, nil
	}
	renewed, err := leases.Update(ctx, desired, client.WriteOptions{})
	if err != nil {
		return nil, fmt.Errorf("renew lease: %w", err)
	}
	return renewed, nil
}

// leaseOf returns the renewed lease. The Node object owns it, so that it is deleted with the node.
func leaseOf(last *coordinationv1.Lease, s Settings, node *corev1.Node, now time.Time) *coordinationv1.Lease {
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: s.Name}}
	if last != nil {
		lease = last.DeepCopy()
	}
	lease.Spec.HolderIdentity, lease.Spec.LeaseDurationSeconds = &s.Name, &s.LeaseDurationSeconds
	lease.Spec.RenewTime = &metav1.MicroTime{Time: now}
	if len(lease.OwnerReferences) == 0 && node.UID != "" {
		lease.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}}
	}
	return lease
}
