package scheduler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"skiff/internal/scheduler/plugins"
	"skiff/internal/scheduler/schedulertest"
	"skiff/internal/scheduler/snapshot"
)

// fakeServer is the API server as the scheduler sees it: it takes writes and, a moment later, tells what has changed.
type fakeServer struct {
	t         testing.TB
	scheduler *Scheduler
	delay     time.Duration

	delivering sync.Mutex // held while a change is delivered: no change overtakes another

	mu      sync.Mutex
	pods    map[string]*corev1.Pod
	seen    map[string]*corev1.Pod // as delivered last
	patches map[string][]string
	deleted []string
	// refuse makes bindings fail while it returns an error; fail does so with other writes, by verb.
	refuse func(pod *corev1.Pod, node string) error
	fail   func(verb string, pod *corev1.Pod) error
	bound  map[string]int
	// grace is how long a deleted pod stays.
	grace   time.Duration
	events  []string
	budgets []*policyv1.PodDisruptionBudget
}

func newFakeServer(t testing.TB, configuration *configv1.KubeSchedulerConfiguration) *fakeServer {
	t.Helper()
	s, err := newScheduler(configuration, slog.New(slog.NewTextHandler(io.Discard, nil)))
	if err != nil {
		t.Fatal(err)
	}
	f := &fakeServer{t: t, scheduler: s, delay: 5 * time.Millisecond, grace: 3 * time.Second, pods: map[string]*corev1.Pod{}, seen: map[string]*corev1.Pod{}, patches: map[string][]string{}, bound: map[string]int{}}
	s.binder.Writer = f
	s.record = func(component string, pod *corev1.Pod, eventType, reason, message string) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.events = append(f.events, fmt.Sprintf("%s %s %s %s: %s", component, pod.Name, eventType, reason, message))
	}
	s.lists.pods = func(_, name string) (*corev1.Pod, bool) {
		f.mu.Lock()
		defer f.mu.Unlock()
		p, ok := f.seen[name]
		return p, ok
	}
	s.lists.budgets = func(pod *corev1.Pod) []*policyv1.PodDisruptionBudget { return schedulertest.BudgetsOf(f.budgets)(pod) }
	return f
}

// notify applies a change as an informer does.
func (f *fakeServer) notify(change func()) {
	f.scheduler.mu.Lock()
	change()
	f.scheduler.mu.Unlock()
	f.scheduler.wakeUp()
}

func (f *fakeServer) addNode(n *corev1.Node) { f.notify(func() { f.scheduler.nodeAdded(n) }) }

func (f *fakeServer) addPod(p *corev1.Pod) {
	f.mu.Lock()
	f.pods[p.Name] = p
	f.mu.Unlock()
	f.deliver(p.Name)
}

func (f *fakeServer) removePod(name string) {
	f.mu.Lock()
	delete(f.pods, name)
	f.mu.Unlock()
	f.deliver(name)
}

// deliver brings the scheduler from the state of a pod that it has seen last to the server's current one, as an informer does: in order,
// and several changes at once if they came before it.
func (f *fakeServer) deliver(name string) {
	f.delivering.Lock()
	defer f.delivering.Unlock()
	f.mu.Lock()
	old, now := f.seen[name], f.pods[name]
	if now == nil {
		delete(f.seen, name)
	} else {
		f.seen[name] = now
	}
	f.mu.Unlock()
	switch {
	case old == now:
	case old == nil:
		f.notify(func() { f.scheduler.podAdded(now) })
	case now == nil:
		f.notify(func() { f.scheduler.podDeleted(old) })
	default:
		f.notify(func() { f.scheduler.podChanged(old, now) })
	}
}

func (f *fakeServer) nodeOf(name string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if p := f.pods[name]; p != nil {
		return p.Spec.NodeName
	}
	return ""
}

func (f *fakeServer) change(name string, change func(*corev1.Pod)) {
	f.mu.Lock()
	f.store(name, change)
	f.mu.Unlock()
	f.deliver(name)
}

// store changes a pod on the server. The scheduler sees it when it is delivered. The caller holds f.mu.
func (f *fakeServer) store(name string, change func(*corev1.Pod)) {
	if old := f.pods[name]; old != nil {
		now := old.DeepCopy()
		change(now)
		f.pods[name] = now
	}
}

func (f *fakeServer) Bind(_ context.Context, pod *corev1.Pod, node string) error {
	time.Sleep(f.delay)
	f.mu.Lock()
	current := f.pods[pod.Name]
	switch {
	case current == nil:
		f.mu.Unlock()
		return apierrors.NewNotFound(corev1.Resource("pods"), pod.Name)
	case current.Spec.NodeName != "" || current.DeletionTimestamp != nil || current.UID != pod.UID:
		f.mu.Unlock()
		return apierrors.NewConflict(corev1.Resource("pods"), pod.Name, errors.New("already assigned"))
	}
	if f.refuse != nil {
		if err := f.refuse(pod, node); err != nil {
			f.mu.Unlock()
			return err
		}
	}
	f.bound[pod.Name]++
	f.store(pod.Name, func(p *corev1.Pod) { p.Spec.NodeName = node })
	f.mu.Unlock()
	// The watch is slower than the response.
	go func() {
		time.Sleep(f.delay)
		f.deliver(pod.Name)
	}()
	return nil
}

