//go:build root

package firewall

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	mdlayher "github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"skiff/internal/network/hostnet"
	"skiff/internal/network/nft"
	"skiff/test/netns"
)

func TestMain(m *testing.M) { netns.Main(m) }

const (
	// short is how long a dropped packet is waited for, long an answer.
	short = 300 * time.Millisecond
	long  = 5 * time.Second
)

// world is a host with a pod, behind the interface skiff0, and a client outside.
type world struct {
	t            *testing.T
	pod, outside netns.Namespace
	firewall     *Firewall
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, pod: netns.New(t), outside: netns.New(t)}
	netns.Sysctl(t, "net/ipv4/ip_forward", "1")
	w.pod.Connect(t, "skiff0", []string{"10.42.1.1/24"}, []string{"10.42.1.2/24"})
	w.outside.Connect(t, "uplink", []string{"192.168.7.1/24"}, []string{"192.168.7.9/24"})
	w.pod.Serve(t, "pod", "80")
	netns.Namespace{}.Serve(t, "host", "53")
	w.firewall = New(Settings{
		Bridge: "skiff0", ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16")}, ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.43.0.0/16")},
	}, func() {}, slog.New(slog.DiscardHandler))
	t.Cleanup(func() {
		if err := Remove(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// foreign is a table of another program with one chain.
func foreign(t *testing.T, family nftables.TableFamily, hook *nftables.ChainHook, policy nftables.ChainPolicy, last ...expr.Any) {
	t.Helper()
	connection, err := nftables.New()
	if err != nil {
		t.Fatal(err)
	}
	other := connection.AddTable(&nftables.Table{Name: "filter", Family: family})
	name := map[nftables.ChainHook]string{
		*nftables.ChainHookForward: "FORWARD", *nftables.ChainHookInput: "INPUT", *nftables.ChainHookOutput: "OUTPUT",
	}[*hook]
	chain := connection.AddChain(&nftables.Chain{
		Name: name, Table: other, Type: nftables.ChainTypeFilter, Hooknum: hook, Priority: nftables.ChainPriorityFilter, Policy: &policy,
	})
	connection.FlushChain(chain)
	connection.AddRule(&nftables.Rule{Table: other, Chain: chain, Exprs: []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATE, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: []byte{byte(expr.CtStateBitESTABLISHED), 0, 0, 0}, Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)}, &expr.Verdict{Kind: expr.VerdictAccept},
	}})
	if len(last) > 0 {
		connection.AddRule(&nftables.Rule{Table: other, Chain: chain, Exprs: last})
	}
	if err := connection.Flush(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		connection.DelTable(other)
		_ = connection.Flush()
	})
}

func (w *world) mustReach(from netns.Namespace, address string) {
	w.t.Helper()
	if _, _, err := from.Ask("tcp", address, long); err != nil {
		w.t.Errorf("%s: %v", address, err)
	}
}

func (w *world) mustNotReach(from netns.Namespace, address string) {
	w.t.Helper()
	if _, _, err := from.Ask("tcp", address, short); err == nil {
		w.t.Errorf("%s was reached", address)
	}
}

func (w *world) sync() {
	w.t.Helper()
	if err := w.firewall.sync(time.Now()); err != nil {
		w.t.Fatal(err)
	}
}

func TestForwardedPackets(t *testing.T) {
	drop, accept := nftables.ChainPolicyDrop, nftables.ChainPolicyAccept
	for name, test := range map[string]struct {
		family nftables.TableFamily
		policy nftables.ChainPolicy
		last   []expr.Any
	}{
		"policy of a table of iptables": {nftables.TableFamilyIPv4, drop, nil},
		"policy of another table":       {nftables.TableFamilyINet, drop, nil},
		"last rule rejects": {nftables.TableFamilyINet, accept, []expr.Any{
			&expr.Counter{}, &expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_ADMIN_PROHIBITED},
		}},
		"last rule drops": {nftables.TableFamilyIPv4, accept, []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			set := func() { foreign(t, test.family, nftables.ChainHookForward, test.policy, test.last...) }
			set()
			w.mustNotReach(w.outside, "10.42.1.2:80")
			w.sync()
			w.mustReach(w.outside, "10.42.1.2:80")
			before, err := nft.Generation()
			if err != nil {
				t.Fatal(err)
			}
			w.sync()
			if after, err := nft.Generation(); err != nil || after != before {
				t.Errorf("a second sync has changed rules: generation %d, was %d, %v", after, before, err)
			}
			// The other program writes its rules again.
			set()
			w.mustNotReach(w.outside, "10.42.1.2:80")
			w.sync()
			w.mustReach(w.outside, "10.42.1.2:80")
		})
	}
}

