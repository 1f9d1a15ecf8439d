// Package pki makes and keeps the keys and certificates of a cluster: authorities, the leaves they sign, and the key that
// signs service-account tokens. Everything lives as PEM files in one directory, private keys with mode 0600.
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

// How long certificates live. Leaves are renewed long before (Keeper); authorities are replaced by hand (ReplaceAuthority).
const (
	AuthorityLife = 10 * 365 * 24 * time.Hour
	LeafLife      = 365 * 24 * time.Hour
	// backdate allows for clocks that are a little behind ours.
	backdate = 5 * time.Minute
)

// Pair is a certificate and its private key, as PEM.
type Pair struct {
	Cert []byte
	Key  []byte
}

// Authority signs certificates. Its file may hold several certificates: one signs, the others are those of authorities
// before it, whose certificates are trusted side by side, and what they signed for the one that follows them: with that beside
// a leaf, who knows only the old authority believes the leaf of the new one.
type Authority struct {
	Pair
	cert *x509.Certificate
	key  crypto.Signer
	pool *x509.CertPool
	// bridges are the certificates that older authorities signed for this one's key.
	bridges []*x509.Certificate
}

// Leaf describes a certificate to be signed.
type Leaf struct {
	CommonName    string
	Organizations []string
	DNSNames      []string
	IPs           []net.IP
	// Server and Client say what the certificate may be used for.
	Server, Client bool
	Life           time.Duration
}

// NewAuthority makes a self-signed authority.
func NewAuthority(name string, now time.Time) (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generate key of authority %s: %w", name, err)
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
		NotAfter:              now.Add(AuthorityLife),
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment | x509.KeyUsageCertSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("sign authority %s: %w", name, err)
	}
	pair, err := encodePair(der, key)
	if err != nil {
		return nil, err
	}
	return parseAuthority(pair)
}

// Certificate returns the certificate the authority signs with.
func (a *Authority) Certificate() *x509.Certificate { return a.cert }

// Pool holds all certificates of the authority's file, to verify others against. It is the same pool on every call.
func (a *Authority) Pool() *x509.CertPool { return a.pool }

// Issue signs a new certificate with a fresh key.
func (a *Authority) Issue(leaf Leaf, now time.Time) (Pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, fmt.Errorf("generate key for %s: %w", leaf.CommonName, err)
	}
	serial, err := serialNumber()
	if err != nil {
		return Pair{}, err
	}
	if leaf.Life == 0 {
		leaf.Life = LeafLife
	}
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: leaf.CommonName, Organization: leaf.Organizations},
		DNSNames:     leaf.DNSNames,
		IPAddresses:  leaf.IPs,
		NotBefore:    now.Add(-backdate),
		NotAfter:     minTime(now.Add(leaf.Life), a.cert.NotAfter),
		KeyUsage:     x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment,
	}
	if leaf.Server {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	if leaf.Client {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageClientAuth)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return Pair{}, fmt.Errorf("sign certificate for %s: %w", leaf.CommonName, err)
	}
	pair, err := encodePair(der, key)
	for _, bridge := range a.bridges {
		if now.Before(bridge.NotAfter) {
			pair.Cert = append(pair.Cert, encodeCert(bridge.Raw)...)
		}
	}
	return pair, err
}

// bridgeTo signs the certificate of another authority, so that who trusts this one trusts that one too.
func (a *Authority) bridgeTo(other *Authority) ([]byte, error) {
	serial, err := serialNumber()
	if err != nil {
		return nil, err
	}
	template := *other.cert
	template.SerialNumber, template.NotAfter = serial, minTime(a.cert.NotAfter, other.cert.NotAfter)
	der, err := x509.CreateCertificate(rand.Reader, &template, a.cert, other.cert.PublicKey, a.key)
	if err != nil {
		return nil, fmt.Errorf("sign authority %s: %w", other.cert.Subject.CommonName, err)
	}
	return der, nil
}

