package proxy

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kube-proxy/config/v1alpha1"
	"k8s.io/utils/ptr"

	"skiff/internal/configfile"
	"skiff/internal/network/nodeaddr"
)

// Unused are the fields of a KubeProxyConfiguration that have no effect. A file that sets one of them is refused, unless the setting is
// harmless or describes what skiff does anyway.
var Unused = []configfile.Unused{
	{Path: "mode", Accepted: []string{Mode}, Reason: "the proxy uses nftables"},
	{Path: "featureGates", Reason: "skiff has no feature gates"},
	{Path: "iptables", Harmless: true, Reason: "the proxy uses nftables"},
	{Path: "ipvs", Harmless: true, Reason: "the proxy uses nftables"},
	{Path: "winkernel", Harmless: true, Reason: "the proxy runs on Linux"},
	{Path: "windowsRunAsService", Harmless: true, Reason: "the proxy runs on Linux"},
	{Path: "portRange", Harmless: true, Reason: "kube-proxy does not use it either"},
	{Path: "configSyncPeriod", Harmless: true, Reason: "objects are watched, not read again"},
	{Path: "clientConnection.acceptContentTypes", Harmless: true, Reason: "the proxy always uses protobuf"},
	{Path: "clientConnection.contentType", Accepted: []string{"application/vnd.kubernetes.protobuf"}, Harmless: true, Reason: "the proxy always uses protobuf"},
	{Path: "clientConnection.qps", Harmless: true, Reason: "the API server limits its clients by priority and fairness"},
	{Path: "clientConnection.burst", Harmless: true, Reason: "the API server limits its clients by priority and fairness"},
	{Path: "logging", Harmless: true, Reason: "the log level is set with --log-level"},
	{Path: "showHiddenMetricsForVersion", Harmless: true, Reason: "skiff has no hidden metrics"},
}

// Warnings name the fields of a configuration that are set and have no effect.
func Warnings(c *v1alpha1.KubeProxyConfiguration) []string {
	warnings, _ := configfile.Check(c, Unused)
	return warnings
}

// ReadConfiguration reads a KubeProxyConfiguration file of version kubeproxy.config.k8s.io/v1alpha1.
func ReadConfiguration(path string) (*v1alpha1.KubeProxyConfiguration, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read proxy configuration: %w", err)
	}
	return ParseConfiguration(data)
}

// ParseConfiguration reads a KubeProxyConfiguration. Unknown fields are errors, as in upstream.
func ParseConfiguration(data []byte) (*v1alpha1.KubeProxyConfiguration, error) {
	c := &v1alpha1.KubeProxyConfiguration{}
	if err := configfile.Decode(data, c); err != nil {
		return nil, fmt.Errorf("parse proxy configuration: %w", err)
	}
	if c.Kind != "KubeProxyConfiguration" || c.APIVersion != v1alpha1.SchemeGroupVersion.String() {
		return nil, fmt.Errorf("parse proxy configuration: want KubeProxyConfiguration of %s, got %s of %s", v1alpha1.SchemeGroupVersion, c.Kind, c.APIVersion)
	}
	if _, err := configfile.Check(c, Unused); err != nil {
		return nil, fmt.Errorf("parse proxy configuration: %w", err)
	}
	return c, nil
}

// The default periods, which are kube-proxy's.
const (
	defaultMinSyncPeriod = time.Second
	defaultSyncPeriod    = 30 * time.Second
	defaultMasqueradeBit = 14
)

// SetDefaults sets the fields that are not set to kube-proxy's defaults.
func SetDefaults(c *v1alpha1.KubeProxyConfiguration) {
	healthz, metrics := "0.0.0.0", "127.0.0.1"
	if address, ok := nodeaddr.Parse(c.BindAddress); ok && !address.Is4() {
		healthz, metrics = "::", "::1"
	}
	c.HealthzBindAddress = withPort(cmp.Or(c.HealthzBindAddress, healthz), "10256")
	c.MetricsBindAddress = withPort(cmp.Or(c.MetricsBindAddress, metrics), "10249")
	n := &c.NFTables
	n.MinSyncPeriod.Duration = cmp.Or(n.MinSyncPeriod.Duration, defaultMinSyncPeriod)
	n.SyncPeriod.Duration = cmp.Or(n.SyncPeriod.Duration, defaultSyncPeriod)
	setDefault(&n.MasqueradeBit, defaultMasqueradeBit)
	t := &c.Conntrack
	setDefault(&t.MaxPerCore, 32<<10)
	setDefault(&t.Min, 128<<10)
	setDefault(&t.TCPEstablishedTimeout, metav1.Duration{Duration: 24 * time.Hour})
	setDefault(&t.TCPCloseWaitTimeout, metav1.Duration{Duration: time.Hour})
	c.DetectLocalMode = cmp.Or(c.DetectLocalMode, "ClusterCIDR")
}

func setDefault[T any](field **T, value T) {
	if *field == nil {
		*field = &value
	}
}

// withPort adds a port to an address that has none.
func withPort(address, port string) string {
	if _, ok := nodeaddr.Parse(address); ok {
		return net.JoinHostPort(address, port)
	}
	return address
}