// setLegacyPolicies sets the policies of the chains INPUT and FORWARD of iptables' legacy interface.
func setLegacyPolicies(t *testing.T, f legacyFamily, verdict int32) {
	t.Helper()
	fd, err := unix.Socket(f.domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	table, err := f.read(fd) // makes the table
	if err != nil {
		t.Fatalf("this kernel has no legacy tables: %v", err)
	}
	table.each(func(at int, entry []byte) bool {
		for _, hook := range []int{inputNumber, forwardNumber} {
			if at == int(table.underflow[hook]) {
				binary.NativeEndian.PutUint32(f.verdict(entry), uint32(verdict))
			}
		}
		return true
	})
	if err := f.replace(fd, table); err != nil {
		t.Fatal(err)
	}
}

// legacyCount is the number of entries of the table.
func legacyCount(t *testing.T, f legacyFamily) uint32 {
	t.Helper()
	fd, err := unix.Socket(f.domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	table, err := f.read(fd)
	if err != nil {
		t.Fatal(err)
	}
	return table.count
}

// TestLegacyTables checks the same with the policies of iptables' legacy interface.
func TestLegacyTables(t *testing.T) {
	w := newWorld(t)
	for _, f := range legacyFamilies {
		setLegacyPolicies(t, f, legacyDrop)
	}
	// Both families have the chains INPUT, FORWARD and OUTPUT with their policies, and a last entry.
	const empty = 4
	netns.AddAddress(t, "lo", "10.43.0.10/32")
	translate(t, "10.43.0.99:53", "192.168.7.1:53")
	w.mustNotReach(w.outside, "10.42.1.2:80")
	w.mustNotReach(w.pod, "10.43.0.10:53")
	w.firewall.SetTunnel(Tunnel{Port: 8472, Nodes: []netip.Addr{netip.MustParseAddr("192.168.7.9")}})
	netns.Namespace{}.Serve(t, "host", "8472")
	for range 2 {
		w.sync()
		w.mustReach(w.outside, "10.42.1.2:80")
		w.mustReach(w.pod, "10.43.0.10:53")
		w.mustReach(w.pod, "10.43.0.99:53")
		w.mustNotReach(w.pod, "192.168.7.1:53")
		if _, _, err := w.outside.Ask("udp", "192.168.7.1:8472", long); err != nil {
			t.Errorf("a packet of a node: %v", err)
		}
		for _, f := range legacyFamilies {
			// Of the forwarded packets those from and to the bridge and the cluster's pods, of the others those of Services, nodes and DNS.
			want := uint32(empty + 2 + 2)
			if f.family == "ip" {
				want += 2 + 1
			}
			if count := legacyCount(t, f); count != want {
				t.Errorf("%s: %d entries, want %d", f.command, count, want)
			}
		}
	}
	if err := Remove(); err != nil {
		t.Fatal(err)
	}
	for _, f := range legacyFamilies {
		if count := legacyCount(t, f); count != empty {
			t.Errorf("%s: %d entries after the removal, want %d", f.command, count, empty)
		}
	}
	w.mustNotReach(w.outside, "10.42.1.2:80")
	for _, f := range legacyFamilies {
		setLegacyPolicies(t, f, legacyAccept)
	}
}

// TestForwardedToAnotherNode checks packets that come from outside and are forwarded to a pod of another node, as those to node ports are.
func TestForwardedToAnotherNode(t *testing.T) { tablesOf(t, testForwardedToAnotherNode) }

func testForwardedToAnotherNode(t *testing.T, family nftables.TableFamily) {
	w := newWorld(t)
	other := netns.New(t)
	other.Connect(t, "overlay", []string{"10.42.1.1/32"}, []string{"10.42.2.2/32"})
	other.Serve(t, "remote", "80")
	foreign(t, family, nftables.ChainHookForward, nftables.ChainPolicyDrop)
	translate(t, "192.168.7.1:80", "10.42.2.2:80")
	w.mustNotReach(w.outside, "192.168.7.1:80")
	w.sync()
	w.mustReach(w.outside, "192.168.7.1:80")
	// Other packets are not forwarded.
	if err := other.Do(func() error {
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		return hostnet.AddAddress(link, netip.MustParsePrefix("172.16.0.2/32"))
	}); err != nil {
		t.Fatal(err)
	}
	link, err := netlink.LinkByName("overlay")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: hostnet.IPNet(netip.MustParsePrefix("172.16.0.2/32")), Scope: netlink.SCOPE_LINK}); err != nil {
		t.Fatal(err)
	}
	w.mustNotReach(w.outside, "172.16.0.2:80")
}

