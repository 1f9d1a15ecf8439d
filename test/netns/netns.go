// Package netns makes network namespaces for tests of packets, and clients and servers inside them. A test package has
//
//	func TestMain(m *testing.M) { netns.Main(m) }
//
// and then runs in network and mount namespaces of its own: what it configures on "the host" exists only there. Unlike package namespaces it
// runs no containers and needs no cgroups.
package netns

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Main runs the tests of a package inside namespaces of their own: the test program starts itself again there.
func Main(m *testing.M) {
	const inside = "SKIFF_TEST_NETNS"
	if os.Getenv(inside) != "" {
		err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		if err == nil {
			err = loopbackUp()
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "netns:", err)
			os.Exit(1)
		}
		os.Exit(m.Run())
	}
	again := exec.Command("/proc/self/exe", os.Args[1:]...)
	again.Env = append(os.Environ(), inside+"=1")
	again.Stdin, again.Stdout, again.Stderr = os.Stdin, os.Stdout, os.Stderr
	again.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS}
	if err := again.Run(); err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			os.Exit(exit.ExitCode())
		}
		fmt.Fprintln(os.Stderr, "netns: enter private namespaces:", err)
		os.Exit(1)
	}
}

func loopbackUp() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(lo)
}

// Namespace is a network namespace. The zero value is that of the test itself, the host.
type Namespace struct{ path string }

// At is the namespace of a file.
func At(path string) Namespace { return Namespace{path: path} }

// New makes a network namespace with its loopback interface up. It is removed at the end of the test.
func New(t testing.TB) Namespace {
	t.Helper()
	n, err := Make(filepath.Join(t.TempDir(), "ns"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(n.path, unix.MNT_DETACH) })
	return n
}

// Make makes a network namespace with its loopback interface up. It exists until its file is unmounted.
func Make(path string) (Namespace, error) {
	n := Namespace{path: path}
	if err := os.WriteFile(n.path, nil, 0o600); err != nil {
		return n, err
	}
	done := make(chan error)
	go func() {
		// The thread keeps the namespace and ends with this goroutine.
		runtime.LockOSThread()
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			err = unix.Mount(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()), n.path, "", unix.MS_BIND, "")
		}
		if err == nil {
			err = loopbackUp()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		return n, fmt.Errorf("make network namespace: %w", err)
	}
	return n, nil
}

// Open opens the namespace, for netlink messages that name it by a file descriptor.
func (n Namespace) Open() (*os.File, error) { return os.Open(n.path) }

// Do calls do inside the namespace.
func (n Namespace) Do(do func() error) error {
	if n.path == "" {
		return do()
	}
	result := make(chan error)
	go func() { result <- n.enter(do) }()
	return <-result
}

// enter calls do on a thread that is in the namespace meanwhile. The thread does not end: the processes that it has started may be those that are
// killed with their parent.
func (n Namespace) enter(do func() error) error {
	inside, err := os.Open(n.path)
	if err != nil {
		return err
	}
	defer inside.Close()
	runtime.LockOSThread()
	outside, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return err
	}
	defer outside.Close()
	if err := unix.Setns(int(inside.Fd()), unix.CLONE_NEWNET); err != nil {
		return err
	}
	err = do()
	if back := unix.Setns(int(outside.Fd()), unix.CLONE_NEWNET); back != nil {
		return errors.Join(err, back) // the thread stays locked and ends with this goroutine
	}
	runtime.UnlockOSThread()
	return err
}

// Connect joins a namespace to the host by a link, which is removed at the end of the test: see Join.
func (n Namespace) Connect(t testing.TB, name string, hostAddresses, addresses []string) {
	t.Helper()
	if err := n.Join(name, hostAddresses, addresses); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = netlink.LinkDel(&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Name: name}}) })
}

// Join joins a namespace to the host by a link. name is that of the host's end; the other end is eth0, with the default route. Addresses
// with the prefix of their network are CIDRs.
func (n Namespace) Join(name string, hostAddresses, addresses []string) error {
	file, err := os.Open(n.path)
	if err != nil {
		return err
	}
	defer file.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	veth := netlink.NewVeth(attrs)
	veth.PeerName, veth.PeerNamespace = "eth0", netlink.NsFd(int(file.Fd()))
	if err := netlink.LinkAdd(veth); err != nil {
		return fmt.Errorf("add link %s: %w", name, err)
	}
	if err := up(name, hostAddresses); err != nil {
		return err
	}
	for _, address := range addresses {
		if err := routeTo(name, netip.MustParsePrefix(address)); err != nil {
			return err
		}
	}
	return n.Do(func() error {
		if err := up("eth0", addresses); err != nil {
			return err
		}
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		for _, gateway := range hostAddresses {
			p := netip.MustParsePrefix(gateway)
			if err := netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: p.Addr().AsSlice(), Flags: int(netlink.FLAG_ONLINK)}); err != nil {
				return fmt.Errorf("add default route: %w", err)
			}
		}
		return nil
	})
}

// routeTo adds the route to an address that is alone in its network.
func routeTo(name string, p netip.Prefix) error {
	if !p.IsSingleIP() {
		return nil
	}
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	destination := &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Bits())}
	if err := netlink.RouteReplace(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: destination, Scope: netlink.SCOPE_LINK}); err != nil {
		return fmt.Errorf("add route to %s: %w", p, err)
	}
	return nil
}

// up adds addresses to a link and sets it up.
func up(name string, addresses []string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	for _, text := range addresses {
		address, err := netlink.ParseAddr(text)
		if err != nil {
			return err
		}
		if strings.Contains(text, ":") {
			address.Flags = unix.IFA_F_NODAD
		}
		if err := netlink.AddrAdd(link, address); err != nil {
			return fmt.Errorf("add address %s to %s: %w", text, name, err)
		}
	}
	return netlink.LinkSetUp(link)
}

// AddAddress adds an address to a link of the host. It is removed at the end of the test.
func AddAddress(t testing.TB, name, address string) {
	t.Helper()
	if err := up(name, []string{address}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		link, err := netlink.LinkByName(name)
		if err != nil {
			t.Error(err)
			return
		}
		a, err := netlink.ParseAddr(address)
		if err == nil {
			err = netlink.AddrDel(link, a)
		}
		if err != nil {
			t.Error(err)
		}
	})
}

// Sysctl sets a sysctl of the host, named by its path below /proc/sys.
func Sysctl(t testing.TB, name, value string) {
	t.Helper()
	if err := os.WriteFile("/proc/sys/"+name, []byte(value), 0); err != nil {
		t.Fatal(err)
	}
}
