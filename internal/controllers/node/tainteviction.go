package node

import (
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corehelpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"

	"skiff/internal/client"
	"skiff/internal/controller"
)

// TaintEviction takes pods from nodes with a NoExecute taint that they do not tolerate, or no longer.
var TaintEviction = controller.Definition{
	Name: "taint-eviction-controller", Queue: "noexec_taint_pod", Workers: 8,
	New: func(s *controller.Setup) (controller.Syncer, error) {
		c := &taintEviction{
			pods: client.InformerFor[*corev1.Pod](s.Informers), nodes: client.InformerFor[*corev1.Node](s.Informers),
			due: map[types.UID]time.Time{}, uids: map[controller.Key]types.UID{},
		}
		if err := indexPods(c.pods); err != nil {
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
		if err := c.pods.Handle(bound, changed, bound); err != nil {
			return nil, fmt.Errorf("watch pods: %w", err)
		}
		tainted := func(node *corev1.Node) {
			for _, pod := range podsOn(c.pods, node.Name) {
				s.Enqueue(controller.KeyOf(pod))
			}
		}
		added := func(node *corev1.Node) {
			if len(driving(node)) > 0 {
				tainted(node)
			}
		}
		nodeChanged := func(old, node *corev1.Node) {
			if !apiequality.Semantic.DeepEqual(driving(old), driving(node)) {
				tainted(node)
			}
		}
		if err := c.nodes.Handle(added, nodeChanged, nil); err != nil {
			return nil, fmt.Errorf("watch nodes: %w", err)
		}
		return controller.Planned(s, c), nil
	},
}

// driving are the taints of a node that drive pods off it.
func driving(node *corev1.Node) (taints []corev1.Taint) {
	for _, t := range node.Spec.Taints {
		if t.Effect == corev1.TaintEffectNoExecute {
			taints = append(taints, t)
		}
	}
	return taints
}

type taintEviction struct {
	pods  client.Informer[*corev1.Pod]
	nodes client.Informer[*corev1.Node]

	mu  sync.Mutex
	due map[types.UID]time.Time // when pods go that tolerate their node for a while
	// uids are those of the pods in due, by key: when a pod is gone, only its key is known.
	uids map[controller.Key]types.UID
}

// evictionView is what decides about one pod.
type evictionView struct {
	pod    *corev1.Pod
	taints []corev1.Taint
	due    time.Time // zero: it was not to go
	now    time.Time
}

// Observe gathers a pod, the taints of its node, and what was decided about it before.
func (c *taintEviction) Observe(key controller.Key) (evictionView, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	pod, ok := c.pods.Get(key.Namespace, key.Name)
	if uid, known := c.uids[key]; known && (!ok || pod.UID != uid) {
		delete(c.due, uid)
		delete(c.uids, key)
	}
	if !ok || pod.DeletionTimestamp != nil || pod.Spec.NodeName == "" {
		return evictionView{}, false
	}
	v := evictionView{pod: pod, due: c.due[pod.UID], now: time.Now()}
	node, ok := c.nodes.Get("", pod.Spec.NodeName)
	if !ok {
		return evictionView{}, false // what is on a node that is gone is the garbage collector's
	}
	v.taints = driving(node)
	return v, true
}

// Reconcile decides and remembers when the pod is to go.
func (c *taintEviction) Reconcile(v evictionView) controller.Plan {
	plan, due := v.reconcile()
	c.mu.Lock()
	defer c.mu.Unlock()
	key := controller.KeyOf(v.pod)
	if due.IsZero() {
		delete(c.due, v.pod.UID)
		delete(c.uids, key)
	} else {
		c.due[v.pod.UID], c.uids[key] = due, v.pod.UID
	}
	return plan
}

// reconcile returns what to do, and when the pod is to go if not now. A pod that was given a time keeps it, however the taints change,
// as long as some of them would drive it off.
func (v evictionView) reconcile() (plan controller.Plan, due time.Time) {
	patience, forever := v.patience()
	if forever {
		if !v.due.IsZero() {
			plan.Events = append(plan.Events, v.event("Cancelling deletion of Pod "))
		}
		return plan, time.Time{}
	}
	due = v.due
	if patience == 0 || due.IsZero() {
		due = v.now.Add(patience)
	}
	if wait := due.Sub(v.now); wait > 0 {
		plan.Again(wait)
		return plan, due
	}
	plan.Events = append(plan.Events, v.event("Marking for deletion Pod "))
	if w, ok := v.mark(); ok {
		plan.Then(w)
	}
	plan.Then(controller.Deleting(v.pod))
	return plan, due
}

func (v evictionView) event(message string) controller.Event {
	return controller.Event{About: v.pod, Type: corev1.EventTypeNormal, Reason: "TaintManagerEviction", Message: message + v.pod.Namespace + "/" + v.pod.Name}
}

// patience is how long the pod tolerates its node from when it is first asked.
func (v evictionView) patience() (time.Duration, bool) {
	var least *int64
	for i := range v.taints {
		j := slices.IndexFunc(v.pod.Spec.Tolerations, func(t corev1.Toleration) bool {
			return corehelpers.TolerationsTolerateTaint(klog.Background(), []corev1.Toleration{t}, &v.taints[i], true)
		})
		if j < 0 {
			return 0, false
		}
		if seconds := v.pod.Spec.Tolerations[j].TolerationSeconds; seconds != nil && (least == nil || *seconds < *least) {
			least = seconds
		}
	}
	if least == nil {
		return 0, true
	}
	return time.Duration(max(0, *least)) * time.Second, false
}

// mark says in the pod's status why it goes.
func (v evictionView) mark() (controller.Write, bool) {
	c := corev1.PodCondition{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "DeletionByTaintManager",
		Message: "Taint manager: deleting due to NoExecute taint", LastTransitionTime: metav1.NewTime(v.now), ObservedGeneration: v.pod.Generation,
	}
	if _, changes := setPodCondition(v.pod.Status.Conditions, c); !changes {
		return controller.Write{}, false
	}
	// Conditions and strings always encode.
	patch, _ := json.Marshal(map[string]any{"metadata": map[string]any{"uid": v.pod.UID}, "status": map[string]any{"conditions": []corev1.PodCondition{c}}})
	w := controller.Patching(v.pod, client.StrategicPatch, patch).Tolerating(metav1.StatusReasonNotFound)
	w.Verb = controller.PatchStatus
	return w, true
}
