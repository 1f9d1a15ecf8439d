package e2e

import (
	"context"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"skiff/test/cluster"
)

// waitFor waits until a condition holds.
func waitFor(ctx context.Context, t *testing.T, what string, condition func() (bool, error)) {
	t.Helper()
	for {
		ok, err := condition()
		if ok && err == nil {
			return
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			t.Fatalf("%s: %v", what, err)
		}
	}
}

// podsByNode counts the running pods of the deployment by node.
func podsByNode(ctx context.Context, set kubernetes.Interface) (map[string]int, error) {
	pods, err := set.CoreV1().Pods("default").List(ctx, metav1.ListOptions{LabelSelector: "app=web"})
	if err != nil {
		return nil, err
	}
	count := map[string]int{}
	for i := range pods.Items {
		if pod := &pods.Items[i]; pod.Status.Phase == corev1.PodRunning && pod.DeletionTimestamp == nil {
			count[pod.Spec.NodeName]++
		}
	}
	return count, nil
}

// A node is drained within its pod disruption budget, its pods run elsewhere, and it is removed when it has stopped.
func TestNodeDrainAndRemove(t *testing.T) {
	t.Parallel()
	c, err := cluster.Skiff(t.TempDir(), "--without=")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Stop() })
	nodes, err := c.Hollow(2)
	if err != nil {
		t.Fatal(err)
	}
	_, set := upstreamClient(t, c)
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	labels := map[string]string{"app": "web"}
	spread := []corev1.TopologySpreadConstraint{{
		MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.ScheduleAnyway, LabelSelector: &metav1.LabelSelector{MatchLabels: labels},
	}}
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: appsv1.DeploymentSpec{
		Replicas: ptr.To[int32](4), Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "c", Image: "i"}}, TopologySpreadConstraints: spread,
		}},
	}}
	waitFor(ctx, t, "two nodes", func() (bool, error) {
		found, err := set.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		return err == nil && len(found.Items) == 2, err
	})
	if _, err := set.AppsV1().Deployments("default").Create(ctx, deployment, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	most := intstr.FromInt32(1)
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: policyv1.PodDisruptionBudgetSpec{
		MaxUnavailable: &most, Selector: &metav1.LabelSelector{MatchLabels: labels},
	}}
	if _, err := set.PolicyV1().PodDisruptionBudgets("default").Create(ctx, budget, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	waitFor(ctx, t, "pods on both nodes", func() (bool, error) {
		count, err := podsByNode(ctx, set)
		return count["hollow-0"] == 2 && count["hollow-1"] == 2, err
	})
	bare := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "bare"}, Spec: corev1.PodSpec{NodeName: "hollow-0", Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	if _, err := set.CoreV1().Pods("default").Create(ctx, bare, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}

	out, err := runSkiff(t, "node", "drain", "hollow-0", "--kubeconfig", c.Kubeconfig)
	if err == nil || !strings.Contains(out, "default/bare: no controller replaces it (--force)") {
		t.Errorf("a drain with a pod that would be lost: %v\n%s", err, out)
	}
	if node, err := set.CoreV1().Nodes().Get(ctx, "hollow-0", metav1.GetOptions{}); err != nil || node.Spec.Unschedulable {
		t.Errorf("the refused drain has changed the node: %v, %v", node.Spec, err)
	}
	out, err = runSkiff(t, "node", "drain", "hollow-0", "--force", "--kubeconfig", c.Kubeconfig)
	if err != nil || strings.Count(out, "evicting pod default/web-") != 2 || !strings.Contains(out, "node hollow-0 is drained") {
		t.Fatalf("skiff node drain: %v\n%s", err, out)
	}
	waitFor(ctx, t, "all pods on the other node", func() (bool, error) {
		count, err := podsByNode(ctx, set)
		return count["hollow-0"] == 0 && count["hollow-1"] == 4, err
	})

	out, err = runSkiff(t, "node", "remove", "hollow-0", "--kubeconfig", c.Kubeconfig)
	if err == nil || !strings.Contains(out, "node hollow-0 is ready, and its kubelet would register it again") {
		t.Errorf("the removal of a node that runs: %v\n%s", err, out)
	}
	nodes.Stop()
	if out, err = runSkiff(t, "node", "remove", "hollow-0", "--force", "--kubeconfig", c.Kubeconfig); err != nil || out != "node hollow-0 is removed\n" {
		t.Errorf("skiff node remove: %v\n%s", err, out)
	}
	if _, err := set.CoreV1().Nodes().Get(ctx, "hollow-0", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the node is left: %v", err)
	}
	if out, err := runSkiff(t, "node", "remove", "hollow-0", "--kubeconfig", c.Kubeconfig); err == nil || !strings.Contains(out, "not found") {
		t.Errorf("a node that does not exist: %v\n%s", err, out)
	}
}
