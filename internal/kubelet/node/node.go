// Package node maintains the Node object: it registers the node, keeps its status current and renews its lease.
//
// The status is computed by a pure function, Status, from the state of the host, the container runtime and the API
// object. It is compared every ten seconds and whenever Changed is called. It is patched when it differs, and every five
// minutes otherwise. The node's own credentials are sufficient.
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

	"skiff/internal/client"
	"skiff/internal/kubelet/cri"
)

// attachAnnotation says that the attach-detach controller attaches this node's volumes.
const attachAnnotation = "volumes.kubernetes.io/controller-managed-attach-detach"

// kubeletLabels are the labels that registration updates on an existing node. All other labels belong to the
// administrator.
var kubeletLabels = []string{
	corev1.LabelHostname, corev1.LabelOSStable, corev1.LabelArchStable, "beta.kubernetes.io/os", "beta.kubernetes.io/arch",
	corev1.LabelTopologyZone, corev1.LabelTopologyRegion, corev1.LabelFailureDomainBetaZone, corev1.LabelFailureDomainBetaRegion,
	corev1.LabelInstanceTypeStable, corev1.LabelInstanceType,
}

// Settings configure the node.
type Settings struct {
	Name     string
	Hostname string // Name if empty
	Labels   map[string]string
	Taints   []corev1.Taint
	// IPs are the node's addresses, the primary one first.
	IPs        []string
	ProviderID string
	// Port is the kubelet's port.
	Port                 int32
	MaxPods, PodsPerCore int64
	// MaxImages bounds the images in the status: 50 if nil, unbounded if negative.
	MaxImages *int32
	// SystemReserved, KubeReserved and EvictionReserved (the hard eviction thresholds) are subtracted from allocatable
	// resources.
	SystemReserved, KubeReserved, EvictionReserved corev1.ResourceList
	DeclaredFeatures                               []string
	// Root is the kubelet's directory.
	Root string
	// Annotations are set on the Node object, existing or new.
	Annotations map[string]string
	// SkipRegistration expects the Node object to be created by someone else.
	SkipRegistration bool
	// StatusUpdateFrequency, StatusReportFrequency and LeaseDurationSeconds default to 10 s, 5 min and 40.
	StatusUpdateFrequency, StatusReportFrequency time.Duration
	LeaseDurationSeconds                         int32
}

func (s Settings) withDefaults() Settings {
	s.Hostname = cmp.Or(s.Hostname, s.Name)
	s.Port = cmp.Or(s.Port, 10250)
	s.MaxPods = cmp.Or(s.MaxPods, 110)
	s.Root = cmp.Or(s.Root, "/")
	s.StatusUpdateFrequency = cmp.Or(s.StatusUpdateFrequency, 10*time.Second)
	s.StatusReportFrequency = cmp.Or(s.StatusReportFrequency, 5*time.Minute)
	s.LeaseDurationSeconds = cmp.Or(s.LeaseDurationSeconds, 40)
	s.DeclaredFeatures = slices.Sorted(slices.Values(s.DeclaredFeatures))
	return s
}

// Runtime is the part of the CRI that the node's status needs.
type Runtime interface {
	Version(ctx context.Context) (cri.Version, error)
	Status(ctx context.Context) (cri.Status, error)
	ListImages(ctx context.Context) ([]*cri.Image, error)
}

// Dependencies are what a Node needs. Functions may be nil.
type Dependencies struct {
	Client  *client.Client
	Runtime Runtime
	Events  client.EventRecorder
	// Pressure returns the pressure conditions, Problems whatever else makes the node not ready.
	Pressure func() Pressure
	Problems func() []error
	// Network returns the state of the pod network, if the node is to report it.
	Network func() Network
	// NetworkReady is called when the container runtime's network becomes ready.
	NetworkReady func()
	Devices      func() Devices
	// VolumesInUse returns the attached volumes in use, and false while they are not known yet.
	VolumesInUse func() ([]corev1.UniqueVolumeName, bool)
	// VolumesReported is called with the result of VolumesInUse when the API object has it, before VolumesInUse is called again.
	VolumesReported func([]corev1.UniqueVolumeName)
	// Observed is called when the API object was read. It must not block.
	Observed func()
	// PodCIDRs is called when the node's pod CIDRs are assigned or change. It must not block for long.
	PodCIDRs func(podCIDRs []string)
	// Host replaces ReadHost in tests.
	Host func() (Host, error)
	Log  *slog.Logger
}

