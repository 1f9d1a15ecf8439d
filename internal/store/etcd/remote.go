package etcd

import (
	"context"
	"crypto/tls"
	"fmt"
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

func (r *remote) follow(ctx context.Context, prefix string, after store.Revision, batches chan<- store.Batch) error {
	stream := &remoteStream{lagging: make(chan struct{}, 1)}
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
	responses := r.client.Watch(ctx, prefix, clientv3.WithRange(string(prefixEnd(prefix))),
		clientv3.WithRev(after+1), clientv3.WithProgressNotify(), clientv3.WithFragment())
	ticker := time.NewTicker(progress)
	defer ticker.Stop()
	for {
		select {
		case response, open := <-responses:
			if !open {
				return fmt.Errorf("the stream ended: %w", store.ErrUnavailable)
			}
			if err := response.Err(); err != nil {
				return remoteError(ctx, err)
			}
			batch := store.Batch{Revision: response.Header.Revision}
			if n := len(response.Events); n > 0 {
				batch.Events = make([]store.Event, 0, n)
				for _, event := range response.Events {
					batch.Events = append(batch.Events, store.Event{
						KeyValue: keyValue(event.Kv), Deleted: event.Type == clientv3.EventTypeDelete,
					})
				}
				// The header may be ahead of events that are still to come.
				batch.Revision = response.Events[n-1].Kv.ModRevision
			} else if !response.IsProgressNotify() {
				continue
			}
			if batch.Revision <= after {
				continue
			}
			after = batch.Revision
			stream.delivered.Store(after)
			select {
			case batches <- batch:
			case <-ctx.Done():
				return nil
			}
		case <-ticker.C:
			if err := r.client.RequestProgress(ctx); err != nil && ctx.Err() == nil {
				return remoteError(ctx, err)
			}
		case <-stream.lagging:
			if err := r.client.RequestProgress(ctx); err != nil && ctx.Err() == nil {
				return remoteError(ctx, err)
			}
		case <-ctx.Done():
			return nil
		}
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
