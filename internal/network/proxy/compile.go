package proxy

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"skiff/internal/network/nft"
)

// maxAffinityClients bounds the clients that are remembered for one endpoint of a Service. Further ones have no session affinity.
const maxAffinityClients = 1 << 16

// Compiled is what a Service means for a node.
type Compiled struct {
	Part nft.Part
	// HealthCheckPort serves whether the node has LocalEndpoints; 0: no port.
	HealthCheckPort uint16
	LocalEndpoints  familyCounts
	// Datagrams are the UDP ports, whose flows the kernel remembers.
	Datagrams []DatagramPort
	// NoLocalInternal and NoLocalExternal have an entry for each port whose traffic policy is Local and that has endpoints on other nodes only:
	// whether it is of IPv4.
	NoLocalInternal, NoLocalExternal []bool
}

// DatagramPort is a UDP port of a Service and where its packets may be sent.
type DatagramPort struct {
	Frontends []netip.AddrPort
	NodePort  uint16
	Is4       bool
	// Endpoints are all serving ones: a change of policy does not interrupt a flow.
	Endpoints []netip.AddrPort
}

// protocolOf are the protocols of the API.
var protocolOf = map[nft.Proto]corev1.Protocol{nft.TCP: corev1.ProtocolTCP, nft.UDP: corev1.ProtocolUDP, nft.SCTP: corev1.ProtocolSCTP}

// Compile computes the part of the table for a Service. slicesOfService are its EndpointSlices.
func Compile(s Settings, node Node, service *corev1.Service, slicesOfService []*discoveryv1.EndpointSlice) Compiled {
	var result Compiled
	if !isProxied(service) {
		return result
	}
	byPort := endpointsByPort(slicesOfService, node.Name)
	c := compiler{settings: s, node: node, chains: map[string]bool{}}
	ports := servicePorts(service)
	for _, port := range ports {
		all := byPort[portKey{port.portName, protocolOf[port.proto], port.is4}]
		c.addPort(&port, choose(all, &port, node))
		if port.proto == nft.UDP {
			result.Datagrams = append(result.Datagrams, datagramPort(&port, all))
		}
	}
	result.Part, result.NoLocalInternal, result.NoLocalExternal = c.part, c.noLocalInternal, c.noLocalExternal
	result.HealthCheckPort = healthCheckPort(service)
	result.LocalEndpoints = localReady(byPort, ports)
	return result
}

// familyCounts are numbers for load balancers of each family.
type familyCounts struct{ ip4, ip6 int }

func (c familyCounts) of(is4 bool) int {
	if is4 {
		return c.ip4
	}
	return c.ip6
}

// localReady are the numbers of addresses of ready endpoints on this node: a pod of a Service of both families has two. A load balancer may ask by the family
// that its Service does not have.
func localReady(byPort map[portKey][]endpoint, ports []servicePort) (counts familyCounts) {
	found := map[netip.Addr]bool{}
	for _, list := range byPort {
		for _, e := range list {
			if e.ready && e.local {
				found[e.Addr()] = true
			}
		}
	}
	for a := range found {
		if a.Is4() {
			counts.ip4++
		} else {
			counts.ip6++
		}
	}
	hasFamily := func(is4 bool) bool {
		return slices.ContainsFunc(ports, func(p servicePort) bool { return p.is4 == is4 })
	}
	if !hasFamily(true) {
		counts.ip4 = counts.ip6
	}
	if !hasFamily(false) {
		counts.ip6 = counts.ip4
	}
	return counts
}

func datagramPort(p *servicePort, all []endpoint) DatagramPort {
	d := DatagramPort{NodePort: p.nodePort, Is4: p.is4}
	for _, a := range slices.Concat([]netip.Addr{p.clusterIP}, p.externalIPs, p.loadBalancerIPs) {
		d.Frontends = append(d.Frontends, netip.AddrPortFrom(a, p.port))
	}
	for _, e := range all {
		if e.serving {
			d.Endpoints = append(d.Endpoints, e.AddrPort)
		}
	}
	return d
}

// compiler collects the part of one Service.
type compiler struct {
	settings Settings
	node     Node
	part     nft.Part
	// chains are the names of those that the part has.
	chains                           map[string]bool
	noLocalInternal, noLocalExternal []bool
}

// element adds an element. One that is added again, such as the cluster IP for each port, is the same in the table.
func (c *compiler) element(set nft.Set, key, value string) {
	c.part.Elements = append(c.part.Elements, nft.Element{Set: set.Name, Key: key, Value: value})
}

// chain adds a chain unless the part has it, and returns its name.
func (c *compiler) chain(name string, rules ...nft.Rule) string {
	c.addChain(nft.Chain{Name: name, Rules: rules})
	return name
}

