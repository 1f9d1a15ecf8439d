package nft

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

func addr(text string) netip.Addr { return netip.MustParseAddr(text) }

var (
	testVerdicts = Set{Name: "verdicts", Key: []Type{IPv4Addr, InetProto, InetService}, Value: []Type{Verdict}}
	testChain    = Chain{Name: "shared", Rules: []Rule{NewRule(SetMark(0x10)), NewRule(Drop())}}
)

// owned is the part of an owner that sends an address to the shared chain.
func owned(ip, verdict string) Part {
	return Part{Chains: []Chain{testChain}, Elements: []Element{{Set: "verdicts", Key: Bytes(addr(ip), TCP, uint16(80)), Value: verdict}}}
}

func TestModelText(t *testing.T) {
	m := NewModel("test")
	ranges := Set{Name: "ranges", Key: []Type{IPv6Addr}, Interval: true}
	sticky := Set{Name: "sticky", Key: []Type{IPv4Addr}, Value: []Type{IPv4Addr, InetService}, Timeout: time.Minute, Size: 9}
	m.Replace("", Part{Sets: []Set{testVerdicts, ranges, sticky}, Elements: []Element{{Set: "ranges", Key: Bytes(addr("fd00::1")), End: Bytes(addr("fd00::9"))}},
		Chains: []Chain{{Name: "in", Hook: &Hook{"filter", "input", -5}, Rules: []Rule{NewRule(Family(true), VerdictMap("verdicts", DestinationAddr(true), Protocol(), DestinationPort()))}}}})
	m.Replace("a", owned("10.0.0.1", "goto shared"))
	const want = `table inet test
set ranges { type ipv6_addr; flags interval
	fd00::1 - fd00::9
}
map sticky { type ipv4_addr : ipv4_addr . inet_service; flags dynamic,timeout; timeout 1m0s; size 9
}
map verdicts { type ipv4_addr . inet_proto . inet_service : verdict
	10.0.0.1 . tcp . 80 : goto shared
}
chain in { type filter hook input priority -5;
	meta nfproto ipv4 ip daddr . meta l4proto . th dport vmap @verdicts
}
chain shared {
	meta mark set mark | 0x10
	drop
}
`
	if got := m.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestChanges(t *testing.T) {
	m := NewModel("test")
	m.Replace("", Part{Sets: []Set{testVerdicts}})
	m.Commit()
	steps := []struct {
		name string
		do   func()
		want string
	}{
		{"first owner of a chain", func() { m.Replace("b", owned("10.0.0.1", "goto shared")) },
			"add chain shared {\n\tmeta mark set mark | 0x10\n\tdrop\n}\nadd element verdicts { 10.0.0.1 . tcp . 80 : goto shared }\n"},
		{"second owner", func() { m.Replace("c", owned("10.0.0.2", "goto shared")) }, "add element verdicts { 10.0.0.2 . tcp . 80 : goto shared }\n"},
		{"same again", func() { m.Replace("c", owned("10.0.0.2", "goto shared")) }, ""},
		{"another value", func() { m.Replace("c", owned("10.0.0.2", "drop")) },
			"delete element verdicts { 10.0.0.2 . tcp . 80 : goto shared }\nadd element verdicts { 10.0.0.2 . tcp . 80 : drop }\n"},
		{"there and back", func() {
			m.Replace("c", owned("10.0.0.2", "accept"))
			m.Replace("c", Part{})
			m.Replace("c", owned("10.0.0.2", "drop"))
		}, ""},
		{"a later owner does not get another's element", func() { m.Replace("d", owned("10.0.0.2", "accept")) }, ""},
		{"an earlier owner does", func() { m.Replace("a", owned("10.0.0.2", "return")) },
			"delete element verdicts { 10.0.0.2 . tcp . 80 : drop }\nadd element verdicts { 10.0.0.2 . tcp . 80 : return }\n"},
		{"and returns it", func() { m.Replace("a", Part{}) },
			"delete element verdicts { 10.0.0.2 . tcp . 80 : return }\nadd element verdicts { 10.0.0.2 . tcp . 80 : drop }\n"},
		{"a chain with other rules", func() { m.Replace("own", Part{Chains: []Chain{{Name: "own", Rules: []Rule{NewRule(Drop())}}}}) }, "add chain own {\n\tdrop\n}\n"},
		{"replaced", func() { m.Replace("own", Part{Chains: []Chain{{Name: "own", Rules: []Rule{NewRule(Accept())}}}}) }, "replace chain own {\n\taccept\n}\n"},
		{"last owners", func() {
			for _, owner := range []string{"b", "c", "d", "own"} {
				m.Replace(owner, Part{})
			}
		}, "delete element verdicts { 10.0.0.1 . tcp . 80 : goto shared }\ndelete element verdicts { 10.0.0.2 . tcp . 80 : drop }\ndelete chain own\ndelete chain shared\n"},
	}
	for _, step := range steps {
		step.do()
		if m.needsRebuild() {
			t.Errorf("%s needs the whole table", step.name)
		}
		if got := m.Text(m.Changes()); got != step.want {
			t.Errorf("%s: got\n%s\nwant\n%s", step.name, got, step.want)
		}
		m.Commit()
	}
	if owners := strings.Join(m.Owners(), ","); owners != "" || len(m.elements)+len(m.contested) != 0 {
		t.Errorf("owners %q and %d elements are left", owners, len(m.elements)+len(m.contested))
	}
}

// randomPart has some of a few chains, sets and elements, with values of its own.
func randomPart(random *rand.Rand) (part Part) {
	for i := range random.IntN(3) {
		part.Chains = append(part.Chains, Chain{Name: fmt.Sprint("chain-", i), Rules: []Rule{NewRule(Drop())}})
	}
	for range random.IntN(8) {
		key := Bytes(netip.AddrFrom4([4]byte{10, 0, 0, byte(random.IntN(6))}))
		switch random.IntN(2) {
		case 0:
			part.Elements = append(part.Elements, Element{Set: "values", Key: key, Value: Bytes(uint16(random.IntN(3)))})
		case 1:
			part.Elements = append(part.Elements, Element{Set: "ranges", Key: key, End: Bytes(netip.AddrFrom4([4]byte{10, 0, 1, byte(random.IntN(6))}))})
		}
	}
	return part
}

// TestRandomParts checks that a model depends on its parts alone, and that its changes lead from one state to the next, also if different elements have
// the same hash.
func TestRandomParts(t *testing.T) {
	for name, hash := range map[string]func(elementID) uint64{
		"the usual hash":  nil,
		"few hashes":      func(id elementID) uint64 { return uint64(id[len(id)-1]) % 3 },
		"always the same": func(elementID) uint64 { return 1 },
	} {
		t.Run(name, func(t *testing.T) { testRandomParts(t, hash) })
	}
}

func testRandomParts(t *testing.T, hash func(elementID) uint64) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	base := Part{Sets: []Set{{Name: "values", Key: []Type{IPv4Addr}, Value: []Type{InetService}}, {Name: "ranges", Key: []Type{IPv4Addr}, Interval: true}}}
	parts := map[string]Part{"": base}
	m := NewModel("test")
	if hash != nil {
		m.hash = hash
	}
	m.Replace("", base)
	m.Commit()
	before := map[Element]bool{}
	for range 2000 {
		owner := fmt.Sprint("owner-", random.IntN(5))
		parts[owner] = randomPart(random)
		m.Replace(owner, parts[owner])
		if random.IntN(3) == 0 {
			continue // several parts change at once
		}
		fresh := NewModel("test")
		for name, part := range parts {
			fresh.Replace(name, part)
		}
		if got, want := m.String(), fresh.String(); got != want {
			t.Fatalf("got\n%s\nwant\n%s", got, want)
		}
		changes := m.Changes()
		for _, e := range changes.RemovedElements {
			if !before[e] {
				t.Fatalf("%q was removed, but was not there", e)
			}
			delete(before, e)
		}
		for _, e := range changes.AddedElements {
			if before[e] {
				t.Fatalf("%q was added, but was there", e)
			}
			before[e] = true
		}
		after := map[Element]bool{}
		for _, e := range m.All().AddedElements {
			after[e] = true
		}
		if !maps.Equal(before, after) {
			t.Fatalf("changes lead to\n%q\nwant\n%q", slices.Collect(maps.Keys(before)), slices.Collect(maps.Keys(after)))
		}
		m.Commit()
	}
}

