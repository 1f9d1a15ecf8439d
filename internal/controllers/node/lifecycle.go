package node

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/client"
	"skiff/internal/controller"
	"skiff/internal/kind"
)

// LifecycleSettings configure when a node is unhealthy and how fast pods are evicted from unhealthy nodes.
type LifecycleSettings struct {
	// Grace is the time after which a node without heartbeats is unhealthy: --node-monitor-grace-period.
	Grace time.Duration
	// StartupGrace is the same for a node that has never reported its status: --node-startup-grace-period.
	StartupGrace time.Duration
	// EvictionRate is the number of nodes per second and zone whose pods are evicted: --node-eviction-rate.
	EvictionRate float64
	// SecondaryRate is the rate in a disrupted zone: --secondary-node-eviction-rate. In small zones it is zero.
	SecondaryRate float64
	// LargeZone is the number of nodes above which a zone is large: --large-cluster-size-threshold.
	LargeZone int
	// UnhealthyZone is the fraction of unhealthy nodes above which a zone is disrupted: --unhealthy-zone-threshold.
	UnhealthyZone float64
}

// DefaultLifecycle are upstream's defaults.
var DefaultLifecycle = LifecycleSettings{
	Grace: 50 * time.Second, StartupGrace: time.Minute, EvictionRate: 0.1, SecondaryRate: 0.01, LargeZone: 50, UnhealthyZone: 0.55,
}

// Lifecycle monitors the health of nodes. A heartbeat is a status update or a lease renewal; without one for the grace period, the
// conditions of a node are set to Unknown. Conditions are reflected in taints: NoSchedule taints immediately, NoExecute taints as
// fast as the state of the zone allows.
//
// A key without a namespace is a node. A key with one is a pod that was bound to a node that is not ready, or whose node became
// unreachable: its Ready condition is set to False. When a kubelet itself reports that the node is not ready, as during its
// startup, the pods are not changed.
func Lifecycle(settings LifecycleSettings) controller.Definition {
	return controller.Definition{
		Name: "node-lifecycle-controller", Aliases: []string{"nodelifecycle"}, Component: "node-controller", Queue: "node_lifecycle_controller", Workers: 8,
		New: func(s *controller.Setup) (controller.Syncer, error) {
			c := &lifecycle{
				setup: s, settings: settings,
				nodes:  client.InformerFor[*corev1.Node](s.Informers),
				pods:   client.InformerFor[*corev1.Pod](s.Informers),
				leases: client.InformerFor[*coordinationv1.Lease](s.Informers),
				zones:  newZones(settings),
				health: map[string]*nodeHealth{}, renewals: map[string]time.Time{},
				evictions: newEvictions(),
			}
			if err := s.Register(c.evictions); err != nil {
				return nil, err
			}
			nodesCounted, err := c.watch()
			return controller.AfterInitialEvents(s, nodesCounted, c), err
		},
	}
}

// nodesInZone is the index of nodes by zone.
const nodesInZone = "zone"

type lifecycle struct {
	setup    *controller.Setup
	settings LifecycleSettings
	nodes    client.Informer[*corev1.Node]
	pods     client.Informer[*corev1.Pod]
	leases   client.Informer[*coordinationv1.Lease]
	zones    *zones
	// evictions counts the nodes that get a NoExecute taint, by zone.
	evictions *prometheus.CounterVec

	mu       sync.Mutex
	health   map[string]*nodeHealth
	renewals map[string]time.Time // when the last lease renewal of a node was observed
}

// nodeHealth is the tracked state of a node. Times are of the local clock.
type nodeHealth struct {
	uid       types.UID
	lastSeen  time.Time // the last heartbeat
	hasReady  bool      // it had a Ready condition at the last sync
	heartbeat metav1.Time
}

