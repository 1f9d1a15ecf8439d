// Package systemd is a client of systemd, the init system of most hosts: it starts and stops units over D-Bus, and reports the state of this
// process as a service.
package systemd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/godbus/dbus/v5"
)

const (
	busName     = "org.freedesktop.systemd1"
	managerPath = dbus.ObjectPath("/org/freedesktop/systemd1")
	manager     = "org.freedesktop.systemd1.Manager"
	jobRemoved  = manager + ".JobRemoved"

	// privateSocket is that of systemd itself, which root can use where no bus daemon runs.
	privateSocket = "unix:path=/run/systemd/private"
	// signalBuffer is the number of signals that may wait for one caller; more of them wait in goroutines of the D-Bus library.
	signalBuffer = 64
	// replyTimeout bounds the time until systemd has carried out a call; to read all unit files takes long on a slow host. Jobs are bounded by
	// their callers.
	replyTimeout = 2 * time.Minute
	// connectTimeout bounds the time until a connection can be used. Other callers wait meanwhile.
	connectTimeout = 30 * time.Second
)

// ErrNoUnit means that a unit is not loaded.
var ErrNoUnit = errors.New("the unit does not exist")

// IsRunning reports whether systemd is the init system of this host.
func IsRunning() bool {
	info, err := os.Lstat("/run/systemd/system")
	return err == nil && info.IsDir()
}

// Manager is a client of systemd's manager. It connects with the first call, and again after the connection was lost. The zero value is that of
// this host. Its methods may be called concurrently.
type Manager struct {
	// Address is that of the D-Bus; empty: the system bus, or systemd's own socket if there is none.
	Address string

	mu   sync.Mutex
	conn *dbus.Conn
}

// Close closes the connection.
func (m *Manager) Close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.conn != nil {
		_ = m.conn.Close() // nothing is lost with it
		m.conn = nil
	}
}

// connection returns a connection that receives the signals of jobs.
func (m *Manager) connection(ctx context.Context) (*dbus.Conn, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.conn != nil && m.conn.Connected() {
		return m.conn, nil
	}
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	conn, err := connect(ctx, m.Address)
	if err != nil {
		return nil, fmt.Errorf("connect to systemd: %w", err)
	}
	m.conn = conn
	return conn, nil
}

// connect connects to the bus at an address, or to that of this host, and subscribes to the signals of jobs.
func connect(ctx context.Context, address string) (*dbus.Conn, error) {
	if address != "" {
		return open(ctx, (*dbus.Conn).Hello, func() (*dbus.Conn, error) { return dbus.Dial(address) })
	}
	conn, err := open(ctx, (*dbus.Conn).Hello, func() (*dbus.Conn, error) { return dbus.SystemBusPrivate() })
	if err == nil || ctx.Err() != nil {
		return conn, err
	}
	withoutBus := func(*dbus.Conn) error { return nil }
	if private, privateErr := open(ctx, withoutBus, func() (*dbus.Conn, error) { return dbus.Dial(privateSocket) }); privateErr == nil {
		return private, nil
	}
	return nil, err
}

// open prepares a connection that dial has made; hello introduces it to a bus daemon. The calls for that have no time-outs of their own: when ctx is
// done, the connection is closed, which ends them.
func open(ctx context.Context, hello func(*dbus.Conn) error, dial func() (*dbus.Conn, error)) (*dbus.Conn, error) {
	conn, err := dial()
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	steps := []func() error{
		func() error { return conn.Auth(nil) },
		func() error { return hello(conn) },
		func() error {
			return conn.AddMatchSignal(dbus.WithMatchObjectPath(managerPath), dbus.WithMatchInterface(manager), dbus.WithMatchMember("JobRemoved"))
		},
		// Without a subscriber systemd sends no signals.
		func() error { return conn.Object(busName, managerPath).Call(manager+".Subscribe", 0).Err },
	}
	for _, step := range steps {
		if err := step(); err != nil {
			_ = conn.Close()
			return nil, cmp.Or(ctx.Err(), err)
		}
	}
	return conn, nil
}

// call calls a method of the manager.
func (m *Manager) call(ctx context.Context, method string, args ...any) error {
	conn, err := m.connection(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, replyTimeout)
	defer cancel()
	return explain(conn.Object(busName, managerPath).CallWithContext(ctx, manager+"."+method, 0, args...).Err)
}

