package etcd

import (
	"bytes"
	"context"
	"errors"
	"expvar"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/config"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3rpc"
	"go.etcd.io/etcd/server/v3/features"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"skiff/internal/store"
)

// The settings of an etcd that is alone.
const (
	memberName = "skiff"
	// peerURL is where other members would find this one. Nobody listens there.
	peerURL = "http://localhost:2380"
	// A lone member needs no ticks (see elect), and they cost. etcd rounds the lifetime of leases up to three ticks, which
	// are less than the second it counts in.
	tickMilliseconds = 300
	electionTicks    = 2
	// keepEntries is how much of its log etcd keeps in memory for members that lag behind. There are none.
	keepEntries = 100
	// spareQuota is at least what etcd allows beyond our quota, for compaction writes too and must find room.
	spareQuota = 64 << 20
	// maxRequestBytes is etcd's own default; upstream's API servers rely on it.
	maxRequestBytes = 3 << 19
)

// embedded is an etcd server in this process, the only member of its cluster.
type embedded struct {
	server    *etcdserver.EtcdServer
	log       *slog.Logger
	quota     int64
	lock      *os.File // on the data directory, as long as it is open
	listeners []*grpc.Server
	// refused is the size of the last write for which there was no room within the quota, 0 when the last one found room.
	refused atomic.Int64
	// tending keeps one from starting while another runs.
	tending atomic.Bool
	wait    sync.WaitGroup
}

func startEmbedded(ctx context.Context, c Config) (*embedded, error) {
	if err := os.MkdirAll(c.DataDir, 0o700); err != nil {
		return nil, fmt.Errorf("create the data directory: %w", err)
	}
	// It may have existed with another mode.
	if err := os.Chmod(c.DataDir, 0o700); err != nil {
		return nil, fmt.Errorf("close the data directory to others: %w", err)
	}
	lock, err := lockDir(c.DataDir)
	if err != nil {
		return nil, err
	}
	electing.Lock()
	defer electing.Unlock()
	server, err := etcdserver.NewServer(serverConfig(c))
	if err != nil {
		lock.Close()
		return nil, fmt.Errorf("start in %s: %w", c.DataDir, err)
	}
	server.Start()
	e := &embedded{server: server, log: c.Log, quota: c.QuotaBytes, lock: lock}
	if err := e.elect(ctx); err != nil {
		e.close()
		return nil, fmt.Errorf("start in %s: %w", c.DataDir, err)
	}
	if err := errors.Join(e.disarm(ctx), e.listen(c)); err != nil {
		e.close()
		return nil, err
	}
	return e, nil
}

// electing is held while a server starts, because what etcd publishes of raft is that of the server made last.
var electing sync.Mutex

// elect makes the only member the leader and returns when it takes writes. Left alone, it would wait for one to two ticks to
// hear of another leader first; the message sent here is that of a leader who hands over its office.
func (e *embedded) elect(ctx context.Context) error {
	id := uint64(e.server.MemberID())
	retry := time.NewTicker(time.Millisecond)
	defer retry.Stop()
	for {
		if e.server.Lead() == 0 && caughtUp() {
			if err := e.server.Process(ctx, &raftpb.Message{Type: raftpb.MsgTimeoutNow.Enum(), From: &id, To: &id}); err != nil {
				return fmt.Errorf("elect the only member: %w", err)
			}
		}
		select {
		case <-e.server.ReadyNotify():
			return nil
		case <-e.server.StopNotify():
			return errors.New("the server stopped by itself")
		case <-ctx.Done():
			return ctx.Err()
		case <-retry.C:
		}
	}
}

// caughtUp reports whether raft has nothing left to apply of the log it was started with. Before, it must not be told to
// stand for election: it would look for changes of membership in a log that the server may just be shortening.
func caughtUp() bool {
	published, ok := expvar.Get("raft.status").(expvar.Func)
	if !ok {
		return false
	}
	status, ok := published().(raft.Status)
	return ok && status.GetCommit() > 0 && status.Applied == status.GetCommit()
}

// lockDir keeps a second process out of the directory, which etcd itself would let wait for ever.
func lockDir(dir string) (*os.File, error) {
	file, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("open the data directory: %w", err)
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		file.Close()
		return nil, fmt.Errorf("data directory %s is in use by another process: %w", dir, err)
	}
	return file, nil
}