// Directory keeps pairs as NAME.crt and NAME.key.
type Dir string

// Authority loads the authority called name, or makes and keeps a new one.
func (f Dir) Authority(name, commonName string, now time.Time) (*Authority, error) {
	pair, err := f.read(name)
	if err == nil {
		return parseAuthority(pair)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	a, err := NewAuthority(commonName, now)
	if err != nil {
		return nil, err
	}
	return a, f.write(name, a.Pair)
}

// ReplaceAuthority makes a new authority that signs from now on. The certificates of the old one are kept beside its own, so that
// what they have signed is trusted until it has been renewed, and the old one signs for the new one, so that who knows only the
// old one trusts what the new one signs. Those that are past are dropped. An empty name is the old one's with the date.
func (f Dir) ReplaceAuthority(name, commonName string, now time.Time) (*Authority, error) {
	pair, err := f.read(name)
	if err != nil {
		return nil, err
	}
	old, err := parseAuthority(pair)
	if err != nil {
		return nil, err
	}
	if commonName == "" {
		first, _, _ := strings.Cut(old.cert.Subject.CommonName, "@")
		commonName = first + "@" + strconv.FormatInt(now.Unix(), 10)
	}
	a, err := NewAuthority(commonName, now)
	if err != nil {
		return nil, err
	}
	bridge, err := old.bridgeTo(a)
	if err != nil {
		return nil, err
	}
	bundle := append(slices.Clone(a.Cert), encodeCert(bridge)...)
	kept, err := ParseCertificates(old.Cert)
	if err != nil {
		return nil, fmt.Errorf("parse %s: %w", f.path(name+".crt"), err)
	}
	for _, cert := range kept {
		if now.Before(cert.NotAfter) {
			bundle = append(bundle, encodeCert(cert.Raw)...)
		}
	}
	// The certificates first: until the key follows, the old key still finds its own among them.
	if err := atomicfile.Write(f.path(name+".crt"), bundle, 0o644); err != nil {
		return nil, err
	}
	if err := atomicfile.Write(f.path(name+".key"), a.Key, 0o600); err != nil {
		return nil, err
	}
	return parseAuthority(Pair{Cert: bundle, Key: a.Key})
}

// ForgetAuthorities drops the authorities before the one that signs: what they have signed is no longer trusted.
func (f Dir) ForgetAuthorities(name string) (*Authority, error) {
	pair, err := f.read(name)
	if err != nil {
		return nil, err
	}
	a, err := parseAuthority(pair)
	if err != nil {
		return nil, err
	}
	pair.Cert = encodeCert(a.cert.Raw)
	if err := atomicfile.Write(f.path(name+".crt"), pair.Cert, 0o644); err != nil {
		return nil, err
	}
	return parseAuthority(pair)
}

// Leaf loads the certificate called name, or lets the authority issue one: also when the kept one is past two thirds of its
// life, was signed by another authority, or does not cover what leaf asks for.
func (f Dir) Leaf(name string, a *Authority, leaf Leaf, now time.Time) (Pair, error) {
	pair, err := f.read(name)
	if err == nil && serves(pair, a, leaf, now) {
		return pair, nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Pair{}, err
	}
	if pair, err = a.Issue(leaf, now); err != nil {
		return Pair{}, err
	}
	return pair, f.write(name, pair)
}

// SigningKey loads the private key NAME.key, or makes and keeps a new one with its public half in NAME.pub.
func (f Dir) SigningKey(name string) (*ecdsa.PrivateKey, error) {
	raw, err := os.ReadFile(f.path(name + ".key"))
	if err == nil {
		signer, err := parseKey(raw)
		if err != nil {
			return nil, fmt.Errorf("parse %s: %w", f.path(name+".key"), err)
		}
		key, ok := signer.(*ecdsa.PrivateKey)
		if !ok {
			return nil, fmt.Errorf("%s holds a %T, want an ECDSA key", f.path(name+".key"), signer)
		}
		return key, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
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
	if err := os.MkdirAll(string(f), 0o700); err != nil {
		return nil, err
	}
	if err := atomicfile.Write(f.path(name+".pub"), pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}), 0o644); err != nil {
		return nil, err
	}
	return key, atomicfile.Write(f.path(name+".key"), private, 0o600)
}

