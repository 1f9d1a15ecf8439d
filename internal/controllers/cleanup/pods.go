package cleanup

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/client"
	"skiff/internal/controller"
	"skiff/internal/podstate"
)

const (
	podCheckPeriod = 20 * time.Second
	// missingNodeQuarantine is the time a node must be missing before its pods are deleted.
	missingNodeQuarantine = 40 * time.Second
	// DefaultTerminatedPods is the default number of terminated pods that are kept.
	DefaultTerminatedPods = 12500
	maxConcurrentDeletes  = 20
)

// Pods deletes pods of nodes that are deleted or out of service, pods deleted before they were scheduled, and the oldest
// terminated pods above keepTerminated. Zero keeps all terminated pods.
func Pods(keepTerminated int) controller.Definition {
	return controller.Definition{
		Name: "pod-garbage-collector-controller", Aliases: []string{"podgc"}, Queue: "pod_garbage_collector",
		New: func(s *controller.Setup) (controller.Syncer, error) {
			c := &podGC{
				setup: s, terminatedThreshold: keepTerminated, missingSince: map[string]time.Time{},
				pods: client.InformerFor[*corev1.Pod](s.Informers), nodes: client.InformerFor[*corev1.Node](s.Informers),
			}
			return periodically(s, podCheckPeriod, c.gc), nil
		},
	}
}

type podGC struct {
	setup               *controller.Setup
	terminatedThreshold int
	pods                client.Informer[*corev1.Pod]
	nodes               client.Informer[*corev1.Node]
	missingSince        map[string]time.Time // nodes that pods refer to and that do not exist
}

func (c *podGC) gc(ctx context.Context, key controller.Key) error {
	v := podsView{pods: c.pods.List("", nil), nodes: map[string]*corev1.Node{}, terminatedThreshold: c.terminatedThreshold}
	for _, node := range c.nodes.List("", nil) {
		v.nodes[node.Name] = node
	}
	var unclear error
	v.deletedNodes, unclear = c.findDeletedNodes(ctx, v, time.Now())
	var group errgroup.Group
	group.SetLimit(maxConcurrentDeletes)
	doomed := v.podsToDelete()
	failures := make([]error, len(doomed))
	for i, d := range doomed {
		group.Go(func() error {
			failures[i] = c.setup.Apply(ctx, key, d.plan())
			return nil
		})
	}
	_ = group.Wait() // errors are in failures
	return errors.Join(append(failures, unclear)...)
}

// findDeletedNodes returns the nodes that have been missing for the quarantine period, confirmed by a live read. A failed read
// does not affect other nodes.
func (c *podGC) findDeletedNodes(ctx context.Context, v podsView, now time.Time) (map[string]bool, error) {
	named := map[string]bool{}
	for _, pod := range v.pods {
		if name := pod.Spec.NodeName; name != "" && v.nodes[name] == nil {
			named[name] = true
			if c.missingSince[name].IsZero() {
				c.missingSince[name] = now
			}
		}
	}
	deleted := map[string]bool{}
	var failures []error
	for name, since := range c.missingSince {
		if !named[name] {
			delete(c.missingSince, name)
			continue
		}
		if now.Sub(since) < missingNodeQuarantine {
			continue
		}
		_, err := client.For[*corev1.Node](c.setup.Client).Get(ctx, "", name)
		if err != nil && !apierrors.IsNotFound(err) {
			failures = append(failures, fmt.Errorf("get node %s: %w", name, err))
			continue
		}
		deleted[name] = err != nil
	}
	return deleted, errors.Join(failures...)
}

// podsView is the observed state of pods and nodes.
type podsView struct {
	pods                []*corev1.Pod
	nodes               map[string]*corev1.Node
	deletedNodes        map[string]bool
	terminatedThreshold int
}

// podDeletion is a pod to delete.
type podDeletion struct {
	pod       *corev1.Pod
	condition *corev1.PodCondition // the DisruptionTarget condition, if any
}

// podsToDelete returns the pods to delete, without duplicates.
func (v podsView) podsToDelete() []podDeletion {
	var all []podDeletion
	var terminated []*corev1.Pod
	for _, pod := range v.pods {
		if podstate.IsTerminal(pod) {
			terminated = append(terminated, pod)
		}
		node := v.nodes[pod.Spec.NodeName]
		switch {
		case v.deletedNodes[pod.Spec.NodeName]:
			all = append(all, podDeletion{pod, &corev1.PodCondition{
				Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "DeletionByPodGC", Message: "PodGC: node no longer exists",
				ObservedGeneration: pod.Generation,
			}})
		case pod.DeletionTimestamp != nil && (pod.Spec.NodeName == "" || node != nil && outOfService(node)):
			all = append(all, podDeletion{pod, nil})
		}
	}
	if v.terminatedThreshold <= 0 || len(terminated) <= v.terminatedThreshold {
		return all
	}
	// Evicted pods first, then the oldest.
	slices.SortFunc(terminated, func(a, b *corev1.Pod) int {
		return cmp.Or(cmp.Compare(evictedFirst(a), evictedFirst(b)), a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	included := map[*corev1.Pod]bool{}
	for _, d := range all {
		included[d.pod] = true
	}
	for _, pod := range terminated[:len(terminated)-v.terminatedThreshold] {
		if !included[pod] {
			all = append(all, podDeletion{pod, nil})
		}
	}
	return all
}

func evictedFirst(pod *corev1.Pod) int {
	if pod.Status.Phase == corev1.PodFailed && pod.Status.Reason == "Evicted" {
		return 0
	}
	return 1
}

// outOfService reports whether a node that is not ready has the out-of-service taint.
func outOfService(node *corev1.Node) bool {
	tainted := slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeOutOfService })
	return tainted && !slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// plan sets the phase of a pod to Failed, unless it is terminal, and deletes it without a grace period: there is no kubelet to
// terminate it.
func (d podDeletion) plan() controller.Plan {
	var plan controller.Plan
	if !podstate.IsTerminal(d.pod) {
		status := map[string]any{"phase": corev1.PodFailed, "observedGeneration": d.pod.Generation}
		if d.condition != nil {
			condition := *d.condition
			condition.LastTransitionTime = metav1.Now()
			for _, had := range d.pod.Status.Conditions {
				if had.Type == condition.Type && had.Status == condition.Status {
					condition.LastTransitionTime = had.LastTransitionTime
				}
			}
			status["conditions"] = []corev1.PodCondition{condition}
		}
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": d.pod.UID}, "status": status})
		if err != nil {
			panic(err) // marshalling strings and conditions cannot fail
		}
		plan.AddStep(controller.Write{Verb: controller.PatchStatus, Object: d.pod, PatchType: client.StrategicPatch, Patch: patch}.
			Ignoring(metav1.StatusReasonNotFound))
	}
	deletion := controller.NewDelete(d.pod)
	now := int64(0)
	deletion.DeleteOptions.GracePeriodSeconds = &now
	plan.AddStep(deletion)
	return plan
}
