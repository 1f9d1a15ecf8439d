package etcd_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	"skiff/internal/store/etcd"
)

// relay forwards connections to an address until it is cut.
type relay struct {
	listener net.Listener
	to       string
	wait     sync.WaitGroup

	mu          sync.Mutex
	connections []net.Conn
	isCut       bool
}

func newRelay(t *testing.T, to string) *relay {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{listener: listener, to: to}
	r.wait.Go(r.serve)
	t.Cleanup(r.cut)
	return r
}

func (r *relay) serve() {
	for {
		from, err := r.listener.Accept()
		if err != nil {
			return
		}
		to, err := net.Dial("tcp", r.to)
		if err != nil {
			from.Close()
			continue
		}
		r.mu.Lock()
		r.connections = append(r.connections, from, to)
		if r.isCut {
			from.Close()
			to.Close()
		}
		r.mu.Unlock()
		for a, b := range map[net.Conn]net.Conn{from: to, to: from} {
			r.wait.Go(func() {
				_, _ = io.Copy(a, b)
				a.Close()
				b.Close()
			})
		}
	}
}

// cut closes all connections, and accepts no others.
func (r *relay) cut() {
	r.listener.Close()
	r.mu.Lock()
	r.isCut = true
	for _, c := range r.connections {
		c.Close()
	}
	r.mu.Unlock()
	r.wait.Wait()
}

// A member that cannot be connected to is not replaced while it is alive: it may be connected to the leader, or to another member only.
func TestLivingMemberIsNotReplaced(t *testing.T) {
	t.Parallel()
	m := newMembers(t)
	addresses := freeAddresses(t, 3)
	relays := []*relay{newRelay(t, addresses[0]), nil, newRelay(t, addresses[2])}
	var configs []etcd.Config
	for i, address := range addresses {
		config := m.config(fmt.Sprint("member-", i), address)
		if relays[i] != nil {
			config.Peer.URL = "https://" + relays[i].listener.Addr().String()
		}
		configs = append(configs, config)
	}
	a := open(t, configs[0])
	m.join(a, configs[1])
	c := m.join(a, configs[2])
	// replace replaces c, or says with whom it is in contact.
	replace := func(contact string) error {
		_, err := a.AddLearner(t.Context(), configs[2].Peer.URL)
		if contact != "" && !errors.Is(err, etcd.ErrMemberRuns) {
			t.Fatalf("a living member is replaced: %v", err)
		}
		if err != nil && contact != "" && strings.HasSuffix(err.Error(), "in contact with "+contact) {
			return nil
		}
		return err
	}
	relays[2].cut() // c connects to a and b, but they do not to c
	eventually(t, "a is in contact", func() error { return replace("member-0") })
	relays[0].cut() // a connects to b only
	eventually(t, "b is in contact", func() error { return replace("member-1") })
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "replace a member that has ended", func() error { return replace("") })
}
