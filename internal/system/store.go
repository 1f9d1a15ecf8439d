package system

import (
	"context"
	"errors"
	"fmt"
	"net"

	"skiff/internal/apiserver/authn"
	"skiff/internal/egress"
	"skiff/internal/store"
	"skiff/internal/store/etcd"
)

// openStoreServing opens the store. While the embedded etcd waits for other members, clients of the API are told so.
func (s *server) openStoreServing(ctx context.Context) (err error) {
	if s.peer == nil {
		s.store, err = s.openStore(ctx)
		return err
	}
	starting := serveStarting(s.listener.(*net.TCPListener), s.certs.serving.Clone(), authn.NewCertificates(s.certs.clientCAs.Pool))
	s.peer.OnWaiting = starting.report
	s.store, err = s.openStore(ctx)
	return errors.Join(err, starting.stop())
}

// openStore opens the embedded etcd in the data directory, or connects to an external one. Objects are encrypted if that is configured.
func (s *server) openStore(ctx context.Context) (store.Store, error) {
	c, dial := s.config.APIServer, s.egress.Dialer(egress.Etcd)
	if dial != nil && len(c.Etcd.Servers) == 0 {
		return nil, errors.New("--egress-selector-config-file: a proxy to etcd needs --etcd-servers: the embedded etcd is in the same process")
	}
	settings := etcd.Config{
		CAFile: c.Etcd.CAFile, CertFile: c.Etcd.CertFile, KeyFile: c.Etcd.KeyFile,
		CompactionInterval: c.Etcd.CompactionInterval,
		QuotaBytes:         c.Etcd.QuotaBytes,
		Dial:               dial,
		Log:                s.log.With("component", "etcd"),
	}
	if len(c.Etcd.Servers) > 0 {
		settings.Servers = c.Etcd.Servers
	} else {
		settings.DataDir, settings.Peer = etcdDir(c.DataDir), s.peer
		if c.Etcd.ListenClient != "" {
			settings.Listen = []string{c.Etcd.ListenClient}
			var err error
			if settings.CAFile, settings.CertFile, settings.KeyFile, err = etcdFiles(c); err != nil {
				return nil, err
			}
		}
	}
	opened, err := etcd.Open(ctx, settings)
	if err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	s.members = opened
	s.registry.MustRegister(opened)
	if len(c.Etcd.Servers) == 0 {
		if s.saver, err = s.newSaver(opened); err != nil {
			return nil, errors.Join(err, opened.Close())
		}
	}
	if s.encryption == nil {
		return store.WithPrefix(opened, c.Etcd.Prefix), nil
	}
	s.encryption.ProbeProviders(ctx)
	return store.WithPrefix(s.encryption.Wrap(opened, resourceOfKey(c.Etcd.Prefix)), c.Etcd.Prefix), nil
}
