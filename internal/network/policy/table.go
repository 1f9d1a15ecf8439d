package policy

import (
	"net/netip"

	"skiff/internal/network/nft"
)

// DefaultTable is the name of the table of a skiff node. A node that leaves policies to another implementation removes it.
const DefaultTable = "skiff-policy"

// The priorities of the chains at the hook forward: after the Service proxy, which rejects packets to Services without endpoints, and before the
// pod network, which rejects what is left.
const (
	egressPriority  = 4
	ingressPriority = 5
)

// family names the sets and chains of one address family.
type family struct {
	is4    bool
	suffix string
}

var families = []family{{true, "4"}, {false, "6"}}

func familyOf(a netip.Addr) family {
	if a.Is4() {
		return families[0]
	}
	return families[1]
}

func (f family) addr() nft.Type { return nft.AddrType(f.is4) }

func (f family) addressSet(name string) nft.Set {
	return nft.Set{Name: name + f.suffix, Key: []nft.Type{f.addr()}}
}

func (f family) verdicts(name string) nft.Set {
	return nft.Set{Name: name + f.suffix, Key: []nft.Type{f.addr()}, Value: []nft.Type{nft.Verdict}}
}

// isolated are the pods of this node that are isolated in either direction.
func (f family) isolated() nft.Set { return f.addressSet("isolated") }

// self has each isolated pod's address twice.
func (f family) self() nft.Set {
	return nft.Set{Name: "self" + f.suffix, Key: []nft.Type{f.addr(), f.addr()}}
}

// side is one direction of one family.
type side struct {
	direction
	family
}

// pods are the isolated pods, peers maps pods to the chains of their classes, and blocks isolated pods to the chains of their ipBlocks.
func (s side) pods() nft.Set   { return s.addressSet(s.String() + "-pods") }
func (s side) peers() nft.Set  { return s.verdicts(s.String() + "-peers") }
func (s side) blocks() nft.Set { return s.verdicts(s.String() + "-blocks") }

// local is the address of the pod whose policies are checked, and peer that of the other end.
func (s side) local() nft.Field {
	if s.direction == ingress {
		return nft.DestinationAddr(s.is4)
	}
	return nft.SourceAddr(s.is4)
}

func (s side) peer() nft.Field {
	if s.direction == ingress {
		return nft.SourceAddr(s.is4)
	}
	return nft.DestinationAddr(s.is4)
}

// chain is the name of the chain that checks the connections of this side.
func (s side) chain() string { return s.String() + s.suffix }

// base is the part of the table that depends on no object.
func base() (part nft.Part) {
	for _, d := range directions {
		for _, f := range families {
			s := side{d, f}
			part.Sets = append(part.Sets, s.pods(), s.peers(), s.blocks())
			part.Chains = append(part.Chains, s.check())
		}
	}
	for _, f := range families {
		part.Sets = append(part.Sets, f.isolated(), f.self())
	}
	return part
}

// hook is the base chain of a direction. It exists while a pod is isolated, because every packet that the host forwards passes it.
func (d direction) hook() nft.Chain {
	c := nft.Chain{
		Name: d.String(), Hook: &nft.Hook{Type: "filter", Point: "forward", Priority: ingressPriority},
		Rules: []nft.Rule{nft.NewRule(nft.StateEstablished(), nft.Accept())},
	}
	if d == egress {
		c.Hook.Priority = egressPriority
	}
	for _, f := range families {
		c.Rules = append(c.Rules, nft.NewRule(nft.Family(f.is4), nft.Goto(side{d, f}.chain())))
	}
	return c
}

// check is the chain that checks the first packets of connections.
func (s side) check() nft.Chain {
	c := nft.Chain{Name: s.chain()}
	if s.direction == egress {
		// The first chain that a packet passes. An invalid packet may be of a live connection, which a reset would end. What belongs to no connection
		// and begins none is of one that was cut.
		for _, end := range []nft.Field{nft.SourceAddr(s.is4), nft.DestinationAddr(s.is4)} {
			isolated := nft.In(s.isolated().Name, end)
			c.Rules = append(c.Rules, nft.NewRule(nft.StateInvalid(), isolated, nft.Drop()),
				nft.NewRule(nft.NotFirstTCP(), isolated, nft.ResetTCP()), nft.NewRule(nft.NotFirstSCTP(), isolated, nft.Drop()))
		}
	}
	c.Rules = append(c.Rules,
		nft.NewRule(nft.NotIn(s.pods().Name, s.local()), nft.Accept()),
		nft.NewRule(nft.In(s.self().Name, nft.SourceAddr(s.is4), nft.DestinationAddr(s.is4)), nft.Accept()),
		nft.NewRule(nft.VerdictMap(s.peers().Name, s.peer())),
		nft.NewRule(nft.VerdictMap(s.blocks().Name, s.local())),
		nft.NewRule(nft.Drop()))
	return c
}

