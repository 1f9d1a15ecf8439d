package config

import (
	"errors"
	"flag"
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

// Node is what the node of this machine runs by, inside `skiff server` as well as alone.
type Node struct {
	// Name of the node; the host's name by default.
	Name string
	// IP is the node's address; by default that of the interface of the default route.
	IP string
	// ConfigFile is a KubeletConfiguration.
	ConfigFile string
	// ContainerRuntimeEndpoint is the socket of a runtime that runs already. Without it skiff runs its own.
	ContainerRuntimeEndpoint string
	// Labels and Taints are those a new node registers with.
	Labels, Taints []string
	// ImageCredentialProviderConfig names a CredentialProviderConfig, ImageCredentialProviderBinDir the directory of its programs.
	ImageCredentialProviderConfig, ImageCredentialProviderBinDir string
}

// Flags binds the settings to command-line flags. prefix stands before the names that are the node's alone.
func (c *Node) flags(fs *flag.FlagSet, name, config string) {
	fs.StringVar(&c.Name, name, c.Name, "name of this node; default: the host's name")
	fs.StringVar(&c.IP, "node-ip", c.IP, "address of this node, two with a comma for two IP families; default: that of the interface of the default route")
	fs.StringVar(&c.ConfigFile, config, c.ConfigFile, "KubeletConfiguration file")
	fs.StringVar(&c.ContainerRuntimeEndpoint, "container-runtime-endpoint", c.ContainerRuntimeEndpoint, "socket of a container runtime that runs already; default: skiff runs its own containerd")
	fs.Var((*commaList)(&c.Labels), "node-labels", "labels this node registers with: key=value,…")
	fs.StringVar(&c.ImageCredentialProviderConfig, "image-credential-provider-config", c.ImageCredentialProviderConfig, "CredentialProviderConfig file or directory: programs that give credentials for registries")
	fs.StringVar(&c.ImageCredentialProviderBinDir, "image-credential-provider-bin-dir", c.ImageCredentialProviderBinDir, "directory of those programs")
	fs.Var((*commaList)(&c.Taints), "register-with-taints", "taints this node registers with: key=value:effect,…")
}

func (c *Node) validate(nameFlag string) error {
	var errs []error
	if c.Name != "" {
		if wrong := validation.IsDNS1123Subdomain(c.Name); len(wrong) > 0 {
			errs = append(errs, fmt.Errorf("--%s: %q is not a node's name: %s", nameFlag, c.Name, strings.Join(wrong, "; ")))
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

// NodeName is the node's name, which is the host's by default.
func (c *Node) NodeName() (string, error) {
	if c.Name != "" {
		return c.Name, nil
	}
	host, err := os.Hostname()
	return strings.ToLower(strings.TrimSpace(host)), err
}

// Settings reads the KubeletConfiguration and fills in what it leaves out.
func (c *Node) Settings() (*kubeletconfig.KubeletConfiguration, error) {
	settings := &kubeletconfig.KubeletConfiguration{}
	if c.ConfigFile != "" {
		data, err := os.ReadFile(c.ConfigFile)
		if err != nil {
			return nil, fmt.Errorf("read KubeletConfiguration: %w", err)
		}
		if err := yaml.UnmarshalStrict(data, settings); err != nil {
			return nil, fmt.Errorf("read KubeletConfiguration %s: %w", c.ConfigFile, err)
		}
		if settings.Kind != "KubeletConfiguration" || settings.APIVersion != kubeletconfig.SchemeGroupVersion.String() {
			return nil, fmt.Errorf("%s is a %s of %s, not a KubeletConfiguration of %s", c.ConfigFile, settings.Kind, settings.APIVersion, kubeletconfig.SchemeGroupVersion)
		}
		if settings.StaticPodPath != "" && !filepath.IsAbs(settings.StaticPodPath) {
			settings.StaticPodPath = filepath.Join(filepath.Dir(c.ConfigFile), settings.StaticPodPath)
		}
	}
	defaultKubeletConfiguration(settings)
	return settings, validateKubeletConfiguration(settings)
}

// defaultKubeletConfiguration fills in upstream's defaults of what skiff uses.
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

// validateShutdown checks how long pods get before the machine goes down.
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

// Kubelet is what `skiff kubelet` runs by, with upstream's flag names.
type Kubelet struct {
	Connection
	Node
	// RootDir is where the kubelet keeps what belongs to pods. The runtime skiff runs, if it does, is beside it.
	RootDir string
	// PodManifestPath is the directory of static pods; the configuration file may name it too.
	PodManifestPath string
	// BootstrapKubeconfig is by what the node introduces itself while Kubeconfig is not there or no longer good; Kubeconfig is written then.
	BootstrapKubeconfig string
	// CertDir is where the certificates are kept that the cluster gives to the node; pki below RootDir by default.
	CertDir string
}

// DefaultKubelet is the configuration of a kubelet started without flags.
func DefaultKubelet() Kubelet {
	return Kubelet{Connection: defaultConnection(), RootDir: "/var/lib/skiff/kubelet"}
}

// Flags binds the settings to command-line flags.
func (c *Kubelet) Flags(fs *flag.FlagSet) {
	c.Connection.flags(fs)
	c.Node.flags(fs, "hostname-override", "config")
	fs.StringVar(&c.RootDir, "root-dir", c.RootDir, "directory of what belongs to pods")
	fs.StringVar(&c.PodManifestPath, "pod-manifest-path", c.PodManifestPath, "directory of static pods")
	fs.StringVar(&c.BootstrapKubeconfig, "bootstrap-kubeconfig", c.BootstrapKubeconfig, "kubeconfig to ask for a certificate with while there is no good --kubeconfig, which is written then")
	fs.StringVar(&c.CertDir, "cert-dir", c.CertDir, "directory of the certificates that the cluster gives to this node; default: pki below --root-dir")
}

// CertificateDirectory is where the certificates are kept that the cluster gives to the node.
func (c *Kubelet) CertificateDir() string {
	if c.CertDir != "" {
		return c.CertDir
	}
	return filepath.Join(c.RootDir, "pki")
}

// Validate checks the settings and names the flag at fault.
func (c *Kubelet) Validate() error {
	if !filepath.IsAbs(c.RootDir) {
		return fmt.Errorf("--root-dir: %q is not an absolute path", c.RootDir)
	}
	return errors.Join(c.Connection.validate(), c.Node.validate("hostname-override"))
}
