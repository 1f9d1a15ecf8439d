package admission

import (
	"bytes"
	"context"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/api/equality"
)

// certificateSigning requires the verb sign on the signer for setting the certificate or conditions of a
// CertificateSigningRequest.
type certificateSigning struct{ signers }

func (certificateSigning) Name() string { return "CertificateSigning" }

func (certificateSigning) Handles(a *Attributes) bool {
	return a.Operation == Update && a.Subresource == "status" && a.is(signingRequests)
}

func (p certificateSigning) Validate(ctx context.Context, a *Attributes) error {
	old, err := oldOf[*certificatesv1.CertificateSigningRequest](a)
	if err != nil {
		return Forbidden(a, err)
	}
	request, err := objectOf[*certificatesv1.CertificateSigningRequest](a)
	if err != nil {
		return Forbidden(a, err)
	}
	if bytes.Equal(old.Status.Certificate, request.Status.Certificate) &&
		equality.Semantic.DeepEqual(old.Status.Conditions, request.Status.Conditions) {
		return nil
	}
	if !p.allow(ctx, a.User, "sign", old.Spec.SignerName) {
		return forbid(a, "user not permitted to sign requests with signerName %q", old.Spec.SignerName)
	}
	return nil
}
