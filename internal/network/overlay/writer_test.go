package overlay

import (
	"errors"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
)

// fakeKernel is a kernel that has exactly what changes say. It fails after a number of entries if failAfter is positive.
type fakeKernel struct {
	state     State
	reads     int
	changes   int
	failAfter int
}

var errFake = errors.New("the kernel refuses")

func (k *fakeKernel) Read(State) (State, error) {
	k.reads++
	return clone(k.state), nil
}

func clone(s State) State {
	return State{
		Links: maps.Clone(s.Links), Addresses: maps.Clone(s.Addresses), Forwarding: maps.Clone(s.Forwarding), Neighbors: maps.Clone(s.Neighbors),
		Peers: maps.Clone(s.Peers), Routes: maps.Clone(s.Routes),
	}
}

func (k *fakeKernel) Apply(c Changes) error {
	s := &k.state
	failed := false
	step := func(change func()) {
		if k.failAfter > 0 {
			if k.failAfter--; k.failAfter == 0 {
				failed = true
			}
		}
		if !failed {
			k.changes++
			change()
		}
	}
	remove := func(name string) {
		delete(s.Links, name)
		maps.DeleteFunc(s.Routes, func(_ netip.Prefix, r Route) bool { return r.Link == name })
	}
	for _, name := range c.RemovedLinks {
		step(func() { remove(name) })
	}
	if c.LinkName != "" {
		step(func() {
			if _, exists := s.Links[c.LinkName]; c.Recreate || !exists {
				remove(c.LinkName)
				routes := s.Routes
				*s = NewState()
				s.Routes = routes
			}
			s.Links[c.LinkName] = c.Link
		})
	}
	for _, p := range c.RemovedAddresses {
		step(func() { delete(s.Addresses, p) })
	}
	for _, p := range c.AddedAddresses {
		step(func() { s.Addresses[p] = true })
	}
	applyMap(step, s.Forwarding, c.SetForwarding, c.RemovedForwarding)
	applyMap(step, s.Neighbors, c.SetNeighbors, c.RemovedNeighbors)
	applyMap(step, s.Peers, c.SetPeers, c.RemovedPeers)
	applyMap(step, s.Routes, c.SetRoutes, c.RemovedRoutes)
	if failed {
		return errFake
	}
	return nil
}

func applyMap[K comparable, V any](step func(func()), all, set, removed map[K]V) {
	for key := range removed {
		step(func() { delete(all, key) })
	}
	for key, value := range set {
		step(func() { all[key] = value })
	}
}

// TestRandomChanges compares the kernel's state after a thousand random changes, some of which fail, with that of a fresh start.
func TestRandomChanges(t *testing.T) {
	const seed, steps, size = 7, 1000, 20
	random := rand.New(rand.NewPCG(seed, seed))
	kernel := &fakeKernel{state: NewState()}
	w := NewWriter(kernel, slog.New(slog.DiscardHandler))
	nodes := map[int]Node{1: testNode(1)}
	backends := []Backend{VXLAN, HostGW, WireGuard}
	settings := testSettings(VXLAN)
	for range steps {
		number := 2 + random.IntN(size)
		switch random.IntN(10) {
		case 0:
			settings = testSettings(backends[random.IntN(len(backends))])
		case 1:
			settings.Networks[0].MTU = 1400 + random.IntN(3)*100
		case 2, 3, 4:
			delete(nodes, number)
		default:
			n := testNode(number)
			if random.IntN(4) == 0 {
				n.IPs = addrs("192.168.7.200", "fd07::200")
			}
			nodes[number] = n
		}
		if random.IntN(5) == 0 {
			kernel.failAfter = 1 + random.IntN(4)
		}
		desired, _ := Compile(settings, slices.Collect(maps.Values(nodes)))
		for attempt := 0; ; attempt++ {
			_, err := w.Apply(desired)
			if err == nil {
				break
			}
			if attempt == 3 {
				t.Fatal(err)
			}
		}
		kernel.failAfter = 0
		if kernel.state.String() != desired.String() {
			t.Fatalf("the kernel has\n%s\nwant\n%s", kernel.state, desired)
		}
	}
}

// TestOnlyDifferencesAreSent counts what one more node costs.
func TestOnlyDifferencesAreSent(t *testing.T) {
	kernel := &fakeKernel{state: NewState()}
	w := NewWriter(kernel, slog.New(slog.DiscardHandler))
	var nodes []Node
	for number := 1; number <= 200; number++ {
		nodes = append(nodes, testNode(number))
	}
	apply := func(nodes []Node) {
		t.Helper()
		desired, problems := Compile(testSettings(VXLAN), nodes)
		if len(problems) > 0 {
			t.Fatal(problems)
		}
		if _, err := w.Apply(desired); err != nil {
			t.Fatal(err)
		}
	}
	apply(nodes)
	reads, changes := kernel.reads, kernel.changes
	apply(append(slices.Clone(nodes), testNode(201)))
	// A forwarding entry, two neighbors and two routes.
	if kernel.reads != reads || kernel.changes != changes+5 {
		t.Errorf("one more node took %d reads and %d changes, want 0 and 5", kernel.reads-reads, kernel.changes-changes)
	}
	w.Forget()
	changes = kernel.changes
	apply(append(slices.Clone(nodes), testNode(201)))
	if kernel.reads != reads+1 || kernel.changes != changes {
		t.Errorf("a comparison took %d reads and %d changes, want 1 and 0", kernel.reads-reads, kernel.changes-changes)
	}
}

func TestWireGuardEncoding(t *testing.T) {
	for _, text := range []string{"192.168.7.2:51820", "[fd07::2]:51820"} {
		endpoint := netip.MustParseAddrPort(text)
		if got := decodeEndpoint(encodeEndpoint(endpoint)); got != endpoint {
			t.Errorf("%s is read back as %s", endpoint, got)
		}
	}
}

func TestPrivateKey(t *testing.T) {
	path := t.TempDir() + "/network/wireguard.key"
	private, public, err := ReadPrivateKey(path)
	if err != nil {
		t.Fatal(err)
	}
	again, samePublic, err := ReadPrivateKey(path)
	if err != nil || again != private || samePublic != public {
		t.Errorf("the key has changed, %v", err)
	}
	if private == public || public == (Key{}) {
		t.Errorf("public key %s", public)
	}
}
