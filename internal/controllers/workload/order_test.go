package workload

import (
	"fmt"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestActiveOrLatest(t *testing.T) {
	set := func(name string, replicas int32) *appsv1.ReplicaSet {
		return &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: appsv1.ReplicaSetSpec{Replicas: &replicas}}
	}
	for _, test := range []struct {
		what    string
		current *appsv1.ReplicaSet
		old     []*appsv1.ReplicaSet
		want    string
	}{
		{"none", nil, nil, ""},
		{"one has pods", set("new", 0), []*appsv1.ReplicaSet{set("old", 2)}, "old"},
		{"the current has pods", set("new", 3), []*appsv1.ReplicaSet{set("old", 0)}, "new"},
		{"several have pods", set("new", 1), []*appsv1.ReplicaSet{set("old", 1)}, ""},
		{"none has pods", set("new", 0), []*appsv1.ReplicaSet{set("old", 0)}, "new"},
		{"none has pods, none is current", nil, []*appsv1.ReplicaSet{set("older", 0), set("old", 0)}, "old"},
	} {
		got := ""
		if found := (&rollout{current: test.current, old: test.old}).activeOrLatest(); found != nil {
			got = found.Name
		}
		if got != test.want {
			t.Errorf("%s: %q, want %q", test.what, got, test.want)
		}
	}
}

func TestStartedFirst(t *testing.T) {
	began := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	job := func(name string, minutes int) *batchv1.Job {
		j := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if minutes >= 0 {
			j.Status.StartTime = new(metav1.NewTime(began.Add(time.Duration(minutes) * time.Minute)))
		}
		return j
	}
	jobs := []*batchv1.Job{job("never-b", -1), job("late", 5), job("b", 1), job("never-a", -1), job("a", 1), job("early", 0)}
	slices.SortStableFunc(jobs, compareStartTime)
	var names []string
	for _, j := range jobs {
		names = append(names, j.Name)
	}
	if got := fmt.Sprint(names); got != "[early a b late never-a never-b]" {
		t.Errorf("order %s", got)
	}
	// It is an order: compared the other way round, the answer is the other way round.
	for _, a := range jobs {
		for _, b := range jobs {
			if compareStartTime(a, b) != -compareStartTime(b, a) {
				t.Errorf("%s and %s", a.Name, b.Name)
			}
		}
	}
}
