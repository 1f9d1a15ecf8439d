package doctor

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"skiff/internal/capability"
)

// neededCapabilities are what a node does with each capability.
var neededCapabilities = []struct {
	name     string
	number   int
	severity Severity
	breaks   string
}{
	{"CAP_SYS_ADMIN", unix.CAP_SYS_ADMIN, Error, "nothing can be mounted and no namespace made: no pod starts"},
	{"CAP_NET_ADMIN", unix.CAP_NET_ADMIN, Error, "neither links nor rules can be made: no pod network, no Services"},
	{"CAP_NET_RAW", unix.CAP_NET_RAW, Error, "addresses of pods cannot be announced"},
	{"CAP_SYS_CHROOT", unix.CAP_SYS_CHROOT, Error, "containers do not start"},
	{"CAP_MKNOD", unix.CAP_MKNOD, Error, "devices of containers and images with devices cannot be made"},
	{"CAP_CHOWN", unix.CAP_CHOWN, Error, "images and volumes cannot be unpacked with their owners"},
	{"CAP_DAC_OVERRIDE", unix.CAP_DAC_OVERRIDE, Error, "files of containers with other owners cannot be read"},
	{"CAP_FOWNER", unix.CAP_FOWNER, Error, "permissions in images and volumes cannot be set"},
	{"CAP_SETUID", unix.CAP_SETUID, Error, "containers do not start as their users"},
	{"CAP_SETGID", unix.CAP_SETGID, Error, "containers do not start with their groups"},
	{"CAP_SETPCAP", unix.CAP_SETPCAP, Error, "capabilities of containers cannot be dropped"},
	{"CAP_KILL", unix.CAP_KILL, Error, "containers cannot be ended"},
	{"CAP_NET_BIND_SERVICE", unix.CAP_NET_BIND_SERVICE, Error, "the DNS server cannot listen at port 53"},
	{"CAP_SYS_PTRACE", unix.CAP_SYS_PTRACE, Warning, "namespaces of containers cannot be entered for attach and port-forward"},
	{"CAP_SYS_RESOURCE", unix.CAP_SYS_RESOURCE, Warning, "oom_score_adj cannot be lowered: important containers may be OOM-killed before others, and limits cannot be raised"},
}

func readCapabilities(context.Context) (capability.Set, error) { return capability.Effective() }

func decideCapabilities(own capability.Set) (findings []Finding) {
	missing := map[Severity][]string{}
	breaks := map[Severity]string{}
	for _, c := range neededCapabilities {
		if !own.Has(c.number) {
			missing[c.severity] = append(missing[c.severity], c.name)
			if breaks[c.severity] == "" {
				breaks[c.severity] = c.breaks
			}
		}
	}
	for _, severity := range []Severity{Error, Warning} {
		if names := missing[severity]; len(names) > 0 {
			findings = append(findings, Finding{
				Severity: severity, Problem: "this process lacks " + strings.Join(names, ", "), Breaks: breaks[severity], When: whenStarted,
				Fix: "run skiff as root; in a container, with --privileged or these capabilities",
			})
		}
	}
	return findings
}

// limitState are limits of the kernel and of this process. A limit that does not exist on the host is -1.
type limitState struct {
	// openFiles is the hard limit of this process, maxOpenFiles the highest that the kernel allows any process.
	openFiles, maxOpenFiles int64
	// values are the sysctls of limits by their path below /proc/sys.
	values map[string]int64
}

// unitOpenFiles is the limit that the service of skiff has.
const unitOpenFiles = 1 << 20

// minOpenFiles is what a server with a node needs for some hundred connections and pods.
const minOpenFiles = 1 << 16

// limits are the sysctls that a node may run into, and the least value at which that is not to be expected. The kernel's own values for a host with 1 GB are
// higher, except that of inotify, which a few pods use up.
var limits = []struct {
	name     string
	minimum  int64
	severity Severity
	breaks   string
}{
	{"fs/inotify/max_user_instances", 512, Warning, "programs in pods fail with \"too many open files\": log collectors, shells with tail, containers with systemd"},
	{"fs/inotify/max_user_watches", 65536, Warning, "programs in pods fail with \"no space left on device\": those that watch many files"},
	{"fs/file-max", minOpenFiles, Warning, "no program on the host can open files"},
	{"kernel/pid_max", 1 << 15, Warning, "pods cannot start processes, and the kubelet evicts pods (pid.available)"},
	{"kernel/threads-max", 1 << 12, Warning, "pods cannot start processes, and the kubelet evicts pods (pid.available)"},
	{"net/netfilter/nf_conntrack_max", 1 << 16, Warning, "new connections are dropped when the table of connections is full (\"nf_conntrack: table full\")"},
	{"user/max_user_namespaces", 1, Warning, "pods with hostUsers: false do not start"},
	{"user/max_net_namespaces", 1000, Warning, "pods do not start, because their network namespace cannot be made"},
}

func readLimits(context.Context) (limitState, error) {
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return limitState{}, fmt.Errorf("read the limit of open files: %w", err)
	}
	s := limitState{openFiles: int64(min(files.Max, 1<<62)), maxOpenFiles: sysctl("fs/nr_open"), values: map[string]int64{}}
	for _, limit := range limits {
		s.values[limit.name] = sysctl(limit.name)
	}
	return s, nil
}

// sysctl reads a number; -1 if there is none.
func sysctl(name string) int64 {
	text, err := os.ReadFile(filepath.Join("/proc/sys", name))
	if err != nil {
		return -1
	}
	// Values above the largest int64 are meant to be no limit.
	n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return -1
	}
	return int64(min(n, 1<<62))
}

func decideLimits(s limitState) (findings []Finding) {
	switch {
	case s.maxOpenFiles >= 0 && s.maxOpenFiles < unitOpenFiles:
		findings = append(findings, Finding{
			Severity: Error, Problem: fmt.Sprintf("fs.nr_open is %d, and the service of skiff has LimitNOFILE=%d", s.maxOpenFiles, unitOpenFiles),
			Breaks: "systemd does not start the service", When: "at skiff install", Fix: fmt.Sprintf("sysctl -w fs.nr_open=%d, and the same in /etc/sysctl.d", unitOpenFiles),
		})
	case s.openFiles < minOpenFiles:
		findings = append(findings, Finding{
			Severity: Warning, Problem: fmt.Sprintf("a process that is started here may have %d open files", s.openFiles), Breaks: "connections to the API are refused, and pods do not start",
			When: whenLater, Fix: "install skiff as a service, which has a limit of its own, or raise the limit: ulimit -n " + strconv.Itoa(unitOpenFiles),
		})
	}
	for _, limit := range limits {
		if value := s.values[limit.name]; value >= 0 && value < limit.minimum {
			name := strings.ReplaceAll(limit.name, "/", ".")
			findings = append(findings, Finding{
				Severity: limit.severity, Problem: fmt.Sprintf("%s is %d, less than %d", name, value, limit.minimum), Breaks: limit.breaks, When: whenLater,
				Fix: fmt.Sprintf("sysctl -w %s=%d, and the same in /etc/sysctl.d", name, limit.minimum),
			})
		}
	}
	return findings
}
