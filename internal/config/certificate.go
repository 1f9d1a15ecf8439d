package config

import (
	"errors"
	"flag"
)

// Certificate is what `skiff cert` runs by.
type Certificate struct {
	DataDir string
}

// DefaultCertificate is the configuration of `skiff cert` without flags.
func DefaultCertificate() Certificate { return Certificate{DataDir: DefaultServer().DataDir} }

// Flags binds the settings to command-line flags.
func (c *Certificate) Flags(fs *flag.FlagSet) {
	fs.StringVar(&c.DataDir, "data-dir", c.DataDir, "directory of the skiff whose certificates are meant; they are in its directory pki")
}

// Validate checks the settings and names the flag at fault.
func (c *Certificate) Validate() error {
	if c.DataDir == "" {
		return errors.New("--data-dir: must not be empty")
	}
	return nil
}
