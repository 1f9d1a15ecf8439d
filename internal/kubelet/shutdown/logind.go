package shutdown

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/godbus/dbus/v5"

	"skiff/internal/atomicfile"
)

// The D-Bus names of logind and systemd.
const (
	logindName         = "org.freedesktop.login1"
	logindPath         = dbus.ObjectPath("/org/freedesktop/login1")
	logindManager      = "org.freedesktop.login1.Manager"
	prepareForShutdown = "PrepareForShutdown"

	systemdName    = "org.freedesktop.systemd1"
	systemdPath    = dbus.ObjectPath("/org/freedesktop/systemd1")
	systemdManager = "org.freedesktop.systemd1.Manager"

	// DefaultConfigDir is logind's configuration drop-in directory.
	DefaultConfigDir = "/etc/systemd/logind.conf.d"
	// configFile is a drop-in of logind's configuration, configMarker its first line: upstream's kubelet writes a file of the same name.
	configFile   = "99-kubelet.conf"
	configMarker = "# Pods need this long to end."
)

// logind is a connection to systemd-logind.
type logind struct {
	conn    *dbus.Conn
	signals chan *dbus.Signal
	// lock is the inhibitor lock; nil if it is not held.
	lock *os.File
}

func (l *logind) manager() dbus.BusObject { return l.conn.Object(logindName, logindPath) }

// maxDelay returns logind's maximum inhibitor delay.
func (l *logind) maxDelay() (time.Duration, error) {
	value, err := l.manager().GetProperty(logindManager + ".InhibitDelayMaxUSec")
	if err != nil {
		return 0, fmt.Errorf("read InhibitDelayMaxUSec: %w", err)
	}
	microseconds, ok := value.Value().(uint64)
	if !ok {
		return 0, fmt.Errorf("InhibitDelayMaxUSec is %s, not a number", value)
	}
	return time.Duration(microseconds) * time.Microsecond, nil
}

// setMaxDelay raises the maximum delay. logind reloads its configuration asynchronously after SIGHUP.
func (l *logind) setMaxDelay(dir string, need time.Duration) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("create logind configuration directory: %w", err)
	}
	text := fmt.Sprintf(configMarker+"\n[Login]\nInhibitDelayMaxSec=%.0f\n", need.Seconds())
	if err := atomicfile.Write(filepath.Join(dir, configFile), []byte(text), 0o644); err != nil {
		return fmt.Errorf("write logind configuration: %w", err)
	}
	const allProcesses, sighup = "all", int32(1)
	if call := l.conn.Object(systemdName, systemdPath).Call(systemdManager+".KillUnit", 0, "systemd-logind.service", allProcesses, sighup); call.Err != nil {
		return fmt.Errorf("reload logind: %w", call.Err)
	}
	for wait := 50 * time.Millisecond; ; wait *= 2 {
		now, err := l.maxDelay()
		if err != nil || now >= need {
			return err
		}
		if wait > time.Second {
			return fmt.Errorf("logind's maximum delay is %s after reload, pods need %s", now, need)
		}
		time.Sleep(wait)
	}
}

// Unconfigure removes the drop-in that raised logind's maximum delay, if skiff wrote it. The delay is logind's own again after it has restarted.
func Unconfigure(dir string) error {
	path := filepath.Join(dir, configFile)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !strings.HasPrefix(string(text), configMarker) {
		return nil
	}
	if err == nil {
		err = os.Remove(path)
	}
	if err != nil {
		return fmt.Errorf("remove logind configuration: %w", err)
	}
	_ = os.Remove(dir) // succeeds if it is empty
	return nil
}

// subscribe delivers logind's signals to the channel signals, which is closed with the connection.
func (l *logind) subscribe() error {
	err := l.conn.AddMatchSignal(dbus.WithMatchInterface(logindManager), dbus.WithMatchMember(prepareForShutdown), dbus.WithMatchObjectPath(logindPath))
	if err != nil {
		return fmt.Errorf("subscribe to logind signals: %w", err)
	}
	l.signals = make(chan *dbus.Signal, 8)
	l.conn.Signal(l.signals)
	return nil
}

// parseSignal returns whether a shutdown starts or was cancelled. ok is false for other signals.
func parseSignal(s *dbus.Signal) (starting, ok bool) {
	if s == nil || s.Name != logindManager+"."+prepareForShutdown || len(s.Body) == 0 {
		return false, false
	}
	starting, ok = s.Body[0].(bool)
	return starting, ok
}

// inhibit takes the lock, then releases one that is already held.
func (l *logind) inhibit() error {
	var fd dbus.UnixFD
	call := l.manager().Call(logindManager+".Inhibit", 0, "shutdown", "kubelet", "Kubelet needs time to handle node shutdown", "delay")
	if err := call.Store(&fd); err != nil {
		return fmt.Errorf("take inhibitor lock: %w", err)
	}
	if fd < 0 {
		return errors.New("take inhibitor lock: invalid descriptor")
	}
	l.release()
	l.lock = os.NewFile(uintptr(fd), "inhibitor lock")
	return nil
}

// release releases the lock, so that the shutdown proceeds.
func (l *logind) release() {
	if l.lock != nil {
		_ = l.lock.Close() // closing always releases it
		l.lock = nil
	}
}

func (l *logind) close() {
	l.release()
	_ = l.conn.Close() // nothing depends on it
}
