package resourceclaim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"skiff/internal/client"
	"skiff/internal/controller"
	"skiff/internal/podstate"
)

const (
	// ruleKeyPrefix marks keys of DeviceTaintRules; those of pods have podKeyPrefix.
	ruleKeyPrefix = "rule/"
	// slicesByPool is the index of ResourceSlices by driver and pool, claimsByPool that of claims by those of their allocated devices.
	slicesByPool = "slicePool"
	claimsByPool = "claimPool"
	// claimsByDriver is the index of claims by the drivers of their allocated devices.
	claimsByDriver = "claimDriver"

	taintEvictionName = "device-taint-eviction-controller"
)

// DeviceTaintEviction deletes pods with devices that have NoExecute taints which their claims do not, or no longer, tolerate. Drivers set
// taints in ResourceSlices, administrators in DeviceTaintRules.
var DeviceTaintEviction = controller.Definition{
	Name: taintEvictionName, Queue: taintEvictionName, Workers: 8,
	New: func(s *controller.Setup) (controller.Syncer, error) {
		c := &taintEviction{
			setup:     s,
			pods:      client.InformerFor[*corev1.Pod](s.Informers),
			claims:    client.InformerFor[*resourceapi.ResourceClaim](s.Informers),
			slices:    client.InformerFor[*resourceapi.ResourceSlice](s.Informers),
			rules:     client.InformerFor[*resourceapi.DeviceTaintRule](s.Informers),
			scheduled: map[controller.Key]scheduledEviction{}, evicted: map[types.UID]int{},
			deletions: prometheus.NewCounter(prometheus.CounterOpts{
				Subsystem: "device_taint_eviction_controller", Name: "pod_deletions_total", Help: "Total number of Pods deleted by DeviceTaintEvictionController since its start.",
			}),
			latency: prometheus.NewHistogram(prometheus.HistogramOpts{
				Subsystem: "device_taint_eviction_controller", Name: "pod_deletion_duration_seconds", Buckets: []float64{0.005, 0.025, 0.1, 0.5, 1, 2.5, 10, 30, 60, 120, 180, 240},
				Help: "Latency, in seconds, between the time when a device taint effect has been activated and a Pod's deletion via DeviceTaintEvictionController.",
			}),
		}
		if err := s.Register(c.deletions, c.latency); err != nil {
			return nil, err
		}
		if err := c.addIndexes(); err != nil {
			return nil, err
		}
		return c, c.watch()
	},
}

type taintEviction struct {
	setup     *controller.Setup
	pods      client.Informer[*corev1.Pod]
	claims    client.Informer[*resourceapi.ResourceClaim]
	slices    client.Informer[*resourceapi.ResourceSlice]
	rules     client.Informer[*resourceapi.DeviceTaintRule]
	deletions prometheus.Counter
	latency   prometheus.Histogram

	mu sync.Mutex
	// scheduled are the evictions that are pending.
	scheduled map[controller.Key]scheduledEviction
	// evicted are the numbers of pods that were evicted because of a rule.
	evicted map[types.UID]int
}

// scheduledEviction is the pending eviction of a pod.
type scheduledEviction struct {
	uid types.UID
	at  time.Time
}

func (c *taintEviction) addIndexes() error {
	return errors.Join(
		c.slices.EnsureIndex(slicesByPool, func(slice *resourceapi.ResourceSlice) []string {
			return []string{slice.Spec.Driver + "/" + slice.Spec.Pool.Name}
		}),
		c.claims.EnsureIndex(claimsByPool, func(claim *resourceapi.ResourceClaim) (pools []string) {
			for _, device := range allocatedDevices(claim) {
				pools = append(pools, device.Driver+"/"+device.Pool)
			}
			return pools
		}),
		c.claims.EnsureIndex(claimsByDriver, func(claim *resourceapi.ResourceClaim) (drivers []string) {
			for _, device := range allocatedDevices(claim) {
				drivers = append(drivers, device.Driver)
			}
			return drivers
		}),
	)
}

func allocatedDevices(claim *resourceapi.ResourceClaim) []resourceapi.DeviceRequestAllocationResult {
	if claim.Status.Allocation == nil {
		return nil
	}
	return claim.Status.Allocation.Devices.Results
}

