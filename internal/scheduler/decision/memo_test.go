package decision

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"skiff/internal/scheduler/plugins"
	"skiff/internal/scheduler/schedulertest"
	"skiff/internal/scheduler/snapshot"
	"skiff/internal/scheduler/snapshot/snapshottest"
)

// Memory used again has the right size, and what must be empty is.
func TestScratch(t *testing.T) {
	s := snapshot.NewSnapshot()
	for _, n := range []int{0, 1, 8, 3, 100, 99, 101, 5} {
		if got := s.ScratchBuffer(n); len(got) != n {
			t.Errorf("%d numbers, want %d", len(got), n)
		}
		if got := s.TotalsBuffer(n); len(got) != n {
			t.Errorf("%d sums, want %d", len(got), n)
		}
		if got := s.NodeBuffer(n); len(got) != 0 || cap(got) < n {
			t.Errorf("a list of %d with capacity %d, want %d", len(got), cap(got), n)
		}
		marks := s.FlagBuffer(n)
		if len(marks) != n {
			t.Errorf("%d marks, want %d", len(marks), n)
		}
		for i := range marks {
			if marks[i] {
				t.Fatalf("mark %d of %d is set", i, n)
			}
			marks[i] = true
		}
	}
	a, b := s.ScratchBuffer(4), s.TotalsBuffer(4)
	a[0], b[0] = 1, 2
	if a[0] != 1 {
		t.Error("numbers and sums share memory")
	}
}

func TestRecordsAreUsedAgain(t *testing.T) {
	s := snapshot.NewSnapshot()
	record := memoOf(s).topologyRecord(4)
	for i := range record.refusals {
		record.refusals[i] = 1
	}
	scores := record.slot(0).ByNode(4)
	d := &Decision{Snapshot: s, topology: record, Table: &table{}}
	d.dropRecord()
	if d.topology != nil || d.Table != nil || !d.RecordDropped || len(memoOf(s).spareRecords) != 1 {
		t.Errorf("after fading: %+v", d)
	}
	d.dropRecord()
	if len(memoOf(s).spareRecords) != 1 {
		t.Error("a record is spare twice")
	}
	again := memoOf(s).topologyRecord(3)
	if again != record || fmt.Sprint(again.refusals) != "[0 0 0]" || len(memoOf(s).spareRecords) != 0 {
		t.Errorf("the record is not used again, or not empty: %+v", again)
	}
	if values := again.slot(0).ByNode(3); len(values) != 3 || &values[0] != &scores[0] {
		t.Error("its scores are not used again")
	}
	// One that is too small grows.
	(&Decision{Snapshot: s, topology: again}).dropRecord()
	if got := memoOf(s).topologyRecord(50); got != record || len(got.refusals) != 50 || slices.Contains(got.refusals, 1) {
		t.Errorf("a record of %d", len(got.refusals))
	}
	for range 2 * maxSpareRecords {
		(&Decision{Snapshot: s, topology: &topologyRecord{}}).dropRecord()
	}
	if len(memoOf(s).spareRecords) != maxSpareRecords {
		t.Errorf("%d records are kept", len(memoOf(s).spareRecords))
	}
}

// A record that is used again by a later decision does not change what an earlier one told.
func TestDecisionsKeepTheirRecords(t *testing.T) {
	s := snapshottest.New(t, []*corev1.Node{schedulertest.TestNode("a", schedulertest.Zone("1")), schedulertest.TestNode("b", schedulertest.Zone("2"))}, schedulertest.TestPod("x", schedulertest.OnNode("a"), schedulertest.Labelled("color", "green")))
	first, err := Schedule(s, snapshottest.PodInfo(t, schedulertest.TestPod("p", schedulertest.WithAntiAffinity(corev1.LabelTopologyZone, "color", "green"))), worldProfile)
	if err != nil || first.Node != "b" {
		t.Fatalf("on %q, %v", first.Node, err)
	}
	second, err := Schedule(s, snapshottest.PodInfo(t, schedulertest.TestPod("q", schedulertest.WithAffinity(corev1.LabelTopologyZone, "color", "green"))), worldProfile)
	if err != nil || second.Node != "a" {
		t.Fatalf("on %q, %v", second.Node, err)
	}
	if r := first.refusalAt(s.NodeNumbers["a"]); r != plugins.TopologyRefusals[plugins.AntiAffinityMismatch] {
		t.Errorf("the first refused a for %v", r)
	}
	if r := second.refusalAt(s.NodeNumbers["b"]); r != plugins.TopologyRefusals[plugins.AffinityMismatch] {
		t.Errorf("the second refused b for %v", r)
	}
}
