package scheduler

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	configv1 "k8s.io/kube-scheduler/config/v1"
)

// profileOf is the profile that a file with these plugins has.
func profileOf(t testing.TB, plugins string) *Profile {
	t.Helper()
	c, err := ParseConfiguration(configuration("profiles: [{plugins: " + plugins + "}]"))
	if err != nil {
		t.Fatal(err)
	}
	profiles, err := profilesOf(c)
	if err != nil {
		t.Fatal(err)
	}
	return profiles[corev1.DefaultSchedulerName]
}

// filtering names the rules that filter, in order.
func (p *Profile) filtering() (names []string) {
	for i, rule := range p.filters {
		switch {
		case i == p.spreadOrder:
			names = append(names, podTopologySpreadName)
		case i == p.affinityOrder:
			names = append(names, interPodAffinityName)
		default:
			names = append(names, rule.Name())
		}
	}
	return names
}

// scoring has the weights of the rules that score.
func (p *Profile) scoring() map[string]int64 {
	weights := map[string]int64{}
	for _, x := range p.scorers {
		weights[x.rule.Name()] = x.weight
	}
	if p.spreadWeight != 0 {
		weights[podTopologySpreadName] = p.spreadWeight
	}
	if p.affinityWeight != 0 {
		weights[interPodAffinityName] = p.affinityWeight
	}
	return weights
}

// usualFilters and usualWeights are upstream's.
var (
	usualFilters = []string{
		nodeNameName, nodeUnschedulableName, taintTolerationName, nodeAffinityName, nodePortsName, nodeResourcesFitName, volumeRestrictionsName, nodeVolumeLimitsName,
		volumeBindingName, volumeZoneName, podTopologySpreadName, interPodAffinityName, dynamicResourcesName, nodeDeclaredFeaturesName,
	}
	usualWeights = map[string]int64{
		taintTolerationName: 3, nodeAffinityName: 2, nodeResourcesFitName: 1, volumeBindingName: 1, podTopologySpreadName: 2, interPodAffinityName: 2, dynamicResourcesName: 2,
		balancedAllocationName: 1, imageLocalityName: 1,
	}
)

func leaving(names []string, left ...string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return slices.Contains(left, name) })
}

func changed(weights map[string]int64, name string, weight int64) map[string]int64 {
	all := maps.Clone(weights)
	if all[name] = weight; weight == 0 {
		delete(all, name)
	}
	return all
}

