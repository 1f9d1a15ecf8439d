package system

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"

	"skiff/internal/config"
	"skiff/internal/store"
	"skiff/internal/store/encryption"
	"skiff/internal/store/etcd"
)

// openStore opens the embedded etcd below the data directory, or connects to the one that was configured. What is kept there is
// sealed when that is wanted.
func openStore(ctx context.Context, c config.Server, sealing *encryption.Encryption, log *slog.Logger) (store.Store, error) {
	settings := etcd.Config{
		CAFile: c.Etcd.CAFile, CertFile: c.Etcd.CertFile, KeyFile: c.Etcd.KeyFile,
		CompactionInterval: c.Etcd.CompactionInterval,
		Log:                log.With("part", "store"),
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
		return nil, fmt.Errorf("open the store: %w", err)
	}
	if sealing == nil {
		return s, nil
	}
	sealing.ProbeProviders(ctx)
	return sealing.Wrap(s, resourceOfKey()), nil
}
