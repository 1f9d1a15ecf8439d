// Package evict keeps a node from running out of memory, disk and processes: it reports pressure, frees what nobody needs, and
// when that is not enough, has pods go, one at a time, those first that use more than they asked for.
//
// What to do is decided by a pure function, Decide, from thresholds (threshold.go), from what is used, and from what was seen before.
// Guard calls it every ten seconds and has it carried out by an Actor, which is the kubelet.
package evict

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/client"
)

const (
	// lookEvery is how often the node is looked at.
	lookEvery = 10 * time.Second
	// cleanUpTimeout is how long an evicted pod may take to go before the next look.
	cleanUpTimeout = 30 * time.Second
	// diskEvery is how often pods' use of disks is counted when there is enough: it takes a walk over their files.
	diskEvery = time.Minute
)

// Actor carries out what is decided.
type Actor interface {
	// Pods are those that run on the node: neither ended nor without a container that was started.
	Pods() []*corev1.Pod
	// Evict ends a pod within its grace. Its status becomes Failed, with Reason, the eviction's message, and its condition if it has one.
	Evict(ctx context.Context, e Eviction) error
	// Gone reports that a pod has no container and no volume on the node any more.
	Gone(pod *corev1.Pod) bool
	// FreeContainers removes all containers that have ended, FreeImages all images nobody uses.
	FreeContainers(ctx context.Context) error
	FreeImages(ctx context.Context) error
}

// Source tells what is used by the node and by the given pods. disks names those whose use of disks is asked for; nil asks for that of all.
type Source interface {
	Usage(ctx context.Context, pods []*corev1.Pod, disks func(*corev1.Pod) bool) (Usage, error)
}

// Parts are what a guard is made of.
type Parts struct {
	Actor  Actor
	Source Source
	Events client.Recorder
	// NodeEvent tells of the node.
	NodeEvent func(eventType, reason, message string)
	// Changed is called when the node's pressures have changed.
	Changed func()
	Log     *slog.Logger
}

// Guard guards a node.
type Guard struct {
	Parts
	config Config

	mu         sync.Mutex
	conditions []corev1.NodeConditionType

	state     State
	disksSeen time.Time
}

// New makes a guard. It starts nothing.
func New(c Config, p Parts) *Guard {
	if c.Transition == 0 {
		c.Transition = 5 * time.Minute
	}
	if p.Log == nil {
		p.Log = slog.Default()
	}
	return &Guard{Parts: p, config: c}
}

// Conditions are the pressures the node is under.
func (g *Guard) Conditions() []corev1.NodeConditionType {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.conditions
}

