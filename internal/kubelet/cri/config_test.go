package cri

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func specPod(change func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "pod", Namespace: "space", UID: "uid", Labels: map[string]string{"app": "x"}, Annotations: map[string]string{"note": "n"}},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: new(int64(30)),
			Containers:                    []corev1.Container{{Name: "main", Image: "image:1", TerminationMessagePath: "/dev/termination-log", TerminationMessagePolicy: "File"}},
		},
	}
	if change != nil {
		change(pod)
	}
	return pod
}

func TestSandboxConfig(t *testing.T) {
	for name, test := range map[string]struct {
		change   func(*corev1.Pod)
		settings func(*PodSettings)
		check    func(*runtimeapi.PodSandboxConfig) bool
	}{
		"names": {nil, nil, func(c *runtimeapi.PodSandboxConfig) bool {
			return c.Metadata.Name == "pod" && c.Metadata.Namespace == "space" && c.Metadata.Uid == "uid" && c.Metadata.Attempt == 2 && c.Hostname == "host" && c.LogDirectory == "/logs/x" &&
				reflect.DeepEqual(c.Labels, map[string]string{"app": "x", "io.kubernetes.pod.name": "pod", "io.kubernetes.pod.namespace": "space", "io.kubernetes.pod.uid": "uid"}) && c.Annotations["note"] == "n"
		}},
		"own namespaces": {nil, nil, func(c *runtimeapi.PodSandboxConfig) bool {
			n := c.Linux.SecurityContext.NamespaceOptions
			return n.Network == runtimeapi.NamespaceMode_POD && n.Ipc == runtimeapi.NamespaceMode_POD && n.Pid == runtimeapi.NamespaceMode_CONTAINER && n.UsernsOptions.Mode == runtimeapi.NamespaceMode_NODE
		}},
		"the host's namespaces": {func(p *corev1.Pod) { p.Spec.HostNetwork, p.Spec.HostIPC, p.Spec.HostPID = true, true, true }, nil, func(c *runtimeapi.PodSandboxConfig) bool {
			n := c.Linux.SecurityContext.NamespaceOptions
			return n.Network == runtimeapi.NamespaceMode_NODE && n.Ipc == runtimeapi.NamespaceMode_NODE && n.Pid == runtimeapi.NamespaceMode_NODE && c.Hostname == ""
		}},
		"shared processes": {func(p *corev1.Pod) { p.Spec.ShareProcessNamespace = new(true) }, nil, func(c *runtimeapi.PodSandboxConfig) bool {
			return c.Linux.SecurityContext.NamespaceOptions.Pid == runtimeapi.NamespaceMode_POD
		}},
		"users": {func(p *corev1.Pod) {
			p.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: new(int64(1)), RunAsGroup: new(int64(2)), FSGroup: new(int64(3)), SupplementalGroups: []int64{4},
				SupplementalGroupsPolicy: new(corev1.SupplementalGroupsPolicyStrict), SELinuxOptions: &corev1.SELinuxOptions{Level: "s0"}, Sysctls: []corev1.Sysctl{{Name: "kernel.shm_rmid_forced", Value: "1"}}}
		}, func(s *PodSettings) { s.ExtraGroups = []int64{5} }, func(c *runtimeapi.PodSandboxConfig) bool {
			s := c.Linux.SecurityContext
			return s.RunAsUser.Value == 1 && s.RunAsGroup.Value == 2 && slices.Equal(s.SupplementalGroups, []int64{3, 4, 5}) && s.SelinuxOptions.Level == "s0" &&
				s.SupplementalGroupsPolicy == runtimeapi.SupplementalGroupsPolicy_Strict && c.Linux.Sysctls["kernel.shm_rmid_forced"] == "1"
		}},
		"seccomp of the sandbox itself": {func(p *corev1.Pod) {
			p.Spec.SecurityContext = &corev1.PodSecurityContext{SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeUnconfined}}
		}, nil, func(c *runtimeapi.PodSandboxConfig) bool {
			return c.Linux.SecurityContext.Seccomp.ProfileType == runtimeapi.SecurityProfile_RuntimeDefault
		}},
		"seccomp of the sandbox itself, with a profile for that": {func(p *corev1.Pod) {
			p.Spec.SecurityContext = &corev1.PodSecurityContext{SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeUnconfined}}
		}, func(s *PodSettings) { s.Host.SandboxSeccomp = "/data/sandbox.json" }, func(c *runtimeapi.PodSandboxConfig) bool {
			s := c.Linux.SecurityContext.Seccomp
			return s.ProfileType == runtimeapi.SecurityProfile_Localhost && s.LocalhostRef == "/data/sandbox.json"
		}},
		"privileged": {func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{SecurityContext: &corev1.SecurityContext{Privileged: new(true)}}}
		}, nil, func(c *runtimeapi.PodSandboxConfig) bool { return c.Linux.SecurityContext.Privileged }},
		"ports": {func(p *corev1.Pod) {
			p.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: 8080, Protocol: "TCP", HostIP: "127.0.0.1"}, {ContainerPort: 53, Protocol: "UDP"}, {ContainerPort: 1, Protocol: "SCTP"}, {ContainerPort: 53, Protocol: "UDP"}}
			p.Spec.InitContainers = []corev1.Container{{Ports: []corev1.ContainerPort{{ContainerPort: 9}}}, {RestartPolicy: new(corev1.ContainerRestartPolicyAlways), Ports: []corev1.ContainerPort{{ContainerPort: 10}}}}
		}, nil, func(c *runtimeapi.PodSandboxConfig) bool {
			m := c.PortMappings
			return len(m) == 4 && m[0].ContainerPort == 10 && m[1].HostPort == 8080 && m[1].HostIp == "127.0.0.1" && m[2].Protocol == runtimeapi.Protocol_UDP && m[3].Protocol == runtimeapi.Protocol_SCTP
		}},
		"resources and overhead": {func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: list("cpu", "500m"), Limits: list("cpu", "1", "memory", "64Mi")}
			p.Spec.Overhead = list("cpu", "250m", "memory", "16Mi")
		}, nil, func(c *runtimeapi.PodSandboxConfig) bool {
			r, o := c.Linux.Resources, c.Linux.Overhead
			return r.CpuShares == 512 && r.CpuQuota == 100000 && r.MemoryLimitInBytes == 64<<20 && o.CpuShares == 256 && o.CpuQuota == 25000 && o.MemoryLimitInBytes == 16<<20
		}},
		"users of its own": {nil, func(s *PodSettings) {
			s.UserNamespace = &UserNamespace{UIDs: []IDMapping{{HostID: 65536, Length: 65536}}}
		}, func(c *runtimeapi.PodSandboxConfig) bool {
			return c.Linux.SecurityContext.NamespaceOptions.UsernsOptions.Uids[0].HostId == 65536
		}},
	} {
		s := PodSettings{Host: Host{CPUQuota: true, CPUPeriod: 100000}, Attempt: 2, LogDirectory: "/logs/x", Hostname: "host", CgroupParent: "/kubepods/x"}
		if test.settings != nil {
			test.settings(&s)
		}
		config, err := sandboxConfig(specPod(test.change), s)
		if err != nil || !test.check(config) || config.Linux.CgroupParent != "/kubepods/x" {
			t.Errorf("%s: %v, %v", name, config, err)
		}
	}
	odd := specPod(func(p *corev1.Pod) {
		p.Spec.SecurityContext = &corev1.PodSecurityContext{SupplementalGroupsPolicy: new(corev1.SupplementalGroupsPolicy("Odd"))}
	})
	if _, err := sandboxConfig(odd, PodSettings{}); err == nil || err.Error() != "unsupported supplementalGroupsPolicy: Odd" {
		t.Error(err)
	}
	if got := PodLogDirectory("/logs", odd); got != "/logs/space_pod_uid" {
		t.Error(got)
	}
}