// Node maintains the Node object of this node.
type Node struct {
	Dependencies
	settings Settings
	changed  chan struct{}

	mu        sync.Mutex
	observed  *corev1.Node // the API object, nil before it was read
	runtime   RuntimeState
	podCIDRs  []string
	lastSent  time.Time
	nextDelay time.Duration
	rebooted  bool // the event was recorded
	cordoned  bool
	// problemCount is the runtime's number of problems when it was last queried, images are its last reported images.
	problemCount int
	images       []*cri.Image
}

// New returns a Node. It starts nothing.
func New(s Settings, p Dependencies) *Node {
	if p.Log == nil {
		p.Log = slog.Default()
	}
	return &Node{Dependencies: p, settings: s.withDefaults(), changed: make(chan struct{}, 1)}
}

// Changed triggers a comparison of the status.
func (n *Node) Changed() {
	select {
	case n.changed <- struct{}{}:
	default:
	}
}

// Node returns the API object, or the object to register, which has no UID, if it was not read yet. That has the status of the host, by which
// static pods are admitted before the API server responds.
func (n *Node) Node() *corev1.Node {
	n.mu.Lock()
	observed := n.observed
	n.mu.Unlock()
	if observed != nil {
		return observed
	}
	object := n.object()
	object.Status, _ = Status(n.hostInput(corev1.NodeStatus{}))
	return object
}

// Event records an event about the node.
func (n *Node) Event(eventType, reason, message string) {
	object := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.settings.Name}}
	n.mu.Lock()
	if n.observed != nil {
		object.UID = n.observed.UID
	}
	n.mu.Unlock()
	n.Events.Event(object, eventType, reason, message)
}

