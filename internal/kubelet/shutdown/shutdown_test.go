package shutdown

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"

	"skiff/internal/podstate"
	played "skiff/test/logind"
)

func pod(name string, priority *int32, grace ...int64) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}, Spec: corev1.PodSpec{Priority: priority}}
	if len(grace) > 0 {
		p.Spec.TerminationGracePeriodSeconds = &grace[0]
	}
	return p
}

func seconds(n time.Duration) metav1.Duration { return metav1.Duration{Duration: n * time.Second} }

func periods(pairs ...int64) []Period {
	var list []Period
	for i := 0; i < len(pairs); i += 2 {
		list = append(list, Period{Priority: int32(pairs[i]), ShutdownGracePeriodSeconds: pairs[i+1]})
	}
	return list
}

func TestPeriods(t *testing.T) {
	for _, row := range []struct {
		name   string
		config kubeletconfig.KubeletConfiguration
		want   []Period
	}{
		{"nothing is asked for", kubeletconfig.KubeletConfiguration{}, nil},
		{"the critical pods' time is part of the whole", kubeletconfig.KubeletConfiguration{ShutdownGracePeriod: seconds(30), ShutdownGracePeriodCriticalPods: seconds(10)}, periods(0, 20, podstate.SystemCriticalPriority, 10)},
		{"no time for critical pods", kubeletconfig.KubeletConfiguration{ShutdownGracePeriod: seconds(30)}, periods(0, 30, podstate.SystemCriticalPriority, 0)},
		{"all the time is for critical pods", kubeletconfig.KubeletConfiguration{ShutdownGracePeriod: seconds(30), ShutdownGracePeriodCriticalPods: seconds(30)}, periods(0, 0, podstate.SystemCriticalPriority, 30)},
		{"more for critical pods than there is", kubeletconfig.KubeletConfiguration{ShutdownGracePeriod: seconds(10), ShutdownGracePeriodCriticalPods: seconds(30)}, nil},
		{"only for critical pods", kubeletconfig.KubeletConfiguration{ShutdownGracePeriodCriticalPods: seconds(10)}, nil},
		{"parts of seconds are cut off", kubeletconfig.KubeletConfiguration{ShutdownGracePeriod: metav1.Duration{Duration: 2500 * time.Millisecond}}, periods(0, 2, podstate.SystemCriticalPriority, 0)},
		{"by priority, sorted", kubeletconfig.KubeletConfiguration{ShutdownGracePeriodByPodPriority: periods(100, 3, -5, 1, 7, 2)}, periods(-5, 1, 7, 2, 100, 3)},
		{"by priority goes before", kubeletconfig.KubeletConfiguration{ShutdownGracePeriod: seconds(30), ShutdownGracePeriodByPodPriority: periods(1, 2)}, periods(1, 2)},
	} {
		t.Run(row.name, func(t *testing.T) {
			given := slices.Clone(row.config.ShutdownGracePeriodByPodPriority)
			if got := Periods(&row.config); !slices.Equal(got, row.want) {
				t.Errorf("periods %v, want %v", got, row.want)
			}
			if !slices.Equal(given, row.config.ShutdownGracePeriodByPodPriority) {
				t.Error("the configuration was changed")
			}
		})
	}
	if got := total(periods(0, 20, 5, 10)); got != 30*time.Second {
		t.Errorf("all periods take %s, want 30s", got)
	}
}

func TestGroupPods(t *testing.T) {
	usual := periods(0, 20, podstate.SystemCriticalPriority, 10)
	fine := periods(-100, 1, 0, 2, 1000, 3, podstate.SystemCriticalPriority, 4)
	for _, row := range []struct {
		name     string
		periods  []Period
		priority *int32
		want     int // index of the group
	}{
		{"no priority counts as zero", usual, nil, 0},
		{"no priority counts as zero among many", fine, nil, 1},
		{"exactly a period's", fine, new(int32(1000)), 2},
		{"just below a period", fine, new(int32(999)), 1},
		{"just above a period", fine, new(int32(1001)), 2},
		{"below the lowest", fine, new(int32(-1000)), 0},
		{"negative", fine, new(int32(-1)), 0},
		{"just below critical", usual, new(int32(podstate.SystemCriticalPriority - 1)), 0},
		{"critical", usual, new(int32(podstate.SystemCriticalPriority)), 1},
		{"node critical", usual, new(int32(podstate.SystemCriticalPriority + 1000)), 1},
		{"one period takes all above", periods(100, 5), new(int32(5000)), 0},
		{"one period takes all below", periods(100, 5), new(int32(5)), 0},
	} {
		t.Run(row.name, func(t *testing.T) {
			got := groupPods(row.periods, []*corev1.Pod{pod("p", row.priority)})
			if len(got) != len(row.periods) {
				t.Fatalf("%d groups, want %d", len(got), len(row.periods))
			}
			for i, g := range got {
				if want := i == row.want; (len(g.pods) == 1) != want || g.Period != row.periods[i] {
					t.Errorf("group %d is %+v", i, g)
				}
			}
		})
	}
}