// Sets with names of their own come and go with their Services. What the model remembers of them is bounded by those that exist.
func TestNamesOfRemovedSetsAreForgotten(t *testing.T) {
	m := NewModel("test")
	m.Commit()
	for i := range 100 {
		set := Set{Name: fmt.Sprint("set-", i), Key: []Type{IPv4Addr}}
		m.Replace("owner", Part{Sets: []Set{set}, Elements: []Element{{Set: set.Name, Key: Bytes(addr("10.0.0.1"))}}})
		want := fmt.Sprintf("add set %s { type ipv4_addr }\nadd element %s { 10.0.0.1 }\n", set.Name, set.Name)
		if i > 0 {
			want += fmt.Sprintf("delete set set-%d\n", i-1)
		}
		if got := m.Text(m.Changes()); got != want {
			t.Fatalf("got\n%s\nwant\n%s", got, want)
		}
		m.Commit()
	}
	if names, numbers := len(m.setNames), len(m.setNumbers); names > 2 || numbers > 1 {
		t.Errorf("the model has %d names of sets and %d numbers of them, of one set", names, numbers)
	}
	m.Replace("owner", Part{})
	m.Commit()
	if left := len(m.elements) + len(m.setNumbers) + len(m.parts); left != 0 || len(m.numbered) > 1 {
		t.Errorf("an empty model has %d entries and %d numbers of parts", left, len(m.numbered))
	}
}

