package config

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/pflag"
)

// ClientConnection is how a component that runs alone reaches the API server.
type ClientConnection struct {
	Kubeconfig string
	LogLevel   string
}

func defaultClientConnection() ClientConnection { return ClientConnection{LogLevel: "info"} }

func (c *ClientConnection) flags(fs *pflag.FlagSet) {
	fs.StringVar(&c.Kubeconfig, "kubeconfig", c.Kubeconfig, "Path to the kubeconfig file with the address of the API server and the credentials to use.")
	logLevelFlag(fs, &c.LogLevel)
}

func (c *ClientConnection) validate() error {
	if c.Kubeconfig == "" {
		return errors.New("--kubeconfig: required to reach the API server")
	}
	return nil
}

// Hollow is the configuration of `skiff hollow`.
type Hollow struct {
	ClientConnection
	Nodes             int
	NamePrefix        string
	CPU, Memory, Pods string
	Labels            []string
	Zones             int
}

// DefaultHollow is the configuration of `skiff hollow` without flags: one node of ordinary size.
func DefaultHollow() Hollow {
	return Hollow{ClientConnection: defaultClientConnection(), Nodes: 1, NamePrefix: "hollow-", CPU: "8", Memory: "32Gi", Pods: "110"}
}

// Flags binds the configuration to command-line flags.
func (c *Hollow) Flags(groups *FlagGroups) {
	c.flags(groups.Common(groupGeneric))
	fs := groups.Common("Hollow nodes")
	fs.IntVar(&c.Nodes, "nodes", c.Nodes, "Number of nodes.")
	fs.StringVar(&c.NamePrefix, "name-prefix", c.NamePrefix, "Prefix of the nodes' names.")
	fs.StringVar(&c.CPU, "cpu", c.CPU, "CPU capacity of each node, as a quantity.")
	fs.StringVar(&c.Memory, "memory", c.Memory, "Memory capacity of each node, as a quantity.")
	fs.StringVar(&c.Pods, "pods", c.Pods, "Pod capacity of each node.")
	listVar(fs, &c.Labels, "labels", "Labels of the nodes, as key=value pairs separated by commas.")
	fs.IntVar(&c.Zones, "zones", c.Zones, "Number of zones to spread the nodes over. 0 means no zones.")
}

// Validate checks the configuration; its errors name the flag at fault.
func (c *Hollow) Validate() error {
	if c.Nodes < 1 {
		return fmt.Errorf("--nodes: %d is less than 1", c.Nodes)
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
