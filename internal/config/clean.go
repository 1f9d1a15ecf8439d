package config

import (
	"errors"
	"flag"
)

// Clean is what `skiff clean` runs by.
type Clean struct {
	DataDir string
	// KubeletConfig is the KubeletConfiguration the node ran by.
	KubeletConfig string
}

// DefaultClean is the configuration of `skiff clean` without flags.
func DefaultClean() Clean { return Clean{DataDir: DefaultServer().DataDir} }

// Flags binds the settings to command-line flags.
func (c *Clean) Flags(fs *flag.FlagSet) {
	fs.StringVar(&c.DataDir, "data-dir", c.DataDir, "directory of the skiff whose node is to be cleaned")
	fs.StringVar(&c.KubeletConfig, "kubelet-config", c.KubeletConfig, "KubeletConfiguration file the node ran by, if any")
}

// Validate checks the settings and names the flag at fault.
func (c *Clean) Validate() error {
	if c.DataDir == "" {
		return errors.New("--data-dir: must not be empty")
	}
	return nil
}
