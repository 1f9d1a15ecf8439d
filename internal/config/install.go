package config

// Install is the configuration of `skiff install`, besides that of the command that the service runs.
type Install struct {
	// NoStart leaves the service stopped until the host starts again.
	NoStart bool
}

// Flags binds the configuration to command-line flags.
func (c *Install) Flags(groups *FlagGroups) {
	fs := groups.Common(groupService)
	fs.BoolVar(&c.NoStart, "no-start", c.NoStart, "Do not start the service now, only with the next start of the host.")
	onCommandLine(fs, "no-start")
}

// InstallServer is the configuration of `skiff install server`.
type InstallServer struct {
	Server
	Install
}

// Flags binds the configuration to command-line flags.
func (c *InstallServer) Flags(groups *FlagGroups) {
	c.Install.Flags(groups)
	c.Server.Flags(groups)
}

// InstallAgent is the configuration of `skiff install agent`.
type InstallAgent struct {
	Agent
	Install
}

// Flags binds the configuration to command-line flags.
func (c *InstallAgent) Flags(groups *FlagGroups) {
	c.Install.Flags(groups)
	c.Agent.Flags(groups)
}

// Uninstall is the configuration of `skiff uninstall`.
type Uninstall struct {
	// KeepData leaves the data directory.
	KeepData bool
}

// Flags binds the configuration to command-line flags.
func (c *Uninstall) Flags(groups *FlagGroups) {
	groups.Common(groupGeneric).BoolVar(&c.KeepData, "keep-data", c.KeepData, "Keep the data directory: the state of the cluster, certificates, images and volumes.")
}

// Validate checks the configuration.
func (*Uninstall) Validate() error { return nil }
