package cni

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/vishvananda/netlink"

	"skiff/internal/network/nft"
)

func prefixes(texts ...string) []netip.Prefix {
	var all []netip.Prefix
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

func addresses(texts ...string) []netip.Addr {
	var all []netip.Addr
	for _, text := range texts {
		all = append(all, netip.MustParseAddr(text))
	}
	return all
}

func TestPlanHost(t *testing.T) {
	tests := map[string]struct {
		settings                   Settings
		addresses, routes, sysctls string
	}{
		"IPv4": {
			Settings{PodCIDRs: prefixes("10.42.3.0/24"), ClusterCIDRs: prefixes("10.42.0.0/16"), ServiceCIDRs: prefixes("10.43.0.0/16")},
			"[10.42.3.1/24]", "[unreachable 10.42.0.0/16 bridge 10.43.0.0/16]",
			"[{net/ipv4/ip_forward 1} {net/ipv4/conf/all/send_redirects 0} {net/ipv4/conf/skiff0/send_redirects 0} {net/ipv4/conf/skiff0/route_localnet 1}]",
		},
		"IPv6": {
			Settings{PodCIDRs: prefixes("fd00:42:0:3::/64"), ClusterCIDRs: prefixes("fd00:42::/48"), ServiceCIDRs: prefixes("fd00:43::/112")},
			"[fd00:42:0:3::1/64]", "[unreachable fd00:42::/48 bridge fd00:43::/112]",
			"[{net/ipv6/conf/skiff0/disable_ipv6 0} {net/ipv6/conf/skiff0/accept_ra 0} {net/ipv6/conf/skiff0/accept_dad 0} {net/ipv6/conf/all/forwarding 1}]",
		},
		"services of a family the pods do not have": {
			Settings{PodCIDRs: prefixes("10.42.3.7/24"), ServiceCIDRs: prefixes("10.43.0.0/16", "fd00:43::/112")},
			"[10.42.3.1/24]", "[bridge 10.43.0.0/16 unreachable fd00:43::/112]",
			"[{net/ipv4/ip_forward 1} {net/ipv4/conf/all/send_redirects 0} {net/ipv4/conf/skiff0/send_redirects 0} {net/ipv4/conf/skiff0/route_localnet 1}]",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			plan := planHost(test.settings.WithDefaults())
			for _, pair := range [][2]string{
				{fmt.Sprint(plan.addresses), test.addresses}, {fmt.Sprint(plan.routes), test.routes}, {fmt.Sprint(plan.sysctls), test.sysctls},
			} {
				if pair[0] != pair[1] {
					t.Errorf("got  %s\nwant %s", pair[0], pair[1])
				}
			}
		})
	}
}

var update = flag.Bool("update", false, "rewrite the golden files")

