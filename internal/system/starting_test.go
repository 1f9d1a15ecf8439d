package system

import (
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"skiff/internal/apiserver/authn"
	"skiff/internal/store/etcd"
)

// While etcd waits for other members, clients are told so, and only administrators which members they are. Then the API server takes over the listener.
func TestStartingService(t *testing.T) {
	listener, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	c := testConfig(t)
	c.SecurePort = listener.Addr().(*net.TCPAddr).Port
	certs, err := newCertificates(c.APIServer, time.Now(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	admin, err := clientcmd.BuildConfigFromFlags("", filepath.Join(c.DataDir, adminKubeconfig))
	if err != nil {
		t.Fatal(err)
	}
	get := func(config *rest.Config, path string) (code int, body string) {
		t.Helper()
		client, err := rest.HTTPClientFor(config)
		if err != nil {
			t.Fatal(err)
		}
		defer client.CloseIdleConnections()
		response, err := client.Get(admin.Host + path)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		return response.StatusCode, string(text)
	}
	starting := serveStarting(listener, certs.serving.Clone(), authn.NewCertificates(certs.clientCAs.Pool))
	if code, body := get(admin, "/readyz"); code != http.StatusInternalServerError || !strings.Contains(body, "[-]etcd failed: opening etcd\n") {
		t.Errorf("/readyz: %d %s", code, body)
	}
	starting.report(etcd.Waiting{Voters: 3, Unreachable: []etcd.UnreachableMember{
		{Member: etcd.Member{Name: "b", PeerURL: "https://192.0.2.2:2380"}, Err: errors.New("connection refused")},
		{Member: etcd.Member{PeerURL: "https://192.0.2.3:2380"}, Err: errors.New("no route to host")},
	}})
	const reason = "waiting for a majority of the 3 members of etcd: 1 can be reached"
	for _, test := range []struct {
		name   string
		config *rest.Config
		want   string
	}{
		{"administrator", admin, reason + "; cannot reach b at https://192.0.2.2:2380: connection refused, https://192.0.2.3:2380: no route to host"},
		{"anonymous", rest.AnonymousClientConfig(admin), reason},
	} {
		if code, body := get(test.config, "/readyz"); code != http.StatusInternalServerError || !strings.Contains(body, "[-]etcd failed: "+test.want+"\n") {
			t.Errorf("%s: /readyz: %d %s", test.name, code, body)
		}
		if code, body := get(test.config, "/api/v1/pods"); code != http.StatusServiceUnavailable || !strings.Contains(body, `"message":"the server is starting: `+test.want+`"`) {
			t.Errorf("%s: pods: %d %s", test.name, code, body)
		}
		if code, body := get(test.config, "/livez"); code != http.StatusOK {
			t.Errorf("%s: /livez: %d %s", test.name, code, body)
		}
	}

	if err := starting.stop(); err != nil {
		t.Fatal(err)
	}
	// A client that connects before the API server accepts connections waits for it.
	waiting, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	waiting.Close()
	served := make(chan error, 1)
	server := newHTTPServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "pods") }), certs.serving.Clone(), 0)
	go func() { served <- server.Serve(tls.NewListener(listener, server.TLSConfig)) }()
	if code, body := get(admin, "/api/v1/pods"); code != http.StatusOK || body != "pods" {
		t.Errorf("after the start: %d %s", code, body)
	}
	_ = server.Close()
	<-served
}
