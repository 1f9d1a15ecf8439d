package doctor

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"skiff/internal/capability"
	"skiff/internal/kubelet/environment"
	"skiff/internal/kubelet/evict"
	"skiff/internal/network/conflict"
	"skiff/internal/network/firewall"
)

func TestDecideKernel(t *testing.T) {
	for _, test := range []struct {
		name  string
		state kernelState
		want  []string
	}{
		{"new", kernelState{release: "6.12.3"}, nil},
		{"old", kernelState{release: "5.10.0-28-amd64"}, []string{"error: Linux 5.10.0-28-amd64 is older than 5.12"}},
		{"without idmapped tmpfs", kernelState{release: "5.15.0-91-generic"}, []string{"warning: older than 6.3"}},
		{"unknown", kernelState{release: "custom"}, nil},
		{
			"without features", kernelState{release: "6.6", missing: map[string]error{"overlayfs": unix.ENODEV, "vxlan": unix.EOPNOTSUPP}},
			[]string{"error: the kernel does not have overlayfs", "error: vxlan|operation not supported"},
		},
		{"without rights", kernelState{release: "6.6", denied: unix.EPERM}, []string{"warning: not examined: features of the kernel"}},
	} {
		t.Run(test.name, func(t *testing.T) { expect(t, decideKernel(test.state), test.want...) })
	}
}

func TestDecideCgroups(t *testing.T) {
	for _, test := range []struct {
		name  string
		state cgroupState
		want  []string
	}{
		{"version 2", cgroupState{version: 2}, nil},
		{"version 1", cgroupState{version: 1}, []string{"warning: cgroup version 1"}},
		{"none", cgroupState{problem: errors.New("no cgroup filesystem is mounted")}, []string{"error: no cgroup filesystem is mounted"}},
		{"without memory", cgroupState{version: 2, missing: []string{"memory", "hugetlb", "pids"}}, []string{"error: missing: memory, pids", "warning: missing: hugetlb"}},
	} {
		t.Run(test.name, func(t *testing.T) { expect(t, decideCgroups(test.state), test.want...) })
	}
}

func TestDecideCapabilities(t *testing.T) {
	all := ^capability.Set(0)
	for _, test := range []struct {
		name string
		own  capability.Set
		want []string
	}{
		{"root", all, nil},
		{"container", all &^ (1 << unix.CAP_SYS_RESOURCE), []string{"warning: lacks CAP_SYS_RESOURCE"}},
		{"few", all &^ (1<<unix.CAP_SYS_ADMIN | 1<<unix.CAP_NET_ADMIN | 1<<unix.CAP_SYS_PTRACE), []string{"error: CAP_SYS_ADMIN, CAP_NET_ADMIN", "warning: CAP_SYS_PTRACE"}},
	} {
		t.Run(test.name, func(t *testing.T) { expect(t, decideCapabilities(test.own), test.want...) })
	}
}

func TestDecideLimits(t *testing.T) {
	for _, test := range []struct {
		name  string
		state limitState
		want  []string
	}{
		{"ample", limitState{openFiles: 1 << 20, maxOpenFiles: 1 << 30, values: map[string]int64{"fs/inotify/max_user_instances": 8192}}, nil},
		{
			"the kernel's own of a host with 1 GB", limitState{openFiles: 1 << 20, maxOpenFiles: 1 << 20, values: map[string]int64{
				"fs/file-max": 97_000, "kernel/threads-max": 7_600, "kernel/pid_max": 32_768, "user/max_user_namespaces": 3_800, "user/max_net_namespaces": 3_800,
				"net/netfilter/nf_conntrack_max": 65_536, "fs/inotify/max_user_watches": 65_536,
			}}, nil,
		},
		{"none of them", limitState{openFiles: 1 << 20, maxOpenFiles: -1, values: map[string]int64{"user/max_user_namespaces": -1}}, nil},
		{"open files of the kernel", limitState{openFiles: 1024, maxOpenFiles: 65536}, []string{"error: fs.nr_open is 65536"}},
		{"open files of the process", limitState{openFiles: 1024, maxOpenFiles: 1 << 30}, []string{"warning: may have 1024 open files"}},
		{
			"sysctls", limitState{openFiles: 1 << 20, maxOpenFiles: 1 << 30, values: map[string]int64{"fs/inotify/max_user_instances": 128, "user/max_user_namespaces": 0}},
			[]string{"warning: fs.inotify.max_user_instances is 128", "warning: user.max_user_namespaces is 0"},
		},
	} {
		for _, limit := range limits {
			if _, ok := test.state.values[limit.name]; !ok {
				if test.state.values == nil {
					test.state.values = map[string]int64{}
				}
				test.state.values[limit.name] = limit.minimum
			}
		}
		t.Run(test.name, func(t *testing.T) { expect(t, decideLimits(test.state), test.want...) })
	}
}