// Run maintains the node until ctx is done.
func (n *Node) Run(ctx context.Context) error {
	n.Event(corev1.EventTypeNormal, "Starting", "Starting kubelet.")
	var running sync.WaitGroup
	defer running.Wait()
	n.updateRuntimeState(ctx)
	running.Go(func() { n.watchRuntime(ctx) })
	if err := n.register(ctx); err != nil {
		return nil // ctx is done
	}
	running.Go(func() { n.watch(ctx) })
	running.Go(func() { n.renewLease(ctx) })
	ticker := time.NewTicker(n.settings.StatusUpdateFrequency)
	defer ticker.Stop()
	for {
		if err := n.report(ctx); err != nil && ctx.Err() == nil {
			n.Log.Warn("failed to update node status", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		case <-n.changed:
		}
	}
}

// How often the runtime's status is queried. It is queried more often until it is ready, so that the node becomes ready
// soon after.
const (
	runtimePollIntervalNotReady = 200 * time.Millisecond
	runtimePollInterval         = 5 * time.Second
)

func (n *Node) watchRuntime(ctx context.Context) {
	for {
		wait := runtimePollInterval
		if ready := n.updateRuntimeState(ctx); !ready {
			wait = runtimePollIntervalNotReady
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// updateRuntimeState queries the runtime's status and reports whether the runtime and its network are ready.
func (n *Node) updateRuntimeState(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, runtimeTimeout)
	defer cancel()
	status, err := n.Runtime.Status(ctx)
	if err != nil {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.checkProblems() // it may have reached runtimeTimeout
		return false
	}
	var version cri.Version
	n.mu.Lock()
	known := n.runtime.Name != ""
	n.mu.Unlock()
	if !known {
		version, _ = n.Runtime.Version(ctx) // queried again with the next status
	}
	ready, networkBecameReady := n.setRuntimeStatus(status, version)
	if networkBecameReady && n.NetworkReady != nil {
		n.NetworkReady()
	}
	return ready
}

// setRuntimeStatus records the runtime's status. It reports whether runtime and network are ready, and whether the network was not before.
func (n *Node) setRuntimeStatus(status cri.Status, version cri.Version) (ready, networkBecameReady bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	_, networkWasReady := n.runtime.condition(cri.NetworkReady)
	n.runtime.Status = &status
	if version.Name != "" {
		n.runtime.Name, n.runtime.Version = version.Name, version.Version
	}
	_, up := n.runtime.condition(cri.RuntimeReady)
	_, network := n.runtime.condition(cri.NetworkReady)
	if up {
		n.runtime.LastReady, n.runtime.LastReadyStatus = time.Now(), &status
	}
	n.checkProblems()
	return up && network, network && !networkWasReady
}

// NetworkError says why pods outside of the host's network cannot start; nil: they can.
func (n *Node) NetworkError() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.runtime.networkError()
}

// checkProblems triggers a comparison of the status when the runtime's problems have changed. The caller holds mu.
func (n *Node) checkProblems() {
	if now := len(n.runtime.problems(time.Now())); now != n.problemCount {
		n.problemCount = now
		n.Changed()
	}
}

// object returns the Node object to register.
func (n *Node) object() *corev1.Node {
	s := n.settings
	labels := map[string]string{
		corev1.LabelHostname: s.Hostname, corev1.LabelOSStable: runtime.GOOS, corev1.LabelArchStable: runtime.GOARCH,
		"beta.kubernetes.io/os": runtime.GOOS, "beta.kubernetes.io/arch": runtime.GOARCH,
	}
	maps.Copy(labels, s.Labels)
	annotations := map[string]string{attachAnnotation: "true"}
	maps.Copy(annotations, s.Annotations)
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: s.Name, Labels: labels, Annotations: annotations},
		Spec:       corev1.NodeSpec{ProviderID: s.ProviderID, Taints: slices.Clone(s.Taints)},
	}
}