// Which rules take part where, in which order and with what weight, follows from a file as in upstream.
func TestProfiles(t *testing.T) {
	const least = "multiPoint: {disabled: [{name: '*'}], enabled: [{name: PrioritySort}, {name: DefaultBinder}"
	for _, test := range []struct {
		rule, plugins                     string
		filters                           []string
		weights                           map[string]int64
		gates, preemption, devices, frees bool
	}{
		{"the usual", "{}", usualFilters, usualWeights, true, true, true, true},
		{"a filter is left out", "{filter: {disabled: [{name: NodePorts}]}}", leaving(usualFilters, nodePortsName), usualWeights, true, true, true, true},
		{"all filters are left out", "{filter: {disabled: [{name: '*'}]}}", nil, usualWeights, true, true, true, true},
		{"all filters but one", "{filter: {disabled: [{name: '*'}], enabled: [{name: NodeName}]}}", []string{nodeNameName}, usualWeights, true, true, true, true},
		{"filters in an order of their own", "{filter: {disabled: [{name: '*'}], enabled: [{name: InterPodAffinity}, {name: NodeName}, {name: PodTopologySpread}]}}",
			[]string{interPodAffinityName, nodeNameName, podTopologySpreadName}, usualWeights, true, true, true, true},
		{"a filter that is named again comes first", "{filter: {enabled: [{name: NodePorts}, {name: PodTopologySpread}]}}",
			append([]string{nodePortsName, podTopologySpreadName}, leaving(usualFilters, nodePortsName, podTopologySpreadName)...), usualWeights, true, true, true, true},
		{"a filter that is left out and named again comes last", "{filter: {disabled: [{name: NodeName}], enabled: [{name: NodeName}]}}", append(leaving(usualFilters, nodeNameName), nodeNameName), usualWeights, true, true, true, true},
		{"a rule that is left out everywhere but for filtering comes last", "{multiPoint: {disabled: [{name: NodeAffinity}]}, filter: {enabled: [{name: NodeAffinity}]}}",
			append(leaving(usualFilters, nodeAffinityName), nodeAffinityName), changed(usualWeights, nodeAffinityName, 0), true, true, true, true},
		{"a rule that is left out everywhere", "{multiPoint: {disabled: [{name: TaintToleration}]}}", leaving(usualFilters, taintTolerationName), changed(usualWeights, taintTolerationName, 0), true, true, true, true},
		{"a rule that is left out everywhere and named again comes last", "{multiPoint: {disabled: [{name: NodePorts}], enabled: [{name: NodePorts}]}}", append(leaving(usualFilters, nodePortsName), nodePortsName), usualWeights, true, true, true, true},
		{"naming a rule everywhere keeps its place", "{multiPoint: {enabled: [{name: TaintToleration, weight: 9}]}}", usualFilters, changed(usualWeights, taintTolerationName, 9), true, true, true, true},
		{"a score is left out", "{score: {disabled: [{name: ImageLocality}]}}", usualFilters, changed(usualWeights, imageLocalityName, 0), true, true, true, true},
		{"the scores about neighbours are left out", "{score: {disabled: [{name: PodTopologySpread}, {name: InterPodAffinity}]}}", usualFilters, changed(changed(usualWeights, podTopologySpreadName, 0), interPodAffinityName, 0), true, true, true, true},
		{"all scores are left out", "{score: {disabled: [{name: '*'}]}}", usualFilters, map[string]int64{}, true, true, true, true},
		{"a weight", "{score: {enabled: [{name: ImageLocality, weight: 50}]}}", usualFilters, changed(usualWeights, imageLocalityName, 50), true, true, true, true},
		{"a weight of neighbours", "{score: {enabled: [{name: InterPodAffinity, weight: 7}, {name: PodTopologySpread, weight: 8}]}}", usualFilters, changed(changed(usualWeights, interPodAffinityName, 7), podTopologySpreadName, 8), true, true, true, true},
		{"who names a rule and no weight means 1", "{score: {enabled: [{name: TaintToleration}]}}", usualFilters, changed(usualWeights, taintTolerationName, 1), true, true, true, true},
		{"a weight of 0 means 1", "{score: {enabled: [{name: TaintToleration, weight: 0}]}}", usualFilters, changed(usualWeights, taintTolerationName, 1), true, true, true, true},
		{"everywhere no weight means 1", "{multiPoint: {enabled: [{name: NodeAffinity}]}}", usualFilters, changed(usualWeights, nodeAffinityName, 1), true, true, true, true},
		{"the weight of scoring goes before that of everywhere", "{multiPoint: {enabled: [{name: NodeAffinity, weight: 5}]}, score: {enabled: [{name: NodeAffinity, weight: 6}]}}", usualFilters, changed(usualWeights, nodeAffinityName, 6), true, true, true, true},
		{"a weight for filtering means nothing", "{filter: {enabled: [{name: NodeName}, {name: TaintToleration, weight: 50}]}}",
			append([]string{nodeNameName, taintTolerationName}, leaving(usualFilters, nodeNameName, taintTolerationName)...), usualWeights, true, true, true, true},
		{"left out everywhere, a rule may still score", "{multiPoint: {disabled: [{name: NodeAffinity}]}, score: {enabled: [{name: NodeAffinity, weight: 4}]}}", leaving(usualFilters, nodeAffinityName), changed(usualWeights, nodeAffinityName, 4), true, true, true, true},
		{"left out everywhere, a rule scores with 1", "{multiPoint: {disabled: [{name: NodeAffinity}]}, score: {enabled: [{name: NodeAffinity}]}}", leaving(usualFilters, nodeAffinityName), changed(usualWeights, nodeAffinityName, 1), true, true, true, true},
		{"nobody makes room", "{postFilter: {disabled: [{name: DefaultPreemption}]}}", usualFilters, usualWeights, true, false, true, true},
		{"nobody makes room or frees devices, but gates hold", "{postFilter: {disabled: [{name: '*'}]}}", usualFilters, usualWeights, true, false, true, false},
		{"only devices are freed", "{postFilter: {disabled: [{name: '*'}], enabled: [{name: DynamicResources}]}}", usualFilters, usualWeights, true, false, true, true},
		{"gates do not hold, but room is made", "{preEnqueue: {disabled: [{name: '*'}]}}", usualFilters, usualWeights, false, true, true, true},
		{"gates do not hold", "{preEnqueue: {disabled: [{name: SchedulingGates}]}}", usualFilters, usualWeights, false, true, true, true},
		{"gates are no rule at all", "{multiPoint: {disabled: [{name: SchedulingGates}]}}", usualFilters, usualWeights, false, true, true, true},
		{"gates hold by themselves", "{multiPoint: {disabled: [{name: SchedulingGates}]}, preEnqueue: {enabled: [{name: SchedulingGates}]}}", usualFilters, usualWeights, true, true, true, true},
		{"no devices", "{multiPoint: {disabled: [{name: DynamicResources}]}}", leaving(usualFilters, dynamicResourcesName), changed(usualWeights, dynamicResourcesName, 0), true, true, false, false},
		{"the least", "{" + least + "]}}", nil, map[string]int64{}, false, false, false, false},
		{"a few", "{" + least + ", {name: NodeResourcesFit, weight: 3}, {name: NodeName}]}}", []string{nodeResourcesFitName, nodeNameName}, map[string]int64{nodeResourcesFitName: 3}, false, false, false, false},
		{"points nobody is asked at are taken", "{preFilter: {enabled: [{name: NodePorts}]}, reserve: {disabled: [{name: VolumeBinding}]}, permit: {disabled: [{name: '*'}]}}", usualFilters, usualWeights, true, true, true, true},
	} {
		t.Run(test.rule, func(t *testing.T) {
			p := profileOf(t, test.plugins)
			if got := p.filtering(); !slices.Equal(got, test.filters) {
				t.Errorf("filters %v\nwant %v", got, test.filters)
			}
			if got := p.scoring(); !reflect.DeepEqual(got, test.weights) {
				t.Errorf("weights %v\nwant %v", got, test.weights)
			}
			if p.gates != test.gates || (p.preemption != nil) != test.preemption || (p.devices != nil) != test.devices || p.freesDevices != test.frees {
				t.Errorf("gates %t, preemption %t, devices %t, freed %t", p.gates, p.preemption != nil, p.devices != nil, p.freesDevices)
			}
		})
	}
}

