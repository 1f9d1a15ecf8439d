package kubelet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/client"
	"skiff/internal/kubelet/cri"
	"skiff/internal/kubelet/environment"
	"skiff/internal/kubelet/metrics"
	"skiff/internal/kubelet/probe"
	"skiff/internal/kubelet/status"
	"skiff/internal/tracing"
)

// Config has the settings and dependencies of a Kubelet.
type Config struct {
	NodeName string
	// Root is the kubelet's directory, such as /var/lib/kubelet.
	Root    string
	Client  *client.Client
	Runtime *cri.Runtime
	Volumes Volumes
	Images  Images
	Cgroups Cgroups
	Objects Objects
	// Allocator may be nil if containers have no devices, exclusive CPUs and memory of NUMA nodes.
	Allocator Allocator
	// CPUs and Memory may be nil if every container may use all CPUs and NUMA nodes.
	CPUs   CPUs
	Memory Memory
	// StaticCPUs and StaticMemory report that the requests of guaranteed pods for CPUs and memory cannot be changed, because these are assigned.
	StaticCPUs, StaticMemory bool
	// Devices may be nil if there are no device plugins.
	Devices Devices
	// ResourceClaims may be nil if there are no DRA drivers. A pod with claims then does not start.
	ResourceClaims ResourceClaims
	// Handlers may be nil if there are no RuntimeClasses.
	Handlers Handlers
	// Services are for environment variables.
	Services Services
	// Node returns the Node object, nil before it was read; HostIPs returns the node's addresses, the primary one first.
	Node    func() *corev1.Node
	HostIPs func() []string
	Events  client.EventRecorder
	Host    cri.Host
	DNS     environment.DNSSettings
	// HostDNS reads the resolver configuration of the host for each pod, because it changes with the networks of the host; nil: it is disabled.
	HostDNS func() (*environment.DNSConfig, error)
	// MaxContainerRestartPeriod is the maximum CrashLoopBackOff delay; zero means upstream's default of five minutes.
	MaxContainerRestartPeriod time.Duration
	// StaticPods is the directory or file of static pod manifests, StaticPodURL the URL of a manifest; both may be empty.
	StaticPods, StaticPodURL string
	StaticPodHeader          map[string][]string
	// StaticPodPeriod and StaticPodURLPeriod are the periods of reading them; zero means upstream's default of 20 seconds.
	StaticPodPeriod, StaticPodURLPeriod time.Duration
	// PodLogsDir is the directory of the logs of all pods; logs below Root if empty.
	PodLogsDir string
	// LogMonitorInterval is the period of rotating logs; zero means upstream's default of ten seconds.
	LogMonitorInterval time.Duration
	// LogMaxSize (bytes) and LogMaxFiles bound the logs of a container.
	LogMaxSize  int64
	LogMaxFiles int
	// AllowedSysctls are the unsafe sysctls that pods may set; a trailing * matches any suffix.
	AllowedSysctls []string
	// Reject, if set, is called before all other admission checks, and may return the reason to reject a pod: node pressure or shutdown.
	Reject func(pod *corev1.Pod) *status.Reason
	// NetworkError, if set, says why pods outside of the host's network cannot start. SyncAll is called when it becomes nil.
	NetworkError func() error
	// RuntimeChanged, if set, is called when RuntimeError becomes nil or non-nil.
	RuntimeChanged func()
	// RecursiveReadOnly reports whether the runtime supports recursive read-only mounts.
	RecursiveReadOnly bool
	// Metrics may be nil.
	Metrics *metrics.Metrics
	// Tracing records spans of syncs; nil: none.
	Tracing *tracing.Provider
	Log     *slog.Logger
}

// Kubelet runs the pods of one node.
type Kubelet struct {
	Config
	runtimeName    string
	writer         *status.Writer
	probes         *probe.Probes
	userNamespaces *cri.UserNamespaces
	// killing has the IDs of containers for which a Killing event was recorded.
	killing sync.Map

	sandboxes    sandboxSemaphore
	sandboxCheck *sandboxCheck
	// admission serializes admission and resizes, so that each check counts the resources of the pods admitted before.
	admission admissionLock

	mu      sync.Mutex
	workers map[types.UID]*worker
	// mirrors are the mirror pods in the API.
	mirrors map[types.NamespacedName]*corev1.Pod
	// apiListed and staticListed are set when that source of pods has been listed once. Only then can orphaned pods be recognised.
	apiListed, staticListed bool
	running                 sync.WaitGroup
	ctx                     context.Context
	runtimeError            error
}

