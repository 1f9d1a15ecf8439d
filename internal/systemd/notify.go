package systemd

import (
	"fmt"
	"net"
	"os"
	"strings"
)

const (
	// notifyVariable has the socket on which systemd receives the state of a service.
	notifyVariable = "NOTIFY_SOCKET"
	ready          = "READY=1"
)

// Notifier reports the state of this process to systemd. The zero value reports nothing.
type Notifier struct{ socket string }

// NewNotifier returns the notifier of this process. It removes the socket from the environment: the programs that skiff starts are not the
// service.
func NewNotifier() Notifier {
	socket := os.Getenv(notifyVariable)
	_ = os.Unsetenv(notifyVariable) // fails for invalid names only
	return Notifier{socket: socket}
}

// Ready reports that the service has started.
func (n Notifier) Ready() error {
	if n.socket == "" {
		return nil
	}
	address := &net.UnixAddr{Name: n.socket, Net: "unixgram"}
	if abstract, ok := strings.CutPrefix(n.socket, "@"); ok {
		address.Name = "\x00" + abstract
	}
	conn, err := net.DialUnix("unixgram", nil, address)
	if err != nil {
		return fmt.Errorf("report readiness to systemd: %w", err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte(ready)); err != nil {
		return fmt.Errorf("report readiness to systemd: %w", err)
	}
	return nil
}