// watch returns whether the zones have observed all nodes of the initial list.
func (c *lifecycle) watch() (nodesCounted func() bool, err error) {
	if err := controller.IndexPodsByNode(c.pods); err != nil {
		return nil, err
	}
	if err := c.nodes.EnsureIndex(nodesInZone, func(node *corev1.Node) []string { return []string{zoneOf(node)} }); err != nil {
		return nil, fmt.Errorf("index nodes by zone: %w", err)
	}
	if nodesCounted, err = c.watchNodes(); err != nil {
		return nil, fmt.Errorf("watch nodes: %w", err)
	}
	onPodBound := func(pod *corev1.Pod) {
		if c.isKnown(pod.Spec.NodeName) { // only for pods bound after the node was first observed
			enqueueReadyPod(c.setup, pod)
		}
	}
	onPodUpdate := func(old, pod *corev1.Pod) {
		if old.Spec.NodeName != pod.Spec.NodeName {
			onPodBound(pod)
		}
	}
	if err := c.pods.AddEventHandler(onPodBound, onPodUpdate, nil); err != nil {
		return nil, fmt.Errorf("watch pods: %w", err)
	}
	// Only record renewals: a node is synced again when its grace period could be over.
	recordRenewal := func(lease *coordinationv1.Lease) {
		if lease.Namespace == corev1.NamespaceNodeLease {
			c.mu.Lock()
			c.renewals[lease.Name] = time.Now()
			c.mu.Unlock()
		}
	}
	onLeaseUpdate := func(old, lease *coordinationv1.Lease) {
		if lease.Spec.RenewTime != nil && (old.Spec.RenewTime == nil || old.Spec.RenewTime.Before(lease.Spec.RenewTime)) {
			recordRenewal(lease)
		}
	}
	forgetRenewals := func(lease *coordinationv1.Lease) {
		if lease.Namespace == corev1.NamespaceNodeLease {
			c.mu.Lock()
			delete(c.renewals, lease.Name)
			c.mu.Unlock()
		}
	}
	if err := c.leases.AddEventHandler(recordRenewal, onLeaseUpdate, forgetRenewals); err != nil {
		return nil, fmt.Errorf("watch leases: %w", err)
	}
	return nodesCounted, nil
}

func (c *lifecycle) watchNodes() (hasSynced func() bool, err error) {
	enqueue := func(node *corev1.Node) { c.setup.Enqueue(controller.KeyOf(node)) }
	onAdd := func(node *corev1.Node) { c.zones.observe(node); enqueue(node) }
	onUpdate := func(old, node *corev1.Node) {
		onAdd(node)
		if readiness(old) == corev1.ConditionTrue && readiness(node) == corev1.ConditionUnknown {
			c.enqueuePods(node)
		}
	}
	onDelete := func(node *corev1.Node) { c.zones.remove(node); enqueue(node) }
	return c.nodes.AddEventHandlerWithSync(onAdd, onUpdate, onDelete)
}

// Sync reconciles one node or one pod.
func (c *lifecycle) Sync(ctx context.Context, key controller.Key) error {
	now := time.Now()
	if key.Namespace != "" {
		return c.syncPod(ctx, key, now)
	}
	c.enqueueZones(c.zones.update(now))
	node, ok := c.nodes.Get("", key.Name)
	if !ok {
		c.forgetNode(key.Name)
		return nil
	}
	v, isNew := c.observe(node, now)
	if isNew && readiness(node) == corev1.ConditionUnknown {
		c.enqueuePods(node) // an earlier leader may not have updated all of them
	}
	if v.unknownStatus() != nil {
		if err := c.confirmUnreachable(ctx, node.Name); err != nil {
			return err
		}
	}
	zone := zoneOf(node)
	evictions := c.evictions.WithLabelValues(zone) // also the zones without evictions are shown
	evicts := v.needsEvictionToken()
	rateLimited := evicts && !c.zones.tryAcquire(zone, now)
	if rateLimited {
		v.evictions = evictNone
	}
	plan := v.reconcile()
	if rateLimited {
		plan.Requeue(c.zones.retryDelay(zone))
	}
	if isNew {
		plan.Events = append(plan.Events, nodeEvent(node, "RegisteredNode", "Registered Node %s in Controller"))
	}
	err := c.setup.Apply(ctx, key, plan)
	if err == nil && evicts && !rateLimited {
		evictions.Inc()
	}
	return err
}

// newEvictions is upstream's metric.
func newEvictions() *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{
		Subsystem: "node_collector", Name: "evictions_total", Help: "Number of Node evictions that happened since current instance of NodeController started.",
	}, []string{"zone"})
}

// enqueueZones enqueues the nodes of zones whose state changed.
func (c *lifecycle) enqueueZones(changes zoneChanges) {
	var affected []*corev1.Node
	if changes.all {
		affected = c.nodes.List("", nil)
	} else {
		for _, name := range changes.zones {
			// The index exists: watch added it.
			nodes, _ := c.nodes.ByIndex(nodesInZone, name)
			affected = append(affected, nodes...)
		}
	}
	for _, node := range affected {
		c.setup.Enqueue(controller.KeyOf(node))
	}
}

