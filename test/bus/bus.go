// Package bus is a D-Bus for tests with one service on it. It uses the real protocol over a real socket; clients do not notice that there is
// no bus daemon.
package bus

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"github.com/godbus/dbus/v5"
)

// Reply is the response to a method call.
type Reply struct {
	Body []any
	// Error is the name of a D-Bus error; empty: the call succeeded. Body has its message then.
	Error string
	// Sent, if not nil, is called after the reply was sent.
	Sent func()
}

// Handler responds to a method call. Calls of one client are handled one after the other.
type Handler func(member string, call *dbus.Message) Reply

// Server is a D-Bus with one service.
type Server struct {
	// Address is the D-Bus address.
	Address string

	handle   Handler
	listener *net.UnixListener
	serving  sync.WaitGroup

	mu      sync.Mutex
	clients map[*client]bool
}

// Start serves a service with a socket in dir. The calls to the bus itself, Hello and AddMatch, are not passed to handle.
func Start(dir string, handle Handler) (*Server, error) {
	socket := filepath.Join(dir, "bus")
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return nil, err
	}
	s := &Server{Address: "unix:path=" + socket, handle: handle, listener: listener, clients: map[*client]bool{}}
	s.serving.Go(func() {
		for {
			conn, err := listener.AcceptUnix()
			if err != nil {
				return
			}
			s.serving.Go(func() { s.serve(&client{conn: conn}) })
		}
	})
	return s, nil
}

// Stop closes the socket and all connections.
func (s *Server) Stop() {
	_ = s.listener.Close()
	s.Disconnect()
	s.serving.Wait()
}

// Disconnect closes all connections; clients can reconnect.
func (s *Server) Disconnect() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.clients {
		_ = c.conn.Close()
	}
}

// Emit sends a signal to all clients. name is that of the interface and the member.
func (s *Server) Emit(path dbus.ObjectPath, name string, body ...any) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	dot := strings.LastIndexByte(name, '.')
	for c := range s.clients {
		err := c.send(&dbus.Message{
			Type: dbus.TypeSignal, Body: body,
			Headers: map[dbus.HeaderField]dbus.Variant{
				dbus.FieldPath: dbus.MakeVariant(path), dbus.FieldInterface: dbus.MakeVariant(name[:dot]), dbus.FieldMember: dbus.MakeVariant(name[dot+1:]),
				dbus.FieldSender: dbus.MakeVariant(":1.0"),
			},
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// client is a connected client.
type client struct {
	conn   *net.UnixConn
	mu     sync.Mutex
	serial uint32
}

func (s *Server) serve(c *client) {
	defer c.conn.Close()
	in := bufio.NewReader(c.conn)
	if err := authenticate(c.conn, in); err != nil {
		return
	}
	s.mu.Lock()
	s.clients[c] = true
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.clients, c)
		s.mu.Unlock()
	}()
	for {
		call, err := dbus.DecodeMessage(in)
		if err != nil {
			return
		}
		if call.Type == dbus.TypeMethodCall {
			if err := s.respond(c, call); err != nil {
				return
			}
		}
	}
}

// authenticate is the authentication handshake. It accepts everybody.
func authenticate(conn *net.UnixConn, in *bufio.Reader) error {
	if _, err := in.ReadByte(); err != nil { // the zero byte that carries credentials
		return err
	}
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return err
		}
		response := "ERROR"
		switch words := strings.Fields(line); {
		case len(words) == 1 && words[0] == "AUTH":
			response = "REJECTED EXTERNAL"
		case words[0] == "AUTH", words[0] == "DATA":
			response = "OK 0123456789abcdef0123456789abcdef"
		case words[0] == "NEGOTIATE_UNIX_FD":
			response = "AGREE_UNIX_FD"
		case words[0] == "BEGIN":
			return nil
		}
		if _, err := conn.Write([]byte(response + "\r\n")); err != nil {
			return err
		}
	}
}

func (s *Server) respond(c *client, call *dbus.Message) error {
	member, _ := call.Headers[dbus.FieldMember].Value().(string)
	var reply Reply
	switch member {
	case "Hello":
		reply.Body = []any{":1.1"}
	case "AddMatch":
	default:
		reply = s.handle(member, call)
	}
	message := &dbus.Message{Type: dbus.TypeMethodReply, Body: reply.Body, Headers: map[dbus.HeaderField]dbus.Variant{
		dbus.FieldReplySerial: dbus.MakeVariant(call.Serial()), dbus.FieldSender: dbus.MakeVariant(":1.0"),
	}}
	if reply.Error != "" {
		message.Type = dbus.TypeError
		message.Headers[dbus.FieldErrorName] = dbus.MakeVariant(reply.Error)
	}
	err := c.send(message)
	if reply.Sent != nil {
		reply.Sent()
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
