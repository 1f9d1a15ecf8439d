package bootstrap

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/transport"

	"skiff/internal/pki"
)

// issueNode is a certificate of a node for an hour.
func issueNode(t *testing.T, ca *pki.CA, node string, now time.Time) pki.Pair {
	t.Helper()
	leaf := pki.NodeClient(node)
	leaf.Lifetime = time.Hour
	pair, err := ca.Issue(leaf, now)
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

func TestUsableKubeconfig(t *testing.T) {
	now := time.Now()
	ca, err := pki.NewCA("test", now)
	if err != nil {
		t.Fatal(err)
	}
	fresh, expired := issueNode(t, ca, "one", now), issueNode(t, ca, "one", now.Add(-2*time.Hour))
	dir := t.TempDir()
	for what, test := range map[string]struct {
		user   *clientcmdapi.AuthInfo
		usable bool
	}{
		"none":           {nil, false},
		"fresh":          {&clientcmdapi.AuthInfo{ClientCertificateData: fresh.Cert, ClientKeyData: fresh.Key}, true},
		"expired":        {&clientcmdapi.AuthInfo{ClientCertificateData: expired.Cert, ClientKeyData: expired.Key}, false},
		"missing file":   {&clientcmdapi.AuthInfo{ClientCertificate: "/nowhere/x.pem", ClientKey: "/nowhere/x.pem"}, false},
		"token":          {&clientcmdapi.AuthInfo{Token: "x"}, true},
		"no credentials": {&clientcmdapi.AuthInfo{}, false},
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
		if usable := UsableKubeconfig(path, now); usable != test.usable {
			t.Errorf("%s: %v, want %v", what, usable, test.usable)
		}
	}
}

// A client presents the renewed certificate, also on connections that are open.
func TestUseCertificate(t *testing.T) {
	before := transport.CertCallbackRefreshDuration
	transport.CertCallbackRefreshDuration = 20 * time.Millisecond
	defer func() { transport.CertCallbackRefreshDuration = before }()
	now := time.Now()
	ca, err := pki.NewCA("test", now)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write([]byte(r.TLS.PeerCertificates[0].SerialNumber.String()))
	}))
	server.TLS = &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: ca.Pool()}
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()

	first, second := issueNode(t, ca, "one", now), issueNode(t, ca, "one", now)
	identity := NodeClient(filepath.Join(t.TempDir(), "pki"), "one", slog.New(slog.DiscardHandler))
	connection := &rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true, CertData: first.Cert, KeyData: first.Key}}
	if err := UseCertificate(connection, identity); err != nil {
		t.Fatal(err)
	}
	client, err := rest.HTTPClientFor(connection)
	if err != nil {
		t.Fatal(err)
	}
	defer client.CloseIdleConnections()
	serialSent := func() string {
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
	if got := serialSent(); got != serial(first) {
		t.Errorf("presents %s, want that of the kubeconfig", got)
	}
	if err := identity.Store(second.Cert, second.Key); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(10 * time.Second); serialSent() != serial(second); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the old certificate is still presented")
		}
	}
}

func TestJoin(t *testing.T) {
	dir := t.TempDir()
	log := slog.New(slog.DiscardHandler)
	ca, err := pki.NewCA("test", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	j := Join{
		Servers: []string{"https://127.0.0.1:1"}, Certificate: NodeClient(dir, "one", log), CAFile: filepath.Join(dir, "ca.crt"),
		Kubeconfig: filepath.Join(dir, "kubeconfig"), Log: log,
	}
	if err := j.Run(t.Context(), ""); err == nil {
		t.Error("joined without a token")
	}
	// A host that has joined needs no server, with its old token or without.
	pair := issueNode(t, ca, "one", time.Now())
	if err := j.Certificate.Store(pair.Cert, pair.Key); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(j.CAFile, ca.Cert, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, token := range []string{"", NewToken(HashOf(ca.Certificate())).String()} {
		if err := j.Run(t.Context(), token); err != nil || !UsableKubeconfig(j.Kubeconfig, time.Now()) {
			t.Errorf("%q: %v", token, err)
		}
	}
	// With a token of another cluster it joins that one; its server is waited for.
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := j.Run(ctx, NewToken(Hash{}).String()); err == nil || ctx.Err() == nil {
		t.Errorf("joined another cluster: %v", err)
	}
}

// The first server that can be reached decides: one that is not there, does not respond or is busy is passed over.
func TestTryServers(t *testing.T) {
	refused, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	refused.Close()
	_, dialError := net.Dial("tcp", refused.Addr().String())
	if dialError == nil {
		t.Fatal("a closed listener accepts connections")
	}
	untrusted := fmt.Errorf("get certificates: %w", ErrUntrustedServer)
	busy := apierrors.NewServiceUnavailable("starting")
	for _, test := range []struct {
		what  string
		errs  []error // of the servers
		tried int
		want  error
	}{
		{"the first", []error{nil, nil}, 1, nil},
		{"the second", []error{dialError, nil, nil}, 2, nil},
		{"after one that hangs", []error{fmt.Errorf("get: %w", context.DeadlineExceeded), nil}, 2, nil},
		{"after one behind a proxy without servers", []error{&url.Error{Op: "Get", Err: io.EOF}, nil}, 2, nil},
		{"after one that starts", []error{busy, nil}, 2, nil},
		{"another cluster's", []error{dialError, untrusted, nil}, 2, ErrUntrustedServer},
		{"none", []error{dialError, busy}, 2, busy},
	} {
		tried := 0
		servers := make([]string, len(test.errs))
		err := TryServers(t.Context(), servers, func(string) error {
			tried++
			return test.errs[tried-1]
		})
		if tried != test.tried || !errors.Is(err, test.want) {
			t.Errorf("%s: %d servers tried, error %v", test.what, tried, err)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := TryServers(ended, make([]string, 2), func(string) error { return dialError }); err == nil {
		t.Error("no error when the context is done")
	}
}