// syncPod sets the Ready condition of a pod to False if its node is not ready.
func (c *lifecycle) syncPod(ctx context.Context, key controller.Key, now time.Time) error {
	pod, ok := c.pods.Get(key.Namespace, key.Name)
	if !ok {
		return nil
	}
	node, ok := c.nodes.Get("", pod.Spec.NodeName)
	if !ok {
		return nil
	}
	var plan controller.Plan
	if write, needed := markPodNotReady(pod, node, now); needed {
		plan.AddStep(write)
	}
	return c.setup.Apply(ctx, key, plan)
}

// isKnown reports whether a node has been synced before.
func (c *lifecycle) isKnown(node string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.health[node] != nil
}

// enqueuePods enqueues the pods of an unreachable node.
func (c *lifecycle) enqueuePods(node *corev1.Node) {
	for _, pod := range controller.PodsOnNode(c.pods, node.Name) {
		enqueueReadyPod(c.setup, pod)
	}
}

// enqueueReadyPod enqueues a bound pod whose Ready condition is not False.
func enqueueReadyPod(s *controller.Setup, pod *corev1.Pod) {
	if pod.Spec.NodeName != "" && readyConditionIndex(pod) >= 0 {
		s.Enqueue(controller.KeyOf(pod))
	}
}

// readyConditionIndex returns the index of a Ready condition that is not False, or -1.
func readyConditionIndex(pod *corev1.Pod) int {
	return slices.IndexFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status != corev1.ConditionFalse
	})
}

// markPodNotReady sets the Ready condition of a pod to False if its node is not ready or unreachable, so that services do not use
// it.
func markPodNotReady(pod *corev1.Pod, node *corev1.Node, now time.Time) (controller.Write, bool) {
	i := readyConditionIndex(pod)
	if status := readiness(node); i < 0 || status == "" || status == corev1.ConditionTrue {
		return controller.Write{}, false
	}
	changed := pod.DeepCopy()
	changed.Status.Conditions[i].Status, changed.Status.Conditions[i].LastTransitionTime = corev1.ConditionFalse, metav1.NewTime(now)
	return controller.NewUpdateStatus(changed).Ignoring(metav1.StatusReasonNotFound).
		OnSuccess(controller.Event{Object: pod, Type: corev1.EventTypeWarning, Reason: "NodeNotReady", Message: "Node is not ready"}), true
}

func nodeEvent(node *corev1.Node, reason, message string) controller.Event {
	return controller.Event{Object: node, Type: corev1.EventTypeNormal, Reason: reason,
		Message: fmt.Sprintf("Node %s event: %s", node.Name, fmt.Sprintf(message, node.Name))}
}

// forgetNode drops the state of a deleted node and records an event.
func (c *lifecycle) forgetNode(name string) {
	c.mu.Lock()
	state := c.health[name]
	delete(c.health, name)
	delete(c.renewals, name)
	c.mu.Unlock()
	if state != nil {
		deleted := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: state.uid}}
		c.setup.Events.Eventf(deleted, corev1.EventTypeNormal, "RemovingNode", "Node %s event: Removing Node %s from Controller", name, name)
	}
}

// observe updates the heartbeat of a node and gathers the view. It reports whether the node is new.
func (c *lifecycle) observe(node *corev1.Node, now time.Time) (v nodeView, isNew bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.health[node.Name]
	ready := nodeCondition(node, corev1.NodeReady)
	switch {
	case h == nil:
		// A new node may have sent a heartbeat just before. Without a status, count from its creation.
		isNew = true
		h = &nodeHealth{lastSeen: now}
		if ready == nil {
			h.lastSeen = node.CreationTimestamp.Time
		}
		c.health[node.Name] = h
	case ready != nil && ready.Reason == neverUpdatedReason: // set by this controller, not a heartbeat
	case h.hasReady != (ready != nil), ready != nil && !ready.LastHeartbeatTime.Equal(&h.heartbeat):
		h.lastSeen = now
	}
	h.uid, h.hasReady = node.UID, ready != nil
	if ready != nil {
		h.heartbeat = ready.LastHeartbeatTime
	}
	for _, seen := range []time.Time{c.renewals[node.Name], c.zones.recoveredAt()} {
		if seen.After(h.lastSeen) {
			h.lastSeen = seen
		}
	}
	v = nodeView{node: node, lastSeen: h.lastSeen, grace: c.settings.Grace, evictions: c.zones.evictionMode(zoneOf(node)), now: now}
	if ready == nil {
		v.grace = c.settings.StartupGrace
	}
	return v, isNew
}

