package admission

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"slices"

	certificatesv1 "k8s.io/api/certificates/v1"

	"skiff/internal/apiserver/authn"
)

// certificateSubjectRestriction rejects CertificateSigningRequests for client certificates of the group system:masters, which
// bypasses authorization.
type certificateSubjectRestriction struct{}

func (certificateSubjectRestriction) Name() string { return "CertificateSubjectRestriction" }

func (certificateSubjectRestriction) Handles(a *Attributes) bool {
	return a.Operation == Create && a.isPlain(signingRequests)
}

func (certificateSubjectRestriction) Validate(_ context.Context, a *Attributes) error {
	request, err := objectOf[*certificatesv1.CertificateSigningRequest](a)
	if err != nil {
		return Forbidden(a, err)
	}
	if request.Spec.SignerName != certificatesv1.KubeAPIServerClientSignerName {
		return nil
	}
	parsed, err := parseRequest(request.Spec.Request)
	if err != nil {
		return forbid(a, "failed to parse CSR: %v", err)
	}
	if slices.Contains(parsed.Subject.Organization, authn.GroupMasters) {
		return forbid(a, "use of %s signer with system:masters group is not allowed", certificatesv1.KubeAPIServerClientSignerName)
	}
	return nil
}

func parseRequest(text []byte) (*x509.CertificateRequest, error) {
	block, _ := pem.Decode(text)
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		return nil, errors.New("PEM block type must be CERTIFICATE REQUEST")
	}
	return x509.ParseCertificateRequest(block.Bytes)
}
