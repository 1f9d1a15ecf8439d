package kubelet

import (
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
)

// Config is what a kubelet is made of.
type Config struct {
	NodeName string
	// Root is the directory of everything the kubelet keeps.
	Root    string
	Client  *client.Client
	Runtime *cri.Runtime
	Volumes Volumes
	Images  Images
	Cgroups Cgroups
	Objects Objects
	// Devices may be nil: then there are none.
	Devices Devices
	// Handlers may be nil: then there is but the runtime's own handler.
	Handlers Handlers
	// Services are those of a namespace, for the variables that name them.
	Services func(namespace string) ([]*corev1.Service, error)
	// Node is this node as the API has it; HostIPs are its addresses, the primary one first.
	Node    func() *corev1.Node
	HostIPs func() []string
	Events  client.EventRecorder
	Host    cri.Host
	DNS     environment.DNSSettings
	// LongestRestartDelay bounds the wait of a container that keeps ending; zero is upstream's five minutes.
	LongestRestartDelay time.Duration
	// StaticPods is the directory or file of static pods, StaticPodURL where others are read from; both may be empty.
	StaticPods, StaticPodURL string
	StaticPodHeader          map[string][]string
	// StaticPodPeriod and StaticPodURLPeriod are how often each is read; zero is upstream's 20 seconds.
	StaticPodPeriod, StaticPodURLPeriod time.Duration
	// LogMaxSize and LogMaxFiles bound the logs of a container.
	LogMaxSize  int64
	LogMaxFiles int
	// AllowedSysctls are those a pod may set besides the safe ones; a * at the end stands for any.
	AllowedSysctls []string
	// Refuse, if set, may refuse a pod before anything else is looked at: a node under pressure, or shutting down.
	Refuse func(pod *corev1.Pod) *status.Reason
	// RuntimeChanged, if set, is called when RuntimeError has begun or ceased to be nil.
	RuntimeChanged func()
	// RecursiveReadOnly says that the runtime can make mounts below a read-only mount read-only too.
	RecursiveReadOnly bool
	// Metrics counts what happens; nil does not.
	Metrics *metrics.Metrics
	Log     *slog.Logger
}

// Kubelet runs the pods of one node.
type Kubelet struct {
	Config
	runtimeName string
	writer      *status.Writer
	probes      *probe.Probes
	// users are the ids of pods that have users of their own.
	users *cri.UserNamespaces
	// killed has the containers of which an event said that they are being stopped.
	killed sync.Map

	// turns are those in which sandboxes are made.
	turns turns
	// admission lets pods be admitted one at a time, each seeing those before it.
	admission sync.Mutex

	mu      sync.Mutex
	workers map[types.UID]*worker
	// mirrors has the mirror pods the API has, by full name.
	mirrors map[types.NamespacedName]*corev1.Pod
	// complete says that all sources have told all their pods: only then can something be known to be left over.
	apiListed, staticListed bool
	running                 sync.WaitGroup
	ctx                     context.Context
	runtimeError            error
}

// New makes a kubelet. It starts nothing.
func New(c Config) *Kubelet {
	k := &Kubelet{
		Config: c, writer: status.NewWriter(c.Client, c.Log), workers: map[types.UID]*worker{}, mirrors: map[types.NamespacedName]*corev1.Pod{},
		turns: newTurns(), runtimeError: errors.New("container runtime status check may not have completed yet"),
	}
	k.users = cri.NewUserNamespaces(k.podsDir())
	k.probes = probe.New(probe.Options{
		Exec: k.exec, Changed: k.Changed, Answered: c.Metrics.Probed, Forgotten: c.Metrics.PodProbesRemoved, Log: c.Log,
		Event: func(pod *corev1.Pod, c *corev1.Container, reason, message string) {
			k.containerEvent(pod, c, corev1.EventTypeWarning, reason, message)
		},
	})
	return k
}

// Run runs the node's pods until ctx ends. The pods themselves go on: the next kubelet finds them again.
func (k *Kubelet) Run(ctx context.Context) error {
	for _, dir := range []string{k.Root, k.podsDir(), k.LogsDir()} {
		if err := os.MkdirAll(dir, 0o750); err != nil {
			return fmt.Errorf("make the kubelet's directories: %w", err)
		}
	}
	if err := k.waitForRuntime(ctx); err != nil {
		return nil // ctx has ended
	}
	group, ctx := errgroup.WithContext(ctx)
	k.mu.Lock()
	k.ctx = ctx
	k.mu.Unlock()
	watcher := &cri.Watcher{Runtime: k.Runtime, Changed: k.Changed, Healthy: k.runtimeHealth, Relisted: k.Metrics.Relisted, Log: k.Log}
	for _, run := range []func(context.Context) error{
		k.writer.Run, watcher.Run, k.watchPods, k.watchStatic, k.housekeep, k.rotateLogs,
	} {
		group.Go(func() error { return run(ctx) })
	}
	err := group.Wait()
	k.running.Wait()
	k.probes.Wait()
	return err
}

// waitForRuntime returns when the runtime answers.
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

// RuntimeError says why the runtime did not answer when it was last asked, or is nil.
func (k *Kubelet) RuntimeError() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.runtimeError
}

func (k *Kubelet) podsDir() string             { return filepath.Join(k.Root, "pods") }
func (k *Kubelet) podDir(uid types.UID) string { return filepath.Join(k.podsDir(), string(uid)) }

