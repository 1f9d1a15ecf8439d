package chaos

import (
	"context"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

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

// runScenario runs writers and watchers while chaos kills servers, and then checks the responses and events they received.
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
	final, err := servers[0].requests.List(t.Context(), metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := servers[0].requests.Create(t.Context(), object(marker, ""), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	deadline := time.AfterFunc(10*time.Second, stopWatching)
	watchersDone.Wait()
	if !deadline.Stop() {
		t.Error("the watchers did not see the last write within 10 s")
	}
	resumed := 0
	for _, w := range all {
		w.check(t, h, final.Items)
		resumed += w.resumed - 1
	}
	unacknowledged := h.resolve(all[0].events)
	h.check(t)
	t.Logf("%d operations, %d with an unknown outcome, %d events seen by each watcher, %d watches resumed",
		len(h.operations), unacknowledged, len(all[0].events), resumed)
}
