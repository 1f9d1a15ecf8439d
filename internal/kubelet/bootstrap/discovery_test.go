package bootstrap

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"skiff/internal/pki"
)

// serve runs a TLS server on loopback and returns its URL.
func serve(t *testing.T, config *tls.Config) string {
	t.Helper()
	listener, err := tls.Listen("tcp", "127.0.0.1:0", config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				// A host that has not verified the server yet must not send anything.
				if n, _ := conn.Read(make([]byte, 1)); n > 0 {
					t.Error("the server received data")
				}
			}()
		}
	}()
	return "https://" + listener.Addr().String()
}

func newCA(t *testing.T, name string) *pki.CA {
	t.Helper()
	a, err := pki.NewCA(name, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// pair is a server's certificate, followed by others.
func pair(t *testing.T, a *pki.CA, leaf pki.Leaf, behind ...*pki.CA) *tls.Config {
	t.Helper()
	leaf.CommonName, leaf.Server = "kube-apiserver", true
	issued, err := a.Issue(leaf, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	cert, err := tls.X509KeyPair(issued.Cert, issued.Key)
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range behind {
		cert.Certificate = append(cert.Certificate, b.Certificate().Raw)
	}
	return &tls.Config{Certificates: []tls.Certificate{cert}}
}

func TestDiscoverCA(t *testing.T) {
	ours, theirs := newCA(t, "skiff-ca"), newCA(t, "skiff-ca")
	here := pki.Leaf{IPs: []net.IP{net.IPv4(127, 0, 0, 1)}}
	dir := pki.Dir(t.TempDir())
	keeper, err := dir.Renewer("apiserver", ours, pki.Leaf{CommonName: "kube-apiserver", IPs: here.IPs, Server: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		what   string
		server *tls.Config
		want   Hash
		good   bool
	}{
		{"the API server's own configuration", pki.ServerTLS(keeper.GetChain, ours), HashOf(ours.Certificate()), true},
		{"the right server", pair(t, ours, here, ours), HashOf(ours.Certificate()), true},
		{"another server", pair(t, theirs, here, theirs), HashOf(ours.Certificate()), false},
		{"another server that presents our CA", pair(t, theirs, here, theirs, ours), HashOf(ours.Certificate()), false},
		{"a server that does not present its CA", pair(t, ours, here), HashOf(ours.Certificate()), false},
		{"a server of ours with another address", pair(t, ours, pki.Leaf{IPs: []net.IP{net.IPv4(127, 0, 0, 2)}}, ours), HashOf(ours.Certificate()), false},
		{"the key of the server itself", pair(t, ours, here, ours), leafHash(t, pair(t, ours, here, ours)), false},
	} {
		t.Run(test.what, func(t *testing.T) {
			found, err := DiscoverCA(t.Context(), serve(t, test.server), test.want)
			if !test.good {
				if !errors.Is(err, ErrUntrustedServer) || found != nil {
					t.Errorf("found %q, %v", found, err)
				}
				return
			}
			if err != nil || string(found) != string(ours.Cert) {
				t.Errorf("found %q, %v", found, err)
			}
		})
	}
	if _, err := DiscoverCA(t.Context(), "http://127.0.0.1:1", Hash{}); err == nil || !strings.Contains(err.Error(), "https") {
		t.Errorf("without TLS: %v", err)
	}
}

func leafHash(t *testing.T, config *tls.Config) Hash {
	t.Helper()
	leaf, err := x509.ParseCertificate(config.Certificates[0].Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	return HashOf(leaf)
}

// A server's newer CAs are accepted if a known CA has cross-signed them, others are not.
func TestRefreshCAs(t *testing.T) {
	dir := pki.Dir(t.TempDir())
	first, err := dir.CA("ca", "skiff-ca", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	leaf := pki.Leaf{CommonName: "kube-apiserver", IPs: []net.IP{net.IPv4(127, 0, 0, 1)}, Server: true}
	server := func(a *pki.CA) string {
		t.Helper()
		keeper, err := dir.Renewer("apiserver", a, leaf)
		if err != nil {
			t.Fatal(err)
		}
		return serve(t, pki.ServerTLS(keeper.GetChain, a))
	}
	if known, err := RefreshCAs(t.Context(), server(first), first.Cert); err != nil || string(known) != string(first.Cert) {
		t.Errorf("nothing has changed, but %q, %v", known, err)
	}
	second, err := dir.RotateCA("ca", "", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	known, err := RefreshCAs(t.Context(), server(second), first.Cert)
	if certs, parseErr := pki.ParseCertificates(known); err != nil || parseErr != nil || len(certs) != 2 || !certs[1].Equal(second.Certificate()) {
		t.Fatalf("the new CA is missing: %q, %v", known, err)
	}
	second, err = dir.DropOldCAs("ca")
	if err != nil {
		t.Fatal(err)
	}
	if again, err := RefreshCAs(t.Context(), server(second), known); err != nil || string(again) != string(known) {
		t.Errorf("after the old CA is dropped: %q, %v", again, err)
	}
	otherCA := newCA(t, "skiff-ca")
	if known, err := RefreshCAs(t.Context(), serve(t, pair(t, first, leaf, first, otherCA)), first.Cert); err != nil || string(known) != string(first.Cert) {
		t.Errorf("another cluster's CA is trusted: %q, %v", known, err)
	}
	if _, err := RefreshCAs(t.Context(), serve(t, pair(t, otherCA, leaf, otherCA)), first.Cert); err == nil {
		t.Error("another server is followed")
	}
}
