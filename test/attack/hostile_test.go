package attack

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"skiff/test/cluster"
)

// The variables that set the length of TestHostileClients and repeat one of its runs.
const (
	durationVariable = "SKIFF_HOSTILE_DURATION"
	seedVariable     = "SKIFF_HOSTILE_SEED"
	// onlyVariable is the name of one attack, to make no other.
	onlyVariable = "SKIFF_HOSTILE_ONLY"
)

// The bounds of TestHostileClients.
const (
	hostileDuration = 3 * time.Minute
	// A round is a window with attackers and one without. There are at least minRounds, however short the test is.
	attackWindow = 20 * time.Second
	calmWindow   = 10 * time.Second
	minRounds    = 6
	// slowdown is how many times longer than without attackers the slowest hundredth of the requests may take.
	slowdown = 3
	// resolution is what the p99 without attackers counts as at least: below it, latency on a host with two cores is that of its scheduler.
	resolution  = 20 * time.Millisecond
	maxResident = 1 << 30
	// maxSeats are the seats of all priority levels of a server with the default limits.
	maxSeats = 600
	// busyCores is how many cores other programs may use in windows that are compared.
	busyCores = 0.2
	// hostileClients is how many attacks run at the same time.
	hostileClients = 24
)

// TestHostileClients runs random attacks beside a normal load for three minutes, or for as long as SKIFF_HOSTILE_DURATION says. Attackers are
// slow, flood, reset, send huge or malformed requests, over HTTP/1.1, HTTP/2, WebSocket and broken TLS, with and without credentials
// (hostileAttacks). Meanwhile, the normal load must be served: nothing fails, no acknowledged write is lost, watches miss nothing, and
// the p99 of its requests stays within three times of what it is without attackers on the same host.
//
// The attackers would have machines of their own. So they run in a process with the lowest priority, which gets the CPU time that the server and
// the normal load leave: they win if they make the server work, but not by using up the cores themselves.
//
// Other programs on the host make requests slower too. So windows with and without attackers alternate, each with attackers is compared
// with those beside it, and the median of these comparisons counts. Rounds in which other programs used the CPU are not compared, but
// repeated, half as often as there are rounds at most.
func TestHostileClients(t *testing.T) {
	duration, seed := hostileDuration, rand.Uint64()
	var err error
	if text := os.Getenv(durationVariable); text != "" {
		if duration, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	if text := os.Getenv(seedVariable); text != "" {
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%s=%d %s=%s", seedVariable, seed, durationVariable, duration)
	a := start(t, "--request-timeout=1m") // the default
	a.prepareHostile()
	load := newLoad(t, a.loadConfig())
	attackers := a.startHostile(seed)
	base := a.usage()
	maxima := a.sampleMaxima()
	slowdowns := a.compareWindows(load, attackers, max(minRounds, int(duration/(attackWindow+calmWindow))))
	most := maxima()
	attackers.stop()
	a.expectReleasedAll(base)
	load.verify()
	t.Logf("at most %d MiB resident, %d MiB of heap, %.0f seats, %.0f goroutines", most.resident>>20, int(most.heap)>>20, most.seats, most.goroutines)
	switch median := medianOf(slowdowns); {
	case len(slowdowns) < minRounds/2:
		t.Logf("the p99 is not compared: other programs used the CPU in all but %d rounds", len(slowdowns))
	case median > slowdown:
		t.Errorf("the p99 of the normal load is %.1f times longer beside attackers, in single rounds %.1f", median, slowdowns)
	}
	if most.resident > maxResident {
		t.Errorf("the server had %d MiB of resident memory", most.resident>>20)
	}
	if most.seats > maxSeats {
		t.Errorf("requests had %.0f seats", most.seats)
	}
}

// compareWindows runs the load in windows with and without attackers, and returns how many times longer its p99 was with them in each round that
// can be compared. After each window with attackers they have no seats.
func (a *target) compareWindows(load *load, attackers *attackers, rounds int) (slowdowns []float64) {
	a.t.Helper()
	measure := func(duration time.Duration) window {
		began, other := time.Now(), a.otherCPU(attackers)
		w := window{latencies: load.run(duration)}
		w.otherCores = float64(a.otherCPU(attackers)-other) / float64(time.Since(began))
		return w
	}
	before := measure(calmWindow)
	for round := 0; len(slowdowns) < rounds && round < rounds+rounds/2; round++ {
		attackers.resume()
		during := measure(attackWindow)
		attackers.pause()
		a.expectNoSeats()
		after := measure(calmWindow)
		calm := max(before.p99(), after.p99(), resolution)
		ratio, other := float64(during.p99())/float64(calm), max(before.otherCores, during.otherCores, after.otherCores)
		a.t.Logf("round %d: p99 of %d requests before the attacks %v, of %d during them %v, of %d after them %v; other programs used %.2f cores",
			round, len(before.latencies), before.p99(), len(during.latencies), during.p99(), len(after.latencies), after.p99(), other)
		if other <= busyCores {
			slowdowns = append(slowdowns, ratio)
		}
		before = after
	}
	return slowdowns
}

// window is a time in which the normal load ran.
type window struct {
	latencies
	// otherCores is how many cores other programs used.
	otherCores float64
}

func medianOf(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	return slices.Sorted(slices.Values(values))[len(values)/2]
}

// otherCPU is the CPU time that all programs but those of the test have used, and what a hypervisor gave to other machines. Interrupts
// are those of the test.
func (a *target) otherCPU(attackers *attackers) time.Duration {
	a.t.Helper()
	data, err := os.ReadFile("/proc/stat")
	a.must(err)
	line, _, _ := strings.Cut(string(data), "\n")
	// The fields are user, nice, system, idle, iowait, irq, softirq, steal, guest and guest_nice, in hundredths of a second.
	fields := strings.Fields(strings.TrimPrefix(line, "cpu"))
	var used time.Duration
	for _, i := range []int{0, 1, 2, 7} {
		ticks, err := strconv.ParseInt(fields[i], 10, 64)
		a.must(err)
		used += time.Duration(ticks) * 10 * time.Millisecond
	}
	for _, pid := range []int{os.Getpid(), a.process.PID(), attackers.process.Process.Pid} {
		own, err := cluster.CPUTime(pid)
		a.must(err)
		used -= own
	}
	return used
}

// expectNoSeats waits until all seats are returned.
func (a *target) expectNoSeats() {
	a.t.Helper()
	var now usage
	a.eventually(func() bool {
		now = a.usage()
		return now.seats == 0
	}, func() string { return fmt.Sprintf("after the attacks the server still holds %+v", now) })
}

// prepareHostile gives attackers a namespace in which they may write, and the normal load another.
func (a *target) prepareHostile() {
	a.t.Helper()
	ctx := a.t.Context()
	k, err := kubernetes.NewForConfig(a.config)
	a.must(err)
	for _, namespace := range []string{hostileNamespace, loadNamespace} {
		_, err := k.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
		a.must(err)
		account := "attacker"
		if namespace == loadNamespace {
			account = loadAccount
			_, err := k.CoreV1().ServiceAccounts("default").Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: account}}, metav1.CreateOptions{})
			a.must(err)
		}
		_, err = k.RbacV1().RoleBindings(namespace).Create(ctx, &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "edit"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "edit"},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "default", Name: account}},
		}, metav1.CreateOptions{})
		a.must(err)
	}
}

