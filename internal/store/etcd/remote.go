package etcd

import (
	"context"
	"crypto/tls"
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"

	"skiff/internal/store"
)

// The settings of a connection. A server that does not answer a ping for keepAliveTimeout is left for another.
const (
	dialTimeout      = 20 * time.Second
	keepAliveTime    = 30 * time.Second
	keepAliveTimeout = 10 * time.Second
	maxAnswerBytes   = 1<<31 - 1
)

// remote is an etcd cluster reached over the network, which others may use too.
type remote struct {
	client *clientv3.Client
	kv     pb.KVClient

	mu      sync.Mutex
	streams map[*remoteStream]struct{}
}

// remoteStream is a running watch.
type remoteStream struct {
	remote    *remote
	batches   chan<- store.Batch
	delivered atomic.Int64
	lagging   chan struct{} // asks for progress now
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
				secure = &tls.Config{MinVersion: tls.VersionTLS12} // trusts what the system trusts
			}
		}
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints:            c.Servers,
		TLS:                  secure,
		DialTimeout:          dialTimeout,
		DialKeepAliveTime:    keepAliveTime,
		DialKeepAliveTimeout: keepAliveTimeout,
		MaxCallRecvMsgSize:   maxAnswerBytes,
		Logger:               newLogger(c.Log),
	})
	if err != nil {
		return nil, fmt.Errorf("prepare to speak to %v: %w", c.Servers, err)
	}
	return &remote{client: client, kv: clientv3.RetryKVClient(client), streams: map[*remoteStream]struct{}{}}, nil
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

// current reads any key, linearizably: every answer carries the revision. Watches behind it are asked for progress, because
// whoever asks for the revision is about to wait for a watch to reach it.
func (r *remote) current(ctx context.Context) (store.Revision, error) {
	response, err := r.read(ctx, &pb.RangeRequest{Key: []byte(compactKey), KeysOnly: true})
	if err != nil {
		return 0, err
	}
	revision := response.Header.Revision
	r.mu.Lock()
	defer r.mu.Unlock()
	for stream := range r.streams {
		if stream.delivered.Load() < revision {
			select {
			case stream.lagging <- struct{}{}:
			default:
			}
		}
	}
	return revision, nil
}

func (r *remote) shared() bool { return true }

func (r *remote) healthy(ctx context.Context) error {
	_, err := r.read(ctx, &pb.RangeRequest{Key: []byte("health"), KeysOnly: true})
	return err
}

// etcd hands a watch that begins in the past no more than a thousand revisions every tenth of a second, whatever the number
// of watches. Several at once, each a thousand revisions after the other, come to the present in one go.
const (
	pastRevisions = 1000
	pastWatches   = 8
)

func (r *remote) follow(ctx context.Context, prefix string, after store.Revision, batches chan<- store.Batch) error {
	stream := &remoteStream{remote: r, lagging: make(chan struct{}, 1), batches: batches}
	stream.delivered.Store(after)
	r.mu.Lock()
	r.streams[stream] = struct{}{}
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		delete(r.streams, stream)
		r.mu.Unlock()
	}()
	// A member that lost its cluster must say so instead of going silent.
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	current, err := r.current(ctx)
	if err != nil {
		return err
	}
	type part struct {
		responses clientv3.WatchChan
		until     store.Revision
		cancel    context.CancelFunc
	}
	var parts []part
	for from, last := after, false; !last; from += pastRevisions {
		last = from+pastRevisions >= current || len(parts) == pastWatches-1
		p := part{until: from + pastRevisions}
		if last {
			p.until = math.MaxInt64
		}
		var watching context.Context
		watching, p.cancel = context.WithCancel(ctx)
		defer p.cancel()
		p.responses = r.client.Watch(watching, prefix, clientv3.WithRange(string(prefixEnd(prefix))),
			clientv3.WithRev(from+1), clientv3.WithProgressNotify(), clientv3.WithFragment())
		parts = append(parts, p)
	}
	for _, p := range parts {
		if err := stream.forward(ctx, p.responses, p.until, current); err != nil {
			return err
		}
		p.cancel()
	}
	return nil
}

// forward sends what a watch brings up to a revision. Until it has come to the present it asks often how far it is.
func (s *remoteStream) forward(ctx context.Context, responses clientv3.WatchChan, until, current store.Revision) error {
	behind := s.delivered.Load() < current
	ticker := time.NewTicker(progress)
	defer ticker.Stop()
	if behind {
		ticker.Reset(pastProgress)
	}
	for s.delivered.Load() < until {
		select {
		case response, open := <-responses:
			if !open {
				return fmt.Errorf("the stream ended: %w", store.ErrUnavailable)
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

// pastProgress is how often a watch that has not come to the present is asked how far it is.
const pastProgress = 10 * time.Millisecond

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
		// The header may be ahead of events that are still to come.
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

// tend is for those who run the cluster.
func (r *remote) tend() {}

func (r *remote) close() error {
	if err := r.client.Close(); err != nil && r.client.Ctx().Err() == nil {
		return fmt.Errorf("close the connection to etcd: %w", err)
	}
	return nil
}
