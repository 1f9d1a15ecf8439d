package egress

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"skiff/internal/pki"
)

// connectProxy serves HTTP CONNECT and counts the connections.
type connectProxy struct{ connections atomic.Int32 }

func (p *connectProxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodConnect || r.Host == "refused.example:1" {
		http.Error(w, "no", http.StatusForbidden)
		return
	}
	target, err := net.Dial("tcp", r.Host)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	p.connections.Add(1)
	conn, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		target.Close()
		return
	}
	_, _ = io.WriteString(conn, "HTTP/1.1 200 Connection established\r\n\r\n")
	go func() { _, _ = io.Copy(target, conn); target.Close() }()
	go func() { _, _ = io.Copy(conn, target); conn.Close() }()
}

func writeFile(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func configuration(t *testing.T, selections string) string {
	return writeFile(t, "egress.yaml", "apiVersion: apiserver.k8s.io/v1beta1\nkind: EgressSelectorConfiguration\negressSelections:\n"+selections)
}

// tlsFiles makes a CA and the certificate of a client in files, and the TLS configuration of a server that requires it.
func tlsFiles(t *testing.T) (ca, cert, key string, server *tls.Config) {
	t.Helper()
	now := time.Now()
	authority, err := pki.NewCA("ca", now)
	if err != nil {
		t.Fatal(err)
	}
	client, err := authority.Issue(pki.User("apiserver"), now)
	if err != nil {
		t.Fatal(err)
	}
	serving, err := authority.Issue(pki.Leaf{CommonName: "proxy", DNSNames: []string{"proxy.example"}, Server: true}, now)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(serving.Cert, serving.Key)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(authority.Cert)
	return writeFile(t, "ca.crt", string(authority.Cert)), writeFile(t, "client.crt", string(client.Cert)), writeFile(t, "client.key", string(client.Key)),
		&tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert}
}

// Requests reach a server through proxies over TCP, TLS with client certificates, and a UNIX socket.
func TestHTTPConnect(t *testing.T) {
	target := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "reached") }))
	defer target.Close()
	counted := &connectProxy{}
	plain := httptest.NewServer(counted)
	defer plain.Close()
	ca, cert, key, secure := tlsFiles(t)
	encrypted := httptest.NewUnstartedServer(counted)
	encrypted.TLS = secure
	encrypted.StartTLS()
	defer encrypted.Close()
	socket := filepath.Join(t.TempDir(), "socket")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	local := httptest.NewUnstartedServer(counted)
	local.Listener.Close()
	local.Listener = listener
	local.Start()
	defer local.Close()
	for name, transport := range map[string]string{
		"tcp":  "{tcp: {url: " + plain.URL + "}}",
		"tls":  "{tcp: {url: " + encrypted.URL + ", tlsConfig: {caBundle: " + ca + ", clientCert: " + cert + ", clientKey: " + key + ", tlsServerName: proxy.example}}}",
		"unix": "{uds: {udsName: " + socket + "}}",
	} {
		selector, err := Read(configuration(t, "- {name: cluster, connection: {proxyProtocol: HTTPConnect, transport: "+transport+"}}\n- {name: etcd, connection: {proxyProtocol: Direct}}\n"))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if selector.Dialer(Etcd) != nil || selector.Dialer(ControlPlane) != nil {
			t.Errorf("%s: a network without a proxy has a dialer", name)
		}
		if !selector.Has(Etcd) || !selector.Has(Cluster) || selector.Has(ControlPlane) {
			t.Errorf("%s: the wrong networks are configured", name)
		}
		before := counted.connections.Load()
		client := &http.Client{Transport: &http.Transport{DialContext: selector.Dialer(Cluster)}}
		response, err := client.Get(target.URL)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		body, _ := io.ReadAll(response.Body)
		response.Body.Close()
		client.CloseIdleConnections()
		if string(body) != "reached" || counted.connections.Load() != before+1 {
			t.Errorf("%s: %q after %d connections", name, body, counted.connections.Load()-before)
		}
		if _, err := selector.Dialer(Cluster)(t.Context(), "tcp", "refused.example:1"); err == nil || !strings.Contains(err.Error(), "403 Forbidden") {
			t.Errorf("%s: a refused connection: error %v", name, err)
		}
	}
}

// proxySelector is the configuration of a proxy for the cluster at an address.
func proxySelector(t *testing.T, address string) *Selector {
	t.Helper()
	selector, err := Read(configuration(t, "- {name: cluster, connection: {proxyProtocol: HTTPConnect, transport: {tcp: {url: http://"+address+"}}}}\n"))
	if err != nil {
		t.Fatal(err)
	}
	return selector
}

// A proxy that does not respond does not hold a request beyond its context.
func TestSilentProxy(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	accepted := make(chan net.Conn, 1)
	go func() {
		if conn, err := listener.Accept(); err == nil {
			accepted <- conn
			cancel()
		}
	}()
	if conn, err := proxySelector(t, listener.Addr().String()).Dialer(Cluster)(ctx, "tcp", "10.0.0.1:80"); err == nil {
		conn.Close()
		t.Error("connected")
	}
	(<-accepted).Close()
}

