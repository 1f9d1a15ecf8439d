package system

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
)

// setUpProcess applies the settings that are about this process. Those that a configuration does not have are left as they were when skiff was
// started.
func setUpProcess(s *kubeletconfig.KubeletConfiguration) error {
	if adj := s.OOMScoreAdj; adj != nil {
		if err := os.WriteFile("/proc/self/oom_score_adj", []byte(strconv.Itoa(int(*adj))), 0); err != nil {
			return fmt.Errorf("oomScoreAdj: %w", err)
		}
	}
	if s.ProtectKernelDefaults {
		if err := checkKernelDefaults("/proc/sys"); err != nil {
			return fmt.Errorf("protectKernelDefaults: %w", err)
		}
	}
	if s.MaxOpenFiles == 0 {
		return nil
	}
	limit := unix.Rlimit{Cur: uint64(s.MaxOpenFiles), Max: uint64(s.MaxOpenFiles)}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("maxOpenFiles: %w", err)
	}
	return nil
}

// kernelDefaults are the kernel parameters that upstream's kubelet expects. skiff never changes them.
var kernelDefaults = []struct{ name, value string }{
	{"vm/overcommit_memory", "1"}, {"vm/panic_on_oom", "0"}, {"kernel/panic", "10"}, {"kernel/panic_on_oops", "1"},
	{"kernel/keys/root_maxkeys", "1000000"}, {"kernel/keys/root_maxbytes", "25000000"},
}

// checkKernelDefaults compares the kernel parameters below a directory with kernelDefaults.
func checkKernelDefaults(dir string) error {
	var errs []error
	for _, p := range kernelDefaults {
		value, err := os.ReadFile(filepath.Join(dir, p.name))
		if err != nil {
			errs = append(errs, err)
		} else if actual := strings.TrimSpace(string(value)); actual != p.value {
			errs = append(errs, fmt.Errorf("invalid kernel flag: %s, expected value: %s, actual value: %s", p.name, p.value, actual))
		}
	}
	return errors.Join(errs...)
}