// loadConfig is the configuration of the normal load: a service account, because an administrator is exempt from priority and fairness.
func (a *target) loadConfig() *rest.Config {
	a.t.Helper()
	k, err := kubernetes.NewForConfig(a.config)
	a.must(err)
	token, err := k.CoreV1().ServiceAccounts("default").CreateToken(a.t.Context(), loadAccount, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	a.must(err)
	config := rest.AnonymousClientConfig(a.config)
	config.BearerToken, config.QPS = token.Status.Token, -1
	return config
}

// hostileVariable has the configuration of the process that attacks.
const hostileVariable = "SKIFF_HOSTILE"

// hostileConfig is what the attacking process needs to know.
type hostileConfig struct {
	Host, Token string
	CA          []byte
	Seed        uint64
	Only        string // the name of an attack, or empty
}

func TestMain(m *testing.M) {
	if text := os.Getenv(hostileVariable); text != "" {
		var config hostileConfig
		err := json.Unmarshal([]byte(text), &config)
		if err == nil {
			err = runHostile(config)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// attackers is the process that attacks.
type attackers struct {
	a       *target
	process *exec.Cmd
	input   io.WriteCloser
	output  *bufio.Reader
	stop    func()
}

// startHostile starts the process that attacks. It begins with resume; stop ends it, logs what it did and fails the test when an attack was
// not made.
func (a *target) startHostile(seed uint64) *attackers {
	a.t.Helper()
	a.must(rest.LoadTLSFiles(a.config))
	config, err := json.Marshal(hostileConfig{Host: a.host, Token: a.token, CA: a.config.CAData, Seed: seed, Only: os.Getenv(onlyVariable)})
	a.must(err)
	process := exec.Command(os.Args[0])
	process.Env = append(os.Environ(), hostileVariable+"="+string(config), "GOMAXPROCS=1")
	process.Stderr = os.Stderr
	process.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	input, err := process.StdinPipe()
	a.must(err)
	output, err := process.StdoutPipe()
	a.must(err)
	a.must(process.Start())
	at := &attackers{a: a, process: process, input: input, output: bufio.NewReader(output)}
	at.stop = sync.OnceFunc(at.end)
	a.t.Cleanup(at.stop)
	// The priority of the group is that of all its threads.
	a.must(unix.Setpriority(unix.PRIO_PGRP, process.Process.Pid, 19))
	return at
}

// resume lets the attackers attack.
func (at *attackers) resume() {
	at.a.t.Helper()
	at.command(commandAttack)
}

// pause ends the attacks and closes the attackers' connections.
func (at *attackers) pause() {
	at.a.t.Helper()
	at.command(commandPause)
}

// command sends a command and waits until it is carried out.
func (at *attackers) command(name string) {
	at.a.t.Helper()
	_, err := io.WriteString(at.input, name+"\n")
	at.a.must(err)
	if line, err := at.output.ReadString('\n'); err != nil || line != name+"\n" {
		at.a.t.Fatalf("the attackers responded %q to %q: %v", line, name, err)
	}
}

// end ends the process, whose standard input says how long it runs. It is also called when the test has failed.
func (at *attackers) end() {
	t := at.a.t
	t.Helper()
	at.input.Close()
	report, err := io.ReadAll(at.output)
	if err := errors.Join(err, at.process.Wait()); err != nil {
		t.Errorf("the attackers failed: %v", err)
		return
	}
	var counts map[string]int
	if err := json.Unmarshal(report, &counts); err != nil {
		t.Errorf("the report of the attackers: %v", err)
		return
	}
	t.Logf("attacks: %v", counts)
	for _, attack := range hostileAttacks {
		if counts[attack.name] == 0 && (os.Getenv(onlyVariable) == "" || os.Getenv(onlyVariable) == attack.name) {
			t.Errorf("no attack %q succeeded in connecting", attack.name)
		}
	}
}

// maxima are the most that the server held at any time.
type maxima struct {
	usage
	resident int64
}

// sampleMaxima samples what the server holds. The function it returns ends that and returns the maxima.
func (a *target) sampleMaxima() (stop func() maxima) {
	ctx, cancel := context.WithCancel(a.t.Context())
	result := make(chan maxima, 1)
	go func() {
		var most maxima
		defer func() { result <- most }()
		for ctx.Err() == nil {
			if n, err := a.process.Resident(); err == nil {
				most.resident = max(most.resident, n)
			}
			// A request that fails is one of the administrator, who has no share of the load.
			if now, err := a.readUsage(ctx); err == nil {
				most.heap, most.goroutines, most.seats = max(most.heap, now.heap), max(most.goroutines, now.goroutines), max(most.seats, now.seats)
			}
			select {
			case <-ctx.Done():
			case <-time.After(500 * time.Millisecond):
			}
		}
	}()
	return func() maxima {
		cancel()
		return <-result
	}
}

// expectReleasedAll waits until all seats are returned and the goroutines of the attackers' requests have ended.
func (a *target) expectReleasedAll(base usage) {
	a.t.Helper()
	var now usage
	a.eventually(func() bool {
		now = a.usage()
		return now.seats == 0 && now.goroutines <= base.goroutines+leftGoroutines
	}, func() string {
		return fmt.Sprintf("the server still holds %+v; it held %+v before the attacks", now, base)
	})
	a.t.Logf("before the attacks %+v, after them %+v", base, now)
	if a.process.Exited() {
		a.t.Fatalf("the server has exited; its log ends:\n%s", a.process.Log(50))
	}
}
