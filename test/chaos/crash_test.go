package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	clientset "k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"skiff/test/cluster"
)

const (
	writers  = 6
	keys     = 8
	watchers = 3
)

// rounds is how often the server is killed; SKIFF_CRASH_ROUNDS overrides it.
func rounds(t *testing.T) int {
	if text := os.Getenv("SKIFF_CRASH_ROUNDS"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	return 8
}

// TestCrash kills the server again and again under concurrent writers and watchers.
func TestCrash(t *testing.T) {
	dir := t.TempDir()
	server, err := cluster.Skiff(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { server.Stop() }()
	config, err := server.Config()
	if err != nil {
		t.Fatal(err)
	}
	config.Timeout = 5 * time.Second
	writeClient := clientset.NewForConfigOrDie(config).CoreV1().ConfigMaps("default")
	config.Timeout = 0
	watchClient := clientset.NewForConfigOrDie(config).CoreV1().ConfigMaps("default")

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	h := &history{began: time.Now()}
	var running sync.WaitGroup
	for id := range writers {
		running.Go(func() { (&writer{id: id, client: writeClient, history: h}).run(ctx) })
	}
	var seen [watchers][]observation
	watchCtx, stopWatching := context.WithCancel(t.Context())
	defer stopWatching()
	var watching sync.WaitGroup
	for i := range watchers {
		watching.Go(func() { seen[i] = observe(watchCtx, watchClient) })
	}
	for round := range rounds(t) {
		time.Sleep(time.Duration(100+rand.IntN(900)) * time.Millisecond)
		server.Server[0].Kill()
		if server, err = cluster.Skiff(dir); err != nil {
			t.Fatalf("start after crash %d: %v", round+1, err)
		}
	}
	time.Sleep(time.Second)
	cancel()
	running.Wait()
	final, err := watchClient.List(t.Context(), metav1.ListOptions{LabelSelector: "chaos=yes"})
	if err != nil {
		t.Fatal(err)
	}
	// The last events are on their way; nothing is written any more.
	time.Sleep(2 * time.Second)
	stopWatching()
	watching.Wait()

	h.check(t)
	h.checkNothingLost(t, final.Items)
	for i := range watchers {
		checkObservations(t, i, seen[i], final.Items)
	}
	t.Logf("%d crashes, %d operations, %d events seen by each watcher", rounds(t), len(h.operations), len(seen[0]))
}

// operation is one attempt of a client to read or change a key. Values are unique, so that each can be told apart.
type operation struct {
	kind    string // "create", "update", "delete", "get"
	key     string
	value   string
	version string // the resourceVersion an update or deletion was conditional on
}

// outcome is what the client heard. unknown: the connection broke, the write may or may not have happened.
type outcome struct {
	ok      bool
	unknown bool
	value   string
	version string
}

type history struct {
	began time.Time

	mu         sync.Mutex
	operations []porcupine.Operation
}

func (h *history) record(client int, op operation, called time.Time, out outcome) {
	returned := time.Since(h.began).Nanoseconds()
	if out.unknown {
		if op.kind == "get" {
			return // a read that failed says nothing
		}
		returned = int64(1 << 62) // it may still take effect at any later time
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	// An operation of unknown end must not overlap later ones of the same client in the checker's eyes: it gets its own client id.
	if out.unknown {
		client = 1000 + len(h.operations)
	}
	h.operations = append(h.operations, porcupine.Operation{ClientId: client, Input: op, Call: called.Sub(h.began).Nanoseconds(), Output: out, Return: returned})
}

// register is the state of one key: absent, or a value with its version.
type register struct {
	value, version string
}

// model says which outcomes a linearizable store may give. A write whose version the client never learnt has version "?",
// which any later reader may fill in.
var model = porcupine.Model{
	Partition: func(all []porcupine.Operation) [][]porcupine.Operation {
		byKey := map[string][]porcupine.Operation{}
		for _, op := range all {
			key := op.Input.(operation).key
			byKey[key] = append(byKey[key], op)
		}
		var parts [][]porcupine.Operation
		for _, part := range byKey {
			parts = append(parts, part)
		}
		return parts
	},
	Init: func() any { return register{} },
	Step: func(state, input, output any) (bool, any) {
		return step(state.(register), input.(operation), output.(outcome))
	},
	DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v → %+v", input, output) },
}

func step(s register, op operation, out outcome) (bool, any) {
	matches := s.version == op.version || s.version == "?"
	switch op.kind {
	case "get":
		if !out.ok {
			return s.value == "", s
		}
		if s.value != out.value || s.version != out.version && s.version != "?" {
			return false, s
		}
		return true, register{out.value, out.version}
	case "create":
		if out.ok {
			return s.value == "", register{op.value, out.version}
		}
		if out.unknown {
			if s.value == "" {
				return true, register{op.value, "?"}
			}
			return true, s
		}
		return s.value != "", s
	case "update":
		if out.ok {
			return s.value != "" && matches, register{op.value, out.version}
		}
		if out.unknown {
			if s.value != "" && matches {
				return true, register{op.value, "?"}
			}
			return true, s
		}
		return s.value == "" || s.version != op.version, s
	case "delete":
		if out.ok {
			return s.value != "" && matches, register{}
		}
		if out.unknown {
			if s.value != "" && matches {
				return true, register{}
			}
			return true, s
		}
		return s.value == "" || s.version != op.version, s
	}
	return false, s
}

func (h *history) check(t *testing.T) {
	t.Helper()
	if len(h.operations) < 100 {
		t.Fatalf("only %d operations", len(h.operations))
	}
	result, info := porcupine.CheckOperationsVerbose(model, h.operations, 2*time.Minute)
	if result == porcupine.Illegal {
		path := "crash-history.html"
		if err := porcupine.VisualizePath(model, info, path); err == nil {
			t.Logf("history in %s", path)
		}
		t.Fatal("the history is not linearizable")
	}
	if result == porcupine.Unknown {
		t.Fatal("the history could not be checked in time")
	}
}

// checkNothingLost: an acknowledged write is there at the end, unless a later one took its place.
func (h *history) checkNothingLost(t *testing.T, final []corev1.ConfigMap) {
	t.Helper()
	present := map[string]int64{}
	for _, cm := range final {
		present[cm.Name] = revision(t, cm.ResourceVersion)
	}
	type last struct {
		revision int64
		unknown  bool
	}
	newest := map[string]last{}
	for _, o := range h.operations {
		op, out := o.Input.(operation), o.Output.(outcome)
		n := newest[op.key]
		switch {
		case op.kind == "delete" && (out.ok || out.unknown):
			n.unknown = true // the key may be gone for good reason; linearizability judges it
		case out.ok && (op.kind == "create" || op.kind == "update"):
			n.revision = max(n.revision, revision(t, out.version))
		}
		newest[op.key] = n
	}
	for key, n := range newest {
		if n.revision > present[key] && !n.unknown {
			t.Errorf("%s: acknowledged at revision %d, found at %d", key, n.revision, present[key])
		}
	}
}

// writer makes random operations on shared keys until the context ends.
type writer struct {
	id      int
	client  typedcorev1.ConfigMapInterface
	history *history
	count   int
}

func (w *writer) run(ctx context.Context) {
	known := map[string]string{} // the version this writer last saw of a key
	for ctx.Err() == nil {
		w.count++
		key := fmt.Sprintf("key-%d", rand.IntN(keys))
		op := operation{key: key, value: fmt.Sprintf("%d-%d", w.id, w.count), version: known[key]}
		switch dice := rand.IntN(10); {
		case op.version == "" && dice < 6:
			op.kind = "create"
		case dice < 7 && op.version != "":
			op.kind = "update"
		case dice < 8 && op.version != "":
			op.kind = "delete"
		default:
			op.kind = "get"
		}
		called := time.Now()
		out := w.do(op)
		w.history.record(w.id, op, called, out)
		known[key] = out.version
		if out.unknown {
			time.Sleep(20 * time.Millisecond)
		}
	}
}

// do performs the operation. It is not cancelled half-way, so that its outcome is known wherever possible.
func (w *writer) do(op operation) outcome {
	ctx := context.Background()
	obj := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: op.key, ResourceVersion: op.version, Labels: map[string]string{"chaos": "yes"}},
		Data:       map[string]string{"value": op.value},
	}
	var got *corev1.ConfigMap
	var err error
	switch op.kind {
	case "create":
		obj.ResourceVersion = ""
		got, err = w.client.Create(ctx, obj, metav1.CreateOptions{})
	case "update":
		got, err = w.client.Update(ctx, obj, metav1.UpdateOptions{})
	case "delete":
		err = w.client.Delete(ctx, op.key, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: &op.version}})
	case "get":
		got, err = w.client.Get(ctx, op.key, metav1.GetOptions{})
	}
	switch {
	case err == nil && op.kind == "delete":
		return outcome{ok: true}
	case err == nil:
		return outcome{ok: true, value: got.Data["value"], version: got.ResourceVersion}
	case apierrors.IsNotFound(err), apierrors.IsConflict(err), apierrors.IsAlreadyExists(err):
		return outcome{}
	}
	return outcome{unknown: true}
}

