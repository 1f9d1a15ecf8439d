package config

import (
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"math"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/cpuset"
	"k8s.io/utils/ptr"

	"skiff/internal/configfile"
)

// KubeletConfiguration reads the configuration file, if there is one, applies the flags that have a field in it and the defaults, and validates
// the result. KubeletWarnings are about the result.
func (c *Node) KubeletConfiguration() (*kubeletconfig.KubeletConfiguration, error) {
	s := &kubeletconfig.KubeletConfiguration{}
	if c.ConfigFile != "" {
		data, err := os.ReadFile(c.ConfigFile)
		if err != nil {
			return nil, fmt.Errorf("read KubeletConfiguration: %w", err)
		}
		if err := configfile.Decode(data, s); err != nil {
			return nil, fmt.Errorf("read KubeletConfiguration %s: %w", c.ConfigFile, err)
		}
		if s.Kind != "KubeletConfiguration" || s.APIVersion != kubeletconfig.SchemeGroupVersion.String() {
			return nil, fmt.Errorf("%s is a %s of %s, not a KubeletConfiguration of %s", c.ConfigFile, s.Kind, s.APIVersion, kubeletconfig.SchemeGroupVersion)
		}
		if _, err := configfile.Check(s, KubeletUnused); err != nil {
			return nil, fmt.Errorf("KubeletConfiguration %s: %w", c.ConfigFile, err)
		}
		if s.StaticPodPath != "" && !filepath.IsAbs(s.StaticPodPath) {
			s.StaticPodPath = filepath.Join(filepath.Dir(c.ConfigFile), s.StaticPodPath)
		}
	}
	if err := c.overrideFields(s); err != nil {
		return nil, err
	}
	defaultKubeletConfiguration(s)
	return s, validateKubeletConfiguration(s)
}

// overrideFields sets the fields for which there are flags, which take precedence.
func (c *Node) overrideFields(s *kubeletconfig.KubeletConfiguration) error {
	if c.ContainerRuntimeEndpoint != "" {
		s.ContainerRuntimeEndpoint = c.ContainerRuntimeEndpoint
	}
	if len(c.Taints) == 0 {
		return nil
	}
	taints, err := parseTaints(c.Taints)
	if err != nil {
		return fmt.Errorf("--register-with-taints: %w", err)
	}
	s.RegisterWithTaints = taints
	return nil
}

// parseTaints parses taints of the form key=value:effect or key:effect.
func parseTaints(texts []string) ([]corev1.Taint, error) {
	var taints []corev1.Taint
	for _, text := range texts {
		pair, effect, _ := strings.Cut(text, ":")
		key, value, _ := strings.Cut(pair, "=")
		taint := corev1.Taint{Key: key, Value: value, Effect: corev1.TaintEffect(effect)}
		if err := validateTaint(&taint); err != nil {
			return nil, fmt.Errorf("%q: %w", text, err)
		}
		taints = append(taints, taint)
	}
	return taints, nil
}

// validateTaint checks a taint that the node registers with.
func validateTaint(taint *corev1.Taint) error {
	if wrong := validation.IsQualifiedName(taint.Key); len(wrong) > 0 {
		return fmt.Errorf("invalid key %q: %s", taint.Key, strings.Join(wrong, "; "))
	}
	if wrong := validation.IsValidLabelValue(taint.Value); len(wrong) > 0 {
		return fmt.Errorf("invalid value %q: %s", taint.Value, strings.Join(wrong, "; "))
	}
	switch taint.Effect {
	case corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute:
	default:
		return fmt.Errorf("invalid effect %q: must be NoSchedule, PreferNoSchedule or NoExecute", taint.Effect)
	}
	if taint.TimeAdded != nil {
		return errors.New("timeAdded must not be set")
	}
	return nil
}

