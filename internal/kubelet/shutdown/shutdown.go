// Package shutdown implements graceful node shutdown.
//
// Shutdown holds a delay inhibitor lock of systemd-logind. When logind announces a shutdown over D-Bus, Shutdown
// terminates the pods group by group, lowest priority first, gives each group its grace period, and then releases the
// lock. Meanwhile the node is not ready and rejects pods. If the shutdown is cancelled the node becomes ready again;
// terminated pods stay terminated.
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
	"skiff/internal/podstate"
)

// The reasons and messages in the status of pods that were terminated or rejected because of a shutdown.
const (
	Reason          = "Terminated"
	Message         = "Pod was terminated in response to imminent node shutdown."
	RejectedReason  = "NodeShutdown"
	RejectedMessage = "Pod was rejected as the node is shutting down."

	eventReason = "NodeShutdown"
)

// Delays between attempts to reconnect to logind.
const (
	minReconnectDelay = time.Second
	maxReconnectDelay = time.Minute
)

// Period is the grace period of pods with its priority or higher, up to the priority of the next period.
type Period = kubeletconfig.ShutdownGracePeriodByPodPriority

// Periods returns the periods of a configuration in ascending order of priority. None means that graceful shutdown is
// disabled.
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
		{Priority: podstate.SystemCriticalPriority, ShutdownGracePeriodSeconds: int64(critical / time.Second)},
	}
}

// total is the sum of all periods.
func total(periods []Period) time.Duration {
	var seconds int64
	for _, p := range periods {
		seconds += p.ShutdownGracePeriodSeconds
	}
	return time.Duration(seconds) * time.Second
}

// podGroup are the pods that are terminated together.
type podGroup struct {
	Period
	pods []*corev1.Pod
}

// groupPods assigns pods to periods, of which there is at least one: to the highest period that is not above the pod's
// priority, or to the lowest if all are.
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

// graceOf returns the grace period of a pod in seconds: its own, if that is shorter than the group's.
func (g podGroup) graceOf(pod *corev1.Pod) int64 {
	if own := pod.Spec.TerminationGracePeriodSeconds; own != nil {
		return min(*own, g.ShutdownGracePeriodSeconds)
	}
	return g.ShutdownGracePeriodSeconds
}

// Condition is the DisruptionTarget condition of a terminated pod.
func Condition(pod *corev1.Pod, now time.Time) *corev1.PodCondition {
	return &corev1.PodCondition{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: corev1.PodReasonTerminationByKubelet, Message: Message,
		LastTransitionTime: metav1.NewTime(now), ObservedGeneration: pod.Generation,
	}
}

// Options are the dependencies of Shutdown.
type Options struct {
	// Periods are the result of the function Periods.
	Periods []Period
	// Pods returns the running pods.
	Pods func() []*corev1.Pod
	// KillPod terminates a pod within a grace period in seconds. The channel is closed when the pod has terminated and
	// its volumes are unmounted.
	KillPod func(pod *corev1.Pod, grace int64) <-chan struct{}
	// NodeEvent records an event about the node. Changed is called when ShuttingDown has changed.
	NodeEvent func(eventType, reason, message string)
	Changed   func()
	// Connect connects to the bus of logind; nil is the system bus.
	Connect func() (*dbus.Conn, error)
	// ConfigDir is logind's configuration drop-in directory; empty is the default.
	ConfigDir string
	// StateFile stores the times of the last shutdown.
	StateFile string
	Log       *slog.Logger
}

// Shutdown watches for shutdowns of the node.
type Shutdown struct {
	Options

	mu           sync.Mutex
	shuttingDown bool
	times        times
}

// times are the start and end of terminating the pods, in upstream's format.
type times struct {
	Start time.Time `json:"startTime"`
	End   time.Time `json:"endTime"`
}

// New returns a Shutdown. It starts nothing.
func New(o Options) *Shutdown {
	if o.Connect == nil {
		o.Connect = func() (*dbus.Conn, error) { return dbus.ConnectSystemBus() }
	}
	o.ConfigDir = cmp.Or(o.ConfigDir, DefaultConfigDir)
	s := &Shutdown{Options: o}
	if text, err := os.ReadFile(o.StateFile); err == nil {
		_ = json.Unmarshal(text, &s.times) // only used for metrics
	}
	return s
}

// ShuttingDown reports whether the node is shutting down.
func (s *Shutdown) ShuttingDown() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.shuttingDown
}

// Times returns when the pods were last terminated for a shutdown, zero if never, also of earlier runs.
func (s *Shutdown) Times() (start, end time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.times.Start, s.times.End
}

// Run delays shutdowns until ctx is done. Without logind it logs a warning and returns.
func (s *Shutdown) Run(ctx context.Context) error {
	if len(s.Periods) == 0 {
		return nil
	}
	connected := false
	for wait := minReconnectDelay; ; {
		conn, err := s.inhibit()
		switch {
		case err != nil && !connected:
			s.Log.Warn("graceful node shutdown is disabled", "error", err)
			return nil
		case err != nil:
			s.Log.Warn("failed to connect to logind", "error", err)
			wait = min(2*wait, maxReconnectDelay)
		default:
			connected, wait = true, minReconnectDelay
			s.handleSignals(ctx, conn)
			conn.close()
			if ctx.Err() == nil {
				s.Log.Warn("lost connection to logind")
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}

// inhibit connects to logind, raises its maximum delay if needed, and takes the inhibitor lock.
func (s *Shutdown) inhibit() (_ *logind, err error) {
	conn, err := s.Connect()
	if err != nil {
		return nil, fmt.Errorf("connect to D-Bus: %w", err)
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

// handleSignals handles logind's signals until ctx is done or the connection is lost.
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
					s.Log.Warn("failed to take inhibitor lock", "error", err)
				}
				continue
			}
			s.setShuttingDown(true, "Shutdown manager detected shutdown event")
			s.killPods(ctx)
			l.release()
		}
	}
}

// setShuttingDown records and announces whether the node is shutting down.
func (s *Shutdown) setShuttingDown(starting bool, event string) {
	s.Log.Info("received shutdown signal", "cancelled", !starting)
	s.NodeEvent(corev1.EventTypeNormal, eventReason, event)
	s.mu.Lock()
	s.shuttingDown = starting
	s.mu.Unlock()
	s.Changed()
}

// killPods terminates all pods, group by group.
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

// killGroup terminates the pods of a group, and returns when they are removed or the grace period is over.
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
			s.Log.Warn("pods did not terminate within the shutdown grace period", "priority", g.Priority, "seconds", g.ShutdownGracePeriodSeconds, "pod", pod.Namespace+"/"+pod.Name)
			return
		}
	}
}

// saveTimes stores the times across the reboot.
func (s *Shutdown) saveTimes(t times) {
	s.mu.Lock()
	s.times = t
	s.mu.Unlock()
	text, err := json.Marshal(t)
	if err == nil && s.StateFile != "" {
		err = atomicfile.Write(s.StateFile, text, 0o644)
	}
	if err != nil {
		s.Log.Warn("failed to store shutdown times", "error", err)
	}
}
