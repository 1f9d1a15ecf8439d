package etcd_test

import (
	"context"
	"net"
	"sync/atomic"
	"testing"

	"skiff/internal/store/etcd"
)

// A remote etcd is reached with the dialer of the configuration, whatever its address is.
func TestRemoteDial(t *testing.T) {
	socket := t.TempDir() + "/socket"
	open(t, etcd.Config{DataDir: t.TempDir(), Listen: []string{"unix://" + socket}})
	var dialed atomic.Value
	s := open(t, etcd.Config{Servers: []string{"http://etcd.example:2379"}, Dial: func(ctx context.Context, _, address string) (net.Conn, error) {
		dialed.Store(address)
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}})
	if _, err := s.Create(t.Context(), "/registry/a", []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	if dialed.Load() != "etcd.example:2379" {
		t.Errorf("dialed %v", dialed.Load())
	}
}