func TestDecideMemory(t *testing.T) {
	for _, test := range []struct {
		name  string
		state memoryState
		want  []string
	}{
		{"ample", memoryState{bytes: 8 << 30}, nil},
		{"1 GB, less what the kernel keeps", memoryState{bytes: 962 << 20}, nil},
		{"small", memoryState{bytes: 512 << 20}, []string{"warning: 512 MiB of memory, less than 1 GB"}},
		{"swap", memoryState{bytes: 8 << 30, swap: 2 << 30}, []string{"warning: swap is enabled: 2.0 GiB"}},
	} {
		t.Run(test.name, func(t *testing.T) { expect(t, decideMemory(test.state), test.want...) })
	}
}

func TestDecideFileSystems(t *testing.T) {
	const ext4 = unix.EXT4_SUPER_MAGIC
	on := func(data, kubelet int64) []fileSystem {
		return []fileSystem{{dir: "/data", kind: data, hasImages: true}, {dir: "/kubelet", kind: kubelet, hasImages: true}}
	}
	for _, test := range []struct {
		name  string
		state []fileSystem
		want  []string
	}{
		{"ext4", on(ext4, ext4), nil},
		{"NFS", on(unix.NFS_SUPER_MAGIC, ext4), []string{"error: /data is on NFS"}},
		{"tmpfs", on(unix.TMPFS_MAGIC, unix.TMPFS_MAGIC), []string{"error: /data is on tmpfs"}},
		{"overlay", on(unix.OVERLAYFS_SUPER_MAGIC, unix.OVERLAYFS_SUPER_MAGIC), []string{"error: /data is on overlay"}},
		{"overlay without a node", []fileSystem{{dir: "/data", kind: unix.OVERLAYFS_SUPER_MAGIC}}, nil},
		{"NFS without a node", []fileSystem{{dir: "/data", kind: unix.NFS_SUPER_MAGIC}}, []string{"error: /data is on NFS"}},
		{"read-only", []fileSystem{{dir: "/data", kind: ext4, isReadOnly: true}}, []string{"error: mounted read-only"}},
	} {
		t.Run(test.name, func(t *testing.T) { expect(t, decideFileSystems(test.state), test.want...) })
	}
}

func TestDecideDisks(t *testing.T) {
	const gib = 1 << 30
	host := Host{DataDir: "/data", KubeletDir: "/kubelet"}
	thresholds, err := evict.Parse(evict.DefaultHard(), nil, nil, nil, false)
	if err != nil {
		t.Fatal(err)
	}
	type signals = map[evict.Signal]evict.Observation
	for _, test := range []struct {
		name string
		signals
		want []string
	}{
		{"ample", signals{evict.NodeFsAvailable: {Available: 50 * gib, Capacity: 100 * gib}, evict.ImageFsAvailable: {Available: 50 * gib, Capacity: 100 * gib}}, nil},
		{"soon", signals{evict.NodeFsAvailable: {Available: 14 * gib, Capacity: 100 * gib}}, []string{"warning: /kubelet has 14.0 GiB of 100 GiB left|nodefs.available is 10.0 GiB"}},
		{"full", signals{evict.ImageFsAvailable: {Available: 10 * gib, Capacity: 100 * gib}}, []string{"error: /data/containerd has 10.0 GiB of 100 GiB left"}},
		{"few inodes", signals{evict.NodeFsInodesFree: {Available: 10, Capacity: 1000}}, []string{"error: 10 inodes of 1000 inodes"}},
		{"small disk", signals{evict.ImageFsAvailable: {Available: gib / 2, Capacity: gib}}, []string{"warning: /data has 512 MiB left"}},
		{
			"tiny disk", signals{evict.ImageFsAvailable: {Available: 100 << 20, Capacity: 200 << 20}},
			[]string{"error: /data has 100 MiB left"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			expect(t, decideDisks(diskState{dataDir: "/data", dirs: host.disksOf(), signals: test.signals, thresholds: thresholds}), test.want...)
		})
	}
}

