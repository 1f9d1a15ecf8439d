package system

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"
	"k8s.io/kube-proxy/config/v1alpha1"

	"skiff/internal/client"
	"skiff/internal/config"
	"skiff/internal/network/nft"
	"skiff/internal/network/proxy"
)

// RunProxy runs the Service proxy alone until ctx is done, on a node of any cluster.
func RunProxy(ctx context.Context, c config.Proxy) error {
	if c.Cleanup {
		return nft.Remove(proxy.StandaloneTable)
	}
	file, err := proxyConfiguration(c)
	if err != nil {
		return err
	}
	if c.Kubeconfig = cmp.Or(c.Kubeconfig, file.ClientConnection.Kubeconfig); c.Kubeconfig == "" {
		return errors.New("--kubeconfig: required unless --config names a kubeconfig")
	}
	log, remote, err := connect(c.ClientConnection)
	if err != nil {
		return err
	}
	for _, warning := range proxy.Warnings(file) {
		log.Warn("ignored a field of the KubeProxyConfiguration", "warning", warning)
	}
	if file.OOMScoreAdj != nil {
		if err := os.WriteFile("/proc/self/oom_score_adj", []byte(strconv.Itoa(int(*file.OOMScoreAdj))), 0); err != nil {
			return fmt.Errorf("oomScoreAdj: %w", err)
		}
	}
	if err := proxy.ApplyConntrack(file.Conntrack); err != nil {
		log.Warn("failed to set limits of connection tracking", "error", err)
	}
	registry := newRegistry(nil)
	informers, events := client.NewInformers(remote), client.NewEventBroadcaster(remote).WithLog(log)
	settings, err := newProxyConfig(file)
	if err != nil {
		return err
	}
	if settings.Metrics, err = proxy.NewMetrics(registry); err != nil {
		return err
	}
	settings.Client, settings.Informers, settings.Log = remote, informers, log
	settings.Events = events.NewRecorder("kube-proxy").WithHost(settings.NodeName)
	p, err := proxy.New(settings)
	if err != nil {
		return err
	}
	metrics := proxy.MetricsHandler(registry)
	if file.EnableProfiling {
		paths := map[string]http.Handler{}
		addProfiling(paths)
		for path, handler := range paths {
			metrics.Handle(path, handler)
		}
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, run := range []func(context.Context) error{
		p.Run, informers.Run, events.Run,
		proxy.Endpoint{Name: "proxy healthz", Address: file.HealthzBindAddress, Handler: p.HealthzHandler(), Required: file.BindAddressHardFail, Log: log}.Serve,
		proxy.Endpoint{Name: "proxy metrics", Address: file.MetricsBindAddress, Handler: metrics, Required: file.BindAddressHardFail, Log: log}.Serve,
	} {
		group.Go(func() error { return wrap("proxy", run(ctx)) })
	}
	return group.Wait()
}

// proxyConfiguration is the configuration file with defaults. Flags that are given take precedence.
func proxyConfiguration(c config.Proxy) (*v1alpha1.KubeProxyConfiguration, error) {
	file := &v1alpha1.KubeProxyConfiguration{}
	if c.ConfigFile != "" {
		var err error
		if file, err = proxy.ReadConfiguration(c.ConfigFile); err != nil {
			return nil, fmt.Errorf("--config: %w", err)
		}
	}
	file.HostnameOverride = cmp.Or(c.HostnameOverride, file.HostnameOverride)
	file.ClusterCIDR = cmp.Or(c.ClusterCIDR, file.ClusterCIDR)
	file.HealthzBindAddress = cmp.Or(c.HealthzBindAddress, file.HealthzBindAddress)
	file.MetricsBindAddress = cmp.Or(c.MetricsBindAddress, file.MetricsBindAddress)
	if len(c.NodePortAddresses) > 0 {
		file.NodePortAddresses = c.NodePortAddresses
	}
	proxy.SetDefaults(file)
	return file, proxy.Validate(file)
}

// newProxyConfig is what a configuration says about a proxy.
func newProxyConfig(file *v1alpha1.KubeProxyConfiguration) (c proxy.Config, err error) {
	if c.NodeName, err = (&config.Node{Name: strings.ToLower(strings.TrimSpace(file.HostnameOverride))}).NodeName(); err != nil {
		return c, err
	}
	c.MinSyncPeriod, c.SyncPeriod = file.NFTables.MinSyncPeriod.Duration, file.NFTables.SyncPeriod.Duration
	c.Settings = proxy.Settings{Table: proxy.StandaloneTable, MasqueradeAll: file.NFTables.MasqueradeAll, MasqueradeMark: 1 << *file.NFTables.MasqueradeBit}
	if c.Settings.Local, c.LocalByPodCIDRs, err = proxy.LocalTrafficOf(file); err != nil {
		return c, err
	}
	if address, err := netip.ParseAddr(file.BindAddress); err == nil && !address.IsUnspecified() {
		c.NodeIP = address.Unmap()
	}
	c.NodePortAddresses, err = proxy.ParseNodePortAddresses(file.NodePortAddresses)
	return c, err
}
