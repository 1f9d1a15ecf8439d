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

// renewLease says that the node is alive, four times as often as it has to.
func (n *Node) renewLease(ctx context.Context) {
	period := time.Duration(n.settings.LeaseSeconds) * time.Second / 4
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
				n.Log.Warn("lease of the node is not renewed", "error", err)
			}
			// Soon again, and from what the server has: a lease has little time.
			wait = min(period, time.Second)
		}
		last = renewed
	}
}

// renew writes the lease on from the last one written, or from the server's when there is none or it is old.
func (n *Node) renew(ctx context.Context, last *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	leases := client.For[*coordinationv1.Lease](n.Client)
	ctx, cancel := context.WithTimeout(ctx, time.Duration(n.settings.LeaseSeconds)*time.Second/4)
	defer cancel()
	if last == nil {
		var err error
		if last, err = leases.Get(ctx, corev1.NamespaceNodeLease, n.settings.Name); err != nil && !apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("read lease: %w", err)
		} else if err != nil {
			last = nil
		}
	}
	wanted := leaseOf(last, n.settings, n.Node(), time.Now())
	if last == nil {
		made, err := leases.Create(ctx, wanted, client.WriteOptions{})
		if err != nil {
			return nil, fmt.Errorf("make lease: %w", err)
		}
		return made, nil
	}
	renewed, err := leases.Update(ctx, wanted, client.WriteOptions{})
	if err != nil {
		return nil, fmt.Errorf("renew lease: %w", err)
	}
	return renewed, nil
}

// leaseOf is the lease renewed at a time. It belongs to the Node object, so that it goes with it.
func leaseOf(last *coordinationv1.Lease, s Settings, node *corev1.Node, now time.Time) *coordinationv1.Lease {
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: s.Name}}
	if last != nil {
		lease = last.DeepCopy()
	}
	lease.Spec.HolderIdentity, lease.Spec.LeaseDurationSeconds = &s.Name, &s.LeaseSeconds
	lease.Spec.RenewTime = &metav1.MicroTime{Time: now}
	if len(lease.OwnerReferences) == 0 && node.UID != "" {
		lease.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}}
	}
	return lease
}
