package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientset "k8s.io/client-go/kubernetes"

	members "skiff/internal/cluster"
	"skiff/test/cluster"
)

const (
	durationVariable = "SKIFF_CHAOS_DURATION"
	seedVariable     = "SKIFF_CHAOS_SEED"
	// onlyVariable selects faults whose names contain it.
	onlyVariable = "SKIFF_CHAOS_ONLY"

	servers, agents = 3, 2
	// shortHold and longHold are how long a fault lasts at most: in the run that is part of all tests, and in a long one.
	shortHold, longHold = 3 * time.Second, 30 * time.Second
	// retryPause is the time between attempts of what the test waits for.
	retryPause = 20 * time.Millisecond
	// recoveryTimeout bounds the time until everything works again after a fault.
	recoveryTimeout = 3 * time.Minute
	// leaderTimeout is the time within which the API responds again after the loss of the leader. It is checked in long runs, which have the host for
	// themselves.
	leaderTimeout = 5 * time.Second
	// reunionTimeout is the time within which all servers are ready after the network between them is back. It is checked in long runs.
	reunionTimeout = 15 * time.Second
)

// TestFaults breaks three servers and two agents, each on a host of its own, in the ways that are listed in faults, under writers and watchers. It makes
// one fault of each class, or rounds of all of them for as long as SKIFF_CHAOS_DURATION says. SKIFF_CHAOS_SEED repeats the order.
func TestFaults(t *testing.T) {
	h := newHarness(t)
	var connections []connection
	for _, server := range h.fleet.Servers {
		c := connect(t, server.Cluster)
		c.losesWrites = true
		connections = append(connections, c)
	}
	pods := startPods(t, h)
	for began := time.Now(); ; {
		round := h.round()
		runScenario(t, connections, func() {
			for _, f := range round {
				h.inject(f)
			}
			h.awaitRecovery()
		})
		pods.check(t)
		h.clean(connections[0])
		if time.Since(began) >= h.duration || t.Failed() {
			break
		}
	}
	h.report()
}

// harness injects faults and counts them.
type harness struct {
	t        *testing.T
	fleet    *cluster.Fleet
	clients  []clientset.Interface
	members  []members.Client
	random   *rand.Rand
	duration time.Duration // 0: a short run
	// counts is how often each fault was made, elections how long the API took to respond again after the loss of the leader.
	counts    map[string]int
	elections []time.Duration
	probes    int
}

func newHarness(t *testing.T) *harness {
	t.Helper()
	h := &harness{t: t, counts: map[string]int{}}
	seed := uint64(time.Now().UnixNano())
	var err error
	if text := os.Getenv(durationVariable); text != "" {
		if h.duration, err = time.ParseDuration(text); err != nil {
			t.Fatalf("%s: %v", durationVariable, err)
		}
	}
	if text := os.Getenv(seedVariable); text != "" {
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("%s: %v", seedVariable, err)
		}
	}
	t.Logf("%s=%d", seedVariable, seed)
	h.random = rand.New(rand.NewPCG(seed, 0))
	h.fleet, err = cluster.NewFleet(t.TempDir(), servers, agents, "--node-monitor-grace-period=6s", "--node-eviction-rate=10")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.fleet.Stop)
	for _, server := range h.fleet.Servers {
		config, err := server.Config()
		if err != nil {
			t.Fatal(err)
		}
		config.Timeout, config.Dial = 2*time.Second, dialer.DialContext
		h.clients = append(h.clients, clientset.NewForConfigOrDie(config))
		client, err := members.NewClient(config)
		if err != nil {
			t.Fatal(err)
		}
		h.members = append(h.members, client)
	}
	return h
}

// round returns faults in random order: all of them, or in a short run the loss of the leader and one of each other class.
func (h *harness) round() []fault {
	only := os.Getenv(onlyVariable)
	all := slices.DeleteFunc(slices.Clone(faults), func(f fault) bool { return !strings.Contains(f.name, only) })
	h.random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	if h.duration > 0 || only != "" {
		return all
	}
	chosen := map[string]bool{}
	return slices.DeleteFunc(all, func(f fault) bool {
		if chosen[f.class] || f.class == crash && f.name != leaderKilled {
			return true
		}
		chosen[f.class] = true
		return false
	})
}

// inject makes a fault and waits until all servers work again.
func (h *harness) inject(f fault) {
	h.t.Helper()
	began := time.Now()
	err := f.run(h)
	if errors.Is(err, errors.ErrUnsupported) {
		h.t.Logf("%s: not on this host: %v", f.name, err)
		return
	}
	if err != nil {
		h.t.Fatalf("%s: %v", f.name, err)
	}
	h.counts[f.name]++
	healed := time.Now()
	h.awaitRecovery()
	recovery := time.Since(healed)
	h.t.Logf("%s: %v, recovered after %v", f.name, healed.Sub(began).Round(time.Millisecond), recovery.Round(time.Millisecond))
	if h.duration > 0 && f.class == partition && recovery > reunionTimeout {
		h.t.Errorf("%s: the servers were ready only %v after the network was back", f.name, recovery)
	}
}

