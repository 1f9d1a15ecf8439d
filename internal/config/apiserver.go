// Package config holds the configuration of each command and component: one struct each, with its defaults, its command-line flags and a
// Validate that names the flag at fault.
package config

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"time"
)

// defaultDataDir is the directory for skiff's state unless --data-dir names another.
const defaultDataDir = "/var/lib/skiff"

// APIServer is the configuration of the API server, alone or inside `skiff server`.
type APIServer struct {
	DataDir          string
	BindAddress      string
	SecurePort       int
	AdvertiseAddress string
	TLS              TLS
	HTTP             HTTP
	FeatureGates     FeatureGates
	RuntimeConfig    RuntimeConfig
	KubeletClient    KubeletClient
	Aggregation      Aggregation
	WriteKubeconfig  string
	MergeKubeconfig  MergeKubeconfig
	// Token authenticates as cluster administrator; empty: there is no such token.
	Token         string
	ServiceCIDR   string
	NodePortRange string
	ClusterDomain string
	Etcd          Etcd
	EventTTL      time.Duration
	Limits        Limits
	// RequestTimeout is the longest duration of a request that is not long-running.
	RequestTimeout time.Duration
	Shutdown       Shutdown
	// HTTP2Server is the implementation of HTTP/2 the API is served with: HTTP2Skiff or HTTP2Go.
	HTTP2Server string
	// HTTP2MaxStreams is how many requests of one connection are served at the same time.
	HTTP2MaxStreams int
	Authentication  Authentication
	Authorization   Authorization
	Admission       Admission
	Audit           Audit
	Encryption      Encryption
	Snapshots       Snapshots
	LogLevel        string
	// EgressSelectorFile is an EgressSelectorConfiguration. Without it all servers are reached by the network of the host.
	EgressSelectorFile string
	// TracingFile is a TracingConfiguration. Without it there are no traces.
	TracingFile string
	// Profiling serves profiles and the log level below /debug; ContentionProfiling records where goroutines block.
	Profiling, ContentionProfiling bool
}

// minQuotaBytes is enough for the objects that every cluster has.
const minQuotaBytes = 8 << 20

// Shutdown configures how the API server ends.
type Shutdown struct {
	// Delay is how long requests are served after readiness has begun to fail.
	Delay time.Duration
	// WatchGracePeriod is the time over which the ends of watches are distributed.
	WatchGracePeriod time.Duration
}

// The values of HTTP2Server.
const (
	HTTP2Skiff = "skiff" // internal/http2
	HTTP2Go    = "go"    // net/http
)

// MergeKubeconfig says how the admin kubeconfig is merged into one that has other clusters too.
type MergeKubeconfig struct {
	// Path of the kubeconfig, which may begin with ~/; empty: it is not merged.
	Path string
	// Context is the name of the context, the cluster and the user.
	Context string
	// SetCurrent makes the context the current one although there is another.
	SetCurrent bool
}

// Etcd is the store: the embedded etcd when Servers is empty.
type Etcd struct {
	Servers  []string
	CAFile   string
	CertFile string
	KeyFile  string
	// Prefix begins the keys of all objects.
	Prefix string
	// ListenClient is a unix:// or https:// URL at which the embedded etcd serves other programs. Empty: it serves this process only.
	ListenClient string
	// CompactionInterval is how long old revisions are kept.
	CompactionInterval time.Duration
	// QuotaBytes limits the size of the embedded etcd's database.
	QuotaBytes int64
}

// Authorization configures the authorizers, with upstream's meanings.
type Authorization struct {
	Modes             []string
	PolicyFile        string
	WebhookConfigFile string
	// WebhookVersion is the API version of the SubjectAccessReviews that are sent. The TTLs are how long responses are cached.
	WebhookVersion                               string
	WebhookAuthorizedTTL, WebhookUnauthorizedTTL time.Duration
	// File is an AuthorizationConfiguration, which replaces the other fields.
	File string
}

// Admission configures the admission plugins, with upstream's names for them.
type Admission struct {
	Enable, Disable []string
	// ConfigFile is an AdmissionConfiguration.
	ConfigFile string
	// NotReadySeconds and UnreachableSeconds are the default tolerations of pods for nodes that are not ready or unreachable.
	NotReadySeconds, UnreachableSeconds int64
}

