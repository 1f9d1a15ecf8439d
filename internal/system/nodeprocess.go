package system

import (
	"fmt"
	"os"
	"strconv"

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
	if s.MaxOpenFiles == 0 {
		return nil
	}
	limit := unix.Rlimit{Cur: uint64(s.MaxOpenFiles), Max: uint64(s.MaxOpenFiles)}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("maxOpenFiles: %w", err)
	}
	return nil
}
