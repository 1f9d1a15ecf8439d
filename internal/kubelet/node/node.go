// Package node looks after the Node object: it registers the node, keeps its status true, and renews the lease that says it is alive.
//
// What the status is, is computed by a pure function, Status, from a View of the machine, the runtime and what the API has. It is compared
// every ten seconds, or when somebody calls Changed, and sent as a patch when it differs, and every five minutes anyway. Nothing
// here needs more than the rights of the node itself.
package node

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/watch"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"skiff/internal/client"
)

// attachAnnotation says that a controller attaches this node's volumes.
const attachAnnotation = "volumes.kubernetes.io/controller-managed-attach-detach"

// ownLabels are those the node sets anew whenever it registers, and no others: labels of a node that exists are its administrator's.
var ownLabels = []string{
	corev1.LabelHostname, corev1.LabelOSStable, corev1.LabelArchStable, "beta.kubernetes.io/os", "beta.kubernetes.io/arch",
	corev1.LabelTopologyZone, corev1.LabelTopologyRegion, corev1.LabelFailureDomainBetaZone, corev1.LabelFailureDomainBetaRegion,
	corev1.LabelInstanceTypeStable, corev1.LabelInstanceType,
}

// Settings are what an administrator says about the node.
type Settings struct {
	Name     string
	Hostname string // the name where it is empty
	Labels   map[string]string
	Taints   []corev1.Taint
	// IPs are the node's addresses, the primary one first; none lets the node find its own.
	IPs        []string
	ProviderID string
	// Port is where the kubelet serves.
	Port                 int32
	MaxPods, PodsPerCore int64
	// MaxImages bounds the images told, 50 where it is zero, all where it is negative.
	MaxImages int
	// SystemReserved and KubeReserved are kept from pods; EvictionReserved is what hard eviction keeps free.
	SystemReserved, KubeReserved, EvictionReserved corev1.ResourceList
	DeclaredFeatures                               []string
	// Root is the directory whose disk the pods' data is on.
	Root string
	// NoRegister leaves it to others to make the Node object.
	NoRegister bool
	// CheckEvery, ReportEvery and LeaseSeconds are 10 s, 5 min and 40 where they are zero.
	CheckEvery, ReportEvery time.Duration
	LeaseSeconds            int32
}

func (s Settings) withDefaults() Settings {
	s.Hostname = cmp.Or(s.Hostname, s.Name)
	s.Port = cmp.Or(s.Port, 10250)
	s.MaxPods = cmp.Or(s.MaxPods, 110)
	s.MaxImages = cmp.Or(s.MaxImages, 50)
	s.Root = cmp.Or(s.Root, "/")
	s.CheckEvery = cmp.Or(s.CheckEvery, 10*time.Second)
	s.ReportEvery = cmp.Or(s.ReportEvery, 5*time.Minute)
	s.LeaseSeconds = cmp.Or(s.LeaseSeconds, 40)
	s.DeclaredFeatures = slices.Sorted(slices.Values(s.DeclaredFeatures))
	return s
}

// Runtime is what the node asks of the container runtime.
type Runtime interface {
	Version(ctx context.Context, apiVersion string) (*runtimeapi.VersionResponse, error)
	Status(ctx context.Context, verbose bool) (*runtimeapi.StatusResponse, error)
	ListImages(ctx context.Context, filter *runtimeapi.ImageFilter) ([]*runtimeapi.Image, error)
}

// Parts are what a node is made of. Functions may be nil where there is nothing to say.
type Parts struct {
	Client  *client.Client
	Runtime Runtime
	Events  client.Recorder
	// Pressure is what the node runs short of, Problems what else keeps it from being ready.
	Pressure func() Pressure
	Problems func() []error
	Devices  func() Devices
	// VolumesInUse are attached volumes in use, and whether they are known yet.
	VolumesInUse func() ([]corev1.UniqueVolumeName, bool)
	// PodCIDRs is called when the node's ranges of pod addresses are known, and when they change. It must not block for long.
	PodCIDRs func(ranges []string)
	// Machine replaces ReadMachine, for tests.
	Machine func() (Machine, error)
	Log     *slog.Logger
}

