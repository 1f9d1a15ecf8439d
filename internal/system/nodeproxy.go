package system

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/sync/errgroup"

	"skiff/internal/network/cni"
	"skiff/internal/network/nft"
	"skiff/internal/network/proxy"
)

const (
	// nodeMinSyncPeriod and nodeSyncPeriod are those of the proxy of a node: see proxy.Config.
	nodeMinSyncPeriod = 50 * time.Millisecond
	nodeSyncPeriod    = 30 * time.Second
)

// proxyOptions are the options of the Service proxy of a node.
type proxyOptions struct {
	nodePortAddresses []string
}

// buildProxy makes the Service proxy. If it runs elsewhere, it removes the rules of an earlier run, which would interfere with it.
func (n *nodeComponents) buildProxy() error {
	if n.proxy == nil {
		if err := nft.Remove(proxy.DefaultTable); err != nil {
			n.log.Warn("failed to remove the rules of the Service proxy", "component", "proxy", "error", err)
		}
		return nil
	}
	nodePorts, err := proxy.ParseNodePortAddresses(n.proxy.nodePortAddresses)
	if err != nil {
		return fmt.Errorf("--nodeport-addresses: %w", err)
	}
	// Everybody on the host may read this port, as with kube-proxy. The kubelet's metrics need a permission.
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	metrics, err := proxy.NewMetrics(registry)
	if err != nil {
		return err
	}
	log := n.log.With("component", "proxy")
	p, err := proxy.New(proxy.Config{
		Client: n.client, Informers: n.informers, NodeName: n.name, NodePortAddresses: nodePorts, MinSyncPeriod: nodeMinSyncPeriod, SyncPeriod: nodeSyncPeriod,
		Settings: proxy.Settings{Table: proxy.DefaultTable, MasqueradeMark: proxy.DefaultMasqueradeMark, Local: n.localTraffic()},
		Metrics:  metrics, Events: n.events.NewRecorder("kube-proxy").WithHost(n.name), Log: log,
	})
	if err != nil {
		return err
	}
	n.runs["proxy"] = func(ctx context.Context) error {
		group, ctx := errgroup.WithContext(ctx)
		for _, run := range []func(context.Context) error{
			p.Run,
			proxy.Endpoint{Name: "proxy healthz", Address: proxy.DefaultHealthzAddress, Handler: p.HealthzHandler(), Log: log}.Serve,
			proxy.Endpoint{Name: "proxy metrics", Address: proxy.DefaultMetricsAddress, Handler: proxy.MetricsHandler(registry), Log: log}.Serve,
		} {
			group.Go(func() error { return run(ctx) })
		}
		return group.Wait()
	}
	return nil
}

// localTraffic recognizes the packets of pods: by the cluster's CIDRs where they are known, otherwise by the node's bridge.
func (n *nodeComponents) localTraffic() proxy.LocalTraffic {
	var cidrs []netip.Prefix
	for _, cidr := range n.clusterCIDRs {
		if !slices.ContainsFunc(cidrs, func(p netip.Prefix) bool { return p.Addr().Is4() == cidr.Addr().Is4() }) {
			cidrs = append(cidrs, cidr)
		}
	}
	if len(cidrs) > 0 {
		return proxy.LocalTraffic{CIDRs: cidrs}
	}
	return proxy.LocalTraffic{Interface: cni.Settings{}.WithDefaults().Bridge}
}
