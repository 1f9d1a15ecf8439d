package system

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"skiff/internal/atomicfile"
	"skiff/internal/config"
	"skiff/internal/kubelet"
	"skiff/internal/kubelet/runtime"
	"skiff/internal/systemd"
)

const (
	unitName = "skiff.service"
	unitDir  = "/etc/systemd/system"
	// The commands that a service can run.
	commandServer, commandAgent = "server", "agent"
	// tokenFile has the join token of an installed agent or server, below its data directory: arguments can be read by everyone.
	tokenFile = "join-token"
	// startTimeout bounds how long an installation waits for the service. It goes on starting afterwards.
	startTimeout = 5 * time.Minute
)

// installer installs and uninstalls the service.
type installer struct {
	unitDir string
	systemd *systemd.Manager
	// clean removes what the node leaves on its host.
	clean func(context.Context, config.Clean, io.Writer) error
	out   io.Writer
}

func newInstaller(out io.Writer) (*installer, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("only root can install and uninstall services")
	}
	if !systemd.IsRunning() {
		return nil, errors.New("this host does not run systemd; start skiff with its own init system")
	}
	return &installer{unitDir: unitDir, systemd: &systemd.Manager{}, clean: Clean, out: out}, nil
}

// InstallServer installs `skiff server` as a service of this host. arguments are its flags; the token of --join-token is moved to a file that only
// root can read.
func InstallServer(ctx context.Context, c config.InstallServer, arguments []string, out io.Writer) error {
	i, err := newInstaller(out)
	if err != nil {
		return err
	}
	defer i.systemd.Close()
	settings, err := c.Server.Node.KubeletConfiguration()
	if err != nil {
		return err
	}
	if c.Servers.Reset {
		return errors.New("--cluster-reset: is done once, not by a service")
	}
	if err := checkServerArguments(arguments); err != nil {
		return err
	}
	if arguments, err = moveToken(c.DataDir, arguments, "join-token"); err != nil {
		return err
	}
	u := unit{command: commandServer, arguments: arguments, foreignRuntime: settings.ContainerRuntimeEndpoint != ""}
	if err := i.install(ctx, u, c.Install); err != nil {
		return err
	}
	kubeconfig := filepath.Join(c.DataDir, adminKubeconfig)
	fmt.Fprintf(out, "The admin kubeconfig is %s. Next:\n  export KUBECONFIG=%s\n  kubectl get nodes\n", kubeconfig, kubeconfig)
	return nil
}

// InstallAgent installs `skiff agent` as a service of this host. arguments are its flags; the token of --token is moved to a file that only root can
// read.
func InstallAgent(ctx context.Context, c config.InstallAgent, arguments []string, out io.Writer) error {
	i, err := newInstaller(out)
	if err != nil {
		return err
	}
	defer i.systemd.Close()
	settings, err := c.Agent.Node.KubeletConfiguration()
	if err != nil {
		return err
	}
	if arguments, err = moveToken(c.DataDir, arguments, "token"); err != nil {
		return err
	}
	u := unit{command: commandAgent, arguments: arguments, foreignRuntime: settings.ContainerRuntimeEndpoint != ""}
	return i.install(ctx, u, c.Install)
}

// checkServerArguments refuses the administrator's token of --token, which has no file of its own.
func checkServerArguments(arguments []string) error {
	if slices.ContainsFunc(arguments, func(a string) bool { return strings.HasPrefix(a, "--token=") && a != "--token=" }) {
		return fmt.Errorf("--token: a service would show it to every user in the process list: write 'token: TOKEN' to %s, and chmod 600 it", config.DefaultFile)
	}
	return nil
}

// moveToken writes the join token of a flag to a file below the data directory, and replaces the flag by that of the file.
func moveToken(dataDir string, arguments []string, flag string) ([]string, error) {
	prefix := "--" + flag + "="
	i := slices.IndexFunc(arguments, func(a string) bool { return strings.HasPrefix(a, prefix) })
	if i < 0 {
		return arguments, nil
	}
	token := strings.TrimPrefix(arguments[i], prefix)
	arguments = slices.Delete(slices.Clone(arguments), i, i+1)
	if token == "" {
		return arguments, nil
	}
	if err := createDataDir(dataDir); err != nil {
		return nil, err
	}
	path := filepath.Join(dataDir, tokenFile)
	return append(arguments, "--"+flag+"-file="+path), atomicfile.Write(path, []byte(token+"\n"), 0o600)
}

