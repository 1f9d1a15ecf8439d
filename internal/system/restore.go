package system

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"skiff/internal/atomicfile"
	"skiff/internal/backup"
	"skiff/internal/config"
	"skiff/internal/store/etcd"
	"skiff/internal/upgrade"
)

// A restore prepares everything in preparedDir, which it renames to restoreDir when it is complete. From then on it is finished, if need be by the
// next start of the server: so there is never a data directory with a part of the old and a part of the new state.
const (
	preparedDir = "restore.tmp"
	restoreDir  = "restore"
	// replacedDir has the state that restores have set aside, in a directory for each.
	replacedDir = "replaced"
	// restoredFiles has the files that the flags of the server that saved the snapshot name.
	restoredFiles = "restored-files"
)

// restoredEntries are what a restore replaces in the data directory, by their names in a prepared restore. The state of etcd is last: a server without it
// would make a new cluster.
var restoredEntries = []struct{ prepared, entry string }{
	{backup.KeysDir, "pki"},
	{backup.FilesDir, restoredFiles},
	{upgrade.File, upgrade.File},
	{"etcd", "etcd"},
}

// RestoreSnapshot makes a snapshot the state of a data directory that no server uses. The snapshot is a stored one, the newest one if it is "latest", or a
// file if it contains a slash. Nothing is changed before all of it was verified.
func RestoreSnapshot(ctx context.Context, c config.Snapshot, snapshot string, out io.Writer) error {
	unlock, err := openDataDir(c.DataDir)
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := finishRestore(c.DataDir, time.Now()); err != nil {
		return err
	}
	if err := checkReplaceable(c); err != nil {
		return err
	}
	passphrase, err := readPassphrase(cmp.Or(c.PassphraseFile, filepath.Join(c.DataDir, snapshotPassphrase)))
	if err != nil {
		return err
	}
	stored, err := openSnapshot(ctx, c, snapshot)
	if err != nil {
		return err
	}
	defer stored.Close()
	manifest, err := prepareRestore(c.DataDir, stored, passphrase)
	if err != nil {
		return errors.Join(fmt.Errorf("restore %s: %w", snapshot, err), os.RemoveAll(filepath.Join(c.DataDir, preparedDir)))
	}
	if err := os.Rename(filepath.Join(c.DataDir, preparedDir), filepath.Join(c.DataDir, restoreDir)); err != nil {
		return err
	}
	replaced, err := finishRestore(c.DataDir, time.Now())
	if err != nil {
		return err
	}
	reportRestore(c.DataDir, manifest, replaced, out)
	return nil
}

// checkReplaceable refuses to replace the state of a cluster without being told to.
func checkReplaceable(c config.Snapshot) error {
	for _, e := range restoredEntries {
		if _, err := os.Lstat(filepath.Join(c.DataDir, e.entry)); err == nil && !c.Replace {
			return fmt.Errorf("%s has the state of a cluster: choose another --data-dir, or replace it with --replace", c.DataDir)
		}
	}
	return nil
}

// openSnapshot opens a snapshot by its name, or a file.
func openSnapshot(ctx context.Context, c config.Snapshot, snapshot string) (io.ReadCloser, error) {
	if strings.Contains(snapshot, "/") {
		return os.Open(snapshot)
	}
	storage, err := snapshotStorage(c.DataDir, c.Storage)
	if err != nil {
		return nil, err
	}
	if snapshot == "latest" {
		if snapshot, err = latestSnapshot(ctx, storage, time.Now()); err != nil {
			return nil, err
		}
	}
	stored, err := storage.Open(ctx, snapshot)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("there is no snapshot %s in %s: 'skiff snapshot ls' lists them", snapshot, storage)
	}
	return stored, err
}

// latestSnapshot is the name of the newest snapshot. If one is from the future, the clock of its server was wrong, and which is the newest is not known.
func latestSnapshot(ctx context.Context, storage backup.Storage, now time.Time) (string, error) {
	entries, err := storage.List(ctx)
	if err != nil {
		return "", err
	}
	if len(entries) == 0 {
		return "", fmt.Errorf("there are no snapshots in %s", storage)
	}
	latest := entries[len(entries)-1]
	if latest.IsFuture(now) {
		return "", fmt.Errorf("the newest snapshot in %s, %s, is from the future: if the clock of this host is right, that of the server was wrong; "+
			"restore one by its name ('skiff snapshot ls' lists them)", storage, latest.Name)
	}
	return latest.Name, nil
}

