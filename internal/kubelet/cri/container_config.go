package cri

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/cpuset"
	"k8s.io/utils/ptr"

	"skiff/internal/kubelet/environment"
)

// ContainerSettings are what a container needs besides its spec.
type ContainerSettings struct {
	Host Host
	// Attempt is how often the container was restarted.
	Attempt uint32
	Env     []corev1.EnvVar
	Mounts  []Mount
	Devices []Device
	// CPUs are those that the container may use; empty means all. NUMANodes is the list of the NUMA nodes whose memory it may use, such as "0,1";
	// empty means all.
	CPUs      cpuset.CPUSet
	NUMANodes string
	// CDIDevices are names of devices of the Container Device Interface.
	CDIDevices []string
	// Annotations are requested by device plugins; the kubelet's own take precedence.
	Annotations map[string]string
	// ImageRef is the image in the runtime's store.
	ImageRef string
	// ImageUID and ImageUser are the user of the image, as a number or else by name. Both unset means root.
	ImageUID  *int64
	ImageUser string
	// TargetID is the container whose process namespace an ephemeral container shares, "" for none.
	TargetID string
	// UserNamespace and ExtraGroups are those of the pod's sandbox.
	UserNamespace *UserNamespace
	ExtraGroups   []int64
}

// Mount is a mount of a container: of a directory or file of the host, or of an image.
type Mount struct {
	ContainerPath, HostPath                     string
	ReadOnly, RecursiveReadOnly, SELinuxRelabel bool
	// Propagation is empty for None.
	Propagation corev1.MountPropagationMode
	// Image is mounted instead of HostPath if set, or ImageSubPath in it.
	Image, ImageSubPath string
	MountOptions        []string
}

// propagations are the runtime's names of propagation modes.
var propagations = map[corev1.MountPropagationMode]runtimeapi.MountPropagation{
	corev1.MountPropagationHostToContainer: runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER,
	corev1.MountPropagationBidirectional:   runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL,
}

func (m Mount) message(user *UserNamespace) *runtimeapi.Mount {
	mount := &runtimeapi.Mount{
		ContainerPath: m.ContainerPath, HostPath: m.HostPath, Readonly: m.ReadOnly, RecursiveReadOnly: m.RecursiveReadOnly,
		SelinuxRelabel: m.SELinuxRelabel, Propagation: propagations[m.Propagation], MountOptions: m.MountOptions, ImageSubPath: m.ImageSubPath,
	}
	if m.Image != "" {
		mount.Image = &runtimeapi.ImageSpec{Image: m.Image}
	}
	if user != nil {
		mount.UidMappings, mount.GidMappings = mappings(user.UIDs), mappings(user.GIDs)
	}
	return mount
}

// Device is a device of the host that a container may use.
type Device struct {
	ContainerPath, HostPath string
	// Permissions are those of the devices cgroup: r for read, w for write, m for mknod.
	Permissions string
}

// ContainerConfig is the configuration of a container, opaque outside this package.
type ContainerConfig struct {
	config *runtimeapi.ContainerConfig
}

// NewContainerConfig returns the configuration of a container. An error's text is shown in the container's status.
func NewContainerConfig(pod *corev1.Pod, c *corev1.Container, s ContainerSettings) (*ContainerConfig, error) {
	config, err := containerConfig(pod, c, s)
	if err != nil {
		return nil, err
	}
	return &ContainerConfig{config}, nil
}

// ContainerLogPath is a container's log below its pod's log directory.
func ContainerLogPath(name string, attempt uint32) string {
	return filepath.Join(name, strconv.FormatUint(uint64(attempt), 10)+".log")
}