// KubeletWarnings name the fields of a KubeletConfiguration that are set and have no effect.
func KubeletWarnings(s *kubeletconfig.KubeletConfiguration) []string {
	warnings, _ := configfile.Check(s, KubeletUnused)
	return warnings
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
	if s.NodeStatusReportFrequency.Duration == 0 && s.NodeStatusUpdateFrequency.Duration != 0 {
		s.NodeStatusReportFrequency = s.NodeStatusUpdateFrequency
	}
	duration(&s.NodeStatusUpdateFrequency, 10*time.Second)
	duration(&s.NodeStatusReportFrequency, 5*time.Minute)
	duration(&s.ImageMinimumGCAge, 2*time.Minute)
	duration(&s.EvictionPressureTransitionPeriod, 5*time.Minute)
	duration(&s.CPUManagerReconcilePeriod, 10*time.Second)
	setDefault(&s.CPUCFSQuota, true)
	if s.CPUCFSQuotaPeriod == nil {
		s.CPUCFSQuotaPeriod = &metav1.Duration{Duration: 100 * time.Millisecond}
	}
	setDefault(&s.ImageGCHighThresholdPercent, 85)
	setDefault(&s.ImageGCLowThresholdPercent, 80)
	setDefault(&s.SerializeImagePulls, s.MaxParallelImagePulls == nil || *s.MaxParallelImagePulls < 2)
	setDefault(&s.ContainerLogMaxFiles, 5)
	setDefault(&s.PodPidsLimit, -1)
	setDefault(&s.EnableServer, true)
	setDefault(&s.EnableSystemLogHandler, true)
	setDefault(&s.RegisterNode, true)
	setDefault(&s.HealthzPort, 10248)
	setDefault(&s.NodeStatusMaxImages, 50)
	setDefault(&s.FailSwapOn, false)
	setDefault(&s.SingleProcessOOMKill, false)
	setDefault(&s.Authentication.Anonymous.Enabled, false)
	setDefault(&s.MergeDefaultEvictionSettings, false)
	if s.ContainerLogMonitorInterval == nil {
		s.ContainerLogMonitorInterval = &metav1.Duration{Duration: 10 * time.Second}
	}
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
	text(&s.HealthzBindAddress, "127.0.0.1")
	text(&s.CgroupRoot, "/")
	text(&s.CPUManagerPolicy, "none")
	text(&s.MemoryManagerPolicy, kubeletconfig.NoneMemoryManagerPolicy)
	text(&s.TopologyManagerPolicy, kubeletconfig.NoneTopologyManagerPolicy)
	text(&s.TopologyManagerScope, kubeletconfig.ContainerTopologyManagerScope)
	if s.MemoryReservationPolicy == "" {
		s.MemoryReservationPolicy = kubeletconfig.NoneMemoryReservationPolicy
	}
	if s.CrashLoopBackOff.MaxContainerRestartPeriod == nil {
		s.CrashLoopBackOff.MaxContainerRestartPeriod = &metav1.Duration{Duration: 5 * time.Minute}
	}
	mergeEvictionHard(s)
	if s.EnforceNodeAllocatable == nil {
		s.EnforceNodeAllocatable = []string{EnforcePods}
	}
}

// mergeEvictionHard sets the default hard eviction thresholds. A configuration with thresholds of its own has the others only if it says so.
func mergeEvictionHard(s *kubeletconfig.KubeletConfiguration) {
	if s.EvictionHard != nil && !*s.MergeDefaultEvictionSettings {
		return
	}
	merged := map[string]string{
		"memory.available": "100Mi", "nodefs.available": "10%", "nodefs.inodesFree": "5%", "imagefs.available": "15%", "imagefs.inodesFree": "5%",
	}
	maps.Copy(merged, s.EvictionHard)
	s.EvictionHard = merged
}

func setDefault[T any](field **T, value T) {
	if *field == nil {
		*field = &value
	}
}

