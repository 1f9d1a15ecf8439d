package config

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"
)

// Doctor is the configuration of `skiff doctor`.
type Doctor struct {
	// DataDir is that of the server or agent on this host, or of the one that is to be installed; empty: that of the installed service, or the default.
	DataDir string
	// Kubeconfig is an administrator's of a cluster; empty: this host is examined.
	Kubeconfig string
	// Output is table or json.
	Output string
	// Timeout is how long each check may take.
	Timeout time.Duration
}

// DefaultDoctor is the configuration of `skiff doctor` without flags.
func DefaultDoctor() Doctor {
	return Doctor{Output: "table", Timeout: 20 * time.Second}
}

// Flags binds the configuration to command-line flags.
func (c *Doctor) Flags(groups *FlagGroups) {
	fs := groups.Common(groupGeneric)
	fs.StringVar(&c.DataDir, "data-dir", c.DataDir, "Data directory of the server or agent of this host, or of the one that is to be started. Defaults to that of the installed service, or "+defaultDataDir+".")
	fs.StringVar(&c.Kubeconfig, "kubeconfig", c.Kubeconfig, "Path to an administrator's kubeconfig. With it a cluster is examined, and nothing of this host.")
	fs.StringVarP(&c.Output, "output", "o", c.Output, "Output format: table or json.")
	fs.DurationVar(&c.Timeout, "timeout", c.Timeout, "Time that each check may take.")
}

// Validate checks the configuration; its errors name the flag at fault.
func (c *Doctor) Validate() error {
	var errs []error
	if c.DataDir != "" && !filepath.IsAbs(c.DataDir) {
		errs = append(errs, fmt.Errorf("--data-dir: %q is not an absolute path", c.DataDir))
	}
	if c.Output != "table" && c.Output != "json" {
		errs = append(errs, fmt.Errorf("--output: %q is not table or json", c.Output))
	}
	if c.Timeout <= 0 {
		errs = append(errs, fmt.Errorf("--timeout: %v is not positive", c.Timeout))
	}
	return errors.Join(errs...)
}