func TestRules(t *testing.T) {
	s := Settings{
		PodCIDRs: prefixes("10.42.3.0/24", "fd00:42:0:3::/64"), ClusterCIDRs: prefixes("10.42.0.0/16", "fd00:42::/48"),
		ServiceCIDRs: prefixes("10.43.0.0/16"), NonMasqueradeCIDRs: prefixes("192.168.0.0/16"),
	}.WithDefaults()
	for golden, ownProxy := range map[string]bool{"testdata/rules.txt": false, "testdata/rules-own-proxy.txt": true} {
		s.OwnProxy = ownProxy
		m, err := planHost(s).model(nil)
		if err != nil {
			t.Fatal(err)
		}
		got := strings.Replace(m.String(), planHost(s).markerChain(), "plan-MARKER", 1)
		if *update {
			if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if got != string(want) {
			t.Errorf("%s: got:\n%s\nwant:\n%s", golden, got, want)
		}
	}
	other := s
	other.ServiceCIDRs = nil
	if first, again := planHost(s).markerChain(), planHost(s).markerChain(); first != again || first == planHost(other).markerChain() {
		t.Error("the mark does not tell plans apart")
	}
}

func TestPlanPorts(t *testing.T) {
	both := addresses("10.42.3.5", "fd00::5")
	tests := map[string]struct {
		attachments []Attachment
		want        []string
	}{
		"none": {nil, nil},
		"all of the host's addresses": {
			[]Attachment{{Addresses: both, Ports: []Port{{HostPort: 8080, ContainerPort: 80, Protocol: "TCP"}}}},
			[]string{"ports-any4 { tcp . 8080 : 10.42.3.5 . 80 }", "ports-any6 { tcp . 8080 : fd00::5 . 80 }"},
		},
		"one address of the host": {
			[]Attachment{{Addresses: both, Ports: []Port{{HostPort: 53, ContainerPort: 5353, Protocol: "udp", HostIP: "192.168.1.1"}}}},
			[]string{"ports-address4 { 192.168.1.1 . udp . 53 : 10.42.3.5 . 5353 }"},
		},
		"loopback": {
			[]Attachment{{Addresses: both, Ports: []Port{{HostPort: 53, ContainerPort: 53, Protocol: "sctp", HostIP: "127.0.0.1"}}}},
			[]string{"ports-address4 { 127.0.0.1 . sctp . 53 : 10.42.3.5 . 53 }"},
		},
		"all IPv4 addresses": {
			[]Attachment{{Addresses: both, Ports: []Port{{HostPort: 1, ContainerPort: 2, HostIP: "0.0.0.0"}}}},
			[]string{"ports-any4 { tcp . 1 : 10.42.3.5 . 2 }"},
		},
		"all IPv6 addresses": {
			[]Attachment{{Addresses: both, Ports: []Port{{HostPort: 1, ContainerPort: 2, HostIP: "::"}}}},
			[]string{"ports-any6 { tcp . 1 : fd00::5 . 2 }"},
		},
		"the same port for several protocols and addresses": {
			[]Attachment{
				{Addresses: addresses("10.42.3.5"), Ports: []Port{{HostPort: 1, ContainerPort: 2, Protocol: "tcp"}, {HostPort: 1, ContainerPort: 2, Protocol: "udp"}}},
				{Addresses: addresses("10.42.3.6"), Ports: []Port{{HostPort: 1, ContainerPort: 2, Protocol: "tcp", HostIP: "10.0.0.1"}}},
			},
			[]string{"ports-address4 { 10.0.0.1 . tcp . 1 : 10.42.3.6 . 2 }", "ports-any4 { tcp . 1 : 10.42.3.5 . 2 }", "ports-any4 { udp . 1 : 10.42.3.5 . 2 }"},
		},
		"the newer of two": {
			[]Attachment{
				{Sequence: 9, Addresses: addresses("10.42.3.9"), Ports: []Port{{HostPort: 1, ContainerPort: 2}}},
				{Sequence: 2, Addresses: addresses("10.42.3.2"), Ports: []Port{{HostPort: 1, ContainerPort: 2}}},
			},
			[]string{"ports-any4 { tcp . 1 : 10.42.3.9 . 2 }"},
		},
		"a container port without a host port": {
			[]Attachment{{Addresses: both, Ports: []Port{{ContainerPort: 2}}}}, nil,
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			m, err := planHost(Settings{PodCIDRs: prefixes("10.42.3.0/24")}.WithDefaults()).model(nil)
			if err != nil {
				t.Fatal(err)
			}
			m.Commit()
			elements, err := planPorts(test.attachments)
			if err != nil {
				t.Fatal(err)
			}
			m.Replace(portsOwner, nft.Part{Elements: elements})
			var got []string
			for line := range strings.Lines(m.Text(m.Changes())) {
				got = append(got, strings.TrimSuffix(strings.TrimPrefix(line, "add element "), "\n"))
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("got  %q\nwant %q", got, test.want)
			}
		})
	}
	for _, bad := range []Port{{HostPort: 1, Protocol: "icmp"}, {HostPort: 1, HostIP: "localhost"}} {
		if _, err := planPorts([]Attachment{{Addresses: both, Ports: []Port{bad}}}); err == nil {
			t.Errorf("%+v was accepted", bad)
		}
	}
}

