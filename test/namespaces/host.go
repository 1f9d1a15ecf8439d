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
	// hostVariable passes a host's name and address to its first process. For others the address is empty, and the host's namespaces are their
	// first files besides the standard ones, in the order of hostNamespaces.
	hostVariable = "SKIFF_TEST_HOST"
	firstFile    = 3
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

// hostNamespaces are the namespaces that a host has of its own.
var hostNamespaces = []struct {
	name string
	flag int
}{{"net", unix.CLONE_NEWNET}, {"mnt", unix.CLONE_NEWNS}, {"uts", unix.CLONE_NEWUTS}}

// Host is another host next to the test's own, with its own network namespace, host name and /run, connected to the same
// bridge. Its first program makes it; it exists until Remove, or as long as one of its processes.
type Host struct {
	Name    string
	Address string // in the same network as NodeAddress

	// namespaces are those of the first program.
	namespaces []*os.File
}

// Start starts a program on the host.
func (h *Host) Start(cmd *exec.Cmd) error {
	program, err := exec.LookPath(cmd.Path)
	if err != nil {
		return err
	}
	outer := again(stageHost)
	cmd.Args = append([]string{program}, cmd.Args[1:]...)
	cmd.Path = outer.Path
	if len(h.namespaces) > 0 {
		cmd.Env = append(outer.Env, hostVariable+"="+h.Name+",")
		cmd.ExtraFiles = h.namespaces
		return cmd.Start()
	}
	cmd.Env = append(outer.Env, hostVariable+"="+h.Name+","+h.Address)
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	for _, n := range hostNamespaces {
		cmd.SysProcAttr.Cloneflags |= uintptr(n.flag)
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	err = h.open(cmd.Process.Pid)
	if err == nil {
		err = h.plug(cmd.Process.Pid)
	}
	if err != nil {
		h.Remove()
		_ = cmd.Process.Kill()
		return errors.Join(fmt.Errorf("connect %s to the network: %w", h.Name, err), cmd.Wait())
	}
	return nil
}

// open keeps the namespaces of the host's first process.
func (h *Host) open(pid int) error {
	for _, n := range hostNamespaces {
		file, err := os.Open(fmt.Sprintf("/proc/%d/ns/%s", pid, n.name))
		if err != nil {
			return err
		}
		h.namespaces = append(h.namespaces, file)
	}
	return nil
}

// Network is the file of the host's network namespace, which exists after the first Start.
func (h *Host) Network() string { return fmt.Sprintf("/proc/self/fd/%d", h.namespaces[0].Fd()) }

// Remove removes the host when its last process ends. The next Start makes another one.
func (h *Host) Remove() {
	for _, file := range h.namespaces {
		_ = file.Close()
	}
	h.namespaces = nil
}

// SetLink connects the host to the bridge or disconnects it.
func (h *Host) SetLink(connected bool) error {
	link, err := netlink.LinkByName("to-" + h.Name)
	if err != nil {
		return err
	}
	if connected {
		return netlink.LinkSetUp(link)
	}
	return netlink.LinkSetDown(link)
}

// plug connects the host of a process to the bridge.
func (h *Host) plug(pid int) error {
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

// becomeHost prepares the host, or enters it, and then executes the program to start on it.
func becomeHost() error {
	runtime.LockOSThread()
	name, address, _ := strings.Cut(os.Getenv(hostVariable), ",")
	os.Unsetenv(stageVariable)
	os.Unsetenv(hostVariable)
	prepare := enterHost
	if address != "" {
		prepare = func() error { return prepareHost(name, address) }
	}
	if err := prepare(); err != nil {
		return err
	}
	return syscall.Exec(os.Args[0], os.Args, os.Environ())
}

// enterHost moves this thread into the namespaces of a host.
func enterHost() error {
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	// The threads of a process share root and working directory, which a mount namespace would change.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return err
	}
	for i, n := range hostNamespaces {
		if err := errors.Join(unix.Setns(firstFile+i, n.flag), unix.Close(firstFile+i)); err != nil {
			return fmt.Errorf("enter the %s namespace: %w", n.name, err)
		}
	}
	return os.Chdir(dir)
}

// prepareHost configures the namespaces of a new host.
func prepareHost(name, address string) error {
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
	return unix.Sethostname([]byte(name))
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
