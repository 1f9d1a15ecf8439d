package namespaces

import (
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { Main(m) }

func TestIsolation(t *testing.T) {
	links, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, l := range links {
		names = append(names, l.Name)
	}
	// Some kernels create tunnel devices in every network namespace; the host's link must not be here.
	if _, err := net.InterfaceByName(uplink); err != nil {
		t.Errorf("no link %s among %v", uplink, names)
	}
	routes, err := os.ReadFile("/proc/net/route")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.SplitSeq(strings.TrimSpace(string(routes)), "\n") {
		if fields := strings.Fields(line); fields[0] != "Iface" && fields[0] != uplink {
			t.Errorf("a route leads out of the namespaces: %s", line)
		}
	}
	if name, _ := os.Hostname(); name != "node-1" {
		t.Errorf("host name is %s", name)
	}
	if os.Getpid() > 100 {
		t.Errorf("process id %d: not in a namespace of its own", os.Getpid())
	}
	if entries, err := os.ReadDir("/run"); err != nil || len(entries) > 1 {
		t.Errorf("/run is not our own: %v %v", entries, err)
	}
}

func TestCgroupsBelongToTheRun(t *testing.T) {
	hierarchies, err := mountedGroups()
	if err != nil || len(hierarchies) == 0 {
		t.Fatalf("no cgroup hierarchies: %v", err)
	}
	for _, h := range hierarchies {
		if stale, _ := os.ReadDir(h.path + "/" + groupPrefix + "1"); stale != nil {
			t.Errorf("%s shows the host's cgroups", h.path)
		}
		procs, err := os.ReadFile(h.path + "/cgroup.procs")
		if err != nil || strings.TrimSpace(string(procs)) == "" {
			t.Errorf("the root of %s does not hold this process: %v", h.path, err)
		}
		if err := os.Mkdir(h.path+"/kubepods", 0o755); err != nil {
			t.Errorf("cannot make a group: %v", err)
		}
	}
}

func TestAnotherHost(t *testing.T) {
	listener, err := net.Listen("tcp", NodeAddress+":0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	answered := make(chan string, 1)
	go func() {
		connection, err := listener.Accept()
		if err != nil {
			answered <- err.Error()
			return
		}
		defer connection.Close()
		data, _ := io.ReadAll(connection)
		answered <- strings.TrimSpace(string(data)) + " from " + connection.RemoteAddr().(*net.TCPAddr).IP.String()
	}()
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	cmd := exec.Command("bash", "-c", "hostname >/dev/tcp/"+NodeAddress+"/"+port+"; ls /run; grep -c cgroup /proc/self/mounts")
	out := &strings.Builder{}
	cmd.Stdout, cmd.Stderr = out, out
	host := &Host{Name: "node-2", Address: "10.88.0.2"}
	defer host.Remove()
	if err := host.Start(cmd); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if got := <-answered; got != "node-2 from 10.88.0.2" {
		t.Errorf("heard %q", got)
	}
	hierarchies, err := mountedGroups()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat("/run/resolv.conf"); err != nil {
		t.Errorf("the host's mounts came over: %v", err)
	}
	// /run is empty, and each cgroup hierarchy is mounted once, including their parent directory.
	if want := strconv.Itoa(len(hierarchies) + 1); strings.TrimSpace(out.String()) != want {
		t.Errorf("/run and the number of cgroup mounts: %q, want %s", out, want)
	}
	testSecondProgram(t, host)
}

// testSecondProgram starts another program on a host.
func testSecondProgram(t *testing.T, host *Host) {
	t.Helper()
	var network [2]string
	for i := range network {
		cmd := exec.Command("bash", "-c", "touch /run/seen; ls /run; hostname; pwd; readlink /proc/self/ns/net")
		cmd.Dir = t.TempDir()
		out := &strings.Builder{}
		cmd.Stdout, cmd.Stderr = out, out
		if err := host.Start(cmd); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		rest, ok := strings.CutPrefix(out.String(), "seen\nnode-2\n"+cmd.Dir+"\n")
		if !ok {
			t.Errorf("/run, host name and working directory: %q", out)
		}
		network[i] = rest
	}
	if network[0] != network[1] {
		t.Errorf("network namespaces %q differ", network)
	}
}

func TestMountsStayInside(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, 0) })
	if err := os.WriteFile(dir+"/file", nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestOrphansAreReaped(t *testing.T) {
	// A shell whose child outlives it: the child is reparented to PID 1.
	out, err := exec.Command("sh", "-c", "sleep 0.05 & echo $!").Output()
	if err != nil {
		t.Fatal(err)
	}
	pid := strings.TrimSpace(string(out))
	if err := exec.Command("sh", "-c", "for i in $(seq 100); do [ -d /proc/"+pid+" ] || exit 0; sleep 0.05; done; exit 1").Run(); err != nil {
		t.Errorf("process %s stays as a zombie", pid)
	}
}

// Mounts of the host below /run, such as network namespaces, are not listed inside.
func TestNoMountOfTheHostBelowRun(t *testing.T) {
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter("/run"))
	if err != nil {
		t.Fatal(err)
	}
	if len(mounts) == 0 {
		t.Fatal("/run is not mounted")
	}
	for _, m := range mounts {
		if m.Mountpoint != "/run" || m.FSType != "tmpfs" {
			t.Errorf("%s of type %s is mounted", m.Mountpoint, m.FSType)
		}
	}
}
