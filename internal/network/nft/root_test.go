//go:build root

package nft

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"

	"skiff/test/netns"
)

func TestMain(m *testing.M) { netns.Main(m) }

func newWriter(t *testing.T, m *Model) *Writer {
	t.Cleanup(func() {
		if err := Remove(m.Table); err != nil {
			t.Error(err)
		}
		if left, err := Read(m.Table); err != nil || len(left) > 0 {
			t.Errorf("the removed table has %q, %v", left, err)
		}
	})
	w := NewWriter(m, slog.New(slog.DiscardHandler))
	t.Cleanup(w.Close)
	return w
}

// foreignTransaction is what another program changes.
func foreignTransaction(change func(*nftables.Conn) error) error {
	connection, err := nftables.New()
	if err != nil {
		return err
	}
	if err := change(connection); err != nil {
		return err
	}
	return connection.Flush()
}

func apply(t *testing.T, w *Writer) Result {
	t.Helper()
	m := w.model
	result, err := w.Apply()
	if err != nil {
		t.Fatal(err)
	}
	if equal, err := w.Check(); err != nil || !equal {
		have, _ := Read(m.Table)
		t.Fatalf("the kernel has\n%s\nwant\n%s\n%v", strings.Join(have, "\n"), strings.Join(m.digest(), "\n"), err)
	}
	return result
}

// every is a part with each kind of set, clause and field.
func every(is4 bool) Part {
	family, client := "6", netip.MustParseAddr("fd00::1")
	if is4 {
		family, client = "4", netip.MustParseAddr("10.0.0.1")
	}
	addr := AddrType(is4)
	set := Set{Name: "set" + family, Key: []Type{addr}}
	ranges := Set{Name: "ranges" + family, Key: []Type{addr}, Interval: true}
	pairs := Set{Name: "pairs" + family, Key: []Type{addr, addr, InetProto, InetService}, Interval: true}
	verdicts := Set{Name: "verdicts" + family, Key: []Type{addr, InetProto, InetService}, Value: []Type{Verdict}}
	frontends := Set{Name: "frontends" + family, Key: []Type{InetProto, InetService}, Value: []Type{addr, InetProto, InetService}}
	endpoints := Set{Name: "endpoints" + family, Key: []Type{addr, InetProto, InetService, Mark}, Value: []Type{addr, InetService}}
	clients := Set{Name: "clients" + family, Key: []Type{addr}, Timeout: time.Hour, Size: 100}
	choices := Set{Name: "choices" + family, Key: []Type{Mark}, Value: []Type{Verdict}}
	packet := []Field{DestinationAddr(is4), Protocol(), DestinationPort()}
	prefix := netip.PrefixFrom(client, 8)
	pick := Lookup(endpoints, Constant(addr, Bytes(client)), Constant(InetProto, Bytes(TCP)), Constant(InetService, Bytes(uint16(80))), Random(3))
	return Part{
		Sets: []Set{set, ranges, pairs, verdicts, frontends, endpoints, clients, choices},
		Chains: []Chain{
			{Name: "nat" + family, Hook: &Hook{"nat", "prerouting", -100}, Rules: []Rule{
				NewRule(In(set.Name, DestinationAddr(is4)), SourceNot(prefix), SetMark(0x4000)),
				NewRule(Family(is4), VerdictMap(verdicts.Name, packet...)),
				NewRule(ToThisHost(), DestinationNot(prefix), FromInterface("x"), NotFromInterfacePrefix("veth"), Jump("pick"+family)),
				NewRule(NotUnicast(), RoutedTo("x"), Return()),
				NewRule(FromThisHost(), NotFromInterface("y"), FromInterfacePrefix("z"), HasMark(1), ClearMark(1), Goto("pick"+family)),
			}},
			{Name: "pick" + family, Rules: []Rule{
				NewRule(Family(is4), DNAT(is4, Lookup(endpoints, append(slices.Clone(packet), Random(2))...))),
				NewRule(Family(is4), DNAT(is4, Lookup(endpoints, Lookup(frontends, Protocol(), DestinationPort()), Random(7)))),
				NewRule(Family(is4), DNAT(is4, pick)), NewRule(Family(is4), In(clients.Name, SourceAddr(is4)), Update(clients, SourceAddr(is4))),
				NewRule(VerdictMap(choices.Name, Random(2))), NewRule(Family(is4), DNATTo(netip.AddrPortFrom(client, 80))),
				NewRule(Return()),
			}},
			{Name: "filter" + family, Hook: &Hook{"filter", "forward", 0}, Rules: []Rule{
				NewRule(StateNew(), Destination(prefix), ToInterface("x"), Reject()), NewRule(StateEstablished(), Accept()), NewRule(Source(prefix), RejectHost()),
				NewRule(NotFirstTCP(), In(set.Name, SourceAddr(is4)), ResetTCP()), NewRule(NotFirstSCTP(), In(set.Name, SourceAddr(is4)), Drop()),
				NewRule(NotIn(ranges.Name, SourceAddr(is4)), Drop()), NewRule(In(pairs.Name, SourceAddr(is4), DestinationAddr(is4), Protocol(), DestinationPort()), Drop()),
			}},
			{Name: "out" + family, Hook: &Hook{"nat", "postrouting", 100}, Rules: []Rule{NewRule(StatusDNAT(), Masquerade())}},
		},
		Elements: []Element{
			{Set: set.Name, Key: Bytes(client)},
			{Set: ranges.Name, Key: Bytes(client), End: Bytes(client.Next().Next())},
			{Set: ranges.Name, Key: Bytes(last(is4)), End: Bytes(last(is4))},
			{Set: pairs.Name, Key: Bytes(client, client, TCP, uint16(1)), End: Bytes(client.Next(), client, TCP, uint16(99))},
			{Set: verdicts.Name, Key: Bytes(client, TCP, uint16(80)), Value: "goto pick" + family},
			{Set: verdicts.Name, Key: Bytes(client, SCTP, uint16(80)), Value: "drop"},
			{Set: frontends.Name, Key: Bytes(UDP, uint16(53)), Value: Bytes(client, UDP, uint16(53))},
			{Set: endpoints.Name, Key: Bytes(client, TCP, uint16(80), 1), Value: Bytes(client, uint16(8080))},
			{Set: choices.Name, Key: Bytes(1), Value: "drop"},
		},
	}
}

