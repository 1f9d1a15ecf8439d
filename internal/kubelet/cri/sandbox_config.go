package cri

import (
	"fmt"
	"maps"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"skiff/internal/container"
	"skiff/internal/kubelet/environment"
)

// PodSettings are what a sandbox needs besides its pod's spec.
type PodSettings struct {
	Host Host
	// Attempt counts the sandboxes the pod has had before.
	Attempt uint32
	// LogDirectory is the directory of the containers' logs (PodLogDirectory).
	LogDirectory string
	CgroupParent string
	DNS          *environment.DNSConfig
	// Hostname is the hostname in the pod's UTS namespace. Pods on the host's network do not have their own.
	Hostname string
	// UserNamespace is nil for pods in the host's user namespace.
	UserNamespace *UserNamespace
	// ExtraGroups are supplemental groups required by the pod's persistent volumes.
	ExtraGroups []int64
}

// PodLogDirectory is the directory of a pod's logs below the directory of all logs.
func PodLogDirectory(logs string, pod *corev1.Pod) string {
	return filepath.Join(logs, fmt.Sprintf("%s_%s_%s", pod.Namespace, pod.Name, pod.UID))
}

// NewSandboxConfig returns the configuration of a pod's sandbox.
func NewSandboxConfig(pod *corev1.Pod, s PodSettings) (*SandboxConfig, error) {
	config, err := sandboxConfig(pod, s)
	if err != nil {
		return nil, err
	}
	return &SandboxConfig{config}, nil
}

func sandboxConfig(pod *corev1.Pod, s PodSettings) (*runtimeapi.PodSandboxConfig, error) {
	labels := map[string]string{}
	maps.Copy(labels, pod.Labels)
	maps.Copy(labels, podLabels(pod))
	security, err := sandboxSecurity(pod, s)
	if err != nil {
		return nil, err
	}
	config := &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: pod.Name, Namespace: pod.Namespace, Uid: string(pod.UID), Attempt: s.Attempt},
		Labels:       labels,
		Annotations:  pod.Annotations,
		LogDirectory: s.LogDirectory,
		PortMappings: portMappings(pod),
		Linux: &runtimeapi.LinuxPodSandboxConfig{
			CgroupParent:    s.CgroupParent,
			SecurityContext: security,
			Sysctls:         sysctls(pod),
			Overhead:        overhead(pod, s.Host),
			Resources:       sandboxResources(pod, s.Host),
		},
	}
	if s.DNS != nil {
		config.DnsConfig = &runtimeapi.DNSConfig{Servers: s.DNS.Servers, Searches: s.DNS.Searches, Options: s.DNS.Options}
	}
	if !pod.Spec.HostNetwork {
		config.Hostname = s.Hostname
	}
	return config, nil
}

func podLabels(pod *corev1.Pod) map[string]string {
	return map[string]string{LabelPodName: pod.Name, LabelPodNamespace: pod.Namespace, LabelPodUID: string(pod.UID)}
}

func sysctls(pod *corev1.Pod) map[string]string {
	values := map[string]string{}
	if pod.Spec.SecurityContext != nil {
		for _, sysctl := range pod.Spec.SecurityContext.Sysctls {
			values[sysctl.Name] = sysctl.Value
		}
	}
	return values
}

// sandboxSecurity is the security context of the sandbox's own process. Its seccomp profile is the node's for sandboxes, or else the
// runtime's default, and never the pod's: that one may be too strict for the pause container.
func sandboxSecurity(pod *corev1.Pod, s PodSettings) (*runtimeapi.LinuxSandboxSecurityContext, error) {
	security := &runtimeapi.LinuxSandboxSecurityContext{
		NamespaceOptions: namespaces(pod, s.UserNamespace),
		Seccomp:          &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault},
	}
	if s.Host.SandboxSeccomp != "" {
		security.Seccomp = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: s.Host.SandboxSeccomp}
	}
	for _, c := range container.All(&pod.Spec) {
		if c.SecurityContext != nil && ptr.Deref(c.SecurityContext.Privileged, false) {
			security.Privileged = true
		}
	}
	var err error
	security.SupplementalGroups, security.SupplementalGroupsPolicy, err = supplementalGroups(pod, s.ExtraGroups)
	if err != nil {
		return nil, err
	}
	if context := pod.Spec.SecurityContext; context != nil {
		security.RunAsUser, security.RunAsGroup = int64Value(context.RunAsUser), int64Value(context.RunAsGroup)
		security.SelinuxOptions = selinuxOptions(context.SELinuxOptions)
	}
	return security, nil
}