// prepareRestore reads and verifies a snapshot, and makes the state of a new etcd of it.
func prepareRestore(dataDir string, snapshot io.Reader, passphrase []byte) (backup.Manifest, error) {
	dir := filepath.Join(dataDir, preparedDir)
	if err := errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o700)); err != nil {
		return backup.Manifest{}, err
	}
	manifest, err := backup.Read(snapshot, passphrase, dir)
	if err != nil {
		return manifest, err
	}
	if err := prepareRelease(dataDir, manifest.Version); err != nil {
		return manifest, err
	}
	found, err := inspectDatabase(backup.DatabaseFile(dir))
	if err != nil {
		return manifest, err
	}
	found.SHA256 = manifest.Database.SHA256 // was verified
	if found != manifest.Database {
		return manifest, fmt.Errorf("%w: its database has revision %d and %d records, its manifest says %d and %d", backup.ErrDamaged,
			found.Revision, found.Records, manifest.Database.Revision, manifest.Database.Records)
	}
	return manifest, errors.Join(
		etcd.Restore(etcd.Restoration{Database: backup.DatabaseFile(dir), DataDir: filepath.Join(dir, "etcd"), Log: slog.New(slog.DiscardHandler)}),
		syncTree(dir))
}

// prepareRelease refuses a snapshot of a version that this one must not restore, and a data directory with a layout it does not know. Otherwise the
// restored state is this version's: so a snapshot leads back from an upgrade.
func prepareRelease(dataDir, saved string) error {
	release, err := upgrade.ParseVersion(saved)
	if err != nil {
		return err
	}
	own := upgrade.Current()
	if err := own.CheckSnapshot(release); err != nil {
		return err
	}
	have, err := upgrade.ReadRecord(dataDir)
	if err != nil {
		return err
	}
	if have != nil && have.Layout > own.Layout {
		return fmt.Errorf("%s has layout %d of skiff %s, which %s cannot read: restore into another directory", dataDir, have.Layout, have.Skiff, own.Skiff)
	}
	return own.Write(filepath.Join(dataDir, preparedDir))
}

// syncTree writes the entries of a directory, and of those below it, to disk.
func syncTree(dir string) error {
	return filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return err
		}
		return atomicfile.SyncDir(path)
	})
}

// finishRestore puts a restore that is prepared completely in place. It returns the directory in which what was there before is kept, which is empty if
// there was nothing.
func finishRestore(dataDir string, now time.Time) (replaced string, err error) {
	prepared := filepath.Join(dataDir, restoreDir)
	if _, err := os.Lstat(prepared); errors.Is(err, fs.ErrNotExist) {
		return "", nil
	} else if err != nil {
		return "", err
	}
	keep := filepath.Join(dataDir, replacedDir, now.UTC().Format("20060102T150405.000Z"))
	for _, e := range restoredEntries {
		from, to := filepath.Join(prepared, e.prepared), filepath.Join(dataDir, e.entry)
		if _, err := os.Lstat(from); errors.Is(err, fs.ErrNotExist) {
			continue // is in place, or not part of the snapshot
		}
		moved, err := setAside(to, filepath.Join(keep, e.entry))
		if err != nil {
			return "", fmt.Errorf("finish the restore of a snapshot: %w", err)
		}
		if moved {
			replaced = keep
		}
		if err := errors.Join(os.Rename(from, to), atomicfile.SyncDir(dataDir)); err != nil {
			return "", fmt.Errorf("finish the restore of a snapshot: %w", err)
		}
	}
	if err := errors.Join(atomicfile.SyncDir(dataDir), os.RemoveAll(prepared)); err != nil {
		return "", fmt.Errorf("finish the restore of a snapshot: %w", err)
	}
	return replaced, nil
}

// setAside moves a directory. It reports false if there is none.
func setAside(dir, to string) (bool, error) {
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return false, err
	}
	return true, errors.Join(os.Rename(dir, to), atomicfile.SyncDir(filepath.Dir(to)))
}

// reportRestore says what was restored, and what is left to do.
func reportRestore(dataDir string, manifest backup.Manifest, replaced string, out io.Writer) {
	fmt.Fprintf(out, "restored the snapshot of %s from %s into %s: revision %d, %d records\n", manifest.Server, manifest.Created.Format(time.RFC3339), dataDir,
		manifest.Database.Revision, manifest.Database.Records)
	if replaced != "" {
		fmt.Fprintf(out, "what was there before is in %s\n", replaced)
	}
	for _, name := range slices.Sorted(maps.Keys(manifest.Origins)) {
		base := filepath.Base(name)
		fmt.Fprintf(out, "the file that the server had at %s is now %s\n", manifest.Origins[name], filepath.Join(dataDir, restoredFiles, base))
	}
	fmt.Fprintf(out, "start the server with --data-dir %s and the flags it had\n", dataDir)
	fmt.Fprintln(out, "if it was one of several servers: stop all of them first, start this one with --cluster-init, remove the data directories of the others and let them join it")
}
