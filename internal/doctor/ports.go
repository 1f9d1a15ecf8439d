package doctor

import (
	"bufio"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Port is a port at which skiff listens.
type Port struct {
	// Protocol is tcp or udp.
	Protocol string
	Number   uint16
	// Address is where skiff listens; not valid: at all addresses.
	Address netip.Addr
	// Breaks is what does not work without it, and Flag the flag that chooses another one; empty: there is none.
	Breaks, Flag string
	// IsOptional is whether skiff starts without it.
	IsOptional bool
}

func (p Port) String() string {
	return fmt.Sprintf("%s port %d", strings.ToUpper(p.Protocol), p.Number)
}

// isPublic reports whether other hosts use the port.
func (p Port) isPublic() bool { return !p.Address.IsValid() }

// socket is a socket that receives packets or connections.
type socket struct {
	protocol string
	address  netip.AddrPort
	// inode is 0 for sockets of the kernel, such as that of a VXLAN.
	inode uint64
}

// blocks reports whether a socket keeps skiff from listening at a port.
func (s socket) blocks(p Port) bool {
	if s.protocol != p.Protocol || s.address.Port() != p.Number || s.inode == 0 {
		return false
	}
	return p.isPublic() || s.address.Addr().IsUnspecified() || s.address.Addr() == p.Address
}

// process is a process of the host.
type process struct {
	pid  int
	name string
}

func (p process) String() string {
	if p.pid == 0 {
		return "another process"
	}
	return fmt.Sprintf("%s (process %d)", p.name, p.pid)
}

// busyPort is a port that another process has.
type busyPort struct {
	Port
	by process
}

func (h Host) readPorts(ctx context.Context) ([]busyPort, error) {
	sockets, err := readSockets("/proc/self/net")
	if err != nil {
		return nil, err
	}
	taken := map[uint64]Port{}
	for _, s := range sockets {
		for _, p := range h.Ports {
			if s.blocks(p) {
				taken[s.inode] = p
			}
		}
	}
	if len(taken) == 0 {
		return nil, nil
	}
	owners, err := socketOwners(ctx, "/proc", taken)
	if err != nil {
		return nil, err
	}
	return busyPorts(taken, owners), nil
}

// busyPorts are the ports that others have, by number.
func busyPorts(taken map[uint64]Port, owners map[uint64]process) (busy []busyPort) {
	for inode, port := range taken {
		// A program may have several sockets at a port: one for each family.
		if b := (busyPort{port, owners[inode]}); !slices.Contains(busy, b) {
			busy = append(busy, b)
		}
	}
	slices.SortFunc(busy, func(a, b busyPort) int {
		return cmp.Or(cmp.Compare(a.Number, b.Number), cmp.Compare(a.by.pid, b.by.pid))
	})
	return busy
}

func decidePorts(busy []busyPort) (findings []Finding) {
	for _, b := range busy {
		fix := fmt.Sprintf("stop %s", b.by)
		if b.Flag != "" {
			fix += ", or choose another port with " + b.Flag
		}
		f := Finding{Severity: Error, Problem: fmt.Sprintf("%s is used by %s", b.Port, b.by), Breaks: b.Breaks, When: whenStarted, Fix: fix}
		if b.IsOptional {
			f.Severity = Warning
		}
		findings = append(findings, f)
	}
	return findings
}

// The states of sockets that listen in the tables of the kernel.
const (
	tcpListen = "0A"
	udpOpen   = "07"
)

// readSockets reads the sockets that listen, from a directory like /proc/self/net.
func readSockets(dir string) (all []socket, err error) {
	for _, table := range []struct{ file, protocol, state string }{
		{"tcp", "tcp", tcpListen}, {"tcp6", "tcp", tcpListen}, {"udp", "udp", udpOpen}, {"udp6", "udp", udpOpen},
	} {
		file, err := os.Open(filepath.Join(dir, table.file))
		if errors.Is(err, fs.ErrNotExist) {
			continue // without IPv6
		}
		if err != nil {
			return nil, err
		}
		found, err := parseSockets(file, table.protocol, table.state)
		file.Close()
		if err != nil {
			return nil, fmt.Errorf("read sockets: %w", err)
		}
		all = append(all, found...)
	}
	return all, nil
}

// parseSockets reads the sockets in a state from a table.
func parseSockets(table io.Reader, protocol, state string) (all []socket, err error) {
	lines := bufio.NewScanner(table)
	for lines.Scan() {
		const addressField, stateField, inodeField = 1, 3, 9
		fields := strings.Fields(lines.Text())
		if len(fields) <= inodeField || fields[stateField] != state {
			continue // the header, or another state
		}
		address, err := parseSocketAddress(fields[addressField])
		if err != nil {
			return nil, err
		}
		inode, err := strconv.ParseUint(fields[inodeField], 10, 64)
		if err != nil {
			return nil, err
		}
		all = append(all, socket{protocol, address, inode})
	}
	return all, lines.Err()
}

// parseSocketAddress parses an address such as 0100007F:1F90: words of four bytes in the order of the host, and the port.
func parseSocketAddress(text string) (netip.AddrPort, error) {
	words, portText, _ := strings.Cut(text, ":")
	b, err := hex.DecodeString(words)
	if err != nil || len(b)%4 != 0 {
		return netip.AddrPort{}, fmt.Errorf("%q is not the address of a socket", text)
	}
	for i := 0; i < len(b); i += 4 {
		binary.NativeEndian.PutUint32(b[i:], binary.BigEndian.Uint32(b[i:]))
	}
	address, ok := netip.AddrFromSlice(b)
	port, err := strconv.ParseUint(portText, 16, 16)
	if !ok || err != nil {
		return netip.AddrPort{}, fmt.Errorf("%q is not the address of a socket", text)
	}
	return netip.AddrPortFrom(address.Unmap(), uint16(port)), nil
}

// socketOwners finds the processes that have sockets open. Those of other users are found by root only.
func socketOwners(ctx context.Context, proc string, sockets map[uint64]Port) (map[uint64]process, error) {
	owners := map[uint64]process{}
	err := eachProcess(ctx, proc, func(p process) {
		dir := filepath.Join(proc, strconv.Itoa(p.pid), "fd")
		files, err := os.ReadDir(dir)
		if err != nil {
			return // it has ended, or is another user's
		}
		for _, file := range files {
			target, err := os.Readlink(filepath.Join(dir, file.Name()))
			text, isSocket := strings.CutPrefix(target, "socket:[")
			if err != nil || !isSocket {
				continue
			}
			inode, err := strconv.ParseUint(strings.TrimSuffix(text, "]"), 10, 64)
			if _, ok := sockets[inode]; ok && err == nil && owners[inode].pid == 0 {
				owners[inode] = p
			}
		}
	})
	return owners, err
}

// eachProcess visits the processes of the host.
func eachProcess(ctx context.Context, proc string, visit func(process)) error {
	entries, err := os.ReadDir(proc)
	if err != nil {
		return fmt.Errorf("list processes: %w", err)
	}
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		name, err := os.ReadFile(filepath.Join(proc, entry.Name(), "comm"))
		if err != nil {
			continue // it has ended
		}
		visit(process{pid: pid, name: strings.TrimSpace(string(name))})
	}
	return nil
}
