package pki

import (
	"context"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"skiff/internal/atomicfile"
)

var discard = slog.New(slog.DiscardHandler)

// dial shakes hands over a pipe and returns both ends.
func dial(t *testing.T, server, client *tls.Config) (*tls.Conn, *tls.Conn) {
	t.Helper()
	a, b := net.Pipe()
	accepted := tls.Server(a, server)
	done := make(chan error, 1)
	go func() { done <- accepted.Handshake() }()
	dialed := tls.Client(b, client)
	if err := dialed.Handshake(); err != nil {
		t.Fatalf("client: %v", err)
	}
	if err := <-done; err != nil {
		t.Fatalf("server: %v", err)
	}
	return accepted, dialed
}

func exchange(t *testing.T, from, to *tls.Conn) {
	t.Helper()
	go func() { _, _ = from.Write([]byte("hello")) }()
	got := make([]byte, 5)
	if _, err := io.ReadFull(to, got); err != nil || string(got) != "hello" {
		t.Fatalf("read %q, %v", got, err)
	}
}

// Eighteen months pass, a year and a half of certificates that live one: nothing that was made stops working.
func TestKeeperRenewsWhileRunning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		directory := Dir(t.TempDir())
		ca, err := directory.CA("ca", "test-ca", time.Now())
		if err != nil {
			t.Fatal(err)
		}
		serving, err := directory.Renewer("apiserver", ca, Leaf{CommonName: "kube-apiserver", DNSNames: []string{"kubernetes"}, Server: true})
		if err != nil {
			t.Fatal(err)
		}
		client, err := directory.Renewer("admin", ca, User("admin", "system:masters"))
		if err != nil {
			t.Fatal(err)
		}
		var notified []string
		if err := client.OnRenew(func(p Pair) error { notified = append(notified, string(p.Cert)); return nil }); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		stopped := make(chan error, 1)
		go func() { stopped <- Renewers{serving, client}.Run(ctx, discard) }()

		serverTLS := ServerTLS(serving.GetChain, ca)
		clientTLS := &tls.Config{RootCAs: ca.Pool(), ServerName: "kubernetes", GetClientCertificate: client.GetClientCertificate}
		oldServer, oldClient := dial(t, serverTLS, clientTLS)
		first := oldClient.ConnectionState().PeerCertificates[0]

		for month := 1; month <= 18; month++ {
			time.Sleep(30 * 24 * time.Hour)
			synctest.Wait()
			now := time.Now()
			accepted, dialed := dial(t, serverTLS, clientTLS)
			exchange(t, dialed, accepted)
			presented := accepted.ConnectionState().PeerCertificates[0]
			if _, err := presented.Verify(x509.VerifyOptions{Roots: ca.Pool(), CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
				t.Fatalf("month %d: client certificate: %v", month, err)
			}
			if left := serving.Certificate().NotAfter.Sub(now); left < LeafLifetime/3-24*time.Hour {
				t.Fatalf("month %d: the serving certificate has only %v left", month, left)
			}
			exchange(t, oldServer, oldClient) // the connection of before still stands
		}
		if serving.Certificate().Equal(first) {
			t.Fatal("the certificate was never renewed")
		}
		if len(notified) != 3 || notified[2] != string(client.Pair().Cert) {
			t.Fatalf("notified %d times of new certificates", len(notified))
		}
		kept, err := os.ReadFile(filepath.Join(string(directory), "apiserver.crt"))
		if err != nil || string(kept) != string(serving.Pair().Cert) {
			t.Fatalf("the directory does not hold the current certificate (%v)", err)
		}
		cancel()
		if err := <-stopped; err != nil {
			t.Fatal(err)
		}
	})
}

func TestKeeperTriesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		directory := Dir(t.TempDir())
		ca, err := directory.CA("ca", "test-ca", time.Now())
		if err != nil {
			t.Fatal(err)
		}
		renewer, err := directory.Renewer("admin", ca, User("admin"))
		if err != nil {
			t.Fatal(err)
		}
		calls := 0
		if err := renewer.OnRenew(func(Pair) error {
			if calls++; calls == 2 {
				return errors.New("disk full")
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		stopped := make(chan error, 1)
		go func() { stopped <- renewer.Run(ctx, discard) }()
		time.Sleep(LeafLifetime*2/3 + 2*time.Hour)
		synctest.Wait()
		if calls != 3 {
			t.Errorf("notified %d times, want 3: initially, failing, retried", calls)
		}
		cancel()
		<-stopped
	})
}

