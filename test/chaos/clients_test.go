package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientset "k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"skiff/test/cluster"
)

const (
	keys     = 8
	writers  = 6
	watchers = 4
	// selector selects the objects of the test.
	selector = "chaos=yes"
	// marker is the last object written; a watcher that has seen it has seen everything.
	marker = "marker"
)

// connection is a client of one server, which may be down. It survives the server's crashes, because the port stays the same.
type connection struct {
	requests typedcorev1.ConfigMapInterface // with a timeout
	watches  typedcorev1.ConfigMapInterface // without a timeout
	// losesWrites is set for servers whose etcd has several members: a write that was sent to a leader that died gets no response before its timeout, or
	// that the server does not know whether it has happened.
	losesWrites bool
}

// dialer makes connections that fail within seconds when the host of the server is gone.
var dialer = net.Dialer{
	Timeout: 3 * time.Second, KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 2 * time.Second, Interval: time.Second, Count: 3},
	Control: func(_, _ string, conn syscall.RawConn) (err error) {
		controlErr := conn.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 5000) })
		return errors.Join(controlErr, err)
	},
}

func connect(t *testing.T, server *cluster.Cluster) connection {
	t.Helper()
	config, err := server.Config()
	if err != nil {
		t.Fatal(err)
	}
	config.Dial = dialer.DialContext
	open := func(timeout time.Duration) typedcorev1.ConfigMapInterface {
		config.Timeout = timeout
		return clientset.NewForConfigOrDie(config).CoreV1().ConfigMaps("default")
	}
	return connection{requests: open(5 * time.Second), watches: open(0)}
}

func object(name, value string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"chaos": "yes"}},
		Data:       map[string]string{"value": value},
	}
}

// writer performs random operations on shared keys, each through any of the servers, until the context is done.
type writer struct {
	id       int
	servers  []connection
	history  *history
	count    int
	lastSeen map[string]int64 // the version this writer last saw of a key
}

func (w *writer) run(ctx context.Context) {
	w.lastSeen = map[string]int64{}
	for ctx.Err() == nil {
		if rand.IntN(10) == 0 {
			w.list()
			continue
		}
		w.count++
		key := fmt.Sprintf("key-%d", rand.IntN(keys))
		op := operation{key: key, value: fmt.Sprintf("%d-%d", w.id, w.count), version: w.lastSeen[key]}
		switch dice := rand.IntN(10); {
		case op.version == 0 && dice < 6:
			op.kind = "create"
		case op.version != 0 && dice < 7:
			op.kind = "update"
		case op.version != 0 && dice < 8:
			op.kind = "delete"
		default:
			op.kind = "get"
		}
		called := time.Now()
		got, err := w.do(op)
		out, sent := w.classify(op, got, err)
		if sent {
			w.history.record(w.id, op, called, out)
		}
		w.lastSeen[key] = out.version
		switch {
		case out.result == unknown:
			time.Sleep(20 * time.Millisecond)
		case w.servers[0].losesWrites:
			time.Sleep(5 * time.Millisecond) // elections need processors too
		}
	}
}

// do performs the operation. It is not cancelled half-way, so that its outcome is known wherever possible.
func (w *writer) do(op operation) (*corev1.ConfigMap, error) {
	ctx := context.Background()
	client := w.servers[rand.IntN(len(w.servers))].requests
	obj := object(op.key, op.value)
	switch version := strconv.FormatInt(op.version, 10); op.kind {
	case "create":
		return client.Create(ctx, obj, metav1.CreateOptions{})
	case "update":
		obj.ResourceVersion = version
		return client.Update(ctx, obj, metav1.UpdateOptions{})
	case "delete":
		return nil, client.Delete(ctx, op.key, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: &version}})
	default:
		return client.Get(ctx, op.key, metav1.GetOptions{})
	}
}

// classify returns the outcome of a response, and whether the server may have received the request at all.
func (w *writer) classify(op operation, got *corev1.ConfigMap, err error) (out outcome, sent bool) {
	var status *apierrors.StatusError
	switch {
	case err == nil && op.kind == "delete":
		return outcome{result: ok}, true
	case err == nil:
		version, err := strconv.ParseInt(got.ResourceVersion, 10, 64)
		if err != nil {
			w.history.recordUnexpected(fmt.Errorf("resourceVersion of %s: %w", op.key, err))
		}
		if op.kind != "get" && got.Data["value"] != op.value {
			w.history.recordUnexpected(fmt.Errorf("%s of %s=%s returned %s", op.kind, op.key, op.value, got.Data["value"]))
		}
		return outcome{ok, got.Data["value"], version}, true
	case apierrors.IsNotFound(err):
		return outcome{result: notFound}, true
	case apierrors.IsAlreadyExists(err):
		return outcome{result: exists}, true
	case apierrors.IsConflict(err):
		return outcome{result: conflict}, true
	case (apierrors.IsTimeout(err) || apierrors.IsServiceUnavailable(err)) && w.servers[0].losesWrites:
		return outcome{result: unknown}, true
	case errors.As(err, &status) && status.ErrStatus.Code == http.StatusInsufficientStorage && w.servers[0].losesWrites:
		return outcome{result: unknown}, false // the disk of the server is full
	case errors.As(err, &status):
		w.history.recordUnexpected(fmt.Errorf("%s of %s: %w", op.kind, op.key, err))
	}
	return outcome{result: unknown}, !errors.Is(err, syscall.ECONNREFUSED)
}

// list reads all keys at once: one read of each, all at the same time.
func (w *writer) list() {
	called := time.Now()
	found, err := w.servers[rand.IntN(len(w.servers))].requests.List(context.Background(), metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		w.classify(operation{kind: "list"}, nil, err)
		time.Sleep(20 * time.Millisecond)
		return
	}
	byKey := map[string]*corev1.ConfigMap{}
	for i := range found.Items {
		byKey[found.Items[i].Name] = &found.Items[i]
	}
	for i := range keys {
		op := operation{kind: "get", key: fmt.Sprintf("key-%d", i)}
		out := outcome{result: notFound}
		if got := byKey[op.key]; got != nil {
			out, _ = w.classify(op, got, nil)
		}
		// One client's operations are sequential, but these are concurrent, so each key has its own client ID.
		w.history.record(10*w.id+100+i, op, called, out)
		w.lastSeen[op.key] = out.version
	}
}