// A threshold that the kubelet is configured with counts.
func TestReadDisks(t *testing.T) {
	dir := t.TempDir()
	s, err := Host{DataDir: filepath.Join(dir, "not/yet"), KubeletDir: dir, Thresholds: map[string]string{"nodefs.available": "99.9%"}}.readDisks(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	findings := decideDisks(s)
	if len(findings) == 0 || findings[0].Severity != Error || !strings.Contains(findings[0].Problem, dir) {
		t.Errorf("findings %+v", findings)
	}
}

const sockets = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:192B 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1001 1 0 100 0 0 10 0
   1: 0100007F:2808 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1002 1 0 100 0 0 10 0
   2: 0100007F:192B 0100007F:D431 01 00000000:00000000 00:00000000 00000000     0        0 1003 1 0 100 0 0 10 0
`

const sockets6 = `  sl  local_address                         remote_address                        st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000000000000000000000000000:280A 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1004 1 0 100 0 0 10 0
   1: 0000000000000000FFFF00000100007F:0035 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1005 1 0 100 0 0 10 0
`

func TestReadSockets(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"tcp": sockets, "tcp6": sockets6, "udp": "header\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := readSockets(dir)
	if err != nil {
		t.Fatal(err)
	}
	want := []socket{
		{"tcp", netip.MustParseAddrPort("0.0.0.0:6443"), 1001}, {"tcp", netip.MustParseAddrPort("127.0.0.1:10248"), 1002},
		{"tcp", netip.MustParseAddrPort("[::]:10250"), 1004}, {"tcp", netip.MustParseAddrPort("127.0.0.1:53"), 1005},
	}
	if len(got) != len(want) {
		t.Fatalf("got %v", got)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("got %v, want %v", got[i], want[i])
		}
	}
	if _, err := parseSockets(strings.NewReader("0: xyz:1 0:0 0A 0:0 0:0 0 0 0 1 1\n"), "tcp", tcpListen); err == nil {
		t.Error("an address that is none is accepted")
	}
}

func TestSocketBlocks(t *testing.T) {
	everywhere, dns := Port{Protocol: "tcp", Number: 53}, Port{Protocol: "tcp", Number: 53, Address: netip.MustParseAddr("10.96.0.10")}
	for _, test := range []struct {
		address  string
		protocol string
		inode    uint64
		port     Port
		want     bool
	}{
		{"0.0.0.0:53", "tcp", 1, everywhere, true},
		{"127.0.0.1:53", "tcp", 1, everywhere, true},
		{"127.0.0.53:53", "tcp", 1, dns, false}, // systemd-resolved
		{"[::]:53", "tcp", 1, dns, true},
		{"10.96.0.10:53", "tcp", 1, dns, true},
		{"0.0.0.0:54", "tcp", 1, everywhere, false},
		{"0.0.0.0:53", "udp", 1, everywhere, false},
		{"0.0.0.0:53", "tcp", 0, everywhere, false}, // of the kernel
	} {
		if got := (socket{test.protocol, netip.MustParseAddrPort(test.address), test.inode}).blocks(test.port); got != test.want {
			t.Errorf("%+v: %v", test, got)
		}
	}
}

func TestPortsAndTheirOwners(t *testing.T) {
	proc := t.TempDir()
	for pid, name := range map[string]string{"17": "nginx", "18": "other"} {
		dir := filepath.Join(proc, pid, "fd")
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(proc, pid, "comm"), []byte(name+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		inode, _ := strconv.Atoi(pid)
		for fd, target := range map[string]string{"0": "/dev/null", "5": "socket:[" + strconv.Itoa(inode*100) + "]"} {
			if err := os.Symlink(target, filepath.Join(dir, fd)); err != nil {
				t.Fatal(err)
			}
		}
	}
	taken := map[uint64]Port{
		1700: {Protocol: "tcp", Number: 6443, Breaks: "the API", Flag: "--secure-port"}, 9999: {Protocol: "udp", Number: 8472, Breaks: "the network", IsOptional: true},
	}
	owners, err := socketOwners(t.Context(), proc, taken)
	if err != nil {
		t.Fatal(err)
	}
	findings := decidePorts(busyPorts(taken, owners))
	expect(t, findings, "error: TCP port 6443 is used by nginx (process 17)", "warning: UDP port 8472 is used by another process")
	if !strings.Contains(findings[0].Fix, "--secure-port") {
		t.Errorf("fix %q", findings[0].Fix)
	}
}

func ranges(service string) []conflict.Range {
	return []conflict.Range{{CIDR: netip.MustParsePrefix(service), Flag: FlagServiceCIDR}, {CIDR: netip.MustParsePrefix("10.42.0.0/16"), Flag: FlagClusterCIDR}}
}

func TestDecideNetworks(t *testing.T) {
	network := func(text string) []conflict.Network {
		return []conflict.Network{{Prefix: netip.MustParsePrefix(text), Link: "eth0", Connected: true}}
	}
	expect(t, decideNetworks(networkState{ranges("10.96.0.0/12"), network("192.168.1.0/24")}))
	expect(t, decideNetworks(networkState{ranges("10.96.0.0/12"), network("10.42.7.0/24")}), "error: --cluster-cidr: 10.42.0.0/16 overlaps with 10.42.7.0/24, the network of eth0")
}

func TestDecideFirewall(t *testing.T) {
	ports := []Port{{Protocol: "tcp", Number: 6443}, {Protocol: "tcp", Number: 10248, Address: netip.MustParseAddr("127.0.0.1")}, {Protocol: "udp", Number: 8472}}
	for _, test := range []struct {
		name   string
		chains []firewall.Chain
		want   []string
	}{
		{"none", nil, nil},
		{"forward, which skiff opens itself", []firewall.Chain{{Family: "ip", Table: "filter", Name: "FORWARD", Hook: "forward"}}, nil},
		{"input", []firewall.Chain{{Family: "ip", Table: "filter", Name: "INPUT", Hook: firewall.HookInput}}, []string{"warning: chain INPUT of table ip filter"}},
		{"owned", []firewall.Chain{{Family: "inet", Table: "firewalld", Name: "filter_FORWARD", Hook: "forward", Owned: true}}, []string{"error: chain filter_FORWARD|only the program that owns it"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			findings := decideFirewall(firewallState{test.chains, ports, ranges("10.96.0.0/12")})
			expect(t, findings, test.want...)
			for _, f := range findings {
				if strings.Contains(f.Breaks, "10248") || strings.Contains(f.Breaks, "8472") {
					t.Errorf("ports that nobody has to open: %s", f.Breaks)
				}
			}
		})
	}
}

func TestDecideResolver(t *testing.T) {
	state := func(text string) resolverState {
		config, err := environment.ParseResolver(text)
		if err != nil {
			t.Fatal(err)
		}
		return resolverState{path: "/etc/resolv.conf", config: config, service: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")}}
	}
	for _, test := range []struct {
		name  string
		state resolverState
		want  []string
	}{
		{"network", state("nameserver 192.168.1.1\nsearch example.com\n"), nil},
		{"loopback", state("nameserver 127.0.0.1\n"), []string{"warning: name server on loopback: 127.0.0.1"}},
		{"loop", state("nameserver 10.96.0.10\n"), []string{"error: the address of the cluster's DNS as name server: 10.96.0.10"}},
		{"none", state("search a\n"), []string{"warning: no name server"}},
		{"not an address", state("nameserver dns\n"), []string{`warning: the name server "dns"`}},
		{"long search", state("nameserver 192.168.1.1\nsearch" + strings.Repeat(" a.example.com", 40) + "\n"), []string{"warning: search line"}},
		{"missing", resolverState{path: "/etc/resolv.conf", problem: os.ErrNotExist}, []string{"error: file does not exist"}},
	} {
		t.Run(test.name, func(t *testing.T) { expect(t, decideResolver(test.state), test.want...) })
	}
}

func TestDecideClock(t *testing.T) {
	now := time.Date(2026, time.May, 1, 12, 0, 0, 0, time.UTC)
	expect(t, decideClock(clockState{now, true}))
	expect(t, decideClock(clockState{now, false}), "warning: nothing synchronizes the clock")
	expect(t, decideClock(clockState{time.Unix(1000, 0), false}), "error: the clock shows 1970-01-01 00:16 UTC")
}

func TestDecideHostName(t *testing.T) {
	for _, test := range []struct {
		state hostName
		want  []string
	}{
		{hostName{"node-1.example.com", "0123"}, nil},
		{hostName{"node_1", "0123"}, []string{`error: "node_1", cannot be that of a node`}},
		{hostName{"", "0123"}, []string{"error: cannot be that of a node"}},
		{hostName{strings.Repeat("a", 64), "0123"}, []string{"error: must be no more than 63"}},
		{hostName{"localhost", "0123"}, []string{"warning: the name of the host is localhost"}},
		{hostName{"a", ""}, []string{"warning: /etc/machine-id is empty"}},
	} {
		t.Run(test.state.name, func(t *testing.T) { expect(t, decideHostName(test.state), test.want...) })
	}
}

func TestDecideInit(t *testing.T) {
	expect(t, decideInit(true))
	expect(t, decideInit(false), "warning: does not run systemd")
}

func TestDecideOthers(t *testing.T) {
	expect(t, decideOthers(traces{}))
	expect(t, decideOthers(traces{processes: []string{"kubelet (process 7)"}, links: []string{"cni0"}, dirs: []string{"/var/lib/rancher/k3s"}}),
		"error: another Kubernetes runs on this host: kubelet (process 7)", "warning: left this behind: cni0, /var/lib/rancher/k3s")
	// A network plugin of skiff's own cluster is no other Kubernetes.
	expect(t, decideOthers(traces{links: []string{"cilium_host"}, isRunning: true}))
	for groups, want := range map[string]bool{
		"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice/cri-containerd-2.scope\n": true, "12:pids:/kubepods/besteffort/pod1/2\n0::/system.slice/x.service\n": true,
		"0::/system.slice/kubelet.service\n": false, "": false,
	} {
		if isPodCgroup(groups) != want {
			t.Errorf("isPodCgroup(%q) = %v", groups, !want)
		}
	}
	for name, want := range map[string]bool{"cni0": true, "flannel.1": true, "cilium_host": true, "eth0": false, "skiff0": false, "cni01": false} {
		if isOtherLink(name) != want {
			t.Errorf("isOtherLink(%q) = %v", name, !want)
		}
	}
}

// All checks can be made on the host of this test, whatever they find.
func TestHostChecks(t *testing.T) {
	dir := t.TempDir()
	host := Host{
		DataDir: dir, KubeletDir: filepath.Join(dir, "kubelet"), NodeName: "node", Ports: []Port{{Protocol: "tcp", Number: 6443, Breaks: "the API"}}, CIDRs: ranges("10.96.0.0/12"),
		Thresholds: evict.DefaultHard(),
	}
	report := Run(t.Context(), host.Checks(), time.Minute)
	if len(report.Checks) != len(host.Checks()) {
		t.Errorf("checks %q", report.Checks)
	}
	for _, f := range report.Findings {
		t.Logf("%s: %s", f.Check, f.Problem)
		if strings.HasPrefix(f.Problem, "not examined") && os.Geteuid() == 0 && f.Check != "kernel" && f.Check != "firewall" {
			t.Errorf("%s: %s", f.Check, f.Problem)
		}
	}
	// The kubelet of another Kubernetes may run pods beside a control plane without a node, and the kernel needs nothing for them.
	host.NoNode = true
	for _, check := range host.Checks() {
		if slices.Contains([]string{"kernel", "cgroups", "capabilities", "resolv-conf", "host-name", "other-kubernetes", "networks"}, check.Name) {
			t.Errorf("check %s of a host without a node", check.Name)
		}
	}
	host.NoNode, host.IsRunning = false, true
	if running := len(host.Checks()); running != len(report.Checks)-2 {
		t.Errorf("%d checks of a host on which skiff runs, %d of another", running, len(report.Checks))
	}
}
