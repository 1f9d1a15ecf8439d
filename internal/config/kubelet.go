package config

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
	"sigs.k8s.io/yaml"
)

// Node is the configuration of a node, inside `skiff server` as well as alone.
type Node struct {
	// Name of the node; defaults to the hostname.
	Name string
	// IP is the node's address; defaults to that of the interface of the default route.
	IP string
	// ConfigFile is a KubeletConfiguration.
	ConfigFile string
	// ContainerRuntimeEndpoint is the socket of a container runtime that is already running. If it is empty, skiff runs its own containerd.
	ContainerRuntimeEndpoint string
	// Labels and Taints are those a new node registers with.
	Labels, Taints []string
	// ImageCredentialProviderConfig is the path of a CredentialProviderConfig, ImageCredentialProviderBinDir the directory of its plugins.
	ImageCredentialProviderConfig, ImageCredentialProviderBinDir string
}

// flags binds the configuration to command-line flags. The flags for the node's name and the configuration file are given by name, because
// upstream's kubelet has names for them that would be ambiguous in `skiff server`.
func (c *Node) flags(groups *FlagGroups, nameFlag, configFlag string) {
	fs := groups.Common(groupNode)
	fs.StringVar(&c.Name, nameFlag, c.Name, "Name of this node. Defaults to the hostname.")
	fs.StringVar(&c.IP, "node-ip", c.IP, "IP address of this node, or two separated by a comma for dual-stack. Defaults to that of the default route's interface.")
	listVar(fs, &c.Labels, "node-labels", "Labels to register this node with, as key=value pairs separated by commas.")
	listVar(fs, &c.Taints, "register-with-taints", "Taints to register this node with, as key=value:effect separated by commas.")
	fs.StringVar(&c.ConfigFile, configFlag, c.ConfigFile, "Path to a KubeletConfiguration file.")
	fs.StringVar(&c.ContainerRuntimeEndpoint, "container-runtime-endpoint", c.ContainerRuntimeEndpoint,
		"Socket of a running CRI container runtime. Defaults to a containerd that skiff runs itself.")
	fs = groups.Advanced(groupNode)
	fs.StringVar(&c.ImageCredentialProviderConfig, "image-credential-provider-config", c.ImageCredentialProviderConfig,
		"Path to a CredentialProviderConfig file, or a directory of them, for image registries.")
	fs.StringVar(&c.ImageCredentialProviderBinDir, "image-credential-provider-bin-dir", c.ImageCredentialProviderBinDir,
		"Directory of the credential provider plugins.")
}

func (c *Node) validate(nameFlag string) error {
	var errs []error
	if c.Name != "" {
		if wrong := validation.IsDNS1123Subdomain(c.Name); len(wrong) > 0 {
			errs = append(errs, fmt.Errorf("--%s: %q is not a valid node name: %s", nameFlag, c.Name, strings.Join(wrong, "; ")))
		}
	}
	for ip := range strings.SplitSeq(c.IP, ",") {
		if c.IP != "" && net.ParseIP(ip) == nil {
			errs = append(errs, fmt.Errorf("--node-ip: %q is not an IP address", ip))
		}
	}
	for _, label := range c.Labels {
		if !strings.Contains(label, "=") {
			errs = append(errs, fmt.Errorf("--node-labels: %q is not key=value", label))
		}
	}
	return errors.Join(errs...)
}

// NodeName returns the node's name, which defaults to the hostname.
func (c *Node) NodeName() (string, error) {
	if c.Name != "" {
		return c.Name, nil
	}
	host, err := os.Hostname()
	return strings.ToLower(strings.TrimSpace(host)), err
}

