// Package logind is a fake systemd-logind on a D-Bus of its own, so that tests can announce a shutdown.
package logind

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/godbus/dbus/v5"

	"skiff/test/bus"
)

const (
	manager = "org.freedesktop.login1.Manager"
	path    = dbus.ObjectPath("/org/freedesktop/login1")
)

// Logind is a fake systemd-logind.
type Logind struct {
	// Address is the D-Bus address.
	Address string
	// Reload is called on SIGHUP and returns the new maximum inhibitor delay. nil keeps the delay.
	Reload func() time.Duration

	server  *bus.Server
	waiting sync.WaitGroup

	mu       sync.Mutex
	delay    time.Duration
	locks    []*lock
	taken    chan struct{} // closed and replaced when a lock is taken
	requests []string
}

// lock is an inhibitor lock that a client holds.
type lock struct {
	file     *os.File
	released chan struct{}
}

// Start serves a fake logind with a socket in dir and a maximum inhibitor delay.
func Start(dir string, delay time.Duration) (*Logind, error) {
	l := &Logind{delay: delay, taken: make(chan struct{})}
	server, err := bus.Start(dir, l.handle)
	if err != nil {
		return nil, err
	}
	l.server, l.Address = server, server.Address
	return l, nil
}

// Stop closes the socket and all connections.
func (l *Logind) Stop() {
	l.server.Stop()
	l.waiting.Wait()
}

// Disconnect closes all connections; clients can reconnect.
func (l *Logind) Disconnect() { l.server.Disconnect() }

// Announce sends PrepareForShutdown to all clients: the shutdown starts, or is cancelled.
func (l *Logind) Announce(goingDown bool) error {
	return l.server.Emit(path, manager+".PrepareForShutdown", goingDown)
}

// Taken waits until the n-th lock, counted from one, has been taken, and Released until it has been released. They return
// false on timeout.
func (l *Logind) Taken(n int, timeout time.Duration) bool {
	deadline := time.After(timeout)
	for {
		l.mu.Lock()
		have, next := len(l.locks), l.taken
		l.mu.Unlock()
		if have >= n {
			return true
		}
		select {
		case <-next:
		case <-deadline:
			return false
		}
	}
}

// Released: see Taken.
func (l *Logind) Released(n int, timeout time.Duration) bool {
	l.mu.Lock()
	held := l.locks[n-1]
	l.mu.Unlock()
	select {
	case <-held.released:
		return true
	case <-time.After(timeout):
		return false
	}
}

// Requests returns the received method calls in order, without those to the bus itself.
func (l *Logind) Requests() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]string(nil), l.requests...)
}

// handle responds to a call of logind's or systemd's manager.
func (l *Logind) handle(member string, call *dbus.Message) bus.Reply {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.requests = append(l.requests, strings.TrimSuffix(fmt.Sprintln(append([]any{member}, call.Body...)...), "\n"))
	switch member {
	case "Get":
		return bus.Reply{Body: []any{dbus.MakeVariant(uint64(l.delay.Microseconds()))}}
	case "KillUnit":
		if l.Reload != nil {
			l.delay = l.Reload()
		}
	case "Inhibit":
		return l.inhibit()
	}
	return bus.Reply{}
}

// inhibit returns a new lock, which the client holds until it closes its end of a pipe. The caller holds l.mu.
func (l *Logind) inhibit() bus.Reply {
	read, write, err := os.Pipe()
	if err != nil {
		return bus.Reply{Error: "org.freedesktop.DBus.Error.Failed", Body: []any{err.Error()}}
	}
	held := &lock{file: read, released: make(chan struct{})}
	l.locks = append(l.locks, held)
	l.waiting.Go(func() {
		_, _ = read.Read(make([]byte, 1)) // nothing is written: the read ends when the other end is closed
		_ = read.Close()
		close(held.released)
	})
	close(l.taken)
	l.taken = make(chan struct{})
	// The client has its own descriptor once the reply is sent.
	return bus.Reply{Body: []any{dbus.UnixFD(write.Fd())}, Sent: func() { _ = write.Close() }}
}
