package system

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"time"

	apimachineryversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/rest"

	"skiff/internal/cluster"
	"skiff/internal/store"
	"skiff/internal/store/etcd"
	"skiff/internal/upgrade"
)

// admitPause is the pause before the version of a server is checked again after the store has not responded.
const admitPause = time.Second

// checkDataDir refuses a data directory that this version of a server must not use. Nothing is changed before.
func (s *server) checkDataDir() error {
	dir := s.config.DataDir
	return checkRecord(s.release, dir, etcd.HasMember(etcdDir(dir)), s.log)
}

// checkRecord refuses a data directory that a release must not use, and logs if another one has used it.
func checkRecord(own upgrade.Record, dir string, hasObjects bool, log *slog.Logger) error {
	have, err := upgrade.ReadRecord(dir)
	if err != nil {
		return err
	}
	if err := own.CheckData(dir, have, hasObjects); err != nil {
		return err
	}
	switch {
	case have == nil || have.Release == own.Release:
	case own.Ahead(have.Release) < 0:
		log.Warn("the data directory is of a newer version, whose layout this version has too", "from", have.Release.String(), "to", own.Release.String())
	default:
		log.Info("the data directory is of another version", "from", have.Release.String(), "to", own.Release.String())
	}
	return nil
}

// newReleases makes the record of the servers' versions. It is never encrypted, because no change of a key would write it again.
func (s *server) newReleases() *cluster.Releases {
	r := &cluster.Releases{Store: store.WithPrefix(s.members, s.config.Etcd.Prefix), Own: s.release.Release, Log: s.log.With("component", "cluster")}
	switch {
	case s.peer != nil:
		r.Name = s.peer.Name
		r.Members = func(ctx context.Context) ([]string, error) { return cluster.MemberNames(ctx, s.members) }
	case len(s.config.Etcd.Servers) > 0:
		r.Name = net.JoinHostPort(advertisedAddress(s.config.APIServer).String(), strconv.Itoa(s.config.SecurePort))
	}
	return r
}

// admit refuses a version that may not run in the cluster, and records it otherwise. Nothing was written before, so a server that is refused can be started with its
// former version. It is repeated until the store responds.
func (s *server) admit(ctx context.Context) error {
	for {
		err := s.releases.Admit(ctx)
		if err == nil {
			return s.release.Write(s.config.DataDir)
		}
		if _, isRefused := errors.AsType[*upgrade.Refusal](err); isRefused || ctx.Err() != nil {
			return cmp.Or(ctx.Err(), err)
		}
		s.log.Warn("failed to check the versions of the servers, retrying", "error", err)
		select {
		case <-time.After(admitPause):
		case <-ctx.Done():
		}
	}
}

// openReleases admits this version, unless etcd is an external one: that may not respond yet.
func (s *server) openReleases(ctx context.Context) error {
	s.releases = s.newReleases()
	if len(s.config.Etcd.Servers) > 0 {
		return nil
	}
	return s.admit(ctx)
}

// runCache runs the cache. With an external etcd this version is admitted first. The API server writes nothing before the cache is loaded.
func (s *server) runCache(ctx context.Context) error {
	if len(s.config.Etcd.Servers) > 0 {
		if err := s.admit(ctx); err != nil {
			return err
		}
	}
	return s.cache.Run(ctx)
}

// admitAgent refuses a data directory that this version of an agent must not use, and records the version.
func admitAgent(dataDir string, log *slog.Logger) error {
	own := upgrade.Current()
	if err := checkRecord(own, dataDir, false, log); err != nil {
		return err
	}
	return own.Write(dataDir)
}

// checkServerRelease refuses a server that is too many versions apart from this agent. Requests are repeated until the server has answered.
func checkServerRelease(ctx context.Context, connection *rest.Config, log *slog.Logger) error {
	own := upgrade.This()
	var server upgrade.Release
	err := untilAnswered(ctx, log, func() (err error) {
		server, err = serverRelease(ctx, connection)
		return err
	})
	if err != nil {
		return fmt.Errorf("read the version of the server: %w", err)
	}
	if server == (upgrade.Release{}) {
		return nil // it does not tell, which is logged
	}
	if own.Ahead(server) > 0 {
		log.Warn("this agent is newer than its server: servers are upgraded first", "agent", own.String(), "server", server.String())
	}
	return own.CheckAgent(server)
}

// serverRelease requests the version of a server.
func serverRelease(ctx context.Context, connection *rest.Config) (upgrade.Release, error) {
	remote, err := statusClient(rest.CopyConfig(connection))
	if err != nil {
		return upgrade.Release{}, err
	}
	data, err := remote.Get().AbsPath("/version").Do(ctx).Raw()
	if err != nil {
		return upgrade.Release{}, err
	}
	var info apimachineryversion.Info
	if err := json.Unmarshal(data, &info); err != nil {
		return upgrade.Release{}, fmt.Errorf("decode /version: %w", err)
	}
	return upgrade.ParseGitVersion(info.GitVersion)
}