// addChain adds a chain unless the part has it.
func (c *compiler) addChain(chain nft.Chain) {
	if !c.chains[chain.Name] {
		c.chains[chain.Name] = true
		c.part.Chains = append(c.part.Chains, chain)
	}
}

// portCompiler compiles one port in one family.
type portCompiler struct {
	*compiler
	family
	*servicePort
	lists
}

func (c *compiler) addPort(p *servicePort, l lists) {
	pc := portCompiler{compiler: c, family: familyOf(p.is4), servicePort: p, lists: l}
	c.element(pc.clusterIPs(), nft.Bytes(p.clusterIP), "")
	pc.addHairpin()
	pc.addInternal()
	if p.isExternal() {
		pc.addExternal()
	}
}

func (c portCompiler) list(policy string) []endpoint {
	if policy == policyLocal {
		return c.local
	}
	return c.cluster
}

// identity is the key that identifies the port: its cluster IP and port.
func (c portCompiler) identity() string { return nft.Bytes(c.clusterIP, c.proto, c.port) }

// addHairpin adds the pods of this node that may reach themselves.
func (c portCompiler) addHairpin() {
	for _, e := range slices.Concat(c.cluster, c.local) {
		if e.local {
			c.element(c.hairpin(), nft.Bytes(e.Addr(), e.Addr(), c.proto, e.Port()), "")
		}
	}
}

// addEndpoints adds the endpoints of a traffic policy to a map, for packets with a key.
func (c portCompiler) addEndpoints(m nft.Set, key, policy string) {
	for i, e := range c.list(policy) {
		c.element(m, key+nft.Bytes(i), nft.Bytes(e.Addr(), e.Port()))
	}
}

// addInternal adds the cluster IP.
func (c portCompiler) addInternal() {
	policy, has := policyCluster, c.usable
	if c.internalLocal {
		policy, has = policyLocal, len(c.local) > 0
	}
	if has {
		c.element(c.serviceIPs(), c.identity(), "goto "+c.pick(policy, c.identity(), false))
		return
	}
	if c.usable {
		c.noLocalInternal = append(c.noLocalInternal, c.is4())
	}
	c.element(c.noEndpointServices(), c.identity(), c.refusal())
}

// refusal is the verdict for packets that cannot be sent to an endpoint: with endpoints on other nodes only, they are dropped, because
// clients may reach another node.
func (c portCompiler) refusal() string {
	if c.usable {
		return "drop"
	}
	return "goto " + rejectChain
}

// addExternal adds external addresses and the node port.
func (c portCompiler) addExternal() {
	has := c.usable && (!c.externalLocal || len(c.local) > 0)
	if c.usable && !has {
		c.noLocalExternal = append(c.noLocalExternal, c.is4())
	}
	for _, a := range slices.Concat(c.externalIPs, c.loadBalancerIPs) {
		key := nft.Bytes(a, c.proto, c.port)
		if c.usable {
			c.element(c.serviceIPs(), key, "goto "+c.external(key, false))
		}
		if !has {
			c.element(c.noEndpointServices(), key, c.refusal())
		}
	}
	if len(c.sourceRanges) > 0 && len(c.loadBalancerIPs) > 0 {
		firewall := c.firewall()
		for _, a := range c.loadBalancerIPs {
			c.element(c.firewallIPs(), nft.Bytes(a, c.proto, c.port), "goto "+firewall)
		}
	}
	if c.nodePort == 0 {
		return
	}
	key := nft.Bytes(c.proto, c.nodePort)
	if c.usable {
		c.element(c.serviceNodePorts(), key, "goto "+c.external(key, true))
	}
	if !has {
		c.element(c.noEndpointNodePorts(), key, c.refusal())
	}
}

// external is the chain of packets with a key: to an external address or a node port.
func (c portCompiler) external(key string, isNodePort bool) string {
	name := c.chainName("external", "%d", len(c.cluster))
	if c.externalLocal {
		name = c.chainName("external", "%d-local-%d", len(c.cluster), len(c.local))
	}
	if isNodePort {
		name += nodePortSuffix
	}
	if c.affinitySeconds > 0 {
		name = c.chainName("external", "%s", c.name)
	}
	mark, cluster := nft.SetMark(c.settings.MasqueradeMark), nft.Goto(c.pick(policyCluster, key, isNodePort))
	if !c.externalLocal {
		// The endpoint may be on another node, and has to reply through this one.
		return c.chain(name, nft.NewRule(mark), nft.NewRule(cluster))
	}
	var rules []nft.Rule
	// Packets of this node are sent to all endpoints, as if they had gone out to a load balancer and come back.
	if pods, _, ok := c.settings.Local.match(c.is4()); ok {
		rules = append(rules, nft.NewRule(pods, cluster))
	}
	rules = append(rules, nft.NewRule(nft.FromThisHost(), mark), nft.NewRule(nft.FromThisHost(), cluster))
	if len(c.local) > 0 {
		rules = append(rules, nft.NewRule(nft.Goto(c.pick(policyLocal, key, isNodePort))))
	}
	return c.chain(name, rules...)
}

