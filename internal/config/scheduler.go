package config

import (
	"errors"
	"flag"
	"fmt"
)

// Scheduler is what `skiff scheduler` runs by, with upstream's flag names.
type Scheduler struct {
	Connection
	Serving
	// ConfigFile is a KubeSchedulerConfiguration. It may name the kubeconfig too.
	ConfigFile string
	// LeaderElect may be turned off here and in the file.
	LeaderElect bool
}

// DefaultScheduler is the configuration of a scheduler started without flags.
func DefaultScheduler() Scheduler {
	return Scheduler{Connection: defaultConnection(), Serving: defaultServing(10259), LeaderElect: true}
}

// Flags binds the settings to command-line flags.
func (c *Scheduler) Flags(fs *flag.FlagSet) {
	c.Connection.flags(fs)
	c.Serving.flags(fs)
	fs.StringVar(&c.ConfigFile, "config", c.ConfigFile, "KubeSchedulerConfiguration file")
	fs.BoolVar(&c.LeaderElect, "leader-elect", c.LeaderElect, "work only while no other scheduler of the cluster does")
}

// Validate checks the settings and names the flag at fault.
func (c *Scheduler) Validate() error {
	if c.ConfigFile == "" {
		if err := c.Connection.validate(); err != nil {
			return err
		}
	}
	return c.Serving.validate()
}

// Ask is how `skiff why` and `skiff what-if` reach a scheduler, and how they show its answer.
type Ask struct {
	// Kubeconfig and Context are found as kubectl finds them when they are empty, and so is Namespace.
	Kubeconfig, Context, Namespace string
	// Scheduler is the URL of a scheduler that runs alone, and SchedulerCA the authority it is known by. Without a URL the API
	// server is asked.
	Scheduler, SchedulerCA string
	Output                 string
	// File is a manifest, - for standard input, and Nodes asks for what is said of every node. Only `skiff what-if` has them.
	File  string
	Nodes bool

	whatIf bool
}

// DefaultWhy asks the API server and shows a table.
func DefaultWhy() Ask { return Ask{Output: "table"} }

// DefaultWhatIf asks the API server and shows a table.
func DefaultWhatIf() Ask { return Ask{Output: "table", whatIf: true} }

// Flags binds the settings to command-line flags.
func (c *Ask) Flags(fs *flag.FlagSet) {
	fs.StringVar(&c.Kubeconfig, "kubeconfig", c.Kubeconfig, "file that says where the API server is and who asks; default: $KUBECONFIG, or that of the home directory")
	fs.StringVar(&c.Context, "context", c.Context, "context of the kubeconfig")
	fs.StringVar(&c.Namespace, "n", c.Namespace, "namespace; default: that of the context")
	fs.StringVar(&c.Namespace, "namespace", c.Namespace, "the same")
	fs.StringVar(&c.Scheduler, "scheduler", c.Scheduler, "URL of a scheduler that runs alone; default: the API server is asked")
	fs.StringVar(&c.SchedulerCA, "scheduler-ca", c.SchedulerCA, "authority of that scheduler's certificate")
	fs.StringVar(&c.Output, "o", c.Output, "table, json or yaml")
	if c.whatIf {
		fs.StringVar(&c.File, "f", c.File, "manifest whose pods are meant; - is standard input")
		fs.BoolVar(&c.Nodes, "nodes", c.Nodes, "show what is said of every node")
	}
}

// Validate checks the settings and names the flag at fault.
func (c *Ask) Validate() error {
	switch {
	case c.Output != "table" && c.Output != "json" && c.Output != "yaml":
		return fmt.Errorf("-o: %q is not table, json or yaml", c.Output)
	case c.whatIf && c.File == "":
		return errors.New("-f: a manifest is needed")
	case c.SchedulerCA != "" && c.Scheduler == "":
		return errors.New("--scheduler-ca: it is for --scheduler")
	}
	return nil
}