// install writes the unit, enables it and starts it. An installed service is replaced and restarted.
func (i *installer) install(ctx context.Context, u unit, c config.Install) error {
	path := filepath.Join(i.unitDir, unitName)
	if old, err := os.ReadFile(path); err == nil && !strings.HasPrefix(string(old), unitMarker) {
		return fmt.Errorf("%s was not written by skiff install: remove it first", path)
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read unit: %w", err)
	}
	if err := i.write(ctx, path, u); err != nil {
		return err
	}
	if err := i.systemd.Enable(ctx, path); err != nil {
		return err
	}
	if c.NoStart {
		fmt.Fprintf(i.out, "%s is installed; start it with: systemctl start %s\n", unitName, unitName)
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := i.systemd.Restart(ctx, unitName); err != nil {
		return fmt.Errorf("%w; its log: journalctl -u %s", err, unitName)
	}
	fmt.Fprintf(i.out, "%s is installed and running; its log: journalctl -u %s\n", unitName, unitName)
	return nil
}

// write writes the unit of this program.
func (i *installer) write(ctx context.Context, path string, u unit) (err error) {
	if u.program, err = os.Executable(); err == nil {
		u.program, err = filepath.EvalSymlinks(u.program)
	}
	if err != nil {
		return fmt.Errorf("find the program of skiff: %w", err)
	}
	if len(u.recorded) == 0 {
		service, err := u.installed()
		if err != nil {
			return err
		}
		u.recorded = service.record()
	}
	// Only root can read it: flags may be secret.
	if err := atomicfile.Write(path, []byte(u.text()), 0o600); err != nil {
		return fmt.Errorf("write unit: %w", err)
	}
	return i.systemd.Reload(ctx)
}

// RefreshService writes the unit of the installed service as this version of skiff has it, with the flags that the service has, and restarts the
// service if it is running.
func RefreshService(ctx context.Context, out io.Writer) error {
	i, err := newInstaller(out)
	if err != nil {
		return err
	}
	defer i.systemd.Close()
	return i.refresh(ctx)
}

func (i *installer) refresh(ctx context.Context) error {
	path, u, err := i.readUnit()
	if err != nil {
		return err
	}
	service, err := u.installed()
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if service.node != nil {
		settings, err := service.node.KubeletConfiguration()
		if err != nil {
			return err
		}
		u.foreignRuntime = settings.ContainerRuntimeEndpoint != ""
	}
	if err := i.write(ctx, path, u); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := i.systemd.TryRestart(ctx, unitName); err != nil {
		return fmt.Errorf("%w; its log: journalctl -u %s", err, unitName)
	}
	fmt.Fprintf(i.out, "%s is refreshed\n", unitName)
	return nil
}

// readUnit reads the unit of the installed service.
func (i *installer) readUnit() (path string, u unit, err error) {
	path = filepath.Join(i.unitDir, unitName)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return path, unit{}, fmt.Errorf("skiff is not installed: %s does not exist", path)
	}
	if err != nil {
		return path, unit{}, fmt.Errorf("read unit: %w", err)
	}
	if u, err = parseUnit(string(text)); err != nil {
		return path, unit{}, fmt.Errorf("%s: %w", path, err)
	}
	return path, u, nil
}

// Uninstall stops the service of this host and removes it with its pods, its network and its data.
func Uninstall(ctx context.Context, c config.Uninstall, out io.Writer) error {
	i, err := newInstaller(out)
	if err != nil {
		return err
	}
	defer i.systemd.Close()
	return i.uninstall(ctx, c)
}

// uninstall removes the unit last, so that it can be repeated after a failure.
func (i *installer) uninstall(ctx context.Context, c config.Uninstall) error {
	path, u, err := i.readUnit()
	if err != nil {
		return err
	}
	service, err := u.installed()
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if err := i.systemd.Stop(ctx, unitName); err != nil {
		return err
	}
	if err := i.removeNodeAndData(ctx, service, c.KeepData); err != nil {
		return err
	}
	if err := i.systemd.Disable(ctx, unitName); err != nil {
		return err
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("remove unit: %w", err)
	}
	if err := errors.Join(i.systemd.Reload(ctx), i.systemd.ResetFailed(ctx, unitName)); err != nil {
		return err
	}
	fmt.Fprintf(i.out, "removed %s\n", unitName)
	if _, err := os.Stat(service.configFile); err == nil {
		fmt.Fprintf(i.out, "kept %s\n", service.configFile)
	}
	if _, err := os.Stat(service.configuredDataDir); err == nil && service.configuredDataDir != service.dataDir {
		fmt.Fprintf(i.out, "kept %s: it became the data directory after the installation; skiff clean --data-dir=%s removes what a node has left with it\n",
			service.configuredDataDir, service.configuredDataDir)
	}
	return nil
}