func last(is4 bool) netip.Addr {
	if is4 {
		return netip.MustParseAddr("255.255.255.255")
	}
	return netip.MustParseAddr("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")
}

func TestKernelAcceptsEverything(t *testing.T) {
	m := NewModel("test")
	w := newWriter(t, m)
	m.Replace("4", every(true))
	m.Replace("6", every(false))
	if r := apply(t, w); !r.Rebuilt {
		t.Error("the first transaction is not the whole table")
	}
	m.Replace("4", Part{})
	if r := apply(t, w); r.Rebuilt || r.Again == 0 {
		t.Errorf("%+v", r)
	}
	m.Replace("4", every(true))
	if r := apply(t, w); r.Rebuilt {
		t.Error("a part that returns needs the whole table")
	}
}

// An untouched table is taken over by the next process.
func TestEqualTableIsKept(t *testing.T) {
	m := NewModel("test")
	w := newWriter(t, m)
	m.Replace("", every(true))
	apply(t, w)
	if r := apply(t, NewWriter(m, w.log)); r.Rebuilt {
		t.Error("an equal table was replaced")
	}
	w.Forget()
	if r := apply(t, w); r.Rebuilt {
		t.Error("an equal table was replaced")
	}
}

// A table that nobody has changed is not read again.
func TestVerify(t *testing.T) {
	m := NewModel("test")
	w := newWriter(t, m)
	verify := func(want bool) {
		t.Helper()
		now, err := Generation()
		if err != nil {
			t.Fatal(err)
		}
		if known := w.verified == now; known != want {
			t.Errorf("verified at %d, now %d", w.verified, now)
		}
		if equal, err := w.Verify(); err != nil || !equal || w.verified != now {
			t.Errorf("equal %v at %d, %v", equal, w.verified, err)
		}
	}
	m.Replace("", every(true))
	apply(t, w)
	verify(true)
	m.Replace("x", Part{Elements: []Element{{Set: "set4", Key: Bytes(netip.MustParseAddr("10.1.1.1"))}}})
	apply(t, w)
	verify(true)
	if err := foreignTransaction(func(c *nftables.Conn) error { c.AddTable(inetTable("other")); return nil }); err != nil {
		t.Fatal(err)
	}
	verify(false)
	verify(true)
	if err := Remove("other"); err != nil {
		t.Fatal(err)
	}
	m.Replace("x", Part{})
	apply(t, w)
	verify(false)
}

