package e2e

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"

	"skiff/internal/api"
	"skiff/internal/client"
	"skiff/internal/hollow"
	"skiff/internal/scheduler"
	"skiff/test/cluster"
)

// schedulerCluster is skiff's API server as a process, with skiff's scheduler and hollow nodes in the test process.
type schedulerCluster struct {
	client    *client.Client
	pods      client.Resource[*corev1.Pod]
	scheduler *scheduler.Scheduler
}

func startSchedulerCluster(t testing.TB, nodes hollow.Config) *schedulerCluster {
	t.Helper()
	c, err := cluster.Skiff(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	config, err := c.Config()
	if err != nil {
		t.Fatal(err)
	}
	cl, err := client.New(config, scheme.Scheme, api.Kinds(api.Settings{}))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	t.Cleanup(func() { cancel(); running.Wait() })
	informers, events := client.NewInformers(cl), client.NewEventBroadcaster(cl)
	s, err := scheduler.New(scheduler.Config{Client: cl, Informers: informers, Events: events})
	if err != nil {
		t.Fatal(err)
	}
	nodes.Client = cl
	for _, run := range []func(context.Context) error{
		informers.Run, events.Run, s.Run, func(ctx context.Context) error { return hollow.Run(ctx, nodes) },
	} {
		running.Go(func() {
			if err := run(ctx); err != nil && ctx.Err() == nil {
				t.Error(err)
			}
		})
	}
	if err := informers.WaitForSync(ctx); err != nil {
		t.Fatal(err)
	}
	// No controller creates it here.
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "default"}}
	if _, err := client.For[*corev1.ServiceAccount](cl).Create(ctx, account, client.WriteOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	return &schedulerCluster{client: cl, pods: client.For[*corev1.Pod](cl), scheduler: s}
}

func pendingPod(name, cpu string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{"app": "load"}},
		Spec: corev1.PodSpec{TerminationGracePeriodSeconds: ptr.To[int64](1), AutomountServiceAccountToken: ptr.To(false), Containers: []corev1.Container{{
			Name: "c", Image: "pause", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}},
		}}},
	}
}

func (w *schedulerCluster) until(t testing.TB, what string, done func() (bool, error)) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, 2*time.Minute, true, func(context.Context) (bool, error) { return done() })
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

func (w *schedulerCluster) phases(t testing.TB) (running int, byNode map[string]int) {
	t.Helper()
	all, _, err := w.pods.List(t.Context(), "default", client.Selector{})
	if err != nil {
		t.Fatal(err)
	}
	byNode = map[string]int{}
	for _, p := range all {
		if p.Status.Phase == corev1.PodRunning {
			running++
		}
		if p.Spec.NodeName != "" {
			byNode[p.Spec.NodeName]++
		}
	}
	return running, byNode
}

// TestSchedulerOnHollowNodes schedules pods to hollow nodes through a real server: they run, spread, stay pending with a reason,
// preempt, and are deleted.
func TestSchedulerOnHollowNodes(t *testing.T) {
	t.Parallel()
	const nodes, load = 20, 200
	w := startSchedulerCluster(t, hollow.Config{Nodes: nodes, CPU: "4", Zones: 3})
	ctx := t.Context()
	began := time.Now()
	for i := range load {
		if _, err := w.pods.Create(ctx, pendingPod(fmt.Sprintf("load-%03d", i), "300m"), client.WriteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	w.until(t, "all pods run", func() (bool, error) { running, _ := w.phases(t); return running == load, nil })
	t.Logf("%d pods run after %v", load, time.Since(began))
	_, byNode := w.phases(t)
	if len(byNode) != nodes {
		t.Errorf("pods are on %d of %d nodes", len(byNode), nodes)
	}
	for node, n := range byNode {
		if n != load/nodes {
			t.Errorf("node %s has %d pods, want %d", node, n, load/nodes)
		}
	}

	t.Run("too big", func(t *testing.T) {
		if _, err := w.pods.Create(ctx, pendingPod("giant", "5"), client.WriteOptions{}); err != nil {
			t.Fatal(err)
		}
		want := "0/20 nodes are available: 20 Insufficient cpu. preemption: 0/20 nodes are available: 20 Preemption is not helpful for scheduling."
		w.until(t, "the giant pod's condition has the reason", func() (bool, error) {
			p, err := w.pods.Get(ctx, "default", "giant")
			if err != nil {
				return false, err
			}
			for _, c := range p.Status.Conditions {
				if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
					if c.Message != want || c.Reason != corev1.PodReasonUnschedulable {
						t.Fatalf("condition says %s: %q, want %q", c.Reason, c.Message, want)
					}
					return true, nil
				}
			}
			return false, nil
		})
		e, err := w.scheduler.Why("default", "giant")
		if err != nil || len(e.Verdicts) != nodes || len(e.Changes) == 0 {
			t.Errorf("Why returns %+v, %v", e, err)
		}
		if err := w.pods.Delete(ctx, "default", "giant", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	})

	t.Run("preemption", func(t *testing.T) {
		classes := client.For[*schedulingv1.PriorityClass](w.client)
		if _, err := classes.Create(ctx, &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "urgent"}, Value: 1000}, client.WriteOptions{}); err != nil {
			t.Fatal(err)
		}
		urgent := pendingPod("urgent", "1500m")
		urgent.Spec.PriorityClassName = "urgent"
		if _, err := w.pods.Create(ctx, urgent, client.WriteOptions{}); err != nil {
			t.Fatal(err)
		}
		w.until(t, "the urgent pod runs", func() (bool, error) {
			p, err := w.pods.Get(ctx, "default", "urgent")
			return err == nil && p.Status.Phase == corev1.PodRunning, err
		})
		// 1000m were free on every node: exactly two pods of 300m had to be preempted.
		w.until(t, "two pods are gone", func() (bool, error) { running, _ := w.phases(t); return running == load-2+1, nil })
	})

	all, _, err := w.pods.List(ctx, "default", client.Selector{})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		if err := w.pods.Delete(ctx, "default", p.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	w.until(t, "all pods are gone", func() (bool, error) {
		left, _, err := w.pods.List(ctx, "default", client.Selector{})
		return len(left) == 0, err
	})
}
