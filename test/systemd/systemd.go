// Package systemd is a fake systemd on a D-Bus of its own: it records what it is asked for and ends every job at once.
package systemd

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/godbus/dbus/v5"

	"skiff/test/bus"
)

const (
	path    = dbus.ObjectPath("/org/freedesktop/systemd1")
	manager = "org.freedesktop.systemd1.Manager"
)

// Systemd is a fake systemd.
type Systemd struct {
	// Address is the D-Bus address.
	Address string
	// Call, if not nil, is called for every method call besides Subscribe. It returns the result of the job that the call starts, "done" for
	// success, or an error, which the call returns.
	Call func(member string, body []any) (result string, err error)

	server *bus.Server

	mu    sync.Mutex
	calls []string
	jobs  uint32
}

// jobs are the methods that start a job.
var jobs = map[string]bool{"StartUnit": true, "StopUnit": true, "RestartUnit": true, "TryRestartUnit": true, "StartTransientUnit": true}

// Start serves a fake systemd with a socket in dir.
func Start(dir string) (*Systemd, error) {
	s := &Systemd{}
	server, err := bus.Start(dir, s.handle)
	if err != nil {
		return nil, err
	}
	s.server, s.Address = server, server.Address
	return s, nil
}

// Stop closes the socket and all connections.
func (s *Systemd) Stop() { s.server.Stop() }

// Disconnect closes all connections; clients can reconnect.
func (s *Systemd) Disconnect() { s.server.Disconnect() }

// Calls returns the received method calls in order, each as its name and arguments.
func (s *Systemd) Calls() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.calls...)
}

// unitError is an error that a Call returns, with the name it has on D-Bus.
type unitError struct{ name, message string }

func (e unitError) Error() string { return e.message }

// NoSuchUnit is the error of calls for a unit that does not exist.
func NoSuchUnit(unit string) error {
	return unitError{"org.freedesktop.systemd1.NoSuchUnit", "Unit " + unit + " not loaded."}
}

// UnitExists is the error of a call that would make a unit that exists.
func UnitExists(unit string) error {
	return unitError{"org.freedesktop.systemd1.UnitExists", "Unit " + unit + " was already loaded or has a fragment file."}
}

func (s *Systemd) handle(member string, call *dbus.Message) bus.Reply {
	s.mu.Lock()
	defer s.mu.Unlock()
	if member == "Subscribe" {
		return bus.Reply{}
	}
	s.calls = append(s.calls, strings.TrimSuffix(fmt.Sprintln(append([]any{member}, call.Body...)...), "\n"))
	result := "done"
	if s.Call != nil {
		var err error
		if result, err = s.Call(member, call.Body); err != nil {
			name := "org.freedesktop.DBus.Error.Failed"
			if known, ok := errors.AsType[unitError](err); ok {
				name = known.name
			}
			return bus.Reply{Error: name, Body: []any{err.Error()}}
		}
	}
	if !jobs[member] {
		return bus.Reply{}
	}
	s.jobs++
	number, job := s.jobs, path+dbus.ObjectPath(fmt.Sprintf("/job/%d", s.jobs))
	// Before the reply, as systemd may do it: the client must not miss it. A client that is disconnected misses nothing.
	_ = s.server.Emit(path, manager+".JobRemoved", number, job, fmt.Sprint(call.Body[0]), result)
	return bus.Reply{Body: []any{job}}
}
