package config

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/pflag"
)

// NodeCommand is the configuration of `skiff node`.
type NodeCommand struct {
	DataDir, Kubeconfig string
	// Timeout is how long a drain may take.
	Timeout time.Duration
	// GracePeriod is the time pods have to end; negative: their own.
	GracePeriod time.Duration
	// Force deletes pods that no controller replaces, or removes a node whose kubelet runs.
	Force bool
	// DeleteEmptyDirData deletes pods whose data in emptyDir volumes is lost with them.
	DeleteEmptyDirData bool
}

// DefaultNodeCommand is the configuration of `skiff node` without flags.
func DefaultNodeCommand() NodeCommand {
	return NodeCommand{DataDir: defaultDataDir, Timeout: 10 * time.Minute, GracePeriod: -1}
}

// Flags binds the configuration that all verbs of `skiff node` share to command-line flags.
func (c *NodeCommand) Flags(groups *FlagGroups) {
	fs := groups.Common(groupGeneric)
	fs.StringVar(&c.DataDir, "data-dir", c.DataDir, "Data directory of the server, which holds the admin kubeconfig.")
	fs.StringVar(&c.Kubeconfig, "kubeconfig", c.Kubeconfig, "Path to an administrator's kubeconfig, instead of the one in --data-dir.")
}

// DrainFlags binds the configuration of `skiff node drain` to command-line flags.
func (c *NodeCommand) DrainFlags(fs *pflag.FlagSet) {
	fs.DurationVar(&c.Timeout, "timeout", c.Timeout, "Time to wait for the pods to end, including for pod disruption budgets.")
	fs.DurationVar(&c.GracePeriod, "grace-period", c.GracePeriod, "Time that pods have to end, in whole seconds. A negative value means their own.")
	fs.BoolVar(&c.Force, "force", c.Force, "Delete pods that no controller replaces, too.")
	fs.BoolVar(&c.DeleteEmptyDirData, "delete-emptydir-data", c.DeleteEmptyDirData, "Delete pods with emptyDir volumes, too. Their data is lost.")
}

// RemoveFlags binds the configuration of `skiff node remove` to command-line flags.
func (c *NodeCommand) RemoveFlags(fs *pflag.FlagSet) {
	fs.BoolVar(&c.Force, "force", c.Force, "Remove a node that is ready, too. Its kubelet registers it again if it is running.")
}

// Validate checks the configuration; its errors name the flag at fault.
func (c *NodeCommand) Validate() error {
	switch {
	case c.DataDir == "" && c.Kubeconfig == "":
		return errors.New("--data-dir: must not be empty")
	case c.Timeout <= 0:
		return fmt.Errorf("--timeout: %v is not positive", c.Timeout)
	case c.GracePeriod > 0 && c.GracePeriod%time.Second != 0:
		return fmt.Errorf("--grace-period: %v is not a whole number of seconds", c.GracePeriod)
	}
	return nil
}