// Somebody else's change is found and reverted.
func TestForeignChange(t *testing.T) {
	for name, change := range map[string]func(*nftables.Conn, *nftables.Table) error{
		"table": func(c *nftables.Conn, table *nftables.Table) error { c.DelTable(table); return nil },
		"rules": func(c *nftables.Conn, table *nftables.Table) error {
			c.FlushChain(&nftables.Chain{Table: table, Name: "pick4"})
			return nil
		},
		"elements": func(c *nftables.Conn, table *nftables.Table) error {
			c.FlushSet(&nftables.Set{Table: table, Name: "set4"})
			return nil
		},
		"chain": func(c *nftables.Conn, table *nftables.Table) error {
			c.AddChain(&nftables.Chain{Table: table, Name: "foreign"})
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := NewModel("test")
			w := newWriter(t, m)
			m.Replace("", every(true))
			apply(t, w)
			if err := foreignTransaction(func(c *nftables.Conn) error { return change(c, inetTable("test")) }); err != nil {
				t.Fatal(err)
			}
			if equal, err := w.Verify(); err != nil || equal {
				t.Fatalf("the change was not found: %v", err)
			}
			w.Forget()
			if r := apply(t, w); !r.Rebuilt {
				t.Error("the table was not replaced")
			}
		})
	}
}