// hold waits for a random time, for which a fault lasts.
func (h *harness) hold() {
	limit := shortHold
	if h.duration > 0 {
		limit = longHold
	}
	time.Sleep(limit/6 + time.Duration(h.random.Int64N(int64(limit-limit/6))))
}

// awaitRecovery waits until all servers are ready.
func (h *harness) awaitRecovery() {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), recoveryTimeout)
	defer cancel()
	for i, server := range h.fleet.Servers {
		for {
			text, err := h.clients[i].Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Raw()
			if err == nil {
				break
			}
			if server.Server[0].Exited() {
				h.t.Fatalf("server %d has ended by itself:\n%s", i, server.Server[0].Log(20))
			}
			if ctx.Err() != nil {
				h.t.Fatalf("server %d is not ready: %v\n%s\nits log ends:\n%s", i, err, text, server.Server[0].Log(20))
			}
			time.Sleep(retryPause)
		}
	}
}

// lostServer is a server that a fault is made on.
type lostServer struct {
	*cluster.FleetServer
	number int
	leads  bool
}

// leader returns the server whose member leads etcd.
func (h *harness) leader() (lostServer, error) {
	ctx, cancel := context.WithTimeout(h.t.Context(), recoveryTimeout)
	defer cancel()
	for i := 0; ; i = (i + 1) % len(h.members) {
		found, err := h.members[i].List(ctx)
		for _, member := range found {
			u, parseErr := url.Parse(member.PeerURL)
			if !member.IsLeader || parseErr != nil {
				continue
			}
			for number, server := range h.fleet.Servers {
				if server.Host.Address == u.Hostname() {
					return lostServer{server, number, true}, nil
				}
			}
		}
		if ctx.Err() != nil {
			return lostServer{}, errors.Join(errors.New("no server leads"), err)
		}
		time.Sleep(retryPause)
	}
}

// anyServer returns a random server.
func (h *harness) anyServer() (lostServer, error) {
	leader, err := h.leader()
	if number := h.random.IntN(len(h.fleet.Servers)); number != leader.number {
		return lostServer{h.fleet.Servers[number], number, false}, err
	}
	return leader, err
}

// awaitWrites waits until a write succeeds without a server that was lost, and records how long that took if it was the leader.
func (h *harness) awaitWrites(lost lostServer) error {
	began := time.Now()
	ctx, cancel := context.WithTimeout(h.t.Context(), recoveryTimeout)
	defer cancel()
	for i := 0; ; i++ {
		server := (lost.number + 1 + i%(len(h.clients)-1)) % len(h.clients)
		h.probes++
		probe := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("probe-", h.probes), Labels: map[string]string{"probe": "yes"}}}
		attempt, stop := context.WithTimeout(ctx, time.Second)
		_, err := h.clients[server].CoreV1().ConfigMaps("default").Create(attempt, probe, metav1.CreateOptions{})
		stop()
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			return fmt.Errorf("no write without server %d: %w", lost.number, err)
		}
		time.Sleep(retryPause)
	}
	took := time.Since(began)
	if !lost.leads {
		return nil
	}
	h.elections = append(h.elections, took)
	if h.duration > 0 && took > leaderTimeout {
		h.t.Errorf("the API responds only %v after the loss of the leader", took)
	}
	return nil
}

// clean removes the objects of a round.
func (h *harness) clean(server connection) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), recoveryTimeout)
	defer cancel()
	for {
		var left *corev1.ConfigMapList
		var err error
		for _, selected := range []string{selector, "probe=yes"} {
			err = errors.Join(err, server.requests.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: selected}))
		}
		if err == nil {
			left, err = server.requests.List(ctx, metav1.ListOptions{LabelSelector: selector})
		}
		if err == nil && len(left.Items) == 0 {
			return
		}
		if ctx.Err() != nil {
			h.t.Fatalf("remove the objects of a round: %v", err)
		}
		time.Sleep(retryPause)
	}
}

// report prints how often each fault was made.
func (h *harness) report() {
	byClass := map[string][]string{}
	total := map[string]int{}
	for _, f := range faults {
		if n := h.counts[f.name]; n > 0 {
			byClass[f.class] = append(byClass[f.class], fmt.Sprintf("%s %d", f.name, n))
			total[f.class] += n
		}
	}
	var line []string
	for _, class := range []string{crash, partition, pause, disk} {
		line = append(line, fmt.Sprintf("%s: %d (%s)", class, total[class], strings.Join(byClass[class], ", ")))
	}
	h.t.Log(strings.Join(line, "; "))
	if len(h.elections) > 0 {
		slices.Sort(h.elections)
		h.t.Logf("the API responded %v after the loss of the leader, %v at the latest", h.elections[len(h.elections)/2].Round(time.Millisecond),
			h.elections[len(h.elections)-1].Round(time.Millisecond))
	}
}
