package chaos

import (
	"context"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/test/cluster"
)

// rounds is how often a server is killed; SKIFF_CRASH_ROUNDS overrides it.
func rounds(t *testing.T, defaultRounds int) int {
	text := os.Getenv("SKIFF_CRASH_ROUNDS")
	if text == "" {
		return defaultRounds
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("SKIFF_CRASH_ROUNDS: %v", err)
	}
	return n
}

// TestCrash kills a server with its own store again and again under concurrent writers and watchers, sometimes while it is
// still starting.
func TestCrash(t *testing.T) {
	dir := t.TempDir()
	server := startSkiff(t, dir)
	defer func() { server.Stop() }()
	runScenario(t, []connection{connect(t, server)}, func() {
		for range rounds(t, 8) {
			time.Sleep(time.Duration(100+rand.IntN(900)) * time.Millisecond)
			server.Server[0].Kill()
			for rand.IntN(3) == 0 {
				killStarting(t, dir, time.Duration(rand.IntN(300))*time.Millisecond)
			}
			server = startSkiff(t, dir)
		}
	})
}

// TestCrashShared kills one of two servers that share an etcd. Clients use both at the same time, and switch between them.
func TestCrashShared(t *testing.T) {
	dir := t.TempDir()
	etcd, url, err := cluster.Etcd(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer etcd.Stop()
	flag := "--etcd-servers=" + url
	directories := []string{filepath.Join(dir, "a"), filepath.Join(dir, "b")}
	var servers []*cluster.Cluster
	var connections []connection
	for _, directory := range directories {
		server := startSkiff(t, directory, flag)
		servers = append(servers, server)
		connections = append(connections, connect(t, server))
	}
	defer func() {
		for _, server := range servers {
			server.Stop()
		}
	}()
	runScenario(t, connections, func() {
		for range rounds(t, 4) {
			time.Sleep(time.Duration(100+rand.IntN(900)) * time.Millisecond)
			i := rand.IntN(len(servers))
			servers[i].Server[0].Kill()
			time.Sleep(time.Duration(rand.IntN(500)) * time.Millisecond)
			servers[i] = startSkiff(t, directories[i], flag)
		}
	})
}

// TestCrashServers kills one of three servers that are one cluster, each with a member of etcd. Clients use all of them.
func TestCrashServers(t *testing.T) {
	dir := t.TempDir()
	servers, err := cluster.Servers(dir, 3)
	defer func() {
		for _, server := range servers {
			server.Stop()
		}
	}()
	if err != nil {
		t.Fatal(err)
	}
	var connections []connection
	for _, server := range servers {
		c := connect(t, server)
		c.losesWrites = true
		connections = append(connections, c)
	}
	runScenario(t, connections, func() {
		for range rounds(t, 4) {
			time.Sleep(time.Duration(100+rand.IntN(900)) * time.Millisecond)
			i := rand.IntN(len(servers))
			servers[i].Server[0].Kill()
			time.Sleep(time.Duration(rand.IntN(3000)) * time.Millisecond)
			if servers[i], err = cluster.Server(dir, i); err != nil {
				t.Fatalf("start: %v", err)
			}
		}
	})
}

func startSkiff(t *testing.T, dir string, flags ...string) *cluster.Cluster {
	t.Helper()
	server, err := cluster.Skiff(dir, flags...)
	if err != nil {
		t.Fatalf("start: %v", err)
	}
	return server
}

// killStarting starts a server on a directory that was in use before and kills it after a while, ready or not.
func killStarting(t *testing.T, dir string, after time.Duration) {
	t.Helper()
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	port, err := os.ReadFile(filepath.Join(dir, "port"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(root, "bin/skiff"), "server", "--no-node", "--data-dir", filepath.Join(dir, "data"),
		"--bind-address", "127.0.0.1", "--secure-port", string(port))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(after)
	if err := cmd.Process.Kill(); err != nil {
		t.Errorf("the server exited by itself while starting: %v", err)
	}
	_ = cmd.Wait() // the error is that it was killed
}

// runScenario runs writers and watchers while chaos kills servers, and then checks the responses and events they received. All servers must be
// available when chaos returns.
func runScenario(t *testing.T, servers []connection, chaos func()) {
	h := &history{began: time.Now()}
	writing, stopWriting := context.WithCancel(t.Context())
	defer stopWriting()
	watching, stopWatching := context.WithCancel(t.Context())
	defer stopWatching()
	var writersDone, watchersDone sync.WaitGroup
	listed := make(chan struct{}, watchers)
	var all []*watcher
	for id := range watchers {
		w := &watcher{id: id, servers: servers, bookmarks: id%2 == 0}
		all = append(all, w)
		watchersDone.Go(func() { w.run(watching, listed) })
	}
	for range watchers {
		<-listed
	}
	for id := range writers {
		writersDone.Go(func() { (&writer{id: id, servers: servers, history: h}).run(writing) })
	}
	chaos()
	time.Sleep(time.Second)
	stopWriting()
	writersDone.Wait()
	final := mark(t, servers[0])
	deadline := time.AfterFunc(markerTimeout, stopWatching)
	watchersDone.Wait()
	if !deadline.Stop() {
		t.Errorf("the watchers did not see the last write within %v", markerTimeout)
	}
	resumed := 0
	for _, w := range all {
		w.check(t, h, final)
		resumed += w.resumed - 1
	}
	unacknowledged := h.resolve(all[0].events)
	h.check(t)
	t.Logf("%d operations, %d with an unknown outcome, %d events seen by each watcher, %d watches resumed",
		len(h.operations), unacknowledged, len(all[0].events), resumed)
}

// markerTimeout bounds the time until a watcher has seen the marker. It has to find out first that a connection is dead.
const markerTimeout = time.Minute

// mark creates the marker and returns all other objects at its revision: a write without response may happen later.
func mark(t *testing.T, server connection) []corev1.ConfigMap {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), markerTimeout)
	defer cancel()
	for {
		_, err := server.requests.Create(ctx, object(marker, ""), metav1.CreateOptions{})
		var created *corev1.ConfigMap
		if err == nil || apierrors.IsAlreadyExists(err) { // an attempt without response may have succeeded
			created, err = server.requests.Get(ctx, marker, metav1.GetOptions{})
		}
		var found *corev1.ConfigMapList
		if err == nil {
			found, err = server.requests.List(ctx, metav1.ListOptions{
				LabelSelector: selector, ResourceVersion: created.ResourceVersion, ResourceVersionMatch: metav1.ResourceVersionMatchExact,
			})
		}
		if err == nil {
			return slices.DeleteFunc(found.Items, func(cm corev1.ConfigMap) bool { return cm.Name == marker })
		}
		if ctx.Err() != nil || !server.losesWrites {
			t.Fatal(err)
		}
		time.Sleep(retryPause)
	}
}
