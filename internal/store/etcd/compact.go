package etcd

import (
	"context"
	"strconv"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"skiff/internal/store"
)

// compactKey coordinates the API servers that share an etcd: the server that writes its next version compacts. Its value
// is the last compacted revision. The name is upstream's, so that upstream's servers can take part.
const compactKey = "compact_rev_key"

// compactEvery compacts history older than the interval until ctx is done. A server that lost the race for the next version
// of the key learns the current version, and compacts an interval later if no other server has by then.
func (s *Store) compactEvery(ctx context.Context, interval time.Duration) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	var last compaction
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		compacted, err := s.compactOnce(ctx, &last)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			s.log.Warn("failed to compact etcd", "error", err)
		case compacted > 0:
			s.log.Debug("compacted etcd", "revision", compacted)
			fallthrough
		default:
			s.engine.maintain() // also after another server has compacted: every member has a file of its own
		}
	}
}

// compaction is what a server learned in its last attempt.
type compaction struct {
	version  int64          // of the key
	revision store.Revision // of the store at that time: one interval old at the next attempt
}

// compactOnce compacts to the revision of the last attempt, if this server is the first. It returns that revision.
func (s *Store) compactOnce(ctx context.Context, last *compaction) (compacted store.Revision, err error) {
	key := []byte(compactKey)
	response, err := s.engine.transact(ctx, &pb.TxnRequest{
		Compare: []*pb.Compare{{
			Key: key, Target: pb.Compare_VERSION, Result: pb.Compare_EQUAL,
			TargetUnion: &pb.Compare_Version{Version: last.version},
		}},
		Success: put(key, []byte(strconv.FormatInt(last.revision, 10)), 0),
		Failure: []*pb.RequestOp{{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Key: key}}}},
	})
	if err != nil {
		return 0, err
	}
	before := last.revision
	last.revision = response.Header.Revision
	if !response.Succeeded {
		last.version = 0
		if found := response.Responses[0].GetResponseRange().Kvs; len(found) > 0 {
			last.version = found[0].Version
		}
		return 0, nil
	}
	last.version++
	if before == 0 {
		return 0, nil // the first attempt only records the store's revision
	}
	return before, s.Compact(ctx, before)
}
