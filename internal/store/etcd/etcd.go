// Package etcd stores objects in etcd: a server embedded in this process, with its data in a directory and no open port, or
// a cluster reached over the network. Keys and values are stored unchanged, so that other etcd clients can read them.
//
// The embedded etcd can be a member of a cluster of such servers (Peer). Then it serves the other members with TLS, and every read waits until
// this member has applied what any of them has committed.
//
// Both use the same requests (see engine). The embedded engine calls etcd's server functions directly instead of a client:
// no sockets, no second encoding, and the watch is the server's own event stream.
package etcd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"skiff/internal/store"
)

// Config selects the etcd. Either DataDir or Servers is set.
type Config struct {
	// DataDir is the directory of an embedded etcd. It is created with mode 0700.
	DataDir string
	// Listen are addresses, "unix:///run/skiff/etcd.sock" or "https://127.0.0.1:2379", at which the embedded etcd serves
	// other clients, for example for backups. Default: none. https uses CertFile, KeyFile and CAFile.
	Listen []string
	// QuotaBytes limits the size of the embedded etcd's database. Default: 8 GiB.
	QuotaBytes int64
	// Peer makes the embedded etcd a member of a cluster. nil: it is alone and has no open port.
	Peer *Peer

	// Servers are the URLs of an etcd cluster to use instead.
	Servers []string
	// CAFile verifies the servers; CertFile and KeyFile are the client certificate. All are optional.
	CAFile, CertFile, KeyFile string
	// Dial connects to the servers; nil: the network of the host is used.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)

	// CompactionInterval is how long history is kept. Default: 5 minutes. Negative: no compaction.
	CompactionInterval time.Duration
	Log                *slog.Logger
}

const (
	defaultQuotaBytes         = 8 << 30
	defaultCompactionInterval = 5 * time.Minute
)

// engine is an embedded or a remote etcd. Errors are those of package store where it has one.
type engine interface {
	transact(ctx context.Context, request *pb.TxnRequest) (*pb.TxnResponse, error)
	read(ctx context.Context, request *pb.RangeRequest) (*pb.RangeResponse, error)
	grant(ctx context.Context, seconds int64) (lease int64, err error)
	compact(ctx context.Context, revision store.Revision) error
	// current returns a revision not older than any write that completed before the call.
	current(ctx context.Context) (store.Revision, error)
	// follow sends the changes below prefix after the revision until ctx is done.
	follow(ctx context.Context, prefix string, after store.Revision, batches chan<- store.Batch) error
	shared() bool
	sizes(ctx context.Context) (sizes, error)
	healthy(ctx context.Context) error
	// maintain is called after each compaction, of this server or another.
	maintain()
	close() error
}

// Store implements store.Store.
type Store struct {
	engine engine
	leases leases
	log    *slog.Logger

	stop context.CancelFunc
	wait sync.WaitGroup
}

var _ store.Store = (*Store)(nil)

// Open starts the embedded etcd and returns when it accepts writes and, in a cluster, is a voting member; or it creates a client of the servers, which need not
// be available yet. It also starts compaction. Close stops it all.
func Open(ctx context.Context, config Config) (*Store, error) {
	if config.Log == nil {
		config.Log = slog.Default()
	}
	if config.QuotaBytes == 0 {
		config.QuotaBytes = defaultQuotaBytes
	}
	if config.CompactionInterval == 0 {
		config.CompactionInterval = defaultCompactionInterval
	}
	var e engine
	var err error
	switch {
	case (config.DataDir == "") == (len(config.Servers) == 0):
		return nil, errors.New("open etcd: either a data directory or servers must be set")
	case config.DataDir != "":
		e, err = startEmbedded(ctx, config)
	case config.Peer != nil:
		return nil, errors.New("open etcd: a member of a cluster needs a data directory")
	default:
		e, err = dialRemote(config)
	}
	if err != nil {
		return nil, fmt.Errorf("open etcd: %w", err)
	}
	running, stop := context.WithCancel(context.Background())
	s := &Store{engine: e, log: config.Log, stop: stop}
	s.leases.grant = e.grant
	if config.CompactionInterval > 0 {
		s.wait.Go(func() { s.compactEvery(running, config.CompactionInterval) })
	}
	return s, nil
}

