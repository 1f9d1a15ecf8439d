package dns

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// The ConfigMap with the settings, whose format is that of kube-dns.
const (
	ConfigMapNamespace = "kube-system"
	ConfigMapName      = "kube-dns"

	keyStubDomains         = "stubDomains"
	keyUpstreamNameservers = "upstreamNameservers"
	keyHosts               = "hosts"
)

// The limits of the settings. kube-dns has the one of upstream name servers.
const (
	maxUpstreams   = 3
	maxStubDomains = 1000
	maxStubServers = 8
	// maxHostAddresses is the number of addresses of one name in hosts.
	maxHostAddresses = 100
)

// settings are the content of the ConfigMap.
type settings struct {
	// stubDomains are the name servers of domains, by the domain in wire format.
	stubDomains map[string][]netip.AddrPort
	// upstreams replace the host's name servers, if there are any.
	upstreams []netip.AddrPort
	// hosts are the addresses of names, by the name in wire format, and hostNames the first name of each address.
	hosts     map[string][]netip.Addr
	hostNames map[netip.Addr]string
}

// parseSettings parses the data of the ConfigMap. Its errors name the key.
func parseSettings(data map[string]string, zone domain) (*settings, error) {
	s := &settings{stubDomains: map[string][]netip.AddrPort{}, hosts: map[string][]netip.Addr{}, hostNames: map[netip.Addr]string{}}
	for _, key := range slices.Sorted(maps.Keys(data)) {
		var err error
		switch key {
		case keyStubDomains:
			err = s.parseStubDomains(data[key], zone)
		case keyUpstreamNameservers:
			err = s.parseUpstreams(data[key])
		case keyHosts:
			err = s.parseHosts(data[key], zone)
		default:
			err = fmt.Errorf("unknown key, expected %s, %s or %s", keyStubDomains, keyUpstreamNameservers, keyHosts)
		}
		if err != nil {
			return nil, fmt.Errorf("data[%s]: %w", key, err)
		}
	}
	return s, nil
}

// parseStubDomains parses a JSON object of domains and lists of name servers.
func (s *settings) parseStubDomains(text string, zone domain) error {
	var domains map[string][]string
	if err := json.Unmarshal([]byte(text), &domains); err != nil {
		return fmt.Errorf(`expected a JSON object such as {"example.com": ["10.0.0.1"]}: %w`, err)
	}
	if len(domains) > maxStubDomains {
		return fmt.Errorf("%d domains are more than %d", len(domains), maxStubDomains)
	}
	for _, name := range slices.Sorted(maps.Keys(domains)) {
		d, err := parseDomain(name)
		if err != nil {
			return err
		}
		if d.isBelow(zone) {
			return fmt.Errorf("%q belongs to the domain of the cluster", name)
		}
		if s.stubDomains[d.wire] != nil {
			return fmt.Errorf("%q is there twice", name)
		}
		servers, err := parseNameServers(domains[name], maxStubServers)
		if err != nil {
			return fmt.Errorf("%q: %w", name, err)
		}
		s.stubDomains[d.wire] = servers
	}
	return nil
}

// parseUpstreams parses a JSON list of name servers.
func (s *settings) parseUpstreams(text string) error {
	var addresses []string
	if err := json.Unmarshal([]byte(text), &addresses); err != nil {
		return fmt.Errorf(`expected a JSON list such as ["10.0.0.1"]: %w`, err)
	}
	var err error
	s.upstreams, err = parseNameServers(addresses, maxUpstreams)
	return err
}

// parseNameServers parses IP addresses with or without port.
func parseNameServers(texts []string, limit int) ([]netip.AddrPort, error) {
	if len(texts) == 0 {
		return nil, errors.New("the list of name servers is empty")
	}
	if len(texts) > limit {
		return nil, fmt.Errorf("%d name servers are more than %d", len(texts), limit)
	}
	var servers []netip.AddrPort
	for _, text := range texts {
		server, err := netip.ParseAddrPort(text)
		if err != nil {
			ip, err := netip.ParseAddr(strings.Trim(text, "[]"))
			if err != nil {
				return nil, fmt.Errorf("%q is not an IP address or an IP address and port", text)
			}
			server = netip.AddrPortFrom(ip, dnsPort)
		}
		if server.Port() == 0 || server.Addr().IsUnspecified() || server.Addr().IsMulticast() {
			return nil, fmt.Errorf("%q is not the address of a name server", text)
		}
		servers = append(servers, netip.AddrPortFrom(server.Addr().Unmap(), server.Port()))
	}
	return servers, nil
}

// parseHosts parses lines in the format of /etc/hosts.
func (s *settings) parseHosts(text string, zone domain) error {
	lines := bufio.NewScanner(strings.NewReader(text))
	// A ConfigMap has at most 1 MiB.
	lines.Buffer(nil, 2<<20)
	for number := 1; lines.Scan(); number++ {
		content, _, _ := strings.Cut(lines.Text(), "#")
		fields := strings.Fields(content)
		if len(fields) == 0 {
			continue
		}
		ip, err := netip.ParseAddr(fields[0])
		if err != nil || ip.Zone() != "" {
			return fmt.Errorf("line %d: %q is not an IP address", number, fields[0])
		}
		if len(fields) == 1 {
			return fmt.Errorf("line %d: %s has no name", number, ip)
		}
		if err := s.addHost(ip.Unmap(), fields[1:], zone); err != nil {
			return fmt.Errorf("line %d: %w", number, err)
		}
	}
	return lines.Err()
}

// addHost adds an address and its names.
func (s *settings) addHost(ip netip.Addr, names []string, zone domain) error {
	for _, name := range names {
		d, err := parseDomain(name)
		if err != nil {
			return err
		}
		if d.isBelow(zone) {
			return fmt.Errorf("%q belongs to the domain of the cluster", name)
		}
		if len(s.hosts[d.wire]) == maxHostAddresses {
			return fmt.Errorf("%q has more than %d addresses", name, maxHostAddresses)
		}
		if !slices.Contains(s.hosts[d.wire], ip) {
			s.hosts[d.wire] = append(s.hosts[d.wire], ip)
		}
		if s.hostNames[ip] == "" {
			s.hostNames[ip] = d.wire
		}
	}
	return nil
}

// servers are the name servers that are responsible for a name: those of the longest matching stub domain, the configured upstream name
// servers, or the host's.
func (s *settings) servers(q *query, host []netip.AddrPort) []netip.AddrPort {
	if len(s.stubDomains) > 0 {
		for i := range q.labelCount {
			if servers, ok := s.stubDomains[string(q.suffix(i))]; ok {
				return servers
			}
		}
	}
	if len(s.upstreams) > 0 {
		return s.upstreams
	}
	return host
}
