package etcd

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/etcd/server/v3/storage"
	"go.uber.org/zap"
)

// Of the servers that share an etcd one compacts per interval, and another takes over when it stops.
func TestCompactionIsCoordinated(t *testing.T) {
	ctx := context.Background()
	address := "unix://" + t.TempDir() + "/socket"
	var servers []*Store
	for _, config := range []Config{{DataDir: t.TempDir(), Listen: []string{address}}, {Servers: []string{address}}} {
		config.CompactionInterval = -1
		config.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
		s, err := Open(ctx, config)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		servers = append(servers, s)
	}
	a, b := servers[0], servers[1]
	var lastA, lastB compaction
	for i, test := range []struct {
		s        *Store
		last     *compaction
		compacts bool
	}{
		{a, &lastA, false}, // the key is new: records the revision
		{b, &lastB, false}, // too late: learns the version
		{a, &lastA, true},  // to the revision of its first attempt
		{b, &lastB, false}, // too late again
		{a, &lastA, true},
		{b, &lastB, false},
		// a has stopped
		{b, &lastB, true},
		{b, &lastB, true},
		{a, &lastA, false}, // back, too late
	} {
		before := test.last.revision
		if _, err := a.Create(ctx, "/registry/"+string(rune('a'+i)), nil, 0); err != nil {
			t.Fatal(err)
		}
		compacted, err := test.s.compactOnce(ctx, test.last)
		if err != nil {
			t.Fatalf("last %d: %v", i, err)
		}
		if (compacted > 0) != test.compacts || (compacted > 0 && compacted != before) {
			t.Errorf("last %d compacted to %d, want %v to %d", i, compacted, test.compacts, before)
		}
	}
}

func TestLeasesAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		begin := time.Now()
		type granted struct{ from, until time.Duration }
		ends := map[int64]granted{}
		l := leases{grant: func(_ context.Context, seconds int64) (int64, error) {
			id := int64(len(ends) + 1)
			now := time.Since(begin)
			ends[id] = granted{now, now + time.Duration(seconds)*time.Second}
			return id, nil
		}}
		for range 600 { // an object a second, each living an hour
			id, err := l.get(ctx, time.Hour)
			if err != nil {
				t.Fatal(err)
			}
			now := time.Since(begin)
			if life := ends[id].until - now; life < time.Hour || life > time.Hour+maxLeaseSlack {
				t.Errorf("an object of an hour lives %v", life)
			}
			time.Sleep(time.Second)
		}
		if n := len(ends); n < 10 || n > 11 {
			t.Errorf("%d leases for ten minutes, want one a minute", n)
		}
		before := len(ends)
		for range 3 * maxLeaseObjects {
			l.get(ctx, time.Hour)
		}
		if n := len(ends) - before; n != 3 {
			t.Errorf("%d more leases for %d objects", n, 3*maxLeaseObjects)
		}
		if id, err := l.get(ctx, 0); id != 0 || err != nil {
			t.Errorf("lease of an object that stays: %d, %v", id, err)
		}
		failure := errors.New("failure")
		l.grant = func(context.Context, int64) (int64, error) { return 0, failure }
		if _, err := l.get(ctx, time.Second); !errors.Is(err, failure) {
			t.Errorf("got %v", err)
		}
	})
}

func TestWorthDefragmenting(t *testing.T) {
	const megabyte = 1 << 20
	for _, test := range []struct {
		name string
		usage
		want bool
	}{
		{"too little to gain", usage{size: 100, inUse: 1, free: 9999}, false},
		{"two thirds to gain", usage{size: 600, inUse: 200, free: 9999}, true},
		{"two thirds, but no space for the copy", usage{size: 600, inUse: 200, free: 200}, false},
		{"a third to gain", usage{size: 600, inUse: 400, free: 9999}, false},
		{"nearly full, with unused space", usage{size: 7500, inUse: 6000, free: 9999}, true},
		{"nearly full, in use", usage{size: 7500, inUse: 7400, free: 9999}, false},
		{"a rejected write would fit", usage{size: 7300, inUse: 6000, free: 9999, rejected: 1000}, true},
		{"a rejected write would not fit", usage{size: 7300, inUse: 6900, free: 9999, rejected: 1000}, false},
		{"full disk", usage{size: 100, inUse: 50, free: 100, rejected: 1}, true},
		{"full disk, little to gain", usage{size: 100, inUse: 90, free: 120, rejected: 1}, false},
	} {
		u := usage{
			size: test.size * megabyte, inUse: test.inUse * megabyte, quota: 8192 * megabyte, free: test.free * megabyte, rejected: test.rejected * megabyte,
		}
		if got := u.worthDefragmenting(); got != test.want {
			t.Errorf("%s: %v", test.name, got)
		}
	}
}

