// Package cni is the pod network of one node: the CNI plugin that the container runtime runs for every pod, and the functions that the
// kubelet calls to configure it, to prepare the host and to remove orphaned attachments.
//
// A pod is connected to the node's bridge by a veth pair. It has an address of the node's pod CIDR with a /32 or /128 prefix, whose only
// neighbor is the bridge, whose ports get no broadcast and multicast frames of other ports. So every packet is routed by the host: NAT, Services and
// network policies work between two pods of one node as between any two hosts. A container that may send raw packets (CAP_NET_RAW) can address
// frames to the port of another pod; decision 29 names what follows.
//
// The desired configuration is computed by pure functions (plan.go, rules.go: addresses, routes, sysctls, nftables rules), the attachments
// of pods are in one file protected by a lock (state.go), and both are applied with netlink (host.go, attach.go). The nftables rules are in
// one table, which is changed in one transaction. No other program is run.
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
	// Name is the name of the plugin: of its program, and the type in the configuration.
	Name = "skiff-cni"
	// Version is the version of the CNI specification the configuration is written for. CompatibleVersion is one that every runtime with version
	// 1 of the CRI knows; containerd before 2.0 does not know a later one.
	Version           = "1.1.0"
	CompatibleVersion = "1.0.0"
	// NetworkName is the network's name towards the runtime.
	NetworkName = "skiff"
	// fileName sorts before the usual names of other configurations; a runtime uses the first one.
	fileName = "10-skiff.conflist"
)

// Settings describe the pod network of one node.
type Settings struct {
	// ConfigVersion is the version of the CNI specification of the runtime's configuration; empty means Version. It is not a part of what the
	// plugin receives.
	ConfigVersion string `json:"-"`
	// Bridge is the name of the bridge the pods are joined to, Table that of the nftables table. Two nodes that share a network
	// namespace need different ones.
	Bridge string `json:"bridge,omitempty"`
	Table  string `json:"table,omitempty"`
	// MTU of the pods' interfaces; 0 takes that of the interface of the default route.
	MTU int `json:"mtu,omitempty"`
	// DataDir is the directory of the state file.
	DataDir string `json:"dataDir"`
	// PodCIDRs are the pod CIDRs of this node, at most one of each family.
	PodCIDRs []netip.Prefix `json:"podCIDRs"`
	// ClusterCIDRs are the CIDRs of all pods: packets to them keep their source address; unassigned addresses are unreachable.
	ClusterCIDRs []netip.Prefix `json:"clusterCIDRs,omitempty"`
	// ServiceCIDRs are the CIDRs of Services: packets to unassigned addresses are rejected.
	ServiceCIDRs []netip.Prefix `json:"serviceCIDRs,omitempty"`
	// NonMasqueradeCIDRs are further CIDRs to which packets keep their source address.
	NonMasqueradeCIDRs []netip.Prefix `json:"nonMasqueradeCIDRs,omitempty"`
	// OwnProxy is whether the Service proxy of this node is skiff's. It has decided about the first packet of a connection to a Service before the packet is
	// routed; others reject packets when they are forwarded.
	OwnProxy bool `json:"ownProxy,omitempty"`
	// PolicySocket is the socket of the process that enforces network policies, for which new pods wait; empty: they do not wait.
	PolicySocket string `json:"policySocket,omitempty"`
}

// WithDefaults sets default names.
func (s Settings) WithDefaults() Settings {
	if s.Bridge == "" {
		s.Bridge = "skiff0"
	}
	if s.ConfigVersion == "" {
		s.ConfigVersion = Version
	}
	if s.Table == "" {
		s.Table = "skiff-cni"
	}
	return s
}

// Validate returns all errors in the settings.
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

// Configure writes the runtime's network configuration to dir. An unchanged file is not written, because the runtime reloads it after every
// write.
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
		"cniVersion": s.ConfigVersion, "name": NetworkName,
		"plugins": []plugin{{Type: Name, Capabilities: map[string]bool{"portMappings": true, "bandwidth": true}, Settings: s}},
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

