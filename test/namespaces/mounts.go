package namespaces

import (
	"fmt"
	"os"
	"slices"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// mountAll mounts /proc, /sys, the cgroup hierarchies and /run for the namespaces.
func mountAll() error {
	hierarchies, err := mountedGroups()
	if err != nil {
		return err
	}
	if err := mountOwn(hierarchies); err != nil {
		return err
	}
	if err := unix.Mount("proc", "/proc", "proc", plain, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	return nameServers()
}

const plain = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC

// mountOwn mounts /sys and /run.
func mountOwn(hierarchies []hierarchy) error {
	// Private first, to stop propagation from the host, then shared, as the root of a node is: volumes are propagated to
	// containers.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("make mounts shared: %w", err)
	}
	// Mounts below /sys show the host's devices and cgroups. Mounting over them would leave them in mountinfo.
	if err := unix.Unmount("/sys", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount /sys: %w", err)
	}
	if err := unix.Mount("sysfs", "/sys", "sysfs", plain, ""); err != nil {
		return fmt.Errorf("mount /sys: %w", err)
	}
	if err := unmountBelow("/run"); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", "/run", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755"); err != nil {
		return fmt.Errorf("mount /run: %w", err)
	}
	return mountGroups(hierarchies)
}

// unmountBelow unmounts the host's mounts below a directory, for example network namespaces. A tmpfs on top would hide
// the files but not the entries in mountinfo, which tests would take for their own.
func unmountBelow(dir string) error {
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		return fmt.Errorf("list mounts below %s: %w", dir, err)
	}
	for _, m := range slices.Backward(mounts) {
		if m.Mountpoint == dir {
			continue
		}
		if err := unix.Unmount(m.Mountpoint, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmount %s: %w", m.Mountpoint, err)
		}
	}
	return nil
}

// nameServers makes DNS queries fail at once: the host's name servers are not reachable.
func nameServers() error {
	const file = "/run/resolv.conf"
	if err := os.WriteFile(file, []byte("nameserver "+NodeAddress+"\n"), 0o644); err != nil {
		return err
	}
	if err := unix.Mount(file, "/etc/resolv.conf", "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount /etc/resolv.conf: %w", err)
	}
	return unix.Sethostname([]byte("node-1"))
}
