// Package topology reads the CPUs and the NUMA nodes of a host from /sys.
package topology

import (
	"errors"
	"fmt"
	"io/fs"
	"math/bits"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"k8s.io/utils/cpuset"
)

// Dir is the directory that Read reads on a host.
const Dir = "/sys/devices/system"

// CPU is the location of a logical CPU.
type CPU struct {
	NUMANode int
	// Socket is the physical package.
	Socket int
	// Core is the physical core: the lowest of the IDs of its logical CPUs, which is unique on the host.
	Core int
	// UncoreCache is the last-level cache that only some cores of the NUMA node share; the socket if there is none.
	UncoreCache int
}

// HugePages are the preallocated huge pages of one size.
type HugePages struct {
	// PageSize is in bytes.
	PageSize, Count uint64
}

// NUMANode is a NUMA node of the host. It may have no CPUs.
type NUMANode struct {
	ID int
	// Memory is in bytes, including that of the huge pages.
	Memory    uint64
	HugePages []HugePages
	// Distances to the NUMA nodes of the host; nil if the kernel does not report them.
	Distances []uint64
}

// Topology has the online CPUs and the NUMA nodes of a host.
type Topology struct {
	CPUs map[int]CPU
	// NUMANodes are sorted by ID.
	NUMANodes []NUMANode
	// Cores, Sockets and UncoreCaches are numbers of them.
	Cores, Sockets, UncoreCaches int
}

// New makes a Topology. It counts what the CPUs are on.
func New(cpus map[int]CPU, nodes []NUMANode) *Topology {
	t := &Topology{CPUs: cpus, NUMANodes: nodes}
	cores, sockets, caches := map[int]bool{}, map[int]bool{}, map[int]bool{}
	for _, c := range cpus {
		cores[c.Core], sockets[c.Socket], caches[c.UncoreCache] = true, true, true
	}
	t.Cores, t.Sockets, t.UncoreCaches = len(cores), len(sockets), len(caches)
	return t
}

// AllCPUs are the online CPUs.
func (t *Topology) AllCPUs() cpuset.CPUSet {
	ids := make([]int, 0, len(t.CPUs))
	for id := range t.CPUs {
		ids = append(ids, id)
	}
	return cpuset.New(ids...)
}

// NUMANodeIDs are the IDs of all NUMA nodes, sorted.
func (t *Topology) NUMANodeIDs() []int {
	ids := make([]int, 0, len(t.NUMANodes))
	for _, node := range t.NUMANodes {
		ids = append(ids, node.ID)
	}
	return ids
}