func TestRotateCA(t *testing.T) {
	dir := t.TempDir()
	directory := Dir(dir)
	old := testCA(t, dir)
	oldLeaf, err := directory.Leaf("admin", old, User("admin"), start)
	if err != nil {
		t.Fatal(err)
	}
	later := start.Add(time.Hour)
	if _, err := directory.RotateCA("ca", "skiff-ca-2", later); err != nil {
		t.Fatal(err)
	}
	both, err := directory.CA("ca", "unused", later)
	if err != nil {
		t.Fatal(err)
	}
	if both.Certificate().Subject.CommonName != "skiff-ca-2" {
		t.Errorf("%s signs", both.Certificate().Subject.CommonName)
	}
	newLeaf, err := directory.Leaf("admin", both, User("admin"), later)
	if err != nil {
		t.Fatal(err)
	}
	if string(newLeaf.Cert) == string(oldLeaf.Cert) {
		t.Error("a leaf certificate of the old CA was not reissued")
	}
	// Clients that trust only the old CA can verify the new CA's leaf certificates, because the cross-signed certificate
	// is sent with them.
	chain, err := ParseCertificates(newLeaf.Cert)
	if err != nil || len(chain) != 2 {
		t.Fatalf("%d certificates, %v", len(chain), err)
	}
	crossSigned := x509.NewCertPool()
	crossSigned.AddCert(chain[1])
	if _, err := chain[0].Verify(x509.VerifyOptions{Roots: old.Pool(), Intermediates: crossSigned, CurrentTime: later, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		t.Errorf("verify with only the old CA: %v", err)
	}
	for name, leaf := range map[string]Pair{"old": oldLeaf, "new": newLeaf} {
		cert, err := parseCert(leaf.Cert)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := cert.Verify(x509.VerifyOptions{Roots: both.Pool(), CurrentTime: later, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
			t.Errorf("%s leaf: %v", name, err)
		}
	}

	// A crash after the certificates were written and before the key: the old key goes on signing with its own.
	if err := atomicfile.Write(directory.path("ca.key"), old.Key, 0o600); err != nil {
		t.Fatal(err)
	}
	halfway, err := directory.CA("ca", "unused", later)
	if err != nil {
		t.Fatal(err)
	}
	if halfway.Certificate().Subject.CommonName != "skiff-ca" {
		t.Errorf("after a crash %s signs", halfway.Certificate().Subject.CommonName)
	}

	entries, err := directory.List()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name+" "+e.Subject)
		if e.IsCA != e.RenewAt.IsZero() || e.NotAfter.IsZero() || e.Issuer == "" {
			t.Errorf("entry %+v", e)
		}
	}
	if want := []string{"admin CN=admin", "ca CN=skiff-ca-2", "ca CN=skiff-ca-2", "ca CN=skiff-ca"}; !slices.Equal(names, want) {
		t.Errorf("list %q, want %q", names, want)
	}
}