// namespaces returns which namespaces a pod shares with the host, and whether its containers share a process namespace.
func namespaces(pod *corev1.Pod, user *UserNamespace) *runtimeapi.NamespaceOption {
	mode := func(host bool) runtimeapi.NamespaceMode {
		if host {
			return runtimeapi.NamespaceMode_NODE
		}
		return runtimeapi.NamespaceMode_POD
	}
	options := &runtimeapi.NamespaceOption{
		Ipc: mode(pod.Spec.HostIPC), Network: mode(pod.Spec.HostNetwork), Pid: runtimeapi.NamespaceMode_CONTAINER, UsernsOptions: user.message(),
	}
	switch {
	case pod.Spec.HostPID:
		options.Pid = runtimeapi.NamespaceMode_NODE
	case ptr.Deref(pod.Spec.ShareProcessNamespace, false):
		options.Pid = runtimeapi.NamespaceMode_POD
	}
	return options
}

func supplementalGroups(pod *corev1.Pod, extra []int64) ([]int64, runtimeapi.SupplementalGroupsPolicy, error) {
	var groups []int64
	policy := runtimeapi.SupplementalGroupsPolicy_Merge
	if context := pod.Spec.SecurityContext; context != nil {
		if context.FSGroup != nil {
			groups = append(groups, *context.FSGroup)
		}
		groups = append(groups, context.SupplementalGroups...)
		if context.SupplementalGroupsPolicy != nil {
			value, ok := runtimeapi.SupplementalGroupsPolicy_value[string(*context.SupplementalGroupsPolicy)]
			if !ok {
				return nil, 0, fmt.Errorf("unsupported supplementalGroupsPolicy: %s", *context.SupplementalGroupsPolicy)
			}
			policy = runtimeapi.SupplementalGroupsPolicy(value)
		}
	}
	return append(groups, extra...), policy, nil
}

// portMappings are the ports of regular containers and sidecars.
func portMappings(pod *corev1.Pod) []*runtimeapi.PortMapping {
	var mappings []*runtimeapi.PortMapping
	for kind, c := range container.All(&pod.Spec) {
		if kind == container.Ephemeral || kind == container.Init && !isSidecar(c) {
			continue
		}
		named := map[string]bool{}
		for _, port := range c.Ports {
			name := port.Name
			if name == "" {
				name = fmt.Sprintf("%s-%s:%d:%d", port.Protocol, port.HostIP, port.ContainerPort, port.HostPort)
			}
			if named[name] {
				continue
			}
			named[name] = true
			mappings = append(mappings, &runtimeapi.PortMapping{
				Protocol: protocol(port.Protocol), ContainerPort: port.ContainerPort, HostPort: port.HostPort, HostIp: port.HostIP,
			})
		}
	}
	return mappings
}

func protocol(p corev1.Protocol) runtimeapi.Protocol {
	switch p {
	case corev1.ProtocolUDP:
		return runtimeapi.Protocol_UDP
	case corev1.ProtocolSCTP:
		return runtimeapi.Protocol_SCTP
	}
	return runtimeapi.Protocol_TCP
}

func overhead(pod *corev1.Pod, h Host) *runtimeapi.LinuxContainerResources {
	if pod.Spec.Overhead == nil {
		return &runtimeapi.LinuxContainerResources{}
	}
	h.UnlimitedCPUQuota = false
	cpu := pod.Spec.Overhead.Cpu()
	return h.limits(cpu, cpu, pod.Spec.Overhead.Memory())
}

// sandboxResources are the sums over the pod. Runtimes that run pods in virtual machines use them to size the machine.
func sandboxResources(pod *corev1.Pod, h Host) *runtimeapi.LinuxContainerResources {
	options := resourcehelper.PodResourcesOptions{ExcludeOverhead: true}
	requests, limits := resourcehelper.PodRequests(pod, options), resourcehelper.PodLimits(pod, options)
	cpu := limits.Cpu()
	if _, requested := requests[corev1.ResourceCPU]; requested {
		cpu = requests.Cpu()
	}
	return h.limits(cpu, limits.Cpu(), limits.Memory())
}

func isSidecar(c *corev1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

func int64Value(v *int64) *runtimeapi.Int64Value {
	if v == nil {
		return nil
	}
	return &runtimeapi.Int64Value{Value: *v}
}

func selinuxOptions(o *corev1.SELinuxOptions) *runtimeapi.SELinuxOption {
	if o == nil {
		return nil
	}
	return &runtimeapi.SELinuxOption{User: o.User, Role: o.Role, Type: o.Type, Level: o.Level}
}
