// Package evict keeps a node from running out of memory, disk space, inodes and PIDs. It reports pressure conditions,
// deletes unused containers and images, and when that is not enough evicts pods, one at a time, starting with those that
// exceed their requests.
//
// A pure function, Decide, decides what to do from the thresholds (threshold.go), the current usage and the previous
// state. Evictor calls it every ten seconds and carries the decision out through an Actor, which the kubelet implements.
package evict

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/client"
	"skiff/internal/kubelet/diskusage"
)

const (
	// checkInterval is how often thresholds are checked.
	checkInterval = 10 * time.Second
	// podRemovalTimeout is how long the next check waits for evicted pods to be removed.
	podRemovalTimeout = 30 * time.Second
	// diskUsageInterval is how often the disk usage of pods is measured while no threshold is met. Measuring walks their
	// files.
	diskUsageInterval = time.Minute
	// diskUsageTimeout bounds the walk of one volume or log directory: memory is not checked meanwhile.
	diskUsageTimeout = 10 * time.Second
	// prepareInterval is how soon a source that is not ready is prepared again.
	prepareInterval = time.Second
)

// Actor carries out decisions.
type Actor interface {
	// Pods returns the pods that are running on the node.
	Pods() []*corev1.Pod
	// Evict terminates a pod within its grace period. Its status becomes Failed with Reason, the eviction's message, and
	// its condition if it has one.
	Evict(ctx context.Context, e Eviction) error
	// Removed reports whether a pod has no containers and no volumes left on the node.
	Removed(pod *corev1.Pod) bool
	// DeleteUnusedContainers removes all exited containers, DeleteUnusedImages all images no container uses.
	DeleteUnusedContainers(ctx context.Context) error
	DeleteUnusedImages(ctx context.Context) error
}

// Source measures the usage of the node and of the given pods. Disk usage is only measured for pods that disks accepts;
// nil accepts all.
type Source interface {
	// Prepare makes the source ready. It is called before Usage, until it returns no error.
	Prepare(ctx context.Context) error
	Usage(ctx context.Context, pods []*corev1.Pod, disks func(*corev1.Pod) bool) (Usage, error)
}

// Dependencies are what an Evictor needs.
type Dependencies struct {
	Actor  Actor
	Source Source
	Events client.EventRecorder
	// NodeEvent records an event about the node.
	NodeEvent func(eventType, reason, message string)
	// Changed is called when the pressure conditions have changed.
	Changed func()
	Log     *slog.Logger
}

// Evictor evicts pods from a node that runs out of resources.
type Evictor struct {
	Dependencies
	config Config

	mu         sync.Mutex
	conditions []corev1.NodeConditionType

	state         State
	diskUsageTime time.Time
}

// New returns an Evictor. It starts nothing.
func New(c Config, p Dependencies) *Evictor {
	if c.PressureTransitionPeriod == 0 {
		c.PressureTransitionPeriod = 5 * time.Minute
	}
	if p.Log == nil {
		p.Log = slog.Default()
	}
	return &Evictor{Dependencies: p, config: c}
}

// Conditions returns the current pressure conditions.
func (e *Evictor) Conditions() []corev1.NodeConditionType {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.conditions
}

// Run checks the thresholds until ctx is done. It begins when the source is ready.
func (e *Evictor) Run(ctx context.Context) error {
	for e.Source.Prepare(ctx) != nil {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(prepareInterval):
		}
	}
	for {
		evicted, err := e.check(ctx)
		if err != nil && ctx.Err() == nil {
			e.Log.Warn("failed to check eviction thresholds", "error", err)
		}
		if len(evicted) > 0 {
			e.waitForRemoval(ctx, evicted)
			if ctx.Err() == nil {
				continue // check again at once: it may not have been enough
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(checkInterval):
		}
	}
}

// waitForRemoval gives evicted pods time to release their resources, so that the next check does not evict more than
// needed.
func (e *Evictor) waitForRemoval(ctx context.Context, pods []*corev1.Pod) {
	ctx, cancel := context.WithTimeout(ctx, podRemovalTimeout)
	defer cancel()
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for _, pod := range pods {
		for !e.Actor.Removed(pod) {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
		}
	}
}

// check checks the thresholds once and carries out the decision. It returns the pods it evicted.
func (e *Evictor) check(ctx context.Context) ([]*corev1.Pod, error) {
	pods := e.Actor.Pods()
	usage, err := e.usage(ctx, pods)
	if err != nil {
		return nil, err
	}
	state, decision := Decide(e.config, e.state, usage, pods, time.Now())
	e.state = state
	e.report(decision.Conditions)
	if len(decision.OverLimit) > 0 {
		var evicted []*corev1.Pod
		for _, eviction := range decision.OverLimit {
			evicted = append(evicted, e.evict(ctx, eviction))
		}
		return evicted, nil
	}
	if decision.StarvedResource == "" {
		return nil, nil
	}
	e.Log.Warn("eviction threshold met", "resource", decision.StarvedResource)
	if e.NodeEvent != nil {
		e.NodeEvent(corev1.EventTypeWarning, "EvictionThresholdMet", fmt.Sprintf("Attempting to reclaim %s", decision.StarvedResource))
	}
	if decision.Containers || decision.Images {
		if e.free(ctx, decision) {
			return nil, nil
		}
	}
	if len(decision.Candidates) == 0 {
		return nil, errors.New("no pod can be evicted")
	}
	return []*corev1.Pod{e.evict(ctx, decision.Candidates[0])}, nil
}