// removeNodeAndData removes what the service left on the host.
func (i *installer) removeNodeAndData(ctx context.Context, service installed, keepData bool) error {
	if _, err := os.Stat(service.dataDir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if service.node != nil {
		c := config.Clean{
			DataDir: service.dataDir, RootDir: service.node.RootDir, KubeletConfig: service.node.ConfigFile, ContainerRuntimeEndpoint: service.node.ContainerRuntimeEndpoint,
		}
		if err := i.clean(ctx, c, i.out); err != nil {
			return err
		}
	}
	if keepData {
		return nil
	}
	if service.node != nil {
		if err := i.removeKubeletDir(service); err != nil {
			return err
		}
	}
	if service.kubeconfig != "" {
		if err := os.Remove(service.kubeconfig); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove kubeconfig: %w", err)
		}
	}
	if service.merged.Path != "" {
		if err := unmergeKubeconfig(service.merged, service.dataDir); err != nil {
			fmt.Fprintf(i.out, "kept the context %s: %v\n", service.merged.Context, err)
		}
	}
	return i.removeData(service.dataDir)
}

// removeKubeletDir removes the kubelet's directory and the logs of its pods, if they are not in the data directory.
func (i *installer) removeKubeletDir(service installed) error {
	dir, err := usedKubeletDir(service.node.KubeletDir(service.dataDir), service.dataDir)
	if err != nil {
		return err
	}
	if dir == "" || isBelow(dir, service.dataDir) {
		return nil
	}
	settings, err := service.node.KubeletConfiguration()
	if err != nil {
		return err
	}
	if err := removePodLogs(dir, cmp.Or(settings.PodLogsDir, config.PodLogsDir(dir))); err != nil {
		return fmt.Errorf("remove logs: %w", err)
	}
	return i.removeOwn(dir, kubeletEntries)
}

// removePodLogs removes the logs of the pods that have a directory in the kubelet's, and the links to them.
func removePodLogs(kubeletDir, logs string) error {
	uids, err := podDirectories(kubeletDir)
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(logs)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, entry := range entries {
		name := entry.Name()
		if uids[name[strings.LastIndexByte(name, '_')+1:]] {
			if err := os.RemoveAll(filepath.Join(logs, name)); err != nil {
				return err
			}
		}
	}
	if err := kubelet.RemoveDeadLogLinks(logs, func(string) bool { return false }); err != nil {
		return err
	}
	// These succeed if nobody else has logs there.
	_ = os.Remove(kubelet.LogLinksDir(logs))
	_ = os.Remove(logs)
	return nil
}

// removeData removes a data directory.
func (i *installer) removeData(dir string) error {
	if err := runtime.RemoveSockets(dir); err != nil {
		return err
	}
	return i.removeOwn(dir, dataEntries)
}

// removeOwn removes a directory with what is skiff's of the entries. Files that are not skiff's are kept, and the directory with them: it may be one
// that others use too.
func (i *installer) removeOwn(dir string, names []string) error {
	// A directory that is still mounted belongs to a volume; removing its files would remove the volume's data.
	if mounts, err := mountsBelow(dir); err != nil {
		return err
	} else if len(mounts) > 0 {
		return fmt.Errorf("directory %s is not removed, because %s is mounted: unmount it, or use --keep-data", dir, mounts[0].Mountpoint)
	}
	own, err := ownEntries(dir, names)
	if err != nil {
		return err
	}
	for _, entry := range own {
		if err := os.RemoveAll(filepath.Join(dir, entry)); err != nil {
			return fmt.Errorf("remove directory: %w", err)
		}
	}
	others, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("remove directory: %w", err)
	}
	if len(others) > 0 {
		fmt.Fprintf(i.out, "kept %s: %s is not of skiff\n", dir, others[0].Name())
		return nil
	}
	// The directory may be the mount point of a file system of its own.
	if err := os.Remove(dir); err != nil && !errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("remove directory: %w", err)
	}
	fmt.Fprintf(i.out, "removed %s\n", dir)
	return nil
}