// register creates the Node object, or adopts an existing one. It retries until it succeeds or ctx is done.
func (n *Node) register(ctx context.Context) error {
	wait := 100 * time.Millisecond
	for {
		err := n.tryRegister(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil {
			n.Log.Warn("failed to register node", "error", err)
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
	if n.settings.SkipRegistration {
		existing, err := nodes.Get(ctx, "", n.settings.Name)
		if err != nil {
			return fmt.Errorf("read node %s: %w", n.settings.Name, err)
		}
		n.setObserved(existing)
		return nil
	}
	desired := n.object()
	status, events := Status(n.input(ctx, corev1.NodeStatus{}))
	desired.Status = status
	created, err := nodes.Create(ctx, desired, client.WriteOptions{})
	if err == nil {
		n.Log.Info("registered node", "node", created.Name)
		n.setObserved(created)
		n.recordEvents(events)
		return nil
	}
	if !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("register node %s: %w", desired.Name, err)
	}
	existing, err := nodes.Get(ctx, "", desired.Name)
	if err != nil {
		return fmt.Errorf("read node %s: %w", desired.Name, err)
	}
	if patch := reconcilePatch(existing, desired); patch != nil {
		if existing, err = nodes.Patch(ctx, "", desired.Name, client.RawPatch(client.StrategicPatch, patch), client.WriteOptions{}); err != nil {
			return fmt.Errorf("update labels of node %s: %w", desired.Name, err)
		}
	}
	n.Log.Info("node was already registered", "node", existing.Name)
	n.setObserved(existing)
	return nil
}

// reconcilePatch updates the kubelet's own labels and annotations of an existing node. It is nil if they are current.
func reconcilePatch(existing, desired *corev1.Node) []byte {
	labels := map[string]string{}
	for _, key := range kubeletLabels {
		if value, ok := desired.Labels[key]; ok && existing.Labels[key] != value {
			labels[key] = value
		}
	}
	metadata := map[string]any{}
	if len(labels) > 0 {
		metadata["labels"] = labels
	}
	annotations := maps.Clone(desired.Annotations)
	maps.DeleteFunc(annotations, func(key, value string) bool { return existing.Annotations[key] == value })
	if len(annotations) > 0 {
		metadata["annotations"] = annotations
	}
	if len(metadata) == 0 {
		return nil
	}
	patch, _ := json.Marshal(map[string]any{"metadata": metadata}) // strings always encode
	return patch
}

// setObserved stores the API object and notifies about its pod CIDRs and whether it is unschedulable.
func (n *Node) setObserved(node *corev1.Node) {
	n.mu.Lock()
	// The response to a write can come after the watch has shown what others wrote since.
	if old := n.observed; old != nil && old.UID == node.UID {
		if order, err := resourceversion.CompareResourceVersion(node.ResourceVersion, old.ResourceVersion); err == nil && order < 0 {
			n.mu.Unlock()
			return
		}
	}
	n.observed = node
	cidrsChanged := len(node.Spec.PodCIDRs) > 0 && !slices.Equal(n.podCIDRs, node.Spec.PodCIDRs)
	if cidrsChanged {
		n.podCIDRs = node.Spec.PodCIDRs
	}
	wasCordoned := n.cordoned
	n.cordoned = node.Spec.Unschedulable
	n.mu.Unlock()
	if n.Observed != nil {
		n.Observed()
	}
	if cidrsChanged && n.PodCIDRs != nil {
		n.PodCIDRs(slices.Clone(node.Spec.PodCIDRs))
	}
	if wasCordoned != node.Spec.Unschedulable {
		reason := "NodeSchedulable"
		if node.Spec.Unschedulable {
			reason = "NodeNotSchedulable"
		}
		n.recordEvents([]Event{statusEvent(StatusInput{Settings: n.settings}, reason)})
	}
}

func (n *Node) recordEvents(events []Event) {
	for _, e := range events {
		n.Event(e.Type, e.Reason, e.Message)
	}
}

// watch watches the Node object.
func (n *Node) watch(ctx context.Context) {
	for ctx.Err() == nil {
		if err := n.watchOnce(ctx); err != nil && ctx.Err() == nil {
			n.Log.Warn("failed to watch node", "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

func (n *Node) watchOnce(ctx context.Context) error {
	nodes := client.For[*corev1.Node](n.Client)
	match := client.Selector{Fields: fields.OneTermEqualSelector("metadata.name", n.settings.Name)}
	list, revision, err := nodes.List(ctx, "", match)
	if err != nil {
		return fmt.Errorf("list: %w", err)
	}
	if len(list) == 0 {
		// The object was deleted while the node runs: register again.
		return n.tryRegister(ctx)
	}
	n.setObserved(list[0])
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
				n.setObserved(node)
			}
		}
	}
}

// hostInput collects what Status needs to know of the host and the runtime, without requests.
func (n *Node) hostInput(old corev1.NodeStatus) StatusInput {
	in := StatusInput{Now: time.Now(), Settings: n.settings, Reported: old}
	read := n.Host
	if read == nil {
		read = func() (Host, error) { return ReadHost(n.settings.Root) }
	}
	if in.Host, in.HostError = read(); in.HostError != nil {
		n.Log.Warn("failed to read host properties", "error", in.HostError)
	}
	if err := CheckAddresses(n.settings.IPs); err != nil {
		n.Log.Warn("failed to determine node addresses", "error", err)
	} else {
		in.Addresses = n.settings.IPs
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	in.Runtime = n.runtime
	return in
}

// input collects the input of Status.
func (n *Node) input(ctx context.Context, old corev1.NodeStatus) StatusInput {
	in := n.hostInput(old)
	if !in.Runtime.LastReady.IsZero() && in.Now.Sub(in.Runtime.LastReady) < runtimeTimeout {
		if list, err := n.Runtime.ListImages(ctx); err != nil {
			n.Log.Warn("failed to list images", "error", err)
		} else {
			n.mu.Lock()
			n.images = list
			n.mu.Unlock()
		}
	}
	n.mu.Lock()
	in.Images = n.images
	n.mu.Unlock()
	if n.Pressure != nil {
		in.Pressure = n.Pressure()
	}
	if n.Problems != nil {
		in.Problems = n.Problems()
	}
	if n.Network != nil {
		in.Network = n.Network()
	}
	if n.Devices != nil {
		in.Devices = n.Devices()
	}
	if n.VolumesInUse != nil {
		in.VolumesInUse, in.VolumesInUseKnown = n.VolumesInUse()
	}
	return in
}

// report patches the status if it has changed or StatusReportFrequency has passed. Later attempts read the node from the
// server, because the first may have started from an outdated object.
func (n *Node) report(ctx context.Context) error {
	nodes := client.For[*corev1.Node](n.Client)
	old := n.Node()
	for attempt := range 3 {
		err := n.reportStatus(ctx, nodes, old)
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

func (n *Node) reportStatus(ctx context.Context, nodes client.Resource[*corev1.Node], old *corev1.Node) error {
	in := n.input(ctx, old.Status)
	status, events := Status(in)
	differs := statusChanged(&old.Status, &status)
	n.mu.Lock()
	reportDue := in.Now.Sub(n.lastSent) >= n.settings.StatusReportFrequency+n.nextDelay
	if n.rebooted {
		events = slices.DeleteFunc(events, func(e Event) bool { return e.Reason == "Rebooted" })
	}
	n.mu.Unlock()
	if !differs && !reportDue {
		n.volumesReported(in)
		return nil
	}
	patch, err := statusPatch(&old.Status, &status)
	if err != nil {
		return err
	}
	updated, err := nodes.Patch(ctx, "", n.settings.Name, client.RawPatch(client.StrategicPatch, patch), client.WriteOptions{Subresource: "status"})
	if err != nil {
		return fmt.Errorf("report status of node %s: %w", n.settings.Name, err)
	}
	n.mu.Lock()
	// Jitter keeps nodes that started together from reporting together.
	n.nextDelay = 0
	if differs || n.lastSent.IsZero() {
		n.nextDelay = time.Duration(float64(n.settings.StatusReportFrequency) * (rand.Float64() - 0.5))
	}
	n.lastSent = in.Now
	n.rebooted = n.rebooted || slices.ContainsFunc(events, func(e Event) bool { return e.Reason == "Rebooted" })
	n.mu.Unlock()
	n.setObserved(updated)
	n.volumesReported(in)
	n.recordEvents(events)
	return nil
}

// volumesReported passes on the volumes in use that the API object has.
func (n *Node) volumesReported(in StatusInput) {
	if n.VolumesReported != nil && in.VolumesInUseKnown {
		n.VolumesReported(in.VolumesInUse)
	}
}

// statusChanged compares two statuses, ignoring heartbeats.
func statusChanged(old, status *corev1.NodeStatus) bool {
	withoutHeartbeats := func(s *corev1.NodeStatus) *corev1.NodeStatus {
		c := *s
		c.Conditions = slices.Clone(s.Conditions)
		for i := range c.Conditions {
			c.Conditions[i].LastHeartbeatTime = metav1.Time{}
		}
		slices.SortStableFunc(c.Conditions, func(a, b corev1.NodeCondition) int { return cmp.Compare(a.Type, b.Type) })
		return &c
	}
	return !equality.Semantic.DeepEqual(withoutHeartbeats(old), withoutHeartbeats(status))
}

// statusPatch returns the patch from one status to another. It leaves fields that others own alone.
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
	// A strategic merge merges addresses by type, but a type can occur several times: replace the list.
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