// tablesOf calls test with the family of a table of nft and with that of one of iptables, in which rules have another form.
func tablesOf(t *testing.T, test func(t *testing.T, family nftables.TableFamily)) {
	for name, family := range map[string]nftables.TableFamily{"nft": nftables.TableFamilyINet, "iptables": nftables.TableFamilyIPv4} {
		t.Run(name, func(t *testing.T) { test(t, family) })
	}
}

func TestHostPackets(t *testing.T) { tablesOf(t, testHostPackets) }

func testHostPackets(t *testing.T, family nftables.TableFamily) {
	w := newWorld(t)
	foreign(t, family, nftables.ChainHookInput, nftables.ChainPolicyDrop)
	netns.AddAddress(t, "lo", "10.43.0.10/32")
	w.mustNotReach(w.pod, "10.43.0.10:53")
	w.sync()
	w.mustReach(w.pod, "10.43.0.10:53")
	// A Service whose endpoint is on the host.
	translate(t, "10.43.0.99:53", "192.168.7.1:53")
	w.mustReach(w.pod, "10.43.0.99:53")
	// Other servers of the host stay closed, for pods and others.
	w.mustNotReach(w.pod, "192.168.7.1:53")
	w.mustNotReach(w.outside, "192.168.7.1:53")
}

// TestOutgoingPackets checks that the host reaches its pods, as probes do, and that packets to other nodes leave.
func TestOutgoingPackets(t *testing.T) { tablesOf(t, testOutgoingPackets) }

func testOutgoingPackets(t *testing.T, family nftables.TableFamily) {
	const port = "8472"
	w := newWorld(t)
	w.outside.Serve(t, "node", port)
	foreign(t, family, nftables.ChainHookOutput, nftables.ChainPolicyDrop)
	host := netns.Namespace{}
	w.mustNotReach(host, "10.42.1.2:80")
	w.firewall.SetTunnel(Tunnel{Port: 8472, Nodes: []netip.Addr{netip.MustParseAddr("192.168.7.9")}})
	w.sync()
	w.mustReach(host, "10.42.1.2:80")
	if _, _, err := host.Ask("udp", "192.168.7.9:"+port, long); err != nil {
		t.Errorf("a packet to a node: %v", err)
	}
	w.mustNotReach(host, "192.168.7.9:"+port) // other packets, such as those of TCP, do not leave
}

// translate makes the host translate the destination of packets, as the Service proxy does.
func translate(t *testing.T, from, to string) {
	t.Helper()
	const name = "skiff-test"
	source := netip.MustParseAddrPort(from)
	m := nft.NewModel(name)
	m.Replace("test", nft.Part{Chains: []nft.Chain{{
		Name: "prerouting", Hook: &nft.Hook{Type: "nat", Point: "prerouting", Priority: -100},
		Rules: []nft.Rule{nft.NewRule(nft.Destination(netip.PrefixFrom(source.Addr(), 32)), nft.StateNew(), nft.DNATTo(netip.MustParseAddrPort(to)))},
	}}})
	if err := nft.NewWriter(m, slog.New(slog.DiscardHandler)).Replace(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := nft.Remove(name); err != nil {
			t.Error(err)
		}
	})
}

// TestNodes checks that packets between nodes are accepted from nodes alone.
func TestNodes(t *testing.T) { tablesOf(t, testNodes) }

func testNodes(t *testing.T, family nftables.TableFamily) {
	const port = "8472"
	w := newWorld(t)
	netns.Namespace{}.Serve(t, "host", port)
	foreign(t, family, nftables.ChainHookInput, nftables.ChainPolicyDrop)
	ask := func() error {
		_, _, err := w.outside.Ask("udp", "192.168.7.1:"+port, short)
		return err
	}
	w.firewall.SetTunnel(Tunnel{Port: 8472, Nodes: []netip.Addr{netip.MustParseAddr("192.168.7.8")}})
	w.sync()
	if err := ask(); !errors.Is(err, netns.ErrDropped) {
		t.Errorf("a packet of another host: %v, want it dropped", err)
	}
	w.firewall.SetTunnel(Tunnel{Port: 8472, Nodes: []netip.Addr{netip.MustParseAddr("192.168.7.8"), netip.MustParseAddr("192.168.7.9")}})
	w.sync()
	if err := ask(); err != nil {
		t.Errorf("a packet of a node: %v", err)
	}
}