// watch registers the event handlers.
func (c *taintEviction) watch() error {
	podUpdated := func(old, pod *corev1.Pod) {
		if old.Spec.NodeName != pod.Spec.NodeName || !apiequality.Semantic.DeepEqual(old.Status.ResourceClaimStatuses, pod.Status.ResourceClaimStatuses) {
			c.enqueuePod(pod)
		}
	}
	claimUpdated := func(old, claim *resourceapi.ResourceClaim) {
		c.enqueuePodsOf(old)
		if !slices.Equal(old.Status.ReservedFor, claim.Status.ReservedFor) {
			c.enqueuePodsOf(claim)
		}
	}
	sliceChanged := func(slice *resourceapi.ResourceSlice) {
		if len(evictingTaints(slice)) > 0 {
			c.enqueueIndexed(claimsByPool, slice.Spec.Driver+"/"+slice.Spec.Pool.Name)
		}
	}
	sliceUpdated := func(old, slice *resourceapi.ResourceSlice) {
		if old.Spec.Pool.Generation == slice.Spec.Pool.Generation && apiequality.Semantic.DeepEqual(evictingTaints(old), evictingTaints(slice)) {
			return
		}
		sliceChanged(old)
		sliceChanged(slice)
	}
	ruleChanged := func(rule *resourceapi.DeviceTaintRule) {
		c.setup.Enqueue(ruleKey(rule))
		c.enqueueMatching(rule)
	}
	ruleUpdated := func(old, rule *resourceapi.DeviceTaintRule) {
		if old.UID != rule.UID || !apiequality.Semantic.DeepEqual(&old.Spec, &rule.Spec) {
			c.enqueueMatching(old)
			ruleChanged(rule)
		}
	}
	ruleDeleted := func(rule *resourceapi.DeviceTaintRule) {
		c.mu.Lock()
		delete(c.evicted, rule.UID)
		c.mu.Unlock()
		c.enqueueMatching(rule)
	}
	return errors.Join(
		c.pods.AddEventHandler(c.enqueuePod, podUpdated, c.enqueuePod),
		c.claims.AddEventHandler(c.enqueuePodsOf, claimUpdated, c.enqueuePodsOf),
		c.slices.AddEventHandler(sliceChanged, sliceUpdated, sliceChanged),
		c.rules.AddEventHandler(ruleChanged, ruleUpdated, ruleDeleted),
	)
}

// evictingTaints returns the NoExecute taints of the devices in a slice.
func evictingTaints(slice *resourceapi.ResourceSlice) (taints []deviceTaint) {
	for i := range slice.Spec.Devices {
		for _, taint := range slice.Spec.Devices[i].Taints {
			if taint.Effect == resourceapi.DeviceTaintEffectNoExecute {
				taints = append(taints, deviceTaint{slice.Spec.Devices[i].Name, taint})
			}
		}
	}
	return taints
}

type deviceTaint struct {
	Device string
	Taint  resourceapi.DeviceTaint
}

func podKey(pod *corev1.Pod) controller.Key {
	return controller.Key{Namespace: pod.Namespace, Name: podKeyPrefix + pod.Name}
}

func ruleKey(rule *resourceapi.DeviceTaintRule) controller.Key {
	return controller.Key{Name: ruleKeyPrefix + rule.Name}
}

func (c *taintEviction) enqueuePod(pod *corev1.Pod) {
	if len(pod.Spec.ResourceClaims) > 0 && pod.Spec.NodeName != "" {
		c.setup.Enqueue(podKey(pod))
	}
}

// enqueuePodsOf enqueues the pods that a claim is reserved for.
func (c *taintEviction) enqueuePodsOf(claim *resourceapi.ResourceClaim) {
	for _, pod := range c.podsOf(claim) {
		c.enqueuePod(pod)
	}
}

func (c *taintEviction) podsOf(claim *resourceapi.ResourceClaim) (pods []*corev1.Pod) {
	for _, consumer := range claim.Status.ReservedFor {
		if consumer.APIGroup != "" || consumer.Resource != "pods" {
			continue
		}
		if pod, ok := c.pods.Get(claim.Namespace, consumer.Name); ok && pod.UID == consumer.UID {
			pods = append(pods, pod)
		}
	}
	return pods
}

func (c *taintEviction) enqueueIndexed(index, value string) {
	claims, err := c.claims.ByIndex(index, value)
	if err != nil {
		c.setup.Log.Error("failed to find resource claims by index", "index", index, "error", err)
	}
	for _, claim := range claims {
		c.enqueuePodsOf(claim)
	}
}

// enqueueMatching enqueues the pods with devices that a rule with the effect NoExecute selects.
func (c *taintEviction) enqueueMatching(rule *resourceapi.DeviceTaintRule) {
	if rule.Spec.Taint.Effect != resourceapi.DeviceTaintEffectNoExecute {
		return
	}
	for _, claim := range c.matchingClaims(rule) {
		c.enqueuePodsOf(claim)
	}
}

