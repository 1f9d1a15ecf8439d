package snapshot

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
)

// taintSet is a combination of taints that some nodes have. Clusters have few of them, so plugins evaluate each once per pod.
type taintSet struct {
	Taints []corev1.Taint
}

// taintSetNumberFor returns the number of a combination of taints; 0 is that of nodes without taints.
func (s *Snapshot) taintSetNumberFor(taints []corev1.Taint) int32 {
	if len(taints) == 0 {
		return 0
	}
	var key strings.Builder
	for _, t := range taints {
		key.WriteString(t.Key + "\x00" + t.Value + "\x00" + string(t.Effect) + "\x01")
	}
	n, ok := s.taintSetNumber[key.String()]
	if !ok {
		n = int32(len(s.TaintSets))
		s.taintSetNumber[key.String()] = n
		s.TaintSets = append(s.TaintSets, taintSet{Taints: slices.Clone(taints)})
	}
	return n
}

// TaintMatcher matches one pod's tolerations against nodes' taints. Results are cached by taint set.
type TaintMatcher struct {
	Snapshot    *Snapshot
	Tolerations []corev1.Toleration
	results     []taintResult
}

type taintResult struct {
	computed bool
	// Untolerated is the first NoSchedule or NoExecute taint the pod does not tolerate.
	Untolerated *corev1.Taint
	// PreferNoSchedule is the number of PreferNoSchedule taints the pod does not tolerate.
	PreferNoSchedule int64
}

// ResultFor returns the result for a node.
func (t *TaintMatcher) ResultFor(node int32) *taintResult {
	set := t.Snapshot.NodeTaintSets[node]
	for int(set) >= len(t.results) {
		t.results = append(t.results, taintResult{})
	}
	result := &t.results[set]
	if result.computed {
		return result
	}
	result.computed = true
	taints := t.Snapshot.TaintSets[set].Taints
	for i := range taints {
		taint := &taints[i]
		if taint.Effect == corev1.TaintEffectPreferNoSchedule {
			if !Tolerates(preferTolerations(t.Tolerations), taint) {
				result.PreferNoSchedule++
			}
		} else if PreventsScheduling(taint) && result.Untolerated == nil && !Tolerates(t.Tolerations, taint) {
			result.Untolerated = taint
		}
	}
	return result
}

// PreventsScheduling reports whether a taint is one that pods must tolerate.
func PreventsScheduling(taint *corev1.Taint) bool {
	return taint.Effect == corev1.TaintEffectNoSchedule || taint.Effect == corev1.TaintEffectNoExecute
}

func Tolerates(tolerations []corev1.Toleration, taint *corev1.Taint) bool {
	return slices.ContainsFunc(tolerations, func(t corev1.Toleration) bool {
		return t.ToleratesTaint(klog.Background(), taint, false)
	})
}

// preferTolerations returns the tolerations whose effect is PreferNoSchedule or empty.
func preferTolerations(all []corev1.Toleration) []corev1.Toleration {
	return slices.DeleteFunc(slices.Clone(all), func(t corev1.Toleration) bool {
		return t.Effect != "" && t.Effect != corev1.TaintEffectPreferNoSchedule
	})
}
