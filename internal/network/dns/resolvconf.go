package dns

import (
	"context"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"time"

	"skiff/internal/kubelet/environment"
)

const (
	// dnsPort is the port of name servers.
	dnsPort = 53
	// resolvedFile is where systemd-resolved writes the name servers that it uses itself.
	resolvedFile = "/run/systemd/resolve/resolv.conf"
	// resolvConfInterval is how often the files are checked for changes.
	resolvConfInterval = time.Second
)

// resolvedStubs are the addresses at which systemd-resolved listens. It may be configured to query the cluster's DNS, and it answers
// single-label names by other protocols, so that its own name servers are used instead.
var resolvedStubs = []netip.Addr{netip.MustParseAddr("127.0.0.53"), netip.MustParseAddr("127.0.0.54")}

// resolvConf reads the host's name servers and follows their changes.
type resolvConf struct {
	path, resolvedPath string
	states             [2]fileState
}

// fileState is what changes when a file is replaced or written.
type fileState struct {
	modified time.Time
	size     int64
	inode    uint64
	exists   bool
}

// changed reports whether one of the files has changed since the last call.
func (c *resolvConf) changed() bool {
	changed := false
	for i, path := range []string{c.path, c.resolvedPath} {
		var state fileState
		if info, err := os.Stat(path); err == nil {
			state = fileState{modified: info.ModTime(), size: info.Size(), exists: true}
			if stat, ok := info.Sys().(*syscall.Stat_t); ok {
				state.inode = stat.Ino
			}
		}
		if state != c.states[i] {
			c.states[i], changed = state, true
		}
	}
	return changed
}

// HostResolvConf is the resolv.conf to use instead of the one at a path: behind systemd-resolved its own, otherwise the same. The addresses at which
// systemd-resolved listens are of no use to pods, which have a loopback interface of their own.
func HostResolvConf(path string) string {
	return (&resolvConf{path: path, resolvedPath: resolvedFile}).effectivePath()
}

// effectivePath is the file that has the host's real name servers.
func (c *resolvConf) effectivePath() string {
	servers, err := readServers(c.path)
	if err != nil || !slices.ContainsFunc(servers, func(s netip.AddrPort) bool { return slices.Contains(resolvedStubs, s.Addr()) }) {
		return c.path
	}
	if real, err := readServers(c.resolvedPath); err != nil || len(real) == 0 {
		return c.path
	}
	return c.resolvedPath
}

// read returns the host's name servers.
func (c *resolvConf) read() ([]netip.AddrPort, error) { return readServers(c.effectivePath()) }

func readServers(path string) ([]netip.AddrPort, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	config, err := environment.ParseResolver(string(text))
	if err != nil {
		return nil, err
	}
	var servers []netip.AddrPort
	for _, text := range config.Servers {
		// Resolvers ignore what is not an address, too.
		if ip, err := netip.ParseAddr(text); err == nil {
			if server := netip.AddrPortFrom(ip.Unmap(), dnsPort); !slices.Contains(servers, server) {
				servers = append(servers, server)
			}
		}
	}
	return servers, nil
}

// follow calls set with the name servers, at once and after each change, until ctx is done. An unreadable file keeps the last ones.
func (c *resolvConf) follow(ctx context.Context, set func([]netip.AddrPort), onError func(error)) {
	ticker := time.NewTicker(resolvConfInterval)
	defer ticker.Stop()
	for {
		if c.changed() {
			if servers, err := c.read(); err != nil {
				onError(err)
			} else {
				set(servers)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}
