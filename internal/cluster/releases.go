package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"skiff/internal/store"
	"skiff/internal/upgrade"
)

// Where the releases of the servers are recorded. No kind has these keys, and no custom resource can have them: the group of one contains a dot.
const (
	levelKey       = store.DefaultPrefix + "/skiff/level"
	releasesPrefix = store.DefaultPrefix + "/skiff/servers/"

	// releaseInterval is how often a server records its release again. Servers that are not members of a cluster are forgotten after releaseTTL.
	releaseInterval = 10 * time.Minute
	releaseTTL      = time.Hour
)

// Releases records in the store which release each server of a cluster has, and their level: the oldest one, as of when it was newest. Every server from the
// level to one minor version above it may run; so a cluster is upgraded server by server, and not downgraded once all of its servers were upgraded.
type Releases struct {
	Store store.Store
	// Name is that of this server. Empty: no other server uses the store.
	Name string
	Own  upgrade.Release
	// Members returns the names of the servers that exist, whether they run or not. nil: they are not known, as with an external etcd, and a server that
	// has not recorded its release for an hour is forgotten.
	Members func(ctx context.Context) ([]string, error)
	Log     *slog.Logger
}

// MemberNames are the names of the members of etcd that have started.
func MemberNames(ctx context.Context, members Members) ([]string, error) {
	list, err := members.Members(ctx)
	var names []string
	for _, m := range list {
		names = append(names, m.Name)
	}
	return names, err
}

// recorded is what the store has.
type recorded struct {
	level    *upgrade.Release // nil: there are no servers yet
	written  *upgrade.Release // nil: none. Is lower than level, if a server has been removed since it was written
	levelKV  store.KeyValue
	servers  []upgrade.Server
	values   map[string]store.KeyValue // by name
	departed []store.KeyValue
}

// Admit checks that this server may run, and records it. The error is an *upgrade.Refusal if it may not, and any other if the store does not respond.
func (r *Releases) Admit(ctx context.Context) error {
	for {
		found, err := r.read(ctx)
		if err != nil {
			return err
		}
		if err := found.check(r.Own, r.Name); err != nil {
			return err
		}
		err = r.record(ctx, found)
		if errors.Is(err, store.ErrNoSpace) {
			// The server must run so that objects can be deleted. Its data directory has its release too.
			r.Log.Warn("failed to record the version of this server", "error", err)
			return nil
		}
		if _, isConflict := errors.AsType[*store.ConflictError](err); !isConflict && !errors.Is(err, store.ErrExists) {
			return err
		}
		// Another server has written meanwhile.
	}
}

// Run records this server again and again until ctx is done, so that the level rises when a server was removed.
func (r *Releases) Run(ctx context.Context) error {
	ticker := time.NewTicker(releaseInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
		if err := r.Admit(ctx); err != nil && ctx.Err() == nil {
			r.Log.Error("failed to record the version of this server", "error", err)
		}
	}
}

// Check checks that a server with another release may join.
func (r *Releases) Check(ctx context.Context, joining upgrade.Release) error {
	found, err := r.read(ctx)
	if err != nil {
		return err
	}
	return found.check(joining, "")
}

// List returns the recorded servers.
func (r *Releases) List(ctx context.Context) ([]upgrade.Server, error) {
	found, err := r.read(ctx)
	return found.servers, err
}

func (f recorded) check(release upgrade.Release, name string) error {
	if f.level == nil {
		return nil
	}
	others := slices.DeleteFunc(slices.Clone(f.servers), func(s upgrade.Server) bool { return s.Name == name })
	return release.CheckServers(*f.level, others)
}

func (r *Releases) read(ctx context.Context) (found recorded, err error) {
	found.values = map[string]store.KeyValue{}
	found.levelKV, err = r.Store.Get(ctx, levelKey)
	switch {
	case err == nil:
		level, err := upgrade.DecodeRelease(levelKey, found.levelKV.Value)
		if err != nil {
			return found, err
		}
		found.level, found.written = &level, &level
	case !errors.Is(err, store.ErrNotFound):
		return found, fmt.Errorf("read the version of the cluster: %w", err)
	}
	if r.Name == "" {
		return found, nil
	}
	kvs, _, _, err := r.Store.List(ctx, releasesPrefix, "", 0, 0)
	if err != nil {
		return found, fmt.Errorf("read the versions of the servers: %w", err)
	}
	exists := func(string) bool { return true }
	if r.Members != nil {
		names, err := r.Members(ctx)
		if err != nil {
			return found, fmt.Errorf("read the servers: %w", err)
		}
		exists = func(name string) bool { return slices.Contains(names, name) }
	}
	for _, kv := range kvs {
		s := upgrade.Server{Name: strings.TrimPrefix(kv.Key, releasesPrefix)}
		if !exists(s.Name) {
			found.departed = append(found.departed, kv)
			continue
		}
		found.values[s.Name] = kv
		s.Release, err = upgrade.DecodeRelease(kv.Key, kv.Value)
		switch {
		case err == nil:
			found.servers = append(found.servers, s)
		case s.Name != r.Name: // its own is written again
			return found, err
		}
	}
	// Without the key the servers have a level nevertheless: the first one may have ended before it wrote it.
	if oldest := oldest(found.servers); oldest != nil && (found.level == nil || oldest.Ahead(*found.level) > 0) {
		found.level = oldest
	}
	return found, nil
}

// oldest is the oldest release of servers; nil: there are none.
func oldest(servers []upgrade.Server) *upgrade.Release {
	var oldest *upgrade.Release
	for i, s := range servers {
		if oldest == nil || s.Release.Ahead(*oldest) < 0 {
			oldest = &servers[i].Release
		}
	}
	return oldest
}

// record writes the release of this server, and the level if it has changed.
func (r *Releases) record(ctx context.Context, found recorded) error {
	ttl := time.Duration(0)
	if r.Members == nil {
		ttl = releaseTTL
	}
	if r.Name != "" {
		if err := r.put(ctx, found.values[r.Name], releasesPrefix+r.Name, r.Own, ttl); err != nil {
			return err
		}
	}
	// The level does not change with patch versions, so that it is written once.
	others := slices.DeleteFunc(slices.Clone(found.servers), func(s upgrade.Server) bool { return s.Name == r.Name })
	level := oldest(append(others, upgrade.Server{Release: r.Own}))
	if found.written == nil || level.Ahead(*found.written) > 0 {
		if err := r.put(ctx, found.levelKV, levelKey, *level, 0); err != nil {
			return err
		}
		if found.written != nil {
			r.Log.Info("all servers were upgraded", "from", found.written.String(), "to", level.String())
		}
	}
	for _, kv := range found.departed {
		if _, err := r.Store.Delete(ctx, kv.Key, kv.Modified); err != nil {
			return err
		}
	}
	return nil
}

// put writes a release unless it is there already and does not expire.
func (r *Releases) put(ctx context.Context, found store.KeyValue, key string, release upgrade.Release, ttl time.Duration) error {
	value, err := json.Marshal(release)
	if err != nil {
		return err
	}
	switch {
	case found.Modified == 0:
		_, err = r.Store.Create(ctx, key, value, ttl)
	case ttl > 0 || string(found.Value) != string(value):
		_, err = r.Store.Update(ctx, key, value, ttl, found.Modified)
	}
	return err
}
