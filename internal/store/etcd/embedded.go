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
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"skiff/internal/store"
)

// The settings of a single-member etcd.
const (
	memberName = "skiff"
	// peerURL is the URL for other members. Nothing listens there.
	peerURL = "http://localhost:2380"
	// A single member needs no ticks to elect a leader (see elect), and they cost CPU. etcd rounds the TTL of leases up to
	// three ticks, which is less than its unit of one second.
	tickMilliseconds = 300
	electionTicks    = 2
	// catchUpEntries is how many log entries etcd keeps in memory for members that lag behind. There are none; 0 would be etcd's default.
	catchUpEntries = 10
	// spareQuota is how much etcd's own quota exceeds that of ordinary writes, because deletions and compaction need space to write.
	spareQuota = 64 << 20
	// maxRequestBytes is etcd's default, on which upstream's API servers rely.
	maxRequestBytes = 3 << 19
)

// embedded is an etcd server in this process.
type embedded struct {
	server    *etcdserver.EtcdServer
	log       *slog.Logger
	dir       string
	quota     int64
	lock      *os.File // locks the data directory while it is open
	listeners []*grpc.Server
	// peers serves the other members of a cluster; nil: this is the only member.
	peers   *peerServer
	streams streams
	// rejectedBytes is the size of the last write for which there was no space. It is 0 when writes are accepted; otherwise reclaim runs.
	rejectedBytes atomic.Int64
	// maintaining is true while maintain runs, usageHigh when most of the quota is in use, diskLow when little of the disk is free.
	maintaining, usageHigh, diskLow atomic.Bool
	defragmenting                   sync.Mutex
	// isDefragmenting is what this member says to others (beginDefragmentation); defragmentFailed is set after it has failed, until it succeeds.
	isDefragmenting, defragmentFailed atomic.Bool
	allocation                        allocation
	// running is done when the store is closed.
	running context.Context
	stop    context.CancelFunc
	wait    sync.WaitGroup
}

func startEmbedded(ctx context.Context, c Config) (*embedded, error) {
	if err := os.MkdirAll(c.DataDir, 0o700); err != nil {
		return nil, fmt.Errorf("create data directory: %w", err)
	}
	// The directory may have existed with another mode.
	if err := os.Chmod(c.DataDir, 0o700); err != nil {
		return nil, fmt.Errorf("restrict permissions of data directory: %w", err)
	}
	lock, err := lockDir(c.DataDir)
	if err != nil {
		return nil, err
	}
	if err := restoreSegment(c.DataDir); err != nil {
		lock.Close()
		return nil, err
	}
	if free, err := freeBytes(c.DataDir); err == nil {
		if err := checkNewMember(c.DataDir, free); err != nil {
			lock.Close()
			return nil, err
		}
	}
	e := &embedded{log: c.Log, dir: c.DataDir, quota: c.QuotaBytes, lock: lock}
	e.running, e.stop = context.WithCancel(context.Background())
	if err := e.startServer(ctx, c); err != nil {
		e.close()
		return nil, fmt.Errorf("start etcd in %s: %w", c.DataDir, err)
	}
	if err := errors.Join(e.disarm(ctx), e.listen(c)); err != nil {
		e.close()
		return nil, err
	}
	// A server without space serves reads from the start.
	e.allocate()
	e.warnUsage()
	e.warnDisk()
	if err := e.lacksSpace(0, forWrites); err != nil {
		e.reject(1, err)
	}
	e.wait.Go(func() { e.unmapPeriodically(e.running) })
	return e, nil
}

// startServer starts the server and returns when it accepts writes.
func (e *embedded) startServer(ctx context.Context, c Config) (err error) {
	if c.Peer != nil {
		if e.peers, err = listenPeers(c.Peer); err != nil {
			return err
		}
	}
	if err := e.createServer(ctx, c); err != nil || c.Peer == nil {
		return err
	}
	return e.joinMembers(ctx, c.Peer)
}

// electionMu is held until the only member is the leader, because etcd publishes the raft status of the server that was created last.
var electionMu sync.Mutex

// createServer creates and starts the server. The only voting member is the leader when it returns.
func (e *embedded) createServer(ctx context.Context, c Config) (err error) {
	electionMu.Lock()
	defer electionMu.Unlock()
	settings := serverConfig(c)
	if settings.ForceNewCluster {
		if err := commitLog(settings.Logger, c.DataDir); err != nil {
			return err
		}
	}
	if e.server, err = etcdserver.NewServer(settings); err != nil {
		return err
	}
	if settings.ForceNewCluster {
		e.server.ForceSnapshot() // for SkipRevisions
	}
	e.server.Start()
	if e.peers != nil {
		e.peers.serve(e, settings.Logger)
	}
	if !e.isOnlyVoter() {
		return nil
	}
	return e.elect(ctx)
}

