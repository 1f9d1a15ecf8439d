package etcd

import (
	"context"
	"errors"
	"fmt"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"golang.org/x/sys/unix"

	"skiff/internal/store"
)

// The embedded etcd ends the process when it cannot write to its disk. So a write for which there is no space, within the quota or on the
// disk, is refused before etcd receives it. What deletes objects or frees space may use the reserves. While writes are refused, reclaim tries
// to free space.
//
// Other programs can use up the disk to its last byte. The next blocks of etcd's file are allocated in advance (allocate), as etcd itself allocates
// its log, so that what it writes by its own accord, and deletions, succeed even then.
const (
	// diskReserve is left free on the disk by ordinary writes: etcd allocates the next segment of its log, of 64 MB, before it needs it.
	diskReserve = 128 << 20
	// deletionReserve is left free by the updates that are part of a deletion.
	deletionReserve = 80 << 20
	// minDiskFree is how much must be free on the disk, or allocated in advance, for removals and compaction.
	minDiskFree = 16 << 20
	// allocatedAhead is how much of the file is allocated before etcd needs it.
	allocatedAhead = 32 << 20
	// A warning is logged when more than warnPercent of the quota are in use, and again after the usage was below resetPercent.
	warnPercent, resetPercent = 80, 75
	// A warning is logged when less than warnDiskFree is free on the disk, before writes are refused, and again after there was more than resetDiskFree.
	warnDiskFree, resetDiskFree = 4 * diskReserve, 5 * diskReserve
	// The file is defragmented when that frees at least minReclaimedBytes and more than half of it: the server is blocked
	// meanwhile.
	minReclaimedBytes = 256 << 20
	// The pauses between the attempts to free space.
	minReclaimPause, maxReclaimPause = time.Second, time.Minute
)

// allowance is what a write may use of the reserves.
type allowance struct {
	overQuota int64 // bytes
	diskFree  int64 // bytes to be left free
}

var (
	forWrites    = allowance{diskFree: diskReserve}
	forDeletions = allowance{overQuota: spareQuota / 2, diskFree: deletionReserve}
)

// checkSpace refuses writes for which there is no space. etcd's own check is in its gRPC API, which embedded calls bypass.
func (e *embedded) checkSpace(ctx context.Context, request *pb.TxnRequest) error {
	size := int64(0)
	for _, change := range request.Success {
		if put := change.GetRequestPut(); put != nil && string(put.Key) != compactKey {
			size += int64(len(put.Key) + len(put.Value))
		}
	}
	e.allocate()
	err := e.lacksDisk()
	if size > 0 && err == nil {
		e.warnUsage()
		allowed := forWrites
		if store.IsForDeletion(ctx) {
			allowed = forDeletions
		}
		err = e.lacksSpace(size, allowed)
	}
	if err != nil {
		e.reject(max(size, 1), err)
	}
	return err
}

// lacksDisk returns an error when etcd must not write at all, not even to delete.
func (e *embedded) lacksDisk() error {
	free, err := freeBytes(e.dir)
	if err != nil {
		return nil // the write itself finds out
	}
	ahead := max(e.allocation.end.Load()-e.server.Backend().Size(), 0)
	if free+ahead < minDiskFree {
		return &store.NoSpaceError{Message: fmt.Sprintf("the disk of etcd's data directory has %d bytes free, %d are needed to delete objects: "+
			"remove files from it, or enlarge it", free+ahead, int64(minDiskFree))}
	}
	return nil
}

// lacksSpace returns an error when there is no space for a write of a size.
func (e *embedded) lacksSpace(size int64, allowed allowance) error {
	if used := e.server.Backend().Size(); used+size > writeQuota(e.quota)+allowed.overQuota {
		return &store.NoSpaceError{Message: fmt.Sprintf("etcd's database has %d bytes, its quota is %d bytes: "+
			"delete objects that are not needed, or raise --etcd-quota-backend-bytes", used, e.quota)}
	}
	if free, err := freeBytes(e.dir); err == nil && free-size < allowed.diskFree {
		return &store.NoSpaceError{Message: fmt.Sprintf("the disk of etcd's data directory has %d bytes free, of which %d are reserved: "+
			"remove files from it, or enlarge it", free, allowed.diskFree)}
	}
	return nil
}

// freeBytes is how much space is free on the disk of a directory.
func freeBytes(dir string) (int64, error) {
	var stat unix.Statfs_t
	if err := unix.Statfs(dir, &stat); err != nil {
		return 0, fmt.Errorf("read free space of %s: %w", dir, err)
	}
	return int64(stat.Bavail) * stat.Bsize, nil
}

// warnUsage logs a warning when the usage of the quota has become high.
func (e *embedded) warnUsage() {
	used := e.server.Backend().SizeInUse()
	switch high := e.usageHigh.Load(); {
	case !high && used > e.quota/100*warnPercent && e.usageHigh.CompareAndSwap(false, true):
		e.log.Warn("etcd database is nearly full", "inUse", used, "quota", e.quota)
	case high && used < e.quota/100*resetPercent:
		e.usageHigh.Store(false)
	}
}

// warnDisk logs a warning when little space has become left on the disk.
func (e *embedded) warnDisk() {
	free, err := freeBytes(e.dir)
	if err != nil {
		return
	}
	wasLow := e.diskLow.Load()
	if low := isDiskLow(wasLow, free); low != wasLow && e.diskLow.CompareAndSwap(wasLow, low) && low {
		e.log.Warn("disk of etcd is nearly full", "directory", e.dir, "free", free, "reserved", int64(diskReserve))
	}
}

