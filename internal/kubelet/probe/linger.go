package probe

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// setLinger sets SO_LINGER to one second, so that the sockets of probes do not stay in TIME_WAIT.
func setLinger(_, _ string, raw syscall.RawConn) error {
	var failed error
	err := raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptLinger(int(fd), unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 1})
	})
	if err != nil {
		return err
	}
	return failed
}