// The own table is written again after another program has removed all tables, as nftables.service does when it is restarted.
func TestRemovedTable(t *testing.T) {
	const port = "8472"
	w := newWorld(t)
	netns.Namespace{}.Serve(t, "host", port)
	w.firewall.SetTunnel(Tunnel{Port: 8472, Nodes: []netip.Addr{netip.MustParseAddr("192.168.7.8")}})
	ask := func() error {
		_, _, err := w.outside.Ask("udp", "192.168.7.1:"+port, short)
		return err
	}
	now := time.Now()
	for round := range 2 {
		if err := w.firewall.sync(now); err != nil {
			t.Fatal(err)
		}
		if err := ask(); !errors.Is(err, netns.ErrDropped) {
			t.Errorf("round %d: a packet of another host: %v, want it dropped", round, err)
		}
		if err := nft.Remove(Table); err != nil {
			t.Fatal(err)
		}
		if err := ask(); err != nil {
			t.Errorf("round %d: a packet of another host without the table: %v", round, err)
		}
		now = now.Add(comparePeriod)
	}
}

// trackedTo are the destinations of the connections to a port that the kernel tracks, sorted.
func trackedTo(t *testing.T, port uint16) (destinations []string) {
	t.Helper()
	flows, err := hostnet.Dump(func() ([]*netlink.ConntrackFlow, error) {
		return netlink.ConntrackTableList(netlink.ConntrackTable, unix.AF_INET)
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, flow := range flows {
		if flow.Forward.DstPort == port {
			destinations = append(destinations, flow.Forward.DstIP.String())
		}
	}
	slices.Sort(destinations)
	return destinations
}

// TestPacketsBetweenNodesAreNotTracked checks that the packets of the tunnel belong to no connections, and those that pods send to the same port do.
func TestPacketsBetweenNodesAreNotTracked(t *testing.T) {
	const port = 8472
	w := newWorld(t)
	other := netns.New(t)
	other.Connect(t, "overlay", []string{"10.42.1.1/32"}, []string{"10.42.2.2/32"})
	for _, space := range []netns.Namespace{{}, w.outside, other} {
		space.Serve(t, "server", strconv.Itoa(port))
	}
	foreign(t, nftables.TableFamilyINet, nftables.ChainHookInput, nftables.ChainPolicyAccept) // makes the kernel track connections
	local, node := netip.MustParseAddr("192.168.7.1"), netip.MustParseAddr("192.168.7.9")
	for _, test := range []struct {
		tunnel Tunnel
		want   string
	}{
		{Tunnel{}, "[10.42.2.2 192.168.7.1 192.168.7.9]"},
		{Tunnel{Port: port, Local: local, Nodes: []netip.Addr{node}}, "[10.42.2.2]"},
	} {
		w.firewall.SetTunnel(test.tunnel)
		w.sync()
		if err := netlink.ConntrackTableFlush(netlink.ConntrackTable); err != nil {
			t.Fatal(err)
		}
		for _, path := range []struct {
			from netns.Namespace
			to   string
		}{{w.outside, "192.168.7.1"}, {netns.Namespace{}, "192.168.7.9"}, {w.pod, "10.42.2.2"}} {
			if _, _, err := path.from.Ask("udp", netip.AddrPortFrom(netip.MustParseAddr(path.to), port).String(), long); err != nil {
				t.Errorf("to %s: %v", path.to, err)
			}
		}
		if got := fmt.Sprint(trackedTo(t, port)); got != test.want {
			t.Errorf("tunnel %+v: connections to %s are tracked, want %s", test.tunnel, got, test.want)
		}
	}
}

// ownedTable makes a table that can be changed by one connection alone, as firewalld does. It has a chain that drops all forwarded packets.
func ownedTable(t *testing.T) (connection *nftables.Conn, chain *nftables.Chain) {
	t.Helper()
	const ownerFlag = 2 // NFT_TABLE_F_OWNER
	var socket *mdlayher.Conn
	connection, err := nftables.New(nftables.AsLasting(), nftables.WithSockOptions(func(c *mdlayher.Conn) error { socket = c; return nil }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = connection.CloseLasting() }) // removes the table
	e := mdlayher.NewAttributeEncoder()
	e.ByteOrder = binary.BigEndian
	e.String(unix.NFTA_TABLE_NAME, "firewalld")
	e.Uint32(unix.NFTA_TABLE_FLAGS, ownerFlag)
	attributes, err := e.Encode()
	if err != nil {
		t.Fatal(err)
	}
	batch := []byte{0, 0, 0, unix.NFNL_SUBSYS_NFTABLES}
	_, err = socket.SendMessages([]mdlayher.Message{
		{Header: mdlayher.Header{Type: unix.NFNL_MSG_BATCH_BEGIN, Flags: mdlayher.Request}, Data: batch},
		{
			Header: mdlayher.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWTABLE, Flags: mdlayher.Request | mdlayher.Create | mdlayher.Acknowledge},
			Data:   append([]byte{unix.NFPROTO_INET, 0, 0, 0}, attributes...),
		},
		{Header: mdlayher.Header{Type: unix.NFNL_MSG_BATCH_END, Flags: mdlayher.Request}, Data: batch},
	})
	if err == nil {
		_, err = socket.Receive()
	}
	if err != nil {
		t.Fatal(err)
	}
	policy := nftables.ChainPolicyDrop
	chain = connection.AddChain(&nftables.Chain{
		Name: "filter_FORWARD", Table: &nftables.Table{Name: "firewalld", Family: nftables.TableFamilyINet}, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter, Policy: &policy,
	})
	if err := connection.Flush(); err != nil {
		t.Fatal(err)
	}
	return connection, chain
}

// TestOwnedTable checks that a table that cannot be changed is reported with what can be done, until its owner has rules for the bridge.
func TestOwnedTable(t *testing.T) {
	w := newWorld(t)
	connection, chain := ownedTable(t)
	w.mustNotReach(w.outside, "10.42.1.2:80")
	err := w.firewall.sync(time.Now())
	if want := "`firewall-cmd --permanent --zone=trusted --add-interface=skiff0`, `firewall-cmd --permanent --zone=trusted --add-source=10.42.0.0/16`"; err == nil || !strings.Contains(err.Error(), want) {
		t.Fatalf("error %v, want one with %q", err, want)
	}
	for _, key := range []expr.MetaKey{expr.MetaKeyIIFNAME, expr.MetaKeyOIFNAME} {
		connection.AddRule(&nftables.Rule{Table: chain.Table, Chain: chain, Exprs: []expr.Any{
			&expr.Meta{Key: key, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte("skiff0\x00")}, &expr.Verdict{Kind: expr.VerdictAccept},
		}})
	}
	if err := connection.Flush(); err != nil {
		t.Fatal(err)
	}
	w.sync()
	w.mustReach(w.outside, "10.42.1.2:80")
}

func TestRemove(t *testing.T) {
	w := newWorld(t)
	foreign(t, nftables.TableFamilyIPv4, nftables.ChainHookForward, nftables.ChainPolicyDrop)
	w.firewall.SetTunnel(Tunnel{Port: 8472})
	w.sync()
	if err := Remove(); err != nil {
		t.Fatal(err)
	}
	tables, _, err := readTables("")
	if err != nil {
		t.Fatal(err)
	}
	for _, table := range tables {
		for _, c := range table.chains {
			for _, r := range c.rules {
				if strings.HasPrefix(r.own, marker) {
					t.Errorf("a rule is left in chain %s of table %s", c.name, table.name)
				}
			}
		}
	}
	if lines, err := nft.Read(Table); err != nil || len(lines) > 0 {
		t.Errorf("the table is left: %v, %v", lines, err)
	}
}

// serveAt answers UDP packets to one address of a namespace with the client's address.
func serveAt(t *testing.T, n netns.Namespace, address string) {
	t.Helper()
	var packets net.PacketConn
	err := n.Do(func() (err error) {
		packets, err = net.ListenPacket("udp4", address)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = packets.Close() })
	go func() {
		for buffer := make([]byte, 100); ; {
			_, from, err := packets.ReadFrom(buffer)
			if err != nil {
				return
			}
			_, _ = packets.WriteTo([]byte("node "+from.(*net.UDPAddr).IP.String()), from)
		}
	}()
}

// masquerade gives packets that leave the cluster the host's address.
func masquerade(t *testing.T) {
	t.Helper()
	nat := nft.NewModel("skiff-test")
	nat.Replace("", nft.Part{Chains: []nft.Chain{{Name: "out", Hook: &nft.Hook{Type: "nat", Point: "postrouting", Priority: 100}, Rules: []nft.Rule{
		nft.NewRule(nft.DestinationNot(netip.MustParsePrefix("10.42.0.0/16")), nft.Masquerade()),
	}}}})
	if err := nft.NewWriter(nat, slog.New(slog.DiscardHandler)).Replace(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = nft.Remove("skiff-test") })
}