func (f *fakeServer) PatchStatus(_ context.Context, pod *corev1.Pod, patch []byte) error {
	var read struct{ Status corev1.PodStatus }
	if err := json.Unmarshal(patch, &read); err != nil {
		return err
	}
	if err := f.failing("patch", pod); err != nil {
		return err
	}
	f.mu.Lock()
	f.patches[pod.Name] = append(f.patches[pod.Name], string(patch))
	f.mu.Unlock()
	f.change(pod.Name, func(p *corev1.Pod) {
		for _, c := range read.Status.Conditions {
			p.Status.Conditions = append(slices.DeleteFunc(p.Status.Conditions, func(old corev1.PodCondition) bool { return old.Type == c.Type }), c)
		}
		if strings.Contains(string(patch), "nominatedNodeName") {
			p.Status.NominatedNodeName = read.Status.NominatedNodeName
		}
	})
	return nil
}

// failing is what keeps a write from being done, if anything does.
func (f *fakeServer) failing(verb string, pod *corev1.Pod) error {
	time.Sleep(time.Millisecond)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail != nil {
		if err := f.fail(verb, pod); err != nil {
			return err
		}
	}
	if current := f.pods[pod.Name]; current == nil || current.UID != pod.UID {
		return apierrors.NewNotFound(corev1.Resource("pods"), pod.Name)
	}
	return nil
}

func (f *fakeServer) DeletePod(_ context.Context, pod *corev1.Pod) error {
	if err := f.failing("delete", pod); err != nil {
		return err
	}
	f.mu.Lock()
	f.deleted = append(f.deleted, pod.Name)
	f.mu.Unlock()
	f.change(pod.Name, func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Now()} })
	go func() {
		time.Sleep(f.grace)
		f.removePod(pod.Name)
	}()
	return nil
}

func (f *fakeServer) UpdatePersistentVolume(_ context.Context, pv *corev1.PersistentVolume) (*corev1.PersistentVolume, error) {
	return pv, nil
}

func (f *fakeServer) UpdatePersistentVolumeClaim(_ context.Context, claim *corev1.PersistentVolumeClaim) (*corev1.PersistentVolumeClaim, error) {
	return claim, nil
}

// podCount counts the pods the scheduler takes to be on nodes.
func (f *fakeServer) podCount() int {
	f.scheduler.mu.Lock()
	defer f.scheduler.mu.Unlock()
	return f.scheduler.snapshot.NumPods()
}

// patchesOf are the patches written about a pod.
func (f *fakeServer) patchesOf(pod string) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.patches[pod])
}

// victims are the pods that were deleted.
func (f *fakeServer) victims() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.deleted)
}

// boundTimes counts the bindings of a pod.
func (f *fakeServer) boundTimes(pod string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.bound[pod]
}

func (f *fakeServer) GetResourceClaim(_ context.Context, claim *resourcev1.ResourceClaim) (found *resourcev1.ResourceClaim, err error) {
	f.notify(func() { found = f.scheduler.snapshot.Devices.Claims[snapshot.ObjectKey(claim)] })
	if found == nil {
		return nil, apierrors.NewNotFound(resourcev1.Resource("resourceclaims"), claim.Name)
	}
	return found, nil
}

func (f *fakeServer) CreateResourceClaim(_ context.Context, claim *resourcev1.ResourceClaim) (*resourcev1.ResourceClaim, error) {
	claim = claim.DeepCopy()
	claim.Name = claim.GenerateName + "x"
	claim.UID = types.UID(claim.Name)
	return f.storeClaim(claim), nil
}

func (f *fakeServer) DeleteResourceClaim(_ context.Context, claim *resourcev1.ResourceClaim) error {
	f.notify(func() {
		old := f.scheduler.snapshot.Devices.Claims[snapshot.ObjectKey(claim)]
		f.scheduler.snapshot.DeleteObject(claim)
		f.scheduler.moveQueuedPods(plugins.Event{Resource: plugins.ResourceClaimResource, Action: plugins.Delete, Old: old})
	})
	return nil
}

func (f *fakeServer) UpdateResourceClaim(_ context.Context, claim *resourcev1.ResourceClaim) (*resourcev1.ResourceClaim, error) {
	return f.storeClaim(claim), nil
}

