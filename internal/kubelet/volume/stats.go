package volume

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"skiff/internal/kubelet/diskusage"
)

// defaultStatsPeriod is how long the measured usage of a volume is used, unless it is configured; statsTimeout is how long a request waits for
// measurements. A file system that does not respond is not measured a second time meanwhile, and keeps a goroutine and a thread: maxMeasured volumes are
// measured at the same time, and a measurement that takes longer than slowAfter lets the next one begin, as long as there are no more than maxSlow of these.
// Volumes on the node's own file systems do not wait for others.
const (
	defaultStatsPeriod = time.Minute
	statsTimeout       = time.Second
	maxMeasured        = 8
	maxSlow            = 64
	slowAfter          = 2 * time.Second
)

// Usage is the usage of a volume, in bytes and inodes.
type Usage struct {
	Used, Available, Capacity      int64
	InodesUsed, InodesFree, Inodes int64
}

// measurement is the last known usage of a volume.
type measurement struct {
	usage *Usage // nil: unknown
	at    time.Time
	// pending is closed when the measurement in progress ends, which was requested at requestedAt; nil: none is in progress.
	pending     chan struct{}
	requestedAt time.Time
}

// measureQueue has measurements that were requested. It is guarded by the mu of Volumes.
type measureQueue struct {
	waiting []queuedMeasurement
	// active is how many are in progress, without those that are slow.
	active, slow int
}

// queuedMeasurement is a measurement of a volume that was requested.
type queuedMeasurement struct {
	result *measurement
	volume mounted
}

// startMeasuring begins requested measurements as far as the bounds allow. The caller holds mu.
func (v *Volumes) startMeasuring(ctx context.Context, q *measureQueue) {
	for q.active < maxMeasured && len(q.waiting) > 0 {
		next := q.waiting[0]
		q.waiting = q.waiting[1:]
		q.active++
		ended, slow := false, false
		var timer *time.Timer
		timer = time.AfterFunc(slowAfter, func() {
			v.mu.Lock()
			defer v.mu.Unlock()
			switch {
			case ended: // just now
			case q.slow == maxSlow:
				timer.Reset(slowAfter)
			default:
				slow = true
				q.active--
				q.slow++
				v.startMeasuring(ctx, q)
			}
		})
		go func() {
			v.measure(ctx, next.result, next.volume, func() {
				timer.Stop()
				ended = true
				if slow {
					q.slow--
				} else {
					q.active--
				}
				v.startMeasuring(ctx, q)
			})
		}()
	}
}

// Stats returns the usage of the volumes of pods, by UID. Volumes that could not be measured in time are missing.
func (v *Volumes) Stats(ctx context.Context, pods []*corev1.Pod) map[types.UID][]statsapi.VolumeStats {
	if v.StatsPeriod < 0 {
		return nil
	}
	timeout := time.After(statsTimeout)
	for _, pending := range v.startMeasurements(ctx, pods) {
		select {
		case <-pending:
		case <-timeout:
			return v.measured(pods)
		case <-ctx.Done():
			return nil
		}
	}
	return v.measured(pods)
}

// startMeasurements measures the volumes whose usage is unknown or too old, and returns the measurements in progress.
func (v *Volumes) startMeasurements(ctx context.Context, pods []*corev1.Pod) (pending []<-chan struct{}) {
	period := v.StatsPeriod
	if period == 0 {
		period = defaultStatsPeriod
	}
	ctx = context.WithoutCancel(ctx) // the result is for later requests too
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, pod := range pods {
		state := v.pods[pod.UID]
		if state == nil {
			continue
		}
		for i := range pod.Spec.Volumes {
			name := pod.Spec.Volumes[i].Name
			m := state.byName[name]
			if m == nil || !v.isMeasurable(m) {
				continue
			}
			have := state.measured[name]
			if have == nil {
				have = &measurement{}
				state.measured[name] = have
			}
			if have.pending == nil && time.Since(have.at) >= period {
				have.pending, have.requestedAt = make(chan struct{}), time.Now()
				q := v.measureQueue(m)
				q.waiting = append(q.waiting, queuedMeasurement{have, *m})
			}
			// One that an earlier request has waited for in vain is not waited for again.
			if have.pending != nil && time.Since(have.requestedAt) < statsTimeout {
				pending = append(pending, have.pending)
			}
		}
	}
	v.startMeasuring(ctx, &v.ownFiles)
	v.startMeasuring(ctx, &v.otherFiles)
	return pending
}