func validateKubeletConfiguration(s *kubeletconfig.KubeletConfiguration) error {
	errs := validateBounds(s)
	if _, err := resource.ParseQuantity(s.ContainerLogMaxSize); err != nil {
		errs = append(errs, fmt.Errorf("containerLogMaxSize: %w", err))
	}
	errs = append(errs, validateShutdown(s)...)
	errs = append(errs, validateReserved(s)...)
	errs = append(errs, validateResourceManagers(s)...)
	errs = append(errs, validateNodeServer(s)...)
	for _, address := range s.ClusterDNS {
		if net.ParseIP(address) == nil {
			errs = append(errs, fmt.Errorf("clusterDNS: %q is not an IP address", address))
		}
	}
	for i := range s.RegisterWithTaints {
		if err := validateTaint(&s.RegisterWithTaints[i]); err != nil {
			errs = append(errs, fmt.Errorf("registerWithTaints: %w", err))
		}
	}
	if p := s.MaxParallelImagePulls; p != nil && *p > 1 && *s.SerializeImagePulls {
		errs = append(errs, errors.New("maxParallelImagePulls: must not be greater than 1 unless serializeImagePulls is false"))
	}
	if b := s.MemorySwap.SwapBehavior; b != "" && b != "NoSwap" && b != "LimitedSwap" {
		errs = append(errs, fmt.Errorf("memorySwap.swapBehavior: %q is not NoSwap or LimitedSwap", b))
	}
	errs = append(errs, validateCgroups(s)...)
	if s.PodLogsDir != "" && (!filepath.IsAbs(s.PodLogsDir) || filepath.Clean(s.PodLogsDir) != s.PodLogsDir) {
		errs = append(errs, fmt.Errorf("podLogsDir: %q is not a normalized absolute path", s.PodLogsDir))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("KubeletConfiguration: %w", err)
	}
	return nil
}

// validateCgroups checks the settings of the cgroups of pods.
func validateCgroups(s *kubeletconfig.KubeletConfiguration) (errs []error) {
	switch s.CgroupDriver {
	case "", "cgroupfs", "systemd":
	default:
		errs = append(errs, fmt.Errorf("cgroupDriver: %q is not cgroupfs or systemd", s.CgroupDriver))
	}
	if f := s.MemoryThrottlingFactor; f != nil && (*f <= 0 || *f > 1) {
		errs = append(errs, fmt.Errorf("memoryThrottlingFactor: %v must be greater than 0 and less than or equal to 1.0", *f))
	}
	switch s.MemoryReservationPolicy {
	case kubeletconfig.NoneMemoryReservationPolicy, kubeletconfig.TieredReservationMemoryReservationPolicy:
	default:
		errs = append(errs, fmt.Errorf("memoryReservationPolicy: %q is not None or TieredReservation", s.MemoryReservationPolicy))
	}
	return errs
}

// validateBounds checks numbers and durations against upstream's bounds.
func validateBounds(s *kubeletconfig.KubeletConfiguration) (errs []error) {
	const noMax = math.MaxInt64
	for _, n := range []struct {
		name            string
		value, min, max int64
	}{
		{"nodeLeaseDurationSeconds", int64(s.NodeLeaseDurationSeconds), 1, noMax},
		{"healthzPort", int64(*s.HealthzPort), 0, math.MaxUint16},
		{"port", int64(s.Port), 1, math.MaxUint16},
		{"imageGCHighThresholdPercent", int64(*s.ImageGCHighThresholdPercent), 0, 100},
		{"imageGCLowThresholdPercent", int64(*s.ImageGCLowThresholdPercent), 0, 100},
		{"nodeStatusMaxImages", int64(*s.NodeStatusMaxImages), -1, noMax},
		{"oomScoreAdj", int64(ptr.Deref(s.OOMScoreAdj, 0)), -1000, 1000},
		{"maxOpenFiles", s.MaxOpenFiles, 0, noMax},
		{"maxPods", int64(s.MaxPods), 0, noMax},
		{"podsPerCore", int64(s.PodsPerCore), 0, noMax},
		{"registryBurst", int64(s.RegistryBurst), 0, noMax},
		{"registryPullQPS", int64(*s.RegistryPullQPS), 0, noMax},
		{"maxParallelImagePulls", int64(ptr.Deref(s.MaxParallelImagePulls, 1)), 1, noMax},
		{"containerLogMaxFiles", int64(*s.ContainerLogMaxFiles), 2, noMax},
	} {
		if n.value < n.min || n.value > n.max {
			errs = append(errs, fmt.Errorf("%s: %d is not between %d and %d, inclusive", n.name, n.value, n.min, n.max))
		}
	}
	for _, d := range []struct {
		name            string
		value, min, max time.Duration
	}{
		{"cpuCFSQuotaPeriod", s.CPUCFSQuotaPeriod.Duration, time.Millisecond, time.Second},
		{"imageMinimumGCAge", s.ImageMinimumGCAge.Duration, 0, noMax},
		{"imageMaximumGCAge", s.ImageMaximumGCAge.Duration, 0, noMax},
		{"containerLogMonitorInterval", s.ContainerLogMonitorInterval.Duration, 3 * time.Second, noMax},
		{"crashLoopBackOff.maxContainerRestartPeriod", s.CrashLoopBackOff.MaxContainerRestartPeriod.Duration, time.Second, 5 * time.Minute},
	} {
		if d.value < d.min || d.value > d.max {
			errs = append(errs, fmt.Errorf("%s: %v is not between %v and %v, inclusive", d.name, d.value, d.min, d.max))
		}
	}
	if age := s.ImageMaximumGCAge.Duration; age != 0 && age <= s.ImageMinimumGCAge.Duration {
		errs = append(errs, fmt.Errorf("imageMaximumGCAge: %v must be greater than imageMinimumGCAge %v", age, s.ImageMinimumGCAge.Duration))
	}
	return errs
}

