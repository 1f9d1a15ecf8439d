package cluster

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"skiff/internal/store"
	"skiff/internal/store/memory"
	"skiff/internal/upgrade"
)

func release(skiff, kubernetes string) upgrade.Release {
	return upgrade.Release{Skiff: skiff, Kubernetes: kubernetes}
}

func newRelease(skiff, kubernetes string) *upgrade.Release {
	r := release(skiff, kubernetes)
	return &r
}

// upgraded is a cluster whose servers are started with versions of skiff, one after the other.
type upgraded struct {
	store store.Store
	names []string
}

// start starts a server and says what it is told: "" if it may run, and otherwise words of the refusal.
func (u *upgraded) start(t *testing.T, name, skiff, want string) {
	t.Helper()
	r := &Releases{
		Store: u.store, Name: name, Own: release(skiff, "v1.37.1"), Log: discardLog(),
		Members: func(context.Context) ([]string, error) { return u.names, nil },
	}
	err := r.Admit(t.Context())
	_, isRefused := errors.AsType[*upgrade.Refusal](err)
	if want == "" && err != nil || want != "" && (!isRefused || !strings.Contains(err.Error(), want)) {
		t.Errorf("server %s with %s: %v, want %q", name, skiff, err, want)
	}
}

// Servers are upgraded one by one. Until the last one has the new version, the old one may run; then it may not.
func TestReleases(t *testing.T) {
	u := &upgraded{store: memory.New(), names: []string{"a", "b", "c"}}
	defer u.store.Close()
	for _, name := range u.names {
		u.start(t, name, "v0.1.0", "")
	}
	u.start(t, "a", "v0.3.0", "b, c have v0.1.0: start v0.2 on all servers first")
	u.start(t, "a", "v0.2.0", "")
	u.start(t, "b", "v0.2.0", "")
	u.start(t, "c", "v0.1.1", "") // a reboot before its upgrade
	u.start(t, "a", "v0.3.0", "c has v0.1.0: start v0.2")
	u.start(t, "c", "v0.2.0", "")
	u.start(t, "c", "v0.1.0", "all of its cluster was upgraded to v0.2: start v0.2 on it")
	u.start(t, "a", "v0.3.0", "")
	u.start(t, "b", "v0.3.0", "")
	u.start(t, "a", "v0.4.0", "c has v0.2.0")

	// A server that is removed does not hold up the others, and is forgotten.
	u.names = []string{"a", "b"}
	u.start(t, "a", "v0.4.0", "")
	u.start(t, "b", "v0.2.0", "start v0.3 on it")
	kvs, _, _, err := u.store.List(t.Context(), releasesPrefix, "", 0, 0)
	if err != nil || len(kvs) != 2 {
		t.Errorf("recorded: %v, %v", kvs, err)
	}
}

// A server that is alone leaves the level to those that join it, and to whoever restores its etcd.
func TestReleaseOfSingleServer(t *testing.T) {
	u := &upgraded{store: memory.New()}
	defer u.store.Close()
	u.start(t, "", "v0.2.0", "")
	u.start(t, "", "v0.1.0", "start v0.2 on it")
	u.start(t, "", "v0.4.0", "its cluster has v0.2.0")
	u.names = []string{"a"}
	u.start(t, "a", "v0.1.0", "start v0.2 on it")
	u.start(t, "a", "v0.3.0", "")
}

// A server that ended between its record and that of the level has set the level nevertheless.
func TestReleasesWithoutLevel(t *testing.T) {
	u := &upgraded{store: memory.New(), names: []string{"a", "b"}}
	defer u.store.Close()
	u.start(t, "a", "v0.2.0", "")
	level, err := u.store.Get(t.Context(), levelKey)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := u.store.Delete(t.Context(), levelKey, level.Modified); err != nil {
		t.Fatal(err)
	}
	u.start(t, "b", "v0.4.0", "a has v0.2.0: start v0.3 on all servers first")
	u.start(t, "b", "v0.1.0", "start v0.2 on it")
	u.start(t, "a", "v0.4.0", "v0.2.0: start v0.3 on all servers first")
	u.start(t, "b", "v0.3.0", "")
	if restored, err := u.store.Get(t.Context(), levelKey); err != nil || string(restored.Value) != string(level.Value) {
		t.Errorf("the level is %s, %v, want %s", restored.Value, err, level.Value)
	}
}

