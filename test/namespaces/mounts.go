package namespaces

import (
	"fmt"
	"os"
	"slices"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// mountAll gives the namespaces their own view of processes, devices, control groups and running services.
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

// mountOwn mounts what shows the machine's links, and where services keep what runs.
func mountOwn(hierarchies []hierarchy) error {
	// First cut off from the mounts of where we come from, then shared among ourselves, as a node's root is: volumes are passed on to containers.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("make mounts shared: %w", err)
	}
	// What is mounted below /sys shows another machine's devices and control groups. Covered it would still be listed, and believed.
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

// unmountBelow unmounts what the host has mounted below a directory, network namespaces for example. A tmpfs on top would hide the files
// but not the entries in mountinfo, and tests would take them for their own.
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

// nameServers makes questions for names fail at once: the machine's own servers cannot be reached from here.
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
