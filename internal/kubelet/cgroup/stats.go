package cgroup

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Stats is the resource usage of a cgroup. Times are in nanoseconds, amounts in bytes; statistics that the host does not have are zero.
type Stats struct {
	Time   time.Time
	CPU    CPUStats
	Memory MemoryStats
	// Processes is the number of tasks, and ProcessLimit the maximum, 0 for no limit.
	Processes, ProcessLimit uint64
	Pressures               Pressures
}

// CPUStats are totals since the cgroup was created.
type CPUStats struct {
	Usage, User, System uint64
	// Periods is the number of CFS periods, Throttled of them with the quota exhausted, for ThrottledTime in total.
	Periods, Throttled, ThrottledTime uint64
}

// MemoryStats includes the children of the cgroup.
type MemoryStats struct {
	// WorkingSet is Usage without inactive file pages. Limit is 0 if there is none.
	Usage, WorkingSet, RSS, Cache, MappedFile, Swap, Limit, MaxUsage uint64
	PageFaults, MajorPageFaults                                      uint64
	// LimitHits is how often the limit was reached, Kills the number of OOM kills.
	LimitHits, Kills uint64
}

// PodStats reads the usage of a pod's cgroup. The error is fs.ErrNotExist if there is none.
func (g *Groups) PodStats(uid types.UID) (Stats, error) {
	for _, class := range qosCgroups {
		group := filepath.Join(class, podPrefix+string(uid))
		if g.exists(group) {
			return g.stats(g.path(group)), nil
		}
	}
	return Stats{}, fmt.Errorf("cgroup of pod %s: %w", uid, fs.ErrNotExist)
}

// ContainerStats reads the usage of a container's cgroup, which the runtime created below its pod's. id is the container's ID.
func (g *Groups) ContainerStats(uid types.UID, id string) (Stats, error) {
	for _, class := range qosCgroups {
		pod := filepath.Join(class, podPrefix+string(uid))
		if !g.exists(pod) {
			continue
		}
		for _, name := range containerNames(id) {
			if path := filepath.Join(g.path(pod), name); g.existsPath(path) {
				return g.stats(path), nil
			}
		}
	}
	return Stats{}, fmt.Errorf("cgroup of container %s: %w", id, fs.ErrNotExist)
}

// PodsStats reads the usage of all pods together.
func (g *Groups) PodsStats() (Stats, error) {
	if !g.exists(podsCgroup) {
		return Stats{}, fmt.Errorf("cgroup of all pods: %w", fs.ErrNotExist)
	}
	return g.stats(g.path(podsCgroup)), nil
}

// NodeStats reads the usage of the whole node.
func (g *Groups) NodeStats() (Stats, error) {
	s := g.stats("/")
	info, err := memoryInfo()
	if err != nil {
		return s, err
	}
	// The root cgroup of version 2 has no memory statistics.
	if s.Memory.Usage == 0 {
		s.Memory.Usage = info["MemTotal"] - info["MemFree"]
		s.Memory.RSS = info["AnonPages"]
		s.Memory.WorkingSet = subtract(s.Memory.Usage, info["Inactive(file)"])
	}
	s.Memory.Limit = info["MemTotal"]
	if s.CPU.Usage == 0 {
		s.CPU.Usage, err = nodeCPU()
	}
	return s, err
}

// stats reads the usage of a cgroup at a path below the mount points.
func (g *Groups) stats(path string) Stats {
	s := Stats{Time: time.Now()}
	file := func(controller, name string) string { return filepath.Join(g.hierarchies[controller], path, name) }
	if g.version == 2 {
		g.readV2(&s, file)
		dir := filepath.Join(g.unified(), path)
		s.Pressures.CPU, s.Pressures.Memory = readPressure(filepath.Join(dir, "cpu.pressure")), readPressure(filepath.Join(dir, "memory.pressure"))
		s.Pressures.IO = readPressure(filepath.Join(dir, "io.pressure"))
	} else {
		g.readV1(&s, file)
	}
	if _, ok := g.hierarchies["pids"]; ok {
		s.Processes = readNumber(file("pids", "pids.current"))
		s.ProcessLimit = readNumber(file("pids", "pids.max"))
	}
	return s
}