func containerConfig(pod *corev1.Pod, c *corev1.Container, s ContainerSettings) (*runtimeapi.ContainerConfig, error) {
	if err := verifyNonRoot(pod, c, s.ImageUID, s.ImageUser); err != nil {
		return nil, err
	}
	security, err := containerSecurity(pod, c, s)
	if err != nil {
		return nil, err
	}
	labels := podLabels(pod)
	labels[LabelContainerName] = c.Name
	config := &runtimeapi.ContainerConfig{
		Metadata:    &runtimeapi.ContainerMetadata{Name: c.Name, Attempt: s.Attempt},
		Image:       &runtimeapi.ImageSpec{Image: s.ImageRef, UserSpecifiedImage: c.Image},
		Command:     environment.ExpandAll(c.Command, s.Env),
		Args:        environment.ExpandAll(c.Args, s.Env),
		WorkingDir:  c.WorkingDir,
		Labels:      labels,
		Annotations: containerAnnotations(pod, c, s),
		LogPath:     ContainerLogPath(c.Name, s.Attempt),
		Stdin:       c.Stdin,
		StdinOnce:   c.StdinOnce,
		Tty:         c.TTY,
		Linux:       &runtimeapi.LinuxContainerConfig{Resources: containerResources(pod, c, s.Host), SecurityContext: security},
	}
	config.Linux.Resources.CpusetCpus, config.Linux.Resources.CpusetMems = s.CPUs.String(), s.NUMANodes
	if c.Lifecycle != nil && c.Lifecycle.StopSignal != nil {
		config.StopSignal = signal(*c.Lifecycle.StopSignal)
	}
	for _, variable := range s.Env {
		config.Envs = append(config.Envs, &runtimeapi.KeyValue{Key: variable.Name, Value: []byte(variable.Value)})
	}
	for _, mount := range s.Mounts {
		config.Mounts = append(config.Mounts, mount.message(s.UserNamespace))
	}
	for _, device := range s.Devices {
		config.Devices = append(config.Devices, &runtimeapi.Device{
			ContainerPath: device.ContainerPath, HostPath: device.HostPath, Permissions: device.Permissions,
		})
	}
	for _, name := range s.CDIDevices {
		config.CDIDevices = append(config.CDIDevices, &runtimeapi.CDIDevice{Name: name})
	}
	return config, nil
}

// signal converts a signal to the CRI's. The names of real-time signals have + and - spelled out there.
func signal(s corev1.Signal) runtimeapi.Signal {
	name := strings.NewReplacer("+", "PLUS", "-", "MINUS").Replace(string(s))
	return runtimeapi.Signal(runtimeapi.Signal_value["SIGNAL_"+name])
}

func containerAnnotations(pod *corev1.Pod, c *corev1.Container, s ContainerSettings) map[string]string {
	annotations := map[string]string{}
	maps.Copy(annotations, s.Annotations)
	annotations[AnnotationHash] = Hash(c)
	annotations[AnnotationRestartCount] = strconv.FormatUint(uint64(s.Attempt), 10)
	annotations[AnnotationTerminationMessagePath] = c.TerminationMessagePath
	annotations[AnnotationTerminationMessagePolicy] = string(c.TerminationMessagePolicy)
	if grace := pod.DeletionGracePeriodSeconds; grace != nil {
		annotations[AnnotationDeletionGrace] = strconv.FormatInt(*grace, 10)
	}
	if grace := pod.Spec.TerminationGracePeriodSeconds; grace != nil {
		annotations[AnnotationTerminationGrace] = strconv.FormatInt(*grace, 10)
	}
	// A restarted kubelet may have to stop a container whose pod has been deleted from the API.
	if c.Lifecycle != nil && c.Lifecycle.PreStop != nil {
		annotations[AnnotationPreStop] = asJSON(c.Lifecycle.PreStop)
	}
	if len(c.Ports) > 0 {
		annotations[AnnotationPorts] = asJSON(c.Ports)
	}
	return annotations
}

func asJSON(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("cri: API types have a JSON form: %v", err))
	}
	return string(text)
}