// TestPodsDoNotReachTheTunnel checks that a pod cannot send packets to the port of the network between nodes: they would come from this node's address.
func TestPodsDoNotReachTheTunnel(t *testing.T) {
	const port = "8472"
	w := newWorld(t)
	other := netns.New(t)
	other.Connect(t, "overlay", []string{"10.42.1.1/32"}, []string{"10.42.2.2/32"})
	masquerade(t)
	other.Serve(t, "pod", port)
	// The second address of the node is not in its object.
	addresses := []string{"192.168.7.9", "192.168.7.10"}
	if err := w.outside.Do(func() error {
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		return hostnet.AddAddress(link, netip.MustParsePrefix("192.168.7.10/24"))
	}); err != nil {
		t.Fatal(err)
	}
	for _, address := range addresses {
		for _, served := range []string{port, "53"} {
			serveAt(t, w.outside, address+":"+served)
		}
	}
	for _, authenticated := range []bool{false, true} {
		w.firewall.SetTunnel(Tunnel{Port: 8472, Authenticated: authenticated, Nodes: []netip.Addr{netip.MustParseAddr("192.168.7.9")}})
		w.sync()
		for _, address := range addresses {
			_, seen, err := w.pod.Ask("udp", address+":"+port, short)
			if authenticated && (err != nil || seen != "192.168.7.1") {
				t.Errorf("the port of an authenticated tunnel at %s: seen as %q, %v", address, seen, err)
			}
			if !authenticated && !errors.Is(err, netns.ErrDropped) {
				t.Errorf("the port at %s: seen as %q, %v, want it dropped", address, seen, err)
			}
			if _, _, err := w.pod.Ask("udp", address+":53", long); err != nil {
				t.Errorf("another port at %s: %v", address, err)
			}
		}
		if _, _, err := w.pod.Ask("udp", "10.42.2.2:"+port, long); err != nil {
			t.Errorf("the port of another pod: %v", err)
		}
	}
}

