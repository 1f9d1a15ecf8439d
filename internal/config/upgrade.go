package config

import (
	"errors"
	"fmt"
	"path/filepath"
)

// Upgrade is the configuration of `skiff upgrade`.
type Upgrade struct {
	DataDir, Kubeconfig string
	// Check says what an upgrade would do.
	Check bool
	// Storage is where the server keeps snapshots.
	Storage SnapshotStorage
}

// DefaultUpgrade is the configuration of `skiff upgrade` without flags.
func DefaultUpgrade() Upgrade {
	return Upgrade{DataDir: defaultDataDir, Storage: defaultSnapshotStorage()}
}

// Flags binds the configuration to command-line flags.
func (c *Upgrade) Flags(groups *FlagGroups) {
	fs := groups.Common(groupGeneric)
	fs.BoolVar(&c.Check, "check", c.Check, "Say what an upgrade to this version of skiff would do. Nothing is changed.")
	fs.StringVar(&c.DataDir, "data-dir", c.DataDir, "Data directory of the server or agent to upgrade. It may be running.")
	fs.StringVar(&c.Kubeconfig, "kubeconfig", c.Kubeconfig, "Path to an administrator's kubeconfig, instead of the one in --data-dir.")
	c.Storage.dirFlag(fs)
	c.Storage.S3.flags(groups.Advanced(groupSnapshots))
}

// Validate checks the configuration; its errors name the flag at fault.
func (c *Upgrade) Validate() error {
	errs := []error{c.Storage.validate()}
	if !filepath.IsAbs(c.DataDir) {
		errs = append(errs, fmt.Errorf("--data-dir: %q is not an absolute path", c.DataDir))
	}
	return errors.Join(errs...)
}