// A transaction that the kernel refuses is followed by one with the whole table.
func TestFailedTransaction(t *testing.T) {
	m := NewModel("test")
	w := newWriter(t, m)
	m.Replace("", every(true))
	apply(t, w)
	if err := foreignTransaction(func(c *nftables.Conn) error {
		c.FlushSet(&nftables.Set{Table: inetTable("test"), Name: "set4"})
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	part := every(true)
	part.Elements[0].Key = Bytes(netip.MustParseAddr("10.0.0.9")) // the deletion of the old one fails
	m.Replace("", part)
	if r := apply(t, w); !r.Rebuilt {
		t.Errorf("%+v", r)
	}
}

func TestUnusedChainsAreDeleted(t *testing.T) {
	m := NewModel("test")
	w := newWriter(t, m)
	m.Replace("", every(true))
	m.Replace("x", Part{Chains: []Chain{{Name: "x", Rules: []Rule{NewRule(Drop())}}}, Elements: []Element{
		{Set: "verdicts4", Key: Bytes(netip.MustParseAddr("10.0.0.2"), TCP, uint16(1)), Value: "goto x"},
	}})
	apply(t, w)
	m.Replace("x", Part{})
	apply(t, w)
	deadline := time.Now().Add(20 * time.Second)
	for {
		lines, err := Read("test")
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Contains(lines, "chain x") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the chain is not deleted")
		}
		time.Sleep(50 * time.Millisecond)
		apply(t, w)
	}
	if r := apply(t, w); r.Again != 0 {
		t.Errorf("nothing is left to do, but %+v", r)
	}
}

// Thousands of elements are one transaction.
func TestManyElements(t *testing.T) {
	m := NewModel("test")
	w := newWriter(t, m)
	m.Replace("", every(false))
	apply(t, w)
	var part Part
	address := netip.MustParseAddr("fd00:1::")
	for i := range 20000 {
		address = address.Next()
		part.Elements = append(part.Elements, Element{Set: "endpoints6", Key: Bytes(address, TCP, uint16(i), i), Value: Bytes(address, uint16(i))},
			Element{Set: "verdicts6", Key: Bytes(address, TCP, uint16(i)), Value: "goto pick6"})
	}
	m.Replace("many", part)
	if r := apply(t, w); r.Rebuilt || r.Elements != 40000 {
		t.Errorf("%+v", r)
	}
	m.Replace("many", Part{})
	if r := apply(t, w); r.Rebuilt || r.Elements != 40000 {
		t.Errorf("%+v", r)
	}
}

// A thousand random changes leave the kernel with the table of a fresh start.
func TestRandomChanges(t *testing.T) {
	m := NewModel("test")
	w := newWriter(t, m)
	m.Replace("", every(true))
	random := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		owner := fmt.Sprint(random.IntN(20))
		var part Part
		for range random.IntN(4) {
			chain := fmt.Sprint("shared-", random.IntN(6))
			part.Chains = append(part.Chains, Chain{Name: chain, Rules: []Rule{NewRule(SetMark(7)), NewRule(Return())}})
			part.Elements = append(part.Elements, Element{
				Set: "verdicts4", Key: Bytes(netip.AddrFrom4([4]byte{10, 0, 0, byte(random.IntN(8))}), TCP, uint16(1)), Value: "goto " + chain,
			})
		}
		part.Elements = dedupe(part.Elements)
		m.Replace(owner, part)
		if _, err := w.Apply(); err != nil {
			t.Fatal(err)
		}
	}
	if equal, err := w.Check(); err != nil || !equal {
		t.Fatalf("not equal after 1000 changes: %v", err)
	}
}

func dedupe(elements []Element) (unique []Element) {
	for _, e := range elements {
		if !slices.ContainsFunc(unique, func(o Element) bool { return o.Set == e.Set && o.Key == e.Key && o.End == e.End }) {
			unique = append(unique, e)
		}
	}
	return unique
}

// BenchmarkReplace measures a table with 50,000 endpoints of 5,000 Services: all of it, and the kernel's share, which gets the same messages again and again.
func BenchmarkReplace(b *testing.B) {
	m := NewModel("test")
	m.Replace("", every(true))
	for service := range 5000 {
		ip := netip.AddrFrom4([4]byte{10, 43, byte(service >> 8), byte(service)})
		part := Part{Elements: []Element{{Set: "verdicts4", Key: Bytes(ip, TCP, uint16(80)), Value: "goto pick4"}, {Set: "set4", Key: Bytes(ip)}}}
		for i := range 10 {
			endpoint := Bytes(netip.AddrFrom4([4]byte{10, 42 + byte(i), byte(service >> 8), byte(service)}), uint16(8080))
			part.Elements = append(part.Elements, Element{Set: "endpoints4", Key: Bytes(ip, TCP, uint16(80), i), Value: endpoint})
		}
		m.Replace(fmt.Sprint("service-", service), part)
	}
	w := NewWriter(m, slog.New(slog.DiscardHandler))
	b.Cleanup(func() {
		w.Close()
		if err := Remove(m.Table); err != nil {
			b.Error(err)
		}
	})
	b.Run("whole", func(b *testing.B) {
		for b.Loop() {
			if err := w.Replace(); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("kernel", func(b *testing.B) {
		messages := &messages{table: m.Table}
		messages.replaceTable()
		if err := messages.fill(m, m.All(), nil); err != nil {
			b.Fatal(err)
		}
		for b.Loop() {
			if err := w.use(func(c *netlink.Conn) error { return transact(c, messages) }); err != nil {
				b.Fatal(err)
			}
		}
	})
}
