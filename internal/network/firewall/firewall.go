// Package firewall lets packets of pods pass the firewalls of other programs on the host, such as ufw, firewalld and Docker, and drops packets of the
// network between nodes that do not come from a node.
//
// A packet passes the base chains of all nftables tables, so that accepting it in a table of skiff does not help if another one drops it. Where a
// chain of another program drops what is not explicitly accepted, by its policy or by its last rule, rules that accept packets of pods
// are added to it (chains.go decides, rules.go has the rules). They are added again when the other program removes them.
package firewall

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"skiff/internal/network/nft"
)

// Table is the nftables table with the addresses of nodes.
const Table = "skiff-firewall"

const (
	// checkPeriod is the time between two comparisons of the kernel's generation of rules.
	checkPeriod = time.Second
	// comparePeriod is the least time between two comparisons of the own table with the wanted one.
	comparePeriod = 10 * time.Second
	// tunnelPriority is that of the chains that see packets of the tunnel before connection tracking does.
	tunnelPriority = -300
	// translatedPriority is that of the chains that see the first packets of connections: before the translation of sources.
	translatedPriority = -150
	nodesOwner         = "nodes"
)

// Settings say which packets are those of pods.
type Settings struct {
	// Bridge is the name of the interface by which all packets of the host's pods come and go.
	Bridge string
	// ClusterCIDRs are the CIDRs of the pods of all nodes.
	ClusterCIDRs []netip.Prefix
	// ServiceCIDRs are the CIDRs of Services. The host has the address of the cluster's DNS.
	ServiceCIDRs []netip.Prefix
	// TunnelPort is the UDP port of the tunnel without authentication that other nodes will be reached by; 0: there will be none.
	TunnelPort uint16
}

// Firewall keeps the rules.
type Firewall struct {
	settings Settings
	// changed is called when Problem has changed.
	changed func()
	log     *slog.Logger
	wake    chan struct{}
	// The following are used by Run alone.
	writer     *nft.Writer
	model      *nft.Model
	generation uint32
	port       uint16
	// compared is when the own table was compared; zero: never.
	compared time.Time

	mu sync.Mutex
	// tunnel is the network between nodes. Until it is known the table of an earlier run stays.
	tunnel      Tunnel
	tunnelKnown bool
	problem     error
}

// Tunnel is the network between nodes, as far as rules depend on it.
type Tunnel struct {
	// Port is the UDP port of its packets; 0: there is none.
	Port uint16
	// Authenticated is whether the tunnel itself recognizes the packets of nodes. Packets of other tunnels are accepted from the addresses of nodes alone.
	Authenticated bool
	// Local is the address of this node in the packets of a tunnel without authentication, Nodes are the sorted ones of the other nodes.
	Local netip.Addr
	Nodes []netip.Addr
}

func (t Tunnel) equal(other Tunnel) bool {
	return t.Port == other.Port && t.Authenticated == other.Authenticated && t.Local == other.Local && slices.Equal(t.Nodes, other.Nodes)
}

// New makes a firewall. It starts nothing.
func New(s Settings, changed func(), log *slog.Logger) *Firewall {
	m := nft.NewModel(Table)
	return &Firewall{settings: s, changed: changed, log: log, wake: make(chan struct{}, 1), model: m, writer: nft.NewWriter(m, log)}
}

// SetTunnel sets the network between nodes.
func (f *Firewall) SetTunnel(t Tunnel) {
	f.mu.Lock()
	same := f.tunnelKnown && f.tunnel.equal(t)
	f.tunnel, f.tunnelKnown = t, true
	f.mu.Unlock()
	if same {
		return
	}
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// Problem says what keeps pods from the network; nil: nothing that is known.
func (f *Firewall) Problem() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.problem
}

func (f *Firewall) setProblem(err error) {
	f.mu.Lock()
	same := fmt.Sprint(f.problem) == fmt.Sprint(err)
	f.problem = err
	f.mu.Unlock()
	if same {
		return
	}
	if err != nil {
		f.log.Error("failed to let packets of pods pass the firewall of this host", "error", err)
	}
	f.changed()
}

// Run keeps the rules until ctx is done. They stay in the kernel.
func (f *Firewall) Run(ctx context.Context) error {
	defer f.writer.Close()
	ticker := time.NewTicker(checkPeriod)
	defer ticker.Stop()
	for {
		f.setProblem(f.sync(time.Now()))
		select {
		case <-ctx.Done():
			return nil
		case <-f.wake:
		case <-ticker.C:
		}
	}
}