// KubeletConfiguration reads the configuration file, if there is one, applies defaults and validates the result.
func (c *Node) KubeletConfiguration() (*kubeletconfig.KubeletConfiguration, error) {
	s := &kubeletconfig.KubeletConfiguration{}
	if c.ConfigFile != "" {
		data, err := os.ReadFile(c.ConfigFile)
		if err != nil {
			return nil, fmt.Errorf("read KubeletConfiguration: %w", err)
		}
		if err := yaml.UnmarshalStrict(data, s); err != nil {
			return nil, fmt.Errorf("read KubeletConfiguration %s: %w", c.ConfigFile, err)
		}
		if s.Kind != "KubeletConfiguration" || s.APIVersion != kubeletconfig.SchemeGroupVersion.String() {
			return nil, fmt.Errorf("%s is a %s of %s, not a KubeletConfiguration of %s", c.ConfigFile, s.Kind, s.APIVersion, kubeletconfig.SchemeGroupVersion)
		}
		if s.StaticPodPath != "" && !filepath.IsAbs(s.StaticPodPath) {
			s.StaticPodPath = filepath.Join(filepath.Dir(c.ConfigFile), s.StaticPodPath)
		}
	}
	defaultKubeletConfiguration(s)
	return s, validateKubeletConfiguration(s)
}

// defaultKubeletConfiguration sets upstream's defaults for the fields that skiff uses.
func defaultKubeletConfiguration(s *kubeletconfig.KubeletConfiguration) {
	duration := func(d *metav1.Duration, value time.Duration) {
		if d.Duration == 0 {
			d.Duration = value
		}
	}
	duration(&s.FileCheckFrequency, 20*time.Second)
	duration(&s.HTTPCheckFrequency, 20*time.Second)
	duration(&s.SyncFrequency, time.Minute)
	duration(&s.NodeStatusUpdateFrequency, 10*time.Second)
	duration(&s.NodeStatusReportFrequency, 5*time.Minute)
	duration(&s.ImageMinimumGCAge, 2*time.Minute)
	duration(&s.EvictionPressureTransitionPeriod, 5*time.Minute)
	setDefault(&s.CPUCFSQuota, true)
	if s.CPUCFSQuotaPeriod == nil {
		s.CPUCFSQuotaPeriod = &metav1.Duration{Duration: 100 * time.Millisecond}
	}
	setDefault(&s.ImageGCHighThresholdPercent, 85)
	setDefault(&s.ImageGCLowThresholdPercent, 80)
	setDefault(&s.SerializeImagePulls, true)
	setDefault(&s.ContainerLogMaxFiles, 5)
	setDefault(&s.PodPidsLimit, -1)
	setDefault(&s.EnableServer, true)
	setDefault(&s.FailCgroupV1, false)
	setDefault(&s.SeccompDefault, false)
	setDefault(&s.ResolverConfig, "/etc/resolv.conf")
	setDefault(&s.RegistryPullQPS, 5)
	number := func(n *int32, value int32) {
		if *n == 0 {
			*n = value
		}
	}
	number(&s.MaxPods, 110)
	number(&s.Port, 10250)
	number(&s.NodeLeaseDurationSeconds, 40)
	number(&s.RegistryBurst, 10)
	text := func(t *string, value string) {
		if *t == "" {
			*t = value
		}
	}
	text(&s.ContainerLogMaxSize, "10Mi")
	text(&s.Address, "0.0.0.0")
	text(&s.CgroupRoot, "/")
	if s.CrashLoopBackOff.MaxContainerRestartPeriod == nil {
		s.CrashLoopBackOff.MaxContainerRestartPeriod = &metav1.Duration{Duration: 5 * time.Minute}
	}
	if s.EvictionHard == nil {
		s.EvictionHard = map[string]string{
			"memory.available": "100Mi", "nodefs.available": "10%", "nodefs.inodesFree": "5%", "imagefs.available": "15%", "imagefs.inodesFree": "5%",
		}
	}
	if s.EnforceNodeAllocatable == nil {
		s.EnforceNodeAllocatable = []string{"pods"}
	}
}

func setDefault[T any](field **T, value T) {
	if *field == nil {
		*field = &value
	}
}

