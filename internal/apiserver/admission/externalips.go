package admission

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// denyServiceExternalIPs refuses new external addresses of services: whoever may write services could use them to take
// over traffic to any address (CVE-2020-8554). Addresses that are there may stay or go.
//
// Upstream leaves this plugin off, for the sake of clusters that relied on such addresses before it existed. skiff has no
// such clusters and turns it ON by default; --disable-admission-plugins=DenyServiceExternalIPs turns it off.
type denyServiceExternalIPs struct{}

func (denyServiceExternalIPs) Name() string { return "DenyServiceExternalIPs" }

func (denyServiceExternalIPs) Handles(a *Attributes) bool { return a.changes() && a.isPlain(services) }

func (denyServiceExternalIPs) Validate(_ context.Context, a *Attributes) error {
	service, err := objectOf[*corev1.Service](a)
	if err != nil {
		return err
	}
	var had []string
	if old, ok := a.Old.(*corev1.Service); ok {
		had = old.Spec.ExternalIPs
	}
	for _, address := range service.Spec.ExternalIPs {
		if !slices.Contains(had, address) {
			return forbid(a, "Use of external IPs is denied by admission control") //nolint:staticcheck // clients know the text
		}
	}
	return nil
}
