package system

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"

	"skiff/internal/config"
	"skiff/internal/kubelet/cgroup"
	"skiff/internal/kubelet/cri"
	"skiff/internal/kubelet/shutdown"
	"skiff/internal/listeners"
	"skiff/internal/network/cni"
	"skiff/internal/network/firewall"
	"skiff/internal/network/networkmanager"
	"skiff/internal/network/nft"
	"skiff/internal/network/overlay"
	"skiff/internal/network/policy"
	"skiff/internal/network/proxy"
	"skiff/internal/systemd"
)

// cleanTimeout is how long the container runtime may take to stop all pods.
const cleanTimeout = 2 * time.Minute

// Clean removes what a node leaves on its host when skiff stops, because pods keep running without it: pods, links, routes, nftables rules,
// cgroups and mounts. The state of the cluster and the images are kept. All of it has the same names for every node, so nothing is removed if no node has
// run with the directories, or if another skiff runs one now.
func Clean(ctx context.Context, c config.Clean, out io.Writer) error {
	if _, err := os.Stat(c.DataDir); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("--data-dir: %s does not exist", c.DataDir)
	}
	node := config.Node{ConfigFile: c.KubeletConfig, ContainerRuntimeEndpoint: c.ContainerRuntimeEndpoint, RootDir: c.RootDir}
	kubeletDir, err := usedKubeletDir(node.KubeletDir(c.DataDir), c.DataDir)
	if err != nil {
		return err
	}
	dirs := nodeDirs{data: c.DataDir, kubelet: kubeletDir}
	hasNode, err := dirs.hasNode()
	if err != nil {
		return explainDir(err, c.DataDir, "data-dir")
	}
	if !hasNode {
		fmt.Fprintf(out, "no node has run with %s: there is nothing to remove\n", c.DataDir)
		return nil
	}
	unlock, err := lockDirs(dirs.all()...)
	if err != nil {
		return err
	}
	defer unlock()
	settings, err := node.KubeletConfiguration()
	if err != nil {
		return err
	}
	isShared, err := findOtherNode(settings)
	if err != nil {
		return err
	}
	pods, err := cleanRuntime(ctx, dirs, settings)
	if err != nil {
		return err
	}
	if err := shutdown.Unconfigure(shutdown.DefaultConfigDir); err != nil {
		return err
	}
	err = errors.Join(overlay.Remove(), firewall.Remove(), networkmanager.Default().Unconfigure(), nft.Remove(proxy.DefaultTable), nft.Remove(policy.DefaultTable),
		dnsAddresses(c.DataDir).Set(nil))
	if err != nil {
		return err
	}
	if err := removeCgroups(settings.CgroupRoot, dirs.kubelet, isShared, out); err != nil {
		return err
	}
	mounts, err := unmountVolumes(dirs)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "removed %d pods, %d mounts, the pod network and the cgroups of %s\n", pods, mounts, c.DataDir)
	return nil
}

// nodeDirs are the directories of a node. kubelet is empty if skiff has never used the kubelet's directory.
type nodeDirs struct{ data, kubelet string }

func (d nodeDirs) all() []string {
	if d.kubelet == "" {
		return []string{d.data}
	}
	return []string{d.data, d.kubelet}
}

// hasNode reports whether a node has run with the directories. An agent that was never more than joined has a kubelet's directory, too.
func (d nodeDirs) hasNode() (bool, error) {
	traces := []string{filepath.Join(d.data, "containerd")}
	if d.kubelet != "" {
		traces = append(traces, filepath.Join(d.kubelet, lockFile))
	}
	for _, path := range traces {
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			return err == nil, err
		}
	}
	return false, nil
}

