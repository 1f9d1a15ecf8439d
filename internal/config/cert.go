package config

import "errors"

// Cert is the configuration of `skiff cert`.
type Cert struct {
	DataDir string
}

// DefaultCert is the configuration of `skiff cert` without flags.
func DefaultCert() Cert { return Cert{DataDir: defaultDataDir} }

// Flags binds the configuration to command-line flags.
func (c *Cert) Flags(groups *FlagGroups) {
	groups.Common(groupGeneric).StringVar(&c.DataDir, "data-dir", c.DataDir, "Data directory of the server whose certificates to manage.")
}

// Validate checks the configuration; its errors name the flag at fault.
func (c *Cert) Validate() error {
	if c.DataDir == "" {
		return errors.New("--data-dir: must not be empty")
	}
	return nil
}