// pluginProgram is what the links in a plugin directory lead to: the program of the plugin's name in the directory of this one, or this one.
func pluginProgram() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	plugin := filepath.Join(filepath.Dir(self), Name)
	if _, err := os.Stat(plugin); err != nil {
		return self, nil
	}
	return plugin, nil
}

// isOwn reports whether a path in a plugin directory is skiff's: a link to this program, or to one of another version of skiff.
func isOwn(path, program string) bool {
	target, err := os.Readlink(path)
	return err == nil && (target == program || slices.Contains([]string{Name, "skiff"}, filepath.Base(target)))
}

// Install links the plugin into the runtime's plugin directory. It also links the loopback plugin, which some runtimes need, unless there is
// another one.
func Install(dir string) error {
	program, err := pluginProgram()
	if err != nil {
		return fmt.Errorf("install network plugin: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("install network plugin: %w", err)
	}
	for _, name := range []string{Name, loopbackName} {
		path := filepath.Join(dir, name)
		if at, err := os.Readlink(path); err == nil && at == program {
			continue
		}
		if _, err := os.Lstat(path); err == nil && name == loopbackName && !isOwn(path, program) {
			continue
		}
		// Atomically, because a runtime may be running the plugin.
		_ = os.Remove(path + ".new") // of an interrupted attempt
		if err := os.Symlink(program, path+".new"); err != nil {
			return fmt.Errorf("install network plugin: %w", err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			return fmt.Errorf("install network plugin: %w", err)
		}
	}
	return nil
}

// Uninstall removes the links that Install made.
func Uninstall(dir string) error {
	program, err := pluginProgram()
	if err != nil {
		return fmt.Errorf("remove network plugin: %w", err)
	}
	for _, name := range []string{Name, loopbackName} {
		path := filepath.Join(dir, name)
		if !isOwn(path, program) {
			continue
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove network plugin: %w", err)
		}
	}
	return nil
}

// Read returns the settings that Configure wrote to dir, if any.
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
		return s, false, fmt.Errorf("read pod network configuration: invalid %s: %w", fileName, err)
	}
	return list.Plugins[0], true, nil
}

// Unconfigure removes the configuration from dir.
func Unconfigure(dir string) error {
	if err := os.Remove(filepath.Join(dir, fileName)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove pod network configuration: %w", err)
	}
	return nil
}

// Preceding lists the network configurations in dir that a runtime uses instead of skiff's.
func Preceding(dir string) ([]string, error) {
	names, err := configurations(dir)
	return slices.DeleteFunc(names, func(name string) bool { return name > fileName }), err
}

// Others lists the network configurations in dir that are not skiff's. If there is one, its owner runs the pod network. Those of programs that
// run single containers, such as Podman, are not: pods are not meant to be in their networks.
func Others(dir string) ([]string, error) {
	names, err := configurations(dir)
	return slices.DeleteFunc(names, func(name string) bool { return isOfContainerTool(filepath.Join(dir, name)) }), err
}

// isOfContainerTool reports whether a network configuration was written by Podman, nerdctl or CRI-O for containers outside of pods, or sets up
// nothing but the loopback interface.
func isOfContainerTool(path string) bool {
	text, err := os.ReadFile(path)
	if err != nil {
		return false
	}
	var network struct {
		Name      string
		Type      string
		Plugins   []struct{ Type string }
		NerdctlID json.RawMessage `json:"nerdctlID"`
	}
	if json.Unmarshal(text, &network) != nil {
		return false
	}
	types := []string{network.Type}
	if len(network.Plugins) > 0 {
		types = nil
		for _, p := range network.Plugins {
			types = append(types, p.Type)
		}
	}
	onlyLoopback := !slices.ContainsFunc(types, func(name string) bool { return name != loopbackName })
	return onlyLoopback || network.NerdctlID != nil || slices.Contains([]string{"podman", "crio"}, network.Name)
}

// configurations lists the files in dir that a runtime takes for network configurations, except skiff's.
func configurations(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list network configurations: %w", err)
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
