package chaos

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"skiff/internal/network/nft"
	"skiff/test/cluster"
	"skiff/test/namespaces"
	"skiff/test/netns"
)

// The classes of faults.
const (
	crash     = "crashes"
	partition = "partitions"
	pause     = "pauses"
	disk      = "disks"

	leaderKilled = "leader killed"
)

// fault breaks something and repairs it.
type fault struct {
	class, name string
	// run returns errors.ErrUnsupported if the fault cannot be made on this host. Such a fault does not count.
	run func(h *harness) error
}

// faults are all faults. The wall clock of a process cannot be set without that of the host: a process that was paused has experienced a jump of all its
// clocks.
var faults = []fault{
	{crash, "server killed", func(h *harness) error { return h.killServer((*harness).anyServer) }},
	{crash, leaderKilled, func(h *harness) error { return h.killServer((*harness).leader) }},
	{crash, "agent killed", (*harness).killAgent},
	{crash, "containerd killed", (*harness).killContainerd},
	{crash, "power lost", (*harness).losePower},
	{pause, "server paused", func(h *harness) error { return h.pauseServer((*harness).anyServer) }},
	{pause, "leader paused", func(h *harness) error { return h.pauseServer((*harness).leader) }},
	{partition, "server partitioned", func(h *harness) error { return h.partitionServer(bothWays, (*harness).anyServer) }},
	{partition, "leader partitioned", func(h *harness) error { return h.partitionServer(bothWays, (*harness).leader) }},
	{partition, "server cannot send", func(h *harness) error { return h.partitionServer(outgoing, (*harness).anyServer) }},
	{partition, "server cannot receive", func(h *harness) error { return h.partitionServer(incoming, (*harness).anyServer) }},
	{partition, "leader cannot send", func(h *harness) error { return h.partitionServer(outgoing, (*harness).leader) }},
	{partition, "leader cannot receive", func(h *harness) error { return h.partitionServer(incoming, (*harness).leader) }},
	{partition, "agent partitioned", func(h *harness) error { return h.partitionAgent(bothWays) }},
	{partition, "agent cannot send", func(h *harness) error { return h.partitionAgent(outgoing) }},
	{partition, "agent cannot receive", func(h *harness) error { return h.partitionAgent(incoming) }},
	{disk, "disk full", (*harness).fillDisk},
	{disk, "disk slow", (*harness).slowDisk},
}

// killServer kills a server and starts it again after a while.
func (h *harness) killServer(choose func(*harness) (lostServer, error)) error {
	lost, err := choose(h)
	if err != nil {
		return err
	}
	lost.Server[0].Kill()
	if err := h.awaitWrites(lost); err != nil {
		return err
	}
	h.hold()
	return h.fleet.StartServer(lost.number)
}

// losePower ends a server with its host. What was not synced is gone.
func (h *harness) losePower() error {
	lost, err := h.anyServer()
	if err == nil {
		err = lost.LosePower()
	}
	if err == nil {
		err = h.awaitWrites(lost)
	}
	if err != nil {
		return err
	}
	h.hold()
	return h.fleet.StartServer(lost.number)
}

// pauseServer stops a server, which does not notice that time passes.
func (h *harness) pauseServer(choose func(*harness) (lostServer, error)) error {
	lost, err := choose(h)
	if err != nil {
		return err
	}
	if err := lost.Server[0].Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	err = h.awaitWrites(lost)
	if err == nil {
		h.hold()
	}
	return errors.Join(err, lost.Server[0].Signal(syscall.SIGCONT))
}

// direction is which packets of a host are dropped.
type direction struct{ in, out bool }

var bothWays, incoming, outgoing = direction{in: true, out: true}, direction{in: true}, direction{out: true}

// partitionServer separates a server from the others, and half of the times from everybody.
func (h *harness) partitionServer(d direction, choose func(*harness) (lostServer, error)) error {
	lost, err := choose(h)
	if err != nil {
		return err
	}
	var others []netip.Prefix
	for i, other := range h.fleet.Servers {
		if i != lost.number {
			others = append(others, netip.MustParsePrefix(other.Host.Address+"/32"))
		}
	}
	if h.random.IntN(2) == 0 {
		others = everybody
	}
	return h.separate(lost.Host, d, others, func() error { return h.awaitWrites(lost) })
}

