package firewall

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"
	"unsafe"

	"github.com/google/nftables/xt"
	"golang.org/x/sys/unix"
)

// The tables of iptables' legacy interface are replaced as a whole: linux/netfilter_ipv4/ip_tables.h. The interface for IPv6 is the same, except
// for the layout of entries.
const (
	getInfo, getEntries = 64, 65
	setReplace          = 64

	legacyTableName = "filter"
	tableNameLen    = 32
	hookCount       = 5
	inputNumber     = 1
	forwardNumber   = 2
	outputNumber    = 3
	// entryHeader is the size of the header of matches and targets: their size, name and revision.
	entryHeader = 32
	// targetSize is the size of a standard target, which has its verdict after the header.
	targetSize   = 40
	interfaceLen = 16
	counterSize  = 16
	// xtablesLock is the lock that all programs take that change these tables, xtablesWait how long it is waited for.
	xtablesLock = "/run/xtables.lock"
	xtablesWait = 5 * time.Second
)

// The verdicts of standard targets: -NF_DROP-1, -NF_ACCEPT-1. Verdicts from 0 on are offsets of entries.
const (
	legacyDrop   int32 = -1
	legacyAccept int32 = -2
)

// legacyHooks are the numbers of the chains in which packets of pods may be dropped.
var legacyHooks = map[string]int{hookInput: inputNumber, hookForward: forwardNumber, hookOutput: outputNumber}

// legacyFamily describes the tables of one family.
type legacyFamily struct {
	// family is ip or ip6.
	family, names, command string
	domain, level          int
	// interfaces is where an entry has the names of its interfaces and their masks, targetOffset where it has the offsets of its target and of the
	// next entry, and size the size of an entry without matches and target. The addresses are in front of the interfaces, the protocol behind them.
	interfaces, targetOffset, size int
}

var legacyFamilies = []legacyFamily{
	{
		family: "ip", names: "/proc/thread-self/net/ip_tables_names", command: "iptables-legacy", domain: unix.AF_INET, level: unix.SOL_IP,
		interfaces: 16, targetOffset: 88, size: 112,
	},
	{
		family: "ip6", names: "/proc/thread-self/net/ip6_tables_names", command: "ip6tables-legacy", domain: unix.AF_INET6, level: unix.SOL_IPV6,
		interfaces: 64, targetOffset: 140, size: 168,
	},
}

// syncLegacy makes the entries of this package in tables of iptables' legacy interface those that are wanted: in chains that drop what is not
// explicitly accepted.
func syncLegacy(wanted map[string][]acceptance) error {
	var errs []error
	for _, f := range legacyFamilies {
		entries := map[string][][]byte{}
		for hook, list := range wanted {
			for _, a := range list {
				if !a.in(f.family) {
					continue
				}
				entry, err := f.entry(a)
				if err != nil {
					return err
				}
				entries[hook] = append(entries[hook], entry)
			}
		}
		if err := f.sync(entries); err != nil {
			errs = append(errs, fmt.Errorf("table %s of %s may drop packets of pods, and cannot be changed: %w", legacyTableName, f.command, err))
		}
	}
	return errors.Join(errs...)
}

// sync changes the table if it is in use and does not have the entries. It holds the lock only for a change.
func (f legacyFamily) sync(entries map[string][][]byte) error {
	fd, isUsed, err := f.open()
	if err != nil || !isUsed {
		return err
	}
	defer unix.Close(fd)
	update := func() (changed *legacyTable, err error) {
		t, err := f.read(fd)
		if err != nil {
			return nil, fmt.Errorf("read table %s: %w", legacyTableName, err)
		}
		for hook, number := range legacyHooks {
			if t.set(number, entries[hook]) {
				changed = t
			}
		}
		return changed, nil
	}
	if t, err := update(); err != nil || t == nil {
		return err
	}
	unlock, err := lockTables()
	if err != nil {
		return err
	}
	defer unlock()
	t, err := update()
	if err != nil || t == nil {
		return err
	}
	if err := f.replace(fd, t); err != nil {
		return fmt.Errorf("replace table %s: %w", legacyTableName, err)
	}
	return nil
}