// The values of enforceNodeAllocatable. Those of reserved resources are also there with EnforceOnlyCPU.
const (
	EnforcePods           = "pods"
	EnforceSystemReserved = "system-reserved"
	EnforceKubeReserved   = "kube-reserved"
	EnforceOnlyCPU        = "-compressible"
)

// validateReserved checks the reserved resources, and for whom they are enforced.
func validateReserved(s *kubeletconfig.KubeletConfiguration) (errs []error) {
	for name, amounts := range map[string]map[string]string{"systemReserved": s.SystemReserved, "kubeReserved": s.KubeReserved} {
		for resourceName, amount := range amounts {
			if q, err := resource.ParseQuantity(amount); err != nil {
				errs = append(errs, fmt.Errorf("%s.%s: %w", name, resourceName, err))
			} else if q.Sign() < 0 {
				errs = append(errs, fmt.Errorf("%s.%s: must not be negative", name, resourceName))
			}
		}
	}
	for _, key := range s.EnforceNodeAllocatable {
		switch key {
		case EnforcePods:
		case EnforceSystemReserved, EnforceSystemReserved + EnforceOnlyCPU:
			if s.SystemReservedCgroup == "" {
				errs = append(errs, fmt.Errorf("systemReservedCgroup: must be specified when %q is included in enforceNodeAllocatable", key))
			}
		case EnforceKubeReserved, EnforceKubeReserved + EnforceOnlyCPU:
			if s.KubeReservedCgroup == "" {
				errs = append(errs, fmt.Errorf("kubeReservedCgroup: must be specified when %q is included in enforceNodeAllocatable", key))
			}
		case "none":
			if len(s.EnforceNodeAllocatable) > 1 {
				errs = append(errs, errors.New("enforceNodeAllocatable: may not contain additional enforcements when \"none\" is specified"))
			}
		default:
			errs = append(errs, fmt.Errorf("enforceNodeAllocatable: %q is not pods, system-reserved, system-reserved-compressible, kube-reserved, kube-reserved-compressible or none", key))
		}
	}
	if s.ReservedSystemCPUs != "" && (s.SystemReservedCgroup != "" || s.KubeReservedCgroup != "") {
		errs = append(errs, errors.New("reservedSystemCPUs: cannot be used with systemReservedCgroup or kubeReservedCgroup"))
	}
	return errs
}