// elect makes the only member the leader and returns when it accepts writes. By itself it would first wait one to two
// ticks for another leader; the message sent here is that of a leader that transfers its leadership.
func (e *embedded) elect(ctx context.Context) error {
	id := uint64(e.server.MemberID())
	retry := time.NewTicker(time.Millisecond)
	defer retry.Stop()
	for {
		// The log may add members that are not yet applied.
		if e.server.Lead() == 0 && logApplied() && e.isOnlyVoter() {
			if err := e.server.Process(ctx, &raftpb.Message{Type: raftpb.MsgTimeoutNow.Enum(), From: &id, To: &id}); err != nil {
				return fmt.Errorf("elect the only member: %w", err)
			}
		}
		select {
		case <-e.server.ReadyNotify():
			return nil
		case <-e.server.StopNotify():
			return errStopped
		case <-ctx.Done():
			return ctx.Err()
		case <-retry.C:
		}
	}
}

// logApplied reports whether raft has applied all of the log that it was started with. A campaign before that would
// look for membership changes in a log that the server may be truncating.
func logApplied() bool {
	published, ok := expvar.Get("raft.status").(expvar.Func)
	if !ok {
		return false
	}
	status, ok := published().(raft.Status)
	return ok && status.GetCommit() > 0 && status.Applied == status.GetCommit()
}

// lockDir refuses a directory that another process uses, where etcd itself would wait forever.
func lockDir(dir string) (*os.File, error) {
	file, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("open data directory: %w", err)
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		file.Close()
		return nil, fmt.Errorf("data directory %s is in use by another process: %w", dir, err)
	}
	return file, nil
}

// writeQuota is the quota of ordinary writes: the configured one, without what is kept for deletions and compaction.
func writeQuota(configured int64) int64 { return configured - min(configured/10, spareQuota) }

func serverConfig(c Config) config.ServerConfig {
	end := fatal{log: c.Log, dir: c.DataDir, exit: os.Exit}
	log := newLogger(c.Log, zap.WithFatalHook(end), zap.WithPanicHook(end))
	peers := types.MustNewURLs([]string{peerURL})
	_, err := os.Stat(filepath.Join(c.DataDir, "member"))
	settings := config.ServerConfig{
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
		QuotaBackendBytes:           writeQuota(c.QuotaBytes) + spareQuota,
		MaxRequestBytes:             maxRequestBytes,
		MaxTxnOps:                   128,
		SnapshotCount:               etcdserver.DefaultSnapshotCount,
		SnapshotCatchUpEntries:      catchUpEntries,
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
	if c.Peer != nil {
		c.Peer.configure(&settings)
	}
	return settings
}

// listen serves other clients at the configured addresses.
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
			return fmt.Errorf("listen at %q: only unix and https are supported", address)
		}
		listener, err := net.Listen(network, host)
		if err != nil {
			return fmt.Errorf("listen at %q: %w", address, err)
		}
		if network == "unix" {
			if err := os.Chmod(host, 0o600); err != nil {
				return fmt.Errorf("restrict permissions of %s: %w", host, err)
			}
		}
		e.listeners = append(e.listeners, server)
		go func() {
			if err := server.Serve(listener); err != nil {
				e.log.Warn("failed to serve other etcd clients", "address", address, "error", err)
			}
		}()
	}
	return nil
}

func (e *embedded) transact(ctx context.Context, request *pb.TxnRequest) (*pb.TxnResponse, error) {
	if err := e.checkSpace(ctx, request); err != nil {
		return nil, err
	}
	response, err := e.server.Txn(ctx, request)
	if err = embeddedError(ctx, err); err != nil {
		if errors.Is(err, store.ErrNoSpace) {
			e.reject(1, err) // another client of this etcd has raised the alarm
		}
		return nil, err
	}
	return response, nil
}

func (e *embedded) read(ctx context.Context, request *pb.RangeRequest) (response *pb.RangeResponse, err error) {
	err = e.retryLeaderChange(ctx, func() error {
		response, err = e.server.Range(ctx, request)
		return err
	})
	if err != nil {
		return nil, embeddedError(ctx, err)
	}
	return response, nil
}

func (e *embedded) grant(ctx context.Context, seconds int64) (int64, error) {
	if err := e.lacksSpace(0, forWrites); err != nil {
		e.reject(1, err)
		return 0, err
	}
	response, err := e.server.LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: seconds})
	if err != nil {
		return 0, embeddedError(ctx, err)
	}
	return response.ID, nil
}

func (e *embedded) compact(ctx context.Context, revision store.Revision) error {
	if err := e.lacksDisk(); err != nil {
		return err
	}
	_, err := e.server.Compact(ctx, &pb.CompactionRequest{Revision: revision})
	return embeddedError(ctx, err)
}

