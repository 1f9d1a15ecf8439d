package config

import (
	"errors"
	"flag"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Agent is what `skiff agent` runs by.
type Agent struct {
	Node
	DataDir string
	// Server is the URL of the API server.
	Server string
	// Token is what `skiff token create` printed, or TokenFile a file that holds it, so that other users of this machine do not see it. Only
	// a machine that is not a node yet needs it.
	Token, TokenFile string
	LogLevel         string
}

// DefaultAgent is the configuration of an agent started without flags.
func DefaultAgent() Agent { return Agent{DataDir: DefaultServer().DataDir, LogLevel: "info"} }

// Flags binds the settings to command-line flags.
func (c *Agent) Flags(fs *flag.FlagSet) {
	fs.StringVar(&c.Server, "server", c.Server, "URL of the API server, such as https://10.0.0.1:6443")
	fs.StringVar(&c.Token, "token", c.Token, "what `skiff token create` printed; a machine that has joined before needs none")
	fs.StringVar(&c.TokenFile, "token-file", c.TokenFile, "file that holds the token, in place of --token, which others on this machine can see")
	fs.StringVar(&c.DataDir, "data-dir", c.DataDir, "directory that holds all state")
	c.Node.flags(fs, "node-name", "kubelet-config")
	fs.StringVar(&c.LogLevel, "log-level", c.LogLevel, "debug, info, warn or error")
}

// Validate checks the settings and names the flag at fault.
func (c *Agent) Validate() error {
	var errs []error
	if u, err := url.Parse(c.Server); err != nil || u.Scheme != "https" || u.Hostname() == "" {
		errs = append(errs, fmt.Errorf("--server: %q is not an https URL of an API server", c.Server))
	}
	if c.Token != "" && c.TokenFile != "" {
		errs = append(errs, errors.New("--token-file: --token is given too"))
	}
	if !filepath.IsAbs(c.DataDir) {
		errs = append(errs, fmt.Errorf("--data-dir: %q is not an absolute path", c.DataDir))
	}
	return errors.Join(append(errs, c.Node.validate("node-name"))...)
}

// ReadToken is the token, wherever it is given; empty when none is.
func (c *Agent) ReadToken() (string, error) {
	if c.TokenFile == "" {
		return c.Token, nil
	}
	data, err := os.ReadFile(c.TokenFile)
	if err != nil {
		return "", fmt.Errorf("--token-file: %w", err)
	}
	return strings.TrimSpace(string(data)), nil
}

// Token is what `skiff token` runs by.
type Token struct {
	DataDir, Kubeconfig string
	// Life of a new token; 0 is for ever.
	Life        time.Duration
	Description string
	// Groups a new token puts its bearer into; none: that of new nodes.
	Groups []string
}

// DefaultToken is the configuration of `skiff token` without flags.
func DefaultToken() Token { return Token{DataDir: DefaultServer().DataDir, Life: 24 * time.Hour} }

// Flags binds the settings to command-line flags.
func (c *Token) Flags(fs *flag.FlagSet) {
	fs.StringVar(&c.DataDir, "data-dir", c.DataDir, "directory of the server, where the admin kubeconfig is")
	fs.StringVar(&c.Kubeconfig, "kubeconfig", c.Kubeconfig, "kubeconfig of an administrator, in place of the one in --data-dir")
	fs.DurationVar(&c.Life, "ttl", c.Life, "how long a new token is good; 0: for ever")
	fs.StringVar(&c.Description, "description", c.Description, "what a new token is for")
	fs.Var((*commaList)(&c.Groups), "groups", "groups of who shows a new token, all below system:bootstrappers:; default: the one of new nodes")
}

// Validate checks the settings and names the flag at fault.
func (c *Token) Validate() error {
	if c.DataDir == "" && c.Kubeconfig == "" {
		return errors.New("--data-dir: must not be empty")
	}
	if c.Life < 0 {
		return fmt.Errorf("--ttl: %v is past", c.Life)
	}
	for _, group := range c.Groups {
		if !strings.HasPrefix(group, "system:bootstrappers:") {
			return fmt.Errorf("--groups: %q does not begin with system:bootstrappers:", group)
		}
	}
	return nil
}
