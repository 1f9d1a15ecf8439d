package listeners

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestFind(t *testing.T) {
	var settings net.ListenConfig
	for _, test := range []struct{ network, listen, wanted string }{
		{"tcp", "127.0.0.1:0", "127.0.0.1:%d"},
		{"tcp", "127.0.0.1:0", "0.0.0.0:%d"},
		{"tcp", "127.0.0.1:0", ":%d"},
		{"tcp", "127.0.0.1:0", "localhost:%d"},
		{"tcp", ":0", "127.0.0.1:%d"},
		{"udp", "127.0.0.1:0", "127.0.0.1:%d"},
	} {
		port := 0
		if test.network == "udp" {
			socket, err := settings.ListenPacket(t.Context(), "udp", test.listen)
			if err != nil {
				t.Fatal(err)
			}
			defer socket.Close()
			port = socket.LocalAddr().(*net.UDPAddr).Port
		} else {
			listener, err := settings.Listen(t.Context(), "tcp", test.listen)
			if err != nil {
				t.Fatal(err)
			}
			defer listener.Close()
			port = listener.Addr().(*net.TCPAddr).Port
		}
		holder, held, err := Find(test.network, fmt.Sprintf(test.wanted, port))
		if err != nil || !held || holder.PID != os.Getpid() || holder.Address.Port() != uint16(port) {
			t.Errorf("%+v: %+v, %v, %v; want this process, %d", test, holder, held, err, os.Getpid())
		}
		if test.network == "tcp" && test.listen == "127.0.0.1:0" {
			if holder, held, err := Find("tcp", fmt.Sprintf("127.0.0.2:%d", port)); err != nil || held {
				t.Errorf("another address is held by %+v, %v", holder, err)
			}
		}
	}
	for _, address := range []string{"127.0.0.1", "127.0.0.1:http", "127.0.0.1:70000"} {
		if _, _, err := Find("tcp", address); err == nil {
			t.Errorf("%s: no error", address)
		}
	}
}

// The process of another user is not visible, and some sockets are the kernel's.
func TestFindWithoutProcess(t *testing.T) {
	proc := t.TempDir()
	if err := os.MkdirAll(filepath.Join(proc, "self/net"), 0o700); err != nil {
		t.Fatal(err)
	}
	table := "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n" +
		"   0: 0100007F:192B 0100007F:9C40 01 00000000:00000000 00:00000000 00000000     0        0 76 1 0 100 0 0 10 0\n" +
		"   1: 00000000:192B 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 77 1 0 100 0 0 10 0\n"
	if err := os.WriteFile(filepath.Join(proc, "self/net/tcp"), []byte(table), 0o600); err != nil {
		t.Fatal(err)
	}
	holder, held, err := findIn(proc, "tcp", "127.0.0.1:6443")
	if err != nil || !held || holder.PID != 0 || holder.String() != "another program" || holder.Address.String() != "0.0.0.0:6443" {
		t.Errorf("%+v, %v, %v", holder, held, err)
	}
	if holder, held, err := findIn(proc, "tcp", "127.0.0.1:6444"); err != nil || held {
		t.Errorf("a free port is held by %+v, %v", holder, err)
	}
}

func TestParseAddress(t *testing.T) {
	for text, want := range map[string]string{
		"0100007F:192B":                         "127.0.0.1:6443",
		"00000000000000000000000001000000:0050": "[::1]:80",
		"0000000000000000FFFF00000100007F:0050": "127.0.0.1:80",
		"00000000000000000000000000000000:0050": "[::]:80",
	} {
		if got, err := parseAddress(text); err != nil || got != netip.MustParseAddrPort(want) {
			t.Errorf("%s: %v, %v, want %s", text, got, err, want)
		}
	}
	for _, text := range []string{"", "x", "0100007F", "01007F:192B", "0100007F:1192B"} {
		if got, err := parseAddress(text); err == nil {
			t.Errorf("%q: %v", text, got)
		}
	}
}

func TestExplain(t *testing.T) {
	var settings net.ListenConfig
	first, err := settings.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	_, busy := settings.Listen(t.Context(), "tcp", first.Addr().String())
	_, absent := settings.Listen(t.Context(), "tcp", "192.0.2.1:1")
	denied := &net.OpError{Op: "listen", Net: "tcp", Addr: &net.TCPAddr{IP: net.IPv4zero, Port: 443}, Err: os.NewSyscallError("bind", unix.EACCES)}
	other := errors.New("other")
	for _, test := range []struct {
		err  error
		want string
	}{
		{busy, fmt.Sprintf("port %d is in use by listeners.test (process %d): stop it, or choose another --secure-port", first.Addr().(*net.TCPAddr).Port, os.Getpid())},
		{absent, "this host has no address 192.0.2.1 ("},
		{denied, "there is no permission to listen at 0.0.0.0:443: run skiff as root, or choose another --secure-port"},
		{fmt.Errorf("listen: %w", other), "listen: other"},
		{&net.OpError{Op: "dial", Err: unix.EADDRINUSE}, "dial: address already in use"},
	} {
		if test.err == nil {
			t.Fatalf("no error where %q was expected", test.want)
		}
		if got := Explain(test.err, "choose another --secure-port").Error(); !strings.HasPrefix(got, test.want) {
			t.Errorf("%v is explained as %q, want %q", test.err, got, test.want)
		}
	}
}
