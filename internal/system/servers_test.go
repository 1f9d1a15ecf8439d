package system

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"

	"skiff/internal/api/core"
	"skiff/internal/cluster"
	"skiff/internal/config"
	"skiff/internal/pki"
	"skiff/internal/store/etcd"
)

// A server never starts a cluster of its own where it was to join another, and never joins with data of its own.
func TestCheckMember(t *testing.T) {
	initial, joining := &memberRecord{Name: "a"}, &memberRecord{Name: "a", Joins: true}
	resetting := &memberRecord{Name: "a", Resets: true}
	for _, test := range []struct {
		name    string
		config  config.Servers
		record  *memberRecord
		hasData bool
		want    string // substring of the error; empty: none
	}{
		{"first server", config.Servers{Init: true}, nil, false, ""},
		{"single server becomes the first", config.Servers{Init: true}, nil, true, ""},
		{"first server again", config.Servers{}, initial, true, ""},
		{"first server that crashed", config.Servers{}, initial, false, ""},
		{"joins", config.Servers{Join: []string{"https://a"}}, nil, false, ""},
		{"joins after a crash", config.Servers{Join: []string{"https://a"}}, joining, false, ""},
		{"has joined", config.Servers{Join: []string{"https://a"}}, joining, true, ""},
		{"has joined, without flags", config.Servers{}, joining, true, ""},
		{"has not joined, without flags", config.Servers{}, joining, false, "--join: required"},
		{"has not joined, starts another", config.Servers{Init: true}, joining, false, "--cluster-init"},
		{"single server joins", config.Servers{Join: []string{"https://a"}}, nil, true, "--join: this server has data of a cluster of its own"},
		{"reset", config.Servers{Reset: true}, joining, true, ""},
		{"starts after a reset that was interrupted", config.Servers{}, resetting, true, "--cluster-reset: required"},
		{"reset after one that was interrupted", config.Servers{Reset: true}, resetting, true, ""},
		{"joins with an empty directory", config.Servers{Join: []string{"https://a"}}, resetting, false, ""},
		{"reset without data", config.Servers{Reset: true}, nil, false, "--cluster-reset"},
	} {
		err := checkMember(&test.config, test.record, test.hasData)
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: %v, want %q", test.name, err, test.want)
		}
	}
}

// A server without flags is a member of a cluster if it was one.
func TestMemberRecord(t *testing.T) {
	s := &server{config: testConfig(t), log: slog.New(slog.DiscardHandler)}
	if err := s.joinCluster(t.Context()); err != nil || s.peer != nil {
		t.Fatalf("a single server: %v, %v", s.peer, err)
	}
	if _, err := os.Stat(memberFile(s.config.DataDir)); err == nil {
		t.Error("a single server has a record")
	}
	s.config.Servers.Init, s.config.Servers.PeerPort = true, 1 // which nobody has
	if err := s.joinCluster(t.Context()); err != nil || s.peer == nil {
		t.Fatalf("--cluster-init: %v, %v", s.peer, err)
	}
	first := *s.peer
	if first.URL != "https://127.0.0.1:1" || first.Listen != "127.0.0.1:1" || first.Name == "" {
		t.Errorf("%+v", first)
	}
	s.config.Servers.Init, s.peer = false, nil
	if err := s.joinCluster(t.Context()); err != nil || s.peer == nil || s.peer.Name != first.Name {
		t.Errorf("without flags: %+v, %v", s.peer, err)
	}
	s.config.Etcd.Servers, s.peer = []string{"https://10.0.0.5:2379"}, nil
	if err := s.joinCluster(t.Context()); err != nil || s.peer != nil {
		t.Errorf("with an external etcd: %+v, %v", s.peer, err)
	}
}

