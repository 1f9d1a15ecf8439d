package admission

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
)

// denyServiceExternalIPs rejects new external IPs of services: with them, a user who may write services could intercept traffic to
// any address (CVE-2020-8554). Existing ones may be kept or removed.
//
// Upstream disables this plugin by default for existing clusters that use external IPs. skiff enables it by default; --disable-admission-plugins=DenyServiceExternalIPs disables it.
type denyServiceExternalIPs struct{}

func (denyServiceExternalIPs) Name() string { return "DenyServiceExternalIPs" }

func (denyServiceExternalIPs) Handles(a *Attributes) bool { return a.changes() && a.isPlain(services) }

func (denyServiceExternalIPs) Validate(_ context.Context, a *Attributes) error {
	service, err := objectOf[*corev1.Service](a)
	if err != nil {
		return err
	}
	old := sets.New[string]()
	if service, ok := a.Old.(*corev1.Service); ok {
		old.Insert(service.Spec.ExternalIPs...)
	}
	for _, address := range service.Spec.ExternalIPs {
		if !old.Has(address) {
			return forbid(a, "Use of external IPs is denied by admission control") //nolint:staticcheck // clients know the text
		}
	}
	return nil
}
