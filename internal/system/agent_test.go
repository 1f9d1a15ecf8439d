package system

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/transport"

	"skiff/internal/kubelet/bootstrap"
	"skiff/internal/pki"
)

// issue is a certificate of a node for an hour.
func issue(t *testing.T, authority *pki.CA, node string, now time.Time) pki.Pair {
	t.Helper()
	leaf := pki.NodeClient(node)
	leaf.Lifetime = time.Hour
	pair, err := authority.Issue(leaf, now)
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

func TestWhichKubeconfigsAreGood(t *testing.T) {
	now := time.Now()
	authority, err := pki.NewCA("test", now)
	if err != nil {
		t.Fatal(err)
	}
	fresh, past := issue(t, authority, "one", now), issue(t, authority, "one", now.Add(-2*time.Hour))
	dir := t.TempDir()
	for what, test := range map[string]struct {
		user *clientcmdapi.AuthInfo
		good bool
	}{
		"none":            {nil, false},
		"fresh":           {&clientcmdapi.AuthInfo{ClientCertificateData: fresh.Cert, ClientKeyData: fresh.Key}, true},
		"past":            {&clientcmdapi.AuthInfo{ClientCertificateData: past.Cert, ClientKeyData: past.Key}, false},
		"file that lacks": {&clientcmdapi.AuthInfo{ClientCertificate: "/nowhere/x.pem", ClientKey: "/nowhere/x.pem"}, false},
		"token":           {&clientcmdapi.AuthInfo{Token: "x"}, true},
		"nobody":          {&clientcmdapi.AuthInfo{}, false},
	} {
		path := filepath.Join(dir, what)
		if test.user != nil {
			k := clientcmdapi.NewConfig()
			k.Clusters["c"], k.AuthInfos["u"] = &clientcmdapi.Cluster{Server: "https://127.0.0.1:1"}, test.user
			k.Contexts["x"], k.CurrentContext = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}, "x"
			if err := clientcmd.WriteToFile(*k, path); err != nil {
				t.Fatal(err)
			}
		}
		if good := goodKubeconfig(path, now); good != test.good {
			t.Errorf("%s: %v, want %v", what, good, test.good)
		}
	}
}

// A connection takes up the certificate that has been renewed, on connections that stand as well.
func TestConnectionsFollowTheCertificate(t *testing.T) {
	before := transport.CertCallbackRefreshDuration
	transport.CertCallbackRefreshDuration = 20 * time.Millisecond
	defer func() { transport.CertCallbackRefreshDuration = before }()
	now := time.Now()
	authority, err := pki.NewCA("test", now)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write([]byte(r.TLS.PeerCertificates[0].SerialNumber.String()))
	}))
	server.TLS = &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: authority.Pool()}
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()

	first, second := issue(t, authority, "one", now), issue(t, authority, "one", now)
	identity := bootstrap.NodeClient(filepath.Join(t.TempDir(), "pki"), "one", slog.New(slog.DiscardHandler))
	connection := &rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true, CertData: first.Cert, KeyData: first.Key}}
	if err := keepClient(connection, identity); err != nil {
		t.Fatal(err)
	}
	client, err := rest.HTTPClientFor(connection)
	if err != nil {
		t.Fatal(err)
	}
	defer client.CloseIdleConnections()
	seen := func() string {
		t.Helper()
		response, err := client.Get(server.URL)
		if err != nil {
			return err.Error()
		}
		defer response.Body.Close()
		text := make([]byte, 100)
		n, _ := response.Body.Read(text)
		return string(text[:n])
	}
	serial := func(pair pki.Pair) string {
		t.Helper()
		certs, err := pki.ParseCertificates(pair.Cert)
		if err != nil {
			t.Fatal(err)
		}
		return certs[0].SerialNumber.String()
	}
	if got := seen(); got != serial(first) {
		t.Errorf("shows %s, want what the kubeconfig has", got)
	}
	if err := identity.Store(second.Cert, second.Key); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(10 * time.Second); seen() != serial(second); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the old certificate is still shown")
		}
	}
}

func TestJoining(t *testing.T) {
	dir := t.TempDir()
	log := slog.New(slog.DiscardHandler)
	authority, err := pki.NewCA("test", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	j := joining{
		server: "https://127.0.0.1:1", identity: bootstrap.NodeClient(dir, "one", log), authorityFile: filepath.Join(dir, "ca.crt"),
		kubeconfig: filepath.Join(dir, "kubeconfig"), log: log,
	}
	if err := j.join(t.Context(), ""); err == nil {
		t.Error("joined without a token")
	}
	// A member needs no server to know that it is one, with its old token or without.
	pair := issue(t, authority, "one", time.Now())
	if err := j.identity.Store(pair.Cert, pair.Key); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(j.authorityFile, authority.Cert, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, word := range []string{"", bootstrap.NewToken(bootstrap.HashOf(authority.Certificate())).String()} {
		if err := j.join(t.Context(), word); err != nil || !goodKubeconfig(j.kubeconfig, time.Now()) {
			t.Errorf("%q: %v", word, err)
		}
	}
	// A token of another cluster makes it join that one; its server is waited for.
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := j.join(ctx, bootstrap.NewToken(bootstrap.Hash{}).String()); err == nil || ctx.Err() == nil {
		t.Errorf("joined another cluster: %v", err)
	}
}