// Encryption configures encryption at rest, with upstream's meanings.
type Encryption struct {
	// File is an EncryptionConfiguration. Without it objects are not encrypted.
	File string
	// Reload reads the file again when it changes.
	Reload bool
}

// Limits bound the requests that are served at the same time.
type Limits struct {
	// PriorityAndFairness queues requests by FlowSchemas and PriorityLevelConfigurations; the server's concurrency limit is then the sum of
	// the two limits below.
	PriorityAndFairness         bool
	MaxRequestsInflight         int
	MaxMutatingRequestsInflight int
}

// DefaultAPIServer is the configuration of an API server started without flags.
func DefaultAPIServer() APIServer {
	return APIServer{
		DataDir:         defaultDataDir,
		BindAddress:     "0.0.0.0",
		SecurePort:      6443,
		ServiceCIDR:     "10.96.0.0/12",
		NodePortRange:   "30000-32767",
		ClusterDomain:   "cluster.local",
		Etcd:            Etcd{Prefix: "/registry", CompactionInterval: 5 * time.Minute, QuotaBytes: 8 << 30},
		EventTTL:        time.Hour,
		Limits:          Limits{PriorityAndFairness: true, MaxRequestsInflight: 400, MaxMutatingRequestsInflight: 200},
		RequestTimeout:  time.Minute,
		HTTP2Server:     HTTP2Skiff,
		HTTP2MaxStreams: 100,
		Authentication:  defaultAuthentication(),
		Authorization:   defaultAuthorization(),
		Admission:       Admission{NotReadySeconds: 300, UnreachableSeconds: 300},
		Audit:           defaultAudit(),
		HTTP:            HTTP{MinRequestTimeout: 1800},
		KubeletClient:   defaultKubeletClient(),
		Aggregation:     defaultAggregation(),
		Snapshots:       defaultSnapshots(),
		LogLevel:        "info",
		Profiling:       true,
		MergeKubeconfig: MergeKubeconfig{Context: "skiff"},
	}
}

func defaultAuthorization() Authorization {
	return Authorization{
		Modes: []string{"Node", "RBAC"}, WebhookVersion: "v1beta1", WebhookAuthorizedTTL: 5 * time.Minute, WebhookUnauthorizedTTL: 30 * time.Second,
	}
}

// Flags binds the configuration of `skiff apiserver` to command-line flags, with upstream's names where the meaning is upstream's.
func (c *APIServer) Flags(groups *FlagGroups) {
	c.genericFlags(groups)
	c.servingFlags(groups)
	c.networkingFlags(groups, "service-cluster-ip-range")
	c.Etcd.flags(groups)
	c.Encryption.flags(groups)
	c.Snapshots.flags(groups)
	c.accessFlags(groups)
}

func (c *APIServer) genericFlags(groups *FlagGroups) {
	fs := groups.Common(groupGeneric)
	dataDirFlag(fs, &c.DataDir)
	fs.StringVar(&c.MergeKubeconfig.Path, "merge-kubeconfig", c.MergeKubeconfig.Path, "Path to a kubeconfig, such as ~/.kube/config, to which to add the cluster. What else it has is kept.")
	logLevelFlag(fs, &c.LogLevel)
	fs = groups.Advanced(groupGeneric)
	fs.StringVar(&c.WriteKubeconfig, "write-kubeconfig", c.WriteKubeconfig, "Path to which to write the admin kubeconfig, besides the one in --data-dir.")
	fs.StringVar(&c.MergeKubeconfig.Context, "merge-kubeconfig-context", c.MergeKubeconfig.Context, "Name of the context, the cluster and the user in --merge-kubeconfig.")
	fs.BoolVar(&c.MergeKubeconfig.SetCurrent, "merge-kubeconfig-set-current", c.MergeKubeconfig.SetCurrent,
		"Make the context the current one of --merge-kubeconfig, although it has another. If it has none, that is done anyway.")
	fs.StringVar(&c.Token, "token", c.Token, "Bearer token that authenticates as cluster administrator, besides the certificate in the admin kubeconfig. Given here, it shows in the process list.")
	secretFlag(fs, "token")
	fs.DurationVar(&c.EventTTL, "event-ttl", c.EventTTL, "Time to keep events.")
	fs.BoolVar(&c.Profiling, "profiling", c.Profiling, "Serve profiles at /debug/pprof/, and the log level at /debug/flags/v, to users who are authorized for these paths.")
	fs.Var(&c.FeatureGates, "feature-gates",
		"Feature gates of kube-apiserver, as Name=true or Name=false, separated by commas. Except for "+strings.Join(switchableGates, " and ")+", only the defaults are supported.")
	fs.Var(&c.RuntimeConfig, "runtime-config",
		"API versions and resources to serve or not, as group/version=true or false, or group/version/resource=true or false, separated by commas. api/all, api/ga, api/beta and api/alpha stand for all such versions.")
	fs.StringVar(&c.EgressSelectorFile, "egress-selector-config-file", c.EgressSelectorFile, "Path to an EgressSelectorConfiguration file, which defines the proxies to nodes and pods, to an external etcd and to webhooks.")
	fs.StringVar(&c.TracingFile, "tracing-config-file", c.TracingFile, "Path to a TracingConfiguration file, which defines the collector of traces and how many requests are traced.")
	fs.BoolVar(&c.ContentionProfiling, "contention-profiling", c.ContentionProfiling, "Record where goroutines block, if profiling is enabled.")
}

