package pki

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// GetCertificate returns the certificate for a handshake, as tls.Config has it.
type GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error)

// SNICert is a certificate for the names that clients request. Without names it has those in the certificate.
type SNICert struct {
	Names []string
	Files *CertFiles
}

// SelectCertificate chooses a certificate by the name that the client requests, or by the address it connected to if it requests none.
// Names that were given are preferred to those in certificates, exact names to wildcards, and earlier certificates to later ones. Without a
// match the fallback is used.
func SelectCertificate(certs []SNICert, fallback GetCertificate) GetCertificate {
	if len(certs) == 0 {
		return fallback
	}
	return func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		name := strings.ToLower(hello.ServerName)
		if name == "" && hello.Conn != nil {
			name, _, _ = net.SplitHostPort(hello.Conn.LocalAddr().String())
		}
		if found := findCertificate(certs, name); found != nil {
			return found.GetCertificate(hello)
		}
		if _, parent, ok := strings.Cut(name, "."); ok && hello.ServerName != "" {
			if found := findCertificate(certs, "*."+parent); found != nil {
				return found.GetCertificate(hello)
			}
		}
		return fallback(hello)
	}
}

// findCertificate finds the first certificate that was given this name, otherwise the first one that has it.
func findCertificate(certs []SNICert, name string) *CertFiles {
	for i := range certs {
		for _, given := range certs[i].Names {
			if given == name {
				return certs[i].Files
			}
		}
	}
	for i := range certs {
		if len(certs[i].Names) > 0 {
			continue
		}
		for _, own := range certificateNames(certs[i].Files.get().Leaf) {
			if own == name {
				return certs[i].Files
			}
		}
	}
	return nil
}

// certificateNames are the names in a certificate that clients can request. Addresses are not: TLS has no requests for them.
func certificateNames(cert *x509.Certificate) []string {
	name := cert.Subject.CommonName
	if net.ParseIP(name) != nil || name != "*" && len(validation.IsDNS1123Subdomain(strings.TrimPrefix(name, "*."))) > 0 {
		return cert.DNSNames
	}
	return append([]string{name}, cert.DNSNames...)
}
