package authz

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/load"
	"k8s.io/apiserver/pkg/apis/apiserver/validation"
	authorizationcel "k8s.io/apiserver/pkg/authorization/cel"

	"skiff/internal/apiserver/authn"
	"skiff/internal/configfile"
	"skiff/internal/egress"
)

// The authorization modes.
const (
	ModeAlwaysAllow = "AlwaysAllow"
	ModeAlwaysDeny  = "AlwaysDeny"
	ModeABAC        = "ABAC"
	ModeWebhook     = "Webhook"
	ModeRBAC        = "RBAC"
	ModeNode        = "Node"
)

var modes = []string{ModeAlwaysAllow, ModeAlwaysDeny, ModeABAC, ModeWebhook, ModeRBAC, ModeNode}

// reloadInterval is how often the configuration file is checked for changes.
const reloadInterval = 10 * time.Second

// Config selects the authorizers and their order: by flags, or by a configuration file instead.
type Config struct {
	Modes []string // --authorization-mode
	// PolicyFile is the ABAC policy file (--authorization-policy-file).
	PolicyFile string
	// Settings of the webhook (--authorization-webhook-config-file, -version, -cache-authorized-ttl, -cache-unauthorized-ttl).
	WebhookConfigFile      string
	WebhookVersion         string
	WebhookAuthorizedTTL   time.Duration
	WebhookUnauthorizedTTL time.Duration
	// File is an AuthorizationConfiguration (--authorization-config). If it is set, Modes and the webhook's fields must be empty.
	File string
	// Dial connects to webhooks; nil: the network of the host is used.
	Dial egress.DialFunc
	// Reloads counts the reloads of File. It may be nil.
	Reloads *configfile.Reloads
}

// DefaultConfig has upstream's defaults.
func DefaultConfig() Config {
	return Config{WebhookVersion: "v1beta1", WebhookAuthorizedTTL: 5 * time.Minute, WebhookUnauthorizedTTL: 30 * time.Second}
}

// Validate checks what can be checked without reading files.
func (c Config) Validate() error {
	if c.File != "" {
		if len(c.Modes) > 0 || c.WebhookConfigFile != "" {
			return errors.New("--authorization-config can not be specified when --authorization-mode or --authorization-webhook-* flags are defined")
		}
		return nil
	}
	var errs []error
	if len(c.Modes) == 0 {
		errs = append(errs, errors.New("at least one authorization-mode must be passed"))
	}
	for i, mode := range c.Modes {
		if !slices.Contains(modes, mode) {
			errs = append(errs, fmt.Errorf("authorization-mode %q is not a valid mode", mode))
		}
		if slices.Contains(c.Modes[:i], mode) {
			errs = append(errs, fmt.Errorf("authorization-mode %q has mode specified more than once", c.Modes))
		}
	}
	for _, needs := range []struct{ mode, file, missingError, unusedError string }{
		{ModeABAC, c.PolicyFile, "authorization-mode ABAC's authorization policy file not passed", "cannot specify --authorization-policy-file without mode ABAC"},
		{ModeWebhook, c.WebhookConfigFile, "authorization-mode Webhook's authorization config file not passed", "cannot specify --authorization-webhook-config-file without mode Webhook"},
	} {
		switch has := slices.Contains(c.Modes, needs.mode); {
		case has && needs.file == "":
			errs = append(errs, errors.New(needs.missingError))
		case !has && needs.file != "":
			errs = append(errs, errors.New(needs.unusedError))
		}
	}
	return utilerrors.NewAggregate(errs)
}

// read returns the configuration as an AuthorizationConfiguration, from the file or from the flags.
func (c Config) read() (*apiserver.AuthorizationConfiguration, []byte, error) {
	if c.File != "" {
		data, err := os.ReadFile(c.File)
		if err != nil {
			return nil, nil, err
		}
		config, err := readConfiguration(data, nil)
		return config, data, err
	}
	config := &apiserver.AuthorizationConfiguration{}
	for _, mode := range c.Modes {
		authorizer := apiserver.AuthorizerConfiguration{Type: apiserver.AuthorizerType(mode), Name: strings.ToLower(mode)}
		if mode == ModeWebhook {
			authorizer.Name = "default"
			authorizer.Webhook = c.webhook()
		}
		config.Authorizers = append(config.Authorizers, authorizer)
	}
	return config, nil, nil
}

func (c Config) webhook() *apiserver.WebhookConfiguration {
	return &apiserver.WebhookConfiguration{
		AuthorizedTTL: metav1.Duration{Duration: c.WebhookAuthorizedTTL}, CacheAuthorizedRequests: c.WebhookAuthorizedTTL != 0,
		UnauthorizedTTL: metav1.Duration{Duration: c.WebhookUnauthorizedTTL}, CacheUnauthorizedRequests: c.WebhookUnauthorizedTTL != 0,
		Timeout: metav1.Duration{Duration: 30 * time.Second}, FailurePolicy: apiserver.FailurePolicyNoOpinion,
		SubjectAccessReviewVersion: c.WebhookVersion,
		ConnectionInfo: apiserver.WebhookConnectionInfo{
			Type: apiserver.AuthorizationWebhookConnectionInfoTypeKubeConfigFile, KubeConfigFile: &c.WebhookConfigFile,
		},
	}
}

// compiler compiles match conditions. It is created on first use because of its memory.
var compiler = sync.OnceValue(authorizationcel.NewDefaultCompiler)