// At most one member defragments its file, the leader after the others, and none that is needed.
func TestDeferDefragmentation(t *testing.T) {
	const running, wanted = 1, 2
	says := func(id string, isLeader bool, what int) memberDefragmentation {
		return memberDefragmentation{Member{ID: id, Name: id, IsLeader: isLeader}, defragmentation{Running: what == running, Wanted: what == wanted}, nil}
	}
	silent := func(id string) memberDefragmentation {
		return memberDefragmentation{Member: Member{ID: id, Name: id}, err: errors.New("no route")}
	}
	follower, leader := Member{ID: "b"}, Member{ID: "b", IsLeader: true}
	for _, test := range []struct {
		name         string
		self         Member
		others       []memberDefragmentation
		calm, urgent string // why it is deferred; empty: it is not
	}{
		{"alone", leader, nil, "", ""},
		{"no other wants to", follower, []memberDefragmentation{says("a", true, 0), says("c", false, 0)}, "", ""},
		{"another runs", follower, []memberDefragmentation{says("a", true, 0), says("c", false, running)}, "c defragments its file", "c defragments its file"},
		{"the leader runs", follower, []memberDefragmentation{says("a", true, running), says("c", false, 0)}, "a defragments its file", "a defragments its file"},
		{"before the leader", follower, []memberDefragmentation{says("a", true, wanted), says("c", false, wanted)}, "", ""},
		{"after another follower", follower, []memberDefragmentation{says("a", false, wanted), says("c", true, wanted)}, "a is to defragment", "a is to defragment"},
		{"the leader is last", leader, []memberDefragmentation{says("a", false, 0), says("c", false, wanted)}, "c is to defragment", "c is to defragment"},
		{"one is silent", follower, []memberDefragmentation{says("a", true, 0), silent("c")}, "c does not respond: no route", ""},
		{"no majority", follower, []memberDefragmentation{silent("a"), silent("c")}, "a does not respond", "no majority"},
		{"the other of two is silent", follower, []memberDefragmentation{silent("a")}, "a does not respond", "no majority"},
		{"two of five", follower, []memberDefragmentation{says("a", true, 0), silent("c"), silent("d"), silent("e")}, "c does not respond", "no majority"},
		{"three of five", follower, []memberDefragmentation{says("a", true, 0), says("c", false, 0), silent("d"), silent("e")}, "d does not respond", ""},
	} {
		for isUrgent, want := range map[bool]string{false: test.calm, true: test.urgent} {
			if got := deferDefragmentation(test.self, test.others, isUrgent); (got == "") != (want == "") || !strings.HasPrefix(got, want) {
				t.Errorf("%s, urgent %v: %q, want %q", test.name, isUrgent, got, want)
			}
		}
	}
}

func TestLogBridge(t *testing.T) {
	var out strings.Builder
	target := slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))
	exited := 0
	end := fatal{log: target, dir: t.TempDir(), exit: func(code int) { exited += code }}
	log := newLogger(target, zap.WithFatalHook(end), zap.WithPanicHook(end))
	log.Sugar().Info("chatter")
	log.Sugar().Warnw("trouble", "key", "value")
	log.Sugar().With("member", 1).Errorw("failure")
	log.Warn("simple token is not cryptographically signed")
	log.Error("failed to update storage version", zap.Error(errors.New("cannot detect storage schema version: missing term information")))
	log.Error("failed to update storage version", zap.Error(errors.New("disk is full")))
	log.Fatal("failed to commit tx")
	log.Panic("failed to create WAL", zap.Error(errors.New("no space left on device")))
	got := out.String()
	if exited != 2 {
		t.Errorf("%d instead of 2 messages have ended the process with code 1", exited)
	}
	for _, unwanted := range []string{"chatter", "simple token", "missing term"} {
		if strings.Contains(got, unwanted) {
			t.Errorf("log has %q: %s", unwanted, got)
		}
	}
	for _, want := range []string{`msg="failed to update storage version" error="disk is full"`, `level=WARN msg=trouble key=value`, `level=ERROR msg=failure member=1`,
		`level=ERROR msg="etcd failed, the process ends and must be restarted" cause="failed to commit tx" directory=`, ` free=`,
		`level=ERROR msg="failed to create WAL" error="no space left on device"`, `cause="failed to create WAL" directory=`} {
		if !strings.Contains(got, want) {
			t.Errorf("log has no %q: %s", want, got)
		}
	}
}

