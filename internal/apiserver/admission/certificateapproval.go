package admission

import (
	"context"

	certificatesv1 "k8s.io/api/certificates/v1"

	"skiff/internal/apiserver/authn"
	"skiff/internal/apiserver/authz"
)

// signers authorizes verbs on signers.
type signers struct{ authorizer authz.Authorizer }

func (s signers) allow(ctx context.Context, user authn.User, verb, signer string) bool {
	return authz.AuthorizedForSigner(ctx, s.authorizer, user, verb, signer)
}

// certificateApproval requires the verb approve on the signer for approving a CertificateSigningRequest.
type certificateApproval struct{ signers }

func (certificateApproval) Name() string { return "CertificateApproval" }

func (certificateApproval) Handles(a *Attributes) bool {
	return a.Operation == Update && a.Subresource == "approval" && a.is(signingRequests)
}

func (p certificateApproval) Validate(ctx context.Context, a *Attributes) error {
	// The stored signer is authorized, not that of the update.
	request, err := oldOf[*certificatesv1.CertificateSigningRequest](a)
	if err != nil {
		return Forbidden(a, err)
	}
	if !p.allow(ctx, a.User, "approve", request.Spec.SignerName) {
		return forbid(a, "user not permitted to approve requests with signerName %q", request.Spec.SignerName)
	}
	return nil
}
