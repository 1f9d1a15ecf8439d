package node

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/moby/sys/mountinfo"
	"github.com/vishvananda/netlink"

	"skiff/test/cluster"
)

// TestUpAndDown: after `make up` containers are running, and after `make down` nothing is left on the host.
func TestUpAndDown(t *testing.T) {
	port, err := cluster.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	data := filepath.Join(t.TempDir(), "data")
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	script := func(name string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), filepath.Join(root, "scripts", name))
		cmd.Env = append(os.Environ(), "SKIFF_DATA_DIR="+data, "SKIFF_PORT="+strconv.Itoa(port))
		out, err := cmd.CombinedOutput()
		if err != nil {
			log, _ := os.ReadFile(filepath.Join(data, "skiff.log"))
			t.Fatalf("%s: %v\n%s\n%s", name, err, out, log)
		}
		return string(out)
	}
	before := traces(t)
	out := script("up")
	for _, want := range []string{"deployment \"web\" successfully rolled out", "3/3", "Running", "export KUBECONFIG=" + data + "/admin.kubeconfig", "make down"} {
		if !strings.Contains(out, want) {
			t.Errorf("up does not say %q:\n%s", want, out)
		}
	}
	if answers := strings.Count(out, "hello from skiff, says web-"); answers != 2 {
		t.Errorf("the demo's Service answered %d of 2 requests, by name from a pod and by node port:\n%s", answers, out)
	}
	during := traces(t)
	if len(during) < len(before)+10 {
		t.Errorf("with a cluster up there is but %q", during)
	}
	if again := script("up"); !strings.Contains(again, "already running") || !strings.Contains(again, "unchanged") {
		t.Errorf("up again says:\n%s", again)
	}
	out = script("down")
	if !strings.Contains(out, "removed 3 pods") {
		t.Errorf("down says:\n%s", out)
	}
	for _, trace := range traces(t) {
		if !slices.Contains(before, trace) {
			t.Errorf("left behind: %s", trace)
		}
	}
	if again := script("down"); !strings.Contains(again, "no skiff of this directory is running") {
		t.Errorf("down again says:\n%s", again)
	}
}

// networkTraces returns what a cluster could leave in the network namespace of a host.
func networkTraces() (found []string, err error) {
	links, err := netlink.LinkList()
	if err != nil {
		return nil, err
	}
	for _, l := range links {
		found = append(found, "link "+l.Attrs().Name)
	}
	addresses, err := netlink.AddrList(nil, netlink.FAMILY_V4)
	if err != nil {
		return nil, err
	}
	for _, a := range addresses {
		found = append(found, "address "+a.IPNet.String())
	}
	routes, err := netlink.RouteList(nil, netlink.FAMILY_V4)
	if err != nil {
		return nil, err
	}
	for _, r := range routes {
		found = append(found, "route "+r.String())
	}
	rules, err := nftables.New()
	if err != nil {
		return nil, err
	}
	tables, err := rules.ListTables()
	for _, table := range tables {
		found = append(found, "table "+table.Name)
	}
	return found, err
}

// traces returns what a cluster could leave on a host.
func traces(t *testing.T) (found []string) {
	t.Helper()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	found, err := networkTraces()
	check(err)
	mounts, err := mountinfo.GetMounts(nil)
	check(err)
	for _, m := range mounts {
		found = append(found, "mount "+m.Mountpoint)
	}
	groups, err := filepath.Glob("/sys/fs/cgroup/*/kubepods")
	check(err)
	for _, g := range groups {
		found = append(found, "cgroup "+g)
	}
	spaces, err := filepath.Glob("/run/netns/*")
	check(err)
	for _, n := range spaces {
		found = append(found, "network namespace "+n)
	}
	processes, err := filepath.Glob("/proc/[0-9]*/cmdline")
	check(err)
	for _, p := range processes {
		line, err := os.ReadFile(p)
		if err != nil || len(line) == 0 {
			continue // it has ended, or is the kernel's
		}
		program, _, _ := strings.Cut(string(line), "\x00")
		switch filepath.Base(program) {
		case "skiff", "containerd", "containerd-shim-runc-v2", "pause", "web", "runc":
			found = append(found, fmt.Sprint("process ", filepath.Dir(p), " ", program))
		}
	}
	return found
}
