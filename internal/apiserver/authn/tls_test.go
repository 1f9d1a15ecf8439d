package authn

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"skiff/internal/pki"
)

// TestOverTLS uses a server that requests client certificates without verifying them, and clients with all kinds of credentials.
func TestOverTLS(t *testing.T) {
	directory := pki.Dir(t.TempDir())
	now := time.Now()
	cluster, err := directory.CA("ca", "cluster", now)
	if err != nil {
		t.Fatal(err)
	}
	front, err := directory.CA("front-proxy-ca", "front-proxy", now)
	if err != nil {
		t.Fatal(err)
	}
	serving, err := directory.Renewer("apiserver", cluster, pki.Leaf{CommonName: "kube-apiserver", DNSNames: []string{"kubernetes"}, Server: true})
	if err != nil {
		t.Fatal(err)
	}
	a, err := New(Config{
		ClientCAs: cluster.Pool, FrontProxy: &FrontProxyConfig{CAs: front.Pool, AllowedNames: []string{pki.FrontProxyClientName}},
		Anonymous: &AnonymousUser{},
	})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, ok, err := a.Authenticate(r)
		if !ok {
			http.Error(w, fmt.Sprint(err), http.StatusUnauthorized)
			return
		}
		fmt.Fprintf(w, "%s %s %d", r.Proto, user.Username, len(r.Header["X-Remote-User"]))
	}))
	server.TLS = pki.ServerTLS(serving.GetChain, cluster, front)
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	unknown, err := pki.NewCA("unknown", now)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name string
		ca   *pki.CA
		leaf pki.Leaf
		code int
		want string
	}{
		{name: "nobody", code: 200, want: "HTTP/2.0 system:anonymous 0"},
		{name: "user", ca: cluster, leaf: pki.User("jane"), code: 200, want: "HTTP/2.0 jane 0"},
		{name: "proxy", ca: front, leaf: pki.FrontProxyClient(), code: 200, want: "HTTP/2.0 eve 0"},
		{name: "another of the proxies' CA", ca: front, leaf: pki.User("jane"), code: 401},
		{name: "proxy's name, cluster's CA", ca: cluster, leaf: pki.FrontProxyClient(), code: 200, want: "HTTP/2.0 front-proxy-client 0"},
		{name: "unknown CA", ca: unknown, leaf: pki.User("jane"), code: 401},
		{name: "expired", ca: cluster, leaf: pki.Leaf{CommonName: "jane", Client: true, Lifetime: time.Nanosecond}, code: 401},
	} {
		t.Run(test.name, func(t *testing.T) {
			config := &tls.Config{RootCAs: cluster.Pool(), ServerName: "kubernetes"}
			if test.ca != nil {
				pair, err := test.ca.Issue(test.leaf, now)
				if err != nil {
					t.Fatal(err)
				}
				cert, err := tls.X509KeyPair(pair.Cert, pair.Key)
				if err != nil {
					t.Fatal(err)
				}
				// Sent even if the server does not list its CA.
				config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &cert, nil }
			}
			client := &http.Client{Transport: &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true}}
			defer client.CloseIdleConnections()
			for range 2 {
				request, err := http.NewRequest(http.MethodGet, server.URL, nil)
				if err != nil {
					t.Fatal(err)
				}
				request.Header.Set("X-Remote-User", "eve")
				response, err := client.Do(request)
				if err != nil {
					t.Fatal(err)
				}
				body, err := io.ReadAll(response.Body)
				response.Body.Close()
				if err != nil || response.StatusCode != test.code || test.want != "" && string(body) != test.want {
					t.Fatalf("%d %s, %v", response.StatusCode, body, err)
				}
			}
		})
	}
}
