package system

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"skiff/internal/api"
	"skiff/internal/api/core"
	"skiff/internal/client"
	"skiff/internal/config"
	"skiff/internal/network/dns"
	"skiff/internal/network/overlay"
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

// readCluster sets what a node of another host has to know of its cluster: the service CIDRs, the address of its DNS, its domain, its pod CIDRs and its network backend. Requests are
// repeated while the server cannot be reached. A server that does not have the objects, or does not let nodes read them, is one of another
// kind; then the defaults stay.
func (o *nodeOptions) readCluster(ctx context.Context, remote *client.Client, log *slog.Logger) error {
	err := untilAnswered(ctx, log, func() error {
		object, err := client.For[*networkingv1.ServiceCIDR](remote).Get(ctx, "", core.DefaultServiceCIDR)
		if err == nil {
			o.serviceCIDRs, err = parsePrefixes(object.Spec.CIDRs)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("read the service CIDRs: %w", err)
	}
	o.clusterDNS = clusterDNS(o.serviceCIDRs)
	err = untilAnswered(ctx, log, func() error {
		service, err := client.For[*corev1.Service](remote).Get(ctx, dns.ServiceNamespace, dns.ServiceName)
		if err == nil {
			o.clusterDomain = cmp.Or(dns.ClusterDomain(service), o.clusterDomain)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("read the cluster's domain: %w", err)
	}
	err = untilAnswered(ctx, log, func() error {
		cluster, err := overlay.ReadCluster(ctx, remote)
		if err == nil {
			o.backend, o.clusterCIDRs = cluster.Backend, cluster.CIDRs
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("read the cluster's network: %w", err)
	}
	return nil
}

// untilAnswered repeats a request until the server has answered it.
func untilAnswered(ctx context.Context, log *slog.Logger, request func() error) error {
	for pause := time.Second; ; pause = min(2*pause, time.Minute) {
		err := request()
		if err == nil {
			return nil
		}
		if apierrors.IsForbidden(err) || apierrors.IsNotFound(err) {
			log.Warn("failed to read a setting of the cluster, the default is used", "error", err)
			return nil
		}
		log.Warn("failed to read a setting of the cluster", "error", err, "retry", pause.String())
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
}

func parsePrefixes(texts []string) ([]netip.Prefix, error) {
	var prefixes []netip.Prefix
	for _, text := range texts {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("parse service CIDR: %w", err)
		}
		prefixes = append(prefixes, p)
	}
	return prefixes, nil
}
