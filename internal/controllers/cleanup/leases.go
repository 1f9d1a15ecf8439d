package cleanup

import (
	"context"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/client"
	"skiff/internal/controller"
)

const (
	leaseCheckPeriod  = time.Hour
	serverLeaseLabel  = "apiserver.kubernetes.io/identity"
	serverLeaseHolder = "kube-apiserver"
)

// ServerLeases deletes the expired leases of API servers. Each start of a server creates a new one.
var ServerLeases = controller.Definition{
	Name: "apiserver-lease-cleaner-controller", Queue: "apiserver_lease_cleaner",
	New: func(s *controller.Setup) (controller.Syncer, error) {
		leases := client.InformerFor[*coordinationv1.Lease](s.Informers)
		return periodically(s, leaseCheckPeriod, func(ctx context.Context, key controller.Key) error {
			now := time.Now()
			return s.Apply(ctx, key, deletingAll(leases, func(lease *coordinationv1.Lease) bool { return serverLeaseExpired(lease, now) }))
		}), nil
	},
}

func serverLeaseExpired(lease *coordinationv1.Lease, now time.Time) bool {
	if lease.Namespace != metav1.NamespaceSystem || lease.Labels[serverLeaseLabel] != serverLeaseHolder {
		return false
	}
	renewed, seconds := lease.Spec.RenewTime, lease.Spec.LeaseDurationSeconds
	return renewed == nil || seconds == nil || renewed.Add(time.Duration(*seconds)*time.Second).Before(now)
}