func validateKubeletConfiguration(s *kubeletconfig.KubeletConfiguration) error {
	var errs []error
	if _, err := resource.ParseQuantity(s.ContainerLogMaxSize); err != nil {
		errs = append(errs, fmt.Errorf("containerLogMaxSize: %w", err))
	}
	if *s.ContainerLogMaxFiles <= 1 {
		errs = append(errs, errors.New("containerLogMaxFiles: must be greater than 1"))
	}
	if d := s.CrashLoopBackOff.MaxContainerRestartPeriod.Duration; d < time.Second || d > 5*time.Minute {
		errs = append(errs, errors.New("crashLoopBackOff.maxContainerRestartPeriod: must be between 1s and 300s"))
	}
	if s.MaxPods < 0 {
		errs = append(errs, errors.New("maxPods: must not be negative"))
	}
	errs = append(errs, validateShutdown(s)...)
	for _, address := range s.ClusterDNS {
		if net.ParseIP(address) == nil {
			errs = append(errs, fmt.Errorf("clusterDNS: %q is not an IP address", address))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("KubeletConfiguration: %w", err)
	}
	return nil
}

// validateShutdown checks the grace periods of pods at node shutdown.
func validateShutdown(s *kubeletconfig.KubeletConfiguration) (errs []error) {
	all, critical := s.ShutdownGracePeriod.Duration, s.ShutdownGracePeriodCriticalPods.Duration
	if critical > all {
		errs = append(errs, fmt.Errorf("shutdownGracePeriodCriticalPods %v must be <= shutdownGracePeriod %v", critical, all))
	}
	if all != 0 && all < time.Second {
		errs = append(errs, fmt.Errorf("shutdownGracePeriod %v must be either zero or otherwise >= 1 sec", all))
	}
	if critical != 0 && critical < time.Second {
		errs = append(errs, fmt.Errorf("shutdownGracePeriodCriticalPods %v must be either zero or otherwise >= 1 sec", critical))
	}
	if len(s.ShutdownGracePeriodByPodPriority) > 0 && (all > 0 || critical > 0) {
		errs = append(errs, errors.New("Cannot specify both shutdownGracePeriodByPodPriority and shutdownGracePeriod at the same time"))
	}
	return errs
}

// Kubelet is the configuration of `skiff kubelet`, with upstream's flag names.
type Kubelet struct {
	ClientConnection
	Node
	// RootDir holds the kubelet's state of pods and volumes. The state of skiff's own containerd is in its parent directory.
	RootDir string
	// PodManifestPath is the directory of static pods; the configuration file may name it too.
	PodManifestPath string
	// BootstrapKubeconfig is used to request a client certificate when Kubeconfig does not exist or its certificate has expired. Kubeconfig is
	// then written.
	BootstrapKubeconfig string
	// CertDir holds the certificates that the cluster issues to the node; defaults to pki below RootDir.
	CertDir string
}

// DefaultKubelet is the configuration of a kubelet started without flags.
func DefaultKubelet() Kubelet {
	return Kubelet{ClientConnection: defaultClientConnection(), RootDir: filepath.Join(defaultDataDir, "kubelet")}
}

// Flags binds the configuration to command-line flags.
func (c *Kubelet) Flags(groups *FlagGroups) {
	fs := groups.Common(groupGeneric)
	c.ClientConnection.flags(fs)
	fs.StringVar(&c.BootstrapKubeconfig, "bootstrap-kubeconfig", c.BootstrapKubeconfig,
		"Path to the kubeconfig used to request a client certificate when --kubeconfig does not exist. --kubeconfig is then written.")
	fs.StringVar(&c.RootDir, "root-dir", c.RootDir, "Directory for the kubelet's state, such as volumes.")
	fs.StringVar(&c.CertDir, "cert-dir", c.CertDir, "Directory for the certificates of this node. Defaults to pki below --root-dir.")
	fs.StringVar(&c.PodManifestPath, "pod-manifest-path", c.PodManifestPath, "Directory of static pod manifests.")
	c.Node.flags(groups, "hostname-override", "config")
}

// CertificateDir is the directory of the certificates that the cluster issues to the node.
func (c *Kubelet) CertificateDir() string {
	if c.CertDir != "" {
		return c.CertDir
	}
	return filepath.Join(c.RootDir, "pki")
}

// Validate checks the configuration; its errors name the flag at fault.
func (c *Kubelet) Validate() error {
	if !filepath.IsAbs(c.RootDir) {
		return fmt.Errorf("--root-dir: %q is not an absolute path", c.RootDir)
	}
	return errors.Join(c.ClientConnection.validate(), c.Node.validate("hostname-override"))
}