func TestAddresses(t *testing.T) {
	small := prefixes("10.0.0.0/29") // .2 to .6 are free
	s := &State{}
	take := func(name string) string {
		a, err := s.reserve(Attachment{Container: name, Interface: "eth0"}, small)
		if err != nil {
			return err.Error()
		}
		return a.Addresses[0].String()
	}
	steps := []struct{ do, name, want string }{
		{"take", "a", "10.0.0.2"}, {"take", "b", "10.0.0.3"}, {"take", "a", "10.0.0.2"},
		{"drop", "a", ""}, {"take", "c", "10.0.0.4"}, {"take", "d", "10.0.0.5"}, {"take", "e", "10.0.0.6"},
		{"take", "f", "10.0.0.2"}, {"take", "g", "range 10.0.0.0/29: no address is free"},
		{"drop", "d", ""}, {"take", "h", "10.0.0.5"},
	}
	for i, step := range steps {
		if step.do == "drop" {
			s.release(step.name, "eth0")
		} else if got := take(step.name); got != step.want {
			t.Fatalf("step %d: %s got %q, want %q", i, step.name, got, step.want)
		}
	}
	released := s.keep([]Identity{{"h", "eth0"}, {"b", "eth1"}})
	if len(released) != 4 || len(s.Attachments) != 1 {
		t.Errorf("%d gone, %d left", len(released), len(s.Attachments))
	}
	dual, err := s.reserve(Attachment{Container: "dual", Interface: "eth0"}, prefixes("10.0.0.0/29", "fd00::/64"))
	if err != nil || dual.Addresses[1] != netip.MustParseAddr("fd00::2") {
		t.Errorf("%v, %v", dual, err)
	}
	// The node got another range: the old address is of no use.
	if moved, err := s.reserve(Attachment{Container: "dual", Interface: "eth0"}, prefixes("10.9.0.0/24")); err != nil || moved.Addresses[0] != netip.MustParseAddr("10.9.0.2") {
		t.Errorf("%v, %v", moved, err)
	}
}

// TestNoAddressTwice takes and releases at random: nobody ever gets an address that is taken or not a pod's.
func TestNoAddressTwice(t *testing.T) {
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 1))
		ranges := prefixes(fmt.Sprintf("10.0.0.0/%d", 26+random.IntN(4)), "fd00::/125")
		s, held := &State{}, map[string][]netip.Addr{}
		for range 500 {
			name := fmt.Sprint(random.IntN(80))
			if random.IntN(3) == 0 {
				s.release(name, "eth0")
				delete(held, name)
				continue
			}
			a, err := s.reserve(Attachment{Container: name, Interface: "eth0"}, ranges)
			if err != nil {
				// fd00::/125 has six usable addresses: all but the range's own and the gateway.
				if len(s.Attachments) < 5 {
					t.Fatalf("seed %d: %v with %d held", seed, err, len(held))
				}
				s.release(name, "eth0")
				delete(held, name)
				continue
			}
			for other, taken := range held {
				if other != name && (slices.Contains(taken, a.Addresses[0]) || slices.Contains(taken, a.Addresses[1])) {
					t.Fatalf("seed %d: %s and %s share %v", seed, name, other, a.Addresses)
				}
			}
			for i, p := range ranges {
				if !p.Contains(a.Addresses[i]) || a.Addresses[i] == gateway(p) || a.Addresses[i] == p.Addr() {
					t.Fatalf("seed %d: %v is not a pod's address", seed, a.Addresses[i])
				}
			}
			held[name] = a.Addresses
		}
	}
}