// confirmUnreachable reads the live lease: a stuck watch must not make all nodes unreachable.
func (c *lifecycle) confirmUnreachable(ctx context.Context, name string) error {
	cached, _ := c.leases.Get(corev1.NamespaceNodeLease, name)
	live, err := c.setup.Client.GetLive(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: name}})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("get lease of node %s: %w", name, err)
	}
	if cached == nil || cached.ResourceVersion != live.GetResourceVersion() {
		return fmt.Errorf("the cached lease of node %s is stale", name)
	}
	return nil
}

// evictionMode decides whether pods may be evicted from an unhealthy node.
type evictionMode int

const (
	evictRateLimited evictionMode = iota // as the rate limiter of the zone allows
	evictNone                            // no evictions for now
	// evictStopped: no zone has a healthy node. Then this process is probably disconnected, and existing taints are removed.
	evictStopped
)

// nodeView is the observed state of one node.
type nodeView struct {
	node      *corev1.Node
	lastSeen  time.Time
	grace     time.Duration
	evictions evictionMode
	now       time.Time
}

func (v nodeView) isUnresponsive() bool { return v.now.After(v.lastSeen.Add(v.grace)) }

// reconcile writes the conditions of a node that became unresponsive; the next sync updates the taints.
func (v nodeView) reconcile() (plan controller.Plan) {
	if unresponsive := v.unknownStatus(); unresponsive != nil {
		write := controller.NewUpdateStatus(unresponsive)
		if readiness(v.node) == corev1.ConditionTrue {
			write = write.OnSuccess(statusChangeEvent(v.node, "NodeNotReady"))
		}
		plan.AddStep(write)
		return plan
	}
	if patch := v.patch(); patch != nil {
		plan.AddStep(controller.NewPatch(v.node, client.MergePatch, patch))
	}
	if !v.isUnresponsive() {
		plan.Requeue(v.lastSeen.Add(v.grace).Sub(v.now) + time.Millisecond)
	}
	return plan
}

// neverUpdatedReason is the reason of conditions that no kubelet has written.
const neverUpdatedReason = "NodeStatusNeverUpdated"

// kubeletConditions are the conditions that kubelets maintain. NetworkUnavailable is set by others.
var kubeletConditions = []corev1.NodeConditionType{corev1.NodeReady, corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure}

// unknownStatus returns the node with its conditions set to Unknown if it is unresponsive and they are not Unknown already.
func (v nodeView) unknownStatus() kind.Object {
	if !v.isUnresponsive() || readiness(v.node) == corev1.ConditionUnknown {
		return nil
	}
	changed := v.node.DeepCopy()
	for _, t := range kubeletConditions {
		c := nodeCondition(changed, t)
		switch {
		case c == nil:
			changed.Status.Conditions = append(changed.Status.Conditions, corev1.NodeCondition{
				Type: t, Status: corev1.ConditionUnknown, Reason: neverUpdatedReason, Message: "Kubelet never posted node status.",
				LastHeartbeatTime: v.node.CreationTimestamp, LastTransitionTime: metav1.NewTime(v.now)})
		case c.Status != corev1.ConditionUnknown:
			c.Status, c.Reason, c.Message = corev1.ConditionUnknown, "NodeStatusUnknown", "Kubelet stopped posting node status."
			c.LastTransitionTime = metav1.NewTime(v.now)
		}
	}
	return changed
}

// patch returns the patch for taints and labels, nil if they are up to date. The resource version protects concurrent changes of
// taints.
func (v nodeView) patch() []byte {
	metadata := map[string]any{"resourceVersion": v.node.ResourceVersion}
	body := map[string]any{"metadata": metadata}
	taints := v.taints()
	if taints != nil {
		body["spec"] = map[string]any{"taints": taints}
	}
	labels := v.labels()
	if len(labels) > 0 {
		metadata["labels"] = labels
	}
	if taints == nil && len(labels) == 0 {
		return nil
	}
	// Marshalling taints and strings cannot fail.
	patch, _ := json.Marshal(body)
	return patch
}