// validateResourceManagers checks the settings of the CPU manager, the memory manager and the topology manager.
func validateResourceManagers(s *kubeletconfig.KubeletConfiguration) (errs []error) {
	oneOf := func(field, value string, allowed ...string) {
		if !slices.Contains(allowed, value) {
			errs = append(errs, fmt.Errorf("%s: %q must be one of: %q", field, value, allowed))
		}
	}
	oneOf("cpuManagerPolicy", s.CPUManagerPolicy, "none", "static")
	oneOf("memoryManagerPolicy", s.MemoryManagerPolicy, kubeletconfig.NoneMemoryManagerPolicy, kubeletconfig.StaticMemoryManagerPolicy)
	oneOf("topologyManagerPolicy", s.TopologyManagerPolicy, kubeletconfig.NoneTopologyManagerPolicy, kubeletconfig.BestEffortTopologyManagerPolicy,
		kubeletconfig.RestrictedTopologyManagerPolicy, kubeletconfig.SingleNumaNodeTopologyManagerPolicy)
	oneOf("topologyManagerScope", s.TopologyManagerScope, kubeletconfig.ContainerTopologyManagerScope, kubeletconfig.PodTopologyManagerScope)
	if s.CPUManagerReconcilePeriod.Duration < 0 {
		errs = append(errs, fmt.Errorf("cpuManagerReconcilePeriod: %v must not be negative", s.CPUManagerReconcilePeriod.Duration))
	}
	if _, err := cpuset.Parse(s.ReservedSystemCPUs); err != nil {
		errs = append(errs, fmt.Errorf("reservedSystemCPUs: unable to parse %v, error: %w", s.ReservedSystemCPUs, err))
	}
	for _, name := range slices.Sorted(maps.Keys(s.FeatureGates)) {
		if err := validateGate(name, s.FeatureGates[name], switchableByNode); err != nil {
			errs = append(errs, fmt.Errorf("featureGates: %w", err))
		}
	}
	return append(errs, validateReservedMemory(s.ReservedMemory)...)
}

// validateReservedMemory checks the memory that is reserved for the system at NUMA nodes.
func validateReservedMemory(reservations []kubeletconfig.MemoryReservation) (errs []error) {
	type reserved struct {
		node int32
		name corev1.ResourceName
	}
	found := map[reserved]bool{}
	for _, r := range reservations {
		for _, name := range slices.Sorted(maps.Keys(r.Limits)) {
			amount, key := r.Limits[name], reserved{r.NumaNode, name}
			if name != corev1.ResourceMemory && !strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix) {
				errs = append(errs, fmt.Errorf("reservedMemory: the limit type %q for NUMA node %d is not supported, only %v is accepted", name, r.NumaNode,
					[]corev1.ResourceName{corev1.ResourceMemory, corev1.ResourceHugePagesPrefix + "<HugePageSize>"}))
			}
			if amount.IsZero() {
				errs = append(errs, fmt.Errorf("reservedMemory: reserved memory may not be zero for NUMA node %d and resource %q", r.NumaNode, name))
			}
			if found[key] {
				errs = append(errs, fmt.Errorf("reservedMemory: the reserved memory has a duplicate value for NUMA node %d and resource %q", r.NumaNode, name))
			}
			found[key] = true
		}
	}
	return errs
}

// validateNodeServer checks the settings of the kubelet's server and of its health checks.
func validateNodeServer(s *kubeletconfig.KubeletConfiguration) (errs []error) {
	if _, err := NodeServerTLS(s); err != nil {
		errs = append(errs, err)
	}
	if net.ParseIP(s.HealthzBindAddress) == nil {
		errs = append(errs, fmt.Errorf("healthzBindAddress: %q is not an IP address", s.HealthzBindAddress))
	}
	return errs
}

// NodeServerTLS is the TLS configuration of the kubelet's server, without certificates.
func NodeServerTLS(s *kubeletconfig.KubeletConfiguration) (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	switch s.TLSMinVersion {
	case "", "VersionTLS12":
	case "VersionTLS13":
		c.MinVersion = tls.VersionTLS13
	default:
		return nil, fmt.Errorf("tlsMinVersion: %q is not VersionTLS12 or VersionTLS13", s.TLSMinVersion)
	}
	suites := map[string]uint16{}
	for _, suite := range tls.CipherSuites() {
		suites[suite.Name] = suite.ID
	}
	for _, name := range s.TLSCipherSuites {
		id, ok := suites[name]
		if !ok {
			return nil, fmt.Errorf("tlsCipherSuites: %q is not a secure cipher suite of TLS 1.2 or 1.3", name)
		}
		c.CipherSuites = append(c.CipherSuites, id)
	}
	for _, id := range s.TLSCurvePreferences {
		if id <= 0 || id > math.MaxUint16 {
			return nil, fmt.Errorf("tlsCurvePreferences: %d is not the ID of a key exchange mechanism", id)
		}
		c.CurvePreferences = append(c.CurvePreferences, tls.CurveID(id))
	}
	return c, nil
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
