package etcd

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"go.etcd.io/etcd/server/v3/storage/backend"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.uber.org/zap"

	"skiff/internal/store"
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

// SkipRevisions raises the revision of a stopped member that was reset as a restore does (restoredRevision), and makes everything before compacted. Clients may
// have seen any number of revisions that the lost members had acknowledged and this one has not received. No revision may mean two states, or their watches would go on
// without the events between. It returns the new revision.
//
// Members that join later must get the database, and not repeat a log that does not say so. For that a reset makes a snapshot of raft.
func SkipRevisions(dataDir string, logger *slog.Logger) (store.Revision, error) {
	lock, err := lockDir(dataDir)
	if err != nil {
		return 0, fmt.Errorf("skip revisions: %w", err)
	}
	defer lock.Close()
	log := newLogger(logger, zap.WithFatalHook(fatal{log: logger, dir: dataDir, exit: os.Exit}))
	snapshots, err := wal.ValidSnapshotEntries(log, logDir(dataDir))
	if err != nil {
		return 0, fmt.Errorf("skip revisions: %w", err)
	}
	if len(snapshots) == 0 || snapshots[len(snapshots)-1].GetIndex() == 0 {
		return 0, errors.New("skip revisions: the member was not reset")
	}
	database := backend.NewDefaultBackend(log, databaseFile(dataDir))
	revision, err := bumpRevision(database, time.Now())
	if err = errors.Join(err, database.Close()); err != nil {
		return 0, fmt.Errorf("skip revisions: %w", err)
	}
	return revision, nil
}
