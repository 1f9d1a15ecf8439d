package config

import (
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"
)

// The parts of `skiff server` that may run elsewhere instead.
const (
	PartControllers = "controllers"
	PartScheduler   = "scheduler"
)

var parts = []string{PartControllers, PartScheduler}

func validateParts(without []string) error {
	for _, part := range without {
		if !slices.Contains(parts, part) {
			return fmt.Errorf("--without: %q is not one of %s", part, strings.Join(parts, ", "))
		}
	}
	return nil
}

// Connection is how a part that runs alone reaches the API server.
type Connection struct {
	Kubeconfig string
	LogLevel   string
}

func defaultConnection() Connection { return Connection{LogLevel: "info"} }

func (c *Connection) flags(fs *flag.FlagSet) {
	fs.StringVar(&c.Kubeconfig, "kubeconfig", c.Kubeconfig, "file that says where the API server is and who we are")
	fs.StringVar(&c.LogLevel, "log-level", c.LogLevel, "debug, info, warn or error")
}

func (c *Connection) validate() error {
	if c.Kubeconfig == "" {
		return errors.New("--kubeconfig: a kubeconfig file is needed to reach the API server")
	}
	return nil
}

// Hollow is what `skiff hollow` runs by.
type Hollow struct {
	Connection
	Nodes             int
	NamePrefix        string
	CPU, Memory, Pods string
	Labels            []string
	Zones             int
}

// DefaultHollow is one node of ordinary size.
func DefaultHollow() Hollow {
	return Hollow{Connection: defaultConnection(), Nodes: 1, NamePrefix: "hollow-", CPU: "8", Memory: "32Gi", Pods: "110"}
}

// Flags binds the settings to command-line flags.
func (c *Hollow) Flags(fs *flag.FlagSet) {
	c.flags(fs)
	fs.IntVar(&c.Nodes, "nodes", c.Nodes, "how many nodes to play")
	fs.StringVar(&c.NamePrefix, "name-prefix", c.NamePrefix, "what the nodes' names begin with")
	fs.StringVar(&c.CPU, "cpu", c.CPU, "CPUs of each node")
	fs.StringVar(&c.Memory, "memory", c.Memory, "memory of each node")
	fs.StringVar(&c.Pods, "pods", c.Pods, "how many pods each node takes")
	fs.Var((*commaList)(&c.Labels), "labels", "labels of the nodes: key=value, separated by commas")
	fs.IntVar(&c.Zones, "zones", c.Zones, "spread the nodes over so many zones; 0: no zones")
}

// Validate checks the settings and names the flag at fault.
func (c *Hollow) Validate() error {
	if c.Nodes < 1 {
		return fmt.Errorf("--nodes: %d is not a number of nodes", c.Nodes)
	}
	if _, err := c.LabelMap(); err != nil {
		return err
	}
	return c.validate()
}

// LabelMap parses Labels.
func (c *Hollow) LabelMap() (map[string]string, error) {
	labels := map[string]string{}
	for _, label := range c.Labels {
		key, value, ok := strings.Cut(label, "=")
		if !ok {
			return nil, fmt.Errorf("--labels: %q is not key=value", label)
		}
		labels[key] = value
	}
	return labels, nil
}
