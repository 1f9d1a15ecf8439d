package scheduler

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"skiff/internal/scheduler/decision"
	"skiff/internal/scheduler/plugins"
	"skiff/internal/scheduler/snapshot"
	"skiff/internal/scheduler/snapshot/snapshottest"
)

// refusalsOf says of every node why it cannot take the pod; nodes that can are missing.
func refusalsOf(t testing.TB, s *snapshot.Snapshot, pod *corev1.Pod, profile *plugins.Profile) map[string]string {
	t.Helper()
	d, err := decision.Schedule(s, snapshottest.PodInfo(t, pod), profile)
	if err != nil && !decision.IsUnschedulable(err) {
		t.Fatal(err)
	}
	verdicts, current := d.Explain()
	if !current {
		t.Error("the decision just made is not on record")
	}
	refusals := map[string]string{}
	for _, v := range verdicts {
		if v.Refusal != nil {
			refusals[v.Node] = strings.Join(v.Refusal.Reasons, ", ")
		}
	}
	return refusals
}

// oddPlugin is a plugin of a test's own.
type oddPlugin struct {
	check func(node int32) *plugins.Refusal
}

func (oddPlugin) Name() string { return "Odd" }

func (r oddPlugin) Filter(*snapshot.Snapshot, *snapshot.PodInfo) (plugins.Filter, *plugins.Refusal) {
	return plugins.Filter{Check: r.check, Volatile: true}, nil
}

type preFilterPlugin struct{ refusal *plugins.Refusal }

func (preFilterPlugin) Name() string { return "Pre" }

func (r preFilterPlugin) Filter(*snapshot.Snapshot, *snapshot.PodInfo) (plugins.Filter, *plugins.Refusal) {
	return plugins.Filter{}, r.refusal
}
