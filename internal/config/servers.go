package config

import (
	"errors"
	"fmt"
	"net/url"
)

// Servers configures a cluster of several servers, each with a member of one etcd.
type Servers struct {
	// Init makes the embedded etcd one that other servers can join. A server that was started with it needs it only once.
	Init bool
	// Join are the URLs of servers of the cluster to join, with JoinToken or the token in JoinTokenFile. The first that can be reached is used. A server
	// that has joined needs none of them.
	Join                     []string
	JoinToken, JoinTokenFile string
	// Reset makes the embedded etcd of this server the only member, and ends.
	Reset bool
	// PeerPort is the port at which the etcds of the other servers are served.
	PeerPort int
}

// DefaultPeerPort is etcd's.
const DefaultPeerPort = 2380

// groupServers is the group of the flags of Servers.
const groupServers = "Several servers"

func (c *Servers) flags(groups *FlagGroups) {
	fs := groups.Common(groupServers)
	fs.BoolVar(&c.Init, "cluster-init", c.Init, "Let other servers join the cluster. The embedded etcd keeps its data.")
	fs.StringSliceVar(&c.Join, "join", c.Join, "URL of a server whose cluster to join, such as https://10.0.0.1:6443. Can be repeated: the first that can be reached is used.")
	fs.StringVar(&c.JoinToken, "join-token", c.JoinToken, "Token of 'skiff token create --server'.")
	secretFlag(fs, "join-token")
	fs = groups.Advanced(groupServers)
	fs.StringVar(&c.JoinTokenFile, "join-token-file", c.JoinTokenFile, "Path to a file with the token. Unlike --join-token, it does not show in the process list.")
	fs.BoolVar(&c.Reset, "cluster-reset", c.Reset,
		"After most servers were lost: make this server the only one, with its data, and exit. The other servers must be joined again with empty data directories.")
	onCommandLine(fs, "cluster-reset")
	fs.IntVar(&c.PeerPort, "etcd-peer-port", c.PeerPort, "Port at which the embedded etcd serves those of the other servers.")
}

// validate checks the configuration. external is set if etcd is not embedded.
func (c *Servers) validate(external bool) error {
	var errs []error
	fail := func(flag, format string, args ...any) {
		errs = append(errs, fmt.Errorf("--"+flag+": "+format, args...))
	}
	if c.PeerPort < 1 || c.PeerPort > 65535 {
		fail("etcd-peer-port", "%d is not a port", c.PeerPort)
	}
	if len(c.Join) > 0 {
		errs = append(errs, validateServers("join", c.Join))
		if c.JoinToken != "" && c.JoinTokenFile != "" {
			fail("join-token-file", "cannot be used with --join-token")
		}
	} else if c.JoinToken != "" || c.JoinTokenFile != "" {
		fail("join-token", "requires --join")
	}
	requested := 0
	for _, flag := range []bool{c.Init, len(c.Join) > 0, c.Reset} {
		if flag {
			requested++
		}
	}
	if requested > 1 {
		errs = append(errs, errors.New("--cluster-init, --join and --cluster-reset cannot be used together"))
	}
	if requested > 0 && external {
		errs = append(errs, errors.New("--etcd-servers: an external etcd has its own members; --cluster-init, --join and --cluster-reset are for the embedded etcd"))
	}
	return errors.Join(errs...)
}

// validateServers checks the URLs of API servers that a flag has.
func validateServers(flag string, servers []string) error {
	for _, server := range servers {
		if u, err := url.Parse(server); err != nil || u.Scheme != "https" || u.Hostname() == "" {
			return fmt.Errorf("--%s: %q is not an https URL of an API server, such as https://10.0.0.1:6443", flag, server)
		}
	}
	return nil
}

// ReadToken returns the token to join with, or an empty string when none is configured.
func (c *Servers) ReadToken() (string, error) {
	return readToken(c.JoinToken, c.JoinTokenFile, "join-token-file")
}

// Member is the configuration of `skiff member`.
type Member struct {
	DataDir, Kubeconfig string
}

// DefaultMember is the configuration of `skiff member` without flags.
func DefaultMember() Member { return Member{DataDir: defaultDataDir} }

// Flags binds the configuration to command-line flags.
func (c *Member) Flags(groups *FlagGroups) { adminFlags(groups, &c.DataDir, &c.Kubeconfig) }

// Validate checks the configuration; its errors name the flag at fault.
func (c *Member) Validate() error {
	if c.DataDir == "" && c.Kubeconfig == "" {
		return errors.New("--data-dir: must not be empty")
	}
	return nil
}

// adminFlags binds how a command finds the administrator's kubeconfig.
func adminFlags(groups *FlagGroups, dataDir, kubeconfig *string) {
	fs := groups.Common(groupGeneric)
	fs.StringVar(dataDir, "data-dir", *dataDir, "Data directory of the server, which holds the admin kubeconfig.")
	fs.StringVar(kubeconfig, "kubeconfig", *kubeconfig, "Path to an administrator's kubeconfig, instead of the one in --data-dir.")
}
