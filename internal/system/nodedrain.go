package system

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/client"
	"skiff/internal/config"
	"skiff/internal/controllers/identity"
)

// The pauses between two rounds of a drain.
const (
	minDrainPause = 500 * time.Millisecond
	maxDrainPause = 5 * time.Second
)

// drainPlan is what a drain does with the pods of a node.
type drainPlan struct {
	// evict are pods to evict, terminating those that have been evicted or deleted.
	evict, terminating []*corev1.Pod
	// refused says which pods must not be evicted without a flag, and which flag that is.
	refused []string
}

// planDrain decides about the pods of a node as kubectl does. Pods of DaemonSets and static pods stay: their controllers would replace them at once.
func planDrain(pods []*corev1.Pod, c config.NodeCommand) drainPlan {
	var plan drainPlan
	for _, pod := range pods {
		owner := metav1.GetControllerOf(pod)
		_, isStatic := pod.Annotations[corev1.MirrorPodAnnotationKey]
		finished := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
		hasEmptyDir := slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.EmptyDir != nil })
		refuse := func(why string) { plan.refused = append(plan.refused, pod.Namespace+"/"+pod.Name+": "+why) }
		switch {
		case isStatic:
		case pod.DeletionTimestamp != nil:
			plan.terminating = append(plan.terminating, pod)
		case finished:
			plan.evict = append(plan.evict, pod)
		case owner != nil && owner.Kind == "DaemonSet":
		case owner == nil && !c.Force:
			refuse("no controller replaces it (--force)")
		case hasEmptyDir && !c.DeleteEmptyDirData:
			refuse("its emptyDir volume would be lost (--delete-emptydir-data)")
		default:
			plan.evict = append(plan.evict, pod)
		}
	}
	return plan
}

// adminClient connects to the API server as administrator.
func adminClient(dataDir, kubeconfig string) (*client.Client, error) {
	connection, err := adminConnection(dataDir, kubeconfig)
	if err != nil {
		return nil, err
	}
	return newClient(connection)
}

// DrainNode makes a node unschedulable, evicts its pods and waits until they have ended. Pod disruption budgets are respected.
func DrainNode(ctx context.Context, c config.NodeCommand, name string, out io.Writer) error {
	remote, err := adminClient(c.DataDir, c.Kubeconfig)
	if err != nil {
		return err
	}
	if _, err := client.For[*corev1.Node](remote).Get(ctx, "", name); err != nil {
		return fmt.Errorf("drain node %s: %w", name, err)
	}
	d := &drain{config: c, node: name, pods: client.For[*corev1.Pod](remote), out: out, evicted: map[types.UID]bool{}}
	if _, err := d.plan(ctx); err != nil {
		return err
	}
	unschedulable := client.Patch{Type: types.MergePatchType, Data: []byte(`{"spec":{"unschedulable":true}}`)}
	if _, err := client.For[*corev1.Node](remote).Patch(ctx, "", name, unschedulable, client.WriteOptions{}); err != nil {
		return fmt.Errorf("make node %s unschedulable: %w", name, err)
	}
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	if err := d.run(ctx); err != nil {
		return err
	}
	fmt.Fprintf(out, "node %s is drained\n", name)
	return nil
}

// drain evicts the pods of a node in rounds, until none is left.
type drain struct {
	config config.NodeCommand
	node   string
	pods   client.Resource[*corev1.Pod]
	out    io.Writer
	// evicted are the pods whose eviction was reported.
	evicted map[types.UID]bool
	// blocked is why pods could not be evicted in the last round.
	blocked []string
}

// plan decides about the pods that the node has now. Pods that must not be evicted are an error: others may have been created since the last time.
func (d *drain) plan(ctx context.Context) (drainPlan, error) {
	pods, _, err := d.pods.List(ctx, "", client.Selector{Fields: fields.OneTermEqualSelector("spec.nodeName", d.node)})
	if err != nil {
		return drainPlan{}, fmt.Errorf("list the pods of node %s: %w", d.node, err)
	}
	plan := planDrain(pods, d.config)
	if len(plan.refused) > 0 {
		return plan, fmt.Errorf("node %s is not drained, because of pods that must not be evicted:\n  %s", d.node, strings.Join(plan.refused, "\n  "))
	}
	return plan, nil
}

