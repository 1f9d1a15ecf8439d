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

	"skiff/internal/scheduler/decision"
	"skiff/internal/scheduler/plugins"
	"skiff/internal/scheduler/schedulertest"
	"skiff/internal/scheduler/snapshot"
	"skiff/internal/scheduler/snapshot/snapshottest"
)

// profileOf is the profile that a file with these plugins has.
func profileOf(t testing.TB, plugins string) *plugins.Profile {
	t.Helper()
	c, err := ParseConfiguration(schedulertest.Configuration("profiles: [{plugins: " + plugins + "}]"))
	if err != nil {
		t.Fatal(err)
	}
	profiles, err := profilesOf(c)
	if err != nil {
		t.Fatal(err)
	}
	return profiles[corev1.DefaultSchedulerName]
}

// usualFilters and usualWeights are upstream's.
var (
	usualFilters = []string{
		plugins.NodeNameName, plugins.NodeUnschedulableName, plugins.TaintTolerationName, plugins.NodeAffinityName, plugins.NodePortsName, plugins.NodeResourcesFitName, plugins.VolumeRestrictionsName, plugins.NodeVolumeLimitsName,
		plugins.VolumeBindingName, plugins.VolumeZoneName, plugins.PodTopologySpreadName, plugins.InterPodAffinityName, plugins.DynamicResourcesName, plugins.NodeDeclaredFeaturesName,
	}
	usualWeights = map[string]int64{
		plugins.TaintTolerationName: 3, plugins.NodeAffinityName: 2, plugins.NodeResourcesFitName: 1, plugins.VolumeBindingName: 1, plugins.PodTopologySpreadName: 2, plugins.InterPodAffinityName: 2, plugins.DynamicResourcesName: 2,
		plugins.BalancedAllocationName: 1, plugins.ImageLocalityName: 1,
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

// Which plugins take part where, in which order and with what weight, follows from a file as in upstream.
func TestProfiles(t *testing.T) {
	const least = "multiPoint: {disabled: [{name: '*'}], enabled: [{name: PrioritySort}, {name: DefaultBinder}"
	for _, test := range []struct {
		name, plugins                     string
		filters                           []string
		weights                           map[string]int64
		gates, preemption, devices, frees bool
	}{
		{"the usual", "{}", usualFilters, usualWeights, true, true, true, true},
		{"a filter is left out", "{filter: {disabled: [{name: NodePorts}]}}", leaving(usualFilters, plugins.NodePortsName), usualWeights, true, true, true, true},
		{"all filters are left out", "{filter: {disabled: [{name: '*'}]}}", nil, usualWeights, true, true, true, true},
		{"all filters but one", "{filter: {disabled: [{name: '*'}], enabled: [{name: NodeName}]}}", []string{plugins.NodeNameName}, usualWeights, true, true, true, true},
		{"filters in an order of their own", "{filter: {disabled: [{name: '*'}], enabled: [{name: InterPodAffinity}, {name: NodeName}, {name: PodTopologySpread}]}}",
			[]string{plugins.InterPodAffinityName, plugins.NodeNameName, plugins.PodTopologySpreadName}, usualWeights, true, true, true, true},
		{"a filter that is named again comes first", "{filter: {enabled: [{name: NodePorts}, {name: PodTopologySpread}]}}",
			append([]string{plugins.NodePortsName, plugins.PodTopologySpreadName}, leaving(usualFilters, plugins.NodePortsName, plugins.PodTopologySpreadName)...), usualWeights, true, true, true, true},
		{"a filter that is left out and named again comes last", "{filter: {disabled: [{name: NodeName}], enabled: [{name: NodeName}]}}", append(leaving(usualFilters, plugins.NodeNameName), plugins.NodeNameName), usualWeights, true, true, true, true},
		{"a plugin that is left out everywhere but for filtering comes last", "{multiPoint: {disabled: [{name: NodeAffinity}]}, filter: {enabled: [{name: NodeAffinity}]}}",
			append(leaving(usualFilters, plugins.NodeAffinityName), plugins.NodeAffinityName), changed(usualWeights, plugins.NodeAffinityName, 0), true, true, true, true},
		{"a plugin that is left out everywhere", "{multiPoint: {disabled: [{name: TaintToleration}]}}", leaving(usualFilters, plugins.TaintTolerationName), changed(usualWeights, plugins.TaintTolerationName, 0), true, true, true, true},
		{"a plugin that is left out everywhere and named again comes last", "{multiPoint: {disabled: [{name: NodePorts}], enabled: [{name: NodePorts}]}}", append(leaving(usualFilters, plugins.NodePortsName), plugins.NodePortsName), usualWeights, true, true, true, true},
		{"naming a plugin everywhere keeps its place", "{multiPoint: {enabled: [{name: TaintToleration, weight: 9}]}}", usualFilters, changed(usualWeights, plugins.TaintTolerationName, 9), true, true, true, true},
		{"a score is left out", "{score: {disabled: [{name: ImageLocality}]}}", usualFilters, changed(usualWeights, plugins.ImageLocalityName, 0), true, true, true, true},
		{"the scores about neighbours are left out", "{score: {disabled: [{name: PodTopologySpread}, {name: InterPodAffinity}]}}", usualFilters, changed(changed(usualWeights, plugins.PodTopologySpreadName, 0), plugins.InterPodAffinityName, 0), true, true, true, true},
		{"all scores are left out", "{score: {disabled: [{name: '*'}]}}", usualFilters, map[string]int64{}, true, true, true, true},
		{"a weight", "{score: {enabled: [{name: ImageLocality, weight: 50}]}}", usualFilters, changed(usualWeights, plugins.ImageLocalityName, 50), true, true, true, true},
		{"a weight of neighbours", "{score: {enabled: [{name: InterPodAffinity, weight: 7}, {name: PodTopologySpread, weight: 8}]}}", usualFilters, changed(changed(usualWeights, plugins.InterPodAffinityName, 7), plugins.PodTopologySpreadName, 8), true, true, true, true},
		{"who names a plugin and no weight means 1", "{score: {enabled: [{name: TaintToleration}]}}", usualFilters, changed(usualWeights, plugins.TaintTolerationName, 1), true, true, true, true},
		{"a weight of 0 means 1", "{score: {enabled: [{name: TaintToleration, weight: 0}]}}", usualFilters, changed(usualWeights, plugins.TaintTolerationName, 1), true, true, true, true},
		{"everywhere no weight means 1", "{multiPoint: {enabled: [{name: NodeAffinity}]}}", usualFilters, changed(usualWeights, plugins.NodeAffinityName, 1), true, true, true, true},
		{"the weight of scoring goes before that of everywhere", "{multiPoint: {enabled: [{name: NodeAffinity, weight: 5}]}, score: {enabled: [{name: NodeAffinity, weight: 6}]}}", usualFilters, changed(usualWeights, plugins.NodeAffinityName, 6), true, true, true, true},
		{"a weight for filtering means nothing", "{filter: {enabled: [{name: NodeName}, {name: TaintToleration, weight: 50}]}}",
			append([]string{plugins.NodeNameName, plugins.TaintTolerationName}, leaving(usualFilters, plugins.NodeNameName, plugins.TaintTolerationName)...), usualWeights, true, true, true, true},
		{"left out everywhere, a plugin may still score", "{multiPoint: {disabled: [{name: NodeAffinity}]}, score: {enabled: [{name: NodeAffinity, weight: 4}]}}", leaving(usualFilters, plugins.NodeAffinityName), changed(usualWeights, plugins.NodeAffinityName, 4), true, true, true, true},
		{"left out everywhere, a plugin scores with 1", "{multiPoint: {disabled: [{name: NodeAffinity}]}, score: {enabled: [{name: NodeAffinity}]}}", leaving(usualFilters, plugins.NodeAffinityName), changed(usualWeights, plugins.NodeAffinityName, 1), true, true, true, true},
		{"nobody preempts", "{postFilter: {disabled: [{name: DefaultPreemption}]}}", usualFilters, usualWeights, true, false, true, true},
		{"nobody preempts or frees devices, but gates hold", "{postFilter: {disabled: [{name: '*'}]}}", usualFilters, usualWeights, true, false, true, false},
		{"only devices are freed", "{postFilter: {disabled: [{name: '*'}], enabled: [{name: DynamicResources}]}}", usualFilters, usualWeights, true, false, true, true},
		{"gates do not hold, but pods are preempted", "{preEnqueue: {disabled: [{name: '*'}]}}", usualFilters, usualWeights, false, true, true, true},
		{"gates do not hold", "{preEnqueue: {disabled: [{name: SchedulingGates}]}}", usualFilters, usualWeights, false, true, true, true},
		{"gates are no plugin at all", "{multiPoint: {disabled: [{name: SchedulingGates}]}}", usualFilters, usualWeights, false, true, true, true},
		{"gates hold by themselves", "{multiPoint: {disabled: [{name: SchedulingGates}]}, preEnqueue: {enabled: [{name: SchedulingGates}]}}", usualFilters, usualWeights, true, true, true, true},
		{"no devices", "{multiPoint: {disabled: [{name: DynamicResources}]}}", leaving(usualFilters, plugins.DynamicResourcesName), changed(usualWeights, plugins.DynamicResourcesName, 0), true, true, false, false},
		{"the least", "{" + least + "]}}", nil, map[string]int64{}, false, false, false, false},
		{"a few", "{" + least + ", {name: NodeResourcesFit, weight: 3}, {name: NodeName}]}}", []string{plugins.NodeResourcesFitName, plugins.NodeNameName}, map[string]int64{plugins.NodeResourcesFitName: 3}, false, false, false, false},
		{"extension points without effect are accepted", "{preFilter: {enabled: [{name: NodePorts}]}, reserve: {disabled: [{name: VolumeBinding}]}, permit: {disabled: [{name: '*'}]}}", usualFilters, usualWeights, true, true, true, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := profileOf(t, test.plugins)
			if got := filtering(p); !slices.Equal(got, test.filters) {
				t.Errorf("filters %v\nwant %v", got, test.filters)
			}
			if got := scoringWeights(p); !reflect.DeepEqual(got, test.weights) {
				t.Errorf("weights %v\nwant %v", got, test.weights)
			}
			if p.SchedulingGates != test.gates || (p.Preemption != nil) != test.preemption || (p.DynamicResources != nil) != test.devices || p.DeallocatesClaims != test.frees {
				t.Errorf("gates %t, preemption %t, devices %t, freed %t", p.SchedulingGates, p.Preemption != nil, p.DynamicResources != nil, p.DeallocatesClaims)
			}
		})
	}
}

// The first plugin in a profile's order that refuses a node is the one that is reported.
func TestFirstRefusalInProfileOrderIsReported(t *testing.T) {
	nodes := []*corev1.Node{schedulertest.TestNode("a", schedulertest.Cordoned, schedulertest.Taint("k", "v", corev1.TaintEffectNoSchedule))}
	pod := schedulertest.TestPod("p", schedulertest.Port(80, "", corev1.ProtocolTCP), schedulertest.Selecting("x", "y"), schedulertest.RequestingCPU("9"), schedulertest.Spread("rack", 1, corev1.DoNotSchedule, "app=x"), schedulertest.WithAffinity("rack", "app", "x"))
	running := schedulertest.TestPod("r", schedulertest.OnNode("a"), schedulertest.Port(80, "", corev1.ProtocolTCP))
	for plugins, want := range map[string]string{
		"{}": plugins.NodeUnschedulableName,
		"{filter: {disabled: [{name: NodeUnschedulable}]}}":                                                   plugins.TaintTolerationName,
		"{filter: {disabled: [{name: NodeUnschedulable}, {name: TaintToleration}]}}":                          plugins.NodeAffinityName,
		"{filter: {enabled: [{name: NodePorts}]}}":                                                            plugins.NodePortsName,
		"{filter: {enabled: [{name: NodeResourcesFit}, {name: NodePorts}]}}":                                  plugins.NodeResourcesFitName,
		"{filter: {enabled: [{name: PodTopologySpread}]}}":                                                    plugins.PodTopologySpreadName,
		"{filter: {enabled: [{name: InterPodAffinity}, {name: PodTopologySpread}]}}":                          plugins.InterPodAffinityName,
		"{filter: {disabled: [{name: '*'}], enabled: [{name: InterPodAffinity}, {name: NodeUnschedulable}]}}": plugins.InterPodAffinityName,
	} {
		d, err := decision.Schedule(snapshottest.New(t, nodes, running), snapshottest.PodInfo(t, pod), profileOf(t, plugins))
		if err == nil {
			t.Errorf("%s: the pod fits", plugins)
			continue
		}
		if verdicts, _ := d.Explain(); verdicts[0].Refusal.Plugin != want {
			t.Errorf("%s: refused by %s, want %s", plugins, verdicts[0].Refusal.Plugin, want)
		}
	}
}

// Without gates a gated pod is scheduled; without preemption nobody has to go.
func TestProfilePointsMatter(t *testing.T) {
	withFakeServer(t, parsed(t, "profiles: [{plugins: {preEnqueue: {disabled: [{name: '*'}]}, postFilter: {disabled: [{name: '*'}]}}}]"), func(f *fakeServer) {
		f.addNode(schedulertest.TestNode("a"))
		f.addPod(schedulertest.TestPod("weak", schedulertest.RequestingCPU("3")))
		f.addPod(schedulertest.TestPod("gated", func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "g"}} }))
		f.pass(oneMinute)
		f.addPod(schedulertest.TestPod("strong", schedulertest.RequestingCPU("3"), schedulertest.Priority(10)))
		f.pass(oneMinute)
		if f.nodeOf("gated") != "a" || f.nodeOf("weak") != "a" || f.nodeOf("strong") != "" || len(f.victims()) != 0 {
			t.Errorf("gated on %q, weak on %q, strong on %q, victims %v", f.nodeOf("gated"), f.nodeOf("weak"), f.nodeOf("strong"), f.victims())
		}
		if patches := strings.Join(f.patchesOf("strong"), ""); strings.Contains(patches, "preemption") {
			t.Errorf("the status of the pod is %s", patches)
		}
	})
}

