package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	fake "skiff/test/systemd"
)

func TestSlicePath(t *testing.T) {
	for path, want := range map[string]string{
		"/":                             "/",
		"/kubepods":                     "/kubepods.slice",
		"/kubepods/burstable":           "/kubepods.slice/kubepods-burstable.slice",
		"/kubepods/besteffort/pod12-34": "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod12_34.slice",
		"/node-a/kubepods/pod1":         "/node_a.slice/node_a-kubepods.slice/node_a-kubepods-pod1.slice",
	} {
		if got := slicePath(path); got != want {
			t.Errorf("%s is %s, want %s", path, got, want)
		}
	}
}

func TestUIDOf(t *testing.T) {
	plain, slices := &Groups{}, withSystemd(t).Groups
	for _, test := range []struct {
		groups *Groups
		name   string
		want   types.UID
	}{
		{plain, "pod12-34", "12-34"}, {plain, "burstable", ""}, {plain, "pod", ""},
		{slices, "kubepods-burstable-pod12_34.slice", "12-34"}, {slices, "kubepods-pod5.slice", "5"}, {slices, "kubepods-burstable.slice", ""},
	} {
		if got, ok := test.groups.uidOf(test.name); ok != (test.want != "") || ok && got != test.want {
			t.Errorf("%s: %q, %t, want %q", test.name, got, ok, test.want)
		}
	}
}

func TestProperties(t *testing.T) {
	format := func(l Limits, version int) string {
		var all []string
		for _, p := range l.properties(version) {
			if p.Value == uint64(math.MaxUint64) {
				p.Value = "infinity"
			}
			all = append(all, fmt.Sprintf("%s=%v", p.Name, p.Value))
		}
		return strings.Join(all, " ")
	}
	n := func(v int64) *int64 { return &v }
	limited := Limits{Shares: new(uint64(1024)), Quota: n(50_000), Period: 100_000, Memory: n(1 << 20), MemoryMin: n(1), MemoryLow: n(2), MemoryHigh: n(3), Pids: n(10)}
	for _, test := range []struct {
		limits  Limits
		version int
		want    string
	}{
		{limited, 2, "CPUWeight=39 CPUQuotaPerSecUSec=500000 MemoryMax=1048576 MemoryMin=1 MemoryLow=2 MemoryHigh=3 TasksMax=10"},
		{limited, 1, "CPUShares=1024 CPUQuotaPerSecUSec=500000 MemoryLimit=1048576 TasksMax=10"},
		{Limits{Quota: n(Unlimited), Period: 100_000, Memory: n(Unlimited), Pids: n(0)}, 2, "CPUQuotaPerSecUSec=infinity MemoryMax=infinity TasksMax=1"},
		// A quota is rounded up to a percent, and another period is given.
		{Limits{Quota: n(1234), Period: 50_000}, 2, "CPUQuotaPeriodUSec=50000 CPUQuotaPerSecUSec=30000"},
		{Limits{HugePages: map[int64]int64{2 << 20: 1}}, 2, ""},
	} {
		if got := format(test.limits, test.version); got != test.want {
			t.Errorf("version %d: %s, want %s", test.version, got, test.want)
		}
	}
}

// systemdHost is a directory that stands in for cgroups of version 2, with a fake systemd that makes the directories of slices there.
type systemdHost struct {
	*Groups
	systemd *fake.Systemd
	tree    string
}

func withSystemd(t *testing.T) systemdHost {
	t.Helper()
	// The path of a socket is limited; that of t.TempDir may be too long.
	dir, err := os.MkdirTemp("", "systemd")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	host, err := fake.Start(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(host.Stop)
	g := standIn(t, "cpuset cpu io memory hugetlb pids")
	s := systemdHost{Groups: g, systemd: host, tree: g.unified()}
	host.Call = s.call
	settings := g.settings
	settings.Root, settings.Driver, settings.SystemdAddress = "/", Systemd, host.Address
	if s.Groups, err = New(settings); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Groups.systemd.Close)
	s.Groups.pageSizes, s.Groups.write = nil, g.write
	return s
}

// call is what systemd does with the cgroups of slices.
func (s systemdHost) call(member string, body []any) (string, error) {
	name := strings.TrimSuffix(fmt.Sprint(body[0]), ".slice")
	dir := filepath.Join(s.tree, slicePath(strings.ReplaceAll(name, "-", "/")))
	switch member {
	case "StartTransientUnit":
		if _, err := os.Stat(dir); err == nil {
			return "", fake.UnitExists(fmt.Sprint(body[0]))
		}
		return "done", os.MkdirAll(dir, 0o700)
	case "StopUnit":
		return "done", os.RemoveAll(dir)
	}
	return "done", nil
}

