package cleanup

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/client"
	"skiff/internal/controller"
)

// How long CertificateSigningRequests are kept: an hour after they were decided, a day if they are pending. PodCertificateRequests
// are decided within minutes or never.
const (
	decidedTTL         = time.Hour
	pendingTTL         = 24 * time.Hour
	requestCheckPeriod = time.Hour

	podRequestTTL         = 15 * time.Minute
	podRequestCheckPeriod = 5 * time.Minute
)

// CertificateRequests deletes CertificateSigningRequests that are decided or abandoned.
var CertificateRequests = controller.Definition{
	Name: "certificatesigningrequest-cleaner-controller", Aliases: []string{"csrcleaner"}, Queue: "certificate-csrcleaner",
	New: func(s *controller.Setup) (controller.Syncer, error) {
		requests := client.InformerFor[*certificatesv1.CertificateSigningRequest](s.Informers)
		return periodically(s, requestCheckPeriod, func(ctx context.Context, key controller.Key) error {
			now := time.Now()
			return s.Apply(ctx, key, deletingAll(requests, func(r *certificatesv1.CertificateSigningRequest) bool { return requestExpired(r, now) }))
		}), nil
	},
}

func requestExpired(request *certificatesv1.CertificateSigningRequest, now time.Time) bool {
	older := func(t metav1.Time, ttl time.Duration) bool { return !t.IsZero() && now.Sub(t.Time) > ttl }
	issued := len(request.Status.Certificate) > 0
	if len(request.Status.Conditions) == 0 && older(request.CreationTimestamp, pendingTTL) {
		return true
	}
	for _, c := range request.Status.Conditions {
		ttl := decidedTTL
		switch c.Type {
		case certificatesv1.CertificateDenied, certificatesv1.CertificateFailed:
		case certificatesv1.CertificateApproved:
			if issued && certificateExpired(request.Status.Certificate, now) {
				return true
			}
			if !issued {
				ttl = pendingTTL
			}
		default:
			continue
		}
		if older(c.LastUpdateTime, ttl) {
			return true
		}
	}
	return false
}

// certificateExpired reports whether a PEM certificate has expired. It is false for invalid certificates.
func certificateExpired(certificate []byte, now time.Time) bool {
	block, _ := pem.Decode(certificate)
	if block == nil {
		return false
	}
	parsed, err := x509.ParseCertificate(block.Bytes)
	return err == nil && now.After(parsed.NotAfter)
}

// PodCertificateRequests deletes PodCertificateRequests older than podRequestTTL.
var PodCertificateRequests = controller.Definition{
	Name: "podcertificaterequest-cleaner-controller", Queue: "podcertificaterequest_cleaner",
	New: func(s *controller.Setup) (controller.Syncer, error) {
		requests := client.InformerFor[*certificatesv1.PodCertificateRequest](s.Informers)
		return periodically(s, podRequestCheckPeriod, func(ctx context.Context, key controller.Key) error {
			now := time.Now()
			return s.Apply(ctx, key, deletingAll(requests, func(r *certificatesv1.PodCertificateRequest) bool {
				return now.Sub(r.CreationTimestamp.Time) >= podRequestTTL
			}))
		}), nil
	},
}
