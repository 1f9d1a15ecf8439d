package e2e

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientset "k8s.io/client-go/kubernetes"
)

// TestServersShareScheduling starts two servers on one etcd: the scheduler of one of them is active, and each pod is bound once. It
// is killed while pods are created, and the other takes over: no pod stays pending, none is bound twice, no node has more pods than
// it can run.
func TestServersShareScheduling(t *testing.T) {
	t.Parallel()
	const nodes, podsPerNode, wave = 4, 30, 40
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	servers, clients, holder := twoServers(t, "controllers", "kube-scheduler")
	eventually(ctx, t, "a leader is elected", func(ctx context.Context) (bool, error) { return holder(ctx) != "", nil })
	first := holder(ctx)
	// No controller creates it here. The nodes use the second server.
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "default"}}
	if _, err := clients[1].CoreV1().ServiceAccounts("default").Create(ctx, account, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := servers[1].Hollow(nodes, "--pods="+fmt.Sprint(podsPerNode)); err != nil {
		t.Fatal(err)
	}
	create := func(c clientset.Interface, wave string, from, to int) {
		t.Helper()
		for i := from; i < to; i++ {
			if _, err := c.CoreV1().Pods("default").Create(ctx, pendingPod(fmt.Sprintf("%s-%d", wave, i), "10m"), metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	// bound counts the pods that have a node, in total and by node.
	bound := func(ctx context.Context) (all int, byNode map[string]int, err error) {
		pods, err := clients[1].CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
		if err != nil {
			return 0, nil, err
		}
		byNode = map[string]int{}
		for _, p := range pods.Items {
			if p.Spec.NodeName != "" {
				all++
				byNode[p.Spec.NodeName]++
			}
		}
		return all, byNode, nil
	}
	create(clients[0], "one", 0, wave)
	eventually(ctx, t, "the first wave is bound", func(ctx context.Context) (bool, error) {
		all, _, err := bound(ctx)
		return all == wave, err
	})
	create(clients[0], "two", 0, wave/2)
	// The first server started before the second: it is the leader.
	servers[0].Server[0].Kill()
	create(clients[1], "two", wave/2, wave)
	eventually(ctx, t, "the other server is elected and binds the second wave", func(ctx context.Context) (bool, error) {
		all, _, err := bound(ctx)
		return all == 2*wave, err
	})
	if now := holder(ctx); now == first || now == "" {
		t.Errorf("the lease is held by %q, and was by %q", now, first)
	}
	// The nodes can take only 40 more.
	create(clients[1], "three", 0, 2*wave)
	eventually(ctx, t, "the nodes are full", func(ctx context.Context) (bool, error) {
		all, _, err := bound(ctx)
		return all == nodes*podsPerNode, err
	})
	_, byNode, err := bound(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for node, pods := range byNode {
		if pods > podsPerNode {
			t.Errorf("%d pods are on %s, which can run %d", pods, node, podsPerNode)
		}
	}
	// The scheduler that binds a pod records an event. The first server may have been killed before it could.
	events, err := clients[1].CoreV1().Events("default").List(ctx, metav1.ListOptions{FieldSelector: "reason=Scheduled"})
	if err != nil {
		t.Fatal(err)
	}
	var boundPods []string
	for _, e := range events.Items {
		boundPods = append(boundPods, e.InvolvedObject.Name)
	}
	slices.Sort(boundPods)
	if len(boundPods) != len(slices.Compact(slices.Clone(boundPods))) {
		t.Errorf("some pod was bound twice: %v", boundPods)
	}
}
