package audit

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
)

const everything = "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules: [{level: Metadata}]\n"

// open makes an Auditor and runs it until stop is called.
func open(t *testing.T, c Config) (a *Auditor, stop func()) {
	t.Helper()
	c.PolicyFile = filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(c.PolicyFile, []byte(everything), 0o600); err != nil {
		t.Fatal(err)
	}
	a, err := New(c, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return a, stop
}

func counted(c prometheus.Counter) float64 {
	var m dto.Metric
	if err := c.Write(&m); err != nil {
		return -1
	}
	return m.GetCounter().GetValue()
}

func one(a *Auditor, id string) bool {
	e := a.Begin(newRequest("GET", "/x"), id, time.Now(), ask("tim get /x"))
	ok := e.RecordReceived(false)
	e.Started(200)
	e.Complete()
	return ok
}

func readLog(t *testing.T, path string) (ids []string) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		var e auditv1.Event
		if err := json.Unmarshal([]byte(line), &e); err != nil || !strings.HasSuffix(line, "\n") {
			t.Fatalf("%v: %q", err, line)
		}
		ids = append(ids, string(e.AuditID))
	}
	return ids
}

func TestLogOrder(t *testing.T) {
	for _, mode := range []string{ModeBlocking, ModeBlockingStrict} {
		path := filepath.Join(t.TempDir(), "logs", "audit.log")
		a, stop := open(t, Config{Log: Log{Path: path, BackendOptions: BackendOptions{Mode: mode}}})
		const senders, each = 8, 300
		var all sync.WaitGroup
		for s := range senders {
			all.Go(func() {
				for i := range each {
					one(a, fmt.Sprintf("%d/%d", s, i))
				}
			})
		}
		all.Wait()
		if mode == ModeBlockingStrict && len(readLog(t, path)) != senders*each {
			t.Error("a request went on before its event was written")
		}
		stop()
		next := map[string]int{}
		ids := readLog(t, path)
		for _, id := range ids {
			sender, n, _ := strings.Cut(id, "/")
			if n != fmt.Sprint(next[sender]) {
				t.Fatalf("%s after %d", id, next[sender]-1)
			}
			next[sender]++
		}
		if len(ids) != senders*each || counted(a.metrics.events) != senders*each {
			t.Errorf("mode %s: %d events", mode, len(ids))
		}
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%v %v", info.Mode(), err)
		}
	}
}

func TestLogBatchWait(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	a, _ := open(t, Config{Log: Log{Path: path, BackendOptions: BackendOptions{Mode: ModeBlocking}}})
	one(a, "1")
	for deadline := time.Now().Add(5 * time.Second); len(readLog(t, path)) == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the file is empty")
		}
	}
}

func TestStrictModeRejects(t *testing.T) {
	a, _ := newAuditor(t, "rules: [{level: Metadata}]")
	file := &logFile{auditor: a, strict: true, out: brokenWriter{}}
	a.outputs = []output{{backend: file}}
	if one(a, "1") {
		t.Error("the request was not rejected")
	}
	if counted(a.metrics.rejected) != 1 || counted(a.metrics.errors.WithLabelValues("log")) != 2 {
		t.Error("it was not counted")
	}
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, io.ErrShortWrite }

func TestFullQueue(t *testing.T) {
	lost := 0
	q := newQueue(&BackendOptions{BufferSize: 3, MaxSize: 1}, time.Hour, '\n')
	q.lost = func(n int, _ error) { lost += n }
	var got bytes.Buffer
	q.deliver = func(events []byte, count int) { got.Write(events) }
	for i := range 5 {
		q.put([]byte(fmt.Sprint(i)))
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	q.run(ctx)
	if got.String() != "0\n1\n2\n" || lost != 2 {
		t.Errorf("%q and %d lost", got.String(), lost)
	}
	q.put([]byte("late"))
	if lost != 3 {
		t.Error("an event after shutdown is not counted as lost")
	}
}

func TestBatchesAreBounded(t *testing.T) {
	q := newQueue(&BackendOptions{BufferSize: 100, MaxSize: 4, MaxWait: time.Hour, Truncate: true, MaxBatchBytes: 12}, 0, ',')
	q.retains = true
	batches := make(chan string, 100)
	q.deliver = func(events []byte, count int) { batches <- fmt.Sprintf("%d %s", count, events) }
	for _, event := range []string{"1", "2", "3", "4", "5", "longlong", "6"} {
		q.put([]byte(event))
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); q.run(ctx) }()
	if got := <-batches; got != "4 1,2,3,4," {
		t.Error(got)
	}
	cancel()
	<-done
	if got := <-batches; got != "2 5,longlong," {
		t.Error(got)
	}
	if got := <-batches; got != "1 6," {
		t.Error(got)
	}
}