// observation is one watch event.
type observation struct {
	kind     watch.EventType
	key      string
	value    string
	revision string
}

// observe watches from the beginning and resumes after every break where it was. It lists only once.
func observe(ctx context.Context, client typedcorev1.ConfigMapInterface) []observation {
	var all []observation
	version := ""
	for ctx.Err() == nil {
		if version == "" {
			list, err := client.List(ctx, metav1.ListOptions{})
			if err != nil {
				continue
			}
			version = list.ResourceVersion
		}
		w, err := client.Watch(ctx, metav1.ListOptions{ResourceVersion: version, LabelSelector: "chaos=yes"})
		if err != nil {
			if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
				return append(all, observation{kind: watch.Error, value: err.Error()})
			}
			time.Sleep(20 * time.Millisecond)
			continue
		}
		for event := range w.ResultChan() {
			cm, ok := event.Object.(*corev1.ConfigMap)
			if !ok {
				err := apierrors.FromObject(event.Object)
				if apierrors.IsResourceExpired(err) {
					w.Stop()
					return append(all, observation{kind: watch.Error, value: err.Error()})
				}
				break
			}
			all = append(all, observation{event.Type, cm.Name, cm.Data["value"], cm.ResourceVersion})
			version = cm.ResourceVersion
		}
		w.Stop()
	}
	return all
}

