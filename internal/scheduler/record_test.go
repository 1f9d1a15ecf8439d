package scheduler

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"skiff/internal/scheduler/decision"
	"skiff/internal/scheduler/schedulertest"
)

// A decision is reported as it was made, however the cluster has changed since, until its record is dropped.
func TestRecords(t *testing.T) {
	withFakeServer(t, nil, func(f *fakeServer) {
		f.addNode(schedulertest.TestNode("a"))
		f.addNode(schedulertest.TestNode("b", schedulertest.NodeHas(corev1.ResourceCPU, "64")))
		f.addPod(schedulertest.TestPod("plain", schedulertest.RequestingCPU("100m")))
		f.addPod(schedulertest.TestPod("friend", schedulertest.RequestingCPU("100m"), schedulertest.Labelled("app", "x"), schedulertest.WithAffinity(corev1.LabelHostname, "app", "x")))
		f.pass(time.Second)
		why := func(name string) *decision.Explanation {
			t.Helper()
			e, err := f.scheduler.Why("default", name)
			if err != nil || e.Node == "" || len(e.Verdicts) == 0 {
				t.Fatalf("%s: %+v, %v", name, e, err)
			}
			return e
		}
		plain, friend := why("plain"), why("friend")
		if plain.Decided == nil || friend.Decided == nil {
			t.Fatal("decisions just made are not on record")
		}
		// What comes later does not change what was said then, but takes the place of decisions with records of their own.
		for i := range 30 {
			f.addPod(schedulertest.TestPod(fmt.Sprint("more-", i), schedulertest.RequestingCPU("100m"), schedulertest.Labelled("app", "y"), schedulertest.WithAffinity(corev1.LabelHostname, "app", "y")))
		}
		f.addNode(schedulertest.TestNode("c"))
		f.pass(time.Second)
		if now := why("plain"); fmt.Sprintf("%+v", now.Verdicts) != fmt.Sprintf("%+v", plain.Verdicts) && now.Decided != nil {
			t.Errorf("the record has changed from\n%+v\nto\n%+v", plain.Verdicts, now.Verdicts)
		}
		if now := why("friend"); now.Decided != nil || now.Node != friend.Node || now.Nodes != 3 {
			t.Errorf("a dropped decision is reported as %+v", now)
		}
		// Pods of many other makes push out the tables of earlier ones, and nobody holds on to those.
		for i := range 130 {
			f.addPod(schedulertest.TestPod(fmt.Sprint("other-", i), schedulertest.RequestingCPU(fmt.Sprintf("%dm", 101+i))))
		}
		f.pass(time.Second)
		if now := why("plain"); now.Decided != nil {
			t.Error("a decision is reported from a table that was dropped")
		}
	})
}
