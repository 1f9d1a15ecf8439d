package admission

import (
	"context"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"

	"skiff/internal/kind"
)

// clusterTrustBundleAttest requires the verb attest on the signer for writing its ClusterTrustBundles.
type clusterTrustBundleAttest struct{ signers }

func (clusterTrustBundleAttest) Name() string { return "ClusterTrustBundleAttest" }

func (clusterTrustBundleAttest) Handles(a *Attributes) bool { return a.changes() && a.is(trustBundles) }

func (p clusterTrustBundleAttest) Validate(ctx context.Context, a *Attributes) error {
	bundle, err := objectOf[*certificatesv1.ClusterTrustBundle](a)
	if err != nil {
		return Forbidden(a, err)
	}
	if bundle.Spec.SignerName == "" || a.Operation == Update && onlyOwnershipChanges(a.Object, a.Old) {
		return nil
	}
	if !p.allow(ctx, a.User, "attest", bundle.Spec.SignerName) {
		return forbid(a, "user not permitted to attest for signerName %q", bundle.Spec.SignerName)
	}
	return nil
}

// onlyOwnershipChanges reports whether an update changes only owner references and finalizers, as the garbage collector does.
func onlyOwnershipChanges(obj, old runtime.Object) bool {
	copied, ok := obj.DeepCopyObject().(kind.Object)
	before, wasObject := old.(kind.Object)
	if !ok || !wasObject {
		return false
	}
	copied.SetOwnerReferences(before.GetOwnerReferences())
	copied.SetFinalizers(before.GetFinalizers())
	copied.SetManagedFields(before.GetManagedFields())
	return equality.Semantic.DeepEqual(copied, before)
}