// current is the revision that this server has applied. For the only member that suffices, because a write returns after it was applied. In a
// cluster this member first applies what the leader has committed.
func (e *embedded) current(ctx context.Context) (store.Revision, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	if e.peers != nil {
		if err := e.retryLeaderChange(ctx, func() error { return e.server.LinearizableReadNotify(ctx) }); err != nil {
			return 0, embeddedError(ctx, err)
		}
	}
	select {
	case <-e.server.StopNotify():
		return 0, fmt.Errorf("etcd has stopped: %w", store.ErrUnavailable)
	default:
	}
	revision := e.server.KV().Rev()
	if e.shared() {
		e.streams.requestProgress(revision)
	}
	return revision, nil
}

func (e *embedded) shared() bool { return len(e.listeners) > 0 || e.peers != nil }

// healthy does not fail when there is no space: reads must be served, and a restart would not help.
func (e *embedded) healthy(ctx context.Context) error {
	if err := e.retryLeaderChange(ctx, func() error { return e.server.LinearizableReadNotify(ctx) }); err != nil {
		return embeddedError(ctx, err)
	}
	for _, alarm := range e.server.Alarms() {
		if alarm.Alarm != pb.AlarmType_NOSPACE {
			return fmt.Errorf("etcd raised alarm %s: %w", alarm.Alarm, store.ErrUnavailable)
		}
	}
	return nil
}

func (e *embedded) follow(ctx context.Context, prefix string, after store.Revision, batches chan<- store.Batch) error {
	for {
		batch, err := e.readHistory(prefix, after)
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
	state := e.streams.add(after)
	defer e.streams.remove(state)
	stream := e.server.Watchable().NewWatchStream()
	defer stream.Close()
	end := prefixEnd(prefix)
	if string(end) == "\x00" {
		end = []byte{} // the watch stream's notation for no end
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
			batch, err := collectBatch(stream, response, after)
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
			state.delivered.Store(after)
		case <-state.lagging:
			stream.RequestProgress(id)
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

// readHistory reads about watchEvents changes after a revision from the database file; without changes the batch has that
// revision. The server's own watch would return them too, but at most a thousand revisions every 100 ms.
func (e *embedded) readHistory(prefix string, after store.Revision) (store.Batch, error) {
	batch := store.Batch{Revision: min(e.server.KV().Rev(), after+watchEvents)}
	if batch.Revision <= after {
		return batch, nil
	}
	var err error
	if batch.Events, err = e.changes(prefix, after, batch.Revision); err != nil {
		return batch, err
	}
	// Compaction advances FirstRev before it removes anything, so nothing that was read is missing if FirstRev is not beyond it.
	if e.server.KV().FirstRev() > after+1 {
		return batch, store.ErrCompacted
	}
	return batch, nil
}

// changes reads the changes after one revision up to another.
func (e *embedded) changes(prefix string, after, until store.Revision) (events []store.Event, err error) {
	from := mvcc.RevToBytes(mvcc.Revision{Main: after + 1}, mvcc.NewRevBytes())
	to := mvcc.RevToBytes(mvcc.Revision{Main: until + 1}, mvcc.NewRevBytes())
	// A concurrent transaction would block writers less, but may return recently committed changes twice.
	tx := e.server.Backend().ReadTx()
	tx.RLock()
	defer tx.RUnlock()
	revisions, values := tx.UnsafeRange(schema.Key, from, to, 0)
	for i, value := range values {
		kv := &mvccpb.KeyValue{}
		if err := proto.Unmarshal(value, kv); err != nil {
			return nil, fmt.Errorf("decode change at revision %d: %w", mvcc.BytesToRev(revisions[i]).Main, err)
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

// collectBatch merges a response and those queued behind it into one batch.
func collectBatch(stream mvcc.WatchStream, response mvcc.WatchResponse, after store.Revision) (store.Batch, error) {
	batch := store.Batch{Revision: after}
	for {
		if response.CompactRevision != 0 {
			return batch, store.ErrCompacted
		}
		if n := len(response.Events); n > 0 {
			batch.Events = appendEvents(batch.Events, response.Events)
			// The response's own revision may be ahead of events that follow.
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

func (e *embedded) close() error {
	for _, listener := range e.listeners {
		listener.Stop()
	}
	e.stop()
	e.wait.Wait()
	defer e.lock.Close()
	defer e.peers.close()
	if e.server == nil {
		return nil
	}
	restore := keepSegment(e.dir)
	if e.peers == nil {
		e.server.HardStop() // there is no other member to transfer leadership to
	} else {
		e.stopMember()
	}
	if err := restore(); err != nil {
		return fmt.Errorf("keep log segment: %w", err)
	}
	return nil
}