// Close stops compaction and the embedded etcd, or closes the connection to the servers.
func (s *Store) Close() error {
	s.stop()
	s.wait.Wait()
	return s.engine.close()
}

func (s *Store) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (store.Revision, error) {
	k := []byte(key)
	var response *pb.TxnResponse
	err := s.leases.use(ctx, ttl, func(lease int64) (err error) {
		response, err = s.engine.transact(ctx, &pb.TxnRequest{
			Compare: writtenAt(k, 0),
			Success: put(k, value, lease),
		})
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("create %s: %w", key, err)
	}
	if !response.Succeeded {
		return 0, fmt.Errorf("create %s: %w", key, store.ErrExists)
	}
	return response.Header.Revision, nil
}

func (s *Store) Update(ctx context.Context, key string, value []byte, ttl time.Duration, expected store.Revision) (revision store.Revision, err error) {
	k := []byte(key)
	isSent := false
	err = s.leases.use(ctx, ttl, func(lease int64) error {
		isSent = true
		revision, err = s.replace(ctx, "update", k, expected, put(k, value, lease))
		return err
	})
	if err != nil && !isSent {
		return 0, fmt.Errorf("update %s: %w", key, err)
	}
	return revision, err
}

func (s *Store) Delete(ctx context.Context, key string, expected store.Revision) (store.Revision, error) {
	k := []byte(key)
	return s.replace(ctx, "delete", k, expected, []*pb.RequestOp{{Request: &pb.RequestOp_RequestDeleteRange{
		RequestDeleteRange: &pb.DeleteRangeRequest{Key: k},
	}}})
}

// replace applies a change to a key that was last written at expected, and otherwise returns the current value as a conflict.
func (s *Store) replace(ctx context.Context, verb string, key []byte, expected store.Revision, change []*pb.RequestOp) (store.Revision, error) {
	if expected <= 0 {
		// For etcd revision 0 means that the key does not exist, which is never what the caller expects.
		expected = -1
	}
	response, err := s.engine.transact(ctx, &pb.TxnRequest{
		Compare: writtenAt(key, expected),
		Success: change,
		Failure: []*pb.RequestOp{{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Key: key}}}},
	})
	if err != nil {
		return 0, fmt.Errorf("%s %s: %w", verb, key, err)
	}
	if response.Succeeded {
		return response.Header.Revision, nil
	}
	conflict := &store.ConflictError{Current: store.KeyValue{Key: string(key)}}
	if found := response.Responses[0].GetResponseRange().Kvs; len(found) > 0 {
		conflict.Current = keyValue(found[0])
	}
	return 0, conflict
}

func writtenAt(key []byte, revision store.Revision) []*pb.Compare {
	return []*pb.Compare{{
		Key: key, Target: pb.Compare_MOD, Result: pb.Compare_EQUAL,
		TargetUnion: &pb.Compare_ModRevision{ModRevision: revision},
	}}
}

func put(key, value []byte, lease int64) []*pb.RequestOp {
	return []*pb.RequestOp{{Request: &pb.RequestOp_RequestPut{
		RequestPut: &pb.PutRequest{Key: key, Value: value, Lease: lease},
	}}}
}

func keyValue(kv *mvccpb.KeyValue) store.KeyValue {
	return store.KeyValue{Key: string(kv.Key), Value: kv.Value, Modified: kv.ModRevision}
}

func (s *Store) Get(ctx context.Context, key string) (store.KeyValue, error) {
	response, err := s.engine.read(ctx, &pb.RangeRequest{Key: []byte(key)})
	if err != nil {
		return store.KeyValue{}, fmt.Errorf("get %s: %w", key, err)
	}
	if len(response.Kvs) == 0 {
		return store.KeyValue{}, fmt.Errorf("get %s: %w", key, store.ErrNotFound)
	}
	return keyValue(response.Kvs[0]), nil
}

