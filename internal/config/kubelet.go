package config

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	kubeletapis "k8s.io/kubelet/pkg/apis"
)

// Node is the configuration of a node, inside `skiff server` as well as alone.
type Node struct {
	// Name of the node; defaults to the hostname.
	Name string
	// IP is the node's address; defaults to that of the interface of the default route.
	IP string
	// ConfigFile is a KubeletConfiguration.
	ConfigFile string
	// RootDir holds the kubelet's state of pods and volumes; empty: KubeletDir decides.
	RootDir string
	// ContainerRuntimeEndpoint is the socket of a container runtime that is already running. If it is empty, skiff runs its own containerd.
	ContainerRuntimeEndpoint string
	// Labels and Taints are those a new node registers with.
	Labels, Taints []string
	// ImageCredentialProviderConfig is the path of a CredentialProviderConfig, ImageCredentialProviderBinDir the directory of its plugins.
	ImageCredentialProviderConfig, ImageCredentialProviderBinDir string
}

const (
	// KubeletRoot is where programs beside a kubelet expect its directory: CSI and DRA drivers, device plugins, monitoring.
	KubeletRoot = "/var/lib/kubelet"
	// podLogs is where log collectors expect the logs of pods, and beside it, in containers, links to those of containers.
	podLogs = "/var/log/pods"
)

// KubeletDir is the kubelet's directory on a node with a data directory. With another data directory than the default it is below that, so that several
// skiffs on one host are apart. The pods of a node that an earlier version of skiff has set up stay where they are.
func (c *Node) KubeletDir(dataDir string) string {
	below := filepath.Join(dataDir, "kubelet")
	if c.RootDir != "" {
		return c.RootDir
	}
	if filepath.Clean(dataDir) != defaultDataDir {
		return below
	}
	if _, err := os.Stat(filepath.Join(below, "pods")); err == nil {
		return below
	}
	return KubeletRoot
}

// PodLogsDir is the directory of the logs of pods, unless the KubeletConfiguration has it.
func PodLogsDir(kubeletDir string) string {
	if kubeletDir == KubeletRoot {
		return podLogs
	}
	return filepath.Join(kubeletDir, "logs")
}

// rootDirFlag binds the kubelet's directory of a node with a data directory to its flag.
func (c *Node) rootDirFlag(groups *FlagGroups) {
	groups.Advanced(groupNode).StringVar(&c.RootDir, "root-dir", c.RootDir,
		"Directory for the kubelet's state, such as volumes. Defaults to "+KubeletRoot+", or to kubelet below another --data-dir than the default.")
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
	if c.RootDir != "" && !filepath.IsAbs(c.RootDir) {
		errs = append(errs, fmt.Errorf("--root-dir: %q is not an absolute path", c.RootDir))
	}
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
		if err := validateNodeLabel(label); err != nil {
			errs = append(errs, fmt.Errorf("--node-labels: %w", err))
		}
	}
	if _, err := parseTaints(c.Taints); err != nil {
		errs = append(errs, fmt.Errorf("--register-with-taints: %w", err))
	}
	return errors.Join(errs...)
}

// validateNodeLabel checks a label that a node registers with. The API server refuses nodes that give themselves other labels of Kubernetes.
func validateNodeLabel(label string) error {
	key, value, found := strings.Cut(label, "=")
	if !found {
		return fmt.Errorf("%q is not key=value", label)
	}
	if wrong := validation.IsQualifiedName(key); len(wrong) > 0 {
		return fmt.Errorf("invalid key %q: %s", key, strings.Join(wrong, "; "))
	}
	if wrong := validation.IsValidLabelValue(value); len(wrong) > 0 {
		return fmt.Errorf("invalid value %q of %s: %s", value, key, strings.Join(wrong, "; "))
	}
	domain, _, qualified := strings.Cut(key, "/")
	reserved := func(suffix string) bool {
		return qualified && (domain == suffix || strings.HasSuffix(domain, "."+suffix))
	}
	if (reserved("kubernetes.io") || reserved("k8s.io")) && !kubeletapis.IsKubeletLabel(key) {
		return fmt.Errorf("a node may not give itself the label %q: labels of kubernetes.io and k8s.io must begin with an allowed prefix (%s) or be one of %s",
			key, strings.Join(kubeletapis.KubeletLabelNamespaces(), ", "), strings.Join(kubeletapis.KubeletLabels(), ", "))
	}
	return nil
}

// NodeName returns the node's name, which defaults to the hostname.
func (c *Node) NodeName() (string, error) {
	if c.Name != "" {
		return c.Name, nil
	}
	host, err := os.Hostname()
	return strings.ToLower(strings.TrimSpace(host)), err
}

// Kubelet is the configuration of `skiff kubelet`, with upstream's flag names.
type Kubelet struct {
	ClientConnection
	Node
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
	return Kubelet{ClientConnection: defaultClientConnection(), Node: Node{RootDir: KubeletRoot}}
}

// DataDir is the directory of the state of skiff's own containerd and of the pod network: the parent of a RootDir that is not the default.
func (c *Kubelet) DataDir() string {
	if c.RootDir == KubeletRoot {
		return defaultDataDir
	}
	return filepath.Dir(c.RootDir)
}

// Flags binds the configuration to command-line flags.
func (c *Kubelet) Flags(groups *FlagGroups) {
	fs := groups.Common(groupGeneric)
	c.ClientConnection.flags(fs)
	fs.StringVar(&c.BootstrapKubeconfig, "bootstrap-kubeconfig", c.BootstrapKubeconfig,
		"Path to the kubeconfig used to request a client certificate when --kubeconfig does not exist. --kubeconfig is then written.")
	fs.StringVar(&c.RootDir, "root-dir", c.RootDir, "Directory for the kubelet's state, such as volumes. With another one than the default, skiff's own containerd is beside it.")
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
	if c.RootDir == "" {
		return errors.New("--root-dir: must not be empty")
	}
	return errors.Join(c.ClientConnection.validate(), c.Node.validate("hostname-override"))
}
