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

// Attachment is a pod's place in the network.
type Attachment struct {
	Container string `json:"container"`
	Interface string `json:"interface"`
	// Namespace and Pod are the API's names, for people who read the file.
	Namespace string       `json:"namespace,omitempty"`
	Pod       string       `json:"pod,omitempty"`
	Addresses []netip.Addr `json:"addresses"`
	Ports     []Port       `json:"ports,omitempty"`
	// Sequence orders attachments by age.
	Sequence uint64 `json:"sequence"`
}

// is reports whether this is the attachment of a container's interface.
func (a Attachment) is(container, ifname string) bool {
	return a.Container == container && a.Interface == ifname
}

// State is who has which address, as it stands in the state file. Its methods are the whole of address management and touch nothing else.
type State struct {
	// Boot is the kernel's name for this run of the machine: after the next one no attachment exists.
	Boot        string       `json:"boot"`
	Sequence    uint64       `json:"sequence"`
	Attachments []Attachment `json:"attachments"`
	// Last is the address given out last, by range: a released address is not given to the next pod at once.
	Last map[string]netip.Addr `json:"last,omitempty"`
}

// errExhausted means that a range has no free address.
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

// reserve gives an attachment one address of each range. An attachment that exists already keeps its addresses if they fit the ranges.
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

// next finds a free address, going round from the last one given out. The range's own address, the gateway and IPv4's broadcast address are nobody's.
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
	// One more than are taken must contain a free one, if there is one at all.
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

// release forgets an attachment and returns what it was.
func (s *State) release(container, ifname string) (Attachment, bool) {
	i := slices.IndexFunc(s.Attachments, func(a Attachment) bool { return a.is(container, ifname) })
	if i < 0 {
		return Attachment{}, false
	}
	gone := s.Attachments[i]
	s.Attachments = slices.Delete(s.Attachments, i, i+1)
	return gone, true
}

// keep forgets every attachment that is not among those that live, and returns the forgotten ones.
func (s *State) keep(live []Identity) []Attachment {
	var gone []Attachment
	s.Attachments = slices.DeleteFunc(s.Attachments, func(a Attachment) bool {
		if slices.Contains(live, Identity{a.Container, a.Interface}) {
			return false
		}
		gone = append(gone, a)
		return true
	})
	return gone
}

// locked runs a change of the state behind the lock, which other processes heed, and keeps what it did unless it fails.
func locked(dataDir string, change func(*State) error) error {
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
	path := filepath.Join(dataDir, "state.json")
	state, err := readState(path)
	if err != nil {
		return err
	}
	if err := change(&state); err != nil {
		return err
	}
	return writeState(path, state)
}

// waitForLock waits until nobody else has the lock. Who has it keeps it for milliseconds, and loses it when it dies.
func waitForLock(fd int) error {
	for {
		if err := unix.Flock(fd, unix.LOCK_EX); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// readState reads the file. What is left of an earlier run of the machine, or of a write that a crash cut off, counts for nothing:
// the attachments it speaks of ended with that run.
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

// writeState replaces the file in one step. It does not wait for the disk: a crash of the machine ends every attachment.
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
