package etcd

import (
	"errors"
	"fmt"
	"io"

	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.uber.org/zap"
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