func list(pairs ...string) corev1.ResourceList {
	l := corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		l[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return l
}

func TestContainerConfig(t *testing.T) {
	pod := specPod(func(p *corev1.Pod) {
		p.DeletionGracePeriodSeconds = new(int64(7))
		c := &p.Spec.Containers[0]
		c.Command, c.Args, c.WorkingDir = []string{"run", "$(NAME)"}, []string{"$$(NAME)", "$(NO)"}, "/w"
		c.Stdin, c.StdinOnce, c.TTY = true, true, true
		c.Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"bye"}}}, StopSignal: new(corev1.Signal("SIGRTMIN+1"))}
		c.Ports = []corev1.ContainerPort{{ContainerPort: 80}}
	})
	c := &pod.Spec.Containers[0]
	config, err := containerConfig(pod, c, ContainerSettings{
		Attempt: 3, ImageRef: "sha256:1", Env: []corev1.EnvVar{{Name: "NAME", Value: "n"}},
		Mounts: []Mount{{ContainerPath: "/m"}}, Annotations: map[string]string{"device": "d", AnnotationHash: "mine"},
		UserNamespace: &UserNamespace{UIDs: []IDMapping{{Length: 1}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	var ports []corev1.ContainerPort
	var preStop corev1.LifecycleHandler
	for what, ok := range map[string]bool{
		"metadata":      config.Metadata.Name == "main" && config.Metadata.Attempt == 3,
		"image":         config.Image.Image == "sha256:1" && config.Image.UserSpecifiedImage == "image:1",
		"command":       slices.Equal(config.Command, []string{"run", "n"}) && slices.Equal(config.Args, []string{"$(NAME)", "$(NO)"}) && config.WorkingDir == "/w",
		"log":           config.LogPath == "main/3.log",
		"stdin":         config.Stdin && config.StdinOnce && config.Tty,
		"labels":        reflect.DeepEqual(config.Labels, map[string]string{"io.kubernetes.container.name": "main", "io.kubernetes.pod.name": "pod", "io.kubernetes.pod.namespace": "space", "io.kubernetes.pod.uid": "uid"}),
		"counts":        config.Annotations["io.kubernetes.container.restartCount"] == "3" && config.Annotations["io.kubernetes.container.hash"] == Hash(c),
		"termination":   config.Annotations["io.kubernetes.container.terminationMessagePath"] == "/dev/termination-log" && config.Annotations["io.kubernetes.container.terminationMessagePolicy"] == "File",
		"grace":         config.Annotations["io.kubernetes.pod.terminationGracePeriod"] == "30" && config.Annotations["io.kubernetes.pod.deletionGracePeriod"] == "7",
		"device plugin": config.Annotations["device"] == "d",
		"ports":         json.Unmarshal([]byte(config.Annotations["io.kubernetes.container.ports"]), &ports) == nil && ports[0].ContainerPort == 80,
		"preStop":       json.Unmarshal([]byte(config.Annotations["io.kubernetes.container.preStopHandler"]), &preStop) == nil && preStop.Exec.Command[0] == "bye",
		"stop signal":   config.StopSignal == runtimeapi.Signal_SIGNAL_SIGRTMINPLUS1,
		"mapped mounts": len(config.Mounts[0].UidMappings) == 1,
	} {
		if !ok {
			t.Errorf("%s: %v", what, config)
		}
	}
}

func TestContainerSecurity(t *testing.T) {
	type check = func(*runtimeapi.LinuxContainerSecurityContext) bool
	host := Host{SeccompRoot: "/root/seccomp", MaskedPaths: []string{"/proc/kcore"}}
	inContainer := func(s corev1.SecurityContext) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.Containers[0].SecurityContext = &s }
	}
	inPod := func(s corev1.PodSecurityContext) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.SecurityContext = &s }
	}
	for name, test := range map[string]struct {
		change   func(*corev1.Pod)
		settings ContainerSettings
		check    check
	}{
		"nothing": {nil, ContainerSettings{}, func(s *runtimeapi.LinuxContainerSecurityContext) bool {
			return s.RunAsUser.Value == 0 && !s.Privileged && !s.NoNewPrivs && s.Seccomp.ProfileType == runtimeapi.SecurityProfile_Unconfined &&
				slices.Equal(s.MaskedPaths, host.MaskedPaths) && len(s.ReadonlyPaths) == 5 && s.Apparmor == nil && s.Capabilities == nil
		}},
		"user of the image": {nil, ContainerSettings{ImageUID: new(int64(9))}, func(s *runtimeapi.LinuxContainerSecurityContext) bool { return s.RunAsUser.Value == 9 }},
		"named user of the image": {nil, ContainerSettings{ImageUser: "www"}, func(s *runtimeapi.LinuxContainerSecurityContext) bool {
			return s.RunAsUser == nil && s.RunAsUsername == "www"
		}},
		"user of the pod": {inPod(corev1.PodSecurityContext{RunAsUser: new(int64(5))}), ContainerSettings{ImageUser: "www"}, func(s *runtimeapi.LinuxContainerSecurityContext) bool {
			return s.RunAsUser.Value == 5 && s.RunAsUsername == ""
		}},
		"group": {inContainer(corev1.SecurityContext{RunAsUser: new(int64(5)), RunAsGroup: new(int64(6))}), ContainerSettings{}, func(s *runtimeapi.LinuxContainerSecurityContext) bool { return s.RunAsGroup.Value == 6 }},
		"supplemental groups": {inPod(corev1.PodSecurityContext{FSGroup: new(int64(1)), SupplementalGroups: []int64{2}}), ContainerSettings{ExtraGroups: []int64{3}}, func(s *runtimeapi.LinuxContainerSecurityContext) bool {
			return slices.Equal(s.SupplementalGroups, []int64{1, 2, 3})
		}},
		"privileged":        {inContainer(corev1.SecurityContext{Privileged: new(true), ReadOnlyRootFilesystem: new(true)}), ContainerSettings{}, func(s *runtimeapi.LinuxContainerSecurityContext) bool { return s.Privileged && s.ReadonlyRootfs }},
		"no new privileges": {inContainer(corev1.SecurityContext{AllowPrivilegeEscalation: new(false)}), ContainerSettings{}, func(s *runtimeapi.LinuxContainerSecurityContext) bool { return s.NoNewPrivs }},
		"new privileges":    {inContainer(corev1.SecurityContext{AllowPrivilegeEscalation: new(true)}), ContainerSettings{}, func(s *runtimeapi.LinuxContainerSecurityContext) bool { return !s.NoNewPrivs }},
		"capabilities": {inContainer(corev1.SecurityContext{Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"NET_ADMIN"}, Drop: []corev1.Capability{"ALL"}}}), ContainerSettings{}, func(s *runtimeapi.LinuxContainerSecurityContext) bool {
			return s.Capabilities.AddCapabilities[0] == "NET_ADMIN" && s.Capabilities.DropCapabilities[0] == "ALL"
		}},
		"unmasked": {inContainer(corev1.SecurityContext{ProcMount: new(corev1.UnmaskedProcMount)}), ContainerSettings{}, func(s *runtimeapi.LinuxContainerSecurityContext) bool {
			return len(s.MaskedPaths)+len(s.ReadonlyPaths) == 0
		}},
		"SELinux": {inContainer(corev1.SecurityContext{SELinuxOptions: &corev1.SELinuxOptions{User: "u", Role: "r", Type: "t", Level: "l"}}), ContainerSettings{}, func(s *runtimeapi.LinuxContainerSecurityContext) bool {
			return s.SelinuxOptions.Type == "t" && s.SelinuxOptions.Role == "r"
		}},
		"seccomp of the pod": {inPod(corev1.PodSecurityContext{SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}}), ContainerSettings{}, func(s *runtimeapi.LinuxContainerSecurityContext) bool {
			return s.Seccomp.ProfileType == runtimeapi.SecurityProfile_RuntimeDefault
		}},
		"seccomp of a file": {inContainer(corev1.SecurityContext{SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeLocalhost, LocalhostProfile: new("a/b.json")}}), ContainerSettings{}, func(s *runtimeapi.LinuxContainerSecurityContext) bool {
			return s.Seccomp.LocalhostRef == "/root/seccomp/a/b.json" && s.Seccomp.ProfileType == runtimeapi.SecurityProfile_Localhost
		}},
		"AppArmor": {inContainer(corev1.SecurityContext{AppArmorProfile: &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeLocalhost, LocalhostProfile: new("p")}}), ContainerSettings{}, func(s *runtimeapi.LinuxContainerSecurityContext) bool {
			return s.Apparmor.LocalhostRef == "p" && s.ApparmorProfile == "localhost/p"
		}}, //nolint:staticcheck // both fields
		"AppArmor of an annotation": {func(p *corev1.Pod) {
			p.Annotations["container.apparmor.security.beta.kubernetes.io/main"] = "runtime/default"
		}, ContainerSettings{}, func(s *runtimeapi.LinuxContainerSecurityContext) bool {
			return s.Apparmor.ProfileType == runtimeapi.SecurityProfile_RuntimeDefault
		}},
		"target": {nil, ContainerSettings{TargetID: "id"}, func(s *runtimeapi.LinuxContainerSecurityContext) bool {
			return s.NamespaceOptions.Pid == runtimeapi.NamespaceMode_TARGET && s.NamespaceOptions.TargetId == "id"
		}},
		"target, all shared": {func(p *corev1.Pod) { p.Spec.ShareProcessNamespace = new(true) }, ContainerSettings{TargetID: "id"}, func(s *runtimeapi.LinuxContainerSecurityContext) bool {
			return s.NamespaceOptions.Pid == runtimeapi.NamespaceMode_POD && s.NamespaceOptions.TargetId == ""
		}},
	} {
		pod := specPod(test.change)
		test.settings.Host = host
		config, err := containerConfig(pod, &pod.Spec.Containers[0], test.settings)
		if err != nil || !test.check(config.Linux.SecurityContext) {
			t.Errorf("%s: %v, %v", name, config.GetLinux().GetSecurityContext(), err)
		}
	}
	pod := specPod(inContainer(corev1.SecurityContext{SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeLocalhost}}))
	if _, err := containerConfig(pod, &pod.Spec.Containers[0], ContainerSettings{}); err == nil || err.Error() != "localhostProfile must be set if seccompProfile type is Localhost." {
		t.Error(err)
	}
	host.SeccompDefault = true
	pod = specPod(nil)
	if config, err := containerConfig(pod, &pod.Spec.Containers[0], ContainerSettings{Host: host}); err != nil || config.Linux.SecurityContext.Seccomp.ProfileType != runtimeapi.SecurityProfile_RuntimeDefault {
		t.Error("the default of the kubelet does not count")
	}
}

