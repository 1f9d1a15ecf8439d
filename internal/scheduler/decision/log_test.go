package decision

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/scheduler/plugins"
	"skiff/internal/scheduler/schedulertest"
	"skiff/internal/scheduler/snapshot"
	"skiff/internal/scheduler/snapshot/snapshottest"
)

// The log keeps the records of the last maxDetailed decisions that have one of their own. Decisions on a shared table keep theirs as long as
// the table.
func TestDecisionLogDropsRecords(t *testing.T) {
	s := snapshottest.New(t, []*corev1.Node{schedulertest.TestNode("a", schedulertest.NodeHas(corev1.ResourcePods, "5000"), schedulertest.NodeHas(corev1.ResourceCPU, "1000"))})
	var log Log
	var plain, withAffinity []*Decision
	for i := range 3 * maxDetailed {
		d, err := Schedule(s, snapshottest.PodInfo(t, schedulertest.TestPod(fmt.Sprint("plain", i))), plugins.DefaultProfile())
		if err != nil {
			t.Fatal(err)
		}
		log.Remember(d, nil, time.Time{})
		plain = append(plain, d)
		if d, err = Schedule(s, snapshottest.PodInfo(t, schedulertest.TestPod(fmt.Sprint("near", i), schedulertest.Labelled("app", "x"), schedulertest.WithAffinity(corev1.LabelHostname, "app", "x"))), plugins.DefaultProfile()); err != nil {
			t.Fatal(err)
		}
		log.Remember(d, nil, time.Time{})
		withAffinity = append(withAffinity, d)
	}
	for i, d := range plain {
		if d.RecordDropped {
			t.Fatalf("plain decision %d has no record", i)
		}
	}
	kept := 0
	for i, d := range withAffinity {
		if !d.RecordDropped {
			kept++
		} else if i >= len(withAffinity)-maxDetailed/2 {
			t.Errorf("decision %d of %d has no record", i, len(withAffinity))
		}
	}
	if kept < maxDetailed/2 || kept > maxDetailed {
		t.Errorf("%d records are kept, want at most %d", kept, maxDetailed)
	}
	log.tableDropped(plain[0].Table)
	if last := log.Last(types.UID("plain0")); last == nil || !last.Decision.RecordDropped {
		t.Errorf("%+v is told from a table that is gone", last)
	}
}

// A decision has a record of its own unless it is nothing but a place in a shared table.
func TestOwnRecord(t *testing.T) {
	for _, test := range []struct {
		rule     string
		decision Decision
		want     bool
	}{
		{"a place in a shared table", Decision{Table: &table{shared: true}}, false},
		{"a table of its own", Decision{Table: &table{}}, true},
		{"no table", Decision{}, true},
		{"what neighbours said, withAffinity a shared table", Decision{Table: &table{shared: true}, topology: &topologyRecord{}}, true},
		{"what neighbours said, and a table of its own", Decision{Table: &table{}, topology: &topologyRecord{}}, true},
	} {
		if got := test.decision.ownRecord(); got != test.want {
			t.Errorf("%s: %t", test.rule, got)
		}
	}
}

// Counts nobody asks for any more are forgotten, and made again when somebody does.
func TestManyCounters(t *testing.T) {
	s := snapshottest.New(t, schedulertest.TestNodes(4, func(i int) schedulertest.NodeOption { return schedulertest.Zone(fmt.Sprint(i % 2)) }))
	for i := range snapshot.MaxCounters + 100 {
		pod := schedulertest.TestPod(fmt.Sprint("p", i), schedulertest.Labelled("app", fmt.Sprint(i)), schedulertest.Spread(corev1.LabelTopologyZone, 1, corev1.DoNotSchedule, "app="+fmt.Sprint(i)))
		info := snapshottest.PodInfo(t, pod)
		d, err := Schedule(s, info, plugins.DefaultProfile())
		if err != nil {
			t.Fatal(err)
		}
		if i%100 == 0 {
			s.Assume(info, d.Node)
		}
	}
	if len(s.Counters) > snapshot.MaxCounters {
		t.Errorf("there are %d counters", len(s.Counters))
	}
	// The first pod's kind was forgotten; its count is right all the same.
	first := s.PodEntries["p0"]
	got := refusalsOf(t, s, schedulertest.TestPod("again", schedulertest.Labelled("app", "0"), schedulertest.Spread(corev1.LabelTopologyZone, 1, corev1.DoNotSchedule, "app=0")), plugins.DefaultProfile())
	for i := range s.NodeInfos {
		same := s.NodeInfos[i].Node.Labels[corev1.LabelTopologyZone] == s.NodeInfos[first.Node].Node.Labels[corev1.LabelTopologyZone]
		if (got[s.NodeInfos[i].Name] != "") != same {
			t.Errorf("node %s: %q", s.NodeInfos[i].Name, got[s.NodeInfos[i].Name])
		}
	}
}

func TestDecisionLog(t *testing.T) {
	s := snapshottest.New(t, []*corev1.Node{schedulertest.TestNode("a", schedulertest.NodeHas(corev1.ResourcePods, "5000"), schedulertest.NodeHas(corev1.ResourceCPU, "1000"))})
	var log Log
	if log.Last("p0") != nil {
		t.Error("an empty log knows a pod")
	}
	for i := range MaxRemembered + 10 {
		d, err := Schedule(s, snapshottest.PodInfo(t, schedulertest.TestPod(fmt.Sprint("p", i))), plugins.DefaultProfile())
		if err != nil {
			t.Fatal(err)
		}
		log.Remember(d, nil, time.Unix(int64(i), 0))
	}
	for name, want := range map[string]int64{"p10": 10, "p1033": 1033} {
		if r := log.Last(schedulertest.TestPod(name).UID); r == nil || r.At.Unix() != want {
			t.Errorf("%s: %+v", name, r)
		}
	}
	if log.Last("p9") != nil {
		t.Error("the log has more entries than its limit")
	}
	// The last of several decisions about a pod counts.
	d, err := Schedule(s, snapshottest.PodInfo(t, schedulertest.TestPod("p500")), plugins.DefaultProfile())
	if err != nil {
		t.Fatal(err)
	}
	log.Remember(d, nil, time.Unix(9999, 0))
	if r := log.Last("p500"); r == nil || r.At.Unix() != 9999 {
		t.Errorf("%+v", r)
	}
}