// readConfiguration decodes and validates an AuthorizationConfiguration. It must contain all required types.
func readConfiguration(data []byte, required []string) (*apiserver.AuthorizationConfiguration, error) {
	config, err := load.LoadFromData(data)
	if err != nil {
		return nil, fmt.Errorf("failed to load AuthorizationConfiguration from file: %w", err)
	}
	if errs := validation.ValidateAuthorizationConfiguration(compiler(), nil, config, sets.New(modes...), sets.New(ModeWebhook)); len(errs) > 0 {
		return nil, errs.ToAggregate()
	}
	var errs []error
	missing := slices.Clone(required)
	for _, authorizer := range config.Authorizers {
		kind := string(authorizer.Type)
		missing = slices.DeleteFunc(missing, func(wanted string) bool { return wanted == kind })
		if name := strings.ToLower(kind); kind != ModeWebhook && authorizer.Name != name {
			errs = append(errs, fmt.Errorf("expected name %s for authorizer %s instead of %s", name, kind, authorizer.Name))
		}
	}
	if len(missing) > 0 {
		errs = append(errs, fmt.Errorf("missing required types: %v", missing))
	}
	return config, utilerrors.NewAggregate(errs)
}

// Authorizers is the chain of authorizers of a configuration. Members of system:masters are always allowed.
type Authorizers struct {
	config Config
	log    *slog.Logger
	chain  atomic.Pointer[Chain]

	// Authorizers that are kept when the configuration file changes, nil for modes that are not enabled.
	rbac *RBAC
	node *Node
	abac ABAC

	data []byte // last content of the file
}

// New makes the authorizers of a configuration. RBAC uses the policy, Node the graph. Run reloads the configuration file.
func New(c Config, policy Policy, graph *NodeGraph, log *slog.Logger) (*Authorizers, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	read, data, err := c.read()
	if err != nil {
		return nil, err
	}
	authorizers := &Authorizers{config: c, log: log, data: data}
	for _, authorizer := range read.Authorizers {
		switch string(authorizer.Type) {
		case ModeRBAC:
			authorizers.rbac = NewRBAC(policy)
		case ModeNode:
			authorizers.node = NewNode(graph)
		case ModeABAC:
			if authorizers.abac, err = LoadABAC(c.PolicyFile); err != nil {
				return nil, err
			}
		}
	}
	chain, err := authorizers.build(read)
	if err != nil {
		return nil, err
	}
	authorizers.chain.Store(&chain)
	return authorizers, nil
}

func (c *Authorizers) build(config *apiserver.AuthorizationConfiguration) (Chain, error) {
	chain := Chain{Masters{}}
	for _, authorizer := range config.Authorizers {
		var next Authorizer
		switch kind := string(authorizer.Type); {
		case kind == ModeAlwaysAllow:
			next = AlwaysAllow{}
		case kind == ModeAlwaysDeny:
			next = AlwaysDeny{}
		case kind == ModeWebhook:
			webhook, err := NewWebhook(authorizer.Webhook, compiler, c.config.Dial)
			if err != nil {
				return nil, fmt.Errorf("authorizer %s: %w", authorizer.Name, err)
			}
			next = webhook
		case kind == ModeRBAC && c.rbac != nil:
			next = c.rbac
		case kind == ModeNode && c.node != nil:
			next = c.node
		case kind == ModeABAC && c.abac != nil:
			next = c.abac
		default:
			return nil, fmt.Errorf("authorizer type %s is not allowed if it was not enabled at initial server startup", kind)
		}
		chain = append(chain, Named{authorizer.Name, next})
	}
	return chain, nil
}

// Authorize implements Authorizer.
func (c *Authorizers) Authorize(ctx context.Context, a *Attributes) (Decision, string, error) {
	return c.chain.Load().Authorize(ctx, a)
}

// RulesFor implements RuleResolver.
func (c *Authorizers) RulesFor(ctx context.Context, user authn.User, namespace string) (Rules, error) {
	return c.chain.Load().RulesFor(ctx, user, namespace)
}

// RBAC is the RBAC authorizer of the chain, or nil.
func (c *Authorizers) RBAC() *RBAC { return c.rbac }

// Run reloads the configuration file when it changes, until ctx is done. An unreadable or invalid file changes nothing.
func (c *Authorizers) Run(ctx context.Context) error {
	if c.config.File == "" {
		<-ctx.Done()
		return nil
	}
	ticker := time.NewTicker(reloadInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			changed, err := c.reload()
			if changed || err != nil {
				c.config.Reloads.Record(err)
			}
			if err != nil {
				c.log.Error("failed to reload authorization configuration", "file", c.config.File, "error", err)
			} else if changed {
				c.log.Info("reloaded authorization configuration", "file", c.config.File)
			}
		}
	}
}

// reload reads the file again. Only webhooks can be added or removed while the server runs.
func (c *Authorizers) reload() (changed bool, err error) {
	data, err := os.ReadFile(c.config.File)
	if err != nil || bytes.Equal(data, c.data) {
		return false, err
	}
	c.data = data
	var required []string
	for _, authorizer := range *c.chain.Load() {
		named, ok := authorizer.(Named)
		if !ok {
			continue
		}
		if _, isWebhook := named.Authorizer.(*Webhook); isWebhook {
			continue
		}
		required = append(required, modes[slices.IndexFunc(modes, func(mode string) bool { return strings.ToLower(mode) == named.Name })])
	}
	config, err := readConfiguration(data, required)
	if err != nil {
		return false, err
	}
	chain, err := c.build(config)
	if err != nil {
		return false, err
	}
	c.chain.Store(&chain)
	return true, nil
}
