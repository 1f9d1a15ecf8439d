package chaos

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"skiff/test/cluster"
)

// gracefulWriters is how many clients write during TestGracefulRestart, each on objectsPerWriter objects.
const (
	gracefulWriters  = 8
	objectsPerWriter = 20
)

// TestGracefulRestart restarts a server with SIGTERM again and again under concurrent writers and watchers. Every request gets a
// response, or is refused in a way that allows its client to send it again. SKIFF_CRASH_ROUNDS sets the number of restarts.
func TestGracefulRestart(t *testing.T) {
	for _, implementation := range []string{"skiff", "go"} {
		t.Run(implementation, func(t *testing.T) {
			n := rounds(t, 10)
			if implementation == "go" {
				n = max(1, n/5)
			}
			// With controllers and scheduler, which write until the last request has ended.
			restartGracefully(t, n, "--http2-server="+implementation, "--without=")
		})
	}
}

func restartGracefully(t *testing.T, restarts int, flags ...string) {
	dir := t.TempDir()
	server := startSkiff(t, dir, flags...)
	defer func() { server.Stop() }()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	report := &restartReport{}
	var clients sync.WaitGroup
	var writers []*restartWriter
	// Writers share connections in pairs.
	var shared *http.Client
	for id := range gracefulWriters {
		if id%2 == 0 {
			shared = newHTTP2Client(t, server)
		}
		w := &restartWriter{id: id, client: shared, url: server.URL + "/api/v1/namespaces/default/configmaps", report: report}
		writers = append(writers, w)
		clients.Go(func() { w.run(ctx) })
	}
	for range 2 {
		client := newHTTP2Client(t, server)
		clients.Go(func() {
			watchCleanly(ctx, client, server.URL+"/api/v1/namespaces/default/configmaps?watch=true", report)
		})
	}
	for range restarts {
		// A restart begins when all writers have written since the last one.
		for _, w := range writers {
			w.waitForProgress(t)
		}
		time.Sleep(rand.N(100 * time.Millisecond))
		if code := server.Server[0].Terminate(); code != 0 {
			t.Errorf("exit code %d after SIGTERM; the log ends:\n%s", code, server.Server[0].Log(20))
		}
		server = startSkiff(t, dir, flags...)
	}
	for _, w := range writers {
		w.waitForProgress(t)
	}
	stop()
	clients.Wait()
	for _, err := range report.failures {
		t.Error(err)
	}
	client := newHTTP2Client(t, server)
	for _, w := range writers {
		w.check(t, client)
	}
	t.Logf("%d restarts, %d responses, %d connections refused, %d closed before the request was sent, %d watches ended",
		restarts, report.responses.Load(), report.refused.Load(), report.unsent.Load(), report.watches.Load())
	if report.watches.Load() < int64(restarts) {
		t.Errorf("%d watches ended in %d restarts", report.watches.Load(), restarts)
	}
}

// TestShutdownDelay: after the first signal everything is served, but /readyz fails. The second signal ends the process at once.
func TestShutdownDelay(t *testing.T) {
	server := startSkiff(t, t.TempDir(), "--shutdown-delay-duration=1h")
	defer server.Stop()
	client := newHTTP2Client(t, server)
	get := func(path string) (code int, body string) {
		response, err := client.Get(server.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		return response.StatusCode, string(text)
	}
	if err := server.Server[0].Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	code, body := get("/readyz")
	for deadline := time.Now().Add(time.Minute); code == http.StatusOK && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		code, body = get("/readyz")
	}
	if code != http.StatusInternalServerError || !strings.Contains(body, "[-]shutdown failed: reason withheld") {
		t.Errorf("/readyz: %d %s", code, body)
	}
	if code, body := get("/livez"); code != http.StatusOK {
		t.Errorf("/livez: %d %s", code, body)
	}
	w := &restartWriter{client: newHTTP2Client(t, server), url: server.URL + "/api/v1/namespaces/default/configmaps", report: &restartReport{}}
	if code, body := w.send(t.Context(), http.MethodPost, w.url, object("during-delay", "")); code != http.StatusCreated {
		t.Errorf("create on a new connection: status %d %s, %v", code, body, w.report.failures)
	}
	if code := server.Server[0].Terminate(); code != 1 {
		t.Errorf("exit code %d after the second signal; the log ends:\n%s", code, server.Server[0].Log(20))
	}
}

// newHTTP2Client returns a client with a connection of its own. It sends a request again only where HTTP/2 guarantees that the server has
// not processed it.
func newHTTP2Client(t *testing.T, server *cluster.Cluster) *http.Client {
	t.Helper()
	config, err := server.Config()
	if err != nil {
		t.Fatal(err)
	}
	var secure *tls.Config
	if secure, err = rest.TLSConfigFor(config); err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{TLSClientConfig: secure, ForceAttemptHTTP2: true}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// restartReport is what the clients have observed.
type restartReport struct {
	responses, refused, unsent, watches atomic.Int64

	mu       sync.Mutex
	failures []error
}

func (r *restartReport) fail(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.failures) < 20 {
		r.failures = append(r.failures, fmt.Errorf(format, args...))
	}
}

// restartWriter creates, updates and deletes objects that no one else writes.
type restartWriter struct {
	id     int
	client *http.Client
	url    string
	report *restartReport
	count  int
	acked  atomic.Int64
	// objects are the acknowledged states, nil for an object that does not exist.
	objects [objectsPerWriter]*corev1.ConfigMap
}

