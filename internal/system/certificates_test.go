package system

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"skiff/internal/config"
	"skiff/internal/pki"
)

// pairFiles issues a certificate and writes its files.
func pairFiles(t *testing.T, ca *pki.CA, name string, leaf pki.Leaf) (certFile, keyFile string) {
	t.Helper()
	pair, err := ca.Issue(leaf, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	return writeFile(t, filepath.Join(dir, name+".crt"), string(pair.Cert)), writeFile(t, filepath.Join(dir, name+".key"), string(pair.Key))
}

func writeFile(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func newTestCA(t *testing.T, name string) *pki.CA {
	t.Helper()
	ca, err := pki.NewCA(name, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

// serveTLS serves the API with the certificates of a configuration and returns its address.
func serveTLS(t *testing.T, c config.Server, handler http.Handler) string {
	t.Helper()
	certs, err := newCertificates(c.APIServer, time.Now(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	service := apiService{
		server: newHTTPServer(handler, certs.serving.Clone(), 0), http2Server: c.HTTP2Server, requestTimeout: time.Minute,
		begin: func() {}, endLongRunning: func(time.Duration) {}, log: slog.New(slog.DiscardHandler),
	}
	go func() { done <- service.serve(ctx, listener) }()
	t.Cleanup(func() {
		stop()
		<-done
	})
	return listener.Addr().String()
}

// The flags of TLS select the certificate, the versions and the cipher suites of the API.
func TestServingCertificates(t *testing.T) {
	ca := newTestCA(t, "outside-ca")
	c := testConfig(t)
	c.TLS.CertFile, c.TLS.KeyFile = pairFiles(t, ca, "serving", pki.Leaf{CommonName: "Serving", DNSNames: []string{"api.example.org"}, Server: true})
	sniCert, sniKey := pairFiles(t, ca, "named", pki.Leaf{CommonName: "Named", DNSNames: []string{"other.example.org"}, Server: true})
	c.TLS.SNI = []config.NamedCert{{CertFile: sniCert, KeyFile: sniKey, Names: []string{"named.example.org"}}}
	c.TLS.CipherSuites = []string{"TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"}
	address := serveTLS(t, c, http.NotFoundHandler())
	dial := func(name string, version uint16) (tls.ConnectionState, error) {
		conn, err := tls.Dial("tcp", address, &tls.Config{ServerName: name, MaxVersion: version, InsecureSkipVerify: true})
		if err != nil {
			return tls.ConnectionState{}, err
		}
		defer conn.Close()
		return conn.ConnectionState(), nil
	}
	for name, want := range map[string]string{"api.example.org": "Serving", "named.example.org": "Named", "unknown.example.org": "Serving"} {
		state, err := dial(name, tls.VersionTLS12)
		if err != nil {
			t.Fatal(err)
		}
		if got := state.PeerCertificates[0].Subject.CommonName; got != want || state.CipherSuite != tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384 {
			t.Errorf("%s: certificate %s, cipher suite %s", name, got, tls.CipherSuiteName(state.CipherSuite))
		}
	}
	c.TLS.MinVersion = "VersionTLS13"
	address = serveTLS(t, c, http.NotFoundHandler())
	if _, err := dial("api.example.org", tls.VersionTLS12); err == nil {
		t.Error("a handshake with TLS 1.2 succeeded")
	}
	if _, err := dial("api.example.org", 0); err != nil {
		t.Error(err)
	}
	for _, test := range []struct {
		change func(*config.TLS)
		want   string
	}{
		{func(c *config.TLS) {
			_, c.KeyFile = pairFiles(t, ca, "other", pki.Leaf{CommonName: "Other", Server: true})
		}, "--tls-cert-file: "},
		{func(c *config.TLS) { c.SNI[0].CertFile = "/missing" }, "--tls-sni-cert-key: "},
	} {
		c := testConfig(t)
		c.TLS = config.TLS{CertFile: sniCert, KeyFile: sniKey, SNI: []config.NamedCert{{CertFile: sniCert, KeyFile: sniKey}}}
		test.change(&c.TLS)
		if _, err := newCertificates(c.APIServer, time.Now(), slog.New(slog.DiscardHandler)); err == nil || !strings.HasPrefix(err.Error(), test.want) {
			t.Errorf("error %v, want %q", err, test.want)
		}
	}
}

// The published roots verify a certificate of --tls-cert-file whose chain has its CA.
func TestRootCAs(t *testing.T) {
	outside, c := newTestCA(t, "outside-ca"), testConfig(t)
	certFile, keyFile := pairFiles(t, outside, "serving", pki.Leaf{CommonName: "Serving", DNSNames: []string{"api.example.org"}, Server: true})
	leaf, err := os.ReadFile(certFile)
	if err != nil {
		t.Fatal(err)
	}
	c.TLS.CertFile, c.TLS.KeyFile = writeFile(t, certFile, string(leaf)+string(outside.Cert)), keyFile
	certs, err := newCertificates(c.APIServer, time.Now(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := pki.ParseCertificates(leaf)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(certs.rootCAs)
	if _, err := parsed[0].Verify(x509.VerifyOptions{Roots: roots}); err != nil {
		t.Error(err)
	}
	if !strings.Contains(string(certs.rootCAs), string(certs.ca.Cert)) {
		t.Error("the cluster's CA is not trusted any more")
	}
}

// Users of the CAs in --client-ca-file, and users that a front proxy of --requestheader-client-ca-file sends, are authenticated.
func TestClientCAFiles(t *testing.T) {
	users, proxies := newTestCA(t, "users"), newTestCA(t, "proxies")
	c := testConfig(t)
	c.Authentication.ClientCAFile = writeFile(t, filepath.Join(t.TempDir(), "ca.crt"), string(users.Cert))
	c.Authentication.RequestHeader.CAFile = writeFile(t, filepath.Join(t.TempDir(), "proxy-ca.crt"), string(proxies.Cert))
	c.Authentication.RequestHeader.UsernameHeaders = []string{"X-User"}
	server, _ := startAPIServer(t, c)
	address := serveTLS(t, c, server.Handler())
	request := func(ca *pki.CA, leaf pki.Leaf, header string) string {
		certFile, keyFile := pairFiles(t, ca, "client", leaf)
		pair, err := tls.LoadX509KeyPair(certFile, keyFile)
		if err != nil {
			t.Fatal(err)
		}
		transport := &http.Transport{TLSClientConfig: &tls.Config{Certificates: []tls.Certificate{pair}, InsecureSkipVerify: true}}
		defer transport.CloseIdleConnections()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+address+"/apis/authentication.k8s.io/v1/selfsubjectreviews", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		if header != "" {
			r.Header.Set(header, "jane")
		}
		response, err := transport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		body := make([]byte, 4096)
		n, _ := response.Body.Read(body)
		return string(body[:n])
	}
	for _, test := range []struct {
		name   string
		ca     *pki.CA
		header string
		want   string
	}{
		{"user", users, "", `"username":"joe"`},
		{"user with a proxy's header", users, "X-User", `"username":"joe"`},
		{"proxy", proxies, "X-User", `"username":"jane"`},
		{"proxy with another header", proxies, "X-Remote-User", `"code":401`},
		{"unknown CA", newTestCA(t, "unknown"), "", `system:anonymous`},
	} {
		if got := request(test.ca, pki.User("joe"), test.header); !strings.Contains(strings.ReplaceAll(got, " ", ""), test.want) {
			t.Errorf("%s: %s", test.name, got)
		}
	}
	c.Authentication.RequestHeader.CAFile = c.Authentication.ClientCAFile
	if _, err := newCertificates(c.APIServer, time.Now(), slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "contain overlapping certificates; --requestheader-allowed-names must be specified") {
		t.Errorf("error %v", err)
	}
	c.Authentication.RequestHeader.AllowedNames = []string{"proxy"}
	if _, err := newCertificates(c.APIServer, time.Now(), slog.New(slog.DiscardHandler)); err != nil {
		t.Error(err)
	}
}

// The flags of the kubelet client add a CA and replace the client certificate.
func TestKubeletClient(t *testing.T) {
	ca, c := newTestCA(t, "kubelets"), testConfig(t)
	c.KubeletClient.CAFile = writeFile(t, filepath.Join(t.TempDir(), "ca.crt"), string(ca.Cert))
	c.KubeletClient.CertFile, c.KubeletClient.KeyFile = pairFiles(t, ca, "client", pki.User("api"))
	certs, err := newCertificates(c.APIServer, time.Now(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	client, err := certs.kubelet.GetClientCertificate(nil)
	if err != nil || client.Leaf.Subject.CommonName != "api" {
		t.Errorf("client certificate %v, %v", client, err)
	}
	for _, issuer := range []*pki.CA{ca, certs.ca} {
		certFile, _ := pairFiles(t, issuer, "kubelet", pki.NodeServing("node", nil, nil))
		text, err := os.ReadFile(certFile)
		if err != nil {
			t.Fatal(err)
		}
		parsed, err := pki.ParseCertificates(text)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := parsed[0].Verify(x509.VerifyOptions{Roots: certs.kubelet.RootCAs, DNSName: "node"}); err != nil {
			t.Error(err)
		}
	}
	c.KubeletClient.KeyFile = "/missing"
	if _, err := newCertificates(c.APIServer, time.Now(), slog.New(slog.DiscardHandler)); err == nil || !strings.HasPrefix(err.Error(), "--kubelet-client-certificate: ") {
		t.Errorf("error %v", err)
	}
}