// matchingClaims returns the claims with a device that a rule selects.
func (c *taintEviction) matchingClaims(rule *resourceapi.DeviceTaintRule) (matching []*resourceapi.ResourceClaim) {
	selector := rule.Spec.DeviceSelector
	if selector == nil {
		return nil
	}
	var candidates []*resourceapi.ResourceClaim
	var err error
	switch {
	case selector.Driver != nil && selector.Pool != nil:
		candidates, err = c.claims.ByIndex(claimsByPool, *selector.Driver+"/"+*selector.Pool)
	case selector.Driver != nil:
		candidates, err = c.claims.ByIndex(claimsByDriver, *selector.Driver)
	default:
		candidates = c.claims.List("", labels.Everything())
	}
	if err != nil {
		c.setup.Log.Error("failed to find resource claims by index", "error", err)
	}
	for _, claim := range candidates {
		if slices.ContainsFunc(allocatedDevices(claim), func(d resourceapi.DeviceRequestAllocationResult) bool {
			return selects(rule, d.Driver, d.Pool, d.Device)
		}) {
			matching = append(matching, claim)
		}
	}
	return matching
}

// selects reports whether a rule taints a device.
func selects(rule *resourceapi.DeviceTaintRule, driver, pool, device string) bool {
	s := rule.Spec.DeviceSelector
	return s != nil && (s.Driver == nil || *s.Driver == driver) && (s.Pool == nil || *s.Pool == pool) && (s.Device == nil || *s.Device == device)
}

// Sync reconciles a pod, or the status of a rule.
func (c *taintEviction) Sync(ctx context.Context, key controller.Key) error {
	if name, isRule := strings.CutPrefix(key.Name, ruleKeyPrefix); isRule {
		return c.syncRule(ctx, key, name)
	}
	return c.syncPod(ctx, key, strings.TrimPrefix(key.Name, podKeyPrefix))
}

// eviction says when a pod must be evicted, and because of which rules.
type eviction struct {
	at    time.Time
	rules []*resourceapi.DeviceTaintRule
}

// evictionOf returns the eviction of a pod because of the taints in slices and of rules, nil if it need not be evicted.
func (c *taintEviction) evictionOf(pod *corev1.Pod, rules []*resourceapi.DeviceTaintRule) (due *eviction) {
	if pod.Spec.NodeName == "" || podstate.IsTerminal(pod) {
		return nil
	}
	for i := range pod.Spec.ResourceClaims {
		name, isGenerated, err := resourceclaim.Name(pod, &pod.Spec.ResourceClaims[i])
		if err != nil || name == nil {
			continue
		}
		claim, ok := c.claims.Get(pod.Namespace, *name)
		if !ok || isGenerated && resourceclaim.IsForPod(pod, claim, false) != nil || !resourceclaim.IsReservedForPod(pod, claim, false) {
			continue
		}
		for _, device := range allocatedDevices(claim) {
			for _, taint := range c.deviceTaints(device) {
				due = due.add(device, taint, nil)
			}
			for _, rule := range rules {
				if selects(rule, device.Driver, device.Pool, device.Device) {
					due = due.add(device, rule.Spec.Taint, rule)
				}
			}
		}
	}
	return due
}

// deviceTaints returns the NoExecute taints that a driver has set for a device. Slices of older generations of the pool do not count.
func (c *taintEviction) deviceTaints(device resourceapi.DeviceRequestAllocationResult) (taints []resourceapi.DeviceTaint) {
	pool, err := c.slices.ByIndex(slicesByPool, device.Driver+"/"+device.Pool)
	if err != nil {
		c.setup.Log.Error("failed to find resource slices by index", "error", err)
	}
	newest := int64(math.MinInt64)
	for _, slice := range pool {
		newest = max(newest, slice.Spec.Pool.Generation)
	}
	for _, slice := range pool {
		if slice.Spec.Pool.Generation != newest {
			continue
		}
		for _, t := range evictingTaints(slice) {
			if t.Device == device.Device {
				taints = append(taints, t.Taint)
			}
		}
	}
	return taints
}

// add returns the eviction with a taint of an allocated device, unless that is tolerated.
func (e *eviction) add(device resourceapi.DeviceRequestAllocationResult, taint resourceapi.DeviceTaint, rule *resourceapi.DeviceTaintRule) *eviction {
	patience, tolerated := tolerationTime(device, taint)
	if tolerated || taint.TimeAdded == nil {
		return e
	}
	at := taint.TimeAdded.Add(patience)
	if e == nil {
		e = &eviction{at: at}
	} else if at.Before(e.at) {
		e.at = at
	}
	if rule != nil && !slices.Contains(e.rules, rule) {
		e.rules = append(e.rules, rule)
	}
	return e
}

// maxToleration is the longest limited toleration: a time that can be added to another.
const maxToleration = 100 * 365 * 24 * time.Hour