func (d *drain) run(ctx context.Context) error {
	for pause := minDrainPause; ; pause = min(2*pause, maxDrainPause) {
		plan, err := d.plan(ctx)
		if err == nil && len(plan.evict)+len(plan.terminating) == 0 {
			return nil
		}
		if err == nil {
			err = d.evictAll(ctx, plan.evict)
		}
		if err != nil && ctx.Err() == nil {
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return d.timedOut(ctx, plan)
		}
	}
}

// timedOut explains which pods are left.
func (d *drain) timedOut(ctx context.Context, plan drainPlan) error {
	left := slices.Clone(d.blocked)
	for _, pod := range plan.terminating {
		left = append(left, pod.Namespace+"/"+pod.Name+": has not ended yet")
	}
	err := ctx.Err()
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("it took longer than --timeout=%v", d.config.Timeout)
	}
	return fmt.Errorf("drain node %s: %w; left are:\n  %s", d.node, err, strings.Join(left, "\n  "))
}

// evictAll evicts pods. Those that a pod disruption budget protects are tried again in the next round.
func (d *drain) evictAll(ctx context.Context, pods []*corev1.Pod) error {
	d.blocked = nil
	options := &metav1.DeleteOptions{}
	if d.config.GracePeriod >= 0 {
		seconds := int64(d.config.GracePeriod / time.Second)
		options.GracePeriodSeconds = &seconds
	}
	for _, pod := range pods {
		key := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
		options.Preconditions = &metav1.Preconditions{UID: &pod.UID}
		eviction := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}, DeleteOptions: options}
		switch err := d.pods.CreateSubresource(ctx, key, "eviction", eviction, nil); {
		case apierrors.IsNotFound(err), apierrors.IsConflict(err): // it has ended, or was replaced
		case apierrors.IsTooManyRequests(err), apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
			d.blocked = append(d.blocked, key.String()+": "+err.Error())
		case err != nil:
			return fmt.Errorf("evict pod %s: %w", key, err)
		case !d.evicted[pod.UID]:
			d.evicted[pod.UID] = true
			fmt.Fprintf(d.out, "evicting pod %s\n", key)
		}
	}
	return nil
}

// RemoveNode deletes a node whose kubelet has stopped. Its pods are deleted by the garbage collection of pods.
func RemoveNode(ctx context.Context, c config.NodeCommand, name string, out io.Writer) error {
	remote, err := adminClient(c.DataDir, c.Kubeconfig)
	if err != nil {
		return err
	}
	nodes := client.For[*corev1.Node](remote)
	node, err := nodes.Get(ctx, "", name)
	if apierrors.IsNotFound(err) {
		// A host that joined, but was never a node, has the name too.
		forgotten := forgetNodeName(ctx, remote, name)
		if forgotten == nil {
			fmt.Fprintf(out, "the name of node %s is free\n", name)
		}
		if !apierrors.IsNotFound(forgotten) {
			return forgotten
		}
	}
	if err != nil {
		return fmt.Errorf("remove node %s: %w", name, err)
	}
	if isReady(node) && !c.Force {
		return fmt.Errorf("node %s is ready, and its kubelet would register it again: drain it with 'skiff node drain %s' and end it with 'skiff uninstall' on its host, or give --force", name, name)
	}
	if err := nodes.Delete(ctx, "", name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &node.UID}}); err != nil {
		return fmt.Errorf("remove node %s: %w", name, err)
	}
	if err := forgetNodeName(ctx, remote, name); err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	fmt.Fprintf(out, "node %s is removed\n", name)
	return nil
}

// forgetNodeName lets another host join with the name of a node.
func forgetNodeName(ctx context.Context, remote *client.Client, name string) error {
	err := client.For[*corev1.ConfigMap](remote).Delete(ctx, metav1.NamespaceSystem, identity.NodeRecordName(name), metav1.DeleteOptions{})
	if err != nil {
		return fmt.Errorf("free the name of node %s: %w", name, err)
	}
	return nil
}

// isReady reports whether a node's kubelet has reported it ready.
func isReady(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(condition corev1.NodeCondition) bool {
		return condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue
	})
}