// open opens a socket with which the table is read and changed. isUsed is false if the kernel does not have the interface, or nobody uses it.
func (f legacyFamily) open() (fd int, isUsed bool, err error) {
	names, err := os.ReadFile(f.names)
	if err != nil || !slices.Contains(strings.Fields(string(names)), legacyTableName) {
		return 0, false, nil //nolint:nilerr // the file does not exist without the interface
	}
	fd, err = unix.Socket(f.domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	return fd, err == nil, err
}

// lockTables takes the lock of the tables.
func lockTables() (unlock func(), err error) {
	file, err := os.OpenFile(xtablesLock, os.O_CREATE|os.O_RDONLY|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(xtablesWait); ; time.Sleep(10 * time.Millisecond) {
		err = unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { file.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) || time.Now().After(deadline) {
			file.Close()
			return nil, fmt.Errorf("lock %s: %w", xtablesLock, err)
		}
	}
}

// entry is an entry that accepts packets of a kind. Its comment is the identity of the kind.
func (f legacyFamily) entry(a acceptance) ([]byte, error) {
	entry := make([]byte, f.size)
	length := f.interfaces / 4 // of an address
	setAddress := func(index int, p netip.Prefix) {
		if p.IsValid() {
			copy(entry[index*length:], p.Addr().AsSlice())
			copy(entry[(2+index)*length:], net.CIDRMask(p.Bits(), p.Addr().BitLen()))
		}
	}
	setInterface := func(index int, name string) {
		if name == "" {
			return
		}
		copy(entry[f.interfaces+index*interfaceLen:], name)
		for i := range len(name) + 1 { // with the final zero: the whole name
			entry[f.interfaces+(2+index)*interfaceLen+i] = 0xff
		}
	}
	setAddress(0, a.source)
	setAddress(1, a.destination)
	setInterface(0, a.from)
	setInterface(1, a.to)
	if a.udpPort != 0 {
		protocol := f.interfaces + 4*interfaceLen
		binary.NativeEndian.PutUint16(entry[protocol:], unix.IPPROTO_UDP)
		if f.family == "ip6" {
			const compareProtocol = 1 // IP6T_F_PROTO
			entry[protocol+3] = compareProtocol
		}
	}
	matches, err := f.matches(a)
	if err != nil {
		return nil, fmt.Errorf("encode a rule of %s: %w", f.command, err)
	}
	entry = append(entry, matches...)
	target := make([]byte, targetSize)
	binary.NativeEndian.PutUint16(target, targetSize)
	verdict := legacyAccept
	binary.NativeEndian.PutUint32(target[entryHeader:], uint32(verdict))
	binary.NativeEndian.PutUint16(entry[f.targetOffset:], uint16(len(entry)))
	binary.NativeEndian.PutUint16(entry[f.targetOffset+2:], uint16(len(entry)+targetSize))
	return append(entry, target...), nil
}

// matches are the matches of an entry.
func (f legacyFamily) matches(a acceptance) (all []byte, err error) {
	add := func(name string, revision byte, info xt.InfoAny) {
		data, marshalErr := xt.Marshal(xt.TableFamily(f.domain), uint32(revision), info)
		err = errors.Join(err, marshalErr)
		match := make([]byte, entryHeader, entryHeader+len(data))
		binary.NativeEndian.PutUint16(match, uint16(entryHeader+len(data)))
		copy(match[2:], name)
		match[entryHeader-1] = revision
		all = append(append(all, match...), data...)
	}
	if a.udpPort != 0 {
		add("udp", 0, a.udpInfo())
	}
	if a.translated {
		add("conntrack", conntrackRevision, translatedInfo(f.family == "ip"))
	}
	identity := xt.Comment(a.identity())
	add(commentMatch, 0, &identity)
	return all, err
}

// commentMatch is the name of the match that matches everything and has a comment.
const commentMatch = "comment"

// read reads the table.
func (f legacyFamily) read(fd int) (*legacyTable, error) {
	const header = tableNameLen + 8
	info := make([]byte, tableNameLen+4+2*4*hookCount+8)
	copy(info, legacyTableName)
	if err := getsockopt(fd, f.level, getInfo, info); err != nil {
		return nil, err
	}
	number := func(i int) uint32 { return binary.NativeEndian.Uint32(info[tableNameLen+4*i:]) }
	t := &legacyTable{family: f, validHooks: number(0), count: number(1 + 2*hookCount), oldCount: number(1 + 2*hookCount)}
	for h := range hookCount {
		t.hookEntry[h], t.underflow[h] = number(1+h), number(1+hookCount+h)
	}
	size := number(2 + 2*hookCount)
	buffer := make([]byte, header+int(size))
	copy(buffer, legacyTableName)
	binary.NativeEndian.PutUint32(buffer[tableNameLen:], size)
	if err := getsockopt(fd, f.level, getEntries, buffer); err != nil {
		return nil, err
	}
	t.entries = buffer[header:]
	return t, nil
}

// replace replaces the table. Counters of entries begin at zero again.
func (f legacyFamily) replace(fd int, t *legacyTable) error {
	counters := make([]byte, int(t.oldCount)*counterSize)
	b := make([]byte, tableNameLen, tableNameLen+64+len(t.entries))
	copy(b, legacyTableName)
	for _, n := range slices.Concat([]uint32{t.validHooks, t.count, uint32(len(t.entries))}, t.hookEntry[:], t.underflow[:], []uint32{t.oldCount}) {
		b = binary.NativeEndian.AppendUint32(b, n)
	}
	b = binary.NativeEndian.AppendUint64(b, uint64(uintptr(unsafe.Pointer(&counters[0]))))
	err := unix.SetsockoptString(fd, f.level, setReplace, string(append(b, t.entries...)))
	runtime.KeepAlive(counters) // the kernel writes to it
	return err
}

// getsockopt fills a buffer whose beginning says what is wanted.
func getsockopt(fd, level, option int, buffer []byte) error {
	size := uint32(len(buffer))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(option), uintptr(unsafe.Pointer(&buffer[0])), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// legacyTable is a table of iptables' legacy interface.
type legacyTable struct {
	family     legacyFamily
	validHooks uint32
	// hookEntry and underflow are the offsets of the first entry of each built-in chain and of its policy.
	hookEntry, underflow [hookCount]uint32
	count                uint32
	entries              []byte
	// oldCount is the number of entries that the kernel has.
	oldCount uint32
}

// each calls do with the offset and the bytes of each entry until it returns false.
func (t *legacyTable) each(do func(at int, entry []byte) bool) {
	f := t.family
	for at := 0; at+f.size+entryHeader <= len(t.entries); {
		next := at + int(binary.NativeEndian.Uint16(t.entries[at+f.targetOffset+2:]))
		if next <= at || next > len(t.entries) || !do(at, t.entries[at:next]) {
			return
		}
		at = next
	}
}

// eachOf is each for the entries of a built-in chain, with its policy.
func (t *legacyTable) eachOf(hook int, do func(at int, entry []byte) bool) {
	t.each(func(at int, entry []byte) bool {
		return at > int(t.underflow[hook]) || at < int(t.hookEntry[hook]) || do(at, entry)
	})
}

// target returns the offset of an entry's target and its name. That of a standard target is empty.
func (f legacyFamily) target(entry []byte) (offset int, name string) {
	offset = int(binary.NativeEndian.Uint16(entry[f.targetOffset:]))
	if offset+entryHeader > len(entry) {
		return len(entry), ""
	}
	text, _, _ := bytes.Cut(entry[offset+2:offset+entryHeader-1], []byte{0})
	return offset, string(text)
}

// verdict is the place of the verdict of an entry with a standard target; nil if it has another.
func (f legacyFamily) verdict(entry []byte) []byte {
	offset, name := f.target(entry)
	if name != "" || offset+targetSize > len(entry) {
		return nil
	}
	return entry[offset+entryHeader : offset+entryHeader+4]
}

// verdictIs reports whether an entry has a standard target with a verdict.
func (f legacyFamily) verdictIs(entry []byte, verdict int32) bool {
	place := f.verdict(entry)
	return place != nil && int32(binary.NativeEndian.Uint32(place)) == verdict
}

// own is the identity of an entry of this package; empty: it is another's.
func (f legacyFamily) own(entry []byte) string {
	end, _ := f.target(entry)
	for at := f.size; at+entryHeader <= end; {
		size := int(binary.NativeEndian.Uint16(entry[at:]))
		if size < entryHeader || at+size > end {
			return ""
		}
		name, _, _ := bytes.Cut(entry[at+2:at+entryHeader-1], []byte{0})
		text, _, _ := bytes.Cut(entry[at+entryHeader:at+size], []byte{0})
		if string(name) == commentMatch && bytes.HasPrefix(text, []byte(marker)) {
			return string(text)
		}
		at += size
	}
	return ""
}

// matchesAll reports whether an entry applies to every packet.
func (f legacyFamily) matchesAll(entry []byte) bool {
	offset, _ := f.target(entry)
	// The kernel changes what is between description and offsets.
	return offset == f.size && !slices.ContainsFunc(entry[:f.targetOffset-4], func(b byte) bool { return b != 0 })
}

// blocking returns the offset of the entry of a chain, possibly its policy, that drops every packet that reaches it; -1 if there is none. Chains that
// are jumped to are not considered.
func (t *legacyTable) blocking(hook int) int {
	f, found := t.family, -1
	t.eachOf(hook, func(at int, entry []byte) bool {
		if !f.matchesAll(entry) || f.own(entry) != "" {
			return true
		}
		_, target := f.target(entry)
		if target == "REJECT" || f.verdictIs(entry, legacyDrop) {
			found = at
		}
		return found < 0 && !f.verdictIs(entry, legacyAccept)
	})
	return found
}

// set makes the own entries of a chain the wanted ones, if the chain drops what is not accepted, and otherwise removes them. It reports whether it has
// changed the table.
func (t *legacyTable) set(hook int, wanted [][]byte) bool {
	if t.validHooks&(1<<hook) == 0 {
		return false
	}
	f, at := t.family, t.blocking(hook)
	if at < 0 {
		wanted = nil
	}
	var present, needed []string
	isMisplaced := false
	t.eachOf(hook, func(offset int, entry []byte) bool {
		if own := f.own(entry); own != "" {
			present = append(present, own)
			isMisplaced = isMisplaced || offset > at
		}
		return true
	})
	for _, entry := range wanted {
		needed = append(needed, f.own(entry))
	}
	if slices.Equal(present, needed) && !(isMisplaced && len(wanted) > 0) {
		return false
	}
	for range present {
		t.removeOwn(hook)
	}
	if len(wanted) > 0 {
		t.insert(hook, t.blocking(hook), wanted)
	}
	return true
}

// insert adds entries to a chain in front of the entry at an offset.
func (t *legacyTable) insert(hook, at int, added [][]byte) {
	all := slices.Concat(added...)
	isPolicy := at == int(t.underflow[hook])
	// What led to the entry leads to the new ones.
	t.shift(func(offset int) int {
		if offset > at {
			return offset + len(all)
		}
		return offset
	})
	if isPolicy {
		t.underflow[hook] += uint32(len(all))
	}
	t.entries = slices.Concat(t.entries[:at], all, t.entries[at:])
	t.count += uint32(len(added))
}

// removeOwn removes the first own entry of a chain.
func (t *legacyTable) removeOwn(hook int) {
	found, size := -1, 0
	t.eachOf(hook, func(at int, entry []byte) bool {
		if t.family.own(entry) != "" {
			found, size = at, len(entry)
		}
		return found < 0
	})
	if found < 0 {
		return
	}
	t.shift(func(offset int) int {
		if offset > found {
			return offset - size
		}
		return offset
	})
	t.entries = slices.Concat(t.entries[:found], t.entries[found+size:])
	t.count--
}

// shift changes all offsets of entries: those of chains, of policies, and of jumps.
func (t *legacyTable) shift(move func(int) int) {
	for h := range hookCount {
		if t.validHooks&(1<<h) != 0 {
			t.hookEntry[h], t.underflow[h] = uint32(move(int(t.hookEntry[h]))), uint32(move(int(t.underflow[h])))
		}
	}
	t.each(func(_ int, entry []byte) bool {
		if verdict := t.family.verdict(entry); verdict != nil {
			if target := int32(binary.NativeEndian.Uint32(verdict)); target >= 0 {
				binary.NativeEndian.PutUint32(verdict, uint32(move(int(target))))
			}
		}
		return true
	})
}