// Every plugin may be named at the points where upstream's plugin takes part, and at no others.
func TestPluginsAtExtensionPoints(t *testing.T) {
	const filters, scores = "preFilter filter", " preScore score"
	where := map[string]string{
		plugins.SchedulingGatesName: "preEnqueue", plugins.NodeNameName: filters, plugins.NodeUnschedulableName: filters, plugins.TaintTolerationName: filters + scores, plugins.NodeAffinityName: filters + scores,
		plugins.NodePortsName: filters, plugins.NodeResourcesFitName: filters + scores + " placementScore", plugins.VolumeRestrictionsName: filters, plugins.NodeVolumeLimitsName: filters,
		plugins.VolumeBindingName: filters + scores + " reserve preBind", plugins.VolumeZoneName: filters, plugins.PodTopologySpreadName: filters + scores, plugins.InterPodAffinityName: filters + scores,
		plugins.DynamicResourcesName:  "preEnqueue preFilter filter postFilter podGroupPostFilter score reserve preBind",
		plugins.DefaultPreemptionName: "preEnqueue postFilter podGroupPostFilter", plugins.BalancedAllocationName: "preScore score", plugins.ImageLocalityName: "score", plugins.NodeDeclaredFeaturesName: filters,
		"PrioritySort": "queueSort", "DefaultBinder": "bind",
	}
	for _, maker := range plugins.Registry {
		if where[maker.Name] == "" {
			t.Errorf("%s is nowhere", maker.Name)
		}
	}
	for _, point := range strings.Fields("preEnqueue queueSort preFilter filter postFilter preScore score reserve permit preBind bind postBind placementGenerate placementScore podGroupPostFilter") {
		kind := strings.ToUpper(point[:1]) + point[1:] + "Plugin"
		parse := func(set string) string {
			_, err := ParseConfiguration(schedulertest.Configuration("profiles: [{schedulerName: s, plugins: {" + point + ": " + set + "}}]"))
			return strings.TrimPrefix(fmt.Sprint(err), "creating profile for scheduler name s: ")
		}
		for plugin, points := range where {
			want := "<nil>"
			if !slices.Contains(strings.Fields(points), point) {
				want = fmt.Sprintf("plugin %q does not extend %s plugin", plugin, kind)
			}
			if got := parse("{enabled: [{name: " + plugin + "}]}"); got != want {
				t.Errorf("%s at %s: %s, want %s", plugin, point, got, want)
			}
		}
		if got, want := parse("{enabled: [{name: Magic}]}"), kind+` "Magic" does not exist`; got != want {
			t.Errorf("an unknown plugin at %s: %s, want %s", point, got, want)
		}
		want := map[string]string{"queueSort": `only one queue sort plugin required for profile with scheduler name "s", but got 0`, "bind": `at least one bind plugin is needed for profile with scheduler name "s"`}[point]
		if want == "" {
			want = "<nil>"
		}
		if got := parse("{disabled: [{name: '*'}]}"); got != want {
			t.Errorf("nobody at %s: %s, want %s", point, got, want)
		}
		if got := parse("{disabled: [{name: Magic}]}"); got != "<nil>" {
			t.Errorf("without an unknown plugin at %s: %s", point, got)
		}
	}
}

