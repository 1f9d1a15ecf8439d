package cri

import (
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

	"skiff/internal/kubelet/environment"
)

// ContainerSettings are what a container needs besides its spec.
type ContainerSettings struct {
	Host Host
	// Attempt is how often the container was restarted.
	Attempt    uint32
	Env        []*runtimeapi.KeyValue
	Mounts     []*runtimeapi.Mount
	Devices    []*runtimeapi.Device
	CDIDevices []*runtimeapi.CDIDevice
	// Annotations are those a device plugin asks for; the kubelet's own win.
	Annotations map[string]string
	// ImageRef is the image as the runtime knows it.
	ImageRef string
	// ImageUID and ImageUser are the user the image names, as a number or else by name. Both unset is root.
	ImageUID  *int64
	ImageUser string
	// TargetID is the container whose processes an ephemeral container wants to see, "" for none.
	TargetID string
	// UserNamespace and ExtraGroups are those of the pod's sandbox.
	UserNamespace *runtimeapi.UserNamespace
	ExtraGroups   []int64
}

// ContainerLogPath is a container's log below its pod's log directory.
func ContainerLogPath(name string, attempt uint32) string {
	return filepath.Join(name, strconv.FormatUint(uint64(attempt), 10)+".log")
}

// ContainerConfig says what container is to be made. An error's text is meant for the container's status.
func ContainerConfig(pod *corev1.Pod, c *corev1.Container, s ContainerSettings) (*runtimeapi.ContainerConfig, error) {
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
		Envs:        s.Env,
		Labels:      labels,
		Annotations: containerAnnotations(pod, c, s),
		Mounts:      s.Mounts,
		Devices:     s.Devices,
		CDIDevices:  s.CDIDevices,
		LogPath:     ContainerLogPath(c.Name, s.Attempt),
		Stdin:       c.Stdin,
		StdinOnce:   c.StdinOnce,
		Tty:         c.TTY,
		Linux:       &runtimeapi.LinuxContainerConfig{Resources: ContainerResources(pod, c, s.Host), SecurityContext: security},
	}
	if c.Lifecycle != nil && c.Lifecycle.StopSignal != nil {
		config.StopSignal = signal(*c.Lifecycle.StopSignal)
	}
	if user := s.UserNamespace; user != nil && user.Mode == runtimeapi.NamespaceMode_POD {
		for _, mount := range config.Mounts {
			mount.UidMappings, mount.GidMappings = user.Uids, user.Gids
		}
	}
	return config, nil
}

// signal is the runtime's name of a signal. Real-time signals have signs in theirs.
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
	// A restarted kubelet may have to stop a container whose pod it can no longer read.
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

// verifyNonRoot refuses containers that would run as root although the pod forbids it, or of which that cannot be told.
func verifyNonRoot(pod *corev1.Pod, c *corev1.Container, uid *int64, user string) error {
	context := effectiveSecurity(pod, c)
	if !isTrue(context.RunAsNonRoot) {
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

// effectiveSecurity is the container's security context with what it leaves open taken from the pod's.
func effectiveSecurity(pod *corev1.Pod, c *corev1.Container) *corev1.SecurityContext {
	effective := &corev1.SecurityContext{}
	if c.SecurityContext != nil {
		copied := *c.SecurityContext
		effective = &copied
	}
	if of := pod.Spec.SecurityContext; of != nil {
		effective.SELinuxOptions = first(effective.SELinuxOptions, of.SELinuxOptions)
		effective.RunAsUser = first(effective.RunAsUser, of.RunAsUser)
		effective.RunAsGroup = first(effective.RunAsGroup, of.RunAsGroup)
		effective.RunAsNonRoot = first(effective.RunAsNonRoot, of.RunAsNonRoot)
		effective.SeccompProfile = first(effective.SeccompProfile, of.SeccompProfile)
	}
	return effective
}

func first[T any](own, of *T) *T {
	if own != nil {
		return own
	}
	return of
}

func containerSecurity(pod *corev1.Pod, c *corev1.Container, s ContainerSettings) (*runtimeapi.LinuxContainerSecurityContext, error) {
	effective := effectiveSecurity(pod, c)
	security := &runtimeapi.LinuxContainerSecurityContext{
		Capabilities:     capabilities(effective.Capabilities),
		Privileged:       isTrue(effective.Privileged),
		ReadonlyRootfs:   isTrue(effective.ReadOnlyRootFilesystem),
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

// AppArmorProfile finds the profile of a container: its own, that of an old annotation (which static pods may still have), or the pod's.
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

// appArmor is a profile in the runtime's form and in the form that older runtimes read.
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
