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
	// nodeQuarantine is how long a node must be missing before its pods are given up.
	nodeQuarantine = 40 * time.Second
	// TerminatedPods is how many pods that have ended are kept by default.
	TerminatedPods = 12500
	podsAtOnce     = 20
)

// Pods deletes pods that nobody else will: those of nodes that are gone or out of service, those that were deleted before they
// had a node, and of those that have ended the oldest, beyond a number that is kept. Zero keeps all of them.
func Pods(keepTerminated int) controller.Definition {
	return controller.Definition{
		Name: "pod-garbage-collector-controller", Aliases: []string{"podgc"}, Queue: "pod_garbage_collector",
		New: func(s *controller.Setup) (controller.Syncer, error) {
			c := &podCleaner{
				setup: s, keep: keepTerminated, missing: map[string]time.Time{},
				pods: client.InformerFor[*corev1.Pod](s.Informers), nodes: client.InformerFor[*corev1.Node](s.Informers),
			}
			return periodically(s, podCheckPeriod, c.clean), nil
		},
	}
}

type podCleaner struct {
	setup   *controller.Setup
	keep    int
	pods    client.Informer[*corev1.Pod]
	nodes   client.Informer[*corev1.Node]
	missing map[string]time.Time // nodes that pods name and that are not there, since when
}

func (c *podCleaner) clean(ctx context.Context, key controller.Key) error {
	v := podsView{pods: c.pods.List("", nil), nodes: map[string]*corev1.Node{}, keep: c.keep}
	for _, node := range c.nodes.List("", nil) {
		v.nodes[node.Name] = node
	}
	var unclear error
	v.gone, unclear = c.goneNodes(ctx, v, time.Now())
	var group errgroup.Group
	group.SetLimit(podsAtOnce)
	doomed := v.doomed()
	failures := make([]error, len(doomed))
	for i, d := range doomed {
		group.Go(func() error {
			failures[i] = c.setup.Apply(ctx, key, d.plan())
			return nil
		})
	}
	_ = group.Wait() // the failures are kept
	return errors.Join(append(failures, unclear)...)
}

// goneNodes are nodes that have been missing for long enough, also for the server itself. One that cannot be asked for does not save the
// pods of others.
func (c *podCleaner) goneNodes(ctx context.Context, v podsView, now time.Time) (map[string]bool, error) {
	named := map[string]bool{}
	for _, pod := range v.pods {
		if name := pod.Spec.NodeName; name != "" && v.nodes[name] == nil {
			named[name] = true
			if c.missing[name].IsZero() {
				c.missing[name] = now
			}
		}
	}
	gone := map[string]bool{}
	var failures []error
	for name, since := range c.missing {
		if !named[name] {
			delete(c.missing, name)
			continue
		}
		if now.Sub(since) < nodeQuarantine {
			continue
		}
		_, err := client.For[*corev1.Node](c.setup.Client).Get(ctx, "", name)
		if err != nil && !apierrors.IsNotFound(err) {
			failures = append(failures, fmt.Errorf("look for node %s: %w", name, err))
			continue
		}
		gone[name] = err != nil
	}
	return gone, errors.Join(failures...)
}

// podsView is what decides which pods go.
type podsView struct {
	pods  []*corev1.Pod
	nodes map[string]*corev1.Node
	gone  map[string]bool
	keep  int
}

// doomedPod is a pod that must go.
type doomedPod struct {
	pod       *corev1.Pod
	condition *corev1.PodCondition // why, where users want to know
}

// doomed are the pods that must go, each once.
func (v podsView) doomed() []doomedPod {
	var all []doomedPod
	var ended []*corev1.Pod
	for _, pod := range v.pods {
		if podstate.IsTerminal(pod) {
			ended = append(ended, pod)
		}
		node := v.nodes[pod.Spec.NodeName]
		switch {
		case v.gone[pod.Spec.NodeName]:
			all = append(all, doomedPod{pod, &corev1.PodCondition{
				Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "DeletionByPodGC", Message: "PodGC: node no longer exists",
				ObservedGeneration: pod.Generation,
			}})
		case pod.DeletionTimestamp != nil && (pod.Spec.NodeName == "" || node != nil && outOfService(node)):
			all = append(all, doomedPod{pod, nil})
		}
	}
	if v.keep <= 0 || len(ended) <= v.keep {
		return all
	}
	// Evicted ones first, then the oldest.
	slices.SortFunc(ended, func(a, b *corev1.Pod) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	for _, pod := range ended[:len(ended)-v.keep] {
		if !slices.ContainsFunc(all, func(d doomedPod) bool { return d.pod == pod }) {
			all = append(all, doomedPod{pod, nil})
		}
	}
	return all
}

func rank(pod *corev1.Pod) int {
	if pod.Status.Phase == corev1.PodFailed && pod.Status.Reason == "Evicted" {
		return 0
	}
	return 1
}

// outOfService: an administrator says that nothing runs on the node any more.
func outOfService(node *corev1.Node) bool {
	tainted := slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeOutOfService })
	return tainted && !slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// plan marks a pod failed, if it has not ended, and deletes it at once: nobody is there to end it.
func (d doomedPod) plan() controller.Plan {
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
			panic(err) // strings and conditions can be written
		}
		plan.AddStep(controller.Write{Verb: controller.PatchStatus, Object: d.pod, PatchType: client.StrategicPatch, Patch: patch}.
			Ignoring(metav1.StatusReasonNotFound))
	}
	deletion := controller.Deleting(d.pod)
	now := int64(0)
	deletion.DeleteOptions.GracePeriodSeconds = &now
	plan.AddStep(deletion)
	return plan
}
