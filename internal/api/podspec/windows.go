package podspec

import (
	"fmt"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func (val *validator) isWindows() bool {
	return val.spec.OS != nil && val.spec.OS.Name == corev1.Windows
}

// operatingSystem validates spec.os and refuses fields that this operating system does not support.
func (val *validator) operatingSystem(path *field.Path) {
	os := val.spec.OS
	if os == nil {
		return
	}
	switch os.Name {
	case "":
		val.required(path.Child("os", "name"), "")
	case corev1.Linux:
		val.forLinux(path)
	case corev1.Windows:
		val.forWindows(path)
	default:
		oneOf(val, path.Child("os"), os.Name, corev1.Linux, corev1.Windows)
	}
}

func (val *validator) forLinux(path *field.Path) {
	const text = "windows options cannot be set for a linux pod"
	if sc := val.spec.SecurityContext; sc != nil && sc.WindowsOptions != nil {
		val.forbidden(path.Child("securityContext", "windowsOptions"), text)
	}
	VisitContainers(val.spec, path, func(c *corev1.Container, _ ContainerKind, path *field.Path) {
		if sc := c.SecurityContext; sc != nil && sc.WindowsOptions != nil {
			val.forbidden(path.Child("securityContext", "windowsOptions"), text)
		}
	})
}

func (val *validator) forWindows(path *field.Path) {
	forbid := func(path *field.Path, fields map[string]bool) {
		for _, name := range sortedKeys(fields) {
			if fields[name] {
				val.forbidden(path.Child(name), "cannot be set for a windows pod")
			}
		}
	}
	if sc := val.spec.SecurityContext; sc != nil {
		forbid(path.Child("securityContext"), map[string]bool{
			"appArmorProfile":          sc.AppArmorProfile != nil,
			"seLinuxOptions":           sc.SELinuxOptions != nil,
			"seccompProfile":           sc.SeccompProfile != nil,
			"fsGroup":                  sc.FSGroup != nil,
			"fsGroupChangePolicy":      sc.FSGroupChangePolicy != nil,
			"sysctls":                  len(sc.Sysctls) > 0,
			"runAsUser":                sc.RunAsUser != nil,
			"runAsGroup":               sc.RunAsGroup != nil,
			"supplementalGroups":       sc.SupplementalGroups != nil,
			"supplementalGroupsPolicy": sc.SupplementalGroupsPolicy != nil,
			"seLinuxChangePolicy":      sc.SELinuxChangePolicy != nil,
		})
	}
	forbid(path, map[string]bool{
		"hostUsers":             val.spec.HostUsers != nil,
		"hostPID":               val.spec.HostPID,
		"hostIPC":               val.spec.HostIPC,
		"shareProcessNamespace": val.spec.ShareProcessNamespace != nil,
	})
	VisitContainers(val.spec, path, func(c *corev1.Container, _ ContainerKind, path *field.Path) {
		if sc := c.SecurityContext; sc != nil {
			forbid(path.Child("securityContext"), map[string]bool{
				"appArmorProfile":          sc.AppArmorProfile != nil,
				"seLinuxOptions":           sc.SELinuxOptions != nil,
				"seccompProfile":           sc.SeccompProfile != nil,
				"capabilities":             sc.Capabilities != nil,
				"readOnlyRootFilesystem":   sc.ReadOnlyRootFilesystem != nil,
				"privileged":               sc.Privileged != nil,
				"allowPrivilegeEscalation": sc.AllowPrivilegeEscalation != nil,
				"procMount":                sc.ProcMount != nil,
				"runAsUser":                sc.RunAsUser != nil,
				"runAsGroup":               sc.RunAsGroup != nil,
			})
		}
	})
}

const (
	credentialKiB    = 64  // the largest credential specification
	userDomainLength = 256 // of user names: the domain must be shorter
	userNameLength   = 104 // of user names: the user must not be longer
)

var (
	controlCharacters  = regexp.MustCompile(`[[:cntrl:]]+`)
	netBIOSDomain      = regexp.MustCompile(`^[^\\/:\*\?"<>|\.][^\\/:\*\?"<>|]{0,14}$`)
	dnsDomain          = regexp.MustCompile(`^[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?(?:\.[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?)*$`)
	userNameForbidden  = regexp.MustCompile(`["/\\:;|=,\+\*\?<>@\[\]]`)
	onlyDotsAndSpaces  = regexp.MustCompile(`^[\. ]+$`)
	userNameCharacters = `runAsUserName's User cannot contain the following characters: "/\:;|=,+*?<>@[]`
)

func (val *validator) windowsOptions(options *corev1.WindowsSecurityContextOptions, path *field.Path) {
	if options == nil {
		return
	}
	if name := options.GMSACredentialSpecName; name != nil {
		val.subdomain(path.Child("gmsaCredentialSpecName"), *name)
	}
	if spec := options.GMSACredentialSpec; spec != nil {
		if *spec == "" {
			val.invalid(path.Child("gmsaCredentialSpec"), *spec, "gmsaCredentialSpec cannot be an empty string")
		} else if len(*spec) > credentialKiB*1024 {
			val.invalid(path.Child("gmsaCredentialSpec"), *spec, fmt.Sprintf("gmsaCredentialSpec size must be under %d KiB", credentialKiB))
		}
	}
	if name := options.RunAsUserName; name != nil {
		val.windowsUserName(path.Child("runAsUserName"), *name)
	}
}

// windowsUserName validates a name of the form DOMAIN\user, the domain being optional.
func (val *validator) windowsUserName(path *field.Path, name string) {
	parts := strings.Split(name, `\`)
	switch {
	case name == "":
		val.invalid(path, name, "runAsUserName cannot be an empty string")
		return
	case controlCharacters.MatchString(name):
		val.invalid(path, name, "runAsUserName cannot contain control characters")
		return
	case len(parts) > 2:
		val.invalid(path, name, "runAsUserName cannot contain more than one backslash")
		return
	}
	user := parts[len(parts)-1]
	if len(parts) == 2 {
		domain := parts[0]
		if len(domain) >= userDomainLength {
			val.invalid(path, name, fmt.Sprintf("runAsUserName's Domain length must be under %d characters", userDomainLength))
		}
		if !netBIOSDomain.MatchString(domain) && !dnsDomain.MatchString(domain) {
			val.invalid(path, name, "runAsUserName's Domain doesn't match the NetBios nor the DNS format")
		}
	}
	if user == "" {
		val.invalid(path, name, "runAsUserName's User cannot be empty")
	} else if len(user) > userNameLength {
		val.invalid(path, name, fmt.Sprintf("runAsUserName's User length must not be longer than %d characters", userNameLength))
	}
	if onlyDotsAndSpaces.MatchString(user) {
		val.invalid(path, name, "runAsUserName's User cannot contain only periods or spaces")
	}
	if userNameForbidden.MatchString(user) {
		val.invalid(path, name, userNameCharacters)
	}
}

// hostProcess validates Windows HostProcess containers: all containers of a pod or none, on the host network.
func (val *validator) hostProcess(path *field.Path) {
	var pod *bool
	if sc := val.spec.SecurityContext; sc != nil && sc.WindowsOptions != nil {
		pod = sc.WindowsOptions.HostProcess
	}
	all, onHost := 0, 0
	VisitContainers(val.spec, path, func(c *corev1.Container, _ ContainerKind, path *field.Path) {
		all++
		own := pod
		if sc := c.SecurityContext; sc != nil && sc.WindowsOptions != nil && sc.WindowsOptions.HostProcess != nil {
			own = sc.WindowsOptions.HostProcess
			if pod != nil && *pod != *own {
				val.invalid(path.Child("securityContext", "windowsOptions", "hostProcess"), *own,
					fmt.Sprintf("pod hostProcess value must be identical if both are specified, was %v", *pod))
			}
		}
		if own != nil && *own {
			onHost++
		}
	})
	if onHost == 0 {
		return
	}
	if onHost != all {
		val.invalid(path, "", "If pod contains any hostProcess containers then all containers must be HostProcess containers")
	}
	if !val.spec.HostNetwork {
		val.invalid(path.Child("hostNetwork"), false, "hostNetwork must be true if pod contains any hostProcess containers")
	}
}