// TestPodsDoNotReachTheTunnelOfLaterNodes checks that a pod has no connection to the port of a host that is not a node yet.
func TestPodsDoNotReachTheTunnelOfLaterNodes(t *testing.T) {
	w := newWorld(t)
	masquerade(t)
	w.outside.Serve(t, "node", "8472")
	for port, want := range map[uint16]error{0: nil, 8472: netns.ErrDropped} {
		w.firewall.settings.TunnelPort = port
		w.firewall.tunnelKnown = false
		w.firewall.SetTunnel(Tunnel{})
		w.sync()
		if _, _, err := w.pod.Ask("udp", "192.168.7.9:8472", short); !errors.Is(err, want) {
			t.Errorf("a tunnel with port %d: %v, want %v", port, err, want)
		}
	}
}

// TestTranslatedPacketsDoNotReachTheTunnel checks that the address of a Service leads neither to the port of this host nor to that of another node.
func TestTranslatedPacketsDoNotReachTheTunnel(t *testing.T) {
	const port = "8472"
	w := newWorld(t)
	for address, space := range map[string]netns.Namespace{"192.168.7.1": {}, "192.168.7.9": w.outside} {
		serveAt(t, space, address+":"+port)
		serveAt(t, space, address+":54")
	}
	w.firewall.SetTunnel(Tunnel{Port: 8472, Local: netip.MustParseAddr("192.168.7.1"), Nodes: []netip.Addr{netip.MustParseAddr("192.168.7.9")}})
	w.sync()
	for _, endpoint := range []string{"192.168.7.1", "192.168.7.9"} {
		translate(t, "10.43.0.99:53", endpoint+":54")
		if _, _, err := w.pod.Ask("udp", "10.43.0.99:53", long); err != nil {
			t.Errorf("another port of %s: %v", endpoint, err)
		}
		translate(t, "10.43.0.99:53", endpoint+":"+port)
		if _, seen, err := w.pod.Ask("udp", "10.43.0.99:53", short); !errors.Is(err, netns.ErrDropped) {
			t.Errorf("the port of %s: seen as %q, %v, want it dropped", endpoint, seen, err)
		}
	}
}

