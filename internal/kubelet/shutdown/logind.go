package shutdown

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/godbus/dbus/v5"

	"skiff/internal/atomicfile"
)

// What logind and systemd are called on the bus.
const (
	logindName         = "org.freedesktop.login1"
	logindPath         = dbus.ObjectPath("/org/freedesktop/login1")
	logindManager      = "org.freedesktop.login1.Manager"
	prepareForShutdown = "PrepareForShutdown"

	systemdName    = "org.freedesktop.systemd1"
	systemdPath    = dbus.ObjectPath("/org/freedesktop/systemd1")
	systemdManager = "org.freedesktop.systemd1.Manager"

	// configFile is below the directory of logind's settings.
	configFile = "99-kubelet.conf"
)

// logind is the machine's login manager, which decides when it goes down.
type logind struct {
	conn    *dbus.Conn
	signals chan *dbus.Signal
	// lock keeps the machine up while it is open; nil when it is not conn.
	lock *os.File
}

func (l *logind) manager() dbus.BusObject { return l.conn.Object(logindName, logindPath) }

// delay is how long logind waits for locks at most.
func (l *logind) maxDelay() (time.Duration, error) {
	value, err := l.manager().GetProperty(logindManager + ".InhibitDelayMaxUSec")
	if err != nil {
		return 0, fmt.Errorf("read logind's longest delay: %w", err)
	}
	microseconds, ok := value.Value().(uint64)
	if !ok {
		return 0, fmt.Errorf("logind's longest delay is %s, not a number", value)
	}
	return time.Duration(microseconds) * time.Microsecond, nil
}

// setMaxDelay has logind wait longer: it reads its settings anew when it gets a signal, in its own time.
func (l *logind) setMaxDelay(dir string, need time.Duration) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make the directory of logind's settings: %w", err)
	}
	text := fmt.Sprintf("# Pods need this long to end.\n[Login]\nInhibitDelayMaxSec=%.0f\n", need.Seconds())
	if err := atomicfile.Write(filepath.Join(dir, configFile), []byte(text), 0o644); err != nil {
		return fmt.Errorf("write logind's settings: %w", err)
	}
	const allProcesses, sighup = "all", int32(1)
	if call := l.conn.Object(systemdName, systemdPath).Call(systemdManager+".KillUnit", 0, "systemd-logind.service", allProcesses, sighup); call.Err != nil {
		return fmt.Errorf("have logind read its settings: %w", call.Err)
	}
	for wait := 50 * time.Millisecond; ; wait *= 2 {
		now, err := l.maxDelay()
		if err != nil || now >= need {
			return err
		}
		if wait > time.Second {
			return fmt.Errorf("logind waits %s for pods that need %s, whatever its settings say", now, need)
		}
		time.Sleep(wait)
	}
}

// subscribe lets what logind announces come in on signals, which is closed with the connection.
func (l *logind) subscribe() error {
	err := l.conn.AddMatchSignal(dbus.WithMatchInterface(logindManager), dbus.WithMatchMember(prepareForShutdown), dbus.WithMatchObjectPath(logindPath))
	if err != nil {
		return fmt.Errorf("listen to logind: %w", err)
	}
	l.signals = make(chan *dbus.Signal, 8)
	l.conn.Signal(l.signals)
	return nil
}

// parseSignal reads whether the machine is starting down. Other signals are not ok.
func parseSignal(s *dbus.Signal) (starting, ok bool) {
	if s == nil || s.Name != logindManager+"."+prepareForShutdown || len(s.Body) == 0 {
		return false, false
	}
	starting, ok = s.Body[0].(bool)
	return starting, ok
}

// inhibit takes the lock. One that is conn already is let go after it.
func (l *logind) inhibit() error {
	var fd dbus.UnixFD
	call := l.manager().Call(logindManager+".Inhibit", 0, "shutdown", "kubelet", "Kubelet needs time to handle node shutdown", "delay")
	if err := call.Store(&fd); err != nil {
		return fmt.Errorf("take logind's lock: %w", err)
	}
	if fd < 0 {
		return errors.New("take logind's lock: it gave none")
	}
	l.release()
	l.lock = os.NewFile(uintptr(fd), "inhibitor lock")
	return nil
}

// release lets the machine go down.
func (l *logind) release() {
	if l.lock != nil {
		_ = l.lock.Close() // it is let go even then
		l.lock = nil
	}
}

func (l *logind) close() {
	l.release()
	_ = l.conn.Close() // nothing more is expected of it
}
