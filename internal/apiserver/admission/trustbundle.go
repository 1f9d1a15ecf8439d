package admission

import (
	"context"

	certificatesv1 "k8s.io/api/certificates/v1"

	"skiff/internal/apiserver/authz"
)

// clusterTrustBundleAttest requires the verb attest on the signer for writing its ClusterTrustBundles.
type clusterTrustBundleAttest struct{ signers }

func (clusterTrustBundleAttest) Name() string { return "ClusterTrustBundleAttest" }

func (clusterTrustBundleAttest) Handles(a *Attributes) bool { return a.changes() && a.is(trustBundles) }

func (r clusterTrustBundleAttest) Validate(ctx context.Context, a *Attributes) error {
	bundle, err := objectOf[*certificatesv1.ClusterTrustBundle](a)
	if err != nil {
		return forbidden(a, err)
	}
	old, _ := a.Old.(*certificatesv1.ClusterTrustBundle)
	if bundle.Spec.SignerName == "" || authz.OnlyOwnershipChanges(bundle, old) {
		return nil
	}
	if !r.allow(ctx, a.User, "attest", bundle.Spec.SignerName) {
		return forbid(a, "user not permitted to attest for signerName %q", bundle.Spec.SignerName)
	}
	return nil
}