// The first rule in a profile's order that refuses a node is the one that is told.
func TestProfileOrderIsTold(t *testing.T) {
	nodes := []*corev1.Node{testNode("a", cordoned, taint("k", "v", corev1.TaintEffectNoSchedule))}
	pod := testPod("p", port(80, "", corev1.ProtocolTCP), selecting("x", "y"), asksCPU("9"), spread("rack", 1, corev1.DoNotSchedule, "app", "x"), near("rack", "app", "x"))
	running := testPod("r", on("a"), port(80, "", corev1.ProtocolTCP))
	for plugins, want := range map[string]string{
		"{}": nodeUnschedulableName,
		"{filter: {disabled: [{name: NodeUnschedulable}]}}":                                                   taintTolerationName,
		"{filter: {disabled: [{name: NodeUnschedulable}, {name: TaintToleration}]}}":                          nodeAffinityName,
		"{filter: {enabled: [{name: NodePorts}]}}":                                                            nodePortsName,
		"{filter: {enabled: [{name: NodeResourcesFit}, {name: NodePorts}]}}":                                  nodeResourcesFitName,
		"{filter: {enabled: [{name: PodTopologySpread}]}}":                                                    podTopologySpreadName,
		"{filter: {enabled: [{name: InterPodAffinity}, {name: PodTopologySpread}]}}":                          interPodAffinityName,
		"{filter: {disabled: [{name: '*'}], enabled: [{name: InterPodAffinity}, {name: NodeUnschedulable}]}}": interPodAffinityName,
	} {
		d, err := Schedule(cluster(t, nodes, running), infoOf(t, pod), profileOf(t, plugins))
		if err == nil {
			t.Errorf("%s: the pod fits", plugins)
			continue
		}
		if verdicts, _ := d.Explain(); verdicts[0].Refusal.Rule != want {
			t.Errorf("%s: refused by %s, want %s", plugins, verdicts[0].Refusal.Rule, want)
		}
	}
}

// Without gates a gated pod is scheduled; without preemption nobody has to go.
func TestProfilePointsMatter(t *testing.T) {
	story(t, parsed(t, "profiles: [{plugins: {preEnqueue: {disabled: [{name: '*'}]}, postFilter: {disabled: [{name: '*'}]}}}]"), func(f *fakeServer) {
		f.addNode(testNode("a"))
		f.addPod(testPod("weak", asksCPU("3")))
		f.addPod(testPod("gated", func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "g"}} }))
		f.pass(oneMinute)
		f.addPod(testPod("strong", asksCPU("3"), priority(10)))
		f.pass(oneMinute)
		if f.nodeOf("gated") != "a" || f.nodeOf("weak") != "a" || f.nodeOf("strong") != "" || len(f.victims()) != 0 {
			t.Errorf("gated on %q, weak on %q, strong on %q, victims %v", f.nodeOf("gated"), f.nodeOf("weak"), f.nodeOf("strong"), f.victims())
		}
		if told := strings.Join(f.told("strong"), ""); strings.Contains(told, "preemption") {
			t.Errorf("the pod is told %s", told)
		}
	})
}

