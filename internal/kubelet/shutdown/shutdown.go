// Package shutdown lets the pods of a node end in order before the machine goes down.
//
// logind asks, over D-Bus, all who hold an inhibitor lock whether they are done. Shutdown holds one. When the machine is about to go down it
// ends the pods group by group, those of the lowest priority first, gives each group its time, and lets go of the lock. Meanwhile the node is not
// ready and takes no pods. A shutdown that is called off makes the node what it was; the pods that have ended stay ended.
package shutdown

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/godbus/dbus/v5"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"

	"skiff/internal/atomicfile"
)

// What pods say that end for a shutdown, and those that come too late.
const (
	Reason          = "Terminated"
	Message         = "Pod was terminated in response to imminent node shutdown."
	RejectedReason  = "NodeShutdown"
	RejectedMessage = "Pod was rejected as the node is shutting down."

	eventReason = "NodeShutdown"
)

// systemCriticalPriority is the lowest priority of the system's own pods.
const systemCriticalPriority = 2_000_000_000

// Waits between attempts to reach logind again after the connection was lost.
const (
	minReconnectDelay = time.Second
	maxReconnectDelay = time.Minute
)

// Period is how many seconds pods of a priority, and of all priorities up to that of the next period, get to end.
type Period = kubeletconfig.ShutdownGracePeriodByPodPriority

// Periods are those of a configuration, from the lowest priority to the highest. None means that pods are not looked after.
func Periods(c *kubeletconfig.KubeletConfiguration) []Period {
	if given := c.ShutdownGracePeriodByPodPriority; len(given) > 0 {
		return slices.SortedStableFunc(slices.Values(given), func(a, b Period) int { return cmp.Compare(a.Priority, b.Priority) })
	}
	all, critical := c.ShutdownGracePeriod.Duration, c.ShutdownGracePeriodCriticalPods.Duration
	if all == 0 || critical > all || critical < 0 {
		return nil
	}
	return []Period{
		{Priority: 0, ShutdownGracePeriodSeconds: int64((all - critical) / time.Second)},
		{Priority: systemCriticalPriority, ShutdownGracePeriodSeconds: int64(critical / time.Second)},
	}
}

// total is how long the machine has to wait for all periods.
func total(periods []Period) time.Duration {
	var seconds int64
	for _, p := range periods {
		seconds += p.ShutdownGracePeriodSeconds
	}
	return time.Duration(seconds) * time.Second
}

// group is the pods that end together.
type podGroup struct {
	Period
	pods []*corev1.Pod
}

// groups puts pods to the periods, of which there is one at least. A pod belongs to the highest period that is not above its priority, or to
// the lowest if all are.
func groupPods(periods []Period, pods []*corev1.Pod) []podGroup {
	all := make([]podGroup, len(periods))
	for i, p := range periods {
		all[i].Period = p
	}
	for _, pod := range pods {
		priority := int32(0)
		if pod.Spec.Priority != nil {
			priority = *pod.Spec.Priority
		}
		i := len(all) - 1
		for i > 0 && all[i].Priority > priority {
			i--
		}
		all[i].pods = append(all[i].pods, pod)
	}
	return all
}

// graceOf is how many seconds a pod of a group gets: its own time, if that is shorter.
func (g podGroup) graceOf(pod *corev1.Pod) int64 {
	if own := pod.Spec.TerminationGracePeriodSeconds; own != nil {
		return min(*own, g.ShutdownGracePeriodSeconds)
	}
	return g.ShutdownGracePeriodSeconds
}

// Condition says of a pod who ended it.
func Condition(pod *corev1.Pod, now time.Time) *corev1.PodCondition {
	return &corev1.PodCondition{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: corev1.PodReasonTerminationByKubelet, Message: Message,
		LastTransitionTime: metav1.NewTime(now), ObservedGeneration: pod.Generation,
	}
}

// Options are what a Shutdown works with.
type Options struct {
	// Periods come from the function of that name.
	Periods []Period
	// Pods are those that run.
	Pods func() []*corev1.Pod
	// End has a pod end within so many seconds. The channel is closed when the pod has ended and its volumes are removed.
	KillPod func(pod *corev1.Pod, grace int64) <-chan struct{}
	// NodeEvent tells of the node; Changed is called when Now has changed.
	NodeEvent func(eventType, reason, message string)
	Changed   func()
	// Connect reaches the bus that logind is on; nil is the system's.
	Connect func() (*dbus.Conn, error)
	// ConfigDirectory is where logind is told to wait longer; empty is logind's own.
	ConfigDir string
	// StateFile remembers when the pods were ended last.
	StateFile string
	Log       *slog.Logger
}

// Shutdown watches for the end of the machine.
type Shutdown struct {
	Options

	mu           sync.Mutex
	shuttingDown bool
	times        times
}

// times are when the pods began to be ended, and when all had; upstream's record of it.
type times struct {
	Start time.Time `json:"startTime"`
	End   time.Time `json:"endTime"`
}