// A part may have a long key or value, and many elements.
func TestEncodedElements(t *testing.T) {
	m := NewModel("test")
	var want []Element
	for _, size := range []int{1, 127, 128, 20000} {
		want = append(want, Element{Set: "verdicts", Key: strings.Repeat("k", size), Value: strings.Repeat("v", size)},
			Element{Set: "ranges", Key: strings.Repeat("a", size), End: strings.Repeat("b", size)})
	}
	m.Replace("owner", Part{Elements: want})
	got := m.All().AddedElements
	slices.SortFunc(got, compareElements)
	slices.SortFunc(want, compareElements)
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// The kernel cannot change the type of a set or the hook of a chain.
func TestDefinitionsNeedTheWholeTable(t *testing.T) {
	for name, part := range map[string]Part{
		"set":   {Sets: []Set{{Name: "s", Key: []Type{IPv6Addr}}}, Chains: []Chain{{Name: "c", Hook: &Hook{"filter", "input", 0}}}},
		"chain": {Sets: []Set{{Name: "s", Key: []Type{IPv4Addr}}}, Chains: []Chain{{Name: "c", Hook: &Hook{"filter", "input", 1}}}},
	} {
		m := NewModel("test")
		m.Replace("", Part{Sets: []Set{{Name: "s", Key: []Type{IPv4Addr}}}, Chains: []Chain{{Name: "c", Hook: &Hook{"filter", "input", 0}}}})
		m.Commit()
		m.Replace("", part)
		if !m.needsRebuild() {
			t.Errorf("another %s is not noticed", name)
		}
	}
}

func TestRanges(t *testing.T) {
	set := Set{Name: "s", Key: []Type{IPv4Addr}, Interval: true}
	if after, ok := set.afterEnd(&Element{Key: Bytes(addr("10.0.0.0")), End: Bytes(addr("10.0.0.255"))}); !ok || after != Bytes(addr("10.0.1.0")) {
		t.Errorf("%x, %v", after, ok)
	}
	if after, ok := set.afterEnd(&Element{Key: Bytes(addr("240.0.0.0")), End: Bytes(addr("255.255.255.255"))}); ok {
		t.Errorf("%x after the last address", after)
	}
	if text := verdictText([]byte(Bytes(addr("8.0.1.0"), uint16(80)))); text != Bytes(addr("8.0.1.0"), uint16(80)) {
		t.Errorf("an address was taken for a verdict: %q", text)
	}
}
