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
// disk, is refused before etcd receives it. Deletions and compaction are not: they free space, and there is a reserve for them.
// While writes are refused, reclaim tries to free space.
const (
	// diskReserve is left free on the disk. Deletions, compaction and leases need some of it, and etcd allocates the next segment of its log, of 64 MB,
	// before it needs it.
	diskReserve = 128 << 20
	// minDiskFree is how much must be free on the disk for a compaction or defragmentation.
	minDiskFree = 16 << 20
	// A warning is logged when more than warnPercent of the quota are in use, and again after the usage was below resetPercent.
	warnPercent, resetPercent = 80, 75
	// The file is defragmented when that frees at least minReclaimedBytes and more than half of it: the server is blocked
	// meanwhile.
	minReclaimedBytes = 256 << 20
	// The pauses between the attempts to free space.
	minReclaimPause, maxReclaimPause = time.Second, time.Minute
)

// checkSpace refuses writes for which there is no space. etcd's own check is in its gRPC API, which embedded calls bypass.
func (e *embedded) checkSpace(request *pb.TxnRequest) error {
	size := int64(0)
	for _, change := range request.Success {
		if put := change.GetRequestPut(); put != nil && string(put.Key) != compactKey {
			size += int64(len(put.Key) + len(put.Value))
		}
	}
	if size == 0 {
		return nil
	}
	e.warnUsage()
	if err := e.lacksSpace(size); err != nil {
		e.reject(size, err)
		return err
	}
	return nil
}

// lacksSpace returns an error when there is no space for a write of a size.
func (e *embedded) lacksSpace(size int64) error {
	if used := e.server.Backend().Size(); used+size > e.quota {
		return &store.NoSpaceError{Message: fmt.Sprintf("etcd's database has %d bytes, its quota is %d bytes: "+
			"delete objects that are not needed, or raise --etcd-quota-backend-bytes", used, e.quota)}
	}
	if free, err := freeBytes(e.dir); err == nil && free-size < diskReserve {
		return &store.NoSpaceError{Message: fmt.Sprintf("the disk of etcd's data directory has %d bytes free, of which %d are reserved: "+
			"remove files from it, or enlarge it", free, int64(diskReserve))}
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
		if e.lacksSpace(e.rejectedBytes.Load()) == nil && len(e.server.Alarms()) == 0 {
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
	_, err = e.server.Compact(ctx, &pb.CompactionRequest{Revision: e.server.KV().Rev(), Physical: true})
	if err = embeddedError(ctx, err); err != nil && !errors.Is(err, store.ErrCompacted) {
		return fmt.Errorf("compact: %w", err)
	}
	return errors.Join(e.defragment(e.rejectedBytes.Load()), e.disarm(ctx))
}

// maintain defragments the file if that is worth it, and disarms the alarm if there is space.
func (e *embedded) maintain() {
	if !e.maintaining.CompareAndSwap(false, true) {
		return
	}
	e.wait.Go(func() {
		defer e.maintaining.Store(false)
		e.warnUsage()
		if err := errors.Join(e.defragment(0), e.disarm(e.running)); err != nil && e.running.Err() == nil {
			e.log.Warn("failed to maintain etcd", "error", err)
		}
	})
}

// defragment defragments the file if that is worth it. rejected is the size of a write that was refused, or 0.
func (e *embedded) defragment(rejected int64) error {
	e.defragmenting.Lock()
	defer e.defragmenting.Unlock()
	free, err := freeBytes(e.dir)
	if err != nil {
		return err
	}
	u := usage{size: e.server.Backend().Size(), inUse: e.server.Backend().SizeInUse(), quota: e.quota, free: free, rejected: rejected}
	if !u.worthDefragmenting() {
		return nil
	}
	start := time.Now()
	if err := e.server.Defragment(); err != nil {
		return fmt.Errorf("defragment: %w", err)
	}
	e.log.Info("defragmented etcd", "from", u.size, "to", e.server.Backend().Size(), "took", time.Since(start))
	return nil
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
		if alarm.Alarm != pb.AlarmType_NOSPACE || e.lacksSpace(0) != nil {
			continue
		}
		_, err := e.server.Alarm(ctx, &pb.AlarmRequest{Action: pb.AlarmRequest_DEACTIVATE, MemberID: alarm.MemberID, Alarm: alarm.Alarm})
		if err != nil {
			return fmt.Errorf("disarm alarm %s: %w", alarm.Alarm, err)
		}
	}
	return nil
}
