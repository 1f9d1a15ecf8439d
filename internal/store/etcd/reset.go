package etcd

import (
	"context"
	"errors"
	"fmt"
	"io"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
)

// commitLog marks the whole log of a member as committed. A reset discards what is not, and a member that was killed has not recorded of its last
// entries that they are, which may be writes that clients have got acknowledged. Of a write that was not acknowledged nobody knows whether it has happened.
func commitLog(log *zap.Logger, dataDir string) error {
	err := commitEntries(log, logDir(dataDir))
	if errors.Is(err, io.ErrUnexpectedEOF) && wal.Repair(log, logDir(dataDir)) {
		err = commitEntries(log, logDir(dataDir))
	}
	if err != nil {
		return fmt.Errorf("commit the log of etcd: %w", err)
	}
	return nil
}

func commitEntries(log *zap.Logger, dir string) (err error) {
	snapshots, err := wal.ValidSnapshotEntries(log, dir)
	if err != nil {
		return err
	}
	if len(snapshots) == 0 {
		return errors.New("it has no snapshot")
	}
	opened, err := wal.Open(log, dir, snapshots[len(snapshots)-1])
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, opened.Close()) }() // Close syncs
	_, state, entries, err := opened.ReadAll()
	if err != nil || len(entries) == 0 {
		return err
	}
	state.Commit = entries[len(entries)-1].Index
	return opened.Save(state, nil)
}

const (
	// skippedKey is written by SkipRevisions.
	skippedKey = "skiff_skipped_revisions"
	// skippingWrites is how many writes are in flight. etcd writes them to the disk together.
	skippingWrites = 256
)

// SkipRevisions raises the revision by a number at least, and makes everything before compacted. After a reset, clients may have seen revisions that the
// lost members had acknowledged and this one has not received. No revision may mean two states, or their watches would go on without the events between. The revision
// rises by writes, because members that join later repeat them.
func (s *Store) SkipRevisions(ctx context.Context, count int) error {
	writes, writing := errgroup.WithContext(ctx)
	writes.SetLimit(skippingWrites)
	for range count {
		writes.Go(func() error {
			_, err := s.engine.transact(writing, &pb.TxnRequest{Success: put([]byte(skippedKey), nil, 0)})
			return err
		})
	}
	if err := writes.Wait(); err != nil {
		return fmt.Errorf("skip revisions: %w", err)
	}
	revision, err := s.Current(ctx)
	if err != nil {
		return err
	}
	return s.Compact(ctx, revision)
}
