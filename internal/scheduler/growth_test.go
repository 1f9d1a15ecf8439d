package scheduler

import (
	"context"
	"fmt"
	"testing"

	policyv1 "k8s.io/api/policy/v1"

	"skiff/internal/client"
	"skiff/internal/scheduler/schedulertest"
)

// The objects that are read from informers to schedule a pod, preemption included, do not grow with the cluster.
func TestObjectsReadPerPod(t *testing.T) {
	const small, large = 10, 40
	reads := map[int]int64{}
	for _, n := range []int{small, large} {
		server := newRealServer(t)
		server.node(schedulertest.TestNode("a"))
		for i := range n {
			budget := schedulertest.BudgetFor(0, "app", fmt.Sprint("other", i), func(b *policyv1.PodDisruptionBudget) { b.Name = fmt.Sprint("b", i) })
			if _, err := client.For[*policyv1.PodDisruptionBudget](server.client).Create(context.Background(), budget, writeOptions); err != nil {
				t.Fatal(err)
			}
		}
		_, informers := server.runWithInformers(server.client)
		server.create(schedulertest.TestPod("victim", schedulertest.RequestingCPU("3"), schedulertest.Labelled("app", "web")))
		eventually(t, "the first pod is bound", func() bool { return server.pod("victim").Spec.NodeName == "a" })
		before := informers.ObjectsRead()
		server.createWithPriority(schedulertest.TestPod("urgent", schedulertest.RequestingCPU("3")), 1000)
		eventually(t, "the other pod waits for the victim", func() bool { return server.pod("urgent").Status.NominatedNodeName == "a" })
		reads[n] = int64(informers.ObjectsRead() - before)
	}
	if more := reads[large] - reads[small]; more >= (large-small)*2/3 {
		t.Errorf("%d objects are read with %d budgets, and %d with %d", reads[small], small, reads[large], large)
	}
}
