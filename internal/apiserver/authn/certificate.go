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

// Pool returns the authorities trusted at the moment. A new pool must be a new value, so that what was verified against the
// old one is verified again.
type Pool func() *x509.CertPool

// Certificates accepts TLS client certificates that the client authorities have signed. It verifies them itself, once for
// as long as the client stays connected, so that the handshake need not know which authority is for what: the
// server's TLS configuration only asks for a certificate (tls.RequestClientCert).
type Certificates struct {
	seen verifiedCertificates[certified]
}

type certified struct {
	user User
	ok   bool
}

// NewCertificates makes an authenticator for client certificates signed by one of the authorities.
func NewCertificates(authorities Pool) *Certificates {
	return &Certificates{seen: verifiedCertificates[certified]{authorities: authorities}}
}

// Authenticate implements Authenticator.
func (c *Certificates) Authenticate(r *http.Request) (User, bool, error) {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return User{}, false, nil
	}
	found, err := c.seen.verify(r.TLS.PeerCertificates, func(leaf *x509.Certificate) (certified, error) {
		user, ok, err := certificateUser(leaf)
		return certified{withAuthenticated(user), ok}, err
	})
	if err != nil {
		return User{}, false, fmt.Errorf("verifying certificate %s failed: %w", certificateName(r.TLS.PeerCertificates[0]), err)
	}
	return found.user, found.ok, nil
}

// certificateUser is the user a certificate names. A certificate without a common name names nobody.
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

// certificateName tells which certificate is meant without quoting what its owner wrote into it.
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

// verifiedCertificates verifies client certificates and remembers the outcome with the certificate: a connection keeps
// presenting the same one, and verifying it costs a hundred times more than looking it up. What is remembered goes when
// the last connection with the certificate does. Only success is remembered, and only while every certificate of the
// chain is valid and the authorities are the same.
type verifiedCertificates[V any] struct {
	authorities Pool
	entries     sync.Map // weak.Pointer[x509.Certificate] → *verifiedCertificate[V]
}

type verifiedCertificate[V any] struct {
	pool             *x509.CertPool
	notBefore, until time.Time
	value            V
}

// verify returns what derive makes of the first certificate, once the certificates lead to one of the authorities.
func (s *verifiedCertificates[V]) verify(presented []*x509.Certificate, derive func(leaf *x509.Certificate) (V, error)) (V, error) {
	leaf, pool, now := presented[0], s.authorities(), time.Now()
	key := weak.Make(leaf)
	if found, ok := s.entries.Load(key); ok {
		entry := found.(*verifiedCertificate[V])
		if entry.pool == pool && !now.Before(entry.notBefore) && !now.After(entry.until) {
			return entry.value, nil
		}
	}
	var none V
	options := x509.VerifyOptions{Roots: pool, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	if pool == nil {
		options.Roots = x509.NewCertPool() // nil would mean the machine's own authorities
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
	entry := &verifiedCertificate[V]{pool: pool, notBefore: leaf.NotBefore, until: leaf.NotAfter}
	for _, cert := range chains[0] {
		if cert.NotBefore.After(entry.notBefore) {
			entry.notBefore = cert.NotBefore
		}
		if cert.NotAfter.Before(entry.until) {
			entry.until = cert.NotAfter
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
