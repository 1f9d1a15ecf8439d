package scheduler

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	configv1 "k8s.io/kube-scheduler/config/v1"
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

// configuration is the text of a file with the given fields.
func configuration(fields string) []byte {
	return []byte("apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n" + fields)
}

// withArguments is a configuration whose profile has arguments for a rule.
func withArguments(rule, arguments string) string {
	return "profiles: [{pluginConfig: [{name: " + rule + ", args: " + arguments + "}]}]"
}

// What upstream refuses is refused, under the same field paths and in the same words; all of it at once.
func TestConfigurationErrors(t *testing.T) {
	const arguments = "profiles[0].pluginConfig[0].args"
	const long = "a123456789012345678901234567890123456789012345678901234567890123456789"
	for _, test := range []struct {
		rule, fields string
		want         []string // none: the file is fine
	}{
		{"nothing is needed", "", nil},
		{"a field nobody knows", "unknown: 1", []string{`error unmarshaling JSON: while decoding JSON: json: unknown field "unknown"`}},
		{"parallelism is positive", "parallelism: 1", nil},
		{"no parallelism", "parallelism: 0", []string{"parallelism: Invalid value: 0: should be an integer value greater than zero"}},
		{"negative parallelism", "parallelism: -1", []string{"parallelism: Invalid value: -1: should be an integer value greater than zero"}},
		{"a percentage of 0", "percentageOfNodesToScore: 0", nil},
		{"a percentage of 100", "percentageOfNodesToScore: 100", nil},
		{"a percentage above", "percentageOfNodesToScore: 101", []string{"percentageOfNodesToScore: Invalid value: 101: not in valid range [0-100]"}},
		{"a percentage below", "percentageOfNodesToScore: -1", []string{"percentageOfNodesToScore: Invalid value: -1: not in valid range [0-100]"}},
		{"a profile's percentage", "profiles: [{percentageOfNodesToScore: 101}]", []string{"profiles[0].percentageOfNodesToScore: Invalid value: 101: not in valid range [0-100]"}},
		{"a profile's percentage within", "profiles: [{percentageOfNodesToScore: 40}]", nil},

		{"no first backoff", "podInitialBackoffSeconds: 0", []string{"podInitialBackoffSeconds: Invalid value: 0: must be greater than 0"}},
		{"a negative backoff", "podInitialBackoffSeconds: -1", []string{"podInitialBackoffSeconds: Invalid value: -1: must be greater than 0"}},
		{"a longest backoff like the first", "podInitialBackoffSeconds: 20\npodMaxBackoffSeconds: 20", nil},
		{"a longest backoff below the first", "podInitialBackoffSeconds: 5\npodMaxBackoffSeconds: 4", []string{"podMaxBackoffSeconds: Invalid value: 4: must be greater than or equal to PodInitialBackoffSeconds"}},
		{"a first backoff above the usual longest", "podInitialBackoffSeconds: 11", []string{"podMaxBackoffSeconds: Invalid value: 10: must be greater than or equal to PodInitialBackoffSeconds"}},
		{"a longest backoff below the usual first", "podMaxBackoffSeconds: 0", []string{"podMaxBackoffSeconds: Invalid value: 0: must be greater than or equal to PodInitialBackoffSeconds"}},

		{"a burst of requests", "clientConnection: {burst: 0, qps: -1}", nil},
		{"a negative burst", "clientConnection: {burst: -1}", []string{"clientConnection.burst: Invalid value: -1: must be non-negative"}},
		{"how to encode", "clientConnection: {contentType: application/json, acceptContentTypes: application/json, kubeconfig: /etc/k}", nil},
		{"an election with times of its own", "leaderElection: {leaseDuration: 3s, renewDeadline: 2s, retryPeriod: 1s, resourceName: x, resourceNamespace: y, resourceLock: leases}", nil},
		{"a lease no longer than its renewal", "leaderElection: {leaseDuration: 10s, renewDeadline: 10s}", []string{"leaderElection.leaseDuration: Invalid value: \"10s\": must be greater than `RenewDeadline`"}},
		{"a lease shorter than the usual renewal", "leaderElection: {leaseDuration: 9s}", []string{"leaderElection.leaseDuration: Invalid value: \"10s\": must be greater than `RenewDeadline`"}},
		{"negative times", "leaderElection: {leaseDuration: -1s, renewDeadline: -2s, retryPeriod: -3s}", []string{
			`leaderElection.leaseDuration: Invalid value: "-1s": must be greater than zero`, `leaderElection.renewDeadline: Invalid value: "-2s": must be greater than zero`,
			`leaderElection.retryPeriod: Invalid value: "-3s": must be greater than zero`}},
		{"another kind of lock", "leaderElection: {resourceLock: endpoints}", []string{`leaderElection.resourceLock: Invalid value: "endpoints": resourceLock value must be "leases"`}},
		{"who does not compete needs no lock", "leaderElection: {leaderElect: false, resourceLock: endpoints, leaseDuration: -1s}", nil},

		{"a profile without a name is the usual one", "profiles: [{}]", nil},
		{"an empty name", "profiles: [{schedulerName: ''}]", []string{"profiles[0].schedulerName: Required value"}},
		{"two profiles need names", "profiles: [{}, {schedulerName: a}]", []string{"profiles[0].schedulerName: Required value"}},
		{"names are unique", "profiles: [{schedulerName: a}, {schedulerName: b}, {schedulerName: a}]", []string{`profiles[2].schedulerName: Duplicate value: "profiles[0].schedulerName"`}},
		{"no names at all", "profiles: [{}, {}]", []string{"profiles[0].schedulerName: Required value", "profiles[1].schedulerName: Required value", `profiles[1].schedulerName: Duplicate value: "profiles[0].schedulerName"`}},
		{"arguments twice", "profiles: [{pluginConfig: [{name: NodeAffinity}, {name: NodeAffinity}]}]", []string{`profiles[0].pluginConfig[1]: Duplicate value: "NodeAffinity"`}},
		{"arguments of a rule nobody knows", "profiles: [{pluginConfig: [{name: Magic, args: {spell: 1}}]}]", nil},
		{"rules of earlier versions", "profiles: [{plugins: {filter: {enabled: [{name: NodePorts}, {name: EBSLimits}]}}, pluginConfig: [{name: GCEPDLimits}]}]", []string{
			`profiles[0].plugins.filter.enabled[1]: Invalid value: "EBSLimits": was invalid in version "kubescheduler.config.k8s.io/v1" (KubeSchedulerConfiguration is version "kubescheduler.config.k8s.io/v1")`,
			`profiles[0].pluginConfig[0]: Invalid value: "GCEPDLimits": was invalid in version "kubescheduler.config.k8s.io/v1" (KubeSchedulerConfiguration is version "kubescheduler.config.k8s.io/v1")`}},
		{"a negative weight", "profiles: [{plugins: {score: {enabled: [{name: ImageLocality, weight: -1}]}}}]", []string{"profiles[0].plugins.score.enabled[0].weight: Invalid value: -1: must not be negative"}},
		{"one queue, one order", "profiles: [{schedulerName: a, plugins: {queueSort: {enabled: [{name: PrioritySort}]}}}, {schedulerName: b, plugins: {queueSort: {enabled: [{name: PrioritySort}]}}}]", nil},
		{"different orders", "profiles: [{schedulerName: a}, {schedulerName: b, plugins: {queueSort: {enabled: [{name: PrioritySort}]}}}]", []string{`profiles[1].plugins.queueSort: Invalid value: "PrioritySort": must be the same for all profiles`}},
		{"two orders", "profiles: [{plugins: {queueSort: {enabled: [{name: PrioritySort}, {name: Other}]}}}]", []string{"profiles[0].plugins.queueSort.Enabled: Invalid value: 2: only one queue sort plugin can be enabled"}},

		{"any extender", "extenders: [{urlPrefix: 'http://x'}]", nil},
		{"an extender that scores has a weight", "extenders: [{urlPrefix: 'http://x', prioritizeVerb: p, weight: 1}]", nil},
		{"a score of no weight", "extenders: [{urlPrefix: 'http://x'}, {urlPrefix: 'http://x', prioritizeVerb: p}]", []string{"extenders[1].weight: Invalid value: 0: must have a positive weight applied to it"}},
		{"a score of negative weight", "extenders: [{urlPrefix: 'http://x', prioritizeVerb: p, weight: -2}]", []string{"extenders[0].weight: Invalid value: -2: must have a positive weight applied to it"}},
		{"one binder", "extenders: [{urlPrefix: 'http://x', bindVerb: b}, {urlPrefix: 'http://y'}]", nil},
		{"two binders", "extenders: [{urlPrefix: 'http://x', bindVerb: b}, {urlPrefix: 'http://y', bindVerb: b}]", []string{`extenders: Invalid value: "found 2 extenders implementing bind": only one extender can implement bind`}},
		{"what extenders manage", "extenders: [{urlPrefix: 'http://x', managedResources: [{name: a.b/c}, {name: a.b/c.d}]}]", nil},
		{"a resource of Kubernetes", "extenders: [{urlPrefix: 'http://x', managedResources: [{name: cpu}]}]", []string{`extenders[0].managedResources[0].name: Invalid value: "cpu": is an invalid extended resource name`}},
		{"a resource under Kubernetes' name", "extenders: [{urlPrefix: 'http://x', managedResources: [{name: kubernetes.io/c}]}]", []string{`extenders[0].managedResources[0].name: Invalid value: "kubernetes.io/c": is an invalid extended resource name`}},
		{"a quota is no resource", "extenders: [{urlPrefix: 'http://x', managedResources: [{name: requests.a.b/c}]}]", []string{`extenders[0].managedResources[0].name: Invalid value: "requests.a.b/c": is an invalid extended resource name`}},
		{"a name that is none", "extenders: [{urlPrefix: 'http://x', managedResources: [{name: 'a b'}]}]", []string{`extenders[0].managedResources[0].name: Invalid value: "a b": name part must consist of alphanumeric characters`}},
		{"a resource managed twice", "extenders: [{urlPrefix: 'http://x', managedResources: [{name: a.b/c}]}, {urlPrefix: 'http://y', managedResources: [{name: a.b/d}, {name: a.b/c}]}]", []string{`extenders[1].managedResources[1].name: Invalid value: "a.b/c": duplicate extender managed resource name`}},
		{"certificates that are not there", "extenders: [{urlPrefix: 'https://x', enableHTTPS: true, tlsConfig: {caFile: /does/not/exist}}]", []string{"extenders[0]: tlsConfig: open /does/not/exist"}},
		{"everything wrong is told", "parallelism: 0\npercentageOfNodesToScore: 200\nextenders: [{urlPrefix: 'http://x', prioritizeVerb: p}]", []string{
			"parallelism: Invalid value: 0", "percentageOfNodesToScore: Invalid value: 200", "extenders[0].weight: Invalid value: 0"}},

		{"arguments of unknown fields", withArguments("NodeResourcesFit", "{scoring: 1}"), []string{arguments + `: Invalid value: "{\"scoring\":1}": decoding args for plugin NodeResourcesFit: strict decoding error: unknown field "scoring"`}},
		{"arguments that are none", withArguments("NodeResourcesFit", "7"), []string{arguments + `: Invalid value: "7": decoding args for plugin NodeResourcesFit:`}},
		{"arguments that say of what kind they are", withArguments("NodeAffinity", "{apiVersion: kubescheduler.config.k8s.io/v1, kind: NodeAffinityArgs}"), nil},
		{"arguments of another rule", withArguments("NodeAffinity", "{apiVersion: kubescheduler.config.k8s.io/v1, kind: VolumeBindingArgs}"),
			[]string{"args for plugin NodeAffinity were not of type NodeAffinityArgs.kubescheduler.config.k8s.io, got VolumeBindingArgs.kubescheduler.config.k8s.io"}},
		{"arguments of another group", withArguments("NodeAffinity", "{apiVersion: v1, kind: NodeAffinityArgs}"), []string{"args for plugin NodeAffinity were not of type NodeAffinityArgs.kubescheduler.config.k8s.io, got NodeAffinityArgs"}},

		{"an affinity that is added", withArguments("NodeAffinity", "{addedAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: a, operator: Exists}]}]}, preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1, preference: {matchFields: [{key: metadata.name, operator: In, values: [n1]}]}}]}}"), nil},
		{"an affinity with an operator nobody knows", withArguments("NodeAffinity", "{addedAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{}, {matchExpressions: [{key: a, operator: Near}]}]}}}"),
			[]string{arguments + `.addedAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[1].matchExpressions[0].operator: Unsupported value: "Near"`}},
		{"a preference for a field that only can be told apart", withArguments("NodeAffinity", "{addedAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1, preference: {matchFields: [{key: metadata.name, operator: Exists}]}}]}}"),
			[]string{arguments + `.addedAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].matchFields[0].operator: Unsupported value: "Exists"`}},
		{"both", withArguments("NodeAffinity", "{addedAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: a, operator: Gt, values: [x]}]}]}, preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1, preference: {matchExpressions: [{key: a, operator: In}]}}]}}"),
			[]string{arguments + ".addedAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0].values", arguments + ".addedAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].matchExpressions[0].values"}},

		{"a weight of affinity", withArguments("InterPodAffinity", "{hardPodAffinityWeight: 100, ignorePreferredTermsOfExistingPods: true}"), nil},
		{"no weight of affinity", withArguments("InterPodAffinity", "{hardPodAffinityWeight: 0}"), nil},
		{"a weight of affinity above", withArguments("InterPodAffinity", "{hardPodAffinityWeight: 101}"), []string{arguments + ".hardPodAffinityWeight: Invalid value: 101: not in valid range [0, 100]"}},
		{"a weight of affinity below", withArguments("InterPodAffinity", "{hardPodAffinityWeight: -1}"), []string{arguments + ".hardPodAffinityWeight: Invalid value: -1: not in valid range [0, 100]"}},

		{"how many candidates", withArguments("DefaultPreemption", "{minCandidateNodesPercentage: 0, minCandidateNodesAbsolute: 1}"), nil},
		{"a percentage of candidates alone", withArguments("DefaultPreemption", "{minCandidateNodesPercentage: 0}"), nil},
		{"candidates above", withArguments("DefaultPreemption", "{minCandidateNodesPercentage: 101}"), []string{arguments + ".minCandidateNodesPercentage: Invalid value: 101: not in valid range [0, 100]"}},
		{"candidates below", withArguments("DefaultPreemption", "{minCandidateNodesPercentage: -1, minCandidateNodesAbsolute: -1}"), []string{
			arguments + ".minCandidateNodesPercentage: Invalid value: -1: not in valid range [0, 100]", arguments + ".minCandidateNodesAbsolute: Invalid value: -1: not in valid range [0, inf)"}},
		{"no candidates", withArguments("DefaultPreemption", "{minCandidateNodesPercentage: 0, minCandidateNodesAbsolute: 0}"), []string{
			arguments + ".minCandidateNodesPercentage: Invalid value: 0: cannot be zero at the same time as minCandidateNodesAbsolute",
			arguments + ".minCandidateNodesAbsolute: Invalid value: 0: cannot be zero at the same time as minCandidateNodesPercentage"}},

		{"balanced resources", withArguments("NodeResourcesBalancedAllocation", "{resources: [{name: cpu}, {name: a.b/c, weight: 1}]}"), nil},
		{"balance knows no weights", withArguments("NodeResourcesBalancedAllocation", "{resources: [{name: cpu, weight: 2}]}"), []string{arguments + ".resources[0].weight: Invalid value: 2: must be 1"}},
		{"balanced twice", withArguments("NodeResourcesBalancedAllocation", "{resources: [{name: cpu}, {name: cpu}]}"), []string{arguments + `.resources[1].name: Duplicate value: "cpu"`}},

		{"a strategy", withArguments("NodeResourcesFit", "{scoringStrategy: {type: MostAllocated, resources: [{name: cpu, weight: 100}, {name: memory}]}}"), nil},
		{"a strategy nobody knows", withArguments("NodeResourcesFit", "{scoringStrategy: {type: Best}}"), []string{arguments + `.scoringStrategy.type: Unsupported value: "Best": supported values: "LeastAllocated", "MostAllocated", "RequestedToCapacityRatio"`}},
		{"a strategy without a name", withArguments("NodeResourcesFit", "{scoringStrategy: {resources: [{name: cpu}]}}"), []string{arguments + `.scoringStrategy.type: Unsupported value: ""`}},
		{"a weight above", withArguments("NodeResourcesFit", "{scoringStrategy: {type: LeastAllocated, resources: [{name: cpu}, {name: memory, weight: 101}]}}"), []string{arguments + ".scoringStrategy.resources[1].weight: Invalid value: 101: resource weight of memory not in valid range (0, 100]"}},
		{"a weight below", withArguments("NodeResourcesFit", "{scoringStrategy: {type: LeastAllocated, resources: [{name: cpu, weight: -1}]}}"), []string{arguments + ".scoringStrategy.resources[0].weight: Invalid value: -1: resource weight of cpu not in valid range (0, 100]"}},
		{"a ratio", withArguments("NodeResourcesFit", "{scoringStrategy: {type: RequestedToCapacityRatio, requestedToCapacityRatio: {shape: [{utilization: 0, score: 0}, {utilization: 100, score: 10}]}}}"), nil},
		{"a ratio without a shape", withArguments("NodeResourcesFit", "{scoringStrategy: {type: RequestedToCapacityRatio, requestedToCapacityRatio: {}}}"), []string{arguments + ".scoringStrategy.requestedToCapacityRatio.shape: Required value: at least one point must be specified"}},
		{"no ratio", withArguments("NodeResourcesFit", "{scoringStrategy: {type: RequestedToCapacityRatio}}"), []string{arguments + ".scoringStrategy.requestedToCapacityRatio: Required value: must be specified when type is RequestedToCapacityRatio"}},
		{"a ratio of another strategy", withArguments("NodeResourcesFit", "{scoringStrategy: {type: MostAllocated, requestedToCapacityRatio: {shape: [{utilization: 0, score: 0}]}}}"), []string{arguments + ".scoringStrategy.requestedToCapacityRatio: Forbidden: must be nil when type is not RequestedToCapacityRatio"}},
		{"a shape that does not grow", withArguments("NodeResourcesFit", "{scoringStrategy: {type: RequestedToCapacityRatio, requestedToCapacityRatio: {shape: [{utilization: 5}, {utilization: 5}, {utilization: 4}]}}}"), []string{arguments + ".scoringStrategy.requestedToCapacityRatio.shape[1].utilization: Invalid value: 5: values must be sorted in increasing order"}},
		{"a shape out of bounds", withArguments("NodeResourcesFit", "{scoringStrategy: {type: RequestedToCapacityRatio, requestedToCapacityRatio: {shape: [{utilization: -1, score: -1}, {utilization: 101, score: 11}]}}}"), []string{
			"shape[0].utilization: Invalid value: -1: not in valid range [0, 100]", "shape[0].score: Invalid value: -1: not in valid range [0, 10]",
			"shape[1].utilization: Invalid value: 101: not in valid range [0, 100]", "shape[1].score: Invalid value: 11: not in valid range [0, 10]"}},
		{"ignored resources", withArguments("NodeResourcesFit", "{ignoredResources: [a.b/c], ignoredResourceGroups: [a.b]}"), nil},
		{"ignored names that are none", withArguments("NodeResourcesFit", "{ignoredResources: [ok, 'a b'], ignoredResourceGroups: [a/b, 'a b']}"), []string{
			arguments + `.ignoredResources[1]: Invalid value: "a b"`, arguments + `.ignoredResourceGroups[0]: Invalid value: "a/b": resource group name can't contain '/'`, arguments + `.ignoredResourceGroups[1]: Invalid value: "a b"`}},

		{"a time for volumes", withArguments("VolumeBinding", "{bindTimeoutSeconds: 0}"), nil},
		{"a negative time for volumes", withArguments("VolumeBinding", "{bindTimeoutSeconds: -1}"), []string{arguments + ".bindTimeoutSeconds: Invalid value: -1: invalid BindTimeoutSeconds, should not be a negative value"}},
		{"a shape of capacity", withArguments("VolumeBinding", "{shape: [{utilization: 100, score: 1}, {utilization: 0, score: 1}]}"), []string{arguments + ".shape[1].utilization: Invalid value: 0: values must be sorted in increasing order"}},

		{"spread as the system does", withArguments("PodTopologySpread", "{defaultingType: System}"), nil},
		{"spread by a list", withArguments("PodTopologySpread", "{defaultingType: List, defaultConstraints: [{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: DoNotSchedule}, {maxSkew: 1, topologyKey: zone, whenUnsatisfiable: ScheduleAnyway}]}"), nil},
		{"spread by nothing", withArguments("PodTopologySpread", "{defaultingType: List}"), nil},
		{"spread by nobody", withArguments("PodTopologySpread", "{defaultingType: Magic}"), []string{arguments + `.defaultingType: Unsupported value: "Magic": supported values: "System", "List"`}},
		{"a list that is not asked for", withArguments("PodTopologySpread", "{defaultConstraints: [{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: DoNotSchedule}]}"), []string{arguments + `.defaultingType: Invalid value: "System": when .defaultConstraints are not empty`}},
		{"constraints that say nothing", withArguments("PodTopologySpread", "{defaultingType: List, defaultConstraints: [{}]}"), []string{
			arguments + ".defaultConstraints[0].maxSkew: Invalid value: 0: not in valid range (0, inf)", arguments + ".defaultConstraints[0].topologyKey: Required value: can not be empty",
			arguments + ".defaultConstraints[0].whenUnsatisfiable: Required value: can not be empty"}},
		{"constraints that say it wrong", withArguments("PodTopologySpread", "{defaultingType: List, defaultConstraints: [{maxSkew: -1, topologyKey: 'a b', whenUnsatisfiable: Perhaps, labelSelector: {}}]}"), []string{
			arguments + ".defaultConstraints[0].maxSkew: Invalid value: -1: not in valid range (0, inf)", arguments + `.defaultConstraints[0].topologyKey: Invalid value: "a b"`,
			arguments + `.defaultConstraints[0].whenUnsatisfiable: Unsupported value: "Perhaps": supported values: "DoNotSchedule", "ScheduleAnyway"`,
			arguments + ".defaultConstraints[0].labelSelector: Forbidden: constraint must not define a selector, as they deduced for each pod"}},
		{"constraints twice", withArguments("PodTopologySpread", "{defaultingType: List, defaultConstraints: [{maxSkew: 1, topologyKey: z, whenUnsatisfiable: DoNotSchedule}, {maxSkew: 2, topologyKey: z, whenUnsatisfiable: DoNotSchedule}]}"), []string{arguments + `.defaultConstraints[1]: Duplicate value: "{z, DoNotSchedule}"`}},
		{"too long a key", withArguments("PodTopologySpread", "{defaultingType: List, defaultConstraints: [{maxSkew: 1, topologyKey: "+long+", whenUnsatisfiable: DoNotSchedule}]}"), []string{arguments + ".defaultConstraints[0].topologyKey: Invalid value: \"" + long}},

		{"times for devices", withArguments("DynamicResources", "{filterTimeout: 0s, bindingTimeout: 1s}"), nil},
		{"times for devices below", withArguments("DynamicResources", "{filterTimeout: -1s, bindingTimeout: 999ms}"), []string{
			arguments + `.filterTimeout: Invalid value: "-1s": must be zero or positive`, arguments + `.bindingTimeout: Invalid value: "999ms": must be at least 1 second`}},

		{"a rule nobody knows", "profiles: [{plugins: {filter: {enabled: [{name: Magic}]}}}]", []string{`creating profile for scheduler name default-scheduler: FilterPlugin "Magic" does not exist`}},
		{"everywhere a rule nobody knows", "profiles: [{schedulerName: s, plugins: {multiPoint: {enabled: [{name: Magic}]}}}]", []string{`creating profile for scheduler name s: PreFilterPlugin "Magic" does not exist`}},
		{"at a point of no rules here", "profiles: [{plugins: {permit: {enabled: [{name: Magic}]}}}]", []string{`PermitPlugin "Magic" does not exist`}},
		{"a rule nobody knows is easily left out", "profiles: [{plugins: {filter: {disabled: [{name: Magic}]}}}]", nil},
		{"a rule twice at a point", "profiles: [{plugins: {score: {enabled: [{name: ImageLocality}, {name: ImageLocality, weight: 2}]}}}]", []string{`plugin "ImageLocality" already registered as "ScorePlugin"`}},
		{"a rule at a point where it has nothing to say", "profiles: [{plugins: {score: {enabled: [{name: NodePorts}]}}}]", []string{`plugin "NodePorts" does not extend ScorePlugin plugin`}},
		{"a rule that only scores", "profiles: [{plugins: {filter: {enabled: [{name: ImageLocality}]}}}]", []string{`plugin "ImageLocality" does not extend FilterPlugin plugin`}},
		{"a rule that makes no room", "profiles: [{plugins: {postFilter: {enabled: [{name: NodeName}]}}}]", []string{`plugin "NodeName" does not extend PostFilterPlugin plugin`}},
		{"a rule that holds nobody back", "profiles: [{plugins: {preEnqueue: {enabled: [{name: NodeName}]}}}]", []string{`plugin "NodeName" does not extend PreEnqueuePlugin plugin`}},
		{"a rule that does not sort", "profiles: [{plugins: {queueSort: {enabled: [{name: NodeName}]}}}]", []string{`plugin "NodeName" does not extend QueueSortPlugin plugin`}},
		{"the binder does not filter", "profiles: [{plugins: {filter: {enabled: [{name: DefaultBinder}]}}}]", []string{`plugin "DefaultBinder" does not extend FilterPlugin plugin`}},
		{"the binder binds", "profiles: [{plugins: {bind: {enabled: [{name: DefaultBinder}]}}}]", nil},
		{"nobody binds", "profiles: [{schedulerName: s, plugins: {bind: {disabled: [{name: DefaultBinder}]}}}]", []string{`at least one bind plugin is needed for profile with scheduler name "s"`}},
		{"nobody sorts", "profiles: [{schedulerName: s, plugins: {queueSort: {disabled: [{name: '*'}]}}}]", []string{`only one queue sort plugin required for profile with scheduler name "s", but got 0`}},
		{"without everything somebody still has to sort and bind", "profiles: [{plugins: {multiPoint: {disabled: [{name: '*'}], enabled: [{name: NodeName}, {name: PrioritySort}]}}}]", []string{"at least one bind plugin is needed"}},
		{"the least there can be", "profiles: [{plugins: {multiPoint: {disabled: [{name: '*'}], enabled: [{name: DefaultBinder}, {name: PrioritySort}]}}}]", nil},
		{"weights beyond all bounds", "profiles: [{plugins: {score: {enabled: [{name: ImageLocality, weight: 21474836}, {name: NodeResourcesFit, weight: 1}]}}}]", []string{"total score of Score plugins could overflow"}},
	} {
		t.Run(test.rule, func(t *testing.T) {
			_, err := ParseConfiguration(configuration(test.fields))
			if len(test.want) == 0 {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if err == nil {
				t.Fatalf("no error, want %q", test.want)
			}
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %v\nlacks %s", err, want)
				}
			}
			var many interface{ Errors() []error }
			if errors.As(err, &many) && len(many.Errors()) != len(test.want) {
				t.Errorf("%d errors, want %d: %v", len(many.Errors()), len(test.want), err)
			}
		})
	}
}

