package system

import (
	"cmp"
	"context"
	"net/netip"
	"path/filepath"

	"skiff/internal/api"
	"skiff/internal/client"
	"skiff/internal/config"
	"skiff/internal/network/dns"
)

// runDNSService keeps the Service of the cluster's DNS, or removes it if the DNS is disabled.
func (s *server) runDNSService(ctx context.Context) error {
	local, err := client.NewLocal(s.api.Local(componentsUser), api.Scheme(), api.Named())
	if err != nil {
		return err
	}
	o := dns.ServiceOptions{Client: local, ClusterDomain: s.config.ClusterDomain, Disabled: !s.config.Provides(config.ClusterDNS), Log: s.log.With("component", "dns")}
	if !o.Disabled {
		cidrs, err := s.config.ServiceCIDRs()
		if err != nil {
			return err
		}
		if o.IP, err = dns.ServiceIP(cidrs[0]); err != nil {
			return err
		}
	}
	return dns.RunService(ctx, o)
}

// clusterDNS is the address of the cluster's DNS in the configuration of pods. A DNS server that a user has installed is expected at the
// same address.
func clusterDNS(serviceCIDRs []netip.Prefix) []string {
	if len(serviceCIDRs) == 0 {
		return nil
	}
	ip, err := dns.ServiceIP(serviceCIDRs[0])
	if err != nil {
		// A range that small has no such address. The kubelet reports pods that need it.
		return nil
	}
	return []string{ip.String()}
}

// buildDNS makes the cluster's DNS server of this node.
func (n *nodeComponents) buildDNS() error {
	if !n.servesDNS {
		return nil
	}
	server, err := dns.New(dns.Config{
		ClusterDomain: cmp.Or(n.settings.ClusterDomain, n.clusterDomain), Client: n.client, Informers: n.informers, Addresses: dnsAddresses(n.dataDir),
		ResolvConf: *n.settings.ResolverConfig, Events: n.events.NewRecorder("dns").WithHost(n.name), Log: n.log.With("component", "dns"),
	})
	if err != nil {
		return err
	}
	n.runs["dns"] = server.Run
	return nil
}

// dnsAddresses are the addresses of the DNS server on this host.
func dnsAddresses(dataDir string) dns.HostAddresses {
	return dns.HostAddresses{File: filepath.Join(dataDir, "dns", "addresses.json")}
}