// partitionAgent separates an agent from everybody. If that is in both directions it lasts until its pods are evicted.
func (h *harness) partitionAgent(d direction) error {
	host := h.fleet.Agents[h.random.IntN(len(h.fleet.Agents))].Host
	return h.separate(host, d, everybody, func() error {
		if d == bothWays {
			time.Sleep(evictionTime)
		}
		return nil
	})
}

// everybody is the network of all hosts.
var everybody = []netip.Prefix{netip.MustParsePrefix("10.88.0.0/16")}

// evictionTime is after how long the pods of a node that is not reachable are evicted: the grace period of nodes and the toleration of the pods.
const evictionTime = 8 * time.Second

// dropTable is the nftables table that drops packets.
const dropTable = "chaos"

// separate drops packets between a host and others for a while.
func (h *harness) separate(host *namespaces.Host, d direction, from []netip.Prefix, during func() error) (err error) {
	var in, out []nft.Rule
	for _, p := range from {
		if d.in {
			in = append(in, nft.NewRule(nft.Source(p), nft.Drop()))
		}
		if d.out {
			out = append(out, nft.NewRule(nft.Destination(p), nft.Drop()))
		}
	}
	// Packets to the host itself stay.
	self := netip.MustParsePrefix(host.Address + "/32")
	in = append([]nft.Rule{nft.NewRule(nft.Source(self), nft.Accept())}, in...)
	out = append([]nft.Rule{nft.NewRule(nft.Destination(self), nft.Accept())}, out...)
	const first = -400
	network := netns.At(host.Network())
	err = network.Do(func() error {
		model := nft.NewModel(dropTable)
		model.Replace(dropTable, nft.Part{Chains: []nft.Chain{
			{Name: "in", Hook: &nft.Hook{Type: "filter", Point: "input", Priority: first}, Rules: in},
			{Name: "out", Hook: &nft.Hook{Type: "filter", Point: "output", Priority: first}, Rules: out},
		}})
		writer := nft.NewWriter(model, slog.New(slog.DiscardHandler))
		defer writer.Close()
		return writer.Replace()
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, network.Do(func() error { return nft.Remove(dropTable) })) }()
	if err := during(); err != nil {
		return err
	}
	h.hold()
	return nil
}

// killAgent kills an agent and starts it again. Its containers go on running.
func (h *harness) killAgent() error {
	j := h.random.IntN(len(h.fleet.Agents))
	h.fleet.Agents[j].Process.Kill()
	h.hold()
	return h.fleet.StartAgent(j)
}

// killContainerd kills the container runtime of an agent, which starts it again.
func (h *harness) killContainerd() error {
	agent := h.fleet.Agents[h.random.IntN(len(h.fleet.Agents))]
	killed, err := awaitContainerd(agent, 0) // the agent may have been started just now
	if err != nil {
		return err
	}
	if err := syscall.Kill(killed, syscall.SIGKILL); err != nil {
		return err
	}
	_, err = awaitContainerd(agent, killed)
	return err
}

// awaitContainerd waits until the containerd of an agent runs that is not a past one.
func awaitContainerd(agent *cluster.FleetAgent, past int) (int, error) {
	for deadline := time.Now().Add(recoveryTimeout); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if pid, err := findContainerd(agent.Dir); err == nil && pid != past {
			return pid, nil
		}
	}
	return 0, fmt.Errorf("containerd was not started; the log of the agent ends:\n%s", agent.Process.Log(20))
}

// findContainerd finds the containerd whose files are below a directory.
func findContainerd(dir string) (int, error) {
	all, err := filepath.Glob("/proc/[0-9]*/comm")
	if err != nil {
		return 0, err
	}
	for _, file := range all {
		name, err := os.ReadFile(file)
		if err != nil || strings.TrimSpace(string(name)) != "containerd" {
			continue
		}
		arguments, err := os.ReadFile(filepath.Join(filepath.Dir(file), "cmdline"))
		if err == nil && strings.Contains(string(arguments), dir+"/") {
			return strconv.Atoi(filepath.Base(filepath.Dir(file)))
		}
	}
	return 0, fmt.Errorf("no containerd in %s: %w", dir, fs.ErrNotExist)
}

