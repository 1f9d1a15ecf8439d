package system

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	kubeletconfig "k8s.io/kubelet/config/v1beta1"
)

func healthzComponents(listener net.Listener, log io.Writer) *nodeComponents {
	port := int32(listener.Addr().(*net.TCPAddr).Port)
	return &nodeComponents{
		settings: &kubeletconfig.KubeletConfiguration{HealthzPort: &port, HealthzBindAddress: "127.0.0.1"}, log: slog.New(slog.NewTextHandler(log, nil)),
	}
}

func TestServeHealthz(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	n := healthzComponents(listener, io.Discard)
	_ = listener.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	served := make(chan error, 1)
	go func() { served <- n.serveHealthz(ctx) }()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for {
		response, err := client.Get("http://" + address + "/healthz")
		if err != nil {
			select {
			case err := <-served:
				t.Fatal(err)
			case <-time.After(time.Millisecond):
			}
			continue
		}
		body, err := io.ReadAll(response.Body)
		_ = response.Body.Close()
		if err != nil || response.StatusCode != http.StatusOK || string(body) != "ok" {
			t.Errorf("%d %q, %v", response.StatusCode, body, err)
		}
		break
	}
	cancel()
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// TestServeHealthzPortInUse checks that the node goes on without health checks when another program has the port, and says so once.
func TestServeHealthzPortInUse(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		n := healthzComponents(listener, &log)
		ctx, cancel := context.WithTimeout(t.Context(), 3*healthzRetry)
		defer cancel()
		if err := n.serveHealthz(ctx); err != nil {
			t.Error(err)
		}
		if count := strings.Count(log.String(), "failed to listen for health checks"); count != 1 {
			t.Errorf("%d messages: %s", count, &log)
		}
	})
}

// TestServerNodeUnused checks that the node inside `skiff server`, whose certificate the cluster's CA issues, refuses files for another one.
func TestServerNodeUnused(t *testing.T) {
	var log strings.Builder
	n := &nodeComponents{settings: &kubeletconfig.KubeletConfiguration{TLSCertFile: "a.crt", ServerTLSBootstrap: true}, log: slog.New(slog.NewTextHandler(&log, nil))}
	n.identity = func(string, []string) (*nodeIdentity, error) { return &nodeIdentity{}, nil }
	if err := n.buildIdentity(); err == nil || !strings.Contains(err.Error(), "tlsCertFile: a.crt is not supported") {
		t.Errorf("error %v", err)
	}
	n.settings.TLSCertFile = ""
	if err := n.buildIdentity(); err != nil || n.proof == nil || !strings.Contains(log.String(), "serverTLSBootstrap has no effect") {
		t.Errorf("error %v, log %s", err, &log)
	}
}