func (c *APIServer) servingFlags(groups *FlagGroups) {
	fs := groups.Common(groupServing)
	fs.StringVar(&c.BindAddress, "bind-address", c.BindAddress, "IP address on which to serve the API.")
	fs.IntVar(&c.SecurePort, "secure-port", c.SecurePort, "Port on which to serve the API with TLS. 0 chooses a free port.")
	fs.StringVar(&c.AdvertiseAddress, "advertise-address", c.AdvertiseAddress,
		"IP address at which other members of the cluster reach the API. Defaults to --bind-address, or the host's own address.")
	fs = groups.Advanced(groupServing)
	fs.DurationVar(&c.RequestTimeout, "request-timeout", c.RequestTimeout,
		"Maximum duration of a request that is not long-running, including the time the client takes to read the response. A shutdown waits as long for the requests in flight.")
	fs.DurationVar(&c.Shutdown.Delay, "shutdown-delay-duration", c.Shutdown.Delay,
		"Time to serve requests after a signal to shut down. Only /readyz fails, so that load balancers stop sending requests.")
	fs.DurationVar(&c.Shutdown.WatchGracePeriod, "shutdown-watch-termination-grace-period", c.Shutdown.WatchGracePeriod,
		"Time over which watches are closed during a shutdown, so that not all clients reconnect at once. 0 closes them immediately.")
	fs.StringVar(&c.HTTP2Server, "http2-server", c.HTTP2Server,
		"Implementation of HTTP/2 to serve the API with: skiff, or go for that of Go's net/http.")
	fs.IntVar(&c.HTTP2MaxStreams, "http2-max-streams-per-connection", c.HTTP2MaxStreams,
		"Maximum number of streams of a client in an HTTP/2 connection. 0 means the default.")
	c.TLS.flags(groups.Advanced(groupServing))
	c.HTTP.flags(groups.Advanced(groupServing))
	c.KubeletClient.flags(groups.Advanced(groupServing))
	c.Aggregation.flags(groups.Advanced(groupServing))
}

// networkingFlags binds the configuration of services. Upstream's API server calls the service CIDR --service-cluster-ip-range.
func (c *APIServer) networkingFlags(groups *FlagGroups, serviceCIDRFlag string) {
	fs := groups.Common(groupNetworking)
	fs.StringVar(&c.ServiceCIDR, serviceCIDRFlag, c.ServiceCIDR, "CIDR for service IPs, or two separated by a comma for dual-stack.")
	fs.StringVar(&c.NodePortRange, "service-node-port-range", c.NodePortRange, "Range of ports for services of type NodePort.")
	fs.StringVar(&c.ClusterDomain, "cluster-domain", c.ClusterDomain, "DNS domain of the cluster.")
}

