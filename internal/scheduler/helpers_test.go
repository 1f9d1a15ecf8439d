package scheduler

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"skiff/internal/scheduler/decision"
	"skiff/internal/scheduler/plugins"
	"skiff/internal/scheduler/snapshot"
)

func infoOf(t testing.TB, pod *corev1.Pod) *snapshot.PodInfo {
	t.Helper()
	info, err := snapshot.NewPodInfo(pod)
	if err != nil {
		t.Fatal(err)
	}
	return info
}

// cluster makes a snapshot of nodes and of pods that run on them.
func cluster(t testing.TB, nodes []*corev1.Node, running ...*corev1.Pod) *snapshot.Snapshot {
	t.Helper()
	s := snapshot.NewSnapshot()
	for _, n := range nodes {
		s.SetNode(n)
	}
	for _, p := range running {
		s.SetPod(infoOf(t, p))
	}
	return s
}

// refusalsOf says of every node why it cannot take the pod; nodes that can are missing.
func refusalsOf(t testing.TB, s *snapshot.Snapshot, pod *corev1.Pod, profile *plugins.Profile) map[string]string {
	t.Helper()
	d, err := decision.Schedule(s, infoOf(t, pod), profile)
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

func planned(plan *snapshot.PodVolumes) string {
	var words []string
	for _, b := range plan.StaticBindings {
		words = append(words, b.Claim.Name+"="+b.Volume.Name)
	}
	for _, p := range plan.DynamicProvisions {
		word := p.Claim.Name + "+"
		if p.Capacity != nil {
			word += p.Capacity.Name
		}
		words = append(words, word)
	}
	return strings.Join(words, " ")
}

func planFor(t testing.TB, s *snapshot.Snapshot, pod *corev1.Pod, node string) (snapshot.PodVolumes, []string) {
	t.Helper()
	claims, err := s.Volumes.PodVolumeClaims(pod)
	if err != nil {
		t.Fatal(err)
	}
	n := s.NodeNumbers[node]
	plan, reasons, err := s.Volumes.FindPodVolumes(claims, s.NodeInfos[n].Node, s.NodeInfos[n].CSINode)
	if err != nil {
		t.Fatal(err)
	}
	return plan, reasons
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