func serverConfig(c Config) config.ServerConfig {
	log := newLogger(c.Log)
	peers := types.MustNewURLs([]string{peerURL})
	_, err := os.Stat(filepath.Join(c.DataDir, "member"))
	return config.ServerConfig{
		Name:                        memberName,
		DataDir:                     c.DataDir,
		PeerURLs:                    peers,
		ClientURLs:                  types.MustNewURLs([]string{"http://localhost:2379"}),
		InitialPeerURLsMap:          types.URLsMap{memberName: peers},
		InitialClusterToken:         memberName,
		NewCluster:                  errors.Is(err, os.ErrNotExist),
		Logger:                      log,
		ServerFeatureGate:           features.NewDefaultServerFeatureGate(memberName, log),
		TickMs:                      tickMilliseconds,
		ElectionTicks:               electionTicks,
		PreVote:                     true,
		QuotaBackendBytes:           c.QuotaBytes + max(c.QuotaBytes/10, spareQuota),
		MaxRequestBytes:             maxRequestBytes,
		MaxTxnOps:                   128,
		SnapshotCount:               etcdserver.DefaultSnapshotCount,
		SnapshotCatchUpEntries:      keepEntries,
		MaxSnapFiles:                2,
		MaxWALFiles:                 2,
		StrictReconfigCheck:         true,
		AuthToken:                   "simple",
		BcryptCost:                  10,
		TokenTTL:                    300,
		MaxConcurrentStreams:        1000,
		WarningApplyDuration:        time.Second,
		WarningUnaryRequestDuration: time.Second,
		WatchProgressNotifyInterval: 10 * time.Minute,
		CompactHashCheckTime:        time.Hour,
		DowngradeCheckTime:          time.Hour,
		V2Deprecation:               config.V2DeprDefault,
		Metrics:                     "basic",
	}
}

// listen answers other clients at the addresses asked for.
func (e *embedded) listen(c Config) error {
	for _, address := range c.Listen {
		at, err := url.Parse(address)
		if err != nil {
			return fmt.Errorf("listen at %q: %w", address, err)
		}
		info := transport.TLSInfo{CertFile: c.CertFile, KeyFile: c.KeyFile, TrustedCAFile: c.CAFile, ClientCertAuth: c.CAFile != ""}
		var server *grpc.Server
		network, host := "tcp", at.Host
		switch at.Scheme {
		case "unix":
			network, host = "unix", at.Path
			server = v3rpc.Server(e.server, nil, nil)
		case "https":
			tls, err := info.ServerConfig()
			if err != nil {
				return fmt.Errorf("listen at %q: %w", address, err)
			}
			server = v3rpc.Server(e.server, tls, nil)
		default:
			return fmt.Errorf("listen at %q: only unix and https keep the data safe", address)
		}
		listener, err := net.Listen(network, host)
		if err != nil {
			return fmt.Errorf("listen at %q: %w", address, err)
		}
		if network == "unix" {
			if err := os.Chmod(host, 0o600); err != nil {
				return fmt.Errorf("close %s to others: %w", host, err)
			}
		}
		e.listeners = append(e.listeners, server)
		go func() {
			if err := server.Serve(listener); err != nil {
				e.log.Warn("etcd no longer answers other clients", "address", address, "error", err)
			}
		}()
	}
	return nil
}

func (e *embedded) transact(ctx context.Context, request *pb.TxnRequest) (*pb.TxnResponse, error) {
	if err := e.room(request); err != nil {
		return nil, err
	}
	response, err := e.server.Txn(ctx, request)
	if err != nil {
		return nil, embeddedError(ctx, err)
	}
	return response, nil
}

// room refuses writes that would make the file outgrow its quota. Deletions and compaction always pass: they make room.
// etcd's own check sits in front of its network API, which this road does not take; behind it etcd would write and complain.
func (e *embedded) room(request *pb.TxnRequest) error {
	size := int64(0)
	for _, change := range request.Success {
		if put := change.GetRequestPut(); put != nil && string(put.Key) != compactKey {
			size += int64(len(put.Key) + len(put.Value))
		}
	}
	switch {
	case size == 0:
		return nil
	case e.server.Backend().Size()+size <= e.quota:
		e.refused.Store(0)
		return nil
	}
	if e.refused.Swap(size) == 0 {
		e.log.Error("the store is full and takes no more writes", "quota", e.quota)
		e.tend()
	}
	return fmt.Errorf("no space within the quota of %d bytes: %w", e.quota, store.ErrUnavailable)
}

