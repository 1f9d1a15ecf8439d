//go:build root

package cgroup

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// here makes groups on this host's own cgroups, below a root of their own.
func here(t *testing.T) *Groups {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("cgroups are root's")
	}
	g, err := New(Settings{Root: fmt.Sprintf("/skiff-test-%d-%d", os.Getpid(), time.Now().UnixNano()), PodPids: 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Teardown(); err != nil {
			t.Error(err)
		}
		for _, dir := range g.dirs("", true) {
			if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s is left: %v", dir, err)
			}
		}
	})
	if err := g.Setup(list("cpu=2 memory=4Gi")); err != nil {
		t.Fatal(err)
	}
	return g
}

// start runs a command in a group, as the runtime does with a container.
func start(t *testing.T, g *Groups, parent, name string, command ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sh", append([]string{"-c", `read go; exec "$@"`, "sh"}, command...)...)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	for _, tree := range slices.Compact(slices.Sorted(maps.Values(g.hierarchies))) {
		dir := filepath.Join(tree, parent, name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := writeFile(filepath.Join(dir, "cgroup.procs"), fmt.Sprint(cmd.Process.Pid)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := in.Write([]byte("go\n")); err != nil {
		t.Fatal(err)
	}
	return cmd
}

func TestOnThisHost(t *testing.T) {
	g := here(t)
	t.Logf("version %d, missing %v", g.Version(), g.Missing())
	pod := podOf("11-22", ctr("cpu=250m memory=64Mi", "cpu=500m memory=128Mi"))
	parent, err := g.Ensure(pod, true)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := g.Ensure(pod, false); err != nil || again != parent {
		t.Errorf("%s, %v", again, err)
	}
	now, err := g.read(podCgroup(pod))
	if err != nil || *now.Memory != 128<<20 || *now.Shares != 256 && g.Version() == 1 || now.Quota != nil && *now.Quota != 50000 {
		t.Errorf("%+v, %v", now, err)
	}
	start(t, g, parent, "container", "sh", "-c", "while :; do :; done")
	// The kernel adds up some of it late, and a busy machine gives the loop little time.
	var stats, whole Stats
	counted := func() bool {
		return stats.CPU.Usage > 0 && stats.Memory.Usage > 0 && stats.Memory.RSS > 0 && stats.Memory.PageFaults > 0 && stats.Processes == 1 &&
			(now.Quota == nil || whole.CPU.Throttled > 0)
	}
	for began := time.Now(); !counted() && time.Since(began) < 30*time.Second; time.Sleep(50 * time.Millisecond) {
		if stats, err = g.ContainerStats("11-22", "container"); err != nil {
			t.Fatal(err)
		}
		if whole, err = g.PodStats("11-22"); err != nil {
			t.Fatal(err)
		}
	}
	if !counted() {
		t.Errorf("container %+v\npod %+v", stats, whole)
	}
	if whole.CPU.Usage < stats.CPU.Usage || whole.Memory.Limit != 128<<20 || whole.ProcessLimit != 20 {
		t.Errorf("%+v", whole)
	}
	if all, err := g.PodsStats(); err != nil || all.CPU.Usage < whole.CPU.Usage || all.Memory.Limit != 4<<30 {
		t.Errorf("%+v, %v", all, err)
	}
	if node, err := g.NodeStats(); err != nil || node.Memory.Usage == 0 || node.CPU.Usage == 0 || node.Memory.Limit == 0 {
		t.Errorf("%+v, %v", node, err)
	}
	pod.Spec.Containers[0].Resources.Limits = list("cpu=400m memory=256Mi")
	if err := g.Grow(pod); err != nil {
		t.Fatal(err)
	}
	if now, err = g.read(podCgroup(pod)); err != nil || *now.Memory != 256<<20 || now.Quota != nil && *now.Quota != 50000 {
		t.Errorf("after growing: %+v, %v", now, err)
	}
	if err := g.Update(pod); err != nil {
		t.Fatal(err)
	}
	if now, err = g.read(podCgroup(pod)); err != nil || now.Quota != nil && *now.Quota != 40000 {
		t.Errorf("after shrinking: %+v, %v", now, err)
	}
	if uids, err := g.Pods(); err != nil || !slices.Equal(uids, []types.UID{"11-22"}) {
		t.Errorf("%v, %v", uids, err)
	}
}

// TestRemoveEndsWhatIsLeft leaves a tree of processes in a pod's group, one of which makes new ones all the time.
func TestRemoveEndsWhatIsLeft(t *testing.T) {
	g := here(t)
	pod := podOf("left", ctr("", ""))
	parent, err := g.Ensure(pod, true)
	if err != nil {
		t.Fatal(err)
	}
	cmd := start(t, g, parent, "container", "sh", "-c", "trap '' TERM; while :; do sleep 0.01 & sleep 0.02; done")
	go func() { _ = cmd.Wait() }() // a zombie would stay in its group
	time.Sleep(100 * time.Millisecond)
	if err := g.Remove("left"); err != nil {
		t.Fatal(err)
	}
	if uids, err := g.Pods(); err != nil || len(uids) != 0 {
		t.Errorf("%v, %v", uids, err)
	}
	if err := g.Remove("left"); err != nil {
		t.Errorf("the second time: %v", err)
	}
}

// TestForkBomb holds a pod to its number of processes.
func TestForkBomb(t *testing.T) {
	g := here(t)
	if slices.Contains(g.Missing(), "pids") {
		t.Fatal("this host does not count processes")
	}
	parent, err := g.Ensure(podOf("bomb", ctr("", "")), true)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sh", "-c", `read go; i=0; while [ $i -lt 40 ]; do sleep 5 & i=$((i+1)); done; echo all`)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	if err := writeFile(filepath.Join(g.hierarchies["pids"], parent, "cgroup.procs"), fmt.Sprint(cmd.Process.Pid)); err != nil {
		t.Fatal(err)
	}
	if _, err := in.Write([]byte("go\n")); err != nil {
		t.Fatal(err)
	}
	if line, _ := bufio.NewReader(out).ReadString('\n'); !strings.Contains(strings.ToLower(line), "fork") {
		t.Errorf("40 processes where 20 are allowed: %q", line)
	}
	if stats, err := g.PodStats("bomb"); err != nil || stats.Processes > 20 {
		t.Errorf("%d processes, %v", stats.Processes, err)
	}
}

// TestRemoveNode removes the cgroups of a node beside those of another kubelet, which have the same names.
func TestRemoveNode(t *testing.T) {
	g := here(t)
	processes := map[types.UID]*exec.Cmd{}
	for _, uid := range []types.UID{"own", "other"} {
		parent, err := g.Ensure(podOf(string(uid), ctr("", "")), true)
		if err != nil {
			t.Fatal(err)
		}
		processes[uid] = start(t, g, parent, "container", "sleep", "1h")
	}
	isOwn := func(uid types.UID) bool { return uid == "own" }
	ended := make(chan error, 1)
	go func() { ended <- processes["own"].Wait() }() // a zombie would stay in its group
	othersStay, err := g.RemoveNode(isOwn, false)
	if err != nil || !othersStay {
		t.Errorf("others stay: %v, %v", othersStay, err)
	}
	if err := <-ended; err == nil {
		t.Error("the process of the own pod has ended by itself")
	}
	if !g.hasProcesses("other") {
		t.Fatal("the process of another node's pod was killed")
	}
	if pods, err := g.Pods(); err != nil || !slices.Equal(pods, []types.UID{"other"}) {
		t.Errorf("pods %v, %v", pods, err)
	}
	if err := processes["other"].Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = processes["other"].Wait() // it was killed
	// The other kubelet runs, and may put a process into it.
	if othersStay, err = g.RemoveNode(isOwn, true); err != nil || !othersStay || !g.exists(podsCgroup) {
		t.Errorf("beside another kubelet: others stay: %v, %v", othersStay, err)
	}
	if othersStay, err = g.RemoveNode(isOwn, false); err != nil || othersStay || g.exists(podsCgroup) {
		t.Errorf("without another kubelet: others stay: %v, %v", othersStay, err)
	}
}