// Validate returns all errors in a configuration with defaults.
func Validate(c *v1alpha1.KubeProxyConfiguration) error {
	var errs []error
	problem := func(field, format string, args ...any) {
		errs = append(errs, fmt.Errorf(field+": "+format, args...))
	}
	for field, address := range map[string]string{"healthzBindAddress": c.HealthzBindAddress, "metricsBindAddress": c.MetricsBindAddress} {
		if _, err := netip.ParseAddrPort(address); err != nil {
			problem(field, "%q is not an IP address with a port", address)
		}
	}
	if c.BindAddress != "" {
		if _, ok := nodeaddr.Parse(c.BindAddress); !ok {
			problem("bindAddress", "%q is not an IP address", c.BindAddress)
		}
	}
	if bit := *c.NFTables.MasqueradeBit; bit < 0 || bit > 31 {
		problem("nftables.masqueradeBit", "%d is not in the range from 0 to 31", bit)
	}
	if c.NFTables.SyncPeriod.Duration <= 0 || c.NFTables.MinSyncPeriod.Duration < 0 || c.NFTables.MinSyncPeriod.Duration > c.NFTables.SyncPeriod.Duration {
		problem("nftables.syncPeriod", "must be greater than 0 and not less than minSyncPeriod")
	}
	if a := ptr.Deref(c.OOMScoreAdj, 0); a < -1000 || a > 1000 {
		problem("oomScoreAdj", "%d is not in the range from -1000 to 1000", a)
	}
	if *c.Conntrack.MaxPerCore < 0 || *c.Conntrack.Min < 0 {
		problem("conntrack.maxPerCore", "must not be negative")
	}
	if _, err := ParseNodePortAddresses(c.NodePortAddresses); err != nil {
		problem("nodePortAddresses", "%w", err)
	}
	if _, _, err := LocalTrafficOf(c); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// LocalTrafficOf returns how packets of pods are recognized, and whether it is by the node's pod CIDRs, which are in the Node object.
func LocalTrafficOf(c *v1alpha1.KubeProxyConfiguration) (local LocalTraffic, byNodeCIDR bool, err error) {
	switch c.DetectLocalMode {
	case "ClusterCIDR":
		for text := range strings.SplitSeq(c.ClusterCIDR, ",") {
			if text = strings.TrimSpace(text); text == "" {
				continue
			}
			prefix, err := netip.ParsePrefix(text)
			if err != nil {
				return local, false, fmt.Errorf("clusterCIDR: %q is not a CIDR", text)
			}
			local.CIDRs = append(local.CIDRs, prefix.Masked())
		}
		if len(local.CIDRs) > 2 || len(local.CIDRs) == 2 && local.CIDRs[0].Addr().Is4() == local.CIDRs[1].Addr().Is4() {
			return local, false, errors.New("clusterCIDR: at most one CIDR of each family")
		}
		return local, false, nil
	case "NodeCIDR":
		return local, true, nil
	case "BridgeInterface":
		local.Interface = c.DetectLocal.BridgeInterface
		if len(local.Interface) == 0 || len(local.Interface) > 15 {
			return local, false, fmt.Errorf("detectLocal.bridgeInterface: %q is not the name of an interface", local.Interface)
		}
		return local, false, nil
	case "InterfaceNamePrefix":
		local.InterfacePrefix = c.DetectLocal.InterfaceNamePrefix
		if len(local.InterfacePrefix) == 0 || len(local.InterfacePrefix) > 15 {
			return local, false, fmt.Errorf("detectLocal.interfaceNamePrefix: %q is not the beginning of an interface's name", local.InterfacePrefix)
		}
		return local, false, nil
	}
	return local, false, fmt.Errorf("detectLocalMode: %q is not one of ClusterCIDR, NodeCIDR, BridgeInterface, InterfaceNamePrefix", c.DetectLocalMode)
}

// ApplyConntrack sets the limits of connection tracking. It returns what could not be set: /proc/sys may be read-only.
func ApplyConntrack(c v1alpha1.KubeProxyConntrackConfiguration) error {
	var errs []error
	set := func(name string, value int64) {
		path := filepath.Join("/proc/sys/net/netfilter", name)
		text := strconv.FormatInt(value, 10)
		if now, err := os.ReadFile(path); err == nil && strings.TrimSpace(string(now)) == text {
			return
		}
		if err := os.WriteFile(path, []byte(text), 0); err != nil {
			errs = append(errs, fmt.Errorf("set %s to %s: %w", name, text, err))
		}
	}
	if perCore := int64(*c.MaxPerCore); perCore > 0 {
		set("nf_conntrack_max", max(perCore*int64(runtime.NumCPU()), int64(*c.Min)))
	}
	timeout := func(name string, d time.Duration) {
		if d > 0 {
			set(name, int64(d.Seconds()))
		}
	}
	timeout("nf_conntrack_tcp_timeout_established", c.TCPEstablishedTimeout.Duration)
	timeout("nf_conntrack_tcp_timeout_close_wait", c.TCPCloseWaitTimeout.Duration)
	timeout("nf_conntrack_udp_timeout", c.UDPTimeout.Duration)
	timeout("nf_conntrack_udp_timeout_stream", c.UDPStreamTimeout.Duration)
	if c.TCPBeLiberal {
		set("nf_conntrack_tcp_be_liberal", 1)
	}
	return errors.Join(errs...)
}
