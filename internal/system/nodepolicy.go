package system

import (
	"context"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"skiff/internal/network/cni"
	"skiff/internal/network/nft"
	"skiff/internal/network/policy"
)

// policyMinSyncPeriod is the least time between two changes of the rules of network policies.
const policyMinSyncPeriod = 10 * time.Millisecond

// policySocket is the socket on which the CNI plugin announces pods.
func policySocket(dataDir string) string { return filepath.Join(dataDir, "cni/policy.sock") }

// buildPolicy makes what enforces network policies. If another implementation does that, it removes the rules of an earlier run. The network plugin
// of another project enforces policies itself.
func (n *nodeComponents) buildPolicy() error {
	log := n.log.With("component", "policy")
	if n.enforcesPolicies && n.network == nil {
		log.Info("network policies are left to another network plugin")
		n.enforcesPolicies = false
	}
	if !n.enforcesPolicies {
		if err := nft.Remove(policy.DefaultTable); err != nil {
			log.Warn("failed to remove the rules of network policies", "error", err)
		}
		return nil
	}
	metrics, err := policy.NewMetrics(n.metrics.All)
	if err != nil {
		return err
	}
	p, err := policy.New(policy.Config{
		Informers: n.informers, NodeName: n.name, Table: policy.DefaultTable, MinSyncPeriod: policyMinSyncPeriod, SyncPeriod: nodeSyncPeriod, Metrics: metrics,
		Attachments: func() ([]cni.Attachment, error) { return cni.Attachments(cniStateDir(n.dataDir)) }, KubeletPod: n.kubelet.PodWithUID, Log: log,
	})
	if err != nil {
		return err
	}
	n.runs["policy"] = func(ctx context.Context) error {
		group, ctx := errgroup.WithContext(ctx)
		group.Go(func() error { return p.Run(ctx) })
		group.Go(func() error { return cni.ServeAnnouncements(ctx, policySocket(n.dataDir), p.Announce) })
		return group.Wait()
	}
	return nil
}