// What etcd repeats while a member is unreachable, or its clock differs, is logged once in an hour for each member.
func TestLogWithoutRepetitions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		log := newLogger(slog.New(slog.NewTextHandler(&out, nil))).With(zap.String("local", "a"))
		const drift = "prober found high clock drift"
		for range 3 * 120 {
			for _, peer := range []string{"b", "c"} {
				for _, tripper := range []string{"messages", "snapshots"} {
					log.Warn(drift, zap.String("round-tripper-name", tripper), zap.String("remote-peer-id", peer), zap.Duration("clock-drift", 2*time.Second))
				}
			}
			log.Warn("other")
			time.Sleep(30 * time.Second)
		}
		for text, want := range map[string]int{drift: 6, "remote-peer-id=b": 3, "msg=other": 360} {
			if got := strings.Count(out.String(), text); got != want {
				t.Errorf("%q is logged %d times in three hours, want %d", text, got, want)
			}
		}
	})
}

func TestDiskLow(t *testing.T) {
	low := false
	for _, step := range []struct {
		free int64
		want bool
	}{{10 << 30, false}, {600 << 20, false}, {500 << 20, true}, {600 << 20, true}, {641 << 20, false}, {600 << 20, false}} {
		if low = isDiskLow(low, step.free); low != step.want {
			t.Errorf("%d MiB free: %v", step.free>>20, low)
		}
	}
}