func TestGrace(t *testing.T) {
	g := podGroup{Period: Period{ShutdownGracePeriodSeconds: 10}}
	for _, row := range []struct {
		own  []int64
		want int64
	}{{nil, 10}, {[]int64{5}, 5}, {[]int64{10}, 10}, {[]int64{11}, 10}, {[]int64{0}, 0}} {
		if got := g.graceOf(pod("p", nil, row.own...)); got != row.want {
			t.Errorf("own %v: %d seconds, want %d", row.own, got, row.want)
		}
	}
}

// testNode is a node that is about to shut down.
type testNode struct {
	*Shutdown
	bus *played.Logind
	dir string

	mu   sync.Mutex
	log  []string
	ends map[string]chan struct{}
	pods []*corev1.Pod
}

func (n *testNode) note(format string, args ...any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.log = append(n.log, fmt.Sprintf(format, args...))
}

func (n *testNode) history() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return strings.Join(n.log, "; ")
}

func (n *testNode) await(t *testing.T, story string) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); n.history() != story; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("story: %s\nwant:  %s", n.history(), story)
		}
	}
}

func (n *testNode) end(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	close(n.ends[name])
}

// start runs the node until the test ends.
func start(t *testing.T, delay time.Duration, periods []Period, pods ...*corev1.Pod) *testNode {
	t.Helper()
	m := &testNode{dir: t.TempDir(), ends: map[string]chan struct{}{}, pods: pods}
	for _, p := range pods {
		m.ends[p.Name] = make(chan struct{})
	}
	var err error
	if m.bus, err = played.Start(m.dir, delay); err != nil {
		t.Fatal(err)
	}
	m.bus.Reload = func() time.Duration {
		text, err := os.ReadFile(filepath.Join(m.dir, "conf", configFile))
		if err != nil {
			return delay
		}
		var seconds int
		_, after, _ := strings.Cut(string(text), "InhibitDelayMaxSec=")
		_, _ = fmt.Sscan(after, &seconds)
		return time.Duration(seconds) * time.Second
	}
	m.Shutdown = New(Options{
		Periods: periods, Pods: func() []*corev1.Pod { return m.pods },
		KillPod: func(p *corev1.Pod, grace int64) <-chan struct{} {
			m.note("end %s in %d", p.Name, grace)
			return m.ends[p.Name]
		},
		NodeEvent: func(eventType, reason, message string) { m.note("%s %s %s", eventType, reason, message) },
		Changed:   func() { m.note("now %t", m.ShuttingDown()) },
		Connect:   func() (*dbus.Conn, error) { return dbus.Connect(m.bus.Address) }, ConfigDir: filepath.Join(m.dir, "conf"),
		StateFile: filepath.Join(m.dir, "state"), Log: slog.New(slog.DiscardHandler),
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		m.bus.Stop()
	})
	return m
}

const (
	down   = "Normal NodeShutdown Shutdown manager detected shutdown event; now true"
	called = "Normal NodeShutdown Shutdown manager detected shutdown cancellation; now false"
)

func TestPodsTerminateBeforeShutdown(t *testing.T) {
	m := start(t, time.Minute, periods(0, 20, podstate.SystemCriticalPriority, 10), pod("system", new(int32(podstate.SystemCriticalPriority)), 30), pod("a", nil, 5), pod("b", new(int32(7))))
	if !m.bus.Taken(1, 10*time.Second) {
		t.Fatal("no lock is taken")
	}
	if want := []string{"Get org.freedesktop.login1.Manager InhibitDelayMaxUSec", "Inhibit shutdown kubelet Kubelet needs time to handle node shutdown delay"}; !slices.Equal(m.bus.Requests(), want) {
		t.Errorf("asked for %q, want %q", m.bus.Requests(), want)
	}
	if m.ShuttingDown() {
		t.Error("shutting down before the signal")
	}
	if err := m.bus.Announce(true); err != nil {
		t.Fatal(err)
	}
	m.await(t, down+"; end a in 5; end b in 20")
	m.end("a")
	if m.bus.Released(1, 50*time.Millisecond) || strings.Contains(m.history(), "system") {
		t.Error("the others did not wait for a pod of the first group")
	}
	m.end("b")
	m.await(t, down+"; end a in 5; end b in 20; end system in 10")
	if begun, over := m.Times(); begun.IsZero() || !over.IsZero() {
		t.Errorf("times %s to %s while pods end", begun, over)
	}
	m.end("system")
	if !m.bus.Released(1, 10*time.Second) {
		t.Error("the lock is held though all pods have terminated")
	}
	begun, over := m.Times()
	if begun.IsZero() || over.Before(begun) {
		t.Errorf("times %s to %s", begun, over)
	}
	again := New(Options{StateFile: m.StateFile})
	if b, o := again.Times(); !b.Equal(begun) || !o.Equal(over) {
		t.Errorf("remembered %s to %s, want %s to %s", b, o, begun, over)
	}
}

