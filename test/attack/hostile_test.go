package attack

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
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
	// calmShare is the part of the time in which the load runs without attackers, before and again after them.
	calmShare = 6
	// slowdown is how many times longer than without attackers the slowest hundredth of the requests may take.
	slowdown = 3
	// resolution is what the p99 without attackers counts as at least: below it, latency on a host with two cores is that of its scheduler.
	resolution  = 20 * time.Millisecond
	maxResident = 1 << 30
	// hostileClients is how many attacks run at the same time.
	hostileClients = 24
)

// TestHostileClients runs random attacks beside a normal load for three minutes, or for as long as SKIFF_HOSTILE_DURATION says. Attackers are
// slow, flood, reset, send huge or malformed requests, over HTTP/1.1, HTTP/2, WebSocket and broken TLS, with and without credentials
// (hostileAttacks). Meanwhile, the normal load must be served: nothing fails, no acknowledged write is lost, watches miss nothing, and
// the p99 of its requests stays within three times of what it is without attackers on the same host, before or after.
//
// The attackers would have machines of their own. So they run in a process with the lowest priority, which gets the CPU time that the server and
// the normal load leave: they win if they make the server work, but not by using up the cores themselves.
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
	before := load.run(duration / calmShare)
	base := a.usage()
	stop := a.startHostile(seed)
	resident := a.sampleResident()
	during := load.run(duration - 2*duration/calmShare)
	most := resident()
	stop()
	a.expectReleasedAll(base)
	after := load.run(duration / calmShare)
	load.verify()
	calm := max(before.p99(), after.p99())
	t.Logf("%d, %d and %d requests; p99 before the attacks %v, during them %v, after them %v; at most %d MiB resident",
		len(before), len(during), len(after), before.p99(), during.p99(), after.p99(), most>>20)
	if limit := slowdown * max(calm, resolution); during.p99() > limit {
		t.Errorf("the p99 of the normal load is %v beside attackers, and %v without", during.p99(), calm)
	}
	if most > maxResident {
		t.Errorf("the server had %d MiB of resident memory", most>>20)
	}
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

// startHostile starts the process that attacks. stop ends it and logs what it did; it fails the test when an attack was not made.
func (a *target) startHostile(seed uint64) (stop func()) {
	a.t.Helper()
	a.must(rest.LoadTLSFiles(a.config))
	config, err := json.Marshal(hostileConfig{Host: a.host, Token: a.token, CA: a.config.CAData, Seed: seed, Only: os.Getenv(onlyVariable)})
	a.must(err)
	process := exec.Command(os.Args[0])
	process.Env = append(os.Environ(), hostileVariable+"="+string(config), "GOMAXPROCS=1")
	process.Stderr = os.Stderr
	process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	input, err := process.StdinPipe()
	a.must(err)
	output, err := process.StdoutPipe()
	a.must(err)
	a.must(process.Start())
	a.must(unix.Setpriority(unix.PRIO_PROCESS, process.Process.Pid, 19))
	lines := bufio.NewReader(output)
	if _, err := lines.ReadString('\n'); err != nil {
		a.t.Fatalf("the attackers did not start: %v", err)
	}
	return sync.OnceFunc(func() {
		a.t.Helper()
		input.Close() // which ends it
		report, err := io.ReadAll(lines)
		a.must(err)
		a.must(process.Wait())
		var counts map[string]int
		a.must(json.Unmarshal(report, &counts))
		a.t.Logf("attacks: %v", counts)
		for _, attack := range hostileAttacks {
			if counts[attack.name] == 0 && (os.Getenv(onlyVariable) == "" || os.Getenv(onlyVariable) == attack.name) {
				a.t.Errorf("no attack %q succeeded in connecting", attack.name)
			}
		}
	})
}

// sampleResident samples the resident memory of the server. The function it returns ends that and returns the maximum.
func (a *target) sampleResident() (stop func() int64) {
	done, most := make(chan struct{}), make(chan int64)
	go func() {
		var maximum int64
		for {
			n, err := a.process.Resident()
			if err == nil {
				maximum = max(maximum, n)
			}
			select {
			case <-done:
				most <- maximum
				return
			case <-time.After(500 * time.Millisecond):
			}
		}
	}()
	return func() int64 {
		close(done)
		return <-most
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