// New makes a kubelet. It starts nothing.
func New(c Config) *Kubelet {
	k := &Kubelet{
		Config: c, writer: status.NewWriter(c.Client, c.Log), workers: map[types.UID]*worker{}, mirrors: map[types.NamespacedName]*corev1.Pod{},
		admission: make(admissionLock, 1), sandboxes: newSandboxSemaphore(), sandboxCheck: newSandboxCheck(), runtimeError: errors.New("container runtime status check may not have completed yet"),
	}
	k.userNamespaces = cri.NewUserNamespaces(k.podsDir())
	k.probes = probe.New(probe.Options{
		Exec: k.exec, Changed: k.Changed, Answered: c.Metrics.Probed, Forgotten: c.Metrics.PodProbesRemoved, Log: c.Log,
		Event: func(pod *corev1.Pod, c *corev1.Container, reason, message string) {
			k.containerEvent(pod, c, corev1.EventTypeWarning, reason, message)
		},
	})
	return k
}

// Run runs the node's pods until ctx is done. Containers keep running; a restarted kubelet finds them in the runtime.
func (k *Kubelet) Run(ctx context.Context) error {
	// Programs beside the kubelet expect its directories, and those of logs, before the first pod.
	for _, dir := range []string{k.Root, k.podsDir(), filepath.Join(k.Root, "plugins"), k.LogsDir()} {
		if err := os.MkdirAll(dir, 0o750); err != nil {
			return fmt.Errorf("create kubelet directories: %w", err)
		}
	}
	if err := os.MkdirAll(LogLinksDir(k.LogsDir()), 0o755); err != nil {
		return fmt.Errorf("create kubelet directories: %w", err)
	}
	if err := k.waitForRuntime(ctx); err != nil {
		return nil // ctx is done
	}
	group, ctx := errgroup.WithContext(ctx)
	k.mu.Lock()
	k.ctx = ctx
	k.mu.Unlock()
	watcher := &cri.Watcher{Runtime: k.Runtime, Changed: k.Changed, Healthy: k.runtimeHealth, Relisted: k.Metrics.Relisted, Log: k.Log}
	for _, run := range []func(context.Context) error{
		k.writer.Run, watcher.Run, k.watchPods, k.watchStatic, k.housekeep, k.rotateLogs, k.checkSandboxes, k.watchClock,
	} {
		group.Go(func() error { return run(ctx) })
	}
	err := group.Wait()
	k.running.Wait()
	k.probes.Wait()
	return err
}