func (f Dir) path(file string) string { return filepath.Join(string(f), file) }

func (f Dir) read(name string) (Pair, error) {
	cert, err := os.ReadFile(f.path(name + ".crt"))
	if err != nil {
		return Pair{}, err
	}
	key, err := os.ReadFile(f.path(name + ".key"))
	if err != nil {
		return Pair{}, err
	}
	return Pair{Cert: cert, Key: key}, nil
}

// write keeps the key first: a certificate on disk always has its key beside it.
func (f Dir) write(name string, p Pair) error {
	if err := os.MkdirAll(string(f), 0o700); err != nil {
		return err
	}
	if err := atomicfile.Write(f.path(name+".key"), p.Key, 0o600); err != nil {
		return err
	}
	return atomicfile.Write(f.path(name+".crt"), p.Cert, 0o644)
}

// serves reports whether a kept certificate can go on being used for leaf.
func serves(p Pair, a *Authority, leaf Leaf, now time.Time) bool {
	cert, err := parseCert(p.Cert)
	if err != nil || cert.CheckSignatureFrom(a.cert) != nil || cert.Subject.CommonName != leaf.CommonName ||
		!slices.Equal(slices.Sorted(slices.Values(cert.Subject.Organization)), slices.Sorted(slices.Values(leaf.Organizations))) {
		return false
	}
	// A crash between writing the key and the certificate leaves two that do not belong together.
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

// RenewAt is when two thirds of a certificate's life are over.
func RenewAt(cert *x509.Certificate) time.Time {
	return cert.NotBefore.Add(cert.NotAfter.Sub(cert.NotBefore) * 2 / 3)
}

// parseAuthority takes the first certificate that belongs to the key as the one that signs.
func parseAuthority(p Pair) (*Authority, error) {
	certs, err := ParseCertificates(p.Cert)
	if err != nil {
		return nil, fmt.Errorf("parse authority certificate: %w", err)
	}
	key, err := parseKey(p.Key)
	if err != nil {
		return nil, fmt.Errorf("parse key of authority %s: %w", certs[0].Subject.CommonName, err)
	}
	a := &Authority{Pair: p, key: key, pool: x509.NewCertPool()}
	for _, cert := range certs {
		if !cert.IsCA {
			return nil, fmt.Errorf("certificate %s is not an authority", cert.Subject.CommonName)
		}
		a.pool.AddCert(cert)
		switch {
		case !sameKey(cert, key):
		case a.cert == nil:
			a.cert = cert
		default:
			a.bridges = append(a.bridges, cert)
		}
	}
	if a.cert == nil {
		return nil, fmt.Errorf("the key of authority %s belongs to none of its certificates", certs[0].Subject.CommonName)
	}
	return a, nil
}

func sameKey(cert *x509.Certificate, key crypto.Signer) bool {
	public, ok := key.Public().(interface{ Equal(crypto.PublicKey) bool })
	return ok && public.Equal(cert.PublicKey)
}

// ParseCertificates reads all certificates of a PEM file; there is at least one.
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
		// Tools like to write the parameters of the curve before the key.
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

// ReadAuthority loads an authority from two PEM files.
func ReadAuthority(certFile, keyFile string) (*Authority, error) {
	cert, err := os.ReadFile(certFile)
	if err != nil {
		return nil, err
	}
	key, err := os.ReadFile(keyFile)
	if err != nil {
		return nil, err
	}
	return parseAuthority(Pair{Cert: cert, Key: key})
}
