package etcd_test

import (
	"context"
	"io"
	"log/slog"
	"testing"

	"skiff/internal/store"
	"skiff/internal/store/etcd"
	"skiff/internal/store/storetest"
)

func discardLog() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

func open(t testing.TB, config etcd.Config) *etcd.Store {
	t.Helper()
	if config.Log == nil {
		config.Log = discardLog()
	}
	s, err := etcd.Open(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func TestEmbedded(t *testing.T) {
	storetest.Run(t, func(t *testing.T) store.Store {
		return open(t, etcd.Config{DataDir: t.TempDir()})
	})
}

// An embedded etcd that listens is remote for another store.
func TestRemote(t *testing.T) {
	storetest.Run(t, func(t *testing.T) store.Store {
		address := "unix://" + t.TempDir() + "/socket"
		open(t, etcd.Config{DataDir: t.TempDir(), Listen: []string{address}})
		return open(t, etcd.Config{Servers: []string{address}})
	})
}
