package etcd

import (
	"context"
	"strconv"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"skiff/internal/store"
)

// compactKey is where the API servers that share an etcd agree on who compacts: whoever writes its next version does so.
// Its value is the revision last compacted to. The name is upstream's, so that its servers can take part.
const compactKey = "compact_rev_key"

// compactEvery forgets history older than the interval until ctx ends. A server that did not write the next version
// of the key learns from the attempt which version there is, and takes over an interval later if nobody else has by then.
func (s *Store) compactEvery(ctx context.Context, interval time.Duration) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	var turn compaction
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		compacted, err := s.compactTurn(ctx, &turn)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			s.log.Warn("cannot compact the store", "error", err)
		case compacted > 0:
			s.log.Debug("compacted the store", "revision", compacted)
			s.engine.tend()
		}
	}
}

// compaction is what a server knows from its last turn.
type compaction struct {
	version  int64          // of the key
	revision store.Revision // of the store then: an interval old at the next turn
}

// compactTurn compacts to the revision of the turn before, if this server is the first to try. It returns the revision.
func (s *Store) compactTurn(ctx context.Context, turn *compaction) (compacted store.Revision, err error) {
	key := []byte(compactKey)
	response, err := s.engine.transact(ctx, &pb.TxnRequest{
		Compare: []*pb.Compare{{
			Key: key, Target: pb.Compare_VERSION, Result: pb.Compare_EQUAL,
			TargetUnion: &pb.Compare_Version{Version: turn.version},
		}},
		Success: put(key, []byte(strconv.FormatInt(turn.revision, 10)), 0),
		Failure: []*pb.RequestOp{{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Key: key}}}},
	})
	if err != nil {
		return 0, err
	}
	before := turn.revision
	turn.revision = response.Header.Revision
	if !response.Succeeded {
		turn.version = 0
		if found := response.Responses[0].GetResponseRange().Kvs; len(found) > 0 {
			turn.version = found[0].Version
		}
		return 0, nil
	}
	turn.version++
	if before == 0 {
		return 0, nil // the first turn only notes where the store is
	}
	return before, s.Compact(ctx, before)
}
