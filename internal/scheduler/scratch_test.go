package scheduler

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// Memory used again has the right size, and what must be empty is.
func TestScratch(t *testing.T) {
	s := NewSnapshot()
	for _, n := range []int{0, 1, 8, 3, 100, 99, 101, 5} {
		if got := s.scratch(n); len(got) != n {
			t.Errorf("%d numbers, want %d", len(got), n)
		}
		if got := s.totals(n); len(got) != n {
			t.Errorf("%d sums, want %d", len(got), n)
		}
		if got := s.list(n); len(got) != 0 || cap(got) < n {
			t.Errorf("a list of %d with room for %d, want room for %d", len(got), cap(got), n)
		}
		marks := s.marks(n)
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
	a, b := s.scratch(4), s.totals(4)
	a[0], b[0] = 1, 2
	if a[0] != 1 {
		t.Error("numbers and sums share memory")
	}
}

func TestRecordsAreUsedAgain(t *testing.T) {
	s := NewSnapshot()
	record := s.besideRecord(4)
	for i := range record.refusals {
		record.refusals[i] = 1
	}
	scores := record.slot(0).byNode(4)
	d := &Decision{snapshot: s, beside: record, table: &table{}}
	d.fade()
	if d.beside != nil || d.table != nil || !d.faded || len(s.work.spare) != 1 {
		t.Errorf("after fading: %+v", d)
	}
	d.fade()
	if len(s.work.spare) != 1 {
		t.Error("a record is spare twice")
	}
	again := s.besideRecord(3)
	if again != record || fmt.Sprint(again.refusals) != "[0 0 0]" || len(s.work.spare) != 0 {
		t.Errorf("the record is not used again, or not empty: %+v", again)
	}
	if values := again.slot(0).byNode(3); len(values) != 3 || &values[0] != &scores[0] {
		t.Error("its scores are not used again")
	}
	// One that is too small grows.
	(&Decision{snapshot: s, beside: again}).fade()
	if got := s.besideRecord(50); got != record || len(got.refusals) != 50 || slices.Contains(got.refusals, 1) {
		t.Errorf("a record of %d", len(got.refusals))
	}
	for range 2 * maxSpare {
		(&Decision{snapshot: s, beside: &besideRecord{}}).fade()
	}
	if len(s.work.spare) != maxSpare {
		t.Errorf("%d records are kept", len(s.work.spare))
	}
}

// A record that is used again by a later decision does not change what an earlier one told.
func TestDecisionsKeepTheirRecords(t *testing.T) {
	s := cluster(t, []*corev1.Node{testNode("a", zone("1")), testNode("b", zone("2"))}, testPod("x", on("a"), labelled("color", "green")))
	first, err := Schedule(s, infoOf(t, testPod("p", away(corev1.LabelTopologyZone, "color", "green"))), worldProfile)
	if err != nil || first.Node != "b" {
		t.Fatalf("on %q, %v", first.Node, err)
	}
	second, err := Schedule(s, infoOf(t, testPod("q", near(corev1.LabelTopologyZone, "color", "green"))), worldProfile)
	if err != nil || second.Node != "a" {
		t.Fatalf("on %q, %v", second.Node, err)
	}
	if r := first.refusalAt(s.nodeNumber["a"]); r != besideRefusals[antiAffinity] {
		t.Errorf("the first refused a for %v", r)
	}
	if r := second.refusalAt(s.nodeNumber["b"]); r != besideRefusals[noAffinity] {
		t.Errorf("the second refused b for %v", r)
	}
}
