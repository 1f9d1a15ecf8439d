package runtime

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"skiff/internal/atomicfile"
	"skiff/internal/capability"
)

// directories are the directories of containerd.
type directories struct {
	dir     string // everything except sockets
	sockets string // sockets of containerd and of the shims
	data    string // skiff's data directory
}

// socketDirMax is the maximum length of the path of the socket directory: shims add a digest, and the kernel limits socket paths.
const socketDirMax = 42

// newDirectories returns the directories below a data directory. If its path is too long for sockets, they are in a directory below /run
// whose name is a hash of it.
func newDirectories(dataDir string) directories {
	f := directories{dir: filepath.Join(dataDir, "containerd"), data: dataDir}
	f.sockets = filepath.Join(f.dir, "s")
	if len(f.sockets) > socketDirMax {
		sum := sha256.Sum256([]byte(dataDir))
		f.sockets = filepath.Join("/run/skiff", hex.EncodeToString(sum[:6]))
	}
	return f
}

func (d directories) root() string        { return filepath.Join(d.dir, "root") }
func (d directories) state() string       { return filepath.Join(d.dir, "state") }
func (d directories) configFile() string  { return filepath.Join(d.dir, "config.toml") }
func (d directories) logFile() string     { return filepath.Join(d.dir, "containerd.log") }
func (d directories) pidFile() string     { return filepath.Join(d.dir, "pid") }
func (d directories) profile() string     { return filepath.Join(d.dir, "sandbox.json") }
func (d directories) imageRecord() string { return filepath.Join(d.dir, "images.json") }
func (d directories) socket() string      { return filepath.Join(d.sockets, "containerd.sock") }

// registries is the directory with a hosts.toml for each registry with special settings.
func (d directories) registries() string { return filepath.Join(d.data, "registries") }

// removeStateOfEarlierBoot removes the state of containers that ran before the host was rebooted, as it would be in /run. Images are kept.
func (d directories) removeStateOfEarlierBoot() error {
	boot, err := bootID()
	if err != nil {
		return err
	}
	bootFile := filepath.Join(d.dir, "boot")
	recorded, err := os.ReadFile(bootFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if string(recorded) == boot {
		return nil
	}
	if err := os.RemoveAll(d.state()); err != nil {
		return fmt.Errorf("remove container state of an earlier boot: %w", err)
	}
	if err := os.MkdirAll(d.dir, 0o700); err != nil {
		return err
	}
	return atomicfile.Write(bootFile, []byte(boot), 0o600)
}

// bootID identifies the boot of the host.
func bootID() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return string(id), err
}

// RemoveSockets removes the directory of sockets if it is not below the data directory.
func RemoveSockets(dataDir string) error {
	dir, err := filepath.Abs(dataDir)
	if err != nil {
		return err
	}
	d := newDirectories(dir)
	if strings.HasPrefix(d.sockets, d.dir+"/") {
		return nil
	}
	if err := os.RemoveAll(d.sockets); err != nil {
		return fmt.Errorf("remove sockets: %w", err)
	}
	_ = os.Remove(filepath.Dir(d.sockets)) // succeeds if no other skiff has sockets there
	return nil
}

// settings are the input of the configuration file.
type settings struct {
	directories             directories
	shim, runc              string
	networkBin, networkConf string
	// systemdCgroup has runc create the cgroups of containers through systemd.
	systemdCgroup bool
	// privileged is set if oom_score_adj can be lowered, which needs CAP_SYS_RESOURCE.
	privileged bool
}

// disabled are containerd plugins that a node does not need, or that would use files outside the directory.
var disabled = []string{
	"io.containerd.differ.v1.erofs",
	"io.containerd.image-verifier.v1.bindir",
	"io.containerd.internal.v1.opt",
	"io.containerd.internal.v1.restart",
	"io.containerd.internal.v1.tracing",
	"io.containerd.monitor.container.v1.restart",
	"io.containerd.mount-handler.v1.erofs",
	"io.containerd.nri.v1.nri",
	"io.containerd.snapshotter.v1.blockfile",
	"io.containerd.snapshotter.v1.erofs",
	"io.containerd.snapshotter.v1.native",
	"io.containerd.tracing.processor.v1.otlp",
}

// text is containerd's configuration file in version 3 of its format, which every containerd 2 supports.
func (s settings) text() string {
	oomScore := 0
	if s.privileged {
		// As in containerd's systemd unit: the runtime is the last process to be OOM-killed.
		oomScore = -999
	}
	var quoted []string
	for _, plugin := range disabled {
		quoted = append(quoted, quote(plugin))
	}
	const images, runtime = "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime"
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("# Written by skiff at every start; changes here are lost.")
	line("version = 3")
	line("root = %s", quote(s.directories.root()))
	line("state = %s", quote(s.directories.state()))
	line("oom_score = %d", oomScore)
	line("disabled_plugins = [%s]", strings.Join(quoted, ", "))
	line("imports = []")
	line("[debug]\n  level = 'warn'")
	line("[grpc]\n  address = %s", quote(s.directories.socket()))
	// When containerd starts on a busy host, shims may need longer than the seconds that it waits by default. Containers whose shims have not responded are
	// killed, by containerd itself or, as their state is unknown, by the kubelet.
	line("[timeouts]\n  'io.containerd.timeout.shim.load' = '1m'\n  'io.containerd.timeout.task.state' = '10s'")
	// The files of a layer are on disk before its snapshot is committed: a power loss must not leave images whose files are empty. Only what goes
	// through the diff service does that, and pulls through the transfer service, the default, do not.
	line("[plugins.'io.containerd.service.v1.diff-service']\n  sync_fs = true")
	line("[plugins.'%s']\n  use_local_image_pull = true", images)
	line("[plugins.'io.containerd.shim.v1.manager']\n  socket_dir = %s", quote(s.directories.sockets))
	line("[plugins.'%s'.pinned_images]\n  sandbox = %s", images, quote(SandboxImage))
	line("[plugins.'%s'.registry]\n  config_path = %s", images, quote(s.directories.registries()))
	line("[plugins.'%s']", runtime)
	line("  restrict_oom_score_adj = %t", !s.privileged)
	line("  netns_mounts_under_state_dir = true")
	line("  [plugins.'%s'.cni]", runtime)
	line("    bin_dirs = [%s]", quote(s.networkBin))
	line("    conf_dir = %s", quote(s.networkConf))
	line("    use_internal_loopback = true")
	line("  [plugins.'%s'.containerd]\n    default_runtime_name = 'runc'", runtime)
	line("  [plugins.'%s'.containerd.runtimes.runc]", runtime)
	line("    runtime_type = 'io.containerd.runc.v2'")
	line("    runtime_path = %s", quote(s.shim))
	line("    [plugins.'%s'.containerd.runtimes.runc.options]", runtime)
	line("      BinaryName = %s", quote(s.runc))
	line("      Root = %s", quote(filepath.Join(s.directories.state(), "runc")))
	line("      SystemdCgroup = %t", s.systemdCgroup)
	return b.String()
}

// quote formats a TOML string. Go's quoting is the same except for control characters, which these paths do not contain.
func quote(s string) string { return strconv.Quote(s) }

// mayLowerOOMScore reports whether this process may lower oom_score_adj.
func mayLowerOOMScore() bool {
	own, err := capability.Effective()
	return err == nil && own.Has(unix.CAP_SYS_RESOURCE)
}
