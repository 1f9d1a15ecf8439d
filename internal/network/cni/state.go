package cni

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Attachment is a pod's connection to the network.
type Attachment struct {
	Container string `json:"container"`
	Interface string `json:"interface"`
	// Namespace, Pod and UID identify the pod. Policies are enforced by them; an old file has no UID.
	Namespace string       `json:"namespace,omitempty"`
	Pod       string       `json:"pod,omitempty"`
	UID       string       `json:"uid,omitempty"`
	Addresses []netip.Addr `json:"addresses"`
	Ports     []Port       `json:"ports,omitempty"`
	Bandwidth Bandwidth    `json:"bandwidth,omitzero"`
	// Sequence orders attachments by age.
	Sequence uint64 `json:"sequence"`
}

// is reports whether this is the attachment of a container's interface.
func (a Attachment) is(container, ifname string) bool {
	return a.Container == container && a.Interface == ifname
}

// State is the content of the state file. Its methods implement address management and have no side effects.
type State struct {
	// Boot is the kernel's boot ID: attachments do not survive a reboot.
	Boot        string       `json:"boot"`
	Sequence    uint64       `json:"sequence"`
	Attachments []Attachment `json:"attachments"`
	// Last is the last allocated address by CIDR, so that a released address is not reused at once.
	Last map[string]netip.Addr `json:"last,omitempty"`
}

// errExhausted means that a CIDR has no free address.
var errExhausted = errors.New("no address is free")

// find returns the attachment of a container's interface, nil when there is none.
func (s *State) find(container, ifname string) *Attachment {
	for i := range s.Attachments {
		if s.Attachments[i].is(container, ifname) {
			return &s.Attachments[i]
		}
	}
	return nil
}

// reserve allocates one address of each CIDR to an attachment. An existing attachment keeps its addresses if they are in the CIDRs.
func (s *State) reserve(a Attachment, ranges []netip.Prefix) (Attachment, error) {
	if old := s.find(a.Container, a.Interface); old != nil {
		a.Addresses = old.Addresses
		s.release(a.Container, a.Interface)
	}
	if !slices.EqualFunc(a.Addresses, ranges, func(address netip.Addr, p netip.Prefix) bool { return p.Contains(address) }) {
		a.Addresses = nil
		for _, p := range ranges {
			address, err := s.next(p.Masked())
			if err != nil {
				return a, err
			}
			a.Addresses = append(a.Addresses, address)
		}
		if s.Last == nil {
			s.Last = map[string]netip.Addr{}
		}
		for i, p := range ranges {
			s.Last[p.Masked().String()] = a.Addresses[i]
		}
	}
	s.Sequence++
	a.Sequence = s.Sequence
	s.Attachments = append(s.Attachments, a)
	return a, nil
}

// next returns a free address after the last allocated one, cyclically. The network address, the gateway and the IPv4 broadcast address are
// never allocated.
func (s *State) next(p netip.Prefix) (netip.Addr, error) {
	taken := map[netip.Addr]bool{}
	for _, a := range s.Attachments {
		for _, address := range a.Addresses {
			taken[address] = true
		}
	}
	first := gateway(p).Next()
	usable := func(a netip.Addr) bool {
		return p.Contains(a) && (a.Is6() || p.Contains(a.Next()))
	}
	candidate := s.Last[p.String()]
	if !candidate.IsValid() || !p.Contains(candidate) {
		candidate = gateway(p)
	}
	// Of one more than the allocated addresses at least one is free, if there is any.
	for range len(taken) + 1 {
		if candidate = candidate.Next(); !usable(candidate) {
			candidate = first
		}
		if usable(candidate) && !taken[candidate] {
			return candidate, nil
		}
	}
	return netip.Addr{}, fmt.Errorf("range %s: %w", p, errExhausted)
}

// release removes an attachment and returns it.
func (s *State) release(container, ifname string) (Attachment, bool) {
	i := slices.IndexFunc(s.Attachments, func(a Attachment) bool { return a.is(container, ifname) })
	if i < 0 {
		return Attachment{}, false
	}
	released := s.Attachments[i]
	s.Attachments = slices.Delete(s.Attachments, i, i+1)
	return released, true
}

// keep removes every attachment that is not in live, and returns the removed ones.
func (s *State) keep(live []Identity) []Attachment {
	var released []Attachment
	s.Attachments = slices.DeleteFunc(s.Attachments, func(a Attachment) bool {
		if slices.Contains(live, Identity{a.Container, a.Interface}) {
			return false
		}
		released = append(released, a)
		return true
	})
	return released
}

// locked calls change with the state while it holds the file lock, and writes the state unless change fails.
func locked(dataDir string, change func(*State) error) error {
	return underLock(dataDir, func(path string) error {
		state, err := readState(path)
		if err != nil {
			return err
		}
		if err := change(&state); err != nil {
			return err
		}
		return writeState(path, state)
	})
}

// inspect returns the state. It writes nothing, so that it needs no space on a full disk.
func inspect(dataDir string) (state State, err error) {
	err = underLock(dataDir, func(path string) error {
		state, err = readState(path)
		return err
	})
	return state, err
}

// underLock calls do with the path of the state file while it holds the file lock.
func underLock(dataDir string, do func(path string) error) error {
	if err := os.MkdirAll(dataDir, 0o700); err != nil {
		return fmt.Errorf("open network state: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(dataDir, "lock"), os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return fmt.Errorf("open network state: %w", err)
	}
	defer lock.Close()
	if err := waitForLock(int(lock.Fd())); err != nil {
		return fmt.Errorf("lock network state: %w", err)
	}
	return do(filepath.Join(dataDir, "state.json"))
}

// Attachments returns the attachments in a directory of the state file.
func Attachments(dataDir string) ([]Attachment, error) {
	state, err := inspect(dataDir)
	return state.Attachments, err
}

// waitForLock acquires the lock. It is held for milliseconds, and the kernel releases it when its holder dies.
func waitForLock(fd int) error {
	for {
		if err := unix.Flock(fd, unix.LOCK_EX); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// readState reads the file. The state of an earlier boot, or a file truncated by a crash of the host, is ignored: its attachments no longer
// exist.
func readState(path string) (State, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return State{}, fmt.Errorf("read network state: %w", err)
	}
	fresh := State{Boot: strings.TrimSpace(string(boot))}
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return fresh, nil
	}
	if err != nil {
		return State{}, fmt.Errorf("read network state: %w", err)
	}
	var state State
	if err := json.Unmarshal(text, &state); err != nil || state.Boot != fresh.Boot {
		return fresh, nil
	}
	return state, nil
}

// writeState replaces the file atomically. It does not sync to disk: a crash of the host ends every attachment.
func writeState(path string, state State) error {
	text, err := json.Marshal(state)
	if err != nil {
		return fmt.Errorf("write network state: %w", err)
	}
	if err := os.WriteFile(path+".new", text, 0o600); err != nil {
		return fmt.Errorf("write network state: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("write network state: %w", err)
	}
	return nil
}