// customPlugin is a plugin that is added to the registry.
type customPlugin struct {
	name    string
	refuses string
	likes   string
}

func (r *customPlugin) Name() string { return r.name }

func (r *customPlugin) Filter(s *snapshot.Snapshot, _ *snapshot.PodInfo) (plugins.Filter, *plugins.Refusal) {
	return plugins.Filter{Check: func(node int32) *plugins.Refusal {
		if s.Node(node).Name == r.refuses {
			return plugins.Refuse(r.name, true, fmt.Sprintf("%s does not like it, with %d pods there", r.name, len(s.PodsOn(node))))
		}
		return nil
	}}, nil
}

func (r *customPlugin) Score(s *snapshot.Snapshot, _ *snapshot.PodInfo) plugins.Scorer {
	return plugins.Scorer{Score: func(node int32) int64 {
		if s.Node(node).Name == r.likes {
			return plugins.MaxScore
		}
		return 0
	}}
}

func withPlugins(t *testing.T, more ...plugins.Factory) {
	t.Helper()
	before := plugins.Registry
	plugins.Registry = append(slices.Clone(plugins.Registry), more...)
	t.Cleanup(func() { plugins.Registry = before })
}

// A custom plugin is an entry of the registry: it is enabled by default, or when a profile enables it.
func TestCustomPlugins(t *testing.T) {
	made := 0
	maker := func(name string, optional bool) plugins.Factory {
		return plugins.Factory{Name: name, Weight: 5, Optional: optional, Make: plugins.WithArgs(func(args *struct{ Refuses, Likes string }) plugins.Plugin {
			made++
			return &customPlugin{name: name, refuses: args.Refuses, likes: args.Likes}
		})}
	}
	withPlugins(t, maker("Mine", false), maker("Yours", true))
	nodes := []*corev1.Node{schedulertest.TestNode("a"), schedulertest.TestNode("b"), schedulertest.TestNode("c")}
	decide := func(fields string) (*decision.Decision, error) {
		t.Helper()
		c, err := ParseConfiguration(schedulertest.Configuration(fields))
		if err != nil {
			t.Fatal(err)
		}
		profiles, err := profilesOf(c)
		if err != nil {
			t.Fatal(err)
		}
		return decision.Schedule(snapshottest.New(t, nodes, schedulertest.TestPod("r", schedulertest.OnNode("a"))), snapshottest.PodInfo(t, schedulertest.TestPod("p")), profiles[corev1.DefaultSchedulerName])
	}
	const likes = "pluginConfig: [{name: Mine, args: {refuses: a, likes: c}}, {name: Yours, args: {refuses: b, likes: b}}]"
	d, err := decide("profiles: [{" + likes + "}]")
	if err != nil || d.Node != "c" {
		t.Fatalf("went to %q, %v", d.Node, err)
	}
	verdicts, _ := d.Explain()
	if v := verdicts[0]; v.Node != "c" || v.Scores["Mine"] != 5*plugins.MaxScore {
		t.Errorf("the best is %+v", v)
	}
	if v := verdicts[2]; v.Node != "a" || v.Refusal.Reasons[0] != "Mine does not like it, with 1 pods there" {
		t.Errorf("the last is %+v", v)
	}
	// Rules that are optional take part where they are enabled only, and in the order of the file.
	d, err = decide("profiles: [{plugins: {multiPoint: {enabled: [{name: Yours, weight: 2}]}}, " + likes + "}]")
	if verdicts, _ = d.Explain(); err != nil || d.Feasible != 1 || verdicts[1].Refusal.Plugin != "Mine" || verdicts[2].Refusal.Plugin != "Yours" {
		t.Errorf("%+v, %v", verdicts, err)
	}
	d, err = decide("profiles: [{plugins: {score: {enabled: [{name: Yours, weight: 20}]}}, " + likes + "}]")
	if verdicts, _ = d.Explain(); err != nil || d.Node != "b" || verdicts[0].Scores["Yours"] != 20*plugins.MaxScore {
		t.Errorf("%+v, %v", verdicts, err)
	}
	// Each file is read twice here: one of Mine for three files, one of Yours for two.
	if made != 2*(3+2) {
		t.Errorf("plugins were made %d times", made)
	}
	if _, err := ParseConfiguration(schedulertest.Configuration("profiles: [{pluginConfig: [{name: Mine, args: {loves: a}}]}]")); err == nil || !strings.Contains(err.Error(), `initializing plugin "Mine": read arguments: json: unknown field "loves"`) {
		t.Errorf("arguments of its own are read as %v", err)
	}
}