func TestNonRoot(t *testing.T) {
	where := ` (pod: "pod_space(uid)", container: main)`
	for _, test := range []struct {
		pod, own  *corev1.SecurityContext
		uid       *int64
		user, err string
	}{
		{pod: nil, own: nil, uid: new(int64(0))},
		{own: &corev1.SecurityContext{RunAsNonRoot: new(true)}, uid: new(int64(1))},
		{own: &corev1.SecurityContext{RunAsNonRoot: new(true)}, uid: new(int64(0)), err: "container has runAsNonRoot and image will run as root" + where},
		{own: &corev1.SecurityContext{RunAsNonRoot: new(true)}, err: "container has runAsNonRoot and image will run as root" + where},
		{own: &corev1.SecurityContext{RunAsNonRoot: new(true)}, user: "www", err: "container has runAsNonRoot and image has non-numeric user (www), cannot verify user is non-root" + where},
		{own: &corev1.SecurityContext{RunAsNonRoot: new(true), RunAsUser: new(int64(0))}, uid: new(int64(1)), err: "container's runAsUser breaks non-root policy" + where},
		{own: &corev1.SecurityContext{RunAsNonRoot: new(true), RunAsUser: new(int64(1))}, uid: new(int64(0))},
		{pod: &corev1.SecurityContext{RunAsNonRoot: new(true)}, uid: new(int64(0)), err: "container has runAsNonRoot and image will run as root" + where},
		{pod: &corev1.SecurityContext{RunAsNonRoot: new(true)}, own: &corev1.SecurityContext{RunAsNonRoot: new(false)}, uid: new(int64(0))},
		{pod: &corev1.SecurityContext{RunAsUser: new(int64(0))}, own: &corev1.SecurityContext{RunAsNonRoot: new(true)}, err: "container's runAsUser breaks non-root policy" + where},
		{own: &corev1.SecurityContext{RunAsNonRoot: new(true)}, uid: new(int64(-1)), err: "container has runAsNonRoot and image has an invalid user id (-1). (Must be 1-(2147483647)): "},
	} {
		pod := specPod(func(p *corev1.Pod) {
			p.Spec.Containers[0].SecurityContext = test.own
			if test.pod != nil {
				p.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsNonRoot: test.pod.RunAsNonRoot, RunAsUser: test.pod.RunAsUser}
			}
		})
		_, err := containerConfig(pod, &pod.Spec.Containers[0], ContainerSettings{ImageUID: test.uid, ImageUser: test.user})
		if (err == nil) != (test.err == "") || err != nil && !strings.HasPrefix(err.Error(), test.err) {
			t.Errorf("%+v: %v", test, err)
		}
	}
}

