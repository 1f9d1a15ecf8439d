// Package pki creates and stores the keys and certificates of a cluster: the CAs, the leaf certificates they sign, and
// the key that signs service account tokens. Everything is stored as PEM files in one directory, private keys with mode
// 0600.
package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"skiff/internal/atomicfile"
)

// The lifetimes of certificates. Leaf certificates are renewed long before they expire (Renewer); a CA is replaced on
// demand (RotateCA).
const (
	CALifetime   = 10 * 365 * 24 * time.Hour
	LeafLifetime = 365 * 24 * time.Hour
	// backdate tolerates peers whose clocks are slightly behind.
	backdate = 5 * time.Minute
)

// Pair is a certificate and its private key, as PEM.
type Pair struct {
	Cert []byte
	Key  []byte
}

// CA signs certificates. Its file may hold several certificates. The first one that matches the private key signs. The
// others are the CAs it replaced, which stay trusted, and cross-signed certificates: the CA's public key, signed by its
// predecessor. Leaf certificates are issued with the cross-signed certificates appended, so a client that trusts only the
// old CA can verify them.
type CA struct {
	Pair
	cert *x509.Certificate
	key  crypto.Signer
	pool *x509.CertPool
	// crossSigned are the certificates that previous CAs issued for this CA's key.
	crossSigned []*x509.Certificate
}

// Leaf describes a certificate to be signed.
type Leaf struct {
	CommonName    string
	Organizations []string
	DNSNames      []string
	IPs           []net.IP
	// Server and Client are the extended key usages.
	Server, Client bool
	Lifetime       time.Duration
}

// NewCA creates a self-signed CA.
func NewCA(name string, now time.Time) (*CA, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generate key of CA %s: %w", name, err)
	}
	serial, err := serialNumber()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: name},
		DNSNames:              []string{name},
		NotBefore:             now.Add(-backdate),
		NotAfter:              now.Add(CALifetime),
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment | x509.KeyUsageCertSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("sign CA %s: %w", name, err)
	}
	pair, err := encodePair(der, key)
	if err != nil {
		return nil, err
	}
	return parseCA(pair)
}

// Certificate returns the certificate the CA signs with.
func (ca *CA) Certificate() *x509.Certificate { return ca.cert }

// Pool returns the certificates of the CA's file as a pool to verify with. Every call returns the same pool.
func (ca *CA) Pool() *x509.CertPool { return ca.pool }

func (ca *CA) certificates() []*x509.Certificate {
	certs, _ := ParseCertificates(ca.Cert) // parseCA has parsed them
	return certs
}

// Issue signs a new certificate with a fresh key.
func (ca *CA) Issue(leaf Leaf, now time.Time) (Pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, fmt.Errorf("generate key for %s: %w", leaf.CommonName, err)
	}
	serial, err := serialNumber()
	if err != nil {
		return Pair{}, err
	}
	if leaf.Lifetime == 0 {
		leaf.Lifetime = LeafLifetime
	}
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: leaf.CommonName, Organization: leaf.Organizations},
		DNSNames:     leaf.DNSNames,
		IPAddresses:  leaf.IPs,
		NotBefore:    now.Add(-backdate),
		NotAfter:     minTime(now.Add(leaf.Lifetime), ca.cert.NotAfter),
		KeyUsage:     x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment,
	}
	if leaf.Server {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	if leaf.Client {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageClientAuth)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca.cert, key.Public(), ca.key)
	if err != nil {
		return Pair{}, fmt.Errorf("sign certificate for %s: %w", leaf.CommonName, err)
	}
	pair, err := encodePair(der, key)
	for _, crossSigned := range ca.crossSigned {
		if now.Before(crossSigned.NotAfter) {
			pair.Cert = append(pair.Cert, encodeCert(crossSigned.Raw)...)
		}
	}
	return pair, err
}

// crossSign signs the key of another CA, so that clients that trust ca also trust other.
func (ca *CA) crossSign(other *CA) ([]byte, error) {
	serial, err := serialNumber()
	if err != nil {
		return nil, err
	}
	template := *other.cert
	template.SerialNumber, template.NotAfter = serial, minTime(ca.cert.NotAfter, other.cert.NotAfter)
	der, err := x509.CreateCertificate(rand.Reader, &template, ca.cert, other.cert.PublicKey, ca.key)
	if err != nil {
		return nil, fmt.Errorf("sign CA %s: %w", other.cert.Subject.CommonName, err)
	}
	return der, nil
}

// Dir is a directory that holds pairs as NAME.crt and NAME.key.
type Dir string