// Node is this node.
type Node struct {
	Parts
	settings Settings
	changed  chan struct{}

	mu        sync.Mutex
	seen      *corev1.Node // as the API has it, nil before that is known
	runtime   RuntimeView
	ranges    []string
	lastSent  time.Time
	nextDelay time.Duration
	rebooted  bool // told already
	cordoned  bool
	// problems is how many the runtime had when it was last asked, images those it last told.
	problems int
	images   []*runtimeapi.Image
}

// New makes a node. It starts nothing.
func New(s Settings, p Parts) *Node {
	if p.Log == nil {
		p.Log = slog.Default()
	}
	return &Node{Parts: p, settings: s.withDefaults(), changed: make(chan struct{}, 1)}
}

// Changed makes the node look at its status now: something that it tells may have changed.
func (n *Node) Changed() {
	select {
	case n.changed <- struct{}{}:
	default:
	}
}

// Node is the node as the API has it, or as it will be registered.
func (n *Node) Node() *corev1.Node {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.seen != nil {
		return n.seen
	}
	return n.object()
}

// Event tells of the node.
func (n *Node) Event(eventType, reason, message string) {
	about := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.settings.Name}}
	n.mu.Lock()
	if n.seen != nil {
		about.UID = n.seen.UID
	}
	n.mu.Unlock()
	n.Events.Event(about, eventType, reason, message)
}

