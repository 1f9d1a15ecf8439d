package cni

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// serveTest serves announcements until the test ends.
func serveTest(t *testing.T, handle func(context.Context, Announcement) error) (socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "s")
	serveAt(t, socket, handle)
	return socket
}

func serveAt(t *testing.T, socket string, handle func(context.Context, Announcement) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- ServeAnnouncements(ctx, socket, handle) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func testAttachment() Attachment {
	return Attachment{Container: "c", Interface: "eth0", Namespace: "default", Pod: "web", UID: "1", Addresses: []netip.Addr{netip.MustParseAddr("10.42.0.7")}}
}

func TestAnnounceWaitsForTheAnswer(t *testing.T) {
	received, release := make(chan Announcement, 1), make(chan struct{})
	socket := serveTest(t, func(_ context.Context, a Announcement) error {
		received <- a
		<-release
		return nil
	})
	done := make(chan error, 1)
	go func() { done <- announce(socket, testAttachment()) }()
	a := <-received
	if a.Namespace != "default" || a.Pod != "web" || a.UID != "1" || len(a.Addresses) != 1 {
		t.Errorf("%+v", a)
	}
	select {
	case err := <-done:
		t.Fatalf("it did not wait: %v", err)
	default:
	}
	close(release)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// The process may be started after the plugin.
func TestAnnounceWaitsForTheProcess(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	done := make(chan error, 1)
	go func() { done <- announce(socket, testAttachment()) }()
	serveAt(t, socket, func(context.Context, Announcement) error { return nil })
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestAnnounceWithoutSocket(t *testing.T) {
	if err := announce("", testAttachment()); err != nil {
		t.Error(err)
	}
}

// The reason of the process is in the plugin's error.
func TestAnnounceReturnsTheError(t *testing.T) {
	socket := serveTest(t, func(context.Context, Announcement) error { return errors.New("no such pod") })
	if err := announce(socket, testAttachment()); !errors.Is(err, errNotAnnounced) || !strings.Contains(err.Error(), "no such pod") {
		t.Error(err)
	}
}

func TestInvalidAnnouncement(t *testing.T) {
	socket := serveTest(t, func(context.Context, Announcement) error { return nil })
	connection, err := dialUntilServed(t.Context(), socket)
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	if err := exchange(t.Context(), connection, []byte("no JSON")); err == nil || !strings.Contains(err.Error(), "read announcement") {
		t.Error(err)
	}
}

// Accepting connections goes on when descriptors or memory are short, and ends when the listener is closed.
func TestTransientErrors(t *testing.T) {
	accept := func(err error) error {
		return &net.OpError{Op: "accept", Net: "unix", Err: os.NewSyscallError("accept4", err)}
	}
	for err, want := range map[error]bool{unix.EMFILE: true, unix.ENFILE: true, unix.ENOBUFS: true, unix.ENOMEM: true, unix.ECONNABORTED: true, unix.EINVAL: false, net.ErrClosed: false} {
		if isTransient(accept(err)) != want {
			t.Errorf("%v is transient: %v", err, !want)
		}
	}
	if isTransient(nil) {
		t.Error("no error is transient")
	}
}