func TestGroupExceedsGracePeriod(t *testing.T) {
	m := start(t, time.Minute, periods(0, 1, 100, 1), pod("stuck", nil), pod("next", new(int32(100))))
	if !m.bus.Taken(1, 10*time.Second) {
		t.Fatal("no lock is taken")
	}
	if err := m.bus.Announce(true); err != nil {
		t.Fatal(err)
	}
	m.await(t, down+"; end stuck in 1; end next in 1")
	if !m.bus.Released(1, 10*time.Second) {
		t.Error("the lock is held forever by pods that do not terminate")
	}
}

func TestShutdownCancelled(t *testing.T) {
	m := start(t, time.Minute, periods(0, 5))
	if !m.bus.Taken(1, 10*time.Second) {
		t.Fatal("no lock is taken")
	}
	for _, starting := range []bool{true, false} {
		if err := m.bus.Announce(starting); err != nil {
			t.Fatal(err)
		}
	}
	m.await(t, down+"; "+called)
	if !m.bus.Taken(2, 10*time.Second) {
		t.Fatal("the lock was not taken again after the shutdown was cancelled")
	}
	if m.bus.Released(2, 50*time.Millisecond) || m.ShuttingDown() {
		t.Error("the node is still shutting down")
	}
}

func TestMaxDelayIsRaised(t *testing.T) {
	m := start(t, 5*time.Second, periods(0, 20, podstate.SystemCriticalPriority, 10))
	if !m.bus.Taken(1, 10*time.Second) {
		t.Fatal("no lock is taken")
	}
	text, err := os.ReadFile(filepath.Join(m.dir, "conf", configFile))
	if err != nil || !strings.HasSuffix(string(text), "[Login]\nInhibitDelayMaxSec=30\n") {
		t.Errorf("logind's settings %q, %v", text, err)
	}
	if !slices.Contains(m.bus.Requests(), "KillUnit systemd-logind.service all 1") {
		t.Errorf("asked for %q", m.bus.Requests())
	}
}

func TestMaxDelayIsNotRaised(t *testing.T) {
	dir := t.TempDir()
	bus, err := played.Start(dir, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer bus.Stop()
	s := New(Options{
		Periods: periods(0, 20), Connect: func() (*dbus.Conn, error) { return dbus.Connect(bus.Address) }, ConfigDir: dir, Log: slog.New(slog.DiscardHandler),
	})
	if conn, err := s.inhibit(); err == nil || !strings.Contains(err.Error(), "maximum delay is 1s after reload, pods need 20s") {
		t.Errorf("conn %v, error %v", conn, err)
	}
	if slices.ContainsFunc(bus.Requests(), func(r string) bool { return strings.HasPrefix(r, "Inhibit ") }) {
		t.Error("a lock is taken that does not hold for long enough")
	}
}

func TestReconnect(t *testing.T) {
	m := start(t, time.Minute, periods(0, 5), pod("a", nil))
	if !m.bus.Taken(1, 10*time.Second) {
		t.Fatal("no lock is taken")
	}
	m.bus.Disconnect()
	if !m.bus.Released(1, 10*time.Second) {
		t.Error("the lock of a lost connection is still held")
	}
	if !m.bus.Taken(2, 10*time.Second) {
		t.Fatal("no lock is taken again")
	}
	if err := m.bus.Announce(true); err != nil {
		t.Fatal(err)
	}
	m.await(t, down+"; end a in 5")
	m.end("a")
}

func TestWithoutDBus(t *testing.T) {
	s := New(Options{
		Periods: periods(0, 5), Connect: func() (*dbus.Conn, error) { return dbus.Connect("unix:path=" + t.TempDir() + "/none") }, Log: slog.New(slog.DiscardHandler),
	})
	if err := s.Run(t.Context()); err != nil || s.ShuttingDown() {
		t.Errorf("error %v, now %t", err, s.ShuttingDown())
	}
}
