package snapshot

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"skiff/internal/scheduler/schedulertest"
)

// valuesOf are a label's values, by node; "-" is none.
func valuesOf(s *Snapshot, c *LabelColumn) string {
	var all []string
	for i := range s.NodeInfos {
		value := "-"
		if c.ValueOf[i] != NoValue {
			value = c.Values[c.ValueOf[i]]
		}
		all = append(all, value)
	}
	return strings.Join(all, " ")
}

func TestLabelColumn(t *testing.T) {
	s := NewSnapshot()
	early := s.LabelColumn("disk")
	for _, step := range []struct {
		what string
		do   func()
		want string
	}{
		{"no nodes", func() {}, ""},
		{"a node with the label", func() { s.SetNode(schedulertest.TestNode("a", schedulertest.NodeLabel("disk", "ssd"))) }, "ssd"},
		{"one without", func() { s.SetNode(schedulertest.TestNode("b")) }, "ssd -"},
		{"one with an empty value", func() { s.SetNode(schedulertest.TestNode("c", schedulertest.NodeLabel("disk", ""))) }, "ssd - "},
		{"one only pods speak of", func() { s.SetPod(infoOf(t, schedulertest.TestPod("p", schedulertest.OnNode("d")))) }, "ssd -  -"},
		{"the label comes", func() { s.SetNode(schedulertest.TestNode("b", schedulertest.NodeLabel("disk", "hdd"))) }, "ssd hdd  -"},
		{"the label goes", func() { s.SetNode(schedulertest.TestNode("a")) }, "- hdd  -"},
		{"the node goes, its pod stays", func() {
			s.SetNode(schedulertest.TestNode("d", schedulertest.NodeLabel("disk", "x")))
			s.DeleteNode("d")
		}, "- hdd  -"},
		{"a number is used again", func() { s.DeleteNode("b"); s.SetNode(schedulertest.TestNode("e")) }, "- -  -"},
		{"a value is used again", func() { s.SetNode(schedulertest.TestNode("e", schedulertest.NodeLabel("disk", "ssd"))) }, "- ssd  -"},
	} {
		step.do()
		late := &LabelColumn{Key: "disk", ValueNumbers: map[string]int32{}}
		for i := range s.NodeInfos {
			value, has := "", false
			if o := s.NodeInfos[i].Node; o != nil {
				value, has = o.Labels["disk"]
			}
			late.Set(int32(i), value, has)
		}
		if got := valuesOf(s, early); got != step.want || got != valuesOf(s, late) {
			t.Errorf("%s: %q, want %q", step.what, got, step.want)
		}
	}
	if s.LabelColumn("disk") != early || s.LabelColumn("") == early {
		t.Error("a label has one column")
	}
	if distinct := slices.Compact(slices.Sorted(slices.Values(early.Values))); len(distinct) != len(early.Values) || len(early.ValueNumbers) != len(early.Values) {
		t.Errorf("values %v", early.Values)
	}
	// A column asked for late knows what an early one does.
	delete(s.LabelColumns, "disk")
	if got := valuesOf(s, s.LabelColumn("disk")); got != "- ssd  -" {
		t.Errorf("asked for late: %q", got)
	}
}