// The addresses of nodes come from their kubelets: an address that is not a host and a port never reaches the proxy.
func TestInvalidAddress(t *testing.T) {
	counted := &connectProxy{}
	var requests atomic.Int32
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		counted.ServeHTTP(w, r)
	}))
	defer proxy.Close()
	dial := proxySelector(t, proxy.Listener.Addr().String()).Dialer(Cluster)
	for _, address := range []string{
		"victim:80 HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\nHost: x:10250",
		net.JoinHostPort("victim HTTP/1.1\r\nHost: victim\r\n\r\n", "10250"),
		"[victim:80 HTTP/1.1\r\n\r\n]:10250", "a b:80", "user@host:80", "host/path:80", "host%0d:80", "fe80::1%eth0:80", "[fe80::1%25eth0]:80",
		"host", ":80", "host:", "host:http", "host:0", "host:65536", "host:+80", "host:80\r\n", "-:80",
	} {
		conn, err := dial(t.Context(), "tcp", address)
		if err == nil {
			conn.Close()
		}
		if err == nil || !strings.Contains(err.Error(), "invalid address") {
			t.Errorf("%q: error %v", address, err)
		}
	}
	if n := requests.Load(); n != 0 {
		t.Errorf("the proxy received %d requests", n)
	}
	for _, address := range []string{"10.0.0.1:80", "[2001:db8::1]:65535", "node-1.Example.com:1", "node.example.:10250", "my_node:80"} {
		if err := validateAddress(address); err != nil {
			t.Errorf("%s: %v", address, err)
		}
	}
}

// Names are resolved, and every address of theirs is checked.
func TestChecked(t *testing.T) {
	reached := ""
	lookup := func(_ context.Context, _, host string) ([]netip.Addr, error) {
		addresses := map[string][]netip.Addr{
			"node.example":  {netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("2001:db8::1")},
			"localhost":     {netip.MustParseAddr("127.0.0.1")},
			"mixed.example": {netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("127.0.0.1")},
		}[host]
		if addresses == nil {
			return nil, errors.New("no such host")
		}
		return addresses, nil
	}
	dial := Checked(func(_ context.Context, _, address string) (net.Conn, error) { reached = address; return nil, nil }, lookup,
		func(address string) error {
			if netip.MustParseAddrPort(address).Addr().IsLoopback() {
				return errors.New("local")
			}
			return nil
		})
	for address, want := range map[string]string{
		"10.0.0.1:80": "", "[2001:db8::1]:80": "", "node.example:10250": "",
		"127.0.0.1:80": "local", "[::1]:80": "local", "localhost:80": "local", "mixed.example:80": "local", "unknown.example:80": "no such host", "no port": "missing port",
	} {
		reached = ""
		_, err := dial(t.Context(), "tcp", address)
		if want == "" && (err != nil || reached != address) || want != "" && (err == nil || !strings.Contains(err.Error(), want) || reached != "") {
			t.Errorf("%s: error %v, reached %q", address, err, reached)
		}
	}
}

func TestInvalidConfigurations(t *testing.T) {
	for selections, want := range map[string]string{
		"- {name: master, connection: {proxyProtocol: Direct}}\n":                                                                              `egressSelections[0].name: Unsupported value: "master"`,
		"- {name: etcd, connection: {proxyProtocol: Direct}}\n- {name: Etcd, connection: {proxyProtocol: Direct}}\n":                           "egressSelections[1].name: Duplicate value",
		"- {name: cluster, connection: {proxyProtocol: GRPC, transport: {uds: {udsName: /x}}}}\n":                                              "egressSelections[0].connection.proxyProtocol: Invalid value: \"GRPC\": skiff does not speak",
		"- {name: cluster, connection: {proxyProtocol: SOCKS}}\n":                                                                              "egressSelections[0].connection.proxyProtocol: Unsupported value",
		"- {name: cluster, connection: {proxyProtocol: Direct, transport: {uds: {udsName: /x}}}}\n":                                            "egressSelections[0].connection.transport: Forbidden",
		"- {name: cluster, connection: {proxyProtocol: HTTPConnect}}\n":                                                                        "egressSelections[0].connection.transport: Required value",
		"- {name: cluster, connection: {proxyProtocol: HTTPConnect, transport: {uds: {}}}}\n":                                                  "egressSelections[0].connection.transport.uds.udsName: Required value",
		"- {name: cluster, connection: {proxyProtocol: HTTPConnect, transport: {uds: {udsName: /x}, tcp: {url: 'http://a:1'}}}}\n":             "tcp and uds cannot both be set",
		"- {name: cluster, connection: {proxyProtocol: HTTPConnect, transport: {tcp: {url: 'ftp://a:1'}}}}\n":                                  "egressSelections[0].connection.transport.tcp.url: Invalid value",
		"- {name: cluster, connection: {proxyProtocol: HTTPConnect, transport: {tcp: {url: 'https://a:1'}}}}\n":                                "egressSelections[0].connection.transport.tcp.tlsConfig: Required value",
		"- {name: cluster, connection: {proxyProtocol: HTTPConnect, transport: {tcp: {url: 'http://a:1', tlsConfig: {clientKey: /x}}}}}\n":     "egressSelections[0].connection.transport.tcp.tlsConfig: Forbidden",
		"- {name: cluster, connection: {proxyProtocol: HTTPConnect, transport: {tcp: {url: 'https://a:1', tlsConfig: {clientKey: /none}}}}}\n": "egressSelections[0].connection.transport.tcp.tlsConfig: Invalid value",
		"- {name: cluster, connection: {proxyProtocol: Direct, unknown: 1}}\n":                                                                 "unknown field",
	} {
		if _, err := Read(configuration(t, selections)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", selections, err, want)
		}
	}
	if _, err := Read(writeFile(t, "other.yaml", "apiVersion: v1\nkind: Pod\n")); err == nil {
		t.Error("a pod is read as a configuration")
	}
	if s, err := Read(""); s.Dialer(Cluster) != nil || err != nil {
		t.Errorf("without a file: error %v", err)
	}
}
