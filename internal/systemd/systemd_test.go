package systemd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"

	"skiff/test/bus"
	fake "skiff/test/systemd"
)

// socketDir returns a directory for sockets. Their paths are limited; that of t.TempDir may be too long.
func socketDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "systemd")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func start(t *testing.T) (*fake.Systemd, *Manager) {
	t.Helper()
	host, err := fake.Start(socketDir(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(host.Stop)
	m := &Manager{Address: host.Address}
	t.Cleanup(m.Close)
	return host, m
}

func TestUnits(t *testing.T) {
	host, m := start(t)
	for _, err := range []error{
		m.Reload(t.Context()), m.Enable(t.Context(), "/etc/systemd/system/x.service"), m.Restart(t.Context(), "x.service"), m.TryRestart(t.Context(), "x.service"),
		m.Stop(t.Context(), "x.service"), m.Disable(t.Context(), "x.service"), m.ResetFailed(t.Context(), "x.service"),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	want := []string{
		"Reload", "EnableUnitFiles [/etc/systemd/system/x.service] false true", "RestartUnit x.service replace", "TryRestartUnit x.service replace", "StopUnit x.service replace",
		"DisableUnitFiles [x.service] false", "ResetFailedUnit x.service",
	}
	if got := host.Calls(); !slices.Equal(got, want) {
		t.Errorf("calls %q, want %q", got, want)
	}
}

// A unit that does not start is an error, one that does not exist is stopped.
func TestFailures(t *testing.T) {
	host, m := start(t)
	host.Call = func(member string, body []any) (string, error) {
		if member == "RestartUnit" {
			return "failed", nil
		}
		return "", fake.NoSuchUnit(fmt.Sprint(body[0]))
	}
	if err := m.Restart(t.Context(), "x.service"); err == nil || !strings.Contains(err.Error(), `start x.service: the job's result is "failed"`) {
		t.Errorf("start: %v", err)
	}
	if err := errors.Join(m.Stop(t.Context(), "x.service"), m.ResetFailed(t.Context(), "x.service")); err != nil {
		t.Errorf("stop of a unit that does not exist: %v", err)
	}
}

// A connection that was lost is replaced, and every caller gets the result of its own job.
func TestReconnectAndConcurrentJobs(t *testing.T) {
	host, m := start(t)
	host.Call = func(_ string, body []any) (string, error) {
		if len(body) > 0 && strings.HasPrefix(fmt.Sprint(body[0]), "bad") {
			return "timeout", nil
		}
		return "done", nil
	}
	if err := m.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	conn, err := m.connection(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	host.Disconnect()
	<-conn.Context().Done()
	var jobs sync.WaitGroup
	for i := range 50 {
		jobs.Go(func() {
			if err := m.Restart(t.Context(), fmt.Sprintf("good%d.slice", i)); err != nil {
				t.Error(err)
			}
			if err := m.Restart(t.Context(), fmt.Sprintf("bad%d.slice", i)); err == nil || !strings.Contains(err.Error(), "timeout") {
				t.Errorf("failed job: %v", err)
			}
		})
	}
	jobs.Wait()
}

func TestContext(t *testing.T) {
	_, m := start(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := m.Restart(ctx, "x.service"); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want the context's", err)
	}
}

// A systemd that accepts connections and does not answer blocks no caller for longer than its context.
func TestUnresponsive(t *testing.T) {
	check := func(t *testing.T, address string) {
		t.Helper()
		m := &Manager{Address: address}
		t.Cleanup(m.Close)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if err := m.Reload(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v, want the context's", err)
		}
	}
	t.Run("authentication", func(t *testing.T) {
		socket := filepath.Join(socketDir(t), "bus")
		listener, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { listener.Close() })
		check(t, "unix:path="+socket)
	})
	t.Run("subscription", func(t *testing.T) {
		ended := make(chan struct{})
		server, err := bus.Start(socketDir(t), func(string, *dbus.Message) bus.Reply {
			<-ended
			return bus.Reply{}
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { close(ended); server.Stop() })
		check(t, server.Address)
	})
}

func TestNotify(t *testing.T) {
	dir, err := os.MkdirTemp("", "notify")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(dir, "socket"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	t.Setenv(notifyVariable, filepath.Join(dir, "socket"))
	n := NewNotifier()
	if _, ok := os.LookupEnv(notifyVariable); ok {
		t.Error("programs that are started inherit the socket")
	}
	if err := n.Ready(); err != nil {
		t.Fatal(err)
	}
	message := make([]byte, 100)
	if size, err := socket.Read(message); err != nil || string(message[:size]) != "READY=1" {
		t.Errorf("received %q, %v", message[:size], err)
	}
	if err := (Notifier{}).Ready(); err != nil {
		t.Errorf("outside of a service: %v", err)
	}
}
