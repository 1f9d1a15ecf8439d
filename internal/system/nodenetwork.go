package system

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"skiff/internal/kubelet/node"
	"skiff/internal/network/cni"
	"skiff/internal/network/conflict"
	"skiff/internal/network/firewall"
	"skiff/internal/network/hostnet"
	"skiff/internal/network/networkmanager"
	"skiff/internal/network/overlay"
)

// cniStateDir is the directory of the CNI plugin's state.
func cniStateDir(dataDir string) string { return filepath.Join(dataDir, "cni/state") }

// networkRetryMin and networkRetryMax bound the time until a failed setup of the pod network is repeated.
const (
	networkRetryMin = time.Second
	networkRetryMax = 30 * time.Second
)

// nodeNetwork is the network of a node, if it is skiff's own.
type nodeNetwork struct {
	// overlay keeps the routes to other nodes; nil: this node does not set up any.
	overlay *overlay.Overlay
	// firewall lets packets of pods pass the rules of other programs.
	firewall *firewall.Firewall

	mu sync.Mutex
	// configured is whether the pod network of this node is set up, err why it could not be.
	configured bool
	err        error
}

// checkCIDRs refuses CIDRs of the cluster that overlap with networks of the host: it could not reach them any more. The network of pods is
// checked unless another plugin sets it up.
func (n *nodeComponents) checkCIDRs() error {
	others, err := cni.Others(n.cniConfDir)
	if err != nil {
		return err
	}
	var ranges []conflict.Range
	for _, p := range n.serviceCIDRs {
		ranges = append(ranges, conflict.Range{CIDR: p, Flag: "service-cidr"})
	}
	if n.backend != overlay.None && (n.backend != "" || len(others) == 0) {
		for _, p := range n.clusterCIDRs {
			ranges = append(ranges, conflict.Range{CIDR: p, Flag: "cluster-cidr"})
		}
	}
	networks, err := conflict.HostNetworks(cni.RouteProtocol, overlay.RouteProtocol)
	if err != nil {
		return err
	}
	return conflict.Check(ranges, networks)
}

// buildNetwork makes what sets up the pod network, unless another network plugin is to do that.
func (n *nodeComponents) buildNetwork() error {
	if n.backend == overlay.None {
		return n.removeOwnNetwork()
	}
	if n.backend == "" {
		others, err := cni.Others(n.cniConfDir)
		if err != nil {
			return err
		}
		if len(others) > 0 {
			n.log.Info("pod network is configured by another network plugin", "files", others)
			return nil
		}
	}
	if err := cni.Install(n.cniBinDir); err != nil {
		return err
	}
	if err := networkmanager.Default().Configure(); err != nil {
		n.log.Warn("failed to keep NetworkManager from the links of pods", "error", err)
	}
	n.network = &nodeNetwork{}
	n.runs["pod network"] = n.runPodNetwork
	bridge := cni.Settings{}.WithDefaults().Bridge
	allowed := firewall.Settings{Bridge: bridge, ClusterCIDRs: n.clusterCIDRs, ServiceCIDRs: n.serviceCIDRs}
	if n.backend == overlay.VXLAN {
		allowed.TunnelPort = overlay.VXLANPort
	}
	n.network.firewall = firewall.New(allowed, n.node.Changed, n.log.With("component", "firewall"))
	n.runs["firewall"] = n.network.firewall.Run
	if n.backend == "" {
		return nil
	}
	return n.buildOverlay()
}

// buildOverlay makes what keeps the routes to other nodes.
func (n *nodeComponents) buildOverlay() (err error) {
	settings := n.overlaySettings()
	var private overlay.Key
	if n.backend == overlay.WireGuard {
		if private, settings.PublicKey, err = overlay.ReadPrivateKey(filepath.Join(n.dataDir, "network/wireguard.key")); err != nil {
			return err
		}
	}
	n.network.overlay, err = overlay.New(overlay.Config{
		Client: n.client, Informers: n.informers, Settings: settings, PrivateKey: private, Log: n.log.With("component", "overlay"),
		Changed: n.node.Changed, SetTunnel: func(t overlay.Tunnel) { n.network.firewall.SetTunnel(firewall.Tunnel(t)) },
	})
	if err == nil {
		n.runs["overlay"] = n.network.overlay.Run
	}
	return err
}

func (n *nodeComponents) overlaySettings() overlay.Settings {
	s := overlay.Settings{Backend: n.backend, NodeName: n.name, ClusterCIDRs: n.clusterCIDRs}
	for _, text := range n.addresses {
		if a, err := netip.ParseAddr(text); err == nil {
			s.IPs = append(s.IPs, a.Unmap())
		}
	}
	return s
}

// removeOwnNetwork removes what an earlier run with another backend has set up. Configurations of other plugins are left alone.
func (n *nodeComponents) removeOwnNetwork() error {
	settings, configured, err := cni.Read(n.cniConfDir)
	if err != nil || !configured {
		return err
	}
	n.log.Info("removing the pod network of an earlier run", "backend", string(n.backend))
	return errors.Join(cni.Remove(settings), cni.Unconfigure(n.cniConfDir), overlay.Remove(), firewall.Remove(), networkmanager.Default().Unconfigure())
}

