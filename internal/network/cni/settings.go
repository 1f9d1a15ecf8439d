// Package cni is the network of the pods of one node: the CNI plugin the container runtime starts for every pod, and what
// the kubelet calls to configure it, to prepare the host and to clear away what was left behind.
//
// A pod is joined to the node's bridge by a veth pair. It has an address of the node's range, as a host of its own (/32, /128)
// whose only neighbour is the bridge, so that every packet passes the host's routing: network address translation, services and
// policies work between two pods of one node as they do between any two hosts, and no pod can speak for another on the wire.
//
// What the host needs is computed as values (plan.go, rules.go: addresses, routes, sysctls, nftables rules), what belongs to
// which pod is one file behind a lock (state.go), and both are carried out over netlink (host.go, attach.go). The nftables rules
// are one table of our own that changes in one transaction. No other program is started.
package cni

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"skiff/internal/atomicfile"
)

const (
	// Name is the plugin's: the program the runtime looks for, and the type in the configuration.
	Name = "skiff-cni"
	// Version is the version of the CNI specification the configuration is written for.
	Version = "1.1.0"
	// NetworkName is the network's name towards the runtime.
	NetworkName = "skiff"
	// fileName sorts before what others call their configuration; a runtime takes the first it finds.
	fileName = "10-skiff.conflist"
)

// Settings describe the pod network of one node.
type Settings struct {
	// Bridge is the name of the bridge the pods are joined to, Table that of the nftables table. Two nodes that share a network
	// namespace need different ones.
	Bridge string `json:"bridge,omitempty"`
	Table  string `json:"table,omitempty"`
	// MTU of the pods' interfaces; 0 takes that of the interface of the default route.
	MTU int `json:"mtu,omitempty"`
	// DataDir is where the plugin remembers which address belongs to whom.
	DataDir string `json:"dataDir"`
	// PodCIDRs are the ranges of this node, at most one of each family.
	PodCIDRs []netip.Prefix `json:"podCIDRs"`
	// ClusterCIDRs are the ranges of all pods: what goes there keeps its source address, and what has no owner there is unreachable.
	ClusterCIDRs []netip.Prefix `json:"clusterCIDRs,omitempty"`
	// ServiceCIDRs are the ranges of service addresses: what no service has claimed there is rejected.
	ServiceCIDRs []netip.Prefix `json:"serviceCIDRs,omitempty"`
	// NonMasqueradeCIDRs are further ranges that see the pods' own addresses.
	NonMasqueradeCIDRs []netip.Prefix `json:"nonMasqueradeCIDRs,omitempty"`
}

// WithDefaults fills in names.
func (s Settings) WithDefaults() Settings {
	if s.Bridge == "" {
		s.Bridge = "skiff0"
	}
	if s.Table == "" {
		s.Table = "skiff-cni"
	}
	return s
}

// Validate says what is wrong with settings.
func (s Settings) Validate() error {
	var problems []error
	problem := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if len(s.Bridge) == 0 || len(s.Bridge) > 15 || strings.ContainsAny(s.Bridge, "/ \t\n") {
		problem("bridge %q is not the name of an interface", s.Bridge)
	}
	if s.DataDir == "" {
		problem("dataDir is missing")
	}
	if s.MTU < 0 || s.MTU > 65535 {
		problem("mtu %d is out of range", s.MTU)
	}
	families := map[bool]bool{}
	for _, p := range s.PodCIDRs {
		switch {
		case !p.IsValid():
			problem("podCIDRs has an invalid range")
		case families[p.Addr().Is4()]:
			problem("podCIDRs has two ranges of one family")
		case p.Addr().BitLen()-p.Bits() < 2:
			problem("pod range %s has no room for pods", p)
		default:
			families[p.Addr().Is4()] = true
		}
	}
	if len(s.PodCIDRs) == 0 {
		problem("podCIDRs is empty: the node has no range of addresses")
	}
	for _, p := range slices.Concat(s.ClusterCIDRs, s.ServiceCIDRs, s.NonMasqueradeCIDRs) {
		if !p.IsValid() {
			problem("a range is invalid")
		}
	}
	return errors.Join(problems...)
}

// Configure writes the runtime's network configuration into dir. A file that says the same already is left alone: the
// runtime reads it again whenever it is written.
func Configure(dir string, s Settings) error {
	s = s.WithDefaults()
	if err := s.Validate(); err != nil {
		return fmt.Errorf("configure pod network: %w", err)
	}
	type plugin struct {
		Type         string          `json:"type"`
		Capabilities map[string]bool `json:"capabilities"`
		Settings
	}
	text, err := json.MarshalIndent(map[string]any{
		"cniVersion": Version, "name": NetworkName,
		"plugins": []plugin{{Type: Name, Capabilities: map[string]bool{"portMappings": true}, Settings: s}},
	}, "", "  ")
	if err != nil {
		return fmt.Errorf("configure pod network: %w", err)
	}
	path := filepath.Join(dir, fileName)
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, text) {
		return nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("configure pod network: %w", err)
	}
	return atomicfile.Write(path, text, 0o600)
}

// Install puts the plugin where the runtime looks for it: a link to the program of that name beside this one, or to this one. Runtimes that
// want a plugin for the loopback interface find it there, too.
func Install(dir string) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("install network plugin: %w", err)
	}
	program := filepath.Join(filepath.Dir(self), Name)
	if _, err := os.Stat(program); err != nil {
		program = self
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("install network plugin: %w", err)
	}
	for _, name := range []string{Name, loopbackName} {
		path := filepath.Join(dir, name)
		if at, err := os.Readlink(path); err == nil && at == program {
			continue
		}
		// In one step, because a runtime may be at work. What is there and no link of ours is replaced as well: the directory is skiff's.
		_ = os.Remove(path + ".new") // of an attempt that was cut off
		if err := os.Symlink(program, path+".new"); err != nil {
			return fmt.Errorf("install network plugin: %w", err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			return fmt.Errorf("install network plugin: %w", err)
		}
	}
	return nil
}

// Read returns the settings that Configure wrote into dir, if it did.
func Read(dir string) (s Settings, configured bool, err error) {
	text, err := os.ReadFile(filepath.Join(dir, fileName))
	if errors.Is(err, os.ErrNotExist) {
		return s, false, nil
	}
	if err != nil {
		return s, false, fmt.Errorf("read pod network configuration: %w", err)
	}
	var list struct{ Plugins []Settings }
	if err := json.Unmarshal(text, &list); err != nil || len(list.Plugins) == 0 {
		return s, false, fmt.Errorf("read pod network configuration: %s is not what was written: %w", fileName, err)
	}
	return list.Plugins[0], true, nil
}

// Unconfigure takes the configuration out of dir again.
func Unconfigure(dir string) error {
	if err := os.Remove(filepath.Join(dir, fileName)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove pod network configuration: %w", err)
	}
	return nil
}

// Others lists the network configurations in dir that are not skiff's. Where there is one, its owner runs the pod network.
func Others(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for network configurations: %w", err)
	}
	var names []string
	for _, entry := range entries {
		switch filepath.Ext(entry.Name()) {
		case ".conf", ".conflist", ".json":
			if entry.Name() != fileName && !strings.HasPrefix(entry.Name(), ".") {
				names = append(names, entry.Name())
			}
		}
	}
	return names, nil
}