// findOtherNode reports whether another program runs a kubelet on this host, which has cgroups with the same names. A node of another skiff has everything else
// with the same names, too: that is an error.
func findOtherNode(settings *kubeletconfig.KubeletConfiguration) (isShared bool, err error) {
	if !*settings.EnableServer {
		return false, nil
	}
	holder, held, err := listeners.Find("tcp", net.JoinHostPort(settings.Address, strconv.Itoa(int(settings.Port))))
	if err != nil || !held {
		return false, err
	}
	if strings.HasPrefix(holder.Name, "skiff") {
		return true, fmt.Errorf("another skiff runs a node on this host, whose network would be removed: stop it first (process %d, which has port %d)", holder.PID, holder.Address.Port())
	}
	return true, nil
}

// removePodNetwork removes the pod network of this host, and skiff's files from the directories of the container runtime.
func removePodNetwork(binDir, confDir string) error {
	network, configured, err := cni.Read(confDir)
	if err != nil {
		return err
	}
	if configured {
		if err := errors.Join(cni.Remove(network), cni.Unconfigure(confDir)); err != nil {
			return err
		}
	}
	return cni.Uninstall(binDir)
}

// removeCgroups removes the cgroups of pods, of whichever driver they are. isShared is set if another kubelet runs on this host.
func removeCgroups(root, kubeletDir string, isShared bool, out io.Writer) error {
	uids, err := podDirectories(kubeletDir)
	if err != nil {
		return err
	}
	drivers := []string{cgroup.Cgroupfs}
	if systemd.IsRunning() {
		drivers = append(drivers, cgroup.Systemd)
	}
	for _, driver := range drivers {
		groups, err := cgroup.New(cgroup.Settings{Root: root, Driver: driver})
		if err != nil {
			return err
		}
		othersStay, err := groups.RemoveNode(func(uid types.UID) bool { return uids[string(uid)] }, isShared)
		if err != nil {
			return err
		}
		if othersStay {
			fmt.Fprintln(out, "kept the cgroups of pods that are not of this node")
		}
	}
	return nil
}

// cleanRuntime removes the pods of the node from its container runtime, and then the pod network. It returns the number of pods.
func cleanRuntime(ctx context.Context, dirs nodeDirs, settings *kubeletconfig.KubeletConfiguration) (int, error) {
	if settings.ContainerRuntimeEndpoint != "" {
		return cleanForeignRuntime(ctx, dirs.kubelet, settings.ContainerRuntimeEndpoint)
	}
	pods, err := removePods(ctx, dirs.data, settings)
	if err != nil {
		return 0, fmt.Errorf("remove pods: %w", err)
	}
	return pods, removePodNetwork(ownCNIDirs(dirs.data))
}

// cleanForeignRuntime is cleanRuntime for a container runtime that skiff does not run. Others may have sandboxes there too: the pods of this node
// are those with a directory of the kubelet.
func cleanForeignRuntime(ctx context.Context, kubeletDir, endpoint string) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, cleanTimeout)
	defer cancel()
	uids, err := podDirectories(kubeletDir)
	if err != nil {
		return 0, err
	}
	client, err := cri.Dial(endpoint)
	if err != nil {
		return 0, err
	}
	defer client.Close()
	runtime := cri.New(client)
	configuration, err := runtime.Configuration(ctx)
	if err != nil {
		return 0, err
	}
	pods, err := removeSandboxes(ctx, runtime, func(s *cri.Sandbox) bool { return uids[string(s.UID)] })
	if err != nil {
		return 0, fmt.Errorf("remove pods: %w", err)
	}
	bin, conf := foreignCNIDirs(configuration)
	if err := removePodNetwork(bin, conf); err != nil {
		return 0, err
	}
	_ = os.Remove(bin) // succeeds if it is empty
	return pods, nil
}