func (e *embedded) read(ctx context.Context, request *pb.RangeRequest) (*pb.RangeResponse, error) {
	response, err := e.server.Range(ctx, request)
	if err != nil {
		return nil, embeddedError(ctx, err)
	}
	return response, nil
}

func (e *embedded) grant(ctx context.Context, seconds int64) (int64, error) {
	response, err := e.server.LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: seconds})
	if err != nil {
		return 0, embeddedError(ctx, err)
	}
	return response.ID, nil
}

func (e *embedded) compact(ctx context.Context, revision store.Revision) error {
	_, err := e.server.Compact(ctx, &pb.CompactionRequest{Revision: revision})
	return embeddedError(ctx, err)
}

// current is what this server has applied: it is the only one, and a write returns after it was applied here.
func (e *embedded) current(ctx context.Context) (store.Revision, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	select {
	case <-e.server.StopNotify():
		return 0, fmt.Errorf("etcd has stopped: %w", store.ErrUnavailable)
	default:
		return e.server.KV().Rev(), nil
	}
}

func (e *embedded) shared() bool { return len(e.listeners) > 0 }

func (e *embedded) healthy(ctx context.Context) error {
	if err := e.server.LinearizableReadNotify(ctx); err != nil {
		return embeddedError(ctx, err)
	}
	for _, alarm := range e.server.Alarms() {
		return fmt.Errorf("etcd raised alarm %s: %w", alarm.Alarm, store.ErrUnavailable)
	}
	if refused := e.refused.Load(); refused > 0 && e.server.Backend().Size()+refused > e.quota {
		return fmt.Errorf("no space within the quota of %d bytes: %w", e.quota, store.ErrUnavailable)
	}
	return nil
}

func (e *embedded) follow(ctx context.Context, prefix string, after store.Revision, batches chan<- store.Batch) error {
	for {
		batch, err := e.past(prefix, after)
		if err != nil {
			return err
		}
		if batch.Revision <= after {
			break
		}
		after = batch.Revision
		if err := e.send(ctx, batch, batches); err != nil {
			return err
		}
	}
	stream := e.server.Watchable().NewWatchStream()
	defer stream.Close()
	end := prefixEnd(prefix)
	if string(end) == "\x00" {
		end = []byte{} // what the stream calls no end
	}
	id, err := stream.Watch(ctx, mvcc.WatchID(0), []byte(prefix), end, after+1)
	if err != nil {
		return fmt.Errorf("%w: %w", store.ErrUnavailable, err)
	}
	ticker := time.NewTicker(progress)
	defer ticker.Stop()
	for {
		select {
		case response := <-stream.Chan():
			batch, err := gather(stream, response, after)
			if err != nil {
				return err
			}
			if batch.Revision <= after {
				continue
			}
			after = batch.Revision
			if err := e.send(ctx, batch, batches); err != nil {
				return err
			}
		case <-ticker.C:
			if stream.Rev() > after {
				stream.RequestProgress(id)
			}
		case <-ctx.Done():
			return nil
		case <-e.server.StopNotify():
			return store.ErrUnavailable
		}
	}
}

func (e *embedded) send(ctx context.Context, batch store.Batch, batches chan<- store.Batch) error {
	select {
	case batches <- batch:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-e.server.StopNotify():
		return store.ErrUnavailable
	}
}

// past reads what happened after a revision out of the file, about watchEvents of it; the batch is at the revision
// itself when nothing did. The server's own watch would bring it too, but only a thousand revisions every tenth of a second.
func (e *embedded) past(prefix string, after store.Revision) (store.Batch, error) {
	batch := store.Batch{Revision: min(e.server.KV().Rev(), after+watchEvents)}
	if batch.Revision <= after {
		return batch, nil
	}
	var err error
	if batch.Events, err = e.changes(prefix, after, batch.Revision); err != nil {
		return batch, err
	}
	// Compaction moves its mark before it removes anything. If the mark is not beyond what was read, nothing was missing.
	if e.server.KV().FirstRev() > after+1 {
		return batch, store.ErrCompacted
	}
	return batch, nil
}

