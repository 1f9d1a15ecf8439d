package etcd

import (
	"context"
	"crypto/tls"
	"fmt"
	"math"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"skiff/internal/store"
)

// The settings of a connection. When a server does not respond to a ping within keepAliveTimeout, another is used.
const (
	dialTimeout      = 20 * time.Second
	keepAliveTime    = 30 * time.Second
	keepAliveTimeout = 10 * time.Second
	maxResponseBytes = 1<<31 - 1
)

// remote is an etcd cluster reached over the network, which other clients may use too.
type remote struct {
	client  *clientv3.Client
	kv      pb.KVClient
	watches atomic.Int64 // started so far
	streams streams
}

// remoteStream is a running watch.
type remoteStream struct {
	*streamProgress
	remote  *remote
	batches chan<- store.Batch
}

func dialRemote(c Config) (*remote, error) {
	var secure *tls.Config
	if c.CAFile != "" || c.CertFile != "" || c.KeyFile != "" {
		info := transport.TLSInfo{CertFile: c.CertFile, KeyFile: c.KeyFile, TrustedCAFile: c.CAFile}
		var err error
		if secure, err = info.ClientConfig(); err != nil {
			return nil, fmt.Errorf("read certificates: %w", err)
		}
	} else {
		for _, server := range c.Servers {
			if strings.HasPrefix(server, "https://") {
				secure = &tls.Config{MinVersion: tls.VersionTLS12} // system CAs
			}
		}
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints:            c.Servers,
		DialOptions:          dialOptions(c.Dial),
		TLS:                  secure,
		DialTimeout:          dialTimeout,
		DialKeepAliveTime:    keepAliveTime,
		DialKeepAliveTimeout: keepAliveTimeout,
		MaxCallRecvMsgSize:   maxResponseBytes,
		Logger:               newLogger(c.Log),
	})
	if err != nil {
		return nil, fmt.Errorf("create client for %v: %w", c.Servers, err)
	}
	return &remote{client: client, kv: clientv3.RetryKVClient(client)}, nil
}

// dialOptions make gRPC connect with a dialer, unless it is nil.
func dialOptions(dial func(ctx context.Context, network, address string) (net.Conn, error)) []grpc.DialOption {
	if dial == nil {
		return nil
	}
	return []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) { return dial(ctx, "tcp", address) })}
}

func (r *remote) transact(ctx context.Context, request *pb.TxnRequest) (*pb.TxnResponse, error) {
	response, err := r.kv.Txn(ctx, request)
	if err != nil {
		return nil, remoteError(ctx, err)
	}
	return response, nil
}

func (r *remote) read(ctx context.Context, request *pb.RangeRequest) (*pb.RangeResponse, error) {
	response, err := r.kv.Range(ctx, request)
	if err != nil {
		return nil, remoteError(ctx, err)
	}
	return response, nil
}

func (r *remote) grant(ctx context.Context, seconds int64) (int64, error) {
	response, err := r.client.Grant(ctx, seconds)
	if err != nil {
		return 0, remoteError(ctx, err)
	}
	return int64(response.ID), nil
}

func (r *remote) compact(ctx context.Context, revision store.Revision) error {
	_, err := r.kv.Compact(ctx, &pb.CompactionRequest{Revision: revision})
	return remoteError(ctx, err)
}

// current reads any key, linearizably: every response contains the revision. It requests progress from watches that are
// behind, because the caller is about to wait for a watch to reach that revision.
func (r *remote) current(ctx context.Context) (store.Revision, error) {
	response, err := r.read(ctx, &pb.RangeRequest{Key: []byte(compactKey), KeysOnly: true})
	if err != nil {
		return 0, err
	}
	r.streams.requestProgress(response.Header.Revision)
	return response.Header.Revision, nil
}

func (r *remote) shared() bool { return true }

func (r *remote) healthy(ctx context.Context) error {
	_, err := r.read(ctx, &pb.RangeRequest{Key: []byte("health"), KeysOnly: true})
	return err
}

// etcd sends a watch that starts in the past at most a thousand revisions every 100 ms, whatever the number of watches.
// Several watches at once, each starting a thousand revisions after the other, catch up in one round.
const (
	catchUpRevisions = 1000
	catchUpWatches   = 8
)

