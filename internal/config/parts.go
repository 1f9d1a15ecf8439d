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

// ControllerManager is what `skiff controller-manager` runs by, with upstream's flag names.
type ControllerManager struct {
	Connection
	Controllers []string
	LeaderElect bool
	// RootCAFile is published in every namespace; ServiceAccountKeyFile signs the tokens kept in secrets; ClusterSigningCertFile and
	// ClusterSigningKeyFile sign approved certificate requests. Controllers that need one that is missing are off.
	RootCAFile             string
	ServiceAccountKeyFile  string
	ClusterSigningCertFile string
	ClusterSigningKeyFile  string
}

// DefaultControllerManager is the configuration of a controller manager started without flags.
func DefaultControllerManager() ControllerManager {
	return ControllerManager{Connection: defaultConnection(), Controllers: []string{"*"}, LeaderElect: true}
}

// Flags binds the settings to command-line flags.
func (c *ControllerManager) Flags(fs *flag.FlagSet) {
	c.flags(fs)
	fs.Var((*commaList)(&c.Controllers), "controllers", "controllers to run: * is all that are on by default, name one more, -name one less")
	fs.BoolVar(&c.LeaderElect, "leader-elect", c.LeaderElect, "work only while no other manager of the cluster does")
	fs.StringVar(&c.RootCAFile, "root-ca-file", c.RootCAFile, "certificates by which clients know the API server, for every namespace")
	fs.StringVar(&c.ServiceAccountKeyFile, "service-account-private-key-file", c.ServiceAccountKeyFile, "key that signs the tokens kept in secrets")
	fs.StringVar(&c.ClusterSigningCertFile, "cluster-signing-cert-file", c.ClusterSigningCertFile, "authority that signs approved certificate requests")
	fs.StringVar(&c.ClusterSigningKeyFile, "cluster-signing-key-file", c.ClusterSigningKeyFile, "key of that authority")
}

// Validate checks the settings and names the flag at fault.
func (c *ControllerManager) Validate() error {
	if (c.ClusterSigningCertFile == "") != (c.ClusterSigningKeyFile == "") {
		return errors.New("--cluster-signing-cert-file: certificate and key are needed together")
	}
	return c.validate()
}

// Scheduler is what `skiff scheduler` runs by, with upstream's flag names.
type Scheduler struct {
	Connection
	// ConfigFile is a KubeSchedulerConfiguration.
	ConfigFile  string
	LeaderElect bool
}

// DefaultScheduler is the configuration of a scheduler started without flags.
func DefaultScheduler() Scheduler {
	return Scheduler{Connection: defaultConnection(), LeaderElect: true}
}

// Flags binds the settings to command-line flags.
func (c *Scheduler) Flags(fs *flag.FlagSet) {
	c.flags(fs)
	fs.StringVar(&c.ConfigFile, "config", c.ConfigFile, "KubeSchedulerConfiguration file")
	fs.BoolVar(&c.LeaderElect, "leader-elect", c.LeaderElect, "work only while no other scheduler of the cluster does")
}

// Validate checks the settings and names the flag at fault.
func (c *Scheduler) Validate() error { return c.validate() }

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