// A list is read in pages of about pageBytes, to bound the size of a response.
const (
	pageBytes = 8 << 20
	pageFirst = 500
	pageMax   = 10000
)

func (s *Store) List(ctx context.Context, prefix, from string, limit int, at store.Revision) ([]store.KeyValue, store.Revision, int64, error) {
	end := prefixEnd(prefix)
	next := []byte(max(prefix, from))
	if len(next) == 0 {
		next = []byte{0} // etcd's notation for the first key
	}
	if string(end) != "\x00" && string(next) >= string(end) {
		// from is beyond the prefix. The revision must be checked nevertheless.
		next = end
		limit = 0
	}
	var kvs []store.KeyValue
	page := pageFirst
	for {
		if limit > 0 {
			page = min(page, limit-len(kvs))
		}
		response, err := s.engine.read(ctx, &pb.RangeRequest{Key: next, RangeEnd: end, Limit: int64(page), Revision: at})
		if err != nil {
			return nil, 0, 0, fmt.Errorf("list %s at %d: %w", prefix, at, err)
		}
		if at == 0 {
			// All pages are read at the revision of the first.
			at = response.Header.Revision
		}
		bytes := 0
		for _, kv := range response.Kvs {
			kvs = append(kvs, keyValue(kv))
			bytes += len(kv.Value)
		}
		if !response.More || (limit > 0 && len(kvs) >= limit) {
			return kvs, at, response.Count - int64(len(response.Kvs)), nil
		}
		next = append([]byte(kvs[len(kvs)-1].Key), 0)
		page = min(pageMax, max(10, pageBytes/(bytes/len(response.Kvs)+1)))
	}
}

// prefixEnd returns the first key after all those with the prefix. "\x00" is etcd's notation for the end of all keys.
func prefixEnd(prefix string) []byte {
	end := []byte(prefix)
	for i := len(end) - 1; i >= 0; i-- {
		if end[i] < 0xff {
			end[i]++
			return end[:i+1]
		}
	}
	return []byte{0}
}

func (s *Store) Current(ctx context.Context) (store.Revision, error) {
	revision, err := s.engine.current(ctx)
	if err != nil {
		return 0, fmt.Errorf("read the current revision: %w", err)
	}
	return revision, nil
}

func (s *Store) Compact(ctx context.Context, before store.Revision) error {
	err := s.engine.compact(ctx, before)
	if err == nil || errors.Is(err, store.ErrCompacted) {
		return nil
	}
	return fmt.Errorf("compact to %d: %w", before, err)
}

func (s *Store) Shared() bool { return s.engine.shared() }

func (s *Store) Healthy(ctx context.Context) error { return s.engine.healthy(ctx) }

type watch struct {
	batches chan store.Batch
	err     error
}

func (w *watch) Batches() <-chan store.Batch { return w.batches }
func (w *watch) Err() error                  { return w.err }

// watchEvents is about how many events a batch has at most; progress is how often an idle watch reports its revision.
const (
	watchEvents = 1000
	progress    = time.Second
)

func (s *Store) Watch(ctx context.Context, prefix string, after store.Revision) store.Watch {
	w := &watch{batches: make(chan store.Batch, 4)}
	go func() {
		defer close(w.batches)
		err := s.engine.follow(ctx, prefix, after, w.batches)
		if err != nil && ctx.Err() == nil {
			w.err = fmt.Errorf("watch %s after %d: %w", prefix, after, err)
		}
	}()
	return w
}

// appendEvents converts etcd's events.
func appendEvents(to []store.Event, events []*mvccpb.Event) []store.Event {
	for _, event := range events {
		to = append(to, store.Event{KeyValue: keyValue(event.Kv), Deleted: event.Type == mvccpb.Event_DELETE})
	}
	return to
}