// NUMANodesWithCPUs are the IDs of the NUMA nodes that have online CPUs, sorted.
func (t *Topology) NUMANodesWithCPUs() []int {
	ids := make([]int, 0, len(t.NUMANodes))
	for _, c := range t.CPUs {
		ids = append(ids, c.NUMANode)
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// CPUsPerCore is the average number of logical CPUs of a core, rounded down.
func (t *Topology) CPUsPerCore() int { return len(t.CPUs) / max(t.Cores, 1) }

// CPUsPerSocket is the average number of logical CPUs of a socket, rounded down.
func (t *Topology) CPUsPerSocket() int { return len(t.CPUs) / max(t.Sockets, 1) }

// CPUsPerUncoreCache is the average number of logical CPUs of an uncore cache, rounded down.
func (t *Topology) CPUsPerUncoreCache() int { return len(t.CPUs) / max(t.UncoreCaches, 1) }

// reader reads the files below dir.
type reader struct {
	dir    string
	online *cpuset.CPUSet // nil: all
	cpus   map[int]CPU
}

// Read reads the topology from dir, which is Dir on a host. A host whose kernel does not report NUMA nodes has one for each socket.
func Read(dir string) (*Topology, error) {
	r := &reader{dir: dir, cpus: map[int]CPU{}}
	nodes, err := r.read()
	if err != nil {
		return nil, fmt.Errorf("read CPU topology: %w", err)
	}
	if len(r.cpus) == 0 {
		return nil, errors.New("read CPU topology: could not detect number of cpus")
	}
	return New(r.cpus, nodes), nil
}

func (r *reader) read() ([]NUMANode, error) {
	text, err := os.ReadFile(filepath.Join(r.dir, "cpu/online"))
	switch {
	case err == nil:
		online, err := cpuset.Parse(strings.TrimSpace(string(text)))
		if err != nil {
			return nil, fmt.Errorf("parse online CPUs: %w", err)
		}
		r.online = &online
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	nodes, err := numbered(filepath.Join(r.dir, "node"), "node")
	if err != nil {
		return nil, err
	}
	if len(nodes) == 0 {
		return r.readSockets()
	}
	var all []NUMANode
	for _, id := range nodes {
		node, err := r.readNode(id)
		if err != nil {
			return nil, err
		}
		all = append(all, node)
	}
	return all, nil
}

// numbered returns the numbers of the entries of a directory whose names are prefix and a number, sorted. A directory that does not exist
// has none.
func numbered(dir, prefix string) ([]int, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var all []int
	for _, e := range entries {
		if text, ok := strings.CutPrefix(e.Name(), prefix); ok {
			if number, err := strconv.Atoi(text); err == nil {
				all = append(all, number)
			}
		}
	}
	slices.Sort(all)
	return all, nil
}

// core is a physical core while a NUMA node is read. Cores of different sockets may have the same ID.
type core struct{ id, socket int }

// readSockets reads the CPUs of a host without NUMA nodes.
func (r *reader) readSockets() ([]NUMANode, error) {
	ids, err := numbered(filepath.Join(r.dir, "cpu"), "cpu")
	if err != nil {
		return nil, err
	}
	bySocket := map[int][]int{}
	for _, id := range ids {
		socket, err := r.number(id, "topology/physical_package_id")
		if errors.Is(err, fs.ErrNotExist) {
			continue // offline
		}
		if err != nil {
			return nil, err
		}
		bySocket[socket] = append(bySocket[socket], id)
	}
	var nodes []NUMANode
	for socket, cpus := range bySocket {
		if err := r.readCPUs(socket, cpus); err != nil {
			return nil, err
		}
		nodes = append(nodes, NUMANode{ID: socket})
	}
	slices.SortFunc(nodes, func(a, b NUMANode) int { return a.ID - b.ID })
	return nodes, nil
}

// readNode reads a NUMA node and its CPUs.
func (r *reader) readNode(id int) (NUMANode, error) {
	node := NUMANode{ID: id}
	dir := filepath.Join(r.dir, "node", "node"+strconv.Itoa(id))
	cpus, err := numbered(dir, "cpu")
	if err != nil {
		return node, err
	}
	if err := r.readCPUs(id, cpus); err != nil {
		return node, err
	}
	if node.Memory, err = readMemory(filepath.Join(dir, "meminfo")); err != nil {
		return node, err
	}
	if node.HugePages, err = readHugePages(filepath.Join(dir, "hugepages")); err != nil {
		return node, err
	}
	text, err := os.ReadFile(filepath.Join(dir, "distance"))
	if err != nil {
		return node, nil // the kernel does not report them
	}
	node.Distances = []uint64{}
	for field := range strings.FieldsSeq(string(text)) {
		distance, err := strconv.ParseUint(field, 10, 64)
		if err != nil {
			return node, fmt.Errorf("parse distances of NUMA node %d: %w", id, err)
		}
		node.Distances = append(node.Distances, distance)
	}
	return node, nil
}

// readCPUs reads the online CPUs of one NUMA node.
func (r *reader) readCPUs(node int, ids []int) error {
	threads := map[core][]int{}
	var order []core
	for _, id := range ids {
		if r.online != nil && !r.online.Contains(id) {
			continue
		}
		number, err := r.number(id, "topology/core_id")
		var socket int
		if err == nil {
			socket, err = r.number(id, "topology/physical_package_id")
		}
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		c := core{number, socket}
		if threads[c] == nil {
			order = append(order, c)
		}
		threads[c] = append(threads[c], id)
	}
	caches := r.uncoreCaches(order, threads)
	for _, c := range order {
		cache, ok := caches[c]
		if !ok {
			cache = c.socket
		}
		for _, id := range threads[c] {
			r.cpus[id] = CPU{NUMANode: node, Socket: c.socket, Core: threads[c][0], UncoreCache: cache}
		}
	}
	return nil
}

// uncoreCaches returns the ID of the uncore cache of each core that has one: a cache of level 3 or higher that is not shared by the whole
// NUMA node. Some kernels, such as those of virtual machines, do not describe caches.
func (r *reader) uncoreCaches(cores []core, threads map[core][]int) map[core]int {
	found := map[core]int{}
	for _, c := range cores {
		cpu := threads[c][0]
		indexes, err := numbered(r.path(cpu, "cache"), "index")
		if err != nil || len(indexes) == 0 {
			return found
		}
		for _, index := range indexes {
			dir := "cache/index" + strconv.Itoa(index) + "/"
			id, err := r.number(cpu, dir+"id")
			if err != nil {
				return found
			}
			level, err := r.number(cpu, dir+"level")
			if err != nil {
				return found
			}
			sharedBy, err := r.countBits(cpu, dir+"shared_cpu_map")
			if err != nil {
				return found
			}
			if _, has := found[c]; !has && level > 2 && sharedBy != len(cores)*len(threads[c]) {
				found[c] = id
			}
		}
	}
	return found
}

func (r *reader) path(cpu int, file string) string {
	return filepath.Join(r.dir, "cpu", "cpu"+strconv.Itoa(cpu), file)
}

// number reads a file that contains a number.
func (r *reader) number(cpu int, file string) (int, error) {
	text, err := os.ReadFile(r.path(cpu, file))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(text)))
}

// countBits counts the bits of a file that contains a bitmask: groups of hexadecimal digits separated by commas.
func (r *reader) countBits(cpu int, file string) (int, error) {
	text, err := os.ReadFile(r.path(cpu, file))
	if err != nil {
		return 0, err
	}
	count := 0
	for group := range strings.SplitSeq(strings.TrimSpace(string(text)), ",") {
		mask, err := strconv.ParseUint(group, 16, 64)
		if err != nil {
			return 0, err
		}
		count += bits.OnesCount64(mask)
	}
	return count, nil
}

// readMemory reads the memory of a NUMA node; 0 if the kernel does not report it.
func readMemory(path string) (uint64, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, nil
	}
	for line := range strings.Lines(string(text)) {
		_, value, found := strings.Cut(line, "MemTotal:")
		if !found {
			continue
		}
		kilobytes, err := strconv.ParseUint(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("parse %s: %w", path, err)
		}
		return kilobytes * 1024, nil
	}
	return 0, fmt.Errorf("parse %s: MemTotal is missing", path)
}

// readHugePages reads the huge pages of a NUMA node. A kernel without huge pages has none.
func readHugePages(dir string) ([]HugePages, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, nil
	}
	var all []HugePages
	for _, e := range entries {
		text, ok := strings.CutPrefix(e.Name(), "hugepages-")
		if !ok {
			continue
		}
		size, err := strconv.ParseUint(strings.TrimSuffix(text, "kB"), 10, 64)
		if err != nil {
			return nil, fmt.Errorf("parse size of huge pages %q: %w", e.Name(), err)
		}
		content, err := os.ReadFile(filepath.Join(dir, e.Name(), "nr_hugepages"))
		if err != nil {
			return nil, err
		}
		count, err := strconv.ParseUint(strings.TrimSpace(string(content)), 10, 64)
		if err != nil {
			return nil, fmt.Errorf("parse number of huge pages %q: %w", e.Name(), err)
		}
		all = append(all, HugePages{PageSize: size * 1024, Count: count})
	}
	return all, nil
}