func TestConfigurationOfAnotherKind(t *testing.T) {
	for _, text := range []string{"kind: Pod", "", "apiVersion: kubescheduler.config.k8s.io/v1", "apiVersion: kubescheduler.config.k8s.io/v1beta3\nkind: KubeSchedulerConfiguration"} {
		if _, err := ParseConfiguration([]byte(text)); err == nil || !strings.Contains(err.Error(), "want KubeSchedulerConfiguration of kubescheduler.config.k8s.io/v1") {
			t.Errorf("%q: %v", text, err)
		}
	}
	if _, err := ParseConfiguration([]byte("{")); err == nil {
		t.Error("what is not YAML was read")
	}
}

func TestReadConfiguration(t *testing.T) {
	path := filepath.Join(t.TempDir(), "scheduler.yaml")
	if _, err := ReadConfiguration(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
	if err := os.WriteFile(path, configuration("podInitialBackoffSeconds: 3"), 0o600); err != nil {
		t.Fatal(err)
	}
	if c, err := ReadConfiguration(path); err != nil || *c.PodInitialBackoffSeconds != 3 {
		t.Errorf("%+v, %v", c, err)
	}
}

// A configuration made by code is looked at as one from a file is.
func TestSchedulerRefusesBadConfigurations(t *testing.T) {
	zero := int32(0)
	for _, c := range []*configv1.KubeSchedulerConfiguration{
		{Parallelism: &zero},
		{Profiles: []configv1.KubeSchedulerProfile{{PluginConfig: []configv1.PluginConfig{{Name: nodeResourcesFitName, Args: runtime.RawExtension{Object: &configv1.NodeResourcesFitArgs{ScoringStrategy: &configv1.ScoringStrategy{Type: "Best"}}}}}}}},
		{Extenders: []configv1.Extender{{TLSConfig: &configv1.ExtenderTLSConfig{CAFile: "/does/not/exist"}}}},
	} {
		if _, err := newScheduler(c, nil); err == nil {
			t.Errorf("%+v was taken", c)
		}
	}
	if s, err := newScheduler(nil, nil); err != nil || len(s.profiles) != 1 || s.profiles[corev1.DefaultSchedulerName] == nil || s.extenders != nil {
		t.Errorf("without a configuration: %+v, %v", s.profiles, err)
	}
}
