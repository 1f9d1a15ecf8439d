package node

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Host describes the host the node runs on. Amounts are in bytes.
type Host struct {
	CPUs                          int
	Memory, Swap, Storage         int64
	HugePages                     map[int64]int64 // by page size
	MachineID, SystemUUID, BootID string
	KernelVersion, OSImage        string
}

// ReadHost reads the host's properties. root is the kubelet's directory, whose file system is reported as ephemeral
// storage.
func ReadHost(root string) (Host, error) {
	h := Host{CPUs: processors(), HugePages: hugePages(), OSImage: osImage()}
	for _, path := range []string{"/etc/machine-id", "/var/lib/dbus/machine-id"} {
		if h.MachineID = firstLine(path); h.MachineID != "" {
			break
		}
	}
	h.BootID = firstLine("/proc/sys/kernel/random/boot_id")
	for _, path := range []string{"/sys/class/dmi/id/product_uuid", "/proc/device-tree/system-id", "/proc/device-tree/vm,uuid", "/etc/machine-id"} {
		if h.SystemUUID = strings.TrimRight(firstLine(path), "\x00"); h.SystemUUID != "" {
			break
		}
	}
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return h, fmt.Errorf("read host memory: %w", err)
	}
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), ":")
		number, _, _ := strings.Cut(strings.TrimSpace(value), " ")
		n, _ := strconv.ParseInt(number, 10, 64)
		switch name {
		case "MemTotal":
			h.Memory = n * 1024
		case "SwapTotal":
			h.Swap = n * 1024
		}
	}
	var disk unix.Statfs_t
	if err := unix.Statfs(root, &disk); err != nil {
		return h, fmt.Errorf("stat file system of %s: %w", root, err)
	}
	h.Storage = int64(disk.Blocks) * disk.Bsize
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return h, fmt.Errorf("read kernel version: %w", err)
	}
	h.KernelVersion = unix.ByteSliceToString(name.Release[:])
	return h, nil
}

func firstLine(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(string(text), "\n")
	return strings.TrimSpace(line)
}

// processors returns the number of online CPUs, including those outside this process's affinity mask.
func processors() int {
	count := 0
	for _, part := range strings.Split(firstLine("/sys/devices/system/cpu/online"), ",") {
		from, to, ranged := strings.Cut(part, "-")
		first, err := strconv.Atoi(from)
		if err != nil {
			return runtime.NumCPU()
		}
		last := first
		if ranged {
			if last, err = strconv.Atoi(to); err != nil {
				return runtime.NumCPU()
			}
		}
		count += last - first + 1
	}
	return count
}

func hugePages() map[int64]int64 {
	pages := map[int64]int64{}
	dirs, err := filepath.Glob("/sys/kernel/mm/hugepages/hugepages-*kB")
	if err != nil {
		return pages
	}
	for _, dir := range dirs {
		size, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimPrefix(filepath.Base(dir), "hugepages-"), "kB"), 10, 64)
		if err != nil {
			continue
		}
		count, err := strconv.ParseInt(firstLine(filepath.Join(dir, "nr_hugepages")), 10, 64)
		if err == nil {
			pages[size*1024] = size * 1024 * count
		}
	}
	return pages
}

func osImage() string {
	for _, path := range []string{"/etc/os-release", "/usr/lib/os-release"} {
		text, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			if value, ok := strings.CutPrefix(strings.TrimSpace(line), "PRETTY_NAME="); ok {
				return strings.Trim(value, `"'`)
			}
		}
	}
	return "Unknown"
}

// CheckAddresses returns an error if an address that is configured for the node cannot be one: it must be assigned to the host.
func CheckAddresses(configured []string) error {
	own, err := net.InterfaceAddrs()
	if err != nil {
		return fmt.Errorf("find the node's addresses: %w", err)
	}
	var found []net.IP
	for _, a := range own {
		if n, ok := a.(*net.IPNet); ok {
			found = append(found, n.IP)
		}
	}
	for _, text := range configured {
		if err := validateNodeIP(text, found); err != nil {
			return fmt.Errorf("failed to validate nodeIP: %w", err)
		}
	}
	return nil
}

func validateNodeIP(text string, own []net.IP) error {
	ip := net.ParseIP(text)
	switch {
	case ip == nil:
		return errors.New("nodeIP must be a valid IP address")
	case ip.IsLoopback():
		return errors.New("nodeIP can't be loopback address")
	case ip.IsMulticast():
		return errors.New("nodeIP can't be a multicast address")
	case ip.IsLinkLocalUnicast():
		return errors.New("nodeIP can't be a link-local unicast address")
	case ip.IsUnspecified():
		return errors.New("nodeIP can't be an all zeros address")
	}
	for _, o := range own {
		if o.Equal(ip) {
			return nil
		}
	}
	return fmt.Errorf("node IP: %q not found in the host's network interfaces", text)
}
