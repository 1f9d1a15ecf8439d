package config

import "errors"

// Image is the configuration of `skiff image`.
type Image struct {
	DataDir                  string
	ContainerRuntimeEndpoint string
}

// DefaultImage is the configuration of `skiff image` without flags.
func DefaultImage() Image { return Image{DataDir: defaultDataDir} }

// Flags binds the configuration to command-line flags.
func (c *Image) Flags(groups *FlagGroups) {
	fs := groups.Common(groupGeneric)
	fs.StringVar(&c.DataDir, "data-dir", c.DataDir, "Data directory of the node whose container runtime to use.")
	fs.StringVar(&c.ContainerRuntimeEndpoint, "container-runtime-endpoint", c.ContainerRuntimeEndpoint,
		"Socket of another containerd, such as unix:///run/containerd/containerd.sock, instead of the one in --data-dir.")
}

// Validate checks the configuration; its errors name the flag at fault.
func (c *Image) Validate() error {
	if c.DataDir == "" && c.ContainerRuntimeEndpoint == "" {
		return errors.New("--data-dir: must not be empty")
	}
	return nil
}