// Pods are below systemd's slices, with the limits in systemd's properties and in the files.
func TestSystemdDriver(t *testing.T) {
	host := withSystemd(t)
	if err := host.Setup(list("cpu=4 memory=8Gi")); err != nil {
		t.Fatal(err)
	}
	pod := podOf("1-2", ctr("cpu=500m memory=1Gi", "cpu=1 memory=2Gi"))
	parent, err := host.Ensure(pod, true)
	if err != nil || parent != "kubepods-burstable-pod1_2.slice" {
		t.Fatalf("%s, %v", parent, err)
	}
	path := "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_2.slice"
	for file, want := range map[string]string{
		"cgroup.subtree_control":                              "cpu hugetlb memory pids",
		"kubepods.slice/cgroup.subtree_control":               "cpu hugetlb memory pids",
		"kubepods.slice/memory.max":                           "8589934592",
		path + "/memory.max":                                  "2147483648",
		path + "/cpu.max":                                     "100000 100000",
		"kubepods.slice/kubepods-besteffort.slice/cpu.weight": "1",
	} {
		if got, err := os.ReadFile(filepath.Join(host.tree, file)); err != nil || string(got) != want {
			t.Errorf("%s is %q, %v, want %q", file, got, err, want)
		}
	}
	if err := host.updateClasses([]*corev1.Pod{pod}); err != nil {
		t.Fatal(err)
	}
	pod.Spec.Containers[0].Resources.Limits = list("cpu=1 memory=3Gi")
	if err := host.Update(pod); err != nil {
		t.Fatal(err)
	}
	// A start after the first one finds the slices.
	if err := host.Setup(list("cpu=4 memory=4Gi")); err != nil {
		t.Fatal(err)
	}
	if uids, err := host.Pods(); err != nil || !slices.Equal(uids, []types.UID{"1-2"}) {
		t.Errorf("pods %v, %v", uids, err)
	}
	if err := os.Mkdir(filepath.Join(host.tree, path, "cri-containerd-abc.scope"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := host.ContainerStats("1-2", "abc"); err != nil {
		t.Errorf("statistics of a container in a scope: %v", err)
	}
	if _, err := host.ContainerStats("1-2", "bc"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("statistics of another container: %v", err)
	}
	if err := host.Remove("1-2"); err != nil {
		t.Fatal(err)
	}
	calls := strings.Join(host.systemd.Calls(), "\n")
	for _, want := range []string{
		"StartTransientUnit kubepods.slice replace", `[Wants ["-.slice"]]`, "StartTransientUnit kubepods-burstable-pod1_2.slice replace",
		`[Wants ["kubepods-burstable.slice"]]`, "SetUnitProperties kubepods-burstable.slice true [[CPUWeight @t 20]]", "MemoryMax @t 3221225472",
		"SetUnitProperties kubepods.slice true", "MemoryMax @t 4294967296", "StopUnit kubepods-burstable-pod1_2.slice replace",
	} {
		if !strings.Contains(calls, want) {
			t.Errorf("no %q in the calls of systemd:\n%s", want, calls)
		}
	}
	if strings.Count(calls, "StopUnit") != 1 {
		t.Errorf("slices were stopped that do not exist:\n%s", calls)
	}
	if err := host.Teardown(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(host.tree, "kubepods.slice")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("kubepods.slice is left: %v", err)
	}
}

// A pod is not started in a cgroup that systemd refuses.
func TestSystemdFailure(t *testing.T) {
	host := withSystemd(t)
	host.systemd.Call = func(string, []any) (string, error) { return "", errors.New("access denied") }
	if err := host.Setup(list("cpu=4")); err == nil || !strings.Contains(err.Error(), "access denied") {
		t.Errorf("error %v", err)
	}
}

// A controller that cannot be enabled is done without and named; the others are enabled.
func TestDelegateOneByOne(t *testing.T) {
	g := standIn(t, "cpu memory hugetlb pids")
	write := g.write
	g.write = func(path, value string) error {
		if strings.Contains(value, "+hugetlb") || strings.Contains(value, "+cpu") {
			return errors.New("device or resource busy")
		}
		return write(path, value)
	}
	if err := g.Setup(list("cpu=4 memory=8Gi")); err != nil {
		t.Fatal(err)
	}
	if got := g.Missing(); !slices.Equal(got, []string{"cpu", "hugetlb"}) {
		t.Errorf("missing %v", got)
	}
	if _, err := g.Ensure(podOf("a", ctr("cpu=1", "cpu=1")), true); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(g.unified(), "node-a/kubepods/cgroup.subtree_control")); err != nil || string(got) != "memory pids" {
		t.Errorf("controllers %q, %v", got, err)
	}
}

// A node without any controller still starts pods.
func TestNoController(t *testing.T) {
	g := standIn(t, "memory pids")
	g.write = func(path, _ string) error {
		return &fs.PathError{Op: "write", Path: path, Err: errors.New("operation not supported")}
	}
	if err := g.Setup(list("cpu=4 memory=8Gi")); err != nil {
		t.Fatal(err)
	}
	if _, err := g.Ensure(podOf("a", ctr("cpu=1", "cpu=1")), true); err != nil {
		t.Fatal(err)
	}
	if got := g.Missing(); !slices.Contains(got, "memory") || !slices.Contains(got, "pids") {
		t.Errorf("missing %v", got)
	}
}

// In a container, the processes are moved out of the root of its cgroup namespace, because the kernel enables controllers only below cgroups
// without processes.
func TestLeaveRoot(t *testing.T) {
	root := t.TempDir()
	procs := filepath.Join(root, "cgroup.procs")
	if err := os.WriteFile(procs, []byte("1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := leaveRoot(root); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(root, hostCgroup)); err == nil {
		t.Error("processes were moved out of the root cgroup of a host")
	}
	target := filepath.Join(root, hostCgroup)
	if err := errors.Join(os.WriteFile(filepath.Join(root, "cgroup.type"), nil, 0o600), os.Mkdir(target, 0o700)); err != nil {
		t.Fatal(err)
	}
	// In a plain directory a process is not moved by the write: the target is a link to the file to be emptied.
	if err := os.Symlink(procs, filepath.Join(target, "cgroup.procs")); err != nil {
		t.Fatal(err)
	}
	if err := leaveRoot(root); err == nil || !strings.Contains(err.Error(), "new processes appear") {
		t.Errorf("with a process that stays: %v", err)
	}
	if err := os.WriteFile(procs, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := leaveRoot(root); err != nil {
		t.Errorf("without processes: %v", err)
	}
}

func TestMemoryQoS(t *testing.T) {
	guaranteed := podOf("g", ctr("cpu=1 memory=1Gi", "cpu=1 memory=1Gi"))
	burstable := podOf("b", ctr("memory=1Gi", "memory=2Gi"))
	own := podOf("p", ctr("", ""))
	own.Spec.Resources = &corev1.ResourceRequirements{Requests: list("memory=1Gi"), Limits: list("memory=2Gi")}
	for name, test := range map[string]struct {
		pod      *corev1.Pod
		settings Settings
		want     string
	}{
		"off":                   {guaranteed, Settings{}, ""},
		"guaranteed":            {guaranteed, Settings{TieredReservation: true}, "memory.min=1073741824 memory.low=0"},
		"burstable":             {burstable, Settings{TieredReservation: true}, "memory.min=0 memory.low=1073741824"},
		"containers throttled":  {burstable, Settings{MemoryThrottlingFactor: 0.9}, "memory.high=max"},
		"the pod throttled":     {own, Settings{MemoryThrottlingFactor: 0.9}, "memory.high=2040107008"},
		"nothing to throttle":   {guaranteed, Settings{MemoryThrottlingFactor: 0.9}, "memory.high=max"},
		"protection and factor": {own, Settings{TieredReservation: true, MemoryThrottlingFactor: 1}, "memory.min=0 memory.low=1073741824 memory.high=2147483648"},
	} {
		var got []string
		for _, s := range PodLimits(test.pod, test.settings, nil).settings(2) {
			if s.controller == "memory" && s.file != "memory.max" {
				got = append(got, s.file+"="+s.value)
			}
		}
		if strings.Join(got, " ") != test.want {
			t.Errorf("%s: %v, want %s", name, got, test.want)
		}
	}
	g := standIn(t, "cpu memory pids")
	g.settings.TieredReservation = true
	if err := errors.Join(g.Setup(list("cpu=4")), g.updateClasses([]*corev1.Pod{guaranteed, burstable, podOf("e", ctr("", ""))})); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{"memory.min": "2147483648", "memory.low": "1073741824", "burstable/memory.low": "1073741824"} {
		if got, err := os.ReadFile(filepath.Join(g.unified(), "node-a/kubepods", file)); err != nil || string(got) != want {
			t.Errorf("%s is %q, %v, want %s", file, got, err, want)
		}
	}
}