// checkObservations: revisions grow strictly, each event fits the state before it, and the events add up to the final list.
func checkObservations(t *testing.T, id int, seen []observation, final []corev1.ConfigMap) {
	t.Helper()
	state := map[string]string{}
	var last int64
	for i, o := range seen {
		if o.kind == watch.Error {
			t.Fatalf("watcher %d: %s", id, o.value)
		}
		r := revision(t, o.revision)
		if r <= last {
			t.Fatalf("watcher %d: event %d (%v) at revision %d after %d: repeated or out of order", id, i, o, r, last)
		}
		last = r
		_, present := state[o.key]
		if present == (o.kind == watch.Added) {
			t.Fatalf("watcher %d: event %d (%v) does not fit: key present before: %v; an event was missed", id, i, o, present)
		}
		if o.kind == watch.Deleted {
			delete(state, o.key)
			continue
		}
		state[o.key] = o.value
	}
	if len(seen) == 0 {
		t.Fatalf("watcher %d saw nothing", id)
	}
	if len(state) != len(final) {
		t.Errorf("watcher %d ends with %d objects, the list has %d", id, len(state), len(final))
	}
	for _, cm := range final {
		if state[cm.Name] != cm.Data["value"] {
			t.Errorf("watcher %d ends with %s=%q, the list has %q", id, cm.Name, state[cm.Name], cm.Data["value"])
		}
	}
}

func revision(t *testing.T, text string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		t.Fatal(errors.Join(errors.New("resourceVersion is not a number"), err))
	}
	return n
}