// A server that ends while it stores the keys of the cluster that it joins does not start another with them, and can join again.
func TestJoinInterrupted(t *testing.T) {
	s := &server{config: testConfig(t), log: slog.New(slog.DiscardHandler), peer: &etcd.Peer{Name: "a"}}
	dir := s.config.DataDir
	keys := filepath.Join(dir, "pki")
	if err := os.RemoveAll(keys); err != nil {
		t.Fatal(err)
	}
	// The directory of the keys cannot be created.
	if err := os.WriteFile(keys, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	response := &cluster.JoinResponse{Keys: cluster.Keys{"ca.key": []byte("key"), "ca.crt": []byte("certificate")}, Members: []etcd.Member{{ID: "1"}}}
	if err := s.acceptJoin(&memberRecord{Name: "a", Joins: true}, response); err == nil {
		t.Fatal("the keys were written to a file")
	}
	record, err := readMemberRecord(dir)
	if err != nil || record == nil || record.Name != "a" {
		t.Fatalf("recorded: %+v, %v", record, err)
	}
	if err := checkMember(&config.Servers{}, record, false); err == nil || !strings.Contains(err.Error(), "--join: required") {
		t.Errorf("it starts a cluster of its own: %v", err)
	}
	if err := os.Remove(keys); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(checkMember(&config.Servers{Join: []string{"https://a"}}, record, false), s.acceptJoin(record, response)); err != nil {
		t.Errorf("it cannot join again: %v", err)
	}
	if stored, err := os.ReadFile(filepath.Join(keys, "ca.crt")); err != nil || string(stored) != "certificate" || len(s.peer.Members) != 1 {
		t.Errorf("after it has joined: %q, %v, %v", stored, err, s.peer.Members)
	}
}

// The balancer of an agent checks servers by the cluster's CA, whatever certificate others get, and learns servers from the endpoints.
func TestAgentBalancer(t *testing.T) {
	c := testConfig(t)
	other := newTestCA(t, "other")
	c.TLS.CertFile, c.TLS.KeyFile = pairFiles(t, other, "serving", pki.Leaf{CommonName: "api.example.com", DNSNames: []string{"api.example.com"}, Server: true})
	var code atomic.Int32
	code.Store(http.StatusOK)
	server := serveTLS(t, c, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(int(code.Load())) }))
	dir := t.TempDir()
	b := &agentBalancer{file: filepath.Join(dir, "servers.json"), caFile: filepath.Join(c.DataDir, "pki/ca.crt"), log: slog.New(slog.DiscardHandler)}
	if err := b.open(t.Context(), []string{"https://" + server}); err != nil {
		t.Fatal(err)
	}
	if err := b.check(t.Context(), server); err != nil {
		t.Errorf("a server that is ready: %v", err)
	}
	code.Store(http.StatusUnauthorized)
	if err := b.check(t.Context(), server); err != nil {
		t.Errorf("a server without anonymous requests: %v", err)
	}
	code.Store(http.StatusInternalServerError)
	if err := b.check(t.Context(), server); err == nil || !strings.Contains(err.Error(), "500") {
		t.Errorf("a server that is not ready: %v", err)
	}
	untrusted := testConfig(t)
	if err := b.check(t.Context(), serveTLS(t, untrusted, http.NotFoundHandler())); err == nil {
		t.Error("a server of another cluster is healthy")
	}

	b.update(core.NewKubernetesEndpointSlice([]netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")}, 6443))
	b.update(&discoveryv1.EndpointSlice{}) // changes nothing
	want := []string{"192.0.2.1:6443", "192.0.2.2:6443"}
	if got, err := b.load(); err != nil || !slices.Equal(got, want) {
		t.Errorf("recorded: %v, %v", got, err)
	}
	if err := b.forget(); err != nil {
		t.Error(err)
	}
	if got, err := b.load(); err != nil || got != nil {
		t.Errorf("recorded after a change of the cluster: %v, %v", got, err)
	}
}

// Clients of an agent reach a configured server that lives through the balancer.
func TestAgentBalancerForwards(t *testing.T) {
	c := testConfig(t)
	server := serveTLS(t, c, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") }))
	b := &agentBalancer{file: filepath.Join(t.TempDir(), "servers.json"), caFile: filepath.Join(c.DataDir, "pki/ca.crt"), log: slog.New(slog.DiscardHandler)}
	if err := b.open(t.Context(), []string{"https://127.0.0.1:1", "https://" + server}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- b.Run(ctx) }()
	if err := b.check(ctx, b.Address()); err != nil {
		t.Errorf("through the balancer: %v", err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if conn, err := net.Dial("tcp", b.Address()); err == nil {
		conn.Close()
		t.Error("the balancer listens after its end")
	}
}
