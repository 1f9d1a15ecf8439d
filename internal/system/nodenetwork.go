package system

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"

	"skiff/internal/network/cni"
)

// cniStateDir is the directory of the CNI plugin's state.
func cniStateDir(dataDir string) string { return filepath.Join(dataDir, "cni/state") }

// setUpPodNetwork waits until the node has its pod CIDRs and then configures the pod network, unless another network plugin is configured.
func (n *nodeComponents) setUpPodNetwork(ctx context.Context, binDir, confDir string) error {
	others, err := cni.Others(confDir)
	if err != nil {
		return err
	}
	if len(others) > 0 {
		n.log.Info("pod network is configured by another network plugin", "files", others)
		return nil
	}
	var texts []string
	for len(texts) == 0 {
		select {
		case texts = <-n.podCIDRs:
		case <-ctx.Done():
			return nil
		}
	}
	settings := cni.Settings{DataDir: cniStateDir(n.dataDir), ClusterCIDRs: n.clusterCIDRs, ServiceCIDRs: n.serviceCIDRs}
	for _, text := range texts {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return fmt.Errorf("parse the node's pod CIDR: %w", err)
		}
		settings.PodCIDRs = append(settings.PodCIDRs, prefix)
	}
	if len(settings.ClusterCIDRs) == 0 {
		settings.ClusterCIDRs = slices.Clone(settings.PodCIDRs)
	}
	if err := cni.Install(binDir); err != nil {
		return err
	}
	if n.enforcesPolicies {
		settings.PolicySocket = policySocket(n.dataDir)
	}
	settings = settings.WithDefaults()
	if err := cni.Setup(settings); err != nil {
		return fmt.Errorf("set up the pod network: %w", err)
	}
	n.network = &settings
	return cni.Configure(confDir, settings)
}

// collectPodNetwork removes the network of pods that ended while skiff was not running. It runs before the kubelet does.
func (n *nodeComponents) collectPodNetwork(ctx context.Context) error {
	if n.network == nil {
		return nil
	}
	sandboxes, err := n.runtime.ListPodSandboxes(ctx, "")
	if err != nil {
		return err
	}
	var live []cni.Identity
	for _, s := range sandboxes {
		live = append(live, cni.Identity{Container: s.ID, Interface: "eth0"})
	}
	_, err = cni.Collect(*n.network, live)
	return err
}
