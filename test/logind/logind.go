// Package logind is a fake systemd-logind on a D-Bus of its own, so that tests can announce a shutdown. It uses the real
// protocol over a real socket; clients do not notice that there is no bus daemon.
package logind

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/godbus/dbus/v5"
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

	listener *net.UnixListener
	serving  sync.WaitGroup

	mu       sync.Mutex
	delay    time.Duration
	clients  map[*client]bool
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
	socket := filepath.Join(dir, "bus")
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l := &Logind{Address: "unix:path=" + socket, listener: listener, delay: delay, clients: map[*client]bool{}, taken: make(chan struct{})}
	l.serving.Go(func() {
		for {
			conn, err := listener.AcceptUnix()
			if err != nil {
				return
			}
			l.serving.Go(func() { l.serve(&client{conn: conn}) })
		}
	})
	return l, nil
}

// Stop closes the socket and all connections.
func (l *Logind) Stop() {
	_ = l.listener.Close()
	l.Disconnect()
	l.serving.Wait()
}

// Disconnect closes all connections; clients can reconnect.
func (l *Logind) Disconnect() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.clients {
		_ = c.conn.Close()
	}
}

// Announce sends PrepareForShutdown to all clients: the shutdown starts, or is cancelled.
func (l *Logind) Announce(goingDown bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.clients {
		err := c.send(&dbus.Message{
			Type: dbus.TypeSignal, Body: []any{goingDown},
			Headers: map[dbus.HeaderField]dbus.Variant{
				dbus.FieldPath: dbus.MakeVariant(path), dbus.FieldInterface: dbus.MakeVariant(manager), dbus.FieldMember: dbus.MakeVariant("PrepareForShutdown"),
				dbus.FieldSender: dbus.MakeVariant(":1.0"),
			},
		})
		if err != nil {
			return err
		}
	}
	return nil
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

// client is a connected client.
type client struct {
	conn   *net.UnixConn
	mu     sync.Mutex
	serial uint32
}

func (l *Logind) serve(c *client) {
	defer c.conn.Close()
	in := bufio.NewReader(c.conn)
	if err := welcome(c.conn, in); err != nil {
		return
	}
	l.mu.Lock()
	l.clients[c] = true
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		delete(l.clients, c)
		l.mu.Unlock()
	}()
	for {
		call, err := dbus.DecodeMessage(in)
		if err != nil {
			return
		}
		if call.Type == dbus.TypeMethodCall {
			if err := l.answer(c, call); err != nil {
				return
			}
		}
	}
}

// welcome is the authentication handshake. It accepts everybody.
func welcome(conn *net.UnixConn, in *bufio.Reader) error {
	if _, err := in.ReadByte(); err != nil { // the zero byte that carries credentials
		return err
	}
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return err
		}
		answer := "ERROR"
		switch words := strings.Fields(line); {
		case len(words) == 1 && words[0] == "AUTH":
			answer = "REJECTED EXTERNAL"
		case words[0] == "AUTH", words[0] == "DATA":
			answer = "OK 0123456789abcdef0123456789abcdef"
		case words[0] == "NEGOTIATE_UNIX_FD":
			answer = "AGREE_UNIX_FD"
		case words[0] == "BEGIN":
			return nil
		}
		if _, err := conn.Write([]byte(answer + "\r\n")); err != nil {
			return err
		}
	}
}

func (l *Logind) answer(c *client, call *dbus.Message) error {
	member, _ := call.Headers[dbus.FieldMember].Value().(string)
	reply := &dbus.Message{Type: dbus.TypeMethodReply, Headers: map[dbus.HeaderField]dbus.Variant{
		dbus.FieldReplySerial: dbus.MakeVariant(call.Serial()), dbus.FieldSender: dbus.MakeVariant(":1.0"),
	}}
	l.mu.Lock()
	if member != "Hello" && member != "AddMatch" {
		l.requests = append(l.requests, strings.TrimSuffix(fmt.Sprintln(append([]any{member}, call.Body...)...), "\n"))
	}
	var give *os.File
	switch member {
	case "Hello":
		reply.Body = []any{":1.1"}
	case "Get":
		reply.Body = []any{dbus.MakeVariant(uint64(l.delay.Microseconds()))}
	case "KillUnit":
		if l.Reload != nil {
			l.delay = l.Reload()
		}
	case "Inhibit":
		read, write, err := os.Pipe()
		if err != nil {
			l.mu.Unlock()
			return err
		}
		held := &lock{file: read, released: make(chan struct{})}
		l.locks = append(l.locks, held)
		l.serving.Go(func() {
			_, _ = read.Read(make([]byte, 1)) // nothing is written: the read ends when the other end is closed
			_ = read.Close()
			close(held.released)
		})
		close(l.taken)
		l.taken = make(chan struct{})
		give = write
		reply.Body = []any{dbus.UnixFD(write.Fd())}
	}
	l.mu.Unlock()
	err := c.send(reply)
	if give != nil {
		_ = give.Close() // the client has its own
	}
	return err
}

// send sends a message with its file descriptors.
func (c *client) send(m *dbus.Message) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(m.Body) > 0 {
		m.Headers[dbus.FieldSignature] = dbus.MakeVariant(dbus.SignatureOf(m.Body...))
	}
	count, err := m.CountFds()
	if err != nil {
		return err
	}
	if count > 0 {
		m.Headers[dbus.FieldUnixFDs] = dbus.MakeVariant(uint32(count))
	}
	var text bytes.Buffer
	files, err := m.EncodeToWithFDs(&text, binary.LittleEndian)
	if err != nil {
		return err
	}
	c.serial++
	binary.LittleEndian.PutUint32(text.Bytes()[8:], c.serial) // the library only numbers messages of its own connections
	var rights []byte
	if len(files) > 0 {
		rights = syscall.UnixRights(files...)
	}
	_, _, err = c.conn.WriteMsgUnix(text.Bytes(), rights, nil)
	return err
}