// verifyNonRoot rejects containers with runAsNonRoot that would run as root, or for which that cannot be verified.
func verifyNonRoot(pod *corev1.Pod, c *corev1.Container, uid *int64, user string) error {
	context := effectiveSecurity(pod, c)
	if !ptr.Deref(context.RunAsNonRoot, false) {
		return nil
	}
	where := fmt.Sprintf("(pod: %q, container: %s)", fmt.Sprintf("%s_%s(%s)", pod.Name, pod.Namespace, pod.UID), c.Name)
	switch {
	case context.RunAsUser != nil && *context.RunAsUser == 0:
		return fmt.Errorf("container's runAsUser breaks non-root policy %s", where)
	case context.RunAsUser != nil:
		return nil
	case uid == nil && user != "":
		return fmt.Errorf("container has runAsNonRoot and image has non-numeric user (%s), cannot verify user is non-root %s", user, where)
	case uid == nil || *uid == 0:
		return fmt.Errorf("container has runAsNonRoot and image will run as root %s", where)
	}
	if wrong := validation.IsValidUserID(*uid); len(wrong) > 0 {
		return fmt.Errorf("container has runAsNonRoot and image has an invalid user id (%d). (Must be 1-(%d)): %s %s", *uid, math.MaxInt32, strings.Join(wrong, "; "), where)
	}
	return nil
}

// effectiveSecurity is the container's security context, with unset fields taken from the pod's.
func effectiveSecurity(pod *corev1.Pod, c *corev1.Container) *corev1.SecurityContext {
	effective := &corev1.SecurityContext{}
	if c.SecurityContext != nil {
		copied := *c.SecurityContext
		effective = &copied
	}
	if inherited := pod.Spec.SecurityContext; inherited != nil {
		effective.SELinuxOptions = cmp.Or(effective.SELinuxOptions, inherited.SELinuxOptions)
		effective.RunAsUser = cmp.Or(effective.RunAsUser, inherited.RunAsUser)
		effective.RunAsGroup = cmp.Or(effective.RunAsGroup, inherited.RunAsGroup)
		effective.RunAsNonRoot = cmp.Or(effective.RunAsNonRoot, inherited.RunAsNonRoot)
		effective.SeccompProfile = cmp.Or(effective.SeccompProfile, inherited.SeccompProfile)
	}
	return effective
}

func containerSecurity(pod *corev1.Pod, c *corev1.Container, s ContainerSettings) (*runtimeapi.LinuxContainerSecurityContext, error) {
	effective := effectiveSecurity(pod, c)
	security := &runtimeapi.LinuxContainerSecurityContext{
		Capabilities:     capabilities(effective.Capabilities),
		Privileged:       ptr.Deref(effective.Privileged, false),
		ReadonlyRootfs:   ptr.Deref(effective.ReadOnlyRootFilesystem, false),
		SelinuxOptions:   selinuxOptions(effective.SELinuxOptions),
		RunAsUser:        int64Value(effective.RunAsUser),
		RunAsGroup:       int64Value(effective.RunAsGroup),
		NamespaceOptions: namespaces(pod, s.UserNamespace),
		NoNewPrivs:       effective.AllowPrivilegeEscalation != nil && !*effective.AllowPrivilegeEscalation,
	}
	if effective.RunAsUser == nil {
		security.RunAsUser, security.RunAsUsername = int64Value(s.ImageUID), s.ImageUser
		if s.ImageUID == nil && s.ImageUser == "" {
			security.RunAsUser = &runtimeapi.Int64Value{}
		}
	}
	if effective.ProcMount == nil || *effective.ProcMount != corev1.UnmaskedProcMount {
		security.MaskedPaths, security.ReadonlyPaths = s.Host.MaskedPaths, readonlyPaths
	}
	if s.TargetID != "" && security.NamespaceOptions.Pid == runtimeapi.NamespaceMode_CONTAINER {
		security.NamespaceOptions.Pid, security.NamespaceOptions.TargetId = runtimeapi.NamespaceMode_TARGET, s.TargetID
	}
	var err error
	if security.SupplementalGroups, security.SupplementalGroupsPolicy, err = supplementalGroups(pod, s.ExtraGroups); err != nil {
		return nil, err
	}
	if security.Seccomp, err = seccomp(effective.SeccompProfile, s.Host); err != nil {
		return nil, err
	}
	if profile := AppArmorProfile(pod, c); profile != nil {
		if security.Apparmor, security.ApparmorProfile, err = appArmor(profile); err != nil { //nolint:staticcheck // older runtimes read the old field
			return nil, err
		}
	}
	return security, nil
}

