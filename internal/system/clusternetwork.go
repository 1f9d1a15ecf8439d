package system

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	"skiff/internal/api"
	"skiff/internal/client"
	"skiff/internal/network/overlay"
)

// clusterNetwork is the network of the cluster, as the flags describe it.
func (s *server) clusterNetwork() (c overlay.Cluster, err error) {
	if c.Backend, err = overlay.ParseBackend(s.config.NetworkBackend); err != nil {
		return c, fmt.Errorf("--network-backend: %w", err)
	}
	for text := range strings.SplitSeq(s.config.PodCIDRs.ClusterCIDR, ",") {
		if prefix, err := netip.ParsePrefix(strings.TrimSpace(text)); err == nil {
			c.CIDRs = append(c.CIDRs, prefix.Masked())
		}
	}
	return c, nil
}

// runClusterNetwork publishes the cluster's network for agents.
func (s *server) runClusterNetwork(ctx context.Context) error {
	cluster, err := s.clusterNetwork()
	if err != nil {
		return err
	}
	local, err := client.NewLocal(s.api.Local(componentsUser), api.Scheme(), api.Named())
	if err != nil {
		return err
	}
	return overlay.RunCluster(ctx, local, cluster, s.log.With("component", "overlay"))
}