func TestContainerResources(t *testing.T) {
	v1 := Host{MemoryCapacity: 1000 << 20, SwapCapacity: 100 << 20, CPUQuota: true, CPUPeriod: 100000, SwapController: true, HugePageSizes: []string{"2MB", "1GB"}}
	v2 := v1
	v2.CgroupV2 = true
	limited := v2
	limited.LimitedSwap = true
	single := v2
	single.SingleProcessOOMKill = true
	bare, tiered := v2, v2
	bare.MissingControllers = []string{"cpu", "memory"}
	tiered.TieredReservation, tiered.MemoryThrottlingFactor, tiered.AllocatableMemory = true, 0.9, func() int64 { return 1000 << 20 }
	needs := func(requests, limits corev1.ResourceList) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: requests, Limits: limits}
		}
	}
	for name, test := range map[string]struct {
		change func(*corev1.Pod)
		host   Host
		want   *runtimeapi.LinuxContainerResources
	}{
		"best effort": {nil, v1, &runtimeapi.LinuxContainerResources{CpuShares: 2, CpuPeriod: 100000, OomScoreAdj: 1000}},
		"burstable": {needs(list("cpu", "500m", "memory", "100Mi"), list("memory", "200Mi")), v1,
			&runtimeapi.LinuxContainerResources{CpuShares: 512, CpuPeriod: 100000, MemoryLimitInBytes: 200 << 20, MemorySwapLimitInBytes: 200 << 20, OomScoreAdj: 900}},
		"guaranteed": {needs(list("cpu", "2", "memory", "100Mi"), list("cpu", "2", "memory", "100Mi")), v1,
			&runtimeapi.LinuxContainerResources{CpuShares: 2048, CpuPeriod: 100000, CpuQuota: 200000, MemoryLimitInBytes: 100 << 20, MemorySwapLimitInBytes: 100 << 20, OomScoreAdj: -997}},
		"a limit without request": {needs(nil, list("cpu", "100m")), v1, &runtimeapi.LinuxContainerResources{CpuShares: 102, CpuPeriod: 100000, CpuQuota: 10000, OomScoreAdj: 999}},
		"hardly any CPU":          {needs(nil, list("cpu", "1m")), v1, &runtimeapi.LinuxContainerResources{CpuShares: 2, CpuPeriod: 100000, CpuQuota: 1000, OomScoreAdj: 999}},
		"more than all memory":    {needs(list("memory", "2000Mi"), nil), v1, &runtimeapi.LinuxContainerResources{CpuShares: 2, CpuPeriod: 100000, OomScoreAdj: 3}},
		"critical to the node": {func(p *corev1.Pod) {
			p.Spec.Priority, p.Spec.PriorityClassName = new(int32(2000001000)), "system-node-critical"
		}, v1, &runtimeapi.LinuxContainerResources{CpuShares: 2, CpuPeriod: 100000, OomScoreAdj: -997}},
		"limits of the pod": {func(p *corev1.Pod) {
			p.Spec.Resources = &corev1.ResourceRequirements{Requests: list("memory", "100Mi"), Limits: list("cpu", "1", "memory", "300Mi")}
		}, v1, &runtimeapi.LinuxContainerResources{CpuShares: 1024, CpuPeriod: 100000, CpuQuota: 100000, MemoryLimitInBytes: 300 << 20, MemorySwapLimitInBytes: 300 << 20, OomScoreAdj: 900}},
		"cgroup v2": {needs(list("memory", "100Mi"), list("memory", "200Mi")), v2,
			&runtimeapi.LinuxContainerResources{CpuShares: 2, CpuPeriod: 100000, MemoryLimitInBytes: 200 << 20, OomScoreAdj: 900, Unified: map[string]string{"memory.oom.group": "1", "memory.swap.max": "0", "memory.high": "max"}}},
		"only one process is killed": {needs(list("memory", "100Mi"), list("memory", "200Mi")), single,
			&runtimeapi.LinuxContainerResources{CpuShares: 2, CpuPeriod: 100000, MemoryLimitInBytes: 200 << 20, OomScoreAdj: 900, Unified: map[string]string{"memory.swap.max": "0", "memory.high": "max"}}},
		"cgroup v2 without controllers": {needs(list("cpu", "1", "memory", "100Mi"), list("cpu", "1", "memory", "200Mi")), bare,
			&runtimeapi.LinuxContainerResources{OomScoreAdj: 900}},
		"memory that is protected and throttled": {needs(list("memory", "100Mi"), list("memory", "200Mi")), tiered,
			&runtimeapi.LinuxContainerResources{CpuShares: 2, CpuPeriod: 100000, MemoryLimitInBytes: 200 << 20, OomScoreAdj: 900, Unified: map[string]string{
				"memory.oom.group": "1", "memory.swap.max": "0", "memory.high": "199229440", "memory.min": "0", "memory.low": "104857600"}}},
		"guaranteed memory": {needs(list("cpu", "1", "memory", "100Mi"), list("cpu", "1", "memory", "100Mi")), tiered,
			&runtimeapi.LinuxContainerResources{CpuShares: 1024, CpuPeriod: 100000, CpuQuota: 100000, MemoryLimitInBytes: 100 << 20, OomScoreAdj: -997, Unified: map[string]string{
				"memory.oom.group": "1", "memory.swap.max": "0", "memory.high": "max", "memory.min": "104857600", "memory.low": "0"}}},
		"throttled below the node's memory": {nil, tiered,
			&runtimeapi.LinuxContainerResources{CpuShares: 2, CpuPeriod: 100000, OomScoreAdj: 1000, Unified: map[string]string{
				"memory.oom.group": "1", "memory.swap.max": "0", "memory.high": "943718400", "memory.min": "0", "memory.low": "0"}}},
		"throttled with the pod": {func(p *corev1.Pod) {
			p.Spec.Resources = &corev1.ResourceRequirements{Limits: list("memory", "300Mi")}
		}, tiered, &runtimeapi.LinuxContainerResources{CpuShares: 2, CpuPeriod: 100000, MemoryLimitInBytes: 300 << 20, OomScoreAdj: 999, Unified: map[string]string{
			"memory.oom.group": "1", "memory.swap.max": "0", "memory.high": "max", "memory.min": "0", "memory.low": "0"}}},
		"limited swap": {needs(list("memory", "100Mi"), list("memory", "200Mi")), limited,
			&runtimeapi.LinuxContainerResources{CpuShares: 2, CpuPeriod: 100000, MemoryLimitInBytes: 200 << 20, OomScoreAdj: 900, Unified: map[string]string{"memory.oom.group": "1", "memory.swap.max": "10485760", "memory.high": "max"}}},
	} {
		pod := specPod(test.change)
		got := containerResources(pod, &pod.Spec.Containers[0], test.host)
		if len(got.HugepageLimits) != 2 || got.HugepageLimits[0].Limit != 0 {
			t.Errorf("%s: huge pages %v", name, got.HugepageLimits)
		}
		got.HugepageLimits = nil
		if got.String() != test.want.String() {
			t.Errorf("%s:\ngot  %v\nwant %v", name, got, test.want)
		}
	}
}