// runPodNetwork sets up the pod network of this node when its pod CIDRs are known, and again when they change or another program has removed it.
func (n *nodeComponents) runPodNetwork(ctx context.Context) error {
	return n.keepPodNetwork(ctx, n.setUpPodNetwork)
}

// keepPodNetwork calls setUp with the pod CIDRs of this node, and from time to time the function that it has returned, which repairs the network. Not every
// container runtime asks the plugin for its status, and the rules of the running pods must not be missing until another pod is started.
func (n *nodeComponents) keepPodNetwork(ctx context.Context, setUp func([]string) (repair func() error, err error)) error {
	var cidrs []string
	var repair func() error
	var due <-chan time.Time
	var retry time.Duration
	for {
		select {
		case <-ctx.Done():
			return nil
		case cidrs = <-n.podCIDRs:
			retry, repair = 0, nil
		case <-due:
		}
		var err error
		if repair != nil {
			err = repair()
		} else if repair, err = setUp(cidrs); err != nil {
			repair = nil // what is missing is not known
		}
		if due = time.After(nodeSyncPeriod); err == nil {
			retry = 0
		} else {
			retry = min(max(2*retry, networkRetryMin), networkRetryMax)
			due = time.After(retry)
			n.log.Error("failed to set up the pod network", "error", err, "retry", retry.String())
		}
		n.network.mu.Lock()
		same := n.network.configured == (err == nil) && fmt.Sprint(n.network.err) == fmt.Sprint(err)
		n.network.configured, n.network.err = err == nil, err
		n.network.mu.Unlock()
		if !same {
			n.node.Changed()
		}
	}
}

// setUpPodNetwork sets up the pod network and tells the container runtime about it. It returns the function that sets it up again if it is missing.
func (n *nodeComponents) setUpPodNetwork(cidrs []string) (repair func() error, err error) {
	if len(cidrs) == 0 {
		return nil, nil
	}
	settings := cni.Settings{DataDir: cniStateDir(n.dataDir), ClusterCIDRs: n.clusterCIDRs, ServiceCIDRs: n.serviceCIDRs, ConfigVersion: n.cniVersion}
	for _, text := range cidrs {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("parse the node's pod CIDR: %w", err)
		}
		settings.PodCIDRs = append(settings.PodCIDRs, prefix)
	}
	if len(settings.ClusterCIDRs) == 0 {
		settings.ClusterCIDRs = slices.Clone(settings.PodCIDRs)
	}
	if n.backend != "" {
		s := n.overlaySettings()
		if s.Networks, err = hostnet.Networks(); err != nil {
			return nil, err
		}
		settings.MTU = s.MTU()
	}
	settings.OwnProxy = n.proxy != nil
	if n.enforcesPolicies {
		settings.PolicySocket = policySocket(n.dataDir)
	}
	settings = settings.WithDefaults()
	if err := cni.Setup(settings); err != nil {
		return nil, err
	}
	if err := cni.Configure(n.cniConfDir, settings); err != nil {
		return nil, err
	}
	return func() error { return cni.Status(settings) }, nil
}

// networkStatus is the node's condition NetworkUnavailable. It is left to others if the network is.
func (n *nodeComponents) networkStatus() node.Network {
	if n.network == nil {
		return node.Network{}
	}
	n.network.mu.Lock()
	configured, err := n.network.configured, n.network.err
	n.network.mu.Unlock()
	if err == nil {
		err = n.precedingConfiguration()
	}
	if err == nil {
		err = n.network.firewall.Problem()
	}
	if n.network.overlay == nil {
		// Routes to other nodes, and so the condition, are set by others. An error is reported all the same.
		return node.Network{Error: err}
	}
	status := n.network.overlay.Status()
	if err == nil {
		err = status.Error
	}
	return node.Network{Known: configured && status.Synced || err != nil, Error: err, Message: status.Message()}
}

// precedingConfiguration reports a network plugin that the container runtime uses instead of skiff's.
func (n *nodeComponents) precedingConfiguration() error {
	names, err := cni.Preceding(n.cniConfDir)
	if err != nil || len(names) == 0 {
		return err
	}
	return fmt.Errorf("the container runtime uses the network configuration %s instead of skiff's: remove it from %s, or use --network-backend=%s",
		names[0], n.cniConfDir, overlay.None)
}

// collectPodNetwork removes the network of pods that ended while skiff was not running. It runs before the kubelet does.
func (n *nodeComponents) collectPodNetwork(ctx context.Context) error {
	if n.network == nil {
		return nil
	}
	settings, configured, err := cni.Read(n.cniConfDir)
	if err != nil || !configured {
		return err
	}
	sandboxes, err := n.runtime.ListPodSandboxes(ctx, "")
	if err != nil {
		return err
	}
	var live []cni.Identity
	for _, s := range sandboxes {
		live = append(live, cni.Identity{Container: s.ID, Interface: "eth0"})
	}
	_, err = cni.Collect(settings, live)
	return err
}