func (c *Etcd) flags(groups *FlagGroups) {
	fs := groups.Common(groupEtcd)
	listVar(fs, &c.Servers, "etcd-servers", "URLs of an external etcd, separated by commas. Defaults to an etcd inside this process.")
	fs.StringVar(&c.CAFile, "etcd-cafile", c.CAFile, "Path to the CA certificate of the external etcd.")
	fs.StringVar(&c.CertFile, "etcd-certfile", c.CertFile, "Path to the client certificate for the external etcd.")
	fs.StringVar(&c.KeyFile, "etcd-keyfile", c.KeyFile, "Path to the private key of --etcd-certfile.")
	fs = groups.Advanced(groupEtcd)
	fs.StringVar(&c.Prefix, "etcd-prefix", c.Prefix, "Prefix of the keys of all objects in etcd. Clusters with different prefixes can share an external etcd.")
	fs.StringVar(&c.ListenClient, "etcd-listen-client-url", c.ListenClient, "URL at which the embedded etcd serves other programs, as unix:// or https://.")
	fs.Int64Var(&c.QuotaBytes, "etcd-quota-backend-bytes", c.QuotaBytes,
		"Maximum size of the embedded etcd's database in bytes. Writes that exceed it are rejected. The default, 8 GiB, is the maximum that etcd recommends.")
	fs.DurationVar(&c.CompactionInterval, "etcd-compaction-interval", c.CompactionInterval, "Time to keep old revisions before compaction. 0 disables compaction.")
}

func (c *Encryption) flags(groups *FlagGroups) {
	groups.Common(groupEtcd).StringVar(&c.File, "encryption-provider-config", c.File,
		"Path to an EncryptionConfiguration file, which defines the resources to encrypt in etcd.")
	groups.Advanced(groupEtcd).BoolVar(&c.Reload, "encryption-provider-config-automatic-reload", c.Reload,
		"Reload the --encryption-provider-config file when it changes.")
}

// accessFlags binds the configuration of the filter chain: authentication, authorization, admission, audit and flow control.
func (c *APIServer) accessFlags(groups *FlagGroups) {
	c.Authentication.flags(groups)
	c.Authorization.flags(groups)
	c.Admission.flags(groups)
	c.Audit.flags(groups)
	c.Limits.flags(groups)
}

func (c *Authorization) flags(groups *FlagGroups) {
	fs := groups.Common(groupAuthorization)
	listVar(fs, &c.Modes, "authorization-mode", "Ordered list of authorizers: Node, RBAC, ABAC, Webhook, AlwaysAllow, AlwaysDeny.")
	fs.StringVar(&c.File, "authorization-config", c.File, "Path to an AuthorizationConfiguration file, which replaces the other authorization flags.")
	fs = groups.Advanced(groupAuthorization)
	fs.StringVar(&c.PolicyFile, "authorization-policy-file", c.PolicyFile, "Path to the policy file of mode ABAC.")
	fs.StringVar(&c.WebhookConfigFile, "authorization-webhook-config-file", c.WebhookConfigFile, "Path to the kubeconfig file of mode Webhook.")
	fs.StringVar(&c.WebhookVersion, "authorization-webhook-version", c.WebhookVersion, "API version of the SubjectAccessReviews that are sent to the webhook: v1 or v1beta1.")
	fs.DurationVar(&c.WebhookAuthorizedTTL, "authorization-webhook-cache-authorized-ttl", c.WebhookAuthorizedTTL, "Time to cache responses of the webhook that allow a request.")
	fs.DurationVar(&c.WebhookUnauthorizedTTL, "authorization-webhook-cache-unauthorized-ttl", c.WebhookUnauthorizedTTL, "Time to cache responses of the webhook that deny a request.")
}

func (c *Admission) flags(groups *FlagGroups) {
	fs := groups.Common(groupAdmission)
	listVar(fs, &c.Enable, "enable-admission-plugins", "Admission plugins to enable besides the default ones, separated by commas.")
	listVar(fs, &c.Disable, "disable-admission-plugins", "Admission plugins to disable, separated by commas.")
	fs.StringVar(&c.ConfigFile, "admission-control-config-file", c.ConfigFile, "Path to an AdmissionConfiguration file.")
	fs = groups.Advanced(groupAdmission)
	fs.Int64Var(&c.NotReadySeconds, "default-not-ready-toleration-seconds", c.NotReadySeconds,
		"Default toleration of pods for the taint not-ready:NoExecute, in seconds.")
	fs.Int64Var(&c.UnreachableSeconds, "default-unreachable-toleration-seconds", c.UnreachableSeconds,
		"Default toleration of pods for the taint unreachable:NoExecute, in seconds.")
}

func (c *Limits) flags(groups *FlagGroups) {
	fs := groups.Advanced(groupFlowControl)
	fs.BoolVar(&c.PriorityAndFairness, "enable-priority-and-fairness", c.PriorityAndFairness,
		"Queue and dispatch requests by FlowSchemas and PriorityLevelConfigurations, instead of rejecting those above a limit.")
	fs.IntVar(&c.MaxRequestsInflight, "max-requests-inflight", c.MaxRequestsInflight,
		"Maximum number of read requests in flight. 0 means no limit. With priority and fairness, the sum of both limits is the total concurrency.")
	fs.IntVar(&c.MaxMutatingRequestsInflight, "max-mutating-requests-inflight", c.MaxMutatingRequestsInflight,
		"Maximum number of mutating requests in flight. 0 means no limit. See --max-requests-inflight.")
}