// fillDisk fills the disk of a server to the last byte for a while. The server goes on with the space that it has allocated; if it ends when that is used up, it is
// started again.
func (h *harness) fillDisk() error {
	lost, err := h.anyServer()
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(lost.Path("."))
	if err != nil {
		return err
	}
	defer root.Close()
	err = fill(root, "ballast")
	if err == nil {
		h.hold()
	}
	if err := errors.Join(err, root.Remove("ballast")); err != nil {
		return err
	}
	// It may be about to end because of what it has met before.
	ended, err := h.awaitReadyOrEnd(lost)
	if err != nil || !ended {
		return err
	}
	h.counts["server ended on a full disk"]++
	return h.fleet.StartServer(lost.number)
}

// fill makes a file that takes all the space that is left.
func fill(root *os.Root, name string) error {
	file, err := root.Create(name)
	if err != nil {
		return err
	}
	defer file.Close()
	var free unix.Statfs_t
	if err := unix.Fstatfs(int(file.Fd()), &free); err != nil {
		return err
	}
	size := int64(free.Bfree) * free.Bsize
	if err := unix.Fallocate(int(file.Fd()), 0, 0, size); err != nil && !errors.Is(err, unix.ENOSPC) {
		return err
	}
	for filler := make([]byte, free.Bsize); err == nil; size += free.Bsize {
		_, err = file.WriteAt(filler, size)
	}
	if !errors.Is(err, unix.ENOSPC) {
		return err
	}
	return nil
}

// awaitReadyOrEnd waits until a server is ready or has ended, and reports whether it has ended.
func (h *harness) awaitReadyOrEnd(server lostServer) (ended bool, err error) {
	ctx, cancel := context.WithTimeout(h.t.Context(), recoveryTimeout)
	defer cancel()
	for {
		if server.Server[0].Exited() {
			return true, nil
		}
		if _, err = h.clients[server.number].CoreV1().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx); err == nil {
			return false, nil
		}
		if ctx.Err() != nil {
			return false, fmt.Errorf("server %d neither became ready nor ended: %w", server.number, err)
		}
		time.Sleep(retryPause)
	}
}

// slowBytes is how many bytes a second a slow disk writes.
const slowBytes = 64 << 10

// slowDisk slows the writes of a server to its disk for a while.
func (h *harness) slowDisk() error {
	server, err := h.anyServer()
	if err != nil {
		return err
	}
	var stat unix.Stat_t
	if err := unix.Stat(server.Path("."), &stat); err != nil {
		return err
	}
	device := fmt.Sprintf("%d:%d", unix.Major(stat.Dev), unix.Minor(stat.Dev))
	group, limit, file := "/sys/fs/cgroup/blkio", fmt.Sprintf("%s %d", device, slowBytes), "blkio.throttle.write_bps_device"
	none, controller := device+" 0", "blkio"
	if _, err := os.Stat(filepath.Join(group, file)); err != nil {
		controller = "" // version 2
		group, limit, file, none = "/sys/fs/cgroup", fmt.Sprintf("%s wbps=%d", device, slowBytes), "io.max", device+" wbps=max"
	}
	slow := filepath.Join(group, "slow-"+server.Host.Name)
	if err := os.MkdirAll(slow, 0o755); err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(slow, file)); err != nil {
		return fmt.Errorf("%w: the controller of disks is not enabled in %s", errors.ErrUnsupported, group)
	}
	pid := server.Server[0].PID()
	former, err := groupOf(pid, controller)
	if err != nil {
		return err
	}
	if err := errors.Join(move(pid, slow), os.WriteFile(filepath.Join(slow, file), []byte(limit), 0)); err != nil {
		return err
	}
	h.hold()
	return errors.Join(os.WriteFile(filepath.Join(slow, file), []byte(none), 0), move(pid, filepath.Join(group, former)))
}

// groupOf returns the cgroup of a process in the hierarchy of a controller; "" is that of version 2.
func groupOf(pid int, controller string) (string, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(data)) {
		_, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		controllers, group, _ := strings.Cut(rest, ":")
		if slices.Contains(strings.Split(controllers, ","), controller) {
			return group, nil
		}
	}
	return "", fmt.Errorf("process %d has no cgroup of controller %q", pid, controller)
}

// move moves a process to a cgroup.
func move(pid int, group string) error {
	return os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0)
}