// sync writes the own table and, if any rules of the host have changed, the rules in chains of others.
func (f *Firewall) sync(now time.Time) error {
	f.mu.Lock()
	tunnel, known := f.tunnel, f.tunnelKnown
	f.mu.Unlock()
	if known {
		// Who loads a set of rules, as nftables.service does, may remove the tables of all programs.
		if since := now.Sub(f.compared); since >= comparePeriod {
			if !f.compared.IsZero() {
				f.writer.Compare()
			}
			f.compared = now
		}
		f.model.Replace(nodesOwner, nodesPart(f.settings, tunnel))
		if _, err := f.writer.Apply(); err != nil {
			return err
		}
	}
	wanted := acceptances(f.settings, tunnel.Port)
	return errors.Join(f.syncChains(wanted, tunnel.Port), syncLegacy(wanted))
}

// syncChains changes the chains of other programs, unless no rules have changed since the last time.
func (f *Firewall) syncChains(wanted map[string][]acceptance, port uint16) error {
	now, err := nft.Generation()
	if err == nil && now == f.generation && port == f.port {
		return nil
	}
	tables, now, err := readTables(f.settings.Bridge)
	if err != nil {
		return err
	}
	var errs []error
	for _, c := range planAll(tables, wanted) {
		err := f.apply(c, wanted[c.chain.hook])
		switch {
		case err == nil:
			now++ // a change of its own
		case errors.Is(err, unix.EPERM) && c.table.namesBridge:
			// Nobody but its owner can change the table, and the owner has rules for the bridge.
		default:
			errs = append(errs, f.describe(c, port, err))
		}
	}
	if len(errs) == 0 {
		// A change of others in between is found with the next one.
		f.generation, f.port = now, port
	}
	return errors.Join(errs...)
}

// describe says what an administrator can do about a chain that cannot be changed.
func (f *Firewall) describe(c change, port uint16, err error) error {
	err = fmt.Errorf("chain %s of nftables table %s %s drops packets of pods, and cannot be changed: %w", c.chain.name, c.table.family, c.table.name, err)
	if !errors.Is(err, unix.EPERM) {
		return err
	}
	// firewalld owns its table, unless it is told not to.
	var commands []string
	for _, arguments := range f.settings.firewalldCommands(port) {
		commands = append(commands, "`firewall-cmd "+arguments+"`")
	}
	return fmt.Errorf("%w: the table belongs to a program that has to accept them itself; for firewalld, set NftablesTableOwner=no, or run %s", err, strings.Join(commands, ", "))
}

// firewalldCommands are the arguments of the commands by which firewalld accepts packets of pods. It takes one kind of change at a time.
func (s Settings) firewalldCommands(port uint16) []string {
	commands := []string{"--permanent --zone=trusted --add-interface=" + s.Bridge}
	if len(s.ClusterCIDRs) > 0 {
		sources := "--permanent --zone=trusted"
		for _, p := range s.ClusterCIDRs {
			sources += " --add-source=" + p.String()
		}
		commands = append(commands, sources)
	}
	if port != 0 {
		commands = append(commands, fmt.Sprintf("--permanent --add-port=%d/udp", port))
	}
	return append(commands, "--reload")
}

// planAll computes the changes of all tables.
func planAll(tables []table, wanted map[string][]acceptance) (changes []change) {
	for _, t := range tables {
		identities := map[string][]string{}
		for hook, list := range wanted {
			for _, a := range list {
				if a.in(t.family) {
					identities[hook] = append(identities[hook], a.identity())
				}
			}
		}
		changes = append(changes, t.plan(identities)...)
	}
	return changes
}

// apply changes a chain of another program in one transaction. The rules to add are of the given kinds of packets.
func (f *Firewall) apply(c change, kinds []acceptance) error {
	connection, err := nftables.New()
	if err != nil {
		return err
	}
	t := &nftables.Table{Name: c.table.name, Family: families[c.table.family]}
	ch := &nftables.Chain{Name: c.chain.name, Table: t}
	for _, r := range c.remove {
		if err := connection.DelRule(&nftables.Rule{Table: t, Chain: ch, Handle: r.handle}); err != nil {
			return err
		}
	}
	for _, a := range kinds {
		if !slices.Contains(c.add, a.identity()) {
			continue
		}
		r := &nftables.Rule{Table: t, Chain: ch, Exprs: a.exprs(c.table, c.chain), UserData: comment(a.identity())}
		if c.before != 0 {
			r.Position = c.before
			connection.InsertRule(r)
		} else {
			connection.AddRule(r)
		}
	}
	if err := connection.Flush(); err != nil {
		return err
	}
	if len(c.add) > 0 {
		f.log.Info("added rules for packets of pods to a chain of another program", "table", c.table.family+" "+c.table.name, "chain", c.chain.name)
	}
	return nil
}