// CA loads the CA with the given file name, or creates and stores a new one. A certificate without its key is not replaced, because what it has signed
// would not be trusted any more.
func (d Dir) CA(name, commonName string, now time.Time) (*CA, error) {
	pair, err := d.read(name)
	if err == nil {
		return parseCA(pair)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if _, err := os.Lstat(d.path(name + ".crt")); err == nil {
		return nil, fmt.Errorf("%s has no key: %s does not exist", d.path(name+".crt"), d.path(name+".key"))
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	ca, err := NewCA(commonName, now)
	if err != nil {
		return nil, err
	}
	return ca, d.write(name, ca.Pair)
}

// RotateCA creates a new CA that signs from now on. The old CA's certificates stay in its file, so everything they signed
// remains trusted until it is renewed. The old CA cross-signs the new one, so clients that trust only the old one accept
// what the new one signs. Expired certificates are dropped. If commonName is empty, it is derived from the old one and
// the date.
func (d Dir) RotateCA(name, commonName string, now time.Time) (*CA, error) {
	pair, err := d.read(name)
	if err != nil {
		return nil, err
	}
	old, err := parseCA(pair)
	if err != nil {
		return nil, err
	}
	if commonName == "" {
		base, _, _ := strings.Cut(old.cert.Subject.CommonName, "@")
		commonName = base + "@" + strconv.FormatInt(now.Unix(), 10)
	}
	ca, err := NewCA(commonName, now)
	if err != nil {
		return nil, err
	}
	crossSigned, err := old.crossSign(ca)
	if err != nil {
		return nil, err
	}
	bundle := append(slices.Clone(ca.Cert), encodeCert(crossSigned)...)
	kept, err := ParseCertificates(old.Cert)
	if err != nil {
		return nil, fmt.Errorf("parse %s: %w", d.path(name+".crt"), err)
	}
	for _, cert := range kept {
		if now.Before(cert.NotAfter) {
			bundle = append(bundle, encodeCert(cert.Raw)...)
		}
	}
	// Write the certificates first: until the key is written, the old key still matches one of them.
	if err := atomicfile.Write(d.path(name+".crt"), bundle, 0o644); err != nil {
		return nil, err
	}
	if err := atomicfile.Write(d.path(name+".key"), ca.Key, 0o600); err != nil {
		return nil, err
	}
	return parseCA(Pair{Cert: bundle, Key: ca.Key})
}

// DropOldCAs removes all CAs except the one that signs. What they signed is no longer trusted.
func (d Dir) DropOldCAs(name string) (*CA, error) {
	pair, err := d.read(name)
	if err != nil {
		return nil, err
	}
	ca, err := parseCA(pair)
	if err != nil {
		return nil, err
	}
	pair.Cert = encodeCert(ca.cert.Raw)
	if err := atomicfile.Write(d.path(name+".crt"), pair.Cert, 0o644); err != nil {
		return nil, err
	}
	return parseCA(pair)
}

// Leaf loads the certificate with the given file name. It issues a new one if there is none, or if the stored one is past
// two thirds of its lifetime, was signed by another CA, or does not match leaf.
func (d Dir) Leaf(name string, ca *CA, leaf Leaf, now time.Time) (Pair, error) {
	pair, err := d.read(name)
	if err == nil && reusable(pair, ca, leaf, now) {
		return pair, nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Pair{}, err
	}
	if pair, err = ca.Issue(leaf, now); err != nil {
		return Pair{}, err
	}
	return pair, d.write(name, pair)
}

// SigningKey loads the private key NAME.key, or creates an ECDSA key and stores its public key as NAME.pub. The key of another cluster, which this
// one continues, may be an RSA key.
func (d Dir) SigningKey(name string) (crypto.Signer, error) {
	existing, err := ReadSigner(d.path(name + ".key"))
	if !errors.Is(err, fs.ErrNotExist) {
		return existing, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generate signing key %s: %w", name, err)
	}
	private, err := encodeKey(key)
	if err != nil {
		return nil, err
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return nil, fmt.Errorf("encode public key %s: %w", name, err)
	}
	if err := os.MkdirAll(string(d), 0o700); err != nil {
		return nil, err
	}
	if err := atomicfile.Write(d.path(name+".pub"), pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}), 0o644); err != nil {
		return nil, err
	}
	return key, atomicfile.Write(d.path(name+".key"), private, 0o600)
}

func (d Dir) path(file string) string { return filepath.Join(string(d), file) }

func (d Dir) read(name string) (Pair, error) {
	cert, err := os.ReadFile(d.path(name + ".crt"))
	if err != nil {
		return Pair{}, err
	}
	key, err := os.ReadFile(d.path(name + ".key"))
	if err != nil {
		return Pair{}, err
	}
	return Pair{Cert: cert, Key: key}, nil
}

// write stores the key first: a certificate on disk always has its key.
func (d Dir) write(name string, p Pair) error {
	if err := os.MkdirAll(string(d), 0o700); err != nil {
		return err
	}
	if err := atomicfile.Write(d.path(name+".key"), p.Key, 0o600); err != nil {
		return err
	}
	return atomicfile.Write(d.path(name+".crt"), p.Cert, 0o644)
}