func (g *Groups) readV1(s *Stats, file func(controller, name string) string) {
	if _, ok := g.hierarchies["cpuacct"]; ok {
		s.CPU.Usage = readNumber(file("cpuacct", "cpuacct.usage"))
		s.CPU.User = readNumber(file("cpuacct", "cpuacct.usage_user"))
		s.CPU.System = readNumber(file("cpuacct", "cpuacct.usage_sys"))
	}
	if _, ok := g.hierarchies["cpu"]; ok {
		cpu := readTable(file("cpu", "cpu.stat"))
		s.CPU.Periods, s.CPU.Throttled, s.CPU.ThrottledTime = cpu["nr_periods"], cpu["nr_throttled"], cpu["throttled_time"]
	}
	if _, ok := g.hierarchies["memory"]; !ok {
		return
	}
	table, m := readTable(file("memory", "memory.stat")), &s.Memory
	m.Usage, m.MaxUsage = readNumber(file("memory", "memory.usage_in_bytes")), readNumber(file("memory", "memory.max_usage_in_bytes"))
	m.Limit, m.LimitHits = readNumber(file("memory", "memory.limit_in_bytes")), readNumber(file("memory", "memory.failcnt"))
	m.WorkingSet = subtract(m.Usage, table["total_inactive_file"])
	m.RSS, m.Cache, m.MappedFile, m.Swap = table["total_rss"], table["total_cache"], table["total_mapped_file"], table["total_swap"]
	m.PageFaults, m.MajorPageFaults = table["total_pgfault"], table["total_pgmajfault"]
	m.Kills = readTable(file("memory", "memory.oom_control"))["oom_kill"]
}

func (g *Groups) readV2(s *Stats, file func(controller, name string) string) {
	if _, ok := g.hierarchies["cpu"]; ok {
		cpu := readTable(file("cpu", "cpu.stat"))
		s.CPU = CPUStats{
			Usage: cpu["usage_usec"] * 1000, User: cpu["user_usec"] * 1000, System: cpu["system_usec"] * 1000,
			Periods: cpu["nr_periods"], Throttled: cpu["nr_throttled"], ThrottledTime: cpu["throttled_usec"] * 1000,
		}
	}
	if _, ok := g.hierarchies["memory"]; !ok {
		return
	}
	table, m := readTable(file("memory", "memory.stat")), &s.Memory
	m.Usage, m.MaxUsage = readNumber(file("memory", "memory.current")), readNumber(file("memory", "memory.peak"))
	m.Limit, m.Swap = readNumber(file("memory", "memory.max")), readNumber(file("memory", "memory.swap.current"))
	m.WorkingSet = subtract(m.Usage, table["inactive_file"])
	m.RSS, m.Cache, m.MappedFile = table["anon"], table["file"], table["file_mapped"]
	m.PageFaults, m.MajorPageFaults = table["pgfault"], table["pgmajfault"]
	events := readTable(file("memory", "memory.events"))
	m.LimitHits, m.Kills = events["max"], events["oom_kill"]
}

// subtract returns a-b, but at least 0.
func subtract(a, b uint64) uint64 {
	if b > a {
		return 0
	}
	return a - b
}

// readNumber reads a file with a number. It returns 0 for no limit and for a missing file.
func readNumber(path string) uint64 {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	if err != nil || n >= noLimit {
		return 0
	}
	return n
}

// readTable reads a file with a name and a number in each line.
func readTable(path string) map[string]uint64 {
	table := map[string]uint64{}
	text, err := os.ReadFile(path)
	if err != nil {
		return table
	}
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), " ")
		if n, err := strconv.ParseUint(value, 10, 64); err == nil {
			table[name] = n
		}
	}
	return table
}

// memoryInfo reads /proc/meminfo, in bytes.
func memoryInfo() (map[string]uint64, error) {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return nil, fmt.Errorf("read node memory: %w", err)
	}
	info := map[string]uint64{}
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), ":")
		number, _, _ := strings.Cut(strings.TrimSpace(value), " ")
		if n, err := strconv.ParseUint(number, 10, 64); err == nil {
			info[name] = n * 1024
		}
	}
	return info, nil
}

// nodeCPU is the CPU time of all CPUs in nanoseconds, without idle and iowait.
func nodeCPU() (uint64, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, fmt.Errorf("read node CPU time: %w", err)
	}
	line, _, _ := strings.Cut(string(text), "\n")
	fields := strings.Fields(line)
	if len(fields) < 9 || fields[0] != "cpu" {
		return 0, errors.New("read node CPU time: unknown format")
	}
	var ticks uint64
	for i, field := range fields[1:9] {
		if i == 3 || i == 4 {
			continue // idle and iowait
		}
		n, err := strconv.ParseUint(field, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read node CPU time: %w", err)
		}
		ticks += n
	}
	const perTick = 10_000_000 // the kernel reports hundredths of a second
	return ticks * perTick, nil
}