// Every rule may be named at the points where upstream's plugin takes part, and at no others.
func TestRulesAtTheirPoints(t *testing.T) {
	const filters, scores = "preFilter filter", " preScore score"
	where := map[string]string{
		schedulingGatesName: "preEnqueue", nodeNameName: filters, nodeUnschedulableName: filters, taintTolerationName: filters + scores, nodeAffinityName: filters + scores,
		nodePortsName: filters, nodeResourcesFitName: filters + scores + " placementScore", volumeRestrictionsName: filters, nodeVolumeLimitsName: filters,
		volumeBindingName: filters + scores + " reserve preBind", volumeZoneName: filters, podTopologySpreadName: filters + scores, interPodAffinityName: filters + scores,
		dynamicResourcesName:  "preEnqueue preFilter filter postFilter podGroupPostFilter score reserve preBind",
		defaultPreemptionName: "preEnqueue postFilter podGroupPostFilter", balancedAllocationName: "preScore score", imageLocalityName: "score", nodeDeclaredFeaturesName: filters,
		"PrioritySort": "queueSort", "DefaultBinder": "bind",
	}
	for _, maker := range Rules {
		if where[maker.Name] == "" {
			t.Errorf("%s is nowhere", maker.Name)
		}
	}
	for _, point := range strings.Fields("preEnqueue queueSort preFilter filter postFilter preScore score reserve permit preBind bind postBind placementGenerate placementScore podGroupPostFilter") {
		kind := strings.ToUpper(point[:1]) + point[1:] + "Plugin"
		parse := func(set string) string {
			_, err := ParseConfiguration(configuration("profiles: [{schedulerName: s, plugins: {" + point + ": " + set + "}}]"))
			return strings.TrimPrefix(fmt.Sprint(err), "creating profile for scheduler name s: ")
		}
		for rule, points := range where {
			want := "<nil>"
			if !slices.Contains(strings.Fields(points), point) {
				want = fmt.Sprintf("plugin %q does not extend %s plugin", rule, kind)
			}
			if got := parse("{enabled: [{name: " + rule + "}]}"); got != want {
				t.Errorf("%s at %s: %s, want %s", rule, point, got, want)
			}
		}
		if got, want := parse("{enabled: [{name: Magic}]}"), kind+` "Magic" does not exist`; got != want {
			t.Errorf("a rule nobody knows at %s: %s, want %s", point, got, want)
		}
		want := map[string]string{"queueSort": `only one queue sort plugin required for profile with scheduler name "s", but got 0`, "bind": `at least one bind plugin is needed for profile with scheduler name "s"`}[point]
		if want == "" {
			want = "<nil>"
		}
		if got := parse("{disabled: [{name: '*'}]}"); got != want {
			t.Errorf("nobody at %s: %s, want %s", point, got, want)
		}
		if got := parse("{disabled: [{name: Magic}]}"); got != "<nil>" {
			t.Errorf("without a rule nobody knows at %s: %s", point, got)
		}
	}
}

// ownRule is a rule of somebody's own, in one list with the others.
type ownRule struct {
	name    string
	refuses string
	likes   string
}

func (r *ownRule) Name() string { return r.name }

func (r *ownRule) Filter(s *Snapshot, _ *PodInfo) (Filter, *Refusal) {
	return Filter{Check: func(node int32) *Refusal {
		if s.Node(node).Name == r.refuses {
			return refuse(r.name, true, fmt.Sprintf("%s does not like it, with %d pods there", r.name, len(s.PodsOn(node))))
		}
		return nil
	}}, nil
}

func (r *ownRule) Score(s *Snapshot, _ *PodInfo) Scorer {
	return Scorer{Of: func(node int32) int64 {
		if s.Node(node).Name == r.likes {
			return MaxScore
		}
		return 0
	}}
}

func withRules(t *testing.T, more ...RuleMaker) {
	t.Helper()
	before := Rules
	Rules = append(slices.Clone(Rules), more...)
	t.Cleanup(func() { Rules = before })
}