// measureQueue is the queue of a volume: volumes of the node's own files, which respond, do not wait for servers and drivers, which may not.
func (v *Volumes) measureQueue(m *mounted) *measureQueue {
	switch m.plugin {
	case csiPlugin, nfsPlugin, localPlugin:
		return &v.otherFiles
	}
	return &v.ownFiles
}

// measure measures a volume and publishes the result. It calls ended with mu held.
func (v *Volumes) measure(ctx context.Context, result *measurement, m mounted, ended func()) {
	usage, err := v.usageOf(ctx, &m)
	if err != nil {
		v.Log.Debug("failed to measure a volume", "path", m.path, "error", err)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	result.at = time.Now()
	if result.usage = nil; err == nil {
		result.usage = &usage
	}
	close(result.pending)
	result.pending = nil
	ended()
}

// isMeasurable reports whether the usage of a volume says something: not of images and directories of the host, and of devices only if their driver
// reports it.
func (v *Volumes) isMeasurable(m *mounted) bool {
	if m.plugin == csiPlugin && v.csi.measures(m.csi.Driver) {
		return true
	}
	return m.path != "" && !m.block && m.plugin != hostPathPlugin
}

// usage measures a volume: by its driver if that can, with statfs if it has a file system of its own, else by walking it.
func (v *Volumes) usage(ctx context.Context, m *mounted) (Usage, error) {
	if m.plugin == csiPlugin && v.csi.measures(m.csi.Driver) {
		return v.csi.usage(ctx, m)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(m.path, &fs); err != nil {
		return Usage{}, err
	}
	usage := Usage{
		Used: int64(fs.Blocks-fs.Bfree) * fs.Bsize, Available: int64(fs.Bavail) * fs.Bsize, Capacity: int64(fs.Blocks) * fs.Bsize,
		InodesUsed: int64(fs.Files - fs.Ffree), InodesFree: int64(fs.Ffree), Inodes: int64(fs.Files),
	}
	separate, err := isMounted(m.path)
	if err != nil || separate {
		return usage, err
	}
	files, err := diskusage.Of(ctx, m.path)
	usage.Used, usage.InodesUsed = files.Bytes, files.Inodes
	return usage, err
}

// measures reports whether a driver measures its volumes.
func (d *drivers) measures(name string) bool {
	driver, err := d.registered(name)
	return err == nil && driver.measures
}

// usage has a driver measure a volume.
func (d *drivers) usage(ctx context.Context, m *mounted) (usage Usage, err error) {
	driver, err := d.registered(m.csi.Driver)
	if err != nil {
		return usage, err
	}
	response, err := driver.node.NodeGetVolumeStats(ctx, &csi.NodeGetVolumeStatsRequest{VolumeId: m.csi.Handle, VolumePath: m.path})
	if err != nil {
		return usage, fmt.Errorf("get volume stats: %w", err)
	}
	if len(response.Usage) == 0 {
		return usage, errors.New("failed to get usage from response. usage is nil")
	}
	for _, u := range response.Usage {
		switch u.GetUnit() {
		case csi.VolumeUsage_BYTES:
			usage.Used, usage.Available, usage.Capacity = u.Used, u.Available, u.Total
		case csi.VolumeUsage_INODES:
			usage.InodesUsed, usage.InodesFree, usage.Inodes = u.Used, u.Available, u.Total
		}
	}
	return usage, nil
}

// measured returns what is known about the volumes of pods.
func (v *Volumes) measured(pods []*corev1.Pod) map[types.UID][]statsapi.VolumeStats {
	all := map[types.UID][]statsapi.VolumeStats{}
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, pod := range pods {
		state := v.pods[pod.UID]
		if state == nil {
			continue
		}
		for i := range pod.Spec.Volumes {
			volume := &pod.Spec.Volumes[i]
			have := state.measured[volume.Name]
			if have == nil || have.usage == nil {
				continue
			}
			stats := statsapi.VolumeStats{Name: volume.Name, FsStats: have.usage.stats(have.at)}
			if claim, ok := claimOf(pod, volume); ok {
				stats.PVCRef = &statsapi.PVCReference{Namespace: pod.Namespace, Name: claim.claim}
			}
			all[pod.UID] = append(all[pod.UID], stats)
		}
	}
	return all
}

// stats is the usage in the form of the stats API.
func (u Usage) stats(at time.Time) statsapi.FsStats {
	amount := func(n int64) *uint64 { return new(uint64(max(n, 0))) }
	return statsapi.FsStats{
		Time: metav1.NewTime(at), UsedBytes: amount(u.Used), AvailableBytes: amount(u.Available), CapacityBytes: amount(u.Capacity),
		InodesUsed: amount(u.InodesUsed), InodesFree: amount(u.InodesFree), Inodes: amount(u.Inodes),
	}
}