// Eventually the old CA is not needed any more; until then the new one renews its leaf certificates.
func TestDropOldCAs(t *testing.T) {
	dir := t.TempDir()
	directory, old := Dir(dir), testCA(t, dir)
	leaf := NodeServing("n1", []string{"n1.example.org"}, []net.IP{net.IPv4(10, 0, 0, 1)})
	before, err := directory.Leaf("kubelet", old, leaf, start)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := directory.RotateCA("ca", "", start); err != nil {
		t.Fatal(err)
	}
	if err := directory.Renew("ca", start); err == nil {
		t.Error("a CA was renewed")
	}
	if err := directory.Renew("kubelet", start.Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	current, err := directory.DropOldCAs("ca")
	if err != nil {
		t.Fatal(err)
	}
	after, err := directory.read("kubelet")
	if err != nil {
		t.Fatal(err)
	}
	if !reusable(after, current, leaf, start) {
		t.Error("the renewed certificate is not what it was")
	}
	for name, want := range map[string]struct {
		cert []byte
		good bool
	}{"before": {before.Cert, false}, "after": {after.Cert, true}} {
		cert, err := parseCert(want.cert)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := cert.Verify(x509.VerifyOptions{Roots: current.Pool(), CurrentTime: start.Add(time.Hour), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}); (err == nil) != want.good {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A certificate that an administrator renews is used by a running program.
func TestKeeperTakesUpWhatIsWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		directory := Dir(t.TempDir())
		ca, err := directory.CA("ca", "test-ca", time.Now())
		if err != nil {
			t.Fatal(err)
		}
		renewer, err := directory.Renewer("admin", ca, User("admin"))
		if err != nil {
			t.Fatal(err)
		}
		notified := 0
		if err := renewer.OnRenew(func(Pair) error { notified++; return nil }); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		stopped := make(chan error, 1)
		go func() { stopped <- renewer.Run(ctx, discard) }()
		time.Sleep(time.Hour)
		before := renewer.Certificate()
		if err := directory.Renew("admin", time.Now()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * checkInterval)
		synctest.Wait()
		if renewer.Certificate().Equal(before) || notified != 2 {
			t.Errorf("the new certificate is not used, or OnRenew was not called (%d)", notified)
		}
		cancel()
		<-stopped
	})
}

// A crash between writing key and certificate leaves a mismatched pair, which is replaced.
func TestLeafWithForeignKey(t *testing.T) {
	dir := t.TempDir()
	ca := testCA(t, dir)
	directory := Dir(dir)
	if _, err := directory.Leaf("admin", ca, User("admin"), start); err != nil {
		t.Fatal(err)
	}
	other, err := ca.Issue(User("admin"), start)
	if err != nil {
		t.Fatal(err)
	}
	if err := atomicfile.Write(directory.path("admin.key"), other.Key, 0o600); err != nil {
		t.Fatal(err)
	}
	pair, err := directory.Leaf("admin", ca, User("admin"), start)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tls.X509KeyPair(pair.Cert, pair.Key); err != nil {
		t.Fatal(err)
	}
}

func TestReadKeys(t *testing.T) {
	dir := t.TempDir()
	directory := Dir(dir)
	ecKey, err := directory.SigningKey("sa")
	if err != nil {
		t.Fatal(err)
	}
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(rsaKey)
	if err != nil {
		t.Fatal(err)
	}
	public, err := os.ReadFile(filepath.Join(dir, "sa.pub"))
	if err != nil {
		t.Fatal(err)
	}
	ca := testCA(t, dir)
	all := slices.Concat(public, ca.Cert,
		pem.EncodeToMemory(&pem.Block{Type: "EC PARAMETERS", Bytes: []byte{1}}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}),
		pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(rsaKey)}),
		pem.EncodeToMemory(&pem.Block{Type: "RSA PUBLIC KEY", Bytes: x509.MarshalPKCS1PublicKey(&rsaKey.PublicKey)}))
	path := filepath.Join(dir, "all.pem")
	if err := os.WriteFile(path, all, 0o600); err != nil {
		t.Fatal(err)
	}
	keys, err := ReadPublicKeys(path)
	if err != nil || len(keys) != 5 {
		t.Fatalf("%d keys, %v", len(keys), err)
	}
	if !ecKey.Public().(*ecdsa.PublicKey).Equal(keys[0]) || !rsaKey.PublicKey.Equal(keys[2]) || !rsaKey.PublicKey.Equal(keys[4]) {
		t.Error("other keys than those written")
	}
	signer, err := ReadSigner(path)
	if err != nil || !rsaKey.Equal(signer) {
		t.Errorf("signer %T, %v", signer, err)
	}
	if err := os.WriteFile(path, []byte("nothing"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadPublicKeys(path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("error %v does not name the file", err)
	}
}

func TestLeaves(t *testing.T) {
	ca := testCA(t, t.TempDir())
	for name, test := range map[string]struct {
		leaf           Leaf
		server, client bool
		host           string
	}{
		"front proxy":    {leaf: FrontProxyClient(), client: true},
		"kubelet client": {leaf: KubeletClient(), client: true},
		"node client":    {leaf: NodeClient("n1"), client: true},
		"node serving":   {leaf: NodeServing("n1", []string{"n1.example.org"}, []net.IP{net.IPv4(10, 0, 0, 1)}), server: true, host: "10.0.0.1"},
		"etcd member":    {leaf: EtcdMember("m1", []net.IP{net.IPv4(10, 0, 0, 2)}), server: true, client: true, host: "m1"},
		"etcd client":    {leaf: EtcdClient(), client: true},
	} {
		t.Run(name, func(t *testing.T) {
			pair, err := ca.Issue(test.leaf, start)
			if err != nil {
				t.Fatal(err)
			}
			cert, err := parseCert(pair.Cert)
			if err != nil {
				t.Fatal(err)
			}
			if got := slices.Contains(cert.ExtKeyUsage, x509.ExtKeyUsageServerAuth); got != test.server {
				t.Errorf("server: %v", got)
			}
			if got := slices.Contains(cert.ExtKeyUsage, x509.ExtKeyUsageClientAuth); got != test.client {
				t.Errorf("client: %v", got)
			}
			if test.host != "" {
				if err := cert.VerifyHostname(test.host); err != nil {
					t.Error(err)
				}
			}
		})
	}
}