// The kinds of sets of a class: targets that accept all packets, single ports, or ranges of ports.
type grantKind int

const (
	grantAll grantKind = iota
	grantPort
	grantRange
	grantKindCount
)

// classSet is the set of a kind of the class with a name.
func (s side) classSet(name string, kind grantKind) nft.Set {
	set := nft.Set{Name: s.chain() + "-" + name + [...]string{"-all", "-ports", "-ranges"}[kind], Key: []nft.Type{s.addr()}, Interval: kind == grantRange}
	if kind != grantAll {
		set.Key = append(set.Key, nft.InetProto, nft.InetService)
	}
	return set
}

// addClass adds the chain of a class and its sets: those that have elements.
func (s side) addClass(part *nft.Part, name string, counts [grantKindCount]int) {
	c := nft.Chain{Name: s.chain() + "-" + name}
	for kind := range grantKindCount {
		if counts[kind] == 0 {
			continue
		}
		set, key := s.classSet(name, kind), []nft.Field{s.local()}
		if kind != grantAll {
			key = append(key, nft.Protocol(), nft.DestinationPort())
		}
		part.Sets = append(part.Sets, set)
		c.Rules = append(c.Rules, nft.NewRule(nft.In(set.Name, key...), nft.Accept()))
	}
	if len(c.Rules) > 0 {
		part.Chains = append(part.Chains, c)
	}
}

// grants calls visit for each element that lets the class with a name reach an address on ports.
func (s side) grants(name string, a netip.Addr, ports portSet, visit func(grantKind, nft.Element)) {
	if ports.all {
		visit(grantAll, nft.Element{Set: s.classSet(name, grantAll).Name, Key: nft.Bytes(a)})
		return
	}
	for _, r := range ports.ranges {
		if r.from == r.to {
			visit(grantPort, nft.Element{Set: s.classSet(name, grantPort).Name, Key: nft.Bytes(a, r.proto, r.from)})
			continue
		}
		visit(grantRange, nft.Element{Set: s.classSet(name, grantRange).Name, Key: nft.Bytes(a, r.proto, r.from), End: nft.Bytes(a, r.proto, r.to)})
	}
}

// blocksName is the name of the map of intervals and of its chain.
func (s side) blocksName(id string) string { return s.blocks().Name + "-" + id }

// blocksPart is the chain that decides by the address of the peer, and its map.
func (s side) blocksPart(list intervals) nft.Part {
	set := nft.Set{Name: s.blocksName(list.id()), Key: []nft.Type{s.addr()}, Value: []nft.Type{nft.Verdict}, Interval: true}
	part := nft.Part{Sets: []nft.Set{set}, Chains: []nft.Chain{{Name: set.Name, Rules: []nft.Rule{
		nft.NewRule(nft.VerdictMap(set.Name, s.peer())), nft.NewRule(nft.Drop()),
	}}}}
	for _, v := range list {
		verdict := "accept"
		if !v.ports.all {
			verdict = "goto " + portsName(v.ports)
		}
		part.Elements = append(part.Elements, nft.Element{Set: set.Name, Key: nft.Bytes(v.first), End: nft.Bytes(v.last), Value: verdict})
	}
	return part
}

// portsName is the name of a set of ports and of its chain.
func portsName(ports portSet) string { return "ports-" + digest(ports.String()) }

// portsPart is the chain that decides by the port, and its set.
func portsPart(ports portSet) nft.Part {
	set := nft.Set{Name: portsName(ports), Key: []nft.Type{nft.InetProto, nft.InetService}, Interval: ports.hasIntervals()}
	part := nft.Part{Sets: []nft.Set{set}, Chains: []nft.Chain{{Name: set.Name, Rules: []nft.Rule{
		nft.NewRule(nft.In(set.Name, nft.Protocol(), nft.DestinationPort()), nft.Accept()), nft.NewRule(nft.Drop()),
	}}}}
	for _, r := range ports.ranges {
		e := nft.Element{Set: set.Name, Key: nft.Bytes(r.proto, r.from)}
		if set.Interval {
			e.End = nft.Bytes(r.proto, r.to)
		}
		part.Elements = append(part.Elements, e)
	}
	return part
}
