package identity

import (
	"context"
	"crypto"
	"crypto/x509"
	"fmt"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/client"
	"skiff/internal/controller"
	"skiff/internal/kind"
)

const (
	minCertificateTTL = 10 * time.Minute
	// backdating allows for clock skew. Certificates with a short TTL are not shortened by it.
	backdating = 5 * time.Minute
	shortTTL   = 8 * time.Hour
	// DefaultCertificateTTL is the default maximum lifetime of certificates.
	DefaultCertificateTTL = 365 * 24 * time.Hour
)

// CA signs certificates. pki.CA implements it.
type CA interface {
	// Sign returns a PEM certificate of the template and the key, which expires no later than the CA.
	Sign(template x509.Certificate, key crypto.PublicKey, now time.Time) ([]byte, error)
}

// SigningCAs are the CAs by signer name. Requests for a signer whose CA is nil are ignored.
type SigningCAs struct {
	KubeletServing, KubeletClient, APIServerClient, LegacyUnknown CA
	// MaxTTL is the maximum lifetime of certificates; requests may ask for less. Zero: DefaultCertificateTTL.
	MaxTTL time.Duration
}

func (s SigningCAs) forSigner(signer string) CA {
	switch signer {
	case certificatesv1.KubeletServingSignerName:
		return s.KubeletServing
	case certificatesv1.KubeAPIServerClientKubeletSignerName:
		return s.KubeletClient
	case certificatesv1.KubeAPIServerClientSignerName:
		return s.APIServerClient
	case legacyUnknownSigner:
		return s.LegacyUnknown
	}
	return nil
}

// CertificateSigning signs approved requests for the signers of Kubernetes.
func CertificateSigning(cas SigningCAs) controller.Definition {
	if cas.MaxTTL == 0 {
		cas.MaxTTL = DefaultCertificateTTL
	}
	return controller.Definition{
		Name: "certificatesigningrequest-signing-controller", Aliases: []string{"csrsigning"}, Queue: "certificate-csrsigning", Workers: 5,
		New: func(s *controller.Setup) (controller.Syncer, error) {
			if err := controller.WatchPrimary[*certificatesv1.CertificateSigningRequest](s); err != nil {
				return nil, err
			}
			requests := client.InformerFor[*certificatesv1.CertificateSigningRequest](s.Informers)
			return controller.SyncFunc(func(ctx context.Context, key controller.Key) error {
				request, ok := requests.Get("", key.Name)
				if !ok {
					return nil
				}
				signed, err := cas.signRequest(request, time.Now())
				if err != nil || signed == nil {
					return err
				}
				return s.Apply(ctx, key, controller.Plan{Status: func(controller.ApplyResult) kind.Object { return signed }})
			}), nil
		},
	}
}

// signRequest returns the request with its certificate or with a Failed condition; nil if there is nothing to do.
func (s SigningCAs) signRequest(request *certificatesv1.CertificateSigningRequest, now time.Time) (*certificatesv1.CertificateSigningRequest, error) {
	authority := s.forSigner(request.Spec.SignerName)
	if authority == nil || len(request.Status.Certificate) > 0 || !hasCondition(request, certificatesv1.CertificateApproved) ||
		hasCondition(request, certificatesv1.CertificateDenied) || hasCondition(request, certificatesv1.CertificateFailed) {
		return nil, nil
	}
	parsed, err := parseRequest(request)
	if err != nil {
		return nil, err
	}
	next := request.DeepCopy()
	if err := validateForSigner(request.Spec.SignerName, parsed, request.Spec.Usages); err != nil {
		next.Status.Conditions = append(next.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
			Type: certificatesv1.CertificateFailed, Status: corev1.ConditionTrue, Reason: "SignerValidationFailure", Message: err.Error(),
			LastUpdateTime: metav1.NewTime(now),
		})
		return next, nil
	}
	if next.Status.Certificate, err = s.sign(authority, parsed, &request.Spec, now); err != nil {
		return nil, fmt.Errorf("error auto signing csr: %w", err)
	}
	return next, nil
}

func (s SigningCAs) sign(authority CA, parsed *x509.CertificateRequest, spec *certificatesv1.CertificateSigningRequestSpec, now time.Time) ([]byte, error) {
	if err := parsed.CheckSignature(); err != nil {
		return nil, fmt.Errorf("unable to verify certificate request signature: %w", err)
	}
	plain, extended, err := translateUsages(spec.Usages)
	if err != nil {
		return nil, err
	}
	life := s.ttl(spec.ExpirationSeconds)
	end := now.Add(life - backdating)
	if life < shortTTL {
		end = now.Add(life)
	}
	return authority.Sign(x509.Certificate{
		Subject: parsed.Subject, DNSNames: parsed.DNSNames, IPAddresses: parsed.IPAddresses, EmailAddresses: parsed.EmailAddresses, URIs: parsed.URIs,
		KeyUsage: plain, ExtKeyUsage: extended, BasicConstraintsValid: true,
		NotBefore: now.Add(-backdating), NotAfter: end,
	}, parsed.PublicKey, now)
}

func (s SigningCAs) ttl(requested *int32) time.Duration {
	if requested == nil {
		return s.MaxTTL
	}
	return min(max(time.Duration(*requested)*time.Second, minCertificateTTL), s.MaxTTL)
}
