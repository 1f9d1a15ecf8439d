package config

import "errors"

// Clean is the configuration of `skiff clean`.
type Clean struct {
	DataDir string
	// RootDir is the kubelet's directory the node was run with; empty: its default.
	RootDir string
	// KubeletConfig is the KubeletConfiguration file the node was run with.
	KubeletConfig string
	// ContainerRuntimeEndpoint is the socket of the container runtime the node was run with; empty: that of the KubeletConfiguration, or skiff's
	// own containerd.
	ContainerRuntimeEndpoint string
}

// DefaultClean is the configuration of `skiff clean` without flags.
func DefaultClean() Clean { return Clean{DataDir: defaultDataDir} }

// Flags binds the configuration to command-line flags.
func (c *Clean) Flags(groups *FlagGroups) {
	fs := groups.Common(groupGeneric)
	fs.StringVar(&c.DataDir, "data-dir", c.DataDir, "Data directory of the node to clean.")
	fs.StringVar(&c.RootDir, "root-dir", c.RootDir, "Directory of the kubelet's state the node was run with, if it is not the default.")
	fs.StringVar(&c.KubeletConfig, "kubelet-config", c.KubeletConfig, "Path to the KubeletConfiguration file the node was run with, if any.")
	fs.StringVar(&c.ContainerRuntimeEndpoint, "container-runtime-endpoint", c.ContainerRuntimeEndpoint,
		"Socket of the container runtime the node was run with, if it is not skiff's own.")
}

// Validate checks the configuration; its errors name the flag at fault.
func (c *Clean) Validate() error {
	if c.DataDir == "" {
		return errors.New("--data-dir: must not be empty")
	}
	return nil
}
