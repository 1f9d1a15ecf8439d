package system

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"

	"github.com/prometheus/client_golang/prometheus"

	"skiff/internal/config"
	"skiff/internal/store"
	"skiff/internal/store/encryption"
	"skiff/internal/store/etcd"
)

// openStore opens the embedded etcd in the data directory, or connects to an external one. Objects are encrypted if that is configured.
func openStore(ctx context.Context, c config.APIServer, encrypt *encryption.Encryption, registry *prometheus.Registry, log *slog.Logger) (store.Store, error) {
	settings := etcd.Config{
		CAFile: c.Etcd.CAFile, CertFile: c.Etcd.CertFile, KeyFile: c.Etcd.KeyFile,
		CompactionInterval: c.Etcd.CompactionInterval,
		QuotaBytes:         c.Etcd.QuotaBytes,
		Log:                log.With("component", "etcd"),
	}
	if len(c.Etcd.Servers) > 0 {
		settings.Servers = c.Etcd.Servers
	} else {
		settings.DataDir = filepath.Join(c.DataDir, "etcd")
		if c.Etcd.ListenClient != "" {
			settings.Listen = []string{c.Etcd.ListenClient}
			var err error
			if settings.CAFile, settings.CertFile, settings.KeyFile, err = etcdFiles(c); err != nil {
				return nil, err
			}
		}
	}
	s, err := etcd.Open(ctx, settings)
	if err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	registry.MustRegister(s)
	if encrypt == nil {
		return store.WithPrefix(s, c.Etcd.Prefix), nil
	}
	encrypt.ProbeProviders(ctx)
	return store.WithPrefix(encrypt.Wrap(s, resourceOfKey(c.Etcd.Prefix)), c.Etcd.Prefix), nil
}
