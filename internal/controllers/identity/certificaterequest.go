package identity

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
)

// Validation of requests for the signers of Kubernetes.

const (
	legacyUnknownSigner = "kubernetes.io/legacy-unknown"
	nodesGroup          = "system:nodes"
	nodeUserPrefix      = "system:node:"
)

// parseRequest parses the X.509 request of a CertificateSigningRequest.
func parseRequest(request *certificatesv1.CertificateSigningRequest) (*x509.CertificateRequest, error) {
	block, _ := pem.Decode(request.Spec.Request)
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		return nil, fmt.Errorf("unable to parse csr %q: PEM block type must be CERTIFICATE REQUEST", request.Name)
	}
	parsed, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("unable to parse csr %q: %w", request.Name, err)
	}
	return parsed, nil
}

// hasCondition reports whether a request has a condition with status True. For approvals and denials any status counts.
func hasCondition(request *certificatesv1.CertificateSigningRequest, condition certificatesv1.RequestConditionType) bool {
	return slices.ContainsFunc(request.Status.Conditions, func(c certificatesv1.CertificateSigningRequestCondition) bool {
		return c.Type == condition && (condition != certificatesv1.CertificateFailed || c.Status == corev1.ConditionTrue || c.Status == "")
	})
}

// validateForSigner returns an error if the signer must not sign the request.
func validateForSigner(signer string, request *x509.CertificateRequest, usages []certificatesv1.KeyUsage) error {
	switch signer {
	case certificatesv1.KubeletServingSignerName:
		return kubeletServing(request, usages)
	case certificatesv1.KubeAPIServerClientKubeletSignerName:
		return kubeletClient(request, usages)
	case certificatesv1.KubeAPIServerClientSignerName:
		return apiServerClient(usages)
	case legacyUnknownSigner:
		return nil
	}
	return fmt.Errorf("unrecognized signerName: %q", signer)
}

// kubeletClient validates a request for a kubelet's client certificate.
func kubeletClient(request *x509.CertificateRequest, usages []certificatesv1.KeyUsage) error {
	switch {
	case !slices.Equal(request.Subject.Organization, []string{nodesGroup}):
		return errNotNodes
	case len(request.DNSNames) > 0:
		return errors.New("DNS subjectAltNames are not allowed")
	case len(request.EmailAddresses) > 0:
		return errEmail
	case len(request.IPAddresses) > 0:
		return errors.New("IP subjectAltNames are not allowed")
	case len(request.URIs) > 0:
		return errURI
	case !strings.HasPrefix(request.Subject.CommonName, nodeUserPrefix):
		return errNotNode
	}
	return exactUsages(usages, certificatesv1.UsageClientAuth)
}

// kubeletServing validates a request for a kubelet's serving certificate.
func kubeletServing(request *x509.CertificateRequest, usages []certificatesv1.KeyUsage) error {
	switch {
	case !slices.Equal(request.Subject.Organization, []string{nodesGroup}):
		return errNotNodes
	case len(request.DNSNames) == 0 && len(request.IPAddresses) == 0:
		return errors.New("DNS or IP subjectAltName is required")
	case len(request.EmailAddresses) > 0:
		return errEmail
	case len(request.URIs) > 0:
		return errURI
	}
	if err := exactUsages(usages, certificatesv1.UsageServerAuth); err != nil {
		return err
	}
	if !strings.HasPrefix(request.Subject.CommonName, nodeUserPrefix) {
		return errNotNode
	}
	return nil
}

var (
	errNotNodes = errors.New("subject organization is not system:nodes")
	errNotNode  = errors.New("subject common name does not begin with system:node:")
	errEmail    = errors.New("Email subjectAltNames are not allowed") //nolint:staticcheck // upstream's message
	errURI      = errors.New("URI subjectAltNames are not allowed")
)

// exactUsages requires digital signature and the purpose; key encipherment is optional, as only RSA keys need it.
func exactUsages(usages []certificatesv1.KeyUsage, purpose certificatesv1.KeyUsage) error {
	wanted := []certificatesv1.KeyUsage{purpose, certificatesv1.UsageDigitalSignature, certificatesv1.UsageKeyEncipherment}
	slices.Sort(wanted)
	got := slices.Compact(slices.Sorted(slices.Values(usages)))
	without := slices.DeleteFunc(slices.Clone(wanted), func(u certificatesv1.KeyUsage) bool { return u == certificatesv1.UsageKeyEncipherment })
	if slices.Equal(got, wanted) || slices.Equal(got, without) {
		return nil
	}
	return fmt.Errorf("usages did not match %v", wanted)
}