// removePods stops and removes all pods of skiff's own containerd.
func removePods(ctx context.Context, dataDir string, settings *kubeletconfig.KubeletConfiguration) (int, error) {
	if _, err := os.Stat(filepath.Join(dataDir, "containerd")); errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	own, err := newContainerd(dataDir, settings, slog.New(slog.DiscardHandler))
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, cleanTimeout)
	done := make(chan error, 1)
	go func() { done <- own.Run(ctx) }()
	removed, err := func() (int, error) {
		select {
		case <-own.Ready():
		case err := <-done:
			done <- err
			return 0, fmt.Errorf("start containerd: %w", err)
		case <-ctx.Done():
			return 0, ctx.Err()
		}
		client, err := cri.Dial(own.Endpoint())
		if err != nil {
			return 0, err
		}
		defer client.Close()
		return removeSandboxes(ctx, cri.New(client), func(*cri.Sandbox) bool { return true })
	}()
	cancel()
	if exit := <-done; err == nil && exit != nil && !errors.Is(exit, context.Canceled) {
		err = exit
	}
	return removed, err
}

// podDirectories are the UIDs of the pods that have a directory in the kubelet's. There are none if skiff has never used that.
func podDirectories(kubeletDir string) (map[string]bool, error) {
	if kubeletDir == "" {
		return nil, nil
	}
	entries, err := os.ReadDir(filepath.Join(kubeletDir, "pods"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	uids := map[string]bool{}
	for _, entry := range entries {
		uids[entry.Name()] = true
	}
	return uids, nil
}

// removeSandboxes stops and removes the sandboxes that are of this node.
func removeSandboxes(ctx context.Context, runtime *cri.Runtime, own func(*cri.Sandbox) bool) (int, error) {
	sandboxes, err := runtime.ListPodSandboxes(ctx, "")
	if err != nil {
		return 0, err
	}
	removed := 0
	for _, s := range sandboxes {
		if !own(s) {
			continue
		}
		if err := runtime.StopPodSandbox(ctx, s.ID); err != nil {
			return 0, fmt.Errorf("stop %s/%s: %w", s.Namespace, s.Name, err)
		}
		if err := runtime.RemovePodSandbox(ctx, s.ID); err != nil {
			return 0, fmt.Errorf("remove %s/%s: %w", s.Namespace, s.Name, err)
		}
		removed++
	}
	return removed, nil
}

// mountsBelow lists the mounts below a directory, in the order in which they were made. A directory that does not exist has none.
func mountsBelow(dir string) ([]*mountinfo.Info, error) {
	dir, err := resolve(dir)
	if err != nil {
		return nil, err
	}
	mounts, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) { return !isBelow(m.Mountpoint, dir), false })
	if err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	return mounts, nil
}

// resolve returns the path of a directory without symlinks. One that does not exist is returned as it is.
func resolve(dir string) (string, error) {
	path, err := filepath.EvalSymlinks(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return dir, nil
	}
	return path, err
}

// unmountVolumes unmounts what the node has mounted in its directories, the innermost mounts first. File systems that an administrator has mounted
// for a directory or a part of it are left.
func unmountVolumes(dirs nodeDirs) (int, error) {
	var err error
	if dirs.data, err = resolve(dirs.data); err != nil {
		return 0, err
	}
	if dirs.kubelet != "" {
		if dirs.kubelet, err = resolve(dirs.kubelet); err != nil {
			return 0, err
		}
	}
	mounts, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) { return !isNodeMount(m, dirs), false })
	if err != nil {
		return 0, fmt.Errorf("list mounts: %w", err)
	}
	slices.Reverse(mounts)
	for _, m := range mounts {
		if err := unix.Unmount(m.Mountpoint, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) {
			return 0, fmt.Errorf("unmount %s: %w", m.Mountpoint, err)
		}
	}
	return len(mounts), nil
}

// isNodeMount reports whether a mount is one of the kubelet or of containerd: below their directories, or the kubelet's directory bind-mounted
// onto itself. The root of a file system of its own is not.
func isNodeMount(m *mountinfo.Info, dirs nodeDirs) bool {
	if isBelow(m.Mountpoint, filepath.Join(dirs.data, "containerd")) {
		return true
	}
	return dirs.kubelet != "" && (isBelow(m.Mountpoint, dirs.kubelet) || m.Mountpoint == dirs.kubelet && m.Root != "/")
}
