package pki

import (
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"time"
)

// Sign signs a certificate for a key the caller does not own and returns it as PEM. The template specifies everything but
// the serial number. The certificate does not outlive the CA.
func (ca *CA) Sign(template x509.Certificate, key crypto.PublicKey, now time.Time) ([]byte, error) {
	if !now.Before(ca.cert.NotAfter) {
		return nil, fmt.Errorf("refusing to sign a certificate that expired in the past: NotAfter=%v", ca.cert.NotAfter)
	}
	serial, err := serialNumber()
	if err != nil {
		return nil, err
	}
	template.SerialNumber = serial
	template.NotAfter = minTime(template.NotAfter, ca.cert.NotAfter)
	der, err := x509.CreateCertificate(rand.Reader, &template, ca.cert, key, ca.key)
	if err != nil {
		return nil, fmt.Errorf("sign certificate for %s: %w", template.Subject.CommonName, err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}