// Run guards the node until ctx ends.
func (g *Guard) Run(ctx context.Context) error {
	for {
		evicted, err := g.look(ctx)
		if err != nil && ctx.Err() == nil {
			g.Log.Warn("node's resources are not known", "error", err)
		}
		if len(evicted) > 0 {
			g.waitUntilGone(ctx, evicted)
			if ctx.Err() == nil {
				continue // it may not have been enough
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(lookEvery):
		}
	}
}

// waitUntilGone gives evicted pods time to free what they hold, so that none goes in vain.
func (g *Guard) waitUntilGone(ctx context.Context, pods []*corev1.Pod) {
	ctx, cancel := context.WithTimeout(ctx, cleanUpTimeout)
	defer cancel()
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for _, pod := range pods {
		for !g.Actor.Gone(pod) {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
		}
	}
}

// look looks at the node once and does what is to be done. It returns the pods it has evicted.
func (g *Guard) look(ctx context.Context) ([]*corev1.Pod, error) {
	pods := g.Actor.Pods()
	usage, err := g.usage(ctx, pods)
	if err != nil {
		return nil, err
	}
	state, decision := Decide(g.config, g.state, usage, pods, time.Now())
	g.state = state
	g.report(decision.Conditions)
	if len(decision.OverLimit) > 0 {
		var evicted []*corev1.Pod
		for _, e := range decision.OverLimit {
			evicted = append(evicted, g.evict(ctx, e))
		}
		return evicted, nil
	}
	if decision.Starved == "" {
		return nil, nil
	}
	g.Log.Warn("node runs short", "resource", decision.Starved)
	if g.NodeEvent != nil {
		g.NodeEvent(corev1.EventTypeWarning, "EvictionThresholdMet", fmt.Sprintf("Attempting to reclaim %s", decision.Starved))
	}
	if decision.Containers || decision.Images {
		if g.free(ctx, decision) {
			return nil, nil
		}
	}
	if len(decision.Candidates) == 0 {
		return nil, errors.New("no pod can be evicted")
	}
	return []*corev1.Pod{g.evict(ctx, decision.Candidates[0])}, nil
}

// usage asks for what is used: by the node at every look, by pods only where it matters. That is for those whose disks have limits from time to
// time, and for all when the node runs short.
func (g *Guard) usage(ctx context.Context, pods []*corev1.Pod) (Usage, error) {
	due := time.Since(g.disksSeen) >= diskEvery
	var limited []*corev1.Pod
	if due {
		limited = slices.DeleteFunc(slices.Clone(pods), func(pod *corev1.Pod) bool { return !HasDiskLimits(pod) })
	}
	usage, err := g.Source.Usage(ctx, limited, nil)
	if err != nil {
		return usage, err
	}
	met := append(metBy(g.config.Thresholds, usage, false), metBy(g.state.Met, usage, true)...)
	if slices.ContainsFunc(met, func(t Threshold) bool { return t.Signal.condition() == corev1.NodeDiskPressure }) {
		return g.Source.Usage(ctx, pods, nil)
	}
	if due {
		g.disksSeen = time.Now()
	}
	if len(met) > 0 {
		return g.Source.Usage(ctx, pods, func(pod *corev1.Pod) bool { return due && HasDiskLimits(pod) })
	}
	return usage, nil
}

// report takes in the pressures.
func (g *Guard) report(conditions []corev1.NodeConditionType) {
	g.mu.Lock()
	changed := fmt.Sprint(g.conditions) != fmt.Sprint(conditions)
	g.conditions = conditions
	g.mu.Unlock()
	if changed && g.Changed != nil {
		g.Changed()
	}
}

// free frees what nobody needs and reports whether that was enough.
func (g *Guard) free(ctx context.Context, d Decision) bool {
	if d.Containers {
		if err := g.Actor.FreeContainers(ctx); err != nil {
			g.Log.Warn("containers that have ended are not removed", "error", err)
		}
	}
	if d.Images {
		if err := g.Actor.FreeImages(ctx); err != nil {
			g.Log.Warn("images nobody uses are not removed", "error", err)
		}
	}
	usage, err := g.Source.Usage(ctx, nil, nil)
	return err == nil && Relieved(g.config, usage)
}

func (g *Guard) evict(ctx context.Context, e Eviction) *corev1.Pod {
	g.Log.Warn("pod is evicted", "namespace", e.Pod.Namespace, "pod", e.Pod.Name, "why", e.Message)
	g.Events.Event(e.Pod, corev1.EventTypeWarning, Reason, e.Message)
	if err := g.Actor.Evict(ctx, e); err != nil && ctx.Err() == nil {
		g.Log.Warn("pod is not evicted", "namespace", e.Pod.Namespace, "pod", e.Pod.Name, "error", err)
	}
	return e.Pod
}

// Observe fills in the signals of the machine: disks of two directories, and processes. Memory is the caller's to fill in.
func Observe(nodeDir, imageDir string) (Usage, error) {
	u := Usage{Signals: map[Signal]Observation{}, Pods: map[types.UID]PodUsage{}}
	var devices [2]uint64
	for i, disk := range []struct {
		dir           string
		space, inodes Signal
	}{{nodeDir, NodeFsAvailable, NodeFsInodesFree}, {imageDir, ImageFsAvailable, ImageFsInodesFree}} {
		var s syscall.Statfs_t
		if err := syscall.Statfs(disk.dir, &s); err != nil {
			return u, fmt.Errorf("look at the disk of %s: %w", disk.dir, err)
		}
		u.Signals[disk.space] = Observation{Available: int64(s.Bavail) * s.Bsize, Capacity: int64(s.Blocks) * s.Bsize}
		// Some file systems have as many inodes as they need, and say that there are none.
		if s.Files > 0 {
			u.Signals[disk.inodes] = Observation{Available: int64(s.Ffree), Capacity: int64(s.Files)}
		}
		var info syscall.Stat_t
		if err := syscall.Stat(disk.dir, &info); err != nil {
			return u, fmt.Errorf("look at the disk of %s: %w", disk.dir, err)
		}
		devices[i] = info.Dev
	}
	u.SeparateImages = devices[0] != devices[1]
	processes, most, err := Processes()
	if err != nil {
		return u, err
	}
	u.Signals[PIDAvailable] = Observation{Available: most - processes, Capacity: most}
	return u, nil
}

// Processes are how many the machine has, threads counted, and how many it can have.
func Processes() (now, most int64, err error) {
	load, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0, 0, fmt.Errorf("count processes: %w", err)
	}
	fields := strings.Fields(string(load))
	if len(fields) < 4 {
		return 0, 0, errors.New("count processes: unknown format")
	}
	_, all, _ := strings.Cut(fields[3], "/")
	if now, err = strconv.ParseInt(all, 10, 64); err != nil {
		return 0, 0, fmt.Errorf("count processes: %w", err)
	}
	for _, name := range []string{"pid_max", "threads-max"} {
		text, err := os.ReadFile("/proc/sys/kernel/" + name)
		if err != nil {
			return 0, 0, fmt.Errorf("count processes: %w", err)
		}
		limit, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		if err != nil {
			return 0, 0, fmt.Errorf("count processes: %w", err)
		}
		if most == 0 || limit < most {
			most = limit
		}
	}
	return now, most, nil
}

// DiskOf counts what lies below a directory, each file once, as the disk counts it. Other file systems mounted there are not part of it.
func DiskOf(dir string) (sum Disk) {
	var root syscall.Stat_t
	if syscall.Lstat(dir, &root) != nil {
		return Disk{}
	}
	counted := map[uint64]bool{}
	// What vanishes while it is counted is not counted.
	_ = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return nil
		}
		var info syscall.Stat_t
		if syscall.Lstat(path, &info) != nil {
			return nil
		}
		if info.Dev != root.Dev {
			if entry.IsDir() {
				return filepath.SkipDir
			}
			return nil
		}
		if info.Nlink > 1 && !entry.IsDir() {
			if counted[info.Ino] {
				return nil
			}
			counted[info.Ino] = true
		}
		sum = sum.plus(Disk{Bytes: info.Blocks * 512, Inodes: 1})
		return nil
	})
	return sum
}
