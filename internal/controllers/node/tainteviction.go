package node

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"skiff/internal/client"
	"skiff/internal/controller"
)

// TaintEviction deletes pods from nodes with NoExecute taints that they do not, or no longer, tolerate.
var TaintEviction = controller.Definition{
	Name: "taint-eviction-controller", Queue: "noexec_taint_pod", Workers: 8,
	New: func(s *controller.Setup) (controller.Syncer, error) {
		c := &taintEviction{
			setup: s, pods: client.InformerFor[*corev1.Pod](s.Informers), nodes: client.InformerFor[*corev1.Node](s.Informers),
			scheduled: map[controller.Key]scheduledEviction{},
		}
		if err := controller.IndexPodsByNode(c.pods); err != nil {
			return nil, err
		}
		bound := func(pod *corev1.Pod) {
			if pod.Spec.NodeName != "" {
				s.Enqueue(controller.KeyOf(pod))
			}
		}
		changed := func(old, pod *corev1.Pod) {
			if old.Spec.NodeName != pod.Spec.NodeName || !apiequality.Semantic.DeepEqual(old.Spec.Tolerations, pod.Spec.Tolerations) {
				bound(pod)
			}
		}
		if err := c.pods.AddEventHandler(bound, changed, bound); err != nil {
			return nil, fmt.Errorf("watch pods: %w", err)
		}
		tainted := func(node *corev1.Node) {
			for _, pod := range controller.PodsOnNode(c.pods, node.Name) {
				s.Enqueue(controller.KeyOf(pod))
			}
		}
		added := func(node *corev1.Node) {
			if len(noExecuteTaints(node)) > 0 {
				tainted(node)
			}
		}
		nodeChanged := func(old, node *corev1.Node) {
			if !apiequality.Semantic.DeepEqual(noExecuteTaints(old), noExecuteTaints(node)) {
				tainted(node)
			}
		}
		if err := c.nodes.AddEventHandler(added, nodeChanged, nil); err != nil {
			return nil, fmt.Errorf("watch nodes: %w", err)
		}
		return controller.NewSyncer(s, c), nil
	},
}

// noExecuteTaints returns the NoExecute taints of a node.
func noExecuteTaints(node *corev1.Node) (taints []corev1.Taint) {
	for _, t := range node.Spec.Taints {
		if t.Effect == corev1.TaintEffectNoExecute {
			taints = append(taints, t)
		}
	}
	return taints
}

type taintEviction struct {
	setup *controller.Setup
	pods  client.Informer[*corev1.Pod]
	nodes client.Informer[*corev1.Node]

	mu        sync.Mutex
	scheduled map[controller.Key]scheduledEviction // pods that tolerate their node for a limited time
}

// scheduledEviction is the pending eviction of a pod.
type scheduledEviction struct {
	uid types.UID
	at  time.Time
}

// evictionView is the observed state of one pod.
type evictionView struct {
	pod         *corev1.Pod
	taints      []corev1.Taint
	scheduledAt time.Time // zero if no eviction is scheduled
	now         time.Time
}

// Observe gathers a pod, the taints of its node, and its scheduled eviction.
func (c *taintEviction) Observe(key controller.Key) (evictionView, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	pod, ok := c.pods.Get(key.Namespace, key.Name)
	pending, isScheduled := c.scheduled[key]
	if isScheduled && (!ok || pod.UID != pending.uid) {
		delete(c.scheduled, key)
		deleted := evictionView{pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name, UID: pending.uid}}, scheduledAt: pending.at, now: now}
		if deleted.isPending() {
			e := deleted.cancelEvent()
			c.setup.Events.Event(e.Object, e.Type, e.Reason, e.Message)
		}
		pending = scheduledEviction{}
	}
	if !ok || pod.Spec.NodeName == "" {
		return evictionView{}, false
	}
	v := evictionView{pod: pod, scheduledAt: pending.at, now: now}
	node, ok := c.nodes.Get("", pod.Spec.NodeName)
	if !ok {
		return evictionView{}, false // the pod garbage collector handles pods of deleted nodes
	}
	v.taints = noExecuteTaints(node)
	return v, true
}

