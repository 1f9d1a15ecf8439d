package probe

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// lingerNot lets a connection end with a reset instead of waiting in the kernel for a minute: probes open very many.
func lingerNot(_, _ string, raw syscall.RawConn) error {
	var failed error
	err := raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptLinger(int(fd), unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 1})
	})
	if err != nil {
		return err
	}
	return failed
}