// A new member needs space for its log. One that has data starts without.
func TestCheckNewMember(t *testing.T) {
	dir := t.TempDir()
	if err := checkNewMember(dir, newMemberBytes); err != nil {
		t.Error(err)
	}
	var path *fs.PathError
	if err := checkNewMember(dir, newMemberBytes-1); !errors.Is(err, syscall.ENOSPC) || !errors.As(err, &path) || path.Path != dir {
		t.Errorf("without space: %v", err)
	}
	if err := os.MkdirAll(logDir(dir), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(logDir(dir), "0000000000000000-0000000000000000.wal"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := checkNewMember(dir, 0); err != nil {
		t.Errorf("with data: %v", err)
	}
}

// The default quota is the largest that etcd starts with without a warning.
func TestDefaultQuota(t *testing.T) {
	if got := serverConfig(Config{QuotaBytes: defaultQuotaBytes, Log: slog.New(slog.DiscardHandler)}).QuotaBackendBytes; got != storage.MaxQuotaBytes {
		t.Errorf("etcd's quota is %d by default, its maximum %d", got, int64(storage.MaxQuotaBytes))
	}
}

// Blocks for what etcd writes next are allocated: at the start, and when it has used half of them.
func TestAllocatedAhead(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "probe"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := allocateFile(filepath.Join(dir, "probe"), 4096); errors.Is(err, errors.ErrUnsupported) {
		t.Skip("the file system of the temporary directory cannot allocate")
	}
	s, err := Open(ctx, Config{DataDir: dir, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	e := s.engine.(*embedded)
	for i := range 40 {
		size := e.server.Backend().Size()
		if ahead := allocatedBytes(databaseFile(dir)) - size; ahead < allocatedAhead/2-(4<<20) {
			t.Fatalf("%d bytes are allocated ahead of %d", ahead, size)
		}
		if _, err := s.Create(ctx, "/registry/"+strconv.Itoa(i), make([]byte, 1<<20), 0); err != nil {
			t.Fatal(err)
		}
		e.server.Backend().ForceCommit() // which updates the size
	}
	if info, err := os.Stat(databaseFile(dir)); err != nil || info.Size() >= allocatedBytes(databaseFile(dir)) {
		t.Errorf("%d bytes, of which %d are allocated, %v", info.Size(), allocatedBytes(databaseFile(dir)), err)
	}
}

// The segment of the log that etcd has allocated in advance is the next one after a restart, unless something was written to it.
func TestSegmentIsKept(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(logDir(dir), nextSegment)
	// restart returns whether the segment has the mark. A new file could have the number of the old one.
	const markAt = 1 << 20
	restart := func() (marked bool) {
		t.Helper()
		s, err := Open(context.Background(), Config{DataDir: dir, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Create(context.Background(), "/registry/"+t.Name()+time.Now().String(), nil, 0); err != nil {
			t.Fatal(err)
		}
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
			if info, err := os.Stat(path); err == nil && info.Size() > 0 {
				break
			}
			if time.Now().After(deadline) {
				t.Fatal("etcd allocates no segment")
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatalf("no segment is kept: %v", err)
		}
		return content[markAt] != 0
	}
	write := func(at int64) {
		t.Helper()
		file, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		if _, err := file.WriteAt([]byte{1}, at); err != nil {
			t.Fatal(err)
		}
	}
	if restart() {
		t.Fatal("a new segment has content")
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if allocated := info.Sys().(*syscall.Stat_t).Blocks * 512; allocated < info.Size() {
		t.Errorf("%d of %d bytes of the segment are allocated", allocated, info.Size())
	}
	write(markAt)
	if !restart() {
		t.Error("the segment was allocated again")
	}
	// Crashes leave it behind under other names.
	for _, name := range allocatedSegments {
		if err := os.Rename(path, filepath.Join(logDir(dir), name)); err != nil {
			t.Fatal(err)
		}
		if !restart() {
			t.Errorf("the segment %s was allocated again", name)
		}
	}
	write(100)
	if restart() {
		t.Error("a segment to which etcd had begun to write is used again")
	}
	entries, err := filepath.Glob(filepath.Join(logDir(dir), "*.tmp"))
	if err != nil || len(entries) != 1 {
		t.Errorf("segments left behind: %v, %v", entries, err)
	}
}

// Progress is requested from the watches that are behind a revision, and from no others.
func TestRequestProgress(t *testing.T) {
	var s streams
	behind, upToDate, removed := s.add(4), s.add(5), s.add(1)
	s.remove(removed)
	for range 2 { // a second request while one is pending is dropped
		s.requestProgress(5)
	}
	if len(behind.lagging) != 1 || len(upToDate.lagging) != 0 || len(removed.lagging) != 0 {
		t.Errorf("requests: %d of the watch behind, %d of the one up to date, %d of the removed one", len(behind.lagging), len(upToDate.lagging), len(removed.lagging))
	}
}

// One member that responds is enough: those that do not are not waited for.
func TestFirstResponding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		silent, dead, slow := Member{Name: "silent"}, Member{Name: "dead"}, Member{Name: "slow"}
		refused := errors.New("connection refused")
		probe := func(ctx context.Context, m Member) error {
			switch m {
			case silent:
				<-ctx.Done()
				return ctx.Err()
			case dead:
				return refused
			}
			time.Sleep(time.Second)
			return nil
		}
		for _, test := range []struct {
			members []Member
			want    Member
			after   time.Duration
			err     error
		}{
			{[]Member{silent, dead, slow}, slow, time.Second, nil},
			{[]Member{silent, dead}, Member{}, transferTimeout, refused},
			{[]Member{dead}, Member{}, 0, refused},
		} {
			ctx, cancel := context.WithTimeout(t.Context(), transferTimeout)
			started := time.Now()
			got, err := firstResponding(ctx, test.members, probe)
			if after := time.Since(started); got != test.want || after != test.after || !errors.Is(err, test.err) {
				t.Errorf("of %v %q responds after %v, %v; want %q after %v, %v", test.members, got.Name, after, err, test.want.Name, test.after, test.err)
			}
			cancel()
		}
		if _, err := firstResponding(t.Context(), nil, probe); err == nil {
			t.Error("one of no members responds")
		}
	})
}

// The revision of a restored database is newer than every one that clients may have seen, also if the clock is wrong.
func TestRestoredRevision(t *testing.T) {
	now := time.Date(2026, 5, 6, 7, 8, 9, 0, time.UTC)
	first := restoredRevision(1000, now)
	seen := first + 5000*3600 // after an hour with many writes
	for _, test := range []struct {
		latest int64
		now    time.Time
		after  int64
	}{
		{1000, now.Add(time.Hour), seen},
		{seen, now.Add(time.Hour), seen + revisionBump/2},
		{seen, time.Unix(0, 0), seen + revisionBump/2},
	} {
		if got := restoredRevision(test.latest, test.now); got <= test.after || got > 1<<53 {
			t.Errorf("revision %d at %v is restored as %d, want more than %d", test.latest, test.now, got, test.after)
		}
	}
}

// Who waits for a lease that is being granted to another caller stops waiting when its context is done.
func TestLeaseWaitEndsWithContext(t *testing.T) {
	granting, granted := make(chan struct{}), make(chan struct{})
	l := leases{grant: func(context.Context, int64) (int64, error) {
		close(granting)
		<-granted
		return 1, nil
	}}
	first := make(chan error, 1)
	go func() {
		_, err := l.get(context.Background(), time.Hour)
		first <- err
	}()
	<-granting
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	second := make(chan error, 1)
	go func() {
		_, err := l.get(canceled, time.Hour)
		second <- err
	}()
	select {
	case err := <-second:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("error %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("a caller waits although its context is done")
	}
	close(granted)
	if err := <-first; err != nil {
		t.Error(err)
	}
}