// The number of scores is bounded.
func TestTooManyScores(t *testing.T) {
	var names []string
	for i := range plugins.MaxLocalScores {
		name := fmt.Sprint("Extra", i)
		names = append(names, "{name: "+name+"}")
		withPlugins(t, plugins.Factory{Name: name, Optional: true, Make: plugins.WithoutArgs(&customPlugin{name: name})})
	}
	// NodeResourcesFit, its balance, ImageLocality and VolumeBinding already count.
	const taken = 4
	enable := func(n int) error {
		_, err := ParseConfiguration(schedulertest.Configuration("profiles: [{plugins: {score: {disabled: [{name: PodTopologySpread}, {name: TaintToleration}], enabled: [" + strings.Join(names[:n], ", ") + "]}}}]"))
		return err
	}
	if err := enable(plugins.MaxLocalScores - taken); err != nil {
		t.Errorf("%d more do not fit: %v", plugins.MaxLocalScores-taken, err)
	}
	if err := enable(plugins.MaxLocalScores - taken + 1); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("more than %d score plugins", plugins.MaxLocalScores)) {
		t.Errorf("%d more: %v", plugins.MaxLocalScores-taken+1, err)
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
		if got := string(plugins.RawArguments(test.args)); got != test.want {
			t.Errorf("%+v: %s, want %s", test.args, got, test.want)
		}
	}
}

// filtering names the plugins that filter, in order.
func filtering(p *plugins.Profile) (names []string) {
	for i, plugin := range p.Filters {
		switch {
		case i == p.SpreadOrder:
			names = append(names, plugins.PodTopologySpreadName)
		case i == p.AffinityOrder:
			names = append(names, plugins.InterPodAffinityName)
		default:
			names = append(names, plugin.Name())
		}
	}
	return names
}

// scoringWeights has the weights of the plugins that score.
func scoringWeights(p *plugins.Profile) map[string]int64 {
	weights := map[string]int64{}
	for _, x := range p.Scorers {
		weights[x.Plugin.Name()] = x.Weight
	}
	if p.SpreadWeight != 0 {
		weights[plugins.PodTopologySpreadName] = p.SpreadWeight
	}
	if p.AffinityWeight != 0 {
		weights[plugins.InterPodAffinityName] = p.AffinityWeight
	}
	return weights
}
