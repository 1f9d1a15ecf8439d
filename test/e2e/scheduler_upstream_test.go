package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientset "k8s.io/client-go/kubernetes"

	"skiff/test/cluster"
)

// TestSkiffSchedulesForUpstream runs skiff's scheduler and hollow nodes with upstream's API server: pods get nodes and run, and an
// unschedulable pod has upstream's message.
func TestSkiffSchedulesForUpstream(t *testing.T) {
	t.Parallel()
	c, err := cluster.UpstreamAPI(t.TempDir(), "", "--disable-admission-plugins=ServiceAccount")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	process, err := c.OwnScheduler("--leader-elect")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Hollow(3, "--cpu=4"); err != nil {
		t.Fatal(err)
	}
	config, err := c.Config()
	if err != nil {
		t.Fatal(err)
	}
	k := clientset.NewForConfigOrDie(config)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	eventually(ctx, t, "the nodes are there", func(ctx context.Context) (bool, error) {
		nodes, err := k.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		return err == nil && len(nodes.Items) == 3, err
	})
	for i := range 12 {
		if _, err := k.CoreV1().Pods("default").Create(ctx, pendingPod(fmt.Sprint("pod-", i), "900m"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := k.CoreV1().Pods("default").Create(ctx, pendingPod("giant", "5"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(ctx, t, "twelve pods run and one does not", func(ctx context.Context) (bool, error) {
		if process.Exited() {
			return false, fmt.Errorf("the scheduler exited:\n%s", process.Log(20))
		}
		pods, err := k.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		running, message := 0, ""
		for _, p := range pods.Items {
			if p.Status.Phase == corev1.PodRunning {
				running++
			}
			for _, c := range p.Status.Conditions {
				if p.Name == "giant" && c.Type == corev1.PodScheduled {
					message = c.Message
				}
			}
		}
		const want = "0/3 nodes are available: 3 Insufficient cpu. preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling."
		return running == 12 && message == want, nil
	})
}
