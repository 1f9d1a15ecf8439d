package etcd_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"skiff/internal/pki"
	"skiff/internal/store"
	"skiff/internal/store/etcd"
	"skiff/internal/store/storetest"
)

// memberWait bounds waiting for elections and membership changes on a busy host. etcd changes members only after five seconds of health.
const memberWait = 2 * time.Minute

// members is a cluster under test.
type members struct {
	t   *testing.T
	dir string
	pki pki.Dir
	ca  *pki.CA
}

func newMembers(t *testing.T) *members {
	t.Helper()
	m := &members{t: t, dir: t.TempDir()}
	m.pki = pki.Dir(filepath.Join(m.dir, "pki"))
	var err error
	if m.ca, err = m.pki.CA("ca", "etcd-ca", time.Now()); err != nil {
		t.Fatal(err)
	}
	for name, leaf := range map[string]pki.Leaf{"member": pki.EtcdMember("members", nil), "client": pki.EtcdClient()} {
		if _, err := m.pki.Leaf(name, m.ca, leaf, time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

func (m *members) file(name string) string { return filepath.Join(string(m.pki), name) }

// config is the configuration of a member with a data directory of its name.
func (m *members) config(name, address string) etcd.Config {
	return etcd.Config{
		DataDir: filepath.Join(m.dir, name), CompactionInterval: -1, Log: discardLog(),
		Peer: &etcd.Peer{
			Name: name, Listen: address, URL: "https://" + address, CommonName: "members",
			CAFile: m.file("ca.crt"), CertFile: m.file("member.crt"), KeyFile: m.file("member.key"),
		},
	}
}

// join adds a learner through a member and starts it.
func (m *members) join(through *etcd.Store, config etcd.Config) *etcd.Store {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(m.t.Context(), memberWait)
	defer cancel()
	eventually(m.t, "add a learner", func() error {
		var err error
		config.Peer.Members, err = through.AddLearner(ctx, config.Peer.URL)
		return err
	})
	joined, err := etcd.Open(ctx, config)
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { joined.Close() })
	return joined
}

// start starts members with data, at the same time.
func (m *members) start(configs ...etcd.Config) []*etcd.Store {
	m.t.Helper()
	stores, errs := make([]*etcd.Store, len(configs)), make([]error, len(configs))
	var all sync.WaitGroup
	for i, config := range configs {
		all.Go(func() { stores[i], errs[i] = etcd.Open(m.t.Context(), config) })
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		m.t.Fatal(err)
	}
	for _, s := range stores {
		m.t.Cleanup(func() { s.Close() })
	}
	return stores
}

func eventually(t *testing.T, what string, try func() error) {
	t.Helper()
	deadline := time.Now().Add(memberWait)
	for {
		err := try()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: %v", what, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func freeAddresses(t *testing.T, n int) []string {
	t.Helper()
	var addresses []string
	for range n {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		addresses = append(addresses, listener.Addr().String())
	}
	return addresses
}

// A cluster grows to three members, survives the loss of one, and replaces it.
func TestMembers(t *testing.T) {
	t.Parallel()
	m := newMembers(t)
	addresses := freeAddresses(t, 3)
	var configs []etcd.Config
	for i, address := range addresses {
		configs = append(configs, m.config(fmt.Sprint("member-", i), address))
	}
	// The first member has data of the time when it was alone.
	unclustered := configs[0]
	unclustered.Peer = nil
	single := open(t, unclustered)
	if _, err := single.Create(t.Context(), "/registry/first", []byte("alone"), 0); err != nil {
		t.Fatal(err)
	}
	if _, err := single.Members(t.Context()); !errors.Is(err, etcd.ErrNoCluster) {
		t.Errorf("members of a single server: %v", err)
	}
	single.Close()

	a := open(t, configs[0])
	b := m.join(a, configs[1])
	c := m.join(b, configs[2])
	for i, s := range []*etcd.Store{a, b, c} {
		listed, err := s.Members(t.Context())
		if err != nil || len(listed) != 3 {
			t.Fatalf("member %d lists %v, %v", i, listed, err)
		}
		leaders := 0
		for j, member := range listed {
			if member.IsLearner || member.Name != fmt.Sprint("member-", j) || member.PeerURL != "https://"+addresses[j] {
				t.Errorf("member %d lists %+v", i, member)
			}
			if member.IsLeader {
				leaders++
			}
		}
		if leaders != 1 {
			t.Errorf("member %d lists %d leaders", i, leaders)
		}
		if !s.Shared() {
			t.Errorf("member %d does not share its store", i)
		}
	}

	// What one member has written the others read at once.
	for i := range 100 {
		key := fmt.Sprint("/registry/shared/", i)
		revision, err := a.Create(t.Context(), key, []byte("v"), 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range []*etcd.Store{b, c} {
			if current, err := s.Current(t.Context()); err != nil || current < revision {
				t.Fatalf("after a write at %d another member is at %d, %v", revision, current, err)
			}
			if _, err := s.Get(t.Context(), key); err != nil {
				t.Fatal(err)
			}
		}
	}

	// The first member dies without a trace. The others go on.
	a.Close()
	if err := os.RemoveAll(configs[0].DataDir); err != nil {
		t.Fatal(err)
	}
	eventually(t, "write without the first member", func() error {
		_, err := b.Create(t.Context(), "/registry/later", []byte("v"), 0)
		if errors.Is(err, store.ErrExists) {
			return nil // an attempt that was not acknowledged
		}
		return err
	})
	// It comes back without data at the same address and replaces what it was.
	a = m.join(c, configs[0])
	if kv, err := a.Get(t.Context(), "/registry/first"); err != nil || string(kv.Value) != "alone" {
		t.Errorf("the replaced member reads %v, %v", kv, err)
	}
	if listed, err := a.Members(t.Context()); err != nil || len(listed) != 3 {
		t.Errorf("after the replacement: %v, %v", listed, err)
	}
	if _, err := b.AddLearner(t.Context(), configs[0].Peer.URL); !errors.Is(err, etcd.ErrMemberRuns) {
		t.Errorf("a running member is replaced: %v", err)
	}

	// A removed member ends.
	eventually(t, "remove a member", func() error { return b.RemoveMember(t.Context(), "member-2") })
	select {
	case <-c.Stopped():
	case <-time.After(memberWait):
		t.Error("a removed member does not stop")
	}
	if err := b.RemoveMember(t.Context(), "member-2"); !errors.Is(err, etcd.ErrNoMember) {
		t.Errorf("remove a member twice: %v", err)
	}
}

// A member that lost all others continues alone after a reset, with all data. Members of the old cluster cannot come back.
func TestReset(t *testing.T) {
	t.Parallel()
	m := newMembers(t)
	addresses := freeAddresses(t, 2)
	first, second := m.config("first", addresses[0]), m.config("second", addresses[1])
	a := open(t, first)
	b := m.join(a, second)
	revision, err := b.Create(t.Context(), "/registry/a", []byte("v"), 0)
	if err != nil {
		t.Fatal(err)
	}
	a.Close()
	b.Close()

	reset := first
	reset.Peer = &etcd.Peer{}
	*reset.Peer = *first.Peer
	reset.Peer.Reset = true
	a = open(t, reset)
	a.Close()
	a = open(t, first)
	if kv, err := a.Get(t.Context(), "/registry/a"); err != nil || kv.Modified != revision {
		t.Errorf("after the reset: %v, %v", kv, err)
	}
	if listed, err := a.Members(t.Context()); err != nil || len(listed) != 1 || listed[0].Name != "first" {
		t.Errorf("members after the reset: %v, %v", listed, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), memberWait)
	defer cancel()
	if old, err := etcd.Open(ctx, second); err == nil {
		old.Close()
		t.Error("a member of the old cluster came back")
	} else if ctx.Err() != nil {
		t.Errorf("a member of the old cluster waits: %v", err)
	}
}

// After a reset no revision is used that the lost members may have used, however many they were. Watches from such a revision end, instead of going on without
// the events between. A member that joins has the same revisions, and so has one after a second reset.
func TestSkipRevisions(t *testing.T) {
	t.Parallel()
	m := newMembers(t)
	addresses := freeAddresses(t, 2)
	first := m.config("first", addresses[0])
	if _, err := etcd.SkipRevisions(first.DataDir, discardLog()); err == nil {
		t.Error("revisions of a member are skipped that does not exist")
	}
	a := open(t, first)
	revision := mustCreate(t, a, "/registry/a", "v")
	a.Close()
	if _, err := etcd.SkipRevisions(first.DataDir, discardLog()); err == nil {
		t.Error("revisions of a member are skipped that was not reset")
	}
	const lost = 1_000_000_000
	last := m.reset(first)
	if last < revision+lost {
		t.Fatalf("revision %d after %d", last, revision)
	}
	a = open(t, first)
	if current, err := a.Current(t.Context()); err != nil || current != last {
		t.Fatalf("revision %d, %v, want %d", current, err, last)
	}
	for _, seen := range []store.Revision{revision, revision + 1, revision + lost} {
		watch := a.Watch(t.Context(), "/registry/", seen)
		for range watch.Batches() {
			t.Errorf("a watch after revision %d goes on", seen)
		}
		if !errors.Is(watch.Err(), store.ErrCompacted) {
			t.Errorf("a watch after revision %d: %v", seen, watch.Err())
		}
	}
	b := m.join(a, m.config("second", addresses[1]))
	for name, s := range map[string]*etcd.Store{"the member": a, "a member that has joined": b} {
		if kv, err := s.Get(t.Context(), "/registry/a"); err != nil || kv.Modified != revision {
			t.Errorf("%s has %+v, %v", name, kv, err)
		}
		if current, err := s.Current(t.Context()); err != nil || current != last {
			t.Errorf("%s is at revision %d, %v, want %d", name, current, err, last)
		}
	}
	if written := mustCreate(t, b, "/registry/b", "v"); written != last+1 {
		t.Errorf("the revision after %d is %d", last, written)
	}
	a.Close()
	b.Close()
	if again := m.reset(first); again <= last+1 {
		t.Errorf("revision %d after another reset, was %d", again, last)
	}
}

// reset makes a member the only one.
func (m *members) reset(config etcd.Config) store.Revision {
	m.t.Helper()
	peer := *config.Peer
	peer.Reset = true
	config.Peer = &peer
	if err := open(m.t, config).Close(); err != nil {
		m.t.Fatal(err)
	}
	revision, err := etcd.SkipRevisions(config.DataDir, discardLog())
	if err != nil {
		m.t.Fatal(err)
	}
	return revision
}

// A leader makes a member the leader that responds, although another one accepts connections and says nothing.
func TestTransferLeadershipWithSilentMember(t *testing.T) {
	t.Parallel()
	m := newMembers(t)
	var configs []etcd.Config
	addresses := freeAddresses(t, 3)
	for i, address := range addresses {
		configs = append(configs, m.config(fmt.Sprint("member-", i), address))
	}
	leader := open(t, configs[0])
	next := m.join(leader, configs[1])
	m.join(leader, configs[2]).Close()
	silent, err := net.Listen("tcp", addresses[2])
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	ctx, cancel := context.WithTimeout(t.Context(), memberWait)
	defer cancel()
	if err := leader.TransferLeadership(ctx); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the new leader", func() error {
		listed, err := next.Members(ctx)
		if err != nil || len(listed) != 3 || !listed[1].IsLeader {
			return fmt.Errorf("members: %+v, %v", listed, err)
		}
		return nil
	})
	leader.Close() // which is a follower now
}

// All members stop and start again, in any order. The first to start waits for a majority, and says for whom.
func TestMembersRestart(t *testing.T) {
	t.Parallel()
	m := newMembers(t)
	var configs []etcd.Config
	for i, address := range freeAddresses(t, 3) {
		configs = append(configs, m.config(fmt.Sprint("member-", i), address))
	}
	stores := []*etcd.Store{open(t, configs[0])}
	for _, config := range configs[1:] {
		stores = append(stores, m.join(stores[0], config))
	}
	if _, err := stores[1].Create(t.Context(), "/registry/a", []byte("v"), 0); err != nil {
		t.Fatal(err)
	}
	for _, s := range stores {
		s.Close()
	}
	for i := range configs {
		configs[i].Peer.Members = nil // a member with data needs no others
	}
	m.startAlone(configs[0], []string{configs[1].Peer.URL, configs[2].Peer.URL})
	for i, s := range m.start(configs...) {
		if _, err := s.Get(t.Context(), "/registry/a"); err != nil {
			t.Errorf("member %d: %v", i, err)
		}
	}
}

// startAlone starts a member without its majority, until it has reported what it waits for several times.
func (m *members) startAlone(config etcd.Config, others []string) {
	m.t.Helper()
	var log lockedBuffer
	config.Log = slog.New(slog.NewTextHandler(&log, nil))
	ctx, cancel := context.WithTimeout(m.t.Context(), memberWait)
	defer cancel()
	reports := 0
	peer := *config.Peer
	peer.OnWaiting = func(w etcd.Waiting) {
		var urls []string
		for _, member := range w.Unreachable {
			urls = append(urls, member.PeerURL)
		}
		if w.Voters != 3 || w.HasMajority() || !slices.Equal(urls, others) || !strings.Contains(w.Details(), "cannot reach member-1 at "+others[0]) ||
			strings.Contains(w.Reason(), "member-1") {
			m.t.Errorf("%+v: %s", w, w.Details())
		}
		if reports++; reports == 3 {
			cancel()
		}
	}
	config.Peer = &peer
	if started, err := etcd.Open(ctx, config); err == nil {
		started.Close()
		m.t.Error("a member starts without a majority")
	}
	if reports != 3 {
		m.t.Errorf("%d reports", reports)
	}
	if n := strings.Count(log.String(), "waiting for a majority of the members of etcd"); n != 1 || !strings.Contains(log.String(), others[1]) {
		m.t.Errorf("logged %d times:\n%s", n, log.String())
	}
}

// Only members are served: not clients with another name, and not those of another CA.
func TestPeerTLS(t *testing.T) {
	m := newMembers(t)
	config := m.config("member", freeAddresses(t, 1)[0])
	open(t, config)
	other := newMembers(t)
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(m.ca.Cert)
	for _, test := range []struct {
		name      string
		cert, key string
		served    bool
	}{
		{"member", m.file("member.crt"), m.file("member.key"), true},
		{"client of etcd", m.file("client.crt"), m.file("client.key"), false},
		{"other CA", other.file("member.crt"), other.file("member.key"), false},
		{"no certificate", "", "", false},
	} {
		settings := &tls.Config{RootCAs: trusted, MinVersion: tls.VersionTLS12}
		if test.cert != "" {
			pair, err := tls.LoadX509KeyPair(test.cert, test.key)
			if err != nil {
				t.Fatal(err)
			}
			settings.Certificates = []tls.Certificate{pair}
		}
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: settings, DisableKeepAlives: true}}
		response, err := client.Get(config.Peer.URL + "/members")
		if err == nil {
			response.Body.Close()
		}
		if served := err == nil && response.StatusCode == http.StatusOK; served != test.served {
			t.Errorf("%s: served %v, %v", test.name, served, err)
		}
	}
}

// A follower is a store like any other. The tests share one until one of them closes it, because a member takes a second to join.
func TestFollower(t *testing.T) {
	t.Parallel()
	var follower *etcd.Store
	storetest.Run(t, func(test *testing.T) store.Store {
		if follower == nil || follower.Healthy(test.Context()) != nil {
			follower = newFollower(t)
		}
		removeKeys(test, follower)
		return follower
	})
}

// newFollower starts two members and returns the one that does not lead.
func newFollower(t *testing.T) *etcd.Store {
	t.Helper()
	m := newMembers(t)
	addresses := freeAddresses(t, 2)
	a := open(t, m.config("leader", addresses[0]))
	return m.join(a, m.config("follower", addresses[1]))
}

// removeKeys removes what an earlier test has left.
func removeKeys(t *testing.T, s *etcd.Store) {
	t.Helper()
	left, _, _, err := s.List(t.Context(), "", "", 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	var removing errgroup.Group
	removing.SetLimit(50)
	for _, kv := range left {
		removing.Go(func() error {
			_, err := s.Delete(t.Context(), kv.Key, kv.Modified)
			return err
		})
	}
	if err := removing.Wait(); err != nil {
		t.Fatal(err)
	}
}
