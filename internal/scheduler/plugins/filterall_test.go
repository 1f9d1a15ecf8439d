package plugins

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"skiff/internal/scheduler/schedulertest"
	"skiff/internal/scheduler/snapshot"
	"skiff/internal/scheduler/snapshot/snapshottest"
)

// filterAll asks all filters of a profile about a pod: the first refusal of every node that has one.
func filterAll(t testing.TB, s *snapshot.Snapshot, pod *corev1.Pod, profile *Profile) map[int32]*Refusal {
	t.Helper()
	info := snapshottest.PodInfo(t, pod)
	checks := make([]func(int32) *Refusal, len(profile.Filters))
	refused := map[int32]*Refusal{}
	refuseAll := func(r *Refusal) map[int32]*Refusal {
		if r.Err != nil {
			t.Fatal(r.Err)
		}
		for i := range s.NodeInfos {
			refused[int32(i)] = r
		}
		return refused
	}
	for i, plugin := range profile.Filters {
		switch {
		case plugin != nil:
			f, r := plugin.Filter(s, info)
			if r != nil {
				return refuseAll(r)
			}
			checks[i] = f.Check
		case i == profile.SpreadOrder:
			state, err := profile.Spread.State(s, info)
			if err != nil {
				t.Fatal(err)
			}
			checks[i] = func(node int32) *Refusal { return TopologyRefusals[state.Check(node)] }
		case i == profile.AffinityOrder:
			state := profile.Affinity.State(s, info)
			checks[i] = func(node int32) *Refusal { return TopologyRefusals[state.Check(node)] }
		}
	}
	for i := range s.NodeInfos {
		for _, check := range checks {
			if check == nil || s.NodeInfos[i].Node == nil {
				continue
			}
			if r := check(int32(i)); r != nil {
				if r.Err != nil {
					t.Fatal(r.Err)
				}
				refused[int32(i)] = r
				break
			}
		}
	}
	return refused
}

// filterReasons says of every node why it cannot take the pod; nodes that can are missing.
func filterReasons(t testing.TB, s *snapshot.Snapshot, pod *corev1.Pod, profile *Profile) map[string]string {
	t.Helper()
	all := map[string]string{}
	for node, r := range filterAll(t, s, pod, profile) {
		if s.NodeInfos[node].Node != nil {
			all[s.NodeInfos[node].Name] = strings.Join(r.Reasons, ", ")
		}
	}
	return all
}

// neighbourRefusals asks all plugins, and returns what one of them refuses, with what it says of lasting.
func neighbourRefusals(t testing.TB, s *snapshot.Snapshot, pod *corev1.Pod, profile *Profile, rule string) map[string]string {
	t.Helper()
	all := map[string]string{}
	for node, r := range filterAll(t, s, pod, profile) {
		if r.Plugin != rule || s.NodeInfos[node].Node == nil {
			continue
		}
		text := strings.Join(r.Reasons, ", ")
		if r.Unresolvable {
			text = schedulertest.UnresolvablePrefix + text
		}
		all[s.NodeInfos[node].Name] = text
	}
	return all
}

// neighbourScores is what PodTopologySpread or InterPodAffinity gives each node that can take the pod, without its weight; nil when it
// does not score.
func neighbourScores(t testing.TB, s *snapshot.Snapshot, pod *corev1.Pod, profile *Profile, rule string, weight int64) map[string]int64 {
	t.Helper()
	refused, info := filterAll(t, s, pod, profile), snapshottest.PodInfo(t, pod)
	var record ScoreRecord
	x := Scoring{Weight: weight, Record: &record}
	for i := range s.NodeInfos {
		if refused[int32(i)] == nil && s.NodeInfos[i].Node != nil {
			x.Nodes = append(x.Nodes, int32(i))
		}
	}
	x.Totals = make([]int64, len(x.Nodes))
	if rule == PodTopologySpreadName {
		state, err := profile.Spread.State(s, info)
		if err != nil {
			t.Fatal(err)
		}
		if len(state.Preferred) == 0 {
			return nil
		}
		state.AddScores(s, x)
	} else {
		state := profile.Affinity.State(s, info)
		if len(state.Preferred) == 0 || !state.AddScores(s, x) {
			return nil
		}
	}
	scores := map[string]int64{}
	for i, node := range x.Nodes {
		if x.Totals[i] != weight*record.ScoreOf(node) {
			t.Errorf("%s: the total is %d, the record %d", s.NodeInfos[node].Name, x.Totals[i], record.ScoreOf(node))
		}
		scores[s.NodeInfos[node].Name] = record.ScoreOf(node)
	}
	return scores
}
