package pki

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func testCA(t *testing.T, dir string) *CA {
	t.Helper()
	ca, err := Dir(dir).CA("ca", "skiff-ca", start)
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

func TestCAIsStored(t *testing.T) {
	dir := t.TempDir()
	first, second := testCA(t, dir), testCA(t, dir)
	if string(first.Cert) != string(second.Cert) {
		t.Fatal("a second start created another CA")
	}
	info, err := os.Stat(filepath.Join(dir, "ca.key"))
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o600 {
		t.Fatalf("key has mode %v, want 0600", info.Mode().Perm())
	}
}

func TestLeaf(t *testing.T) {
	base := Leaf{CommonName: "kube-apiserver", DNSNames: []string{"kubernetes"}, IPs: []net.IP{net.ParseIP("10.96.0.1")}, Server: true}
	more := base
	more.DNSNames = []string{"kubernetes", "example.org"}
	renamed := base
	renamed.CommonName = "other"
	for _, tt := range []struct {
		name  string
		leaf  Leaf
		now   time.Time
		fresh bool
	}{
		{"same is kept", base, start.Add(time.Hour), false},
		{"kept before two thirds", base, start.Add(LeafLifetime * 6 / 10), false},
		{"renewed after two thirds", base, start.Add(LeafLifetime * 7 / 10), true},
		{"new name", more, start, true},
		{"new subject", renamed, start, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			ca := testCA(t, dir)
			first, err := Dir(dir).Leaf("serving", ca, base, start)
			if err != nil {
				t.Fatal(err)
			}
			second, err := Dir(dir).Leaf("serving", ca, tt.leaf, tt.now)
			if err != nil {
				t.Fatal(err)
			}
			if fresh := string(first.Cert) != string(second.Cert); fresh != tt.fresh {
				t.Fatalf("fresh certificate: %v, want %v", fresh, tt.fresh)
			}
		})
	}
}

func TestLeafVerifies(t *testing.T) {
	ca := testCA(t, t.TempDir())
	pair, err := ca.Issue(Leaf{CommonName: "admin", Organizations: []string{"system:masters"}, Client: true}, start)
	if err != nil {
		t.Fatal(err)
	}
	keyPair, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(ca.Certificate())
	verify := func(usage x509.ExtKeyUsage) error {
		_, err := keyPair.Leaf.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: start, KeyUsages: []x509.ExtKeyUsage{usage}})
		return err
	}
	if err := verify(x509.ExtKeyUsageClientAuth); err != nil {
		t.Fatal(err)
	}
	if verify(x509.ExtKeyUsageServerAuth) == nil {
		t.Fatal("a client certificate verified for a server")
	}
}

func TestSigningKeyIsKept(t *testing.T) {
	dir := Dir(t.TempDir())
	first, err := dir.SigningKey("service-account")
	if err != nil {
		t.Fatal(err)
	}
	second, err := dir.SigningKey("service-account")
	if err != nil {
		t.Fatal(err)
	}
	if !samePublicKey(first, second) {
		t.Fatal("a second start made another key")
	}
}

// samePublicKey reports whether two private keys are the same, by what is public of them.
func samePublicKey(a, b crypto.Signer) bool {
	return a.Public().(interface{ Equal(crypto.PublicKey) bool }).Equal(b.Public())
}

// The key of a cluster that kubeadm made is an RSA key in PKCS #1.
func TestRSASigningKey(t *testing.T) {
	dir := Dir(t.TempDir())
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	data := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})
	if err := os.WriteFile(dir.path("service-account.key"), data, 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := dir.SigningKey("service-account")
	if err != nil || !samePublicKey(key, got) {
		t.Errorf("key %v, %v", got, err)
	}
	if err := os.WriteFile(dir.path("service-account.key"), []byte("no key"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := dir.SigningKey("service-account"); err == nil || !strings.Contains(err.Error(), "service-account.key") {
		t.Errorf("error %v", err)
	}
}

// The certificate of a CA whose key is missing is not replaced by that of another CA.
func TestCAWithoutKey(t *testing.T) {
	dir := Dir(t.TempDir())
	ca, err := dir.CA("ca", "test-ca", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(dir.path("ca.key")); err != nil {
		t.Fatal(err)
	}
	if _, err := dir.CA("ca", "test-ca", time.Now()); err == nil || !strings.Contains(err.Error(), dir.path("ca.key")+" does not exist") {
		t.Errorf("error %v", err)
	}
	if left, err := os.ReadFile(dir.path("ca.crt")); err != nil || string(left) != string(ca.Cert) {
		t.Errorf("the certificate has changed: %v", err)
	}
}
