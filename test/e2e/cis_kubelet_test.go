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

// kubeletControls are the automated checks of the kubelet that have a meaning here. The door is the kubelet's own, in front of a
// page that stands for its pods.
var kubeletControls = []struct {
	id, title, how string
	check          func(*testing.T, *kubeletDoor)
}{
	{"4.2.1", "anonymous requests are refused", "always", func(t *testing.T, d *kubeletDoor) { d.stranger().refused(t, 401, "GET", "/pods", "") }},
	{"4.2.2", "the authorization mode is not AlwaysAllow", "always: the API server is asked", func(t *testing.T, d *kubeletDoor) {
		d.user(t, "nobody").refused(t, 403, "GET", "/pods", "")
		d.user(t, "nobody").refused(t, 403, "GET", "/exec/team/p/c?command=id", "")
		d.user(t, "root", "system:masters").must(t, "GET", "/pods", "")
	}},
	{"4.2.3", "client certificates are verified", "inside the server: by the cluster's authority; alone: authentication.x509.clientCAFile", func(t *testing.T, d *kubeletDoor) {
		strangers, err := pki.NewCA("skiff-ca", time.Now())
		if err != nil {
			t.Fatal(err)
		}
		d.caller(t, strangers, pki.User("root", "system:masters")).refused(t, 401, "GET", "/pods", "")
	}},
	{"4.2.4", "there is no read-only port", "there is none", func(t *testing.T, _ *kubeletDoor) {
		settings, err := (&config.Node{}).KubeletConfiguration()
		if err != nil || settings.ReadOnlyPort != 0 {
			t.Errorf("read-only port %d, %v", settings.ReadOnlyPort, err)
		}
	}},
	{"4.2.9", "the kubelet has a certificate", "always: given by the cluster's authority, its own, or tlsCertFile", func(t *testing.T, d *kubeletDoor) {
		plain := d.client(nil)
		plain.url = "http://" + d.address
		plain.refused(t, 0, "GET", "/healthz", "")
	}},
	{"4.2.12", "only strong ciphers are used", "always: Go's, from TLS 1.2 on", func(t *testing.T, d *kubeletDoor) { strongTLS(t, "https://"+d.address, &tls.Config{}) }},
}

// kubeletDoor is where a kubelet is asked; its clients are those of a cluster.
type kubeletDoor struct {
	*target
	address string
}

func TestCISBenchmarkOfTheKubelet(t *testing.T) {
	c, err := cluster.Skiff(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	d := openKubeletDoor(t, c)
	for _, control := range kubeletControls {
		t.Run(control.id+" "+control.title, func(t *testing.T) {
			if control.how == "" {
				t.Error("nobody says how it is met")
			}
			control.check(t, d)
		})
	}
}

func openKubeletDoor(t *testing.T, c *cluster.Cluster) *kubeletDoor {
	t.Helper()
	directory := pki.Dir(filepath.Join(c.Dir, "data/pki"))
	ca, err := directory.CA("ca", "", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	keeper, err := directory.Renewer("kubelet-serving", ca, pki.NodeServing("n", nil, []net.IP{net.IPv4(127, 0, 0, 1)}))
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
	door := &delegated.Server{
		Listener: listener, Certificate: keeper.GetCertificate, Metrics: prometheus.NewRegistry(),
		Paths:  map[string]http.Handler{"/pods": http.NotFoundHandler(), "/exec/": http.NotFoundHandler()},
		Filter: &delegated.Filter{Reviewer: delegated.Reviews(remote), ClientCAs: ca.Pool, Access: server.Access("n"), Log: slog.New(slog.DiscardHandler)},
	}
	door.Paths["/pods"] = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- door.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	// The clients of a target speak to its cluster's URL: here that is the door.
	behind := *c
	behind.URL = "https://" + listener.Addr().String()
	return &kubeletDoor{target: &target{cluster: &behind, pki: directory, ca: ca}, address: listener.Addr().String()}
}