// A rule of one's own is a line in the list: it takes part at once, or when a profile asks for it.
func TestOwnRules(t *testing.T) {
	made := 0
	maker := func(name string, optional bool) RuleMaker {
		return RuleMaker{Name: name, Weight: 5, Optional: optional, Make: with(func(args *struct{ Refuses, Likes string }) Rule {
			made++
			return &ownRule{name: name, refuses: args.Refuses, likes: args.Likes}
		})}
	}
	withRules(t, maker("Mine", false), maker("Yours", true))
	nodes := []*corev1.Node{testNode("a"), testNode("b"), testNode("c")}
	decide := func(fields string) (*Decision, error) {
		t.Helper()
		c, err := ParseConfiguration(configuration(fields))
		if err != nil {
			t.Fatal(err)
		}
		profiles, err := profilesOf(c)
		if err != nil {
			t.Fatal(err)
		}
		return Schedule(cluster(t, nodes, testPod("r", on("a"))), infoOf(t, testPod("p")), profiles[corev1.DefaultSchedulerName])
	}
	const likes = "pluginConfig: [{name: Mine, args: {refuses: a, likes: c}}, {name: Yours, args: {refuses: b, likes: b}}]"
	d, err := decide("profiles: [{" + likes + "}]")
	if err != nil || d.Node != "c" {
		t.Fatalf("went to %q, %v", d.Node, err)
	}
	verdicts, _ := d.Explain()
	if v := verdicts[0]; v.Node != "c" || v.Scores["Mine"] != 5*MaxScore {
		t.Errorf("the best is %+v", v)
	}
	if v := verdicts[2]; v.Node != "a" || v.Refusal.Reasons[0] != "Mine does not like it, with 1 pods there" {
		t.Errorf("the last is %+v", v)
	}
	// Rules that are optional take part where they are enabled only, and in the order of the file.
	d, err = decide("profiles: [{plugins: {multiPoint: {enabled: [{name: Yours, weight: 2}]}}, " + likes + "}]")
	if verdicts, _ = d.Explain(); err != nil || d.Feasible != 1 || verdicts[1].Refusal.Rule != "Mine" || verdicts[2].Refusal.Rule != "Yours" {
		t.Errorf("%+v, %v", verdicts, err)
	}
	d, err = decide("profiles: [{plugins: {score: {enabled: [{name: Yours, weight: 20}]}}, " + likes + "}]")
	if verdicts, _ = d.Explain(); err != nil || d.Node != "b" || verdicts[0].Scores["Yours"] != 20*MaxScore {
		t.Errorf("%+v, %v", verdicts, err)
	}
	// Each file is read twice here: one of Mine for three files, one of Yours for two.
	if made != 2*(3+2) {
		t.Errorf("rules were made %d times", made)
	}
	if _, err := ParseConfiguration(configuration("profiles: [{pluginConfig: [{name: Mine, args: {loves: a}}]}]")); err == nil || !strings.Contains(err.Error(), `initializing plugin "Mine": read arguments: json: unknown field "loves"`) {
		t.Errorf("arguments of its own are read as %v", err)
	}
}

// There is room for so many scores and no more.
func TestTooManyScores(t *testing.T) {
	var names []string
	for i := range maxLocalScores {
		name := fmt.Sprint("Extra", i)
		names = append(names, "{name: "+name+"}")
		withRules(t, RuleMaker{Name: name, Optional: true, Make: fixed(&ownRule{name: name})})
	}
	// NodeResourcesFit, its balance, ImageLocality and VolumeBinding take room already.
	const taken = 4
	enable := func(n int) error {
		_, err := ParseConfiguration(configuration("profiles: [{plugins: {score: {disabled: [{name: PodTopologySpread}, {name: TaintToleration}], enabled: [" + strings.Join(names[:n], ", ") + "]}}}]"))
		return err
	}
	if err := enable(maxLocalScores - taken); err != nil {
		t.Errorf("%d more do not fit: %v", maxLocalScores-taken, err)
	}
	if err := enable(maxLocalScores - taken + 1); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("more than %d rules score nodes", maxLocalScores)) {
		t.Errorf("%d more: %v", maxLocalScores-taken+1, err)
	}
}

func TestRawArguments(t *testing.T) {
	object := &configv1.NodeResourcesFitArgs{IgnoredResources: []string{"a.b/c"}}
	for _, test := range []struct {
		args runtime.RawExtension
		want string
	}{
		{runtime.RawExtension{}, ""}, {runtime.RawExtension{Raw: []byte("{}")}, "{}"}, {runtime.RawExtension{Raw: []byte("1"), Object: object}, "1"},
		{runtime.RawExtension{Object: object}, `{"ignoredResources":["a.b/c"]}`},
	} {
		if got := string(rawArguments(test.args)); got != test.want {
			t.Errorf("%+v: %s, want %s", test.args, got, test.want)
		}
	}
}