func TestStateFile(t *testing.T) {
	dir := t.TempDir()
	reserve := func(s *State) error {
		_, err := s.reserve(Attachment{Container: "a", Interface: "eth0"}, prefixes("10.0.0.0/24"))
		return err
	}
	if err := locked(dir, reserve); err != nil {
		t.Fatal(err)
	}
	count := func() (n int) {
		if err := locked(dir, func(s *State) error { n = len(s.Attachments); return nil }); err != nil {
			t.Fatal(err)
		}
		return n
	}
	if count() != 1 {
		t.Fatal("the attachment was forgotten")
	}
	path := filepath.Join(dir, "state.json")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, text[:len(text)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	if count() != 0 {
		t.Error("half a file was read")
	}
	if err := os.WriteFile(path, []byte(strings.Replace(string(text), `"boot":"`, `"boot":"another-`, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if count() != 0 {
		t.Error("an attachment outlived the machine's restart")
	}
	if err := locked(dir, func(s *State) error { _ = reserve(s); return os.ErrInvalid }); err == nil || count() != 0 {
		t.Error("a change that failed was kept")
	}
}

// What only reads the state leaves the file as it is: skiff starts on a full disk, too.
func TestReadingTheStateWritesNothing(t *testing.T) {
	dir := t.TempDir()
	err := locked(dir, func(s *State) error {
		_, err := s.reserve(Attachment{Container: "a", Interface: "eth0"}, prefixes("10.0.0.0/24"))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	stat := func() os.FileInfo {
		info, err := os.Stat(filepath.Join(dir, "state.json"))
		if err != nil {
			t.Fatal(err)
		}
		return info
	}
	before := stat()
	if all, err := Attachments(dir); err != nil || len(all) != 1 || all[0].Container != "a" {
		t.Errorf("%v, %v", all, err)
	}
	if after := stat(); !os.SameFile(before, after) || !before.ModTime().Equal(after.ModTime()) {
		t.Error("the file was written")
	}
}

func TestInstall(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "bin")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := Install(dir); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{Name, "loopback"} {
		if at, err := os.Readlink(filepath.Join(dir, name)); err != nil || at != self {
			t.Errorf("%s leads to %q, %v", name, at, err)
		}
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 2 {
		t.Errorf("%v, %v", entries, err)
	}
	if err := Uninstall(dir); err != nil {
		t.Fatal(err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("left after uninstall: %v, %v", entries, err)
	}
}

// What Podman, nerdctl and CRI-O left for single containers is not the network of pods; a cluster's network plugin is.
func TestOthers(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		fileName:                     `{"name":"skiff","plugins":[{"type":"skiff-cni"}]}`,
		"87-podman-bridge.conflist":  `{"cniVersion":"0.4.0","name":"podman","plugins":[{"type":"bridge"},{"type":"portmap"}]}`,
		"nerdctl-bridge.conflist":    `{"cniVersion":"1.0.0","name":"bridge","nerdctlID":"17f29b","plugins":[{"type":"bridge"}]}`,
		"100-crio-bridge.conflist":   `{"name":"crio","plugins":[{"type":"bridge"}]}`,
		"99-loopback.conf":           `{"name":"lo","type":"loopback"}`,
		"10-flannel.conflist":        `{"name":"cbr0","plugins":[{"type":"flannel"},{"type":"portmap"}]}`,
		"05-cilium.conf":             `{"name":"cilium","type":"cilium-cni"}`,
		"50-broken.conf":             `{`,
		"87-podman-bridge.conf.bak1": `{}`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	others, err := Others(dir)
	if want := []string{"05-cilium.conf", "10-flannel.conflist", "50-broken.conf"}; err != nil || !slices.Equal(others, want) {
		t.Errorf("%v, %v, want %v", others, err, want)
	}
}

// A runtime gets a result of the version it knows, from the first versions on.
func TestResultVersions(t *testing.T) {
	s := Settings{DataDir: "/data", PodCIDRs: prefixes("10.42.0.0/24", "fd00::/64")}.WithDefaults()
	plan := planPod(s, "eth0", []netip.Addr{netip.MustParseAddr("10.42.0.5"), netip.MustParseAddr("fd00::5")})
	result := plan.result(s, &skel.CmdArgs{ContainerID: "c", IfName: "eth0", Netns: "/ns"}, &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{MTU: 1400}})
	for _, v := range []string{"0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		converted, err := result.GetAsVersion(v)
		if err != nil {
			t.Errorf("version %s: %v", v, err)
			continue
		}
		text, err := json.Marshal(converted)
		if err != nil || converted.Version() != v || !strings.Contains(string(text), "10.42.0.5/32") || !strings.Contains(string(text), "fd00::5/128") {
			t.Errorf("version %s: %s, %v", v, text, err)
		}
	}
}

// The runtime's configuration has the version that the runtime knows, and the plugin does not receive it twice.
func TestConfigurationVersion(t *testing.T) {
	for version, want := range map[string]string{"": Version, CompatibleVersion: "1.0.0"} {
		dir := t.TempDir()
		if err := Configure(dir, Settings{DataDir: "/data", PodCIDRs: prefixes("10.42.0.0/24"), ConfigVersion: version}); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(filepath.Join(dir, fileName))
		if err != nil || !strings.Contains(string(text), `"cniVersion": "`+want+`"`) || strings.Contains(string(text), "ConfigVersion") {
			t.Errorf("version %q: %s, %v", version, text, err)
		}
	}
}

// A loopback plugin of another owner is neither replaced nor removed; a link of another version of skiff is both.
func TestInstallKeepsOthersPlugin(t *testing.T) {
	dir := t.TempDir()
	loopback := filepath.Join(dir, loopbackName)
	if err := os.WriteFile(loopback, []byte("theirs"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(Install(dir), Uninstall(dir)); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(loopback); err != nil || string(text) != "theirs" {
		t.Errorf("the plugin of another owner is %q, %v", text, err)
	}
	if err := errors.Join(os.Remove(loopback), os.Symlink("/opt/old/bin/skiff-cni", loopback), Install(dir)); err != nil {
		t.Fatal(err)
	}
	if target, err := os.Readlink(loopback); err != nil || target == "/opt/old/bin/skiff-cni" {
		t.Errorf("the link of another version leads to %s, %v", target, err)
	}
}

func TestConfigure(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "net.d")
	s := Settings{DataDir: "/data", PodCIDRs: prefixes("10.42.0.0/24"), MTU: 1400}
	for range 2 {
		if err := Configure(dir, s); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(filepath.Join(dir, fileName))
	if err != nil {
		t.Fatal(err)
	}
	var list struct {
		CNIVersion, Name string
		Plugins          []configuration
	}
	if err := json.Unmarshal(text, &list); err != nil {
		t.Fatal(err)
	}
	if list.CNIVersion != "1.1.0" || list.Name != "skiff" || len(list.Plugins) != 1 || list.Plugins[0].Type != Name ||
		list.Plugins[0].Bridge != "skiff0" || list.Plugins[0].MTU != 1400 || list.Plugins[0].PodCIDRs[0] != s.PodCIDRs[0] {
		t.Errorf("%s", text)
	}
	if others, err := Others(dir); err != nil || len(others) != 0 {
		t.Errorf("%v, %v", others, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "05-calico.conflist"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if others, err := Others(dir); err != nil || !slices.Equal(others, []string{"05-calico.conflist"}) {
		t.Errorf("%v, %v", others, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "87-podman.conflist"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if preceding, err := Preceding(dir); err != nil || !slices.Equal(preceding, []string{"05-calico.conflist"}) {
		t.Errorf("%v, %v", preceding, err)
	}
	if err := Unconfigure(dir); err != nil {
		t.Error(err)
	}
	bad := map[string]Settings{
		"no range":           {DataDir: "/d"},
		"no directory":       {PodCIDRs: prefixes("10.0.0.0/24")},
		"no room":            {DataDir: "/d", PodCIDRs: prefixes("10.0.0.0/31")},
		"two of one family":  {DataDir: "/d", PodCIDRs: prefixes("10.0.0.0/24", "10.1.0.0/24")},
		"a name too long":    {DataDir: "/d", PodCIDRs: prefixes("10.0.0.0/24"), Bridge: "a-very-long-bridge"},
		"an MTU that is not": {DataDir: "/d", PodCIDRs: prefixes("10.0.0.0/24"), MTU: 70000},
	}
	for name, s := range bad {
		if err := Configure(dir, s); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestPlanLimit(t *testing.T) {
	for _, test := range []struct {
		rate, burst uint64
		want        tokenBucket
	}{
		{8_000_000, 1 << 35, tokenBucket{rate: 1_000_000, burst: 100_000, limit: 125_000}},
		{8_000_000_000, 8 << 20, tokenBucket{rate: 1_000_000_000, burst: 1 << 20, limit: 1<<20 + 25_000_000}},
		{8_000, 0, tokenBucket{rate: 1000, burst: 64 << 10, limit: 64<<10 + 25}},
		{1, 0, tokenBucket{rate: 1, burst: 64 << 10, limit: 64 << 10}},
	} {
		if got := planLimit(test.rate, test.burst); got != test.want {
			t.Errorf("%d bit/s with bursts of %d bit: %+v, want %+v", test.rate, test.burst, got, test.want)
		}
	}
}