// New makes a Shutdown. It starts nothing.
func New(o Options) *Shutdown {
	if o.Connect == nil {
		o.Connect = func() (*dbus.Conn, error) { return dbus.ConnectSystemBus() }
	}
	o.ConfigDir = cmp.Or(o.ConfigDir, "/etc/systemd/logind.conf.d")
	s := &Shutdown{Options: o}
	if text, err := os.ReadFile(o.StateFile); err == nil {
		_ = json.Unmarshal(text, &s.times) // what cannot be read is only missed by a metric
	}
	return s
}

// Now reports whether the machine is about to go down.
func (s *Shutdown) ShuttingDown() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.shuttingDown
}

// Times are when the pods were last ended for a shutdown, zero where they were not, also those of a run before.
func (s *Shutdown) Times() (start, end time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.times.Start, s.times.End
}

// Run holds back shutdowns until ctx ends. A machine without logind goes down unannounced: that is told, and the node runs all the same.
func (s *Shutdown) Run(ctx context.Context) error {
	if len(s.Periods) == 0 {
		return nil
	}
	connected := false
	for wait := minReconnectDelay; ; {
		conn, err := s.inhibit()
		switch {
		case err != nil && !connected:
			s.Log.Warn("pods cannot be ended before this machine goes down", "error", err)
			return nil
		case err != nil:
			s.Log.Warn("logind is not reached", "error", err)
			wait = min(2*wait, maxReconnectDelay)
		default:
			connected, wait = true, minReconnectDelay
			s.handleSignals(ctx, conn)
			conn.close()
			if ctx.Err() == nil {
				s.Log.Warn("the connection to logind was lost")
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}

// hold reaches logind, has it wait as long as the pods need, and takes the lock.
func (s *Shutdown) inhibit() (_ *logind, err error) {
	conn, err := s.Connect()
	if err != nil {
		return nil, fmt.Errorf("reach the bus: %w", err)
	}
	l := &logind{conn: conn}
	defer func() {
		if err != nil {
			l.close()
		}
	}()
	delay, err := l.maxDelay()
	if err != nil {
		return nil, err
	}
	if need := total(s.Periods); need > delay {
		if err := l.setMaxDelay(s.ConfigDir, need); err != nil {
			return nil, err
		}
	}
	if err := l.subscribe(); err != nil {
		return nil, err
	}
	return l, l.inhibit()
}

// follow deals with what logind announces until ctx ends or the connection is lost.
func (s *Shutdown) handleSignals(ctx context.Context, l *logind) {
	for {
		select {
		case <-ctx.Done():
			return
		case signal, open := <-l.signals:
			if !open {
				return
			}
			starting, ok := parseSignal(signal)
			if !ok {
				continue
			}
			if !starting {
				s.setShuttingDown(false, "Shutdown manager detected shutdown cancellation")
				if err := l.inhibit(); err != nil {
					s.Log.Warn("the next shutdown cannot be conn back", "error", err)
				}
				continue
			}
			s.setShuttingDown(true, "Shutdown manager detected shutdown event")
			s.killPods(ctx)
			l.release()
		}
	}
}

// turn notes whether the machine is about to go down, and tells of it.
func (s *Shutdown) setShuttingDown(starting bool, event string) {
	s.Log.Info("the machine's shutdown was prepareForShutdown", "calledOff", !starting)
	s.NodeEvent(corev1.EventTypeNormal, eventReason, event)
	s.mu.Lock()
	s.shuttingDown = starting
	s.mu.Unlock()
	s.Changed()
}

// killPods ends all pods, group by group.
func (s *Shutdown) killPods(ctx context.Context) {
	s.saveTimes(times{Start: time.Now()})
	for _, g := range groupPods(s.Periods, s.Pods()) {
		if len(g.pods) > 0 {
			s.killGroup(ctx, g)
		}
	}
	start, _ := s.Times()
	s.saveTimes(times{Start: start, End: time.Now()})
}

// killGroup ends the pods of a group, and returns when they are removed or their time is over.
func (s *Shutdown) killGroup(ctx context.Context, g podGroup) {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(g.ShutdownGracePeriodSeconds)*time.Second)
	defer cancel()
	removed := make([]<-chan struct{}, len(g.pods))
	for i, pod := range g.pods {
		removed[i] = s.KillPod(pod, g.graceOf(pod))
	}
	for i, pod := range g.pods {
		select {
		case <-removed[i]:
		case <-ctx.Done():
			s.Log.Warn("pods did not end in time for the shutdown", "priority", g.Priority, "seconds", g.ShutdownGracePeriodSeconds, "first", pod.Namespace+"/"+pod.Name)
			return
		}
	}
}

// remember keeps the times over the end of the machine.
func (s *Shutdown) saveTimes(t times) {
	s.mu.Lock()
	s.times = t
	s.mu.Unlock()
	text, err := json.Marshal(t)
	if err == nil && s.StateFile != "" {
		err = atomicfile.Write(s.StateFile, text, 0o644)
	}
	if err != nil {
		s.Log.Warn("the times of the shutdown are not kept", "error", err)
	}
}
