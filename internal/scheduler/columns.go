package scheduler

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
)

// none is the value of a node that does not have the label.
const none int32 = -1

// labelColumn holds one label of all nodes. Values are numbers, so that rules compare and count instead of hashing strings.
type labelColumn struct {
	key    string
	of     []int32 // by node: number of the value, or none
	values []string
	number map[string]int32
	// lent is set while of belongs to a record as well.
	lent bool
}

// lend hands out the column as it is now: it is copied before it changes.
func (c *labelColumn) lend() []int32 {
	c.lent = true
	return c.of
}

func (c *labelColumn) set(node int32, value string, has bool) {
	for int(node) >= len(c.of) {
		c.of = append(c.of, none)
	}
	n := none
	if has {
		known := false
		if n, known = c.number[value]; !known {
			n = int32(len(c.values))
			c.number[value] = n
			c.values = append(c.values, value)
		}
	}
	if c.of[node] == n {
		return
	}
	if c.lent {
		c.of, c.lent = slices.Clone(c.of), false
	}
	c.of[node] = n
}

// column returns the column of a label, filling it when it is asked for the first time.
func (s *Snapshot) column(key string) *labelColumn {
	if c := s.columns[key]; c != nil {
		return c
	}
	c := &labelColumn{key: key, of: make([]int32, len(s.nodes)), number: map[string]int32{}}
	s.columns[key] = c
	for i := range s.nodes {
		c.of[i] = none
		if node := s.nodes[i].object; node != nil {
			value, has := node.Labels[key]
			c.set(int32(i), value, has)
		}
	}
	return c
}

// taintSet is a combination of taints that some nodes have. Clusters have few, so that rules look at each once per pod.
type taintSet struct {
	taints []corev1.Taint
}

// taintSetOf returns the number of a combination of taints; 0 is that of nodes without taints.
func (s *Snapshot) taintSetOf(taints []corev1.Taint) int32 {
	if len(taints) == 0 {
		return 0
	}
	var key strings.Builder
	for _, t := range taints {
		key.WriteString(t.Key + "\x00" + t.Value + "\x00" + string(t.Effect) + "\x01")
	}
	n, ok := s.taintSetNumber[key.String()]
	if !ok {
		n = int32(len(s.taintSets))
		s.taintSetNumber[key.String()] = n
		s.taintSets = append(s.taintSets, taintSet{taints: slices.Clone(taints)})
	}
	return n
}

// tolerance answers, for one pod, what the nodes' taints mean to it. Answers are kept by combination of taints.
type tolerance struct {
	snapshot    *Snapshot
	tolerations []corev1.Toleration
	known       []toleranceAnswer
}

type toleranceAnswer struct {
	asked bool
	// refused is a taint that keeps the pod away.
	refused *corev1.Taint
	// disliked counts PreferNoSchedule taints the pod does not tolerate.
	disliked int64
}

func (t *tolerance) of(node int32) *toleranceAnswer {
	set := t.snapshot.taints[node]
	for int(set) >= len(t.known) {
		t.known = append(t.known, toleranceAnswer{})
	}
	answer := &t.known[set]
	if answer.asked {
		return answer
	}
	answer.asked = true
	taints := t.snapshot.taintSets[set].taints
	for i := range taints {
		taint := &taints[i]
		if taint.Effect == corev1.TaintEffectPreferNoSchedule {
			if !tolerates(preferTolerations(t.tolerations), taint) {
				answer.disliked++
			}
		} else if keepsAway(taint) && answer.refused == nil && !tolerates(t.tolerations, taint) {
			answer.refused = taint
		}
	}
	return answer
}

// keepsAway reports whether a taint is one that pods must tolerate.
func keepsAway(taint *corev1.Taint) bool {
	return taint.Effect == corev1.TaintEffectNoSchedule || taint.Effect == corev1.TaintEffectNoExecute
}

func tolerates(tolerations []corev1.Toleration, taint *corev1.Taint) bool {
	return slices.ContainsFunc(tolerations, func(t corev1.Toleration) bool {
		return t.ToleratesTaint(klog.Background(), taint, false)
	})
}

// preferTolerations are those that speak of PreferNoSchedule, by name or by naming no effect.
func preferTolerations(all []corev1.Toleration) []corev1.Toleration {
	return slices.DeleteFunc(slices.Clone(all), func(t corev1.Toleration) bool {
		return t.Effect != "" && t.Effect != corev1.TaintEffectPreferNoSchedule
	})
}

// image is a container image some nodes hold.
type image struct {
	size  int64
	nodes int
	// version grows whenever the set of nodes that hold the image changes: its worth on every one of them changes with it.
	version uint64
}

// normalImage adds the tag that is meant when none is named.
func normalImage(name string) string {
	if strings.LastIndex(name, ":") <= strings.LastIndex(name, "/") {
		return name + ":latest"
	}
	return name
}

func (s *Snapshot) setImages(n *node, images []corev1.ContainerImage) {
	s.imagesVersion++
	names := map[string]int64{}
	for _, i := range images {
		for _, name := range i.Names {
			if _, twice := names[name]; !twice {
				names[name] = i.SizeBytes
			}
		}
	}
	for name := range n.images {
		if _, keeps := names[name]; keeps {
			continue
		}
		held := s.images[name]
		held.nodes--
		held.version++
		if held.nodes == 0 {
			delete(s.images, name)
		}
	}
	for name, size := range names {
		held := s.images[name]
		if before, had := n.images[name]; had {
			// Only where nobody else has told another size, the new one counts.
			if before != size && held.nodes == 1 {
				held.size = size
				held.version++
			}
			continue
		}
		if held == nil {
			held = &image{size: size, version: s.nextVersion()}
			s.images[name] = held
		}
		held.nodes++
		held.version++
	}
	n.images = names
}