func TestTaintSets(t *testing.T) {
	s := NewSnapshot()
	of := func(taints ...corev1.Taint) int32 { return s.taintSetNumberFor(taints) }
	one := corev1.Taint{Key: "k", Value: "v", Effect: corev1.TaintEffectNoSchedule}
	other := corev1.Taint{Key: "k", Value: "v", Effect: corev1.TaintEffectNoExecute}
	if of() != 0 || len(s.TaintSets) != 1 {
		t.Error("no taints are set 0")
	}
	first := of(one)
	for name, test := range map[string]struct {
		taints []corev1.Taint
		same   bool
	}{
		"the same":           {[]corev1.Taint{one}, true},
		"another effect":     {[]corev1.Taint{other}, false},
		"another value":      {[]corev1.Taint{{Key: "k", Value: "w", Effect: one.Effect}}, false},
		"no value":           {[]corev1.Taint{{Key: "k", Effect: one.Effect}}, false},
		"another key":        {[]corev1.Taint{{Key: "l", Value: "v", Effect: one.Effect}}, false},
		"the border moved":   {[]corev1.Taint{{Key: "kv", Effect: one.Effect}}, false},
		"twice":              {[]corev1.Taint{one, one}, false},
		"one more":           {[]corev1.Taint{one, other}, false},
		"in the other order": {[]corev1.Taint{other, one}, false},
	} {
		if got := s.taintSetNumberFor(test.taints); (got == first) != test.same || got == 0 {
			t.Errorf("%s: set %d beside %d", name, got, first)
		} else if !slices.EqualFunc(s.TaintSets[got].Taints, test.taints, SameTaint) || s.taintSetNumberFor(test.taints) != got {
			t.Errorf("%s: set %d holds %v", name, got, s.TaintSets[got].Taints)
		}
	}
	// What a caller does to its list afterwards is not the set's business.
	mine := []corev1.Taint{{Key: "mine", Effect: one.Effect}}
	n := s.taintSetNumberFor(mine)
	mine[0].Key = "yours"
	if s.TaintSets[n].Taints[0].Key != "mine" {
		t.Error("the set has changed with its caller's list")
	}
}

// A pod's answer to a combination of taints: the first that keeps it away, and how many it dislikes.
func TestTolerance(t *testing.T) {
	no, prefer, out := corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute
	all := []schedulertest.NodeOption{schedulertest.Taint("a", "1", no), schedulertest.Taint("b", "2", prefer), schedulertest.Taint("c", "3", out), schedulertest.Taint("d", "4", prefer)}
	for name, test := range map[string]struct {
		tolerations []corev1.Toleration
		taints      []schedulertest.NodeOption
		refused     string
		disliked    int64
	}{
		"no taints":                                       {nil, nil, "", 0},
		"no tolerations":                                  {nil, all, "a", 2},
		"the first of two is tolerated":                   {[]corev1.Toleration{{Key: "a", Operator: corev1.TolerationOpExists}}, all, "c", 2},
		"all that keep away":                              {[]corev1.Toleration{{Key: "a", Value: "1"}, {Key: "c", Operator: corev1.TolerationOpExists, Effect: out}}, all, "", 2},
		"everything":                                      {[]corev1.Toleration{{Operator: corev1.TolerationOpExists}}, all, "", 0},
		"everything of one effect":                        {[]corev1.Toleration{{Operator: corev1.TolerationOpExists, Effect: no}}, all, "c", 2},
		"everything that is disliked":                     {[]corev1.Toleration{{Operator: corev1.TolerationOpExists, Effect: prefer}}, all, "a", 0},
		"one of the disliked":                             {[]corev1.Toleration{{Key: "b", Value: "2"}}, all, "a", 1},
		"another value":                                   {[]corev1.Toleration{{Key: "a", Value: "2"}}, all, "a", 2},
		"a toleration for another effect":                 {[]corev1.Toleration{{Key: "b", Value: "2", Effect: no}}, all, "a", 2},
		"only disliked taints keep nobody away":           {nil, all[1:2], "", 1},
		"an effect that does not exist keeps nobody away": {nil, []schedulertest.NodeOption{schedulertest.Taint("x", "", "Odd")}, "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := cluster(t, []*corev1.Node{schedulertest.TestNode("plain"), schedulertest.TestNode("n", test.taints...)})
			x := &TaintMatcher{Snapshot: s, Tolerations: test.tolerations}
			for range 2 { // the second time from memory
				refused := ""
				answer := x.ResultFor(s.NodeNumbers["n"])
				if answer.Untolerated != nil {
					refused = answer.Untolerated.Key
				}
				if refused != test.refused || answer.PreferNoSchedule != test.disliked {
					t.Errorf("refused by %q, %d disliked, want %q and %d", refused, answer.PreferNoSchedule, test.refused, test.disliked)
				}
				if plain := x.ResultFor(s.NodeNumbers["plain"]); plain.Untolerated != nil || plain.PreferNoSchedule != 0 {
					t.Errorf("a node without taints: %+v", plain)
				}
			}
		})
	}
}