// reusable reports whether a stored certificate can still be used for leaf.
func reusable(p Pair, ca *CA, leaf Leaf, now time.Time) bool {
	cert, err := parseCert(p.Cert)
	if err != nil || cert.CheckSignatureFrom(ca.cert) != nil || cert.Subject.CommonName != leaf.CommonName ||
		!slices.Equal(slices.Sorted(slices.Values(cert.Subject.Organization)), slices.Sorted(slices.Values(leaf.Organizations))) {
		return false
	}
	// A crash between writing the key and the certificate leaves a mismatched pair.
	if key, err := parseKey(p.Key); err != nil || !sameKey(cert, key) {
		return false
	}
	if now.After(RenewAt(cert)) {
		return false
	}
	for _, name := range leaf.DNSNames {
		if cert.VerifyHostname(name) != nil {
			return false
		}
	}
	for _, ip := range leaf.IPs {
		if cert.VerifyHostname(ip.String()) != nil {
			return false
		}
	}
	return true
}

// RenewAt returns the time at which two thirds of a certificate's lifetime have passed.
func RenewAt(cert *x509.Certificate) time.Time {
	return cert.NotBefore.Add(cert.NotAfter.Sub(cert.NotBefore) * 2 / 3)
}

// parseCA takes the first certificate that belongs to the key as the one that signs.
func parseCA(p Pair) (*CA, error) {
	certs, err := ParseCertificates(p.Cert)
	if err != nil {
		return nil, fmt.Errorf("parse CA certificate: %w", err)
	}
	key, err := parseKey(p.Key)
	if err != nil {
		return nil, fmt.Errorf("parse key of CA %s: %w", certs[0].Subject.CommonName, err)
	}
	ca := &CA{Pair: p, key: key, pool: x509.NewCertPool()}
	for _, cert := range certs {
		if !cert.IsCA {
			return nil, fmt.Errorf("certificate %s is not a CA", cert.Subject.CommonName)
		}
		ca.pool.AddCert(cert)
		switch {
		case !sameKey(cert, key):
		case ca.cert == nil:
			ca.cert = cert
		default:
			ca.crossSigned = append(ca.crossSigned, cert)
		}
	}
	if ca.cert == nil {
		return nil, fmt.Errorf("the key of CA %s matches none of its certificates", certs[0].Subject.CommonName)
	}
	return ca, nil
}

func sameKey(cert *x509.Certificate, key crypto.Signer) bool {
	public, ok := key.Public().(interface{ Equal(crypto.PublicKey) bool })
	return ok && public.Equal(cert.PublicKey)
}

// ParseCertificates parses all certificates of a PEM file. It fails if there are none.
func ParseCertificates(data []byte) ([]*x509.Certificate, error) {
	var certs []*x509.Certificate
	for {
		var block *pem.Block
		if block, data = pem.Decode(data); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		certs = append(certs, cert)
	}
	if len(certs) == 0 {
		return nil, errors.New("no PEM certificate found")
	}
	return certs, nil
}

func parseCert(data []byte) (*x509.Certificate, error) {
	certs, err := ParseCertificates(data)
	if err != nil {
		return nil, err
	}
	return certs[0], nil
}

func parseKey(data []byte) (crypto.Signer, error) {
	for {
		block, rest := pem.Decode(data)
		if block == nil {
			return nil, errors.New("no PEM key found")
		}
		// OpenSSL writes the curve's parameters before the key.
		if strings.HasSuffix(block.Type, "PRIVATE KEY") {
			return parsePrivateKey(block.Bytes)
		}
		data = rest
	}
}

func parsePrivateKey(der []byte) (crypto.Signer, error) {
	if key, err := x509.ParseECPrivateKey(der); err == nil {
		return key, nil
	}
	if key, err := x509.ParsePKCS1PrivateKey(der); err == nil {
		return key, nil
	}
	key, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, err
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("a %T cannot sign", key)
	}
	return signer, nil
}

func encodePair(der []byte, key *ecdsa.PrivateKey) (Pair, error) {
	keyPEM, err := encodeKey(key)
	if err != nil {
		return Pair{}, err
	}
	return Pair{Cert: encodeCert(der), Key: keyPEM}, nil
}

func encodeCert(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
}

func serialNumber() (*big.Int, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, fmt.Errorf("draw serial number: %w", err)
	}
	return serial.Add(serial, big.NewInt(1)), nil
}

func minTime(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// ReadCA loads a CA from two PEM files.
func ReadCA(certFile, keyFile string) (*CA, error) {
	cert, err := os.ReadFile(certFile)
	if err != nil {
		return nil, err
	}
	key, err := os.ReadFile(keyFile)
	if err != nil {
		return nil, err
	}
	return parseCA(Pair{Cert: cert, Key: key})
}
