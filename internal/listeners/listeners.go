// Package listeners finds out which process of this host has a port, so that an error about a port that is in use can say whom to stop.
package listeners

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Holder is who has a port.
type Holder struct {
	// Address is that of the socket.
	Address netip.AddrPort
	// PID and Name are those of the process. PID is 0 if it cannot be found: it belongs to another user, or the kernel itself has the port.
	PID  int
	Name string
}

func (h Holder) String() string {
	if h.PID == 0 {
		return "another program"
	}
	return fmt.Sprintf("%s (process %d)", h.Name, h.PID)
}

// The states of sockets that hold a port, as /proc/net shows them: listening ones of TCP, and those of UDP that are not connected.
const (
	listening   = "0A"
	unconnected = "07"
)

// Find returns who keeps others from listening at an address, HOST:PORT, of a network, tcp or udp. held is false if nobody does. An empty host, and
// one that is not an IP address, stand for all addresses of the host.
func Find(network, address string) (holder Holder, held bool, err error) {
	return findIn("/proc", network, address)
}

// findIn is Find with the path of proc.
func findIn(proc, network, address string) (holder Holder, held bool, err error) {
	host, portText, err := net.SplitHostPort(address)
	if err != nil {
		return holder, false, err
	}
	port, err := strconv.ParseUint(portText, 10, 16)
	if err != nil {
		return holder, false, fmt.Errorf("%q is not a port", portText)
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		ip = netip.IPv6Unspecified()
	}
	wanted, state := netip.AddrPortFrom(ip.Unmap(), uint16(port)), listening
	if network == "udp" {
		state = unconnected
	}
	for _, table := range []string{network, network + "6"} {
		s, found, err := findSocket(filepath.Join(proc, "self/net", table), state, wanted)
		if errors.Is(err, fs.ErrNotExist) {
			continue // a kernel without IPv6
		}
		if err != nil {
			return holder, false, err
		}
		if found {
			holder.Address = s.address
			holder.PID, holder.Name = processOf(proc, s.inode)
			return holder, true, nil
		}
	}
	return holder, false, nil
}

// socket is a line of a table of /proc/net.
type socket struct {
	address netip.AddrPort
	inode   string
}

// findSocket finds the first socket with a state that has the port at the wanted address, or at all of them.
func findSocket(table, state string, wanted netip.AddrPort) (socket, bool, error) {
	file, err := os.Open(table)
	if err != nil {
		return socket{}, false, err
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 10 || fields[3] != state {
			continue
		}
		address, err := parseAddress(fields[1])
		if err == nil && address.Port() == wanted.Port() && conflict(address.Addr(), wanted.Addr()) {
			return socket{address, fields[9]}, true, nil
		}
	}
	return socket{}, false, lines.Err()
}

// conflict reports whether two sockets with the same port cannot have these addresses. An unspecified address stands for all, also of the other IP
// family, because sockets of IPv6 accept IPv4 unless they are told not to.
func conflict(a, b netip.Addr) bool { return a == b || a.IsUnspecified() || b.IsUnspecified() }

// parseAddress parses an address of /proc/net, such as 0100007F:192B for 127.0.0.1:6443: words of 32 bits in the byte order of the host.
func parseAddress(text string) (netip.AddrPort, error) {
	ip, port, _ := strings.Cut(text, ":")
	words, err := hex.DecodeString(ip)
	if err != nil || len(words)%4 != 0 {
		return netip.AddrPort{}, fmt.Errorf("%q is not an address", text)
	}
	for i := 0; i < len(words); i += 4 {
		binary.BigEndian.PutUint32(words[i:], binary.NativeEndian.Uint32(words[i:]))
	}
	address, ok := netip.AddrFromSlice(words)
	number, err := strconv.ParseUint(port, 16, 16)
	if err != nil || !ok {
		return netip.AddrPort{}, fmt.Errorf("%q is not an address", text)
	}
	return netip.AddrPortFrom(address.Unmap(), uint16(number)), nil
}

// processOf finds the process that has the socket with an inode. Only root can see the sockets of other users' processes.
func processOf(proc, inode string) (pid int, name string) {
	// The pattern is valid.
	files, _ := filepath.Glob(filepath.Join(proc, "[0-9]*/fd/*"))
	for _, file := range files {
		if target, err := os.Readlink(file); err != nil || target != "socket:["+inode+"]" {
			continue
		}
		dir := filepath.Dir(filepath.Dir(file))
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			continue
		}
		comm, err := os.ReadFile(filepath.Join(dir, "comm"))
		if err != nil {
			continue
		}
		return pid, strings.TrimSpace(string(comm))
	}
	return 0, ""
}

// Explain makes an error about listening say who has the port, and what to do. Other errors are returned as they are. remedy is what to do instead of
// stopping the other program, such as "choose another --secure-port".
func Explain(err error, remedy string) error {
	var failed *net.OpError
	if !errors.As(err, &failed) || failed.Op != "listen" || failed.Addr == nil {
		return err
	}
	address := failed.Addr.String()
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		_, port, _ := net.SplitHostPort(address)
		holder, held, findErr := Find(strings.TrimRight(failed.Net, "46"), address)
		if findErr != nil || !held {
			return fmt.Errorf("port %s is in use by another program: stop it, or %s (%w)", port, remedy, err)
		}
		return fmt.Errorf("port %s is in use by %s: stop it, or %s", port, holder, remedy)
	case errors.Is(err, unix.EACCES):
		return fmt.Errorf("there is no permission to listen at %s: run skiff as root, or %s", address, remedy)
	case errors.Is(err, unix.EADDRNOTAVAIL):
		host, _, _ := net.SplitHostPort(address)
		return fmt.Errorf("this host has no address %s (%w)", host, err)
	}
	return err
}