// TestBroadcastsDoNotReachTheTunnel checks that packets to all hosts of the network are dropped, too.
func TestBroadcastsDoNotReachTheTunnel(t *testing.T) {
	const address = "192.168.7.255:8472"
	w := newWorld(t)
	received := make(chan struct{}, 1)
	packets, err := net.ListenPacket("udp4", ":8472")
	if err != nil {
		t.Fatal(err)
	}
	defer packets.Close()
	go func() {
		for {
			if _, _, err := packets.ReadFrom(make([]byte, 10)); err != nil {
				return
			}
			received <- struct{}{}
		}
	}()
	send := func() error {
		return w.outside.Do(func() error {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			to := netip.MustParseAddrPort(address)
			return errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BROADCAST, 1),
				unix.Sendto(fd, []byte("x"), 0, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}))
		})
	}
	for node, accepted := range map[string]bool{"192.168.7.8": false, "192.168.7.9": true} {
		w.firewall.SetTunnel(Tunnel{Port: 8472, Local: netip.MustParseAddr("192.168.7.1"), Nodes: []netip.Addr{netip.MustParseAddr(node)}})
		w.sync()
		wait := short
		if accepted {
			wait = long
		}
		if err := send(); err != nil {
			t.Fatal(err)
		}
		select {
		case <-received:
			if !accepted {
				t.Errorf("a broadcast of another host than node %s was received", node)
			}
		case <-time.After(wait):
			if accepted {
				t.Errorf("a broadcast of node %s was not received", node)
			}
		}
	}
}

// TestAuthenticatedTunnel checks that packets of a tunnel that recognizes nodes itself are accepted from any address.
func TestAuthenticatedTunnel(t *testing.T) { tablesOf(t, testAuthenticatedTunnel) }

func testAuthenticatedTunnel(t *testing.T, family nftables.TableFamily) {
	const port = "51820"
	w := newWorld(t)
	netns.Namespace{}.Serve(t, "host", port)
	foreign(t, family, nftables.ChainHookInput, nftables.ChainPolicyDrop)
	w.firewall.SetTunnel(Tunnel{Port: 51820, Authenticated: true})
	w.sync()
	if _, _, err := w.outside.Ask("udp", "192.168.7.1:"+port, long); err != nil {
		t.Errorf("a packet from an address that no node has: %v", err)
	}
}

// TestReadWhileRulesChange checks that rules that are read while others change are complete.
func TestReadWhileRulesChange(t *testing.T) {
	const count, changes = 3000, 300
	connection, err := nftables.New()
	if err != nil {
		t.Fatal(err)
	}
	other := connection.AddTable(&nftables.Table{Name: "large", Family: nftables.TableFamilyINet})
	chain := connection.AddChain(&nftables.Chain{Name: "forward", Table: other, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter})
	for i := range count {
		connection.AddRule(&nftables.Rule{Table: other, Chain: chain, Exprs: []expr.Any{&expr.Counter{}}})
		if i%100 != 99 {
			continue
		}
		if err := connection.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		connection.DelTable(other)
		_ = connection.Flush()
	})
	done := make(chan error, 1)
	go func() {
		// The first rules are replaced by others of the same number.
		writer, err := nftables.New()
		for i := 0; i < changes && err == nil; i++ {
			var rules []*nftables.Rule
			if rules, err = writer.GetRules(other, chain); err != nil {
				break
			}
			if err = writer.DelRule(rules[0]); err != nil {
				break
			}
			writer.AddRule(&nftables.Rule{Table: other, Chain: chain, Exprs: []expr.Any{&expr.Counter{}}})
			err = writer.Flush()
		}
		done <- err
	}()
	for {
		tables, _, err := readTables("")
		if err == nil && len(tables[0].chains[0].rules) != count {
			t.Errorf("%d rules, want %d", len(tables[0].chains[0].rules), count)
		}
		select {
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
			return
		default:
		}
	}
}