func TestHugePageLimits(t *testing.T) {
	pod := specPod(func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Limits = list("hugepages-2Mi", "4Mi", "hugepages-1Gi", "1Gi")
	})
	got := containerResources(pod, &pod.Spec.Containers[0], Host{MemoryCapacity: 1, HugePageSizes: []string{"2MB", "1GB", "64KB"}}).HugepageLimits
	if len(got) != 3 || got[0].Limit != 4<<20 || got[1].Limit != 1<<30 || got[2].Limit != 0 {
		t.Error(got)
	}
}

// TestSidecarOOMScore kills a sidecar no sooner than the containers it serves.
func TestSidecarOOMScore(t *testing.T) {
	pod := specPod(func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Requests = list("memory", "100Mi")
		p.Spec.InitContainers = []corev1.Container{{Name: "side", RestartPolicy: new(corev1.ContainerRestartPolicyAlways)}, {Name: "init"}}
	})
	h := Host{MemoryCapacity: 1000 << 20}
	for i, want := range []int64{900, 999} {
		if got := containerResources(pod, &pod.Spec.InitContainers[i], h).OomScoreAdj; got != want {
			t.Errorf("%s: %d, want %d", pod.Spec.InitContainers[i].Name, got, want)
		}
	}
}

func TestDetectHost(t *testing.T) {
	h := DetectHost("/seccomp")
	if h.MemoryCapacity < 1<<20 || !slices.Contains(h.MaskedPaths, "/proc/kcore") || h.SeccompRoot != "/seccomp" || h.CPUPeriod != 100000 || !h.CPUQuota {
		t.Errorf("%+v", h)
	}
}

func TestAppArmorOfTheHost(t *testing.T) {
	for _, row := range []struct {
		name string
		dir  bool
		word string
		want bool
	}{
		{"on", true, "Y\n", true},
		{"switched off", true, "N\n", false},
		{"built in, but not mounted", false, "Y\n", false},
		{"not built in", false, "", false},
		{"mounted without a switch", true, "", false},
	} {
		sys := t.TempDir()
		if row.dir {
			if err := os.MkdirAll(filepath.Join(sys, "kernel/security/apparmor"), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if row.word != "" {
			file := filepath.Join(sys, "module/apparmor/parameters/enabled")
			if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(row.word), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got := appArmorEnabled(sys); got != row.want {
			t.Errorf("%s: %t, want %t", row.name, got, row.want)
		}
	}
}
