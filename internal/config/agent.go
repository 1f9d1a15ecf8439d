package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// Agent is the configuration of `skiff agent`.
type Agent struct {
	Node
	DataDir string
	// ConfigFile has values for flags.
	ConfigFile string
	// Servers are the URLs of API servers of the cluster. One of them has to respond when the host joins; from then on it knows the others.
	Servers []string
	// Token is a join token of `skiff token create`; TokenFile is a file that holds one, which keeps it out of the process list. Only a host
	// that has not joined yet needs a token.
	Token, TokenFile string
	LogLevel         string
	// Without are the components of a node that run elsewhere.
	Without []string
	NodeProxy
}

// DefaultAgent is the configuration of an agent started without flags.
func DefaultAgent() Agent {
	return Agent{ConfigFile: DefaultFile, DataDir: defaultDataDir, LogLevel: "info"}
}

// Flags binds the configuration to command-line flags.
func (c *Agent) Flags(groups *FlagGroups) {
	fs := groups.Common(groupGeneric)
	configFlag(groups, &c.ConfigFile)
	fs.StringSliceVar(&c.Servers, "server", c.Servers, "URL of an API server, such as https://10.0.0.1:6443. Can be repeated: it suffices that one of them responds.")
	fs.StringVar(&c.Token, "token", c.Token, "Join token of 'skiff token create'. Not needed by a host that has joined before.")
	secretFlag(fs, "token")
	fs.StringVar(&c.TokenFile, "token-file", c.TokenFile, "Path to a file with the join token. Unlike --token, it does not show in the process list.")
	dataDirFlag(fs, &c.DataDir)
	logLevelFlag(fs, &c.LogLevel)
	listVar(fs, &c.Without, "without", "Components not to run on this node, separated by commas: proxy, policy.")
	c.Node.flags(groups, "node-name", "kubelet-config")
	c.Node.rootDirFlag(groups)
	c.NodeProxy.flags(groups)
}

// Runs reports whether a component runs in the agent's process.
func (c *Agent) Runs(component string) bool { return !slices.Contains(c.Without, component) }

// Validate checks the configuration; its errors name the flag at fault.
func (c *Agent) Validate() error {
	var errs []error
	if len(c.Servers) == 0 {
		errs = append(errs, errors.New("--server: required, the URL of an API server such as https://10.0.0.1:6443"))
	}
	errs = append(errs, validateServers("server", c.Servers))
	if c.Token != "" && c.TokenFile != "" {
		errs = append(errs, errors.New("--token-file: cannot be used with --token"))
	}
	if !filepath.IsAbs(c.DataDir) {
		errs = append(errs, fmt.Errorf("--data-dir: %q is not an absolute path", c.DataDir))
	}
	return errors.Join(append(errs, c.Node.validate("node-name"), validateWithout(c.Without, optionalNodeComponents), c.NodeProxy.validate(c.Runs(ComponentProxy)))...)
}

// ReadToken returns the join token, or an empty string when none is configured.
func (c *Agent) ReadToken() (string, error) { return readToken(c.Token, c.TokenFile, "token-file") }

// readToken returns a token, or that of a file if the flag of the file is set.
func readToken(token, file, fileFlag string) (string, error) {
	if file == "" {
		return token, nil
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("--%s: %w", fileFlag, err)
	}
	return strings.TrimSpace(string(data)), nil
}

// Token is the configuration of `skiff token`.
type Token struct {
	DataDir, Kubeconfig string
	// TTL of a new token; 0 means that it never expires.
	TTL         time.Duration
	Description string
	// Groups that a new token authenticates as; empty: the group of new nodes.
	Groups []string
	// Server creates a token for servers instead of nodes.
	Server bool
}

// DefaultToken is the configuration of `skiff token` without flags.
func DefaultToken() Token { return Token{DataDir: defaultDataDir, TTL: 24 * time.Hour} }

// Flags binds the configuration that all verbs of `skiff token` share to command-line flags.
func (c *Token) Flags(groups *FlagGroups) { adminFlags(groups, &c.DataDir, &c.Kubeconfig) }

// CreateFlags binds the configuration of `skiff token create` to command-line flags.
func (c *Token) CreateFlags(fs *pflag.FlagSet) {
	fs.DurationVar(&c.TTL, "ttl", c.TTL, "Time after which the token expires. 0 means that it never expires.")
	fs.StringVar(&c.Description, "description", c.Description, "Description of what the token is for.")
	listVar(fs, &c.Groups, "groups", "Groups the token authenticates as, which must begin with system:bootstrappers:. Defaults to the group of new nodes.")
	fs.BoolVar(&c.Server, "server", c.Server, "Create a token with which servers join. Whoever has it gets the keys of the cluster.")
}

// Validate checks the configuration; its errors name the flag at fault.
func (c *Token) Validate() error {
	if c.DataDir == "" && c.Kubeconfig == "" {
		return errors.New("--data-dir: must not be empty")
	}
	if c.TTL < 0 {
		return fmt.Errorf("--ttl: %v is negative", c.TTL)
	}
	if c.Server && len(c.Groups) > 0 {
		return errors.New("--groups: cannot be used with --server")
	}
	for _, group := range c.Groups {
		if !strings.HasPrefix(group, "system:bootstrappers:") {
			return fmt.Errorf("--groups: %q does not begin with system:bootstrappers:", group)
		}
	}
	return nil
}
