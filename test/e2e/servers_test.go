package e2e

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientset "k8s.io/client-go/kubernetes"

	"skiff/test/cluster"
)

// servers are several servers of one cluster under test.
type servers struct {
	dir     string
	flags   []string
	running []*cluster.Cluster
	clients []clientset.Interface
}

func startServers(t *testing.T, n int, flags ...string) *servers {
	t.Helper()
	s := &servers{dir: t.TempDir(), flags: flags}
	var err error
	s.running, err = cluster.Servers(s.dir, n, flags...)
	t.Cleanup(func() {
		for _, server := range s.running {
			server.Stop()
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, server := range s.running {
		config, err := server.Config()
		if err != nil {
			t.Fatal(err)
		}
		config.Timeout = 10 * time.Second
		s.clients = append(s.clients, clientset.NewForConfigOrDie(config))
	}
	return s
}

// restart starts a server that has ended, without the flags of joining.
func (s *servers) restart(t *testing.T, i int) {
	t.Helper()
	server, err := cluster.Server(s.dir, i, s.flags...)
	if err != nil {
		t.Fatal(err)
	}
	s.running[i] = server
}

func configMap(name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

// TestServers starts three servers as one cluster. What one has written the others read at once. One is killed while clients write: the others
// answer again within seconds, and no acknowledged write is lost. It comes back by itself.
func TestServers(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	s := startServers(t, 3, "--without=")
	shown, err := runSkiff(t, "member", "ls", "--kubeconfig", s.running[2].Kubeconfig)
	if err != nil || strings.Count(shown, "https://127.0.0.1:") != 3 || strings.Count(shown, "etcd leader") != 1 || strings.Contains(shown, "joining") {
		t.Errorf("skiff member ls: %v\n%s", err, shown)
	}
	for i := range 30 {
		name := fmt.Sprint("shared-", i)
		if _, err := s.clients[i%3].CoreV1().ConfigMaps("default").Create(ctx, configMap(name), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		for j, other := range s.clients {
			if _, err := other.CoreV1().ConfigMaps("default").Get(ctx, name, metav1.GetOptions{}); err != nil {
				t.Fatalf("server %d does not read what server %d has written: %v", j, i%3, err)
			}
		}
	}
	// Credentials of one server are valid for all: the admin certificate, and tokens of service accounts.
	var token *authenticationv1.TokenRequest
	eventually(ctx, t, "a token is issued", func(ctx context.Context) (bool, error) {
		token, err = s.clients[1].CoreV1().ServiceAccounts("kube-system").CreateToken(ctx, "default", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
		return err == nil, ignoreNotFound(err)
	})
	for i, server := range s.running {
		config, err := server.Config()
		if err != nil {
			t.Fatal(err)
		}
		config.CertData, config.KeyData, config.BearerToken = nil, nil, token.Status.Token
		_, err = clientset.NewForConfigOrDie(config).CoreV1().ConfigMaps("default").List(ctx, metav1.ListOptions{})
		if !apierrors.IsForbidden(err) {
			t.Errorf("server %d: the token of another: %v", i, err)
		}
	}
	s.killOne(ctx, t)
	s.loseMajority(ctx, t)
}

// loseMajority kills all servers. The first that starts again responds, is not ready and says for which servers it waits, until another has started.
func (s *servers) loseMajority(ctx context.Context, t *testing.T) {
	t.Helper()
	for _, server := range s.running {
		server.Server[0].Kill()
	}
	first, err := cluster.StartServer(s.dir, 0, s.flags...)
	if err != nil {
		t.Fatal(err)
	}
	s.running[0] = first
	get := func(path string) (int, string) {
		var code int
		text, err := s.clients[0].Discovery().RESTClient().Get().AbsPath(path).MaxRetries(0).Do(ctx).StatusCode(&code).Raw()
		if err != nil && code == 0 {
			return 0, err.Error()
		}
		return code, string(text)
	}
	waits := "waiting for a majority of the 3 members of etcd: 1 can be reached; cannot reach "
	eventually(ctx, t, "the server waits for the others", func(context.Context) (bool, error) {
		code, text := get("/readyz")
		return code == http.StatusInternalServerError && strings.Contains(text, "[-]etcd failed: "+waits) &&
			strings.Contains(text, memberName(t, s.dir, 1)) && strings.Contains(text, memberName(t, s.dir, 2)), nil
	})
	if code, text := get("/livez"); code != http.StatusOK {
		t.Errorf("/livez: %d %s", code, text)
	}
	if code, text := get("/api/v1/namespaces/default/configmaps"); code != http.StatusServiceUnavailable || !strings.Contains(text, waits) {
		t.Errorf("list: %d %s", code, text)
	}
	s.restart(t, 1)
	if err := first.WaitReady(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.clients[0].CoreV1().ConfigMaps("default").Get(ctx, "shared-0", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	if log := first.Server[0].Log(1000); strings.Count(log, "waiting for a majority of the members of etcd") != 1 {
		t.Errorf("the log:\n%s", log)
	}
	s.restart(t, 2)
}

// killOne kills the first server, which is etcd's leader and that of the controllers, while clients write through the others.
func (s *servers) killOne(ctx context.Context, t *testing.T) {
	t.Helper()
	writing, stop := context.WithCancel(ctx)
	defer stop()
	var mu sync.Mutex
	var acknowledged []string
	var last time.Time // of an acknowledged write
	longest := time.Duration(0)
	var writers sync.WaitGroup
	for w := range 4 {
		writers.Go(func() {
			for i := 0; writing.Err() == nil; i++ {
				name := fmt.Sprintf("written-%d-%d", w, i)
				if _, err := s.clients[1+w%2].CoreV1().ConfigMaps("default").Create(writing, configMap(name), metav1.CreateOptions{}); err != nil {
					continue
				}
				mu.Lock()
				now := time.Now()
				if !last.IsZero() {
					longest = max(longest, now.Sub(last))
				}
				acknowledged, last = append(acknowledged, name), now
				mu.Unlock()
			}
		})
	}
	written := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(acknowledged)
	}
	more := func(what string) {
		t.Helper()
		before := written()
		eventually(ctx, t, what, func(context.Context) (bool, error) { return written() >= before+20, nil })
	}
	more("clients write")
	s.running[0].Server[0].Kill()
	more("clients write without the first server")
	s.restart(t, 0)
	more("clients write with the first server again")
	stop()
	writers.Wait()
	t.Logf("%d writes; the longest time without one was %v", len(acknowledged), longest)
	// An election takes up to two seconds on an idle host.
	if longest > 15*time.Second {
		t.Errorf("no write succeeded for %v", longest)
	}
	for i, client := range s.clients {
		list, err := client.CoreV1().ConfigMaps("default").List(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		found := map[string]bool{}
		for _, object := range list.Items {
			found[object.Name] = true
		}
		for _, name := range acknowledged {
			if !found[name] {
				t.Errorf("server %d has lost %s", i, name)
			}
		}
	}
}

// TestServerHandover ends the server that leads the controllers: another leads within seconds. Then a server is removed and joins again, and
// after the loss of all others one continues alone.
func TestServerHandover(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	s := startServers(t, 3, "--without=")
	holder := func(ctx context.Context) string {
		lease, err := s.clients[1].CoordinationV1().Leases("kube-system").Get(ctx, "kube-controller-manager", metav1.GetOptions{})
		if err != nil || lease.Spec.HolderIdentity == nil {
			return ""
		}
		return *lease.Spec.HolderIdentity
	}
	eventually(ctx, t, "a leader is elected", func(ctx context.Context) (bool, error) { return holder(ctx) != "", nil })
	first := holder(ctx) // the first server's: it has started first
	if code := s.running[0].Server[0].Terminate(); code != 0 {
		t.Errorf("the server ends with %d:\n%s", code, s.running[0].Server[0].Log(20))
	}
	ended := time.Now()
	eventually(ctx, t, "another server leads", func(ctx context.Context) (bool, error) { return holder(ctx) != first && holder(ctx) != "", nil })
	took := time.Since(ended)
	t.Logf("another leader after %v", took)
	// Without the release of the lease it would take 15 s.
	if took > 10*time.Second {
		t.Errorf("another server leads only after %v", took)
	}

	// The server that has ended is removed, and cannot start again with its data.
	shown, err := runSkiff(t, "member", "ls", "--kubeconfig", s.running[1].Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	name := memberName(t, s.dir, 0)
	if !strings.Contains(shown, name) {
		t.Fatalf("no member %s:\n%s", name, shown)
	}
	eventually(ctx, t, "the server is removed", func(context.Context) (bool, error) {
		_, err := runSkiff(t, "member", "remove", name, "--kubeconfig", s.running[1].Kubeconfig)
		return err == nil, nil
	})
	// With an empty directory it joins again, at the same address.
	if err := os.RemoveAll(filepath.Join(s.dir, "server-0", "data")); err != nil {
		t.Fatal(err)
	}
	token, err := s.running[1].NodeToken("--server")
	if err != nil {
		t.Fatal(err)
	}
	if s.running[0], err = cluster.Server(s.dir, 0, append([]string{"--join=" + s.running[1].URL, "--join-token=" + token}, s.flags...)...); err != nil {
		t.Fatal(err)
	}
	if _, err := s.clients[1].CoreV1().ConfigMaps("default").Create(ctx, configMap("kept"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}

	// The server has it before the others are lost.
	if _, err := s.clients[0].CoreV1().ConfigMaps("default").Get(ctx, "kept", metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}

	// Two of three are lost. The third is reset and continues with the data.
	for i := range 3 {
		s.running[i].Server[0].Kill()
	}
	if out, err := runSkiff(t, "server", "--cluster-reset", "--no-node", "--data-dir", filepath.Join(s.dir, "server-0", "data"), "--bind-address=127.0.0.1",
		"--etcd-peer-port="+readFile(t, filepath.Join(s.dir, "peer-port-0"))); err != nil {
		t.Fatalf("skiff server --cluster-reset: %v\n%s", err, out)
	}
	s.restart(t, 0)
	config, err := s.running[0].Config()
	if err != nil {
		t.Fatal(err)
	}
	remaining := clientset.NewForConfigOrDie(config)
	if _, err := remaining.CoreV1().ConfigMaps("default").Get(ctx, "kept", metav1.GetOptions{}); err != nil {
		t.Errorf("after the reset: %v", err)
	}
	if _, err := remaining.CoreV1().ConfigMaps("default").Create(ctx, configMap("later"), metav1.CreateOptions{}); err != nil {
		t.Errorf("after the reset: %v", err)
	}
	if shown, err := runSkiff(t, "member", "ls", "--kubeconfig", s.running[0].Kubeconfig); err != nil || strings.Count(shown, "https://") != 1 {
		t.Errorf("skiff member ls after the reset: %v\n%s", err, shown)
	}
}

// memberName is the name of a server's member of etcd.
func memberName(t *testing.T, dir string, i int) string {
	t.Helper()
	record := readFile(t, filepath.Join(dir, fmt.Sprint("server-", i), "data/etcd/member.json"))
	_, rest, _ := strings.Cut(record, `"name":"`)
	name, _, _ := strings.Cut(rest, `"`)
	return name
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// TestServerJoinRejected: a server that cannot join says why, and gets no keys.
func TestServerJoinRejected(t *testing.T) {
	t.Parallel()
	s := startServers(t, 1)
	single, err := cluster.Skiff(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(single.Stop)
	create := func(c *cluster.Cluster, flags ...string) string {
		t.Helper()
		token, err := c.NodeToken(flags...)
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
	server := create(s.running[0], "--server")
	for what, test := range map[string]struct {
		flags []string
		want  string
	}{
		"token of a node":       {[]string{"--join=" + s.running[0].URL, "--join-token=" + create(s.running[0])}, "token create --server"},
		"token of another CA":   {[]string{"--join=" + s.running[0].URL, "--join-token=" + create(single, "--server")}, "not the server the token was created for"},
		"server without a flag": {[]string{"--join=" + single.URL, "--join-token=" + create(single, "--server")}, "--cluster-init"},
		"other settings":        {[]string{"--join=" + s.running[0].URL, "--join-token=" + server, "--cluster-domain=other.local"}, `--cluster-domain is "other.local"`},
		"no token":              {[]string{"--join=" + s.running[0].URL}, "--join-token: required"},
	} {
		dir := t.TempDir()
		args := append([]string{"server", "--no-node", "--without=controllers,scheduler", "--disable=dns", "--data-dir=" + dir, "--bind-address=127.0.0.1",
			"--secure-port=0", "--etcd-peer-port=" + freePort(t)}, test.flags...)
		out, err := runSkiff(t, args...)
		if err == nil || !strings.Contains(out, test.want) {
			t.Errorf("%s: %v, want %q:\n%s", what, err, test.want, out)
		}
		if _, err := os.Stat(filepath.Join(dir, "pki/ca.key")); err == nil {
			t.Errorf("%s: there are keys", what)
		}
	}
}

func freePort(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	_, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}
