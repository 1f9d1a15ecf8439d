package quickstart

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"

	"skiff/test/cluster"
	"skiff/test/netns"
)

// TestUpAndDown starts a cluster twice and stops it twice, with another data directory and port than the default ones.
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
	checkUp(t, out, data)
	checkRunning(t, before)
	if again := script("up"); !strings.Contains(again, "already running") || !strings.Contains(again, "unchanged") {
		t.Errorf("up again says:\n%s", again)
	}
	out = script("down")
	if !strings.Contains(out, "removed 3 pods") {
		t.Errorf("down says:\n%s", out)
	}
	checkNothingLeft(t, before)
	if again := script("down"); !strings.Contains(again, "no skiff of this directory is running") {
		t.Errorf("down again says:\n%s", again)
	}
}

// checkUp checks what `make up` prints when it has started a cluster and requested the demo.
func checkUp(t *testing.T, out, data string) {
	t.Helper()
	for _, want := range []string{"deployment \"web\" successfully rolled out", "3/3", "Running", "export KUBECONFIG=" + data + "/admin.kubeconfig", "make down"} {
		if !strings.Contains(out, want) {
			t.Errorf("up does not say %q:\n%s", want, out)
		}
	}
	if answers := strings.Count(out, "hello from skiff, says web-"); answers != 2 {
		t.Errorf("the demo's Service answered %d of 2 requests, by name from a pod and by node port:\n%s", answers, out)
	}
}

// checkRunning checks that a cluster shows in the traces, so that checkNothingLeft can fail.
func checkRunning(t *testing.T, before []string) {
	t.Helper()
	during := slices.DeleteFunc(traces(t), func(trace string) bool { return slices.Contains(before, trace) })
	for _, kind := range []string{"link", "address", "route", "table", "mount", "cgroup", "process"} {
		if !slices.ContainsFunc(during, func(trace string) bool { return strings.HasPrefix(trace, kind+" ") }) {
			t.Errorf("a cluster that is up has no %s among %q", kind, during)
		}
	}
}

// checkNothingLeft checks that nothing of a cluster is left.
func checkNothingLeft(t *testing.T, before []string) {
	t.Helper()
	for _, trace := range traces(t) {
		if !slices.Contains(before, trace) {
			t.Errorf("left behind: %s", trace)
		}
	}
}

// traces returns what a cluster could leave on a host. Network namespaces are among the mounts.
func traces(t *testing.T) (found []string) {
	t.Helper()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	found, err := netns.Traces()
	check(err)
	mounts, err := mountinfo.GetMounts(nil)
	check(err)
	for _, m := range mounts {
		found = append(found, "mount "+m.Mountpoint)
	}
	for _, pattern := range []string{"/sys/fs/cgroup/*", "/sys/fs/cgroup/*/*"} {
		paths, err := filepath.Glob(pattern)
		check(err)
		for _, path := range paths {
			if info, err := os.Stat(path); err == nil && info.IsDir() {
				found = append(found, "cgroup "+path)
			}
		}
	}
	processes, err := filepath.Glob("/proc/[0-9]*/cmdline")
	check(err)
	for _, p := range processes {
		line, err := os.ReadFile(p)
		if err != nil || len(line) == 0 {
			continue // it has ended
		}
		program, _, _ := strings.Cut(string(line), "\x00")
		found = append(found, fmt.Sprint("process ", filepath.Dir(p), " ", program))
	}
	return found
}