// Run keeps the node registered and reported until ctx ends.
func (n *Node) Run(ctx context.Context) error {
	n.Event(corev1.EventTypeNormal, "Starting", "Starting kubelet.")
	var running sync.WaitGroup
	defer running.Wait()
	n.askRuntime(ctx)
	if err := n.register(ctx); err != nil {
		return nil // ctx has ended
	}
	running.Go(func() { n.watch(ctx) })
	running.Go(func() { n.renewLease(ctx) })
	running.Go(func() { n.watchRuntime(ctx) })
	ticker := time.NewTicker(n.settings.CheckEvery)
	defer ticker.Stop()
	for {
		if err := n.report(ctx); err != nil && ctx.Err() == nil {
			n.Log.Warn("node status is not reported", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		case <-n.changed:
		}
	}
}

// Periods of asking the runtime how it is: often until it is ready, so that the node is soon, too.
const (
	askEagerly = 200 * time.Millisecond
	askEvery   = 5 * time.Second
)

func (n *Node) watchRuntime(ctx context.Context) {
	for {
		wait := askEvery
		if ready := n.askRuntime(ctx); !ready {
			wait = askEagerly
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// askRuntime takes in how the runtime is. It reports whether all is well.
func (n *Node) askRuntime(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, runtimeSilence)
	defer cancel()
	answer, err := n.Runtime.Status(ctx, false)
	if err != nil {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.compareProblems() // it may be down for long enough by now
		return false
	}
	var named *runtimeapi.VersionResponse
	n.mu.Lock()
	known := n.runtime.Name != ""
	n.mu.Unlock()
	if !known {
		if named, err = n.Runtime.Version(ctx, "0.1.0"); err != nil {
			named = nil
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.runtime.Last = answer.GetStatus()
	if named != nil {
		n.runtime.Name, n.runtime.Version = named.RuntimeName, named.RuntimeVersion
	}
	_, up := n.runtime.condition(runtimeapi.RuntimeReady)
	_, network := n.runtime.condition(runtimeapi.NetworkReady)
	if up {
		n.runtime.Answered, n.runtime.Handlers, n.runtime.Features = time.Now(), answer.GetRuntimeHandlers(), answer.GetFeatures()
	}
	n.compareProblems()
	return up && network
}

// compareProblems has the status looked at when the runtime is better or worse than before. The caller holds the lock.
func (n *Node) compareProblems() {
	if now := len(n.runtime.problems(time.Now())); now != n.problems {
		n.problems = now
		n.Changed()
	}
}

// object is the node as it is registered.
func (n *Node) object() *corev1.Node {
	s := n.settings
	labels := map[string]string{
		corev1.LabelHostname: s.Hostname, corev1.LabelOSStable: runtime.GOOS, corev1.LabelArchStable: runtime.GOARCH,
		"beta.kubernetes.io/os": runtime.GOOS, "beta.kubernetes.io/arch": runtime.GOARCH,
	}
	maps.Copy(labels, s.Labels)
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: s.Name, Labels: labels, Annotations: map[string]string{attachAnnotation: "true"}},
		Spec:       corev1.NodeSpec{ProviderID: s.ProviderID, Taints: slices.Clone(s.Taints)},
	}
}

// register makes the Node object, or takes over the one there is, trying until it succeeds or ctx ends.
func (n *Node) register(ctx context.Context) error {
	wait := 100 * time.Millisecond
	for {
		err := n.tryRegister(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil {
			n.Log.Warn("node is not registered", "error", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
		wait = min(2*wait, 7*time.Second)
	}
}

func (n *Node) tryRegister(ctx context.Context) error {
	nodes := client.For[*corev1.Node](n.Client)
	if n.settings.NoRegister {
		existing, err := nodes.Get(ctx, "", n.settings.Name)
		if err != nil {
			return fmt.Errorf("read node %s: %w", n.settings.Name, err)
		}
		n.take(existing)
		return nil
	}
	wanted := n.object()
	status, events := Status(n.view(ctx, corev1.NodeStatus{}))
	wanted.Status = status
	made, err := nodes.Create(ctx, wanted, client.WriteOptions{})
	if err == nil {
		n.Log.Info("node is registered", "node", made.Name)
		n.take(made)
		n.tell(events)
		return nil
	}
	if !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("register node %s: %w", wanted.Name, err)
	}
	existing, err := nodes.Get(ctx, "", wanted.Name)
	if err != nil {
		return fmt.Errorf("read node %s: %w", wanted.Name, err)
	}
	if patch := reconcilePatch(existing, wanted); patch != nil {
		if existing, err = nodes.Patch(ctx, "", wanted.Name, client.StrategicPatch, patch, client.WriteOptions{}); err != nil {
			return fmt.Errorf("take over node %s: %w", wanted.Name, err)
		}
	}
	n.Log.Info("node was registered before", "node", existing.Name)
	n.take(existing)
	return nil
}

// reconcilePatch changes the labels and annotations of a node that exists, where they are this node's own. It is nil when all is right.
func reconcilePatch(existing, wanted *corev1.Node) []byte {
	labels := map[string]string{}
	for _, key := range ownLabels {
		if value, ok := wanted.Labels[key]; ok && existing.Labels[key] != value {
			labels[key] = value
		}
	}
	metadata := map[string]any{}
	if len(labels) > 0 {
		metadata["labels"] = labels
	}
	if want := wanted.Annotations[attachAnnotation]; existing.Annotations[attachAnnotation] != want {
		metadata["annotations"] = map[string]string{attachAnnotation: want}
	}
	if len(metadata) == 0 {
		return nil
	}
	// Strings always encode.
	patch, _ := json.Marshal(map[string]any{"metadata": metadata})
	return patch
}

// take remembers what the API has, and tells who waits for its parts.
func (n *Node) take(node *corev1.Node) {
	n.mu.Lock()
	// The answer to a write can come after the watch has shown what others wrote since.
	if old := n.seen; old != nil && old.UID == node.UID {
		if order, err := resourceversion.CompareResourceVersion(node.ResourceVersion, old.ResourceVersion); err == nil && order < 0 {
			n.mu.Unlock()
			return
		}
	}
	n.seen = node
	newRanges := len(node.Spec.PodCIDRs) > 0 && !slices.Equal(n.ranges, node.Spec.PodCIDRs)
	if newRanges {
		n.ranges = node.Spec.PodCIDRs
	}
	toldCordoned := n.cordoned
	n.cordoned = node.Spec.Unschedulable
	n.mu.Unlock()
	if newRanges && n.PodCIDRs != nil {
		n.PodCIDRs(slices.Clone(node.Spec.PodCIDRs))
	}
	if toldCordoned != node.Spec.Unschedulable {
		reason := "NodeSchedulable"
		if node.Spec.Unschedulable {
			reason = "NodeNotSchedulable"
		}
		n.tell([]Event{statusEvent(View{Settings: n.settings}, reason)})
	}
}

func (n *Node) tell(events []Event) {
	for _, e := range events {
		n.Event(e.Type, e.Reason, e.Message)
	}
}

// watch follows the Node object.
func (n *Node) watch(ctx context.Context) {
	for ctx.Err() == nil {
		if err := n.watchOnce(ctx); err != nil && ctx.Err() == nil {
			n.Log.Warn("node is not watched", "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

func (n *Node) watchOnce(ctx context.Context) error {
	nodes := client.For[*corev1.Node](n.Client)
	match := client.Match{Fields: fields.OneTermEqualSelector("metadata.name", n.settings.Name)}
	list, revision, err := nodes.List(ctx, "", match)
	if err != nil {
		return fmt.Errorf("list: %w", err)
	}
	if len(list) == 0 {
		// Somebody has deleted the node while it runs: it comes back.
		return n.tryRegister(ctx)
	}
	n.take(list[0])
	events, err := nodes.Watch(ctx, "", match, revision)
	if err != nil {
		return fmt.Errorf("watch: %w", err)
	}
	defer events.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case event, open := <-events.ResultChan():
			node, ok := event.Object.(*corev1.Node)
			switch {
			case !open || event.Type == watch.Error || event.Type == watch.Deleted:
				return nil
			case ok && event.Type != watch.Bookmark:
				n.take(node)
			}
		}
	}
}

// view gathers what the status is made of.
func (n *Node) view(ctx context.Context, old corev1.NodeStatus) View {
	v := View{Now: time.Now(), Settings: n.settings, Old: old}
	read := n.Machine
	if read == nil {
		read = func() (Machine, error) { return ReadMachine(n.settings.Root) }
	}
	if v.Machine, v.MachineError = read(); v.MachineError != nil {
		n.Log.Warn("machine is not known", "error", v.MachineError)
	}
	var err error
	if v.Addresses, err = Addresses(n.settings.IPs); err != nil {
		n.Log.Warn("addresses of the node are not known", "error", err)
	}
	n.mu.Lock()
	v.Runtime = n.runtime
	n.mu.Unlock()
	if !v.Runtime.Answered.IsZero() && v.Now.Sub(v.Runtime.Answered) < runtimeSilence {
		if list, err := n.Runtime.ListImages(ctx, nil); err != nil {
			n.Log.Warn("images of the node are not known", "error", err)
		} else {
			n.mu.Lock()
			n.images = list
			n.mu.Unlock()
		}
	}
	n.mu.Lock()
	v.Images = n.images
	n.mu.Unlock()
	if n.Pressure != nil {
		v.Pressure = n.Pressure()
	}
	if n.Problems != nil {
		v.Problems = n.Problems()
	}
	if n.Devices != nil {
		v.Devices = n.Devices()
	}
	if n.VolumesInUse != nil {
		v.VolumesInUse, v.VolumesKnown = n.VolumesInUse()
	}
	return v
}

// report sends the status if it has changed, or if it is time to. A second attempt reads the node from the server: the first may have
// started from an old one.
func (n *Node) report(ctx context.Context) error {
	nodes := client.For[*corev1.Node](n.Client)
	old := n.Node()
	for attempt := range 3 {
		err := n.reportFrom(ctx, nodes, old)
		if err == nil || ctx.Err() != nil || attempt == 2 {
			return err
		}
		if apierrors.IsNotFound(err) {
			return n.tryRegister(ctx)
		}
		if old, err = nodes.Get(ctx, "", n.settings.Name); err != nil {
			return fmt.Errorf("read node %s: %w", n.settings.Name, err)
		}
	}
	return nil
}

func (n *Node) reportFrom(ctx context.Context, nodes client.Resource[*corev1.Node], old *corev1.Node) error {
	view := n.view(ctx, old.Status)
	status, events := Status(view)
	differs := changedStatus(&old.Status, &status)
	n.mu.Lock()
	due := view.Now.Sub(n.lastSent) >= n.settings.ReportEvery+n.nextDelay
	if n.rebooted {
		events = slices.DeleteFunc(events, func(e Event) bool { return e.Reason == "Rebooted" })
	}
	n.mu.Unlock()
	if !differs && !due {
		return nil
	}
	patch, err := statusPatch(&old.Status, &status)
	if err != nil {
		return err
	}
	updated, err := nodes.Patch(ctx, "", n.settings.Name, client.StrategicPatch, patch, client.WriteOptions{Subresource: "status"})
	if err != nil {
		return fmt.Errorf("report status of node %s: %w", n.settings.Name, err)
	}
	n.mu.Lock()
	// Nodes that started at once must not report at once for ever.
	n.nextDelay = 0
	if differs || n.lastSent.IsZero() {
		n.nextDelay = time.Duration(float64(n.settings.ReportEvery) * (rand.Float64() - 0.5))
	}
	n.lastSent = view.Now
	n.rebooted = n.rebooted || slices.ContainsFunc(events, func(e Event) bool { return e.Reason == "Rebooted" })
	n.mu.Unlock()
	n.take(updated)
	n.tell(events)
	return nil
}

// changedStatus compares two statuses but for their heartbeats.
func changedStatus(old, status *corev1.NodeStatus) bool {
	plain := func(s *corev1.NodeStatus) *corev1.NodeStatus {
		c := *s
		c.Conditions = slices.Clone(s.Conditions)
		for i := range c.Conditions {
			c.Conditions[i].LastHeartbeatTime = metav1.Time{}
		}
		slices.SortStableFunc(c.Conditions, func(a, b corev1.NodeCondition) int { return cmp.Compare(a.Type, b.Type) })
		return &c
	}
	return !equality.Semantic.DeepEqual(plain(old), plain(status))
}

// statusPatch leads from one status to another, and says nothing of what others report in it.
func statusPatch(old, status *corev1.NodeStatus) ([]byte, error) {
	before, err := json.Marshal(corev1.Node{Status: *old})
	if err != nil {
		return nil, fmt.Errorf("encode node status: %w", err)
	}
	after, err := json.Marshal(corev1.Node{Status: *status})
	if err != nil {
		return nil, fmt.Errorf("encode node status: %w", err)
	}
	patch, err := strategicpatch.CreateTwoWayMergePatch(before, after, corev1.Node{})
	if err != nil {
		return nil, fmt.Errorf("compare node status: %w", err)
	}
	if equality.Semantic.DeepEqual(old.Addresses, status.Addresses) {
		return patch, nil
	}
	// Addresses are merged by their type, of which there can be several: they are replaced as a whole.
	var whole map[string]any
	if err := json.Unmarshal(patch, &whole); err != nil {
		return nil, fmt.Errorf("read patch of node status: %w", err)
	}
	list := []any{map[string]string{"$patch": "replace"}}
	for _, a := range status.Addresses {
		list = append(list, a)
	}
	part, _ := whole["status"].(map[string]any)
	if part == nil {
		part = map[string]any{}
		whole["status"] = part
	}
	part["addresses"] = list
	delete(part, "$setElementOrder/addresses")
	return json.Marshal(whole)
}
