package pki

import (
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"time"
)

// Sign signs a certificate for somebody else's key and returns it as PEM. The template says everything but the serial number;
// the certificate ends no later than the authority.
func (a *Authority) Sign(template x509.Certificate, key crypto.PublicKey, now time.Time) ([]byte, error) {
	if !now.Before(a.cert.NotAfter) {
		return nil, fmt.Errorf("refusing to sign a certificate that expired in the past: NotAfter=%v", a.cert.NotAfter)
	}
	serial, err := serialNumber()
	if err != nil {
		return nil, err
	}
	template.SerialNumber = serial
	template.NotAfter = minTime(template.NotAfter, a.cert.NotAfter)
	der, err := x509.CreateCertificate(rand.Reader, &template, a.cert, key, a.key)
	if err != nil {
		return nil, fmt.Errorf("sign certificate for %s: %w", template.Subject.CommonName, err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}
