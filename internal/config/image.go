package config

import (
	"errors"
	"flag"
)

// Image is what `skiff image` runs by.
type Image struct {
	DataDir                  string
	ContainerRuntimeEndpoint string
}

// DefaultImage is the configuration of `skiff image` without flags.
func DefaultImage() Image { return Image{DataDir: DefaultServer().DataDir} }

// Flags binds the settings to command-line flags.
func (c *Image) Flags(fs *flag.FlagSet) {
	fs.StringVar(&c.DataDir, "data-dir", c.DataDir, "directory of the skiff whose runtime is meant")
	fs.StringVar(&c.ContainerRuntimeEndpoint, "container-runtime-endpoint", c.ContainerRuntimeEndpoint, "socket of another containerd, such as unix:///run/containerd/containerd.sock")
}

// Validate checks the settings and names the flag at fault.
func (c *Image) Validate() error {
	if c.DataDir == "" && c.ContainerRuntimeEndpoint == "" {
		return errors.New("--data-dir: must not be empty")
	}
	return nil
}
