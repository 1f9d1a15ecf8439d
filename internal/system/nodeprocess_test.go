package system

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
)

// setUpProcessTest is set in the process that TestSetUpProcess starts, because its limits cannot be raised again.
const setUpProcessTest = "SKIFF_TEST_SET_UP_PROCESS"

func TestSetUpProcess(t *testing.T) {
	if os.Getenv(setUpProcessTest) == "" {
		c := exec.Command(os.Args[0], "-test.run=^TestSetUpProcess$")
		c.Env = append(os.Environ(), setUpProcessTest+"=1")
		if out, err := c.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	files, score := func() (limit unix.Rlimit, score int) {
		if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			t.Fatal(err)
		}
		return limit, oomScoreAdj(t)
	}()
	if err := setUpProcess(&kubeletconfig.KubeletConfiguration{}); err != nil || oomScoreAdj(t) != score {
		t.Errorf("an empty configuration changed oom_score_adj to %d, %v", oomScoreAdj(t), err)
	}
	maxFiles := min(files.Max, 1<<20) - 7 // files.Max may be infinite
	wanted := int32(min(score+7, 1000))
	if err := setUpProcess(&kubeletconfig.KubeletConfiguration{OOMScoreAdj: &wanted, MaxOpenFiles: int64(maxFiles)}); err != nil {
		t.Fatal(err)
	}
	var after unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &after); err != nil || after.Cur != maxFiles || after.Max != maxFiles {
		t.Errorf("limit of open files %+v, want %d, %v", after, maxFiles, err)
	}
	if got := oomScoreAdj(t); got != int(wanted) {
		t.Errorf("oom_score_adj %d, want %d", got, wanted)
	}
}

func oomScoreAdj(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile("/proc/self/oom_score_adj")
	if err != nil {
		t.Fatal(err)
	}
	score, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	return score
}

func TestCheckKernelDefaults(t *testing.T) {
	dir := t.TempDir()
	for _, p := range kernelDefaults {
		path := filepath.Join(dir, p.name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(p.value+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := checkKernelDefaults(dir); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "kernel/panic"), []byte("0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, "vm/panic_on_oom")); err != nil {
		t.Fatal(err)
	}
	err := checkKernelDefaults(dir)
	for _, want := range []string{"invalid kernel flag: kernel/panic, expected value: 10, actual value: 0", "vm/panic_on_oom: no such file"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}