// Reconcile reconciles and updates the scheduled eviction.
func (c *taintEviction) Reconcile(v evictionView) controller.Plan {
	plan, due := v.reconcile()
	c.mu.Lock()
	defer c.mu.Unlock()
	key := controller.KeyOf(v.pod)
	if due.IsZero() {
		delete(c.scheduled, key)
	} else {
		c.scheduled[key] = scheduledEviction{uid: v.pod.UID, at: due}
	}
	return plan
}

// reconcile returns the plan, and the time of the eviction if it is not due yet. A scheduled eviction keeps its time when taints
// change, as long as all taints are tolerated and one of them for a limited time.
func (v evictionView) reconcile() (plan controller.Plan, due time.Time) {
	patience, tolerated := v.minTolerationTime()
	if v.isPending() && (!tolerated || patience == infiniteToleration) {
		plan.Events = append(plan.Events, v.cancelEvent())
	}
	switch {
	case !tolerated:
		due = v.now
	case patience == infiniteToleration:
		return plan, time.Time{}
	case v.scheduledAt.IsZero():
		due = v.now.Add(patience)
	default:
		due = v.scheduledAt
	}
	if due.After(v.now) {
		plan.Requeue(due.Sub(v.now))
		return plan, due
	}
	mark, unmarked := v.markDisruptionTarget()
	deleted := v.pod.DeletionTimestamp != nil
	if deleted && !unmarked {
		return plan, due // already being deleted
	}
	plan.Events = append(plan.Events, v.event("Marking for deletion Pod "))
	if unmarked {
		plan.AddStep(mark)
	}
	if !deleted {
		plan.AddStep(controller.NewDelete(v.pod))
	}
	return plan, due
}

// isPending reports whether the pod has a scheduled eviction in the future.
func (v evictionView) isPending() bool { return v.scheduledAt.After(v.now) }

func (v evictionView) cancelEvent() controller.Event { return v.event("Cancelling deletion of Pod ") }

func (v evictionView) event(message string) controller.Event {
	return controller.Event{Object: v.pod, Type: corev1.EventTypeNormal, Reason: "TaintManagerEviction", Message: message + v.pod.Namespace + "/" + v.pod.Name}
}

// infiniteToleration is the toleration time of a pod that need not be evicted.
const infiniteToleration time.Duration = math.MaxInt64

// minTolerationTime is the time for which the pod tolerates all taints of its node. It is false if a taint is not tolerated.
func (v evictionView) minTolerationTime() (time.Duration, bool) {
	patience := infiniteToleration
	for i := range v.taints {
		j := slices.IndexFunc(v.pod.Spec.Tolerations, func(t corev1.Toleration) bool {
			return t.ToleratesTaint(klog.Background(), &v.taints[i], false)
		})
		if j < 0 {
			return 0, false
		}
		if seconds := v.pod.Spec.Tolerations[j].TolerationSeconds; seconds != nil && *seconds <= int64(infiniteToleration/time.Second) {
			patience = min(patience, time.Duration(max(0, *seconds))*time.Second)
		}
	}
	return patience, true
}

// markDisruptionTarget adds the DisruptionTarget condition.
func (v evictionView) markDisruptionTarget() (controller.Write, bool) {
	c := corev1.PodCondition{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "DeletionByTaintManager",
		Message: "Taint manager: deleting due to NoExecute taint", LastTransitionTime: metav1.NewTime(v.now), ObservedGeneration: v.pod.Generation,
	}
	conditions, changes := setPodCondition(v.pod.Status.Conditions, c)
	if !changes {
		return controller.Write{}, false
	}
	c = conditions[slices.IndexFunc(conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.DisruptionTarget })]
	// Marshalling conditions and strings cannot fail.
	patch, _ := json.Marshal(map[string]any{"metadata": map[string]any{"uid": v.pod.UID}, "status": map[string]any{"conditions": []corev1.PodCondition{c}}})
	w := controller.NewPatch(v.pod, client.StrategicPatch, patch).Ignoring(metav1.StatusReasonNotFound)
	w.Verb = controller.PatchStatus
	return w, true
}
