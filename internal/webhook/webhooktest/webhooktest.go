// Package webhooktest has webhook servers for tests: real TLS servers on loopback, with a certificate authority of their own.
package webhooktest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// CA is a certificate authority.
type CA struct {
	t           testing.TB
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	// Bundle is its certificate in PEM.
	Bundle []byte
}

// NewCA makes a certificate authority.
func NewCA(t testing.TB) *CA {
	t.Helper()
	ca := &CA{t: t}
	ca.key = newKey(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "webhook CA"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &ca.key.PublicKey, ca.key)
	if err != nil {
		t.Fatal(err)
	}
	if ca.certificate, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	ca.Bundle = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return ca
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// Issue returns a certificate and its key in PEM, for a server with these names or addresses, or for a client with the first as its name.
func (ca *CA) Issue(names ...string) (certificate, key []byte) {
	ca.t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: names[0]},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	private := newKey(ca.t)
	der, err := x509.CreateCertificate(rand.Reader, template, ca.certificate, &private.PublicKey, ca.key)
	if err != nil {
		ca.t.Fatal(err)
	}
	encoded, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		ca.t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: encoded})
}

// Server is a webhook server.
type Server struct {
	*httptest.Server
	// CABundle verifies its certificate.
	CABundle []byte
	// Connections counts the connections that were accepted; Open are those that are open.
	Connections atomic.Int64

	mu   sync.Mutex
	open map[net.Conn]bool
}

// NewServer starts a server with a certificate of the CA for the names, or for 127.0.0.1 if there are none. HTTP/2 is offered. A client
// certificate is requested and verified by the CA. It is closed at the end of the test.
func NewServer(ca *CA, handler http.Handler, names ...string) *Server {
	ca.t.Helper()
	if len(names) == 0 {
		names = []string{"127.0.0.1"}
	}
	certificate, key := ca.Issue(names...)
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		ca.t.Fatal(err)
	}
	clients := x509.NewCertPool()
	clients.AddCert(ca.certificate)
	s := &Server{Server: httptest.NewUnstartedServer(handler), CABundle: ca.Bundle, open: map[net.Conn]bool{}}
	s.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: clients}
	s.EnableHTTP2 = true
	s.Config.ConnState = s.track
	s.StartTLS()
	ca.t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return s
}

func (s *Server) track(conn net.Conn, state http.ConnState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch state {
	case http.StateNew:
		s.Connections.Add(1)
		s.open[conn] = true
	case http.StateClosed, http.StateHijacked:
		delete(s.open, conn)
	}
}

// Open is the number of open connections.
func (s *Server) Open() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.open)
}

// Address is the server's host and port.
func (s *Server) Address() string { return s.Listener.Addr().String() }
