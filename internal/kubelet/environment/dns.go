package environment

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// The limits of resolvers and of the API.
const (
	maxNameservers = 3
	maxSearchPaths = 32
	maxSearchLine  = 2048
)

// DNSConfig is the content of a resolv.conf.
type DNSConfig struct {
	Servers, Searches, Options []string
}

// DNSSettings are the node's settings for name resolution.
type DNSSettings struct {
	ClusterDNS    []string // addresses of the cluster's DNS; may be empty
	ClusterDomain string
	// Host is the node's resolver configuration (ParseResolver); nil if it is disabled.
	Host *DNSConfig
	// NodeIPs determine the loopback addresses of a resolver on the node.
	NodeIPs []string
	// Warn records an event: about the node if aboutNode is set, otherwise about the pod. It may be nil.
	Warn func(reason, message string, aboutNode bool)
}

// DNS returns the resolver configuration of a pod according to its dnsPolicy and dnsConfig, truncated to the limits.
func DNS(pod *corev1.Pod, s DNSSettings) (*DNSConfig, error) {
	config := &DNSConfig{}
	if s.Host != nil {
		config.Servers, config.Searches = slices.Clone(s.Host.Servers), slices.Clone(s.Host.Searches)
		config.Options = slices.Clone(s.Host.Options)
	}
	policy := pod.Spec.DNSPolicy
	if policy == corev1.DNSClusterFirst && pod.Spec.HostNetwork {
		policy = corev1.DNSDefault
	}
	switch policy {
	case corev1.DNSNone:
		config = &DNSConfig{}
	case corev1.DNSDefault:
		s.useHostResolver(config)
	default:
		if len(s.ClusterDNS) == 0 {
			s.missingClusterDNS(pod)
			s.useHostResolver(config)
			break
		}
		config.Servers = slices.Clone(s.ClusterDNS)
		if s.ClusterDomain != "" {
			config.Searches = unique(append([]string{pod.Namespace + ".svc." + s.ClusterDomain, "svc." + s.ClusterDomain, s.ClusterDomain}, config.Searches...))
		}
		config.Options = []string{"ndots:5"}
	}
	if own := pod.Spec.DNSConfig; own != nil {
		config.Servers = unique(append(config.Servers, own.Nameservers...))
		config.Searches = unique(append(config.Searches, own.Searches...))
		config.Options = mergeOptions(config.Options, own.Options)
	}
	config.Servers = s.limitServers(config.Servers)
	config.Searches = s.limitSearches(config.Searches)
	return config, nil
}

// useHostResolver uses the node's resolver configuration, or a resolver on the node if that is disabled.
func (s DNSSettings) useHostResolver(config *DNSConfig) {
	if s.Host != nil {
		return
	}
	for _, ip := range s.NodeIPs {
		server := "127.0.0.1"
		if strings.Contains(ip, ":") {
			server = "::1"
		}
		config.Servers = append(config.Servers, server)
	}
	if len(config.Servers) == 0 {
		config.Servers = []string{"127.0.0.1"}
	}
	config.Searches = []string{"."}
}

func (s DNSSettings) missingClusterDNS(pod *corev1.Pod) {
	message := fmt.Sprintf("kubelet does not have ClusterDNS IP configured and cannot create Pod using %q policy. Falling back to %q policy.",
		corev1.DNSClusterFirst, corev1.DNSDefault)
	s.warn("MissingClusterDNS", message, true)
	s.warn("MissingClusterDNS", fmt.Sprintf("pod: %q. %s", fmt.Sprintf("%s_%s(%s)", pod.Name, pod.Namespace, pod.UID), message), false)
}

func (s DNSSettings) limitServers(servers []string) []string {
	if len(servers) > maxNameservers {
		servers = servers[:maxNameservers]
		s.warn("DNSConfigForming", "Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: "+
			strings.Join(servers, " "), false)
	}
	return servers
}

func (s DNSSettings) limitSearches(searches []string) []string {
	requested := len(searches)
	searches = searches[:min(requested, maxSearchPaths)]
	// Some resolvers abort on a search path that is longer than a DNS name.
	searches = slices.DeleteFunc(slices.Clone(searches), func(search string) bool { return len(search) > validation.DNS1123SubdomainMaxLength })
	for len(strings.Join(searches, " ")) > maxSearchLine {
		searches = searches[:len(searches)-1]
	}
	if len(searches) != requested {
		s.warn("DNSConfigForming", "Search Line limits were exceeded, some search paths have been omitted, the applied search line is: "+
			strings.Join(searches, " "), false)
	}
	return searches
}

func (s DNSSettings) warn(reason, message string, aboutNode bool) {
	if s.Warn != nil {
		s.Warn(reason, message, aboutNode)
	}
}

// ParseResolver parses a resolv.conf.
func ParseResolver(text string) (*DNSConfig, error) {
	config := &DNSConfig{}
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		switch fields[0] {
		case "nameserver":
			if len(fields) < 2 {
				return nil, errors.New("Encountered error while parsing resolv conf file. Error: nameserver list is empty ")
			}
			config.Servers = append(config.Servers, fields[1])
		case "search":
			// The last search line wins. Trailing dots are removed.
			config.Searches = nil
			for _, domain := range fields[1:] {
				if domain != "." {
					config.Searches = append(config.Searches, strings.TrimSuffix(domain, "."))
				}
			}
		case "options":
			for _, option := range fields[1:] {
				config.Options = setOption(config.Options, option)
			}
		}
	}
	return config, nil
}

// CheckResolver returns a warning if the node's resolver configuration exceeds the limits of pods, else "".
func CheckResolver(path string, host *DNSConfig, clusterDomain string) string {
	limit := maxSearchPaths
	if clusterDomain != "" {
		limit -= 3 // added by ClusterFirst
	}
	switch {
	case len(host.Searches) > limit:
		return fmt.Sprintf("Resolv.conf file '%s' contains search line consisting of more than %d domains!", path, limit)
	case slices.ContainsFunc(host.Searches, func(search string) bool { return len(search) > validation.DNS1123SubdomainMaxLength }):
		return fmt.Sprintf("Resolv.conf file %q contains a search path which length is more than allowed %d chars!", path, validation.DNS1123SubdomainMaxLength)
	case len(strings.Join(host.Searches, " ")) > maxSearchLine:
		return fmt.Sprintf("Resolv.conf file '%s' contains search line which length is more than allowed %d chars!", path, maxSearchLine)
	}
	return ""
}

// mergeOptions adds a pod's options, replacing options of the same name.
func mergeOptions(options []string, own []corev1.PodDNSConfigOption) []string {
	for _, option := range own {
		text := option.Name
		if option.Value != nil && *option.Value != "" {
			text += ":" + *option.Value
		}
		options = setOption(options, text)
	}
	return options
}

func setOption(options []string, option string) []string {
	name, _, _ := strings.Cut(option, ":")
	for i, have := range options {
		if other, _, _ := strings.Cut(have, ":"); other == name {
			options[i] = option
			return options
		}
	}
	return append(options, option)
}

// unique removes duplicates.
func unique(values []string) []string {
	seen := map[string]bool{}
	return slices.DeleteFunc(values, func(value string) bool {
		duplicate := seen[value]
		seen[value] = true
		return duplicate
	})
}