func (f *fakeServer) UpdateResourceClaimStatus(_ context.Context, claim *resourcev1.ResourceClaim) (*resourcev1.ResourceClaim, error) {
	return f.storeClaim(claim), nil
}

func (f *fakeServer) storeClaim(claim *resourcev1.ResourceClaim) *resourcev1.ResourceClaim {
	claim = claim.DeepCopy()
	version, _ := strconv.Atoi(claim.ResourceVersion)
	claim.ResourceVersion = strconv.Itoa(version + 1)
	f.notify(func() {
		old := f.scheduler.snapshot.Devices.Claims[snapshot.ObjectKey(claim)]
		f.scheduler.snapshot.SetObject(claim)
		f.scheduler.moveQueuedPods(plugins.Event{Resource: plugins.ResourceClaimResource, Action: plugins.UpdateOther, Old: old, New: claim})
	})
	return claim
}

// pass lets time go by, until nothing happens any more at its end.
func (f *fakeServer) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// withFakeServer runs a scheduler over a fake server, in a bubble of its own time.
func withFakeServer(t *testing.T, configuration *configv1.KubeSchedulerConfiguration, run func(*fakeServer)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer(t, configuration)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- f.scheduler.Run(ctx) }()
		run(f)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		// Wait for what the server still has to send.
		time.Sleep(10*time.Second + f.grace)
	})
}

// eventsOf are the events about a pod, in order.
func (f *fakeServer) eventsOf(pod string) (all []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range f.events {
		if component, rest, _ := strings.Cut(e, " "+pod+" "); rest != "" && !strings.Contains(component, " ") {
			all = append(all, rest)
		}
	}
	return all
}

func (f *fakeServer) expectEvents(pod string, want ...string) {
	f.t.Helper()
	if got := f.eventsOf(pod); !slices.Equal(got, want) {
		f.t.Errorf("events of %s:\n%s\nwant\n%s", pod, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// conditionOf is a condition of a pod as the server has it: status, reason and message.
func (f *fakeServer) conditionOf(pod string, kind corev1.PodConditionType) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if p := f.pods[pod]; p != nil {
		for _, c := range p.Status.Conditions {
			if c.Type == kind {
				return fmt.Sprintf("%s %s %s", c.Status, c.Reason, c.Message)
			}
		}
	}
	return ""
}

// nominationOf is the node a pod waits for as the server knows it, and as the scheduler does.
func (f *fakeServer) nominationOf(pod string) (written, known string) {
	f.mu.Lock()
	if p := f.pods[pod]; p != nil {
		written = p.Status.NominatedNodeName
	}
	f.mu.Unlock()
	f.scheduler.mu.Lock()
	defer f.scheduler.mu.Unlock()
	if p := f.scheduler.snapshot.Nominations[types.UID(pod)]; p != nil {
		known = f.scheduler.snapshot.NodeInfos[p.Node].Name
	}
	return written, known
}

func (f *fakeServer) expectNominated(pod, want string) {
	f.t.Helper()
	if written, known := f.nominationOf(pod); written != want || known != want {
		f.t.Errorf("%s is nominated to %q, and known to be to %q; want %q", pod, written, known, want)
	}
}

func (f *fakeServer) expectNominatedOnServer(pod, want string) {
	f.t.Helper()
	if written, _ := f.nominationOf(pod); written != want {
		f.t.Errorf("%s is nominated to %q, want %q", pod, written, want)
	}
}

func (f *fakeServer) expectVictims(want ...string) {
	f.t.Helper()
	got := f.victims()
	slices.Sort(got)
	if !slices.Equal(got, want) {
		f.t.Errorf("deleted: %v, want %v", got, want)
	}
}

// expectOn compares where pods are; "" is nowhere.
func (f *fakeServer) expectOn(node string, pods ...string) {
	f.t.Helper()
	for _, p := range pods {
		if got := f.nodeOf(p); got != node {
			f.t.Errorf("%s is on %q, want %q", p, got, node)
		}
	}
}

func (f *fakeServer) assumed(pod string) (string, bool) {
	f.scheduler.mu.Lock()
	defer f.scheduler.mu.Unlock()
	return f.scheduler.snapshot.Assumed(types.UID(pod))
}

// onlyClaim is the one claim there is; nil when there is none.
func (f *fakeServer) onlyClaim() (found *resourcev1.ResourceClaim) {
	f.notify(func() {
		if n := len(f.scheduler.snapshot.Devices.Claims); n > 1 {
			f.t.Errorf("there are %d claims", n)
		}
		for _, claim := range f.scheduler.snapshot.Devices.Claims {
			found = claim.DeepCopy()
		}
	})
	return found
}

func (f *fakeServer) addObjects(objects ...metav1.Object) {
	f.notify(func() {
		for _, o := range objects {
			f.scheduler.snapshot.SetObject(o)
		}
	})
}