func (r *remote) follow(ctx context.Context, prefix string, after store.Revision, batches chan<- store.Batch) error {
	stream := &remoteStream{streamProgress: r.streams.add(after), remote: r, batches: batches}
	defer r.streams.remove(stream.streamProgress)
	// A member that lost its cluster must return an error instead of sending nothing.
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	current, err := r.current(ctx)
	if err != nil {
		return err
	}
	type segment struct {
		ctx       context.Context
		responses clientv3.WatchChan
		until     store.Revision
		cancel    context.CancelFunc
	}
	var segments []segment
	for from, last := after, false; !last; from += catchUpRevisions {
		last = from+catchUpRevisions >= current || len(segments) == catchUpWatches-1
		p := segment{until: from + catchUpRevisions}
		if last {
			p.until = math.MaxInt64
		}
		p.ctx, p.cancel = context.WithCancel(r.ownStream(ctx))
		defer p.cancel()
		p.responses = r.client.Watch(p.ctx, prefix, clientv3.WithRange(string(prefixEnd(prefix))),
			clientv3.WithRev(from+1), clientv3.WithProgressNotify(), clientv3.WithFragment())
		segments = append(segments, p)
	}
	for _, p := range segments {
		if err := stream.forward(p.ctx, p.responses, p.until, current); err != nil {
			return err
		}
		p.cancel()
	}
	return nil
}

// ownStream returns a context whose watch has a gRPC stream of its own: the client shares streams between watches with equal metadata,
// and hands a progress notification to all watches of a stream. One that was sent before a watch was created can arrive after it, and
// would make the watch skip the events up to that revision.
func (r *remote) ownStream(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "skiff-watch", strconv.FormatInt(r.watches.Add(1), 10))
}

// forward sends the changes of a watch up to a revision. ctx is the watch's. Until it has caught up it requests progress often.
func (s *remoteStream) forward(ctx context.Context, responses clientv3.WatchChan, until, current store.Revision) error {
	behind := s.delivered.Load() < current
	ticker := time.NewTicker(progress)
	defer ticker.Stop()
	if behind {
		ticker.Reset(catchUpProgress)
	}
	for s.delivered.Load() < until {
		select {
		case response, open := <-responses:
			if !open {
				return fmt.Errorf("watch stream ended: %w", store.ErrUnavailable)
			}
			if err := response.Err(); err != nil {
				return remoteError(ctx, err)
			}
			if err := s.deliver(ctx, &response, until); err != nil {
				return err
			}
			if behind && s.delivered.Load() >= current {
				behind = false
				ticker.Reset(progress)
			}
			continue
		case <-ticker.C:
		case <-s.lagging:
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := s.remote.client.RequestProgress(ctx); err != nil {
			return remoteError(ctx, err)
		}
	}
	return nil
}

// catchUpProgress is how often a watch that has not caught up is asked for progress.
const catchUpProgress = 10 * time.Millisecond

// deliver sends the new events of a response that are not after until.
func (s *remoteStream) deliver(ctx context.Context, response *clientv3.WatchResponse, until store.Revision) error {
	var batch store.Batch
	delivered := s.delivered.Load()
	switch n := len(response.Events); {
	case n > 0:
		for _, event := range response.Events {
			if revision := event.Kv.ModRevision; revision > delivered && revision <= until {
				batch.Events = append(batch.Events, store.Event{KeyValue: keyValue(event.Kv), Deleted: event.Type == clientv3.EventTypeDelete})
			}
		}
		// The header's revision may be ahead of events that follow.
		batch.Revision = min(until, response.Events[n-1].Kv.ModRevision)
	case response.IsProgressNotify():
		batch.Revision = min(until, response.Header.Revision)
	}
	if batch.Revision <= delivered {
		return nil
	}
	select {
	case s.batches <- batch:
		s.delivered.Store(batch.Revision)
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// maintain does nothing: the cluster's operator maintains it.
func (r *remote) maintain() {}

func (r *remote) close() error {
	if err := r.client.Close(); err != nil && r.client.Ctx().Err() == nil {
		return fmt.Errorf("close connection to etcd: %w", err)
	}
	return nil
}