func TestNormalImage(t *testing.T) {
	for name, want := range map[string]string{
		"nginx": "nginx:latest", "nginx:1": "nginx:1", "a/b": "a/b:latest", "a/b:1": "a/b:1", "host:5000/a": "host:5000/a:latest", "host:5000/a:2": "host:5000/a:2",
		"a@sha256:00ff": "a@sha256:00ff", "host:5000/a@sha256:00ff": "host:5000/a@sha256:00ff", "": ":latest",
	} {
		if got := NormalizedImageName(name); got != want {
			t.Errorf("%q is %q, want %q", name, got, want)
		}
	}
}

// Images are counted by node, under each of their names; whoever weighs one is told when its worth has changed.
func TestImages(t *testing.T) {
	s := NewSnapshot()
	tell := func() string {
		var all []string
		for _, name := range slices.Sorted(maps.Keys(s.Images)) {
			all = append(all, fmt.Sprint(name, "=", s.Images[name].Size, "x", s.Images[name].Nodes))
		}
		return strings.Join(all, " ")
	}
	many := func(size int64, names ...string) schedulertest.NodeOption {
		return func(n *corev1.Node) {
			n.Status.Images = append(n.Status.Images, corev1.ContainerImage{Names: names, SizeBytes: size})
		}
	}
	for _, step := range []struct {
		what    string
		do      func()
		want    string
		changes []string // images whose worth has changed
	}{
		{"an image of two names", func() { s.SetNode(schedulertest.TestNode("a", many(5, "x:1", "x@sha256:1"))) }, "x:1=5x1 x@sha256:1=5x1", []string{"x:1", "x@sha256:1"}},
		{"on another node, of another size", func() { s.SetNode(schedulertest.TestNode("b", many(6, "x:1"), many(7, "y:1"))) }, "x:1=5x2 x@sha256:1=5x1 y:1=7x1", []string{"x:1", "y:1"}},
		{"the same again", func() { s.SetNode(schedulertest.TestNode("b", many(6, "x:1"), many(7, "y:1"))) }, "x:1=5x2 x@sha256:1=5x1 y:1=7x1", nil},
		{"in another order", func() { s.SetNode(schedulertest.TestNode("b", many(7, "y:1"), many(6, "x:1"))) }, "x:1=5x2 x@sha256:1=5x1 y:1=7x1", nil},
		{"one that only it has has another size", func() { s.SetNode(schedulertest.TestNode("b", many(8, "y:1"), many(6, "x:1"))) }, "x:1=5x2 x@sha256:1=5x1 y:1=8x1", []string{"y:1"}},
		{"one that others have too has another size", func() { s.SetNode(schedulertest.TestNode("b", many(8, "y:1"), many(9, "x:1"))) }, "x:1=5x2 x@sha256:1=5x1 y:1=8x1", nil},
		{"one goes from a node", func() { s.SetNode(schedulertest.TestNode("b", many(9, "x:1"))) }, "x:1=5x2 x@sha256:1=5x1", nil},
		{"a node goes", func() { s.DeleteNode("a") }, "x:1=5x1", []string{"x:1"}},
		{"the last one goes", func() { s.DeleteNode("b") }, "", nil},
	} {
		before := map[string]uint64{}
		for name, i := range s.Images {
			before[name] = i.version
		}
		step.do()
		if got := tell(); got != step.want {
			t.Errorf("%s: %s, want %s", step.what, got, step.want)
		}
		var changed []string
		for _, name := range slices.Sorted(maps.Keys(s.Images)) {
			if s.Images[name].version != before[name] {
				changed = append(changed, name)
			}
		}
		if !slices.Equal(changed, step.changes) {
			t.Errorf("%s: changed %v, want %v", step.what, changed, step.changes)
		}
	}
	// An image that was gone and comes again is not taken for the one before.
	s.SetNode(schedulertest.TestNode("a", many(5, "x:1")))
	old := s.Images["x:1"].version
	s.SetNode(schedulertest.TestNode("a"))
	s.SetNode(schedulertest.TestNode("a", many(5, "x:1")))
	if s.Images["x:1"].version == old {
		t.Error("the same version as before it was gone")
	}
}
