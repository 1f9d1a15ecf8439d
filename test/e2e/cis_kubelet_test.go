package e2e

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"skiff/internal/api"
	"skiff/internal/client"
	"skiff/internal/config"
	"skiff/internal/delegated"
	"skiff/internal/kubelet/server"
	"skiff/internal/pki"
	"skiff/test/cluster"
)

// kubeletControls are the automated checks of the kubelet that apply to skiff. The server is the kubelet's own, with a handler that
// stands for its pods.
var kubeletControls = []struct {
	id, title, how string
	check          func(*testing.T, *kubeletTarget)
}{
	{"4.2.1", "anonymous requests are refused", "always", func(t *testing.T, d *kubeletTarget) { d.anonymous().refused(t, 401, "GET", "/pods", "") }},
	{"4.2.2", "the authorization mode is not AlwaysAllow", "always: by SubjectAccessReview", func(t *testing.T, d *kubeletTarget) {
		d.user(t, "nobody").refused(t, 403, "GET", "/pods", "")
		d.user(t, "nobody").refused(t, 403, "GET", "/exec/team/p/c?command=id", "")
		d.user(t, "root", "system:masters").must(t, "GET", "/pods", "")
	}},
	{"4.2.3", "client certificates are verified", "inside the server: by the cluster's CA; standalone: authentication.x509.clientCAFile", func(t *testing.T, d *kubeletTarget) {
		untrustedCA, err := pki.NewCA("skiff-ca", time.Now())
		if err != nil {
			t.Fatal(err)
		}
		d.caller(t, untrustedCA, pki.User("root", "system:masters")).refused(t, 401, "GET", "/pods", "")
	}},
	{"4.2.4", "there is no read-only port", "there is none", func(t *testing.T, _ *kubeletTarget) {
		settings, err := (&config.Node{}).KubeletConfiguration()
		if err != nil || settings.ReadOnlyPort != 0 {
			t.Errorf("read-only port %d, %v", settings.ReadOnlyPort, err)
		}
	}},
	{"4.2.9", "the kubelet has a certificate", "always: issued by the cluster's CA, self-signed, or tlsCertFile", func(t *testing.T, d *kubeletTarget) {
		plain := d.client(nil)
		plain.url = "http://" + d.address
		plain.refused(t, 0, "GET", "/healthz", "")
	}},
	{"4.2.12", "only strong ciphers are used", "always: Go's, from TLS 1.2 on", func(t *testing.T, d *kubeletTarget) { strongTLS(t, "https://"+d.address, &tls.Config{}) }},
}

// kubeletTarget is a kubelet's server; its clients have certificates of a cluster.
type kubeletTarget struct {
	*target
	address string
}

func TestCISBenchmarkKubelet(t *testing.T) {
	t.Parallel()
	c, err := cluster.Skiff(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	d := startKubeletServer(t, c)
	for _, control := range kubeletControls {
		t.Run(control.id+" "+control.title, func(t *testing.T) {
			if control.how == "" {
				t.Error("the control does not say how it is met")
			}
			control.check(t, d)
		})
	}
}

func startKubeletServer(t *testing.T, c *cluster.Cluster) *kubeletTarget {
	t.Helper()
	directory := pki.Dir(filepath.Join(c.Dir, "data/pki"))
	ca, err := directory.CA("ca", "", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	renewer, err := directory.Renewer("kubelet-serving", ca, pki.NodeServing("n", nil, []net.IP{net.IPv4(127, 0, 0, 1)}))
	if err != nil {
		t.Fatal(err)
	}
	settings, err := c.Config()
	if err != nil {
		t.Fatal(err)
	}
	remote, err := client.New(settings, api.Scheme(), api.Named())
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	kubeletServer := &delegated.Server{
		Listener: listener, Certificate: renewer.GetCertificate, Metrics: prometheus.NewRegistry(),
		Paths:  map[string]http.Handler{"/pods": http.NotFoundHandler(), "/exec/": http.NotFoundHandler()},
		Filter: &delegated.Filter{Reviewer: delegated.Reviews(remote), ClientCAs: ca.Pool, Access: server.Access("n"), Log: slog.New(slog.DiscardHandler)},
	}
	kubeletServer.Paths["/pods"] = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- kubeletServer.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	// The clients of a target use its cluster's URL: here that is the kubelet's server.
	front := *c
	front.URL = "https://" + listener.Addr().String()
	return &kubeletTarget{target: &target{cluster: &front, pki: directory, ca: ca}, address: listener.Addr().String()}
}