func capabilities(c *corev1.Capabilities) *runtimeapi.Capability {
	if c == nil {
		return nil
	}
	names := func(list []corev1.Capability) []string {
		texts := make([]string, len(list))
		for i, capability := range list {
			texts[i] = string(capability)
		}
		return texts
	}
	return &runtimeapi.Capability{AddCapabilities: names(c.Add), DropCapabilities: names(c.Drop)}
}

func seccomp(profile *corev1.SeccompProfile, h Host) (*runtimeapi.SecurityProfile, error) {
	switch {
	case profile == nil && h.SeccompDefault, profile != nil && profile.Type == corev1.SeccompProfileTypeRuntimeDefault:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}, nil
	case profile != nil && profile.Type == corev1.SeccompProfileTypeLocalhost:
		if profile.LocalhostProfile == nil || *profile.LocalhostProfile == "" {
			return nil, fmt.Errorf("localhostProfile must be set if seccompProfile type is Localhost.")
		}
		return &runtimeapi.SecurityProfile{
			ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: filepath.Join(h.SeccompRoot, *profile.LocalhostProfile),
		}, nil
	}
	return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}, nil
}

// AppArmorProfile returns the profile of a container: its own, that of the deprecated annotation (which static pods may still have), or the pod's.
func AppArmorProfile(pod *corev1.Pod, c *corev1.Container) *corev1.AppArmorProfile {
	if c.SecurityContext != nil && c.SecurityContext.AppArmorProfile != nil {
		return c.SecurityContext.AppArmorProfile
	}
	annotation := pod.Annotations[corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix+c.Name]
	switch local, isLocal := strings.CutPrefix(annotation, corev1.DeprecatedAppArmorBetaProfileNamePrefix); {
	case annotation == corev1.DeprecatedAppArmorBetaProfileRuntimeDefault:
		return &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeRuntimeDefault}
	case annotation == corev1.DeprecatedAppArmorBetaProfileNameUnconfined:
		return &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeUnconfined}
	case isLocal:
		return &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeLocalhost, LocalhostProfile: &local}
	}
	if pod.Spec.SecurityContext != nil {
		return pod.Spec.SecurityContext.AppArmorProfile
	}
	return nil
}

// appArmor converts a profile to the CRI's, and to the deprecated string that older runtimes read.
func appArmor(profile *corev1.AppArmorProfile) (*runtimeapi.SecurityProfile, string, error) {
	switch profile.Type {
	case corev1.AppArmorProfileTypeRuntimeDefault:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}, corev1.DeprecatedAppArmorBetaProfileRuntimeDefault, nil
	case corev1.AppArmorProfileTypeUnconfined:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}, corev1.DeprecatedAppArmorBetaProfileNameUnconfined, nil
	case corev1.AppArmorProfileTypeLocalhost:
		if profile.LocalhostProfile == nil {
			return nil, "", fmt.Errorf("missing localhost apparmor profile name")
		}
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: *profile.LocalhostProfile},
			corev1.DeprecatedAppArmorBetaProfileNamePrefix + *profile.LocalhostProfile, nil
	}
	return nil, "", fmt.Errorf("unknown apparmor profile type: %q", profile.Type)
}
