package resourceclaim

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/client"
	"skiff/internal/controller"
)

// ruleStatusPeriod is the shortest time between two updates of the status of a rule whose spec did not change.
const ruleStatusPeriod = 10 * time.Second

// ruleView is what the status of a rule is computed from.
type ruleView struct {
	rule *resourceapi.DeviceTaintRule
	// publishedDevices and allocatedDevices are the numbers of devices that the rule selects. They are counted for the effect None only.
	publishedDevices, allocatedDevices int
	// pods is the number of pods that the rule evicts, or would evict if its effect is None, namespaces that of their namespaces.
	pods, namespaces int
	// evicted is the number of pods evicted because of the rule since the controller started.
	evicted int
	now     time.Time
}

// syncRule updates the status of a rule: how many pods are pending eviction, or would be evicted.
func (c *taintEviction) syncRule(ctx context.Context, key controller.Key, name string) error {
	rule, ok := c.rules.Get("", name)
	if !ok {
		return nil
	}
	now := time.Now()
	if wait := untilNextStatus(rule, now); wait > 0 {
		c.setup.EnqueueAfter(key, wait)
		return nil
	}
	condition := c.observeRule(rule, now).condition()
	if condition == nil {
		return nil
	}
	// Marshalling conditions and strings cannot fail.
	patch, _ := json.Marshal(map[string]any{
		"apiVersion": resourceapi.SchemeGroupVersion.String(), "kind": "DeviceTaintRule", "metadata": map[string]any{"name": rule.Name, "uid": rule.UID},
		"status": map[string]any{"conditions": []metav1.Condition{*condition}},
	})
	written, err := client.For[*resourceapi.DeviceTaintRule](c.setup.Client).Patch(ctx, "", rule.Name, client.RawPatch(client.ApplyPatch, patch),
		client.WriteOptions{Subresource: "status", FieldManager: taintEvictionName, Force: true})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("add condition to DeviceTaintRule status: %w", err)
	}
	c.setup.RecordWrite(key, written)
	return nil
}

// untilNextStatus returns how long the status of a rule must not be updated.
func untilNextStatus(rule *resourceapi.DeviceTaintRule, now time.Time) time.Duration {
	old := meta.FindStatusCondition(rule.Status.Conditions, resourceapi.DeviceTaintConditionEvictionInProgress)
	if old == nil || old.ObservedGeneration != rule.Generation {
		return 0
	}
	return max(0, ruleStatusPeriod-now.Sub(old.LastTransitionTime.Time))
}

// observeRule counts what a rule affects.
func (c *taintEviction) observeRule(rule *resourceapi.DeviceTaintRule, now time.Time) ruleView {
	v := ruleView{rule: rule, now: now}
	c.mu.Lock()
	v.evicted = c.evicted[rule.UID]
	c.mu.Unlock()
	switch rule.Spec.Taint.Effect {
	case resourceapi.DeviceTaintEffectNoExecute:
		v.pods, v.namespaces = c.countPods(rule, rule)
	case resourceapi.DeviceTaintEffectNone:
		evicting := rule.DeepCopy()
		evicting.Spec.Taint.Effect = resourceapi.DeviceTaintEffectNoExecute
		v.pods, v.namespaces = c.countPods(rule, evicting)
		v.publishedDevices = c.countPublished(rule)
		for _, claim := range c.matchingClaims(rule) {
			for _, d := range allocatedDevices(claim) {
				if selects(rule, d.Driver, d.Pool, d.Device) {
					v.allocatedDevices++
				}
			}
		}
	}
	return v
}

// countPods counts the pods that are to be evicted because of a rule, which evicting is or stands for.
func (c *taintEviction) countPods(rule, evicting *resourceapi.DeviceTaintRule) (pods, namespaces int) {
	counted, inNamespaces := map[types.UID]bool{}, map[string]bool{}
	for _, claim := range c.matchingClaims(rule) {
		for _, pod := range c.podsOf(claim) {
			if counted[pod.UID] || pod.DeletionTimestamp != nil {
				continue
			}
			if due := c.evictionOf(pod, []*resourceapi.DeviceTaintRule{evicting}); due != nil && len(due.rules) > 0 {
				counted[pod.UID], inNamespaces[pod.Namespace] = true, true
			}
		}
	}
	return len(counted), len(inNamespaces)
}

// countPublished counts the devices in ResourceSlices that a rule selects. Slices of older generations of a pool do not count.
func (c *taintEviction) countPublished(rule *resourceapi.DeviceTaintRule) (n int) {
	newest := map[string]int64{}
	all := c.slices.List("", labels.Everything())
	for _, slice := range all {
		pool := slice.Spec.Driver + "/" + slice.Spec.Pool.Name
		if generation, known := newest[pool]; !known || slice.Spec.Pool.Generation > generation {
			newest[pool] = slice.Spec.Pool.Generation
		}
	}
	for _, slice := range all {
		if slice.Spec.Pool.Generation != newest[slice.Spec.Driver+"/"+slice.Spec.Pool.Name] {
			continue
		}
		for i := range slice.Spec.Devices {
			if selects(rule, slice.Spec.Driver, slice.Spec.Pool.Name, slice.Spec.Devices[i].Name) {
				n++
			}
		}
	}
	return n
}

// condition returns the condition EvictionInProgress, or nil if the rule has it already. Its transition time is that of any change, so that
// updates can be spaced.
func (v ruleView) condition() *metav1.Condition {
	condition := metav1.Condition{Type: resourceapi.DeviceTaintConditionEvictionInProgress, Status: metav1.ConditionFalse, ObservedGeneration: v.rule.Generation}
	namespaces := plural(v.namespaces, "namespace", "different namespaces")
	switch v.rule.Spec.Taint.Effect {
	case resourceapi.DeviceTaintEffectNoExecute:
		switch {
		case v.pods > 0:
			condition.Status, condition.Reason = metav1.ConditionTrue, "PodsPendingEviction"
			condition.Message = plural(v.pods, "pod needs", "pods need") + " to be evicted in " + namespaces + "."
		case v.evicted > 0:
			condition.Reason = "Completed"
		default:
			condition.Reason = "NotStarted"
		}
	case resourceapi.DeviceTaintEffectNone:
		condition.Reason = "NoEffect"
		condition.Message = fmt.Sprintf("%s selected. %s selected. %s would be evicted in %s if the effect was NoExecute. "+
			"This information will not be updated again. Recreate the DeviceTaintRule to trigger an update.",
			plural(v.publishedDevices, "published device", "published devices"), plural(v.allocatedDevices, "allocated device", "allocated devices"), plural(v.pods, "pod", "pods"), namespaces)
	default:
		condition.Reason, condition.Message = "OtherEffect", "Eviction only happens for the NoExecute effect."
	}
	if v.evicted > 0 {
		if condition.Message != "" {
			condition.Message += " "
		}
		condition.Message += plural(v.evicted, "pod", "pods") + " evicted since starting the controller."
	}
	if old := meta.FindStatusCondition(v.rule.Status.Conditions, condition.Type); old != nil {
		condition.LastTransitionTime = old.LastTransitionTime
		if *old == condition {
			return nil
		}
	}
	condition.LastTransitionTime = metav1.NewTime(v.now)
	return &condition
}
