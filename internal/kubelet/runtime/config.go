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
)

// directories are the places containerd works in.
type directories struct {
	dir     string // all but the sockets
	sockets string // sockets of containerd and of the shims
	data    string // skiff's data directory, for what an operator puts there
}

// socketDirectoryMax is the longest directory for a shim's socket: its name adds a digest, and the kernel bounds the whole.
const socketDirMax = 42

// directoriesBelow decides on the directories of a data directory. The path of a socket has to be short; where the data directory's is not, the
// sockets go to /run under a name made from it.
func dirsBelow(dataDir string) directories {
	f := directories{dir: filepath.Join(dataDir, "containerd"), data: dataDir}
	f.sockets = filepath.Join(f.dir, "s")
	if len(f.sockets) > socketDirMax {
		sum := sha256.Sum256([]byte(dataDir))
		f.sockets = filepath.Join("/run/skiff", hex.EncodeToString(sum[:6]))
	}
	return f
}

func (f directories) root() string       { return filepath.Join(f.dir, "root") }
func (f directories) state() string      { return filepath.Join(f.dir, "state") }
func (f directories) configFile() string { return filepath.Join(f.dir, "config.toml") }
func (f directories) logFile() string    { return filepath.Join(f.dir, "containerd.log") }
func (f directories) pidFile() string    { return filepath.Join(f.dir, "pid") }
func (f directories) profile() string    { return filepath.Join(f.dir, "sandbox.json") }
func (f directories) socket() string     { return filepath.Join(f.sockets, "containerd.sock") }

// registries holds a hosts.toml for each registry that is not to be reached in the usual way.
func (f directories) registries() string { return filepath.Join(f.data, "registries") }

// forgetOldBoot removes the state of containers that ran before the machine was started: what would lie in /run, which a reboot
// empties. What is in the store stays.
func (f directories) forgetOldBoot() error {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return err
	}
	note := filepath.Join(f.dir, "boot")
	noted, err := os.ReadFile(note)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if string(noted) == string(boot) {
		return nil
	}
	if err := os.RemoveAll(f.state()); err != nil {
		return fmt.Errorf("forget containers of before the reboot: %w", err)
	}
	if err := os.MkdirAll(f.dir, 0o700); err != nil {
		return err
	}
	return os.WriteFile(note, boot, 0o600)
}

// settings are what the configuration is made from.
type settings struct {
	directories             directories
	shim, runc              string
	networkBin, networkConf string
	// privileged says that processes may be made less likely to be ended when memory runs out, which takes a capability.
	privileged bool
}

// disabled are plugins of containerd that a node has no use for, or that would reach outside the directory.
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

// text is containerd's configuration file, in version 3 of its format, which every containerd 2 reads.
func (s settings) text() string {
	oomScore := 0
	if s.privileged {
		// As its own service file has it: the runtime is the last to go.
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
	line("      SystemdCgroup = false")
	return b.String()
}

// quote writes a string as TOML wants it. Go's own quoting is the same for all but control characters, which no path of ours has.
func quote(s string) string { return strconv.Quote(s) }

// mayLowerOOMScore reports whether this process may make others less likely to be ended when memory runs out.
func mayLowerOOMScore() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return false
	}
	return data[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0
}