// waitForRuntime returns when the runtime responds.
func (k *Kubelet) waitForRuntime(ctx context.Context) error {
	for {
		version, err := k.Runtime.Version(ctx)
		if err == nil {
			k.runtimeName = version.Name
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func (k *Kubelet) runtimeHealth(err error) {
	k.mu.Lock()
	changed := (k.runtimeError == nil) != (err == nil)
	k.runtimeError = err
	k.mu.Unlock()
	if changed && k.RuntimeChanged != nil {
		k.RuntimeChanged()
	}
}

// RuntimeError is why the runtime cannot run pods: the error of the last listing of its containers, or of starting a sandbox.
func (k *Kubelet) RuntimeError() error {
	k.mu.Lock()
	listing := k.runtimeError
	k.mu.Unlock()
	if listing != nil {
		return listing
	}
	return k.sandboxCheck.error()
}

func (k *Kubelet) podsDir() string             { return filepath.Join(k.Root, "pods") }
func (k *Kubelet) podDir(uid types.UID) string { return filepath.Join(k.podsDir(), string(uid)) }

// LogsDir is the directory of the logs of all pods.
func (k *Kubelet) LogsDir() string { return cmp.Or(k.PodLogsDir, filepath.Join(k.Root, "logs")) }

// Changed wakes the worker of a pod.
func (k *Kubelet) Changed(uid types.UID) {
	k.mu.Lock()
	w := k.workers[uid]
	k.mu.Unlock()
	if w != nil {
		w.wakeUp()
	}
}

// SyncAll wakes the workers of all pods.
func (k *Kubelet) SyncAll() {
	for _, w := range k.listWorkers() {
		w.wakeUp()
	}
}

// listWorkers returns the workers of all pods.
func (k *Kubelet) listWorkers() []*worker {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Collect(maps.Values(k.workers))
}

// Pods returns all pods of this node that have a worker, including static pods, with their latest status.
func (k *Kubelet) Pods() []*corev1.Pod {
	workers := k.listWorkers()
	pods := make([]*corev1.Pod, 0, len(workers))
	for _, w := range workers {
		pods = append(pods, k.withStatus(w.current()))
	}
	return pods
}

// Pod returns a pod of this node by name.
func (k *Kubelet) Pod(namespace, name string) (*corev1.Pod, bool) {
	for _, pod := range k.Pods() {
		if pod.Namespace == namespace && pod.Name == name {
			return pod, true
		}
	}
	return nil, false
}

// PodWithUID returns the pod of this node with a UID, with its latest status. A static pod has another UID than its mirror pod. A pod that was removed
// from its source is returned until it has terminated.
func (k *Kubelet) PodWithUID(uid types.UID) (*corev1.Pod, bool) {
	k.mu.Lock()
	w := k.workers[uid]
	k.mu.Unlock()
	if w == nil {
		return k.sandboxCheck.podWithUID(uid)
	}
	return k.withStatus(w.current()), true
}

// Active returns the pods that are admitted and not terminated, with their allocated resources. Pods that their source has removed are not
// active even while they are terminating: after a force deletion the scheduler has already reassigned their resources.
func (k *Kubelet) Active() []*corev1.Pod {
	var pods []*corev1.Pod
	for _, w := range k.listWorkers() {
		if pod := w.active(); pod != nil && !w.isRemoved() {
			pods = append(pods, pod)
		}
	}
	slices.SortFunc(pods, func(a, b *corev1.Pod) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	return pods
}

// ActiveOrPending returns the pods that are neither terminated, rejected nor removed from their source, admitted or not, and whether all
// sources have been listed.
func (k *Kubelet) ActiveOrPending() (pods []*corev1.Pod, all bool) {
	k.mu.Lock()
	all = k.apiListed && k.staticListed
	workers := slices.Collect(maps.Values(k.workers))
	k.mu.Unlock()
	for _, w := range workers {
		w.mu.Lock()
		if w.stage != terminated && !w.rejected && !w.removed {
			pods = append(pods, w.pod)
		}
		w.mu.Unlock()
	}
	return pods, all
}

func (k *Kubelet) withStatus(pod *corev1.Pod) *corev1.Pod {
	latest, ok := k.writer.Get(pod.UID)
	if !ok {
		return pod
	}
	copied := *pod
	copied.Status = *latest
	return &copied
}

// Evict terminates a pod with a reason. grace, if set, overrides the pod's grace period. target, if set, is the condition DisruptionTarget.
func (k *Kubelet) Evict(uid types.UID, reason status.Reason, grace *int64, target *corev1.PodCondition) bool {
	k.mu.Lock()
	w := k.workers[uid]
	k.mu.Unlock()
	if w == nil {
		return false
	}
	w.evict(&eviction{Reason: reason, grace: grace, target: target})
	return true
}

// Released returns a channel that is closed when a pod has terminated and its containers, volumes and cgroup are released.
func (k *Kubelet) Released(uid types.UID) <-chan struct{} {
	k.mu.Lock()
	defer k.mu.Unlock()
	if w := k.workers[uid]; w != nil {
		return w.released
	}
	released := make(chan struct{})
	close(released)
	return released
}

// markKilling records that a container is being stopped, and reports whether that is new.
func (k *Kubelet) markKilling(id string) bool {
	_, recorded := k.killing.LoadOrStore(id, true)
	return !recorded
}

// exec runs a command in a container and returns its output.
func (k *Kubelet) exec(ctx context.Context, id string, command []string, timeout time.Duration) ([]byte, error) {
	stdout, stderr, err := k.Runtime.ExecSync(ctx, id, command, timeout)
	return append(stdout, stderr...), err
}

// update passes a new or changed pod to its worker, and starts the worker of a new pod.
func (k *Kubelet) update(pod *corev1.Pod) {
	k.mu.Lock()
	defer k.mu.Unlock()
	w := k.workers[pod.UID]
	if w == nil {
		w = newWorker(k, pod)
		k.startWorker(w)
	}
	w.update(pod)
}

// startWorker starts a worker. The caller holds mu.
func (k *Kubelet) startWorker(w *worker) {
	k.workers[w.uid] = w
	ctx := k.ctx
	k.running.Go(func() { w.run(ctx) })
}

// remove notifies a pod's worker that the pod's source has removed it.
func (k *Kubelet) remove(uid types.UID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if w := k.workers[uid]; w != nil {
		w.remove()
	}
}

// forget removes the worker of a pod that is terminated and removed from its source. If the source has the pod again, another worker starts.
func (k *Kubelet) forget(w *worker) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.workers, w.uid)
	k.writer.Forget(w.uid)
	w.mu.Lock()
	pod, successor := w.pod, w.successor
	w.mu.Unlock()
	// A changed static pod waits until its predecessor is removed.
	for _, other := range k.workers {
		if name(other.current()) == name(pod) {
			other.wakeUp()
		}
	}
	if successor == nil {
		return
	}
	next := newWorker(k, successor)
	if mirror := k.mirrors[name(pod)]; mirror != nil {
		next.oldMirror = mirror.UID
	}
	k.startWorker(next)
}

// predecessor reports whether an older pod with the same name is still on the node.
func (k *Kubelet) predecessor(pod *corev1.Pod) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	for uid, w := range k.workers {
		if uid != pod.UID && name(w.current()) == name(pod) && w.olderThan(k.workers[pod.UID]) {
			return true
		}
	}
	return false
}

func name(pod *corev1.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
}

// describe formats a pod for messages as upstream does.
func describe(pod *corev1.Pod) string {
	return fmt.Sprintf("%s_%s(%s)", pod.Name, pod.Namespace, pod.UID)
}