// Validate checks the configuration; its errors name the flag at fault.
func (c *APIServer) Validate() error { return c.validate("service-cluster-ip-range") }

func (c *APIServer) validate(serviceCIDRFlag string) error {
	var errs []error
	fail := func(flag, format string, args ...any) {
		errs = append(errs, fmt.Errorf("--"+flag+": "+format, args...))
	}
	if !filepath.IsAbs(c.DataDir) {
		fail("data-dir", "%q is not an absolute path", c.DataDir)
	}
	if path := c.MergeKubeconfig.Path; path != "" && !filepath.IsAbs(path) && !strings.HasPrefix(path, "~/") {
		fail("merge-kubeconfig", "%q is not an absolute path, and does not begin with ~/", path)
	}
	if c.MergeKubeconfig.Context == "" {
		fail("merge-kubeconfig-context", "must not be empty")
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
	if _, err := c.ServiceCIDRs(); err != nil {
		fail(serviceCIDRFlag, "%v", err)
	}
	if _, _, err := c.NodePorts(); err != nil {
		fail("service-node-port-range", "%v", err)
	}
	if (c.Etcd.CertFile == "") != (c.Etcd.KeyFile == "") {
		fail("etcd-certfile", "certificate and key are needed together")
	}
	if c.Etcd.QuotaBytes < minQuotaBytes {
		fail("etcd-quota-backend-bytes", "must be at least %d", int64(minQuotaBytes))
	}
	if c.Etcd.CompactionInterval < 0 {
		fail("etcd-compaction-interval", "must not be negative")
	}
	if c.Limits.MaxRequestsInflight < 0 || c.Limits.MaxMutatingRequestsInflight < 0 {
		fail("max-requests-inflight", "must not be negative")
	}
	if c.Limits.PriorityAndFairness && c.Limits.MaxRequestsInflight+c.Limits.MaxMutatingRequestsInflight == 0 {
		fail("max-requests-inflight", "the sum with --max-mutating-requests-inflight must be positive unless --enable-priority-and-fairness=false")
	}
	if c.RequestTimeout <= 0 {
		fail("request-timeout", "must be positive")
	}
	if c.Shutdown.Delay < 0 {
		fail("shutdown-delay-duration", "must not be negative")
	}
	if c.Shutdown.WatchGracePeriod < 0 {
		fail("shutdown-watch-termination-grace-period", "must not be negative")
	}
	if c.HTTP2MaxStreams < 0 {
		fail("http2-max-streams-per-connection", "must not be negative")
	}
	if c.HTTP2Server != HTTP2Skiff && c.HTTP2Server != HTTP2Go {
		fail("http2-server", "%q is not one of %s, %s", c.HTTP2Server, HTTP2Skiff, HTTP2Go)
	}
	if c.Encryption.Reload && c.Encryption.File == "" {
		fail("encryption-provider-config-automatic-reload", "requires --encryption-provider-config")
	}
	errs = append(errs, c.Snapshots.validate(len(c.Etcd.Servers) > 0))
	errs = append(errs, c.TLS.validate(), c.HTTP.validate(), c.KubeletClient.validate(), c.Aggregation.validate(), c.Authentication.validate(), c.Audit.validate())
	return errors.Join(errs...)
}

// ServiceCIDRs parses ServiceCIDR: one CIDR, or two of different IP families.
func (c *APIServer) ServiceCIDRs() ([]netip.Prefix, error) { return parseCIDRs(c.ServiceCIDR) }

// NodePorts parses NodePortRange.
func (c *APIServer) NodePorts() (first, last int, err error) {
	if n, err := fmt.Sscanf(c.NodePortRange, "%d-%d", &first, &last); n != 2 || err != nil {
		return 0, 0, fmt.Errorf("%q is not a range like 30000-32767", c.NodePortRange)
	}
	if first < 1 || last > 65535 || first > last {
		return 0, 0, fmt.Errorf("%q is not a port range", c.NodePortRange)
	}
	return first, last, nil
}