// LogsDirectory is where the logs of all pods are.
func (k *Kubelet) LogsDir() string { return filepath.Join(k.Root, "logs") }

// Changed wakes the worker of a pod: something about it has happened.
func (k *Kubelet) Changed(uid types.UID) {
	k.mu.Lock()
	w := k.workers[uid]
	k.mu.Unlock()
	if w != nil {
		w.poke()
	}
}

// Pods are all pods of this node that have not been removed yet, static ones included, with the status said last.
func (k *Kubelet) Pods() []*corev1.Pod {
	k.mu.Lock()
	workers := make([]*worker, 0, len(k.workers))
	for _, w := range k.workers {
		workers = append(workers, w)
	}
	k.mu.Unlock()
	pods := make([]*corev1.Pod, 0, len(workers))
	for _, w := range workers {
		pods = append(pods, k.withStatus(w.current()))
	}
	return pods
}

// Pod is one pod of this node by name.
func (k *Kubelet) Pod(namespace, name string) (*corev1.Pod, bool) {
	for _, pod := range k.Pods() {
		if pod.Namespace == namespace && pod.Name == name {
			return pod, true
		}
	}
	return nil, false
}

// Active are the pods that have been admitted and have not ended, with their resources as allocated. One whose source no longer has it does
// not count, though it may still be ending: whoever deleted it by force has its room given away already.
func (k *Kubelet) Active() []*corev1.Pod {
	k.mu.Lock()
	workers := make([]*worker, 0, len(k.workers))
	for _, w := range k.workers {
		workers = append(workers, w)
	}
	k.mu.Unlock()
	var pods []*corev1.Pod
	for _, w := range workers {
		if pod := w.active(); pod != nil && !w.forsaken() {
			pods = append(pods, pod)
		}
	}
	slices.SortFunc(pods, func(a, b *corev1.Pod) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	return pods
}

// Unfinished are the pods that their sources have, that have not ended and were not refused, admitted or not, and whether those are all.
func (k *Kubelet) Unfinished() (pods []*corev1.Pod, all bool) {
	k.mu.Lock()
	all = k.apiListed && k.staticListed
	workers := slices.Collect(maps.Values(k.workers))
	k.mu.Unlock()
	for _, w := range workers {
		w.mu.Lock()
		if w.stage != terminated && !w.rejected && !w.gone {
			pods = append(pods, w.pod)
		}
		w.mu.Unlock()
	}
	return pods, all
}

func (k *Kubelet) withStatus(pod *corev1.Pod) *corev1.Pod {
	said, ok := k.writer.Get(pod.UID)
	if !ok {
		return pod
	}
	shown := *pod
	shown.Status = *said
	return &shown
}

// Evict ends a pod with a reason. grace overrides the pod's own, if set. target, if set, is the condition that says who is to blame.
func (k *Kubelet) Evict(uid types.UID, why status.Reason, grace *int64, target *corev1.PodCondition) bool {
	k.mu.Lock()
	w := k.workers[uid]
	k.mu.Unlock()
	if w == nil {
		return false
	}
	w.evict(&eviction{Reason: why, grace: grace, target: target})
	return true
}

// Freed is closed when a pod has ended and holds nothing of the node any more: no container, no volume, no group.
func (k *Kubelet) Freed(uid types.UID) <-chan struct{} {
	k.mu.Lock()
	defer k.mu.Unlock()
	if w := k.workers[uid]; w != nil {
		return w.freed
	}
	gone := make(chan struct{})
	close(gone)
	return gone
}

// announce reports whether it has not been said yet that a container is being stopped.
func (k *Kubelet) announce(id string) bool {
	_, said := k.killed.LoadOrStore(id, true)
	return !said
}

// exec runs a command in a container and returns what it wrote.
func (k *Kubelet) exec(ctx context.Context, id string, command []string, timeout time.Duration) ([]byte, error) {
	stdout, stderr, err := k.Runtime.ExecSync(ctx, id, command, timeout)
	return append(stdout, stderr...), err
}

// update brings a pod of the API or of a file to its worker.
func (k *Kubelet) update(pod *corev1.Pod) {
	k.mu.Lock()
	w := k.workers[pod.UID]
	if w == nil {
		w = newWorker(k, pod)
		k.workers[pod.UID] = w
		ctx := k.ctx
		k.running.Go(func() { w.run(ctx) })
	}
	k.mu.Unlock()
	w.update(pod)
}

// remove tells a pod's worker that its source no longer has it.
func (k *Kubelet) remove(uid types.UID) {
	k.mu.Lock()
	w := k.workers[uid]
	k.mu.Unlock()
	if w != nil {
		w.remove()
	}
}

// forget drops a worker that has done its work.
func (k *Kubelet) forget(w *worker) {
	k.mu.Lock()
	delete(k.workers, w.uid)
	waiting := make([]*worker, 0)
	for _, other := range k.workers {
		waiting = append(waiting, other)
	}
	k.mu.Unlock()
	k.writer.Forget(w.uid)
	// A static pod that was changed waits for its predecessor to be gone.
	for _, other := range waiting {
		if name(other.current()) == name(w.current()) {
			other.poke()
		}
	}
}

// predecessor reports whether another pod of the same name is still on the node.
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

// describe is a pod in messages, as upstream writes it.
func describe(pod *corev1.Pod) string {
	return fmt.Sprintf("%s_%s(%s)", pod.Name, pod.Namespace, pod.UID)
}