// changes reads those after one revision up to another.
func (e *embedded) changes(prefix string, after, until store.Revision) (events []store.Event, err error) {
	from := mvcc.RevToBytes(mvcc.Revision{Main: after + 1}, mvcc.NewRevBytes())
	to := mvcc.RevToBytes(mvcc.Revision{Main: until + 1}, mvcc.NewRevBytes())
	// A concurrent transaction would be kinder to writers, but may show what was committed a moment ago twice.
	tx := e.server.Backend().ReadTx()
	tx.RLock()
	defer tx.RUnlock()
	revisions, values := tx.UnsafeRange(schema.Key, from, to, 0)
	for i, value := range values {
		kv := &mvccpb.KeyValue{}
		if err := proto.Unmarshal(value, kv); err != nil {
			return nil, fmt.Errorf("read the change of revision %d: %w", mvcc.BytesToRev(revisions[i]).Main, err)
		}
		if !bytes.HasPrefix(kv.Key, []byte(prefix)) {
			continue
		}
		event := store.Event{KeyValue: keyValue(kv), Deleted: mvcc.IsTombstone(revisions[i])}
		event.Modified = mvcc.BytesToRev(revisions[i]).Main
		events = append(events, event)
	}
	return events, nil
}

// gather makes one batch of a response and those that wait behind it.
func gather(stream mvcc.WatchStream, response mvcc.WatchResponse, after store.Revision) (store.Batch, error) {
	batch := store.Batch{Revision: after}
	for {
		if response.CompactRevision != 0 {
			return batch, store.ErrCompacted
		}
		if n := len(response.Events); n > 0 {
			batch.Events = appendEvents(batch.Events, response.Events)
			// The response's own revision may be ahead of events that are still to come.
			batch.Revision = response.Events[n-1].Kv.ModRevision
		} else {
			batch.Revision = max(batch.Revision, response.Revision)
		}
		if len(batch.Events) >= watchEvents {
			return batch, nil
		}
		select {
		case response = <-stream.Chan():
		default:
			return batch, nil
		}
	}
}

// disarm takes back an alarm that etcd raised for lack of space, in an earlier run or for another client, if there is
// space now.
func (e *embedded) disarm(ctx context.Context) error {
	for _, alarm := range e.server.Alarms() {
		if alarm.Alarm != pb.AlarmType_NOSPACE || e.server.Backend().Size() >= e.quota {
			continue
		}
		_, err := e.server.Alarm(ctx, &pb.AlarmRequest{Action: pb.AlarmRequest_DEACTIVATE, MemberID: alarm.MemberID, Alarm: alarm.Alarm})
		if err != nil {
			return fmt.Errorf("take back the alarm %s: %w", alarm.Alarm, err)
		}
	}
	return nil
}

// The file is written anew when that gives back at least spareBytes, and more than half of it: the server stands still
// meanwhile, so it must be worth it.
const spareBytes = 256 << 20

// tend gives the file's unused space back to the system when that is worth it, and ends the alarm when there is space.
func (e *embedded) tend() {
	if !e.tending.CompareAndSwap(false, true) {
		return
	}
	e.wait.Go(func() {
		defer e.tending.Store(false)
		if size, used := e.server.Backend().Size(), e.server.Backend().SizeInUse(); worthShrinking(size, used, e.quota) {
			start := time.Now()
			if err := e.server.Defragment(); err != nil {
				e.log.Warn("cannot shrink the store's file", "error", err)
				return
			}
			e.log.Info("shrank the store's file", "from", size, "to", e.server.Backend().Size(), "took", time.Since(start))
		}
		if err := e.disarm(context.Background()); err != nil {
			e.log.Warn("the store takes no writes although there is space", "error", err)
		}
	})
}

// worthShrinking: much is to be gained, or the file is nearly full and a fifth of the quota would be free.
func worthShrinking(size, used, quota int64) bool {
	return (size-used >= spareBytes && used <= size/2) || (size >= quota*9/10 && used < quota*8/10)
}

func (e *embedded) close() error {
	for _, listener := range e.listeners {
		listener.Stop()
	}
	e.wait.Wait()
	e.server.HardStop() // nobody can take over
	e.lock.Close()
	return nil
}
