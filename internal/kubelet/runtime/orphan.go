package runtime

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"skiff/internal/atomicfile"
)

func writePID(path string, pid int) error {
	return atomicfile.Write(path, []byte(strconv.Itoa(pid)), 0o600)
}

// stopOrphan stops the containerd in a PID file if it still runs with the given configuration: that of a skiff that was killed. It has
// received Pdeathsig, but may not have exited yet.
func stopOrphan(ctx context.Context, pidFile, config string) error {
	data, err := os.ReadFile(pidFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil || pid <= 1 {
		return os.Remove(pidFile)
	}
	// A pidfd makes sure that the checked process is the one that is signalled: PIDs are reused.
	handle, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return os.Remove(pidFile)
	}
	defer unix.Close(handle)
	if !runsWith(pid, config) {
		return os.Remove(pidFile)
	}
	for _, signal := range []unix.Signal{unix.SIGTERM, unix.SIGKILL} {
		if err := unix.PidfdSendSignal(handle, signal, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
		if err := waitExit(ctx, handle, stopTimeout); err == nil {
			return os.Remove(pidFile)
		} else if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return fmt.Errorf("process %d does not exit", pid)
}

// runsWith reports whether a process was started with the given argument.
func runsWith(pid int, argument string) bool {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return false
	}
	for arg := range bytes.SplitSeq(line, []byte{0}) {
		if string(arg) == argument {
			return true
		}
	}
	return false
}

// waitExit waits until the process of a pidfd has exited.
func waitExit(ctx context.Context, handle int, timeout time.Duration) error {
	deadline := time.Now().Add(timeout)
	for time.Now().Before(deadline) && ctx.Err() == nil {
		ready, err := unix.Poll([]unix.PollFd{{Fd: int32(handle), Events: unix.POLLIN}}, 50)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		if ready > 0 {
			return nil
		}
	}
	return errors.New("timed out")
}
