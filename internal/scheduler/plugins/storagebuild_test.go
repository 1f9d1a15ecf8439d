package plugins

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"skiff/internal/scheduler/schedulertest"
	"skiff/internal/scheduler/snapshot"
	"skiff/internal/scheduler/snapshot/snapshottest"
)

func sayingOf(t testing.TB, rule Plugin, r *Refusal) string {
	t.Helper()
	if r.Plugin != rule.Name() {
		t.Errorf("%s speaks as %s", rule.Name(), r.Plugin)
	}
	switch reasons := strings.Join(r.Reasons, "; "); {
	case r.Err != nil:
		return "error: " + r.Err.Error()
	case r.Unresolvable:
		return "never: " + reasons
	default:
		return "no: " + reasons
	}
}

// heard is what a rule says about a pod.
func heard(t testing.TB, s *snapshot.Snapshot, rule Plugin, pod *corev1.Pod) schedulertest.Verdicts {
	t.Helper()
	filter, refusal := rule.(FilterPlugin).Filter(s, snapshottest.PodInfo(t, pod))
	if refusal != nil {
		return schedulertest.Verdicts{"*": sayingOf(t, rule, refusal)}
	}
	all := schedulertest.Verdicts{}
	if filter.Check != nil && !filter.Volatile {
		t.Errorf("what %s says would be remembered for other pods", rule.Name())
	}
	for i := range s.NodeInfos {
		if filter.Check == nil || s.NodeInfos[i].Node == nil {
			continue
		}
		if r := filter.Check(int32(i)); r != nil {
			all[s.NodeInfos[i].Name] = sayingOf(t, rule, r)
		}
	}
	return all
}

// knowing is a cluster that knows of some objects.
func knowing(t testing.TB, nodes []*corev1.Node, known schedulertest.Objects, running ...*corev1.Pod) *snapshot.Snapshot {
	t.Helper()
	s := snapshottest.New(t, nodes, running...)
	for _, o := range known {
		s.SetObject(o)
	}
	return s
}

func claimModes(modes ...corev1.PersistentVolumeAccessMode) schedulertest.ClaimOption {
	return func(c *corev1.PersistentVolumeClaim) { c.Spec.AccessModes = modes }
}

// helpsPod asks the hints of a rule, as the queue does, whether an event may help a pod.
func helpsPod(t testing.TB, s *snapshot.Snapshot, rule Plugin, pod *corev1.Pod, event Event) bool {
	t.Helper()
	return DefaultProfile().MayHelp(s, pod, []string{rule.Name()}, &event)
}
