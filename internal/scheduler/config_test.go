package scheduler

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestConfiguration(t *testing.T) {
	c, err := ParseConfiguration([]byte(`
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
podInitialBackoffSeconds: 2
podMaxBackoffSeconds: 20
profiles:
- schedulerName: default-scheduler
- schedulerName: packing
  plugins:
    score:
      disabled: [{name: NodeResourcesBalancedAllocation}, {name: ImageLocality}]
      enabled: [{name: NodeResourcesFit, weight: 7}]
    filter:
      disabled: [{name: TaintToleration}, {name: InterPodAffinity}]
    postFilter:
      disabled: [{name: "*"}]
  pluginConfig:
  - name: NodeResourcesFit
    args: {scoringStrategy: {type: MostAllocated}}
  - name: NodeAffinity
    args: {addedAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: pool, operator: In, values: [batch]}]}]}}}
`))
	if err != nil {
		t.Fatal(err)
	}
	profiles, err := profilesOf(c)
	if err != nil {
		t.Fatal(err)
	}
	packing := profiles["packing"]
	if packing.preemption != nil || profiles["default-scheduler"].preemption == nil {
		t.Error("preemption is not switched off, or for all")
	}
	s := cluster(t, []*corev1.Node{
		testNode("full", nodeLabel("pool", "batch"), taint("k", "", corev1.TaintEffectNoSchedule)), testNode("empty", nodeLabel("pool", "batch")), testNode("other"),
	}, testPod("1", on("full"), asksCPU("2")))
	d, err := Schedule(s, infoOf(t, testPod("p", asksCPU("1"), near(corev1.LabelHostname, "nobody", "there"))), packing)
	if err != nil || d.Node != "full" {
		t.Errorf("packing chose %q, %v", d.Node, err)
	}
	verdicts, _ := d.Explain()
	for _, v := range verdicts {
		if v.Node == "other" && (v.Refusal == nil || v.Refusal.Reasons[0] != "node(s) didn't match scheduler-enforced node affinity") {
			t.Errorf("other: %+v", v.Refusal)
		}
		if _, has := v.Scores[balancedAllocationName]; has {
			t.Error("a rule that is switched off scores")
		}
		// (25+0)/2 for the pod alone: memory is hardly asked for.
		if v.Node == "empty" && v.Scores[nodeResourcesFitName] != 7*12 {
			t.Errorf("weight 7 gives %d", v.Scores[nodeResourcesFitName])
		}
	}
	initial, most := backoffOf(c)
	if initial.Seconds() != 2 || most.Seconds() != 20 {
		t.Errorf("backoff %v %v", initial, most)
	}
}

func TestExtendersResourcesAreIgnored(t *testing.T) {
	c, err := ParseConfiguration([]byte(`
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
extenders: [{urlPrefix: "http://localhost", managedResources: [{name: example.com/theirs, ignoredByScheduler: true}, {name: example.com/ours}]}]
`))
	if err != nil {
		t.Fatal(err)
	}
	profiles, err := profilesOf(c)
	if err != nil {
		t.Fatal(err)
	}
	s := cluster(t, []*corev1.Node{testNode("a")})
	if got := refusalsOf(t, s, testPod("p", asks("example.com/theirs", "1")), profiles["default-scheduler"]); len(got) != 0 {
		t.Errorf("refused by %v", got)
	}
	if got := refusalsOf(t, s, testPod("p", asks("example.com/ours", "1")), profiles["default-scheduler"]); got["a"] != "Insufficient example.com/ours" {
		t.Errorf("refused by %v", got)
	}
}

func TestConfigurationErrors(t *testing.T) {
	const head = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
	for text, want := range map[string]string{
		"kind: Pod":         "want KubeSchedulerConfiguration",
		head + "unknown: 1": "unknown",
		head + "profiles: [{schedulerName: a}, {schedulerName: a}]":                                                "Duplicate value",
		head + "profiles: [{}, {schedulerName: a}]":                                                                "schedulerName: Required value",
		head + "profiles: [{plugins: {filter: {enabled: [{name: Magic}]}}}]":                                       `plugin "Magic" is not known`,
		head + "profiles: [{pluginConfig: [{name: NodeResourcesFit, args: {scoringStrategy: {type: Best}}}]}]":     `type: Unsupported value: "Best"`,
		head + "profiles: [{pluginConfig: [{name: NodeResourcesFit, args: {scoring: 1}}]}]":                        "unknown field",
		head + "profiles: [{pluginConfig: [{name: DefaultPreemption, args: {minCandidateNodesPercentage: 200}}]}]": "not in valid range",
		head + "percentageOfNodesToScore: 101":                                                                     "not in valid range",
		head + "podMaxBackoffSeconds: 1\npodInitialBackoffSeconds: 5":                                              "podMaxBackoffSeconds",
		head + "extenders: [{urlPrefix: '', filterVerb: x}]":                                                       "urlPrefix: Required value",
		head + "extenders: [{urlPrefix: 'http://x', prioritizeVerb: x}]":                                           "positive weight",
	} {
		if _, err := ParseConfiguration([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want %q", text, err, want)
		}
	}
}
