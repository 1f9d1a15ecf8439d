package pki

import (
	"crypto/tls"
	"net"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"
)

// writePair issues a certificate for the names and writes its files.
func writePair(t *testing.T, ca *CA, dir, name string, dnsNames ...string) (certFile, keyFile string) {
	t.Helper()
	pair, err := ca.Issue(Leaf{CommonName: "Test " + name, DNSNames: dnsNames, Server: true}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	certFile, keyFile = filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key")
	write(t, certFile, pair.Cert)
	write(t, keyFile, pair.Key)
	return certFile, keyFile
}

func write(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

func commonName(t *testing.T, get GetCertificate, hello *tls.ClientHelloInfo) string {
	t.Helper()
	cert, err := get(hello)
	if err != nil {
		t.Fatal(err)
	}
	return cert.Leaf.Subject.CommonName
}

// A certificate is reloaded when its files change; files that are invalid or missing change nothing.
func TestCertFilesReload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		ca, err := NewCA("test", time.Now())
		if err != nil {
			t.Fatal(err)
		}
		certFile, keyFile := writePair(t, ca, dir, "a")
		files, err := ReadCertFiles(certFile, keyFile, discard)
		if err != nil {
			t.Fatal(err)
		}
		expect := func(want string) {
			t.Helper()
			if got := commonName(t, files.GetCertificate, &tls.ClientHelloInfo{}); got != want {
				t.Errorf("certificate %s, want %s", got, want)
			}
		}
		expect("Test a")
		otherCert, otherKey := writePair(t, ca, dir, "b")
		rename := func(from, to string) {
			if err := os.Rename(from, to); err != nil {
				t.Fatal(err)
			}
		}
		rename(otherCert, certFile)
		time.Sleep(fileCheckInterval)
		expect("Test a") // the key does not match yet
		rename(otherKey, keyFile)
		expect("Test a") // checked only once in the interval
		time.Sleep(fileCheckInterval)
		expect("Test b")
		if err := os.Remove(certFile); err != nil {
			t.Fatal(err)
		}
		time.Sleep(fileCheckInterval)
		expect("Test b")
	})
}

func TestCABundleReload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var cas [3]*CA
		for i := range cas {
			var err error
			if cas[i], err = NewCA("test", time.Now()); err != nil {
				t.Fatal(err)
			}
		}
		file := filepath.Join(t.TempDir(), "ca.crt")
		write(t, file, cas[1].Cert)
		bundle, err := ReadCABundle(file, discard, cas[0])
		if err != nil {
			t.Fatal(err)
		}
		own, err := ReadCABundle("", discard, cas[2])
		if err != nil {
			t.Fatal(err)
		}
		if want := string(cas[0].Cert) + string(cas[1].Cert); string(bundle.PEM()) != want || bundle.Overlaps(own) {
			t.Errorf("bundle\n%s, want\n%s", bundle.PEM(), want)
		}
		before := bundle.Pool()
		write(t, file, cas[2].Cert)
		time.Sleep(fileCheckInterval)
		if bundle.Pool() == before || !bundle.Overlaps(own) {
			t.Error("the file was not reloaded")
		}
		merged, err := MergeCertificates(time.Now(), bundle.PEM(), nil, own.PEM(), cas[1].Cert)
		if want := string(cas[0].Cert) + string(cas[2].Cert) + string(cas[1].Cert); err != nil || string(merged) != want {
			t.Errorf("merged\n%s, %v, want\n%s", merged, err, want)
		}
		if merged, err := MergeCertificates(time.Now().Add(CALifetime+time.Hour), own.PEM()); err != nil || len(merged) > 0 {
			t.Errorf("expired certificates are kept: %s, %v", merged, err)
		}
	})
}

// addressedConn is a connection with a local address.
type addressedConn struct {
	net.Conn
	address net.TCPAddr
}

func (c addressedConn) LocalAddr() net.Addr { return &c.address }

func TestSelectCertificate(t *testing.T) {
	dir := t.TempDir()
	ca, err := NewCA("test", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	load := func(name string, dnsNames ...string) *CertFiles {
		certFile, keyFile := writePair(t, ca, dir, name, dnsNames...)
		files, err := ReadCertFiles(certFile, keyFile, discard)
		if err != nil {
			t.Fatal(err)
		}
		return files
	}
	fallback := load("fallback", "a.example.org")
	get := SelectCertificate([]SNICert{
		{Files: load("wildcard", "*.example.org", "given.example.org")},
		{Files: load("exact", "b.example.org")},
		{Files: load("given"), Names: []string{"given.example.org", "10.0.0.1"}},
		{Files: load("later", "b.example.org")},
	}, fallback.GetCertificate)
	for _, test := range []struct{ name, address, want string }{
		{"b.example.org", "", "Test exact"},
		{"B.example.org", "", "Test exact"},
		{"c.example.org", "", "Test wildcard"},
		{"c.d.example.org", "", "Test fallback"},
		{"given.example.org", "", "Test given"},
		{"", "10.0.0.1", "Test given"},
		{"", "10.0.0.2", "Test fallback"},
		{"other.org", "10.0.0.1", "Test fallback"},
	} {
		hello := &tls.ClientHelloInfo{ServerName: test.name, Conn: addressedConn{address: net.TCPAddr{IP: net.ParseIP(test.address), Port: 6443}}}
		if got := commonName(t, get, hello); got != test.want {
			t.Errorf("%+v: %s", test, got)
		}
	}
}
