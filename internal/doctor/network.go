package doctor

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"

	"skiff/internal/kubelet/environment"
	"skiff/internal/network/cni"
	"skiff/internal/network/conflict"
	"skiff/internal/network/dns"
	"skiff/internal/network/firewall"
	"skiff/internal/network/overlay"
)

// networkState is the cluster's CIDRs and the networks of the host.
type networkState struct {
	cidrs    []conflict.Range
	networks []conflict.Network
}

func (h Host) readNetworks(context.Context) (networkState, error) {
	networks, err := conflict.HostNetworks(cni.RouteProtocol, overlay.RouteProtocol)
	return networkState{h.CIDRs, networks}, err
}

func decideNetworks(s networkState) (findings []Finding) {
	for _, r := range s.cidrs {
		if err := conflict.Check([]conflict.Range{r}, s.networks); err != nil {
			findings = append(findings, Finding{
				Severity: Error, Problem: err.Error(), Breaks: "skiff does not start: the host could not reach its own network any more", When: whenStarted,
				Fix: "start the cluster with another --" + r.Flag + "; all servers need the same",
			})
		}
	}
	return findings
}

// firewallState is the chains that drop what is not accepted, and the ports that others use.
type firewallState struct {
	chains []firewall.Chain
	ports  []Port
	cidrs  []conflict.Range
}

func (h Host) readFirewall(context.Context) (firewallState, error) {
	chains, err := firewall.Blocking(cni.Settings{}.WithDefaults().Bridge)
	for i := range chains {
		chains[i].Owned = chains[i].Owned && !h.NoNode // who may change it matters for the packets of pods
	}
	return firewallState{chains, h.Ports, h.CIDRs}, err
}

func decideFirewall(s firewallState) (findings []Finding) {
	var input []string
	var locked []firewall.Chain
	for _, c := range s.chains {
		switch {
		case c.Owned:
			locked = append(locked, c)
		case c.Hook == firewall.HookInput:
			input = append(input, c.String())
		}
	}
	if len(locked) > 0 {
		trust := ""
		for _, r := range s.cidrs {
			trust += " --add-source=" + r.CIDR.String()
		}
		findings = append(findings, Finding{
			Severity: Error, Problem: fmt.Sprintf("%s drops what is not accepted, and only the program that owns it can change it", locked[0]),
			Breaks: "packets of pods are dropped: the node gets the condition NetworkUnavailable", When: whenStarted,
			Fix: fmt.Sprintf("for firewalld, set NftablesTableOwner=no, or run 'firewall-cmd --permanent --zone=trusted --add-interface=%s%s' and 'firewall-cmd --reload'", cni.Settings{}.WithDefaults().Bridge, trust),
		})
	}
	var ports []string
	for _, p := range s.ports {
		// skiff opens that of the network between nodes by itself.
		if p.isPublic() && p.Protocol == "tcp" {
			ports = append(ports, fmt.Sprintf("%d/%s", p.Number, p.Protocol))
		}
	}
	if len(input) > 0 && len(ports) > 0 {
		findings = append(findings, Finding{
			Severity: Warning, Problem: "a firewall drops what it does not accept: " + some(input), Breaks: "other hosts do not reach " + strings.Join(ports, ", ") + ", unless a rule accepts them",
			When: "when another host joins, or a client connects", Fix: "open them for the hosts of the cluster: ufw allow PORT/tcp, firewall-cmd --permanent --add-port=PORT/tcp, or a rule of your own",
		})
	}
	return findings
}

// resolverState is how the host resolves names.
type resolverState struct {
	path    string
	config  *environment.DNSConfig
	problem error
	// service are the CIDRs of Services.
	service []netip.Prefix
}

// resolvConf is the host's.
const resolvConf = "/etc/resolv.conf"

func (h Host) readResolver(context.Context) (resolverState, error) {
	s := resolverState{path: dns.HostResolvConf(resolvConf)}
	for _, r := range h.CIDRs {
		if r.Flag == FlagServiceCIDR {
			s.service = append(s.service, r.CIDR)
		}
	}
	text, err := os.ReadFile(s.path)
	if err == nil {
		s.config, err = environment.ParseResolver(string(text))
	}
	s.problem = err
	return s, nil
}

func decideResolver(s resolverState) (findings []Finding) {
	add := func(severity Severity, problem, breaks, fix string) {
		findings = append(findings, Finding{Severity: severity, Problem: problem, Breaks: breaks, When: whenStarted, Fix: fix})
	}
	if s.problem != nil {
		add(Error, s.problem.Error(), "no pod starts, whatever its dnsPolicy is", "write "+s.path+" with a line nameserver, or set resolvConf of a KubeletConfiguration")
		return findings
	}
	var loopback, looping []string
	for _, text := range s.config.Servers {
		address, err := netip.ParseAddr(text)
		switch {
		case err != nil:
			add(Warning, fmt.Sprintf("%s has the name server %q, which is not an address", s.path, text), "it is ignored", "correct it")
		case address.IsLoopback():
			loopback = append(loopback, text)
		case slices.ContainsFunc(s.service, func(p netip.Prefix) bool { return p.Contains(address.Unmap()) }):
			looping = append(looping, text)
		}
	}
	if len(looping) > 0 {
		add(Error, fmt.Sprintf("%s has the address of the cluster's DNS as name server: %s", s.path, some(looping)), "it forwards queries to itself: names outside of the cluster are not resolved, neither by pods nor by the host",
			"write the name servers of your network there instead")
	}
	if len(loopback) > 0 {
		add(Warning, fmt.Sprintf("%s has a name server on loopback: %s", s.path, some(loopback)), "pods with dnsPolicy Default resolve no names: their loopback interface is another one",
			"set resolvConf of a KubeletConfiguration to a file with the name servers behind it")
	}
	if len(s.config.Servers) == 0 {
		add(Warning, s.path+" has no name server", "names outside of the cluster are not resolved, and images cannot be pulled", "write the name servers of your network there")
	}
	if problem := environment.CheckResolver(s.path, s.config, "cluster.local"); problem != "" {
		add(Warning, problem, "search domains are left out in pods", "shorten the line search")
	}
	return findings
}

// FlagServiceCIDR and FlagClusterCIDR are the flags of the CIDRs of a Host.
const (
	FlagServiceCIDR = "service-cidr"
	FlagClusterCIDR = "cluster-cidr"
)
