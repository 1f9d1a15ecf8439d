package system

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"skiff/internal/config"
	"skiff/internal/kubelet/cgroup"
	"skiff/internal/kubelet/cri"
	"skiff/internal/network/cni"
	"skiff/internal/network/firewall"
	"skiff/internal/network/networkmanager"
	"skiff/internal/network/nft"
	"skiff/internal/network/overlay"
	"skiff/internal/network/policy"
	"skiff/internal/network/proxy"
)

// cleanTimeout is how long the container runtime may take to stop all pods.
const cleanTimeout = 2 * time.Minute

// Clean removes what a node leaves on its host when skiff stops, because pods keep running without it: pods, links, routes, nftables rules,
// cgroups and mounts. The state of the cluster and the images are kept.
func Clean(ctx context.Context, c config.Clean, out io.Writer) error {
	if _, err := os.Stat(c.DataDir); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("--data-dir: %s does not exist", c.DataDir)
	}
	unlock, err := lockDir(c.DataDir)
	if err != nil {
		return err
	}
	defer unlock()
	node := config.Node{ConfigFile: c.KubeletConfig}
	settings, err := node.KubeletConfiguration()
	if err != nil {
		return err
	}
	pods, err := removePods(ctx, c.DataDir)
	if err != nil {
		return fmt.Errorf("remove pods: %w", err)
	}
	conf := filepath.Join(c.DataDir, "cni/net.d")
	network, configured, err := cni.Read(conf)
	if err != nil {
		return err
	}
	if configured {
		if err := errors.Join(cni.Remove(network), cni.Unconfigure(conf)); err != nil {
			return err
		}
	}
	err = errors.Join(overlay.Remove(), firewall.Remove(), networkmanager.Default().Unconfigure(), nft.Remove(proxy.DefaultTable), nft.Remove(policy.DefaultTable),
		dnsAddresses(c.DataDir).Set(nil))
	if err != nil {
		return err
	}
	groups, err := cgroup.New(cgroup.Settings{Root: settings.CgroupRoot})
	if err != nil {
		return err
	}
	if err := groups.Teardown(); err != nil {
		return err
	}
	mounts, err := unmountBelow(c.DataDir)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "removed %d pods, %d mounts, the pod network and the cgroups of %s\n", pods, mounts, c.DataDir)
	return nil
}

// removePods stops and removes all pods.
func removePods(ctx context.Context, dataDir string) (int, error) {
	if _, err := os.Stat(filepath.Join(dataDir, "containerd")); errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	own, err := newContainerd(dataDir, slog.New(slog.DiscardHandler))
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
		return removeSandboxes(ctx, own.Endpoint())
	}()
	cancel()
	if exit := <-done; err == nil && exit != nil && !errors.Is(exit, context.Canceled) {
		err = exit
	}
	return removed, err
}

func removeSandboxes(ctx context.Context, endpoint string) (int, error) {
	client, err := cri.Dial(endpoint)
	if err != nil {
		return 0, err
	}
	defer client.Close()
	runtime := cri.New(client)
	sandboxes, err := runtime.ListPodSandboxes(ctx, "")
	if err != nil {
		return 0, err
	}
	for _, s := range sandboxes {
		if err := runtime.StopPodSandbox(ctx, s.ID); err != nil {
			return 0, fmt.Errorf("stop %s/%s: %w", s.Namespace, s.Name, err)
		}
		if err := runtime.RemovePodSandbox(ctx, s.ID); err != nil {
			return 0, fmt.Errorf("remove %s/%s: %w", s.Namespace, s.Name, err)
		}
	}
	return len(sandboxes), nil
}

// unmountBelow unmounts everything at and below a directory, the innermost mounts first.
func unmountBelow(dir string) (int, error) {
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return 0, err
	}
	mounts, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		return m.Mountpoint != dir && !strings.HasPrefix(m.Mountpoint, dir+"/"), false
	})
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