// usage measures the node's usage. Pods are only measured where needed: those with disk limits every diskUsageInterval,
// and all of them when a threshold is met.
func (e *Evictor) usage(ctx context.Context, pods []*corev1.Pod) (Usage, error) {
	measureDisks := time.Since(e.diskUsageTime) >= diskUsageInterval
	var limited []*corev1.Pod
	if measureDisks {
		limited = slices.DeleteFunc(slices.Clone(pods), func(pod *corev1.Pod) bool { return !HasDiskLimits(pod) })
	}
	usage, err := e.Source.Usage(ctx, limited, nil)
	if err != nil {
		return usage, err
	}
	met := append(thresholdsMet(e.config.Thresholds, usage, false), thresholdsMet(e.state.Met, usage, true)...)
	if slices.ContainsFunc(met, func(t Threshold) bool { return t.Signal.condition() == corev1.NodeDiskPressure }) {
		return e.Source.Usage(ctx, pods, nil)
	}
	if measureDisks {
		e.diskUsageTime = time.Now()
	}
	if len(met) > 0 {
		return e.Source.Usage(ctx, pods, func(pod *corev1.Pod) bool { return measureDisks && HasDiskLimits(pod) })
	}
	return usage, nil
}

// report publishes the pressure conditions.
func (e *Evictor) report(conditions []corev1.NodeConditionType) {
	e.mu.Lock()
	changed := fmt.Sprint(e.conditions) != fmt.Sprint(conditions)
	e.conditions = conditions
	e.mu.Unlock()
	if changed && e.Changed != nil {
		e.Changed()
	}
}

// free deletes unused containers and images and reports whether that was enough.
func (e *Evictor) free(ctx context.Context, d Decision) bool {
	if d.Containers {
		if err := e.Actor.DeleteUnusedContainers(ctx); err != nil {
			e.Log.Warn("failed to remove exited containers", "error", err)
		}
	}
	if d.Images {
		if err := e.Actor.DeleteUnusedImages(ctx); err != nil {
			e.Log.Warn("failed to remove unused images", "error", err)
		}
	}
	usage, err := e.Source.Usage(ctx, nil, nil)
	return err == nil && relieved(e.config, usage)
}

func (e *Evictor) evict(ctx context.Context, eviction Eviction) *corev1.Pod {
	pod := eviction.Pod
	e.Log.Warn("evicting pod", "namespace", pod.Namespace, "pod", pod.Name, "message", eviction.Message)
	e.Events.Event(pod, corev1.EventTypeWarning, Reason, eviction.Message)
	if err := e.Actor.Evict(ctx, eviction); err != nil && ctx.Err() == nil {
		e.Log.Warn("failed to evict pod", "namespace", pod.Namespace, "pod", pod.Name, "error", err)
	}
	return pod
}

// Observe returns the signals of the node except memory: the file systems of two directories, and PIDs.
func Observe(nodeDir, imageDir string) (Usage, error) {
	u := Usage{Signals: map[Signal]Observation{}, Pods: map[types.UID]PodUsage{}}
	var devices [2]uint64
	for i, disk := range []struct {
		dir           string
		space, inodes Signal
	}{{nodeDir, NodeFsAvailable, NodeFsInodesFree}, {imageDir, ImageFsAvailable, ImageFsInodesFree}} {
		var s syscall.Statfs_t
		if err := syscall.Statfs(disk.dir, &s); err != nil {
			return u, fmt.Errorf("stat file system of %s: %w", disk.dir, err)
		}
		u.Signals[disk.space] = Observation{Available: int64(s.Bavail) * s.Bsize, Capacity: int64(s.Blocks) * s.Bsize}
		// Some file systems allocate inodes dynamically and report a total of zero.
		if s.Files > 0 {
			u.Signals[disk.inodes] = Observation{Available: int64(s.Ffree), Capacity: int64(s.Files)}
		}
		var info syscall.Stat_t
		if err := syscall.Stat(disk.dir, &info); err != nil {
			return u, fmt.Errorf("stat file system of %s: %w", disk.dir, err)
		}
		devices[i] = info.Dev
	}
	u.DedicatedImageFs = devices[0] != devices[1]
	processes, limit, err := ProcessCount()
	if err != nil {
		return u, err
	}
	u.Signals[PIDAvailable] = Observation{Available: limit - processes, Capacity: limit}
	return u, nil
}

// ProcessCount returns the number of processes and threads on the node and the kernel's limit.
func ProcessCount() (count, limit int64, err error) {
	load, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0, 0, fmt.Errorf("count processes: %w", err)
	}
	fields := strings.Fields(string(load))
	if len(fields) < 4 {
		return 0, 0, errors.New("count processes: unknown format")
	}
	_, all, _ := strings.Cut(fields[3], "/")
	if count, err = strconv.ParseInt(all, 10, 64); err != nil {
		return 0, 0, fmt.Errorf("count processes: %w", err)
	}
	for _, name := range []string{"pid_max", "threads-max"} {
		text, err := os.ReadFile("/proc/sys/kernel/" + name)
		if err != nil {
			return 0, 0, fmt.Errorf("count processes: %w", err)
		}
		value, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		if err != nil {
			return 0, 0, fmt.Errorf("count processes: %w", err)
		}
		if limit == 0 || value < limit {
			limit = value
		}
	}
	return count, limit, nil
}

// DiskUsage measures the files below a directory as the file system accounts for them. Hard links are counted once; what is mounted below is left out. A walk
// that takes longer than diskUsageTimeout ends with what it has counted.
func DiskUsage(ctx context.Context, dir string) Disk {
	ctx, cancel := context.WithTimeout(ctx, diskUsageTimeout)
	defer cancel()
	usage, _ := diskusage.Of(ctx, dir) // a lower bound is better than nothing
	return Disk{Bytes: usage.Bytes, Inodes: usage.Inodes}
}