// labels returns the beta labels that differ from the stable ones.
func (v nodeView) labels() map[string]string {
	betaLabels := map[string]string{corev1.LabelOSStable: "beta.kubernetes.io/os", corev1.LabelArchStable: "beta.kubernetes.io/arch"}
	changed := map[string]string{}
	for stable, beta := range betaLabels {
		if value, ok := v.node.Labels[stable]; ok && v.node.Labels[beta] != value {
			changed[beta] = value
		}
	}
	return changed
}

// conditionTaints maps conditions and their status to taints.
var conditionTaints = map[corev1.NodeConditionType]map[corev1.ConditionStatus]string{
	corev1.NodeReady:              {corev1.ConditionFalse: corev1.TaintNodeNotReady, corev1.ConditionUnknown: corev1.TaintNodeUnreachable},
	corev1.NodeMemoryPressure:     {corev1.ConditionTrue: corev1.TaintNodeMemoryPressure},
	corev1.NodeDiskPressure:       {corev1.ConditionTrue: corev1.TaintNodeDiskPressure},
	corev1.NodeNetworkUnavailable: {corev1.ConditionTrue: corev1.TaintNodeNetworkUnavailable},
	corev1.NodePIDPressure:        {corev1.ConditionTrue: corev1.TaintNodePIDPressure},
}

// taints returns the desired taints, or nil if they are up to date. Other taints are kept.
func (v nodeView) taints() []corev1.Taint {
	want := map[corev1.Taint]bool{}
	for _, c := range v.node.Status.Conditions {
		if key := conditionTaints[c.Type][c.Status]; key != "" {
			want[corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule}] = true
		}
	}
	if v.node.Spec.Unschedulable {
		want[corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}] = true
	}
	if key := v.noExecuteTaint(); key != "" {
		want[corev1.Taint{Key: key, Effect: corev1.TaintEffectNoExecute}] = true
	}
	taints := []corev1.Taint{}
	changed := false
	for _, t := range v.node.Spec.Taints {
		id := corev1.Taint{Key: t.Key, Effect: t.Effect}
		if isConditionTaint(t) && !want[id] {
			changed = true
			continue
		}
		delete(want, id)
		taints = append(taints, t)
	}
	if len(want) == 0 && !changed {
		return nil
	}
	for _, t := range slices.SortedFunc(maps.Keys(want), func(a, b corev1.Taint) int { return compareTaints(a, b) }) {
		t.TimeAdded = new(metav1.NewTime(v.now))
		taints = append(taints, t)
	}
	return taints
}

// noExecuteTaint is the key of the NoExecute taint the node should have, "" for none. A node that has one already keeps one,
// without regard to rate limits; its key follows the condition.
func (v nodeView) noExecuteTaint() string {
	if v.evictions == evictStopped || v.evictions == evictNone && !v.hasNoExecuteTaint() {
		return ""
	}
	return conditionTaints[corev1.NodeReady][readiness(v.node)]
}

// hasNoExecuteTaint reports whether the node has a NoExecute taint of this controller.
func (v nodeView) hasNoExecuteTaint() bool {
	return slices.ContainsFunc(v.node.Spec.Taints, func(t corev1.Taint) bool { return t.Effect == corev1.TaintEffectNoExecute && isConditionTaint(t) })
}

// needsEvictionToken reports whether the node is about to get a NoExecute taint, which is rate limited.
func (v nodeView) needsEvictionToken() bool {
	return v.unknownStatus() == nil && v.noExecuteTaint() != "" && !v.hasNoExecuteTaint()
}

// isConditionTaint reports whether a taint is managed by this controller.
func isConditionTaint(t corev1.Taint) bool {
	switch t.Effect {
	case corev1.TaintEffectNoExecute:
		return t.Key == corev1.TaintNodeNotReady || t.Key == corev1.TaintNodeUnreachable
	case corev1.TaintEffectNoSchedule:
		if t.Key == corev1.TaintNodeUnschedulable {
			return true
		}
		for _, byStatus := range conditionTaints {
			for _, key := range byStatus {
				if key == t.Key {
					return true
				}
			}
		}
	}
	return false
}

func compareTaints(a, b corev1.Taint) int {
	if a.Key != b.Key {
		return slices.Compare([]byte(a.Key), []byte(b.Key))
	}
	return slices.Compare([]byte(a.Effect), []byte(b.Effect))
}
