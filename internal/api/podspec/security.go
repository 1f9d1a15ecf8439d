package podspec

import (
	"fmt"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/component-helpers/node/util/sysctl"
	"k8s.io/utils/ptr"
)

const sysAdmin corev1.Capability = "CAP_SYS_ADMIN"

// podSecurity validates the security context of the pod.
func (val *validator) podSecurity(path *field.Path) {
	sc := val.spec.SecurityContext
	if sc == nil {
		return
	}
	val.groupID(path.Child("fsGroup"), sc.FSGroup)
	val.userID(path.Child("runAsUser"), sc.RunAsUser)
	val.groupID(path.Child("runAsGroup"), sc.RunAsGroup)
	for i := range sc.SupplementalGroups {
		val.groupID(path.Child("supplementalGroups").Index(i), &sc.SupplementalGroups[i])
	}
	val.sysctls(sc.Sysctls, path.Child("sysctls"))
	optionalOneOf(val, path.Child("fsGroupChangePolicy"), sc.FSGroupChangePolicy, corev1.FSGroupChangeAlways, corev1.FSGroupChangeOnRootMismatch)
	val.seccomp(sc.SeccompProfile, path.Child("seccompProfile"))
	val.windowsOptions(sc.WindowsOptions, path.Child("windowsOptions"))
	val.appArmor(sc.AppArmorProfile, path.Child("appArmorProfile"))
	optionalOneOf(val, path.Child("supplementalGroupsPolicy"), sc.SupplementalGroupsPolicy,
		corev1.SupplementalGroupsPolicyMerge, corev1.SupplementalGroupsPolicyStrict)
	optionalOneOf(val, path.Child("seLinuxChangePolicy"), sc.SELinuxChangePolicy,
		corev1.SELinuxChangePolicyMountOption, corev1.SELinuxChangePolicyRecursive)
}

// containerSecurity validates the security context of a container.
func (val *validator) containerSecurity(sc *corev1.SecurityContext, path *field.Path) {
	if sc == nil {
		return
	}
	val.userID(path.Child("runAsUser"), sc.RunAsUser)
	val.groupID(path.Child("runAsGroup"), sc.RunAsGroup)
	if sc.ProcMount != nil {
		oneOf(val, path.Child("procMount"), *sc.ProcMount, corev1.DefaultProcMount, corev1.UnmaskedProcMount)
		if *sc.ProcMount == corev1.UnmaskedProcMount && ptr.Deref(val.spec.HostUsers, true) {
			val.invalid(path.Child("procMount"), *sc.ProcMount, "`hostUsers` must be false to use `Unmasked`")
		}
	}
	val.seccomp(sc.SeccompProfile, path.Child("seccompProfile"))
	if !ptr.Deref(sc.AllowPrivilegeEscalation, true) {
		if ptr.Deref(sc.Privileged, false) {
			val.invalid(path, sc, "cannot set `allowPrivilegeEscalation` to false and `privileged` to true")
		}
		if addsSysAdmin(sc) && !val.allow.sysAdminWithoutEscalation {
			val.invalid(path, sc, "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN")
		}
	}
	val.windowsOptions(sc.WindowsOptions, path.Child("windowsOptions"))
	val.appArmor(sc.AppArmorProfile, path.Child("appArmorProfile"))
}

func addsSysAdmin(sc *corev1.SecurityContext) bool {
	if sc.Capabilities != nil {
		for _, capability := range sc.Capabilities.Add {
			if capability == sysAdmin {
				return true
			}
		}
	}
	return false
}

const sysctlLength = 253

var sysctlForm = regexp.MustCompile(`^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$`)

func (val *validator) sysctls(settings []corev1.Sysctl, path *field.Path) {
	seen := sets.New[string]()
	for i, setting := range settings {
		path := path.Index(i).Child("name")
		switch {
		case setting.Name == "":
			val.required(path, "")
		case len(setting.Name) > sysctlLength || !sysctlForm.MatchString(setting.Name):
			val.invalid(path, setting.Name, fmt.Sprintf("must have at most %d characters and match regex %s", sysctlLength, sysctlForm))
		case seen.Has(setting.Name):
			val.duplicate(path, setting.Name)
		}
		if text := hostSysctl(setting.Name, val.spec); text != "" && !val.allow.hostSysctls {
			val.invalid(path, setting.Name, text)
		}
		seen.Insert(setting.Name)
	}
}

// hostSysctl returns why a sysctl cannot be set: it belongs to a namespace that the pod shares with the node.
func hostSysctl(name string, spec *corev1.PodSpec) string {
	switch namespace, _, _ := sysctl.GetNamespace(name); {
	case spec.HostNetwork && namespace == sysctl.NetNamespace:
		return "may not be specified when 'hostNetwork' is true"
	case spec.HostIPC && namespace == sysctl.IPCNamespace:
		return "may not be specified when 'hostIPC' is true"
	}
	return ""
}

func (val *validator) seccomp(profile *corev1.SeccompProfile, path *field.Path) {
	if profile == nil {
		return
	}
	if profile.Type == "" {
		val.required(path.Child("type"), "type is required when seccompProfile is set")
	} else {
		oneOf(val, path.Child("type"), profile.Type,
			corev1.SeccompProfileTypeLocalhost, corev1.SeccompProfileTypeRuntimeDefault, corev1.SeccompProfileTypeUnconfined)
	}
	switch local := profile.Type == corev1.SeccompProfileTypeLocalhost; {
	case local && profile.LocalhostProfile == nil:
		val.required(path.Child("localhostProfile"), "must be set when seccomp type is Localhost")
	case local:
		val.localPath(path.Child("localhostProfile"), *profile.LocalhostProfile)
	case profile.LocalhostProfile != nil:
		val.invalid(path.Child("localhostProfile"), profile, "can only be set when seccomp type is Localhost")
	}
}

func (val *validator) appArmor(profile *corev1.AppArmorProfile, path *field.Path) {
	if profile == nil {
		return
	}
	local := path.Child("localhostProfile")
	switch profile.Type {
	case corev1.AppArmorProfileTypeLocalhost:
		const longest = 4095 // the longest path without its terminating null byte
		switch name := profile.LocalhostProfile; {
		case name == nil || *name == "":
			val.required(local, "must be set when AppArmor type is Localhost")
		case strings.TrimSpace(*name) != *name:
			val.invalid(local, *name, "must not be padded with whitespace")
		case len(*name) > longest:
			val.add(field.TooLong(local, "", longest))
		}
	case corev1.AppArmorProfileTypeRuntimeDefault, corev1.AppArmorProfileTypeUnconfined:
		if profile.LocalhostProfile != nil {
			val.invalid(local, *profile.LocalhostProfile, "can only be set when AppArmor type is Localhost")
		}
	case "":
		val.required(path.Child("type"), "type is required when appArmorProfile is set")
	default:
		oneOf(val, path.Child("type"), profile.Type,
			corev1.AppArmorProfileTypeLocalhost, corev1.AppArmorProfileTypeRuntimeDefault, corev1.AppArmorProfileTypeUnconfined)
	}
}
