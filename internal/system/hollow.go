package system

import (
	"context"

	"skiff/internal/config"
	"skiff/internal/hollow"
)

// RunHollow runs hollow nodes until ctx is done.
func RunHollow(ctx context.Context, c config.Hollow) error {
	log, remote, err := connect(c.ClientConnection)
	if err != nil {
		return err
	}
	labels, err := c.LabelMap()
	if err != nil {
		return err
	}
	return wrap("hollow nodes", hollow.Run(ctx, hollow.Config{
		Client: remote, Nodes: c.Nodes, NamePrefix: c.NamePrefix, CPU: c.CPU, Memory: c.Memory, Pods: c.Pods,
		Labels: labels, Zones: c.Zones, Log: log,
	}))
}