func (w *restartWriter) name(i int) string { return fmt.Sprintf("writer-%d-%d", w.id, i) }

// run writes until ctx is done. Each request is sent until it gets a response.
func (w *restartWriter) run(ctx context.Context) {
	for ctx.Err() == nil {
		w.count++
		i := rand.IntN(objectsPerWriter)
		obj := object(w.name(i), fmt.Sprint(w.count))
		method, url, want := http.MethodPost, w.url, http.StatusCreated
		if old := w.objects[i]; old != nil {
			method, url, want = http.MethodPut, w.url+"/"+w.name(i), http.StatusOK
			obj.ResourceVersion = old.ResourceVersion
			if rand.IntN(10) == 0 {
				method = http.MethodDelete
			}
		}
		code, body := w.send(ctx, method, url, obj)
		if code == 0 {
			continue
		}
		if code != want {
			w.report.fail("%s of %s: status %d: %s", method, obj.Name, code, body)
			w.objects[i] = nil
			continue
		}
		w.objects[i] = nil
		if method != http.MethodDelete {
			w.objects[i] = &corev1.ConfigMap{}
			if err := json.Unmarshal(body, w.objects[i]); err != nil {
				w.report.fail("%s of %s: %v", method, obj.Name, err)
			}
		}
		w.acked.Add(1)
	}
}

// send sends a request until the server responds. It returns 0 if the outcome is unknown, which is a failure.
func (w *restartWriter) send(ctx context.Context, method, url string, obj *corev1.ConfigMap) (code int, body []byte) {
	var content []byte
	if method != http.MethodDelete {
		content, _ = json.Marshal(obj)
	}
	for {
		code, body, err := w.try(method, url, content)
		switch {
		case err == nil && code == http.StatusTooManyRequests:
		case err == nil:
			w.report.responses.Add(1)
			return code, body
		case errors.Is(err, errNotSent):
			if ctx.Err() != nil {
				return 0, nil
			}
		default:
			w.report.fail("%s of %s: unknown outcome: %v", method, obj.Name, err)
			return 0, nil
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// errNotSent: the request has not left the client.
var errNotSent = errors.New("not sent")

// try sends a request once. It is not cancelled, so that its outcome is known.
func (w *restartWriter) try(method, url string, content []byte) (int, []byte, error) {
	var sent atomic.Bool
	trace := &httptrace.ClientTrace{WroteHeaders: func() { sent.Store(true) }}
	request, err := http.NewRequestWithContext(httptrace.WithClientTrace(context.Background(), trace), method, url, bytes.NewReader(content))
	if err != nil {
		return 0, nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := w.client.Do(request)
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		w.report.refused.Add(1)
		return 0, nil, errNotSent
	case err != nil && !sent.Load():
		w.report.unsent.Add(1)
		return 0, nil, errNotSent
	case err != nil:
		return 0, nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return response.StatusCode, body, err
}

// waitForProgress waits until a write was acknowledged since the call.
func (w *restartWriter) waitForProgress(t *testing.T) {
	t.Helper()
	for before, deadline := w.acked.Load(), time.Now().Add(time.Minute); w.acked.Load() == before; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("writer %d makes no progress: %v", w.id, w.report.failures)
		}
	}
}

// check compares the objects of the server with the acknowledged writes.
func (w *restartWriter) check(t *testing.T, client *http.Client) {
	t.Helper()
	for i, want := range w.objects {
		response, err := client.Get(w.url + "/" + w.name(i))
		if err != nil {
			t.Fatal(err)
		}
		var got corev1.ConfigMap
		err = json.NewDecoder(response.Body).Decode(&got)
		_ = response.Body.Close()
		switch {
		case err != nil:
			t.Fatal(err)
		case want == nil && response.StatusCode != http.StatusNotFound:
			t.Errorf("%s exists after its acknowledged deletion", w.name(i))
		case want != nil && (got.ResourceVersion != want.ResourceVersion || got.Data["value"] != want.Data["value"]):
			t.Errorf("%s is %q at %s, acknowledged was %q at %s", w.name(i), got.Data["value"], got.ResourceVersion, want.Data["value"], want.ResourceVersion)
		}
	}
}

// watchCleanly watches until ctx is done and reports watches that do not end as a watch should: with the end of the response.
func watchCleanly(ctx context.Context, client *http.Client, url string, report *restartReport) {
	version := ""
	for ctx.Err() == nil {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"&resourceVersion="+version, nil)
		if err != nil {
			report.fail("watch: %v", err)
			return
		}
		response, err := client.Do(request)
		if err != nil {
			time.Sleep(5 * time.Millisecond) // the server is down
			continue
		}
		events := bufio.NewScanner(response.Body)
		events.Buffer(nil, 1<<20)
		for events.Scan() {
			var event struct {
				Type   string
				Object metav1.PartialObjectMetadata
			}
			if err := json.Unmarshal(events.Bytes(), &event); err != nil || event.Type == "ERROR" {
				report.fail("watch from %s: event %s, error %v", version, events.Bytes(), err)
				version = ""
				break
			}
			version = event.Object.ResourceVersion
		}
		if err := events.Err(); err != nil && ctx.Err() == nil {
			report.fail("watch from %s: %v", version, err)
		}
		_ = response.Body.Close()
		report.watches.Add(1)
	}
}
