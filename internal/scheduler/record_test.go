package scheduler

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// A decision is told as it was made, however the cluster has changed since, until its record has faded.
func TestRecords(t *testing.T) {
	story(t, nil, func(f *fakeServer) {
		f.addNode(testNode("a"))
		f.addNode(testNode("b", nodeHas(corev1.ResourceCPU, "64")))
		f.addPod(testPod("plain", asksCPU("100m")))
		f.addPod(testPod("friend", asksCPU("100m"), labelled("app", "x"), near(corev1.LabelHostname, "app", "x")))
		f.pass(time.Second)
		why := func(name string) *Explanation {
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
			f.addPod(testPod(fmt.Sprint("more-", i), asksCPU("100m"), labelled("app", "y"), near(corev1.LabelHostname, "app", "y")))
		}
		f.addNode(testNode("c"))
		f.pass(time.Second)
		if now := why("plain"); fmt.Sprintf("%+v", now.Verdicts) != fmt.Sprintf("%+v", plain.Verdicts) && now.Decided != nil {
			t.Errorf("the record has changed from\n%+v\nto\n%+v", plain.Verdicts, now.Verdicts)
		}
		if now := why("friend"); now.Decided != nil || now.Node != friend.Node || now.Nodes != 3 {
			t.Errorf("a faded decision is told as %+v", now)
		}
		// Pods of many other makes push out the tables of earlier ones, and nobody holds on to those.
		for i := range maxTables + 1 {
			f.addPod(testPod(fmt.Sprint("other-", i), asksCPU(fmt.Sprintf("%dm", 101+i))))
		}
		f.pass(time.Second)
		if now := why("plain"); now.Decided != nil {
			t.Error("a decision is told from a table that is gone")
		}
		f.scheduler.mu.Lock()
		defer f.scheduler.mu.Unlock()
		held := map[*table]bool{}
		for _, shared := range f.scheduler.snapshot.tables {
			held[shared] = true
		}
		for i := range f.scheduler.decisions.ring {
			if d := f.scheduler.decisions.ring[i].decision; d != nil && d.table != nil && d.table.shared && !held[d.table] {
				t.Fatal("a table that was dropped is still held")
			}
		}
	})
}

func TestDecisionLog(t *testing.T) {
	s := cluster(t, []*corev1.Node{testNode("a", nodeHas(corev1.ResourcePods, "5000"), nodeHas(corev1.ResourceCPU, "1000"))})
	var log DecisionLog
	if log.last("p0") != nil {
		t.Error("an empty log knows a pod")
	}
	for i := range maxRemembered + 10 {
		d, err := Schedule(s, infoOf(t, testPod(fmt.Sprint("p", i))), DefaultProfile())
		if err != nil {
			t.Fatal(err)
		}
		log.Remember(d, nil, time.Unix(int64(i), 0))
	}
	for name, want := range map[string]int64{"p10": 10, "p1033": 1033} {
		if r := log.last(testPod(name).UID); r == nil || r.at.Unix() != want {
			t.Errorf("%s: %+v", name, r)
		}
	}
	if log.last("p9") != nil {
		t.Error("the log knows more than it has room for")
	}
	// The last of several decisions about a pod counts.
	d, err := Schedule(s, infoOf(t, testPod("p500")), DefaultProfile())
	if err != nil {
		t.Fatal(err)
	}
	log.Remember(d, nil, time.Unix(9999, 0))
	if r := log.last("p500"); r == nil || r.at.Unix() != 9999 {
		t.Errorf("%+v", r)
	}
}