// Servers on an external etcd are forgotten an hour after their end.
func TestReleasesWithoutMembers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.New()
		defer s.Close()
		newServer := func(name, skiff string) *Releases {
			return &Releases{Store: s, Name: name, Own: release(skiff, "v1.37.1"), Log: discardLog()}
		}
		old, running := newServer("a", "v0.1.0"), newServer("b", "v0.2.0")
		if err := errors.Join(old.Admit(t.Context()), running.Admit(t.Context())); err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- running.Run(ctx) }()
		if err := newServer("c", "v0.3.0").Admit(t.Context()); err == nil {
			t.Error("a server is two minor versions ahead")
		}
		time.Sleep(2 * releaseTTL)
		if err := newServer("c", "v0.3.0").Admit(t.Context()); err != nil {
			t.Errorf("after the old server was gone: %v", err)
		}
		list, err := running.List(t.Context())
		if names := slices.IndexFunc(list, func(s upgrade.Server) bool { return s.Name == "a" }); err != nil || len(list) != 2 || names >= 0 {
			t.Errorf("recorded: %v, %v", list, err)
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// The level rises when the last server with an old version was removed, and stays when the others have been forgotten.
func TestLevelRisesWithRemoval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.New()
		defer s.Close()
		newServer := func(name, skiff string) *Releases {
			return &Releases{Store: s, Name: name, Own: release(skiff, "v1.37.1"), Log: discardLog()}
		}
		old, running := newServer("a", "v0.1.0"), newServer("b", "v0.2.0")
		if err := errors.Join(old.Admit(t.Context()), running.Admit(t.Context())); err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- running.Run(ctx) }()
		time.Sleep(2 * releaseTTL) // the old one was removed
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		time.Sleep(2 * releaseTTL) // the other one was stopped
		err := newServer("c", "v0.1.0").Admit(t.Context())
		if _, isRefused := errors.AsType[*upgrade.Refusal](err); !isRefused || !strings.Contains(err.Error(), "was upgraded to v0.2") {
			t.Errorf("an old server is admitted: %v", err)
		}
	})
}

// A damaged record lets no server run, whatever its version. One's own is replaced.
func TestDamagedReleases(t *testing.T) {
	for _, damaged := range []string{"", "{", "null", "{}", `{"skiff":"x","kubernetes":"v1.37.1"}`, `{"skiff":"v0.2.0"}`} {
		for _, test := range []struct {
			key string
			bad bool
		}{{levelKey, true}, {releasesPrefix + "b", true}, {releasesPrefix + "a", false}} {
			s := memory.New()
			r := &Releases{Store: s, Name: "a", Own: release("v0.1.0", "v1.37.1"), Log: discardLog()}
			if _, err := s.Create(t.Context(), test.key, []byte(damaged), 0); err != nil {
				t.Fatal(err)
			}
			err := r.Admit(t.Context())
			if _, isRefused := errors.AsType[*upgrade.Refusal](err); isRefused != test.bad || !test.bad && err != nil || test.bad && !strings.Contains(err.Error(), test.key+" in etcd is not") {
				t.Errorf("%s is %q: %v", test.key, damaged, err)
			}
			if list, err := r.List(t.Context()); !test.bad && (err != nil || len(list) != 1 || list[0].Release != r.Own) {
				t.Errorf("%s was %q: recorded %v, %v", test.key, damaged, list, err)
			}
			s.Close()
		}
	}
}

// racingStore lets another server write between a read and a write.
type racingStore struct {
	store.Store
	race func()
}

func (s *racingStore) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (store.Revision, error) {
	if race := s.race; race != nil {
		s.race = nil
		race()
	}
	return s.Store.Create(ctx, key, value, ttl)
}

// Of two servers that start a cluster at the same time, the second to write is checked again.
func TestReleasesConflict(t *testing.T) {
	s := memory.New()
	defer s.Close()
	first := &Releases{Store: s, Own: release("v0.1.0", "v1.37.1"), Log: discardLog()}
	second := &Releases{Own: release("v0.3.0", "v1.37.1"), Log: discardLog()}
	second.Store = &racingStore{Store: s, race: func() {
		if err := first.Admit(t.Context()); err != nil {
			t.Error(err)
		}
	}}
	if err := second.Admit(t.Context()); err == nil || !strings.Contains(err.Error(), "has v0.1.0") {
		t.Errorf("%v", err)
	}
}

// A store without space does not keep a server from running.
func TestReleasesWithoutSpace(t *testing.T) {
	s := &fullStore{memory.New()}
	defer s.Close()
	if err := (&Releases{Store: s, Own: release("v0.1.0", "v1.37.1"), Log: discardLog()}).Admit(t.Context()); err != nil {
		t.Error(err)
	}
}

type fullStore struct{ store.Store }

func (s *fullStore) Create(context.Context, string, []byte, time.Duration) (store.Revision, error) {
	return 0, &store.NoSpaceError{Message: "the disk is full"}
}
