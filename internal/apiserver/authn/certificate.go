package authn

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"time"
	"weak"

	authenticationv1 "k8s.io/api/authentication/v1"
	asn1names "k8s.io/apimachinery/pkg/apis/asn1"
)

// Pool returns the CAs that are currently trusted. A changed pool must be a new pointer, so that certificates verified with the
// old one are verified again.
type Pool func() *x509.CertPool

// Certificates authenticates TLS client certificates that a client CA has signed. It verifies them itself, once per connection,
// because the TLS handshake cannot distinguish client CAs from front-proxy CAs: the server's TLS configuration only requests a
// certificate (tls.RequestClientCert).
type Certificates struct {
	verified verifiedCertificates[certificateIdentity]
}

type certificateIdentity struct {
	user User
	ok   bool
}

// NewCertificates makes an authenticator of client certificates that one of the CAs has signed.
func NewCertificates(cas Pool) *Certificates {
	return &Certificates{verified: verifiedCertificates[certificateIdentity]{cas: cas}}
}

// Authenticate implements Authenticator.
func (c *Certificates) Authenticate(r *http.Request) (User, bool, error) {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return User{}, false, nil
	}
	found, err := c.verified.verify(r.TLS.PeerCertificates, func(leaf *x509.Certificate) (certificateIdentity, error) {
		user, ok, err := certificateUser(leaf)
		return certificateIdentity{withAuthenticated(user), ok}, err
	})
	if err != nil {
		return User{}, false, fmt.Errorf("verifying certificate %s failed: %w", certificateName(r.TLS.PeerCertificates[0]), err)
	}
	return found.user, found.ok, nil
}

// certificateUser is the user of a certificate, false if it has no common name.
func certificateUser(cert *x509.Certificate) (User, bool, error) {
	if cert.Subject.CommonName == "" {
		return User{}, false, nil
	}
	uid, err := certificateUID(cert)
	if err != nil {
		return User{}, false, err
	}
	sum := sha256.Sum256(cert.Raw)
	return User{
		Username: cert.Subject.CommonName,
		UID:      uid,
		Groups:   cert.Subject.Organization,
		Extra:    map[string]authenticationv1.ExtraValue{credentialID: {"X509SHA256=" + hex.EncodeToString(sum[:])}},
	}, true, nil
}

var uidAttribute = asn1names.X509UID()

func certificateUID(cert *x509.Certificate) (string, error) {
	var uids []string
	for _, name := range cert.Subject.Names {
		if !name.Type.Equal(uidAttribute) {
			continue
		}
		uid, ok := name.Value.(string)
		if !ok {
			return "", errors.New("unable to parse UID into a string")
		}
		uids = append(uids, uid)
	}
	switch {
	case len(uids) == 0:
		return "", nil
	case len(uids) > 1:
		return "", fmt.Errorf("expected 1 UID, but found multiple: %v", uids)
	case uids[0] == "":
		return "", errors.New("UID cannot be an empty string")
	}
	return uids[0], nil
}

// certificateName identifies a certificate in errors without quoting its subject, which the client controls.
func certificateName(c *x509.Certificate) string {
	return fmt.Sprintf("SN=%d, SKID=%s, AKID=%s", c.SerialNumber, colons(c.SubjectKeyId), colons(c.AuthorityKeyId))
}

func colons(b []byte) string {
	parts := make([]string, len(b))
	for i := range b {
		parts[i] = fmt.Sprintf("%02X", b[i])
	}
	return strings.Join(parts, ":")
}

// verifiedCertificates verifies client certificates and caches the result: all requests of a connection present the same
// certificate, and verifying it costs a hundred times more than a lookup. An entry is removed when the last connection with the
// certificate is closed. Only successes are cached, and only while every certificate of the chain is valid and the CA pool is
// the same.
type verifiedCertificates[V any] struct {
	cas     Pool
	entries sync.Map // weak.Pointer[x509.Certificate] → *verifiedCertificate[V]
}

type verifiedCertificate[V any] struct {
	pool                *x509.CertPool
	notBefore, notAfter time.Time
	value               V
}

// verify returns the result of derive for the leaf if the presented certificates chain to one of the CAs.
func (s *verifiedCertificates[V]) verify(presented []*x509.Certificate, derive func(leaf *x509.Certificate) (V, error)) (V, error) {
	leaf, pool, now := presented[0], s.cas(), time.Now()
	key := weak.Make(leaf)
	if found, ok := s.entries.Load(key); ok {
		entry := found.(*verifiedCertificate[V])
		if entry.pool == pool && !now.Before(entry.notBefore) && !now.After(entry.notAfter) {
			return entry.value, nil
		}
	}
	var none V
	options := x509.VerifyOptions{Roots: pool, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	if pool == nil {
		options.Roots = x509.NewCertPool() // nil would mean the CAs of the host
	}
	if len(presented) > 1 {
		options.Intermediates = x509.NewCertPool()
		for _, cert := range presented[1:] {
			options.Intermediates.AddCert(cert)
		}
	}
	chains, err := leaf.Verify(options)
	if err != nil {
		return none, err
	}
	entry := &verifiedCertificate[V]{pool: pool, notBefore: leaf.NotBefore, notAfter: leaf.NotAfter}
	for _, cert := range chains[0] {
		if cert.NotBefore.After(entry.notBefore) {
			entry.notBefore = cert.NotBefore
		}
		if cert.NotAfter.Before(entry.notAfter) {
			entry.notAfter = cert.NotAfter
		}
	}
	if entry.value, err = derive(leaf); err != nil {
		return none, err
	}
	if _, known := s.entries.Swap(key, entry); !known {
		runtime.AddCleanup(leaf, func(key weak.Pointer[x509.Certificate]) { s.entries.Delete(key) }, key)
	}
	return entry.value, nil
}
