package system

import (
	"context"
	"net"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"skiff/internal/config"
)

// listenAPI opens the listener of the API.
func listenAPI(ctx context.Context, c config.APIServer) (net.Listener, error) {
	settings := net.ListenConfig{Control: func(_, _ string, conn syscall.RawConn) error {
		var err error
		controlErr := conn.Control(func(fd uintptr) {
			if c.HTTP.PermitPortSharing {
				err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
			}
			if err == nil && c.HTTP.PermitAddressSharing {
				err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
			}
		})
		if controlErr != nil {
			return controlErr
		}
		return err
	}}
	return settings.Listen(ctx, "tcp", net.JoinHostPort(c.BindAddress, strconv.Itoa(c.SecurePort)))
}