// isDiskLow reports whether little of the disk is free, given whether it was.
func isDiskLow(wasLow bool, free int64) bool {
	return free < warnDiskFree || wasLow && free <= resetDiskFree
}

// reject records that a write was refused and, if it is the first one, begins to free space.
func (e *embedded) reject(size int64, reason error) {
	if e.rejectedBytes.Swap(size) != 0 {
		return
	}
	e.log.Error("no space in etcd, rejecting writes", "reason", reason)
	e.wait.Go(func() { e.reclaim(e.running) })
}

// reclaim frees space until the write that was rejected last would be accepted.
func (e *embedded) reclaim(ctx context.Context) {
	logged := false
	for pause := minReclaimPause; ; pause = min(2*pause, maxReclaimPause) {
		if err := e.reclaimOnce(ctx); err != nil && ctx.Err() == nil && !logged {
			e.log.Warn("failed to free space in etcd", "error", err)
			logged = true
		}
		if e.lacksSpace(e.rejectedBytes.Load(), forWrites) == nil && len(e.server.Alarms()) == 0 {
			e.rejectedBytes.Store(0)
			e.log.Info("etcd has space again, accepting writes", "size", e.server.Backend().Size(), "quota", e.quota)
			return
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
}

// reclaimOnce discards all history, defragments the file if that is worth it, and disarms the alarm if there is space.
func (e *embedded) reclaimOnce(ctx context.Context) error {
	free, err := freeBytes(e.dir)
	if err != nil {
		return err
	}
	if free < minDiskFree {
		return fmt.Errorf("compaction needs %d bytes on the disk, %d are free", int64(minDiskFree), free)
	}
	e.allocate()
	_, err = e.server.Compact(ctx, &pb.CompactionRequest{Revision: e.server.KV().Rev(), Physical: true})
	if err = embeddedError(ctx, err); err != nil && !errors.Is(err, store.ErrCompacted) {
		return fmt.Errorf("compact: %w", err)
	}
	return errors.Join(e.defragment(ctx, e.rejectedBytes.Load()), e.disarm(ctx))
}

// maintain defragments the file if that is worth it, and disarms the alarm if there is space.
func (e *embedded) maintain() {
	if !e.maintaining.CompareAndSwap(false, true) {
		return
	}
	e.wait.Go(func() {
		defer e.maintaining.Store(false)
		e.warnUsage()
		e.warnDisk()
		if err := errors.Join(e.defragment(e.running, 0), e.disarm(e.running)); err != nil && e.running.Err() == nil {
			e.log.Warn("failed to maintain etcd", "error", err)
		}
	})
}

// defragment defragments the file if that is worth it, and no other member of a cluster does so. rejected is the size of a write that was refused, or 0.
func (e *embedded) defragment(ctx context.Context, rejected int64) error {
	e.defragmenting.Lock()
	defer e.defragmenting.Unlock()
	u, err := e.usage(rejected)
	if err != nil || !u.worthDefragmenting() {
		return err
	}
	if reason := e.beginDefragmentation(ctx, rejected > 0); reason != "" {
		e.log.Debug("etcd is not defragmented now", "reason", reason)
		return nil
	}
	defer e.isDefragmenting.Store(false)
	start := time.Now()
	err = e.server.Defragment()
	e.defragmentFailed.Store(err != nil)
	if err != nil {
		return fmt.Errorf("defragment: %w", err)
	}
	e.allocation.reset()
	e.allocate()
	e.log.Info("defragmented etcd", "from", u.size, "to", e.server.Backend().Size(), "took", time.Since(start))
	return nil
}

// usage is how full the file and its disk are now.
func (e *embedded) usage(rejected int64) (usage, error) {
	free, err := freeBytes(e.dir)
	return usage{size: e.server.Backend().Size(), inUse: e.server.Backend().SizeInUse(), quota: writeQuota(e.quota), free: free, rejected: rejected}, err
}

// usage is how full the file and its disk are, in bytes.
type usage struct {
	size, inUse, quota int64 // of the file
	free               int64 // on the disk
	rejected           int64 // size of a write that was refused, or 0
}

// worthDefragmenting reports whether the file should be defragmented. Its contents are copied, so there must be space for them.
func (u usage) worthDefragmenting() bool {
	gain := u.size - u.inUse
	switch {
	case u.free < u.inUse+minDiskFree:
		return false
	case gain >= minReclaimedBytes && u.inUse <= u.size/2:
		return true
	case u.rejected > 0 && u.free-u.rejected < diskReserve:
		return gain >= minDiskFree
	}
	// The file is nearly full, and a tenth of the quota would be free.
	nearlyFull := u.size >= u.quota*9/10 || u.rejected > 0 && u.size+u.rejected > u.quota
	return nearlyFull && u.inUse+u.rejected < u.quota*9/10
}

// disarm deactivates a NOSPACE alarm that etcd raised in an earlier run or for another client, if there is space now.
func (e *embedded) disarm(ctx context.Context) error {
	for _, alarm := range e.server.Alarms() {
		if alarm.Alarm != pb.AlarmType_NOSPACE || e.lacksSpace(0, forWrites) != nil {
			continue
		}
		_, err := e.server.Alarm(ctx, &pb.AlarmRequest{Action: pb.AlarmRequest_DEACTIVATE, MemberID: alarm.MemberID, Alarm: alarm.Alarm})
		if err != nil {
			return fmt.Errorf("disarm alarm %s: %w", alarm.Alarm, err)
		}
	}
	return nil
}