func TestRotation(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "audit.log")
	old := filepath.Join(dir, "audit-2020-01-01T00-00-00.000.log")
	for _, name := range []string{old, filepath.Join(dir, "audit-else.log"), filepath.Join(dir, "other.log")} {
		if err := os.WriteFile(name, []byte("x\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	f, err := openRotating(Log{Path: path, MaxAge: 30, MaxBackups: 2, Compress: true}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	f.maxBytes = 20
	for i := range 6 {
		// Lines are not split, also when several are written at once or one is longer than a file.
		text := fmt.Sprintf("line %d\nline %d again\n", i, i)
		if i == 3 {
			text += strings.Repeat("x", 30) + "\n"
		}
		if n, err := f.Write([]byte(text)); err != nil || n != len(text) {
			t.Fatal(n, err)
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	backups, err := f.backups()
	if err != nil || len(backups) < 5 {
		t.Fatal(backups, err)
	}
	for _, b := range backups {
		data, err := os.ReadFile(filepath.Join(dir, b.name))
		if err != nil || len(data) == 0 || data[len(data)-1] != '\n' || (len(data) > 20 && bytes.Count(data, []byte("\n")) > 1) {
			t.Errorf("%s: %q %v", b.name, data, err)
		}
	}
	if err := f.cleanup(time.Now()); err != nil {
		t.Fatal(err)
	}
	left, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(left) != 5 { // the log, two backups, and two other files
		t.Errorf("%v %v", left, err)
	}
	packed, err := f.backups()
	if err != nil || len(packed) != 2 || !strings.HasSuffix(packed[0].name, ".log.gz") {
		t.Fatal(packed, err)
	}
	file, err := os.Open(filepath.Join(dir, packed[0].name))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	r, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(r); err != nil || !strings.Contains(string(text), "line") {
		t.Errorf("%q %v", text, err)
	}
}

// receiver is an audit webhook.
type receiver struct {
	mu     sync.Mutex
	sizes  []int
	ids    map[string]bool
	failed atomic.Int32 // how many requests to fail
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if r.failed.Add(-1) >= 0 {
		http.Error(w, "not now", http.StatusInternalServerError)
		return
	}
	var list auditv1.EventList
	if err := json.NewDecoder(req.Body).Decode(&list); err != nil || list.Kind != "EventList" || list.APIVersion != "audit.k8s.io/v1" {
		http.Error(w, fmt.Sprint(err), http.StatusBadRequest)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sizes = append(r.sizes, len(list.Items))
	for _, e := range list.Items {
		r.ids[string(e.AuditID)] = true
	}
}

func newReceiver(t *testing.T) (*receiver, string) {
	r := &receiver{ids: map[string]bool{}}
	server := httptest.NewServer(r)
	t.Cleanup(server.Close)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf("{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: s}}], clusters: [{name: s, cluster: {server: %q}}]}", server.URL+"/events")
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return r, kubeconfig
}

func TestWebhookBatches(t *testing.T) {
	r, kubeconfig := newReceiver(t)
	r.failed.Store(2)
	a, stop := open(t, Config{Webhook: Webhook{KubeconfigFile: kubeconfig, InitialBackoff: time.Millisecond, BackendOptions: BackendOptions{
		Mode: ModeBatch, BufferSize: 1000, MaxSize: 30, MaxWait: 20 * time.Millisecond, Throttle: true, QPS: 1000, Burst: 10,
	}}})
	for i := range 100 {
		one(a, fmt.Sprint(i))
	}
	stop()
	if len(r.ids) != 100 {
		t.Errorf("%d of 100 events arrived", len(r.ids))
	}
	for _, size := range r.sizes {
		if size > 30 {
			t.Errorf("a batch of %d", size)
		}
	}
	if len(r.sizes) > 20 {
		t.Errorf("%d batches for 100 events", len(r.sizes))
	}
}

func TestWebhookFailures(t *testing.T) {
	r, kubeconfig := newReceiver(t)
	r.failed.Store(1000)
	for _, mode := range []string{ModeBlocking, ModeBlockingStrict} {
		a, stop := open(t, Config{Webhook: Webhook{KubeconfigFile: kubeconfig, InitialBackoff: time.Microsecond, BackendOptions: BackendOptions{Mode: mode}}})
		a.policy = parse(t, "rules: [{level: Metadata, omitStages: [ResponseComplete]}]")
		if ok := one(a, "1"); ok != (mode == ModeBlocking) {
			t.Errorf("mode %s: %v", mode, ok)
		}
		if n := counted(a.metrics.errors.WithLabelValues("webhook")); n != 1 {
			t.Errorf("%v errors", n)
		}
		stop()
	}
}

func TestNewWithoutPolicyOrBackend(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	if a, err := New(Config{Log: Log{Path: "-"}}, log); a != nil || err != nil {
		t.Error(a, err)
	}
	policy := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(policy, []byte(everything), 0o600); err != nil {
		t.Fatal(err)
	}
	if a, err := New(Config{PolicyFile: policy}, log); a != nil || err != nil {
		t.Error(a, err)
	}
	if _, err := New(Config{PolicyFile: policy + ".gone"}, log); err == nil || !strings.Contains(err.Error(), "read audit policy") {
		t.Error(err)
	}
}

// BenchmarkMetadata measures both events of a request at level Metadata, without the disk.
func BenchmarkMetadata(b *testing.B) {
	a, err := benchmarkAuditor(b)
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	r := newRequest("POST", "/api/v1/namespaces/default/pods?fieldManager=kubectl-client-side-apply&fieldValidation=Strict", "User-Agent: kubectl/v1.37.1 (linux/amd64) kubernetes/0123456")
	attributes := ask("system:serviceaccount:kube-system:deployment-controller create pods default")
	attributes.Version = "v1"
	attributes.User.UID = "0b1c9a0e-6d6c-4b8e-9a5c-0c5c0d1d7c11"
	attributes.User.Groups = []string{"system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated"}
	b.ReportAllocs()
	began := processorTime(b)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			e := a.Begin(r, "e3c0cd4a-7c58-4c3f-9b38-7f5ec4cb8e15", time.Now(), attributes)
			e.RecordReceived(false)
			e.Annotate("authorization.k8s.io/decision", "allow")
			e.Annotate("authorization.k8s.io/reason", `RBAC: allowed by ClusterRoleBinding "system:controller:deployment-controller" of ClusterRole "system:controller:deployment-controller" to ServiceAccount "deployment-controller/kube-system"`)
			e.Started(201)
			e.Complete()
		}
	})
	cancel()
	if err := <-done; err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(processorTime(b)-began)/float64(b.N), "cpu-ns/op")
}

// processorTime is the CPU time of this process, which on a busy host is a better measure than wall time.
func processorTime(b *testing.B) time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

func benchmarkAuditor(b *testing.B) (*Auditor, error) {
	policy := filepath.Join(b.TempDir(), "policy.yaml")
	text := strings.Replace(everything, "omitStages: [RequestReceived]\n", "", 1)
	if err := os.WriteFile(policy, []byte(text), 0o600); err != nil {
		return nil, err
	}
	return New(Config{PolicyFile: policy, Log: Log{
		Path: os.DevNull, BackendOptions: BackendOptions{Mode: ModeBlocking},
	}}, slog.New(slog.DiscardHandler))
}