func apiServerClient(usages []certificatesv1.KeyUsage) error {
	for _, usage := range usages {
		switch usage {
		case certificatesv1.UsageDigitalSignature, certificatesv1.UsageKeyEncipherment, certificatesv1.UsageClientAuth:
		default:
			return fmt.Errorf("invalid usage for client certificate: %s", usage)
		}
	}
	if !slices.Contains(usages, certificatesv1.UsageClientAuth) {
		return fmt.Errorf("missing required usage for client certificate: %s", certificatesv1.UsageClientAuth)
	}
	return nil
}

// Key usages of the API and of X.509.
var (
	keyUsages = map[certificatesv1.KeyUsage]x509.KeyUsage{
		certificatesv1.UsageSigning:           x509.KeyUsageDigitalSignature,
		certificatesv1.UsageDigitalSignature:  x509.KeyUsageDigitalSignature,
		certificatesv1.UsageContentCommitment: x509.KeyUsageContentCommitment,
		certificatesv1.UsageKeyEncipherment:   x509.KeyUsageKeyEncipherment,
		certificatesv1.UsageKeyAgreement:      x509.KeyUsageKeyAgreement,
		certificatesv1.UsageDataEncipherment:  x509.KeyUsageDataEncipherment,
		certificatesv1.UsageCertSign:          x509.KeyUsageCertSign,
		certificatesv1.UsageCRLSign:           x509.KeyUsageCRLSign,
		certificatesv1.UsageEncipherOnly:      x509.KeyUsageEncipherOnly,
		certificatesv1.UsageDecipherOnly:      x509.KeyUsageDecipherOnly,
	}
	extendedKeyUsages = map[certificatesv1.KeyUsage]x509.ExtKeyUsage{
		certificatesv1.UsageAny:             x509.ExtKeyUsageAny,
		certificatesv1.UsageServerAuth:      x509.ExtKeyUsageServerAuth,
		certificatesv1.UsageClientAuth:      x509.ExtKeyUsageClientAuth,
		certificatesv1.UsageCodeSigning:     x509.ExtKeyUsageCodeSigning,
		certificatesv1.UsageEmailProtection: x509.ExtKeyUsageEmailProtection,
		certificatesv1.UsageSMIME:           x509.ExtKeyUsageEmailProtection,
		certificatesv1.UsageIPsecEndSystem:  x509.ExtKeyUsageIPSECEndSystem,
		certificatesv1.UsageIPsecTunnel:     x509.ExtKeyUsageIPSECTunnel,
		certificatesv1.UsageIPsecUser:       x509.ExtKeyUsageIPSECUser,
		certificatesv1.UsageTimestamping:    x509.ExtKeyUsageTimeStamping,
		certificatesv1.UsageOCSPSigning:     x509.ExtKeyUsageOCSPSigning,
		certificatesv1.UsageMicrosoftSGC:    x509.ExtKeyUsageMicrosoftServerGatedCrypto,
		certificatesv1.UsageNetscapeSGC:     x509.ExtKeyUsageNetscapeServerGatedCrypto,
	}
)

// translateUsages converts usages to X.509.
func translateUsages(usages []certificatesv1.KeyUsage) (x509.KeyUsage, []x509.ExtKeyUsage, error) {
	var plain x509.KeyUsage
	var extended []x509.ExtKeyUsage
	var unknown []certificatesv1.KeyUsage
	for _, usage := range usages {
		if u, ok := keyUsages[usage]; ok {
			plain |= u
		} else if u, ok := extendedKeyUsages[usage]; ok {
			extended = append(extended, u)
		} else {
			unknown = append(unknown, usage)
		}
	}
	if len(unknown) > 0 {
		return 0, nil, fmt.Errorf("unrecognized usage values: %q", unknown)
	}
	slices.Sort(extended)
	return plain, slices.Compact(extended), nil
}
