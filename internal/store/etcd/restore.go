package etcd

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
	"go.etcd.io/etcd/server/v3/etcdserver/api/snap"
	"go.etcd.io/etcd/server/v3/etcdserver/cindex"
	"go.etcd.io/etcd/server/v3/storage/backend"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.etcd.io/etcd/server/v3/verify"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"
)

const (
	// revisionBump is what is at least added to the revision of a database that is restored.
	revisionBump = 1_000_000_000
	// revisionsPerMillisecond is more than a cluster writes.
	revisionsPerMillisecond = 10
)

// restoredRevision is the revision of a database that is restored. No revision may mean two states, and clients have seen revisions that are newer than
// the database: those of the cluster that it was copied from, and those of clusters that were restored from the same copy before. The revisions of all of them
// rise more slowly than the time.
func restoredRevision(latest int64, now time.Time) int64 {
	return max(latest+revisionBump, now.UnixMilli()*revisionsPerMillisecond)
}

// Restoration is a database to be made the state of a new cluster.
type Restoration struct {
	// Database is the file of a copy (WriteDatabase). It is moved.
	Database string
	// DataDir is the directory of the new member. It must not exist.
	DataDir string
	// Name and PeerURL are those of the only member of the new cluster. Default: those of an embedded etcd that is its only member. Further members
	// join the running cluster.
	Name, PeerURL string
	Log           *slog.Logger
}

// Restore makes a data directory of a database, for a new cluster of one member: the members of the old one do not recognize it. All watches
// of clients have to begin anew, because everything before the restored state counts as compacted.
func Restore(r Restoration) error {
	if _, err := os.Lstat(r.DataDir); !errors.Is(err, fs.ErrNotExist) {
		return errors.Join(fmt.Errorf("restore etcd: %s exists", r.DataDir), err)
	}
	if r.Name == "" {
		r.Name = memberName
	}
	if r.PeerURL == "" {
		r.PeerURL = peerURL
	}
	if err := r.run(); err != nil {
		return fmt.Errorf("restore etcd: %w", err)
	}
	return nil
}

func (r Restoration) run() error {
	path := databaseFile(r.DataDir)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	if err := os.Rename(r.Database, path); err != nil {
		return err
	}
	log := newLogger(r.Log)
	cluster, err := r.newCluster(log)
	if err != nil {
		return err
	}
	database := backend.NewDefaultBackend(log, path)
	state, err := r.writeMember(log, cluster, database)
	if err == nil {
		_, err = bumpRevision(database, time.Now())
		cindex.UpdateConsistentIndexForce(database.BatchTx(), state.GetCommit(), state.GetTerm())
		database.ForceCommit()
	}
	if err = errors.Join(err, database.Close()); err != nil {
		return err
	}
	return verify.Verify(verify.Config{Logger: log, DataDir: r.DataDir, ExactIndex: true})
}

// newCluster makes the cluster of one member. Its ID is random: a member of the cluster that the database is from must not take it for its own.
func (r Restoration) newCluster(log *zap.Logger) (*membership.RaftCluster, error) {
	peers, err := types.NewURLs([]string{r.PeerURL})
	if err != nil {
		return nil, err
	}
	return membership.NewClusterFromURLsMap(log, rand.Text(), types.URLsMap{r.Name: peers})
}

// writeMember replaces the members in a database by the one of a cluster, and writes the log and the snapshot of raft that go with it.
func (r Restoration) writeMember(log *zap.Logger, cluster *membership.RaftCluster, database backend.Backend) (*raftpb.HardState, error) {
	members := schema.NewMembershipBackend(log, database)
	if err := members.TrimMembershipFromBackend(); err != nil {
		return nil, err
	}
	cluster.SetBackend(members)
	member := cluster.MemberByName(r.Name)
	cluster.AddMember(member, membership.ApplyBoth)
	id := uint64(member.ID)
	metadata, err := proto.Marshal(&pb.Metadata{NodeID: &id, ClusterID: proto.Uint64(uint64(cluster.ID()))})
	if err != nil {
		return nil, err
	}
	entry, err := addMemberEntry(member)
	if err != nil {
		return nil, err
	}
	written, err := wal.Create(log, logDir(r.DataDir), metadata)
	if err != nil {
		return nil, err
	}
	defer written.Close()
	state := &raftpb.HardState{Term: entry.Term, Vote: &id, Commit: entry.Index}
	if err := written.Save(state, []*raftpb.Entry{entry}); err != nil {
		return nil, err
	}
	voters := &raftpb.ConfState{Voters: []uint64{id}}
	tx := database.BatchTx()
	tx.LockOutsideApply()
	schema.MustUnsafeSaveConfStateToBackend(log, tx, voters)
	tx.Unlock()
	snapshot := &raftpb.Snapshot{
		Data:     etcdserver.GetMembershipInfoInV2Format(log, cluster),
		Metadata: &raftpb.SnapshotMetadata{Index: entry.Index, Term: entry.Term, ConfState: voters},
	}
	if err := snap.New(log, filepath.Dir(databaseFile(r.DataDir))).SaveSnap(snapshot); err != nil {
		return nil, err
	}
	return state, written.SaveSnapshot(&walpb.Snapshot{Index: entry.Index, Term: entry.Term, ConfState: voters})
}

// addMemberEntry is the first entry of the log, which adds the member.
func addMemberEntry(member *membership.Member) (*raftpb.Entry, error) {
	described, err := json.Marshal(member)
	if err != nil {
		return nil, err
	}
	change, err := proto.Marshal(&raftpb.ConfChange{
		Type: raftpb.ConfChangeAddNode.Enum(), NodeId: proto.Uint64(uint64(member.ID)), Context: described,
	})
	if err != nil {
		return nil, err
	}
	return &raftpb.Entry{Type: raftpb.EntryConfChange.Enum(), Term: proto.Uint64(1), Index: proto.Uint64(1), Data: change}, nil
}

// bumpRevision makes the next revision of a database one that no client has seen, and everything before it compacted. It returns the revision before that.
func bumpRevision(database backend.Backend, now time.Time) (int64, error) {
	tx := database.BatchTx()
	tx.LockOutsideApply()
	defer tx.Unlock()
	latest := int64(0)
	err := tx.UnsafeForEach(schema.Key, func(key, _ []byte) error {
		latest = max(latest, mvcc.BytesToRev(key).Main)
		return nil
	})
	if err != nil {
		return 0, err
	}
	for _, read := range []func(backend.UnsafeReader) (int64, bool){mvcc.UnsafeReadFinishedCompact, mvcc.UnsafeReadScheduledCompact} {
		if compacted, ok := read(tx); ok {
			latest = max(latest, compacted)
		}
	}
	// At its start etcd compacts to this revision and takes it for the current one.
	bumped := restoredRevision(latest, now)
	mvcc.UnsafeSetScheduledCompact(tx, bumped)
	return bumped, nil
}