// job calls a method that starts a job, and waits for the job's result.
func (m *Manager) job(ctx context.Context, method string, args ...any) error {
	conn, err := m.connection(ctx)
	if err != nil {
		return err
	}
	// Before the call: the job may have ended when its path is known.
	signals := make(chan *dbus.Signal, signalBuffer)
	conn.Signal(signals)
	defer conn.RemoveSignal(signals)
	var path dbus.ObjectPath
	if err := conn.Object(busName, managerPath).CallWithContext(ctx, manager+"."+method, 0, args...).Store(&path); err != nil {
		return explain(err)
	}
	for {
		select {
		case signal, ok := <-signals:
			if !ok {
				return errors.New("the connection to systemd was closed")
			}
			if result, ended := resultOf(signal, path); ended {
				return result
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// resultOf returns the result of a job, if a signal reports its end.
func resultOf(signal *dbus.Signal, job dbus.ObjectPath) (result error, ended bool) {
	if signal.Name != jobRemoved || len(signal.Body) < 4 || signal.Body[1] != job {
		return nil, false
	}
	if text := fmt.Sprint(signal.Body[3]); text != "done" && text != "skipped" {
		return fmt.Errorf("the job's result is %q", text), true
	}
	return nil, true
}

// explain turns the D-Bus errors that callers distinguish into Go's.
func explain(err error) error {
	var failed dbus.Error
	if !errors.As(err, &failed) {
		return err
	}
	switch failed.Name {
	case "org.freedesktop.systemd1.NoSuchUnit":
		return fmt.Errorf("%w: %w", ErrNoUnit, err)
	case "org.freedesktop.systemd1.UnitExists":
		return fmt.Errorf("%w: %w", ErrUnitExists, err)
	}
	return err
}

// Reload makes systemd read its unit files.
func (m *Manager) Reload(ctx context.Context) error {
	if err := m.call(ctx, "Reload"); err != nil {
		return fmt.Errorf("reload systemd: %w", err)
	}
	return nil
}

// Enable makes a unit start with the host. The path is that of its unit file.
func (m *Manager) Enable(ctx context.Context, path string) error {
	const runtimeOnly, force = false, true
	if err := m.call(ctx, "EnableUnitFiles", []string{path}, runtimeOnly, force); err != nil {
		return fmt.Errorf("enable %s: %w", path, err)
	}
	return nil
}

// Disable reverts Enable.
func (m *Manager) Disable(ctx context.Context, unit string) error {
	const runtimeOnly = false
	if err := m.call(ctx, "DisableUnitFiles", []string{unit}, runtimeOnly); err != nil {
		return fmt.Errorf("disable %s: %w", unit, err)
	}
	return nil
}

// Restart starts a unit, or restarts it if it is running, and returns when it runs.
func (m *Manager) Restart(ctx context.Context, unit string) error {
	if err := m.job(ctx, "RestartUnit", unit, "replace"); err != nil {
		return fmt.Errorf("start %s: %w", unit, err)
	}
	return nil
}

// TryRestart restarts a unit if it is running, and returns when it runs again. One that is not running stays so.
func (m *Manager) TryRestart(ctx context.Context, unit string) error {
	if err := m.job(ctx, "TryRestartUnit", unit, "replace"); err != nil {
		return fmt.Errorf("restart %s: %w", unit, err)
	}
	return nil
}

// Stop stops a unit and returns when it has stopped. A unit that is not loaded is stopped.
func (m *Manager) Stop(ctx context.Context, unit string) error {
	if err := m.job(ctx, "StopUnit", unit, "replace"); err != nil && !errors.Is(err, ErrNoUnit) {
		return fmt.Errorf("stop %s: %w", unit, err)
	}
	return nil
}

// ResetFailed removes the state of a unit that failed, so that nothing is left of a unit without a file.
func (m *Manager) ResetFailed(ctx context.Context, unit string) error {
	if err := m.call(ctx, "ResetFailedUnit", unit); err != nil && !errors.Is(err, ErrNoUnit) {
		return fmt.Errorf("reset %s: %w", unit, err)
	}
	return nil
}