// nodesPart drops packets to the port of a tunnel without authentication that no node has sent: those that others send to this host, and those that pods
// of this host send to another one, where they would have this host's address, because they are masqueraded. Nodes may have more addresses than the
// API says, so pods reach the port at those of other pods alone. What pods send is checked before there is another node: a host may become one while a
// connection to it exists.
//
// Every packet of the host passes the base chains of type filter: there is one for what arrives, with one rule that most packets do not match. The others
// are of type nat, which the first packets of connections pass: addresses are translated only with a connection.
func nodesPart(s Settings, t Tunnel) (part nft.Part) {
	port := s.TunnelPort
	if t.Port != 0 {
		port = t.Port
	}
	if port == 0 || t.Authenticated {
		return part
	}
	fromPods := nft.Chain{Name: "from-pods"}
	for _, p := range s.ClusterCIDRs {
		fromPods.Rules = append(fromPods.Rules, nft.NewRule(nft.Destination(p), nft.Accept()))
	}
	fromPods.Rules = append(fromPods.Rules, nft.NewRule(nft.Drop()))
	part.Chains = []nft.Chain{
		fromPods, hook("pods", "nat", "postrouting", translatedPriority, nft.NewRule(nft.UDPPort(port), nft.FromInterface(s.Bridge), nft.Goto(fromPods.Name))),
	}
	if t.Port != 0 {
		addTunnel(&part, t)
	}
	return part
}

// addTunnel adds what drops packets of others than nodes. The packets of nodes are not tracked as connections: those inside of them are. The packets of a pod
// that has a tunnel of its own have other addresses.
func addTunnel(part *nft.Part, t Tunnel) {
	toTunnel := nft.UDPPort(t.Port)
	fromNodes, tunnelIn := nft.Chain{Name: "from-nodes"}, nft.Chain{Name: "tunnel-in"}
	for _, is4 := range []bool{true, false} {
		set := nodesSet(is4)
		part.Sets = append(part.Sets, set)
		fromNodes.Rules = append(fromNodes.Rules, nft.NewRule(nft.Family(is4), nft.NotIn(set.Name, nft.SourceAddr(is4)), nft.Drop()))
		for _, a := range t.Nodes {
			if a.Is4() == is4 {
				part.Elements = append(part.Elements, nft.Element{Set: set.Name, Key: nft.Bytes(a)})
			}
		}
	}
	if t.Local.IsValid() {
		is4, local := t.Local.Is4(), netip.PrefixFrom(t.Local, t.Local.BitLen())
		set := nodesSet(is4).Name
		tunnelIn.Rules = append(tunnelIn.Rules, nft.NewRule(nft.Destination(local), nft.In(set, nft.SourceAddr(is4)), nft.NoTrack(), nft.Accept()))
		part.Chains = append(part.Chains, hook("untracked-out", "filter", "output", tunnelPriority,
			nft.NewRule(toTunnel, nft.Source(local), nft.In(set, nft.DestinationAddr(is4)), nft.NoTrack())))
	}
	tunnelIn.Rules = append(tunnelIn.Rules, nft.NewRule(nft.NotUnicast(), nft.Goto(fromNodes.Name)))
	part.Chains = append(part.Chains, fromNodes, tunnelIn,
		hook("tunnel", "filter", "prerouting", tunnelPriority, nft.NewRule(toTunnel, nft.Goto(tunnelIn.Name))),
		// What was sent to another port, and translated to that of the tunnel.
		hook("translated", "nat", "input", translatedPriority, nft.NewRule(toTunnel, nft.Goto(fromNodes.Name))))
}

// hook is a base chain with one rule.
func hook(name, kind, point string, priority int32, rule nft.Rule) nft.Chain {
	return nft.Chain{Name: name, Hook: &nft.Hook{Type: kind, Point: point, Priority: priority}, Rules: []nft.Rule{rule}}
}

// nodesSet are the addresses of the other nodes.
func nodesSet(is4 bool) nft.Set {
	set := nft.Set{Name: "nodes6", Key: []nft.Type{nft.AddrType(is4)}}
	if is4 {
		set.Name = "nodes4"
	}
	return set
}

// Remove removes the own table, and the rules in chains of other programs.
func Remove() error {
	tables, _, err := readTables("")
	if err != nil {
		return fmt.Errorf("remove firewall rules: %w", err)
	}
	f := New(Settings{}, func() {}, slog.New(slog.DiscardHandler))
	for _, c := range planAll(tables, nil) {
		if err := f.apply(c, nil); err != nil {
			return fmt.Errorf("remove firewall rules from chain %s of table %s %s: %w", c.chain.name, c.table.family, c.table.name, err)
		}
	}
	if err := syncLegacy(nil); err != nil {
		return fmt.Errorf("remove firewall rules: %w", err)
	}
	return nft.Remove(Table)
}
