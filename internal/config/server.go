// Package config holds the settings of each part: one struct per part, its defaults as one literal, flags, and a Validate
// that names the flag at fault.
package config

import (
	"errors"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Server is what `skiff server` runs by.
type Server struct {
	DataDir          string
	BindAddress      string
	SecurePort       int
	AdvertiseAddress string
	WriteKubeconfig  string
	NoNode           bool
	Node             Node
	// Without names parts that run elsewhere: upstream's in place of ours, or ours on another machine.
	Without       []string
	Token         string
	ServiceCIDR   string
	PodAddresses  PodAddresses
	NodeLoss      NodeLoss
	NodePortRange string
	ClusterDomain string
	Etcd          Etcd
	EventTTL      time.Duration
	Limits        Limits
	// HTTP2Server is the implementation of HTTP/2 the API is served with: HTTP2Skiff or HTTP2Go.
	HTTP2Server    string
	Authentication Authentication
	Authorization  Authorization
	Admission      Admission
	Audit          Audit
	Encryption     Encryption
	LogLevel       string
	Profiling      bool
}

// The values of HTTP2Server.
const (
	HTTP2Skiff = "skiff" // internal/http2
	HTTP2Go    = "go"    // net/http
)

// Etcd says where the state lives: embedded when Servers is empty.
type Etcd struct {
	Servers  []string
	CAFile   string
	CertFile string
	KeyFile  string
	// ListenClient opens the embedded etcd to other programs, at this unix:// or https:// URL. Empty: it stays inside the process.
	ListenClient string
	// CompactionInterval is how long history is kept.
	CompactionInterval time.Duration
}

// Authentication says which credentials are accepted besides client certificates, with upstream's meanings.
type Authentication struct {
	// Issuer is the name in tokens of service accounts; Audiences are the server's own names, by default the issuer.
	Issuer    string
	Audiences []string
	// MaxTokenExpiration shortens what clients ask for.
	MaxTokenExpiration time.Duration
	ExtendTokens       bool
	TokenFile          string
	PasswordFile       string
	BootstrapTokens    bool
	WebhookConfigFile  string
	// File is an AuthenticationConfiguration.
	File      string
	Anonymous bool
}

// Authorization says who decides what users may do, with upstream's meanings.
type Authorization struct {
	Modes             []string
	PolicyFile        string
	WebhookConfigFile string
	// File is an AuthorizationConfiguration, in place of the others.
	File string
}

// Admission chooses among the admission rules, with upstream's names for them.
type Admission struct {
	Enable, Disable []string
	// ConfigFile is an AdmissionConfiguration.
	ConfigFile string
	// NotReadySeconds and UnreachableSeconds are how long pods that do not say otherwise stay on a node that is not ready or cannot be
	// reached.
	NotReadySeconds, UnreachableSeconds int64
}

// Encryption says how objects are sealed in the store, with upstream's meanings.
type Encryption struct {
	// File is an EncryptionConfiguration. Without it objects are stored as they are.
	File string
	// Reload reads the file again when it changes.
	Reload bool
}

// Limits bound what clients may ask of the server at once.
type Limits struct {
	// PriorityAndFairness lets requests wait for their turns, and takes the sum of the numbers below for the server's seats.
	PriorityAndFairness         bool
	MaxRequestsInflight         int
	MaxMutatingRequestsInflight int
}

// DefaultServer is the configuration of a server started without flags.
func DefaultServer() Server {
	return Server{
		DataDir:       "/var/lib/skiff",
		BindAddress:   "0.0.0.0",
		SecurePort:    6443,
		ServiceCIDR:   "10.96.0.0/12",
		PodAddresses:  PodAddresses{ClusterCIDR: "10.42.0.0/16"},
		NodeLoss:      defaultNodeLoss(),
		NodePortRange: "30000-32767",
		ClusterDomain: "cluster.local",
		Etcd:          Etcd{CompactionInterval: 5 * time.Minute},
		EventTTL:      time.Hour,
		Limits:        Limits{PriorityAndFairness: true, MaxRequestsInflight: 400, MaxMutatingRequestsInflight: 200},
		HTTP2Server:   HTTP2Skiff,
		Authentication: Authentication{
			Issuer: "https://kubernetes.default.svc.cluster.local", ExtendTokens: true, BootstrapTokens: true, Anonymous: true,
		},
		Authorization: Authorization{Modes: []string{"Node", "RBAC"}},
		Admission:     Admission{NotReadySeconds: 300, UnreachableSeconds: 300},
		Audit:         defaultAudit(),
		LogLevel:      "info",
	}
}

// Flags binds the settings to command-line flags, with upstream's names where the meaning is upstream's.
func (c *Server) Flags(fs *flag.FlagSet) {
	fs.StringVar(&c.DataDir, "data-dir", c.DataDir, "directory that holds all state")
	fs.StringVar(&c.BindAddress, "bind-address", c.BindAddress, "address to serve the API on")
	fs.IntVar(&c.SecurePort, "secure-port", c.SecurePort, "port to serve the API on, with TLS")
	fs.StringVar(&c.AdvertiseAddress, "advertise-address", c.AdvertiseAddress, "address other parts reach the API at; default: the bind address, or the machine's own")
	fs.StringVar(&c.WriteKubeconfig, "write-kubeconfig", c.WriteKubeconfig, "also write the admin kubeconfig to this file")
	fs.BoolVar(&c.NoNode, "no-node", c.NoNode, "run the control plane without a node")
	c.Node.flags(fs, "node-name", "kubelet-config")
	fs.Var((*commaList)(&c.Without), "without", "parts not to run in this process: controllers, scheduler")
	fs.StringVar(&c.Token, "token", c.Token, "bearer token that is accepted as cluster administrator, besides the certificate in the kubeconfig")
	fs.StringVar(&c.ServiceCIDR, "service-cidr", c.ServiceCIDR, "addresses for Services; two ranges, separated by a comma, for two IP families")
	c.PodAddresses.flags(fs)
	c.NodeLoss.flags(fs)
	fs.StringVar(&c.NodePortRange, "service-node-port-range", c.NodePortRange, "ports for Services of type NodePort")
	fs.StringVar(&c.ClusterDomain, "cluster-domain", c.ClusterDomain, "DNS domain of the cluster")
	fs.Var((*commaList)(&c.Etcd.Servers), "etcd-servers", "URLs of an external etcd, separated by commas; default: etcd inside this process")
	fs.StringVar(&c.Etcd.CAFile, "etcd-cafile", c.Etcd.CAFile, "authority that signed the external etcd's certificates")
	fs.StringVar(&c.Etcd.CertFile, "etcd-certfile", c.Etcd.CertFile, "client certificate for the external etcd")
	fs.StringVar(&c.Etcd.KeyFile, "etcd-keyfile", c.Etcd.KeyFile, "key of the client certificate for the external etcd")
	fs.StringVar(&c.Etcd.ListenClient, "etcd-listen-client-url", c.Etcd.ListenClient, "open the embedded etcd to other programs at this unix:// or https:// URL")
	fs.DurationVar(&c.Etcd.CompactionInterval, "etcd-compaction-interval", c.Etcd.CompactionInterval, "how long history is kept")
	fs.DurationVar(&c.EventTTL, "event-ttl", c.EventTTL, "how long events are kept")
	fs.IntVar(&c.Limits.MaxRequestsInflight, "max-requests-inflight", c.Limits.MaxRequestsInflight, "reading requests served at once; with --enable-priority-and-fairness the sum of both limits is what is divided, otherwise 0 means no limit")
	fs.IntVar(&c.Limits.MaxMutatingRequestsInflight, "max-mutating-requests-inflight", c.Limits.MaxMutatingRequestsInflight, "writing requests served at once; as above")
	fs.BoolVar(&c.Limits.PriorityAndFairness, "enable-priority-and-fairness", c.Limits.PriorityAndFairness, "let requests wait for their turns as FlowSchemas and PriorityLevelConfigurations say, instead of refusing them above a limit")
	fs.StringVar(&c.HTTP2Server, "http2-server", c.HTTP2Server, "implementation of HTTP/2 to serve the API with: skiff, or go for that of Go's net/http")
	a := &c.Authentication
	fs.StringVar(&a.Issuer, "service-account-issuer", a.Issuer, "name that tokens of service accounts are issued under")
	fs.Var((*commaList)(&a.Audiences), "api-audiences", "names of this API server that tokens may be meant for; default: the issuer")
	fs.DurationVar(&a.MaxTokenExpiration, "service-account-max-token-expiration", a.MaxTokenExpiration, "longest life of a token; 0: no limit")
	fs.BoolVar(&a.ExtendTokens, "service-account-extend-token-expiration", a.ExtendTokens, "let the tokens that pods mount live for a year, with a warning after the hour they asked for")
	fs.StringVar(&a.TokenFile, "token-auth-file", a.TokenFile, "file of static bearer tokens: token,user,uid,\"groups\"")
	fs.StringVar(&a.PasswordFile, "basic-auth-file", a.PasswordFile, "file of users and bcrypt passwords; without it passwords are not accepted")
	fs.BoolVar(&a.BootstrapTokens, "enable-bootstrap-token-auth", a.BootstrapTokens, "accept bootstrap tokens, with which new nodes introduce themselves")
	fs.StringVar(&a.WebhookConfigFile, "authentication-token-webhook-config-file", a.WebhookConfigFile, "kubeconfig of a service that knows further tokens")
	fs.StringVar(&a.File, "authentication-config", a.File, "AuthenticationConfiguration file: OIDC issuers and anonymous access")
	fs.BoolVar(&a.Anonymous, "anonymous-auth", a.Anonymous, "let requests without credentials in as system:anonymous, who may read health and version")
	fs.Var((*commaList)(&c.Authorization.Modes), "authorization-mode", "who is asked whether a request is allowed, in order: Node, RBAC, ABAC, Webhook, AlwaysAllow, AlwaysDeny")
	fs.StringVar(&c.Authorization.PolicyFile, "authorization-policy-file", c.Authorization.PolicyFile, "policy of mode ABAC")
	fs.StringVar(&c.Authorization.WebhookConfigFile, "authorization-webhook-config-file", c.Authorization.WebhookConfigFile, "kubeconfig of the service that mode Webhook asks")
	fs.StringVar(&c.Authorization.File, "authorization-config", c.Authorization.File, "AuthorizationConfiguration file, in place of the flags above")
	fs.Var((*commaList)(&c.Admission.Enable), "enable-admission-plugins", "admission rules to use besides those that are on by default")
	fs.Var((*commaList)(&c.Admission.Disable), "disable-admission-plugins", "admission rules not to use")
	fs.StringVar(&c.Admission.ConfigFile, "admission-control-config-file", c.Admission.ConfigFile, "AdmissionConfiguration file")
	fs.Int64Var(&c.Admission.NotReadySeconds, "default-not-ready-toleration-seconds", c.Admission.NotReadySeconds, "how long pods that do not say otherwise stay on a node that is not ready")
	fs.Int64Var(&c.Admission.UnreachableSeconds, "default-unreachable-toleration-seconds", c.Admission.UnreachableSeconds, "how long pods that do not say otherwise stay on a node that cannot be reached")
	c.Audit.flags(fs)
	fs.StringVar(&c.Encryption.File, "encryption-provider-config", c.Encryption.File, "EncryptionConfiguration file: which resources are encrypted in the store, and how")
	fs.BoolVar(&c.Encryption.Reload, "encryption-provider-config-automatic-reload", c.Encryption.Reload, "read the EncryptionConfiguration file again when it changes")
	fs.StringVar(&c.LogLevel, "log-level", c.LogLevel, "debug, info, warn or error")
	fs.BoolVar(&c.Profiling, "profiling", c.Profiling, "serve /debug/pprof to administrators")
}

// Validate checks the settings and names the flag at fault.
func (c *Server) Validate() error {
	var errs []error
	fail := func(flag, format string, args ...any) {
		errs = append(errs, fmt.Errorf("--"+flag+": "+format, args...))
	}
	if !filepath.IsAbs(c.DataDir) {
		fail("data-dir", "%q is not an absolute path", c.DataDir)
	}
	if net.ParseIP(c.BindAddress) == nil {
		fail("bind-address", "%q is not an IP address", c.BindAddress)
	}
	if c.SecurePort < 0 || c.SecurePort > 65535 {
		fail("secure-port", "%d is not a port", c.SecurePort)
	}
	if c.AdvertiseAddress != "" && net.ParseIP(c.AdvertiseAddress) == nil {
		fail("advertise-address", "%q is not an IP address", c.AdvertiseAddress)
	}
	if err := c.Node.validate("node-name"); err != nil {
		errs = append(errs, err)
	}
	if err := validateParts(c.Without); err != nil {
		errs = append(errs, err)
	}
	if _, err := c.ServiceCIDRs(); err != nil {
		fail("service-cidr", "%v", err)
	}
	if err := errors.Join(c.PodAddresses.validate(), c.NodeLoss.validate()); err != nil {
		errs = append(errs, err)
	}
	if _, _, err := c.NodePorts(); err != nil {
		fail("service-node-port-range", "%v", err)
	}
	if (c.Etcd.CertFile == "") != (c.Etcd.KeyFile == "") {
		fail("etcd-certfile", "certificate and key are needed together")
	}
	if c.Etcd.CompactionInterval < 0 {
		fail("etcd-compaction-interval", "must not be negative")
	}
	if c.Limits.MaxRequestsInflight < 0 || c.Limits.MaxMutatingRequestsInflight < 0 {
		fail("max-requests-inflight", "must not be negative")
	}
	if c.Limits.PriorityAndFairness && c.Limits.MaxRequestsInflight+c.Limits.MaxMutatingRequestsInflight == 0 {
		fail("max-requests-inflight", "must add up to something positive with --max-mutating-requests-inflight, unless --enable-priority-and-fairness=false")
	}
	if c.HTTP2Server != HTTP2Skiff && c.HTTP2Server != HTTP2Go {
		fail("http2-server", "%q is not one of %s, %s", c.HTTP2Server, HTTP2Skiff, HTTP2Go)
	}
	if c.Encryption.Reload && c.Encryption.File == "" {
		fail("encryption-provider-config-automatic-reload", "there is no file to read; set --encryption-provider-config")
	}
	if err := c.Audit.validate(); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Runs reports whether a part runs in the server's process.
func (c *Server) Runs(part string) bool { return !slices.Contains(c.Without, part) }

// ServiceCIDRs parses ServiceCIDR: one range, or two of different families.
func (c *Server) ServiceCIDRs() ([]netip.Prefix, error) { return parseRanges(c.ServiceCIDR) }

// NodePorts parses NodePortRange.
func (c *Server) NodePorts() (first, last int, err error) {
	if n, err := fmt.Sscanf(c.NodePortRange, "%d-%d", &first, &last); n != 2 || err != nil {
		return 0, 0, fmt.Errorf("%q is not a range like 30000-32767", c.NodePortRange)
	}
	if first < 1 || last > 65535 || first > last {
		return 0, 0, fmt.Errorf("%q is not a range of ports", c.NodePortRange)
	}
	return first, last, nil
}

// commaList is a flag that holds values separated by commas.
type commaList []string

func (l *commaList) String() string { return strings.Join(*l, ",") }

func (l *commaList) Set(text string) error {
	*l = nil
	for part := range strings.SplitSeq(text, ",") {
		if part = strings.TrimSpace(part); part != "" {
			*l = append(*l, part)
		}
	}
	return nil
}
