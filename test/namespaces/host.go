package namespaces

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	stageHost = "host"
	// hostVariable passes a host's name and address to its first process.
	hostVariable = "SKIFF_TEST_HOST"
	// hostLink is a host's link to the bridge that connects all hosts.
	hostLink = "eth0"
)

// A copy of the program that is to become a host does so before anything else: its arguments belong to another program.
func init() {
	if os.Getenv(stageVariable) != stageHost {
		return
	}
	if err := becomeHost(); err != nil {
		fmt.Fprintln(os.Stderr, "namespaces:", err)
		os.Exit(1)
	}
}

// Host is another host next to the test's own, with its own network namespace, host name and /run, connected to the same
// bridge.
type Host struct {
	Name    string
	Address string // in the same network as NodeAddress
}

// Start starts a program on the host. The host exists as long as the program.
func (h Host) Start(cmd *exec.Cmd) error {
	program, err := exec.LookPath(cmd.Path)
	if err != nil {
		return err
	}
	outer := again(stageHost)
	cmd.Env = append(outer.Env, hostVariable+"="+h.Name+","+h.Address)
	cmd.Args = append([]string{program}, cmd.Args[1:]...)
	cmd.Path = outer.Path
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWUTS
	if err := cmd.Start(); err != nil {
		return err
	}
	if err := h.plug(cmd.Process.Pid); err != nil {
		_ = cmd.Process.Kill()
		return errors.Join(fmt.Errorf("connect %s to the network: %w", h.Name, err), cmd.Wait())
	}
	return nil
}

// plug connects the host of a process to the bridge.
func (h Host) plug(pid int) error {
	bridge, err := netlink.LinkByName(uplink)
	if err != nil {
		return err
	}
	// The kernel removes the link of an earlier host of the same name asynchronously.
	if left, err := netlink.LinkByName("to-" + h.Name); err == nil {
		_ = netlink.LinkDel(left) // it may already be removed
	}
	pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "to-" + h.Name, MasterIndex: bridge.Attrs().Index}, PeerName: hostLink, PeerNamespace: netlink.NsPid(pid)}
	if err := netlink.LinkAdd(pair); err != nil {
		return err
	}
	return netlink.LinkSetUp(pair)
}

// becomeHost prepares the host and then executes the program to start on it.
func becomeHost() error {
	runtime.LockOSThread()
	name, address, _ := strings.Cut(os.Getenv(hostVariable), ",")
	link, err := waitLink(hostLink)
	if err != nil {
		return err
	}
	loopback, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := errors.Join(netlink.LinkSetUp(loopback), addLink(link, address)); err != nil {
		return err
	}
	hierarchies, err := mountedGroups()
	if err != nil {
		return err
	}
	if err := mountOwn(hierarchies); err != nil {
		return err
	}
	if err := unix.Sethostname([]byte(name)); err != nil {
		return err
	}
	os.Unsetenv(stageVariable)
	os.Unsetenv(hostVariable)
	return syscall.Exec(os.Args[0], os.Args, os.Environ())
}

// waitLink waits until the parent has created the link.
func waitLink(name string) (netlink.Link, error) {
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		link, err := netlink.LinkByName(name)
		if err == nil || time.Now().After(deadline) {
			return link, err
		}
	}
}

// addLink configures a link's address and the default route, and sets it up.
func addLink(link netlink.Link, address string) error {
	parsed, err := netlink.ParseAddr(address + "/16")
	if err != nil {
		return err
	}
	if err := netlink.AddrAdd(link, parsed); err != nil {
		return fmt.Errorf("add address: %w", err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return err
	}
	everywhere := &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}
	if err := netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: everywhere, Scope: netlink.SCOPE_LINK}); err != nil {
		return fmt.Errorf("add default route: %w", err)
	}
	return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0)
}