func (c portCompiler) is4() bool { return c.family.is4 }

// nodePortSuffix is that of chains whose packets are identified by a node port instead of an address and port.
const nodePortSuffix = "-nodeport"

// pick is the chain that translates packets with a key to a random endpoint of a policy. It is shared by all Services with the same number of
// endpoints, unless the Service has session affinity.
func (c portCompiler) pick(policy, key string, isNodePort bool) string {
	if c.affinitySeconds > 0 {
		return c.stickyPick(policy)
	}
	n := len(c.list(policy))
	name, m, fields := c.chainName(policy, "%d", n), c.endpoints(policy), c.destination()
	if isNodePort {
		name, m, fields = name+nodePortSuffix, c.nodePortEndpoints(policy), destinationPort()
	}
	c.addEndpoints(m, key, policy)
	return c.chain(name, nft.NewRule(nft.DNAT(c.is4(), nft.Lookup(m, append(fields, nft.Random(n))...))))
}

// stickyPick is pick for a Service with session affinity. Each endpoint has a set of the clients that it was chosen for, whichever address of the
// Service they use. A client that is in none of them gets a random endpoint.
func (c portCompiler) stickyPick(policy string) string {
	name, list := c.chainName(policy, "%s", c.name), c.list(policy)
	if c.chains[name] {
		return name
	}
	choices := nft.Set{Name: c.chainName("choices-"+policy, "%s", c.name), Key: []nft.Type{nft.Mark}, Value: []nft.Type{nft.Verdict}}
	c.part.Sets = append(c.part.Sets, choices)
	var rules []nft.Rule
	client := nft.SourceAddr(c.is4())
	for i, e := range list {
		clients, chain := c.stickyEndpoint(e.AddrPort)
		rules = append(rules, nft.NewRule(nft.In(clients.Name, client), nft.Goto(chain)))
		c.element(choices, nft.Bytes(i), "goto "+chain)
	}
	return c.chain(name, append(rules, nft.NewRule(nft.VerdictMap(choices.Name, nft.Random(len(list)))))...)
}

// stickyEndpoint is the chain that translates packets to an endpoint and remembers their clients, and the set of these.
func (c portCompiler) stickyEndpoint(e netip.AddrPort) (nft.Set, string) {
	// Names have no colons.
	name := fmt.Sprintf("%s__%s/%d", c.name, strings.ReplaceAll(e.Addr().String(), ":", "."), e.Port())
	clients := nft.Set{
		Name: c.chainName("affinity", "%ds-%s", c.affinitySeconds, name), Key: []nft.Type{c.addr()},
		Timeout: time.Duration(c.affinitySeconds) * time.Second, Size: maxAffinityClients,
	}
	chain := c.chainName("endpoint", "%s", name)
	if !c.chains[chain] {
		c.part.Sets = append(c.part.Sets, clients)
	}
	return clients, c.chain(chain, nft.NewRule(nft.Update(clients, nft.SourceAddr(c.is4()))), nft.NewRule(nft.DNATTo(e)))
}

// firewall is the chain that drops packets to the Service's load balancer from other sources than its ranges.
func (c portCompiler) firewall() string {
	var rules []nft.Rule
	fromNode := false
	for _, p := range c.sourceRanges {
		rules = append(rules, nft.NewRule(nft.Source(p), nft.Return()))
		fromNode = fromNode || slices.ContainsFunc(c.node.IPs, p.Contains)
	}
	if fromNode {
		// If the node has the load balancer's address on an interface, its own packets have that as source.
		for _, a := range c.loadBalancerIPs {
			rules = append(rules, nft.NewRule(nft.Source(netip.PrefixFrom(a, a.BitLen())), nft.Return()))
		}
	}
	for _, check := range sourceChecks() {
		c.addChain(check)
	}
	return c.chain(c.chainName("firewall", "%s", c.name), append(rules, nft.NewRule(nft.Drop()))...)
}

// isEmpty reports whether a Service means nothing for the node.
func (c Compiled) isEmpty() bool {
	return len(c.Part.Elements)+len(c.Datagrams)+len(c.NoLocalInternal)+len(c.NoLocalExternal) == 0 && c.HealthCheckPort == 0
}
