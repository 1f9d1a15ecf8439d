package config

import (
	"errors"
	"fmt"
)

// Scheduler is the configuration of `skiff scheduler`, with upstream's flag names.
type Scheduler struct {
	ClientConnection
	Serving
	// ConfigFile is a KubeSchedulerConfiguration. It may also name the kubeconfig.
	ConfigFile string
	// LeaderElect may be turned off here and in the file.
	LeaderElect bool
}

// DefaultScheduler is the configuration of a scheduler started without flags.
func DefaultScheduler() Scheduler {
	return Scheduler{ClientConnection: defaultClientConnection(), Serving: defaultServing(10259), LeaderElect: true}
}

// Flags binds the configuration to command-line flags.
func (c *Scheduler) Flags(groups *FlagGroups) {
	fs := groups.Common(groupGeneric)
	c.ClientConnection.flags(fs)
	fs.StringVar(&c.ConfigFile, "config", c.ConfigFile, "Path to a KubeSchedulerConfiguration file.")
	fs.BoolVar(&c.LeaderElect, "leader-elect", c.LeaderElect, "Schedule only while holding the leader election lease.")
	c.Serving.flags(groups)
}

// Validate checks the configuration; its errors name the flag at fault.
func (c *Scheduler) Validate() error {
	if c.ConfigFile == "" {
		if err := c.ClientConnection.validate(); err != nil {
			return err
		}
	}
	return c.Serving.validate()
}

// SchedulerQuery is the configuration of `skiff why` and `skiff what-if`: how they reach a scheduler, and the format of their output.
type SchedulerQuery struct {
	// Kubeconfig, Context and Namespace are found as kubectl finds them when they are empty.
	Kubeconfig, Context, Namespace string
	// Scheduler is the URL of a scheduler that runs alone, and SchedulerCA the CA of its certificate. Without a URL the scheduler inside the
	// API server's process is queried.
	Scheduler, SchedulerCA string
	Output                 string
	// File is a manifest, - for standard input, and Nodes shows the result of every node. Only `skiff what-if` has them.
	File  string
	Nodes bool

	whatIf bool
}

// DefaultWhy is the configuration of `skiff why` without flags.
func DefaultWhy() SchedulerQuery { return SchedulerQuery{Output: "table"} }

// DefaultWhatIf is the configuration of `skiff what-if` without flags.
func DefaultWhatIf() SchedulerQuery { return SchedulerQuery{Output: "table", whatIf: true} }

// Flags binds the configuration to command-line flags.
func (c *SchedulerQuery) Flags(groups *FlagGroups) {
	fs := groups.Common(groupGeneric)
	if c.whatIf {
		fs.StringVarP(&c.File, "filename", "f", c.File, "Path to the manifest of pods and workloads to place, or - for standard input.")
		fs.BoolVar(&c.Nodes, "nodes", c.Nodes, "Show the result of every node.")
	}
	fs.StringVarP(&c.Namespace, "namespace", "n", c.Namespace, "Namespace of the request. Defaults to that of the current context.")
	fs.StringVarP(&c.Output, "output", "o", c.Output, "Output format: table, json or yaml.")
	fs.StringVar(&c.Kubeconfig, "kubeconfig", c.Kubeconfig, "Path to the kubeconfig file. Defaults to $KUBECONFIG, then ~/.kube/config.")
	fs.StringVar(&c.Context, "context", c.Context, "Name of the kubeconfig context to use.")
	fs.StringVar(&c.Scheduler, "scheduler", c.Scheduler, "URL of a scheduler that runs alone. Defaults to the one inside the API server.")
	fs.StringVar(&c.SchedulerCA, "scheduler-ca", c.SchedulerCA, "Path to the CA certificate of --scheduler.")
}

// Validate checks the configuration; its errors name the flag at fault.
func (c *SchedulerQuery) Validate() error {
	switch {
	case c.Output != "table" && c.Output != "json" && c.Output != "yaml":
		return fmt.Errorf("--output: %q is not table, json or yaml", c.Output)
	case c.whatIf && c.File == "":
		return errors.New("--filename: a manifest is required")
	case c.SchedulerCA != "" && c.Scheduler == "":
		return errors.New("--scheduler-ca: can only be used with --scheduler")
	}
	return nil
}