// tolerationTime returns how long a taint is tolerated. forever is set if it is tolerated without limit.
func tolerationTime(device resourceapi.DeviceRequestAllocationResult, taint resourceapi.DeviceTaint) (patience time.Duration, forever bool) {
	shortest := int64(math.MaxInt64)
	for _, toleration := range device.Tolerations {
		// Only tolerations that name the effect count.
		if toleration.Effect != resourceapi.DeviceTaintEffectNoExecute || !resourceclaim.ToleratesTaint(toleration, taint) {
			continue
		}
		if toleration.TolerationSeconds == nil {
			return 0, true
		}
		shortest = min(shortest, max(0, *toleration.TolerationSeconds))
	}
	if shortest == math.MaxInt64 {
		return 0, false
	}
	if shortest > int64(maxToleration/time.Second) {
		return maxToleration, false
	}
	return time.Duration(shortest) * time.Second, false
}

// evictingRules returns the rules with the effect NoExecute.
func (c *taintEviction) evictingRules() (rules []*resourceapi.DeviceTaintRule) {
	for _, rule := range c.rules.List("", labels.Everything()) {
		if rule.Spec.Taint.Effect == resourceapi.DeviceTaintEffectNoExecute {
			rules = append(rules, rule)
		}
	}
	return rules
}

// syncPod evicts a pod when that is due.
func (c *taintEviction) syncPod(ctx context.Context, key controller.Key, name string) error {
	pod, ok := c.pods.Get(key.Namespace, name)
	if !ok {
		c.unschedule(key, "")
		return nil
	}
	due := c.evictionOf(pod, c.evictingRules())
	if due == nil || pod.DeletionTimestamp != nil {
		if c.unschedule(key, pod.UID) && due == nil {
			c.setup.Events.Event(pod, corev1.EventTypeNormal, "DeviceTaintManagerEviction", "Cancelling deletion")
		}
		return nil
	}
	now := time.Now()
	for _, rule := range due.rules {
		c.setup.EnqueueAfter(ruleKey(rule), ruleStatusPeriod)
	}
	if wait := due.at.Sub(now); wait > 0 {
		c.schedule(key, scheduledEviction{uid: pod.UID, at: due.at})
		c.setup.EnqueueAfter(key, wait)
		return nil
	}
	if err := c.setup.Apply(ctx, key, evictionPlan(pod, now)); err != nil {
		return err
	}
	c.deletions.Inc()
	c.latency.Observe(now.Sub(due.at).Seconds())
	c.unschedule(key, pod.UID)
	c.countEvicted(due.rules)
	return nil
}

func (c *taintEviction) countEvicted(rules []*resourceapi.DeviceTaintRule) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, rule := range rules {
		if _, exists := c.rules.Get("", rule.Name); exists {
			c.evicted[rule.UID]++
		}
	}
}

func (c *taintEviction) schedule(key controller.Key, s scheduledEviction) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.scheduled[key] = s
}

// unschedule forgets the eviction of a pod. It reports whether there was one of the pod with that UID.
func (c *taintEviction) unschedule(key controller.Key, uid types.UID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	s, found := c.scheduled[key]
	delete(c.scheduled, key)
	return found && s.uid == uid
}

// evictionPlan marks a pod as disrupted and deletes it.
func evictionPlan(pod *corev1.Pod, now time.Time) (plan controller.Plan) {
	condition := corev1.PodCondition{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "DeletionByDeviceTaintManager", ObservedGeneration: pod.Generation,
		Message: "Device Taint manager: deleting due to NoExecute taint", LastTransitionTime: metav1.NewTime(now),
	}
	old := podstate.Condition(pod, corev1.DisruptionTarget)
	if old != nil && old.Status == condition.Status {
		condition.LastTransitionTime = old.LastTransitionTime
	}
	if old == nil || old.Status != condition.Status || old.Reason != condition.Reason || old.Message != condition.Message {
		// Marshalling conditions and strings cannot fail.
		patch, _ := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID}, "status": map[string]any{"conditions": []corev1.PodCondition{condition}}})
		mark := controller.NewPatch(pod, client.StrategicPatch, patch).Ignoring(metav1.StatusReasonNotFound)
		mark.Verb = controller.PatchStatus
		plan.AddStep(mark)
	}
	plan.AddStep(controller.NewDelete(pod))
	plan.Events = []controller.Event{{Object: pod, Type: corev1.EventTypeNormal, Reason: "DeviceTaintManagerEviction", Message: "Marking for deletion"}}
	return plan
}

// plural formats a number of things: "1 pod", "2 pods".
func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprint(n, " ", many)
}
